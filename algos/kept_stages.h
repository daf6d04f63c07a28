// With `buddy`: stages of other ranks whose state this rank keeps beside its own (algos/grid/buddies.h).  Their ranks send it the integer
// sums of each step, which it applies as they do, with the same scales and optimiser: it has the same bits.
//
//     owner    a bucket's sum has come --> mail to the buddy, while other buckets are computed
//     buddy    all sums of the step have come --> reports so (Cells) --> all ranks have reported --> applies its own sums and these
//
// So a step is applied only when two ranks hold the sums of each stage.  Bytes by mail: the words of a stage, 4 a parameter and step
// (fixed: 8, auto16: 2), and 4 a group of the quantiser.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "algos/dispatch.h"
#include "nn/clip.h"
#include "nn/optimiser.h"
#include "nn/sums.h"
#include "transport/code/codec.h"
#include "transport/mail.h"

namespace gradcast {

struct Context;

/// The state of a stage.  Its parameters and the optimiser's state are part of those of a net that has the stage among others.
struct KeptStage {
    uint32_t stage = 0;
    Layout layout;                     // of the stage, as its own rank has it
    std::unique_ptr<Codec> codec;      // of that layout: its scales
    std::vector<Layout::Run> groups;   // groups that this stage represents in digests, and their numbers in the whole net
    Net* net = nullptr;
    Optimiser* optimiser = nullptr;
    std::optional<ScaledUnits> scaled = {};   // of that layout; nothing: no step has a factor
    std::vector<SumPiece> pieces = {};        // all of the layout
    std::vector<BucketSum> whole = {};        // of the step that is applied
    /// By group: whether an earlier kept stage has the same tied weights.  Tied weights are stored and updated once.
    std::vector<bool> applied_before = {};

    /// Fills in `pieces`; the rest is there.
    void open() { pieces = sum_pieces(layout); }
    /// Where `net` has the elements of a piece.
    uint64_t offset(const SumPiece& piece) const { return net->layout().offset_of(piece.offset + layout.groups[piece.group].before); }
    /// Applies a step's sums, times its factor (Context::factor_of()).  Returns the digest of parameters and optimiser state, as
    /// Net::apply().
    uint64_t apply(Lanes& lanes, StepId step, double factor, std::span<const Sum> sums);
    /// Digest of the state for which the stage stands, as Context::part().  model: of parameters and optimiser state.
    uint64_t part(uint64_t model) const;
    uint64_t part() const;
};

/// The stages that one rank keeps in a view.
class KeptStages final : public Consumer {
public:
    struct Kept {
        KeptStage* stage;
        Rank owner;
        std::string what;   // for errors: "sums of stage 2 of 4 (fc2 .. relu2)"
    };
    /// own: the layout of the words of this rank's sums; keeper: the rank that keeps its stage, no_rank: none does.
    KeptStages(const Layout& own, Quantiser quantiser, uint32_t ranks, Rank keeper, std::vector<Kept> kept);
    static constexpr Rank no_rank = ~Rank{0};
    /// Plans the memory of sums on their way.
    void plan(Arena& arena);
    void open(Context& context, Dispatch& dispatch);

    // Trainer thread, in each step.
    /// Before its passes: posts the receives.  Blocks until the sums of the step before have left.
    Status begin();
    /// Blocks until all sums of the kept stages have come.  Error: deadline, peer_lost.
    Status wait();
    /// Applies the sums of the kept stages, after all ranks have reported that they hold their sums.  factor: as KeptStage::apply().
    void apply(double factor);
    /// Digest of the state of kept stage `index`; 0: there is none.
    uint64_t part(size_t index);
    /// Bytes of a step's sums that this rank sends, and gets.
    uint64_t bytes_sent() const;
    uint64_t bytes_received() const;

    Status take(const Completion& completion) override;

private:
    /// Messages of one stage: a bucket's words each, and behind them the maxima of all groups.
    struct Messages {
        std::vector<Buffer> words;
        Buffer maxima;
        std::vector<bool> open;   // under way, by number of the message
        size_t count() const { return words.size() + 1; }
    };
    void send(const Sum& sum);
    uint64_t tag(size_t message) const;
    Buffer message(Messages& of, size_t number) const { return number < of.words.size() ? of.words[number] : of.maxima; }
    std::span<float> maxima_of(const Messages& messages, const Layout& layout, uint32_t bucket) const;

    const Layout& own_;
    const Word word_;
    const Rank keeper_;
    const std::vector<Kept> kept_;
    std::vector<uint64_t> keeper_bits_;
    Messages sent_;                    // of the own stage: words are those of the exchange
    uint32_t to_send_ = 0;             // buckets of the step whose sums have not come
    std::vector<Messages> received_;   // by kept stage
    std::vector<uint64_t> parts_;      // likewise; 0: not computed
    std::vector<Sum> sums_;
    Context* context_ = nullptr;
    std::unique_ptr<Mail> mail_;
};

}   // namespace gradcast
