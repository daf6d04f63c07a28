#include "algos/algorithm.h"

#include <string>

namespace gradcast {

// Each in the file of its name.
std::unique_ptr<Algorithm> ssgd_create();
std::unique_ptr<Algorithm> ma_create();
std::unique_ptr<Algorithm> diloco_create();
std::unique_ptr<Algorithm> gd_create();
std::unique_ptr<Algorithm> oneshot_create();
std::unique_ptr<Algorithm> dane_create();
std::unique_ptr<Algorithm> fedprox_create();
std::unique_ptr<Algorithm> admm_create();
std::unique_ptr<Algorithm> exact_dane_create();   // ridge.cc
std::unique_ptr<Algorithm> exact_admm_create();
std::unique_ptr<Algorithm> asgd_create();
std::unique_ptr<Algorithm> softsync_create();   // asgd.cc
std::unique_ptr<Algorithm> de_create();
std::unique_ptr<Algorithm> soup_create();
std::unique_ptr<Algorithm> rg_create();
std::unique_ptr<Algorithm> serial_create();

namespace {
constexpr AlgorithmKind kinds[] = {
    {.name = "ssgd", .summary = "synchronous SGD: all ranks apply the exact sum of all blocks, step by step", .create = ssgd_create},
    {.name = "ma",
     .summary = "model averaging, or local SGD: the mean of what workers have learnt alone",
     .create = ma_create,
     .workers = true,
     .keys = ma_keys},
    {.name = "diloco",
     .summary = "local SGD whose mean difference is the gradient of an outer Nesterov optimiser",
     .create = diloco_create,
     .workers = true,
     .private_state = true,
     .keys = diloco_keys},
    {.name = "gd",
     .summary = "gradient descent: the exact gradient of all data",
     .create = gd_create,
     .workers = true,
     .passes = true,
     .keys = gd_keys},
    {.name = "oneshot",
     .summary = "workers learn alone for the whole job, and are averaged once",
     .create = oneshot_create,
     .workers = true,
     .keys = oneshot_keys},
    {.name = "dane",
     .summary = "distributed approximate Newton: local problems corrected by the gradient of all data",
     .create = dane_create,
     .workers = true,
     .sums = 2,
     .passes = true,
     .exact = exact_dane_create,
     .keys = dane_keys},
    {.name = "fedprox",
     .summary = "model averaging with a pull of mu towards the parameters that all began from",
     .create = fedprox_create,
     .workers = true,
     .keys = fedprox_keys},
    {.name = "admm",
     .summary = "consensus ADMM: workers keep their parameters and a multiplier",
     .create = admm_create,
     .workers = true,
     .private_state = true,
     .exact = exact_admm_create,
     .keys = admm_keys},
    {.name = "de",
     .summary = "differential evolution of the workers' models, chosen on validation samples",
     .create = de_create,
     .workers = true,
     .gathers = true,
     .keys = de_keys},
    {.name = "soup",
     .summary = "the mean of those workers' models that do not lower its validation accuracy",
     .create = soup_create,
     .workers = true,
     .sums = 0,
     .gathers = true,
     .keys = soup_keys},
    {.name = "rg",
     .summary = "the workers' models, weighted by a regression of the validation samples on their outputs",
     .create = rg_create,
     .workers = true,
     .sums = 0,
     .gathers = true,
     .keys = rg_keys},
    {.name = "serial",
     .summary = "one worker with all data: what the others are measured by",
     .create = serial_create,
     .workers = true,
     .sums = 0,
     .keys = serial_keys},
    {.name = "asgd",
     .summary = "asynchronous SGD: a server applies each gradient as it comes",
     .create = asgd_create,
     .workers = true,
     .sums = 0,
     .server = true,
     .keys = asgd_keys},
    {.name = "softsync",
     .summary = "soft synchronisation: a server applies the mean of some gradients",
     .create = softsync_create,
     .workers = true,
     .sums = 0,
     .server = true,
     .keys = softsync_keys},
};
}   // namespace

std::span<const AlgorithmKind> algorithm_kinds() { return kinds; }

Status algorithm_find(std::string_view name, const AlgorithmKind** kind) {
    std::string names;
    for (const AlgorithmKind& each : kinds) {
        if (name == each.name) {
            *kind = &each;
            return {};
        }
        names += (names.empty() ? "" : ", ") + std::string(each.name);
    }
    return fail(Code::invalid, "there is no algorithm \"{}\": {}", name, names);
}

}   // namespace gradcast
