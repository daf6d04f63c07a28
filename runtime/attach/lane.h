// One process of net.command with the memory of its blocks: it computes a block at a time.
#pragma once
#include "nn/net.h"
#include "runtime/attach/channel.h"
#include "runtime/attach/hello.h"
#include "runtime/attach/shared_memory.h"

namespace gradcast {

/// Where the parts of a block's memory begin, in bytes: at multiples of 64.
struct BlockPlaces {
    uint64_t images = 0, labels = 0, targets = 0, indices = 0, predicted = 0, gradients = 0, bytes = 0;
};
/// For so many samples of that net, and a gradient of so many elements.
BlockPlaces block_places(uint64_t samples, const NetSpec& spec, uint64_t elements);

/// One thread at a time.  Errors: as of ProcessChannel.
class AttachLane {
public:
    /// Starts the process, and sends START with this text.
    Status start(ProcessConfig process, std::string_view text, const ProcessChannel::Wait& wait);
    /// The process is to end.
    void close() { channel_.close(); }
    /// Until it has ended.
    void end() { channel_.end(); }
    Status hello(const ProcessChannel::Wait& wait, ProcessHello* hello);
    /// Makes the block's memory and sends MEMORY with this text.
    Status give(const SharedMemory& parameters, const BlockPlaces& places, const NetSpec& spec, std::string_view text,
                const ProcessChannel::Wait& wait);
    /// Between give() and ready(), where MEMORY asks for them: the bytes of all constants, so many in all, in pieces.
    Status constants(uint64_t bytes, const std::function<Status(std::span<const std::byte>)>& take, const ProcessChannel::Wait& wait);
    /// Until the process is ready: its initial values are in gradients() then.
    Status ready(const ProcessChannel::Wait& wait);

    /// Forward and backward pass.  lane: as the sink is told.  An error of the sink, or Code::cancelled, leaves the process computing: the
    /// next call waits for its end first.
    Status train(uint32_t lane, BlockId id, uint64_t seed, const Samples& samples, const Layout& layout, const ProcessChannel::Wait& wait,
                 GradientSink& sink);
    /// Forward pass of an evaluation.  predicted [samples.count]: may be null.
    Status evaluate(const Samples& samples, const ProcessChannel::Wait& wait, gc_attach_loss* found, int32_t* predicted);

    /// Process::limit_memory()
    void limit_memory(uint64_t bytes) { channel_.limit_memory(bytes); }
    /// [Layout::elements]
    float* gradients() const { return reinterpret_cast<float*>(memory_.all().host + places_.gradients); }
    const ProcessChannel& channel() const { return channel_; }
    bool failed() const { return channel_.failed(); }

private:
    Status ask(const gc_attach_compute& message, const Samples& samples, const ProcessChannel::Wait& wait);
    /// bytes: of a text its length; may be null.
    Status next(gc_attach_kind kind, const ProcessChannel::Wait& wait, AttachMessage* message, size_t* bytes = nullptr);
    Status done(const ProcessChannel::Wait& wait);

    ProcessChannel channel_;
    SharedMemory memory_;
    BlockPlaces places_;
    uint64_t targets_bytes_ = 0;   // of a sample
    bool computes_ = false;        // it has been asked and is not done
};

}   // namespace gradcast
