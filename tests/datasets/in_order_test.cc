#include "datasets/in_order.h"

#include <atomic>
#include <mutex>
#include <set>
#include <thread>

#include "runtime/core/rng.h"
#include "tests/datasets/support.h"

namespace gradcast {
namespace {

struct Seen {
    std::mutex mutex;
    uint64_t bytes = 0, most = 0, items = 0, items_most = 0;
    void begin(uint64_t size) {
        std::lock_guard lock(mutex);
        bytes += size;
        most = std::max(most, bytes);
        items_most = std::max(items_most, ++items);
    }
    void end(uint64_t size) {
        std::lock_guard lock(mutex);
        bytes -= size;
        --items;
    }
};

TEST(InOrder, TakesInOrderWithinItsMemory) {
    constexpr uint64_t count = 500, bytes_max = 100;
    for (const uint32_t threads : {1u, 2u, 3u, 8u}) {
        auto size = [](uint64_t i) { return i % 97 == 5 ? 5 * bytes_max : i % 3 == 0 ? 40 : 7; };
        std::vector<uint64_t> slots(in_order_slots(threads)), taken;
        Seen seen;
        const Status status = in_order({.count = count,
                                        .threads = threads,
                                        .bytes_max = bytes_max,
                                        .bytes = size,
                                        .make =
                                            [&](uint64_t i, uint32_t slot) {
                                                seen.begin(size(i));
                                                if (const uint32_t wait = random4(Purpose::test, 1, i, 0)[0] % 4; wait == 0)
                                                    std::this_thread::sleep_for(std::chrono::microseconds(200));
                                                slots[slot] = i * i;
                                            },
                                        .take =
                                            [&](uint64_t i, uint32_t slot) {
                                                EXPECT_EQ(slots[slot], i * i);
                                                taken.push_back(i);
                                                seen.end(size(i));
                                                return Status();
                                            }});
        ASSERT_TRUE(status.ok()) << status.what;
        ASSERT_EQ(taken.size(), count);
        for (uint64_t i = 0; i < count; ++i) ASSERT_EQ(taken[i], i);
        EXPECT_LE(seen.most, 5 * bytes_max);   // one that is larger than all together is alone
        EXPECT_LE(seen.items_most, slots.size());
        if (threads > 1) {
            EXPECT_GT(seen.items_most, 1u);
        }
    }
}

TEST(InOrder, AnErrorEndsTheWork) {
    for (const uint32_t threads : {1u, 4u}) {
        std::atomic<uint64_t> made{0}, taken{0};
        const Status status = in_order({.count = 1'000'000,
                                        .threads = threads,
                                        .bytes_max = 10,
                                        .bytes = [](uint64_t) { return 1; },
                                        .make = [&](uint64_t, uint32_t) { ++made; },
                                        .take =
                                            [&](uint64_t i, uint32_t) {
                                                ++taken;
                                                return i == 20 ? fail(Code::data, "number 20") : Status();
                                            }});
        expect_error(status, {"number 20"});
        EXPECT_EQ(taken, 21u);
        EXPECT_LE(made, 21u + in_order_slots(threads));
    }
}

TEST(InOrder, NothingIsDoneAtOnce) {
    EXPECT_TRUE(in_order({.count = 0, .threads = 4, .bytes_max = 1, .bytes = {}, .make = {}, .take = {}}).ok());
}

}   // namespace
}   // namespace gradcast
