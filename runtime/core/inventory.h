// What a program of net.command consists of, item by item, as a text that nodes send each other.  Whether two nodes have the same program
// is decided by digests.  The text then says what differs.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace gradcast {

struct InventoryItem {
    std::string kind, name, value;   // "source", "train.py", 64 hex digits: without control characters
};
constexpr char library_item[] = "library";          // an item of this kind may differ where bits agree
constexpr size_t inventory_bytes_max = 256 << 10;   // of the text

/// A line an item: kind, name and value with tabs between.  The text ends where the next item does not fit into inventory_bytes_max bytes,
/// and says so.
std::string inventory_write(const std::vector<InventoryItem>& items);
/// Reads a text from outside.  Lines that are no item are left out.
std::vector<InventoryItem> inventory_parse(std::string_view text);

/// A text from outside, and how messages name whose it is.
struct NamedInventory {
    std::string_view name, text;
};
/// The first item, libraries apart, that two programs have otherwise: "source train.py is 12ab at node a and 34cd at node b".  Empty: the
/// texts show no difference.  One line.
std::string inventory_difference(const NamedInventory& a, const NamedInventory& b);
/// The libraries of which two programs have other versions, as many as fit into a message: "torch 2.1.0 and 1.13.1, numpy 1.26.4 and none".
/// Empty: none.  One line.
std::string inventory_libraries(std::string_view a, std::string_view b);

}   // namespace gradcast
