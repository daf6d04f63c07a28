// The interface to the kernel: operations are started, and each completes once.  Two backends with the same semantics: io_uring and epoll.
//
// The caller owns an Op and its memory and must not touch them from start() until wait() returns the Op, also after cancel().  All methods
// but wake() are for the thread that calls wait(); calls before the first wait() may come from another thread.
#pragma once
#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>
#include <span>
#include <vector>

#include "runtime/core/status.h"

namespace gradcast {

struct Link;
struct RdmaPipe;

struct Op {
    enum class Kind : uint8_t { connect, receive, send, send_datagrams, poll } kind;   // poll: until fd is readable
    bool busy = false;                                                                 // started and not yet returned
    int fd = -1;
    RdmaPipe* pipe = nullptr;                    // instead of fd: receive and send (rdma.h)
    int32_t result = 0;                          // bytes, 0 for connect, or -errno (-ECANCELED after cancel)
    msghdr message{};                            // all kinds but connect; streams use msg_iov and msg_iovlen only
    const sockaddr_storage* address = nullptr;   // connect
    socklen_t address_bytes = 0;
    Link* link = nullptr;   // for the caller, like owner
    void* owner = nullptr;
    Op* next = nullptr;   // send_datagrams: the next one on this socket, started after this one whatever its result
};

/// One receive on a datagram socket: a datagram, or several of `segment_bytes` (the last may be shorter) that the kernel has joined.
struct DatagramsReceived {
    std::span<std::byte> bytes;
    const sockaddr_storage* from;
    uint32_t segment_bytes;   // never 0
    bool truncated;
};
/// Receives per socket and turn; the rest stays in the socket.  A slot has 64 KiB; more slots would not fit in the cache.
constexpr size_t receives_max = 8;

struct Proactor {
    virtual ~Proactor() = default;
    /// Before the first operation on a socket; makes it blocking or not, as the backend needs.
    virtual void add(int fd) = 0;
    /// Before the socket is closed; none of its operations is busy.
    virtual void remove(int fd) = 0;
    virtual void start(Op& op) = 0;
    /// The operation completes soon, with -ECANCELED unless it was done before.  To cancel a chain, cancel each operation, from the first.
    virtual void cancel(Op& op) = 0;
    /// Submits the started operations, then waits for a completion, wake() or the time-out.  Appends to *done.
    virtual Status wait(uint64_t timeout_us, std::vector<Op*>* done) = 0;
    virtual void wake() = 0;   // any thread
    /// Receives datagrams of this socket (add() it first) into received(), until stop_datagrams().  At most two sockets.
    virtual Status receive_datagrams(int fd) = 0;
    virtual void stop_datagrams() = 0;   // wait() until receiving() is false, then remove() the sockets
    virtual bool receiving() const = 0;
    /// The receives of the last wait(); valid until the next one.
    std::span<const DatagramsReceived> received() const { return received_; }
    /// The last wait() emptied these sockets: a datagram that was sent before one in received() is there too, or lost.
    bool drained() const { return drained_; }
    virtual const char* name() const = 0;

protected:
    std::vector<DatagramsReceived> received_;
    bool drained_ = true;
};

/// Error: Code::unsupported when the kernel, a seccomp filter or a limit refuses io_uring.
Status proactor_uring(std::unique_ptr<Proactor>* proactor);
Status proactor_epoll(std::unique_ptr<Proactor>* proactor);

}   // namespace gradcast
