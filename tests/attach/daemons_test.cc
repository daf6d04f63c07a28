// Programs at several real daemons: what differs between nodes, a cancelled evaluation, and copies of sources that are started again.
#include "runtime/attach/group.h"
#include "tests/attach/child.h"
#include "tests/daemon/jobs.h"

namespace gradcast {
namespace {

struct Programs {
    explicit Programs(uint32_t n) : cluster(n), data(make_data(cluster.folder + "/data.h5")) {
        std::filesystem::create_directories(folder);
        for (Node& node : cluster.nodes) cluster.configure(node, "commands = true\ncpus = [0]\n");
    }
    Submission job(const std::string& mode, uint32_t steps = 6, const std::vector<std::string>& sources = {}) const {
        std::string text = job_text(data, steps, "j", "60s");
        text.replace(text.find("preset = \"mlp\"\n"), 15, child_toml(mode, sources));
        text.insert(text.find("[data]"), "evaluate = 3\ncheckpoint_every = 2\n");
        return {text, "job.toml", folder, {}, 0};
    }
    std::string place(const std::string& name) const { return folder + "/" + name; }
    std::string job_folder(uint32_t node, const std::string& id) { return cluster[node].folder + "/state/jobs/" + id; }
    std::string log(uint32_t node, const std::string& id) {
        std::string text;
        EXPECT_TRUE(file_read(job_folder(node, id) + "/log", &text).ok());
        return text;
    }
    Cluster cluster;
    const std::string folder = cluster.folder + "/job", data;
};

TEST(SystemAttach, WhatDiffersBetweenNodesIsNamed) {
    Programs all(2);
    Cluster& cluster = all.cluster;
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    const auto refused = [&](const std::string& what) {
        return cluster[0].submit(all.job(fmt::format("one node has other {} {}", what, all.place(what)))).value("error", "");
    };
    std::string error = refused("bits");
    EXPECT_TRUE(has(error, "node b computes other bits than node a")) << error;
    EXPECT_TRUE(has(error, "; other versions of libraries: libc ") && has(error, "any") && has(error, "another")) << error;
    error = refused("constants");
    EXPECT_TRUE(has(error, "node b runs another program than node a: constant flags is U8 [3] ")) << error;
    error = refused("sources");
    EXPECT_TRUE(has(error, "runs another program than node a: ") && has(error, " has source extra.py, which ")) << error;
    // Versions alone are no error.
    const std::string id = cluster[0].submit(all.job("one node has other libraries " + all.place("libraries"))).value("id", "");
    EXPECT_EQ(cluster[0].ended(id).state, JobState::done) << logs(cluster);
    EXPECT_TRUE(has(all.log(0, id), "node b has other versions of libraries than node a, and computes the same bits: libc "))
        << all.log(0, id);
}

// It does not wait for the deadline of a batch, which is a minute.
TEST(SystemAttach, ACancelEndsAnEvaluation) {
    Programs all(2);
    Cluster& cluster = all.cluster;
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    for (const bool training : {false, true}) {
        const std::string evaluates = all.place(training ? "trains" : "evaluates");
        const std::string id = cluster[0].submit(all.job((training ? "stops training " : "stops evaluating ") + evaluates)).value("id", "");
        ASSERT_TRUE(eventually([&] { return std::filesystem::exists(evaluates); })) << logs(cluster);
        const uint64_t begin_us = clock_us();
        cluster[1].post("/v1/jobs/" + id + "/cancel", Json::object());
        for (uint32_t node : {0, 1}) {
            const JobStatus status = cluster[node].ended(id);
            EXPECT_EQ(status.state, JobState::cancelled) << status.error;
            EXPECT_TRUE(has(status.error, "cancelled")) << status.error;
        }
        EXPECT_LT(clock_us() - begin_us, 25'000'000u);
    }
}

// What a program has started is ended with it, whatever it ignores, and although its parent has ended.
TEST(SystemAttach, ACancelledJobLeavesNoProcess) {
    Programs all(1);
    Cluster& cluster = all.cluster;
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    const std::string id = cluster[0].submit(all.job("leaves a child " + all.place("child"), 1'000'000)).value("id", "");
    ASSERT_TRUE(eventually([&] { return cluster[0].step(id) > 3; })) << logs(cluster);
    std::string number;
    ASSERT_TRUE(file_read(all.place("child"), &number).ok());
    const pid_t child = std::stoi(number);
    ASSERT_EQ(::kill(child, 0), 0);
    cluster[0].post("/v1/jobs/" + id + "/cancel", Json::object());
    EXPECT_EQ(cluster[0].ended(id).state, JobState::cancelled) << logs(cluster);
    EXPECT_TRUE(eventually([&] { return ::kill(child, 0) != 0 && errno == ESRCH; })) << logs(cluster);
    if (group_room().bounds_tasks()) {   // the tests of ControlGroup skip by name
        EXPECT_TRUE(has(all.log(0, id), "lane 0: pids.max 258")) << all.log(0, id);
    }
}

// `memory` of a node decides how many processes it has.  The bits are the same.
TEST(SystemAttach, LanesFollowTheMemory) {
    struct Outcome {
        JobStatus status;
        uint64_t planned = 0;
    };
    const auto run = [](const std::string& more) {
        Programs all(1);
        Cluster& cluster = all.cluster;
        cluster.configure(cluster[0], "commands = true\n" + more);
        Outcome outcome;
        cluster.up();
        const Json answer = cluster[0].submit(all.job("needs 64 MiB"));
        const std::string id = answer.value("id", "");
        if (!id.empty()) outcome.status = cluster[0].ended(id);
        else outcome.status.error = answer.value("error", "");
        for (const MemoryUse& each : outcome.status.memory) outcome.planned += each.total();
        return outcome;
    };
    const Outcome two = run("cpus = [0, 1]\n"), one = run("cpus = [0]\n");
    ASSERT_EQ(two.status.state, JobState::done) << two.status.error;
    ASSERT_EQ(one.status.state, JobState::done) << one.status.error;
    const auto about_lanes = [](const Outcome& outcome) {
        std::string text;
        for (const std::string& each : outcome.status.warnings)
            if (has(each, " lanes: ")) text += each;
        return text;
    };
    EXPECT_EQ(about_lanes(two), "");
    ASSERT_GT(two.planned, one.planned + (80 << 20));   // 64 MiB and a quarter more
    const auto memory = [](uint64_t bytes) { return fmt::format("cpus = [0, 1]\nmemory = \"{}MiB\"\n", bytes >> 20); };
    const Outcome little = run(memory((one.planned + two.planned) / 2));
    ASSERT_EQ(little.status.state, JobState::done) << little.status.error;
    EXPECT_TRUE(has(about_lanes(little), "this node has 1 of 2 lanes: with 2 the job would take ")) << about_lanes(little);
    EXPECT_TRUE(has(about_lanes(little), "`memory` in ")) << about_lanes(little);
    EXPECT_LT(little.planned, two.planned);
    EXPECT_EQ(little.status.digest, two.status.digest);
    EXPECT_EQ(one.status.digest, two.status.digest);

    const Outcome none = run(memory(one.planned - (24 << 20)));
    EXPECT_TRUE(has(none.status.error, "the job needs ") && has(none.status.error, " MiB here with one lane (programs "))
        << none.status.error;
    EXPECT_TRUE(has(none.status.error, " MiB are available (`memory` in ")) << none.status.error;
}

TEST(SystemAttach, ANodeWhoseProcessEndedMayComeBack) {
    Programs all(3);
    Cluster& cluster = all.cluster;
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    const auto survives = [](Submission job) {
        job.text.insert(job.text.find("[data]"), "survive = true\n");
        job.text.replace(job.text.find("deadline = \"60s\""), 16, "deadline = \"10s\"");
        return job;
    };
    const std::string id = cluster[0].submit(survives(all.job("one dies " + all.place("died"), 10'000'000))).value("id", "");
    const auto state = [&](uint32_t node) { return cluster[node].job(id).value("status", Json::object()).value("state", ""); };
    const auto without = [&] { return state(0) == "failed" ? 0u : state(1) == "failed" ? 1u : 2u; };
    ASSERT_TRUE(eventually([&] { return state(without()) == "failed"; })) << logs(cluster);
    const uint32_t lost = without(), other = lost == 0 ? 1 : 0;
    const std::string error = cluster[lost].ended(id).error;
    EXPECT_TRUE(has(error,
                    "was ended by signal 9 (SIGKILL); the job goes on without this node where it can, and `gradcastctl job "
                    "add-node` takes it in again"))
        << error;
    const auto members = [&] {
        const Json views = cluster[other].job(id).value("status", Json::object()).value("views", Json::array());
        return views.empty() ? size_t{0} : views.back().value("members", Json::array()).size();
    };
    ASSERT_TRUE(eventually([&] { return members() == 2; })) << logs(cluster);
    const Json answer = cluster[other].post("/v1/jobs/" + id + "/nodes", {{"node", cluster[lost].name}});
    EXPECT_EQ(answer.value("node", ""), cluster[lost].name) << answer.dump();
    ASSERT_TRUE(eventually([&] { return members() == 3; })) << logs(cluster);
    const uint64_t step = cluster[other].step(id);
    EXPECT_TRUE(eventually([&] { return cluster[lost].step(id) > step; })) << logs(cluster);
    EXPECT_EQ(state(lost), "running");
}

// A job goes on with the sources that it began with, or with a job file by those of now.
TEST(SystemAttach, AResumedJobStartsTheCopies) {
    Programs all(1);
    Cluster& cluster = all.cluster;
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    const std::string source = all.place("model.txt");
    ASSERT_TRUE(file_write(source, "0.5").ok());
    const Submission job = all.job("good", 1'000'000, {"model.txt"});
    const std::string id = cluster[0].submit(job).value("id", "");
    ASSERT_TRUE(eventually([&] { return cluster[0].step(id) > 10; })) << logs(cluster);
    const auto cancel = [&] {
        cluster[0].post("/v1/jobs/" + id + "/cancel", Json::object());
        EXPECT_EQ(cluster[0].ended(id).state, JobState::cancelled) << logs(cluster);
    };
    cancel();
    ASSERT_TRUE(file_write(source, "0.25").ok());
    const uint64_t before = step_digests(all.job_folder(0, id)).rbegin()->first;
    EXPECT_EQ(cluster[0].post("/v1/jobs/" + id + "/resume", {{"allow_command", true}}).value("id", ""), id);
    ASSERT_TRUE(eventually([&] { return cluster[0].step(id) > before + 10; })) << logs(cluster);
    EXPECT_TRUE(has(all.log(0, id), "model.txt has changed since the job began: the program is started from the copies in "))
        << all.log(0, id);
    cancel();
    // The bits of the source decide the kernel set, so that another one is found.
    Json asked = job;
    EXPECT_EQ(cluster[0].post("/v1/jobs/" + id + "/resume", asked).value("id", ""), id);
    std::string error = cluster[0].ended(id).error;
    EXPECT_TRUE(has(error, "trained with other kernels")) << error;
    // An altered copy is not started.
    ASSERT_TRUE(file_write(all.job_folder(0, id) + "/sources/model.txt", "0.25").ok());
    EXPECT_EQ(cluster[0].post("/v1/jobs/" + id + "/resume", {{"allow_command", true}}).value("id", ""), id);
    error = cluster[0].ended(id).error;
    EXPECT_TRUE(has(error, "/sources/model.txt: the copy was altered")) << error;
}

}   // namespace
}   // namespace gradcast
