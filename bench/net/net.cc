#include "bench/net/net.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <tuple>

#include "bench/comm/report.h"
#include "bench/net/rig.h"
#include "nn/graph/layers.h"
#include "nn/net.h"
#include "runtime/core/resident_memory.h"
#include "runtime/core/version.h"

namespace gradcast {
namespace {

/// Multiply-adds of a layer's pass over one sample; each counts as two operations.  Attention has a product for each channel and pair of a
/// query and a key that it sees: forward two, scores and weighted values; backward five, as it computes the scores again.
double flops(const Layer& layer, Pass pass) {
    if (pass == Pass::input) return 0;
    if (layer.is(attention_kind)) {
        const double positions = static_cast<double>(layer.out.H) * layer.out.W;
        const double pairs = layer.value("causal") > 0 ? positions * (positions + 1) / 2 : positions * positions;
        return (pass == Pass::forward ? 2 : pass == Pass::backward_data ? 5 : 0) * 2.0 * layer.out.C * pairs;
    }
    if (!layer.kind->multiplies) return 0;
    const Shape& at = layer.multiplied();
    return 2.0 * static_cast<double>(layer.weights) * at.H * at.W;
}

constexpr const char* pass_names[] = {"input", "forward", "backward weights", "backward data"};

/// Nanoseconds of one step by layer and pass, all lanes together.
struct Times final : NetTrace {
    struct Lane {
        std::map<std::pair<const Layer*, Pass>, uint64_t> ns;
        std::vector<std::pair<const Layer*, Pass>> order;   // in execution order, equal for all lanes that compute a block
        char pad[64];                                       // keeps lanes on separate cache lines
    };
    std::vector<Lane> lanes;
    uint64_t now_ns() override { return clock_ns(); }
    void pass(uint32_t lane, const Layer& layer, Pass pass, uint64_t begin_ns, uint64_t end_ns) override {
        const auto [entry, first] = lanes[lane].ns.try_emplace({&layer, pass}, 0);
        entry->second += end_ns - begin_ns;
        if (first && std::ranges::find(lanes[lane].order, entry->first) == lanes[lane].order.end())
            lanes[lane].order.push_back(entry->first);
    }
};

double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2), values.end());
    return values[values.size() / 2];
}

/// One net, batch and precision.
struct Cell {
    std::string net;
    uint32_t batch;
    Precision precision;
    Isa isa;   // of the peak
};

/// A line of JSON, which is also what a table is printed from.  "peak_gflops" is null where the peak is unknown, for example of GPUs.
nlohmann::json head(const BenchOptions& options, const Cell& cell) {
    return {{"bench", options.command},
            {"version", version_text},
            {"net", cell.net},
            {"precision", precision_names()[static_cast<size_t>(cell.precision)]},
            {"batch", cell.batch},
            {"kernels", nullptr},
            {"threads", options.threads},
            {"peak_gflops", nullptr},
            {"repeat", options.repeat},
            {"rows", nlohmann::json::array()}};
}

void head_print(const nlohmann::json& report) {
    const auto threads = report["threads"].get<uint32_t>();
    fmt::print("# {}, {}, batch {}, {} thread{}, kernels {}{}; medians of {}\n", report["net"].get<std::string>(),
               report["precision"].get<std::string>(), report["batch"].get<uint32_t>(), threads, threads == 1 ? "" : "s",
               report["kernels"].get<std::string>(),
               report["peak_gflops"].is_null()
                   ? ""
                   : fmt::format("; peak {:.1f} GFLOP/s measured by multiply-adds alone", report["peak_gflops"].get<double>()),
               report["repeat"].get<uint32_t>());
}

/// Opens the rig of a cell and writes its kernels and the peak into the report.  *peak: 0 on a GPU.
Status open(const BenchOptions& options, const Cell& cell, uint32_t blocks, NetRig& rig, nlohmann::json* report, double* peak) {
    GC_TRY(rig.open(cell.net, cell.batch, blocks, options.threads, {cell.precision, options.device, options.deterministic}));
    if (!(*report)["kernels"].is_null()) return {};   // the kernels of smaller blocks may differ
    *peak = rig.on_gpu() ? 0 : peak_gflops(cell.isa, options.threads);
    if (*peak > 0) (*report)["peak_gflops"] = *peak;
    (*report)["kernels"] = rig.net().kernels();
    return {};
}

