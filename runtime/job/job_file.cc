#include "runtime/job/job_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "algos/algorithm.h"
#include "runtime/core/fd.h"
#include "runtime/core/limits.h"
#include "runtime/core/nearest.h"
#include "runtime/core/toml.h"
#include "runtime/job/cuda_module.h"
#include "transport/exchange/exchange.h"

namespace gradcast {
namespace {

constexpr uint64_t job_bytes_max = 1 << 20;

enum class Kind : uint8_t { text, name, integer, number, duration, flag, numbers };   // name: one of Option::names()

struct Value {
    std::string text;
    int64_t integer = 0;
    double number = 0;   // of a duration: seconds
    std::vector<double> numbers = {};
};

/// Where values go: a layer is filled in and then appended to the job's.
struct Target {
    JobConfig* job;
    LayerSpec* layer;
};

using Names = std::vector<std::string> (*)();

/// One key of the file.  This table makes the parser, its messages and job_help().
struct Option {
    const char* section;
    const char* key;
    Kind kind;
    const char* value;   // what it is when left out, as written in the file; "" where there is none
    double min, max;     // integer, number; duration in seconds
    bool above;          // min itself is not allowed
    Names names;
    const char* help;
    void (*set)(Target, const Value&);                 // null: checked only
    std::string (*show)(const JobConfig&) = nullptr;   // of the keys that belong to algorithms
};

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
std::vector<std::string> devices() { return {device_names().begin(), device_names().end()}; }
std::vector<std::string> kinds_of_layers() { return {layer_kinds().begin(), layer_kinds().end()}; }
std::vector<std::string> optimiser_names() { return {optimiser_kinds().begin(), optimiser_kinds().end()}; }
std::vector<std::string> schedule_names() { return {schedule_kinds().begin(), schedule_kinds().end()}; }
std::vector<std::string> transport_names() { return {"auto", "rdma", "ip", "tcp"}; }
std::vector<std::string> anchors() { return {"full", "batch"}; }
std::vector<std::string> genes() { return {"parameter", "layer"}; }
std::vector<std::string> distributions() { return {"population", "best"}; }
std::vector<std::string> solvers() { return {"sgd", "exact"}; }
std::vector<std::string> scalings() { return {"none", "inverse", "exp"}; }
std::vector<std::string> allocations() { return {"parts", "eda", "bsda"}; }
std::vector<std::string> streams() { return {"parts", "whole"}; }
std::vector<std::string> pulls() { return {"wait", "now"}; }
std::vector<std::string> protect_names() { return {"auth", "encrypt", "none"}; }

constexpr double u32_max = 4294967295.0;

void put(bool& to, const Value& value) { to = value.integer != 0; }
void put(uint32_t& to, const Value& value) { to = static_cast<uint32_t>(value.integer); }
void put(uint64_t& to, const Value& value) { to = static_cast<uint64_t>(value.integer); }
void put(double& to, const Value& value) { to = value.number; }
void put(std::string& to, const Value& value) { to = value.text; }
void put(std::vector<double>& to, const Value& value) { to = value.numbers; }
template <typename T>
T& at(Target target, T JobConfig::*member) {
    return target.job->*member;
}
template <typename T>
T& at(Target target, T OptimiserConfig::*member) {
    return target.job->optimiser.*member;
}
template <typename T>
T& at(Target target, T AlgorithmSettings::*member) {
    return target.job->settings.*member;
}
template <typename T>
T& at(Target target, T LayerSpec::*member) {
    return target.layer->*member;
}
template <auto member>
void set(Target target, const Value& value) {
    put(at(target, member), value);
}
template <auto member>
std::string show(const JobConfig& job) {
    return fmt::format("{}", job.settings.*member);
}

constexpr Option options[] = {
    {"job", "name", Kind::text, "\"job\"", 0, 0, false, nullptr, "at most 64 letters, digits, '.', '_' and '-'", set<&JobConfig::name>},
    {"job", "seed", Kind::integer, "1", 0, 0x1p53, false, nullptr, "of the initial weights, the order of samples, augmentation and dropout",
     set<&JobConfig::seed>},
    {"job", "epochs", Kind::integer, "", 1, 1e6, false, nullptr, "passes over the training data; or", set<&JobConfig::epochs>},
    {"job", "steps", Kind::integer, "", 1, u32_max, false, nullptr, "number of steps, one mini-batch each", set<&JobConfig::steps>},
    {"job", "evaluate", Kind::integer, "0", 0, u32_max, false, nullptr, "steps between two evaluations; 0: after each epoch",
     set<&JobConfig::evaluate>},
    {"job", "stop_at", Kind::number, "0", 0, 1, false, nullptr, "the job ends when an evaluation reaches this accuracy; 0: never",
     set<&JobConfig::stop_at>},
    {"job", "checkpoint_every", Kind::integer, "0", 0, u32_max, false, nullptr,
     "steps between two checkpoints, from which `gradcastctl resume` goes on; 0: after each epoch, about 100 at most",
     set<&JobConfig::checkpoint_every>},
    {"job", "checkpoint_keep", Kind::integer, "2", 0, 1000000, false, nullptr,
     "newest checkpoints that each node keeps; 0: none is written", set<&JobConfig::checkpoint_keep>},
    {"job", "audit_every", Kind::integer, "0", 0, u32_max, false, nullptr,
     "every so many checkpoints one is kept for `gradcastctl verify`; 0: about 20 in the job", set<&JobConfig::audit_every>},
    {"job", "batch", Kind::integer, "128", 1, 1 << 20, false, nullptr, "samples in a mini-batch", set<&JobConfig::batch>},
    {"job", "blocks", Kind::integer, "8", 1, blocks_max, false, nullptr,
     "parts of a mini-batch that nodes share out, at most its samples; the result depends on it, and not on the number of nodes",
     set<&JobConfig::blocks>},
    {"job", "deadline", Kind::duration, "\"30s\"", 4, 86400, false, nullptr,
     "the longest stall that is tolerated; every time-out is derived from it",
     [](Target target, const Value& value) { target.job->deadline_us = static_cast<uint64_t>(std::llrint(value.number * 1e6)); }},
    {"job", "survive", Kind::flag, "false", 0, 1, false, nullptr,
     "the job goes on without nodes that are lost, while more than half of the nodes remain, or exactly half with the first one",
     set<&JobConfig::survive>},
    {"job", "elastic", Kind::flag, "false", 0, 1, false, nullptr,
     "with survive: other nodes of `members` in gradcastd.toml that are alive and not drained join the job by themselves while it runs",
     set<&JobConfig::elastic>},
    {"job", "min_nodes", Kind::integer, "0", 0, ranks_max, false, nullptr,
     "with survive: where fewer nodes are left, each writes a checkpoint and the job ends; 0: half of those that it began with",
     set<&JobConfig::min_nodes>},
    {"job", "tensorboard", Kind::flag, "false", 0, 1, false, nullptr,
     "each node writes loss, accuracy, throughput and bytes into its folder of the job as an event file of TensorBoard",
     set<&JobConfig::tensorboard>},
    {"data", "train", Kind::text, "", 0, 0, false, nullptr,
     "pattern of the shards to train on, or a manifest; a relative path starts at this file's folder", set<&JobConfig::train>},
    {"data", "test", Kind::text, "\"\"", 0, 0, false, nullptr, "pattern of the shards to evaluate on, or a manifest; empty: none",
     set<&JobConfig::test>},
    {"data", "classes", Kind::integer, "0", 0, 65536, false, nullptr,
     "only samples with labels below this are used, and the net has as many outputs; 0: all", set<&JobConfig::classes>},
    {"data", "crop", Kind::integer, "0", 0, 1024, false, nullptr,
     "augmentation: zeros added on each side of a training sample, before a random part of its own size is cut out", set<&JobConfig::crop>},
    {"data", "flip", Kind::flag, "false", 0, 1, false, nullptr,
     "augmentation: half of the training samples, drawn anew in each epoch, are mirrored left to right", set<&JobConfig::flip>},
    {"net", "preset", Kind::name, "", 0, 0, false, presets, "a net by name, or [[net.layers]]", set<&JobConfig::preset>},
    {"net", "pad", Kind::integer, "0", 0, 1024, false, nullptr, "zeros added on each side of a sample, with [[net.layers]]",
     set<&JobConfig::net_pad>},
    {"net", "precision", Kind::name, "\"f32\"", 0, 0, false, precisions,
     "number format of products in conv and inner_product; bf16 needs CPUs with AVX512-BF16 or AMX, tf32 a GPU",
     [](Target target, const Value& value) { target.job->precision = precision_of(value.text); }},
    {"net", "device", Kind::name, "\"cpu\"", 0, 0, false, devices,
     "cuda: all GPUs of each node (CUDA_VISIBLE_DEVICES); auto: cuda where nodes have GPUs", set<&JobConfig::device>},
    {"net", "deterministic", Kind::flag, "true", 0, 1, false, nullptr,
     "cuda: false takes the fastest kernels, whose bits may differ from run to run", set<&JobConfig::deterministic>},
    {"net", "start", Kind::text, "\"\"", 0, 0, false, nullptr,
     "safetensors file with the initial parameters, as gradcastctl export or PyTorch writes it; empty: drawn with the seed",
     set<&JobConfig::start>},
    {"net.layers", "kind", Kind::name, "", 0, 0, false, kinds_of_layers, "kind of the layer", set<&LayerSpec::kind>},
    {"net.layers", "name", Kind::text, "\"\"", 0, 0, false, nullptr, "name in messages; empty: kind and number", set<&LayerSpec::name>},
    {"net.layers", "outputs", Kind::integer, "0", 0, 1 << 24, false, nullptr, "channels or features (conv, inner_product)",
     set<&LayerSpec::outputs>},
    {"net.layers", "kernel", Kind::integer, "0", 0, 1024, false, nullptr, "side of the window (conv, max_pool, average_pool)",
     set<&LayerSpec::kernel>},
    {"net.layers", "stride", Kind::integer, "1", 0, 1024, false, nullptr, "step of the window; 0 in pooling: its kernel",
     set<&LayerSpec::stride>},
    {"net.layers", "pad", Kind::integer, "0", 0, 1024, false, nullptr, "zeros added on each side", set<&LayerSpec::pad>},
    {"net.layers", "ceil", Kind::flag, "false", 0, 0, false, nullptr, "pooling: a last window that is partly outside counts too",
     set<&LayerSpec::ceil>},
    {"net.layers", "bias", Kind::flag, "true", 0, 0, false, nullptr, "conv, inner_product: with a bias", set<&LayerSpec::bias>},
    {"net.layers", "rate", Kind::number, "0", 0, 1, false, nullptr, "dropout: the share that becomes 0, below 1", set<&LayerSpec::rate>},
    {"net.layers", "from", Kind::text, "\"\"", 0, 0, false, nullptr,
     "name of an earlier layer: add adds its output, other kinds take it instead of that of the layer before", set<&LayerSpec::from>},
    {"optimiser", "kind", Kind::name, "\"sgd\"", 0, 0, false, optimiser_names, "update rule", set<&OptimiserConfig::kind>},
    {"optimiser", "lr", Kind::number, "0.05", 0, 1e30, true, nullptr, "learning rate", set<&OptimiserConfig::lr>},
    {"optimiser", "momentum", Kind::number, "0", 0, 1, false, nullptr, "factor of the last update", set<&OptimiserConfig::momentum>},
    {"optimiser", "nesterov", Kind::flag, "false", 0, 0, false, nullptr, "sgd: Nesterov's momentum", set<&OptimiserConfig::nesterov>},
    {"optimiser", "weight_decay", Kind::number, "0", 0, 1e30, false, nullptr, "factor of the weights that is added to the gradient",
     set<&OptimiserConfig::weight_decay>},
    {"optimiser", "beta1", Kind::number, "0.9", 0, 1, false, nullptr, "adam: decay rate of the first moment", set<&OptimiserConfig::beta1>},
    {"optimiser", "beta2", Kind::number, "0.999", 0, 1, false, nullptr, "adam: decay rate of the second moment",
     set<&OptimiserConfig::beta2>},
    {"optimiser", "epsilon", Kind::number, "1e-8", 0, 1e30, true, nullptr, "adam: added to the root of the second moment",
     set<&OptimiserConfig::epsilon>},
    {"optimiser", "schedule", Kind::name, "\"constant\"", 0, 0, false, schedule_names, "how lr changes over the job",
     set<&OptimiserConfig::schedule>},
    {"optimiser", "warm_up", Kind::integer, "0", 0, u32_max, false, nullptr,
     "first steps, in which lr grows linearly; goes with every schedule", set<&OptimiserConfig::warm_up>},
    {"optimiser", "decay_every", Kind::integer, "0", 0, u32_max, false, nullptr, "step: steps after which lr is multiplied by decay again",
     set<&OptimiserConfig::decay_every>},
    {"optimiser", "decay", Kind::number, "0.1", 0, 1e30, true, nullptr, "step: factor of lr, see decay_every",
     set<&OptimiserConfig::decay>},
    {"optimiser", "lr_end", Kind::number, "0", 0, 1e30, false, nullptr, "cosine: lr after the last step", set<&OptimiserConfig::lr_end>},
    {"algorithm", "kind", Kind::name, "\"ssgd\"", 0, 0, false, algorithm_names, "training algorithm", set<&JobConfig::algorithm>},
    {"algorithm", "exchange", Kind::name, "\"ring\"", 0, 0, false, exchange_names,
     "how gradients are summed; auto: the one with the shortest predicted step, after 6 measured steps; of asgd, softsync and serial: "
     "multicast, by which what goes to all nodes goes once",
     set<&JobConfig::exchange>},
    {"algorithm", "m", Kind::integer, "2", 1, ranks_max, false, nullptr, "coded exchanges: packets are shorter by this factor",
     set<&JobConfig::m>},
    {"algorithm", "s", Kind::integer, "0", 0, ranks_max, false, nullptr, "coded exchanges: number of nodes that may be late or dead",
     set<&JobConfig::s>},
    {"algorithm", "r", Kind::integer, "2", 1, ranks_max, false, nullptr, "cssgd: number of nodes that compute the same block",
     set<&JobConfig::r>},
    {"algorithm", "weights", Kind::numbers, "[]", 0, 1e30, true, nullptr,
     "share of the blocks that each node computes, in the order of the nodes, as [1, 2, 1]; none: equal shares; not where the exchange codes",
     set<&JobConfig::weights>},
    {"algorithm", "balance", Kind::flag, "false", 0, 1, false, nullptr,
     "shares follow the measured speed of the nodes; ring, unicast, multicast and ps, with several blocks a node", set<&JobConfig::balance>},
    {"algorithm", "servers", Kind::integer, "1", 1, ranks_max, false, nullptr, "ps, asgd, softsync: number of nodes that are servers, each with a part of the parameters",
     set<&JobConfig::servers>},
    {"algorithm", "workers", Kind::integer, "0", 0, blocks_max, false, nullptr, "that learn alone, wherever they are; 0: one a node",
     set<&AlgorithmSettings::workers>, show<&AlgorithmSettings::workers>},
    {"algorithm", "local_steps", Kind::integer, "0", 0, u32_max, false, nullptr,
     "mini-batches of a worker in a round; 0: those of local_epochs", set<&AlgorithmSettings::local_steps>,
     show<&AlgorithmSettings::local_steps>},
    {"algorithm", "local_epochs", Kind::number, "1", 0, 1e6, true, nullptr, "passes of a worker over its part of the data in a round",
     set<&AlgorithmSettings::local_epochs>, show<&AlgorithmSettings::local_epochs>},
    {"algorithm", "outer_lr", Kind::number, "0.7", 0, 1e6, true, nullptr, "diloco: learning rate of the outer optimiser", set<&AlgorithmSettings::outer_lr>, show<&AlgorithmSettings::outer_lr>},
    {"algorithm", "outer_momentum", Kind::number, "0.9", 0, 1, false, nullptr, "diloco: momentum of the outer optimiser, below 1", set<&AlgorithmSettings::outer_momentum>, show<&AlgorithmSettings::outer_momentum>},
    {"algorithm", "fraction", Kind::number, "0", 0, 1, false, nullptr, "oneshot: share of a worker's part for the correction of the bias, below 1; 0: none", set<&AlgorithmSettings::fraction>, show<&AlgorithmSettings::fraction>},
    {"algorithm", "mu", Kind::number, "0.1", 0, 1e30, false, nullptr, "dane, fedprox: pull towards the parameters that a round begins from", set<&AlgorithmSettings::mu>, show<&AlgorithmSettings::mu>},
    {"algorithm", "eta", Kind::number, "1", 0, 1e30, true, nullptr, "dane: step along the gradient of all data", set<&AlgorithmSettings::eta>, show<&AlgorithmSettings::eta>},
    {"algorithm", "anchor", Kind::name, "\"full\"", 0, 0, false, anchors, "dane: gradient that a round begins with: of the worker's part, or of as many samples as a mini-batch has", set<&AlgorithmSettings::anchor>, show<&AlgorithmSettings::anchor>},
    {"algorithm", "anchor_fraction", Kind::number, "1", 0, 1, true, nullptr, "dane: share of the worker's part that the anchor full takes, drawn anew each round", set<&AlgorithmSettings::anchor_fraction>, show<&AlgorithmSettings::anchor_fraction>},
    {"algorithm", "rho", Kind::number, "1", 0, 1e30, true, nullptr, "admm: weight of the consensus", set<&AlgorithmSettings::rho>, show<&AlgorithmSettings::rho>},
    {"algorithm", "validation", Kind::integer, "5000", 1, 1 << 24, false, nullptr, "de, soup, rg: training samples that no worker learns from, to choose models by", set<&AlgorithmSettings::validation>, show<&AlgorithmSettings::validation>},
    {"algorithm", "shrink", Kind::number, "0.001", 0, 1e30, true, nullptr, "rg: pull of the weights of models towards equal ones", set<&AlgorithmSettings::shrink>, show<&AlgorithmSettings::shrink>},
    {"algorithm", "allocation", Kind::name, "\"parts\"", 0, 0, false, allocations, "ma, de, soup, rg: workers train on parts of their own, or share out a batch of all data in each round: eda equally, bsda by speed", set<&AlgorithmSettings::allocation>, show<&AlgorithmSettings::allocation>},
    {"algorithm", "allocation_batches", Kind::integer, "10", 1, 1 << 20, false, nullptr, "eda, bsda: batches that an epoch is cut in, a round each", set<&AlgorithmSettings::allocation_batches>, show<&AlgorithmSettings::allocation_batches>},
    {"algorithm", "evaluate_workers", Kind::flag, "false", 0, 0, false, nullptr, "before an evaluation each node also tries on the test data what its workers have learnt alone: `workers` in its steps.jsonl", set<&AlgorithmSettings::evaluate_workers>, show<&AlgorithmSettings::evaluate_workers>},
    {"algorithm", "adapt", Kind::flag, "true", 0, 0, false, nullptr, "de: f and cr of each worker adapt themselves, as in jDE", set<&AlgorithmSettings::adapt>, show<&AlgorithmSettings::adapt>},
    {"algorithm", "f", Kind::number, "0.5", 0, 2, false, nullptr, "de: factor of the difference of two models", set<&AlgorithmSettings::f>, show<&AlgorithmSettings::f>},
    {"algorithm", "cr", Kind::number, "0.9", 0, 1, false, nullptr, "de: share of genes that come from the mutant", set<&AlgorithmSettings::cr>, show<&AlgorithmSettings::cr>},
    {"algorithm", "crossover", Kind::name, "\"parameter\"", 0, 0, false, genes, "de: what is exchanged as one gene", set<&AlgorithmSettings::crossover>, show<&AlgorithmSettings::crossover>},
    {"algorithm", "distribute", Kind::name, "\"population\"", 0, 0, false, distributions, "de: each worker goes on from its individual, or all from the best", set<&AlgorithmSettings::distribute>, show<&AlgorithmSettings::distribute>},
    {"algorithm", "solver", Kind::name, "\"sgd\"", 0, 0, false, solvers, "dane, admm: of local problems; exact: of the nets ridge and logistic, in double", set<&AlgorithmSettings::solver>, show<&AlgorithmSettings::solver>},
    {"algorithm", "updates", Kind::integer, "0", 0, 1 << 24, false, nullptr, "asgd, softsync: gradients in a round; 0: those of one pass over the data", set<&AlgorithmSettings::updates>, show<&AlgorithmSettings::updates>},
    {"algorithm", "stream", Kind::name, "\"parts\"", 0, 0, false, streams, "asgd, softsync: a worker's mini-batches come from its part of the data, or are its blocks of those of ssgd", set<&AlgorithmSettings::stream>, show<&AlgorithmSettings::stream>},
    {"algorithm", "lambda", Kind::name, "\"none\"", 0, 0, false, scalings, "asgd, softsync: how the staleness tau scales a gradient: 1, 1 / tau, beta^tau", set<&AlgorithmSettings::lambda>, show<&AlgorithmSettings::lambda>},
    {"algorithm", "beta", Kind::number, "0.9", 0, 1, true, nullptr, "asgd, softsync: of lambda = exp", set<&AlgorithmSettings::beta>, show<&AlgorithmSettings::beta>},
    {"algorithm", "max_staleness", Kind::integer, "0", 0, 1 << 20, false, nullptr, "asgd, softsync: gradients that a worker may be ahead of the slowest; 0: any number", set<&AlgorithmSettings::max_staleness>, show<&AlgorithmSettings::max_staleness>},
    {"algorithm", "replay", Kind::text, "\"\"", 0, 0, false, nullptr, "asgd, softsync, bsda: a replay.log of this job, whose order of gradients or shares are repeated; empty: as they come", set<&AlgorithmSettings::replay>, show<&AlgorithmSettings::replay>},
    {"algorithm", "collect", Kind::integer, "0", 0, blocks_max, false, nullptr, "softsync: gradients in an update; 0: as many as workers", set<&AlgorithmSettings::collect>, show<&AlgorithmSettings::collect>},
    {"algorithm", "pull", Kind::name, "\"wait\"", 0, 0, false, pulls, "softsync: a worker goes on with the parameters after the update of its gradient, or with the present ones", set<&AlgorithmSettings::pull>, show<&AlgorithmSettings::pull>},
    {"algorithm", "quantiser", Kind::name, "\"auto32\"", 0, 0, false, quantiser_names, "how gradients become integers",
     [](Target target, const Value& value) { (void)quantiser_parse(value.text, &target.job->quantiser); }},   // the name has been checked
    {"transport", "kind", Kind::name, "\"auto\"", 0, 0, false, transport_names,
     "rdma: over RDMA if every node has it, else ip; ip: TCP and UDP multicast; tcp: streams only, each node gets a copy of its own", set<&JobConfig::transport>},
    {"transport", "protect", Kind::name, "\"auth\"", 0, 0, false, protect_names, "auth: packets carry a tag; encrypt: they are encrypted too; none: neither",
     [](Target target, const Value& value) {
         target.job->protect = value.text == "auth" ? Protect::auth : value.text == "encrypt" ? Protect::encrypt : Protect::none;
     }},
    {"profile", "step", Kind::integer, "0", 0, u32_max, false, nullptr,
     "step of which each node writes profile.json, a Chrome trace, into the job's folder; 0: none", set<&JobConfig::profile>},
};

std::string joined(const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, ", ")); }

