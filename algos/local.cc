#include "algos/local.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <set>

#include "algos/context.h"
#include "algos/worker_sum.h"
#include "nn/graph/layers.h"
#include "nn/net.h"
#include "runtime/core/rng.h"

namespace gradcast {
namespace {

constexpr uint64_t share_most = 16 * 1024;   // elements that a lane updates at a time
constexpr uint64_t chunk_elements = 512;     // elements whose gradient is in the first-level cache

/// Samples in `share` of a part.
uint64_t share_of(uint64_t samples, double share) {
    return std::clamp<uint64_t>(static_cast<uint64_t>(std::llrint(static_cast<double>(samples) * share)), 1, samples);
}

}   // namespace

uint64_t worker_seed(uint64_t seed, uint32_t worker) {
    const Philox random = random4(Purpose::shuffle, seed, worker, ~0u);
    return uint64_t{random[0]} << 32 | random[1];
}

/// Keeps the gradient of one block.
class Local::Sink final : public GradientSink {
public:
    Sink(Context& context, float* gradient, double* loss) : context_(context), gradient_(gradient), loss_(loss) {}
    Status bucket(uint32_t, BlockId, uint32_t bucket, Buffer from) override {
        if (context_.spend_us) context_.host.spend(context_.spend_us);
        std::memcpy(gradient_ + context_.net->layout().buckets[bucket].offset, from.host, from.bytes);
        context_.progress.advance();
        return {};
    }
    void loss(uint32_t, BlockId, double sum) override { *loss_ = sum; }

private:
    Context& context_;
    float* const gradient_;
    double* const loss_;
};

Local::Local(const LocalConfig& config, const DataSet& data)
    : config_(config), data_(data), whole_(data.info().count, config.seed, 1, 1), losses_(config.blocks) {
    GC_ASSERT(config.workers >= 1 && config.workers + config.validation <= data.info().count && config.blocks <= config.batch);
}

uint64_t Local::samples(uint32_t worker) const { return first_sample(worker + 1) - first_sample(worker); }

double Local::weight(uint32_t worker) const {
    return static_cast<double>(samples(worker)) * config_.workers / static_cast<double>(first_sample(config_.workers));
}

/// Of its mini-batches.
Sampler Local::order(uint32_t worker, double share) const {
    return Sampler(share_of(samples(worker), share), worker_seed(config_.seed, worker), config_.batch, config_.blocks);
}

/// Of the job's mini-batches.
Sampler Local::stream() const {
    return Sampler(data_.info().count, config_.seed, config_.workers * config_.batch, config_.workers * config_.blocks);
}

/// Of whole passes: one mini-batch is one pass, in blocks of at most those of a mini-batch.
Sampler Local::passes(uint32_t worker, double share) const {
    const uint64_t all = samples(worker), some = share_of(all, share), most = (config_.batch + config_.blocks - 1) / config_.blocks;
    return Sampler(all, worker_seed(config_.seed, worker), static_cast<uint32_t>(some), static_cast<uint32_t>((some + most - 1) / most));
}

std::vector<uint32_t> Local::block_sizes() const {
    std::set<uint32_t> sizes;
    const Sampler any = order(0, 1);
    for (uint32_t block = 0; block < config_.blocks; ++block) sizes.insert(any.block_size(block));
    for (uint64_t round = 0; round < config_.rounds_of_epoch; ++round)   // its last mini-batch
        if (const uint64_t remaining = (begin_of_round(round + 1) - begin_of_round(round)) % config_.batch; remaining > 0) {
            const Shape shape = shape_of(remaining);
            const Sampler cut(1, 1, shape.samples, shape.blocks);
            for (uint32_t block = 0; block < shape.blocks; ++block) sizes.insert(cut.block_size(block));
        }
    if (config_.pass_share > 0)
        for (const uint32_t worker : {0u, config_.workers - 1}) {   // parts differ by one sample, and the last is one of the largest
            const Sampler pass = passes(worker, config_.pass_share);
            sizes.insert(pass.block_size(0));
            sizes.insert(pass.block_size_max());
        }
    return {sizes.begin(), sizes.end()};
}

void Local::plan(Net& net, uint32_t lanes, Arena& arena) {
    const Layout& layout = net.layout();
    elements_ = layout.elements;
    for (const Group& group : layout.groups)
        for (uint64_t i = 0; i < group.count; i += share_most)
            pieces_.push_back({group.offset + i, std::min(share_most, group.count - i), group.statistics});
    const uint32_t most = std::max(block_sizes().back(), config_.validation > 0 ? validation_batch : 0);
    rooms_.resize(lanes), right_.resize(lanes);
    for (Room& room : rooms_) {
        arena.plan("samples", most * data_.sample_bytes(), &room.images);
        arena.plan("samples", most * sizeof(int32_t), &room.labels);
        arena.plan("samples", most * data_.info().targets_bytes(), &room.targets);
        room.places.resize(most), room.indices.resize(most), room.epochs.resize(most);
    }
    arena.plan("gradients of blocks", config_.blocks * elements_ * sizeof(float), &gradients_);
}

Status Local::block(Context& context, uint32_t lane, uint32_t worker, BlockId id, const Sampler& sampler, bool augmented, uint32_t slot,
                    bool whole) {
    Room& room = rooms_[lane];
    const uint32_t count = sampler.block_size(id.block);
    const std::span places = std::span(room.places).first(count), indices = std::span(room.indices).first(count);
    sampler.block(id, places);
    if (whole) std::ranges::copy(places, indices.begin());
    for (uint32_t i = 0; !whole && i < count; ++i) whole_.range(first_sample(worker) + places[i], indices.subspan(i, 1));
    for (uint32_t i = 0; i < count; ++i) {
        room.epochs[i] = sampler.epoch_of(id, i);
        indices[i] = data_.in_epoch(indices[i], config_.seed, room.epochs[i]);
    }
    return gradient_of(context, lane, {id.step, worker * config_.blocks + id.block % config_.blocks}, count, augmented, slot);
}

/// The gradient of the samples that the lane's room names.
Status Local::gradient_of(Context& context, uint32_t lane, BlockId id, uint32_t count, bool augmented, uint32_t slot) {
    const DataInfo& info = data_.info();
    Room& room = rooms_[lane];
    const std::span indices = std::span(room.indices).first(count);
    auto* images = room.images.as<uint8_t>();
    const Drawn drawn{augmented ? &config_.augment : nullptr, room.epochs.data()};
    GC_TRY(data_.read(indices, images, room.labels.as<int32_t>(), room.targets.host, drawn));
    for (uint32_t i = 0; augmented && config_.augment.any() && i < count; ++i)
        augment(config_.augment, info, room.epochs[i], indices[i], images + i * data_.sample_bytes(),
                room.targets.host + i * info.targets_bytes());
    Sink sink(context, gradients_.as<float>() + slot * elements_, &losses_[slot]);
    return context.net->block(lane, id, room.samples(data_, count), sink);
}

/// Computes `count` blocks side by side: blocks(lane, number).
template <typename Blocks>
Status Local::run(Context& context, uint32_t count, Blocks blocks) {
    GC_TRY(context.workers->poll());
    struct Work {   // behind one pointer: a std::function of it allocates nothing
        Blocks& blocks;
        std::mutex mutex = {};
        Status status = {};
    } work{blocks};
    context.lanes.run(count, [&work](uint32_t lane, uint32_t number) {
        const Status status = work.blocks(lane, number);
        if (status.ok()) return;
        std::lock_guard lock(work.mutex);
        if (work.status.ok()) work.status = status;
    });
    return work.status;
}

/// The sum over the first blocks, in their order, of elements from `offset` on.
void Local::add_up(uint64_t offset, std::span<float> gradient, uint32_t blocks) const {
    for (uint32_t block = 0; block < blocks; ++block) {
        const float* from = gradients_.as<float>() + block * elements_ + offset;
        for (size_t i = 0; i < gradient.size(); ++i) gradient[i] += from[i];
    }
}

/// `gradient`: of the mini-batch; empty: the mean of the blocks.
void Local::update(Context& context, const Piece& piece, std::span<float> parameters, std::span<const float> gradient,
                   const LocalTerm& term, Shape shape) {
    float d[chunk_elements];
    const float share = 1.0f / static_cast<float>(shape.samples);
    for (uint64_t begin = 0, count = 0; begin < piece.count; begin += count) {
        count = std::min(chunk_elements, piece.count - begin);
        const uint64_t offset = piece.offset + begin;
        const std::span<float> w = parameters.subspan(offset, count);
        if (gradient.empty()) {
            std::fill(d, d + count, 0.0f);
            add_up(offset, {d, count}, shape.blocks);
            for (uint64_t i = 0; i < count; ++i) d[i] *= share;
        } else {
            std::ranges::copy(gradient.subspan(offset, count), d);
        }
        if (piece.statistics) {
            for (uint64_t i = 0; i < count; ++i) w[i] += statistics_share * (d[i] - w[i]);
            continue;
        }
        if (term.shift)
            for (uint64_t i = 0; i < count; ++i) d[i] += term.shift[offset + i];
        if (term.pull != 0)
            for (uint64_t i = 0; i < count; ++i) d[i] += term.pull * (w[i] - term.centre[offset + i]);
        (void)context.optimiser->update(offset, w, {d, count});
    }
}

/// A step of the optimiser with the mean of the blocks' gradients, which are there.  Adds their losses.
void Local::step(Context& context, Shape shape, const LocalTerm& term, double* loss) {
    struct Work {
        Local& local;
        Context& context;
        const LocalTerm& term;
        Shape shape;
    } work{*this, context, term, shape};
    for (uint32_t block = 0; block < shape.blocks; ++block) *loss += losses_[block];
    context.lanes.run(static_cast<uint32_t>(pieces_.size()), [&work](uint32_t, uint32_t i) {
        work.local.update(work.context, work.local.pieces_[i], work.context.net->parameters(), {}, work.term, work.shape);
    });
    context.net->refresh();
    context.samples += shape.samples;
    context.gradients += shape.samples;
    context.progress.advance();
}

Status Local::train(Context& context, uint32_t worker, uint64_t first, uint32_t steps, const LocalTerm& term, double* loss) {
    const Sampler sampler = order(worker, term.share);
    double sum = 0;
    for (uint64_t number = first; number < first + steps; ++number) {
        context.optimiser->step(number);
        GC_TRY(run(context, config_.blocks, [&](uint32_t lane, uint32_t block_number) {
            return block(context, lane, worker, {number, block_number}, sampler, true, block_number);
        }));
        step(context, {config_.batch, config_.blocks}, term, &sum);
    }
    *loss = sum / (static_cast<double>(config_.batch) * steps);
    return {};
}

/// Of the epochs' permutations, one after the other.
uint64_t Local::begin_of_round(uint64_t round) const {
    const uint64_t m = config_.rounds_of_epoch;
    return round / m * samples_in_all() + round % m * samples_in_all() / m;
}

Local::Shape Local::shape_of(uint64_t samples) const {
    const auto count = static_cast<uint32_t>(std::min<uint64_t>(config_.batch, samples));
    return {count, std::min(config_.blocks, count)};
}

uint64_t Local::batches_of_round(uint64_t round) const {
    return (begin_of_round(round + 1) - begin_of_round(round) + config_.batch - 1) / config_.batch;
}

/// Samples of the data at these positions of the epochs' permutations.
void Local::samples_at(uint64_t begin, std::span<uint64_t> indices) const {
    const Sampler epochs(samples_in_all(), worker_seed(config_.seed, ~0u), 1, 1);
    for (size_t i = 0; i < indices.size(); ++i) {
        uint64_t place = 0;
        epochs.range(begin + i, {&place, 1});
        whole_.range(place, indices.subspan(i, 1));
    }
}

std::vector<uint64_t> Local::samples_of_batch(uint64_t round, uint64_t number) const {
    const uint64_t begin = begin_of_round(round) + number * config_.batch;
    std::vector<uint64_t> all(shape_of(begin_of_round(round + 1) - begin).samples);
    samples_at(begin, all);
    return all;
}

/// A block of the mini-batch with that number in the job, whose samples begin there.
Status Local::block_of_share(Context& context, uint32_t lane, uint64_t begin, uint64_t number, Shape shape, uint32_t block) {
    Room& room = rooms_[lane];
    const uint32_t count = Sampler(samples_in_all(), config_.seed, shape.samples, shape.blocks).block_size(block);
    begin += uint64_t{block} * shape.samples / shape.blocks;
    samples_at(begin, std::span(room.indices).first(count));
    for (uint32_t i = 0; i < count; ++i) room.epochs[i] = (begin + i) / samples_in_all();
    return gradient_of(context, lane, {number, block}, count, true, block);
}

Status Local::train_share(Context& context, uint64_t round, uint64_t first, uint32_t count, const LocalTerm& term, double* loss,
                          uint64_t* samples) {
    const uint64_t begin = begin_of_round(round), end = begin_of_round(round + 1);
    double sum = 0;
    *samples = 0;
    for (uint64_t i = 0; i < count; ++i) {
        const uint64_t at = begin + (first + i) * config_.batch;
        const Shape shape = shape_of(end - at);
        context.optimiser->step(round * config_.steps + i * config_.steps / count);   // the schedule goes with rounds
        GC_TRY(run(context, shape.blocks, [&](uint32_t lane, uint32_t number) {
            return block_of_share(context, lane, at, at / config_.batch + round, shape, number);
        }));
        step(context, shape, term, &sum);
        *samples += shape.samples;
    }
    *loss = sum / static_cast<double>(*samples);
    return {};
}

Status Local::gradient(Context& context, uint32_t worker, double share, std::span<float> mean, double* loss) {
    const Sampler sampler = passes(worker, share);
    const uint64_t all = samples(worker), some = share_of(all, share);
    const auto blocks = static_cast<uint32_t>((some + sampler.block_size_max() - 1) / sampler.block_size_max());
    std::ranges::fill(mean, 0.0f);
    double sum = 0;
    for (uint32_t from = 0, count = 0; from < blocks; from += count) {
        count = std::min(config_.blocks, blocks - from);
        GC_TRY(run(context, count, [&](uint32_t lane, uint32_t number) {
            return block(context, lane, worker, {context.step, from + number}, sampler, false, number);
        }));
        for (uint32_t number = 0; number < count; ++number) {
            sum += losses_[number];
            context.gradients += sampler.block_size(from + number);
        }
        add_up(0, mean, count);
    }
    for (float& each : mean) each /= static_cast<float>(some);
    *loss = sum / static_cast<double>(some);
    return {};
}

Status Local::sample(uint32_t worker, uint64_t n, Samples* sample) {
    Room& room = rooms_[0];
    whole_.range(first_sample(worker) + n, std::span(room.indices).first(1));
    GC_TRY(data_.read(std::span(room.indices).first(1), room.images.as<uint8_t>(), room.labels.as<int32_t>(), room.targets.host));
    *sample = room.samples(data_, 1);
    return {};
}

Status Local::validate_batch(Context& context, uint32_t lane, uint32_t batch, std::span<float> outputs, std::span<int32_t> all_labels) {
    const DataInfo& info = data_.info();
    Room& room = rooms_[lane];
    const uint32_t begin = batch * validation_batch, count = std::min(validation_batch, config_.validation - begin);
    const std::span indices = std::span(room.indices).first(count);
    whole_.range(info.count - config_.validation + begin, indices);
    auto* labels = room.labels.as<int32_t>();
    GC_TRY(data_.read(indices, room.images.as<uint8_t>(), labels, room.targets.host));
    uint32_t right = 0;
    double loss = 0;
    GC_TRY(context.net->evaluate(lane, room.samples(data_, count), &right, &loss, nullptr,
                                 outputs.empty() ? nullptr : outputs.data() + uint64_t{begin} * info.classes));
    if (right == Net::no_classes)
        return fail(Code::invalid, "the algorithm chooses by accuracy, and the program of net.command tells no classes");
    if (!all_labels.empty()) std::copy_n(labels, count, all_labels.begin() + begin);
    right_[lane] += right;
    context.progress.advance();
    return {};
}

Status Local::validate(Context& context, uint64_t* right, std::span<float> outputs, std::span<int32_t> labels) {
    std::ranges::fill(right_, 0u);
    GC_TRY(run(context, (config_.validation + validation_batch - 1) / validation_batch,
               [&](uint32_t lane, uint32_t batch) { return validate_batch(context, lane, batch, outputs, labels); }));
    *right = 0;
    for (const uint32_t each : right_) *right += each;
    context.forwards += config_.validation;
    return {};
}

Status Local::batch(Context& context, uint32_t worker, uint64_t step, std::span<float> sum, double* loss) {
    const Sampler sampler = config_.whole ? stream() : order(worker, 1);
    const uint32_t first = config_.whole ? worker * config_.blocks : 0;
    GC_TRY(run(context, config_.blocks, [&](uint32_t lane, uint32_t number) {
        return block(context, lane, worker, {step, first + number}, sampler, true, number, config_.whole);
    }));
    std::ranges::fill(sum, 0.0f);
    add_up(0, sum, config_.blocks);
    *loss = 0;
    for (const double each : losses_) *loss += each / config_.batch;
    context.gradients += config_.batch;
    return {};
}

void Local::apply(Context& context, std::span<float> w, std::span<const float> gradient, uint64_t first, uint64_t count) {
    for (const Piece& piece : pieces_) {
        const uint64_t begin = std::max(piece.offset, first), end = std::min(piece.offset + piece.count, first + count);
        if (begin < end) update(context, {begin, end - begin, piece.statistics}, w, gradient, {}, {config_.batch, config_.blocks});
    }
}

}   // namespace gradcast
