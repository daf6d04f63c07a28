#include <dlfcn.h>

#include <mutex>
#include <string_view>

#include "runtime/core/fd.h"
#include "runtime/core/program.h"
#include "runtime/core/version.h"
#include "transport/kernel/rdma.h"

namespace gradcast {
namespace {

/// Opens the drivers of devices that an archive has, which then register themselves with libibverbs.  libibverbs alone would search the
/// folders of the host, whose drivers are of the host's version.
Status providers_open() {
    if (!program_in_archive()) return {};
    const std::string folder = program_file("libibverbs", {"../lib"});
    for (const std::string& name : folder_names(folder))
        if (!::dlopen((folder + "/" + name).c_str(), RTLD_NOW | RTLD_LOCAL)) return fail(Code::unsupported, "no RDMA: {}", ::dlerror());
    return {};
}

Status load(const RdmaModule** module) {
    constexpr const char* name = "libgradcast_rdma.so";
    const std::string path = program_file(name, {".", "../lib", ".."});   // "..": tests, whose folder is in that of the build
    if (path.empty())
        return fail(Code::unsupported,
                    "no RDMA: {} is neither in {} nor in ../lib (make builds it where libibverbs-dev and librdmacm-dev are)", name,
                    program_folder());
    void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);   // never closed
    if (!library) return fail(Code::unsupported, "no RDMA: {} (package libibverbs1 or librdmacm1?)", ::dlerror());
    GC_TRY(providers_open());
    auto* entry = reinterpret_cast<const RdmaModule* (*)()>(::dlsym(library, "gradcast_rdma"));
    const RdmaModule* found = entry ? entry() : nullptr;
    if (!found || std::string_view(found->version) != version_text)
        return fail(Code::unsupported, "no RDMA: {} is of version {}, this program of {}: install both together", path,
                    found ? found->version : "?", version_text);
    *module = found;
    return {};
}

}   // namespace

Status rdma_module(const RdmaModule** module) {
    static std::mutex mutex;
    static const RdmaModule* loaded = nullptr;
    static Status status;
    std::lock_guard lock(mutex);
    if (!loaded && status.ok()) status = load(&loaded);
    *module = loaded;
    return status;
}

}   // namespace gradcast
