// A rank's node: its properties, and a driver that runs one protocol between all ranks.
#pragma once
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "bench/comm/options.h"
#include "bench/comm/rendezvous.h"
#include "transport/link/link.h"

namespace gradcast {

/// Known to all ranks before the first measurement.
struct Bench {
    Rendezvous& rendezvous;
    BenchOptions options;                // the server's; each rank has its own places
    std::vector<nlohmann::json> nodes;   // node_facts() of each rank
    bool datagrams = false;              // every rank has an interface
    uint32_t datagram_bytes = 0;         // largest payload that fits on every node
    uint32_t rails = 1;                  // LinkConfig's
    uint64_t rate = 0;                   // of the slowest link, bit/s; 0: unknown
    bool alone = false;                  // all ranks are on this machine, so its interface counts the bytes of all
    bool first() const { return rendezvous.rank() == 0; }
};

/// CPU, kernel, and the interface that reaches this node: MTU, speed, offloads, driver.
Status node_facts(const Rendezvous& rendezvous, const std::string& interface, const std::string& rdma, nlohmann::json* facts);
/// Collective.  Error: the nodes do not match.
Status bench_agree(Bench& bench);

struct InterfaceBytes {
    uint32_t sent = 0, received = 0;   // modulo 2^32, as the kernel counts them
};
InterfaceBytes interface_bytes(const std::string& names);   // of a list, together

class Station {
public:
    explicit Station(Bench& bench) : bench_(bench) {}
    ~Station() { (void)close(); }
    /// Collective.  `protocol` gets channel 1, over datagrams or streams.
    Status open(Protocol& protocol, Buffer memory, bool datagrams);
    void post(const Event& event) { driver_->host().post(1, event); }
    /// Waits for at least one completion.  Returns early if another rank has failed.
    Status wait(std::vector<Completion>* out, uint64_t end_us);
    const LinkCounters& counters() const { return driver_->counters(); }
    uint64_t network_cpu_us() const;   // of the network thread
    std::string path() const;          // the packets' path, for people
    /// Collective, at the end.  Returns the network thread's result.
    Status leave();
    Status close();

private:
    Bench& bench_;
    std::unique_ptr<Driver> driver_;
    std::vector<std::unique_ptr<Listener>> listeners_;   // by interface
    std::thread network_;
    Status network_status_;
    bool datagrams_ = false;
};

uint64_t process_cpu_us();
double percentile(std::vector<double> values, double share);

}   // namespace gradcast
