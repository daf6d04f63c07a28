// The sending end of transport/bulk: the user's Sends become transfers, pieces and datagrams, by priority and within each receiver's
// credit.
//
// Priority: repairs, then older steps, then classes (records and words for reducers, then the rest).  A multicast needs credit of all its
// receivers at once, so what is newer leaves them the credit that an older multicast waits for.
//
// Every transmission has a number and an entry in a log of the last 4096: receivers, time and block.  A report names the transmission (its
// *horizon*) up to which everything has arrived or is lost, and how many packets each block lacks.  What was sent after the horizon may
// still arrive, so a block has lost
//     lacks - (segments not sent up to the horizon) - (repairs sent after it)
// packets at this receiver.  So no loss is repaired twice.
#pragma once
#include <algorithm>
#include <vector>

#include "runtime/core/arena.h"
#include "transport/bulk/bulk.h"
#include "transport/bulk/feedback.h"
#include "transport/bulk/parity.h"

namespace gradcast::bulk {

class Sender {
public:
    Sender(const BulkConfig& config, Arena& arena, BulkCounters* counters);

    void enqueue(const Send& send);   // of the user
    void feedback(const Packet& packet, uint64_t now_us);
    void sent(uint64_t burst);
    void peer_lost(Rank rank, const Status& status);
    /// Sends what may be sent now.  Appends the events of completed tickets to *done.
    void emit(Actions& actions, std::vector<Event>* done);
    uint64_t due_us() const { return due_us_; }   // latest time of the next emit()
    /// Sends feedback, of at most inline_bytes_max.
    void send_feedback(Rank to, const FeedbackBody& body, Buffer payload, Actions& actions);

private:
    static constexpr uint32_t log_entries = 4096;
    static constexpr uint32_t burst_max = 16, link_max = 32;   // packets in a burst; packets given to the link and not yet sent
    static constexpr uint32_t repairs_first = 4096, repairs_a_packet = 4, repairs_max = 1 << 20;
    static constexpr uint64_t repair_us = 100;   // a further repair is allowed each repair_us
    static constexpr uint32_t deaf_feedbacks = 32;
    static constexpr uint32_t none = ~uint32_t{0};
    static constexpr uint64_t never = ~uint64_t{0};

    struct Transfer {
        Send send;
        uint32_t count;        // segments
        uint32_t started;      // segments whose pieces have begun
        uint32_t open;         // pieces that have begun and are not finished
        uint32_t next;         // in its queue
        uint64_t last_burst;   // until that burst is sent the link uses its memory
        Status status;
    };
    struct Block {
        uint32_t mark = 0;                          // report for which the counts below are valid
        uint8_t after_data = 0, after_repair = 0;   // transmitted after the horizon of the report being read
        uint8_t next_row = 0;
        // To be sent again.  If one rank (`sole`) lacks packets: the segments in `resend`.  If several do: `parity` packets, and the
        // segments in `plain` for ranks that parity cannot help.
        bool several = false;
        uint8_t parity = 0;
        Rank sole = none;
        uint64_t resend[2] = {}, plain[2] = {};
        uint64_t since_us = 0;
    };
    struct Piece {
        uint32_t transfer, first, count;   // segments first .. first + count-1 of the transfer
        uint32_t sent;                     // first transmissions, in order
        uint32_t receivers_remaining;      // receivers that have not finished it
        uint64_t begin;                    // its first transmission number; 0: none yet
        uint32_t next;                     // in its queue
        uint16_t repair;                   // bit b: block b has packets to be sent again
        Block blocks[piece_blocks];
    };
    struct Logged {
        const uint64_t* bits;
        Rank rank;
        uint32_t at_us;
        uint16_t bytes;   // with headers; 0: needs no credit
        uint16_t index;   // segment of the piece; for parity the first one of its block
        uint8_t slot;
        enum class What : uint8_t { other, data, resend, parity } what;
        bool group;   // one multicast, which other ranks may receive too
    };
    struct Peer {
        uint64_t highest = 0, newest = 0;   // highest: of our transmissions that it has seen; newest: of its feedback here
        uint64_t flight = 0, window = 0;    // bytes
        uint64_t last_feedback_us = 0, poll_us = never;
        uint64_t rtt_us = 0, rtt_spread_us = 0;
        uint32_t open = 0;                                    // pieces that have begun and are not finished there
        uint32_t polls = 0;                                   // queries without an answer
        uint32_t in_vain = 0;                                 // feedbacks without a sign that multicasts reach it
        uint64_t allowance = repairs_first, allowed_us = 0;   // repairs that it may still ask for: bounds what forged reports can cause
        uint32_t awaited = none;                              // the first line that waits for its credit in this emit()
        bool lost = false, lagging = false;
        bool overhears = false;   // it receives multicasts to others as well, which use its window
    };
    struct Queue {
        uint32_t head = none, tail = none;
    };
    struct Line {   // unsent transfers and pieces of one step, by class
        uint32_t step = 0;
        std::array<Queue, 2> waiting, sending;   // transfers; pieces with unsent segments
        bool empty() const {
            auto none_in = [](const Queue& queue) { return queue.head == none; };
            return std::ranges::all_of(waiting, none_in) && std::ranges::all_of(sending, none_in);
        }
    };

