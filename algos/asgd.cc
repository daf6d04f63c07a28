// Asynchronous SGD with a parameter server, and soft synchronisation (Zhang, Gupta, Lian, Liu, "Staleness-aware async-SGD for distributed
// deep learning", 2016; the CSSGD paper's baseline).  Rank 0 is the server, with the optimiser; workers are on the other ranks.
//
//     worker   pulls (w, version), computes the gradient g of its next mini-batch at w, pushes it; with local_steps = m the sum of m
//              gradients, between which it takes steps w <- w - lr g of its own
//     asgd     w <- optimiser step with lambda(tau) g for each push, tau = the server's version - the one that g was computed from
//     softsync w <- optimiser step with the mean of `collect` pushes, each times its own lambda(tau)
//     lambda   none: 1;  inverse: 1 / max(1, tau);  exp: beta^tau
//
// pull = now: the answer to a push is the present w.  pull = wait: that after the update which the push goes into.  With max_staleness = S
// a worker begins only while it has at most S pushes more than the slowest one; then tau <= (W - 1) (2 S + 1).  With stream = whole the
// mini-batch of worker k is block k of synchronous SGD's.  Where softsync collects all workers' pushes, waits and does not scale, they are
// quantised and summed as by an exchange: the result is that of ssgd bit for bit, whatever their order.  A round is `updates`
// pushes; then all ranks get w and the optimiser's state, so evaluation and checkpoints are as ever.  Which worker's push came when is kept
// in replay.log in the server's job folder, with its tau: `replay` = that file repeats the training on any number of nodes, one included.
//
// Messages: a push and an answer of P floats each for every mini-batch, and P values and the optimiser's state to all at the end of a
// round. Keeps, for each own worker, its w and gradient; at the server a gradient of each worker.  May go wrong: with many workers and a
// momentum stale gradients swing; lower the learning rate, or take lambda = "inverse".
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <deque>

#include "algos/algorithm.h"
#include "algos/replay.h"
#include "algos/worker_sum.h"
#include "nn/layers.h"

namespace gradcast {
namespace {

constexpr uint64_t tags = uint64_t{1} << 60;   // below those of other mail

/// Before the values of a message.
struct Head {
    uint64_t go, version;   // of an answer: whether the worker computes another gradient, and the version of the parameters
    double loss;            // of a push: mean
};

/// The order of pushes of an earlier run.  Bytes from outside.
Status log_read(const std::string& path, const std::string& title, uint64_t workers, std::vector<uint32_t>* order) {
    std::string text;
    GC_TRY(replay_read(path, title, &text));
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find('\n', at), text.size());
        uint64_t worker = 0;
        const auto [stop, error] = std::from_chars(text.data() + at, text.data() + end, worker);
        if (error != std::errc() || worker >= workers || stop == text.data() + end || *stop != ' ')
            return fail(Code::data, "{}: push {} is no worker and its staleness", path, order->size() + 1);
        order->push_back(static_cast<uint32_t>(worker));
        at = end + 1;
    }
    return {};
}

class Asgd final : public Algorithm {
public:
    explicit Asgd(bool soft) : soft_(soft) {}

    Status plan(const AlgorithmPlan& plan) override {
        const AlgorithmSettings& settings = plan.settings;
        workers_ = plan.workers, elements_ = plan.net.layout().elements;
        collect_ = soft_ ? (settings.collect > 0 ? settings.collect : workers_) : 1;
        wait_ = soft_ && settings.pull == "wait";
        scaling_ = settings.lambda, beta_ = settings.beta, staleness_most_ = settings.max_staleness;
        updates_ = plan.updates, steps_ = std::max(settings.local_steps, 1u);
        batch_ = plan.local->config().batch, optimiser_ = plan.optimiser;
        exact_ = soft_ && collect_ == workers_ && wait_ && scaling_ == "none";
        if (collect_ > workers_)
            return fail(Code::invalid, "algorithm.collect: {} pushes are more than the {} workers", collect_, workers_);
        if (updates_ % collect_ != 0)
            return fail(Code::invalid, "algorithm.updates: {} pushes of a round are no multiple of collect, {}", updates_, collect_);
        title_ =
            fmt::format("gradcast {} seed {} batch {} workers {} updates {} collect {} pull {} max_staleness {} local_steps {} stream {}",
                        soft_ ? "softsync" : "asgd", plan.local->config().seed, batch_, workers_, updates_, collect_,
                        wait_ ? "wait" : "now", staleness_most_, steps_, settings.stream);
        log_path_ = plan.folder + "/replay.log";
        if (!settings.replay.empty()) {
            GC_TRY(log_read(settings.replay, title_, workers_, &order_));
            if (order_.size() < plan.rounds * updates_)
                return fail(Code::data, "{}: has {} pushes, the job makes {}", settings.replay, order_.size(), plan.rounds * updates_);
        }
        message_ = sizeof(Head) + elements_ * sizeof(float);
        plan.arena.plan("server", elements_ * sizeof(float), &w_);
        plan.arena.plan("server", elements_ * sizeof(float), &sum_);
        plan.arena.plan("server", (elements_ + plan.state_size + plan.scales) * sizeof(float), &final_);
        if (steps_ > 1) plan.arena.plan("gradient of a local step", elements_ * sizeof(float), &local_);
        plan.arena.plan("pushes", workers_ * message_, &pushes_);
        plan.arena.plan("answers", workers_ * message_, &answers_);
        all_.resize(workers_);
        const Layout& layout = plan.net.layout();
        maxima_.resize(layout.groups.size()), records_.resize(layout.buckets.size());
        for (size_t b = 0; b < records_.size(); ++b)
            records_[b].maxima = std::span(maxima_).subspan(layout.buckets[b].group, layout.buckets[b].group_count);
        return {};
    }

