#include "runtime/core/fd.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace gradcast {

void Fd::close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

constexpr size_t text_bytes_max = 64 << 20;   // far beyond any file that is read whole; /dev/zero has no end

Status file_read(const std::string& path, std::string* text) {
    Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd) return fail_sys(errno, "cannot open {}", path);
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

Status file_write(const std::string& path, std::string_view text, unsigned mode) {
    std::string part = path + ".part";
    Fd fd(::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode));
    if (!fd) return fail_sys(errno, "cannot create {}", part);
    auto failed = [&] {
        Status status = fail_sys(errno, "cannot write {}", path);
        ::unlink(part.c_str());
        return status;
    };
    while (!text.empty()) {
        ssize_t put = ::write(fd.get(), text.data(), text.size());
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return failed();
        text.remove_prefix(static_cast<size_t>(put));
    }
    if (::fsync(fd.get()) != 0 || ::rename(part.c_str(), path.c_str()) != 0) return failed();
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

Status file_glob(const std::string& pattern, std::vector<std::string>* paths) {
    if (::access(pattern.c_str(), F_OK) == 0) {   // a shell hands over names with brackets in them as they are
        *paths = {pattern};
        return {};
    }
    glob_t found;
    int error = ::glob(pattern.c_str(), 0, nullptr, &found);
    std::vector<std::string> result;
    if (error == 0) result.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    ::globfree(&found);
    if (result.empty()) return fail(Code::data, "no file matches {}", pattern);
    *paths = std::move(result);
    return {};
}

}   // namespace gradcast
