// Asynchronous SGD with a parameter server, and soft synchronisation (Zhang, Gupta, Lian, Liu, "Staleness-aware async-SGD for distributed
// deep learning", 2016; the CSSGD paper's baseline).  Rank 0 is the server, with the optimiser, or ranks 0 .. `servers` - 1 have a part of
// the parameters each; workers are on the other ranks.
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
// in replay.log in the job's folder, with its tau: `replay` = that file repeats the training on any number of nodes, one included.
//
// With `survive` every node votes, as each has the whole state after every round: the job outlives its server.  With servers_vote the
// servers alone do: it outlives all its workers' nodes.  In the next view workers move to where nodes are and pull anew, and pushes of the
// view before are never taken, so each applies at most once.  The updates of a single server that has stayed are kept; where a server is
// lost, or there are several, the round is repeated from its beginning.
//
// Several servers: rank 0 alone decides which push comes next and tells the others its worker, so all go through the same updates and
// answers, each for its part; version and staleness are those of one server.  So is a replay, bit for bit.
//
// Messages: a push and an answer of P floats each for every mini-batch, so 2 W P floats for W pushes; and P values and the optimiser's
// state to each other node at the end of a round.  With exchange = multicast, over datagrams, these go once for all nodes; and so does the
// answer where all workers get the same one: softsync with one server that collects all pushes and waits, and a worker at each other node.
// An update is then (W + 1) P floats.  Keeps, for each own worker, its w and gradient; at the server a gradient of each worker.  May go
// wrong: with many workers and a momentum stale gradients swing; lower the learning rate, or take lambda = "inverse".
#include <algorithm>
#include <cmath>

#include "algos/algorithm.h"
#include "algos/push_log.h"
#include "algos/server_parts.h"
#include "algos/server_state.h"
#include "algos/server_update.h"
#include "nn/graph/layers.h"
#include "nn/net.h"
#include "runtime/core/elementary.h"

namespace gradcast {
namespace {

constexpr uint64_t tags = uint64_t{1} << 60;   // below those of other mail

/// Before the values of a message.
struct Head {
    uint64_t go, version;   // of an answer: whether the worker computes another gradient, and the version of the parameters
    uint64_t pushes;        // of an answer: that the server has taken from the worker in this round
    double loss;            // of a push: mean
};

class Asgd final : public Algorithm {
public:
    explicit Asgd(bool soft) : soft_(soft) {}

    Status plan(const AlgorithmPlan& plan) override {
        const AlgorithmSettings& settings = plan.settings;
        workers_ = plan.workers;
        elements_ = plan.net.layout().elements;
        collect_ = soft_ ? (settings.collect > 0 ? settings.collect : workers_) : 1;
        wait_ = soft_ && settings.pull == "wait";
        scaling_ = settings.lambda;
        beta_ = settings.beta;
        staleness_most_ = settings.max_staleness;
        updates_ = plan.updates;
        steps_ = std::max(settings.local_steps, 1u);
        batch_ = plan.local->config().batch;
        optimiser_ = plan.optimiser;
        exact_ = soft_ && collect_ == workers_ && wait_ && scaling_ == "none";
        servers_ = plan.servers;
        if (exact_ && servers_ > 1)
            return fail(Code::invalid,
                        "algorithm.servers: softsync that collects all pushes, waits and does not scale them sums exactly, "
                        "as ssgd, at one server: leave it out, or set collect, pull or lambda");
        if (collect_ > workers_)
            return fail(Code::invalid, "algorithm.collect: {} pushes are more than the {} workers", collect_, workers_);
        if (updates_ % collect_ != 0)
            return fail(Code::invalid, "algorithm.updates: {} pushes of a round are no multiple of collect, {}", updates_, collect_);
        GC_TRY(log_.plan(plan));
        message_ = sizeof(Head) + elements_ * sizeof(float);
        state_.plan(plan);
        update_.plan(plan, collect_, exact_);
        if (steps_ > 1) plan.arena.plan("gradient of a local step", elements_ * sizeof(float), &local_);
        plan.arena.plan("pushes", workers_ * message_, &pushes_);
        plan.arena.plan("answers", workers_ * message_, &answers_);
        all_.resize(workers_), orders_.resize(2 * workers_), applied_.pushes.resize(workers_);
        answered_.reserve(workers_), waiting_.reserve(workers_);
        return {};
    }

