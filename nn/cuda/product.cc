#include "nn/cuda/product.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "runtime/core/digest.h"

namespace gradcast::cuda {
namespace {

using MatmulDesc = std::unique_ptr<cublasLtMatmulDescOpaque_t, Closer<&cublasLtMatmulDescDestroy>>;
using MatrixLayout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Closer<&cublasLtMatrixLayoutDestroy>>;
using Preference = std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Closer<&cublasLtMatmulPreferenceDestroy>>;

cublasComputeType_t compute_type(Precision precision) {
    switch (precision) {
        case Precision::f32: return CUBLAS_COMPUTE_32F_PEDANTIC;
        case Precision::bf16: return CUBLAS_COMPUTE_32F;
        case Precision::tf32: return CUBLAS_COMPUTE_32F_FAST_TF32;
    }
    return CUBLAS_COMPUTE_32F_PEDANTIC;
}

cublasLtEpilogue_t epilogue_of(Epilogue epilogue) {
    switch (epilogue) {
        case Epilogue::none: return CUBLASLT_EPILOGUE_DEFAULT;
        case Epilogue::bias: return CUBLASLT_EPILOGUE_BIAS;
        case Epilogue::bias_relu: return CUBLASLT_EPILOGUE_RELU_BIAS;
        case Epilogue::sums: return CUBLASLT_EPILOGUE_BGRADB;
    }
    return CUBLASLT_EPILOGUE_DEFAULT;
}

/// A matrix as cuBLASLt sees it: column-major, so a row-major [rows, columns] is its [columns, rows].
struct Side {
    uint64_t rows, columns;   // stored: leading dimension, and how many of these
    bool transposed;
    cudaDataType type;
};
struct Sides {
    Side a, b, d;
};

/// The column-major product d = op(a) op(b).
Sides sides_of(const ProductShape& s, Precision precision) {
    const cudaDataType type = precision == Precision::bf16 ? CUDA_R_16BF : CUDA_R_32F;
    const Side x{s.C, s.N, false, type}, w{s.C, s.K, false, type}, y{s.K, s.N, false, type};
    auto transposed = [](Side side) {
        side.transposed = true;
        return side;
    };
    switch (s.pass) {
        case ProductPass::forward: return {transposed(w), x, y};
        case ProductPass::weights: return {x, transposed(y), {s.C, s.K, false, CUDA_R_32F}};
        case ProductPass::data: return {w, y, x};
    }
    return {};
}

/// What a call is described by.
struct Call {
    MatmulDesc operation;
    MatrixLayout a, b, d;
};

template <typename T>
Status set(const MatmulDesc& of, cublasLtMatmulDescAttributes_t name, const T& value) {
    return check(cublasLtMatmulDescSetAttribute(of.get(), name, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
}
template <typename T>
Status set(const Preference& of, cublasLtMatmulPreferenceAttributes_t name, const T& value) {
    return check(cublasLtMatmulPreferenceSetAttribute(of.get(), name, &value, sizeof value), "cublasLtMatmulPreferenceSetAttribute");
}

Status describe(const ProductShape& shape, Precision precision, void* bias, Call* call) {
    const Sides sides = sides_of(shape, precision);
    cublasLtMatmulDesc_t operation = nullptr;
    GC_CUDA(cublasLtMatmulDescCreate(&operation, compute_type(precision), CUDA_R_32F));
    call->operation.reset(operation);
    auto op = [](const Side& side) { return side.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
    GC_TRY(set(call->operation, CUBLASLT_MATMUL_DESC_TRANSA, op(sides.a)));
    GC_TRY(set(call->operation, CUBLASLT_MATMUL_DESC_TRANSB, op(sides.b)));
    GC_TRY(set(call->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(shape.epilogue)));
    if (shape.epilogue != Epilogue::none) GC_TRY(set(call->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias));
    for (const auto& [side, made] : {std::pair(&sides.a, &call->a), {&sides.b, &call->b}, {&sides.d, &call->d}}) {
        cublasLtMatrixLayout_t layout = nullptr;
        GC_CUDA(cublasLtMatrixLayoutCreate(&layout, side->type, side->rows, side->columns, static_cast<int64_t>(side->rows)));
        made->reset(layout);
    }
    return {};
}

// What an algorithm is: its number, tile, stages and so on, each in at most 32 bits.  Its bytes are the library's own.
constexpr std::array algorithm_attributes = {CUBLASLT_ALGO_CONFIG_ID,
                                             CUBLASLT_ALGO_CONFIG_TILE_ID,
                                             CUBLASLT_ALGO_CONFIG_STAGES_ID,
                                             CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
                                             CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                             CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING,
                                             CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION,
                                             CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID,
                                             CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID};
/// 0 where the library does not tell.
std::array<uint32_t, algorithm_attributes.size()> choice_of(const cublasLtMatmulAlgo_t& algorithm) {
    std::array<uint32_t, algorithm_attributes.size()> values{};
    for (size_t i = 0; i < values.size(); ++i) {
        const bool narrow = algorithm_attributes[i] == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID ||
                            algorithm_attributes[i] == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID;
        size_t written = 0;
        if (cublasLtMatmulAlgoConfigGetAttribute(&algorithm, algorithm_attributes[i], &values[i], narrow ? 2 : 4, &written) !=
            CUBLAS_STATUS_SUCCESS)
            values[i] = 0;
    }
    return values;
}

}   // namespace

Status Product::choose(Build& b, const ProductShape& shape, bool* offered) {
    GC_TRY(b.rows_fit(shape.N));
    shape_ = shape;
    precision_ = b.config.precision;
    algorithms_.assign(b.device.gpus().size(), {});
    const auto lanes = static_cast<uint32_t>(b.device.lanes().size());
    gpu_of_lane_.resize(lanes);
    std::vector<bool> chosen(algorithms_.size());
    *offered = true;
    uint64_t engines = 0;
    std::array<uint32_t, algorithm_attributes.size()> choice{};
    for (uint32_t lane = lanes; lane-- > 0;) {   // down to 0, so that its GPU is current afterwards
        const CudaDevice::Lane& with = b.device.lanes()[lane];
        gpu_of_lane_[lane] = with.gpu;
        GC_TRY(b.device.use(b.device.gpu_of(lane)));
        if (chosen[with.gpu]) continue;
        chosen[with.gpu] = true;
        Call call;
        void* const aligned = reinterpret_cast<void*>(uintptr_t{16});   // in place of memory, which is not yet taken: its alignment counts
        GC_TRY(describe(shape_, precision_, aligned, &call));
        cublasLtMatmulPreference_t made = nullptr;
        GC_CUDA(cublasLtMatmulPreferenceCreate(&made));
        const Preference preference(made);
        GC_TRY(set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, cublas_workspace_bytes));
        // Partial sums in the output's type would be bf16.
        GC_TRY(set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}));
        for (const auto name : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                                CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
            GC_TRY(set(preference, name, uint32_t{16}));
        cublasLtMatmulHeuristicResult_t found{};
        int count = 0;
        const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(with.cublas.get(), call.operation.get(), call.a.get(), call.b.get(),
                                                                     call.d.get(), call.d.get(), preference.get(), 1, &found, &count);
        if (status != CUBLAS_STATUS_SUCCESS || count == 0 || found.state != CUBLAS_STATUS_SUCCESS) {
            if (shape.epilogue == Epilogue::none)
                return fail(Code::unsupported, "layer {}: cuBLAS has no product of {} x {} x {} for {}: {}", b.layer->spec.name, shape.N,
                            shape.K, shape.C, precision_names()[static_cast<size_t>(precision_)], cublasLtGetStatusName(status));
            *offered = false;
            continue;
        }
        algorithms_[with.gpu] = found.algo;
        const auto before = std::exchange(choice, choice_of(found.algo));
        if (engines > 0 && choice == before) continue;   // GPUs of one kind choose alike: their number is no part of the kernel set
        for (const uint32_t part : choice) engines = splitmix64(engines + part);
    }
    if (!*offered) return {};
    b.engines = splitmix64(b.engines + engines + static_cast<uint64_t>(shape.epilogue));
    constexpr const char* passes[] = {"forward", "backward (weights)", "backward (data)"};   // by ProductPass
    b.engine_list.push_back(fmt::format("{} {}, {} x {} x {}, epilogue {}: algorithm {}", b.layer->spec.name,
                                        passes[static_cast<size_t>(shape.pass)], shape.N, shape.K, shape.C,
                                        static_cast<int>(shape.epilogue), fmt::join(choice, " ")));
    return {};
}

Status Product::choose(Build& b, const ProductShape& shape) {
    bool offered = false;
    return choose(b, {shape.pass, shape.N, shape.K, shape.C}, &offered);
}

Status Product::run(const Frame& f, const ProductMemory& memory) const {
    Call call;
    GC_TRY(describe(shape_, precision_, memory.bias, &call));
    const float one = 1, zero = 0;
    // Row-major factors change places.
    return check(
        cublasLtMatmul(f.cublas, call.operation.get(), &one, memory.b, call.a.get(), memory.a, call.b.get(), &zero, memory.to, call.d.get(),
                       memory.to, call.d.get(), &algorithms_[gpu_of_lane_[f.lane]], f.workspace, cublas_workspace_bytes, f.stream),
        "cublasLtMatmul");
}

}   // namespace gradcast::cuda
