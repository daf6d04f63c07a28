#include "runtime/job/file/job_options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <deque>

#include "algos/grid/schedule.h"
#include "nn/graph/slices.h"
#include "runtime/core/device.h"
#include "transport/exchange/exchange.h"

namespace gradcast {
namespace {

using Identity = JobOption::Identity;
using Kind = JobOption::Kind;
using Target = JobTarget;
using Value = JobValue;

std::vector<std::string> exchange_names() {
    std::vector<std::string> names;
    for (const ExchangeKind& kind : exchange_kinds()) names.emplace_back(kind.name);
    names.emplace_back("auto");
    return names;
}
std::vector<std::string> algorithm_names() {
    std::vector<std::string> names;
    for (const AlgorithmKind& kind : algorithm_kinds()) names.emplace_back(kind.name);
    return names;
}
std::vector<std::string> quantiser_names() {
    return {quantiser_name(Quantiser::auto32), quantiser_name(Quantiser::auto16), quantiser_name(Quantiser::fixed)};
}
std::vector<std::string> presets() { return {preset_names().begin(), preset_names().end()}; }
std::vector<std::string> precisions() { return {precision_names().begin(), precision_names().end()}; }
std::vector<std::string> devices() { return {device_names.begin(), device_names.end()}; }
std::vector<std::string> residences() { return {"auto", "no"}; }
std::vector<std::string> stage_schedules() { return {pipeline_schedule_names().begin(), pipeline_schedule_names().end()}; }
std::vector<std::string> means() { return {"positions", "valid"}; }
std::vector<std::string> evaluated() { return {"weights", "ema"}; }
std::vector<std::string> auto_name() { return {"auto"}; }
std::vector<std::string> transport_names() { return {"auto", "rdma", "ip", "tcp"}; }
std::vector<std::string> anchors() { return {"full", "batch"}; }
std::vector<std::string> genes() { return {"parameter", "layer"}; }
std::vector<std::string> distributions() { return {"population", "best"}; }
std::vector<std::string> solvers() { return {"sgd", "exact"}; }
std::vector<std::string> scalings() { return {"none", "inverse", "exp"}; }
std::vector<std::string> allocations() { return {"parts", "eda", "bsda"}; }
std::vector<std::string> streams() { return {"parts", "whole"}; }
std::vector<std::string> pulls() { return {"wait", "now"}; }
constexpr const char* protect_names[] = {"none", "auth", "encrypt"};   // by Protect
std::vector<std::string> protections() { return {"auth", "encrypt", "none"}; }

constexpr double u32_max = 4294967295.0;

void put(bool& to, const Value& value) { to = value.integer != 0; }
void put(uint32_t& to, const Value& value) { to = static_cast<uint32_t>(value.integer); }
void put(uint64_t& to, const Value& value) { to = static_cast<uint64_t>(value.integer); }
void put(double& to, const Value& value) { to = value.number; }
void put(std::string& to, const Value& value) { to = value.text; }
void put(std::vector<double>& to, const Value& value) { to = value.numbers; }
void put(std::vector<std::string>& to, const Value& value) { to = value.texts; }
// The names have been checked.
void put(Precision& to, const Value& value) { to = precision_of(value.text); }
void put(Quantiser& to, const Value& value) { (void)quantiser_parse(value.text, &to); }
void put(Protect& to, const Value& value) { to = static_cast<Protect>(std::ranges::find(protect_names, value.text) - protect_names); }

template <typename T>
std::string print(const T& value) {
    return fmt::format("{}", value);
}
std::string print(const std::vector<double>& value) { return fmt::format("[{}]", fmt::join(value, ", ")); }
std::string print(const std::vector<std::string>& value) { return fmt::format("[{}]", fmt::join(value, ", ")); }
std::string print(Precision value) { return precision_names()[static_cast<size_t>(value)]; }
std::string print(Quantiser value) { return quantiser_name(value); }
std::string print(Protect value) { return protect_names[static_cast<size_t>(value)]; }

template <typename Job, typename T>
auto& at(Job& job, T JobConfig::*member) {
    return job.*member;
}
template <typename Job, typename T>
auto& at(Job& job, T OptimiserConfig::*member) {
    return job.optimiser.*member;
}
template <typename Job, typename T>
auto& at(Job& job, T AlgorithmSettings::*member) {
    return job.settings.*member;
}
template <typename Job, typename T>
auto& at(Job& job, T PresetSize::*member) {
    return job.size.*member;
}
template <auto member>
void set(Target target, const Value& value) {
    if constexpr (std::is_invocable_v<decltype(member), LayerSpec&>) put(target.layer->*member, value);
    else put(at(*target.job, member), value);
}
template <auto member>
std::string show(const JobConfig& job) {
    return print(at(job, member));
}
template <auto member, Identity identity>
constexpr JobOption::Field field = {.set = set<member>,
                                    .show = show<member>,
                                    .identity = identity,
                                    .of_algorithms = std::is_invocable_v<decltype(member), AlgorithmSettings&>};
/// A field without an influence on the bits, of exchanges and algorithms with a trait.
template <auto member>
constexpr JobOption::Field field_of(bool ExchangeKind::*exchanges, bool AlgorithmKind::*algorithms = nullptr) {
    JobOption::Field made = field<member, Identity::no>;
    made.exchanges = exchanges;
    made.algorithms = algorithms;
    return made;
}

constexpr JobOption::Field of_ssgd(JobOption::Field made) {
    made.ssgd = true;
    return made;
}

// clang-format off
constexpr JobOption rows[] = {
    {"job", "name", Kind::text, "\"job\"", 0, 0, false, nullptr,
     "at most 64 letters, digits, '.', '_' and '-'", field<&JobConfig::name, Identity::no>},
    {"job", "seed", Kind::integer, "1", 0, 0x1p53, false, nullptr,
     "of the initial weights, the order of samples, augmentation and dropout", field<&JobConfig::seed, Identity::yes>},
    {"job", "epochs", Kind::integer, "", 1, 1e6, false, nullptr,
     "passes over the training data; or", field<&JobConfig::epochs, Identity::length>},
    {"job", "steps", Kind::integer, "", 1, u32_max, false, nullptr,
     "number of steps, one mini-batch each", field<&JobConfig::steps, Identity::length>},
    {"job", "evaluate", Kind::integer, "0", 0, u32_max, false, nullptr,
     "steps between two evaluations; 0: after each epoch", field<&JobConfig::evaluate, Identity::no>},
    {"job", "stop_at", Kind::number, "0", 0, 1, false, nullptr,
     "the job ends when an evaluation reaches this accuracy; 0: never", field<&JobConfig::stop_at, Identity::no>},
    {"job", "checkpoint_every", Kind::integer, "0", 0, u32_max, false, nullptr,
     "steps between two checkpoints, from which `gradcastctl resume` goes on; 0: after each epoch, about 100 at most",
     field<&JobConfig::checkpoint_every, Identity::no>},
    {"job", "checkpoint_keep", Kind::integer, "2", 0, 1000000, false, nullptr,
     "newest checkpoints that each node keeps; 0: none is written", field<&JobConfig::checkpoint_keep, Identity::no>},
    {"job", "checkpoint_copies", Kind::integer, "\"auto\"", 1, ranks_max, false, auto_name,
     "nodes that hold each checkpoint, of a net in stages each part.  auto: 2 where one node alone computes a stage, else 1",
     field<&JobConfig::checkpoint_copies, Identity::no>},
    {"job", "audit_every", Kind::integer, "0", 0, u32_max, false, nullptr,
     "every so many checkpoints one is kept for `gradcastctl verify`; 0: about 20 in the job",
     field<&JobConfig::audit_every, Identity::no>},
    {"job", "batch", Kind::integer, "128", 1, 1 << 20, false, nullptr, "samples in a mini-batch", field<&JobConfig::batch, Identity::yes>},
    {"job", "blocks", Kind::integer, "8", 1, blocks_max, false, nullptr,
     "parts of a mini-batch that nodes share out, at most its samples; the result depends on it, and not on the number of nodes",
     field<&JobConfig::blocks, Identity::yes>},
    {"job", "deadline", Kind::duration, "\"30s\"", 4, 86400, false, nullptr,
     "the longest stall that is tolerated; every time-out is derived from it",
     {[](Target target, const Value& value) { target.job->deadline_us = static_cast<uint64_t>(std::llrint(value.number * 1e6)); },
      [](const JobConfig& job) { return fmt::format("{}s", static_cast<double>(job.deadline_us) / 1e6); }, Identity::no}},
    {"job", "survive", Kind::flag, "false", 0, 1, false, nullptr,
     "the job goes on without nodes that are lost, while more than half of the nodes remain, or exactly half with the first one",
     field<&JobConfig::survive, Identity::no>},
    {"job", "elastic", Kind::flag, "false", 0, 1, false, nullptr,
     "with survive: other nodes of `members` in gradcastd.toml that are alive and not drained join the job by themselves while it runs",
     field<&JobConfig::elastic, Identity::no>},
    {"job", "min_nodes", Kind::integer, "0", 0, ranks_max, false, nullptr,
     "with survive: where fewer nodes are left, each writes a checkpoint and the job ends; 0: half of those that it began with, 1 with servers_vote",
     field<&JobConfig::min_nodes, Identity::no>},
    {"job", "tensorboard", Kind::flag, "false", 0, 1, false, nullptr,
     "each node writes loss, accuracy, throughput and bytes into its folder of the job as an event file of TensorBoard",
     field<&JobConfig::tensorboard, Identity::no>},
    {"data", "train", Kind::text, "", 0, 0, false, nullptr,
     "pattern of the shards to train on, or a manifest; a relative path starts at this file's folder",
     field<&JobConfig::train, Identity::no>},
    {"data", "test", Kind::text, "\"\"", 0, 0, false, nullptr,
     "pattern of the shards to evaluate on, or a manifest; empty: none", field<&JobConfig::test, Identity::no>},
    {"data", "samples", Kind::integer, "0", 0, u32_max, false, nullptr,
     "in place of train, with net.command: the program has so many samples of its own to train on, and gets indices",
     of_ssgd(field<&JobConfig::samples, Identity::changed>)},
    {"data", "test_samples", Kind::integer, "0", 0, u32_max, false, nullptr,
     "likewise in place of test", field<&JobConfig::test_samples, Identity::no>},
    {"data", "classes", Kind::integer, "0", 0, 65536, false, nullptr,
     "only samples with labels below this are used, and the net has as many outputs; 0: all", field<&JobConfig::classes, Identity::yes>},
    {"data", "crop", Kind::integer, "0", 0, 1024, false, nullptr,
     "augmentation: zeros added on each side of a training sample, before a random part of its own size is cut out; of masks likewise, with the ignored label or 0",
     field<&JobConfig::crop, Identity::yes>},
    {"data", "flip", Kind::flag, "false", 0, 1, false, nullptr,
     "augmentation: half of the training samples, drawn anew in each epoch, are mirrored left to right, with their masks",
     field<&JobConfig::flip, Identity::yes>},
    {"data", "side", Kind::integer, "0", 0, 65500, false, nullptr,
     "of pictures (import images --store jpeg): samples are side x side, cut out of the middle for evaluations; 0: the short side of the pictures",
     field<&JobConfig::side, Identity::changed>},
    {"data", "resized_crop", Kind::number, "0", 0, 1, false, nullptr,
     "augmentation of pictures: a random part, drawn anew in each epoch, of at least this share of the area, as 0.08, and of a ratio from 3/4 to 4/3 is resized to a training sample; 0: the middle is cut out",
     field<&JobConfig::resized_crop, Identity::changed>},
    {"data", "jitter", Kind::numbers, "[]", 0, 1, false, nullptr,
     "augmentation: how far factors of brightness, contrast and saturation may be from 1, as [0.4, 0.4, 0.4], drawn anew for each training sample in each epoch; none: 0 of each",
     field<&JobConfig::jitter, Identity::changed>},
    {"data", "mean", Kind::numbers, "[]", -1e30, 1e30, false, nullptr,
     "mean of each channel, of pixels scaled to 0 .. 1, in place of that of the shards, as another training had it; none: that of the shards",
     field<&JobConfig::mean, Identity::changed>},
    {"data", "std", Kind::numbers, "[]", 1e-30, 1e30, false, nullptr,
     "likewise the deviation", field<&JobConfig::std, Identity::changed>},
    {"data", "context", Kind::integer, "0", 0, 1 << 20, false, nullptr,
     "of a text: how many tokens a sample has; the net gets one more, as each token's target is the next one",
     field<&JobConfig::context, Identity::changed>},
    {"net", "preset", Kind::name, "", 0, 0, false, presets,
     "a net by name (gradcastctl help presets), or [[net.layers]], or command", field<&JobConfig::preset, Identity::yes>},
    {"net", "depth", Kind::integer, "4", 1, 1024, false, nullptr,
     "of preset gpt: blocks of attention and linear layers", field<&PresetSize::depth, Identity::changed>},
    {"net", "width", Kind::integer, "128", 1, 1 << 16, false, nullptr,
     "of preset gpt: channels of a token", field<&PresetSize::width, Identity::changed>},
    {"net", "heads", Kind::integer, "4", 1, 4096, false, nullptr,
     "of preset gpt: heads of attention, which share out the width", field<&PresetSize::heads, Identity::changed>},
    {"net", "tied_head", Kind::flag, "false", 0, 1, false, nullptr,
     "of preset gpt: its head has the weights of its embedding, as GPT-2's (weights_of of a layer)", of_ssgd(field<&PresetSize::tied_head, Identity::changed>)},
    {"net", "dropout", Kind::number, "0", 0, 1, false, nullptr,
     "of preset gpt: the rate of its layers of dropout, behind the embedding and before each residual sum, and of its attention, as GPT-2's; 0: none",
     field<&PresetSize::dropout, Identity::changed>},
    {"net", "mean_over", Kind::name, "\"positions\"", 0, 0, false, means,
     "of presets and data with masks, or a text.  positions: a sample's loss is its sum divided by all positions of the sample; valid: the loss of a mini-batch is its sum divided by the positions of all its samples whose label is not the ignored one (mean_over of softmax_cross_entropy)",
     of_ssgd({[](Target target, const Value& value) { target.job->size.valid = value.text == "valid"; },
                      [](const JobConfig& job) -> std::string { return job.size.valid ? "valid" : "positions"; }, Identity::changed})},
    {"net", "pad", Kind::integer, "0", 0, 1024, false, nullptr,
     "zeros added on each side of a sample, with [[net.layers]]", field<&JobConfig::net_pad, Identity::yes>},
    {"net", "command", Kind::texts, "[]", 0, 0, false, nullptr,
     "a program that computes the net, and its arguments, as [\"python3\", \"train.py\"]: by PATH, or a path that starts at this file's folder, which is its working directory at every node.  Each lane starts it once.  The daemons must allow it: commands = true in gradcastd.toml",
     field<&JobConfig::command, Identity::changed>},
    {"net", "threads", Kind::integer, "1", 1, 1024, false, nullptr,
     "with command: threads that each process computes with", field<&JobConfig::threads, Identity::changed>},
    {"net", "environment", Kind::table, "{}", 0, 0, false, nullptr,
     "with command: variables of its environment, as {OMP_PROC_BIND = \"true\"}", field<&JobConfig::environment, Identity::changed>},
    {"net", "precision", Kind::name, "\"f32\"", 0, 0, false, precisions,
     "number format of products in conv and inner_product; bf16 needs CPUs with AVX512-BF16 or AMX, tf32 a GPU",
     field<&JobConfig::precision, Identity::yes>},
    {"net", "device", Kind::name, "\"cpu\"", 0, 0, false, devices,
     "cuda: the GPUs of each node (`gpus` of gradcastd.toml); auto: cuda where nodes have GPUs", field<&JobConfig::device, Identity::no>},
    {"net", "resident", Kind::name, "\"auto\"", 0, 0, false, residences,
     "cuda: auto keeps the training data in each GPU's memory where it fits; no reads each block's samples from the files.  The result is the same",
     {[](Target target, const Value& value) { target.job->resident = value.text == "auto"; },
      [](const JobConfig& job) -> std::string { return job.resident ? "auto" : "no"; }, Identity::no}},
    {"net", "deterministic", Kind::flag, "true", 0, 1, false, nullptr,
     "cuda: false takes the fastest kernels, whose bits may differ from run to run", field<&JobConfig::deterministic, Identity::no>},
    {"net", "start", Kind::text, "\"\"", 0, 0, false, nullptr,
     "safetensors file with the initial parameters, as gradcastctl export or PyTorch writes it, of F32, F16, BF16 or F64; a prefix that all its names share is left out; empty: drawn with the seed",
     field<&JobConfig::start, Identity::no>},
    {"net", "start_only", Kind::texts, "[]", 0, 0, false, nullptr,
     "patterns of names of tensors, as [\"layer?.*\", \"conv1.weight\"]: start gives the net these alone; []: all",
     field<&JobConfig::start_only, Identity::changed>},
    {"net", "start_skip", Kind::texts, "[]", 0, 0, false, nullptr,
     "likewise, as [\"fc.*\"]: start does not give the net these, which are drawn with the seed; the file may have them in other shapes, or not at all",
     field<&JobConfig::start_skip, Identity::changed>},
    {"net.layers", "kind", Kind::name, "", 0, 0, false, layer_kind_names, "kind of the layer", set<&LayerSpec::kind>},
    {"net.layers", "name", Kind::text, "\"\"", 0, 0, false, nullptr,
     "by which messages, `from` and the tensors of state_dicts (conv1.weight) name the layer; empty: kind and number", set<&LayerSpec::name>},
    {"net.layers", "from", Kind::text, "\"\"", 0, 0, false, nullptr,
     "name of an earlier layer: add adds its output, concat appends its channels, other kinds take it instead of that of the layer before", set<&LayerSpec::from>},
    {"net.layers", "weights_of", Kind::text, "\"\"", 0, 0, false, nullptr,
     "linear: name of an earlier layer, whose weights it takes in place of its own, as a head those of an embedding; they learn from both.  Of the same shape, and without a bias.  ssgd on CPUs; no stage begins between the two",
     set<&LayerSpec::weights_of>},
    {"optimiser", "kind", Kind::name, "\"sgd\"", 0, 0, false, optimiser_names, "update rule", field<&OptimiserConfig::kind, Identity::yes>},
    {"optimiser", "schedule", Kind::name, "\"constant\"", 0, 0, false, schedule_names,
     "how lr changes over the job", field<&OptimiserConfig::schedule, Identity::yes>},
    {"optimiser", "decay_exempt", Kind::flag_or_texts, "false", 0, 1, false, nullptr,
     "true: weight_decay leaves out tensors of fewer than 2 dimensions, which are biases and weights of norms; or [\"fc1\", \"conv1.bias\"]: it leaves out the tensors of these layers, and these tensors",
     of_ssgd({[](Target target, const Value& value) {
          target.job->optimiser.decay_exempt = value.integer != 0;
          target.job->optimiser.decay_exempt_names = value.texts;
      },
      [](const JobConfig& job) {
          return job.optimiser.decay_exempt_names.empty() ? print(job.optimiser.decay_exempt) : print(job.optimiser.decay_exempt_names);
      },
      Identity::changed})},
    {"optimiser", "freeze", Kind::texts, "[]", 0, 0, false, nullptr,
     "names of layers, or of tensors, that keep their initial weights bit for bit: no update, no momentum, no decay.  \"layer1\" names layer1.0.conv1 too.  Running statistics of batch norm go on",
     of_ssgd(field<&OptimiserConfig::freeze, Identity::changed>)},
    {"optimiser", "clip_norm", Kind::number, "0", 0, 1e30, false, nullptr,
     "a step whose gradient has a larger norm, over all layers, is scaled to this norm; 0: none is",
     of_ssgd(field<&OptimiserConfig::clip_norm, Identity::changed>)},
    {"optimiser", "ema", Kind::number, "0", 0, 1, false, nullptr,
     "averaged weights are kept beside the weights: after each step ema times the average before it and 1 - ema times the weights; they are part of checkpoints, of final.h5 and of the step's digest; 0: none",
     of_ssgd(field<&OptimiserConfig::ema, Identity::changed>), true},
    {"optimiser", "evaluate", Kind::name, "\"weights\"", 0, 0, false, evaluated,
     "ema: evaluations during the job are of the averaged weights, with the running statistics of the net",
     {[](Target target, const Value& value) { target.job->evaluate_ema = value.text == "ema"; },
      [](const JobConfig& job) -> std::string { return job.evaluate_ema ? "ema" : "weights"; }, Identity::no}},
    {"algorithm", "kind", Kind::name, "\"ssgd\"", 0, 0, false, algorithm_names,
     "training algorithm", field<&JobConfig::algorithm, Identity::yes>},
    {"algorithm", "exchange", Kind::name, "\"ring\"", 0, 0, false, exchange_names,
     "how gradients are summed; auto: the fastest of those that are predicted from the first 6 steps to be fast, tried for 6 steps each where 24 are left; of asgd, softsync and serial: multicast, by which what goes to all nodes goes once",
     field<&JobConfig::exchange, Identity::no>},
    {"algorithm", "m", Kind::integer, "2", 1, ranks_max, false, nullptr,
     "packets are shorter by this factor", field_of<&JobConfig::m>(&ExchangeKind::codes)},
    {"algorithm", "s", Kind::integer, "0", 0, ranks_max, false, nullptr,
     "number of nodes that may be late or dead; of a net in stages, of replicas", field_of<&JobConfig::s>(&ExchangeKind::codes)},
    {"algorithm", "r", Kind::integer, "2", 1, ranks_max, false, nullptr,
     "number of nodes that compute the same block; of a net in stages, of replicas", field_of<&JobConfig::r>(&ExchangeKind::shares)},
    {"algorithm", "weights", Kind::numbers, "[]", 0, 1e30, true, nullptr,
     "share of the blocks that each node computes, in the order of the nodes, as [1, 2, 1]; none: equal shares",
     field_of<&JobConfig::weights>(&ExchangeKind::weighs)},
    {"algorithm", "balance", Kind::flag, "false", 0, 1, false, nullptr,
     "shares follow the measured speed of the nodes, with several blocks a node", field_of<&JobConfig::balance>(&ExchangeKind::balances)},
    {"algorithm", "servers", Kind::integer, "1", 1, ranks_max, false, nullptr,
     "number of nodes that are servers, each with a part of the parameters; of a net in stages, of replicas",
     field_of<&JobConfig::servers>(&ExchangeKind::serves, &AlgorithmKind::server)},
    {"algorithm", "servers_vote", Kind::flag, "false", 0, 1, false, nullptr,
     "with survive, the job goes on where more than half of the servers remain, or exactly half with the first one, however many workers are lost; else where so many of all nodes remain",
     field_of<&JobConfig::servers_vote>(nullptr, &AlgorithmKind::server)},
    {"algorithm", "quantiser", Kind::name, "\"auto32\"", 0, 0, false, quantiser_names,
     "how gradients become integers", field<&JobConfig::quantiser, Identity::yes>},
    {"algorithm", "workers", Kind::integer, "0", 0, blocks_max, false, nullptr,
     "that learn alone, wherever they are; 0: one a node", field<&AlgorithmSettings::workers, Identity::yes>},
    {"algorithm", "local_steps", Kind::integer, "0", 0, u32_max, false, nullptr,
     "mini-batches of a worker in a round; 0: those of local_epochs", field<&AlgorithmSettings::local_steps, Identity::yes>},
    {"algorithm", "local_epochs", Kind::number, "1", 0, 1e6, true, nullptr,
     "passes of a worker over its part of the data in a round", field<&AlgorithmSettings::local_epochs, Identity::yes>},
    {"algorithm", "outer_lr", Kind::number, "0.7", 0, 1e6, true, nullptr,
     "learning rate of the outer optimiser", field<&AlgorithmSettings::outer_lr, Identity::yes>},
    {"algorithm", "outer_momentum", Kind::number, "0.9", 0, 1, false, nullptr,
     "momentum of the outer optimiser", field<&AlgorithmSettings::outer_momentum, Identity::yes>, true},
    {"algorithm", "fraction", Kind::number, "0", 0, 1, false, nullptr,
     "share of a worker's part for the correction of the bias; 0: none",
     field<&AlgorithmSettings::fraction, Identity::yes>, true},
    {"algorithm", "mu", Kind::number, "0.1", 0, 1e30, false, nullptr,
     "pull towards the parameters that a round begins from", field<&AlgorithmSettings::mu, Identity::yes>},
    {"algorithm", "eta", Kind::number, "1", 0, 1e30, true, nullptr,
     "step along the gradient of all data", field<&AlgorithmSettings::eta, Identity::yes>},
    {"algorithm", "anchor", Kind::name, "\"full\"", 0, 0, false, anchors,
     "gradient that a round begins with: of the worker's part, or of as many samples as a mini-batch has",
     field<&AlgorithmSettings::anchor, Identity::yes>},
    {"algorithm", "anchor_fraction", Kind::number, "1", 0, 1, true, nullptr,
     "share of the worker's part that the anchor full takes, drawn anew each round",
     field<&AlgorithmSettings::anchor_fraction, Identity::yes>},
    {"algorithm", "rho", Kind::number, "1", 0, 1e30, true, nullptr,
     "weight of the consensus", field<&AlgorithmSettings::rho, Identity::yes>},
    {"algorithm", "validation", Kind::integer, "5000", 1, 1 << 24, false, nullptr,
     "training samples that no worker learns from, to choose models by",
     field<&AlgorithmSettings::validation, Identity::yes>},
    {"algorithm", "shrink", Kind::number, "0.001", 0, 1e30, true, nullptr,
     "pull of the weights of models towards equal ones", field<&AlgorithmSettings::shrink, Identity::yes>},
    {"algorithm", "allocation", Kind::name, "\"parts\"", 0, 0, false, allocations,
     "workers train on parts of their own, or share out a batch of all data in each round: eda equally, bsda by speed",
     field<&AlgorithmSettings::allocation, Identity::yes>},
    {"algorithm", "allocation_batches", Kind::integer, "10", 1, 1 << 20, false, nullptr,
     "batches that an epoch is cut in by eda and bsda, a round each", field<&AlgorithmSettings::allocation_batches, Identity::yes>},
    {"algorithm", "evaluate_workers", Kind::flag, "false", 0, 0, false, nullptr,
     "before an evaluation each node also tries on the test data what its workers have learnt alone: `workers` in its steps.jsonl",
     field<&AlgorithmSettings::evaluate_workers, Identity::no>},
    {"algorithm", "adapt", Kind::flag, "true", 0, 0, false, nullptr,
     "f and cr of each worker adapt themselves, as in jDE", field<&AlgorithmSettings::adapt, Identity::yes>},
    {"algorithm", "f", Kind::number, "0.5", 0, 2, false, nullptr,
     "factor of the difference of two models", field<&AlgorithmSettings::f, Identity::yes>},
    {"algorithm", "cr", Kind::number, "0.9", 0, 1, false, nullptr,
     "share of genes that come from the mutant", field<&AlgorithmSettings::cr, Identity::yes>},
    {"algorithm", "crossover", Kind::name, "\"parameter\"", 0, 0, false, genes,
     "what is exchanged as one gene", field<&AlgorithmSettings::crossover, Identity::yes>},
    {"algorithm", "distribute", Kind::name, "\"population\"", 0, 0, false, distributions,
     "each worker goes on from its individual, or all from the best", field<&AlgorithmSettings::distribute, Identity::yes>},
    {"algorithm", "solver", Kind::name, "\"sgd\"", 0, 0, false, solvers,
     "of local problems; exact: of the nets ridge and logistic, in double", field<&AlgorithmSettings::solver, Identity::yes>},
    {"algorithm", "updates", Kind::integer, "0", 0, 1 << 24, false, nullptr,
     "gradients in a round; 0: those of one pass over the data", field<&AlgorithmSettings::updates, Identity::yes>},
    {"algorithm", "stream", Kind::name, "\"parts\"", 0, 0, false, streams,
     "a worker's mini-batches come from its part of the data, or are its blocks of those of ssgd",
     field<&AlgorithmSettings::stream, Identity::yes>},
    {"algorithm", "lambda", Kind::name, "\"none\"", 0, 0, false, scalings,
     "how the staleness tau scales a gradient: 1, 1 / tau, beta^tau", field<&AlgorithmSettings::lambda, Identity::yes>},
    {"algorithm", "beta", Kind::number, "0.9", 0, 1, true, nullptr,
     "of lambda = exp", field<&AlgorithmSettings::beta, Identity::yes>},
    {"algorithm", "max_staleness", Kind::integer, "0", 0, 1 << 20, false, nullptr,
     "gradients that a worker may be ahead of the slowest; 0: any number",
     field<&AlgorithmSettings::max_staleness, Identity::yes>},
    {"algorithm", "replay", Kind::text, "\"\"", 0, 0, false, nullptr,
     "a replay.log of this job, whose order of gradients, or whose shares of bsda, the job repeats; empty: as they come",
     field<&AlgorithmSettings::replay, Identity::no>},
    {"algorithm", "collect", Kind::integer, "0", 0, blocks_max, false, nullptr,
     "gradients in an update; 0: as many as workers", field<&AlgorithmSettings::collect, Identity::yes>},
    {"algorithm", "pull", Kind::name, "\"wait\"", 0, 0, false, pulls,
     "a worker goes on with the parameters after the update of its gradient, or with the present ones",
     field<&AlgorithmSettings::pull, Identity::yes>},
    {"parallel", "stages", Kind::integer, "1", 1, ranks_max, false, auto_name,
     "runs of layers that the net is cut into; each node computes one of them.  auto: as `gradcastctl plan` marks it, the shortest step that "
     "fits into `memory` of every node; with survive, of at least two replicas where these fit.  The result is the same", field<&JobConfig::stages, Identity::no>},
    {"parallel", "cuts", Kind::texts, "[]", 0, 0, false, nullptr,
     "names of the layers that begin the second stage and the following ones; []: such that the slowest stage, with what it sends to others, "
     "is as fast as possible, by the times that layers take at the node of the submission", field<&JobConfig::cuts, Identity::no>},
    {"parallel", "schedule", Kind::name, "\"1f1b\"", 0, 0, false, stage_schedules,
     "order of a stage's passes: 1f1b keeps few blocks in memory, zero-bubble waits less, eager-1f1b and eager-zero-bubble keep up to twice as "
     "many blocks and do not wait for edges that take up to half as long as a block, gpipe keeps all blocks of a step",
     field<&JobConfig::stage_schedule, Identity::no>},
    {"parallel", "recompute", Kind::flag, "false", 0, 1, false, nullptr,
     "a stage with several micro-batches in flight keeps what comes in, and computes activations again before a backward pass: less memory, up "
     "to a third more computing.  Not with zero-bubble and eager-zero-bubble, whose weights passes come later and need the activations",
     field<&JobConfig::recompute, Identity::no>},
    {"parallel", "buddy", Kind::flag, "false", 0, 1, false, nullptr,
     "with survive and one replica: the node of a neighbouring stage keeps a stage's parameters and optimiser state too, and computes both "
     "stages when the stage's own node is lost", field<&JobConfig::buddy, Identity::no>},
    {"parallel", "slices", Kind::integer, "1", 1, slices_key.max, false, nullptr,
     "power of two: the outputs of the layers `sliced`, of embeddings the rows, are in so many slices, and sums over slices are a binary tree.  The result "
     "depends on it, and is the same for any nodes", field<&JobConfig::slices, Identity::changed>},
    {"parallel", "sliced", Kind::texts, "[]", 0, 0, false, nullptr,
     "names of the layers that are cut into `slices`: inner products, linear layers, convolutions whose slices have multiples of 16 channels, and "
     "embeddings, by rows; []: the inner products of at least 262144 weights, or, if there is none, the linear layers and embeddings of as many.  Layers "
     "of the same weights (weights_of) are named together", field<&JobConfig::sliced, Identity::no>},
    {"parallel", "slice_groups", Kind::integer, "1", 1, slices_key.max, false, auto_name,
     "power of two that divides `slices`: so many nodes share the slices of each stage, and each computes the stage's other layers.  auto: "
     "the number with the shortest step that fits, see `gradcastctl plan`.  The result is the same.  Not with buddy, balance and weights", field<&JobConfig::slice_groups, Identity::no>},
    {"parallel", "micro_batch", Kind::integer, "1", 1, blocks_max, false, nullptr,
     "blocks that pass the stages together, of which each lane of a node computes a share", field<&JobConfig::micro_batch, Identity::no>},
    {"transport", "kind", Kind::name, "\"auto\"", 0, 0, false, transport_names,
     "rdma: over RDMA if every node has it, else ip; ip: TCP and UDP multicast; tcp: streams only, each node gets a copy of its own",
     field<&JobConfig::transport, Identity::no>},
    {"transport", "protect", Kind::name, "\"auth\"", 0, 0, false, protections,
     "auth: packets carry a tag; encrypt: they are encrypted too; none: neither", field<&JobConfig::protect, Identity::no>},
    {"profile", "step", Kind::integer, "0", 0, u32_max, false, nullptr,
     "step of which each node writes profile.json, a Chrome trace, into the job's folder; 0: none",
     of_ssgd(field<&JobConfig::profile, Identity::no>)},
};
// clang-format on

const char* kept(std::string text) {
    static std::deque<std::string> texts;   // outlive the rows
    return texts.emplace_back(std::move(text)).c_str();
}

/// With the names of those that alone use a key before it; none: all do.
template <typename Names>
const char* help_of(const Names& names, const char* help) {
    return names.empty() ? help : kept(fmt::format("{}: {}", fmt::join(names, ", "), help));
}

/// The exchanges and algorithms that alone use the key; none: more than half of the algorithms do, whose list would say little.
std::vector<const char*> users(const JobOption& option) {
    std::vector<const char*> names;
    for (const ExchangeKind& kind : exchange_kinds())
        if (option.field.exchanges && kind.*option.field.exchanges) names.push_back(kind.name);
    for (const AlgorithmKind& kind : algorithm_kinds())
        if (option.field.of_algorithms ? option.taken_by(kind) : option.field.algorithms && kind.*option.field.algorithms)
            names.push_back(kind.name);
    if (names.size() > algorithm_kinds().size() / 2) names.clear();
    return names;
}

/// The keys of layers, as their kinds have them.
void add_layer_keys(std::vector<JobOption>& all) {
    for (const auto& [key, kinds] : layer_keys()) {
        constexpr Kind of_type[] = {Kind::integer, Kind::flag, Kind::number, Kind::name};
        const Kind kind = of_type[static_cast<size_t>(key->type)];
        const std::string value = layer_value_text(*key, key->value);
        all.push_back({.section = "net.layers",
                       .key = key->name,
                       .kind = kind,
                       .value = kept(kind == Kind::flag   ? key->value != 0 ? "true" : "false"
                                     : kind == Kind::name ? fmt::format("\"{}\"", value)
                                                          : value),
                       .min = key->min,
                       .max = key->max,
                       .above = false,
                       .names = key->words,
                       .help = help_of(kinds, key->help),
                       .field = {},
                       .below = key->below});
    }
}

/// The keys of optimisers or schedules, as their kinds have them.
void add_optimiser_keys(std::vector<JobOption>& all, const std::vector<OptimiserKeyUse>& uses) {
    constexpr Kind of_member[] = {Kind::number, Kind::integer, Kind::flag};
    for (const auto& [key, kinds] : uses) {
        JobOption row{.section = "optimiser",
                      .key = key->name,
                      .kind = of_member[key->member.index()],
                      .value = "",
                      .min = key->min,
                      .max = key->max,
                      .above = key->above,
                      .names = nullptr,
                      .help = help_of(kinds, key->help),
                      .field = {.identity = Identity::yes, .optimiser = key},
                      .below = key->below};
        row.value = kept(row.show({}));
        all.push_back(row);
    }
}

/// The default names: "conv1, fc1 (inner_product), ...".
const char* name_help(const char* help) {
    static std::string text = help;
    for (const char* between = ", as "; const LayerKind* kind : layer_kinds()) {
        const bool plain = kind->loss || std::string_view(kind->name).starts_with(kind->short_name);
        const std::string name = fmt::format("{}1{}", kind->short_name, plain ? "" : fmt::format(" ({})", kind->name));
        if (text.ends_with(name)) continue;
        text += between + name;
        between = ", ";
    }
    return text.c_str();
}

}   // namespace

std::span<const JobOption> job_options() {
    static const std::vector<JobOption> all = [] {
        std::vector<JobOption> made;
        for (const JobOption& row : rows) {
            JobOption& option = made.emplace_back(row);
            option.help = help_of(users(row), row.help);
            const std::string name = fmt::format("{}.{}", row.section, row.key);
            if (name == "net.layers.name") {
                option.help = name_help(row.help);
                add_layer_keys(made);
            }
            if (name == "optimiser.kind") add_optimiser_keys(made, optimiser_keys());
            if (name == "optimiser.schedule") add_optimiser_keys(made, schedule_keys());
        }
        return made;
    }();
    return all;
}

void JobOption::set(JobTarget target, const JobValue& is) const {
    if (field.set) field.set(target, is);
    else if (field.optimiser) std::visit([&](auto member) { put(target.job->optimiser.*member, is); }, field.optimiser->member);
    else if (kind == Kind::name) (void)layer_set(*target.layer, key, std::string_view(is.text));   // one of names()
    else target.layer->values.set(key, kind == Kind::number ? is.number : static_cast<double>(is.integer));
}

std::string JobOption::show(const JobConfig& job) const {
    if (field.show) return field.show(job);
    GC_ASSERT(field.optimiser);
    return std::visit([&](auto member) { return print(job.optimiser.*member); }, field.optimiser->member);
}

std::string JobOption::bound(double limit) const { return kind == Kind::duration ? fmt::format("{}s", limit) : fmt::format("{}", limit); }

bool JobOption::taken_by(const AlgorithmKind& algorithm) const { return !field.of_algorithms || algorithm.has(key); }

const JobOption* job_option(std::string_view name) {
    const size_t dot = name.rfind('.');
    for (const JobOption& option : job_options())
        if (dot != name.npos && name.substr(0, dot) == option.section && name.substr(dot + 1) == option.key) return &option;
    return nullptr;
}

std::vector<std::pair<std::string, std::string>> algorithm_settings(const JobConfig& config) {
    std::vector<std::pair<std::string, std::string>> all;
    const AlgorithmKind* kind;
    if (!algorithm_find(config.algorithm, &kind).ok()) return all;
    for (const JobOption& option : job_options())
        if (option.field.of_algorithms && option.taken_by(*kind)) all.emplace_back(option.key, option.show(config));
    return all;
}

std::vector<FileKey> job_keys() {
    std::vector<FileKey> keys;
    for (const JobOption& option : job_options()) {
        std::string range;
        if (option.names) range = fmt::format("{}", fmt::join(option.names(), ", "));
        if (option.kind == Kind::integer || option.kind == Kind::duration)
            range = fmt::format("{} .. {}{}{}", option.bound(option.min), option.bound(option.max), range.empty() ? "" : ", ", range);
        else if (option.kind == Kind::flag) range = "true, false";
        else if (option.kind == Kind::number) {
            const bool bounded = option.max < 1e6;   // others are beyond what anybody means
            if (option.above)
                range = bounded ? fmt::format("above {}, at most {}", option.min, option.max) : fmt::format("above {}", option.min);
            else if (!bounded) range = fmt::format("{} and more", option.min);
            else range = fmt::format("{} .. {}{}", option.min, option.below ? "below " : "", option.max);
        }
        keys.push_back({option.of_layers() ? fmt::format("[[{}]]", option.section) : fmt::format("[{}]", option.section), option.key,
                        option.value, option.help, range});
    }
    return keys;
}

std::string job_help() {
    std::string text = "The job file, in TOML: sections, keys with their defaults, and what is allowed.\n", section;
    for (const FileKey& each : job_keys()) {
        if (each.section != section) text += fmt::format("\n{}\n", section = each.section);
        text += fmt::format("    {:<28}{}{}\n", fmt::format("{} = {}", each.key, each.value.empty() ? "…" : each.value), each.help,
                            each.range.empty() ? "" : fmt::format(" ({})", each.range));
    }
    return text;
}

}   // namespace gradcast
