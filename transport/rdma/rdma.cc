// The Proactor over verbs, and what libgradcast_rdma.so says when it is opened.
//
// A turn: give receives back, ask the completion queues for a notice, look into them once more, wait in the proactor beneath (which watches
// the notices' channel), look into them.
//
// A device that is removed: all pipes and the group break.  When the links have dropped the pipes, the port is closed, for which the
// removal waits.  Streams go on over TCP; datagrams have no other way, so wait() fails, once.
#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <optional>
#include <unordered_map>

#include "runtime/core/version.h"
#include "transport/rdma/group.h"
#include "transport/rdma/pipe.h"

namespace gradcast::rdma {
namespace {

/// An open port with its completion queues.
struct Unit {
    RdmaDevice about;
    std::optional<Port> port;               // until the device is lost and nothing uses it any more
    QueueHandle sent, streams, datagrams;   // what streams have sent, what they have received; datagrams both ways
    std::array<Op, 3> watches;              // of the port's descriptors: notices, events, places
    const char* gone = nullptr;             // why the device is lost
    bool asked = false;                     // for notices
    uint32_t pipes = 0;

    Status open(const std::string& wanted, uint32_t ranks) {
        GC_TRY(port_open(wanted, &port.emplace()));
        about = port->about;
        GC_TRY(make_queue(Pipe::slots * ranks, &sent));
        GC_TRY(make_queue((Pipe::slots + Pipe::spare) * ranks, &streams));
        const int fds[] = {port->channel->fd, port->event_fd(), port->place_fd()};
        for (size_t i = 0; i < watches.size(); ++i) {
            watches[i].kind = Op::Kind::poll;
            watches[i].fd = fds[i];
        }
        return {};
    }
    Status make_queue(uint32_t entries, QueueHandle* queue) {
        const auto most = static_cast<uint32_t>(port->limits.max_cqe);
        queue->reset(ibv_create_cq(port->context.get(), static_cast<int>(std::min(entries, most)), queue, port->channel.get(), 0));
        if (!*queue) return fail_sys(errno, "RDMA device {} has no room for {} completions", about.name, entries);
        return {};
    }
    bool own(const Op* op) const { return op >= watches.data() && op < watches.data() + watches.size(); }
    template <typename Each>
    void each_queue(Each each) {
        for (QueueHandle* queue : {&sent, &streams, &datagrams})
            if (*queue) each(queue);
    }
};

class Verbs final : public Rdma, private PipeOwner {
public:
    Verbs(std::unique_ptr<Proactor> beneath, uint32_t ranks, const Log& log)
        : beneath_(std::move(beneath)), log_(log), ranks_(std::max(ranks, 1u)) {}
    ~Verbs() override {
        group_ = nullptr;
        for (Unit& unit : units_) close_queues(unit);
    }
    Status open(const std::vector<std::string>& wanted) {
        units_ = std::vector<Unit>(wanted.size());
        for (size_t i = 0; i < units_.size(); ++i) {
            GC_TRY(units_[i].open(wanted[i], ranks_));
            for (size_t before = 0; before < i; ++before)
                if (units_[before].about.name == units_[i].about.name && units_[before].about.port == units_[i].about.port)
                    return fail(Code::invalid, "RDMA device {} is named twice", units_[i].about.name);
            for (const Op& each : units_[i].watches)
                if (each.fd >= 0) beneath_->add(each.fd);
        }
        // What all pipes send or receive at a time: 32 MiB for up to 128 ranks.
        slot_bytes_ = std::clamp(std::bit_floor((32u << 20) / ranks_ / Pipe::slots), 8u << 10, 64u << 10);
        return {};
    }

