// Steps of one rank on GPUs, as algos/ssgd.cc makes them: by the exchange's memory, or as whole steps.
#pragma once
#include <array>
#include <atomic>
#include <thread>

#include "datasets/cuda/resident.h"
#include "tests/cuda/nn_rig.h"
#include "transport/code/cuda/codec.h"

namespace gradcast {

constexpr uint32_t block_count = 5, block_samples = 3, batch = block_count * block_samples;

inline NetConfig many_buckets(uint32_t lanes) {
    NetConfig config = sizes({block_samples}, lanes);
    config.bucket_bytes = 4096;
    return config;
}

/// Of a target with several blocks.
inline Word word_of(Quantiser quantiser) {
    return quantiser == Quantiser::auto16 ? Word::i16 : quantiser == Quantiser::auto32 ? Word::i32 : Word::i64;
}
inline uint32_t target_of(uint32_t block, uint32_t targets) { return block * targets / block_count; }

/// The words of all targets and their sum, as in an exchange.
struct Words {
    Words(const Codec& codec, const Layout& layout, Word of, uint32_t targets) : word(of), maxima(targets), records(targets) {
        const uint64_t buckets = layout.buckets.size(), bytes = codec.words().elements * word_bytes(word);
        memory.resize((targets + 1) * bytes + page);
        auto* at = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.data()) + page - 1) / page * page);
        whole = {at, nullptr, (targets + 1) * bytes};
        sums = whole.part(targets * bytes, bytes);
        for (uint32_t t = 0; t < targets; ++t) {
            maxima[t].resize(layout.groups.size());
            records[t].resize(buckets);
            for (size_t b = 0; b < buckets; ++b) {
                const Bucket &bucket = layout.buckets[b], &range = codec.words().buckets[b];
                records[t][b].maxima = std::span(maxima[t]).subspan(bucket.group, bucket.group_count);
                plans.push_back(
                    {word, whole.part(t * bytes + range.offset * word_bytes(word), range.count * word_bytes(word)), &records[t][b], true});
            }
        }
    }
    template <typename T>
    void add(const Plan& to, const Buffer& sum) const {
        for (uint64_t i = 0; i < to.words.bytes / sizeof(T); ++i) sum.as<T>()[i] = static_cast<T>(sum.as<T>()[i] + to.words.as<T>()[i]);
    }
    /// The sum of a bucket.
    Sum sum(const Codec& codec, StepId step, uint32_t bucket) {
        const Bucket& range = codec.words().buckets[bucket];
        Sum all;
        all.step = step;
        all.bucket = bucket;
        all.word = word;
        all.words = sums.part(range.offset * word_bytes(word), range.count * word_bytes(word));
        std::memset(all.words.host, 0, all.words.bytes);
        const size_t buckets = plans.size() / records.size();
        for (size_t t = 0; t < records.size(); ++t) {
            const Plan& plan = plans[t * buckets + bucket];
            if (word == Word::i16) add<int16_t>(plan, all.words);
            else if (word == Word::i32) add<int32_t>(plan, all.words);
            else add<int64_t>(plan, all.words);
            for (size_t g = 0; t > 0 && g < plan.record->maxima.size(); ++g)
                records[0][bucket].maxima[g] = std::max(records[0][bucket].maxima[g], plan.record->maxima[g]);
        }
        all.maxima = records[0][bucket].maxima;
        return all;
    }
    static constexpr uintptr_t page = 4096;
    const Word word;
    std::vector<std::vector<float>> maxima;
    std::vector<std::vector<Record>> records;   // [target][bucket]
    std::vector<std::byte> memory;
    Buffer whole, sums;
    std::vector<Plan> plans;   // [target][bucket]
};

struct StepCase {
    uint32_t lanes, gpus, targets;
    Quantiser quantiser;
    OptimiserConfig optimiser;
    bool resident;
    NetSpec (*net)() = nullptr;   // of step_test.cc; null: everything()
};

