// Inner product with bias over the flattened input:  y[n,k] = b[k] + sum over c of w[k,c] x[n,c], by cuBLAS.
//
// c indexes [C,H,W], so an input with several pixels and channels is transposed first.  cuBLAS is column-major: its A [m,k] with leading
// dimension m is a row-major [k,m].
#include "nn/cuda/build.h"

namespace gradcast::cuda {

cublasComputeType_t compute_type(Precision precision) {
    switch (precision) {
        case Precision::f32: return CUBLAS_COMPUTE_32F_PEDANTIC;
        case Precision::bf16: return CUBLAS_COMPUTE_32F;
        case Precision::tf32: return CUBLAS_COMPUTE_32F_FAST_TF32;
    }
    return CUBLAS_COMPUTE_32F_PEDANTIC;
}

cublasMath_t math_mode(Precision precision) {
    if (precision == Precision::f32) return CUBLAS_PEDANTIC_MATH;
    return static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
}

Status inner_product(Build& b) {
    const Layer& l = *b.layer;
    const Activation x = b.activation;
    Operations& list = *b.operations;
    const int N = static_cast<int>(b.samples), K = static_cast<int>(l.out.C), C = static_cast<int>(l.in.elements());
    const uint32_t pixels = l.in.H * l.in.W, channels = l.in.C;
    const bool mixed = pixels > 1 && channels > 1;
    const cudaDataType_t type = b.bf16 ? CUDA_R_16BF : CUDA_R_32F;
    const cublasComputeType_t compute = compute_type(b.config.precision);
    const uint64_t input_bytes = uint64_t{b.samples} * l.in.elements() * b.value_bytes();

    Tensor flat = x.value;
    if (mixed) {
        flat = b.kept(input_bytes);
        list.forward.emplace_back([=, samples = b.samples](const Frame& f) {
            return transpose(f.stream, f.values(flat), f.values(x.value), samples, pixels, channels);
        });
    }
    Tensor w = b.weight(Place::parameters);
    if (b.bf16)
        w = b.copy(l.weights * 2, [from = w, count = l.weights](const Frame& f, const Tensor& to) {
            return copy(f.stream, f.values(to), {f.at<void>(from), false}, count);
        });
    Activation y = b.flows(true);
    y.rectified = b.before(Kind::relu);
    const Tensor bias = b.bias(Place::parameters);
    list.forward.emplace_back([=, biased = l.biases > 0, rectify = y.rectified](const Frame& f) {
        const float one = 1, zero = 0;
        GC_CUDA(cublasGemmEx(f.cublas, CUBLAS_OP_T, CUBLAS_OP_N, K, N, C, &one, f.at<void>(w), type, C, f.at<void>(flat), type, C, &zero,
                             f.at<void>(y.value), type, K, compute, CUBLAS_GEMM_DEFAULT));
        return bias_relu(f.stream, f.values(y.value), biased ? f.at(bias) : nullptr, static_cast<uint64_t>(N), static_cast<uint32_t>(K),
                         rectify);
    });
    b.activation = y;
    if (!b.training) return {};

    b.bias_backward(y, &l, list.before);
    const Tensor dw = b.weight(Place::gradient);
    list.weights.emplace_back([=](const Frame& f) {
        const float one = 1, zero = 0;
        GC_CUDA(cublasGemmEx(f.cublas, CUBLAS_OP_N, CUBLAS_OP_T, C, K, N, &one, f.at<void>(flat), type, C, f.at<void>(y.gradient), type, K,
                             &zero, f.at<void>(dw), CUDA_R_32F, C, compute, CUBLAS_GEMM_DEFAULT));
        return Status{};
    });
    if (!x.learns) return {};
    const Tensor dx = mixed ? b.scratch(input_bytes) : x.gradient;
    list.data.emplace_back([=, samples = b.samples](const Frame& f) {
        const float one = 1, zero = 0;
        GC_CUDA(cublasGemmEx(f.cublas, CUBLAS_OP_N, CUBLAS_OP_N, C, N, K, &one, f.at<void>(w), type, C, f.at<void>(y.gradient), type, K,
                             &zero, f.at<void>(dx), type, C, compute, CUBLAS_GEMM_DEFAULT));
        if (!mixed) return Status{};
        return transpose(f.stream, f.values(x.gradient), f.values(dx), samples, channels, pixels);
    });
    return {};
}

}   // namespace gradcast::cuda
