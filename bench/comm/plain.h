// Plain TCP sockets round a ring of all ranks: what the bound is where no link has a speed, as on loopback.
#pragma once
#include "bench/comm/station.h"

namespace gradcast {

class PlainRing {
public:
    Status open(Bench& bench);   // collective
    /// Sends `out` bytes to the right neighbour while `in` bytes come from the left.
    Status exchange(uint64_t out, uint64_t in);

private:
    Fd right_, left_;
    std::vector<char> scratch_;
};

}   // namespace gradcast
