#include "runtime/core/inventory.h"

#include <fmt/format.h>

#include <map>
#include <utility>

namespace gradcast {
namespace {

constexpr size_t shown_max = 100, libraries_max = 8;   // bytes of a name or value in a message; libraries in a message

constexpr std::string_view cut = "more\t\t\n";   // ends a text that lacks items

std::string shown(std::string_view text) {
    std::string all(text.substr(0, shown_max));
    for (char& c : all)
        if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = '?';
    return all + (text.size() > shown_max ? "…" : "");
}

using Values = std::map<std::pair<std::string_view, std::string_view>, std::string_view>;   // by kind and name

Values values_of(const std::vector<InventoryItem>& items, bool libraries) {
    Values values;
    for (const InventoryItem& each : items)
        if ((each.kind == library_item) == libraries) values[{each.kind, each.name}] = each.value;
    return values;
}

}   // namespace

std::string inventory_write(const std::vector<InventoryItem>& items) {
    std::string text;
    for (const InventoryItem& each : items) {
        const std::string line = fmt::format("{}\t{}\t{}\n", each.kind, each.name, each.value);
        if (text.size() + line.size() + cut.size() > inventory_bytes_max) return text.append(cut);
        text += line;
    }
    return text;
}

std::vector<InventoryItem> inventory_parse(std::string_view text) {
    std::vector<InventoryItem> items;
    for (size_t begin = 0, end; begin < text.size(); begin = end + 1) {
        end = std::min(text.find('\n', begin), text.size());
        const std::string_view line = text.substr(begin, end - begin);
        const size_t name = line.find('\t'), value = name == line.npos ? name : line.find('\t', name + 1);
        if (value == line.npos) continue;
        items.push_back(
            {std::string(line.substr(0, name)), std::string(line.substr(name + 1, value - name - 1)), std::string(line.substr(value + 1))});
    }
    return items;
}

std::string inventory_difference(const NamedInventory& a, const NamedInventory& b) {
    const std::vector<InventoryItem> first = inventory_parse(a.text), second = inventory_parse(b.text);
    const Values at_first = values_of(first, false), at_second = values_of(second, false);
    const bool whole = !a.text.ends_with(cut) && !b.text.ends_with(cut);
    const auto only = [](const InventoryItem& item, const NamedInventory& has, const NamedInventory& lacks) {
        return fmt::format("{} has {} {}, which {} has not", has.name, shown(item.kind), shown(item.name), lacks.name);
    };
    for (const InventoryItem& each : first) {
        if (each.kind == library_item) continue;
        const auto other = at_second.find({each.kind, each.name});
        if (other == at_second.end() && whole) return only(each, a, b);
        if (other != at_second.end() && other->second != each.value)
            return fmt::format("{} {} is {} at {} and {} at {}", shown(each.kind), shown(each.name), shown(each.value), a.name,
                               shown(other->second), b.name);
    }
    if (!whole) return {};
    for (const InventoryItem& each : second)
        if (each.kind != library_item && !at_first.contains({each.kind, each.name})) return only(each, b, a);
    // All items are alike, so it is their order.
    for (size_t i = 0; i < std::min(first.size(), second.size()); ++i)
        if (first[i].kind != library_item && (first[i].kind != second[i].kind || first[i].name != second[i].name))
            return fmt::format("{} has {} {} where {} has {} {}", a.name, shown(first[i].kind), shown(first[i].name), b.name,
                               shown(second[i].kind), shown(second[i].name));
    return {};
}

std::string inventory_libraries(std::string_view a, std::string_view b) {
    const std::vector<InventoryItem> first = inventory_parse(a), second = inventory_parse(b);
    const Values at_first = values_of(first, true), at_second = values_of(second, true);
    std::map<std::string_view, std::pair<std::string_view, std::string_view>> versions;   // of all libraries
    for (const auto& [key, value] : at_first) versions[key.second] = {value, "none"};
    for (const auto& [key, value] : at_second) versions.try_emplace(key.second, "none", "").first->second.second = value;
    std::string text;
    size_t count = 0;
    for (const auto& [name, of] : versions) {
        if (of.first == of.second || ++count > libraries_max) continue;
        text += fmt::format("{}{} {} and {}", text.empty() ? "" : ", ", shown(name), shown(of.first), shown(of.second));
    }
    return count > libraries_max ? fmt::format("{} and {} more", text, count - libraries_max) : text;
}

}   // namespace gradcast
