#include "runtime/job/run/distributed_evaluation.h"

#include <algorithm>

#include "algos/pipeline.h"
#include "runtime/core/bits.h"

namespace gradcast {
namespace {

constexpr uint64_t not_evaluated = ~uint64_t{0};   // BatchResult::right
constexpr uint64_t order_tags = uint64_t{1} << 61;

uint64_t order_tag(StepId step, uint32_t number) { return order_tags | step << 13 | number; }
static_assert(ranks_max < 1 << 13);

}   // namespace

void DistributedEvaluation::plan(const JobParts& parts, const Grid* grid, Rank self, uint32_t n, uint32_t losses_tolerated, Arena& arena) {
    own_ = self;
    n_ = n;
    if (grid) {
        const Cell last{grid->stages() - 1, 0};
        spare_ = grid->is_spare(self);
        n_ = grid->replicas();
        own_ = spare_ ? n_ : grid->replica_of(self);
        holds_ = !spare_ && grid->cell_of(self) == last;
        for (uint32_t replica = 0; replica < n_; ++replica) holders_.push_back(grid->rank_of(replica, last));
    }
    adders_ = std::min(n_, losses_tolerated + 1);
    if (grid && losses_tolerated > 0 && own_ < adders_) {
        orders_ = true;
        mates_.assign(bit_words(n), 0);
        for (uint32_t cell = 0; cell < grid->cells(); ++cell) {
            const Rank mate = grid->rank_of(own_, grid->cell(cell));
            if (mate != holder(own_)) set_bit(mates_.data(), mate);
        }
        arena.plan("evaluation", (n_ + 1) * sizeof(uint32_t), &numbers_);
    }
    alone_ = n == 1;
    others_ = ranks_but(self, n);
    to_adders_.assign(others_.size(), 0);
    for (uint32_t adder = 0; adder < adders_; ++adder)
        if (holder(adder) != self) set_bit(to_adders_.data(), holder(adder));
    const uint32_t batches = parts.evaluator->batches();
    arena.plan("evaluation", batches * sizeof(BatchResult), &results_);
    arena.plan("evaluation", adders_ * sizeof(BatchResult), &totals_);
}

template <typename Run>
Status DistributedEvaluation::obey(Context& context, uint64_t us, const char* what, Run run) {
    Mailbox& mail = *context.mail;
    const uint64_t first = n_ + adders_ + 3;
    for (uint32_t i = 0;; ++i) {
        mail.receive(holder(own_), order_tag(context.step, i), numbers_.part(i * sizeof(uint32_t), sizeof(uint32_t)), first + i);
        GC_TRY(mail.wait(first + i, first + i, us, what));
        if (mail.lost(first + i) || numbers_.as<uint32_t>()[i] >= n_) return {};
        GC_TRY(run(numbers_.as<uint32_t>()[i]));
    }
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
    bool broken = false;   // this replica lacks results
    auto run = [&](uint32_t evaluator) {
        const std::span of_it(results + first(evaluator), count(evaluator));
        Net& net = *parts.compute.net;
        if (!context.pipeline) return parts.evaluator->run(net, parts.lanes, evaluator, n, of_it, parts.progress);
        const Status status = parts.evaluator->run(net, *context.pipeline, evaluator, n, of_it, parts.progress);
        broken = broken || context.pipeline->broken() || context.pipeline->ended_early();
        return status;
    };

    // Tickets: parts by evaluator, then totals by adder, then what is sent, then orders.
    const std::string what = fmt::format("result of the evaluation after step {}", context.step);
    const uint64_t tag = 2 * context.step, first_part = 1, totals = first_part + n, sends = totals + adders_, orders = sends + 2;
    Mailbox& mail = *context.mail;
    mail.begin(orders + n);
    for (uint32_t each = 0; each < n && adds; ++each)
        if (each != own_ && count(each) > 0) mail.receive(holder(each), tag, part(each), first_part + each);
    for (uint32_t adder = 0; adder < adders_; ++adder)
        if (!holds_ || adder != own_) mail.receive(holder(adder), tag + 1, total(adder), totals + adder);
    if (!spare_) GC_TRY(run(own_));
    const bool others_add = adders_ > 1 || !adds;
    if (broken)
        for (uint32_t i = 0; i < count(own_); ++i) results[first(own_) + i].right = not_evaluated;
    if (holds_ && count(own_) > 0 && others_add) mail.send({0, to_adders_.data()}, tag, part(own_), sends);
    if (adds) {
        GC_TRY(mail.wait(first_part, first_part + n - 1, us, what.c_str()));
        uint32_t ordered = 0;
        auto order = [&](uint32_t number) {
            if (!orders_) return;
            numbers_.as<uint32_t>()[ordered] = number;
            mail.send({0, mates_.data()}, order_tag(context.step, ordered), numbers_.part(ordered * sizeof(uint32_t), sizeof(uint32_t)),
                      orders + ordered);
            ++ordered;
        };
        for (uint32_t each = 0; each < n && !broken; ++each) {
            const bool missing = mail.lost(first_part + each) || (count(each) > 0 && results[first(each)].right == not_evaluated);
            if (!missing) continue;
            order(each);
            GC_TRY(run(each));
        }
        order(n);
        BatchResult all;
        for (uint32_t batch = 0; batch < batches; ++batch) all.add(results[first(batch % n) + batch / n]);
        if (broken) all.right = not_evaluated;
        *total(own_).as<BatchResult>() = all;
        if (!alone_) mail.send({0, others_.data()}, tag + 1, total(own_), sends + 1);
    } else if (orders_) {
        GC_TRY(obey(context, us, what.c_str(), run));
    }
    GC_TRY(mail.wait(totals, sends + 1, us, what.c_str()));
    uint32_t adder = 0;
    while (adder + 1 < adders_ && (mail.lost(totals + adder) || total(adder).as<BatchResult>()->right == not_evaluated)) ++adder;
    *sum = *total(adder).as<BatchResult>();
    return {};
}

}   // namespace gradcast
