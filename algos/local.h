// What a logical worker does on its own: it has a part of the data, and trains on mini-batches of it.
//
// Worker k of W has samples floor(k N / W) .. floor((k+1) N / W) - 1 of one permutation of the data that the job's seed draws; N: all
// but the validation samples, which are at its end.  Its
// mini-batches come from permutations of its part, keyed by (seed, k).  A mini-batch is cut in blocks, which the lanes compute side by
// side; their gradients are added in the order of the blocks.  So what a worker computes does not depend on its node or on the number of
// lanes.
#pragma once
#include <atomic>
#include <span>
#include <vector>

#include "algos/settings.h"
#include "datasets/reader.h"
#include "nn/net.h"
#include "nn/optimiser.h"

namespace gradcast {

struct Context;

constexpr uint32_t validation_batch = 100;   // samples
/// A key of the worker's own: permutations draw with it and numbers b (random4()) below 2^31.
uint64_t worker_seed(uint64_t seed, uint32_t worker);

struct LocalConfig {
    uint32_t workers = 1;
    uint64_t seed = 1;
    uint32_t batch = 1, blocks = 1;   // of a worker's mini-batch
    uint32_t steps = 1;               // of a worker in a round
    double pass_share = 0;            // of gradient(); 0: there is none
    uint32_t validation = 0;          // samples that no worker has: the last ones of the permutation
    uint32_t rounds_of_epoch = 0;     // train_share(): batches that an epoch is cut in; 0: workers have parts
    bool whole = false;               // batch(): workers have no parts, and share out each mini-batch of the job's (see there)
    Augment augment = {};
};

/// Added to the gradient of a worker's mini-batch, element by element: shift + pull * (w - centre).  Running statistics are omitted.
struct LocalTerm {
    const float* shift = nullptr;   // [elements]; null: 0
    float pull = 0;
    const float* centre = nullptr;   // [elements]
    double share = 1;                // of the worker's part of the data: its first samples
};

class Local {
public:
    Local(const LocalConfig& config, const DataSet& data);

    const LocalConfig& config() const { return config_; }
    uint64_t samples(uint32_t worker) const;
    /// Returns the number of samples in a round of all workers.
    uint64_t samples_of_round() const { return uint64_t{config_.workers} * config_.batch * config_.steps; }
    /// Sizes of all blocks that it gives to the net.
    std::vector<uint32_t> block_sizes() const;
    /// The net is planned, with these sizes of blocks.
    void plan(Net& net, uint32_t lanes, Arena& arena);

    /// Trains the net's parameters and the optimiser's state by `steps` mini-batches of the worker, of which `first` is the first, counted
    /// over the whole job.  *loss: the mean over these samples.  Errors: diverged, and what ends the job meanwhile.
    Status train(Context& context, uint32_t worker, uint64_t first, uint32_t steps, const LocalTerm& term, double* loss);
    /// Mini-batches of all workers in a round, with LocalConfig::rounds_of_epoch: floor(N / m) or one sample more of an epoch's
    /// permutation, the last mini-batch being shorter where they are no multiple.
    uint64_t batches_of_round(uint64_t round) const;
    /// train() by mini-batches first .. first + count - 1 of that round's.  *samples: how many they have.
    Status train_share(Context& context, uint64_t round, uint64_t first, uint32_t count, const LocalTerm& term, double* loss,
                       uint64_t* samples);
    /// The samples of one of them, by their numbers in the data.
    std::vector<uint64_t> samples_of_batch(uint64_t round, uint64_t number) const;
    /// N: those that workers learn from.
    uint64_t samples_in_all() const { return data_.info().count - config_.validation; }
    /// The mean gradient of `share` of the worker's part at the net's parameters, without augmentation: all of it, or samples that are
    /// drawn anew each round.  *loss: their mean.
    Status gradient(Context& context, uint32_t worker, double share, std::span<float> mean, double* loss);
    /// The sum over samples of gradients of the worker's mini-batch `step`, counted over the whole job, at the net's parameters; *loss: the
    /// samples' mean.  With LocalConfig::whole it is the worker's share of mini-batch `step` of synchronous SGD, of workers * batch samples
    /// in workers * blocks blocks.
    Status batch(Context& context, uint32_t worker, uint64_t step, std::span<float> sum, double* loss);
    /// A step of the optimiser with this gradient, at w: of all elements, or of first .. first + count - 1.
    void apply(Context& context, std::span<float> w, std::span<const float> gradient, uint64_t first = 0, uint64_t count = ~uint64_t{0});
    /// Number n of the worker's part, in memory of its own until the next call.  Trainer thread.
    Status sample(uint32_t worker, uint64_t n, Samples* sample);
    /// How many of the validation samples the net's parameters classify right.  Where they are not empty, outputs [validation, classes]
    /// and labels [validation] get what the net gives for each (Net::evaluate), and what is right.
    Status validate(Context& context, uint64_t* right, std::span<float> outputs = {}, std::span<int32_t> labels = {});
    /// N_k W / N: of the worker in an average that counts samples.
    double weight(uint32_t worker) const;

private:
    class Sink;
    struct Piece {   // of the parameters
        uint64_t offset, count;
        bool statistics;
    };
    struct Room {
        Buffer images, labels, targets;
        std::vector<uint64_t> places, indices, epochs;
        Samples samples(const DataSet& data, uint32_t count) const {
            return data.samples(count, images.as<uint8_t>(), labels.as<int32_t>(), targets.host);
        }
    };
    struct Shape {   // of a mini-batch
        uint32_t samples, blocks;
    };
    uint64_t first_sample(uint32_t worker) const { return uint64_t{worker} * (data_.info().count - config_.validation) / config_.workers; }
    Sampler order(uint32_t worker, double share) const;
    Sampler passes(uint32_t worker, double share) const;
    Sampler stream() const;
    Status block(Context& context, uint32_t lane, uint32_t worker, BlockId id, const Sampler& sampler, bool augmented, uint32_t slot,
                 bool whole = false);
    Status block_of_share(Context& context, uint32_t lane, uint64_t begin, uint64_t number, Shape shape, uint32_t block);
    Status gradient_of(Context& context, uint32_t lane, BlockId id, uint32_t count, bool augmented, uint32_t slot);
    void step(Context& context, Shape shape, const LocalTerm& term, double* loss);
    void samples_at(uint64_t begin, std::span<uint64_t> indices) const;
    uint64_t begin_of_round(uint64_t round) const;
    Shape shape_of(uint64_t samples) const;
    template <typename Blocks>
    Status run(Context& context, uint32_t count, Blocks blocks);
    Status validate_batch(Context& context, uint32_t lane, uint32_t batch, std::span<float> outputs, std::span<int32_t> all_labels);
    void add_up(uint64_t offset, std::span<float> gradient, uint32_t blocks) const;
    void update(Context& context, const Piece& piece, std::span<float> parameters, std::span<const float> gradient, const LocalTerm& term,
                Shape shape);

    const LocalConfig config_;
    const DataSet& data_;
    const Sampler whole_;
    std::vector<Room> rooms_;   // by lane
    std::vector<Piece> pieces_;
    Buffer gradients_;              // [blocks, elements]
    std::vector<double> losses_;    // by block
    std::vector<uint32_t> right_;   // by lane
    uint64_t elements_ = 0;
};

}   // namespace gradcast
