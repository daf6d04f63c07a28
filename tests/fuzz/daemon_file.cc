// Whatever a gradcastd.toml holds: it is refused with at least one line, or this node is one of its members, each with a name of its own.
#include <algorithm>
#include <set>

#include "runtime/core/types.h"
#include "runtime/daemon/config.h"
#include "tests/fuzz/reached.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace gradcast;
    DaemonConfig config;
    std::vector<std::string> mistakes;
    const bool good = config_parse({reinterpret_cast<const char*>(data), size}, "gradcastd.toml", "/base", &config, &mistakes);
    GC_ASSERT(good == mistakes.empty());
    for (const std::string& mistake : mistakes) GC_ASSERT(mistake.starts_with("gradcastd.toml:"));
    if (!good) return 0;
    fuzz_reaches(config.members.size() > 1 ? 1 : 0);
    GC_ASSERT(config.self() < config.members.size() && config.members.size() <= ranks_max && config.lanes() > 0);
    std::set<std::string> names;
    for (const NodeAddress& each : config.members) GC_ASSERT(names.insert(each.name).second);
    GC_ASSERT(config.key.front() == '/' && config.state.front() == '/' && config.socket.front() == '/' && config.socket.size() <= 107);
    return 0;
}
