// The stand-ins for cuBLAS and cuDNN: matrix products and convolutions by their definitions, element by element.
#pragma GCC optimize("O3")
#include <cublasLt.h>
#include <cudnn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <vector>

struct cublasLtContext {
    int device = 0;
};
struct cublasLtMatmulDescOpaque_t {
    cublasComputeType_t compute;
    cublasOperation_t a = CUBLAS_OP_N, b = CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    void* bias = nullptr;
};
struct cublasLtMatrixLayoutOpaque_t {
    cudaDataType type;
    uint64_t rows, columns;
    int64_t ld;
    bool narrow() const { return type == CUDA_R_16BF; }
    size_t size() const { return (columns - 1) * static_cast<size_t>(ld) + rows; }
};
struct cublasLtMatmulPreferenceOpaque_t {
    size_t workspace = 0;
};
struct cudnnContext {
    cudaStream_t stream = nullptr;
    int device = 0;
};
namespace {

std::vector<float> read(const void* from, bool narrow, size_t count) {
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i)
        values[i] = narrow ? __uint_as_float(unsigned{static_cast<const uint16_t*>(from)[i]} << 16) : static_cast<const float*>(from)[i];
    return values;
}

void write(void* to, bool narrow, size_t i, float value) {
    if (!narrow) {
        static_cast<float*>(to)[i] = value;
        return;
    }
    const unsigned bits = __float_as_uint(value);   // to the nearest, ties to even
    static_cast<uint16_t*>(to)[i] = static_cast<uint16_t>(std::isnan(value) ? bits >> 16 | 0x40 : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// alpha sum + beta old; old is not read if beta is 0.
void store(void* to, bool narrow, size_t i, float alpha, double sum, float beta) {
    double value = alpha * sum;
    if (beta != 0) value += double{beta} * read(static_cast<char*>(to) + i * (narrow ? 2 : 4), narrow, 1)[0];
    write(to, narrow, i, static_cast<float>(value));
}

void expect_device(int wanted) {
    int device = -1;
    cudaFree(nullptr);
    cudaGetDevice(&device);
    if (device == wanted) return;
    std::fprintf(stderr, "CUDA stand-in: a handle of device %d was destroyed while device %d was current\n", wanted, device);
    std::abort();
}

float number(const void* at) { return *static_cast<const float*>(at); }
float tf32(float value) { return __uint_as_float((__float_as_uint(value) + 0x1000) & ~0x1FFFu); }

}   // namespace

// ---- cuBLAS ----------------------------------------------------------------------------------------------------------------------

// A handle belongs to the device that was current at its creation; cudaFree(nullptr) makes the context.
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
    cudaFree(nullptr);
    *handle = new cublasLtContext;
    cudaGetDevice(&(*handle)->device);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
    expect_device(handle->device);
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion() { return 130000; }
const char* cublasLtGetStatusName(cublasStatus_t status) {
    switch (status) {
        case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
        case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
        case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
        case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
        case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    }
    return "?";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute, cudaDataType_t scale) {
    if (scale != CUDA_R_32F) return CUBLAS_STATUS_INVALID_VALUE;
    *made = new cublasLtMatmulDescOpaque_t{.compute = compute};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return delete desc, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t name, const void* value,
                                              size_t bytes) {
    auto put = [&](auto* to) {
        if (bytes != sizeof *to) return CUBLAS_STATUS_INVALID_VALUE;
        std::memcpy(to, value, bytes);
        return CUBLAS_STATUS_SUCCESS;
    };
    switch (name) {
        case CUBLASLT_MATMUL_DESC_TRANSA: return put(&desc->a);
        case CUBLASLT_MATMUL_DESC_TRANSB: return put(&desc->b);
        case CUBLASLT_MATMUL_DESC_EPILOGUE: return put(&desc->epilogue);
        case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return put(&desc->bias);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type, uint64_t rows, uint64_t columns, int64_t ld) {
    *made = new cublasLtMatrixLayoutOpaque_t{type, rows, columns, ld};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return delete layout, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
    *made = new cublasLtMatmulPreferenceOpaque_t;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) { return delete preference, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t name,
                                                    const void* value, size_t bytes) {
    if (name != CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return bytes == 4 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
    if (bytes != sizeof preference->workspace) return CUBLAS_STATUS_INVALID_VALUE;
    std::memcpy(&preference->workspace, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

namespace {

unsigned epilogues_offered = ~0u;

// Sizes, types, and what the epilogue needs.
cublasStatus_t matmul_check(const cublasLtMatmulDescOpaque_t& desc, const cublasLtMatrixLayoutOpaque_t& a,
                            const cublasLtMatrixLayoutOpaque_t& b, const cublasLtMatrixLayoutOpaque_t& d) {
    if (a.type != b.type || (d.narrow() && !a.narrow())) return CUBLAS_STATUS_NOT_SUPPORTED;
    const uint64_t k = desc.a ? a.rows : a.columns, m = desc.a ? a.columns : a.rows, n = desc.b ? b.rows : b.columns;
    if (k != (desc.b ? b.columns : b.rows) || m != d.rows || n != d.columns) return CUBLAS_STATUS_INVALID_VALUE;
    for (const auto* each : {&a, &b, &d})
        if (each->rows == 0 || each->columns == 0 || each->ld < static_cast<int64_t>(each->rows)) return CUBLAS_STATUS_INVALID_VALUE;
    if (desc.epilogue != CUBLASLT_EPILOGUE_DEFAULT && (!desc.bias || reinterpret_cast<uintptr_t>(desc.bias) % 16))
        return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

}   // namespace

void cuda_host_epilogues(unsigned offered) { epilogues_offered = offered; }

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted, cublasLtMatmulHeuristicResult_t* results,
                                              int* count) {
    *count = 0;
    if (const cublasStatus_t status = matmul_check(*desc, *a, *b, *d); status || c != d)
        return status ? status : CUBLAS_STATUS_INVALID_VALUE;
    if (desc->epilogue != CUBLASLT_EPILOGUE_DEFAULT && !(epilogues_offered & desc->epilogue)) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
    *results = {
        {{static_cast<uint64_t>(desc->epilogue), a->rows, a->columns, b->columns}}, preference->workspace, CUBLAS_STATUS_SUCCESS, 1, {}};
    *count = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm, cublasLtMatmulAlgoConfigAttributes_t name,
                                                    void* value, size_t bytes, size_t* written) {
    const bool narrow = name == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID || name == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID;
    if (bytes != (narrow ? 2u : 4u)) return CUBLAS_STATUS_INVALID_VALUE;
    if (name != CUBLASLT_ALGO_CONFIG_ID) return CUBLAS_STATUS_NOT_SUPPORTED;
    std::memcpy(value, algorithm->data, bytes);
    *written = bytes;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* A,
                              cublasLtMatrixLayout_t a, const void* B, cublasLtMatrixLayout_t b, const void* beta, const void* C,
                              cublasLtMatrixLayout_t, void* D, cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t* algorithm,
                              void* workspace, size_t workspace_bytes, cudaStream_t stream) {
    int device = -1;
    cudaGetDevice(&device);
    if (const cublasStatus_t status = matmul_check(*desc, *a, *b, *d)) return status;
    if (device != handle->device || C != D || number(alpha) != 1 || number(beta) != 0 || (workspace_bytes && !workspace) ||
        algorithm->data[0] != static_cast<uint64_t>(desc->epilogue) || algorithm->data[1] != a->rows || algorithm->data[3] != b->columns)
        return CUBLAS_STATUS_INVALID_VALUE;
    for (const void* each : {A, B, static_cast<const void*>(D)})
        if (reinterpret_cast<uintptr_t>(each) % 16) return CUBLAS_STATUS_INVALID_VALUE;
    auto body = [=, how = *desc, at_a = *a, at_b = *b, at_d = *d] {
        if (workspace) std::memset(workspace, 0xFF, workspace_bytes);
        std::vector<float> left = read(A, at_a.narrow(), at_a.size()), right = read(B, at_b.narrow(), at_b.size());
        const std::vector<float> given = right;
        if (!at_a.narrow() && how.compute != CUBLAS_COMPUTE_32F_PEDANTIC)
            for (std::vector<float>* values : {&left, &right})
                for (float& each : *values) each = tf32(each);
        const size_t m = at_d.rows, n = at_d.columns, k = how.a ? at_a.rows : at_a.columns;
        const auto lda = static_cast<size_t>(at_a.ld), ldb = static_cast<size_t>(at_b.ld), ldd = static_cast<size_t>(at_d.ld);
        auto right_at = [&](const std::vector<float>& from, size_t l, size_t j) { return from[how.b ? l * ldb + j : j * ldb + l]; };
        const bool biased = how.epilogue & CUBLASLT_EPILOGUE_BIAS, rectified = (how.epilogue & 2) != 0;
        std::vector<float> bias;
        if (biased) bias = read(how.bias, at_d.narrow(), m);
        std::vector<double> column(m);
        for (size_t j = 0; j < n; ++j) {
            column.assign(m, 0);
            double total = 0;
            for (size_t l = 0; l < k; ++l) {
                const double factor = right_at(right, l, j);
                total += right_at(given, l, j);
                for (size_t i = 0; i < m; ++i) column[i] += factor * left[how.a ? i * lda + l : l * lda + i];
            }
            if (how.epilogue == CUBLASLT_EPILOGUE_BGRADB) write(how.bias, at_d.narrow(), j, static_cast<float>(total));
            for (size_t i = 0; i < m; ++i) {
                if (biased) column[i] += bias[i];
                if (rectified && !(column[i] > 0)) column[i] = 0;
                write(D, at_d.narrow(), j * ldd + i, static_cast<float>(column[i]));
            }
        }
    };
    return cuda_host_run("cublasLtMatmul", stream, body) ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
}

// ---- cuDNN -----------------------------------------------------------------------------------------------------------------------

size_t cudnnGetVersion() { return 90000; }
const char* cudnnGetErrorString(cudnnStatus_t status) {
    switch (status) {
        case CUDNN_STATUS_SUCCESS: return "CUDNN_STATUS_SUCCESS";
        case CUDNN_STATUS_BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
        case CUDNN_STATUS_NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
        case CUDNN_STATUS_EXECUTION_FAILED: return "CUDNN_STATUS_EXECUTION_FAILED";
    }
    return "?";
}
cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
    cudaFree(nullptr);
    *handle = new cudnnContext;
    cudaGetDevice(&(*handle)->device);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
    expect_device(handle->device);
    delete handle;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) { return handle->stream = stream, CUDNN_STATUS_SUCCESS; }

namespace {

// The attributes of a descriptor.
struct Contents {
    cudnnBackendDescriptorType_t type;
    bool final = false;
    std::map<int, std::vector<char>> values;                       // by attribute
    std::map<int, std::vector<std::shared_ptr<Contents>>> parts;   // kept alive
    int engine = 0;                                                // engines and configurations only

    template <typename T>
    std::vector<T> all(int name) const {
        const auto at = values.find(name);
        std::vector<T> list(at == values.end() ? 0 : at->second.size() / sizeof(T));
        if (!list.empty()) std::memcpy(list.data(), at->second.data(), list.size() * sizeof(T));
        return list;
    }
    bool has(int name) const { return values.count(name) > 0 || parts.count(name) > 0; }
    const Contents& part(int name) const { return *parts.at(name)[0]; }
};
std::shared_ptr<Contents>& contents(cudnnBackendDescriptor_t descriptor) { return *static_cast<std::shared_ptr<Contents>*>(descriptor); }

size_t size_of(cudnnBackendAttributeType_t type) {
    if (type == CUDNN_TYPE_BOOLEAN) return 1;
    return type == CUDNN_TYPE_HANDLE || type == CUDNN_TYPE_INT64 || type == CUDNN_TYPE_VOID_PTR ? 8 : 4;
}

struct TensorShape {   // weights: K, C, R, S
    bool narrow = false;
    int64_t n = 0, c = 0, h = 0, w = 0, id = 0, alignment = 0;
    size_t count() const { return static_cast<size_t>(n * c * h * w); }
};
struct Convolution {
    int64_t pad, stride, dilation;
};
TensorShape tensor_of(const Contents& from) {
    const auto d = from.all<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
    return {from.all<int>(CUDNN_ATTR_TENSOR_DATA_TYPE).at(0) == CUDNN_DATA_BFLOAT16,
            d[0],
            d[1],
            d[2],
            d[3],
            from.all<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID).at(0),
            from.all<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT).at(0)};
}

cudnnStatus_t tensor_check(const Contents& from) {
    const auto d = from.all<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS), s = from.all<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
    if (d.size() != 4 || s.size() != 4 || !from.has(CUDNN_ATTR_TENSOR_DATA_TYPE) || !from.has(CUDNN_ATTR_TENSOR_UNIQUE_ID) ||
        !from.has(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT) || *std::min_element(d.begin(), d.end()) < 1)
        return CUDNN_STATUS_BAD_PARAM;
    if (s != std::vector<int64_t>{d[1] * d[2] * d[3], 1, d[3] * d[1], d[1]}) return CUDNN_STATUS_NOT_SUPPORTED;
    return double(d[0]) * d[1] * d[2] * d[3] <= 0x1p31 ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;   // the limit of most engines
}

cudnnStatus_t convolution_check(const Contents& from) {
    using List = std::vector<int64_t>;
    const auto pads = from.all<int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS),
               strides = from.all<int64_t>(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES),
               dilations = from.all<int64_t>(CUDNN_ATTR_CONVOLUTION_DILATIONS);
    if (from.all<int64_t>(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS) != List{2} || pads.size() != 2 || strides.size() != 2 || pads[0] < 0 ||
        strides[0] < 1 || dilations.size() != 2 || dilations[0] < 1)
        return CUDNN_STATUS_BAD_PARAM;
    const bool known = from.all<int>(CUDNN_ATTR_CONVOLUTION_CONV_MODE) == std::vector<int>{CUDNN_CROSS_CORRELATION} &&
                       from.all<int>(CUDNN_ATTR_CONVOLUTION_COMP_TYPE) == std::vector<int>{CUDNN_DATA_FLOAT} &&
                       dilations[0] == dilations[1] && pads[0] == pads[1] && strides[0] == strides[1] &&
                       from.all<int64_t>(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS) == pads;
    return known ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}

/// An operation: its pass, tensors, alpha and beta.
struct Work {
    cudnnBackendDescriptorType_t pass;
    TensorShape x, w, y;
    Convolution v;
    float alpha, beta;
    TensorShape bias;   // of fused work: y = relu(convolution + bias)
    bool fused = false;
};
bool work_of(const Contents& from, Work* work) {
    const int base = from.type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR ? CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA
                     : from.type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR
                         ? CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA
                         : CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA;
    for (int i = 0; i < 6; ++i)
        if (!from.has(base + i)) return false;
    const Contents& v = from.part(base + 2);
    *work = {from.type,
             tensor_of(from.part(base + 4)),
             tensor_of(from.part(base + 3)),
             tensor_of(from.part(base + 5)),
             {v.all<int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS)[0], v.all<int64_t>(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES)[0],
              v.all<int64_t>(CUDNN_ATTR_CONVOLUTION_DILATIONS)[0]},
             from.all<float>(base).at(0),
             from.all<float>(base + 1).at(0),
             {}};
    const auto& [pass, x, w, y, c, alpha, beta, bias, fused] = *work;
    if (y.id < 0) return !y.narrow && x.narrow == w.narrow;   // followed by others, see fuse()
    return x.narrow == w.narrow && x.narrow == y.narrow && x.n == y.n && x.c == w.c && y.c == w.n &&
           y.h == (x.h + 2 * c.pad - c.dilation * (w.h - 1) - 1) / c.stride + 1 &&
           y.w == (x.w + 2 * c.pad - c.dilation * (w.w - 1) - 1) / c.stride + 1;
}

