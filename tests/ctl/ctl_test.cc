// The real gradcastctl, as a person or a script calls it: exit codes, texts, JSON.  Daemons are faked where the subject is the client.
#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "nn/layers.h"
#include "runtime/control/json.h"
#include "runtime/core/clock.h"
#include "runtime/core/digest.h"
#include "runtime/core/fd.h"
#include "runtime/job/model_file.h"
#include "tests/control/fake_backend.h"

namespace gradcast {
namespace {

namespace fs = std::filesystem;

struct Outcome {
    int exit = -1;
    std::string out, err;
    Json json() const { return Json::parse(out, nullptr, false); }
    bool says(const std::string& text) const { return err.find(text) != std::string::npos; }
};

struct Ctl : testing::Test {
    std::string folder, program, socket;
    FakeBackend backend;
    std::unique_ptr<ControlServer> server;

    void SetUp() override {
        ::signal(SIGPIPE, SIG_IGN);
        const char* build = std::getenv("GRADCAST_BUILD");
        program = fs::absolute(std::string(build ? build : "build") + "/gradcastctl");
        if (::access(program.c_str(), X_OK) != 0) GTEST_SKIP() << "not built: " << program;
        folder = testing::TempDir() + "gc-ctl-XXXXXX";
        ASSERT_NE(::mkdtemp(folder.data()), nullptr);
        socket = folder + "/control.sock";
    }
    void TearDown() override {
        server.reset();
        if (!folder.empty()) fs::remove_all(folder);
    }
    void serve() {
        Status status = control_open({.socket = socket}, backend, Log(), &server);
        ASSERT_TRUE(status.ok()) << status.what;
    }
    void write(const std::string& name, const std::string& text) const { ASSERT_TRUE(file_write(folder + "/" + name, text).ok()); }
    std::string read(const std::string& name) const {
        std::string text;
        (void)file_read(folder + "/" + name, &text).ok();
        return text;
    }
    /// Starts `gradcastctl arguments` with folder as its working, state and temporary folder.
    pid_t start(const std::string& arguments) const {
        // Nothing is allocated between fork and exec: another thread may hold the allocator's lock.
        const std::string command = "cd '" + folder + "' && XDG_STATE_HOME='" + folder + "/state' TMPDIR='" + folder + "' exec '" +
                                    program + "' " + arguments + " >out 2>err </dev/null";
        pid_t pid = ::fork();
        if (pid != 0) return pid;
        ::signal(SIGPIPE, SIG_DFL);
        ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
        ::_exit(126);
    }
    Outcome wait(pid_t pid, uint64_t seconds = 120) const {
        int how = 0;
        for (uint64_t end = clock_us() + seconds * 1'000'000; ::waitpid(pid, &how, WNOHANG) == 0;) {
            if (clock_us() > end) {
                ADD_FAILURE() << "did not end in " << seconds << " s:\n" << read("out") << read("err");
                ::kill(pid, SIGKILL);
                ::waitpid(pid, &how, 0);
                break;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        return {WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how), read("out"), read("err")};
    }
    Outcome run(const std::string& arguments) const { return wait(start(arguments)); }
    Outcome ask(const std::string& arguments) const { return run("--socket " + socket + " " + arguments); }
};

const std::string id_a = "aaaa0000000000000000000000000000";
const std::string good_job =
    "[job]\nname = \"tiny\"\nseed = 1\nsteps = 6\nbatch = 16\nblocks = 4\n[data]\ntrain = \"train.h5\"\ntest = \"test.h5\"\n"
    "[net]\npreset = \"lenet5\"\n[optimiser]\nkind = \"sgd\"\nlr = 0.05\n[algorithm]\nkind = \"ssgd\"\nexchange = \"ring\"\n";

TEST_F(Ctl, WrongCommandLinesExitWithTwoAndNameTheNearest) {
    struct {
        const char *arguments, *says;
    } cases[] = {
        {"", "subcommand is required"},
        {"sbmit job.toml", "did you mean submit?"},
        {"submit job.toml --node 4", "did you mean --nodes?"},
        {"run job.toml --locl 4", "did you mean --local?"},
        {"run job.toml", "--local is required"},
        {"run job.toml --local 0", "--local"},
        {"run job.toml --local 65", "--local"},
        {"run job.toml --local four", "--local"},
        {"list extra", "extra"},
        {"-o yaml list", "json"},
        {"describe", "JOB"},
        {"evaluate final.h5", "--data"},
        {"import mist --from . --out .", "did you mean mnist?"},
        {"import ridge --out . --samples -5", "--samples"},
        {"import ridge --out . --samples 0", "--samples"},
        {"import ridge --out . --compress=0", "--compress"},
        {"import ridge --out . --compress=12", "--compress"},
        {"help jbo", "no help on jbo"},
        {"submit absent.toml", "absent.toml"},
    };
    for (const auto& each : cases) {
        Outcome outcome = run(each.arguments);
        EXPECT_EQ(outcome.exit, 2) << each.arguments;
        EXPECT_TRUE(outcome.says(each.says)) << each.arguments << "\n" << outcome.err;
        EXPECT_EQ(outcome.out, "") << each.arguments;
    }
}

TEST_F(Ctl, HelpAndVersionGoToStdout) {
    for (const char* arguments : {"--help", "--version", "help", "help submit", "help job", "submit --help"}) {
        Outcome outcome = run(arguments);
        EXPECT_EQ(outcome.exit, 0) << arguments << outcome.err;
        EXPECT_NE(outcome.out, "") << arguments;
        EXPECT_EQ(outcome.err, "") << arguments;
    }
    EXPECT_EQ(run("help").out, run("--help").out);
    EXPECT_NE(run("help job").out.find("exchange"), std::string::npos);
    EXPECT_NE(run("help submit").out.find("--wait"), std::string::npos);
}

TEST_F(Ctl, NoDaemonIsExitThree) {
    for (const char* arguments : {"list", "nodes", "describe x", "watch x", "logs x", "cancel x"}) {
        Outcome outcome = ask(arguments);
        EXPECT_EQ(outcome.exit, 3) << arguments;
        EXPECT_TRUE(outcome.says("no gradcastd answers at " + socket)) << outcome.err;
        EXPECT_TRUE(outcome.says("run --local")) << outcome.err;
    }
}

TEST_F(Ctl, ErrorsAreJsonToo) {
    struct {
        const char* arguments;
        int exit;
    } cases[] = {{"-o json list", 3},
                 {"list --output=json", 3},
                 {"-ojson describe x", 3},
                 {"-o json submit absent.toml", 2},
                 {"-o json sbmit absent.toml", 2},
                 {"-o json list extra", 2},
                 {"-o json evaluate a.h5 --data b", 1}};
    for (const auto& each : cases) {
        Outcome outcome = ask(each.arguments);
        EXPECT_EQ(outcome.exit, each.exit) << each.arguments;
        const Json json = outcome.json();
        ASSERT_TRUE(json.is_object()) << each.arguments << "\n" << outcome.out;
        EXPECT_EQ(json["exit"], each.exit) << each.arguments;
        EXPECT_FALSE(json["error"].get<std::string>().empty()) << each.arguments;
        EXPECT_NE(outcome.err, "") << each.arguments;
    }
}

TEST_F(Ctl, EveryMistakeOfAJobFileIsTold) {
    write("job.toml",
          "[job]\nname = \"x\"\nepochs = -1\nbatchs = 128\n[data]\ntrain = \"train.h5\"\n[net]\npreset = \"lenet5\"\n[algorithm]\nexchange "
          "= \"rong\"\n");
    for (const char* arguments : {"run job.toml --local 2", "submit job.toml"}) {
        Outcome outcome = ask(arguments);
        EXPECT_EQ(outcome.exit, 2) << outcome.err;
        EXPECT_TRUE(outcome.says("job.toml:3:")) << outcome.err;
        EXPECT_TRUE(outcome.says("job.toml:4:")) << outcome.err;
        EXPECT_TRUE(outcome.says("batch")) << outcome.err;
        EXPECT_TRUE(outcome.says("job.toml:10:")) << outcome.err;
        EXPECT_TRUE(outcome.says("ring")) << outcome.err;
    }
    for (const auto& entry : fs::directory_iterator(folder)) EXPECT_FALSE(entry.path().filename().string().starts_with("gradcast-"));
}

TEST_F(Ctl, JobsAndNodesAreShownInTextAndJson) {
    JobStatus& status = backend.add(id_a, "first")->summary.status;
    status.warnings = {"2 ranks are too few", "and slow"};
    status.dropped = {{"forged", 3}, {"replayed", 0}};
    status.timeouts_us = {{"peer lost", 2'000'000}};
    status.view = 3;
    status.change_us = 12'000;
    status.memory = {{"job", {{"parameters", 1 << 20}, {"read ahead", 1 << 21}}}, {"view", {{"sums", 1 << 20}}}};
    backend.members = {{.name = "node-1",
                        .address = "127.0.0.1:1",
                        .uuid = "u",
                        .version = "0.1.0",
                        .self = true,
                        .alive = true,
                        .jobs = 1,
                        .why = "",
                        .isa = "avx512-bf16"},
                       {.name = "node-2",
                        .address = "127.0.0.1:2",
                        .uuid = "",
                        .version = "",
                        .self = false,
                        .alive = false,
                        .jobs = 0,
                        .why = "refused: keys differ",
                        .isa = ""}};
    serve();
    Outcome outcome = ask("list");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    for (const char* word : {"aaaa0000", "first", "running", "1/10"}) EXPECT_NE(outcome.out.find(word), std::string::npos) << outcome.out;
    EXPECT_EQ(ask("list -o json").json()["jobs"][0]["id"], id_a);

    outcome = ask("describe first");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    for (const char* word :
         {id_a.c_str(), "ring", "1 of 10, epoch 1 of 1\n", "dropped         3 forged\n", "peer lost 2.00 s", "128 in 8 blocks",
          "node-1, node-2", "3.00 MiB", "warning         2 ranks are too few\n", "warning         and slow\n",
          "node-1, node-2; this one is node-1\n", "view            3; the longest change took 0.01 s\n",
          "memory          job: parameters 1.0 MiB, read ahead 2.0 MiB, 3.0 MiB in all; view: sums 1.0 MiB, 1.0 MiB in all\n"})
        EXPECT_NE(outcome.out.find(word), std::string::npos) << outcome.out;
    const Json json = ask("describe aaaa -o json").json();
    EXPECT_EQ(json["status"]["step"], 1);
    EXPECT_EQ(json["status"]["dropped"]["forged"], 3);
    EXPECT_EQ(json["status"]["timeouts_us"]["peer_lost"], 2'000'000);
    EXPECT_EQ(json["status"]["memory_bytes"]["job"]["read_ahead"], 1 << 21);
    EXPECT_EQ(json["status"]["view"], 3);
    EXPECT_FALSE(json.contains("folder"));   // there is none

    outcome = ask("nodes");
    EXPECT_NE(outcome.out.find("refused: keys differ"), std::string::npos) << outcome.out;
    EXPECT_NE(outcome.out.find("avx512-bf16"), std::string::npos) << outcome.out;
    EXPECT_EQ(ask("nodes -o json").json()["nodes"].size(), 2u);
    EXPECT_EQ(ask("nodes -o json").json()["nodes"][0]["isa"], "avx512-bf16");

    outcome = ask("describe nothing");
    EXPECT_EQ(outcome.exit, 2);
    EXPECT_EQ(outcome.err, "gradcastctl: there is no job nothing\n");
    EXPECT_EQ(ask("cancel first").exit, 0);
    EXPECT_EQ(ask("describe first -o json").json()["status"]["state"], "cancelled");
}

TEST_F(Ctl, SubmitSendsTheFileAndItsFolder) {
    backend.add(id_a, "first");
    serve();
    write("job.toml", good_job);
    Outcome outcome = ask("submit job.toml --nodes a,b");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_EQ(outcome.out, "job " + id_a + "\n");
    ASSERT_EQ(backend.submissions().size(), 1u);
    EXPECT_EQ(backend.submissions()[0].text, good_job);
    EXPECT_EQ(fs::weakly_canonical(backend.submissions()[0].base), fs::weakly_canonical(folder));
    EXPECT_EQ(backend.submissions()[0].nodes, (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(outcome.err, "");
    {
        std::lock_guard lock(backend.mutex);
        backend.all[0].summary.status.warnings = {"2 ranks are too few"};
    }
    outcome = ask("submit job.toml --nodes 3 -o json");
    EXPECT_EQ(outcome.json()["id"], id_a);
    EXPECT_EQ(outcome.err, "warning: 2 ranks are too few\n");
    ASSERT_EQ(backend.submissions().size(), 2u);
    EXPECT_EQ(backend.submissions()[1].count, 3u);
    for (const char* nodes : {"0", "a,,b", ",", "99999"}) EXPECT_EQ(ask(std::string("submit job.toml --nodes ") + nodes).exit, 2) << nodes;

    backend.answer_submit(fail(Code::data, "node b: no file matches /data/train*.h5"));
    outcome = ask("submit job.toml");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_EQ(outcome.err, "gradcastctl: node b: no file matches /data/train*.h5\n");
}

TEST_F(Ctl, SubmitWaitsForTheMembersAndTellsWhyTheyRefuse) {
    JobDetail* detail = backend.add(id_a, "first");
    detail->started = false, detail->summary.status.state = JobState::preparing;
    serve();
    write("job.toml", good_job);
    const pid_t pid = start("--socket " + socket + " submit job.toml");
    for (uint64_t end = clock_us() + 10'000'000; backend.submissions().empty() && clock_us() < end;)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_EQ(::waitpid(pid, nullptr, WNOHANG), 0);
    auto fail = [&](Code code, const std::string& error) {
        backend.finish(detail, JobState::failed, error);
        std::lock_guard lock(backend.mutex);
        detail->summary.status.code = code;
    };
    fail(Code::peer_refused, "node b: no file matches /data/train*.h5");
    Outcome outcome = wait(pid);
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_EQ(outcome.err, "gradcastctl: node b: no file matches /data/train*.h5\n");
    EXPECT_EQ(outcome.out, "");
    fail(Code::invalid, "node b: a net of ridge does not fit 10 classes");
    outcome = ask("submit job.toml --wait");
    EXPECT_EQ(outcome.exit, 2);
    EXPECT_EQ(outcome.err, "gradcastctl: node b: a net of ridge does not fit 10 classes\n");
}

TEST_F(Ctl, WaitEndsWithAccuracyAndDigest) {
    JobDetail* detail = backend.add(id_a, "first");
    serve();
    write("job.toml", good_job);
    pid_t pid = start("--socket " + socket + " submit job.toml --wait");
    std::thread worker([&] {
        for (int i = 0; i < 3; ++i) {
            std::this_thread::sleep_for(std::chrono::milliseconds(150));
            std::lock_guard lock(backend.mutex);
            ++detail->summary.status.step;
        }
        backend.finish(detail, JobState::done);
    });
    Outcome outcome = wait(pid);
    worker.join();
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_TRUE(outcome.out.ends_with("\naccuracy 0.8912\ndigest " + std::string(64, 'a') + "\n")) << outcome.out;
    EXPECT_NE(outcome.out.find("node-1"), std::string::npos) << outcome.out;
    EXPECT_NE(outcome.out.find("not known here: node-2"), std::string::npos) << outcome.out;
    EXPECT_TRUE(outcome.says("step 10/10")) << outcome.err;
    EXPECT_TRUE(outcome.says(" left")) << outcome.err;

    outcome = ask("watch first -o json");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_EQ(outcome.json()["status"]["accuracy"], 0.8912);
    EXPECT_EQ(outcome.json()["node_results"][1]["known"], false);

    backend.finish(detail, JobState::failed, "rank 1 (node-2) lost in step 4, exchange, bucket 2: 8192 bytes missing");
    outcome = ask("watch first");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says("rank 1 (node-2) lost in step 4")) << outcome.err;
    EXPECT_EQ(outcome.out.find("digest"), std::string::npos);
}

TEST_F(Ctl, ADaemonThatDiesWhileWatchedIsExitThree) {
    backend.add(id_a, "first");
    serve();
    pid_t pid = start("--socket " + socket + " watch first");
    for (uint64_t end = clock_us() + 10'000'000; read("err").find("step 1/10") == std::string::npos && clock_us() < end;)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    server.reset();
    Outcome outcome = wait(pid);
    EXPECT_EQ(outcome.exit, 3);
    EXPECT_TRUE(
        outcome.says("went away while job aaaa0000 ran; the job goes on at node-2 where its exchange can do without a node: "
                     "gradcastctl watch aaaa0000 there follows it"))
        << outcome.err;
}

TEST_F(Ctl, CtrlCSaysThatTheJobGoesOn) {
    JobDetail* detail = backend.add(id_a, "first");
    serve();
    write("job.toml", good_job);
    for (const char* arguments : {"watch first", "submit job.toml", "submit job.toml --wait"}) {
        {
            std::lock_guard lock(backend.mutex);
            detail->started = std::string(arguments) != "submit job.toml";
        }
        const pid_t pid = start("--socket " + socket + " " + arguments);
        auto waits = [&] {
            return detail->started ? read("err").find("step 1/10") != std::string::npos : backend.submissions().size() == 1;
        };
        for (uint64_t end = clock_us() + 10'000'000; !waits() && clock_us() < end;)
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        ::kill(pid, SIGINT);
        Outcome outcome = wait(pid);
        EXPECT_EQ(outcome.exit, 128 + SIGINT) << arguments << outcome.err;
        EXPECT_TRUE(outcome.says("job aaaa0000 goes on: gradcastctl watch aaaa0000 follows it, gradcastctl cancel aaaa0000 ends it"))
            << outcome.err;
        fs::remove(folder + "/err");
    }
}

TEST_F(Ctl, LogsComeWholeAndFollow) {
    JobDetail* detail = backend.add(id_a, "first");
    detail->folder = folder;
    serve();
    std::string text;   // more than one piece of the server
    while (text.size() < (9u << 20)) text += fmt::format("line {}\n", text.size());
    write("log", text);
    EXPECT_EQ(ask("logs first").out, text);
    Json lines = ask("logs first -o json").json()["lines"];
    EXPECT_EQ(lines.size(), static_cast<size_t>(std::count(text.begin(), text.end(), '\n')));
    EXPECT_EQ(lines[1], text.substr(text.find('\n') + 1, text.find('\n', text.find('\n') + 1) - text.find('\n') - 1));

    write("log", "one\n");
    pid_t pid = start("--socket " + socket + " logs first -f");
    for (uint64_t end = clock_us() + 10'000'000; read("out") != "one\n" && clock_us() < end;)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::ofstream(folder + "/log", std::ios::app) << "two\n";
    backend.finish(detail, JobState::done);
    Outcome outcome = wait(pid);
    EXPECT_EQ(outcome.exit, 0);
    EXPECT_EQ(outcome.out, "one\ntwo\n");
}

std::string big_endian(uint32_t value) {
    return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8), static_cast<char>(value)};
}

struct CtlData : Ctl {
    /// Synthetic IDX files: class k is a bright band at rows 2k and 2k + 1.
    void idx(const std::string& prefix, uint32_t count) const {
        std::string images = big_endian(0x803) + big_endian(count) + big_endian(28) + big_endian(28),
                    labels = big_endian(0x801) + big_endian(count);
        for (uint32_t i = 0; i < count; ++i) {
            uint32_t k = i % 10;
            labels += static_cast<char>(k);
            for (uint32_t at = 0; at < 28 * 28; ++at)
                images += static_cast<char>(at / 56 == k ? 200 + (i * 31 + at * 7) % 50 : (i * 13 + at * 5) % 40);
        }
        write(prefix + "-images-idx3-ubyte", images);
        write(prefix + "-labels-idx1-ubyte", labels);
    }
    void import() const {
        idx("train", 320);
        idx("t10k", 80);
        Outcome outcome = run("import idx --from . --out .");
        ASSERT_EQ(outcome.exit, 0) << outcome.err;
        EXPECT_NE(outcome.out.find("320 samples to train on, 80 to test on"), std::string::npos) << outcome.out;
    }
    /// Nothing of a private cluster is left: neither its folder nor a process that was given it.
    void expect_nothing_left() const {
        for (const auto& entry : fs::directory_iterator(folder))
            EXPECT_FALSE(entry.path().filename().string().starts_with("gradcast-")) << entry.path();
        for (const auto& entry : fs::directory_iterator("/proc")) {
            std::string line;
            if (!std::isdigit(entry.path().filename().string()[0]) || !file_read(entry.path() / "cmdline", &line).ok()) continue;
            EXPECT_EQ(line.find(folder), std::string::npos) << entry.path();
        }
    }
};

TEST_F(CtlData, ImportWritesShardsOnceUnlessForced) {
    import();
    EXPECT_TRUE(fs::exists(folder + "/train.h5"));
    EXPECT_TRUE(fs::exists(folder + "/test.h5"));
    Outcome outcome = run("import idx --from . --out .");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says("train.h5")) << outcome.err;
    outcome = run("import idx --from . --out . --force -o json");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_EQ(outcome.json()["train"], 320);
    EXPECT_EQ(outcome.json()["paths"].size(), 2u);
    outcome = run("import cifar10 --from absent --out other");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says("absent/data_batch_1.bin")) << outcome.err;
    outcome = run("import idx --from absent --out other");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says("absent")) << outcome.err;
}

