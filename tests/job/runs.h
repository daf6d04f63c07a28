// Whole runs of a job in the simulator, with the folders that they leave.
#pragma once
#include <fstream>

#include "runtime/job/checkpoint.h"
#include "runtime/job/model_file.h"
#include "tests/job/jobs.h"

namespace gradcast {

class RunsTest : public EngineTest {
protected:
    struct Run {
        Status status;
        std::vector<JobStatus> ranks;
        std::vector<std::string> folders;   // by rank
        std::vector<std::string> errors;    // of opening
    };
    /// A run in the simulator on ranks that begin with empty folders, but for those that are given.
    Run run(const std::string& text, uint32_t n, const Resume& resume = {}, const std::function<void(Simulator&)>& meddle = {},
            std::vector<std::string> folders = {}) {
        Run run;
        auto simulator = Simulator::create({.ranks = n});
        std::vector<std::unique_ptr<Engine>> engines(n);
        for (Rank rank = 0; rank < n; ++rank) {
            EngineConfig c = config(text, n, rank);
            c.id[0] = 7;
            c.lanes = 0;
            c.loader_threaded = false;
            c.spend_us = 100;
            c.resume = resume;
            if (rank < folders.size()) c.folder = folders[rank];
            run.folders.push_back(c.folder);
            run.status = Engine::open(c, Log(), &engines[rank]);
            if (!run.status.ok()) return run;
            simulator->trainer(rank, [&engine = *engines[rank]](Host& host) { return engine.run(host); });
        }
        if (meddle) meddle(*simulator);
        run.status = simulator->run();
        for (auto& engine : engines) run.ranks.push_back(engine->status());
        simulator.reset();
        return run;
    }
    static Resume from(const std::string& path, Rank holder = 0) {
        Model model;
        ModelVectors state;
        const Status read = checkpoint_read(path, &model, &state);
        EXPECT_TRUE(read.ok()) << read.what;
        return {.on = true, .steps = model.step, .state = model.state, .holder = NodeId{holder}, .path = path, .notes = {}};
    }
    /// All checkpoints of a run, by steps.
    static std::map<uint64_t, std::string> checkpoints(const Run& run) {
        std::map<uint64_t, std::string> all;
        for (const std::string& folder : run.folders)
            for (const uint64_t steps : checkpoints_in(folder)) all[steps] = checkpoint_path(folder, steps);
        return all;
    }
    static std::map<uint64_t, std::string> digests(const std::string& folder) {
        std::map<uint64_t, std::string> all;
        std::ifstream file(folder + "/steps.jsonl");
        for (std::string line; std::getline(file, line);) {
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
