// The Python package: its tests, those of client_test.py against two daemons and those of attach_test.py and attach_torch_test.py against
// one that is written in Python; and the wheel that make wheel builds.
#include "datasets/shard.h"
#include "runtime/core/digest.h"
#include "runtime/core/version.h"
#include "tests/daemon/processes.h"

namespace gradcast {
namespace {

namespace fs = std::filesystem;

constexpr const char* python = "/usr/bin/python3";

/// Runs a shell command; its output is in `log`.
bool shell(const std::string& command, const std::string& log) {
    return std::system(fmt::format("{} >'{}' 2>&1", command, log).c_str()) == 0;
}

std::string text(const std::string& path) {
    std::string found;
    EXPECT_TRUE(file_read(path, &found).ok()) << path;
    return found;
}

struct SystemPython : testing::Test {
    Cluster cluster{2};
    void SetUp() override {
        if (::access(python, X_OK) != 0) GTEST_SKIP() << "python3 is missing";
        ASSERT_TRUE(fs::exists("tests/python/client_test.py")) << "run it in the folder of the sources";
    }
    std::string log() const { return cluster.folder + "/log"; }
    bool has(const char* module) { return shell(fmt::format("{} -c 'import {}'", python, module), log()); }
    /// The classes of client_test.py that have these names.
    void run(const std::string& classes) {
        constexpr uint32_t count = 60, pixels = 28 * 28;
        std::vector<uint8_t> images(count * pixels);
        std::vector<int32_t> labels(count);
        for (uint32_t i = 0; i < count * pixels; ++i) images[i] = static_cast<uint8_t>(splitmix64(i));
        for (uint32_t i = 0; i < count; ++i) labels[i] = static_cast<int32_t>(i % 10);
        const std::vector<float> mean(1, 0.4f), std(1, 0.3f);
        ASSERT_TRUE(
            shard_write(cluster.folder + "/data.h5", {count, 1, 28, 28, 10, mean, std, "noise"}, images.data(), labels.data()).ok());
        ASSERT_NO_FATAL_FAILURE(cluster.up());
        EXPECT_TRUE(shell(fmt::format("GC_SOCKET='{}' GC_FOLDER='{}' timeout 200 {} tests/python/client_test.py {}", cluster[0].socket,
                                      cluster.folder, python, classes),
                          log()))
            << text(log());
    }
    /// Classes of a file of tests of gradcast.attach, which starts processes but no daemon.
    void run_attach(const char* file, const std::string& classes) {
        EXPECT_TRUE(shell(fmt::format("timeout 900 {} -B tests/python/{} {}", python, file, classes), log())) << text(log());
    }
};

TEST_F(SystemPython, ClientAndFiles) { run("Daemon Answers Files"); }

TEST_F(SystemPython, Arrays) {
    if (!has("numpy")) GTEST_SKIP() << "python3-numpy is missing";
    run("Arrays");
}

TEST_F(SystemPython, AttachesNetsInNumpy) {
    if (!has("numpy")) GTEST_SKIP() << "python3-numpy is missing";
    run_attach("attach_test.py", "Nets Outside TheFakeDaemon");
}

constexpr char bigram[] = R"(import numpy as np
import gradcast

n = gradcast.settings().vocabulary
net = {"scores": np.zeros((n, n), np.float32)}   # of each next token
with gradcast.attach(net) as job:
    for block in job:
        x, y = (tokens.reshape(-1) for tokens in block.samples)
        assert (x[1:] == y[:-1]).sum() >= len(x) - block.count, "y is the token behind x"
        p = np.exp(net["scores"][x] - net["scores"][x].max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        context = len(x) // block.count
        loss = -np.log(p[np.arange(len(x)), y]).sum(dtype=np.float64) / context
        p[np.arange(len(x)), y] -= 1
        gradient = np.zeros((n, n), np.float32)
        np.add.at(gradient, x, p / context)
        block.done(loss, gradients={"scores": gradient} if block.training else None)
)";
constexpr char line[] = R"(import numpy as np
import gradcast

job = gradcast.settings()
net = {"w": np.zeros((job.C, job.targets), np.float32), "b": np.zeros(job.targets, np.float32)}
with gradcast.attach(net) as job:
    for block in job:
        x, y = block.samples
        x = x.reshape(len(x), -1)
        off = x @ net["w"] + net["b"] - y
        block.done((off.astype(np.float64) ** 2).sum(), gradients={"w": 2 * x.T @ off, "b": 2 * off.sum(0)} if block.training else None)
)";

// The program sees tokens of a text and float targets of a table; the bits are those of one node.
TEST_F(SystemPython, TextsAndTablesReachANet) {
    if (!has("numpy")) GTEST_SKIP() << "python3-numpy is missing";
    const std::string at = cluster.folder + "/typed", here = fs::current_path();
    fs::create_directory(at);
    std::string text_of = "x,y,sum,difference\n", words;
    for (uint64_t i = 0; i < 200; ++i) {
        const auto x = static_cast<double>(splitmix64(i) % 100), y = static_cast<double>(splitmix64(~i) % 100);
        text_of += fmt::format("{},{},{},{}\n", x, y, x + y, x - y);
        words += i % 3 ? "abcabc\u00e9 " : "no more\n";
    }
    ASSERT_TRUE(file_write(at + "/t.csv", text_of).ok() && file_write(at + "/t.txt", words).ok());
    ASSERT_TRUE(file_write(at + "/bigram.py", bigram).ok() && file_write(at + "/line.py", line).ok());
    const char* job =
        "[job]\nsteps = {0}\nevaluate = {0}\nbatch = 8\nblocks = 4\n[data]\ntrain = \"{1}/train.h5\"\ntest = \"{1}/test.h5\"\n{2}[net]\n"
        "command = [\"/usr/bin/python3\", \"{3}\"]\n[optimiser]\nlr = {4}\n";
    ASSERT_TRUE(file_write(at + "/bigram.toml", fmt::format(fmt::runtime(job), 60, "text", "context = 16\n", "bigram.py", 3.0)).ok());
    ASSERT_TRUE(file_write(at + "/line.toml", fmt::format(fmt::runtime(job), 120, "table", "", "line.py", 0.05)).ok());
    const std::string ctl = fmt::format("PYTHONPATH='{}/tools/python' '{}' ", here, fs::absolute(program("gradcastctl")).string());
    const auto run = [&](const std::string& arguments) {
        EXPECT_TRUE(shell(fmt::format("cd '{}' && {}{}", at, ctl, arguments), log())) << text(log());
        return text(log());
    };
    run("import text --from t.txt --out text --test 20%");
    run("import table --from t.csv --out table --target sum --target difference --test 20%");
    for (const auto& [name, most] : {std::pair{"bigram", 1.2}, {"line", 0.01}}) {
        const std::string one = run(fmt::format("run {}.toml --local 1 --keep {}-1", name, name)),
                          two = run(fmt::format("run {}.toml --local 2 --keep {}-2", name, name));
        const auto digest = [](const std::string& of) { return of.substr(std::min(of.find("digest "), of.size()), 71); };
        EXPECT_EQ(digest(one).size(), 71u) << one;
        EXPECT_EQ(digest(one), digest(two));
        const size_t at_loss = one.rfind("test loss ");
        ASSERT_NE(at_loss, one.npos) << one;
        EXPECT_LT(std::stod(one.substr(at_loss + 10)), most) << one;
    }
}

constexpr char state_model[] = R"(import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Conv2d(1, 4, 3, bias=False)
        self.norm = self.same_norm = nn.BatchNorm2d(4)
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
        self.tied = self.up
        self.frozen = nn.Parameter(torch.randn(4, 8).bfloat16(), requires_grad=False)
        self.register_buffer("order", torch.arange(4).flip(0))
        self.register_buffer("flags", torch.tensor([True, False, True]))
        self.register_buffer("rows", torch.randn(3, 2).t())
        self.head = nn.Linear(4, 10)

