// Packets that a member with the key can forge, drawn from bytes, for the fuzz target and for a test with random bytes.
#pragma once
#include <deque>
#include <utility>

#include "runtime/core/arena.h"
#include "runtime/core/digest.h"
#include "transport/bulk/bulk.h"
#include "transport/bulk/feedback.h"

namespace gradcast {

class Forged final : Protocol {
public:
    static constexpr uint32_t segment = 384, ranks = 3, segments = 2300;

    explicit Forged(std::span<const uint8_t> bytes) : bytes_(bytes) {
        places_.resize(2 * segments * segment);
        words_.resize(200 * segment + 7);
        bulk_ = bulk_create({.self = 0, .ranks = ranks, .segment_bytes = segment, .window_bytes = 64 * 1024}, *this, arena_, &counters_);
        if (!arena_.seal().ok()) bulk_.reset();
    }
    void run() {
        if (!bulk_) return;
        for (uint32_t i = 0; i < 3; ++i) order(i);
        while (!bytes_.empty() && actions_count_ < 100'000) step();
    }
    const BulkCounters& counters() const { return counters_; }
    uint64_t given = 0;

private:
    uint8_t byte() {
        if (bytes_.empty()) return 0;
        uint8_t value = bytes_.front();
        bytes_ = bytes_.subspan(1);
        return value;
    }
    /// Small values are more likely.
    uint32_t number(uint32_t limit) {
        const uint8_t a = byte();
        const uint32_t value = a < 200   ? a % 8
                               : a < 240 ? uint32_t{a} << 4 | byte()
                                         : uint32_t{byte()} << 24 | uint32_t{byte()} << 16 | byte();
        return limit ? value % limit : value;
    }

    void step() {
        Event event{Event::Received{}};
        Packet packet;
        std::vector<std::byte> lease;
        switch (byte() % 8) {
            case 0:
                if (tickets_.empty()) return;
                event.what = Event::Sent{tickets_.front()};
                tickets_.pop_front();
                break;
            case 1:
                now_us_ += number(0) % 100'000;
                if (timer_us_ == 0 || now_us_ < timer_us_) return;
                event.what = Event::TimerExpired{timer_};
                timer_us_ = 0;
                break;
            case 2: return order(byte());
            case 3:
                if (byte()) return;
                event.what = Event::PeerLost{number(ranks)};
                break;
            default:
                if (!forge(&packet, &lease)) return;
                event.what = Event::Received{&packet};
        }
        feed(event);
    }

    bool forge(Packet* packet, std::vector<std::byte>* lease) {
        constexpr PacketType types[] = {PacketType::words, PacketType::record, PacketType::parity,   PacketType::feedback,
                                        PacketType::words, PacketType::parity, PacketType::feedback, PacketType::mail};
        packet->type = types[byte() % 8];
        packet->sender = byte() % 16 ? 1 + byte() % 2 : number(0);
        packet->sequence = (byte() % 64 ? sequence_ += 1 + number(6) % 6 : uint64_t{number(0)} << 16 | number(0)) & bulk::sequence_mask;
        lease->resize(byte() % 16 ? segment : number(1200));
        for (size_t i = 0, first = byte(); i < lease->size(); ++i) (*lease)[i] = static_cast<std::byte>(first + i);
        const bool likely = byte() % 8;   // else the fields are arbitrary
        if (packet->type == PacketType::feedback) {
            packet->body = likely ? likely_feedback(lease) : any_feedback(lease);
        } else {
            packet->body = likely ? likely_data(packet->type, lease) : any_data(packet->type);
        }
        Buffer place;
        const uint64_t size = lease->size();
        switch (bulk_->land(*packet, size, &place)) {
            case Landing::place:
                GC_ASSERT(place.bytes == size);
                if (size) std::memcpy(place.host, lease->data(), size);
                packet->payload = place;
                return true;
            case Landing::lease: packet->payload = {lease->data(), nullptr, size}; return true;
            default: return false;
        }
    }

    std::array<std::byte, 16> any_data(PacketType type) {
        if (type == PacketType::parity) {
            bulk::ParityBody body{};
            body.step.set(number(0));
            body.slot = static_cast<uint8_t>(number(0));
            body.row = static_cast<uint8_t>(number(0));
            body.count.set(number(1 << 24));
            body.block.set(static_cast<uint16_t>(byte() % 2 ? 0x8000 | number(0) : number(0)));
            return body_bytes(body);
        }
        DataBody body{};
        body.step.set(number(0));
        body.reserved = static_cast<uint8_t>(number(0));
        body.count.set(number(1 << 24));
        body.index.set(number(1 << 24));
        return body_bytes(body);
    }
    std::array<std::byte, 16> any_feedback(std::vector<std::byte>* payload) {
        bulk::FeedbackBody body{};
        body.highest.set(number(0) | uint64_t{byte()} % 4 << 48);
        body.window.set(number(0) * 1000);
        body.behind.set(number(0));
        payload->resize(number(200));
        return body_bytes(body);
    }
    // Belongs to a transfer with a length and a slot of its own; later transfers use the same slot.
    std::array<std::byte, 16> likely_data(PacketType type, std::vector<std::byte>* payload) {
        constexpr uint32_t counts[] = {1, 2, 5, 9, 140, 2100};
        const uint32_t step = byte() % 24, slot = step % 8 + 8 * (type == PacketType::record), count = counts[step % 6];
        const uint32_t rest = segment - 8 * (step % 3);   // the last segment's length
        const uint32_t index = byte() % 8 ? count - 1 - byte() % std::min(count, 16u) : byte() * 16 % count;
        payload->resize(segment);
        if (type == PacketType::parity) {
            bulk::ParityBody body{};
            const uint32_t block = index / bulk::block_segments;
            body.step.set(step);
            body.slot = static_cast<uint8_t>(slot);
            body.row = byte() % 8;
            body.count.set(count);
            body.block.set(static_cast<uint16_t>(block == (count - 1) / bulk::block_segments ? 0x8000 | rest : block));
            return body_bytes(body);
        }
        if (index + 1 == count) payload->resize(rest);
        DataBody body{};
        body.step.set(step);
        body.reserved = static_cast<uint8_t>(slot);
        body.count.set(count);
        body.index.set(index);
        return body_bytes(body);
    }
    // Reports nearly all that was sent: some pieces are finished, others lack segments.
    std::array<std::byte, 16> likely_feedback(std::vector<std::byte>* payload) {
        const bool report = byte() % 4;
        bulk::FeedbackBody body{};
        body.highest.set((sent_ - std::min<uint64_t>(byte() % 8, sent_)) | uint64_t{report} << 48);
        body.window.set(byte() * 1000);
        body.behind.set(byte() % 8);
        payload->clear();
        if (!report) return body_bytes(body);
        auto append = [&](const auto& item) {
            const auto* bytes = reinterpret_cast<const std::byte*>(&item);
            payload->insert(payload->end(), bytes, bytes + sizeof item);
        };
        const uint8_t finished = byte() & byte() & byte(), known = byte() | byte();
        append(bulk::ReportHeader{1}), append(finished), append(known);
        for (uint8_t slot = 0; slot < 8; ++slot) {
            if (!(known >> slot & 1) || byte() % 4 == 0) continue;
            bulk::PieceItem item{slot, byte() % 16 == 0, {}, {}};
            const uint16_t open = byte() % 4;   // of the transfer's two blocks
            item.open.set(open);
            item.done.set(byte() % 4 & ~open);
            append(item);
            for (int blocks = std::popcount(open); blocks--;) {
                bulk::BlockItem block{static_cast<uint8_t>(byte() % 128), byte() % 4 == 0, {}};
                for (Le64& have : block.have) have.set(splitmix64(byte()));
                append(block);
            }
        }
        return body_bytes(body);
    }

    void order(uint32_t what) {
        ordered_ = true;
        what_ = what;
        feed(command_event(0));
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
        for (const Timer& timer : actions_.timers) {
            timer_ = timer.id;
            timer_us_ = timer.at_us;
        }
    }

    // The user of Bulk: places, leases, delays or refusals, by transfer.
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override {
        const DataBody body = body_of<DataBody>(packet);
        GC_ASSERT(packet.sender == 1 || packet.sender == 2);
        GC_ASSERT(bytes <= segment && body.index.get() < body.count.get());
        if (body.step.get() % 8 == 5) return Landing::lease;
        if (body.step.get() % 8 == 6) return now_us_ / 1000 % 2 ? Landing::later : Landing::drop;
        if (body.step.get() % 8 == 7 || body.index.get() >= segments) return Landing::drop;
        *place = {places_.data() + ((packet.sender - 1) * segments + body.index.get()) * segment, nullptr, bytes};
        return Landing::place;
    }
    void on(std::span<const Event> events, Actions& actions) override {
        for (const Event& event : events)
            if (const auto* received = event.is<Event::Received>()) {
                const Buffer& payload = received->packet->payload;
                ++given;
                for (uint64_t i = 0; i < payload.bytes; ++i) sink_ = sink_ + static_cast<uint64_t>(payload.host[i]);
            }
        if (!std::exchange(ordered_, false)) return;
        static const uint64_t both = 0b110;
        DataBody body{};
        body.step.set(what_);
        body.phase = 1 + what_ % 2;
        Send send;
        send.to = {1 + what_ % 2, what_ % 3 ? &both : nullptr};
        send.type = what_ % 5 ? PacketType::words : PacketType::record;
        send.body = body_bytes(body);
        send.payload = {words_.data(), nullptr, what_ % 4 ? words_.size() : what_};
        send.ticket = 1;
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
