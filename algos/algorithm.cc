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
std::unique_ptr<Algorithm> de_create();
std::unique_ptr<Algorithm> soup_create();
std::unique_ptr<Algorithm> serial_create();   // diloco.cc

namespace {
constexpr AlgorithmKind kinds[] = {
    {"ssgd", "synchronous SGD: all ranks apply the exact sum of all blocks, step by step", ssgd_create},
    {"ma", "model averaging, or local SGD: the mean of what workers have learnt alone", ma_create, true, 1, false, false, false,
     "workers local_steps local_epochs "},
    {"diloco", "local SGD whose mean difference is the gradient of an outer Nesterov optimiser", diloco_create, true, 1, false, false, true,
     "workers local_steps local_epochs outer_lr outer_momentum "},
    {"gd", "gradient descent: the exact gradient of all data", gd_create, true, 1, false, true, false, "workers "},
    {"oneshot", "workers learn alone for the whole job, and are averaged once", oneshot_create, true, 1, false, false, false,
     "workers fraction "},
    {"dane", "distributed approximate Newton: local problems corrected by the gradient of all data", dane_create, true, 2, false, true,
     false, "workers local_steps local_epochs mu eta anchor anchor_fraction "},
    {"fedprox", "model averaging with a pull of mu towards the parameters that all began from", fedprox_create, true, 1, false, false,
     false, "workers local_steps local_epochs mu "},
    {"admm", "consensus ADMM: workers keep their parameters and a multiplier", admm_create, true, 1, false, false, true,
     "workers local_steps local_epochs rho "},
    {"de", "differential evolution of the workers' models, chosen on validation samples", de_create, true, 1, true, false, false,
     "workers local_steps local_epochs validation adapt f cr crossover distribute "},
    {"soup", "the mean of those workers' models that do not lower its validation accuracy", soup_create, true, 0, true, false, false,
     "workers local_steps local_epochs validation "},
    {"serial", "one worker with all data: what the others are measured by", serial_create, true, 1, false, false, true,
     "local_steps local_epochs "},
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
