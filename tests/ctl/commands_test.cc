// net.command in a folder, a checkpoint or a model: nothing is started unless somebody allows it.
#include "runtime/core/digest.h"
#include "runtime/job/model/model_file.h"
#include "tests/ctl/ctl.h"

namespace gradcast {
namespace {

struct SystemCommand : CtlData {
    void SetUp() override {
        CtlData::SetUp();
        if (!IsSkipped() && ::access((fs::path(program).parent_path() / "gradcastd").c_str(), X_OK) != 0)
            GTEST_SKIP() << "not built: gradcastd";
    }
    /// A job whose program says that it was started.
    std::string evil() const {
        write("evil.sh", script);
        EXPECT_EQ(::chmod((folder + "/evil.sh").c_str(), 0755), 0);
        std::string text = good_job;
        text.replace(text.find("preset = \"lenet5\""), 17, "command = [\"./evil.sh\", \"an argument\"]");
        return text.replace(text.find("steps = 6"), 9, "steps = 60");
    }
    bool started() const { return fs::exists(folder + "/started"); }
    bool refused(const Outcome& outcome, const std::string& from) const {
        return outcome.says(from + " would start a command: [\"./evil.sh\", \"an argument\"] in \"" + folder + "\", SHA-256 of \"" +
                            folder + "/./evil.sh\": " + sha256_hex(std::as_bytes(std::span(script))) + "; read what it does");
    }
    const std::string script = "#!/bin/sh\necho started >>started\n";
};

TEST_F(SystemCommand, AHostileFolderStartsNothing) {
    import();
    write("job.toml", good_job);
    Outcome outcome = run("run job.toml --local 1 --isa portable --keep kept");
    ASSERT_EQ(outcome.exit, 0) << outcome.err;
    const std::string text = evil();
    Model model;
    ModelVectors state;
    ASSERT_TRUE(checkpoint_read(folder + "/kept/final.h5", &model, &state).ok());
    model.job = text;
    model.base = folder;
    fs::remove(folder + "/kept/final.h5");
    ASSERT_TRUE(model_write(folder + "/kept/final.h5", model, {state.parameters, state.optimiser, state.exponents, state.algorithm}).ok());
    write("kept/job.toml", text);

    outcome = run("verify kept");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(refused(outcome, "kept/job.toml")) << outcome.err;
    outcome = run("run --resume kept/final.h5 --local 1");
    EXPECT_EQ(outcome.exit, 2);
    EXPECT_TRUE(refused(outcome, "kept/final.h5")) << outcome.err;
    for (const char* command :
         {"verify kept --sample 50%", "verify kept --from kept/final.h5", "verify kept/transcript.json", "evaluate kept --data test.h5",
          "evaluate kept/final.h5 --data test.h5", "predict kept/final.h5 missing.png", "export kept/final.h5 out.safetensors",
          "describe kept", "report kept --out report.html", "check kept/job.toml", "plan kept/job.toml --nodes 2",
          "run --resume kept/final.h5 --local 1 --profile trace.json"})
        (void)run(command);
    EXPECT_FALSE(started());

    // Whoever allows it has it started.
    outcome = run("run --resume kept/final.h5 --local 1 --allow-command");
    EXPECT_NE(outcome.exit, 0) << outcome.err;   // it computes no net
    EXPECT_TRUE(started()) << outcome.err;
    fs::remove(folder + "/started");
    (void)run("verify kept --allow-command");
    EXPECT_TRUE(started());
}

TEST_F(SystemCommand, AJobFileThatIsNamedIsAllowed) {
    import();
    write("evil.toml", evil());
    const Outcome outcome = run("run evil.toml --local 1 --isa portable");
    EXPECT_EQ(outcome.exit, 2) << outcome.err;
    EXPECT_TRUE(started()) << outcome.err;
}

}   // namespace
}   // namespace gradcast
