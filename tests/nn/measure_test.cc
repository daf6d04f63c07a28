// The measuring pass: one digest for a kernel set, whatever the stage, lanes or slots; times and memory by unit.
#include "nn/measure.h"

#include "runtime/core/fd.h"
#include "tests/nn/nets.h"

namespace gradcast {
namespace {

NetMeasure measured(const NetSpec& spec, const NetConfig& config, uint32_t passes = 1) {
    NetMeasure result;
    const Status status = net_measure(spec, config, passes, nullptr, &result);
    EXPECT_TRUE(status.ok()) << status.what;
    return result;
}

// 5 samples leave vectors of 16 partly empty, and memory that a kernel does not write has another content each time.
TEST(Measure, DigestsAreTheSameEachTime) {
    for (const Difference& each : differences()) {
        SCOPED_TRACE(each.name);
        const NetConfig config = sizes({5, 4});
        EXPECT_EQ(measured(each.spec, config).digest, measured(each.spec, config, 3).digest);
    }
}

TEST(Measure, DigestsDependOnTheKernelsAlone) {
    const NetSpec spec = everything();
    const NetMeasure wanted = measured(spec, sizes({7, 6}));
    NetConfig config = sizes({7, 6}, 3);
    config.samples_max = 100;
    config.bucket_bytes = 1;
    config.seed = 9;
    config.slots = 2;
    config.stage = {wanted.units[1].first, wanted.units[3].first};
    EXPECT_EQ(measured(spec, config).digest, wanted.digest);
    config.block_sizes = {};   // 100 and 99
    EXPECT_NE(measured(spec, config).digest, wanted.digest);
    NetSpec other = spec;
    other.layers[4] = conv(20, 5, 1, 2);
    EXPECT_NE(measured(other, sizes({7, 6})).digest, wanted.digest);
}

TEST(Measure, TakesEachUnitApart) {
    for (const char* name : {"lenet5", "nin", "resnet9"}) {
        SCOPED_TRACE(name);
        const bool grey = name == std::string("lenet5");
        const NetSpec spec = preset(name, grey ? 1 : 3, grey ? 28 : 32);
        const NetMeasure found = measured(spec, sizes({4}), 2);
        Rig rig(spec, sizes({4}));
        std::vector<uint32_t> begins;
        for (const UnitTimes& unit : found.units) {
            EXPECT_EQ(unit.first, begins.empty() ? 0 : found.units[begins.size() - 1].end);
            begins.push_back(unit.first);
            for (const double seconds : {unit.forward, unit.data, unit.weights}) EXPECT_TRUE(seconds >= 0 && seconds < 10);
            EXPECT_GT(unit.forward, 0);
        }
        EXPECT_EQ(begins, rig.net->stage_begins());
        EXPECT_EQ(found.units.back().end, spec.layers.size());
        EXPECT_LT(found.bytes, rig.arena.whole().bytes);
    }
}

TEST(Measure, Stops) {
    const std::atomic<bool> stop{true};
    NetMeasure found;
    EXPECT_EQ(net_measure(preset("lenet5"), sizes({4}), 1, &stop, &found).code, Code::cancelled);
}

TEST(Measure, NamesWhatCannotBePlanned) {
    NetConfig config = sizes({4});
    config.precision = Precision::tf32;
    NetMeasure found;
    EXPECT_STREQ(net_measure(preset("lenet5"), config, 1, nullptr, &found).what,
                 "precision tf32 is for GPUs: take f32 or bf16, or device cuda");
}

TEST(Measure, Bf16IsAnotherKernelSet) {
    if (isa_best() < Isa::avx512_bf16) GTEST_SKIP() << "this CPU has no bf16";
    for (const NetSpec& spec : {preset("mlp"), preset("nin", 3, 32), everything()}) {
        NetConfig config = sizes({16});
        const uint64_t exact = measured(spec, config).digest;
        config.precision = Precision::bf16;
        EXPECT_NE(measured(spec, config).digest, exact);
        EXPECT_EQ(measured(spec, config).digest, measured(spec, config, 2).digest);
    }
}

// The instruction set is fixed once a process, so each one runs in a child.
std::string digest_file(Isa isa) { return testing::TempDir() + "gradcast_measured_" + isa_name(isa); }
void measures(Isa isa) {
    if (!nn_isa(isa).ok()) std::exit(2);
    std::string digests;
    for (const NetSpec& spec : {preset("lenet5"), preset("mlp"), preset("nin", 3, 32), everything()})
        digests += fmt::format("{:016x}", measured(spec, sizes({4})).digest);
    std::exit(testing::Test::HasFailure() || !file_write(digest_file(isa), digests).ok());
}

TEST(MeasureDeathTest, InstructionSetsAreDifferentKernelSets) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    std::vector<std::string> all;
    for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
        if (isa > isa_best()) continue;
        EXPECT_EXIT(measures(isa), testing::ExitedWithCode(0), "");
        std::string& digests = all.emplace_back();
        ASSERT_TRUE(file_read(digest_file(isa), &digests).ok());
        for (size_t other = 0; other + 1 < all.size(); ++other)
            for (size_t net = 0; net < digests.size(); net += 16) {
                // lenet5 and mlp have no layer of oneDNN, and gradcast's own kernels add in one order on AVX2 and AVX-512.
                const bool alike = net < 32 && other == 1;
                EXPECT_EQ(digests.substr(net, 16) == all[other].substr(net, 16), alike) << net / 16;
            }
    }
}

}   // namespace
}   // namespace gradcast
