#include "algos/dispatch.h"

#include <algorithm>

#include "transport/exchange/exchange.h"

namespace gradcast {

void Dispatch::add(uint16_t channel, Consumer* consumer) { consumers_.emplace_back(channel, consumer); }

Status Dispatch::collect(uint64_t until_us) {
    completions_.clear();
    GC_TRY(host_.wait(&completions_, until_us));
    for (const Completion& each : completions_) {
        if (each.channel != job_channel) continue;
        completed_ |= uint64_t{1} << each.id;
        if (each.id == job_rank_lost) rank_lost(each);
        else if (!each.status.ok()) ended_ = each.status;
    }
    GC_TRY(ended_);
    Status status;
    for (const Completion& each : completions_)
        for (const auto& [channel, consumer] : consumers_)
            if (channel == each.channel && status.ok()) status = consumer->take(each);
    for (const auto& [channel, consumer] : consumers_) status = consumer->taken(status);
    return status;
}

void Dispatch::take_rest(uint16_t channel, uint64_t until_us, const std::function<bool()>& there) {
    for (Status status; status.ok(); status = host_.wait(&completions_, until_us)) {   // first what came with the end
        for (const Completion& each : completions_)
            for (const auto& [of, consumer] : consumers_)
                if (of == channel && each.channel == channel) (void)consumer->take(each);
        completions_.clear();
        if (there()) return;
    }
}

void Dispatch::rank_lost(const Completion& completion) {
    const Rank rank = completion.rank;
    lost_[rank] = true;
    why_lost_.emplace_back(completion.status.what);
    if (completion.status.code == Code::conflict) {
        // Others may have taken what it has sent for other buckets, so all must get it before the link gives it up.
        for (const auto& [channel, consumer] : consumers_) consumer->expelled(rank);
        expelled_.push_back(rank);
        return;
    }
    // The link and all protocols get the loss, whoever found it out.
    host_.post(job_channel, {Event::PeerLost{rank, fail(Code::peer_lost, "rank {} is lost", rank)}});
}

Status Dispatch::wait_job(uint64_t id) {
    Waiting waiting(progress_);
    const uint64_t until_us = host_.now_us() + 20 * deadline_us_;
    while (!(completed_ >> id & 1)) {
        const Status status = collect(until_us);
        if (!(completed_ >> id & 1) || !ended_.ok()) GC_TRY(status);   // what else has come with it is for later
    }
    return {};
}

void Dispatch::cut_expelled() {
    for (Rank rank : expelled_) host_.post(job_channel, {Event::PeerLost{rank, fail(Code::peer_lost, "rank {} computes wrongly", rank)}});
    expelled_.clear();
}

}   // namespace gradcast
