// Tagged messages between ranks, for everything but gradients: barriers, evaluation counts, pipelines, servers, joiners.
// A message has at most 4 GiB - 1 bytes and travels as fragments of segment_bytes.  A receive names sender and tag and gives the memory.
// A message that arrives before its receive is posted is kept if it has at most mail_early_bytes (up to mail_early_max messages), else it
// stays at the sender (Landing::later).  There it blocks everything its sender sends to this rank, gradients too: post receives before
// their messages are due.  A tag names one message between two ranks at a time: reuse it only after the receiver is known to have it.
#pragma once
#include <memory>

#include "runtime/core/protocol.h"

namespace gradcast {

constexpr uint32_t mail_early_bytes = 1024;
constexpr uint32_t mail_early_max = 4096;

/// The protocol, on the network thread.  Needs a stream link.  Memory: O(messages in flight).
std::unique_ptr<Protocol> mail_protocol(Rank self, uint32_t ranks, uint32_t segment_bytes);

/// The handle, for one thread (the trainer).  Calls post a command and do not block; a Completion on the mail's channel has the ticket as
/// its id.
class Mail {
public:
    Mail(Host& host, uint16_t channel) : host_(host), channel_(channel) {}
    void send(RankSet to, uint64_t tag, Buffer message, uint64_t ticket);     // message must not change before the completion; not to self
    void receive(Rank from, uint64_t tag, Buffer message, uint64_t ticket);   // message.bytes must equal the size sent; else Code::conflict

private:
    Host& host_;
    uint16_t channel_;
};

}   // namespace gradcast
