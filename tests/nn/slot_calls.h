// Orders in which passes of micro-batches in flight are tried, on all devices.
#pragma once
#include <cstdint>
#include <vector>

#include "nn/net.h"

namespace gradcast {

/// Of Net::forward() or Net::backward().
struct Call {
    enum Pass { forward, both, data, weights } pass;
    uint32_t block;
};
inline Backward backward_of(Call::Pass pass) {
    return pass == Call::both ? Backward::both : pass == Call::data ? Backward::data : Backward::weights;
}

/// Three blocks in three slots.
inline const std::vector<Call> all_forward_then_all_backward = {{Call::forward, 0}, {Call::forward, 1}, {Call::forward, 2},
                                                                {Call::both, 2},    {Call::both, 0},    {Call::both, 1}};
/// Four blocks in two slots.
inline const std::vector<Call> one_forward_one_backward = {{Call::forward, 0}, {Call::forward, 1}, {Call::both, 0}, {Call::forward, 2},
                                                           {Call::both, 1},    {Call::forward, 3}, {Call::both, 2}, {Call::both, 3}};
/// Three blocks in three slots: all weights passes come last, and those of different slots in another order.
inline const std::vector<Call> weights_passes_come_last = {{Call::forward, 0}, {Call::forward, 1}, {Call::data, 0},
                                                           {Call::forward, 2}, {Call::data, 2},    {Call::data, 1},
                                                           {Call::weights, 1}, {Call::weights, 2}, {Call::weights, 0}};

}   // namespace gradcast