    Status round(Context& context) override {
        const uint64_t begin_us = context.host.now_us();
        GC_TRY(log_.catch_up(context.replay_head));
        std::ranges::copy(context.net.parameters(), w().begin());
        parts_ = {context.ranks == 1 ? 1 : std::min(servers_, context.ranks - 1), elements_};   // nodes may have been lost
        part_ = context.self < parts_.servers ? context.self : 0;
        begin(context);
        if (context.ranks > 1) context.mail->begin(tickets());
        one_answer_ = context.mail->multicasts() && wait_ && collect_ == workers_ && parts_.servers == 1 && context.ranks - 1 <= workers_;
        Status status = context.ranks == 1 ? alone(context) : context.self < parts_.servers ? serve(context) : work(context);
        if (status.ok()) status = spread(context);
        // A replay has the pulls of the first run alone.
        applied_.on = !status.ok() && context.self == 0 && parts_.servers == 1 && !log_.replays() && !updating_;
        if (!status.ok()) state_.swap(context);   // it keeps that of the last update
        std::ranges::copy(w(), context.net.parameters().begin());
        context.net.refresh();
        GC_TRY(status);
        for (const Push& push : log_.pushes()) context.staleness.add(push.tau);
        StepRecord record;
        record.loss = loss_;
        record.clipped = update_.clipped();
        record.compute_us = context.host.now_us() - begin_us;
        context.round_done(record);
        return {};
    }

    std::span<const std::byte> state() override { return log_.state(); }
    Status restore(std::span<const std::byte> state) override { return log_.restore(state); }

private:
    enum class State : uint8_t { ready, computing, answered, over };
    struct Worker {
        uint64_t version = 0;   // that it has pulled
        uint64_t pushes = 0;    // in this round
        bool held = false;      // its answer waits
        State state = State::over;
    };
    /// After the last update of a round.
    struct Applied {
        bool on = false;   // the round has ended early: its state is kept, and the log has the order
        StepId step = 0;
        uint64_t taken = 0;
        double loss = 0;
        std::vector<uint64_t> pushes;   // by worker
    };

    std::span<float> w() { return state_.w(); }
    Buffer push(uint32_t k) const { return pushes_.part(k * message_, message_); }
    Buffer answer(uint32_t k) const { return answers_.part(k * message_, message_); }
    static Head& head(const Buffer& message) { return *message.as<Head>(); }
    std::span<float> values(const Buffer& message) const {
        return {message.part(sizeof(Head), message.bytes - sizeof(Head)).as<float>(), elements_};
    }
    // Tickets of a worker's push and answer, by server, and of what server 0 tells the others.
    uint64_t push_ticket(uint32_t k, uint32_t s) const { return 1 + uint64_t{s} * workers_ + k; }
    uint64_t answer_ticket(uint32_t k, uint32_t s) const { return 1 + (uint64_t{parts_.servers} + s) * workers_ + k; }
    uint64_t order_ticket(uint64_t push) const { return 1 + 2 * uint64_t{parts_.servers} * workers_ + push % orders_.size(); }
    uint64_t tickets() const { return 2 * uint64_t{parts_.servers} * workers_ + orders_.size(); }
    uint64_t tag(uint32_t k, bool answers) const { return tags | uint64_t{answers} << 32 | k; }
    uint64_t order_tag(uint64_t push) const { return tags | uint64_t{1} << 34 | push; }
    Buffer message(const Buffer& whole, uint32_t s) const { return parts_.of_message(whole, sizeof(Head), s); }
    template <typename T>
    std::span<T> own_part(std::span<T> all) const {
        return all.subspan(parts_.first(part_), parts_.count(part_));
    }
    Rank rank_of(const Context& context, uint32_t k) const {
        return context.ranks == 1 ? 0 : parts_.servers + k % (context.ranks - parts_.servers);
    }

