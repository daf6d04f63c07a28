#include "transport/link/link.h"

#include <algorithm>

#include "runtime/core/digest.h"

namespace gradcast {

uint32_t datagram_segment(uint32_t mtu, bool ipv6) {
    // At most a jumbo frame (lo has 65536): larger datagrams make large repair blocks.
    return (std::clamp(mtu, 1280u, 9000u) - (ipv6 ? 48 : 28) - datagram_overhead_bytes) / 8 * 8;
}
const char* link_name(LinkKind kind) { return kind == LinkKind::uring_tcp ? "uring_tcp" : "epoll_tcp"; }

std::string multicast_group(const JobId& job, uint32_t view, bool ipv6, uint16_t port) {
    uint64_t low, high;
    std::memcpy(&low, job.data(), 8);
    std::memcpy(&high, job.data() + 8, 8);
    const uint64_t hash = splitmix64(splitmix64(low + view) ^ high);
    if (ipv6) return fmt::format("[ff15::{:x}:{:x}]:{}", hash >> 16 & 0xffff, hash & 0xffff, port);
    return fmt::format("239.{}.{}.{}:{}", 192 + (hash >> 16 & 3), hash >> 8 & 0xff, hash & 0xff, port);
}

}   // namespace gradcast