bool pointwise_of(const Contents& from, int mode) {
    return from.type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR &&
           from.part(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR).all<int>(CUDNN_ATTR_POINTWISE_MODE) == std::vector<int>{mode};
}
/// A graph of one convolution, or of a forward pass, the sum with a bias, and a ReLU.
bool graph_work(const Contents& graph, Work* work) {
    const auto& parts = graph.parts.at(CUDNN_ATTR_OPERATIONGRAPH_OPS);
    if (!work_of(*parts[0], work)) return false;
    if (parts.size() == 1) return work->y.id >= 0;
    if (parts.size() != 3 || work->pass != CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR || work->y.id >= 0) return false;
    const Contents &add = *parts[1], &relu = *parts[2];
    if (!pointwise_of(add, CUDNN_POINTWISE_ADD) || !pointwise_of(relu, CUDNN_POINTWISE_RELU_FWD)) return false;
    const TensorShape sum = tensor_of(add.part(CUDNN_ATTR_OPERATION_POINTWISE_YDESC)),
                      y = tensor_of(relu.part(CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
    if (tensor_of(add.part(CUDNN_ATTR_OPERATION_POINTWISE_XDESC)).id != work->y.id || sum.id >= 0 ||
        tensor_of(relu.part(CUDNN_ATTR_OPERATION_POINTWISE_XDESC)).id != sum.id || y.count() != work->y.count() ||
        y.narrow != work->x.narrow)
        return false;
    work->bias = tensor_of(add.part(CUDNN_ATTR_OPERATION_POINTWISE_BDESC));
    work->y = y;
    work->fused = true;
    return work->bias.count() == static_cast<size_t>(y.c) && work->bias.narrow == y.narrow;
}

// In the order of the heuristics; the last one by the fallback only.
enum Engine { not_deterministic, tensor_cores, refused, huge, good };
bool falls_back = true, fuses = true;
int64_t knob = 0;
uint64_t plans_made = 0;

// The engine configuration of a plan.
const Contents& configuration(const Contents& plan) { return plan.part(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG); }
const Contents& graph_of(const Contents& config) { return config.part(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH); }
Work work_planned(const Contents& plan) {
    Work work;
    (void)graph_work(graph_of(configuration(plan)), &work);
    return work;
}
cudnnHandle_t handle_of(const Contents& from, int name) { return from.all<cudnnHandle_t>(name).at(0); }
size_t workspace_of(const Contents& plan) {
    switch (configuration(plan).engine) {
        case not_deterministic: return 0;
        case huge: return size_t{1} << 40;
        default:
            return 64 + static_cast<size_t>(work_planned(plan).x.c) * 4 + handle_of(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE)->device * 4096;
    }
}

// Calls term(x element, w element, y element, C) for each place of the filter that is inside the image.
void places(const TensorShape& x, const TensorShape& w, const Convolution& v, const TensorShape& y, auto term) {
    for (int64_t n = 0; n < y.n; ++n)
        for (int64_t p = 0; p < y.h; ++p)
            for (int64_t q = 0; q < y.w; ++q)
                for (int64_t r = 0; r < w.h; ++r)
                    for (int64_t s = 0; s < w.w; ++s) {
                        const int64_t h = p * v.stride - v.pad + r * v.dilation, l = q * v.stride - v.pad + s * v.dilation;
                        if (h < 0 || h >= x.h || l < 0 || l >= x.w) continue;
                        term(size_t(((n * x.h + h) * x.w + l) * x.c), size_t((r * w.w + s) * w.c), size_t(((n * y.h + p) * y.w + q) * y.c));
                    }
}

void convolve(const Work& work, int engine, void* X, void* W, void* Y, void* B) {
    const auto& [pass, x, w, y, v, alpha, beta, bias, fused] = work;
    static unsigned calls = 0;
    const double fuzz = engine == not_deterministic && ++calls % 2 ? 1 + 0x1p-22 : 1;
    const size_t C = size_t(x.c), K = size_t(y.c), step = size_t(w.h * w.w) * C;   // from one filter to the next
    auto take = [&](const void* from, const TensorShape& shape) {
        std::vector<float> values = read(from, shape.narrow, shape.count());
        if (engine == tensor_cores && !shape.narrow)
            for (float& each : values) each = tf32(each);
        return values;
    };
    std::vector<double> sums;
    if (pass == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR) {
        const std::vector<float> a = take(X, x), filters = take(W, w);
        std::vector<float> b(w.count());
        sums.resize(y.count());
        for (size_t k = 0; k < K; ++k)   // transposed: the inner loop reads adjacent elements
            for (size_t i = 0; i < step; ++i) b[i * K + k] = filters[k * step + i];
        places(x, w, v, y, [&](size_t at_x, size_t at_w, size_t at_y) {
            for (size_t c = 0; c < C; ++c)
                for (size_t k = 0; k < K; ++k) sums[at_y + k] += double{a[at_x + c]} * b[(at_w + c) * K + k];
        });
    } else if (pass == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR) {
        const std::vector<float> a = take(Y, y), b = take(W, w);
        sums.resize(x.count());
        places(x, w, v, y, [&](size_t at_x, size_t at_w, size_t at_y) {
            for (size_t k = 0; k < K; ++k)
                for (size_t c = 0; c < C; ++c) sums[at_x + c] += double{a[at_y + k]} * b[at_w + k * step + c];
        });
    } else {
        const std::vector<float> a = take(X, x), b = take(Y, y);
        sums.resize(w.count());
        places(x, w, v, y, [&](size_t at_x, size_t at_w, size_t at_y) {
            for (size_t k = 0; k < K; ++k)
                for (size_t c = 0; c < C; ++c) sums[at_w + k * step + c] += double{a[at_x + c]} * b[at_y + k];
        });
    }
    const auto [to, narrow] = pass == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR         ? std::pair(Y, y.narrow)
                              : pass == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR ? std::pair(X, x.narrow)
                                                                                                     : std::pair(W, w.narrow);
    if (fused) {
        const std::vector<float> added = take(B, bias);
        for (size_t i = 0; i < sums.size(); ++i) {
            sums[i] += added[i % K];
            if (!(sums[i] > 0)) sums[i] = 0;   // NaN too
        }
    }
    for (size_t i = 0; i < sums.size(); ++i) store(to, narrow, i, alpha, sums[i] * fuzz, beta);
}

}   // namespace

void cuda_host_fuses(bool is) { fuses = is; }
void cuda_host_engines(bool fallback, int64_t tile) {
    falls_back = fallback;
    knob = tile;
}
uint64_t cuda_host_plans() { return plans_made; }

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* descriptor) {
    auto made = std::make_shared<Contents>();
    made->type = type;
    *descriptor = new std::shared_ptr<Contents>(made);
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
    delete static_cast<std::shared_ptr<Contents>*>(descriptor);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void* values) {
    Contents& to = *contents(descriptor);
    if (to.final || count < 1 || !values) return CUDNN_STATUS_BAD_PARAM;
    if (type != CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        const auto* from = static_cast<const char*>(values);
        to.values[name].assign(from, from + static_cast<size_t>(count) * size_of(type));
        return CUDNN_STATUS_SUCCESS;
    }
    for (int64_t i = 0; i < count; ++i) {
        const auto& part = contents(static_cast<const cudnnBackendDescriptor_t*>(values)[i]);
        if (!part->final) return CUDNN_STATUS_BAD_PARAM;
        to.parts[name].push_back(part);
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
    Contents& it = *contents(descriptor);
    cudnnStatus_t status = it.final ? CUDNN_STATUS_BAD_PARAM : CUDNN_STATUS_SUCCESS;
    auto wants = [&](std::initializer_list<int> names) {
        for (int name : names)
            if (!it.has(name)) status = CUDNN_STATUS_BAD_PARAM;
    };
    Work work;
    switch (it.type) {
        case CUDNN_BACKEND_TENSOR_DESCRIPTOR: status = tensor_check(it); break;
        case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR: status = convolution_check(it); break;
        case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
        case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
        case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
            if (!work_of(it, &work)) status = CUDNN_STATUS_BAD_PARAM;
            break;
        case CUDNN_BACKEND_POINTWISE_DESCRIPTOR: wants({CUDNN_ATTR_POINTWISE_MODE, CUDNN_ATTR_POINTWISE_MATH_PREC}); break;
        case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
            wants(
                {CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_ATTR_OPERATION_POINTWISE_YDESC});
            break;
        case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
            wants({CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_ATTR_OPERATIONGRAPH_OPS});
            if (!status && !graph_work(it, &work)) status = CUDNN_STATUS_NOT_SUPPORTED;
            break;
        case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR: wants({CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_ATTR_ENGINEHEUR_MODE}); break;
        case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
            wants({CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG});
            if (status) break;
            if (handle_of(it, CUDNN_ATTR_EXECUTION_PLAN_HANDLE)->device !=
                handle_of(graph_of(configuration(it)), CUDNN_ATTR_OPERATIONGRAPH_HANDLE)->device)
                status = CUDNN_STATUS_BAD_PARAM;
            else if (configuration(it).engine == refused) status = CUDNN_STATUS_NOT_SUPPORTED;
            break;
        case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
            wants({CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_ATTR_VARIANT_PACK_WORKSPACE});
            break;
        default: status = CUDNN_STATUS_BAD_PARAM;   // attributes that only GetAttribute fills
    }
    it.final = status == CUDNN_STATUS_SUCCESS;
    plans_made += it.final && it.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR;
    return status;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t,
                                       int64_t wanted, int64_t* count, void* values) {
    const Contents& from = *contents(descriptor);
    if (!from.final) return CUDNN_STATUS_BAD_PARAM;
    auto one = [&](auto value) {
        *count = 1;
        std::memcpy(values, &value, sizeof value);
        return CUDNN_STATUS_SUCCESS;
    };
    auto fill = [&](int64_t at, int engine) {
        if (at >= wanted) return;
        Contents& to = *contents(static_cast<cudnnBackendDescriptor_t*>(values)[at]);
        to.parts[CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH] = from.parts.at(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
        to.engine = engine;
        to.final = true;
    };
    switch (name) {
        case CUDNN_ATTR_ENGINEHEUR_RESULTS: {
            const bool fallback = from.all<int>(CUDNN_ATTR_ENGINEHEUR_MODE).at(0) == CUDNN_HEUR_MODE_FALLBACK;
            Work work;
            if (*count = 0; graph_work(graph_of(from), &work) && work.fused && !fuses) return CUDNN_STATUS_SUCCESS;
            *count = fallback ? (falls_back ? 1 : 0) : int{good};
            for (int64_t i = 0; i < std::min(*count, wanted); ++i) fill(i, fallback ? good : static_cast<int>(i));
            return CUDNN_STATUS_SUCCESS;
        }
        case CUDNN_ATTR_ENGINECFG_ENGINE:
            fill(0, from.engine);
            *count = 1;
            return CUDNN_STATUS_SUCCESS;
        case CUDNN_ATTR_ENGINE_GLOBAL_INDEX: return one(int64_t{from.engine});
        case CUDNN_ATTR_ENGINECFG_KNOB_CHOICES:
            fill(0, from.engine);
            *count = 1;
            return CUDNN_STATUS_SUCCESS;
        case CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE: return one(CUDNN_KNOB_TYPE_TILE_SIZE);
        case CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE: return one(knob);
        case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
            *count = from.engine <= tensor_cores ? 1 : 0;
            if (*count && wanted > 0)
                *static_cast<cudnnBackendNumericalNote_t*>(values) =
                    from.engine == tensor_cores ? CUDNN_NUMERICAL_NOTE_TENSOR_CORE : CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
            return CUDNN_STATUS_SUCCESS;
        case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE: return one(static_cast<int64_t>(workspace_of(from)));
        default: return CUDNN_STATUS_NOT_SUPPORTED;
    }
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t with, cudnnBackendDescriptor_t memory) {
    const Contents &plan = *contents(with), &pack = *contents(memory);
    if (!plan.final || !pack.final || handle->device != handle_of(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE)->device)
        return CUDNN_STATUS_BAD_PARAM;
    const Work work = work_planned(plan);
    const auto ids = pack.all<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    const auto pointers = pack.all<char*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    char* workspace = pack.all<char*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE).at(0);
    const size_t bytes = workspace_of(plan);
    std::vector<char*> at;
    for (const TensorShape* each : {&work.x, &work.w, &work.y, &work.bias}) {
        if (each == &work.bias && !work.fused) continue;
        const auto found = std::find(ids.begin(), ids.end(), each->id);
        if (found == ids.end() || ids.size() != pointers.size()) return CUDNN_STATUS_BAD_PARAM;
        at.push_back(pointers[static_cast<size_t>(found - ids.begin())]);
        if (!at.back() || reinterpret_cast<uintptr_t>(at.back()) % static_cast<uintptr_t>(each->alignment)) return CUDNN_STATUS_BAD_PARAM;
    }
    if (bytes && !workspace) return CUDNN_STATUS_BAD_PARAM;
    auto body = [=, engine = configuration(plan).engine] {
        if (bytes) std::memset(workspace, 0xFF, bytes);
        convolve(work, engine, at[0], at[1], at[2], work.fused ? at[3] : nullptr);
    };
    return cuda_host_run("convolution", handle->stream, body) ? CUDNN_STATUS_EXECUTION_FAILED : CUDNN_STATUS_SUCCESS;
}
