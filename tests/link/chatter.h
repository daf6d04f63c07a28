// A protocol for tests of streams.
#pragma once
#include <map>

#include "tests/link/fixture.h"

namespace gradcast {

constexpr uint64_t seed = 42;

/// forget: resets all state for a second exchange.  await: completes when the last peer has come or gone.
enum class ChatterCommand : uint64_t { talk, forget, await };

/// On a command, sends packets of the given sizes to every other rank and checks every byte received; completes when all is sent and
/// received, or a peer is lost.
class Chatter : public Protocol {
public:
    Chatter(Rank self, uint32_t ranks, std::vector<uint32_t> sizes, Landing landing = Landing::lease)
        : self_(self), ranks_(ranks), sizes_(std::move(sizes)), landing_(landing), taken_(ranks) {
        for (size_t i = 0; i < sizes_.size(); ++i) {
            payloads_.emplace_back(sizes_[i]);
            fill(payloads_.back(), seed, self, i);
        }
        bits_.resize((ranks + 63) / 64);
        for (Rank rank = 0; rank < ranks; ++rank)
            if (rank != self) bits_[rank / 64] |= uint64_t{1} << rank % 64;
    }

    void on(std::span<const Event> events, Actions& actions) override {
        for (const Event& event : events) {
            if (const auto* command = event.is<Event::Command>()) run(command->as<ChatterCommand>(), actions);
            // An event after which packets answered `later` are asked again.
            if (event.is<Event::TimerExpired>()) ask_again(actions);
            if (const auto* received = event.is<Event::Received>()) check(*received->packet);
            if (const auto* sent = event.is<Event::Sent>()) {
                ++sent_;
                EXPECT_TRUE(rails_ || sent->ticket == sent_) << sent->ticket;   // in order, exactly once
                EXPECT_TRUE(sent->status.ok()) << sent->status.what;
            }
            if (event.is<Event::PeerUp>()) {
                ++ups_;
                up_ = true;
            }
            if (const auto* lost = event.is<Event::PeerLost>()) {
                lost_ = lost->status;
                ++losses_;
                up_ = false;
            }
        }
        if (awaited_ && up_) {
            awaited_ = false;
            actions.completions.emplace_back();
        }
        if (!reported_ && ((sent_ == sizes_.size() && received_ == sizes_.size() * (ranks_ - 1)) || losses_)) {
            reported_ = true;
            Completion completion;
            completion.id = 1;
            completion.status = lost_;
            actions.completions.push_back(completion);
        }
    }
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override {
        if (landing_ == Landing::later && ++asked_ % 3 != 0) return Landing::later;
        if (landing_ == Landing::lease && bytes <= lease_bytes_max) return Landing::lease;
        auto& slot = slots_[{packet.sender, body_of<MailBody>(packet).tag.get()}];
        slot.assign(bytes, std::byte{0xee});
        *place = {slot.data(), nullptr, bytes};
        return Landing::place;
    }

    Buffer payload(size_t i) { return {payloads_[i].data(), nullptr, sizes_[i]}; }
    Rank self_;
    uint32_t ranks_;
    uint64_t sent_ = 0, received_ = 0, ups_ = 0, losses_ = 0;
    Status lost_;
    bool rails_ = false;     // whose acknowledgements come in any order
    bool express_ = false;   // has the small messages, which are in order among themselves

private:
    void run(ChatterCommand command, Actions& actions) {
        switch (command) {
            case ChatterCommand::forget:
                sent_ = received_ = losses_ = 0;
                reported_ = false;
                lost_ = {};
                taken_.assign(ranks_, {});
                return;
            case ChatterCommand::await: awaited_ = true; return;
            case ChatterCommand::talk: start(actions); ask_again(actions);
        }
    }
    void ask_again(Actions& actions) const {
        if (landing_ == Landing::later && !reported_) actions.timers.push_back({1, actions.now_us + 500});
    }
    void start(Actions& actions) {
        for (size_t i = 0; i < sizes_.size(); ++i) {
            MailBody body{};
            body.tag.set(i);
            body.total.set(sizes_[i]);
            Send send;
            send.to.bits = bits_.data();
            send.type = PacketType::mail;
            send.body = body_bytes(body);
            send.payload = {payloads_[i].data(), nullptr, sizes_[i]};
            send.ticket = i + 1;
            actions.sends.push_back(send);
        }
    }
    void check(const Packet& packet) {
        uint64_t index = body_of<MailBody>(packet).tag.get();
        ASSERT_LT(index, sizes_.size());
        const auto by_express = [this](uint64_t i) { return express_ && sizes_[i] <= mail_early_bytes; };
        uint64_t& next = taken_[packet.sender][by_express(index)];   // exactly once and in order
        while (next < sizes_.size() && by_express(next) != by_express(index)) ++next;
        EXPECT_EQ(index, next++) << "from " << packet.sender;
        ASSERT_EQ(packet.payload.bytes, sizes_[index]);
        uint64_t wrong = 0;
        uint64_t first = 0, last = 0;   // wrong bytes
        for (uint64_t i = 0; i < packet.payload.bytes; ++i)
            if (packet.payload.host[i] != content(seed, packet.sender, index, i)) {
                if (wrong++ == 0) first = i;
                last = i;
            }
        EXPECT_EQ(wrong, 0u) << "packet " << index << " from " << packet.sender << ": bytes " << first << " to " << last << " of "
                             << packet.payload.bytes << ", the first is " << static_cast<int>(packet.payload.host[first]);
        slots_.erase({packet.sender, index});
        ++received_;
    }
    std::vector<uint32_t> sizes_;
    Landing landing_;
    std::vector<std::array<uint64_t, 2>> taken_;   // by sender: of a rail, of the express connection
    std::vector<std::vector<std::byte>> payloads_;
    std::map<std::pair<Rank, uint64_t>, std::vector<std::byte>> slots_;
    std::vector<uint64_t> bits_;
    uint64_t asked_ = 0;
    bool reported_ = false, awaited_ = false, up_ = false;
};

}   // namespace gradcast
