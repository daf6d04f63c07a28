// Our checks of shards of version 2, as in shard.cc: texts, values with float targets, masks and pictures, with attributes and data sets
// that may be missing, of another type or size, or hold anything.  The first byte says which; of pictures the JPEGs are good where the
// input does not give others, and digests of what is there are right.
#include <unistd.h>

#include <cstdio>
#include <filesystem>
// jpeglib.h needs FILE.
#include <jpeglib.h>

#include "datasets/picture.h"
#include "datasets/reader.h"
#include "runtime/core/digest.h"
#include "tests/fuzz/reached.h"
#include "tests/fuzz/shard_file.h"

namespace gradcast {
namespace {

enum class What : uint8_t { values, text, masks, pictures, merges };
constexpr uint32_t whats = 5;

std::string hex_of(const std::vector<uint8_t>& bytes) { return sha256_hex(std::as_bytes(std::span(bytes))); }

std::vector<uint8_t> image_of(What what, Input& input) {
    Hdf5Lock lock;
    Hid access(H5Pcreate(H5P_FILE_ACCESS));
    H5Pset_fapl_core(access.get(), 65536, false);
    Hid file(H5Fcreate("fuzz", H5F_ACC_TRUNC, H5P_DEFAULT, access.get()));
    const uint8_t cut = input.byte();
    const hsize_t count = 1 + input.byte() % 9, C = what == What::text || what == What::merges ? 1 : 1 + input.byte() % 3;
    const hsize_t chunks = 1;   // of digests
    hid_t root = file.get();
    Hid text(H5Tcopy(H5T_C_S1));
    H5Tset_size(text.get(), 14);
    H5Tset_strpad(text.get(), H5T_STR_NULLPAD);
    const std::vector<float> halves(C, 0.5f);
    std::vector<uint8_t> floats(4 * C);
    std::memcpy(floats.data(), halves.data(), floats.size());
    attribute(input, root, "format", text.get(), {}, text_of("gradcast shard"));
    attribute(input, root, "version", H5T_NATIVE_UINT32, {}, bytes_of(uint32_t{2}));
    attribute(input, root, "classes", H5T_NATIVE_UINT32, {}, bytes_of(uint32_t{what == What::values ? 1u : 255u}));
    attribute(input, root, "digest_samples", H5T_NATIVE_UINT64, {}, bytes_of(uint64_t{1 << 20}));
    attribute(input, root, "mean", H5T_NATIVE_FLOAT, {C}, floats);
    attribute(input, root, "std", H5T_NATIVE_FLOAT, {C}, floats);
    attribute(input, root, "source", text.get(), {}, text_of("made by a fuzz"));
    const auto whole = [&](const char* name, std::vector<hsize_t> dims, hid_t type, std::vector<uint8_t> bytes) {
        uint64_t elements = H5Tget_size(type);
        for (const hsize_t dim : dims) elements *= dim;
        bytes.resize(elements);
        data_set(input, root, name, std::move(dims), chunks, type, bytes, hex_of(bytes));
    };
    switch (what) {
        case What::values:
            whole("samples", {count, C, 2, 1}, H5T_NATIVE_FLOAT, {});
            whole("targets", {count, 2}, H5T_NATIVE_FLOAT, {});
            break;
        case What::text:
            attribute(input, root, "vocabulary", H5T_NATIVE_UINT32, {}, bytes_of(uint32_t{3}));
            attribute(input, root, "alphabet", text.get(), {}, text_of("abc"));
            whole("samples", {count * 4}, H5T_NATIVE_UINT16, {});
            break;
        case What::merges:
            attribute(input, root, "vocabulary", H5T_NATIVE_UINT32, {}, bytes_of(uint32_t{258}));
            whole("samples", {count * 4}, H5T_NATIVE_UINT16, {});
            whole("alphabet", {12}, H5T_NATIVE_UINT8, text_of("#merges\na b\n"));
            break;
        case What::masks:
            attribute(input, root, "ignore", H5T_NATIVE_INT32, {}, bytes_of(int32_t{255}));
            whole("samples", {count, C, 2, 3}, H5T_NATIVE_UINT8, {});
            whole("targets", {count, 2, 3}, H5T_NATIVE_UINT8, {});
            break;
        case What::pictures: {
            const uint32_t channels = C == 2 ? 3 : static_cast<uint32_t>(C);
            Planes planes{channels, 4, 6, std::vector<uint8_t>(uint64_t{channels} * 24, 90)};
            std::string jpeg;
            picture_encode(planes, &jpeg);
            // One byte of the first JPEG is changed.
            std::vector<uint8_t> jpegs;
            std::vector<uint64_t> offsets = {0};
            for (hsize_t i = 0; i < count; ++i) jpegs.insert(jpegs.end(), jpeg.begin(), jpeg.end()), offsets.push_back(jpegs.size());
            const auto at = input.any<uint16_t>();
            jpegs[at % jpeg.size()] ^= input.byte();
            const uint8_t how = input.byte();   // of the offsets
            if (how > 0) offsets[how % offsets.size()] = how < 128 ? input.byte() : input.any<uint64_t>();
            attribute(input, root, "side", H5T_NATIVE_UINT32, {}, bytes_of(uint32_t{4}));
            attribute(input, root, "longest", H5T_NATIVE_UINT32, {}, bytes_of(uint32_t{6}));
            attribute(input, root, "channels", H5T_NATIVE_UINT32, {}, bytes_of(channels));
            std::vector<uint8_t> places(offsets.size() * 8);
            std::memcpy(places.data(), offsets.data(), places.size());
            whole("samples", {jpegs.size()}, H5T_NATIVE_UINT8, jpegs);
            whole("offsets", {offsets.size()}, H5T_STD_U64LE, places);
            whole("targets", {count}, H5T_NATIVE_UINT8, {});
            break;
        }
    }
    return file_image(root, cut);
}

}   // namespace
}   // namespace gradcast

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace gradcast;
    Input input{data, size};
    const auto what = static_cast<What>(input.byte() % whats);
    const std::vector<uint8_t> image = image_of(what, input);
    static const std::string path = std::filesystem::temp_directory_path() / fmt::format("gradcast-fuzz-typed-{}.h5", ::getpid());
    file_put(path, image);
    const auto said = [](const Status& status) { GC_ASSERT(std::strlen(status.what) > 0 && !std::strchr(status.what, '\n')); };
    Shard shard;
    Fd fd;
    const Status opened = shard_open(path, &shard, &fd);
    if (!opened.ok()) said(opened);
    if (opened.ok()) {
        const Status verified = shard_verify(shard, fd.get());
        if (!verified.ok()) said(verified);
        fuzz_reaches(static_cast<uint32_t>(what), verified.ok());
        std::unique_ptr<DataSet> all;
        const DataOptions with{.side = 0, .context = shard.info.vocabulary > 0 ? 1u : 0u};
        if (const Status status = data_open(path, &all, with); status.ok() && all->sample_bytes() <= 1 << 22) {
            const uint64_t last = all->info().count - 1;
            std::vector<uint8_t> sample(all->sample_bytes());
            std::vector<std::byte> targets(all->info().targets_bytes());
            int32_t label = -1;
            const uint64_t epoch = 0;
            const Augment how{.seed = 1, .area = 6000};
            const Status read = all->read({&last, 1}, sample.data(), &label, targets.data(), {&how, &epoch});
            if (!read.ok()) said(read);
            // What is verified can be read, but for the pixels of a JPEG.
            GC_ASSERT(read.ok() || !verified.ok() || all->info().pictures());
            fuzz_reaches(whats + static_cast<uint32_t>(what), read.ok());
        } else if (!status.ok()) {
            said(status);
        }
    }
    ::unlink(path.c_str());
    return 0;
}
