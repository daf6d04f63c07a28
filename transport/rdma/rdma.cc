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

class Verbs final : public Rdma, private PipeOwner {
public:
    Verbs(std::unique_ptr<Proactor> beneath, uint32_t ranks, const Log& log)
        : beneath_(std::move(beneath)), log_(log), ranks_(std::max(ranks, 1u)) {}
    ~Verbs() override {
        group_ = nullptr;
        close_queues();
    }
    Status open(const std::string& wanted) {
        GC_TRY(port_open(wanted, &port_.emplace()));
        about_ = port_->about;
        // What all pipes send or receive at a time: 32 MiB for up to 128 ranks.
        slot_bytes_ = std::clamp(std::bit_floor((32u << 20) / ranks_ / Pipe::slots), 8u << 10, 64u << 10);
        GC_TRY(make_queue(Pipe::slots * ranks_, &sent_));
        GC_TRY(make_queue((Pipe::slots + Pipe::spare) * ranks_, &streams_));
        const int fds[] = {port_->channel->fd, port_->event_fd(), port_->place_fd()};
        for (size_t i = 0; i < watches_.size(); ++i) {
            watches_[i].kind = Op::Kind::poll;
            watches_[i].fd = fds[i];
            if (fds[i] >= 0) beneath_->add(fds[i]);
        }
        return {};
    }

    // Rdma
    const RdmaDevice& device() const override { return about_; }
    Status pipe_open(std::unique_ptr<RdmaPipe>* pipe, RdmaEnd* end) override {
        if (gone_) return fail(Code::unsupported, "RDMA device {} does not work any more: {}", about_.name, gone_);
        PipeOwner& owner = *this;   // a private base
        auto made = std::make_unique<Pipe>(*port_, owner, ++last_pipe_ & 0x7fffffff);
        pipes_[made->number()] = made.get();
        GC_TRY(made->open(sent_.get(), streams_.get(), slot_bytes_, end));
        *pipe = std::move(made);
        return {};
    }
    Status pipe_connect(RdmaPipe& pipe, const RdmaEnd& peer) override { return static_cast<Pipe&>(pipe).connect(peer); }
    Status register_memory(Buffer whole) override {
        MemoryHandle registered;
        GC_TRY(memory_register(*port_, whole.host, whole.bytes, &registered));
        port_->memory.push_back(std::move(registered));
        return {};
    }
    Status datagrams_open(const DatagramConfig& config, DatagramSockets* sockets) override {
        GC_TRY(make_queue(Group::sends + Group::receives(*port_, config), &datagrams_));
        auto group = std::make_unique<Group>(*port_);
        GC_TRY(group->open(datagrams_.get(), config, sockets));
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
        heard_.clear();
        if (gone_ && port_) leave();
        if (group_) group_->give_back();
        if (port_ && !gone_) watch();
        collect();
        if (!ready_.empty() || !heard_.empty() || more_) timeout_us = 0;
        from_beneath_.clear();
        GC_TRY(beneath_->wait(timeout_us, &from_beneath_));
        for (Op* op : from_beneath_) {
            if (op == &watches_[0] && op->result >= 0) notices();
            else if (own(op) && op->result >= 0 && !gone_) lose(port_->removed());
        }
        collect();
        // What a pipe has received comes before the end of the stream's socket.
        for (Op* op : ready_) {
            op->busy = false;
            done->push_back(op);
        }
        ready_.clear();
        for (Op* op : from_beneath_)
            if (!own(op)) done->push_back(op);
        if (!with_group_) {
            for (const Heard& each : beneath_->heard()) heard_.push_back(each);
            drained_ = beneath_->drained();
        }
        if (!gone_ || !with_group_ || std::exchange(said_, true)) return {};
        return fail(Code::node_io, "RDMA device {} does not carry datagrams any more: {}", about_.name, gone_);
    }
    void wake() override { beneath_->wake(); }
    Status hear(int fd) override { return beneath_->hear(fd); }
    void hush() override { beneath_->hush(); }
    bool hearing() const override { return beneath_->hearing(); }
    const char* name() const override { return beneath_->name(); }

private:
    // PipeOwner
    void finished(Op& op, int32_t result) override {
        op.result = result;
        ready_.push_back(&op);
    }
    void gone(Pipe& pipe) override { pipes_.erase(pipe.number()); }

