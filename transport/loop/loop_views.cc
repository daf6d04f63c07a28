// Host::open_view and close_view.
//
//   open_view    begin_view: attaches the view's protocols, delivers PeerUp and PeerLost to them, calls land() again for waiting packets
//   close_view   end_view: detaches them, drops their events, alarms and unsent datagrams; later packets of the view are dropped
//                view_drained: the link holds none of the view's memory (packets, bursts, partial payloads).  A stream that holds it
//                for too long is broken: its peer may be stopped
//                forget_view: answers close_view
#include <algorithm>

#include "transport/loop/loop.h"

namespace gradcast {
namespace {

bool holds(std::span<const uint16_t> channels, uint16_t channel) {
    return std::find(channels.begin(), channels.end(), channel) != channels.end();
}

}   // namespace

// ---- the trainer's side --------------------------------------------------------------------------------------------------------

void TrainerQueue::closing() {
    std::lock_guard lock(mutex_);
    closed_ = false;
}

void TrainerQueue::closed(std::span<const uint16_t> channels) {
    {
        std::lock_guard lock(mutex_);
        std::erase_if(queue_, [&](const Completion& each) { return holds(channels, each.channel); });
        closed_ = true;
    }
    changed_.notify_all();
}

Status TrainerQueue::wait_closed(uint64_t until_us) {
    std::unique_lock lock(mutex_);
    const std::chrono::steady_clock::time_point until{std::chrono::microseconds(std::min<uint64_t>(until_us, INT64_MAX / 1000))};
    changed_.wait_until(lock, until, [this] { return ended_ || closed_; });
    if (closed_) return {};
    if (ended_) return fail(Code::cancelled, "the network thread has stopped");
    return fail(Code::deadline, "the link still holds memory of the last view");
}

void Loop::open_view(uint32_t number, std::span<const Attachment> attachments) {
    post({Posted::OpenView{number, {attachments.begin(), attachments.end()}}});
}

Status Loop::close_view(uint64_t until_us) {
    trainer_.closing();
    post({Posted::CloseView{}});
    return trainer_.wait_closed(until_us);
}

// ---- the network thread's ------------------------------------------------------------------------------------------------------

void Loop::begin_view(const Posted::OpenView& posted) {
    GC_ASSERT(!view_open_ && closing_.empty() && posted.number > view_);
    view_ = posted.number;
    view_open_ = true;
    std::vector<uint16_t> by_streams, by_datagrams;
    for (const Attachment& each : posted.attachments) {
        GC_ASSERT(!attached(each.channel) && (!each.datagrams || (datagrams_ && each.channel < datagram_channel_probe)));
        Link* const link = each.datagrams ? static_cast<Link*>(datagrams_.get()) : streams_.get();
        protocols_.push_back({each.channel, view_, each.protocol, link});
        (each.datagrams ? by_datagrams : by_streams).push_back(each.channel);
        streams_->introduce([&](const Event& event) { deliver(each.channel, event); });
    }
    streams_->open_view(view_, by_streams);
    if (datagrams_) datagrams_->open_view(view_, by_datagrams);
    handled_ = true;   // packets of this view that waited: land() again
}

void Loop::end_view() {
    if (!view_open_) {   // a repeated close_view
        if (closing_.empty()) trainer_.closed({});
        return;
    }
    view_open_ = false;
    for (const Attached& each : protocols_)
        if (each.view) closing_.push_back(each.channel);
    std::erase_if(protocols_, [](const Attached& each) { return each.view != 0; });
    std::erase_if(happened_, [this](const Happening& each) { return holds(closing_, each.channel); });
    std::erase_if(alarms_, [this](const Alarm& each) { return holds(closing_, each.channel); });
    for (Link* link : links_) link->close_view(view_, closing_);
    handled_ = true;   // packets of this view that waited are dropped
    if (closing_.empty()) forget_view();
}

bool Loop::view_drained() {
    bool drained = true;
    for (Link* link : links_) drained &= link->view_drained();
    return drained;
}

void Loop::forget_view() {
    trainer_.closed(closing_);
    closing_.clear();
}

// The receiver of a packet; protocols without a view take packets with the link's own view number.
const Loop::Attached* Loop::receiver_of(uint16_t channel, uint32_t view) const {
    const Attached* found = attached(channel);
    return found && view == (found->view ? found->view : config_.view) ? found : nullptr;
}

bool Loop::known(uint16_t channel, uint32_t view) {
    if (const Attached* found = attached(channel)) {
        if (found->view && view != found->view) return true;
        return view == (found->view ? found->view : config_.view) && found->link == streams_.get();
    }
    // An older or newer view; a link without views has its protocols from the start.
    return view_ || protocols_.empty() || view != config_.view;
}

Landing Loop::land(const Packet& packet, uint64_t bytes, Buffer* place) {
    if (const Attached* found = receiver_of(packet.channel, packet.view)) return found->protocol->land(packet, bytes, place);
    return packet.view > view_ ? Landing::later : Landing::drop;
}

}   // namespace gradcast