/// The steps of algos/ssgd.cc for one rank.
class Steps final : GradientSink {
public:
    /// whole: the net computes whole steps, where it has one GPU.
    Steps(const StepCase& c, const NetSpec& spec, bool whole = false) : case_(c) {
        std::vector<uint32_t> numbers;
        for (uint32_t g = 0; g < c.gpus; ++g) numbers.push_back(g);
        EXPECT_TRUE(ok(device_.open({.lanes_max = c.lanes, .lanes_per_gpu = c.lanes, .numbers = numbers})));
        NetConfig config = many_buckets(c.lanes);
        if (whole) config.step_blocks.assign(block_count, block_samples);
        EXPECT_TRUE(ok(cuda::net_plan(spec, config, device_, &net)));
        EXPECT_TRUE(ok(cuda::optimiser_plan(c.optimiser, *net, &optimiser)));
        codec = cuda::codec_plan(net->layout(), {c.quantiser, batch, block_count, 99}, device_);
        codec->device()->expect(c.targets);
        const DataInfo info{
            .count = batch, .C = spec.C, .H = spec.H, .W = spec.W, .classes = spec.classes, .mean = {}, .std = {}, .source = {}};
        EXPECT_TRUE(!c.resident || ok(cuda::resident_plan(info, {}, device_, &resident_)));
        words = std::make_unique<Words>(*codec, net->layout(), word_of(c.quantiser), c.targets);
        device_.share(words->whole);
        EXPECT_TRUE(ok(device_.seal()));
        EXPECT_TRUE(ok(cuda::codec_ready(*codec)));
        EXPECT_TRUE(ok(cuda::net_ready(*net)));
        remaining_ = std::vector<std::atomic<uint32_t>>(words->plans.size());
        for (uint32_t i = 0; i < batch; ++i) places_.push_back({i, 0});
    }
    ~Steps() override { codec.reset(), optimiser.reset(), net.reset(), resident_.reset(); }
    Steps(const Steps&) = delete;

    /// One step; returns the digest of the state.
    uint64_t step(StepId step, const Samples& samples) {
        const uint32_t buckets = static_cast<uint32_t>(net->layout().buckets.size());
        EXPECT_TRUE(!resident_ || ok(resident_->put(0, samples.images, batch)));
        for (auto& target : words->records)
            for (Record& record : target) record.blocks = 0;
        for (uint32_t i = 0; i < words->plans.size(); ++i) {
            uint32_t blocks = 0;
            for (uint32_t b = 0; b < block_count; ++b) blocks += target_of(b, case_.targets) == i / buckets;
            remaining_[i].store(blocks * net->layout().groups[net->layout().buckets[i % buckets].group].uses);
        }
        before();
        std::vector<std::thread> threads;
        std::atomic<uint32_t> next{0};
        auto lane_does = [&](uint32_t lane) {
            for (uint32_t b = next++; b < block_count; b = next++) EXPECT_TRUE(ok(net->block(lane, {step, b}, part(samples, b), *this)));
        };
        for (uint32_t lane = 1; lane < case_.lanes; ++lane) threads.emplace_back(lane_does, lane);
        lane_does(0);
        for (std::thread& thread : threads) thread.join();
        optimiser->step(step);
        sums_.clear();
        for (uint32_t b = 0; b < buckets; ++b) sums_.push_back({codec->whole(words->sum(*codec, step, b)), codec->units(b)});
        uint64_t digest = 0;
        EXPECT_TRUE(ok(net->apply(lanes_, *optimiser, sums_, &digest)));
        for (uint32_t b = 0; b < buckets; ++b) codec->commit(words->sum(*codec, step, b));
        after();
        return digest;
    }

