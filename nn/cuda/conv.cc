// Convolution (cross-correlation) with bias:  y[n,p,q,k] = b[k] + sum over r,s,c of w[k,r,s,c] x[n, p stride + r - pad, q stride + s - pad,
// c], by cuDNN.  Bias and the ReLU behind it are one pass over y; where max pooling follows, it adds the bias to what it keeps.
//
// cuDNN's graph interface, one operation in each graph, as PyTorch and MLX use it; the older one is deprecated, and PyTorch never took it
// for bf16.  cuDNN plans such graphs for a GPU that is not there, too, so what is described here has been tried for an H100.
#include <initializer_list>
#include <string>

#include "nn/cuda/build.h"

namespace gradcast::cuda {
namespace {

// More would buy little, and each lane has it.
constexpr uint64_t workspace_max = uint64_t{512} << 20;
// What activations, copies of weights and gradients that cuDNN writes are aligned to, bytes.
constexpr int64_t alignment = 16;

/// Of cuDNN.
using Descriptor = std::unique_ptr<void, Closer<&cudnnBackendDestroyDescriptor>>;

Status make(Descriptor* descriptor, cudnnBackendDescriptorType_t type) {
    cudnnBackendDescriptor_t made = nullptr;
    GC_CUDA(cudnnBackendCreateDescriptor(type, &made));
    descriptor->reset(made);
    return {};
}
template <typename T>
Status set(const Descriptor& of, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::initializer_list<T> values) {
    return check(cudnnBackendSetAttribute(of.get(), name, type, static_cast<int64_t>(values.size()), values.begin()),
                 "cudnnBackendSetAttribute");
}
Status set(const Descriptor& of, cudnnBackendAttributeName_t name, const Descriptor& value) {
    return set<cudnnBackendDescriptor_t>(of, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, {value.get()});
}
Status finish(const Descriptor& descriptor) { return check(cudnnBackendFinalize(descriptor.get()), "cudnnBackendFinalize"); }

/// A pass: the operation's names in cuDNN.
struct PassKind {
    const char* name;
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t x, w, y, convolution, alpha, beta;
};
constexpr PassKind forward_pass = {"forward",
                                   CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                                   CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                                   CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                                   CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                                   CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                                   CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                                   CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
constexpr PassKind weights_pass = {"backward (weights)",
                                   CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};
constexpr PassKind data_pass = {"backward (data)",
                                CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};

/// One pass of one layer and size, by lane: no two threads may be in the same plan.
struct Pass {
    struct OfLane {
        Descriptor config, plan;
    };
    std::vector<OfLane> lanes;
    uint64_t workspace = 0;
};

constexpr int64_t id_x = 'x', id_w = 'w', id_y = 'y';   // dx, dw and dy as well

/// [N,C,H,W], of which C is innermost: activations, and weights [K,C,R,S].
Status tensor(Descriptor* made, int64_t id, cudnnDataType_t type, int64_t N, int64_t C, int64_t H, int64_t W) {
    GC_TRY(make(made, CUDNN_BACKEND_TENSOR_DESCRIPTOR));
    GC_TRY(set(*made, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, {id}));
    GC_TRY(set(*made, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, {type}));
    GC_TRY(set(*made, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, {N, C, H, W}));
    GC_TRY(set(*made, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, {H * W * C, int64_t{1}, W * C, C}));
    GC_TRY(set(*made, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, {alignment}));
    return finish(*made);
}

Status graph(const Build& b, const PassKind& kind, cudnnHandle_t cudnn, Descriptor* made) {
    const Layer& l = *b.layer;
    const cudnnDataType_t type = b.bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
    const int64_t N = b.samples, side = l.spec.kernel, pad = l.spec.pad, stride = l.spec.stride, one = 1, two = 2;
    Descriptor x, w, y, convolution, operation;
    GC_TRY(tensor(&x, id_x, type, N, l.in.C, l.in.H, l.in.W));
    GC_TRY(tensor(&w, id_w, type, l.out.C, l.in.C, side, side));
    GC_TRY(tensor(&y, id_y, type, N, l.out.C, l.out.H, l.out.W));
    GC_TRY(make(&convolution, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR));
    GC_TRY(set(convolution, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, {two}));
    GC_TRY(set(convolution, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, {CUDNN_DATA_FLOAT}));
    GC_TRY(set(convolution, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, {CUDNN_CROSS_CORRELATION}));
    GC_TRY(set(convolution, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, {pad, pad}));
    GC_TRY(set(convolution, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, {pad, pad}));
    GC_TRY(set(convolution, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, {stride, stride}));
    GC_TRY(set(convolution, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, {one, one}));
    GC_TRY(finish(convolution));
    GC_TRY(make(&operation, kind.type));
    GC_TRY(set(operation, kind.x, x));
    GC_TRY(set(operation, kind.w, w));
    GC_TRY(set(operation, kind.y, y));
    GC_TRY(set(operation, kind.convolution, convolution));
    GC_TRY(set(operation, kind.alpha, CUDNN_TYPE_FLOAT, {1.0f}));
    GC_TRY(set(operation, kind.beta, CUDNN_TYPE_FLOAT, {0.0f}));
    GC_TRY(finish(operation));
    GC_TRY(make(made, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR));
    GC_TRY(set(*made, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, {cudnn}));
    GC_TRY(set(*made, CUDNN_ATTR_OPERATIONGRAPH_OPS, operation));
    return finish(*made);
}

/// By what cuDNN says of its engine.
Status usable(const Build& b, const Descriptor& config, bool* answer) {
    Descriptor engine;
    GC_TRY(make(&engine, CUDNN_BACKEND_ENGINE_DESCRIPTOR));
    cudnnBackendDescriptor_t at = engine.get();
    int64_t count = 0;
    GC_CUDA(cudnnBackendGetAttribute(config.get(), CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &at));
    std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
    GC_CUDA(cudnnBackendGetAttribute(at, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, static_cast<int64_t>(notes.size()),
                                     &count, notes.data()));
    *answer = true;
    for (const cudnnBackendNumericalNote_t note : std::span(notes).first(static_cast<size_t>(count)))
        // Tensor cores round float to TF32.
        if ((note == CUDNN_NUMERICAL_NOTE_TENSOR_CORE && b.config.precision == Precision::f32) ||
            (note == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC && b.config.deterministic) || note == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS ||
            note == CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION)
            *answer = false;
    return {};
}

/// The first of what cuDNN's heuristics propose that may be used.  They look at the GPU and the shape alone, so every process finds the
/// same; measuring would not.
Status choose(const Build& b, const PassKind& kind, cudnnHandle_t cudnn, Pass::OfLane* of, uint64_t* workspace) {
    Descriptor operations;
    GC_TRY(graph(b, kind, cudnn, &operations));
    for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
        Descriptor heuristics;
        GC_TRY(make(&heuristics, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR));
        GC_TRY(set(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operations));
        GC_TRY(set(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, {mode}));
        if (cudnnBackendFinalize(heuristics.get()) != CUDNN_STATUS_SUCCESS) continue;
        constexpr auto name = CUDNN_ATTR_ENGINEHEUR_RESULTS;
        int64_t count = 0;
        GC_CUDA(cudnnBackendGetAttribute(heuristics.get(), name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr));
        std::vector<Descriptor> found(static_cast<size_t>(count));
        std::vector<cudnnBackendDescriptor_t> at;
        for (Descriptor& each : found) {
            GC_TRY(make(&each, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
            at.push_back(each.get());
        }
        GC_CUDA(cudnnBackendGetAttribute(heuristics.get(), name, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count, at.data()));
        found.resize(static_cast<size_t>(count));
        for (Descriptor& config : found) {
            bool may = false;
            GC_TRY(usable(b, config, &may));
            if (!may) continue;
            Descriptor plan;
            GC_TRY(make(&plan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR));
            GC_TRY(set(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, {cudnn}));
            GC_TRY(set(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config));
            if (cudnnBackendFinalize(plan.get()) != CUDNN_STATUS_SUCCESS) continue;   // it does not exist after all
            int64_t bytes = 0;
            GC_CUDA(cudnnBackendGetAttribute(plan.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, &bytes));
            if (static_cast<uint64_t>(bytes) > workspace_max) continue;
            *workspace = static_cast<uint64_t>(bytes);
            *of = {std::move(config), std::move(plan)};
            return {};
        }
    }
    return fail(Code::unsupported, "cuDNN has no{} kernel for its {} pass with {} samples{}",
                b.config.deterministic ? " deterministic" : "", kind.name, b.samples,
                b.config.deterministic ? ": net.deterministic = false would allow others" : "");
}
Status choose(const Build& b, const PassKind& kind, Pass* pass) {
    pass->lanes.resize(b.device.lanes().size());
    for (uint32_t lane = static_cast<uint32_t>(pass->lanes.size()); lane-- > 0;) {   // the first one's GPU remains the current one
        GC_TRY(b.device.use(b.device.gpu_of(lane)));
        const CudaDevice::Lane& with = b.device.lanes()[lane];
        const cudnnHandle_t cudnn = (&kind == &weights_pass ? with.beside : with).cudnn.get();   // that will run it
        GC_TRY(choose(b, kind, cudnn, &pass->lanes[lane], &pass->workspace));
    }
    return {};
}

Status run(const Frame& f, const Pass& pass, void* x, void* w, void* y, void* workspace) {
    Descriptor memory;
    GC_TRY(make(&memory, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR));
    GC_TRY(set(memory, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, {id_x, id_w, id_y}));
    GC_TRY(set(memory, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, {x, w, y}));
    GC_TRY(set(memory, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, {workspace}));
    GC_TRY(finish(memory));
    return check(cudnnBackendExecute(f.cudnn, pass.lanes[f.lane].plan.get(), memory.get()), "cudnnBackendExecute");
}

/// Shared by the operations of one layer and size.
struct Plan {
    Pass forward, weights, data;
};

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
    const uint32_t K = l.out.C, C = l.in.C, RS = l.spec.kernel * l.spec.kernel;
    const auto plan = std::make_shared<Plan>();

    // Canonical weights [K,C,R,S] are as cuDNN wants them only where R = S = 1 or C = 1, and aligned to what its kernels load at once.
    const bool as_they_are = !b.bf16 && (RS == 1 || C == 1) && l.offset % 4 == 0;
    const Tensor canonical = b.weight(Place::parameters);
    Tensor w = canonical;
    if (!as_they_are)
        w = b.copy(l.weights * b.value_bytes(), [=](const Frame& f, const Tensor& to) {
            return transpose(f.stream, f.values(to), {f.at<void>(canonical), false}, K, C, RS);
        });

    GC_TRY(choose(b, forward_pass, &plan->forward));
    Activation y = b.flows(true);
    y.rectified = b.before(Kind::relu);
    const bool pooled = b.before(Kind::max_pool);
    if (pooled && l.biases) y.unbiased = &l;
    const Tensor bias = b.bias(Place::parameters), forward_space = b.scratch(plan->forward.workspace);
    const bool biased = l.biases > 0 && !pooled, rectify = y.rectified;
    const uint64_t rows = b.rows(l.out);
    list.forward.push_back(named(l.spec.name, [=](const Frame& f) {
        GC_TRY(run(f, plan->forward, f.at<void>(x.value), f.at<void>(w), f.at<void>(y.value), f.at<void>(forward_space)));
        return bias_relu(f.stream, f.values(y.value), biased ? f.at(bias) : nullptr, rows, K, rectify);
    }));
    b.activation = y;
    if (!b.training) return {};

    if (!pooled) b.bias_backward(y, &l, list.before);
    GC_TRY(choose(b, weights_pass, &plan->weights));
    const Tensor gradient = b.weight(Place::gradient);
    const Tensor dw = as_they_are ? gradient : b.beside(l.weights * b.value_bytes());
    const Tensor weights_space = b.beside(plan->weights.workspace, as_they_are ? 0 : (l.weights * b.value_bytes() + 255) / 256 * 256);
    list.weights.push_back(named(l.spec.name, [=](const Frame& f) {
        GC_TRY(run(f, plan->weights, f.at<void>(x.value), f.at<void>(dw), f.at<void>(y.gradient), f.at<void>(weights_space)));
        if (as_they_are) return Status{};
        return transpose(f.stream, {f.at<void>(gradient), false}, f.values(dw), K, RS, C);
    }));
    if (!x.learns) return {};

    GC_TRY(choose(b, data_pass, &plan->data));
    const Tensor data_space = b.scratch(plan->data.workspace);
    list.data.push_back(named(l.spec.name, [=](const Frame& f) {
        return run(f, plan->data, f.at<void>(x.gradient), f.at<void>(w), f.at<void>(y.gradient), f.at<void>(data_space));
    }));
    return {};
}

}   // namespace

Status conv(Build& b) { return named(b.layer->spec.name, build(b)); }

}   // namespace gradcast::cuda
