// import: several shards, the line on a terminal, and the memory that many images and images of false sizes take.
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>

#include "tests/ctl/ctl.h"
#include "tests/datasets/images.h"

namespace gradcast {
namespace {

struct CtlImport : CtlData {
    /// Pixels [h, w, 3] that compress as a photo does.
    static std::vector<uint8_t> photo(uint32_t h, uint32_t w) {
        std::vector<uint8_t> pixels(size_t{h} * w * 3);
        for (uint64_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(i / 97 + i % 3 * 40 + (i * i >> 7) % 24);
        return pixels;
    }
    /// Runs it; *peak_kib: the largest resident memory of its process.
    Outcome run_measured(const std::string& arguments, uint64_t* peak_kib) const {
        const pid_t pid = start(arguments);
        int how = 0;
        rusage used{};
        const uint64_t end = clock_us() + 300'000'000;
        while (::wait4(pid, &how, WNOHANG, &used) == 0) {
            if (clock_us() > end) {
                ADD_FAILURE() << "did not end:\n" << read("err");
                ::kill(pid, SIGKILL);
                ::waitpid(pid, &how, 0);
                break;
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        *peak_kib = static_cast<uint64_t>(used.ru_maxrss);
        return {WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how), read("out"), read("err")};
    }
    /// What it says on stderr where that is a terminal.
    std::string said_on_terminal(const std::string& arguments) const {
        const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
        EXPECT_TRUE(terminal >= 0 && ::grantpt(terminal) == 0 && ::unlockpt(terminal) == 0);
        const std::string name = ::ptsname(terminal);
        const std::string command = "cd '" + folder + "' && exec '" + program + "' " + arguments + " >out 2>'" + name + "' </dev/null";
        const pid_t pid = ::fork();
        if (pid == 0) {
            ::execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
            ::_exit(126);
        }
        std::string text;
        int how = -1;
        for (const uint64_t end = clock_us() + 120'000'000; clock_us() < end;) {
            pollfd ready{terminal, POLLIN, 0};
            char bytes[4096];
            if (::poll(&ready, 1, 50) > 0 && (ready.revents & POLLIN))
                if (const ssize_t got = ::read(terminal, bytes, sizeof bytes); got > 0) {
                    text.append(bytes, static_cast<size_t>(got));
                    continue;
                }
            if (how < 0 && ::waitpid(pid, &how, WNOHANG) != pid) how = -1;
            else break;
        }
        EXPECT_EQ(how, 0) << text;
        ::close(terminal);
        return text;
    }
};

TEST_F(CtlImport, ShardsOfASize) {
    idx("train", 320);
    idx("t10k", 80);
    Outcome outcome = run("import idx --from . --out data --shard-size 0.03MiB");   // 40 images of 784 bytes
    ASSERT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_EQ(outcome.out,
              "data/train-00000.h5 … data/train-00007.h5, 8 shards\ndata/test-00000.h5\ndata/test-00001.h5\n"
              "320 samples to train on, 80 to test on\n");
    outcome = run("data inspect 'data/train*.h5' -o json");
    EXPECT_EQ(outcome.json()["samples"], 320);
    EXPECT_EQ(outcome.json()["shards"].size(), 8u);
    outcome = run("import idx --from . --out data");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says("data/train-00000.h5 is there already: --force replaces it")) << outcome.err;
    outcome = run("import idx --from . --out data --force -o json");
    EXPECT_EQ(outcome.json()["paths"], Json::array({"data/train.h5", "data/test.h5"}));
    EXPECT_FALSE(fs::exists(folder + "/data/train-00000.h5"));
    for (const char* wrong : {"0MiB", "12", "x", "-1MiB"}) {
        outcome = run(std::string("import idx --from . --out data --force --shard-size=") + wrong);
        EXPECT_EQ(outcome.exit, 2) << wrong;
        EXPECT_TRUE(outcome.says("not a size like 512MiB")) << outcome.err;
    }
    EXPECT_EQ(run("import idx --from . --out data --force --threads 0").exit, 2);
}

TEST_F(CtlImport, ALineSaysHowFarItIsOnATerminalAlone) {
    fs::create_directories(folder + "/in/ant");
    for (int i = 0; i < 30; ++i) jpeg(folder + fmt::format("/in/ant/{}.jpg", i), 40, 40, JCS_RGB, photo(40, 40));
    const std::string said = said_on_terminal("import images in --out shown --threads 2");
    EXPECT_NE(said.find("\r30 of 30 images looked at\x1b[K"), std::string::npos) << said;
    EXPECT_NE(said.find("\r30 of 30 images decoded\x1b[K"), std::string::npos) << said;
    // The line is gone before other lines come.
    const size_t last = said.rfind("images decoded");
    EXPECT_LT(said.find("\r\x1b[K", last), said.find("no samples to test on", last)) << said;
    const Outcome piped = run("import images in --out piped --threads 2");
    EXPECT_EQ(piped.exit, 0);
    EXPECT_FALSE(piped.says("30 of 30")) << piped.err;
    EXPECT_TRUE(piped.err.find('\r') == std::string::npos) << piped.err;
    EXPECT_EQ(read("shown/train.h5"), read("piped/train.h5"));
}

// A file of a few bytes may say that it has any size: it is refused before memory is taken.
TEST_F(CtlImport, FalseSizesTakeNoMemory) {
    fs::create_directories(folder + "/in/ant");
    png_raw(folder + "/in/ant/bomb.png", 50'000, 50'000, 8, 2, std::string(100, '\0'), "");
    jpeg(folder + "/in/ant/bomb.jpg", 16, 16, JCS_RGB, photo(16, 16));
    std::string bytes = read("in/ant/bomb.jpg");
    const size_t frame = bytes.find("\xff\xc0");
    ASSERT_NE(frame, std::string::npos);
    bytes.replace(frame + 5, 4, "\xff\xdc\xff\xdc");   // 65,500 x 65,500
    write("in/ant/bomb.jpg", bytes);
    jpeg(folder + "/in/ant/good.jpg", 16, 16, JCS_RGB, photo(16, 16));
    for (const char* size : {"", "--size 16 "})
        for (const char* threads : {"--threads 1", "--threads 8"}) {
            uint64_t peak_kib = 0;
            Outcome outcome = run_measured(fmt::format("import images in --out made {}{}", size, threads), &peak_kib);
            EXPECT_EQ(outcome.exit, 1);
            EXPECT_TRUE(outcome.says("in/ant/bomb.jpg: 65500 x 65500 pixels are more than a shard takes, 256 MiB as RGB")) << outcome.err;
            EXPECT_TRUE(outcome.says("in/ant/bomb.png: 50000 x 50000 pixels are more than a shard takes, 256 MiB as RGB")) << outcome.err;
            EXPECT_LT(peak_kib, 120u << 10);
        }
    EXPECT_EQ(run("import images in --out made --size 16 --skip-bad").exit, 0);
}

struct SlowCtlImport : CtlImport {};

// 900 files that name 12 pictures; the shards of them are larger than what the process may take.
TEST_F(SlowCtlImport, ManyImagesOfManySizesTakeLittleMemory) {
    fs::create_directories(folder + "/pictures");
    fs::create_directories(folder + "/in/ant");
    fs::create_directories(folder + "/in/bee");
    std::vector<std::string> pictures;
    for (auto [h, w] : {std::pair{80u, 64u}, {300u, 400u}, {375u, 500u}, {500u, 333u}, {640u, 480u}, {1500u, 1000u}, {3000u, 4000u}}) {
        pictures.push_back(fmt::format("{}/pictures/{}.jpg", folder, pictures.size()));
        jpeg(pictures.back(), h, w, JCS_RGB, photo(h, w));
    }
    for (size_t i = 0; i < 900; ++i) {
        const size_t which = i % 60 == 7 ? 6 : i % 15 == 2 ? 5 : i % 5;
        fs::create_hard_link(pictures[which], fmt::format("{}/in/{}/{:04}.jpg", folder, i % 2 ? "bee" : "ant", i));
    }
    uint64_t peak_kib = 0;
    const Outcome outcome = run_measured("import images in --out made --size 400 --threads 16 --shard-size 200MiB -o json", &peak_kib);
    ASSERT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_EQ(outcome.json()["train"], 900);
    EXPECT_EQ(outcome.json()["paths"].size(), 3u);   // of 432 MB
    EXPECT_LT(peak_kib, 300u << 10);
    RecordProperty("peak_kib", std::to_string(peak_kib));
}

}   // namespace
}   // namespace gradcast
