// The border to the kernel: operations are started, and complete once each.  Two backends with the same meaning, io_uring and epoll, so
// that all else about streams is written once.
//
// An Op and the memory it names belong to the caller and stay untouched from start() until wait() returns the Op, also after cancel().
// All methods but wake() are for the thread that calls wait() (the first of them may come from another thread, before any wait()).
#pragma once
#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>
#include <span>
#include <vector>

#include "runtime/core/status.h"

namespace gradcast {

struct Op {
    enum class Kind : uint8_t { connect, receive, send, send_datagrams } kind;
    bool busy = false;   // started and not yet returned
    int fd = -1;
    int32_t result = 0;                          // bytes, 0 for connect, or -errno (-ECANCELED after cancel)
    msghdr message{};                            // all but connect; a stream needs msg_iov and msg_iovlen only
    const sockaddr_storage* address = nullptr;   // connect
    socklen_t address_bytes = 0;
    void* owner = nullptr;   // the caller's
    Op* next = nullptr;      // send_datagrams: started when this one is done, whatever its result, on the same socket
};

/// What arrived on a socket at one time: a datagram, or several of `segment_bytes` (the last may be shorter) that the kernel has joined.
struct Heard {
    std::span<std::byte> bytes;
    const sockaddr_storage* from;
    uint32_t segment_bytes;   // never 0
    bool truncated;
};
/// Of each socket between two waits; more stay there.  Each has a slot of 64 KiB, and few of them stay in the cache.
constexpr size_t heard_max = 8;

struct Proactor {
    virtual ~Proactor() = default;
    /// Before the first operation on a socket; sets what its backend wants (blocking or not).
    virtual void add(int fd) = 0;
    /// Before the socket is closed; none of its operations is busy.
    virtual void remove(int fd) = 0;
    virtual void start(Op& op) = 0;
    /// The operation completes soon, with -ECANCELED unless it was done already.  A chain is cancelled operation by operation from its
    /// first.
    virtual void cancel(Op& op) = 0;
    /// Sends what was started to the kernel, then waits until an operation is done, wake() or the time-out.  Appends to *done.
    virtual Status wait(uint64_t timeout_us, std::vector<Op*>* done) = 0;
    virtual void wake() = 0;   // any thread
    /// From now on what arrives on this datagram socket (add() it first) comes in heard(), until hush().  At most two sockets.
    virtual Status hear(int fd) = 0;
    virtual void hush() = 0;   // wait() until hearing() is false, then remove() the sockets
    virtual bool hearing() const = 0;
    /// Of the last wait(); the bytes lie there until the next one.
    std::span<const Heard> heard() const { return heard_; }
    /// Nothing stayed behind in these sockets then: all that was sent before something in heard() is there too, or is lost.
    bool drained() const { return drained_; }
    virtual const char* name() const = 0;

protected:
    std::vector<Heard> heard_;
    bool drained_ = true;
};

/// Error: Code::unsupported when the kernel, a seccomp filter or a limit refuses io_uring.
Status proactor_uring(std::unique_ptr<Proactor>* proactor);
Status proactor_epoll(std::unique_ptr<Proactor>* proactor);

}   // namespace gradcast
