// One block forward and backward (blocks of 16 are those of a batch of 128 in 8 blocks), the whole step, and the part after the exchange.
#include <benchmark/benchmark.h>

#include "bench/net/rig.h"

namespace gradcast {
namespace {

/// Runs `each`, which processes `count` items and may fail.
template <typename Each>
void measure(benchmark::State& state, const char* preset, uint32_t batch, uint32_t blocks, const char* name, Each each) {
    NetRig rig;
    if (Status status = rig.open(preset, batch, blocks, 1); !status.ok()) return state.SkipWithError(status.what);
    if (Status status = rig.step(); !status.ok()) return state.SkipWithError(status.what);
    while (state.KeepRunning())
        if (Status status = each(rig); !status.ok()) return state.SkipWithError(status.what);
    const double count = name[0] == 'p' ? static_cast<double>(rig.net().layout().elements) : batch;
    state.counters[name] = benchmark::Counter(static_cast<double>(state.iterations()) * count, benchmark::Counter::kIsRate);
}

void net_block(benchmark::State& state, const char* preset) {
    measure(state, preset, static_cast<uint32_t>(state.range(0)), 1, "images/s", [](NetRig& rig) { return rig.block(0); });
}
BENCHMARK_CAPTURE(net_block, lenet5, "lenet5")->Arg(16)->Arg(100);
BENCHMARK_CAPTURE(net_block, mlp, "mlp")->Arg(16)->Arg(100);

void net_step(benchmark::State& state, const char* preset) {
    measure(state, preset, 128, 8, "images/s", [](NetRig& rig) { return rig.step(); });
}
BENCHMARK_CAPTURE(net_step, lenet5, "lenet5");
BENCHMARK_CAPTURE(net_step, mlp, "mlp");

void net_apply(benchmark::State& state, const char* preset) {
    measure(state, preset, 128, 8, "parameters/s", [](NetRig& rig) { return rig.apply(); });
}
BENCHMARK_CAPTURE(net_apply, lenet5, "lenet5");
BENCHMARK_CAPTURE(net_apply, mlp, "mlp");

}   // namespace
}   // namespace gradcast
