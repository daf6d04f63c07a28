// What section [algorithm] of a job file says beside kind, exchange and quantiser, and which algorithms take it.  Ranges and defaults of
// the keys: runtime/job/file/job_options.cc.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace gradcast {

struct AlgorithmSettings {
    uint32_t workers = 0;       // logical workers; 0: one a node
    uint32_t local_steps = 0;   // of a worker in a round; 0: local_epochs
    double local_epochs = 1;    // passes over a worker's own part of the data in a round
    double outer_lr = 0.7, outer_momentum = 0.9;
    double fraction = 0;   // of a worker's part, for the correction of the bias
    double mu = 0.1, eta = 1, rho = 1;
    std::string anchor = "full";             // dane: the gradient over a worker's part, or "batch": over as many samples as a mini-batch
    double anchor_fraction = 1;              // of its part
    std::string solver = "sgd";              // dane, admm: of local problems, or "exact" for the nets ridge and logistic
    std::string stream = "parts";            // asgd, softsync: where mini-batches are from: workers' parts, or "whole": those of ssgd
    uint32_t updates = 0;                    // asgd, softsync: pushes in a round; 0: those of one pass over the data
    std::string lambda = "none";             // how staleness scales a gradient: "inverse", "exp"
    double beta = 0.9;                       // of "exp"
    uint32_t max_staleness = 0;              // pushes that a worker may be ahead of the slowest; 0: any
    uint32_t collect = 0;                    // softsync: pushes in an update; 0: as many as workers
    std::string pull = "wait";               // softsync: "now"
    std::string replay;                      // path of the order of pushes to repeat; empty: as they come
    uint32_t validation = 5000;              // samples to choose by, apart from those that are trained on
    double shrink = 1e-3;                    // rg: pull of the models' weights towards equal ones
    bool evaluate_workers = false;           // what each has learnt is tried on the test data (Context::try_worker)
    std::string allocation = "parts";        // ma, de, soup, rg: what a worker trains on: "eda", "bsda" (algos/allocation.h)
    uint32_t allocation_batches = 10;        // that an epoch is cut in, a round each
    bool adapt = true;                       // de: control parameters adapt themselves
    double f = 0.5, cr = 0.9;                // de: those of the first round, or of all
    std::string crossover = "parameter";     // de: what a gene is, or "layer"
    std::string distribute = "population";   // de: what goes back to the workers, or "best"
};

// AlgorithmKind::keys of each algorithm.
inline constexpr std::string_view ma_keys[] = {"workers",    "local_steps",        "local_epochs", "evaluate_workers",
                                               "allocation", "allocation_batches", "replay"};
inline constexpr std::string_view diloco_keys[] = {"workers",          "local_steps", "local_epochs",
                                                   "evaluate_workers", "outer_lr",    "outer_momentum"};
inline constexpr std::string_view gd_keys[] = {"workers"};
inline constexpr std::string_view oneshot_keys[] = {"workers", "fraction"};
inline constexpr std::string_view dane_keys[] = {"workers", "local_steps", "local_epochs",    "mu",
                                                 "eta",     "anchor",      "anchor_fraction", "solver"};
inline constexpr std::string_view fedprox_keys[] = {"workers", "local_steps", "local_epochs", "evaluate_workers", "mu"};
inline constexpr std::string_view admm_keys[] = {"workers", "local_steps", "local_epochs", "rho", "solver"};
inline constexpr std::string_view de_keys[] = {
    "workers", "local_steps", "local_epochs", "evaluate_workers", "allocation", "allocation_batches", "replay", "validation",
    "adapt",   "f",           "cr",           "crossover",        "distribute"};
inline constexpr std::string_view soup_keys[] = {"workers",    "local_steps",        "local_epochs", "evaluate_workers",
                                                 "allocation", "allocation_batches", "replay",       "validation"};
inline constexpr std::string_view rg_keys[] = {
    "workers", "local_steps", "local_epochs", "evaluate_workers", "allocation", "allocation_batches", "replay", "validation", "shrink"};
inline constexpr std::string_view serial_keys[] = {"local_steps", "local_epochs"};
inline constexpr std::string_view asgd_keys[] = {"workers", "local_steps", "stream",        "updates",
                                                 "lambda",  "beta",        "max_staleness", "replay"};
inline constexpr std::string_view softsync_keys[] = {"workers", "local_steps",   "stream", "updates", "lambda",
                                                     "beta",    "max_staleness", "replay", "collect", "pull"};

}   // namespace gradcast
