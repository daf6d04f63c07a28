#include "algos/tied_sums.h"

#include <algorithm>
#include <functional>

#include "algos/context.h"
#include "runtime/core/bits.h"
#include "runtime/core/channel.h"
#include "transport/exchange/exchange.h"

namespace gradcast {
namespace {

constexpr uint64_t tied_tags = uint64_t{5} << 60;   // bits 62 and 60, without 61: the tags of no other mail
constexpr uint32_t ticket_bit = 60;                 // the highest bit of these tickets alone: rounds of the mailbox are below it
constexpr uint64_t tied_tickets = uint64_t{1} << ticket_bit;
constexpr uint32_t index_bits = 16, tensor_bits = 12;   // of tags
constexpr uint64_t before_steps = UINT32_MAX;           // in the place of a step
constexpr uint64_t piece_bytes = 4 << 20;
constexpr uint64_t chunk = 1 << 16;   // words that a lane adds at a time
constexpr uint16_t gradient_channel = static_cast<uint16_t>(Channel::gradient), mail_channel = static_cast<uint16_t>(Channel::mail);

/// y[i] += x[i].  The quantiser's limit keeps sums within the word; they wrap around only where a rank sends other words.
template <typename Unsigned>
void add_words(const std::byte* from, std::byte* to, uint64_t first, uint64_t end) {
    const auto* x = reinterpret_cast<const Unsigned*>(from);
    auto* y = reinterpret_cast<Unsigned*>(to);
    for (uint64_t i = first; i < end; ++i) y[i] = static_cast<Unsigned>(y[i] + x[i]);
}

}   // namespace

TiedSums::TiedSums(const Layout& words, Quantiser quantiser, uint32_t ranks, std::vector<Tensor> tensors)
    : words_(words), word_(quantiser_word(quantiser)), tensors_(std::move(tensors)), own_(tensors_.size()) {
    for (size_t tensor = 0; tensor < tensors_.size(); ++tensor) {
        GC_ASSERT(tensors_[tensor].number < 1u << tensor_bits);
        for (const Rank rank : tensors_[tensor].others) {
            std::vector<uint64_t> bits(bit_words(ranks));
            set_bit(bits.data(), rank);
            const size_t pair = pairs_.size();
            pairs_.push_back({tensor, rank, std::move(bits)});
            const uint64_t bytes = bytes_of(pairs_[pair]);
            messages_.push_back({pair, 0, 0, sizeof(Tail)});
            for (uint64_t at = 0; at < bytes; at += piece_bytes)
                messages_.push_back({pair, messages_.back().index + 1, at, std::min(piece_bytes, bytes - at)});
            GC_ASSERT(messages_.back().index < 1u << index_bits);
        }
    }
}

uint64_t TiedSums::bytes_of(const Pair& pair) const { return words_.buckets[tensors_[pair.tensor].bucket].count * word_bytes(word_); }

void TiedSums::plan(Arena& arena) {
    for (Pair& pair : pairs_) arena.plan("sums of tied weights", bytes_of(pair), &pair.words);
}

void TiedSums::open(Context& context, Dispatch& dispatch) {
    context_ = &context;
    mail_ = std::make_unique<Mail>(context.host, mail_channel);
    dispatch.add(gradient_channel, this);
    dispatch.add(mail_channel, this);
}

uint64_t TiedSums::bytes_sent() const {
    uint64_t bytes = 0;
    for (const Message& message : messages_) bytes += message.bytes;
    return bytes;
}

Buffer TiedSums::place(const Message& message) {
    Pair& pair = pairs_[message.pair];
    if (message.index == 0) return {reinterpret_cast<std::byte*>(&pair.tail), nullptr, sizeof pair.tail};
    return pair.words.part(message.offset, message.bytes);
}

/// Each of two ranks sends the other one a message of this tag.
uint64_t TiedSums::tag(const Message& message, uint64_t step) const {
    const uint64_t tensor = tensors_[pairs_[message.pair].tensor].number;
    return tied_tags | step << (tensor_bits + index_bits) | tensor << index_bits | message.index;
}

void TiedSums::receive(size_t number, uint64_t step) {
    Message& message = messages_[number];
    message.comes = true;
    mail_->receive(pairs_[message.pair].other, tag(message, step), place(message), tied_tickets | number);
}

void TiedSums::send(size_t number, uint64_t step, Buffer from) {
    Message& message = messages_[number];
    message.goes = true;
    mail_->send({0, pairs_[message.pair].other_bits.data()}, tag(message, step), from, tied_tickets | (messages_.size() + number));
}

template <typename Open>
Status TiedSums::wait_while(Open open, uint64_t us, const char* what) {
    const auto count = [&] { return std::ranges::count_if(messages_, open); };
    for (auto before = count(); before > 0; before = count())
        GC_TRY(context_->mail->wait_until([&] { return count() < before; }, us, what));
    return {};
}

Status TiedSums::wait_for(size_t tensor, uint64_t us) {
    return wait_while([&](const Message& each) { return each.comes && pairs_[each.pair].tensor == tensor; }, us,
                      tensors_[tensor].what.c_str());
}

Status TiedSums::wait_gone(uint64_t us) { return wait_while(std::mem_fn(&Message::goes), us, "end of sending sums of tied weights"); }

Status TiedSums::agree(std::span<float> maxima, uint64_t us) {
    const auto maximum = [&](size_t tensor) -> float& { return maxima[words_.buckets[tensors_[tensor].bucket].group]; };
    for (size_t number = 0; number < messages_.size(); ++number) {
        if (messages_[number].index > 0) continue;
        const size_t tensor = pairs_[messages_[number].pair].tensor;
        Tail& own = own_[tensor].tail;
        own.maximum = maximum(tensor);
        receive(number, before_steps);
        send(number, before_steps, {reinterpret_cast<std::byte*>(&own), nullptr, sizeof own});
    }
    for (size_t tensor = 0; tensor < tensors_.size(); ++tensor) GC_TRY(wait_for(tensor, us));
    for (const Pair& pair : pairs_) maximum(pair.tensor) = std::max(maximum(pair.tensor), pair.tail.maximum);
    return wait_gone(us);
}

Status TiedSums::begin() {
    GC_TRY(wait_gone(context_->stage_wait_us(context_->blocks)));
    for (size_t number = 0; number < messages_.size(); ++number) receive(number, context_->step);
    return {};
}

Status TiedSums::take(const Completion& completion) {
    if (completion.channel == gradient_channel) {
        if (!completion.sum) return {};
        const Sum& sum = *completion.sum;
        for (size_t number = 0; number < messages_.size(); ++number) {
            const Message& message = messages_[number];
            const size_t tensor = pairs_[message.pair].tensor;
            if (tensors_[tensor].bucket != sum.bucket) continue;
            GC_ASSERT(sum.step == context_->step && sum.word == word_);
            Tail& tail = own_[tensor].tail;
            tail = {sum.state, sum.clipped, sum.maxima[0]};
            if (message.index > 0) send(number, sum.step, sum.words.part(message.offset, message.bytes));
            else send(number, sum.step, {reinterpret_cast<std::byte*>(&tail), nullptr, sizeof tail});
        }
        return {};
    }
    if (!completion.status.ok() || completion.id >> ticket_bit != 1) return {};   // Mailbox takes errors
    const size_t number = completion.id & ~tied_tickets;
    if (number < messages_.size()) messages_[number].comes = false;
    else messages_[number - messages_.size()].goes = false;
    return {};
}

void TiedSums::add(const Sum& sum, Buffer to) const {
    struct Task {
        const std::byte* from;
        std::byte* to;
        Word word;
        uint64_t count;
    } const task{sum.words.host, to.host, word_, words_.buckets[sum.bucket].count};
    // A std::function of one pointer does not allocate.
    context_->lanes.run(static_cast<uint32_t>((task.count + chunk - 1) / chunk), [&task](uint32_t, uint32_t i) {
        const uint64_t first = i * chunk, end = std::min(first + chunk, task.count);
        switch (task.word) {
            case Word::i16: add_words<uint16_t>(task.from, task.to, first, end); break;
            case Word::i32: add_words<uint32_t>(task.from, task.to, first, end); break;
            case Word::i64: add_words<uint64_t>(task.from, task.to, first, end); break;
        }
    });
}

Status TiedSums::wait(std::span<const Sum*> sums) {
    for (size_t tensor = 0; tensor < tensors_.size(); ++tensor) {
        GC_TRY(wait_for(tensor, context_->stage_wait_us(context_->blocks)));
        const Sum*& mine = sums[tensors_[tensor].bucket];
        Own& own = own_[tensor];
        own.sum = *mine;
        own.maximum = mine->maxima[0];
        own.sum.maxima = {&own.maximum, 1};
        for (Pair& pair : pairs_) {
            if (pair.tensor != tensor) continue;
            if (pair.tail.state != context_->state)
                return fail(Code::conflict, "step {}: {} were computed from the state {:016x}, ours is {:016x}", context_->step + 1,
                            tensors_[tensor].what, pair.tail.state, context_->state);
            add(own.sum, pair.words);
            own.sum.words = pair.words;
            own.sum.clipped += pair.tail.clipped;
            own.maximum = std::max(own.maximum, pair.tail.maximum);
        }
        mine = &own.sum;
    }
    return {};
}

}   // namespace gradcast