    // Rdma
    uint32_t devices() const override { return static_cast<uint32_t>(units_.size()); }
    const RdmaDevice& device(uint32_t number) const override { return units_[number].about; }
    Status pipe_open(uint32_t device, std::unique_ptr<RdmaPipe>* pipe, RdmaEnd* end) override {
        Unit& unit = units_[device];
        if (unit.gone) return fail(Code::unsupported, "RDMA device {} does not work any more: {}", unit.about.name, unit.gone);
        PipeOwner& owner = *this;   // a private base
        auto made = std::make_unique<Pipe>(*unit.port, owner, ++last_pipe_ & 0x7fffffff);
        pipes_[made->number()] = {made.get(), &unit};
        ++unit.pipes;
        GC_TRY(made->open(unit.sent.get(), unit.streams.get(), slot_bytes_, end));
        *pipe = std::move(made);
        return {};
    }
    Status pipe_connect(RdmaPipe& pipe, const RdmaEnd& peer) override { return static_cast<Pipe&>(pipe).connect(peer); }
    Status register_memory(Buffer whole) override {
        for (Unit& unit : units_) {
            MemoryHandle registered;
            GC_TRY(memory_register(*unit.port, whole.host, whole.bytes, &registered));
            unit.port->memory.push_back(std::move(registered));
        }
        return {};
    }
    Status datagrams_open(const DatagramConfig& config, DatagramSockets* sockets) override {
        Unit& unit = units_[0];
        GC_TRY(unit.make_queue(Group::sends + Group::receives(*unit.port, config), &unit.datagrams));
        auto group = std::make_unique<Group>(*unit.port);
        GC_TRY(group->open(unit.datagrams.get(), config, sockets));
        group_ = std::move(group);
        with_group_ = true;
        return {};
    }

    // Proactor
    void add(int fd) override { beneath_->add(fd); }
    void remove(int fd) override { beneath_->remove(fd); }
    void start(Op& op) override {
        if (op.pipe) static_cast<Pipe*>(op.pipe)->start(op);
        else if (group_ && op.kind == Op::Kind::send_datagrams) group_->start(op);
        else if (with_group_ && op.kind == Op::Kind::send_datagrams) refuse(op);
        else beneath_->start(op);
    }
    void cancel(Op& op) override {
        if (op.pipe) static_cast<Pipe*>(op.pipe)->cancel(op);
        else if (!with_group_ || op.kind != Op::Kind::send_datagrams) beneath_->cancel(op);
        else if (group_) group_->cancel(op);
    }
    Status wait(uint64_t timeout_us, std::vector<Op*>* done) override {
        received_.clear();
        for (Unit& unit : units_)
            if (unit.gone && unit.port) leave(unit);
        if (group_) group_->give_back();
        for (Unit& unit : units_)
            if (unit.port && !unit.gone) watch(unit);
        collect();
        if (!ready_.empty() || !received_.empty() || more_) timeout_us = 0;
        from_beneath_.clear();
        GC_TRY(beneath_->wait(timeout_us, &from_beneath_));
        for (const Op* op : from_beneath_)
            if (Unit* unit = watched(op); unit && op->result >= 0) {
                if (op == &unit->watches[0]) notices(*unit);
                else if (!unit->gone) lose(*unit, unit->port->removed());
            }
        collect();
        // What a pipe has received comes before the end of the stream's socket.
        for (Op* op : ready_) {
            op->busy = false;
            done->push_back(op);
        }
        ready_.clear();
        for (Op* op : from_beneath_)
            if (!watched(op)) done->push_back(op);
        if (!with_group_) {
            for (const DatagramsReceived& each : beneath_->received()) received_.push_back(each);
            drained_ = beneath_->drained();
        }
        const Unit& first = units_[0];
        if (!first.gone || !with_group_ || std::exchange(said_, true)) return {};
        return fail(Code::node_io, "RDMA device {} does not carry datagrams any more: {}", first.about.name, first.gone);
    }
    void wake() override { beneath_->wake(); }
    Status receive_datagrams(int fd) override { return beneath_->receive_datagrams(fd); }
    void stop_datagrams() override { beneath_->stop_datagrams(); }
    bool receiving() const override { return beneath_->receiving(); }
    const char* name() const override { return beneath_->name(); }

private:
    struct Piped {
        Pipe* pipe;
        Unit* unit;
    };
    // PipeOwner
    void finished(Op& op, int32_t result) override {
        op.result = result;
        ready_.push_back(&op);
    }
    void gone(Pipe& pipe) override {
        const auto found = pipes_.find(pipe.number());
        --found->second.unit->pipes;
        pipes_.erase(found);
    }

