// run --local: real daemons on this machine; nothing of them remains.
#include <httplib.h>
#include <sys/stat.h>

#include <fstream>
#include <map>
#include <regex>

#include "datasets/verified.h"
#include "runtime/job/model/model_file.h"
#include "tests/ctl/ctl.h"
#include "tests/limited_group.h"
#include "transport/exchange/exchange.h"

namespace gradcast {
namespace {

struct SystemLocal : CtlData {
    /// The process of a node of `run --local`, which has the node's name in its command line; 0: none.
    pid_t daemon_of(const std::string& node) const {
        for (const auto& entry : fs::directory_iterator("/proc")) {
            std::string line;
            if (std::isdigit(entry.path().filename().string()[0]) && file_read(entry.path() / "cmdline", &line).ok() &&
                line.find(folder) != std::string::npos && line.find("/" + node + "/") != std::string::npos)
                return static_cast<pid_t>(std::stol(entry.path().filename()));
        }
        return 0;
    }
    void SetUp() override {
        CtlData::SetUp();
        if (!IsSkipped() && ::access((fs::path(program).parent_path() / "gradcastd").c_str(), X_OK) != 0)
            GTEST_SKIP() << "not built: gradcastd";
    }
    /// Takes the programs beside the stand-in of tests/cuda/host, and writes data and a job for its GPUs: these lines of data in place of
    /// the test data.  False: it is not built.
    bool on_stand_in(const char* data) {
        program = fs::path(program).parent_path() / "host/gradcastctl";
        if (::access((fs::path(program).parent_path() / "libgradcast_cuda.so").c_str(), R_OK) != 0) return false;
        import();
        std::string job = good_job;
        job.replace(job.find("\"lenet5\""), 8, "\"lenet5\"\ndevice = \"cuda\"");
        job.replace(job.find("test = \"test.h5\"\n"), 17, data);
        write("job.toml", job);
        return true;
    }
};

/// Waits until a verification records the file, which must have rested.
void wait_for_rest(const std::string& path) {
    struct stat file {};
    ASSERT_EQ(::stat(path.c_str(), &file), 0);
    const uint64_t changed_ns = static_cast<uint64_t>(file.st_ctim.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(file.st_ctim.tv_nsec);
    while (unix_ns() < changed_ns + verified_age_ns) ::usleep(20'000);
}

// The state folders of the daemons go with them, the record of the user stays.
TEST_F(SystemLocal, ShardsAreVerifiedOnce) {
    import();
    write("job.toml", good_job);
    auto recorded = [&] {
        const std::string text = read("cache/gradcast/verified");
        return std::count(text.begin(), text.end(), '\n');
    };
    for (const char* name : {"/train.h5", "/test.h5"}) wait_for_rest(folder + name);
    Outcome outcome = run("run job.toml --local 2 --set job.steps=1 --keep kept");
    ASSERT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_EQ(recorded(), 3);
    const std::string before = read("cache/gradcast/verified");
    EXPECT_EQ(run("evaluate kept/final.h5 --data test.h5").exit, 0);
    EXPECT_EQ(run("check job.toml").exit, 0);
    EXPECT_EQ(run("run job.toml --local 1 --set job.steps=1").exit, 0);
    EXPECT_EQ(read("cache/gradcast/verified"), before);
    fs::copy_file(folder + "/test.h5", folder + "/other.h5");
    wait_for_rest(folder + "/other.h5");
    EXPECT_EQ(run("evaluate kept/final.h5 --data other.h5").exit, 0);
    EXPECT_EQ(recorded(), 4);
    // A shard that has changed is refused, whatever the record says.
    std::string bytes = read("train.h5");
    bytes[bytes.size() / 2] ^= 0x10;
    write("train.h5", bytes);
    outcome = run("run job.toml --local 1 --set job.steps=1");
    EXPECT_NE(outcome.exit, 0);
    EXPECT_TRUE(outcome.says("train.h5: data set images")) << outcome.err;
}

TEST_F(SystemLocal, AGpuTrainsFromFilesWhereTheJobSaysSo) {
    if (!on_stand_in("crop = 2\nflip = true\n")) GTEST_SKIP() << "not built: host/libgradcast_cuda.so";
    Outcome resident = run("run job.toml --local 1 --keep resident"),
            files = run("run job.toml --local 1 --keep files --set net.resident=no");
    ASSERT_EQ(resident.exit, 0) << resident.err;
    ASSERT_EQ(files.exit, 0) << files.err;
    EXPECT_NE(read("resident/log").find(", data set 0.2 MiB"), std::string::npos) << read("resident/log");
    EXPECT_EQ(read("files/log").find(", data set "), std::string::npos) << read("files/log");
    auto digest = [](const std::string& text) { return text.substr(text.find("digest ")); };
    EXPECT_EQ(digest(resident.out), digest(files.out));
}

// One node computes whole steps, two exchange; a step has more blocks than lanes.
TEST_F(SystemLocal, WholeStepsOfAGpuHaveTheBitsOfAnExchange) {
    if (!on_stand_in("crop = 2\n")) GTEST_SKIP() << "not built: host/libgradcast_cuda.so";
    const std::string with = " --set job.steps=4 --set job.blocks=16";
    const Outcome alone = run("run job.toml --local 1 --keep alone" + with),
                  files = run("run job.toml --local 1 --set net.resident=no" + with),
                  saved = run("run job.toml --local 1 --keep saved --set job.checkpoint_every=3" + with),
                  two = run("run job.toml --local 2" + with);
    auto digest = [](const Outcome& outcome) { return outcome.out.substr(std::min(outcome.out.find("digest "), outcome.out.size())); };
    ASSERT_EQ(alone.exit, 0) << alone.err;
    for (const Outcome* each : {&files, &saved, &two}) {
        EXPECT_EQ(each->exit, 0) << each->err;
        EXPECT_EQ(digest(*each), digest(alone));
    }
}

// A node computes whole steps but with a clip and LAMB; two exchange, and two stages apply their own parts.
TEST_F(SystemLocal, OptimisersOfGpusHaveOneDigestOnAnyGrid) {
    if (!on_stand_in("test = \"test.h5\"\n")) GTEST_SKIP() << "not built: host/libgradcast_cuda.so";
    const auto result = [](const Outcome& outcome) {
        return outcome.out.substr(std::min(outcome.out.find("accuracy "), outcome.out.size()));
    };
    for (const char* optimiser :
         {"--set optimiser.kind=adamw --set optimiser.weight_decay=0.1 --set optimiser.decay_exempt=true --set "
          "optimiser.freeze='[\"conv1\"]' "
          "--set optimiser.ema=0.5 --set optimiser.evaluate=ema",
          "--set optimiser.clip_norm=0.1 --set optimiser.ema=0.9", "--set optimiser.kind=lamb --set optimiser.weight_decay=0.1"}) {
        SCOPED_TRACE(optimiser);
        const std::string with = fmt::format(" --set job.steps=3 --set job.evaluate=2 --set job.blocks=4 {}", optimiser);
        const Outcome alone = run("run job.toml --local 1" + with);
        ASSERT_EQ(alone.exit, 0) << alone.err;
        EXPECT_NE(result(alone).find("\ndigest "), std::string::npos) << alone.out;
        for (const char* grid : {"--local 2", "--local 2 --set parallel.stages=2"}) {
            const Outcome outcome = run(fmt::format("run job.toml {}{}", grid, with));
            EXPECT_EQ(outcome.exit, 0) << outcome.err;
            EXPECT_EQ(result(outcome), result(alone)) << grid;
        }
    }
}

// Checkpoints of one grid go on with another one.
TEST_F(SystemLocal, StagesOfGpusHaveTheBitsOfTheWholeNet) {
    if (!on_stand_in("test = \"test.h5\"\n")) GTEST_SKIP() << "not built: host/libgradcast_cuda.so";
    const auto result = [](const Outcome& outcome) {   // accuracy and digest
        return outcome.out.substr(std::min(outcome.out.find("accuracy "), outcome.out.size()));
    };
    const auto staged = [&](uint32_t nodes, const std::string& with) {
        return run(fmt::format("run job.toml --local {} --set job.steps=4 --set job.blocks=4 --set parallel.stages={}", nodes, with));
    };
    const Outcome alone = run("run job.toml --local 1 --set job.steps=4 --set job.blocks=4 --keep alone");
    ASSERT_EQ(alone.exit, 0) << alone.err;
    EXPECT_NE(result(alone).find("\ndigest "), std::string::npos) << alone.out;
    struct Case {
        uint32_t nodes;
        const char* with;
    };
    for (const auto& [nodes, with] : {Case{2, "2 --set job.evaluate=2 --keep first"}, Case{3, "3 --set parallel.schedule=zero-bubble"},
                                      Case{2, "2 --set parallel.schedule=gpipe --set parallel.micro_batch=2 --set net.resident=no"},
                                      Case{4, "2 --set algorithm.exchange=coded-rs --set algorithm.m=1 --set algorithm.s=1"}}) {
        SCOPED_TRACE(with);
        const Outcome outcome = staged(nodes, with);
        EXPECT_EQ(outcome.exit, 0) << outcome.err;
        EXPECT_EQ(result(outcome), result(alone));
    }

    // Rounding is keyed by places in the whole net's vector.
    const std::string short_words = " --set algorithm.quantiser=auto16";
    EXPECT_EQ(result(staged(2, "2" + short_words)),
              result(run("run job.toml --local 1 --set job.steps=4 --set job.blocks=4" + short_words)));

    const std::string goes_on = " --resume first/final.h5 --set job.steps=6";
    const Outcome whole = run("run job.toml --local 1 --set job.blocks=4 --set job.steps=6"), three = staged(3, "3" + goes_on),
                  one = run("run job.toml --local 1 --set job.blocks=4" + goes_on);
    for (const Outcome* each : {&three, &one}) {
        EXPECT_EQ(each->exit, 0) << each->err;
        EXPECT_EQ(result(*each), result(whole));
    }
    // The same kernels: of a whole net with a gradient, of one in stages without.
    const auto kernel_set = [&](const std::string& kept) {
        const std::string lines = read(kept + "/steps.jsonl"), key = "\"kernel_set\":\"";
        return lines.substr(std::min(lines.find(key) + key.size(), lines.size()), 16);
    };
    EXPECT_EQ(kernel_set("first").substr(0, 8), kernel_set("alone").substr(0, 8));
    EXPECT_EQ(kernel_set("first").substr(8), "00000000");
    EXPECT_NE(kernel_set("alone").substr(8), "00000000");
    const Outcome verified = run("verify first");
    EXPECT_EQ(verified.exit, 0) << verified.out << verified.err;

    EXPECT_TRUE(staged(2, "auto").says("parallel.stages: auto measures layers on CPUs in this version"));
    EXPECT_TRUE(staged(2, "2 --set 'parallel.cuts=[\"relu1\"]'").says("stages can begin at conv2, fc1, fc2, fc3, loss1"));
}

// glibc takes other variants of exp, log, sin, cos and pow on a CPU without FMA, with other last bits.
TEST_F(SystemLocal, DataAndDigestsDoNotDependOnTheCLibrarysVariants) {
    ASSERT_EQ(run("import fashion-mnist --out .").exit, 0) << read("err");
    write("job.toml",
          "[job]\nseed = 1\nsteps = 1\nbatch = 16\nblocks = 4\n[data]\ntrain = \"test.h5\"\n[net]\npreset = \"logistic\"\n"
          "[optimiser]\nlr = 0.1\nweight_decay = 0.01\n[algorithm]\nkind = \"dane\"\nsolver = \"exact\"\nworkers = 2\n");
    const auto all = [&](const char* tunables, const std::string& name) {
        ::setenv("GLIBC_TUNABLES", tunables, 1);
        const Outcome trained = run("run job.toml --local 1 --keep " + name), imported = run("import ridge --samples 1000 --out " + name);
        ::unsetenv("GLIBC_TUNABLES");
        EXPECT_EQ(trained.exit, 0) << trained.err;
        EXPECT_EQ(imported.exit, 0) << imported.err;
        return std::pair(trained.out.substr(std::min(trained.out.find("digest "), trained.out.size())), read(name + "/train.h5"));
    };
    const auto [digest, data] = all("glibc.malloc.check=0", "as-it-is");
    const auto [other_digest, other_data] = all("glibc.cpu.hwcaps=-FMA,-FMA4,-AVX2", "without-fma");
    EXPECT_EQ(digest.size(), std::string("digest ").size() + 65) << digest;
    EXPECT_EQ(other_digest, digest);
    EXPECT_TRUE(other_data == data);
}

TEST_F(SystemLocal, AProfileShowsEveryPhaseOfOneStep) {
    import();
    std::string job = good_job;
    job.replace(job.find("\"ring\""), 6, "\"coded-rs\"\nm = 2");
    write("job.toml", job);
    Outcome outcome = run("run job.toml --local 3 --keep kept --profile trace.json");
    ASSERT_EQ(outcome.exit, 0) << outcome.err;
    std::ifstream in(folder + "/trace.json");
    const nlohmann::json trace = nlohmann::json::parse(in, nullptr, false);
    ASSERT_FALSE(trace.is_discarded());
    EXPECT_EQ(trace["otherData"]["events_left_out"], 0);
    EXPECT_EQ(trace["otherData"]["step"], 6);   // the last one, as the default is step 10
    for (uint32_t rank = 0; rank < 3; ++rank) {
        std::map<std::string, double> begin, end;   // by phase
        for (const auto& event : trace["traceEvents"]) {
            if (event["pid"] != rank || event["ph"] != "X") continue;
            const std::string phase = event["cat"];
            EXPECT_GE(event["dur"].get<double>(), 0);
            begin.try_emplace(phase, event["ts"]);
            begin[phase] = std::min(begin[phase], event["ts"].get<double>());
            end[phase] = std::max(end[phase], event["ts"].get<double>() + event["dur"].get<double>());
        }
        for (const char* phase : {"load", "forward", "backward", "quantise", "encode", "send", "wait", "decode", "apply"})
            EXPECT_TRUE(begin.contains(phase)) << phase << " is missing at rank " << rank;
        EXPECT_LT(begin["load"], begin["forward"]);
        EXPECT_LT(begin["forward"], begin["quantise"]);
        EXPECT_LT(begin["encode"], begin["decode"]);
        EXPECT_LE(end["wait"], begin["apply"]);
    }
    EXPECT_EQ(run("run job.toml --local 2 --profile /nowhere/trace.json").exit, 2);
    for (const char* none : {"[profile]\nstep = 0\n", "[profile]\n", "profile.step = 0\n"}) {
        write("job.toml", *none == 'p' ? none + job : job + none);
        outcome = run("run job.toml --local 2 --profile trace.json");
        EXPECT_EQ(outcome.exit, 2);
        EXPECT_TRUE(outcome.says("job.toml has a [profile] without a step, or with step 0")) << outcome.err;
    }
    write("job.toml", std::string(job).replace(job.find("\"ssgd\""), 6, "\"ma\""));
    outcome = run("run job.toml --local 2 --profile trace.json");
    EXPECT_EQ(outcome.exit, 2);
    EXPECT_TRUE(outcome.says("--profile: profile.step: goes with ssgd, not ma")) << outcome.err;
    write("job.toml", job + "[profile]\nstep = 3\n");
    EXPECT_EQ(run("run job.toml --local 2 --keep traced").exit, 0);
    EXPECT_NE(read("traced/profile.json").find("node-2"), std::string::npos);
    EXPECT_EQ(Json::parse(read("traced/profile.json"))["otherData"]["step"], 3);
}

TEST_F(SystemLocal, AJobThatFailsIsToldOnceAndLeavesLittle) {
    import();
    std::string job = good_job;
    write("job.toml", job.replace(job.find("lenet5"), 6, "resnet9\"\npad = \"x"));
    EXPECT_EQ(run("run job.toml --local 2 --keep kept").exit, 2);
    job = good_job;
    write("job.toml", job.replace(job.find("lenet5"), 6, "ridge"));   // an error at all nodes
    Outcome outcome = run("run job.toml --local 3 --keep kept --profile trace.json");
    EXPECT_EQ(outcome.exit, 2) << outcome.err;
    EXPECT_TRUE(outcome.says("does not fit 10 classes")) << outcome.err;
    for (const char* name : {"kept", "trace.json"}) EXPECT_FALSE(fs::exists(folder + "/" + name)) << name;

    write("trace.json", "of an earlier run");
    EXPECT_EQ(run("run job.toml --local 1 --keep kept --profile trace.json").exit, 2);
    EXPECT_EQ(read("trace.json"), "of an earlier run");
    fs::remove(folder + "/trace.json");

    job = good_job;
    write("job.toml", job.replace(job.find("0.05"), 4, "1e20"));
    outcome = run("run job.toml --local 3 --keep kept --profile trace.json");
    EXPECT_EQ(outcome.exit, 1);
    const size_t shown = outcome.err.find("diverged");
    EXPECT_NE(shown, std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.err.find("diverged", shown + 1), std::string::npos) << outcome.err;
    EXPECT_TRUE(fs::exists(folder + "/kept/log"));
    EXPECT_FALSE(fs::exists(folder + "/trace.json"));
    expect_nothing_remains();

    write("state", "not a folder");   // where results go: an error before the training
    write("job.toml", good_job);
    outcome = run("run job.toml --local 1");
    EXPECT_EQ(outcome.exit, 2);
    EXPECT_TRUE(outcome.says("--keep: ")) << outcome.err;
    EXPECT_EQ(run("run job.toml --local 1 --keep new --profile /nowhere/trace.json").exit, 2);
    EXPECT_FALSE(fs::exists(folder + "/new"));
}

TEST_F(SystemLocal, TwoDaemonsTrainAndNothingIsLeft) {
    import();
    write("job.toml", "[job]\ntensorboard = true\n" + good_job.substr(good_job.find('\n') + 1));
    Outcome outcome = run("run job.toml --local 2 --keep kept");
    ASSERT_EQ(outcome.exit, 0) << outcome.err;
    size_t at = outcome.out.find("\ndigest ");
    ASSERT_NE(at, std::string::npos) << outcome.out;
    std::string digest = outcome.out.substr(at + 8, 64);
    EXPECT_NE(outcome.out.find("node-1"), std::string::npos);
    EXPECT_NE(outcome.out.find("node-2"), std::string::npos);
    EXPECT_EQ(outcome.out.find("not known"), std::string::npos);
    expect_nothing_remains();
    for (const char* name : {"final.h5", "steps.jsonl", "log", "job.toml"}) EXPECT_TRUE(fs::exists(folder + "/kept/" + name)) << name;
    EXPECT_NE(read("kept/log").find("epoch 1 step 6 loss "), std::string::npos) << read("kept/log");   // in the middle of the epoch
    EXPECT_NE(outcome.out.find("model kept/final.h5\nkept in kept\n"), std::string::npos) << outcome.out;
    const auto is_events = [](const fs::directory_entry& each) {
        return each.path().filename().string().starts_with("events.out.tfevents.");
    };
    EXPECT_EQ(std::count_if(fs::directory_iterator(folder + "/kept"), fs::directory_iterator(), is_events), 1);
    outcome = run("report kept --out report.html");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_NE(read("report.html").find("class, predicted"), std::string::npos) << outcome.err;
    EXPECT_TRUE(run("run job.toml --local 2 --keep kept").says("there is a model already"));

    Outcome evaluated = run("evaluate kept/final.h5 --data test.h5 -o json");
    EXPECT_EQ(evaluated.exit, 0) << evaluated.err;
    EXPECT_EQ(evaluated.json()["digest"], digest);
    EXPECT_EQ(evaluated.json()["samples"], 80);

    // Kernels for any x86-64 CPU.
    outcome = run("run job.toml --local 2 --isa portable --keep portable");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_NE(read("portable/steps.jsonl").find("\"kernels\":\"portable\""), std::string::npos) << read("portable/steps.jsonl");
    EXPECT_TRUE(run("run job.toml --local 2 --isa z80").says("--isa = \"z80\": one of auto, portable, common, avx2"));

    // The same bits with another number of daemons, and the default place for what is kept.
    outcome = run("run job.toml --local 1 -o json");
    ASSERT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_EQ(outcome.json()["status"]["digest"], digest);
    EXPECT_TRUE(outcome.json()["kept"].get<std::string>().starts_with(folder + "/state/gradcast/tiny-"));
    EXPECT_TRUE(fs::exists(outcome.json()["kept"].get<std::string>() + "/final.h5"));

    // A job that goes on from there.
    EXPECT_EQ(run("export kept/final.h5 start.safetensors").exit, 0);
    std::string on = good_job;
    on.replace(on.find("preset"), 0, "start = \"start.safetensors\"\n");
    write("on.toml", on);
    outcome = run("run on.toml --local 2 --keep on");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_NE(read("on/log").find("begins with the parameters of " + fs::canonical(folder).string() + "/start.safetensors, digest "),
              std::string::npos)
        << read("on/log");
    on.replace(on.find("lenet5"), 6, "lenet3");
    write("on.toml", on);
    outcome = run("run on.toml --local 2 --keep none");
    EXPECT_EQ(outcome.exit, 2);
    EXPECT_TRUE(outcome.says("tensor fc2.bias: the net has none of this name: did you mean fc1.bias?")) << outcome.err;
    EXPECT_FALSE(fs::exists(folder + "/none/final.h5"));
}

TEST_F(SystemLocal, NoNodeSendsLessThanTheTableSaysThatItMust) {
    import();
    write("job.toml", good_job);
    auto expect_sent = [](const Outcome& outcome) {
        ASSERT_EQ(outcome.exit, 0) << outcome.err;
        for (const Json& node : outcome.json()["node_results"]) {
            const Json& status = node["status"];
            EXPECT_GT(status["bytes_bound"], 0u) << node["name"];
            EXPECT_GE(status["bytes_sent"], status["bytes_bound"]) << node["name"];
            EXPECT_EQ(status["may_send_less"], false) << node["name"];
        }
    };
    std::vector<std::string> exchanges = {"auto"};
    for (const ExchangeKind& kind : exchange_kinds()) exchanges.emplace_back(kind.name);
    for (const std::string& exchange : exchanges) {
        SCOPED_TRACE(exchange);
        expect_sent(run("run job.toml --local 3 -o json --set job.steps=40 --set algorithm.exchange=" + exchange));
    }
    // Steps of the run before are not this run's.
    ASSERT_EQ(run("run job.toml --local 2 --keep first --set job.steps=40").exit, 0);
    expect_sent(run("run job.toml --local 2 -o json --set job.steps=42 --resume first/final.h5"));

    // Where a sum can do without one node, that node may have sent nothing.
    const Outcome spare = run("run job.toml --local 3 --set algorithm.exchange=coded-rs --set algorithm.s=1 --set algorithm.m=1");
    EXPECT_EQ(spare.exit, 0) << spare.err;
    EXPECT_NE(spare.out.find("  formula (coded-rs)  "), std::string::npos) << spare.out;
    EXPECT_EQ(spare.out.find("at least"), std::string::npos) << spare.out;
    EXPECT_NE(run("run job.toml --local 2").out.find("  at least (ring)  "), std::string::npos);
    const std::string stages = " --set algorithm.exchange=ring --set parallel.stages=2";
    EXPECT_NE(run("run job.toml --local 2" + stages).out.find("  at least (edges)  "), std::string::npos);
    EXPECT_NE(run("run job.toml --local 4" + stages).out.find("  at least (edges, ring)  "), std::string::npos);
}

TEST_F(SystemLocal, CtrlCLeavesACheckpointFromWhichItGoesOn) {
    import();
    std::string job = good_job;
    job.replace(job.find("steps = 6"), 9, "steps = 1500\ncheckpoint_every = 40");
    write("job.toml", job);
    const Outcome whole = run("run job.toml --local 1 --keep whole -o json");
    ASSERT_EQ(whole.exit, 0) << whole.err;
    fs::remove(folder + "/err");
    pid_t pid = start("run job.toml --local 2 --keep kept");
    EXPECT_TRUE(shown("step ")) << read("err");
    ::kill(pid, SIGINT);
    Outcome outcome = wait(pid, 30);
    EXPECT_EQ(outcome.exit, 1) << outcome.err;
    expect_nothing_remains();

    // The line that it prints goes on, here with another number of daemons.
    const std::string says = "gradcastctl run --resume ", on = " --local 2 goes on";
    const size_t at = outcome.err.find(says), end = outcome.err.find(on);
    ASSERT_TRUE(at != std::string::npos && end != std::string::npos) << outcome.err;
    const std::string checkpoint = outcome.err.substr(at + says.size(), end - at - says.size());
    std::smatch steps;   // the line names one state
    EXPECT_TRUE(
        std::regex_search(outcome.err, steps, std::regex("interrupted after step ([0-9]+) of 1500: its state after ([0-9]+) steps")))
        << outcome.err;
    EXPECT_EQ(steps[1], steps[2]) << outcome.err;
    EXPECT_EQ(run("run --local 2").exit, 2);
    outcome = run("run --resume kept/job.toml --local 2");
    EXPECT_EQ(outcome.exit, 2);
    EXPECT_TRUE(outcome.says("kept/job.toml: not a gradcast model")) << outcome.err;
    outcome = run("run --resume " + checkpoint + " --local 3 --keep kept -o json");
    ASSERT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_EQ(outcome.json()["status"]["digest"], whole.json()["status"]["digest"]);
    EXPECT_GE(outcome.json()["status"]["resumed"].get<uint64_t>(), 1u);
    const std::string lines = read("kept/steps.jsonl");
    EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 1500);
    expect_nothing_remains();

    // A job file beside it: more steps from the model, or another training, which is refused.
    job.replace(job.find("steps = 1500"), 12, "steps = 1510");
    write("job.toml", job);
    outcome = run("run job.toml --resume kept/final.h5 --local 1 --keep more");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    job.replace(job.find("lr = 0.05"), 9, "lr = 0.06");
    write("job.toml", job);
    outcome = run("run job.toml --resume kept/final.h5 --local 1 --keep other");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says("of another training: optimiser.lr was 0.05 and is 0.06 now")) << outcome.err;
    expect_nothing_remains();
}

// With `survive` some daemons leave the job, and the last ones, which it cannot go on without, end it.
TEST_F(SystemLocal, CtrlCEndsAJobThatSurvivesWithItsNewestState) {
    import();
    struct Case {
        uint32_t nodes;
        const char* grid;
    };
    for (const auto& [nodes, grid] : {Case{2, ""}, Case{3, ""}, Case{4, ""}, Case{3, "[parallel]\nstages = 3\nbuddy = true\n"},
                                      Case{4, "[parallel]\nstages = 4\nbuddy = true\n"}, Case{4, "[parallel]\nstages = 2\n"}}) {
        SCOPED_TRACE(fmt::format("{} nodes {}", nodes, grid));
        std::string job = good_job;
        job.replace(job.find("steps = 6"), 9,
                    "steps = 100000\nevaluate = 100000\ncheckpoint_every = 100000\ndeadline = \"8s\"\nsurvive = true");
        write("job.toml", job + grid);
        for (const char* file : {"err", "kept"}) fs::remove_all(folder + "/" + file);
        const pid_t pid = start(fmt::format("run job.toml --local {} --keep kept", nodes));
        EXPECT_TRUE(shown("step ")) << read("err");
        const uint64_t begin_us = clock_us();
        ::kill(pid, SIGINT);
        const Outcome outcome = wait(pid, 30);
        EXPECT_LT(clock_us() - begin_us, 5'000'000u);
        EXPECT_EQ(outcome.exit, 1) << outcome.err;
        std::smatch found;
        EXPECT_TRUE(std::regex_search(outcome.err, found, std::regex("its state after ([0-9]+) steps is kept"))) << outcome.err;
        const uint64_t steps = found.empty() ? 0 : std::stoull(found[1]);
        expect_nothing_remains();
        if (HasFailure()) return;
        // What is kept has the bits of a run that nobody ended.
        const std::string after = outcome.err.substr(outcome.err.find("--resume ") + 9), checkpoint = after.substr(0, after.find(' '));
        const std::string alone = fmt::format("run job.toml --local 1 --set job.survive=false --set job.steps={} {} -o json", steps + 2,
                                              *grid ? "--set parallel.stages=1 --set parallel.buddy=false" : "");
        const Outcome on = run(alone + " --keep on --resume " + checkpoint), whole = run(alone);
        fs::remove_all(folder + "/on");
        EXPECT_EQ(on.exit, 0) << on.err;
        EXPECT_EQ(whole.exit, 0) << whole.err;
        EXPECT_EQ(on.json()["status"]["digest"], whole.json()["status"]["digest"]);
    }
}

TEST_F(SystemLocal, AFolderHoldsOneTraining) {
    import();
    std::string job = good_job;
    job.replace(job.find("steps = 6"), 9, "steps = 100000\ncheckpoint_every = 2");
    write("job.toml", job);
    fs::remove(folder + "/err");
    const pid_t pid = start("run job.toml --local 1 --keep kept");
    EXPECT_TRUE(shown("step ")) << read("err");
    // At the same time: `start` writes err and out of its own.
    const std::string command = "cd '" + folder + "' && '" + program + "' run job.toml --local 1 --keep kept >out2 2>err2 </dev/null";
    EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 2);
    EXPECT_NE(read("err2").find("--keep kept: another run keeps its results there: choose another folder"), std::string::npos)
        << read("err2");
    ::kill(pid, SIGINT);
    EXPECT_EQ(wait(pid, 30).exit, 1);
    std::vector<std::string> checkpoints;
    ASSERT_TRUE(file_glob(folder + "/kept/checkpoint-*.h5", &checkpoints).ok());
    const std::string checkpoint = fs::relative(checkpoints[0], folder);
    write("good.toml", good_job);
    Outcome outcome = run("run good.toml --local 1 --keep kept");
    EXPECT_EQ(outcome.exit, 2);
    EXPECT_TRUE(outcome.says("--keep kept: " + checkpoint + " is of another training: choose another folder, or go on with"))
        << outcome.err;
    ASSERT_EQ(run("run good.toml --local 1 --keep other").exit, 0);
    outcome = run("run job.toml --local 1 --resume other/final.h5 --keep kept");
    EXPECT_EQ(outcome.exit, 2);
    EXPECT_TRUE(outcome.says(checkpoint + " is of another training")) << outcome.err;
    // What a refusal names is there after it.
    std::string changed = job;
    write("job.toml", changed.replace(changed.find("0.05"), 4, "0.06"));
    outcome = run("run job.toml --local 1 --resume " + checkpoint);
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says(checkpoint + ": of another training: optimiser.lr was 0.05 and is 0.06 now")) << outcome.err;
    EXPECT_FALSE(outcome.says("/state/jobs/")) << outcome.err;
    expect_nothing_remains();
}

