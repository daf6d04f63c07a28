// A user of transport/bulk for tests over a driver: sends transfers to all ranks and to one, and checks every byte received.
#pragma once
#include "runtime/core/arena.h"
#include "tests/link/fixture.h"
#include "transport/bulk/bulk.h"

namespace gradcast {

class Herald : public Protocol {
public:
    /// Transfer i of rank r has `bytes[i]` bytes and goes to all others if i is even, else to the next rank.
    Herald(Rank self, uint32_t ranks, uint32_t segment, std::vector<uint32_t> bytes)
        : self_(self), ranks_(ranks), segment_(segment), bytes_(std::move(bytes)), bits_(1), in_(ranks * bytes_.size()) {
        for (Rank rank = 0; rank < ranks; ++rank)
            if (rank != self) bits_[0] |= uint64_t{1} << rank;
        for (size_t i = 0; i < bytes_.size(); ++i) {
            out_.emplace_back(bytes_[i]);
            fill(out_.back(), 3, self, i);
        }
        for (Rank rank = 0; rank < ranks; ++rank)
            for (size_t i = 0; i < bytes_.size(); ++i) {
                if (!comes(rank, i)) continue;
                in(rank, i).bytes.resize(bytes_[i]);
                in(rank, i).got.resize(segments(i));
                remaining_ += segments(i);
            }
        BulkConfig config;
        config.self = self;
        config.ranks = ranks;
        config.segment_bytes = segment;
        bulk = bulk_create(config, *this, arena_, &counters);
        const Status status = arena_.seal();
        EXPECT_TRUE(status.ok()) << status.what;
    }
    void on(std::span<const Event> events, Actions& actions) override {
        for (const Event& event : events) {
            if (event.is<Event::Command>()) talk(actions);
            if (const auto* received = event.is<Event::Received>()) check(*received->packet);
            if (event.is<Event::Sent>()) ++sent_;
            if (const auto* its = event.is<Event::PeerLost>()) lost = its->status.what;
        }
        if (!reported_ && sent_ == bytes_.size() && remaining_ == 0) {
            reported_ = true;
            actions.completions.emplace_back();
        }
    }
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override {
        const DataBody body = body_of<DataBody>(packet);
        const size_t i = body.step.get();
        if (i >= bytes_.size() || body.index.get() >= segments(i)) return Landing::drop;
        if (!comes(packet.sender, i)) return Landing::foreign;
        if (in(packet.sender, i).got[body.index.get()]) return Landing::drop;
        *place = {in(packet.sender, i).bytes.data() + size_t{body.index.get()} * segment_, nullptr, bytes};
        return Landing::place;
    }

    std::unique_ptr<Protocol> bulk;
    BulkCounters counters;
    std::string lost;
    uint64_t remaining() const { return remaining_; }

private:
    struct Inbox {
        std::vector<std::byte> bytes;
        std::vector<bool> got;
    };
    bool comes(Rank from, size_t i) const { return from != self_ && (i % 2 == 0 || (from + 1) % ranks_ == self_); }
    uint32_t segments(size_t i) const { return std::max((bytes_[i] + segment_ - 1) / segment_, 1u); }
    Inbox& in(Rank rank, size_t i) { return in_[rank * bytes_.size() + i]; }
    void talk(Actions& actions) {
        for (size_t i = 0; i < bytes_.size(); ++i) {
            Send send;
            if (i % 2 == 0) send.to.bits = bits_.data();
            else send.to.rank = (self_ + 1) % ranks_;
            send.type = PacketType::words;
            DataBody body{};
            body.step.set(static_cast<uint32_t>(i));
            send.body = body_bytes(body);
            send.payload = {out_[i].data(), nullptr, out_[i].size()};
            send.ticket = i + 1;
            actions.sends.push_back(send);
        }
    }
    void check(const Packet& packet) {
        const DataBody body = body_of<DataBody>(packet);
        const size_t i = body.step.get(), at = size_t{body.index.get()} * segment_;
        Inbox& box = in(packet.sender, i);
        ASSERT_FALSE(box.got[body.index.get()]);
        box.got[body.index.get()] = true;
        --remaining_;
        uint64_t wrong = 0;
        for (uint64_t x = 0; x < packet.payload.bytes; ++x) wrong += packet.payload.host[x] != content(3, packet.sender, i, at + x);
        EXPECT_EQ(wrong, 0u) << "segment " << body.index.get() << " of transfer " << i << " from " << packet.sender;
    }
    const Rank self_;
    const uint32_t ranks_, segment_;
    const std::vector<uint32_t> bytes_;
    std::vector<uint64_t> bits_;
    std::vector<std::vector<std::byte>> out_;
    std::vector<Inbox> in_;
    Arena arena_;
    uint64_t sent_ = 0, remaining_ = 0;
    bool reported_ = false;
};

}   // namespace gradcast