    void close_queues(Unit& unit) {
        unit.each_queue([&](QueueHandle* queue) {
            acknowledge(queue->get());
            *queue = nullptr;
        });
    }
    Unit* watched(const Op* op) {   // the unit that the Op watches; null: it is a link's
        for (Unit& unit : units_)
            if (unit.own(op)) return &unit;
        return nullptr;
    }
    // Sends of datagrams when there is no device any more.
    void refuse(Op& chain) {
        for (Op* op = &chain; op; op = op->next) {
            op->busy = true;
            finished(*op, -ENETDOWN);
        }
    }
    void watch(Unit& unit) {
        for (Op& each : unit.watches)
            if (each.fd >= 0 && !each.busy) beneath_->start(each);
        if (std::exchange(unit.asked, true)) return;
        unit.each_queue([&](QueueHandle* queue) {
            if (ibv_req_notify_cq(queue->get(), queue == &unit.streams) != 0) lose(unit, "it gives no notices");
        });
    }
    void lose(Unit& unit, const char* why) {
        if (!why || unit.gone) return;
        unit.gone = why;
        log_.warn("RDMA device {} does not work any more: {}", unit.about.name, why);
        for (const auto& [number, piped] : pipes_)
            if (piped.unit == &unit) piped.pipe->stop(why);
        if (group_ && &unit == &units_[0]) group_->stop(why);
    }
    // Closes the lost device as soon as nothing uses it.  What the group received is taken.
    void leave(Unit& unit) {
        if (&unit == &units_[0]) {
            if (group_) group_->advance(&ready_);   // returns its sends
            group_ = nullptr;
        }
        if (unit.pipes > 0) return;
        bool busy = false;
        for (Op& each : unit.watches) {
            if (each.busy) beneath_->cancel(each);
            busy |= each.busy;
        }
        if (busy) return;
        for (Op& each : unit.watches)
            if (each.fd >= 0) beneath_->remove(each.fd);
        close_queues(unit);
        unit.port.reset();
    }
    void notices(Unit& unit) {
        ibv_cq* queue;
        void* context;
        while (ibv_get_cq_event(unit.port->channel.get(), &queue, &context) == 0) ++notices_[queue];
        unit.each_queue([this](QueueHandle* each) { acknowledge(each->get()); });
        unit.asked = false;
    }
    void acknowledge(ibv_cq* queue) {   // a queue is destroyed when all its notices are acknowledged
        if (unsigned& count = notices_[queue]; count) ibv_ack_cq_events(queue, std::exchange(count, 0u));
    }
    void collect() {
        ibv_wc works[64];
        more_ = false;
        for (Unit& unit : units_)
            for (QueueHandle* queue : {&unit.sent, &unit.streams})
                for (int count, all = 0; *queue && (count = ibv_poll_cq(queue->get(), 64, works)) > 0;) {
                    for (int i = 0; i < count; ++i)
                        if (const auto found = pipes_.find(static_cast<uint32_t>(works[i].wr_id >> 32)); found != pipes_.end())
                            found->second.pipe->complete(works[i]);
                    if ((all += count) < 1024) continue;
                    more_ = true;
                    break;
                }
        for (const auto& [number, piped] : pipes_) piped.pipe->settle();
        if (!group_) return;
        drained_ = false;
        while (!drained_ && group_->taken() + 64 <= Group::receives_max) {
            const int count = ibv_poll_cq(units_[0].datagrams.get(), 64, works);
            for (int i = 0; i < count; ++i) group_->complete(works[i], &received_);
            drained_ = count < 64;
        }
        more_ |= !drained_;
        group_->advance(&ready_);
        lose(units_[0], group_->broken());
    }

    const std::unique_ptr<Proactor> beneath_;
    const Log log_;
    const uint32_t ranks_;
    uint32_t slot_bytes_ = 0, last_pipe_ = 0;
    std::vector<Unit> units_;   // fixed after open()
    std::unordered_map<uint32_t, Piped> pipes_;
    std::unordered_map<ibv_cq*, unsigned> notices_;   // not acknowledged
    std::unique_ptr<Group> group_;                    // on the first unit
    std::vector<Op*> ready_, from_beneath_;
    bool with_group_ = false, more_ = false, said_ = false;
};

Status open(const std::vector<std::string>& wanted, uint32_t ranks, const Log& log, std::unique_ptr<Proactor> beneath,
            std::unique_ptr<Rdma>* rdma) {
    auto made = std::make_unique<Verbs>(std::move(beneath), ranks, log);
    GC_TRY(made->open(wanted));
    *rdma = std::move(made);
    return {};
}

constexpr RdmaModule module = {version_text, devices, find, open};

}   // namespace
}   // namespace gradcast::rdma

extern "C" const gradcast::RdmaModule* gradcast_rdma() { return &gradcast::rdma::module; }
