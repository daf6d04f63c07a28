// gradcastd at the limits of its process: threads that cannot be made, and a daemon that is stopped.
#include <sys/resource.h>

#include "tests/daemon/jobs.h"

namespace gradcast {
namespace {

/// A daemon of a user that has no other process, so that RLIMIT_NPROC counts its threads alone.
void own_user(Cluster& cluster, Node& node) {
    node.uid = 100'000 + static_cast<uid_t>(::getpid());
    ::chmod(cluster.folder.c_str(), 0755);
    for (const std::string& each : {cluster.folder + "/key", node.folder, node.folder + "/gradcastd.toml"})
        ASSERT_EQ(::chown(each.c_str(), node.uid, node.uid), 0);
}

/// Its soft limit, which another process of its user may set.
void threads_limit(const Node& node, rlim_t most) {
    const pid_t child = ::fork();
    if (child == 0) {
        rlimit limit{};
        const bool done = ::setgid(node.uid) == 0 && ::setuid(node.uid) == 0 &&
                          ::prlimit(node.process->pid(), RLIMIT_NPROC, nullptr, &limit) == 0 &&
                          (limit.rlim_cur = most, ::prlimit(node.process->pid(), RLIMIT_NPROC, &limit, nullptr)) == 0;
        ::_exit(done ? 0 : 1);
    }
    int how = 0;
    ASSERT_EQ(::waitpid(child, &how, 0), child);
    ASSERT_EQ(how, 0);
}

TEST(SystemLimits, WhereNoThreadCanBeMadeTheJobIsRefused) {
    if (::getuid() != 0) GTEST_SKIP() << "needs root to become another user";
    Cluster cluster(1);
    Node& a = cluster[0];
    ASSERT_NO_FATAL_FAILURE(own_user(cluster, a));
    if (std::thread::hardware_concurrency() > 1) cluster.configure(a, "cpus = [0, 1]\n");
    const std::string data = make_data(cluster.folder + "/data.h5");
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    const auto threads = [&] { return folder_names("/proc/" + std::to_string(a.process->pid()) + "/task").size(); };
    const size_t idle = threads();
    size_t most = idle;
    for (std::string error = "none yet"; !error.empty(); ++most) {
        ASSERT_LT(most, idle + 20);
        ASSERT_NO_FATAL_FAILURE(threads_limit(a, most));
        error = a.submit(job_text(data, 2)).value("error", "");
        EXPECT_EQ(a.sees(), "a") << most - idle << " threads more\n" << a.process->output();
        const std::string wanted = "node a: cannot make a thread: this user may have " + std::to_string(most) + " threads (RLIMIT_NPROC,";
        EXPECT_TRUE(error.empty() || has(error, wanted)) << error;
        ASSERT_TRUE(eventually([&] { return threads() == idle; })) << a.process->output();
    }
    EXPECT_GT(most, idle + 5);   // worker, network, loader, two writers
}

TEST(SystemLimits, WhereNoThreadCanBeMadeItDoesNotStart) {
    if (::getuid() != 0) GTEST_SKIP() << "needs root to become another user";
    Cluster cluster(1);
    Node& a = cluster[0];
    ASSERT_NO_FATAL_FAILURE(own_user(cluster, a));
    for (rlim_t most = 1; most < 20; ++most) {
        a.process = std::make_unique<ChildProcess>();
        a.process->start({.arguments = {"--config", a.folder + "/gradcastd.toml"},
                          .log = a.folder + "/stderr",
                          .notify = a.folder + "/n",
                          .uid = a.uid,
                          .directory = a.folder,
                          .before = [most] {
                              const rlimit limit{most, most};
                              return ::setrlimit(RLIMIT_NPROC, &limit) == 0;
                          }});
        if (a.process->ready()) {
            EXPECT_GT(most, 5u);   // network, steward, listener, gate and its workers
            return;
        }
        EXPECT_EQ(a.process->wait(), 1);
        EXPECT_TRUE(has(a.process->output(), "cannot make a thread: this user may have")) << a.process->output();
    }
    ADD_FAILURE() << a.process->output();
}

TEST(SystemLimits, AStoppedOneIsNamedAtOnce) {
    Cluster cluster(1);
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    cluster[0].process->kill(SIGSTOP);
    ChildProcess client;
    client.start(
        {.arguments = {"--socket", cluster[0].socket, "nodes"}, .log = cluster.folder + "/out", .notify = "", .name = "gradcastctl"});
    EXPECT_EQ(client.wait(10'000'000), 3);
    EXPECT_TRUE(has(client.output(), "is stopped (process " + std::to_string(cluster[0].process->pid()) + ", state T): kill -CONT "))
        << client.output();
}

}   // namespace
}   // namespace gradcast
