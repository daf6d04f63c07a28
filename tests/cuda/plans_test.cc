// cuDNN's own plans of convolutions, without a GPU: from 9.8 on cuDNN plans for a GPU that a JSON text describes.  Calls that need a GPU
// (current device, handles) are replaced by the linker: tools/mk/devices.mk, CUDA_WRAPPED.
#ifndef GC_CUDA_HOST
#include <algorithm>
#include <cstring>

#include "tests/cuda/nn_rig.h"
#include "tests/nn/nets.h"
#include "tests/nn/unet.h"

namespace gradcast {
namespace {

struct Described {
    const char *name, *properties;
};
// As cuDNN describes these GPUs.
constexpr Described described_gpus[] = {
    {"A100", R"({"deviceVer":800,"driverVer":13000,"cudaDeviceId":0,"deviceName":"NVIDIA A100-SXM4-80GB",
        "maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,"multiProcessorCount":108,"warpSize":32,
        "maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":166912,"reservedSharedMemoryPerBlock":1024,
        "maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,
        "supportCoopLaunch":1,"smClockRateKHz":1410000,"memClockRateKHz":1593000,"l2CacheSize":41943040,"totalGlobalMem":85000000000})"},
    {"H100", R"({"deviceVer":900,"driverVer":13000,"cudaDeviceId":0,"deviceName":"NVIDIA H100 80GB HBM3",
        "maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,"multiProcessorCount":132,"warpSize":32,
        "maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":232448,"reservedSharedMemoryPerBlock":1024,
        "maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,"maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,
        "supportCoopLaunch":1,"smClockRateKHz":1980000,"memClockRateKHz":2619000,"l2CacheSize":52428800,"totalGlobalMem":85000000000})"}};

// cudnn.h before 9.8 lacks these names.
constexpr auto type_gpu = static_cast<cudnnBackendDescriptorType_t>(38);
constexpr auto gpu_properties = static_cast<cudnnBackendAttributeName_t>(2702),
               heuristics_gpu = static_cast<cudnnBackendAttributeName_t>(204), plan_gpu = static_cast<cudnnBackendAttributeName_t>(407);

cudnnBackendDescriptor_t described = nullptr;   // the description that replaces the GPU
uint32_t refused = 0;

class CudaPlans : public testing::TestWithParam<Described> {
protected:
    void SetUp() override {
        cudnnBackendDescriptor_t made = nullptr;
        const char* text = GetParam().properties;
        if (cudnnBackendCreateDescriptor(type_gpu, &made) != CUDNN_STATUS_SUCCESS) GTEST_SKIP() << "this cuDNN takes no described GPUs";
        if (cudnnBackendSetAttribute(made, gpu_properties, CUDNN_TYPE_CHAR, static_cast<int64_t>(std::strlen(text)), text) ||
            cudnnBackendFinalize(made)) {
            (void)cudnnBackendDestroyDescriptor(made);
            GTEST_SKIP() << "this cuDNN wants GPUs described otherwise";
        }
        described = made;
        refused = 0;
    }
    void TearDown() override {
        if (described) (void)cudnnBackendDestroyDescriptor(std::exchange(described, nullptr));
    }
};

TEST_P(CudaPlans, AreThereForEachConvolution) {
    for (const char* name : {"lenet5", "cnn", "nin", "resnet9", "resnet18", "everything", "encoder_decoder"})
        for (const Precision precision : {Precision::f32, Precision::tf32, Precision::bf16})
            for (uint32_t samples : {3u, 13u, 128u, 1024u}) {
                const bool small = name == std::string("lenet5");
                const NetSpec spec = name == std::string("everything")        ? everything()
                                     : name == std::string("encoder_decoder") ? encoder_decoder()
                                                                              : preset(name, small ? 1 : 3, small ? 28 : 32);
                cuda::CudaDevice device;
                device.gpus().push_back(std::make_unique<cuda::CudaDevice::Gpu>());
                device.lanes().resize(1);
                NetConfig config = sizes({samples});
                config.precision = precision;
                std::unique_ptr<Net> net;
                const Status status = cuda::net_plan(spec, config, device, &net);
                EXPECT_TRUE(status.ok()) << name << ", " << samples << " samples: " << status.what;
                if (name == std::string("nin") && precision != Precision::f32 && samples == 128u && status.ok()) {
                    const auto fused = [](const std::string& line) { return line.find(" with bias and ReLU,") != line.npos; };
                    EXPECT_EQ(std::ranges::count_if(net->engine_list(), fused), 2)
                        << "convolutions of more than one pixel, behind the first";
                }
                net.reset();
            }
    EXPECT_EQ(refused, 0u);   // every engine of the heuristics can be planned
}

TEST_P(CudaPlans, AreThereForLargeNets) {
    for (const auto& [name, side] : {std::pair{"resnet18", 224u}, {"resnet50", 64u}, {"unet", 128u}})
        for (const Precision precision : {Precision::f32, Precision::bf16}) {
            cuda::CudaDevice device;
            device.gpus().push_back(std::make_unique<cuda::CudaDevice::Gpu>());
            device.lanes().resize(1);
            NetConfig config = sizes({16});
            config.precision = precision;
            std::unique_ptr<Net> net;
            const NetSpec spec = name == std::string("unet") ? unet(side) : preset(name, 3, side);
            const Status status = cuda::net_plan(spec, config, device, &net);
            EXPECT_TRUE(status.ok()) << name << ": " << status.what;
        }
    EXPECT_EQ(refused, 0u);
}
INSTANTIATE_TEST_SUITE_P(Gpus, CudaPlans, testing::ValuesIn(described_gpus), [](const auto& p) { return p.param.name; });

}   // namespace

