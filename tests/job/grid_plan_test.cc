// The plan of grids beside what running jobs take and send.
#include "runtime/job/run/grid_plan.h"

#include <fmt/ranges.h>

#include <array>
#include <numeric>

#include "runtime/job/file/cells.h"
#include "runtime/job/run/parts.h"
#include "tests/job/runs.h"

namespace gradcast {
namespace {

constexpr char stages_go[] = "blocks = 6\ncheckpoint_keep = 0\n";

struct GridPlanTest : RunsTest {
    /// With `outputs` in the first of three inner products.
    std::string net(uint32_t outputs, const std::string& more) {
        std::string text = replaced(job_text(more), "outputs = 16\n", fmt::format("outputs = {}\n", outputs));
        text = replaced(
            text, "[[net.layers]]\nkind = \"relu\"\n",
            fmt::format("[[net.layers]]\nkind = \"relu\"\n[[net.layers]]\nkind = \"inner_product\"\nname = \"middle\"\noutputs = {}\n",
                        outputs));
        return replaced(text, "epochs = 2\n", "steps = 2\n");
    }
    GridPlan plan(const std::string& text, uint32_t n, const GridPlanOptions& options = {.times = false}) {
        GridPlan plan;
        std::string about;
        const Status status = grid_plan(config(text, n), options, &plan, &about);
        EXPECT_TRUE(status.ok()) << about << ": " << status.what;
        return plan;
    }
};

TEST_F(GridPlanTest, MemoryIsWhatRunningJobsTake) {
    struct {
        uint32_t nodes, stages;
        const char *job, *more;
        uint32_t groups = 1;
    } cases[] = {{4, 1, "blocks = 6\n", "exchange = \"ring\"\n"},
                 {4, 1, "blocks = 6\nsurvive = true\n", "exchange = \"coded\"\ns = 1\n"},
                 {4, 2, stages_go, "exchange = \"multicast\"\n[parallel]\nstages = 2\nschedule = \"zero-bubble\"\n"},
                 {3, 3, stages_go, "[parallel]\nstages = 3\nmicro_batch = 2\nschedule = \"gpipe\"\n"},
                 {4, 2, stages_go, "exchange = \"coded\"\nm = 1\ns = 1\n[parallel]\nstages = 2\n"},
                 {4, 2, "blocks = 6\nsurvive = true\n", "[parallel]\nstages = 2\n"},
                 {3, 3, "blocks = 6\nsurvive = true\n", "[parallel]\nstages = 3\nbuddy = true\n"},
                 {6, 3, stages_go, "exchange = \"auto\"\n[parallel]\nstages = 3\n"},
                 {4, 1, stages_go, "[parallel]\nslices = 2\nsliced = [\"middle\"]\nslice_groups = 2\n", 2},
                 {4, 2, stages_go, "[parallel]\nstages = 2\nslices = 2\nsliced = [\"middle\"]\nslice_groups = 2\n", 2}};
    for (const auto& each : cases) {
        SCOPED_TRACE(each.more);
        const std::string text = replaced(net(40, std::string("[algorithm]\n") + each.more), "blocks = 6\n", each.job);
        const GridPlan planned = plan(text, each.nodes);
        const auto grid = std::ranges::find(planned.grids, each.stages, &PlannedGrid::stages);
        ASSERT_NE(grid, planned.grids.end());
        const Run run = this->run(text, each.nodes);
        ASSERT_TRUE(run.status.ok()) << run.status.what;
        EXPECT_EQ(grid->replicas * grid->stages * grid->slice_groups, each.nodes);
        EXPECT_EQ(run.ranks[grid->cost.fullest * each.groups + grid->fullest_group].memory, grid->memory);
        for (const JobStatus& rank : run.ranks) {
            uint64_t bytes = 0;
            for (const MemoryUse& place : rank.memory) bytes += place.total();
            EXPECT_LE(bytes, grid->cost.memory);
        }
        const MemoryByUse uses = memory_by_use(grid->memory);
        EXPECT_EQ(std::accumulate(uses.begin(), uses.end(), uint64_t{0}), grid->cost.memory);
        for (const MemoryFor use : {MemoryFor::parameters, MemoryFor::optimiser, MemoryFor::activations, MemoryFor::gradients,
                                    MemoryFor::words, MemoryFor::evaluation})
            EXPECT_GT(uses[static_cast<size_t>(use)], 0u) << memory_for_names[static_cast<size_t>(use)];
        EXPECT_EQ(uses[static_cast<size_t>(MemoryFor::edges)] > 0, each.stages * each.groups > 1);
    }
}

TEST_F(GridPlanTest, BytesAreWhatRunningJobsSend) {
    for (const auto& [stages, buddy] : {std::pair{1u, false}, {2u, false}, {4u, false}, {4u, true}}) {
        SCOPED_TRACE(fmt::format("{} {}", stages, buddy));
        const auto text = [&](uint32_t steps) {
            std::string made =
                replaced(net(300, fmt::format("[algorithm]\nexchange = \"ring\"\n{}",
                                              stages > 1 ? fmt::format("[parallel]\nstages = {}\nbuddy = {}\n", stages, buddy) : "")),
                         "blocks = 6\n", fmt::format("{}survive = {}\n", stages_go, buddy));
            made = replaced(made, "test = \"test.h5\"\n", "");
            return replaced(replaced(made, "steps = 2\n", fmt::format("steps = {}\n", steps)), "outputs = 4\n",
                            "outputs = 300\n[[net.layers]]\nkind = \"inner_product\"\noutputs = 4\n");
        };
        const auto sent = [&](uint32_t steps) {
            std::vector<uint64_t> bytes(4);
            const Run run = this->run(text(steps), {.ranks = 4}, {.sent = &bytes});
            EXPECT_TRUE(run.status.ok()) << run.status.what;
            return bytes;
        };
        const std::vector<uint64_t> few = sent(2), many = sent(6);
        uint64_t most = 0;
        for (Rank rank = 0; rank < 4; ++rank) most = std::max(most, (many[rank] - few[rank]) / 4);
        const GridPlan planned = plan(text(2), 4);
        const auto grid = std::ranges::find(planned.grids, stages, &PlannedGrid::stages);
        ASSERT_NE(grid, planned.grids.end());
        const double predicted = grid->cost.edges + grid->cost.words;
        EXPECT_GT(static_cast<double>(most), 0.98 * predicted);
        EXPECT_LT(static_cast<double>(most), 1.02 * predicted + 4000);   // and what keeps the job together
    }
}

TEST_F(GridPlanTest, ChoosesWhatFits) {
    const std::string text =
        replaced(net(300, "[algorithm]\nexchange = \"ring\"\n[parallel]\nstages = \"auto\"\n"), "blocks = 6\n", stages_go);
    const GridPlan any = plan(text, 6, {.times = true});
    ASSERT_EQ(any.grids.size(), 3u);   // 1, 2 and 3 stages; 6 are more than the net has
    EXPECT_GT(any.block_s, 0);
    for (const PlannedGrid& each : any.grids) EXPECT_GT(each.cost.step, 0);
    ASSERT_TRUE(any.alone.has_value());
    EXPECT_EQ(any.alone->cost.words, 0);
    EXPECT_GT(any.grids[0].cost.memory, any.grids[1].cost.memory);
    const GridPlan small = plan(text, 6, {.memory = any.grids[0].cost.memory - 1, .times = false});
    ASSERT_NE(small.chosen(), nullptr);
    EXPECT_GT(small.chosen()->stages, 1u);
    EXPECT_LE(small.chosen()->cost.memory, any.grids[0].cost.memory - 1);
    EXPECT_EQ(small.chosen()->cost.step, 0);
    EXPECT_EQ(plan(text, 6, {.memory = 1000, .times = false}).chosen(), nullptr);
}

// A link of 10 kbit/s makes the words of a replica the longest part of a step, so a job that need not survive takes one replica.
TEST_F(GridPlanTest, SurviveTakesTwoReplicasWhereTheyFit) {
    const GridPlanOptions slow{.wire = {.bits_per_s = 1e4}, .times = true};
    const auto text = [&](const char* job, const std::string& parallel) {
        return replaced(net(40, "[algorithm]\nexchange = \"ring\"\n[parallel]\n" + parallel), "blocks = 6\n", job);
    };
    constexpr char survive[] = "blocks = 6\nsurvive = true\n", any[] = "stages = \"auto\"\n";
    const GridPlan ends = plan(text(stages_go, any), 2, slow), survives = plan(text(survive, any), 2, slow);
    ASSERT_NE(ends.chosen(), nullptr);
    EXPECT_EQ(ends.chosen()->replicas, 1u);
    EXPECT_EQ(ends.notes, std::vector<std::string>());
    ASSERT_NE(survives.chosen(), nullptr);
    EXPECT_EQ(survives.chosen()->replicas, 2u);
    const std::string last = "survive: grids of one replica come last: with one the loss of any node ends the job";
    EXPECT_EQ(survives.notes, std::vector{last});
    EXPECT_NE(survives.reason(*survives.chosen(), slow).find("; " + last), std::string::npos);
    const GridPlan small = plan(text(survive, any), 2, {.memory = survives.grids[0].cost.memory - 1, .times = false});
    ASSERT_NE(small.chosen(), nullptr);
    EXPECT_EQ(small.chosen()->replicas, 1u);
    const std::string ends_with_any = "with one the loss of any node ends the job";
    EXPECT_EQ(small.notes, std::vector{"survive: no grid of two replicas fits in memory: " + ends_with_any});
    const std::string groups = "slices = 2\nsliced = [\"middle\"]\nslice_groups = 2\n";
    EXPECT_EQ(plan(text(survive, any + groups), 2).notes, std::vector{"survive: no grid of two replicas is possible: " + ends_with_any});
    // A buddy keeps each stage, so one replica goes on.
    EXPECT_EQ(plan(text(survive, "stages = 2\nbuddy = true\n"), 2).notes, std::vector<std::string>());
}

// A number of stages is the user's word: the job runs, and says what it does not survive.
TEST_F(GridPlanTest, OneReplicaThatIsToSurviveIsWarnedOf) {
    const auto warnings = [&](const char* job, const std::string& parallel, uint32_t nodes) {
        const Run run =
            this->run(replaced(net(40, "[algorithm]\nexchange = \"ring\"\n[parallel]\n" + parallel), "blocks = 6\n", job), nodes);
        EXPECT_TRUE(run.status.ok()) << run.status.what;
        return std::ranges::count_if(run.ranks[0].warnings,
                                     [](const std::string& each) { return each.starts_with("survive = true, but "); });
    };
    constexpr char survive[] = "blocks = 6\nsurvive = true\n";
    EXPECT_EQ(warnings(survive, "stages = 2\n", 2), 1);
    EXPECT_EQ(warnings(survive, "stages = 2\n", 3), 1);
    EXPECT_EQ(warnings(survive, "stages = 2\n", 4), 0);
    EXPECT_EQ(warnings(survive, "stages = 2\nbuddy = true\n", 2), 0);
    EXPECT_EQ(warnings(stages_go, "stages = 2\n", 2), 0);
    JobConfig job;
    job.survive = true, job.stages = 2, job.slice_groups = 2;
    EXPECT_EQ(one_replica_text(job, 4),
              "survive = true, but 4 nodes are one replica of 2 stages x 2 slice groups: the loss of a node that "
              "alone has its part ends the job; take 8 nodes for two replicas, or fewer stages");
    job.slice_groups = 1;
    EXPECT_EQ(one_replica_text(job, 3),
              "survive = true, but 3 nodes are one replica of 2 stages: the loss of a node that alone has its part "
              "ends the job; take 4 nodes for two replicas, or fewer stages, or buddy = true");
    EXPECT_EQ(one_replica_text(job, 4), "");
}

// A codec of a GPU has its words on the GPU when stages would add them up.
TEST_F(GridPlanTest, StagesShareWeightsOnCpusAlone) {
    const auto examined = [&](const std::string& device, const std::string& cut) {
        const std::string tied = "bias = false\n[[net.layers]]\nkind = \"linear\"\nname = \"again\"\nweights_of = \"middle\"\n";
        std::string text = replaced(net(40, "[parallel]\nstages = 2\ncuts = [\"" + cut + "\"]\n"), "name = \"middle\"\n",
                                    "name = \"middle\"\noutputs = 40\n" + tied + "bias = false\n");
        text = replaced(replaced(text, "[net]\n", "[net]\ndevice = \"" + device + "\"\n"), "blocks = 6\n", stages_go);
        JobParts parts;
        Report report{Log()};
        const Status status = parts.examine(config(text, 2), false, report);
        return status.ok() ? "" : fmt::format("{}: {}", parts.about, status.what);
    };
    EXPECT_EQ(examined("cpu", "again"), "");
    EXPECT_EQ(examined("cuda", "middle"), "");
    EXPECT_EQ(
        examined("cuda", "again"),
        "parallel.stages: layers of several stages take the weights of middle (weights_of), and stages share weights on CPUs alone in "
        "this version: take device = \"cpu\", or cut the net so that one stage has these layers (parallel.cuts)");
}

// The update that is measured needs the number of steps.
TEST_F(GridPlanTest, TakesSchedulesThatEndWithTheJob) {
    const std::string text = replaced(replaced(net(40, "[algorithm]\nexchange = \"ring\"\n"), "blocks = 6\n", stages_go), "[optimiser]\n",
                                      "[optimiser]\nschedule = \"cosine\"\n");
    const GridPlan made = plan(text, 2, {.times = true});
    ASSERT_EQ(made.grids.size(), 2u);
    for (const PlannedGrid& each : made.grids) EXPECT_GT(each.cost.step, 0);
}

TEST_F(GridPlanTest, LeavesOutGridsBelowMinNodes) {
    const std::string text = replaced(net(40, "[algorithm]\nexchange = \"ring\"\n[parallel]\nstages = \"auto\"\n"), "blocks = 6\n",
                                      "blocks = 6\nsurvive = true\nmin_nodes = 1\n");
    const GridPlan made = plan(text, 2);
    ASSERT_EQ(made.grids.size(), 1u);
    EXPECT_EQ(made.grids[0].stages, 1u);
    EXPECT_EQ(made.notes,
              std::vector<std::string>{"stages = 2: job.min_nodes = 1 is less than the 2 nodes of one replica: take at least 2, or 0"});
}

// Steps are predicted without the backward passes of these layers, of an uncut net and in stages.
TEST_F(GridPlanTest, LayersThatDoNotLearnHaveNoBackwardPass) {
    const std::string all = replaced(net(1000, "[algorithm]\nexchange = \"ring\"\n"), "blocks = 6\n", stages_go);
    const std::string last = replaced(all, "[optimiser]\n", "[optimiser]\nfreeze = [\"fc1\", \"middle\"]\n");
    using Times = std::array<double, 3>;   // a block; a step of 1 stage, of 2
    const auto measure = [&](const std::string& text, Times* fastest) {
        const GridPlan made = plan(text, 2, {.times = true});
        ASSERT_EQ(made.grids.size(), 2u);
        (*fastest)[0] = std::min((*fastest)[0], made.block_s);
        for (const size_t grid : {0, 1}) (*fastest)[grid + 1] = std::min((*fastest)[grid + 1], made.grids[grid].cost.step);
    };
    Times learnt = {1e9, 1e9, 1e9}, frozen = learnt;
    const auto less = [&] { return frozen[0] < 0.75 * learnt[0] && frozen[1] < learnt[1] && frozen[2] < learnt[2]; };
    for (int tries = 0; tries < 10 && !less(); ++tries) {   // a busy machine measures longer times
        measure(all, &learnt);
        measure(last, &frozen);
    }
    EXPECT_TRUE(less()) << fmt::format("{} and {}", fmt::join(frozen, ", "), fmt::join(learnt, ", "));
}

// Where slice groups are auto, too, each number of them is one grid for each number of stages, as if the job named both.
TEST_F(GridPlanTest, TriesSliceGroups) {
    const auto text = [&](const std::string& stages, const std::string& groups) {
        const std::string slices = "slices = 4\nsliced = [\"middle\"]\nslice_groups = ";
        return replaced(net(300, "[algorithm]\nexchange = \"ring\"\n[parallel]\n" + stages + slices + groups + "\n"), "blocks = 6\n",
                        stages_go);
    };
    const auto shapes = [](const GridPlan& made) {
        std::vector<std::array<uint32_t, 3>> all;
        for (const PlannedGrid& each : made.grids) all.push_back({each.stages, each.slice_groups, each.replicas});
        return all;
    };
    using Shapes = std::vector<std::array<uint32_t, 3>>;
    const GridPlan any = plan(text("stages = \"auto\"\n", "\"auto\""), 4);
    EXPECT_EQ(shapes(any), (Shapes{{1, 1, 4}, {1, 2, 2}, {1, 4, 1}, {2, 1, 2}, {2, 2, 1}}));
    EXPECT_EQ(shapes(plan(text("stages = \"auto\"\n", "\"auto\""), 6)), (Shapes{{1, 1, 6}, {1, 2, 3}, {2, 1, 3}, {3, 1, 2}, {3, 2, 1}}));
    EXPECT_EQ(shapes(plan(text("", "\"auto\""), 4, {.stages = 1, .times = false})), (Shapes{{1, 1, 4}, {1, 2, 2}, {1, 4, 1}}));
    EXPECT_EQ(shapes(plan(text("stages = 2\n", "\"auto\""), 4, {.stages = 2, .times = false})), (Shapes{{2, 1, 2}, {2, 2, 1}}));
    for (const PlannedGrid& each : any.grids) {
        SCOPED_TRACE(each.text());
        const GridPlan named = plan(text(fmt::format("stages = {}\n", each.stages), std::to_string(each.slice_groups)), 4);
        const auto same = std::ranges::find(named.grids, each.stages, &PlannedGrid::stages);
        ASSERT_NE(same, named.grids.end());
        EXPECT_EQ(same->memory, each.memory);
        EXPECT_EQ(same->cost.edges + same->cost.words, each.cost.edges + each.cost.words);
    }
    uint64_t least = UINT64_MAX;
    for (const PlannedGrid& each : any.grids) least = std::min(least, each.cost.memory);
    const GridPlan small = plan(text("stages = \"auto\"\n", "\"auto\""), 4, {.memory = least, .times = false});
    ASSERT_NE(small.chosen(), nullptr);
    EXPECT_EQ(small.chosen()->cost.memory, least);
    EXPECT_GT(small.chosen()->slice_groups, 1u);
    EXPECT_NE(small.reason(*small.chosen(), {.memory = least}).find("1 stage in 2 slice groups of 2 replicas: "), std::string::npos);
    const GridPlanOptions none{.memory = 1000, .stages = 1, .times = false};
    EXPECT_NE(
        plan(text("", "\"auto\""), 4, none).none_fits(none).find("no grid fits in memory of 0.0 MiB a node; the smallest is: 1 stage"),
        std::string::npos);
    // The faster one, by times.
    const GridPlan timed = plan(text("", "\"auto\""), 4, {.stages = 1, .times = true});
    ASSERT_NE(timed.chosen(), nullptr);
    for (const PlannedGrid& each : timed.grids) EXPECT_LE(timed.chosen()->cost.step, each.cost.step);
}

TEST_F(GridPlanTest, SaysWhatItDoesNotPlan) {
    EXPECT_EQ(plan(job_text("[algorithm]\nkind = \"ma\"\n"), 4).notes,
              (std::vector<std::string>{"stages: ma computes whole nets: stages go with ssgd"}));
    const GridPlan replicas = plan(job_text("[algorithm]\nexchange = \"coded\"\nm = 1\ns = 1\n"), 2);
    ASSERT_EQ(replicas.grids.size(), 1u);
    EXPECT_EQ(
        replicas.notes.back(),
        "stages = 2: algorithm.s = 1 with 1 replica of 2 nodes each: at most 0 can be lost: set s = 0, or take at least 2 replicas (4 "
        "nodes)");
    GridPlan none;
    std::string about;
    const std::string gpu = replaced(job_text(), "[net]\n", "[net]\ndevice = \"cuda\"\n");
    EXPECT_STREQ(grid_plan(config(gpu, 2), {}, &none, &about).what, "cuda: a plan is made of jobs on CPUs");
    EXPECT_EQ(about, "net.device");
}

}   // namespace
}   // namespace gradcast