    /// A whole step (Net::step_begin), and what codec_cpu() has found in the same gradients.
    Status begin_whole(StepId step, const Samples& samples) {
        std::array<Samples, block_count> blocks;
        for (uint32_t b = 0; b < block_count; ++b) blocks[b] = part(samples, b);
        optimiser->step(step);
        return net->step_begin(step, blocks);
    }
    Status end_whole(WholeStep* done) {
        GC_TRY(net->step_end(done));
        codec->commit_all(net->layout(), done->maxima);
        return {};
    }
    /// Begins a step by buckets and leaves it: one block is computed and quantised, and no bucket is finished.
    Status one_block(StepId step, const Samples& samples) {
        for (auto& remaining : remaining_) remaining.store(block_count);
        return net->block(0, {step, 0}, part(samples, 0), *this);
    }
    WholeStep whole_step(StepId step, const Samples& samples) {
        WholeStep done;
        EXPECT_TRUE(!resident_ || ok(resident_->put(0, samples.images, batch)));
        before();
        EXPECT_TRUE(ok(begin_whole(step, samples)));
        EXPECT_TRUE(ok(end_whole(&done)));
        after();
        return done;
    }

    /// The block's part of the step's samples, as images or as places in the device's data set.
    Samples part(const Samples& all, uint32_t block) const {
        Samples samples = all;
        samples.count = block_samples;
        samples.labels += block * block_samples;
        samples.images += uint64_t{block} * block_samples * net->spec().sample_bytes();
        if (all.targets) samples.targets += uint64_t{block} * block_samples * net->spec().targets_bytes();
        if (resident_) {
            samples.images = nullptr;
            samples.places = places_.data() + block * block_samples;
            samples.resident = resident_.get();
        }
        return samples;
    }

    static testing::AssertionResult ok(const Status& status) {
        return status.ok() ? testing::AssertionSuccess() : testing::AssertionFailure() << status.what;
    }

    std::unique_ptr<Words> words;   // page-locked by the device
private:
    cuda::CudaDevice device_;

public:
    std::unique_ptr<Net> net;
    std::unique_ptr<Optimiser> optimiser;
    std::unique_ptr<Codec> codec;
    bool graphs = true;   // quantise within blocks' graphs
#ifdef GC_CUDA_HOST
    CudaHostCounts counts{};   // of the last step
#endif

private:
    Status bucket(uint32_t lane, BlockId id, uint32_t bucket, Buffer gradient) override {
        const Plan& to = plan(id, bucket);
        GC_TRY(codec->add(lane, id, bucket, gradient, to));
        const auto i = static_cast<size_t>(&to - words->plans.data());
        return remaining_[i].fetch_sub(1) == 1 ? codec->finish(id.step, bucket, to) : Status{};
    }
    bool begin(uint32_t lane, BlockId id, Status* status) override {
        if (!graphs) return false;
        *status = codec->device()->begin(lane, id, [this, &id](uint32_t bucket) { return plan(id, bucket); });
        return true;
    }
    void loss(uint32_t, BlockId, double) override {}
    bool on_device() const override { return true; }
    Plan& plan(BlockId id, uint32_t bucket) {
        return words->plans[target_of(id.block, case_.targets) * net->layout().buckets.size() + bucket];
    }
    void before() {
#ifdef GC_CUDA_HOST
        counts = cuda_host_counts();
#endif
    }
    void after() {
#ifdef GC_CUDA_HOST
        const CudaHostCounts now = cuda_host_counts();
        counts = {now.run - counts.run,         now.allocations - counts.allocations, now.synchronisations - counts.synchronisations,
                  now.kernels - counts.kernels, now.graphs - counts.graphs,           now.sleeps - counts.sleeps};
#endif
    }

    const StepCase case_;
    std::unique_ptr<ResidentImages> resident_;
    std::vector<SamplePlace> places_;
    std::vector<std::atomic<uint32_t>> remaining_;   // by plan: blocks to come
    std::vector<BucketSum> sums_;
    Lanes lanes_;   // this thread
};

}   // namespace gradcast
