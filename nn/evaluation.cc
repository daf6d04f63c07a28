#include "nn/evaluation.h"

#include <algorithm>

#include "nn/graph/layers.h"
#include "nn/graph/planner.h"

namespace gradcast {
namespace {

constexpr double floats_few = 1 << 20;   // of a lane's activations: fewer samples at a time save little and cost speed

}   // namespace

uint32_t evaluation_piece(const NetSpec& spec, uint32_t block, uint32_t most) {
    std::vector<Layer> layers;
    if (!layers_check(spec, &layers).ok()) return most;
    const auto count = static_cast<uint32_t>(layers.size());
    const std::vector<uint32_t> last = last_readers(layers);
    // Floats of a sample: all that a training block keeps, and the most that an evaluation keeps at a time.
    uint64_t all = layers[0].in.elements(), least = 0;
    for (uint32_t i = 0; i < count; ++i) {
        all += layers[i].out.elements();
        uint64_t live = layers[0].in.elements();
        for (uint32_t j = 0; j <= i; ++j)
            if (last[j] >= i) live += layers[j].out.elements();
        least = std::max(least, live);
    }
    const double wanted = std::max(0.5 * block * static_cast<double>(all), floats_few) / static_cast<double>(least);
    uint32_t piece = 1;   // a share of the batch, as all pieces cost as much as the largest one
    for (uint32_t each = 1; each <= most; ++each)
        if (most % each == 0 && (piece <= block || each <= wanted)) piece = each;
    return piece;
}

}   // namespace gradcast
