#include <gtest/gtest.h>

#include "runtime/core/protocol.h"

namespace gradcast {
namespace {

struct Order {
    uint64_t number = 0;
    Rank rank = 0;
};
struct OtherOrder {   // of the same size and layout
    uint64_t number = 0;
    Rank rank = 0;
};

TEST(Event, IsOneOfItsKinds) {
    Event event{Event::Ready{3, 4}};
    ASSERT_TRUE(event.is<Event::Ready>());
    EXPECT_EQ(event.is<Event::Ready>()->bucket, 4u);
    EXPECT_FALSE(event.is<Event::Sent>());
    event.is<Event::Ready>()->bucket = 5;
    const Event copy = event;
    EXPECT_EQ(copy.is<Event::Ready>()->bucket, 5u);
    static_assert(std::is_trivially_copyable_v<Event> && sizeof(Event) <= 96);   // copied for every channel of a batch
}

TEST(Event, ACommandHasTheValueAndTheTypeOfItsProtocol) {
    const Event event = command_event(Order{7, 2});
    const Event copy = event;
    const auto* command = copy.is<Event::Command>();
    ASSERT_TRUE(command);
    EXPECT_EQ(command->as<Order>().number, 7u);
    EXPECT_EQ(command->as<Order>().rank, 2u);
    EXPECT_FALSE(command->is<OtherOrder>());
    EXPECT_DEATH((void)command->as<OtherOrder>(), "is<Payload>");
}

}   // namespace
}   // namespace gradcast
