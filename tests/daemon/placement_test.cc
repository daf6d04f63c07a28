// Where a launcher has put the processes: Slurm's and MPI's variables, a list of hosts, and ranks that find each other in a folder.
#include "runtime/daemon/placement.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <set>
#include <thread>

#include "runtime/core/clock.h"
#include "runtime/core/fd.h"
#include "runtime/core/net/socket.h"
#include "tests/link/namespace.h"

namespace gradcast {
namespace {

using Variables = std::map<std::string, std::string>;

Environment environment(const Variables& variables) {
    return [&variables](const char* name) {
        const auto at = variables.find(name);
        return at == variables.end() ? nullptr : at->second.c_str();
    };
}

std::string expanded(const std::string& list) {
    std::vector<std::string> hosts;
    const Status status = hostlist_expand(list, &hosts);
    return status.ok() ? fmt::format("{}", fmt::join(hosts, " ")) : status.what;
}

TEST(LaunchedNodes, ExpandsHostlists) {
    EXPECT_EQ(expanded("n1"), "n1");
    EXPECT_EQ(expanded("n[1-3,07],login1"), "n1 n2 n3 n07 login1");
    EXPECT_EQ(expanded("rack[0-1]n[08-10]x,b"), "rack0n08x rack0n09x rack0n10x rack1n08x rack1n09x rack1n10x b");
    EXPECT_EQ(expanded("n[1-3"), "the list of nodes n[1-3 has no ']' for its '['");
    EXPECT_EQ(expanded("n[3-1]"), "the list of nodes n[3-1] has the range '3-1'");
    EXPECT_EQ(expanded("n[]"), "the list of nodes n[] has the range ''");
    EXPECT_EQ(expanded("a,,b"), "the list of nodes a,,b has an empty name");
    EXPECT_EQ(expanded("n[0-99][0-99]"), "more than 4096 nodes");
    EXPECT_EQ(expanded("n[0-4294967295]"), "more than 4096 nodes");
}

TEST(LaunchedNodes, ReadsSlurm) {
    Variables good = {{"SLURM_STEP_NODELIST", "n[1-3]"}, {"SLURM_STEP_NUM_TASKS", "3"}, {"SLURM_PROCID", "1"}, {"SLURM_NODEID", "1"},
                      {"SLURM_JOB_ID", "4711"},          {"SLURM_STEP_ID", "0"}};
    LaunchedNodes placement;
    ASSERT_TRUE(placement_slurm(environment(good), 0, &placement).ok());
    EXPECT_EQ(placement.rank, 1u);
    EXPECT_EQ(placement.id, "gradcast-4711.0");
    ASSERT_EQ(placement.nodes.size(), 3u);
    EXPECT_EQ(placement.nodes[2].name, "n3");
    const auto port = [](const NodeAddress& node) { return std::stoi(node.address.substr(node.address.find(':') + 1)); };
    EXPECT_EQ(placement.nodes[2].address.substr(0, 3), "n3:");
    EXPECT_GE(port(placement.nodes[0]), 10'000);
    EXPECT_EQ(port(placement.nodes[2]), port(placement.nodes[0]) + 2);
    ASSERT_TRUE(placement_slurm(environment(good), 5000, &placement).ok());
    EXPECT_EQ(placement.nodes[0].address, "n1:5000");

    auto wrong = [&](const char* name, const char* value) {
        Variables bad = good;
        if (value) bad[name] = value;
        else bad.erase(name);
        return std::string(placement_slurm(environment(bad), 0, &placement).what);
    };
    EXPECT_EQ(wrong("SLURM_STEP_NUM_TASKS", "2"),
              "2 tasks for 3 nodes (n[1-3]): the allocation has shrunk, or not each node has a task: srun --nodes=3 --ntasks-per-node=1");
    EXPECT_EQ(wrong("SLURM_STEP_NUM_TASKS", "6"),
              "6 tasks on 3 nodes (n[1-3]): one task a node uses all its CPUs: srun --ntasks-per-node=1");
    EXPECT_EQ(
        wrong("SLURM_STEP_NODELIST", nullptr),
        "SLURM_STEP_NODELIST is not set: start it by srun, one task a node: srun --ntasks-per-node=1 gradcastd --from-slurm job.toml");
    EXPECT_EQ(wrong("SLURM_NODEID", "x"), "SLURM_NODEID=x is not a number");
    EXPECT_EQ(wrong("SLURM_NODEID", "3"), "SLURM_NODEID=3 of 3 nodes (n[1-3])");
    EXPECT_EQ(wrong("SLURM_LOCALID", "1"), "3 tasks on 3 nodes (n[1-3]): one task a node uses all its CPUs: srun --ntasks-per-node=1");
    for (const char* each : {"SLURM_HET_SIZE", "SLURM_PACK_SIZE"})
        EXPECT_EQ(wrong(each, "2"), std::string(each) +
                                        "=2: this is a heterogeneous job, whose components have lists of nodes of their own: "
                                        "ask for all nodes by one component");
}

// Two steps of one allocation, and jobs whose numbers are 18000 apart, may run on one node at once.
TEST(LaunchedNodes, StepsOfSlurmShareNeitherFolderNorPort) {
    std::set<std::string> folders, addresses;
    const std::pair<const char*, const char*> steps[] = {{"4711", "0"}, {"4711", "1"}, {"4711", "2"}, {"22711", "0"}, {"4712", "0"}};
    for (const auto& [job, step] : steps) {
        const Variables variables = {{"SLURM_STEP_NODELIST", "n[1-2]"},
                                     {"SLURM_STEP_NUM_TASKS", "2"},
                                     {"SLURM_NODEID", "0"},
                                     {"SLURM_JOB_ID", job},
                                     {"SLURM_STEP_ID", step}};
        LaunchedNodes placement;
        ASSERT_TRUE(placement_slurm(environment(variables), 0, &placement).ok());
        folders.insert(placement.id);
        for (const NodeAddress& each : placement.nodes) addresses.insert(each.address.substr(each.address.find(':')));
    }
    EXPECT_EQ(folders.size(), std::size(steps));
    EXPECT_EQ(addresses.size(), 2 * std::size(steps));
}

// --distribution=arbitrary: neither the tasks nor the nodes are numbered as the list is.
TEST(LaunchedNodes, ATaskOfSlurmIsWhereItsNodeIs) {
    Variables variables = {{"SLURM_STEP_NODELIST", "n3,n[1-2]"},
                           {"SLURM_STEP_NUM_TASKS", "3"},
                           {"SLURM_PROCID", "0"},
                           {"SLURM_NODEID", "1"},
                           {"SLURM_JOB_ID", "1"},
                           {"SLURM_STEP_ID", "0"}};
    LaunchedNodes placement;
    ASSERT_TRUE(placement_slurm(environment(variables), 0, &placement).ok());
    EXPECT_EQ(placement.rank, 1u);
    variables["SLURMD_NODENAME"] = "n3";
    ASSERT_TRUE(placement_slurm(environment(variables), 0, &placement).ok());
    EXPECT_EQ(placement.rank, 0u);
    EXPECT_EQ(placement.nodes[placement.rank].name, "n3");
}

TEST(LaunchedNodes, ReadsHosts) {
    LaunchedNodes placement;
    ASSERT_TRUE(placement_hosts("a,b:99,[::3],[::2]:7", 1, 0, &placement).ok());
    std::string all;
    for (const NodeAddress& each : placement.nodes) all += each.name + "=" + each.address + " ";
    EXPECT_EQ(all, "a=a:4700 b=b:99 ---3-=[::3]:4702 ---2-=[::2]:7 ");
    EXPECT_EQ(placement.rank, 1u);
    ASSERT_TRUE(placement_hosts("127.0.0.1,127.0.0.1", 1, 6000, &placement).ok());
    EXPECT_EQ(placement.nodes[1].name, "127.0.0.1.1");
    EXPECT_EQ(placement.nodes[1].address, "127.0.0.1:6001");

    auto wrong = [&](const std::string& hosts, int rank) { return std::string(placement_hosts(hosts, rank, 0, &placement).what); };
    EXPECT_EQ(wrong("a:5,b,a:5", 0), "--hosts: ranks 0 and 2 both are a:5: two processes on one host need ports of their own");
    EXPECT_EQ(wrong("127.0.0.1,127.0.0.1", -1), "--hosts 127.0.0.1,127.0.0.1: ranks 0, 1 are this machine: say which one by --rank");
    EXPECT_EQ(wrong("192.0.2.1", -1), "--hosts 192.0.2.1: none of them is this machine: say which one by --rank");
    EXPECT_EQ(
        wrong("localhost,b", 0),
        "--hosts localhost,b: localhost is another machine for each that reads it, and b is not: give the name that the others reach");
    EXPECT_EQ(
        wrong("a,b:99,[::1]:7", 0),
        "--hosts a,b:99,[::1]:7: [::1]:7 is another machine for each that reads it, and a is not: give the name that the others reach");
    EXPECT_EQ(wrong("a,b", 2), "--rank 2: --hosts has 2 of them, from 0 on");
    EXPECT_EQ(wrong("a,,b", 0), "--hosts a,,b: a name is empty");
}

TEST(LaunchedNodes, ReadsMpi) {
    MpiRank mpi;
    const Variables open_mpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                                {"OMPI_COMM_WORLD_SIZE", "4"},
                                {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
    ASSERT_TRUE(mpi_rank(environment(open_mpi), &mpi).ok());
    EXPECT_EQ(fmt::format("{} {} {} {}", mpi.rank, mpi.size, mpi.local, mpi.locals), "3 4 1 2");
    const Variables hydra = {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "1"}};
    ASSERT_TRUE(mpi_rank(environment(hydra), &mpi).ok());
    EXPECT_EQ(fmt::format("{} {} {} {}", mpi.rank, mpi.size, mpi.local, mpi.locals), "0 2 0 1");
    EXPECT_STREQ(mpi_rank(environment({{"PMI_RANK", "2"}, {"PMI_SIZE", "2"}}), &mpi).what, "PMI_RANK=2 of 2 ranks (4096 at most)");
    EXPECT_EQ(std::string(mpi_rank(environment({}), &mpi).what).substr(0, 57), "neither OMPI_COMM_WORLD_RANK nor PMI_RANK is set: start i");
}

// Debian gives a host's own name 127.0.1.1 in its own /etc/hosts, and the others their addresses.
TEST(LaunchedNodes, AHostThatKnowsItsOwnNameAs127_0_1_1) {
    WITH_HOSTS("192.0.2.1 a\n127.0.1.1 b\n192.0.2.3 c\n", [] {
        LaunchedNodes placement;
        const Status status = placement_hosts("a,b,c", -1, 0, &placement);
        EXPECT_TRUE(status.ok()) << status.what;
        EXPECT_EQ(placement.rank, 1u);
        DaemonConfig config;
        std::vector<std::string> mistakes;
        const std::string members = "members = [\"a=a:4700\", \"b=b:4701\"]\n";
        ASSERT_TRUE(config_parse("name = \"b\"\n" + members, "d.toml", "/", &config, &mistakes));
        EXPECT_EQ(config.listen, address_any("4701"));
        ASSERT_TRUE(config_parse("name = \"a\"\n" + members, "d.toml", "/", &config, &mistakes));
        EXPECT_EQ(config.listen, "a:4700");
        ASSERT_TRUE(config_parse("name = \"b\"\nmembers = [\"b=b:4701\"]\n", "d.toml", "/", &config, &mistakes));
        EXPECT_EQ(config.listen, "b:4701");
    });
}

struct PlacementRendezvous : testing::Test {
    std::string folder = testing::TempDir() + "gc-meet-XXXXXX";
    void SetUp() override { ASSERT_NE(::mkdtemp(folder.data()), nullptr); }
    void TearDown() override { std::filesystem::remove_all(folder); }
    Status rendezvous(uint32_t rank, uint32_t size, LaunchedNodes* placement, uint64_t wait_us = 20'000'000) const {
        return placement_rendezvous({rank, size, rank, size}, folder, "", 0, clock_us() + wait_us, placement);
    }
};

// Twice in one folder: what the first run has written is not taken for the second's.
TEST_F(PlacementRendezvous, RanksFindEachOther) {
    std::string before;
    for (int run = 0; run < 2; ++run) {
        LaunchedNodes places[3];
        std::vector<std::thread> ranks;
        for (uint32_t rank = 3; rank-- > 0;) ranks.emplace_back([&, rank] { EXPECT_TRUE(rendezvous(rank, 3, &places[rank]).ok()); });
        for (std::thread& each : ranks) each.join();
        std::string lists[3];
        for (uint32_t rank = 0; rank < 3; ++rank) {
            EXPECT_EQ(places[rank].rank, rank);
            EXPECT_TRUE(places[rank].listener);
            for (const NodeAddress& each : places[rank].nodes) lists[rank] += each.name + "=" + each.address + " ";
        }
        EXPECT_EQ(lists[0], lists[1]);
        EXPECT_EQ(lists[0], lists[2]);
        EXPECT_NE(lists[0], before);
        EXPECT_NE(lists[0].find("=127.0.0.1:"), std::string::npos) << lists[0];
        before = lists[0];
    }
}

// Machines that were cloned have one host name.
TEST_F(PlacementRendezvous, ClonesAreToldApartByTheirAddresses) {
    LaunchedNodes places[2];
    std::string why[2];
    std::vector<std::thread> machines;
    for (uint32_t rank : {0u, 1u})
        machines.emplace_back([&, rank] {
            why[rank] = in_namespace(
                lo_and({"ip link add own type veth peer name other", "ip link set own up",
                        fmt::format("ip address add 10.77.9.{}/24 dev own", rank + 1)}),
                [&] {
                    const Status status = placement_rendezvous({rank, 2, 0, 1}, folder, "", 0, clock_us() + 20'000'000, &places[rank]);
                    EXPECT_TRUE(status.ok()) << status.what;
                });
        });
    for (std::thread& each : machines) each.join();
    for (const std::string& each : why)
        if (!each.empty()) GTEST_SKIP() << each;
    for (const LaunchedNodes& place : places) {
        ASSERT_EQ(place.nodes.size(), 2u);
        EXPECT_EQ(place.nodes[0].host(), "10.77.9.1");
        EXPECT_EQ(place.nodes[1].host(), "10.77.9.2");
        EXPECT_NE(place.nodes[0].name, place.nodes[1].name);
    }
}

TEST_F(PlacementRendezvous, SaysWhoIsMissing) {
    LaunchedNodes placement;
    const Status first = rendezvous(0, 3, &placement, 100'000);
    EXPECT_EQ(first.code, Code::deadline);
    EXPECT_EQ(std::string(first.what).find("nothing came from ranks 1, 2 in " + folder), 0u) << first.what;
    std::filesystem::remove_all(folder);
    const Status other = rendezvous(1, 3, &placement, 100'000);
    EXPECT_EQ(std::string(other.what).find("rank 0 has not written the list of ranks in " + folder), 0u) << other.what;
}

// A broken file of a rank is as none; it neither ends nor misleads the others.
TEST_F(PlacementRendezvous, TakesNoBrokenFile) {
    for (const char* text : {"", "x", "\n\n\n", "a b c d e f g"}) {
        ASSERT_TRUE(file_write(folder + "/rank-0", text).ok());
        ASSERT_TRUE(file_write(folder + "/list", text).ok());
        LaunchedNodes placement;
        EXPECT_EQ(rendezvous(1, 2, &placement, 50'000).code, Code::deadline) << text;
    }
}

}   // namespace
}   // namespace gradcast