    def forward(self, x):
        x = self.norm(self.features(x)).mean((2, 3))[:, self.order]
        return self.head(self.down(self.up(x).relu()) + x @ self.frozen.float() @ self.up.weight)
)";
constexpr char state_train[] = R"(import os
import gradcast
import torch.nn.functional as F
from model import Model

model = Model()
with gradcast.attach(model) as job:
    for block in job:
        if block.training and block.step == 4 and os.path.exists("stop"):
            raise RuntimeError("stop")
        x, y = block.samples
        out = model(x)
        block.done(F.cross_entropy(out, y, reduction="sum"), out)
)";
constexpr char state_load[] = R"(import sys
import gradcast
import torch
from model import Model

found = gradcast.load(sys.argv[1])
model = Model()
state = model.state_dict()
assert set(found) == set(state), set(found) ^ set(state)
assert all(list(found[name].shape) == list(tensor.shape) for name, tensor in state.items())
model.load_state_dict({name: torch.from_numpy(array) for name, array in found.items()}, strict=True)
state = model.state_dict()
assert state["frozen"].dtype == torch.bfloat16 and state["order"].tolist() == [3, 2, 1, 0] and state["flags"].tolist() == [True, False, True]
assert int(state["norm.num_batches_tracked"]) == 6 and torch.equal(state["same_norm.running_var"], state["norm.running_var"])
assert model.up.weight is model.tied.weight and found["up.weight"].tobytes() == found["tied.weight"].tobytes()
assert not torch.equal(state["norm.running_mean"], torch.zeros(4))
print("loaded", len(found))
)";

