#include "transport/code/cuda/codec.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "runtime/core/cuda/device.h"
#include "transport/code/cuda/words.h"
#include "transport/code/field.h"

namespace gradcast::cuda {
namespace {

constexpr StepId no_step = ~StepId{0};

/// codec_cpu() keeps the scales and all host state; this class handles words.  Arguments that change between calls are in page-locked
/// memory, which the graphs copy.
class CudaCodec final : public Codec, public DeviceWords, public CudaDevice::Follower {
public:
    CudaCodec(const Layout& layout, const CodecConfig& config, CudaDevice& device)
        : layout_(layout),
          config_(config),
          device_(device),
          host_(codec_cpu(layout, config)),
          word_bytes_(config.quantiser == Quantiser::fixed    ? 8
                      : config.quantiser == Quantiser::auto16 ? 2
                                                              : 4),
          lanes_(device.lanes().size()),
          gradients_(layout.buckets.size(), 1),
          mutexes_(layout.buckets.size()),
          finishers_(device.gpus().size()) {
        uint32_t groups = 0;
        for (const Bucket& bucket : host_->words().buckets) {
            bucket_words_ = std::max(bucket_words_, bucket.count);
            groups = std::max(groups, bucket.group_count);
        }
        for (size_t g = 0; g < finishers_.size(); ++g) {
            DeviceArena& arena = device.gpus()[g]->arena;
            const uint64_t bytes = sizeof(SumTask) + groups * sizeof(Found);
            arena.plan("quantised", bytes, &finishers_[g].task);
            arena.plan_pinned("quantised", bytes, &finishers_[g].task_here);
            arena.plan("quantised", bucket_words_ * word_bytes_, &finishers_[g].sum);
        }
        DeviceArena& home = device.gpus()[0]->arena;
        home.plan("quantised", bucket_words_ * word_bytes_ * (finishers_.size() - 1), &staged_);
        home.plan("quantised", combined_max * word_bytes_, &combined_);
        home.plan("quantised", sizeof(CombineTask), &combine_task_);
        home.plan_pinned("quantised", bucket_words_ * word_bytes_, &words_here_);
        home.plan_pinned("quantised", combined_max * word_bytes_, &combined_here_);
        home.plan_pinned("quantised", sizeof(CombineTask), &combine_task_here_);
        uint64_t whole = 0;
        for (size_t b = 0; b < layout.buckets.size(); ++b)
            if (layout.buckets[b].count != host_->words().buckets[b].count)
                whole = std::max(whole, layout.buckets[b].count * sizeof(int32_t));
        home.plan("quantised", whole, &whole_);
        home.plan_pinned("quantised", whole, &whole_here_);
        const uint64_t all = layout.groups.size();
        home.plan("quantised", all * (3 * sizeof(double) + sizeof(int32_t)) + sizeof(uint32_t), &scales_);
        home.plan_pinned("quantised", all * (3 * sizeof(double) + sizeof(int32_t)) + sizeof(uint32_t), &scales_here_);
        for (Buffer& each : step_found_) home.plan_pinned("quantised", all * sizeof(Found), &each);
        maxima_.resize(all);
    }

    ~CudaCodec() override {
        (void)device_.use(*device_.gpus()[0]);   // the current device of this thread may differ
        for (auto& finisher : finishers_)
            if (finisher.stream) cudaStreamSynchronize(finisher.stream.get());
        if (device_.follower == this) device_.follower = nullptr;
    }

