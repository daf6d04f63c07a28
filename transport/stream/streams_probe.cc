// Whether large packets reach a peer, and what its connections have to repeat (streams.h, "The probe").
#include <netdb.h>
#include <netinet/tcp.h>

#include <algorithm>

#include "runtime/core/clock.h"
#include "runtime/core/net/interface.h"
#include "transport/stream/streams.h"

namespace gradcast {
namespace {

constexpr uint64_t look_every_us = 200'000;
constexpr uint8_t repeats_logged_min = 3;   // one after another: about a second

tcp_info tcp_info_of(const Rail& rail) {
    tcp_info info{};
    socklen_t bytes = sizeof info;
    (void)::getsockopt(rail.fd.get(), IPPROTO_TCP, TCP_INFO, &info, &bytes);   // zeros say nothing
    return info;
}

}   // namespace

/// Where a smaller MTU on the way drops large packets and nobody says so, the handshake passes and data does not.
void Streams::look_for_repeats(Rail& rail, uint64_t now) {
    rail.look_us = now + look_every_us;
    if (rail.pipe) return;
    const tcp_info info = tcp_info_of(rail);
    if (rail.probe > 0) {
        if (now >= rail.probe_us && info.tcpi_retransmits > 0)
            fall(rail, fail(Code::peer_lost, "{}: what is sent to it was repeated without an answer", rail.peer.label));
        return;
    }
    if (rail.repeats || info.tcpi_retransmits < repeats_logged_min) return;
    rail.repeats = true;
    const std::string text = fmt::format(
        "{}: what is sent to it was repeated {} times without an answer, in packets of up to {} bytes: if a plain ping reaches it and ping "
        "-M do -s {} does not, the MTU on the way is smaller than {}: set it on the interfaces, or sysctl net.ipv4.tcp_mtu_probing=2",
        rail.peer.label, info.tcpi_retransmits, info.tcpi_pmtu, info.tcpi_pmtu - 28, info.tcpi_pmtu);
    log_.warn("{}", text);
    if (config_.warn) config_.warn(text);
}

void Streams::probe() {
    const uint64_t now = clock_us();
    for (const auto& peer : peers_)
        if (peer && peer->up) probe(*peer, now);
}

void Streams::probe(Peer& peer, uint64_t now) {
    uint32_t segment = 0;
    for (const auto& rail : peer.rails) {
        if (rail->pipe || rail->state != Rail::State::open || rail->probe > 0) return;   // RDMA has the MTU of its device
        segment = std::max<uint32_t>(segment, tcp_info_of(*rail).tcpi_snd_mss);
    }
    const std::vector<std::byte> blank(std::clamp(segment, 1u, config_.segment_bytes));
    Send send;
    send.to.rank = peer.rank;
    send.type = PacketType::probe;
    send.view = config_.view;
    send.payload = {const_cast<std::byte*>(blank.data()), nullptr, blank.size()};   // copied at once
    for (size_t i = 0; i < peer.rails.size(); ++i) {
        const bool express = peer.express && i + 1 == peer.rails.size();
        Rail& rail = express ? *peer.express_rail() : peer.rail(&Rail::dealt_bytes);
        if (express ? !rail.sender.push(send, ticket_none) : !push(peer, send, ticket_none)) return;
        if (rail.probe == 0) add(counters_.probing, 1u);
        rail.probe = rail.sender.pushed();
        rail.probe_us = now + config_.deadline_us / probe_parts;
    }
}

void Streams::answered(Rail& rail) {
    if (std::exchange(rail.probe, 0) > 0) counters_.probing.fetch_sub(1, std::memory_order_relaxed);
    rail.tries = rail.connections = 0;
    rail.peer.small_only = {};
}

/// What to say of a stream that falls `why` before its probe was answered.  The peer is lost when that has been so often enough.
Status Streams::unanswered(Rail& rail, Status why) {
    const tcp_info info = tcp_info_of(rail);
    if (info.tcpi_retransmits == 0) return why;   // nothing was lost
    rail.tries += 1u + info.tcpi_retransmits;
    ++rail.connections;
    SocketAddress own;
    own.bytes = sizeof own.storage;
    NetworkInterface interface;
    char host[INET6_ADDRSTRLEN] = "";
    if (::getsockname(rail.fd.get(), reinterpret_cast<sockaddr*>(&own.storage), &own.bytes) != 0 ||
        ::getnameinfo(reinterpret_cast<const sockaddr*>(&own.storage), own.bytes, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0 ||
        !interface_find(host, &interface).ok())
        interface.name = "INTERFACE";
    if (rail.connections >= 2 && rail.tries >= probe_tries) {
        rail.peer.losing = true;
        ++rail.peer.narrow;
    }
    rail.peer.small_only =
        fail(Code::peer_lost,
             "{}: packets of {} bytes from '{}' do not reach it, those of {} bytes do: the MTU on the way is smaller than that of {}, and "
             "no ICMP tells: at both nodes ip link set dev {} mtu M, where M is the largest for which ping -M do -s $((M - {})) is "
             "answered, or sysctl net.ipv4.tcp_mtu_probing=2",
             rail.peer.label, info.tcpi_pmtu, config_.self.name, rail.small_bytes + info.tcpi_pmtu - info.tcpi_snd_mss, interface.name,
             interface.name, own.storage.ss_family == AF_INET6 ? 48 : 28);
    return rail.peer.small_only;
}

}   // namespace gradcast
