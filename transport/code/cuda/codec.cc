#include "transport/code/cuda/codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <deque>
#include <mutex>
#include <vector>

#include "runtime/core/cuda/device.h"
#include "transport/code/cuda/words.h"
#include "transport/code/field.h"

namespace gradcast::cuda {
namespace {

constexpr StepId no_step = ~StepId{0};

/// Scales and what else the host knows are the business of codec_cpu(); here is what touches words.
class CudaCodec final : public Codec, public DeviceWords {
public:
    CudaCodec(const Layout& layout, const CodecConfig& config, CudaDevice& device)
        : layout_(layout),
          config_(config),
          device_(device),
          host_(codec_cpu(layout, config)),
          word_bytes_(config.quantiser == Quantiser::fixed    ? 8
                      : config.quantiser == Quantiser::auto16 ? 2
                                                              : 4),
          mutexes_(layout.buckets.size()) {
        const Layout& words = host_->words();
        for (const Bucket& bucket : words.buckets) bucket_words_ = std::max(bucket_words_, bucket.count);
        lanes_.resize(device.lanes().size());
        finishers_.resize(device.gpus().size());
        DeviceArena& home = device.gpus()[0]->arena;
        home.plan("quantised", bucket_words_ * word_bytes_ * (finishers_.size() - 1), &staged_);
        home.plan("quantised", sizeof(uint64_t), &digest_);
        home.plan("quantised", combined_max * word_bytes_, &combined_);
        home.plan_pinned("quantised", sizeof(uint64_t), &digest_here_);
        home.plan_pinned("quantised", bucket_words_ * word_bytes_, &words_here_);
        home.plan_pinned("quantised", combined_max * word_bytes_, &combined_here_);
    }

    ~CudaCodec() override {
        for (auto& finisher : finishers_)
            if (finisher.stream) cudaStreamSynchronize(finisher.stream.get());
    }

    Status ready() {
        GC_ASSERT(targets_ > 0);
        for (Lane& lane : lanes_) {
            GC_TRY(device_.use(device_.gpu_of(index(lane))));
            for (Use& use : lane.uses) GC_TRY(make(&use.added));
            GC_CUDA(cudaMemset(lane.found.device, 0, lane.found.bytes));
            GC_CUDA(cudaDeviceSynchronize());   // other streams do not wait for it
        }
        for (uint32_t g = finishers_.size(); g-- > 0;) {
            GC_TRY(device_.use(*device_.gpus()[g]));
            GC_TRY(make(&finishers_[g].stream));
            GC_TRY(make(&finishers_[g].done));
        }
        GC_TRY(make(&combiner_));
        for (auto& [memory, at] : kept_) {
            GC_CUDA(cudaMemset(memory.device, 0, memory.bytes));   // what is beyond a bucket's words stays 0
            *at = memory.device;
        }
        GC_CUDA(cudaDeviceSynchronize());
        return {};
    }

    Status add(uint32_t lane, BlockId block, uint32_t bucket, Buffer gradient, const Plan& plan, Fence* fence) override {
        const Bucket &range = layout_.buckets[bucket], &words = host_->words().buckets[bucket];
        GC_ASSERT(gradient.device && gradient.bytes == range.count * sizeof(float));
        GC_ASSERT(plan.words.bytes == words.count * word_bytes(plan.word) && word_bytes(plan.word) <= word_bytes_);
        GC_ASSERT(plan.record->maxima.size() == range.group_count);
        GC_ASSERT((plan.word == Word::i16) == (config_.quantiser == Quantiser::auto16));
        bool first = false;
        Use* use = nullptr;
        {
            std::scoped_lock lock(mutexes_[bucket]);
            ++plan.record->blocks;
            use = &use_of(lane, bucket, block.step, plan, &first);
        }
        const auto target = static_cast<uint32_t>(use - lanes_[lane].uses.data()) % targets_;
        const cudaStream_t stream = device_.lanes()[lane].codec.get();
        GC_TRY(device_.use(device_.gpu_of(lane)));
        if (use->stale) GC_CUDA(cudaMemsetAsync(found_at(lane, bucket, target), 0, range.group_count * sizeof(Found), stream));
        use->stale = false;
        QuantiseTask task{};
        task.gradient = static_cast<const float*>(gradient.device), task.words = words_at(lane, bucket, target);
        task.seed = config_.seed, task.step = static_cast<uint32_t>(block.step), task.block = block.block, task.accumulate = !first;
        // A bucket with statistics has nothing else (nn/layers.h).
        if (plan.word == Word::i16 && layout_.groups[range.group].statistics)
            task.radix = 2 * quantise_limit(Quantiser::auto16, config_.blocks) + 1;
        for (uint32_t g = 0; g < range.group_count; g += task.groups) {
            task.groups = std::min(quantise_groups_max, range.group_count - g);
            task.found = found_at(lane, bucket, target) + g;
            for (uint32_t i = 0; i < task.groups; ++i) {
                const Group& group = layout_.groups[range.group + g + i];
                const Scale scale = scale_of(range.group + g + i);
                task.group[i] = {group.offset - range.offset,
                                 host_->words().groups[range.group + g + i].offset - words.offset,
                                 group.count,
                                 group.offset,
                                 scale.divisor,
                                 scale.factor,
                                 scale.limit,
                                 0};
            }
            GC_TRY(quantise(plan.word, task, stream));
        }
        GC_CUDA(cudaEventRecord(use->added.get(), stream));
        *fence = {};   // finish() waits for it
        return {};
    }

