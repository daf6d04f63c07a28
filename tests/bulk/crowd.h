// Ranks send one another transfers of all sizes through transport/bulk over the simulator and check every segment: exactly once, intact, in
// its place, and the ticket only when every receiver has it.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "runtime/core/arena.h"
#include "runtime/core/digest.h"
#include "transport/bulk/bulk.h"
#include "transport/sim/sim.h"
#include "transport/wire/packet.h"

namespace gradcast {

struct Crowd {
    static constexpr uint16_t channel = 1;

    struct Transfer {
        Rank from;
        Rank to;         // one rank, or
        uint64_t bits;   // several
        PacketType type;
        Phase phase;
        uint64_t bytes;
        uint64_t after = 0;     // sent when that many transfers of its sender have completed
        uint32_t name = none;   // its step; default: its index.  A record and words of one sender may share it
    };
    static constexpr uint32_t none = ~uint32_t{0};
    enum class Manner : uint8_t {
        takes,     // every segment has a place
        leases,    // small segments arrive as leases
        waits,     // land() answers later until wait_until_us
        forgoes,   // the second half of a transfer's segments is dropped
    };

    SimConfig config;
    uint32_t segment_bytes = 1432;   // without config.header_bytes
    uint64_t window_bytes = 896 * 1024, stall_us = 20'000, rate_bytes_per_s = 0;
    std::vector<Transfer> transfers;
    std::vector<Manner> manners;   // by rank; default: takes
    std::vector<bool> dead;        // by rank: receives nothing and is owed nothing
    uint64_t wait_until_us = 0;
    bool contents = true;   // fill and check bytes
    bool deafened = false;

    struct Node final : Protocol {
        Crowd* crowd = nullptr;
        Rank self = 0;
        Arena arena;
        std::unique_ptr<Protocol> bulk;
        BulkCounters counters;
        struct Inbox {
            std::vector<std::byte> bytes;
            std::vector<bool> got;
            uint32_t remaining = 0, count = 0;
            bool unwanted = false;
        };
        std::vector<Inbox> in;                     // by transfer
        std::vector<std::vector<std::byte>> out;   // by transfer
        std::vector<uint64_t> sets;                // by transfer
        uint64_t up = 0, sent = 0, next = 0, mine = 0;
        std::vector<uint64_t> sent_us;   // by transfer: time of `sent`
        uint64_t done_us = 0, now_us = 0, delivered = 0;

        Manner manner() const { return crowd->manners.empty() ? Manner::takes : crowd->manners[self]; }

        Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override {
            DataBody body = body_of<DataBody>(packet);
            EXPECT_EQ(body.reserved, 0);
            const size_t number = crowd->find(packet);
            if (number == crowd->transfers.size()) return Landing::drop;
            const Transfer& t = crowd->transfers[number];
            Inbox& box = in[number];
            const uint32_t index = body.index.get();
            if (!crowd->receives(self, t)) return Landing::foreign;
            if (body.count.get() != box.count || index >= box.count) return Landing::drop;
            const uint64_t at = uint64_t{index} * crowd->segment_bytes;
            if (bytes != std::min<uint64_t>(crowd->segment_bytes, t.bytes - at)) return Landing::drop;
            if (box.got[index] || box.unwanted) return Landing::drop;
            if (manner() == Manner::waits && crowd->sim->now_us() < crowd->wait_until_us) return Landing::later;
            if (manner() == Manner::leases && t.bytes <= 3000) return Landing::lease;
            *place = {box.bytes.data() + at, nullptr, bytes};
            return Landing::place;
        }
        void on(std::span<const Event> events, Actions& actions) override {
            now_us = actions.now_us;
            for (const Event& event : events) {
                if (event.is<Event::PeerUp>()) ++up;
                if (const auto* received = event.is<Event::Received>()) packet(*received->packet);
                if (const auto* done = event.is<Event::Sent>()) {
                    ++sent;
                    const auto index = static_cast<uint32_t>(done->ticket - 1);
                    done_us = sent_us[index] = now_us;
                    std::vector<std::byte>& bytes = out[index];
                    EXPECT_TRUE(!bytes.empty() || crowd->transfers[index].bytes == 0) << "sent twice";
                    std::fill(bytes.begin(), bytes.end(), std::byte{0xEE});
                    crowd->check_everybody_has(index);
                    std::vector<std::byte>().swap(bytes);
                }
            }
            if (up + 1 < crowd->config.ranks) return;
            for (; next < crowd->transfers.size(); ++next) {
                const Transfer& t = crowd->transfers[next];
                if (t.from != self) continue;
                if (t.after > sent) break;
                ++mine;
                Send send;
                send.to = {t.to, t.bits ? &sets[next] : nullptr};
                send.type = t.type;
                send.ticket = next + 1;
                DataBody body{};
                body.step.set(t.name);
                body.phase = static_cast<uint8_t>(t.phase);
                send.body = body_bytes(body);
                out[next].resize(t.bytes);
                if (crowd->contents)
                    for (uint64_t i = 0; i < t.bytes; ++i) out[next][i] = crowd->content(next, i);
                send.payload = {out[next].data(), nullptr, t.bytes};
                actions.sends.push_back(send);
            }
        }
        void packet(const Packet& packet) {
            DataBody body = body_of<DataBody>(packet);
            const uint32_t index = body.index.get();
            const size_t number = crowd->find(packet);
            ASSERT_LT(number, crowd->transfers.size());
            EXPECT_EQ(body.reserved, 0);
            Inbox& box = in[number];
            ASSERT_LT(index, box.count);
            EXPECT_FALSE(box.got[index]) << "segment " << index << " of transfer " << number << " came twice to rank " << self;
            box.got[index] = true;
            ++delivered;
            const uint64_t at = uint64_t{index} * crowd->segment_bytes;
            if (packet.payload.bytes && packet.payload.host != box.bytes.data() + at)   // a lease
                std::memcpy(box.bytes.data() + at, packet.payload.host, packet.payload.bytes);
            if (crowd->contents) {
                uint64_t wrong = 0;
                for (uint64_t i = 0; i < packet.payload.bytes; ++i) wrong += box.bytes[at + i] != crowd->content(number, at + i);
                EXPECT_EQ(wrong, 0u) << "segment " << index << " of transfer " << number << " at rank " << self;
            }
            --box.remaining;
            if (manner() == Manner::forgoes && crowd->transfers[number].type == PacketType::words && box.remaining <= box.count / 2)
                box.unwanted = true;
        }
    };
    std::deque<Node> nodes;
    std::unique_ptr<Simulator> sim;

