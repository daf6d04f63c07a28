#include "algos/cells.h"

#include <fmt/format.h>

#include <algorithm>

#include "algos/context.h"
#include "algos/kept_stages.h"
#include "algos/tied_sums.h"
#include "nn/clip.h"
#include "runtime/core/digest.h"

namespace gradcast {
namespace {

constexpr uint64_t cells_tags = uint64_t{3} << 62;      // no other mail has both bits
constexpr uint64_t cells_tickets = uint64_t{1} << 63;   // no round of the mailbox comes so far

}   // namespace

Cells::Cells(Context& context, Dispatch& dispatch, const View& view, const Grid& grid, Rank self, uint32_t spare,
             std::vector<std::vector<Rank>> keeps, std::vector<uint32_t> alike, CellGroups groups)
    : context_(context),
      dispatch_(dispatch),
      view_(view),
      grid_(grid),
      self_(self),
      needed_(grid.replicas() - spare),
      keeps_(std::move(keeps)),
      alike_(std::move(alike)),
      groups_(std::move(groups)),
      others_(ranks_but(self, view.n())),
      mail_(context.host, mail_channel),
      rounds_(rounds) {
    GC_ASSERT(spare < grid.replicas());
    static_assert(sizeof(Word) == 80 && alignof(Word) == alignof(uint64_t) && sizeof(double) == sizeof(uint64_t));
    uint64_t place = 0;
    for (Rank rank = 0; rank < view.n(); ++rank) {
        uint64_t count = 0;
        for (size_t i = 0; !groups_.empty() && i < groups_of(grid.cell_of(rank)).size(); ++i) {
            const Layout::Run& run = groups_of(grid.cell_of(rank))[i];
            count += run.count;
            terms_.resize(std::max(terms_.size(), run.place + run.count));
        }
        places_.push_back(place);
        term_counts_.push_back(count);
        place += sizeof(Word) / sizeof(uint64_t) + count;
    }
    for (Round& round : rounds_) {
        round.reports.resize(place);
        round.fates.assign(view.n(), Fate::done);
    }
    dispatch.add(mail_channel, this);
}

uint64_t Cells::us() const { return context_.stage_wait_us(context_.blocks); }

Status Cells::open(uint64_t tag, const char* what) {
    Round& round = round_of(tag);
    GC_TRY(context_.mail->wait_until([&] { return std::ranges::find(round.fates, Fate::open) == round.fates.end(); }, us(), what));
    round.reported = false;
    for (Rank rank = 0; rank < view_.n(); ++rank) {
        if (rank == self_) continue;
        round.fates[rank] = dispatch_.lost(rank) ? Fate::lost : Fate::open;
        if (round.fates[rank] == Fate::open)
            mail_.receive(rank, cells_tags | tag, report(tag, rank), cells_tickets | (tag % rounds * view_.n() + rank));
    }
    return {};
}

Buffer Cells::report(uint64_t tag, Rank rank) {
    const uint64_t terms = is_commit(tag) ? term_counts_[rank] : 0;
    return {reinterpret_cast<std::byte*>(&word(round_of(tag), rank)), nullptr, sizeof(Word) + terms * sizeof(double)};
}

void Cells::send(uint64_t tag) {
    Round& round = round_of(tag);
    round.reported = true;
    if (view_.n() == 1) return;
    round.fates[self_] = Fate::open;
    mail_.send({0, others_.data()}, cells_tags | tag, report(tag, self_), cells_tickets | (tag % rounds * view_.n() + self_));
}

bool Cells::agree(uint64_t tag, Rank first, Rank second) const {
    const Round& round = round_of(tag);
    return word(round, first).agrees(word(round, second)) &&
           (!is_commit(tag) || std::ranges::equal(terms(round, first), terms(round, second)));
}

Status Cells::take(const Completion& completion) {
    if (!(completion.id & cells_tickets)) return {};
    const uint64_t number = completion.id & ~cells_tickets;
    rounds_[number / view_.n()].fates[number % view_.n()] = completion.status.ok() ? Fate::done : Fate::lost;   // Mailbox takes errors
    return {};
}

bool Cells::whole(const Round& round, uint32_t replica) const {
    for (uint32_t number = 0; number < grid_.cells(); ++number)
        if (!done(round, grid_.rank_of(replica, grid_.cell(number)))) return false;
    return true;
}

Status Cells::gather(uint64_t tag, const char* what, uint32_t* replica) {
    const Round& round = round_of(tag);
    const auto enough = [&] {
        uint32_t found = 0;
        for (uint32_t each = 0; each < grid_.replicas(); ++each) found += whole(round, each);
        return found >= needed_;
    };
    {
        const Span span(context_.profile, Profile::trainer, StepPhase::wait, what);
        const uint64_t begin_us = context_.host.now_us();
        GC_TRY(context_.mail->wait_until(enough, us(), what));
        context_.stage.wait(StageTime::reports, context_.host.now_us() - begin_us);
    }
    *replica = 0;
    while (!whole(round, *replica)) ++*replica;
    for (Rank rank = 0; rank < view_.n(); ++rank) {
        const Rank same = grid_.rank_of(*replica, grid_.cell_of(rank));
        if (grid_.is_spare(rank) || !done(round, rank) || agree(tag, rank, same)) continue;
        return fail(Code::conflict, "step {}: {} and {} compute the same stage and differ in its {}", context_.step + 1,
                    view_.members[same].name, view_.members[rank].name, what);
    }
    for (uint32_t number = 0; number < grid_.cells(); ++number) {
        const Cell cell = grid_.cell(number);
        const Rank rank = grid_.rank_of(*replica, cell), first = grid_.rank_of(*replica, {cell.stage, 0}),
                   alike = grid_.rank_of(*replica, grid_.cell(alike_[number]));
        if (word(round, rank).shared != word(round, first).shared)
            return fail(Code::conflict, "step {}: {} and {} share the slices of a stage and differ in the {} of its other layers",
                        context_.step + 1, view_.members[first].name, view_.members[rank].name, what);
        if (word(round, rank).tied != word(round, alike).tied)
            return fail(Code::conflict, "step {}: {} and {} have the same weights (weights_of) and differ in them", context_.step + 1,
                        view_.members[alike].name, view_.members[rank].name);
    }
    return {};
}

Status Cells::check_kept(const Round& round) const {
    for (Rank rank = 0; rank < keeps_.size(); ++rank)
        for (size_t i = 0; i < keeps_[rank].size(); ++i) {
            const Rank owner = keeps_[rank][i];
            if (!done(round, rank) || !done(round, owner) || word(round, rank).kept[i] == word(round, owner).digest) continue;
            return fail(Code::conflict,
                        "step {}: {} keeps the state of {}, and differs from it: one of them computes or stores wrong values",
                        context_.step + 1, view_.members[rank].name, view_.members[owner].name);
        }
    return {};
}

StepId Cells::context_step() const { return context_.step; }

Status Cells::begin() {
    GC_TRY(open(commit_tag(context_.step), "sums"));
    begun_ = context_.step;
    return {};
}

void Cells::report_held(std::span<const Sum* const> sums, Lanes* lanes) {
    const uint64_t tag = commit_tag(context_.step);
    Round& round = round_of(tag);
    if (round.reported) return;
    const Layout& layout = context_.net->layout();
    Word& own = word(round, self_) = {};   // what several slice groups have counts once
    if (!sums.empty() && grid_.cell_of(self_).slice_group == 0) own.loss = sums[0]->loss, own.valid = sums[0]->valid;
    for (const Sum* sum : sums)
        if (layout.stands_for(layout.buckets[sum->bucket])) own.clipped += sum->clipped;
    const std::span<double> values = own_terms(round);
    std::ranges::fill(values, 0.0);
    if (!values.empty() && !sums.empty()) {
        whole_.clear();   // allocates in the first step only; statistics, whose words the codec has in another order, are not read
        for (const Sum* sum : sums) whole_.push_back({*sum, context_.codec->units(sum->bucket)});
        const std::span<const double> all = context_.clip->terms(lanes, layout, whole_);
        auto to = values.begin();
        for (const Layout::Run& run : groups_of(grid_.cell_of(self_))) to = std::ranges::copy(all.subspan(run.offset, run.count), to).out;
    }
    send(tag);
}

bool Cells::all_hold() const {
    const Round& round = round_of(commit_tag(context_.step));
    for (Rank rank = 0; rank < view_.n(); ++rank)
        if (!done(round, rank) && !dispatch_.lost(rank)) return false;
    return true;
}

Status Cells::commit(std::span<const Sum* const> sums, StepTotals* totals) {
    report_held(sums, &context_.lanes);
    const uint64_t tag = commit_tag(context_.step);
    uint32_t replica = 0;
    GC_TRY(gather(tag, "sums", &replica));
    add_up(round_of(tag), replica, totals);
    return {};
}

bool Cells::totals(StepTotals* totals) {
    const Round& round = round_of(commit_tag(context_.step));
    for (uint32_t replica = 0; reported() && replica < grid_.replicas(); ++replica)
        if (whole(round, replica)) return add_up(round, replica, totals), true;
    return false;
}

void Cells::add_up(const Round& round, uint32_t replica, StepTotals* totals) {
    *totals = {};
    for (uint32_t number = 0; number < grid_.cells(); ++number) {
        const Rank rank = grid_.rank_of(replica, grid_.cell(number));
        totals->loss += word(round, rank).loss;   // of the last stage; others have none
        totals->valid += word(round, rank).valid;
        totals->clipped += word(round, rank).clipped;
        std::span<const double> rest = terms(round, rank);
        for (size_t i = 0; !groups_.empty() && i < groups_[number].size(); ++i) {
            const Layout::Run& run = groups_[number][i];
            std::ranges::copy(rest.first(run.count), terms_.begin() + static_cast<ptrdiff_t>(run.place));
            rest = rest.subspan(run.count);
        }
    }
    norm_ = NormClip::norm(terms_);
}

Status Cells::state(StepId next, uint64_t part, uint64_t* state) {
    const uint64_t tag = state_tag(next);
    const CheckpointNews news = context_.checkpoints ? (*context_.checkpoints)() : CheckpointNews{};
    next_ = next;
    part_ = part;
    GC_TRY(open(tag, "state"));
    Word& own = word(round_of(tag), self_) = {.digest = part, .named = news.named, .busy = news.busy, .shared = context_.shared};
    if (context_.tied) own.tied = context_.tied->digest();
    for (size_t i = 0; context_.kept && i < std::size(own.kept); ++i) own.kept[i] = context_.kept->part(i);
    send(tag);
    uint32_t replica = 0;
    GC_TRY(gather(tag, "state", &replica));
    GC_TRY(check_kept(round_of(tag)));
    *state = splitmix64(next);
    for (uint32_t number = 0; number < grid_.cells(); ++number)
        *state += word(round_of(tag), grid_.rank_of(replica, grid_.cell(number))).digest;
    return {};
}

CheckpointNews Cells::checkpoints(Rank rank) const {
    for (StepId back = 0; back < step_slots && back <= next_; ++back)
        if (const Round& round = round_of(state_tag(next_ - back)); done(round, rank))
            return {word(round, rank).named, word(round, rank).busy > 0};
    return {};
}

uint64_t Cells::part(Rank rank) const {
    const Round& round = round_of(state_tag(next_));
    return done(round, rank) ? word(round, rank).digest : 0;
}

}   // namespace gradcast
