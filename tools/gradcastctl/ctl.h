// What the files of gradcastctl share: the daemon that is asked, exit codes and errors.
#pragma once
#include <fmt/format.h>

#include <string>
#include <vector>

#include "tools/gradcastctl/target.h"

namespace gradcast {

enum Exit : int { exit_done = 0, exit_failed = 1, exit_usage = 2, exit_unreachable = 3 };

struct Options {
    Target target;                   // the daemon that is asked
    std::vector<Target> others;      // other daemons, where a job that is followed may go on
    std::vector<std::string> sets;   // --set, of job files
    bool json = false;               // -o json: the same content as the text, on stdout
};

/// -o json, once the command line is read; for complain() alone.
inline bool errors_as_json = false;

/// Prints "gradcastctl: text" on stderr, once, where the error is found; callers pass `exit` on.  With -o json also {"error": text, "exit":
/// code} on stdout.
int complain_text(Exit exit, const std::string& text);
template <typename... Args>
int complain(Exit exit, fmt::format_string<Args...> format, Args&&... args) {
    return complain_text(exit, fmt::format(format, std::forward<Args>(args)...));
}

constexpr char size_help[] = "resize the short side to so many pixels and cut a square out of the middle";
constexpr char exif_help[] = "as they are stored, not turned as their EXIF orientation says";

const char* shard_help();

}   // namespace gradcast
