// The products of multinomial logistic regression, in double.  All builds give the same bits: each sum has one order.
#pragma once
#include <cstdint>

namespace gradcast {

struct LogisticKernels {
    /// outputs [rows, wide] = x [rows, features] times weights [features + 1, wide], whose last row is added.
    void (*outputs)(const float* x, uint32_t rows, uint64_t features, const double* weights, uint64_t wide, double* outputs);
    /// sum [features + 1, wide] += the products of x and errors [rows, wide] over the rows; its last row gets their sums.
    void (*products)(const float* x, uint32_t rows, uint64_t features, const double* errors, uint64_t wide, double* sum);
};
constexpr uint64_t width = 8;   // `wide` is a multiple of it
constexpr uint32_t rows_most = 8;

const LogisticKernels& logistic_kernels();   // of this CPU

}   // namespace gradcast
