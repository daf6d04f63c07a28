// A link that has been in use for a while allocates nothing, whatever goes through it.
#include <cstdlib>
#include <new>

#include "tests/link/fixture.h"

namespace {
std::atomic<uint64_t> allocations{0};
}
void* operator new(size_t bytes) {
    allocations.fetch_add(1, std::memory_order_relaxed);
    if (void* memory = std::malloc(bytes)) return memory;
    std::abort();
}
void* operator new[](size_t bytes) { return operator new(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace gradcast {
namespace {

constexpr uint32_t rounds_warm = 300, rounds = 600, burst = 8;

/// Rank 0 sends a burst of small and large packets, rank 1 answers each; the next burst starts when all answers are there.
class PingPong : public Protocol {
public:
    explicit PingPong(Rank self) : self_(self), memory_(300'000) {}
    void on(std::span<const Event> events, Actions& actions) override {
        for (const Event& event : events) {
            if (event.kind == Event::Kind::command || (event.kind == Event::Kind::packet && self_ == 0 && ++answers_ % burst == 0)) {
                if (answers_ == rounds_warm * burst) before_ = allocations.load();
                if (answers_ == rounds * burst) after_ = allocations.load(), actions.completions.emplace_back();
                else
                    for (uint32_t i = 0; i < burst; ++i) send(actions, i % 4 ? 100 * i : 100'000);
                actions.timers.push_back({1, actions.now_us + 100'000'000});
            }
            if (event.kind == Event::Kind::packet && self_ == 1) send(actions, static_cast<uint32_t>(event.packet->payload.bytes));
        }
    }
    Landing land(const Packet&, uint64_t bytes, Buffer* place) override {
        if (bytes < 1000) return Landing::lease;
        *place = {memory_.data() + 100'000, nullptr, bytes, 0};
        return Landing::place;
    }
    uint64_t before_ = 0, after_ = 0;

private:
    void send(Actions& actions, uint32_t bytes) {
        Send send;
        send.to.rank = 1 - self_, send.type = PacketType::mail, send.payload = {memory_.data(), nullptr, bytes, 0}, send.ticket = ++ticket_;
        actions.sends.push_back(send);
    }
    Rank self_;
    std::vector<std::byte> memory_;
    uint64_t answers_ = 0, ticket_ = 0;
};

TEST(Memory, SteadyStateAllocatesNothing) {
    for (LinkKind kind : {LinkKind::uring_tcp, LinkKind::epoll_tcp}) {
        Node nodes[2];
        nodes[1].listen(1);
        std::vector<std::string> addresses = {"127.0.0.1:1", nodes[1].listener->address()};
        PingPong players[2] = {PingPong(0), PingPong(1)};
        for (Rank rank : {0u, 1u}) {
            ASSERT_TRUE(nodes[rank].open(test_config(kind, Protect::encrypt, rank, addresses)).ok());
            nodes[rank].driver->attach(1, &players[rank]);
            nodes[rank].start();
        }
        Event go;
        go.kind = Event::Kind::command;
        nodes[0].driver->host().post(1, go);
        std::vector<Completion> completions;
        ASSERT_TRUE(nodes[0].driver->host().wait(&completions, clock_us() + 20'000'000).ok());
        for (Node& node : nodes) node.stop();
        EXPECT_GT(players[0].before_, 0u);
        EXPECT_EQ(players[0].after_ - players[0].before_, 0u) << link_name(kind);
    }
}

}   // namespace
}   // namespace gradcast
