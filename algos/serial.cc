// Serial SGD (SE of the DE-DNN paper): rank 0 trains with all data, the others get what it has learnt.  What the others are measured by.
//
//     w <- `local_steps` steps of the optimiser from w, whose state goes on from round to round
//
// Messages: P values and the optimiser's state to all once a round, by mail or, with an exchange that multicasts, in one copy; and the
// digest of what came from each.  Keeps a copy of both from before the round.  May go wrong: nothing that does not go wrong alone.
#include <cmath>

#include "algos/algorithm.h"
#include "algos/local.h"
#include "algos/worker_sum.h"

namespace gradcast {
namespace {

constexpr uint64_t tags = uint64_t{3} << 59;   // below those of other mail

class Serial final : public Algorithm {
public:
    Status plan(const AlgorithmPlan& plan) override {
        plan.arena.plan("parameters before the round", plan.net.layout().elements * sizeof(float), &before_);
        plan.arena.plan("optimiser before the round", plan.state_size * sizeof(float), &state_before_);
        return {};
    }

    Status round(Context& context) override {
        const uint64_t begin_us = context.host.now_us();
        const std::span<float> parameters = context.net->parameters(), state = context.optimiser->state();
        const std::span<float> before = floats(before_), state_before = floats(state_before_);
        std::ranges::copy(parameters, before.begin());
        std::ranges::copy(state, state_before.begin());
        StepRecord record;
        const Status status = learn(context, &record);
        if (!status.ok()) {
            std::ranges::copy(before, parameters.begin());
            std::ranges::copy(state_before, state.begin());
        }
        context.net->refresh();
        context.optimiser->refresh();
        GC_TRY(status);
        record.wait_us = context.host.now_us() - begin_us - record.compute_us;
        context.round_done(record);
        return {};
    }

private:
    static std::span<float> floats(const Buffer& buffer) { return {buffer.as<float>(), buffer.bytes / sizeof(float)}; }
    static Buffer bytes_of(auto span) { return {reinterpret_cast<std::byte*>(span.data()), nullptr, span.size_bytes()}; }

    Status learn(Context& context, StepRecord* record) {
        const uint32_t steps = context.local->config().steps;
        if (context.self == 0) {
            const uint64_t begin_us = context.host.now_us();
            const WorkerTurn turn(context, 0);
            GC_TRY(context.local->train(context, 0, context.step * steps, steps, {}, &record->loss));
            record->compute_us = context.host.now_us() - begin_us;
            if (!std::isfinite(record->loss))
                return fail(Code::diverged, "round {}: the loss is NaN or Inf: {}", context.step + 1, context.advice);
        }
        return context.ranks == 1 ? Status{} : spread(context, &record->loss);
    }

    /// All ranks get what rank 0 has, and rank 0 learns that they have it.
    Status spread(Context& context, double* loss) {
        const Buffer all[] = {bytes_of(context.net->parameters()), bytes_of(context.optimiser->state()), bytes_of(std::span(loss, 1))};
        constexpr uint64_t parts = std::size(all);
        Mailbox& mail = *context.mail;
        mail.begin(parts + context.ranks);
        digests_.assign(context.ranks, 0);   // allocates in the first round of a view only
        for (uint64_t i = 0; i < parts; ++i)
            if (all[i].bytes > 0) mail.broadcast(0, tags | i, all[i], 1 + i);
        const auto answer = [&](Rank rank) { return bytes_of(std::span(digests_).subspan(rank, 1)); };
        const uint64_t us = (10 + context.local->config().steps) * context.deadline_us;
        if (context.self == 0) {
            for (Rank rank = 1; rank < context.ranks; ++rank) mail.receive(rank, tags | parts, answer(rank), parts + rank);
            GC_TRY(mail.wait(1, parts + context.ranks - 1, us, "word that all have what was trained"));
            const uint64_t own = digest(context);
            for (Rank rank = 1; rank < context.ranks; ++rank)
                if (!mail.lost(parts + rank) && digests_[rank] != own)
                    return fail(Code::conflict, "round {}: rank {} has the parameters {:016x}, ours are {:016x}", context.step + 1, rank,
                                digests_[rank], own);
            return {};
        }
        GC_TRY(mail.wait(1, parts, us, "parameters that rank 0 trains"));
        for (uint64_t i = 0; i < parts; ++i)
            if (mail.lost(1 + i)) return fail(Code::peer_lost, "round {}: rank 0 is lost, which trains", context.step + 1);
        digests_[context.self] = digest(context);
        mail.send({0, nullptr}, tags | parts, answer(context.self), parts + context.self);
        return mail.wait(parts + context.self, parts + context.self, us, "word to rank 0");
    }
    static uint64_t digest(Context& context) { return digest64(context.net->parameters()); }

    Buffer before_, state_before_;
    std::vector<uint64_t> digests_;   // by rank
};

}   // namespace

std::unique_ptr<Algorithm> serial_create() { return std::make_unique<Serial>(); }

}   // namespace gradcast
