// A protocol is a state machine without socket, clock or thread: events in, actions out.  A driver (transport/loop) runs it on a real
// network, the simulator (transport/sim) on a virtual one, with the same contract:
//
//  * The driver calls on() on the network thread with a batch of events and executes the actions after it returns.
//  * A payload on a stream is received where land() says, then its tag is checked, then the packet comes as an event.  A datagram's tag is
//    checked in the receive buffer, before the payload is copied: nobody without the key can overwrite a protocol's memory.
//  * The link owns a sent payload until the event Sent with its ticket; it copies payloads of at most inline_bytes_max at once.
//  * Between two ranks packets of one channel arrive exactly once on streams, and in order; but fragments of large messages are in order
//    among themselves only (LinkConfig::express).  Datagrams may be lost, doubled and reordered (transport/bulk makes them reliable).
//  * A Send of words, record or edge may be longer than the link's segment: the link cuts it into packets of segment bytes, the last one
//    shorter, with DataBody::index counting up from the Send's.  Its ticket is for all of them.
//  * Protocols do no arithmetic on gradients: that is a Compute action, whose event is Computed with its ticket.
#pragma once
#include <array>
#include <cstdint>
#include <new>
#include <span>
#include <type_traits>
#include <variant>
#include <vector>

#include "runtime/core/limits.h"
#include "runtime/core/status.h"
#include "runtime/core/types.h"

namespace gradcast {

/// Types of packets; the 16-byte body of each is laid out in transport/wire/packet.h.
enum class PacketType : uint8_t {
    ack = 1,          // link: number of packets received
    key = 2,          // link: senders' keys for datagrams
    job = 3,          // runtime/job and runtime/mesh: control messages
    record = 4,       // exchange: digests, losses and maxima of a sender's bucket
    words = 5,        // exchange: a quantised gradient or sum
    mail = 6,         // mail: a fragment of a tagged message
    parity = 7,       // bulk: a repair packet for a block of packets
    feedback = 8,     // bulk: which packets a receiver has, and which it lacks
    probe = 9,        // link: a packet that tests the path; on a stream without a payload, what came of datagrams
    mail_word = 10,   // mail: a receiver's word to the sender of messages
    datagram = 11,    // link: a sealed datagram on a stream
    edge = 12,        // edges: activations, or their gradient, of a block
    edge_word = 13,   // edges: what two ranks say about their transfers
};

struct Packet {
    PacketType type{};
    uint16_t channel = 0;
    Rank sender = 0;
    uint32_t view = 0;
    std::array<std::byte, 16> body{};
    Buffer payload;          // where land() said, or a lease that ends when on() returns
    uint64_t sequence = 0;   // datagrams: Send::sequence
};

enum class Landing : uint8_t {
    place,     // receive into *place, which has exactly the payload's size
    lease,     // into the link's memory (at most lease_bytes_max)
    later,     // no memory now: a stream stops reading from this sender and calls land() again after the next events; a datagram is lost
    drop,      // old, duplicate or out of range: skip it, without an event
    foreign,   // a multicast whose Send::to does not have this rank: drop, and keep or report nothing about it
};

/// An event for a protocol.
struct Event {
    struct Received {   // a packet, valid until on() returns
        const Packet* packet = nullptr;
    };
    struct Sent {   // the payload of the Send with this ticket is free again
        uint64_t ticket = 0;
        Status status = {};
    };
    struct TimerExpired {
        uint64_t id = 0;   // as given to Actions::timers
    };
    struct Computed {   // the Compute with this ticket is done
        uint64_t ticket = 0;
    };
    struct Ready {   // this rank's contribution to the bucket is complete
        StepId step = 0;
        uint32_t bucket = 0;
    };
    struct PeerUp {   // its stream is open
        Rank rank = 0;
        uint64_t incarnation = 0;   // of the peer; 0: not known
    };
    /// Its stream did not open again in time, or its process is dead.  May come twice.  Posted to any channel (Host::post): the link gives
    /// that rank up and delivers it to all channels.
    struct PeerLost {
        Rank rank = 0;
        Status status = {};
    };
    /// An order of a protocol's handle to the protocol: the copy of a value whose type the protocol defines.  It takes no memory and no
    /// lock.
    class Command {
    public:
        template <typename Payload>
        explicit Command(const Payload& payload) : type_(&type<Payload>) {
            static_assert(std::is_trivially_copyable_v<Payload> && sizeof(Payload) <= sizeof bytes_ &&
                          alignof(Payload) <= alignof(uint64_t));
            new (bytes_.data()) Payload(payload);
        }
        /// Null: a value of another type.
        template <typename Payload>
        const Payload* is() const {
            return type_ == &type<Payload> ? std::launder(reinterpret_cast<const Payload*>(bytes_.data())) : nullptr;
        }
        /// For a protocol that defines one type alone.
        template <typename Payload>
        const Payload& as() const {
            GC_ASSERT(is<Payload>());
            return *is<Payload>();
        }

    private:
        template <typename Payload>
        static constexpr char type = 0;   // its address tells the types apart, because there is no RTTI

        const char* type_;
        alignas(uint64_t) std::array<std::byte, 72> bytes_;   // the longest: JobCommand::End
    };