std::string shown(std::string_view text) { return fmt::format("\"{}\"", one_line(text)); }

/// One of the keys that not all algorithms have; `word`: with a space behind it.
bool takes(const AlgorithmKind& kind, const std::string& word) {
    return (" " + std::string(kind.keys)).find(" " + word) != std::string::npos;
}

constexpr char plain_rule[] = "is not 1 to 64 letters, digits, '.', '_' and '-' that begin with a letter, a digit or '_'";
bool plain(std::string_view name) {
    if (name.empty() || name.size() > 64 || name[0] == '.' || name[0] == '-') return false;
    return std::all_of(name.begin(), name.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
    });
}

std::string bound(const Option& option, double value) {
    return option.kind == Kind::duration ? fmt::format("{}s", value) : fmt::format("{}", value);
}

/// "30s", "500ms", "2min" -> seconds.
std::optional<double> duration(std::string_view text) {
    double number;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
    if (error != std::errc{}) return {};
    std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
    for (auto [name, seconds] : {std::pair{"ms", 1e-3}, {"s", 1.0}, {"min", 60.0}, {"h", 3600.0}})
        if (unit == name) return number * seconds;
    return {};
}

const char* type_name(const toml::node& node) {
    switch (node.type()) {
        case toml::node_type::none: return "nothing";
        case toml::node_type::table: return "a section";
        case toml::node_type::array: return "an array";
        case toml::node_type::string: return "text";
        case toml::node_type::integer: return "a whole number";
        case toml::node_type::floating_point: return "a number";
        case toml::node_type::boolean: return "true or false";
        case toml::node_type::date:
        case toml::node_type::time:
        case toml::node_type::date_time: return "a date";
    }
    return "?";
}

