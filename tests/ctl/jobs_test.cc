// Commands that ask a daemon (here a FakeBackend): submit, list, describe, watch, logs, cancel, nodes.
#include <fstream>

#include "tests/ctl/ctl.h"

namespace gradcast {
namespace {

TEST_F(Ctl, JobsAndNodesAreShownInTextAndJson) {
    JobStatus& status = backend.add(id_a, "first")->summary.status;
    status.warnings = {"2 ranks are too few", "and slow"};
    status.metrics = {
        {Metric::dropped, "forged", 3, {}}, {Metric::dropped, "replayed", 0, {}}, {Metric::memory, "job: read ahead", 1 << 21, {}}};
    status.timeouts_us = {{"peer lost", 2'000'000}};
    status.stragglers = {{"node-2", "compute", 9'800, 4'500, "look there"}};
    status.settings = {{"workers", "8"}, {"local_steps", "4"}};
    status.samples = 48;
    status.gradients = 96;
    status.forwards = 5;
    for (uint32_t worker = 0; worker < 40; ++worker)
        status.workers.push_back(
            {.worker = worker, .rounds = 2, .last_round = 2, .samples = 48, .gradients = 96, .compute_us = 1'500'000, .bytes_sent = 2048});
    status.staleness = {{0, 0, 30}, {16, 31, 2}};
    status.view = 3;
    status.change_us = 12'000;
    status.views = {{.first_step = 1, .began_unix = 1'700'000'000, .members = {"a", "b", "c"}},
                    {.number = 2,
                     .first_step = 8,
                     .began_unix = 1'700'000'100,
                     .members = {"a", "d"},
                     .joined = {"d"},
                     .departed = {"b", "c"},
                     .why = "b silent, c drained, d joins",
                     .stood_us = 1'500'000}};
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
    backend.all[0].summary.nodes = {"node-1", "node-2", "node-3"};
    serve();
    Outcome outcome = ask("list");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    for (const char* word : {"aaaa0000", "first", "running", "1/10"}) EXPECT_NE(outcome.out.find(word), std::string::npos) << outcome.out;
    EXPECT_EQ(ask("list -o json").json()["jobs"][0]["id"], id_a);
    const std::string whose = "jobs of node node-1; jobs without it are shown by gradcastctl list on node-2";
    EXPECT_EQ(outcome.err, whose + "\n");
    EXPECT_EQ(ask("list -o json").json()["whose"], whose);
    EXPECT_NE(ask("top").out.find(whose), std::string::npos);
    for (const char* command : {"list", "top"}) EXPECT_NE(ask(command).out.find("  2 of 3  "), std::string::npos) << ask(command).out;

    outcome = ask("describe first");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    for (const char* word :
         {id_a.c_str(),
          "ring",
          "1 of 10, epoch 1 of 1\n",
          "dropped         forged 3\n",
          "straggler       node-2: compute takes 9.8 ms of a step, 4.5 ms at the others: look there\n",
          "peer lost 2.00 s",
          "128 in 8 blocks",
          "settings        workers 8, local_steps 4\n",
          "computed        48 samples trained on, 96 gradients and 5 forward passes, at this node\n",
          "staleness       0: 30, 16-31: 2 pushes\n",
          "worker  node    rounds  samples  gradients  forward only  computing      sent  received\n",
          "31      node-1       2       48         96             0     1.50 s  2.00 KiB       0 B\nand 8 workers more: -o json has 256 of "
          "a node, at most\n",
          "node-1, node-2",
          "3.00 MiB",
          "warning         2 ranks are too few\n",
          "warning         and slow\n",
          "node-1, node-2, node-3; this one is node-1\n",
          ": a, b, c\n",
          "view            2 from step 8, 2023-11-1",
          ": a, d; with d; without b, c; why: b silent, c drained, d joins; the job stood for 1.50 s\n",
          "longest change  0.01 s\n",
          "memory          job: parameters 1.0 MiB, read ahead 2.0 MiB, 3.0 MiB in all; view: sums 1.0 MiB, 1.0 MiB in all\n"})
        EXPECT_NE(outcome.out.find(word), std::string::npos) << outcome.out;
    const Json json = ask("describe aaaa -o json").json();
    EXPECT_EQ(json["status"]["step"], 1);
    EXPECT_EQ(json["status"]["metrics"]["dropped"]["forged"], 3);
    EXPECT_EQ(json["status"]["metrics"]["memory"]["job_read_ahead"], 1 << 21);
    EXPECT_EQ(json["status"]["timeouts_us"]["peer_lost"], 2'000'000);
    EXPECT_EQ(json["status"]["memory_bytes"]["job"]["read_ahead"], 1 << 21);
    EXPECT_EQ(json["status"]["view"], 3);
    EXPECT_EQ(json["status"]["workers"].size(), 40u);
    EXPECT_EQ(json["status"]["workers"][39]["gradients"], 96);
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

TEST_F(Ctl, StagesAreATableOfNodesAndALineOfTop) {
    JobStatus& status = backend.add(id_a, "first")->summary.status;
    StageNews first{
        .steps = 3, .micro_batches = 2, .step_us = 10'000, .us = {2000, 6000, 0, 0, 1250, 0, 20, 300}, .shown = 2, .passes = {{0, 9}}};
    StageNews second = first;
    second.us = {1000, 2000, 0, 7000, 0, 0, 0, 0};
    status.pipeline = PipelineStatus{.schedule = "1f1b",
                                     .own_stage = 2,
                                     .layers = {"conv1 .. pool2", "fc1 .. loss"},
                                     .nodes = {{"node-1", 1, 1, first}, {"node-2", 2, 1, second}, {"node-3", 1, 0, {}}}};
    pipeline_status_derive(&*status.pipeline);
    backend.add("bbbb" + std::string(28, '0'), "whole");
    serve();
    const Outcome outcome = ask("describe first");
    for (const char* word : {"pipeline        2 stages, 1f1b, 2 micro-batches of 1 block; idle by formula 0.33; 10.0 ms a step\n",
                             "gradients of stage 2 1.25 ms, reports of the other stages 0.30 ms\n", "values of stage 1 7.00 ms\n",
                             "conv1 .. pool2  node-3    spare     -  "})
        EXPECT_NE(outcome.out.find(word), std::string::npos) << outcome.out;
    EXPECT_EQ(ask("describe whole").out.find("pipeline"), std::string::npos);
    const std::string top = ask("top").out;
    EXPECT_NE(top.find("first  running  2/2    1/10"), std::string::npos) << top;
    EXPECT_NE(top.find("whole  running  -      1/10"), std::string::npos) << top;
    EXPECT_NE(top.find("          stages wait for 1: gradients of stage 2 (20% idle), 2: values of stage 1 (70% idle)\n"),
              std::string::npos)
        << top;
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
    detail->started = false;
    detail->summary.status.state = JobState::preparing;
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

TEST_F(Ctl, TheTimeLeftIsByThePaceOfThisRun) {
    JobDetail* detail = backend.add(id_a, "first");
    JobStatus& status = detail->summary.status;
    status.resumed = 50;
    status.step = 60;
    status.steps = 100;
    status.seconds = 10;
    serve();
    const pid_t pid = start("--socket " + socket + " watch first");
    EXPECT_TRUE(shown("10.0 s, 40.0 s left")) << read("err");
    backend.finish(detail, JobState::done);
    EXPECT_EQ(wait(pid).exit, 0);
}

TEST_F(Ctl, TheLastLineHasTheLastEvaluation) {
    JobDetail* detail = backend.add(id_a, "first");
    JobStatus& status = detail->summary.status;
    status.step = status.steps;
    status.loss = 0.25;
    serve();
    const pid_t pid = start("--socket " + socket + " watch first");
    EXPECT_TRUE(shown("loss 0.2500")) << read("err");
    backend.finish(detail, JobState::done);
    const Outcome outcome = wait(pid);
    const size_t last = outcome.err.rfind("step 10/10");
    ASSERT_NE(last, std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("loss 0.2500  accuracy 0.8912", last), std::string::npos) << outcome.err;
}

TEST_F(Ctl, ARunWithoutAStepHasNoLoss) {
    JobDetail* detail = backend.add(id_a, "first");
    detail->summary.status.resumed = detail->summary.status.step = detail->summary.status.steps;
    serve();
    const pid_t pid = start("--socket " + socket + " watch first");
    EXPECT_TRUE(shown("loss -  ")) << read("err");
    const Outcome describe = ask("describe first");
    EXPECT_EQ(describe.out.find("\nloss"), std::string::npos) << describe.out;
    backend.finish(detail, JobState::done);
    const Outcome outcome = wait(pid);
    EXPECT_EQ(outcome.err.find("loss 0.0000"), std::string::npos) << outcome.err;
}

TEST_F(Ctl, WarningsAreToldOnceWhenTheyCome) {
    JobDetail* detail = backend.add(id_a, "first");
    detail->summary.status.warnings = {"more nodes gain nothing"};
    serve();
    const pid_t pid = start("--socket " + socket + " watch first");
    EXPECT_TRUE(shown("warning: more nodes gain nothing\n")) << read("err");
    {
        std::lock_guard lock(backend.mutex);
        detail->summary.status.warnings.emplace(detail->summary.status.warnings.begin(), "another one");
    }
    EXPECT_TRUE(shown("warning: another one\n")) << read("err");
    backend.finish(detail, JobState::done);
    const Outcome outcome = wait(pid);
    EXPECT_EQ(outcome.exit, 0);
    for (const char* warning : {"more nodes gain nothing", "another one"})
        EXPECT_EQ(outcome.err.find(warning), outcome.err.rfind(warning)) << outcome.err;
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
    EXPECT_TRUE(shown("step 1/10", 10)) << read("err");
    server.reset();
    Outcome outcome = wait(pid);
    EXPECT_EQ(outcome.exit, 3);
    EXPECT_TRUE(
        outcome.says("went away while job aaaa0000 ran; the job goes on at node-2 where it can do without a node: "
                     "gradcastctl watch aaaa0000 there follows it"))
        << outcome.err;
}

/// The daemon of node-2, which has the job first, too.
struct Elsewhere {
    explicit Elsewhere(const std::string& socket) : job(backend.add(id_a, "first")) {
        job->self = NodeId{1};
        EXPECT_TRUE(control_open({.socket = socket}, backend, Log(), &server).ok());
    }
    FakeBackend backend;
    JobDetail* job;
    std::unique_ptr<ControlServer> server;
};

TEST_F(Ctl, AJobIsFollowedAtAnotherDaemonWhereOneDies) {
    backend.add(id_a, "first");
    serve();
    Elsewhere other(folder + "/second.sock");
    const std::string sockets = "--socket " + socket + " --socket " + folder + "/none.sock --socket " + folder + "/second.sock ";
    pid_t pid = start(sockets + "watch first");
    EXPECT_TRUE(shown("step 1/10", 10)) << read("err");
    server.reset();
    EXPECT_TRUE(shown("is now followed at node-2", 10)) << read("err");
    other.backend.finish(other.job, JobState::done);
    const Outcome outcome = wait(pid);
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_NE(outcome.out.find("digest aaaa"), std::string::npos) << outcome.out;
    EXPECT_NE(outcome.out.find("not known here: node-1"), std::string::npos) << outcome.out;
}

TEST_F(Ctl, WaitGoesOnAtAnotherDaemonWhereTheNodeIsNoLongerInTheJob) {
    JobDetail* here = backend.add(id_a, "first");
    serve();
    Elsewhere other(folder + "/second.sock");
    pid_t pid = start("--socket " + socket + " --socket " + folder + "/second.sock wait first");
    {
        std::lock_guard lock(backend.mutex);
        here->summary.status.goes_on = true;
    }
    backend.finish(here, JobState::failed, "the other nodes go on without node-1");
    EXPECT_TRUE(shown("is now followed at node-2", 10)) << read("err");
    other.backend.finish(other.job, JobState::done);
    const Outcome outcome = wait(pid);
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_EQ(outcome.out, "aaaa0000  first  done\n");
}

TEST_F(Ctl, ANodeIsDrained) {
    backend.members.resize(2);
    for (NodeInfo& node : backend.members) node.alive = true;
    backend.members[0].name = "node-1";
    backend.members[0].self = true;
    backend.members[0].hinders = "job aaaa0000 (first): it is a benchmark";
    backend.members[1].name = "node-2";
    serve();
    Outcome outcome = ask("drain node-1");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_EQ(outcome.err,
              "gradcastctl: node node-1 takes no new jobs, but is needed by job aaaa0000 (first): it is a benchmark; drain node-1 --cancel "
              "cancels them, they keep a checkpoint\n");
    EXPECT_NE(ask("nodes").out.find("this one, drained"), std::string::npos);
    EXPECT_NE(ask("nodes").out.find("needed by job aaaa0000 (first)"), std::string::npos);
    EXPECT_EQ(ask("drain node-1 --cancel").exit, 0);
    outcome = ask("drain node-2 -o json");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_EQ(outcome.json()["draining"], true);
    EXPECT_EQ(ask("undrain node-2").out, "node node-2 takes jobs again\n");
    EXPECT_EQ(ask("drain nobody").err, "gradcastctl: there is no node nobody\n");
    EXPECT_EQ(ask("drain").exit, 2);
    backend.add(id_a, "first");
    EXPECT_EQ(ask("job add-node first node-3").out, "node node-3 is in job " + id_a + " from step 5\n");
    outcome = ask("job add-node first node-4");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_EQ(outcome.err, "gradcastctl: node node-4 does not join: it has other data\n");
    EXPECT_EQ(ask("force-view first --dead node-1").out, "job " + id_a + ": node-1 is declared dead\n");
    EXPECT_EQ(ask("force-view first --dead node-2").exit, 1);
}

TEST_F(Ctl, CtrlCSaysThatTheJobGoesOn) {
    JobDetail* detail = backend.add(id_a, "first");
    serve();
    write("job.toml", good_job);
    detail->folder = folder;
    write("log", "step 1/10\n");
    for (const char* arguments : {"watch first", "submit job.toml", "submit job.toml --wait", "logs first -f"}) {
        {
            std::lock_guard lock(backend.mutex);
            detail->started = std::string(arguments) != "submit job.toml";
        }
        const pid_t pid = start("--socket " + socket + " " + arguments);
        auto waits = [&] {
            return detail->started ? (read("err") + read("out")).find("step 1/10") != std::string::npos : backend.submissions().size() == 1;
        };
        for (uint64_t end = clock_us() + 10'000'000; !waits() && clock_us() < end;)
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        ::kill(pid, SIGINT);
        Outcome outcome = wait(pid);
        EXPECT_EQ(outcome.exit, 1) << arguments << outcome.err;
        EXPECT_TRUE(outcome.says("job aaaa0000 goes on: gradcastctl watch aaaa0000 follows it, gradcastctl cancel aaaa0000 ends it"))
            << outcome.err;
        fs::remove(folder + "/err");
        fs::remove(folder + "/out");
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

}   // namespace
}   // namespace gradcast
