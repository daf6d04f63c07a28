// How many lanes a job has where the memory of a node is not enough for all.  tests/attach has those of programs.
#include "runtime/core/memory_budget.h"
#include "tests/job/runs.h"

namespace gradcast {
namespace {

struct LanesTest : RunsTest {
    Status open(uint32_t lanes, MemoryBudget* budget, std::unique_ptr<Engine>* engine) {
        EngineConfig c = config(replaced(job_text(), "outputs = 16\n", "outputs = 3000\n"), 1);
        c.id[0] = 7;
        c.lanes = lanes;
        c.budget = budget;
        return Engine::open(c, Log(), engine);
    }
    uint64_t planned(uint32_t lanes) {
        std::unique_ptr<Engine> engine;
        const Status status = open(lanes, nullptr, &engine);
        EXPECT_TRUE(status.ok()) << status.what;
        EXPECT_EQ(engine->status().warnings, std::vector<std::string>());
        uint64_t bytes = 0;
        for (const MemoryUse& each : engine->status().memory) bytes += each.total();
        return bytes;
    }
};

TEST_F(LanesTest, FollowTheMemory) {
    const uint64_t one = planned(1), lane = (planned(3) - one) / 2;
    ASSERT_GT(lane, uint64_t{100'000});
    const uint64_t room = one + lane * 3 / 2;
    MemoryBudget two(room, "`memory` in gradcastd.toml");
    std::unique_ptr<Engine> engine;
    Status status = open(5, &two, &engine);
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_LT(two.remaining(), lane);   // what is planned is taken
    const auto mib = [](uint64_t bytes) { return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / 0x1p20); };
    ASSERT_EQ(engine->status().warnings.size(), 1u);
    const std::string warning = engine->status().warnings[0];
    EXPECT_TRUE(warning.starts_with("this node has 2 of 5 lanes: with 5 the job would take ")) << warning;
    EXPECT_NE(warning.find(fmt::format(", and {} are available (`memory` in gradcastd.toml); a lane takes {}", mib(room), mib(lane))),
              std::string::npos)
        << warning;
    engine.reset();
    EXPECT_EQ(two.remaining(), room);

    MemoryBudget none(one - 1, "`memory` in gradcastd.toml");
    status = open(5, &none, &engine);
    EXPECT_EQ(status.code, Code::node_memory);
    EXPECT_TRUE(std::string_view(status.what).starts_with("the job needs " + mib(one) + " here (")) << status.what;
    EXPECT_EQ(none.remaining(), one - 1);
}

}   // namespace
}   // namespace gradcast
