#include "runtime/job/report/view_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <span>

#include "runtime/core/message.h"
#include "runtime/view/proposal.h"

namespace gradcast {
namespace {

constexpr size_t views_max = 256;
constexpr size_t name_max = 64;

void names_write(const std::vector<std::string>& names, MessageWriter& writer) {
    writer.number(names.size());
    for (const std::string& name : names) writer.text(std::string_view(name).substr(0, name_max));
}
std::vector<std::string> names_read(MessageReader& reader) {
    std::vector<std::string> names;
    for (uint64_t count = reader.number(); count > 0 && reader.good; --count) names.push_back(reader.text(name_max));
    return names;
}

/// True if the others evicted the node because it was silent, without progress or not heard.
bool given_up(const ViewRecord& view, const std::string& name) {
    return std::ranges::any_of(std::array{why_silent, why_stuck, why_unreachable}, [&](const char* why) {
        return (", " + view.why + ",").find(fmt::format(", {} {},", name, why)) != std::string::npos;
    });
}

}   // namespace

std::vector<std::byte> view_records_write(std::vector<ViewRecord> views) {
    for (;;) {
        MessageWriter writer;
        for (const ViewRecord& view : views) {
            for (const uint64_t number : {uint64_t{view.number}, view.first_step, view.began_unix, view.stood_us}) writer.number(number);
            for (const std::vector<std::string>* names : {&view.members, &view.joined, &view.departed}) names_write(*names, writer);
            writer.text(std::string_view(view.why).substr(0, reason_max));
        }
        if (writer.bytes.size() <= view_records_bytes_max || views.empty()) return std::move(writer.bytes);
        views.erase(views.begin(), views.begin() + static_cast<ptrdiff_t>((views.size() + 1) / 2));
    }
}

bool view_records_parse(std::span<const std::byte> bytes, std::vector<ViewRecord>* views) {
    views->clear();
    for (MessageReader reader{bytes}; !reader.bytes.empty();) {
        ViewRecord& view = views->emplace_back();
        view.number = static_cast<uint32_t>(reader.number());
        view.first_step = reader.number();
        view.began_unix = reader.number();
        view.stood_us = reader.number();
        view.members = names_read(reader);
        view.joined = names_read(reader);
        view.departed = names_read(reader);
        view.why = reader.text(reason_max);
        if (!reader.good || views->size() > views_max) return false;
    }
    return true;
}

std::vector<ViewRecord> view_records_with(std::vector<ViewRecord> views, ViewRecord next) {
    next.began_unix = static_cast<uint64_t>(std::time(nullptr));
    next.number = views.empty() ? 1 : views.back().number + 1;
    if (views.size() == views_max) views.erase(views.begin());
    views.push_back(std::move(next));
    return views;
}

uint32_t view_records_patience(const std::vector<ViewRecord>& views, const std::string& name, StepId step) {
    uint32_t factor = 1;
    StepId since = 0;
    const auto at = [&](StepId now) {
        const StepId halvings = (now - std::min(since, now)) / patience_steps;
        return std::max(factor >> std::min<StepId>(halvings, 31), 1u);
    };
    for (const ViewRecord& view : views)
        if (given_up(view, name)) {
            factor = std::min(2 * at(view.first_step), patience_max);
            since = view.first_step;
        }
    return at(step);
}

std::string view_records_advice(const std::vector<ViewRecord>& views) {
    constexpr int again = 3;
    if (views.empty()) return "";
    for (const std::string& name : views.back().departed)
        if (given_up(views.back(), name) &&
            std::count_if(views.begin(), views.end(), [&](const ViewRecord& each) { return given_up(each, name); }) == again)
            return fmt::format(
                "node {} has been given up {} times and came back: where the network loses packets, exchange = "
                "\"coded-rs\" with s = 1 waits for no single node, transport.kind = \"tcp\" does without datagrams, and a longer "
                "deadline is more patient",
                name, again);
    return "";
}

}   // namespace gradcast
