// The losses.  Sums over the block, not means.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>

#include "nn/cpu/build.h"
#include "nn/graph/slices.h"
#include "runtime/core/elementary.h"

namespace gradcast::cpu {
namespace {

/// Outputs of a layer, in slices; 1: of one that is not sliced.
struct Slices {
    uint32_t count, outputs;
    template <typename T>
    std::span<T> of(T* row, uint32_t t) const {
        const uint32_t first = slice_begin(t, outputs, count);
        return {row + first, slice_begin(t + 1, outputs, count) - first};
    }
};

/// Of slices NaN is larger than all others, and the first one of equal values counts.
bool larger(float each, float best) { return !std::isnan(best) && (std::isnan(each) || each > best); }

/// The place of the largest of outputs first .. end - 1 of slices.
uint32_t largest(const float* row, uint32_t first, uint32_t end) {
    uint32_t best = first;
    for (uint32_t k = first; k < end; ++k)
        if (larger(row[k], row[best])) best = k;
    return best;
}
/// The place of the largest output.
uint32_t largest(const float* row, const Slices& slices) {
    if (slices.count == 1) return static_cast<uint32_t>(std::max_element(row, row + slices.outputs) - row);
    return largest(row, 0, slices.outputs);
}

/// Those of the layer right before the loss.  An embedding's are rows, not outputs.
Slices slices_of(const Build& b) {
    const uint32_t input = b.layer->input;
    const size_t count = input == Layer::none || b.layers[input].kind->selects ? 0 : b.layers[input].slices.size();
    return {std::max(static_cast<uint32_t>(count), 1u), b.layer->in.C};
}

/// The loss's input, the outputs of a position together, with a gradient that the forward pass makes: it is kept until the backward pass.
Status take_input(Build& b, Activation* x) {
    const dnnl_memory_desc_t order = b.position_rows(b.layer->in);
    *x = b.activation;
    GC_TRY(b.consume({b.activation.value}, order, b.operations->forward, &x->value));
    if (!x->learns) return {};
    x->gradient = b.kept(order);
    return b.reorder(x->gradient, b.activation.gradient, b.operations->data);
}

/// sample(row, drow, outputs, label, best, loss) adds one sample's loss to `loss` and, where they are not null, writes its gradient and
/// outputs; best: the place of the largest output, which is what is predicted.
template <typename Sample>
Status loss(Build& b, Sample sample) {
    uint32_t classes = b.layer->in.C;
    const Slices slices = slices_of(b);
    Activation x;
    GC_TRY(take_input(b, &x));
    b.operations->forward.emplace_back([x, classes, slices, sample](Frame& frame) {
        const float* row = frame.at(x.value);
        float* drow = x.learns ? frame.at(x.gradient) : nullptr;
        for (size_t block = 0; block < frame.blocks.size(); ++block) {
            const Samples& samples = frame.blocks[block].samples;
            for (uint32_t n = 0; n < samples.count; ++n, row += classes) {
                auto label = static_cast<uint32_t>(samples.labels[n]);
                const uint32_t best = largest(row, slices);
                float* outputs = frame.outputs ? frame.outputs + n * classes : nullptr;   // of an evaluation, which is one block
                sample(std::span(row, classes), drow, outputs, label, best, frame.loss[block]);
                frame.right += classes > 1 && best == label;   // one output: a regression
                if (frame.predicted) frame.predicted[n] = static_cast<int32_t>(best);
                if (drow) drow += classes;
            }
        }
        return Status{};
    });
    return {};
}

/// exp(row - largest) of a slice, written where `drow` and `outputs` are not null; returns their sum.
float exponentials(std::span<const float> row, float largest, float* drow, float* outputs) {
    float sum = 0;
    for (size_t k = 0; k < row.size(); ++k) {
        const float e = elementary::exp(row[k] - largest);
        sum += e;
        if (drow) drow[k] = e;
        if (outputs) outputs[k] = e;
    }
    return sum;
}

/// Of slices first .. first + count - 1; their sums are added as a binary tree.
float exponentials(const Slices& slices, uint32_t first, uint32_t count, const float* row, float largest, float* drow, float* outputs) {
    if (count > 1)
        return exponentials(slices, first, count / 2, row, largest, drow, outputs) +
               exponentials(slices, first + count / 2, count / 2, row, largest, drow, outputs);
    const std::span<const float> own = slices.of(row, first);
    const auto before = own.data() - row;
    return exponentials(own, largest, drow ? drow + before : nullptr, outputs ? outputs + before : nullptr);
}

/// What softmax_cross_entropy gives of one row of outputs, which gets the label's gradient.
struct Softmax {
    Slices slices;
    double smoothing;
    /// best: the place of the largest output.  Adds to `total`, and writes gradient and outputs where they are not null.
    void operator()(std::span<const float> row, float* drow, float* outputs, uint32_t label, uint32_t best, double& total) const {
        const float sum = exponentials(slices, 0, slices.count, row.data(), row[best], drow, outputs);
        double wanted = static_cast<double>(row[label]);   // sum of t x
        if (smoothing > 0) {
            double all = 0;
            for (const float x : row) all += static_cast<double>(x);
            wanted = (1 - smoothing) * wanted + smoothing * all / static_cast<double>(row.size());
        }
        total += elementary::log(static_cast<double>(sum)) + static_cast<double>(row[best]) - wanted;
        for (size_t k = 0; outputs && k < row.size(); ++k) outputs[k] /= sum;
        if (!drow) return;
        for (size_t k = 0; k < row.size(); ++k) drow[k] /= sum;
        drow[label] -= static_cast<float>(1 - smoothing);
        const auto share = static_cast<float>(smoothing / static_cast<double>(row.size()));
        for (size_t k = 0; smoothing > 0 && k < row.size(); ++k) drow[k] -= share;
    }
};

/// A loss for each position, whose outputs lie together; a sample's loss is their sum by its positions.
Status loss_by_position(Build& b, const Softmax& softmax) {
    const Layer& l = *b.layer;
    const uint32_t classes = l.in.C;
    const PositionLabels labels(b.spec);
    const uint32_t positions = labels.positions();
    Activation x;
    GC_TRY(take_input(b, &x));
    b.operations->forward.emplace_back([=](Frame& frame) {
        const float* row = frame.at(x.value);
        float* drow = x.learns ? frame.at(x.gradient) : nullptr;
        const auto share = 1 / static_cast<float>(positions);
        for (size_t block = 0; block < frame.blocks.size(); ++block) {
            const Samples& samples = frame.blocks[block].samples;
            for (uint32_t n = 0; n < samples.count; ++n) {
                double sum = 0;
                for (uint32_t at = 0; at < positions; ++at, row += classes) {
                    const uint32_t label = labels.of(samples, n, at), best = largest(row, softmax.slices);
                    const uint64_t place = uint64_t{n} * positions + at;
                    if (frame.predicted) frame.predicted[place] = static_cast<int32_t>(best);
                    if (labels.counts(label)) {
                        ++frame.valid[block];
                        softmax(std::span(row, classes), drow, frame.outputs ? frame.outputs + place * classes : nullptr, label, best, sum);
                        frame.right += best == label;
                        for (uint32_t k = 0; drow && k < classes; ++k) drow[k] *= share;
                    } else {
                        if (drow) std::fill_n(drow, classes, 0.0f);
                        if (frame.outputs) std::fill_n(frame.outputs + place * classes, classes, 0.0f);
                    }
                    if (drow) drow += classes;
                }
                frame.loss[block] += sum / positions;
            }
        }
        return Status{};
    });
    return {};
}

/// squared_loss of samples whose targets are floats.
Status loss_of_targets(Build& b) {
    const uint32_t outputs = b.layer->in.C;
    Activation x;
    GC_TRY(take_input(b, &x));
    b.operations->forward.emplace_back([x, outputs](Frame& frame) {
        const float* row = frame.at(x.value);
        float* drow = x.learns ? frame.at(x.gradient) : nullptr;
        for (size_t block = 0; block < frame.blocks.size(); ++block) {
            const Samples& samples = frame.blocks[block].samples;
            if (frame.outputs) std::copy_n(row, uint64_t{samples.count} * outputs, frame.outputs);   // of an evaluation, which is one block
            if (frame.predicted) std::fill_n(frame.predicted, samples.count, 0);
            for (uint64_t i = 0; i < uint64_t{samples.count} * outputs; ++i, ++row) {
                float target;
                std::memcpy(&target, samples.targets + i * sizeof target, sizeof target);
                const float off = *row - target;
                frame.loss[block] += static_cast<double>(off) * static_cast<double>(off);
                if (drow) *drow++ = 2 * off;
            }
        }
        return Status{};
    });
    return {};
}

/// The binary tree over as many sums.
float tree(std::span<const float> sums) {
    return sums.size() == 1 ? sums[0] : tree(sums.first(sums.size() / 2)) + tree(sums.last(sums.size() / 2));
}

/// A softmax of which each slice group has some columns.  They exchange the largest of them and that of the label, then their sums
/// of exponentials, and each writes its columns of the gradient (and of the outputs).  A row is a sample, or of masks and texts a position.
class SoftmaxApart {
public:
    SoftmaxApart(Build& b, const Activation& x)
        : x_(x),
          slices_(slices_of(b)),
          groups_(b.stage.slice_groups),
          own_(b.stage.slice_group),
          labels_(b.spec),
          by_position_(b.layer->by_position),
          largest_point_(b.slice_point(
              SliceTraffic::largest, SlicePoint::all,
              [each = labels_.positions()](uint32_t, uint32_t samples) { return uint64_t{samples} * each * sizeof(Largest); })),
          sums_point_(b.slice_point(SliceTraffic::exponentials, SlicePoint::all, [each = labels_.positions()](uint32_t, uint32_t samples) {
              return uint64_t{samples} * each * sizeof(float);
          })) {}

