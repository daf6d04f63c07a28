#include "runtime/job/report/stage_news.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace gradcast {
namespace {

constexpr uint64_t shown_every_us = 1'000'000;
constexpr uint64_t ticks = UINT16_MAX;

uint32_t low(uint64_t value) { return static_cast<uint32_t>(std::min<uint64_t>(value, UINT32_MAX)); }

}   // namespace

double StageNews::idle() const {
    if (steps == 0 || step_us == 0) return -1;
    uint64_t passed = 0;
    for (size_t i = 0; i < stage_passes; ++i) passed += us[i];
    return 1 - static_cast<double>(std::min<uint64_t>(passed, step_us)) / step_us;
}

size_t stage_news_write(const StageNews& news, std::span<std::byte, stage_news_bytes_max> to) {
    if (news.steps == 0) return 0;
    const size_t passes = std::min<size_t>(news.passes.size(), StageRecord::passes_max);
    uint64_t span_us = 1;
    for (size_t i = 0; i < passes; ++i) span_us = std::max<uint64_t>(span_us, news.passes[i].end_us);
    StageNewsWire wire;
    wire.shown.set(news.shown);
    wire.steps.set(news.steps);
    wire.step_us.set(news.step_us);
    wire.span_us.set(low(span_us));
    for (size_t i = 0; i < stage_times; ++i) wire.us[i].set(news.us[i]);
    wire.micro_batches.set(static_cast<uint16_t>(std::min<uint32_t>(news.micro_batches, UINT16_MAX)));
    wire.passes.set(static_cast<uint16_t>(passes));
    std::memcpy(to.data(), &wire, sizeof wire);
    std::byte* at = to.data() + sizeof wire;
    auto put = [&](uint64_t us) {
        Le16 tick;
        tick.set(static_cast<uint16_t>((us * ticks + span_us / 2) / span_us));
        std::memcpy(at, &tick, sizeof tick);
        at += sizeof tick;
    };
    for (size_t i = 0; i < passes; ++i) put(news.passes[i].begin_us), put(news.passes[i].end_us);
    return static_cast<size_t>(at - to.data());
}

bool stage_news_read(std::span<const std::byte> bytes, StageNews* news) {
    StageNewsWire wire;
    if (bytes.size() < sizeof wire) return false;
    std::memcpy(&wire, bytes.data(), sizeof wire);
    const size_t passes = wire.passes.get();
    if (passes > StageRecord::passes_max || bytes.size() != sizeof wire + passes * 2 * sizeof(Le16) || wire.steps.get() == 0) return false;
    StageNews read;
    read.shown = wire.shown.get();
    read.steps = wire.steps.get();
    read.step_us = wire.step_us.get();
    for (size_t i = 0; i < stage_times; ++i) read.us[i] = wire.us[i].get();
    read.micro_batches = wire.micro_batches.get();
    const std::byte* at = bytes.data() + sizeof wire;
    auto take = [&] {
        Le16 tick;
        std::memcpy(&tick, at, sizeof tick);
        at += sizeof tick;
        return low((uint64_t{tick.get()} * wire.span_us.get() + ticks / 2) / ticks);
    };
    for (size_t i = 0; i < passes; ++i) {
        const uint32_t begin_us = take(), end_us = take();
        if (end_us < begin_us) return false;
        read.passes.push_back({begin_us, end_us});
    }
    *news = std::move(read);
    return true;
}

void StageLog::step(uint64_t number, const StageRecord& record, uint64_t step_us) {
    std::lock_guard lock(mutex_);
    Times& now = times_[count_++ % recent_steps];
    now.step_us = low(step_us);
    for (size_t i = 0; i < stage_times; ++i) now.us[i] = low(record.us[i]);
    micro_batches_ = record.micro_batches;
    const uint64_t every = std::bit_floor(std::max<uint64_t>(1, shown_every_us / std::max<uint64_t>(step_us, 1)));
    if (number % every != 0 && shown_ > 0) return;
    shown_ = number;
    passes_ = record.passes;
    std::copy_n(record.times.begin(), passes_, kept_.begin());
}

StageNews StageLog::read() const {
    std::lock_guard lock(mutex_);
    StageNews news;
    const uint32_t kept = std::min(count_, recent_steps);
    news.steps = kept;
    if (kept == 0) return news;
    auto mean = [&](auto value) {
        uint64_t sum = 0;
        for (uint32_t i = 0; i < kept; ++i) sum += value(times_[i]);
        return static_cast<uint32_t>(sum / kept);
    };
    news.step_us = mean([](const Times& times) { return times.step_us; });
    for (size_t what = 0; what < stage_times; ++what) news.us[what] = mean([&](const Times& times) { return times.us[what]; });
    news.micro_batches = micro_batches_;
    news.shown = shown_;
    news.passes.assign(kept_.begin(), kept_.begin() + passes_);
    return news;
}

void StagesOfNodes::plan(size_t nodes) { news_.resize(nodes); }

void StagesOfNodes::set(size_t node, StageNews news) {
    std::lock_guard lock(mutex_);
    if (node < news_.size()) news_[node] = std::move(news);
}

StageNews StagesOfNodes::get(size_t node) const {
    std::lock_guard lock(mutex_);
    return node < news_.size() ? news_[node] : StageNews{};
}

}   // namespace gradcast