    Status round(Context& context) override {
        const uint64_t begin_us = context.host.now_us();
        const std::span<float> parameters = context.net.parameters();
        std::ranges::copy(parameters, w().begin());
        const uint64_t pushes = context.step * updates_;   // before this round
        begin(pushes);
        if (context.ranks > 1) context.mail->begin(tickets());
        const Status status = context.ranks == 1 ? alone(context) : context.self == 0 ? serve(context) : work(context);
        if (!status.ok()) std::ranges::copy(w(), parameters.begin());   // of a worker; the server's job is over
        GC_TRY(status);
        GC_TRY(spread(context));
        std::ranges::copy(w(), parameters.begin());
        context.net.refresh();
        StepRecord record;
        record.loss = loss_;
        record.clipped = std::exchange(clipped_, 0);
        record.compute_us = context.host.now_us() - begin_us;
        context.round_done(record);
        return {};
    }

private:
    enum class State : uint8_t { ready, computing, answered, over };
    struct Worker {
        uint64_t version = 0;   // that it has pulled
        uint64_t pushes = 0;    // in this round
        bool held = false;      // its answer waits
        State state = State::over;
    };

    std::span<float> w() { return {w_.as<float>(), elements_}; }
    Buffer push(uint32_t k) const { return pushes_.part(k * message_, message_); }
    Buffer answer(uint32_t k) const { return answers_.part(k * message_, message_); }
    static Head& head(const Buffer& message) { return *message.as<Head>(); }
    std::span<float> values(const Buffer& message) const {
        return {message.part(sizeof(Head), message.bytes - sizeof(Head)).as<float>(), elements_};
    }
    // Tickets of a worker's push and answer, and of the end of a round.
    uint64_t push_ticket(uint32_t k) const { return 1 + k; }
    uint64_t answer_ticket(uint32_t k) const { return 1 + workers_ + k; }
    uint64_t tickets() const { return 1 + 2 * workers_; }
    uint64_t tag(uint32_t k, bool answers) const { return tags | uint64_t{answers} << 32 | k; }
    Rank rank_of(const Context& context, uint32_t k) const { return context.ranks == 1 ? 0 : 1 + k % (context.ranks - 1); }

    void begin(uint64_t pushes) {
        version_ = pushes / collect_;
        handed_ = std::min<uint64_t>(workers_, updates_), taken_ = 0, loss_ = 0;
        for (uint32_t k = 0; k < workers_; ++k) all_[k] = {version_, 0, false, k < handed_ ? State::ready : State::over};
        collected_.clear();
        for (Record& each : records_) each.blocks = 0;
        log_.clear();
    }