    Status ready() {
        GC_ASSERT(targets_ > 0);
        for (Lane& lane : lanes_) {
            GC_TRY(device_.use(device_.gpu_of(index(lane))));
            GC_TRY(make(&lane.before));
            for (Event& event : lane.added) GC_TRY(make(&event));
            std::memset(lane.now_here.host, 0, lane.now_here.bytes);   // no work yet
            GC_CUDA(cudaMemset(lane.now.device, 0, lane.now.bytes));
            GC_CUDA(cudaMemset(lane.found.device, 0, lane.found.bytes));
            GC_CUDA(cudaDeviceSynchronize());   // other streams are not ordered after it
        }
        for (auto& [memory, at] : kept_) {
            GC_TRY(device_.use(*device_.gpus()[0]));
            GC_CUDA(cudaMemset(memory.device, 0, memory.bytes));   // words beyond a bucket's end stay 0
            *at = memory.device;
        }
        GC_CUDA(cudaDeviceSynchronize());
        // Each kernel runs once before it is captured: loading a kernel during capture fails.
        for (uint32_t g = finishers_.size(); g-- > 0;) {
            GC_TRY(device_.use(*device_.gpus()[g]));
            Finisher& with = finishers_[g];
            GC_TRY(make(&with.stream));
            GC_TRY(make(&with.done, g == 0));                            // finish() waits for the first GPU's
            std::memset(with.task_here.host, 0, with.task_here.bytes);   // a task without sources
            with.task_here.as<SumTask>()->to = with.sum.device;
            for (uint32_t bucket = 0; bucket < layout_.buckets.size(); ++bucket) {
                auto all = [&] { return add_up(with, bucket); };
                if (bucket == 0) GC_TRY(all());
                GC_CUDA(cudaStreamSynchronize(with.stream.get()));
                GC_TRY(capture(with.stream.get(), all, &with.graphs.emplace_back()));
            }
        }
        GC_TRY(make(&uploaded_));
        GC_TRY(make(&scaled_));
        GC_TRY(make(&combiner_));
        *combine_task_here_.as<CombineTask>() = {};
        auto encode = [this]() -> Status {
            auto* task = static_cast<CombineTask*>(combine_task_.device);
            GC_CUDA(cudaMemcpyAsync(task, combine_task_here_.host, sizeof(CombineTask), cudaMemcpyHostToDevice, combiner_.get()));
            return cuda::combine(task, combined_max, combiner_.get());
        };
        GC_TRY(encode());
        GC_CUDA(cudaStreamSynchronize(combiner_.get()));
        GC_TRY(capture(combiner_.get(), encode, &combination_));
        device_.follower = this;
        return {};
    }

    Status add(uint32_t number, BlockId block, uint32_t bucket, Buffer gradient, const Plan& plan) override {
        const Bucket& range = layout_.buckets[bucket];
        GC_ASSERT(gradient.device && gradient.bytes == range.count * sizeof(float));
        Lane& lane = lanes_[number];
        QuantiseTask task{};
        bool done = false;
        GC_TRY(device_.use(device_.gpu_of(number)));
        const cudaStream_t stream = device_.lanes()[number].codec.get();
        {
            std::scoped_lock lock(mutexes_[bucket]);
            ++plan.record->blocks;
            GC_TRY(use(number, bucket, block, plan, stream, &task.now, &done));
        }
        if (done) return {};
        task.gradient = static_cast<const float*>(gradient.device);
        GC_TRY(enqueue(range_of(bucket), task, stream));
        return record(lane.added[bucket], stream);
    }

    Status begin(uint32_t number, BlockId block, const std::function<Plan(uint32_t)>& plan) override {
        Lane& lane = lanes_[number];
        const cudaStream_t stream = device_.lanes()[number].stream.get();
        GC_TRY(device_.use(device_.gpu_of(number)));
        GC_CUDA(cudaEventRecord(lane.before.get(), stream));
        lane.begun.fetch_add(1, std::memory_order_release);   // from here on finish() may wait for `before`
        auto* now = lane.now_here.as<QuantiseNow>();
        for (uint32_t bucket = 0; bucket < layout_.buckets.size(); ++bucket) {
            std::scoped_lock lock(mutexes_[bucket]);
            GC_TRY(use(number, bucket, block, plan(bucket), stream, &now[bucket], nullptr));
        }
        auto* factors = reinterpret_cast<double*>(now + layout_.buckets.size());
        for (uint32_t g = 0; g < layout_.groups.size(); ++g) factors[g] = scale_of(g).factor;
        return {};
    }

