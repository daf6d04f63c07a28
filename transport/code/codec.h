// From float gradients to exact integers and back: quantisation (transport/exchange/CODES.md, "Quantisation") and the accumulators that it
// fills.
#pragma once
#include <functional>
#include <memory>
#include <string_view>

#include "runtime/core/protocol.h"
#include "runtime/core/status.h"
#include "runtime/core/types.h"

namespace gradcast {

enum class Quantiser : uint8_t { fixed, auto32, auto16 };
const char* quantiser_name(Quantiser quantiser);
Word quantiser_word(Quantiser quantiser);                              // of sums
Status quantiser_parse(std::string_view name, Quantiser* quantiser);   // error lists the names

constexpr uint32_t auto16_blocks_max = 64;

/// The largest |word| of one gradient: 2^31 - 1 for fixed, Q = floor((p - 1) / 2 / B) for the others, p = 2^31 - 1 for auto32 and 65521 for
/// auto16, so that sums of B gradients are words of the prime field and stay within int32 or int16.  B: the blocks, times Group::uses.
int32_t quantise_limit(Quantiser quantiser, uint32_t gradients);

/// Metadata of the gradients of one target: one a block, of tied weights several (Group::uses).  Memory of the exchange.  The codec writes
/// blocks, written, maxima, clipped, diverged and digest; the trainer writes the rest before `ready`.
struct Record {
    uint64_t state = 0;
    int64_t loss = 0;
    uint64_t valid = 0;   // GradientSink::valid, of the target's blocks
    uint64_t clipped = 0;
    uint64_t digest = 0;       // of the target's words, if Plan::audit
    uint32_t diverged = 0;     // 1 + the first block whose gradient holds NaN or Inf; 0: none
    uint32_t blocks = 0;       // gradients added; the exchange sets it to 0 when a step begins in the slot
    uint64_t written = 0;      // words [0, written) hold values of this step: later blocks add to them, other words are overwritten
    std::span<float> maxima;   // [bucket.group_count]
};

/// Where blocks of (step, bucket) are added, laid out as in words(): one *target* of the bucket, from Exchange::plan.  A coded exchange has
/// one target per super-block that the rank holds; other exchanges have one target in all.
struct Plan {
    Word word = Word::i32;
    Buffer words;   // [bucket.count]; the first gradient of a step overwrites, later ones add
    Record* record = nullptr;
    bool audit = false;   // holders of a super-block compare digests
};

/// A block and its target.
struct Addition {
    BlockId block;
    Plan plan;
};

/// Device memory for words that an exchange reads only by Kernel::combine; combining runs on the device.
struct DeviceWords {
    virtual ~DeviceWords() = default;
    /// The largest number of targets of all exchanges; the codec plans an accumulator for each.  Once, before the device's memory is taken.
    virtual void expect(uint32_t targets) = 0;
    /// Plans zeroed memory and sets *at (for Buffer::device) when the device's memory is taken.  False: that memory is already taken.
    virtual bool plan(uint64_t bytes, void** at) = 0;
    /// Announces a block before its graph runs, if the graph quantises too: `plan` gives the arguments that add() will get for each bucket.
    /// add() then enqueues nothing.  All plans are targets of one step of an exchange.  Does not allocate.
    virtual Status begin(uint32_t lane, BlockId block, const std::function<Plan(uint32_t bucket)>& plan) = 0;
    /// Kernel::combine from signed words on the device to one output of residues on the host.  Network thread; blocks until done.
    virtual Status combine(const Combine& combine, uint64_t count) = 0;
};

/// Runs where the gradient is: on a lane thread, or on a CUDA stream (transport/code/cuda).
struct Codec {
    virtual ~Codec() = default;
    /// Quantises a gradient that one block has of one bucket (float32 [bucket.count]) and adds it.  Any lane, several at a time.  Does not
    /// allocate.
    /// A gradient with NaN or Inf: Code::diverged, naming step, layer and block.  Where holders compare (Plan::audit), only the record
    /// shows it (maximum Inf), so a faulty rank cannot end the job.
    virtual Status add(uint32_t lane, BlockId block, uint32_t bucket, Buffer gradient, const Plan& plan) = 0;
    /// add() for gradients computed piece by piece, quantised while they are in the cache; same words and records.  False: nothing was done
    /// (no support, or other lanes use this bucket); the caller computes the whole gradient and calls add().
    virtual bool add_pieces(uint32_t lane, std::span<const Addition> blocks, uint32_t bucket, const GradientPiece& piece, Status* status) {
        (void)lane, (void)blocks, (void)bucket, (void)piece, (void)status;
        return false;
    }
    /// All blocks of the target are added.  A target without blocks becomes zero (words, maxima, clipped); Plan::audit: computes the digest
    /// of the words.  Once per step and target, by any lane after the last add().  On a device: waits for the stream; the words are then in
    /// Buffer::device of the plan if set, else in its host memory.
    virtual Status finish(StepId step, uint32_t bucket, const Plan& plan) = 0;
    /// The layout that exchanges carry: auto16 has three words for each element of statistics.
    virtual const Layout& words() const = 0;
    /// The sum of a bucket of statistics as int32, valid until the next such call; other sums unchanged.  Trainer thread.
    virtual Sum whole(const Sum& sum) = 0;
    /// Sets the scales from a probe block: step 0 expects maxima 4 times those of `gradient` (float32, all elements).  Before the first
    /// step.
    virtual void probe(const float* gradient) = 0;
    /// Value of one unit of a bucket's words in each of its groups, divided by the batch: 2^e / b.  Valid until commit().
    virtual std::span<const double> units(uint32_t bucket) const = 0;
    /// Takes a bucket's maxima of an applied step: they set the scale of the next step.  Trainer thread, between steps.
    virtual void commit(const Sum& sum) = 0;
    /// The scales' exponents [groups], for state digests, checkpoints and joiners.
    virtual std::span<int32_t> exponents() = 0;
    /// Not null: add() takes gradients in device memory, and words may stay there.
    virtual DeviceWords* device() { return nullptr; }
    /// commit() of all buckets of a layout, whose groups have these maxima.
    void commit_all(const Layout& layout, std::span<const float> maxima) {
        for (uint32_t bucket = 0; bucket < layout.buckets.size(); ++bucket) {
            Sum sum;
            sum.bucket = bucket;
            sum.maxima = maxima.subspan(layout.buckets[bucket].group, layout.buckets[bucket].group_count);
            commit(sum);
        }
    }
};

struct CodecConfig {
    Quantiser quantiser = Quantiser::auto32;
    uint32_t batch = 0, blocks = 0;
    uint64_t seed = 0;   // auto16: rounding is keyed by seed, step, block and element
};
/// layout must outlive the codec.
std::unique_ptr<Codec> codec_cpu(const Layout& layout, const CodecConfig& config);

}   // namespace gradcast
