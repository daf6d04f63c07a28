// Importers on files that say anything: IDX, tar archives (plain, gz, xz) of CIFAR's records, folders of PNG and JPEG, masks, tables,
// texts, tokens, vocabularies, NumPy arrays.  The first byte of the input says which; after it comes for each file its length (2 bytes,
// little-endian) and its bytes, the last one has all that is left.
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "datasets/image.h"
#include "datasets/reader.h"
#include "tests/fuzz/reached.h"

namespace gradcast {
namespace {

struct Case {
    const char* kind;
    const char* from;   // within the folder
    std::vector<const char*> files;
    ImportConfig with = {};
};
const Case cases[] = {
    {"idx",
     "in",
     {"in/train-labels-idx1-ubyte", "in/train-images-idx3-ubyte", "in/t10k-labels-idx1-ubyte", "in/t10k-images-idx3-ubyte.gz"}},
    {"cifar10", "in/archive", {"in/archive"}},
    {"cifar100", "in", {"in/train.bin", "in/test.bin.xz"}},
    {"images", "in", {"in/a/1", "in/b/2"}},
    {"images", "in", {"in/a/1", "in/b/2"}, {.size = 9, .pictures = true}},
    {"masks", "in", {"in/images/1.png", "in/masks/1.png"}},
    {"table", "in/train.csv", {"in/train.csv"}, {.test = 0.3, .label = "1"}},
    {"table", "in", {"in/train.csv", "in/test.csv"}, {.targets = {"1"}}},
    {"text", "in/a", {"in/a"}, {.test = 0.2}},
    {"tokens", "in/a", {"in/a"}},
    {"text", "in/a", {"in/voc/merges.txt", "in/voc/vocab.json", "in/a"}, {.vocabulary_file = "in/voc"}},
    {"npy", "in", {"in/labels.npy", "in/images.npy"}},
};
constexpr uint64_t pixels_max = 1 << 22;   // libFuzzer has a bound on memory of its own

}   // namespace
}   // namespace gradcast

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace gradcast;
    namespace fs = std::filesystem;
    if (size == 0) return 0;
    const Case& chosen = cases[data[0] % std::size(cases)];
    ++data;
    --size;
    static const fs::path folder = fs::temp_directory_path() / fmt::format("gradcast-fuzz-import-{}", ::getpid());
    fs::remove_all(folder);
    bool large = false;
    for (const char* name : chosen.files) {
        size_t bytes = size;
        if (name != chosen.files.back()) {
            if (size < 2) break;
            bytes = std::min<size_t>(data[0] | data[1] << 8, size - 2);
            data += 2;
            size -= 2;
        }
        const fs::path path = folder / name;
        fs::create_directories(path.parent_path());
        std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(bytes));
        data += bytes;
        size -= bytes;
        ImageFile image;
        if ((!std::strcmp(chosen.kind, "images") || !std::strcmp(chosen.kind, "masks")) && image_open(path, &image).ok())
            large |= uint64_t{image.H} * image.W > pixels_max;
    }
    ImportResult result;
    const std::string out = folder / "out";
    ImportConfig config = chosen.with;
    config.kind = chosen.kind;
    config.from = folder / chosen.from;
    config.out = out;
    config.compress = config.pictures ? 0 : 1;
    if (!config.vocabulary_file.empty()) config.vocabulary_file = folder / chosen.with.vocabulary_file;
    Status status = large ? Status() : data_import(config, &result);
    // CIFAR's files are 30 MB, so a record is as far as an input comes.
    fuzz_reaches(static_cast<uint32_t>(&chosen - cases), (!large && status.ok()) || std::strstr(status.what, "record 1 of"));
    if (!status.ok()) {
        GC_ASSERT(std::strlen(status.what) > 0 && !std::strchr(status.what, '\n'));
        GC_ASSERT(!fs::exists(out) || fs::is_empty(out));
    } else if (!large) {
        for (const std::string& path : result.paths) {
            std::unique_ptr<DataSet> all;
            GC_ASSERT(data_open(path, &all, {.look = true}).ok() && data_verify(*all).ok());
            if (all->info().sample_bytes() > pixels_max) continue;
            std::vector<uint8_t> sample(all->sample_bytes());
            std::vector<std::byte> targets(all->info().targets_bytes());
            const uint64_t last = all->info().count - 1;
            int32_t label = 0;
            GC_ASSERT(all->read({&last, 1}, sample.data(), &label, targets.data()).ok());
        }
    }
    fs::remove_all(folder);
    return 0;
}
