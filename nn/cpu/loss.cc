// The losses.  Sums over the block, not means.
#include <algorithm>
#include <span>

#include "nn/cpu/build.h"
#include "runtime/core/elementary.h"

namespace gradcast::cpu {
namespace {

/// sample(row, drow, outputs, label, best, loss) adds one sample's loss to `loss` and, where they are not null, writes its gradient and
/// outputs; best: the place of the largest output, which is what is predicted.
template <typename Sample>
Status loss(Build& b, Sample sample) {
    uint32_t classes = b.layer->in.C;
    dnnl_memory_desc_t plain = Build::plain({b.samples, classes, 1, 1});
    Activation x = b.activation;
    GC_TRY(b.consume({b.activation.value}, plain, b.operations->forward, &x.value));
    if (x.learns) {   // the forward pass makes the gradient, so it is kept until the backward pass
        x.gradient = b.kept(plain);
        GC_TRY(b.reorder(x.gradient, b.activation.gradient, b.operations->data));
    }
    b.operations->forward.emplace_back([x, classes, sample](Frame& frame) {
        const float* row = frame.at(x.value);
        float* drow = x.learns ? frame.at(x.gradient) : nullptr;
        for (size_t block = 0; block < frame.blocks.size(); ++block) {
            const Samples& samples = frame.blocks[block].samples;
            for (uint32_t n = 0; n < samples.count; ++n, row += classes) {
                auto label = static_cast<uint32_t>(samples.labels[n]);
                auto best = static_cast<uint32_t>(std::max_element(row, row + classes) - row);
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

}   // namespace

// loss = sum over n of -log(softmax(x[n])[label[n]]);  dx[n,k] = softmax(x[n])[k] - (k == label[n]).
Status softmax_cross_entropy(Build& b) {
    b.operations->unit = 1;
    return loss(b, [](std::span<const float> row, float* drow, float* outputs, uint32_t label, uint32_t best, double& total) {
        float sum = 0;
        for (size_t k = 0; k < row.size(); ++k) {
            float e = elementary::exp(row[k] - row[best]);
            sum += e;
            if (drow) drow[k] = e;
            if (outputs) outputs[k] = e;
        }
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