    void begin(Context& context) {
        const bool goes_on = std::exchange(applied_.on, false) && applied_.step == context.step && context.self == 0 && parts_.servers == 1;
        if (goes_on) {
            state_.swap(context);
        } else {
            state_.keep(context);
            applied_.step = context.step;
            applied_.taken = 0;
            applied_.loss = 0;
            std::ranges::fill(applied_.pushes, 0);
        }
        pull_ = std::exchange(view_, context.view) != context.view;
        taken_ = applied_.taken;
        anew_at_ = goes_on ? taken_ : 0;
        loss_ = applied_.loss;
        for (uint32_t k = 0; k < workers_; ++k) all_[k] = {.pushes = applied_.pushes[k]};
        log_.begin(context.step);
        update_.begin(parts_, part_);
        start(context);
    }
    /// The first workers begin a gradient with the present parameters, as many as there are pushes left.
    void start(const Context& context) {
        version_ = (context.step * updates_ + taken_) / collect_;
        const uint64_t ready = std::min<uint64_t>(workers_, updates_ - taken_);
        handed_ = taken_ + ready;
        for (uint32_t k = 0; k < workers_; ++k) {
            all_[k].version = version_;
            all_[k].held = false;
            all_[k].state = k < ready ? State::ready : State::over;
        }
    }
    /// In a replay workers begin those gradients that the log has.
    bool begins(uint32_t k, bool handed) const { return log_.replays() ? log_.has_more(k, taken_) : handed; }
    /// The replayed run pulled anew before the next push.
    bool replays_anew() const { return log_.anew(taken_) && anew_at_ != taken_; }

    /// The sum of gradients of the worker's next mini-batches from its own parameters on, to its push.
    Status compute(Context& context, uint32_t k, std::span<const float> at) {
        const WorkerTurn turn(context, k);
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
            context.samples += batch_;
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
        return scaling_ == "exp" ? elementary::power(beta_, tau) : 1;
    }
    bool may_begin(uint32_t k) const {
        if (staleness_most_ == 0) return true;
        uint64_t slowest = ~uint64_t{0};
        for (const Worker& each : all_)
            if (each.state != State::over) slowest = std::min(slowest, each.pushes);
        return all_[k].pushes <= slowest + staleness_most_;
    }

    /// Takes a push.  answered: workers whose answers are filled in now.
    Status take(Context& context, uint32_t k, std::vector<uint32_t>* answered) {
        const uint64_t tau = version_ - all_[k].version;
        const Head told = head(push(k));
        GC_ASSERT(soft_ || staleness_most_ == 0 || tau <= (workers_ - 1) * (2 * uint64_t{staleness_most_} + 1));
        for (const float each : own_part(values(push(k))))
            if (!std::isfinite(each))
                return fail(Code::diverged, "round {}: the gradient of worker {} holds NaN or Inf: {}", context.step + 1, k,
                            context.advice);
        log_.pushes()[taken_] = {k, static_cast<uint32_t>(tau), taken_ > 0 && anew_at_ == taken_};
        loss_ += told.loss / static_cast<double>(updates_);   // at server 0
        GC_TRY(update_.add(context, {version_, k}, push(k).part(sizeof(Head), elements_ * sizeof(float)), lambda(tau)));
        ++taken_;
        if (update_.full()) {
            updating_ = true;
            GC_TRY(update_.apply(context, version_, w()));
            updating_ = false;
            ++version_;
            applied_.taken = taken_;
            applied_.loss = loss_;
            for (uint32_t each = 0; each < workers_; ++each) applied_.pushes[each] = all_[each].pushes;
        }
        if (!wait_) all_[k].held = true;
        else if (update_.full())
            for (const uint32_t each : update_.collected()) all_[each].held = true;
        // In the order of their numbers: the same in a replay.
        for (uint32_t each = 0; each < workers_; ++each) {
            if (!all_[each].held || (handed_ < updates_ && !may_begin(each))) continue;
            all_[each].held = false;
            all_[each].version = version_;
            const bool handed = handed_ < updates_;
            handed_ += handed;
            if (!handed) all_[each].state = State::over;
            fill(each, begins(each, handed));
            answered->push_back(each);
        }
        return {};
    }
    void fill(uint32_t k, bool go) {
        head(answer(k)) = {go, version_, all_[k].pushes, 0};
        if (!one_answer_ || k == 0) std::ranges::copy(own_part(w()), own_part(values(answer(k))).begin());
    }