TEST_F(CtlData, InspectShowsContentsAndFindsDamage) {
    import();
    Outcome outcome = run("data inspect 't*.h5' --sheet sheet.png");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_NE(outcome.out.find("400 samples of 1 x 28 x 28"), std::string::npos) << outcome.out;
    std::string png;
    ASSERT_TRUE(file_read(folder + "/sheet.png", &png).ok());
    EXPECT_TRUE(png.starts_with("\x89PNG"));
    EXPECT_NE(run("data inspect t*.h5").out.find("400 samples of 1 x 28 x 28"), std::string::npos);   // as the shell spells it out
    outcome = run("data inspect train.h5 -o json");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_EQ(outcome.json()["samples"], 320);
    EXPECT_EQ(outcome.json()["shards"].size(), 1u);
    EXPECT_EQ(outcome.json()["class_names"].size(), 0u);
    for (const char* name : {"train/ant", "train/bee", "test/ant"}) {
        const std::string to = folder + "/images/" + name;
        ASSERT_TRUE(make_directories(to).ok() && file_write(to + "/sheet.png", png).ok());
    }
    EXPECT_EQ(run("import images --from images --out insects").exit, 0);
    EXPECT_EQ(run("data inspect insects/train.h5 -o json").json()["class_names"], nlohmann::json::parse(R"(["ant", "bee"])"));
    EXPECT_EQ(run("data inspect train.h5 --sheet absent/sheet.png").exit, 1);
    std::string bytes;
    ASSERT_TRUE(file_read(folder + "/train.h5", &bytes).ok());
    bytes[bytes.size() / 2] ^= 0x10;
    ASSERT_TRUE(file_write(folder + "/train.h5", bytes).ok());
    outcome = run("data inspect train.h5 --sheet other.png");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says("train.h5")) << outcome.err;
    EXPECT_FALSE(fs::exists(folder + "/other.png"));
    EXPECT_EQ(run("data").exit, 2);
    outcome = run("data inspect .");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says(".: a folder: name the shards in it")) << outcome.err;
}

