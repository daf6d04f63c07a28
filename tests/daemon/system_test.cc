// gradcastd as real processes: start and its errors, membership, jobs with deaths and restarts.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <climits>
#include <regex>

#include "tests/daemon/jobs.h"
#include "tests/link/namespace.h"

#include "datasets/hdf5.h"
#include "datasets/shard.h"
#include "runtime/core/digest.h"
#include "runtime/core/isa.h"
#include "runtime/core/rng.h"

namespace gradcast {
namespace {

ChildProcess& run(ChildProcess& process, Cluster& cluster, std::vector<std::string> arguments) {
    process.start({std::move(arguments), cluster.folder + "/out", "", -1, 0});
    return process;
}

// ---- starting ------------------------------------------------------------------------------------------------------------------

TEST(SystemDaemon, FlagsAndCheck) {
    Cluster cluster(1);
    ChildProcess wrong, help, version, check, mistakes, absent;
    EXPECT_EQ(run(wrong, cluster, {"--confg", "x"}).wait(), 2);
    EXPECT_TRUE(has(wrong.output(), "unknown flag --confg; did you mean --config?")) << wrong.output();
    EXPECT_EQ(run(help, cluster, {"--help"}).wait(), 0);
    EXPECT_TRUE(has(help.output(), "interface  the network interface")) << help.output();
    EXPECT_EQ(run(version, cluster, {"--version"}).wait(), 0);
    EXPECT_EQ(version.output().find("gradcastd "), 0u) << version.output();
    EXPECT_EQ(run(check, cluster, {"--check", "--config", cluster[0].folder + "/gradcastd.toml"}).wait(), 0);
    EXPECT_TRUE(has(check.output(), "valid, as are key and state folder; node a, 1 member, listens on 127.0.0.1:")) << check.output();
    EXPECT_FALSE(std::filesystem::exists(cluster[0].folder + "/state"));
    const Fd taken(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in here{};
    here.sin_family = AF_INET;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    here.sin_port = htons(cluster[0].port);
    ASSERT_EQ(::bind(taken.get(), reinterpret_cast<sockaddr*>(&here), sizeof here), 0);
    for (const auto& [key, says] : {std::pair{"key = \"none\"\n", "cannot read the cluster key"},
                                    {"listen = \"192.0.2.1:4700\"\n", "192.0.2.1:4700 is not an address of this machine"},
                                    {"isa = \"auto\"\n", "is in use (by another gradcastd?): choose another `listen`"},
                                    {"state = \"gradcastd.toml/x\"\n", "gradcastd.toml is not a folder"}}) {
        cluster.configure(cluster[0], key);
        ChildProcess checked;
        EXPECT_EQ(run(checked, cluster, {"--check", "--config", cluster[0].folder + "/gradcastd.toml"}).wait(), 1);
        EXPECT_TRUE(has(checked.output(), says)) << checked.output();
    }
    ASSERT_TRUE(file_write(cluster.folder + "/bad.toml", "nam = 1\nlisten = 3\nisa = \"z80\"\n").ok());
    EXPECT_EQ(run(mistakes, cluster, {"-c", cluster.folder + "/bad.toml"}).wait(), 1);
    for (const char* line : {"bad.toml:1: unknown key \"nam\"", "bad.toml:2: listen", "bad.toml:3: isa = \"z80\""})
        EXPECT_TRUE(has(mistakes.output(), line)) << mistakes.output();
    EXPECT_EQ(run(absent, cluster, {"--config", "/nonexistent/x.toml"}).wait(), 1);
    EXPECT_TRUE(has(absent.output(), "/nonexistent/x.toml: No such file")) << absent.output();
}

TEST(SystemDaemon, SaysWhatIsWrongAndEnds) {
    Cluster cluster(1);
    Node& a = cluster[0];
    std::string key = cluster.folder + "/open";
    ASSERT_TRUE(cluster_key_create(key).ok());
    ::chmod(key.c_str(), 0644);
    cluster.configure(a, "key = \"" + key + "\"\n");
    EXPECT_TRUE(has(cluster.refusal(a), "can be read by others: chmod 600 " + key)) << a.process->output();
    ASSERT_EQ(::mkfifo((a.folder + "/pipe").c_str(), 0600), 0);
    cluster.configure(a, "key = \"pipe\"\n");
    EXPECT_TRUE(has(cluster.refusal(a), "cannot open " + a.folder + "/pipe: it is a pipe, not a file")) << a.process->output();
    cluster.configure(a, "key = \"none\"\n");
    EXPECT_TRUE(has(cluster.refusal(a), "cannot read the cluster key " + a.folder + "/none: No such file")) << a.process->output();
    cluster.configure(a, "state = \"/proc/state\"\n");
    EXPECT_TRUE(has(cluster.refusal(a), "cannot create the folder /proc/state")) << a.process->output();
    cluster.configure(a, "socket = \"/proc/run/s\"\n");
    EXPECT_TRUE(has(cluster.refusal(a), "cannot create the folder /proc/run")) << a.process->output();
    cluster.configure(a, "listen = \"192.0.2.1:4700\"\n");   // TEST-NET-1 of RFC 5737: nobody has it
    EXPECT_TRUE(has(cluster.refusal(a), "192.0.2.1:4700 is not an address of this machine: choose another `listen`"))
        << a.process->output();
    std::string output = a.process->output();
    EXPECT_EQ(std::count(output.begin(), output.end(), '\n'), 1) << output;

    Fd taken(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(a.port);
    ASSERT_EQ(::bind(taken.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(::listen(taken.get(), 1), 0);
    cluster.configure(a);
    EXPECT_TRUE(
        has(cluster.refusal(a), "127.0.0.1:" + std::to_string(a.port) + " is in use (by another gradcastd?): choose another `listen`"));
}

TEST(SystemDaemon, WithoutPermission) {
    if (::getuid() != 0) GTEST_SKIP() << "needs root to become another user";
    Cluster cluster(1);
    Node& a = cluster[0];
    a.uid = 65534;
    ::chmod(cluster.folder.c_str(), 0755);
    ::chmod(a.folder.c_str(), 0755);
    ASSERT_EQ(::chown((cluster.folder + "/key").c_str(), a.uid, a.uid), 0);
    EXPECT_TRUE(has(cluster.refusal(a), "cannot create the folder " + a.folder)) << a.process->output();
    EXPECT_TRUE(has(a.process->output(), "Permission denied")) << a.process->output();
    std::filesystem::create_directories(a.folder + "/state"), std::filesystem::create_directories(a.folder + "/run");
    EXPECT_TRUE(has(cluster.refusal(a), "state/lock: let this user write to the state folder")) << a.process->output();

    ASSERT_EQ(::chown((a.folder + "/state").c_str(), a.uid, a.uid), 0);
    Fd taken(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));   // of root
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    a.socket.copy(address.sun_path, sizeof address.sun_path - 1);
    ASSERT_EQ(::bind(taken.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0) << a.socket;
    ::chmod(a.socket.c_str(), 0600);
    EXPECT_TRUE(has(cluster.refusal(a), "the control socket " + a.socket + " belongs to another user: give this gradcastd another socket"))
        << a.process->output();
}

TEST(SystemDaemon, AFullOrReadOnlyStateFolder) {
    if (::getuid() != 0) GTEST_SKIP() << "needs root to mount a small file system";
    Cluster cluster(1);
    Node& a = cluster[0];
    const std::string state = a.folder + "/state";
    std::filesystem::create_directories(state);
    // In a mount namespace of its own.
    auto start = [&](unsigned long flags, const char* size) {
        a.process = std::make_unique<ChildProcess>();
        a.process->start({.arguments = {"--config", a.folder + "/gradcastd.toml"},
                          .log = a.folder + "/stderr",
                          .notify = a.folder + "/n",
                          .directory = a.folder,
                          .before = [=] {
                              return ::unshare(CLONE_NEWNS) == 0 && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                                     ::mount("none", state.c_str(), "tmpfs", flags, size) == 0;
                          }});
    };
    start(MS_RDONLY, "size=64k");
    const int code = a.process->wait();
    if (code == 125) GTEST_SKIP() << "cannot mount a file system here";
    EXPECT_EQ(code, 1);
    EXPECT_TRUE(has(a.process->output(), "state/lock: let this user write to the state folder, or choose another `state`: Read-only"))
        << a.process->output();
    start(0, "size=4k");
    EXPECT_EQ(a.process->wait(), 1);
    EXPECT_TRUE(has(a.process->output(), "No space left on device")) << a.process->output();
    // Room to start, and none for a model: the job is refused and the daemon stays.
    start(0, "size=100k");
    ASSERT_TRUE(a.process->ready()) << a.process->output();
    const std::string error = a.submit(job_text(make_data(cluster.folder + "/data.h5"), 5)).value("error", "");
    EXPECT_TRUE(has(error, "for the model in " + state) && has(error, "No space left on device")) << error;
    EXPECT_EQ(a.sees(), "a");
}

TEST(SystemDaemon, OneDaemonAStateFolder) {
    Cluster cluster(2);
    cluster.start(cluster[0]);
    ASSERT_TRUE(cluster[0].process->ready()) << cluster[0].process->output();
    cluster.configure(cluster[1], "state = \"" + cluster[0].folder + "/state\"\n");
    EXPECT_TRUE(has(cluster.refusal(cluster[1]), "is used by another gradcastd (pid " + std::to_string(cluster[0].process->pid()) + ")"))
        << cluster[1].process->output();
    cluster.configure(cluster[1], "socket = \"" + cluster[0].socket + "\"\n");
    EXPECT_TRUE(has(cluster.refusal(cluster[1]), "another gradcastd answers at " + cluster[0].socket)) << cluster[1].process->output();
}

TEST(SystemDaemon, TakesASocketOver) {
    Cluster cluster(1);
    Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(cluster[0].port);
    ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(::listen(socket.get(), 16), 0);
    cluster.start(cluster[0], socket.get());
    ASSERT_TRUE(cluster[0].process->ready()) << cluster[0].process->output();
    EXPECT_TRUE(has(cluster[0].process->output(), "listening on 127.0.0.1:" + std::to_string(cluster[0].port)))
        << cluster[0].process->output();
    cluster[0].process->kill(SIGTERM);
    EXPECT_EQ(cluster[0].process->wait(), 0);
}

TEST(SystemDaemon, LeavesCleanly) {
    Cluster cluster(1);
    for (int signal : {SIGTERM, SIGINT}) {
        cluster.start(cluster[0]);
        ASSERT_TRUE(cluster[0].process->ready()) << cluster[0].process->output();   // also: a second start in the same folder
        cluster[0].process->kill(signal);
        EXPECT_EQ(cluster[0].process->wait(), 0) << cluster[0].process->output();
        EXPECT_FALSE(std::filesystem::exists(cluster[0].socket));
    }
}

// ---- membership ------------------------------------------------------------------------------------------------------------------

TEST(SystemDaemon, SeesDeathAndReturn) {
    Cluster cluster(3);
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    for (uint32_t victim : {2, 0}) {   // one that others connect to, one that connects
        Node &node = cluster[victim], &other = cluster[1];
        node.process->kill(SIGKILL);
        EXPECT_EQ(node.process->wait(), 128 + SIGKILL);
        EXPECT_TRUE(eventually([&] { return !has(other.sees(), node.name); })) << other.sees();
        EXPECT_NE(other.why(node.name), "");
        cluster.start(node);
        ASSERT_TRUE(node.process->ready()) << node.process->output();
        // It sees them through its new streams, so by then they have noticed that it was away.
        EXPECT_TRUE(eventually([&] { return node.sees() == "a b c" && other.sees() == "a b c"; })) << other.sees() << other.why(node.name);
    }
    for (Node& node : cluster.nodes) node.process->kill(SIGTERM);
    for (Node& node : cluster.nodes) EXPECT_EQ(node.process->wait(), 0) << node.process->output();
}

TEST(SystemDaemon, KeysThatDiffer) {
    Cluster cluster(2);
    ASSERT_TRUE(cluster_key_create(cluster.folder + "/other").ok());
    cluster.configure(cluster[1], "key = \"" + cluster.folder + "/other\"\n");
    for (Node& node : cluster.nodes) cluster.start(node);
    for (Node& node : cluster.nodes) ASSERT_TRUE(node.process->ready()) << node.process->output();
    EXPECT_TRUE(eventually([&] {
        return has(cluster[0].why("b"), "the cluster keys differ: it does not take our key 'k1': give all nodes one key file");
    })) << cluster[0].why("b");
    EXPECT_TRUE(has(cluster[0].why("b"), "peer 'b'")) << cluster[0].why("b");
    EXPECT_EQ(cluster[0].sees(), "a");
    EXPECT_TRUE(has(cluster[0].submit("x = 1", {"a", "b"}).value("error", ""), "x")) << "the file is looked at first";
}

TEST(SystemDaemon, TwoWithOneIdentityOrOneName) {
    Cluster cluster(3);
    // b's state folder, copied to c.
    cluster.start(cluster[1]);
    ASSERT_TRUE(cluster[1].process->ready()) << cluster[1].process->output();
    std::filesystem::create_directories(cluster[2].folder + "/state");
    std::filesystem::copy_file(cluster[1].folder + "/state/identity", cluster[2].folder + "/state/identity");
    cluster.start(cluster[0]);
    cluster.start(cluster[2]);
    EXPECT_TRUE(eventually([&] { return has(cluster[0].why("c") + cluster[0].why("b"), "the same identity as node"); }))
        << cluster[0].why("c");
    EXPECT_TRUE(eventually([&] { return has(cluster[1].process->output() + cluster[2].process->output(), "our own identity"); }))
        << cluster[1].process->output();
    // Another named b, with its own folder and port: it ends, and names the first.
    cluster[2].process->kill(SIGKILL);
    cluster[2].process->wait();
    std::filesystem::remove(cluster[2].folder + "/state/identity");
    cluster.start(cluster[2]);
    ASSERT_TRUE(eventually([&] { return cluster[2].sees() == "a b c"; })) << cluster[2].process->output();
    Node again = {"b", cluster.folder + "/again", cluster.folder + "/again/run/control.sock", free_port(), 0};
    std::filesystem::create_directories(again.folder);
    cluster.configure(again, "listen = \"127.0.0.1:" + std::to_string(again.port) + "\"\n");
    const std::string said = cluster.refusal(again);
    EXPECT_TRUE(has(said, fmt::format("another gradcastd is named b: it answers at 127.0.0.1:{}, uuid ", cluster[1].port))) << said;
    EXPECT_TRUE(has(said, "incarnation 1: stop it, or give this one another `name`")) << said;
    // The same where the holder does not answer at that moment: it is refused, and the holder keeps its streams.
    cluster[1].process->kill(SIGSTOP);
    cluster.start(again);
    ASSERT_TRUE(again.process->ready()) << again.process->output();
    cluster[1].process->kill(SIGCONT);
    EXPECT_TRUE(eventually([&] { return has(again.why("c"), "two daemons are named 'b'"); })) << again.process->output();
    EXPECT_EQ(cluster[2].sees(), "a b c") << "the first b is not disturbed: " << cluster[2].why("b");
    EXPECT_FALSE(has(cluster[2].process->output(), "node b is not alive")) << cluster[2].process->output();
    // Where the holder was killed, the next one has the name.
    again.process->kill(SIGKILL);
    again.process->wait();
    cluster[1].process->kill(SIGKILL);
    cluster[1].process->wait();
    cluster.start(cluster[1]);
    EXPECT_TRUE(eventually([&] { return cluster[1].sees() == "a b c" && cluster[2].sees() == "a b c"; })) << cluster[1].process->output();
}

TEST(SystemDaemon, EndsWhenItsNetworkFails) {
    Cluster cluster(1);
    cluster.configure(cluster[0], "link = \"epoll_tcp\"\n");
    cluster[0].process->start(
        {{"--config", cluster[0].folder + "/gradcastd.toml"},
         cluster[0].folder + "/stderr",
         "",
         -1,
         0,
         cluster[0].folder,
         [] {   // epoll_wait fails from the start
             sock_filter filter[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                                     BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_wait, 1, 0),
                                     BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_epoll_pwait, 0, 1),
                                     BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EBADF), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
             const sock_fprog program{std::size(filter), filter};
             return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
         }});
    EXPECT_EQ(cluster[0].process->wait(), 1) << cluster[0].process->output();
    EXPECT_TRUE(has(cluster[0].process->output(), "epoll cannot wait for the network: Bad file descriptor"))
        << cluster[0].process->output();
}

// ---- jobs ----------------------------------------------------------------------------------------------------------------------

TEST(SystemDaemon, TrainsTheSameBitsOneAfterAnotherAndAtOnce) {
    Cluster cluster(3);
    std::string data = make_data(cluster.folder + "/data.h5");
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    std::vector<std::string> ids;
    auto submit = [&](uint32_t at, std::vector<std::string> nodes) {
        Json answer = cluster[at].submit(job_text(data, 5), nodes);
        EXPECT_TRUE(answer.contains("id")) << answer.dump();
        ids.push_back(answer.value("id", ""));
    };
    submit(0, {});
    EXPECT_EQ(cluster[0].ended(ids[0]).state, JobState::done) << logs(cluster);
    submit(1, {"c", "b"});   // these two at once, coordinated by different nodes
    submit(2, {"a", "b", "c"});
    submit(0, {"a"});
    std::string digest = cluster[0].ended(ids[0]).digest;
    EXPECT_EQ(digest.size(), 64u);
    uint32_t at[] = {0, 1, 2, 0};
    for (size_t i = 0; i < ids.size(); ++i) {
        JobStatus status = cluster[at[i]].ended(ids[i]);
        EXPECT_EQ(status.state, JobState::done) << status.error << "\n" << logs(cluster);
        EXPECT_EQ(status.digest, digest);
    }
    EXPECT_TRUE(std::filesystem::exists(cluster[2].folder + "/state/jobs/" + ids[2] + "/final.h5"));
    // Threads and memory of the jobs are gone: only those of the daemon remain.
    for (Node& node : cluster.nodes) {
        Json nodes;
        EXPECT_TRUE(eventually([&] {
            node.sees(&nodes);
            for (const Json& each : nodes["nodes"])
                if (each.value("jobs", 9) != 0) return false;
            return true;
        })) << nodes.dump();
    }
    // Ended jobs stay listed after a restart.
    cluster[0].process->kill(SIGTERM);
    EXPECT_EQ(cluster[0].process->wait(), 0);
    cluster.start(cluster[0]);
    ASSERT_TRUE(cluster[0].process->ready());
    EXPECT_EQ(cluster[0].ended(ids[0]).digest, digest);
    EXPECT_EQ(cluster[0].get("/v1/jobs")["jobs"].size(), 3u);
}

// gradcast-bench at every node, started through the control socket: its table is the log, and its exit code the job's state.
TEST(SystemDaemon, BenchesBetweenJobs) {
    Cluster cluster(3);
    cluster.configure(cluster.nodes[0], "pace = \"500mbit\"\n");   // of datagrams, which no node here has
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    auto bench = [&](const std::string& text, std::vector<std::string> nodes = {}) {
        Submission submission{text, "", "/", nodes, 0};
        submission.bench = true;
        return cluster[0].submit(submission);
    };
    auto log = [&](const std::string& id) {
        std::string text;
        (void)file_read(cluster[0].folder + "/state/jobs/" + id + "/log", &text).ok();
        return text;
    };
    std::string id = bench("allreduce\n--exchange\nring,coded-rs\n--size\n4K\n--repeat\n2\n--json").value("id", "");
    JobStatus status = cluster[0].ended(id);
    ASSERT_EQ(status.state, JobState::done) << status.error;
    Json report = Json::parse(log(id), nullptr, false);
    ASSERT_TRUE(report.is_object()) << log(id);
    EXPECT_TRUE(report["exact"].get<bool>());
    EXPECT_EQ(report["nodes"], 3);
    EXPECT_EQ(report["rows"].size(), 2u);

    // The session is over at all nodes a moment after the program.
    ASSERT_TRUE(eventually([&] { return !(id = bench("p2p\n--size\n4\n--spoil", {"a", "c"}).value("id", "")).empty(); }));
    status = cluster[0].ended(id);
    EXPECT_EQ(status.state, JobState::failed);
    EXPECT_TRUE(has(status.error, "elements are wrong")) << status.error;
    EXPECT_TRUE(has(log(id), "# WRONG"));

    std::string error;
    ASSERT_TRUE(eventually([&] { return !has(error = bench("ps\n--size\n3").value("error", ""), "a benchmark"); }));
    EXPECT_TRUE(has(error, "node a: --size 3: '3' is not a multiple of 4 bytes")) << error;
    for (const auto& [text, said] :
         {std::pair{"allreduce\n--help", "gradcast-bench COMMAND --help"}, {"p2p\n--nodes=3", "--nodes is set by the daemons"}}) {
        ASSERT_TRUE(eventually([&] { return !has(error = bench(text).value("error", ""), "a benchmark"); }));
        EXPECT_TRUE(has(error, said)) << error;
    }
    ASSERT_TRUE(eventually([&] { return !(id = bench("allreduce\n--size\n16M\n--repeat\n10000").value("id", "")).empty(); }));
    EXPECT_TRUE(has(bench("p2p").value("error", ""), "node a: it has 1 job: a benchmark runs between jobs"));
    std::string data = make_data(cluster.folder + "/data.h5");
    EXPECT_TRUE(has(cluster[0].submit(job_text(data, 5)).value("error", ""), "a benchmark runs there"));
    cluster[0].post("/v1/jobs/bench/cancel", Json::object());
    EXPECT_EQ(cluster[0].ended(id).state, JobState::cancelled);
}

TEST(SystemDaemon, RefusesJobsInOneLine) {
    Cluster cluster(2);
    std::string data = make_data(cluster.folder + "/data.h5");
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    auto error = [&](const std::string& text, std::vector<std::string> nodes = {}) {
        return cluster[0].submit(text, nodes).value("error", "");
    };
    EXPECT_EQ(error(job_text(cluster.folder + "/none*.h5", 5)).find("node "), 0u);
    EXPECT_TRUE(has(error(job_text(data, 5), {"b"}), "node a coordinates the job and must be one of its nodes"));
    EXPECT_TRUE(has(error(job_text(data, 5), {"a", "z"}), "there is no node z: the nodes are a, b"));
    EXPECT_TRUE(has(error(job_text(data, 5), {"a", "b", "b"}), "node b is named twice"));
    Json json = cluster[0].post("/v1/jobs", Json(Submission{job_text(data, 5), "job.toml", "/", {}, 3}));
    EXPECT_TRUE(has(json.value("error", ""), "3 nodes are asked for, 2 are available: there are no more members")) << json.dump();
    std::string three = error("[job]\nnam = \"x\"\nsteps = -1\n[algorithm]\nexchange = \"telepathy\"\n");
    for (const char* part : {"job.toml:2:", "job.toml:3:", "job.toml:5:"}) EXPECT_TRUE(has(three, part)) << three;
    // The one that got as far as preparing stays listed where it was submitted, and after a restart.
    auto listed = [&] {
        Json jobs = cluster[0].get("/v1/jobs")["jobs"];
        EXPECT_EQ(jobs.size(), 1u) << jobs.dump();
        EXPECT_EQ(jobs[0]["status"]["state"], "failed");
        EXPECT_NE(jobs[0]["status"]["code"], "ok");
        EXPECT_EQ(jobs[0]["status"]["error"].get<std::string>().find("node "), 0u);
        return jobs[0]["id"].get<std::string>();
    };
    const std::string failed = listed();
    EXPECT_FALSE(cluster[0].job(failed)["started"].get<bool>());
    EXPECT_TRUE(eventually([&] { return std::filesystem::is_empty(cluster[1].folder + "/state/jobs"); }));
    cluster[0].process->kill(SIGTERM);
    cluster[0].process->wait();
    cluster.start(cluster[0]);
    ASSERT_TRUE(cluster[0].process->ready());
    EXPECT_EQ(listed(), failed);
    cluster[1].process->kill(SIGKILL);
    cluster[1].process->wait();
    EXPECT_TRUE(eventually([&] { return has(error(job_text(data, 5), {"a", "b"}), "node b is not alive: "); }));
}

/// The error of a submitted job, from the answer or from its status.
std::string error_of(Node& node, const std::string& text) {
    const Json json = node.submit(text);
    return json.contains("id") ? node.ended(json.value("id", "")).error : json.value("error", "");
}

TEST(SystemDaemon, WhatIsNotAFileBlocksNoJob) {
    Cluster cluster(1);
    const std::string data = make_data(cluster.folder + "/data.h5"), pipe = cluster.folder + "/pipe";
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0666), 0);
    ASSERT_EQ(::mkfifo((pipe + ".toml").c_str(), 0666), 0);
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    for (const std::string& text : {job_text(pipe, 5), job_text(pipe + ".toml", 5), job_text("/dev/zero", 5),
                                    std::regex_replace(job_text(data, 5), std::regex("\\[net\\]"), "[net]\nstart = \"" + pipe + "\"")}) {
        const std::string error = error_of(cluster[0], text);
        EXPECT_TRUE(has(error, ", not a file")) << error << "\n" << text;
    }
    const std::string error = error_of(cluster[0], job_text(cluster.folder + "/pip*", 5));
    EXPECT_TRUE(has(error, "/pip*: no file matches, or one that does is not a gradcast shard")) << error;
}

/// A shard of 64 GiB of zeros, nearly none of which is on the disk, and with their digests: it takes minutes to verify.
void make_long_data(const std::string& path) {
    constexpr hsize_t count = 65536, side = 1024, digests = 512, each = count / digests;
    const std::vector<std::byte> zeros(each * side * side);
    const std::string labels = sha256_hex(std::span(zeros).first(each)), images = sha256_hex(zeros);
    Hdf5Lock lock;
    Hid creation(H5Pcreate(H5P_DATASET_CREATE)), scalar(H5Screate(H5S_SCALAR)), word(H5Tcopy(H5T_C_S1)), hex(H5Tcopy(H5T_C_S1));
    H5Pset_alloc_time(creation.get(), H5D_ALLOC_TIME_EARLY);
    H5Pset_fill_time(creation.get(), H5D_FILL_TIME_NEVER);
    Hid file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
    auto put = [&](hid_t object, const char* name, hid_t type, hid_t space, const void* value) {
        Hid attribute(H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT));
        ASSERT_GE(H5Awrite(attribute.get(), type, value), 0) << name;
    };
    const uint64_t version = 1, classes = 10, digest_samples = each;
    const float mean = 0.5f, std = 0.5f;
    H5Tset_size(word.get(), 14);
    H5Tset_size(hex.get(), 64);
    const hsize_t once = 1;
    Hid list(H5Screate_simple(1, &digests, nullptr)), single(H5Screate_simple(1, &once, nullptr));
    put(file.get(), "format", word.get(), scalar.get(), "gradcast shard");
    put(file.get(), "source", word.get(), scalar.get(), "made by a test");
    put(file.get(), "version", H5T_NATIVE_UINT64, scalar.get(), &version);
    put(file.get(), "classes", H5T_NATIVE_UINT64, scalar.get(), &classes);
    put(file.get(), "digest_samples", H5T_NATIVE_UINT64, scalar.get(), &digest_samples);
    put(file.get(), "mean", H5T_NATIVE_FLOAT, single.get(), &mean);
    put(file.get(), "std", H5T_NATIVE_FLOAT, single.get(), &std);
    const hsize_t dims[] = {count, 1, side, side};
    for (const auto& [name, rank, digest] : {std::tuple{"images", 4, &images}, {"labels", 1, &labels}}) {
        Hid space(H5Screate_simple(rank, dims, nullptr));
        Hid data(H5Dcreate2(file.get(), name, H5T_STD_U8LE, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT));
        std::string all;
        for (hsize_t i = 0; i < digests; ++i) all += *digest;
        put(data.get(), "sha256", hex.get(), list.get(), all.data());
    }
}

TEST(SystemDaemon, CancelEndsPreparing) {
    Cluster cluster(1);
    Node& a = cluster[0];
    ASSERT_NO_FATAL_FAILURE(make_long_data(cluster.folder + "/long.h5"));
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    const std::string text = job_text(cluster.folder + "/long.h5", 5);
    std::thread submission([&] { a.submit(text); });
    Json jobs;
    EXPECT_TRUE(eventually([&] {
        jobs = a.get("/v1/jobs")["jobs"];
        return jobs.size() == 1;
    }));
    const std::string id = jobs.at(0).value("id", "");
    EXPECT_EQ(a.job(id)["status"].value("state", ""), "preparing");
    a.post("/v1/jobs/" + id + "/cancel", Json::object());
    // Written when its worker has ended.
    EXPECT_TRUE(eventually([&] { return std::filesystem::exists(a.folder + "/state/jobs/" + id + "/job.json"); }, 10'000'000))
        << a.process->output();
    EXPECT_EQ(a.ended(id).state, JobState::cancelled);
    submission.join();
}

TEST(SystemDaemon, NodesOfDifferentInstructionSets) {
    if (isa_best() < Isa::avx2) GTEST_SKIP() << "this CPU has no AVX2";
    Cluster cluster(3);
    Node &a = cluster[0], &b = cluster[1], &c = cluster[2];
    const std::string data = make_data(cluster.folder + "/data.h5"), text = job_text(data, 5);
    cluster.configure(b, "isa = \"avx2\"\n");
    cluster.configure(c, "isa = \"portable\"\n");
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    Json nodes = a.get("/v1/nodes")["nodes"];
    EXPECT_EQ(nodes[0].value("isa", ""), isa_name(isa_best()));
    EXPECT_EQ(nodes[1].value("isa", ""), "avx2");
    EXPECT_EQ(nodes[2].value("isa", ""), "portable");
    auto kernel_set = [&](Node& node, const std::string& id, std::string* digest) {
        const JobStatus status = node.ended(id);
        EXPECT_EQ(status.state, JobState::done) << status.error << logs(cluster);
        *digest = status.digest;
        return status.kernel_set;
    };
    EXPECT_EQ(
        a.submit(text).value("error", ""),
        fmt::format(
            "the nodes compute with different instruction sets (a {}, b avx2, c portable): set isa = \"portable\" in gradcastd.toml of a, "
            "b and restart gradcastd there",
            isa_name(isa_best())));
    EXPECT_EQ(
        b.submit(text, {"b", "c"}).value("error", ""),
        "the nodes compute with different instruction sets (b avx2, c portable): set isa = \"portable\" in gradcastd.toml of b and restart "
        "gradcastd there");
    // Node a, which can do more than AVX2, is set as its message said, and has the bits of b.
    std::string alone, best, together;
    const std::string avx2 = kernel_set(b, b.submit(text, {"b"}).value("id", ""), &alone);
    if (isa_best() > Isa::avx2) {
        // gradcast's own kernels add in one order on AVX2 and AVX-512.
        const bool alike = isa_best() < Isa::amx;
        EXPECT_EQ(kernel_set(a, a.submit(text, {"a"}).value("id", ""), &best) == avx2, alike);
        EXPECT_EQ(best == alone, alike);
        EXPECT_TRUE(
            has(a.submit(text, {"a", "b"}).value("error", ""), "set isa = \"avx2\" in gradcastd.toml of a and restart gradcastd there"));
    }
    a.process->kill(SIGTERM);
    EXPECT_EQ(a.process->wait(), 0);
    cluster.configure(a, "isa = \"avx2\"\n");
    cluster.start(a);
    ASSERT_TRUE(a.process->ready()) << a.process->output();
    EXPECT_TRUE(eventually([&] { return a.sees() == "a b c" && b.get("/v1/nodes")["nodes"][0].value("isa", "") == "avx2"; }));
    EXPECT_EQ(kernel_set(a, a.submit(text, {"a", "b"}).value("id", ""), &together), avx2);
    EXPECT_EQ(together, alone);
}

TEST(SystemDaemon, AnMtuThatShrankSinceTheStartIsNamed) {
    std::string skip;
    std::thread([&] {   // with a network of its own, which the daemons inherit
        auto mtu = [](const char* bytes) { return std::system((std::string("ip link set lo up mtu ") + bytes).c_str()) == 0; };
        if (::unshare(CLONE_NEWNET) != 0) return (void)(skip = fmt::format("no network namespace: {} (needs root)", std::strerror(errno)));
        if (!mtu("1500")) return (void)(skip = "ip link set lo fails");
        Cluster cluster(2);
        std::string data = make_data(cluster.folder + "/data.h5"), text = job_text(data, 5);
        text.replace(text.find("ring"), 4, "multicast");
        for (Node& node : cluster.nodes) cluster.configure(node, "interface = \"lo\"\n");
        ASSERT_NO_FATAL_FAILURE(cluster.up());
        ASSERT_TRUE(mtu("1300"));
        const std::string error = cluster[0].submit(text).value("error", "");
        EXPECT_TRUE(has(error,
                        "interface lo has an MTU of 1300 now, too small for datagrams of 1432 bytes, which it took when gradcastd "
                        "started: set it back, or restart gradcastd"))
            << error;
        ASSERT_TRUE(mtu("1500"));
        const JobStatus status = cluster[0].ended(cluster[0].submit(text).value("id", ""));
        EXPECT_EQ(status.state, JobState::done) << status.error << logs(cluster);
        ASSERT_TRUE(status.datagrams.has_value());
        EXPECT_TRUE(has(datagrams_text(*status.datagrams), "on lo reaches 1 of 1 at 1432 bytes")) << datagrams_text(*status.datagrams);
    })
        .join();
    if (!skip.empty()) GTEST_SKIP() << skip;
}

// A smaller MTU on the way, of which no ICMP message comes: small packets pass.
TEST(SystemDaemon, AWayForSmallPacketsAloneIsNamed) {
    const std::string skip = in_namespace(
        lo_and({"ip link set lo mtu 1500", "nft 'add table inet t; add chain inet t c { type filter hook input priority 0; }'"}), [] {
            Cluster cluster(2);
            const std::string text = job_text(make_data(cluster.folder + "/data.h5"), 5, "j", "8s");
            ASSERT_NO_FATAL_FAILURE(cluster.up());
            auto doctor = [&](const char* check) {
                const auto reply = cluster[0].get("/v1/doctor");
                for (const auto& each : reply["checks"])
                    if (each.value("check", "") == check) return each.value("text", "");
                return std::string();
            };
            EXPECT_TRUE(has(doctor("large packets"), "pass to all nodes that answer"));
            ASSERT_EQ(std::system("nft add rule inet t c ip length '>' 1000 drop"), 0);
            const JobStatus failed = cluster[0].ended(cluster[0].submit(text).value("id", ""));
            EXPECT_TRUE(has(failed.error, "packets of 1500 bytes from 'a' do not reach it, those of ") ||
                        has(failed.error, "packets of 1500 bytes from 'b' do not reach it, those of "))
                << failed.error << logs(cluster);
            EXPECT_TRUE(has(failed.error, "at both nodes ip link set dev lo mtu M, where M is the largest for which")) << failed.error;
            const std::string found = doctor("node b");
            EXPECT_TRUE(has(found, "packets of 1500 bytes from 'a' do not reach it, those of ")) << found << logs(cluster);
            const std::string refused = cluster[0].submit(text, {"a", "b"}).value("error", "");
            EXPECT_TRUE(has(refused, "node b is not alive: peer 'b' (127.0.0.1:")) << refused;
            ASSERT_EQ(std::system("nft flush chain inet t c"), 0);
            ASSERT_TRUE(eventually([&] { return cluster[0].sees() == "a b" && cluster[1].sees() == "a b"; })) << logs(cluster);
            const JobStatus status = cluster[0].ended(cluster[0].submit(text).value("id", ""));
            EXPECT_EQ(status.state, JobState::done) << status.error << logs(cluster);
        });
    if (!skip.empty()) GTEST_SKIP() << skip;
}

// A firewall is closed while a job runs over datagrams.
TEST(SystemDaemon, AJobOutlivesUdp) {
    const std::string skip =
        in_namespace(lo_and({"nft 'add table inet t; add chain inet t c { type filter hook input priority 0; }'"}), [] {
            Cluster cluster(2);
            for (Node& node : cluster.nodes) cluster.configure(node, "interface = \"lo\"\n");
            std::string text = job_text(make_data(cluster.folder + "/data.h5"), 100'000, "j", "6s");
            text.replace(text.find("\"ring\""), 6, "\"multicast\"");
            ASSERT_NO_FATAL_FAILURE(cluster.up());
            const std::string id = cluster[0].submit(text).value("id", "");
            ASSERT_TRUE(eventually([&] { return cluster[0].step(id) > 20; })) << logs(cluster);
            ASSERT_EQ(std::system("nft add rule inet t c meta l4proto udp drop"), 0);
            std::string warnings;
            ASSERT_TRUE(eventually([&] {
                warnings = cluster[0].job(id)["status"]["warnings"].dump();
                return has(warnings, "no datagram (UDP) from interface lo reaches");
            })) << warnings
                << logs(cluster);
            const uint64_t step = cluster[0].step(id);
            EXPECT_TRUE(eventually([&] { return cluster[0].step(id) > step + 200; })) << cluster[0].job(id).dump() << logs(cluster);
            cluster[0].post("/v1/jobs/" + id + "/cancel", Json::object());
            EXPECT_EQ(cluster[0].ended(id).state, JobState::cancelled) << cluster[0].ended(id).error;
        });
    if (!skip.empty()) GTEST_SKIP() << skip;
}

TEST(SystemDaemon, ADataSetThatOneNodeLacks) {
    if (::getuid() != 0) GTEST_SKIP() << "needs root to become another user";
    Cluster cluster(2);
    std::filesystem::create_directories(cluster.folder + "/private");
    std::string data = make_data(cluster.folder + "/private/data.h5");
    ::chmod((cluster.folder + "/private").c_str(), 0700);
    ::chmod(cluster.folder.c_str(), 0755);
    Node& b = cluster[1];
    b.uid = 65534;
    std::filesystem::copy_file(cluster.folder + "/key", b.folder + "/key");
    ASSERT_EQ(::chown(b.folder.c_str(), b.uid, b.uid), 0);
    ASSERT_EQ(::chown((b.folder + "/key").c_str(), b.uid, b.uid), 0);
    cluster.configure(b, "key = \"key\"\n");
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    std::string error = cluster[0].submit(job_text(data, 5)).value("error", "");
    EXPECT_EQ(error.find("node b: "), 0u) << error;
    EXPECT_TRUE(has(error, data)) << error;
    Json alone = cluster[0].submit(job_text(data, 5), {"a"});
    EXPECT_EQ(cluster[0].ended(alone.value("id", "")).state, JobState::done) << logs(cluster);
}

TEST(SystemDaemon, AKilledMemberEndsTheJobByNameAndTheOthersGoOn) {
    Cluster cluster(3);
    std::string data = make_data(cluster.folder + "/data.h5");
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    std::string id = cluster[0].submit(job_text(data, 1'000'000, "long", "4s")).value("id", "");
    ASSERT_NE(id, "") << logs(cluster);
    ASSERT_TRUE(eventually([&] { return cluster[0].step(id) > 2 && cluster[1].step(id) > 2 && cluster[2].step(id) > 2; })) << logs(cluster);
    cluster[2].process->kill(SIGKILL);
    uint64_t killed = clock_us();
    for (uint32_t i : {0, 1}) {
        JobStatus status = cluster[i].ended(id);
        EXPECT_EQ(status.state, JobState::failed) << job_state_name(status.state);
        EXPECT_TRUE(has(status.error, "rank 2") && has(status.error, "c")) << status.error;
    }
    EXPECT_LT(clock_us() - killed, 4'000'000u) << "the deadline";
    cluster[2].process->wait();
    // The others take the next job, and with the restarted daemon the one after.
    Json next = cluster[1].submit(job_text(data, 5), {"a", "b"});
    EXPECT_EQ(cluster[1].ended(next.value("id", "")).state, JobState::done) << next.dump() << logs(cluster);
    cluster.start(cluster[2]);
    ASSERT_TRUE(cluster[2].process->ready()) << cluster[2].process->output();
    JobStatus old = cluster[2].ended(id);
    EXPECT_EQ(old.state, JobState::failed);
    EXPECT_EQ(old.error, "daemon restarted");
    ASSERT_TRUE(eventually([&] { return cluster[2].sees() == "a b c" && cluster[0].sees() == "a b c" && cluster[1].sees() == "a b c"; }))
        << logs(cluster);
    next = cluster[0].submit(job_text(data, 5));
    EXPECT_EQ(cluster[0].ended(next.value("id", "")).state, JobState::done) << next.dump() << logs(cluster);
}

TEST(SystemDaemon, LeavingTellsTheRunningJobs) {
    Cluster cluster(2);
    std::string data = make_data(cluster.folder + "/data.h5");
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    std::string id = cluster[0].submit(job_text(data, 1'000'000)).value("id", "");
    ASSERT_TRUE(eventually([&] { return cluster[1].step(id) > 2; })) << logs(cluster);
    cluster[1].process->kill(SIGTERM);
    EXPECT_EQ(cluster[1].process->wait(), 0) << cluster[1].process->output();
    JobStatus status = cluster[0].ended(id);
    EXPECT_EQ(status.state, JobState::cancelled) << logs(cluster);
    EXPECT_TRUE(has(status.error, "node b leaves (SIGTERM)")) << status.error;
}

TEST(SystemDaemon, CancelEndsItEverywhere) {
    Cluster cluster(2);
    std::string data = make_data(cluster.folder + "/data.h5");
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    std::string id = cluster[0].submit(job_text(data, 1'000'000, "endless")).value("id", "");
    ASSERT_TRUE(eventually([&] { return cluster[1].step("endless") > 2; })) << logs(cluster);
    cluster[1].post("/v1/jobs/" + id.substr(0, 6) + "/cancel", Json::object());
    for (Node& node : cluster.nodes) {
        JobStatus status = node.ended(id);
        EXPECT_EQ(status.state, JobState::cancelled) << logs(cluster);
        EXPECT_TRUE(has(status.error, "cancelled at node b")) << status.error;
    }
    Json again = cluster[0].post("/v1/jobs/endless/cancel", Json::object());
    EXPECT_TRUE(has(again.value("error", ""), "has ended already: cancelled")) << again.dump();

    // Two jobs of one name: cancel takes the active one, all else needs the id.
    const std::string second = cluster[0].submit(job_text(data, 1'000'000, "endless")).value("id", "");
    const std::string error = cluster[0].job("endless").value("error", "");
    EXPECT_TRUE(has(error, "2 jobs are named endless, name one by its id: " + second.substr(0, 8))) << error;
    EXPECT_TRUE(has(error, id.substr(0, 8) + " (cancelled)")) << error;
    EXPECT_EQ(cluster[0].post("/v1/jobs/endless/cancel", Json::object()).value("id", ""), second);
    EXPECT_EQ(cluster[0].ended(second).state, JobState::cancelled);
}

// A job's memory is returned.  GRADCAST_JOBS=1000 runs so many.  Of a stretch of jobs the least counts: malloc gives back what it has free
// now and then.
TEST(SystemDaemon, JobsLeaveNoMemoryBehind) {
    const char* wanted = std::getenv("GRADCAST_JOBS");
    const int jobs = wanted ? std::atoi(wanted) : 80, stretch = jobs / 4;
    Cluster cluster(1);
    std::string data = make_data(cluster.folder + "/data.h5");
    std::string text = job_text(data, 2);
    text.replace(text.find("\"mlp\""), 5, "\"lenet5\"");
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    auto resident_kib = [&] {
        std::string status;
        EXPECT_TRUE(file_read("/proc/" + std::to_string(cluster[0].process->pid()) + "/status", &status).ok());
        return std::stol(status.substr(status.find("VmRSS:") + 6));
    };
    auto idle = [&] {
        Json nodes;
        return eventually([&] { return cluster[0].sees(&nodes) == "a" && nodes["nodes"][0].value("jobs", 1) == 0; });
    };
    long before = LONG_MAX, after = LONG_MAX;
    for (int i = 0; i < jobs; ++i) {
        const std::string id = cluster[0].submit(text).value("id", "");
        ASSERT_EQ(cluster[0].ended(id).state, JobState::done);
        ASSERT_TRUE(idle());
        if (i >= stretch && i < 2 * stretch) before = std::min(before, resident_kib());
        if (i >= jobs - stretch) after = std::min(after, resident_kib());
        if (i % 50 == 0) RecordProperty("resident_kib_" + std::to_string(i), std::to_string(resident_kib()));
    }
    EXPECT_LT(after - before, 2 << 10) << before << " KiB in the second quarter of " << jobs << " jobs, " << after << " in the last";
    std::printf("%ld KiB in the second quarter of %d jobs, %ld KiB in the last\n", before, jobs, after);
}

// Each submission is answered at once, and the control plane answers while jobs prepare.
TEST(SystemDaemon, SlowPreparingHoldsNobodyUp) {
    Cluster cluster(2);
    std::string data = make_data(cluster.folder + "/data.h5");
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    cluster[1].process->kill(SIGSTOP);   // its READY does not come
    const uint64_t start = clock_us();
    std::vector<std::string> ids;
    for (int i = 0; i < 6; ++i)
        ids.push_back(cluster[0].post("/v1/jobs", Json(Submission{job_text(data, 5, "j", "60s"), "job.toml", "/", {}, 2})).value("id", ""));
    for (const std::string& id : ids) EXPECT_EQ(cluster[0].job(id)["status"].value("state", ""), "preparing");
    EXPECT_EQ(cluster[0].get("/v1/jobs")["jobs"].size(), 6u);
    cluster[0].post("/v1/jobs/" + ids[0] + "/cancel", Json::object());
    EXPECT_EQ(cluster[0].ended(ids[0]).state, JobState::cancelled);
    EXPECT_LT(clock_us() - start, 5'000'000u);
    // A member that is silent fails them by name.
    for (size_t i = 1; i < ids.size(); ++i) {
        const JobStatus status = cluster[0].ended(ids[i]);
        EXPECT_EQ(status.state, JobState::failed);
        EXPECT_TRUE(has(status.error, "node b was lost while the job was prepared")) << status.error;
    }
    cluster[1].process->kill(SIGCONT);
}

}   // namespace
}   // namespace gradcast
