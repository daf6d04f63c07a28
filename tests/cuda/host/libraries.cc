// The stand-ins for cuBLAS and cuDNN: matrix products and convolutions as their definitions say, element by element.
#pragma GCC optimize("O3")
#include <cublas_v2.h>
#include <cudnn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

struct cublasContext {
    cudaStream_t stream = nullptr;
    void* workspace = nullptr;
    size_t bytes = 0;
    int device = 0;
};
struct cudnnContext {
    cudaStream_t stream = nullptr;
    int device = 0;
};
struct cudnnTensorStruct {   // NHWC
    cudnnDataType_t type;
    int n, c, h, w;
    size_t count() const { return size_t(n) * c * h * w; }
};
struct cudnnFilterStruct : cudnnTensorStruct {};   // KRSC, as n, h, w, c
struct cudnnConvolutionStruct {
    int pad_h, pad_w, stride_h, stride_w;
    cudnnMathType_t math;
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

// alpha sum + beta old, where old is read for another beta than 0 alone.
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

}   // namespace

// ---- cuBLAS ----------------------------------------------------------------------------------------------------------------------

// Handles belong to the device that was current when they were made; cudaFree(nullptr) gives it a context.
cublasStatus_t cublasCreate(cublasHandle_t* handle) {
    cudaFree(nullptr);
    *handle = new cublasContext;
    cudaGetDevice(&(*handle)->device);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy(cublasHandle_t handle) {
    expect_device(handle->device);
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
    *handle = {stream, nullptr, 0, handle->device};   // the workspace is the library's own again, as in cuBLAS
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void* workspace, size_t bytes) {
    handle->workspace = workspace, handle->bytes = bytes;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasGetVersion(cublasHandle_t, int* version) { return *version = 130000, CUBLAS_STATUS_SUCCESS; }
const char* cublasGetStatusName(cublasStatus_t status) {
    switch (status) {
        case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
        case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
        case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
        case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
        case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    }
    return "?";
}
const char* cublasGetStatusString(cublasStatus_t status) { return cublasGetStatusName(status); }

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t a_op, cublasOperation_t b_op, int m, int n, int k, const void* alpha,
                            const void* A, cudaDataType A_type, int lda, const void* B, cudaDataType B_type, int ldb, const void* beta,
                            void* C, cudaDataType C_type, int ldc, cublasComputeType_t, cublasGemmAlgo_t) {
    if (A_type != B_type) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (m < 0 || n < 0 || k < 0 || lda < (a_op ? k : m) || ldb < (b_op ? n : k) || ldc < m) return CUBLAS_STATUS_INVALID_VALUE;
    const bool narrow = A_type == CUDA_R_16BF, C_narrow = C_type == CUDA_R_16BF;
    auto body = [=, at = *handle, scale = number(alpha), old = number(beta)] {
        if (at.workspace) std::memset(at.workspace, 0xFF, at.bytes);
        if (k == 0 || m == 0 || n == 0) return;
        const size_t a_columns = a_op ? m : k, b_columns = b_op ? k : n, a_rows = a_op ? k : m, b_rows = b_op ? n : k;
        const std::vector<float> a = read(A, narrow, (a_columns - 1) * lda + a_rows), b = read(B, narrow, (b_columns - 1) * ldb + b_rows);
        std::vector<double> column(m);
        for (int j = 0; j < n; ++j) {
            column.assign(m, 0);
            for (int l = 0; l < k; ++l) {
                const double factor = b[b_op ? size_t(l) * ldb + j : size_t(j) * ldb + l];
                if (a_op)
                    for (int i = 0; i < m; ++i) column[i] += factor * a[size_t(i) * lda + l];
                else
                    for (int i = 0; i < m; ++i) column[i] += factor * a[size_t(l) * lda + i];
            }
            for (int i = 0; i < m; ++i) store(C, C_narrow, size_t(j) * ldc + i, scale, column[i], old);
        }
    };
    return cuda_host_run("cublasGemmEx", handle->stream, body) ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
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

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* tensor) {
    return *tensor = new cudnnTensorStruct{}, CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t tensor) {
    delete tensor;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t tensor, cudnnTensorFormat_t format, cudnnDataType_t type, int n, int c,
                                         int h, int w) {
    *tensor = {type, n, c, h, w};
    if (n < 1 || c < 1 || h < 1 || w < 1) return CUDNN_STATUS_BAD_PARAM;
    const double count = double{1} * n * c * h * w;   // at most 2^31 elements, as in cuDNN
    return format == CUDNN_TENSOR_NHWC && count <= 0x1p31 ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED;
}
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* filter) {
    return *filter = new cudnnFilterStruct{}, CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t filter) {
    delete filter;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t filter, cudnnDataType_t type, cudnnTensorFormat_t format, int k, int c,
                                         int r, int s) {
    return cudnnSetTensor4dDescriptor(filter, format, type, k, c, r, s);
}
cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* convolution) {
    return *convolution = new cudnnConvolutionStruct{}, CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t convolution) {
    delete convolution;
    return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t convolution, int pad_h, int pad_w, int stride_h, int stride_w,
                                              int dilation_h, int dilation_w, cudnnConvolutionMode_t mode, cudnnDataType_t compute) {
    *convolution = {pad_h, pad_w, stride_h, stride_w, CUDNN_DEFAULT_MATH};
    if (pad_h < 0 || pad_w < 0 || stride_h < 1 || stride_w < 1) return CUDNN_STATUS_BAD_PARAM;
    return dilation_h == 1 && dilation_w == 1 && mode == CUDNN_CROSS_CORRELATION && compute == CUDNN_DATA_FLOAT
               ? CUDNN_STATUS_SUCCESS
               : CUDNN_STATUS_NOT_SUPPORTED;
}
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t convolution, cudnnMathType_t type) {
    return convolution->math = type, CUDNN_STATUS_SUCCESS;
}

