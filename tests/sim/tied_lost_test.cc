// Jobs in stages that share weights, and whose replicas may be late or lost: both copies of the weights get the sums of the same replicas.
#include "tests/sim/lost_grids.h"

namespace gradcast {
namespace {

constexpr LostGrid two_tied{.stages = 2, .tied = true};

// With gpipe the last stage has computed all of its blocks while the first one ends the step early.
TEST(TiedLost, NobodyWaitsForASlowReplica) {
    for (const char* schedule : {"schedule = \"1f1b\"\n", "schedule = \"gpipe\"\n"})
        expect_nobody_waits_for_a_slow_replica(three_spares, {.stages = 2, .more = schedule, .tied = true}, 1.5);
}

TEST(TiedLost, GoOnWithoutARankThatDies) { expect_the_others_go_on(three_spares, two_tied, 6); }

TEST(TiedLost, GoOnWithARankThatWasStopped) { expect_a_stopped_rank_goes_on_or_is_missed(three_spares, two_tied); }

TEST(TiedLost, OneReplicaIsMissedAndNoSecondOne) {
    expect_one_replica_is_missed_and_no_second_one(two_tied, "stage 1 of 2 (wte .. h1_out)");
}

}   // namespace
}   // namespace gradcast
