// Weights that layers of several stages take (SharedWeights of nn/graph/layers.h).  Each of these stages has the tensor.  Its exchange sums
// the gradients of its own layers over the replicas.  Then the ranks of a replica that have the tensor send each other these sums, and each
// rank adds them up.  They are integers, so every rank gets the sum that a node with the whole net has, and applies the same step.
//
//     exchange of a stage --> sum over the layers of this stage --> mail to the other stages of the replica --> sum over all layers
//
// Bytes by mail, to each other stage with the tensor: its words, 4 a parameter and step (fixed: 8, auto16: 2), and 24 more.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "algos/dispatch.h"
#include "runtime/core/arena.h"
#include "transport/code/codec.h"
#include "transport/mail.h"

namespace gradcast {

struct Context;

/// Of a view at one rank.
class TiedSums final : public Consumer {
public:
    struct Tensor {
        uint32_t number;            // of the tensor in the net, alike at all ranks
        uint32_t bucket;            // of this rank's layout; no other tensor is in it
        std::vector<Rank> others;   // of this rank's replica: those whose stages have the tensor too
        std::string what;           // for errors: "sums of the weights of wte by node2"
    };
    /// words: the layout of this rank's sums, which outlives this.  ranks: of the view.
    TiedSums(const Layout& words, Quantiser quantiser, uint32_t ranks, std::vector<Tensor> tensors);
    /// Plans the memory of sums that come.
    void plan(Arena& arena);
    void open(Context& context, Dispatch& dispatch);

    // Trainer thread.  Each piece of 4 MiB has its own deadline.
    /// Before the first step: replaces each tensor's maximum by the largest of all ranks that have it.  maxima: by group of the layout.
    /// Blocks until the other ranks' maxima have come, each within `us`.  Errors: deadline, peer_lost.
    Status agree(std::span<float> maxima, uint64_t us);
    /// Before the passes of a step: posts the receives.  Blocks until the sums of the step before have left.  Errors: deadline, peer_lost.
    Status begin();
    /// Blocks until the other ranks' sums have come, and puts the sums over all layers in the place of the own ones.  sums: by bucket;
    /// those that it puts there are valid until the next begin().  Errors: deadline, peer_lost; conflict: computed from another state.
    Status wait(std::span<const Sum*> sums);
    /// Bytes of a step that this rank sends; as many come.
    uint64_t bytes_sent() const;

    Status take(const Completion& completion) override;

private:
    /// What a sum has beside its words.  It travels as it is, behind them.
    struct Tail {
        uint64_t state = 0, clipped = 0;
        float maximum = 0;
        uint32_t unused = 0;
    };
    /// Between this rank and another one that has the tensor.
    struct Pair {
        size_t tensor;
        Rank other;
        std::vector<uint64_t> other_bits;
        Buffer words = {};   // of the other rank; the own words, and those of the pairs before, are added to them
        Tail tail = {};      // of the other rank
    };
    struct Own {
        Tail tail = {};      // that goes
        Sum sum = {};        // over all layers
        float maximum = 0;   // of that
    };
    /// A piece of a pair's words, or its tail.  One goes and one comes.
    struct Message {
        size_t pair;
        uint32_t index;                     // in the pair; 0 is the tail
        uint64_t offset, bytes;             // of the words
        bool comes = false, goes = false;   // under way
    };

    uint64_t bytes_of(const Pair& pair) const;   // of its words
    Buffer place(const Message& message);
    uint64_t tag(const Message& message, uint64_t step) const;
    void receive(size_t number, uint64_t step);
    void send(size_t number, uint64_t step, Buffer from);
    /// Blocks while messages of which `open` is true are under way.
    template <typename Open>
    Status wait_while(Open open, uint64_t us, const char* what);
    Status wait_for(size_t tensor, uint64_t us);   // for what comes of it
    Status wait_gone(uint64_t us);
    void add(const Sum& sum, Buffer to) const;   // words

    const Layout& words_;
    const Word word_;
    const std::vector<Tensor> tensors_;
    std::vector<Own> own_;            // by tensor
    std::vector<Pair> pairs_;         // in the order of tensors, and of their `others`
    std::vector<Message> messages_;   // in the order of pairs
    Context* context_ = nullptr;
    std::unique_ptr<Mail> mail_;
};

}   // namespace gradcast
