// The gate of the HTTP server: one thread polls all clients, so that no client holds a thread.  A worker gets a request when all of it
// has arrived, and the gate writes the answer as fast as its client reads.
//
//     reading   until head and body have arrived          serving   a worker has it
//     writing   the answer                                watching  events are appended until the watched job ends
//     draining  the answer is written; the rest of a large body is received and dropped, because closing at once could lose the answer
//
// Bounds: a request must arrive within client_us, and a client must read part of its answer in every client_us.  At connections_max, or
// when all buffers together exceed buffers_bytes_max, the connection that has waited longest for its client is closed.  A request is
// dropped if the requests of the workers would exceed buffers_bytes_max with it.  The answers that are being made or wait for the gate are
// at most as many as the workers.  In TLS a client is a stranger until it has shown a key.  A stranger beyond strangers_max closes the
// oldest one, and where room is needed a stranger is closed before any client.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "runtime/control/tls.h"
#include "runtime/core/fd.h"

namespace gradcast {

struct Answer {
    std::string bytes = {};   // of HTTP, head and body
    Fd file = {};             // file_bytes of it, from file_offset on, follow `bytes`; they are read only as the client takes them
    uint64_t file_offset = 0, file_bytes = 0;
    std::string watch = {};            // not empty: the stream goes on with the events of this job
    std::shared_ptr<void> seat = {};   // the watcher's place among those that are allowed; freed with the connection
};

/// Who asks.
struct Caller {
    Role role = Role::none;
    std::string name = {}, address = {};   // of the key and of the client; "" where there is no TLS
};

/// The functions throw nothing.  Several workers call serve and look at one time.
struct GateHandler {
    std::function<Answer(const std::string& request, const Caller& caller)> serve;
    std::function<std::string(const std::string& watch, bool* last)> look;   // the newest event of that job; *last: no other follows
    std::function<void(const std::string& address, const std::string& why)> refused = {};   // TLS has failed; on the gate's thread
};

struct GateConfig {
    uint32_t workers = 4;
    uint32_t connections_max = 384;
    uint64_t head_bytes_max = 16 << 10, body_bytes_max = 0;
    uint64_t buffers_bytes_max = 64 << 20;
    uint64_t client_us = 5'000'000;
    uint64_t watch_us = 100'000;                // between two looks at a watched job
    uint64_t idle_us = 1'000'000;               // after so long without a change an empty event is sent
    std::string head_too_large = {};            // the answer to a head above head_bytes_max
    Role role = Role::none;                     // of all callers, where there is no TLS
    std::shared_ptr<const TlsKeys> keys = {};   // of the callers, each with its role; null: no TLS
    uint32_t strangers_max = 64;
    uint64_t stranger_us = 2'000'000;   // how long a client may be a stranger
};

class Gate {
public:
    virtual ~Gate() = default;   // closes all connections; waits for the workers' current requests
    /// Replaces the keys of a gate with TLS.  A connection stays if the new keys have its key with the same secret and role.  Any thread.
    virtual void keys(std::shared_ptr<const TlsKeys> keys) = 0;
};
/// `listener` listens and does not block.  Error: a thread cannot be made.
Status gate_open(const GateConfig& config, Fd listener, GateHandler handler, std::unique_ptr<Gate>* gate);

}   // namespace gradcast
