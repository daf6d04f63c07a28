#include "runtime/core/metrics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace gradcast {
namespace {
constexpr uint64_t unknown = std::bit_cast<uint64_t>(std::numeric_limits<double>::quiet_NaN());   // of a gauge that was not set
}

uint64_t MetricSample::count() const {
    uint64_t sum = 0;
    for (const uint64_t each : counts) sum += each;
    return sum;
}

double MetricSample::quantile(double share) const {
    const double wanted = share * static_cast<double>(count());
    double so_far = 0;
    for (size_t bucket = 0; bucket < counts.size(); ++bucket) {
        so_far += static_cast<double>(counts[bucket]);
        if (so_far > 0 && so_far >= wanted) return static_cast<double>(histogram_bound_us(bucket)) * 1e-6;
    }
    return 0;
}

Metrics::Metrics() {
    for (const MetricRow& row : metric_rows)
        if (!*row.label) plan(row.id, {""});
}

void Metrics::plan(Metric metric, std::vector<std::string> labels) {
    Values& values = values_[static_cast<size_t>(metric)];
    const size_t cells = cells_of(metric);
    Values made{std::move(labels), nullptr};
    made.cells = std::make_unique<std::atomic<uint64_t>[]>(made.labels.size() * cells);
    for (size_t i = 0; i < made.labels.size(); ++i) {
        const auto before = std::find(values.labels.begin(), values.labels.end(), made.labels[i]);
        for (size_t cell = 0; cell < cells; ++cell) {
            uint64_t value = metric_row(metric).kind == MetricKind::gauge ? unknown : 0;
            if (before != values.labels.end())
                value = values.cells[static_cast<size_t>(before - values.labels.begin()) * cells + cell].load(std::memory_order_relaxed);
            made.cells[i * cells + cell].store(value, std::memory_order_relaxed);
        }
    }
    values = std::move(made);
}

void Metrics::gauge(Metric metric, double now, size_t label) { set(metric, std::bit_cast<uint64_t>(now), label); }

void Metrics::observe(Metric metric, uint64_t us, size_t label) {
    std::atomic<uint64_t>* cells = at(metric, label);
    if (!cells) return;
    const size_t bucket = us <= 64 ? 0 : std::min<size_t>(std::bit_width((us - 1) >> 6), histogram_buckets - 1);
    cells[0].fetch_add(us, std::memory_order_relaxed);
    cells[1 + bucket].fetch_add(1, std::memory_order_relaxed);
}

std::vector<MetricSample> Metrics::read() const {
    std::vector<MetricSample> samples;
    for (const MetricRow& row : metric_rows) {
        const Values& values = values_[static_cast<size_t>(row.id)];
        const size_t cells = cells_of(row.id);
        const double scale = row.unit == MetricUnit::seconds && row.kind != MetricKind::gauge ? 1e-6 : 1;
        for (size_t label = 0; label < values.labels.size(); ++label) {
            const std::atomic<uint64_t>* at = &values.cells[label * cells];
            const uint64_t first = at->load(std::memory_order_relaxed);
            MetricSample sample{row.id, values.labels[label], 0, {}};
            sample.value = row.kind == MetricKind::gauge ? std::bit_cast<double>(first) : static_cast<double>(first) * scale;
            for (size_t bucket = 0; bucket + 1 < cells; ++bucket) sample.counts[bucket] = at[1 + bucket].load(std::memory_order_relaxed);
            if (std::isfinite(sample.value)) samples.push_back(std::move(sample));
        }
    }
    return samples;
}

}   // namespace gradcast
