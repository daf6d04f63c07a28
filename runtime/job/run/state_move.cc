#include "runtime/job/run/state_move.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "runtime/core/bits.h"
#include "runtime/core/memory_room.h"

namespace gradcast {
namespace {

constexpr uint64_t state_piece_bytes = 4 * 1024 * 1024;
constexpr size_t rooms = 4;   // of pieces from a file that are on their way
constexpr size_t receives_ahead = 8;
constexpr uint64_t state_tags = uint64_t{9} << 59;   // no other mail has both bits

/// The ranks that have the same elements.
struct Owners {
    StateRuns runs;   // their offsets mean nothing
    std::vector<Rank> ranks;
    uint32_t stage = 0, cell = 0;
    bool own = false;   // this rank is one
};

std::vector<Owners> owners_of(const Session& session, const JobParts& parts) {
    std::vector<Owners> all;
    if (!parts.pipeline) {
        Owners& every = all.emplace_back(Owners{state_runs_whole(parts.state_sizes()), {}, 0, 0, true});
        for (Rank rank = 0; rank < session.view().n(); ++rank) every.ranks.push_back(rank);
        return all;
    }
    for (uint32_t stage = 0; stage < parts.cut->stages(); ++stage)
        for (uint32_t group = 0; group < parts.cut->slice_groups; ++group) {
            Owners& of =
                all.emplace_back(Owners{parts.state_runs_of(StageRun{stage, stage + 1}, group), session.stages().holders(stage, group),
                                        stage, cell_number({stage, group}, parts.cut->slice_groups)});
            of.own = std::ranges::find(of.ranks, session.self()) != of.ranks.end();
        }
    return all;
}

/// Elements of one vector that lie side by side at their owners.
struct Piece {
    const StateSource* source;
    const Owners* to;
    StateVector which;
    uint64_t place, count;
    uint64_t bytes() const { return count * kind_of(which).width; }
};

std::vector<Piece> pieces_of(std::span<const StateSource> sources, std::span<const Owners> owners) {
    std::vector<Piece> all;
    for (const StateSource& source : sources)
        for (const StateVector which : state_vectors)
            for (const Layout::Run& run : source.runs[which])
                for (const Owners& to : owners) {
                    if (source.cell != StateSource::any && source.cell != to.cell) continue;
                    (void)each_stretch(to.runs[which], run.place, run.count, [&](uint64_t, uint64_t place, uint64_t count) {
                        for (uint64_t at = 0, most = state_piece_bytes / kind_of(which).width; at < count; at += most)
                            all.push_back({&source, &to, which, place + at, std::min(most, count - at)});
                        return Status{};
                    });
                }
    return all;
}

}   // namespace

Status state_move(Context& context, Session& session, JobParts& parts, std::span<const StateSource> sources,
                  const std::function<bool(Rank, uint32_t)>& receives,
                  const std::function<Status(StateVector, uint64_t, std::span<std::byte>)>& read) {
    const std::vector<Owners> owners = owners_of(session, parts);
    const std::vector<Piece> pieces = pieces_of(sources, owners);
    const std::vector<StateMemory> memory = parts.state_memory();
    const Rank self = session.self();
    // By stage, not by place alone: two stages of which this rank has the state may have the same weights, each in a memory of its own.
    const auto own = [&](const Piece& piece) {
        const uint32_t stage = piece.to->stage;
        const bool kept = std::ranges::find(memory, stage, &StateMemory::kept) != memory.end();
        for (const StateMemory& each : memory) {
            if (parts.pipeline && each.kept != (kept ? stage : StateMemory::none)) continue;
            if (const auto found = each.at(piece.which, piece.place, piece.count); !found.empty()) return found;
        }
        return std::span<std::byte>();
    };
    Mailbox& mail = *context.mail;
    mail.begin(pieces.size());
    auto wait = [&](uint64_t ticket) -> Status {   // behind all pieces before it
        GC_TRY(mail.wait(ticket, ticket, session.first_step_us() * ticket, "state to go on from"));
        if (const Piece& piece = pieces[ticket - 1]; piece.source->rank != self && mail.lost(ticket))
            return fail(Code::peer_lost, "{} is lost, which holds the state to go on from",
                        session.view().members[piece.source->rank].name);
        return {};
    };
    struct Room {
        std::span<std::byte> memory;
        uint64_t ticket = 0;   // of the piece in it; 0: none
    };
    std::array<Room, rooms> all_rooms;
    size_t read_before = 0;
    std::vector<uint64_t> sent, received;   // tickets
    for (size_t i = 0; i < pieces.size(); ++i) {
        const Piece& piece = pieces[i];
        const uint64_t ticket = i + 1, tag = state_tags | i;
        const std::span<std::byte> place = own(piece);
        GC_ASSERT(!piece.to->own || !place.empty());
        if (piece.source->rank != self) {
            if (!piece.to->own || !receives(self, piece.to->stage)) continue;
            if (received.size() >= receives_ahead) GC_TRY(wait(received[received.size() - receives_ahead]));
            mail.receive(piece.source->rank, tag, {place.data(), nullptr, place.size()}, ticket);
            received.push_back(ticket);
            continue;
        }
        const std::span<std::byte> bits = session.keep(bit_words(session.view().n()) * sizeof(uint64_t));
        auto* words = reinterpret_cast<uint64_t*>(bits.data());
        bool some = false;
        for (const Rank rank : piece.to->ranks) {
            if (rank == self || !receives(rank, piece.to->stage)) continue;
            set_bit(words, rank);
            some = true;
        }
        if (!some) continue;
        std::span<std::byte> message = place;
        if (place.empty()) {
            Room& room = all_rooms[read_before++ % rooms];
            if (room.ticket > 0) GC_TRY(wait(room.ticket));
            if (room.memory.empty()) {
                GC_TRY(memory_room_for(state_piece_bytes, "the state to go on from"));
                room.memory = session.keep(state_piece_bytes);
            }
            room.ticket = ticket;
            message = room.memory.first(piece.bytes());
            GC_TRY(read(piece.which, piece.place, message));
        }
        mail.send({0, words}, tag, {message.data(), nullptr, message.size()}, ticket);
        sent.push_back(ticket);
    }
    for (const uint64_t ticket : sent) GC_TRY(wait(ticket));
    for (const uint64_t ticket : received) GC_TRY(wait(ticket));
    session.keep_none();
    return {};
}

Status state_to_buddies(Context& context, Session& session, JobParts& parts) {
    const ViewStages& stages = session.stages();
    std::vector<StateSource> sources;
    for (uint32_t stage = 0; stage < parts.cut->stages(); ++stage)
        sources.push_back({stages.grid.rank_of(0, {stages.cell_of(stage), 0}), parts.state_runs_of(StageRun{stage, stage + 1}), stage});
    return state_move(context, session, parts, sources, [&](Rank rank, uint32_t stage) { return !stages.run_of(rank).has(stage); }, {});
}

}   // namespace gradcast