class Parser {
public:
    Parser(const std::string& path, const std::string& base, JobConfig& job, std::vector<JobMistake>& mistakes)
        : path_(path), base_(base), job_(job), mistakes_(mistakes) {}

    void mistake(uint32_t line, std::string_view key, std::string_view text) {
        mistakes_.push_back({line, fmt::format("{}:{}: {}{}{}", path_, line, key, key.empty() ? "" : ": ", text)});
    }

    void file(const toml::table& root) {
        std::vector<std::string> sections;
        for (const Option& option : options)
            if (std::string_view name = option.section; name != "net.layers" && (sections.empty() || sections.back() != name))
                sections.emplace_back(name);
        for (auto&& [key, node] : root) {
            if (std::find(sections.begin(), sections.end(), key.str()) == sections.end()) unknown(node, "", key.str(), sections);
            else if (const toml::table* table = node.as_table()) section(std::string(key.str()), *table, {&job_, nullptr});
            else mistake(line_of(node), key.str(), fmt::format("is {}, not a section: write [{}]", type_name(node), key.str()));
        }
        whole(root);
    }

private:
    static uint32_t line_of(const toml::node& node) { return static_cast<uint32_t>(node.source().begin.line); }

    void unknown(const toml::node& node, const std::string& section, std::string_view key, const std::vector<std::string>& names) {
        std::string near = nearest(key, names), full = section.empty() ? std::string() : section + ".";
        mistake(line_of(node), full + one_line(key),
                fmt::format("is not known: {}", near.empty() ? joined(names) : fmt::format("did you mean {}?", near)));
    }

