// What a process prints becomes lines: cut, cleaned, bounded.
#include "runtime/attach/output.h"

#include <gtest/gtest.h>

#include <vector>

namespace gradcast {
namespace {

using Stream = ProcessOutput::Stream;

struct Output : testing::Test {
    std::vector<std::string> lines;
    ProcessOutput output{[this](std::string_view line) { lines.emplace_back(line); }};
};

TEST_F(Output, LinesOfBothStreams) {
    output.push(Stream::out, "epo", 0);
    output.push(Stream::error, "warning: w\n\n  \n", 0);
    output.push(Stream::out, "ch 1\nepoch 2\r\nunfinished", 0);
    EXPECT_EQ(lines, (std::vector<std::string>{"warning: w", "epoch 1", "epoch 2"}));
    output.finish(0);
    EXPECT_EQ(lines.back(), "unfinished");
    EXPECT_EQ(output.last_error(), "warning: w");
}

TEST_F(Output, StatesOfAProgressBarAreLines) {
    output.push(Stream::error, "\r 1%\r 2%\r 3%", 0);
    EXPECT_EQ(lines, (std::vector<std::string>{" 1%", " 2%"}));
    EXPECT_EQ(output.last_error(), " 3%");   // without a line end
}

TEST_F(Output, LongLinesAreCut) {
    for (int i = 0; i < 100; ++i) output.push(Stream::out, std::string(1000, 'x'), 0);
    output.push(Stream::out, "\nnext\n", 0);
    ASSERT_EQ(lines.size(), 2u);
    EXPECT_EQ(lines[0], std::string(ProcessOutput::line_max, 'x') + "... (95904 bytes more)");
    EXPECT_EQ(lines[1], "next");
    output.push(Stream::error, std::string(3000, 'e') + "\n", 0);
    EXPECT_EQ(output.last_error(), std::string(ProcessOutput::last_max, 'e'));
}

TEST_F(Output, AFloodIsDroppedAndSaidOnce) {
    const std::string line = std::string(1023, 'f') + "\n";
    const auto flood = [&](uint64_t now_us) {
        lines.clear();
        for (int i = 0; i < 1000; ++i) output.push(Stream::out, line, now_us);
    };
    flood(5'000'000);
    ASSERT_EQ(lines.size(), 65u);   // 64 KiB, and the line that says so
    EXPECT_EQ(lines[64], "it prints more than 64 KiB in a second: the rest of each second is dropped");
    flood(6'000'000);
    EXPECT_EQ(lines.size(), 64u);   // it goes on: not said again
    output.push(Stream::out, "calm\n", 7'000'000);
    flood(8'000'000);
    EXPECT_EQ(lines.size(), 65u);   // another one
    output.push(Stream::error, "ValueError: last\n", 8'000'000);
    EXPECT_EQ(output.last_error(), "ValueError: last");   // kept, though it is not passed on
}

TEST_F(Output, InAllItIsBounded) {
    const std::string line = std::string(1023, 'f') + "\n";
    size_t count = 0;
    for (uint64_t second = 1; second <= 300; ++second) {
        for (int i = 0; i < 64; ++i) output.push(Stream::out, line, second * 1'000'000);
        count += lines.size();
        if (second < 300) lines.clear();
    }
    EXPECT_EQ(count, 16384u + 1);
    EXPECT_TRUE(lines.empty());
    output.push(Stream::error, "ValueError: last\n", 400'000'000);
    EXPECT_EQ(output.last_error(), "ValueError: last");
}

TEST_F(Output, LinesAreCleanText) {
    EXPECT_EQ(printable("gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80"), "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80");
    EXPECT_EQ(printable("\x1b[31;1mred\x1b[0m\ttab\x07\x7f"), "red tab");
    EXPECT_EQ(printable("a\xff"
                        "b\xc3"),
              "a?b?");
    EXPECT_EQ(printable("\xc0\xaf|\xed\xa0\x80|\xf4\x90\x80\x80"), "??|???|????");   // too long, a surrogate, too large
    EXPECT_EQ(printable("x\xc2\x9b"
                        "31my"),
              "x31my");                    // the control character of 8 bits
    EXPECT_EQ(printable("\x1b[31"), "");   // cut in a sequence
}

TEST(OutputNone, NoReceiver) {
    ProcessOutput output(nullptr);
    output.push(Stream::error, "line\n", 0);
    output.finish(0);
    EXPECT_EQ(output.last_error(), "line");
}

}   // namespace
}   // namespace gradcast
