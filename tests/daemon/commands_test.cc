// Jobs with net.command at real daemons: who may have a program started, and where.
#include <grp.h>

#include <regex>

#include "runtime/control/keys.h"
#include "runtime/job/model/checkpoint_files.h"
#include "runtime/job/model/model_file.h"
#include "tests/daemon/jobs.h"

namespace gradcast {
namespace {

/// Daemons, data, and a program that leaves a file where it was started.
struct Commands {
    explicit Commands(uint32_t n) : cluster(n), data(make_data(cluster.folder + "/data.h5")) {
        std::filesystem::create_directories(folder);
        program("echo started >>started\necho 'ValueError: no net' >&2\nexit 3\n");
    }
    void program(const std::string& script) const { ASSERT_TRUE(file_write(folder + "/train.sh", "#!/bin/sh\n" + script, 0755).ok()); }
    std::string text(uint32_t steps = 10) const {
        std::string text = job_text(data, steps);
        return text.replace(text.find("preset = \"mlp\""), 14, "command = [\"./train.sh\"]");
    }
    Submission job(const std::vector<std::string>& nodes) const { return {text(), "job.toml", folder, nodes, 0}; }
    bool started() const { return std::filesystem::exists(folder + "/started"); }
    /// What gradcastctl says, after its exit code.
    std::string ctl(const std::vector<std::string>& arguments) const {
        ChildProcess client;
        client.start({.arguments = arguments, .log = cluster.folder + "/out", .notify = "", .directory = folder, .name = "gradcastctl"});
        const int code = client.wait();
        return fmt::format("{} {}", code, client.output());
    }
    Cluster cluster;
    const std::string folder = cluster.folder + "/job", data;
};

TEST(SystemCommands, AreRefusedWhereNobodyHasAllowedThem) {
    Commands all(2);
    Cluster& cluster = all.cluster;
    cluster.configure(cluster[0], "commands = true\n");
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    // At the node that is asked.
    Json answer = cluster[1].submit(all.job({"b"}));
    EXPECT_TRUE(
        has(answer.value("error", ""), "net.command: node b starts no programs of jobs: set `commands = true` in its gradcastd.toml"))
        << answer.dump();
    EXPECT_EQ(answer.value("code", ""), "invalid");
    // At another one, before anything starts at any.
    answer = cluster[0].submit(all.job({"a", "b"}));
    EXPECT_TRUE(has(answer.value("error", ""), "node b starts no programs of jobs: set `commands = true`")) << answer.dump();
    EXPECT_FALSE(all.started());
    // Where it is allowed it starts.
    answer = cluster[0].submit(all.job({"a"}));
    EXPECT_TRUE(has(answer.value("error", ""), "ValueError: no net")) << answer.dump() << logs(cluster);
    EXPECT_TRUE(all.started());
}

TEST(SystemCommands, NeedTheRoleAdminOverTcp) {
    Commands all(1);
    Cluster& cluster = all.cluster;
    const uint16_t port = free_port();
    const std::string clients = cluster.folder + "/clients", ana = std::string(64, 'a'), eve = std::string(64, 'e');
    ASSERT_TRUE(file_write(clients, "ana submit " + ana + "\neve admin " + eve + "\n", 0600).ok());
    ASSERT_TRUE(file_write(all.folder + "/ana.key", "ana submit " + ana + "\n", 0600).ok());
    ASSERT_TRUE(file_write(all.folder + "/eve.key", "eve admin " + eve + "\n", 0600).ok());
    cluster.configure(cluster[0], fmt::format("commands = true\ncontrol = \"127.0.0.1:{}\"\nclients = \"{}\"\n", port, clients));
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    ASSERT_TRUE(file_write(all.folder + "/job.toml", all.text()).ok());
    const auto submit = [&](const std::string& key) {
        return all.ctl({"--host", fmt::format("127.0.0.1:{}", port), "--key", key, "submit", "job.toml", "--wait"});
    };
    std::string said = submit("ana.key");
    EXPECT_TRUE(has(said, "1 gradcastctl: ") &&
                has(said, "net.command starts a program as the user of the daemons: this needs the role admin"))
        << said;
    // A client cannot claim to be more.
    const Json claimed = Json(all.job({}));
    EXPECT_FALSE(claimed.contains("role"));
    // Nor can it bring a command to a job that is there.
    std::string plain = job_text(all.data, 1'000'000);
    plain.insert(plain.find("[data]"), "checkpoint_every = 5\n");
    const std::string id = cluster[0].submit(plain).value("id", "");
    ASSERT_TRUE(eventually([&] { return cluster[0].step(id) > 10; })) << logs(cluster);
    cluster[0].post("/v1/jobs/" + id + "/cancel", Json::object());
    ASSERT_EQ(cluster[0].ended(id).state, JobState::cancelled);
    said = all.ctl({"--host", fmt::format("127.0.0.1:{}", port), "--key", "ana.key", "resume", id, "job.toml", "--wait"});
    EXPECT_TRUE(has(said, "this needs the role admin")) << said;
    EXPECT_FALSE(all.started());
    said = submit("eve.key");
    EXPECT_TRUE(has(said, "ValueError: no net")) << said;
    EXPECT_TRUE(all.started());
}

// A checkpoint in a job's folder may be anybody's: its program is not started by itself.
TEST(SystemCommands, AHostileCheckpointStartsNothing) {
    Commands all(1);
    Cluster& cluster = all.cluster;
    cluster.configure(cluster[0], "commands = true\n");
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    std::string text = job_text(all.data, 1'000'000);
    text.insert(text.find("[data]"), "checkpoint_every = 5\n");
    const std::string id = cluster[0].submit(text).value("id", "");
    ASSERT_TRUE(eventually([&] { return cluster[0].step(id) > 20; })) << logs(cluster);
    cluster[0].post("/v1/jobs/" + id + "/cancel", Json::object());
    ASSERT_EQ(cluster[0].ended(id).state, JobState::cancelled);
    for (const CheckpointHere& each : checkpoints_in(cluster[0].folder + "/state/jobs/" + id)) {
        Model model;
        ModelVectors state;
        ASSERT_TRUE(checkpoint_read(each.path, &model, &state).ok());
        model.job = all.text(1'000'000);
        model.base = all.folder;
        std::filesystem::remove(each.path);
        ASSERT_TRUE(model_write(each.path, model, {state.parameters, state.optimiser, state.exponents, state.algorithm}).ok());
    }
    const auto resume = [&](const Json& asked) {
        EXPECT_EQ(cluster[0].post("/v1/jobs/" + id + "/resume", asked).value("id", ""), id);
        return cluster[0].ended(id).error;
    };
    std::string error = resume(Json::object());
    EXPECT_TRUE(has(error, "would start a command: [\"./train.sh\"] in \"" + all.folder + "\", SHA-256 of ")) << error;
    EXPECT_TRUE(has(error, "allow it by --allow-command")) << error;
    error = all.ctl({"--socket", cluster[0].socket, "resume", id, "--wait"});
    EXPECT_TRUE(has(error, "would start a command: [\"./train.sh\"]")) << error;
    EXPECT_FALSE(all.started());
    error = all.ctl({"--socket", cluster[0].socket, "resume", id, "--wait", "--allow-command"});
    EXPECT_TRUE(all.started()) << error << logs(cluster);
}

// What a daemon starts runs as its user, and must not read its memory or its environment.
TEST(SystemCommands, DoNotReadTheDaemon) {
    if (::getuid() != 0) GTEST_SKIP() << "needs root to become another user";
    for (const bool commands : {false, true}) {
        Cluster cluster(1);
        Node& node = cluster[0];
        node.uid = 100'000 + static_cast<uid_t>(::getpid());
        cluster.configure(node, fmt::format("commands = {}\n", commands));
        for (const auto& each : std::filesystem::recursive_directory_iterator(cluster.folder))
            ASSERT_EQ(::lchown(each.path().c_str(), node.uid, node.uid), 0);
        ASSERT_EQ(::chown(cluster.folder.c_str(), node.uid, node.uid), 0);
        ASSERT_NO_FATAL_FAILURE(cluster.up());
        const std::string environ = fmt::format("/proc/{}/environ", node.process->pid());
        const pid_t child = ::fork();
        if (child == 0) {
            if (::setgroups(0, nullptr) != 0 || ::setgid(node.uid) != 0 || ::setuid(node.uid) != 0) ::_exit(9);
            const Fd file(::open(environ.c_str(), O_RDONLY | O_CLOEXEC));
            char byte;
            ::_exit(file && ::read(file.get(), &byte, 1) == 1 ? 0 : 1);
        }
        int how = 0;
        ASSERT_EQ(::waitpid(child, &how, 0), child);
        EXPECT_EQ(WEXITSTATUS(how), commands ? 1 : 0);   // a daemon without commands shows that the test can fail
        // It still sees what it needs of itself.
        const Json found = node.get("/v1/doctor");
        EXPECT_TRUE(has(found.dump(), "are open")) << found.dump();
        EXPECT_EQ(has(found.dump(), "so who may submit jobs with net.command"), commands) << found.dump();
    }
}

TEST(SystemCommands, TheCheckSaysWhatTheyMean) {
    Cluster cluster(1);
    cluster.configure(cluster[0], "commands = true\n");
    std::filesystem::create_directories(cluster[0].folder + "/state");
    ChildProcess check;
    check.start(
        {.arguments = {"--config", cluster[0].folder + "/gradcastd.toml", "--check"}, .log = cluster.folder + "/out", .notify = ""});
    EXPECT_EQ(check.wait(), 0) << check.output();
    EXPECT_TRUE(has(check.output(), "programs of jobs are started as the daemon's user (")) << check.output();
    EXPECT_TRUE(has(check.output(), "can read the cluster key " + cluster.folder + "/key and do what this user may")) << check.output();
    // So do the help, the example of gradcastd.toml, and the pages.
    ChildProcess help;
    help.start({.arguments = {"--help"}, .log = cluster.folder + "/out", .notify = ""});
    EXPECT_EQ(help.wait(), 0);
    EXPECT_TRUE(has(std::regex_replace(help.output(), std::regex("\\s+"), " "), "then has the cluster key")) << help.output();
    for (const auto& [page, says] : {std::pair{"tools/systemd/gradcastd.toml", "can then read the cluster key"},
                                     {"tools/systemd/README.md", "whoever may submit jobs with commands has the key"},
                                     {"runtime/control/ACCESS.md", "Whoever may submit these jobs has the cluster key"}}) {
        std::string text;
        ASSERT_TRUE(file_read(page, &text).ok()) << page;
        EXPECT_TRUE(has(text, says)) << page;
    }
}

}   // namespace
}   // namespace gradcast
