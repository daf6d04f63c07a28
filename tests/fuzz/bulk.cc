// A member's lies into transport/bulk: bodies, reports, parity and numbers of its own making.
#include "tests/bulk/forged.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    gradcast::Forged({data, size}).run();
    return 0;
}
