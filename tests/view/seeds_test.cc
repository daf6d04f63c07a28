// Worlds from seeds, and mutants that they must find.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "tests/sim/seeds.h"
#include "tests/view/world.h"

namespace gradcast {
namespace {

constexpr uint64_t seeds = 200;

/// One seed's draws.
class Draw {
public:
    explicit Draw(uint64_t seed) : random_(seed * 0x9E3779B97F4A7C15) {}
    uint64_t below(uint64_t limit) { return limit == 0 ? 0 : random_() % limit; }
    bool one_in(uint64_t count) { return below(count) == 0; }

private:
    std::mt19937_64 random_;
};

WorldConfig draw_world(uint64_t seed, Draw& draw) {
    WorldConfig config;
    config.seed = seed;
    config.members = 2 + static_cast<uint32_t>(draw.one_in(3) ? draw.below(3) : draw.below(8));
    config.others = draw.one_in(2) ? static_cast<uint32_t>(draw.below(3)) : 0;
    config.s = static_cast<uint16_t>(draw.below(std::min(3u, config.members)));
    config.m = static_cast<uint16_t>(1 + draw.below(config.members - config.s));
    config.loss = draw.one_in(2) ? 0 : 0.03;
    config.duplicate = draw.one_in(2) ? 0 : 0.05;
    config.late = draw.one_in(2) ? 0 : 0.05;
    config.late_us = draw.one_in(2) ? D / 8 : 2 * D;
    config.jitter_us = draw.one_in(2) ? 0 : 20'000;
    config.step_us = D / 40 + draw.below(D / 16);
    config.rejoin_chance = 0.5;
    if (seed % 3 == 2) config.initial_us = D / 4 + seed * 7919 % (6 * D / 1000) * 1000;
    if (seed % 4 == 1) config.voters = 1 + static_cast<uint32_t>(seed / 4 % 3);
    return config;
}

/// Plans a fault.  Returns the time when it has ended.
uint64_t draw_fault(World& world, const WorldConfig& config, Draw& draw) {
    const uint32_t n = world.n();
    const uint64_t at_us = D / 2 + draw.below(6 * D), long_us = D / 16 + (draw.one_in(3) ? draw.below(2 * D) : draw.below(D / 2));
    const uint64_t end_us = at_us + long_us;
    const auto which = static_cast<uint32_t>(draw.below(n)), other = static_cast<uint32_t>(draw.below(n));
    switch (draw.below(11)) {
        case 0:
            world.at(at_us, [&world, which] { world.crash(which); });
            if (draw.one_in(2)) world.at(at_us + D / 50, [&world, which] { world.prove(which); });
            return at_us;
        case 1:
        case 2: {
            const bool joins = !draw.one_in(3);
            world.at(at_us, [&world, which] { world.crash(which); });
            world.at(end_us, [&world, which, joins] { world.restart(which, joins); });
            return end_us + D / 4;
        }
        case 3: world.at(at_us, [&world, which, long_us] { world.stall(which, long_us); }); return end_us;
        case 4:
        case 5: {
            std::vector<uint32_t> some;
            for (uint32_t each = 0; each < n; ++each)
                if (draw.one_in(2)) some.push_back(each);
            world.at(at_us, [&world, some] { world.split(some, true); });
            world.at(end_us, [&world, some] { world.split(some, false); });
            return end_us;
        }
        case 6:
            world.at(at_us, [&world, which, other] { world.cut(which, other, true); });
            world.at(end_us, [&world, which, other] { world.cut(which, other, false); });
            return end_us;
        case 7: {
            const double factor = 2 + static_cast<double>(draw.below(20));
            world.at(at_us, [&world, which, factor] { world.slow(which, factor); });
            world.at(end_us, [&world, which] { world.slow(which, 1); });
            return end_us + static_cast<uint64_t>(1.5 * factor * static_cast<double>(config.step_us));   // of the step that it is at
        }
        case 8:   // a false alarm at some
            for (uint32_t each = 0; each < n; ++each)
                if (draw.one_in(2)) world.at(at_us, [&world, each, which] { world.suspect(each, which); });
            return at_us;
        case 9:   // many at once, which come back to prove it
            for (uint32_t each = 0; each < n; ++each) {
                if (draw.one_in(2)) continue;
                const bool joins = draw.one_in(2);
                world.at(at_us, [&world, each] { world.crash(each); });
                world.at(at_us + D / 16, [&world, each, joins] { world.restart(each, joins); });
            }
            return at_us + D / 2;
        default:
            if (config.others > 0)
                world.at(at_us,
                         [&world, joiner = config.members + static_cast<uint32_t>(draw.below(config.others))] { world.join(joiner); });
            return at_us;
    }
}

/// A partition cuts some members off while the others go on and take in new nodes.  Then the others die and rejoin, which proves their
/// death.
uint64_t draw_partition(World& world, const WorldConfig& config, Draw& draw) {
    const uint64_t at_us = D / 2 + draw.below(2 * D), died_us = at_us + D / 4 + draw.below(3 * D / 4),
                   end_us = died_us + D / 8 + draw.below(D);
    std::vector<uint32_t> cut_off{static_cast<uint32_t>(draw.below(config.members))};
    for (uint32_t each = 0; each < config.members; ++each)
        if (each != cut_off[0] && 2 * cut_off.size() < config.members && draw.one_in(3)) cut_off.push_back(each);
    world.at(at_us, [&world, cut_off] { world.split(cut_off, true); });
    for (uint32_t each = 0; each < world.n(); ++each) {
        if (std::find(cut_off.begin(), cut_off.end(), each) != cut_off.end()) continue;
        if (each < config.members) {
            const bool joins = draw.one_in(4);
            const uint64_t us = died_us + draw.below(D / 16);
            world.at(us, [&world, each] { world.crash(each); });
            world.at(us + D / 64, [&world, each, joins] { world.restart(each, joins); });
        } else {
            world.at(at_us + draw.below(D / 2), [&world, each] { world.join(each); });
        }
        for (const uint32_t other : cut_off) {
            const uint64_t us = draw.one_in(3) ? end_us : died_us;
            world.at(us, [&world, each, other] { world.cut(each, other, false), world.cut(other, each, false); });
        }
    }
    return end_us + D / 4;
}

/// Faults that hit when they hurt: at the sending of some message of a change.
struct Ambush {
    uint64_t kind = 0;        // index in ViewMessage::What, plus 1
    uint64_t countdown = 0;   // such messages
    uint64_t effect = 0, long_us = 0;
};

/// Draws a world and what happens to it.  The first thing that is wrong, or "".
std::string trouble(uint64_t seed, ViewMutant mutant, Seen* seen = nullptr) {
    Draw draw(seed);
    WorldConfig config = draw_world(seed, draw);
    config.mutant = mutant;
    World world(config);
    uint64_t last_us = std::max(D / 2, config.initial_us);
    for (uint64_t faults = draw.below(10); faults > 0; --faults) last_us = std::max(last_us, draw_fault(world, config, draw));
    if (config.others > 0 && draw.one_in(2)) last_us = std::max(last_us, draw_partition(world, config, draw));
    std::vector<Ambush> ambushes;
    for (uint64_t count = draw.below(6); count > 0; --count)
        ambushes.push_back({draw.one_in(3) ? 1 + draw.below(9) : 2 + draw.below(6), draw.below(20), draw.below(6), D / 16 + draw.below(D)});
    const uint64_t ambushed_until_us = last_us;
    world.passes = [&](uint32_t from, uint32_t to, const ViewMessage& message) {
        if (world.now_us() > ambushed_until_us) return true;
        for (Ambush& each : ambushes) {
            if (each.kind != message.what.index() + 1 || each.countdown-- != 0) continue;
            const uint64_t end_us = world.now_us() + each.long_us;
            last_us = std::max(last_us, end_us);
            switch (each.effect) {
                case 0: world.at(world.now_us(), [&world, from] { world.crash(from); }); return false;
                case 1: world.stall(from, each.long_us); return true;
                case 2: world.stall(to, each.long_us); return true;
                case 3:
                case 4: {
                    const uint32_t alone = each.effect == 3 ? to : from;
                    world.split({alone}, true);
                    world.at(end_us, [&world, alone] { world.split({alone}, false); });
                    return false;
                }
                default:
                    world.cut(from, to, true);
                    world.at(end_us, [&world, from, to] { world.cut(from, to, false); });
                    return false;
            }
        }
        return true;
    };
    while (world.violation().empty() && world.now_us() < last_us + D / 20) world.run(last_us + D / 20);
    const bool can = world.quorum_lives();
    const StepId highest = world.highest();
    if (can && !world.run(last_us + 2 * D, [&] { return world.highest() > highest; }) && world.violation().empty())
        return "a quorum lives and completes no step within 2 D\n" + world.describe();
    world.run(last_us + 3 * D);
    // In the end everybody trains or has ended.
    if (seed % 4 == 0 && world.violation().empty()) {
        world.run(last_us + 6 * D);
        for (uint32_t node = 0; node < world.n(); ++node)
            if (world.in(node) && !world.going(node)) return fmt::format("node {} still waits\n{}", node, world.describe());
    }
    if (seen) {
        *seen = world.seen();
        seen->quorums = can;
    }
    return world.violation();
}

/// So that the seeds prove something: all of it comes to pass.
TEST(View, SeedsGetEverywhere) {
    Seen all;
    for (uint64_t seed = 1; seed <= seeds; ++seed) {
        Seen one;
        ASSERT_EQ(trouble(seed, ViewMutant::none, &one), "") << "seed " << seed;
        all.views += one.views;
        all.by_proof += one.by_proof;
        all.adopted += one.adopted;
        all.refused += one.refused;
        all.joiners += one.joiners;
        all.sums += one.sums;
        all.states += one.states;
        all.excluded += one.excluded;
        all.minority += one.minority;
        all.forgotten += one.forgotten;
        all.quorums += one.quorums;
        all.own_initial += one.own_initial;
    }
    std::printf(
        "%lu seeds with a quorum in the end; %lu views: %lu with proofs of death, %lu adopted; %lu refusals, %lu joiners, %lu by sums, %lu "
        "by state, %lu excluded, %lu in a "
        "minority, %lu forgotten, %lu with other initial values than node 0's\n",
        all.quorums, all.views, all.by_proof, all.adopted, all.refused, all.joiners, all.sums, all.states, all.excluded, all.minority,
        all.forgotten, all.own_initial);
    for (const uint64_t each : {all.views, all.by_proof, all.adopted, all.refused, all.joiners, all.sums, all.states, all.excluded,
                                all.minority, all.forgotten, all.own_initial})
        EXPECT_GT(each, 0u);
}

TEST(View, FromSeeds) {
    for_seeds(seeds, [](uint64_t seed) { EXPECT_EQ(trouble(seed, ViewMutant::none), "") << "seed " << seed; });
}

class Mutants : public testing::TestWithParam<std::pair<const char*, ViewMutant>> {};
INSTANTIATE_TEST_SUITE_P(View, Mutants,
                         testing::Values(std::pair{"NoBallots", ViewMutant::no_ballots}, std::pair{"NoFreeze", ViewMutant::no_freeze},
                                         std::pair{"LowestStep", ViewMutant::lowest_step}, std::pair{"AnyHalf", ViewMutant::any_half},
                                         std::pair{"NumberReused", ViewMutant::number_reused},
                                         std::pair{"OwnInitial", ViewMutant::own_initial}),
                         [](const auto& param) { return std::string(param.param.first); });

TEST_P(Mutants, AreFoundBySomeSeed) {
    for (uint64_t seed = 1; seed <= seeds; ++seed)
        if (const std::string found = trouble(seed, GetParam().second); !found.empty()) {
            RecordProperty("seed", static_cast<int>(seed));
            std::printf("seed %d: %s", static_cast<int>(seed), found.c_str());
            return;
        }
    ADD_FAILURE() << "no seed finds it";
}

}   // namespace
}   // namespace gradcast
