// Each kind of layer on a GPU: against finite differences, against the CPU, against PyTorch's numbers.
#include <algorithm>
#include <cstring>
#include <map>

#include "tests/cuda/nn_rig.h"
#include "tests/nn/nets.h"
#include "tests/nn/reference.h"

namespace gradcast {
namespace {

class CudaLayers : public testing::TestWithParam<Difference> {};

TEST_P(CudaLayers, MatchFiniteDifferences) {
    GC_NEED_GPU();
    CudaRig rig(GetParam().spec, sizes({GetParam().samples}));
    expect_slopes(rig, GetParam());
}

#ifdef GC_CUDA_HOST
// Bias, ReLU and the sums of a bias's gradient, by the libraries or by kernels of our own.
TEST(CudaFallbacks, AreAsOnTheCpu) {
    const NetSpec spec{.C = 3,
                       .H = 7,
                       .W = 7,
                       .classes = 5,
                       .layers = {conv(7, 3), relu(), conv(9, 1), relu(), conv(8, 1), relu(), conv(6, 3), relu(), fc(13), relu(), fc(16),
                                  relu(), fc(5), loss()}};
    constexpr unsigned none = 0, forward = 4, sums = 512, all = ~0u;   // bits of cublasLtEpilogue_t
    for (const unsigned epilogues : {none, forward, sums, all})
        for (const bool fuses : {false, true}) {
            SCOPED_TRACE(fmt::format("epilogues {:x}, {}", epilogues, fuses ? "fused" : "alone"));
            cuda_host_epilogues(epilogues);
            cuda_host_fuses(fuses);
            expect_as_cpu(spec, 5, Precision::f32, 1e-5);
            expect_as_cpu(spec, 5, Precision::bf16, 0.35);
        }
    cuda_host_epilogues(all);
    cuda_host_fuses(true);
}
#endif

TEST_P(CudaLayers, AreAsOnTheCpu) {
    GC_NEED_GPU();
    expect_as_cpu(GetParam().spec, GetParam().samples, Precision::f32, 1e-5);
}

TEST_P(CudaLayers, AreNearInTf32) {
    GC_NEED_GPU();
    // TF32 rounds the factors alone, by up to 2^-11.
    expect_as_cpu(smooth(GetParam().spec), GetParam().samples, Precision::tf32, 1e-2);
}

TEST_P(CudaLayers, AreNearInBf16) {
    GC_NEED_GPU();
    // bf16 rounds each value between two layers by up to 2^-9: about 4% through seven layers.
    expect_as_cpu(smooth(GetParam().spec), GetParam().samples, Precision::bf16, 5e-2);
    // ReLU and max pooling that switch near their kinks add more; a wrong term has an error of about 1.
    expect_as_cpu(GetParam().spec, GetParam().samples, Precision::bf16, 0.35);
}
INSTANTIATE_TEST_SUITE_P(Kinds, CudaLayers, testing::ValuesIn(differences()), [](const auto& p) { return p.param.name; });

class CudaReference : public testing::TestWithParam<const char*> {};
TEST_P(CudaReference, GivesPyTorchsNumbers) {
    GC_NEED_GPU();
    expect_reference<CudaRig>(GetParam());
}
INSTANTIATE_TEST_SUITE_P(Nets, CudaReference, testing::ValuesIn(reference_names), [](const auto& p) { return p.param; });

}   // namespace
}   // namespace gradcast
