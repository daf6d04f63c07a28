// What jobs on real daemons are made of, for tests.
#pragma once
#include <fstream>
#include <map>

#include "datasets/shard.h"
#include "runtime/core/rng.h"
#include "tests/daemon/processes.h"

namespace gradcast {

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

inline std::string job_text(const std::string& data, uint32_t steps, const std::string& name = "j", const std::string& deadline = "10s") {
    return "[job]\nname = \"" + name + "\"\nseed = 1\nsteps = " + std::to_string(steps) + "\nbatch = 16\nblocks = 8\ndeadline = \"" +
           deadline + "\"\n[data]\ntrain = \"" + data + "\"\ntest = \"" + data +
           "\"\n[net]\npreset = \"mlp\"\n[optimiser]\nkind = \"sgd\"\nlr = 0.05\nmomentum = 0.9\n" +
           "[algorithm]\nkind = \"ssgd\"\nexchange = \"ring\"\nquantiser = \"auto32\"\n";
}

inline std::string make_data(const std::string& path, uint32_t samples = 64) {
    DataInfo info{samples, 1, 28, 28, 10, {0.5f}, {0.5f}, "noise"};
    std::vector<uint8_t> images(info.count * 28 * 28);
    std::vector<int32_t> labels(info.count);
    for (uint32_t i = 0; i < images.size(); ++i) images[i] = static_cast<uint8_t>(random4(Purpose::test, 1, i, 0)[0]);
    for (uint32_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<int32_t>(i % 10);
    Status status = shard_write(path, info, images.data(), labels.data());
    EXPECT_TRUE(status.ok()) << status.what;
    return path;
}

/// The digest of each step that the job in this folder has a line of.
inline std::map<uint64_t, std::string> step_digests(const std::string& folder) {
    std::map<uint64_t, std::string> all;
    std::ifstream file(folder + "/steps.jsonl");
    for (std::string line; std::getline(file, line);) {
        const Json json = Json::parse(line, nullptr, false);
        EXPECT_TRUE(json.is_object()) << line;
        if (!json.is_object() || json.contains("gap")) continue;
        EXPECT_TRUE(all.emplace(json["step"].get<uint64_t>(), json["digest"].get<std::string>()).second) << line;
    }
    return all;
}

/// The log of a job at each node, for messages of failures.
inline std::string logs(Cluster& cluster) {
    std::string text;
    for (Node& node : cluster.nodes) text += "--- " + node.name + "\n" + node.process->output();
    return text;
}

}   // namespace gradcast
