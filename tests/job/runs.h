// Whole runs of a job in the simulator, with the folders that they leave.
#pragma once
#include <fstream>

#include "runtime/core/channel.h"
#include "runtime/job/model/checkpoint_files.h"
#include "runtime/job/model/model_file.h"
#include "tests/job/jobs.h"

namespace gradcast {

class RunsTest : public EngineTest {
protected:
    struct Run {
        Status status;
        std::vector<JobStatus> ranks;
        std::vector<std::string> folders;   // by rank
        uint64_t bytes_sent = 0;            // by all
        /// That all ranks have; what failed where none or several are.
        std::string digest() const {
            if (!status.ok()) return status.what;
            for (const JobStatus& each : ranks)
                if (each.digest != ranks[0].digest) return each.digest + " is not " + ranks[0].digest;
            return ranks[0].digest;
        }
    };
    struct RunOptions {
        Resume resume = {};
        std::function<void(Simulator&)> meddle = {};
        std::vector<std::string> folders = {};   // of the first ranks; the others begin with empty ones
        bool datagrams = false;
        uint64_t spend_us = 100;
        std::vector<uint64_t>* sent = nullptr;   // bytes by rank
    };
    /// A run in the simulator.
    Run run(const std::string& text, const SimConfig& network, const RunOptions& options) {
        Run run;
        auto simulator = Simulator::create(network);
        std::vector<std::unique_ptr<Engine>> engines(network.ranks);
        for (Rank rank = 0; rank < network.ranks; ++rank) {
            EngineConfig c = config(text, network.ranks, rank);
            c.id[0] = 7;
            c.lanes = 0;
            c.loader_threaded = false;
            c.spend_us = options.spend_us;
            c.datagram_bytes = options.datagrams ? 1432 : 0;
            c.resume = options.resume;
            if (rank < options.folders.size()) c.folder = options.folders[rank];
            run.folders.push_back(c.folder);
            run.status = Engine::open(c, Log(), &engines[rank]);
            if (!run.status.ok()) return run;
            if (engines[rank]->views()) simulator->attach(rank, view_channel, engines[rank]->views());
            simulator->trainer(rank, [&engine = *engines[rank]](Host& host) { return engine.run(host); });
        }
        if (options.meddle) options.meddle(*simulator);
        run.status = simulator->run();
        for (auto& engine : engines) run.ranks.push_back(engine->status());
        for (Rank rank = 0; rank < network.ranks; ++rank) {
            run.bytes_sent += simulator->bytes_sent(rank);
            if (options.sent) (*options.sent)[rank] = simulator->bytes_sent(rank);
        }
        simulator.reset();
        return run;
    }
    Run run(const std::string& text, uint32_t n, const Resume& resume = {}, const std::function<void(Simulator&)>& meddle = {},
            std::vector<std::string> folders = {}) {
        return run(text, {.ranks = n}, {.resume = resume, .meddle = meddle, .folders = std::move(folders)});
    }
    static Resume from(const std::string& path, Rank holder = 0) {
        Model model;
        ModelVectors state;
        const Status read = checkpoint_read(path, &model, &state);
        EXPECT_TRUE(read.ok()) << read.what;
        return {.on = true, .steps = model.step, .state = model.state, .holders = {NodeId{holder}}, .paths = {path}, .notes = {}};
    }
    /// All checkpoints of a run, by steps.
    static std::map<uint64_t, std::string> checkpoints(const Run& run) {
        std::map<uint64_t, std::string> all;
        for (const std::string& folder : run.folders)
            for (const auto& [steps, path] : checkpoints_in(folder)) all[steps] = path;
        return all;
    }
    static std::map<uint64_t, std::string> digests(const std::string& folder) {
        std::map<uint64_t, std::string> all;
        std::ifstream file(folder + "/steps.jsonl");
        for (std::string line; std::getline(file, line);) {
            if (line.starts_with("{\"gap\"")) continue;
            const size_t at = line.find("\"digest\":\"");
            EXPECT_NE(at, std::string::npos) << line;
            EXPECT_TRUE(all.emplace(std::stoull(line.substr(8)), line.substr(at + 10, 16)).second) << line;
        }
        return all;
    }
};

inline bool starts(const std::string& text, const std::string& with) { return text.starts_with(with); }

inline std::string with_job(std::string text, const std::string& lines) { return text.insert(text.find("[data]"), lines); }

}   // namespace gradcast
