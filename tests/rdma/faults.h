// Faults that soft-RoCE does not have: the test program takes functions of libibverbs and librdmacm over from libgradcast_rdma.so.
#pragma once
#include <atomic>

namespace gradcast {

inline std::atomic<bool> events_are_fatal{false};   // any asynchronous event of a device is IBV_EVENT_DEVICE_FATAL
inline std::atomic<bool> groups_refuse{false};      // rdma_join_multicast is answered by an error

}   // namespace gradcast

#ifdef GC_RDMA   // by make, where libgradcast_rdma.so is built
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <cerrno>

// They were loaded by libgradcast_rdma.so, so RTLD_NEXT does not find them.
template <typename Function>
Function* fault_next(const char* library, const char* name) {
    return reinterpret_cast<Function*>(::dlsym(::dlopen(library, RTLD_LAZY | RTLD_NOLOAD), name));
}

extern "C" {

int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
    static const auto next = fault_next<int(ibv_context*, ibv_async_event*)>("libibverbs.so.1", "ibv_get_async_event");
    const int result = next(context, event);
    if (result == 0 && gradcast::events_are_fatal) event->event_type = IBV_EVENT_DEVICE_FATAL;
    return result;
}

int rdma_get_cm_event(rdma_event_channel* channel, rdma_cm_event** event) {
    static const auto next = fault_next<int(rdma_event_channel*, rdma_cm_event**)>("librdmacm.so.1", "rdma_get_cm_event");
    const int result = next(channel, event);
    if (result == 0 && gradcast::groups_refuse && (*event)->event == RDMA_CM_EVENT_MULTICAST_JOIN) {
        (*event)->event = RDMA_CM_EVENT_MULTICAST_ERROR;
        (*event)->status = -EACCES;
    }
    return result;
}
}
#endif
