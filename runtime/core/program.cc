#include "runtime/core/program.h"

#include <errno.h>
#include <nss.h>
#include <sys/prctl.h>

#include <climits>
#include <filesystem>

#include "runtime/core/archive.h"

namespace gradcast {
namespace {

struct Place {
    bool archive = false;
    std::string folder = {};
};

const Place& place() {
    static const Place found = [] {
        char path[PATH_MAX];
        const ssize_t size = ::readlink("/proc/self/exe", path, sizeof path);
        const std::string_view exe(path, size > 0 ? static_cast<size_t>(size) : 0);
        if (exe.empty()) return Place{};
        if (exe.ends_with(archive::loader)) {
            const std::string root(exe.substr(0, exe.size() - (sizeof archive::loader - 1)));
            // The loader of the host has no libexec of ours beside it.
            const std::string program = root + archive::libexec + program_invocation_short_name;
            if (::access(program.c_str(), R_OK) == 0) return Place{true, root + "/bin"};
        }
        return Place{false, std::string(exe.substr(0, exe.rfind('/')))};
    }();
    return found;
}

}   // namespace

void program_begin() {
    if (!program_in_archive()) return;
    ::prctl(PR_SET_NAME, program_invocation_short_name);
    for (const char* users : {"passwd", "group", "shadow", "gshadow", "initgroups"}) __nss_configure_lookup(users, "files");
    for (const char* names : {"protocols", "services", "networks", "ethers", "rpc", "aliases"}) __nss_configure_lookup(names, "files");
    __nss_configure_lookup("hosts", "files dns");
}

bool program_in_archive() { return place().archive; }
const std::string& program_folder() { return place().folder; }

std::string program_file(std::string_view name, std::initializer_list<const char*> folders, int access) {
    if (program_folder().empty()) return {};
    for (const char* folder : folders) {
        std::string path = (std::filesystem::path(program_folder()) / folder / name).lexically_normal().string();
        if (::access(path.c_str(), access) == 0) return path;
    }
    return {};
}

}   // namespace gradcast
