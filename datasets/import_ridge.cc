#include <algorithm>
#include <cmath>

#include "datasets/import.h"
#include "runtime/core/rng.h"

namespace gradcast {
namespace {

constexpr uint32_t features = 500;
constexpr uint64_t test_count = 1000;

void sample_make(uint64_t seed, uint64_t n, uint8_t* x, int32_t* label) {
    double sum = 0;
    for (uint32_t i = 0; i < features; i += 4) {
        Philox bits = random4(Purpose::synthetic, seed, n, i / 4);
        auto [a, b] = normal2(bits[0], bits[1]);
        auto [c, d] = normal2(bits[2], bits[3]);
        double values[4] = {a, b, c, d};
        for (uint32_t j = 0; j < 4; ++j) {
            x[i + j] = static_cast<uint8_t>(std::clamp(std::lround(values[j] * 32) + 128, 0l, 255l));
            sum += (x[i + j] - 128) / 32.0;
        }
    }
    Philox bits = random4(Purpose::synthetic, seed, n, features / 4);
    double y = sum + normal2(bits[0], bits[1])[0];
    *label = static_cast<int32_t>(
        std::clamp(std::lround(y / static_cast<double>(ridge_target_scale)) + ridge_levels / 2, 0l, ridge_levels - 1l));
}
static_assert(features % 4 == 0);

}   // namespace

Status ridge_sets(const ImportConfig& config, uint32_t, Import* import) {
    if (config.samples == 0 || config.samples > ridge_samples_max)
        return fail(Code::invalid, "{} samples (--samples): 1 to {} are possible", config.samples, ridge_samples_max);
    uint64_t n = 0;
    for (Set* set : {&import->train, &import->test}) {
        set->W = features;
        set->H = 1;
        set->labels.resize(set == &import->train ? config.samples : test_count);
        for (int32_t& label : set->labels) {
            uint8_t x[features];
            sample_make(config.seed, n++, x, &label);
            GC_TRY(set->images.append(x, features));
        }
    }
    return {};
}

}   // namespace gradcast
