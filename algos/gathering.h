// A round of the algorithms that choose among models: workers learn alone, each model is tried on the validation samples at its own node,
// and all models come to all nodes.  What follows is computed alike everywhere from these.
#pragma once
#include <vector>

#include "algos/averaging.h"

namespace gradcast {

class Gathering : public Averaging {
public:
    Status plan(const AlgorithmPlan& plan) override;

protected:
    /// models() are what the workers have learnt, right() says how many validation samples each classifies right.  The net gets its new
    /// parameters.  It may be used to try others.
    virtual Status choose(Context& context, std::span<float> parameters) = 0;
    /// False: right() is not wanted, and models are not tried.
    virtual bool by_accuracy() const { return true; }

    std::span<float> model(uint32_t worker) { return floats(models_).subspan(worker * elements_, elements_); }
    std::span<const float> right() const { return right_; }
    uint32_t workers() const { return workers_; }
    /// How many of the validation samples these parameters classify right, with the running statistics of measure().
    Status validate(Context& context, uint32_t worker, std::span<float> parameters, uint64_t* right);
    /// Batch norm's running statistics of these parameters, measured anew on a few mini-batches of the worker: those of parameters that
    /// were mixed are nobody's.  Changes them in place.  The net gets the parameters.
    Status measure(Context& context, uint32_t worker, std::span<float> parameters);

private:
    Status contribute(Context& context, size_t own, std::span<float> difference) final;
    Status aggregate(Context& context, double* loss) final;

    uint32_t workers_ = 0;
    uint64_t elements_ = 0;
    Buffer models_;                  // [workers, elements]
    std::vector<float> right_;       // by worker
    std::vector<float> own_;         // the same of own workers
    std::vector<double> measured_;   // of the groups of statistics
};

}   // namespace gradcast
