// The net of a job whose file has net.command: processes of the user's compute it, one for each lane.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nn/net.h"
#include "runtime/attach/hello.h"
#include "runtime/core/memory_use.h"

namespace gradcast {

/// The purpose, in NetProcesses::memory(), of what the processes have already taken.
constexpr char taken_purpose[] = "taken";

struct AttachConfig {
    std::vector<std::string> command;                               // program and arguments
    std::string folder;                                             // working directory
    std::vector<std::pair<std::string, std::string>> environment;   // name, value
    uint32_t threads = 1;                                           // of a process
    uint32_t lanes = 1;                                             // processes
    uint64_t seed = 1;                                              // of the job
    // Samples, as DataInfo has them.
    uint32_t C = 1, H = 1, W = 1, classes = 2;
    float target_scale = 0;
    Element element = Element::u8, target_element = Element::f32;
    uint32_t targets = 0, vocabulary = 0;
    int32_t ignore = -1;
    std::vector<float> mean, std;      // [C]
    bool own_samples = false;          // the program has the samples, and gets indices
    std::vector<uint32_t> cpus = {};   // processes are pinned to these in turn, `threads` each; empty: they are not
    uint32_t samples_max = 1;          // of a block or an evaluation's batch
    uint64_t deadline_us = 30'000'000;
    /// Gets what the processes print, line by line; on threads of this folder, one call at a time for each process.
    std::function<void(uint32_t lane, std::string_view line)> output = {};
    const std::atomic<bool>* stop = nullptr;   // ends open(), ready() and measure() with Code::cancelled
};

/// Started processes.  Their net uses them, so it goes first.
class NetProcesses {
public:
    /// Starts the processes and waits until each has said which tensors it has, at most 10 deadlines.  Error: as of ProcessChannel; two
    /// processes differ; the program cannot be started.
    static Status open(const AttachConfig& config, std::unique_ptr<NetProcesses>* processes);
    virtual ~NetProcesses() = default;
    /// Its layers are the tensors of the processes.
    virtual const NetSpec& spec() const = 0;
    virtual const ProcessHello& hello() const = 0;

    /// Plans the net, once.  config: of it block_sizes, samples_max, bucket_bytes and seed are read.
    virtual Status plan(const NetConfig& config, std::unique_ptr<Net>* net) = 0;
    /// What the processes and what they share with the daemon take, or will take.
    virtual std::vector<MemoryUse> memory() const = 0;
    /// Takes the memory that is shared, and the initial values of lane 0 as parameters.  Error: a value is NaN or Inf.
    virtual Status ready() = 0;
    /// The identity of the processes' kernels: the digest of what each lane computes for a block of each size, with generated parameters
    /// and samples, and again after another block.  Error: bits that differ, with the first tensor that does.  *block_us: the longest time
    /// that a block took.  The parameters are as before.
    virtual Status measure(uint64_t* digest, uint64_t* block_us) = 0;
    /// Some error was that of a process.
    virtual bool failed() const = 0;
    /// The longest that a block may take from now on.
    virtual void deadline(uint64_t deadline_us) = 0;
};

}   // namespace gradcast
