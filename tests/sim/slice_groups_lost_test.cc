// Jobs whose nodes share slices, and whose replicas may be late or lost, over the simulator: a step may end in the middle of a pass.
#include "tests/sim/lost_grids.h"

namespace gradcast {
namespace {

constexpr Spare spares[] = {{"coded", "m = 1\ns = 1\n", 2}, {"coded-rs", "m = 1\ns = 1\n", 3}, {"coded-rs", "m = 2\ns = 1\n", 3}};

constexpr LostGrid two{.slice_groups = 2};

TEST(SliceGroupsLost, NobodyIs) {
    for (const Spare& spare : spares)
        for (const uint32_t stages : {1u, 2u}) {
            SCOPED_TRACE(text(spare));
            StagesJob job;
            set(job, spare, {stages, 2});
            const Status status = job.run();
            ASSERT_TRUE(status.ok()) << status.what;
            expect_wanted(job);
        }
}

// The other group waits for it in the middle of passes.
TEST(SliceGroupsLost, NobodyWaitsForASlowReplica) { expect_nobody_waits_for_a_slow_replica(spares, two, 1.5); }

TEST(SliceGroupsLost, GoOnWithoutARankThatDies) { expect_the_others_go_on(spares, two, 6); }

TEST(SliceGroupsLost, FourGroupsGoOn) { expect_the_others_go_on(std::span(spares).first(1), {.slice_groups = 4}, 3); }

// Both groups compute activations again with what the other one has sent, also of passes that end early.
TEST(SliceGroupsLost, StagesThatRecomputeGoOn) {
    const LostGrid recomputes{2, 2, "schedule = \"gpipe\"\nrecompute = true\n"};
    expect_the_others_go_on(std::span(spares).first(1), recomputes, 4);
}

TEST(SliceGroupsLost, GoOnWithARankThatWasStopped) { expect_a_stopped_rank_goes_on_or_is_missed(spares, two); }

TEST(SliceGroupsLost, OneReplicaIsMissedAndNoSecondOne) {
    expect_one_replica_is_missed_and_no_second_one(two, "stage 1 of 1 (conv1 .. loss1), slice group 1 of 2");
}

}   // namespace
}   // namespace gradcast
