// The product of nets, stages, slice groups, replicas, schedules and exchanges on daemons.  Of four combinations one runs undisturbed, one
// loses a node and goes on, one is cancelled and goes on as another grid, and one loses a node, ends, and goes on as another grid without
// it.
#include <cstdlib>
#include <map>

#include "algos/grid/schedule.h"
#include "tests/system/grids.h"

namespace gradcast {
namespace {

constexpr const char* grid_exchanges[] = {"ring", "multicast", "ps", "coded-rs", "auto"};

bool all_wanted() {
    const char* wanted = std::getenv("GC_GRIDS");
    return wanted && wanted == std::string_view("all");
}

enum class Event : uint8_t { none, killed, cancelled, killed_and_resumed };
constexpr const char* event_names[] = {"undisturbed", "goes on without a node", "cancelled and resumed", "killed and resumed"};

struct SystemGridProduct : SystemGrids {
    SystemGridProduct() : SystemGrids(all_wanted() ? 12 : 8) {}

    /// Of a disturbed job.
    static uint32_t steps(const TrainedNet& net) {
        if (net.channels == 3) return 6;
        return net.preset == std::string_view("mlp") ? 60 : 240;
    }
    static uint32_t part(const TrainedNet& net) { return steps(net) / 5; }

    /// Of the whole net on one node, by steps.
    const JobStatus& wanted(const TrainedNet& net, bool sliced, uint32_t steps) {
        JobStatus& status = wanted_[{net.preset, sliced, steps}];
        if (status.digest.empty()) status = ended(begun("/v1/jobs", job_text(net, {.groups = sliced ? 1u : 0u}, steps), {0}), 0);
        return status;
    }
    std::string begun(const std::string& path, const std::string& text, const std::vector<uint32_t>& nodes) {
        std::vector<std::string> names;
        for (const uint32_t node : nodes) names.push_back(cluster[node].name);
        const Json answer = cluster[nodes[0]].post(path, Json(Submission{text, "job.toml", cluster.folder, names, 0}));
        EXPECT_NE(answer.value("id", ""), "") << answer.dump();
        return answer.value("id", "");
    }
    JobStatus ended(const std::string& id, uint32_t node) { return cluster[node].ended(id, 4 * patience_us); }
    /// Waits until the job is in its middle.  False: it has ended before.
    bool midway(const std::string& id, const TrainedNet& net, uint32_t node) {
        return eventually([&] { return cluster[node].step(id) > part(net) || done(id, node); }, 4 * patience_us) && !done(id, node);
    }
    bool done(const std::string& id, uint32_t node) {
        const Json job = cluster[node].job(id);
        if (!job.contains("status")) return false;   // not known there yet
        const std::string state = job["status"].value("state", "");
        return state != "running" && state != "preparing";
    }
    std::vector<uint32_t> nodes_of(const JobGrid& grid, uint32_t without = UINT32_MAX) const {
        std::vector<uint32_t> nodes;
        for (uint32_t node = 0; node < grid.nodes(); ++node)
            if (node != without) nodes.push_back(node);
        return nodes;
    }
    /// Another grid of so many nodes.
    JobGrid other(const JobGrid& grid, uint32_t nodes) const {
        JobGrid made{.exchange = grid_exchanges[number_ % std::size(grid_exchanges)]};
        made.schedule = pipeline_schedule_names()[number_ % pipeline_schedule_names().size()];
        made.micro_batch = 1 + number_ % 3;
        if (grid.groups > 0) made.groups = nodes % 2 == 0 && number_ % 2 == 0 ? 2 : 1;
        const uint32_t rest = nodes / std::max(made.groups, 1u);
        for (const uint32_t stages : {2u, 3u, 4u, 1u})
            if (rest % stages == 0 && (stages != grid.stages || stages == 1) && made.replicas * made.stages != rest)
                made.stages = stages, made.replicas = rest / stages;
        return made;
    }
    void expect_done(const std::string& id, const std::vector<uint32_t>& nodes, const JobStatus& quiet) {
        for (const uint32_t node : nodes) {
            const JobStatus last = ended(id, node);
            EXPECT_EQ(last.state, JobState::done) << cluster[node].name << ": " << last.error;
            EXPECT_EQ(last.digest, quiet.digest) << cluster[node].name;
            EXPECT_EQ(last.step_digest, quiet.step_digest);
            EXPECT_EQ(last.accuracy, quiet.accuracy);
        }
    }
    void back(uint32_t node) {
        cluster.start(cluster[node]);
        std::string all;
        for (const Node& each : cluster.nodes) all += (all.empty() ? "" : " ") + each.name;
        for (Node& each : cluster.nodes)
            ASSERT_TRUE(eventually([&] { return each.sees() == all; })) << each.name << " sees " << each.sees();
    }