double step_flops(const Net& net, uint32_t batch) {
    std::vector<Layer> layers;
    if (!layers_check(net.spec(), &layers).ok()) return 0;   // checked before
    double sum = 0;
    for (const Layer& layer : layers)
        for (const Pass pass : {Pass::forward, Pass::backward_weights, Pass::backward_data})
            if (pass != Pass::backward_data || &layer != layers.data())
                sum += flops(layer, pass) * batch;   // the first layer has no such pass
    return sum;
}

/// Writes what it has measured into the report, also before an error.
Status layers_measure(const BenchOptions& options, const Cell& cell, nlohmann::json* report) {
    NetRig rig;
    double peak = 0;
    (*report)["blocks"] = options.blocks[0];
    GC_TRY(open(options, cell, options.blocks[0], rig, report, &peak));
    (*report)["engines"] = rig.net().engine_list();
    Times times;
    times.lanes.resize(options.threads);
    for (uint32_t step = 0; step < options.warmup; ++step) GC_TRY(rig.step());
    rig.net().trace(&times);
    std::map<std::pair<const Layer*, Pass>, std::vector<double>> found;
    std::vector<double> quantise, apply, whole;
    for (uint32_t step = 0; step < options.repeat; ++step) {
        for (Times::Lane& lane : times.lanes) lane.ns.clear();
        rig.quantise_ns.assign(options.threads, 0);
        rig.apply_ns = 0;
        const uint64_t begin_ns = clock_ns();
        GC_TRY(rig.step());
        whole.push_back(static_cast<double>(clock_ns() - begin_ns));
        uint64_t quantise_ns = 0;
        for (uint64_t ns : rig.quantise_ns) quantise_ns += ns;
        quantise.push_back(static_cast<double>(quantise_ns)), apply.push_back(static_cast<double>(rig.apply_ns));
        std::map<std::pair<const Layer*, Pass>, double> sums;
        for (const Times::Lane& lane : times.lanes)
            for (const auto& [key, ns] : lane.ns) sums[key] += static_cast<double>(ns);
        for (const auto& [key, ns] : sums) found[key].push_back(ns);
    }
    nlohmann::json& rows = (*report)["rows"];
    const double each = peak / options.threads;
    auto row = [&](const std::string& layer, const char* pass, double ns, double flop, double most) {
        nlohmann::json made{{"layer", layer},   {"pass", pass},      {"us", ns / 1e3},
                            {"gflop", nullptr}, {"gflops", nullptr}, {"percent_of_peak", nullptr}};
        if (flop > 0) {
            made["gflop"] = flop / 1e9;
            made["gflops"] = flop / ns;
        }
        if (flop > 0 && most > 0) made["percent_of_peak"] = 100 * flop / ns / most;
        rows.push_back(std::move(made));
    };
    // A late lane may find no block any more.
    for (const auto& key : std::ranges::max_element(times.lanes, {}, [](const Times::Lane& lane) { return lane.order.size(); })->order) {
        const auto [layer, pass] = key;
        row(layer->spec.name, pass_names[static_cast<size_t>(pass)], median(found[key]), flops(*layer, pass) * cell.batch, each);
    }
    row("", "quantise", median(quantise), 0, each);
    row("", "apply", median(apply), 0, each);
    row("", "whole step", median(whole), step_flops(rig.net(), cell.batch), peak);

    return {};
}

void layers_print(const nlohmann::json& report) {
    const auto blocks = report["blocks"].get<uint32_t>();
    fmt::print(
        "# {} block{}; a layer's time is that of all threads together, its share of one thread's peak; above 100% where\n"
        "# a kernel does with fewer multiplications than the formula has (Winograd's way, zeros left out), or with AMX\n",
        blocks, blocks == 1 ? "" : "s");
    const Column columns[] = {{"layer", "layer", 1, 0, 10}, {"pass", "pass", 1, 0, 16},     {"us", "time us", 1, 1, 9},
                              {"gflop", "GFLOP", 1, 4, 8},  {"gflops", "GFLOP/s", 1, 1, 8}, {"percent_of_peak", "% of peak", 1, 1, 9}};
    columns_print(columns);
    for (const auto& row : report["rows"]) row_print(columns, row);
}

