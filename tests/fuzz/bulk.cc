// A member's lies into transport/bulk: bodies, reports, parity and numbers of its own making.
#include "tests/bulk/forged.h"
#include "tests/fuzz/reached.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    gradcast::Forged forged({data, size});
    forged.run();
    gradcast::fuzz_reaches(0, forged.given > 0);
    gradcast::fuzz_reaches(1, forged.counters().repairs_sent > 0);
    gradcast::fuzz_reaches(2, forged.counters().repaired > 0);
    return 0;
}
