// A reliable connection as a stream of bytes.  Messages of at most one slot go into receives that wait at the peer.  A message is gathered
// from registered memory and, for all else, a slot.  Registered bytes are read until the message is complete, later than the Op is
// returned; the peer's acknowledgement of a packet says as well that they are not needed any more.
//
// Messages are posted in chains.  Every fourth one and the last one complete here and wake the peer.
//
// Credits: a side sends a message only if it knows that a receive waits for it.  Every message returns credits, as its immediate value, for
// the messages that its sender has taken; if it has nothing to send, an empty message does once a quarter of the slots is owed.  Empty
// messages take no credit: at most slots / (slots / 4) + 1 of them can be on their way, and that many receives more are posted.
#pragma once
#include "transport/rdma/device.h"

namespace gradcast::rdma {

class Pipe;

/// The part of the proactor that a pipe calls.
struct PipeOwner {
    virtual void finished(Op& op, int32_t result) = 0;
    virtual void gone(Pipe& pipe) = 0;
};

class Pipe final : public RdmaPipe {
public:
    Pipe(const Port& port, PipeOwner& owner, uint32_t number) : port_(port), owner_(owner), number_(number) {}
    ~Pipe() override { owner_.gone(*this); }
    Status open(ibv_cq* sent, ibv_cq* received, uint32_t slot_bytes, RdmaEnd* end);
    Status connect(const RdmaEnd& peer);
    uint32_t number() const { return number_; }

    void start(Op& op);
    void cancel(Op& op);
    void complete(const ibv_wc& done);
    void stop(const char* why) { broken_ = broken_ ? broken_ : why; }
    void settle();   // after a turn's completions: moves bytes, returns credits

    bool sent() const override { return posted_ == sent_; }
    bool borrows() const override { return borrowed_ > sent_; }
    bool readable() const override { return first_ != last_; }
    const char* broken() const override { return broken_; }

    static constexpr uint32_t slots = 32, spare = 8;   // messages on their way; receives beside them

private:
    struct Arrived {
        uint32_t slot, bytes;
    };
    bool post_receive(uint32_t slot);
    struct Message;
    bool post(std::span<Message> chain);
    bool transmit();
    bool take();
    void fail_all(const char* why);

    const Port& port_;
    PipeOwner& owner_;
    const uint32_t number_;
    uint32_t slot_bytes_ = 0, first_packet_ = 0, inline_max_ = 0, parts_max_ = 1;
    Slots in_, out_;
    PairHandle pair_;
    uint32_t credits_ = 0;             // messages that the peer can take
    uint32_t owed_ = 0;                // credits to return
    uint64_t posted_ = 0, sent_ = 0;   // messages, empty ones too; each has a slot of out_
    uint64_t borrowed_ = 0;            // posted_ after the last one from registered memory
    std::vector<Arrived> arrived_;     // a ring: [first_, last_)
    uint64_t first_ = 0, last_ = 0;
    uint32_t at_ = 0;   // bytes taken of the first one
    Op *sending_ = nullptr, *receiving_ = nullptr;
    const char* broken_ = nullptr;
};

}   // namespace gradcast::rdma
