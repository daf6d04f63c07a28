// DatagramReceiver without sockets: what it accepts, drops and counts.
#include "transport/datagram/datagram.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/link/fixture.h"

namespace gradcast {
namespace {

constexpr uint32_t route = 77;

struct CountingSink : DatagramSink {
    Landing landing = Landing::lease;
    std::vector<std::byte> memory = std::vector<std::byte>(datagram_bytes);
    uint64_t packets = 0, asked = 0;
    Packet last;
    Landing land(const Packet&, uint64_t bytes, Buffer* place) override {
        ++asked;
        *place = {memory.data(), nullptr, bytes};
        return landing;
    }
    void packet(const Packet& packet) override {
        ++packets;
        last = packet;
    }
};

DatagramShape shape_of(Rank self, Protect protect, uint64_t packets_per_key = packets_per_key_default) {
    DatagramShape shape;
    shape.route = route;
    shape.view = 3;
    shape.ranks = 3;
    shape.segment_bytes = datagram_bytes;
    shape.self = self;
    shape.protect = protect;
    shape.packets_per_key = packets_per_key;
    return shape;
}

struct DatagramPair {
    explicit DatagramPair(Protect protect, uint64_t packets_per_key = packets_per_key_default)
        : sealer(shape_of(1, protect, packets_per_key)), receiver(shape_of(0, protect, packets_per_key)) {
        receiver.attach(5);
    }
    std::vector<std::byte> sealed(uint64_t sequence, uint32_t bytes, uint16_t channel = 5, PacketType type = PacketType::parity) {
        std::vector<std::byte> payload(bytes), out(bytes + datagram_overhead_bytes);
        fill(payload, 1, 1, sequence);
        Send send;
        send.type = type;
        send.channel = channel;
        send.sequence = sequence;
        send.payload = {payload.data(), nullptr, bytes};
        std::byte* at = out.data() + datagram_overhead_bytes;
        std::copy(payload.begin(), payload.end(), at);
        sealer.seal(send, out.data(), at);
        return out;
    }
    DatagramFault take(std::vector<std::byte> bytes) { return receiver.take(bytes, sink); }
    DatagramSealer sealer;
    DatagramReceiver receiver;
    CountingSink sink;
};

TEST(DatagramReceiver, TakesWhatIsSealedAndDropsWhatIsChanged) {
    for (Protect protect : {Protect::auth, Protect::encrypt}) {
        DatagramPair pair(protect);
        EXPECT_EQ(pair.take(pair.sealed(1, 100)), DatagramFault::no_key);
        EXPECT_TRUE(pair.receiver.key(1, pair.sealer.key()));
        for (uint32_t bytes : {0u, 1u, 100u, datagram_bytes}) {
            const uint64_t sequence = 10 + bytes;
            const std::vector<std::byte> good = pair.sealed(sequence, bytes);
            // A changed byte in any field is reported as that field's fault, the datagram is dropped, and the genuine one is still
            // accepted.
            for (size_t at = 0; at < good.size(); at += at < 64 ? 1 : 37) {
                std::vector<std::byte> bad = good;
                bad[at] ^= std::byte{0x41};
                const DatagramFault fault = pair.take(bad);
                EXPECT_NE(fault, DatagramFault::none) << at;
                if (at == 0) {
                    EXPECT_EQ(fault, DatagramFault::magic);
                }
                if (at == 1) {
                    EXPECT_EQ(fault, DatagramFault::type);
                }
                if (at == 2 || at == 3) {
                    EXPECT_EQ(fault, DatagramFault::sender);
                }
                if (at == 4 || at == 5) {
                    EXPECT_EQ(fault, DatagramFault::route);
                }
                if (at >= 6) {
                    EXPECT_EQ(fault, DatagramFault::tag) << at;
                }
            }
            EXPECT_EQ(pair.sink.asked, pair.sink.packets);   // land() is not called for forged datagrams
            EXPECT_EQ(pair.take(good), DatagramFault::none);
            EXPECT_EQ(pair.take(good), DatagramFault::replayed);
            ASSERT_EQ(pair.sink.last.payload.bytes, bytes);
            EXPECT_EQ(pair.sink.last.sequence, sequence);
            EXPECT_EQ(pair.sink.last.sender, 1u);
            EXPECT_EQ(pair.sink.last.view, 3u);
        }
        EXPECT_EQ(pair.sink.packets, 4u);
    }
}

// Each epoch of packets has a key of its own; they come in any order, with losses, and forged ones of any epoch between them.
TEST(DatagramReceiver, KeysAreReplacedAsPacketsPass) {
    for (Protect protect : {Protect::auth, Protect::encrypt}) {
        DatagramPair pair(protect, 10);
        pair.receiver.attach(6);
        pair.receiver.key(1, pair.sealer.key());
        DatagramReceiver stays(shape_of(0, protect));
        stays.attach(5);
        stays.key(1, pair.sealer.key());
        uint64_t random = 3, taken = 0, others = 0;
        for (uint64_t first = 1; first < 300; first += 15) {
            std::vector<std::pair<uint64_t, std::vector<std::byte>>> some;
            for (uint64_t i = first; i < first + 15; ++i) some.emplace_back(i, pair.sealed(i, 100));
            some.emplace_back(0, pair.sealed(first / 15 + 1, 50, 6));   // another channel is in another epoch
            for (size_t i = some.size(); i > 1; --i) std::swap(some[i - 1], some[splitmix64(++random) % i]);
            for (const auto& [sequence, bytes] : some) {
                std::vector<std::byte> forged = bytes;
                DatagramHeader header;
                std::memcpy(&header, forged.data(), sizeof header);
                header.sequence.set(splitmix64(++random) >> 16);
                std::memcpy(forged.data(), &header, sizeof header);
                if (const DatagramFault fault = pair.take(forged); fault != DatagramFault::replayed) {
                    EXPECT_EQ(fault, DatagramFault::tag);
                }
                if (splitmix64(++random) % 8 == 0) continue;   // lost
                EXPECT_EQ(pair.take(bytes), DatagramFault::none) << sequence;
                EXPECT_EQ(pair.take(bytes), DatagramFault::replayed);
                ++taken;
                if (sequence == 0) continue;
                std::vector<std::byte> again = bytes;
                CountingSink sink;
                const DatagramFault fault = stays.take(again, sink);
                EXPECT_EQ(fault, sequence < 10 ? DatagramFault::none : DatagramFault::tag) << sequence;
                ++others;
            }
        }
        EXPECT_EQ(pair.sink.packets, taken);
        EXPECT_GT(others, 200u);
    }
}

TEST(DatagramReceiver, NamesEveryFault) {
    DatagramPair pair(Protect::auth);
    pair.receiver.key(1, pair.sealer.key());
    std::vector<std::byte> good = pair.sealed(1, 100);
    EXPECT_EQ(pair.take({}), DatagramFault::truncated);
    for (size_t bytes = 1; bytes < datagram_overhead_bytes; ++bytes)
        EXPECT_EQ(pair.take({good.begin(), good.begin() + static_cast<ptrdiff_t>(bytes)}), DatagramFault::truncated);
    EXPECT_EQ(pair.take({good.begin(), good.end() - 1}), DatagramFault::tag);
    std::vector<std::byte> longer(datagram_bytes + datagram_overhead_bytes + 1, std::byte{datagram_magic});
    EXPECT_EQ(pair.take(longer), DatagramFault::truncated);
    DatagramHeader header;
    auto with = [&](auto change) {
        std::vector<std::byte> bytes = good;
        std::memcpy(&header, bytes.data(), sizeof header);
        change();
        std::memcpy(bytes.data(), &header, sizeof header);
        return pair.take(bytes);
    };
    EXPECT_EQ(with([&] { header.sender.set(0); }), DatagramFault::own);
    EXPECT_EQ(with([&] { header.sender.set(2); }), DatagramFault::no_key);
    EXPECT_EQ(with([&] { header.sender.set(3); }), DatagramFault::sender);
    for (PacketType type :
         {PacketType{}, PacketType::ack, PacketType::key, PacketType::job, PacketType::mail, PacketType::probe, PacketType{15}})
        EXPECT_EQ(with([&] { header.kind = static_cast<uint8_t>(datagram_magic | static_cast<uint8_t>(type)); }), DatagramFault::type)
            << int(type);
    EXPECT_EQ(pair.take(pair.sealed(1, 100, 6)), DatagramFault::type);   // an unknown channel
    EXPECT_EQ(pair.take(pair.sealed(1, 100, datagram_channel_probe)), DatagramFault::type);
    EXPECT_EQ(pair.take(pair.sealed(2, 3, 5, PacketType::words)), DatagramFault::truncated);
    EXPECT_EQ(pair.take(pair.sealed(2, 0, 5, PacketType::record)), DatagramFault::truncated);
    DatagramPair other(Protect::auth);   // another key
    EXPECT_EQ(pair.take(other.sealed(1, 100)), DatagramFault::tag);
    pair.sink.landing = Landing::later;
    EXPECT_EQ(pair.take(pair.sealed(3, 100)), DatagramFault::no_room);
    pair.sink.landing = Landing::drop;
    EXPECT_EQ(pair.take(pair.sealed(4, 100)), DatagramFault::none);
    EXPECT_EQ(pair.sink.packets, 0u);
    pair.sink.landing = Landing::place;
    EXPECT_EQ(pair.take(good), DatagramFault::none);
    EXPECT_EQ(pair.sink.packets, 1u);
    for (size_t i = 0; i < 100; ++i) EXPECT_EQ(pair.sink.memory[i], content(1, 1, 1, i));
}

TEST(DatagramReceiver, AKeyToldAgainKeepsWhatWasSeen) {
    DatagramPair pair(Protect::auth);
    EXPECT_TRUE(pair.receiver.key(1, pair.sealer.key()));
    EXPECT_EQ(pair.take(pair.sealed(9, 10)), DatagramFault::none);
    EXPECT_FALSE(pair.receiver.key(1, pair.sealer.key()));
    EXPECT_EQ(pair.take(pair.sealed(9, 10)), DatagramFault::replayed);
    DatagramPair restarted(Protect::auth);
    EXPECT_TRUE(pair.receiver.key(1, restarted.sealer.key()));
    EXPECT_EQ(pair.take(restarted.sealed(9, 10)), DatagramFault::none);
    EXPECT_EQ(pair.take(pair.sealed(10, 10)), DatagramFault::tag);
    pair.receiver.forget(1);
    EXPECT_EQ(pair.take(restarted.sealed(10, 10)), DatagramFault::no_key);
}

TEST(DatagramReceiver, WithoutProtectionTheTagIsZero) {
    DatagramPair pair(Protect::none);
    pair.receiver.key(1, pair.sealer.key());
    std::vector<std::byte> bytes = pair.sealed(1, 10);
    bytes[sizeof(DatagramHeader)] = std::byte{1};
    EXPECT_EQ(pair.take(bytes), DatagramFault::tag);
    bytes[sizeof(DatagramHeader)] = std::byte{0};
    EXPECT_EQ(pair.take(bytes), DatagramFault::none);
}

// Compared with a set that holds all sequence numbers.
TEST(ReplayWindow, TakesEachOnceAndNothingTooOld) {
    for (uint64_t seed = 1; seed <= 40; ++seed) {
        ReplayWindow window;
        std::set<uint64_t> seen;
        uint64_t random = splitmix64(seed), highest = 0;
        for (int i = 0; i < 3000; ++i) {
            random = splitmix64(random);
            static constexpr uint64_t spans[] = {3, 64, 1000, 65535, 65537, 200'000};
            const uint64_t span = spans[random % 6];
            uint64_t sequence =
                random >> 8 & 1 ? highest + splitmix64(random) % span : highest - std::min(highest, splitmix64(random) % span);
            const bool expected = sequence > 0 && sequence + ReplayWindow::width > highest && !seen.contains(sequence);
            ASSERT_EQ(window.fresh(sequence), expected) << "seed " << seed << ", " << sequence << " after " << highest;
            if (!expected) continue;
            window.mark(sequence);
            seen.insert(sequence);
            highest = std::max(highest, sequence);
        }
    }
    ReplayWindow window;
    EXPECT_FALSE(window.fresh(0));
    window.mark((uint64_t{1} << 48) - 1);
    EXPECT_FALSE(window.fresh(1));
    window.clear();
    EXPECT_TRUE(window.fresh(1));
}

TEST(Datagram, GroupsAreOfTheirFamilyAndTheViews) {
    std::set<std::string> groups;
    for (uint32_t view = 1; view <= 100; ++view) {
        JobId job{};
        job[0] = static_cast<uint8_t>(view);
        const std::string v4 = multicast_group(job, view, false, 4712), v6 = multicast_group(job, view, true, 4712);
        int a, b, c;
        ASSERT_EQ(std::sscanf(v4.c_str(), "239.%d.%d.%d:4712", &a, &b, &c), 3) << v4;
        EXPECT_TRUE(a >= 192 && a <= 195) << v4;
        EXPECT_EQ(v6.rfind("[ff15::", 0), 0u) << v6;
        EXPECT_EQ(v4, multicast_group(job, view, false, 4712));
        groups.insert(v4), groups.insert(v6);
    }
    EXPECT_GE(groups.size(), 198u);   // 2^18 groups: two may collide
}

}   // namespace
}   // namespace gradcast
