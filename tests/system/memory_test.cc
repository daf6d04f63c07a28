// A net that is larger than the memory of a node trains on several, whose daemons are in control groups of that size.
#include <cstdlib>

#include "datasets/shard.h"
#include "runtime/core/digest.h"
#include "runtime/job/run/grid_plan.h"
#include "tests/daemon/processes.h"
#include "tests/limited_group.h"

namespace gradcast {
namespace {

constexpr uint32_t memory_nodes = 6;
constexpr double mib = 0x1p20;

void make_small_images(const std::string& path) {
    constexpr uint32_t count = 48, side = 16;
    std::vector<uint8_t> images(count * side * side);
    std::vector<int32_t> labels(count);
    for (uint32_t i = 0; i < images.size(); ++i) images[i] = static_cast<uint8_t>(splitmix64(i));
    for (uint32_t i = 0; i < count; ++i) labels[i] = static_cast<int32_t>(i % 10);
    const Status status = shard_write(path, {count, 1, side, side, 10, {0.5f}, {0.5f}, "noise"}, images.data(), labels.data());
    ASSERT_TRUE(status.ok()) << status.what;
}

/// 24 inner products of `width` outputs, and a narrow one.
std::string wide_job_text(uint32_t width, const std::string& parallel) {
    std::string text =
        "[job]\nseed = 5\nsteps = 3\nbatch = 24\nblocks = 6\nevaluate = 3\ncheckpoint_every = 2\n[data]\ntrain = \"data.h5\"\ntest = "
        "\"data.h5\"\n[optimiser]\nlr = 0.001\nmomentum = 0.9\n" +
        parallel;
    for (uint32_t layer = 0; layer < 24; ++layer)
        text += fmt::format("[[net.layers]]\nkind = \"inner_product\"\nname = \"fc{}\"\noutputs = {}\n[[net.layers]]\nkind = \"relu\"\n",
                            layer + 1, width);
    return text +
           "[[net.layers]]\nkind = \"inner_product\"\nname = \"out\"\noutputs = 10\n[[net.layers]]\nkind = \"softmax_cross_entropy\"\n";
}

GridPlan plan_of(const std::string& text, const std::string& folder, uint32_t n) {
    EngineConfig config;
    EXPECT_TRUE(job_parse(text, "job.toml", folder, &config.job).ok());
    for (uint32_t node = 0; node < n; ++node) config.roster.push_back({fmt::format("{}", node), {}, 1});
    GridPlan plan;
    std::string about;
    const Status status = grid_plan(config, {.times = false}, &plan, &about);
    EXPECT_TRUE(status.ok()) << status.what;
    return plan;
}

// A quarter of what one node would take is more than a sixth.  GC_WIDTH=2100 makes that 512 MiB.
TEST(SystemMemory, ANetOfFourTimesANodesMemoryTrainsOnSix) {
    std::vector<std::unique_ptr<MemoryGroup>> groups;
    for (uint32_t node = 0; node < memory_nodes; ++node) {
        groups.push_back(std::make_unique<MemoryGroup>(uint64_t{1} << 40, fmt::format(".{}", node)));
        if (groups.back()->path.empty())
            GTEST_SKIP() << "no control group with a memory limit can be made: it needs root and the memory controller";
    }
    const char* wanted = std::getenv("GC_WIDTH");
    const auto width = static_cast<uint32_t>(wanted ? std::atoi(wanted) : 1400);
    Cluster cluster(memory_nodes);
    ASSERT_NO_FATAL_FAILURE(make_small_images(cluster.folder + "/data.h5"));
    const std::string whole = wide_job_text(width, "");
    const uint64_t memory = plan_of(whole, cluster.folder, 1).alone->cost.memory / 4;

    for (uint32_t node = 0; node < memory_nodes; ++node) {
        cluster.configure(cluster[node], fmt::format("memory = \"{:.3f}MiB\"\n", static_cast<double>(memory) / mib));
        cluster[node].process->start({.arguments = {"--config", cluster[node].folder + "/gradcastd.toml"},
                                      .log = cluster[node].folder + "/stderr",
                                      .notify = cluster[node].folder + "/n",
                                      .directory = cluster[node].folder,
                                      .before = [&group = *groups[node]] { return group.enter(), true; }});
    }
    for (Node& node : cluster.nodes) ASSERT_TRUE(node.process->ready()) << node.process->output();
    for (Node& node : cluster.nodes) ASSERT_TRUE(eventually([&] { return node.sees() == "a b c d e f"; })) << node.process->output();
    // A daemon that waits for a job still takes memory now and then; `memory` is the tighter limit.
    for (const auto& group : groups) ASSERT_TRUE(group->limit(memory + group->used() + 8 * static_cast<uint64_t>(mib)));

    const auto submit = [&](const std::string& parallel, const std::vector<std::string>& names) {
        return cluster[0].submit(Submission{wide_job_text(width, parallel), "job.toml", cluster.folder, names, 0});
    };
    const Json refused = submit("", {"a", "b", "c", "d", "e", "f"});
    EXPECT_NE(refused.value("error", "").find("); parallel.stages = 6 would need "), std::string::npos) << refused.dump();
    const Json answer = submit("[parallel]\nstages = \"auto\"\n", {"a", "b", "c", "d", "e", "f"});
    ASSERT_TRUE(answer.contains("id")) << answer.dump();
    const JobStatus cut = cluster[0].ended(answer["id"]);
    ASSERT_EQ(cut.state, JobState::done) << cut.error;
    EXPECT_EQ(cut.stage.substr(0, 12), "stage 1 of 6");
    EXPECT_EQ(cut.grid.substr(0, 31), "6 stages of 1 replica, cut at f") << cut.grid;
    EXPECT_NE(cut.grid.find("1 stage of 6 replicas: "), std::string::npos);
    uint64_t taken = 0;
    for (const MemoryUse& place : cut.memory) taken += place.total();
    EXPECT_LE(taken, memory);
    EXPECT_FALSE(cut.model.empty());
    EXPECT_GE(cut.accuracy, 0);
    for (Node& node : cluster.nodes) node.process.reset();

    cluster.configure(cluster[0]);   // without a limit
    cluster.start(cluster[0]);
    ASSERT_TRUE(cluster[0].process->ready()) << cluster[0].process->output();
    const Json alone = cluster[0].submit(Submission{whole, "job.toml", cluster.folder, {"a"}, 0});
    ASSERT_TRUE(alone.contains("id")) << alone.dump();
    const JobStatus one = cluster[0].ended(alone["id"]);
    ASSERT_EQ(one.state, JobState::done) << one.error;
    EXPECT_EQ(cut.digest, one.digest);
    EXPECT_EQ(cut.step_digest, one.step_digest);
    EXPECT_EQ(cut.accuracy, one.accuracy);
    EXPECT_EQ(cut.test_loss, one.test_loss);
}

// Of nodes with different `memory` the smallest counts, by name.
TEST(SystemMemory, TheNodeWithTheLeastMemoryIsNamed) {
    Cluster cluster(2);
    ASSERT_NO_FATAL_FAILURE(make_small_images(cluster.folder + "/data.h5"));
    cluster.configure(cluster[1], "memory = \"1MiB\"\n");
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    const auto error = [&](const std::string& parallel) {
        return cluster[0].submit(Submission{wide_job_text(100, parallel), "job.toml", cluster.folder, {"a", "b"}, 0}).value("error", "");
    };
    EXPECT_NE(error("[parallel]\nstages = \"auto\"\n").find("parallel.stages: no grid fits in memory of 1.0 MiB a node; the smallest is: "),
              std::string::npos);
    EXPECT_NE(error("[parallel]\nstages = \"auto\"\n").find(" (node b has least)"), std::string::npos);
    const std::string refused = error("");
    EXPECT_EQ(refused.substr(0, 22), "node b: the job needs ") << refused;
    EXPECT_NE(refused.find(" MiB here (parameters "), std::string::npos) << refused;
    EXPECT_NE(refused.find("), 1.0 MiB are available (`memory` in gradcastd.toml); over 2 nodes no number of stages fits"),
              std::string::npos)
        << refused;
}

// What one job has taken is not there for another one.
TEST(SystemMemory, JobsShareTheMemoryOfANode) {
    Cluster cluster(1);
    ASSERT_NO_FATAL_FAILURE(make_small_images(cluster.folder + "/data.h5"));
    const std::string text = wide_job_text(100, "");
    const uint64_t memory = plan_of(text, cluster.folder, 1).alone->cost.memory;
    cluster.configure(cluster[0], fmt::format("memory = \"{:.3f}MiB\"\n", 1.5 * static_cast<double>(memory) / mib));
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    std::string endless = text;
    endless.replace(endless.find("steps = 3\n"), 10, "steps = 1000000\n")
        .replace(endless.find("evaluate = 3\n"), 13, "evaluate = 1000000\n");
    const auto submit = [&](const std::string& job) { return cluster[0].submit(Submission{job, "job.toml", cluster.folder, {}, 0}); };
    const Json first = submit(endless);
    ASSERT_TRUE(first.contains("id")) << first.dump();
    EXPECT_NE(submit(text).value("error", "").find(" MiB are available (`memory` in gradcastd.toml)"), std::string::npos);
    (void)cluster[0].post("/v1/jobs/" + first["id"].get<std::string>() + "/cancel", {});
    EXPECT_EQ(cluster[0].ended(first["id"]).state, JobState::cancelled);
    Json second;
    EXPECT_TRUE(eventually([&] { return (second = submit(text)).contains("id"); })) << second.dump();
    EXPECT_EQ(cluster[0].ended(second["id"]).state, JobState::done);
}

}   // namespace
}   // namespace gradcast
