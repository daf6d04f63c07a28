// The checks of gradcastctl doctor: each finds what is wrong and says what to do.
#include "runtime/daemon/doctor.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>

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
    std::vector<Finding> findings = doctor_cluster(config, nodes, {1432, 1432, 1432}, found);
    EXPECT_TRUE(std::all_of(findings.begin(), findings.end(), [](const Finding& each) { return each.verdict == Finding::Verdict::ok; }));
    nodes[1].version = "2";
    nodes[2].alive = false;
    nodes[2].why = "silent for 6 s";
    found.multicast = false;
    found.without_multicast = {"peer 'b'"};
    findings = doctor_cluster(config, nodes, {1432, 8936, 0}, found);
    EXPECT_EQ(of(findings, "node c").verdict, Finding::Verdict::error);
    EXPECT_TRUE(holds(of(findings, "node c"), "silent for 6 s"));
    EXPECT_EQ(of(findings, "version").verdict, Finding::Verdict::error);
    EXPECT_TRUE(holds(of(findings, "version"), "a 1, b 2: install one version"));
    EXPECT_EQ(of(findings, "bytes of a datagram").verdict, Finding::Verdict::warning);
    EXPECT_EQ(of(findings, "multicast").verdict, Finding::Verdict::warning);
    EXPECT_TRUE(holds(of(findings, "multicast"), "does not reach peer 'b'"));
}

}   // namespace
}   // namespace gradcast
