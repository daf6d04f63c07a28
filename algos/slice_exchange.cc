#include "algos/slice_exchange.h"

#include <fmt/format.h>

#include <algorithm>

#include "algos/context.h"
#include "runtime/core/channel.h"

namespace gradcast {
namespace {

constexpr uint64_t take_us = 50'000;   // that a lane takes completions before it looks whether a pass has failed

const char* traffic_name(SliceTraffic what) {
    switch (what) {
        case SliceTraffic::columns: return "columns";
        case SliceTraffic::largest: return "largest logits";
        case SliceTraffic::exponentials: return "sums of exponentials";
        case SliceTraffic::gradients: return "partial gradients";
        case SliceTraffic::rows: return "rows";
    }
    return "?";
}

}   // namespace

SliceExchange::SliceExchange(Net& net, const Grid& grid, Rank self, std::span<const std::string> names, std::string own)
    : net_(net),
      ranks_(grid.slice_group(grid.replica_of(self), grid.cell_of(self).stage)),
      groups_(static_cast<uint32_t>(ranks_.size())),
      own_(grid.cell_of(self).slice_group),
      names_(names.begin(), names.end()),
      own_text_(std::move(own)) {
    for (const SlicePoint& each : net.slice_points()) points_.push_back({each, {}, std::vector<Place>(groups_)});
    GC_ASSERT(points_.size() <= UINT16_MAX);
}

void SliceExchange::plan(Arena& arena, uint32_t lanes) {
    const auto take = [this](size_t point, uint32_t group) {
        const uint64_t bytes = (net_.slice_bytes_most(point, group) + 63) / 64 * 64;
        return Place{std::exchange(lane_bytes_, lane_bytes_ + bytes), bytes};
    };
    for (size_t i = 0; i < points_.size(); ++i) {
        points_[i].room = take(i, own_);
        for (uint32_t group = 0; group < groups_; ++group)
            if (points_[i].of.has(group, own_)) points_[i].come[group] = take(i, group);
    }
    arena.plan("edges", lanes * lane_bytes_, &memory_);
    lanes_.resize(lanes);
    transfers_.resize(index(lanes, 0, 0, false));
}

void SliceExchange::open(Context& context, Dispatch& dispatch) {
    context_ = &context;
    dispatch_ = &dispatch;
    net_.slice_link(this);
}

uint64_t SliceExchange::bytes_sent(uint32_t samples) const {
    uint64_t bytes = 0;
    for (size_t i = 0; i < points_.size(); ++i)
        for (uint32_t group = 0; group < groups_; ++group)
            if (points_[i].of.has(group, own_)) bytes += net_.slice_bytes(i, own_, samples, true);
    return bytes;
}

void SliceExchange::begin(StepId step, uint64_t wait_us, std::function<bool()> needless) {
    step_ = step;
    wait_us_ = wait_us;
    needless_ = std::move(needless);
    stopped_ = false;
    (void)take_waited_us();   // of an evaluation
}

std::vector<uint32_t> SliceExchange::under_way() const {
    std::vector<uint32_t> blocks;
    for (const Transfer& each : transfers_)
        if (each.fate == Fate::open) blocks.push_back(each.block);
    return blocks;
}

uint64_t SliceExchange::take_waited_us() {
    uint64_t most = 0;
    for (Lane& each : lanes_) most = std::max(most, std::exchange(each.waited_us, 0));
    return most;
}

Status SliceExchange::drain() {
    for (uint32_t lane = 0; lane < lanes_.size(); ++lane)
        for (size_t i = 0; i < points_.size(); ++i) GC_TRY(wait(lane, i, false));
    return {};
}

void SliceExchange::post(uint32_t lane, size_t point, uint32_t group, bool comes, Buffer memory) {
    const size_t number = index(lane, point, group, comes);
    {
        std::lock_guard lock(mutex_);
        GC_ASSERT(transfers_[number].fate != Fate::open);
        transfers_[number] = {Fate::open, lanes_[lane].block};
    }
    const EdgeKey key{static_cast<uint32_t>(step_), lanes_[lane].block, static_cast<uint16_t>(point), points_[point].of.backward()};
    Edges edges(context_->host, edge_channel);
    if (comes) edges.receive(ranks_[group], key, memory, tickets | number);
    else edges.send(ranks_[group], key, memory, tickets | number);
}

void SliceExchange::call(uint32_t lane, uint32_t block, uint32_t samples, Call call) {
    Lane& its = lanes_[lane];
    its.block = block, its.samples = samples, its.call = call;
    for (size_t i = 0; i < points_.size(); ++i) {
        if (points_[i].of.backward() != (call == Call::backward) || points_[i].of.varies()) continue;
        for (uint32_t group = 0; group < groups_; ++group) {
            if (!points_[i].of.has(group, own_)) continue;
            if (const uint64_t count = bytes(its, i, group)) post(lane, i, group, true, at(lane, points_[i].come[group], count));
        }
    }
}

void SliceExchange::fail(const Status& status) {
    std::lock_guard lock(mutex_);
    if (failed_.ok()) failed_ = status;
    changed_.notify_all();
}

Status SliceExchange::room(uint32_t lane, size_t point, Buffer* to) {
    GC_TRY(wait(lane, point, false));
    *to = at(lane, points_[point].room, bytes(lanes_[lane], point, own_));
    return {};
}

Status SliceExchange::exchange(uint32_t lane, size_t point, std::span<const uint64_t> sizes) {
    const Point& its = points_[point];
    const Buffer sent = at(lane, its.room, sizes.empty() ? bytes(lanes_[lane], point, own_) : sizes[own_]);
    for (uint32_t group = 0; group < groups_; ++group) {
        if (!its.of.has(group, own_)) continue;
        if (!sizes.empty() && sizes[group] > 0) post(lane, point, group, true, at(lane, its.come[group], sizes[group]));
        if (sent.bytes > 0) post(lane, point, group, false, sent);
    }
    return wait(lane, point, true);
}

Buffer SliceExchange::received(uint32_t lane, size_t point, uint32_t group) {
    return at(lane, points_[point].come[group], bytes(lanes_[lane], point, group));
}

Status SliceExchange::take(const Completion& completion) {
    const uint64_t number = completion.id & ~tickets;
    GC_ASSERT(number < transfers_.size());
    const Code code = completion.status.code;
    if (code == Code::deadline) return missing_ = completion.status, Status{};
    const bool ended = code == Code::cancelled || (code == Code::peer_lost && dispatch_->any_lost()), comes = number % 2 > 0;
    {
        std::lock_guard lock(mutex_);
        transfers_[number].fate = Fate::done;
        stopped_ = stopped_ || (ended && comes);   // its sender has stopped
    }
    changed_.notify_all();
    return ended ? Status{} : completion.status;
}

bool SliceExchange::open_any(uint32_t lane, size_t point, bool comes) const {
    for (uint32_t group = 0; group < groups_; ++group)
        if (transfers_[index(lane, point, group, comes)].fate == Fate::open) return true;
    return false;
}

Status SliceExchange::wait(uint32_t lane, size_t point, bool comes) {
    std::unique_lock lock(mutex_);
    const auto end = [this] { return failed_.ok() && stopped_ ? stop : failed_; };
    if (!open_any(lane, point, comes)) return end();
    const uint64_t begin_us = context_->host.now_us(), until_us = begin_us + wait_us_;
    while (end().ok() && open_any(lane, point, comes)) {
        if (taking_) {
            changed_.wait(lock);   // who takes has a deadline
            continue;
        }
        taking_ = true;
        lock.unlock();
        Status status;
        bool needless = false;
        {
            Waiting waiting(context_->progress);
            status = dispatch_->collect(std::min(until_us, context_->host.now_us() + take_us));
            if (status.code == Code::deadline && dispatch_->ended().ok())
                status = context_->host.now_us() < until_us ? Status{} : overdue(lane, point, comes);
            needless = needless_ && needless_();
        }
        lock.lock();
        taking_ = false;
        stopped_ = stopped_ || needless;
        if (failed_.ok()) failed_ = status;
        changed_.notify_all();
    }
    lanes_[lane].waited_us += context_->host.now_us() - begin_us;
    return end();
}

Status SliceExchange::overdue() {
    for (uint32_t lane = 0; lane < lanes_.size(); ++lane)
        for (size_t i = 0; i < points_.size(); ++i)
            for (const bool comes : {false, true})
                if (open_any(lane, i, comes)) return overdue(lane, i, comes);
    return {};
}

Status SliceExchange::overdue(uint32_t lane, size_t point, bool comes) {
    size_t number = 0;
    {
        std::lock_guard lock(mutex_);
        uint32_t group = 0;
        while (group < groups_ && transfers_[index(lane, point, group, comes)].fate != Fate::open) ++group;
        if (group == groups_) return {};   // it has just come
        number = index(lane, point, group, comes);
    }
    missing_ = {};
    Edges(context_->host, edge_channel).explain(tickets | number);
    for (const uint64_t until_us = context_->host.now_us() + 1'000'000; missing_.ok() && context_->host.now_us() < until_us;) {
        (void)dispatch_->collect(until_us);
        GC_TRY(dispatch_->ended());
    }
    const SlicePoint& of = points_[point].of;
    return gradcast::fail(Code::deadline, "step {}: {} has waited {} s for the {} of layer {} in block {}{}{}", step_ + 1, own_text_,
                          static_cast<double>(wait_us_) / 1e6, traffic_name(of.what), names_[of.layer],
                          lanes_[lane].block & ((1u << 30) - 1),   // without the mark of what is no block of a step
                          missing_.ok() ? "" : ": ", missing_.what);
}

}   // namespace gradcast
