// Jobs whose net is cut into stages, over the simulator: every cut, schedule and number of replicas gives the digest, the losses and the
// accuracy of the uncut net on one rank.
#include "algos/grid/grid.h"
#include "algos/grid/schedule.h"
#include "nn/evaluation.h"
#include "nn/net.h"
#include "runtime/core/channel.h"
#include "runtime/job/run/job_check.h"
#include "tests/sim/seeds.h"
#include "tests/sim/stages_job.h"
#include "tests/sim/stages_protocols.h"

namespace gradcast {
namespace {

TEST(Stages, GiveTheBitsOfTheWholeNet) {
    for (const char* preset : {"lenet5", "mlp", "nin", "resnet9"})
        for (uint32_t stages : {2u, 3u, 4u})
            for (const char* schedule : pipeline_schedule_names()) {
                const bool large = preset == std::string("nin") || preset == std::string("resnet9");
                const char* one[] = {"zero-bubble", "1f1b", "gpipe"};   // by stages, of nets that take long
                if (large && schedule != std::string_view(one[stages - 2])) continue;
                SCOPED_TRACE(fmt::format("{} in {} stages, {}", preset, stages, schedule));
                StagesJob job;
                job.preset = preset;
                job.parallel = fmt::format("stages = {}\nschedule = \"{}\"\n", stages, schedule);
                job.sim.ranks = stages;
                job.sim.jitter_us = 200;
                if (large) job.steps = 2, job.blocks = 5, job.batch = 8;   // blocks of two sizes
                const Status status = job.run();
                ASSERT_TRUE(status.ok()) << status.what;
                expect_wanted(job);
            }
}

TEST(Stages, GiveTheBitsOfTheWholeNetInReplicas) {
    for (const char* exchange : {"ring", "unicast", "multicast", "ps", "coded", "coded-rs"})
        for (uint32_t replicas : {2u, 3u}) {
            SCOPED_TRACE(fmt::format("{} over {} replicas", exchange, replicas));
            StagesJob job;
            job.parallel = "stages = 2\nmicro_batch = 2\n";
            job.exchange = exchange;
            job.sim.ranks = 2 * replicas;
            const Status status = job.run();
            ASSERT_TRUE(status.ok()) << status.what;
            expect_wanted(job);
        }
}

// Some layers of each stage are frozen, or do not decay.
TEST(Stages, FreezeTheLayersOfTheWholeNet) {
    StagesJob job;
    job.preset = "cnn-norm", job.steps = 2, job.blocks = 2, job.batch = 4;
    job.optimiser =
        "lr = 0.05\nmomentum = 0.9\nweight_decay = 0.01\nema = 0.75\nevaluate = \"ema\"\ndecay_exempt = true\nfreeze = [\"conv1\", "
        "\"norm2\", \"fc1.bias\"]\n";
    job.parallel = "stages = 3\n";
    job.sim.ranks = 3;
    const Status status = job.run();
    ASSERT_TRUE(status.ok()) << status.what;
    expect_wanted(job);
}

// Stages without a layer that learns have no backward pass, and get no gradients.
TEST(Stages, OfFrozenLayersDoNotGoBack) {
    struct Case {
        const char* parallel;
        uint32_t ranks;
        const char *exchange = "ring", *options = "", *more = "", *quantiser = "auto32";
    };
    const Case cases[] = {{"stages = 2\n", 2},
                          {"stages = 2\ncuts = [\"fc3\"]\nschedule = \"zero-bubble\"\n", 2},
                          {"stages = 3\nschedule = \"gpipe\"\nmicro_batch = 2\n", 3},
                          {"stages = 4\nschedule = \"eager-1f1b\"\n", 4},
                          {"stages = 3\nrecompute = true\n", 3},
                          {"stages = 2\n", 6, "coded-rs", "m = 2\ns = 1\n"},
                          {"stages = 2\nschedule = \"eager-zero-bubble\"\n", 4, "unicast", "", "", "fixed"},
                          {"stages = 3\nbuddy = true\n", 3, "ring", "", "survive = true\n"}};
    for (const Case& each : cases)
        for (const char* freeze : {"[\"conv1\", \"conv2\", \"fc1\", \"fc2\"]", "[\"conv1\", \"conv2\"]", "[\"conv1\", \"fc1\", \"fc2\"]"}) {
            SCOPED_TRACE(fmt::format("{}, {}", each.parallel, freeze));
            StagesJob job;
            job.optimiser = fmt::format("lr = 0.05\nmomentum = 0.9\nclip_norm = 0.05\nfreeze = {}\n", freeze);
            job.parallel = each.parallel, job.exchange = each.exchange, job.options = each.options, job.quantiser = each.quantiser;
            job.checkpoints += each.more;
            job.sim.ranks = each.ranks;
            const Status status = job.run();
            ASSERT_TRUE(status.ok()) << status.what;
            expect_wanted(job);
        }
}

// The norms of a tensor are those of the whole net's.
TEST(Stages, TakeTheNormsOfLamb) {
    StagesJob job;
    job.preset = "cnn-norm", job.steps = 2, job.blocks = 2, job.batch = 4;
    job.optimiser = "kind = \"lamb\"\nlr = 0.01\nweight_decay = 0.01\ndecay_exempt = true\n";
    job.parallel = "stages = 3\n";
    job.sim.ranks = 3;
    const Status status = job.run();
    ASSERT_TRUE(status.ok()) << status.what;
    expect_wanted(job);
}

// Of a net with batch norm: a stage's statistics are apart from its weights.
TEST(Stages, BeginWithParametersOfAFile) {
    StagesJob first;
    first.preset = "resnet9", first.steps = 1, first.blocks = 2, first.batch = 4;
    StagesJob job;
    job.start = trained_start(&first);
    job.preset = "resnet9", job.steps = 1, job.blocks = 2, job.batch = 4;
    job.parallel = "stages = 3\n";
    job.sim.ranks = 3;
    const Status status = job.run();
    ASSERT_TRUE(status.ok()) << status.what;
    expect_wanted(job);
    EXPECT_NE(job.outcome(0).digest, first.outcome(0).digest);
}

uint64_t activation_bytes(const Engine& engine) {
    uint64_t bytes = 0;
    for (const MemoryUse& use : engine.status().memory)
        for (const auto& [purpose, count] : use.bytes) bytes += purpose == "activations" ? count : 0;
    return bytes;
}

// Batch norm and dropout are computed twice: statistics, losses and counts of right answers go in once.
TEST(Stages, ComputeActivationsAgain) {
    struct Case {
        const char *preset, *parallel;
        uint32_t ranks;
    };
    const Case cases[] = {{"resnet9", "stages = 2\nschedule = \"gpipe\"\n", 2},
                          {"resnet9", "stages = 3\n", 3},
                          {"nin", "stages = 2\nschedule = \"gpipe\"\n", 2},
                          {"nin", "stages = 3\nmicro_batch = 2\n", 6},
                          {"mlp", "stages = 2\nmicro_batch = 3\n", 2}};
    for (const Case& each : cases) {
        SCOPED_TRACE(fmt::format("{}, {}", each.preset, each.parallel));
        std::vector<uint64_t> bytes[2];   // by rank
        const bool gpipe = std::string_view(each.parallel).find("gpipe") != std::string_view::npos;
        for (const bool recompute : {false, true}) {
            if (!recompute && !gpipe) continue;
            StagesJob job;
            job.preset = each.preset;
            job.parallel = fmt::format("{}recompute = {}\n", each.parallel, recompute);
            job.sim.ranks = each.ranks;
            job.steps = 2, job.blocks = 8, job.batch = 16;
            job.tested = !gpipe;   // an evaluation takes some MiB, whatever the blocks take
            const Status status = job.run();
            ASSERT_TRUE(status.ok()) << status.what;
            expect_wanted(job);
            for (const auto& engine : job.engines) bytes[recompute].push_back(activation_bytes(*engine));
        }
        // Of 8 blocks one has its activations, and each what has come from other stages.
        for (Rank rank = 0; rank < each.ranks && gpipe; ++rank) EXPECT_LT(bytes[true][rank], bytes[false][rank] / 3) << "rank " << rank;
    }
}

TEST(Stages, AutoChoosesOneExchangeForAllStages) {
    StagesJob job;
    job.parallel = "stages = 2\n";
    job.exchange = "auto";
    job.steps = 40, job.evaluate = 20;
    job.sim.ranks = 6;
    job.sim.jitter_us = 100;
    const Status status = job.run();
    ASSERT_TRUE(status.ok()) << status.what;
    expect_wanted(job);
    for (const auto& engine : job.engines) {
        ASSERT_TRUE(engine->status().choice.has_value());
        EXPECT_EQ(exchange_report_text(*engine->status().choice), exchange_report_text(*job.engines[0]->status().choice));
    }
}

// What a stage, a replica or a micro-batch may have less of than others.
TEST(Stages, GiveTheBitsOfTheWholeNetInUnequalParts) {
    struct Case {
        const char *what, *preset, *parallel;
        uint32_t ranks;
        std::function<void(StagesJob&)> set;
    };
    const Case cases[] = {
        {"blocks of two sizes, and a micro-batch that divides nothing", "lenet5",
         "stages = 3\nmicro_batch = 4\nschedule = \"zero-bubble\"\n", 3, [](StagesJob& job) { job.batch = 17; }},
        {"several blocks in a call", "mlp", "stages = 2\nmicro_batch = 5\nschedule = \"gpipe\"\n", 2,
         [](StagesJob& job) { job.batch = 14; }},
        {"a replica without a block", "lenet5", "stages = 2\n", 6, [](StagesJob& job) { job.blocks = 2; }},
        {"replicas with other numbers of blocks", "mlp", "stages = 2\nmicro_batch = 2\n", 4, [](StagesJob& job) { job.blocks = 5; }},
        {"adam and weight decay", "resnet9", "stages = 2\nmicro_batch = 3\n", 2,
         [](StagesJob& job) { job.optimiser = "kind = \"adam\"\nlr = 0.001\nweight_decay = 0.01\nwarm_up = 2\n"; }},
        {"words of 16 bits, and statistics", "resnet9", "stages = 4\n", 4, [](StagesJob& job) { job.quantiser = "auto16"; }},
        {"gradients that are clipped", "lenet5", "stages = 2\n", 4,
         [](StagesJob& job) { job.quantiser = "fixed", job.exchange = "unicast", job.optimiser = "lr = 0.5\n"; }},
        {"no test data", "mlp", "stages = 3\n", 3, [](StagesJob& job) { job.tested = false; }},
        {"multicast datagrams of which some are lost", "lenet5", "stages = 2\n", 6,
         [](StagesJob& job) { job.exchange = "multicast", job.datagram_bytes = 1432, job.sim.loss = 0.01; }},
        {"sliced layers at both sides of a cut", "mlp", "stages = 3\ncuts = [\"fc2\", \"relu2\"]\nschedule = \"zero-bubble\"\n", 3,
         [](StagesJob& job) { job.slices = "slices = 4\n"; }},
        {"a sliced stage that is computed again", "mlp", "stages = 2\nrecompute = true\nschedule = \"gpipe\"\n", 4,
         [](StagesJob& job) { job.slices = "slices = 2\nsliced = [\"fc4\", \"fc2\"]\n"; }},
        {"sliced convolutions", "nin", "stages = 3\n", 3,
         [](StagesJob& job) { job.slices = "slices = 2\nsliced = [\"conv2\", \"conv3\", \"conv5\"]\n"; }},
        {"edges of bf16", "nin", "stages = 3\n", 3, [](StagesJob& job) { job.precision = "bf16"; }},
    };
    for (const Case& each : cases) {
        SCOPED_TRACE(each.what);
        StagesJob job;
        job.preset = each.preset, job.parallel = each.parallel, job.sim.ranks = each.ranks;
        if (job.preset == "nin" || job.preset == "resnet9") job.steps = 2;
        each.set(job);
        if (job.precision == "bf16" && isa_best() < Isa::avx512_bf16) continue;
        const Status status = job.run();
        ASSERT_TRUE(status.ok()) << status.what;
        expect_wanted(job);
    }
}

// The virtual time of a step beside that of the schedule's formula, over a link that takes its time.  Stages have equal times, then one of
// them is slower.
TEST(Stages, IdleAsTheirScheduleSays) {
    constexpr uint64_t pass_us = 20'000;
    for (const auto& [schedule, recompute] : {std::pair{Schedule::gpipe, false},
                                              {Schedule::one_forward_one_backward, false},
                                              {Schedule::zero_bubble, false},
                                              {Schedule::eager_one_forward_one_backward, false},
                                              {Schedule::eager_zero_bubble, false},
                                              {Schedule::gpipe, true},
                                              {Schedule::one_forward_one_backward, true}})
        for (const auto& [stages, blocks] : {std::pair{2u, 4u}, {4u, 8u}})
            for (const auto& [slower, latency_us] : {std::pair{1.0, uint64_t{500}}, {1.5, 500}, {1.0, 9'000}, {1.0, 15'000}}) {
                if (recompute && (slower > 1 || latency_us > 500)) continue;
                // The last stage has one slot, whose gradient must have arrived before the next one is computed, a forward pass later.
                if (schedule == Schedule::eager_one_forward_one_backward && 2 * latency_us > pass_us) continue;
                SCOPED_TRACE(fmt::format("{}, recompute {}, {} stages, {} blocks, {}, {}",
                                         pipeline_schedule_names()[static_cast<size_t>(schedule)], recompute, stages, blocks, slower,
                                         latency_us));
                auto run_us = [&](uint32_t steps) {
                    StagesJob job;
                    job.parallel = fmt::format("stages = {}\nschedule = \"{}\"\nrecompute = {}\n", stages,
                                               pipeline_schedule_names()[static_cast<size_t>(schedule)], recompute);
                    job.sim.ranks = stages;
                    job.sim.latency_us = latency_us;
                    job.sim.jitter_us = 0;
                    job.sim.rate_bytes_per_s = 1e9;
                    job.steps = steps, job.blocks = blocks, job.batch = 2 * blocks, job.evaluate = 100;
                    job.spend_us = pass_us;
                    job.before = [&](Simulator& sim) { sim.slow(1, slower); };
                    const Status status = job.run();
                    EXPECT_TRUE(status.ok()) << status.what;
                    return static_cast<double>(job.simulator->now_us());
                };
                const double step_us = (run_us(4) - run_us(2)) / 2;
                std::vector<StageTimes> times(stages, {pass_us, pass_us, pass_us});
                for (uint32_t stage = 0; stage < stages && recompute; ++stage)
                    if (slots_of(stage_tasks(schedule, stages, stage, blocks)) > 1) times[stage].data += pass_us;
                if (slower > 1) times[1] = {slower * pass_us, slower * pass_us, slower * pass_us};
                const PipelineCost cost = pipeline_cost(schedule, times, blocks, static_cast<double>(latency_us));
                const double whole_us = cost.step + 2 * static_cast<double>(latency_us);   // all have their sums; all tell their digests
                for (uint32_t stage = 0; stage < stages; ++stage) {
                    const double least = 1 - times[stage].sum() * blocks / whole_us;
                    const double idle = 1 - times[stage].sum() * blocks / step_us;
                    EXPECT_LT(idle, 1.05 * least) << "stage " << stage;
                    EXPECT_GT(idle, 0.95 * cost.idle[stage]) << "stage " << stage;
                }
            }
}

/// Samples of 16 x 16 pixels with a mask of 3 classes.
std::string masks() {
    constexpr uint32_t count = 40, pixels = 16 * 16;
    const std::string path = test_folder() + "/masks.h5";
    std::vector<uint8_t> images;
    std::vector<std::byte> masks;
    for (uint64_t i = 0; i < count * pixels; ++i) {
        images.push_back(static_cast<uint8_t>(splitmix64(i)));
        masks.push_back(static_cast<std::byte>(images.back() / 90));
    }
    DataInfo info{count, 1, 16, 16, 3, {0.5f}, {0.3f}, "noise"};
    info.targets = pixels, info.target_element = Element::u8;
    const Status status = shard_write(path, info, images.data(), masks.data());
    EXPECT_TRUE(status.ok()) << status.what;
    return path;
}

/// A net that is cut at each `every`-th place where a stage can begin.
struct CutNet {
    const char* preset;
    uint32_t every;
    NetSpec spec;
    const char* net = "";
    std::string train = {};   // StagesJob::train
};

std::vector<CutNet> cut_nets() {
    const auto of = [](uint32_t C, uint32_t side) { return NetSpec{.C = C, .H = side, .W = side}; };
    NetSpec masked = of(1, 16), text{.C = 1, .H = 1, .W = 13, .classes = 1, .element = Element::u16, .vocabulary = 20};
    masked.classes = 3, masked.targets = 16 * 16, masked.target_element = Element::u8;
    return {{"lenet5", 1, of(1, 28)},
            {"mlp", 1, of(1, 28)},
            {"nin", 4, of(3, 32)},
            {"resnet9", 4, of(3, 32)},
            {"gpt", 4, text, "depth = 2\nwidth = 24\nheads = 3\n"},
            {"unet", 24, masked, "", masks()},
            {"resnet18", 24, of(3, 16), "", shard(3, 16)}};
}

void any_cut(uint64_t seed) {
    uint64_t turn = seed;   // of the schedules
    const bool many = std::getenv("GC_SEEDS") || std::getenv("GC_SEED");
    for (CutNet& each : cut_nets()) {
        if (each.every > 4 && !many) continue;   // nets of many millions of parameters: make nightly
        ASSERT_TRUE(preset_layers(each.preset, {.depth = 2, .width = 24, .heads = 3}, &each.spec).ok());
        NetOrder order;
        ASSERT_TRUE(net_cpu_order(each.spec, &order).ok());
        uint32_t seen = 0, cuts = 0;
        for (const uint32_t begin : order.begins) {
            const bool learns = std::find(order.learns.begin() + begin, order.learns.end(), true) != order.learns.end();
            if (begin == 0 || !learns || ++seen % each.every != seed % each.every) continue;
            const char* schedule = pipeline_schedule_names()[turn++ % pipeline_schedule_names().size()];
            SCOPED_TRACE(fmt::format("{} cut at {}, {}", each.preset, order.names[begin], schedule));
            StagesJob job;
            job.preset = each.preset, job.net = each.net, job.train = each.train;
            job.parallel = fmt::format("stages = 2\nschedule = \"{}\"\ncuts = [\"{}\"]\n", schedule, order.names[begin]);
            job.sim.ranks = 2;
            if (each.every > 1) job.steps = 2, job.blocks = 3, job.batch = 5;
            if (each.every > 4) job.batch = 7, job.tested = false;   // at least two samples a block, for batch norm
            const Status status = job.run();
            ASSERT_TRUE(status.ok()) << status.what;
            expect_wanted(job);
            ++cuts;
        }
        EXPECT_GE(cuts, 2u) << each.preset;
    }
}

// No bit depends on where a net is cut, in any schedule.  GC_SEEDS=24 tries every cut of the large nets, one seed a fourth or a 24th of
// them.
TEST(SlowStages, AnyAllowedCut) {
    for_seeds(1, [](uint64_t seed) { any_cut(seed); });
}

// A net of large samples computes fewer than 100 at a time, and adds their losses in order.
TEST(Stages, EvaluateInPieces) {
    StagesJob job, alone;
    for (StagesJob* each : {&job, &alone}) each->preset = "resnet9", each->steps = 2, each->blocks = 3, each->batch = 5;
    job.parallel = "stages = 2\n";
    job.sim.ranks = 2, alone.sim.ranks = 1;
    job.lanes = 2;
    JobConfig config;
    ASSERT_TRUE(job.parse(&config).ok());
    NetSpec spec{.C = 3, .H = 32, .W = 32};
    ASSERT_TRUE(preset_layers("resnet9", {}, &spec).ok());
    const uint32_t piece = evaluation_piece(spec, 2, 100);
    EXPECT_GE(piece, 2u);
    EXPECT_LT(piece, 23u);   // three pieces or more, of 46 samples
    for (StagesJob* each : {&job, &alone}) {
        const Status status = each->run();
        ASSERT_TRUE(status.ok()) << status.what;
    }
    const JobStatus wanted = alone.engines[0]->status();
    EXPECT_GT(wanted.test_loss, 0);
    for (const auto& engine : job.engines) {
        EXPECT_EQ(engine->status().test_loss, wanted.test_loss);
        EXPECT_EQ(engine->status().accuracy, wanted.accuracy);
    }
}

TEST(Stages, CutsThatCannotBeAreNamed) {
    const struct {
        uint32_t nodes;
        const char *parallel, *error;
    } rows[] = {
        {2, "stages = 2\ncuts = [\"conv9\"]\n", "parallel.cuts: \"conv9\" is no layer of the net; stages can begin at conv2, fc1, "},
        {2, "stages = 2\ncuts = [\"conv1\"]\n", "parallel.cuts: \"conv1\" is the first layer; stages can begin at conv2, fc1, "},
        {2, "stages = 2\ncuts = [\"relu1\"]\n", "parallel.cuts: \"relu1\" is computed with the layers before it; stages can begin at "},
        {3, "stages = 3\ncuts = [\"fc2\", \"fc1\"]\n", "parallel.cuts: \"fc1\" is not behind the layer that begins the stage before"},
        {3, "stages = 3\ncuts = [\"fc2\", \"fc2\"]\n", "parallel.cuts: \"fc2\" is not behind the layer that begins the stage before"},
        {2, "stages = 2\ncuts = [\"loss1\"]\n", "parallel.cuts: the stage that begins at loss1 has no parameters: choose other layers"},
        {6, "stages = 6\n", "parallel.stages: 6 stages are more than the 5 that this net can be cut into"},
        {3, "stages = 2\n",
         "parallel.stages: 2 stages take 2, 4, ... nodes, and the job has 3: each node computes one; survive = true keeps spare nodes"},
    };
    for (const auto& row : rows) {
        StagesJob job;
        job.parallel = row.parallel;
        JobConfig config;
        ASSERT_TRUE(job.parse(&config).ok()) << row.parallel;
        JobCheck check;
        const Status status = job_check(config, "job.toml", {.nodes = row.nodes, .verify = false}, &check);
        EXPECT_EQ(status.code, Code::invalid) << row.parallel;
        EXPECT_NE(std::string_view(status.what).find(fmt::format(": {}", row.error)), std::string_view::npos) << status.what;
    }
}

TEST(Stages, LanesWithoutWorkAreNamed) {
    for (const uint32_t micro_batch : {1, 2}) {
        StagesJob job;
        job.parallel = fmt::format("stages = 2\nmicro_batch = {}\n", micro_batch);
        job.sim.ranks = 2;
        job.lanes = 2;
        job.tested = false;
        const Status status = job.open();
        ASSERT_TRUE(status.ok()) << status.what;
        std::vector<std::string> wanted;
        if (micro_batch == 1) wanted = {"parallel.micro_batch = 1 leaves lanes without work: this node has 2"};
        for (const auto& engine : job.engines) EXPECT_EQ(engine->status().warnings, wanted);
    }
}

// By what crosses the cut: values of one stage, as many gradients of the other.
TEST(Stages, TellTheBytesOfTheirEdges) {
    StagesJob job;
    job.parallel = "stages = 2\ncuts = [\"fc1\"]\n";
    job.sim.ranks = 2;
    job.tested = false;
    const Status status = job.run();
    ASSERT_TRUE(status.ok()) << status.what;
    const uint64_t step_bytes = job.batch * 3200 * sizeof(float);   // lenet5 has so many values before fc1
    for (Rank rank = 0; rank < 2; ++rank) {
        const JobStatus& said = job.engines[rank]->status();
        EXPECT_EQ(said.edge_bytes, job.steps * step_bytes);
        EXPECT_EQ(said.bytes_bound, 0u);   // one replica
        EXPECT_GT(job.simulator->bytes_sent(rank), said.edge_bytes);
        std::ifstream lines(job.folders[rank] + "/steps.jsonl");
        std::string line;
        ASSERT_TRUE(std::getline(lines, line));
        EXPECT_EQ(Json::parse(line)["edge_bytes"], step_bytes);
        EXPECT_EQ(Json::parse(line)["word_bytes"], 0);
    }
}

// What does not come has a deadline, and the error names it.
TEST(Stages, AnEdgeThatDoesNotComeIsNamed) {
    StagesJob job;
    job.parallel = "stages = 2\n";
    job.sim.ranks = 2;
    std::unique_ptr<DeafProtocol> deaf;
    job.wrap = [&](Rank rank, uint16_t channel, Protocol* protocol) -> Protocol* {
        if (rank != 1 || channel != edge_channel) return protocol;
        deaf = std::make_unique<DeafProtocol>(*protocol);
        return deaf.get();
    };
    const Status status = job.run();
    EXPECT_EQ(status.code, Code::deadline) << status.what;
    for (const char* part :
         {" of 2 (", ") has waited 40 s for the ", " of layer relu1 in block 0: edge ", " from rank ", " is missing: 0 of "})
        EXPECT_NE(std::string_view(status.what).find(part), std::string_view::npos) << part << ": " << status.what;
    job.simulator.reset();
}

// Replicas of a stage agree in every step: on its sums before any rank applies them, and on its state after it.
TEST(Stages, ReplicasThatDifferEndTheJob) {
    Grid grid;
    ASSERT_TRUE(Grid::make(4, 2, 1, &grid).ok());
    const Rank liar = grid.rank_of(1, {1, 0}), honest = grid.rank_of(0, {1, 0});
    const struct {
        uint64_t tag;
        size_t byte;
        const char* what;
    } rows[] = {{cells_tags, 16, "sums"}, {cells_tags, 24, "sums"}, {cells_tags | 3, 0, "state"}};   // clipped, loss, digest
    for (const auto& row : rows) {
        StagesJob job;
        job.parallel = "stages = 2\n";
        job.sim.ranks = 4;
        std::unique_ptr<LyingProtocol> lying;
        job.wrap = [&](Rank rank, uint16_t channel, Protocol* protocol) -> Protocol* {
            if (rank != liar || channel != mail_channel) return protocol;
            lying = std::make_unique<LyingProtocol>(*protocol, row.tag, row.byte);
            return lying.get();
        };
        EXPECT_EQ(job.run().code, Code::conflict);
        const std::string wanted =
            fmt::format("step 1: node{} and node{} compute the same stage and differ in its {}", honest, liar, row.what);
        for (Rank rank = 0; rank < 4; ++rank) {
            const Status status = job.simulator->result(rank);
            EXPECT_EQ(status.code, Code::conflict);
            EXPECT_TRUE(std::string_view(status.what).ends_with(wanted)) << status.what;
        }
        job.simulator.reset();
    }
}

TEST(Stages, DivergeTogether) {
    StagesJob job;
    job.parallel = "stages = 3\n";
    job.sim.ranks = 3;
    job.optimiser = "lr = 1e30\n";
    const Status status = job.run();
    EXPECT_EQ(status.code, Code::diverged) << status.what;
    for (Rank rank = 0; rank < 3; ++rank) EXPECT_EQ(job.simulator->result(rank).code, Code::diverged);
}

// A node that dies ends the job at the others.
TEST(Stages, ALostStageEndsTheJob) {
    StagesJob job;
    job.parallel = "stages = 2\n";
    job.sim.ranks = 2;
    job.sim.lost_after_us = 500'000;
    job.spend_us = 20'000;
    job.steps = 20;
    job.before = [](Simulator& sim) { sim.kill(1, 1'500'000); };
    const Status status = job.run();
    EXPECT_EQ(status.code, Code::peer_lost) << status.what;
    EXPECT_NE(std::string_view(status.what).find("rank 1 (node1)"), std::string_view::npos) << status.what;
}

}   // namespace
}   // namespace gradcast