// A model that is exported has the state of the program's, and loads as such.
TEST_F(SystemPython, AnExportedModelLoadsInTorch) {
    if (!has("torch")) GTEST_SKIP() << "python3-torch is missing";
    constexpr uint32_t count = 40;
    std::vector<uint8_t> images(count * 64);
    std::vector<int32_t> labels(count);
    for (uint32_t i = 0; i < images.size(); ++i) images[i] = static_cast<uint8_t>(splitmix64(i));
    for (uint32_t i = 0; i < count; ++i) labels[i] = static_cast<int32_t>(i % 10);
    const std::string at = cluster.folder + "/state", here = fs::current_path();
    fs::create_directory(at);
    const std::vector<float> mean(1, 0.4f), std(1, 0.3f);
    ASSERT_TRUE(shard_write(at + "/data.h5", {count, 1, 8, 8, 10, mean, std, "noise"}, images.data(), labels.data()).ok());
    ASSERT_TRUE(file_write(at + "/model.py", state_model).ok() && file_write(at + "/train.py", state_train).ok());
    ASSERT_TRUE(file_write(at + "/load.py", state_load).ok());
    ASSERT_TRUE(
        file_write(at + "/job.toml",
                   "[job]\nsteps = 6\nevaluate = 6\nbatch = 8\nblocks = 2\ncheckpoint_every = 2\n[data]\ntrain = \"data.h5\"\ntest = "
                   "\"data.h5\"\n[net]\ncommand = [\"/usr/bin/python3\", \"train.py\"]\n[optimiser]\nlr = 0.05\n")
            .ok());
    const std::string environment = fmt::format("cd '{}' && PYTHONPATH='{}/tools/python' ", at, here),
                      ctl = fmt::format("{}'{}' ", environment, fs::absolute(program("gradcastctl")).string());
    ASSERT_TRUE(shell(ctl + "run job.toml --local 2 --keep kept", log())) << text(log());
    const auto loads = [&](const std::string& file) {
        EXPECT_TRUE(shell(ctl + fmt::format("export kept/{} out.safetensors --force", file), log())) << text(log());
        EXPECT_TRUE(shell(environment + "/usr/bin/python3 -B load.py out.safetensors", log())) << text(log());
        EXPECT_NE(text(log()).find("loaded 23"), std::string::npos) << text(log());
    };
    loads("final.h5");
    const auto digest = [this] {
        const std::string said = text(log());
        return said.substr(std::min(said.find("digest "), said.size()), 71);
    };
    ASSERT_TRUE(shell(ctl + "run job.toml --local 1 --keep again", log())) << text(log());
    const std::string whole = digest();
    ASSERT_TRUE(file_write(at + "/stop", "").ok());
    EXPECT_FALSE(shell(ctl + "run job.toml --local 2 --keep stopped", log()));
    fs::remove(at + "/stop");
    std::string checkpoint;
    for (const auto& each : fs::directory_iterator(at + "/stopped"))
        if (each.path().filename().string().starts_with("checkpoint-")) checkpoint = each.path();
    ASSERT_NE(checkpoint, "") << text(log());
    // The copies of the sources are started, whatever has become of the script.
    EXPECT_TRUE(fs::exists(at + "/kept/sources/train.py") && fs::exists(at + "/kept/sources/model.py"));
    ASSERT_TRUE(file_write(at + "/train.py", "raise ValueError('no net')\n").ok());
    const std::string resume = fmt::format("{}run --resume '{}' --local 2 --keep resumed", ctl, checkpoint);
    EXPECT_FALSE(shell(resume, log()));
    EXPECT_NE(text(log()).find("stopped/sources/train.py\": "), std::string::npos) << text(log());
    EXPECT_TRUE(shell(resume + " --allow-command", log())) << text(log());
    EXPECT_EQ(digest(), whole);
    EXPECT_TRUE(fs::exists(at + "/resumed/sources/train.py") && fs::exists(at + "/resumed/constants.safetensors"));
    EXPECT_FALSE(shell(ctl + "verify kept", log()));
    EXPECT_NE(text(log()).find("with 2 copies of its sources in"), std::string::npos) << text(log());
    EXPECT_TRUE(shell(ctl + "verify kept --allow-command", log())) << text(log());
    EXPECT_NE(text(log()).find("steps 1..6 verified: 6 digests equal"), std::string::npos) << text(log());
    EXPECT_FALSE(fs::exists(at + "/kept/sources/__pycache__"));
    ASSERT_TRUE(file_write(at + "/kept/sources/model.py", std::string(state_model) + "\n").ok());
    EXPECT_FALSE(shell(ctl + "verify kept --allow-command", log()));
    EXPECT_NE(text(log()).find("kept/sources/model.py: the copy was altered"), std::string::npos) << text(log());
}

