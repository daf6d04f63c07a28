// Nets of texts and masks on real daemons: one digest for any number of nodes and exchange, where a node is killed, and where the job is
// resumed.
#include "datasets/import.h"
#include "tests/daemon/jobs.h"
#include "tests/datasets/images.h"

namespace gradcast {
namespace {

struct NetOf {
    const char* name;
    void (*import)(const std::string& folder);
    std::string net;       // the lines of [data] that it needs, and [net]
    uint32_t blocks = 8;   // of 12 samples; batch norm wants at least two in each
};
void PrintTo(const NetOf& net, std::ostream* out) { *out << net.name; }

void text(const std::string& folder) {
    std::string words;
    for (int i = 0; i < 400; ++i) words += fmt::format("{} green bottles. ", i * 7919 % 100);
    ASSERT_TRUE(file_write(folder + "/words.txt", words).ok());
    ImportResult result;
    const Status status = data_import({.kind = "text", .from = folder + "/words.txt", .out = folder + "/data", .test = 0.2}, &result);
    ASSERT_TRUE(status.ok()) << status.what;
}

void masks(const std::string& folder) {
    for (const char* part : {"/from/images", "/from/masks"}) std::filesystem::create_directories(folder + part);
    for (uint32_t n = 0; n < 40; ++n) {
        std::vector<uint8_t> image, mask;
        for (uint32_t i = 0; i < 16 * 16; ++i) {
            image.push_back(static_cast<uint8_t>(random4(Purpose::test, n, i, 0)[0]));
            mask.push_back(image.back() / 90);
        }
        png(fmt::format("{}/from/images/{}.png", folder, n), 16, 16, PNG_FORMAT_GRAY, image);
        png(fmt::format("{}/from/masks/{}.png", folder, n), 16, 16, PNG_FORMAT_GRAY, mask);
    }
    ImportResult result;
    const Status status = data_import({.kind = "masks", .from = folder + "/from", .out = folder + "/data", .test = 0.2}, &result);
    ASSERT_TRUE(status.ok()) << status.what;
}

/// Of 16 x 16 pixels in 3 classes that differ in their brightness.
void images(const std::string& folder) {
    constexpr uint32_t count = 24, pixels = 3 * 16 * 16;
    std::vector<uint8_t> images;
    std::vector<int32_t> labels;
    for (uint32_t i = 0; i < count * pixels; ++i) {
        if (i % pixels == 0) labels.push_back(static_cast<int32_t>(i / pixels % 3));
        images.push_back(static_cast<uint8_t>(80 * static_cast<uint32_t>(labels.back()) + random4(Purpose::test, i, 0, 0)[0] % 60));
    }
    const DataInfo info{count, 3, 16, 16, 3, {0.4f, 0.4f, 0.4f}, {0.3f, 0.3f, 0.3f}, "a test"};
    std::filesystem::create_directories(folder + "/data");
    for (const char* half : {"train", "test"}) {
        const Status status = shard_write(fmt::format("{}/data/{}.h5", folder, half), info, images.data(), labels.data());
        ASSERT_TRUE(status.ok()) << status.what;
    }
}

/// The layer of that kind; keys: lines of it.
std::string layer(const char* kind, const char* keys = "") { return fmt::format("[[net.layers]]\nkind = \"{}\"\n{}\n", kind, keys); }
/// One level down and up.
std::string small_unet() {
    return "flip = true\ncrop = 2\n" + layer("conv", "outputs = 8\nkernel = 3\npad = 1") + layer("group_norm", "groups = 2") +
           layer("gelu", "name = \"skip\"") + layer("max_pool", "kernel = 2\nstride = 2") +
           layer("conv", "outputs = 16\nkernel = 3\npad = 1") + layer("relu") +
           layer("conv_transposed", "outputs = 8\nkernel = 2\nstride = 2") + layer("concat", "from = \"skip\"") +
           layer("conv", "outputs = 3\nkernel = 1") + layer("softmax_cross_entropy");
}
/// A stem and one residual unit.
std::string small_resnet() {
    const std::string conv = layer("conv", "outputs = 8\nkernel = 3\npad = 1\nbias = false") + layer("batch_norm");
    return conv + layer("relu", "name = \"stem\"") + conv + layer("relu") + conv + layer("add", "from = \"stem\"") + layer("relu") +
           layer("global_average_pool") + layer("inner_product", "outputs = 3") + layer("softmax_cross_entropy");
}

const NetOf nets[] = {{"gpt", text, "context = 12\n[net]\npreset = \"gpt\"\ndepth = 2\nwidth = 24\nheads = 3\ntied_head = true\n"},
                      {"unet", masks, small_unet()},
                      {"resnet", images, small_resnet(), 4}};
/// The presets, of many millions of parameters, so that their jobs have few steps.  These take minutes: GC_GRIDS=all, as `make nightly`
/// does, trains them.
std::vector<NetOf> large_nets() {
    const char* wanted = std::getenv("GC_GRIDS");
    if (!wanted || wanted != std::string_view("all")) return {};
    return {{"unet", masks, "[net]\npreset = \"unet\"\n", 4}, {"resnet18", images, "[net]\npreset = \"resnet18\"\n", 4}};
}

struct SystemNets : testing::TestWithParam<NetOf> {
    Cluster cluster{4};
    void SetUp() override {
        ASSERT_NO_FATAL_FAILURE(GetParam().import(cluster.folder));
        for (Node& node : cluster.nodes) cluster.configure(node, "interface = \"127.0.0.1\"\n");
        ASSERT_NO_FATAL_FAILURE(cluster.up());
    }
    std::string job(uint32_t steps, const std::string& algorithm, const std::string& more = "") const {
        return fmt::format(
            "[job]\nseed = 2\nsteps = {}\nbatch = 12\nblocks = {}\ndeadline = \"8s\"\n{}[data]\ntrain = \"{}/data/train.h5\"\n"
            "test = \"{}/data/test.h5\"\n{}[optimiser]\nkind = \"adam\"\nlr = 0.002\n[algorithm]\n{}",
            steps, GetParam().blocks, more, cluster.folder, cluster.folder, GetParam().net, algorithm);
    }
    JobStatus trained(const std::string& text, const std::vector<std::string>& nodes, std::string* job = nullptr) {
        const Json answer = cluster[0].submit(text, nodes);
        const std::string id = answer.value("id", "");
        EXPECT_NE(id, "") << answer.dump();
        if (job) *job = id;
        const JobStatus status = cluster[0].ended(id, 2 * patience_us);
        EXPECT_EQ(status.state, JobState::done) << status.error << logs(cluster);
        return status;
    }
    void one_digest(uint32_t steps);
    void killed_and_resumed(uint32_t steps, uint32_t checkpoint_every, uint32_t killed, uint32_t cancelled);
};

void SystemNets::one_digest(uint32_t steps) {
    const JobStatus wanted = trained(job(steps, "exchange = \"ring\"\n"), {"a"});
    EXPECT_GT(wanted.accuracy, 0);
    for (const char* algorithm : {"exchange = \"ring\"\n", "exchange = \"coded-rs\"\nm = 2\n"})
        for (const std::vector<std::string>& nodes : {std::vector<std::string>{"a", "b"}, {"a", "b", "c", "d"}}) {
            SCOPED_TRACE(fmt::format("{} of {} nodes", algorithm, nodes.size()));
            const JobStatus status = trained(job(steps, algorithm), nodes);
            EXPECT_EQ(status.digest, wanted.digest);
            EXPECT_EQ(status.accuracy, wanted.accuracy);
            EXPECT_EQ(status.test_loss, wanted.test_loss);
        }
}

/// A node is killed after so many steps, and the job is cancelled after so many.
void SystemNets::killed_and_resumed(uint32_t steps, uint32_t checkpoint_every, uint32_t killed, uint32_t cancelled) {
    const JobStatus wanted = trained(job(steps, "exchange = \"ring\"\n"), {"a"});
    // The code goes on without the node, and then without the job's first half.
    const std::string checkpoints = fmt::format("checkpoint_every = {}\n", checkpoint_every);
    std::string id = cluster[0].submit(job(steps, "exchange = \"coded-rs\"\nm = 2\ns = 1\n", checkpoints)).value("id", "");
    ASSERT_TRUE(eventually([&] { return cluster[0].step(id) >= killed; })) << cluster[0].job(id).dump(2) << logs(cluster);
    cluster[3].process->kill(SIGKILL), cluster[3].process->wait();
    ASSERT_TRUE(eventually([&] { return cluster[0].step(id) >= cancelled; })) << cluster[0].job(id).dump(2) << logs(cluster);
    cluster[0].post("/v1/jobs/" + id + "/cancel", Json::object());
    const JobStatus cut = cluster[0].ended(id, 2 * patience_us);
    ASSERT_TRUE(cut.state == JobState::cancelled) << cut.error << "at step " << cut.step;
    for (const size_t node : {1, 2}) (void)cluster[node].ended(id, 2 * patience_us);
    ASSERT_TRUE(eventually([&] { return cluster[0].sees() == "a b c"; }));
    std::string other = job(steps, "exchange = \"ring\"\n", checkpoints);
    const Json answer =
        cluster[0].post("/v1/jobs/" + id + "/resume", Json{{"text", other}, {"base", "/"}, {"path", "other.toml"}, {"nodes", {"a", "b"}}});
    ASSERT_EQ(answer.value("id", ""), id) << answer.dump();
    ASSERT_TRUE(eventually([&] { return cluster[0].job(id)["status"].value("resumed", uint64_t{0}) > 0; })) << logs(cluster);
    const JobStatus last = cluster[0].ended(id, 2 * patience_us);
    EXPECT_EQ(last.state, JobState::done) << last.error << logs(cluster);
    EXPECT_EQ(last.digest, wanted.digest);
}

TEST_P(SystemNets, OneDigestForAnyNumberOfNodesAndExchange) { one_digest(20); }
TEST_P(SystemNets, ANodeIsKilledAndTheJobIsResumed) { killed_and_resumed(600, 5, 15, 30); }

struct SystemLargeNets : SystemNets {};
TEST_P(SystemLargeNets, OneDigestForAnyNumberOfNodesAndExchange) { one_digest(1); }
TEST_P(SystemLargeNets, ANodeIsKilledAndTheJobIsResumed) { killed_and_resumed(24, 2, 3, 6); }

// Also a GPT whose head and embedding, which share their weights, are in different stages.
TEST_P(SystemNets, OneDigestForAnyStages) {
    const JobStatus wanted = trained(job(20, "exchange = \"ring\"\n"), {"a"});
    for (const auto& [stages, nodes] :
         {std::pair<uint32_t, std::vector<std::string>>{2, {"a", "b"}}, {2, {"a", "b", "c", "d"}}, {3, {"a", "b", "c"}}}) {
        SCOPED_TRACE(fmt::format("{} stages on {} nodes", stages, nodes.size()));
        const JobStatus status = trained(job(20, fmt::format("exchange = \"ring\"\n[parallel]\nstages = {}\n", stages)), nodes);
        EXPECT_EQ(status.digest, wanted.digest);
        EXPECT_EQ(status.test_loss, wanted.test_loss);
    }
}

// The three others are one replica, and a spare.
TEST_P(SystemNets, ANodeOfAStageIsKilledAndTheOthersGoOn) {
    constexpr uint32_t steps = 300;
    const JobStatus wanted = trained(job(steps, "exchange = \"ring\"\n"), {"a"});
    const std::string id =
        cluster[0].submit(job(steps, "exchange = \"ring\"\n[parallel]\nstages = 2\n", "survive = true\n")).value("id", "");
    ASSERT_TRUE(eventually([&] { return cluster[0].step(id) >= 15; })) << cluster[0].job(id).dump(2) << logs(cluster);
    cluster[3].process->kill(SIGKILL), cluster[3].process->wait();
    const JobStatus last = cluster[0].ended(id, 2 * patience_us);
    EXPECT_EQ(last.state, JobState::done) << last.error << logs(cluster);
    EXPECT_EQ(last.digest, wanted.digest);
    EXPECT_EQ(last.losses.size(), 1u);
}

// Linear layers are cut by outputs, the embedding by rows.  Where the head has the embedding's weights, a slice of both is the same rows.
struct SystemSlicedNets : SystemNets {};
TEST_P(SystemSlicedNets, OneDigestWhoeverHasTheSlices) {
    const auto sliced = [this](const std::string& parallel) {
        return job(
            20,
            "exchange = \"ring\"\n[parallel]\nslices = 4\nsliced = [\"wte\", \"h1_qkv\", \"h1_mlp1\", \"h2_projection\", \"h2_mlp2\", "
            "\"head\"]\n" +
                parallel);
    };
    const JobStatus wanted = trained(sliced(""), {"a"});
    EXPECT_GT(wanted.accuracy, 0);
    for (const auto& [parallel, nodes] : {std::pair{"", 2u},
                                          {"slice_groups = 2\n", 2u},
                                          {"slice_groups = 2\n", 4u},
                                          {"slice_groups = 4\n", 4u},
                                          {"slice_groups = 2\nstages = 2\nmicro_batch = 2\nrecompute = true\n", 4u}}) {
        SCOPED_TRACE(fmt::format("{} of {} nodes", parallel, nodes));
        const std::vector<std::string> all = {"a", "b", "c", "d"};
        const JobStatus status = trained(sliced(parallel), {all.begin(), all.begin() + nodes});
        EXPECT_EQ(status.digest, wanted.digest);
        EXPECT_EQ(status.step_digest, wanted.step_digest);
        EXPECT_EQ(status.accuracy, wanted.accuracy);
        EXPECT_EQ(status.test_loss, wanted.test_loss);
    }
}

TEST_P(SystemNets, StagesAreResumedOnAnotherGrid) {
    constexpr uint32_t steps = 400;
    const JobStatus wanted = trained(job(steps, "exchange = \"ring\"\n"), {"a"});
    const auto text = [&](uint32_t stages) {
        return job(steps, fmt::format("exchange = \"ring\"\n[parallel]\nstages = {}\n", stages), "checkpoint_every = 5\n");
    };
    const std::string id = cluster[0].submit(text(2), {"a", "b"}).value("id", "");
    ASSERT_TRUE(eventually([&] { return cluster[0].step(id) >= 15; })) << cluster[0].job(id).dump(2) << logs(cluster);
    cluster[0].post("/v1/jobs/" + id + "/cancel", Json::object());
    for (const size_t node : {0, 1}) ASSERT_TRUE(cluster[node].ended(id, 2 * patience_us).state == JobState::cancelled) << logs(cluster);
    const auto resume = [&](uint32_t stages, const std::vector<std::string>& nodes) {
        return cluster[0].post("/v1/jobs/" + id + "/resume",
                               Json{{"text", text(stages)}, {"base", "/"}, {"path", "other.toml"}, {"nodes", nodes}});
    };
    const Json answer = resume(2, {"a", "b", "c", "d"});
    ASSERT_EQ(answer.value("id", ""), id) << answer.dump();
    ASSERT_TRUE(eventually([&] { return cluster[0].job(id)["status"].value("resumed", uint64_t{0}) > 0; })) << logs(cluster);
    const JobStatus last = cluster[0].ended(id, 2 * patience_us);
    EXPECT_EQ(last.state, JobState::done) << last.error << logs(cluster);
    EXPECT_EQ(last.digest, wanted.digest);
}

const NetOf gpt = {"gpt", text, "context = 12\n[net]\npreset = \"gpt\"\ndepth = 2\nwidth = 24\nheads = 3\n"};
const NetOf tied = {"tied", text, nets[0].net};
INSTANTIATE_TEST_SUITE_P(Of, SystemSlicedNets, testing::Values(gpt, tied), [](const auto& p) { return p.param.name; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SystemLargeNets);   // without GC_GRIDS=all
INSTANTIATE_TEST_SUITE_P(Of, SystemLargeNets, testing::ValuesIn(large_nets()), [](const auto& p) { return p.param.name; });
INSTANTIATE_TEST_SUITE_P(Of, SystemNets, testing::ValuesIn(nets), [](const auto& p) { return p.param.name; });

}   // namespace
}   // namespace gradcast
