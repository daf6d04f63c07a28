#include "runtime/job/file/job_rules.h"

#include <gtest/gtest.h>

#include <set>

#include "runtime/job/file/job_options.h"

namespace gradcast {
namespace {

/// A job file: the lines of its sections.
struct File {
    std::string job = "steps = 3\n", data = "train = \"t\"\n", net = "preset = \"mlp\"\n", optimiser = "", algorithm = "", parallel = "",
                profile = "";
    std::string text() const {
        return "[job]\n" + job + "[data]\n" + data + "[net]\n" + net + "[optimiser]\n" + optimiser + "[algorithm]\n" + algorithm +
               "[parallel]\n" + parallel + "[profile]\n" + profile;
    }
};

/// Without "job.toml:N: ".
std::vector<std::string> messages_of(const File& file) {
    JobConfig job;
    std::vector<JobMistake> mistakes;
    (void)job_parse(file.text(), "job.toml", "/base", &job, &mistakes);
    std::vector<std::string> texts;
    for (const JobMistake& each : mistakes) texts.push_back(each.text.substr(fmt::format("job.toml:{}: ", each.line).size()));
    return texts;
}

struct RuleCase {
    File file;
    std::string message;
};

// clang-format off
/// A case for each rule, in the order of the table.
const std::vector<RuleCase> rule_cases = {
    {{.job = "steps = 3\nepochs = 1\n"},
     "job.steps: either epochs or steps, not both"},
    {{.job = ""},
     "job.epochs: is missing: either epochs or steps"},
    {{.job = "steps = 3\nbatch = 4\n"},
     "job.blocks: 8 blocks are more than the 4 samples of a mini-batch (job.batch)"},
    {{.job = "steps = 3\nblocks = 65\n", .algorithm = "quantiser = \"auto16\"\n"},
     "job.blocks: 65 blocks are too many for the quantiser auto16, 64 at most: take fewer, or auto32"},
    {{.job = "steps = 3\nevaluate = 2\n"},
     "job.evaluate: there is nothing to evaluate on: data.test is missing"},
    {{.job = "steps = 3\nstop_at = 0.5\n"},
     "job.stop_at: there is nothing to evaluate on: data.test is missing"},
    {{.job = "steps = 3\nsurvive = true\n", .algorithm = "kind = \"admm\"\n"},
     "job.survive: workers of admm have state that is lost with their node, so it does not go on without one"},

    {{.data = "train = \"t\"\nsamples = 9\n", .net = "command = [\"a\"]\n"},
     "data.samples: either train and test, or samples and test_samples, not both"},
    {{.data = "samples = 9\n"},
     "data.samples: are those of a program: it goes with net.command"},
    {{.data = "train = \"t\"\ntest_samples = 9\n"},
     "data.test_samples: goes with data.samples"},
    {{.data = "samples = 9\nclasses = 2\n", .net = "command = [\"a\"]\n"},
     "data.classes: goes with data.train: the samples are a program's"},
    {{.data = "samples = 9\ncrop = 2\n", .net = "command = [\"a\"]\n"},
     "data.crop: goes with data.train: the samples are a program's"},
    {{.data = "samples = 9\nflip = true\n", .net = "command = [\"a\"]\n"},
     "data.flip: goes with data.train: the samples are a program's"},
    {{.data = "samples = 9\nside = 8\n", .net = "command = [\"a\"]\n"},
     "data.side: goes with data.train: the samples are a program's"},
    {{.data = "samples = 9\nresized_crop = 0.1\n", .net = "command = [\"a\"]\n"},
     "data.resized_crop: goes with data.train: the samples are a program's"},
    {{.data = "train = \"t\"\nresized_crop = 0.1\ncrop = 2\n"},
     "data.resized_crop: either a part that is resized, or crop, not both"},
    {{.data = "samples = 9\njitter = [0.1, 0.1, 0.1]\n", .net = "command = [\"a\"]\n"},
     "data.jitter: goes with data.train: the samples are a program's"},
    {{.data = "train = \"t\"\njitter = [0.1]\n"},
     "data.jitter: has three numbers: of brightness, contrast and saturation, as [0.4, 0.4, 0.4]; 0 leaves one out"},
    {{.data = "train = \"t\"\ncrop = 2\n", .algorithm = "kind = \"dane\"\nsolver = \"exact\"\n"},
     "data.crop: solver = \"exact\" takes the samples as they are: leave it out, or take another solver"},
    {{.data = "train = \"t\"\nflip = true\n", .algorithm = "kind = \"dane\"\nsolver = \"exact\"\n"},
     "data.flip: solver = \"exact\" takes the samples as they are: leave it out, or take another solver"},
    {{.data = "train = \"t\"\nresized_crop = 0.5\n", .algorithm = "kind = \"dane\"\nsolver = \"exact\"\n"},
     "data.resized_crop: solver = \"exact\" takes the samples as they are: leave it out, or take another solver"},
    {{.data = "train = \"t\"\njitter = [0.1, 0, 0]\n", .algorithm = "kind = \"dane\"\nsolver = \"exact\"\n"},
     "data.jitter: solver = \"exact\" takes the samples as they are: leave it out, or take another solver"},
    {{.data = "samples = 9\nmean = [0.5]\n", .net = "command = [\"a\"]\n"},
     "data.mean: goes with data.train: the samples are a program's"},
    {{.data = "samples = 9\nstd = [0.5]\n", .net = "command = [\"a\"]\n"},
     "data.std: goes with data.train: the samples are a program's"},
    {{.data = "samples = 9\ncontext = 2\n", .net = "command = [\"a\"]\n"},
     "data.context: goes with data.train: the samples are a program's"},
    {{.data = ""},
     "data.train: is missing: a pattern of shards, as \"fashion-mnist/train*.h5\""},
    {{.data = "train = \"\"\n"},
     "data.train: is empty"},

    {{.net = "preset = \"mlp\"\n[[net.layers]]\nkind = \"relu\"\n"},
     "net.layers: either a preset or layers, not both"},
    {{.net = "preset = \"mlp\"\ncommand = [\"a\"]\n"},
     "net.command: either a command, or a preset or layers, not both"},
    {{.net = "command = [\"\"]\n"},
     "net.command: names no program"},
    {{.net = "command = [\"a\"]\n", .parallel = "stages = 2\n"},
     "net.command: computes a whole net: [parallel] goes with presets and layers"},
    {{.net = "command = [\"a\"]\n", .algorithm = "kind = \"dane\"\nsolver = \"exact\"\n"},
     "net.command: computes gradients: solver = \"exact\" goes with the presets ridge and logistic"},
    {{.net = "preset = \"mlp\"\nthreads = 2\n"},
     "net.threads: goes with a command; gradcast's own nets compute a block with one thread"},
    {{.net = "preset = \"mlp\"\nenvironment = {A = \"b\"}\n"},
     "net.environment: goes with a command"},
    {{.net = "command = [\"a\"]\npad = 2\n"},
     "net.pad: goes with [[net.layers]]: the program of net.command gets samples as they are stored"},
    {{.net = "command = [\"a\"]\nprecision = \"bf16\"\n"},
     "net.precision: goes with presets and layers: the program of net.command chooses its own"},
    {{.net = "command = [\"a\"]\ndevice = \"cuda\"\n"},
     "net.device: goes with presets and layers: the program of net.command chooses its own"},
    {{.net = ""},
     "net.preset: is missing: lenet5, cnn, mlp, lenet3, lenet3-wide, lenet5-wide, cnn-norm, nin, resnet9, resnet18, resnet50, unet, ridge, logistic, vit-s, gpt, or [[net.layers]], or command"},
    {{.net = "preset = \"mlp\"\npad = 2\n"},
     "net.pad: a preset has its own; it goes with [[net.layers]]"},
    {{.net = "preset = \"mlp\"\ndepth = 2\n"},
     "net.depth: is of presets that come in sizes: it goes with preset = \"gpt\""},
    {{.net = "preset = \"mlp\"\nwidth = 2\n"},
     "net.width: is of presets that come in sizes: it goes with preset = \"gpt\""},
    {{.net = "preset = \"mlp\"\nheads = 2\n"},
     "net.heads: is of presets that come in sizes: it goes with preset = \"gpt\""},
    {{.net = "preset = \"mlp\"\ntied_head = true\n"},
     "net.tied_head: is of presets that come in sizes: it goes with preset = \"gpt\", and weights_of of [[net.layers]] does the same"},
    {{.net = "preset = \"mlp\"\ndropout = 0.1\n"},
     "net.dropout: is of presets that come in sizes: it goes with preset = \"gpt\", and [[net.layers]] have layers of this kind"},
    {{.net = "[[net.layers]]\nkind = \"linear\"\nweights_of = \"a\"\n", .algorithm = "kind = \"asgd\"\n"},
     "net.layers: weights that layers share (weights_of) go with ssgd in this version, not with asgd"},
    {{.net = "[[net.layers]]\nkind = \"softmax_cross_entropy\"\nmean_over = \"valid\"\n", .algorithm = "kind = \"ma\"\n"},
     "net.layers: mean_over = \"valid\" counts the positions of whole mini-batches: it goes with ssgd, not with ma"},
    {{.net = "mean_over = \"valid\"\n[[net.layers]]\nkind = \"softmax_cross_entropy\"\n"},
     "net.mean_over: is of presets: a layer softmax_cross_entropy has a key of this name"},
    {{.net = "preset = \"mlp\"\nprecision = \"tf32\"\n"},
     "net.precision: tf32 is for GPUs: it goes with device = \"cuda\""},
    {{.net = "preset = \"mlp\"\nresident = \"no\"\n"},
     "net.resident: no is for GPUs: it goes with device = \"cuda\""},
    {{.net = "preset = \"mlp\"\ndeterministic = false\n"},
     "net.deterministic: false is for GPUs: it goes with device = \"cuda\""},
    {{.net = "preset = \"mlp\"\ndevice = \"cuda\"\n", .algorithm = "kind = \"ma\"\n"},
     "net.device: workers of ma compute on CPUs in this version: take cpu"},

    {{.net = "preset = \"mlp\"\nstart_only = [\"fc*\"]\n"},
     "net.start_only: goes with start, the file whose tensors it chooses"},
    {{.net = "preset = \"mlp\"\nstart_skip = [\"fc*\"]\n"},
     "net.start_skip: goes with start, the file whose tensors it leaves out"},

    {{.optimiser = "decay_exempt = true\n"},
     "optimiser.decay_exempt: goes with a weight_decay above 0"},
    {{.optimiser = "evaluate = \"ema\"\n"},
     "optimiser.evaluate: there are no averaged weights: ema goes with optimiser.ema above 0"},
    {{.optimiser = "kind = \"lamb\"\n", .algorithm = "kind = \"ma\"\n"},
     "optimiser.kind: lamb goes with ssgd, not ma"},
    {{.optimiser = "kind = \"lamb\"\n", .parallel = "slices = 2\n"},
     "optimiser.kind: lamb takes norms of whole tensors in this version: leave slices and buddy out"},

    {{.algorithm = "kind = \"asgd\"\nexchange = \"ring\"\n"},
     "algorithm.exchange: asgd sends by no exchange: leave it out, or take multicast, by which one copy of the parameters goes to all nodes"},
    {{.algorithm = "kind = \"admm\"\nexchange = \"auto\"\n"},
     "algorithm.exchange: workers of admm have state and keep their nodes: name an exchange"},
    {{.algorithm = "kind = \"serial\"\nm = 2\n"},
     "algorithm.m: serial sends by no exchange: leave it out"},
    {{.algorithm = "kind = \"softsync\"\ns = 1\n"},
     "algorithm.s: softsync sends by no exchange: leave it out (s-softsync is collect = workers / s)"},
    {{.algorithm = "kind = \"asgd\"\ns = 1\n"},
     "algorithm.s: asgd sends by no exchange: leave it out"},
    {{.algorithm = "s = 1\n"},
     "algorithm.s: ring has nothing to spare for ranks that are lost: take coded-rs or coded, or s = 0"},
    {{.algorithm = "exchange = \"auto\"\nquantiser = \"fixed\"\ns = 1\n"},
     "algorithm.s: with the quantiser fixed no rank can be missed: take auto32 or auto16, or s = 0"},
    {{.algorithm = "kind = \"asgd\"\nr = 2\n"},
     "algorithm.r: asgd sends by no exchange: leave it out"},
    {{.algorithm = "kind = \"asgd\"\nweights = [1, 2]\n"},
     "algorithm.weights: asgd sends by no exchange: leave it out"},
    {{.algorithm = "exchange = \"coded\"\nweights = [1, 2]\n"},
     "algorithm.weights: nodes have equal shares with coded: leave it out, or take ring, unicast, multicast, ps or cssgd"},
    {{.algorithm = "weights = [1, 2]\nbalance = true\n"},
     "algorithm.balance: goes with the exchanges ring, unicast, multicast or ps, without weights, and with algorithms whose nodes compute "
     "blocks or workers without a state"},
    {{.algorithm = "servers_vote = true\n"},
     "algorithm.servers_vote: goes with asgd and softsync, not ssgd"},
    {{.algorithm = "kind = \"asgd\"\nservers_vote = true\n"},
     "algorithm.servers_vote: goes with survive = true in [job]"},

    {{.algorithm = "kind = \"asgd\"\nquantiser = \"auto16\"\n"},
     "algorithm.quantiser: asgd sends floats to a server, which sums 32 bits: leave it out"},
    {{.algorithm = "kind = \"serial\"\nquantiser = \"auto16\"\n"},
     "algorithm.quantiser: serial sends floats: leave it out"},
    {{.algorithm = "kind = \"ma\"\nquantiser = \"fixed\"\n"},
     "algorithm.quantiser: fixed clips what is above 10, and ma sums more than gradients: take auto32 or auto16"},
    {{.algorithm = "exchange = \"ring\"\nquantiser = \"fixed\"\n"},
     "algorithm.quantiser: ring does not allow the quantiser fixed: use auto32"},
    {{.algorithm = "kind = \"ma\"\nquantiser = \"auto16\"\nworkers = 65\n"},
     "algorithm.workers: 65 are too many for the quantiser auto16, 64 at most"},

    {{.algorithm = "kind = \"ma\"\nlocal_steps = 2\nlocal_epochs = 1\n"},
     "algorithm.local_steps: either local_steps or local_epochs, not both"},
    {{.algorithm = "kind = \"ma\"\nallocation = \"eda\"\nlocal_steps = 2\n"},
     "algorithm.local_steps: goes with allocation = \"parts\": a round of eda is an allocation_batches-th of the data"},
    {{.algorithm = "kind = \"ma\"\nallocation = \"bsda\"\nlocal_epochs = 2\n"},
     "algorithm.local_epochs: goes with allocation = \"parts\": a round of bsda is an allocation_batches-th of the data"},
    {{.algorithm = "kind = \"dane\"\nanchor = \"batch\"\nanchor_fraction = 0.5\n"},
     "algorithm.anchor_fraction: goes with anchor = \"full\", not \"batch\""},
    {{.algorithm = "kind = \"ma\"\nallocation_batches = 3\n"},
     "algorithm.allocation_batches: goes with allocation = \"eda\" or \"bsda\""},
    {{.algorithm = "kind = \"ma\"\nevaluate_workers = true\n"},
     "algorithm.evaluate_workers: there is nothing to evaluate on: data.test is missing"},
    {{.algorithm = "kind = \"dane\"\nsolver = \"exact\"\nexchange = \"auto\"\n"},
     "algorithm.solver: exact keeps its workers' nodes and sums 32 bits: no survive, no exchange auto, and the quantiser auto32"},
    {{.algorithm = "kind = \"asgd\"\nbeta = 0.5\n"},
     "algorithm.beta: goes with lambda = \"exp\", not \"none\""},
    {{.algorithm = "kind = \"ma\"\nreplay = \"replay.log\"\n"},
     "algorithm.replay: repeats the shares of allocation = \"bsda\", not \"parts\""},
    {{.job = "steps = 3\ncheckpoint_keep = 0\n", .algorithm = "kind = \"ma\"\n", .parallel = "stages = 2\n"},
     "parallel.stages: ma computes whole nets: stages go with ssgd"},
    {{.job = "steps = 3\ncheckpoint_keep = 0\n", .net = "preset = \"mlp\"\ndevice = \"auto\"\n", .parallel = "stages = 2\n"},
     "parallel.stages: the layers at which a net can be cut depend on the device: take device = \"cpu\" or \"cuda\""},
    {{.job = "steps = 3\ncheckpoint_keep = 0\n", .net = "preset = \"mlp\"\ndevice = \"cuda\"\n", .parallel = "stages = \"auto\"\n"},
     "parallel.stages: auto measures layers on CPUs in this version: name a number of stages, or take device = \"cpu\""},
    {{.job = "steps = 3\nsurvive = true\nmin_nodes = 3\n", .parallel = "stages = 2\nslices = 2\nslice_groups = 2\n"},
     "job.min_nodes: 3 is less than the 4 nodes of one replica (stages x slice_groups), without which the job cannot go on: take at least 4, or 0"},
    {{.job = "steps = 3\nsurvive = true\nmin_nodes = 1\n", .parallel = "stages = 5\nbuddy = true\n"},
     "job.min_nodes: is less than one node of each pair of buddies of 5 stages: the job cannot go on with fewer"},
    {{.job = "steps = 3\ncheckpoint_keep = 0\n", .algorithm = "weights = [1, 2]\n", .parallel = "stages = 2\n"},
     "parallel.stages: goes with equal shares of the blocks: leave balance and weights out"},
    {{.job = "steps = 3\ncheckpoint_keep = 0\n", .parallel = "stages = \"auto\"\ncuts = [\"fc2\"]\n"},
     "parallel.cuts: goes with a number of stages: with auto the cuts are chosen too"},
    {{.job = "steps = 3\ncheckpoint_keep = 0\n", .parallel = "stages = 3\ncuts = [\"fc2\"]\n"},
     "parallel.cuts: names the first layers of the second stage and the following ones: one fewer than stages, which is 3"},
    {{.parallel = "schedule = \"gpipe\"\n"},
     "parallel.schedule: goes with stages of at least 2"},
    {{.parallel = "recompute = true\n"},
     "parallel.recompute: goes with stages of at least 2: a whole net has the activations of one block at a time"},
    {{.job = "steps = 3\ncheckpoint_keep = 0\n", .parallel = "stages = 2\nschedule = \"zero-bubble\"\nrecompute = true\n"},
     "parallel.recompute: is not possible with the schedule zero-bubble, whose weights passes come later and need the activations: take 1f1b, eager-1f1b or gpipe"},
    {{.job = "steps = 3\ncheckpoint_keep = 0\n", .net = "preset = \"mlp\"\ndevice = \"cuda\"\n",
      .parallel = "stages = 2\nrecompute = true\n"},
     "parallel.recompute: computes on CPUs in this version: a GPU keeps the activations of its stage"},
    {{.job = "steps = 3\nsurvive = true\n", .parallel = "stages = 2\nslices = 2\nslice_groups = 2\nbuddy = true\n"},
     "parallel.buddy: keeps whole stages in this version, and nodes that share slices have parts of one: take slice_groups = 1, or leave buddy "
     "out"},
    {{.job = "steps = 3\nsurvive = true\n", .net = "preset = \"mlp\"\ndevice = \"cuda\"\n",
      .parallel = "stages = 2\nbuddy = true\n"},
     "parallel.buddy: computes on CPUs in this version: on GPUs a stage is kept by replicas, with twice the nodes"},
    {{.parallel = "buddy = true\n"},
     "parallel.buddy: goes with a number of stages, of at least 2: a neighbouring stage's node keeps each of them"},
    {{.parallel = "stages = 2\nbuddy = true\n"},
     "parallel.buddy: goes with survive = true in [job]"},
    {{.job = "steps = 3\nsurvive = true\n", .algorithm = "exchange = \"coded\"\ns = 1\n", .parallel = "stages = 2\nbuddy = true\n"},
     "parallel.buddy: goes with s = 0: a stage has one node, which is not missed but replaced"},
    {{.parallel = "micro_batch = 2\n"},
     "parallel.micro_batch: goes with stages or slice_groups of at least 2"},
    {{.job = "steps = 3\ncheckpoint_keep = 0\n", .parallel = "stages = 2\nmicro_batch = 9\n"},
     "parallel.micro_batch: 9 blocks are more than the 8 of a step"},
    {{.algorithm = "kind = \"ma\"\n", .parallel = "slices = 2\n"},
     "parallel.slices: ma computes whole layers in this version: slices go with ssgd"},
    {{.net = "preset = \"mlp\"\ndevice = \"cuda\"\n", .parallel = "slices = 2\n"},
     "parallel.slices: slices compute on CPUs in this version: take device = \"cpu\""},
    {{.parallel = "sliced = [\"fc1\"]\n"},
     "parallel.sliced: goes with slices of at least 2"},
    {{.parallel = "slice_groups = 2\n"},
     "parallel.slice_groups: nodes share the slices of layers, and there are none: set slices"},
    {{.parallel = "slices = 8\nslice_groups = 3\n"},
     "parallel.slice_groups: 3 is not a power of two"},
    {{.parallel = "slices = 2\nslice_groups = 4\n"},
     "parallel.slice_groups: 4 does not divide the 2 slices"},
    {{.algorithm = "weights = [1, 2]\n", .parallel = "slices = 2\nslice_groups = 2\n"},
     "parallel.slice_groups: goes with equal shares of the blocks: leave balance and weights out"},
};
// clang-format on

TEST(JobRules, EachIsBrokenByOneCase) {
    EXPECT_EQ(messages_of({}), std::vector<std::string>{});
    const std::span<const JobRule> rules = job_rules();
    for (size_t i = 0; i < std::max(rules.size(), rule_cases.size()); ++i) {
        ASSERT_LT(i, rule_cases.size()) << "no case for " << rules[i].key << ": " << rules[i].text;
        ASSERT_LT(i, rules.size()) << "no rule for " << rule_cases[i].message;
        EXPECT_EQ(messages_of(rule_cases[i].file), std::vector<std::string>{rule_cases[i].message}) << rule_cases[i].file.text();
        const std::string_view text = rules[i].text;
        EXPECT_TRUE(rule_cases[i].message.starts_with(fmt::format("{}: {}", rules[i].key, text.substr(0, text.find('{')))))
            << rules[i].key << ": " << text << " is not the rule of " << rule_cases[i].message;
    }
}

// What is auto counts as one: the plan leaves out grids that are too large.
TEST(JobRules, MinNodesAreThoseOfAReplica) {
    const auto broken = [](uint32_t nodes, const char* parallel) {
        const std::string job = fmt::format("steps = 3\nsurvive = true\nmin_nodes = {}\n", nodes);
        return messages_of({.job = job.c_str(), .parallel = parallel}).size();
    };
    constexpr char both[] = "stages = 2\nslices = 2\nslice_groups = 2\n", some[] = "stages = \"auto\"\nslices = 2\nslice_groups = 2\n";
    EXPECT_EQ(broken(4, both), 0u);
    EXPECT_EQ(broken(1, "stages = 2\n"), 1u);
    EXPECT_EQ(broken(2, "stages = 2\n"), 0u);
    EXPECT_EQ(broken(1, some), 1u);
    EXPECT_EQ(broken(2, some), 0u);
    EXPECT_EQ(broken(1, "stages = \"auto\"\n"), 0u);
}

TEST(JobRules, SliceGroupsMayBeAuto) {
    const auto said = [](const char* parallel) { return messages_of({.parallel = parallel}); };
    EXPECT_EQ(said("slices = 8\nslice_groups = \"auto\"\n"), std::vector<std::string>{});
    EXPECT_EQ(said("slice_groups = \"auto\"\n"),
              std::vector<std::string>{"parallel.slice_groups: nodes share the slices of layers, and there are none: set slices"});
}

// JobOption::Field says which.
TEST(JobRules, AKeyOfSsgd) {
    // clang-format off
    const RuleCase flagged[] = {
    {{.data = "samples = 9\n", .net = "command = [\"a\"]\n", .algorithm = "kind = \"ma\"\n"},
     "data.samples: goes with ssgd, not ma"},
    {{.net = "preset = \"unet\"\nmean_over = \"valid\"\n", .algorithm = "kind = \"ma\"\n"},
     "net.mean_over: goes with ssgd, not ma"},
    {{.net = "preset = \"gpt\"\ntied_head = true\n", .algorithm = "kind = \"ma\"\n"},
     "net.tied_head: goes with ssgd, not ma"},
    {{.optimiser = "weight_decay = 0.1\ndecay_exempt = [\"fc1\"]\n", .algorithm = "kind = \"ma\"\n"},
     "optimiser.decay_exempt: goes with ssgd, not ma"},
    {{.optimiser = "freeze = [\"fc1\"]\n", .algorithm = "kind = \"ma\"\n"},
     "optimiser.freeze: goes with ssgd, not ma"},
    {{.optimiser = "clip_norm = 1\n", .algorithm = "kind = \"ma\"\n"},
     "optimiser.clip_norm: goes with ssgd, not ma"},
    {{.optimiser = "ema = 0.9\n", .algorithm = "kind = \"ma\"\n"},
     "optimiser.ema: goes with ssgd, not ma"},
    {{.algorithm = "kind = \"ma\"\n", .profile = "step = 2\n"},
     "profile.step: goes with ssgd, not ma"},
    };
    // clang-format on
    std::set<std::string> said;
    for (const RuleCase& each : flagged) {
        EXPECT_EQ(messages_of(each.file), std::vector<std::string>{each.message}) << each.file.text();
        said.insert(each.message);
    }
    for (const JobOption& option : job_options()) {
        const std::string key = fmt::format("{}.{}", option.section, option.key);
        EXPECT_EQ(said.contains(key + ": goes with ssgd, not ma"), option.field.ssgd) << key;
    }
}

TEST(JobRules, AKeyOfOtherAlgorithms) {
    EXPECT_EQ(
        messages_of({.algorithm = "mu = 0.5\ncollect = 2\n"}),
        (std::vector<std::string>{"algorithm.mu: goes with dane, fedprox, not ssgd", "algorithm.collect: goes with softsync, not ssgd"}));
    EXPECT_EQ(messages_of({.algorithm = "mu = 0.1\n"}), std::vector<std::string>{});   // the default says nothing
}

TEST(JobRules, AKeyOfOtherOptimisers) {
    const auto mistakes = [](const char* optimiser) { return messages_of({.optimiser = optimiser}); };
    using Texts = std::vector<std::string>;
    EXPECT_EQ(mistakes("kind = \"adam\"\nmomentum = 0.9\nnesterov = true\n"),
              (Texts{"optimiser.momentum: goes with kind = \"sgd\", not \"adam\"",
                     "optimiser.nesterov: goes with kind = \"sgd\", not \"adam\""}));
    EXPECT_EQ(mistakes("nesterov = true\n"), Texts{"optimiser.nesterov: goes with a momentum above 0"});
    EXPECT_EQ(mistakes("beta1 = 0.5\nbeta2 = 0.5\nepsilon = 0.5\n"),
              (Texts{"optimiser.beta1: goes with kind = \"adam\" or \"adamw\" or \"lamb\", not \"sgd\"",
                     "optimiser.beta2: goes with kind = \"adam\" or \"adamw\" or \"lamb\", not \"sgd\"",
                     "optimiser.epsilon: goes with kind = \"adam\" or \"adamw\" or \"lamb\", not \"sgd\""}));
    EXPECT_EQ(mistakes("decay_every = 5\n"), Texts{"optimiser.decay_every: goes with schedule = \"step\", not \"constant\""});
    EXPECT_EQ(mistakes("schedule = \"cosine\"\ndecay = 0.5\n"), Texts{"optimiser.decay: goes with schedule = \"step\", not \"cosine\""});
    EXPECT_EQ(mistakes("lr_end = 0.01\n"), Texts{"optimiser.lr_end: goes with schedule = \"cosine\", not \"constant\""});
    EXPECT_EQ(mistakes("schedule = \"step\"\n"), Texts{"optimiser.schedule: step needs decay_every, a number of steps"});
    // The default says nothing, and what a misspelt kind or schedule has is not known.
    EXPECT_EQ(mistakes("kind = \"adam\"\nweight_decay = 0.5\nmomentum = 0\nnesterov = false\n"), Texts{});
    EXPECT_EQ(mistakes("kind = \"adams\"\nbeta1 = 0.5\n").size(), 1u);
    EXPECT_EQ(mistakes("schedule = \"steps\"\ndecay_every = 5\n").size(), 1u);
}

TEST(JobRules, OneMistakeOfAKeyAtATime) {
    EXPECT_EQ(messages_of({.optimiser = "kind = \"adam\"\nmomentum = 1\n"}),
              std::vector<std::string>{"optimiser.momentum: 1 is not below 1"});
    EXPECT_EQ(messages_of({.data = "train = 3\n"}), std::vector<std::string>{"data.train: is a whole number, not text in quotes"});
    // What a misspelt algorithm would take is not known.
    EXPECT_EQ(messages_of({.algorithm = "kind = \"dame\"\nmu = 1\ns = 2\nservers_vote = true\n"}).size(), 1u);
}

TEST(JobRules, ABoundThatIsNotAllowedItself) {
    for (const auto& [kind, key] : {std::pair{"sgd", "momentum"}, {"adam", "beta1"}, {"adam", "beta2"}}) {
        const auto mistakes = [&](const char* value) {
            return messages_of({.optimiser = fmt::format("kind = \"{}\"\n{} = {}\n", kind, key, value)});
        };
        EXPECT_EQ(mistakes("0.999"), std::vector<std::string>{});
        EXPECT_EQ(mistakes("1"), std::vector<std::string>{fmt::format("optimiser.{}: 1 is not below 1", key)});
        EXPECT_EQ(mistakes("1.5"), std::vector<std::string>{fmt::format("optimiser.{}: 1.5 is above 1", key)});
    }
    for (const auto& [kind, key] : {std::pair{"diloco", "outer_momentum"}, {"oneshot", "fraction"}}) {
        const auto mistakes = [&](const char* value) {
            return messages_of({.algorithm = fmt::format("kind = \"{}\"\n{} = {}\n", kind, key, value)});
        };
        EXPECT_EQ(mistakes("0.999"), std::vector<std::string>{});
        EXPECT_EQ(mistakes("1"), std::vector<std::string>{fmt::format("algorithm.{}: 1 is not below 1", key)});
    }
}

TEST(JobRules, AllWeightsAreInRange) {
    EXPECT_EQ(messages_of({.algorithm = "weights = [1, 1e31]\n"}), std::vector<std::string>{"algorithm.weights: 1e+31 is above 1e+30"});
}

}   // namespace
}   // namespace gradcast
