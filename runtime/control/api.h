// What the control plane answers: /v1 and the page.  A complete request and who asks in, an answer out; the gate (gate.h) moves the bytes.
// routes.h says what there is and which role it needs.
#pragma once
#include <atomic>

#include "runtime/control/backend.h"
#include "runtime/control/gate.h"

namespace gradcast {

constexpr uint64_t body_bytes_max = (1 << 20) + 65536;   // a job file of 1 MiB and what JSON puts around it

/// How many may watch at one time, over one listener.
struct Seats {
    uint32_t max;
    std::atomic<uint32_t> taken{0};
};

class Api {
public:
    virtual ~Api() = default;
    /// Any thread.  seats: of the listener.  local: the caller is at the Unix socket, which pages of browsers may reach where ssh forwards
    /// it.
    virtual Answer serve(const std::string& request, const Caller& caller, Seats& seats, bool local) = 0;
    /// Of a watcher (GateHandler::look).
    virtual std::string look(const std::string& watch, bool* last) = 0;
};
std::unique_ptr<Api> api_open(Backend& backend, const Log& log);
/// The answer to a request whose head is too large.
std::string head_too_large();

}   // namespace gradcast