    Status operator()(Frame& frame) const {
        const uint32_t classes = slices_.outputs, first = begin(own_), end = begin(own_ + 1), slices = slices_.count / groups_;
        float *const rows = frame.at(x_.value), *const drows = x_.learns ? frame.at(x_.gradient) : nullptr;
        Buffer own, sums;
        GC_TRY(frame.link->room(frame.lane, largest_point_, &own));
        each(frame, [&](uint64_t n, uint32_t, uint32_t label) {
            const float* row = rows + n * classes;
            const uint32_t best = largest(row, first, end);
            own.as<Largest>()[n] = {row[best], best, label >= first && label < end ? row[label] : 0};
        });
        GC_TRY(frame.link->exchange(frame.lane, largest_point_));
        const auto of_all = [&](uint64_t n, uint32_t label) {
            Largest all{};
            for (uint32_t group = 0; group < groups_; ++group) {
                const Buffer from = group == own_ ? own : frame.link->received(frame.lane, largest_point_, group);
                const Largest& its = from.as<Largest>()[n];
                if (group == 0 || larger(its.value, all.value)) all.value = its.value, all.at = its.at;
                if (label >= begin(group) && label < begin(group + 1)) all.label = its.label;
            }
            return all;
        };
        GC_TRY(frame.link->room(frame.lane, sums_point_, &sums));
        each(frame, [&](uint64_t n, uint32_t, uint32_t label) {
            const uint64_t at = n * classes;
            sums.as<float>()[n] = exponentials(slices_, own_ * slices, slices, rows + at, of_all(n, label).value,
                                               drows ? drows + at : nullptr, frame.outputs ? frame.outputs + at : nullptr);
        });
        GC_TRY(frame.link->exchange(frame.lane, sums_point_));
        const uint32_t positions = labels_.positions();
        const auto share = 1 / static_cast<float>(positions);
        double total = 0;   // of a sample
        each(frame, [&](uint64_t n, uint32_t block, uint32_t label) {
            std::array<float, slices_most> parts;
            for (uint32_t group = 0; group < groups_; ++group)
                parts[group] = (group == own_ ? sums : frame.link->received(frame.lane, sums_point_, group)).as<float>()[n];
            const float sum = tree(std::span(parts).first(groups_));
            const Largest best = of_all(n, label);
            if (frame.predicted) frame.predicted[n] = static_cast<int32_t>(best.at);
            float *const outputs = frame.outputs ? frame.outputs + n * classes : nullptr, *const drow =
                                                                                              drows ? drows + n * classes : nullptr;
            const bool counts = labels_.counts(label);
            if (counts) {
                total += elementary::log(static_cast<double>(sum)) + static_cast<double>(best.value) - static_cast<double>(best.label);
                frame.right += best.at == label;
                ++frame.valid[block];
            }
            for (uint32_t k = first; k < end; ++k) {
                if (outputs) outputs[k] = counts ? outputs[k] / sum : 0;
                if (drow) drow[k] = counts ? drow[k] / sum : 0;
            }
            if (drow && counts && label >= first && label < end) drow[label] -= 1;
            for (uint32_t k = first; k < end && drow && by_position_; ++k) drow[k] *= share;
            if ((n + 1) % positions == 0) frame.loss[block] += std::exchange(total, 0) / positions;
        });
        return {};
    }

private:
    static constexpr uint32_t slices_most = static_cast<uint32_t>(slices_key.max);
    /// Of a row, of one group or of all.
    struct Largest {
        float value;
        uint32_t at;
        float label;   // the logit of its label; 0: the group does not have it
    };
    uint32_t begin(uint32_t group) const { return slice_begin(group * (slices_.count / groups_), slices_.outputs, slices_.count); }
    /// Calls f(number of the row, its block, its label).
    template <typename F>
    void each(const Frame& frame, F f) const {
        uint64_t n = 0;
        for (uint32_t block = 0; block < frame.blocks.size(); ++block) {
            const Samples& samples = frame.blocks[block].samples;
            for (uint32_t i = 0; i < samples.count; ++i)
                for (uint32_t at = 0; at < labels_.positions(); ++at)
                    f(n++, block, by_position_ ? labels_.of(samples, i, at) : static_cast<uint32_t>(samples.labels[i]));
        }
    }

