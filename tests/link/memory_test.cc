// A link in use allocates nothing per packet.  Queues may still double a few times and keep their memory, so most windows of many packets
// must pass without an allocation.
#include <cstdlib>
#include <new>

#include "tests/link/fixture.h"
#include "transport/stream/stream.h"

namespace {
std::atomic<uint64_t> allocations{0}, allocated_bytes{0};
}
// Not inlined: otherwise the compiler sees free() paired with operator new and warns.
[[gnu::noinline]] void* operator new(size_t bytes) {
    allocations.fetch_add(1, std::memory_order_relaxed);
    allocated_bytes.fetch_add(bytes, std::memory_order_relaxed);
    if (void* memory = std::malloc(bytes)) return memory;
    std::abort();
}
[[gnu::noinline]] void* operator new[](size_t bytes) { return operator new(bytes); }
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace gradcast {
namespace {

constexpr uint32_t windows = 8, window_rounds = 100, burst = 8;

/// Rank 0 sends a burst of small and large packets, rank 1 answers each; the next burst starts after the last answer.
class PingPong : public Protocol {
public:
    PingPong(Rank self, bool datagrams) : self_(self), datagrams_(datagrams), memory_(300'000) { at_.reserve(windows + 1); }
    void on(std::span<const Event> events, Actions& actions) override {
        for (const Event& event : events) {
            const auto* received = event.is<Event::Received>();
            if (event.is<Event::Command>() || (received && self_ == 0 && ++answers_ % burst == 0)) {
                if (answers_ % (window_rounds * burst) == 0) at_.push_back(allocations.load());
                if (at_.size() == windows + 1) actions.completions.emplace_back();
                else
                    for (uint32_t i = 0; i < burst; ++i) send(actions, i % 4 ? 100 * i : datagrams_ ? 1432 : 100'000);
                actions.timers.push_back({1, actions.now_us + 100'000'000});
            }
            if (received && self_ == 1) send(actions, static_cast<uint32_t>(received->packet->payload.bytes));
        }
    }
    Landing land(const Packet&, uint64_t bytes, Buffer* place) override {
        if (bytes < 1000) return Landing::lease;
        *place = {memory_.data() + 100'000, nullptr, bytes};
        return Landing::place;
    }
    std::vector<uint64_t> at_;   // number of allocations at the start of each window

private:
    void send(Actions& actions, uint32_t bytes) {
        Send send;
        send.to.rank = 1 - self_;
        send.type = datagrams_ ? PacketType::parity : PacketType::mail;
        send.payload = {memory_.data(), nullptr, bytes};
        send.ticket = send.sequence = ++ticket_;
        actions.sends.push_back(send);
    }
    const Rank self_;
    const bool datagrams_;   // lo loses none if few are in flight
    std::vector<std::byte> memory_;
    uint64_t answers_ = 0, ticket_ = 0;
};

void steady_state(bool datagrams) {
    for (LinkKind kind : {LinkKind::uring_tcp, LinkKind::epoll_tcp}) {
        Node nodes[2];
        nodes[1].listen(1);
        std::vector<std::string> addresses = {"127.0.0.1:1", nodes[1].listener->address()};
        PingPong players[2] = {PingPong(0, datagrams), PingPong(1, datagrams)};
        for (Rank rank : {0u, 1u}) {
            LinkConfig config = test_config(kind, Protect::encrypt, rank, addresses);
            config.packets_per_key = packets_per_key_default;   // a new one allocates
            config.datagrams.interface = "lo", config.datagrams.group = "239.193.77.77:27777",
            config.datagrams.segment_bytes = datagrams ? 1432 : 0;
            ASSERT_TRUE(nodes[rank].open(config).ok());
            if (datagrams) nodes[rank].driver->attach_datagrams(1, &players[rank]);
            else nodes[rank].driver->attach(1, &players[rank]);
            nodes[rank].start();
        }
        nodes[0].driver->host().post(1, command_event(0));
        std::vector<Completion> completions;
        ASSERT_TRUE(nodes[0].driver->host().wait(&completions, clock_us() + 20'000'000).ok());
        for (Node& node : nodes) node.stop();
        const std::vector<uint64_t>& at = players[0].at_;
        ASSERT_EQ(at.size(), windows + 1);
        uint32_t quiet = 0;
        for (uint32_t i = 0; i < windows; ++i) quiet += at[i] == at[i + 1];
        EXPECT_GE(quiet, windows / 2) << link_name(kind);
        EXPECT_LT(at[windows] - at[windows / 2], 20u) << link_name(kind);
    }
}

/// Drops every packet.
struct Bin : ReceiverSink {
    bool known(uint16_t, uint32_t) override { return true; }
    Landing land(const Packet&, uint64_t, Buffer*) override { return Landing::drop; }
    void packet(const Packet&) override {}
    bool ack(uint64_t) override { return true; }
};

TEST(Memory, AStreamTakesWhatItUses) {
    for (const Protect protect : {Protect::auth, Protect::encrypt}) {
        const uint64_t before = allocated_bytes.load();
        InlinePool pool;
        Sender sender({.job = 1, .view = 1, .self = 0, .peer = 1, .ranks = 2, .segment_bytes = segment_bytes_stream, .protect = protect},
                      pool);
        Receiver receiver(
            {.job = 1, .view = 1, .self = 1, .peer = 0, .ranks = 2, .segment_bytes = segment_bytes_stream, .protect = protect});
        sender.restart(Key{}, 0);
        receiver.restart(Key{}, {});
        std::vector<std::byte> payload(segment_bytes_stream);
        Bin bin;
        uint64_t sent = 0;
        auto pass = [&](uint64_t bytes) {
            Send send;
            send.type = PacketType::mail;
            send.view = 1;
            send.payload = {payload.data(), nullptr, bytes};
            ASSERT_TRUE(sender.push(send, ticket_none));
            ++sent;
            for (std::span<iovec> out = sender.batch(0); !out.empty(); out = sender.batch(0)) {
                iovec in[2];
                const uint32_t count = receiver.space(in);
                ASSERT_GE(count, 1u);
                const uint64_t moved = std::min(in[0].iov_len, out[0].iov_len);
                std::memcpy(in[0].iov_base, out[0].iov_base, moved);
                sender.wrote(moved);
                receiver.received(moved);
                ASSERT_EQ(receiver.parse(bin), nullptr);
            }
            ASSERT_EQ(receiver.delivered(), sent);
        };
        for (int i = 0; i < 10; ++i) pass(2000);
        const uint64_t pools = 256 * inline_bytes_max;   // shared by all streams
        EXPECT_LT(allocated_bytes.load() - before, pools + payload.size() + (48 << 10));
        for (uint64_t bytes : {100'000, 262'144, 1, 50'000}) pass(bytes);
    }
}

TEST(Memory, SteadyStateAllocatesNothing) { steady_state(false); }
TEST(Memory, NorDoDatagrams) { steady_state(true); }

}   // namespace
}   // namespace gradcast
