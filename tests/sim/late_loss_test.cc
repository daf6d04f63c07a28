// Ranks of a replica that learn of a loss one after the other: what the passes of the first ones leave unfinished, nobody may take for
// whole.  The last one stops because the others have abandoned what it waits for, before it knows why.
#include <array>
#include <deque>
#include <optional>

#include "runtime/core/channel.h"
#include "tests/sim/lost_grids.h"
#include "transport/wire/packet.h"

namespace gradcast {
namespace {

constexpr uint32_t mark_probe = 1u << 30;   // algos/pipeline.cc
constexpr uint64_t late_us = 100'000;       // after the link

/// One channel of a rank that learns late that others are lost.
struct Late final : Protocol {
    Late(Protocol& protocol, bool edges, bool learns_late, uint32_t marked)
        : inner(protocol), of_edges(edges), late(learns_late), mark(marked) {}
    void on(std::span<const Event> events, Actions& actions) override {
        std::vector<Event> now;
        for (const Event& event : events) {
            const auto* expired = event.is<Event::TimerExpired>();
            const auto* sent = event.is<Event::Sent>();
            if (late && (event.is<Event::PeerLost>() || (sent && !sent->status.ok()))) {
                held.push_back(event);
                actions.timers.push_back({timer, actions.now_us + late_us});
            } else if (expired && expired->id == timer) {
                now.insert(now.end(), held.begin(), held.end());
                held.clear();
            } else {
                now.push_back(event);
            }
        }
        if (arrives && first_us == 0) first_us = actions.now_us;
        const size_t before = actions.completions.size();
        inner.on(now, actions);
        for (size_t i = before; i < actions.completions.size() && of_edges && !held.empty(); ++i)
            stopped += actions.completions[i].status.code == Code::cancelled;
    }
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override {
        if (of_edges && packet.type == PacketType::edge && (body_of<EdgeBody>(packet).block.get() & mark) != 0) arrives = true;
        return inner.land(packet, bytes, place);
    }
    static constexpr uint64_t timer = ~uint64_t{0} - 17;
    Protocol& inner;
    const bool of_edges, late;
    const uint32_t mark;
    std::vector<Event> held;
    uint32_t stopped = 0;    // transfers that others have abandoned, while the loss is not known here
    bool arrives = false;    // a packet of a block with the mark
    uint64_t first_us = 0;   // when the first one did
};

/// The grid, the rank of replica 0 that dies, and the one that learns of it last.
struct LateCase {
    LostGrid grid;
    Rank dead, last;
};
/// Kills a rank at several times around the first packet with this mark; returns how often the last rank was stopped by the others.
uint32_t expect_the_wanted(const LateCase& each, uint32_t mark) {
    const auto run = [&](bool late, std::optional<uint64_t> kill_us, uint64_t* first_us) -> uint32_t {
        StagesJob job;
        set(job, {"coded-rs", "m = 1\ns = 1\n", 2}, each.grid);
        std::deque<Late> protocols;
        const Late* edges = nullptr;
        job.wrap = [&](Rank rank, uint16_t channel, Protocol* protocol) -> Protocol* {
            if (rank != each.last) return protocol;
            const bool of_edges = channel == edge_channel;
            Late& made = protocols.emplace_back(*protocol, of_edges, late, mark);
            if (of_edges) edges = &made;
            return &made;
        };
        job.before = [&](Simulator& sim) {
            if (kill_us) sim.kill(each.dead, *kill_us);
        };
        const Status status = job.run();
        EXPECT_TRUE(status.ok()) << status.what;
        if (!status.ok()) return 0;
        expect_wanted(job, kill_us ? std::vector{each.dead} : std::vector<Rank>{});
        if (first_us) *first_us = edges->first_us;
        const uint32_t stopped = edges->stopped;
        job.simulator.reset();   // before the protocols
        return stopped;
    };
    uint64_t first_us = 0;
    (void)run(false, {}, &first_us);
    EXPECT_GT(first_us, 0u);
    uint32_t stopped = 0;
    for (const uint64_t before_us : {20u, 100u, 1'000u, 2'500u}) {
        SCOPED_TRACE(fmt::format("{}, rank {} killed {} us before a packet at {} us", each.grid.text(), each.dead, before_us, first_us));
        stopped += run(true, first_us - std::min<uint64_t>(before_us, first_us - 1), nullptr) > 0;
    }
    return stopped;
}

TEST(LateLoss, ScalesOfAReplicaThatStoppedAreNotTaken) {
    for (const LateCase& each : {LateCase{{.stages = 3}, 0, 2}, LateCase{{.stages = 4}, 1, 3}})
        EXPECT_GT(expect_the_wanted(each, mark_probe), 0u) << each.grid.text();
}

}   // namespace
}   // namespace gradcast
