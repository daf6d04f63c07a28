// The gate of the HTTP server: one thread polls all clients, so that no client holds a thread.  A worker gets a request when all of it
// has arrived, and the gate writes the answer as fast as its client reads.
//
//     reading   until head and body have arrived          serving   a worker has it
//     writing   the answer                                watching  events are appended until the watched job ends
//     draining  the answer is written, and what the client still sends is dropped, because a closed socket would lose the answer
//
// Bounds: a request must be here within client_us, and a reader must read something in every client_us.  At connections_max, or when all
// buffers together exceed buffers_bytes_max, the connection that has waited longest for its client is closed; a request that would make
// those of the workers exceed it is dropped.  No more answers are made at a time, or wait for the gate to take them, than there are
// workers.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "runtime/core/fd.h"

namespace gradcast {

struct Answer {
    std::string bytes = {};   // of HTTP, head and body
    Fd file = {};             // of which these bytes follow; they are read only as the client takes them
    uint64_t file_offset = 0, file_bytes = 0;
    std::string watch = {};            // not empty: the stream goes on with the events of this job
    std::shared_ptr<void> seat = {};   // of a watcher; dropped with the connection
};

/// Both are called by workers, several at one time, and throw nothing.
struct GateHandler {
    std::function<Answer(const std::string& request)> serve;
    std::function<std::string(const std::string& watch, bool* last)> look;   // the newest event; *last: nothing comes after it
};

struct GateConfig {
    uint32_t workers = 4;
    uint32_t connections_max = 384;
    uint64_t head_bytes_max = 16 << 10, body_bytes_max = 0;
    uint64_t buffers_bytes_max = 64 << 20;
    uint64_t client_us = 5'000'000;
    uint64_t watch_us = 100'000;       // between two looks at a watched job
    uint64_t idle_us = 1'000'000;      // an event without content after so long without a change
    std::string head_too_large = {};   // the answer to it
};

class Gate {
public:
    virtual ~Gate() = default;   // closes all connections; waits for the workers' current requests
};
/// `listener` listens and does not block.
std::unique_ptr<Gate> gate_open(const GateConfig& config, Fd listener, GateHandler handler);

}   // namespace gradcast
