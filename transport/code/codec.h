// From float gradients to exact integers and back: quantisation (spec/coded-sgd.md section 2) and the accumulators it fills.
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
Status quantiser_parse(std::string_view name, Quantiser* quantiser);   // error lists the names

constexpr uint32_t auto16_blocks_max = 64;

/// The largest |word| of one block: 2^31 - 1 for fixed, Q = floor((p - 1) / 2 / B) for the others, p = 2^31 - 1 for auto32 and 65521 for
/// auto16, so that sums over B blocks are words of the prime field and stay within int32 or int16.
int32_t quantise_limit(Quantiser quantiser, uint32_t blocks);

/// Accompanies the blocks of one target.  Memory of the exchange.  The codec writes blocks, maxima, clipped and digest; the trainer writes
/// the rest before `ready`.
struct Record {
    uint64_t state = 0;
    int64_t loss = 0;
    uint64_t clipped = 0;
    uint64_t digest = 0;       // of the target's words, where Plan::audit asks for it
    uint32_t diverged = 0;     // 1 + the first block whose gradient holds NaN or Inf, if any
    uint32_t blocks = 0;       // added so far; the exchange sets it to 0 when a step begins in the slot
    uint64_t written = 0;      // by the codec: words of this step, from the first on; further blocks add to them
    std::span<float> maxima;   // [bucket.group_count]
};

/// Where blocks of (step, bucket) are added, in words as words() lays them out: one *target* of the bucket, from Exchange::plan.  An
/// exchange that codes has one target for each super-block that the rank holds and combines them itself; the others have one for all.
struct Plan {
    Word word = Word::i32;
    Buffer words;   // [bucket.count]: what is the first of the step there overwrites it, all else adds
    Record* record = nullptr;
    bool audit = false;   // holders compare digests
};

/// A block and where it goes.
struct Addition {
    BlockId block;
    Plan plan;
};

/// The memory of a device, for words that an exchange reads by Kernel::combine alone: what travels of them is combined there.
struct DeviceWords {
    virtual ~DeviceWords() = default;
    /// How many targets exchanges will have, at most: a codec takes accumulators for each.  Once, before the device's memory is taken.
    virtual void expect(uint32_t targets) = 0;
    /// Plans so many bytes, zero at first.  *at, for Buffer::device, is filled in when the device's memory is taken; false: it is already.
    virtual bool plan(uint64_t bytes, void** at) = 0;
    /// Of a block that is about to be computed on the lane, in a graph that quantises, too: what add() will be told of each of its buckets.
    /// add() then has nothing to enqueue.  The plans' targets are those of an exchange's step.  Does not allocate.
    virtual Status begin(uint32_t lane, BlockId block, const std::function<Plan(uint32_t bucket)>& plan) = 0;
    /// The kernel `combine`, from signed words on the device into one output of residues on the host.  Network thread; blocks until done.
    virtual Status combine(const Combine& combine, uint64_t count) = 0;
};

/// Runs where the gradient is: on a lane thread here, on a CUDA stream in transport/code/cuda.
struct Codec {
    virtual ~Codec() = default;
    /// Quantises one block's gradient of one bucket (float32 [bucket.count]) and adds it.  Any lane, several at a time.
    /// A gradient with NaN or Inf: Code::diverged, naming step, layer and block; where holders compare, it goes into the record
    /// instead (the maximum is Inf), because who computes wrongly must not end the job.  Does not allocate.
    virtual Status add(uint32_t lane, BlockId block, uint32_t bucket, Buffer gradient, const Plan& plan) = 0;
    /// add() of gradients that are computed as they are taken, while they are in the cache.  The same words and records.  False: nothing
    /// was done, because other lanes are in this bucket, or there is no such way; the caller computes all of it, meanwhile, for add().
    virtual bool add_pieces(uint32_t lane, std::span<const Addition> blocks, uint32_t bucket, const GradientPiece& piece, Status* status) {
        (void)lane, (void)blocks, (void)bucket, (void)piece, (void)status;
        return false;
    }
    /// All blocks of this target are in.  One without blocks becomes zero (words, maxima, clipped); where the plan says audit, the digest
    /// of the words is taken.  Once per step and target, by the lane that added the last block, or any.  On a device: waits until all is
    /// done; the words are then in the plan's Buffer::device where it has one, else in its host memory.
    virtual Status finish(StepId step, uint32_t bucket, const Plan& plan) = 0;
    /// What exchanges carry: the layout, in which auto16 has three words for each element of statistics.
    virtual const Layout& words() const = 0;
    /// The sum of such a bucket in int32, valid until the next call for one; any other sum unchanged.  Trainer thread.
    virtual Sum whole(const Sum& sum) = 0;
    /// Scales from the probe block: step 0 expects maxima 4 times those of `gradient` (float32, all elements).  Before the first step.
    virtual void probe(const float* gradient) = 0;
    /// Value of one unit of a bucket's words in each of its groups, divided by the batch: 2^e / b.  Valid until commit().
    virtual std::span<const double> units(uint32_t bucket) const = 0;
    /// Takes the maxima of one applied step's bucket: they set the scale of the next step.  Trainer thread, between steps.
    virtual void commit(const Sum& sum) = 0;
    /// The scales' exponents [groups], for state digests, checkpoints and joiners.
    virtual std::span<int32_t> exponents() = 0;
    /// Not null: add() takes gradients in device memory, and words may stay there.
    virtual DeviceWords* device() { return nullptr; }
};

struct CodecConfig {
    Quantiser quantiser = Quantiser::auto32;
    uint32_t batch = 0, blocks = 0;
    uint64_t seed = 0;   // auto16 rounds at random, keyed by seed, step, block and element; steps count over the job, so no epoch is needed
};
/// layout must outlive the codec.
std::unique_ptr<Codec> codec_cpu(const Layout& layout, const CodecConfig& config);

}   // namespace gradcast
