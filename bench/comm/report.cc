#include "bench/comm/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "runtime/core/version.h"

namespace gradcast {
namespace {

std::string rate_text(uint64_t rate) {
    return rate >= 1'000'000'000 ? fmt::format("{:g} Gbit/s", static_cast<double>(rate) / 1e9)
                                 : fmt::format("{:g} Mbit/s", static_cast<double>(rate) / 1e6);
}

std::string node_text(const nlohmann::json& node) {
    const std::string driver = node.value("driver", ""), offloads = node.value("offloads", "");
    return fmt::format("{} cores of {}, kernel {}, kernels {}; {}{}{}, MTU {}, offloads {}", node["cores"].get<int>(),
                       node["cpu"].get<std::string>(), node["kernel"].get<std::string>(), node["isa"].get<std::string>(),
                       node["interface"].get<std::string>(), driver.empty() ? "" : " (" + driver + ")",
                       node.contains("speed_mbit") ? fmt::format(", {} Mbit/s", node["speed_mbit"].get<uint64_t>()) : ", speed unknown",
                       node["mtu"].get<uint32_t>(), offloads.empty() ? "none" : offloads);
}

// Prints the figures in which the ranks differ, one line each.
void print_ranks(const nlohmann::json& ranks) {
    for (const auto& [key, first] : ranks[0].items()) {
        std::string text;
        double least = INFINITY, most = 0;
        for (const auto& rank : ranks) {
            const auto& value = rank[key];
            text += value.is_null() ? " -" : fmt::format(" {:.{}f}", value.get<double>(), key.ends_with("percent") ? 3 : 0);
            const double number = value.is_null() ? 0 : value.get<double>();
            least = std::min(least, number);
            most = std::max(most, number);
        }
        if (most > 1.01 * least) fmt::print("#   {} by rank:{}\n", key, text);
    }
}

}   // namespace

void columns_print(std::span<const Column> columns) {
    for (const Column& column : columns) fmt::print("{:>{}} ", column.title, column.width);
    fmt::print("\n");
}

void row_print(std::span<const Column> columns, const nlohmann::json& row) {
    for (const Column& column : columns) {
        const auto& value = row[column.key];
        const std::string text = value.is_null()     ? "-"
                                 : value.is_string() ? value.get<std::string>()
                                                     : fmt::format("{:.{}f}", value.get<double>() / column.scale, column.decimals);
        fmt::print("{:>{}} ", text, column.width);
    }
    fmt::print("\n");
    std::fflush(stdout);
}

void BenchReport::head() {
    if (begun_ || !bench_.first()) return;
    begun_ = true;
    const BenchOptions& options = bench_.options;
    const char* protects[] = {"none", "auth", "encrypt"};
    nlohmann::json settings{{"bench", options.command},
                            {"version", version_text},
                            {"nodes", bench_.rendezvous.ranks()},
                            {"protect", protects[static_cast<int>(options.protect)]},
                            {"repeat", options.repeat},
                            {"warmup", options.warmup},
                            {"rate_bits_per_s", bench_.rate},
                            {"bound", bench_.rate ? "link rate" : "plain TCP sockets"},
                            {"node", bench_.nodes},
                            {"rows", nlohmann::json::array()}};
    settings.update(report_);
    report_ = std::move(settings);
    if (options.json) return;
    fmt::print("# gradcast-bench {} {}: {}\n", version_text, options.command, title_);
    fmt::print("# {} nodes{}, protect {}, {} repetitions after {}, bound by {}\n", bench_.rendezvous.ranks(),
               bench_.alone ? " on this machine" : "", report_["protect"].get<std::string>(), options.repeat, options.warmup,
               bench_.rate ? "links of " + rate_text(bench_.rate) : "plain TCP sockets round the same ring in this run");
    for (size_t rank = 0; rank < bench_.nodes.size(); ++rank) {   // groups equal nodes
        const std::string text = node_text(bench_.nodes[rank]);
        if (rank > 0 && text == node_text(bench_.nodes[rank - 1])) continue;
        size_t last = rank;
        while (last + 1 < bench_.nodes.size() && text == node_text(bench_.nodes[last + 1])) ++last;
        fmt::print("# {}: {}\n", last == rank ? fmt::format("rank {}", rank) : fmt::format("ranks {}-{}", rank, last), text);
    }
    columns_print(columns_);
}

void BenchReport::row(nlohmann::json row) {
    head();
    if (!bench_.first()) return;
    if (!bench_.options.json) {
        if (row["link"] != link_) {
            link_ = row["link"];
            fmt::print("# by {}\n", link_);
        }
        row_print(columns_, row);
        if (row.contains("ranks")) print_ranks(row["ranks"]);
    }
    report_["rows"].push_back(std::move(row));
}

void BenchReport::note(const char* key, nlohmann::json value, const std::string& text) {
    head();
    if (!bench_.first()) return;
    report_[key].push_back(std::move(value));
    if (!bench_.options.json) fmt::print("# {}\n", text);
}

void BenchReport::close(bool exact, const char* right, const char* wrong) {
    head();
    if (!bench_.first()) return;
    report_["exact"] = exact;
    if (bench_.options.json) fmt::print("{}\n", report_.dump(2));
    else fmt::print("# {}\n", exact ? right : wrong);
    std::fflush(stdout);
}

}   // namespace gradcast
