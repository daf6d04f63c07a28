// SGD with momentum: v <- momentum v + (g + weight_decay w);  w <- w - lr v.  (Sutskever et al. 2013 as PyTorch writes it; so is
// Nesterov's.)
#pragma once

namespace gradcast {

struct SgdStep {   // the order of StepRates
    float lr, momentum, weight_decay, nesterov;
    float unused[4];
};

}   // namespace gradcast
