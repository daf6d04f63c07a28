// The convex problems that solver = "exact" solves for each logical worker, in double.  Worker k has O_k over d values w, the mean over its
// samples and (l/2) ||w||^2, l: optimiser.weight_decay.
#pragma once
#include <memory>
#include <span>

#include "algos/algorithm.h"

namespace gradcast {

class LocalProblems {
public:
    virtual ~LocalProblems() = default;
    /// Plans the memory of the own workers, whose steps have this pull, which is a key of [algorithm].  Error: the samples do not fit.
    virtual Status plan(const AlgorithmPlan& plan, double pull, const char* key) = 0;
    /// Takes in the samples of WorkerSum::own()[own]; once.  Trainer thread, as all that follows.
    virtual Status build(Context& context, size_t own) = 0;
    /// `gradient` becomes grad O_k(w), *value O_k(w).
    virtual void gradient(Context& context, size_t own, std::span<const double> w, std::span<double> gradient, double* value) = 0;
    /// `step` becomes the s that minimises  O_k(w + s) - <g - r, s> + (pull/2) ||s||^2,  g: grad O_k(w).
    virtual Status step(Context& context, size_t own, std::span<const double> w, std::span<const double> g, std::span<const double> r,
                        std::span<double> step) = 0;
};

std::unique_ptr<LocalProblems> ridge_problems();
std::unique_ptr<LocalProblems> logistic_problems();

}   // namespace gradcast
