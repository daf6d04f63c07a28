// A protocol for tests of datagrams: on a command it sends its datagrams, and it checks every byte received.
#pragma once
#include <atomic>
#include <set>

#include "tests/link/fixture.h"

namespace gradcast {

struct Cry {
    uint32_t bytes;
    int to = -1;   // a rank, or -1: all others
};

class Crier : public Protocol {
public:
    Crier(Rank self, uint32_t ranks, std::vector<Cry> cries, Landing landing = Landing::place)
        : self_(self), ranks_(ranks), cries_(std::move(cries)), landing_(landing), seen_(ranks) {
        for (size_t i = 0; i < cries_.size(); ++i) {
            payloads_.emplace_back(cries_[i].bytes);
            fill(payloads_.back(), 1, self, i);
        }
        bits_.resize((ranks + 63) / 64);
        for (Rank rank = 0; rank < ranks; ++rank)
            if (rank != self) bits_[rank / 64] |= uint64_t{1} << rank % 64;
        place_.resize(65536);
    }
    void on(std::span<const Event> events, Actions& actions) override {
        for (const Event& event : events) {
            if (event.is<Event::Command>()) cry(actions);
            if (const auto* sent = event.is<Event::Sent>()) {
                EXPECT_EQ(sent->ticket, ++sent_);
            }
            if (const auto* received = event.is<Event::Received>()) check(*received->packet);
            if (const auto* lost = event.is<Event::PeerLost>()) {
                ++losses;
                last_loss = lost->status.what;
            }
        }
        if (!reported_ && sent_ == asked_ && (asked_ || !sends_) && received_ >= expected_) {
            reported_ = true;
            actions.completions.emplace_back();
        }
    }
    Landing land(const Packet&, uint64_t bytes, Buffer* place) override {
        if (landing_ == Landing::place) {   // two datagrams of a batch may not share it: each gets the next piece
            if (at_ + bytes > place_.size()) {
                place_at_ = (place_at_ + 1) % 64;
                at_ = 0;
            }
            places_[place_at_].resize(place_.size());
            *place = {places_[place_at_].data() + at_, nullptr, bytes};
            at_ += bytes;
        }
        return landing_;
    }
    /// Before the driver runs: completes when `count` datagrams are received and, with `sends`, the own ones are sent.
    void expect(uint64_t count, bool sends = true) {
        expected_ = count;
        sends_ = sends;
    }

    std::atomic<uint64_t> losses = 0;   // any thread
    uint64_t duplicates = 0;
    std::string last_loss;
    uint64_t received() const { return received_; }

private:
    void cry(Actions& actions) {
        for (size_t i = 0; i < cries_.size(); ++i) {
            Send send;
            if (cries_[i].to < 0) send.to.bits = bits_.data();
            else send.to.rank = static_cast<Rank>(cries_[i].to);
            send.type = PacketType::parity;
            send.body = body(i);
            send.sequence = ++sequence_;
            send.payload = {payloads_[i].data(), nullptr, payloads_[i].size()};
            send.ticket = ++asked_;
            actions.sends.push_back(send);
        }
    }
    static std::array<std::byte, 16> body(uint64_t index) {
        MailBody body{};
        body.tag.set(index);
        return body_bytes(body);
    }
    void check(const Packet& packet) {
        const uint64_t index = body_of<MailBody>(packet).tag.get();
        ASSERT_LT(packet.sender, ranks_);
        ASSERT_NE(packet.sender, self_);
        duplicates += !seen_[packet.sender].insert(packet.sequence).second;
        uint64_t wrong = 0;
        for (uint64_t i = 0; i < packet.payload.bytes; ++i) wrong += packet.payload.host[i] != content(1, packet.sender, index, i);
        EXPECT_EQ(wrong, 0u) << "datagram " << index << " from " << packet.sender;
        ++received_;
    }
    const Rank self_;
    const uint32_t ranks_;
    const std::vector<Cry> cries_;
    const Landing landing_;
    std::vector<std::set<uint64_t>> seen_;
    std::vector<std::vector<std::byte>> payloads_;
    std::vector<uint64_t> bits_;
    std::vector<std::byte> place_;
    std::array<std::vector<std::byte>, 64> places_;
    size_t place_at_ = 0, at_ = 0;
    uint64_t sequence_ = 0, asked_ = 0, sent_ = 0, received_ = 0, expected_ = 0;
    bool reported_ = false, sends_ = true;
};

}   // namespace gradcast
