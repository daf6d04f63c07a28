// Grids that change while a job runs: nodes are killed and come back, and others join.  Every step has the digest of a quiet run.
#include "algos/grid/schedule.h"
#include "tests/daemon/jobs.h"
#include "tests/system/grids.h"

namespace gradcast {
namespace {

struct SystemGridViews : SystemGrids {
    static constexpr uint64_t patience = 4 * patience_us;   // of many steps on a busy machine

    std::string begun(const std::string& text, const std::vector<std::string>& names) {
        Node& first = *std::ranges::find(cluster.nodes, names[0], &Node::name);
        const Json answer = first.post("/v1/jobs", Json(Submission{text, "job.toml", cluster.folder, names, 0}));
        EXPECT_NE(answer.value("id", ""), "") << answer.dump();
        return answer.value("id", "");
    }
    Json pipeline(const std::string& id, uint32_t node = 0) { return cluster[node].job(id)["status"]["pipeline"]; }
    static uint32_t spares(const Json& pipeline) {
        return static_cast<uint32_t>(std::ranges::count_if(pipeline["nodes"], [](const Json& node) { return node["replica"].is_null(); }));
    }
    static uint32_t replicas(const Json& pipeline) {
        uint32_t most = 0;
        for (const Json& node : pipeline["nodes"])
            if (!node["replica"].is_null()) most = std::max(most, node["replica"].get<uint32_t>());
        return most;
    }
    /// Each of the four nodes of a job is killed, at moments by chance.  The first three come back before the next one is killed.
    void each_is_lost(const JobGrid& grid, const std::string& keys, const std::function<void(const Json& pipeline)>& missing) {
        const char* named = std::getenv("GC_SEED");
        const uint64_t seed = named ? std::strtoull(named, nullptr, 10) : 1;
        SCOPED_TRACE(fmt::format("GC_SEED={}", seed));
        const std::string id =
            begun(job_text(nets[0], grid, 1'000'000, "checkpoint_every = 50\nsurvive = true") + keys, {"a", "b", "c", "d"});
        uint64_t step = 0;
        const auto goes_on = [&](uint32_t asked, uint32_t lost) {
            const uint64_t more = 5 + splitmix64(4 * seed + lost) % 40;
            return eventually([&] { return cluster[asked].step(id) > step + more; }, patience);
        };
        for (const uint32_t lost : {1u, 2u, 3u}) {
            ASSERT_TRUE(goes_on(0, lost)) << cluster[0].job(id).dump(2);
            cluster[lost].process->kill(SIGKILL);
            ASSERT_TRUE(eventually([&] { return members(id) == 3; })) << cluster[0].job(id).dump(2);
            Json now;
            ASSERT_TRUE(eventually([&] { return now = pipeline(id), now["nodes"].size() == 3; })) << cluster[0].job(id).dump(2);
            missing(now);
            step = cluster[0].step(id);
            ASSERT_TRUE(goes_on(0, lost)) << cluster[0].job(id).dump(2);
            cluster.start(cluster[lost]);
            ASSERT_TRUE(eventually([&] { return members(id) == 4; })) << cluster[0].job(id).dump(2);
            step = cluster[0].step(id);
        }
        ASSERT_TRUE(goes_on(1, 0)) << cluster[1].job(id).dump(2);
        cluster[0].process->kill(SIGKILL);
        expect_quiet_steps(id, grid, {1, 2, 3});
        for (const uint32_t node : {1u, 2u, 3u}) EXPECT_EQ(cluster[node].ended(id).views.size(), 8u);
    }
    /// Cancels the job after some steps more.  Each of its steps at these nodes has the digest of a run on one node.
    void expect_quiet_steps(const std::string& id, const JobGrid& grid, const std::vector<uint32_t>& nodes) {
        Node& first = cluster[nodes[0]];
        const uint64_t then = first.step(id);
        EXPECT_TRUE(eventually([&] { return first.step(id) > then + 20; })) << first.job(id).dump(2) << logs(cluster);
        first.post("/v1/jobs/" + id + "/cancel", Json::object());
        uint64_t last = 0;
        std::vector<std::map<uint64_t, std::string>> of_nodes;
        for (const uint32_t node : nodes) {
            EXPECT_EQ(cluster[node].ended(id).state, JobState::cancelled) << cluster[node].job(id).dump(2);
            of_nodes.push_back(step_digests(cluster[node].folder + "/state/jobs/" + id));
            ASSERT_GT(of_nodes.back().size(), 20u) << cluster[node].name;
            last = std::max(last, of_nodes.back().rbegin()->first);
        }
        const JobGrid alone{.groups = grid.groups > 0 ? 1u : 0u};
        const std::string quiet = begun(job_text(nets[0], alone, static_cast<uint32_t>(last)), {first.name});
        EXPECT_EQ(first.ended(quiet, patience).state, JobState::done);
        const std::map<uint64_t, std::string> wanted = step_digests(first.folder + "/state/jobs/" + quiet);
        for (size_t i = 0; i < nodes.size(); ++i)
            for (const auto& [step, digest] : of_nodes[i])
                ASSERT_EQ(digest, wanted.at(step)) << cluster[nodes[i]].name << ", step " << step;
    }
};

// Where a replica is broken the job has one replica and a spare, which has no times of a stage.
TEST_F(SystemGridViews, EachNodeOfTwoReplicasIsLost) {
    each_is_lost({.stages = 2}, "", [](const Json& pipeline) {
        EXPECT_EQ(pipeline["layers"].size(), 2u);
        EXPECT_EQ(spares(pipeline), 1u) << pipeline.dump(2);
        for (const Json& node : pipeline["nodes"])
            if (node["replica"].is_null()) {
                EXPECT_EQ(node["forward_us"], 0) << pipeline.dump(2);
            }
    });
}

// One node for each stage, with buddies: the buddy of the lost node computes both stages as one.
TEST_F(SystemGridViews, EachNodeOfOneReplicaIsLost) {
    each_is_lost({.stages = 4}, "buddy = true\n", [](const Json& pipeline) {
        EXPECT_EQ(pipeline["layers"].size(), 3u);
        EXPECT_EQ(spares(pipeline), 0u) << pipeline.dump(2);
    });
}

// Two nodes are lost where two slice groups share the net, and where they share each of two stages.
TEST_F(SystemGridViews, AJobOfSliceGroupsSurvivesLostNodes) {
    for (const uint32_t stages : {1u, 2u}) {
        SCOPED_TRACE(fmt::format("{} stages", stages));
        const JobGrid grid{.stages = stages, .replicas = 2, .groups = 2};
        std::vector<std::string> names;
        std::vector<uint32_t> remaining;
        for (uint32_t node = 0; node < 4 * stages; ++node) {
            names.push_back(cluster[node].name);
            if (node != 1) remaining.push_back(node);
        }
        const std::string id = begun(job_text(nets[0], grid, 1'000'000, "survive = true"), names);
        ASSERT_TRUE(eventually([&] { return cluster[0].step(id) > 60; }));
        cluster[2].process->kill(SIGKILL);
        ASSERT_TRUE(eventually([&] { return members(id) == names.size() - 1; })) << cluster[0].job(id).dump(2);
        cluster.start(cluster[2]);
        ASSERT_TRUE(eventually([&] { return members(id) == names.size(); })) << cluster[0].job(id).dump(2);
        cluster[1].process->kill(SIGKILL);
        expect_quiet_steps(id, grid, remaining);
        cluster.start(cluster[1]);
        ASSERT_TRUE(eventually([&] { return cluster[0].sees() == "a b c d e f g h" && cluster[1].sees() == cluster[0].sees(); }));
    }
}

// One replica of two stages.  The third node is a spare until the fourth one makes a replica with it; then a node of the first replica may
// be lost.
TEST_F(SystemGridViews, NodesThatAnOperatorAddsBecomeAReplica) {
    const JobGrid grid{.stages = 2, .exchange = "coded-rs"};
    const std::string id = begun(job_text(nets[0], grid, 1'000'000, "checkpoint_every = 50\nsurvive = true"), {"a", "b"});
    ASSERT_TRUE(eventually([&] { return cluster[0].step(id) > 20; })) << cluster[0].job(id).dump(2);
    EXPECT_NE(cluster[0].job(id)["status"]["warnings"].dump().find("2 nodes are one replica"), std::string::npos);
    for (const uint32_t node : {2u, 3u}) {
        cluster[0].post("/v1/jobs/" + id + "/nodes", Json{{"node", cluster[node].name}});
        ASSERT_TRUE(eventually([&] { return members(id) == node + 1 && pipeline(id)["nodes"].size() == node + 1; }))
            << cluster[0].job(id).dump(2) << logs(cluster);
        EXPECT_EQ(replicas(pipeline(id)), node == 2 ? 1u : 2u) << pipeline(id).dump(2);
        EXPECT_EQ(spares(pipeline(id)), node == 2 ? 1u : 0u) << pipeline(id).dump(2);
        const uint64_t then = cluster[0].step(id);
        ASSERT_TRUE(eventually([&] { return cluster[0].step(id) > then + 10; })) << cluster[0].job(id).dump(2);
    }
    cluster[1].process->kill(SIGKILL);
    ASSERT_TRUE(eventually([&] { return members(id) == 3; })) << cluster[0].job(id).dump(2);
    expect_quiet_steps(id, grid, {0, 2, 3});
}

// All other nodes join by themselves: one replica becomes four.
TEST_F(SystemGridViews, AnElasticJobOfStagesGrows) {
    const JobGrid grid{.stages = 2, .exchange = "multicast"};
    const std::string id = begun(job_text(nets[0], grid, 1'000'000, "checkpoint_keep = 0\nsurvive = true\nelastic = true"), {"a", "b"});
    ASSERT_TRUE(eventually([&] { return members(id) == 8 && replicas(pipeline(id)) == 4; }, patience))
        << cluster[0].job(id).dump(2) << logs(cluster);
    expect_quiet_steps(id, grid, {0, 1, 2, 3, 4, 5, 6, 7});
}

}   // namespace
}   // namespace gradcast