    Status start(uint32_t lane, cudaStream_t stream) override {
        const Buffer &to = lanes_[lane].now, &from = lanes_[lane].now_here;
        return check(cudaMemcpyAsync(to.device, from.host, from.bytes, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
    }

    void gradients(std::span<const uint32_t> of_buckets) override { gradients_.assign(of_buckets.begin(), of_buckets.end()); }

    Status follow(uint32_t lane, uint32_t bucket, const void* gradient, bool again, bool last, cudaStream_t stream) override {
        const auto* now = static_cast<const QuantiseNow*>(lanes_[lane].now.device);
        QuantiseTask task{};
        task.gradient = static_cast<const float*>(gradient);
        task.now_at = now + bucket;
        task.factors = reinterpret_cast<const double*>(now + layout_.buckets.size()) + layout_.buckets[bucket].group;
        task.now.word = word();
        task.again = again;
        GC_TRY(enqueue(range_of(bucket), task, stream));
        return last ? record(lanes_[lane].added[bucket], stream) : Status{};
    }

    bool whole_steps() const override { return device_.gpus().size() == 1 && config_.quantiser != Quantiser::fixed; }

    CudaDevice::StepGroup step_group(uint32_t group) const override {
        return {host_->words().groups[group].offset, digits(group) ? radix() : 0};
    }

    Status quantise(uint32_t lane, uint32_t block, bool first, const void* gradient, const uint32_t* step, cudaStream_t stream) override {
        QuantiseTask task{};
        task.gradient = static_cast<const float*>(gradient);
        task.step_at = step;
        task.now = {lanes_[lane].words.device, static_cast<Found*>(lanes_[lane].found.device), 0, block, word(), !first};
        task.factors = scales_at(scales_).factors;
        return enqueue({0, 0, 0, static_cast<uint32_t>(layout_.groups.size())}, task, stream);
    }

    Status quantise_further(uint32_t lane, uint32_t block, uint32_t bucket, const void* gradient, const uint32_t* step,
                            cudaStream_t stream) override {
        QuantiseTask task{};
        task.gradient = static_cast<const float*>(gradient);
        task.step_at = step;
        task.now = {words_at(lane, bucket, 0), found_at(lane, bucket, 0), 0, block, word(), true};
        task.factors = scales_at(scales_).factors + layout_.buckets[bucket].group;
        return enqueue(range_of(bucket), task, stream);
    }

    Status close(uint32_t lanes, uint32_t parity, cudaStream_t stream) override {
        CloseTask task{};
        task.scales = scales_at(scales_);
        for (uint32_t lane = 0; lane < lanes; ++lane) task.found[lane] = static_cast<Found*>(lanes_[lane].found.device);
        task.lanes = lanes;
        task.groups = static_cast<uint32_t>(layout_.groups.size());
        task.to = step_found_[parity].as<Found>();
        return cuda::close(task, stream);
    }

    CudaDevice::StepWords step_words(uint32_t lanes) const override {
        CudaDevice::StepWords words;
        words.word = word();
        words.lanes = lanes;
        for (uint32_t lane = 0; lane < lanes; ++lane) words.from[lane] = lanes_[lane].words.device;
        words.units = scales_at(scales_).units;
        words.halted = scales_at(scales_).halted;
        return words;
    }

    Status scales(cudaStream_t stream) override {
        if (cudaEventQuery(scaled_.get()) != cudaSuccess) GC_CUDA(cudaEventSynchronize(scaled_.get()));
        (void)cudaGetLastError();   // clears the error of the query
        const StepScales to = scales_at({nullptr, scales_here_.host, scales_here_.bytes});
        for (uint32_t g = 0; g < layout_.groups.size(); ++g) {
            to.factors[g] = scale_of(g).factor;
            to.next[g] = to.units[g] = std::ldexp(1.0, host_->exponents()[g]) / config_.batch;
            const_cast<int32_t*>(to.limits)[g] = scale_of(g).limit;
        }
        *to.halted = 0;
        for (Lane& lane : lanes_) {   // a step by buckets that was begun and not finished leaves values behind
            bool unfinished = false;
            for (Use& use : lane.uses) unfinished = std::exchange(use.step, no_step) != no_step || unfinished;
            if (unfinished) GC_CUDA(cudaMemsetAsync(lane.found.device, 0, lane.found.bytes, stream));
        }
        GC_CUDA(cudaMemcpyAsync(scales_.device, scales_here_.host, scales_.bytes, cudaMemcpyHostToDevice, stream));
        return check(cudaEventRecord(scaled_.get(), stream), "cudaEventRecord");
    }

    Status found(StepId step, uint32_t parity, CudaDevice::StepFound* found) override {
        const Found* all = step_found_[parity].as<Found>();
        *found = {};
        for (uint32_t g = 0; g < layout_.groups.size(); ++g) {
            if (all[g].diverged) return diverged(step, g, all[g]);
            maxima_[g] = std::bit_cast<float>(all[g].maximum);
            found->clipped += all[g].clipped;
        }
        found->maxima = maxima_;
        return {};
    }

    Status finish(StepId step, uint32_t bucket, const Plan& plan) override {
        std::scoped_lock lock(finishing_);
        const uint64_t bytes = host_->words().buckets[bucket].count * word_bytes(plan.word);
        const cudaStream_t home = finishers_[0].stream.get();
        for (auto g = static_cast<uint32_t>(finishers_.size()); g-- > 0;) {   // GPU 0 last: it adds the other GPUs' sums
            Finisher& with = finishers_[g];
            const auto& gpu = device_.gpus()[g];
            GC_TRY(device_.use(*gpu));
            SumTask& task = *with.task_here.as<SumTask>();
            task.to = g == 0 && plan.words.device ? plan.words.device : with.sum.device;
            task.sources = 0;
            task.word = plan.word;
            task.audit = g == 0 && plan.audit;
            task.digest = 0;
            GC_TRY(sources(g, step, bucket, plan, &task));
            for (size_t other = 1; g == 0 && other < finishers_.size(); ++other) {
                GC_ASSERT(task.sources < sources_max);
                task.found[task.sources] = nullptr;
                task.from[task.sources++] = staged(other);
            }
            GC_CUDA(cudaGraphLaunch(with.graphs[bucket].get(), with.stream.get()));
            if (g == 0) break;
            GC_CUDA(cudaEventRecord(with.done.get(), with.stream.get()));
            GC_TRY(device_.use(*device_.gpus()[0]));
            GC_CUDA(cudaStreamWaitEvent(home, with.done.get(), 0));
            GC_CUDA(cudaMemcpyPeerAsync(staged(g), device_.gpus()[0]->number, with.sum.device, gpu->number, bytes, home));
        }
        const std::byte* here = nullptr;
        if (!plan.words.device) {
            cudaPointerAttributes memory{};   // the exchange's memory is page-locked if the engine could lock it
            GC_CUDA(cudaPointerGetAttributes(&memory, plan.words.host));
            std::byte* to = memory.type == cudaMemoryTypeHost ? plan.words.host : words_here_.host;
            GC_CUDA(cudaMemcpyAsync(to, finishers_[0].sum.device, bytes, cudaMemcpyDeviceToHost, home));
            here = to;
        }
        GC_CUDA(cudaEventRecord(finishers_[0].done.get(), home));   // recorded after those of the other GPUs
        GC_TRY(wait(finishers_[0].done));
        if (here && here != plan.words.host) std::memcpy(plan.words.host, here, bytes);
        plan.record->digest = finishers_[0].task_here.as<SumTask>()->digest;
        return fold(step, bucket, plan);
    }

    const Layout& words() const override { return host_->words(); }
    Sum whole(const Sum& sum) override {
        Sum all = host_->whole(sum);
        if (all.words.host != sum.words.host) must(upload(&all.words));
        return all;
    }
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
            lane.added.resize(layout_.buckets.size());
            arena.plan("quantised", targets * host_->words().elements * word_bytes_, &lane.words);
            arena.plan("quantised", targets * layout_.groups.size() * sizeof(Found), &lane.found);
            const uint64_t now = layout_.buckets.size() * sizeof(QuantiseNow) + layout_.groups.size() * sizeof(double);
            arena.plan("quantised", now, &lane.now);
            arena.plan_pinned("quantised", now, &lane.now_here);
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
        auto& task = *combine_task_here_.as<CombineTask>();
        for (uint64_t at = 0; at < count; at += combined_max) {
            task.out = combined_.device;
            task.prime = combine.prime;
            task.count = std::min(combined_max, count - at);
            task.accumulate = false;
            task.sources = 0;
            for (uint32_t i = 0; i < combine.ins; ++i) {
                GC_ASSERT(combine.in[i].device);
                task.in[task.sources] = static_cast<const char*>(combine.in[i].device) + at * width;
                task.weight[task.sources++] = combine.weights[i];
                if (task.sources < sources_max && i + 1 < combine.ins) continue;
                GC_CUDA(cudaGraphLaunch(combination_.get(), stream));
                if (i + 1 == combine.ins) break;
                GC_CUDA(cudaStreamSynchronize(stream));   // until the task is copied
                task.accumulate = true;
                task.sources = 0;
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

    /// A target of one step that a lane adds blocks to.
    struct Use {
        StepId step = no_step;
        const std::byte* words = nullptr;   // of the plan
        uint32_t begun = 0;                 // Lane::begun at its last block
        uint32_t quantises = 0;             // 1 + the block whose graph quantises it, until add() has been called for all of its gradients
        uint32_t to_come = 0;               // so many calls of add() for that block
    };
    struct Lane {
        Buffer words;                     // [target][word]
        Buffer found;                     // [target][group]
        std::vector<Use> uses;            // [bucket][target]
        Buffer now, now_here;             // of the block begun last: QuantiseNow [bucket], double factor [group]
        std::atomic<uint32_t> begun{0};   // number of blocks
        std::vector<Event> added;         // by bucket: after the last block begun or added
        Event before;                     // after all blocks before the last begun
    };
    struct Finisher {   // of a GPU
        Stream stream;
        Event done;
        Buffer task, task_here;          // SumTask, Found [group of the bucket]
        Buffer sum;                      // of the bucket, over this GPU's lanes
        std::vector<GraphExec> graphs;   // by bucket
    };

    // Copies words to GPU 0 through page-locked memory, in the order of its stream; does not wait for the copy.
    Status upload(Buffer* words) {
        GC_ASSERT(words->bytes <= whole_.bytes);
        GC_TRY(device_.use(*device_.gpus()[0]));
        if (cudaEventQuery(uploaded_.get()) != cudaSuccess) {
            (void)cudaGetLastError();   // clears the error of the query
            GC_CUDA(cudaEventSynchronize(uploaded_.get()));
        }
        const cudaStream_t stream = device_.gpus()[0]->stream.get();
        std::memcpy(whole_here_.host, words->host, words->bytes);
        GC_CUDA(cudaMemcpyAsync(whole_.device, whole_here_.host, words->bytes, cudaMemcpyHostToDevice, stream));
        words->device = whole_.device;
        return check(cudaEventRecord(uploaded_.get(), stream), "cudaEventRecord");
    }

    uint32_t index(const Lane& lane) const { return static_cast<uint32_t>(&lane - lanes_.data()); }
    void* staged(size_t gpu) const { return static_cast<char*>(staged_.device) + (gpu - 1) * bucket_words_ * word_bytes_; }

    /// Sets *now for a block.  Under the bucket's mutex, since finish() reads the uses of all lanes.  `done` null: the block's graph will
    /// quantise it.  Otherwise the block is computed, and *done tells whether its graph has quantised it.
    Status use(uint32_t number, uint32_t bucket, BlockId block, const Plan& plan, cudaStream_t stream, QuantiseNow* now, bool* done) {
        const Bucket &range = layout_.buckets[bucket], &words = host_->words().buckets[bucket];
        GC_ASSERT(plan.words.bytes == words.count * word_bytes(plan.word) && word_bytes(plan.word) <= word_bytes_);
        GC_ASSERT(plan.record->maxima.size() == range.group_count);
        GC_ASSERT((plan.word == Word::i16) == (config_.quantiser == Quantiser::auto16));
        Lane& lane = lanes_[number];
        std::span<Use> uses(lane.uses.data() + uint64_t{bucket} * targets_, targets_);
        Use* use = nullptr;
        for (Use& each : uses)
            if (each.step == block.step && each.words == plan.words.host) use = &each;
        const bool first = !use;
        for (Use& each : uses)
            if (!use && each.step != block.step) use = &each;
        GC_ASSERT(use && "more targets than expected");
        const auto target = static_cast<uint32_t>(use - uses.data());
        if (done && use->quantises == block.block + 1 && !first) {
            *done = true;
            if (--use->to_come == 0) use->quantises = 0;
            return {};
        }
        Found* found = found_at(number, bucket, target);
        // A step that was not finished may have left values.
        if (first && use->step != no_step) GC_CUDA(cudaMemsetAsync(found, 0, range.group_count * sizeof(Found), stream));
        *use = {block.step, plan.words.host, lane.begun.load(std::memory_order_relaxed), done ? 0 : block.block + 1, gradients_[bucket]};
        *now = {words_at(number, bucket, target), found, static_cast<uint32_t>(block.step), block.block, plan.word, !first};
        return {};
    }

    /// Sums a bucket's words and Found over a GPU's lanes.
    Status add_up(Finisher& with, uint32_t bucket) {
        const Bucket& words = host_->words().buckets[bucket];
        auto* task = static_cast<SumTask*>(with.task.device);
        const cudaStream_t stream = with.stream.get();
        GC_CUDA(cudaMemcpyAsync(task, with.task_here.host, sizeof(SumTask), cudaMemcpyHostToDevice, stream));
        GC_TRY(sum(task, words.count, words.offset, stream));
        GC_TRY(gather(task, words.group_count, stream));
        constexpr uint64_t results_at = offsetof(SumTask, digest);
        const uint64_t bytes = sizeof(SumTask) - results_at + words.group_count * sizeof(Found);
        return check(cudaMemcpyAsync(with.task_here.host + results_at, reinterpret_cast<std::byte*>(task) + results_at, bytes,
                                     cudaMemcpyDeviceToHost, stream),
                     "cudaMemcpyAsync");
    }

    /// Adjacent groups, and where their gradient and words begin.
    struct Range {
        uint64_t offset, words;   // elements, words
        uint32_t group, count;
    };
    Range range_of(uint32_t bucket) const {
        const Bucket& range = layout_.buckets[bucket];
        return {range.offset, host_->words().buckets[bucket].offset, range.group, range.group_count};
    }
    /// Quantises all groups of a range, by as many launches as it takes: digits by their own.
    Status enqueue(const Range& range, QuantiseTask& task, cudaStream_t stream) const {
        task.seed = config_.seed;
        for (task.first = 0; task.first < range.count; task.first += task.groups) {
            const bool in_digits = digits(range.group + task.first);
            task.radix = in_digits ? radix() : 0;
            task.groups = 0;
            while (task.groups < quantise_groups_max && task.first + task.groups < range.count) {
                const uint32_t g = range.group + task.first + task.groups;
                if (digits(g) != in_digits) break;
                const Group& group = layout_.groups[g];
                const Scale scale = scale_of(g);
                task.group[task.groups++] = {group.offset - range.offset,
                                             host_->words().groups[g].offset - range.words,
                                             group.count,
                                             group.place(),
                                             scale.divisor,
                                             scale.factor,
                                             scale.limit,
                                             0};
            }
            GC_TRY(cuda::quantise(task, stream));
        }
        return {};
    }
    /// A group of statistics in auto16 has three words an element.
    bool digits(uint32_t group) const { return config_.quantiser == Quantiser::auto16 && layout_.groups[group].statistics; }
    int32_t radix() const { return 2 * quantise_limit(Quantiser::auto16, config_.blocks) + 1; }
    Word word() const { return config_.quantiser == Quantiser::auto16 ? Word::i16 : Word::i32; }

    Status diverged(StepId step, uint32_t group, const Found& found) const {
        return fail(Code::diverged, "step {}: the gradient of layer {} holds {} in block {}: lower the learning rate, or look at the data",
                    step + 1, layout_.groups[group].layer, std::isnan(std::bit_cast<float>(found.maximum)) ? "NaN" : "Inf",
                    UINT32_MAX - found.diverged);
    }

    /// Parts of scales_ or of its copy on the host.
    StepScales scales_at(const Buffer& in) const {
        const uint64_t groups = layout_.groups.size();
        auto* at = static_cast<double*>(in.device ? in.device : static_cast<void*>(in.host));
        auto* limits = reinterpret_cast<int32_t*>(at + 3 * groups);
        return {at, at + groups, at + 2 * groups, reinterpret_cast<uint32_t*>(limits + groups), limits, static_cast<double>(config_.batch)};
    }

    Use* used(uint32_t lane, StepId step, uint32_t bucket, const Plan& plan) {
        for (uint32_t t = 0; t < targets_; ++t) {
            Use& use = lanes_[lane].uses[uint64_t{bucket} * targets_ + t];
            if (use.step == step && use.words == plan.words.host) return &use;
        }
        return nullptr;
    }

    // Collects the accumulators of a GPU's lanes and makes its stream wait for them.
    Status sources(uint32_t gpu, StepId step, uint32_t bucket, const Plan& plan, SumTask* task) {
        std::scoped_lock lock(mutexes_[bucket]);
        for (uint32_t l = 0; l < lanes_.size(); ++l) {
            Lane& lane = lanes_[l];
            const Use* use = device_.lanes()[l].gpu == gpu ? used(l, step, bucket, plan) : nullptr;
            if (!use) continue;
            GC_ASSERT(task->sources < sources_max);
            // If the lane has begun a block of another target, the event before that block suffices.
            const bool last = use->begun == lane.begun.load(std::memory_order_acquire);
            GC_CUDA(cudaStreamWaitEvent(finishers_[gpu].stream.get(), (last ? lane.added[bucket] : lane.before).get(), 0));
            const auto target = static_cast<uint32_t>(use - lane.uses.data()) % targets_;
            task->found[task->sources] = found_at(l, bucket, target);
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
        for (const Finisher& with : finishers_)
            for (uint32_t g = 0; g < range.group_count; ++g) {
                const Found& found = reinterpret_cast<const Found*>(with.task_here.as<SumTask>() + 1)[g];
                record.maxima[g] = std::fmax(record.maxima[g], found.diverged ? INFINITY : std::bit_cast<float>(found.maximum));
                record.clipped += found.clipped;
                if (found.diverged == 0) continue;
                const uint32_t block = UINT32_MAX - found.diverged;
                record.diverged = std::min(record.diverged - 1, block) + 1;   // 0 - 1 wraps: no block yet
                if (!plan.audit) diverged = this->diverged(step, range.group + g, found);
            }
        std::scoped_lock lock(mutexes_[bucket]);
        for (uint32_t l = 0; l < lanes_.size(); ++l)
            if (Use* use = used(l, step, bucket, plan)) use->step = no_step;
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
                quantise_limit(statistics ? Quantiser::auto32 : config_.quantiser, config_.blocks * layout_.groups[group].uses)};
    }

    const Layout& layout_;
    const CodecConfig config_;
    CudaDevice& device_;
    const std::unique_ptr<Codec> host_;
    uint32_t targets_ = 0;
    const uint64_t word_bytes_;   // of an accumulator: the widest word of any plan
    uint64_t bucket_words_ = 0;   // of the largest bucket
    std::vector<Lane> lanes_;
    std::vector<uint32_t> gradients_;   // by bucket: of a block
    std::vector<std::mutex> mutexes_;   // by bucket: guard records and uses
    // Used by finish().
    std::mutex finishing_;
    std::vector<Finisher> finishers_;   // by GPU
    Buffer staged_;                     // GPU 0: sums of the others
    Buffer words_here_;
    // Used by whole().
    Buffer whole_, whole_here_;
    Event uploaded_;
    // Of whole steps, in target 0 of the lanes.
    Buffer scales_, scales_here_;        // see scales_at()
    Event scaled_;                       // scales_here_ has been copied
    std::array<Buffer, 2> step_found_;   // by parity: Found [group], page-locked
    std::vector<float> maxima_;          // [group]
    // Used by combine(), network thread only.
    std::deque<std::pair<Buffer, void**>> kept_;
    Stream combiner_;
    GraphExec combination_;
    Buffer combined_, combined_here_, combine_task_, combine_task_here_;
};

}   // namespace

std::unique_ptr<Codec> codec_plan(const Layout& layout, const CodecConfig& config, Device& device) {
    return std::make_unique<CudaCodec>(layout, config, static_cast<CudaDevice&>(device));
}

Status codec_ready(Codec& codec) { return static_cast<CudaCodec&>(codec).ready(); }

}   // namespace gradcast::cuda