    /// The next push in the order of the log, else whichever is there.
    Status choose(Context& context, uint32_t* k) {
        const auto is_there = [&](uint32_t each) { return open_[each] && context.mail->done(push_ticket(each, 0)); };
        const auto any = [&] {
            if (log_.replays()) {
                *k = log_.worker(taken_);
                return !open_[*k] || is_there(*k);
            }
            for (uint32_t i = 0; i < workers_; ++i, turn_ = (turn_ + 1) % workers_)   // in turn, so that nobody starves
                if (is_there(turn_)) {
                    *k = turn_;
                    return true;
                }
            return false;
        };
        GC_TRY(context.mail->wait_until(std::cref(any), 10 * context.deadline_us, "push of a worker"));
        if (!open_[*k] || all_[*k].state == State::over)
            return fail(Code::data, "the replay log has a push of worker {} that it cannot have made", *k);
        turn_ = (*k + 1) % workers_;
        return {};
    }
    /// That which server 0 chooses, and whose part is here.
    Status next(Context& context, uint32_t* k) {
        const uint64_t ticket = order_ticket(taken_), us = 10 * context.deadline_us;
        uint32_t& order = orders_[taken_ % orders_.size()];
        const Buffer message{reinterpret_cast<std::byte*>(&order), nullptr, sizeof order};
        if (part_ == 0) {
            GC_TRY(choose(context, k));
            if (parts_.servers > 1) {
                GC_TRY(context.mail->wait(ticket, ticket, us, "word to another server"));   // of an earlier push
                order = *k;
                context.mail->send({0, other_servers_.data()}, order_tag(taken_), message, ticket);
            }
        } else {
            context.mail->receive(0, order_tag(taken_), message, ticket);
            GC_TRY(context.mail->wait(ticket, ticket, us, "word of the first server"));
            *k = order;
            if (*k >= workers_ || !open_[*k])
                return fail(Code::data, "the first server tells of a push of worker {} that it cannot have made", *k);
            GC_TRY(context.mail->wait(push_ticket(*k, part_), push_ticket(*k, part_), us, "push of a worker"));
        }
        open_[*k] = false;
        return {};
    }
    void expect(Context& context, uint32_t k) {
        open_[k] = true;
        context.mail->receive(rank_of(context, k), tag(k, false), message(push(k), part_), push_ticket(k, part_));
    }

    void reply(Context& context, uint32_t k) {
        if (one_answer_ && k > 0) return;   // that of worker 0 is for all
        if (one_answer_) return context.mail->broadcast(0, tag(k, true), answer(k), answer_ticket(k, 0));
        context.mail->send({rank_of(context, k), nullptr}, tag(k, true), message(answer(k), part_), answer_ticket(k, part_));
    }
    /// What workers have computed meanwhile is dropped.
    Status pull_anew(Context& context) {
        anew_at_ = taken_;
        waiting_.clear();
        for (uint32_t k = 0; k < workers_; ++k) {
            if (open_[k])
                GC_TRY(context.mail->wait(push_ticket(k, part_), push_ticket(k, part_), 10 * context.deadline_us, "push of a worker"));
            if (open_[k] || all_[k].held) waiting_.push_back(k);
            open_[k] = false;
        }
        start(context);
        for (const uint32_t k : waiting_) {
            const bool go = begins(k, true);
            if (go) expect(context, k);
            GC_TRY(context.mail->wait(answer_ticket(k, part_), answer_ticket(k, part_), 10 * context.deadline_us, "answer to a worker"));
            fill(k, go);
            reply(context, k);
        }
        return {};
    }

