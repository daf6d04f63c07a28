#include "transport/rdma/device.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/ranges.h>
#include <net/if.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "runtime/core/nearest.h"
#include "runtime/core/net/interface.h"

namespace gradcast::rdma {
namespace {

struct List {
    int count = 0;
    ibv_device** all = ibv_get_device_list(&count);
    ~List() {
        if (all) ibv_free_device_list(all);
    }
    std::span<ibv_device*> devices() const { return {all, all ? static_cast<size_t>(count) : 0}; }
};

const char* state_text(ibv_port_state state) {
    switch (state) {
        case IBV_PORT_ACTIVE: return "active";
        case IBV_PORT_DOWN: return "down";
        case IBV_PORT_INIT: return "waiting for a subnet manager";
        case IBV_PORT_ARMED: return "armed";
        default: return "of an unknown state";
    }
}

bool v4_mapped(const uint8_t* gid) {
    static constexpr uint8_t prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    return std::memcmp(gid, prefix, sizeof prefix) == 0;
}

// The GID: of `wanted` if that is an address, else RoCE v2 of an IPv4 address, of a global IPv6 address, any.
void choose_gid(ibv_context* context, const std::array<uint8_t, 16>* wanted, RdmaDevice* device) {
    int best = -1;
    for (uint32_t i = 0; i < 256; ++i) {
        ibv_gid_entry entry{};
        if (ibv_query_gid_ex(context, device->port, i, &entry, 0) != 0) continue;
        const uint8_t* raw = entry.gid.raw;
        int worth = entry.gid_type == IBV_GID_TYPE_ROCE_V1 ? 0 : v4_mapped(raw) ? 3 : raw[0] == 0xfe ? 1 : 2;
        if (wanted && std::memcmp(raw, wanted->data(), 16) == 0 && entry.gid_type != IBV_GID_TYPE_ROCE_V1) worth = 4;
        if (worth <= best) continue;
        best = worth;
        std::memcpy(device->gid.data(), raw, 16);
        device->gid_index = i;
        char name[IF_NAMESIZE] = "";
        device->interface = entry.ndev_ifindex && ::if_indextoname(entry.ndev_ifindex, name) ? name : "";
    }
}

void each_port(std::string_view only, const std::array<uint8_t, 16>* gid, std::vector<RdmaDevice>* found) {
    const List list;
    for (ibv_device* each : list.devices()) {
        const std::string name = ibv_get_device_name(each);
        if (!only.empty() && name != only) continue;
        ContextHandle context(ibv_open_device(each));
        ibv_device_attr attributes{};
        if (!context || ibv_query_device(context.get(), &attributes) != 0) continue;
        for (uint8_t number = 1; number <= attributes.phys_port_cnt; ++number) {
            ibv_port_attr port{};
            if (ibv_query_port(context.get(), number, &port) != 0) continue;
            RdmaDevice device;
            device.name = name;
            device.port = number;
            device.state = state_text(port.state);
            device.active = port.state == IBV_PORT_ACTIVE;
            device.infiniband = port.link_layer == IBV_LINK_LAYER_INFINIBAND;
            device.mtu = 128u << port.active_mtu;
            choose_gid(context.get(), gid, &device);
            found->push_back(std::move(device));
        }
    }
}

void unblock(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

// Drivers that cannot take a device from its users, like soft-RoCE, announce its removal to librdmacm's users alone.
void watch_place(Port& port) {
    sockaddr_storage address{};
    const auto& gid = port.about.gid;
    if (v4_mapped(gid.data())) {
        auto& v4 = reinterpret_cast<sockaddr_in&>(address);
        v4.sin_family = AF_INET;
        std::memcpy(&v4.sin_addr, gid.data() + 12, 4);
    } else {
        auto& v6 = reinterpret_cast<sockaddr_in6&>(address);
        v6.sin6_family = AF_INET6;
        std::memcpy(&v6.sin6_addr, gid.data(), 16);
        v6.sin6_scope_id = gid[0] == 0xfe ? ::if_nametoindex(port.about.interface.c_str()) : 0;
    }
    rdma_cm_id* id = nullptr;
    port.places.reset(rdma_create_event_channel());
    if (port.places && rdma_create_id(port.places.get(), &id, nullptr, RDMA_PS_TCP) == 0) {
        port.place.reset(id);
        unblock(port.places->fd);
        if (rdma_bind_addr(id, reinterpret_cast<sockaddr*>(&address)) == 0 && id->verbs &&
            ibv_get_device_name(id->verbs->device) == port.about.name)
            return;
    }
    port.place = nullptr;
    port.places = nullptr;
}

std::string label(const RdmaDevice& device) {
    return device.interface.empty() ? fmt::format("{}:{}", device.name, device.port)
                                    : fmt::format("{}:{} ({})", device.name, device.port, device.interface);
}

}   // namespace

Status devices(std::vector<RdmaDevice>* found) {
    each_port("", nullptr, found);
    return {};
}

Status find(const std::string& wanted, RdmaDevice* found) {
    std::array<uint8_t, 16> gid{};
    gid[10] = gid[11] = 0xff;
    const bool address =
        ::inet_pton(AF_INET, wanted.c_str(), gid.data() + 12) == 1 || ::inet_pton(AF_INET6, wanted.c_str(), gid.data()) == 1;
    std::vector<RdmaDevice> all;
    each_port("", address ? &gid : nullptr, &all);
    if (all.empty()) return fail(Code::unsupported, "this machine has no RDMA device that this user may open (ls /dev/infiniband)");
    std::string interface = wanted;
    if (address) {
        NetworkInterface here;
        GC_TRY(interface_find(wanted, &here));
        interface = here.name;
    }
    std::vector<const RdmaDevice*> fitting;
    std::vector<std::string> names, labels;
    for (const RdmaDevice& each : all) {
        names.push_back(each.name);
        labels.push_back(label(each));
        const bool fits = wanted.empty() ? each.active
                                         : wanted == each.name || wanted == fmt::format("{}:{}", each.name, each.port) ||
                                               (!each.interface.empty() && interface == each.interface);
        if (fits) fitting.push_back(&each);
    }
    if (fitting.empty() && wanted.empty()) return fail(Code::unsupported, "no RDMA device is active: {} {}", labels[0], all[0].state);
    if (fitting.empty()) {
        const std::string near = nearest(wanted, names);
        return fail(Code::invalid, "there is no RDMA device \"{}\" here{}: one of {}, or an address of one", wanted,
                    near.empty() ? "" : fmt::format(", did you mean \"{}\"", near), fmt::join(labels, ", "));
    }
    if (wanted.empty() && fitting.size() > 1)
        return fail(Code::invalid, "several RDMA devices are active, choose one (`device`): {}", fmt::join(labels, ", "));
    // Of several ports the first active one.
    const auto active = std::find_if(fitting.begin(), fitting.end(), [](const RdmaDevice* each) { return each->active; });
    const RdmaDevice& best = active == fitting.end() ? *fitting[0] : **active;
    if (!best.active)
        return fail(Code::invalid, "RDMA device {} is {}: {}, or choose another", label(best), best.state,
                    best.interface.empty() ? "see its cable and subnet manager" : fmt::format("ip link set {} up", best.interface));
    *found = best;
    return {};
}

Status port_open(const std::string& wanted, Port* port) {
    GC_TRY(find(wanted, &port->about));
    const List list;
    for (ibv_device* each : list.devices())
        if (port->about.name == ibv_get_device_name(each)) port->context.reset(ibv_open_device(each));
    if (!port->context) return fail_sys(errno, "cannot open RDMA device {}", port->about.name);
    ibv_context* const context = port->context.get();
    ibv_port_attr attributes{};
    if (ibv_query_port(context, static_cast<uint8_t>(port->about.port), &attributes) != 0 || ibv_query_device(context, &port->limits) != 0)
        return fail_sys(errno, "cannot ask RDMA device {}", port->about.name);
    port->mtu = attributes.active_mtu;
    port->lid = attributes.lid;
    port->domain.reset(ibv_alloc_pd(context));
    port->channel.reset(ibv_create_comp_channel(context));
    if (!port->domain || !port->channel) return fail_sys(errno, "RDMA device {} has no room for another program", port->about.name);
    unblock(port->channel->fd);
    unblock(context->async_fd);
    watch_place(*port);
    return {};
}

const char* Port::removed() {
    ibv_async_event event;
    while (ibv_get_async_event(context.get(), &event) == 0) {
        gone |= event.event_type == IBV_EVENT_DEVICE_FATAL;
        ibv_ack_async_event(&event);
    }
    for (rdma_cm_event* notice; places && rdma_get_cm_event(places.get(), &notice) == 0;) {
        gone |= notice->event == RDMA_CM_EVENT_DEVICE_REMOVAL;
        rdma_ack_cm_event(notice);
    }
    return gone ? "the device is removed" : nullptr;
}

Port::~Port() {
    memory.clear();
    place = nullptr;
    places = nullptr;
    channel = nullptr;
    domain = nullptr;
    context = nullptr;
    // librdmacm has the device open, too, and closes those that are no more when it is asked for all.
    if (gone) rdma_free_devices(rdma_get_devices(nullptr));
}

Status Slots::open(const Port& port, uint32_t count, uint32_t bytes) {
    const size_t all = size_t{count} * bytes;
    memory_ = std::make_unique<std::byte[]>(all);   // touched
    bytes_ = bytes;
    return memory_register(port, memory_.get(), all, &registered_);
}

Status memory_register(const Port& port, void* memory, size_t bytes, MemoryHandle* registered) {
    registered->reset(ibv_reg_mr(port.domain.get(), memory, bytes, IBV_ACCESS_LOCAL_WRITE));
    if (*registered) return {};
    const int error = errno;
    return fail_sys(error, "RDMA device {} may not lock {} KiB of memory{}", port.about.name, bytes / 1024,
                    error == ENOMEM ? ": raise RLIMIT_MEMLOCK (LimitMEMLOCK=infinity in the unit, ulimit -l unlimited)" : "");
}

}   // namespace gradcast::rdma
