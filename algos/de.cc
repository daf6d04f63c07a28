// DE-DNN (Zhu, Xie, Zhu, "DE-DNN"): differential evolution of the workers' models, with control parameters that adapt themselves (jDE,
// Brest et al., "Self-adapting control parameters in differential evolution", 2006).  Worker k of n, with its own F_k and CR_k:
//
//     w_k <- local steps from its individual (distribute = best: from the best one)
//     F   <- 0.1 + 0.9 rand  with probability 0.1, else F_k
//     CR  <- rand  with probability 0.1, else CR_k
//     v   <- w_r1 + F (w_r2 - w_r3)
//     u_j <- v_j if rand_j <= CR or j = j_rand, else w_kj
//     the trial u with its F and CR replaces w_k, F_k and CR_k if it classifies more of the validation samples right
//
// r1, r2, r3 are distinct and not k; n = 3: k may be among them; n = 2: the model that the last round ended with joins the two; n = 1:
// there is no trial.  A gene j is a parameter, or a layer's tensor.  Running statistics of u are measured anew.  The net gets the best
// individual.
//
// Messages: W + 1 sums of P values a round, which bring all models to all nodes, and all results of trials.  Computes two passes over the
// validation samples for each worker, at its node.  Keeps all models and individuals: they are state that every node has.  May go wrong: a
// trial among unlike models is rarely better, and a round is then no more than W trainings apart.
#include <algorithm>
#include <array>
#include <cstring>

#include "algos/gathering.h"
#include "algos/jde.h"
#include "algos/worker_sum.h"
#include "runtime/core/rng.h"

namespace gradcast {
namespace {

constexpr uint32_t draw_of_round = ~0u - 1, draw_of_genes = 1u << 31;

class De final : public Gathering {
public:
    Status plan(const AlgorithmPlan& plan) override {
        const AlgorithmSettings& settings = plan.settings;
        adapt_ = settings.adapt;
        layers_ = settings.crossover == "layer";
        best_ = settings.distribute == "best";
        first_ = {settings.f, settings.cr};
        elements_ = plan.net.layout().elements;
        notes_.resize(plan.workers), all_notes_.resize(plan.workers), drawn_.resize(plan.workers);

        plan.arena.plan("model on trial", elements_ * sizeof(float), &trial_);
        plan.arena.plan("trials that are better", plan.workers * elements_ * sizeof(float), &accepted_);
        GC_TRY(Gathering::plan(plan));
        speeds_at_ = sizeof(Head) + plan.workers * (sizeof(Jde) + elements_ * sizeof(float));
        plan.arena.plan("individuals", speeds_at_ + kept_speeds().size_bytes(), &state_);
        return {};
    }
    std::span<const std::byte> state() override {
        head().workers = workers();   // a node may join before the first round
        const std::span<const std::byte> speeds = std::as_bytes(kept_speeds());
        std::copy(speeds.begin(), speeds.end(), state_.host + speeds_at_);
        return {state_.host, state_.bytes};
    }
    Status restore(std::span<const std::byte> state) override {
        GC_TRY(check_workers(state));
        if (state.size() != state_.bytes) return fail(Code::data, "the state of de has {} bytes instead of {}", state.size(), state_.bytes);
        GC_TRY(restore_speeds(state.subspan(speeds_at_)));
        std::memcpy(state_.host, state.data(), state.size());
        return {};
    }

private:
    struct Head {
        uint64_t workers, begun;
    };
    Head& head() { return *state_.as<Head>(); }
    Jde& control(uint32_t k) { return *state_.part(sizeof(Head) + k * sizeof(Jde), sizeof(Jde)).as<Jde>(); }
    std::span<float> individual(uint32_t k) {
        const uint64_t bytes = elements_ * sizeof(float);
        return floats(state_.part(sizeof(Head) + workers() * sizeof(Jde) + k * bytes, bytes));
    }

    Status begin(Context& context) override {
        own_ = &context.workers->own();
        if (head().begun) return {};
        head().begun = 1;
        for (uint32_t k = 0; k < workers(); ++k) {
            control(k) = first_;
            std::ranges::copy(before(), individual(k).begin());
        }
        return {};
    }
    std::span<const float> start(size_t own) override { return best_ ? before() : individual((*own_)[own]); }

