// Datagrams of one rank: an unreliable queue pair that sends, and receives from the multicast group and what is for it alone.
//
// A datagram longer than the port's MTU vanishes without an error, and so does one that finds no receive waiting: the caller keeps to
// rdma_segment(), and many receives wait.
#pragma once
#include "transport/datagram/datagram_socket.h"
#include "transport/rdma/device.h"

namespace gradcast::rdma {

class Group {
public:
    explicit Group(const Port& port) : port_(port) {}
    ~Group();
    Status open(ibv_cq* queue, const DatagramConfig& config, DatagramSockets* sockets);

    void start(Op& chain);
    void cancel(Op& op);
    void complete(const ibv_wc& done, std::vector<Heard>* heard);
    void advance(std::vector<Op*>* finished);   // sends what fits
    size_t taken() const { return taken_.size(); }
    void give_back();   // the receives of the last turn's Heard

    void stop(const char* why) { broken_ = broken_ ? broken_ : why; }
    const char* broken() const { return broken_; }   // why it does not work any more; null: it does

    static constexpr uint32_t sends = 512;
    static uint32_t receives(const Port& port, const DatagramConfig& config);
    static constexpr uint32_t heard_most = 256;   // Heard of a turn

private:
    struct Route {   // to one address
        std::array<uint8_t, 16> gid;
        uint16_t lid;
        AddressHandle handle;
    };
    struct Leave {
        ibv_qp* pair;
        ibv_gid gid;
        uint16_t lid;
    };
    Status join(const DatagramConfig& config);
    ibv_ah* route(const sockaddr_in6& to);
    bool post_receives(std::span<const uint32_t> slots);
    bool send_one(Op& op);

    const Port& port_;
    Slots in_, out_;
    PairHandle pair_;
    EventsHandle events_;
    PlaceHandle membership_;
    AddressHandle group_handle_;
    ibv_ah_attr group_path_{};
    uint32_t group_pair_ = 0, key_ = 0;   // key_: the Q_Key of all
    bool attached_ = false;
    std::vector<Route> routes_;
    std::vector<uint32_t> taken_;   // slots of Heard
    std::vector<sockaddr_storage> from_;
    std::vector<ibv_recv_wr> works_;
    std::vector<ibv_sge> parts_;
    uint64_t posted_ = 0, sent_ = 0;
    Op *first_ = nullptr, *last_ = nullptr;   // chains to send
    size_t vector_ = 0, at_ = 0;              // how far first_ is
    int32_t done_bytes_ = 0;
    int error_ = 0;   // of first_
    const char* broken_ = nullptr;
};

}   // namespace gradcast::rdma
