// Jobs whose net is cut into stages, over the simulator, and what the uncut net on one rank gives.
#pragma once
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include "datasets/import.h"
#include "datasets/shard.h"
#include "runtime/control/json.h"
#include "runtime/core/digest.h"
#include "runtime/core/fd.h"
#include "runtime/job/model/checkpoint_files.h"
#include "runtime/job/model/model_file.h"
#include "runtime/job/model/safetensors.h"
#include "runtime/job/run/engine.h"
#include "tests/sim/kernels.h"
#include "tests/wrapped_host.h"
#include "transport/sim/sim.h"

namespace gradcast {

/// Of this process, which removes it at its end.
inline std::string test_folder() {
    struct Folder {
        const std::string path = ::testing::TempDir() + "gradcast-stages-" + std::to_string(getpid());
        ~Folder() {
            std::error_code ignored;
            std::filesystem::remove_all(path, ignored);
        }
    };
    static const Folder folder;
    std::filesystem::create_directories(folder.path);
    return folder.path;
}

/// Noise whose brightness follows from the class.
inline std::string shard(uint32_t channels, uint32_t side) {
    const std::string path = fmt::format("{}/data-{}x{}.h5", test_folder(), channels, side);
    if (std::filesystem::exists(path)) return path;
    const uint32_t count = channels == 1 ? 110 : 46;   // the last batch of the evaluation is a short one
    const uint32_t pixels = channels * side * side;
    std::vector<uint8_t> images(count * pixels);
    std::vector<int32_t> labels(count);
    for (uint32_t i = 0; i < count; ++i) {
        labels[i] = static_cast<int32_t>(splitmix64(i) % 10);
        for (uint32_t p = 0; p < pixels; ++p)
            images[i * pixels + p] = static_cast<uint8_t>(20 * static_cast<uint32_t>(labels[i]) + splitmix64(uint64_t{i} << 32 | p) % 50);
    }
    const std::vector<float> mean(channels, 0.4f), std(channels, 0.3f);
    const DataInfo info{count, channels, side, side, 10, mean, std, "noise"};
    const Status status = shard_write(path, info, images.data(), labels.data());
    EXPECT_TRUE(status.ok()) << status.what;
    return path;
}

/// A text of about 90 samples of 12 tokens.
inline std::string text_shard() {
    const std::string folder = test_folder() + "/text";
    if (std::filesystem::exists(folder)) return folder + "/train.h5";
    std::string words;
    for (int i = 0; i < 80; ++i) words += fmt::format("{} green bottles. ", i * 7919 % 100);
    const std::string from = test_folder() + "/words.txt";
    ImportResult result;
    Status status = file_write(from, words);
    if (status.ok()) status = data_import({.kind = "text", .from = from, .out = folder, .test = 0.2}, &result);
    EXPECT_TRUE(status.ok()) << status.what;
    return folder + "/train.h5";
}

/// What a run leaves that no cut may change.
struct Outcome {
    std::string digest, content;        // of the parameters; of the model's file
    std::vector<std::string> digests;   // by step: of the whole state
    std::vector<double> losses;
    double accuracy = 0;
    bool operator==(const Outcome&) const = default;
};

struct StagesJob {
    std::string preset = "lenet5";   // gpt, and none: of a text
    std::string net;                 // more keys of [net]
    std::string train;               // a shard; empty: that of the preset
    std::string parallel, slices, options, checkpoints = "checkpoint_keep = 0\n", exchange = "ring", quantiser = "auto32",
                                           precision = "f32", start;
    uint32_t steps = 3, blocks = 6, batch = 12, evaluate = 2, datagram_bytes = 0, lanes = 0;
    bool tested = true;
    uint64_t spend_us = 0;   // of a pass
    std::string optimiser = "lr = 0.02\nmomentum = 0.9\n";
    Resume resume;
    SimConfig sim;
    std::function<void(Simulator&)> before;
    std::function<Protocol*(Rank, uint16_t channel, Protocol*)> wrap;
    std::vector<std::unique_ptr<Engine>> engines;
    std::unique_ptr<Simulator> simulator;
    std::vector<std::string> folders;

