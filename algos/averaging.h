// A round of the algorithms that average: workers learn alone from the same parameters w, each on its part of the data, and w moves by the
// mean of their differences w_k - w.  ma is this and nothing else; others add a term to the local gradients, or combine otherwise.
#pragma once
#include <vector>

#include "algos/algorithm.h"
#include "algos/allocation.h"
#include "algos/local.h"
#include "algos/worker_states.h"

namespace gradcast {

/// All elements times `factor`; 1 leaves them as they are.
void scale(std::span<float> vector, double factor);

class Averaging : public Algorithm {
public:
    Status plan(const AlgorithmPlan& plan) override;
    Status round(Context& context) final;
    std::span<const std::byte> state() override;
    Status gather(Context& context) override { return states_.gather(context); }
    Status restore(std::span<const std::byte> state) override;

protected:
    /// Parts of state() beside the speeds, by subclasses in plan(): vectors that all ranks have alike, and workers' own.
    void keep(const char* what, const AlgorithmPlan& plan, uint64_t bytes, Buffer* vector);
    WorkerStates& states() { return states_; }
    bool restored() const { return restored_; }
    /// Before workers learn.  The net has w.
    virtual Status begin(Context& context) { return (void)context, Status{}; }
    /// Returns the parameters from which the worker WorkerSum::own()[own] begins.
    virtual std::span<const float> start(size_t own) { return (void)own, before(); }
    virtual LocalTerm term(size_t own) { return (void)own, LocalTerm{}; }
    /// The optimiser's state when the worker begins, and when it has learnt.
    virtual void worker_begins(size_t own, std::span<float> state) { (void)own, std::fill(state.begin(), state.end(), 0.0f); }
    virtual void worker_ends(size_t own, std::span<const float> state) { (void)own, (void)state; }
    /// Makes the difference that the worker adds to the sum.  Called when the net has the parameters that the worker has learnt.
    virtual Status contribute(Context& context, size_t own, std::span<float> difference);
    /// Returns the worker's weight in the mean.
    virtual double weight(const Local& local, uint32_t worker) { return (void)local, (void)worker, 1.0; }
    /// Sums up and combines.  The net gets its new parameters.
    virtual Status aggregate(Context& context, double* loss);
    /// The new parameters, of w and the mean difference.  Running statistics become their mean whatever it says.
    virtual void combine(std::span<const float> before, std::span<const float> mean, std::span<float> parameters);

    /// After that.  The net has the new parameters.
    virtual void applied(Context& context) { (void)context; }

    /// Return the speeds of own workers in this round, and of all workers once these have come; empty: not measured.
    std::span<const float> own_speeds() const { return std::span(own_speeds_).first(allocation_.measures() ? losses_.size() : 0); }
    std::span<float> all_speeds() { return std::span(all_speeds_).first(allocation_.measures() ? all_speeds_.size() : 0); }
    /// Returns the speeds that set the next round's shares.  state() has them behind the number of workers.  Empty: equal shares.
    std::span<float> kept_speeds() { return allocation_.speeds(); }
    Status restore_speeds(std::span<const std::byte> state);
    Status check_workers(std::span<const std::byte> state) const;
    std::span<const float> before() const { return floats(before_); }   // w
    std::span<float> mean() { return floats(mean_); }                   // free between sums
    std::span<double> losses() { return losses_; }                      // of own workers
    const std::vector<Group>& statistics() const { return statistics_; }
    static std::span<float> floats(const Buffer& buffer) { return {buffer.as<float>(), buffer.bytes / sizeof(float)}; }

private:
    std::vector<std::span<std::byte>> parts();   // of state(), behind the number of workers
    Status learn(Context& context);
    Status train(Context& context, size_t own);
    Status train_share(Context& context, size_t own);
    Status apply(Context& context, StepRecord* record);

    uint64_t workers_ = 0;
    Allocation allocation_;
    std::vector<float> own_speeds_, all_speeds_;   // samples a second
    std::vector<std::byte> state_;
    std::vector<const Buffer*> kept_;   // of all ranks alike
    WorkerStates states_;
    bool restored_ = false;
    Buffer before_, mean_;
    std::vector<double> losses_;
    std::vector<Group> statistics_;   // of the net
};

}   // namespace gradcast
