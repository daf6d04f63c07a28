#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <mutex>
#include <string_view>

#include "runtime/core/version.h"
#include "transport/kernel/rdma.h"

namespace gradcast {
namespace {

Status load(const RdmaModule** module) {
    constexpr const char* name = "libgradcast_rdma.so";
    char program[PATH_MAX];
    const ssize_t size = ::readlink("/proc/self/exe", program, sizeof program);
    const std::string whole(program, size > 0 ? static_cast<size_t>(size) : 0), folder = whole.substr(0, whole.rfind('/') + 1);
    for (const std::string& path : {folder + name, folder + "../lib/" + name, folder + "../" + name}) {
        if (::access(path.c_str(), R_OK) != 0) continue;
        void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);   // never closed
        if (!library) return fail(Code::unsupported, "no RDMA: {} (package libibverbs1 or librdmacm1?)", ::dlerror());
        auto* entry = reinterpret_cast<const RdmaModule* (*)()>(::dlsym(library, "gradcast_rdma"));
        const RdmaModule* found = entry ? entry() : nullptr;
        if (!found || std::string_view(found->version) != version_text)
            return fail(Code::unsupported, "no RDMA: {} is of version {}, this program of {}: install both together", path,
                        found ? found->version : "?", version_text);
        *module = found;
        return {};
    }
    return fail(Code::unsupported, "no RDMA: {} is neither in {} nor in ../lib (make builds it where libibverbs-dev and librdmacm-dev are)",
                name, folder);
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
