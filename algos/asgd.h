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
// Several servers: rank 0 alone decides which push comes next and sends its worker to the others, so all go through the same updates and
// answers, each for its part; version and staleness are those of one server.  So is a replay, bit for bit.
//
// Messages: a push and an answer of P floats each for every mini-batch, so 2 W P floats for W pushes; and P values and the optimiser's
// state to each other node at the end of a round.  With exchange = multicast, over datagrams, these go once for all nodes; and so does the
// answer where all workers get the same one: softsync with one server that collects all pushes and waits, and a worker at each other node.
// An update is then (W + 1) P floats.  Keeps, for each own worker, its w and gradient; at the server a gradient of each worker.  May go
// wrong: with many workers and a momentum stale gradients swing; lower the learning rate, or take lambda = "inverse".
#pragma once
#include "algos/algorithm.h"
#include "algos/push_log.h"
#include "algos/server_parts.h"
#include "algos/server_state.h"
#include "algos/server_update.h"

namespace gradcast {

/// asgd, or with `soft` softsync.
class Asgd final : public Algorithm {
public:
    explicit Asgd(bool soft) : soft_(soft) {}

    Status plan(const AlgorithmPlan& plan) override;

    Status round(Context& context) override;

    std::span<const std::byte> state() override { return log_.state(); }
    Status restore(std::span<const std::byte> state) override { return log_.restore(state); }

private:
    static constexpr uint64_t tags = uint64_t{1} << 60;   // below those of other mail
    /// Before the values of a message.
    struct Head {
        uint64_t go, version;   // of an answer: whether the worker computes another gradient, and the version of the parameters
        uint64_t pushes;        // of an answer: that the server has taken from the worker in this round
        double loss;            // of a push: mean
    };
    enum class State : uint8_t { ready, computing, answered, finished };
    struct Worker {
        uint64_t version = 0;   // that it has pulled
        uint64_t pushes = 0;    // in this round
        bool held = false;      // its answer waits
        State state = State::finished;
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
    // Tickets of a worker's push and answer, by server, and of the orders of server 0 to the others.
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

    // asgd.cc: what all ranks do
    void begin(Context& context);
    /// The first workers begin a gradient with the present parameters, as many as pushes remain.
    void start(const Context& context);
    /// In a replay workers begin those gradients that the log has.
    bool begins(uint32_t k, bool handed) const { return log_.replays() ? log_.has_more(k, taken_) : handed; }
    /// The replayed run pulled anew before the next push.
    bool replays_anew() const { return log_.anew(taken_) && anew_at_ != taken_; }
    Status alone(Context& context);
    /// All ranks get the servers' state and the order of pushes.
    Status spread(Context& context);

    // asgd_server.cc
    double lambda(uint64_t tau) const;
    bool may_begin(uint32_t k) const;
    /// Takes a push.  answered: workers whose answers are filled in now.
    Status take(Context& context, uint32_t k, std::vector<uint32_t>* answered);
    void fill(uint32_t k, bool go);
    /// The next push in the order of the log, else whichever is there.
    Status choose(Context& context, uint32_t* k);
    /// That which server 0 chooses, and whose part is here.
    Status next(Context& context, uint32_t* k);
    void expect(Context& context, uint32_t k);
    void reply(Context& context, uint32_t k);
    /// Pulls the parameters anew.  What workers have computed meanwhile is dropped.
    Status pull_anew(Context& context);
    Status serve(Context& context);

    // asgd_worker.cc
    /// The sum of gradients of the worker's next mini-batches from its own parameters on, to its push.
    Status compute(Context& context, uint32_t k, std::span<const float> at);
    /// A local step of the net's parameters with the learning rate of that version.
    void descend(Context& context, uint64_t version, std::span<const float> gradient) const;
    Status work(Context& context);

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
    std::vector<uint32_t> orders_;   // workers whose pushes come next, by order of server 0; [push % size]
    Buffer local_, pushes_, answers_;
    ServerUpdate update_;
};

}   // namespace gradcast
