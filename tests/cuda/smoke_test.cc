// What all code for GPUs relies on, smallest first.  tools/device-check runs this suite before any other.
#include "nn/cuda/plan.h"
#include "nn/cuda/product.h"
#include "tests/cuda/fixture.h"
#include "tests/nn/rig.h"

namespace gradcast::cuda {
namespace {

/// Captures what has run once: libraries and kernels are loaded at their first use, which a capture may forbid.
Status captured(cudaStream_t stream, const std::function<Status()>& enqueue, GraphExec* graph) {
    GC_TRY(enqueue());
    GC_CUDA(cudaStreamSynchronize(stream));
    return capture(stream, enqueue, graph);
}

using CudaSmoke = OnDevice;

#ifdef GC_CUDA_HOST
constexpr size_t many = 1 << 12;
#else
constexpr size_t many = 1 << 26;   // 64 passes take a GPU some 10 ms
#endif

struct Pinned {
    float* at = nullptr;
    explicit Pinned(size_t count) { EXPECT_EQ(cudaMallocHost(&at, count * sizeof(float)), cudaSuccess); }
    Pinned(const Pinned&) = delete;
    ~Pinned() { EXPECT_EQ(cudaFreeHost(at), cudaSuccess); }
};

TEST_F(CudaSmoke, AKernelReadsPageLockedMemory) {
    const auto device = open(1);
    const cudaStream_t stream = device->lanes()[0].stream.get();
    const Pinned host(100);
    const DeviceVector<float> got(100);
    for (int round = 0; round < 2; ++round) {
        std::vector<float> want;
        for (int i = 0; i < 100; ++i) want.push_back(host.at[i] = static_cast<float>(i + 1000 * round));
        EXPECT_TRUE(ok(copy(stream, {got.get()}, {host.at}, 100)));
        EXPECT_EQ(got.read(), want);
    }
}

// An event that a graph records holds back a stream outside of the graph, at every launch, until the work before it is done.
TEST_F(CudaSmoke, AnotherStreamWaitsForAnEventOfAGraph) {
    const auto device = open(1);
    CudaDevice::Lane& lane = device->lanes()[0];
    const cudaStream_t inside = lane.stream.get(), outside = lane.codec.get();
    const DeviceVector<float> sum(std::vector<float>(many, 0.0f)), one(std::vector<float>(many, 1.0f));
    const Pinned seen(1);
    Event event;
    EXPECT_TRUE(ok(make(&event)));
    GraphExec graph;
    EXPECT_TRUE(ok(captured(
        inside,
        [&]() -> Status {
            for (int i = 0; i < 64; ++i) GC_TRY(add(inside, {sum.get()}, {sum.get()}, {one.get()}, many));
            GC_TRY(record(event, inside));
            return add(inside, {one.get()}, {one.get()}, {one.get()}, many);   // after the event
        },
        &graph)));
    float want = 64, step = 128;   // the operations have run once
    for (int launch = 0; launch < 3; ++launch, step *= 2) {
        want += step;
        ASSERT_EQ(cudaGraphLaunch(graph.get(), inside), cudaSuccess);
        ASSERT_EQ(cudaStreamWaitEvent(outside, event.get(), 0), cudaSuccess);
        ASSERT_EQ(cudaMemcpyAsync(seen.at, sum.get() + many - 1, sizeof(float), cudaMemcpyDeviceToHost, outside), cudaSuccess);
        ASSERT_EQ(cudaStreamSynchronize(outside), cudaSuccess);
        EXPECT_EQ(*seen.at, want) << "launch " << launch;
        ASSERT_EQ(cudaStreamSynchronize(inside), cudaSuccess);
    }
}

TEST_F(CudaSmoke, CublasMultipliesInAGraph) {
    const auto device = open(1);
    EXPECT_TRUE(ok(device->seal()));   // takes cuBLAS's workspace
    CudaDevice::Lane& lane = device->lanes()[0];
    constexpr int N = 16, K = 24, C = 8;
    std::vector<float> x, w, want;   // [N,C], [K,C], [N,K]
    for (int i = 0; i < N * C; ++i) x.push_back(static_cast<float>(i % 7 - 3));
    for (int i = 0; i < K * C; ++i) w.push_back(static_cast<float>(i % 5 - 2));
    for (int n = 0; n < N; ++n)
        for (int k = 0; k < K; ++k) {
            float& sum = want.emplace_back(0.0f);
            for (int c = 0; c < C; ++c) sum += x[n * C + c] * w[k * C + c];
        }
    const DeviceVector<float> X(x), W(w), Y(want.size());
    const std::vector<Layer> layers(1);
    const Layout layout;
    const std::vector<bool> fused(1);
    for (const Precision precision : {Precision::f32, Precision::tf32}) {
        NetConfig config = sizes({N});
        config.precision = precision;
        Build build(config, layers, layout, fused, *device);
        build.layer = layers.data();
        Product product;
        ASSERT_TRUE(ok(product.choose(build, {ProductPass::forward, N, K, C})));
        const Frame frame{.stream = lane.stream.get(), .cublas = lane.cublas.get(), .workspace = lane.workspace.device};
        GraphExec graph;
        EXPECT_TRUE(ok(captured(
            frame.stream,
            [&] {
                return product.run(frame, {X.get(), W.get(), Y.get()});
            },
            &graph)));
        ASSERT_EQ(cudaGraphLaunch(graph.get(), frame.stream), cudaSuccess);
        EXPECT_EQ(Y.read(), want);   // small integers are exact
    }
}

// What follows a product in the same kernel, where cuBLASLt offers that, on integers that are exact; many sums are 0.
TEST_F(CudaSmoke, CublasEpiloguesAreAsDefined) {
    const auto device = open(1);
    EXPECT_TRUE(ok(device->seal()));
    CudaDevice::Lane& lane = device->lanes()[0];
    constexpr uint32_t N = 16, K = 24, C = 8;
    auto at = [](uint32_t i, uint32_t modulo) { return static_cast<float>(static_cast<int>(i % modulo) - static_cast<int>(modulo / 2)); };
    std::vector<float> x, w, bias, dy;
    for (uint32_t i = 0; i < N * C; ++i) x.push_back(at(i, 3));
    for (uint32_t i = 0; i < K * C; ++i) w.push_back(at(i, 5));
    for (uint32_t k = 0; k < K; ++k) bias.push_back(at(k, 3));
    for (uint32_t i = 0; i < N * K; ++i) dy.push_back(at(i, 7));
    std::vector<float> y, relu, dw(K * C), dbias(K), dx(N * C);
    uint32_t zeros = 0;
    for (uint32_t n = 0; n < N; ++n)
        for (uint32_t k = 0; k < K; ++k) {
            float sum = bias[k];
            for (uint32_t c = 0; c < C; ++c) {
                sum += x[n * C + c] * w[k * C + c];
                dw[k * C + c] += dy[n * K + k] * x[n * C + c];
                dx[n * C + c] += dy[n * K + k] * w[k * C + c];
            }
            dbias[k] += dy[n * K + k];
            zeros += sum == 0;
            y.push_back(sum);
            relu.push_back(sum > 0 ? sum : 0);
        }
    ASSERT_GT(zeros, 0u);
    const DeviceVector<float> X(x), W(w), B(bias), DY(dy);
    const std::vector<Layer> layers(1);
    const Layout layout;
    const std::vector<bool> fused(1);
    NetConfig config = sizes({N});
    config.precision = Precision::tf32;
    Build build(config, layers, layout, fused, *device);
    build.layer = layers.data();
    const Frame frame{.stream = lane.stream.get(), .cublas = lane.cublas.get(), .workspace = lane.workspace.device};
    auto runs = [&](const ProductShape& shape, const ProductMemory& memory) {
        Product product;
        bool offered = false;
        EXPECT_TRUE(ok(product.choose(build, shape, &offered)));
        if (offered) EXPECT_TRUE(ok(product.run(frame, memory)));
        else std::printf("epilogue %d of pass %d is not offered\n", static_cast<int>(shape.epilogue), static_cast<int>(shape.pass));
        return offered;
    };
    const DeviceVector<float> Y(y.size()), DW(dw.size()), DB(dbias.size()), DX(dx.size());
    for (const auto& [epilogue, want] : {std::pair(Epilogue::bias, &y), {Epilogue::bias_relu, &relu}}) {
        if (!runs({ProductPass::forward, N, K, C, epilogue}, {X.get(), W.get(), Y.get(), B.get()})) continue;
        EXPECT_EQ(Y.read(), *want);
    }
    if (runs({ProductPass::weights, N, K, C, Epilogue::sums}, {DY.get(), X.get(), DW.get(), DB.get()})) {
        EXPECT_EQ(DW.read(), dw);
        EXPECT_EQ(DB.read(), dbias);
    }
    ASSERT_TRUE(runs({ProductPass::data, N, K, C}, {DY.get(), W.get(), DX.get()}));
    EXPECT_EQ(DX.read(), dx);
}

// The first lane's handle plans; a graph is captured with each handle of both lanes, and replayed.
TEST_F(CudaSmoke, ACudnnPlanRunsOnAnotherHandleInAGraph) {
    const auto device = open(2);
    const NetSpec spec{.C = 8, .H = 6, .W = 6, .classes = 4, .layers = {gradcast::conv(8, 3), fc(4), loss()}};
    std::vector<Layer> layers;
    ASSERT_TRUE(ok(layers_check(spec, &layers)));
    constexpr uint32_t samples = 3, C = 8, H = 6, K = 8, R = 3, P = 4;
    const NetConfig config = sizes({samples}, 2);
    const Layout layout = layers_layout(layers, 0);
    const std::vector<bool> fused(layers.size());
    Build build(config, layers, layout, fused, *device);
    build.layer = layers.data();
    std::vector<Operations> operations;
    std::vector<EdgeTensors> edges;
    build.begin(samples, true, &operations, &edges);
    ConvPlan plan;
    ASSERT_TRUE(ok(plan.choose(build, {layers[0].in, layers[0].out, R, 1, 0}, ConvPass::forward)));
    std::vector<float> x, w, want;   // [samples,H,W,C], [K,R,S,C], [samples,P,Q,K]
    for (uint32_t i = 0; i < samples * H * H * C; ++i) x.push_back(static_cast<float>(static_cast<int>(i % 11) - 5));
    for (uint32_t i = 0; i < K * R * R * C; ++i) w.push_back(static_cast<float>(static_cast<int>(i % 13) - 6));
    for (uint32_t n = 0; n < samples; ++n)
        for (uint32_t p = 0; p < P; ++p)
            for (uint32_t q = 0; q < P; ++q)
                for (uint32_t k = 0; k < K; ++k) {
                    float& sum = want.emplace_back(0.0f);
                    for (uint32_t r = 0; r < R; ++r)
                        for (uint32_t s = 0; s < R; ++s)
                            for (uint32_t c = 0; c < C; ++c)
                                sum += x[((n * H + p + r) * H + q + s) * C + c] * w[((k * R + r) * R + s) * C + c];
                }
    const DeviceVector<float> X(x), W(w);
    const DeviceVector<std::byte> space(plan.workspace());
    for (uint32_t number = 0; number < 2; ++number) {
        const CudaDevice::Lane& lane = device->lanes()[number];
        for (const CudaDevice::Worker* worker : std::initializer_list<const CudaDevice::Worker*>{&lane, &lane.beside}) {
            const DeviceVector<float> Y(std::vector<float>(want.size(), -1.0f));
            Frame frame{.lane = number, .stream = worker->stream.get(), .cudnn = worker->cudnn.get()};
            GraphExec graph;
            EXPECT_TRUE(ok(captured(
                worker->stream.get(), [&] { return plan.run(frame, X.get(), W.get(), Y.get(), space.get()); }, &graph)));
            for (int replay = 0; replay < 2; ++replay) {
                ASSERT_EQ(cudaMemset(Y.get(), 0, want.size() * sizeof(float)), cudaSuccess);
                ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
                ASSERT_EQ(cudaGraphLaunch(graph.get(), worker->stream.get()), cudaSuccess);
                EXPECT_EQ(Y.read(), want) << "lane " << number << ", replay " << replay;
            }
        }
    }
}

}   // namespace
}   // namespace gradcast::cuda
