// ViewSwitch: the state of a net in stages in a new view.  Each rank gets the part that it is to compute with from one that has it.
#include <algorithm>

#include "algos/cells.h"
#include "runtime/job/run/stages.h"
#include "runtime/job/run/state_move.h"
#include "runtime/job/run/view_switch.h"

namespace gradcast {

Status ViewSwitch::lost(uint32_t stage) {
    std::vector<std::string> nodes;
    for (uint32_t node = stage; node < config_.roster.size(); node += parts_.pipeline->stages()) nodes.push_back(config_.roster[node].name);
    return lost_ = fail(Code::peer_lost, "no node has {} any more, which {} had: `gradcastctl resume` goes on from the last checkpoint",
                        parts_.pipeline->stage_text(stage), fmt::join(nodes, ", "));
}

Status ViewSwitch::catch_up_parts(Context& context, Session& session, const ViewNotice& step, Standing* standing) {
    constexpr uint64_t part_tag = uint64_t{1} << 62 | uint64_t{1} << 40;
    const Rank n = session.view().n(), self = session.self();
    const std::span<std::byte> memory = session.keep(n);
    memory[self] = std::byte{context.part_step == step.step};
    auto byte = [&](Rank rank) { return Buffer{&memory[rank], nullptr, 1}; };
    context.mail->exchange(part_tag, byte(self), byte);
    GC_TRY(context.mail->wait(1, n + 1, session.first_step_us(), "word of who has which part of the state"));
    std::vector<bool> has(n);
    for (Rank rank = 0; rank < n; ++rank) has[rank] = memory[rank] == std::byte{1} && (rank == self || !context.mail->lost(rank + 1));

    std::vector<StateSource> sources;
    for (uint32_t stage = 0; stage < parts_.pipeline->stages(); ++stage) {
        Rank rank = 0;
        while (rank < n && !(has[rank] && session.grid().cell_of(rank).stage == stage)) ++rank;
        if (rank == n) return lost(stage);
        sources.push_back({rank, parts_.state_runs_of(stage)});
    }
    standing->steps = step.step;
    standing->algorithm_bytes = 0;
    GC_TRY(standing_move(context, session, std::ranges::min_element(sources, {}, &StateSource::rank)->rank, algorithm_, standing));
    if (!session.spare() && !has[self]) {
        context.part_step = Context::no_part;   // until all of it has come
        const Rank from = sources[parts_.pipeline->own_stage].rank;
        report_.state_from(config_.roster[index_of(session.config().nodes[from])].name, step.step);
    }
    GC_TRY(state_move(context, session, parts_, sources, [&](Rank rank) { return !has[rank]; }, {}));
    if (!session.spare() && !has[self]) parts_.refresh();
    if (!session.spare()) context.part_step = step.step;
    context.step = step.step;
    GC_TRY(context.digest(step.step, parts_.model_digest(), &context.state));
    parts_.progress.step.store(context.step, std::memory_order_relaxed);
    if (step.kind == ViewNotice::Kind::catch_up) ViewProtocol::caught_up(context.host, 0);
    return {};
}

}   // namespace gradcast
