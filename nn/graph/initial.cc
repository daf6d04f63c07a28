#include <algorithm>
#include <cmath>

#include "nn/graph/layers.h"
#include "runtime/core/rng.h"

namespace gradcast {

// He, Zhang, Ren, Sun 2015 ("Delving deep into rectifiers"): std = sqrt(2 / fan-in), the fan-in as PyTorch counts it: weights by index of
// the first dimension.  Normal numbers by Box and Muller 1958, four from one draw of Philox: element i of a layer takes number i % 4 of
// draw i / 4.
void weights_initial(const NetSpec& spec, const Layout& layout, uint64_t seed, std::span<float> parameters) {
    GC_ASSERT(parameters.size() == layout.elements);
    auto owned = [&](uint64_t place) {
        const uint64_t offset = layout.offset_of(place);
        return offset == Layout::none ? nullptr : parameters.data() + offset;
    };
    std::vector<Layer> layers;
    GC_ASSERT(layers_check(spec, &layers).ok());   // the layout was made from this spec
    uint64_t number = 0;
    for (const Layer& layer : layers) {
        if (!layer.learns()) continue;
        if (layer.tied != Layer::none) {   // later layers draw as without the tie
            ++number;
            continue;
        }
        if (float* const statistics = layer.statistics ? owned(layer.statistics_offset) : nullptr) {
            std::fill_n(statistics, layer.in.C, 0.0f);
            std::fill_n(statistics + layer.in.C, layer.in.C, 1.0f);
        }
        double std = layer.kind->initial_std ? layer.value(layer.kind->initial_std->name) : 0;
        if (std == 0) std = std::sqrt(2.0 / (static_cast<double>(layer.weights) / static_cast<double>(layer.weight_shape[0])));
        for (const Layer& part : layer.slices.empty() ? std::span(&layer, 1) : std::span(layer.slices)) {
            float* const weight = owned(part.offset);
            if (!weight) continue;
            if (part.biases > 0) std::fill_n(owned(part.bias_offset), part.biases, 0.0f);
            if (layer.kind->initial_weight != 0) {
                std::fill_n(weight, part.weights, layer.kind->initial_weight);
                continue;
            }
            const uint64_t first = part.offset - layer.offset, end = first + part.weights;
            for (uint64_t i = first / 4 * 4; i < end; i += 4) {
                Philox bits = random4(Purpose::weights, seed, number, static_cast<uint32_t>(i / 4));
                const std::array normals = {normal2(bits[0], bits[1]), normal2(bits[2], bits[3])};
                for (uint64_t j = 0; j < 4; ++j)
                    if (i + j >= first && i + j < end) weight[i + j - first] = static_cast<float>(std * normals[j / 2][j % 2]);
            }
        }
        ++number;
    }
}

}   // namespace gradcast
