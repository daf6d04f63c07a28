// loss = sum over n of -log(softmax(x[n])[label[n]]);  dx[n,k] = softmax(x[n])[k] - (k == label[n]).  Sums over the block, not means.
#include <algorithm>
#include <cmath>

#include "nn/cpu/build.h"

namespace gradcast::cpu {

Status softmax_cross_entropy(Build& b) {
    uint32_t classes = b.layer->in.C;
    dnnl_memory_desc_t plain = Build::plain({b.samples, classes, 1, 1});
    Activation x = b.activation;
    GC_TRY(b.consume({b.activation.value}, plain, b.operations->forward, &x.value));
    if (x.learns) GC_TRY(b.produce(b.activation.gradient, plain, b.operations->data, &x.gradient));
    b.operations->forward.emplace_back([x, classes](Frame& frame) {
        const float* row = frame.at(x.value);
        float* drow = x.learns ? frame.at(x.gradient) : nullptr;
        for (uint32_t n = 0; n < frame.samples->count; ++n, row += classes) {
            auto label = static_cast<uint32_t>(frame.samples->labels[n]);
            const float* best = std::max_element(row, row + classes);
            float sum = 0;
            for (uint32_t k = 0; k < classes; ++k) {
                float e = std::exp(row[k] - *best);
                sum += e;
                if (drow) drow[k] = e;
            }
            frame.loss += std::log(static_cast<double>(sum)) + static_cast<double>(*best) - static_cast<double>(row[label]);
            auto predicted = static_cast<uint32_t>(best - row);
            frame.right += predicted == label;
            if (frame.predicted) frame.predicted[n] = static_cast<int32_t>(predicted);
            if (!drow) continue;
            for (uint32_t k = 0; k < classes; ++k) drow[k] /= sum;
            drow[label] -= 1;
            drow += classes;
        }
        return Status{};
    });
    return {};
}

}   // namespace gradcast::cpu
