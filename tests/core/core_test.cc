#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "runtime/core/arena.h"
#include "runtime/core/crypto.h"
#include "runtime/core/digest.h"
#include "runtime/core/lanes.h"
#include "runtime/core/nearest.h"
#include "runtime/core/profile.h"
#include "runtime/core/rng.h"
#include "runtime/core/short_texts.h"

namespace gradcast {
namespace {

TEST(Status, KeepsItsText) {
    Status status = fail(Code::data, "shard {} is {}", "a.h5", 7);
    EXPECT_EQ(status.code, Code::data);
    EXPECT_STREQ(status.what, "shard a.h5 is 7");
    EXPECT_EQ(status.what, fail(Code::data, "shard a.h5 is 7").what);   // equal texts are stored once
}

TEST(Status, NamesTheLimitOfOpenFiles) {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    EXPECT_EQ(fail_sys(EMFILE, "cannot open {}", "x").what,
              fmt::format("cannot open x: Too many open files (RLIMIT_NOFILE is {}: raise it by ulimit -n, or LimitNOFILE= of systemd)",
                          limit.rlim_cur));
}

TEST(Status, KeepsABoundedNumberOfTexts) {
    const Status kept = fail(Code::data, "made again and again");
    std::vector<Status> old;
    for (int i = 0; i < 100'000; ++i) {
        const Status status = fail(Code::data, "{}{}", std::string(i % 7 == 0 ? 3000 : 60, 'x'), i);
        ASSERT_TRUE(std::string(status.what).ends_with(std::to_string(i)));
        if (i % 1000 == 0) {
            EXPECT_EQ(fail(Code::data, "made again and again").what, kept.what);
        }
        if (i % 500 == 0) old.push_back(status);
    }
    EXPECT_STREQ(kept.what, "made again and again");
    const struct mallinfo2 before = ::mallinfo2();
    for (int i = 0; i < 100'000; ++i) (void)fail(Code::data, "{}{}", std::string(100, 'y'), i).ok();
    EXPECT_LT(::mallinfo2().uordblks, before.uordblks + 100'000);              // no growth when all slots are in use
    for (const Status& each : old) EXPECT_LT(std::strlen(each.what), 4000u);   // old texts stay readable, with any content
    EXPECT_EQ(std::strlen(fail(Code::data, "{}", std::string(100'000, 'z')).what), (16u << 10) - 1);
}

TEST(Status, WhatStrangersCausePushesNothingOut) {
    const Status kept = fail(Code::data, "of a job");
    std::thread([] {
        const ShortTexts scope;
        for (int i = 0; i < 100'000; ++i) {
            const Status status = fail_sys(ENOENT, "there is no job {}", i);
            ASSERT_EQ(status.what, fmt::format("there is no job {}: No such file or directory", i));
        }
    }).join();
    EXPECT_STREQ(kept.what, "of a job");
}

// Known answers of Philox4x32-10 from the authors' test vectors (Salmon et al. 2011, kat_vectors).
TEST(Rng, PhiloxKnownAnswers) {
    EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (Philox{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
    uint32_t f = 0xffffffff;
    EXPECT_EQ(philox({f, f, f, f}, {f, f}), (Philox{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
    EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
              (Philox{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Digest, AddsUpOverRanges) {
    std::vector<float> values(1000);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 0.1f;
    std::span<const float> all = values;
    EXPECT_EQ(digest64(all), digest64(all.first(300)) + digest64(all.subspan(300), 300));
    uint64_t before = digest64(all);
    values[500] = -values[500];
    EXPECT_NE(digest64(all), before);
    EXPECT_EQ(sha256_hex(std::as_bytes(std::span("abc", 3))), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512})
        for (uint32_t count = 0; count < 700 && isa <= isa_best(); ++count) {
            const auto* words = reinterpret_cast<const uint32_t*>(all.data());
            uint64_t sum = 0;
            for (uint64_t i = 250; i < count + 250; ++i)
                sum += (splitmix64(~(i % 256)) >> 33 | 1) * (splitmix64(i / 256) | 1) * words[i - 250];
            EXPECT_EQ(digest64_of(isa)(words, count, 250), sum) << isa_name(isa) << ' ' << count;
        }
}

TEST(Arena, CarvesAlignedAndApart) {
    Arena arena;
    Buffer a, b, c;
    arena.plan("a", 100, &a);
    arena.plan("b", 1 << 20, &b);
    arena.plan("a", 1, &c);
    ASSERT_TRUE(arena.seal().ok());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b.host) % 4096, 0u);
    EXPECT_GE(b.host, a.host + 100);
    EXPECT_GE(c.host, b.host + (1 << 20));
    EXPECT_EQ(c.host[0], std::byte{0});
    EXPECT_NE(arena.budget().find("b 1.0 MiB"), std::string::npos);
}

TEST(Aead, FindsEveryFlippedBit) {
    Key key{1, 2, 3};
    for (auto [protect, size] :
         {std::pair(Protect::auth, tag_bytes), {Protect::auth, 12u}, {Protect::encrypt, tag_bytes}, {Protect::encrypt, 12u}}) {
        Aead aead;
        aead.key(key, protect);
        std::vector<std::byte> head(48, std::byte{7}), payload(100, std::byte{9}), out(100), tag(size);
        aead.seal(5, head, payload, out.data(), tag);
        auto& wire = protect == Protect::encrypt ? out : payload;
        EXPECT_EQ(protect == Protect::encrypt, out != payload && out != std::vector<std::byte>(100));
        for (size_t bit = 0; bit < 8 * (head.size() + wire.size() + tag.size()); bit += 13) {
            auto h = head, w = wire, t = tag;
            size_t at = bit / 8;
            auto& byte = at < h.size() ? h[at] : at < h.size() + w.size() ? w[at - h.size()] : t[at - h.size() - w.size()];
            byte ^= std::byte(1 << bit % 8);
            EXPECT_FALSE(aead.open(5, h, w, t)) << bit;
        }
        auto w = wire;
        EXPECT_FALSE(aead.open(6, head, w, tag));
        w = wire;
        EXPECT_TRUE(aead.open(5, head, w, tag));
        EXPECT_EQ(w, payload);
    }
}

TEST(Lanes, RunEveryItemOnce) {
    for (uint32_t count : {0u, 1u, 3u}) {
        Lanes lanes;
        ASSERT_TRUE(lanes.open(count).ok());
        for (int round = 0; round < 50; ++round) {
            std::vector<std::atomic<int>> seen(17);
            lanes.run(17, [&](uint32_t lane, uint32_t item) {
                EXPECT_LT(lane, lanes.count());
                ++seen[item];
            });
            for (auto& each : seen) EXPECT_EQ(each, 1);
        }
    }
}

TEST(Lanes, WorkSideBySideWithTheCaller) {
    Lanes lanes;
    ASSERT_TRUE(lanes.open(3).ok());
    const std::thread::id caller = std::this_thread::get_id();
    for (int round = 0; round < 20; ++round) {
        std::atomic<uint32_t> begun = 0;
        lanes.run(3, [&](uint32_t lane, uint32_t) {
            EXPECT_EQ(lane == 0, std::this_thread::get_id() == caller);
            ++begun;
            for (int ms = 0; begun < 3 && ms < 10'000; ++ms) std::this_thread::sleep_for(std::chrono::milliseconds(1));
            EXPECT_EQ(begun, 3u);   // each of the three waits for the others
        });
    }
}

TEST(Nearest, FindsTheSlipOfTheFinger) {
    std::vector<std::string> names{"nodes", "local", "json"};
    EXPECT_EQ(nearest("node", names), "nodes");
    EXPECT_EQ(nearest("lcoal", names), "local");
    EXPECT_EQ(nearest("elephant", names), "");
    names = {"adam", "adamw", "lamb", "SGD", "N"};
    EXPECT_EQ(nearest("adamW", names), "adamw");   // another case is no other name
    EXPECT_EQ(nearest("ADAM", names), "adam");
    EXPECT_EQ(nearest("sgd", names), "SGD");
    EXPECT_EQ(nearest("n", names), "N");
    EXPECT_EQ(nearest("", {}), "");
}

TEST(Profile, AnEventNamesItsStageAndMicroBatch) {
    Profile profile(4);
    profile.on(true);
    profile.add(0, "forward", {}, 1'000'000, 3'000'000, {.stage = 2, .micro_batch = 7});
    profile.add(Profile::trainer, "values", "conv1", 0, 1'000'000, {.stage = 2, .micro_batch = 7});
    profile.add(0, "forward", "conv2", 1'000'000, 2'000'000);
    const std::string json = profile.json(1, "b");
    EXPECT_NE(json.find(R"({"name":"forward micro-batch 7","cat":"forward","ph":"X","pid":1,"tid":0,"ts":1000.000,"dur":2000.000,)"
                        R"("args":{"stage":2,"micro_batch":7}})"),
              std::string::npos)
        << json;
    EXPECT_NE(json.find(R"("name":"values conv1","cat":"values")"), std::string::npos) << json;
    EXPECT_NE(json.find(R"({"name":"forward conv2","cat":"forward","ph":"X","pid":1,"tid":0,"ts":1000.000,"dur":1000.000})"),
              std::string::npos)
        << json;
}

}   // namespace
}   // namespace gradcast