extern "C" {

cudnnStatus_t __real_cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t type, int64_t count, const void* values);
cudnnStatus_t __wrap_cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t type, int64_t count, const void* values) {
    auto set_gpu = [&](cudnnBackendAttributeName_t as) {
        return __real_cudnnBackendSetAttribute(descriptor, as, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &described);
    };
    if (described && name == CUDNN_ATTR_OPERATIONGRAPH_HANDLE) return CUDNN_STATUS_SUCCESS;
    if (described && name == CUDNN_ATTR_EXECUTION_PLAN_HANDLE) return set_gpu(plan_gpu);
    const cudnnStatus_t status = __real_cudnnBackendSetAttribute(descriptor, name, type, count, values);
    if (status || !described || name != CUDNN_ATTR_ENGINEHEUR_MODE) return status;
    return set_gpu(heuristics_gpu);
}

cudnnStatus_t __real_cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor);
cudnnStatus_t __wrap_cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
    const cudnnStatus_t status = __real_cudnnBackendFinalize(descriptor);
    refused += status != CUDNN_STATUS_SUCCESS;
    return status;
}

// cuBLASLt takes no described GPUs: any product has an algorithm here.
cublasStatus_t __real_cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                                     cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                     cublasLtMatmulPreference_t preference, int wanted,
                                                     cublasLtMatmulHeuristicResult_t* results, int* count);
cublasStatus_t __wrap_cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                                     cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                                     cublasLtMatmulPreference_t preference, int wanted,
                                                     cublasLtMatmulHeuristicResult_t* results, int* count) {
    if (!described) return __real_cublasLtMatmulAlgoGetHeuristic(handle, desc, a, b, c, d, preference, wanted, results, count);
    *results = {};
    *count = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cudaError_t __real_cudaSetDevice(int number);
cudaError_t __wrap_cudaSetDevice(int number) { return described ? cudaSuccess : __real_cudaSetDevice(number); }
cudaError_t __real_cudaDeviceSynchronize();
cudaError_t __wrap_cudaDeviceSynchronize() { return described ? cudaSuccess : __real_cudaDeviceSynchronize(); }

}   // extern "C"
}   // namespace gradcast
#endif
