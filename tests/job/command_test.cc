// net.command as text for the person who is to allow it.
#include "runtime/job/file/command.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "runtime/core/fd.h"

namespace gradcast {
namespace {

struct Command : testing::Test {
    JobConfig job;
    void SetUp() override {
        job.base = testing::TempDir() + "gc-command";
        std::filesystem::remove_all(job.base);
        ASSERT_TRUE(make_directories(job.base).ok());
        ASSERT_TRUE(file_write(job.base + "/train.py", "abc").ok());
    }
    const std::string digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";   // FIPS 180-2, of "abc"
};

TEST_F(Command, HasTheDigestsOfItsFiles) {
    job.command = {"python3", "train.py", "--lr", "0.1"};
    EXPECT_EQ(command_text(job), "[\"python3\", \"train.py\", \"--lr\", \"0.1\"] in \"" + job.base + "\", SHA-256 of \"" + job.base +
                                     "/train.py\": " + digest);
    job.command = {"./train.py"};
    EXPECT_NE(command_text(job).find(digest), std::string::npos);
    job.command = {job.base + "/train.py"};
    EXPECT_NE(command_text(job).find(digest), std::string::npos);
    job.command = {"train.py"};   // by PATH, so another file
    EXPECT_EQ(command_text(job).find(digest), std::string::npos);
    job.command = {"a", "..", "."};
    job.environment = {"A=1", "B=2"};
    EXPECT_EQ(command_text(job), "[\"a\", \"..\", \".\"] in \"" + job.base + "\", with 2 variables of its environment");
}

TEST_F(Command, AHostileOneIsOneHarmlessLine) {
    ASSERT_EQ(::mkfifo((job.base + "/pipe").c_str(), 0600), 0);
    job.command = {"\x1b[2J\n\"x\\", "pipe", std::string(100'000, 'a'), "/dev/zero"};
    for (int i = 0; i < 1000; ++i) job.command.emplace_back("train.py");
    const std::string text = command_text(job);   // does not wait for the pipe, nor read /dev/zero
    for (const char each : text) ASSERT_TRUE(each >= 0x20 && each < 0x7f) << text;
    EXPECT_EQ(text.find("[\"\\x1b[2J\\x0a\\\"x\\\\\", \"pipe\", \"aaaa"), 0u) << text.substr(0, 60);
    EXPECT_NE(text.find("\"" + job.base + "/pipe\" cannot be read here"), std::string::npos);
    EXPECT_NE(text.find("\"/dev/zero\" cannot be read here"), std::string::npos);
    EXPECT_NE(text.find(", and 986 more files"), std::string::npos) << text.substr(text.size() - 40);
    EXPECT_LT(text.size(), 10'000u);
}

TEST_F(Command, ARefusalNamesTheWayOut) {
    job.command = {"python3", "train.py"};
    const Status status = command_refused(job, "kept/job.toml");
    EXPECT_EQ(status.code, Code::invalid);
    EXPECT_EQ(std::string(status.what),
              "kept/job.toml would start a command: " + command_text(job) + "; read what it does, then allow it by --allow-command");
}

}   // namespace
}   // namespace gradcast
