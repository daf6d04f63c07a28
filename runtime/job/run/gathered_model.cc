#include "runtime/job/run/gathered_model.h"

#include <algorithm>
#include <cstring>

#include "runtime/core/memory_room.h"

namespace gradcast {
namespace {

constexpr uint64_t model_piece_bytes = 4 * 1024 * 1024;
constexpr size_t pieces_ahead = 4;                   // whose receives are posted
constexpr uint64_t model_tags = uint64_t{5} << 61;   // no other mail has both bits
constexpr uint64_t digest_tag = model_tags | UINT32_MAX;
constexpr size_t digest_bytes = 64;   // of the text

/// Of a rank to all others: what it knows of a writer, in one of the rounds in which they ask.
struct WriterWord {
    uint64_t announced = 0;   // 1: it has written all, with this digest
    std::array<char, digest_bytes> digest = {};
};
uint64_t word_tag(Rank writer, uint32_t round) { return model_tags | uint64_t{1} << 32 | uint64_t{round} << 16 | writer; }
static_assert(ranks_max < 1 << 16);

/// In one of them all words of all ranks arrive.
uint32_t rounds_of(const Session& session) { return session.ranks_tolerated() + 1; }

}   // namespace

/// In the order in which the file takes them.
std::vector<GatheredModel::Piece> GatheredModel::pieces() const {
    std::vector<Piece> all;
    for (uint32_t cell = 0; cell < parts_.pipeline->cells(); ++cell) {
        const StateRuns runs = parts_.state_runs_of(cell);
        for (const StateVector which : state_vectors)
            for (const auto& [offset, count, place] : runs[which])
                for (uint64_t i = 0, most = model_piece_bytes / kind_of(which).width; i < count; i += most)
                    all.push_back({which, cell, place + i, std::min(most, count - i), offset + i});
    }
    std::ranges::sort(all, {}, [](const Piece& piece) { return std::pair(piece.which, piece.place); });
    return all;
}

uint64_t GatheredModel::room_bytes() const {
    uint64_t most = 0;
    for (const Piece& each : pieces()) most = std::max(most, each.count * kind_of(each.which).width);
    return most;
}

uint64_t GatheredModel::rooms_bytes() const { return pieces_ahead * room_bytes(); }

std::span<const std::byte> GatheredModel::own(const Piece& piece) const {
    const uint64_t width = kind_of(piece.which).width;
    return parts_.state({}).bytes()[piece.which].subspan(piece.offset * width, piece.count * width);
}

/// The lowest living rank of its cell.  All ranks agree once they know of the same losses.
Rank GatheredModel::owner(const Session& session, const Piece& piece) const {
    for (const Rank rank : session.grid().replica_group(session.grid().cell(piece.cell)))
        if (!session.dispatch().lost(rank)) return rank;
    return session.self();   // the job is about to end
}

/// Sends the writer what this rank owns, until the writer announces the digest or is lost.
Status GatheredModel::send(Mailbox& mail, Session& session, std::span<const Piece> all, Rank writer, uint64_t us, Buffer digest) {
    const uint64_t digest_ticket = all.size() + 1;
    mail.begin(digest_ticket);
    mail.receive(writer, digest_tag, digest, digest_ticket);
    std::vector<bool> sent(all.size());
    const auto ended = [&] { return mail.done(digest_ticket) || mail.lost(digest_ticket); };
    while (!ended()) {
        for (size_t i = 0; i < all.size(); ++i) {
            if (sent[i] || owner(session, all[i]) != session.self()) continue;
            const std::span<const std::byte> bytes = own(all[i]);
            mail.send({writer}, model_tags | i, {const_cast<std::byte*>(bytes.data()), nullptr, bytes.size()}, i + 1);
            sent[i] = true;
        }
        const size_t lost = session.lost().size();
        GC_TRY(mail.wait_until([&] { return ended() || session.lost().size() > lost; }, us * (all.size() + 1), "digest of the model"));
    }
    return {};
}

/// Announces the writer's digest in this round and all later ones, so the others need not wait for the writer.
void GatheredModel::announce(Mailbox& mail, Session& session, Rank writer, uint32_t round, Buffer digest) {
    const std::span<std::byte> bytes = session.keep(sizeof(WriterWord));
    WriterWord word{.announced = 1};
    std::memcpy(word.digest.data(), digest.host, digest_bytes);
    std::memcpy(bytes.data(), &word, sizeof word);
    const uint32_t rounds = rounds_of(session);
    mail.begin(rounds);
    for (; round < rounds; ++round) mail.send(session.others(), word_tag(writer, round), {bytes.data(), nullptr, bytes.size()}, round + 1);
}

/// The writer is lost.  All other ranks report to each other whether it has announced the digest to them, so that all go on alike.  A rank
/// that learns the digest passes it on in the remaining rounds.  If only ranks that die learnt it in time, each of them did in a round of
/// its own, and there are more rounds than such ranks.
Status GatheredModel::ask(Mailbox& mail, Session& session, Rank writer, uint64_t us, Buffer digest, bool* announced) {
    const uint32_t ranks = session.view().n();
    const std::span<std::byte> bytes = session.keep(ranks * sizeof(WriterWord));   // the own one stays 0
    auto* words = reinterpret_cast<WriterWord*>(bytes.data());
    const auto place = [&](Rank rank) { return Buffer{bytes.data() + rank * sizeof(WriterWord), nullptr, sizeof(WriterWord)}; };
    for (uint32_t round = 0; round < rounds_of(session); ++round) {
        mail.begin(ranks + 1);
        for (Rank rank = 0; rank < ranks; ++rank)
            if (rank != session.self() && !session.dispatch().lost(rank))
                mail.receive(rank, word_tag(writer, round), place(rank), rank + 1);
        mail.send(session.others(), word_tag(writer, round), place(session.self()), ranks + 1);
        GC_TRY(mail.wait(1, ranks, us, "word about the rank that was to write the model"));
        for (Rank rank = 0; rank < ranks && !*announced; ++rank) {
            if (mail.lost(rank + 1) || words[rank].announced != 1) continue;
            std::memcpy(digest.host, words[rank].digest.data(), digest_bytes);
            *announced = true;
        }
        if (!*announced) continue;
        announce(mail, session, writer, round + 1, digest);
        break;
    }
    return {};
}

Status GatheredModel::collect(Mailbox& mail, Session& session, std::span<const Piece> all, uint64_t us, ModelWriter& writer) {
    mail.begin(all.size() + 1);
    std::array<std::span<std::byte>, pieces_ahead> rooms;
    const uint64_t room_bytes = this->room_bytes();
    GC_TRY(memory_room_for(rooms.size() * room_bytes, "the model"));
    for (std::span<std::byte>& room : rooms) room = session.keep(room_bytes);
    auto bytes = [&](size_t i) { return rooms[i % pieces_ahead].first(all[i].count * kind_of(all[i].which).width); };
    auto owned = [&](size_t i) { return owner(session, all[i]) == session.self(); };
    auto receive = [&](size_t i) {
        if (i < all.size() && !owned(i))
            mail.receive(owner(session, all[i]), model_tags | i, {bytes(i).data(), nullptr, bytes(i).size()}, i + 1);
    };
    for (size_t i = 0; i < pieces_ahead; ++i) receive(i);
    for (size_t i = 0; i < all.size(); ++i) {
        if (!owned(i)) GC_TRY(mail.wait(i + 1, i + 1, us, "part of the model"));
        while (mail.lost(i + 1)) {
            receive(i);
            GC_TRY(mail.wait(i + 1, i + 1, us, "part of the model"));
        }
        GC_TRY(writer.add(all[i].which, all[i].place, owned(i) ? own(all[i]) : bytes(i)));
        parts_.progress.advance();
        receive(i + pieces_ahead);
    }
    return {};
}

Status GatheredModel::write(Context& context, Session& session, const std::string& path, const Model& model, uint64_t us,
                            const std::function<Status()>& name, std::string* digest, bool* wrote) {
    const std::vector<Piece> all = pieces();
    Mailbox& mail = *context.mail;
    const bool words = session.losses_tolerated() > 0;   // else a loss ends the session
    const std::span<std::byte> text = session.keep(digest_bytes);
    const Buffer text_buffer{text.data(), nullptr, text.size()};
    bool announced = false;
    // All ranks pass the ranks before theirs one after the other, lost ones too: each of them may have announced its digest to somebody.
    for (Rank writer = 0; !announced && writer < session.self(); ++writer) {
        if (!session.dispatch().lost(writer)) {
            GC_TRY(send(mail, session, all, writer, us, text_buffer));
            announced = mail.done(all.size() + 1);
            if (announced && words) announce(mail, session, writer, 0, text_buffer);   // for ranks without it, if the writer is lost
        }
        if (!announced && words) GC_TRY(ask(mail, session, writer, us, text_buffer, &announced));
    }
    if (!announced) {
        if (!*wrote || digest->empty()) {
            ModelWriter writer;
            GC_TRY(writer.open(path, parts_.state_sizes()));
            GC_TRY(collect(mail, session, all, us, writer));
            GC_TRY(writer.close(model));
            *wrote = true;
            const Waiting waiting(parts_.progress);   // for the disk, which has no deadline
            GC_TRY(name());
            *digest = writer.digest();
        }
        std::memcpy(text.data(), digest->data(), text.size());
        mail.begin(all.size() + 1);
        mail.send(session.others(), digest_tag, text_buffer, all.size() + 1);
        GC_TRY(mail.wait(all.size() + 1, all.size() + 1, us, "digest of the model"));
    }
    digest->assign(reinterpret_cast<const char*>(text.data()), text.size());
    if (!words) session.keep_none();
    return {};
}

}   // namespace gradcast
