#include "runtime/job/model/evaluate.h"

#include <algorithm>
#include <array>

#include "algos/pipeline.h"
#include "nn/evaluation.h"
#include "nn/graph/layers.h"

namespace gradcast {

void Evaluator::plan(uint32_t lanes, Arena& arena) {
    const DataInfo& info = data_.info();
    rooms_.resize(lanes);
    for (Room& room : rooms_) {
        arena.plan("evaluation", evaluation_batch * data_.sample_bytes(), &room.images);
        arena.plan("evaluation", evaluation_batch * sizeof(int32_t), &room.labels);
        arena.plan("evaluation", evaluation_batch * data_.info().targets_bytes(), &room.targets);
        const uint64_t positions = info.masks() ? info.targets : std::max(data_.context(), 1u);
        arena.plan("evaluation", evaluation_batch * positions * sizeof(int32_t), &room.predicted);
        if (ranks_) arena.plan("evaluation", uint64_t{evaluation_batch} * info.classes * sizeof(float), &room.outputs);
    }
}

/// Under the mutex.
void Evaluator::count(uint32_t label, int32_t predicted) {
    const auto found = static_cast<uint32_t>(predicted);
    ++count_of_class[label];
    ++predicted_of_class[found];
    right_of_class[label] += found == label;
    if (!confusion.empty()) ++confusion[uint64_t{label} * data_.info().classes + found];
}

Status Evaluator::part(uint32_t lane, uint32_t number, uint32_t first, uint32_t count, Net& net, BatchResult* result) {
    const DataInfo& info = data_.info();
    const Room& room = rooms_[lane];
    if (first == 0) *result = {};
    const uint64_t begin = uint64_t{number} * evaluation_batch + first;
    std::array<uint64_t, evaluation_batch> indices;
    for (uint32_t i = 0; i < count; ++i) indices[i] = begin + i;
    auto* images = room.images.as<uint8_t>();
    auto *labels = room.labels.as<int32_t>(), *predicted = room.predicted.as<int32_t>();
    GC_TRY(data_.read(std::span(indices).first(count), images, labels, room.targets.host));
    std::array<SamplePlace, evaluation_batch> places;
    for (uint32_t i = 0; i < count; ++i) places[i] = {begin + i, 0};
    Samples samples = data_.samples(count, images, labels, room.targets.host);
    samples.mean = mean_.data(), samples.std = std_.data();
    if (data_.of_program()) samples.places = places.data();
    uint32_t right = 0;
    if (first > 0) GC_TRY(net_cpu_evaluate_further(net, lane, samples, &right, &result->loss, predicted));
    else GC_TRY(net.evaluate(lane, samples, &right, &result->loss, predicted, ranks_ ? room.outputs.as<float>() : nullptr));
    if (info.regression() || !net.has_loss()) return {};
    if (right == Net::no_classes) return result->untold += count, Status();
    result->right += right;
    if (net.by_position()) {
        const PositionLabels wanted(net.spec());
        std::unique_lock lock(mutex_, std::defer_lock);
        if (counts()) lock.lock();
        for (uint32_t i = 0; i < count; ++i)
            for (uint32_t at = 0; at < wanted.positions(); ++at) {
                const uint32_t label = wanted.of(samples, i, at);
                if (!wanted.counts(label)) continue;
                ++result->counted;
                if (counts()) this->count(label, predicted[uint64_t{i} * wanted.positions() + at]);
            }
        return {};
    }
    result->counted += count;
    if (!counts() || info.masks() || info.vocabulary > 0 || data_.of_program()) return {};
    std::lock_guard lock(mutex_);
    for (uint32_t i = 0; i < count; ++i) {
        const auto label = static_cast<uint32_t>(labels[i]);
        this->count(label, predicted[i]);
        if (!ranks_) continue;
        const std::span row(room.outputs.as<float>() + uint64_t{i} * info.classes, info.classes);
        const auto more = std::ranges::count_if(row, [own = row[label]](float each) { return !(each <= own); });   // NaN: more
        right_of_top += more < int64_t{top};
    }
    return {};
}

void Evaluator::begin(size_t batches) {
    run_done_.store(0, std::memory_order_relaxed);
    run_batches_.store(static_cast<uint32_t>(batches), std::memory_order_relaxed);
}

void Evaluator::ended(Progress& progress) {
    progress.advance();
    run_done_.fetch_add(1, std::memory_order_relaxed);
}

Status Evaluator::run(Net& net, Lanes& lanes, uint32_t first, uint32_t stride, std::span<BatchResult> results, Progress& progress) {
    Status first_error;
    std::atomic<bool> failed{false};
    begin(results.size());
    lanes.run(static_cast<uint32_t>(results.size()), [&](uint32_t lane, uint32_t item) {
        if (failed.load(std::memory_order_relaxed)) return;
        const uint32_t number = first + item * stride;
        Status status = part(lane, number, 0, batch_size(number), net, &results[item]);
        ended(progress);
        if (status.ok()) return;
        std::lock_guard lock(mutex_);
        if (!failed.exchange(true)) first_error = status;
    });
    return first_error;
}

Status Evaluator::run(Net& net, Pipeline& pipeline, uint32_t first, uint32_t stride, std::span<BatchResult> results, Progress& progress) {
    const uint32_t pieces = (evaluation_batch + piece_ - 1) / piece_;
    begin(results.size());
    // A pipeline computes several batches at a time, so the pieces of a batch, whose losses are added in order, come one call after the
    // other.
    for (uint32_t piece = 0; piece < pieces; ++piece) {
        const uint32_t from = piece * piece_;
        std::vector<EvaluationBatch> batches;
        std::vector<uint32_t> items;
        for (uint32_t item = 0; item < results.size(); ++item) {
            const uint32_t number = first + item * stride;
            if (from >= batch_size(number)) continue;
            // Further pieces are computed by the program of a whole one, also where they have fewer samples.
            batches.push_back({number * pieces + piece, piece > 0 ? piece_ : std::min(piece_, batch_size(number))});
            items.push_back(item);
        }
        const auto evaluate = [&](uint32_t lane, uint32_t index) {
            const uint32_t item = items[index], number = first + item * stride, count = std::min(piece_, batch_size(number) - from);
            const Status status = part(lane, number, from, count, net, &results[item]);
            if (from + count == batch_size(number)) ended(progress);
            else progress.advance();
            return status;
        };
        if (piece > 0 && batches.empty()) break;
        GC_TRY(pipeline.evaluate(batches, evaluate));
        if (pipeline.ended_early()) break;
    }
    return {};
}

}   // namespace gradcast
