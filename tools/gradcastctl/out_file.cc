#include "tools/gradcastctl/out_file.h"

#include <filesystem>

#include "tools/gradcastctl/ctl.h"

namespace gradcast {

int out_check(const std::string& out, const std::vector<std::string>& inputs, bool force) {
    std::error_code error;
    for (const std::string& each : inputs)
        if (std::filesystem::equivalent(out, each, error))
            return complain(exit_usage, "{} is {}, which is read: name another file", out, each);
    if (!force && std::filesystem::exists(out, error))
        return complain(exit_usage, "{} exists: --force replaces it, or name another file", out);
    return exit_done;
}

}   // namespace gradcast