    void section(const std::string& name, const toml::table& table, Target target) {
        std::vector<std::string> keys;
        for (const Option& option : options)
            if (name == option.section) keys.emplace_back(option.key);
        if (name == "net") keys.emplace_back("layers");
        for (auto&& [key, node] : table) {
            auto at = std::find_if(std::begin(options), std::end(options),
                                   [&key = key, &name](const Option& option) { return name == option.section && key.str() == option.key; });
            if (at != std::end(options)) value(*at, node, target);
            else if (name == "net" && key.str() == "layers") layers(node);
            else unknown(node, name, key.str(), keys);
        }
    }

    void layers(const toml::node& node) {
        const toml::array* array = node.as_array();
        if (!array || !array->is_homogeneous(toml::node_type::table))   // an empty one is not
            return mistake(
                line_of(node), "net.layers",
                fmt::format("is {}: write one [[net.layers]] for each layer", array ? "not a list of sections" : type_name(node)));
        for (const toml::node& each : *array) {
            LayerSpec layer;
            section("net.layers", *each.as_table(), {&job_, &layer});
            for (auto [key, name] : {std::pair{"net.layers.name", &layer.name}, {"net.layers.from", &layer.from}})
                if (!name->empty() && !plain(*name)) mistake(line_of(each), key, fmt::format("{} {}", shown(*name), plain_rule));
            if (layer.rate == 1) mistake(line_of(each), "net.layers.rate", "1 is not below 1");
            if (!each.as_table()->contains("kind"))
                mistake(line_of(each), "net.layers.kind", fmt::format("is missing: {}", joined(kinds_of_layers())));
            job_.layers.push_back(std::move(layer));
        }
    }

