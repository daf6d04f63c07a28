// What a member with the key may send into a Bulk, from bytes: for the fuzz target and for the test that feeds it random ones.
#pragma once
#include <deque>
#include <utility>

#include "runtime/core/arena.h"
#include "transport/bulk/bulk.h"
#include "transport/bulk/feedback.h"

namespace gradcast {

class Forged final : Protocol {
public:
    static constexpr uint32_t segment = 384, ranks = 3, segments = 2300;

    explicit Forged(std::span<const uint8_t> bytes) : bytes_(bytes) {
        places_.resize(2 * segments * segment);
        words_.resize(200 * segment + 7);
        bulk_ = bulk_create({0, ranks, segment, 64 * 1024, 0, 20'000}, *this, arena_, &counters_);
        if (!arena_.seal().ok()) bulk_.reset();
    }
    void run() {
        if (!bulk_) return;
        for (uint32_t i = 0; i < 3; ++i) order(i);
        while (!bytes_.empty() && actions_count_ < 100'000) step();
    }
    uint64_t given = 0;

private:
    uint8_t byte() {
        if (bytes_.empty()) return 0;
        uint8_t value = bytes_.front();
        bytes_ = bytes_.subspan(1);
        return value;
    }
    /// Small ones mostly.
    uint32_t number(uint32_t limit) {
        const uint8_t a = byte();
        const uint32_t value = a < 200   ? a % 8
                               : a < 240 ? uint32_t{a} << 4 | byte()
                                         : uint32_t{byte()} << 24 | uint32_t{byte()} << 16 | byte();
        return limit ? value % limit : value;
    }

    void step() {
        Event event;
        Packet packet;
        std::vector<std::byte> lease;
        switch (byte() % 8) {
            case 0:
                if (tickets_.empty()) return;
                event.kind = Event::Kind::sent, event.id = tickets_.front();
                tickets_.pop_front();
                break;
            case 1:
                now_us_ += number(0) % 100'000;
                if (timer_us_ == 0 || now_us_ < timer_us_) return;
                event.kind = Event::Kind::timer, event.id = timer_, timer_us_ = 0;
                break;
            case 2: return order(byte());
            case 3:
                if (byte()) return;
                event.kind = Event::Kind::peer_lost, event.rank = number(ranks);
                break;
            default:
                if (!forge(&packet, &lease)) return;
                event.kind = Event::Kind::packet, event.packet = &packet;
        }
        feed(event);
    }

    bool forge(Packet* packet, std::vector<std::byte>* lease) {
        constexpr PacketType types[] = {PacketType::words, PacketType::record, PacketType::parity,   PacketType::feedback,
                                        PacketType::words, PacketType::parity, PacketType::feedback, PacketType::mail};
        packet->type = types[byte() % 8];
        packet->sender = byte() % 16 ? 1 + byte() % 2 : number(0);
        packet->sequence = (byte() % 16 ? sequence_ += 1 + number(6) % 6 : uint64_t{number(0)} << 16 | number(0)) & bulk::sequence_mask;
        uint64_t size = byte() % 8 ? segment : number(1200);
        switch (packet->type) {
            case PacketType::parity: {
                bulk::ParityBody body{};
                body.step.set(number(0)), body.slot = static_cast<uint8_t>(number(0)), body.row = static_cast<uint8_t>(number(0));
                body.count.set(number(1 << 24)), body.block.set(static_cast<uint16_t>(byte() % 2 ? 0x8000 | number(0) : number(0)));
                packet->body = body_bytes(body);
                break;
            }
            case PacketType::feedback: {
                bulk::FeedbackBody body{};
                body.highest.set(number(0) | uint64_t{byte()} % 4 << 48), body.window.set(number(0) * 1000), body.behind.set(number(0));
                packet->body = body_bytes(body);
                size = number(200);
                break;
            }
            default: {
                DataBody body{};
                body.step.set(number(0)), body.reserved = static_cast<uint8_t>(number(0));
                body.count.set(number(1 << 24)), body.index.set(number(1 << 24));
                packet->body = body_bytes(body);
            }
        }
        lease->resize(size);
        for (std::byte& b : *lease) b = static_cast<std::byte>(byte());
        Buffer place;
        switch (bulk_->land(*packet, size, &place)) {
            case Landing::place:
                GC_ASSERT(place.bytes == size);
                if (size) std::memcpy(place.host, lease->data(), size);
                packet->payload = place;
                return true;
            case Landing::lease: packet->payload = {lease->data(), nullptr, size, 0}; return true;
            default: return false;
        }
    }

    void order(uint32_t what) {
        ordered_ = true, what_ = what;
        Event event;
        event.kind = Event::Kind::command;
        feed(event);
    }

    void feed(const Event& event) {
        actions_.clear();
        actions_.now_us = ++now_us_;
        bulk_->on({&event, 1}, actions_);
        uint64_t sum = 0;
        for (const Send& send : actions_.sends) {
            GC_ASSERT(send.payload.bytes <= 1024 && send.sequence == ++sent_);
            for (uint64_t i = 0; i < send.payload.bytes; ++i) sum += static_cast<uint64_t>(send.payload.host[i]);
            if (send.ticket) tickets_.push_back(send.ticket);
        }
        sink_ = sink_ + sum;
        actions_count_ += actions_.sends.size();
        GC_ASSERT(actions_.sends.size() <= 64);
        for (const Timer& timer : actions_.timers) timer_ = timer.id, timer_us_ = timer.at_us;
    }

    // The user: places for some transfers, leases, delays and refusals for others.
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override {
        const DataBody body = body_of<DataBody>(packet);
        GC_ASSERT(packet.sender == 1 || packet.sender == 2);
        GC_ASSERT(bytes <= segment && body.index.get() < body.count.get());
        if (body.step.get() % 8 == 5) return Landing::lease;
        if (body.step.get() % 8 == 6) return now_us_ / 1000 % 2 ? Landing::later : Landing::drop;
        if (body.step.get() % 8 == 7 || body.index.get() >= segments) return Landing::drop;
        *place = {places_.data() + ((packet.sender - 1) * segments + body.index.get()) * segment, nullptr, bytes, 0};
        return Landing::place;
    }
    void on(std::span<const Event> events, Actions& actions) override {
        for (const Event& event : events)
            if (event.kind == Event::Kind::packet) {
                ++given;
                for (uint64_t i = 0; i < event.packet->payload.bytes; ++i)
                    sink_ = sink_ + static_cast<uint64_t>(event.packet->payload.host[i]);
            }
        if (!std::exchange(ordered_, false)) return;
        static const uint64_t both = 0b110;
        DataBody body{};
        body.step.set(what_), body.phase = 1 + what_ % 2;
        Send send;
        send.to = {1 + what_ % 2, what_ % 3 ? &both : nullptr};
        send.type = what_ % 5 ? PacketType::words : PacketType::record, send.body = body_bytes(body);
        send.payload = {words_.data(), nullptr, what_ % 4 ? words_.size() : what_, 0}, send.ticket = 1;
        actions.sends.push_back(send);
    }

    std::span<const uint8_t> bytes_;
    std::vector<std::byte> places_, words_;
    Arena arena_;
    BulkCounters counters_;
    std::unique_ptr<Protocol> bulk_;
    Actions actions_;
    std::deque<uint64_t> tickets_;
    uint64_t now_us_ = 1000, timer_us_ = 0, timer_ = 0, sequence_ = 0, sent_ = 0, actions_count_ = 0;
    volatile uint64_t sink_ = 0;
    bool ordered_ = false;
    uint32_t what_ = 0;
};

}   // namespace gradcast
