#include "algos/kept_stages.h"

#include <algorithm>

#include "algos/context.h"
#include "runtime/core/bits.h"
#include "runtime/core/channel.h"
#include "transport/exchange/exchange.h"

namespace gradcast {
namespace {

constexpr uint64_t kept_tags = uint64_t{3} << 60;   // no other mail has both bits and none above
constexpr uint32_t kept_ticket_bit = 61;            // no round of the mailbox comes so far; other tickets have a bit above
constexpr uint64_t kept_tickets = uint64_t{1} << kept_ticket_bit;
constexpr uint32_t messages_bits = 24;   // of a step

uint64_t bytes_of(const Layout& words, Word word) { return words.elements * word_bytes(word) + words.groups.size() * sizeof(float); }

}   // namespace

uint64_t KeptStage::apply(Lanes& lanes, StepId step, double factor, std::span<const Sum> sums) {
    optimiser->step(step);
    whole.clear();
    for (const Sum& sum : sums) whole.push_back({codec->whole(sum), codec->units(sum.bucket)});
    if (scaled) scaled->apply(layout, factor, whole);
    pieces_run(lanes, layout.elements, pieces.size(),
               [this](uint32_t, uint32_t i) {   // of one pointer: a std::function of it allocates nothing
                   SumPiece& piece = pieces[i];
                   if (applied_before[piece.group]) return;
                   const uint64_t at = offset(piece);
                   sum_apply(piece, layout, whole[piece.bucket], *optimiser, net->parameters().subspan(at, piece.count), at);
               });
    for (const Sum& sum : sums) codec->commit(sum);
    uint64_t digest = 0;
    for (const SumPiece& piece : pieces)
        if (layout.stands_for(layout.groups[piece.group])) digest += piece.digest;
    return digest;
}

uint64_t KeptStage::part(uint64_t model) const {
    const uint64_t vectors = net->layout().elements > 0 ? optimiser->state_size() / net->layout().elements : 0;
    return model + scales_digest(codec->exponents(), groups, (1 + vectors) * layout.whole());
}

uint64_t KeptStage::part() const {
    const uint64_t elements = net->layout().elements, vectors = elements > 0 ? optimiser->state_size() / elements : 0;
    const std::span<const float> parameters = net->parameters(), state = optimiser->state();
    uint64_t model = 0;
    for (const SumPiece& piece : pieces) {
        if (!layout.stands_for(layout.groups[piece.group])) continue;
        const uint64_t at = offset(piece), place = piece.offset + layout.groups[piece.group].before;
        model += digest64(parameters.subspan(at, piece.count), place);
        for (uint64_t v = 0; v < vectors; ++v)
            model += digest64(state.subspan(v * elements + at, piece.count), (v + 1) * layout.whole() + place);
    }
    return part(model);
}

KeptStages::KeptStages(const Layout& own, Quantiser quantiser, uint32_t ranks, Rank keeper, std::vector<Kept> kept)
    : own_(own),
      word_(quantiser_word(quantiser)),
      keeper_(keeper),
      kept_(std::move(kept)),
      keeper_bits_(bit_words(ranks)),
      received_(kept_.size()),
      parts_(kept_.size()) {
    if (keeper != no_rank) set_bit(keeper_bits_.data(), keeper);
    GC_ASSERT(own.buckets.size() < 1u << messages_bits);
    for (size_t k = 0; k < kept_.size(); ++k) {
        std::vector<bool>& before = kept_[k].stage->applied_before;
        before.clear();
        for (const Group& group : kept_[k].stage->layout.groups)
            before.push_back(std::ranges::any_of(
                std::span(kept_).first(k), [&](const Kept& each) { return each.stage->layout.offset_of(group.place()) != Layout::none; }));
    }
}

void KeptStages::plan(Arena& arena) {
    const char* what = "sums of kept stages";
    sent_.words.resize(own_.buckets.size());
    sent_.open.resize(sent_.count());
    if (keeper_ != no_rank) arena.plan(what, own_.groups.size() * sizeof(float), &sent_.maxima);
    for (size_t k = 0; k < kept_.size(); ++k) {
        const Layout& words = kept_[k].stage->codec->words();
        Messages& messages = received_[k];
        messages.words.resize(words.buckets.size());
        messages.open.resize(messages.count());
        for (size_t b = 0; b < words.buckets.size(); ++b) arena.plan(what, words.buckets[b].count * word_bytes(word_), &messages.words[b]);
        arena.plan(what, words.groups.size() * sizeof(float), &messages.maxima);
    }
}

void KeptStages::open(Context& context, Dispatch& dispatch) {
    context_ = &context;
    mail_ = std::make_unique<Mail>(context.host, mail_channel);
    dispatch.add(gradient_channel, this);
    dispatch.add(mail_channel, this);
}

uint64_t KeptStages::bytes_sent() const { return keeper_ == no_rank ? 0 : bytes_of(own_, word_); }

uint64_t KeptStages::bytes_received() const {
    uint64_t bytes = 0;
    for (const Kept& each : kept_) bytes += bytes_of(each.stage->codec->words(), word_);
    return bytes;
}

uint64_t KeptStages::tag(size_t message) const { return kept_tags | context_->step << messages_bits | message; }

std::span<float> KeptStages::maxima_of(const Messages& messages, const Layout& layout, uint32_t bucket) const {
    return {messages.maxima.as<float>() + layout.buckets[bucket].group, layout.buckets[bucket].group_count};
}

Status KeptStages::begin() {
    const auto gone = [this] { return std::ranges::find(sent_.open, true) == sent_.open.end(); };
    if (!gone()) GC_TRY(context_->mail->wait_until(gone, context_->stage_wait_us(context_->blocks), "end of sending sums to the buddy"));
    to_send_ = keeper_ == no_rank ? 0 : static_cast<uint32_t>(own_.buckets.size());
    uint64_t ticket = kept_tickets | sent_.count();
    for (size_t k = 0; k < kept_.size(); ++k)
        for (size_t i = 0; i < received_[k].count(); ++i) {
            received_[k].open[i] = true;
            mail_->receive(kept_[k].owner, tag(i), message(received_[k], i), ticket++);
        }
    return {};
}

void KeptStages::send(const Sum& sum) {
    GC_ASSERT(sum.step == context_->step && sum.word == word_ && to_send_ > 0);
    const auto post = [this](size_t number, Buffer message) {
        sent_.open[number] = true;
        mail_->send({0, keeper_bits_.data()}, tag(number), message, kept_tickets | number);
    };
    std::ranges::copy(sum.maxima, maxima_of(sent_, own_, sum.bucket).begin());
    post(sum.bucket, sum.words.part(0, own_.buckets[sum.bucket].count * word_bytes(word_)));
    if (--to_send_ == 0) post(sent_.words.size(), sent_.maxima);
}

Status KeptStages::take(const Completion& completion) {
    if (completion.channel == gradient_channel) {
        if (completion.sum && keeper_ != no_rank) send(*completion.sum);
        return {};
    }
    if (!completion.status.ok() || completion.id >> kept_ticket_bit != 1) return {};   // Mailbox takes errors
    size_t number = completion.id & ~kept_tickets;
    if (number < sent_.count()) return sent_.open[number] = false, Status{};
    number -= sent_.count();
    size_t k = 0;
    while (number >= received_[k].count()) number -= received_[k++].count();
    received_[k].open[number] = false;
    return {};
}

Status KeptStages::wait() {
    for (size_t k = 0; k < kept_.size(); ++k) {
        const std::vector<bool>& open = received_[k].open;
        const auto come = [&] { return std::ranges::find(open, true) == open.end(); };
        GC_TRY(context_->mail->wait_until(come, context_->stage_wait_us(context_->blocks), kept_[k].what.c_str()));
    }
    return {};
}

void KeptStages::apply(double factor) {
    for (size_t k = 0; k < kept_.size(); ++k) {
        KeptStage& stage = *kept_[k].stage;
        sums_.clear();
        for (uint32_t bucket = 0; bucket < stage.layout.buckets.size(); ++bucket) {
            Sum& sum = sums_.emplace_back();
            sum.step = context_->step;
            sum.bucket = bucket;
            sum.word = word_;
            sum.words = received_[k].words[bucket];
            sum.maxima = maxima_of(received_[k], stage.layout, bucket);
        }
        parts_[k] = stage.part(stage.apply(context_->lanes, context_->step, factor, sums_));
    }
}

uint64_t KeptStages::part(size_t index) {
    if (index >= kept_.size()) return 0;
    if (parts_[index] == 0) parts_[index] = kept_[index].stage->part();
    return parts_[index];
}

}   // namespace gradcast