    Status serve(Context& context) {
        open_.assign(workers_, false);
        other_servers_.assign(1 + parts_.servers / 64, 0);
        for (uint32_t s = 1; s < parts_.servers; ++s) other_servers_[s / 64] |= uint64_t{1} << s % 64;
        for (uint32_t k = 0; k < workers_; ++k) {
            const bool go = all_[k].state == State::ready && begins(k, true);
            if (go) expect(context, k);
            if (pull_) fill(k, go), reply(context, k);
        }
        while (taken_ < updates_) {
            if (replays_anew()) GC_TRY(pull_anew(context));
            uint32_t k = 0;
            GC_TRY(next(context, &k));
            all_[k].pushes++;
            answered_.clear();
            if (one_answer_)   // its memory may be sent again until then
                GC_TRY(context.mail->wait(answer_ticket(0, 0), answer_ticket(0, 0), 10 * context.deadline_us, "answer to the workers"));
            GC_TRY(take(context, k, &answered_));
            for (const uint32_t each : answered_) {
                // The answer before has been received: the worker has pushed since.
                if (head(answer(each)).go) expect(context, each);
                const uint64_t ticket = answer_ticket(each, part_);
                GC_TRY(context.mail->wait(ticket, ticket, 10 * context.deadline_us, "answer to a worker"));
                reply(context, each);
            }
            context.progress.advance();
        }
        return context.mail->wait(1, tickets(), 10 * context.deadline_us, "end of the round");
    }

    // ---- workers ----

    Status work(Context& context) {
        const auto own = [&](uint32_t k) { return rank_of(context, k) == context.self; };
        const uint32_t nodes = context.ranks - parts_.servers, first = context.self - parts_.servers;   // first: of the own workers
        const auto answer_of = [&](uint32_t k) { return one_answer_ ? first : k; };                     // whose answer k reads
        const auto await_answer = [&](uint32_t k) {
            if (!one_answer_)
                for (uint32_t s = 0; s < parts_.servers; ++s)
                    context.mail->receive(s, tag(k, true), message(answer(k), s), answer_ticket(k, s));
            else if (k + nodes >= workers_)   // the last of the own ones: nobody reads the answer before any more
                context.mail->broadcast(0, tag(first, true), answer(first), answer_ticket(first, 0));
        };
        const auto done = [&](uint32_t k) {
            bool all = true;
            for (uint32_t s = 0; s < parts_.servers; ++s)
                all = all && context.mail->done(push_ticket(k, s)) && context.mail->done(answer_ticket(answer_of(k), s));
            // The next answer comes to where this one is, so the own workers begin together.
            for (uint32_t each = first; one_answer_ && each < workers_; each += nodes)
                all = all && context.mail->done(push_ticket(each, 0));
            return all;
        };
        const auto settle = [&] {   // answers that have come
            bool some = false, open = false;
            for (uint32_t k = 0; k < workers_; ++k) {
                if (!own(k)) continue;
                Worker& worker = all_[k];
                if (worker.state == State::computing && done(k)) {
                    const Head& told = head(answer(answer_of(k)));
                    worker.state = told.go ? State::ready : State::over;
                    worker.version = told.version;
                    worker.pushes = told.pushes;
                }
                some |= worker.state == State::ready;
                open |= worker.state == State::computing;
            }
            return some || !open;
        };
        for (uint32_t k = 0; k < workers_; ++k) {
            if (!own(k)) continue;
            if (!begins(k, true)) all_[k].state = State::over;
            if (pull_) all_[k].state = State::computing;
            if (pull_) await_answer(k);
            else std::ranges::copy(w(), values(answer(k)).begin());
        }
        for (;;) {
            GC_TRY(context.mail->wait_until(std::cref(settle), 10 * context.deadline_us, "answer of the server"));
            bool some = false;
            for (uint32_t k = 0; k < workers_; ++k) {
                if (!own(k) || all_[k].state != State::ready) continue;
                some = true;
                GC_TRY(compute(context, k, values(answer(answer_of(k)))));
                await_answer(k);
                for (uint32_t s = 0; s < parts_.servers; ++s)
                    context.mail->send({s, nullptr}, tag(k, false), message(push(k), s), push_ticket(k, s));
                all_[k].state = State::computing;
            }
            if (!some) return {};
        }
    }

