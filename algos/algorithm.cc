#include "algos/algorithm.h"

#include <string>

namespace gradcast {

std::unique_ptr<Algorithm> ssgd_create();   // ssgd.cc

namespace {
constexpr AlgorithmKind kinds[] = {
    {"ssgd", "synchronous SGD: all ranks apply the exact sum of all blocks, step by step", ssgd_create},
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
