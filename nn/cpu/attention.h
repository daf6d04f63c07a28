// Loops of attention over rows of scores, in three builds of one file with the same bits.  Sums have 16 lanes.
#pragma once
#include <cstdint>

#include "runtime/core/isa.h"

namespace gradcast::cpu {

/// Scores of some queries, [rows][keys].  Causal: query r sees keys 0 .. first + r; else all keys.
struct ScoreRows {
    uint32_t rows, keys, first;
    bool causal;
};

struct AttentionKernels {
    /// s = exp(scale s) / the sum of that over the keys that the query sees; 0 for the others.
    void (*softmax)(float* s, float scale, const ScoreRows& shape);
    /// From dp, the gradient of p = softmax(s): dp = scale p (dp - the sum of p dp over the keys).
    void (*slope)(float* dp, const float* p, float scale, const ScoreRows& shape);
};
const AttentionKernels& attention_kernels(Isa isa = isa_best());

}   // namespace gradcast::cpu