TEST_F(CtlData, ManifestMakesOneDataSet) {
    import();
    fs::create_directory(folder + "/lists");
    Outcome outcome = run("data manifest lists/all.toml train.h5 test.h5 -o json");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_EQ(outcome.json()["samples"], 400);
    std::string digest = outcome.json()["digest"];
    outcome = run("data inspect lists/all.toml -o json");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_EQ(outcome.json()["digest"], digest);
    // What it has written can be read.
    fs::copy(folder + "/train.h5", folder + "/lists/a [1]\".h5");
    EXPECT_EQ(run("data manifest lists/odd.toml 'lists/a [1]\".h5' 'te*.h5'").exit, 0);
    outcome = run("data inspect lists/odd.toml -o json");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_EQ(outcome.json()["digest"], digest);
    fs::create_symlink("train.h5", folder + "/link.h5");
    for (const char* twice : {"train.h5 train.h5", "./lists/../train.h5 train.h5", "train.h5 '*n.h5'", "link.h5 train.h5"}) {
        outcome = run(std::string("data manifest lists/twice.toml ") + twice);
        EXPECT_EQ(outcome.exit, 1);
        EXPECT_TRUE(outcome.says("train.h5 is there twice")) << outcome.err;
    }
    EXPECT_FALSE(fs::exists(folder + "/lists/twice.toml"));
    EXPECT_EQ(run("data manifest lists/all.h5 train.h5").exit, 2);
    EXPECT_EQ(run("data manifest lists/other.toml 'absent*.h5'").exit, 1);
    EXPECT_FALSE(fs::exists(folder + "/lists/other.toml"));
}

