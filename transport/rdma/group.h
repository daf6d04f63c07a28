// Datagrams of one rank: an unreliable queue pair that sends, and that receives both multicast to the group and unicast to this rank.
//
// A datagram longer than the port's MTU vanishes without an error, so the caller sends at most rdma_segment() bytes.  A datagram that finds
// no posted receive vanishes too, so many receives are posted.
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
    void complete(const ibv_wc& done, std::vector<DatagramsReceived>* received);
    void advance(std::vector<Op*>* finished);   // sends as much as the queue takes
    size_t taken() const { return taken_.size(); }
    void give_back();   // posts the receives of the last turn's datagrams again

    void stop(const char* why) { broken_ = broken_ ? broken_ : why; }
    const char* broken() const { return broken_; }   // the fault because of which it has stopped; null: none

    static constexpr uint32_t sends = 512;
    static uint32_t receives(const Port& port, const DatagramConfig& config);
    static constexpr uint32_t receives_max = 256;   // of a turn

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
    uint32_t group_pair_ = 0, key_ = 0;   // key_: the Q_Key of all queue pairs
    bool attached_ = false;
    std::vector<Route> routes_;
    std::vector<uint32_t> taken_;   // slots of the datagrams that were received in this turn
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
