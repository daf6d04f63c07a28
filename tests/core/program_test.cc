// Where a program finds itself and what belongs to it.
#include "runtime/core/program.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace gradcast {
namespace {

namespace fs = std::filesystem;

TEST(Program, FolderIsThatOfTheFileThatRuns) {
    EXPECT_EQ(program_folder(), fs::canonical("/proc/self/exe").parent_path().string());
    EXPECT_NE(program_folder().back(), '/');
}

TEST(Program, FilesAreFoundInTheOrderOfTheFolders) {
    const fs::path self = fs::canonical("/proc/self/exe");
    const std::string name = self.filename().string(), folder = self.parent_path().filename().string();
    EXPECT_EQ(program_file(name, {"."}, X_OK), self.string());
    EXPECT_EQ(program_file(folder, {".", ".."}), self.parent_path().string()) << "no link and no .. in it";
    EXPECT_EQ(program_file("no-such-file", {".", "..", "../lib"}), "");
    EXPECT_EQ(program_file(name, {}), "");
}

TEST(Program, AFileThatCannotBeStartedIsNoProgram) {
    const fs::path plain = fs::path(testing::TempDir()) / "plain";
    std::ofstream(plain) << "text";
    ::chmod(plain.c_str(), 0644);
    const std::string folder = fs::relative(fs::canonical(testing::TempDir()), program_folder()).string();
    EXPECT_EQ(program_file("plain", {folder.c_str()}), fs::canonical(plain).string());
    EXPECT_EQ(program_file("plain", {folder.c_str()}, X_OK), "");
}

}   // namespace
}   // namespace gradcast
