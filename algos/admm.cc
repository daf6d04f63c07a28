// Consensus ADMM (Boyd et al., "Distributed optimization and statistical learning via the alternating direction method of multipliers",
// 2011, section 7.1, scaled form), inexact for networks.  z: the net's parameters.  z = w_k = the initial parameters and u_k = 0 at first.
//
//     w_k <- local steps on  O_k(w) + (rho/2) ||w - z + u_k||^2,  from w_k
//     z   <- z + mean of (w_k + u_k - z), weighted by samples
//     u_k <- u_k + w_k - z
//
// Messages: one sum of P values a round, and where there is a checkpoint w_k and u_k of the own workers to all others.  Keeps a copy of z,
// and w_k and u_k of each own worker (with checkpoints of each worker).  May go wrong: where local steps are few for the rho, u_k grows
// before w_k follows, and z swings.
#include "algos/averaging.h"

namespace gradcast {
namespace {

class Admm final : public Averaging {
public:
    Status plan(const AlgorithmPlan& plan) override {
        rho_ = static_cast<float>(plan.settings.rho);
        elements_ = plan.net.layout().elements;
        own_ = plan.own_workers.size();
        states().plan("workers' parameters and multipliers", plan, 2 * elements_ * sizeof(float));
        plan.arena.plan("centre of a worker", elements_ * sizeof(float), &centre_);
        return Averaging::plan(plan);
    }

private:
    std::span<float> w(size_t own) { return states().of<float>(own).first(elements_); }
    std::span<float> u(size_t own) { return states().of<float>(own).last(elements_); }

    Status begin(Context&) override {
        for (size_t i = 0; i < own_ && !begun_ && !restored(); ++i) std::ranges::copy(before(), w(i).begin());
        begun_ = true;
        return {};
    }
    std::span<const float> start(size_t own) override { return w(own); }
    LocalTerm term(size_t own) override {
        const std::span<float> centre = floats(centre_), multiplier = u(own);
        for (size_t i = 0; i < centre.size(); ++i) centre[i] = before()[i] - multiplier[i];
        return {.pull = rho_, .centre = centre.data()};
    }
    Status contribute(Context& context, size_t own, std::span<float> difference) override {
        std::ranges::copy(context.net->parameters(), w(own).begin());
        for (size_t i = 0; i < difference.size(); ++i) difference[i] = w(own)[i] + u(own)[i] - before()[i];
        return {};
    }
    void applied(Context& context) override {
        const std::span<const float> z = context.net->parameters();
        for (size_t own = 0; own < own_; ++own) {
            const std::span<float> multiplier = u(own), mine = w(own);
            for (size_t i = 0; i < z.size(); ++i) multiplier[i] += mine[i] - z[i];
            for (const Group& group : statistics()) {   // of batch norm; they are the workers' mean
                std::ranges::fill(multiplier.subspan(group.offset, group.count), 0.0f);
                std::ranges::copy(z.subspan(group.offset, group.count), mine.begin() + static_cast<ptrdiff_t>(group.offset));
            }
        }
    }
    double weight(const Local& local, uint32_t worker) override { return local.weight(worker); }

    float rho_ = 1;
    uint64_t elements_ = 0, own_ = 0;
    bool begun_ = false;
    Buffer centre_;
};

}   // namespace

std::unique_ptr<Algorithm> admm_create() { return std::make_unique<Admm>(); }

}   // namespace gradcast