    void value(const Option& option, const toml::node& node, Target target) {
        std::string key = fmt::format("{}.{}", option.section, option.key);
        auto wrong = [&](const std::string& text) { mistake(line_of(node), key, text); };
        Value value;
        switch (option.kind) {
            case Kind::text:
            case Kind::name:
            case Kind::duration:
                if (!node.is_string())
                    return wrong(
                        fmt::format("is {}, not text{}", type_name(node), option.kind == Kind::duration ? ", as \"30s\"" : " in quotes"));
                value.text = **node.as_string();
                break;
            case Kind::integer:
                if (!node.is_integer()) return wrong(fmt::format("is {}, not a whole number", type_name(node)));
                value.integer = **node.as_integer();
                value.number = static_cast<double>(value.integer);
                break;
            case Kind::flag:
                if (!node.is_boolean()) return wrong(fmt::format("is {}, not true or false", type_name(node)));
                value.integer = **node.as_boolean();
                break;
            case Kind::numbers: {
                const toml::array* array = node.as_array();
                if (!array) return wrong(fmt::format("is {}, not a list of numbers, as [1, 2, 1]", type_name(node)));
                for (const toml::node& each : *array) {
                    if (!each.is_number()) return wrong(fmt::format("holds {}, not numbers alone", type_name(each)));
                    value.numbers.push_back(*each.value<double>());
                    if (!(value.numbers.back() > option.min && value.numbers.back() <= option.max))
                        return wrong(fmt::format("{} is not above {}", value.numbers.back(), bound(option, option.min)));
                }
                break;
            }
            case Kind::number:
                if (!node.is_number()) return wrong(fmt::format("is {}, not a number", type_name(node)));
                value.number = *node.value<double>();
                break;
        }
        if (option.kind == Kind::duration) {
            std::optional<double> seconds = duration(value.text);
            if (!seconds) return wrong(fmt::format("{} is not a duration: a number and ms, s, min or h, as \"30s\"", shown(value.text)));
            value.number = *seconds;
        }
        if (option.kind == Kind::name) {
            std::vector<std::string> names = option.names();
            if (std::find(names.begin(), names.end(), value.text) == names.end()) {
                std::string near = nearest(value.text, names);
                return wrong(fmt::format("{} is not one of {}{}", shown(value.text), joined(names),
                                         near.empty() ? "" : fmt::format(" (did you mean {}?)", near)));
            }
        }
        if (option.kind == Kind::integer || option.kind == Kind::number || option.kind == Kind::duration) {
            std::string is = option.kind == Kind::duration  ? value.text
                             : option.kind == Kind::integer ? fmt::format("{}", value.integer)
                                                            : fmt::format("{}", value.number);
            if (option.above ? !(value.number > option.min) : !(value.number >= option.min))
                return wrong(fmt::format("{} is {} {}", is, option.above ? "not above" : "below", bound(option, option.min)));
            if (!(value.number <= option.max)) return wrong(fmt::format("{} is above {}", is, bound(option, option.max)));
        }
        if (option.kind == Kind::text && value.text.find('\0') != std::string::npos) return wrong("holds a zero byte");
        if (option.set) option.set(target, value);
    }

