// Exact means of the workers' vectors, and each worker's vector at every rank, over the exchange of the present view: a worker is a block,
// and its vector the block's gradient.
//
// A sum is one step of the exchange.  Its last bucket has no words that count: its record carries the largest |x| of each group over the
// own workers, so all ranks learn the maxima of this very sum first, and with them the scales.  Nothing is clipped, and scales are no
// state. A number of each worker's own goes with them, its *note*, as a group to which no other worker adds.
// Then the vectors follow, bucket by bucket.  Bytes a rank: as a step of synchronous SGD by the same exchange, and two packets a
// part.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "algos/port.h"

namespace gradcast {

/// The net's layout with the bucket of the maxima and notes at the end.
Layout layout_with_maxima(const Layout& net, uint32_t workers);

struct WorkerSumConfig {
    Placement placement;         // of workers; where the exchange codes, several ranks have one
    std::vector<uint32_t> own;   // those of this rank
    StepId first_step = 0;       // that the exchange sums
    Buffer vectors;              // float [own.size(), elements of the net]
    uint64_t patience = 1;       // deadlines that other ranks may take to compute their vectors
};

class WorkerSum {
public:
    WorkerSum(Context& context, Dispatch& dispatch, Exchange& exchange, const WorkerSumConfig& config);

    const std::vector<uint32_t>& own() const { return config_.own; }
    std::vector<uint32_t> workers_of(Rank rank) const { return config_.placement.blocks_of(rank); }
    /// Returns the vector of worker own()[i].  Fill it in before sum().
    std::span<float> vector(size_t i) { return {config_.vectors.as<float>() + i * elements_, elements_}; }
    /// The workers' mean of their vectors and of `losses` [own().size()], the same at every rank.  Blocks until all ranks have come here.
    /// Errors: as Port::wait; diverged: a vector or loss has NaN or Inf; conflict: other ranks begin from another state.
    /// notes [own().size()]: numbers of at least 0, which come to all_notes [workers] unrounded; empty: none.
    Status sum(std::span<const double> losses, std::span<float> mean, double* loss, std::span<const float> notes = {},
               std::span<float> all_notes = {});
    /// Every worker's vector, [workers, elements], the same at every rank: rounded to 2^-29 of its largest element times the workers.  A
    /// sum for each worker.  notes: as of sum(); `more` are others, which go with the sum of the second worker.
    Status gather(std::span<const double> losses, std::span<const float> notes, std::span<float> all, std::span<float> all_notes,
                  double* loss, std::span<const float> more = {}, std::span<float> all_more = {});
    /// The workers' mean of vectors of doubles: two sums, the second of the remainders of the first.  values(i): of own()[i].
    Status sum_exactly(std::span<const double> losses, const std::function<std::span<const double>(size_t)>& values, std::span<double> mean,
                       double* loss);
    /// Gives all ranks the notes alone.  Costs a sum.
    Status share_notes(std::span<const float> notes, std::span<float> all_notes);
    /// After a round that failed: gives the codec's scales their values from before the round's sums.
    void take_back();
    /// Between parts of a long computation.  Error: what has ended the job, or the view.
    Status poll() { return port_.poll(); }

private:
    struct Input {
        std::span<const double> losses = {};
        std::span<const float> notes = {};
        uint32_t only = all_workers;    // whose vector counts
        std::span<double> exact = {};   // the mean is added to it
    };
    static constexpr uint32_t all_workers = ~0u, no_worker = all_workers - 1;
    bool counts(const Input& input, size_t own) const { return input.only == all_workers || input.only == config_.own[own]; }
    Status add_up(const Input& input, double factor, std::span<float> mean, std::span<float> all_notes, double* loss);
    Status share_maxima(const Input& input);
    Status share_vectors(const Input& input);
    Status share_bucket(const Input& input, uint32_t lane, uint32_t bucket);
    Status diverged(size_t group, uint32_t worker) const;

    Context& context_;
    Dispatch& dispatch_;
    Exchange& exchange_;
    const WorkerSumConfig config_;
    Port port_;
    const uint64_t elements_;
    const uint32_t maxima_bucket_;
    std::vector<float> maxima_;   // [own, groups]
    std::vector<const Sum*> sums_;
    std::vector<int32_t> scales_before_;   // the round `scales_of_`
    StepId scales_of_ = ~StepId{0};
};

}   // namespace gradcast
