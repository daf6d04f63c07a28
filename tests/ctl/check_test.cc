// check, and the same check in run, submit and resume: mistakes of a job file and its data are found before a daemon has the job.
#include "tests/ctl/ctl.h"
#include "tests/limited_group.h"

namespace gradcast {
namespace {

struct Check : CtlData {
    /// good_job with `from` replaced.
    void job(const std::string& from = "", const std::string& to = "") const {
        std::string text = good_job;
        if (!from.empty()) {
            ASSERT_NE(text.find(from), text.npos) << from;
            text.replace(text.find(from), from.size(), to);
        }
        write("job.toml", text);
    }
};

constexpr char wide_layers[] =
    "[[net.layers]]\nkind = \"inner_product\"\noutputs = 400\n[[net.layers]]\nkind = \"inner_product\"\nname = \"second\"\noutputs = 700\n"
    "[[net.layers]]\nkind = \"inner_product\"\noutputs = 10\n[[net.layers]]\nkind = \"softmax_cross_entropy\"\n";
constexpr char layers_of_7[] = "[[net.layers]]\nkind = \"inner_product\"\noutputs = 7\n[[net.layers]]\nkind = \"softmax_cross_entropy\"";

// As many as a daemon has there.
TEST_F(Check, LanesFollowTheQuotaOfCpus) {
    const LimitedGroup group("cpu", "cpu.max", "cpu.cfs_quota_us", 100'000);
    if (group.path.empty()) GTEST_SKIP() << "no control group with a quota of CPUs can be made: it needs root and the cpu controller";
    import();
    job();
    EXPECT_EQ(group.inside([&] { return run("check job.toml").out.find(" a node with 1 lane ") != std::string::npos ? 0 : 1; }), 0)
        << read("out") << read("err");
}

TEST_F(Check, ShowsNetStepsAndMemory) {
    import();
    job();
    Outcome outcome = run("check job.toml");
    ASSERT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    for (const char* line : {"job         tiny\n", "data        320 samples of 1x28x28 in 10 classes, to train on, 80 to test on\n",
                             "conv1  conv                    1x32x32   6x28x28         156\n", "parameters  61706\n",
                             "steps       6, in 1 epoch\n", " a node with "})
        EXPECT_NE(outcome.out.find(line), outcome.out.npos) << line << "\n" << outcome.out;
    outcome = run("-o json check job.toml");
    ASSERT_EQ(outcome.exit, 0) << outcome.err;
    const Json json = outcome.json();
    EXPECT_EQ(json["parameters"], 61706);
    EXPECT_EQ(json["steps"], 6);
    EXPECT_EQ(json["epochs"], 1);
    EXPECT_EQ(json["data"], (Json{{"train", 320}, {"test", 80}, {"sample", {1, 28, 28}}, {"classes", 10}}));
    EXPECT_EQ(json["layers"][0],
              (Json{{"name", "conv1"}, {"kind", "conv"}, {"input", {1, 32, 32}}, {"output", {6, 28, 28}}, {"parameters", 156}}));
    EXPECT_GT(json["memory"]["bytes"], 61706 * 4);
    EXPECT_EQ(json["warnings"], Json::array());
    outcome = run("check job.toml --set optimiser.warm_up=9");
    EXPECT_NE(outcome.out.find("warning     optimiser.warm_up = 9 is more than the 6 steps"), outcome.out.npos) << outcome.out;
    EXPECT_EQ(outcome.err, "");
    expect_nothing_remains();
}

TEST_F(Check, AJobThatDoesNotFitIsAMistake) {
    import();
    job("[net]\npreset = \"lenet5\"\n", std::string("[net]\n") + wide_layers);
    EXPECT_EQ(run("check job.toml --nodes 2 --memory 1GiB --set job.checkpoint_keep=0").exit, 0);
    const char* all[] = {
        "check job.toml --nodes 2 --memory 17MiB --set job.checkpoint_keep=0",
        "check job.toml --nodes 2 --memory 17MiB --set job.checkpoint_keep=0 --set parallel.stages=auto --set parallel.micro_batch=4"};
    Outcome outcome = run(all[0]);
    EXPECT_EQ(outcome.exit, 2);
    EXPECT_TRUE(outcome.says("parallel.stages: the job does not fit in memory of 17.0 MiB a node; it is: 1 stage of 2 replicas: "))
        << outcome.err;
    EXPECT_TRUE(outcome.says("; parallel.stages = 2 would need ")) << outcome.err;
    EXPECT_EQ(run(all[1]).exit, 0) << read("err");
    outcome = run("check job.toml --nodes 2 --memory 3MiB --set job.checkpoint_keep=0 --set parallel.stages=auto");
    EXPECT_EQ(outcome.exit, 2);
    EXPECT_TRUE(outcome.says("parallel.stages: no grid fits in memory of 3.0 MiB a node; the smallest is: ")) << outcome.err;
    EXPECT_TRUE(run("check job.toml --memory 12").says("--memory 12: not a size like 512MiB, 8GiB or 20GB"));
}

TEST_F(Check, MistakesHaveTheirLineBeforeADaemonRuns) {
    import();
    serve();
    struct {
        const char *from, *to, *says;
    } cases[] = {
        {"\"test.h5\"", "\"t10k-labels-idx1-ubyte\"", "job.toml:9: data.test: "},
        {"\"test.h5\"", "\"test.h5\"\nclasses = 20", "job.toml:10: data.classes: classes = 20 is more than the 10 of "},
        {"\"test.h5\"", "\"test.h5\"\ncrop = 28", "job.toml:10: data.crop: 28 zeros"},
        {"preset = \"lenet5\"", layers_of_7, "job.toml:14: net.layers: layer loss1: its input 7x1x1 does not fit 10 classes"},
        {"preset = \"lenet5\"", "preset = \"ridge\"", "job.toml:11: net.preset: layer loss1: its input 1x1x1 does not fit 10 classes"},
        {"\"ssgd\"", "\"ma\"\nworkers = 400", "job.toml:17: algorithm.workers: 400 workers are more than the 320 samples of "},
        {"\"ssgd\"", "\"dane\"\nsolver = \"exact\"", "job.toml:17: algorithm.solver: exact is for the nets ridge and logistic"},
    };
    for (const auto& each : cases) {
        job(each.from, each.to);
        std::string first;
        for (const char* command : {"check job.toml", "run job.toml --local 2", "submit job.toml", "resume aaaa job.toml"}) {
            const Outcome outcome = ask(command);
            EXPECT_EQ(outcome.exit, 2) << command << each.to << outcome.err;
            EXPECT_TRUE(outcome.says(std::string("gradcastctl: ") + each.says)) << command << "\n" << outcome.err;
            if (first.empty()) first = outcome.err;
            EXPECT_EQ(outcome.err, first) << command;
        }
    }
    job();
    Outcome outcome = run("check job.toml --set data.classes=20");
    EXPECT_EQ(outcome.exit, 2);
    EXPECT_TRUE(outcome.says("(with --set data.classes=20)")) << outcome.err;
    for (const char* command : {"check job.toml --nodes 2", "run job.toml --local 2"}) {
        outcome = run(std::string(command) + " --set job.survive=true --set job.min_nodes=3");
        EXPECT_EQ(outcome.exit, 2) << command;
        EXPECT_TRUE(outcome.says("job.min_nodes = 3, but the job has 2 nodes")) << outcome.err;
    }
    EXPECT_FALSE(fs::exists(folder + "/state"));
    expect_nothing_remains();
}

TEST_F(Check, DataThatOnlyNodesHaveAreLeftToThem) {
    serve();
    job();
    Outcome outcome = run("check job.toml");
    EXPECT_EQ(outcome.exit, 2);
    EXPECT_TRUE(outcome.says("job.toml:8: data.train: ")) << outcome.err;
    EXPECT_EQ(run("run job.toml --local 1").err, outcome.err);
    (void)ask("submit job.toml");
    EXPECT_EQ(backend.submissions().size(), 1u);
    import();
    fs::remove(folder + "/test.h5");
    job("\"lenet5\"", "\"ridge\"");
    outcome = ask("submit job.toml");
    EXPECT_EQ(outcome.exit, 2);
    EXPECT_TRUE(outcome.says("job.toml:11: net.preset: ")) << outcome.err;
    EXPECT_EQ(backend.submissions().size(), 1u);
}

}   // namespace
}   // namespace gradcast
