// The checks of gradcastctl doctor: each finds what is wrong and says what to do.
#include "runtime/daemon/doctor.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "runtime/core/fd.h"

namespace gradcast {
namespace {

const Finding& of(const std::vector<Finding>& findings, const std::string& check) {
    static const Finding none;
    const auto found = std::find_if(findings.begin(), findings.end(), [&](const Finding& each) { return each.check == check; });
    EXPECT_NE(found, findings.end()) << check;
    return found == findings.end() ? none : *found;
}
bool holds(const Finding& finding, const std::string& what) { return finding.text.find(what) != std::string::npos; }

TEST(Doctor, SaysWhatCommandsMean) {
    DaemonConfig config;
    EXPECT_EQ(of(doctor_node(config), "commands").verdict, Finding::Verdict::ok);
    config.commands = true;
    config.key = "/etc/gradcast/key";
    const std::string root = testing::TempDir() + "gc-doctor-commands-" + std::to_string(::getpid());
    std::filesystem::remove_all(root);
    const auto put = [&](const std::string& path, const std::string& text) {
        std::filesystem::create_directories(std::filesystem::path(root + path).parent_path());
        ASSERT_TRUE(file_write(root + path, text).ok());
    };
    put("/proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n");
    put("/proc/self/cgroup", "0::/g\n");
    put("/sys/fs/cgroup/g/cgroup.procs", "");
    put("/sys/fs/cgroup/g/cgroup.controllers", "cpu\n");
    const Finding found = of(doctor_node(config, root), "commands");
    EXPECT_EQ(found.verdict, Finding::Verdict::warning);
    EXPECT_TRUE(holds(found, "can read the cluster key /etc/gradcast/key and do what this user may")) << found.text;
    Finding limits = of(doctor_node(config, root), "command limits");
    EXPECT_EQ(limits.verdict, Finding::Verdict::warning);
    EXPECT_TRUE(holds(limits, "(a fork bomb) is not bounded")) << limits.text;
    EXPECT_TRUE(holds(limits, "control group /g does not have the controller pids (Delegate=pids in the unit)")) << limits.text;
    EXPECT_TRUE(holds(limits,
                      "the memory of a program is looked at once a second, so one that grows fast can take all of this machine's: "
                      "control group /g does not have the controller memory (Delegate=memory in the unit)"))
        << limits.text;
    put("/sys/fs/cgroup/g/cgroup.controllers", "cpu pids\n");
    put("/sys/fs/cgroup/g/cgroup.subtree_control", "pids\n");
    limits = of(doctor_node(config, root), "command limits");
    EXPECT_EQ(limits.verdict, Finding::Verdict::warning);
    EXPECT_TRUE(holds(limits, "each program has a control group, which bounds its number of processes and ends it; but the memory of "))
        << limits.text;
    put("/sys/fs/cgroup/g/cgroup.controllers", "cpu pids memory\n");
    put("/sys/fs/cgroup/g/cgroup.subtree_control", "pids memory\n");
    limits = of(doctor_node(config, root), "command limits");
    EXPECT_EQ(limits.verdict, Finding::Verdict::ok) << limits.text;
    EXPECT_EQ(limits.text, "each program has a control group, which bounds its number of processes and memory and ends it");
}

TEST(Doctor, AKeyThatOthersMayReadIsAnError) {
    DaemonConfig config;
    config.key = testing::TempDir() + "doctor-key";
    ASSERT_TRUE(file_write(config.key, "k1 00\n", 0600).ok());
    EXPECT_EQ(of(doctor_node(config), "key").verdict, Finding::Verdict::ok);
    ASSERT_EQ(::chmod(config.key.c_str(), 0640), 0);
    const Finding found = of(doctor_node(config), "key");
    EXPECT_EQ(found.verdict, Finding::Verdict::error);
    EXPECT_TRUE(holds(found, "(mode 0640): chmod 600 " + config.key)) << found.text;
    config.key += ".not";
    EXPECT_EQ(of(doctor_node(config), "key").verdict, Finding::Verdict::error);
}

TEST(Doctor, QuotasAndLimitsAreNamed) {
    const std::string root = testing::TempDir() + "gc-doctor-" + std::to_string(::getpid());
    const auto put = [&](const std::string& path, const std::string& text) {
        ASSERT_TRUE(make_directories((root + path).substr(0, (root + path).rfind('/'))).ok());
        ASSERT_TRUE(file_write(root + path, text).ok());
    };
    DaemonConfig config;
    config.state = testing::TempDir();
    EXPECT_TRUE(holds(of(doctor_node(config, root), "CPUs"), "no quota"));
    EXPECT_TRUE(holds(of(doctor_node(config, root), "disk"), " GiB free in " + config.state));
    put("/proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n");
    put("/proc/self/cgroup", "0::/g\n");
    put("/sys/fs/cgroup/g/cpu.max", "100000 100000\n");
    put("/sys/fs/cgroup/g/pids.max", "50\n");
    put("/sys/fs/cgroup/g/pids.current", "40\n");
    EXPECT_EQ(config.lanes(root), 1u);
    EXPECT_TRUE(holds(of(doctor_node(config, root), "CPUs"), "1 lane on "));
    EXPECT_TRUE(holds(of(doctor_node(config, root), "CPUs"), "control group /g has a quota of 1.0 CPUs"));
    EXPECT_EQ(of(doctor_node(config, root), "threads").verdict, Finding::Verdict::warning);
    EXPECT_TRUE(holds(of(doctor_node(config, root), "threads"), "control group /g has room for 10 threads"));
    config.cpus = {0, 1};   // more than the quota allows
    EXPECT_EQ(of(doctor_node(config, root), "CPUs").verdict, Finding::Verdict::warning);
    EXPECT_TRUE(holds(of(doctor_node(config, root), "CPUs"), "again: list fewer in `cpus`, or raise it (cpu.max"));
    config.cpus = {0};   // one cannot become fewer
    put("/sys/fs/cgroup/g/cpu.max", "50000 100000\n");
    EXPECT_TRUE(holds(of(doctor_node(config, root), "CPUs"), "again: raise it (cpu.max"));
    rlimit limit{}, low{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    low = {64, limit.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &low);
    const Finding files = of(doctor_node(config, root), "open files");
    ::setrlimit(RLIMIT_NOFILE, &limit);
    EXPECT_EQ(files.verdict, Finding::Verdict::warning);
    EXPECT_TRUE(holds(files, " of 64 are open: LimitNOFILE=65536"));
    config.state += "/none";
    EXPECT_EQ(of(doctor_node(config, root), "disk").verdict, Finding::Verdict::error);
    std::filesystem::remove_all(root);
}

TEST(Doctor, GpusThatAreNotThereAreNamed) {
    const std::string root = testing::TempDir() + "gc-doctor-gpus-" + std::to_string(::getpid());
    DaemonConfig config;
    config.gpus = {0, 3};
    EXPECT_NE(of(doctor_node(config, root), "cuda").verdict, Finding::Verdict::error);   // how many there are is not known
    for (const char* gpu : {"0000:17:00.0", "0000:65:00.0"}) ASSERT_TRUE(make_directories(root + "/proc/driver/nvidia/gpus/" + gpu).ok());
    const Finding found = of(doctor_node(config, root), "cuda");
    EXPECT_EQ(found.verdict, Finding::Verdict::error);
    EXPECT_TRUE(holds(found, "`gpus` in gradcastd.toml names GPU 3, and this machine has 2, counted from 0")) << found.text;
    config.gpus = {1};
    EXPECT_NE(of(doctor_node(config, root), "cuda").verdict, Finding::Verdict::error);
    std::filesystem::remove_all(root);
}

TEST(Doctor, InterfaceAndDeviceAreLookedAt) {
    DaemonConfig config;
    EXPECT_EQ(of(doctor_node(config), "interface").verdict, Finding::Verdict::warning);
    config.interface = "lo";
    config.datagram_bytes = datagram_segment(1500, false);   // not that of lo
    EXPECT_TRUE(holds(of(doctor_node(config), "interface"), "restart gradcastd"));
    config.interface = "none0";
    EXPECT_EQ(of(doctor_node(config), "interface").verdict, Finding::Verdict::error);
    config.rdma = {"none0"};
    EXPECT_EQ(of(doctor_node(config), "rdma").verdict, Finding::Verdict::error);
}

TEST(Doctor, NodesThatDifferAreNamed) {
    DaemonConfig config;
    std::vector<NodeInfo> nodes(3);
    for (size_t i = 0; i < nodes.size(); ++i) {
        nodes[i].name = std::string(1, static_cast<char>('a' + i));
        nodes[i].self = i == 0;
        nodes[i].alive = true;
        nodes[i].version = "1";
        nodes[i].isa = "avx2";
    }
    DatagramsFound found;
    found.probed = true;
    found.reached = found.peers = 2;
    std::vector<PeerState> peers(3);
    for (PeerState& each : peers) each.datagram_bytes = 1432;
    std::vector<Finding> findings = doctor_cluster(config, nodes, peers, found, 0);
    EXPECT_TRUE(std::all_of(findings.begin(), findings.end(), [](const Finding& each) { return each.verdict == Finding::Verdict::ok; }));
    nodes[1].isa = "avx512";
    DaemonConfig launched;
    launched.only = "a job file";
    EXPECT_TRUE(
        holds(of(doctor_cluster(config, nodes, peers, found, 0), "instruction set"), "a job needs one: set `isa` in gradcastd.toml"));
    EXPECT_TRUE(holds(of(doctor_cluster(launched, nodes, peers, found, 0), "instruction set"), "a job needs one: set --isa"));
    EXPECT_TRUE(holds(of(doctor_cluster(launched, nodes, peers, {}, 0), "multicast"), "this node has no --interface"));
    EXPECT_TRUE(holds(of(doctor_node(launched), "interface"), "over TCP: --interface eth0"));
    nodes[1].version = "2";
    nodes[2].alive = false;
    nodes[2].why = "silent for 6 s";
    found.multicast = false;
    found.without_multicast = {"peer 'b'"};
    peers[1].datagram_bytes = 8936;
    peers[1].ahead_us = -90'000'000;
    findings = doctor_cluster(config, nodes, peers, found, 0);
    EXPECT_EQ(of(findings, "node c").verdict, Finding::Verdict::error);
    EXPECT_TRUE(holds(of(findings, "node c"), "silent for 6 s"));
    EXPECT_EQ(of(findings, "version").verdict, Finding::Verdict::error);
    EXPECT_TRUE(holds(of(findings, "version"), "a 1, b 2: install one version"));
    EXPECT_EQ(of(findings, "bytes of a datagram").verdict, Finding::Verdict::warning);
    EXPECT_EQ(of(findings, "multicast").verdict, Finding::Verdict::warning);
    EXPECT_TRUE(holds(of(findings, "multicast"), "does not reach peer 'b'"));
    EXPECT_EQ(of(findings, "clocks").verdict, Finding::Verdict::warning);
    EXPECT_TRUE(holds(of(findings, "clocks"), "b is 90 s behind this one's")) << of(findings, "clocks").text;
    EXPECT_EQ(of(findings, "large packets").verdict, Finding::Verdict::ok);
    findings = doctor_cluster(config, nodes, peers, found, 1);
    EXPECT_EQ(of(findings, "large packets").verdict, Finding::Verdict::warning);
    EXPECT_TRUE(holds(of(findings, "large packets"), "1 node did not answer a full packet within 4 s"));
    found.multicast = true;
    found.reached = 0;   // nobody is there who could be reached
    EXPECT_EQ(of(doctor_cluster(config, nodes, peers, found, 0), "multicast").verdict, Finding::Verdict::warning);
}

}   // namespace
}   // namespace gradcast
