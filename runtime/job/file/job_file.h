// The job file: what a user wants trained, checked as a whole before anything starts.  Syntax: TOML; keys, defaults and allowed values
// stand in one table (job_options.h), which also makes `gradcastctl help job`.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "algos/settings.h"
#include "nn/net.h"
#include "nn/optimiser.h"
#include "runtime/core/crypto.h"
#include "runtime/core/file_key.h"
#include "transport/code/codec.h"

namespace gradcast {

constexpr uint32_t stages_auto = 0, copies_auto = 0;

struct JobConfig {
    std::string text;   // the file as read, and
    std::string base;   // the absolute folder that its relative paths are against
    std::string name = "job";
    uint64_t seed = 1;
    uint32_t epochs = 0, steps = 0;             // exactly one is not 0
    uint32_t evaluate = 0;                      // steps between two evaluations; 0: after each epoch
    double stop_at = 0;                         // accuracy that ends the job; 0: none
    uint32_t checkpoint_every = 0;              // steps between two checkpoints; 0: after each epoch, at most 100
    uint32_t checkpoint_keep = 2;               // that stay at a node; 0: none is written
    uint32_t checkpoint_copies = copies_auto;   // nodes that hold each checkpoint, or part of one; see part_holders()
    uint32_t audit_every = 0;                   // of so many checkpoints one stays for audits; 0: about 20 of the job
    uint32_t batch = 128, blocks = 8;
    uint64_t deadline_us = 30'000'000;
    bool survive = false;                     // go on without nodes that are lost, while the others are a quorum
    bool elastic = false;                     // with survive: other configured nodes become members by themselves while it runs
    uint32_t min_nodes = 0;                   // fewer do not go on; 0: half of the first ones
    bool tensorboard = false;                 // event files in the job's folder
    std::string train, test;                  // absolute patterns; test may be empty
    uint64_t samples = 0, test_samples = 0;   // that the program of net.command has, in place of `train` and `test`
    bool tested() const { return !test.empty() || test_samples > 0; }
    uint32_t classes = 0;   // samples of the first ones only; 0: all
    uint32_t crop = 0;      // see Augment
    bool flip = false;
    uint32_t side = 0;               // of pictures: DataOptions::side
    double resized_crop = 0;         // of pictures: the smallest share of a random part; 0: the middle is cut out
    std::vector<double> jitter;      // of brightness, contrast and saturation, see Augment; none: 0 of each
    std::vector<double> mean, std;   // of the data, in place of the shards'; none: those
    uint32_t context = 0;            // of a text: tokens of a sample, see DataOptions
    std::string preset;              // or, when empty, `layers`, or `command`
    PresetSize size;                 // of a preset that comes in sizes
    uint32_t net_pad = 0;            // of [net] with layers of its own
    std::vector<LayerSpec> layers;
    std::vector<std::string> command;       // program that computes the net, with its arguments; empty: gradcast does
    uint32_t threads = 1;                   // of each of its processes
    std::vector<std::string> environment;   // of them, "NAME=value", sorted
    bool attached() const { return !command.empty(); }
    /// Of `environment`: name and value.
    std::vector<std::pair<std::string, std::string>> variables() const;
    Precision precision = Precision::f32;
    std::string device = "cpu";                        // see Computer::open()
    bool resident = true;                              // false: GPUs keep no copy of the data set
    bool deterministic = true;                         // see NetConfig
    std::string start;                                 // absolute path of the parameters to begin with; empty: the seed's
    std::vector<std::string> start_only, start_skip;   // see TensorChoice
    OptimiserConfig optimiser;
    bool evaluate_ema = false;   // evaluations are of the averaged weights
    std::string algorithm = "ssgd", exchange = "ring";
    AlgorithmSettings settings;
    Quantiser quantiser = Quantiser::auto32;
    uint32_t m = 2, s = 0, r = 2, servers = 1;   // of exchanges, see ExchangeConfig
    std::vector<double> weights;
    bool servers_vote = false;             // with survive: servers alone are the quorum
    bool balance = false;                  // shares of the blocks follow the measured speed of the nodes
    uint32_t stages = 1;                   // that the net is cut into, see Grid; stages_auto: as the coordinator plans
    std::vector<std::string> cuts;         // layers that begin the second stage and the following ones; none: of about the same work
    std::string stage_schedule = "1f1b";   // see Schedule
    bool recompute = false;                // a stage computes activations again before a backward pass
    bool buddy = false;                    // with survive: each stage's state is kept by a second node
    uint32_t slices = 1;                   // of each sliced layer
    std::vector<std::string> sliced;       // names of layers; none: see slices_choose()
    uint32_t slice_groups = 1;             // nodes that share the slices of a stage, see Grid
    uint32_t micro_batch = 1;              // blocks that pass the stages together
    std::string transport = "auto";        // "auto", "ip", "tcp"
    Protect protect = Protect::auth;
    uint32_t profile = 0;   // the step of which a trace is kept; 0: none
    /// How many bytes at the front of a path of this job are `base`, in which nothing is a pattern.
    size_t literal(const std::string& path) const { return path.starts_with(base + '/') ? base.size() + 1 : 0; }
};

/// A mistake in the file: "job.toml:7: optimiser.lr: -1 is not above 0".  All are found in one go.
struct JobMistake {
    uint32_t line;
    std::string text;
};
/// Checks everything that needs the text alone: keys (with the nearest known one), types, ranges, exchange and quantiser, preset and
/// layer kinds. False: *mistakes is not empty.  `path` is used in messages only.
bool job_parse(const std::string& text, const std::string& path, const std::string& base, JobConfig* config,
               std::vector<JobMistake>* mistakes);
/// The same; the error has one line a mistake.
Status job_parse(const std::string& text, const std::string& path, const std::string& base, JobConfig* config);
/// A mistake that was found otherwise, in the form of those of job_parse(): with the line of this key ("net.layers[2]"), else of its
/// section. `what` may begin with a key that stands in its place.
JobMistake job_mistake(const std::string& text, const std::string& path, std::string_view key, std::string_view what);
/// Reads and parses; the error is as that of job_parse().
Status job_read(const std::string& path, JobConfig* config);
/// data.train and data.test, for messages.
std::string data_names(const JobConfig& config);
/// The keys that fix every bit of a training, as the file writes them, with their values: a state of one job is a state of any other
/// that has the same.
std::vector<std::pair<std::string, std::string>> job_identity(const JobConfig& config);
/// The value of "section.key" as job_identity() prints it, however a file writes it: "0.5min" is 30s.  A text that is no such value stays
/// as it is.
std::string job_value(std::string_view key, const std::string& text);
/// The keys of [algorithm] that belong to this algorithm alone, with the values that it takes.
std::vector<std::pair<std::string, std::string>> algorithm_settings(const JobConfig& config);
/// All keys with their defaults and allowed values, for people.
std::string job_help();
/// The same, key by key.
std::vector<FileKey> job_keys();

}   // namespace gradcast
