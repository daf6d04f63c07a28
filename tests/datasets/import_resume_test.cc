// An import of images that is killed, and the next one of the same arguments.
#include "tests/datasets/killed_import.h"

namespace gradcast {
namespace {

class ImportResume : public ImportImages {
protected:
    static constexpr uint64_t files = 24;
    std::string train, test;   // of an import that comes to its end
    std::vector<std::string> notes;
    void SetUp() override {
        for (uint64_t n = 0; n < files; ++n) {
            const std::string path = in(fmt::format("{}/{:02}.png", n % 2 ? "bee" : "ant", n));
            std::filesystem::create_directories(std::filesystem::path(path).parent_path());
            png(path, H, W, n % 3 ? PNG_FORMAT_RGB : PNG_FORMAT_RGBA, pixels(n, n % 3 ? 3 : 4));
            if (n % 7 == 4) write_file(path, "no image");
        }
        config.test = 0.25;
        config.skip_bad = true;
        config.threads = 2;
        ASSERT_TRUE(import().ok());
        train = read_file(out + "/train.h5");
        test = read_file(out + "/test.h5");
        notes = result.notes;
        std::filesystem::remove_all(out);
    }
    /// Kills an import when it has taken so many files, the record of some of which it has written.
    void kill_after(uint64_t taken) {
        ImportConfig one = config;
        one.threads = 1;
        kill_import(one, taken, taken - 2);
    }
    void expect_whole(const std::string& note) {
        EXPECT_TRUE(read_file(out + "/train.h5") == train);
        EXPECT_TRUE(read_file(out + "/test.h5") == test);
        std::vector<std::string> names, expected = notes;
        for (const auto& entry : std::filesystem::directory_iterator(out)) names.push_back(entry.path().filename());
        EXPECT_EQ(names.size(), 2u) << fmt::format("{}", fmt::join(names, ", "));
        if (!note.empty()) expected.insert(expected.begin(), note);
        EXPECT_EQ(result.notes, expected);
        std::filesystem::remove_all(out);
    }
};

TEST_F(ImportResume, GoesOnWhereItWasKilled) {
    for (const uint64_t taken : {5u, 16u, 22u}) {   // the last ones are of the test set
        kill_after(taken);
        ASSERT_TRUE(import().ok());
        expect_whole(fmt::format("goes on after {} of 24 images, where an import was ended", taken - 2));
    }
    // Killed twice; the second one has other threads, another size of shards, and compresses.
    kill_after(5);
    kill_after(13);
    config.compress = 1;
    config.shard_bytes = 1000;
    ASSERT_TRUE(import().ok());
    EXPECT_EQ(result.train + result.test, files - 3);
    EXPECT_EQ(result.notes[0], "goes on after 11 of 24 images, where an import was ended");
    EXPECT_FALSE(std::filesystem::exists(out + "/import.part"));
}

TEST_F(ImportResume, BeginsAnewWhereTheRecordDoesNotFit) {
    const std::string anew = out + ": what an import has left that was ended is of other files or options: it begins anew";
    kill_after(9);
    const std::string record = read_file(out + "/import.part"), samples = read_file(out + "/train.samples.part");
    auto leave = [&](const std::string& its_record, const std::string& its_samples) {
        std::filesystem::create_directories(out);
        write_file(out + "/import.part", its_record);
        write_file(out + "/train.samples.part", its_samples);
        write_file(out + "/test.samples.part", "");
    };
    for (const std::string& damaged :
         {std::string(), std::string("x\n"), record.substr(0, record.size() - 1), record.substr(0, record.size() / 2), "x" + record,
          record + "\n", std::string(record).replace(record.find("done ") + 5, 1, "8")}) {
        leave(damaged, samples);
        ASSERT_TRUE(import().ok());
        expect_whole(anew);
    }
    leave(record, samples.substr(0, 10));
    ASSERT_TRUE(import().ok());
    expect_whole(anew);
    std::filesystem::remove(out + "/import.part");
    // What was written behind the record is written again.
    leave(record, samples + "more");
    ASSERT_TRUE(import().ok());
    expect_whole("goes on after 7 of 24 images, where an import was ended");
    // Another seed chooses other samples to test on.
    leave(record, samples);
    config.seed = 2;
    ASSERT_TRUE(import().ok());
    EXPECT_EQ(result.notes[0], anew);
    std::filesystem::remove_all(out);
    config.seed = 1;
    // A file has another time, though its bytes are the same.
    leave(record, samples);
    write_file(in("ant/00.png"), read_file(in("ant/00.png")));
    ASSERT_TRUE(import().ok());
    expect_whole(anew);
}

TEST_F(ImportResume, AnErrorLeavesNothing) {
    kill_after(9);
    config.skip_bad = false;
    expect_error(import(), {"3 files cannot be used"});
    EXPECT_TRUE(std::filesystem::is_empty(out));   // which the first one has made
    std::filesystem::remove(out);
    expect_error(import(), {"3 files cannot be used"});
    EXPECT_FALSE(std::filesystem::exists(out));
    // An import of another kind removes it.
    kill_after(9);
    config = {.kind = "ridge", .from = "", .out = out, .samples = 10};
    ASSERT_TRUE(data_import(config, &result).ok());
    EXPECT_FALSE(std::filesystem::exists(out + "/import.part") || std::filesystem::exists(out + "/train.samples.part"));
}

}   // namespace
}   // namespace gradcast
