#include "transport/link/inline_pool.h"

#include "runtime/core/limits.h"

namespace gradcast {

std::byte* InlinePool::take() {
    if (free_.empty()) {
        slabs_.push_back(std::make_unique_for_overwrite<std::byte[]>(slots * inline_bytes_max));
        free_.reserve(slabs_.size() * slots);
        for (size_t i = slots; i-- > 0;) free_.push_back(slabs_.back().get() + i * inline_bytes_max);
    }
    std::byte* slot = free_.back();
    free_.pop_back();
    return slot;
}

}   // namespace gradcast
