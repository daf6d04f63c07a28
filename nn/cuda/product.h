// Products of matrices by cuBLASLt, with what follows them in the same kernel where the library offers that.
#pragma once
#include <cublasLt.h>

#include <vector>

#include "nn/cuda/build.h"

namespace gradcast::cuda {

/// y [N, K] = x [N, C] w [K, C], as the passes of an inner product or of a convolution of 1 x 1 pixels see it; all matrices are row-major.
enum class ProductPass : uint8_t {
    forward,   // y = x w'
    weights,   // dw = dy' x, float
    data       // dx = dy w
};
/// The operation behind the product, in the same kernel.
enum class Epilogue : uint8_t {
    none,
    bias,        // forward: y += bias
    bias_relu,   // forward: y = relu(y + bias)
    sums         // weights: dbias = the sums of dy over N
};
struct ProductShape {
    ProductPass pass;
    uint64_t N;   // at most 2^31 - 1
    uint32_t K, C;
    Epilogue epilogue = Epilogue::none;
};
/// Device memory of a product.  Matrices and bias are aligned to 16 bytes.
struct ProductMemory {
    const void *a, *b;      // forward: x, w; weights: dy, x; data: dy, w
    void* to;               // y, dw, dx
    void* bias = nullptr;   // bias [K], of the activations' type; dbias [K], float
};

/// Planned once a GPU; the GPU's lanes share the plan.
class Product {
public:
    /// Takes the first algorithm that the heuristics of cuBLASLt propose for the precision, with the sum kept in float.  It depends on GPU,
    /// library and shape alone.  *offered: false if there is none with this epilogue; the caller then computes it by a kernel of its own.
    /// Error: Code::unsupported if there is none for Epilogue::none, or N is too large.
    Status choose(Build& b, const ProductShape& shape, bool* offered);
    Status choose(Build& b, const ProductShape& shape);   // of Epilogue::none
    /// Enqueues it.
    Status run(const Frame& f, const ProductMemory& memory) const;

private:
    ProductShape shape_{};
    Precision precision_{};
    std::vector<cublasLtMatmulAlgo_t> algorithms_;   // by GPU
    std::vector<uint32_t> gpu_of_lane_;
};

}   // namespace gradcast::cuda
