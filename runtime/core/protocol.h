// A protocol is a state machine without socket, clock or thread: events in, actions out.  A driver (transport/link) feeds it from a real
// network, the simulator (transport/link/sim) from a virtual one, and both behave alike:
//
//  * on() is called on the network thread with a batch of events; the driver executes the actions after it returns.
//  * A payload that arrives is put where land() says, then its tag is checked, then the packet comes as an event.  A datagram's tag is
//    checked where it was received, before a byte of it is put anywhere: nobody without the key can overwrite what has arrived already.
//  * A payload that is sent belongs to the link until the event `sent` with its ticket; one of at most inline_bytes_max is copied at once.
//    Between two ranks packets of one channel arrive in order and exactly once on a stream link; datagram links may lose, double and
//    reorder.  What wants a packet exactly once there goes through transport/bulk.
//  * A Send of words or record may be longer than the link's segment: it is cut into packets of segment bytes, the last one shorter, whose
//    DataBody::index counts up from that of the Send.  Its ticket is for all of them.
//  * Protocols do no arithmetic on gradients: that is a Compute action, answered by the event `computed` with its ticket.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/core/limits.h"
#include "runtime/core/status.h"
#include "runtime/core/types.h"

namespace gradcast {

/// Types of packets; the 16-byte body of each is laid out in transport/wire/packet.h.
enum class PacketType : uint8_t {
    ack = 1,        // link: packets received so far
    key = 2,        // link: sender keys (datagrams)
    job = 3,        // runtime/job and membership: control messages
    record = 4,     // exchange: what goes with a sender's words of a bucket
    words = 5,      // exchange: quantised gradient or sum
    mail = 6,       // mail: a fragment of a tagged message
    parity = 7,     // bulk: a repair packet of a block of packets
    feedback = 8,   // bulk: what a receiver has had of a sender, and what it lacks
    probe = 9,      // link: a datagram that shows what gets through; on a stream, what did
};

struct Packet {
    PacketType type{};
    uint16_t channel = 0;
    Rank sender = 0;
    uint32_t view = 0;
    std::array<std::byte, 16> body{};
    Buffer payload;          // where land() wanted it, or a lease that ends when on() returns
    uint64_t sequence = 0;   // datagrams: the sender's transmission number on this channel, see Send
};

enum class Landing : uint8_t {
    place,     // the payload goes into *place, which has exactly its size
    lease,     // any memory will do (at most lease_bytes_max)
    later,     // no room now: a stream stops reading from this sender and asks again after the next events; a datagram is lost
    drop,      // not wanted (old, duplicate, out of range): read and forgotten, no event
    foreign,   // never for this rank: it is in the group that heard a datagram, not in Send::to. As drop, and nothing is kept or told of it
};

struct Event {
    enum class Kind : uint8_t {
        packet,      // packet
        sent,        // id: the ticket of a Send; its payload is free again
        timer,       // id: as given to Actions::timer
        computed,    // id: the ticket of a Compute
        ready,       // step, bucket: this rank's contribution is complete
        peer_up,     // rank: its stream is open
        peer_lost,   // rank: its stream could not be opened again in time, or its death is proven; status says which.  May come twice.
                     // Posted to any channel (Host::post) it makes the link give that rank up and tell all channels.
        view,        // view
        command,     // command and whatever goes with it: a protocol's own words, posted by its handle
    };
    Kind kind{};
    uint64_t id = 0;        // sent, computed, timer
    uint32_t command = 0;   // an enum of the protocol
    const Packet* packet = nullptr;
    const View* view = nullptr;
    StepId step = 0;
    uint32_t bucket = 0;
    Rank rank = 0;
    Status status;
    // of some commands
    RankSet to;
    uint64_t tag = 0, ticket = 0;
    Buffer buffer;
};
inline Event ready_event(StepId step, uint32_t bucket) {
    Event event;
    event.kind = Event::Kind::ready;
    event.step = step;
    event.bucket = bucket;
    return event;
}
inline Event lost_event(Rank rank, Status why) {
    Event event;
    event.kind = Event::Kind::peer_lost;
    event.rank = rank;
    event.status = why;
    return event;
}
template <typename Command>
Event command_event(Command command, StepId step = 0, uint32_t bucket = 0) {
    Event event;
    event.kind = Event::Kind::command;
    event.command = static_cast<uint32_t>(command);
    event.step = step;
    event.bucket = bucket;
    return event;
}

struct Send {
    RankSet to;   // never the sender itself
    PacketType type{};
    std::array<std::byte, 16> body{};
    Buffer payload;
    uint64_t ticket = 0;    // 0: no `sent` event is wanted (then the payload must be inline, or live as long as the view)
    uint16_t channel = 0;   // filled in by the driver, as is
    uint32_t view = 0;
    uint64_t sequence = 0;   // datagrams: 1, 2, … below 2^48, never used twice by a sender on a channel of a view (it makes the nonce)
    bool copies = false;     // datagrams to several: each gets its own, since multicast does not reach all of them
};

struct Timer {
    uint64_t id;      // setting a timer again moves it
    uint64_t at_us;   // 0 cancels it
};

/// Arithmetic on words, run by the driver: inline, on a pool or on the GPU.  Kernels: transport/code/kernels.h.
enum class Kernel : uint8_t {
    copy,              // dst = src                 bytes
    add_i32,           // dst += src                wrapping
    add_i64,           // dst += src                wrapping
    add_i32_to_i64,    // dst (i64) += src (i32)
    copy_i32_to_i64,   // dst (i64) = src (i32)
    add_i16,           // dst += src                wrapping
    sub_i16,           // dst -= src                wrapping
    sub_i32,           // dst -= src                wrapping
    sub_i64,           // dst -= src                wrapping
    combine,           // Compute::combine says what
};
/// out[o][x] = sum over i of weights[o][i] * in[i][x] mod prime, for every x < Compute::count (transport/code/field.h).  Words are 2 bytes
/// where prime is below 2^16, else 4: residues in 0 .. prime-1, or signed, where a residue above (prime-1)/2 stands for itself - prime.
/// No out overlaps an in.  Memory of the protocol, untouched until `computed`.
struct DeviceWords;   // transport/code/codec.h
struct Combine {
    uint32_t prime = 0, outs = 0, ins = 0;
    const uint32_t* weights = nullptr;   // [outs][ins], residues
    const Buffer* in = nullptr;          // [ins]
    const Buffer* out = nullptr;         // [outs]
    bool in_signed = false, out_signed = false;
    bool refused = false;            // set by the kernel: an input residue was not below prime, and the output means nothing
    DeviceWords* device = nullptr;   // where the inputs are in its memory
};
struct Compute {
    Kernel kernel{};
    Buffer dst, src;       // not for combine
    uint64_t count = 0;    // words of src; bytes for copy
    uint64_t ticket = 0;   // never 0
    Combine* combine = nullptr;
};

/// Told to the trainer of this rank (Host::wait).
struct Completion {
    uint16_t channel = 0;   // filled in by the driver
    uint64_t id = 0;        // exchange: the bucket; mail: the ticket; others: their own words
    StepId step = 0;
    const Sum* sum = nullptr;   // exchange: kept until release(step)
    Status status;
    Rank rank = 0;   // job: the rank that is lost
};

/// What a protocol wants done.  Vectors keep their capacity, so a steady state allocates nothing.
struct Actions {
    uint64_t now_us = 0;                  // the driver's clock for this batch
    const uint64_t* heard_us = nullptr;   // by rank: when its last bytes came, of whatever channel; null: the driver does not tell
    bool drained = true;                  // false: datagrams that are older than some of this batch may be yet to come, not lost
    std::vector<Send> sends;
    std::vector<Timer> timers;
    std::vector<Compute> computes;
    std::vector<Completion> completions;
    void clear() { sends.clear(), timers.clear(), computes.clear(), completions.clear(); }
};

struct Protocol {
    virtual ~Protocol() = default;
    virtual void on(std::span<const Event> events, Actions& actions) = 0;
    /// Where the payload of `packet` (whose own payload is still empty, and whose tag is not checked yet) of `bytes` shall go.
    virtual Landing land(const Packet& packet, uint64_t bytes, Buffer* place) {
        (void)packet, (void)place;
        return bytes <= lease_bytes_max ? Landing::lease : Landing::drop;
    }
};

/// A protocol's place in a view.
struct Attachment {
    uint16_t channel = 0;
    Protocol* protocol = nullptr;
    bool datagrams = false;   // its packets are datagrams, as those of transport/bulk
};

/// The machine under one rank as its trainer thread sees it: real in the daemon, simulated in transport/link/sim.
struct Host {
    virtual ~Host() = default;
    virtual uint64_t now_us() = 0;                                 // monotonic; virtual time in the simulator
    virtual void post(uint16_t channel, const Event& event) = 0;   // to the protocol on that channel; any thread, never blocks
    /// Opens view `number`, above all before it, with these protocols at this rank. They and their memory live until close_view() has
    /// returned ok, or the driver is gone. One view at most is open. Each protocol is told peer_up and peer_lost of the ranks that are.
    /// Packets of an older view are dropped, those of a newer one wait (streams) or are lost (datagrams). What is posted to a channel
    /// while its view is not open is dropped. Trainer thread; never blocks.
    virtual void open_view(uint32_t number, std::span<const Attachment> attachments) = 0;
    /// Ends the open view: its protocols hear nothing more, and what still comes for it is dropped. Blocks until the link holds nothing of
    /// its memory: what is queued on streams is copied and still sent, a payload that is arriving is waited for, datagrams that have not
    /// left are dropped. Then the view's completions that were not waited for are gone. Trainer thread.
    /// Errors: deadline (it may be called again), cancelled (the network thread has ended): the view's memory must live on.
    virtual Status close_view(uint64_t until_us) = 0;
    /// Blocks until there is at least one completion or the deadline has passed (Code::deadline).  Appends to *out.  Trainer thread only.
    virtual Status wait(std::vector<Completion>* out, uint64_t deadline_us) = 0;
    /// Time that computing took: lets virtual time pass (and packets flow) in the simulator, nothing in the daemon.
    virtual void spend(uint64_t us) { (void)us; }
};

}   // namespace gradcast
