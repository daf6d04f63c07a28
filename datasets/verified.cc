// The record is text: a first line, then a line for each shard: SHA-256 of what the shard is known by, and when it was verified, in seconds
// since 1970, oldest first.
#include "datasets/verified.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <vector>

#include "datasets/reader.h"
#include "runtime/core/clock.h"
#include "runtime/core/digest.h"

namespace gradcast {
namespace {

constexpr std::string_view verified_first_line = "gradcast verified shards 1\n";
constexpr size_t key_digits = 64;
constexpr uint64_t save_us = 1'000'000;   // between two writes, so that an end of the process costs little
constexpr useconds_t lock_poll_us = 10'000;

struct Entry {
    std::string key;
    uint64_t verified = 0;   // seconds since 1970
};

uint64_t ns_of(const timespec& time) { return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec); }

/// What a file is known by, as text; its access time is no part of it.
std::string identity_text(const struct stat& file) {
    return fmt::format("{} {} {} {} {}", file.st_dev, file.st_ino, file.st_size, ns_of(file.st_mtim), ns_of(file.st_ctim));
}

/// A folder that several hosts share may hold the record.  Their numbers of devices and inodes may be equal, as of disks that were cloned.
std::string host_name() {
    utsname host{};
    return ::uname(&host) == 0 ? host.nodename : "";
}

std::string key_of(const std::string& host, const struct stat& file, const Shard& shard) {
    const std::string text = fmt::format("{}\n{}\n{}", host, identity_text(file), shard_digest(shard));
    return sha256_hex(std::as_bytes(std::span(text)));
}

/// Empty if any line is not as this file writes it.
std::vector<Entry> record_parse(std::string_view text) {
    if (!text.starts_with(verified_first_line)) return {};
    text.remove_prefix(verified_first_line.size());
    std::vector<Entry> entries;
    while (!text.empty()) {
        const size_t end = text.find('\n');
        if (end == text.npos || end < key_digits + 2 || text[key_digits] != ' ') return {};
        Entry entry{std::string(text.substr(0, key_digits)), 0};
        if (entry.key.find_first_not_of("0123456789abcdef") != entry.key.npos) return {};
        const auto [read, error] = std::from_chars(text.data() + key_digits + 1, text.data() + end, entry.verified);
        if (error != std::errc() || read != text.data() + end) return {};
        entries.push_back(std::move(entry));
        text.remove_prefix(end + 1);
    }
    return entries;
}

std::vector<Entry> record_read(const std::string& path) {
    std::string text;
    return ::access(path.c_str(), R_OK) == 0 && file_read(path, &text).ok() ? record_parse(text) : std::vector<Entry>();
}

/// Takes the lock of a folder.  True also where the file system has no locks: two writers may then spoil the record, which costs a
/// verification.
bool folder_lock(const Fd& folder) {
    for (const uint64_t until_us = clock_us() + verified_lock_us; ::flock(folder.get(), LOCK_EX | LOCK_NB) != 0; ::usleep(lock_poll_us))
        if (errno != EWOULDBLOCK && errno != EINTR) return true;
        else if (clock_us() > until_us) return false;
    return true;
}

/// Adds entries to what the record holds by now.  A record that cannot be written stays as it is.
void record_add(const std::string& path, const std::vector<Entry>& added) {
    const std::filesystem::path folder = std::filesystem::path("." / std::filesystem::path(path)).parent_path();
    (void)::mkdir(folder.parent_path().c_str(), 0700);
    (void)::mkdir(folder.c_str(), 0700);
    const Fd lock(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!lock || !folder_lock(lock)) return;
    std::vector<Entry> entries = record_read(path);
    std::set<std::string_view> anew;
    for (const Entry& entry : added) anew.insert(entry.key);
    std::erase_if(entries, [&](const Entry& entry) { return anew.contains(entry.key); });
    entries.insert(entries.end(), added.begin(), added.end());
    if (entries.size() > verified_max) entries.erase(entries.begin(), entries.end() - verified_max);
    std::string text(verified_first_line);
    for (const Entry& entry : entries) text += fmt::format("{} {}\n", entry.key, entry.verified);
    (void)file_write(path, text, 0600).ok();
}

}   // namespace

std::string verified_path_of_user() {
    const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
    const std::string base = cache && *cache == '/' ? cache : home && *home == '/' ? std::string(home) + "/.cache" : "";
    return base.empty() ? "" : base + "/gradcast/" + verified_name;
}

uint64_t unix_ns() {
    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return ns_of(now);
}

Status data_verify_once(const DataSet& data, const std::string& record, const std::atomic<bool>* stop, uint64_t (*now)()) {
    if (record.empty()) return data_verify(data, stop);
    std::set<std::string> known;
    for (Entry& entry : record_read(record)) known.insert(std::move(entry.key));
    const std::string host = host_name();
    std::vector<Entry> added;
    uint64_t saved_us = clock_us();
    Status status;
    for (uint32_t i = 0; i < data.shards().size() && status.ok(); ++i) {
        const Shard& shard = data.shards()[i];
        struct stat before {
        }, after{};
        const bool seen = ::fstat(data.fd(i), &before) == 0;
        const std::string key = seen ? key_of(host, before, shard) : "";
        if (known.contains(key)) continue;
        const uint64_t begin_ns = now();
        status = shard_verify(shard, data.fd(i), stop);
        // A write within the resolution of time stamps may have left mtime and ctime as they were, so a file must have rested.
        const bool rested = begin_ns >= std::max(ns_of(before.st_mtim), ns_of(before.st_ctim)) + verified_age_ns;
        if (status.ok() && seen && rested && ::fstat(data.fd(i), &after) == 0 && identity_text(before) == identity_text(after))
            added.push_back({key, now() / 1'000'000'000});
        if (added.empty() || clock_us() - saved_us < save_us) continue;
        record_add(record, added);
        added.clear();
        saved_us = clock_us();
    }
    if (!added.empty()) record_add(record, added);
    return status;
}

}   // namespace gradcast
