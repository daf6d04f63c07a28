// What differs between two programs, and what is made of a text that another node sends.
#include "runtime/core/inventory.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace gradcast {
namespace {

std::string differ(const std::vector<InventoryItem>& a, const std::vector<InventoryItem>& b) {
    return inventory_difference({"node a", inventory_write(a)}, {"node b", inventory_write(b)});
}

TEST(Inventory, NamesTheFirstThingThatDiffers) {
    const InventoryItem w{"tensor", "w", "[3]"}, c{"constant", "c", "F32 [2] 12ab"}, torch{"library", "torch", "2.1.0"};
    EXPECT_EQ(differ({torch, w, c}, {torch, w, c}), "");
    EXPECT_EQ(differ({torch, w}, {{"library", "torch", "1.13.1"}, w}), "");
    EXPECT_EQ(differ({w, c}, {w, {"constant", "c", "F32 [2] 34cd"}}), "constant c is F32 [2] 12ab at node a and F32 [2] 34cd at node b");
    EXPECT_EQ(differ({w, c}, {w}), "node a has constant c, which node b has not");
    EXPECT_EQ(differ({w}, {w, c}), "node b has constant c, which node a has not");
    EXPECT_EQ(differ({w, c}, {c, w}), "node a has tensor w where node b has constant c");
    EXPECT_EQ(differ({}, {}), "");
}

TEST(Inventory, ListsLibraries) {
    const auto versions = [](const std::vector<InventoryItem>& a, const std::vector<InventoryItem>& b) {
        return inventory_libraries(inventory_write(a), inventory_write(b));
    };
    const InventoryItem torch{"library", "torch", "2.1.0"}, numpy{"library", "numpy", "1.26.4"}, w{"tensor", "w", "[3]"};
    EXPECT_EQ(versions({torch, numpy, w}, {numpy, torch}), "");
    EXPECT_EQ(versions({torch, numpy}, {{"library", "torch", "1.13.1"}}), "numpy 1.26.4 and none, torch 2.1.0 and 1.13.1");
    EXPECT_EQ(versions({}, {torch}), "torch none and 2.1.0");
    std::vector<InventoryItem> many;
    for (int i = 0; i < 20; ++i) many.push_back({"library", fmt::format("l{:02}", i), std::string(500, 'v')});
    const std::string text = versions(many, {});
    EXPECT_TRUE(text.ends_with("and 12 more")) << text;
    EXPECT_LT(text.size(), 1200u);
}

TEST(Inventory, TakesAnyText) {
    for (const char* text : {"", "\n", "\t\t\n\t", "a\tb\n", "\n\n\n", "a\tb\tc\td"}) {
        EXPECT_EQ(inventory_difference({"a", text}, {"b", text}), "") << text;
        (void)inventory_libraries(text, "library\tx\t1");
    }
    EXPECT_EQ(inventory_parse("a\tb\tc\td\nonly\nx\ty\t\n").size(), 2u);
    const std::string lines = inventory_difference({"a", "source\tx\x1b[31m\ty"}, {"b", ""});
    EXPECT_EQ(lines, "a has source x?[31m, which b has not");
}

// The end is missing: what is not in the text may be there.
TEST(Inventory, IsBounded) {
    std::vector<InventoryItem> many, more;
    for (int i = 0; i < 20'000; ++i) many.push_back({"constant", fmt::format("name{:05}", i), "F32 [1] 0123456789abcdef"});
    EXPECT_LE(inventory_write(many).size(), inventory_bytes_max);
    more = many;
    more.insert(more.begin(), {"tensor", "first", "[1]"});
    EXPECT_EQ(differ(many, more), "");
    more[5].value = "F32 [1] 0";
    EXPECT_EQ(differ(many, more), "constant name00004 is F32 [1] 0123456789abcdef at node a and F32 [1] 0 at node b");
}

}   // namespace
}   // namespace gradcast
