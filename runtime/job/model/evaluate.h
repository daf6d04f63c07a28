// Accuracy on a data set, in fixed batches, so that the result does not depend on who evaluates which of them.
#pragma once
#include <atomic>
#include <mutex>
#include <vector>

#include "algos/context.h"
#include "nn/graph/layers.h"

namespace gradcast {

constexpr uint32_t evaluation_batch = 100;   // samples
constexpr uint32_t confusion_classes_max = 1024;

/// What a batch or a whole data set gave.  Travels by mail as it is.
struct BatchResult {
    uint64_t right = 0, counted = 0;   // of classes that the net tells
    uint64_t untold = 0;               // samples with a class for which the net gives no prediction
    double loss = 0;                   // summed over the samples
    void add(const BatchResult& other) {
        right += other.right;
        counted += other.counted;
        untold += other.untold;
        loss += other.loss;
    }
    bool has_accuracy() const { return counted > 0 && untold == 0 && right <= counted; }
    /// Of a net over so many samples: the mean over them or, with mean_over_valid(), over all positions that count.
    double mean_loss(const NetSpec& net, uint64_t samples) const {
        const bool valid = counted > 0 && mean_over_valid(net);
        return valid ? loss * (static_cast<double>(net.positions()) / static_cast<double>(counted)) : loss / static_cast<double>(samples);
    }
    double accuracy() const { return static_cast<double>(right) / static_cast<double>(counted); }
};
static_assert(sizeof(BatchResult) == 32);

/// Types of samples and targets, of nets or data (NetSpec, DataInfo).  Error: names both.
template <typename A, typename B>
Status samples_alike(const A& a, const B& b, std::string_view of_a, std::string_view of_b) {
    const auto text = [](const auto& of) {
        return fmt::format("{} with {}", element_name(of.element),
                           of.targets > 0 ? fmt::format("{} {} targets", of.targets, element_name(of.target_element)) : "labels");
    };
    if (a.ignore != b.ignore)
        return fail(Code::data, "masks of {} ignore {}, those of {} {} (-1: nothing): they must be alike, so import both at once (--test)",
                    of_a, a.ignore, of_b, b.ignore);
    if (a.vocabulary != b.vocabulary)
        return fail(Code::data, "{} has a vocabulary of {} tokens, {} of {} (0: no text): they must be alike", of_a, a.vocabulary, of_b,
                    b.vocabulary);
    if (a.element == b.element && a.targets == b.targets && (a.targets == 0 || a.target_element == b.target_element)) return {};
    return fail(Code::data, "{} has samples of {}, {} of {}: they must be alike", of_a, text(a), of_b, text(b));
}

class Evaluator {
public:
    /// mean and std [C] are those of the data the net was trained on.  All outlive the evaluator.  piece: the samples that a net in stages
    /// computes at a time, the same at all its nodes; below evaluation_batch: of nets on CPUs.
    Evaluator(const DataSet& data, const std::vector<float>& mean, const std::vector<float>& std, uint32_t piece = evaluation_batch)
        : data_(data), mean_(mean), std_(std), piece_(piece) {}
    void plan(uint32_t lanes, Arena& arena);
    uint32_t batches() const { return static_cast<uint32_t>((data_.info().count + evaluation_batch - 1) / evaluation_batch); }
    /// Evaluates batches first, first + stride, … into results[0], results[1], …  Trainer thread.
    Status run(Net& net, Lanes& lanes, uint32_t first, uint32_t stride, std::span<BatchResult> results, Progress& progress);
    /// The same of a net in stages: all ranks of a replica call it alike, and the last stage has the results.
    Status run(Net& net, Pipeline& pipeline, uint32_t first, uint32_t stride, std::span<BatchResult> results, Progress& progress);

    /// Of the present or last run(): how many of its batches are done, 0..1.  Any thread.
    double share() const {
        const uint32_t batches = run_batches_.load(std::memory_order_relaxed);
        return batches > 0 ? static_cast<double>(run_done_.load(std::memory_order_relaxed)) / batches : 0;
    }

    /// Counts by class: of samples with labels or masks.  Fills `confusion`, too, where the classes are not too many.  Before run().
    void confuse() {
        const uint64_t classes = data_.info().classes;
        for (std::vector<uint64_t>* counts : {&count_of_class, &right_of_class, &predicted_of_class}) counts->assign(classes, 0);
        if (classes <= confusion_classes_max) confusion.assign(classes * classes, 0);
    }

    /// Counts `right_of_top`, too: nets on CPUs, of labels.  Before plan().
    void rank() { ranks_ = true; }
    static constexpr uint32_t top = 5;

    // Of all batches so far, by samples or by positions; empty without confuse().
    std::vector<uint64_t> count_of_class, right_of_class, predicted_of_class;
    uint64_t right_of_top = 0;         // samples whose class is among the `top` most probable ones
    std::vector<uint64_t> confusion;   // [classes, classes]: of the row's class, how many are taken for the column's

private:
    struct Room {
        Buffer images, labels, targets, predicted, outputs;
    };
    uint32_t batch_size(uint32_t number) const {
        return static_cast<uint32_t>(std::min<uint64_t>(evaluation_batch, data_.info().count - uint64_t{number} * evaluation_batch));
    }
    /// Evaluates `count` samples of the batch from sample `first` on, and adds them to what the samples before them gave.
    Status part(uint32_t lane, uint32_t number, uint32_t first, uint32_t count, Net& net, BatchResult* result);
    bool counts() const { return !count_of_class.empty(); }
    void count(uint32_t label, int32_t predicted);
    bool ranks_ = false;
    void begin(size_t batches);
    void ended(Progress& progress);
    const DataSet& data_;
    const std::vector<float>&mean_, &std_;
    const uint32_t piece_;
    std::vector<Room> rooms_;                              // by lane
    std::mutex mutex_;                                     // of the counts by class, and of the first error
    std::atomic<uint32_t> run_batches_{0}, run_done_{0};   // counters for share(), so relaxed
};

}   // namespace gradcast
