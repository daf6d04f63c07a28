// Who takes the packets of datagrams.
#pragma once
#include "runtime/core/protocol.h"

namespace gradcast {

/// The callbacks of DatagramReceiver, like ReceiverSink's.
struct DatagramSink {
    virtual Landing land(const Packet& packet, uint64_t bytes, Buffer* place) = 0;
    virtual void packet(const Packet& packet) = 0;   // a leased payload is in the receive buffer
};

}   // namespace gradcast
