// RDMA below the loop: a Proactor that sends and receives datagrams on an unreliable queue pair (rdma_ud) and moves the bytes of streams
// over reliable connections (rdma_rc).  Everything else goes to the proactor beneath.  The implementation is transport/rdma, in
// libgradcast_rdma.so: the programs run where libibverbs is missing.
#pragma once
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/log.h"
#include "runtime/core/types.h"
#include "transport/kernel/proactor.h"

namespace gradcast {

struct DatagramConfig;
struct DatagramSockets;

/// One end of a reliable connection, as in the Hello of its stream.
struct RdmaEnd {
    uint32_t queue = 0;                   // number of the queue pair; 0: none, the stream stays on TCP
    uint32_t first = 0;                   // number of the first packet
    uint32_t slots = 0, slot_bytes = 0;   // the receives that wait
    uint16_t lid = 0;                     // InfiniBand
    uint8_t mtu = 0;                      // ibv_mtu: 1 (256 bytes) to 5 (4096)
    uint8_t device = 0;                   // number in RdmaConfig::devices
    std::array<uint8_t, 16> gid{};
    bool operator==(const RdmaEnd&) const = default;
};

/// A reliable connection.  An Op with it is done on it instead of on a socket; none is busy when it is destroyed.
struct RdmaPipe {
    virtual ~RdmaPipe() = default;
    virtual bool sent() const = 0;            // the peer's device has all that was sent
    virtual bool borrows() const = 0;         // the device may still read registered memory of an Op that has been returned
    virtual bool readable() const = 0;        // bytes have come that no Op has taken
    virtual const char* broken() const = 0;   // why it does not work any more; null: it does
};

struct RdmaDevice {
    std::string name;   // "mlx5_0"
    uint32_t port = 1;
    std::string interface;   // its network interface; "": none
    std::string state;       // "active", "down", …
    bool active = false, infiniband = false;
    uint32_t mtu = 0;   // bytes of a datagram
    std::array<uint8_t, 16> gid{};
    uint32_t gid_index = 0;
};

class Rdma : public Proactor {
public:
    virtual uint32_t devices() const = 0;
    virtual const RdmaDevice& device(uint32_t number) const = 0;
    /// A pipe whose receives wait, and its end.
    virtual Status pipe_open(uint32_t device, std::unique_ptr<RdmaPipe>* pipe, RdmaEnd* end) = 0;
    virtual Status pipe_connect(RdmaPipe& pipe, const RdmaEnd& peer) = 0;
    /// Pipes send what lies in `whole` from there; everything else is copied.  Before the first wait(); until the end.  All devices.
    virtual Status register_memory(Buffer whole) = 0;
    /// Joins the group with the first device; then send_datagrams goes by RDMA.  Addresses are IPv6 ones: the GID, the queue
    /// pair as flow label, the LID as scope.
    virtual Status datagrams_open(const DatagramConfig& config, DatagramSockets* sockets) = 0;
};

/// The largest payload of a datagram on such a device.
constexpr uint32_t rdma_segment(uint32_t mtu) { return (mtu - 40) / 8 * 8; }

/// The functions that libgradcast_rdma.so offers.
struct RdmaModule {
    const char* version;
    Status (*devices)(std::vector<RdmaDevice>* found);
    /// wanted: a device ("mlx5_0"), a port of it ("mlx5_0:2"), its interface ("eth0") or one of its addresses; "": the only one that is
    /// active.
    Status (*find)(const std::string& wanted, RdmaDevice* found);
    /// streams: how many are open at a time.
    Status (*open)(const std::vector<std::string>& wanted, uint32_t streams, const Log& log, std::unique_ptr<Proactor> beneath,
                   std::unique_ptr<Rdma>* rdma);
};
/// Error: Code::unsupported if the library, or one that it needs, is missing.
Status rdma_module(const RdmaModule** module);

}   // namespace gradcast