TEST_F(CtlData, EvaluateNamesWhatIsNotAModel) {
    import();
    Outcome outcome = run("evaluate absent.h5 --data test.h5");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says("absent.h5")) << outcome.err;
    outcome = run("evaluate train.h5 --data test.h5");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says("train.h5")) << outcome.err;
    outcome = run("evaluate . --data test.h5");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says(".: a folder: name the model in it, as ./final.h5")) << outcome.err;
    ASSERT_EQ(::mkfifo((folder + "/pipe.h5").c_str(), 0600), 0);
    outcome = run("evaluate pipe.h5 --data test.h5");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says("pipe.h5: it is a pipe, not a file")) << outcome.err;
    outcome = run("evaluate train.h5 --data 'nothing*.h5'");
    EXPECT_EQ(outcome.exit, 1);
}

struct CtlModel : CtlData {
    /// final.h5 of an untrained lenet5 for what import() writes.
    void save(const std::string& name) const {
        Model model;
        ASSERT_TRUE(preset_find("lenet5", 1, 28, 28, 10, &model.net).ok());
        model.mean = {0.1f}, model.std = {0.3f};
        std::vector<Layer> layers;
        ASSERT_TRUE(layers_check(model.net, &layers).ok());
        const Layout layout = layers_layout(layers, 1);
        std::vector<float> parameters(layout.elements);
        weights_initial(model.net, layout, 1, parameters);
        model.digest = sha256_hex(std::as_bytes(std::span(parameters)));
        ASSERT_TRUE(model_write(folder + "/" + name, model, parameters, {}, {}).ok());
    }
};

