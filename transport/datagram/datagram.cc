#include "transport/datagram/datagram.h"

#include <algorithm>

namespace gradcast {

void ReplayWindow::clear() {
    highest_ = 0;
    std::fill(bits_.begin(), bits_.end(), 0);
}
bool ReplayWindow::fresh(uint64_t sequence) const {
    if (sequence > highest_) return true;
    if (sequence == 0 || highest_ - sequence >= width) return false;
    return !(bits_[sequence / 64 % words] >> sequence % 64 & 1);
}
void ReplayWindow::mark(uint64_t sequence) {
    if (sequence > highest_) {
        const uint64_t from = highest_ / 64, steps = std::min(sequence / 64 - from, words);
        for (uint64_t i = 1; i <= steps; ++i) bits_[(from + i) % words] = 0;
        highest_ = sequence;
    }
    bits_[sequence / 64 % words] |= uint64_t{1} << sequence % 64;
}

namespace {
uint64_t nonce_of(uint16_t channel, uint64_t sequence) { return uint64_t{channel} << 48 | sequence; }
}   // namespace

DatagramSealer::DatagramSealer(const DatagramShape& shape) : shape_(shape) {
    random_bytes(key_);
    keys_.key(key_, shape.protect, shape.packets_per_key);
}

void DatagramSealer::seal(const Send& send, std::byte* header_at, std::byte* out) {
    GC_ASSERT(send.sequence && send.sequence >> 48 == 0 && send.payload.bytes <= shape_.segment_bytes);
    DatagramHeader header;
    header.kind = static_cast<uint8_t>(datagram_magic | static_cast<uint8_t>(send.type));
    header.channel = static_cast<uint8_t>(send.channel);
    header.sender.set(static_cast<uint16_t>(shape_.self));
    header.route.set(shape_.route);
    header.sequence.set(send.sequence);
    header.body = send.body;
    std::memcpy(header_at, &header, sizeof header);
    keys_.seal(send.sequence, nonce_of(send.channel, send.sequence), {header_at, sizeof header}, {send.payload.host, send.payload.bytes},
               out, {header_at + sizeof header, datagram_tag_bytes});
}

DatagramReceiver::DatagramReceiver(const DatagramShape& shape) : shape_(shape), senders_(shape.ranks) {}

bool DatagramReceiver::attached(uint16_t channel) const {
    return std::find(channels_.begin(), channels_.end(), channel) != channels_.end();
}

bool DatagramReceiver::key(Rank rank, const Key& key) {
    auto& sender = senders_[rank];
    if (sender && sender->key == key) return false;
    if (!sender) sender = std::make_unique<Sender>();
    sender->key = key;
    sender->keys.key(key, shape_.protect, shape_.packets_per_key);
    sender->windows.resize(channels_.size());
    for (ReplayWindow& window : sender->windows) window.clear();
    return true;
}

DatagramFault DatagramReceiver::take(std::span<std::byte> bytes, DatagramSink& sink) {
    if (DatagramFault fault = datagram_fault(bytes, shape_.route, shape_.ranks, shape_.self, shape_.segment_bytes);
        fault != DatagramFault::none)
        return fault;
    DatagramHeader header;
    std::memcpy(&header, bytes.data(), sizeof header);
    Packet packet;
    packet.type = static_cast<PacketType>(header.kind & 0x0F);
    packet.channel = header.channel;
    packet.view = shape_.view;
    packet.sender = header.sender.get();
    packet.sequence = header.sequence.get();
    packet.body = header.body;
    const auto channel = std::find(channels_.begin(), channels_.end(), packet.channel);
    if (channel == channels_.end() || (packet.channel == datagram_channel_probe) != (packet.type == PacketType::probe))
        return DatagramFault::type;
    Sender* sender = senders_[packet.sender].get();
    if (!sender) return DatagramFault::no_key;
    ReplayWindow& window = sender->windows[static_cast<size_t>(channel - channels_.begin())];
    if (!window.fresh(packet.sequence)) return DatagramFault::replayed;
    const std::span payload = bytes.subspan(datagram_overhead_bytes);
    if (!sender->keys.open(packet.sequence, nonce_of(packet.channel, packet.sequence), bytes.first(sizeof header), payload,
                           bytes.subspan(sizeof header, datagram_tag_bytes)))
        return DatagramFault::tag;
    window.mark(packet.sequence);
    Buffer place;
    switch (sink.land(packet, payload.size(), &place)) {
        case Landing::place:
            GC_ASSERT(place.bytes == payload.size());
            if (!payload.empty()) std::memcpy(place.host, payload.data(), payload.size());
            packet.payload = place;
            break;
        case Landing::lease: packet.payload = {payload.data(), nullptr, payload.size()}; break;
        case Landing::later: return DatagramFault::no_room;
        case Landing::drop:
        case Landing::foreign: return DatagramFault::none;
    }
    sink.packet(packet);
    return DatagramFault::none;
}

}   // namespace gradcast
