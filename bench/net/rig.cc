#include "bench/net/rig.h"

#include <charconv>

#include "bench/net/net.h"
#include "nn/presets.h"

namespace gradcast {
namespace {

struct NoSink final : GradientSink {
    Status bucket(uint32_t, BlockId, uint32_t, Buffer) override { return {}; }
    void loss(uint32_t, BlockId, double) override {}
};

}   // namespace

Status NetRig::open(const std::string& wanted, uint32_t batch, uint32_t blocks, uint32_t threads, const NetHow& how) {
    const size_t colon = std::min(wanted.find(':'), wanted.size());
    const std::string preset = wanted.substr(0, colon);
    const bool small = preset == "lenet5" || preset == "mlp" || preset == "lenet3", text = preset.starts_with("gpt");
    uint32_t H = small ? 28 : 32;
    const uint32_t C = small || text ? 1 : 3;
    if (const char* begin = wanted.data() + colon + 1, *end = wanted.data() + wanted.size();
        colon < wanted.size() && std::from_chars(begin, end, H).ptr != end)
        return fail(Code::invalid, "net {}: behind the colon stands the side of its samples, as in resnet18:224", wanted);
    if (text) {
        const bool large = preset == "gpt10m";   // of nanoGPT's page on Shakespeare
        spec_ = {.C = 1, .H = 1, .W = large ? 257u : 65u, .classes = 1, .element = Element::u16, .vocabulary = 256};
        GC_TRY(preset_layers("gpt", large ? PresetSize{.depth = 6, .width = 384, .heads = 6} : PresetSize{}, &spec_));
    } else {
        GC_TRY(preset_find(preset, C, H, H, 10, &spec_));
        preset_targets(preset, &spec_);
    }
    NetConfig config;
    std::string why;
    GC_TRY(compute_.open(how.device, {.lanes_max = std::min(threads, blocks), .lanes_per_gpu = threads}, &why));
    if (!why.empty()) fmt::print(stderr, "{}\n", why);
    if (compute_.device) threads = compute_.device->lane_count();
    config.precision = how.precision;
    config.deterministic = how.deterministic;
    config.lanes = threads;
    config.samples_max = (batch + blocks - 1) / blocks;
    config.block_sizes = {batch / blocks, config.samples_max};
    batch_ = batch, blocks_ = blocks;
    for (uint32_t b = 0; b < blocks && compute_.device; ++b) config.step_blocks.push_back(first_of(b + 1) - first_of(b));
    OptimiserConfig sgd;
    // tiny, so that every step does the same work
    sgd.lr = 1e-6;
    sgd.momentum = 0.9;
    GC_TRY(compute_.plan(spec_, config, sgd, {Quantiser::auto32, batch, blocks}, arena_));
    const uint64_t words = net().layout().elements * sizeof(int32_t);
    arena_.plan("words", words, &words_);
    if (compute_.device) {
        const DataInfo info{.count = batch, .C = C, .H = H, .W = H, .classes = 10, .mean = {}, .std = {}, .source = {}};
        compute_.codec->device()->expect(1);
        GC_ASSERT(compute_.codec->device()->plan(words, &device_words_));
        GC_TRY(compute_.module->resident_plan(info, {}, *compute_.device, &resident_));
    }
    GC_TRY(compute_.ready(arena_));
    together_ = together_of(net(), blocks, threads);
    images_.resize(batch * spec_.sample_bytes()), labels_.resize(batch), targets_.resize(batch * spec_.targets_bytes());
    const uint32_t width = element_bytes(spec_.element);   // of tokens the low byte is written
    for (size_t i = 0; i < images_.size(); i += width) images_[i] = static_cast<uint8_t>(i * 7919 >> 3);
    for (uint32_t i = 0; i < batch; ++i) labels_[i] = static_cast<int32_t>(i % spec_.classes);
    for (size_t i = 0; i < targets_.size(); ++i) targets_[i] = static_cast<std::byte>(i % spec_.classes);
    mean_.assign(C, 0.3f), std_.assign(C, 0.35f);
    const Layout& layout = compute_.net->layout();
    for (uint32_t i = 0; i < batch; ++i) places_.push_back({i, 0});
    if (resident_) GC_TRY(resident_->put(0, images_.data(), batch));
    maxima_.resize(layout.groups.size()), records_.resize(layout.buckets.size());
    for (size_t b = 0; b < records_.size(); ++b)
        records_[b].maxima = std::span(maxima_).subspan(layout.buckets[b].group, layout.buckets[b].group_count);
    remaining_ = std::vector<std::atomic<uint32_t>>(records_.size());
    failed_.resize(blocks), quantise_ns.resize(threads);
    return lanes_.open(threads);
}

Samples NetRig::samples(uint32_t block) const {
    const uint32_t first = first_of(block), end = first_of(block + 1);
    const uint64_t bytes = spec_.sample_bytes();
    Samples samples{nullptr, labels_.data() + first, end - first, spec_.C, spec_.H, spec_.W, mean_.data(), std_.data()};
    samples.element = spec_.element;
    if (!targets_.empty()) samples.targets = targets_.data() + first * spec_.targets_bytes();
    if (resident_) {
        samples.places = places_.data() + first;
        samples.resident = resident_.get();
    } else {
        samples.images = images_.data() + first * bytes;
    }
    return samples;
}

Status NetRig::bucket(uint32_t lane, BlockId id, uint32_t bucket, Buffer gradient) {
    const uint64_t begin_ns = clock_ns();
    Status status = compute_.codec->add(lane, id, bucket, gradient, plan(bucket));
    if (status.ok()) status = added(id.step, bucket);
    quantise_ns[lane] += clock_ns() - begin_ns;
    return status;
}

bool NetRig::pieces(uint32_t lane, std::span<const Block> blocks, uint32_t bucket, const GradientPiece& piece, Status* status) {
    std::array<Addition, together_most> all;
    for (size_t i = 0; i < blocks.size(); ++i) all[i] = {blocks[i].id, plan(bucket)};
    if (!compute_.codec->add_pieces(lane, std::span(all.data(), blocks.size()), bucket, piece, status)) return false;
    for (size_t i = 0; status->ok() && i < blocks.size(); ++i) *status = added(blocks[i].id.step, bucket);
    return true;
}

// acq_rel: the lane that counts to zero sees what the others have added.
Status NetRig::added(StepId step, uint32_t bucket) {
    return remaining_[bucket].fetch_sub(1, std::memory_order_acq_rel) == 1 ? compute_.codec->finish(step, bucket, plan(bucket)) : Status{};
}

Sum NetRig::sum(uint32_t bucket) {
    const Bucket& range = compute_.net->layout().buckets[bucket];
    Sum sum;
    sum.bucket = bucket;
    sum.maxima = records_[bucket].maxima;
    sum.words = Buffer{words_.host, device_words_, words_.bytes}.part(range.offset * sizeof(int32_t), range.count * sizeof(int32_t));
    return sum;
}

Status NetRig::block(uint32_t number) {
    NoSink none;
    return compute_.net->block(0, {step_++, number}, samples(number), none);
}

Status NetRig::step() {
    for (Record& record : records_) record.blocks = 0;
    for (auto& remaining : remaining_) remaining.store(blocks_, std::memory_order_relaxed);   // before the lanes start
    lanes_.run((blocks_ + together_ - 1) / together_, [this](uint32_t lane, uint32_t item) {
        std::array<Block, together_most> all;
        const uint32_t first = item * together_, count = std::min(together_, blocks_ - first);
        for (uint32_t i = 0; i < count; ++i) all[i] = {{step_, first + i}, samples(first + i)};
        failed_[first] = compute_.net->blocks(lane, std::span(all.data(), count), *this);
    });
    for (const Status& status : failed_) GC_TRY(status);
    const uint64_t begin_ns = clock_ns();
    GC_TRY(apply());
    for (uint32_t bucket = 0; bucket < records_.size(); ++bucket) compute_.codec->commit(sum(bucket));
    apply_ns += clock_ns() - begin_ns;
    return {};
}

Status NetRig::whole_begin() {
    whole_.clear();
    for (uint32_t b = 0; b < blocks_; ++b) whole_.push_back(samples(b));
    compute_.optimiser->step(step_);
    return net().step_begin(step_++, whole_);
}

Status NetRig::whole_end() {
    WholeStep done;
    GC_TRY(net().step_end(&done));
    compute_.codec->commit_all(net().layout(), done.maxima);
    return {};
}

Status NetRig::apply() {
    compute_.optimiser->step(step_++);
    sums_.clear();
    for (uint32_t bucket = 0; bucket < records_.size(); ++bucket) sums_.push_back({sum(bucket), compute_.codec->units(bucket)});
    uint64_t digest = 0;
    return compute_.net->apply(lanes_, *compute_.optimiser, sums_, &digest);
}

}   // namespace gradcast
