#include "transport/link/datagrams_found.h"

#include <fmt/format.h>

namespace gradcast {

std::string datagrams_text(const DatagramsFound& found) {
    if (!found.probed) return fmt::format("multicast {} on {}: not probed yet", found.group, found.interface);
    std::string text = fmt::format("{} on {} reaches {} of {} at {} bytes", found.multicast ? "multicast " + found.group : "unicast",
                                   found.interface, found.reached, found.peers, found.bytes);
    if (found.rate_mbit > 0) text += fmt::format(", about {} Mbit/s", found.rate_mbit);
    text += found.gso ? ", GSO" : ", no GSO";
    text += found.gro ? ", GRO" : ", no GRO";
    if (!found.multicast) text += fmt::format("; multicast {} does not reach {}", found.group, fmt::join(found.without_multicast, ", "));
    return text;
}

}   // namespace gradcast
