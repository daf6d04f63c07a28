// One job at one rank: plans its memory, runs its algorithm step by step, keeps its folder (job.toml, log, steps.jsonl, final.h5,
// transcript.json), says how far it is.
#pragma once
#include <memory>
#include <string>

#include "runtime/core/log.h"
#include "runtime/core/profile.h"
#include "runtime/core/protocol.h"
#include "runtime/job/file/engine_config.h"
#include "runtime/job/report/job_status.h"
#include "transport/link/link.h"

namespace gradcast {

class Engine {
public:
    /// All that PREPARE asks for: data opened and checked, kernels measured, net built, memory taken, probe block run.  Errors name the
    /// thing.
    static Status open(const EngineConfig& config, const Log& log, std::unique_ptr<Engine>* engine);
    virtual ~Engine() = default;
    /// The identity of the kernel set: of synchronous SGD on CPUs the digest of net_measure(), of all other jobs that of the probe block's
    /// gradient.  Members whose kernel sets differ must not train together.
    virtual const std::string& kernel_set() const = 0;
    virtual const char* kernels() const = 0;   // its name, as Net::kernels()
    virtual const std::string& data_digest() const = 0;
    virtual bool data_compared() const = 0;   // as JobParts
    /// Returns the digest of the file from which parameters begin and of the sources of net.command's program; empty: neither.
    virtual const std::string& start_digest() const = 0;
    /// Returns the inventory of net.command's program (runtime/core/inventory.h); empty: there is none.
    virtual const std::string& inventory() const = 0;
    /// A line for the job's log.  Any thread.
    virtual void note(const std::string& text) = 0;
    virtual bool datagrams() const = 0;   // some exchange of the job may go by datagrams
    virtual Buffer memory() const = 0;
    virtual uint64_t deadline_us() const = 0;          // D, as this node needs it: the job file's, or 8 block times
    virtual void deadline(uint64_t deadline_us) = 0;   // as all members have agreed; before run()
    /// To be attached to the link on view_channel, of no view, before it runs; null without `survive`: the job keeps its first view.
    virtual Protocol* views() = 0;
    virtual Profile* profile() = 0;
    /// Trainer thread, once: all steps, evaluation, final.h5 (the lowest living rank; the others too where ranks are lost after the last
    /// step).  Returns when the job has ended at this rank.  With lanes the thread is lane 0: it is pinned and yields to the network thread
    /// for good, and so would threads that it makes afterwards.
    virtual Status run(Host& host) = 0;
    /// Any thread.  Cancels the job at all ranks; run() returns Code::cancelled soon after.
    virtual void cancel(const std::string& why) = 0;
    /// Any thread.  run() returns Code::cancelled soon after; the others go on without this rank where they can, else the job is cancelled.
    virtual void leave(const std::string& why) = 0;
    /// Any thread.  As leave(), but the job stays where it cannot go on: the error says why.
    virtual Status drain(const std::string& why) = 0;
    /// After run(): this node was evicted or cut off.  The others may go on with the job, and this node may rejoin it.
    virtual bool may_rejoin() const = 0;
    /// After run(): the process of net.command has failed here.  The others go on without this node where they can, and it rejoins when it
    /// is invited.
    virtual bool departed() const = 0;
    /// Any thread.  An operator declares that node dead.  This is a proof of death for the next view unless the node answers.
    virtual Status force_dead(const std::string& node) = 0;
    virtual JobStatus status() const = 0;                      // any thread
    virtual void counters(const LinkCounters* counters) = 0;   // of the driver, for bytes in status; before run()
};

}   // namespace gradcast
