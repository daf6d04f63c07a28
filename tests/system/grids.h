// A cluster of daemons that train nets on grids of stages, slice groups and replicas.
#pragma once
#include "datasets/shard.h"
#include "runtime/core/digest.h"
#include "tests/daemon/processes.h"

namespace gradcast {

struct TrainedNet {
    const char* preset;
    uint32_t channels, side;
};
constexpr TrainedNet nets[] = {{"lenet5", 1, 28}, {"mlp", 1, 28}, {"resnet9", 3, 32}, {"nin", 3, 32}};

struct JobGrid {
    uint32_t stages = 1, replicas = 1;
    const char *schedule = "1f1b", *exchange = "ring";
    uint32_t micro_batch = 1;
    const char* options = "";   // of [algorithm]
    uint32_t groups = 0;        // slice groups of a net whose fc1 and fc2 have 4 slices; 0: a net without slices
    const char* clip = "";      // of [optimiser]
    uint32_t nodes() const { return stages * replicas * std::max(groups, 1u); }
};

inline std::string data_name(const TrainedNet& net) { return fmt::format("data-{}.h5", net.channels); }

inline void make_data(const std::string& folder, const TrainedNet& net) {
    constexpr uint32_t count = 60;
    const uint32_t pixels = net.channels * net.side * net.side;
    std::vector<uint8_t> images(count * pixels);
    std::vector<int32_t> labels(count);
    for (uint32_t i = 0; i < images.size(); ++i) images[i] = static_cast<uint8_t>(splitmix64(i));
    for (uint32_t i = 0; i < count; ++i) labels[i] = static_cast<int32_t>(i % 10);
    const DataInfo info{
        count,  net.channels, net.side, net.side, 10, std::vector<float>(net.channels, 0.5f), std::vector<float>(net.channels, 0.5f),
        "noise"};
    const Status status = shard_write(folder + "/" + data_name(net), info, images.data(), labels.data());
    ASSERT_TRUE(status.ok()) << status.what;
}

inline std::string job_text(const TrainedNet& net, const JobGrid& grid, uint32_t steps = 3,
                            const char* checkpoints = "checkpoint_keep = 0") {
    std::string parallel = "[parallel]\n";
    if (grid.stages > 1) parallel += fmt::format("stages = {}\nschedule = \"{}\"\n", grid.stages, grid.schedule);
    if (grid.stages > 1 || grid.groups > 1) parallel += fmt::format("micro_batch = {}\n", grid.micro_batch);
    if (grid.groups > 0) parallel += fmt::format("slices = 4\nsliced = [\"fc1\", \"fc2\"]\nslice_groups = {}\n", grid.groups);
    return fmt::format(
        "[job]\nseed = 3\nsteps = {}\nbatch = 12\nblocks = 6\ndeadline = \"20s\"\n{}\n[data]\ntrain = \"{}\"\ntest = "
        "\"{}\"\n[net]\npreset = \"{}\"\n[optimiser]\nkind = \"adam\"\nlr = 0.001\n{}[algorithm]\nexchange = \"{}\"\n{}{}",
        steps, checkpoints, data_name(net), data_name(net), net.preset, grid.clip, grid.exchange, grid.options, parallel);
}

/// A grid has given what the whole net gives.
inline void expect_bits(const JobStatus& status, const JobStatus& whole) {
    EXPECT_EQ(status.digest, whole.digest);
    EXPECT_EQ(status.step_digest, whole.step_digest);
    EXPECT_EQ(status.kernel_set, whole.kernel_set);
    EXPECT_EQ(status.accuracy, whole.accuracy);
    EXPECT_EQ(status.loss, whole.loss);
}

struct SystemGrids : testing::Test {
    Cluster cluster;
    explicit SystemGrids(uint32_t nodes = 8) : cluster(nodes) {}
    void SetUp() override {
        for (const TrainedNet& net : nets) ASSERT_NO_FATAL_FAILURE(make_data(cluster.folder, net));
        for (Node& node : cluster.nodes) cluster.configure(node, "interface = \"127.0.0.1\"\n");
        ASSERT_NO_FATAL_FAILURE(cluster.up());
    }
    std::string submitted(const TrainedNet& net, const JobGrid& grid, uint32_t steps = 3) {
        std::vector<std::string> names;
        for (uint32_t i = 0; i < grid.nodes(); ++i) names.push_back(cluster[i].name);
        const Json answer = cluster[0].post("/v1/jobs", Json(Submission{job_text(net, grid, steps), "job.toml", cluster.folder, names, 0}));
        EXPECT_NE(answer.value("id", ""), "") << answer.dump();
        return answer.value("id", "");
    }
    /// Of the job's last view as the first node has it; 0: no node was lost yet.
    size_t members(const std::string& id) {
        const Json detail = cluster[0].job(id);
        const Json& views = detail["status"]["views"];
        return views.empty() ? size_t{0} : views.back()["members"].size();
    }
    JobStatus trained(const TrainedNet& net, const JobGrid& grid) {
        const std::string id = submitted(net, grid);
        const JobStatus status = cluster[0].ended(id);
        EXPECT_EQ(status.state, JobState::done) << status.error;
        for (uint32_t i = 1; i < grid.nodes(); ++i) {
            const JobStatus other = cluster[i].ended(id);
            EXPECT_EQ(other.digest, status.digest);
            EXPECT_EQ(other.step_digest, status.step_digest);
        }
        return status;
    }
};

}   // namespace gradcast
