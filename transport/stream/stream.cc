#include "transport/stream/stream.h"

#include <algorithm>

namespace gradcast {

Sender::Sender(const StreamConfig& config, InlinePool& pool) : config_(config), pool_(pool), ring_(64) {
    GC_ASSERT(config.segment_bytes <= batch_bytes);
}

bool Sender::push(const Send& send, uint32_t ticket) {
    GC_ASSERT(send.payload.bytes <= config_.segment_bytes && send.type != PacketType::ack);
    if (end_ - base_ == queue_max) return false;
    if (end_ - base_ == ring_.size()) {
        std::vector<Queued> larger(2 * ring_.size());
        for (uint64_t i = base_; i < end_; ++i) larger[i & (larger.size() - 1)] = at(i);
        ring_ = std::move(larger);
    }
    uint32_t bytes = static_cast<uint32_t>(send.payload.bytes);
    Queued& packet = at(end_++);
    packet = {send.payload.host, bytes, ticket, send.view, send.channel, send.type, Memory::borrowed, send.body};
    const bool fits = bytes <= inline_bytes_max;
    if (bytes == 0 || (!fits && !link_packet(send.type))) return true;
    packet.memory = fits ? Memory::pooled : Memory::owned;
    packet.payload = fits ? pool_.take() : new std::byte[bytes];
    std::memcpy(packet.payload, send.payload.host, bytes);
    return true;
}

void Sender::own(uint32_t view) {
    for (uint64_t i = base_; i < end_; ++i) {
        Queued& packet = at(i);
        if (!borrowed(packet, view)) continue;
        auto* copy = new std::byte[packet.bytes];
        std::memcpy(copy, packet.payload, packet.bytes);
        for (iovec& vector : pending_) {   // sealed, not yet written
            auto* base = static_cast<std::byte*>(vector.iov_base);
            if (base >= packet.payload && base < packet.payload + packet.bytes) vector.iov_base = copy + (base - packet.payload);
        }
        packet.payload = copy;
        packet.memory = Memory::owned;
    }
}

bool Sender::borrows(uint32_t view) const {
    for (uint64_t i = base_; i < end_; ++i)
        if (borrowed(at(i), view)) return true;
    return false;
}

void Sender::restart(const Key& key, uint64_t ack_sent) {
    keys_.key(key, config_.protect, config_.packets_per_key);
    sequence_ = 0;
    ack_sent_ = ack_sent;
    pending_ = {};
    next_ = base_;
    if (!frames_) frames_ = std::make_unique_for_overwrite<std::byte[]>(batch_packets * size_t{packet_head_bytes + tag_bytes});
}

void Sender::append(std::byte* bytes, size_t count) {
    if (count == 0) return;
    if (vectors_used_) {
        iovec& last = vectors_[vectors_used_ - 1];
        if (static_cast<std::byte*>(last.iov_base) + last.iov_len == bytes) {
            last.iov_len += count;
            return;
        }
    }
    vectors_[vectors_used_++] = {bytes, count};
}

void Sender::seal(const Queued& packet) {
    std::byte* head = frames_.get() + count_ * size_t{packet_head_bytes + tag_bytes};
    std::byte* tag = head + packet_head_bytes;
    PacketHeader header{};
    header.magic.set(packet_magic);
    header.version = packet_version;
    header.type = static_cast<uint8_t>(packet.type);
    header.job.set(config_.job);
    header.view.set(packet.view);
    header.channel.set(packet.channel);
    header.sender.set(static_cast<uint16_t>(config_.self));
    header.length.set(packet.bytes);
    header.sequence.set(sequence_);
    std::memcpy(head, &header, sizeof header);
    std::memcpy(head + sizeof header, packet.body.data(), packet.body.size());
    std::byte* payload = packet.payload;
    if (config_.protect == Protect::encrypt) {
        payload = cipher_.get() + cipher_used_;
        cipher_used_ += packet.bytes;
    }
    keys_.seal(sequence_, sequence_, {head, packet_head_bytes}, {packet.payload, packet.bytes}, payload, {tag, tag_bytes});
    append(head, packet_head_bytes);
    append(payload, packet.bytes);
    append(tag, tag_bytes);
    ++sequence_;
    ++count_;
    ++packets_;
}

// A batch begins with the acknowledgement of all received packets.  A protocol that returns `later` until its own packets are acknowledged
// does not deadlock, because the acknowledgement precedes the peer's packets.
std::span<iovec> Sender::batch(uint64_t received) {
    if (!pending_.empty()) return pending_;
    vectors_used_ = count_ = 0;
    cipher_used_ = 0;
    if (received != ack_sent_) {
        AckBody body{};
        body.received.set(received);
        seal({nullptr, 0, ticket_none, config_.view, 0, PacketType::ack, Memory::borrowed, body_bytes(body)});
        ack_sent_ = received;
    }
    uint64_t last = next_, bytes = 0;
    for (uint64_t packets = count_; last < end_ && packets < batch_packets && bytes + at(last).bytes <= batch_bytes; ++last, ++packets)
        bytes += at(last).bytes;
    if (config_.protect == Protect::encrypt && bytes > cipher_bytes_) {
        cipher_bytes_ = std::max(bytes, std::min(2 * cipher_bytes_, batch_bytes));
        cipher_ = std::make_unique_for_overwrite<std::byte[]>(cipher_bytes_);
    }
    while (next_ < last) seal(at(next_++));
    return pending_ = {vectors_, vectors_used_};
}

void Sender::wrote(uint64_t bytes) {
    while (bytes) {
        GC_ASSERT(!pending_.empty());
        iovec& first = pending_.front();
        size_t take = std::min<uint64_t>(bytes, first.iov_len);
        first.iov_base = static_cast<std::byte*>(first.iov_base) + take;
        first.iov_len -= take;
        bytes -= take;
        if (first.iov_len == 0) pending_ = pending_.subspan(1);
    }
}

namespace {
constexpr size_t read_ahead = 65536, read_ahead_little = 4096;
constexpr size_t room_first = Receiver::rest_max + read_ahead_little + tag_bytes;
}   // namespace

Receiver::Receiver(const StreamConfig& config)
    : config_(config), capacity_(packet_head_bytes + size_t{config.segment_bytes} + tag_bytes + rest_max) {}

void Receiver::restart(const Key& key, std::span<const std::byte> rest) {
    GC_ASSERT(rest.size() <= rest_max);
    keys_.key(key, config_.protect, config_.packets_per_key);
    if (!staging_) grow(room_first);
    std::copy(rest.begin(), rest.end(), staging_.get());
    begin_ = 0;
    end_ = rest.size();
    sequence_ = 0;
    at_ = At::head;
    blocked_ = large_ = false;
}

void Receiver::grow(size_t bytes) {
    bytes = std::min(std::max(bytes, room_), capacity_);
    if (bytes == room_) return;
    auto larger = std::make_unique_for_overwrite<std::byte[]>(bytes);
    std::copy(staging_.get() + begin_, staging_.get() + end_, larger.get());
    end_ -= begin_;
    begin_ = 0;
    staging_ = std::move(larger);
    room_ = bytes;
}

// Limits reading ahead of a payload with its own place, because bytes read ahead are copied.
uint32_t Receiver::space(iovec out[2]) {
    if (at_ == At::place && got_ < length_) {
        begin_ = end_ = 0;
        out[0] = {packet_.payload.host + got_, length_ - got_};
        out[1] = {staging_.get(), tag_bytes + read_ahead_little};
        return 2;
    }
    if (end_ == room_) grow(2 * room_);   // staging was full
    if (at_ == At::lease) grow(packet_head_bytes + length_ + tag_bytes);
    std::memmove(staging_.get(), staging_.get() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
    size_t want = large_ ? read_ahead_little : read_ahead;
    if (at_ == At::lease) want = std::max(want, packet_head_bytes + length_ + tag_bytes - end_);
    out[0] = {staging_.get() + end_, std::min(want, room_ - end_)};
    return 1;
}

bool Receiver::placing(std::span<const uint16_t> channels) const {
    return at_ == At::place && std::find(channels.begin(), channels.end(), packet_.channel) != channels.end();
}

void Receiver::received(uint64_t bytes) {
    if (at_ == At::place) {
        uint64_t take = std::min(bytes, length_ - got_);
        got_ += take;
        bytes -= take;
    }
    end_ += bytes;
    GC_ASSERT(end_ <= room_);
}

const char* Receiver::head(ReceiverSink& sink) {
    PacketHeader header;
    std::memcpy(&header, staging_.get() + begin_, sizeof header);
    if (const char* why = packet_invalid(header, config_.job, config_.ranks)) return why;
    length_ = header.length.get();
    if (header.sender.get() != config_.peer) return "a packet of another sender";
    if (header.sequence.get() != sequence_) return "a packet out of sequence";
    if (length_ > config_.segment_bytes) return "a packet longer than the segment that was agreed";
    packet_ = {};
    packet_.type = static_cast<PacketType>(header.type);
    packet_.channel = header.channel.get();
    packet_.sender = config_.peer;
    packet_.view = header.view.get();
    std::memcpy(packet_.body.data(), staging_.get() + begin_ + sizeof header, packet_.body.size());
    at_ = At::lease;
    wanted_ = true;
    const bool ack = packet_.type == PacketType::ack, of_link = ack || link_packet(packet_.type);
    if (of_link && packet_.view != config_.view) return "a packet of another view";
    if (ack) return nullptr;
    if (!sink.turn()) {
        blocked_ = true;
        at_ = At::head;
        return nullptr;
    }
    if (!of_link && !sink.known(packet_.channel, packet_.view)) return "a packet for a channel that is not open";
    Buffer place;
    Landing landing = sink.land(packet_, length_, &place);
    blocked_ = landing == Landing::later;
    if (blocked_) at_ = At::head;
    wanted_ = landing != Landing::drop && landing != Landing::foreign;
    if (landing != Landing::place) return nullptr;
    GC_ASSERT(place.bytes == length_);
    std::memcpy(head_, staging_.get() + begin_, packet_head_bytes);
    begin_ += packet_head_bytes;
    packet_.payload = place;
    at_ = At::place;
    got_ = std::min<uint64_t>(length_, end_ - begin_);
    if (got_) std::memcpy(place.host, staging_.get() + begin_, got_);
    begin_ += got_;
    return nullptr;
}

const char* Receiver::parse(ReceiverSink& sink) {
    for (blocked_ = false;;) {
        if (at_ == At::head) {
            if (waiting().size() < packet_head_bytes) return nullptr;
            if (const char* why = head(sink)) return why;
            if (blocked_) return nullptr;
        }
        bool placed = at_ == At::place;
        if (placed ? got_ < length_ || waiting().size() < tag_bytes : waiting().size() < packet_head_bytes + length_ + tag_bytes)
            return nullptr;
        std::byte* head = placed ? head_ : staging_.get() + begin_;
        std::byte* payload = placed ? packet_.payload.host : head + packet_head_bytes;
        std::byte* tag = placed ? staging_.get() + begin_ : payload + length_;
        if (!keys_.open(sequence_, sequence_, {head, packet_head_bytes}, {payload, length_}, {tag, tag_bytes}))
            return "a packet with a wrong tag";
        begin_ = static_cast<size_t>(tag + tag_bytes - staging_.get());
        at_ = At::head;
        ++sequence_;
        ++packets_;
        if (packet_.type == PacketType::ack) {
            AckBody body = body_of<AckBody>(packet_);
            if (body.reserved.get() != 0 || !sink.ack(body.received.get())) return "an acknowledgement of what was not sent";
            continue;
        }
        ++delivered_;
        sink.delivered(length_);
        large_ = placed && length_ > 16384;
        if (!placed) packet_.payload = {payload, nullptr, length_};
        if (wanted_) sink.packet(packet_);
    }
}

}   // namespace gradcast
