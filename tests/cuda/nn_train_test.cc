// Training on a GPU: the same digests in every run, and the CPU's results.
#include "tests/cuda/nn_rig.h"

namespace gradcast {
namespace {

NetSpec small_mlp() { return {.C = 1, .H = 6, .W = 5, .classes = 4, .layers = {fc(17), relu(), fc(9), relu(), fc(4), loss()}}; }

/// Digests of the parameters after each step.
template <typename R>
std::vector<uint64_t> train(R& rig, const NetSpec& spec, uint32_t steps, uint32_t count) {
    std::vector<uint64_t> digests;
    for (uint32_t step = 0; step < steps; ++step) {
        Data data(spec, count, step + 1);
        rig.step(step, rig.block(data.samples, 0, step).gradient, count);
        digests.push_back(rig.net->digest());
        EXPECT_EQ(digests.back(), digest64(std::span<const float>(rig.net->parameters())));
    }
    return digests;
}

TEST(CudaNet, Trains) {
    GC_NEED_GPU();
    const NetSpec spec = small_mlp();
    const OptimiserConfig sgd{.lr = 0.1, .momentum = 0.9};
    CudaRig first(spec, sizes({7}), sgd), second(spec, sizes({7}), sgd);
    Rig cpu(spec, sizes({7}), sgd);
    Data data(spec, 7);
    const double before = first.loss(data.samples);
    EXPECT_NEAR(before, cpu.loss(data.samples), 1e-4);
    EXPECT_EQ(train(first, spec, 6, 7), train(second, spec, 6, 7));
    train(cpu, spec, 6, 7);
    EXPECT_LT(distance(first.net->parameters(), cpu.net->parameters()), 1e-5);
    EXPECT_LT(distance(first.optimiser->state(), cpu.optimiser->state()), 1e-5);
    EXPECT_EQ(first.optimiser->digest(5), digest64(std::span<const float>(first.optimiser->state()), 5));
    EXPECT_NE(first.loss(data.samples), before);
}

}   // namespace
}   // namespace gradcast
