// The update of whole steps (nn/cuda/apply.h) against that of each group alone, which nn_net_test.cc compares with the CPU's.
#include <algorithm>
#include <cmath>
#include <random>

#include "nn/cuda/kernels.h"
#include "tests/cuda/fixture.h"

namespace gradcast::cuda {
namespace {

using CudaUpdate = OnDevice;

struct UpdateCase {
    const OptimiserKind& kind;
    const UpdateKernels& kernels;
    OptimiserConfig config;
    Word word;
    uint32_t lanes;
};

/// Groups of few elements, of whole thread blocks and of more, from each offset modulo a pack on.
struct Groups {
    std::vector<UpdateGroup> all;
    uint64_t elements = 0, words = 0;
    explicit Groups(const UpdateCase& c) : words(c.lanes - 1) {   // words need not be aligned as the elements are
        for (const uint32_t offset : {0u, 1u, 2u, 3u})
            for (const uint64_t count : {1u, 3u, 4u, 5u, 1023u, 1025u, 2047u, 2048u, 2049u, 4100u}) {
                while (elements % 4 != offset) add(1, UpdateRule::plain, c);
                for (const UpdateRule rule : {UpdateRule::plain, UpdateRule::statistics, UpdateRule::exempt, UpdateRule::frozen})
                    add(count, rule, c);
            }
        while (elements % 4 == 0) add(1, UpdateRule::plain, c);   // so the second vector of state is not aligned
    }
    void add(uint64_t count, UpdateRule rule, const UpdateCase& c) {
        const int32_t radix = rule == UpdateRule::statistics && c.word == Word::i16 ? 201 : 0;
        all.push_back({elements, count, words, count, static_cast<uint32_t>(all.size()), radix, rule});
        elements += count;
        words += radix != 0 ? 3 * count : count;
    }
};

template <typename T>
void expect_as_alone(const UpdateCase& c) {
    const Groups groups(c);
    const uint32_t own = c.kind.vectors(c.config), vectors = optimiser_vectors(c.config);
    std::mt19937 random(7);
    std::vector<double> units;
    for (size_t g = 0; g < groups.all.size(); ++g)
        units.push_back(std::ldexp(1.0, -8 * static_cast<int>(sizeof(T)) - static_cast<int>(g % 3)));
    std::vector<std::unique_ptr<DeviceVector<T>>> lanes;
    std::vector<T> sums(groups.words);
    UpdateTask task{};
    for (uint32_t lane = 0; lane < c.lanes; ++lane) {
        std::vector<T> words(groups.words);
        for (size_t i = 0; i < words.size(); ++i) {
            words[i] = static_cast<T>(random());
            sums[i] = static_cast<T>(sums[i] + words[i]);
        }
        lanes.push_back(std::make_unique<DeviceVector<T>>(words));
        task.words.from[lane] = lanes.back()->get();
    }
    std::vector<int64_t> whole(groups.elements);
    for (const UpdateGroup& group : groups.all)
        for (uint64_t i = 0; i < group.count; ++i)
            for (uint64_t digits = group.radix != 0 ? 3 : 1; digits-- > 0;)
                whole[group.element + i] = whole[group.element + i] * group.radix +
                                           static_cast<std::make_signed_t<T>>(sums[group.words + digits * group.digit + i]);
    std::normal_distribution<float> normal;
    std::vector<float> values(groups.elements), state(vectors * groups.elements);
    for (float& each : values) each = normal(random);
    for (float& each : state) each = std::abs(normal(random));   // Adam's second moments are not negative

    const UpdateRates rates = {c.kind.rates(c.config, 3), c.kind.rates(optimiser_without_decay(c.config), 3), averaged_share(c.config, 3)};
    const float share = 0.25f;
    const DeviceVector<double> unit(units);
    const DeviceVector<uint32_t> spoiled(std::vector<uint32_t>(2)), halted(std::vector<uint32_t>{0, 1});
    auto at = [&](const DeviceVector<float>& values_of, const DeviceVector<float>& state_of, uint64_t element) {
        auto vector = [&](uint32_t number, bool there) { return there ? state_of.get() + number * groups.elements + element : nullptr; };
        return UpdateVectors{values_of.get() + element, vector(0, own > 0), vector(1, own > 1), vector(own, vectors > own)};
    };
    const DeviceVector<float> w(values), s(state), w_alone(values), s_alone(state);
    const DeviceVector<int64_t> words(whole);
    const DeviceVector<ApplyNow> now(std::vector<ApplyNow>{{words.get(), Word::i64, rates, spoiled.get() + 1}});
    for (const UpdateGroup& group : groups.all) {
        const Words from{now.get(), group.element, unit.get() + group.number};
        const UpdateVectors alone = at(w_alone, s_alone, group.element);
        ASSERT_TRUE(ok(group.rule == UpdateRule::statistics ? apply_statistics(nullptr, alone.w, from, group.count, share)
                                                            : c.kernels.apply(nullptr, alone, group.rule, from, group.count, nullptr)));
    }
    const std::vector<float> w_want = w_alone.read(), s_want = s_alone.read();

    std::vector<UpdateBlock> blocks;
    uint32_t count = 0;
    for (const UpdateGroup& group : groups.all) {
        update_split(group, &blocks);
        count += update_blocks(group.element, group.count);
        ASSERT_EQ(blocks.size(), count);
    }
    const DeviceVector<UpdateBlock> block(blocks);
    const DeviceVector<UpdateRates> rate(std::vector<UpdateRates>{rates});
    const DeviceVector<UpdateTotal> total(std::vector<UpdateTotal>(1));
    const DeviceVector<uint64_t> digest(1);
    task.at = at(w, s, 0);
    task.words.word = c.word;
    task.words.lanes = c.lanes;
    task.words.units = unit.get();
    task.rates = rate.get();
    task.blocks = block.get();
    task.elements = groups.elements;
    task.total = total.get();
    task.digest = digest.get();
    task.spoiled = spoiled.get();
    task.share = share;
    auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
        return std::ranges::equal(a, b, {}, std::bit_cast<uint32_t, float>, std::bit_cast<uint32_t, float>);
    };
    for (const uint32_t stop : {0u, 1u}) {   // the second changes nothing
        task.words.halted = halted.get() + stop;
        ASSERT_TRUE(ok(c.kernels.all(nullptr, task, count)));
        const std::vector<float> w_found = w.read();
        for (const UpdateGroup& group : groups.all)
            for (uint64_t i = group.element; i < group.element + group.count; ++i)
                ASSERT_EQ(std::bit_cast<uint32_t>(w_found[i]), std::bit_cast<uint32_t>(w_want[i]))
                    << "element " << i - group.element << " of " << group.count << " from " << group.element << " on";
        EXPECT_TRUE(same(s.read(), s_want));
        EXPECT_EQ(digest.read()[0], digest64(w_want) + digest64(s_want, groups.elements));
        EXPECT_EQ(spoiled.read(), std::vector<uint32_t>(2));
    }
    // One element that is not finite, in the last pack of a group.
    values = w_want;
    values[groups.elements - 1] = INFINITY;
    const DeviceVector<float> wild(values);
    task.at.w = wild.get();
    ASSERT_TRUE(ok(c.kernels.all(nullptr, task, count)));
    EXPECT_EQ(spoiled.read()[0], 1u);
}

TEST_F(CudaUpdate, GroupsOfAnyOffsetAndSizeAreAsAlone) {
    const OptimiserConfig plain{.lr = 0.1}, momentum{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true},
        adam{.kind = "adam", .lr = 0.01, .weight_decay = 0.01}, adamw{.kind = "adamw", .lr = 0.01, .weight_decay = 0.01};
    for (const uint32_t lanes : {1u, 3u})
        for (const UpdateCase& c :
             {UpdateCase{sgd_optimiser, sgd_kernels, plain, {}, lanes}, UpdateCase{sgd_optimiser, sgd_kernels, momentum, {}, lanes},
              UpdateCase{adam_optimiser, adam_kernels, adam, {}, lanes}, UpdateCase{adamw_optimiser, adamw_kernels, adamw, {}, lanes}})
            for (const double ema : {0.0, 0.75}) {
                if (ema > 0 && lanes > 1) continue;
                SCOPED_TRACE(fmt::format("{} {}, lanes: {}, ema {}", c.config.kind, c.config.momentum, lanes, ema));
                UpdateCase with = {c.kind, c.kernels, c.config, Word::i16, lanes};
                with.config.ema = ema;
                expect_as_alone<uint16_t>(with);
                with.word = Word::i32;
                expect_as_alone<uint32_t>(with);
            }
}

}   // namespace
}   // namespace gradcast::cuda
