// Programs at several real daemons: what differs between nodes, a cancelled evaluation, and copies of sources that are started again.
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
