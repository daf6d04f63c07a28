// What ranks tell each other of their stages, and what people read of it.
#include "runtime/job/report/stage_news.h"

#include <gtest/gtest.h>

#include "runtime/job/report/pipeline_status.h"

namespace gradcast {
namespace {

StageNews through_the_wire(const StageNews& news) {
    std::array<std::byte, stage_news_bytes_max> bytes;
    const size_t count = stage_news_write(news, bytes);
    StageNews read;
    EXPECT_TRUE(stage_news_read({bytes.data(), count}, &read));
    return read;
}

/// A step of 10 ms: `forward` and `backward` passes of two micro-batches, and a wait.
StageRecord record(uint64_t forward_us, uint64_t backward_us, StageTime wait, uint64_t wait_us) {
    StageRecord made;
    made.begin(5'000'000);
    made.micro_batches = 2;
    uint64_t now = made.begin_us + 100;
    for (const auto& [pass, us] : {std::pair{StagePass::forward, forward_us},
                                   {StagePass::forward, forward_us},
                                   {StagePass::backward, backward_us},
                                   {StagePass::backward, backward_us}}) {
        made.pass(pass, now, now + us);
        now += us;
    }
    made.wait(wait, wait_us);
    return made;
}

TEST(StageNews, MeansAndPassesCrossTheWire) {
    StageLog log;
    EXPECT_EQ(log.read().steps, 0u);
    std::array<std::byte, stage_news_bytes_max> bytes;
    EXPECT_EQ(stage_news_write(log.read(), bytes), 0u);
    for (uint64_t step = 1; step <= 20; ++step)
        log.step(step, record(1000, 2000, StageTime::gradients, step <= 4 ? 900'000 : step % 2 == 0 ? 2000 : 4000), 10'000);
    const StageNews news = through_the_wire(log.read());
    EXPECT_EQ(news.steps, StageLog::recent_steps);
    EXPECT_EQ(news.step_us, 10'000u);
    EXPECT_EQ(news.micro_batches, 2u);
    EXPECT_EQ(news.of(StageTime::forward), 2000u);
    EXPECT_EQ(news.of(StageTime::backward), 4000u);
    EXPECT_EQ(news.of(StageTime::gradients), 3000u);   // of the last 16 steps
    EXPECT_DOUBLE_EQ(news.idle(), 0.4);
    EXPECT_EQ(news.shown, 1u);   // the next is 64
    ASSERT_EQ(news.passes.size(), 4u);
    EXPECT_EQ(news.passes[0], (PassTime{100, 1100}));
    EXPECT_EQ(news.passes[3], (PassTime{4100, 6100}));
}

TEST(StageNews, RanksShowTheSameStep) {
    StageLog a, b;
    for (uint64_t step = 1; step <= 200; ++step) {
        a.step(step, record(1000, 2000, StageTime::gradients, 0), 10'000);
        if (step < 200) b.step(step, record(1000, 2000, StageTime::values, 0), 10'900);
    }
    EXPECT_EQ(a.read().shown, 192u);
    EXPECT_EQ(b.read().shown, 192u);
    a.step(201, record(1000, 2000, StageTime::gradients, 0), 3'000'000);   // long steps: each of them
    EXPECT_EQ(a.read().shown, 201u);
}

TEST(StageNews, ManyPassesAreTheFirstOnes) {
    StageRecord made;
    made.begin(0);
    made.micro_batches = 1000;
    for (uint64_t i = 0; i < 1000; ++i) made.pass(StagePass::forward, i * 100'000, i * 100'000 + 50'000);
    StageLog log;
    log.step(1, made, 100'000'000);
    const StageNews news = through_the_wire(log.read());
    ASSERT_EQ(news.passes.size(), StageRecord::passes_max);
    EXPECT_EQ(news.of(StageTime::forward), 50'000'000u);
    EXPECT_NEAR(news.passes.back().end_us, 12'750'000, 200);   // 65535ths of the span
}

TEST(StageNews, OtherBytesAreRefused) {
    StageLog log;
    log.step(1, record(1000, 2000, StageTime::sums, 1), 10'000);
    std::array<std::byte, stage_news_bytes_max> bytes;
    const size_t count = stage_news_write(log.read(), bytes);
    StageNews read;
    for (size_t less = 1; less <= count; ++less) EXPECT_FALSE(stage_news_read({bytes.data(), count - less}, &read)) << less;
    EXPECT_FALSE(stage_news_read({bytes.data(), count + 1}, &read));
    std::array<std::byte, stage_news_bytes_max> wrong = bytes;
    wrong[sizeof(StageNewsWire) + 1] = std::byte{0xff};   // begins after its end
    EXPECT_FALSE(stage_news_read({wrong.data(), count}, &read));
    EXPECT_EQ(read, StageNews{});
}

StageNode node(const char* name, uint32_t stage, uint32_t replica, const StageRecord& of) {
    StageLog log;
    log.step(1, of, 10'000);
    return {name, stage, replica, log.read()};
}

TEST(PipelineStatus, SaysWhoIsIdleAndWhatItWaitsFor) {
    PipelineStatus status{.schedule = "1f1b", .layers = {"conv1 .. pool2", "fc1 .. loss"}};
    pipeline_status_derive(&status);
    EXPECT_FALSE(status.known());
    EXPECT_EQ(pipeline_line(status), "");
    StageRecord second = record(500, 1000, StageTime::values, 6000);
    second.wait(StageTime::sums, 50);   // below a hundredth
    second.wait(StageTime::reports, 700);
    status.nodes = {node("a", 1, 1, record(1000, 2000, StageTime::gradients, 3000)), node("b", 2, 1, second), {"c", 1, 0, {}}};
    pipeline_status_derive(&status);
    EXPECT_EQ(status.micro_batches, 2u);
    EXPECT_DOUBLE_EQ(status.idle_formula, 1.0 / 3);
    ASSERT_EQ(status.idle_simulated.size(), 2u);   // stage 1: F1 F2, a wait of 0.5 ms for B1 of stage 2, B1 B2
    EXPECT_NEAR(status.idle_simulated[0], 0.5 / 6.5, 1e-9);
    EXPECT_NEAR(status.idle_simulated[1], 3.5 / 6.5, 1e-9);
    EXPECT_EQ(stage_waits_text(status.nodes[0], 2), "gradients of stage 2 3.00 ms");
    EXPECT_EQ(stage_waits_text(status.nodes[1], 2), "values of stage 1 6.00 ms, reports of the other stages 0.70 ms");
    EXPECT_EQ(stage_waits_text(status.nodes[2], 2), "");
    EXPECT_EQ(pipeline_line(status), "1: gradients of stage 2 (40% idle), 2: values of stage 1 (70% idle)");
    const std::vector<DrawnPass> drawn = drawn_passes(status, status.nodes[1]);
    ASSERT_EQ(drawn.size(), 4u);   // of stage 2: F1 B1 F2 B2
    EXPECT_EQ(drawn[1].pass, StagePass::backward);
    EXPECT_EQ(drawn[1].micro_batch, 1u);
    EXPECT_EQ(drawn[2].pass, StagePass::forward);
    EXPECT_EQ(drawn[2].micro_batch, 2u);

    status.nodes[1].news.passes.resize(StageRecord::passes_max);
    for (const Schedule schedule : all_schedules) {
        status.schedule = pipeline_schedule_names()[static_cast<size_t>(schedule)];   // what is drawn does not depend on what comes later
        std::vector<DrawnPass> few, many;
        status.nodes[1].news.micro_batches = 1000;
        few = drawn_passes(status, status.nodes[1]);
        status.nodes[1].news.micro_batches = UINT32_MAX;
        many = drawn_passes(status, status.nodes[1]);
        ASSERT_EQ(few.size(), StageRecord::passes_max);
        ASSERT_EQ(many.size(), few.size());
        const std::vector<StageTask> tasks = stage_tasks(schedule, 2, 1, 1000);
        for (size_t i = 0; i < few.size(); ++i) {
            EXPECT_EQ((StageTask{many[i].pass, many[i].micro_batch - 1}), tasks[i]);
            EXPECT_EQ((StageTask{few[i].pass, few[i].micro_batch - 1}), tasks[i]);
        }
    }
    status.nodes[1].news.micro_batches = 2;

    status.nodes[0].stage = 9;   // of a record of another version
    pipeline_status_derive(&status);
    EXPECT_TRUE(status.idle_simulated.empty());
    EXPECT_TRUE(drawn_passes(status, status.nodes[0]).empty());
}

TEST(PipelineStatus, TheFormulaIsThatOfEqualStages) {
    for (const Schedule schedule : all_schedules)
        for (const uint32_t stages : {1u, 2u, 4u})
            for (const uint32_t micro_batches : {4u, 8u}) {
                const double data = passes_apart(schedule) ? 1 : 2, weights = passes_apart(schedule) ? 1 : 0;
                const std::vector<StageTimes> equal(stages, {1, data, weights});
                EXPECT_NEAR(pipeline_cost(schedule, equal, micro_batches).idle[0], idle_share(schedule, stages, micro_batches), 1e-9);
            }
}

}   // namespace
}   // namespace gradcast
