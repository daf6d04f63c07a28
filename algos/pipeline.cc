#include "algos/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "algos/context.h"
#include "runtime/core/channel.h"

namespace gradcast {
namespace {

// Of what is no block of a step, in the keys' numbers of blocks: no block has these bits.
constexpr uint32_t mark_probe = 1u << 30, mark_evaluation = 1u << 31;
static_assert(blocks_max < mark_probe);

bool takes_gradients(StagePass pass) { return pass == StagePass::backward || pass == StagePass::data; }

Backward backward_of(StagePass pass) {
    return pass == StagePass::backward ? Backward::both : pass == StagePass::data ? Backward::data : Backward::weights;
}

}   // namespace

std::string PipelineConfig::layers_text(uint32_t number) const {
    const Stage layers = stage(number);
    return fmt::format("{} .. {}", order.names[layers.first], order.names[std::min<size_t>(layers.end, order.names.size()) - 1]);
}

std::string PipelineConfig::stage_text(uint32_t number) const {
    return fmt::format("stage {} of {} ({})", number + 1, begins.size(), layers_text(number));
}

std::string PipelineConfig::cell_text(const Cell& cell) const {
    const std::string groups = slice_groups > 1 ? fmt::format(", slice group {} of {}", cell.slice_group + 1, slice_groups) : "";
    return stage_text(cell.stage) + groups;
}

Stage PipelineConfig::cell(uint32_t number) const {
    const Cell which = cell_numbered(number, slice_groups);
    Stage all = stage(which.stage);
    all.slice_group = which.slice_group;
    all.slice_groups = slice_groups;
    return all;
}

std::vector<StageTask> PipelineConfig::tasks(uint32_t of_stage, uint32_t blocks) const {
    return stage_tasks(schedule, stages(), of_stage, (blocks + micro_batch - 1) / micro_batch);
}

/// Values have the number of their layer, gradients that of the pair of layers.
void Pipeline::connect() {
    const uint32_t replica = grid_.replica_of(self_);
    auto rank_of = [&](uint32_t layer) {
        const auto next = std::ranges::upper_bound(config_.begins, layer);
        return grid_.rank_of(replica, {static_cast<uint32_t>(next - config_.begins.begin()) - 1, config_.own_slice_group});
    };
    const std::span<const Edge> edges = net_.edges();
    for (size_t i = 0; i < edges.size(); ++i) {
        const Edge& edge = edges[i];
        const Rank peer = rank_of(edge.incoming ? edge.from : edge.by);
        const std::string& layer = config_.order.names[edge.from];
        auto& values = edge.incoming ? incoming_ : outgoing_;
        const auto known = [&](const Crossing& each) { return !each.gradient && each.peer == peer && each.number == edge.from; };
        if (std::ranges::none_of(values, known)) values.push_back({i, false, peer, static_cast<uint16_t>(edge.from), layer});
        if (!edge.learns) continue;
        const auto read = std::ranges::find(config_.order.reads, std::pair(edge.from, edge.by));
        GC_ASSERT(read != config_.order.reads.end());
        (edge.incoming ? outgoing_ : incoming_)
            .push_back({i, true, peer, static_cast<uint16_t>(read - config_.order.reads.begin()), layer});
    }
}

void Pipeline::plan(Arena& arena) {
    slots_ = config_.in_flight(config_.own_stage);
    rooms_ = config_.rooms() * config_.micro_batch;
    together_ = std::min(net_.together(), config_.lane_share());
    connect();
    const uint32_t samples = *std::ranges::max_element(config_.block_sizes);
    for (Crossing& crossing : incoming_) {
        crossing.place = room_bytes_;
        room_bytes_ += (net_.edge_bytes(crossing.edge, crossing.gradient, samples) + 63) / 64 * 64;
    }
    arena.plan("edges", rooms_ * room_bytes_, &memory_);
    if (config_.slice_groups > 1) {
        slices_ = std::make_unique<SliceExchange>(net_, grid_, self_, config_.order.names, config_.cell_text(config_.own()));
        slices_->plan(arena, config_.lanes);
    }
    transfers_.resize(rooms_ * incoming_.size() + slots_ * config_.micro_batch * outgoing_.size() +
                      config_.lanes * (incoming_.size() + outgoing_.size()));
}

uint64_t Pipeline::edge_bytes(bool comes, bool gradients, uint32_t samples) const {
    uint64_t bytes = 0;
    for (const Crossing& each : comes ? incoming_ : outgoing_)
        if (each.gradient == gradients) bytes += net_.edge_bytes(each.edge, gradients, samples);
    return bytes;
}

uint64_t Pipeline::bytes_sent(std::span<const uint32_t> blocks) const {
    uint64_t bytes = 0;
    for (const uint32_t block : blocks)
        for (const bool gradients : {false, true}) bytes += edge_bytes(false, gradients, config_.block_sizes[block]);
    for (const uint32_t block : blocks) bytes += slices_ ? slices_->bytes_sent(config_.block_sizes[block]) : 0;
    return bytes;
}

void Pipeline::open(Context& context, Dispatch& dispatch) {
    context_ = &context;
    dispatch_ = &dispatch;
    dispatch.add(edge_channel, this);
    if (slices_) slices_->open(context, dispatch);
}

void Pipeline::agree(uint32_t lanes) {
    if (slices_) together_ = std::min(net_.together(), (config_.micro_batch + lanes - 1) / lanes);
}

Buffer Pipeline::room(uint32_t index, const Crossing& crossing) {
    return memory_.part(index % rooms_ * room_bytes_ + crossing.place,
                        net_.edge_bytes(crossing.edge, crossing.gradient, samples_of(index)));
}

/// Blocks of a call lie one behind the other.
Buffer Pipeline::edge(const Call& call, uint32_t index, size_t edge, bool gradient) {
    uint32_t before = 0;
    for (uint32_t i = call.first; i < index; ++i) before += samples_of(i);
    const uint64_t offset = before > 0 ? net_.edge(call.lane, call.slot, edge, gradient, before).bytes : 0;
    const Buffer upto = net_.edge(call.lane, call.slot, edge, gradient, before + samples_of(index));
    return upto.part(offset, upto.bytes - offset);
}

Pipeline::Call Pipeline::call(uint32_t micro_batch, uint32_t number) const {
    const uint32_t first = micro_batch * config_.micro_batch + number * together_;
    return {number % config_.lanes, micro_batch % slots_ * config_.lane_share() + number / config_.lanes, first,
            std::min(together_, end_of(micro_batch) - first)};
}

void Pipeline::post(Transfer& transfer, const Crossing& crossing, bool comes, uint32_t block, Buffer memory) {
    GC_ASSERT(transfer.fate != Fate::open);
    transfer = {&crossing, comes, block, Fate::open};
    const EdgeKey key{static_cast<uint32_t>(step_), block | mark_, crossing.number, crossing.gradient};
    const uint64_t ticket = static_cast<uint64_t>(&transfer - transfers_.data()) + 1;
    Edges edges(context_->host, edge_channel);
    if (comes) edges.receive(crossing.peer, key, memory, ticket);
    else edges.send(crossing.peer, key, memory, ticket);
}

void Pipeline::receive(uint32_t index, bool gradients) {
    if (index >= blocks_.size()) return;
    for (size_t i = 0; i < incoming_.size(); ++i)
        if (const Crossing& each = incoming_[i]; each.gradient == gradients)
            post(incoming(index)[i], each, true, blocks_[index], room(index, each));
}

void Pipeline::send(uint32_t index, const Call& call, bool gradients) {
    for (size_t i = 0; i < outgoing_.size(); ++i)
        if (const Crossing& each = outgoing_[i]; each.gradient == gradients)
            post(outgoing(index)[i], each, false, blocks_[index], edge(call, index, each.edge, gradients));
}

Status Pipeline::take(const Completion& completion) {
    if (completion.id & SliceExchange::tickets) return slices_->take(completion);
    GC_ASSERT(completion.id >= 1 && completion.id <= transfers_.size());
    if (completion.status.code == Code::deadline) return missing_ = completion.status, Status{};
    Transfer& transfer = transfers_[completion.id - 1];
    const Code code = completion.status.code;
    const bool ended = code == Code::cancelled || (code == Code::peer_lost && dispatch_->any_lost());
    transfer.fate = ended && transfer.comes ? Fate::gone : Fate::done;
    return ended ? Status{} : completion.status;
}

bool Pipeline::broken() const {
    const uint32_t replica = grid_.replica_of(self_);
    for (uint32_t number = 0; number < grid_.cells(); ++number)
        if (dispatch_->lost(grid_.rank_of(replica, grid_.cell(number)))) return true;
    return false;
}

bool Pipeline::stopped() { return stopped_ = stopped_ || broken() || (needless_ && needless_()); }

Status Pipeline::poll() {
    if (!needless_ && !broken()) return {};   // only a wait ends early
    const Status status = dispatch_->collect(context_->host.now_us());
    if (status.code != Code::deadline || !dispatch_->ended().ok()) GC_TRY(status);
    return stopped(), Status{};
}

Status Pipeline::wait(const Transfer& transfer, uint64_t until_us) {
    Waiting waiting(context_->progress);
    while (transfer.fate == Fate::open) {
        if (stopped()) return {};
        const Status status = dispatch_->collect(until_us);
        if (status.code == Code::deadline && dispatch_->ended().ok()) return overdue(transfer);
        GC_TRY(status);
    }
    return {};
}

Status Pipeline::wait(std::span<Transfer> transfers, bool gradients, MicroBatchPlace place) {
    Profile* const profile = context_->profile;
    const uint64_t begin_us = context_->host.now_us();
    for (const Transfer& each : transfers) {
        if (each.fate == Fate::gone) stopped_ = true;   // its sender has stopped
        if (each.fate != Fate::open || each.crossing->gradient != gradients) continue;
        const uint64_t from_us = context_->host.now_us(), from_ns = profile ? clock_ns() : 0;
        const Status status = wait(each, begin_us + wait_us_);
        const StageTime what = !each.comes ? StageTime::unsent : gradients ? StageTime::gradients : StageTime::values;
        context_->stage.wait(what, context_->host.now_us() - from_us);
        if (profile) {
            const uint64_t to_ns = clock_ns();
            profile->time(StepPhase::edges, to_ns - from_ns);
            const char* const name = what == StageTime::unsent ? "unsent" : gradients ? "gradients" : "values";
            if (profile->on()) profile->add(Profile::trainer, name, each.crossing->layer, from_ns, to_ns, place);
        }
        GC_TRY(status);
        if (stopped_) return {};
        if (each.fate == Fate::gone) stopped_ = true;
    }
    waited_us_ += context_->host.now_us() - begin_us;
    return {};
}

Status Pipeline::overdue(const Transfer& transfer) {
    missing_ = {};
    Edges(context_->host, edge_channel).explain(static_cast<uint64_t>(&transfer - transfers_.data()) + 1);
    for (const uint64_t until_us = context_->host.now_us() + 1'000'000; missing_.ok() && context_->host.now_us() < until_us;) {
        (void)dispatch_->collect(until_us);
        GC_TRY(dispatch_->ended());
    }
    return fail(Code::deadline, "step {}: {} has waited {} s for the {} of layer {} in block {}{}{}", step_ + 1,
                config_.cell_text(config_.own()), static_cast<double>(wait_us_) / 1e6, transfer.crossing->gradient ? "gradient" : "value",
                transfer.crossing->layer, transfer.block, missing_.ok() ? "" : ": ", missing_.what);
}

void Pipeline::begin(StepId step, uint32_t mark, const std::function<bool()>& needless) {
    step_ = step;
    mark_ = mark;
    needless_ = needless;
    stopped_ = false;
    for (Transfer& each : transfers_) {
        GC_ASSERT(each.fate != Fate::open);
        each.fate = Fate::free;
    }
}

Status Pipeline::run(StepId step, std::span<const uint32_t> blocks, BlockSource& source, GradientSink& sink,
                     const std::function<bool()>& needless) {
    begin(step, 0, needless);
    return run_all(blocks, source, sink);
}

Status Pipeline::probe(BlockSource& source, GradientSink& sink) {
    begin(0, mark_probe, {});
    static constexpr uint32_t block = 0;
    return run_all({&block, 1}, source, sink);
}

Status Pipeline::run_all(std::span<const uint32_t> blocks, BlockSource& source, GradientSink& sink) {
    source_ = &source;
    sink_ = &sink;
    waited_us_ = 0;
    wait_us_ = context_->stage_wait_us(blocks.size());
    if (blocks_.size() != blocks.size()) tasks_ = config_.tasks(config_.own_stage, static_cast<uint32_t>(blocks.size()));
    blocks_ = blocks;
    if (slices_) slices_->begin(step_, wait_us_, slices_needless());
    fetched_ = 0;
    context_->stage.micro_batches = micro_batches();
    GC_TRY(poll());
    for (uint32_t index = 0; index < rooms_ && !stopped_; ++index)
        for (const bool gradients : {false, true}) receive(index, gradients);
    size_t task = 0;
    while (task < tasks_.size() && !stopped_) {
        GC_TRY(run(tasks_[task]));
        if (stopped_) break;
        ++task;
        GC_TRY(poll());
    }
    for (Transfer& each : transfers_)
        if (!stopped_) GC_TRY(wait({&each, 1}, each.crossing && each.crossing->gradient));
    for (; fetched_ < blocks_.size() && stopped_; ++fetched_) skip(fetched_);
    return end(task);
}

std::function<bool()> Pipeline::slices_needless() const {
    return [this] { return broken() || (needless_ && needless_()); };
}

void Pipeline::skip(uint32_t index) {
    const BlockId id{step_, blocks_[index]};
    if (Samples samples; source_->get(id, &samples).ok()) source_->done(id);
}

Status Pipeline::end(size_t next_task) {
    if (slices_ && !stopped_) {
        const Status status = slices_->drain();
        if (!SliceExchange::is_stop(status)) GC_TRY(status);
        stopped_ = slices_->stopped();
        waited_us_ += slices_->take_waited_us();
    }
    if (!stopped_) return {};
    std::vector<uint32_t> blocks = slices_ ? slices_->under_way() : std::vector<uint32_t>();
    for (const Transfer& each : transfers_)
        if (each.fate == Fate::open) blocks.push_back(each.block | mark_);
    if (blocks.empty()) return {};
    for (size_t task = next_task; task < tasks_.size(); ++task)
        for (uint32_t index = tasks_[task].micro_batch * config_.micro_batch; index < end_of(tasks_[task].micro_batch); ++index)
            blocks.push_back(blocks_[index] | mark_);
    return abandon(std::move(blocks));
}

Status Pipeline::abandon(std::vector<uint32_t> blocks) {
    std::ranges::sort(blocks);
    blocks.erase(std::ranges::unique(blocks).begin(), blocks.end());
    Edges edges(context_->host, edge_channel);
    for (const uint32_t block : blocks) edges.abandon(static_cast<uint32_t>(step_), block);
    return drain();
}

/// The link answers for what is abandoned, or gives the other rank up.
Status Pipeline::drain() {
    Waiting waiting(context_->progress);
    const uint64_t begin_us = context_->host.now_us(), until_us = begin_us + wait_us_;
    const auto take_some = [&](bool* late) -> Status {
        // A rank that computes wrongly must first receive the reason.
        const bool cuts = dispatch_->expelling();
        const Status status = dispatch_->collect(cuts ? context_->host.now_us() + context_->deadline_us / 40 : until_us);
        if (status.code != Code::deadline || !dispatch_->ended().ok()) return status;
        if (cuts) dispatch_->cut_expelled();
        else *late = true;
        return {};
    };
    bool late = false;
    for (const Transfer& each : transfers_)
        while (each.fate == Fate::open) {
            GC_TRY(take_some(&late));
            if (late) return overdue(each);
        }
    while (slices_ && !slices_->under_way().empty()) {
        GC_TRY(take_some(&late));
        if (late) return slices_->overdue();
    }
    waited_us_ += context_->host.now_us() - begin_us;
    return {};
}

/// The slot's micro-batch before this one had blocks of other sizes: all that it sends may lie where this one's forward pass writes.
bool Pipeline::other_places(uint32_t micro_batch) const {
    if (micro_batch < slots_) return false;
    const uint32_t first = micro_batch * config_.micro_batch, before = (micro_batch - slots_) * config_.micro_batch;
    const uint32_t count = end_of(micro_batch) - first;
    if (count != end_of(micro_batch - slots_) - before) return true;
    for (uint32_t i = 0; i < count; ++i)
        if (samples_of(first + i) != samples_of(before + i)) return true;
    return false;
}

Status Pipeline::run(const StageTask& task) {
    const bool forward = task.pass == StagePass::forward, gradients = takes_gradients(task.pass);
    const uint32_t first = task.micro_batch * config_.micro_batch, end = end_of(task.micro_batch);
    if (forward && other_places(task.micro_batch)) {
        const uint32_t before = task.micro_batch - slots_;
        for (uint32_t index = before * config_.micro_batch; index < end_of(before); ++index)
            for (const bool gone : {false, true}) {
                GC_TRY(wait(outgoing(index), gone, place(task.micro_batch)));
                if (stopped_) return {};
            }
    }
    // What has gone from this slot is free to be written: values by a forward pass, gradients by a data pass.
    for (uint32_t index = first; index < end && (forward || gradients); ++index) {
        GC_TRY(wait(outgoing(index), gradients, place(task.micro_batch)));
        if (!stopped_) GC_TRY(wait(incoming(index), gradients, place(task.micro_batch)));
        if (stopped_) return {};
    }
    struct Work {
        Pipeline& all;
        const StageTask& task;
        const uint32_t calls;
        std::mutex mutex = {};
        Status status = {};   // of the first call that failed
    } work{*this, task, (end - first + together_ - 1) / together_};
    const uint64_t begin_us = context_->host.now_us();
    context_->lanes.run(std::min(config_.lanes, work.calls), [&work](uint32_t, uint32_t lane) {
        bool stops = false;
        for (uint32_t number = lane; number < work.calls; number += work.all.config_.lanes) {
            const Call made = work.all.call(work.task.micro_batch, number);
            for (uint32_t i = 0; stops && work.task.pass == StagePass::forward && i < made.count; ++i) work.all.skip(made.first + i);
            if (stops) continue;
            const Status status = work.all.traced(work.task, number);
            stops = SliceExchange::is_stop(status);   // as all lanes do
            if (status.ok() || stops) continue;
            if (work.all.slices_) work.all.slices_->fail(status);
            std::lock_guard lock(work.mutex);
            if (work.status.ok()) work.status = status;
            break;   // what the failed call waits for is still open
        }
    });
    GC_TRY(work.status);
    if (slices_) waited_us_ += slices_->take_waited_us();
    if (forward) fetched_ = end;
    if (slices_ && slices_->stopped()) return stopped_ = true, Status{};
    context_->stage.pass(task.pass, begin_us, context_->host.now_us());
    if (!forward && !gradients) return {};
    for (uint32_t number = 0; number < work.calls; ++number) {
        const Call made = call(task.micro_batch, number);
        for (uint32_t index = made.first; index < made.first + made.count; ++index) send(index, made, gradients);
    }
    for (uint32_t index = first; index < end; ++index) receive(index + rooms_, gradients);
    return {};
}

Status Pipeline::evaluate(std::span<const EvaluationBatch> batches, const std::function<Status(uint32_t, uint32_t)>& evaluate) {
    begin(context_->step, mark_evaluation, {});
    const uint32_t of_block = *std::ranges::min_element(config_.block_sizes);
    wait_us_ = context_->stage_wait_us(batches.empty() ? 0 : uint64_t{batches[0].samples} * config_.lanes / of_block);
    if (slices_) slices_->begin(step_, wait_us_, slices_needless());
    auto wait_all = [&]() -> Status {
        for (uint32_t lane = 0; lane < config_.lanes && !stopped(); ++lane) GC_TRY(wait(evaluated(lane), false));
        return {};
    };
    for (size_t first = 0; first < batches.size(); first += config_.lanes) {
        const auto count = static_cast<uint32_t>(std::min<size_t>(config_.lanes, batches.size() - first));
        auto each_value = [&](uint32_t lane, bool comes, auto act) {
            const std::span<const Crossing> all = comes ? incoming_ : outgoing_;
            const std::span<Transfer> transfers = evaluated(lane).subspan(comes ? 0 : incoming_.size(), all.size());
            for (size_t i = 0; i < all.size(); ++i)
                if (!all[i].gradient) act(transfers[i], all[i]);
        };
        auto cross = [&](bool comes) {
            for (uint32_t lane = 0; lane < count; ++lane)
                each_value(lane, comes, [&](Transfer& transfer, const Crossing& crossing) {
                    const auto& [number, samples] = batches[first + lane];
                    post(transfer, crossing, comes, number, net_.evaluation_edge(lane, crossing.edge, samples));
                });
        };
        // What has gone is free to be written, and what comes has memory.
        GC_TRY(wait_all());
        if (!stopped_) cross(true);
        GC_TRY(wait_all());
        if (stopped_) break;
        std::mutex mutex;
        Status status;   // of the first batch that failed
        context_->lanes.run(count, [&](uint32_t, uint32_t lane) {
            const auto& [number, samples] = batches[first + lane];
            if (slices_) slices_->call(lane, number | mark_, samples, SliceExchange::Call::evaluation);
            const Status found = evaluate(lane, static_cast<uint32_t>(first) + lane);
            if (SliceExchange::is_stop(found)) return;
            if (!found.ok() && slices_) slices_->fail(found);
            std::lock_guard lock(mutex);
            if (status.ok()) status = found;
        });
        GC_TRY(status);
        stopped_ = stopped_ || (slices_ && slices_->stopped());
        if (stopped_) break;
        cross(false);
    }
    GC_TRY(wait_all());
    return end(tasks_.size());
}

Status Pipeline::traced(const StageTask& task, uint32_t number) {
    const Call made = call(task.micro_batch, number);
    Profile* const profile = context_->profile;
    const uint64_t begin_ns = profile && profile->on() ? clock_ns() : 0;
    const Status status = pass(made, task.pass);
    if (begin_ns > 0) profile->add(made.lane, stage_pass_name(task.pass), {}, begin_ns, clock_ns(), place(task.micro_batch));
    return status;
}

/// One call of the net, in the memory of its lane.
Status Pipeline::pass(const Call& call, StagePass pass) {
    const bool forward = pass == StagePass::forward, gradients = takes_gradients(pass);
    if (context_->spend_us) context_->host.spend(context_->spend_us * (pass != StagePass::backward ? 1 : config_.recomputes() ? 3 : 2));
    for (uint32_t index = call.first; index < call.first + call.count && (forward || gradients); ++index)
        for (const Crossing& crossing : incoming_) {
            if (crossing.gradient != gradients) continue;
            const Buffer from = room(index, crossing), to = edge(call, index, crossing.edge, gradients);
            GC_ASSERT(from.bytes == to.bytes);
            std::memcpy(to.host, from.host, to.bytes);
        }
    if (slices_ && (forward || gradients)) {
        uint32_t samples = 0;
        for (uint32_t index = call.first; index < call.first + call.count; ++index) samples += samples_of(index);
        slices_->call(call.lane, blocks_[call.first] | mark_, samples,
                      forward ? SliceExchange::Call::forward : SliceExchange::Call::backward);
    }
    if (!forward) return net_.backward(call.lane, call.slot, backward_of(pass), *sink_);
    std::array<Block, together_most> blocks;
    uint32_t count = 0;
    Status status;
    {
        const Span span(context_->profile, call.lane, StepPhase::load);
        for (; count < call.count && status.ok(); count += status.ok() ? 1 : 0) {
            blocks[count].id = {step_, blocks_[call.first + count]};
            status = source_->get(blocks[count].id, &blocks[count].samples);
        }
    }
    if (status.ok()) status = net_.forward(call.lane, call.slot, std::span(blocks.data(), count), *sink_);
    for (uint32_t i = 0; i < count; ++i) source_->done(blocks[i].id);
    return status;
}

}   // namespace gradcast