TEST_F(CtlModel, EvaluateTellsClassesAndConfusion) {
    import();
    save("final.h5");
    const Json json = run("evaluate final.h5 --data test.h5 -o json").json();
    ASSERT_EQ(json["confusion"].size(), 10u);
    uint64_t right = 0, samples = 0;
    for (size_t i = 0; i < 10; ++i) {
        uint64_t of_class = 0;
        for (const Json& count : json["confusion"][i]) of_class += count.get<uint64_t>();
        EXPECT_EQ(of_class, 8u);
        EXPECT_EQ(json["count_of_class"][i], 8);
        EXPECT_EQ(json["right_of_class"][i], json["confusion"][i][i]);
        EXPECT_EQ(json["accuracy_of_class"][i], json["right_of_class"][i].get<double>() / 8);
        EXPECT_EQ(json["classes"][i], std::to_string(i));
        right += json["confusion"][i][i].get<uint64_t>(), samples += of_class;
    }
    EXPECT_EQ(json["right"], right);
    EXPECT_EQ(json["samples"], samples);
    EXPECT_EQ(json["accuracy"], static_cast<double>(right) / static_cast<double>(samples));

    const Outcome text = run("evaluate final.h5 --data test.h5");
    EXPECT_EQ(text.exit, 0) << text.err;
    EXPECT_TRUE(text.out.ends_with(
        fmt::format("\naccuracy {:.4f}\ndigest {}\n", json["accuracy"].get<double>(), json["digest"].get<std::string>())))
        << text.out;
    const size_t head = text.out.find("\nclass  samples  right  accuracy  as 0");
    ASSERT_NE(head, std::string::npos) << text.out;
    std::istringstream row(text.out.substr(text.out.find("\n3 ", head)));
    std::string label, count, hits, share;
    row >> label >> count >> hits >> share;
    EXPECT_EQ(label + count, "38");
    EXPECT_EQ(hits, std::to_string(json["right_of_class"][3].get<int>()));
    for (size_t k = 0, as; k < 10 && row >> as; ++k) EXPECT_EQ(as, json["confusion"][3][k].get<size_t>()) << text.out;

    std::string bytes = read("test.h5");
    bytes[bytes.size() / 4 * 3] ^= 0x10;   // a pixel
    write("test.h5", bytes);
    const Outcome damaged = run("evaluate final.h5 --data test.h5");
    EXPECT_EQ(damaged.exit, 1);
    EXPECT_TRUE(damaged.says("test.h5: data set images, chunk 0")) << damaged.err;
    EXPECT_EQ(damaged.out, "");
}

