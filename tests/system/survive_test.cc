// Jobs with `survive` on real daemons: what dies is missed by nobody, and the digest is that of a run in which nobody died.
#include "tests/daemon/jobs.h"

namespace gradcast {
namespace {

constexpr uint32_t steps = 1200;

struct SystemSurvive : testing::Test {
    Cluster cluster{3};
    std::string text, quiet;   // of the job; digest of the run in which nobody dies

    void SetUp() override {
        text = job_text(make_data(cluster.folder + "/data.h5"), steps, "survivor", "8s");
        text.insert(text.find("seed"), "survive = true\n");
        ASSERT_TRUE(file_write(cluster.folder + "/job.toml", text).ok());
        ASSERT_NO_FATAL_FAILURE(cluster.up());
        const JobStatus alone = cluster[0].ended(cluster[0].submit(text, {"a"}).value("id", ""));
        ASSERT_EQ(alone.state, JobState::done) << alone.error;
        quiet = alone.digest;
    }
    /// Once the job is on its way.
    std::string begun(Node& at) {
        const std::string id = at.submit(text).value("id", "");
        EXPECT_TRUE(eventually([&] { return at.step(id) >= 50; })) << at.job(id).dump() << logs(cluster);
        return id;
    }
    void kill(Node& node) {
        node.process->kill(SIGKILL);
        node.process->wait();
    }
    void up_again(Node& node) {
        cluster.start(node);
        ASSERT_TRUE(node.process->ready()) << node.process->output();
        for (Node& each : cluster.nodes) ASSERT_TRUE(eventually([&] { return each.sees() == "a b c"; })) << each.sees();
    }
    void ctl(Process& process, std::vector<std::string> arguments, const std::string& out) {
        process.start({.arguments = std::move(arguments), .log = cluster.folder + "/" + out, .notify = "", .name = "gradcastctl"});
    }
    std::string said(std::vector<std::string> arguments) {
        Process process;
        ctl(process, std::move(arguments), "said");
        EXPECT_EQ(process.wait(), 0) << process.output();
        return process.output();
    }
};

TEST_F(SystemSurvive, AnyNodeIsKilledAndTheClientFollowsTheJob) {
    for (const size_t dead : {1, 0}) {   // a coordinates
        SCOPED_TRACE(cluster[dead].name + " dies");
        Process client;
        ctl(client,
            {"--socket", cluster[0].socket, "--socket", cluster[1].socket, "--socket", cluster[2].socket, "submit",
             cluster.folder + "/job.toml", "--wait"},
            "client");
        std::string id;
        ASSERT_TRUE(eventually([&] {
            const std::string output = client.output();
            if (const size_t at = output.find("job "); at != std::string::npos) id = output.substr(at + 4, 32);
            return !id.empty() && cluster[2].step(id) >= 50;
        })) << client.output()
            << logs(cluster);
        kill(cluster[dead]);
        EXPECT_LT(cluster[2].step(id), steps) << "it was too late to kill anybody";
        for (const size_t i : {size_t{2}, 1 - dead}) {
            const JobStatus status = cluster[i].ended(id, 2 * patience_us);
            EXPECT_EQ(status.state, JobState::done) << status.error << logs(cluster);
            EXPECT_EQ(status.digest, quiet);
            ASSERT_EQ(status.views.size(), 2u);
            EXPECT_EQ(status.views[0].members, (std::vector<std::string>{"a", "b", "c"}));
            EXPECT_EQ(status.views[1].left, std::vector<std::string>{cluster[dead].name});
            EXPECT_EQ(status.views[1].members.size(), 2u);
            EXPECT_EQ(status.views[1].why, cluster[dead].name + " silent");
            EXPECT_GT(status.views[1].stood_us, 0u);
            EXPECT_LT(status.views[1].stood_us, 8'000'000u);
        }
        const std::string described = said({"--socket", cluster[2].socket, "describe", id});
        EXPECT_TRUE(has(described, "view            2 from step ")) << described;
        EXPECT_TRUE(has(described, "; without " + cluster[dead].name + "; why: ")) << described;
        EXPECT_EQ(client.wait(), 0) << client.output();
        EXPECT_TRUE(has(client.output(), "\ndigest " + quiet + "\n")) << client.output();
        EXPECT_EQ(has(client.output(), " is now followed at b\n"), dead == 0) << client.output();
        ASSERT_NO_FATAL_FAILURE(up_again(cluster[dead]));
    }
}

}   // namespace
}   // namespace gradcast
