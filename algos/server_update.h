// What a parameter server makes of gradients: their mean, each times a factor of its own, and the optimiser's step along it.
#pragma once
#include <utility>
#include <vector>

#include "algos/algorithm.h"
#include "algos/server_parts.h"

namespace gradcast {

class ServerUpdate {
public:
    /// The mean is of `collect` gradients.  exact: they are quantised and summed as by an exchange, so their order does not count; then
    /// there is one server, and factors are 1.
    void plan(const AlgorithmPlan& plan, uint32_t collect, bool exact);
    /// Begins a round at the server that has this part.
    void begin(const ServerParts& parts, uint32_t part);
    /// [elements] floats: the sum over a worker's mini-batch.  id: the update that they go into, and the worker.
    Status add(Context& context, BlockId id, const Buffer& gradient, double factor);
    /// All gradients of an update are there; the next add() begins another one.
    bool full() const { return collected_.size() == collect_; }
    /// Whose gradients they are.
    const std::vector<uint32_t>& collected() const { return collected_; }
    /// Step number `version` of the optimiser, for this server's part of w.
    Status apply(Context& context, uint64_t version, std::span<float> w);
    /// Elements that were clipped since the last call.
    uint64_t clipped() { return std::exchange(clipped_, 0); }

private:
    Plan words(const Context& context, uint32_t bucket);

    uint32_t collect_ = 1, batch_ = 1, part_ = 0;
    bool exact_ = false;
    uint64_t elements_ = 0, clipped_ = 0;
    ServerParts parts_;
    std::vector<uint32_t> collected_;
    Buffer sum_;   // float, or int32 where sums are exact
    std::vector<float> maxima_;
    std::vector<Record> records_;   // by bucket
    std::vector<BucketSum> sums_;
};

}   // namespace gradcast
