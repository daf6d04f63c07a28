// Daemons on the simulator for tests of Membership.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "runtime/mesh/membership.h"
#include "transport/sim/sim.h"

namespace gradcast::membership_test {
constexpr uint64_t second = 1'000'000;

inline std::string name_of(uint32_t i) { return std::string(1, static_cast<char>('a' + i % 26)) + (i < 26 ? "" : std::to_string(i / 26)); }
inline Identity identity_of(uint32_t i, uint64_t incarnation = 1) {
    Identity identity{name_of(i), {}, incarnation << 32};
    identity.uuid[0] = static_cast<uint8_t>(i + 1);
    return identity;
}
inline MembershipConfig config_of(uint32_t self, uint32_t n, size_t past_jobs_max = 1024) {
    MembershipConfig config{.self = self, .names = {}, .identity = identity_of(self), .version = "test"};
    for (uint32_t i = 0; i < n; ++i) config.names.push_back(name_of(i));
    config.past_jobs_max = past_jobs_max;
    return config;
}

struct Seen {   // of one job at one daemon
    uint32_t open = 0, start = 0, abort = 0, close = 0, submitted = 0;
    Status abort_status, submitted_status;
    Rank self = 99;
    uint64_t deadline_us = 0;   // D, of start
    uint64_t submitted_us = 0, closed_us = 0;
    std::string warnings, note;   // note: of start
    bool ended_elsewhere = false;
    std::vector<uint64_t> incarnations, opened_us;   // of its runs
    std::vector<uint64_t> started;                   // incarnations likewise
};

/// One daemon: does what notices ask, after the times below, on the simulator's trainer.
struct Node final : Protocol {
    Node(uint32_t index, uint32_t nodes, size_t past_jobs_max)
        : self(index), n(nodes), membership(config_of(index, nodes, past_jobs_max)) {}
    const uint32_t self, n;
    Membership membership;
    uint64_t open_us = 50'000, run_us = 3 * second, end_us = 60 * second;
    bool done = false, leaves = false, rejoins = false;   // how its runs end
    bool trains = false;                                  // where it joins, it becomes a member at once
    uint32_t opens_max = 1;                               // of a job
    uint32_t invites_lost = 0;                            // so many INVITEs do not come
    std::vector<std::string> orders;                      // to be drained, or not any more
    Status open_status;
    ComputesWith with = {.kernel_set = "k", .data_digest = "d", .start_digest = "", .inventory = ""};
    uint64_t needs_us = 0;   // as D
    std::multimap<uint64_t, std::function<void()>> agenda;
    std::map<JobId, Seen> seen;
    Host* host = nullptr;

