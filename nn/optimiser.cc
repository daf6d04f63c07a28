#include "nn/optimiser.h"

#include <cmath>

#include "nn/kernels.h"

namespace gradcast {
namespace {

class Sgd final : public Optimiser {
public:
    Sgd(const OptimiserConfig& config, uint64_t elements, Arena& arena)
        : lr_(static_cast<float>(config.lr)),
          momentum_(static_cast<float>(config.momentum)),
          weight_decay_(static_cast<float>(config.weight_decay)) {
        if (momentum_ != 0) arena.plan("optimiser", elements * sizeof(float), &velocity_);
    }
    void step(StepId) override {}
    void update(uint64_t offset, std::span<float> w, std::span<const float> gradient) override {
        GC_ASSERT(w.size() == gradient.size());
        float* v = velocity_.host ? velocity_.as<float>() + offset : nullptr;
        kernels_.sgd(w.data(), v, gradient.data(), w.size(), lr_, momentum_, weight_decay_);
    }
    std::span<float> state() override { return {velocity_.as<float>(), velocity_.bytes / sizeof(float)}; }

private:
    const FloatKernels& kernels_ = float_kernels(isa_best());
    float lr_, momentum_, weight_decay_;
    Buffer velocity_;
};

}   // namespace

Status optimiser_plan(const OptimiserConfig& config, uint64_t elements, Arena& arena, std::unique_ptr<Optimiser>* optimiser) {
    if (config.kind != "sgd") return fail(Code::invalid, "optimiser.kind \"{}\" is unknown: one of sgd", config.kind);
    if (!(config.lr > 0) || !std::isfinite(config.lr)) return fail(Code::invalid, "optimiser.lr {} must be above 0", config.lr);
    if (!(config.momentum >= 0 && config.momentum < 1))
        return fail(Code::invalid, "optimiser.momentum {} must be at least 0 and below 1", config.momentum);
    if (!(config.weight_decay >= 0) || !std::isfinite(config.weight_decay))
        return fail(Code::invalid, "optimiser.weight_decay {} must be at least 0", config.weight_decay);
    *optimiser = std::make_unique<Sgd>(config, elements, arena);
    return {};
}

}   // namespace gradcast
