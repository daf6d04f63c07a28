// The net of processes, without a job: what it computes, and what a process does wrong.
#include <gtest/gtest.h>
#include <atomic>
#include <filesystem>
#include <thread>

#include <cmath>
#include <mutex>

#include "nn/graph/layers.h"
#include "nn/graph/process.h"
#include "runtime/attach/attach.h"
#include "runtime/core/clock.h"
#include "runtime/core/digest.h"
#include "tests/attach/child.h"
#include "tests/attach/watched.h"

namespace gradcast {
namespace {

struct KeepAll final : GradientSink {
    explicit KeepAll(const Layout& l) : layout(l), gradient(l.elements) {}
    Status bucket(uint32_t, BlockId, uint32_t bucket, Buffer from) override {
        order.push_back(bucket);
        std::copy_n(from.as<float>(), layout.buckets[bucket].count,
                    gradient.begin() + static_cast<ptrdiff_t>(layout.buckets[bucket].offset));
        return {};
    }
    void loss(uint32_t, BlockId, double sum) override { loss_sum = sum; }
    const Layout& layout;
    std::vector<float> gradient;
    std::vector<uint32_t> order;
    double loss_sum = 0;
};

class AttachedNetTest : public ::testing::Test {
protected:
    static constexpr uint32_t side = 4, classes = 3, block = 5;

    AttachConfig config(const std::string& mode, uint32_t lanes = 1) {
        return {.command = child_command(mode),
                .folder = ::testing::TempDir(),
                .lanes = lanes,
                .seed = 11,
                .samples = {.C = 1, .H = side, .W = side, .classes = classes},
                .mean = {0.25f},
                .std = {0.5f},
                .samples_max = block,
                .block_sizes = {block, block - 1},
                .bucket_bytes = 64,
                .evaluation_samples = block,
                .control_group = control_group_,
                .deadline_us = deadline_us_,
                .output =
                    [this](uint32_t, std::string_view line) {
                        std::lock_guard lock(mutex_);
                        lines_.emplace_back(line);
                    },
                .constants =
                    [this](std::span<const std::byte> bytes) {
                        constants_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
                        return take_;
                    }};
    }
    Status open(const std::string& mode, uint32_t lanes = 1) {
        net_.reset();
        GC_TRY(NetProcesses::open(config(mode, lanes), &processes_));
        GC_TRY(processes_->first());
        GC_TRY(processes_->plan({.lanes = lanes}, &net_));
        return processes_->ready();
    }
    Samples samples(uint32_t count) {
        images_.resize(count * side * side);
        labels_.resize(count);
        for (size_t i = 0; i < images_.size(); ++i) images_[i] = static_cast<uint8_t>(i * 37 % 256);
        for (uint32_t i = 0; i < count; ++i) labels_[i] = static_cast<int32_t>(i % classes);
        return {images_.data(), labels_.data(), count, 1, side, side, mean_, std_};
    }
    Status train(KeepAll* sink, StepId step = 1, uint32_t lane = 0) { return net_->block(lane, {step, 0}, samples(block), *sink); }
    /// What a step of a process in this mode ends with.
    std::string error_of(const std::string& mode) {
        if (const Status status = open(mode); !status.ok()) return status.what;
        KeepAll sink(net_->layout());
        const Status status = train(&sink);
        EXPECT_FALSE(status.ok()) << mode;
        return status.what;
    }

    /// That is planned for the processes themselves.
    uint64_t programs() const { return processes_->memory()[0].bytes[0].second; }
    uint64_t blocks() const { return processes_->memory()[0].bytes[2].second; }

