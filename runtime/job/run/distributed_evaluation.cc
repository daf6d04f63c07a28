#include "runtime/job/run/distributed_evaluation.h"

#include <algorithm>

namespace gradcast {

void DistributedEvaluation::plan(const Evaluator& evaluator, Rank self, uint32_t n, uint32_t losses_tolerated, Arena& arena) {
    self_ = self;
    n_ = n;
    adders_ = std::min(n, losses_tolerated + 1);
    others_ = ranks_but(self, n);
    to_adders_ = ranks_but(self, adders_);
    to_adders_.resize(others_.size());
    arena.plan("evaluation", evaluator.batches() * sizeof(BatchResult), &results_);
    arena.plan("evaluation", adders_ * sizeof(BatchResult), &totals_);
}

Status DistributedEvaluation::run(Context& context, JobParts& parts, uint64_t us, BatchResult* sum) {
    const uint32_t n = n_, batches = parts.evaluator->batches();
    const Rank self = self_;
    auto* results = results_.as<BatchResult>();
    auto count = [&](Rank rank) {
        return rank < batches ? (batches - rank - 1) / n + 1 : 0;
    };   // of rank's batches, which lie side by side
    auto first = [&](Rank rank) { return rank * (batches / n) + std::min(rank, batches % n); };
    auto part = [&](Rank rank) { return results_.part(first(rank) * sizeof(BatchResult), count(rank) * sizeof(BatchResult)); };
    auto total = [&](Rank adder) { return totals_.part(adder * sizeof(BatchResult), sizeof(BatchResult)); };
    auto run = [&](Rank rank) {
        return parts.evaluator->run(*parts.compute.net, parts.lanes, rank, n, {results + first(rank), count(rank)}, parts.progress);
    };

    // Tickets: parts by rank, then totals by adder, then what is sent.
    const std::string what = fmt::format("result of the evaluation after step {}", context.step);
    const uint64_t tag = 2 * context.step, first_part = 1, totals = first_part + n, sends = totals + adders_;
    Mailbox& mail = *context.mail;
    mail.begin(sends + 1);
    for (Rank rank = 0; rank < n && self < adders_; ++rank)
        if (rank != self && count(rank) > 0) mail.receive(rank, tag, part(rank), first_part + rank);
    for (Rank adder = 0; adder < adders_; ++adder)
        if (adder != self) mail.receive(adder, tag + 1, total(adder), totals + adder);
    GC_TRY(run(self));
    if (count(self) > 0 && !(self == 0 && adders_ == 1)) mail.send({0, to_adders_.data()}, tag, part(self), sends);
    if (self < adders_) {
        GC_TRY(mail.wait(first_part, first_part + n - 1, us, what.c_str()));
        BatchResult all;
        for (Rank rank = 0; rank < n; ++rank)
            if (mail.lost(first_part + rank)) GC_TRY(run(rank));
        for (uint32_t batch = 0; batch < batches; ++batch) {
            const BatchResult& result = results[first(batch % n) + batch / n];
            all.right += result.right;
            all.loss += result.loss;
        }
        *total(self).as<BatchResult>() = all;
        if (n > 1) mail.send({0, others_.data()}, tag + 1, total(self), sends + 1);
    }
    GC_TRY(mail.wait(totals, sends + 1, us, what.c_str()));
    Rank adder = 0;
    while (adder + 1 < adders_ && mail.lost(totals + adder)) ++adder;
    *sum = *total(adder).as<BatchResult>();
    return {};
}

}   // namespace gradcast