    /// What no single key can tell.
    void whole(const toml::table& root) {
        auto line = [&](std::string_view dotted) {   // of the key, else of its section, else the first
            toml::node_view<const toml::node> node = root.at_path(dotted);
            if (!node) node = root.at_path(dotted.substr(0, dotted.find('.')));
            return node ? line_of(*node.node()) : 1;
        };
        auto has = [&](std::string_view dotted) { return static_cast<bool>(root.at_path(dotted)); };

        if (has("job.epochs") && has("job.steps")) mistake(line("job.steps"), "job.steps", "either epochs or steps, not both");
        if (!has("job.epochs") && !has("job.steps")) mistake(line("job.epochs"), "job.epochs", "is missing: either epochs or steps");
        if (job_.blocks > job_.batch)
            mistake(line("job.blocks"), "job.blocks",
                    fmt::format("{} blocks are more than the {} samples of a mini-batch (job.batch)", job_.blocks, job_.batch));
        if (!plain(job_.name)) mistake(line("job.name"), "job.name", fmt::format("{} {}", shown(job_.name), plain_rule));

        if (!has("data.train"))
            mistake(line("data.train"), "data.train", "is missing: a pattern of shards, as \"fashion-mnist/train*.h5\"");
        else if (job_.train.empty() && root.at_path("data.train").is_string()) mistake(line("data.train"), "data.train", "is empty");
        for (const char* key : {"job.evaluate", "job.stop_at"})
            if (has(key) && job_.test.empty() && (job_.evaluate > 0 || job_.stop_at > 0))
                mistake(line(key), key, "there is nothing to evaluate on: data.test is missing");
        for (std::string* path : {&job_.train, &job_.test, &job_.start, &job_.settings.replay})
            if (!path->empty() && path->front() != '/') *path = base_ + '/' + *path;

        if (has("net.preset") && has("net.layers")) mistake(line("net.layers"), "net.layers", "either a preset or layers, not both");
        if (!has("net.preset") && !has("net.layers"))
            mistake(line("net.preset"), "net.preset", fmt::format("is missing: {}, or [[net.layers]]", joined(presets())));
        if (has("net.preset") && has("net.pad")) mistake(line("net.pad"), "net.pad", "a preset has its own; it goes with [[net.layers]]");
        for (auto [key, given, value] :
             {std::tuple{"net.precision", job_.precision == Precision::tf32, "tf32"}, {"net.deterministic", !job_.deterministic, "false"}})
            if (given && job_.device == "cpu")
                mistake(line(key), key, fmt::format("{} is for GPUs: it goes with device = \"cuda\"", value));
        const OptimiserConfig& optimiser = job_.optimiser;
        for (auto [key, number] : {std::pair{"optimiser.momentum", optimiser.momentum},
                                   {"optimiser.beta1", optimiser.beta1},
                                   {"optimiser.beta2", optimiser.beta2},
                                   {"algorithm.outer_momentum", job_.settings.outer_momentum},
                                   {"algorithm.fraction", job_.settings.fraction}})
            if (number == 1) mistake(line(key), key, "1 is not below 1");
        if (optimiser.nesterov && (optimiser.kind != "sgd" || optimiser.momentum == 0))
            mistake(line("optimiser.nesterov"), "optimiser.nesterov", "goes with sgd and a momentum above 0");
        const OptimiserConfig none;
        for (auto [key, given, of, is, user] :
             {std::tuple{"optimiser.momentum", optimiser.momentum != none.momentum, "kind", &optimiser.kind, "sgd"},
              {"optimiser.beta1", optimiser.beta1 != none.beta1, "kind", &optimiser.kind, "adam"},
              {"optimiser.beta2", optimiser.beta2 != none.beta2, "kind", &optimiser.kind, "adam"},
              {"optimiser.epsilon", optimiser.epsilon != none.epsilon, "kind", &optimiser.kind, "adam"},
              {"optimiser.decay_every", optimiser.decay_every != none.decay_every, "schedule", &optimiser.schedule, "step"},
              {"optimiser.decay", optimiser.decay != none.decay, "schedule", &optimiser.schedule, "step"},
              {"optimiser.lr_end", optimiser.lr_end != none.lr_end, "schedule", &optimiser.schedule, "cosine"}})
            if (given && *is != user) mistake(line(key), key, fmt::format("goes with {} = \"{}\", not \"{}\"", of, user, *is));
        if (optimiser.schedule == "step" && optimiser.decay_every == 0)
            mistake(line("optimiser.schedule"), "optimiser.schedule", "step needs decay_every, a number of steps");

        const AlgorithmKind* algorithm;
        GC_ASSERT(algorithm_find(job_.algorithm, &algorithm).ok());
        const toml::node_view<const toml::node> named = root.at_path("algorithm.kind");
        const bool known = !named || named.value<std::string>() == job_.algorithm;   // else nothing is said of what it would take
        for (const Option& option : options) {
            const std::string key = fmt::format("algorithm.{}", option.key), word = fmt::format("{} ", option.key);
            if (!known || !option.show || option.show(job_) == option.show({}) || takes(*algorithm, word)) continue;
            std::vector<std::string> users;
            for (const AlgorithmKind& each : algorithm_kinds())
                if (takes(each, word)) users.emplace_back(each.name);
            mistake(line(key), key, fmt::format("goes with {}, not {}", joined(users), job_.algorithm));
        }
        if (has("algorithm.local_steps") && job_.settings.local_steps > 0 && has("algorithm.local_epochs"))
            mistake(line("algorithm.local_steps"), "algorithm.local_steps", "either local_steps or local_epochs, not both");
        const bool parts = job_.settings.allocation == "parts";
        for (const char* key : {"algorithm.local_steps", "algorithm.local_epochs"})
            if (has(key) && !parts)
                mistake(line(key), key,
                        fmt::format("goes with allocation = \"parts\": a round of {} is an allocation_batches-th of the data",
                                    job_.settings.allocation));
        if (job_.settings.allocation_batches != AlgorithmSettings().allocation_batches && parts)
            mistake(line("algorithm.allocation_batches"), "algorithm.allocation_batches", "goes with allocation = \"eda\" or \"bsda\"");
        if (!job_.settings.replay.empty() && !algorithm->server && job_.settings.allocation != "bsda")
            mistake(line("algorithm.replay"), "algorithm.replay",
                    fmt::format("repeats the shares of allocation = \"bsda\", not \"{}\"", job_.settings.allocation));
        if (job_.settings.evaluate_workers && job_.test.empty())
            mistake(line("algorithm.evaluate_workers"), "algorithm.evaluate_workers",
                    "there is nothing to evaluate on: data.test is missing");
        if (job_.settings.anchor == "batch" && job_.settings.anchor_fraction != 1)
            mistake(line("algorithm.anchor_fraction"), "algorithm.anchor_fraction", "goes with anchor = \"full\", not \"batch\"");
        if (job_.settings.solver == "exact" && (job_.survive || job_.exchange == "auto" || job_.quantiser != Quantiser::auto32))
            mistake(line("algorithm.solver"), "algorithm.solver",
                    "exact keeps its workers' nodes and sums 32 bits: no survive, no exchange auto, and the quantiser auto32");
        if (job_.settings.beta != 0.9 && job_.settings.lambda != "exp")
            mistake(line("algorithm.beta"), "algorithm.beta", fmt::format("goes with lambda = \"exp\", not \"{}\"", job_.settings.lambda));
        for (const char* key : {"algorithm.exchange", "algorithm.m", "algorithm.s", "algorithm.r", "algorithm.weights"})
            if (const bool names = key == std::string_view("algorithm.exchange");
                known && has(key) && !(names ? algorithm->sends_by(job_.exchange) : algorithm->exchanges()))
                mistake(line(key), key,
                        fmt::format("{} sends by no exchange: leave it out{}", job_.algorithm,
                                    names ? ", or take multicast, by which one copy of the parameters goes to all nodes"
                                    : job_.algorithm == "softsync" && key == std::string_view("algorithm.s")
                                        ? " (s-softsync is collect = workers / s)"
                                        : ""));
        if (algorithm->server && job_.quantiser != Quantiser::auto32)
            mistake(line("algorithm.quantiser"), "algorithm.quantiser",
                    fmt::format("{} sends floats to a server, which sums 32 bits: leave it out", job_.algorithm));
        else if (!algorithm->exchanges() && job_.quantiser != Quantiser::auto32)
            mistake(line("algorithm.quantiser"), "algorithm.quantiser", fmt::format("{} sends floats: leave it out", job_.algorithm));
        else if (algorithm->workers && job_.quantiser == Quantiser::fixed)
            mistake(line("algorithm.quantiser"), "algorithm.quantiser",
                    fmt::format("fixed clips what is above 10, and {} sums more than gradients: take auto32 or auto16", job_.algorithm));
        if (algorithm->workers && job_.quantiser == Quantiser::auto16 && job_.settings.workers > auto16_blocks_max)
            mistake(line("algorithm.workers"), "algorithm.workers",
                    fmt::format("{} are too many for the quantiser auto16, {} at most", job_.settings.workers, auto16_blocks_max));
        if (algorithm->workers && job_.device == "cuda")
            mistake(line("net.device"), "net.device",
                    fmt::format("workers of {} compute on CPUs in this version: take cpu", job_.algorithm));
        if (algorithm->workers && job_.profile > 0)
            mistake(line("profile.step"), "profile.step", fmt::format("goes with ssgd, not {}", job_.algorithm));
        if (algorithm->private_state && job_.survive)
            mistake(line("job.survive"), "job.survive",
                    fmt::format("workers of {} have state that is lost with their node, so it does not go on without one", job_.algorithm));
        if (algorithm->private_state && job_.exchange == "auto")
            mistake(line("algorithm.exchange"), "algorithm.exchange",
                    fmt::format("workers of {} have state and keep their nodes: name an exchange", job_.algorithm));

        const bool whole = job_.exchange == "ring" || job_.exchange == "unicast" || job_.exchange == "multicast" || job_.exchange == "ps";
        if (!job_.weights.empty() && !whole && job_.exchange != "cssgd")
            mistake(
                line("algorithm.weights"), "algorithm.weights",
                fmt::format("nodes have equal shares with {}: leave it out, or take ring, unicast, multicast, ps or cssgd", job_.exchange));
        if (job_.balance &&
            (!whole || !job_.weights.empty() || algorithm->private_state || algorithm->server || job_.settings.solver == "exact"))
            mistake(
                line("algorithm.balance"), "algorithm.balance",
                "goes with the exchanges ring, unicast, multicast and ps, without weights, and with algorithms whose nodes compute blocks "
                "or workers without a state");

        const ExchangeKind* kind;
        if (Status status = exchange_find(job_.exchange, job_.quantiser, &kind);
            job_.exchange != "auto" && !status.ok() && !(algorithm->workers && job_.quantiser == Quantiser::fixed))
            mistake(line("algorithm.quantiser"), "algorithm.quantiser", status.what);
        if (job_.s > 0 && job_.exchange != "auto" && !job_.exchange.starts_with("coded") && algorithm->exchanges())
            mistake(line("algorithm.s"), "algorithm.s",
                    fmt::format("{} has nothing to spare for ranks that are lost: take coded-rs or coded, or s = 0", job_.exchange));
        if (job_.exchange == "auto" && job_.quantiser == Quantiser::fixed && job_.s > 0)
            mistake(line("algorithm.s"), "algorithm.s", "with the quantiser fixed no rank can be missed: take auto32 or auto16, or s = 0");
        if (job_.quantiser == Quantiser::auto16 && job_.blocks > auto16_blocks_max)
            mistake(line("job.blocks"), "job.blocks",
                    fmt::format("{} blocks are too many for the quantiser auto16, {} at most: take fewer, or auto32", job_.blocks,
                                auto16_blocks_max));
    }

