// What job_identity() prints of a job file.  Checkpoints and replay logs of earlier versions are compared with these texts, in this order.
#include <gtest/gtest.h>

#include "runtime/job/file/job_file.h"

namespace gradcast {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

Pairs identity(const std::string& text) {
    JobConfig job;
    std::vector<JobMistake> mistakes;
    EXPECT_TRUE(job_parse(text, "job.toml", "/base", &job, &mistakes)) << mistakes.front().text;
    return job_identity(job);
}

const std::string every_section = R"(
[job]
name = "all"
seed = 9007199254740992
epochs = 3
evaluate = 7
stop_at = 0.5
checkpoint_every = 4
checkpoint_keep = 3
audit_every = 2
batch = 64
blocks = 16
deadline = "1.5min"
tensorboard = true
[data]
train = "train*.h5"
test = "test*.h5"
classes = 7
crop = 4
flip = true
[net]
pad = 2
precision = "bf16"
device = "cpu"
start = "start.safetensors"
[[net.layers]]
kind = "conv"
name = "first"
outputs = 6
kernel = 5
stride = 2
pad = 1
bias = false
[[net.layers]]
kind = "max_pool"
kernel = 3
ceil = true
[[net.layers]]
kind = "dropout"
rate = 0.25
from = "first"
[[net.layers]]
kind = "softmax_cross_entropy"
[optimiser]
kind = "adam"
lr = 1e-3
weight_decay = 5e-4
beta1 = 0.8
beta2 = 0.99
epsilon = 1e-7
schedule = "cosine"
warm_up = 11
lr_end = 1e-5
[algorithm]
kind = "de"
exchange = "multicast"
balance = true
quantiser = "auto16"
workers = 6
local_steps = 5
validation = 1000
evaluate_workers = true
adapt = false
f = 0.75
cr = 0.6
crossover = "layer"
distribute = "best"
[transport]
kind = "tcp"
protect = "encrypt"
)";

TEST(JobIdentity, OfEverySection) {
    EXPECT_EQ(identity(every_section), (Pairs{{"job.seed", "9007199254740992"},
                                              {"job.batch", "64"},
                                              {"job.blocks", "16"},
                                              {"data.classes", "7"},
                                              {"data.crop", "4"},
                                              {"data.flip", "true"},
                                              {"net.preset", "none"},
                                              {"net.pad", "2"},
                                              {"net.precision", "bf16"},
                                              {"optimiser.kind", "adam"},
                                              {"optimiser.lr", "0.001"},
                                              {"optimiser.momentum", "0"},
                                              {"optimiser.weight_decay", "0.0005"},
                                              {"optimiser.nesterov", "false"},
                                              {"optimiser.beta1", "0.8"},
                                              {"optimiser.beta2", "0.99"},
                                              {"optimiser.epsilon", "1e-07"},
                                              {"optimiser.schedule", "cosine"},
                                              {"optimiser.warm_up", "11"},
                                              {"optimiser.decay_every", "0"},
                                              {"optimiser.decay", "0.1"},
                                              {"optimiser.lr_end", "1e-05"},
                                              {"algorithm.kind", "de"},
                                              {"algorithm.quantiser", "auto16"},
                                              {"algorithm.workers", "6"},
                                              {"algorithm.local_steps", "5"},
                                              {"algorithm.local_epochs", "1"},
                                              {"algorithm.validation", "1000"},
                                              {"algorithm.allocation", "parts"},
                                              {"algorithm.allocation_batches", "10"},
                                              {"algorithm.adapt", "false"},
                                              {"algorithm.f", "0.75"},
                                              {"algorithm.cr", "0.6"},
                                              {"algorithm.crossover", "layer"},
                                              {"algorithm.distribute", "best"},
                                              {"job.epochs", "3"},
                                              {"job.steps", "0"},
                                              {"layer 1", "conv name=first outputs=6 kernel=5 stride=2 pad=1 bias=0"},
                                              {"layer 2", "max_pool kernel=3 ceil=1"},
                                              {"layer 3", "dropout from=first rate=0.25"},
                                              {"layer 4", "softmax_cross_entropy"}}));
}

// No layers, no length without a cosine schedule, and no settings of ssgd.
TEST(JobIdentity, OfLittle) {
    EXPECT_EQ(identity("[job]\nsteps = 3\n[data]\ntrain = \"t\"\n[net]\npreset = \"mlp\"\n"), (Pairs{{"job.seed", "1"},
                                                                                                     {"job.batch", "128"},
                                                                                                     {"job.blocks", "8"},
                                                                                                     {"data.classes", "0"},
                                                                                                     {"data.crop", "0"},
                                                                                                     {"data.flip", "false"},
                                                                                                     {"net.preset", "mlp"},
                                                                                                     {"net.pad", "0"},
                                                                                                     {"net.precision", "f32"},
                                                                                                     {"optimiser.kind", "sgd"},
                                                                                                     {"optimiser.lr", "0.05"},
                                                                                                     {"optimiser.momentum", "0"},
                                                                                                     {"optimiser.weight_decay", "0"},
                                                                                                     {"optimiser.nesterov", "false"},
                                                                                                     {"optimiser.beta1", "0.9"},
                                                                                                     {"optimiser.beta2", "0.999"},
                                                                                                     {"optimiser.epsilon", "1e-08"},
                                                                                                     {"optimiser.schedule", "constant"},
                                                                                                     {"optimiser.warm_up", "0"},
                                                                                                     {"optimiser.decay_every", "0"},
                                                                                                     {"optimiser.decay", "0.1"},
                                                                                                     {"optimiser.lr_end", "0"},
                                                                                                     {"algorithm.kind", "ssgd"},
                                                                                                     {"algorithm.quantiser", "auto32"}}));
}

// Jobs without slices have the identity that they had before there were any.
TEST(JobIdentity, OfSlices) {
    const std::string net = "[job]\nsteps = 3\n[data]\ntrain = \"t\"\n[net]\npreset = \"mlp\"\n";
    Pairs wanted = identity(net);
    EXPECT_EQ(identity(net + "[parallel]\nslices = 1\n"), wanted);
    wanted.emplace_back("parallel.slices", "4");
    EXPECT_EQ(identity(net + "[parallel]\nslices = 4\nsliced = [\"fc1\"]\n"), wanted);   // the layers are those of the checked net
}

// The path of a replay log says where the order is from, not which it is.
TEST(JobIdentity, OfAReplay) {
    const Pairs pairs = identity(
        "[job]\nsteps = 3\n[data]\ntrain = \"t\"\n[net]\npreset = \"mlp\"\n"
        "[algorithm]\nkind = \"softsync\"\nreplay = \"replay.log\"\nlambda = \"exp\"\n");
    EXPECT_EQ(Pairs(pairs.begin() + 24, pairs.end()), (Pairs{{"algorithm.workers", "0"},
                                                             {"algorithm.local_steps", "0"},
                                                             {"algorithm.updates", "0"},
                                                             {"algorithm.stream", "parts"},
                                                             {"algorithm.lambda", "exp"},
                                                             {"algorithm.beta", "0.9"},
                                                             {"algorithm.max_staleness", "0"},
                                                             {"algorithm.collect", "0"},
                                                             {"algorithm.pull", "wait"}}));
}

}   // namespace
}   // namespace gradcast
