// Daemons that have some of a host's GPUs: build/host has the programs beside the stand-in of tests/cuda/host, which has two.
#include <functional>

#include "tests/daemon/jobs.h"

namespace gradcast {
namespace {

struct SystemGpus : testing::Test {
    void SetUp() override {
        for (const char* name : {"host/gradcastd", "host/libgradcast_cuda.so"})
            if (!std::filesystem::exists(program(name))) GTEST_SKIP() << "not built: " << name;
    }
    /// What a job says at its first node when it has ended.
    static JobStatus trained(Cluster& cluster, const std::vector<std::string>& keys, const std::string& parallel) {
        cluster.daemon = "host/gradcastd";
        for (size_t i = 0; i < keys.size(); ++i) cluster.configure(cluster[i], keys[i]);
        cluster.up();
        std::string text = job_text(make_data(cluster.folder + "/data.h5", 16), 2) + parallel;
        text.replace(text.find("\"mlp\""), 5, "\"lenet5\"\ndevice = \"cuda\"");
        const Json answer = cluster[0].submit(text);
        if (answer.contains("id")) return cluster[0].ended(answer["id"]);
        JobStatus refused;
        refused.error = answer.value("error", answer.dump());
        return refused;
    }
    static uint64_t bytes(const JobStatus& status, const std::function<bool(const std::string&)>& counts) {
        uint64_t sum = 0;
        for (const MemoryUse& each : status.memory)
            if (counts(each.place)) sum += each.total();
        return sum;
    }
    static std::string places(const JobStatus& status) {
        std::string all;
        for (const MemoryUse& each : status.memory)
            if (each.place.starts_with("gpu")) all += each.place + "\n";
        return all;
    }
};

// A daemon computes on its own GPU alone: the stand-in ends a process that touches another one's memory.
TEST_F(SystemGpus, TwoOfAHostAreTwoStagesOfANet) {
    Cluster one(1), two(2);
    const JobStatus whole = trained(one, {"gpus = [1]\n"}, ""),
                    cut = trained(two, {"gpus = [1]\n", "gpus = [0]\n"}, "[parallel]\nstages = 2\n");
    ASSERT_EQ(whole.state, JobState::done) << whole.error << logs(one);
    ASSERT_EQ(cut.state, JobState::done) << cut.error << logs(two);
    EXPECT_EQ(cut.digest, whole.digest);
    EXPECT_EQ(places(whole), "gpu_1\ngpu_1_page_locked\n");
    EXPECT_EQ(places(cut), "gpu_1\ngpu_1_page_locked\n");
    EXPECT_TRUE(has(two[0].process->output(), ", GPU 1\n")) << two[0].process->output();
    // Page-locked memory is the host's, which daemons of one host divide; memory of the GPU does not count.
    const uint64_t host = bytes(whole, [](const std::string&place) { return !place.starts_with("gpu"); }),
                   locked = bytes(whole, [](const std::string&place) { return place == "gpu_1_page_locked"; });
    ASSERT_GT(locked, 0u);
    const auto with = [](uint64_t memory) {
        return fmt::format("gpus = [1]\nmemory = \"{:.3f}MiB\"\n", static_cast<double>(memory) / 0x1p20);
    };
    Cluster less(1), enough(1);
    const JobStatus refused = trained(less, {with(host + locked / 2)}, "");
    EXPECT_TRUE(has(refused.error, "the job needs ") && has(refused.error, "(`memory` in gradcastd.toml)")) << refused.error;
    EXPECT_EQ(trained(enough, {with(host + locked + (1 << 20))}, "").digest, whole.digest) << logs(enough);
}

TEST_F(SystemGpus, ANumberThatDoesNotExistIsNamed) {
    Cluster one(1);
    const JobStatus status = trained(one, {"gpus = [0, 2]\n"}, "");
    EXPECT_TRUE(has(status.error, "no device: there is no GPU 2: this machine has 2, counted from 0"))
        << "error: " << status.error << logs(one);
}

}   // namespace
}   // namespace gradcast