TEST_F(CtlModel, ExportWritesWhatTheEndingSays) {
    save("final.h5");
    Outcome outcome = run("export final.h5 out.safetensors");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_TRUE(outcome.out.starts_with("out.safetensors\n61706 parameters, digest ")) << outcome.out;
    EXPECT_NE(read("out.safetensors").find("\"conv1.weight\":{\"dtype\":\"F32\",\"shape\":[6,1,5,5],\"data_offsets\":[0,600]}"),
              std::string::npos);
    outcome = run("export final.h5 out.onnx -o json");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_EQ(outcome.json()["format"], "onnx");
    EXPECT_NE(read("out.onnx").find("MaxPool"), std::string::npos);
    EXPECT_EQ(run("export final.h5 other --format onnx").exit, 0);
    EXPECT_EQ(read("other"), read("out.onnx"));
    // Of a job.
    JobDetail* job = backend.add(id_a, "first");
    job->folder = folder;
    serve();
    EXPECT_EQ(ask("export first of_job.onnx").exit, 0);
    EXPECT_EQ(read("of_job.onnx"), read("out.onnx"));
    {
        std::lock_guard lock(backend.mutex);
        job->folder = folder + "/elsewhere";
    }
    outcome = ask("export first none.onnx");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says("job first has no model: it is running")) << outcome.err;
    backend.finish(job, JobState::done);
    outcome = ask("export first none.onnx");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says("node-1 keeps it")) << outcome.err;
}

