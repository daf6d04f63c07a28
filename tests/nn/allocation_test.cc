// A step of a net does not allocate.
#include "tests/allocations.h"
#include "tests/nn/rig.h"

namespace gradcast {
namespace {

struct Forget : GradientSink {
    Status bucket(uint32_t, BlockId, uint32_t, Buffer) override { return {}; }
    void loss(uint32_t, BlockId, double) override {}
};

TEST(Allocation, NoneInAStep) {
    if (!allocations_counted) GTEST_SKIP() << "malloc of our own: a sanitizer has taken its place";
    for (auto [name, precision] : {std::pair{"lenet5", Precision::f32},
                                   {"cnn", Precision::f32},
                                   {"mlp", Precision::f32},
                                   {"everything", Precision::f32},
                                   {"cnn", Precision::bf16},
                                   {"everything", Precision::bf16}}) {
        if (precision == Precision::bf16 && isa_best() < Isa::avx512_bf16) continue;
        NetSpec spec = everything();
        if (name != std::string("everything")) {
            ASSERT_TRUE(preset_find(name, 1, 28, 28, 10, &spec).ok());
        }
        NetConfig config = sizes({12, 13});
        config.precision = precision;
        Rig rig(spec, config, {.momentum = 0.9});
        Data a(spec, 12), b(spec, 13);
        std::vector<int32_t> words(rig.net->layout().elements, 1);
        const std::vector<double> units(rig.net->layout().groups.size(), 0x1p-40);
        const std::vector<BucketSum> sums = sums_of(rig.net->layout(), words.data(), Word::i32, units);
        Forget sink;
        auto step = [&](StepId number) {
            bool ok = rig.net->block(0, {number, 0}, a.samples, sink).ok() && rig.net->block(0, {number, 1}, b.samples, sink).ok();
            rig.optimiser->step(number);
            uint64_t digest = 0;
            return ok && rig.net->apply(rig.lanes, *rig.optimiser, sums, &digest).ok();
        };
        // The first block of a thread makes OpenMP's settings for it.
        ASSERT_TRUE(step(0));
        allocations_watch();
        bool ok = step(1);
        allocations_watched = false;
        EXPECT_TRUE(ok);
        if (name == std::string("cnn")) {
            EXPECT_GT(allocations_of_onednn, 0u) << "nothing is counted at all: the wrappers do not work";
        }
        EXPECT_EQ(allocations, 0u) << name;
        if (allocations) backtrace_symbols_fd(allocation_first.data(), static_cast<int>(allocation_first.size()), 2);
    }
    allocations_watch();
    std::vector<int> proof(1000);   // proves that allocations are seen
    allocations_watched = false;
    EXPECT_EQ(allocations, 1u) << proof.size();
}

}   // namespace
}   // namespace gradcast
