// plan: the grids that a job can have, in a table and for programs.
#include "tests/ctl/ctl.h"

namespace gradcast::plan_test {   // an exchange has a gradcast::Plan
namespace {

struct Plan : CtlData {
    void SetUp() override {
        CtlData::SetUp();
        if (IsSkipped()) return;
        import();
        std::string text = good_job;
        text.replace(text.find("steps = 6"), 9, "steps = 6\ncheckpoint_keep = 0");
        write("job.toml", text);
    }
};

TEST_F(Plan, ShowsTheGridsOfAJob) {
    const Outcome outcome = run("plan job.toml --nodes 4 --memory 1GiB");
    ASSERT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    for (const char* line :
         {"job         tiny: 61706 parameters, 4 blocks of up to 4 samples in a step, over 4 nodes\n",
          "times       measured here on one lane: ", "wire        1gbit and 50us for a message, assumed: --rate, --latency\n",
          "memory      1.00 GiB a node\n", "stages  replicas", "begin at\n", "memory of the fullest node\n",
          "parameters  optimiser  activations  gradients", "one host    "})
        EXPECT_NE(outcome.out.find(line), outcome.out.npos) << line << "\n" << outcome.out;
    expect_nothing_remains();
}

TEST_F(Plan, GivesTheSameToPrograms) {
    const Outcome outcome = run("-o json plan job.toml --nodes 4 --memory 1GiB --rate 10gbit --latency 1ms --lanes 3");
    ASSERT_EQ(outcome.exit, 0) << outcome.err;
    const Json json = outcome.json();
    EXPECT_EQ(json["nodes"], 4);
    EXPECT_EQ(json["lanes"], 3);
    EXPECT_EQ(json["rate_bits_per_s"], 1e10);
    EXPECT_DOUBLE_EQ(json["latency_s"], 1e-3);
    EXPECT_EQ(json["parameters"], 61706);
    EXPECT_EQ(json["memory"], 1 << 30);
    EXPECT_GT(json["block_s"], 0);
    EXPECT_EQ(json["notes"], Json::array());
    ASSERT_EQ(json["grids"].size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
        const Json& grid = json["grids"][i];
        EXPECT_EQ(grid["stages"], 1 << i);
        EXPECT_EQ(grid["replicas"], 4 >> i);
        EXPECT_EQ(grid["cuts"].size(), (1u << i) - 1);
        EXPECT_EQ(grid["fits"], true);
        EXPECT_GT(grid["step_s"], 0);
        uint64_t bytes = 0;
        for (const auto& [use, each] : grid["memory"]["purposes"].items()) bytes += each.get<uint64_t>();
        EXPECT_EQ(grid["memory"]["bytes"], bytes);
    }
    EXPECT_EQ(json["grids"][0]["sent"]["edges"], 0);
    EXPECT_GT(json["grids"][0]["sent"]["words"], 61706 * 4);
    EXPECT_GT(json["grids"][2]["sent"]["edges"], 0);
    EXPECT_EQ(json["grids"][2]["sent"]["words"], 0);
    EXPECT_EQ(json["alone"]["stages"], 1);
    EXPECT_TRUE(json["auto"].is_number());
    const Json small = run("-o json plan job.toml --nodes 4 --memory 2MiB --no-times").json();
    EXPECT_TRUE(small["auto"].is_null());
    EXPECT_TRUE(small["block_s"].is_null());
    EXPECT_TRUE(small["grids"][0]["step_s"].is_null());
}

TEST_F(Plan, TriesSliceGroups) {
    const std::string slices = " --set parallel.slices=4 --set 'parallel.sliced=[\"fc1\"]' --set parallel.slice_groups=auto --no-times";
    const Outcome outcome = run("plan job.toml --nodes 4 --set parallel.stages=auto" + slices);
    ASSERT_EQ(outcome.exit, 0) << outcome.err;
    for (const char* line : {"stages  slice groups  replicas", "stages  slice groups  "})
        EXPECT_NE(outcome.out.find(line), outcome.out.npos) << outcome.out;
    const Json json = run("-o json plan job.toml --nodes 4 --set parallel.stages=auto" + slices).json();
    ASSERT_EQ(json["grids"].size(), 6u);   // 1 stage of 1, 2 and 4 groups, 2 of 1 and 2, 4 of 1
    EXPECT_EQ(json["grids"][2]["slice_groups"], 4);
    EXPECT_EQ(json["auto_slice_groups"], 1);
}

TEST_F(Plan, SaysWhyANetIsNotCut) {
    const Outcome outcome = run("plan job.toml --nodes 2 --no-times --set algorithm.kind=ma");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_NE(outcome.out.find("note        stages: ma computes whole nets: stages go with ssgd"), outcome.out.npos) << outcome.out;
}

TEST_F(Plan, WrongFlagsAreNamed) {
    struct {
        const char *flags, *says;
    } cases[] = {{"", "--nodes is required"},
                 {"--nodes 2 --rate fast", "--rate fast: not a rate like 100mbit or 2.5gbit"},
                 {"--nodes 2 --latency 3", "--latency 3: not a time like 50us or 1.5ms"},
                 {"--nodes 2 --memory 8", "--memory 8: not a size like 512MiB, 8GiB or 20GB"},
                 {"--nodes 2 --set net.device=cuda", "net.device: cuda: a plan is made of jobs on CPUs"}};
    for (const auto& each : cases) {
        const Outcome outcome = run(std::string("plan job.toml ") + each.flags);
        EXPECT_EQ(outcome.exit, 2) << each.flags;
        EXPECT_TRUE(outcome.says(each.says)) << each.flags << "\n" << outcome.err;
    }
}

}   // namespace
}   // namespace gradcast::plan_test
