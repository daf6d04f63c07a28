// How the parameters are cut over several servers: server s, rank s, has elements first(s) .. first(s + 1) - 1.  A worker's message to or
// from server 0 has a head before the values, the others' have values alone.
#pragma once
#include "runtime/core/types.h"

namespace gradcast {

struct ServerParts {
    uint32_t servers = 1;
    uint64_t elements = 0;

    uint64_t first(uint32_t s) const { return elements * s / servers; }
    uint64_t count(uint32_t s) const { return first(s + 1) - first(s); }
    /// Returns the part of a message that server s sends or receives.  head_bytes come before all values, and belong to server 0.
    Buffer of_message(const Buffer& message, uint64_t head_bytes, uint32_t s) const {
        const uint64_t begin = s == 0 ? 0 : head_bytes + first(s) * sizeof(float);
        return message.part(begin, head_bytes + first(s + 1) * sizeof(float) - begin);
    }
};

}   // namespace gradcast