    static uint32_t class_of(const Send& send);
    Line& line_of(const Send& send);
    bool addressed(const uint64_t* bits, Rank one, Rank rank) const { return bits ? bit(bits, rank) : one == rank; }
    bool reaches(const Logged& entry, Rank rank) const {
        return addressed(entry.bits, entry.rank, rank) || (entry.group && peers_[rank].overhears);
    }
    /// Sum of the transmissions from .. to - 1 that reach the rank.
    uint64_t bytes_to(Rank rank, uint64_t from, uint64_t to) const;
    template <typename Each>
    void each_rank(const RankSet& set, Each each);
    Buffer segment_of(const Transfer& transfer, uint32_t index) const;
    uint64_t* remaining(uint32_t slot) { return &remaining_[slot * words_]; }
    uint64_t* expected(uint32_t slot) { return &expected_[slot * words_]; }
    uint64_t* mended(uint32_t slot) { return &mended_[slot * words_]; }

    uint64_t room(const RankSet& to);
    void push(const RankSet& to, PacketType type, const std::array<std::byte, 16>& body, Buffer payload, Logged::What what, uint8_t slot,
              uint32_t index, Actions& actions);
    void push_segment(uint32_t slot, uint32_t index, const RankSet& to, bool again, Actions& actions);
    uint32_t begin(uint32_t transfer);
    void emit_repairs(Actions& actions);
    void emit_new(Line& line, uint32_t cls, Actions& actions);
    bool send_piece(uint32_t slot, Actions& actions);
    bool repair_block(uint32_t slot, uint32_t block, Actions& actions);
    bool resend(uint32_t slot, uint32_t block, uint64_t (&segments)[2], const RankSet& to, Actions& actions);
    bool push_parity(uint32_t slot, uint32_t block, Actions& actions);
    void polls(Actions& actions);
    bool full() const { return burst_count_ >= burst_max || in_link_ + burst_count_ >= link_max || now_us_ < pace_us_; }

    void watch_multicast(Rank from, uint64_t first, uint64_t highest);
    void report(Rank from, uint64_t horizon, Buffer payload);
    void report_block(Rank from, uint32_t slot, uint32_t block, const BlockItem* item, uint64_t horizon);
    void settle(uint32_t slot, Rank rank);
    void forget_repairs(Piece& piece, uint32_t slot, uint32_t block, Rank rank);
    void finish(uint32_t slot);
    void complete(uint32_t transfer);
    void due(uint64_t at_us) { due_us_ = std::min(due_us_, at_us); }
    uint64_t timeout_us(const Peer& peer) const;

    const BulkConfig config_;
    BulkCounters* const counters_;
    const uint32_t words_;   // in a set of ranks
    Parity parity_;
    Buffer parity_out_;   // link_max packets, used in turn
    uint64_t parity_sent_ = 0;
    std::vector<Transfer> transfers_;
    std::vector<uint32_t> transfers_free_, closing_;   // closing: finished by all receivers, memory still used by the link
    std::vector<Line> lines_;                          // ascending steps
    uint32_t line_ = 0;                                // index of the line being sent
    std::vector<Piece> pieces_;                        // by slot
    std::vector<uint64_t> remaining_, expected_;       // [slot][rank]
    std::vector<uint64_t> mended_;                     // [slot][rank]: segments or parity have been sent to it again
    uint64_t active_[slots_max / 64] = {}, repairing_[slots_max / 64] = {};
    uint32_t active_count_ = 0;
    std::vector<Peer> peers_;
    std::vector<Logged> log_;
    uint64_t next_ = 1;   // transmission number
    uint32_t mark_ = 0;
    uint64_t burst_ = 1, burst_done_ = 0;
    uint32_t burst_count_ = 0, in_link_ = 0;
    bool copies_ = false;
    std::array<uint8_t, link_max> burst_sizes_{};   // by burst number
    uint64_t now_us_ = 0, pace_us_ = 0, due_us_ = never, last_feedback_any_us_ = 0;
    std::vector<Event> done_;
};

}   // namespace gradcast::bulk
