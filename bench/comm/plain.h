// Plain TCP sockets in a ring of all ranks: the bound if the link's rate is unknown, as on loopback.
#pragma once
#include "bench/comm/station.h"

namespace gradcast {

class PlainRing {
public:
    Status open(Bench& bench);   // collective
    /// Sends `out` bytes to the right neighbour while receiving `in` bytes from the left.
    Status exchange(uint64_t out, uint64_t in);

private:
    Fd right_, left_;
    std::vector<char> scratch_;
};

}   // namespace gradcast
