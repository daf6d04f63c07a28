// verify: the real command on what run --local keeps.
#include "tests/ctl/ctl.h"

namespace gradcast {
namespace {

struct SystemVerify : CtlData {
    void SetUp() override {
        CtlData::SetUp();
        if (!IsSkipped() && ::access((fs::path(program).parent_path() / "gradcastd").c_str(), X_OK) != 0)
            GTEST_SKIP() << "not built: gradcastd";
    }
};

TEST_F(SystemVerify, WhatARunKeepsIsComputedAgain) {
    import();
    write("job.toml", good_job);
    Outcome outcome = run("run job.toml --local 2 --isa portable --keep kept");
    ASSERT_EQ(outcome.exit, 0) << outcome.err;
    const std::string lines = read("kept/steps.jsonl"), transcript = read("kept/transcript.json");
    const std::string id = Json::parse(transcript)["id"].get<std::string>();
    outcome = run("verify kept");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_EQ(outcome.out, "transcript of job " + id.substr(0, 8) + " verified: chain over steps 1..6, its HMAC of key " +
                               Json::parse(transcript)["hmac"]["key"].get<std::string>() +
                               " not checked (--key FILE)\nsteps 1..6 verified: 6 digests equal\n");
    EXPECT_EQ(outcome.err, "");
    outcome = run("verify kept --steps 3..5 --lanes 3 -o json");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_EQ(outcome.json()["stretches"], Json::parse(R"([{"first":3,"last":5,"from":0,"compared":3}])"));
    EXPECT_EQ(outcome.json()["findings"], Json::array());
    EXPECT_EQ(outcome.json()["transcript"]["id"], id);
    outcome = run("verify kept --sample 1% --seed 4");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_NE(outcome.out.find("1 stretch chosen by --seed 4: a single false step was missed with a probability of 0.0%\n"),
              std::string::npos)
        << outcome.out;
    EXPECT_TRUE(outcome.says("kept: no checkpoint divides its steps, so the sample is all of them")) << outcome.err;

    // A bit of the model, and a part of it.
    const std::string model = read("kept/final.h5");
    for (const bool cut : {false, true}) {
        std::string bytes = model;
        if (cut) bytes.resize(bytes.size() / 2);
        else bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
        write("kept/final.h5", bytes);
        for (const char* what : {"verify kept", "verify kept --base .", "verify kept/transcript.json"}) {
            outcome = run(what);
            EXPECT_EQ(outcome.exit, 1) << what;
            EXPECT_TRUE(outcome.says("gradcastctl: kept/final.h5: ") || outcome.says(folder + "/kept/final.h5: ")) << outcome.err;
        }
    }
    write("kept/final.h5", model);

    // Of a daemon's job.
    backend.add(id_a, "first")->folder = folder + "/kept";
    serve();
    outcome = ask("verify first --steps 6");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_NE(outcome.out.find("steps 6..6 verified: 1 digests equal\n"), std::string::npos) << outcome.out;

    // Another instruction set, other data, none.
    outcome = run("verify kept --isa avx2");
    if (outcome.exit != 2) {   // this CPU has it
        EXPECT_EQ(outcome.exit, 1);
        EXPECT_TRUE(outcome.says("trained with other kernels: the kernel set was ")) << outcome.err;
    }
    outcome = run("verify kept --base elsewhere");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says("elsewhere/train.h5")) << outcome.err;

    // An edited line is found with and without computing.
    std::string edited = lines;
    char& digit = edited[edited.find("\"digest\":\"", edited.find("{\"step\":4,")) + 10];
    digit = digit == '0' ? '1' : '0';
    write("kept/steps.jsonl", edited);
    const std::string chain = "its chain over steps 1..6 differs: a line of steps.jsonl or the transcript was edited\n";
    outcome = run("verify kept/transcript.json");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_EQ(outcome.err, "gradcastctl: transcript.json: " + chain);
    outcome = run("verify kept -o json");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says(chain)) << outcome.err;
    EXPECT_TRUE(outcome.says("gradcastctl: step 4 differs: computed ")) << outcome.err;
    EXPECT_EQ(outcome.json()["findings"].size(), 2u);
    write("kept/steps.jsonl", lines);
    EXPECT_EQ(run("verify kept/transcript.json").exit, 0);

