// What carries packets for a Loop: streams (streams.h) and datagrams (datagrams.h).  All for the network thread.
#pragma once
#include <atomic>
#include <span>
#include <string>

#include "transport/kernel/proactor.h"
#include "transport/link/sink.h"

namespace gradcast {

/// For counters of one writer and any readers.
template <typename Number>
void add(std::atomic<Number>& counter, Number by) {
    counter.fetch_add(by, std::memory_order_relaxed);   // relaxed: a statistic
}

/// The part of the loop that a link calls.
struct LinkOwner : DatagramSink {
    virtual bool known(uint16_t channel, uint32_t view) = 0;   // such a packet is possible on a stream: call land()
    virtual void hold(uint32_t ticket) = 0;                    // one more done() will come
    virtual void done(uint32_t ticket, Status status) = 0;
    virtual void opened(Rank rank, bool first, uint64_t now) = 0;   // the rank's stream; first: since the start or its loss
    virtual void lost(Rank rank, const Status& why) = 0;
    virtual void unreachable(Rank rank, Status why) = 0;   // the link asks to give the rank up
    // Packets of the link's own types (link_packet()), on a stream.
    virtual void send_link_packet(Rank rank, const Send& send) = 0;
    virtual void link_packet_received(const Packet& packet) = 0;
    virtual const std::string& label(Rank rank) const = 0;
};

/// The loop calls in a turn: complete() for each Op of this link, receive(), tend(), send(), pump(); then it sleeps until due_us().
struct Link {
    virtual ~Link() = default;
    virtual void attach(uint16_t channel) = 0;   // before the first turn; to this link in particular
    virtual void open_view(uint32_t number, std::span<const uint16_t> channels) = 0;
    virtual void close_view(uint32_t number, std::span<const uint16_t> channels) = 0;   // then wait for view_drained()
    virtual bool view_drained() = 0;                                                    // holds none of the view's memory
    virtual void opened(Rank rank, uint64_t now) = 0;                                   // its stream is open
    virtual void lost(Rank rank) = 0;
    virtual void send(const Send& send, uint32_t ticket) = 0;   // ticket: done() once, and once more for each hold()
    virtual void complete(Op& op, uint64_t now) = 0;
    virtual void receive(uint64_t now) = 0;            // takes what the proactor has received
    virtual void tend(uint64_t now, bool again) = 0;   // times that are due; again: call land() again for packets that wait
    virtual void pump(uint64_t now) = 0;               // starts operations
    virtual uint64_t due_us() const = 0;               // the latest time of the next turn
    virtual bool idle() const = 0;                     // nothing remains to be sent or acknowledged
    virtual void close() = 0;                          // then wait until !busy()
    virtual bool busy() const = 0;
};

}   // namespace gradcast
