// Nets in stages whose layers share weights, and whose nodes are lost with `survive`: each node that takes a stage has the tensor, and its
// sums in the step that is repeated are those of the view that repeats it.
#include "tests/sim/views.h"

namespace gradcast::views_test {
namespace {

struct TiedGrid {
    const char* what;
    uint32_t ranks;
    const char *exchange, *options;
};

constexpr TiedGrid tied_grids[] = {
    {"two replicas of two stages", 4, "ring", "[parallel]\nstages = 2\n"},
    {"a spare", 5, "ring", "[parallel]\nstages = 2\nschedule = \"zero-bubble\"\n"},
    {"three stages, and a spare", 7, "ring", "quantiser = \"auto16\"\n[parallel]\nstages = 3\n"},
    {"a replica that is not waited for", 6, "coded-rs", "m = 1\ns = 1\n[parallel]\nstages = 2\n"},
    {"buddies", 4, "ring", "[parallel]\nstages = 4\nbuddy = true\n"},
    {"buddies, of which one keeps two stages", 3, "ring", "[parallel]\nstages = 3\nbuddy = true\n"},
};

Lossy tied_job(const TiedGrid& grid, uint64_t seed) {
    Lossy job(grid.ranks, seed);
    for (const char* layer : {"inner_product\"\nname = \"a\"", "linear\"\nweights_of = \"a\"", "linear\"\nweights_of = \"a\""})
        job.more_layers +=
            fmt::format("[[net.layers]]\nkind = \"relu\"\n[[net.layers]]\nkind = \"{}\noutputs = 128\nbias = false\n", layer);
    job.optimiser = "lr = 0.05\nmomentum = 0.9\nclip_norm = 0.4\n";
    job.exchange = grid.exchange;
    job.options = grid.options;
    return job;
}

/// The uncut net on one node.
const Quiet& alone(const TiedGrid& grid) {
    static std::map<std::string, Quiet> known;
    const bool narrow = std::string_view(grid.options).starts_with("quantiser");
    Quiet& found = known[narrow ? "auto16" : ""];
    if (!found.digest.empty()) return found;
    Lossy job = tied_job({"", 1, "ring", narrow ? "quantiser = \"auto16\"\n" : ""}, 1);
    job.survive = false;
    job.run();
    EXPECT_TRUE(job.sim->result(0).ok()) << job.sim->result(0).what;
    return found = {job.engines[0]->status().digest, lines_in(job.own_folder(0)), job.sim->now_us()};
}

TEST(TiedViews, AnyNodeAtAnyTime) {
    for (const TiedGrid& grid : tied_grids) {
        const Quiet& whole = alone(grid);
        Lossy quiet = tied_job(grid, 1);
        quiet.run();
        quiet.expect(whole.digest);
        expect_any_rank_at_any_time(grid.what, quiet.sim->now_us(), whole, [&](uint64_t seed) { return tied_job(grid, seed); });
        if (::testing::Test::HasFailure()) return;
    }
}

// The node that may not go on alone writes both stages.  A file of a stage has no weights for which another stage stands.
TEST(TiedViews, ANodeThatEndsWritesTheStageThatItKeeps) {
    const TiedGrid buddies{"", 2, "ring", "[parallel]\nstages = 2\nbuddy = true\n"};
    const Quiet& whole = alone(buddies);
    Lossy quiet = tied_job(buddies, 1);
    quiet.run();
    uint32_t resumed = 0;
    for (uint64_t at = 4; at < 12; at += 2) {
        SCOPED_TRACE(fmt::format("at {} of 12", at));
        Lossy job = tied_job(buddies, at);
        job.checkpoint_every = 1000;   // none but those
        job.kills = {{0, quiet.sim->now_us() * at / 12}};
        job.run();
        const uint64_t steps = job.engines[1]->status().step;
        if (job.sim->result(1).ok() || steps == 0) continue;
        Lossy rest = tied_job({"", 2, "ring", "[parallel]\nstages = 2\n"}, 1);
        rest.survive = false;
        rest.resume = {.on = true, .steps = steps, .state = whole.lines[steps - 1].digest, .holders = {}, .paths = {}, .notes = ""};
        for (uint32_t cell = 0; cell < 2; ++cell) {
            rest.resume.holders.push_back(NodeId{0});
            rest.resume.paths.push_back(checkpoint_path(job.own_folder(1), {steps, cell, 2}));
        }
        rest.run();
        rest.expect(whole.digest);
        ++resumed;
        if (::testing::Test::HasFailure()) return;
    }
    EXPECT_GT(resumed, 1u);
}

// `make nightly` takes more seeds.
TEST(TiedViews, NodesByChance) {
    for_seeds(60, [&](uint64_t seed) {
        const TiedGrid& grid = seed % 2 ? tied_grids[4] : tied_grids[1];
        expect_two_lost_by_chance(grid.what, seed, alone(grid), tied_job(grid, seed));
    });
}

// A node that comes gets its stage's copy of the weights, from another node of the stage or from the buddy.
TEST(TiedViews, AJoinerGetsTheWeights) {
    constexpr uint32_t steps = 40;
    for (const TiedGrid& grid :
         {TiedGrid{"", 5, "ring", "[parallel]\nstages = 2\n"}, {"", 5, "ring", "[parallel]\nstages = 4\nbuddy = true\n"}}) {
        Lossy whole = tied_job({"", 1, "ring", ""}, 1);
        whole.survive = false, whole.steps = steps;
        whole.run();
        const std::string digest = whole.engines[0]->status().digest;
        for (const Rank lost : {0u, 1u}) {
            SCOPED_TRACE(fmt::format("{} ranks, without {}", grid.ranks, lost));
            Lossy job = tied_job(grid, 3);
            job.steps = steps;
            job.spend_us = 20'000;
            job.kills = {{lost, D / 2}};
            job.joins = {3 * D / 2};
            job.run();
            job.expect(digest);
        }
    }
}

// The node of stage 0 comes back and keeps stage 1, which has the same weights.  Then the node of stage 1 is lost.
TEST(TiedViews, AJoinerKeepsTheWeightsOfItsBuddy) {
    const TiedGrid grid{"", 5, "ring", "[parallel]\nstages = 4\ncuts = [\"linear1\", \"linear2\", \"fc3\"]\nbuddy = true\n"};
    Lossy whole = tied_job({"", 1, "ring", ""}, 1), job = tied_job(grid, 3);
    whole.survive = false, whole.steps = job.steps = 80;
    whole.run();
    job.spend_us = 20'000;
    job.kills = {{0, D / 2}, {1, 9 * D / 4}};
    job.joins = {3 * D / 2};
    job.run();
    job.expect(whole.engines[0]->status().digest);
    EXPECT_EQ(job.engines[2]->status().views.size(), 4u);
}

}   // namespace
}   // namespace gradcast::views_test
