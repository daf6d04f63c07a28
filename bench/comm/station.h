// A rank's place in the network: what the node is like, and one driver that runs one protocol between all ranks.
#pragma once
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>

#include "bench/comm/meeting.h"
#include "bench/comm/options.h"
#include "transport/link/link.h"

namespace gradcast {

/// What all ranks know before the first measurement.
struct Bench {
    Meeting& meeting;
    Options options;                     // the server's; the places are each rank's own
    std::vector<nlohmann::json> nodes;   // what each rank's node is like (node_facts), by rank
    bool datagrams = false;              // every rank has named an interface
    uint32_t datagram_bytes = 0;         // payload of one, that fits everywhere
    uint64_t rate = 0;                   // of the slowest link, bit/s; 0: not known
    bool alone = false;                  // all ranks on this machine: its interface counts everybody's bytes
    bool first() const { return meeting.rank() == 0; }
};

/// CPU, kernel, and the interface by which this node is reached: MTU, speed, offloads, driver.
Status node_facts(const Meeting& meeting, const std::string& interface, nlohmann::json* facts);
/// Collective.  Error: the nodes do not fit together.
Status bench_agree(Bench& bench);

struct InterfaceBytes {
    uint32_t sent = 0, received = 0;   // modulo 2^32, as the kernel counts them
};
InterfaceBytes interface_bytes(const std::string& name);

class Station {
public:
    explicit Station(Bench& bench) : bench_(bench) {}
    ~Station() { (void)close(); }
    /// Collective.  `protocol` takes channel 1, by datagrams or by streams.
    Status open(Protocol& protocol, Buffer memory, bool datagrams);
    void post(const Event& event) { driver_->host().post(1, event); }
    /// At least one completion.  Ends early when another rank has failed.
    Status wait(std::vector<Completion>* out, uint64_t end_us);
    const LinkCounters& counters() const { return driver_->counters(); }
    uint64_t network_cpu_us() const;   // of the network thread
    std::string path() const;          // how packets travel, for people
    /// Collective, at the end.  What the network thread ended with.
    Status leave();
    Status close();

private:
    Bench& bench_;
    std::unique_ptr<Driver> driver_;
    std::unique_ptr<Listener> listener_;
    std::thread network_;
    Status network_status_;
    bool datagrams_ = false;
};

uint64_t process_cpu_us();
double percentile(std::vector<double> values, double share);

}   // namespace gradcast
