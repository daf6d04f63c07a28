#include "runtime/job/report/view_records.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <span>

#include "runtime/core/le.h"
#include "runtime/job/report/report.h"
#include "runtime/job/run/session.h"
#include "runtime/mesh/membership_messages.h"
#include "runtime/view/proposal.h"

namespace gradcast {
namespace {

constexpr size_t views_max = 256;
constexpr uint64_t tag_size = uint64_t{1} << 62 | 8, tag_views = uint64_t{1} << 62 | 9;   // of mail
constexpr size_t name_max = 64;

void names_write(const std::vector<std::string>& names, MessageWriter& writer) {
    writer.number(names.size());
    for (const std::string& name : names) writer.text(std::string_view(name).substr(0, name_max));
}
std::vector<std::string> names_read(MessageReader& reader) {
    std::vector<std::string> names;
    for (uint64_t left = reader.number(); left > 0 && reader.good; --left) names.push_back(reader.text(name_max));
    return names;
}

/// The others did not hear it or did not wait for it any more, by its reason.
bool given_up(const ViewRecord& view, const std::string& name) {
    return std::ranges::any_of(std::array{why_silent, why_stuck, why_unheard}, [&](const char* why) {
        return (", " + view.why + ",").find(fmt::format(", {} {},", name, why)) != std::string::npos;
    });
}

Buffer buffer_of(std::span<std::byte> bytes) { return {bytes.data(), nullptr, bytes.size()}; }

/// Rank 0's bytes, at every rank; at another rank empty where rank 0 is lost.
Status spread(Context& context, Session& session, std::span<const std::byte> own, std::span<const std::byte>* bytes) {
    Mailbox& mail = *context.mail;
    const bool sends = session.self() == 0;
    const std::span<std::byte> size_bytes = session.keep(sizeof(Le64));
    Le64& size = *reinterpret_cast<Le64*>(size_bytes.data());
    mail.begin(2);
    const auto move = [&](uint64_t ticket, uint64_t tag, std::span<std::byte> message) {
        if (sends) mail.send(session.others(), tag, buffer_of(message), ticket);
        else mail.receive(0, tag, buffer_of(message), ticket);
        return mail.wait(ticket, ticket, session.first_step_us(), "record of the views");
    };
    if (sends) size.set(own.size());
    GC_TRY(move(1, tag_size, size_bytes));
    if ((!sends && mail.lost(1)) || size.get() == 0) return {};
    if (size.get() > view_records_bytes_max) return fail(Code::conflict, "a record of views has {} bytes: too many", size.get());
    const std::span<std::byte> message = session.keep(size.get());
    if (sends) std::ranges::copy(own, message.begin());
    GC_TRY(move(2, tag_views, message));
    if (!sends && !mail.lost(2)) *bytes = message;   // a send that misses a lost rank has come to the others
    return {};
}

}   // namespace

std::vector<std::byte> view_records_write(std::vector<ViewRecord> views) {
    for (;;) {
        MessageWriter writer;
        for (const ViewRecord& view : views) {
            for (const uint64_t number : {uint64_t{view.number}, view.first_step, view.began_unix, view.stood_us}) writer.number(number);
            for (const std::vector<std::string>* names : {&view.members, &view.came, &view.left}) names_write(*names, writer);
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
        view.came = names_read(reader);
        view.left = names_read(reader);
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
    for (const std::string& name : views.back().left)
        if (given_up(views.back(), name) &&
            std::count_if(views.begin(), views.end(), [&](const ViewRecord& each) { return given_up(each, name); }) == again)
            return fmt::format(
                "node {} has been given up {} times and came back: where the network loses packets, exchange = "
                "\"coded-rs\" with s = 1 waits for no single node, transport.kind = \"tcp\" does without datagrams, and a longer "
                "deadline is more patient",
                name, again);
    return "";
}

Status view_records_spread(Context& context, Session& session, std::vector<ViewRecord> views, Report& report) {
    if (session.view().n() > 1) {
        std::vector<std::byte> own;
        if (session.self() == 0) own = view_records_write(views);
        std::span<const std::byte> come;
        GC_TRY(spread(context, session, own, &come));
        if (session.self() != 0 && !come.empty() && !view_records_parse(come, &views))
            return fail(Code::conflict, "what should be a record of views is none");
        session.keep_none();
    }
    report.views(std::move(views));
    return {};
}

}   // namespace gradcast
