#include "runtime/job/job_options.h"

#include <fmt/ranges.h>

#include <deque>

#include "nn/graph/layer_kind.h"
#include "runtime/job/cuda_module.h"
#include "transport/exchange/exchange.h"

namespace gradcast {
namespace {

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
std::vector<std::string> devices() { return {device_names().begin(), device_names().end()}; }
std::vector<std::string> residences() { return {"auto", "no"}; }
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

constexpr JobOption rows[] = {
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
     "with survive: where fewer nodes are left, each writes a checkpoint and the job ends; 0: half of those that it began with, 1 with servers_vote",
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
    {"net", "preset", Kind::name, "", 0, 0, false, presets, "a net by name (gradcastctl help presets), or [[net.layers]]", set<&JobConfig::preset>},
    {"net", "pad", Kind::integer, "0", 0, 1024, false, nullptr, "zeros added on each side of a sample, with [[net.layers]]",
     set<&JobConfig::net_pad>},
    {"net", "precision", Kind::name, "\"f32\"", 0, 0, false, precisions,
     "number format of products in conv and inner_product; bf16 needs CPUs with AVX512-BF16 or AMX, tf32 a GPU",
     [](Target target, const Value& value) { target.job->precision = precision_of(value.text); }},
    {"net", "device", Kind::name, "\"cpu\"", 0, 0, false, devices,
     "cuda: all GPUs of each node (CUDA_VISIBLE_DEVICES); auto: cuda where nodes have GPUs", set<&JobConfig::device>},
    {"net", "resident", Kind::name, "\"auto\"", 0, 0, false, residences,
     "cuda: auto keeps the training data in each GPU's memory where it fits; no reads each block's samples from the files.  The result is the same",
     [](Target target, const Value& value) { target.job->resident = value.text == "auto"; }},
    {"net", "deterministic", Kind::flag, "true", 0, 1, false, nullptr,
     "cuda: false takes the fastest kernels, whose bits may differ from run to run", set<&JobConfig::deterministic>},
    {"net", "start", Kind::text, "\"\"", 0, 0, false, nullptr,
     "safetensors file with the initial parameters, as gradcastctl export or PyTorch writes it, of F32, F16, BF16 or F64; a prefix that all "
     "its names share is left out; empty: drawn with the seed",
     set<&JobConfig::start>},
    {"net.layers", "kind", Kind::name, "", 0, 0, false, layer_kind_names, "kind of the layer", set<&LayerSpec::kind>},
    {"net.layers", "name", Kind::text, "\"\"", 0, 0, false, nullptr,
     "by which messages, `from` and the tensors of state_dicts (conv1.weight) name the layer; empty: kind and number", set<&LayerSpec::name>},
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
     "how gradients are summed; auto: the fastest of those that are predicted from the first 6 steps to be fast, tried for 6 steps each where 24 are left; of asgd, softsync and serial: "
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
    {"algorithm", "servers_vote", Kind::flag, "false", 0, 1, false, nullptr,
     "asgd, softsync with survive: the job goes on where more than half of the servers remain, or exactly half with the first one, however many workers are lost; else where so many of all nodes remain",
     set<&JobConfig::servers_vote>},
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

/// The keys of layers, as their kinds have them.
void add_layer_keys(std::vector<JobOption>& all) {
    static std::deque<std::string> texts;   // outlive the rows
    auto kept = [](std::string text) { return texts.emplace_back(std::move(text)).c_str(); };
    for (const auto& [key, kinds] : layer_keys()) {
        const bool flag = key->type == LayerKey::Type::flag;
        all.push_back({.section = "net.layers",
                       .key = key->name,
                       .kind = flag                                   ? Kind::flag
                               : key->type == LayerKey::Type::integer ? Kind::integer
                                                                      : Kind::number,
                       .value = kept(flag ? key->value != 0 ? "true" : "false" : fmt::format("{}", key->value)),
                       .min = key->min,
                       .max = key->max,
                       .above = false,
                       .names = nullptr,
                       .help = kept(fmt::format("{}: {}{}", fmt::join(kinds, ", "), key->help,
                                                key->below ? fmt::format("; below {}", key->max) : "")),
                       .set = nullptr,
                       .of_layer = true});
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
            made.push_back(row);
            if (std::string_view(row.section) != "net.layers" || std::string_view(row.key) != "name") continue;
            made.back().help = name_help(row.help);
            add_layer_keys(made);
        }
        return made;
    }();
    return all;
}

std::string JobOption::bound(double limit) const { return kind == Kind::duration ? fmt::format("{}s", limit) : fmt::format("{}", limit); }

bool JobOption::belongs_to(const AlgorithmKind& algorithm) const {
    return fmt::format(" {}", algorithm.keys).find(fmt::format(" {} ", key)) != std::string::npos;
}

std::vector<std::pair<std::string, std::string>> algorithm_settings(const JobConfig& config) {
    std::vector<std::pair<std::string, std::string>> all;
    const AlgorithmKind* kind;
    if (!algorithm_find(config.algorithm, &kind).ok()) return all;
    for (const JobOption& option : job_options())
        if (option.show && option.belongs_to(*kind)) all.emplace_back(option.key, option.show(config));
    return all;
}

std::vector<FileKey> job_keys() {
    std::vector<FileKey> keys;
    for (const JobOption& option : job_options()) {
        const bool list = std::string_view(option.section) == "net.layers";
        std::string range;
        if (option.names) range = fmt::format("{}", fmt::join(option.names(), ", "));
        else if (option.kind == Kind::integer || option.kind == Kind::duration)
            range = fmt::format("{} .. {}", option.bound(option.min), option.bound(option.max));
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