    Status make_queue(uint32_t entries, QueueHandle* queue) {
        const auto most = static_cast<uint32_t>(port_->limits.max_cqe);
        queue->reset(ibv_create_cq(port_->context.get(), static_cast<int>(std::min(entries, most)), queue, port_->channel.get(), 0));
        if (!*queue) return fail_sys(errno, "RDMA device {} has no room for {} completions", about_.name, entries);
        return {};
    }
    void close_queues() {
        for (QueueHandle* queue : {&sent_, &streams_, &datagrams_}) {
            if (*queue) acknowledge(queue->get());
            *queue = nullptr;
        }
    }
    bool own(const Op* op) const { return op >= watches_.data() && op < watches_.data() + watches_.size(); }
    // Sends of datagrams when there is no device any more.
    void refuse(Op& chain) {
        for (Op* op = &chain; op; op = op->next) {
            op->busy = true;
            finished(*op, -ENETDOWN);
        }
    }
    void watch() {
        for (Op& each : watches_)
            if (each.fd >= 0 && !each.busy) beneath_->start(each);
        if (std::exchange(asked_, true)) return;
        for (QueueHandle* queue : {&sent_, &streams_, &datagrams_})
            if (*queue && ibv_req_notify_cq(queue->get(), queue == &streams_) != 0) lose("it gives no notices");
    }
    void lose(const char* why) {
        if (!why || gone_) return;
        gone_ = why;
        log_.warn("RDMA device {} does not work any more: {}", about_.name, why);
        for (const auto& [number, pipe] : pipes_) pipe->stop(why);
        if (group_) group_->stop(why);
    }
    // Closes the lost device as soon as nothing uses it.  What the group heard is taken.
    void leave() {
        if (group_) group_->advance(&ready_);   // returns its sends
        group_ = nullptr;
        if (!pipes_.empty()) return;
        bool busy = false;
        for (Op& each : watches_) {
            if (each.busy) beneath_->cancel(each);
            busy |= each.busy;
        }
        if (busy) return;
        for (Op& each : watches_)
            if (each.fd >= 0) beneath_->remove(each.fd);
        close_queues();
        port_.reset();
    }
    void notices() {
        ibv_cq* queue;
        void* context;
        while (ibv_get_cq_event(port_->channel.get(), &queue, &context) == 0) ++notices_[queue];
        for (QueueHandle* each : {&sent_, &streams_, &datagrams_})
            if (*each) acknowledge(each->get());
        asked_ = false;
    }
    void acknowledge(ibv_cq* queue) {   // a queue is destroyed when all its notices are acknowledged
        if (unsigned& count = notices_[queue]; count) ibv_ack_cq_events(queue, std::exchange(count, 0u));
    }
    void collect() {
        ibv_wc works[64];
        more_ = false;
        for (QueueHandle* queue : {&sent_, &streams_})
            for (int count, all = 0; *queue && (count = ibv_poll_cq(queue->get(), 64, works)) > 0;) {
                for (int i = 0; i < count; ++i)
                    if (const auto pipe = pipes_.find(static_cast<uint32_t>(works[i].wr_id >> 32)); pipe != pipes_.end())
                        pipe->second->complete(works[i]);
                if ((all += count) < 1024) continue;
                more_ = true;
                break;
            }
        for (const auto& [number, pipe] : pipes_) pipe->settle();
        if (!group_) return;
        drained_ = false;
        while (!drained_ && group_->taken() + 64 <= Group::heard_most) {
            const int count = ibv_poll_cq(datagrams_.get(), 64, works);
            for (int i = 0; i < count; ++i) group_->complete(works[i], &heard_);
            drained_ = count < 64;
        }
        more_ |= !drained_;
        group_->advance(&ready_);
        lose(group_->broken());
    }

    const std::unique_ptr<Proactor> beneath_;
    const Log log_;
    const uint32_t ranks_;
    uint32_t slot_bytes_ = 0, last_pipe_ = 0;
    RdmaDevice about_;
    std::optional<Port> port_;                 // until the device is lost and nothing uses it any more
    QueueHandle sent_, streams_, datagrams_;   // what streams have sent, what they have received; datagrams both ways
    std::unordered_map<uint32_t, Pipe*> pipes_;
    std::unordered_map<ibv_cq*, unsigned> notices_;   // not acknowledged
    std::unique_ptr<Group> group_;
    std::array<Op, 3> watches_;   // of the port's descriptors: notices, events, places
    std::vector<Op*> ready_, from_beneath_;
    const char* gone_ = nullptr;   // why the device is lost
    bool with_group_ = false, asked_ = false, more_ = false, said_ = false;
};

Status open(const std::string& wanted, uint32_t ranks, const Log& log, std::unique_ptr<Proactor> beneath, std::unique_ptr<Rdma>* rdma) {
    auto made = std::make_unique<Verbs>(std::move(beneath), ranks, log);
    GC_TRY(made->open(wanted));
    *rdma = std::move(made);
    return {};
}

constexpr RdmaModule module = {version_text, devices, find, open};

}   // namespace
}   // namespace gradcast::rdma

extern "C" const gradcast::RdmaModule* gradcast_rdma() { return &gradcast::rdma::module; }