namespace {

bool fit(const cudnnTensorStruct& x, const cudnnTensorStruct& w, const cudnnConvolutionStruct& v, const cudnnTensorStruct& y) {
    return x.type == w.type && x.type == y.type && x.n == y.n && x.c == w.c && y.c == w.n &&
           y.h == (x.h + 2 * v.pad_h - w.h) / v.stride_h + 1 && y.w == (x.w + 2 * v.pad_w - w.w) / v.stride_w + 1;
}

// In the order in which they are offered.
enum Algorithm { not_deterministic, refused, huge, good };

cudnnStatus_t workspace(const cudnnTensorStruct& x, const cudnnTensorStruct& w, const cudnnConvolutionStruct& v, const cudnnTensorStruct& y,
                        int algorithm, size_t* bytes) {
    if (!fit(x, w, v, y)) return CUDNN_STATUS_BAD_PARAM;
    if (algorithm < not_deterministic || algorithm > good || algorithm == refused) return CUDNN_STATUS_NOT_SUPPORTED;
    *bytes = algorithm == not_deterministic ? 0 : algorithm == huge ? size_t{1} << 40 : 64 + size_t(x.c) * 4;
    if (algorithm == good && v.math == CUDNN_TENSOR_OP_MATH) *bytes *= 2;
    return CUDNN_STATUS_SUCCESS;
}

template <typename Perf>
cudnnStatus_t algorithms(const cudnnTensorStruct& x, const cudnnTensorStruct& w, const cudnnConvolutionStruct& v,
                         const cudnnTensorStruct& y, int wanted, int* returned, Perf* results) {
    if (!fit(x, w, v, y)) return CUDNN_STATUS_BAD_PARAM;
    for (*returned = 0; *returned < std::min<int>(wanted, good + 1); ++*returned)
        results[*returned] = {static_cast<decltype(Perf::algo)>(*returned),
                              CUDNN_STATUS_SUCCESS,
                              -1,
                              0,
                              *returned == not_deterministic ? CUDNN_NON_DETERMINISTIC : CUDNN_DETERMINISTIC,
                              v.math == CUDNN_FMA_MATH ? CUDNN_DEFAULT_MATH : CUDNN_TENSOR_OP_MATH,
                              {}};
    return CUDNN_STATUS_SUCCESS;
}

// Calls term(x element, w element, y element, how many channels C) for each place of the filter that hits the image.
void places(const cudnnTensorStruct& x, const cudnnTensorStruct& w, const cudnnConvolutionStruct& v, const cudnnTensorStruct& y,
            auto term) {
    for (int n = 0; n < y.n; ++n)
        for (int p = 0; p < y.h; ++p)
            for (int q = 0; q < y.w; ++q)
                for (int r = 0; r < w.h; ++r)
                    for (int s = 0; s < w.w; ++s) {
                        const int h = p * v.stride_h - v.pad_h + r, l = q * v.stride_w - v.pad_w + s;
                        if (h < 0 || h >= x.h || l < 0 || l >= x.w) continue;
                        term(((size_t(n) * x.h + h) * x.w + l) * x.c, (size_t(r) * w.w + s) * w.c, ((size_t(n) * y.h + p) * y.w + q) * y.c);
                    }
}

enum class Part { y, dx, dw };
cudnnStatus_t convolve(cudnnHandle_t handle, Part part, const cudnnTensorStruct& x, const void* X, const cudnnTensorStruct& w,
                       const void* W, const cudnnConvolutionStruct& v, const cudnnTensorStruct& y, const void* Y, int algorithm,
                       void* workspace, size_t bytes, const void* alpha, const void* beta, void* to) {
    size_t wanted = 0;
    if (cudnnStatus_t status = ::workspace(x, w, v, y, algorithm, &wanted)) return status;
    if (bytes < wanted || (wanted && !workspace)) return CUDNN_STATUS_BAD_PARAM;
    const bool narrow = x.type == CUDNN_DATA_BFLOAT16;
    auto body = [=, scale = number(alpha), old = number(beta)] {
        static unsigned calls = 0;
        const double fuzz = algorithm == not_deterministic && ++calls % 2 ? 1 + 0x1p-22 : 1;
        if (wanted) std::memset(workspace, 0xFF, wanted);
        const size_t C = x.c, K = y.c, step = size_t(w.h) * w.w * C;   // from one filter to the next
        std::vector<float> a, b;
        std::vector<double> sums;
        if (part == Part::y) {
            a = read(X, narrow, x.count()), b.resize(w.count()), sums.resize(y.count());
            const std::vector<float> filters = read(W, narrow, w.count());
            for (size_t k = 0; k < K; ++k)   // turned, so that the innermost loop goes over neighbours
                for (size_t i = 0; i < step; ++i) b[i * K + k] = filters[k * step + i];
            places(x, w, v, y, [&](size_t at_x, size_t at_w, size_t at_y) {
                for (size_t c = 0; c < C; ++c)
                    for (size_t k = 0; k < K; ++k) sums[at_y + k] += double{a[at_x + c]} * b[(at_w + c) * K + k];
            });
        } else if (part == Part::dx) {
            a = read(Y, narrow, y.count()), b = read(W, narrow, w.count()), sums.resize(x.count());
            places(x, w, v, y, [&](size_t at_x, size_t at_w, size_t at_y) {
                for (size_t k = 0; k < K; ++k)
                    for (size_t c = 0; c < C; ++c) sums[at_x + c] += double{a[at_y + k]} * b[at_w + k * step + c];
            });
        } else {
            a = read(X, narrow, x.count()), b = read(Y, narrow, y.count()), sums.resize(w.count());
            places(x, w, v, y, [&](size_t at_x, size_t at_w, size_t at_y) {
                for (size_t k = 0; k < K; ++k)
                    for (size_t c = 0; c < C; ++c) sums[at_w + k * step + c] += double{a[at_x + c]} * b[at_y + k];
            });
        }
        for (size_t i = 0; i < sums.size(); ++i) store(to, narrow, i, scale, sums[i] * fuzz, old);
    };
    return cuda_host_run("convolution", handle->stream, body) ? CUDNN_STATUS_EXECUTION_FAILED : CUDNN_STATUS_SUCCESS;
}

}   // namespace

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(cudnnHandle_t, cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                                                     cudnnConvolutionDescriptor_t v, cudnnTensorDescriptor_t y, int wanted, int* returned,
                                                     cudnnConvolutionFwdAlgoPerf_t* results) {
    return algorithms(*x, *w, *v, *y, wanted, returned, results);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(cudnnHandle_t, cudnnFilterDescriptor_t w, cudnnTensorDescriptor_t dy,
                                                          cudnnConvolutionDescriptor_t v, cudnnTensorDescriptor_t dx, int wanted,
                                                          int* returned, cudnnConvolutionBwdDataAlgoPerf_t* results) {
    return algorithms(*dx, *w, *v, *dy, wanted, returned, results);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(cudnnHandle_t, cudnnTensorDescriptor_t x, cudnnTensorDescriptor_t dy,
                                                            cudnnConvolutionDescriptor_t v, cudnnFilterDescriptor_t dw, int wanted,
                                                            int* returned, cudnnConvolutionBwdFilterAlgoPerf_t* results) {
    return algorithms(*x, *dw, *v, *dy, wanted, returned, results);
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(cudnnHandle_t, cudnnTensorDescriptor_t x, cudnnFilterDescriptor_t w,
                                                      cudnnConvolutionDescriptor_t v, cudnnTensorDescriptor_t y,
                                                      cudnnConvolutionFwdAlgo_t algorithm, size_t* bytes) {
    return workspace(*x, *w, *v, *y, algorithm, bytes);
}
cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(cudnnHandle_t, cudnnFilterDescriptor_t w, cudnnTensorDescriptor_t dy,
                                                           cudnnConvolutionDescriptor_t v, cudnnTensorDescriptor_t dx,
                                                           cudnnConvolutionBwdDataAlgo_t algorithm, size_t* bytes) {
    return workspace(*dx, *w, *v, *dy, algorithm, bytes);
}
cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(cudnnHandle_t, cudnnTensorDescriptor_t x, cudnnTensorDescriptor_t dy,
                                                             cudnnConvolutionDescriptor_t v, cudnnFilterDescriptor_t dw,
                                                             cudnnConvolutionBwdFilterAlgo_t algorithm, size_t* bytes) {
    return workspace(*x, *dw, *v, *dy, algorithm, bytes);
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t handle, const void* alpha, cudnnTensorDescriptor_t xd, const void* x,
                                      cudnnFilterDescriptor_t wd, const void* w, cudnnConvolutionDescriptor_t v,
                                      cudnnConvolutionFwdAlgo_t algorithm, void* workspace, size_t bytes, const void* beta,
                                      cudnnTensorDescriptor_t yd, void* y) {
    return convolve(handle, Part::y, *xd, x, *wd, w, *v, *yd, nullptr, algorithm, workspace, bytes, alpha, beta, y);
}
cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t handle, const void* alpha, cudnnFilterDescriptor_t wd, const void* w,
                                           cudnnTensorDescriptor_t dyd, const void* dy, cudnnConvolutionDescriptor_t v,
                                           cudnnConvolutionBwdDataAlgo_t algorithm, void* workspace, size_t bytes, const void* beta,
                                           cudnnTensorDescriptor_t dxd, void* dx) {
    return convolve(handle, Part::dx, *dxd, nullptr, *wd, w, *v, *dyd, dy, algorithm, workspace, bytes, alpha, beta, dx);
}
cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t handle, const void* alpha, cudnnTensorDescriptor_t xd, const void* x,
                                             cudnnTensorDescriptor_t dyd, const void* dy, cudnnConvolutionDescriptor_t v,
                                             cudnnConvolutionBwdFilterAlgo_t algorithm, void* workspace, size_t bytes, const void* beta,
                                             cudnnFilterDescriptor_t dwd, void* dw) {
    return convolve(handle, Part::dw, *xd, x, *dwd, nullptr, *v, *dyd, dy, algorithm, workspace, bytes, alpha, beta, dw);
}
