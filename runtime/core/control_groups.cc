#include "runtime/core/control_groups.h"

#include <charconv>
#include <vector>

#include "runtime/core/fd.h"

namespace gradcast {
namespace {

std::vector<std::string_view> split(std::string_view text, char by) {
    std::vector<std::string_view> parts;
    for (size_t at = 0; at <= text.size();) {
        const size_t end = std::min(text.find(by, at), text.size());
        parts.push_back(text.substr(at, end - at));
        at = end + 1;
    }
    return parts;
}

bool has(std::string_view list, std::string_view word) {
    for (std::string_view each : split(list, ','))
        if (each == word) return true;
    return false;
}

}   // namespace

bool number_after(std::string_view text, std::string_view name, uint64_t* number) {
    for (size_t at = text.find(name); at != text.npos; at = text.find(name, at + 1)) {
        if (at > 0 && text[at - 1] != '\n') continue;
        at = text.find_first_not_of(" \t", at + name.size());
        return at != text.npos && std::from_chars(text.data() + at, text.data() + text.size(), *number).ec == std::errc();
    }
    return false;
}

bool number_in(const std::string& path, uint64_t* number) {
    std::string text;
    return file_read(path, &text).ok() && number_after(text, "", number);
}

void control_groups(const std::string& root, std::string_view controller, const std::function<void(const ControlGroup&)>& see) {
    std::string mounts, groups;
    if (!file_read(root + "/proc/self/mountinfo", &mounts).ok() || !file_read(root + "/proc/self/cgroup", &groups).ok()) return;
    for (std::string_view line : split(mounts, '\n')) {
        const size_t dash = line.find(" - ");   // id parent device root mount-point options… - type source super-options
        if (dash == line.npos) continue;
        const auto mount = split(line, ' '), type = split(line.substr(dash + 3), ' ');
        if (mount.size() < 5 || type.size() < 3) continue;
        const bool two = type[0] == "cgroup2";
        if (!two && (type[0] != "cgroup" || !has(type[2], controller))) continue;
        for (std::string_view group : split(groups, '\n')) {   // number:controllers:/path
            const size_t first = group.find(':'), second = group.find(':', first + 1);
            if (second == group.npos) continue;
            const std::string_view controllers = group.substr(first + 1, second - first - 1);
            if (two ? !controllers.empty() : !has(controllers, controller)) continue;
            std::string_view rest = group.substr(second + 1);
            if (mount[3] != "/" && rest.starts_with(mount[3])) rest.remove_prefix(mount[3].size());   // a container sees a part
            while (rest.ends_with('/')) rest.remove_suffix(1);
            for (std::string path(rest);; path.resize(path.rfind('/'))) {
                see({two, root + std::string(mount[4]) + path, path.empty() ? "/" : path});
                if (path.find('/') == path.npos) break;
            }
        }
    }
}

}   // namespace gradcast
