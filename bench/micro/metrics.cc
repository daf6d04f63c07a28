// What the metrics of a job cost: one update, all updates of a step as runtime/job/report/report.cc makes them, what a reader of them does,
// and a step's record of an event file (`tensorboard`).
#include "runtime/core/metrics.h"

#include <benchmark/benchmark.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "runtime/job/report/event_file.h"
#include "runtime/job/report/step_times.h"

namespace gradcast {
namespace {

struct Planned {
    Metrics metrics;
    Planned() {
        metrics.plan(Metric::phase_time, std::vector<std::string>(step_phases, "phase"));
        metrics.plan(Metric::peer_wait, std::vector<std::string>(64, "peer"));
    }
};

void add(benchmark::State& state) {
    static Planned planned;   // of all threads
    for (auto _ : state) planned.metrics.add(Metric::samples, 128);
}
void observe(benchmark::State& state) {
    static Planned planned;
    uint64_t us = 0;
    for (auto _ : state) planned.metrics.observe(Metric::phase_time, us = (us + 977) & 0xffff, 1);
}

/// The shortest steps that are trained take a millisecond: 1m is 0.1%.
void share(benchmark::State& state) {
    state.counters["share_of_1ms"] =
        benchmark::Counter(static_cast<double>(state.iterations()) * 1e-3, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void step(benchmark::State& state) {
    Planned planned;
    Metrics& metrics = planned.metrics;
    uint64_t us = 0;
    constexpr Metric bulk[] = {Metric::datagrams, Metric::retransmissions, Metric::losses, Metric::repaired, Metric::duplicates};
    for (auto _ : state) {
        us = (us + 977) & 0xffff;
        metrics.add(Metric::steps, 1);
        metrics.add(Metric::samples, 128);
        metrics.add(Metric::clipped, 1);
        metrics.observe(Metric::step_time, us);
        for (size_t i = 0; i < step_phases; ++i) metrics.observe(Metric::phase_time, us + i, i);
        metrics.add(Metric::peer_wait, us, us & 63);
        for (Metric each : bulk) metrics.add(each, 1);
    }
    share(state);
}

void read(benchmark::State& state) {
    Planned planned;
    for (auto _ : state) benchmark::DoNotOptimize(planned.metrics.read());
}

/// At the trainer's thread; another one writes.
void event_file(benchmark::State& state) {
    std::string folder = (std::filesystem::temp_directory_path() / "gc-events-XXXXXX").string();
    EventFile events;
    if (!::mkdtemp(folder.data()) || !events.open(folder, "node", 1.8e9, true, Log()).ok())
        return state.SkipWithError("cannot write a file");
    uint64_t steps = 0;
    for (auto _ : state) {
        const double value = static_cast<double>(++steps);
        const Scalar scalars[] = {{"train/loss", 1 / value},
                                  {"speed/samples_per_second", value},
                                  {"network/bytes_sent", value},
                                  {"network/bytes_received", value},
                                  {"network/wait_seconds", value}};
        events.scalars(1.8e9 + value, steps, scalars);
    }
    share(state);
    events.close();
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
}

const bool registered = [] {
    benchmark::RegisterBenchmark("metrics/add", add)->Threads(1)->Threads(2);
    benchmark::RegisterBenchmark("metrics/observe", observe)->Threads(1)->Threads(2);
    benchmark::RegisterBenchmark("metrics/step", step);
    benchmark::RegisterBenchmark("metrics/read", read);
    benchmark::RegisterBenchmark("event_file/step", event_file)->Iterations(20'000);
    return true;
}();

}   // namespace
}   // namespace gradcast
