// Imports of masks, texts and tokens that are killed, and the next one of the same arguments.
#include <functional>

#include "tests/datasets/killed_import.h"

namespace gradcast {
namespace {

class ImportGoesOn : public ::testing::Test {
protected:
    TestFolder folder;
    const std::string from = folder.file("from"), out = folder.file("out");
    ImportConfig config{.kind = "", .from = from, .out = out};
    ImportResult result;

    /// The files of the output by name.
    std::map<std::string, std::string> made() const {
        std::map<std::string, std::string> files;
        for (const auto& entry : std::filesystem::directory_iterator(out)) files[entry.path().filename()] = read_file(entry.path());
        return files;
    }
    /// Kills an import when it has taken so much, one less of which is recorded.
    void kill_after(uint64_t taken) { kill_import(config, taken, taken - 1); }
    /// Imports that are killed at those places, once and twice, end with the bytes and notes of one that is not.  all: behind the number
    /// in the note.
    void expect_the_same(const std::vector<uint64_t>& places, const std::string& all) {
        Status status = data_import(config, &result);
        ASSERT_TRUE(status.ok()) << status.what;
        const std::map<std::string, std::string> wanted = made();
        const std::vector<std::string> notes = result.notes;
        const auto expect_whole = [&](uint64_t recorded) {
            status = data_import(config, &result);
            ASSERT_TRUE(status.ok()) << status.what;
            EXPECT_TRUE(made() == wanted) << recorded;
            std::vector<std::string> expected = notes;
            expected.insert(expected.begin(), fmt::format("goes on after {}{}, where an import was ended", recorded, all));
            std::ranges::sort(expected);
            std::ranges::sort(result.notes);
            EXPECT_EQ(result.notes, expected);
            std::filesystem::remove_all(out);
        };
        std::filesystem::remove_all(out);
        for (const uint64_t place : places) {
            ASSERT_NO_FATAL_FAILURE(kill_after(place));
            expect_whole(place - 1);
        }
        for (const uint64_t place : places) ASSERT_NO_FATAL_FAILURE(kill_after(place));
        expect_whole(places.back() - 1);
    }
    /// What is left of an import that was killed does not fit other options: the next one says so.
    void expect_anew(uint64_t place, const std::function<void()>& change) {
        ASSERT_NO_FATAL_FAILURE(kill_after(place));
        change();
        const Status status = data_import(config, &result);
        ASSERT_TRUE(status.ok()) << status.what;
        EXPECT_EQ(
            std::ranges::count(result.notes, out + ": what an import has left that was ended is of other files or options: it begins anew"),
            1);
        const std::map<std::string, std::string> found = made();
        std::filesystem::remove_all(out);
        ASSERT_TRUE(data_import(config, &result).ok());
        EXPECT_TRUE(made() == found);
        std::filesystem::remove_all(out);
    }
};

TEST_F(ImportGoesOn, OfMasks) {
    constexpr uint32_t H = 8, W = 6;
    for (const char* name : {"images", "masks"}) std::filesystem::create_directories(from + "/" + name);
    for (uint32_t n = 0; n < 14; ++n) {
        std::vector<uint8_t> image(H * W * (n % 3 ? 3 : 4)), mask(H * W);
        for (size_t i = 0; i < image.size(); ++i) image[i] = pixel_of(n, i);
        for (size_t i = 0; i < mask.size(); ++i) mask[i] = i % 7 == 0 ? 255 : pixel_of(n, i) % 3;
        png(fmt::format("{}/images/{:02}.png", from, n), H, W, n % 3 ? PNG_FORMAT_RGB : PNG_FORMAT_RGBA, image);
        png(fmt::format("{}/masks/{:02}.png", from, n), H, W, PNG_FORMAT_GRAY, mask);
    }
    config.kind = "masks";
    config.test = 0.3;
    expect_the_same({4, 7, 13}, " of 14 images");   // the last one is of the test set
    expect_anew(5, [&] { config.size = 4; });
    config.size = 0;
    // A mask is another, of another time.
    expect_anew(5, [&] { png(from + "/masks/03.png", H, W, PNG_FORMAT_GRAY, std::vector<uint8_t>(H * W, 2)); });
    // An import of another kind begins anew.
    expect_anew(5, [&] {
        write_file(folder.file("text.txt"), "a text");
        config = {.kind = "text", .from = folder.file("text.txt"), .out = out};
    });
}

/// Characters of one byte and of several, which pieces of the import cut.
std::string text_of(uint64_t bytes, uint64_t seed) {
    static const char* const words[] = {"hello ", "world ", "\u20ac", "the ", "\u00e9t\u00e9 ", "!! ", "\U0001F600", "\n"};
    std::string text;
    for (uint64_t i = 0; text.size() < bytes; ++i) text += words[pixel_of(seed, i) % 8];
    return text;
}

TEST_F(ImportGoesOn, OfATextByCharacters) {
    std::filesystem::create_directories(from);
    write_file(from + "/train.txt", text_of(3 * 1024 * 1024 + 500'000, 1));
    write_file(from + "/val.txt", text_of(2 * 1024 * 1024 + 100, 2));
    config.kind = "text";
    expect_the_same({2, 4, 5}, " MiB");
    expect_anew(3, [&] { config.by = "bytes"; });
}

// The end of one file is the test set: an import is killed in both parts.
TEST_F(ImportGoesOn, OfATextByBytesWithItsEndToTestOn) {
    write_file(from, text_of(5 * 1024 * 1024 + 77, 3));
    config.kind = "text";
    config.by = "bytes";
    config.test = 0.35;
    expect_the_same({2, 5}, " MiB");
    expect_anew(3, [&] { config.test = 0.1; });
}

TEST_F(ImportGoesOn, OfATextByMerges) {
    std::filesystem::create_directories(from);
    write_file(from + "/train.txt", text_of(2 * 1024 * 1024 + 333, 4));
    write_file(from + "/test.txt", text_of(2 * 1024 * 1024 + 4, 5));
    config.vocabulary_file = folder.file("merges.txt");
    write_file(config.vocabulary_file, "#version: 0.2\nh e\nl l\nhe ll\nhell o\n\u0120 w\no r\n\u0120w or\nl d\n\u0120wor ld\n");
    config.kind = "text";
    expect_the_same({2, 3, 4}, " MiB");
    expect_anew(3, [&] { write_file(config.vocabulary_file, "#version: 0.2\nh e\nl l\nhe ll\n"); });
}

TEST_F(ImportGoesOn, OfTokens) {
    write_file(from, text_of(4 * 1024 * 1024 + 10, 6));
    config.kind = "tokens";
    config.test = 0.3;
    if (std::filesystem::file_size(from) % 2) write_file(from, read_file(from) + "x");
    expect_the_same({2, 4}, " MiB");
    expect_anew(3, [&] { config.vocabulary = 65536; });
}

}   // namespace
}   // namespace gradcast