    std::variant<Received, Sent, TimerExpired, Computed, Ready, PeerUp, PeerLost, Command> what;
    template <typename What>
    const What* is() const {
        return std::get_if<What>(&what);
    }
    template <typename What>
    What* is() {
        return std::get_if<What>(&what);
    }
};
/// The event that gives `payload` to the protocol.
template <typename Payload>
Event command_event(const Payload& payload) {
    return {Event::Command(payload)};
}

struct Send {
    RankSet to;   // never the sender itself
    PacketType type{};
    std::array<std::byte, 16> body{};
    Buffer payload;
    uint64_t ticket = 0;    // 0: no event Sent; the payload must be inline, or live as long as the view
    uint16_t channel = 0;   // set by the driver, like view
    uint32_t view = 0;
    uint64_t sequence = 0;   // datagrams: 1, 2, … below 2^48; the nonce, so used once by a sender on a channel of a view
    bool copies = false;     // datagrams to several ranks: one to each, because multicast does not reach all
};

struct Timer {
    uint64_t id;      // setting a timer again moves it
    uint64_t at_us;   // 0 cancels it
};

/// Arithmetic on words, executed by the driver.  Kernels: transport/code/kernels.h.
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
    combine,           // Compute::combine
};
struct DeviceWords;   // transport/code/codec.h
/// out[o][x] = sum over i of weights[o][i] * in[i][x] mod prime, for every x < Compute::count (transport/code/field.h).  Words have 2 bytes
/// if prime < 2^16, else 4: residues in 0 .. prime-1, or signed, where a residue above (prime-1)/2 stands for itself - prime.  No out
/// overlaps an in.  The protocol owns the memory and must not touch it until Computed.
struct Combine {
    uint32_t prime = 0, outs = 0, ins = 0;
    const uint32_t* weights = nullptr;   // [outs][ins], residues
    const Buffer* in = nullptr;          // [ins]
    const Buffer* out = nullptr;         // [outs]
    bool in_signed = false, out_signed = false;
    bool refused = false;            // set by the kernel: an input residue was not below prime; the output is invalid
    DeviceWords* device = nullptr;   // not null: the inputs are in its memory
};
struct Compute {
    Kernel kernel{};
    Buffer dst, src;       // not for combine
    uint64_t count = 0;    // words of src; bytes for copy
    uint64_t ticket = 0;   // never 0
    Combine* combine = nullptr;
};

/// A notice to the trainer of this rank, or to a lane that waits in its place (Host::wait).
struct Completion {
    uint16_t channel = 0;   // set by the driver
    uint64_t id = 0;        // exchange: the bucket; mail, edges: the ticket; other protocols: their own value
    StepId step = 0;
    const Sum* sum = nullptr;   // exchange: valid until release(step)
    Status status;
    Rank rank = 0;   // job: the lost rank
};

/// The actions of a protocol.  Vectors keep their capacity: the steady state does not allocate.
struct Actions {
    uint64_t now_us = 0;                     // the driver's clock for this batch
    const uint64_t* received_us = nullptr;   // by rank: time of its last bytes on any channel; null: not known
    bool drained = true;                     // false: older datagrams than this batch's may still come: not lost
    std::vector<Send> sends;
    std::vector<Timer> timers;
    std::vector<Compute> computes;
    std::vector<Completion> completions;
    void clear() {
        sends.clear();
        timers.clear();
        computes.clear();
        completions.clear();
    }
};

struct Protocol {
    virtual ~Protocol() = default;
    virtual void on(std::span<const Event> events, Actions& actions) = 0;
    /// Where to receive the payload of `bytes`.  packet.payload is empty; on a stream its tag is not checked yet.
    virtual Landing land(const Packet& packet, uint64_t bytes, Buffer* place) {
        (void)packet;
        (void)place;
        return bytes <= lease_bytes_max ? Landing::lease : Landing::drop;
    }
};

/// A protocol's place in a view.
struct Attachment {
    uint16_t channel = 0;
    Protocol* protocol = nullptr;
    bool datagrams = false;   // its packets are datagrams, like transport/bulk's
};

/// The trainer thread's interface to its rank's driver: real in the daemon, simulated in transport/sim.
struct Host {
    virtual ~Host() = default;
    virtual uint64_t now_us() = 0;                                 // monotonic; virtual time in the simulator
    virtual void post(uint16_t channel, const Event& event) = 0;   // to the protocol on that channel; any thread, does not block
    /// Opens view `number`, larger than all before, with these protocols.  They and their memory must live until close_view() has returned
    /// ok or the driver is destroyed.  At most one view is open.  Each protocol gets PeerUp or PeerLost for the ranks that are up or
    /// lost.  Packets of an older view are dropped; those of a newer one wait (streams) or are lost (datagrams).  Events that are posted to
    /// a channel while its view is not open are dropped.  Trainer thread; does not block.
    virtual void open_view(uint32_t number, std::span<const Attachment> attachments) = 0;
    /// Ends the open view: its protocols get no more events, and its packets are dropped.  Blocks until the link holds none of the view's
    /// memory: payloads queued on streams are copied and still sent, a payload that is arriving is received, unsent datagrams are dropped.
    /// The view's unread completions are dropped.  Trainer thread.
    /// Errors, after which the view's memory must live on: deadline (call again), cancelled (the network thread has ended).
    virtual Status close_view(uint64_t until_us) = 0;
    /// Blocks until there is a completion or the deadline has passed (Code::deadline).  Appends to *out.  Trainer thread, or one lane while
    /// the trainer waits for its lanes (algos/slice_exchange.h): one thread at a time, each after the one before.
    virtual Status wait(std::vector<Completion>* out, uint64_t deadline_us) = 0;
    /// Reports computing time: the simulator lets virtual time pass; a no-op in the daemon.
    virtual void spend(uint64_t us) { (void)us; }
};

}   // namespace gradcast
