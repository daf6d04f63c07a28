// Pages in the sources and where `make install` puts them: each relative link leads to a file.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <regex>
#include <string>

#include "runtime/core/fd.h"

namespace gradcast {
namespace {

namespace fs = std::filesystem;

/// Expects that what each page below `folder` links to is there.  Returns how many relative links the pages have.
size_t expect_links(const fs::path& folder) {
    static const std::regex link(R"(\]\(([^)#\s]+))");
    size_t links = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
        if (entry.path().extension() != ".md") continue;
        std::string text;
        EXPECT_TRUE(file_read(entry.path(), &text).ok()) << entry.path();
        for (std::sregex_iterator at(text.begin(), text.end(), link), end; at != end; ++at) {
            const std::string to = (*at)[1];
            if (to.find("://") != std::string::npos) continue;
            ++links;
            EXPECT_TRUE(fs::exists(entry.path().parent_path() / to)) << entry.path() << ": " << to;
        }
    }
    return links;
}

TEST(Pages, LinksLeadSomewhere) {
    ASSERT_TRUE(fs::exists("README.md")) << "run it in the folder of the sources";
    std::string to = testing::TempDir() + "gc-pages-XXXXXX";
    ASSERT_NE(::mkdtemp(to.data()), nullptr);
    const std::string make =
        "env -u MAKEFLAGS -u MAKELEVEL make --no-print-directory PREFIX=/usr DESTDIR='" + to + "' install-pages >'" + to + "/log' 2>&1";
    EXPECT_EQ(std::system(make.c_str()), 0) << make;
    const fs::path pages = to + "/usr/share/doc/gradcast";
    EXPECT_TRUE(fs::exists(pages / "README.md"));
    EXPECT_GT(expect_links(pages), 20u);
    fs::remove_all(to);
    for (const char* folder : {"algos", "bench", "datasets", "nn", "runtime", "tests", "tools", "transport"}) expect_links(folder);
}

// For one user: it needs no root, so it may name nothing outside.
TEST(SystemInstall, APrefixOfAUserIsAllThatIsWritten) {
    std::string home = testing::TempDir() + "gc-home-XXXXXX";
    ASSERT_NE(::mkdtemp(home.data()), nullptr);
    const std::string build = std::getenv("GRADCAST_BUILD") ? std::getenv("GRADCAST_BUILD") : "build", log = home + "/log";
    const std::string make = "env -u MAKEFLAGS -u MAKELEVEL make --no-print-directory V=1 BUILD='" + build + "' PREFIX='" + home +
                             "/.local' install-built >'" + log + "' 2>&1";
    std::string text;
    const int code = std::system(make.c_str());
    ASSERT_TRUE(file_read(log, &text).ok());
    ASSERT_EQ(code, 0) << text;
    for (const char* system : {" /etc", " /usr", " /lib", "systemd/system", "sysusers"})
        EXPECT_EQ(text.find(system), std::string::npos) << system;
    for (const char* name :
         {"bin/gradcastctl", "bin/gradcastd", "bin/gradcast-bench", "share/man/man8/gradcastd.8", "share/doc/gradcast/README.md"})
        EXPECT_TRUE(fs::exists(home + "/.local/" + name)) << name;
    EXPECT_FALSE(fs::exists(home + "/.local/sbin"));
    EXPECT_FALSE(fs::exists(home + "/.local/lib/systemd"));
    EXPECT_NE(std::system(("'" + home + "/.local/bin/gradcastd' --config /none 2>'" + log + "'").c_str()), 0);
    ASSERT_TRUE(file_read(log, &text).ok());
    EXPECT_NE(text.find(home + "/.local/share/doc/gradcast/gradcastd.toml"), std::string::npos) << "its own example: " << text;
    fs::remove_all(home);
}

}   // namespace
}   // namespace gradcast