TEST_F(CtlModel, ExportLeavesNothingHalfWritten) {
    save("final.h5");
    struct {
        const char* arguments;
        int exit;
        const char* says;
    } cases[] = {
        {"export final.h5 model.pt", 2, "model.pt ends with none of safetensors, onnx"},
        {"export final.h5 model", 2, "model ends with none of"},
        {"export final.h5 model --format keras", 2, "keras"},
        {"export final.h5", 2, "FILE"},
        {"export absent.h5 model.onnx", 1, "absent.h5"},
        {"export nobody model.onnx --socket none.sock", 3, "nobody is no file"},
        {"export final.h5 absent/model.onnx", 1, "absent/model.onnx"},
        {"export cut.h5 model.safetensors", 1, "cut.h5: not a gradcast model"},
    };
    write("cut.h5", read("final.h5").substr(0, 5000));
    for (const auto& each : cases) {
        Outcome outcome = run(each.arguments);
        EXPECT_EQ(outcome.exit, each.exit) << each.arguments << outcome.err;
        EXPECT_TRUE(outcome.says(each.says)) << each.arguments << "\n" << outcome.err;
    }
    for (const auto& entry : fs::directory_iterator(folder)) EXPECT_FALSE(entry.path().filename().string().starts_with("model"));
}

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
};

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
    write("job.toml", job + "[profile]\nstep = 3\n");
    EXPECT_EQ(run("run job.toml --local 2 --keep traced").exit, 0);
    EXPECT_NE(read("traced/profile.json").find("node-2"), std::string::npos);
}

TEST_F(SystemLocal, AJobThatFailsIsToldOnceAndLeavesLittle) {
    import();
    std::string job = good_job;
    write("job.toml", job.replace(job.find("lenet5"), 6, "resnet9\"\npad = \"x"));
    EXPECT_EQ(run("run job.toml --local 2 --keep kept").exit, 2);
    job = good_job;
    write("job.toml", job.replace(job.find("lenet5"), 6, "ridge"));   // which all nodes find out
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
    const size_t told = outcome.err.find("diverged");
    EXPECT_NE(told, std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.err.find("diverged", told + 1), std::string::npos) << outcome.err;
    EXPECT_TRUE(fs::exists(folder + "/kept/log"));
    EXPECT_FALSE(fs::exists(folder + "/trace.json"));
    expect_nothing_left();

    write("state", "not a folder");   // where results would go: told before the training
    write("job.toml", good_job);
    outcome = run("run job.toml --local 1");
    EXPECT_EQ(outcome.exit, 2);
    EXPECT_TRUE(outcome.says("--keep: ")) << outcome.err;
    EXPECT_EQ(run("run job.toml --local 1 --keep new --profile /nowhere/trace.json").exit, 2);
    EXPECT_FALSE(fs::exists(folder + "/new"));
}

TEST_F(SystemLocal, TwoDaemonsTrainAndNothingIsLeft) {
    import();
    write("job.toml", good_job);
    Outcome outcome = run("run job.toml --local 2 --keep kept");
    ASSERT_EQ(outcome.exit, 0) << outcome.err;
    size_t at = outcome.out.find("\ndigest ");
    ASSERT_NE(at, std::string::npos) << outcome.out;
    std::string digest = outcome.out.substr(at + 8, 64);
    EXPECT_NE(outcome.out.find("node-1"), std::string::npos);
    EXPECT_NE(outcome.out.find("node-2"), std::string::npos);
    EXPECT_EQ(outcome.out.find("not known"), std::string::npos);
    expect_nothing_left();
    for (const char* name : {"final.h5", "steps.jsonl", "log", "job.toml"}) EXPECT_TRUE(fs::exists(folder + "/kept/" + name)) << name;
    EXPECT_NE(outcome.out.find("model kept/final.h5\nkept in kept\n"), std::string::npos) << outcome.out;
    EXPECT_TRUE(run("run job.toml --local 2 --keep kept").says("there is a model already"));

    Outcome evaluated = run("evaluate kept/final.h5 --data test.h5 -o json");
    EXPECT_EQ(evaluated.exit, 0) << evaluated.err;
    EXPECT_EQ(evaluated.json()["digest"], digest);
    EXPECT_EQ(evaluated.json()["samples"], 80);

    // As on CPUs that have nothing beyond SSE.
    outcome = run("run job.toml --local 2 --isa portable --keep portable");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_NE(read("portable/steps.jsonl").find("\"kernels\":\"portable\""), std::string::npos) << read("portable/steps.jsonl");
    EXPECT_TRUE(run("run job.toml --local 2 --isa z80").says("--isa = \"z80\": one of auto, portable, avx2"));

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
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says("tensor fc2.bias: the net has none of this name: did you mean fc1.bias?")) << outcome.err;
    EXPECT_FALSE(fs::exists(folder + "/none/final.h5"));
}

