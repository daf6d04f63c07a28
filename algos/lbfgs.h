// L-BFGS (Nocedal and Wright, "Numerical optimization", 2006, algorithm 7.4) for smooth convex functions, by gradients alone: along a
// direction the derivative of a convex function rises, so a step is found by bisection on its sign.
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <span>

#include "runtime/core/status.h"

namespace gradcast {

struct Lbfgs {
    static constexpr uint64_t pairs = 10, vectors = 2 * pairs + 4;
    std::span<double> memory;                                                         // [vectors, d]
    std::function<Status(std::span<const double> x, std::span<double> gradient)> f;   // the gradient at x
    double floor = 0;                                                                 // length of a gradient that is rounding alone
    double tolerance = 1e-8;                                                          // of the gradient's length, relative to that at 0
    uint32_t evaluations_max = 1000;

    /// x becomes the minimum, from 0 on, where the gradient is `gradient`.  Error: f's; deadline, more evaluations are needed.
    Status minimise(std::span<const double> gradient, std::span<double> x);
};

}   // namespace gradcast
