#include "nn/optimiser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "nn/kernels.h"
#include "runtime/core/elementary.h"

namespace gradcast {
namespace {

constexpr std::array<const char*, 3> schedules = {"constant", "step", "cosine"};

class HostOptimiser final : public Optimiser {
public:
    HostOptimiser(const OptimiserKind& kind, const OptimiserConfig& config, const Layout& layout, Arena& arena)
        : kind_(kind),
          config_(config),
          elements_(layout.elements),
          whole_(layout.whole()),
          runs_(layout.runs()),
          vectors_(kind.vectors(config)) {
        if (vectors_ > 0) arena.plan("optimiser", vectors_ * elements_ * sizeof(float), &state_);
        step(0);
    }
    void step(StepId step) override { now_ = kind_.rates(config_, step); }
    uint64_t update(uint64_t offset, std::span<float> w, std::span<const float> gradient) override {
        GC_ASSERT(w.size() == gradient.size());
        float* state[optimiser_vectors_max] = {};
        for (uint32_t i = 0; i < vectors_; ++i) state[i] = state_.as<float>() + i * elements_ + offset;
        kind_.update(kernels_, now_, w.data(), state, gradient.data(), w.size());
        const auto run = std::ranges::find_if(runs_, [offset](const Layout::Run& each) { return offset - each.offset < each.count; });
        GC_ASSERT(run != runs_.end());
        const uint64_t place = run->place + (offset - run->offset);
        uint64_t digest = digest64(w, place);
        for (uint32_t i = 0; i < vectors_; ++i) digest += digest64({state[i], w.size()}, (i + 1) * whole_ + place);
        return digest;
    }
    uint64_t digest(uint64_t first) override {
        uint64_t sum = 0;
        for (uint32_t i = 0; i < vectors_; ++i)
            for (const Layout::Run& run : runs_)
                sum += digest64(state().subspan(i * elements_ + run.offset, run.count), first + i * whole_ + run.place);
        return sum;
    }
    std::span<float> state() override { return {state_.as<float>(), vectors_ * elements_}; }

private:
    const FloatKernels& kernels_ = float_kernels(isa_best());
    const OptimiserKind& kind_;
    const OptimiserConfig config_;
    const uint64_t elements_, whole_;
    const std::vector<Layout::Run> runs_;
    const uint32_t vectors_;
    StepRates now_{};
    Buffer state_;
};

Status one_of(const char* key, const std::string& name, const std::vector<std::string>& names) {
    if (std::find(names.begin(), names.end(), name) != names.end()) return {};
    return fail(Code::invalid, "optimiser.{} \"{}\" is unknown: one of {}", key, name, fmt::join(names, ", "));
}

}   // namespace

std::span<const OptimiserKind* const> optimiser_kinds() {
#define GC_OPTIMISER(kind) &kind##_optimiser,
    static constexpr const OptimiserKind* all[] = {GC_OPTIMISERS(GC_OPTIMISER)};
#undef GC_OPTIMISER
    return all;
}
std::vector<std::string> optimiser_names() {
    std::vector<std::string> names;
    for (const OptimiserKind* kind : optimiser_kinds()) names.emplace_back(kind->name);
    return names;
}
const OptimiserKind* optimiser_find(std::string_view name) {
    for (const OptimiserKind* kind : optimiser_kinds())
        if (name == kind->name) return kind;
    return nullptr;
}
std::span<const char* const> schedule_kinds() { return schedules; }

double learning_rate(const OptimiserConfig& config, StepId step) {
    double lr = config.lr;
    if (config.schedule == "step") lr *= elementary::power(config.decay, step / config.decay_every);
    if (config.schedule == "cosine" && step > config.warm_up) {
        const uint64_t span = std::max(config.steps, step) - config.warm_up;
        const double half_turns = static_cast<double>(step - config.warm_up) / static_cast<double>(span);
        lr = config.lr_end + (lr - config.lr_end) * (1 + elementary::turn(half_turns / 2).cos) / 2;
    }
    return step < config.warm_up ? lr * static_cast<double>(step + 1) / config.warm_up : lr;
}

Status optimiser_check(const OptimiserConfig& config) {
    GC_TRY(one_of("kind", config.kind, optimiser_names()));
    GC_TRY(one_of("schedule", config.schedule, {schedules.begin(), schedules.end()}));
    auto finite = [](const char* key, double value, bool above) {
        if ((above ? value > 0 : value >= 0) && std::isfinite(value)) return Status{};
        return fail(Code::invalid, "optimiser.{} {} must be {} 0", key, value, above ? "above" : "at least");
    };
    auto share = [](const char* key, double value) {
        if (value >= 0 && value < 1) return Status{};
        return fail(Code::invalid, "optimiser.{} {} must be at least 0 and below 1", key, value);
    };
    GC_TRY(finite("lr", config.lr, true));
    GC_TRY(share("momentum", config.momentum));
    GC_TRY(finite("weight_decay", config.weight_decay, false));
    GC_TRY(share("beta1", config.beta1));
    GC_TRY(share("beta2", config.beta2));
    GC_TRY(finite("epsilon", config.epsilon, true));
    GC_TRY(finite("decay", config.decay, true));
    GC_TRY(finite("lr_end", config.lr_end, false));
    const OptimiserKind* kind = optimiser_find(config.kind);
    if (config.nesterov && !kind->has("nesterov")) return fail(Code::invalid, "optimiser.nesterov goes with sgd and a momentum above 0");
    if (kind->check) GC_TRY(kind->check(config));
    if (config.schedule == "step" && config.decay_every == 0)
        return fail(Code::invalid, "optimiser.decay_every must be at least 1 for the schedule step");
    if (config.schedule == "cosine" && config.steps == 0)
        return fail(Code::invalid, "the schedule cosine needs to know how many steps there are");
    return {};
}

Status optimiser_plan(const OptimiserConfig& config, const Layout& layout, Arena& arena, std::unique_ptr<Optimiser>* optimiser) {
    GC_TRY(optimiser_check(config));
    *optimiser = std::make_unique<HostOptimiser>(*optimiser_find(config.kind), config, layout, arena);
    return {};
}

}   // namespace gradcast
