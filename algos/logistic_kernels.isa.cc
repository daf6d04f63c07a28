#include "algos/logistic_kernels.h"

namespace gradcast {
namespace GC_ISA {
namespace {

typedef double Wide __attribute__((vector_size(width * sizeof(double)), aligned(sizeof(double))));

template <uint32_t rows>
void outputs_of(const float* x, uint64_t features, const double* weights, uint64_t wide, double* outputs) {
    for (uint64_t c = 0; c < wide; c += width) {
        Wide sum[rows];
        for (Wide& each : sum) each = *reinterpret_cast<const Wide*>(weights + features * wide + c);
        for (uint64_t j = 0; j < features; ++j) {
            const Wide w = *reinterpret_cast<const Wide*>(weights + j * wide + c);
            for (uint32_t row = 0; row < rows; ++row) sum[row] += w * static_cast<double>(x[row * features + j]);
        }
        for (uint32_t row = 0; row < rows; ++row) *reinterpret_cast<Wide*>(outputs + row * wide + c) = sum[row];
    }
}

template <uint32_t rows>
void products_of(const float* x, uint64_t features, const double* errors, uint64_t wide, double* sum) {
    for (uint64_t c = 0; c < wide; c += width) {
        Wide e[rows];
        for (uint32_t row = 0; row < rows; ++row) e[row] = *reinterpret_cast<const Wide*>(errors + row * wide + c);
        for (uint64_t j = 0; j < features; ++j) {
            Wide& to = *reinterpret_cast<Wide*>(sum + j * wide + c);
            Wide all = to;
            for (uint32_t row = 0; row < rows; ++row) all += e[row] * static_cast<double>(x[row * features + j]);
            to = all;
        }
        for (uint32_t row = 0; row < rows; ++row) *reinterpret_cast<Wide*>(sum + features * wide + c) += e[row];
    }
}

}   // namespace

extern const LogisticKernels logistic;
const LogisticKernels logistic = {
    [](const float* x, uint32_t rows, uint64_t features, const double* weights, uint64_t wide, double* outputs) {
        for (; rows >= rows_most; rows -= rows_most, x += rows_most * features, outputs += rows_most * wide)
            outputs_of<rows_most>(x, features, weights, wide, outputs);
        for (; rows > 0; --rows, x += features, outputs += wide) outputs_of<1>(x, features, weights, wide, outputs);
    },
    [](const float* x, uint32_t rows, uint64_t features, const double* errors, uint64_t wide, double* sum) {
        for (; rows >= rows_most; rows -= rows_most, x += rows_most * features, errors += rows_most * wide)
            products_of<rows_most>(x, features, errors, wide, sum);
        for (; rows > 0; --rows, x += features, errors += wide) products_of<1>(x, features, errors, wide, sum);
    }};

}   // namespace GC_ISA
}   // namespace gradcast
