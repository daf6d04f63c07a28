// SIGHUP: gradcastd reads its file again, keeps the old one where it is wrong, and waits for jobs that run.
#include "tests/daemon/jobs.h"

namespace gradcast {
namespace {

TEST(SystemReload, TakesNewMembersAndKeys) {
    Cluster cluster(2);
    Node &a = cluster[0], &b = cluster[1];
    const std::string file = a.folder + "/gradcastd.toml";
    std::string both;
    ASSERT_TRUE(file_read(file, &both).ok());
    cluster.configure(a, "members = [\"a=127.0.0.1:" + std::to_string(a.port) + "\"]\n");
    std::string alone;
    ASSERT_TRUE(file_read(file, &alone).ok());
    alone.erase(alone.find("members = "), alone.find('\n', alone.find("members = ")) + 1 - alone.find("members = "));
    ASSERT_TRUE(file_write(file, alone).ok());
    cluster.start(a);
    cluster.start(b);
    ASSERT_TRUE(a.process->ready() && b.process->ready()) << a.process->output() << b.process->output();
    EXPECT_EQ(a.sees(), "a");

    ASSERT_TRUE(file_write(file, both + "nmae = 1\n").ok());
    a.process->kill(SIGHUP);
    ASSERT_TRUE(eventually([&] { return a.process->output().find("stays as it was: ") != std::string::npos; })) << a.process->output();
    EXPECT_EQ(a.sees(), "a");

    ASSERT_TRUE(file_write(file, both).ok());
    a.process->kill(SIGHUP);
    ASSERT_TRUE(eventually([&] { return a.sees() == "a b" && b.sees() == "a b"; })) << a.process->output() << b.process->output();

    // A level of the log: nothing of info comes any more.
    ASSERT_TRUE(file_write(file, both + "log = \"error\"\n").ok());
    auto starts = [&] {
        std::string text;
        (void)file_read(a.folder + "/state/incarnation", &text).ok();
        return std::atoi(text.c_str());
    };
    const int before = starts();
    a.process->kill(SIGHUP);
    ASSERT_TRUE(eventually([&] { return starts() == before + 1 && a.sees() == "a b"; })) << a.process->output();
    const std::string log = a.process->output();
    EXPECT_EQ(log.substr(log.rfind(" is read again")).find("control socket"), std::string::npos) << log;
    ASSERT_TRUE(file_write(file, both + "log = \"loud\"\n").ok());
    a.process->kill(SIGHUP);
    ASSERT_TRUE(eventually([&] {
        return a.process->output().find("log = \"loud\": one of debug, info, warn, error") != std::string::npos;
    })) << a.process->output();
    ASSERT_TRUE(file_write(file, both).ok());

    // A new key, at both.
    ASSERT_TRUE(file_write(cluster.folder + "/key", "k2 " + std::string(64, '7') + "\n", 0600).ok());
    a.process->kill(SIGHUP);
    ASSERT_TRUE(eventually([&] { return b.sees() == "b"; })) << b.process->output();
    b.process->kill(SIGHUP);
    ASSERT_TRUE(eventually([&] { return a.sees() == "a b" && b.sees() == "a b"; })) << a.process->output() << b.process->output();
    for (Node* each : {&a, &b}) {
        each->process->kill(SIGTERM);
        EXPECT_EQ(each->process->wait(), 0) << each->process->output();
    }
}

// A rotation: both keys, then the new one alone.  The job goes on, and streams that begin now have the new key.
TEST(SystemReload, KeysChangeWhileAJobRuns) {
    Cluster cluster(2);
    cluster.up();
    Node &a = cluster[0], &b = cluster[1];
    const std::string key = cluster.folder + "/key", data = make_data(cluster.folder + "/data.h5");
    std::string old;
    ASSERT_TRUE(file_read(key, &old).ok());
    const std::string id = a.submit(job_text(data, 1'000'000, "long")).value("id", "");
    ASSERT_TRUE(eventually([&] { return a.step(id) > 2; })) << logs(cluster);
    const std::string next = "k2 " + std::string(64, '7') + "\n";
    auto reload = [&](const std::string& keys, const std::string& line) {
        ASSERT_TRUE(file_write(key, keys, 0600).ok());
        for (Node* each : {&a, &b}) {
            each->process->kill(SIGHUP);
            ASSERT_TRUE(eventually([&] { return has(each->process->output(), line); })) << each->process->output();
        }
    };
    reload(next + old, "keys are read again: cluster keys k2, k1, 0 client keys");
    reload(next, "keys are read again: cluster key k2, 0 client keys");
    EXPECT_TRUE(has(a.process->output(), "takes effect when 1 job has ended"));
    std::string file, first;
    ASSERT_TRUE(file_read(a.folder + "/gradcastd.toml", &file).ok());
    first = file;
    ASSERT_TRUE(file_write(a.folder + "/gradcastd.toml", first.insert(first.find("\"a="), "\"0=127.0.0.1:1\", ")).ok());
    a.process->kill(SIGHUP);
    ASSERT_TRUE(eventually([&] { return has(a.process->output(), "jobs that run take no nodes in whose names do not sort behind b"); }))
        << a.process->output();
    ASSERT_TRUE(file_write(a.folder + "/gradcastd.toml", file).ok());
    a.process->kill(SIGHUP);
    const std::string second = a.submit(job_text(data, 5, "second")).value("id", "");
    EXPECT_EQ(b.ended(second).state, JobState::done) << logs(cluster);
    reload("k3 short\n", "the keys stay as they were: " + key + ":1: a key is '<id> <64 hex digits>'");
    const uint64_t step = a.step(id);
    EXPECT_TRUE(eventually([&] { return a.step(id) > step + 2; })) << logs(cluster);
    EXPECT_EQ(a.sees() + " " + b.sees(), "a b a b");

    // Whoever has the old key alone is refused.
    ASSERT_TRUE(file_write(cluster.folder + "/old", old, 0600).ok());
    b.process->kill(SIGKILL);
    b.process->wait();
    cluster.configure(b, "key = \"" + cluster.folder + "/old\"\n");
    cluster.start(b);
    ASSERT_TRUE(b.process->ready()) << b.process->output();
    ASSERT_TRUE(eventually([&] { return has(a.process->output() + b.process->output(), "the cluster keys differ"); })) << logs(cluster);
    EXPECT_EQ(b.sees(), "b");
}

}   // namespace
}   // namespace gradcast