Status step_measure(const BenchOptions& options, const Cell& cell, nlohmann::json* report) {
    double peak = 0;
    for (uint32_t blocks : options.blocks) {
        const bool judged = resident_peak_reset();
        const uint64_t before = resident_bytes();
        NetRig rig;
        GC_TRY(open(options, cell, blocks, rig, report, &peak));
        const bool at_once = rig.net().steps_ahead() > 1;
        std::vector<double> waited;
        for (uint32_t step = 0; step < options.warmup + options.repeat; ++step) {
            const uint64_t begin_ns = clock_ns();
            if (at_once) GC_TRY(rig.whole_begin());
            GC_TRY(at_once ? rig.whole_end() : rig.step());
            if (step >= options.warmup) waited.push_back(static_cast<double>(clock_ns() - begin_ns));
        }
        const double ns = median(waited), flop = step_flops(rig.net(), cell.batch);
        (*report)["rows"].push_back({{"blocks", blocks},
                                     {"median_us", ns / 1e3},
                                     {"images_per_s", cell.batch * 1e9 / ns},
                                     {"queued_images_per_s", nullptr},
                                     {"gflops", flop / ns},
                                     {"percent_of_peak", nullptr},
                                     {"memory_bytes", nullptr}});
        nlohmann::json& row = (*report)["rows"].back();
        if (judged && !rig.on_gpu()) row["memory_bytes"] = resident_peak_bytes() - before;
        if (peak > 0) row["percent_of_peak"] = 100 * flop / ns / peak;
        if (!at_once) continue;
        const uint64_t begin_ns = clock_ns();
        GC_TRY(rig.whole_begin());
        for (uint32_t step = 0; step < options.repeat; ++step) {   // the next one is begun before the host waits for this one
            if (step + 1 < options.repeat) GC_TRY(rig.whole_begin());
            GC_TRY(rig.whole_end());
        }
        row["queued_images_per_s"] = cell.batch * 1e9 * options.repeat / static_cast<double>(clock_ns() - begin_ns);
    }
    return {};
}

void step_print(const nlohmann::json& report) {
    const Column columns[] = {{"blocks", "blocks", 1, 0, 6},         {"median_us", "step us", 1, 1, 9},
                              {"images_per_s", "images/s", 1, 0, 9}, {"queued_images_per_s", "queued", 1, 0, 9},
                              {"gflops", "GFLOP/s", 1, 1, 8},        {"percent_of_peak", "% of peak", 1, 1, 9},
                              {"memory_bytes", "MiB", 0x1p20, 0, 7}};
    columns_print(columns);
    for (const auto& row : report["rows"]) row_print(columns, row);
}

}   // namespace

Status net_run(const BenchOptions& options) {
    const bool layers = options.command == "layers";
    Isa isa;
    GC_TRY(isa_parse(options.isa, &isa));
    GC_TRY(nn_isa(isa));
    const size_t all = options.batches.size() * options.nets.size() * options.precisions.size();
    Status first;         // error
    std::string newest;   // error
    size_t failed = 0;
    for (uint32_t batch : options.batches)
        for (const std::string& net : options.nets)
            for (Precision precision : options.precisions) {
                // float kernels use at most AVX-512
                const Cell cell{net, batch, precision, precision == Precision::f32 ? std::min(isa, Isa::avx512) : isa};
                nlohmann::json report = head(options, cell);
                const Status status = layers ? layers_measure(options, cell, &report) : step_measure(options, cell, &report);
                if (!status.ok()) report["error"] = status.what;
                if (options.json) fmt::print("{}\n", report.dump());
                else if (status.ok()) head_print(report), layers ? layers_print(report) : step_print(report);
                else if (all > 1) fmt::print("# {}, batch {}: {}\n", net, batch, status.what);
                std::fflush(stdout);
                if (!status.ok() && newest == status.what)
                    return fail(first.code, "{} (two times in a row: the rest is not measured)", status.what);
                newest = status.what;
                if (status.ok()) continue;
                if (first.ok()) first = status;
                ++failed;
            }
    if (all == 1 || first.ok()) return first;
    return fail(first.code, "{} of {} nets failed, the first: {}", failed, all, first.what);
}

}   // namespace gradcast
