// Words and codec on the device against transport/code on the CPU: equal, bit for bit.
#include <cmath>
#include <cstring>
#include <limits>

#include "runtime/core/rng.h"
#include "tests/cuda/fixture.h"
#include "transport/code/cuda/codec.h"
#include "transport/code/cuda/words.h"
#include "transport/code/field.h"

namespace gradcast::cuda {
namespace {

using Words = OnDevice;
using DeviceCodec = OnDevice;

uint32_t bits32(uint64_t i, uint32_t what = 0) { return random4(Purpose::test, 21, i / 4, what)[i % 4]; }

// Ties, both limits, denormals, both zeros, huge values, random bit patterns.
std::vector<float> inputs(const Scale& scale, bool finite) {
    std::vector<float> x;
    const double unit = scale.divisor / scale.factor;
    for (double k : {0.0, 0.5, 1.0, 1.5, 2.5, 1e6 + 0.5, scale.limit - 0.5, scale.limit + 0.0, scale.limit + 0.5, scale.limit + 1.0,
                     scale.limit + 1.5, 4.0 * scale.limit})
        for (double sign : {1.0, -1.0}) {
            const auto f = static_cast<float>(sign * k * unit);
            for (float each : {f, std::nextafter(f, 1e38f), std::nextafter(f, -1e38f)}) x.push_back(each);
        }
    using limits = std::numeric_limits<float>;
    for (float f : {0.0f, limits::denorm_min(), limits::min(), limits::max(), 1e-40f}) {
        x.push_back(f);
        x.push_back(-f);
    }
    for (uint32_t i = 0; i < 2000; ++i) {
        const float any = std::bit_cast<float>(bits32(i));
        if (std::isfinite(any)) x.push_back(any);
        x.push_back(static_cast<float>((uniform(bits32(i, 1)) * 4 - 2) * scale.limit * unit));
        x.push_back(static_cast<float>((static_cast<double>(bits32(i, 2) % 2000) - 1000) * 0.5 * unit));   // ties
    }
    if (!finite) {
        x[x.size() / 2] = limits::quiet_NaN();
        x[x.size() / 3] = limits::infinity();
        x[5] = -limits::infinity();
    }
    return x;
}

/// The places of the group's first float and of its first word.
struct Offsets {
    uint64_t from = 0, to = 0;
};
template <typename T, typename Kernel>
void quantise_like_the_cpu(Word word, const Scale& scale, const std::vector<float>& x, uint64_t first, Kernel kernel,
                           const Offsets& offsets = {}) {
    std::vector<T> want(x.size()), base(x.size());
    for (size_t i = 0; i < x.size(); ++i) want[i] = base[i] = static_cast<T>(bits32(i, 3) % 1000);
    for (bool accumulate : {false, true}) {
        const QuantiseResult result = kernel(want.data(), accumulate);
        std::vector<float> floats(offsets.from, 1e30f);
        floats.insert(floats.end(), x.begin(), x.end());
        std::vector<T> words(offsets.to, 77);
        words.insert(words.end(), base.begin(), base.end());
        DeviceVector<float> from(floats);
        DeviceVector<T> to(words);
        DeviceVector<Found> found(std::vector<Found>(1, {0, 0, 0}));
        QuantiseTask task{};
        task.gradient = from.get();
        task.seed = 77;
        task.groups = 1;
        task.now = {to.get(), found.get(), 5, 3, word, accumulate};
        task.group[0] = {offsets.from, offsets.to, x.size(), first, scale.divisor, scale.factor, scale.limit, 0};
        // Parameters in the call, or read on the device.
        const DeviceVector<QuantiseNow> now(std::vector<QuantiseNow>{task.now});
        const DeviceVector<double> factors(std::vector<double>{scale.factor});
        if (accumulate) {
            task.now_at = now.get();
            task.factors = factors.get();
            task.group[0].factor = NAN;
            task.now = {.word = word};
        }
        EXPECT_TRUE(ok(quantise(task, nullptr)));
        std::copy(want.begin(), want.end(), words.begin() + static_cast<int64_t>(offsets.to));
        EXPECT_EQ(to.read(), words) << "limit " << scale.limit << " factor " << scale.factor << " accumulate " << accumulate;
        const Found got = found.read()[0];
        EXPECT_EQ(got.maximum, std::bit_cast<uint32_t>(result.maximum));
        EXPECT_EQ(got.clipped, result.clipped);
        EXPECT_EQ(got.diverged, std::isfinite(result.maximum) ? 0 : UINT32_MAX - 3);
        base = want;
    }
}

TEST_F(Words, QuantiseAsOnTheCpu) {
    const WordKernels& cpu = word_kernels(isa_best());
    std::vector<Scale> scales = {{10.0, 2147483647.0, 2147483647}};
    for (int32_t limit : {1, 2, 511, 16777215, 134217727, 1073741823})
        for (double factor : {1.0, 0x1p-100, 0x1p30, 0x1p177}) scales.push_back({1.0, factor, limit});
    for (const Scale& scale : scales)
        for (bool finite : {true, false}) {
            const std::vector<float> x = inputs(scale, finite);
            quantise_like_the_cpu<int32_t>(Word::i32, scale, x, 0, [&](int32_t* to, bool accumulate) {
                return cpu.quantise_i32(to, x.data(), x.size(), scale, accumulate);
            });
            quantise_like_the_cpu<int64_t>(Word::i64, scale, x, 0, [&](int64_t* to, bool accumulate) {
                return cpu.quantise_i64(to, x.data(), x.size(), scale, accumulate);
            });
        }
}

// Groups that begin at any place modulo a pack; words that do and do not begin at the same one.
TEST_F(Words, QuantiseFromAnyPlaceOn) {
    const WordKernels& cpu = word_kernels(isa_best());
    const Scale scale{1.0, 0x1p30, 1073741823};
    const std::vector<float> all = inputs(scale, true);
    for (const size_t count : {1u, 3u, 5u, 1023u, 1025u, 2047u, 2049u, 4096u})
        for (const Offsets& offsets : {Offsets{0, 1}, Offsets{1, 1}, Offsets{2, 2}, Offsets{3, 0}, Offsets{7, 3}}) {
            const std::vector<float> x(all.end() - static_cast<int64_t>(count), all.end());
            quantise_like_the_cpu<int32_t>(
                Word::i32, scale, x, 0,
                [&](int32_t* to, bool accumulate) { return cpu.quantise_i32(to, x.data(), x.size(), scale, accumulate); }, offsets);
            quantise_like_the_cpu<int64_t>(
                Word::i64, scale, x, 0,
                [&](int64_t* to, bool accumulate) { return cpu.quantise_i64(to, x.data(), x.size(), scale, accumulate); }, offsets);
        }
}

TEST_F(Words, RoundAtRandomAsOnTheCpu) {
    const WordKernels& cpu = word_kernels(isa_best());
    for (int32_t limit : {1, 511, 4095, 32760})
        for (double factor : {1.0, 0x1p-100, 0x1p20})
            for (bool finite : {true, false})
                for (uint64_t first : {uint64_t{0}, uint64_t{1}, uint64_t{63}, uint64_t{(1ull << 34) - 9000}}) {   // also within a draw
                    const Scale scale{1.0, factor, limit};
                    const std::vector<float> x = inputs(scale, finite);
                    quantise_like_the_cpu<int16_t>(Word::i16, scale, x, first, [&](int16_t* to, bool accumulate) {
                        return cpu.quantise_i16(to, x.data(), x.size(), scale, {77, 5, 3, first}, accumulate);
                    });
                }
}

template <typename T, typename Add, typename Digest>
void sum_like_the_cpu(Word word, Add add, Digest digest) {
    for (uint32_t sources : {0u, 1u, 3u})
        for (uint64_t count : {1, 255, 256, 257, 5000}) {
            std::vector<T> want(count);
            std::vector<std::unique_ptr<DeviceVector<T>>> from;
            for (uint32_t s = 0; s < sources; ++s) {
                std::vector<T> values(count);
                for (uint64_t i = 0; i < count; ++i)
                    values[i] = static_cast<T>(i % 7 == 0 ? ~uint64_t{0} >> 1 : uint64_t{bits32(i, s)} * (0x9E3779B97F4A7C15 + s));
                add(want.data(), values.data(), count);
                from.push_back(std::make_unique<DeviceVector<T>>(values));
            }
            DeviceVector<T> to(count);
            SumTask task{};
            task.to = sources == 3 ? from[1]->get() : to.get();
            task.sources = sources;
            task.word = word;
            for (uint32_t s = 0; s < sources; ++s) task.from[s] = from[s]->get();
            task.audit = count != 255;
            task.digest = 7;
            const DeviceVector<SumTask> there(std::vector<SumTask>{task});
            EXPECT_TRUE(ok(sum(there.get(), count, 12345, nullptr)));
            EXPECT_EQ(sources == 3 ? from[1]->read() : to.read(), want);
            EXPECT_EQ(there.read()[0].digest, 7 + (task.audit ? digest(want.data(), count, 12345) : 0));
        }
}

TEST_F(Words, SumsAndDigestsAsOnTheCpu) {
    const WordKernels& cpu = word_kernels(isa_best());
    sum_like_the_cpu<int16_t>(Word::i16, cpu.add_i16, cpu.digest_i16);
    sum_like_the_cpu<int32_t>(Word::i32, cpu.add_i32, cpu.digest_i32);
    sum_like_the_cpu<int64_t>(Word::i64, cpu.add_i64, cpu.digest_i64);
}

template <typename T>
std::vector<T> words_of(uint64_t count, uint32_t what) {
    std::vector<T> words(count);
    for (uint64_t i = 0; i < count; ++i) words[i] = static_cast<T>(bits32(i, what));
    if (count > 4) {
        words[0] = std::numeric_limits<T>::min();
        words[1] = std::numeric_limits<T>::max();
        words[2] = 0;
        words[3] = -1;
    }
    return words;
}

template <typename T>
void combine_like_the_cpu(uint32_t prime) {
    for (uint32_t ins : {1u, 2u, 12u, sources_max})
        for (uint64_t count : {1, 300, 2049}) {
            std::vector<std::vector<T>> words;
            std::vector<std::unique_ptr<DeviceVector<T>>> on_device;
            std::vector<Buffer> in;
            std::vector<uint32_t> weights;
            CombineTask task{};
            for (uint32_t i = 0; i < ins; ++i) {
                words.push_back(words_of<T>(count, 10 + i));
                on_device.push_back(std::make_unique<DeviceVector<T>>(words.back()));
                in.push_back({reinterpret_cast<std::byte*>(words.back().data()), nullptr, count * sizeof(T)});
                weights.push_back(i == 0 ? prime - 1 : i == 1 ? 0 : bits32(i, 9) % prime);
                task.in[i] = on_device.back()->get();
                task.weight[i] = weights.back();
            }
            std::vector<T> want(count);
            Buffer out{reinterpret_cast<std::byte*>(want.data()), nullptr, count * sizeof(T)};
            const Combine combination{prime, 1, ins, weights.data(), in.data(), &out, true, false};
            ASSERT_EQ(word_kernels(isa_best()).combine(combination, count), ins);
            DeviceVector<T> to(count);
            task.out = to.get();
            task.sources = ins;
            task.prime = prime;
            task.count = count;
            auto run = [&] {
                const DeviceVector<CombineTask> there(std::vector<CombineTask>{task});
                return combine(there.get(), 4000, nullptr);   // memory is freed after all work
            };
            EXPECT_TRUE(ok(run()));
            EXPECT_EQ(to.read(), want) << prime << " " << ins;
            // Two launches, the second one accumulates.
            if (ins == 1) continue;
            task.sources = 1;
            EXPECT_TRUE(ok(run()));
            std::copy_n(task.in + 1, ins - 1, task.in);
            std::copy_n(task.weight + 1, ins - 1, task.weight);
            task.sources = ins - 1;
            task.accumulate = true;
            EXPECT_TRUE(ok(run()));
            EXPECT_EQ(to.read(), want) << prime << " " << ins;
        }
}

TEST_F(Words, CombineInBothFieldsAsOnTheCpu) {
    combine_like_the_cpu<int32_t>(prime_32);
    combine_like_the_cpu<int16_t>(prime_16);
}

// ---- the codec -------------------------------------------------------------------------------------------------------------------

// Bucket 0: statistics of two batch norms; 1: more groups than fit in one launch; 2: one large group.
Layout layout_of_many() {
    Layout layout;
    auto group = [&](uint64_t count, bool statistics) {
        layout.groups.push_back({layout.elements, count, fmt::format("layer{}", layout.groups.size()), statistics});
        layout.elements += count;
    };
    group(9000, false);
    const uint64_t second = layout.elements;
    for (uint32_t g = 0; g < 60; ++g) group(1 + 37 * (g % 5), false);
    const uint64_t third = layout.elements;
    group(20, true);
    group(11, true);
    layout.buckets = {{third, layout.elements - third, 61, 2}, {second, third - second, 1, 60}, {0, second, 0, 1}};
    return layout;
}

std::vector<float> gradient_of(const Layout& layout, BlockId id, float size) {
    std::vector<float> x(layout.elements);
    for (uint64_t i = 0; i < x.size(); ++i) x[i] = (uniform(bits32(i, static_cast<uint32_t>(id.step * 100 + id.block))) * 2 - 1) * size;
    return x;
}

/// The words and record of one target of one bucket.
struct Target {
    std::vector<std::byte> memory;
    std::vector<float> maxima;
    Record record;
    Plan plan;
    Target(const Codec& codec, const Layout& layout, uint32_t bucket, Word word, bool audit)
        : memory(codec.words().buckets[bucket].count * word_bytes(word), std::byte{0x77}),
          maxima(layout.buckets[bucket].group_count, 99.0f) {
        record.maxima = maxima;
        record.clipped = 12345;
        record.diverged = 6789;
        record.digest = 1;
        plan = {word, {memory.data(), nullptr, memory.size()}, &record, audit};
    }
};

void expect_alike(const Target& got, const Target& want, const char* what) {
    EXPECT_EQ(got.memory, want.memory) << what;
    EXPECT_EQ(got.maxima, want.maxima) << what;
    EXPECT_EQ(got.record.clipped, want.record.clipped) << what;
    EXPECT_EQ(got.record.diverged, want.record.diverged) << what;
    EXPECT_EQ(got.record.digest, want.record.digest) << what;
    EXPECT_EQ(got.record.blocks, want.record.blocks) << what;
}

struct Case {
    Quantiser quantiser;
    Word word;
};
constexpr Case cases[] = {
    {Quantiser::auto32, Word::i32}, {Quantiser::auto16, Word::i16}, {Quantiser::fixed, Word::i64}, {Quantiser::fixed, Word::i32}};

// Several steps: maxima set the next scales; blocks on three lanes in varying order; two targets; NaN and Inf in one step.
void train(uint32_t gpus, bool diverging) {
    constexpr uint32_t lanes = 3, blocks = 8, targets = 2;
    const Layout layout = layout_of_many();
    for (const Case& each : cases) {
        SCOPED_TRACE(quantiser_name(each.quantiser));
        const auto device = OnDevice::open(lanes, gpus);
        const CodecConfig config{each.quantiser, 64, blocks, 99};
        const auto cpu = codec_cpu(layout, config), gpu = codec_plan(layout, config, *device);
        gpu->device()->expect(targets);
        EXPECT_TRUE(ok(device->seal()));
        EXPECT_TRUE(ok(codec_ready(*gpu)));
        for (Codec* codec : {cpu.get(), gpu.get()}) codec->probe(gradient_of(layout, {0, 0}, 1.0f).data());
        for (StepId step = 0; step < 4; ++step) {
            std::vector<std::unique_ptr<Target>> want, got;
            std::vector<std::unique_ptr<DeviceVector<float>>> gradients;
            for (uint32_t bucket = 0; bucket < layout.buckets.size(); ++bucket)
                for (uint32_t t = 0; t < targets; ++t)
                    for (auto* list : {&want, &got}) list->push_back(std::make_unique<Target>(*cpu, layout, bucket, each.word, true));
            for (uint32_t b = 0; b < blocks; ++b) {
                if (step == 2 && b % 2 == 1) continue;                                             // one target has no blocks
                std::vector<float> x = gradient_of(layout, {step, b}, step == 1 ? 30.0f : 0.7f);   // step 1 clips many elements
                if (diverging && step == 3 && b >= 4) {
                    x[3] = NAN;
                    x[9100] = -INFINITY;
                    x[layout.elements - 2] = NAN;
                }
                const uint32_t lane = (b * 5 + static_cast<uint32_t>(step)) % lanes;
                for (uint32_t bucket = 0; bucket < layout.buckets.size(); ++bucket) {
                    const Bucket& range = layout.buckets[bucket];
                    std::vector<float> part(x.begin() + static_cast<long>(range.offset),
                                            x.begin() + static_cast<long>(range.offset + range.count));
                    const Buffer here{reinterpret_cast<std::byte*>(part.data()), nullptr, range.count * 4};
                    EXPECT_TRUE(ok(cpu->add(0, {step, b}, bucket, here, want[bucket * targets + b % 2]->plan)));
                    EXPECT_TRUE(ok(device->use(device->gpu_of(lane))));
                    gradients.push_back(std::make_unique<DeviceVector<float>>(part));
                    const Buffer there{nullptr, gradients.back()->get(), range.count * 4};
                    EXPECT_TRUE(ok(gpu->add(lane, {step, b}, bucket, there, got[bucket * targets + b % 2]->plan)));
                }
            }
            for (uint32_t i = 0; i < want.size(); ++i) {
                const uint32_t bucket = i / targets;
                EXPECT_TRUE(ok(cpu->finish(step, bucket, want[i]->plan)));
                EXPECT_TRUE(ok(gpu->finish(step, bucket, got[i]->plan)));
                expect_alike(*got[i], *want[i], fmt::format("step {} bucket {} target {}", step, bucket, i % targets).c_str());
                Sum sum;
                sum.bucket = bucket;
                sum.maxima = want[i]->maxima;
                cpu->commit(sum);
                gpu->commit(sum);
            }
            EXPECT_TRUE(std::equal(cpu->exponents().begin(), cpu->exponents().end(), gpu->exponents().begin()));
        }
    }
}

TEST_F(DeviceCodec, AddsBlocksUpAsOnTheCpu) { train(1, false); }
TEST_F(DeviceCodec, TellsWhatIsNotFinite) { train(1, true); }
TEST_F(DeviceCodec, AddsUpWhatTwoGpusHave) { train(2, true); }

TEST_F(DeviceCodec, NamesStepLayerAndBlockOfWhatIsNotFinite) {
    const Layout layout = layout_of_many();
    const auto device = open(1);
    const auto gpu = codec_plan(layout, {Quantiser::auto32, 64, 8, 99}, *device);
    gpu->device()->expect(1);
    EXPECT_TRUE(ok(device->seal()));
    EXPECT_TRUE(ok(codec_ready(*gpu)));
    for (auto [value, name] : {std::pair{NAN, "NaN"}, {-INFINITY, "Inf"}}) {
        std::vector<float> x(layout.buckets[1].count, 0.5f);
        x[layout.groups[1].count] = value;   // the second group of bucket 1
        const DeviceVector<float> there(x);
        Target target(*gpu, layout, 1, Word::i32, false);
        EXPECT_TRUE(ok(gpu->add(0, {41, 6}, 1, {nullptr, there.get(), x.size() * 4}, target.plan)));
        const Status status = gpu->finish(41, 1, target.plan);
        EXPECT_EQ(status.code, Code::diverged);
        EXPECT_EQ(
            status.what,
            fmt::format("step 42: the gradient of layer layer2 holds {} in block 6: lower the learning rate, or look at the data", name));
    }
}

// An unfinished step leaves nothing behind; add() does not wait or allocate.
TEST_F(DeviceCodec, AnAbandonedStepIsForgotten) {
    const Layout layout = layout_of_many();
    const auto device = open(1);
    const CodecConfig config{Quantiser::auto32, 64, 8, 99};
    const auto cpu = codec_cpu(layout, config), gpu = codec_plan(layout, config, *device);
    gpu->device()->expect(1);
    EXPECT_TRUE(ok(device->seal()));
    EXPECT_TRUE(ok(codec_ready(*gpu)));
    const Bucket& range = layout.buckets[2];
    std::vector<float> x = gradient_of(layout, {0, 0}, 1.0f), huge = gradient_of(layout, {0, 1}, 1e30f);
    const DeviceVector<float> x_there(x), huge_there(huge);
    Target want(*cpu, layout, 2, Word::i32, false), got(*cpu, layout, 2, Word::i32, false);
    EXPECT_TRUE(ok(gpu->add(0, {0, 0}, 2, {nullptr, huge_there.get(), range.count * 4}, got.plan)));
    got.record.blocks = 0;   // as the exchange does for the next step of the slot
#ifdef GC_CUDA_HOST
    const CudaHostCounts before = cuda_host_counts();
#endif
    EXPECT_TRUE(ok(gpu->add(0, {1, 0}, 2, {nullptr, x_there.get(), range.count * 4}, got.plan)));
#ifdef GC_CUDA_HOST
    EXPECT_EQ(cuda_host_counts().allocations, before.allocations);
    EXPECT_EQ(cuda_host_counts().synchronisations, before.synchronisations);
#endif
    EXPECT_TRUE(ok(gpu->finish(1, 2, got.plan)));
    EXPECT_TRUE(ok(cpu->add(0, {1, 0}, 2, {reinterpret_cast<std::byte*>(x.data()), nullptr, range.count * 4}, want.plan)));
    EXPECT_TRUE(ok(cpu->finish(1, 2, want.plan)));
    expect_alike(got, want, "step 1");
}

// Words on the device are encoded there; only residues are copied to the host.
TEST_F(DeviceCodec, EncodesWhereTheWordsAre) {
    const Layout layout = layout_of_many();
    for (const Case& each : {cases[0], cases[1]}) {
        const uint32_t prime = each.word == Word::i16 ? prime_16 : prime_32;
        const auto device = open(1);
        const CodecConfig config{each.quantiser, 64, 8, 99};
        const auto cpu = codec_cpu(layout, config), gpu = codec_plan(layout, config, *device);
        const uint64_t words = gpu->words().buckets[2].count, half = (words + 3) / 2, width = word_bytes(each.word);   // padded by 2 or 3
        void* there[2] = {nullptr, nullptr};
        gpu->device()->expect(2);
        for (void*& at : there) ASSERT_TRUE(gpu->device()->plan(2 * half * width, &at));
        EXPECT_TRUE(ok(device->seal()));
        EXPECT_TRUE(ok(codec_ready(*gpu)));
        void* late = nullptr;
        EXPECT_FALSE(gpu->device()->plan(64, &late));
        std::vector<Buffer> want_in, got_in;
        std::vector<std::vector<std::byte>> memory(2, std::vector<std::byte>(2 * half * width));
        Target want(*cpu, layout, 2, each.word, true), got(*cpu, layout, 2, each.word, true);
        for (uint32_t t = 0; t < 2; ++t) {
            std::vector<float> x = gradient_of(layout, {0, t}, 1.0f);
            const DeviceVector<float> x_there(x);
            want.plan.words.host = memory[t].data();
            got.plan.words.device = there[t];
            want.record.blocks = got.record.blocks = 0;
            EXPECT_TRUE(
                ok(cpu->add(0, {0, t}, 2, {reinterpret_cast<std::byte*>(x.data()), nullptr, layout.buckets[2].count * 4}, want.plan)));
            EXPECT_TRUE(ok(gpu->add(0, {0, t}, 2, {nullptr, x_there.get(), layout.buckets[2].count * 4}, got.plan)));
            EXPECT_TRUE(ok(cpu->finish(0, 2, want.plan)));
            EXPECT_TRUE(ok(gpu->finish(0, 2, got.plan)));
            EXPECT_EQ(got.record.digest, want.record.digest);
            for (uint64_t u = 0; u < 2; ++u) {
                want_in.push_back({memory[t].data() + u * half * width, nullptr, half * width});
                got_in.push_back({nullptr, static_cast<char*>(there[t]) + u * half * width, half * width});
            }
        }
        EXPECT_EQ(std::count(got.memory.begin(), got.memory.end(), std::byte{0x77}), static_cast<long>(got.memory.size()));
        const uint32_t weights[] = {prime - 1, 12345, 3, prime / 2};
        std::vector<std::byte> want_out(half * width), got_out(half * width);
        Buffer out_want{want_out.data(), nullptr, want_out.size()}, out_got{got_out.data(), nullptr, got_out.size()};
        Combine a{prime, 1, 4, weights, want_in.data(), &out_want, true, false},
            b{prime, 1, 4, weights, got_in.data(), &out_got, true, false};
        b.device = gpu->device();
        Compute compute;
        compute.kernel = Kernel::combine;
        compute.count = half;
        compute.ticket = 1;
        compute.combine = &a;
        compute_now(compute);
        compute.combine = &b;
        compute_now(compute);
        EXPECT_EQ(got_out, want_out);
    }
}

}   // namespace
}   // namespace gradcast::cuda
