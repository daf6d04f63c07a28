// A text from import to generate, as a user types it.
#include "tests/ctl/ctl.h"

namespace gradcast {
namespace {

constexpr char text_job[] = R"([job]
name = "text"
steps = 40
batch = 8
blocks = 4
[data]
train = "text/train.h5"
test = "text/test.h5"
context = 16
[net]
preset = "gpt"
depth = 1
width = 16
heads = 2
[optimiser]
kind = "adam"
lr = 0.01
)";

struct SystemText : CtlData {
    void SetUp() override {
        CtlData::SetUp();
        if (IsSkipped()) return;
        std::string text;
        for (int i = 0; i < 300; ++i) text += "the cat sat on the mat; ";
        write("text.txt", text);
        write("job.toml", text_job);
        const Outcome imported = run("import text --from text.txt --out text --test 20%");
        ASSERT_EQ(imported.exit, 0) << imported.err;
    }
};

TEST_F(SystemText, IsTrainedEvaluatedAndContinued) {
    Outcome one = run("run job.toml --local 1 --keep one"), three = run("run job.toml --local 3 --keep three");
    ASSERT_EQ(one.exit, 0) << one.err;
    ASSERT_EQ(three.exit, 0) << three.err;
    EXPECT_EQ(one.out.substr(one.out.find("\ndigest ")), three.out.substr(three.out.find("\ndigest ")));
    EXPECT_NE(one.out.find("tokens/s\n"), std::string::npos) << one.out;
    EXPECT_NE(one.out.find("\ntest loss "), std::string::npos) << one.out;
    EXPECT_NE(one.out.find("\nperplexity "), std::string::npos) << one.out;

    const Outcome evaluated = run("evaluate one/final.h5 --data text/test.h5");
    EXPECT_EQ(evaluated.exit, 0) << evaluated.err;
    EXPECT_NE(evaluated.out.find("\nperplexity "), std::string::npos) << evaluated.out;
    const Json json = run("-o json evaluate one/final.h5 --data text/test.h5").json();
    EXPECT_EQ(json["tokens"], json["samples"].get<uint64_t>() * 16) << json.dump();
    EXPECT_GT(json["accuracy"], 0.5);
    EXPECT_NEAR(json["perplexity"].get<double>(), std::exp(json["loss"].get<double>()), 1e-9);

    const std::string generate = "generate one/final.h5 --prompt 'the ' --tokens 40";
    const Outcome text = run(generate);
    EXPECT_EQ(text.exit, 0) << text.err;
    EXPECT_TRUE(text.out.starts_with("the ")) << text.out;
    EXPECT_EQ(text.out.size(), 4u + 40 + 1);
    EXPECT_EQ(run(generate).out, text.out);
    EXPECT_EQ(run("generate three/final.h5 --prompt 'the ' --tokens 40").out, text.out);
    EXPECT_NE(run(generate + " --seed 2").out, text.out);
    EXPECT_EQ(run(generate + " --temperature 0").out, run(generate + " --top 1 --seed 3").out);
    const Json tokens = run("-o json " + generate).json();
    EXPECT_EQ(tokens["text"].get<std::string>() + "\n", text.out);
    EXPECT_EQ(tokens["tokens"].size(), 44u);
    EXPECT_EQ(tokens["prompt_tokens"], 4);

    ASSERT_EQ(run("export one/final.h5 one.safetensors").exit, 0);
    EXPECT_EQ(run("generate one.safetensors --prompt 'the ' --tokens 40").out, text.out);
}

// Byte pairs from import to generate: the model has the merges.
TEST_F(SystemText, MergesAreKept) {
    write("merges.txt", "#version: 0.2\nt h\nth e\nĠ c\na t\nĠc at\nĠ s\nĠs at\nĠ o\nĠo n\nĠ the\nĠ m\nĠm at\n");
    Outcome outcome = run("import text --from text.txt --out text --test 20% --vocabulary merges.txt --force");
    ASSERT_EQ(outcome.exit, 0) << outcome.err;
    // "the cat sat on the mat; ": 7 tokens a sentence, whose last space is a part of the next one's first word.
    const Json inspected = run("-o json data inspect text/train.h5").json();
    EXPECT_EQ(inspected["vocabulary"], 256 + 12 + 1) << inspected.dump();
    EXPECT_EQ(run("-o json data inspect text/test.h5").json()["samples"].get<uint64_t>() + inspected["samples"].get<uint64_t>(),
              300u * 7 + 1);
    outcome = run("run job.toml --local 1 --keep one");
    ASSERT_EQ(outcome.exit, 0) << outcome.err;
    const std::string two = run("run job.toml --local 2").out;
    EXPECT_NE(two.find(outcome.out.substr(outcome.out.find("\ndigest "))), two.npos) << two;
    const Outcome text = run("generate one/final.h5 --prompt 'the cat' --tokens 12");
    EXPECT_EQ(text.exit, 0) << text.err;
    EXPECT_TRUE(text.out.starts_with("the cat")) << text.out;
    const Json tokens = run("-o json generate one/final.h5 --prompt 'the cat' --tokens 12").json();
    EXPECT_EQ(tokens["prompt_tokens"], 2);   // "the", " cat"
    EXPECT_EQ(tokens["tokens"][0], 257);
    EXPECT_EQ(tokens["tokens"][1], 260);
    ASSERT_EQ(run("export one/final.h5 one.safetensors").exit, 0);
    EXPECT_EQ(run("generate one.safetensors --prompt 'the cat' --tokens 12").out, text.out);
    outcome = run("generate one/final.h5 --prompt the --vocabulary merges.txt");
    EXPECT_NE(outcome.exit, 0);
    EXPECT_TRUE(outcome.says("has its own: leave it out")) << outcome.err;
    // Of tokens of another program, whose vocabulary is given later.
    write("some.bin", std::string("\x01\x01\x04\x01\x06\x01\x0c\x01", 8) + std::string(160, '\1'));
    ASSERT_EQ(run("import tokens --from some.bin --out text --vocabulary 269 --force").exit, 0);
    std::string untested = read("job.toml");
    const size_t test = untested.find("test = ");
    untested.erase(test, untested.find('\n', test) + 1 - test);
    write("untested.toml", untested);
    outcome = run("run untested.toml --local 1 --set job.steps=1 --set data.context=4 --keep two");
    ASSERT_EQ(outcome.exit, 0) << outcome.err;
    outcome = run("generate two/final.h5 --prompt 'the cat' --tokens 3");
    EXPECT_TRUE(outcome.says("give their numbers (--prompt-tokens), or their file (--vocabulary)")) << outcome.err;
    outcome = run("generate two/final.h5 --prompt 'the cat' --tokens 3 --vocabulary merges.txt");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_TRUE(outcome.out.starts_with("the cat")) << outcome.out;
    write("other.txt", "t h\n");
    outcome = run("generate two/final.h5 --prompt the --vocabulary other.txt");
    EXPECT_NE(outcome.exit, 0);
    EXPECT_TRUE(outcome.says("other.txt: it has 258 tokens, but the model")) << outcome.err;
    outcome = run("import tokens --from some.bin --out text --vocabulary other.txt --force");
    EXPECT_NE(outcome.exit, 0);
    EXPECT_TRUE(outcome.says("not below --vocabulary other.txt, which has 258: it is not that of these tokens")) << outcome.err;
}

TEST_F(SystemText, Mistakes) {
    ASSERT_EQ(run("run job.toml --local 1 --set job.steps=1 --keep one").exit, 0);
    const auto fails = [&](const std::string& arguments, const std::string& says) {
        const Outcome outcome = run(arguments);
        EXPECT_NE(outcome.exit, 0) << arguments;
        EXPECT_TRUE(outcome.says(says)) << arguments << "\n" << outcome.err;
    };
    fails("generate one/final.h5 --prompt 'the X'", "the prompt has the character \"X\", which is not among the 11 of the model");
    fails("generate one/final.h5 --prompt-tokens 3,99", "token 99 is not below the vocabulary of 11");
    EXPECT_EQ(run("generate one/final.h5 --prompt-tokens 3,99").out, "");   // nothing of the prompt either
    std::string early = "99";                                               // before what the net sees
    for (int i = 0; i < 40; ++i) early += ",3";
    fails("generate one/final.h5 --prompt-tokens " + early, "token 99 is not below the vocabulary of 11");
    fails("predict one/final.h5 text.txt", "takes samples of u16, not images");
    fails("run job.toml --local 1 --set net.heads=3", "3 heads (net.heads) do not divide a width of 16 (net.width)");
    fails("run job.toml --local 1 --set data.context=9999", "too few for a context of 9999");
    fails("run job.toml --local 1 --set net.preset=mlp", "net.depth: is of presets that come in sizes: it goes with preset = \"gpt\"");
    std::string other = text_job;
    other.replace(other.find("\"gpt\""), std::string("\"gpt\"\ndepth = 1\nwidth = 16\nheads = 2").size(), "\"mlp\"");
    write("other.toml", other);
    fails("run other.toml --local 1", "net mlp takes images or a table, and the data are a text");
    fails("generate one/final.h5 --prompt the --temperature nan", "--temperature must be a number from 0 to 100");
    import();
    fails("generate one/final.h5 --prompt a --prompt-tokens 1", "two prompts");
    write("images.toml", good_job);
    ASSERT_EQ(run("run images.toml --local 1 --set job.steps=1 --keep images").exit, 0);
    fails("generate images/final.h5 --prompt a", "is not of a text, so it has nothing to continue");
    fails("evaluate one/final.h5 --data test.h5", "text");
    fails("evaluate images/final.h5 --data text/test.h5", "text");
}

}   // namespace
}   // namespace gradcast
