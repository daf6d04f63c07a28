#include "runtime/job/run/distributed_evaluation.h"

#include <algorithm>

namespace gradcast {

void DistributedEvaluation::plan(const JobParts& parts, Rank self, uint32_t n, uint32_t losses_tolerated, Arena& arena) {
    own_ = self;
    n_ = n;
    if (parts.pipeline) {
        const Grid& grid = parts.pipeline->grid;
        const Cell last{grid.stages() - 1, 0};
        own_ = grid.replica_of(self);
        holds_ = grid.cell_of(self) == last;
        n_ = grid.replicas();
        for (uint32_t replica = 0; replica < n_; ++replica) holders_.push_back(grid.rank_of(replica, last));
    }
    adders_ = std::min(n_, losses_tolerated + 1);
    alone_ = n == 1;
    others_ = ranks_but(self, n);
    to_adders_.assign(others_.size(), 0);
    for (uint32_t adder = 0; adder < adders_; ++adder)
        if (holder(adder) != self) to_adders_[holder(adder) / 64] |= uint64_t{1} << holder(adder) % 64;
    const uint32_t batches = parts.evaluator->batches();
    arena.plan("evaluation", batches * sizeof(BatchResult), &results_);
    arena.plan("evaluation", adders_ * sizeof(BatchResult), &totals_);
}

Status DistributedEvaluation::run(Context& context, JobParts& parts, uint64_t us, BatchResult* sum) {
    const uint32_t n = n_, batches = parts.evaluator->batches();
    const bool adds = holds_ && own_ < adders_;
    auto* results = results_.as<BatchResult>();
    auto count = [&](uint32_t evaluator) {
        return evaluator < batches ? (batches - evaluator - 1) / n + 1 : 0;
    };   // of its batches, which lie side by side
    auto first = [&](uint32_t evaluator) { return evaluator * (batches / n) + std::min(evaluator, batches % n); };
    auto part = [&](uint32_t evaluator) {
        return results_.part(first(evaluator) * sizeof(BatchResult), count(evaluator) * sizeof(BatchResult));
    };
    auto total = [&](uint32_t adder) { return totals_.part(adder * sizeof(BatchResult), sizeof(BatchResult)); };
    auto run = [&](uint32_t evaluator) {
        const std::span of_it(results + first(evaluator), count(evaluator));
        Net& net = *parts.compute.net;
        return context.pipeline ? parts.evaluator->run(net, *context.pipeline, evaluator, n, of_it, parts.progress)
                                : parts.evaluator->run(net, parts.lanes, evaluator, n, of_it, parts.progress);
    };

    // Tickets: parts by evaluator, then totals by adder, then what is sent.
    const std::string what = fmt::format("result of the evaluation after step {}", context.step);
    const uint64_t tag = 2 * context.step, first_part = 1, totals = first_part + n, sends = totals + adders_;
    Mailbox& mail = *context.mail;
    mail.begin(sends + 1);
    for (uint32_t each = 0; each < n && adds; ++each)
        if (each != own_ && count(each) > 0) mail.receive(holder(each), tag, part(each), first_part + each);
    for (uint32_t adder = 0; adder < adders_; ++adder)
        if (!holds_ || adder != own_) mail.receive(holder(adder), tag + 1, total(adder), totals + adder);
    GC_TRY(run(own_));
    const bool others_add = adders_ > 1 || !adds;
    if (holds_ && count(own_) > 0 && others_add) mail.send({0, to_adders_.data()}, tag, part(own_), sends);
    if (adds) {
        GC_TRY(mail.wait(first_part, first_part + n - 1, us, what.c_str()));
        BatchResult all;
        for (uint32_t each = 0; each < n; ++each)
            if (mail.lost(first_part + each)) GC_TRY(run(each));
        for (uint32_t batch = 0; batch < batches; ++batch) {
            const BatchResult& result = results[first(batch % n) + batch / n];
            all.right += result.right;
            all.loss += result.loss;
        }
        *total(own_).as<BatchResult>() = all;
        if (!alone_) mail.send({0, others_.data()}, tag + 1, total(own_), sends + 1);
    }
    GC_TRY(mail.wait(totals, sends + 1, us, what.c_str()));
    uint32_t adder = 0;
    while (adder + 1 < adders_ && mail.lost(totals + adder)) ++adder;
    *sum = *total(adder).as<BatchResult>();
    return {};
}

}   // namespace gradcast
