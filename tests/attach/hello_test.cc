// What a process may say of itself: each wrong word has one error, which names it.
#include "runtime/attach/hello.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "nn/graph/process.h"
#include "runtime/attach/wire.h"
#include "runtime/control/json.h"
#include "runtime/core/clock.h"
#include "runtime/core/inventory.h"
#include "runtime/core/version.h"

namespace gradcast {
namespace {

const std::string sha(64, 'a');

Json good() {
    return {{"wire", GC_ATTACH_VERSION},
            {"version", version_text},
            {"tensors", {{{"name", "w"}, {"shape", {3, 4}}}, {{"name", "b"}, {"shape", Json::array()}}}},
            {"running", {{{"name", "n"}, {"channels", 3}, {"batches", true}}}},
            {"constants", {{{"name", "c"}, {"shape", {0, 2}}, {"dtype", "BOOL"}, {"sha256", sha}}}},
            {"aliases", {{{"name", "v"}, {"of", "w"}}, {{"name", "d"}, {"of", "c"}}, {{"name", "m"}, {"of", "n"}}}},
            {"libraries", {{"torch", "2.1.0"}}},
            {"modules", {{{"path", "/a/train.py"}, {"sha256", sha}}}},
            {"data_digest", sha}};
}

std::string hello_error(const std::string& text) {
    ProcessHello hello;
    const Status status = hello_parse(text, &hello);
    const std::string what = status.what ? status.what : "";
    EXPECT_TRUE(status.ok() || status.code == Code::invalid);
    EXPECT_EQ(what.find('\n'), what.npos) << what;
    EXPECT_LT(what.size(), 700u) << what;
    return status.ok() ? "" : what;
}

Json constant(const std::string& name, const Json& shape, const std::string& dtype = "F32") {
    return {{"name", name}, {"shape", shape}, {"dtype", dtype}, {"sha256", sha}};
}

TEST(Hello, IsTaken) {
    ProcessHello hello;
    const Status status = hello_parse(good().dump(), &hello);
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_EQ(hello.layers.size(), 8u);
    EXPECT_EQ(hello.data_digest, sha);
    const std::vector<InventoryItem> items = inventory_parse(hello_inventory(hello));
    std::vector<std::string> names;
    for (const InventoryItem& each : items) names.push_back(each.kind + " " + each.name + " " + each.value);
    EXPECT_EQ(names, (std::vector<std::string>{"library torch 2.1.0", "source /a/train.py " + sha, "tensor w [3,4]", "tensor b []",
                                               "running n [3]", "constant c BOOL [0,2] " + sha, "alias v w", "alias d c", "alias m n"}));
    // What may be missing is.
    Json least = good();
    for (const char* key : {"running", "constants", "aliases", "libraries", "modules", "data_digest"}) least.erase(key);
    EXPECT_EQ(hello_error(least.dump()), "");
}

TEST(Hello, DigestsAreOfTheProgram) {
    const auto digest = [](const Json& json) {
        ProcessHello hello;
        EXPECT_TRUE(hello_parse(json.dump(), &hello).ok());
        return hello_digest(hello);
    };
    Json other = good();
    other["libraries"]["torch"] = "1.13.1";
    other["modules"][0]["path"] = "train.py";   // nodes may have it in another place
    EXPECT_EQ(digest(good()), digest(other));
    for (const auto& [list, key, value] : {std::tuple{"constants", "sha256", Json(std::string(64, 'b'))},
                                           {"modules", "sha256", Json(std::string(64, 'b'))},
                                           {"aliases", "name", Json("u")},
                                           {"tensors", "shape", Json{4, 3}},
                                           {"running", "batches", Json(false)}}) {
        other = good();
        other[list][0][key] = value;
        EXPECT_NE(digest(good()), digest(other)) << list;
    }
}

TEST(Hello, EachWrongWordHasItsError) {
    struct Case {
        std::function<void(Json&)> change;
        std::string says;
    };
    const uint64_t much = uint64_t{1} << 31;
    const Case cases[] = {
        {[](Json& j) { j["wire"] = 1; }, "its package has border 1, this daemon 2: install both together"},
        {[](Json& j) { j.erase("wire"); }, "its package has border null, this daemon 2"},
        {[](Json& j) { j["version"] = "0.0.9"; }, "its package is of version 0.0.9"},
        // Sizes that nobody has.
        {[&](Json& j) {
             j["tensors"][0]["shape"] = {much, 3};
         },
         "tensor w: with it the net has more than 2147483648 parameters"},
        {[&](Json& j) { j["tensors"][0]["shape"] = {much, much, much, much, much, much, much, much}; },
         "tensor w: with it the net has more"},
        {[&](Json& j) { j["tensors"][1]["shape"] = {much}; }, "tensor b: with it the net has more than"},
        {[&](Json& j) { j["tensors"][0]["shape"] = {much + 1}; }, "tensor w: a size of its shape is not 1 to 2147483648"},
        {[](Json& j) { j["tensors"][0]["shape"] = {-1}; }, "tensor w: a size of its shape is not 1 to"},
        {[](Json& j) { j["tensors"][0]["shape"] = {0}; }, "tensor w: a size of its shape is not 1 to"},
        {[](Json& j) { j["tensors"][0]["shape"] = {1e300}; }, "tensor w: a size of its shape is not 1 to"},
        {[](Json& j) { j["tensors"][0]["shape"] = {1, 1, 1, 1, 1, 1, 1, 1, 1}; }, "tensor w: its shape is no list of at most 8 sizes"},
        {[&](Json& j) {
             j["constants"].push_back(constant("big", {much, 1}));
         },
         "constant big: it has more than 4294967296 bytes"},
        {[&](Json& j) {
             j["constants"].push_back(constant("big", {much, much, much}));
         },
         "constant big: it has more than"},
        {[](Json& j) {
             for (int i = 0; i < 9; ++i) j["constants"].push_back(constant(fmt::format("c{}", i), {1 << 29}, "U8"));
         },
         "its frozen parameters and buffers have more than 4294967296 bytes"},
        {[](Json& j) { j["running"][0]["channels"] = 1e12; }, "module n: its channels are no number from 1 on"},
        // Names.
        {[](Json& j) { j["tensors"][1]["name"] = "w"; }, "two tensors have the name w"},
        {[](Json& j) { j["constants"][0]["name"] = "w"; }, "two tensors have the name w"},
        {[](Json& j) { j["constants"][0]["name"] = "n.running_mean"; }, "two tensors have the name n.running_mean"},
        {[](Json& j) { j["aliases"][2]["name"] = "n"; }, "two tensors have the name n"},
        {[](Json& j) { j["aliases"][0]["name"] = "c"; }, "two tensors have the name c"},
        {[](Json& j) { j["tensors"][0]["name"] = "../w"; }, "the name ../w has the part \"..\""},
        {[](Json& j) { j["constants"][0]["name"] = "a/../../c"; }, "the name a/../../c has the part \"..\""},
        {[](Json& j) { j["tensors"][0]["name"] = "w\n\x1b[31m"; }, "the name w??[31m has a space or a control character"},
        {[](Json& j) { j["aliases"][0]["name"] = "a b"; }, "the name a b has a space or a control character"},
        {[](Json& j) { j["tensors"][0]["name"] = std::string(257, 'w'); }, "a name of 257 bytes: 1 to 256 are allowed"},
        {[](Json& j) { j["tensors"][0].erase("name"); }, "a tensor has no name"},
        {[](Json& j) { j["aliases"][0]["of"] = "x"; }, "alias v: it is of \"x\", which is no tensor"},
        {[](Json& j) { j["aliases"][1]["of"] = "v"; }, "alias d: it is of \"v\", which is no tensor"},
        {[](Json& j) { j["aliases"][1]["of"] = 7; }, "alias d: it is of 7, which is no tensor"},
        // Constants.
        {[](Json& j) { j["constants"][0]["dtype"] = "F8"; }, "constant c: its dtype is none of F32, F64"},
        {[](Json& j) { j["constants"][0].erase("dtype"); }, "constant c: its dtype is none of"},
        {[](Json& j) { j["constants"][0]["sha256"] = "12"; }, "constant c: its sha256 is not 64 hex digits"},
        {[](Json& j) { j["constants"][0]["sha256"] = std::string(64, 'A'); }, "constant c: its sha256 is not 64 hex digits"},
        // Libraries and modules.
        {[](Json& j) { j["libraries"] = {"torch"}; }, "`libraries` is no object"},
        {[](Json& j) { j["libraries"]["numpy"] = 2; }, "library numpy: its version is no text of 1 to 256 bytes"},
        {[](Json& j) { j["libraries"]["numpy"] = std::string(257, '1'); }, "library numpy: its version is no text"},
        {[](Json& j) { j["libraries"]["numpy"] = "1\n2"; }, "library numpy: its version is no text"},
        {[](Json& j) { j["libraries"]["a\tb"] = "1"; }, "the name of a library a?b: 1 to 64 bytes"},
        {[](Json& j) {
             for (int i = 0; i < 65; ++i) j["libraries"][fmt::format("l{}", i)] = "1";
         },
         "66 libraries are more than 64"},
        {[](Json& j) { j["modules"][0]["path"] = "../../etc/shadow"; }, "the path of module ../../etc/shadow has the part \"..\""},
        {[](Json& j) { j["modules"][0]["path"] = "/a/../b"; }, "the path of module /a/../b has the part \"..\""},
        {[](Json& j) { j["modules"][0]["path"] = "a\x01"; }, "the path of module a?: 1 to 4096 bytes without control characters"},
        {[](Json& j) { j["modules"][0]["path"] = std::string(4097, 'p'); }, "the path of module ppp"},
        {[](Json& j) { j["modules"][0]["sha256"] = "no"; }, "module /a/train.py: its sha256 is not 64 hex digits"},
        {[](Json& j) { j["modules"][0] = 5; }, "a module has no path, or no sha256"},
        {[](Json& j) {
             for (int i = 0; i < 4096; ++i) j["modules"].push_back({{"path", fmt::format("m{}", i)}, {"sha256", sha}});
         },
         "4097 modules are more than 4096"},
        {[](Json& j) { j["data_digest"] = std::string(257, 'd'); }, "`data_digest` is no text of 1 to 256 bytes"},
        {[](Json& j) { j["data_digest"] = 7; }, "`data_digest` is no text"},
        // Lists.
        {[](Json& j) { j["tensors"] = Json::array(); }, "it has no tensors, so there is nothing to train"},
        {[](Json& j) { j["tensors"] = 5; }, "it has no tensors"},
        {[](Json& j) { j["running"] = "n"; }, "`running` is no list"},
        {[](Json& j) { j["constants"] = 5; }, "`constants` is no list"},
        {[](Json& j) { j["aliases"] = Json::object(); }, "`aliases` is no list"},
        {[](Json& j) { j["modules"] = true; }, "`modules` is no list"},
        {[](Json& j) {
             for (int i = 0; i < 8192; ++i) j["constants"].push_back(constant(fmt::format("c{}", i), {1}));
         },
         "8199 tensors are more than 8192"},
    };
    for (const auto& [change, says] : cases) {
        Json json = good();
        change(json);
        const std::string error = hello_error(json.dump());
        EXPECT_NE(error.find(says), error.npos) << "wanted: " << says << "\nis: " << error;
    }
}

// Neither memory nor stack follows the text.
TEST(Hello, TextsOfAnyFormAreBounded) {
    const size_t whole = GC_ATTACH_WHOLE_MAX;
    const std::string tensors = good().dump();
    for (const auto& [text, says] :
         {std::pair{std::string(whole, '['), "it is nested deeper than 16 levels"},
          {std::string(whole / 2, '[') + std::string(whole / 2, ']'), "it is nested deeper than 16 levels"},
          {"{\"tensors\":" + std::string(100, '{'), "it is nested deeper than 16 levels"},
          {"[" + std::string(whole - 2, ',') + "]", "it has more than 1048576 values"},
          {std::string(whole, '"'), "it is no JSON object"},
          {std::string(whole, '\\'), "it is no JSON object"},
          {"{\"tensors\":\"" + std::string(whole - 20, '[') + "\"}", "its package has border null"},   // in a text they are letters
          {std::string("\xff\xfe"), "it is no JSON object"},
          {std::string(), "it is no JSON object"},
          {tensors.substr(0, tensors.size() - 1), "it is no JSON object"}}) {
        const uint64_t begin_us = clock_us();
        const std::string error = hello_error(text);
        EXPECT_NE(error.find(says), error.npos) << "wanted: " << says << "\nis: " << error;
        EXPECT_LT(clock_us() - begin_us, 20'000'000u);
    }
}

}   // namespace
}   // namespace gradcast
