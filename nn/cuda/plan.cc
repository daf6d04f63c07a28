#include "nn/cuda/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>

#include "runtime/core/digest.h"

namespace gradcast::cuda {
namespace {

// Of a pass and lane.  A constant, so that all nodes take the same engines; the best for large blocks need up to 1.4 GiB, because they copy
// their inputs into another layout.
constexpr uint64_t workspace_max = uint64_t{2} << 30;
constexpr int64_t alignment = 16;                                   // bytes, of all tensors of a convolution
constexpr int64_t id_x = 'x', id_w = 'w', id_y = 'y', id_b = 'b';   // also for dx, dw and dy

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
template <typename T>
Status get(const Descriptor& of, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, T* value) {
    int64_t count = 0;
    return check(cudnnBackendGetAttribute(of.get(), name, type, 1, &count, value), "cudnnBackendGetAttribute");
}
/// All descriptors in an attribute.
Status get_all(const Descriptor& of, cudnnBackendAttributeName_t name, cudnnBackendDescriptorType_t type, std::vector<Descriptor>* all) {
    int64_t count = 0;
    GC_CUDA(cudnnBackendGetAttribute(of.get(), name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr));
    all->resize(static_cast<size_t>(count));
    std::vector<cudnnBackendDescriptor_t> at;
    for (Descriptor& each : *all) {
        GC_TRY(make(&each, type));
        at.push_back(each.get());
    }
    GC_CUDA(cudnnBackendGetAttribute(of.get(), name, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count, at.data()));
    all->resize(static_cast<size_t>(count));
    return {};
}

/// cuDNN's names for a pass.
struct PassKind {
    const char* name;
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t x, w, y, convolution, alpha, beta;
};
constexpr PassKind kinds[] = {   // by ConvPass
    {"forward", CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
    {"backward (weights)", CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
    {"backward (data)", CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA}};
const PassKind& kind_of(ConvPass pass) { return kinds[static_cast<size_t>(pass)]; }

/// [N,C,H,W] in memory order N,H,W,C: activations, and weights [K,C,R,S].  An id below 0: a value between two operations of a graph.
Status tensor(Descriptor* made, int64_t id, cudnnDataType_t type, int64_t N, int64_t C, int64_t H, int64_t W) {
    GC_TRY(make(made, CUDNN_BACKEND_TENSOR_DESCRIPTOR));
    GC_TRY(set(*made, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, {id}));
    GC_TRY(set(*made, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, {type}));
    GC_TRY(set(*made, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, {N, C, H, W}));
    GC_TRY(set(*made, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, {H * W * C, int64_t{1}, W * C, C}));
    GC_TRY(set(*made, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, {alignment}));
    if (id < 0) GC_TRY(set(*made, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, {true}));
    return finish(*made);
}

/// y = x + b or y = max(x, 0), in float.
Status pointwise(Descriptor* made, cudnnPointwiseMode_t mode, const Descriptor& x, const Descriptor* b, const Descriptor& y) {
    Descriptor what;
    GC_TRY(make(&what, CUDNN_BACKEND_POINTWISE_DESCRIPTOR));
    GC_TRY(set(what, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, {mode}));
    GC_TRY(set(what, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, {CUDNN_DATA_FLOAT}));
    GC_TRY(finish(what));
    GC_TRY(make(made, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR));
    GC_TRY(set(*made, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, what));
    GC_TRY(set(*made, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x));
    if (b) GC_TRY(set(*made, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b));
    GC_TRY(set(*made, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y));
    return finish(*made);
}

/// fused: the convolution's output is a float between, to which the bias is added and of which the ReLU is y.
Status graph(const Build& b, const ConvShape& shape, ConvPass pass, bool fused, cudnnHandle_t cudnn, Descriptor* made) {
    const PassKind& kind = kind_of(pass);
    const cudnnDataType_t type = b.bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
    const auto& [in, out, kernel, step, margin, apart] = shape;
    const int64_t N = b.samples, side = kernel, pad = margin, stride = step, dilation = apart, two = 2;
    Descriptor x, w, y, convolution, operation, product, biased, bias, add, relu;
    GC_TRY(tensor(&x, id_x, type, N, in.C, in.H, in.W));
    GC_TRY(tensor(&w, id_w, type, out.C, in.C, side, side));
    GC_TRY(tensor(&y, id_y, type, N, out.C, out.H, out.W));
    if (fused) {
        GC_TRY(tensor(&product, -1, CUDNN_DATA_FLOAT, N, out.C, out.H, out.W));
        GC_TRY(tensor(&biased, -2, CUDNN_DATA_FLOAT, N, out.C, out.H, out.W));
        GC_TRY(tensor(&bias, id_b, type, 1, out.C, 1, 1));
        GC_TRY(pointwise(&add, CUDNN_POINTWISE_ADD, product, &bias, biased));
        GC_TRY(pointwise(&relu, CUDNN_POINTWISE_RELU_FWD, biased, nullptr, y));
    }
    GC_TRY(make(&convolution, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR));
    GC_TRY(set(convolution, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, {two}));
    GC_TRY(set(convolution, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, {CUDNN_DATA_FLOAT}));
    GC_TRY(set(convolution, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, {CUDNN_CROSS_CORRELATION}));
    GC_TRY(set(convolution, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, {pad, pad}));
    GC_TRY(set(convolution, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, {pad, pad}));
    GC_TRY(set(convolution, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, {stride, stride}));
    GC_TRY(set(convolution, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, {dilation, dilation}));
    GC_TRY(finish(convolution));
    GC_TRY(make(&operation, kind.type));
    GC_TRY(set(operation, kind.x, x));
    GC_TRY(set(operation, kind.w, w));
    GC_TRY(set(operation, kind.y, fused ? product : y));
    GC_TRY(set(operation, kind.convolution, convolution));
    GC_TRY(set(operation, kind.alpha, CUDNN_TYPE_FLOAT, {1.0f}));
    GC_TRY(set(operation, kind.beta, CUDNN_TYPE_FLOAT, {0.0f}));
    GC_TRY(finish(operation));
    GC_TRY(make(made, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR));
    GC_TRY(set(*made, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, {cudnn}));
    const std::array<cudnnBackendDescriptor_t, 3> operations = {operation.get(), add.get(), relu.get()};
    GC_CUDA(cudnnBackendSetAttribute(made->get(), CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, fused ? 3 : 1,
                                     operations.data()));
    return finish(*made);
}

/// An engine and its knobs.
struct Engine {
    std::vector<int64_t> choice;   // its index, then type and value of each knob
    const char* fault = nullptr;   // why it may not be used; null: it may
};

constexpr const char* not_deterministic = "not deterministic";

constexpr const char* rough = "Winograd's transforms, which lose ten bits of a float";
// An engine of gradients of weights that has no such note: its relative error was 6e-4 where the others' is 1e-6 (5 x 5, 20 to 50 channels,
// 64 samples, H200, cuDNN 9.19).
constexpr int64_t rough_of_weights = 17;

/// Why the job does not allow an engine with this note; null: it does.
const char* fault_of(const NetConfig& config, cudnnBackendNumericalNote_t note) {
    switch (note) {
        case CUDNN_NUMERICAL_NOTE_TENSOR_CORE:
            return config.precision == Precision::f32 ? "tensor cores, which round float to TF32" : nullptr;
        case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC: return config.deterministic ? not_deterministic : nullptr;
        case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS: return "rounds its inputs";
        case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION: return "sums below float";
        case CUDNN_NUMERICAL_NOTE_WINOGRAD:
        case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4:
        case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6:
        case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13: return config.precision == Precision::f32 ? rough : nullptr;
        default: return nullptr;
    }
}

Status engine_of(const NetConfig& config, ConvPass pass, const Descriptor& proposed, Engine* made) {
    std::vector<Descriptor> engine, knobs;
    GC_TRY(get_all(proposed, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine));
    GC_ASSERT(engine.size() == 1);
    GC_TRY(get(engine[0], CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, &made->choice.emplace_back()));
    if (config.precision == Precision::f32 && pass == ConvPass::weights && made->choice[0] == rough_of_weights) made->fault = rough;
    std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
    int64_t count = 0;
    GC_CUDA(cudnnBackendGetAttribute(engine[0].get(), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                     static_cast<int64_t>(notes.size()), &count, notes.data()));
    for (const cudnnBackendNumericalNote_t note : std::span(notes).first(static_cast<size_t>(count)))
        if (!made->fault) made->fault = fault_of(config, note);
    GC_TRY(get_all(proposed, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, &knobs));
    for (const Descriptor& knob : knobs) {
        cudnnBackendKnobType_t type{};
        GC_TRY(get(knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, &type));
        made->choice.push_back(type);
        GC_TRY(get(knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, &made->choice.emplace_back()));
    }
    return {};
}

/// Skipped engines, by reason.
struct Skipped {
    std::vector<std::pair<std::string, std::vector<std::string>>> reasons;
    void add(std::string who, std::string_view why) {
        auto at = std::find_if(reasons.begin(), reasons.end(), [&](const auto& reason) { return reason.first == why; });
        if (at == reasons.end()) at = reasons.insert(at, {std::string(why), {}});
        if (std::find(at->second.begin(), at->second.end(), who) == at->second.end()) at->second.push_back(std::move(who));
    }
    std::string text() const {
        std::string all;
        for (const auto& [why, who] : reasons) all += fmt::format("{}{}: {}", all.empty() ? "" : "; ", fmt::join(who, ", "), why);
        return all;
    }
};

Status plan_of(const Descriptor& proposed, cudnnHandle_t cudnn, Descriptor* plan, uint64_t* workspace) {
    GC_TRY(make(plan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR));
    GC_TRY(set(*plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, {cudnn}));
    GC_TRY(set(*plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, proposed));
    GC_TRY(finish(*plan));
    int64_t bytes = 0;
    GC_TRY(get(*plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, &bytes));
    *workspace = static_cast<uint64_t>(bytes);
    return {};
}

/// Chooses for the current GPU.
Status choose_here(const Build& b, const ConvShape& shape, ConvPass pass, bool fused, cudnnHandle_t cudnn, Descriptor* chosen,
                   uint64_t* workspace, Engine* with) {
    Descriptor operations;
    Skipped skipped;
    GC_TRY(graph(b, shape, pass, fused, cudnn, &operations));
    for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
        Descriptor heuristics;
        GC_TRY(make(&heuristics, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR));
        GC_TRY(set(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operations));
        GC_TRY(set(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, {mode}));
        if (const Status status = finish(heuristics); !status.ok()) {
            skipped.add(mode == CUDNN_HEUR_MODE_A ? "heuristics" : "fallback", status.what);
            continue;
        }
        std::vector<Descriptor> proposals;
        GC_TRY(get_all(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &proposals));
        for (const Descriptor& proposed : proposals) {
            Engine engine;
            GC_TRY(engine_of(b.config, pass, proposed, &engine));
            std::string who = fmt::format("engine {}", engine.choice[0]);
            Descriptor plan;
            uint64_t bytes = 0;
            const Status status = engine.fault ? Status{} : plan_of(proposed, cudnn, &plan, &bytes);
            if (engine.fault) skipped.add(std::move(who), engine.fault);
            else if (!status.ok()) skipped.add(std::move(who), status.what);
            else if (bytes > workspace_max)
                skipped.add(std::move(who), fmt::format("{} MiB of workspace, more than {}", bytes >> 20, workspace_max >> 20));
            else {
                *chosen = std::move(plan);
                *workspace = bytes;
                *with = std::move(engine);
                return {};
            }
        }
    }
    const std::string why = skipped.text();
    const bool others = why.find(not_deterministic) != std::string::npos;
    return fail(Code::unsupported, "cuDNN has no{} kernel for its {} pass with {} samples ({}){}",
                b.config.deterministic ? " deterministic" : "", kind_of(pass).name, b.samples, why.empty() ? "it proposes none" : why,
                others ? ": net.deterministic = false would allow others" : "");
}

}   // namespace

Status ConvPlan::choose(Build& b, const ConvShape& shape, ConvPass pass) { return choose(b, shape, pass, false); }

Status ConvPlan::choose_fused(Build& b, const ConvShape& shape, bool* offered) {
    const uint64_t engines = b.engines;
    const size_t listed = b.engine_list.size();
    const Status status = choose(b, shape, ConvPass::forward, true);
    *offered = status.ok();
    if (*offered || status.code != Code::unsupported) return status;
    b.engines = engines;
    b.engine_list.resize(listed);
    plans_.clear();
    workspace_ = 0;
    return {};
}

Status ConvPlan::choose(Build& b, const ConvShape& shape, ConvPass pass, bool fused) {
    plans_.resize(b.device.gpus().size());
    const auto lanes = static_cast<uint32_t>(b.device.lanes().size());
    gpu_of_lane_.resize(lanes);
    std::vector<int64_t> before;                 // GPUs of one kind choose alike: their number is no part of the kernel set
    for (uint32_t lane = lanes; lane-- > 0;) {   // down to 0, so that its GPU is current afterwards
        const CudaDevice::Lane& with = b.device.lanes()[lane];
        gpu_of_lane_[lane] = with.gpu;
        GC_TRY(b.device.use(b.device.gpu_of(lane)));
        if (plans_[with.gpu]) continue;
        uint64_t workspace = 0;
        Engine engine;
        GC_TRY(choose_here(b, shape, pass, fused, with.cudnn.get(), &plans_[with.gpu], &workspace, &engine));
        workspace_ = std::max(workspace_, workspace);
        if (std::exchange(before, engine.choice) == engine.choice) continue;
        for (const int64_t number : engine.choice) b.engines = splitmix64(b.engines + static_cast<uint64_t>(number));
        b.engine_list.push_back(fmt::format("{} {}{}, {} samples: engine {}, knobs {}, workspace {} KiB", b.layer->spec.name,
                                            kind_of(pass).name, fused ? " with bias and ReLU" : "", b.samples, engine.choice[0],
                                            fmt::join(std::span(engine.choice).subspan(1), " "), workspace >> 10));
    }
    return {};
}

Status ConvPlan::run(const Frame& f, void* x, void* w, void* y, void* workspace, void* bias) const {
    Descriptor memory;
    GC_TRY(make(&memory, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR));
    const std::array<int64_t, 4> ids = {id_x, id_w, id_y, id_b};
    const std::array<void*, 4> places = {x, w, y, bias};
    const int64_t count = bias ? 4 : 3;
    GC_CUDA(cudnnBackendSetAttribute(memory.get(), CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids.data()));
    GC_CUDA(cudnnBackendSetAttribute(memory.get(), CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, places.data()));
    GC_TRY(set(memory, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, {workspace}));
    GC_TRY(finish(memory));
    const std::lock_guard lock(executing_);
    return check(cudnnBackendExecute(f.cudnn, plans_[gpu_of_lane_[f.lane]].get(), memory.get()), "cudnnBackendExecute");
}

}   // namespace gradcast::cuda