TEST_F(SystemLocal, CtrlCLeavesNothing) {
    import();
    std::string job = good_job;
    job.replace(job.find("steps = 6"), 9, "steps = 1000000");
    write("job.toml", job);
    pid_t pid = start("run job.toml --local 2");
    for (uint64_t end = clock_us() + 60'000'000; read("err").find("step ") == std::string::npos && clock_us() < end;)
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_NE(read("err").find("step "), std::string::npos) << read("err");
    ::kill(pid, SIGINT);
    Outcome outcome = wait(pid, 30);
    EXPECT_EQ(outcome.exit, 128 + SIGINT) << outcome.err;
    EXPECT_TRUE(outcome.says("of 1000000: the training is lost")) << outcome.err;
    expect_nothing_left();
}

TEST_F(SystemLocal, ADaemonThatDiesIsToldAtOnce) {
    import();
    std::string job = good_job;
    job.replace(job.find("steps = 6"), 9, "steps = 1000000");
    write("job.toml", job);
    pid_t pid = start("run job.toml --local 2");
    for (uint64_t end = clock_us() + 60'000'000; read("err").find("step ") == std::string::npos && clock_us() < end;)
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const pid_t victim = daemon_of("node-2");
    ASSERT_GT(victim, 0);
    ::kill(victim, SIGKILL);
    Outcome outcome = wait(pid, 30);
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says("node-2")) << outcome.err;
    EXPECT_NE(outcome.out.find("no model: the job ended before its last step was done\n"), std::string::npos) << outcome.out;
    expect_nothing_left();
}

TEST_F(SystemLocal, AJobThatCanDoWithoutItsCoordinatorIsFollowedToItsEnd) {
    import();
    std::string job = good_job;
    job.replace(job.find("steps = 6"), 9, "steps = 400");
    job.replace(job.find("\"ring\""), 6, "\"coded-rs\"\nm = 1\ns = 1");
    write("job.toml", job);
    const pid_t pid = start("run job.toml --local 3 --keep kept");
    for (uint64_t end = clock_us() + 60'000'000; read("err").find("step ") == std::string::npos && clock_us() < end;)
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const pid_t victim = daemon_of("node-1");
    ASSERT_GT(victim, 0) << read("err");
    ::kill(victim, SIGKILL);
    Outcome outcome = wait(pid, 120);
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_TRUE(outcome.says("node-1 (gradcastd, process ")) << outcome.err;
    EXPECT_TRUE(outcome.says("is followed at node-2 from here on")) << outcome.err;
    EXPECT_NE(outcome.out.find("\ndigest "), std::string::npos) << outcome.out;
    EXPECT_NE(outcome.out.find("not known here: node-1"), std::string::npos) << outcome.out;
    expect_nothing_left();
}

TEST_F(SystemLocal, ADaemonThatDiesAfterTheLastStepLosesNoModel) {
    import();
    idx("t10k", 40'000);   // the last evaluation takes long enough to be seen
    ASSERT_EQ(run("import idx --from . --out more").exit, 0);
    std::string job = good_job;
    write("job.toml", job.replace(job.find("test.h5"), 7, "more/test.h5"));
    for (const auto& [name, other] : {std::pair{"node-1", "node-2"}, {"node-2", "node-1"}}) {
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
        const pid_t victim = daemon_of(name);
        ASSERT_GT(victim, 0);
        ::kill(victim, SIGKILL);
        const Outcome outcome = wait(pid, 60);
        EXPECT_EQ(outcome.exit, 1);
        EXPECT_TRUE(outcome.says(name)) << outcome.err;
        EXPECT_NE(outcome.out.find("model kept/final.h5\n"), std::string::npos) << outcome.out << outcome.err;
        Model model;
        std::vector<float> parameters;
        const Status status = model_read(folder + "/kept/final.h5", &model, &parameters);
        EXPECT_TRUE(status.ok()) << status.what;
        EXPECT_EQ(model.step, 6u);
        expect_nothing_left();
    }
}

TEST_F(SystemLocal, AMissingDataSetEndsTheRun) {
    write("job.toml", good_job);
    Outcome outcome = run("run job.toml --local 2");
    EXPECT_NE(outcome.exit, 0);
    EXPECT_TRUE(outcome.says("train.h5")) << outcome.err;
    expect_nothing_left();
}

}   // namespace
}   // namespace gradcast
