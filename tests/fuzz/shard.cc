// Our checks of a shard's attributes and data sets.  HDF5's own parser is not the target (1.10 has known faults on hostile files), so the
// library itself writes the file, in memory, and the input only says what is in it: every attribute may be missing, of another type, of
// another size, or hold any value.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "datasets/reader.h"
#include "tests/fuzz/reached.h"
#include "tests/fuzz/shard_file.h"

namespace gradcast {
namespace {

std::vector<uint8_t> file_of(Input& input) {
    Hdf5Lock lock;
    Hid access(H5Pcreate(H5P_FILE_ACCESS));
    H5Pset_fapl_core(access.get(), 65536, false);
    Hid file(H5Fcreate("fuzz", H5F_ACC_TRUNC, H5P_DEFAULT, access.get()));
    uint8_t cut = input.byte();
    hsize_t count = 1 + input.byte() % 16, C = 1 + input.byte() % 3, digest_samples = 1 + input.byte() % 16;
    hid_t root = file.get();
    Hid text(H5Tcopy(H5T_C_S1));
    H5Tset_size(text.get(), 14);
    H5Tset_strpad(text.get(), H5T_STR_NULLPAD);
    std::vector<float> ones(C, 1.0f);
    std::vector<uint8_t> floats(4 * C);
    std::memcpy(floats.data(), ones.data(), floats.size());
    attribute(input, root, "format", text.get(), {}, text_of("gradcast shard"));
    attribute(input, root, "version", H5T_NATIVE_UINT32, {}, bytes_of(uint32_t{1}));
    attribute(input, root, "classes", H5T_NATIVE_UINT32, {}, bytes_of(uint32_t{255}));
    attribute(input, root, "digest_samples", H5T_NATIVE_UINT64, {}, bytes_of(uint64_t{digest_samples}));
    attribute(input, root, "mean", H5T_NATIVE_FLOAT, {C}, floats);
    attribute(input, root, "std", H5T_NATIVE_FLOAT, {C}, floats);
    attribute(input, root, "source", text.get(), {}, text_of("made by a fuzz"));
    data_set(input, root, "images", {count, C, 3, 2}, (count - 1) / digest_samples + 1);
    data_set(input, root, "labels", {count}, (count - 1) / digest_samples + 1);
    return file_image(root, cut);
}

}   // namespace
}   // namespace gradcast

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace gradcast;
    Input input{data, size};
    std::vector<uint8_t> image = file_of(input);
    // A file with a name, because HDF5 asks for its real path.
    static const std::string path = std::filesystem::temp_directory_path() / fmt::format("gradcast-fuzz-{}.h5", ::getpid());
    file_put(path, image);
    Shard shard;
    Fd fd;
    if (Status status = shard_open(path, &shard, &fd); status.ok()) {
        fuzz_reaches(shard.chunk_samples > 0);
        GC_ASSERT(shard.info.count > 0 && shard.info.C > 0 && shard.info.mean.size() == shard.info.C &&
                  shard.info.std.size() == shard.info.C);
        for (const StoredChunk& chunk : shard.chunks) GC_ASSERT(chunk.offset + chunk.bytes <= image.size());
        GC_ASSERT(shard.chunk_samples > 0 ||
                  shard.samples_offset + shard.info.count * shard.info.C * shard.info.H * shard.info.W <= image.size());
        GC_ASSERT(shard.targets_offset + shard.info.count * shard.target_bytes <= image.size());
        (void)shard_verify(shard, fd.get()).ok();
        std::unique_ptr<DataSet> all;
        if (data_open(path, &all).ok()) {
            uint64_t last = all->info().count - 1;
            std::vector<uint8_t> pixels(all->sample_bytes());
            int32_t label = -1;
            const bool read = all->read({&last, 1}, pixels.data(), &label).ok();   // a chunk may be broken
            fuzz_reaches(2, read);
            GC_ASSERT(read ? label >= 0 && label < static_cast<int32_t>(all->info().classes) : all->chunked());
        }
    } else {
        GC_ASSERT(std::strlen(status.what) > 0 && !std::strchr(status.what, '\n'));
    }
    ::unlink(path.c_str());
    return 0;
}
