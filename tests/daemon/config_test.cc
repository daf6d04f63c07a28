// gradcastd.toml, and the state folder: identity, records of jobs.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "runtime/core/cpu_room.h"
#include "runtime/core/fd.h"
#include "runtime/daemon/config.h"
#include "runtime/daemon/identity.h"
#include "runtime/daemon/job_run.h"

namespace gradcast {
namespace {

std::vector<std::string> mistakes_of(const std::string& text, DaemonConfig* config = nullptr) {
    DaemonConfig ignored;
    std::vector<std::string> mistakes;
    bool good = config_parse(text, "d.toml", "/base", config ? config : &ignored, &mistakes);
    EXPECT_EQ(good, mistakes.empty());
    return mistakes;
}

std::string folder(const std::string& name) {
    std::string path = ::testing::TempDir() + "gradcast-daemon-" + name + "-" + std::to_string(::getpid());
    std::filesystem::remove_all(path);
    return path;
}

TEST(DaemonConfig, StartsNoCommandsByItself) {
    DaemonConfig config;
    ASSERT_EQ(mistakes_of("name = \"a\"\n", &config), std::vector<std::string>());
    EXPECT_FALSE(config.commands);
    EXPECT_EQ(std::string_view(config.command_check().what).find("net.command: node a starts no programs of jobs: set `commands = true`"),
              0u);
    ASSERT_EQ(mistakes_of("commands = true\n", &config), std::vector<std::string>());
    EXPECT_TRUE(config.commands && config.command_check().ok());
}

TEST(DaemonConfig, ReadsBothWaysOfMembers) {
    DaemonConfig config;
    ASSERT_EQ(mistakes_of(R"(
name = "b"
members = ["c=[fd00::1]:4702", "b=10.0.0.2:4701", { name = "a", address = "node-a:4700" }]
interface = "lo"
pace = "2.5gbit"
rate = "100gbit"
key = "keys/cluster"
state = "/s"
socket = "run/s"
cpus = [0]
gpus = [0]
jobs_kept = 7
jobs_bytes = "1.5GB"
memory = "1.5GiB"
isa = "portable"
link = "epoll_tcp"
)",
                          &config),
              std::vector<std::string>());
    ASSERT_EQ(config.members.size(), 3u);
    EXPECT_EQ(config.members[0].name, "a");   // sorted, so that all daemons number them alike
    EXPECT_EQ(config.members[2].address, "[fd00::1]:4702");
    EXPECT_EQ(config.self(), 1u);
    EXPECT_EQ(config.pace, 2'500'000'000u);
    EXPECT_EQ(config.rate, 100'000'000'000u);
    EXPECT_EQ(config.listen, "10.0.0.2:4701");
    EXPECT_EQ(config.key, "/base/keys/cluster");
    EXPECT_EQ(config.state, "/s");
    EXPECT_EQ(config.socket, "/base/run/s");
    EXPECT_EQ(config.lanes(), 1u);
    EXPECT_EQ(config.gpus, std::vector<uint32_t>{0});
    EXPECT_EQ(config.jobs_kept, 7u);
    EXPECT_EQ(config.jobs_bytes, 1'500'000'000u);
    EXPECT_EQ(config.memory, 3u << 29);
    EXPECT_EQ(config.isa, Isa::portable);
    EXPECT_EQ(config.link, LinkKind::epoll_tcp);
}

TEST(DaemonConfig, OneNodeNeedsNothing) {
    DaemonConfig config;
    ASSERT_TRUE(mistakes_of("", &config).empty());
    EXPECT_EQ(config.members.size(), 1u);
    EXPECT_EQ(config.members[0].name, config.name);
    EXPECT_EQ(config.listen, "127.0.0.1:4700");
    EXPECT_EQ(config.key, "/etc/gradcast/key");
    EXPECT_EQ(config.state, "/var/lib/gradcast");
    EXPECT_EQ(config.socket, "/run/gradcast/control.sock");
    EXPECT_GE(config.lanes(), 1u);
}

TEST(DaemonConfig, MemoryIsMostOfTheMachinesByItself) {
    const std::string root = folder("memory");
    ASSERT_TRUE(make_directories(root + "/proc/self").ok() && make_directories(root + "/sys/fs/cgroup/g").ok());
    const auto put = [&](const std::string& path, const std::string& text) { ASSERT_TRUE(file_write(root + path, text).ok()); };
    DaemonConfig config;
    EXPECT_EQ(config.memory_most(root), 0u);   // nothing is known
    put("/proc/meminfo", "MemTotal: 1048576 kB\nMemAvailable: 1000 kB\n");
    EXPECT_EQ(config.memory_most(root), 960u << 20);
    put("/proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n");
    put("/proc/self/cgroup", "0::/g\n");
    put("/sys/fs/cgroup/g/memory.max", "536870912\n");
    EXPECT_EQ(config.memory_most(root), 480u << 20);
    EXPECT_NE(config.memory_setting().find(", the default of `memory` in gradcastd.toml"), std::string::npos);
    config.memory = 100;
    EXPECT_EQ(config.memory_most(root), 100u);
    EXPECT_EQ(config.memory_setting(), "`memory` in gradcastd.toml");
    std::filesystem::remove_all(root);
}

// Two daemons with all of a machine's memory would let jobs in that do not fit together.
TEST(DaemonConfig, MembersAtOneHostDivideItsMemoryItsCpusAndItsGpus) {
    const std::string root = folder("sharers");
    ASSERT_TRUE(make_directories(root + "/proc/self").ok() && make_directories(root + "/sys/fs/cgroup/g").ok());
    const auto put = [&](const std::string& path, const std::string& text) { ASSERT_TRUE(file_write(root + path, text).ok()); };
    put("/proc/meminfo", "MemTotal: 1048576 kB\nMemAvailable: 1000 kB\n");
    put("/proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n");
    put("/proc/self/cgroup", "0::/g\n");
    const std::string members = "members = [\"a=h:1\", \"b=h:2\", \"c=i:1\"]\n";
    DaemonConfig config;
    ASSERT_TRUE(mistakes_of("name = \"a\"\n" + members, &config).empty());
    EXPECT_EQ(config.sharers(), 2u);
    EXPECT_EQ(config.memory_most(root), 480u << 20);
    EXPECT_NE(config.memory_setting().find(", divided by the 2 members at this host, the default of `memory`"), std::string::npos);
    const uint32_t both = cpu_room(root).threads();
    EXPECT_EQ(config.lanes(root), std::max(1u, both / 2));
    EXPECT_TRUE(config.gpus_used(root).empty());   // none is known
    ::unsetenv("CUDA_VISIBLE_DEVICES");
    for (const char* gpu : {"1", "2", "3"}) ASSERT_TRUE(make_directories(root + "/proc/driver/nvidia/gpus/" + gpu).ok());
    EXPECT_EQ(config.gpus_used(root), (std::vector<uint32_t>{0, 2}));
    put("/sys/fs/cgroup/g/cpu.max", "100000 100000\n");   // one for both
    EXPECT_EQ(config.lanes(root), 1u);
    ASSERT_TRUE(mistakes_of("name = \"b\"\nmemory = \"700MiB\"\ncpus = [0]\n" + members, &config).empty());
    EXPECT_EQ(config.gpus_used(root), std::vector<uint32_t>{1});
    config.gpus = {2};
    EXPECT_EQ(config.gpus_used(root), std::vector<uint32_t>{2});
    EXPECT_EQ(config.memory_most(root), 700u << 20);
    EXPECT_EQ(config.lanes(root), 1u);
    ASSERT_TRUE(mistakes_of("name = \"c\"\n" + members, &config).empty());
    EXPECT_EQ(config.sharers(), 1u);
    EXPECT_TRUE(config.gpus_used(root).empty());   // all
    EXPECT_EQ(config.memory_most(root), 960u << 20);
    EXPECT_EQ(DaemonConfig().sharers(), 1u);
    std::filesystem::remove_all(root);
}

TEST(DaemonConfig, SystemdSaysWhere) {
    ::setenv("CREDENTIALS_DIRECTORY", "/run/credentials/gradcastd.service", 1);
    ::setenv("STATE_DIRECTORY", "/var/lib/other:/second", 1);
    DaemonConfig config;
    EXPECT_TRUE(mistakes_of("", &config).empty());
    ::unsetenv("CREDENTIALS_DIRECTORY");
    ::unsetenv("STATE_DIRECTORY");
    EXPECT_EQ(config.key, "/run/credentials/gradcastd.service/key");
    EXPECT_EQ(config.state, "/var/lib/other");
}

TEST(DaemonConfig, EveryMistakeHasItsLine) {
    struct Case {
        const char *text, *mistake;
    } cases[] = {
        {"name = 7", "d.toml:1: name: must be a text in quotes"},
        {"name = \"\"", "d.toml:1: name: must be a text in quotes"},
        {"name = \"a b\"", "d.toml:1: name: \"a b\" must have 1 to 64 letters"},
        {"\nlisen = \"a:1\"", "d.toml:2: unknown key \"lisen\": did you mean listen?"},
        {"quux = 1", "d.toml:1: unknown key \"quux\": one of name, members, listen"},
        {"members = \"a=x:1\"", "d.toml:1: members: must be a list"},
        {"members = []", "d.toml:1: members: the list is empty"},
        {"members = [\"a\"]", "d.toml:1: members: \"a\" is not \"name=host:port\""},
        {"members = [3]", "d.toml:1: members: a member is"},
        {"members = [{ name = \"a\" }]", "d.toml:1: members: a member lacks its address"},
        {"members = [{ name = \"a\", port = 1, address = \"h:1\" }]", "d.toml:1: members: unknown key \"port\""},
        {"members = [{ name = \"a\", address = 1 }]", "d.toml:1: members: address: must be a text in quotes"},
        {"members = [\n\"a=h:1\",\n\"a=h:2\"]", "d.toml:3: members: a is listed twice"},
        {"members = [\"a=h:1\", \"b=h:1\"]", "d.toml:1: members: a and b have the same address h:1"},
        {"members = [\"a=h\"]", "members: a: \"h\": must be \"host:port\""},
        {"members = [\"a=h:99999\"]", "the port must be a number up to 65535"},
        {"members = [\"a=h:x\"]", "the port must be a number up to 65535"},
        {"members = [\"a=::1:4700\"]", "an IPv6 address must be in brackets"},
        {"members = [\"a=[fe80::1]:1\"]", "a: \"[fe80::1]:1\": a link-local address needs its interface: \"[fe80::1%eth0]:4700\""},
        {"listen = \"[fe80::1]:1\"", "listen: \"[fe80::1]:1\": a link-local address needs its interface"},
        {"name = \"a\"\nmembers = [\"a=localhost:1\", \"b=h:1\"]",
         "d.toml:2: members: a is localhost:1, which is another machine for each that reads it, and b is not: give the address that the "
         "others reach"},
        {"name = \"d\"\nmembers = [\"a=h:1\", \"b=h:2\"]", "d.toml:1: name: \"d\" is not among the members (a, b): add it there"},
        {"members = [\"no-such-host-of-ours=h:1\"]", "the host's name, is not among the members"},
        {"listen = 4700", "d.toml:1: listen: must be a text in quotes"},
        {"listen = \"4700\"", "d.toml:1: listen: \"4700\": must be \"host:port\""},
        {"interface = [\"lo\", \"lo\"]", "d.toml:1: interface: \"lo\" is listed twice"},
        {"interface = []", "d.toml:1: interface: a list of 1 to 8 names"},
        {"interface = [7]", "d.toml:1: interface: must be a text in quotes"},
        {"interface = \"nope9\"", "d.toml:1: interface: there is no interface \"nope9\" here: one of "},
        {"commands = 1", "d.toml:1: commands: must be true or false"},
        {"control = \"4702\"", "d.toml:1: control: \"4702\": must be \"host:port\""},
        {"control = \"a:0\"", "d.toml:1: control: \"a:0\": nobody can connect to port 0"},
        {"clients = \"c\"", "d.toml:1: clients: nobody can use these keys: add control = \"host:port\""},
        {"pace = 100", "d.toml:1: pace: must be a text in quotes"},
        {"pace = \"100 MB/s\"", "d.toml:1: pace: 100 MB/s: not a rate like 100mbit or 2.5gbit"},
        {"jobs_kept = 0", "d.toml:1: jobs_kept: must be a number from 1 to 100000"},
        {"jobs_bytes = \"20 GB\"", "d.toml:1: jobs_bytes = \"20 GB\": must be a size such as \"500MB\""},
        {"jobs_bytes = \"-1GB\"", "d.toml:1: jobs_bytes"},
        {"memory = \"8\"", "d.toml:1: memory: 8: not a size like 512MiB, 8GiB or 20GB"},
        {"rate = \"fast\"", "d.toml:1: rate: fast: not a rate like 100mbit or 2.5gbit"},
        {"memory = 8", "d.toml:1: memory: must be a text in quotes"},
        {"cpus = 2", "d.toml:1: cpus: must be a list of CPU numbers"},
        {"cpus = [\"0\"]", "d.toml:1: cpus: each must be a number"},
        {"cpus = [100000]", "d.toml:1: cpus: CPU 100000 is not available"},
        {"cpus = [0, 0]", "d.toml:1: cpus: 0 is listed twice"},
        {"gpus = 0", "d.toml:1: gpus: must be a list of numbers of GPUs: [0, 1]"},
        {"gpus = []", "d.toml:1: gpus: must be a list of numbers of GPUs"},
        {"gpus = [\"0\"]", "d.toml:1: gpus: each must be a number"},
        {"gpus = [0.5]", "d.toml:1: gpus: each must be a number"},
        {"gpus = [-1]", "d.toml:1: gpus: -1 is the number of no GPU: they are counted from 0"},
        {"gpus = [4294967296]", "d.toml:1: gpus: 4294967296 is the number of no GPU"},
        {"gpus = [\n0,\n0]", "d.toml:3: gpus: 0 is listed twice"},
        {"isa = \"sse\"", "d.toml:1: isa = \"sse\": one of auto, portable, common, avx2, avx512, avx512-bf16, amx"},
        {"link = \"rdma\"", "d.toml:1: link = \"rdma\": one of auto, uring_tcp, epoll_tcp"},
        {"key = false", "d.toml:1: key: must be a text in quotes"},
        {"state = 1", "d.toml:1: state: must be a text"},
        {"name = \"a\"\nname = \"b\"", "d.toml:2: "},
        {"members = [", "d.toml:1: "},
    };
    for (const Case& each : cases) {
        std::vector<std::string> mistakes = mistakes_of(each.text);
        ASSERT_EQ(mistakes.size(), 1u) << each.text << "\n" << fmt::format("{}", fmt::join(mistakes, "\n"));
        EXPECT_NE(mistakes[0].find(each.mistake), std::string::npos) << each.text << "\n" << mistakes[0];
    }
    EXPECT_EQ(mistakes_of("socket = \"/" + std::string(120, 'x') + "\"").size(), 1u);
}

TEST(DaemonConfig, TellsAllMistakesAtOnceFromTopToBottom) {
    std::vector<std::string> mistakes =
        mistakes_of("name = \"d\"\nstat = \"/x\"\nlink = \"udp\"\ncpus = [-1]\nisa = 1\nmembers = [\"a=h:1\"]\n");
    ASSERT_EQ(mistakes.size(), 5u);   // the first is that d is not among the members
    for (size_t i = 0; i < 5; ++i) EXPECT_TRUE(mistakes[i].starts_with(fmt::format("d.toml:{}: ", i + 1))) << mistakes[i];
}

TEST(DaemonConfig, DepthIsBounded) {
    std::string parts;
    for (int i = 0; i < 500'000; ++i) parts += "a.";
    EXPECT_EQ(mistakes_of("\n" + parts + "a = 1"), std::vector<std::string>{"d.toml:2: the parts of a key go more than 16 deep"});
}

TEST(DaemonConfig, HelpNamesEveryKey) {
    for (const char* key : {"name", "members", "listen", "interface", "key", "state", "verified", "socket", "cpus", "isa", "link"})
        EXPECT_NE(config_help().find(key), std::string::npos);
}

TEST(DaemonConfig, AFileThatIsNotThere) {
    DaemonConfig config;
    Status status = config_read("/nonexistent/gradcastd.toml", &config);
    EXPECT_NE(std::string(status.what).find("/nonexistent/gradcastd.toml: No such file or directory"), std::string::npos) << status.what;
}

TEST(DaemonIdentity, StaysAndCounts) {
    std::string state = folder("identity") + "/deep/er";
    Identity first, second;
    {
        Fd lock;
        ASSERT_TRUE(identity_open(state, "a", &first, &lock).ok());
    }
    Fd lock;
    ASSERT_TRUE(identity_open(state, "a", &second, &lock).ok());
    EXPECT_EQ(first.uuid, second.uuid);
    EXPECT_GT(second.incarnation, first.incarnation);
    EXPECT_EQ(first.name, "a");
    std::array<uint8_t, 16> uuid;
    ASSERT_TRUE(uuid_parse(uuid_text(first.uuid), &uuid));
    EXPECT_EQ(uuid, first.uuid);
}

TEST(DaemonIdentity, OneDaemonAFolder) {
    std::string state = folder("lock");
    Identity identity;
    Fd held, lock;
    ASSERT_TRUE(identity_open(state, "a", &identity, &held).ok());
    uint64_t before = identity.incarnation;
    Status status = identity_open(state, "a", &identity, &lock);
    EXPECT_EQ(status.what, fmt::format("{} is used by another gradcastd (pid {}): stop it, or choose another `state`", state, ::getpid()));
    EXPECT_EQ(identity.incarnation, before);   // a refused start does not count
}

TEST(DaemonIdentity, RefusesFilesThatAreNotOurs) {
    std::string state = folder("broken");
    Identity identity;
    {
        Fd lock;
        ASSERT_TRUE(identity_open(state, "a", &identity, &lock).ok());
    }
    ASSERT_TRUE(file_write(state + "/incarnation", "many\n").ok());
    {
        Fd lock;
        EXPECT_EQ(identity_open(state, "a", &identity, &lock).code, Code::data);
    }
    for (const char* text : {"2", "x"}) {
        ASSERT_TRUE(file_write(state + "/format", text).ok());
        Fd lock;
        const Status status = identity_open(state, "a", &identity, &lock);
        EXPECT_EQ(status.code, Code::data);
        EXPECT_NE(std::string(status.what)
                      .find(*text == '2' ? state + " was last used by a newer gradcast: format 2, this one reads 1"
                                         : state + "/format is not a number"),
                  std::string::npos)
            << status.what;
    }
    ASSERT_TRUE(file_write(state + "/format", "1\n").ok());
    for (const char* text : {"x", "00000000-0000-0000-0000-00000000000g", "00000000+0000-0000-0000-000000000000"}) {
        ASSERT_TRUE(file_write(state + "/identity", text).ok());
        Fd lock;
        EXPECT_EQ(identity_open(state, "a", &identity, &lock).code, Code::data) << text;
    }
    ASSERT_TRUE(file_write(state + "-file", "").ok());
    Fd lock;
    EXPECT_FALSE(identity_open(state + "-file/x", "a", &identity, &lock).ok());
}

TEST(DaemonRecords, KeepsWhatEndedAndClearsWhatNeverStarted) {
    std::string jobs = folder("records");
    Log log;
    EXPECT_TRUE(job_records_read(jobs, log).empty());   // no folder yet
    for (uint32_t i = 0; i < 5; ++i) {
        JobDetail detail;
        detail.summary.id = fmt::format("{:032x}", i);
        detail.summary.name = "j\xff";   // not UTF-8: replaced
        detail.summary.submitted_unix = 100 - i;
        detail.summary.status.state = i == 3 ? JobState::running : JobState::done;
        detail.summary.status.digest = "abc";
        detail.folder = jobs + "/" + detail.summary.id;
        ASSERT_TRUE(make_directories(detail.folder).ok());
        ASSERT_TRUE(job_record_write(detail).ok());
    }
    std::string never = jobs + "/" + std::string(32, 'a'), broken = jobs + "/" + std::string(32, 'b'), other = jobs + "/keep-me";
    for (const std::string& path : {never, broken, other}) ASSERT_TRUE(make_directories(path).ok());
    ASSERT_TRUE(file_write(never + "/job.toml", "x").ok());
    ASSERT_TRUE(file_write(broken + "/job.json", "{\"id\": 7").ok());
    std::vector<JobDetail> details = job_records_read(jobs, log);
    ASSERT_EQ(details.size(), 5u);   // oldest first
    job_records_trim(&details, 4, 0, log);
    ASSERT_EQ(details.size(), 4u);
    EXPECT_FALSE(std::filesystem::exists(jobs + "/" + fmt::format("{:032x}", 4)));
    EXPECT_EQ(details[0].summary.submitted_unix, 97u);
    EXPECT_EQ(details[3].summary.submitted_unix, 100u);
    EXPECT_EQ(details[0].summary.status.state, JobState::failed);   // number 3
    EXPECT_EQ(details[0].summary.status.error, "daemon restarted");
    EXPECT_EQ(details[1].summary.status.digest, "abc");
    EXPECT_EQ(job_records_read(jobs, log)[0].summary.status.error, "daemon restarted");   // also in the file
    EXPECT_FALSE(std::filesystem::exists(never));
    EXPECT_TRUE(std::filesystem::exists(broken));
    EXPECT_TRUE(std::filesystem::exists(other));
    // By what their folders take: the newest stays, however large it is.
    for (const JobDetail& each : details) ASSERT_TRUE(file_write(each.folder + "/final.h5", std::string(1'000'000, 'x')).ok());
    job_records_trim(&details, 100, 2'500'000, log);
    EXPECT_EQ(details.size(), 2u);
    job_records_trim(&details, 100, 1'000, log);
    ASSERT_EQ(details.size(), 1u);
    EXPECT_EQ(details[0].summary.submitted_unix, 100u);
    EXPECT_TRUE(std::filesystem::exists(details[0].folder + "/final.h5"));
    std::filesystem::remove_all(jobs);
}

TEST(DaemonRecords, LeavesAloneWhatItCannotRead) {
    const std::string jobs = folder("unread");
    Log log;
    ASSERT_TRUE(make_directories(jobs).ok());
    ASSERT_TRUE(log.open(jobs + "/log", "").ok());
    struct {
        const char *text, *why;
    } const records[] = {
        {R"({"status": {"state": "frozen", "step": 3}})", "unknown status.state \"frozen\""},
        {"[]", "it is no JSON object"},
        {R"([{"status": {"state": "done"}}])", "it is no JSON object"},
        {"7", "it is no JSON object"},
        {"{}", "it has no status.state"},
        {R"({"status": []})", "it has no status.state"},
        {R"({"status": {"state": 1}})", "it has no status.state"},
        {R"({"status": {"state": "done", "step": "many"}})", "type must be number"},
        {"", "parse error"},
    };
    uint32_t number = 0;
    for (const auto& [text, why] : records) {
        const std::string path = jobs + fmt::format("/{:032x}", number++);
        ASSERT_TRUE(make_directories(path).ok());
        ASSERT_TRUE(file_write(path + "/job.json", text).ok());
        EXPECT_TRUE(job_records_read(jobs, log).empty()) << text;
        std::string now, said;
        ASSERT_TRUE(file_read(path + "/job.json", &now).ok() && file_read(jobs + "/log", &said).ok());
        EXPECT_EQ(now, text);
        const size_t at = said.find(path + "/job.json: ");
        ASSERT_NE(at, std::string::npos) << said;
        EXPECT_NE(said.substr(at, said.find('\n', at) - at).find(why), std::string::npos) << said;
    }
    std::filesystem::remove_all(jobs);
}

TEST(DaemonRecords, WhatNeverRanPushesNoModelOut) {
    const std::string jobs = folder("pushed");
    Log log;
    std::vector<JobDetail> details(4);
    for (uint32_t i = 0; i < 4; ++i) {
        details[i].summary.id = fmt::format("{:032x}", i);
        details[i].summary.submitted_unix = 100 + i;
        details[i].summary.status.step = i < 2 ? 50 : 0;
        details[i].folder = jobs + "/" + details[i].summary.id;
        ASSERT_TRUE(make_directories(details[i].folder).ok());
    }
    // A resume of it was refused.
    not_resumed(fail(Code::invalid, "why"), &details[0]);
    EXPECT_EQ(details[0].summary.status.error, "not resumed: why");
    job_records_trim(&details, 3, 0, log);
    ASSERT_EQ(details.size(), 3u);
    EXPECT_EQ(details[0].summary.submitted_unix, 100u);
    EXPECT_EQ(details[1].summary.submitted_unix, 101u);
    EXPECT_EQ(details[2].summary.submitted_unix, 103u);
    // No room for job.json, but for a checkpoint.
    const std::string full = jobs + "/" + std::string(32, 'c');
    ASSERT_TRUE(make_directories(full).ok());
    ASSERT_TRUE(file_write(full + "/checkpoint-0000000020.h5", "x").ok());
    EXPECT_TRUE(job_records_read(jobs, log).empty());
    EXPECT_TRUE(std::filesystem::exists(full));
    EXPECT_FALSE(std::filesystem::exists(details[0].folder));
    std::filesystem::remove_all(jobs);
}

}   // namespace
}   // namespace gradcast
