// A net that trains on generated samples: one batch in a number of blocks, on a number of threads.  A step is a node's whole work but
// loading and exchange: forward, backward, quantise, words to float, SGD with momentum, digest, copies of the weights, scales.
#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "nn/net.h"
#include "nn/optimiser.h"
#include "runtime/core/lanes.h"
#include "runtime/job/run/cuda_module.h"
#include "transport/code/codec.h"

namespace gradcast {

struct NetHow {
    Precision precision = Precision::f32;
    std::string device = "cpu";   // see Computer::open()
    bool deterministic = true;
};

class NetRig final : GradientSink {
public:
    /// net: a preset, of samples of 1x28x28 (lenet3, lenet5, mlp) or 3x32x32; "resnet18:224": of 3x224x224; "unet:128": of 3x128x128 with a
    /// mask; gpt and gpt10m: of texts, 64 and 256 tokens of 256.
    Status open(const std::string& net, uint32_t batch, uint32_t blocks, uint32_t threads, const NetHow& how = {});
    bool on_gpu() const { return compute_.device != nullptr; }
    Status step();
    /// Whole steps in one launch, as jobs of one node compute them; where net().steps_ahead() is above 0.
    Status whole_begin();
    Status whole_end();
    /// One block alone; its gradient is discarded.
    Status block(uint32_t number);
    /// The part of a step after the exchange.
    Status apply();
    Net& net() { return *compute_.net; }
    std::vector<uint64_t> quantise_ns;   // by lane, total of all steps
    uint64_t apply_ns = 0;

private:
    Status bucket(uint32_t lane, BlockId id, uint32_t bucket, Buffer gradient) override;
    bool pieces(uint32_t lane, std::span<const Block> blocks, uint32_t bucket, const GradientPiece& piece, Status* status) override;
    void loss(uint32_t, BlockId, double) override {}
    bool on_device() const override { return compute_.codec->device() != nullptr; }
    bool begin(uint32_t lane, BlockId id, Status* status) override {
        *status = compute_.codec->device()->begin(lane, id, [this](uint32_t bucket) { return plan(bucket); });
        return true;
    }
    Status added(StepId step, uint32_t bucket);
    Sum sum(uint32_t bucket);
    Plan plan(uint32_t bucket) { return {Word::i32, sum(bucket).words, &records_[bucket]}; }
    uint32_t first_of(uint32_t block) const { return batch_ * block / blocks_; }   // sample
    Samples samples(uint32_t block) const;

    NetSpec spec_;
    Arena arena_;
    Buffer words_;                   // int32
    void* device_words_ = nullptr;   // the same in device memory
    Computer compute_;
    std::unique_ptr<ResidentImages> resident_;
    std::vector<SamplePlace> places_;
    Lanes lanes_;
    uint32_t batch_ = 0, blocks_ = 0, together_ = 1;
    std::vector<uint8_t> images_;
    std::vector<int32_t> labels_;
    std::vector<std::byte> targets_;   // of masks
    std::vector<float> mean_, std_, maxima_;
    std::vector<Record> records_;
    std::vector<BucketSum> sums_;
    std::vector<Samples> whole_;                     // by block
    std::vector<std::atomic<uint32_t>> remaining_;   // by bucket: blocks to come
    std::vector<Status> failed_;                     // by the first block of those computed together
    StepId step_ = 0;
};

}   // namespace gradcast
