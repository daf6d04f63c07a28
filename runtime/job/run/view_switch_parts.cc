// ViewSwitch: the state of a net in stages in a new view.  Each rank gets the part that it is to compute with from one that has it.
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>

#include "algos/cells.h"
#include "runtime/job/run/stages.h"
#include "runtime/job/run/state_move.h"
#include "runtime/job/run/view_switch.h"

namespace gradcast {

Status ViewSwitch::lost(const Cell& cell) {
    const uint32_t stages = parts_.cut->stages();
    std::vector<std::string> nodes;
    for (uint32_t node = 0; node < config_.roster.size(); ++node) {
        const Cell its = cell_of_node(NodeId{node}, stages, parts_.cut->slice_groups);
        if (its == cell || (config_.job.buddy && its.stage == buddy_of(cell.stage, stages))) nodes.push_back(config_.roster[node].name);
    }
    return lost_ = fail(Code::peer_lost, "no node has {} any more, which {} had: `gradcastctl resume` goes on from the last checkpoint",
                        parts_.cut->cell_text(cell), fmt::join(nodes, ", "));
}

Status ViewSwitch::catch_up_parts(Context& context, Session& session, const ViewNotice::Step& step, Standing* standing) {
    constexpr uint64_t part_tag = uint64_t{1} << 62 | uint64_t{1} << 40;
    const Rank n = session.view().n(), self = session.self();
    const ViewStages& view = session.stages();
    const uint32_t stages = parts_.cut->stages(), groups = parts_.cut->slice_groups;
    const auto group_of = [&](Rank rank) { return view.grid.cell_of(rank).slice_group; };
    const bool own = context.part_step == step.step;
    // Of each rank a byte for each stage: 1, it has the state of its cell.
    const std::span<std::byte> memory = session.keep(uint64_t{n} * stages);
    auto word = [&](Rank rank) { return Buffer{&memory[rank * stages], nullptr, stages}; };
    for (uint32_t stage = 0; stage < stages; ++stage) {
        const bool has = parts_.buddies ? parts_.buddies->held(parts_, stage) == step.step : own && parts_.run.has(stage);
        memory[self * stages + stage] = std::byte{has};
    }
    context.mail->exchange(part_tag, word(self), word);
    GC_TRY(context.mail->wait(1, n + 1, session.first_step_us(), "word of who has which part of the state"));
    for (Rank rank = 0; rank < n; ++rank)
        if (rank != self && context.mail->lost(rank + 1)) std::ranges::fill(memory.subspan(rank * stages, stages), std::byte{0});
    const auto has = [&, copy = std::vector(memory.begin(), memory.end())](Rank rank, uint32_t stage) {
        return copy[rank * stages + stage] == std::byte{1};
    };

    std::vector<StateSource> sources;
    for (uint32_t stage = 0; stage < stages; ++stage)
        for (uint32_t group = 0; group < groups; ++group) {
            Rank rank = 0;
            while (rank < n && !(has(rank, stage) && group_of(rank) == group)) ++rank;
            if (rank == n) return lost({stage, group});
            sources.push_back({rank, parts_.state_runs_of(StageRun{stage, stage + 1}, group), cell_number({stage, group}, groups)});
        }
    standing->steps = step.step;
    standing->algorithm_bytes = 0;
    GC_TRY(standing_move(context, session, std::ranges::min_element(sources, {}, &StateSource::rank)->rank, algorithm_, standing));
    std::vector<uint32_t> lacks;
    for (uint32_t stage = 0; stage < stages && !session.spare(); ++stage) {
        const std::vector<Rank> holders = view.holders(stage, group_of(self));
        if (std::ranges::find(holders, self) != holders.end() && !has(self, stage)) lacks.push_back(stage);
    }
    if (!lacks.empty()) {
        context.part_step = Context::no_part;   // until all of it has come
        for (const uint32_t stage : lacks)
            if (parts_.buddies) parts_.buddies->hold(stage, Context::no_part);
        const Rank from = sources[lacks[0] * groups + group_of(self)].rank;
        report_.state_from(config_.roster[index_of(session.config().nodes[from])].name, step.step);
    }
    GC_TRY(state_move(context, session, parts_, sources, [&](Rank rank, uint32_t stage) { return !has(rank, stage); }, {}));
    for (const uint32_t stage : lacks)
        if (parts_.buddies) parts_.buddies->hold(stage, step.step);
    if (!lacks.empty()) parts_.refresh();
    if (!session.spare()) context.part_step = step.step;
    context.step = step.step;
    context.factor_is(step.step, std::bit_cast<double>(step.digest));
    context.shared = 0;   // nobody computes it of a state that has come; the next step does
    GC_TRY(context.digest(step.step, parts_.model_digest(), &context.state));
    parts_.progress.step.store(context.step, std::memory_order_relaxed);
    if (!step.has) ViewProtocol::caught_up(context.host, step.digest);
    return {};
}

}   // namespace gradcast
