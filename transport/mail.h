// Tagged messages between ranks, for everything but gradients: barriers, evaluation counts, pipelines, servers, joiners.
// A message has at most 4 GiB - 1 bytes and travels as fragments of segment_bytes.  A receive names sender and tag and gives the memory.
//
// A message of at most mail_early_bytes is small: it goes at once, and is kept at its receiver until its receive is posted.  Two ranks may
// have mail_room() such ones between them; more wait at their sender.  A larger message waits there until its receiver asks for it, which
// it does when the receive is posted: post receives before their messages are due, and none costs a round trip.  What waits at its sender
// holds up nothing else.  A tag names one message between two ranks at a time: reuse it only after the receiver is known to have it.
#pragma once
#include <algorithm>
#include <memory>

#include "runtime/core/protocol.h"
#include "transport/wire/packet.h"

namespace gradcast {

constexpr uint32_t mail_early_max = 4096;          // small messages that a rank keeps of all others
constexpr uint32_t mail_asked_max = 1024 * 1024;   // receives of large messages that all others may have posted with a rank
/// Small messages of one sender that its receiver keeps.
constexpr uint32_t mail_room(uint32_t ranks) { return std::max(mail_early_max / ranks, 8u); }

/// The protocol, on the network thread.  Needs a stream link.  Memory: O(messages in flight).
std::unique_ptr<Protocol> mail_protocol(Rank self, uint32_t ranks, uint32_t segment_bytes);

/// The handle, for one thread (the trainer).  Calls post a command and do not block; a Completion on the mail's channel has the ticket as
/// its id.
class Mail {
public:
    Mail(Host& host, uint16_t channel) : host_(host), channel_(channel) {}
    /// message must not change before the completion; not to self.  Completed when all of `to` have the message, or are lost.
    void send(RankSet to, uint64_t tag, Buffer message, uint64_t ticket);
    /// message.bytes must equal the size sent, else Code::conflict; but where only the size sent is above mail_early_bytes, it never comes.
    void receive(Rank from, uint64_t tag, Buffer message, uint64_t ticket);

private:
    Host& host_;
    uint16_t channel_;
};

}   // namespace gradcast