    /// The sum of gradients of the worker's next mini-batches from its own parameters on, to its push.
    Status compute(Context& context, uint32_t k, std::span<const float> at) {
        std::ranges::copy(at, context.net.parameters().begin());
        context.net.refresh();
        const std::span<float> sum = values(push(k));
        double& loss = head(push(k)).loss = 0;
        // Its mini-batches are counted over the whole job: a round gives each worker at most `updates` pushes, or one in each update.
        const uint64_t push_of_job = exact_ ? all_[k].version : context.step * updates_ + all_[k].pushes, first = push_of_job * steps_;
        ++all_[k].pushes;
        for (uint32_t i = 0; i < steps_; ++i) {
            const std::span<float> gradient = i == 0 ? sum : std::span(local_.as<float>(), elements_);
            double of_step = 0;
            GC_TRY(context.local->batch(context, k, first + i, gradient, &of_step));
            loss += of_step / steps_;
            if (i + 1 < steps_) descend(context, all_[k].version, gradient);
            for (uint64_t j = 0; i > 0 && j < elements_; ++j) sum[j] += gradient[j];
        }
        for (const Group& group : context.net.layout().groups)   // they are means, not sums of steps
            for (uint64_t j = group.offset; group.statistics && steps_ > 1 && j < group.offset + group.count; ++j)
                sum[j] /= static_cast<float>(steps_);
        return {};
    }

    /// A local step of the net's parameters with the learning rate of that version.
    void descend(Context& context, uint64_t version, std::span<const float> gradient) const {
        const std::span<float> parameters = context.net.parameters();
        const auto lr = static_cast<float>(learning_rate(optimiser_, version)), decay = static_cast<float>(optimiser_.weight_decay);
        const float share = 1.0f / static_cast<float>(batch_);
        for (const Group& group : context.net.layout().groups)
            for (uint64_t j = group.offset; j < group.offset + group.count; ++j) {
                float& w = parameters[j];
                const float d = share * gradient[j];
                w += group.statistics ? statistics_share * (d - w) : -lr * (d + decay * w);
            }
        context.net.refresh();
    }

    // ---- server ----

    double lambda(uint64_t tau) const {
        if (scaling_ == "inverse") return 1.0 / static_cast<double>(std::max<uint64_t>(tau, 1));
        return scaling_ == "exp" ? std::pow(beta_, static_cast<double>(tau)) : 1;
    }
    bool may_begin(uint32_t k) const {
        if (staleness_most_ == 0) return true;
        uint64_t slowest = ~uint64_t{0};
        for (const Worker& each : all_)
            if (each.state != State::over) slowest = std::min(slowest, each.pushes);
        return all_[k].pushes <= slowest + staleness_most_;
    }
    Status add(Context& context, uint32_t k, double factor) {
        const std::span<float> sum(sum_.as<float>(), elements_), gradient = values(push(k));
        if (collected_.empty()) std::ranges::fill(sum, 0.0f);
        for (const Group& group : context.net.layout().groups) {
            const auto share = static_cast<float>((group.statistics ? 1 : factor) / (static_cast<double>(collect_) * batch_));
            for (uint64_t i = group.offset; i < group.offset + group.count; ++i) sum[i] += share * gradient[i];
        }
        return {};
    }

    // As the blocks of synchronous SGD: words of scales that the update before has set.
    Plan words(const Context& context, uint32_t bucket) {
        const Bucket& range = context.net.layout().buckets[bucket];
        return {Word::i32, sum_.part(range.offset * sizeof(int32_t), range.count * sizeof(int32_t)), &records_[bucket]};
    }
    Status add_exactly(Context& context, uint32_t k) {
        for (uint32_t b = 0; b < records_.size(); ++b) {
            const Bucket& range = context.net.layout().buckets[b];
            const Buffer from = push(k).part(sizeof(Head) + range.offset * sizeof(float), range.count * sizeof(float));
            GC_TRY(context.codec.add(0, {version_, k}, b, from, words(context, b)));
        }
        return {};
    }
    Status apply_exactly(Context& context) {
        sums_.clear();
        for (uint32_t b = 0; b < records_.size(); ++b) {
            GC_TRY(context.codec.finish(version_, b, words(context, b)));
            Sum sum;
            sum.step = version_, sum.bucket = b, sum.words = words(context, b).words, sum.maxima = records_[b].maxima;
            sums_.push_back({sum, context.codec.units(b)});
            clipped_ += records_[b].clipped;
        }
        std::ranges::copy(w(), context.net.parameters().begin());
        uint64_t digest = 0;
        GC_TRY(context.net.apply(context.lanes, context.optimiser, sums_, &digest));
        std::ranges::copy(context.net.parameters(), w().begin());
        for (const BucketSum& each : sums_) context.codec.commit(each.sum);
        for (Record& each : records_) each.blocks = 0;
        return {};
    }

