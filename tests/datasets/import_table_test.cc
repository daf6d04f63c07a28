// import table: rows of numbers as samples.
#include <cmath>
#include <numeric>

#include "datasets/import.h"
#include "tests/datasets/support.h"

namespace gradcast {
namespace {

class ImportTable : public ::testing::Test {
protected:
    TestFolder folder;
    std::string from = folder.file("t.csv"), out = folder.file("out");
    ImportConfig config{.kind = "table", .from = from, .out = out, .force = true};
    ImportResult result;
    Status import(std::string_view text) {
        write_file(from, text);
        return data_import(config, &result);
    }
    struct Read {
        std::unique_ptr<DataSet> data;
        std::vector<float> values, targets;
        std::vector<int32_t> labels;
    };
    Read read(const std::string& name) {
        Read read;
        Status status = data_open(out + "/" + name, &read.data);
        EXPECT_TRUE(status.ok()) << status.what;
        status = data_verify(*read.data);
        EXPECT_TRUE(status.ok()) << status.what;
        const DataInfo& info = read.data->info();
        EXPECT_EQ(info.element, Element::f32);
        std::vector<uint64_t> indices(info.count);
        std::iota(indices.begin(), indices.end(), 0);
        read.values.resize(info.count * info.C);
        read.targets.resize(info.count * info.targets);
        read.labels.resize(info.count);
        EXPECT_TRUE(read.data
                        ->read(indices, reinterpret_cast<uint8_t*>(read.values.data()), read.labels.data(),
                               std::as_writable_bytes(std::span(read.targets)).data())
                        .ok());
        return read;
    }
};

TEST_F(ImportTable, ClassesByName) {
    config.label = "species";
    ASSERT_TRUE(import("\xEF\xBB\xBFlength, width,species\r\n1,2,\"wild rose\"\r\n\r\n3, 4.5e0,ash\r\n+5,6,ash").ok());
    const Read all = read("train.h5");
    EXPECT_EQ(all.values, (std::vector<float>{1, 2, 3, 4.5f, 5, 6}));
    EXPECT_EQ(all.labels, (std::vector<int32_t>{1, 0, 0}));
    const DataInfo& info = all.data->info();
    EXPECT_EQ(info.classes, 2u);
    EXPECT_EQ(info.targets, 0u);
    EXPECT_EQ(all.data->shards()[0].info.class_names, "ash,wild rose");
    EXPECT_EQ(info.mean, (std::vector<float>{3, 12.5f / 3}));
    EXPECT_NEAR(info.std[0], std::sqrt(8.0 / 3), 1e-6);
}

TEST_F(ImportTable, FloatTargetsAndColumnsLeftOut) {
    config.targets = {"price", "4"};
    config.without = {"name"};
    ASSERT_TRUE(import("name;area;price;rent;rooms\nx;10;1.5;-2;3\ny;20;2.5;4;3\n").ok());
    const Read all = read("train.h5");
    EXPECT_EQ(all.values, (std::vector<float>{10, 3, 20, 3}));
    EXPECT_EQ(all.targets, (std::vector<float>{1.5f, -2, 2.5f, 4}));
    EXPECT_EQ(all.data->info().targets, 2u);
    EXPECT_TRUE(all.data->info().regression());
    EXPECT_EQ(all.data->info().std, (std::vector<float>{5, 1}));   // a column of equal values is not divided
}

TEST_F(ImportTable, WithoutNamesAndInHalves) {
    std::filesystem::create_directory(folder.file("halves"));
    write_file(folder.file("halves/train.csv"), "1\t0\n2\t1\n3\t2\n");
    write_file(folder.file("halves/test.csv"), "9\t2\n");
    config.from = folder.file("halves");
    config.label = "2";
    ASSERT_TRUE(data_import(config, &result).ok());
    EXPECT_EQ(read("test.h5").labels, std::vector<int32_t>{2});
    EXPECT_EQ(read("test.h5").values, std::vector<float>{9});
    EXPECT_EQ(read("train.h5").data->shards()[0].info.class_names, "");   // they only number the classes
    EXPECT_EQ(result.test, 1u);
    write_file(folder.file("halves/test.csv"), "9\t7\n");
    expect_error(data_import(config, &result), {"halves/test.csv: line 1: the class \"7\" is not in", "nothing to train it on"});
    write_file(folder.file("halves/test.csv"), "a\tb\n9\t2\n");
    expect_error(data_import(config, &result), {"test.csv: its columns are not those of"});
}

TEST_F(ImportTable, AShareIsTestedOn) {
    config.label = "c";
    config.test = 0.25;
    std::string text = "x,c\n";
    for (int i = 0; i < 40; ++i) text += fmt::format("{},{}\n", i, i % 2 ? "a" : "b");
    ASSERT_TRUE(import(text).ok());
    EXPECT_EQ(result.train, 30u);
    EXPECT_EQ(result.test, 10u);
    std::vector<float> seen = read("train.h5").values, more = read("test.h5").values;
    seen.insert(seen.end(), more.begin(), more.end());
    std::sort(seen.begin(), seen.end());
    for (size_t i = 0; i < 40; ++i) EXPECT_EQ(seen[i], static_cast<float>(i));
}

TEST_F(ImportTable, ErrorsNameLineColumnAndWayOut) {
    EXPECT_STREQ(import("a,b\n1,2\n").what,
                 "say what is to be learnt: --label COLUMN of classes, or --target COLUMN of numbers, also several times");
    config.targets = {"b"};
    expect_error(import("a,b\n1,2\nred,3\n"),
                 {"t.csv: line 3, column a: \"red\" is no number: make it one, or leave the column out (--without a)"});
    expect_error(import("a,b\n1,2\n,3\n"), {"line 3, column a: it is empty: fill it"});
    expect_error(import("a,b\n1,nan\n"), {"line 2, column b: nan is not a finite float"});
    expect_error(import("a,b\n1,1e39\n"), {"line 2, column b: 1e39 is not a finite float"});
    expect_error(import("a,b\n1,2,3\n"), {"line 2 has 3 fields, but the first one 2"});
    expect_error(import("a,b\n\"1,2\n"), {"line 2: a quote is not closed"});
    expect_error(import("a,c\n1,2\n"), {"--target b: ", "has no such column: its columns are a, c"});
    expect_error(import("1,2\n"), {"--target b", "it has no names, and numbers 1 to 2"});
    expect_error(import("b\n1\n"), {"no column is left to learn from"});
    expect_error(import("a,b\n"), {"it has a header and no row"});
    expect_error(import(""), {"t.csv: empty"});
    config.without = {"b"};
    expect_error(import("a,b\n1,2\n"), {"--without b: the column is named twice"});
    config.without = {}, config.targets = {}, config.label = "b";
    expect_error(import("a,b\n1,\"x,y\"\n"), {"line 2: a class has a comma"});
    expect_error(import("a,b\n1,\n"), {"line 2: a class is empty"});
    EXPECT_FALSE(std::filesystem::exists(out + "/train.h5"));
}

}   // namespace
}   // namespace gradcast