    /// Trains with what happens; returns what happened: `none` where the job had ended before.
    Event trained_through(Event event, const TrainedNet& net, const JobGrid& grid) {
        if (event == Event::none) {
            expect_bits(trained(net, grid), wanted(net, grid.groups > 0, 3));
            return event;
        }
        const JobStatus& quiet = wanted(net, grid.groups > 0, steps(net));
        const uint32_t n = grid.nodes();
        const std::string checkpoints = fmt::format("checkpoint_every = {}", std::max(part(net) / 4, 1u));
        if (event == Event::cancelled) {
            const std::string id = begun("/v1/jobs", job_text(net, grid, steps(net), checkpoints.c_str()), nodes_of(grid));
            if (!midway(id, net, 0)) return expect_done(id, nodes_of(grid), quiet), Event::none;
            cluster[0].post("/v1/jobs/" + id + "/cancel", Json::object());
            JobState state = JobState::cancelled;
            for (const uint32_t node : nodes_of(grid))
                if (const JobStatus status = ended(id, node); status.state != JobState::cancelled) state = status.state;
            if (state == JobState::done) return Event::none;   // in its last step
            EXPECT_EQ(state, JobState::cancelled);
            resumed(id, net, other(grid, n), nodes_of(grid), quiet, checkpoints);
            return event;
        }
        // With two nodes the second one is lost: half of the nodes go on with the first one.
        const uint32_t lost = n == 2 ? 1 : number_ % n, asked = lost == 0 ? 1 : 0;
        const std::vector<uint32_t> others = nodes_of(grid, lost);
        if (event == Event::killed) {
            std::string text = job_text(net, grid, steps(net), "checkpoint_keep = 0\nsurvive = true");
            if (grid.replicas == 1) text += "buddy = true\n";
            const std::string id = begun("/v1/jobs", text, nodes_of(grid));
            const bool before = midway(id, net, asked);
            cluster[lost].process->kill(SIGKILL), cluster[lost].process->wait();
            expect_done(id, others, quiet);
            const bool seen = cluster[asked].job(id)["status"]["views"].size() > 1;
            back(lost);
            return before && seen ? event : Event::none;
        }
        const std::string id = begun("/v1/jobs", job_text(net, grid, steps(net), checkpoints.c_str()), nodes_of(grid));
        const bool before = midway(id, net, asked);
        cluster[lost].process->kill(SIGKILL), cluster[lost].process->wait();
        bool failed = before;
        for (const uint32_t node : others) failed = ended(id, node).state == JobState::failed && failed;
        if (failed) {
            EXPECT_TRUE(eventually([&] { return cluster[others[0]].sees().find(cluster[lost].name) == std::string::npos; }));
            resumed(id, net, other(grid, n - 1), others, quiet, checkpoints);
        }
        back(lost);
        return failed ? event : Event::none;
    }
    void resumed(const std::string& id, const TrainedNet& net, const JobGrid& grid, const std::vector<uint32_t>& nodes,
                 const JobStatus& quiet, const std::string& checkpoints) {
        SCOPED_TRACE(fmt::format("goes on as {} stages, {} slice groups, {} replicas, {}, {}", grid.stages, grid.groups, grid.replicas,
                                 grid.schedule, grid.exchange));
        ASSERT_EQ(grid.nodes(), nodes.size());
        EXPECT_EQ(begun("/v1/jobs/" + id + "/resume", job_text(net, grid, steps(net), checkpoints.c_str()), nodes), id);
        expect_done(id, nodes, quiet);
        EXPECT_GT(ended(id, nodes[0]).resumed, 0u);
    }

    uint32_t number_ = 0;   // of the combination

private:
    std::map<std::tuple<std::string, bool, uint32_t>, JobStatus> wanted_;
};

std::vector<JobGrid> grids_of(const TrainedNet& net) {
    std::vector<JobGrid> all;
    for (const uint32_t groups : {0u, 2u})
        for (const uint32_t stages : {1u, 2u, 4u})
            for (const uint32_t replicas : {1u, 2u, 3u}) {
                const JobGrid grid{.stages = stages, .replicas = replicas, .groups = groups};
                if (grid.nodes() == 1 || grid.nodes() > 12 || (groups > 0 && net.channels > 1)) continue;
                for (size_t schedule = 0; schedule < (stages > 1 ? pipeline_schedule_names().size() : 1); ++schedule)
                    for (size_t exchange = 0; exchange < (replicas > 1 ? std::size(grid_exchanges) : 1); ++exchange) {
                        if (grid.nodes() > 8 && exchange != schedule) continue;   // a machine has not so many cores
                        all.push_back(grid);
                        all.back().schedule = pipeline_schedule_names()[schedule], all.back().exchange = grid_exchanges[exchange];
                    }
            }
    return all;
}

// GC_GRIDS=all tries all of them, as `make nightly` does; else one in 61.
TEST_F(SystemGridProduct, OneDigestANet) {
    const uint32_t every = all_wanted() ? 1 : 61;
    uint32_t tried = 0, counts[4] = {};
    for (const TrainedNet& net : nets)
        for (JobGrid grid : grids_of(net)) {
            if (number_++ % every != 0 || grid.nodes() > cluster.nodes.size()) continue;
            Event event = static_cast<Event>(tried++ % 4);
            if (event == Event::killed && grid.replicas == 1 && (grid.groups > 0 || grid.stages == 1)) event = Event::killed_and_resumed;
            grid.micro_batch = 1 + number_ % 2;
            SCOPED_TRACE(fmt::format("{}, {}: {} stages, {} slice groups, {} replicas, {}, {}; {}", number_, net.preset, grid.stages,
                                     grid.groups, grid.replicas, grid.schedule, grid.exchange, event_names[static_cast<size_t>(event)]));
            const uint64_t begun_us = clock_us();
            const Event happened = trained_through(event, net, grid);
            ++counts[static_cast<size_t>(happened)];
            fmt::print("{} {} {}x{}x{} {} {}: {} -> {}, {:.1f} s\n", number_, net.preset, grid.stages, grid.groups, grid.replicas,
                       grid.schedule, grid.exchange, event_names[static_cast<size_t>(event)], event_names[static_cast<size_t>(happened)],
                       static_cast<double>(clock_us() - begun_us) * 1e-6);
            std::fflush(stdout);
            ASSERT_FALSE(HasFatalFailure());
        }
    EXPECT_GE(number_, 100u);
    EXPECT_GE(tried, number_ / every / 2);
    for (size_t i = 0; i < 4; ++i) {
        fmt::print("{} of {} combinations: {}\n", counts[i], tried, event_names[i]);
        EXPECT_GE(counts[i], tried / 8) << event_names[i];
    }
}

}   // namespace
}   // namespace gradcast