    std::byte content(uint64_t transfer, uint64_t at) const {
        return static_cast<std::byte>((config.seed + transfer * 101 + at * 7 + (at >> 9) * 13) & 0xff);
    }
    /// Index of the packet's transfer; the number of transfers if there is none.
    size_t find(const Packet& packet) const {
        const DataBody body = body_of<DataBody>(packet);
        auto is = [&](const Transfer& t) {
            return t.name == body.step.get() && static_cast<uint8_t>(t.phase) == body.phase && t.type == packet.type &&
                   t.from == packet.sender;
        };
        return static_cast<size_t>(std::find_if(transfers.begin(), transfers.end(), is) - transfers.begin());
    }
    bool receives(Rank r, const Transfer& t) const { return t.from != r && (t.bits ? t.bits >> r & 1 : t.to == r); }
    bool is_dead(Rank r) const { return !dead.empty() && dead[r]; }
    void check_everybody_has(uint64_t transfer) {
        for (Node& node : nodes)
            if (receives(node.self, transfers[transfer]) && !is_dead(node.self) && !node.in[transfer].unwanted) {
                EXPECT_EQ(node.in[transfer].remaining, 0u)
                    << "transfer " << transfer << " was reported as sent, rank " << node.self << " lacks it";
            }
    }

    /// Builds all ranks; the caller may then kill, partition and slow them.
    void build() {
        sim = Simulator::create(config);
        for (uint32_t i = 0; i < transfers.size(); ++i)
            if (transfers[i].name == none) transfers[i].name = i;
        for (Rank r = 0; r < config.ranks; ++r) {
            Node& node = nodes.emplace_back();
            node.crowd = this;
            node.self = r;
            node.in.resize(transfers.size()), node.out.resize(transfers.size()), node.sets.resize(transfers.size()),
                node.sent_us.resize(transfers.size());
            for (size_t i = 0; i < transfers.size(); ++i) {
                const Transfer& t = transfers[i];
                node.sets[i] = t.bits;
                if (!receives(r, t)) continue;
                Node::Inbox& box = node.in[i];
                box.bytes.resize(t.bytes);
                box.count = box.remaining = std::max<uint32_t>(static_cast<uint32_t>((t.bytes + segment_bytes - 1) / segment_bytes), 1);
                box.got.resize(box.count);
            }
            BulkConfig bulk;
            bulk.self = r;
            bulk.ranks = config.ranks;
            bulk.segment_bytes = segment_bytes;
            bulk.header_bytes = config.header_bytes;
            bulk.window_bytes = window_bytes;
            bulk.stall_us = stall_us;
            bulk.rate_bytes_per_s = rate_bytes_per_s;
            node.bulk = bulk_create(bulk, node, node.arena, &node.counters);
            Status status = node.arena.seal();
            ASSERT_TRUE(status.ok()) << status.what;
            sim->attach_datagrams(r, channel, node.bulk.get());
        }
    }
    /// Runs until no event remains, then checks that everything has arrived.
    void run() {
        Status status = sim->run();
        ASSERT_TRUE(status.ok()) << status.what;
        for (Node& node : nodes) {
            if (is_dead(node.self)) continue;
            uint64_t mine = 0;
            for (size_t i = 0; i < transfers.size(); ++i) {
                const Transfer& t = transfers[i];
                mine += t.from == node.self;
                if (receives(node.self, t) && !is_dead(t.from) && !node.in[i].unwanted) {
                    EXPECT_EQ(node.in[i].remaining, 0u)
                        << "rank " << node.self << " lacks segments of transfer " << i << " from rank " << t.from;
                }
            }
            EXPECT_EQ(node.mine, mine) << "rank " << node.self << " has not sent all";
            EXPECT_EQ(node.sent, mine) << "rank " << node.self << " did not get `sent` of all";
            EXPECT_TRUE(deafened || node.counters.deaf.load() == 0) << "rank " << node.self << " thinks that multicast fails";
        }
    }
    uint64_t total(std::atomic<uint64_t> BulkCounters::*counter) const {
        uint64_t sum = 0;
        for (const Node& node : nodes) sum += (node.counters.*counter).load();
        return sum;
    }
};

}   // namespace gradcast