    uint64_t deadline_us_ = 20'000'000;
    bool control_group_ = true;
    std::mutex mutex_;
    std::vector<std::string> lines_;
    std::string constants_;   // bytes that came
    Status take_;             // what is said to them
    std::unique_ptr<NetProcesses> processes_;
    std::unique_ptr<Net> net_;
    std::vector<uint8_t> images_;
    std::vector<int32_t> labels_;
    const float mean_[1] = {0.25f}, std_[1] = {0.5f};
};

TEST_F(AttachedNetTest, HasTheTensorsOfTheProcess) {
    const Status status = open("good");
    ASSERT_TRUE(status.ok()) << status.what;
    const Layout& layout = net_->layout();
    ASSERT_EQ(layout.groups.size(), 2u);
    EXPECT_EQ(layout.groups[0].layer, "w");
    EXPECT_EQ(layout.groups[1].layer, "b");
    EXPECT_EQ(layout.groups[1].offset, 48u);   // 3 x 16 elements; tensors begin at multiples of 64 bytes
    EXPECT_EQ(layout.elements, 64u);
    for (size_t i = 51; i < 64; ++i) EXPECT_EQ(net_->parameters()[i], 0);
    EXPECT_NE(net_->parameters()[0], 0);
    const auto said = [this] {   // another thread reads it
        std::lock_guard lock(mutex_);
        return lines_;
    };
    EXPECT_TRUE(wait_for([&] { return !said().empty(); }));
    EXPECT_EQ(said(), std::vector<std::string>{"lane 0 of 1, seed 11"});
}

TEST_F(AttachedNetTest, ComputesLossAndGradient) {
    ASSERT_TRUE(open("good").ok());
    KeepAll sink(net_->layout());
    Status status = train(&sink);
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_EQ(sink.order, (std::vector<uint32_t>{0, 1}));
    // Finite differences.
    uint32_t right;
    const auto loss = [&] {
        double sum = 0;
        EXPECT_TRUE(net_->evaluate(0, samples(block), &right, &sum, nullptr).ok());
        return sum;
    };
    EXPECT_NEAR(loss(), sink.loss_sum, 1e-5);
    for (const size_t i : {0u, 17u, 33u, 48u, 50u}) {
        const float before = net_->parameters()[i];
        net_->parameters()[i] = before + 1e-2f;
        const double above = loss();
        net_->parameters()[i] = before - 1e-2f;
        EXPECT_NEAR((above - loss()) / 2e-2, sink.gradient[i], 1e-2 * std::max(1.0f, std::fabs(sink.gradient[i]))) << i;
        net_->parameters()[i] = before;
    }
    std::vector<int32_t> predicted(block);
    double sum;
    ASSERT_TRUE(net_->evaluate(0, samples(block), &right, &sum, predicted.data()).ok());
    uint32_t count = 0;
    for (uint32_t i = 0; i < block; ++i) count += predicted[i] == labels_[i];
    EXPECT_EQ(count, right);
}

TEST_F(AttachedNetTest, KernelSetIsThatOfEveryLane) {
    uint64_t digest[3] = {}, block_us;
    for (uint32_t lanes : {1u, 2u}) {
        ASSERT_TRUE(open("good", lanes).ok());
        const std::vector<float> before(net_->parameters().begin(), net_->parameters().end());
        const Status status = processes_->measure(&digest[lanes], &block_us);
        ASSERT_TRUE(status.ok()) << status.what;
        EXPECT_TRUE(std::ranges::equal(before, net_->parameters()));
    }
    EXPECT_EQ(digest[1], digest[2]);
    // Initial values have no part in it.
    ASSERT_TRUE(open("unseeded").ok());
    ASSERT_TRUE(processes_->measure(&digest[0], &block_us).ok());
    EXPECT_EQ(digest[0], digest[1]);

    ASSERT_TRUE(open("draws").ok());
    const std::string draws = processes_->measure(&digest[0], &block_us).what;
    EXPECT_NE(draws.find("computes other bits the second time: the gradient of b of a block of 5 samples differs"), draws.npos) << draws;
    ASSERT_TRUE(open("lanes compute otherwise", 2).ok());
    const std::string lanes = processes_->measure(&digest[0], &block_us).what;
    EXPECT_NE(lanes.find("computes other bits in lane 1: the gradient of w of"), lanes.npos) << lanes;
}

TEST_F(AttachedNetTest, ALongHelloComesInPieces) {
    const Status status = open("many tensors");
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_EQ(net_->layout().groups.size(), 3002u);
    KeepAll sink(net_->layout());
    EXPECT_TRUE(train(&sink).ok());
}

TEST_F(AttachedNetTest, WhatAProcessDoesWrongIsSaid) {
    struct Case {
        const char *mode, *says;
    };
    for (const auto& [mode, says] : {Case{"exits", "exited with status 3; its last line: ValueError: no such file"},
                                     {"no json", "its HELLO is not as the border has it: it is no JSON object"},
                                     {"twice", "its HELLO is not as the border has it: two tensors have the name w"},
                                     {"other version", "its package is of version 0.0.9, this daemon of 0.1.0: install both together"},
                                     {"other border", "its package has border 1, this daemon 2: install both together"},
                                     {"constants short", "sent what it may not: 18 bytes of constants instead of 19"},
                                     {"constants long", "sent what it may not: more than the 19 bytes of its constants"},
                                     {"bad start", "the initial value of b holds NaN or Inf"},
                                     {"dies", "was ended by signal 9 (SIGKILL)"},
                                     {"leaves", "exited with status 0"},
                                     {"nan", "has the loss nan for block 0 of step 2"},
                                     {"buckets backwards", "sent what it may not: bucket 2 instead of 0"},
                                     {"says why", ": RuntimeError: mat1 and mat2 shapes cannot be multiplied  [31m"},
                                     {"writes a parameter", "a write to a parameter ends a process so: gradcast is the optimiser"},
                                     {"long message", "sent what it may not: a message of 32868 bytes"},
                                     {"short message", "sent what it may not: a message of 2 bytes"},
                                     {"other message", "sent what it may not: message 99 instead of 18"}}) {
        const std::string error = error_of(mode);
        EXPECT_NE(error.find(says), error.npos) << mode << ": " << error;
        EXPECT_EQ(error.find("the process of lane 0 (/usr/bin/env"), 0u) << error;
    }
}

// A job that is cancelled while the first process computes for the first time does not wait for it.
TEST_F(AttachedNetTest, AStopEndsTheFirstEvaluation) {
    const std::string place = fmt::format("{}first-{}", ::testing::TempDir(), ::getpid());
    std::atomic<bool> stop = false;
    AttachConfig stopped = config("stops at first " + place);
    stopped.stop = &stop;
    ASSERT_TRUE(NetProcesses::open(stopped, &processes_).ok());
    std::thread stops([&] {
        while (!std::filesystem::exists(place)) ::usleep(1000);
        stop = true;
    });
    const uint64_t begin_us = clock_us();
    EXPECT_EQ(processes_->first().code, Code::cancelled);
    EXPECT_LT(clock_us() - begin_us, deadline_us_ / 2);
    stops.join();
    processes_.reset();
    std::filesystem::remove_all(place);
}

TEST_F(AttachedNetTest, AProcessThatHangsIsGivenUpAndEnded) {
    deadline_us_ = 200'000;
    for (const char* mode : {"hangs", "stops"}) {
        const uint64_t begin_us = clock_us();
        const std::string error = error_of(mode);
        EXPECT_NE(error.find("has not answered for"), error.npos) << error;
        net_.reset();
        processes_.reset();
        EXPECT_LT(clock_us() - begin_us, 30'000'000u);
    }
}

TEST_F(AttachedNetTest, MemoryIsPlannedByThePeakOfTheFirstProcess) {
    constexpr uint64_t mib = 1 << 20;
    ASSERT_TRUE(NetProcesses::open(config("good", 3), &processes_).ok());
    const uint64_t said = programs(), taken = processes_->taken();
    EXPECT_GT(said, process_growth_min + taken);
    ASSERT_TRUE(processes_->first().ok());
    EXPECT_GT(processes_->taken(), taken);   // with what is shared
    ASSERT_TRUE(processes_->plan({.lanes = 1}, &net_).ok());
    const uint64_t one = programs(), block_of_one = blocks();
    ASSERT_TRUE(processes_->plan({.lanes = 3}, &net_).ok());
    EXPECT_GE(programs(), one + 2 * process_growth_min);
    EXPECT_LE(programs(), 3 * one);   // files count once
    EXPECT_EQ(blocks(), 3 * block_of_one);

    ASSERT_TRUE(open("needs 64 MiB").ok());
    EXPECT_GT(programs(), one + 60 * mib);
    EXPECT_LT(programs(), one + 100 * mib);
    EXPECT_NE(processes_->process_text().find(" MiB a process ("), std::string::npos) << processes_->process_text();
}

TEST_F(AttachedNetTest, AProcessThatGrowsIsEndedAndSaid) {
    for (const bool group : {true, false}) {
        if (group && !group_room().bounds_memory()) continue;   // ControlGroup.MemoryIsBounded skips by name
        control_group_ = group;
        const Status opened = open("grows");
        ASSERT_TRUE(opened.ok()) << opened.what;
        processes_->limit(1, 0);
        KeepAll sink(net_->layout());
        const std::string error = train(&sink).what;
        EXPECT_EQ(error.find("the process of lane 0 (/usr/bin/env"), 0u) << error;
        EXPECT_NE(error.find("was ended by signal 9 (SIGKILL); it took more memory, with its children, than the "), error.npos) << error;
        EXPECT_TRUE(processes_->failed());
    }
}

TEST_F(AttachedNetTest, LanesMustBeAlike) {
    const std::string error = open("lanes differ", 2).what;
    EXPECT_NE(error.find("is not like that of lane 0: lane 1 has tensor c, which lane 0 has not"), error.npos) << error;
}

// Versions alone are no error.
TEST_F(AttachedNetTest, LibrariesOfLanesAreCompared) {
    uint64_t digest = 0, block_us = 0;
    ASSERT_TRUE(open("other libraries", 2).ok());
    Status status = processes_->measure(&digest, &block_us);
    EXPECT_TRUE(status.ok()) << status.what;
    {
        const std::lock_guard lock(mutex_);
        const std::string wanted = "other versions of libraries in lane 0 than in lane 1: blas none and 3.11: they compute the same bits";
        EXPECT_EQ(std::ranges::count(lines_, wanted), 1);
    }
    ASSERT_TRUE(open("other libraries compute otherwise", 2).ok());
    status = processes_->measure(&digest, &block_us);
    const std::string error = status.what;
    EXPECT_NE(error.find("computes other bits in lane 1"), error.npos) << error;
    EXPECT_TRUE(error.ends_with("; other versions of libraries in lane 0 than in lane 1: blas none and 3.11")) << error;
}

// Tensors that are not trained, and further names of tensors.
TEST_F(AttachedNetTest, ConstantsAndAliasesBelongToTheNet) {
    Status status = open("constants", 2);
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_EQ(constants_.size(), 19u);   // of lane 0 alone
    EXPECT_EQ(constants_.substr(16), "yes");
    std::vector<std::string> names;
    for (const LayerSpec& each : processes_->spec().layers) names.push_back(each.kind + " " + each.name);
    EXPECT_EQ(names, (std::vector<std::string>{"tensor w", "tensor b", "running n", "constant mask", "constant none", "constant flags",
                                               "alias tied.w", "alias m", "alias mask2", "process (process)"}));
    EXPECT_EQ(net_->layout().groups.size(), 3u);
    KeepAll sink(net_->layout());
    EXPECT_TRUE(train(&sink).ok());
    status = open("constants differ", 2);
    const std::string error = status.what;
    EXPECT_NE(error.find("is not like that of lane 0: constant mask is F32 [2,2] "), error.npos) << error;
    take_ = fail(Code::invalid, "no");
    EXPECT_NE(std::string_view(open("constants").what).find("sent what it may not: no"), std::string_view::npos);
    take_ = fail(Code::node_io, "the disk");
    status = open("constants");
    EXPECT_EQ(status.code, Code::node_io);
    EXPECT_EQ(std::string_view(status.what), "the disk");
    EXPECT_FALSE(processes_->failed());
}

TEST_F(AttachedNetTest, ACancelledBlockIsDrained) {
    ASSERT_TRUE(open("good").ok());
    struct Fails final : GradientSink {
        Status bucket(uint32_t, BlockId, uint32_t, Buffer) override { return fail(Code::cancelled, "enough"); }
        void loss(uint32_t, BlockId, double) override {}
    } fails;
    EXPECT_EQ(net_->block(0, {1, 0}, samples(block), fails).code, Code::cancelled);
    KeepAll once(net_->layout());
    ASSERT_TRUE(train(&once).ok());
    const std::vector<float> gradient = once.gradient;
    ASSERT_TRUE(open("good").ok());
    KeepAll again(net_->layout());
    ASSERT_TRUE(train(&again).ok());
    EXPECT_EQ(gradient, again.gradient);
}

TEST_F(AttachedNetTest, AProgramThatIsNotThereIsNamed) {
    AttachConfig missing = config("good");
    missing.command = {"no-such-program"};
    const std::string error = NetProcesses::open(missing, &processes_).what;
    EXPECT_NE(error.find("no-such-program"), error.npos) << error;
}

TEST(ProcessNet, IsNotComputedHere) {
    NetSpec spec{.C = 1, .H = 4, .W = 4, .classes = 3};
    spec.layers = {tensor_layer("w", std::vector<uint64_t>{3, 16}), {.kind = "running", .name = "n"}, {.kind = "process", .name = "p"}};
    std::vector<Layer> layers;
    const Status status = layers_check(spec, &layers);
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_EQ(layers[0].weight_shape, (std::vector<uint64_t>{3, 16}));
    EXPECT_EQ(layers[1].statistics, 2u);
    Arena arena;
    std::unique_ptr<Net> net;
    EXPECT_NE(std::string_view(net_cpu_plan(spec, {.lanes = 1, .samples_max = 1}, arena, &net).what).find("computed by a process"),
              std::string_view::npos);
    // Written and read again.
    LayerSpec again, constant;
    ASSERT_TRUE(layer_parse(layer_text(spec.layers[0]), &again));
    EXPECT_EQ(again.values, spec.layers[0].values);
    const Constant mask{"mask", {2, 0, 3}, "BF16", sha256_hex({})};
    ASSERT_TRUE(constant_check(mask).ok());
    ASSERT_TRUE(layer_parse(layer_text(constant_layer(mask)), &constant));
    const Constant found = constant_of(constant);
    EXPECT_EQ(found.name, mask.name);
    EXPECT_EQ(found.shape, mask.shape);
    EXPECT_EQ(found.dtype, mask.dtype);
    EXPECT_EQ(found.sha256, mask.sha256);
    EXPECT_EQ(found.bytes(), 0u);
    // Constants and aliases are as little computed as tensors.
    spec.layers.insert(spec.layers.end() - 1, {constant_layer(mask), alias_layer("v", "w"), alias_layer("q", "n")});
    EXPECT_TRUE(layers_check(spec, &layers).ok());
    for (const auto& [layer, says] : {std::pair{alias_layer("u", "x"), "from \"x\" is no layer before it"},
                                      {alias_layer("u", "v"), "alias u: v is no tensor"},
                                      {tensor_layer("u", std::vector<uint64_t>{2, 0}), "tensor u: it has no elements"}}) {
        NetSpec wrong = spec;
        wrong.layers.insert(wrong.layers.end() - 1, layer);
        const std::string error = layers_check(wrong, &layers).what;
        EXPECT_NE(error.find(says), error.npos) << error;
    }
    for (const Constant& wrong : {Constant{"c", {1}, "F8", mask.sha256},
                                  {"c", {1}, "F32", "12ab"},
                                  {"c", {1ull << 20, 1ull << 20}, "U8", mask.sha256},
                                  {"c", {1ull << 31, 3}, "F64", mask.sha256},
                                  {"c", {1ull << 60}, "U8", mask.sha256}})
        EXPECT_FALSE(constant_check(wrong).ok());
    NetSpec other = spec;
    EXPECT_EQ(constant_difference(spec, other), "");
    other.layers[2] = constant_layer({"mask", {2, 0, 3}, "F32", mask.sha256});
    EXPECT_EQ(constant_difference(spec, other), "mask");
    // Job files have other kinds.
    for (const LayerKind* kind : layer_kinds()) EXPECT_TRUE(kind->computed);
}

}   // namespace
}   // namespace gradcast
