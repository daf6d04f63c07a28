// A training algorithm as straight-line code, the same in the daemon and in the simulator.  Each has a file of its own and a row in the
// table of algorithm.cc.
#pragma once
#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "algos/context.h"
#include "algos/replay.h"

namespace gradcast {

struct AlgorithmPlan {
    const AlgorithmSettings& settings;
    const Net& net;
    uint32_t workers;                        // of the job
    std::span<const uint32_t> own_workers;   // of this node in its first view
    bool checkpoints;                        // the job writes some
    uint64_t state_size;                     // of the optimiser
    uint64_t scales;                         // of the codec
    OptimiserConfig optimiser;
    const Local* local;         // null without workers
    uint64_t updates, rounds;   // of a server in a round; of the job
    uint32_t servers;           // that share the parameters
    std::string folder;         // the job's at this node
    const Facts& job;           // that its result depends on, beside the kernels and the parameters that it begins with
    Arena& arena;
};

struct Algorithm {
    virtual ~Algorithm() = default;
    /// Plans all memory of its rounds, before the first one.
    virtual Status plan(const AlgorithmPlan& plan) { return (void)plan, Status{}; }
    /// One round (a step for ssgd).  Trainer thread.  Errors: peer_lost, cancelled, deadline, diverged, conflict; the parameters are then
    /// as before the round.
    virtual Status round(Context& context) = 0;
    /// Between rounds: what the next round needs besides parameters, optimiser state and scales, for checkpoints.  Input of restore().
    virtual std::span<const std::byte> state() { return {}; }
    /// After a round of a net in stages that ended before this rank had applied it: applies the sums.  Memory of the session in which the
    /// round began still exists.  factor: Context::factor_of() that step, of a rank that has applied it.  Nothing: this rank finds it from
    /// the reports that have come.  Returns false, and applies nothing, if this rank has not reported that it holds the sums, or if it
    /// cannot find the factor.
    virtual bool finish(Context& context, std::optional<double> factor, Status* status) {
        return (void)context, (void)factor, (void)status, false;
    }
    /// At all ranks, between the same rounds: state() is whole at this rank, that of other ranks' workers included.  Errors: as round().
    virtual Status gather(Context& context) { return (void)context, Status{}; }
    /// Before the first round.  Error: the state is not one of this algorithm.
    virtual Status restore(std::span<const std::byte> state) {
        return state.empty() ? Status{} : fail(Code::data, "the state of the algorithm has {} bytes instead of none", state.size());
    }
};

struct AlgorithmKind {
    const char* name;
    const char* summary;
    std::unique_ptr<Algorithm> (*create)();
    bool workers = false;         // learns by logical workers: a block of the exchange is a worker (algos/worker_sum.h)
    uint32_t sums = 1;            // steps of the exchange in a round; where it gathers, beside one for each worker
    bool gathers = false;         // all workers' vectors come to all ranks, and validation samples are kept apart
    bool passes = false;          // workers also compute the gradient of their whole part
    bool private_state = false;   // workers have state of their own, which is lost with a node: no other view
    bool server = false;          // the first ranks have the parameters, and workers are on the others
    std::unique_ptr<Algorithm> (*exact)() = nullptr;   // with solver = "exact"
    std::span<const std::string_view> keys = {};       // keys of [algorithm] that this algorithm accepts beside the common ones
    bool has(std::string_view key) const { return std::ranges::find(keys, key) != keys.end(); }
    /// It sums over the exchange; others send by mail, or what is for all ranks by multicast (Mailbox::broadcast).
    bool exchanges() const { return sums > 0 || gathers; }
    /// It sends by that exchange: the others multicast what their server has for all.
    bool sends_by(std::string_view exchange) const { return exchanges() || exchange == "multicast"; }
};
std::span<const AlgorithmKind> algorithm_kinds();
/// Returns whether results depend on the order in which messages come, so that a repeated round may give other bits; without a replay log.
inline bool follows_clock(const AlgorithmKind& kind, const AlgorithmSettings& settings) {
    return (kind.server || settings.allocation == "bsda") && settings.replay.empty();
}
Status algorithm_find(std::string_view name, const AlgorithmKind** kind);

}   // namespace gradcast
