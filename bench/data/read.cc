// Reads a data set as a job does, and prints the time.  bench/data/run compares.
//   read order|direct|shuffled SHARDS NUMBER     prints a line of JSON: seconds, bytes, samples, loader
// order: every sample once, NUMBER bytes at a time (whole pages), by DataSet::read; direct: the same past the page cache; shuffled: NUMBER
// mini-batches of 100 by the Loader, without pause.
#include <fcntl.h>
#include <fmt/format.h>

#include <cstdlib>
#include <numeric>
#include <string_view>

#include "datasets/reader.h"
#include "runtime/core/clock.h"

using namespace gradcast;

namespace {

constexpr uint64_t page = 4096;

int failed(const Status& status) {
    fmt::print(stderr, "read: {}\n", status.what);
    return 1;
}

struct Result {
    uint64_t us = 0, samples = 0;
    std::string loader = "pread";
};

Status in_order(const DataSet& data, uint64_t piece_bytes, bool direct, Result* result) {
    const uint64_t bytes = data.sample_bytes(),
                   whole = page / std::gcd(bytes, page);   // the smallest number of samples that ends with a page
    const uint64_t each = std::max(piece_bytes / (whole * bytes), uint64_t{1}) * whole, count = data.info().count;
    // The remainder would need a read of its own.
    const uint64_t samples = direct ? count / each * each : count;
    if (samples == 0) return fail(Code::invalid, "{} has too few samples to read {} of them at a time", data.pattern(), each);
    for (uint32_t shard = 0; direct && shard < data.shards().size(); ++shard)
        if (::fcntl(data.fd(shard), F_SETFL, O_DIRECT) != 0)
            return fail_sys(errno, "{} cannot be read past the page cache", data.pattern());
    auto* images = static_cast<uint8_t*>(std::aligned_alloc(page, (each * bytes + page - 1) / page * page));
    std::vector<int32_t> labels(each);
    std::vector<uint64_t> indices(each);
    const uint64_t began = clock_us();
    Status status;
    for (uint64_t first = 0; first < samples && status.ok(); first += each) {
        indices.resize(std::min(each, samples - first));
        std::iota(indices.begin(), indices.end(), first);
        status = data.read(indices, images, labels.data());
    }
    *result = {clock_us() - began, samples};
    std::free(images);
    return status;
}

Status shuffled(const DataSet& data, uint64_t batches, Result* result) {
    constexpr uint32_t batch = 100;
    Sampler sampler(data.info().count, 1, batch, 1);
    Arena arena;
    std::unique_ptr<Loader> loader;
    GC_TRY(loader_plan(data, sampler, {}, arena, Log(), &loader));
    GC_TRY(arena.seal());
    GC_TRY(loader_start(*loader));
    const uint64_t began = clock_us();
    loader->plan(0, {0});
    for (StepId step = 0; step < batches; ++step) {
        Samples samples;
        GC_TRY(loader->get({step, 0}, 60'000'000, &samples));
        loader->done({step, 0});
    }
    *result = {clock_us() - began, batches * batch, loader->name()};
    return {};
}

}   // namespace

int main(int argc, char** argv) {
    const std::string_view mode = argc > 2 ? argv[1] : "";
    const uint64_t number = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 0;
    if ((mode != "order" && mode != "direct" && mode != "shuffled") || number == 0) {
        fmt::print(stderr, "usage: read order|direct|shuffled SHARDS NUMBER\n");
        return 2;
    }
    log_level(Level::error);
    std::unique_ptr<DataSet> data;
    if (Status status = data_open(argv[2], &data); !status.ok()) return failed(status);
    Result result;
    Status status = mode == "shuffled" ? shuffled(*data, number, &result) : in_order(*data, number, mode == "direct", &result);
    if (!status.ok()) return failed(status);
    fmt::print("{{\"seconds\": {:.6f}, \"bytes\": {}, \"samples\": {}, \"loader\": \"{}\"}}\n", static_cast<double>(result.us) * 1e-6,
               result.samples * data->sample_bytes(), result.samples, result.loader);
    return 0;
}
