// loss = sum over n, k of (x[n,k] - t[n,k])^2, t = 1 at the sample's label and 0 elsewhere;  dx = 2 (x - t).  Sums over the block, not
// means.
#include <algorithm>

#include "nn/cpu/build.h"

namespace gradcast::cpu {

Status squared_loss(Build& b) {
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
            for (uint32_t k = 0; k < classes; ++k) {
                float off = row[k] - (k == label ? 1.0f : 0.0f);
                frame.loss += static_cast<double>(off) * static_cast<double>(off);
                if (drow) *drow++ = 2 * off;
            }
            auto predicted = static_cast<uint32_t>(std::max_element(row, row + classes) - row);
            frame.right += predicted == label;
            if (frame.predicted) frame.predicted[n] = static_cast<int32_t>(predicted);
        }
        return Status{};
    });
    return {};
}

}   // namespace gradcast::cpu
