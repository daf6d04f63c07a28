#include "algos/tied_sums.h"

#include <algorithm>
#include <cmath>

#include "algos/context.h"
#include "algos/pipeline.h"
#include "runtime/core/bits.h"
#include "runtime/core/channel.h"

namespace gradcast {
namespace {

constexpr uint64_t tied_tags = uint64_t{5} << 60;   // bits 62 and 60, without 61: the tags of no other mail
constexpr uint32_t tied_ticket_bit = 60;            // the highest bit of these tickets alone: rounds of the mailbox are below it
constexpr uint64_t tied_tickets = uint64_t{1} << tied_ticket_bit;
constexpr uint32_t index_bits = 20, tensor_bits = 24, step_bits = 16;   // of tags; steps of one number are never under way together
constexpr uint64_t before_steps = ~uint64_t{0};                         // in the place of a step
constexpr uint64_t piece_bytes = 4 << 20;
constexpr uint64_t chunk = 1 << 16;   // words that a lane adds at a time

/// y[i] += x[i].  The quantiser's limit keeps sums within the word; they wrap around only where a rank sends other words.
template <typename Unsigned>
void add_run(const std::byte* from, std::byte* to, uint64_t first, uint64_t end) {
    const auto* x = reinterpret_cast<const Unsigned*>(from);
    auto* y = reinterpret_cast<Unsigned*>(to);
    for (uint64_t i = first; i < end; ++i) y[i] = static_cast<Unsigned>(y[i] + x[i]);
}

}   // namespace

TiedSums::TiedSums(const Layout& words, Quantiser quantiser, Exchange& exchange, uint32_t ranks, std::vector<Tensor> tensors)
    : words_(words), word_(quantiser_word(quantiser)), exchange_(exchange), tensors_(std::move(tensors)) {
    for (size_t tensor = 0; tensor < tensors_.size(); ++tensor) {
        GC_ASSERT(tensors_[tensor].number < 1u << tensor_bits);
        const Head& own = own_.emplace_back(std::max(exchange.targets(), 2u), words.buckets[tensors_[tensor].bucket].group_count);
        for (const Rank rank : tensors_[tensor].others) {
            std::vector<uint64_t> bits(bit_words(ranks));
            set_bit(bits.data(), rank);
            const size_t pair = pairs_.size();
            pairs_.push_back({tensor, rank, std::move(bits), own});
            const uint64_t bytes = words_of(tensor);
            messages_.push_back({pair, 0, 0, own.bytes()});
            for (uint64_t at = 0; at < bytes; at += piece_bytes)
                messages_.push_back({pair, messages_.back().index + 1, at, std::min(piece_bytes, bytes - at)});
            GC_ASSERT(messages_.back().index * uint64_t{exchange.targets()} < 1u << index_bits);
        }
    }
}

void TiedSums::plan(Arena& arena) {
    for (Pair& pair : pairs_) arena.plan("sums of tied weights", words_of(pair.tensor), &pair.words);
}

void TiedSums::open(Context& context, Dispatch& dispatch) {
    context_ = &context;
    mail_ = std::make_unique<Mail>(context.host, mail_channel);
    dispatch.add(mail_channel, this);
}

uint64_t TiedSums::bytes_sent() const {
    uint64_t bytes = 0;
    for (const Message& message : messages_) bytes += message.bytes * (message.index > 0 ? exchange_.targets() : 1);
    return bytes;
}

/// Each of two ranks sends the other one a message of this tag.
uint64_t TiedSums::tag(const Message& message, uint64_t step, uint32_t target) const {
    const uint64_t tensor = tensors_[pairs_[message.pair].tensor].number;
    const uint64_t pieces = (words_of(pairs_[message.pair].tensor) + piece_bytes - 1) / piece_bytes;
    const uint64_t step_mod = step % (uint64_t{1} << step_bits);
    return tied_tags | step_mod << (tensor_bits + index_bits) | tensor << index_bits | (message.index + target * pieces);
}

void TiedSums::post(size_t number, uint64_t step, uint32_t target, Buffer own, Buffer other) {
    Message& message = messages_[number];
    const Pair& pair = pairs_[message.pair];
    message.comes = message.goes = true;
    const uint64_t name = tag(message, step, target);
    mail_->receive(pair.other, name, other.part(message.offset, message.bytes), tied_tickets | number);
    mail_->send({0, pair.other_bits.data()}, name, own.part(message.offset, message.bytes), tied_tickets | (messages_.size() + number));
}

Status TiedSums::take(const Completion& completion) {
    // After an error the message stays under way: the wait for it ends by broken(), by the mailbox's error, or by its deadline.
    if (completion.id >> tied_ticket_bit != 1 || !completion.status.ok()) return {};
    const size_t number = completion.id & ~tied_tickets;
    if (number < messages_.size()) messages_[number].comes = false;
    else messages_[number - messages_.size()].goes = false;
    return {};
}

bool TiedSums::broken() const { return context_->pipeline->broken(); }

Status TiedSums::wait(size_t tensor, uint64_t us, const std::function<void()>& ask) {
    struct Wait {
        const TiedSums& all;
        const size_t tensor;
        const std::function<void()>& ask;
        int64_t before = 0;
        int64_t under_way() const {
            return std::ranges::count_if(
                all.messages_, [this](const Message& each) { return all.pairs_[each.pair].tensor == tensor && (each.comes || each.goes); });
        }
        bool some() const {
            if (ask) ask();
            return all.broken() || under_way() < before;
        }
    } wait{*this, tensor, ask};
    for (wait.before = wait.under_way(); wait.before > 0 && !broken(); wait.before = wait.under_way())
        GC_TRY(context_->mail->wait_until([&wait] { return wait.some(); }, us, tensors_[tensor].what.c_str()));
    return {};
}

Status TiedSums::heads(size_t tensor, uint64_t step, uint64_t us, const std::function<void()>& ask) {
    own_[tensor].state() = context_->state;
    for (size_t number = 0; number < messages_.size(); ++number)
        if (Pair& pair = pairs_[messages_[number].pair]; pair.tensor == tensor && messages_[number].index == 0)
            post(number, step, 0, own_[tensor].buffer(), pair.head.buffer());
    GC_TRY(wait(tensor, us, ask));
    for (Pair& pair : pairs_)
        if (pair.tensor == tensor && !broken() && pair.head.state() != context_->state)
            return fail(Code::conflict, "step {}: {} are computed from the state {:016x}, ours is {:016x}", context_->step + 1,
                        tensors_[tensor].what, pair.head.state(), context_->state);
    return {};
}

bool TiedSums::all_whole(size_t tensor) {
    bool whole = !broken() && own_[tensor].whole() > 0;
    for (Pair& pair : pairs_) whole = whole && (pair.tensor != tensor || pair.head.whole() > 0);
    return whole;
}

Status TiedSums::agree(std::span<float> maxima, std::span<float> bounds, bool* whole, uint64_t us) {
    const bool own_whole = *whole;
    const std::span<float> both[] = {maxima, bounds};
    for (size_t tensor = 0; tensor < tensors_.size() && !broken(); ++tensor) {
        const Bucket& bucket = words_.buckets[tensors_[tensor].bucket];
        own_[tensor].whole() = own_whole;
        for (uint32_t i = 0; i < 2; ++i)
            std::ranges::copy(both[i].subspan(bucket.group, bucket.group_count), own_[tensor].maxima(i).begin());
        GC_TRY(heads(tensor, before_steps, us, {}));
        *whole = *whole && all_whole(tensor);
        for (Pair& pair : pairs_)
            for (uint32_t i = 0; i < 2 && pair.tensor == tensor && *whole; ++i)
                for (uint32_t g = 0; g < bucket.group_count; ++g) {
                    float& own = both[i][bucket.group + g];
                    own = std::fmax(own, pair.head.maxima(i)[g]);
                }
    }
    *whole = *whole && !broken();
    return {};
}

Status TiedSums::add(size_t tensor, bool* whole, const std::function<void()>& ask) {
    const bool own_whole = std::exchange(*whole, false);
    const uint64_t us = context_->stage_wait_us(context_->blocks);
    const uint32_t bucket = tensors_[tensor].bucket;
    const auto plan_of = [&](uint32_t target) { return exchange_.plan(context_->step, bucket, target); };
    if (broken()) return {};
    Head& own = own_[tensor];
    own.whole() = own_whole;
    for (uint32_t target = 0; target < exchange_.targets(); ++target) {
        const Record& record = *plan_of(target).record;
        own.clipped(target) = record.clipped;
        own.diverged(target) = record.diverged;
        std::ranges::copy(record.maxima, own.maxima(target).begin());
    }
    GC_TRY(heads(tensor, context_->step, us, ask));
    if (!all_whole(tensor)) return {};
    for (uint32_t target = 0; target < exchange_.targets(); ++target) {
        const Plan plan = plan_of(target);
        if (plan.record->blocks == 0) continue;   // nor has any other stage of the replica: blocks are placed by replica
        GC_ASSERT(plan.word == word_ && plan.words.bytes == words_of(tensor));
        for (size_t number = 0; number < messages_.size(); ++number)
            if (Pair& pair = pairs_[messages_[number].pair]; pair.tensor == tensor && messages_[number].index > 0)
                post(number, context_->step, target, plan.words, pair.words);
        GC_TRY(wait(tensor, us, ask));   // also until the own words have left
        if (broken()) return {};
        Record& record = *plan.record;
        for (Pair& pair : pairs_) {
            if (pair.tensor != tensor) continue;
            add_words(pair.words, plan.words, words_.buckets[bucket].count);
            record.clipped += pair.head.clipped(target);
            record.diverged = std::min(record.diverged - 1, static_cast<uint32_t>(pair.head.diverged(target)) - 1) + 1;   // 0: none
            for (uint32_t g = 0; g < record.maxima.size(); ++g) {
                const float maximum = pair.head.maxima(target)[g];
                if (!(maximum >= 0) || (std::isinf(maximum) && record.diverged == 0))
                    return fail(Code::conflict, "step {}: {} come with a maximum that is no size", context_->step + 1,
                                tensors_[tensor].what);
                record.maxima[g] = std::fmax(record.maxima[g], maximum);
            }
        }
    }
    *whole = true;
    return {};
}

uint64_t TiedSums::digest() const {
    const Layout& layout = context_->net->layout();
    uint64_t digest = 0;
    for (const Tensor& tensor : tensors_) {
        const Bucket& bucket = layout.buckets[tensor.bucket];
        for (const Group& group : std::span(layout.groups).subspan(bucket.group, bucket.group_count))
            digest += digest64(context_->net->parameters().subspan(group.offset, group.count), group.place());
    }
    return digest;
}

void TiedSums::add_words(Buffer from, Buffer to, uint64_t count) const {
    struct Task {
        const std::byte* from;
        std::byte* to;
        Word word;
        uint64_t count;
    } const task{from.host, to.host, word_, count};
    // A std::function of one pointer does not allocate.
    context_->lanes.run(static_cast<uint32_t>((task.count + chunk - 1) / chunk), [&task](uint32_t, uint32_t i) {
        const uint64_t first = i * chunk, end = std::min(first + chunk, task.count);
        switch (task.word) {
            case Word::i16: add_run<uint16_t>(task.from, task.to, first, end); break;
            case Word::i32: add_run<uint32_t>(task.from, task.to, first, end); break;
            case Word::i64: add_run<uint64_t>(task.from, task.to, first, end); break;
        }
    });
}

}   // namespace gradcast
