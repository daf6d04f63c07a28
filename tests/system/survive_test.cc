// Jobs with `survive` on real daemons: what dies is missed by nobody, and the digest is that of a run in which nobody died.
#include <map>
#include <regex>

#include "tests/daemon/jobs.h"

namespace gradcast {
namespace {

struct SystemSurvive : testing::Test {
    explicit SystemSurvive(uint32_t of_job = 900) : steps(of_job) {}
    const uint32_t steps;
    Cluster cluster{3};
    std::string text;   // of the job

    void SetUp() override {
        text = job_text(make_data(cluster.folder + "/data.h5"), steps, "survivor", "8s");
        text.insert(text.find("seed"), "survive = true\n");
        ASSERT_TRUE(file_write(cluster.folder + "/job.toml", text).ok());
        for (Node& node : cluster.nodes) cluster.configure(node, "interface = \"127.0.0.1\"\n");
        ASSERT_NO_FATAL_FAILURE(cluster.up());
    }
    /// The digest of the run in which nobody dies.
    const std::string& quiet(Node& at) {
        static std::map<uint32_t, std::string> digests;   // by steps, the same for all tests
        std::string& digest = digests[steps];
        std::string job;
        EXPECT_TRUE(file_read(cluster.folder + "/job.toml", &job).ok());
        if (digest.empty()) digest = at.ended(alone(at, job)).digest;
        return digest;
    }
    /// The job of this text, when it has run on one node.
    static std::string alone(Node& at, const std::string& job) {
        const std::string id = at.submit(job, {at.name}).value("id", "");
        const JobStatus status = at.ended(id, 4 * patience_us);
        EXPECT_EQ(status.state, JobState::done) << status.error;
        return id;
    }
    /// Once the job, with `more` keys of [job], is on its way.
    std::string begun(Node& at, const std::vector<std::string>& nodes = {}, const std::string& more = "") {
        const Json answer = at.submit(std::string(text).insert(text.find("seed"), more), nodes);
        const std::string id = answer.value("id", "");
        EXPECT_NE(id, "") << answer.dump();
        if (id.empty()) return id;
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
    /// A net of small rounds, of about 20 ms, so that a node that asks is in within seconds; and no algorithm yet.
    void take_servers(uint32_t rounds) {
        text.erase(text.find("[algorithm]"));
        text.replace(text.find("steps = 900"), 11, "steps = " + std::to_string(rounds) + "\nevaluate = 150");
        text.replace(text.find("preset = \"mlp\""), 14,
                     "[[net.layers]]\nkind = \"inner_product\"\noutputs = 40\n[[net.layers]]\nkind = \"relu\"\n[[net.layers]]\n"
                     "kind = \"inner_product\"\noutputs = 10\n[[net.layers]]\nkind = \"softmax_cross_entropy\"");
    }
    void ctl(ChildProcess& process, std::vector<std::string> arguments, const std::string& out) {
        process.start({.arguments = std::move(arguments), .log = cluster.folder + "/" + out, .notify = "", .name = "gradcastctl"});
    }
    /// What gradcastctl says, which ends with `exit`.
    std::string said(std::vector<std::string> arguments, int exit = 0) {
        ChildProcess process;
        ctl(process, std::move(arguments), "said");
        EXPECT_EQ(process.wait(), exit) << process.output();
        return process.output();
    }
    std::string ask(const Node& at, std::vector<std::string> arguments, int exit = 0) {
        arguments.insert(arguments.begin(), {"--socket", at.socket});
        return said(std::move(arguments), exit);
    }
    void expect_end(Node& node, const std::string& id, const std::string& digest) {
        const JobStatus status = node.ended(id, 4 * patience_us);
        EXPECT_EQ(status.state, JobState::done) << node.name << ": " << status.error << logs(cluster);
        EXPECT_EQ(status.digest, digest) << node.name;
    }
    void expect_quiet_end(Node& node, const std::string& id) {
        (void)node.ended(id, 4 * patience_us);
        expect_end(node, id, quiet(node));
    }
    static std::vector<std::string> nodes_of(Node& at, const std::string& id) {
        return at.job(id).value("nodes", std::vector<std::string>());
    }
};

/// Of jobs that nobody joins while they run, for which fewer steps are enough.
struct SystemLeave : SystemSurvive {
    SystemLeave() : SystemSurvive(250) {}
};

/// Of jobs that run until a node has joined, however fast they are.
struct SystemJoin : SystemSurvive {
    SystemJoin() : SystemSurvive(1'000'000) {}
    /// Cancels the job after some steps more.  Each of its steps must have the digest of a run on one node, at each of these nodes.
    void expect_quiet_steps(const std::vector<size_t>& nodes, const std::string& id) {
        Node& first = cluster[nodes[0]];
        const uint64_t then = first.step(id);
        EXPECT_TRUE(eventually([&] { return first.step(id) > then + 20; })) << first.job(id).dump(2) << logs(cluster);
        EXPECT_TRUE(has(ask(first, {"cancel", id}), "cancel"));
        uint64_t last = 0;
        std::vector<std::map<uint64_t, std::string>> of_nodes;
        for (const size_t each : nodes) {
            EXPECT_EQ(cluster[each].ended(id).state, JobState::cancelled) << cluster[each].job(id).dump(2);
            of_nodes.push_back(step_digests(cluster[each].folder + "/state/jobs/" + id));
            ASSERT_GT(of_nodes.back().size(), 20u) << cluster[each].name;
            last = std::max(last, of_nodes.back().rbegin()->first);
        }
        const std::string quiet = alone(first, std::regex_replace(text, std::regex("steps = 1000000"), fmt::format("steps = {}", last)));
        const std::map<uint64_t, std::string> wanted = step_digests(first.folder + "/state/jobs/" + quiet);
        for (const auto& of_node : of_nodes)
            for (const auto& [step, digest] : of_node) ASSERT_EQ(digest, wanted.at(step)) << "step " << step;
    }
};

TEST_F(SystemLeave, AnyNodeIsKilledAndTheClientFollowsTheJob) {
    for (const size_t dead : {1, 0}) {   // a coordinates
        SCOPED_TRACE(cluster[dead].name + " dies");
        ChildProcess client;
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
            EXPECT_EQ(status.digest, quiet(cluster[2]));
            ASSERT_EQ(status.views.size(), 2u);
            EXPECT_EQ(status.views[0].members, (std::vector<std::string>{"a", "b", "c"}));
            EXPECT_EQ(status.views[1].departed, std::vector<std::string>{cluster[dead].name});
            EXPECT_EQ(status.views[1].members.size(), 2u);
            const std::string &why = status.views[1].why, &name = cluster[dead].name;
            EXPECT_TRUE(why == name + " silent" || why == name + " not heard by others") << why;
            EXPECT_GT(status.views[1].stood_us, 0u);
            EXPECT_LT(status.views[1].stood_us, 8'000'000u);
        }
        const std::string described = said({"--socket", cluster[2].socket, "describe", id});
        EXPECT_TRUE(has(described, "view            2 from step ")) << described;
        EXPECT_TRUE(has(described, "; without " + cluster[dead].name + "; why: ")) << described;
        EXPECT_EQ(client.wait(), 0) << client.output();
        EXPECT_TRUE(has(client.output(), "\ndigest " + quiet(cluster[2]) + "\n")) << client.output();
        EXPECT_EQ(has(client.output(), " is now followed at b\n"), dead == 0) << client.output();
        ASSERT_NO_FATAL_FAILURE(up_again(cluster[dead]));
    }
}

/// It asks to rejoin, and learns that the job is done.
TEST_F(SystemSurvive, ANodeThatWasStoppedUntilTheEndIsTold) {
    text.replace(text.find("steps = 900"), 11, "steps = 120");
    const std::string id = begun(cluster[0]);
    cluster[0].process->kill(SIGSTOP);
    const JobStatus status = cluster[2].ended(id, 4 * patience_us);
    for (const size_t i : {1, 2}) {   // also by a daemon that has it from its disk alone
        EXPECT_EQ(cluster[i].ended(id).state, JobState::done);
        cluster[i].process->kill(SIGTERM);
        EXPECT_EQ(cluster[i].process->wait(), 0);
        cluster.start(cluster[i]);
        EXPECT_TRUE(cluster[i].process->ready()) << cluster[i].process->output();
    }
    cluster[0].process->kill(SIGCONT);
    EXPECT_EQ(status.state, JobState::done) << status.error << logs(cluster);
    const auto own = [&] { return cluster[0].job(id)["status"].get<JobStatus>(); };
    EXPECT_TRUE(eventually([&] { return own().error == "the other nodes have done the job without a"; })) << own().error << logs(cluster);
    EXPECT_TRUE(has(said({"--socket", cluster[0].socket, "--socket", cluster[1].socket, "watch", id}), status.digest));
}

/// A server dies, comes back and takes workers, then a worker dies.  softsync that sums exactly has one digest; the others' order is kept.
TEST_F(SystemSurvive, ParameterServersAndTheirWorkersDie) {
    take_servers(450);
    const std::string servers = text;
    for (const std::string of : {"softsync\"\npull = \"wait\"", "asgd\""}) {
        SCOPED_TRACE(of);
        text = servers + "[algorithm]\nkind = \"" + of + "\nworkers = 4\nupdates = 40\nstream = \"whole\"\n";
        const bool exact = of != "asgd\"";
        std::string digest = exact ? cluster[0].ended(alone(cluster[0], text)).digest : "";
        const Json answer = cluster[1].submit(text);
        const std::string id = answer.value("id", "");
        ASSERT_TRUE(eventually([&] { return cluster[1].step(id) >= 5; })) << answer.dump() << logs(cluster);
        kill(cluster[0]);
        ASSERT_NO_FATAL_FAILURE(up_again(cluster[0]));
        ASSERT_TRUE(eventually([&] { return cluster[0].step(id) > 0; })) << cluster[0].job(id).dump(2) << logs(cluster);
        kill(cluster[2]);
        const JobStatus status = cluster[1].ended(id, 4 * patience_us);
        EXPECT_EQ(status.state, JobState::done) << status.error << logs(cluster);
        EXPECT_EQ(status.step, 450u);
        std::vector<std::string> departed, joined;
        for (const ViewRecord& view : status.views) {
            departed.insert(departed.end(), view.departed.begin(), view.departed.end());
            joined.insert(joined.end(), view.joined.begin(), view.joined.end());
        }
        EXPECT_EQ(departed, (std::vector<std::string>{"a", "c"}));
        EXPECT_EQ(joined, std::vector<std::string>{"a"});
        if (!exact) digest = status.digest;
        expect_end(cluster[1], id, digest);
        expect_end(cluster[0], id, digest);
        EXPECT_TRUE(has(ask(cluster[1], {"verify", id, "--steps", "1..20"}), "steps 1..20 verified: "));
        ASSERT_NO_FATAL_FAILURE(up_again(cluster[2]));
    }
}

/// The server goes on without the workers, and they not without it: what has ended at them is not resumed while it cannot be asked.
TEST_F(SystemSurvive, AServerThatVotesAloneNeedsNoWorker) {
    take_servers(100'000);
    text.replace(text.find("lr = 0.05\nmomentum = 0.9"), 24, "lr = 0.001");
    text += "[algorithm]\nkind = \"asgd\"\nworkers = 2\nupdates = 40\nservers_vote = true\n";
    const std::string id = begun(cluster[0]);
    cluster[0].process->kill(SIGSTOP);
    const JobStatus alone = cluster[1].ended(id);
    EXPECT_TRUE(has(alone.error, "b is in a minority: ")) << alone.error;
    EXPECT_TRUE(has(alone.error, "it has not heard enough servers to go on")) << alone.error;
    EXPECT_TRUE(has(ask(cluster[1], {"resume", id}, 1), "a cannot be asked, and may go on with it"));
    cluster[0].process->kill(SIGCONT);
    EXPECT_TRUE(eventually([&] { return cluster[0].job(id)["status"].get<JobStatus>().views.back().members.size() == 3; }))
        << cluster[0].job(id).dump(2) << logs(cluster);   // it went on, and they have joined again
    kill(cluster[1]), kill(cluster[2]);
    ASSERT_TRUE(eventually([&] { return cluster[0].job(id)["status"].get<JobStatus>().views.back().members.size() == 1; }))
        << cluster[0].job(id).dump(2) << logs(cluster);
    const uint32_t then = cluster[0].step(id);
    EXPECT_TRUE(eventually([&] { return cluster[0].step(id) > then + 2; })) << logs(cluster);
    EXPECT_TRUE(eventually([&] { return cluster[0].sees() == "a"; })) << cluster[0].sees();
    EXPECT_TRUE(has(ask(cluster[0], {"force-view", id, "--dead", "b"}, 1), "asgd follows the clock"));
    EXPECT_TRUE(has(ask(cluster[0], {"cancel", id}), "cancel"));
}

TEST_F(SystemLeave, ADrainedNodeLeavesItsJobsAndTakesNoNewOnes) {
    const std::string id = begun(cluster[0]);
    EXPECT_TRUE(has(ask(cluster[2], {"drain", "nobody"}, 2), "there is no node nobody: the nodes are a, b, c"));
    EXPECT_TRUE(has(ask(cluster[2], {"drain", "b"}), "node b is drained: it has no job, and takes none until `gradcastctl undrain b`"));
    const JobStatus departed = cluster[1].ended(id);
    EXPECT_EQ(departed.state, JobState::cancelled);
    EXPECT_TRUE(departed.goes_on);
    EXPECT_EQ(departed.error, "node b is drained; the job goes on without it");
    const JobStatus on = cluster[0].job(id)["status"].get<JobStatus>();
    ASSERT_EQ(on.views.size(), 2u);
    EXPECT_EQ(on.views[1].why, "b drained");
    EXPECT_LT(on.views[1].stood_us, 2'000'000u) << "nobody has waited for D/4";
    EXPECT_TRUE(has(ask(cluster[2], {"nodes"}), "alive, drained"));

    std::string small = text;
    small.replace(small.find("steps = 250"), 11, "steps = 5");
    std::string other = cluster[0].submit(small).value("id", "");
    EXPECT_EQ(nodes_of(cluster[0], other), (std::vector<std::string>{"a", "c"}));
    EXPECT_TRUE(has(cluster[0].submit(small, {"a", "b"}).value("error", ""), "node b is drained: leave it out"));
    EXPECT_TRUE(has(cluster[1].submit(small).value("error", ""), "node b is drained: submit at another node"));
    // Also after its restart.
    cluster[1].process->kill(SIGTERM);
    EXPECT_EQ(cluster[1].process->wait(), 0);
    ASSERT_NO_FATAL_FAILURE(up_again(cluster[1]));
    EXPECT_TRUE(eventually([&] { return has(ask(cluster[0], {"nodes"}), "alive, drained"); }));
    EXPECT_TRUE(has(ask(cluster[0], {"undrain", "b"}), "node b takes jobs again"));
    EXPECT_TRUE(eventually([&] { return !has(ask(cluster[0], {"nodes"}), "drained"); }));
    other = cluster[0].submit(small).value("id", "");
    EXPECT_EQ(nodes_of(cluster[0], other), (std::vector<std::string>{"a", "b", "c"}));
    expect_quiet_end(cluster[0], id);
    expect_quiet_end(cluster[2], id);
}

TEST_F(SystemSurvive, AJobThatNeedsANodeHindersItsDrain) {
    std::string bound = text;
    bound.erase(bound.find("survive = true\n"), 15);
    bound.replace(bound.find("survivor"), 8, "bound");
    const std::string id = cluster[0].submit(bound, {"a", "b"}).value("id", ""), digits = id.substr(0, 8);
    ASSERT_TRUE(eventually([&] { return cluster[0].step(id) >= 50; }));
    EXPECT_TRUE(has(ask(cluster[0], {"job", "add-node", id, "c"}, 1), "takes no nodes in: survive is not set in its job file"));
    const std::string needed = "needed by job " + digits + " (bound): survive is not set in its job file";
    EXPECT_TRUE(has(ask(cluster[0], {"drain", "b"}, 1), needed)) << ask(cluster[0], {"nodes"});
    EXPECT_TRUE(has(ask(cluster[0], {"nodes"}), needed));
    EXPECT_EQ(cluster[0].job(id)["status"]["state"], "running");
    EXPECT_TRUE(has(ask(cluster[0], {"drain", "b", "--cancel"}), "node b is drained"));
    const JobStatus status = cluster[0].ended(id);
    EXPECT_EQ(status.state, JobState::cancelled);
    EXPECT_EQ(status.error, "node b is drained");
    EXPECT_GT(status.checkpoint, 0u);
}

TEST_F(SystemLeave, ANodeThatIsToldToStopLeavesAtOnce) {
    // The lowest of two, which a quorum of the other alone would wait for.
    const std::string id = begun(cluster[0], {"a", "b"});
    cluster[0].process->kill(SIGTERM);
    const uint64_t before = clock_us();
    EXPECT_EQ(cluster[0].process->wait(), 0) << cluster[0].process->output();
    EXPECT_LT(clock_us() - before, 8'000'000u);
    EXPECT_TRUE(has(cluster[0].process->output(), "node a leaves (SIGTERM); the job goes on without it")) << cluster[0].process->output();
    expect_quiet_end(cluster[1], id);
    const JobStatus status = cluster[1].job(id)["status"].get<JobStatus>();
    ASSERT_EQ(status.views.size(), 2u);
    EXPECT_EQ(status.views[1].members, std::vector<std::string>{"b"});
    EXPECT_LT(status.views[1].stood_us, 2'000'000u);
}

TEST_F(SystemJoin, ANodeThatHasJoinedLeavesAsTheOthersDo) {
    const std::string id = begun(cluster[0], {"a"}, "elastic = true\n");
    ASSERT_TRUE(eventually([&] { return cluster[1].step(id) > 0; })) << cluster[1].job(id).dump(2) << logs(cluster);
    cluster[1].process->kill(SIGTERM);
    EXPECT_EQ(cluster[1].process->wait(), 0) << cluster[1].process->output();
    EXPECT_TRUE(has(cluster[1].process->output(), "node b leaves (SIGTERM); the job goes on without it")) << cluster[1].process->output();
    expect_quiet_steps({0}, id);
}

TEST_F(SystemLeave, FewerThanMinNodesEndTheJobWithACheckpoint) {
    text.insert(text.find("seed"), "min_nodes = 3\n");
    EXPECT_TRUE(has(cluster[0].submit(text, {"a", "b"}).value("error", ""), "job.min_nodes = 3, but the job has 2 nodes"));
    const std::string id = begun(cluster[0]);
    // A signal to one node ends the job at once.
    cluster[2].process->kill(SIGTERM);
    EXPECT_EQ(cluster[2].process->wait(), 0);
    for (Node* node : {&cluster[0], &cluster[1]}) {
        const JobStatus status = node->ended(id, 6'000'000);   // below D
        EXPECT_EQ(status.state, JobState::cancelled);
        EXPECT_EQ(status.error, "node c leaves (SIGTERM)");
        EXPECT_GT(status.checkpoint, 0u);
    }
    ASSERT_NO_FATAL_FAILURE(up_again(cluster[2]));
    ask(cluster[0], {"resume", id});
    const uint64_t before = cluster[0].step(id);
    ASSERT_TRUE(eventually([&] { return cluster[0].step(id) > before + 20; }));
    kill(cluster[2]);
    for (Node* node : {&cluster[0], &cluster[1]}) {
        const JobStatus status = node->ended(id);
        EXPECT_EQ(status.state, JobState::failed);
        EXPECT_TRUE(has(status.error, "2 of the nodes are left, and the job needs 3 (job.min_nodes); `gradcastctl resume` goes on"))
            << status.error;
        EXPECT_GT(status.checkpoint, 0u);
    }
    ASSERT_NO_FATAL_FAILURE(up_again(cluster[2]));
    ask(cluster[0], {"resume", id});
    for (Node& node : cluster.nodes) expect_quiet_end(node, id);
}

/// The others go on without the coordinator, whose daemon lives: it asks to be in again, as a later incarnation.
TEST_F(SystemJoin, ANodeThatWasStoppedJoinsAgainByItself) {
    const std::string id = begun(cluster[0]);
    const auto views = [&] { return cluster[2].job(id)["status"].get<JobStatus>().views; };
    cluster[0].process->kill(SIGSTOP);
    const bool out = eventually([&] { return views().size() == 2; });
    cluster[0].process->kill(SIGCONT);
    ASSERT_TRUE(out) << cluster[2].job(id).dump(2) << logs(cluster);
    const uint32_t then = cluster[2].step(id);
    ASSERT_TRUE(eventually([&] { return views().back().members.size() == 3 && cluster[0].step(id) > then; }))
        << cluster[0].job(id).dump(2) << logs(cluster);
    expect_quiet_steps({2, 0, 1}, id);
    ASSERT_EQ(views().size(), 3u) << "one view for it";
    EXPECT_EQ(views()[1].departed, std::vector<std::string>{"a"});
    EXPECT_EQ(views()[2].joined, std::vector<std::string>{"a"});
    EXPECT_EQ(views()[2].members, (std::vector<std::string>{"b", "c", "a"}));
}

TEST_F(SystemJoin, AnElasticJobTakesOtherNodesIn) {
    EXPECT_TRUE(has(ask(cluster[2], {"drain", "c"}), "is drained"));
    ASSERT_TRUE(eventually([&] { return has(ask(cluster[0], {"nodes"}), "alive, drained"); }));
    const std::string id = begun(cluster[0], {"a"}, "elastic = true\n");
    ASSERT_TRUE(eventually([&] { return cluster[1].step(id) > 0; })) << cluster[1].job(id).dump(2) << logs(cluster);
    EXPECT_TRUE(has(ask(cluster[0], {"job", "add-node", id, "c"}, 1), "node c is drained"));
    EXPECT_TRUE(has(ask(cluster[0], {"job", "add-node", id, "nobody"}, 2), "there is no node nobody"));
    EXPECT_TRUE(has(ask(cluster[0], {"job", "add-node", id, "b"}, 1), "node b is in job"));
    expect_quiet_steps({0, 1}, id);
    const JobStatus status = cluster[0].job(id)["status"].get<JobStatus>();
    ASSERT_EQ(status.views.size(), 2u);
    EXPECT_EQ(status.views[1].members, (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(status.views[1].joined, std::vector<std::string>{"b"});
    EXPECT_EQ(status.views[1].why, "b joins");
    EXPECT_EQ(cluster[2].step(id), 0u);
}

// A link that is opened for one node has datagrams for those that come.
TEST_F(SystemJoin, AJobOfOneNodeGrowsOverMulticast) {
    for (const char* exchange : {"\"multicast\"", "\"auto\""}) {
        SCOPED_TRACE(exchange);
        const std::string ring = std::exchange(text, std::string(text).replace(text.find("\"ring\""), 6, exchange));
        const std::string id = begun(cluster[0], {"a"}, "elastic = true\n");
        text = ring;
        ASSERT_TRUE(eventually([&] { return cluster[1].step(id) > 0 && cluster[2].step(id) > 0; }))
            << cluster[1].job(id).dump(2) << logs(cluster);
        expect_quiet_steps({0, 1, 2}, id);
        const JobStatus status = cluster[0].job(id)["status"].get<JobStatus>();
        ASSERT_TRUE(status.datagrams.has_value());
        EXPECT_TRUE(status.datagrams->multicast);
        EXPECT_EQ(status.datagrams->reached, 2u);
    }
}

TEST_F(SystemJoin, ANodeJoinsAJobOverMulticast) {
    text.replace(text.find("steps = "), 8, "evaluate = 500\nsteps = ").replace(text.find("\"mlp\""), 5, "\"lenet5\"");
    ask(cluster[2], {"drain", "c"});
    ASSERT_TRUE(eventually([&] { return has(ask(cluster[0], {"nodes"}), "alive, drained"); }));
    const auto submitted = [&](const std::string& exchange, const std::string& more) {
        const std::string ring = std::exchange(text, std::string(text).replace(text.find("\"ring\""), 6, exchange));
        const std::string id = begun(cluster[0], {"a", "b"}, more);
        text = ring;
        return id;
    };
    const auto expect_joined = [&](const std::string& id, const std::string& name) {
        const JobStatus status = cluster[0].job(id)["status"].get<JobStatus>();
        ASSERT_GE(status.views.size(), 2u);   // its first attempt may not reach all
        EXPECT_EQ(status.views.back().joined, std::vector<std::string>{name});
        EXPECT_GT(status.views.back().first_step, 50u);
        ASSERT_TRUE(status.datagrams.has_value());
        EXPECT_TRUE(status.datagrams->multicast);
        EXPECT_EQ(status.datagrams->reached, 2u);
    };
    {
        SCOPED_TRACE("by itself");
        const std::string id = submitted("\"multicast\"", "elastic = true\n");
        ask(cluster[2], {"undrain", "c"});
        ASSERT_TRUE(eventually([&] { return cluster[2].step(id) > 0; })) << cluster[2].job(id).dump(2) << logs(cluster);
        expect_quiet_steps({0, 1, 2}, id);
        expect_joined(id, "c");
    }
    SCOPED_TRACE("by an operator; it was not known when the job began");
    const std::string id = submitted("\"coded-rs\"\nm = 1\ns = 1", "");
    EXPECT_TRUE(has(ask(cluster[0], {"job", "add-node", id, "d"}, 2), "there is no node d in gradcastd.toml"));
    cluster.more();
    for (Node& node : cluster.nodes) cluster.configure(node, "interface = \"127.0.0.1\"\n");
    for (size_t i : {0, 1, 2}) cluster[i].process->kill(SIGHUP);
    for (size_t i : {0, 1})
        ASSERT_TRUE(eventually([&] { return has(cluster[i].process->output(), "1 node more, which may join jobs from now on"); }));
    EXPECT_TRUE(has(ask(cluster[0], {"job", "add-node", id, "d"}, 1), "node d is not alive: "));
    cluster.start(cluster[3]);
    ASSERT_TRUE(cluster[3].process->ready()) << cluster[3].process->output();
    for (Node& node : cluster.nodes) ASSERT_TRUE(eventually([&] { return node.sees() == "a b c d"; })) << node.sees() << logs(cluster);
    EXPECT_EQ(cluster[2].step(id) + cluster[3].step(id), 0u) << "nobody has asked for them";
    EXPECT_TRUE(has(ask(cluster[1], {"job", "add-node", id, "d"}), "node d is in job " + id + " from step "));
    expect_quiet_steps({0, 1, 3}, id);
    expect_joined(id, "d");
    EXPECT_FALSE(has(cluster[0].process->output(), "is read again")) << "nothing was left to do";
}

TEST_F(SystemJoin, AJoinerWithOtherDataIsRefusedBeforeAnybodyStops) {
    // Each daemon works in its own folder, so this is another file for each.
    for (Node& node : cluster.nodes) std::filesystem::copy_file(cluster.folder + "/data.h5", node.folder + "/data.h5");
    make_data(cluster[2].folder + "/data.h5", 65);
    const std::string shared = cluster.folder + "/data.h5";
    for (size_t at; (at = text.find(shared)) != std::string::npos;) text.replace(at, shared.size(), "/proc/self/cwd/data.h5");
    const std::string id = begun(cluster[0], {"a", "b"}, "elastic = true\n");
    const auto warned = [&] { return cluster[0].job(id)["status"]["warnings"].dump(); };
    ASSERT_TRUE(eventually([&] {
        return has(warned(), "node c does not join: it cannot join job " + id + ": the digest of the data is ");
    })) << warned()
        << logs(cluster);
    EXPECT_TRUE(has(ask(cluster[0], {"job", "add-node", id, "c"}, 1), "node c does not join: "));
    EXPECT_EQ(cluster[0].job(id)["status"]["views"].size(), 1u);
    expect_quiet_steps({0, 1}, id);
}

// No node of its first view remains.
TEST_F(SystemJoin, ANodeThatHasJoinedGoesOnAloneByAnOperator) {
    const std::string id = begun(cluster[0], {"a", "b"}, "elastic = true\nmin_nodes = 1\n");
    ASSERT_TRUE(eventually([&] { return cluster[2].step(id) > 0; })) << cluster[2].job(id).dump(2) << logs(cluster);
    for (size_t i : {0, 1}) cluster[i].process->kill(SIGKILL);   // at once: else b and c may agree on a view without a first
    for (size_t i : {0, 1}) cluster[i].process->wait();
    ASSERT_TRUE(eventually([&] { return cluster[2].sees() == "c"; }));
    for (const char* dead : {"a", "b"}) ask(cluster[2], {"force-view", id, "--dead", dead});
    expect_quiet_steps({2}, id);
    const JobStatus status = cluster[2].job(id)["status"].get<JobStatus>();
    ASSERT_GE(status.views.size(), 3u);   // its first attempt may not reach all
    EXPECT_EQ(status.views.front().members, (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(status.views[1].joined, std::vector<std::string>{"c"});
    EXPECT_EQ(status.views.back().members, std::vector<std::string>{"c"});
}

TEST_F(SystemLeave, AnOperatorProvesADeathThatTheOthersCannotKnow) {
    const std::string id = begun(cluster[0], {"a", "b"});
    EXPECT_TRUE(has(ask(cluster[1], {"force-view", id, "--dead", "a"}, 1), "node a answers, so it is not dead"));
    EXPECT_TRUE(has(ask(cluster[1], {"force-view", id, "--dead", "c"}, 1), "node c answers"));
    kill(cluster[0]);   // without its vote b is no quorum
    ASSERT_TRUE(eventually([&] { return !has(cluster[1].sees(), "a"); }));
    ask(cluster[1], {"force-view", id, "--dead", "a"});
    expect_quiet_end(cluster[1], id);
    EXPECT_TRUE(has(cluster[1].process->output(), "an operator says that node a is dead")) << cluster[1].process->output();
}

/// The other half may go on, so what has ended here is not resumed while it cannot be asked.
TEST_F(SystemLeave, AMinorityIsResumedByForceAlone) {
    const std::string id = begun(cluster[0], {"a", "b"});
    kill(cluster[0]);
    const JobStatus status = cluster[1].ended(id);
    EXPECT_EQ(status.state, JobState::failed);
    EXPECT_TRUE(has(status.error, "b is in a minority")) << status.error;
    EXPECT_TRUE(status.may_rejoin);
    EXPECT_GT(status.checkpoint, 0u);
    const std::string refused = ask(cluster[1], {"resume", id}, 1);
    EXPECT_TRUE(has(refused, "a cannot be asked, and may go on with it")) << refused;
    EXPECT_EQ(cluster[1].job(id)["status"]["state"], "failed");
    ask(cluster[1], {"resume", id, "--force"});
    expect_quiet_end(cluster[1], id);
}

}   // namespace
}   // namespace gradcast
