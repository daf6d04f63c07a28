// The receiving end of transport/bulk: where datagrams are put, what is missing, and the feedback to the senders.
//
// A sender gets a report at once when a piece is finished and when it asks for one; of a gap after reorder_us, because the network may have
// reordered packets.  It gets its window when part of it has been used.  The horizon of a report is the highest transmission number at the
// time the gap was seen.
#pragma once
#include <vector>

#include "runtime/core/arena.h"
#include "transport/bulk/bulk.h"
#include "transport/bulk/feedback.h"
#include "transport/bulk/parity.h"
#include "transport/bulk/sender.h"

namespace gradcast::bulk {

class Receiver {
public:
    Receiver(const BulkConfig& config, Protocol& user, Arena& arena, BulkCounters* counters);

    Landing land(const Packet& packet, uint64_t bytes, Buffer* place);
    static constexpr uint32_t given_max = block_segments;   // packets that one packet, or one block in emit(), can complete
    /// Takes words, record or parity.  Appends new packets to *given; the user must see them while this packet's payload is valid.
    void take(const Packet& packet, uint64_t now_us, std::vector<Packet>* given);
    /// True: the sending end must handle it.
    bool feedback(const Packet& packet, uint64_t now_us);
    void peer_lost(Rank rank);
    void emit(Sender& sender, Actions& actions, std::vector<Packet>* given);
    uint64_t due_us() const { return due_us_; }

private:
    static constexpr uint32_t seen_numbers = 4096;          // older transmissions are dropped
    static constexpr uint32_t parity_bytes_max = 8 << 20;   // of parity packets of all senders
    static constexpr uint64_t reorder_us = 100, held_us = 1000;
    static constexpr uint64_t unsure_us = 5000;    // packets may wait in the sockets for so long; only later do they count as lost
    static constexpr uint64_t rate_us = 2000;      // over which the arrival rate is measured
    static constexpr uint64_t ahead_us = 30'000;   // bytes in flight of all senders, as time to arrive
    static constexpr uint64_t active_us = 10'000;
    static constexpr uint64_t never = ~uint64_t{0};
    static constexpr uint16_t no_parity = 0xFFFF;
    static constexpr uint8_t unseen = 0, done = 255;   // of Piece::block; between them: 1 + index of an open block

    struct Open {   // a block of which part has arrived
        bool used = false;
        bool plain = false;   // segments are not kept in place, so parity cannot repair it
        uint8_t slot = 0, block = 0, segments = 0;
        uint8_t have = 0, newer = 0;   // packets that have arrived; newer: those after the horizon of `epoch`
        uint32_t epoch = 0;
        uint64_t bits[2] = {};
        uint16_t parity = no_parity;   // the first of its parity packets
        uint8_t parities = 0;          // their number, included in `have`
        std::byte* place[block_segments] = {};
    };
    struct Kept {   // a parity packet
        uint16_t next = no_parity;
        uint8_t row = 0;
    };
    struct Piece {
        DataBody name{};   // index: of its first segment
        PacketType type{};
        enum class State : uint8_t { none, going, finished } state = State::none;
        uint8_t blocks = 0, blocks_done = 0;
        uint64_t newest = 0;       // its highest transmission number
        uint32_t next = 0;         // 1 + the highest segment seen
        uint32_t held = 0;         // 1 + a segment that the user has no memory for; 0: none
        uint16_t last_bytes = 0;   // of the transfer's last segment; 0: unknown
        uint8_t block[piece_blocks] = {};
        /// `body`: as in `name`
        bool is(PacketType of, const DataBody& body) const {
            return state != State::none && type == of && std::memcmp(&name, &body, sizeof body) == 0;
        }
    };
    struct Peer {
        uint64_t highest = 0, horizon = 0;
        uint64_t sure = 0;                        // everything up to there has arrived or is lost
        uint64_t hole_us = never, snapshot = 0;   // when to report a gap, and up to where
        uint32_t epoch = 0;
        bool again = false, report = false, credit = false, lost = false;
        uint64_t owed = 0, window_sent = 0;   // bytes since the last feedback; the last window sent
        uint64_t held_us = never, reported_us = never;
        uint64_t last_packet_us = 0;   // time of the last packet
        uint32_t slots = 0;            // 1 + the highest slot used
        uint64_t finished[slots_max / 64] = {}, known[slots_max / 64] = {};
        uint64_t seen[seen_numbers / 64] = {};
        std::vector<Piece> pieces;
        std::vector<Open> opens;
        Buffer out;   // its feedback's payload
    };

    bool plausible(const Packet& packet, uint64_t bytes) const;
    bool fresh(const Peer& peer, uint64_t sequence) const;
    void see(Peer& peer, uint64_t sequence, uint64_t bytes);
    bool foreign(const Packet& packet, PacketType type, const DataBody& name);
    Piece* piece_of(Peer& peer, const Packet& packet, PacketType type, const DataBody& body);
    Open* open_of(Peer& peer, const Piece& piece, uint32_t block);
    Open* open_new(Peer& peer, uint32_t slot, uint32_t block);
    void close(Open& open);
    void count(Peer& peer, Open& open, uint64_t sequence);
    void block_done(Peer& peer, uint32_t slot, uint32_t block);
    void hole(Peer& peer);

    bool parity_name(const Packet& packet, DataBody* name) const;
    void take_parity(const Packet& packet, std::vector<Packet>* given);
    void spoil(Open& open);
    static bool ends(Piece& piece, uint64_t bytes);
    Landing ask(Rank rank, const Piece& piece, uint32_t within, Packet* packet, Buffer* place);
    void hold(Peer& peer, Piece& piece, uint32_t within);
    void forgo(Rank rank, Peer& peer);
    void decode(Rank rank, Peer& peer, Open& open, std::vector<Packet>* given);
    void unhold(Rank rank, Peer& peer, std::vector<Packet>* given);

    void measure();
    uint64_t window(const Peer& peer) const;
    Buffer report(Peer& peer);
    void send_feedback(Rank rank, Peer& peer, Sender& sender, Actions& actions);

    const BulkConfig config_;
    Protocol& user_;
    BulkCounters* const counters_;
    std::vector<Peer> peers_;
    Parity parity_;
    Buffer parity_in_;
    std::vector<Kept> kept_;
    uint16_t parity_free_ = 0;
    uint64_t now_us_ = 0, due_us_ = never, sure_us_ = 0;
    uint32_t view_ = 0;   // of all packets
    uint16_t channel_ = 0;
    uint64_t rate_from_us_ = 0, rate_bytes_ = 0, rate_ = 0;   // rate_: bytes per second, the largest seen lately
    uint32_t active_ = 0;                                     // senders whose packets arrived within active_us
};

}   // namespace gradcast::bulk
