#include "runtime/core/run_folder.h"

#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>

namespace gradcast {

Status run_folder_make(std::string* folder) {
    constexpr size_t path_bytes_max = 60;
    const char* wanted = std::getenv("TMPDIR");
    char here[PATH_MAX];
    const char* working = ::getcwd(here, sizeof here);
    int error = ENAMETOOLONG;
    for (const char* base : {wanted, "/tmp", working}) {
        if (!base || base[0] != '/' || std::string_view(base).size() > path_bytes_max) continue;
        std::string made = std::string(base) + "/gradcast-XXXXXX";
        if (::mkdtemp(made.data())) {
            *folder = std::move(made);
            return {};
        }
        error = errno;
    }
    return fail_sys(error,
                    "cannot make a folder in TMPDIR, /tmp or the working folder: set TMPDIR to a folder that can be written, with a path "
                    "of at most 60 bytes");
}

}   // namespace gradcast