    const std::string& path_;
    const std::string& base_;
    JobConfig& job_;
    std::vector<JobMistake>& mistakes_;
};

}   // namespace

bool job_parse(const std::string& text, const std::string& path, const std::string& base, JobConfig* config,
               std::vector<JobMistake>* mistakes) {
    JobConfig job;
    job.text = text;
    job.base = base;
    mistakes->clear();
    Parser parser(path, base, job, *mistakes);
    if (text.size() > job_bytes_max) {
        parser.mistake(1, "", fmt::format("{} bytes are too many for a job file, at most {}", text.size(), job_bytes_max));
        return false;
    }
    toml::parse_result parsed = toml_parse(text);
    if (!parsed) {
        const toml::source_position& at = parsed.error().source().begin;
        std::string what(parsed.error().description());
        for (char& c : what)
            if (static_cast<unsigned char>(c) < ' ') c = ' ';
        parser.mistake(static_cast<uint32_t>(at.line), "", fmt::format("column {}: {}", at.column, what));
        return false;
    }
    parser.file(parsed.table());
    std::stable_sort(mistakes->begin(), mistakes->end(), [](const JobMistake& a, const JobMistake& b) { return a.line < b.line; });
    if (!mistakes->empty()) return false;
    *config = std::move(job);
    return true;
}

