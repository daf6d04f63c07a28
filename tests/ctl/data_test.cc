// import, data inspect, data manifest.
#include <sys/stat.h>

#include "tests/ctl/ctl.h"

namespace gradcast {
namespace {

TEST_F(CtlData, ImportWritesShardsOnceUnlessForced) {
    import();
    EXPECT_TRUE(fs::exists(folder + "/train.h5"));
    EXPECT_TRUE(fs::exists(folder + "/test.h5"));
    Outcome outcome = run("import idx --from . --out .");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says("train.h5")) << outcome.err;
    outcome = run("import idx --from . --out . --force -o json");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_EQ(outcome.json()["train"], 320);
    EXPECT_EQ(outcome.json()["paths"].size(), 2u);
    outcome = run("import cifar10 --from absent --out other");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says("absent/data_batch_1.bin")) << outcome.err;
    outcome = run("import idx --from absent --out other");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says("absent")) << outcome.err;
}

TEST_F(CtlData, InspectShowsContentsAndFindsDamage) {
    import();
    Outcome outcome = run("data inspect 't*.h5' --sheet sheet.png");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_NE(outcome.out.find("400 samples of 1 x 28 x 28"), std::string::npos) << outcome.out;
    std::string png;
    ASSERT_TRUE(file_read(folder + "/sheet.png", &png).ok());
    EXPECT_TRUE(png.starts_with("\x89PNG"));
    EXPECT_NE(run("data inspect t*.h5").out.find("400 samples of 1 x 28 x 28"), std::string::npos);   // as the shell spells it out
    outcome = run("data inspect train.h5 -o json");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_EQ(outcome.json()["samples"], 320);
    EXPECT_EQ(outcome.json()["shards"].size(), 1u);
    EXPECT_EQ(outcome.json()["class_names"].size(), 0u);
    for (const char* name : {"train/ant", "train/bee", "test/ant"}) {
        const std::string to = folder + "/images/" + name;
        ASSERT_TRUE(make_directories(to).ok() && file_write(to + "/sheet.png", png).ok());
    }
    EXPECT_EQ(run("import images --from images --out insects").exit, 0);
    EXPECT_EQ(run("data inspect insects/train.h5 -o json").json()["class_names"], nlohmann::json::parse(R"(["ant", "bee"])"));
    EXPECT_EQ(run("data inspect train.h5 --sheet absent/sheet.png").exit, 1);
    std::string bytes;
    ASSERT_TRUE(file_read(folder + "/train.h5", &bytes).ok());
    bytes[bytes.size() / 2] ^= 0x10;
    ASSERT_TRUE(file_write(folder + "/train.h5", bytes).ok());
    outcome = run("data inspect train.h5 --sheet other.png");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says("train.h5")) << outcome.err;
    EXPECT_FALSE(fs::exists(folder + "/other.png"));
    EXPECT_EQ(run("data").exit, 2);
    outcome = run("data inspect .");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says(".: a folder: name the shards in it")) << outcome.err;
}

// The lines of `help shard`, as a user copies them.
TEST_F(CtlData, ShardsOfH5pyAsTheHelpSays) {
    const std::string help = run("help shard").out;
    std::string lines =
        "import numpy\nimages = (numpy.arange(20 * 3 * 4 * 5) % 251).reshape(20, 3, 4, 5)\nlabels = numpy.arange(20) % 10\n";
    bool code = false;
    for (size_t at = 0; at < help.size();) {
        const size_t end = help.find('\n', at);
        const std::string line = help.substr(at, end - at);
        code |= line.starts_with("    import");
        if (code && line.starts_with("    ")) lines += line.substr(4) + "\n";
        at = end + 1;
    }
    ASSERT_TRUE(code) << help;
    if (std::system("/usr/bin/python3 -c 'import h5py' 2>/dev/null") != 0) GTEST_SKIP() << "python3-h5py is missing";
    write("shard.py", lines);
    ASSERT_EQ(std::system(fmt::format("cd '{}' && /usr/bin/python3 shard.py", folder).c_str()), 0) << lines;
    Outcome outcome = run("data inspect train.h5 -o json");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_EQ(outcome.json()["shape"], nlohmann::json::parse("[3, 4, 5]"));
    EXPECT_EQ(outcome.json()["samples"], 20);
}

TEST_F(CtlData, ImportTakesAShareForTestingAndNamesEmptyClasses) {
    idx("train", 320);
    std::string labels = read("train-labels-idx1-ubyte");
    for (size_t i = 8; i < labels.size(); ++i) labels[i] = static_cast<char>(labels[i] / 2 * 2 + 1);
    write("train-labels-idx1-ubyte", labels);
    Outcome outcome = run("import idx --from . --out .");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_TRUE(outcome.says("no samples to test on: --test 10%")) << outcome.err;
    EXPECT_TRUE(outcome.says("5 of 10 classes: no sample to train on has the label 0, 2, 4, 6, 8")) << outcome.err;
    outcome = run("import idx --from . --out . --force --test 12.5% -o json");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_EQ(outcome.json()["train"], 280);
    EXPECT_EQ(outcome.json()["test"], 40);
    EXPECT_EQ(outcome.json()["notes"].size(), 1u);
    EXPECT_NE(run("data inspect test.h5").out.find("5 classes have no sample: 0, 2, 4, 6, 8\n"), std::string::npos);
    for (const char* wrong : {"10", "x%", "0%", "-5%", "100.5%"}) {
        outcome = run(std::string("import idx --from . --out . --force --test=") + wrong);
        EXPECT_EQ(outcome.exit, 2) << wrong;
        EXPECT_TRUE(outcome.says("a share is needed, as 10%")) << outcome.err;
    }
}

TEST_F(CtlData, ManifestMakesOneDataSet) {
    import();
    fs::create_directory(folder + "/lists");
    Outcome outcome = run("data manifest lists/all.toml train.h5 test.h5 -o json");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_EQ(outcome.json()["samples"], 400);
    std::string digest = outcome.json()["digest"];
    outcome = run("data inspect lists/all.toml -o json");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_EQ(outcome.json()["digest"], digest);
    // What it has written can be read.
    fs::copy(folder + "/train.h5", folder + "/lists/a [1]\".h5");
    EXPECT_EQ(run("data manifest lists/odd.toml 'lists/a [1]\".h5' 'te*.h5'").exit, 0);
    outcome = run("data inspect lists/odd.toml -o json");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_EQ(outcome.json()["digest"], digest);
    fs::create_symlink("train.h5", folder + "/link.h5");
    for (const char* twice : {"train.h5 train.h5", "./lists/../train.h5 train.h5", "train.h5 '*n.h5'", "link.h5 train.h5"}) {
        outcome = run(std::string("data manifest lists/twice.toml ") + twice);
        EXPECT_EQ(outcome.exit, 1);
        EXPECT_TRUE(outcome.says("train.h5 is there twice")) << outcome.err;
    }
    EXPECT_FALSE(fs::exists(folder + "/lists/twice.toml"));
    EXPECT_EQ(run("data manifest lists/all.h5 train.h5").exit, 2);
    EXPECT_EQ(run("data manifest lists/other.toml 'absent*.h5'").exit, 1);
    EXPECT_FALSE(fs::exists(folder + "/lists/other.toml"));
}

}   // namespace
}   // namespace gradcast
