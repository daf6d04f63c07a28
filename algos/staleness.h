// How stale the gradients were that a server has applied: a histogram of tau, with a bin for each value below 16 and one for each power of
// two from there on.
#pragma once
#include <array>
#include <bit>
#include <cstdint>

namespace gradcast {

struct StalenessBin {
    uint64_t from = 0, to = 0, pushes = 0;   // tau: both ends belong to it
    bool operator==(const StalenessBin&) const = default;
};

class Staleness {
public:
    static constexpr uint32_t exact = 16, bins = exact + 28;   // of 32 bits

    void add(uint32_t tau) { ++pushes_[tau < exact ? tau : exact - 5 + static_cast<uint32_t>(std::bit_width(tau))]; }
    StalenessBin bin(uint32_t i) const {
        if (i < exact) return {i, i, pushes_[i]};
        const uint64_t from = uint64_t{1} << (i - exact + 4);
        return {from, 2 * from - 1, pushes_[i]};
    }

private:
    std::array<uint64_t, bins> pushes_{};
};

}   // namespace gradcast
