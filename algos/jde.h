// jDE: how differential evolution adapts its control parameters (Brest et al., "Self-adapting control parameters in differential
// evolution", 2006).  For each trial, with probability tau each, else as they are:
//
//     F <- F_l + F_u rand      CR <- rand
#pragma once
#include <cstdint>

#include "runtime/core/rng.h"

namespace gradcast {

/// In (0, 1).
inline double share_of(uint32_t bits) { return (static_cast<double>(bits) + 0.5) * 0x1p-32; }

struct Jde {
    static constexpr double tau = 0.1, f_least = 0.1, f_range = 0.9;   // tau1 = tau2, F_l, F_u
    double f = 0.5, cr = 0.9;

    Jde adapted(const Philox& random) const {
        Jde now = *this;
        if (share_of(random[1]) < tau) now.f = f_least + share_of(random[0]) * f_range;
        if (share_of(random[3]) < tau) now.cr = share_of(random[2]);
        return now;
    }
};

}   // namespace gradcast
