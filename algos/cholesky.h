// Cholesky's factors of a small symmetric matrix, in double, row by row.
#pragma once
#include <cmath>
#include <cstddef>
#include <span>

namespace gradcast {

/// A = L L^T in place, in the lower triangle.  False: A is not positive definite.
inline bool cholesky_factor(std::span<double> A, size_t d) {
    for (size_t i = 0; i < d; ++i)
        for (size_t j = 0; j <= i; ++j) {
            double sum = A[i * d + j];
            for (size_t k = 0; k < j; ++k) sum -= A[i * d + k] * A[j * d + k];
            if (i != j) A[i * d + j] = sum / A[j * d + j];
            else if (sum > 0) A[i * d + i] = std::sqrt(sum);
            else return false;
        }
    return true;
}

/// x <- (L L^T)^-1 x
inline void cholesky_solve(std::span<const double> L, std::span<double> x) {
    const size_t d = x.size();
    for (size_t i = 0; i < d; ++i) {
        for (size_t k = 0; k < i; ++k) x[i] -= L[i * d + k] * x[k];
        x[i] /= L[i * d + i];
    }
    for (size_t i = d; i-- > 0;) {
        x[i] /= L[i * d + i];
        for (size_t k = 0; k < i; ++k) x[k] -= L[i * d + k] * x[i];
    }
}

}   // namespace gradcast
