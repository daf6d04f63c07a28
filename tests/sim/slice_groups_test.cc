// Jobs whose nodes share the slices of layers, over the simulator: every grid gives the digest, the losses and the accuracy of the uncut
// net with the same slices on one rank.
#include <set>

#include "datasets/reader.h"
#include "datasets/sampler.h"
#include "nn/graph/slices.h"
#include "nn/net.h"
#include "runtime/job/run/job_check.h"
#include "tests/sim/stages_job.h"
#include "tests/sim/stages_protocols.h"

namespace gradcast {
namespace {

StagesJob job_of(uint32_t stages, uint32_t groups, uint32_t replicas, const char* schedule = "1f1b") {
    StagesJob job;
    job.preset = "mlp";
    job.slices = "slices = 4\n";
    job.parallel = fmt::format("slice_groups = {}\n", groups);
    if (stages > 1) job.parallel += fmt::format("stages = {}\nschedule = \"{}\"\n", stages, schedule);
    job.sim.ranks = stages * groups * replicas;
    job.sim.jitter_us = 100;
    job.steps = 2;
    return job;
}

TEST(SliceGroups, GiveTheBitsOfTheWholeNet) {
    for (const uint32_t groups : {2u, 4u})
        for (const uint32_t stages : {1u, 2u})
            for (const uint32_t replicas : {1u, 2u})
                for (const char* schedule : {"gpipe", "1f1b", "zero-bubble"}) {
                    if (stages == 1 && schedule != std::string_view("1f1b")) continue;
                    if (groups == 4 && replicas == 2 && schedule == std::string_view("gpipe")) continue;
                    SCOPED_TRACE(fmt::format("{} stages x {} groups x {} replicas, {}", stages, groups, replicas, schedule));
                    StagesJob job = job_of(stages, groups, replicas, schedule);
                    const Status status = job.run();
                    ASSERT_TRUE(status.ok()) << status.what;
                    expect_wanted(job);
                }
}

TEST(SliceGroups, GiveTheBitsOfTheWholeNetInUnequalParts) {
    struct Case {
        const char *what, *preset;
        uint32_t stages, groups, replicas;
        std::function<void(StagesJob&)> set;
    };
    const Case cases[] = {
        {"convolutions", "nin", 1, 2, 1,
         [](StagesJob& job) {
             job.slices = "slices = 2\nsliced = [\"conv2\", \"conv3\", \"conv5\"]\n", job.blocks = 3, job.batch = 6, job.steps = 2;
         }},
        {"convolutions in stages", "nin", 2, 2, 1,
         [](StagesJob& job) {
             job.slices = "slices = 2\nsliced = [\"conv2\", \"conv3\", \"conv5\"]\n", job.blocks = 3, job.batch = 6, job.steps = 2;
         }},
        {"batch norm and shortcuts", "resnet9", 1, 2, 2,
         [](StagesJob& job) {
             job.slices = "slices = 2\nsliced = [\"conv3\", \"conv5\"]\n", job.blocks = 2, job.batch = 4, job.steps = 1;
         }},
        {"outputs that no slice count divides", "lenet5", 1, 4, 1,
         [](StagesJob& job) { job.slices = "slices = 4\nsliced = [\"fc3\", \"fc1\"]\n"; }},
        {"a stage without a sliced layer", "lenet5", 2, 2, 1,
         [](StagesJob& job) {
             job.parallel += "cuts = [\"fc2\"]\n", job.slices = "slices = 2\nsliced = [\"fc3\"]\n",
                                                   job.checkpoints = "checkpoint_every = 1\n";
         }},
        {"blocks of two sizes, several in a call", "mlp", 2, 2, 1,
         [](StagesJob& job) { job.parallel += "micro_batch = 4\n", job.batch = 17; }},
        {"several blocks in a call", "mlp", 1, 2, 2, [](StagesJob& job) { job.parallel += "micro_batch = 3\n"; }},
        {"a replica without a block", "mlp", 1, 2, 3, [](StagesJob& job) { job.blocks = 2; }},
        {"adam", "mlp", 2, 2, 1, [](StagesJob& job) { job.optimiser = "kind = \"adam\"\nlr = 0.001\nweight_decay = 0.01\n"; }},
        {"words of 16 bits", "mlp", 1, 2, 2, [](StagesJob& job) { job.quantiser = "auto16"; }},
        {"coded words", "mlp", 1, 2, 3, [](StagesJob& job) { job.exchange = "coded-rs", job.options = "m = 2\n"; }},
        {"blocks that two replicas compute", "mlp", 1, 2, 3, [](StagesJob& job) { job.exchange = "cssgd", job.options = "r = 2\n"; }},
        {"multicast", "mlp", 2, 2, 2, [](StagesJob& job) { job.exchange = "multicast", job.datagram_bytes = 1432, job.sim.loss = 0.01; }},
        {"no test data", "mlp", 1, 2, 1, [](StagesJob& job) { job.tested = false; }},
        {"bf16", "nin", 1, 2, 1,
         [](StagesJob& job) {
             job.precision = "bf16", job.slices = "slices = 2\nsliced = [\"conv2\", \"conv5\"]\n";
             job.blocks = 2, job.batch = 8, job.steps = 2;
         }},
    };
    for (const Case& each : cases) {
        SCOPED_TRACE(each.what);
        StagesJob job = job_of(each.stages, each.groups, each.replicas);
        job.preset = each.preset;
        each.set(job);
        if (job.precision == "bf16" && isa_best() < Isa::avx512_bf16) continue;
        const Status status = job.run();
        ASSERT_TRUE(status.ok()) << status.what;
        expect_wanted(job);
        for (const auto& engine : job.engines)
            for (const std::string& warning : engine->status().warnings) EXPECT_EQ(warning.find("no checkpoint"), warning.npos) << warning;
    }
}

constexpr const char* all_of_gpt =
    "slices = 4\nsliced = [\"wte\", \"h1_qkv\", \"h1_projection\", \"h1_mlp1\", \"h1_mlp2\", \"h2_qkv\", \"h2_mlp2\", \"head\"]\n";

StagesJob text_job(uint32_t stages, uint32_t groups, uint32_t replicas, const char* schedule = "1f1b") {
    StagesJob job = job_of(stages, groups, replicas, schedule);
    job.of_text(all_of_gpt);
    return job;
}

// Linear layers by outputs, the embedding by rows, and a softmax whose columns are apart at each position.
TEST(SliceGroups, OfATransformerGiveTheBitsOfTheWholeNet) {
    for (const uint32_t groups : {2u, 4u})
        for (const uint32_t stages : {1u, 2u})
            for (const uint32_t replicas : {1u, 2u})
                for (const char* schedule : {"1f1b", "zero-bubble"}) {
                    if (stages == 1 && schedule != std::string_view("1f1b")) continue;
                    SCOPED_TRACE(fmt::format("{} stages x {} groups x {} replicas, {}", stages, groups, replicas, schedule));
                    StagesJob job = text_job(stages, groups, replicas, schedule);
                    const Status status = job.run();
                    ASSERT_TRUE(status.ok()) << status.what;
                    expect_wanted(job);
                }
    struct Case {
        const char* what;
        uint32_t stages, groups, replicas;
        std::function<void(StagesJob&)> set;
    };
    const Case cases[] = {
        {"coded words", 1, 2, 3, [](StagesJob& job) { job.exchange = "coded-rs", job.options = "m = 2\n"; }},
        {"multicast", 2, 2, 2, [](StagesJob& job) { job.exchange = "multicast", job.datagram_bytes = 1432, job.sim.loss = 0.01; }},
        {"computed again", 2, 2, 1, [](StagesJob& job) { job.parallel += "recompute = true\n"; }},
        {"several blocks in a call", 1, 2, 1, [](StagesJob& job) { job.parallel += "micro_batch = 3\n"; }},
        {"the embedding alone", 1, 4, 1, [](StagesJob& job) { job.slices = "slices = 4\nsliced = [\"wte\"]\n"; }},
        {"layers of the same weights", 1, 2, 2,
         [](StagesJob& job) {
             job.net += "tied_head = true\n", job.slices = "slices = 2\nsliced = [\"h1_qkv\", \"h2_mlp1\", \"h2_mlp2\"]\n";
         }},
        {"slices of the same weights", 1, 2, 1, [](StagesJob& job) { job.net += "tied_head = true\n"; }},
        {"slices of the same weights in four groups", 1, 4, 2, [](StagesJob& job) { job.net += "tied_head = true\n"; }},
        {"slices of the same weights in words of 16 bits", 1, 2, 3,
         [](StagesJob& job) { job.net += "tied_head = true\n", job.quantiser = "auto16", job.exchange = "coded-rs"; }},
        {"slices of the same weights, frozen and computed again", 1, 2, 2,
         [](StagesJob& job) {
             job.net += "tied_head = true\n", job.parallel += "micro_batch = 2\n";
             job.optimiser += "freeze = [\"wte\"]\nclip_norm = 0.1\n";
         }},
        {"dropout", 1, 2, 2, [](StagesJob& job) { job.net += "dropout = 0.2\n"; }},
        {"dropout in stages, several blocks in a call, computed again", 2, 2, 2,
         [](StagesJob& job) { job.net += "dropout = 0.2\n", job.parallel += "micro_batch = 3\nrecompute = true\n"; }},
        {"bf16", 1, 2, 2, [](StagesJob& job) { job.precision = "bf16"; }},
        {"bf16 in four groups", 1, 4, 1, [](StagesJob& job) { job.precision = "bf16"; }},
        {"bf16 in stages", 2, 2, 1, [](StagesJob& job) { job.precision = "bf16"; }},
    };
    for (const Case& each : cases) {
        SCOPED_TRACE(each.what);
        StagesJob job = text_job(each.stages, each.groups, each.replicas);
        each.set(job);
        if (job.precision == "bf16" && isa_best() < Isa::avx512_bf16) continue;
        const Status status = job.run();
        ASSERT_TRUE(status.ok()) << status.what;
        expect_wanted(job);
    }
}

// The scales of the first step are those of its first block.  A slice of whose rows that block names none has a scale by the gradients of
// the rows' places, so that other blocks do not lose their part of the first update.
TEST(SliceGroups, RowsThatTheFirstBlockDoesNotNameLearnAtOnce) {
    constexpr uint32_t batch = 12, blocks = 6, context = 12, slices = 16, width = 24;
    std::unique_ptr<DataSet> data;
    Status status = data_open(text_shard(), &data, {.context = context});
    ASSERT_TRUE(status.ok()) << status.what;
    const Sampler sampler(data->info().count, 7, batch, blocks);
    std::vector<uint64_t> indices(batch);
    sampler.range(0, indices);
    for (uint64_t& index : indices) index = data->in_epoch(index, 7, 0);
    std::vector<uint16_t> tokens(batch * (context + 1));
    std::vector<int32_t> labels(batch);
    ASSERT_TRUE(data->read(indices, reinterpret_cast<uint8_t*>(tokens.data()), labels.data(), nullptr).ok());
    const uint32_t vocabulary = data->info().vocabulary;
    std::set<uint32_t> named, first;   // by the step; slices that its first block names
    for (uint32_t i = 0; i < batch; ++i)
        for (uint32_t at = 0; at < context; ++at) {
            const uint32_t token = tokens[i * (context + 1) + at];
            named.insert(token);
            for (uint32_t t = 0; i < batch / blocks && t < slices; ++t)
                if (token >= slice_begin(t, vocabulary, slices) && token < slice_begin(t + 1, vocabulary, slices)) first.insert(t);
        }
    ASSERT_LT(first.size(), slices);
    const auto trained = [&](const char* lr) {
        StagesJob job = text_job(1, 1, 1);
        job.steps = 1, job.slices = "slices = 16\nsliced = [\"wte\"]\n", job.optimiser = fmt::format("lr = {}\n", lr);
        Model model;
        std::vector<float> parameters;
        EXPECT_TRUE(job.run().ok());
        EXPECT_TRUE(model_read(job.folders[0] + "/final.h5", &model, &parameters).ok());
        return parameters;
    };
    const std::vector<float> before = trained("1e-20"), after = trained("0.5");
    for (const uint32_t token : named) {
        const auto row = [&](const std::vector<float>& of) { return std::span(of).subspan(uint64_t{token} * width, width); };
        EXPECT_FALSE(std::ranges::equal(row(before), row(after))) << token;
    }
}

// A checkpoint in parts of other slices, of an embedding and of linear layers, gives each group the rows and outputs that it has now.
TEST(SliceGroups, ResumeOnAnotherNumber) {
    for (const auto& [before, after] :
         std::initializer_list<std::pair<uint32_t, uint32_t>>{{1, 2}, {1, 4}, {2, 4}, {2, 1}, {4, 2}, {4, 1}}) {
        SCOPED_TRACE(fmt::format("{} slice groups, then {}", before, after));
        StagesJob first = text_job(1, before, 1);
        first.checkpoints = "checkpoint_every = 1\n";
        Status status = first.run();
        ASSERT_TRUE(status.ok()) << status.what;
        StagesJob rest = text_job(1, after, 1);
        rest.resume = resume_from(first, 1, before);
        for (NodeId& holder : rest.resume.holders) holder = NodeId{static_cast<uint32_t>(holder) % after};
        status = rest.run();
        ASSERT_TRUE(status.ok()) << status.what;
        for (Rank rank = 0; rank < after; ++rank) {
            const Outcome found = rest.outcome(rank), &right = wanted(rest);
            EXPECT_EQ(found.digest, right.digest);
            EXPECT_EQ(found.content, right.content);
            EXPECT_EQ(found.losses.back(), right.losses.back());
        }
    }
}

uint64_t bytes_of(const Engine& engine, std::string_view wanted) {
    uint64_t bytes = 0;
    for (const MemoryUse& use : engine.status().memory)
        for (const auto& [purpose, count] : use.bytes) bytes += purpose == wanted ? count : 0;
    return bytes;
}

// A pass that is computed again exchanges nothing.
TEST(SliceGroups, ComputeActivationsAgain) {
    struct Case {
        const char *what, *schedule;
        uint32_t groups, replicas, micro_batch;
        bool less;   // of the activations less than half is left
    };
    const Case cases[] = {{"all blocks in flight", "gpipe", 2, 1, 1, true},
                          {"of two replicas", "1f1b", 4, 2, 1, false},
                          {"several blocks in a call", "eager-1f1b", 2, 1, 2, false}};
    for (const Case& each : cases) {
        SCOPED_TRACE(each.what);
        std::vector<uint64_t> bytes[2];   // of activations, by rank
        for (const bool recompute : {false, true}) {
            StagesJob job = job_of(2, each.groups, each.replicas, each.schedule);
            job.blocks = 8, job.batch = 16;
            job.parallel += fmt::format("micro_batch = {}\nrecompute = {}\n", each.micro_batch, recompute);
            const Status status = job.run();
            ASSERT_TRUE(status.ok()) << status.what;
            expect_wanted(job);
            for (const auto& engine : job.engines) bytes[recompute].push_back(bytes_of(*engine, "activations"));
        }
        for (Rank rank = 0; rank < bytes[true].size() && each.less; ++rank)
            EXPECT_LT(bytes[true][rank], bytes[false][rank] / 2) << "rank " << rank;
    }
}

// Also exchanges by which several replicas compute a block are tried.
TEST(SliceGroups, AutoChoosesOneExchangeForAllGroups) {
    StagesJob job = job_of(1, 2, 3);
    job.preset = "lenet5", job.slices = "slices = 2\nsliced = [\"fc1\"]\n";
    job.exchange = "auto", job.quantiser = "fixed";
    job.steps = 40, job.evaluate = 20;
    const Status status = job.run();
    ASSERT_TRUE(status.ok()) << status.what;
    expect_wanted(job);
    std::set<std::string_view> offered;
    const std::optional<ExchangeReport> first = job.engines[0]->status().choice;
    for (const auto& engine : job.engines) {
        const std::optional<ExchangeReport> choice = engine->status().choice;
        ASSERT_TRUE(choice.has_value());
        EXPECT_EQ(exchange_report_text(*choice), exchange_report_text(*first));
    }
    for (const ExchangePrediction& each : first->predictions) offered.insert(each.exchange);
    EXPECT_TRUE(offered.contains("cssgd"));
}

std::vector<uint64_t> clipped(const StagesJob& job) {
    std::vector<uint64_t> all;
    std::ifstream lines(job.folders[0] + "/steps.jsonl");
    for (std::string line; std::getline(lines, line);) all.push_back(Json::parse(line)["clipped"]);
    return all;
}

// What several groups compute counts once.
TEST(SliceGroups, CountWhatIsClippedOnce) {
    double lr = 0;
    auto run = [&lr](uint32_t groups, uint32_t replicas) {
        StagesJob job = job_of(1, groups, replicas);
        job.preset = "lenet5", job.slices = "slices = 2\nsliced = [\"fc1\"]\n";
        job.quantiser = "fixed", job.exchange = "unicast", job.optimiser = fmt::format("lr = {}\n", lr), job.steps = 4;
        const Status status = job.run();
        EXPECT_TRUE(status.ok()) << status.what;
        expect_wanted(job);
        return clipped(job);
    };
    std::vector<uint64_t> whole;
    for (const double each : {2.0, 5.0, 20.0})
        if (whole.empty() || whole.back() == 0) lr = each, whole = run(1, 1);
    ASSERT_EQ(whole.size(), 4u);
    EXPECT_GT(whole.back(), 0u);
    EXPECT_EQ(run(2, 1), whole);
    EXPECT_EQ(run(2, 2), whole);
}

TEST(SliceGroups, BeginWithParametersOfAFile) {
    StagesJob first;
    first.preset = "mlp", first.steps = 1;
    StagesJob job = job_of(2, 2, 1);
    job.start = trained_start(&first);
    const Status status = job.run();
    ASSERT_TRUE(status.ok()) << status.what;
    expect_wanted(job);
}

TEST(SliceGroups, HaveTheirShareOfTheParameters) {
    StagesJob whole = job_of(1, 1, 1), job = job_of(1, 4, 1);
    whole.optimiser = job.optimiser = "kind = \"adam\"\nlr = 0.001\n";
    ASSERT_TRUE(whole.run().ok());
    ASSERT_TRUE(job.run().ok());
    for (const auto& engine : job.engines)
        for (const char* purpose : {"parameters", "optimiser"})
            EXPECT_LT(bytes_of(*engine, purpose), bytes_of(*whole.engines[0], purpose) * 26 / 100) << purpose;
    for (const auto& engine : job.engines) EXPECT_GT(engine->status().edge_bytes, 0u);
}

// What does not come has a deadline, and the error names it.
TEST(SliceGroups, WhatDoesNotComeIsNamed) {
    const struct {
        const char *preset, *slices, *micro_batch, *layers, *what;
        bool in_steps;
    } rows[] = {
        {"mlp", "slices = 4\n", "", "fc1 .. loss1", "columns of layer fc1", false},
        // A lane has three calls.
        {"lenet5", "slices = 2\nsliced = [\"fc1\"]\n", "micro_batch = 3\n", "conv1 .. loss1", "columns of layer fc1", true},
        {"gpt", "slices = 2\nsliced = [\"wte\"]\n", "", "wte .. loss1", "rows of layer wte", true},
    };
    for (const auto& row : rows) {
        SCOPED_TRACE(row.preset);
        StagesJob job = job_of(1, 2, 1);
        if (row.preset == std::string_view("gpt")) job.of_text(row.slices);
        job.preset = row.preset, job.slices = row.slices, job.parallel += row.micro_batch;
        std::unique_ptr<DeafProtocol> deaf;
        job.wrap = [&](Rank rank, uint16_t channel, Protocol* protocol) -> Protocol* {
            if (rank != 1 || channel != edge_channel) return protocol;
            deaf = std::make_unique<DeafProtocol>(*protocol, row.in_steps);
            return deaf.get();
        };
        const Status status = job.run();
        EXPECT_EQ(status.code, Code::deadline) << status.what;
        const std::string waits =
            fmt::format("stage 1 of 1 ({}), slice group 2 of 2 has waited 40 s for the {} in block 0", row.layers, row.what);
        for (const std::string_view part :
             {std::string_view(waits), std::string_view(": edge "), std::string_view(" from rank 0 is missing: 0 of ")})
            EXPECT_NE(std::string_view(status.what).find(part), std::string_view::npos) << part << ": " << status.what;
        job.simulator.reset();
    }
}

// Both groups compute the layers that are not sliced, and tell each other the digest of these after each step.
TEST(SliceGroups, ThatDifferEndTheJob) {
    StagesJob job = job_of(1, 2, 1);
    job.preset = "lenet5", job.slices = "slices = 2\nsliced = [\"fc1\"]\n";
    std::unique_ptr<LyingProtocol> lying;
    job.wrap = [&](Rank rank, uint16_t channel, Protocol* protocol) -> Protocol* {
        if (rank != 1 || channel != mail_channel) return protocol;
        lying = std::make_unique<LyingProtocol>(*protocol, cells_tags | 3, 64);   // Word::shared
        return lying.get();
    };
    EXPECT_EQ(job.run().code, Code::conflict);
    const std::string_view wanted = "step 1: node0 and node1 share the slices of a stage and differ in the state of its other layers";
    const Status status = job.simulator->result(0);
    EXPECT_TRUE(std::string_view(status.what).ends_with(wanted)) << status.what;
    job.simulator.reset();
}

TEST(SliceGroups, DivergeTogether) {
    StagesJob job = job_of(2, 2, 1);
    job.optimiser = "lr = 1e30\n";
    job.steps = 4;
    EXPECT_EQ(job.run().code, Code::diverged);
    for (Rank rank = 0; rank < 4; ++rank) EXPECT_EQ(job.simulator->result(rank).code, Code::diverged);
}

// A node that dies ends the job at the others.
TEST(SliceGroups, ALostGroupEndsTheJob) {
    StagesJob job = job_of(1, 2, 1);
    job.sim.lost_after_us = 500'000;
    job.spend_us = 20'000;
    job.steps = 20;
    job.before = [](Simulator& sim) { sim.kill(1, 1'500'000); };
    const Status status = job.run();
    EXPECT_EQ(status.code, Code::peer_lost) << status.what;
    EXPECT_NE(std::string_view(status.what).find("rank 1 (node1)"), std::string_view::npos) << status.what;
}

TEST(SliceGroups, GridsThatNodesDoNotFillAreNamed) {
    const struct {
        uint32_t nodes, stages, groups;
        const char* error;
    } rows[] = {
        {3, 1, 2,
         "parallel.slice_groups: 2 slice groups take 2, 4, ... nodes, and the job has 3: each node computes one; survive = true keeps "
         "spare nodes"},
        {6, 2, 2, "parallel.stages: 2 stages x 2 slice groups take 4, 8, ... nodes, and the job has 6: each node computes one"},
        {3, 2, 2, "parallel.stages: 2 stages x 2 slice groups need 4 nodes, and there are 3: take fewer stages, or more nodes"},
    };
    for (const auto& row : rows) {
        StagesJob job = job_of(row.stages, row.groups, 1);
        JobConfig config;
        ASSERT_TRUE(job.parse(&config).ok());
        JobCheck check;
        const Status status = job_check(config, "job.toml", {.nodes = row.nodes, .verify = false}, &check);
        EXPECT_EQ(status.code, Code::invalid);
        EXPECT_NE(std::string_view(status.what).find(row.error), std::string_view::npos) << status.what;
    }
}

}   // namespace
}   // namespace gradcast
