// One job at one rank: plans its memory, runs its algorithm step by step, keeps its folder (job.toml, log, steps.jsonl, final.h5), says how
// far it is.
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "runtime/core/isa.h"
#include "runtime/core/log.h"
#include "runtime/core/profile.h"
#include "runtime/core/protocol.h"
#include "runtime/job/job_file.h"
#include "transport/link/link.h"

namespace gradcast {

enum class JobState : uint8_t { preparing, running, done, failed, cancelled };
const char* job_state_name(JobState state);

/// A copy of where a job stands, for the control plane.
struct JobStatus {
    JobState state = JobState::preparing;
    std::string error;                   // of failed: one line that names rank, phase and thing
    std::vector<std::string> losses;     // "without rank 2 (c): …": ranks that the job goes on without, and why
    std::vector<std::string> warnings;   // what is otherwise than was asked for
    uint64_t step = 0, steps = 0, epoch = 0, epochs = 0;
    double loss = 0;            // of the last step, mean over the mini-batch
    double accuracy = -1;       // on the test data, 0..1; -1: not known, or a regression
    double test_loss = -1;      // mean; of a regression its mean squared error; -1: not known
    std::string digest;         // 64 hex digits at the end
    uint64_t step_digest = 0;   // of the last step
    double seconds = 0;         // since the first step
    double samples_per_second = 0;
    uint64_t bytes_sent = 0, bytes_received = 0;   // this node, on the wire
    uint64_t bytes_bound = 0;                      // what it must send a step by the exchange's formula (Cost::words_sent); 0: not known
    uint64_t load_wait_us = 0, exchange_wait_us = 0;
    std::string kernel_set;                                      // digest of the probe block's gradient, hex
    std::string path;                                            // "uring_tcp" …
    std::string choice;                                          // of `auto`, and what was predicted; "" before
    std::string datagrams;                                       // how they go (Driver::datagrams_text()); "" without any
    std::vector<std::pair<std::string, uint64_t>> timeouts_us;   // all derived from the deadline (spec/views.md)
    std::string memory;                                          // Arena::budget()
};

struct EngineConfig {
    JobId id{};
    JobConfig job;
    View view;
    Rank self = 0;
    uint32_t datagram_bytes = 0;     // payload of one datagram between these nodes; 0: streams alone
    uint64_t pace_bytes_per_s = 0;   // of our datagrams; 0: as the link takes them
    std::string folder;              // of the job; made if missing
    uint32_t lanes = 1;              // the trainer is one of them; 0: it alone, at the priority that it has (the simulator)
    bool loader_threaded = true;
    std::vector<uint32_t> cpus;   // lanes are pinned to these where given
    uint64_t spend_us = 0;        // simulated cost of one bucket's backward pass (the simulator)
};

class Engine {
public:
    /// All that PREPARE asks for: data opened and checked, net built, memory taken, probe block run.  Errors name the thing.
    static Status open(const EngineConfig& config, const Log& log, std::unique_ptr<Engine>* engine);
    virtual ~Engine() = default;
    /// Digest of the probe block's gradient: the identity of the kernel set.  Members whose digests differ must not train together.
    virtual const std::string& kernel_set() const = 0;
    virtual const char* kernels() const = 0;   // its name, as Net::kernels()
    virtual const std::string& data_digest() const = 0;
    virtual const std::string& start_digest() const = 0;   // of the file that parameters begin from; empty: the seed's
    /// Protocols by channel, to be attached to the driver or the simulator before run().
    virtual void attach(const std::function<void(uint16_t channel, Protocol*, bool datagrams)>& attach) = 0;
    virtual Buffer memory() const = 0;
    virtual Profile* profile() = 0;   // null where the job wants none
    /// Trainer thread, once: all steps, evaluation, final.h5 (rank 0).  Returns when the job has ended at this rank.  With lanes the thread
    /// is lane 0: it is pinned and yields to the network thread for good, and so would threads that it makes afterwards.
    virtual Status run(Host& host) = 0;
    /// Any thread.  Told to all ranks; run() returns Code::cancelled soon after.
    virtual void cancel(const std::string& why) = 0;
    virtual JobStatus status() const = 0;                      // any thread
    virtual void counters(const LinkCounters* counters) = 0;   // of the driver, for bytes in status; before run()
};

/// Accuracy (of a regression: the error) of a saved model on a data set, on this machine.
struct Evaluation {
    uint64_t count = 0, right = 0;
    bool regression = false;   // loss is the mean squared error, and there are no classes
    double loss = 0;           // mean
    std::vector<uint64_t> count_of_class, right_of_class;
    std::vector<uint64_t> confusion;   // [classes, classes]: how many of the row's class are taken for the column's; see Evaluator
    std::string class_names;           // of the data set, as in DataInfo; empty: not known
    std::string digest;                // of the parameters
    std::string kernels;               // the kernel set
};
Status model_evaluate(const std::string& path, const std::string& data, uint32_t threads, Evaluation* evaluation);

}   // namespace gradcast