    void submit_at(uint64_t at_us, JobId id, std::vector<uint32_t> members, uint64_t deadline_us = 4 * second, std::string text = "x") {
        agenda.emplace(at_us, [this, id, members, deadline_us, text] {
            auto plan = std::make_shared<JobPlan>();
            plan->id = id;
            plan->name = "job";
            plan->text = text;
            plan->deadline_us = deadline_us;
            for (uint32_t member : members) {
                Identity identity = identity_of(member);
                plan->members.push_back({identity.name, identity.uuid, identity.incarnation});
            }
            Seen& job = seen[id];
            if (job.submitted_status = membership.submit(plan); !job.submitted_status.ok()) {
                ++job.submitted;
                job.submitted_us = host->now_us();
            }
        });
    }
    void act(const Notice& notice) {
        if (const auto* drain = notice.is<Notice::Drain>()) {
            orders.push_back(fmt::format("{}{}", drain->on ? "drain" : "undrain", drain->cancel ? " cancel" : ""));
            return membership.draining(drain->on, drain->on ? "job 1" : "");
        }
        Seen& job = seen[notice.id];
        const JobId id = notice.id;
        const uint64_t now = host->now_us();
        if (const auto* open = notice.is<Notice::Open>()) {
            ++job.open;
            job.self = open->self;
            job.incarnations.push_back(open->plan->members[open->self].incarnation);
            job.opened_us.push_back(now);
            agenda.emplace(now + open_us, [this, id] { membership.opened(id, open_status, with, needs_us); });
        } else if (const auto* start = notice.is<Notice::Start>()) {
            ++job.start;
            job.started.push_back(job.incarnations.back());
            if (trains) membership.trains(id);
            job.deadline_us = start->deadline_us;
            job.note = start->note;
            agenda.emplace(now + run_us, [this, id] { membership.ended(id, {.done = done, .leaves = leaves, .rejoins = rejoins}); });
        } else if (const auto* abort = notice.is<Notice::Abort>()) {
            ++job.abort;
            job.abort_status = abort->why;
        } else if (notice.is<Notice::Close>()) {
            ++job.close;
            job.closed_us = now;
        } else if (const auto* warning = notice.is<Notice::Warning>()) {
            job.warnings += warning->what.what;
        } else if (notice.is<Notice::EndedElsewhere>()) {
            job.ended_elsewhere = true;
        } else if (const auto* submitted = notice.is<Notice::Submitted>()) {
            ++job.submitted;
            job.submitted_status = submitted->outcome;
            job.submitted_us = now;
        }
    }
    void on(std::span<const Event> events, Actions& actions) override {
        constexpr uint32_t invite = 11;
        std::vector<Event> kept;
        for (const Event& event : events) {
            const auto* received = event.is<Event::Received>();
            const bool invited = received && body_of<JobBody>(*received->packet).kind.get() == invite;
            if (invited && invites_lost > 0) --invites_lost;
            else kept.push_back(event);
        }
        membership.on(kept, actions);
    }
    Status run(Host& its) {
        host = &its;
        std::vector<Completion> completions;
        while (its.now_us() < end_us) {
            completions.clear();
            uint64_t until = std::min(end_us, agenda.empty() ? end_us : agenda.begin()->first);
            if (until > its.now_us() && its.wait(&completions, until).code == Code::cancelled) return {};   // killed
            for (const Notice& notice : membership.notices()) act(notice);
            while (!agenda.empty() && agenda.begin()->first <= its.now_us()) {
                auto what = std::move(agenda.begin()->second);
                agenda.erase(agenda.begin());
                what();
            }
        }
        return {};
    }
};

struct Cluster {
    std::unique_ptr<Simulator> simulator;
    std::vector<std::unique_ptr<Node>> nodes;
    std::vector<bool> dead;
    explicit Cluster(uint32_t n, SimConfig config = {}, size_t past_jobs_max = 1024) {
        config.ranks = n;
        config.lost_after_us = 4 * second;
        simulator = Simulator::create(config);
        for (uint32_t i = 0; i < n; ++i) {
            nodes.push_back(std::make_unique<Node>(i, n, past_jobs_max));
            simulator->attach(i, 0, nodes[i].get());
            nodes[i]->membership.start(simulator->host(i), 0);
            simulator->trainer(i, [node = nodes[i].get()](Host& host) { return node->run(host); });
        }
        dead.resize(n);
    }
    Node& operator[](uint32_t i) { return *nodes[i]; }
    void kill(Rank rank, uint64_t at_us) {
        simulator->kill(rank, at_us);
        dead[rank] = true;
    }
    void run() {
        Status status = simulator->run();
        ASSERT_TRUE(status.ok()) << status.what;
        for (auto& node : nodes) {
            if (dead[node->self]) continue;
            for (auto& [id, job] : node->seen) {
                EXPECT_LE(job.open, node->opens_max);
                EXPECT_EQ(job.open, job.start + job.abort) << "node " << node->self;
                EXPECT_EQ(job.start, job.close) << "node " << node->self;
                EXPECT_EQ(job.submitted, job.self == 0 || job.self == 99 ? 1u : 0u) << "node " << node->self;
            }
            EXPECT_EQ(node->membership.peers()[node->self].jobs, 0u) << "node " << node->self;
        }
    }
};

inline std::vector<uint32_t> all(uint32_t n, uint32_t first = 0) {
    std::vector<uint32_t> members{first};
    for (uint32_t i = 0; i < n; ++i)
        if (i != first) members.push_back(i);
    return members;
}

}   // namespace gradcast::membership_test