    // The private cluster's key is gone with it.
    write("key", "");
    ASSERT_EQ(std::system(("umask 077; rm " + folder + "/key; echo k1 " + std::string(64, 'a') + " >" + folder + "/key").c_str()), 0);
    outcome = run("verify kept/transcript.json --key key");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says("transcript.json: its HMAC ")) << outcome.err;
    expect_nothing_remains();
}

TEST_F(SystemVerify, AMemberSignsTheTranscriptAndAnInterruptLeavesNothing) {
    import();
    std::string job = good_job;
    job.replace(job.find("steps = 6"), 9, "steps = 3000");
    write("job.toml", job);
    // The private cluster's key is there while it runs.
    const pid_t cluster = start("run job.toml --local 1 --keep kept");
    std::vector<std::string> keys;
    for (uint64_t end = clock_us() + 60'000'000; clock_us() < end; std::this_thread::sleep_for(std::chrono::milliseconds(2)))
        if (file_glob(folder + "/gradcast-*/key", &keys).ok() && fs::file_size(keys[0]) > 64) break;
    ASSERT_FALSE(keys.empty());
    fs::copy_file(keys[0], folder + "/key");
    Outcome outcome = wait(cluster);
    ASSERT_EQ(outcome.exit, 0) << outcome.err;
    outcome = run("verify kept/transcript.json --key key");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_NE(outcome.out.find("chain over steps 1..3000, HMAC of key "), std::string::npos) << outcome.out;
    const std::string transcript = read("kept/transcript.json");
    std::string edited = transcript;
    write("kept/transcript.json", edited.replace(edited.find("node-1"), 6, "node-2"));
    outcome = run("verify kept/transcript.json --key key");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says("does not fit: it was edited")) << outcome.err;
    write("kept/transcript.json", transcript);

    const pid_t pid = start("verify kept");
    std::vector<std::string> steps;   // computed so far
    for (uint64_t end = clock_us() + 60'000'000; clock_us() < end; std::this_thread::sleep_for(std::chrono::milliseconds(5)))
        if (file_glob(folder + "/gradcast-*/steps.jsonl", &steps).ok() && fs::file_size(steps[0]) > 0) break;
    ::kill(pid, SIGINT);
    outcome = wait(pid, 30);
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_EQ(outcome.err, "gradcastctl: interrupted\n");
    expect_nothing_remains();
}

TEST_F(Ctl, VerifyRefusesWhatCannotBeVerified) {
    EXPECT_EQ(run("verify").exit, 2);
    fs::create_directory(folder + "/empty");
    Outcome outcome = run("verify empty");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says("empty/job.toml")) << outcome.err;
    EXPECT_TRUE(run("verify /nowhere/at/all").says("/nowhere/at/all: there is no such folder"));
    EXPECT_EQ(run("--socket none.sock verify job").exit, 3);
    for (const char* steps : {"0..3", "5..4", "1..", "..4", "1-4", "a..b"})
        EXPECT_TRUE(run(std::string("verify empty --steps ") + steps).says("two steps are needed")) << steps;
    for (const char* share : {"1", "0%", "101%", "-1%", "x%"})
        EXPECT_EQ(run(std::string("verify empty --sample=") + share).exit, 2) << share;
    EXPECT_EQ(run("verify empty --seed 3").exit, 2);
    EXPECT_EQ(run("verify empty --sample 1% --steps 1..2").exit, 2);
    EXPECT_EQ(run("verify empty --key nowhere").exit, 2);
}

}   // namespace
}   // namespace gradcast
