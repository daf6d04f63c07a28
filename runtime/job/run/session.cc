#include "runtime/job/run/session.h"

#include <algorithm>

#include "runtime/core/bits.h"
#include "runtime/job/run/probe_block.h"
#include "runtime/view/protocol.h"
#include "transport/exchange/cost.h"

namespace gradcast {
namespace {

// Of mail.  A resume's messages have bit 62 and small numbers, two a cell.  So numbers of lanes have a bit of their own; scales are shared
// where nothing is resumed.
constexpr uint64_t tag_scales = uint64_t{1} << 62 | 10, tag_lanes = uint64_t{1} << 62 | uint64_t{1} << 39;

}   // namespace

Session::Session(const SessionConfig& config, const EngineConfig& job, JobParts& parts, Report& report)
    : config_(config), job_(job), parts_(parts), report_(report) {
    view_.number = config.view;
    for (const NodeId node : config.nodes) {
        if (node == job.self) self_ = view_.n();
        view_.members.push_back(job.roster[static_cast<uint32_t>(node)]);
    }
    GC_ASSERT(self_ < view_.n() && config.nodes[self_] == job.self);
    exchange_view_ = view_;
    exchange_self_ = self_;
    if (!parts.pipeline) return;
    stages_ = ViewStages(config.nodes, parts.cut->stages(), job.job.buddy, parts.cut->slice_groups);
    grid_ = stages_.grid;
    exchange_view_.members.clear();
    exchange_self_ = spare() ? 0 : grid_.replica_of(self_);
    exchange_others_.assign(bit_words(view_.n()), 0);
    for (const Rank rank : spare() ? std::vector<Rank>{self_} : grid_.replica_group(grid_.cell_of(self_))) {
        exchange_ranks_.push_back(NodeId{rank});
        exchange_view_.members.push_back(view_.members[rank]);
        if (rank != self_) set_bit(exchange_others_.data(), rank);
    }
}

Session::~Session() {
    if (shared_.bytes > 0) parts_.compute.device->unshare(shared_);
}

/// Each block is one rank's, however many compute it: those of a super-block are its holders' in turn.
uint32_t Session::own_samples() const {
    uint32_t samples = 0;
    if (spare() || (parts_.pipeline && parts_.pipeline->own_cell() > 0)) return 0;   // those of a replica are its first cell's
    for (size_t i = 0; i < placement_.holders.size(); ++i)
        for (uint32_t block = placement_.bounds[i]; block < placement_.bounds[i + 1]; ++block)
            if (placement_.holders[i][(block - placement_.bounds[i]) % placement_.holders[i].size()] == exchange_self_)
                samples += parts_.sampler->block_size(block);
    return samples;
}

uint32_t Session::blocks_most() const {
    size_t most = 0;
    for (Rank rank = 0; rank < exchange_view_.n(); ++rank) most = std::max(most, placement_.blocks_of(rank).size());
    return static_cast<uint32_t>(most);
}

Status Session::plan() {
    const View& view = exchange_view_;
    ExchangeConfig config = alternative().config;
    config.self = exchange_self_;
    config.layout = &parts_.compute.codec->words();
    config.first_step = config_.first_step * parts_.sums();
    exchange_ = alternative().kind->create(config);
    placement_ = exchange_->place(view, parts_.block_sizes);
    if (!spare()) own_blocks_ = placement_.blocks_of(exchange_self_);
    others_ = ranks_but(self_, view_.n());
    GC_TRY(exchange_->install(view, arena_));
    if (alternative().datagrams) {
        if (!parts_.algorithm->exchanges()) broadcast_ = broadcast_protocol(self_, view.n(), job_.datagram_bytes);
        bulk_ = bulk_create(
            {.self = exchange_self_, .ranks = view.n(), .segment_bytes = job_.datagram_bytes, .rate_bytes_per_s = job_.pace_bytes_per_s},
            broadcast_ ? *broadcast_ : *exchange_, arena_, &bulk_counters_);
    }
    if (parts_.pipeline) {
        group_ = std::make_unique<RankedProtocol>(bulk_ ? *bulk_ : *exchange_, exchange_ranks_);
        edges_ = edges_protocol(self_, view_.n(), segment_bytes_stream);
        if (!spare()) {
            GC_ASSERT(parts_.pipeline->slots() <= parts_.compute.net->slots());
            pipeline_ = std::make_unique<Pipeline>(*parts_.pipeline, grid_, self_, *parts_.compute.net);
            pipeline_->plan(arena_);
            kept_ = keep_stages();
            if (kept_) kept_->plan(arena_);
            tied_ = tie_sums();
            if (tied_) tied_->plan(arena_);
        }
    }
    mail_protocol_ = mail_protocol(self_, view_.n(), segment_bytes_stream);
    if (parts_.evaluator) evaluation_.plan(parts_, parts_.pipeline ? &grid_ : nullptr, self_, view_.n(), losses_tolerated(), arena_);
    if (parts_.local) {
        arena_.plan("vectors of workers", own_blocks_.size() * parts_.compute.net->parameters().size_bytes(), &vectors_);
    } else if (losses_tolerated() > 0 && parts_.pipeline) {
        arena_.plan("scales", view.n() * (parts_.compute.codec->exponents().size() + 1) * sizeof(int32_t), &scales_);
    } else if (losses_tolerated() > 0) {
        arena_.plan("state of the step before", parts_.compute.net->parameters().size_bytes(), &kept_parameters_);
        arena_.plan("state of the step before", parts_.compute.codec->exponents().size_bytes(), &kept_exponents_);
    }
    return {};
}

Status Session::ready() {
    GC_TRY(arena_.seal());
    if (parts_.compute.device) {
        shared_ = arena_.whole();
        parts_.compute.device->share(shared_);
    }
    return {};
}

/// Null: this rank keeps nothing, and nobody keeps its stage.
std::unique_ptr<KeptStages> Session::keep_stages() const {
    if (!parts_.buddies) return nullptr;
    Rank keeper = KeptStages::no_rank;
    if (const StageRun run = stages_.run_of(self_); run.stages() == 1)
        if (const std::vector<Rank> holders = stages_.holders(run.first); holders.size() > 1) keeper = holders.back();
    std::vector<KeptStages::Kept> kept;
    for (KeptStage* each : parts_.buddies->kept())
        kept.push_back(
            {each, grid_.rank_of(0, {stages_.cell_of(each->stage), 0}), fmt::format("sums of {}", parts_.cut->stage_text(each->stage))});
    if (keeper == KeptStages::no_rank && kept.empty()) return nullptr;
    return std::make_unique<KeptStages>(parts_.compute.codec->words(), job_.job.quantiser, view_.n(), keeper, std::move(kept));
}

/// Null: no other stage has weights that this one has.
std::unique_ptr<TiedSums> Session::tie_sums() const {
    const Layout& layout = parts_.compute.net->layout();
    const Stage cell = parts_.pipeline->cell(parts_.pipeline->own_cell());
    std::vector<TiedSums::Tensor> tensors;
    const std::vector<SharedWeights> all = weights_shared(parts_.layers, parts_.pipeline->begins);
    for (uint32_t number = 0; number < all.size(); ++number) {
        const SharedWeights& shared = all[number];
        const Layer& owner = parts_.layers[shared.layer];
        if (std::ranges::find(shared.stages, parts_.pipeline->own_stage) == shared.stages.end()) continue;
        const uint64_t first = own_parameters(owner, cell).first;   // of the part that the own slice group has
        TiedSums::Tensor tensor{.number = number, .bucket = layout.bucket_of(layout.offset_of(first)), .others = {}, .what = {}};
        std::vector<std::string_view> names;
        for (const uint32_t stage : shared.stages) {
            if (stage == parts_.pipeline->own_stage) continue;
            tensor.others.push_back(grid_.rank_of(grid_.replica_of(self_), {stage, cell.slice_group}));
            names.push_back(view_.members[tensor.others.back()].name);
        }
        tensor.what = fmt::format("sums of the weights of {} by {}", owner.spec.name, fmt::join(names, " and "));
        tensors.push_back(std::move(tensor));
    }
    if (tensors.empty()) return nullptr;
    return std::make_unique<TiedSums>(parts_.compute.codec->words(), job_.job.quantiser, *exchange_, view_.n(), std::move(tensors));
}

std::vector<uint32_t> Session::cells_alike() const {
    const std::vector<SharedWeights> all = weights_shared(parts_.layers, parts_.pipeline->begins);
    std::vector<std::vector<uint64_t>> shared;   // by cell: places of weights that other stages have too
    std::vector<uint32_t> alike;
    for (uint32_t cell = 0; cell < grid_.cells(); ++cell) {
        std::vector<uint64_t>& places = shared.emplace_back();
        for (const SharedWeights& each : all)
            if (std::ranges::find(each.stages, grid_.cell(cell).stage) != each.stages.end())
                places.push_back(own_parameters(parts_.layers[each.layer], parts_.pipeline->cell(cell)).first);
        alike.push_back(static_cast<uint32_t>(std::ranges::find(shared, places) - shared.begin()));
    }
    return alike;
}

PipelineStatus Session::pipeline_status() const {
    const PipelineConfig& config = *parts_.pipeline;
    PipelineStatus status{.schedule = pipeline_schedule_names()[static_cast<size_t>(config.schedule)],
                          .micro_batch = config.micro_batch,
                          .own_stage = config.own_stage + 1,
                          .slice_groups = config.slice_groups};
    for (uint32_t stage = 0; stage < config.stages(); ++stage) status.layers.push_back(config.layers_text(stage));
    for (Rank rank = 0; rank < view_.n(); ++rank)
        status.nodes.push_back({view_.members[rank].name,
                                grid_.cell_of(rank).stage + 1,
                                grid_.is_spare(rank) ? 0 : grid_.replica_of(rank) + 1,
                                {},
                                grid_.cell_of(rank).slice_group + 1});
    return status;
}

void Session::open(Context& context, const std::vector<NodeId>& lost) {
    context_ = &context;
    context.view = config_.view;
    parts_.give(context);
    std::vector<bool> lost_ranks(view_.n());
    for (Rank rank = 0; rank < view_.n(); ++rank) lost_ranks[rank] = std::find(lost.begin(), lost.end(), config_.nodes[rank]) != lost.end();
    host_ = std::make_unique<ViewHost>(context.host, config_.nodes, !job_.job.survive && config_.nodes.size() == job_.roster.size());
    std::function<void(Rank, Suspicion)> suspect;
    if (job_.job.survive) suspect = [this](Rank rank, Suspicion why) { ViewProtocol::suspect(context_->host, config_.nodes[rank], why); };
    std::function<std::string(Rank)> part_of;
    if (parts_.pipeline) part_of = [this](Rank rank) { return parts_.pipeline->cell_text(grid_.cell_of(rank)); };
    std::function<void(Rank, StageNews)> stage_of;
    if (parts_.pipeline) {
        stage_of = [this](Rank rank, StageNews news) { report_.stage_of(config_.nodes[rank], std::move(news)); };
        report_.pipeline(pipeline_status());
    }
    parts_.ending.store(false, std::memory_order_relaxed);
    job_protocol_ = job_protocol({.view = view_,
                                  .self = self_,
                                  .deadline_us = parts_.deadline_us,
                                  .kernel_set = parts_.kernel_set,
                                  .data_digest = parts_.data_digest,
                                  .start_digest = parts_.start_digest,
                                  .progress = &parts_.progress,
                                  .losses_tolerated = losses_tolerated(),
                                  .first = config_.first,
                                  .lost = lost_ranks,
                                  .steps = parts_.steps,
                                  .first_step = context.first,
                                  .suspect = suspect,
                                  .times = &report_.times(),
                                  .times_of = [this](Rank rank, const RankTimes& times) { report_.times_of(config_.nodes[rank], times); },
                                  .stages = pipeline_ ? &report_.stages() : nullptr,
                                  .stage_of = stage_of,
                                  .isa_setting = job_.isa_setting,
                                  .grid = pipeline_ ? &grid_ : nullptr,
                                  .part_of = part_of,
                                  .ending = &parts_.ending},
                                 report_.log());
    dispatch_ = std::make_unique<Dispatch>(*host_, parts_.progress, lost_ranks, context.why_lost, parts_.deadline_us);
    mailbox_ = std::make_unique<Mailbox>(*host_, *dispatch_, parts_.progress, parts_.deadline_us, self_, view_.n(), broadcast_ != nullptr);
    std::vector<Rank> view_ranks;
    for (const NodeId rank : exchange_ranks_) view_ranks.push_back(static_cast<Rank>(rank));
    if (parts_.local) {
        workers_ = std::make_unique<WorkerSum>(context, *dispatch_, *exchange_,
                                               WorkerSumConfig{.placement = placement_,
                                                               .own = own_blocks_,
                                                               .first_step = config_.first_step * parts_.sums(),
                                                               .vectors = vectors_,
                                                               .patience = parts_.deadlines_of_round()});
    } else {
        const Stage stage = parts_.pipeline ? parts_.pipeline->cell(parts_.pipeline->own_cell()) : Stage{};
        SynchronousConfig config{.self = exchange_self_,
                                 .view = exchange_view_,
                                 .view_ranks = view_ranks,
                                 .own_blocks = own_blocks_,
                                 .gradients = gradients_of_buckets(parts_.layers, parts_.compute.net->layout(), stage),
                                 .own_samples = own_samples(),
                                 .first_step = config_.first_step,
                                 .kept_parameters = kept_parameters_,
                                 .kept_exponents = kept_exponents_};
        synchronous_ = std::make_unique<SynchronousStep>(context, *dispatch_, *exchange_, config);
    }
    context.self = self_;
    context.ranks = view_.n();
    context.workers = workers_.get();
    context.mail = mailbox_.get();
    context.synchronous = synchronous_.get();
    if (pipeline_) pipeline_->open(context, *dispatch_);
    if (kept_) kept_->open(context, *dispatch_);
    if (tied_) tied_->open(context, *dispatch_);
    if (parts_.pipeline) {
        std::vector<std::vector<Rank>> keeps(view_.n());
        for (Rank rank = 0; rank < view_.n(); ++rank)
            for (const uint32_t stage : stages_.kept(rank)) keeps[rank].push_back(grid_.rank_of(0, {stages_.cell_of(stage), 0}));
        Cells::CellGroups groups;
        for (uint32_t cell = 0; cell < grid_.cells() && job_.job.optimiser.clip_norm > 0; ++cell)
            groups.push_back(parts_.state_runs_of(cell)[StateVector::exponents]);
        cells_ = std::make_unique<Cells>(context, *dispatch_, view_, grid_, self_, losses_tolerated(), std::move(keeps), cells_alike(),
                                         std::move(groups));
    }
    context.spare = spare();
    context.pipeline = pipeline_.get();
    context.kept = kept_.get();
    context.tied = tied_.get();
    context.cells = cells_.get();
    const bool sums = bulk_ && !broadcast_;
    std::vector<Attachment> attachments = {
        {job_channel, job_protocol_.get(), false},
        {gradient_channel,
         group_ ? group_.get()
         : sums ? bulk_.get()
                : exchange_.get(),
         sums},
        {mail_channel, mail_protocol_.get(), false},
    };
    if (broadcast_) attachments.push_back({broadcast_channel, bulk_.get(), true});
    if (edges_) attachments.push_back({edge_channel, edges_.get(), false});
    open_ = true;
    host_->open_view(view_.number, attachments);
}

Status Session::barrier(const JobCommand& command, JobDone done) {
    post(context_->host, command);
    return dispatch_->wait_job(static_cast<uint64_t>(done));
}

Status Session::begin() {
    GC_TRY(barrier({JobCommand::Begin{context_->state}}, JobDone::begun));
    return grid_.slice_groups() > 1 ? agree_lanes() : Status{};
}

Status Session::agree_lanes() {
    const Rank n = view_.n();
    auto* const lanes = reinterpret_cast<uint32_t*>(keep(n * sizeof(uint32_t)).data());
    auto part = [&](Rank rank) { return Buffer{reinterpret_cast<std::byte*>(lanes + rank), nullptr, sizeof(uint32_t)}; };
    lanes[self_] = parts_.pipeline->lanes;
    mailbox_->exchange(tag_lanes, part(self_), part);
    GC_TRY(mailbox_->wait(1, n + 1, first_step_us(), "the other nodes' numbers of lanes"));
    uint32_t most = 1;   // of this replica, which computes nothing where one of its ranks is lost
    for (uint32_t cell = 0; pipeline_ && cell < grid_.cells(); ++cell)
        most = std::max(most, lanes[grid_.rank_of(grid_.replica_of(self_), grid_.cell(cell))]);
    if (pipeline_) pipeline_->agree(most);
    keep_none();
    return {};
}

Status Session::end() {
    GC_TRY(barrier({JobCommand::Pause{context_->state}}, JobDone::paused));
    dispatch_->cut_expelled();   // they have the reason, and all know it
    return leave();
}

Status Session::leave() {
    open_ = false;
    return host_->close_view(host_->now_us() + parts_.deadline_us);
}

Status Session::finish(const std::string& digest) {
    JobCommand::End end;
    GC_ASSERT(digest.size() == end.digest.size());
    std::copy(digest.begin(), digest.end(), end.digest.begin());
    return barrier({end}, JobDone::ended);
}

Status Session::abort(Status found) {
    if (!open_) return found;
    Host& host = context_->host;
    post(host, {JobCommand::Abort{found}});
    // Whatever else fails meanwhile is a consequence.
    const uint64_t until_us = host.now_us() + 20 * parts_.deadline_us;
    for (Status waited; dispatch_->ended().ok() && waited.code != Code::cancelled && host.now_us() < until_us;)
        waited = dispatch_->wait_job(static_cast<uint64_t>(JobDone::aborted));
    return dispatch_->ended().ok() ? found : dispatch_->ended();
}

Status Session::probe() {
    if (spare()) return {};
    ProbeSamples samples;
    GC_TRY(samples.read(parts_));
    ProbeSink sink(parts_.compute.net->layout(), job_);
    GC_TRY(pipeline_->probe(samples, sink));
    bool own = !pipeline_->ended_early();
    if (tied_) GC_TRY(tied_->agree(sink.maxima, sink.bounds, &own, first_step_us()));
    if (own) GC_TRY(sink.scale(*parts_.compute.codec, parts_.compute.net->layout()));
    return losses_tolerated() > 0 ? share_scales(own) : Status{};
}

/// `own`: this rank has them.  It waits for nobody then.
Status Session::share_scales(bool own) {
    const std::span<int32_t> exponents = parts_.compute.codec->exponents();
    const uint32_t ranks = summing();
    auto of = [&](Rank rank) { return scales_.part(rank * (scales_.bytes / ranks), scales_.bytes / ranks); };
    auto has = [&](Rank rank) -> int32_t& { return of(rank).as<int32_t>()[exponents.size()]; };   // 1: there are scales before it
    std::ranges::copy(exponents, of(exchange_self_).as<int32_t>());
    has(exchange_self_) = own;
    mailbox_->begin(ranks);
    for (Rank rank = 0; rank < ranks; ++rank)
        if (rank != exchange_self_) mailbox_->receive(static_cast<Rank>(exchange_ranks_[rank]), tag_scales, of(rank), rank + 1);
    mailbox_->send({0, exchange_others_.data()}, tag_scales, of(exchange_self_), exchange_self_ + 1);
    if (own) return {};
    Rank from = 0;
    GC_TRY(mailbox_->wait_until(
        [&] {
            for (from = 0; from < ranks; ++from)
                if (from != exchange_self_ && mailbox_->done(from + 1) && has(from)) return true;
            return false;
        },
        first_step_us(), "scales of another replica"));
    std::copy_n(of(from).as<int32_t>(), exponents.size(), exponents.begin());
    return {};
}

void Session::post(Host& host, const JobCommand& command) { host.post(job_channel, command_event(command)); }

uint32_t Session::losses_tolerated() const {
    if (!spare()) return exchange_->losses_tolerated();
    const Alternative& others = config_.exchange;
    return others.kind->codes ? others.config.s : 0;
}

uint64_t Session::bytes_bound() const {
    if (spare()) return 0;
    ExchangeConfig config = config_.exchange.config;
    config.self = exchange_self_;
    config.layout = &parts_.compute.codec->words();
    const double words = cost_of_rank(config_.exchange.kind->name, config, exchange_view_.n(), {}).words_sent;
    return static_cast<uint64_t>(words) * parts_.sums() + (kept_ ? kept_->bytes_sent() : 0) + (tied_ ? tied_->bytes_sent() : 0);
}

std::vector<NodeId> Session::lost() const {
    std::vector<NodeId> nodes;
    for (Rank rank = 0; rank < view_.n(); ++rank)
        if (dispatch_->lost(rank)) nodes.push_back(config_.nodes[rank]);
    return nodes;
}

Rank Session::lowest() const {
    Rank rank = 0;
    while (dispatch_->lost(rank)) ++rank;
    return rank;
}

bool Session::turn(uint64_t number, uint32_t count) const {
    uint32_t living = 0, before = 0;
    for (Rank rank = 0; rank < view_.n(); ++rank) {
        if (dispatch_->lost(rank)) continue;
        before += rank < self_ ? 1 : 0;
        ++living;
    }
    GC_ASSERT(living > 0);   // this one
    return (before + living - number % living) % living < count;
}

std::vector<PartHolders> Session::part_holders(uint64_t number, uint32_t copies) const {
    // Where replicas may be lost in the view, not all ranks know at once that one is: nobody waits for another rank's copy then.
    const bool travel = losses_tolerated() == 0 && parts_travel(job_.job, job_.nodes());
    return gradcast::part_holders(
        grid_, [this](Rank rank) { return dispatch_->lost(rank); }, number, copies, travel);
}

std::optional<NodeId> Session::waited_for() const {
    const Rank rank = exchange_->waited_for();
    return rank != exchange_self_ && rank < exchange_view_.n() ? std::optional(exchange_node(rank)) : std::nullopt;
}

const Member* Session::deaf() const {
    const uint32_t deaf = bulk_counters_.deaf.load(std::memory_order_relaxed);
    return deaf > 0 ? &exchange_view_.members[deaf - 1] : nullptr;
}

}   // namespace gradcast