TEST_F(SystemPython, AttachedProcessesEnd) {
    if (!has("numpy")) GTEST_SKIP() << "python3-numpy is missing";
    run_attach("attach_test.py", "Ends");
}

TEST_F(SystemPython, AttachesNetsInTorch) {
    if (!has("torch")) GTEST_SKIP() << "python3-torch is missing";
    run_attach("attach_torch_test.py", "Torch Refused");
}

TEST_F(SystemPython, ExamplesInTorch) {
    for (const char* module : {"torch", "h5py"})
        if (!has(module)) GTEST_SKIP() << "python3-" << module << " is missing";
    run_attach("attach_torch_test.py", "Examples");
}

TEST_F(SystemPython, TheWheelHasThePackage) {
    for (const char* module : {"pip", "setuptools", "wheel"})
        if (!has(module)) GTEST_SKIP() << "python3-" << module << " is missing (make deps-python)";
    const std::string build = cluster.folder + "/build";
    ASSERT_TRUE(shell(fmt::format("env -u MAKEFLAGS -u MAKELEVEL make --no-print-directory BUILD='{}' wheel-built", build), log()))
        << text(log());
    const std::string wheel = fmt::format("{}/gradcast-{}-py3-none-any.whl", build, version_text);
    ASSERT_TRUE(fs::exists(wheel)) << text(log());
    // As a user would: into a folder of its own, without the network.
    ASSERT_TRUE(shell(fmt::format("{0} -m pip install -q --no-index --no-deps --target '{1}/at' '{2}'", python, build, wheel), log()))
        << text(log());
    EXPECT_TRUE(shell(
        fmt::format("cd / && PYTHONPATH='{}/at' {} -c 'import gradcast; print(gradcast.__version__, gradcast.Client)'", build, python),
        log()));
    EXPECT_NE(text(log()).find(version_text), std::string::npos) << text(log());
    EXPECT_TRUE(fs::exists(build + "/at/gradcast/py.typed"));
}

}   // namespace
}   // namespace gradcast