    /// Takes a push.  answered: workers whose answers are filled in now.
    Status take(Context& context, uint32_t k, std::vector<uint32_t>* answered) {
        const uint64_t tau = version_ - all_[k].version;
        const Head told = head(push(k));
        GC_ASSERT(soft_ || staleness_most_ == 0 || tau <= (workers_ - 1) * (2 * uint64_t{staleness_most_} + 1));
        for (const float each : values(push(k)))
            if (!std::isfinite(each))
                return fail(Code::diverged, "round {}: the gradient of worker {} holds NaN or Inf: {}", context.step + 1, k,
                            context.advice);
        fmt::format_to(std::back_inserter(log_), "{} {}\n", k, tau);
        loss_ += told.loss / static_cast<double>(updates_);
        GC_TRY(exact_ ? add_exactly(context, k) : add(context, k, lambda(tau)));
        collected_.push_back(k);
        ++taken_;
        const bool update = collected_.size() == collect_;
        if (update) {
            context.optimiser.step(version_);
            if (exact_) GC_TRY(apply_exactly(context));
            else context.local->apply(context, w(), {sum_.as<float>(), elements_});
            ++version_;
        }
        if (!wait_) all_[k].held = true;
        else if (update)
            for (const uint32_t each : collected_) all_[each].held = true;
        if (update) collected_.clear();
        // In the order of their numbers: the same in a replay.
        for (uint32_t each = 0; each < workers_; ++each) {
            if (!all_[each].held || (handed_ < updates_ && !may_begin(each))) continue;
            all_[each].held = false;
            all_[each].version = version_;
            head(answer(each)) = {handed_ < updates_ ? 1ull : 0ull, version_, 0};
            handed_ += head(answer(each)).go;
            if (!head(answer(each)).go) all_[each].state = State::over;
            std::ranges::copy(w(), values(answer(each)).begin());
            answered->push_back(each);
        }
        return {};
    }

    /// The next push in the order of the log, else whichever is there.
    Status next(Context& context, uint32_t* k) {
        const auto is_there = [&](uint32_t each) { return open_[each] && context.mail->done(push_ticket(each)); };
        const auto any = [&] {
            if (!order_.empty()) {
                *k = order_[context.step * updates_ + taken_];
                return !open_[*k] || is_there(*k);
            }
            for (uint32_t i = 0; i < workers_; ++i, turn_ = (turn_ + 1) % workers_)   // in turn, so that nobody starves
                if (is_there(turn_)) return *k = turn_, true;
            return false;
        };
        GC_TRY(context.mail->wait_until(any, 10 * context.deadline_us, "push of a worker"));
        if (!open_[*k]) return fail(Code::data, "the replay log has a push of worker {} that it cannot have made", *k);
        turn_ = (*k + 1) % workers_;
        open_[*k] = false;
        return {};
    }
    void expect(Context& context, uint32_t k) {
        open_[k] = true;
        context.mail->receive(rank_of(context, k), tag(k, false), push(k), push_ticket(k));
    }

    Status serve(Context& context) {
        open_.assign(workers_, false);
        for (uint32_t k = 0; k < handed_; ++k) expect(context, k);
        std::vector<uint32_t> answered;
        while (taken_ < updates_) {
            uint32_t k = 0;
            GC_TRY(next(context, &k));
            all_[k].pushes++;
            answered.clear();
            GC_TRY(take(context, k, &answered));
            for (const uint32_t each : answered) {
                // The answer before has been received: the worker has pushed since.
                if (head(answer(each)).go) expect(context, each);
                GC_TRY(context.mail->wait(answer_ticket(each), answer_ticket(each), 10 * context.deadline_us, "answer to a worker"));
                context.mail->send({rank_of(context, each), nullptr}, tag(each, true), answer(each), answer_ticket(each));
            }
            context.progress.advance();
        }
        return context.mail->wait(1, tickets(), 10 * context.deadline_us, "end of the round");
    }

    // ---- workers ----

    Status work(Context& context) {
        const auto own = [&](uint32_t k) { return rank_of(context, k) == context.self; };
        const auto settle = [&] {   // answers that have come
            bool some = false, open = false;
            for (uint32_t k = 0; k < workers_; ++k) {
                if (!own(k)) continue;
                Worker& worker = all_[k];
                if (worker.state == State::computing && context.mail->done(push_ticket(k)) && context.mail->done(answer_ticket(k)))
                    worker.state = head(answer(k)).go ? State::ready : State::over, worker.version = head(answer(k)).version;
                some |= worker.state == State::ready;
                open |= worker.state == State::computing;
            }
            return some || !open;
        };
        for (uint32_t k = 0; k < workers_; ++k)
            if (own(k)) std::ranges::copy(w(), values(answer(k)).begin());
        for (;;) {
            GC_TRY(context.mail->wait_until(settle, 10 * context.deadline_us, "answer of the server"));
            bool some = false;
            for (uint32_t k = 0; k < workers_; ++k) {
                if (!own(k) || all_[k].state != State::ready) continue;
                some = true;
                GC_TRY(compute(context, k, values(answer(k))));
                context.mail->receive(0, tag(k, true), answer(k), answer_ticket(k));
                context.mail->send({0, nullptr}, tag(k, false), push(k), push_ticket(k));
                all_[k].state = State::computing;
            }
            if (!some) return {};
        }
    }

