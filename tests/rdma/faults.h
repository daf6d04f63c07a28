// Faults that soft-RoCE does not have: the test program takes functions of libibverbs and librdmacm over from libgradcast_rdma.so.
#pragma once
#include <sys/eventfd.h>

#include <atomic>
#include <mutex>
#include <vector>

namespace gradcast {

/// Of every device that is open: its asynchronous events come from an eventfd, and each is IBV_EVENT_DEVICE_FATAL.
struct DeviceFaults {
    std::mutex mutex;
    std::vector<int> events;   // stay open
    void all_fail() {
        std::lock_guard lock(mutex);
        for (const int event : events) (void)::eventfd_write(event, 1);
    }
};
inline DeviceFaults device_faults;
inline std::atomic<bool> groups_refuse{false};   // rdma_join_multicast is answered by an error

}   // namespace gradcast

#if __has_include(<infiniband/verbs.h>) && __has_include(<rdma/rdma_cma.h>)
#include <dlfcn.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <unistd.h>

#include <cerrno>

// They were loaded by libgradcast_rdma.so, so RTLD_NEXT does not find them.
template <typename Function>
Function* fault_next(const char* library, const char* name) {
    return reinterpret_cast<Function*>(::dlsym(::dlopen(library, RTLD_LAZY | RTLD_NOLOAD), name));
}

extern "C" {

ibv_context* ibv_open_device(ibv_device* device) {
    static const auto next = fault_next<ibv_context*(ibv_device*)>("libibverbs.so.1", "ibv_open_device");
    ibv_context* const context = next(device);
    const int events = context ? ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1;
    if (events < 0) return context;
    ::dup3(events, context->async_fd, O_CLOEXEC);
    std::lock_guard lock(gradcast::device_faults.mutex);
    gradcast::device_faults.events.push_back(events);
    return context;
}

int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
    eventfd_t count;
    if (::eventfd_read(context->async_fd, &count) != 0) return -1;
    *event = {};
    event->event_type = IBV_EVENT_DEVICE_FATAL;
    return 0;
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