    std::span<float> accepted(uint32_t k) { return floats(accepted_).subspan(k * elements_, elements_); }
    Jde draw(Context& context, uint32_t k) {
        if (!adapt_) return control(k);
        return control(k).adapted(random4(Purpose::shuffle, worker_seed(context.local->config().seed, k), context.step, draw_of_round));
    }

    /// r1, r2, r3; number n is the model that the last round ended with.
    std::array<std::span<const float>, 3> parents(uint32_t k, const Philox& random) {
        const uint32_t n = workers(), all = n == 2 ? 3 : n;
        std::array<uint32_t, 3> chosen{};
        for (uint32_t i = 0; i < 3; ++i) {
            uint32_t remaining = all - i - (n >= 4 ? 1 : 0);
            auto pick = static_cast<uint32_t>(uint64_t{random[i]} * remaining >> 32);
            const auto taken = [&](uint32_t r) { return (n >= 4 && r == k) || std::find(&chosen[0], &chosen[i], r) != &chosen[i]; };
            uint32_t r = 0;
            for (;; ++r)
                if (!taken(r) && pick-- == 0) break;
            chosen[i] = r;
        }
        const auto of = [&](uint32_t r) { return r < n ? std::span<const float>(model(r)) : before(); };
        return {of(chosen[0]), of(chosen[1]), of(chosen[2])};
    }

    void cross(Context& context, uint32_t k, std::span<float> u) {
        const uint64_t seed = worker_seed(context.local->config().seed, k);
        const Philox random = random4(Purpose::shuffle, seed, context.step, draw_of_round - 1);
        const std::array<std::span<const float>, 3> r = parents(k, random);
        const auto f = static_cast<float>(drawn_[k].f);
        const std::vector<Group>& groups = context.net->layout().groups;
        const uint64_t genes = layers_ ? groups.size() : elements_, j_rand = uint64_t{random[3]} * genes >> 32;
        std::ranges::copy(model(k), u.begin());
        Philox drawn{};
        for (size_t g = 0; g < groups.size(); ++g) {
            if (groups[g].statistics) continue;
            for (uint64_t i = groups[g].offset; i < groups[g].offset + groups[g].count; ++i) {
                const uint64_t gene = layers_ ? g : i;
                if (gene % 4 == 0 || i == groups[g].offset)
                    drawn = random4(Purpose::shuffle, seed, context.step, draw_of_genes + static_cast<uint32_t>(gene / 4));
                if (share_of(drawn[gene % 4]) <= drawn_[k].cr || gene == j_rand) u[i] = r[0][i] + f * (r[1][i] - r[2][i]);
            }
        }
    }

    Status choose(Context& context, std::span<float> parameters) override {
        const std::span<float> trial = floats(trial_);
        for (uint32_t k = 0; k < workers(); ++k) drawn_[k] = draw(context, k);
        for (size_t i = 0; i < own_->size(); ++i) {
            const WorkerTurn turn(context, (*own_)[i]);
            uint64_t right = 0;
            if (workers() > 1) {
                cross(context, (*own_)[i], trial);
                GC_TRY(validate(context, (*own_)[i], trial, &right));
            }
            notes_[i] = static_cast<float>(right);
        }
        GC_TRY(context.workers->share_notes(std::span(notes_).first(own_->size()), all_notes_));
        // All that can fail comes before the state changes: the round may be repeated.
        for (uint32_t k = 0; k < workers(); ++k) {
            if (all_notes_[k] <= right()[k]) continue;
            cross(context, k, accepted(k));
            GC_TRY(measure(context, k, accepted(k)));
        }
        uint32_t best = 0;
        for (uint32_t k = 0; k < workers(); ++k) {
            const bool better = all_notes_[k] > right()[k];
            std::ranges::copy(better ? accepted(k) : model(k), individual(k).begin());
            if (better) control(k) = drawn_[k];
            all_notes_[k] = std::max(all_notes_[k], right()[k]);
            if (all_notes_[k] > all_notes_[best]) best = k;
        }
        std::ranges::copy(individual(best), parameters.begin());
        return {};
    }

    bool adapt_ = true, layers_ = false, best_ = false;
    Jde first_;
    uint64_t elements_ = 0, speeds_at_ = 0;
    const std::vector<uint32_t>* own_ = nullptr;   // workers of this rank, in the present view
    std::vector<float> notes_, all_notes_;
    std::vector<Jde> drawn_;
    Buffer state_, trial_, accepted_;
};

}   // namespace

std::unique_ptr<Algorithm> de_create() { return std::make_unique<De>(); }

}   // namespace gradcast
