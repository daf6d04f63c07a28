// One rank's vector to all others by multicast: n - 1 copies by mail become one.  A user of transport/bulk, so it needs datagrams; where
// there are none, mail carries the same. The n-th vector that a rank sends is for the n-th receive from it at every other rank, with the
// same size.  What nobody has posted waits at its sender, and holds up its later vectors alone.
#pragma once
#include <memory>

#include "runtime/core/protocol.h"

namespace gradcast {

/// The user of bulk, on the network thread.  segment_bytes: of bulk.  Memory: O(receives posted).
std::unique_ptr<Protocol> broadcast_protocol(Rank self, uint32_t ranks, uint32_t segment_bytes);

/// The handle, for one thread (the trainer).  Calls post a command and do not block; a Completion on the channel has the ticket as its id.
class Broadcast {
public:
    Broadcast(Host& host, uint16_t channel) : host_(host), channel_(channel) {}
    /// message, of 1 byte at least, must not change before the completion: all others have it or are lost (Code::peer_lost where one was
    /// lost meanwhile).
    void send(Buffer message, uint64_t ticket);
    void receive(Rank from, Buffer message, uint64_t ticket);

private:
    Host& host_;
    uint16_t channel_;
};

}   // namespace gradcast
