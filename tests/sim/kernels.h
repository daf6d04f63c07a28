// Kernels that the ranks and jobs of a test program have measured: each net is measured once.
#pragma once
#include "runtime/job/run/kernels_memo.h"

namespace gradcast {

inline KernelsMemo kernels_memo;

}   // namespace gradcast
