// Jobs whose nodes share slices, and whose replicas may be late or lost, over the simulator: a step may end in the middle of a pass.
#include "tests/sim/lost_grids.h"

namespace gradcast {
namespace {

constexpr LostGrid two_groups{.slice_groups = 2};

TEST(SliceGroupsLost, NobodyIs) {
    for (const Spare& spare : three_spares)
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
TEST(SliceGroupsLost, NobodyWaitsForASlowReplica) { expect_nobody_waits_for_a_slow_replica(three_spares, two_groups, 1.5); }

TEST(SliceGroupsLost, GoOnWithoutARankThatDies) { expect_the_others_go_on(three_spares, two_groups, 6); }

TEST(SliceGroupsLost, FourGroupsGoOn) { expect_the_others_go_on(std::span(three_spares).first(1), {.slice_groups = 4}, 3); }

// Both groups compute activations again with what the other one has sent, also of passes that end early.
TEST(SliceGroupsLost, StagesThatRecomputeGoOn) {
    const LostGrid recomputes{2, 2, "schedule = \"gpipe\"\nrecompute = true\n"};
    expect_the_others_go_on(std::span(three_spares).first(1), recomputes, 4);
}

TEST(SliceGroupsLost, GoOnWithARankThatWasStopped) { expect_a_stopped_rank_goes_on_or_is_missed(three_spares, two_groups); }

TEST(SliceGroupsLost, OneReplicaIsMissedAndNoSecondOne) {
    expect_one_replica_is_missed_and_no_second_one(two_groups, "stage 1 of 1 (conv1 .. loss1), slice group 1 of 2");
}

}   // namespace
}   // namespace gradcast
