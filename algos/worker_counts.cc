#include "algos/worker_counts.h"

#include "runtime/core/status.h"

namespace gradcast {

void WorkerAccounts::turn(uint32_t worker, StepId round, const WorkerCounts& work) {
    GC_ASSERT(worker < now_.size());
    WorkerCounts& counts = now_[worker];
    if (counts.last_round != round + 1) {
        before_[worker] = counts;
        counts.worker = worker;
        counts.last_round = round + 1;
        ++counts.rounds;
    }
    ++counts.turns;
    counts.samples += work.samples;
    counts.gradients += work.gradients;
    counts.forwards += work.forwards;
    counts.compute_us += work.compute_us;
}

void WorkerAccounts::take_back(StepId round, uint64_t* samples) {
    for (size_t k = 0; k < now_.size(); ++k) {
        if (now_[k].last_round != round + 1) continue;
        *samples -= now_[k].samples - before_[k].samples;
        now_[k].samples = before_[k].samples;
        now_[k].rounds = before_[k].rounds;
        now_[k].turns = before_[k].turns;
        now_[k].last_round = before_[k].last_round;
    }
}

uint64_t WorkerAccounts::turns_in(size_t worker, StepId round) const {
    return now_[worker].last_round == round + 1 ? now_[worker].turns - before_[worker].turns : 0;
}

void WorkerAccounts::share_bytes(StepId round, uint64_t sent, uint64_t received) {
    uint64_t all = 0, given = 0;
    for (size_t k = 0; k < now_.size(); ++k) all += turns_in(k, round);
    if (all == 0) return;
    for (size_t k = 0; k < now_.size(); ++k) {
        const uint64_t upto = given + turns_in(k, round);
        now_[k].bytes_sent += sent * upto / all - sent * given / all;
        now_[k].bytes_received += received * upto / all - received * given / all;
        given = upto;
    }
}

}   // namespace gradcast
