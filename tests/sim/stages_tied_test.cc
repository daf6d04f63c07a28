// Nets in stages whose layers share weights (algos/tied_sums.h): the bits of the whole net, wherever it is cut.
#include "runtime/job/model/checkpoint_files.h"
#include "tests/sim/stages_job.h"
#include "tests/sim/stages_protocols.h"

namespace gradcast {
namespace {

/// Preset gpt with the head's weights in the embedding.
StagesJob tied_gpt() {
    StagesJob job;
    job.of_text("");
    job.net += "tied_head = true\n";
    return job;
}

/// Three layers have the weights of the first one.
StagesJob three_uses() {
    StagesJob job = tied_gpt();
    Shard data;
    EXPECT_TRUE(shard_open(text_shard(), &data).ok());
    const std::string tied = fmt::format("kind = \"linear\"\noutputs = {}\nweights_of = \"wte\"\nbias = false\n", data.info.vocabulary);
    job.preset = "", job.net = "";
    job.slices = "[[net.layers]]\nkind = \"embedding\"\nname = \"wte\"\noutputs = 16\n";   // behind all other tables
    for (const char* more : {"kind = \"linear\"\noutputs = 16\n", "kind = \"softmax_cross_entropy\"\n"})
        job.slices += fmt::format("[[net.layers]]\n{}[[net.layers]]\n{}", tied, more);
    return job;
}

void expect_bits(StagesJob& job, uint32_t stages, uint32_t replicas) {
    job.parallel = fmt::format("stages = {}\n{}", stages, job.parallel);
    job.sim.ranks = stages * replicas;
    SCOPED_TRACE(fmt::format("{} stages of {} replicas, {}, {}, {}", stages, replicas, job.exchange, job.quantiser, job.parallel));
    const Status status = job.run();
    ASSERT_TRUE(status.ok()) << status.what;
    expect_wanted(job);
}

TEST(StagesTied, GiveTheBitsOfTheWholeNet) {
    for (const char* schedule : {"1f1b", "eager-zero-bubble"})
        for (const uint32_t stages : {2, 3, 4}) {
            StagesJob job = tied_gpt();
            job.parallel = fmt::format("schedule = \"{}\"\n", schedule);
            expect_bits(job, stages, 1);
        }
}

TEST(StagesTied, SumOverReplicas) {
    for (const auto& [exchange, quantiser] : {std::pair{"ring", "auto32"},
                                              {"ring", "auto16"},
                                              {"coded-rs", "auto16"},
                                              {"ps", "auto32"},
                                              {"multicast", "auto32"},
                                              {"unicast", "fixed"}}) {
        StagesJob job = tied_gpt();
        job.exchange = exchange, job.quantiser = quantiser;
        if (job.exchange == "multicast") job.datagram_bytes = 1400;
        expect_bits(job, 2, 2);
    }
}

TEST(StagesTied, GoWithOtherKeys) {
    struct Case {
        const char* what;
        uint32_t stages, replicas;
        std::function<void(StagesJob&)> set;
    };
    const Case cases[] = {
        {"averaged weights", 2, 2,
         [](StagesJob& job) { job.optimiser = "lr = 0.05\nmomentum = 0.9\nweight_decay = 0.01\nema = 0.75\nevaluate = \"ema\"\n"; }},
        {"norms of tensors", 3, 1,
         [](StagesJob& job) { job.optimiser = "kind = \"lamb\"\nlr = 0.01\nweight_decay = 0.01\ndecay_exempt = true\n"; }},
        {"a clipped norm", 2, 2, [](StagesJob& job) { job.optimiser += "clip_norm = 0.1\n"; }},
        {"blocks that pass together", 2, 2, [](StagesJob& job) { job.parallel += "micro_batch = 2\n"; }},
        {"several lanes", 3, 1, [](StagesJob& job) { job.lanes = 3, job.parallel += "micro_batch = 3\n"; }},
        {"activations that are computed again", 2, 1, [](StagesJob& job) { job.parallel += "schedule = \"gpipe\"\nrecompute = true\n"; }},
        {"all of that", 3, 2,
         [](StagesJob& job) {
             job.lanes = 2, job.parallel += "micro_batch = 2\nrecompute = true\n", job.optimiser += "ema = 0.5\nclip_norm = 0.1\n";
         }},
        {"a replica without a block", 2, 3, [](StagesJob& job) { job.blocks = 2; }},
        {"blocks that several replicas compute", 2, 3, [](StagesJob& job) { job.exchange = "coded-rs", job.options = "m = 2\n"; }},
        {"blocks that two replicas share", 2, 3, [](StagesJob& job) { job.exchange = "cssgd", job.options = "r = 2\n"; }},
        {"an exchange that is chosen", 2, 3, [](StagesJob& job) { job.exchange = "auto", job.steps = 20, job.evaluate = 20; }},
        {"slices of all layers", 2, 2,
         [](StagesJob& job) { job.slices = "slices = 4\nsliced = [\"wte\", \"h1_qkv\", \"h2_mlp2\", \"head\"]\n"; }},
    };
    for (const Case& each : cases) {
        SCOPED_TRACE(each.what);
        StagesJob job = tied_gpt();
        each.set(job);
        expect_bits(job, each.stages, each.replicas);
    }
}

// A slice of the embedding and that of the head are the same rows, at the same slice group of two stages.
TEST(StagesTied, InSlices) {
    constexpr const char *all = "slices = 4\nsliced = [\"wte\", \"h1_qkv\", \"h2_mlp2\", \"head\"]\n",
                         *others = "slices = 4\nsliced = [\"h1_qkv\", \"h2_mlp1\"]\n";
    struct Case {
        const char* slices;
        uint32_t stages, groups, replicas;
        const char *exchange, *options;
    };
    const Case cases[] = {{all, 2, 2, 1, "ring", ""},        {all, 2, 2, 2, "ring", ""},
                          {all, 3, 2, 1, "ring", ""},        {all, 2, 4, 1, "ring", ""},
                          {all, 3, 2, 2, "unicast", ""},     {all, 3, 4, 1, "ring", ""},
                          {others, 2, 2, 2, "ps", ""},       {others, 3, 4, 1, "ring", ""},
                          {all, 2, 4, 2, "multicast", ""},   {all, 2, 2, 3, "coded-rs", "m = 2\n"},
                          {all, 2, 2, 2, "coded", "s = 1\n"}};
    for (const auto& [slices, stages, groups, replicas, exchange, options] : cases)
        for (const char* optimiser : {"kind = \"adam\"\nlr = 0.002\n", "lr = 0.05\nmomentum = 0.9\nclip_norm = 0.1\n"}) {
            StagesJob job = tied_gpt();
            job.exchange = exchange, job.options = options, job.optimiser = optimiser, job.slices = slices;
            job.parallel = fmt::format("slice_groups = {}\nschedule = \"{}\"\n", groups, replicas == 1 ? "zero-bubble" : "1f1b");
            job.checkpoints = "checkpoint_every = 2\n";
            if (job.exchange == "multicast") job.datagram_bytes = 1400;
            job.parallel = fmt::format("stages = {}\n{}", stages, job.parallel);
            job.sim.ranks = stages * groups * replicas;
            SCOPED_TRACE(fmt::format("{} replicas, {}, {}", replicas, exchange, job.parallel));
            const Status status = job.run();
            ASSERT_TRUE(status.ok()) << status.what;
            expect_wanted(job);
            for (const auto& engine : job.engines)
                for (const std::string& warning : engine->status().warnings)
                    EXPECT_EQ(warning.find("no checkpoint"), warning.npos) << warning;
        }
}

TEST(StagesTied, OfThreeStages) {
    for (const char* cuts : {"stages = 3\ncuts = [\"linear1\", \"linear3\"]\n", "stages = 2\ncuts = [\"linear2\"]\n"}) {
        StagesJob job = three_uses();
        job.parallel = cuts;
        job.sim.ranks = std::string_view(cuts)[9] - '0';
        const Status status = job.run();
        ASSERT_TRUE(status.ok()) << status.what;
        expect_wanted(job);
    }
}

TEST(StagesTied, FrozenOrClippedByTheLimit) {
    StagesJob frozen = tied_gpt();
    frozen.optimiser += "freeze = [\"wte\"]\n";
    expect_bits(frozen, 3, 1);
    StagesJob clipped = tied_gpt();
    clipped.quantiser = "fixed", clipped.exchange = "unicast";
    clipped.optimiser = "lr = 5.0\n";
    expect_bits(clipped, 2, 2);
}

// Each stage has one gradient of the tensor in a block, a whole net has two: their words are wider.
TEST(StagesTied, WordsOfOneBlock) {
    for (const char* exchange : {"unicast", "ps", "cssgd"}) {
        StagesJob job = tied_gpt();
        job.quantiser = "fixed", job.exchange = exchange, job.options = std::string_view(exchange) == "cssgd" ? "r = 1\n" : "";
        job.optimiser = "lr = 0.5\n", job.blocks = 2;
        expect_bits(job, 1, 2);
        StagesJob cut = tied_gpt();
        cut.quantiser = "fixed", cut.exchange = "unicast", cut.optimiser = job.optimiser, cut.blocks = 2;
        expect_bits(cut, 2, 2);
    }
}

// The last stage has no layer but the head, so it answers for no element.
TEST(StagesTied, AStageWithoutElementsWritesItsPart) {
    StagesJob job = tied_gpt();
    job.parallel = "stages = 2\ncuts = [\"head\"]\n";
    job.checkpoints = "checkpoint_every = 2\ncheckpoint_keep = 2\ncheckpoint_copies = 2\n";
    job.steps = 12, job.sim.ranks = 2, job.tested = false;
    const Status status = job.run();
    ASSERT_TRUE(status.ok()) << status.what;
    expect_wanted(job);
    for (const auto& engine : job.engines)
        for (const std::string& warning : engine->status().warnings) ADD_FAILURE() << warning;
    for (const std::string& folder : job.folders) EXPECT_FALSE(checkpoints_in(folder).empty());
}

TEST(StagesTied, BeginWithParametersOfAFile) {
    StagesJob first = tied_gpt();
    first.steps = 1;
    StagesJob job = tied_gpt();
    job.start = trained_start(&first);
    expect_bits(job, 2, 1);
}

TEST(StagesTied, TellTheBytesOfTheirSums) {
    StagesJob job = tied_gpt();
    job.parallel = "stages = 2\n";
    job.sim.ranks = 2;
    const Status status = job.run();
    ASSERT_TRUE(status.ok()) << status.what;
    Shard data;
    ASSERT_TRUE(shard_open(text_shard(), &data).ok());
    for (const auto& engine : job.engines)
        EXPECT_EQ(engine->status().bytes_bound, job.steps * (data.info.vocabulary * 24 * sizeof(int32_t) + 64));
}

// The copy of the stage that does not answer for the tensor is compared with the other one.
TEST(StagesTied, DifferentCopiesEndTheJob) {
    for (const Rank liar : {0, 1}) {
        StagesJob job = tied_gpt();
        job.parallel = "stages = 2\n", job.optimiser = "lr = 0.02\n";
        job.sim.ranks = 2;
        std::unique_ptr<LyingProtocol> lying;
        job.wrap = [&](Rank rank, uint16_t channel, Protocol* protocol) -> Protocol* {
            if (rank != liar || channel != mail_channel) return protocol;
            lying = std::make_unique<LyingProtocol>(*protocol, uint64_t{5} << 60 | 1, 3);   // words of step 0: algos/tied_sums.cc
            return lying.get();
        };
        EXPECT_EQ(job.run().code, Code::conflict);
        const std::string_view wanted = "step 1: node0 and node1 have the same weights (weights_of) and differ in them";
        const Status status = job.simulator->result(0);
        EXPECT_TRUE(std::string_view(status.what).ends_with(wanted)) << status.what;
        job.simulator.reset();
    }
}

}   // namespace
}   // namespace gradcast