    Activation x_;
    Slices slices_;
    uint32_t groups_, own_;
    PositionLabels labels_;
    bool by_position_;
    size_t largest_point_, sums_point_;
};

}   // namespace

// Of masks and texts a sample's loss is the mean over its positions.  An ignored position adds 0, but is counted in the number.  With
// mean_over = "valid" the step divides by another number (mean_over_valid()); losses and gradients of blocks are the same.
// loss = sum over n, k of -t[n,k] log(softmax(x[n])[k]);  dx[n,k] = softmax(x[n])[k] - t[n,k].  t is 1 at the sample's label, or with
// label_smoothing s (Szegedy et al. 2016) 1 - s there, and s / classes more for each class.
Status softmax_cross_entropy(Build& b) {
    b.operations->unit = 1;
    const double smoothing = b.layer->value("label_smoothing");
    if (b.layer->input != Layer::none && b.columns_apart(b.layer->input)) {
        if (smoothing > 0)
            return fail(Code::unsupported,
                        "layer {}: label_smoothing does not go with slices that several nodes have: leave one of them out",
                        b.layer->spec.name);
        Activation x;
        GC_TRY(take_input(b, &x));
        b.operations->forward.emplace_back(SoftmaxApart(b, x));
        return {};
    }
    const Softmax softmax{slices_of(b), smoothing};
    if (b.layer->by_position) return loss_by_position(b, softmax);
    return loss(b, softmax);
}

// loss = sum over n, k of (x[n,k] - t[n,k])^2, t = 1 at the sample's label and 0 elsewhere, or a regression's targets;  dx = 2 (x - t).
Status squared_loss(Build& b) {
    b.operations->unit = 1;
    if (b.layer->targets > 0) return loss_of_targets(b);
    if (const float scale = b.layer->target_scale, zero = b.layer->target_zero; scale > 0) {
        return loss(b, [scale, zero](std::span<const float> row, float* drow, float* outputs, uint32_t label, uint32_t, double& total) {
            float off = row[0] - (static_cast<float>(label) - zero) * scale;
            total += static_cast<double>(off) * static_cast<double>(off);
            if (drow) drow[0] = 2 * off;
            if (outputs) outputs[0] = row[0];
        });
    }
    return loss(b, [](std::span<const float> row, float* drow, float* outputs, uint32_t label, uint32_t, double& total) {
        for (size_t k = 0; k < row.size(); ++k) {
            float off = row[k] - (k == label ? 1.0f : 0.0f);
            total += static_cast<double>(off) * static_cast<double>(off);
            if (drow) drow[k] = 2 * off;
            if (outputs) outputs[k] = row[k];
        }
    });
}

}   // namespace gradcast::cpu
