// Own kernels.  Activations are [samples, H, W, C] in float or bf16; statistics, parameters and their gradients are float.  All enqueue on
// the given stream, do not allocate or wait, and return the error of the launch.  Pointers are device memory.  The order of a sum depends
// on the shape alone.
#pragma once
#include <span>

#include "nn/curves.h"
#include "nn/kernels.h"
#include "nn/optimiser_parts.h"
#include "runtime/core/cuda/device.h"
#include "runtime/core/element.h"

namespace gradcast::cuda {

/// An array of float or bf16 (the upper half of a float).
struct Values {
    void* at = nullptr;
    bool bf16 = false;
};

/// The numbers of a step that the host computes for an update.
struct UpdateRates {
    StepRates plain{}, exempt{};   // exempt: of tensors that do not decay
    float fresh = 0;               // the share of the new weights in the averaged ones
};
/// The head of a block's input; float scale [C] and shift [C], uint64_t seeds of layers that draw, int32_t labels [samples] follow, and
/// behind them in page-locked memory the places of samples in the GPU's data set, or images.
struct BlockHeader {
    uint32_t count = 0;   // samples; the rest of the program's size is zeros
    uint32_t block = 0, step = 0;
    uint32_t resident = 0;   // 1: images come from the data set
    UpdateRates rates{};     // of a whole step
};
/// What a block's input is made of.
struct BlockInput {
    const std::byte* staged;         // page-locked: the header and what follows it
    std::byte* head;                 // on the device: a copy of it, up to `places`
    uint32_t scale, shift, places;   // offsets in `staged`; `places` is divisible by 4
    const uint8_t* copied;           // on the device [samples, C, H, W] of ImageShape::element: samples that the host has copied
    Images images;                   // the data set; unused where the header's `resident` is 0
};
struct ImageShape {
    uint32_t N, C, H, W;
    uint32_t pad;   // zeros on each side
    Element element = Element::u8;
};
/// y [N, H + 2 pad, W + 2 pad, C] = x * scale + shift of bytes, or (x - shift) / scale of others, and the copy of the head.
Status input(cudaStream_t stream, Values y, const BlockInput& in, const ImageShape& shape);

/// tokens [N, W - 1] = the tokens of a text but the last of each sample, and the copy of the head.
Status input_tokens(cudaStream_t stream, uint32_t* tokens, const BlockInput& in, const ImageShape& shape);

/// y [rows, C] = x + w by column.
Status add_rows(cudaStream_t stream, Values y, Values x, const float* w, uint64_t rows, uint32_t C);
/// y = relu(y + bias) in place; bias may be null.
Status bias_relu(cudaStream_t stream, Values y, const float* bias, uint64_t rows, uint32_t C, bool rectify);
/// y = max(x, 0), NaN stays NaN.
Status relu(cudaStream_t stream, Values y, Values x, uint64_t count);
/// dx = y > 0 ? dy : 0;  dx may be dy.
Status relu_backward(cudaStream_t stream, Values dx, Values dy, Values y, uint64_t count);
/// y = f(x);  dx = dy f'(x), dx may be dy.  Exponentials, tanh and the normal distribution are CUDA's.
Status curve(cudaStream_t stream, Curve which, Values y, Values x, uint64_t count);
Status curve_backward(cudaStream_t stream, Curve which, Values dx, Values dy, Values x, uint64_t count);
/// y = a + b, or y = a b; y may be one of them.
Status add(cudaStream_t stream, Values y, Values a, Values b, uint64_t count);
Status multiply(cudaStream_t stream, Values y, Values a, Values b, uint64_t count);
Status copy(cudaStream_t stream, Values y, Values x, uint64_t count);   // also converts between float and bf16
/// to [A, C, B] = from [A, B, C].
Status transpose(cudaStream_t stream, Values to, Values from, uint32_t A, uint32_t B, uint32_t C);

/// A part of the copies of weights: to[a,c,b] = from[a,b,c].
struct WeightCopy {
    uint64_t from, to;   // float of the parameters; element of the copies
    uint32_t A, B, C;
    uint32_t width;   // not 0: to[a] has so many elements, and zeros behind those of from[a]; B is 1
    uint32_t begin;   // its first thread block; set by weight_copies()
};
/// All copies, in as few launches as the size of kernels' arguments allows.
Status weight_copies(cudaStream_t stream, Values to, const float* parameters, std::span<const WeightCopy> copies);

/// Memory of a sum over many thread blocks: scratch, and tickets, which are 0 before and after each sum.
struct SumMemory {
    double* scratch;
    uint32_t* tickets;
};
struct SumSize {
    uint64_t scratch;   // doubles
    uint32_t tickets;
};
/// Of `sums` sums a channel of an array [rows, C].
SumSize columns_size(uint64_t rows, uint32_t C, uint32_t sums, bool bf16);

/// dbias [C] = sums of dy over rows.  With y: dy counts only where y > 0; `in_place` also writes 0 to the rest of dy.
Status bias_backward(cudaStream_t stream, Values dy, Values y, float* dbias, const SumMemory& memory, uint64_t rows, uint32_t C,
                     bool in_place);

struct NormShape {
    uint64_t rows;
    uint32_t C, samples;
};
/// By channel, kept for the backward pass: mean, 1 / sqrt(variance + epsilon), weight times that, and the factors of norm_backward().
struct NormValues {
    float *mean, *inverse, *scale, *of_value, *constant;   // each [C], adjacent and aligned
};
/// found [2, C]: sums over samples of mean and second moment, for the running statistics.
Status norm_statistics(cudaStream_t stream, Values x, const NormValues& values, const float* weight, float* found, const SumMemory& memory,
                       const NormShape& shape);
/// Fills mean and scale from running statistics [2, C].
Status norm_running(cudaStream_t stream, const float* running, const NormValues& values, const float* weight, uint32_t C);
/// y = relu(scale (x - mean) + bias).
Status norm_forward(cudaStream_t stream, Values y, Values x, const NormValues& values, const float* bias, const NormShape& shape,
                    bool rectify);
/// dweight, dbias and the factors of norm_backward.  With y: dy counts only where y > 0.
Status norm_sums(cudaStream_t stream, Values dy, Values x, Values y, const NormValues& values, float* dweight, float* dbias,
                 const SumMemory& memory, const NormShape& shape);
Status norm_backward(cudaStream_t stream, Values dx, Values dy, Values x, Values y, const NormValues& values, const NormShape& shape);

struct WindowShape {
    uint32_t N, C, H, W, P, Q, kernel, stride, pad;
    uint32_t dilation = 1;   // of convolutions alone
};
/// y [N,P,Q,width] = the pixels of each output pixel's window, in the order [C,R,S] or, if `by_pixel`, [R,S,C].  Pixels outside of the
/// image and columns behind the window are 0.  `width` is a multiple of 16 bytes; by_pixel: so is C, and there are no columns behind the
/// window.
Status unfold(cudaStream_t stream, Values y, Values x, const WindowShape& shape, uint32_t width, bool by_pixel);
/// to [rows, C] = the first C columns of from [rows, width].
Status copy_rows(cudaStream_t stream, float* to, const float* from, uint32_t rows, uint32_t C, uint32_t width);

/// A convolution in groups of x [N, C, H, W] to K outputs.  w [C / groups, R, S, K]; dw [K, C / groups, R, S].
Status grouped_conv(cudaStream_t stream, Values y, Values x, Values w, const WindowShape& shape, uint32_t K, uint32_t groups);
Status grouped_conv_data(cudaStream_t stream, Values dx, Values dy, Values w, const WindowShape& shape, uint32_t K, uint32_t groups);
/// Doubles of scratch memory for grouped_conv_weights().
uint64_t grouped_conv_scratch(const WindowShape& shape, uint32_t weights);
Status grouped_conv_weights(cudaStream_t stream, float* dw, Values dy, Values x, double* scratch, const WindowShape& shape, uint32_t K,
                            uint32_t groups);

/// y = max of each window + bias, through a ReLU if `rectify`; winners [N,P,Q,C] = the place of the max in the window (the first of equals;
/// a NaN wins).  Padding never wins.
Status max_pool(cudaStream_t stream, Values y, uint8_t* winners, Values x, const float* bias, const WindowShape& shape, bool rectify);
/// With y: dy counts only where y > 0.
Status max_pool_backward(cudaStream_t stream, Values dx, Values dy, Values y, const uint8_t* winners, const WindowShape& shape);
/// The mean of each window's pixels inside the image.
Status average_pool(cudaStream_t stream, Values y, Values x, const WindowShape& shape);
Status average_pool_backward(cudaStream_t stream, Values dx, Values dy, const WindowShape& shape);

/// y = 0 or x * scale; drops the same elements as nn/cpu/dropout.cc.  drop: probability in units of 1/65536.
Status dropout(cudaStream_t stream, Values y, Values x, const uint64_t* seed, const BlockHeader* header, uint32_t samples, uint32_t pixels,
               uint32_t C, uint32_t drop);

/// Of layer_norm, rms_norm and group_norm.  A set has the channels of one of `groups` groups at all pixels of a sample.
struct SetShape {
    uint32_t N, pixels, C, groups;
    bool centred = true;                           // false: of rms_norm, whose mean counts as 0
    uint32_t sets() const { return N * groups; }   // below 2^31
};
/// What a set is normalised by: z = (x - mean) inverse, inverse = 1 / sqrt(variance + epsilon).
struct SetScale {
    float mean, inverse;
};
/// y = z weight + bias by channel; bias may be null.  Writes scales [sets] for the backward pass.
Status set_norm_forward(cudaStream_t stream, Values y, Values x, SetScale* scales, const float* weight, const float* bias,
                        const SetShape& shape, double epsilon);
Status set_norm_backward(cudaStream_t stream, Values dx, Values dy, Values x, const SetScale* scales, const float* weight,
                         const SetShape& shape);
/// dweight and dbias [C]; dbias may be null.  memory: columns_size(N pixels, C, 2).
Status set_norm_weights(cudaStream_t stream, Values dy, Values x, const SetScale* scales, float* dweight, float* dbias,
                        const SumMemory& memory, const SetShape& shape);

constexpr uint32_t attention_rows = 64;   // queries, or keys, of a thread block
struct AttentionShape {
    uint32_t samples, positions, heads, width;   // width: of a head
    float scale;                                 // 1 / sqrt(width)
    bool causal;
};
/// What a training step drops of the probabilities: the same as nn/cpu/attention.cc.
struct AttentionDrops {
    const uint64_t* seed = nullptr;   // of the layer and step; null: nothing is dropped
    const BlockHeader* header = nullptr;
    uint32_t drop = 0;    // of 65536
    float scale = 1;      // of those that stay
    uint32_t first = 0;   // the number in the block of the first sample
};
/// Of a query and head: the largest score, and 1 / the sum of exp(scale (score - top)).
struct AttentionKept {
    float top, inverse;
};
/// y [samples, positions, heads width] from x [samples, positions, 3 heads width]: queries of all heads, their keys, their values.
/// kept: [samples, heads, positions], or null.
Status attention_forward(cudaStream_t stream, Values y, Values x, AttentionKept* kept, const AttentionShape& shape, AttentionDrops drops);
/// delta: scratch [samples, heads, positions].
Status attention_backward(cudaStream_t stream, Values dx, Values dy, Values x, Values y, const AttentionKept* kept, float* delta,
                          const AttentionShape& shape, AttentionDrops drops);
/// y = x [samples, positions, 3 heads width], with queries and keys turned by their positions.  turns: RotaryTurns' cosines [positions,
/// width / 2], and behind them its sines.
Status rotary(cudaStream_t stream, Values y, Values x, const float* turns, const AttentionShape& shape);
/// Turns the gradients of queries and keys back, in place.
Status rotary_backward(cudaStream_t stream, Values dx, const float* turns, const AttentionShape& shape);

/// y [rows, C] = w [token of the row, C].
Status embedding(cudaStream_t stream, Values y, const uint32_t* tokens, const float* w, uint64_t rows, uint32_t C);
/// Floats of scratch memory for embedding_backward().
uint64_t embedding_scratch(uint32_t vocabulary, uint32_t C);
/// dw [vocabulary, C] = the sums of dy over the rows of each token, in order.
Status embedding_backward(cudaStream_t stream, float* dw, Values dy, const uint32_t* tokens, float* scratch, uint64_t rows,
                          uint32_t vocabulary, uint32_t C);

/// y [rows, A + B] = a [rows, A] and behind it b [rows, B].
Status join(cudaStream_t stream, Values y, Values a, Values b, uint64_t rows, uint32_t A, uint32_t B);
/// y [rows, C] = columns first .. first + C - 1 of x [rows, all].
Status take_columns(cudaStream_t stream, Values y, Values x, uint64_t rows, uint32_t C, uint32_t first, uint32_t all);

struct UpsampleShape {
    uint32_t N, C, H, W, scale;
    bool bilinear;
};
/// y [N, H scale, W scale, C], as nn/cpu/upsample.cc.
Status upsample(cudaStream_t stream, Values y, Values x, const UpsampleShape& shape);
Status upsample_backward(cudaStream_t stream, Values dx, Values dy, const UpsampleShape& shape);

struct LossResult {
    double loss;
    uint64_t right;
};
SumSize loss_size(uint32_t samples);
SumSize loss_rows_size(uint64_t rows, uint32_t classes);   // of softmax_cross_entropy_rows()
constexpr int32_t loss_ignored = -1;
struct LossTask {
    const int32_t* labels;   // [samples, positions]; loss_ignored: of a position that counts 0
    const BlockHeader* header;
    const uint32_t* spoiled;   // not 0: a parameter is not finite, which a ReLU of a library may hide; loss and gradient are NaN
    uint32_t classes, samples;
    SumMemory memory;   // loss_size(), loss_rows_size()
    int32_t* best;
    LossResult* result;
    uint32_t positions = 1;   // of a sample
    double smoothing = 0;     // the share of a target that goes to all classes alike
};
/// Over header->count samples: writes *result, by sample its best class, and, if dx.at is not null, its gradient.
Status softmax_cross_entropy(cudaStream_t stream, Values x, Values dx, const LossTask& task);
/// x [samples, positions, classes].  The loss of a sample is the sum of its positions' by their number; best: [samples, positions].
Status softmax_cross_entropy_rows(cudaStream_t stream, Values x, Values dx, const LossTask& task);
/// From targets [samples, classes].
Status squared_loss(cudaStream_t stream, Values x, Values dx, const LossTask& task, const float* targets);
/// scale above 0: a regression.
Status squared_loss(cudaStream_t stream, Values x, Values dx, const LossTask& task, float scale, float zero);

/// Values that change from step to step, in device memory.
struct ApplyNow {
    const void* words;   // of the bucket
    Word word;
    UpdateRates rates;
    uint32_t* spoiled;   // set to 1 where a parameter is not finite
};
/// A group's gradient is (float)((double)word * *unit).
struct Words {
    const ApplyNow* now;
    uint64_t first;       // in the bucket
    const double* unit;   // on the device
};
/// w += share (gradient - w).
Status apply_statistics(cudaStream_t stream, float* w, const Words& words, uint64_t count, float share);

/// How elements are updated: as OptimiserPart::how says, or as running statistics.
enum class UpdateRule : uint8_t { plain, exempt, frozen, statistics };
inline UpdateRule update_rule(Treatment how) {
    return how == Treatment::frozen ? UpdateRule::frozen : how == Treatment::exempt ? UpdateRule::exempt : UpdateRule::plain;
}
/// Elements of parameters, and of the optimiser's vectors of state and the averaged weights; null: there are none.
struct UpdateVectors {
    float *w, *first, *second, *mean;
};

/// A run of parameters of one group in a whole step's update.
struct UpdateGroup {
    uint64_t element, count;   // the canonical index of the first; elements
    uint64_t words;            // of the first element, in a lane's words
    uint64_t digit;            // where radix is not 0: words from one digit of an element to the next
    uint32_t number;           // StepWords::units has its unit
    int32_t radix;             // StepGroup::radix
    UpdateRule rule;
};
constexpr uint32_t update_per_block = 2048;   // elements
/// The part of a run that one thread block updates: elements begin .. end, counted from group.element.
struct UpdateBlock {
    UpdateGroup group;     // moved so that group.element is a multiple of 4
    uint32_t begin, end;   // begin is not 0 where the run's first element is no multiple of 4; end is update_per_block at most
};
/// The number of thread blocks of a run.
inline uint32_t update_blocks(uint64_t element, uint64_t count) { return blocks_of(element % 4 + count, update_per_block); }
/// Appends a run's thread blocks.
void update_split(const UpdateGroup& group, std::vector<UpdateBlock>* blocks);
/// In device memory; 0 between two launches.
struct UpdateTotal {
    unsigned long long sum;
    uint32_t ticket;
};
/// The update of all groups; an argument of the kernel.
struct UpdateTask {
    UpdateVectors at;   // [elements]
    CudaDevice::StepWords words;
    const UpdateRates* rates;
    const UpdateBlock* blocks;   // [thread blocks]
    uint64_t elements;           // of all groups: where the optimiser's state begins in the digest
    UpdateTotal* total;
    uint64_t* digest;    // page-locked
    uint32_t* spoiled;   // set to 1 where a parameter is not finite
    float share;         // of statistics
};
/// Elements whose squares a thread block adds up.
constexpr uint64_t norm_piece = 64 * 1024;
/// The kernels of an optimiser, in nn/cuda/KIND.cu.
struct UpdateKernels {
    /// Updates `count` elements, from `at` on.  rule: not statistics.  own: the rates of a tensor, on the device; null: those of the step.
    Status (*apply)(cudaStream_t stream, const UpdateVectors& at, UpdateRule rule, const Words& words, uint64_t count,
                    const StepRates* own);
    /// Updates all groups from the sums of the lanes' words, and writes the digest of parameters and state to *task.digest.  Null: the
    /// optimiser scales the step of each tensor by its norms, which no whole step does in this version.
    Status (*all)(cudaStream_t stream, const UpdateTask& task, uint32_t blocks) = nullptr;
    /// *own = the rates of a tensor, from its norms; writes nothing else of what apply() gets.  norms: scratch, one for each norm_piece.
    /// Sums are in an order that depends on `count` alone.  Null: all tensors have the rates of the step.
    Status (*look)(cudaStream_t stream, const UpdateVectors& at, const Words& words, uint64_t count, TensorNorms* norms,
                   StepRates* own) = nullptr;
};
#define GC_OPTIMISER(kind) extern const UpdateKernels kind##_kernels;
GC_OPTIMISERS(GC_OPTIMISER)
#undef GC_OPTIMISER

/// Input and output of a digest.
struct DigestNow {
    unsigned long long sum;   // added to
    uint64_t first;
};
/// now->sum += digest64 of those words (runtime/core/digest.h).
Status digest(cudaStream_t stream, DigestNow* now, const void* words, uint64_t count);

}   // namespace gradcast::cuda
