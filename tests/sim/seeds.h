// Seeds of the simulation suites.  GC_SEED=N runs one seed, GC_SEEDS=N that many; a failing seed prints the command that replays it.
#pragma once
#include <errno.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string>

namespace gradcast {

/// Calls test(seed) for `count` seeds, or as the environment says, until one fails.
template <typename Test>
void for_seeds(uint64_t count, Test test) {
    const char* one = std::getenv("GC_SEED");
    const char* many = std::getenv("GC_SEEDS");
    uint64_t first = one ? std::strtoull(one, nullptr, 10) : 1;
    uint64_t last = one ? first : many ? std::strtoull(many, nullptr, 10) : count;
    for (uint64_t seed = first; seed <= last; ++seed) {
        test(seed);
        if (!::testing::Test::HasFailure() || ::testing::Test::IsSkipped()) continue;
        const ::testing::TestInfo* info = ::testing::UnitTest::GetInstance()->current_test_info();
        ADD_FAILURE() << "replay: GC_SEED=" << seed << " build/tests/" << program_invocation_short_name
                      << " --gtest_filter=" << info->test_suite_name() << "." << info->name();
        return;
    }
}

}   // namespace gradcast
