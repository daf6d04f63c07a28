// Sampler and reader: samples per second, and bytes per second from the page cache (bound: memcpy, the kernel's last copy).
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "datasets/reader.h"

namespace gradcast {
namespace {

constexpr uint64_t count = 60000;
constexpr uint32_t side = 28, sample_bytes = side * side, batch = 128, blocks = 8;

/// Generated samples of Fashion-MNIST's shape; removed at exit.
struct Made {
    std::filesystem::path path = std::filesystem::temp_directory_path() / fmt::format("gradcast-bench-{}.h5", ::getpid());
    std::unique_ptr<DataSet> data;
    Made() {
        std::vector<uint8_t> images(count * sample_bytes, 7);
        std::vector<int32_t> labels(count, 3);
        GC_ASSERT(shard_write(path, {count, 1, side, side, 10, {0}, {1}, "bench"}, images.data(), labels.data()).ok());
        GC_ASSERT(data_open(path, &data).ok());
    }
    ~Made() { std::filesystem::remove(path); }
};
const DataSet& data_set() {
    static Made made;
    return *made.data;
}

void sampler_block(benchmark::State& state) {
    Sampler sampler(count, 1, batch, blocks);
    std::vector<uint64_t> indices(sampler.block_size(0));
    StepId step = 0;
    while (state.KeepRunning()) {
        sampler.block({step++, 0}, indices);
        benchmark::DoNotOptimize(indices.data());
    }
    state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(indices.size()));
}
BENCHMARK(sampler_block);

/// DataSet::read of blocks of random samples, one pread each.
void read_random(benchmark::State& state) {
    const DataSet& data = data_set();
    Sampler sampler(count, 1, batch, blocks);
    std::vector<uint64_t> indices(sampler.block_size(0));
    std::vector<uint8_t> images(indices.size() * sample_bytes);
    std::vector<int32_t> labels(indices.size());
    StepId step = 0;
    while (state.KeepRunning()) {
        sampler.block({step++, 0}, indices);
        GC_ASSERT(data.read(indices, images.data(), labels.data()).ok());
    }
    state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(indices.size()));
    state.SetBytesProcessed(state.items_processed() * sample_bytes);
}
BENCHMARK(read_random);

/// The whole set in order, in reads of 1 MiB.
void read_in_order(benchmark::State& state) {
    const DataSet& data = data_set();
    std::vector<uint64_t> indices((1 << 20) / sample_bytes);
    std::vector<uint8_t> images(indices.size() * sample_bytes);
    std::vector<int32_t> labels(indices.size());
    uint64_t first = 0;
    while (state.KeepRunning()) {
        for (size_t i = 0; i < indices.size(); ++i) indices[i] = first + i;
        GC_ASSERT(data.read(indices, images.data(), labels.data()).ok());
        first = (first + indices.size()) % (count - indices.size());
    }
    state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(images.size()));
}
BENCHMARK(read_in_order);

/// The loader alone; its blocks are taken at once.  Arguments: io_uring, registered.  Its thread's CPU time counts.
void loader_blocks(benchmark::State& state) {
    Sampler sampler(count, 1, batch, blocks);
    Arena arena;
    std::unique_ptr<Loader> loader;
    LoaderConfig config{.uring = state.range(0) != 0, .registered = state.range(1) != 0};
    log_level(Level::error);
    GC_ASSERT(loader_plan(data_set(), sampler, config, arena, Log(), &loader).ok() && arena.seal().ok() && loader_start(*loader).ok());
    loader->plan(0, {0, 1, 2, 3, 4, 5, 6, 7});
    BlockId id{0, 0};
    while (state.KeepRunning()) {
        Samples samples;
        GC_ASSERT(loader->get(id, 10'000'000, &samples).ok());
        benchmark::DoNotOptimize(samples.images[0]);
        loader->done(id);
        if (++id.block == blocks) {
            ++id.step;
            id.block = 0;
        }
    }
    state.SetItemsProcessed(state.iterations() * batch / blocks);
    state.SetBytesProcessed(state.items_processed() * sample_bytes);
}
BENCHMARK(loader_blocks)->Args({1, 1})->Args({1, 0})->Args({0, 0})->MeasureProcessCPUTime()->UseRealTime();

void verify(benchmark::State& state) {
    while (state.KeepRunning()) GC_ASSERT(data_verify(data_set()).ok());
    state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(count * sample_bytes));
}
BENCHMARK(verify)->Unit(benchmark::kMillisecond);

}   // namespace
}   // namespace gradcast
