// What decay_exempt, freeze and clip_norm do to a step, against PyTorch's parameter groups and clip_grad_norm_.
#include "nn/clip.h"
#include "nn/graph/slices.h"
#include "tests/nn/rig.h"

namespace gradcast {
namespace {

/// fc1.weight [2,3], fc1.bias, norm1.weight and norm1.bias [2], and the running statistics [2,2].
NetSpec small_net() { return {.C = 1, .H = 1, .W = 3, .classes = 2, .layers = {fc(2), norm(), loss()}}; }
constexpr uint64_t learnt = 12;

OptimiserConfig resolved(OptimiserConfig config, const NetSpec& spec = small_net()) {
    std::vector<Layer> layers;
    EXPECT_TRUE(layers_check(spec, &layers).ok());
    const Status status = optimiser_ranges(layers, &config);
    EXPECT_TRUE(status.ok()) << status.what;
    return config;
}

std::string refused(OptimiserConfig config, const NetSpec& spec = small_net()) {
    std::vector<Layer> layers;
    EXPECT_TRUE(layers_check(spec, &layers).ok());
    return optimiser_ranges(layers, &config).what;
}

/// Clips the sums, and returns the norm before that.
double clipped(NormClip& clip, ScaledUnits& scaled, Lanes& lanes, const Layout& layout, std::span<BucketSum> sums) {
    const double norm = NormClip::norm(clip.terms(&lanes, layout, sums));
    scaled.apply(layout, clip.factor(norm), sums);
    return norm;
}

OptimiserConfig sgd() { return {.lr = 0.125, .momentum = 0.875, .weight_decay = 0.25}; }
OptimiserConfig adamw() { return {.kind = "adamw", .lr = 0.125, .weight_decay = 0.25, .beta1 = 0.75, .beta2 = 0.9375, .epsilon = 0.0625}; }

/// Three steps of w[i] = (i - 5) / 4 with the gradients ((7 i + 3 t) mod 11 - 5) / 8; of statistics with 2.
struct Three {
    std::vector<float> w, state;
    std::vector<double> norms;   // with a clip
    explicit Three(const OptimiserConfig& config, StepId steps = 3) {
        Rig rig(small_net(), sizes({2}), resolved(config));
        for (uint64_t i = 0; i < learnt; ++i) rig.net->parameters()[i] = (static_cast<float>(i) - 5) / 4;
        std::optional<NormClip> clip;
        ScaledUnits scaled(rig.net->layout());
        if (config.clip_norm > 0) clip.emplace(resolved(config), rig.net->layout());
        const Layout& layout = rig.net->layout();
        for (StepId t = 0; t < steps; ++t) {
            std::vector<float> gradient(layout.elements, 2.0f);
            for (uint64_t i = 0; i < learnt; ++i) gradient[i] = (static_cast<float>((i * 7 + t * 3) % 11) - 5) / 8;
            if (!clip) {
                rig.step(t, gradient, 1);
                continue;
            }
            const std::vector<double> units(layout.groups.size(), 0x1p-20);
            std::vector<int32_t> words(layout.elements);
            for (uint64_t i = 0; i < words.size(); ++i) words[i] = static_cast<int32_t>(gradient[i] * 0x1p20f);
            std::vector<BucketSum> sums = sums_of(layout, words.data(), Word::i32, units);
            norms.push_back(clipped(*clip, scaled, rig.lanes, layout, sums));
            uint64_t digest = 0;
            rig.optimiser->step(t);
            EXPECT_TRUE(rig.net->apply(rig.lanes, *rig.optimiser, sums, &digest).ok());
        }
        w.assign(rig.net->parameters().begin(), rig.net->parameters().end());
        state.assign(rig.optimiser->state().begin(), rig.optimiser->state().end());
    }
    void expect(std::initializer_list<double> wanted) const {
        ASSERT_EQ(wanted.size(), learnt);
        for (uint64_t i = 0; i < learnt; ++i) EXPECT_NEAR(w[i], wanted.begin()[i], 1e-6) << i;
    }
};

OptimiserConfig with(OptimiserConfig config, bool exempt, std::vector<std::string> names, std::vector<std::string> freeze = {}) {
    config.decay_exempt = exempt;
    config.decay_exempt_names = std::move(names);
    config.freeze = std::move(freeze);
    return config;
}

// Numbers of torch.optim in double precision, the exempt tensors in a group with weight_decay = 0.
TEST(DecayExempt, GivesPyTorchsNumbers) {
    Three(with(sgd(), true, {}))
        .expect({-0.8010940551757812, -1.00830078125, -0.6366043090820312, -0.52691650390625, -0.30023956298828125, 0.0714569091796875,
                 0.2177734375, 0.490234375, 0.9130859375, 1.053955078125, 1.154541015625, 1.749267578125});
    Three(with(adamw(), true, {}))
        .expect({-0.8864504601119781, -1.1312281185726805, -0.63259792522331, -0.5805531956860458, -0.3944604460081755, 0.13669085741757772,
                 0.1798725012683133, 0.4569719661988231, 0.9632519520314615, 0.9893799600046409, 1.2050078098710526, 1.759987945419869});
    Three(with(adamw(), false, {"fc1"}))
        .expect({-0.990012054580131, -1.2315650653633907, -0.6940434331593559, -0.6333345053434115, -0.42536741098407366,
                 0.14522415453652107, 0.1798725012683133, 0.4569719661988231, 0.8856313580279217, 0.9038020570013408, 1.0876482782698966,
                 1.6137097571731782});
    Three(with(sgd(), false, {"norm1.weight"}))
        .expect({-0.8010940551757812, -1.00830078125, -0.6366043090820312, -0.52691650390625, -0.30023956298828125, 0.0714569091796875,
                 0.18114471435546875, 0.4078216552734375, 0.9130859375, 1.053955078125, 0.9440078735351562, 1.487579345703125});
}

// Those of parameters that are in no group; bits and state are as they were.
TEST(Freeze, KeepsEveryBit) {
    const Three three(with(adamw(), true, {}, {"fc1.bias", "norm1"}));
    three.expect({-0.8864504601119781, -1.1312281185726805, -0.63259792522331, -0.5805531956860458, -0.3944604460081755,
                  0.13669085741757772, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5});
    for (uint64_t i = 6; i < learnt; ++i) {
        EXPECT_EQ(three.w[i], (static_cast<float>(i) - 5) / 4) << i;
        EXPECT_EQ(three.state[i], 0) << i;
        EXPECT_EQ(three.state[three.w.size() + i], 0) << i;
    }
    EXPECT_NE(three.state[0], 0);
    // Running statistics of a frozen layer go on: 2 (1 - 0.9^3) from 0.
    for (uint64_t i = learnt; i < learnt + 2; ++i) EXPECT_NEAR(three.w[i], 0.542, 1e-6);
}

TEST(Freeze, NamesLayersAndWhatHoldsThem) {
    NetSpec spec;
    ASSERT_TRUE(preset_find("resnet18", 3, 32, 32, 10, &spec).ok());
    std::vector<Layer> layers;
    ASSERT_TRUE(layers_check(spec, &layers).ok());
    const auto frozen = [&](std::vector<std::string> names) {
        uint64_t count = 0;
        for (const OptimiserRange& range : resolved(with(sgd(), false, {}, std::move(names)), spec).ranges) count += range.count;
        return count;
    };
    uint64_t first = 0;
    for (const Layer& layer : layers)
        if (layer.spec.name.starts_with("layer1.")) first += layer.parameters();
    EXPECT_GT(first, 0u);
    EXPECT_EQ(frozen({"layer1"}), first);
    EXPECT_EQ(frozen({"layer1", "layer1.0"}), first);
    EXPECT_EQ(frozen({"fc"}), 512u * 10 + 10);
    EXPECT_EQ(frozen({"fc.bias"}), 10u);
    EXPECT_EQ(frozen({}), 0u);
}

TEST(Freeze, RefusesUnknownNamesAndAll) {
    EXPECT_EQ(refused(with(sgd(), false, {}, {"fc2"})),
              "optimiser.freeze: \"fc2\" names no layer with weights (did you mean fc1?): one of fc1, norm1, or one of their tensors, as "
              "fc1.weight");
    EXPECT_EQ(refused(with(sgd(), false, {"loss"})),
              "optimiser.decay_exempt: \"loss\" names no layer with weights: one of fc1, norm1, or one of their tensors, as fc1.weight");
    for (const char* name : {"", "fc", "fc1.", "fc1.weights", "norm1.running_mean"})
        EXPECT_TRUE(refused(with(sgd(), false, {}, {name})).starts_with(fmt::format("optimiser.freeze: \"{}\" names no layer", name)))
            << name;
    EXPECT_EQ(refused(with(sgd(), false, {}, {"fc1", "norm1"})), "optimiser.freeze: it names all of the net, and nothing would learn");
}

// Of the whole net's numbers, with the layers of a stage alone.
TEST(Freeze, FindsTheElementsOfAStage) {
    const NetSpec spec{.C = 1, .H = 1, .W = 3, .classes = 2, .layers = {fc(2), norm(), fc(2), loss()}};
    const OptimiserConfig config = resolved(with(sgd(), true, {}, {"norm1", "fc2.bias"}), spec);
    std::vector<Layer> layers;
    ASSERT_TRUE(layers_check(spec, &layers).ok());
    const Layout layout = layers_layout(layers, 1, {.first = 1, .end = 4});
    Arena arena;
    std::unique_ptr<Optimiser> optimiser;
    ASSERT_TRUE(optimiser_plan(config, layout, arena, &optimiser).ok());
    ASSERT_TRUE(arena.seal().ok());
    std::ranges::fill(optimiser->state(), 0.0f);
    std::vector<float> w(layout.elements, 1), g(layout.elements, 1);
    optimiser->step(0);
    (void)optimiser->update(0, std::span(w).first(4), std::span(g).first(4));   // norm1: frozen
    (void)optimiser->update(4, std::span(w).subspan(4, 6), std::span(g).subspan(4, 6));
    for (uint64_t i = 0; i < 10; ++i) EXPECT_EQ(w[i], i < 4 || i >= 8 ? 1 : 1 - 0.125f * 1.25f) << i;
}

// Numbers of the formulas in double precision (numpy); tensors without decay take Adam's step.
TEST(Lamb, GivesTheNumbersOfItsFormulas) {
    OptimiserConfig lamb = adamw();
    lamb.kind = "lamb";
    Three(lamb).expect({-0.7793835352711369, -1.1233632311658608, -0.6933246033589844, -0.5553028128842877, -0.37820613273334613,
                        0.09886264639161123, 0.22369988536596927, 0.47152546968916903, 0.904112608063759, 1.0542698321621369,
                        0.8709817217262483, 1.810885059323411});
    Three(with(lamb, true, {}))
        .expect({-0.7793835352711369, -1.1233632311658608, -0.6933246033589844, -0.5553028128842877, -0.37820613273334613,
                 0.09886264639161123, 0.1798725012683133, 0.4569719661988231, 0.9632519520314615, 0.9893799600046409, 1.2050078098710526,
                 1.759987945419869});
    const Three frozen(with(lamb, false, {}, {"norm1"}));
    for (uint64_t i = 8; i < learnt; ++i) EXPECT_EQ(frozen.w[i], (static_cast<float>(i) - 5) / 4) << i;
    EXPECT_NEAR(frozen.w[7], 0.47152546968916903, 1e-6);
}

TEST(Ema, AveragesTheWeightsBehindTheOtherState) {
    OptimiserConfig config = with(sgd(), false, {}, {"norm1"});
    const Three plain(config);
    config.ema = 0.75;
    EXPECT_EQ(optimiser_vectors(config), 2u);
    const Three three(config);
    EXPECT_EQ(three.w, plain.w);
    const uint64_t elements = three.w.size();
    EXPECT_EQ(three.state.size(), 2 * elements);
    for (uint64_t i = 8; i < elements; ++i) EXPECT_EQ(three.state[elements + i], i < learnt ? three.w[i] : 0) << i;   // frozen; statistics
    // By hand from the weights after each step.
    std::vector<double> mean;
    for (StepId steps = 1; steps <= 3; ++steps) {
        const Three some(with(sgd(), false, {}, {"norm1"}), steps);
        if (mean.empty()) mean.assign(some.w.begin(), some.w.end());
        for (uint64_t i = 0; i < learnt; ++i) mean[i] = 0.75 * mean[i] + 0.25 * double{some.w[i]};
    }
    for (uint64_t i = 0; i < learnt; ++i) EXPECT_NEAR(three.state[elements + i], mean[i], 1e-6) << i;
}

// Those of clip_grad_norm_(1.25) before each step.
TEST(ClipNorm, GivesPyTorchsNumbers) {
    for (const bool adam : {false, true}) {
        OptimiserConfig config = adam ? adamw() : sgd();
        config.clip_norm = 1.25;
        const Three three(config);
        const double norms[] = {1.4523687548277813, 1.334634781503914, 1.3169567191065923};
        for (size_t t = 0; t < 3; ++t) EXPECT_NEAR(three.norms[t], norms[t], 1e-12);
        if (adam)
            three.expect({-0.8893634499190615, -1.124627257463337, -0.6411302732611974, -0.571686652825868, -0.38737553308280454,
                          0.12898441309999012, 0.17306385274965047, 0.4153136942796586, 0.8801121794131125, 0.9117548624584517,
                          1.0816680065580635, 1.6107967673660948});
        else
            three.expect({-0.8314335708756052, -0.9905575066754648, -0.6425918032269217, -0.5049170396721602, -0.2906136289320573,
                          0.05735207451648589, 0.19502683807124738, 0.4093302488113504, 0.7572959522598934, 0.8949707158146549,
                          0.946137719908577, 1.457239830003301});
        EXPECT_NEAR(three.w[learnt], 0.542, 1e-6);   // statistics are not scaled
    }
}

// A frozen parameter has no gradient for clip_grad_norm_(0.75).
TEST(ClipNorm, LeavesOutWhatIsFrozen) {
    OptimiserConfig config = with(sgd(), false, {}, {"fc1.bias", "norm1"});
    config.clip_norm = 0.75;
    const Three three(config);
    const double norms[] = {1.0307764064044151, 0.9270248108869579, 0.8926785535678563};
    for (size_t t = 0; t < 3; ++t) EXPECT_NEAR(three.norms[t], norms[t], 1e-12);
    three.expect({-0.8633207742495898, -0.9667977651788756, -0.6426020224798101, -0.4896989907103735, -0.2774795488091667,
                  0.046716193889898706, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5});
}

// Words of every width and size, also squares that 128 bits do not hold; several lanes give the bits of one.
TEST(ClipNorm, IsExact) {
    const NetSpec spec{.C = 1, .H = 12, .W = 12, .classes = 3, .layers = {fc(1500), norm(), fc(3), loss()}};
    std::vector<Layer> layers;
    ASSERT_TRUE(layers_check(spec, &layers).ok());
    const Layout layout = layers_layout(layers, 64 * 1024);
    Lanes one, three;
    ASSERT_TRUE(three.open(3).ok());
    for (const Word word : {Word::i16, Word::i32, Word::i64})
        for (const bool extreme : {false, true}) {
            SCOPED_TRACE(fmt::format("{} {}", word_bytes(word), extreme));
            std::mt19937_64 random(7);
            std::vector<std::byte> bytes(layout.elements * word_bytes(word));
            std::vector<double> units;
            for (size_t g = 0; g < layout.groups.size(); ++g) units.push_back(0x1p-30 / static_cast<double>(3 + g));
            long double wanted = 0;
            for (size_t g = 0; g < layout.groups.size(); ++g)
                for (uint64_t i = layout.groups[g].offset; i < layout.groups[g].offset + layout.groups[g].count; ++i) {
                    const int64_t least = word == Word::i16 ? INT16_MIN : word == Word::i32 ? INT32_MIN : INT64_MIN;
                    const int64_t value = extreme ? least : static_cast<int64_t>(random()) >> (66 - 8 * word_bytes(word));
                    std::memcpy(bytes.data() + i * word_bytes(word), &value, word_bytes(word));
                    const long double is = static_cast<long double>(value) * units[g];
                    if (!layout.groups[g].statistics) wanted += is * is;
                }
            wanted = std::sqrt(wanted);
            NormClip clip({.clip_norm = 1}, layout), other({.clip_norm = 1}, layout);
            ScaledUnits scaled(layout), other_scaled(layout);
            std::vector<BucketSum> sums = sums_of(layout, bytes.data(), word, units), again = sums;
            const double norm = clipped(clip, scaled, one, layout, sums);
            EXPECT_NEAR(norm / static_cast<double>(wanted), 1, 1e-12);
            EXPECT_EQ(norm, clipped(other, other_scaled, three, layout, again));
            const double factor = std::min(1.0, 1 / (norm + 1e-6));
            for (size_t b = 0; b < sums.size(); ++b)
                for (uint32_t i = 0; i < layout.buckets[b].group_count; ++i) {
                    const uint32_t g = layout.buckets[b].group + i;
                    EXPECT_EQ(sums[b].units[i], units[g] * (layout.groups[g].statistics ? 1 : factor));
                    EXPECT_EQ(sums[b].units[i], again[b].units[i]);
                }
        }
}

// The terms of all cells, in the order of the whole net's groups, give the whole net's norm bit for bit, and each cell the same units.
// What both slice groups have counts once; what is frozen, and statistics, do not count.
TEST(ClipNorm, OfPartsIsThatOfTheWholeNet) {
    NetSpec spec{.C = 1, .H = 12, .W = 12, .classes = 3, .layers = {fc(1500), norm(), fc(40), norm(), fc(3), loss()}};
    std::string about;
    const std::string names[] = {"fc1", "fc2"};
    ASSERT_TRUE(slices_choose(2, names, &spec, &about).ok());
    std::vector<Layer> layers;
    ASSERT_TRUE(layers_check(spec, &layers).ok());
    const OptimiserConfig config = resolved({.freeze = {"fc1.bias", "norm2"}, .clip_norm = 1}, spec);
    const Layout whole = layers_layout(layers, 64 * 1024);
    std::mt19937_64 random(3);
    std::vector<int32_t> words(whole.elements);
    for (int32_t& word : words) word = static_cast<int32_t>(random());
    std::vector<double> units;
    for (size_t g = 0; g < whole.groups.size(); ++g) units.push_back(0x1p-30 / static_cast<double>(3 + g));
    Lanes lanes;
    NormClip clip(config, whole);
    std::vector<BucketSum> sums = sums_of(whole, words.data(), Word::i32, units);
    const std::span<const double> terms = clip.terms(&lanes, whole, sums);
    const std::vector<double> wanted(terms.begin(), terms.end());
    const double norm = NormClip::norm(wanted);
    ScaledUnits scaled(whole);
    scaled.apply(whole, clip.factor(norm), sums);
    EXPECT_GT(norm, 2);
    size_t frozen = 0;   // both slices of fc1's bias, and norm2
    for (size_t g = 0; g < whole.groups.size(); ++g) {
        const uint64_t place = whole.groups[g].place();
        const bool learns = std::ranges::none_of(config.ranges, [&](const OptimiserRange& range) {
            return !range.learns && place >= range.place && place < range.place + range.count;
        });
        frozen += !learns;
        EXPECT_EQ(wanted[g] > 0, learns && !whole.groups[g].statistics) << whole.groups[g].layer;
    }
    EXPECT_EQ(frozen, 3u);

    const auto number_of = [&](const Group& group) {   // in the whole net
        const auto same = std::ranges::find(whole.groups, group.place(), &Group::place);
        return static_cast<size_t>(same - whole.groups.begin());
    };
    std::vector<double> found(whole.groups.size(), -1);
    for (const auto& [first, end] : {std::pair{0u, 2u}, {2u, 3u}, {3u, 6u}})
        for (const uint32_t slice_group : {0u, 1u}) {
            SCOPED_TRACE(fmt::format("layers {} to {}, slice group {}", first, end, slice_group));
            const Layout layout = layers_layout(layers, 4096, {first, end, slice_group, 2});
            std::vector<int32_t> own(layout.elements);
            for (const Layout::Run& run : layout.runs()) std::copy_n(words.begin() + run.place, run.count, own.begin() + run.offset);
            std::vector<double> own_units;
            for (const Group& group : layout.groups) own_units.push_back(units[number_of(group)]);
            NormClip part(config, layout);
            std::vector<BucketSum> part_sums = sums_of(layout, own.data(), Word::i32, own_units);
            const std::span<const double> all = part.terms(nullptr, layout, part_sums);
            for (size_t g = 0; g < layout.groups.size(); ++g) {
                const size_t number = number_of(layout.groups[g]);
                EXPECT_EQ(all[g], wanted[number]) << layout.groups[g].layer;
                if (!layout.stands_for(layout.groups[g])) continue;
                EXPECT_EQ(found[number], -1) << layout.groups[g].layer;
                found[number] = all[g];
            }
            ScaledUnits part_scaled(layout);
            part_scaled.apply(layout, part.factor(norm), part_sums);
            for (size_t b = 0; b < layout.buckets.size(); ++b)
                for (uint32_t i = 0; i < layout.buckets[b].group_count; ++i) {
                    const size_t number = number_of(layout.groups[layout.buckets[b].group + i]);
                    const uint32_t bucket = whole.bucket_of(whole.groups[number].offset);
                    EXPECT_EQ(part_sums[b].units[i], sums[bucket].units[number - whole.buckets[bucket].group]);
                }
        }
    EXPECT_EQ(found, wanted);
    EXPECT_EQ(NormClip::norm(found), norm);
}

}   // namespace
}   // namespace gradcast
