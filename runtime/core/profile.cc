#include "runtime/core/profile.h"

#include <algorithm>
#include <set>

namespace gradcast {
namespace {

std::string quoted(std::string_view text) {
    std::string result = "\"";
    for (char c : text) {
        if (c == '"' || c == '\\') result += '\\';
        result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
    return result + '"';
}

std::string thread_name(uint32_t thread) {
    return thread == Profile::trainer ? "trainer" : thread == Profile::network ? "network" : fmt::format("lane {}", thread);
}

}   // namespace

const char* step_phase_name(StepPhase phase) {
    switch (phase) {
        case StepPhase::load: return "load";
        case StepPhase::compute: return "compute";
        case StepPhase::quantise: return "quantise";
        case StepPhase::encode: return "encode";
        case StepPhase::send: return "send";
        case StepPhase::wait: return "wait";
        case StepPhase::edges: return "edges";
        case StepPhase::decode: return "decode";
        case StepPhase::add: return "add";
        case StepPhase::apply: return "apply";
    }
    return "?";
}

void Profile::add(uint32_t thread, const char* phase, std::string_view what, uint64_t begin_ns, uint64_t end_ns, MicroBatchPlace place) {
    const uint32_t number = count_.fetch_add(1, std::memory_order_relaxed);   // relaxed: viewers sort by time
    if (number >= events_max) return;
    Event& event = events_[number];
    event.thread = thread;
    event.phase = phase;
    event.begin_ns = begin_ns;
    event.end_ns = end_ns;
    event.place = place;
    std::copy_n(what.data(), std::min(what.size(), event.what.size() - 1), event.what.data());
    event.ready.store(true, std::memory_order_release);   // pairs with json()
}

std::string Profile::json(uint32_t rank, const std::string& node) const {
    const uint32_t count = count_.load(std::memory_order_relaxed), kept = std::min(count, events_max);
    std::string text = fmt::format("{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"step\":{},\"events_left_out\":{}}},\"traceEvents\":[\n",
                                   step + 1, count - kept);
    text += fmt::format(R"({{"name":"process_name","ph":"M","pid":{},"tid":0,"args":{{"name":{}}}}})", rank, quoted(node));
    std::set<uint32_t> threads;
    for (uint32_t i = 0; i < kept; ++i) {
        const Event& event = events_[i];
        if (!event.ready.load(std::memory_order_acquire)) continue;
        threads.insert(event.thread);
        const std::string_view what = event.what.data();
        const std::string name = !what.empty()           ? fmt::format("{} {}", event.phase, what)
                                 : event.place.stage > 0 ? fmt::format("{} micro-batch {}", event.phase, event.place.micro_batch)
                                                         : event.phase;
        text += fmt::format(",\n{{\"name\":{},\"cat\":\"{}\",\"ph\":\"X\",\"pid\":{},\"tid\":{},\"ts\":{:.3f},\"dur\":{:.3f}", quoted(name),
                            event.phase, rank, event.thread, static_cast<double>(event.begin_ns) / 1e3,
                            static_cast<double>(event.end_ns - event.begin_ns) / 1e3);
        if (event.place.stage > 0)
            text += fmt::format(",\"args\":{{\"stage\":{},\"micro_batch\":{}}}", event.place.stage, event.place.micro_batch);
        text += '}';
    }
    for (uint32_t thread : threads)
        text += fmt::format(",\n{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":\"{}\"}}}}", rank, thread,
                            thread_name(thread));
    return text + "\n]}\n";
}

}   // namespace gradcast