    Status finish(StepId step, uint32_t bucket, const Plan& plan) override {
        std::scoped_lock lock(finishing_);
        const Bucket& words = host_->words().buckets[bucket];
        const uint64_t bytes = words.count * word_bytes(plan.word);
        const cudaStream_t home = finishers_[0].stream.get();
        SumTask all{};
        for (auto g = static_cast<uint32_t>(finishers_.size()); g-- > 0;) {   // GPU 0 last, which adds up what the others have
            SumTask own{};
            SumTask& task = g == 0 ? all : own;
            GC_TRY(device_.use(*device_.gpus()[g]));
            GC_TRY(gather(g, step, bucket, plan, &task));
            if (g == 0 || task.sources == 0) continue;
            task.to = const_cast<void*>(task.from[0]), task.count = words.count;
            if (task.sources > 1) GC_TRY(sum(plan.word, task, finishers_[g].stream.get()));
            GC_CUDA(cudaEventRecord(finishers_[g].done.get(), finishers_[g].stream.get()));
            void* staged = static_cast<char*>(staged_.device) + (g - 1) * bucket_words_ * word_bytes_;
            GC_TRY(device_.use(*device_.gpus()[0]));
            GC_CUDA(cudaStreamWaitEvent(home, finishers_[g].done.get(), 0));
            GC_CUDA(cudaMemcpyPeerAsync(staged, device_.gpus()[0]->number, task.to, device_.gpus()[g]->number, bytes, home));
            all.from[all.sources++] = staged;
        }
        all.to = plan.words.device ? plan.words.device : all.sources > 0 ? const_cast<void*>(all.from[0]) : nullptr;
        all.count = words.count, all.first = words.offset;
        const bool digests = plan.audit && all.sources > 0;   // that of zeros is 0
        if (digests) all.digest = static_cast<unsigned long long*>(digest_.device);
        if (digests) GC_CUDA(cudaMemsetAsync(digest_.device, 0, sizeof(uint64_t), home));
        if (digests || plan.words.device || all.sources > 1) GC_TRY(sum(plan.word, all, home));
        if (digests) GC_CUDA(cudaMemcpyAsync(digest_here_.host, digest_.device, sizeof(uint64_t), cudaMemcpyDeviceToHost, home));
        const std::byte* here = nullptr;
        if (!plan.words.device && all.sources > 0) {
            cudaPointerAttributes memory{};   // the exchange's is page-locked where the engine could lock it
            GC_CUDA(cudaPointerGetAttributes(&memory, plan.words.host));
            std::byte* to = memory.type == cudaMemoryTypeHost ? plan.words.host : words_here_.host;
            GC_CUDA(cudaMemcpyAsync(to, all.to, bytes, cudaMemcpyDeviceToHost, home));
            here = to;
        }
        for (Finisher& finisher : finishers_) GC_CUDA(cudaStreamSynchronize(finisher.stream.get()));
        if (here && here != plan.words.host) std::memcpy(plan.words.host, here, bytes);
        if (!all.to) std::memset(plan.words.host, 0, bytes);
        plan.record->digest = digests ? *digest_here_.as<uint64_t>() : 0;
        return fold(step, bucket, plan);
    }

    const Layout& words() const override { return host_->words(); }
    Sum whole(const Sum& sum) override { return host_->whole(sum); }
    void probe(const float* gradient) override { host_->probe(gradient); }
    std::span<const double> units(uint32_t bucket) const override { return host_->units(bucket); }
    void commit(const Sum& sum) override { host_->commit(sum); }
    std::span<int32_t> exponents() override { return host_->exponents(); }

