// Model averaging (McDonald, Hall, Mann, "Distributed training strategies for the structured perceptron", 2010; MA in the DE-DNN paper),
// with `local_steps` local SGD (Stich, "Local SGD converges fast and communicates little", 2019).  W workers, each with a part of the data:
//
//     w_k <- `local_steps` steps of the optimiser from w, whose state begins at zero
//     w   <- w + (1/W) sum_k (w_k - w)
//
// Messages: one sum of P values a round.  Keeps a copy of w.  May go wrong: with many local steps on unlike parts workers drift apart, and
// their mean is worse than each of them.
#include "algos/averaging.h"

namespace gradcast {

std::unique_ptr<Algorithm> ma_create() { return std::make_unique<Averaging>(); }

}   // namespace gradcast