    /// The net is a small gpt, whose layers have these slices.
    void of_text(const char* cut) {
        preset = "gpt", net = "depth = 2\nwidth = 24\nheads = 3\n", slices = cut;
        optimiser = "kind = \"adam\"\nlr = 0.002\n";
    }

    Status parse(JobConfig* job) const {
        const bool grey = preset == "lenet5" || preset == "mlp" || preset == "lenet3";
        const bool text_net = train.empty() && (preset == "gpt" || preset.empty());
        const std::string data = !train.empty() ? train : text_net ? text_shard() : shard(grey ? 1 : 3, grey ? 28 : 32);
        const std::string test = tested ? fmt::format("test = \"{}\"\n", data) : "", context = text_net ? "context = 12\n" : "";
        const std::string text = fmt::format(
            "[job]\nseed = 7\nsteps = {}\nbatch = {}\nblocks = {}\ndeadline = \"4s\"\n{}{}[data]\ntrain = \"{}\"\n{}{}"
            "[net]\n{}precision = \"{}\"\nstart = \"{}\"\n{}[optimiser]\n{}[algorithm]\nexchange = \"{}\"\nquantiser = "
            "\"{}\"\n{}"
            "[parallel]\n{}",
            steps, batch, blocks, tested ? fmt::format("evaluate = {}\n", evaluate) : "", checkpoints, data, test, context,
            preset.empty() ? "" : fmt::format("preset = \"{}\"\n", preset), precision, start, net, optimiser, exchange, quantiser, options,
            parallel + slices);
        GC_TRY(job_parse(text, "job.toml", "/", job));
        job->text = text;
        return {};
    }

    /// The engines, and the simulator that is to run them.
    Status open() {
        JobConfig job;
        GC_TRY(parse(&job));
        Log log;
        log_level(Level::error);
        simulator = Simulator::create(sim);
        std::vector<Member> roster(sim.ranks);
        for (Rank r = 0; r < sim.ranks; ++r) roster[r].name = fmt::format("node{}", r);
        static int runs = 0;
        const std::string folder = fmt::format("{}/run{}", test_folder(), runs++);
        for (Rank r = 0; r < sim.ranks; ++r) {
            EngineConfig engine;
            engine.job = job;
            engine.resume = resume;
            engine.roster = roster;
            engine.kernels_memo = &kernels_memo;
            engine.self = NodeId{r};
            engine.folder = folders.emplace_back(fmt::format("{}-{}", folder, r));
            engine.lanes = lanes;
            engine.loader_threaded = false;
            engine.spend_us = spend_us;
            engine.datagram_bytes = datagram_bytes;
            GC_TRY(Engine::open(engine, log, &engines.emplace_back()));
            simulator->trainer(r, [this, r](Host& host) {
                WrappedHost wrapped(
                    host, [this, r](uint16_t channel, Protocol* protocol) { return wrap ? wrap(r, channel, protocol) : protocol; });
                return engines[r]->run(wrapped);
            });
        }
        return {};
    }

    Status run() {
        GC_TRY(open());
        if (before) before(*simulator);
        return simulator->run();
    }

