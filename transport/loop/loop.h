// The Loop: the network thread of one rank.  A turn collects completed operations, posted events and timers, gives them to the protocols as
// batches of events, carries out the protocols' actions, and starts the next operations.  Links (base.h) carry the packets.
#pragma once
#include <condition_variable>
#include <mutex>

#include "runtime/core/clock.h"
#include "transport/datagram/datagrams.h"
#include "transport/stream/streams.h"

namespace gradcast {

/// Completions from the network thread to the trainer (Host::wait).
class TrainerQueue {
public:
    void push(std::vector<Completion>& completions);
    void end();
    Status wait(std::vector<Completion>* out, uint64_t deadline_us);
    /// For Host::close_view: closing() before the request, wait_closed() after it.  closed() is the network thread's answer and drops the
    /// completions of these channels.
    void closing();
    Status wait_closed(uint64_t until_us);
    void closed(std::span<const uint16_t> channels);

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<Completion> queue_;
    bool ended_ = false, closed_ = false;
};

class Loop final : public Driver, private Host, private LinkOwner {
public:
    Loop(const LinkConfig& config, const Log& log) : config_(config), log_(log) {}
    ~Loop() override;
    Status open();

    void attach(uint16_t channel, Protocol* protocol) override;
    void attach_datagrams(uint16_t channel, Protocol* protocol) override;
    void register_memory(Buffer whole) override;
    Status run() override;
    void stop() override;
    void adopt(std::unique_ptr<AcceptedStream> stream) override;
    void add(const PeerAddress& peer) override;
    void probe() override;
    Host& host() override { return *this; }
    const LinkCounters& counters() const override { return counters_; }
    const char* name() const override { return rdma_ && config_.rdma.streams ? "rdma_rc" : proactor_->name(); }
    const char* datagrams_name() const override {
        return !datagrams_ ? "" : rdma_ && config_.rdma.datagrams ? "rdma_ud" : proactor_->name()[0] == 'u' ? "uring_udp" : "epoll_udp";
    }
    std::optional<DatagramsFound> datagrams_found() const override {
        return datagrams_ ? std::optional(datagrams_->found()) : std::nullopt;
    }

private:
    struct Happening {   // an event for a channel
        uint16_t channel;
        Event event;
        Packet packet;
    };
    struct Attached {
        uint16_t channel;
        uint32_t view;   // 0: it belongs to none
        Protocol* protocol;
        Link* link;
    };
    /// Posted by other threads to the network thread, in order.
    struct Posted {
        struct ToChannel {
            uint16_t channel = 0;
            Event event;
        };
        struct OpenView {
            uint32_t number = 0;
            std::vector<Attachment> attachments;
        };
        struct CloseView {};
        struct Probe {};
        std::variant<ToChannel, OpenView, CloseView, Probe> what;
    };
    struct Ticket {
        uint64_t id;
        uint32_t open;   // sends that are not acknowledged
        uint16_t channel;
        uint32_t view;   // 0: of none
        Status status;
    };
    struct Alarm {
        uint16_t channel;
        uint64_t id, at_us;
    };

    // Host
    uint64_t now_us() override { return clock_us(); }
    void post(uint16_t channel, const Event& event) override;
    Status wait(std::vector<Completion>* out, uint64_t deadline_us) override { return trainer_.wait(out, deadline_us); }
    void open_view(uint32_t number, std::span<const Attachment> attachments) override;
    Status close_view(uint64_t until_us) override;
    // LinkOwner
    bool known(uint16_t channel, uint32_t view) override;
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override;
    void packet(const Packet& packet) override;
    void hold(uint32_t ticket) override { ++tickets_[ticket].open; }
    void done(uint32_t ticket, Status status) override;
    void opened(Rank rank, bool first, uint64_t now) override;
    void lost(Rank rank, const Status& why) override;
    void unreachable(Rank rank, Status why) override { streams_->give_up(rank, why); }
    void send_link_packet(Rank rank, const Send& send) override { streams_->send_link_packet(rank, send); }
    void link_packet_received(const Packet& packet) override;
    const std::string& label(Rank rank) const override { return streams_->label(rank); }

    // loop.cc
    const Attached* attached(uint16_t channel) const;
    const Attached* receiver_of(uint16_t channel, uint32_t view) const;
    void post(Posted posted);
    void deliver(uint16_t channel, const Event& event) { happened_.push_back({channel, event, {}}); }
    void deliver_all(const Event& event);
    void take_posted();
    void take(const Posted::ToChannel& posted);
    void take_probe();
    void take_peer(const PeerAddress& peer);
    void ring_alarms(uint64_t now);
    bool dispatch(uint64_t now);
    void carry_out(const Attached& attached);
    Status open_rdma();
    uint32_t ticket_take(const Send& send, uint32_t view);
    uint64_t sleep_us(uint64_t now);
    bool flushed(uint64_t now);
    void wake();

    // loop_views.cc: the open view
    void begin_view(const Posted::OpenView& posted);
    void end_view();
    bool view_drained();
    void forget_view();

    LinkConfig config_;   // the network thread's: its peers grow
    const Log log_;
    std::unique_ptr<Proactor> proactor_;
    Rdma* rdma_ = nullptr;   // it too, or null
    InlinePool pool_;
    std::unique_ptr<Streams> streams_;
    std::unique_ptr<Datagrams> datagrams_;   // null without LinkConfig::datagrams
    std::vector<Link*> links_;               // both
    std::vector<Attached> protocols_;
    uint32_t view_ = 0;   // the open view, else the last one; 0: none yet
    bool view_open_ = false, ending_ = false;
    std::vector<uint16_t> closing_;   // channels of the ended view until it is drained
    LinkCounters counters_;
    TrainerQueue trainer_;

    std::vector<Op*> done_;
    std::vector<Happening> happened_, happening_;   // for the next dispatch; in the current one
    std::vector<Event> batch_;
    Actions actions_;
    std::vector<Alarm> alarms_;
    std::vector<Ticket> tickets_;
    std::vector<uint32_t> tickets_free_;
    std::vector<uint64_t> received_us_;   // by rank: time of its last bytes.  Does not move
    uint64_t turn_us_ = 0;                // start of the current turn
    bool handled_ = false;                // the last dispatch had events: call land() again for packets that wait
    uint64_t stopping_us_ = 0;            // deadline of the flush; 0: not stopping

    std::mutex mutex_;   // guards posted_, adopted_, added_
    std::vector<Posted> posted_, taken_;
    std::vector<std::unique_ptr<Accepted>> adopted_;
    std::vector<PeerAddress> added_;
    std::atomic<bool> asleep_{false}, stop_{false};
};

}   // namespace gradcast
