// Job files from stdin, changed by --set; list --state and wait.
#include "tools/gradcastctl/job_input.h"
#include "tests/ctl/ctl.h"

namespace gradcast {
namespace {

struct CtlInput : Ctl {};

std::string changed(std::string text, const std::string& set) {
    std::string note;
    const Status status = job_set(set, &text, &note);
    return status.ok() ? text : status.what;
}

TEST(JobSet, ReplacesOrAdds) {
    const std::string text = "[job]\nsteps = 3 # few\n[optimiser]\nlr = 0.5\n";
    EXPECT_EQ(changed(text, "optimiser.lr=0.1"), "[job]\nsteps = 3 # few\n[optimiser]\nlr = 0.1\n");
    EXPECT_EQ(changed(text, "job.steps=7"), "[job]\nsteps = 7 # few\n[optimiser]\nlr = 0.5\n");
    EXPECT_EQ(changed(text, "job.seed=1"), "[job]\nseed = 1\nsteps = 3 # few\n[optimiser]\nlr = 0.5\n");
    EXPECT_EQ(changed(text, "algorithm.exchange=ring"), text + "\n[algorithm]\nexchange = \"ring\"\n");
    EXPECT_EQ(changed("[job]", "job.seed=1"), "[job]\nseed = 1\n");
    EXPECT_EQ(changed("", "job.name=a \"b\" \\c"), "\n[job]\nname = \"a \\\"b\\\" \\\\c\"\n");
    EXPECT_EQ(changed(text, "data.train=\"x.h5\""), text + "\n[data]\ntrain = \"x.h5\"\n");
    for (const char* wrong : {"lr=1", "job.=1", ".lr=1", "job.lr", "job.lr="})
        EXPECT_EQ(changed(text, wrong), "--set " + std::string(wrong) + ": must be section.key=value, as optimiser.lr=0.01");
    EXPECT_EQ(changed(text, "job.name=a\n[net]"), "--set job.name: a value has one line");
    EXPECT_EQ(changed(text, "job.seed=18446744073709551616"),
              "--set job.seed=18446744073709551616: no number that a file of TOML can hold, which has 64 bits and a sign");
}

// Whatever valid form a file has.
TEST(JobSet, FindsItsKeyInEveryForm) {
    struct {
        const char *text, *set, *is;
    } cases[] = {
        {"job = { seed = 1, steps = 3 }\n", "job.steps=7", "job = { seed = 1, steps = 7 }\n"},
        {"job = { seed = 1 }\n", "job.steps=7", "job = { steps = 7, seed = 1 }\n"},
        {"job = {}\n", "job.steps=7", "job = { steps = 7 }\n"},
        {"[ job ] # x\nsteps = 3\n", "job.steps=7", "[ job ] # x\nsteps = 7\n"},
        {"[ job ] # x\nseed = 3\n", "job.steps=7", "[ job ] # x\nsteps = 7\nseed = 3\n"},
        {"[\"job\"]\n\"steps\" = 3\n", "job.steps=7", "[\"job\"]\nsteps = 7\n"},
        {"job.steps = 3\njob.seed = 2\n", "job.steps=7", "job.steps = 7\njob.seed = 2\n"},
        {"job.seed = 2\n[net]\n", "job.steps=7", "job.steps = 7\njob.seed = 2\n[net]\n"},
        {"[algorithm]\nweights = [1,\n  2, # two\n 3]\ns = 1\n", "algorithm.weights=[1, 1]", "[algorithm]\nweights = [1, 1]\ns = 1\n"},
        {"[job]\nname = \"\"\"steps = 1\n[job]\n\"\"\"\nsteps = 3\n", "job.steps=7",
         "[job]\nname = \"\"\"steps = 1\n[job]\n\"\"\"\nsteps = 7\n"},
        {"[[net.layers]]\nkind = \"relu\"\n", "net.start=a", "[[net.layers]]\nkind = \"relu\"\n\n[net]\nstart = \"a\"\n"},
        {"[job]\nname = \"\u00e9\" # \u00e9\r\nsteps = 3\r\n", "job.steps=7", "[job]\nname = \"\u00e9\" # \u00e9\r\nsteps = 7\r\n"},
        {"[job]\nepochs = 8\nseed = 1\n", "job.steps=7", "[job]\nsteps = 7\nseed = 1\n"},
        {"job = { steps = 8 }\n", "job.epochs=2", "job = { epochs = 2 }\n"},
    };
    for (const auto& each : cases) EXPECT_EQ(changed(each.text, each.set), each.is) << each.text;
    EXPECT_EQ(changed("[job]\n[[net.layers]]\nkind = \"a\"\n[[net.layers]]\nkind = \"b\"\n", "net.layers=[]"),
              "--set net.layers: it cannot be changed where the file has it: write the value into the file");
    std::string text = "[job]\nepochs = 8\n", note;
    ASSERT_TRUE(job_set("job.steps=7", &text, &note).ok());
    EXPECT_EQ(note, "--set job.steps takes the place of epochs = 8");
}

TEST_F(CtlInput, SubmitsStdinWithSets) {
    backend.add(std::string(32, '0'), "tiny");   // the id that it gives
    serve();
    write("job.toml", good_job);
    const std::string command = "cd '" + folder + "' && '" + program + "' --socket '" + socket +
                                "' submit - --set job.steps=9 --set algorithm.exchange=unicast <job.toml >out 2>err";
    ASSERT_EQ(std::system(command.c_str()), 0) << read("err");
    const auto submitted = backend.submissions();
    ASSERT_EQ(submitted.size(), 1u);
    EXPECT_NE(submitted[0].text.find("steps = 9\n"), std::string::npos) << submitted[0].text;
    EXPECT_NE(submitted[0].text.find("exchange = \"unicast\"\n"), std::string::npos) << submitted[0].text;
    EXPECT_EQ(submitted[0].base, fs::canonical(folder));
    Outcome outcome = ask("submit job.toml --set optimiser.lr=fast");
    EXPECT_EQ(outcome.exit, 2);
    EXPECT_TRUE(outcome.says("optimiser.lr")) << outcome.err;
    EXPECT_TRUE(outcome.says("(with --set optimiser.lr=fast)")) << outcome.err;
    outcome = ask("resume tiny --set optimiser.lr=1");
    EXPECT_EQ(outcome.exit, 2);
    EXPECT_TRUE(outcome.says("--set changes a job file: name it after the job")) << outcome.err;
}

TEST_F(CtlInput, ListsByStateAndWaits) {
    serve();
    backend.finish(backend.add(id_a, "one"), JobState::done);
    JobDetail* failed = backend.add("bbbb0000000000000000000000000000", "two");
    Outcome outcome = ask("list --state running");
    EXPECT_EQ(outcome.exit, 0);
    EXPECT_EQ(outcome.out.find("one"), std::string::npos) << outcome.out;
    EXPECT_NE(outcome.out.find("two"), std::string::npos) << outcome.out;
    EXPECT_EQ(ask("list --state failed,cancelled").out, "no jobs that are failed or cancelled\n");
    EXPECT_EQ(ask("list --state lost").exit, 2);
    EXPECT_EQ(ask("wait one").out, "aaaa0000  one  done\n");
    const pid_t pid = start("--socket " + socket + " wait one two");
    backend.finish(failed, JobState::failed, "no disk");
    outcome = wait(pid);
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_EQ(outcome.out, "aaaa0000  one  done\nbbbb0000  two  failed  no disk\n");
    EXPECT_EQ(ask("wait three").exit, 2);
}

TEST_F(CtlInput, DeletesWhatHasEnded) {
    serve();
    backend.finish(backend.add(id_a, "one"), JobState::done);
    backend.add("bbbb0000000000000000000000000000", "two");
    EXPECT_EQ(ask("delete one").out, "job " + id_a + " is deleted at this node\n");
    EXPECT_EQ(ask("delete one").exit, 2);
    const Outcome outcome = ask("delete two");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says("has not ended")) << outcome.err;
}

}   // namespace
}   // namespace gradcast
