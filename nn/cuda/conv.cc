// Convolution (cross-correlation) with bias:  y[n,p,q,k] = b[k] + sum over r,s,c of w[k,r,s,c] x[n, p stride + r - pad, q stride + s - pad,
// c], by cuDNN.  Bias and the ReLU behind it are one pass over y; where max pooling follows, it adds the bias to what it keeps.
#include <string>

#include "nn/cuda/build.h"

namespace gradcast::cuda {
namespace {

using TensorDesc = std::unique_ptr<cudnnTensorStruct, Closer<&cudnnDestroyTensorDescriptor>>;
using FilterDesc = std::unique_ptr<cudnnFilterStruct, Closer<&cudnnDestroyFilterDescriptor>>;
using ConvDesc = std::unique_ptr<cudnnConvolutionStruct, Closer<&cudnnDestroyConvolutionDescriptor>>;

// More would buy little, and each lane has it.
constexpr uint64_t workspace_max = uint64_t{512} << 20;

/// One pass: its algorithm, with the descriptor that has its kind of arithmetic.
template <typename Perf>
struct Pass {
    ConvDesc desc;
    decltype(Perf::algo) algorithm{};
    uint64_t workspace = 0;
};
/// Shared by the operations of one layer and size.
struct Plan {
    TensorDesc x, y;
    FilterDesc w;
    Pass<cudnnConvolutionFwdAlgoPerf_t> forward;
    Pass<cudnnConvolutionBwdFilterAlgoPerf_t> weights;
    Pass<cudnnConvolutionBwdDataAlgoPerf_t> data;
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
/// same; measuring would not.  find and size are cudnnGetConvolution*Algorithm_v7 and *WorkspaceSize, which take the same descriptors in
/// the same order, for cudnnConvolution*: that star is `pass_name`.
template <typename Find, typename Size, typename First, typename Second, typename Third, typename Perf>
Status choose(const Build& b, const char* pass_name, Find find, Size size, First first, Second second, Third third, Pass<Perf>* pass) {
    const Precision precision = b.config.precision;
    const cudnnMathType_t math = precision == Precision::f32    ? CUDNN_FMA_MATH
                                 : precision == Precision::tf32 ? CUDNN_DEFAULT_MATH
                                                                : CUDNN_TENSOR_OP_MATH;
    GC_TRY(make(&pass->desc, b.layer->spec, math));
    const cudnnConvolutionDescriptor_t desc = pass->desc.get();
    Perf found[16];
    int returned = 0;
    const std::string find_name = fmt::format("cudnnGetConvolution{}Algorithm_v7", pass_name);
    GC_TRY(check(find(b.cudnn, first, second, desc, third, 16, &returned, found), find_name.c_str()));
    for (int i = 0; i < returned; ++i) {
        const Perf& each = found[i];
        if (each.status != CUDNN_STATUS_SUCCESS) continue;
        if (b.config.deterministic && each.determinism != CUDNN_DETERMINISTIC) continue;
        if (precision == Precision::f32 && each.mathType != CUDNN_FMA_MATH && each.mathType != CUDNN_DEFAULT_MATH) continue;
        // What it was found with; plain float stays plain, whatever is said there.  So it may want more memory than was said, or not
        // exist after all.
        const cudnnMathType_t as = precision == Precision::f32 ? CUDNN_FMA_MATH : each.mathType;
        size_t bytes = 0;
        if (cudnnSetConvolutionMathType(desc, as) != CUDNN_STATUS_SUCCESS) continue;
        if (size(b.cudnn, first, second, desc, third, each.algo, &bytes) != CUDNN_STATUS_SUCCESS || bytes > workspace_max) continue;
        pass->algorithm = each.algo, pass->workspace = bytes;
        return {};
    }
    return fail(Code::unsupported, "cuDNN has no{} kernel for cudnnConvolution{} with {} samples{}",
                b.config.deterministic ? " deterministic" : "", pass_name, b.samples,
                b.config.deterministic ? ": net.deterministic = false would allow others" : "");
}

/// With the layer in front of errors.
Status named(const std::string& layer, const Status& status) {
    return status.ok() ? status : fail(status.code, "layer {}: {}", layer, status.what);
}
Operation named(const std::string& layer, auto operation) {
    return [=](const Frame& f) { return named(layer, operation(f)); };
}

Status build(Build& b) {
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

    GC_TRY(choose(b, "Forward", cudnnGetConvolutionForwardAlgorithm_v7, cudnnGetConvolutionForwardWorkspaceSize, plan->x.get(), filter,
                  plan->y.get(), &plan->forward));
    Activation y = b.flows(true);
    y.rectified = b.before(Kind::relu);
    const bool pooled = b.before(Kind::max_pool);
    if (pooled && l.biases) y.unbiased = &l;
    const Tensor bias = b.bias(Place::parameters), forward_space = b.scratch(plan->forward.workspace);
    const bool biased = l.biases > 0 && !pooled, rectify = y.rectified;
    const uint64_t rows = b.rows(l.out);
    list.forward.push_back(named(l.spec.name, [=](const Frame& f) {
        const float one = 1, zero = 0;
        GC_CUDA(cudnnConvolutionForward(f.cudnn, &one, plan->x.get(), f.at<void>(x.value), plan->w.get(), f.at<void>(w),
                                        plan->forward.desc.get(), plan->forward.algorithm, f.at<void>(forward_space),
                                        plan->forward.workspace, &zero, plan->y.get(), f.at<void>(y.value)));
        return bias_relu(f.stream, f.values(y.value), biased ? f.at(bias) : nullptr, rows, K, rectify);
    }));
    b.activation = y;
    if (!b.training) return {};

    if (!pooled) b.bias_backward(y, &l, list.before);
    GC_TRY(choose(b, "BackwardFilter", cudnnGetConvolutionBackwardFilterAlgorithm_v7, cudnnGetConvolutionBackwardFilterWorkspaceSize,
                  plan->x.get(), plan->y.get(), filter, &plan->weights));
    const Tensor gradient = b.weight(Place::gradient);
    const Tensor dw = as_they_are ? gradient : b.beside(l.weights * b.value_bytes());
    const Tensor weights_space = b.beside(plan->weights.workspace, as_they_are ? 0 : (l.weights * b.value_bytes() + 255) / 256 * 256);
    list.weights.push_back(named(l.spec.name, [=](const Frame& f) {
        const float one = 1, zero = 0;
        GC_CUDA(cudnnConvolutionBackwardFilter(f.cudnn, &one, plan->x.get(), f.at<void>(x.value), plan->y.get(), f.at<void>(y.gradient),
                                               plan->weights.desc.get(), plan->weights.algorithm, f.at<void>(weights_space),
                                               plan->weights.workspace, &zero, plan->w.get(), f.at<void>(dw)));
        if (as_they_are) return Status{};
        return transpose(f.stream, {f.at<void>(gradient), false}, f.values(dw), K, RS, C);
    }));
    if (!x.learns) return {};

    GC_TRY(choose(b, "BackwardData", cudnnGetConvolutionBackwardDataAlgorithm_v7, cudnnGetConvolutionBackwardDataWorkspaceSize, filter,
                  plan->y.get(), plan->x.get(), &plan->data));
    const Tensor data_space = b.scratch(plan->data.workspace);
    list.data.push_back(named(l.spec.name, [=](const Frame& f) {
        const float one = 1, zero = 0;
        GC_CUDA(cudnnConvolutionBackwardData(f.cudnn, &one, plan->w.get(), f.at<void>(w), plan->y.get(), f.at<void>(y.gradient),
                                             plan->data.desc.get(), plan->data.algorithm, f.at<void>(data_space), plan->data.workspace,
                                             &zero, plan->x.get(), f.at<void>(x.gradient)));
        return Status{};
    }));
    return {};
}

}   // namespace

Status conv(Build& b) { return named(b.layer->spec.name, build(b)); }

}   // namespace gradcast::cuda
