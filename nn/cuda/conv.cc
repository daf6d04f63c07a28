// Convolution (cross-correlation) with bias:  y[n,p,q,k] = b[k] + sum over r,s,c of w[k,r,s,c] x[n, p stride + r - pad, q stride + s - pad,
// c], by cuDNN.  Bias and the ReLU behind it are one pass over y; where max pooling follows, it adds the bias to what it keeps.
#include "nn/cuda/build.h"

namespace gradcast::cuda {
namespace {

using TensorDesc = std::unique_ptr<cudnnTensorStruct, Closer<&cudnnDestroyTensorDescriptor>>;
using FilterDesc = std::unique_ptr<cudnnFilterStruct, Closer<&cudnnDestroyFilterDescriptor>>;
using ConvDesc = std::unique_ptr<cudnnConvolutionStruct, Closer<&cudnnDestroyConvolutionDescriptor>>;

// More would buy little, and each lane has it.
constexpr uint64_t workspace_max = uint64_t{512} << 20;

/// One pass: its algorithm, with the descriptor that has its kind of arithmetic.
template <typename Algorithm>
struct Pass {
    ConvDesc desc;
    Algorithm algorithm{};
    uint64_t workspace = 0;
};
/// Shared by the operations of one layer and size.
struct Plan {
    TensorDesc x, y;
    FilterDesc w;
    Pass<cudnnConvolutionFwdAlgo_t> forward;
    Pass<cudnnConvolutionBwdFilterAlgo_t> weights;
    Pass<cudnnConvolutionBwdDataAlgo_t> data;
};

Status make(TensorDesc* desc, cudnnDataType_t type, uint32_t N, const Shape& s) {
    cudnnTensorDescriptor_t made = nullptr;
    GC_CUDA(cudnnCreateTensorDescriptor(&made));
    desc->reset(made);
    GC_CUDA(cudnnSetTensor4dDescriptor(made, CUDNN_TENSOR_NHWC, type, static_cast<int>(N), static_cast<int>(s.C), static_cast<int>(s.H),
                                       static_cast<int>(s.W)));
    return {};
}

Status make(ConvDesc* desc, const LayerSpec& spec, cudnnMathType_t math) {
    cudnnConvolutionDescriptor_t made = nullptr;
    GC_CUDA(cudnnCreateConvolutionDescriptor(&made));
    desc->reset(made);
    const int pad = static_cast<int>(spec.pad), stride = static_cast<int>(spec.stride);
    GC_CUDA(cudnnSetConvolution2dDescriptor(made, pad, pad, stride, stride, 1, 1, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    GC_CUDA(cudnnSetConvolutionMathType(made, math));
    return {};
}

/// The first of what cuDNN's heuristics propose that may be used.  They look at the GPU and the shape alone, so every process finds the
/// same; measuring would not.  find(desc, count, &returned, found) is cuDNN's function.
template <typename Perf, typename Algorithm, typename Find>
Status choose(const Build& b, const char* what, Find find, Pass<Algorithm>* pass) {
    const Precision precision = b.config.precision;
    const cudnnMathType_t math = precision == Precision::f32    ? CUDNN_FMA_MATH
                                 : precision == Precision::tf32 ? CUDNN_DEFAULT_MATH
                                                                : CUDNN_TENSOR_OP_MATH;
    GC_TRY(make(&pass->desc, b.layer->spec, math));
    Perf found[16];
    int returned = 0;
    GC_CUDA(find(pass->desc.get(), 16, &returned, found));
    for (int i = 0; i < returned; ++i) {
        const Perf& each = found[i];
        if (each.status != CUDNN_STATUS_SUCCESS || each.memory > workspace_max) continue;
        if (b.config.deterministic && each.determinism != CUDNN_DETERMINISTIC) continue;
        if (precision == Precision::f32 && each.mathType != CUDNN_FMA_MATH && each.mathType != CUDNN_DEFAULT_MATH) continue;
        pass->algorithm = each.algo, pass->workspace = each.memory;
        // What it was found with; plain float stays plain, whatever is said there.
        const cudnnMathType_t as = precision == Precision::f32 ? CUDNN_FMA_MATH : each.mathType;
        return check(cudnnSetConvolutionMathType(pass->desc.get(), as), "cudnnSetConvolutionMathType");
    }
    return fail(Code::unsupported, "layer {}: cuDNN has no{} kernel for its {} pass with {} samples{}", b.layer->spec.name,
                b.config.deterministic ? " deterministic" : "", what, b.samples,
                b.config.deterministic ? ": net.deterministic = false would allow others" : "");
}

}   // namespace

Status conv(Build& b) {
    const Layer& l = *b.layer;
    const Activation x = b.activation;
    Operations& list = *b.operations;
    const cudnnDataType_t type = b.bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
    const uint32_t K = l.out.C, C = l.in.C, RS = l.spec.kernel * l.spec.kernel;
    const auto plan = std::make_shared<Plan>();
    GC_TRY(make(&plan->x, type, b.samples, l.in));
    GC_TRY(make(&plan->y, type, b.samples, l.out));
    cudnnFilterDescriptor_t filter = nullptr;
    GC_CUDA(cudnnCreateFilterDescriptor(&filter));
    plan->w.reset(filter);
    const int side = static_cast<int>(l.spec.kernel);
    GC_CUDA(cudnnSetFilter4dDescriptor(filter, type, CUDNN_TENSOR_NHWC, static_cast<int>(K), static_cast<int>(C), side, side));

    // Canonical weights [K,C,R,S] are as cuDNN wants them only where R = S = 1 or C = 1, and aligned to what its kernels load at once.
    const bool as_they_are = !b.bf16 && (RS == 1 || C == 1) && l.offset % 4 == 0;
    const Tensor canonical = b.weight(Place::parameters);
    Tensor w = canonical;
    if (!as_they_are)
        w = b.copy(l.weights * b.value_bytes(), [=](const Frame& f, const Tensor& to) {
            return transpose(f.stream, f.values(to), {f.at<void>(canonical), false}, K, C, RS);
        });

    GC_TRY(choose<cudnnConvolutionFwdAlgoPerf_t>(
        b, "forward",
        [&](cudnnConvolutionDescriptor_t desc, int count, int* returned, cudnnConvolutionFwdAlgoPerf_t* found) {
            return cudnnGetConvolutionForwardAlgorithm_v7(b.cudnn, plan->x.get(), filter, desc, plan->y.get(), count, returned, found);
        },
        &plan->forward));
    Activation y = b.flows(true);
    y.rectified = b.before(Kind::relu);
    const bool pooled = b.before(Kind::max_pool);
    if (pooled && l.biases) y.unbiased = &l;
    const Tensor bias = b.bias(Place::parameters), forward_space = b.scratch(plan->forward.workspace);
    const bool biased = l.biases > 0 && !pooled, rectify = y.rectified;
    const uint64_t rows = b.rows(l.out);
    list.forward.emplace_back([=](const Frame& f) {
        const float one = 1, zero = 0;
        GC_CUDA(cudnnConvolutionForward(f.cudnn, &one, plan->x.get(), f.at<void>(x.value), plan->w.get(), f.at<void>(w),
                                        plan->forward.desc.get(), plan->forward.algorithm, f.at<void>(forward_space),
                                        plan->forward.workspace, &zero, plan->y.get(), f.at<void>(y.value)));
        return bias_relu(f.stream, f.values(y.value), biased ? f.at(bias) : nullptr, rows, K, rectify);
    });
    b.activation = y;
    if (!b.training) return {};

    if (!pooled) b.bias_backward(y, &l, list.before);
    GC_TRY(choose<cudnnConvolutionBwdFilterAlgoPerf_t>(
        b, "backward weights",
        [&](cudnnConvolutionDescriptor_t desc, int count, int* returned, cudnnConvolutionBwdFilterAlgoPerf_t* found) {
            return cudnnGetConvolutionBackwardFilterAlgorithm_v7(b.cudnn, plan->x.get(), plan->y.get(), desc, filter, count, returned,
                                                                 found);
        },
        &plan->weights));
    const Tensor gradient = b.weight(Place::gradient);
    const Tensor dw = as_they_are ? gradient : b.beside(l.weights * b.value_bytes());
    const Tensor weights_space = b.beside(plan->weights.workspace, as_they_are ? 0 : (l.weights * b.value_bytes() + 255) / 256 * 256);
    list.weights.emplace_back([=](const Frame& f) {
        const float one = 1, zero = 0;
        GC_CUDA(cudnnConvolutionBackwardFilter(f.cudnn, &one, plan->x.get(), f.at<void>(x.value), plan->y.get(), f.at<void>(y.gradient),
                                               plan->weights.desc.get(), plan->weights.algorithm, f.at<void>(weights_space),
                                               plan->weights.workspace, &zero, plan->w.get(), f.at<void>(dw)));
        if (as_they_are) return Status{};
        return transpose(f.stream, {f.at<void>(gradient), false}, f.values(dw), K, RS, C);
    });
    if (!x.learns) return {};

    GC_TRY(choose<cudnnConvolutionBwdDataAlgoPerf_t>(
        b, "backward data",
        [&](cudnnConvolutionDescriptor_t desc, int count, int* returned, cudnnConvolutionBwdDataAlgoPerf_t* found) {
            return cudnnGetConvolutionBackwardDataAlgorithm_v7(b.cudnn, filter, plan->y.get(), desc, plan->x.get(), count, returned, found);
        },
        &plan->data));
    const Tensor data_space = b.scratch(plan->data.workspace);
    list.data.emplace_back([=](const Frame& f) {
        const float one = 1, zero = 0;
        GC_CUDA(cudnnConvolutionBackwardData(f.cudnn, &one, plan->w.get(), f.at<void>(w), plan->y.get(), f.at<void>(y.gradient),
                                             plan->data.desc.get(), plan->data.algorithm, f.at<void>(data_space), plan->data.workspace,
                                             &zero, plan->x.get(), f.at<void>(x.gradient)));
        return Status{};
    });
    return {};
}

}   // namespace gradcast::cuda
