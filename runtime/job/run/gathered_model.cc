#include "runtime/job/run/gathered_model.h"

#include <algorithm>
#include <cstring>

#include "runtime/core/memory_room.h"

namespace gradcast {
namespace {

constexpr uint64_t piece_bytes = 4 * 1024 * 1024;
constexpr size_t pieces_ahead = 4;                   // whose receives are posted
constexpr uint64_t model_tags = uint64_t{5} << 61;   // no other mail has both bits
constexpr uint64_t digest_tag = model_tags | UINT32_MAX;

}   // namespace

/// In the order in which the file takes them.
std::vector<GatheredModel::Piece> GatheredModel::pieces() const {
    std::vector<Piece> all;
    const Grid& grid = parts_.pipeline->grid;
    for (uint32_t stage = 0; stage < grid.stages(); ++stage) {
        const StateRuns runs = parts_.state_runs_of(stage);
        for (const StateVector which : state_vectors)
            for (const auto& [offset, count, place] : runs[which])
                for (uint64_t i = 0, most = piece_bytes / kind_of(which).width; i < count; i += most)
                    all.push_back({which, grid.rank_of(0, {stage, 0}), place + i, std::min(most, count - i), offset + i});
    }
    std::ranges::sort(all, {}, [](const Piece& piece) { return std::pair(piece.which, piece.place); });
    return all;
}

std::span<const std::byte> GatheredModel::own(const Piece& piece) const {
    const uint64_t width = kind_of(piece.which).width;
    return parts_.state({}).bytes()[piece.which].subspan(piece.offset * width, piece.count * width);
}

Status GatheredModel::write(Context& context, Session& session, const std::string& path, const Model& model, uint64_t us,
                            std::string* digest) {
    const std::vector<Piece> all = pieces();
    const Rank self = session.self();
    constexpr Rank writes = 0;
    constexpr const char* what = "part of the model";
    Mailbox& mail = *context.mail;
    mail.begin(all.size() + 1);
    const uint64_t digest_ticket = all.size() + 1;
    const std::span<std::byte> text = session.keep(64);   // of the digest
    const Buffer text_buffer{text.data(), nullptr, text.size()};
    auto told = [&] {
        digest->assign(reinterpret_cast<const char*>(text.data()), text.size());
        session.keep_none();
    };
    if (self != writes) {
        mail.receive(writes, digest_tag, text_buffer, digest_ticket);
        for (size_t i = 0; i < all.size(); ++i)
            if (all[i].owner == self) {
                const std::span<const std::byte> bytes = own(all[i]);
                mail.send({writes}, model_tags | i, {const_cast<std::byte*>(bytes.data()), nullptr, bytes.size()}, i + 1);
            }
        for (size_t i = 0; i < all.size(); ++i)
            if (all[i].owner == self) GC_TRY(mail.wait(i + 1, i + 1, us * (i + 1), what));   // behind those of others
        GC_TRY(mail.wait(digest_ticket, digest_ticket, us * (all.size() + 1), "digest of the model"));
        told();
        return {};
    }
    std::array<std::span<std::byte>, pieces_ahead> rooms;
    for (std::span<std::byte>& room : rooms) {
        GC_TRY(memory_room_for(piece_bytes, "the model"));
        room = session.keep(piece_bytes);
    }
    auto bytes = [&](size_t i) { return rooms[i % pieces_ahead].first(all[i].count * kind_of(all[i].which).width); };
    auto receive = [&](size_t i) {
        if (i >= all.size() || all[i].owner == self) return;
        mail.receive(all[i].owner, model_tags | i, {bytes(i).data(), nullptr, bytes(i).size()}, i + 1);
    };
    ModelWriter writer;
    GC_TRY(writer.open(path, parts_.state_sizes()));
    for (size_t i = 0; i < pieces_ahead; ++i) receive(i);
    for (size_t i = 0; i < all.size(); ++i) {
        if (all[i].owner != self) GC_TRY(mail.wait(i + 1, i + 1, us, what));
        GC_TRY(writer.add(all[i].which, all[i].place, all[i].owner == self ? own(all[i]) : bytes(i)));
        receive(i + pieces_ahead);
    }
    GC_TRY(writer.close(model));
    std::memcpy(text.data(), writer.digest().data(), text.size());
    mail.send(session.others(), digest_tag, text_buffer, digest_ticket);
    GC_TRY(mail.wait(digest_ticket, digest_ticket, us, "digest of the model"));
    told();
    return {};
}

}   // namespace gradcast
