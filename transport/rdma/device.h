// RDMA devices: finding one, opening it, memory that it may read and write.
#pragma once
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include <memory>
#include <vector>

#include "transport/kernel/rdma.h"

namespace gradcast::rdma {

template <auto close>
struct Closer {
    template <typename Thing>
    void operator()(Thing* thing) const {
        (void)close(thing);
    }
};
using ContextHandle = std::unique_ptr<ibv_context, Closer<ibv_close_device>>;
using DomainHandle = std::unique_ptr<ibv_pd, Closer<ibv_dealloc_pd>>;
using ChannelHandle = std::unique_ptr<ibv_comp_channel, Closer<ibv_destroy_comp_channel>>;
using QueueHandle = std::unique_ptr<ibv_cq, Closer<ibv_destroy_cq>>;
using PairHandle = std::unique_ptr<ibv_qp, Closer<ibv_destroy_qp>>;
using MemoryHandle = std::unique_ptr<ibv_mr, Closer<ibv_dereg_mr>>;
using AddressHandle = std::unique_ptr<ibv_ah, Closer<ibv_destroy_ah>>;
using EventsHandle = std::unique_ptr<rdma_event_channel, Closer<rdma_destroy_event_channel>>;
using PlaceHandle = std::unique_ptr<rdma_cm_id, Closer<rdma_destroy_id>>;

/// An open port.  Destroyed last: queue pairs and memory belong to it.  A device that is removed waits until its ports are closed.
struct Port {
    ~Port();
    const char* removed();   // why the device is to be closed; null: it is not.  Call it if one of the descriptors is readable
    int event_fd() const { return context->async_fd; }
    int place_fd() const { return places ? places->fd : -1; }
    RdmaDevice about;
    ibv_mtu mtu{};
    uint16_t lid = 0;
    ibv_device_attr limits{};
    ContextHandle context;
    DomainHandle domain;
    ChannelHandle channel;   // of all completion queues; does not block, like the descriptors below
    EventsHandle places;     // librdmacm's notices about `place`; null: it knows no address of the port
    PlaceHandle place;
    std::vector<MemoryHandle> memory;   // of payloads
    bool gone = false;
    const ibv_mr* memory_of(const std::byte* bytes, size_t count) const {   // null: it is not registered
        for (const MemoryHandle& each : memory)
            if (const auto* begin = static_cast<const std::byte*>(each->addr); bytes >= begin && bytes + count <= begin + each->length)
                return each.get();
        return nullptr;
    }
};

/// `count` slots of `bytes` each, registered.
class Slots {
public:
    Status open(const Port& port, uint32_t count, uint32_t bytes);
    std::byte* at(uint32_t slot) const { return memory_.get() + size_t{slot} * bytes_; }
    uint32_t bytes() const { return bytes_; }
    ibv_sge part(uint32_t slot, uint32_t length, uint32_t offset = 0) const {
        return {reinterpret_cast<uintptr_t>(at(slot) + offset), length, registered_->lkey};
    }

private:
    std::unique_ptr<std::byte[]> memory_;
    uint32_t bytes_ = 0;
    MemoryHandle registered_;
};

Status devices(std::vector<RdmaDevice>* found);
Status find(const std::string& wanted, RdmaDevice* found);
Status port_open(const std::string& wanted, Port* port);
Status memory_register(const Port& port, void* memory, size_t bytes, MemoryHandle* registered);

}   // namespace gradcast::rdma
