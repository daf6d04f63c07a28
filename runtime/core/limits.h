// Every fixed limit in one place.  What a user may set stands in the job file or gradcastd.toml instead.
#pragma once
#include <cstdint>

namespace gradcast {

constexpr uint32_t ranks_max = 4096;     // members of a view
constexpr uint32_t blocks_max = 65536;   // blocks of a mini-batch
constexpr uint32_t step_slots = 3;       // steps whose sums are held: one not yet stable, the current one, one arriving early
constexpr uint32_t segment_bytes_stream = 256 * 1024;   // payload of one packet on a stream
constexpr uint32_t inline_bytes_max = 1024;             // a payload up to this size is copied by the link when it is sent
constexpr uint32_t lease_bytes_max = 64 * 1024;         // a payload without a place of its own (Landing::lease) may have at most this size

}   // namespace gradcast