    Status alone(Context& context) {
        const auto all_pull = [&] {
            waiting_.clear();
            for (uint32_t k = 0; k < workers_; ++k) {
                fill(k, true);
                if (all_[k].state == State::ready) waiting_.push_back(k);
            }
        };
        all_pull();
        while (taken_ < updates_) {
            if (replays_anew()) {
                anew_at_ = taken_;
                start(context);
                all_pull();
            }
            uint32_t k = log_.replays() ? log_.worker(taken_) : waiting_.front();
            const auto at = std::ranges::find(waiting_, k);
            if (at == waiting_.end() || all_[k].state == State::over)
                return fail(Code::data, "the replay log has a push of worker {} that it cannot have made", k);
            waiting_.erase(at);
            GC_TRY(compute(context, k, values(answer(k))));
            answered_.clear();
            GC_TRY(take(context, k, &answered_));
            for (const uint32_t each : answered_)
                if (head(answer(each)).go) waiting_.push_back(each);
        }
        return {};
    }

    /// All ranks get the servers' state and the order of pushes.
    Status spread(Context& context) {
        if (context.self < parts_.servers) state_.pack(context, parts_, context.self);
        if (context.ranks > 1) {
            const uint64_t of_loss = 1 + parts_.servers, of_log = of_loss + 1;
            const Buffer number{reinterpret_cast<std::byte*>(&loss_), nullptr, sizeof loss_};
            context.mail->begin(of_log);
            const auto exchange = [&](uint32_t s, const Buffer& what, uint64_t ticket) {
                context.mail->broadcast(s, tags | uint64_t{1} << 33 | ticket, what, ticket);
            };
            for (uint32_t s = 0; s < parts_.servers; ++s) exchange(s, state_.of(context, parts_, s), 1 + s);
            exchange(0, number, of_loss);
            exchange(0, log_.message(), of_log);
            GC_TRY(context.mail->wait(1, of_log, (10 + updates_) * context.deadline_us, "state of a server"));
        }
        GC_TRY(log_.keep(context.replay_head, context.step));
        for (uint32_t s = 0; s < parts_.servers; ++s) state_.unpack(context, parts_, s);
        context.optimiser.refresh();
        return {};
    }

    const bool soft_;
    uint32_t workers_ = 0, collect_ = 1, staleness_most_ = 0, steps_ = 1, batch_ = 1;
    uint64_t elements_ = 0, updates_ = 0, message_ = 0;
    bool wait_ = false, exact_ = false, one_answer_ = false;   // one_answer_: an answer is for all workers, and goes by multicast
    OptimiserConfig optimiser_;
    std::string scaling_;
    double beta_ = 1, loss_ = 0;
    uint64_t version_ = 0, handed_ = 0, taken_ = 0;   // updates so far; gradients of the round that workers may compute, and that came
    uint32_t view_ = 0;                               // of the last round
    bool pull_ = false;       // the first round of a view, in which workers begin with the answer to a push that they have not made
    uint64_t anew_at_ = 0;    // pushes of this round after which all workers have pulled anew
    Applied applied_;         // at a single server
    bool updating_ = false;   // w and the optimiser's state are between two updates
    PushLog log_;
    ServerState state_;
    std::vector<Worker> all_;
    std::vector<bool> open_;                     // at the server: a push is awaited
    std::vector<uint32_t> answered_, waiting_;   // workers that get an answer now; that wait for one, or for their turn
    uint32_t turn_ = 0;
    std::vector<uint64_t> other_servers_;   // bits of ranks
    uint32_t servers_ = 1, part_ = 0;       // of the job; this rank's number among them
    ServerParts parts_;
    std::vector<uint32_t> orders_;   // workers whose pushes come next, as server 0 tells them; [push % size]
    Buffer local_, pushes_, answers_;
    ServerUpdate update_;
};

}   // namespace

std::unique_ptr<Algorithm> asgd_create() { return std::make_unique<Asgd>(false); }
std::unique_ptr<Algorithm> softsync_create() { return std::make_unique<Asgd>(true); }

}   // namespace gradcast
