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

/// The purpose, in NetProcesses::memory(), of the processes' own memory.
constexpr char programs_purpose[] = "programs";
/// What is planned for a process beside what it had at its peak while it was measured: a quarter more, but at least this.
constexpr uint64_t process_growth_min = 32 << 20;

struct AttachConfig {
    std::vector<std::string> command;                                    // program and arguments
    std::string folder;                                                  // working directory
    std::vector<std::pair<std::string, std::string>> environment = {};   // name, value
    uint32_t threads = 1;                                                // of a process
    uint32_t lanes = 1;                                                  // processes, at most
    uint64_t seed = 1;                                                   // of the job
    NetSpec samples = {};                                                // as the net gets them; the layers are the program's
    std::vector<float> mean, std;                                        // [C]
    bool own_samples = false;                                            // the program has the samples, and gets indices
    std::vector<uint32_t> cpus = {};                    // processes are pinned to these in turn, `threads` each; empty: they are not
    uint32_t samples_max = 1;                           // of a block or an evaluation's batch
    std::vector<uint32_t> block_sizes = {};             // in samples
    uint64_t bucket_bytes = NetConfig{}.bucket_bytes;   // of the gradient
    uint32_t evaluation_samples = 0;                    // of a batch of an evaluation that the first process is tried with; 0: none
    uint64_t memory_max = 0;                            // bytes that the first process may have while it is measured; 0: any number
    bool control_group = true;                          // false: processes get none (for tests)
    uint64_t deadline_us = 30'000'000;
    /// Gets what the processes print, line by line; on threads of this folder, one call at a time for each process.
    std::function<void(uint32_t lane, std::string_view line)> output = {};
    const std::atomic<bool>* stop = nullptr;     // ends open(), ready() and measure() with Code::cancelled
    const std::atomic<bool>* ending = nullptr;   // ends a block or an evaluation of the net with Code::cancelled; null: nothing does
    /// In first(): gets the bytes of the net's constants, one after the other, in pieces.  Empty: they are not wanted.  Its Code::invalid
    /// is an error of the process.
    std::function<Status(std::span<const std::byte> bytes)> constants = {};
};

/// Started processes.  Their net uses them, so it goes first.
///
///     open -> first -> plan, as often as it takes -> limit -> ready -> measure
///
/// The first process is started alone, and what it takes decides how many there are.
class NetProcesses {
public:
    /// Starts the first process and waits until it has said which tensors it has, at most 10 deadlines.  Error: as of ProcessChannel; the
    /// program cannot be started.
    static Status open(const AttachConfig& config, std::unique_ptr<NetProcesses>* processes);
    virtual ~NetProcesses() = default;
    /// Its layers are the tensors of the processes.
    virtual const NetSpec& spec() const = 0;
    virtual const ProcessHello& hello() const = 0;

    /// Takes the memory that the first process shares with the daemon, takes its constants, waits until it is ready, takes its initial
    /// values as parameters, and lets it compute a block and a batch of an evaluation.  Then memory() is of a process that has had what it
    /// needs.  Errors: those of open(); a value is NaN or Inf.
    virtual Status first() = 0;
    /// Plans the net for config.lanes processes; AttachConfig has all else.  The last planned net is the one that gets ready.
    virtual Status plan(const NetConfig& config, std::unique_ptr<Net>* net) = 0;
    /// What the planned processes and what they share with the daemon take, or will take.
    virtual std::vector<MemoryUse> memory() const = 0;
    /// The part of it, in bytes, that was taken when the first process was measured: by open(), then by first().
    virtual uint64_t taken() const = 0;
    /// Bounds the memory of each of so many processes.  Each may have what is planned for it, and an equal part of half of `unplanned`
    /// bytes, the memory that nobody has planned.
    virtual void limit(uint32_t lanes, uint64_t unplanned) = 0;
    /// "312.0 MiB a process (242.1 measured)"
    virtual std::string process_text() const = 0;
    /// Starts the other processes, and waits until they are ready.  Errors: those of open(); a process is not like the first one.
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
