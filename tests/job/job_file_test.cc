#include "runtime/job/file/job_file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <regex>
#include <set>

#include "nn/graph/layers.h"
#include "nn/net.h"
#include "runtime/core/fd.h"
#include "runtime/job/file/job_options.h"

namespace gradcast {
namespace {

// As DESIGN.md shows it, but for the exchange.
const std::string example = R"(# job.toml; relative paths are against this file's folder
[job]
name = "fmnist-lenet5"
seed = 1
epochs = 5                  # or steps = N
batch = 128
blocks = 8                  # the default; fixes the result, whatever the number of nodes
deadline = "30s"
[data]
train = "fashion-mnist/train*.h5"
test = "fashion-mnist/test*.h5"
[net]
preset = "lenet5"           # or [[net.layers]]
[optimiser]
kind = "sgd"
lr = 0.05
momentum = 0.9
[algorithm]
kind = "ssgd"
exchange = "ring"
m = 2
s = 0
quantiser = "auto32"
[transport]
kind = "auto"               # ip, rdma
)";

std::vector<std::string> mistakes_of(const std::string& text, JobConfig* config = nullptr) {
    JobConfig unused;
    std::vector<JobMistake> mistakes;
    bool good = job_parse(text, "job.toml", "/base", config ? config : &unused, &mistakes);
    EXPECT_EQ(good, mistakes.empty());
    std::vector<std::string> texts;
    for (const JobMistake& mistake : mistakes) {
        EXPECT_EQ(mistake.text.find('\n'), std::string::npos) << mistake.text;
        EXPECT_EQ(mistake.text.find(fmt::format("job.toml:{}: ", mistake.line)), 0u) << mistake.text;
        texts.push_back(mistake.text);
    }
    return texts;
}

/// The example with `from` replaced.
std::string changed(const std::string& from, const std::string& to) {
    std::string text = example;
    size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
}

TEST(JobFile, ExampleOfTheDesign) {
    JobConfig job;
    ASSERT_EQ(mistakes_of(example, &job), std::vector<std::string>{});
    EXPECT_EQ(job.text, example);
    EXPECT_EQ(job.name, "fmnist-lenet5");
    EXPECT_EQ(job.epochs, 5u);
    EXPECT_EQ(job.steps, 0u);
    EXPECT_EQ(job.batch, 128u);
    EXPECT_EQ(job.blocks, 8u);
    EXPECT_EQ(job.deadline_us, 30'000'000u);
    EXPECT_EQ(job.train, "/base/fashion-mnist/train*.h5");
    EXPECT_EQ(job.test, "/base/fashion-mnist/test*.h5");
    EXPECT_EQ(job.preset, "lenet5");
    EXPECT_EQ(job.optimiser.lr, 0.05);
    EXPECT_EQ(job.optimiser.momentum, 0.9);
    EXPECT_EQ(job.exchange, "ring");
    EXPECT_EQ(job.protect, Protect::auth);
}

// The names of layers without a name of their own, as the help of net.layers.name lists them, with their kind where it is another word.
TEST(JobFile, LayersAreNamedAsTheHelpSays) {
    std::string help;
    for (const FileKey& each : job_keys())
        if (each.section == "[[net.layers]]" && each.key == "name") help = each.help;
    std::set<std::string> described, named;
    const std::regex name("\\b[a-z_]+1\\b(?: \\([a-z_]+\\))?");
    for (std::sregex_iterator at(help.begin(), help.end(), name), end; at != end; ++at) described.insert(at->str());
    const NetSpec spec{.C = 1,
                       .H = 8,
                       .W = 8,
                       .classes = 2,
                       .layers = {{.kind = "conv", .values = {{"outputs", 2}, {"kernel", 3}}},
                                  {.kind = "batch_norm"},
                                  {.kind = "relu"},
                                  {.kind = "layer_norm"},
                                  {.kind = "group_norm"},
                                  {.kind = "gelu"},
                                  {.kind = "silu"},
                                  {.kind = "sigmoid"},
                                  {.kind = "tanh"},
                                  {.kind = "add", .from = "norm1"},
                                  {.kind = "multiply", .from = "norm1"},
                                  {.kind = "rms_norm"},
                                  {.kind = "concat", .from = "norm1"},
                                  {.kind = "upsample"},
                                  {.kind = "conv_transposed", .values = {{"outputs", 2}, {"kernel", 1}}},
                                  {.kind = "linear", .values = {{"outputs", 3}}},
                                  {.kind = "attention"},
                                  {.kind = "positions"},
                                  {.kind = "max_pool", .values = {{"kernel", 2}}},
                                  {.kind = "average_pool", .values = {{"kernel", 2}}},
                                  {.kind = "global_average_pool"},
                                  {.kind = "dropout", .values = {{"rate", 0.5}}},
                                  {.kind = "inner_product", .values = {{"outputs", 2}}},
                                  {.kind = "softmax_cross_entropy"}}};
    const NetSpec text{.H = 1,
                       .W = 5,
                       .classes = 1,
                       .element = Element::u16,
                       .vocabulary = 9,
                       .layers = {{.kind = "embedding", .values = {{"outputs", 9}}}, {.kind = "softmax_cross_entropy"}}};
    std::vector<Layer> layers, more;
    Status status = layers_check(spec, &layers);
    ASSERT_TRUE(status.ok()) << status.what;
    status = layers_check(text, &more);
    ASSERT_TRUE(status.ok()) << status.what;
    layers.insert(layers.end(), more.begin(), more.end());
    for (const Layer& layer : layers) {
        const std::string& own = layer.spec.name;
        const bool same = layer.spec.kind.starts_with(own.substr(0, own.size() - 1)) || own == "loss1";
        named.insert(same ? own : fmt::format("{} ({})", own, layer.spec.kind));
    }
    EXPECT_EQ(described, named);
}

TEST(JobFile, DefaultsAreThoseOfTheHelp) {
    JobConfig job, defaults;
    ASSERT_EQ(mistakes_of("[job]\nsteps = 3\n[data]\ntrain = \"/a/*.h5\"\n[net]\npreset = \"mlp\"\n", &job), std::vector<std::string>{});
    EXPECT_EQ(job.start, "");
    EXPECT_EQ(job.precision, Precision::f32);
    EXPECT_EQ(job.train, "/a/*.h5");
    EXPECT_EQ(job.steps, 3u);
    EXPECT_TRUE(job.test.empty());
    // Every default that the help prints, read as a file, gives what leaving it out gives.
    std::string text, section;
    for (size_t begin = 0, end; (end = job_help().find('\n', begin)) != std::string::npos; begin = end + 1) {
        std::string line = job_help().substr(begin, end - begin);
        if (line.starts_with("[")) section = line;
        if (line.starts_with("[") && line != "[[net.layers]]") text += line + "\n";
        if (!line.starts_with("    ") || section == "[[net.layers]]" || line.find(" = …") != std::string::npos ||
            line.starts_with("    pad"))
            continue;
        std::string value = line.substr(4, line.find("  ", 5) - 4);
        text += value + "\n";
    }
    text.insert(text.find("[job]\n") + 6, "steps = 3\n");
    text.insert(text.find("[data]\n") + 7, "train = \"/a/*.h5\"\n");
    text.insert(text.find("[net]\n") + 6, "preset = \"mlp\"\n");
    JobConfig spelled;
    ASSERT_EQ(mistakes_of(text, &spelled), std::vector<std::string>{}) << text;
    for (const JobOption& option : job_options())
        if (!option.of_layers()) {
            EXPECT_EQ(option.show(spelled), option.show(job)) << option.section << '.' << option.key;
        }
}

TEST(JobFile, EveryMistakeHasItsLine) {
    struct Case {
        const char *from, *to, *part;
    };
    for (const Case& each : std::vector<Case>{
             {"lr = 0.05", "lr = -1", "job.toml:16: optimiser.lr: -1 is not above 0"},
             {"lr = 0.05", "lr = nan", "job.toml:16: optimiser.lr: nan is not above 0"},
             {"lr = 0.05", "lr = inf", "job.toml:16: optimiser.lr: inf is above"},
             {"lr = 0.05", "lr = \"0.05\"", "job.toml:16: optimiser.lr: is text, not a number"},
             {"momentum = 0.9", "momentum = 1", "job.toml:17: optimiser.momentum: 1 is not below 1"},
             {"momentum = 0.9", "momentun = 0.9", "job.toml:17: optimiser.momentun: is not known: did you mean momentum?"},
             {"momentum = 0.9", "zzzzzzzz = 1",
              "job.toml:17: optimiser.zzzzzzzz: is not known: kind, lr, momentum, weight_decay, nesterov, beta1, beta2, epsilon, "
              "schedule, warm_up, decay_every, decay, lr_end"},
             {"momentum = 0.9", "nesterov = true", "job.toml:17: optimiser.nesterov: goes with a momentum above 0"},
             {"momentum = 0.9", "nesterov = 1", "job.toml:17: optimiser.nesterov: is a whole number, not true or false"},
             {"momentum = 0.9", "beta2 = 1", "job.toml:17: optimiser.beta2: 1 is not below 1"},
             {"momentum = 0.9", "epsilon = 0", "job.toml:17: optimiser.epsilon: 0 is not above 0"},
             {"momentum = 0.9", "schedule = \"step\"", "job.toml:17: optimiser.schedule: step needs decay_every, a number of steps"},
             {"momentum = 0.9", "schedule = \"cosin\"",
              "job.toml:17: optimiser.schedule: \"cosin\" is not one of constant, step, cosine (did you mean cosine?)"},
             {"momentum = 0.9", "warm_up = -1", "job.toml:17: optimiser.warm_up: -1 is below 0"},
             {"momentum = 0.9", "warmup = 1", "job.toml:17: optimiser.warmup: is not known: did you mean warm_up?"},
             {"[optimiser]", "[optimizer]", "job.toml:14: optimizer: is not known: did you mean optimiser?"},
             {"kind = \"sgd\"", "kind = \"sdg\"",
              "job.toml:15: optimiser.kind: \"sdg\" is not one of sgd, adam, adamw, lamb (did you mean sgd?)"},
             {"kind = \"sgd\"", "kind = \"adamW\"",
              "job.toml:15: optimiser.kind: \"adamW\" is not one of sgd, adam, adamw, lamb (did you mean adamw?)"},
             {"momentum = 0.9", "Momentum = 0.9", "job.toml:17: optimiser.Momentum: is not known: did you mean momentum?"},
             {"epochs = 5 ", "epochs = 5\nsteps = 7 ", "job.toml:6: job.steps: either epochs or steps, not both"},
             {"epochs = 5 ", " ", "job.toml:2: job.epochs: is missing: either epochs or steps"},
             {"epochs = 5 ", "epochs = 0 ", "job.toml:5: job.epochs: 0 is below 1"},
             {"epochs = 5 ", "epochs = 1.5 ", "job.toml:5: job.epochs: is a number, not a whole number"},
             {"batch = 128", "batch = 4", "job.toml:7: job.blocks: 8 blocks are more than the 4 samples"},
             {"blocks = 8 ", "blocks = 65537 ", "job.toml:7: job.blocks: 65537 is above 65536"},
             {"blocks = 8 ", "blocks = 9223372036854775807 ", "job.toml:7: job.blocks: 9223372036854775807 is above 65536"},
             {"seed = 1", "seed = -1", "job.toml:4: job.seed: -1 is below 0"},
             {"seed = 1", "seed = 9007199254740993", "job.toml:4: job.seed: 9007199254740993 is above 9007199254740992"},
             {"\"30s\"", "\"500ms\"", "job.toml:8: job.deadline: 500ms is below 4s"},
             {"\"30s\"", "\"30\"", "job.toml:8: job.deadline: \"30\" is not a duration"},
             {"\"30s\"", "\"30 parsecs\"", "job.toml:8: job.deadline: \"30 parsecs\" is not a duration"},
             {"\"30s\"", "\"-30s\"", "job.toml:8: job.deadline: -30s is below 4s"},
             {"\"30s\"", "30", "job.toml:8: job.deadline: is a whole number, not text, as \"30s\""},
             {"\"30s\"", "\"infs\"", "job.toml:8: job.deadline: "},
             {"name = \"fmnist-lenet5\"", "name = \"a/b\"", "job.toml:3: job.name: \"a/b\" is not 1 to 64 letters"},
             {"name = \"fmnist-lenet5\"", "name = \"\"", "job.toml:3: job.name: \"\" is not 1 to 64 letters"},
             {"train = ", "trian = ", "job.toml:10: data.trian: is not known: did you mean train?"},
             {"train = \"fashion-mnist/train*.h5\"", "train = \"\"", "job.toml:10: data.train: is empty"},
             {"test = \"fashion-mnist/test*.h5\"", "test = \"a\\u0000b\"", "job.toml:11: data.test: holds a zero byte"},
             {"preset = \"lenet5\"", "preset = \"lenet6\"", "(did you mean lenet5?)"},
             {"[net]", "[net]\nprecision = \"fb16\"", "net.precision: \"fb16\" is not one of f32, bf16, tf32 (did you mean bf16?)"},
             {"[net]", "[net]\nprecision = \"f16\"", "net.precision: \"f16\" is not one of f32, bf16, tf32 (did you mean "},
             {"[net]", "[net]\ndevice = \"gpu\"", "net.device: \"gpu\" is not one of cpu, cuda, auto (did you mean cpu?)"},
             {"[net]", "[net]\nprecision = 16", "net.precision: is a whole number, not text"},
             {"[net]", "[net]\nprecision = \"tf32\"", "job.toml:13: net.precision: tf32 is for GPUs: it goes with device = \"cuda\""},
             {"[data]", "tensorboard = \"yes\"\n[data]", "job.tensorboard: is text, not "},
             {"[net]", "[net]\nresident = \"no\"", "job.toml:13: net.resident: no is for GPUs: it goes with device = \"cuda\""},
             {"[net]", "[net]\ndeterministic = false", "job.toml:13: net.deterministic: false is for GPUs"},
             {"[net]", "[net]\nprecison = \"bf16\"", "net.precison: is not known: did you mean precision?"},
             {"preset = \"lenet5\"", "",
              "job.toml:12: net.preset: is missing: lenet5, cnn, mlp, lenet3, lenet3-wide, lenet5-wide, cnn-norm, nin, resnet9, resnet18, "
              "resnet50, unet, ridge, "
              "logistic, vit-s, gpt, or "
              "[[net.layers]]"},
             {"preset = \"lenet5\"", "preset = \"lenet5\"\npad = 2", "job.toml:14: net.pad: a preset has its own"},
             {"exchange = \"ring\"", "exchange = \"coded-x\"", "job.toml:20: algorithm.exchange: \"coded-x\" is not one of "},
             {"quantiser = \"auto32\"", "quantiser = \"fixed\"", "job.toml:23: algorithm.quantiser: "},
             {"quantiser = \"auto32\"", "quantiser = \"auto8\"",
              "job.toml:23: algorithm.quantiser: \"auto8\" is not one of auto32, auto16, fixed"},
             {"exchange = \"ring\"", "exchange = \"cssgd\" \nweights = 2",
              "job.toml:21: algorithm.weights: is a whole number, not a list of numbers, as [1, 2, 1]"},
             {"exchange = \"ring\"", "weights = [1, \"2\"]", "job.toml:20: algorithm.weights: holds text, not numbers alone"},
             {"exchange = \"ring\"", "weights = [1, 0.0]", "job.toml:20: algorithm.weights: 0 is not above 0"},
             {"exchange = \"ring\"", "exchange = \"coded-rs\"\nweights = [1, 2]",
              "job.toml:21: algorithm.weights: nodes have equal shares with coded-rs: leave it out, or take ring, unicast, multicast, ps "
              "or cssgd"},
             {"exchange = \"ring\"", "exchange = \"coded-rs\"\nbalance = true",
              "job.toml:21: algorithm.balance: goes with the exchanges ring, unicast, multicast or ps"},
             {"kind = \"ssgd\"", "kind = \"async\"", "job.toml:19: algorithm.kind: \"async\" is not one of ssgd"},
             {"kind = \"auto\"", "kind = \"udp\"", "job.toml:25: transport.kind: \"udp\" is not one of auto, rdma, ip, tcp"},
             {"kind = \"auto\"", "protect = \"yes\"", "job.toml:25: transport.protect: \"yes\" is not one of auth, encrypt, none"},
             {"s = 0", "s = 1",
              "job.toml:22: algorithm.s: ring has nothing to spare for ranks that are lost: take coded-rs or coded, or s = 0"},
             {"momentum = 0.9", "beta1 = 0.5",
              "job.toml:17: optimiser.beta1: goes with kind = \"adam\" or \"adamw\" or \"lamb\", not \"sgd\""},
             {"kind = \"sgd\"", "kind = \"adam\"", "optimiser.momentum: goes with kind = \"sgd\", not \"adam\""},
             {"momentum = 0.9", "decay_every = 5", "optimiser.decay_every: goes with schedule = \"step\", not \"constant\""},
             {"m = 2", "m = 0", "job.toml:21: algorithm.m: 0 is below 1"},
             {"[net]", "classes = -1\n[net]", "job.toml:12: data.classes: -1 is below 0"},
             {"[net]", "[parallel]\nstages = \"many\"\n[net]", "job.toml:13: parallel.stages: \"many\" is neither a whole number nor auto"},
             {"[net]", "[parallel]\nstages = 0\n[net]", "job.toml:13: parallel.stages: 0 is below 1; \"auto\" chooses"},
             {"[net]", "crop = -1\n[net]", "job.toml:12: data.crop: -1 is below 0"},
             {"[net]", "flip = 1\n[net]", "job.toml:12: data.flip: is a whole number, not true or false"},
             {"epochs = 5 ", "epochs = 5\nstop_at = 82 ", "job.toml:6: job.stop_at: 82 is above 1"},
         }) {
        std::vector<std::string> found = mistakes_of(changed(each.from, each.to));
        ASSERT_FALSE(found.empty()) << each.to;
        EXPECT_TRUE(
            std::any_of(found.begin(), found.end(), [&](const std::string& text) { return text.find(each.part) != std::string::npos; }))
            << each.to << " gives " << found[0] << ", wanted " << each.part;
    }
}

TEST(JobFile, WhenToEvaluateNeedsTestData) {
    std::string text = changed("test = \"fashion-mnist/test*.h5\"", "classes = 4\ncrop = 4\nflip = true");
    JobConfig job;
    EXPECT_EQ(mistakes_of(text, &job), std::vector<std::string>{});
    EXPECT_EQ(job.classes, 4u);
    EXPECT_EQ(job.crop, 4u);
    EXPECT_TRUE(job.flip);
    text.insert(text.find("seed"), "evaluate = 7\nstop_at = 0.82\n");
    EXPECT_EQ(mistakes_of(text),
              (std::vector<std::string>{"job.toml:4: job.evaluate: there is nothing to evaluate on: data.test is missing",
                                        "job.toml:5: job.stop_at: there is nothing to evaluate on: data.test is missing"}));
    ASSERT_EQ(mistakes_of(changed("seed", "evaluate = 7\nstop_at = 0.82\nseed"), &job), std::vector<std::string>{});
    EXPECT_EQ(job.evaluate, 7u);
    EXPECT_EQ(job.stop_at, 0.82);
}

TEST(JobFile, AllMistakesInOneGo) {
    std::string text = changed("lr = 0.05", "lr = -1");
    text.replace(text.find("batch = 128"), 11, "batch = \"x\"");
    text.replace(text.find("preset"), 6, "presett");
    EXPECT_EQ(mistakes_of(text), (std::vector<std::string>{
                                     "job.toml:6: job.batch: is text, not a whole number",
                                     "job.toml:12: net.preset: is missing: lenet5, cnn, mlp, lenet3, lenet3-wide, lenet5-wide, cnn-norm, "
                                     "nin, resnet9, resnet18, resnet50, unet, ridge, logistic, vit-s, gpt, or [[net.layers]], or command",
                                     "job.toml:13: net.presett: is not known: did you mean preset?",
                                     "job.toml:16: optimiser.lr: -1 is not above 0",
                                 }));
}

TEST(JobFile, AProgramComputesTheNet) {
    JobConfig job;
    EXPECT_EQ(mistakes_of(changed("preset = \"lenet5\"",
                                  "command = [\"python3\", \"train.py\"]\nthreads = 2\n"
                                  "environment = {B = \"2\", A = \"1\"}\n#"),
                          &job),
              std::vector<std::string>{});
    EXPECT_EQ(job.command, (std::vector<std::string>{"python3", "train.py"}));
    EXPECT_EQ(job.threads, 2u);
    EXPECT_EQ(job.environment, (std::vector<std::string>{"A=1", "B=2"}));
    const auto mistake = [](const char* environment) {
        return mistakes_of(changed("preset = \"lenet5\"", fmt::format("command = [\"a\"]\nenvironment = {}\n#", environment)));
    };
    EXPECT_EQ(mistake("3"),
              std::vector<std::string>{"job.toml:14: net.environment: is a whole number, not a table of texts, as {NAME = \"value\"}"});
    EXPECT_EQ(mistake("{A = 3}"), std::vector<std::string>{"job.toml:14: net.environment: \"A\" is a whole number, not text in quotes"});
    EXPECT_EQ(mistake("{\"A=B\" = \"c\"}"), std::vector<std::string>{"job.toml:14: net.environment: \"A=B\" is no name of a variable"});
    EXPECT_EQ(mistake("{A = \"c\\u0000\"}"), std::vector<std::string>{"job.toml:14: net.environment: holds a zero byte"});
    EXPECT_EQ(mistakes_of(changed("preset = \"lenet5\"", "command = \"a\"")),
              std::vector<std::string>{"job.toml:13: net.command: is text, not a list of texts, as [\"conv2\", \"fc1\"]"});
}

// What an algorithm takes is not asked of one that is misspelt.
TEST(JobFile, AMisspeltAlgorithmIsTheOnlyMistake) {
    const std::vector<std::string> found = mistakes_of(changed("kind = \"ssgd\"", "mu = 1\nworkers = 4\nkind = \"dame\""));
    ASSERT_EQ(found.size(), 1u);
    EXPECT_TRUE(found[0].ends_with("asgd, softsync (did you mean dane?)")) << found[0];
}

TEST(JobFile, ASectionIsNotAValue) {
    EXPECT_EQ(
        mistakes_of("net = 3\n[job]\nsteps = 1\n[data]\ntrain = \"t\"\n"),
        (std::vector<std::string>{"job.toml:1: net: is a whole number, not a section: write [net]",
                                  "job.toml:1: net.preset: is missing: lenet5, cnn, mlp, lenet3, lenet3-wide, lenet5-wide, cnn-norm, "
                                  "nin, resnet9, resnet18, resnet50, unet, ridge, logistic, vit-s, gpt, or [[net.layers]], or command"}));
}

TEST(JobFile, SyntaxErrorHasLineAndColumn) {
    std::vector<std::string> found = mistakes_of(changed("seed = 1", "seed = = 1"));
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].find("job.toml:4: column 8: "), 0u) << found[0];
    EXPECT_EQ(mistakes_of(std::string((1 << 20) + 1, ' ')),
              std::vector<std::string>{"job.toml:1: 1048577 bytes are too many for a job file, at most 1048576"});
}

