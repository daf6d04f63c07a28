// Fixed limits.  Limits that a user may set are in the job file or gradcastd.toml.
#pragma once
#include <cstdint>

namespace gradcast {

constexpr uint32_t ranks_max = 4096;     // members of a view
constexpr uint32_t blocks_max = 65536;   // blocks of a mini-batch
constexpr uint32_t step_slots = 3;       // steps whose sums are in memory: the last one (not yet stable), the current one, an early one
constexpr uint32_t segment_bytes_stream = 256 * 1024;   // payload of one packet on a stream
constexpr uint32_t inline_bytes_max = 1024;             // the link copies payloads up to this size when they are sent
constexpr uint32_t lease_bytes_max = 64 * 1024;         // largest payload for Landing::lease
constexpr uint32_t rails_max = 8;                       // connections that a peer's stream is spread over

}   // namespace gradcast
