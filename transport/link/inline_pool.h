// What a Loop gives its links beside a Send: memory for small payloads, and the ticket of a Send that has none.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace gradcast {

/// Slots for copies of small payloads.  Slots do not move; memory grows to the largest number in use.
class InlinePool {
public:
    std::byte* take();
    void give(std::byte* slot) { free_.push_back(slot); }

private:
    static constexpr size_t slots = 256;   // in a slab
    std::vector<std::unique_ptr<std::byte[]>> slabs_;
    std::vector<std::byte*> free_;
};

constexpr uint32_t ticket_none = 0xffffffff;

}   // namespace gradcast