TEST_F(SystemLocal, ALimitOfTasksThatLetsNoDaemonStartIsNamed) {
    const LimitedGroup group("pids", "pids.max", "pids.max", 2);   // this process and gradcastctl
    if (group.path.empty()) GTEST_SKIP() << "no control group with a limit on tasks can be made: it needs root and the pids controller";
    import();
    write("job.toml", good_job);
    EXPECT_EQ(group.inside([&] { return run("run job.toml --local 1 --keep kept").exit; }), 1);
    EXPECT_NE(read("err").find("/gradcastd: control group /" + group.path.filename().string() + " may have 2 tasks"), std::string::npos)
        << read("err");
}

TEST_F(SystemLocal, ADaemonThatDiesIsToldAtOnce) {
    import();
    std::string job = good_job;
    job.replace(job.find("steps = 6"), 9, "steps = 1000000");
    write("job.toml", job);
    pid_t pid = start("run job.toml --local 2");
    EXPECT_TRUE(shown("step ")) << read("err");
    const pid_t victim = daemon_of("node-2");
    ASSERT_GT(victim, 0);
    ::kill(victim, SIGKILL);
    Outcome outcome = wait(pid, 30);
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says("node-2")) << outcome.err;
    EXPECT_NE(outcome.out.find("no model: the job ended before its last step was done\n"), std::string::npos) << outcome.out;
    expect_nothing_remains();
}

