#include "runtime/core/fd.h"

#include <dirent.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "runtime/core/clock.h"

namespace gradcast {
namespace {

constexpr size_t text_bytes_max = 64 << 20;   // bound of file_read()
constexpr uint64_t glob_entries_max = 100'000, glob_us_max = 2'000'000;

const char* kind_name(mode_t mode) {
    if (S_ISDIR(mode)) return "a folder";
    if (S_ISFIFO(mode)) return "a pipe";
    if (S_ISSOCK(mode)) return "a socket";
    return "a device";
}

/// Syncs the file's folder.  True also where the file system cannot, or the folder cannot be read.
bool folder_sync(const std::string& path) {
    const size_t slash = path.rfind('/');
    Fd fd(::open(slash == path.npos ? "." : path.substr(0, slash + 1).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    return (fd && ::fsync(fd.get()) == 0) || errno == EINVAL || errno == EACCES;
}

}   // namespace

void Fd::close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

Status file_open(const std::string& path, Fd* fd, uint64_t* bytes) {
    Fd opened(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    struct stat info;
    if (!opened && errno == ENXIO && ::stat(path.c_str(), &info) == 0)   // a socket, or a device without a driver
        return fail(Code::invalid, "cannot open {}: it is {}, not a file", path, kind_name(info.st_mode));
    if (!opened || ::fstat(opened.get(), &info) != 0) return fail_sys(errno, "cannot open {}", path);
    if (!S_ISREG(info.st_mode)) return fail(Code::invalid, "cannot open {}: it is {}, not a file", path, kind_name(info.st_mode));
    *fd = std::move(opened);
    if (bytes) *bytes = static_cast<uint64_t>(info.st_size);
    return {};
}

Status file_read(const std::string& path, std::string* text) {
    Fd fd;
    GC_TRY(file_open(path, &fd));
    std::string result;
    char chunk[65536];
    for (;;) {
        ssize_t got = ::read(fd.get(), chunk, sizeof chunk);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail_sys(errno, "cannot read {}", path);
        if (got == 0) break;
        result.append(chunk, static_cast<size_t>(got));
        if (result.size() > text_bytes_max)
            return fail(Code::invalid, "cannot read {}: it has more than {} MiB", path, text_bytes_max >> 20);
    }
    *text = std::move(result);
    return {};
}

namespace {
Status write_all(int fd, const std::string& path, std::string_view text) {
    while (!text.empty()) {
        const ssize_t put = ::write(fd, text.data(), text.size());
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return fail_sys(errno, "cannot write {}", path);
        text.remove_prefix(static_cast<size_t>(put));
    }
    return {};
}
}   // namespace

bool file_sync(const std::string& path) {
    Fd fd;
    return file_open(path, &fd).ok() && ::fsync(fd.get()) == 0;
}

Status file_append(const std::string& path, std::string_view text) {
    Fd fd(::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
    struct stat before;
    if (!fd || ::fstat(fd.get(), &before) != 0) return fail_sys(errno, "cannot write {}", path);
    const Status status = write_all(fd.get(), path, text);
    if (!status.ok()) (void)!::ftruncate(fd.get(), before.st_size);
    return status;
}

Status file_write(const std::string& path, std::string_view text, unsigned mode) {
    std::string part = path + ".part";
    Fd fd(::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode));
    if (!fd) return fail_sys(errno, "cannot create {}", part);
    if (Status status = write_all(fd.get(), path, text); !status.ok()) return ::unlink(part.c_str()), status;
    fd.close();
    if (Status status = file_rename(part, path); !status.ok()) return ::unlink(part.c_str()), status;
    return {};
}

Status file_rename(const std::string& from, const std::string& to) {
    // Also sync the folder before the rename: else a crash may leave neither name.
    if (!file_sync(from) || !folder_sync(from) || ::rename(from.c_str(), to.c_str()) != 0 || !folder_sync(to))
        return fail_sys(errno, "cannot write {}", to);
    return {};
}

Status make_directories(const std::string& path) {
    for (size_t at = 1; at <= path.size(); ++at) {
        if (at != path.size() && path[at] != '/') continue;
        std::string prefix = path.substr(0, at);
        if (::mkdir(prefix.c_str(), 0755) != 0 && errno != EEXIST) return fail_sys(errno, "cannot create the folder {}", prefix);
    }
    struct stat info;
    if (::stat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) return fail(Code::invalid, "{} is not a folder", path);
    return {};
}

bool file_is_pattern(std::string_view path) { return path.find_first_of("*?[") != path.npos; }

std::vector<std::string> folder_names(const std::string& path) {
    std::vector<std::string> names;
    const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(path.c_str()), &::closedir);
    while (const dirent* entry = folder ? ::readdir(folder.get()) : nullptr)
        if (const std::string_view name = entry->d_name; name != "." && name != "..") names.emplace_back(name);
    std::sort(names.begin(), names.end());
    return names;
}

Status file_glob(const std::string& pattern, std::vector<std::string>* paths, size_t literal) {
    if (pattern.size() >= PATH_MAX)
        return fail(Code::invalid, "a path of {} letters, {} at most are possible: {}…", pattern.size(), PATH_MAX - 1,
                    pattern.substr(0, 64));
    if (::access(pattern.c_str(), F_OK) == 0) {   // names may contain brackets
        *paths = {pattern};
        return {};
    }
    const uint64_t until_us = clock_us() + glob_us_max;
    uint64_t seen = 0;
    auto too_many = [&] { return ++seen > glob_entries_max || (seen % 64 == 0 && clock_us() > until_us); };
    auto too_wide = [&] { return fail(Code::invalid, "{}: too many files to look through: name them more closely", pattern); };
    std::vector<std::string> found = {pattern.substr(0, literal)};
    for (size_t at = literal; at <= pattern.size();) {
        const size_t end = std::min(pattern.find('/', at), pattern.size());
        const std::string part = pattern.substr(at, end - at), slash = end < pattern.size() ? "/" : "";
        at = end + 1;
        std::vector<std::string> next;
        for (const std::string& folder : found) {
            if (too_many()) return too_wide();
            if (part.find_first_of("*?[\\") == part.npos) {
                next.push_back(folder + part + slash);
                continue;
            }
            std::unique_ptr<DIR, int (*)(DIR*)> opened(::opendir(folder.empty() ? "." : folder.c_str()), &::closedir);
            while (dirent* entry = opened ? ::readdir(opened.get()) : nullptr) {
                if (too_many()) return too_wide();
                const bool leads_on = entry->d_type == DT_DIR || entry->d_type == DT_LNK || entry->d_type == DT_UNKNOWN;
                if ((slash.empty() || leads_on) && ::fnmatch(part.c_str(), entry->d_name, FNM_PERIOD) == 0)
                    next.push_back(folder + entry->d_name + slash);
            }
        }
        found = std::move(next);
    }
    std::erase_if(found, [](const std::string& path) { return ::access(path.c_str(), F_OK) != 0; });
    if (found.empty()) return fail(Code::data, "no file matches {}", pattern);
    std::sort(found.begin(), found.end());
    *paths = std::move(found);
    return {};
}

}   // namespace gradcast
