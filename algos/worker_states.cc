#include "algos/worker_states.h"

#include <algorithm>

#include "algos/worker_sum.h"
#include "runtime/core/bits.h"

namespace gradcast {

void WorkerStates::plan(const char* what, const AlgorithmPlan& plan, uint64_t bytes) {
    own_.assign(plan.own_workers.begin(), plan.own_workers.end());
    by_worker_ = plan.checkpoints;
    bytes_ = bytes;
    plan.arena.plan(what, bytes * (by_worker_ ? plan.workers : own_.size()), &buffer_);
}

Status WorkerStates::gather(Context& context) {
    if (context.ranks == 1 || bytes_ == 0) return {};
    GC_ASSERT(by_worker_ && context.workers->own() == own_);
    const WorkerSum& workers = *context.workers;
    Mailbox& mail = *context.mail;
    const uint64_t tags = uint64_t{3} << 60 | context.step << 28, ready = tags | (uint64_t{1} << 27);
    const auto message = [&](uint32_t worker) { return buffer_.part(worker * bytes_, bytes_); };
    others_ = ranks_but(context.self, context.ranks);

    struct Asked {
        uint32_t worker;
        Rank from;
        uint64_t ticket;
    };
    std::vector<Asked> parts;   // several ranks may hold a worker, and all have the same bits
    std::vector<bool> here(context.blocks);
    lacking_.assign(context.blocks, others_);
    for (const uint32_t worker : own_) here[worker] = true;
    uint64_t tickets = context.ranks;
    for (Rank rank = 0; rank < context.ranks; ++rank)
        for (const uint32_t worker : workers.workers_of(rank)) {
            clear_bit(lacking_[worker].data(), rank);
            if (!here[worker]) parts.push_back({worker, rank, ++tickets});
        }
    mail.begin(tickets + 1 + own_.size());

    // A state that comes before its receive is posted would hold up all else on the stream.
    for (const Asked& part : parts) mail.receive(part.from, tags | part.worker, message(part.worker), part.ticket);
    for (Rank rank = 0; rank < context.ranks; ++rank)
        if (rank != context.self) mail.receive(rank, ready, {}, 1 + rank);
    mail.send({0, others_.data()}, ready, {}, ++tickets);
    GC_TRY(mail.wait(1, context.ranks, context.deadline_us, "states of workers"));

    for (const uint32_t worker : own_)
        if (std::ranges::any_of(lacking_[worker], [](uint64_t bits) { return bits != 0; }))
            mail.send({0, lacking_[worker].data()}, tags | worker, message(worker), ++tickets);
    GC_TRY(mail.wait(1, tickets, context.deadline_us, "states of workers"));
    for (const Asked& part : parts) here[part.worker] = here[part.worker] || !mail.lost(part.ticket);
    const auto missing = std::ranges::find(here, false);
    if (missing == here.end()) return {};
    return fail(Code::peer_lost, "the state of worker {} is lost with its node", missing - here.begin());
}

}   // namespace gradcast