Status job_read(const std::string& path, JobConfig* config) {
    std::string text;
    GC_TRY(file_read(path, &text));
    char* folder = ::realpath(path.substr(0, path.rfind('/') == std::string::npos ? 0 : path.rfind('/') + 1).append(".").c_str(), nullptr);
    if (!folder) return fail_sys(errno, "cannot find the folder of {}", path);
    std::string base = folder;
    ::free(folder);
    std::vector<JobMistake> mistakes;
    if (job_parse(text, path, base, config, &mistakes)) return {};
    std::string all;
    for (const JobMistake& mistake : mistakes) all += (all.empty() ? "" : "\n") + mistake.text;
    return fail(Code::invalid, "{}", all);
}

std::vector<std::pair<std::string, std::string>> job_identity(const JobConfig& config) {
    const OptimiserConfig& o = config.optimiser;
    std::vector<std::pair<std::string, std::string>> all = {
        {"job.seed", fmt::format("{}", config.seed)},
        {"job.batch", fmt::format("{}", config.batch)},
        {"job.blocks", fmt::format("{}", config.blocks)},
        {"data.classes", fmt::format("{}", config.classes)},
        {"data.crop", fmt::format("{}", config.crop)},
        {"data.flip", fmt::format("{}", config.flip)},
        {"net.preset", config.preset.empty() ? "none" : config.preset},
        {"net.pad", fmt::format("{}", config.net_pad)},
        {"net.precision", precision_names()[static_cast<size_t>(config.precision)]},
        {"optimiser.kind", o.kind},
        {"optimiser.lr", fmt::format("{}", o.lr)},
        {"optimiser.momentum", fmt::format("{}", o.momentum)},
        {"optimiser.weight_decay", fmt::format("{}", o.weight_decay)},
        {"optimiser.nesterov", fmt::format("{}", o.nesterov)},
        {"optimiser.beta1", fmt::format("{}", o.beta1)},
        {"optimiser.beta2", fmt::format("{}", o.beta2)},
        {"optimiser.epsilon", fmt::format("{}", o.epsilon)},
        {"optimiser.schedule", o.schedule},
        {"optimiser.warm_up", fmt::format("{}", o.warm_up)},
        {"optimiser.decay_every", fmt::format("{}", o.decay_every)},
        {"optimiser.decay", fmt::format("{}", o.decay)},
        {"optimiser.lr_end", fmt::format("{}", o.lr_end)},
        {"algorithm.kind", config.algorithm},
        {"algorithm.quantiser", quantiser_name(config.quantiser)},
    };
    for (auto& [key, value] : algorithm_settings(config))
        if (key != "replay" && key != "evaluate_workers") all.emplace_back("algorithm." + key, value);
    if (o.schedule == "cosine") {   // which ends at the last step
        all.emplace_back("job.epochs", fmt::format("{}", config.epochs));
        all.emplace_back("job.steps", fmt::format("{}", config.steps));
    }
    for (size_t i = 0; i < config.layers.size(); ++i) {
        const LayerSpec& layer = config.layers[i];
        all.emplace_back(fmt::format("layer {}", i + 1),
                         fmt::format("{} {} {} {} {} {} {:d} {:d} {} {}", layer.kind, layer.name, layer.outputs, layer.kernel, layer.stride,
                                     layer.pad, layer.ceil, layer.bias, layer.rate, layer.from));
    }
    return all;
}

std::vector<std::pair<std::string, std::string>> algorithm_settings(const JobConfig& config) {
    std::vector<std::pair<std::string, std::string>> all;
    const AlgorithmKind* kind;
    if (!algorithm_find(config.algorithm, &kind).ok()) return all;
    for (const Option& option : options)
        if (option.show && takes(*kind, fmt::format("{} ", option.key))) all.emplace_back(option.key, option.show(config));
    return all;
}

std::vector<FileKey> job_keys() {
    std::vector<FileKey> keys;
    for (const Option& option : options) {
        const bool list = std::string_view(option.section) == "net.layers";
        std::string range;
        if (option.names) range = joined(option.names());
        else if (option.kind == Kind::integer || option.kind == Kind::duration)
            range = fmt::format("{} .. {}", bound(option, option.min), bound(option, option.max));
        else if (option.kind == Kind::flag) range = "true, false";
        else if (option.kind == Kind::number) {
            const bool bounded = option.max < 1e6;   // others are beyond what anybody means
            if (option.above)
                range = bounded ? fmt::format("above {}, at most {}", option.min, option.max) : fmt::format("above {}", option.min);
            else range = bounded ? fmt::format("{} .. {}", option.min, option.max) : fmt::format("{} and more", option.min);
        }
        keys.push_back({list ? fmt::format("[[{}]]", option.section) : fmt::format("[{}]", option.section), option.key, option.value,
                        option.help, range});
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