// On real sockets: what the digest says is that no bit of the training has changed.
TEST_F(SystemLocal, AJobThatSurvivesGoesOnWithoutADaemon) {
    import();
    std::string job = good_job;
    job.replace(job.find("steps = 6"), 9, "steps = 2000\ndeadline = \"8s\"\nsurvive = true");
    write("job.toml", job);
    const Outcome whole = run("run job.toml --local 1 --keep whole -o json");
    ASSERT_EQ(whole.exit, 0) << whole.err;
    for (const char* dies : {"node-2", "node-1"}) {   // node-1 coordinates
        SCOPED_TRACE(dies);
        fs::remove(folder + "/err");
        const pid_t pid = start("run job.toml --local 3 -o json --keep without-" + std::string(dies));
        EXPECT_TRUE(shown("step ")) << read("err");
        const pid_t victim = daemon_of(dies);
        ASSERT_GT(victim, 0);
        ::kill(victim, SIGKILL);
        const Outcome outcome = wait(pid, 300);
        ASSERT_EQ(outcome.exit, 0) << outcome.err;
        EXPECT_EQ(outcome.json()["status"]["digest"], whole.json()["status"]["digest"]);
        EXPECT_NE(outcome.json()["status"]["losses"].dump().find(" go on after step "), std::string::npos) << outcome.out;
        expect_nothing_remains();
    }
}

