// Nets in stages on daemons: one digest a net, whatever the cut, the schedule, the number of replicas and their exchange.
#include "tests/system/grids.h"

#include "algos/grid/schedule.h"

namespace gradcast {
namespace {

// Nodes that share slices.
TEST_F(SystemGrids, OneDigestANetWithSlices) {
    for (const TrainedNet& net : {nets[0], nets[1]}) {
        const JobStatus whole = trained(net, {.groups = 1});
        for (const JobGrid& grid :
             {JobGrid{.groups = 2}, JobGrid{.groups = 4}, JobGrid{.replicas = 2, .exchange = "multicast", .micro_batch = 3, .groups = 2},
              JobGrid{.stages = 2, .micro_batch = 2, .groups = 2},
              JobGrid{.stages = 2, .replicas = 2, .schedule = "zero-bubble", .groups = 2}}) {
            SCOPED_TRACE(fmt::format("{}: {} stages, {} slice groups, {} replicas", net.preset, grid.stages, grid.groups, grid.replicas));
            const JobStatus status = trained(net, grid);
            expect_bits(status, whole);
        }
    }
}

// Each node scales its layers' gradients by the norm over all layers.
TEST_F(SystemGrids, OneDigestAClippedNet) {
    constexpr const char* clip = "clip_norm = 0.02\n";
    const JobStatus whole = trained(nets[0], {.groups = 1, .clip = clip});
    EXPECT_NE(whole.digest, trained(nets[0], {.groups = 1}).digest);
    const JobStatus status = trained(nets[0], {.stages = 2, .replicas = 2, .micro_batch = 2, .groups = 2, .clip = clip});
    expect_bits(status, whole);
}

// The coordinator chooses how many nodes share the slices, and may choose the stages too.
TEST_F(SystemGrids, AutoSliceGroupsGiveTheSameDigest) {
    const TrainedNet& net = nets[1];
    const JobStatus whole = trained(net, {.groups = 1});
    for (const char* stages : {"", "stages = 2\n", "stages = \"auto\"\n"}) {
        SCOPED_TRACE(stages);
        std::string text = job_text(net, {.groups = 1});
        const std::string one = "slice_groups = 1\n";
        text.replace(text.find(one), one.size(), fmt::format("slice_groups = \"auto\"\n{}", stages));
        const Json answer = cluster[0].post("/v1/jobs", Json(Submission{text, "job.toml", cluster.folder, {"a", "b", "c", "d"}, 0}));
        ASSERT_TRUE(answer.contains("id")) << answer.dump();
        const JobStatus status = cluster[0].ended(answer["id"]);
        ASSERT_EQ(status.state, JobState::done) << status.error;
        expect_bits(status, whole);
        // Any grid of several replicas sends words for longer than the whole step takes; the others are close to each other.
        const std::string_view chosen = stages == std::string_view("stages = 2\n") ? "2 stages in 2 slice groups of 1 replica"
                                        : *stages                                  ? " of 1 replica"
                                                                                   : "1 stage in 4 slice groups of 1 replica";
        EXPECT_NE(status.grid.substr(0, status.grid.find(':')).find(chosen), std::string::npos) << status.grid;
        EXPECT_NE(status.grid.find("ms a step"), std::string::npos) << status.grid;
        for (const uint32_t other : {1u, 2u, 3u}) EXPECT_EQ(cluster[other].ended(answer["id"]).digest, whole.digest);
    }
}

// Two slice groups in two stages, then four slice groups, then four replicas with all slices: the digest of a quiet run.
TEST_F(SystemGrids, AGridOfSlicesGoesOnAsAnotherOne) {
    constexpr uint32_t steps = 600;
    const TrainedNet& net = nets[0];
    auto begun = [&](const std::string& path, const JobGrid& grid, const std::vector<std::string>& names) {
        const std::string text = job_text(net, grid, steps, "checkpoint_every = 20");
        const Json answer = cluster[0].post(path, Json(Submission{text, "job.toml", cluster.folder, names, 0}));
        EXPECT_NE(answer.value("id", ""), "") << answer.dump();
        return answer.value("id", "");
    };
    const JobStatus quiet = cluster[0].ended(begun("/v1/jobs", {.groups = 1}, {"a"}));
    ASSERT_EQ(quiet.state, JobState::done) << quiet.error;
    const std::string id = begun("/v1/jobs", {.stages = 2, .groups = 2}, {"a", "b", "c", "d"});
    ASSERT_TRUE(eventually([&] { return cluster[0].step(id) > 100; }));
    cluster[0].post("/v1/jobs/" + id + "/cancel", Json::object());
    for (const uint32_t node : {0u, 1u, 2u, 3u}) EXPECT_EQ(cluster[node].ended(id).state, JobState::cancelled);
    EXPECT_EQ(begun("/v1/jobs/" + id + "/resume", {.groups = 4}, {"d", "b", "a", "c"}), id);
    ASSERT_TRUE(eventually([&] { return cluster[0].step(id) > 250 || cluster[0].job(id)["status"]["state"] == "failed"; }));
    const uint64_t resumed = cluster[0].job(id)["status"].value("resumed", uint64_t{0});
    EXPECT_GE(resumed, 80u) << cluster[0].job(id).dump(2);
    cluster[0].post("/v1/jobs/" + id + "/cancel", Json::object());
    for (const uint32_t node : {0u, 1u, 2u, 3u}) EXPECT_EQ(cluster[node].ended(id).state, JobState::cancelled);
    EXPECT_EQ(begun("/v1/jobs/" + id + "/resume", {.groups = 1}, {"a", "b", "c", "d"}), id);
    const JobStatus last = cluster[0].ended(id);
    EXPECT_EQ(last.state, JobState::done) << last.error;
    EXPECT_GT(last.resumed, resumed);
    EXPECT_EQ(last.digest, quiet.digest);
    EXPECT_EQ(last.accuracy, quiet.accuracy);
}

// Two stages on four nodes, of which one is killed; then three stages on the others; then one node alone: the digest of a quiet run.
TEST_F(SystemGrids, AKilledGridGoesOnAsAnotherOne) {
    constexpr uint32_t steps = 900;
    const TrainedNet& net = nets[0];
    auto text = [&](uint32_t stages) { return job_text(net, {.stages = stages}, steps, "checkpoint_every = 20"); };
    auto begun = [&](const std::string& path, uint32_t stages, const std::vector<std::string>& names) {
        const Json answer = cluster[0].post(path, Json(Submission{text(stages), "job.toml", cluster.folder, names, 0}));
        EXPECT_NE(answer.value("id", ""), "") << answer.dump();
        return answer.value("id", "");
    };
    const JobStatus quiet = cluster[0].ended(begun("/v1/jobs", 1, {"a"}));
    ASSERT_EQ(quiet.state, JobState::done) << quiet.error;
    const std::string id = begun("/v1/jobs", 2, {"a", "b", "c", "d"});
    ASSERT_TRUE(eventually([&] { return cluster[0].step(id) > 100; }));
    cluster[2].process->kill(SIGKILL);
    EXPECT_EQ(cluster[0].ended(id).state, JobState::failed);
    for (const uint32_t node : {1u, 3u}) EXPECT_EQ(cluster[node].ended(id).state, JobState::failed);
    ASSERT_TRUE(eventually([&] { return cluster[0].sees() == "a b d e f g h"; }));

    EXPECT_EQ(begun("/v1/jobs/" + id + "/resume", 3, {"b", "d", "a"}), id);
    uint64_t resumed = 0;
    ASSERT_TRUE(eventually([&] { return cluster[0].step(id) > 300 || cluster[0].job(id)["status"]["state"] == "failed"; }));
    resumed = cluster[0].job(id)["status"].value("resumed", uint64_t{0});
    EXPECT_GE(resumed, 80u) << cluster[0].job(id).dump(2);
    cluster[0].post("/v1/jobs/" + id + "/cancel", Json::object());
    EXPECT_EQ(cluster[0].ended(id).state, JobState::cancelled);
    for (const uint32_t node : {1u, 3u}) EXPECT_EQ(cluster[node].ended(id).state, JobState::cancelled);

    // The parts come from all three, the job goes on at one.
    const Json lonely = cluster[0].post("/v1/jobs/" + id + "/resume", Json(Submission{text(1), "job.toml", cluster.folder, {"a"}, 0}));
    EXPECT_EQ(lonely.value("id", ""), id) << lonely.dump();
    const JobStatus failed = cluster[0].ended(id);
    EXPECT_NE(failed.error.find("take it among the nodes"), std::string::npos) << failed.error;
    EXPECT_EQ(begun("/v1/jobs/" + id + "/resume", 1, {"a", "b", "d"}), id);
    const JobStatus last = cluster[0].ended(id);
    EXPECT_EQ(last.state, JobState::done) << last.error;
    EXPECT_GT(last.resumed, resumed);
    EXPECT_EQ(last.digest, quiet.digest);
    EXPECT_EQ(last.accuracy, quiet.accuracy);
}

// Two stages on two nodes: one node's disk is lost, with the only node of its stage.  The other node has a copy of its part.
TEST_F(SystemGrids, AGridGoesOnWithoutADiskOfItsNodes) {
    constexpr uint32_t steps = 900;
    const TrainedNet& net = nets[0];
    auto begun = [&](const std::string& path, uint32_t stages, const std::vector<std::string>& names) {
        const std::string text = job_text(net, {.stages = stages}, steps, "checkpoint_every = 20");
        const Json answer = cluster[0].post(path, Json(Submission{text, "job.toml", cluster.folder, names, 0}));
        EXPECT_NE(answer.value("id", ""), "") << answer.dump();
        return answer.value("id", "");
    };
    const JobStatus quiet = cluster[0].ended(begun("/v1/jobs", 1, {"a"}));
    ASSERT_EQ(quiet.state, JobState::done) << quiet.error;
    const std::string id = begun("/v1/jobs", 2, {"a", "b"}), again = "/v1/jobs/" + id + "/resume";
    auto folder = [&](uint32_t node) { return cluster[node].folder + "/state/jobs/" + id; };
    auto resumed = [&] { return cluster[0].job(id)["status"].value("resumed", uint64_t{0}); };
    const auto lose = [&](uint32_t node) {   // a file may still come while others go
        std::error_code error;
        EXPECT_TRUE(eventually([&] { return std::filesystem::remove_all(folder(node), error), !std::filesystem::exists(folder(node)); }));
    };

    // Cancelled, and the folder of the job is lost at one of them.
    ASSERT_TRUE(eventually([&] { return cluster[0].step(id) > 100; }));
    cluster[0].post("/v1/jobs/" + id + "/cancel", Json::object());
    for (const uint32_t node : {0u, 1u}) EXPECT_EQ(cluster[node].ended(id).state, JobState::cancelled);
    lose(1);
    EXPECT_EQ(begun(again, 2, {"a", "b"}), id);
    ASSERT_TRUE(eventually([&] { return cluster[0].step(id) > 300 || cluster[0].job(id)["status"]["state"] == "failed"; }));
    const uint64_t first = resumed();
    EXPECT_GE(first, 60u) << cluster[0].job(id).dump(2);

    // Killed, and lost once more: one node has all that another grid needs.
    cluster[1].process->kill(SIGKILL);
    EXPECT_EQ(cluster[0].ended(id).state, JobState::failed);
    lose(1);
    EXPECT_EQ(begun(again, 1, {"a"}), id);
    const JobStatus last = cluster[0].ended(id);
    EXPECT_EQ(last.state, JobState::done) << last.error;
    EXPECT_GE(last.resumed, first + 100);
    EXPECT_EQ(last.digest, quiet.digest);
    EXPECT_EQ(last.step_digest, quiet.step_digest);
}

// Each of two nodes knows the stages of both, what they wait for, and the passes of a step.
TEST_F(SystemGrids, DescribeShowsStagesAndWaits) {
    constexpr uint32_t micro_batches = 6;
    const std::string id = submitted(nets[2], {.stages = 2}, 100'000);
    for (const uint32_t at : {0u, 1u}) {
        Json detail;
        ASSERT_TRUE(eventually([&] {
            detail = cluster[at].job(id);
            return detail.contains("schedule") && detail["schedule"].size() == 2;
        })) << detail.dump(2);
        const Json& pipeline = detail["status"]["pipeline"];
        EXPECT_EQ(pipeline["own_stage"], at + 1);
        EXPECT_EQ(pipeline["micro_batches"], micro_batches);
        EXPECT_NEAR(pipeline["idle_formula"].get<double>(), 1.0 / (micro_batches + 1), 1e-9);
        ASSERT_EQ(pipeline["nodes"].size(), 2u);
        for (const uint32_t stage : {1u, 2u}) {
            const Json& node = pipeline["nodes"][stage - 1];
            SCOPED_TRACE(node.dump());
            EXPECT_EQ(node["node"], cluster[stage - 1].name);
            EXPECT_EQ(node["stage"], stage);
            EXPECT_EQ(node["replica"], 1);
            EXPECT_GT(node["forward_us"], 0);
            EXPECT_GT(node["backward_us"], 0);
            EXPECT_EQ(node["weights_us"], 0);   // its schedule has none apart
            EXPECT_EQ(node[stage == 1 ? "values_us" : "gradients_us"], 0);
            EXPECT_GT(node["idle"], 0);
            EXPECT_LT(node["idle"], 1);
            const Json& row = detail["schedule"][stage - 1];
            EXPECT_EQ(row["stage"], stage);
            ASSERT_EQ(row["passes"].size(), 2 * micro_batches);
            EXPECT_EQ(row["passes"][1][0], stage == 1 ? "forward" : "backward");   // 1f1b
            uint64_t before = 0;
            for (const Json& pass : row["passes"]) {
                EXPECT_GE(pass[2], before);
                before = pass[3];
            }
        }
        // What a stage waits for is what the other one computes.
        EXPECT_GT(pipeline["nodes"][1]["values_us"], 0) << pipeline.dump(2);
        EXPECT_GT(pipeline["nodes"][0]["gradients_us"], 0) << pipeline.dump(2);
        ChildProcess process;
        process.start({.arguments = {"--socket", cluster[at].socket, "describe", id},
                       .log = cluster.folder + "/said",
                       .notify = "",
                       .name = "gradcastctl"});
        EXPECT_EQ(process.wait(), 0);
        const std::string text = process.output();
        EXPECT_NE(text.find("2 stages, 1f1b, 6 micro-batches of 1 block; idle by formula 0.14"), std::string::npos) << text;
        EXPECT_NE(text.find("values of stage 1 "), std::string::npos) << text;
    }
    cluster[0].post("/v1/jobs/" + id + "/cancel", Json::object());
    const JobStatus ended = cluster[1].ended(id);
    EXPECT_EQ(ended.state, JobState::cancelled);
    ASSERT_TRUE(ended.pipeline);   // the record keeps it
    EXPECT_GT(ended.pipeline->nodes[0].news.steps, 0u);
}

TEST_F(SystemGrids, ALostStageEndsTheJobByName) {
    const std::string id = submitted(nets[0], {.stages = 4}, 100'000);
    ASSERT_TRUE(eventually([&] { return cluster[0].step(id) > 5; }));
    cluster[2].process->kill(SIGKILL);
    for (const uint32_t node : {0u, 1u, 3u}) {
        const JobStatus status = cluster[node].ended(id);
        EXPECT_EQ(status.state, JobState::failed);
        EXPECT_NE(status.error.find("rank 2 (c) lost in step"), std::string::npos) << status.error;
        EXPECT_NE(status.error.find("; stage 3 of 4 ("), std::string::npos) << status.error;
        EXPECT_NE(status.error.find(") is lost with it"), std::string::npos) << status.error;
    }
}

// The node that is lost is the first one, which writes the model of a job that nothing disturbs.
TEST_F(SystemGrids, AReplicaThatLosesANodeIsMissed) {
    constexpr uint32_t steps = 150;
    for (const JobGrid& grid :
         {JobGrid{.stages = 2, .replicas = 3, .exchange = "coded-rs", .micro_batch = 2, .options = "m = 1\ns = 1\n"},
          JobGrid{.replicas = 3, .exchange = "coded-rs", .micro_batch = 2, .options = "m = 1\ns = 1\n", .groups = 2}}) {
        SCOPED_TRACE(grid.groups);
        const JobStatus quiet = cluster[0].ended(submitted(nets[0], grid, steps));
        ASSERT_EQ(quiet.state, JobState::done) << quiet.error;
        const std::string id = submitted(nets[0], grid, steps);
        ASSERT_TRUE(eventually([&] { return cluster[1].step(id) > 5; }));
        cluster[0].process->kill(SIGKILL);
        EXPECT_LT(cluster[1].step(id), steps);
        for (uint32_t node = 1; node < 6; ++node) {
            const JobStatus status = cluster[node].ended(id);
            EXPECT_EQ(status.state, JobState::done) << status.error;
            EXPECT_EQ(status.digest, quiet.digest);
            EXPECT_EQ(status.step_digest, quiet.step_digest);
            EXPECT_EQ(status.accuracy, quiet.accuracy);
            EXPECT_EQ(status.model.empty(), node != 1);
        }
        cluster.start(cluster[0]);
        ASSERT_TRUE(eventually([&] { return cluster[0].sees() == "a b c d e f g h" && cluster[1].sees() == cluster[0].sees(); }));
    }
}

}   // namespace
}   // namespace gradcast
