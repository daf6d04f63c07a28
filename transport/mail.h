// Tagged messages between ranks, for all that is not a gradient: barriers, evaluation counts, pipelines, servers, joiners.
// A message of up to 4 GiB - 1 travels as fragments of segment_bytes; a receive names sender and tag and gives the memory.  A message that
// comes before its receive is posted waits at the sender (Landing::later) unless it is at most mail_early_bytes, which are kept (up to
// mail_early_max of them). A waiting message holds up all that its sender sends to this rank, gradients too, so receives are posted before
// their messages are due. A tag names one message from one rank to another at a time: it may be used again when the message before it is
// known to have been received.
#pragma once
#include <memory>

#include "runtime/core/protocol.h"

namespace gradcast {

constexpr uint32_t mail_early_bytes = 1024;
constexpr uint32_t mail_early_max = 4096;

/// The Protocol half lives on the network thread.
std::unique_ptr<Protocol> mail_protocol(Rank self, uint32_t ranks, uint32_t segment_bytes);

/// The handle: any one thread (the trainer).  Each call posts a command and returns; the Completion carries `ticket` as its id on the
/// mail's channel.
class Mail {
public:
    Mail(Host& host, uint16_t channel) : host_(host), channel_(channel) {}
    void send(RankSet to, uint64_t tag, Buffer message, uint64_t ticket);     // untouched until the completion; never to oneself
    void receive(Rank from, uint64_t tag, Buffer message, uint64_t ticket);   // message.bytes must equal the size sent; else Code::conflict

private:
    Host& host_;
    uint16_t channel_;
};

}   // namespace gradcast