    Status alone(Context& context) {
        std::deque<uint32_t> ready;
        for (uint32_t k = 0; k < workers_; ++k) {
            std::ranges::copy(w(), values(answer(k)).begin());
            if (k < handed_) ready.push_back(k);
        }
        std::vector<uint32_t> answered;
        while (taken_ < updates_) {
            uint32_t k = ready.front();
            if (!order_.empty()) k = order_[context.step * updates_ + taken_];
            const auto at = std::find(ready.begin(), ready.end(), k);
            if (at == ready.end()) return fail(Code::data, "the replay log has a push of worker {} that it cannot have made", k);
            ready.erase(at);
            GC_TRY(compute(context, k, values(answer(k))));
            answered.clear();
            GC_TRY(take(context, k, &answered));
            for (const uint32_t each : answered)
                if (head(answer(each)).go) ready.push_back(each);
        }
        return {};
    }

    /// All ranks get the server's state.
    Status spread(Context& context) {
        const std::span<float> state = context.optimiser.state();
        const std::span<float> all(final_.as<float>(), final_.bytes / sizeof(float));
        const std::span<int32_t> scales = context.codec.exponents();
        std::byte* const of_scales = final_.host + (elements_ + state.size()) * sizeof(float);
        if (context.self == 0) {
            std::ranges::copy(w(), all.begin());
            std::ranges::copy(state, all.begin() + static_cast<ptrdiff_t>(elements_));
            std::memcpy(of_scales, scales.data(), scales.size_bytes());
            GC_TRY(replay_keep(log_path_, title_, context.step * updates_, log_));
        }
        if (context.ranks > 1) {
            Buffer message = final_, number{reinterpret_cast<std::byte*>(&loss_), nullptr, sizeof loss_};
            context.mail->begin(2);
            others_ = ranks_but(0, context.ranks);
            for (const auto& [what, ticket] : {std::pair{message, uint64_t{1}}, {number, uint64_t{2}}})
                if (context.self == 0) context.mail->send({0, others_.data()}, tags | uint64_t{1} << 33 | ticket, what, ticket);
                else context.mail->receive(0, tags | uint64_t{1} << 33 | ticket, what, ticket);
            GC_TRY(context.mail->wait(1, 2, (10 + updates_) * context.deadline_us, "state of the server"));
        }
        std::ranges::copy(all.first(elements_), w().begin());
        std::ranges::copy(all.subspan(elements_, state.size()), state.begin());
        std::memcpy(scales.data(), of_scales, scales.size_bytes());
        context.optimiser.refresh();
        return {};
    }

    const bool soft_;
    uint32_t workers_ = 0, collect_ = 1, staleness_most_ = 0, steps_ = 1, batch_ = 1;
    uint64_t elements_ = 0, updates_ = 0, message_ = 0;
    bool wait_ = false, exact_ = false;
    OptimiserConfig optimiser_;
    std::string scaling_, title_, log_path_, log_;
    double beta_ = 1, loss_ = 0;
    uint64_t version_ = 0, handed_ = 0, taken_ = 0;   // updates so far; gradients of the round that workers may compute, and that came
    std::vector<uint32_t> collected_, order_;
    std::vector<Worker> all_;
    std::vector<bool> open_;   // at the server: a push is awaited
    uint32_t turn_ = 0;
    std::vector<uint64_t> others_;
    Buffer w_, sum_, final_, local_, pushes_, answers_;   // sum_: float, or int32 where sums are exact
    uint64_t clipped_ = 0;
    std::vector<float> maxima_;
    std::vector<Record> records_;   // by bucket
    std::vector<BucketSum> sums_;
};

}   // namespace

std::unique_ptr<Algorithm> asgd_create() { return std::make_unique<Asgd>(false); }
std::unique_ptr<Algorithm> softsync_create() { return std::make_unique<Asgd>(true); }

}   // namespace gradcast
