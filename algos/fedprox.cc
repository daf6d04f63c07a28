// FedProx (Li et al., "Federated optimization in heterogeneous networks", 2020, equation 2): a worker stays near the parameters that it
// began from.
//
//     w_k <- local steps on  O_k(w) + (mu/2) ||w - w0||^2,  from w0
//     w0  <- w0 + (1/W) sum_k (N_k W / N) (w_k - w0)
//
// Messages: one sum of P values a round.  Keeps a copy of w0.  May go wrong: a large mu with a large learning rate overshoots (lr mu < 1).
#include "algos/averaging.h"

namespace gradcast {
namespace {

class FedProx final : public Averaging {
public:
    Status plan(const AlgorithmPlan& plan) override {
        mu_ = static_cast<float>(plan.settings.mu);
        return Averaging::plan(plan);
    }
    LocalTerm term(size_t) override { return {.pull = mu_, .centre = before().data()}; }
    double weight(const Local& local, uint32_t worker) override { return local.weight(worker); }

private:
    float mu_ = 0;
};

}   // namespace

std::unique_ptr<Algorithm> fedprox_create() { return std::make_unique<FedProx>(); }

}   // namespace gradcast
