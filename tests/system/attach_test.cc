// Nets that processes of the user compute, on real daemons: the examples of tools/python.
#include <regex>

#include "tests/daemon/jobs.h"

namespace gradcast {
namespace {

constexpr const char* python = "/usr/bin/python3";

struct SystemAttach : testing::Test {
    Cluster cluster{3};
    const std::string sources = std::filesystem::current_path(), folder = cluster.folder + "/examples";

    void SetUp() override {
        if (std::system(fmt::format("{} -c 'import numpy' 2>/dev/null", python).c_str()) != 0) GTEST_SKIP() << "python3-numpy is missing";
        std::filesystem::copy(sources + "/tools/python/examples", folder);
        std::filesystem::create_directory(folder + "/data");
        write("train.h5", 480, 0);
        write("test.h5", 100, 480);
    }
    /// Ten classes, each with a bright row of its own.
    void write(const char* name, uint32_t count, uint32_t first) {
        constexpr uint32_t side = 28;
        std::vector<uint8_t> images(count * side * side);
        std::vector<int32_t> labels(count);
        for (uint32_t i = 0; i < count; ++i) {
            labels[i] = static_cast<int32_t>((first + i) % 10);
            for (uint32_t p = 0; p < side * side; ++p) {
                const uint32_t noise = random4(Purpose::test, 3, first + i, p)[0] % 100;
                images[i * side * side + p] = static_cast<uint8_t>(noise + (p / side / 2 == (first + i) % 10 ? 120 : 0));
            }
        }
        DataInfo info{count, 1, side, side, 10, {0.3f}, {0.2f}, "rows"};
        const Status status = shard_write(folder + "/data/" + name, info, images.data(), labels.data());
        ASSERT_TRUE(status.ok()) << status.what;
    }
    /// The text of an example's job file, with these lines in [job] in place of its epochs.
    std::string job(const std::string& example, const std::string& lines, const std::string& more = "") {
        std::string text;
        EXPECT_TRUE(file_read(folder + "/" + example + ".toml", &text).ok());
        text = std::regex_replace(text, std::regex("epochs = [0-9]+\n"), lines);
        text = std::regex_replace(text, std::regex("batch = [0-9]+\n"), "batch = 48\n");
        text = std::regex_replace(text, std::regex("\"python3\""), fmt::format("\"{}\"", python));
        text = std::regex_replace(text, std::regex("exchange = \"[a-z-]+\"\n"), more.empty() ? "exchange = \"ring\"\n" : more);
        return std::regex_replace(text, std::regex("threads = 1\n"),
                                  fmt::format("threads = 1\nenvironment = {{PYTHONPATH = \"{}/tools/python\"}}\n", sources));
    }
    /// What gradcastctl says, after its exit code.
    std::string ctl(const std::vector<std::string>& arguments) {
        ChildProcess client;
        client.start({.arguments = arguments, .log = cluster.folder + "/out", .notify = "", .directory = folder, .name = "gradcastctl"});
        const int code = client.wait(4 * patience_us);
        return fmt::format("{} {}", code, client.output());
    }
    std::string run(const std::string& text, uint32_t n, const std::string& keep) {
        EXPECT_TRUE(file_write(folder + "/job.toml", text).ok());
        return ctl({"run", "job.toml", "--local", std::to_string(n), "--keep", cluster.folder + "/" + keep});
    }
    static std::string digest(const std::string& said) {
        const size_t at = said.find("\ndigest ");
        return at == said.npos ? said : said.substr(at + 8, 64);
    }
};

TEST_F(SystemAttach, AnExampleGivesOneDigest) {
    const std::string text = job("mlp_numpy", "steps = 40\nevaluate = 20\ncheckpoint_every = 15\n");
    const std::string alone = run(text, 1, "one");
    ASSERT_EQ(digest(alone).size(), 64u) << alone;
    const size_t accuracy = alone.rfind("accuracy ");
    ASSERT_NE(accuracy, alone.npos) << alone;
    EXPECT_GT(std::stod(alone.substr(accuracy + 9)), 0.8) << alone;
    EXPECT_EQ(digest(run(text, 2, "two")), digest(alone));
    const std::string coded = job("mlp_numpy", "steps = 40\nevaluate = 20\n", "exchange = \"coded-rs\"\nm = 2\n");
    EXPECT_EQ(digest(run(coded, 4, "four")), digest(alone));

    // Its folder is verified, by the program that it names, where somebody allows that.
    const std::string refused = ctl({"verify", cluster.folder + "/two"});
    EXPECT_TRUE(has(refused, "would start a command") && has(refused, "--allow-command")) << refused;
    const std::string verified = ctl({"verify", cluster.folder + "/two", "--allow-command", "--lanes", "1"});
    EXPECT_TRUE(verified.starts_with("0 ")) << verified;

    // Its model is read in Python.
    const std::string exported = ctl({"export", cluster.folder + "/one/final.h5", "model.safetensors"});
    EXPECT_TRUE(exported.starts_with("0 ")) << exported;
    const std::string reads = fmt::format(
        "cd '{}' && PYTHONPATH='{}/tools/python' {} -c 'import gradcast; print(sorted((name, t.shape) for name, t in "
        "gradcast.load(\"model.safetensors\").items()))' >load.txt 2>&1",
        folder, sources, python);
    EXPECT_EQ(std::system(reads.c_str()), 0);
    std::string loaded;
    ASSERT_TRUE(file_read(folder + "/load.txt", &loaded).ok());
    EXPECT_EQ(loaded, "[('b1', (32,)), ('b2', (10,)), ('w1', (784, 32)), ('w2', (32, 10))]\n");
}

// An exception in the middle of a job: its traceback is in the job's log at its node, its last line in the job's error at every node.
TEST_F(SystemAttach, AnExceptionOfTheScriptEndsTheJob) {
    for (Node& node : cluster.nodes) cluster.configure(node, "commands = true\n");
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    std::string script;
    ASSERT_TRUE(file_read(folder + "/mlp_numpy.py", &script).ok());
    const size_t at = script.find("        x, y = block.samples\n");
    ASSERT_NE(at, script.npos);
    script.insert(at, "        if block.step == 3:\n            raise LookupError('no such word:\\n  exact')\n");
    ASSERT_TRUE(file_write(folder + "/mlp_numpy.py", script).ok());
    const std::string id =
        cluster[0].submit(Submission{job("mlp_numpy", "steps = 40\n"), folder + "/job.toml", folder, {}, 0}).value("id", "");
    for (Node& node : cluster.nodes) {
        const JobStatus status = node.ended(id, 4 * patience_us);
        EXPECT_EQ(status.state, JobState::failed);
        EXPECT_TRUE(has(status.error, ": LookupError: no such word: exact")) << status.error;
    }
    std::string log;   // of the node whose script came to it first; the others end with the job
    for (Node& node : cluster.nodes) log += ctl({"--socket", node.socket, "logs", id});
    EXPECT_TRUE(has(log, ": Traceback (most recent call last):") && has(log, "mlp_numpy.py\", line ") && has(log, "raise LookupError"))
        << log;
}

TEST_F(SystemAttach, ANodeMayDie) {
    for (Node& node : cluster.nodes) cluster.configure(node, "commands = true\n");
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    const std::string text = job("mlp_numpy", "steps = 400\ndeadline = \"10s\"\nsurvive = true\n");
    const auto submit = [&](Node& at, const std::vector<std::string>& nodes) {
        return at.submit(Submission{text, folder + "/job.toml", folder, nodes, 0});
    };
    Json answer = submit(cluster[0], {});
    const std::string id = answer.value("id", "");
    ASSERT_NE(id, "") << answer.dump() << logs(cluster);
    ASSERT_TRUE(eventually([&] { return cluster[0].step(id) >= 20; })) << cluster[0].job(id).dump() << logs(cluster);
    cluster[2].process->kill(SIGKILL);
    const JobStatus status = cluster[0].ended(id, 4 * patience_us);
    ASSERT_EQ(status.state, JobState::done) << status.error << logs(cluster);
    answer = submit(cluster[1], {"b"});
    const JobStatus quiet = cluster[1].ended(answer.value("id", ""), 4 * patience_us);
    ASSERT_EQ(quiet.state, JobState::done) << quiet.error;
    EXPECT_EQ(status.digest, quiet.digest);
}

TEST_F(SystemAttach, TorchGivesOneDigest) {
    if (std::system(fmt::format("{} -c 'import torch' 2>/dev/null", python).c_str()) != 0) GTEST_SKIP() << "python3-torch is missing";
    const std::string text = job("cnn", "steps = 6\nevaluate = 6\ndeadline = \"60s\"\n");
    const std::string alone = run(text, 1, "one");
    ASSERT_EQ(digest(alone).size(), 64u) << alone;
    EXPECT_EQ(digest(run(text, 2, "two")), digest(alone));
}

}   // namespace
}   // namespace gradcast