// Neither the questions at the end nor the daemon's end wait for it, whether it is the one that is followed or not.
TEST_F(SystemLocal, AStoppedDaemonHoldsUpNobody) {
    import();
    std::string job = good_job;
    job.replace(job.find("steps = 6"), 9, "steps = 1000\ndeadline = \"8s\"\nsurvive = true");
    write("job.toml", job);
    for (const char* stops : {"node-3", "node-1"}) {
        SCOPED_TRACE(stops);
        fs::remove(folder + "/err");
        const pid_t pid = start("run job.toml --local 3 -o json --keep without-" + std::string(stops));
        EXPECT_TRUE(shown("step ")) << read("err");
        const pid_t stopped = daemon_of(stops);
        ASSERT_GT(stopped, 0);
        ::kill(stopped, SIGSTOP);
        const Outcome outcome = wait(pid, 50);
        EXPECT_EQ(outcome.exit, 0) << outcome.err;
        EXPECT_EQ(outcome.json()["status"]["digest"].dump().size(), 66u) << outcome.out;
        expect_nothing_remains();
    }
}

TEST_F(SystemLocal, AJobThatCanDoWithoutItsCoordinatorIsFollowedToItsEnd) {
    import();
    std::string job = good_job;
    job.replace(job.find("steps = 6"), 9, "steps = 400");
    job.replace(job.find("\"ring\""), 6, "\"coded-rs\"\nm = 1\ns = 1");
    write("job.toml", job);
    const pid_t pid = start("run job.toml --local 3 --keep kept");
    EXPECT_TRUE(shown("step ")) << read("err");
    const pid_t victim = daemon_of("node-1");
    ASSERT_GT(victim, 0) << read("err");
    ::kill(victim, SIGKILL);
    Outcome outcome = wait(pid, 120);
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_TRUE(outcome.says("node-1 (gradcastd, process ")) << outcome.err;
    EXPECT_TRUE(outcome.says("is now followed at node-2")) << outcome.err;
    EXPECT_NE(outcome.out.find("\ndigest "), std::string::npos) << outcome.out;
    EXPECT_NE(outcome.out.find("not known here: node-1"), std::string::npos) << outcome.out;
    expect_nothing_remains();
}

