// Views are opened and closed with packets in flight, over drivers and in the simulator.  A view's memory is unmapped when it is closed, so
// a later access by the link ends the test.
#include <sys/mman.h>

#include "tests/link/fixture.h"
#include "tests/link/proxy.h"
#include "transport/sim/sim.h"

namespace gradcast {
namespace {

constexpr uint16_t stream_channel = 3, datagram_channel = 5;
constexpr uint32_t packets = 20, packet_bytes = 60'000;

struct Memory {
    explicit Memory(size_t size) : bytes(size) {
        base = static_cast<std::byte*>(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    }
    ~Memory() { ::munmap(base, bytes); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    std::byte* base;
    size_t bytes;
};

/// On a command sends its packets to all other ranks, and datagrams again at every timer.  Completes when it has all packets of all ranks.
class Shouter final : public Protocol {
public:
    Shouter(Rank self, uint32_t ranks, uint32_t view, bool datagrams)
        : ranks_(ranks), view_(view), datagrams_(datagrams), bits_(ranks_but(self, ranks)), memory_(bytes() * packets * (ranks + 1)) {
        have_.resize(ranks * packets);
        for (uint32_t i = 0; i < packets; ++i)
            for (uint32_t at = 0; at < bytes(); ++at) place(ranks, i).host[at] = content(view, self, i, at);
    }
    void on(std::span<const Event> events, Actions& actions) override {
        for (const Event& event : events) {
            if (event.is<Event::Command>() || (event.is<Event::TimerExpired>() && datagrams_)) {
                shout(actions);
                if (datagrams_) actions.timers.push_back({1, actions.now_us + 20'000});
            }
            if (const auto* received = event.is<Event::Received>()) take(*received->packet);
        }
        if (remaining_ != 0 || completed_) return;
        completed_ = true;
        actions.completions.emplace_back();
    }
    Landing land(const Packet& packet, uint64_t size, Buffer* at) override {
        EXPECT_EQ(packet.view, view_);
        EXPECT_EQ(size, bytes());
        const auto index = static_cast<uint32_t>(body_of<MailBody>(packet).tag.get());
        if (have_[packet.sender * packets + index]) return Landing::drop;
        *at = place(packet.sender, index);
        return Landing::place;
    }

private:
    uint32_t bytes() const { return datagrams_ ? datagram_bytes : packet_bytes; }
    Buffer place(Rank rank, uint32_t index) const {
        return {memory_.base + (uint64_t{rank} * packets + index) * bytes(), nullptr, bytes()};
    }
    void shout(Actions& actions) {
        for (uint32_t i = 0; i < packets; ++i) {
            MailBody body{};
            body.tag.set(i);
            Send send;
            send.to.bits = bits_.data();
            send.type = datagrams_ ? PacketType::words : PacketType::mail;
            send.body = body_bytes(body);
            send.payload = place(ranks_, i);
            send.sequence = ++sequence_;
            actions.sends.push_back(send);
        }
    }
    void take(const Packet& packet) {
        const auto index = static_cast<uint32_t>(body_of<MailBody>(packet).tag.get());
        if (have_[packet.sender * packets + index]) return;
        have_[packet.sender * packets + index] = true;
        --remaining_;
        for (uint32_t at = 0; at < bytes(); at += 97) ASSERT_EQ(packet.payload.host[at], content(view_, packet.sender, index, at));
    }

    const uint32_t ranks_, view_;
    const bool datagrams_;
    const std::vector<uint64_t> bits_;
    Memory memory_;
    std::vector<bool> have_;
    uint64_t sequence_ = 0;
    uint32_t remaining_ = (ranks_ - 1) * packets;
    bool completed_ = false;
};

/// Every third view runs to its completion; the others end at once, with packets in flight.
Status change_views(Host& host, Rank self, uint32_t ranks, bool datagrams, uint32_t views) {
    for (uint32_t number = 1; number <= views; ++number) {
        auto stream = std::make_unique<Shouter>(self, ranks, number, false);
        auto datagram = datagrams ? std::make_unique<Shouter>(self, ranks, number, true) : nullptr;
        std::vector<Attachment> attachments{{stream_channel, stream.get(), false}};
        if (datagrams) attachments.push_back({datagram_channel, datagram.get(), true});
        host.open_view(number, attachments);
        const Event go = command_event(0);
        for (const Attachment& each : attachments) host.post(each.channel, go);
        std::vector<Completion> completions;
        // A rank that has closed a view does not repeat its datagrams; ranks may close it early, so only streams are awaited.
        const bool all = number % 3 == 0;
        const uint64_t until_us = host.now_us() + link_wait_us;
        for (bool completed = false; all && !completed;) {
            completions.clear();
            GC_TRY(host.wait(&completions, until_us));
            for (const Completion& each : completions) completed |= each.channel == stream_channel;
        }
        GC_TRY(host.close_view(host.now_us() + link_wait_us));
    }
    return {};
}

class Views : public testing::TestWithParam<LinkKind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, Views, testing::Values(LinkKind::uring_tcp, LinkKind::epoll_tcp),
                         [](const auto& param) { return param.param == LinkKind::uring_tcp ? "uring" : "epoll"; });

void on_drivers(LinkKind kind, bool datagrams) {
    constexpr uint32_t ranks = 3;
    std::vector<Node> nodes(ranks);
    std::vector<std::string> addresses;
    for (Rank r = 0; r < ranks; ++r) nodes[r].listen(r), addresses.push_back(nodes[r].listener->address());
    JobId group{};
    const uint32_t id = static_cast<uint32_t>(getpid());
    std::memcpy(group.data(), &id, sizeof id);
    for (Rank r = 0; r < ranks; ++r) {
        LinkConfig config = test_config(kind, Protect::auth, r, addresses);
        if (datagrams)
            config.datagrams = {.interface = "lo",
                                .group = multicast_group(group, 77, false, static_cast<uint16_t>(20000 + id * 31 % 20000)),
                                .segment_bytes = datagram_bytes};
        const Status opened = nodes[r].open(config);
        ASSERT_TRUE(opened.ok()) << opened.what;
        nodes[r].start();
    }
    std::vector<std::thread> trainers;
    for (Rank r = 0; r < ranks; ++r)
        trainers.emplace_back([&, r] {
            const Status status = change_views(nodes[r].driver->host(), r, ranks, datagrams, 12);
            EXPECT_TRUE(status.ok()) << "rank " << r << ": " << status.what;
        });
    for (std::thread& each : trainers) each.join();
    for (Node& node : nodes) node.stop();
    for (Node& node : nodes) EXPECT_EQ(node.driver->counters().reconnects.load(), 0u);
}

TEST_P(Views, StreamsSurviveThem) { on_drivers(GetParam(), false); }
TEST_P(Views, DatagramsHaveTheirOwnKeys) { on_drivers(GetParam(), true); }

TEST(Views, InTheSimulatorFromSeeds) {
    for (uint64_t seed = 1; seed <= 6; ++seed) {
        SCOPED_TRACE(seed);
        SimConfig config;
        config.seed = seed;
        config.ranks = 2 + static_cast<uint32_t>(seed % 4);
        config.break_per_packet = seed % 2 ? 0.01 : 0;
        config.loss = 0.02;
        config.duplicate = 0.02;
        auto sim = Simulator::create(config);
        for (Rank r = 0; r < config.ranks; ++r)
            sim->trainer(r, [&, r](Host& host) { return change_views(host, r, config.ranks, seed % 3 != 0, 9); });
        const Status status = sim->run();
        ASSERT_TRUE(status.ok()) << status.what;
    }
}

/// Belongs to no view.  At each command sends all others the number of its commands so far; completes when it has as many words, in
/// order, from each that is not lost.
class Standing final : public Protocol {
public:
    Standing(Rank self, uint32_t ranks) : bits_(ranks_but(self, ranks)), received_(ranks), lost_(ranks) { lost_[self] = true; }
    void on(std::span<const Event> events, Actions& actions) override {
        for (const Event& event : events) {
            if (event.is<Event::Command>()) {
                MailBody body{};
                body.tag.set(++commands_);
                Send send;
                send.to.bits = bits_.data();
                send.type = PacketType::mail;
                send.body = body_bytes(body);
                actions.sends.push_back(send);
            }
            if (const auto* received = event.is<Event::Received>()) {
                const uint64_t number = body_of<MailBody>(*received->packet).tag.get();
                EXPECT_EQ(number, ++received_[received->packet->sender]);
            }
            if (const auto* lost = event.is<Event::PeerLost>()) lost_[lost->rank] = true;
        }
        for (; answered_ < commands_; ++answered_) {
            for (Rank rank = 0; rank < received_.size(); ++rank)
                if (!lost_[rank] && received_[rank] <= answered_) return;
            actions.completions.emplace_back();
        }
    }

private:
    const std::vector<uint64_t> bits_;
    std::vector<uint64_t> received_;   // by rank
    std::vector<bool> lost_;
    uint64_t commands_ = 0, answered_ = 0;
};

constexpr uint16_t standing_channel = 9;

/// A word on the standing channel with a view open and one with none, each view with packets of its own under way.
Status stand(Host& host, Rank self, uint32_t ranks, uint32_t views) {
    auto word = [&]() -> Status {
        host.post(standing_channel, command_event(0));
        std::vector<Completion> completions;
        for (const uint64_t until_us = host.now_us() + link_wait_us;;) {
            completions.clear();
            GC_TRY(host.wait(&completions, until_us));
            for (const Completion& each : completions)
                if (each.channel == standing_channel) return {};
        }
    };
    for (uint32_t number = 1; number <= views; ++number) {
        Shouter shouter(self, ranks, number, false);
        const Attachment attachment{stream_channel, &shouter, false};
        host.open_view(number, {&attachment, 1});
        host.post(stream_channel, command_event(0));
        GC_TRY(word());
        GC_TRY(host.close_view(host.now_us() + link_wait_us));
        GC_TRY(word());
    }
    return {};
}

TEST(Views, AStandingProtocolOutlivesThemInTheSimulator) {
    for (uint64_t seed = 1; seed <= 6; ++seed) {
        SCOPED_TRACE(seed);
        SimConfig config;
        config.seed = seed;
        config.ranks = 3;
        config.break_per_packet = seed % 2 ? 0.01 : 0;
        config.lost_after_us = 100'000;
        auto sim = Simulator::create(config);
        std::vector<std::unique_ptr<Standing>> standing;
        for (Rank r = 0; r < config.ranks; ++r) {
            sim->attach(r, standing_channel, standing.emplace_back(std::make_unique<Standing>(r, config.ranks)).get());
            sim->trainer(r, [&, r](Host& host) { return stand(host, r, config.ranks, 40); });
        }
        sim->kill(2, 40'000);   // the others learn of it, with a view open or not
        const Status status = sim->run();
        ASSERT_TRUE(status.ok()) << status.what;
        for (Rank r = 0; r < 2; ++r) EXPECT_TRUE(sim->result(r).ok()) << sim->result(r).what;
    }
}

TEST_P(Views, AStandingProtocolOutlivesThem) {
    constexpr uint32_t ranks = 3;
    std::vector<std::unique_ptr<Standing>> standing;
    std::vector<Node> nodes(ranks);
    std::vector<std::string> addresses;
    for (Rank r = 0; r < ranks; ++r) nodes[r].listen(r), addresses.push_back(nodes[r].listener->address());
    for (Rank r = 0; r < ranks; ++r) {
        LinkConfig config = test_config(GetParam(), Protect::auth, r, addresses);
        config.view = 0;
        config.deadline_us = 1'000'000;
        ASSERT_TRUE(nodes[r].open(config).ok());
        nodes[r].driver->attach(standing_channel, standing.emplace_back(std::make_unique<Standing>(r, ranks)).get());
        nodes[r].start();
    }
    std::vector<std::thread> trainers;
    for (Rank r = 0; r < ranks; ++r)
        trainers.emplace_back([&, r] {
            // The last one ends early, and the others learn of it.
            const Status status = stand(nodes[r].driver->host(), r, ranks, r == 2 ? 4 : 12);
            EXPECT_TRUE(status.ok()) << "rank " << r << ": " << status.what;
            if (r == 2) nodes[r].stop();
        });
    for (std::thread& each : trainers) each.join();
    for (Node& node : nodes) node.stop();
    for (Node& node : nodes) EXPECT_EQ(node.driver->counters().reconnects.load(), 0u);
}

// As one that is passed over.
TEST_P(Views, OneWithoutProtocolsIsClosedAtOnce) {
    Node node;
    node.listen(0);
    LinkConfig config = test_config(GetParam(), Protect::auth, 0, {node.listener->address()});
    config.deadline_us = 100'000;
    ASSERT_TRUE(node.open(config).ok());
    node.start();
    Host& host = node.driver->host();
    for (const uint32_t number : {3u, 7u}) {
        host.open_view(number, {});
        const Status status = host.close_view(host.now_us() + link_wait_us);
        EXPECT_TRUE(status.ok()) << status.what;
    }
    // And leaves nothing to wait for: a network thread that polls takes all of this time.
    constexpr uint64_t idle_us = 400'000;
    auto used_us = [] {
        timespec used;
        ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
        return static_cast<uint64_t>(used.tv_sec) * 1'000'000 + static_cast<uint64_t>(used.tv_nsec) / 1000;
    };
    const uint64_t before_us = used_us();
    std::this_thread::sleep_for(std::chrono::microseconds(idle_us));
    EXPECT_LT(used_us() - before_us, idle_us / 4);
}

// A peer that is stopped or dead in the middle of a payload holds no view open.
TEST_P(Views, OneIsClosedInTheMiddleOfAPayload) {
    for (const bool dies : {false, true}) {
        SCOPED_TRACE(dies ? "dies" : "stops");
        constexpr uint64_t deadline_us = 4'000'000, middle = packet_bytes * 7 / 2;
        std::vector<Node> nodes(2);
        for (Rank r = 0; r < 2; ++r) nodes[r].listen(r);
        Proxy proxy(nodes[1].listener->address(), [dies](uint64_t connection) {
            if (connection > 0) return Harm{.hold_after = 0};   // somebody still listens, as systemd for a daemon
            return dies ? Harm{.cut_after = middle} : Harm{.hold_after = middle};
        });
        for (Rank r = 0; r < 2; ++r) {
            LinkConfig config = test_config(GetParam(), Protect::auth, r, {nodes[0].listener->address(), proxy.address()});
            config.deadline_us = deadline_us;
            ASSERT_TRUE(nodes[r].open(config).ok());
            nodes[r].start();
        }
        Shouter sender(1, 2, 1, false), receiver(0, 2, 1, false);
        const Attachment sends{stream_channel, &sender, false}, receives{stream_channel, &receiver, false};
        const Event go = command_event(0);
        nodes[1].driver->host().open_view(1, {&sends, 1});
        nodes[1].driver->host().post(stream_channel, go);
        Host& host = nodes[0].driver->host();
        host.open_view(1, {&receives, 1});
        const uint64_t begin_us = clock_us();
        while (proxy.held() == 0 && clock_us() - begin_us < link_wait_us) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        ASSERT_GT(proxy.held(), 0u);
        const uint64_t closing_us = clock_us();
        const Status status = host.close_view(closing_us + link_wait_us);
        EXPECT_TRUE(status.ok()) << status.what;
        EXPECT_LT(clock_us() - closing_us, deadline_us / 2);
        for (Node& node : nodes) node.stop();
    }
}

// An acknowledgement of the previous view must not reach a protocol of this one.
TEST(Views, TicketsAndTimersOfAClosedViewAreForgotten) {
    struct Late final : Protocol {
        void on(std::span<const Event> events, Actions& actions) override {
            for (const Event& event : events) {
                completed += event.is<Event::Sent>() || event.is<Event::TimerExpired>();
                if (!event.is<Event::Command>()) continue;
                actions.timers.push_back({7, actions.now_us + 10'000});
                Send send;
                send.to.rank = 1 - self;
                send.type = PacketType::mail;
                send.ticket = 9;
                send.payload = {memory.data(), nullptr, memory.size()};
                actions.sends.push_back(send);
                actions.completions.emplace_back();
            }
        }
        Landing land(const Packet&, uint64_t, Buffer*) override { return Landing::drop; }
        Rank self = 0;
        int completed = 0;
        std::vector<std::byte> memory = std::vector<std::byte>(packet_bytes);
    };
    SimConfig config;
    auto sim = Simulator::create(config);
    for (Rank r = 0; r < 2; ++r)
        sim->trainer(r, [r](Host& host) -> Status {
            std::vector<Completion> completions;
            Late first, second;
            first.self = second.self = r;
            const Event go = command_event(0);
            const Attachment one{stream_channel, &first, false}, two{stream_channel, &second, false};
            host.open_view(1, {&one, 1});
            host.post(stream_channel, go);
            GC_TRY(host.wait(&completions, host.now_us() + 1'000'000));
            GC_TRY(host.close_view(host.now_us() + 1'000'000));
            host.post(stream_channel, go);   // no view is open
            host.open_view(2, {&two, 1});
            completions.clear();
            EXPECT_EQ(host.wait(&completions, host.now_us() + 100'000).code, Code::deadline);
            EXPECT_EQ(second.completed, 0);
            return host.close_view(host.now_us() + 1'000'000);
        });
    const Status status = sim->run();
    EXPECT_TRUE(status.ok()) << status.what;
}

}   // namespace
}   // namespace gradcast
