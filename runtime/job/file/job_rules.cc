#include "runtime/job/file/job_rules.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>

#include "algos/grid/schedule.h"
#include "nn/graph/layers.h"
#include "nn/net.h"
#include "nn/optimiser.h"
#include "runtime/job/file/cells.h"
#include "runtime/job/file/job_options.h"

namespace gradcast {
namespace {

using Keys = const JobKeys&;

std::string server_algorithms() {
    std::vector<const char*> names;
    for (const AlgorithmKind& kind : algorithm_kinds())
        if (kind.server) names.push_back(kind.name);
    return fmt::format("{}", fmt::join(names, " and "));
}

/// A word in braces of JobRule::text.
std::string word_text(std::string_view word, Keys keys) {
    if (const JobOption* option = job_option(word)) return option->show(keys.job);
    if (word == "presets") return fmt::format("{}", fmt::join(preset_names(), ", "));
    if (word == "auto16 blocks") return fmt::format("{}", auto16_blocks_max);
    if (word == "server algorithms") return server_algorithms();
    if (word == "weighing exchanges") return exchange_names(&ExchangeKind::weighs);
    if (word == "balancing exchanges") return exchange_names(&ExchangeKind::balances);
    if (word == "nodes of a replica") return fmt::format("{}", cells_of(keys.job));
    GC_ASSERT(word == "coding exchanges");
    return exchange_names(&ExchangeKind::codes);
}

std::string rule_text(std::string_view text, Keys keys) {
    std::string all;
    for (size_t open; (open = text.find('{')) != text.npos;) {
        const size_t close = text.find('}', open);
        all.append(text.substr(0, open)).append(word_text(text.substr(open + 1, close - open - 1), keys));
        text.remove_prefix(close + 1);
    }
    return all.append(text);
}

// What several rules ask.
bool on_cpus(Keys keys) { return keys.job.device == "cpu"; }
bool parts(Keys keys) { return keys.job.settings.allocation == "parts"; }
bool untested(Keys keys) { return !keys.job.tested(); }
bool exchanges(Keys keys) { return keys.algorithm->exchanges(); }
bool learns_alone(Keys keys) { return keys.algorithm->workers; }
bool has_state(Keys keys) { return keys.algorithm->private_state; }
bool exact(Keys keys) { return keys.job.settings.solver == "exact"; }
bool attached(Keys keys) { return keys.job.attached(); }
bool staged(Keys keys) { return keys.job.stages != 1; }
bool weights_later(Keys keys) {
    const std::optional<Schedule> schedule = pipeline_schedule_find(keys.job.stage_schedule);
    return schedule && passes_apart(*schedule);
}
bool sliced(Keys keys) { return keys.job.slices > 1; }
bool grouped(Keys keys) { return keys.job.slice_groups != 1; }   // nodes share slices
bool tied(Keys keys) { return !std::ranges::all_of(keys.job.layers, &std::string::empty, &LayerSpec::weights_of); }
bool averages_valid(Keys keys) { return mean_over_valid({.layers = keys.job.layers}); }
bool exempts(Keys keys) { return keys.job.optimiser.decay_exempt || !keys.job.optimiser.decay_exempt_names.empty(); }
bool averages(Keys keys) { return keys.job.optimiser.ema > 0; }
bool by_tensor(Keys keys) { return optimiser_find(keys.job.optimiser.kind)->look; }
bool takes(Keys keys, Quantiser quantiser) { return keys.job.quantiser == quantiser; }

// clang-format off
constexpr JobRule rules[] = {
    {"job.steps", [](Keys keys) { return keys.has("job.epochs") && keys.has("job.steps"); },
     "either epochs or steps, not both"},
    {"job.epochs", [](Keys keys) { return !keys.has("job.epochs") && !keys.has("job.steps"); },
     "is missing: either epochs or steps"},
    {"job.blocks", [](Keys keys) { return keys.job.blocks > keys.job.batch; },
     "{job.blocks} blocks are more than the {job.batch} samples of a mini-batch (job.batch)"},
    {"job.blocks", [](Keys keys) { return takes(keys, Quantiser::auto16) && keys.job.blocks > auto16_blocks_max; },
     "{job.blocks} blocks are too many for the quantiser auto16, {auto16 blocks} at most: take fewer, or auto32"},
    {"job.evaluate", [](Keys keys) { return keys.job.evaluate > 0 && untested(keys); },
     "there is nothing to evaluate on: data.test is missing"},
    {"job.stop_at", [](Keys keys) { return keys.job.stop_at > 0 && untested(keys); },
     "there is nothing to evaluate on: data.test is missing"},
    {"job.survive", [](Keys keys) { return keys.job.survive && has_state(keys); },
     "workers of {algorithm.kind} have state that is lost with their node, so it does not go on without one"},

    {"data.samples", [](Keys keys) { return keys.job.samples > 0 && (keys.has("data.train") || keys.has("data.test")); },
     "either train and test, or samples and test_samples, not both"},
    {"data.samples", [](Keys keys) { return keys.job.samples > 0 && !attached(keys); },
     "are those of a program: it goes with net.command"},
    {"data.test_samples", [](Keys keys) { return keys.job.test_samples > 0 && keys.job.samples == 0; },
     "goes with data.samples"},
    {"data.classes", [](Keys keys) { return keys.job.samples > 0 && keys.job.classes > 0; },
     "goes with data.train: the samples are a program's"},
    {"data.crop", [](Keys keys) { return keys.job.samples > 0 && keys.job.crop > 0; },
     "goes with data.train: the samples are a program's"},
    {"data.flip", [](Keys keys) { return keys.job.samples > 0 && keys.job.flip; },
     "goes with data.train: the samples are a program's"},
    {"data.side", [](Keys keys) { return keys.job.samples > 0 && keys.job.side > 0; },
     "goes with data.train: the samples are a program's"},
    {"data.resized_crop", [](Keys keys) { return keys.job.samples > 0 && keys.job.resized_crop > 0; },
     "goes with data.train: the samples are a program's"},
    {"data.resized_crop", [](Keys keys) { return keys.job.resized_crop > 0 && keys.job.crop > 0; },
     "either a part that is resized, or crop, not both"},
    {"data.jitter", [](Keys keys) { return keys.job.samples > 0 && !keys.job.jitter.empty(); },
     "goes with data.train: the samples are a program's"},
    {"data.jitter", [](Keys keys) { return !keys.job.jitter.empty() && keys.job.jitter.size() != 3; },
     "has three numbers: of brightness, contrast and saturation, as [0.4, 0.4, 0.4]; 0 leaves one out"},
    {"data.crop", [](Keys keys) { return exact(keys) && keys.job.crop > 0; },
     "solver = \"exact\" takes the samples as they are: leave it out, or take another solver"},
    {"data.flip", [](Keys keys) { return exact(keys) && keys.job.flip; },
     "solver = \"exact\" takes the samples as they are: leave it out, or take another solver"},
    {"data.resized_crop", [](Keys keys) { return exact(keys) && keys.job.resized_crop > 0; },
     "solver = \"exact\" takes the samples as they are: leave it out, or take another solver"},
    {"data.jitter", [](Keys keys) { return exact(keys) && !keys.job.jitter.empty(); },
     "solver = \"exact\" takes the samples as they are: leave it out, or take another solver"},
    {"data.mean", [](Keys keys) { return keys.job.samples > 0 && !keys.job.mean.empty(); },
     "goes with data.train: the samples are a program's"},
    {"data.std", [](Keys keys) { return keys.job.samples > 0 && !keys.job.std.empty(); },
     "goes with data.train: the samples are a program's"},
    {"data.context", [](Keys keys) { return keys.job.samples > 0 && keys.job.context > 0; },
     "goes with data.train: the samples are a program's"},
    {"data.train", [](Keys keys) { return !keys.has("data.train") && keys.job.samples == 0; },
     "is missing: a pattern of shards, as \"fashion-mnist/train*.h5\""},
    {"data.train", [](Keys keys) { return keys.job.train.empty() && keys.job.samples == 0; },
     "is empty"},

    {"net.layers", [](Keys keys) { return keys.has("net.preset") && keys.has("net.layers"); },
     "either a preset or layers, not both"},
    {"net.command", [](Keys keys) { return attached(keys) && (keys.has("net.preset") || keys.has("net.layers")); },
     "either a command, or a preset or layers, not both"},
    {"net.command", [](Keys keys) { return attached(keys) && keys.job.command[0].empty(); },
     "names no program"},
    {"net.command", [](Keys keys) { return attached(keys) && (staged(keys) || sliced(keys) || grouped(keys)); },
     "computes a whole net: [parallel] goes with presets and layers"},
    {"net.command", [](Keys keys) { return attached(keys) && exact(keys); },
     "computes gradients: solver = \"exact\" goes with the presets ridge and logistic"},
    {"net.threads", [](Keys keys) { return keys.changed("net.threads") && !attached(keys); },
     "goes with a command; gradcast's own nets compute a block with one thread"},
    {"net.environment", [](Keys keys) { return !keys.job.environment.empty() && !attached(keys); },
     "goes with a command"},
    {"net.pad", [](Keys keys) { return attached(keys) && keys.changed("net.pad"); },
     "goes with [[net.layers]]: the program of net.command gets samples as they are stored"},
    {"net.precision", [](Keys keys) { return attached(keys) && keys.changed("net.precision"); },
     "goes with presets and layers: the program of net.command chooses its own"},
    {"net.device", [](Keys keys) { return attached(keys) && keys.changed("net.device"); },
     "goes with presets and layers: the program of net.command chooses its own"},
    {"net.preset", [](Keys keys) { return !keys.has("net.preset") && !keys.has("net.layers") && !attached(keys) && !keys.wrong.contains("net.command"); },
     "is missing: {presets}, or [[net.layers]], or command"},
    {"net.pad", [](Keys keys) { return keys.has("net.preset") && keys.has("net.pad"); },
     "a preset has its own; it goes with [[net.layers]]"},
    {"net.depth", [](Keys keys) { return keys.changed("net.depth") && !preset_sized(keys.job.preset); },
     "is of presets that come in sizes: it goes with preset = \"gpt\""},
    {"net.width", [](Keys keys) { return keys.changed("net.width") && !preset_sized(keys.job.preset); },
     "is of presets that come in sizes: it goes with preset = \"gpt\""},
    {"net.heads", [](Keys keys) { return keys.changed("net.heads") && !preset_sized(keys.job.preset); },
     "is of presets that come in sizes: it goes with preset = \"gpt\""},
    {"net.tied_head", [](Keys keys) { return keys.changed("net.tied_head") && !preset_sized(keys.job.preset); },
     "is of presets that come in sizes: it goes with preset = \"gpt\", and weights_of of [[net.layers]] does the same"},
    {"net.dropout", [](Keys keys) { return keys.changed("net.dropout") && !preset_sized(keys.job.preset); },
     "is of presets that come in sizes: it goes with preset = \"gpt\", and [[net.layers]] have layers of this kind"},
    {"net.layers", [](Keys keys) { return tied(keys) && keys.job.algorithm != "ssgd"; },
     "weights that layers share (weights_of) go with ssgd in this version, not with {algorithm.kind}"},
    {"net.layers", [](Keys keys) { return averages_valid(keys) && keys.job.algorithm != "ssgd"; },
     "mean_over = \"valid\" counts the positions of whole mini-batches: it goes with ssgd, not with {algorithm.kind}"},
    {"net.mean_over", [](Keys keys) { return keys.job.size.valid && !keys.has("net.preset"); },
     "is of presets: a layer softmax_cross_entropy has a key of this name"},
    {"net.precision", [](Keys keys) { return keys.job.precision == Precision::tf32 && on_cpus(keys); },
     "tf32 is for GPUs: it goes with device = \"cuda\""},
    {"net.resident", [](Keys keys) { return !keys.job.resident && on_cpus(keys); },
     "no is for GPUs: it goes with device = \"cuda\""},
    {"net.deterministic", [](Keys keys) { return !keys.job.deterministic && on_cpus(keys); },
     "false is for GPUs: it goes with device = \"cuda\""},
    {"net.device", [](Keys keys) { return learns_alone(keys) && keys.job.device == "cuda"; },
     "workers of {algorithm.kind} compute on CPUs in this version: take cpu"},

    {"net.start_only", [](Keys keys) { return !keys.job.start_only.empty() && keys.job.start.empty(); },
     "goes with start, the file whose tensors it chooses"},
    {"net.start_skip", [](Keys keys) { return !keys.job.start_skip.empty() && keys.job.start.empty(); },
     "goes with start, the file whose tensors it leaves out"},

    {"optimiser.decay_exempt", [](Keys keys) {
         return exempts(keys) && keys.job.optimiser.weight_decay == 0 && !keys.wrong.contains("optimiser.weight_decay");
     },
     "goes with a weight_decay above 0"},
    {"optimiser.evaluate", [](Keys keys) { return keys.job.evaluate_ema && !averages(keys) && !keys.wrong.contains("optimiser.ema"); },
     "there are no averaged weights: ema goes with optimiser.ema above 0"},
    {"optimiser.kind", [](Keys keys) { return by_tensor(keys) && learns_alone(keys); },
     "{optimiser.kind} goes with ssgd, not {algorithm.kind}"},
    {"optimiser.kind", [](Keys keys) { return by_tensor(keys) && (sliced(keys) || keys.job.buddy); },
     "{optimiser.kind} takes norms of whole tensors in this version: leave slices and buddy out"},

    {"algorithm.exchange", [](Keys keys) { return keys.has("algorithm.exchange") && !keys.algorithm->sends_by(keys.job.exchange); },
     "{algorithm.kind} sends by no exchange: leave it out, or take multicast, by which one copy of the parameters goes to all nodes"},
    {"algorithm.exchange", [](Keys keys) { return has_state(keys) && !keys.exchange; },
     "workers of {algorithm.kind} have state and keep their nodes: name an exchange"},
    {"algorithm.m", [](Keys keys) { return keys.has("algorithm.m") && !exchanges(keys); },
     "{algorithm.kind} sends by no exchange: leave it out"},
    {"algorithm.s", [](Keys keys) { return keys.has("algorithm.s") && keys.job.algorithm == "softsync"; },
     "{algorithm.kind} sends by no exchange: leave it out (s-softsync is collect = workers / s)"},
    {"algorithm.s", [](Keys keys) { return keys.has("algorithm.s") && !exchanges(keys); },
     "{algorithm.kind} sends by no exchange: leave it out"},
    {"algorithm.s", [](Keys keys) { return keys.job.s > 0 && keys.exchange && !keys.exchange->codes; },
     "{algorithm.exchange} has nothing to spare for ranks that are lost: take {coding exchanges}, or s = 0"},
    {"algorithm.s", [](Keys keys) { return keys.job.s > 0 && !keys.exchange && takes(keys, Quantiser::fixed); },
     "with the quantiser fixed no rank can be missed: take auto32 or auto16, or s = 0"},
    {"algorithm.r", [](Keys keys) { return keys.has("algorithm.r") && !exchanges(keys); },
     "{algorithm.kind} sends by no exchange: leave it out"},
    {"algorithm.weights", [](Keys keys) { return keys.has("algorithm.weights") && !exchanges(keys); },
     "{algorithm.kind} sends by no exchange: leave it out"},
    {"algorithm.weights", [](Keys keys) { return !keys.job.weights.empty() && !(keys.exchange && keys.exchange->weighs); },
     "nodes have equal shares with {algorithm.exchange}: leave it out, or take {weighing exchanges}"},
    {"algorithm.balance", [](Keys keys) {
         const bool possible = keys.exchange && keys.exchange->balances && keys.job.weights.empty() && !has_state(keys) &&
                               !keys.algorithm->server && !exact(keys);
         return keys.job.balance && !possible;
     },
     "goes with the exchanges {balancing exchanges}, without weights, and with algorithms whose nodes compute blocks or workers without a state"},
    {"algorithm.servers_vote", [](Keys keys) { return keys.job.servers_vote && !keys.algorithm->server; },
     "goes with {server algorithms}, not {algorithm.kind}"},
    {"algorithm.servers_vote", [](Keys keys) { return keys.job.servers_vote && !keys.job.survive; },
     "goes with survive = true in [job]"},

    {"algorithm.quantiser", [](Keys keys) { return keys.algorithm->server && !takes(keys, Quantiser::auto32); },
     "{algorithm.kind} sends floats to a server, which sums 32 bits: leave it out"},
    {"algorithm.quantiser", [](Keys keys) { return !exchanges(keys) && !takes(keys, Quantiser::auto32); },
     "{algorithm.kind} sends floats: leave it out"},
    {"algorithm.quantiser", [](Keys keys) { return learns_alone(keys) && takes(keys, Quantiser::fixed); },
     "fixed clips what is above 10, and {algorithm.kind} sums more than gradients: take auto32 or auto16"},
    {"algorithm.quantiser", [](Keys keys) { return keys.exchange && !keys.exchange->fixed && takes(keys, Quantiser::fixed); },
     "{algorithm.exchange} does not allow the quantiser fixed: use auto32"},
    {"algorithm.workers", [](Keys keys) {
         return learns_alone(keys) && takes(keys, Quantiser::auto16) && keys.job.settings.workers > auto16_blocks_max;
     },
     "{algorithm.workers} are too many for the quantiser auto16, {auto16 blocks} at most"},

    {"algorithm.local_steps", [](Keys keys) { return keys.job.settings.local_steps > 0 && keys.has("algorithm.local_epochs"); },
     "either local_steps or local_epochs, not both"},
    {"algorithm.local_steps", [](Keys keys) { return keys.has("algorithm.local_steps") && !parts(keys); },
     "goes with allocation = \"parts\": a round of {algorithm.allocation} is an allocation_batches-th of the data"},
    {"algorithm.local_epochs", [](Keys keys) { return keys.has("algorithm.local_epochs") && !parts(keys); },
     "goes with allocation = \"parts\": a round of {algorithm.allocation} is an allocation_batches-th of the data"},
    {"algorithm.anchor_fraction", [](Keys keys) { return keys.changed("algorithm.anchor_fraction") && keys.job.settings.anchor == "batch"; },
     "goes with anchor = \"full\", not \"batch\""},
    {"algorithm.allocation_batches", [](Keys keys) { return keys.changed("algorithm.allocation_batches") && parts(keys); },
     "goes with allocation = \"eda\" or \"bsda\""},
    {"algorithm.evaluate_workers", [](Keys keys) { return keys.job.settings.evaluate_workers && untested(keys); },
     "there is nothing to evaluate on: data.test is missing"},
    {"algorithm.solver", [](Keys keys) {
         const bool possible = !keys.job.survive && keys.exchange && takes(keys, Quantiser::auto32);
         return exact(keys) && !possible;
     },
     "exact keeps its workers' nodes and sums 32 bits: no survive, no exchange auto, and the quantiser auto32"},
    {"algorithm.beta", [](Keys keys) { return keys.changed("algorithm.beta") && keys.job.settings.lambda != "exp"; },
     "goes with lambda = \"exp\", not \"{algorithm.lambda}\""},
    {"algorithm.replay", [](Keys keys) {
         return !keys.job.settings.replay.empty() && !keys.algorithm->server && keys.job.settings.allocation != "bsda";
     },
     "repeats the shares of allocation = \"bsda\", not \"{algorithm.allocation}\""},
    {"parallel.stages", [](Keys keys) { return staged(keys) && keys.job.algorithm != "ssgd"; },
     "{algorithm.kind} computes whole nets: stages go with ssgd"},
    {"parallel.stages", [](Keys keys) { return staged(keys) && keys.job.device == "auto"; },
     "the layers at which a net can be cut depend on the device: take device = \"cpu\" or \"cuda\""},
    {"parallel.stages", [](Keys keys) { return keys.job.stages == stages_auto && !on_cpus(keys); },
     "auto measures layers on CPUs in this version: name a number of stages, or take device = \"cpu\""},
    {"job.min_nodes", [](Keys keys) { return min_nodes_below_replica(keys.job); },
     "{job.min_nodes} is less than the {nodes of a replica} nodes of one replica (stages x slice_groups), without which the job cannot go on: "
     "take at least {nodes of a replica}, or 0"},
    {"job.min_nodes", [](Keys keys) { return keys.job.buddy && keys.job.min_nodes > 0 && keys.job.min_nodes < keys.job.stages / 2; },
     "is less than one node of each pair of buddies of {parallel.stages} stages: the job cannot go on with fewer"},
    {"parallel.stages", [](Keys keys) { return staged(keys) && (keys.job.balance || !keys.job.weights.empty()); },
     "goes with equal shares of the blocks: leave balance and weights out"},
    {"parallel.cuts", [](Keys keys) { return !keys.job.cuts.empty() && keys.job.stages == stages_auto; },
     "goes with a number of stages: with auto the cuts are chosen too"},
    {"parallel.cuts", [](Keys keys) { return !keys.job.cuts.empty() && keys.job.cuts.size() + 1 != keys.job.stages; },
     "names the first layers of the second stage and the following ones: one fewer than stages, which is {parallel.stages}"},
    {"parallel.schedule", [](Keys keys) { return keys.changed("parallel.schedule") && !staged(keys); },
     "goes with stages of at least 2"},
    {"parallel.recompute", [](Keys keys) { return keys.job.recompute && !staged(keys); },
     "goes with stages of at least 2: a whole net has the activations of one block at a time"},
    {"parallel.recompute", [](Keys keys) { return keys.job.recompute && weights_later(keys); },
     "is not possible with the schedule {parallel.schedule}, whose weights passes come later and need the activations: take 1f1b, eager-1f1b or gpipe"},
    {"parallel.recompute", [](Keys keys) { return keys.job.recompute && !on_cpus(keys); },
     "computes on CPUs in this version: a GPU keeps the activations of its stage"},
    {"parallel.buddy", [](Keys keys) { return keys.job.buddy && grouped(keys); },
     "keeps whole stages in this version, and nodes that share slices have parts of one: take slice_groups = 1, or leave buddy out"},
    {"parallel.buddy", [](Keys keys) { return keys.job.buddy && !on_cpus(keys); },
     "computes on CPUs in this version: on GPUs a stage is kept by replicas, with twice the nodes"},
    {"parallel.buddy", [](Keys keys) { return keys.job.buddy && (keys.job.stages == 1 || keys.job.stages == stages_auto); },
     "goes with a number of stages, of at least 2: a neighbouring stage's node keeps each of them"},
    {"parallel.buddy", [](Keys keys) { return keys.job.buddy && !keys.job.survive; },
     "goes with survive = true in [job]"},
    {"parallel.buddy", [](Keys keys) { return keys.job.buddy && keys.job.s > 0; },
     "goes with s = 0: a stage has one node, which is not missed but replaced"},
    {"parallel.micro_batch", [](Keys keys) { return keys.changed("parallel.micro_batch") && !staged(keys) && !grouped(keys); },
     "goes with stages or slice_groups of at least 2"},
    {"parallel.micro_batch", [](Keys keys) { return keys.job.micro_batch > keys.job.blocks; },
     "{parallel.micro_batch} blocks are more than the {job.blocks} of a step"},
    {"parallel.slices", [](Keys keys) { return sliced(keys) && keys.job.algorithm != "ssgd"; },
     "{algorithm.kind} computes whole layers in this version: slices go with ssgd"},
    {"parallel.slices", [](Keys keys) { return sliced(keys) && !on_cpus(keys); },
     "slices compute on CPUs in this version: take device = \"cpu\""},
    {"parallel.sliced", [](Keys keys) { return !keys.job.sliced.empty() && !sliced(keys); },
     "goes with slices of at least 2"},
    {"parallel.slice_groups", [](Keys keys) { return grouped(keys) && !sliced(keys); },
     "nodes share the slices of layers, and there are none: set slices"},
    {"parallel.slice_groups", [](Keys keys) { return keys.job.slice_groups != slice_groups_auto && !std::has_single_bit(keys.job.slice_groups); },
     "{parallel.slice_groups} is not a power of two"},
    {"parallel.slice_groups", [](Keys keys) { return keys.job.slices % std::max(keys.job.slice_groups, 1u) != 0; },
     "{parallel.slice_groups} does not divide the {parallel.slices} slices"},
    {"parallel.slice_groups", [](Keys keys) { return grouped(keys) && (keys.job.balance || !keys.job.weights.empty()); },
     "goes with equal shares of the blocks: leave balance and weights out"},
};
// clang-format on

}   // namespace

bool JobKeys::changed(std::string_view key) const {
    const JobOption* option = job_option(key);
    return option->show(job) != option->show({});
}

std::span<const JobRule> job_rules() { return rules; }

std::vector<BrokenRule> job_rules_broken(JobKeys keys) {
    GC_ASSERT(algorithm_find(keys.job.algorithm, &keys.algorithm).ok());
    if (keys.job.exchange != "auto") GC_ASSERT(exchange_find(keys.job.exchange, Quantiser::auto32, &keys.exchange).ok());
    std::vector<BrokenRule> broken;
    const auto add = [&](std::string_view key, std::string_view text) {
        const std::string kind = fmt::format("{}.kind", key.substr(0, key.find('.')));
        if (keys.wrong.contains(key) || keys.wrong.contains(kind)) return;
        keys.wrong.emplace(key);
        broken.push_back({std::string(key), rule_text(text, keys)});
    };
    for (const JobOption& option : job_options()) {
        if (option.taken_by(*keys.algorithm)) continue;
        const std::string key = fmt::format("{}.{}", option.section, option.key);
        if (!keys.changed(key)) continue;
        std::vector<const char*> users;
        for (const AlgorithmKind& each : algorithm_kinds())
            if (option.taken_by(each)) users.push_back(each.name);
        add(key, fmt::format("goes with {}, not {}", fmt::join(users, ", "), keys.job.algorithm));
    }
    if (!keys.wrong.contains("optimiser.schedule"))
        for (const auto& [key, text] : optimiser_mistakes(keys.job.optimiser)) add("optimiser." + key, text);
    for (const JobRule& rule : rules)
        if (rule.broken(keys)) add(rule.key, rule.text);
    for (const JobOption& option : job_options()) {
        const std::string key = fmt::format("{}.{}", option.section, option.key);
        if (option.field.ssgd && learns_alone(keys) && keys.changed(key)) add(key, "goes with ssgd, not {algorithm.kind}");
    }
    return broken;
}

}   // namespace gradcast
