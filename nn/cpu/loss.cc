// The losses.  Sums over the block, not means.
#include <algorithm>
#include <cmath>
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

/// The place of the largest output, the first of equal ones.  Of slices NaN is the largest, whichever slice has it.
uint32_t largest(const float* row, const Slices& slices) {
    if (slices.count == 1) return static_cast<uint32_t>(std::max_element(row, row + slices.outputs) - row);
    uint32_t best = 0;
    for (uint32_t t = 0; t < slices.count; ++t)
        for (const float& each : slices.of(row, t))
            if (!std::isnan(row[best]) && (std::isnan(each) || each > row[best])) best = static_cast<uint32_t>(&each - row);
    return best;
}

/// Those of the layer right before the loss.
Slices slices_of(const Build& b) {
    const uint32_t input = b.layer->input;
    const size_t count = input == Layer::none ? 0 : b.layers[input].slices.size();
    return {std::max(static_cast<uint32_t>(count), 1u), b.layer->in.C};
}

/// sample(row, drow, outputs, label, best, loss) adds one sample's loss to `loss` and, where they are not null, writes its gradient and
/// outputs; best: the place of the largest output, which is what is predicted.
template <typename Sample>
Status loss(Build& b, Sample sample) {
    uint32_t classes = b.layer->in.C;
    const Slices slices = slices_of(b);
    dnnl_memory_desc_t plain = Build::plain({b.samples, classes, 1, 1});
    Activation x = b.activation;
    GC_TRY(b.consume({b.activation.value}, plain, b.operations->forward, &x.value));
    if (x.learns) {   // the forward pass makes the gradient, so it is kept until the backward pass
        x.gradient = b.kept(plain);
        GC_TRY(b.reorder(x.gradient, b.activation.gradient, b.operations->data));
    }
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

}   // namespace

// loss = sum over n of -log(softmax(x[n])[label[n]]);  dx[n,k] = softmax(x[n])[k] - (k == label[n]).
Status softmax_cross_entropy(Build& b) {
    b.operations->unit = 1;
    const Slices slices = slices_of(b);
    return loss(b, [slices](std::span<const float> row, float* drow, float* outputs, uint32_t label, uint32_t best, double& total) {
        const float sum = exponentials(slices, 0, slices.count, row.data(), row[best], drow, outputs);
        total += elementary::log(static_cast<double>(sum)) + static_cast<double>(row[best]) - static_cast<double>(row[label]);
        for (size_t k = 0; outputs && k < row.size(); ++k) outputs[k] /= sum;
        if (!drow) return;
        for (size_t k = 0; k < row.size(); ++k) drow[k] /= sum;
        drow[label] -= 1;
    });
}

// loss = sum over n, k of (x[n,k] - t[n,k])^2, t = 1 at the sample's label and 0 elsewhere, or a regression's target;  dx = 2 (x - t).
Status squared_loss(Build& b) {
    b.operations->unit = 1;
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
