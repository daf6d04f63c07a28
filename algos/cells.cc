#include "algos/cells.h"

#include <fmt/format.h>

#include "algos/context.h"
#include "runtime/core/digest.h"

namespace gradcast {
namespace {

constexpr uint64_t cells_tags = uint64_t{3} << 62;   // no other mail has both bits

}   // namespace

Cells::Cells(Context& context, const View& view, const Grid& grid, Rank self)
    : context_(context), view_(view), grid_(grid), self_(self), words_(view.n()) {}

Status Cells::gather(uint64_t tag, const Word& own, const char* what) {
    Mailbox& mail = *context_.mail;
    words_[self_] = sent_[tag % 2] = own;
    const uint32_t n = view_.n();
    auto buffer = [](Word& word) { return Buffer{reinterpret_cast<std::byte*>(&word), nullptr, sizeof word}; };
    mail.exchange(cells_tags | tag, buffer(sent_[tag % 2]), [&](Rank rank) { return buffer(words_[rank]); });
    GC_TRY(mail.wait(1, n, context_.stage_wait_us(context_.blocks), what));
    for (Rank rank = 0; rank < n; ++rank) {
        if (grid_.is_spare(rank)) continue;
        const Rank first = grid_.rank_of(0, grid_.cell_of(rank));
        if (words_[rank].agrees(words_[first])) continue;
        return fail(Code::conflict, "step {}: {} and {} compute the same stage and differ in its {}", context_.step + 1,
                    view_.members[first].name, view_.members[rank].name, what);
    }
    return {};
}

Status Cells::commit(int64_t* loss, uint64_t* clipped) {
    GC_TRY(gather(2 * context_.step, {.clipped = *clipped, .loss = *loss}, "sums"));
    *loss = 0, *clipped = 0;
    for (Rank rank = 0; rank < grid_.cells(); ++rank) {
        *loss += words_[rank].loss;   // of the last stage; others have none
        *clipped += words_[rank].clipped;
    }
    return {};
}

Status Cells::state(StepId next, uint64_t part, uint64_t* state) {
    const CheckpointNews news = context_.checkpoints ? (*context_.checkpoints)() : CheckpointNews{};
    next_ = next;
    GC_TRY(gather(2 * next + 1, {.digest = part, .named = news.named, .busy = news.busy}, "state"));
    *state = splitmix64(next);
    for (Rank rank = 0; rank < grid_.cells(); ++rank) *state += words_[rank].digest;
    return {};
}

}   // namespace gradcast
