#include "runtime/core/digest.h"

namespace gradcast {
namespace GC_ISA {

extern const Digest64 digest64;
const Digest64 digest64 = [](const uint32_t* words, uint64_t count, uint64_t first) {
    uint64_t sum = 0;
    for (uint64_t i = 0; i < count; ++i) sum += (splitmix64(first + i) | 1) * words[i];
    return sum;
};

}   // namespace GC_ISA
}   // namespace gradcast