TEST_F(SystemLocal, ADaemonThatDiesAfterTheLastStepLosesNoModel) {
    import();
    idx("t10k", 40'000);   // the last evaluation takes long enough to be seen
    ASSERT_EQ(run("import idx --from . --out more").exit, 0);
    std::string job = good_job;
    write("job.toml", job.replace(job.find("test.h5"), 7, "more/test.h5"));
    const auto kill_after_the_last_step = [&](const char* name, const char* other) -> Outcome {
        fs::remove_all(folder + "/kept");
        const pid_t pid = start("run job.toml --local 2 --keep kept");
        bool trained = false;
        for (uint64_t end = clock_us() + 60'000'000; !trained && clock_us() < end;
             std::this_thread::sleep_for(std::chrono::milliseconds(2))) {
            std::vector<std::string> sockets;
            if (!file_glob(folder + "/gradcast-*/" + other + "/control.sock", &sockets).ok()) continue;
            httplib::Client client(sockets[0]);
            client.set_address_family(AF_UNIX);
            const httplib::Result result = client.Get("/v1/jobs");
            const Json jobs = result ? Json::parse(result->body, nullptr, false)["jobs"] : Json();
            trained = jobs.size() == 1 && jobs[0]["status"]["steps"] == 6 && jobs[0]["status"]["step"] == 6;
        }
        EXPECT_TRUE(trained) << read("err");
        if (const pid_t victim = daemon_of(name); victim > 0) ::kill(victim, SIGKILL);
        return wait(pid, 60);
    };
    for (const auto& [name, other] : {std::pair{"node-1", "node-2"}, {"node-2", "node-1"}}) {
        Outcome outcome = kill_after_the_last_step(name, other);
        // On a busy machine the job may end first.
        for (uint32_t again = 0; again < 4 && outcome.exit == 0; ++again) outcome = kill_after_the_last_step(name, other);
        EXPECT_EQ(outcome.exit, 1);
        EXPECT_TRUE(outcome.says(name)) << outcome.err;
        EXPECT_NE(outcome.out.find("model kept/final.h5\n"), std::string::npos) << outcome.out << outcome.err;
        Model model;
        std::vector<float> parameters;
        const Status status = model_read(folder + "/kept/final.h5", &model, &parameters);
        EXPECT_TRUE(status.ok()) << status.what;
        EXPECT_EQ(model.step, 6u);
        expect_nothing_remains();
    }
}

TEST_F(SystemLocal, AMissingDataSetEndsTheRun) {
    write("job.toml", good_job);
    Outcome outcome = run("run job.toml --local 2");
    EXPECT_NE(outcome.exit, 0);
    EXPECT_TRUE(outcome.says("train.h5")) << outcome.err;
    expect_nothing_remains();
}

}   // namespace
}   // namespace gradcast
