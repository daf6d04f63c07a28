// The result of the start-up probe of datagrams (datagrams.h).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace gradcast {

struct DatagramsFound {
    bool probed = false;
    uint32_t round = 0;      // of the probe that this is the result of
    bool multicast = true;   // false: each peer gets its own copy
    std::string group, interface;
    uint32_t bytes = 0;                // payload of a datagram
    uint32_t reached = 0, peers = 0;   // peers: without lost ones
    uint32_t rate_mbit = 0;            // of the slowest peer, approximate; 0: not known
    bool gso = false, gro = false;
    std::vector<std::string> without_multicast;   // peers that multicast does not reach
    bool operator==(const DatagramsFound&) const = default;
};
/// "multicast 239.192.1.2:4712 on eth0 reaches 7 of 7 at 1432 bytes, about 940 Mbit/s, GSO, GRO"
std::string datagrams_text(const DatagramsFound& found);

}   // namespace gradcast
