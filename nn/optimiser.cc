#include "nn/optimiser.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "nn/kernels.h"

namespace gradcast {
namespace {

constexpr std::array<const char*, 2> kinds = {"sgd", "adam"};
constexpr std::array<const char*, 3> schedules = {"constant", "step", "cosine"};

// The C library's pow and cos have other bits on other CPUs.
double power(double base, uint64_t exponent) {
    double result = 1;
    for (; exponent; exponent >>= 1, base *= base)
        if (exponent & 1) result *= base;
    return result;
}

/// cos(pi x), x in 0..1: Taylor's series about 0, whose terms are below 1e-18 at the end.
double cosine(double x) {
    if (x > 0.5) return -cosine(1 - x);
    double square = std::numbers::pi * x * std::numbers::pi * x, result = 1;
    for (int n = 24; n > 0; n -= 2) result = 1 - result * square / (n * (n - 1));
    return result;
}

class Sgd final : public Optimiser {
public:
    Sgd(const OptimiserConfig& config, uint64_t elements, Arena& arena)
        : config_(config),
          elements_(elements),
          momentum_(static_cast<float>(config.momentum)),
          weight_decay_(static_cast<float>(config.weight_decay)) {
        if (momentum_ != 0) arena.plan("optimiser", elements * sizeof(float), &velocity_);
        step(0);
    }
    void step(StepId step) override { lr_ = static_cast<float>(learning_rate(config_, step)); }
    uint64_t update(uint64_t offset, std::span<float> w, std::span<const float> gradient) override {
        GC_ASSERT(w.size() == gradient.size());
        float* v = velocity_.host ? velocity_.as<float>() + offset : nullptr;
        auto kernel = config_.nesterov ? kernels_.nesterov : kernels_.sgd;
        kernel(w.data(), v, gradient.data(), w.size(), lr_, momentum_, weight_decay_);
        return digest64(w, offset) + digest64({v, v ? w.size() : 0}, elements_ + offset);
    }
    std::span<float> state() override { return {velocity_.as<float>(), velocity_.bytes / sizeof(float)}; }

private:
    const FloatKernels& kernels_ = float_kernels(isa_best());
    const OptimiserConfig config_;
    const uint64_t elements_;
    float lr_, momentum_, weight_decay_;
    Buffer velocity_;
};

class Adam final : public Optimiser {
public:
    Adam(const OptimiserConfig& config, uint64_t elements, Arena& arena) : config_(config), elements_(elements) {
        arena.plan("optimiser", 2 * elements * sizeof(float), &moments_);
        step(0);
    }
    void step(StepId step) override { now_ = adam_step(config_, step); }
    uint64_t update(uint64_t offset, std::span<float> w, std::span<const float> gradient) override {
        GC_ASSERT(w.size() == gradient.size());
        float* m = moments_.as<float>() + offset;
        kernels_.adam(w.data(), m, m + elements_, gradient.data(), w.size(), now_);
        return digest64(w, offset) + digest64({m, w.size()}, elements_ + offset) +
               digest64({m + elements_, w.size()}, 2 * elements_ + offset);
    }
    std::span<float> state() override { return {moments_.as<float>(), 2 * elements_}; }

private:
    const FloatKernels& kernels_ = float_kernels(isa_best());
    const OptimiserConfig config_;
    const uint64_t elements_;
    AdamStep now_;
    Buffer moments_;
};

Status one_of(const char* key, const std::string& name, std::span<const char* const> names) {
    if (std::find(names.begin(), names.end(), name) != names.end()) return {};
    return fail(Code::invalid, "optimiser.{} \"{}\" is unknown: one of {}", key, name, fmt::join(names, ", "));
}

}   // namespace

std::span<const char* const> optimiser_kinds() { return kinds; }
std::span<const char* const> schedule_kinds() { return schedules; }

AdamStep adam_step(const OptimiserConfig& config, StepId step) {
    double one = 1 - power(config.beta1, step + 1), two = 1 - power(config.beta2, step + 1);
    return {.beta1 = static_cast<float>(config.beta1),
            .rest1 = static_cast<float>(1 - config.beta1),
            .beta2 = static_cast<float>(config.beta2),
            .rest2 = static_cast<float>(1 - config.beta2),
            .rate = static_cast<float>(learning_rate(config, step) / one),
            .root = static_cast<float>(1 / std::sqrt(two)),
            .epsilon = static_cast<float>(config.epsilon),
            .weight_decay = static_cast<float>(config.weight_decay)};
}

double learning_rate(const OptimiserConfig& config, StepId step) {
    double lr = config.lr;
    if (config.schedule == "step") lr *= power(config.decay, step / config.decay_every);
    if (config.schedule == "cosine" && step > config.warm_up) {
        uint64_t span = std::max(config.steps, step) - config.warm_up;
        lr =
            config.lr_end + (lr - config.lr_end) * (1 + cosine(static_cast<double>(step - config.warm_up) / static_cast<double>(span))) / 2;
    }
    return step < config.warm_up ? lr * static_cast<double>(step + 1) / config.warm_up : lr;
}

Status optimiser_check(const OptimiserConfig& config) {
    GC_TRY(one_of("kind", config.kind, kinds));
    GC_TRY(one_of("schedule", config.schedule, schedules));
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
    if (config.nesterov && (config.kind != "sgd" || config.momentum == 0))
        return fail(Code::invalid, "optimiser.nesterov goes with sgd and a momentum above 0");
    if (config.schedule == "step" && config.decay_every == 0)
        return fail(Code::invalid, "optimiser.decay_every must be at least 1 for the schedule step");
    if (config.schedule == "cosine" && config.steps == 0)
        return fail(Code::invalid, "the schedule cosine needs to know how many steps there are");
    return {};
}

Status optimiser_plan(const OptimiserConfig& config, uint64_t elements, Arena& arena, std::unique_ptr<Optimiser>* optimiser) {
    GC_TRY(optimiser_check(config));
    if (config.kind == "adam") *optimiser = std::make_unique<Adam>(config, elements, arena);
    else *optimiser = std::make_unique<Sgd>(config, elements, arena);
    return {};
}

}   // namespace gradcast
