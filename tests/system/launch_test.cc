// gradcastd under a launcher: a list of hosts and mpirun; Slurm itself is tested by tests/slurm (make slurm-test).
#include <fmt/format.h>

#include <set>

#include "datasets/shard.h"
#include "runtime/core/digest.h"
#include "tests/daemon/processes.h"

namespace gradcast {
namespace {

struct SystemLaunch : testing::Test {
    std::string folder = testing::TempDir() + "gc-launch-XXXXXX";
    uint16_t port = free_port(3);   // of the ranks, in turn

    void SetUp() override {
        ASSERT_NE(::mkdtemp(folder.data()), nullptr);
        DataInfo info{64, 1, 28, 28, 10, {0.5f}, {0.5f}, "noise"};
        std::vector<uint8_t> images(info.count * 28 * 28);
        std::vector<int32_t> labels(info.count);
        for (uint32_t i = 0; i < images.size(); ++i) images[i] = static_cast<uint8_t>(splitmix64(i));
        for (uint32_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<int32_t>(i % 10);
        ASSERT_TRUE(shard_write(folder + "/data.h5", info, images.data(), labels.data()).ok());
    }
    void TearDown() override {
        if (!HasFailure()) std::filesystem::remove_all(folder);
    }
    std::string job(const std::string& name, uint32_t steps, const std::string& more = "") const {
        const std::string path = folder + "/" + name;
        EXPECT_TRUE(
            file_write(
                path, fmt::format("[job]\nseed = 3\nsteps = {}\nbatch = 32\nblocks = 4\ndeadline = \"20s\"\n{}[data]\ntrain = \"data.h5\"\n"
                                  "test = \"data.h5\"\n[net]\npreset = \"lenet5\"\n[optimiser]\nlr = 0.05\nmomentum = 0.9\n",
                                  steps, more))
                .ok());
        return path;
    }
    std::string log(uint32_t rank) const { return folder + "/out-" + std::to_string(rank); }
    /// Rank `rank` of `n` on loopback.
    void start(ChildProcess& process, uint32_t rank, uint32_t n, const std::string& job_file, std::vector<std::string> more = {},
               const std::string& key = "") {
        std::string hosts;
        for (uint32_t i = 0; i < n; ++i) hosts += (i ? "," : "") + std::string("127.0.0.1");
        std::vector<std::string> words = {"--hosts", hosts, "--rank", std::to_string(rank), "--port", std::to_string(port), job_file};
        words.insert(words.end(), more.begin(), more.end());
        process.start({.arguments = words, .log = log(rank), .notify = "", .directory = folder, .before = [key] {
                           if (!key.empty()) ::setenv("GRADCAST_KEY", key.c_str(), 1);
                           return true;
                       }});
    }
    /// Starts n ranks and waits for them; their exit codes, "0 0 0".
    std::string run(uint32_t n, const std::string& job_file, const std::vector<std::string>& more = {}) {
        std::vector<ChildProcess> all(n);
        for (uint32_t rank = n; rank-- > 0;) start(all[rank], rank, n, job_file, more);
        std::string codes;
        for (ChildProcess& each : all) codes += (codes.empty() ? "" : " ") + std::to_string(each.wait());
        return codes;
    }
    std::string output(uint32_t rank) const {
        std::string text;
        (void)file_read(log(rank), &text).ok();
        return text;
    }
    static std::string digest(const std::string& text) {
        const size_t at = text.find("\ndigest ");
        return at == text.npos ? "" : text.substr(at + 8, 64);
    }
};

TEST_F(SystemLaunch, HostsGiveTheDigestOfOne) {
    const std::string file = job("job.toml", 6);
    ASSERT_EQ(run(1, file, {"--work", "one"}), "0") << output(0);
    const std::string alone = digest(output(0));
    ASSERT_EQ(alone.size(), 64u) << output(0);
    ASSERT_EQ(run(3, file, {"--work", "three"}), "0 0 0") << output(0) << output(1) << output(2);
    EXPECT_EQ(digest(output(0)), alone);
    EXPECT_EQ(output(1) + output(2), "");
    const std::string all = output(0);
    const size_t last = all.rfind("step 6/6  epoch 3/3  loss ");
    ASSERT_NE(last, std::string::npos) << all;
    EXPECT_NE(all.substr(last, all.find('\n', last) - last).find("  accuracy "), std::string::npos) << all;
    // Once more with the same folder: it is done, and nothing is trained.
    ASSERT_EQ(run(3, file, {"--work", "three"}), "0 0 0") << output(0) << output(1) << output(2);
    EXPECT_NE(output(0).find("is done already"), std::string::npos) << output(0);
    EXPECT_EQ(digest(output(0)), alone);
}

// Neither accuracy nor digest of the job that was there before.
// Whoever types the command line has the program of its job file started, without `commands` in any gradcastd.toml.
TEST_F(SystemLaunch, TheProgramOfTheJobFileIsStarted) {
    const std::string file = job("job.toml", 6);
    std::string text;
    ASSERT_TRUE(file_read(file, &text).ok());
    text.replace(text.find("preset = \"lenet5\""), 17,
                 "command = [\"/bin/sh\", \"-c\", \"id -u >started; echo 'ValueError: no net' >&2; exit 3\"]");
    ASSERT_TRUE(file_write(file, text).ok());
    EXPECT_NE(run(1, file, {"--work", "one"}), "0");
    EXPECT_NE(output(0).find("exited with status 3; its last line: ValueError: no net"), std::string::npos) << output(0);
    ASSERT_TRUE(file_read(folder + "/started", &text).ok());
    EXPECT_EQ(text, fmt::format("{}\n", ::getuid()));
}

TEST_F(SystemLaunch, AnotherJobInTheSameFolderIsRefused) {
    ASSERT_EQ(run(2, job("a.toml", 6), {"--work", "w"}), "0 0") << output(0);
    const std::string first = digest(output(0)), other = job("b.toml", 6);
    std::string text;
    ASSERT_TRUE(file_read(other, &text).ok());
    ASSERT_TRUE(file_write(other, text.replace(text.find("0.05"), 4, "0.06")).ok());
    ASSERT_EQ(run(2, other, {"--work", "w"}), "1 1") << output(0) << output(1);
    EXPECT_EQ(digest(output(0)), "") << output(0);
    EXPECT_NE(output(0).find("failed: not resumed: node "), std::string::npos) << output(0);
    EXPECT_EQ(output(0).find("accuracy"), std::string::npos) << output(0);
    EXPECT_NE(output(0).find("of another training: optimiser.lr was 0.05 and is 0.06 now"), std::string::npos) << output(0);
    EXPECT_NE(output(0).find("w stays as it is: another --work begins a new job"), std::string::npos) << output(0);
    ASSERT_EQ(run(2, folder + "/a.toml", {"--work", "w"}), "0 0") << output(0);
    EXPECT_EQ(digest(output(0)), first);
}

TEST_F(SystemLaunch, DamagedCheckpointsBeginAnewOnlyByAFlag) {
    const std::string file = job("job.toml", 100'000);
    {
        ChildProcess alone;
        start(alone, 0, 1, file, {"--work", "w"});
        ASSERT_TRUE(eventually([&] { return output(0).find("step ") != std::string::npos; })) << output(0);
        alone.kill(SIGTERM);
        EXPECT_EQ(alone.wait(), 75) << output(0);
    }
    std::vector<std::string> damaged;
    for (const auto& each : std::filesystem::recursive_directory_iterator(folder + "/w"))
        if (each.path().filename().string().starts_with("checkpoint-")) damaged.push_back(each.path().string());
    ASSERT_FALSE(damaged.empty());
    for (const std::string& each : damaged) std::filesystem::resize_file(each, std::filesystem::file_size(each) / 2);
    EXPECT_EQ(run(1, file, {"--work", "w"}), "1") << output(0);
    for (const std::string& each : damaged) EXPECT_NE(output(0).find(each + ": "), std::string::npos) << output(0);
    EXPECT_NE(output(0).find("--anew begins"), std::string::npos) << output(0);
    EXPECT_EQ(output(0).find("the job begins anew"), std::string::npos) << output(0);
    ASSERT_TRUE(std::filesystem::exists(damaged[0]));
    ChildProcess alone;
    start(alone, 0, 1, file, {"--work", "w", "--anew"});
    ASSERT_TRUE(eventually([&] { return output(0).find("no checkpoint that is whole: the job begins anew") != std::string::npos; }))
        << output(0);
    ASSERT_TRUE(eventually([&] { return output(0).find("step ") != std::string::npos; })) << output(0);
    alone.kill(SIGTERM);
    EXPECT_EQ(alone.wait(), 75) << output(0);
}

TEST_F(SystemLaunch, ADamagedCheckpointIsNamedBeforeTheNextStep) {
    const std::string file = job("job.toml", 100'000, "checkpoint_every = 5\n");
    std::set<std::string> checkpoints;
    const auto find = [&] {
        checkpoints.clear();
        std::error_code error;
        for (std::filesystem::recursive_directory_iterator at(folder + "/w", error), end; !error && at != end; at.increment(error))
            if (at->path().filename().string().starts_with("checkpoint-") && at->path().extension() == ".h5")
                checkpoints.insert(at->path().string());
        return checkpoints.size() >= 2;
    };
    {
        ChildProcess alone;
        start(alone, 0, 1, file, {"--work", "w"});
        ASSERT_TRUE(eventually(find)) << output(0);
        alone.kill(SIGTERM);
        ASSERT_EQ(alone.wait(), 75) << output(0);
    }
    ASSERT_TRUE(find());
    const std::string newest = *checkpoints.rbegin();
    std::filesystem::resize_file(newest, std::filesystem::file_size(newest) / 2);
    ChildProcess alone;
    start(alone, 0, 1, file, {"--work", "w"});
    ASSERT_TRUE(eventually([&] { return output(0).find("\nstep ") != std::string::npos; })) << output(0);
    const size_t named = output(0).find("/" + std::filesystem::path(newest).filename().string() + ": not a gradcast model");
    EXPECT_LT(named, output(0).find("\nstep ")) << output(0);
    EXPECT_LT(output(0).find("warning: goes on from the checkpoint of node "), output(0).find("\nstep ")) << output(0);
    alone.kill(SIGTERM);
    EXPECT_EQ(alone.wait(), 75) << output(0);
}

// As srun does where a job is requeued: every task gets the signal, and later all of them are started again with the same folder.
TEST_F(SystemLaunch, InterruptedItGoesOnBitForBit) {
    constexpr uint32_t steps = 1000;
    const std::string file = job("job.toml", steps);
    ASSERT_EQ(run(1, file, {"--work", "one"}), "0") << output(0);
    const std::string alone = digest(output(0));
    {
        std::vector<ChildProcess> all(2);
        for (uint32_t rank = 0; rank < 2; ++rank) start(all[rank], rank, 2, file, {"--work", "two"});
        ASSERT_TRUE(eventually([&] { return output(0).find("step ") != std::string::npos; })) << output(0);
        for (ChildProcess& each : all) each.kill(SIGUSR1);
        for (ChildProcess& each : all) EXPECT_EQ(each.wait(), 75) << output(0) << output(1);
        EXPECT_NE(output(0).find("interrupted by SIGUSR1 after step "), std::string::npos) << output(0);
    }
    ASSERT_EQ(run(3, file, {"--work", "two"}), "0 0 0") << output(0) << output(1) << output(2);   // on one node more
    EXPECT_NE(output(0).find("goes on from the checkpoint of node"), std::string::npos) << output(0);
    EXPECT_EQ(digest(output(0)), alone);
}

TEST_F(SystemLaunch, WithoutRank0TheNextOneSpeaks) {
    std::vector<ChildProcess> all(3);
    for (uint32_t rank = 0; rank < 3; ++rank) start(all[rank], rank, 3, job("job.toml", 1000, "survive = true\n"));
    ASSERT_TRUE(eventually([&] { return output(0).find("step ") != std::string::npos; })) << output(0);
    all[0].kill(SIGKILL);
    for (uint32_t rank = 1; rank < 3; ++rank) EXPECT_EQ(all[rank].wait(), 0) << output(rank);
    EXPECT_NE(output(1).find("view 2: 2 nodes from step "), std::string::npos) << output(1);
    EXPECT_EQ(digest(output(1)).size(), 64u) << output(1);
    EXPECT_EQ(output(2), "");
    // Without survive the job ends, and the error says how it goes on.
    for (uint32_t rank = 0; rank < 3; ++rank) start(all[rank], rank, 3, job("job.toml", 100000), {"--work", "ends"});
    ASSERT_TRUE(eventually([&] { return output(0).find("step ") != std::string::npos; })) << output(0);
    all[2].kill(SIGKILL);
    EXPECT_EQ(all[0].wait(), 1);
    EXPECT_NE(output(0).find("started again with --work " + folder + "/ends, on these nodes or others, the job goes on"), std::string::npos)
        << output(0);
}

TEST_F(SystemLaunch, KeysOrJobFilesThatDiffer) {
    const std::string file = job("job.toml", 6);
    const std::string keys[] = {"k1 " + std::string(64, 'a'), "k1 " + std::string(64, 'b')};
    {
        std::vector<ChildProcess> all(2);
        for (uint32_t rank = 0; rank < 2; ++rank) start(all[rank], rank, 2, file, {"--work", "keys", "--wait", "5"}, keys[rank]);
        for (ChildProcess& each : all) EXPECT_EQ(each.wait(), 1) << output(0) << output(1);
        // The one that connects gets the reason; the other one has no peer.
        const std::string text = output(0) + output(1);
        EXPECT_NE(text.find("the cluster keys differ"), std::string::npos) << text;
        EXPECT_NE(text.find("give all nodes one key"), std::string::npos) << text;
    }
    const std::string other = job("other.toml", 7);
    std::vector<ChildProcess> all(2);
    start(all[0], 0, 2, file, {"--work", "files"}, keys[0]);
    start(all[1], 1, 2, other, {"--work", "files"}, keys[0]);
    EXPECT_EQ(all[0].wait(), 2);
    EXPECT_EQ(all[1].wait(), 1) << output(1);
    EXPECT_NE(output(1).find("rank 0 (127.0.0.1.0) has ended before a job began: it says why"), std::string::npos) << output(1);
    EXPECT_NE(output(0).find("its job file is not that of node 127.0.0.1.0: give all nodes the same one"), std::string::npos) << output(0);
}

TEST_F(SystemLaunch, NodesThatDoNotCome) {
    const std::string file = job("job.toml", 6);
    ChildProcess alone;
    start(alone, 0, 2, file, {"--wait", "1"});
    EXPECT_EQ(alone.wait(), 1);
    EXPECT_NE(output(0).find("rank 0 (127.0.0.1.0): not all nodes are there after 1 s: rank 1 (127.0.0.1.1): "), std::string::npos)
        << output(0);
    start(alone, 1, 2, file, {"--wait", "1", "--work", "nowhere"});
    EXPECT_EQ(alone.wait(), 1);
    EXPECT_NE(output(1).find("rank 0 has not written " + folder + "/nowhere/key"), std::string::npos) << output(1);
    ASSERT_TRUE(file_write(folder + "/bad.toml", "[job]\nsteps = -1\n").ok());
    start(alone, 0, 1, folder + "/bad.toml");
    EXPECT_EQ(alone.wait(), 2);
    EXPECT_NE(output(0).find("bad.toml:2: job.steps"), std::string::npos) << output(0);
    start(alone, 0, 1, folder + "/none.toml");
    EXPECT_NE(alone.wait(), 0);
    EXPECT_NE(output(0).find("none.toml"), std::string::npos) << output(0);
    ASSERT_TRUE(make_directories(folder + "/torn").ok() && file_write(folder + "/torn/key", "").ok());
    for (const uint32_t rank : {0u, 1u}) {
        start(alone, rank, 2, file, {"--work", "torn"});
        EXPECT_EQ(alone.wait(), 2);
        EXPECT_NE(output(rank).find("torn/key is empty: remove it, and rank 0 makes a new one"), std::string::npos) << output(rank);
    }
    start(alone, 0, 1, file, {}, "k1 abc");
    EXPECT_EQ(alone.wait(), 2);
    EXPECT_NE(output(0).find("GRADCAST_KEY is no key"), std::string::npos) << output(0);
}

/// mpirun and what it needs to start 3 ranks on this machine as root.
void mpirun(const std::string& name, const std::string& command, const std::string& folder, const std::string& file, std::string* text) {
    const std::string line = fmt::format("cd '{}' && {} '{}' --from-mpi --work '{}' '{}' >'{}.out' 2>&1", folder, command,
                                         std::filesystem::absolute(program("gradcastd")).string(), name, file, name);
    EXPECT_EQ(std::system(line.c_str()), 0) << line;
    (void)file_read(folder + "/" + name + ".out", text).ok();
}

TEST_F(SystemLaunch, MpirunGivesTheDigestOfOne) {
    struct Kind {
        const char *program, *command;
    };
    constexpr Kind kinds[] = {
        {"mpirun.openmpi", "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun.openmpi --oversubscribe -n 3"},
        {"mpirun.mpich", "mpirun.mpich -n 3"}};
    const std::string file = job("job.toml", 6);
    uint32_t there = 0;
    for (const Kind& each : kinds) {
        if (std::system(fmt::format("command -v {} >/dev/null", each.program).c_str()) != 0) continue;
        if (there++ == 0) {
            ASSERT_EQ(run(1, file, {"--work", "one"}), "0") << output(0);
        }
        std::string text;
        mpirun(each.program, each.command, folder, file, &text);
        EXPECT_EQ(digest(text), digest(output(0))) << each.program << ": " << text;
    }
    if (there == 0) GTEST_SKIP() << "mpirun is missing (openmpi-bin or mpich)";
}

}   // namespace
}   // namespace gradcast
