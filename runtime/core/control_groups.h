// The control groups (version 2 or 1) that this process is in.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace gradcast {

struct ControlGroup {
    bool two = false;           // of version 2
    std::string folder, path;   // folder: of its files; path: its name, as "/system.slice/gradcastd.service" or "/"
};
/// Calls `see` for each group of this process that may have limits of `controller` ("memory", "pids", "cpu"), from its own up to the root.
/// Reads small files under `root` (tests use another one).
void control_groups(const std::string& root, std::string_view controller, const std::function<void(const ControlGroup&)>& see);

/// The number after `name` at the start of a line; false: none.
bool number_after(std::string_view text, std::string_view name, uint64_t* number);
/// The number that a file begins with; false: there is none, as in "max".
bool number_in(const std::string& path, uint64_t* number);

}   // namespace gradcast