TEST(JobFile, DepthIsBounded) {
    std::string parts;
    for (int i = 0; i < 500'000; ++i) parts += "a.";
    EXPECT_EQ(mistakes_of("[job]\n" + parts + "a = 1"),
              std::vector<std::string>{"job.toml:2: column 1: the parts of a key go more than 16 deep"});
    EXPECT_EQ(mistakes_of("[" + parts + "a]"), std::vector<std::string>{"job.toml:1: column 1: the parts of a key go more than 16 deep"});
}

TEST(JobFile, WhatTheFuzzerFound) {
    EXPECT_EQ(mistakes_of("[ =").size(), 1u);
    EXPECT_EQ(mistakes_of("\xC3\xA9 = 1\n").size(), 1u);
    JobConfig job;
    EXPECT_EQ(mistakes_of(changed("fashion-mnist/train*.h5",
                                  "donn\xC3\xA9"
                                  "es/\xE2\x82\xAC.h5") +
                              "# caf\xC3\xA9\n",
                          &job),
              std::vector<std::string>{});
    EXPECT_EQ(job.train,
              "/base/donn\xC3\xA9"
              "es/\xE2\x82\xAC.h5");
}

TEST(JobFile, Layers) {
    const std::string head = "[job]\nsteps = 1\n[data]\ntrain = \"t\"\n[net]\npad = 2\n";
    JobConfig job;
    ASSERT_EQ(mistakes_of(head + "[[net.layers]]\nkind = \"conv\"\nname = \"first\"\noutputs = 6\nkernel = 5\n"
                                 "[[net.layers]]\nkind = \"softmax_cross_entropy\"\n",
                          &job),
              std::vector<std::string>{});
    ASSERT_EQ(job.layers.size(), 2u);
    EXPECT_EQ(job.net_pad, 2u);
    EXPECT_EQ(job.layers[0].name, "first");
    EXPECT_EQ(layer_value(job.layers[0], "outputs"), 6);
    EXPECT_EQ(layer_value(job.layers[0], "kernel"), 5);
    EXPECT_EQ(layer_value(job.layers[0], "stride"), 1);
    EXPECT_EQ(mistakes_of(head + "preset = \"mlp\"\n[[net.layers]]\nkind = \"conv\"\n").size(), 2u);   // both, and pad with a preset
    std::vector<std::string> found = mistakes_of(head + "[[net.layers]]\nkind = \"konv\"\n[[net.layers]]\nkernell = 3\nname = \"a b\"\n");
    ASSERT_EQ(found.size(), 4u);
    EXPECT_EQ(found[0].find("job.toml:8: net.layers.kind: \"konv\" is not one of conv, "), 0u) << found[0];
    EXPECT_EQ(found[1].find("job.toml:9: net.layers.name: \"a b\" is not "), 0u) << found[1];
    EXPECT_EQ(found[2].find("job.toml:9: net.layers.kind: is missing: conv, "), 0u) << found[2];
    EXPECT_EQ(found[3], "job.toml:10: net.layers.kernell: is not known: did you mean kernel?");
    ASSERT_EQ(mistakes_of(head + "[[net.layers]]\nkind = \"max_pool\"\nname = \"a\"\nkernel = 3\nceil = true\n"
                                 "[[net.layers]]\nkind = \"dropout\"\nrate = 0.5\nfrom = \"a\"\n"
                                 "[[net.layers]]\nkind = \"conv\"\nbias = false\n"
                                 "[[net.layers]]\nkind = \"gelu\"\napproximate = \"tanh\"\n",
                          &job),
              std::vector<std::string>{});
    EXPECT_EQ(layer_text(job.layers[3]), "gelu approximate=tanh");
    EXPECT_EQ(mistakes_of(head + "[[net.layers]]\nkind = \"gelu\"\napproximate = \"erf\"\n"),
              std::vector<std::string>{"job.toml:9: net.layers.approximate: \"erf\" is not one of none, tanh"});
    EXPECT_EQ(layer_value(job.layers[0], "ceil"), 1);
    EXPECT_EQ(layer_value(job.layers[2], "bias"), 0);
    EXPECT_EQ(layer_value(job.layers[1], "rate"), 0.5);
    EXPECT_EQ(job.layers[1].from, "a");
    EXPECT_EQ(mistakes_of(head + "[[net.layers]]\nkind = \"dropout\"\nrate = 1\nceil = 1\nfrom = \"a b\"\n"),
              (std::vector<std::string>{
                  "job.toml:7: net.layers.from: \"a b\" is not 1 to 64 letters, digits, '.', '_' and '-' that begin with "
                  "a letter, a digit or '_'",
                  "job.toml:9: net.layers.rate: 1 is not below 1", "job.toml:10: net.layers.ceil: is a whole number, not true or false"}));
    EXPECT_EQ(mistakes_of(head + "layers = []\n").size(), 1u);
    EXPECT_EQ(mistakes_of(head + "layers = 7\n").size(), 1u);
    EXPECT_EQ(mistakes_of(head + "layers = [1, {}]\n").size(), 1u);
}

TEST(JobFile, ReadsAgainstItsOwnFolder) {
    std::string folder = ::testing::TempDir() + "gradcast_job_file_" + std::to_string(getpid());
    ASSERT_TRUE(make_directories(folder).ok());
    ASSERT_TRUE(file_write(folder + "/job.toml", example).ok());
    JobConfig job;
    Status status = job_read(folder + "/job.toml", &job);
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_EQ(job.base, folder);
    EXPECT_EQ(job.train, folder + "/fashion-mnist/train*.h5");
    EXPECT_EQ(job_read(folder + "/absent.toml", &job).code, Code::node_io);
    ASSERT_TRUE(file_write(folder + "/bad.toml", "[job]\nepochs = 0\n[net]\npreset = 1\n").ok());
    std::string what = job_read(folder + "/bad.toml", &job).what;
    EXPECT_EQ(std::count(what.begin(), what.end(), '\n'), 2) << what;
    EXPECT_NE(what.find("bad.toml:2: job.epochs: 0 is below 1"), std::string::npos) << what;
}

}   // namespace
}   // namespace gradcast
