#include "runtime/job/run/view_records_spread.h"

#include <algorithm>
#include <span>

#include "runtime/core/le.h"
#include "runtime/job/report/view_records.h"

namespace gradcast {
namespace {

constexpr uint64_t tag_size = uint64_t{1} << 62 | 8, tag_views = uint64_t{1} << 62 | 9;   // of mail

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