    DeviceWords* device() override { return this; }

    void expect(uint32_t targets) override {
        GC_ASSERT(targets_ == 0 && targets > 0);
        targets_ = targets;
        for (uint32_t l = 0; l < lanes_.size(); ++l) {
            Lane& lane = lanes_[l];
            DeviceArena& arena = device_.gpu_of(l).arena;
            lane.uses = std::vector<Use>(layout_.buckets.size() * targets);
            arena.plan("quantised", targets * host_->words().elements * word_bytes_, &lane.words);
            arena.plan("quantised", targets * layout_.groups.size() * sizeof(Found), &lane.found);
            arena.plan_pinned("quantised", layout_.groups.size() * sizeof(Found), &lane.found_here);
        }
    }

    bool plan(uint64_t bytes, void** at) override {
        if (finishers_[0].stream) return false;   // the device's memory is taken
        kept_.emplace_back(Buffer{}, at);
        device_.gpus()[0]->arena.plan("quantised", bytes, &kept_.back().first);
        return true;
    }

    Status combine(const Combine& combine, uint64_t count) override {
        GC_ASSERT(combine.in_signed && !combine.out_signed && combine.outs == 1 && combine.ins > 0);
        GC_TRY(device_.use(*device_.gpus()[0]));
        const uint64_t width = combine.prime == prime_16 ? 2 : 4;
        const cudaStream_t stream = combiner_.get();
        for (uint64_t at = 0; at < count; at += combined_max) {
            CombineTask task{};
            task.out = combined_.device, task.count = std::min(combined_max, count - at);
            for (uint32_t i = 0; i < combine.ins; ++i) {
                GC_ASSERT(combine.in[i].device);
                task.in[task.sources] = static_cast<const char*>(combine.in[i].device) + at * width;
                task.weight[task.sources++] = combine.weights[i];
                if (task.sources < sources_max && i + 1 < combine.ins) continue;
                GC_TRY(cuda::combine(combine.prime, task, stream));
                task.accumulate = 1, task.sources = 0;
            }
            const uint64_t bytes = task.count * width;
            GC_CUDA(cudaMemcpyAsync(combined_here_.host, combined_.device, bytes, cudaMemcpyDeviceToHost, stream));
            GC_CUDA(cudaStreamSynchronize(stream));
            std::memcpy(combine.out[0].host + at * width, combined_here_.host, bytes);
        }
        return {};
    }

private:
    static constexpr uint64_t combined_max = 64 * 1024;   // words

    /// A target that a lane adds blocks to, of one step.
    struct Use {
        StepId step = no_step;
        const std::byte* words = nullptr;   // of the plan
        bool stale = false;                 // `found` holds what is of a step that was never finished
        Event added;
    };
    struct Lane {
        Buffer words;            // [target][word]
        Buffer found;            // [target][group]
        Buffer found_here;       // [group]: of one target
        std::vector<Use> uses;   // [bucket][target]
    };
    struct Finisher {   // of a GPU
        Stream stream;
        Event done;
    };

    uint32_t index(const Lane& lane) const { return static_cast<uint32_t>(&lane - lanes_.data()); }

    // Under the bucket's mutex, since finish() looks through those of all lanes.
    Use& use_of(uint32_t lane, uint32_t bucket, StepId step, const Plan& plan, bool* first) {
        std::span<Use> uses(lanes_[lane].uses.data() + uint64_t{bucket} * targets_, targets_);
        for (Use& use : uses)
            if (use.step == step && use.words == plan.words.host) return use;
        for (Use& use : uses)
            if (use.step != step) {
                use.stale = use.step != no_step, use.step = step, use.words = plan.words.host;
                *first = true;
                return use;
            }
        GC_ASSERT(false && "more targets than expected");
    }

    Use* used(uint32_t lane, StepId step, uint32_t bucket, const Plan& plan) {
        for (uint32_t t = 0; t < targets_; ++t) {
            Use& use = lanes_[lane].uses[uint64_t{bucket} * targets_ + t];
            if (use.step == step && use.words == plan.words.host) return &use;
        }
        return nullptr;
    }

