#include "bench/net/net.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "bench/comm/report.h"
#include "bench/net/rig.h"
#include "nn/layers.h"
#include "runtime/core/version.h"

namespace gradcast {
namespace {

/// Multiply-adds of a layer's pass over one sample; each counts as two operations.
double flops(const Layer& layer) {
    if (layer.kind != Kind::conv && layer.kind != Kind::inner_product) return 0;
    return 2.0 * static_cast<double>(layer.weights) * layer.out.H * layer.out.W;
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

Status begin(const Options& options, Isa* isa) {
    GC_TRY(isa_parse(options.isa, isa));
    GC_TRY(nn_isa(*isa));
    if (options.precision == Precision::f32) *isa = std::min(*isa, Isa::avx512);   // float kernels use at most AVX-512
    return {};
}

/// peak 0: unknown, for example of GPUs.
nlohmann::json head(const Options& options, const std::string& kernels, double peak) {
    nlohmann::json report{{"bench", options.command},   {"version", version_text},
                          {"net", options.net},         {"precision", precision_names()[static_cast<size_t>(options.precision)]},
                          {"batch", options.batch},     {"kernels", kernels},
                          {"threads", options.threads}, {"peak_gflops", nullptr},
                          {"repeat", options.repeat}};
    if (peak > 0) report["peak_gflops"] = peak;
    return report;
}

void head_print(const Options& options, const std::string& kernels, double peak) {
    fmt::print("# {}, batch {}, {} thread{}, kernels {}{}; medians of {}\n", options.net, options.batch, options.threads,
               options.threads == 1 ? "" : "s", kernels,
               peak > 0 ? fmt::format("; peak {:.1f} GFLOP/s measured by multiply-adds alone", peak) : "", options.repeat);
}

/// Peak at that instruction set; 0 on a GPU.
double peak_of(const Options& options, Isa isa, NetRig& rig) { return rig.on_gpu() ? 0 : peak_gflops(isa, options.threads); }

NetHow how(const Options& options) { return {options.precision, options.device, options.deterministic}; }

double step_flops(const Net& net, uint32_t batch) {
    std::vector<Layer> layers;
    if (!layers_check(net.spec(), &layers).ok()) return 0;   // checked before
    double sum = 0;
    for (const Layer& layer : layers)
        sum += flops(layer) * batch * (&layer == layers.data() ? 2 : 3);   // the first layer has no backward data pass
    return sum;
}

}   // namespace

Status layers_run(const Options& options) {
    Isa isa;
    GC_TRY(begin(options, &isa));
    NetRig rig;
    GC_TRY(rig.open(options.net, options.batch, options.blocks[0], options.threads, how(options)));
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
    const double peak = peak_of(options, isa, rig);
    const std::string kernels = rig.net().kernels();
    const double each = peak / options.threads;

    nlohmann::json rows = nlohmann::json::array();
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
    // A late lane may find no block left.
    for (const auto& key : std::ranges::max_element(times.lanes, {}, [](const Times::Lane& lane) { return lane.order.size(); })->order) {
        const auto [layer, pass] = key;
        row(layer->spec.name, pass_names[static_cast<size_t>(pass)], median(found[key]),
            pass == Pass::input ? 0 : flops(*layer) * options.batch, each);
    }
    row("", "quantise", median(quantise), 0, each);
    row("", "apply", median(apply), 0, each);
    row("", "whole step", median(whole), step_flops(rig.net(), options.batch), peak);

    if (options.json) {
        nlohmann::json report = head(options, kernels, peak);
        report["blocks"] = options.blocks[0];
        report["rows"] = rows;
        fmt::print("{}\n", report.dump());
        return {};
    }
    head_print(options, kernels, peak);
    fmt::print(
        "# {} block{}; a layer's time is that of all threads together, its share of one thread's peak; above 100% where\n"
        "# a kernel does with fewer multiplications than the formula has (Winograd's way, zeros left out), or with AMX\n",
        options.blocks[0], options.blocks[0] == 1 ? "" : "s");
    const Column columns[] = {{"layer", "layer", 1, 0, 10}, {"pass", "pass", 1, 0, 16},     {"us", "time us", 1, 1, 9},
                              {"gflop", "GFLOP", 1, 4, 8},  {"gflops", "GFLOP/s", 1, 1, 8}, {"percent_of_peak", "% of peak", 1, 1, 9}};
    columns_print(columns);
    for (const auto& each_row : rows) row_print(columns, each_row);
    return {};
}

Status step_run(const Options& options) {
    Isa isa;
    GC_TRY(begin(options, &isa));
    double peak = 0;
    std::string kernels;
    nlohmann::json rows = nlohmann::json::array();
    for (uint32_t blocks : options.blocks) {
        NetRig rig;
        GC_TRY(rig.open(options.net, options.batch, blocks, options.threads, how(options)));
        peak = peak_of(options, isa, rig);
        if (kernels.empty()) kernels = rig.net().kernels();   // the kernels of small blocks may differ
        std::vector<double> whole;
        for (uint32_t step = 0; step < options.warmup + options.repeat; ++step) {
            const uint64_t begin_ns = clock_ns();
            GC_TRY(rig.step());
            if (step >= options.warmup) whole.push_back(static_cast<double>(clock_ns() - begin_ns));
        }
        const double ns = median(whole), flop = step_flops(rig.net(), options.batch);
        rows.push_back({{"blocks", blocks},
                        {"median_us", ns / 1e3},
                        {"images_per_s", options.batch * 1e9 / ns},
                        {"gflops", flop / ns},
                        {"percent_of_peak", nullptr}});
        if (peak > 0) rows.back()["percent_of_peak"] = 100 * flop / ns / peak;
    }
    if (options.json) {
        nlohmann::json report = head(options, kernels, peak);
        report["rows"] = rows;
        fmt::print("{}\n", report.dump());
        return {};
    }
    head_print(options, kernels, peak);
    const Column columns[] = {{"blocks", "blocks", 1, 0, 6},
                              {"median_us", "step us", 1, 1, 9},
                              {"images_per_s", "images/s", 1, 0, 9},
                              {"gflops", "GFLOP/s", 1, 1, 8},
                              {"percent_of_peak", "% of peak", 1, 1, 9}};
    columns_print(columns);
    for (const auto& row : rows) row_print(columns, row);
    return {};
}

}   // namespace gradcast
