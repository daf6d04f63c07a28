// check: what a job file and its data tell without a cluster.
#include "tests/ctl/ctl.h"

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
    expect_nothing_left();
}

}   // namespace
}   // namespace gradcast
