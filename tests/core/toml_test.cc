// toml_parse() bounds the depth of the document and changes nothing else.
#include "runtime/core/toml.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace gradcast {
namespace {

std::string times(size_t count, std::string_view text) {
    std::string all;
    for (size_t i = 0; i < count; ++i) all += text;
    return all;
}

/// Expects a refusal for depth that names this line.
void too_deep(const std::string& text, uint32_t line) {
    toml::parse_result result = toml_parse(text);
    ASSERT_FALSE(result) << text.substr(0, 60);
    EXPECT_NE(result.error().description().find("deep"), std::string_view::npos) << result.error().description();
    EXPECT_EQ(result.error().source().begin.line, line) << text.substr(0, 60);
}

// Without the bound each of these overflows the stack.
TEST(Toml, DepthIsBounded) {
    const size_t many = 500'000;
    const std::string parts = times(many, "a.") + "a";
    too_deep("\n" + parts + " = 1\n", 2);
    too_deep("x = 1\n\n[" + parts + "]\n", 3);
    too_deep("[[" + parts + "]]\n", 1);
    too_deep("x = {" + parts + " = 1}\n", 1);
    too_deep(times(many / 4, "\"\".") + "a = 1\n", 1);
    too_deep(times(many / 4, "'.' . ") + "a = 1\n", 1);
    too_deep("x = " + times(many, "[") + times(many, "]"), 1);
    too_deep("x = " + times(many / 8, "[\n"), toml_depth_max + 1);
    too_deep("x = " + times(many / 8, "{a="), 1);
    // Brackets in a string or comment do not hide what follows.
    too_deep("x = \"\"\"\na\"\"\\\"\"\"\"\"\"\n" + parts + " = 1\n", 3);
    too_deep("x = '''\na'''''\n" + parts + " = 1\n", 3);
    too_deep("x = 'a\\'\n" + parts + " = 1\n", 2);
    too_deep("x = \"\\\"\\\\\" # \"\n" + parts + " = 1\n", 2);
    too_deep("x = \"\"\n" + parts + " = 1\n", 2);
    too_deep("x = \"not closed\n" + parts + " = 1\n", 2);
    too_deep("]]]}}}" + parts, 1);
}

TEST(Toml, WhatIsNotDeepPasses) {
    for (const std::string& text : {
             times(toml_depth_max - 1, "a.") + "a = 1\n",
             "[" + times(toml_depth_max - 1, "a.") + "a]\n",
             "x = " + times(toml_depth_max, "[") + times(toml_depth_max, "]") + "\n",
             "x = [" + times(10'000, "1.5, ") + "2.5]\n",
             "x = [" + times(10'000, "{ a.b = [1] }, ") + "]\n",
             "x = \"" + times(1'000, ".[{") + "\"\n",
             "x = \"\"\"\n" + times(1'000, ".[{\n") + "\"\"\"\n",
             "x = '''" + times(1'000, ".[{\n\\") + "'''''\ny = 1\n",
             "# " + times(1'000, ".[{") + "\nx = 1\n",
         }) {
        toml::parse_result result = toml_parse(text);
        EXPECT_TRUE(result) << text.substr(0, 60);
    }
}

}   // namespace
}   // namespace gradcast
