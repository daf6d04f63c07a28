// Weights that layers of several stages take (SharedWeights of nn/graph/layers.h).  Each of these stages has the tensor, or with slice
// groups the slices of its group.  The ranks of a replica that have it send each other the words of their blocks, and each rank adds them
// up.  Words are integers, so each has those of a node with the whole net.  Then the exchange of each stage sums them over the replicas.
//
//     gradients of this stage's layers --> words --> mail to the other stages of the replica --> words of all layers --> exchange
//
// Before its words each rank sends a head: what its codec has noted of them, and whether it has computed all of its blocks.  Where a step
// ends early, one of the ranks has not.  No words follow then, and the ranks abandon the bucket: other replicas complete its sum.
//
// Bytes by mail, to each other stage with the tensor and for each target of the exchange: its words, 4 a parameter and step (fixed: 8,
// auto16: 2), and the head: 16, and for each target 16 and 4 a group of the quantiser.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "algos/dispatch.h"
#include "runtime/core/arena.h"
#include "transport/code/codec.h"
#include "transport/exchange/exchange.h"
#include "transport/mail.h"

namespace gradcast {

struct Context;

/// The sums of tied weights at one rank in a view.
class TiedSums final : public Consumer {
public:
    struct Tensor {
        uint32_t number;            // of the tensor in the net, alike at all ranks
        uint32_t bucket;            // of this rank's layout; no other tensor is in it
        std::vector<Rank> others;   // of this rank's replica: those whose stages have the tensor too
        std::string what;           // for errors: "sums of the weights of wte by node2"
    };
    /// words: the layout of the exchange.  Both outlive this.  ranks: of the view.
    TiedSums(const Layout& words, Quantiser quantiser, Exchange& exchange, uint32_t ranks, std::vector<Tensor> tensors);
    /// Plans the memory of words that come.
    void plan(Arena& arena);
    void open(Context& context, Dispatch& dispatch);

    size_t count() const { return tensors_.size(); }
    uint32_t bucket(size_t tensor) const { return tensors_[tensor].bucket; }
    bool has(uint32_t bucket) const { return std::ranges::find(tensors_, bucket, &Tensor::bucket) != tensors_.end(); }

    // Trainer thread.  Each message, of at most 4 MiB, has its own deadline.  *whole: this rank has computed all that it is to compute; it
    // becomes whether all ranks that have the tensor have done so.  It is false where the replica is broken (Pipeline::broken()).
    /// Before the first step: replaces each tensor's maxima and bounds by the largest of all ranks that have it.  maxima, bounds: by group
    /// of the layout; they are undefined where *whole becomes false.  Blocks until the other ranks' maxima have come, each within `us`.
    /// Errors: deadline, peer_lost.
    Status agree(std::span<float> maxima, std::span<float> bounds, bool* whole, uint64_t us);
    /// Behind the passes of a step: adds the other ranks' words of a tensor to the own ones, in the exchange's memory.  Blocks until they
    /// have come; then the bucket may be `ready`.  ask: is called after each completion.  Errors: deadline, peer_lost; conflict: computed
    /// from another state.
    Status add(size_t tensor, bool* whole, const std::function<void()>& ask);
    /// Returns the digest of the present parameters of all tied tensors.
    uint64_t digest() const;
    /// Bytes of a step that this rank sends; as many come.
    uint64_t bytes_sent() const;

    Status take(const Completion& completion) override;

private:
    /// A rank's report on its words of a tensor.  It travels as it is.  There are at least two targets: agree() sends its bounds as the
    /// maxima of the second one.
    class Head {
    public:
        Head(uint32_t targets, uint32_t groups) : groups_(groups), each_(2 + (groups + 1) / 2), words_(2 + targets * each_) {}
        uint64_t& state() { return words_[0]; }
        uint64_t& whole() { return words_[1]; }   // 0 or 1
        uint64_t& clipped(uint32_t target) { return words_[2 + target * each_]; }
        uint64_t& diverged(uint32_t target) { return words_[3 + target * each_]; }   // as Record
        std::span<float> maxima(uint32_t target) { return {reinterpret_cast<float*>(&words_[4 + target * each_]), groups_}; }
        Buffer buffer() { return {reinterpret_cast<std::byte*>(words_.data()), nullptr, bytes()}; }
        uint64_t bytes() const { return words_.size() * sizeof(uint64_t); }

    private:
        uint32_t groups_;
        uint64_t each_;   // words of a target
        std::vector<uint64_t> words_;
    };
    /// Between this rank and another one that has the tensor.
    struct Pair {
        size_t tensor;
        Rank other;
        std::vector<uint64_t> other_bits;
        Head head;           // of the other rank
        Buffer words = {};   // that come, of one target
    };
    /// A pair's head, or a piece of its words of a target.  One goes and one comes.
    struct Message {
        size_t pair;
        uint32_t index;                     // in the pair; 0 is the head
        uint64_t offset, bytes;             // of the words
        bool comes = false, goes = false;   // under way
    };

    uint64_t words_of(size_t tensor) const { return words_.buckets[tensors_[tensor].bucket].count * word_bytes(word_); }   // bytes
    uint64_t tag(const Message& message, uint64_t step, uint32_t target) const;
    void post(size_t number, uint64_t step, uint32_t target, Buffer own, Buffer other);
    /// Exchanges the heads of a tensor.  Blocks until they have come, or the replica is broken().
    Status heads(size_t tensor, uint64_t step, uint64_t us, const std::function<void()>& ask);
    /// Whether all ranks that have the tensor have said that they are whole.
    bool all_whole(size_t tensor);
    bool broken() const;
    /// Blocks while messages of the tensor are under way, and the replica is not broken().
    Status wait(size_t tensor, uint64_t us, const std::function<void()>& ask);
    void add_words(Buffer from, Buffer to, uint64_t count) const;

    const Layout& words_;
    const Word word_;
    Exchange& exchange_;
    const std::vector<Tensor> tensors_;
    std::vector<Head> own_;           // by tensor
    std::vector<Pair> pairs_;         // in the order of tensors, and of their `others`
    std::vector<Message> messages_;   // in the order of pairs
    Context* context_ = nullptr;
    std::unique_ptr<Mail> mail_;
};

}   // namespace gradcast