    /// Of rank r.
    Outcome outcome(Rank r) const {
        Outcome found;
        const JobStatus status = engines[r]->status();
        found.digest = status.digest;
        found.accuracy = status.accuracy;
        std::ifstream lines(folders[r] + "/steps.jsonl");
        for (std::string line; std::getline(lines, line);) {
            const Json json = Json::parse(line);
            if (json.contains("gap")) continue;   // the state after these steps has come from another rank
            found.digests.push_back(json["digest"]);
            found.losses.push_back(json["loss"]);
        }
        Model model;
        ModelVectors state;
        const auto file = std::ranges::find_if(engines, [](const auto& each) { return !each->status().model.empty(); });
        EXPECT_TRUE(file != engines.end()) << "no rank has the model";
        const Status read = file == engines.end() ? Status{} : checkpoint_read((*file)->status().model, &model, &state);
        EXPECT_TRUE(read.ok()) << read.what;
        found.content = fmt::format("{} {:016x} {:016x}", model.digest, model.state,
                                    digest64(std::span<const float>(state.optimiser)) +
                                        digest64({reinterpret_cast<const uint32_t*>(state.exponents.data()), state.exponents.size()}));
        return found;
    }
};

/// A safetensors file of what one rank trains in this job, for StagesJob::start.
inline std::string trained_start(StagesJob* first) {
    first->sim.ranks = 1;
    Model model;
    std::vector<float> parameters;
    const auto written = [&](std::string* path) -> Status {
        GC_TRY(first->run());
        *path = first->folders[0] + "/start.safetensors";
        GC_TRY(model_read(first->folders[0] + "/final.h5", &model, &parameters));
        return safetensors_write(*path, model, parameters);
    };
    std::string path;
    const Status status = written(&path);
    EXPECT_TRUE(status.ok()) << status.what;
    return path;
}

/// Of the uncut net on one rank.
inline const Outcome& wanted(const StagesJob& job) {
    static std::map<std::string, Outcome> all;
    const std::string key = fmt::format("{} {} {} {} {} {} {} {} {} {} {} {}", job.preset, job.net, job.train, job.quantiser, job.precision,
                                        job.steps, job.blocks, job.batch, job.tested, job.optimiser, job.start, job.slices);
    if (const auto known = all.find(key); known != all.end()) return known->second;
    StagesJob alone;
    alone.preset = job.preset, alone.quantiser = job.quantiser, alone.precision = job.precision, alone.optimiser = job.optimiser;
    alone.exchange = "unicast", alone.start = job.start, alone.slices = job.slices, alone.net = job.net, alone.train = job.train;
    alone.steps = job.steps, alone.blocks = job.blocks, alone.batch = job.batch, alone.tested = job.tested;
    alone.sim.ranks = 1;
    const Status status = alone.run();
    EXPECT_TRUE(status.ok()) << status.what;
    return all[key] = alone.outcome(0);
}

/// From the checkpoint that this job has left after so many steps, in parts of so many cells.
inline Resume resume_from(const StagesJob& job, uint64_t steps, uint32_t cells) {
    const uint64_t state = std::stoull(job.outcome(0).digests.at(steps - 1), nullptr, 16);
    Resume resume{.on = true, .steps = steps, .state = state, .holders = {}, .paths = {}, .notes = ""};
    for (uint32_t cell = 0; cell < cells; ++cell)
        for (Rank rank = 0; rank < job.sim.ranks && resume.paths.size() == cell; ++rank) {
            const std::string path = checkpoint_path(job.folders[rank], {steps, cell, cells});
            if (!std::filesystem::exists(path)) continue;
            resume.holders.push_back(NodeId{rank});
            resume.paths.push_back(path);
        }
    EXPECT_EQ(resume.paths.size(), cells);
    return resume;
}

/// At every rank but these.
inline void expect_wanted(const StagesJob& job, const std::vector<Rank>& dead = {}) {
    for (Rank rank = 0; rank < job.sim.ranks; ++rank) {
        if (std::ranges::find(dead, rank) != dead.end()) continue;
        SCOPED_TRACE(fmt::format("rank {}", rank));
        const Outcome found = job.outcome(rank);
        const Outcome& right = wanted(job);
        EXPECT_EQ(found.digest, right.digest);
        EXPECT_EQ(found.content, right.content);
        EXPECT_EQ(found.digests, right.digests);
        EXPECT_EQ(found.losses, right.losses);
        EXPECT_EQ(found.accuracy, right.accuracy);
    }
}

}   // namespace gradcast
