// A stream that a listener has accepted, on its way to the driver of its job.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "runtime/core/fd.h"
#include "transport/link/link.h"
#include "transport/stream/handshake.h"

namespace gradcast {

/// The implementation of AcceptedStream; its handshake is in state `asked`.
struct Accepted final : AcceptedStream {
    Accepted() = default;
    Accepted(Accepted&&) = default;
    ~Accepted() override;   // answers `later` to a peer that has no answer yet
    Fd fd;
    std::unique_ptr<Handshake> handshake;
    std::vector<std::byte> rest;   // bytes after the Hello
    std::string address;
    uint64_t bytes_sent = 0, bytes_received = 0;
    /// Sends the reason if the socket takes it without waiting, then closes.
    void refuse(Verdict verdict, const std::string& reason);
};

}   // namespace gradcast