    // The accumulators of a GPU's lanes, and what these have found: brought here, and set to 0 for the next step.
    Status gather(uint32_t gpu, StepId step, uint32_t bucket, const Plan& plan, SumTask* task) {
        const cudaStream_t stream = finishers_[gpu].stream.get();
        const Bucket& range = layout_.buckets[bucket];
        for (uint32_t l = 0; l < lanes_.size(); ++l) {
            Use* use = device_.lanes()[l].gpu == gpu ? used(l, step, bucket, plan) : nullptr;
            if (!use) continue;
            GC_ASSERT(task->sources < sources_max);
            const auto target = static_cast<uint32_t>(use - lanes_[l].uses.data()) % targets_;
            Found* found = found_at(l, bucket, target);
            const uint64_t bytes = range.group_count * sizeof(Found);
            GC_CUDA(cudaStreamWaitEvent(stream, use->added.get(), 0));
            GC_CUDA(cudaMemcpyAsync(lanes_[l].found_here.as<Found>() + range.group, found, bytes, cudaMemcpyDeviceToHost, stream));
            GC_CUDA(cudaMemsetAsync(found, 0, bytes, stream));
            task->from[task->sources++] = words_at(l, bucket, target);
        }
        return {};
    }

    Status fold(StepId step, uint32_t bucket, const Plan& plan) {
        const Bucket& range = layout_.buckets[bucket];
        Record& record = *plan.record;
        std::fill(record.maxima.begin(), record.maxima.end(), 0.0f);
        record.clipped = record.diverged = 0;
        Status diverged;
        for (uint32_t l = 0; l < lanes_.size(); ++l) {
            Use* use = used(l, step, bucket, plan);
            if (!use) continue;
            for (uint32_t g = 0; g < range.group_count; ++g) {
                const Found& found = lanes_[l].found_here.as<Found>()[range.group + g];
                record.maxima[g] = std::fmax(record.maxima[g], found.diverged ? INFINITY : std::bit_cast<float>(found.maximum));
                record.clipped += found.clipped;
                if (found.diverged == 0) continue;
                const uint32_t block = UINT32_MAX - found.diverged;
                record.diverged = std::min(record.diverged - 1, block) + 1;   // of none: 2^32 - 1
                if (!plan.audit)
                    diverged =
                        fail(Code::diverged,
                             "step {}: the gradient of layer {} holds {} in block {}: lower the learning rate, or look at the data", step,
                             layout_.groups[range.group + g].layer, std::isnan(std::bit_cast<float>(found.maximum)) ? "NaN" : "Inf", block);
            }
            use->step = no_step;
        }
        return diverged;
    }

    void* words_at(uint32_t lane, uint32_t bucket, uint32_t target) {
        const Layout& words = host_->words();
        return static_cast<char*>(lanes_[lane].words.device) + (target * words.elements + words.buckets[bucket].offset) * word_bytes_;
    }
    Found* found_at(uint32_t lane, uint32_t bucket, uint32_t target) {
        return static_cast<Found*>(lanes_[lane].found.device) + target * layout_.groups.size() + layout_.buckets[bucket].group;
    }

    Scale scale_of(uint32_t group) const {
        const bool statistics = layout_.groups[group].statistics;
        if (config_.quantiser == Quantiser::fixed && !statistics)
            return {10.0, 2147483647.0, quantise_limit(Quantiser::fixed, config_.blocks)};
        return {1.0, std::ldexp(1.0, -host_->exponents()[group]),
                quantise_limit(statistics ? Quantiser::auto32 : config_.quantiser, config_.blocks)};
    }

    const Layout& layout_;
    const CodecConfig config_;
    CudaDevice& device_;
    const std::unique_ptr<Codec> host_;
    uint32_t targets_ = 0;
    const uint64_t word_bytes_;   // of an accumulator: the widest that a plan may have
    uint64_t bucket_words_ = 0;   // of the largest bucket
    std::vector<Lane> lanes_;
    std::vector<std::mutex> mutexes_;   // by bucket: of records and uses
    // Of finish().
    std::mutex finishing_;
    std::vector<Finisher> finishers_;   // by GPU
    Buffer staged_;                     // GPU 0: sums of the others
    Buffer digest_, digest_here_, words_here_;
    // Of combine(), which the network's thread alone calls.
    std::deque<std::pair<Buffer, void**>> kept_;
    Stream combiner_;
    Buffer combined_, combined_here_;
};

}   // namespace

std::unique_ptr<Codec> codec_plan(const Layout& layout, const CodecConfig& config, Device& device) {
    return std::make_unique<CudaCodec>(layout, config, static_cast<CudaDevice&>(device));
}

Status codec_ready(Codec& codec) { return static_cast<CudaCodec&>(codec).ready(); }

}   // namespace gradcast::cuda
