// Work on many items by several threads whose results are taken in order, with few of them in memory.
#pragma once
#include <cstdint>
#include <functional>

#include "runtime/core/status.h"

namespace gradcast {

struct InOrder {
    uint64_t count = 0;       // items
    uint32_t threads = 1;     // that make; 1: the calling thread alone
    uint64_t bytes_max = 0;   // of all items that are being made or wait to be taken
    /// Returns the memory of an item, the same at each call; cheap.  An item above bytes_max is made while no other one is in memory.
    std::function<uint64_t(uint64_t item)> bytes;
    /// Any thread.  The slot is its own until take() has returned.
    std::function<void(uint64_t item, uint32_t slot)> make;
    /// The calling thread, item after item.  An error ends the work.
    std::function<Status(uint64_t item, uint32_t slot)> take;
};

/// Slots for results: items that are in memory at once.
uint32_t in_order_slots(uint32_t threads);

/// Makes and takes all items.  The calls of take() do not depend on the number of threads.  Blocks until every thread has ended.
/// Errors: the first of take(), after which nothing more is taken; no thread can be started.
Status in_order(const InOrder& work);

}   // namespace gradcast
