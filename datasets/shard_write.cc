// Writes a shard: equal data give equal bytes.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <numeric>
#include <optional>
#include <span>

#include "datasets/hdf5.h"
#include "datasets/shard.h"
#include "datasets/shard_format.h"
#include "datasets/tokeniser.h"
#include "runtime/core/digest.h"

namespace gradcast {
namespace {

using namespace shard_format;

/// HDF5 calls refuse an invalid id, so only the last call of a chain is checked.
bool attribute_write(hid_t object, const char* name, hid_t type, std::vector<hsize_t> dims, const void* values) {
    Hid space(dims.empty() ? H5Screate(H5S_SCALAR) : H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr));
    Hid attribute(H5Acreate2(object, name, type, space.get(), H5P_DEFAULT, H5P_DEFAULT));
    return attribute && H5Awrite(attribute.get(), type, values) >= 0;
}
bool attribute_write(hid_t object, const char* name, const std::string& text) {
    Hid type(H5Tcopy(H5T_C_S1));
    std::string padded = text.empty() ? std::string(1, '\0') : text;   // HDF5 has no strings of 0 bytes
    return H5Tset_size(type.get(), padded.size()) >= 0 && H5Tset_strpad(type.get(), H5T_STR_NULLPAD) >= 0 &&
           attribute_write(object, name, type.get(), {}, padded.data());
}

bool digests_write(hid_t data_set, const std::string& digests) {
    Hid text(H5Tcopy(H5T_C_S1));
    return H5Tset_size(text.get(), digest_digits) >= 0 && H5Tset_strpad(text.get(), H5T_STR_NULLPAD) >= 0 &&
           attribute_write(data_set, "sha256", text.get(), {digests.size() / digest_digits}, digests.data());
}

constexpr uint64_t piece_bytes = 4 << 20;   // written at a time

/// What is written: samples of `sample_bytes`, a digest for each digest_samples.
struct SampleArray {
    const SamplesRead& read;
    uint64_t sample_bytes, digest_samples;
};

/// compress > 0: deflated, `stored_samples` in a chunk.  *status: the error of a read.
bool data_set_write(hid_t file, const char* name, hid_t type, std::vector<hsize_t> dims, const SampleArray& samples, Status* status,
                    uint32_t compress = 0, uint64_t stored_samples = 1) {
    Hid creation(H5Pcreate(H5P_DATASET_CREATE)), space(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr));
    // No time stamps: equal data give equal bytes.
    if (H5Pset_obj_track_times(creation.get(), false) < 0) return false;
    if (compress > 0) {
        std::vector<hsize_t> sides = dims;
        sides[0] = stored_samples;
        if (H5Pset_chunk(creation.get(), static_cast<int>(sides.size()), sides.data()) < 0 || H5Pset_deflate(creation.get(), compress) < 0)
            return false;
    }
    Hid data_set(H5Dcreate2(file, name, type, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT));
    if (!data_set) return false;
    // Whole stored chunks in order: the file is that of a single write.
    const uint64_t count = dims[0], fit = piece_bytes / samples.sample_bytes;
    const uint64_t piece = std::min(count, std::max(fit / stored_samples, uint64_t{1}) * stored_samples);
    std::vector<uint8_t> bytes(piece * samples.sample_bytes);
    std::vector<hsize_t> first(dims.size());
    std::string digests;
    std::optional<Sha256> sha;
    for (first[0] = 0; first[0] < count; first[0] += dims[0]) {
        dims[0] = std::min<uint64_t>(piece, count - first[0]);
        *status = samples.read(first[0], dims[0], bytes.data());
        if (!status->ok()) return false;
        Hid memory(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr));
        if (H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, first.data(), nullptr, dims.data(), nullptr) < 0 ||
            H5Dwrite(data_set.get(), type, memory.get(), space.get(), H5P_DEFAULT, bytes.data()) < 0)
            return false;
        for (uint64_t i = 0, some = 0; i < dims[0]; i += some) {
            const uint64_t sample = first[0] + i, remaining = samples.digest_samples - sample % samples.digest_samples;
            some = std::min<uint64_t>(remaining, dims[0] - i);
            if (!sha) sha.emplace();
            sha->add(std::as_bytes(std::span(bytes)).subspan(i * samples.sample_bytes, some * samples.sample_bytes));
            if (some != remaining && sample + some != count) continue;
            digests += sha->hex();
            sha.reset();
        }
    }
    return digests_write(data_set.get(), digests);
}

/// Characters, or merges.
bool alphabet_write(hid_t file, const std::string& alphabet) {
    if (!Tokeniser::is_text(alphabet)) return attribute_write(file, "alphabet", alphabet);
    hsize_t bytes = alphabet.size();
    Hid creation(H5Pcreate(H5P_DATASET_CREATE)), space(H5Screate_simple(1, &bytes, nullptr));
    if (H5Pset_obj_track_times(creation.get(), false) < 0) return false;
    Hid data(H5Dcreate2(file, "alphabet", H5T_STD_U8LE, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT));
    return data && H5Dwrite(data.get(), H5T_STD_U8LE, H5S_ALL, H5S_ALL, H5P_DEFAULT, alphabet.data()) >= 0 &&
           digests_write(data.get(), sha256_hex(std::as_bytes(std::span(alphabet))));
}

/// JPEGs of `lengths` bytes, and where each begins.
bool pictures_write(hid_t file, std::span<const uint32_t> lengths, const PicturesRead& jpegs, uint64_t digest_samples, Status* status) {
    std::vector<uint64_t> offsets = {0};
    for (const uint32_t length : lengths) offsets.push_back(offsets.back() + length);
    hsize_t total = offsets.back();
    Hid creation(H5Pcreate(H5P_DATASET_CREATE)), space(H5Screate_simple(1, &total, nullptr));
    if (H5Pset_obj_track_times(creation.get(), false) < 0) return false;
    Hid data_set(H5Dcreate2(file, "samples", H5T_STD_U8LE, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT));
    if (!data_set) return false;
    std::vector<uint8_t> bytes(std::min<uint64_t>(piece_bytes, total));
    std::string digests;
    for (uint64_t first = 0; first < lengths.size(); first += digest_samples) {
        const uint64_t end = offsets[std::min<uint64_t>(first + digest_samples, lengths.size())];
        Sha256 sha;
        hsize_t at = offsets[first], some = 0;
        for (; at < end; at += some) {
            some = std::min<uint64_t>(end - at, bytes.size());
            *status = jpegs(at, some, bytes.data());
            if (!status->ok()) return false;
            sha.add(std::as_bytes(std::span(bytes)).first(some));
            Hid memory(H5Screate_simple(1, &some, nullptr));
            if (H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, &at, nullptr, &some, nullptr) < 0 ||
                H5Dwrite(data_set.get(), H5T_STD_U8LE, memory.get(), space.get(), H5P_DEFAULT, bytes.data()) < 0)
                return false;
        }
        digests += sha.hex();
    }
    hsize_t entries = offsets.size();
    Hid entry_space(H5Screate_simple(1, &entries, nullptr));
    Hid places(H5Dcreate2(file, "offsets", H5T_STD_U64LE, entry_space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT));
    if (!places || H5Dwrite(places.get(), H5T_STD_U64LE, H5S_ALL, H5S_ALL, H5P_DEFAULT, offsets.data()) < 0) return false;
    const std::string of_offsets = sha256_hex(std::as_bytes(std::span(offsets)));
    return digests_write(data_set.get(), digests) && digests_write(places.get(), of_offsets);
}

/// The data set of the samples, and that of what a net is to say about them.
struct DataSets {
    const char* samples_name;
    const char* targets_name;
    Element target_element;
    std::vector<hsize_t> target_dims;
    uint64_t target_bytes;
    std::span<const uint32_t> lengths = {};   // of pictures, which
    const PicturesRead* jpegs = nullptr;      // gives in place of samples
};

Status file_fill(const std::string& part, const DataInfo& info, const DataSets& sets, const SamplesRead& samples,
                 const SamplesRead& targets, uint32_t compress) {
    uint64_t sample_bytes = info.sample_bytes();
    if (info.pictures()) {   // on average
        sample_bytes = std::accumulate(sets.lengths.begin(), sets.lengths.end(), uint64_t{0}) / sets.lengths.size();
        sample_bytes = std::max(sample_bytes, uint64_t{1});
    }
    auto samples_each = [&](uint64_t bytes, uint64_t pieces_max) {
        return std::max({bytes / sample_bytes, (info.count + pieces_max - 1) / pieces_max, uint64_t{1}});
    };
    uint64_t digest_samples = samples_each(digest_bytes, digests_max);
    uint64_t stored_samples = std::min(samples_each(stored_bytes, stored_written_max), info.count);
    const uint32_t version = format_version_of(info);
    std::vector<hsize_t> sample_dims = {info.count};
    if (info.vocabulary == 0) sample_dims.insert(sample_dims.end(), {info.C, info.H, info.W});
    Status read;
    Hdf5Lock lock;
    Hid access(H5Pcreate(H5P_FILE_ACCESS));
    H5Pset_alignment(access.get(), 1, 4096);   // for O_DIRECT
    H5Pset_meta_block_size(access.get(),
                           128 * 1024);   // metadata before the data: truncated() needs it
    Hid file(H5Fcreate(part.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get()));
    hid_t root = file.get();
    bool good = file && attribute_write(root, "format", format_name) && attribute_write(root, "version", H5T_NATIVE_UINT32, {}, &version) &&
                attribute_write(root, "classes", H5T_NATIVE_UINT32, {}, &info.classes) &&
                attribute_write(root, "digest_samples", H5T_NATIVE_UINT64, {}, &digest_samples) &&
                attribute_write(root, "mean", H5T_NATIVE_FLOAT, {info.C}, info.mean.data()) &&
                attribute_write(root, "std", H5T_NATIVE_FLOAT, {info.C}, info.std.data()) && attribute_write(root, "source", info.source) &&
                (info.class_names.empty() || attribute_write(root, "class_names", info.class_names)) &&
                (info.target_scale == 0 || attribute_write(root, "target_scale", H5T_NATIVE_FLOAT, {}, &info.target_scale)) &&
                (info.ignore < 0 || attribute_write(root, "ignore", H5T_NATIVE_INT32, {}, &info.ignore)) &&
                (info.vocabulary == 0 || attribute_write(root, "vocabulary", H5T_NATIVE_UINT32, {}, &info.vocabulary)) &&
                (info.alphabet.empty() || alphabet_write(root, info.alphabet)) &&
                (info.pictures() ? attribute_write(root, "side", H5T_NATIVE_UINT32, {}, &info.side) &&
                                       attribute_write(root, "longest", H5T_NATIVE_UINT32, {}, &info.longest) &&
                                       attribute_write(root, "channels", H5T_NATIVE_UINT32, {}, &info.C) &&
                                       pictures_write(root, sets.lengths, *sets.jpegs, digest_samples, &read)
                                 : data_set_write(root, sets.samples_name, hdf5_type(info.element), sample_dims,
                                                  {samples, sample_bytes, digest_samples}, &read, compress, stored_samples)) &&
                (info.vocabulary > 0 || data_set_write(root, sets.targets_name, hdf5_type(sets.target_element), sets.target_dims,
                                                       {targets, sets.target_bytes, digest_samples}, &read)) &&
                H5Fflush(root, H5F_SCOPE_LOCAL) >= 0;
    // Not hdf5_reason(): the calls that closed ids have replaced it.
    if (!read.ok()) return read;
    if (!good || !file.close()) return fail_sys(errno, "cannot write {}", part);
    return {};
}

/// Reads what is in memory.
SamplesRead read_of(const void* from, uint64_t sample_bytes) {
    return [from = static_cast<const uint8_t*>(from), sample_bytes](uint64_t first, uint64_t count, uint8_t* to) {
        std::copy_n(from + first * sample_bytes, count * sample_bytes, to);
        return Status();
    };
}

Status part_write(const std::string& path, const DataInfo& info, const DataSets& sets, const SamplesRead& samples,
                  const SamplesRead& targets, uint32_t compress) {
    GC_ASSERT(compress <= 9 && info.count > 0 && info.C > 0 && info.H > 0 && info.W > 0 && info.mean.size() == info.C &&
              info.std.size() == info.C);
    const std::string part = path + ".part";
    const Status status = file_fill(part, info, sets, samples, targets, compress);
    if (!status.ok()) ::unlink(part.c_str());
    return status;
}

Status part_rename(const std::string& path) {
    const std::string part = path + ".part";
    const Status status = file_rename(part, path);
    if (!status.ok()) ::unlink(part.c_str());
    return status;
}

/// Labels as the file holds them.
Status labels_pack(const std::string& path, const DataInfo& info, const int32_t* labels, DataSets* sets, std::vector<std::byte>* packed) {
    if (info.classes == 0 || info.classes > shard_side_max)
        return fail(Code::invalid, "{}: {} classes: at least 1 and at most {} are possible", path, info.classes, shard_side_max);
    uint32_t target_bytes = info.classes <= 256 ? 1 : 2;
    packed->resize(info.count * target_bytes);
    for (uint64_t i = 0; i < info.count; ++i) {
        if (labels[i] < 0 || static_cast<uint32_t>(labels[i]) >= info.classes)
            return fail(Code::invalid, "{}: sample {} has label {}, which is not below the {} classes", path, i, labels[i], info.classes);
        (*packed)[i * target_bytes] = static_cast<std::byte>(labels[i] & 255);
        if (target_bytes == 2) (*packed)[2 * i + 1] = static_cast<std::byte>(labels[i] >> 8);
    }
    const bool images_alone = format_version_of(info) == 1;
    *sets = {.samples_name = images_alone ? "images" : "samples",
             .targets_name = images_alone ? "labels" : "targets",
             .target_element = target_bytes == 1 ? Element::u8 : Element::u16,
             .target_dims = {info.count},
             .target_bytes = target_bytes};
    return {};
}

}   // namespace

Status shard_write_part(const std::string& path, const DataInfo& info, const SamplesRead& samples, const int32_t* labels,
                        uint32_t compress) {
    DataSets sets{};
    std::vector<std::byte> packed;
    GC_TRY(labels_pack(path, info, labels, &sets, &packed));
    return part_write(path, info, sets, samples, read_of(packed.data(), sets.target_bytes), compress);
}

Status shard_write_part(const std::string& path, const DataInfo& info, std::span<const uint32_t> lengths, const PicturesRead& jpegs,
                        const int32_t* labels) {
    GC_ASSERT(info.pictures() && lengths.size() == info.count && info.longest >= info.side);
    DataSets sets{};
    std::vector<std::byte> packed;
    GC_TRY(labels_pack(path, info, labels, &sets, &packed));
    sets.lengths = lengths;
    sets.jpegs = &jpegs;
    return part_write(path, info, sets, {}, read_of(packed.data(), sets.target_bytes), 0);
}

Status shard_write_part(const std::string& path, const DataInfo& info, const SamplesRead& samples, const SamplesRead& targets,
                        uint32_t compress) {
    GC_ASSERT(info.targets > 0 || info.vocabulary > 0);
    const DataSets sets{
        .samples_name = "samples",
        .targets_name = "targets",
        .target_element = info.target_element,
        .target_dims = info.masks() ? std::vector<hsize_t>{info.count, info.H, info.W} : std::vector<hsize_t>{info.count, info.targets},
        .target_bytes = info.targets_bytes()};
    return part_write(path, info, sets, samples, targets, compress);
}

Status shard_write(const std::string& path, const DataInfo& info, const uint8_t* images, const int32_t* labels, uint32_t compress) {
    GC_TRY(shard_write_part(path, info, read_of(images, info.sample_bytes()), labels, compress));
    return part_rename(path);
}

Status shard_write(const std::string& path, const DataInfo& info, const uint8_t* samples, const std::byte* targets, uint32_t compress) {
    GC_ASSERT((info.targets > 0) == (targets != nullptr));
    GC_TRY(shard_write_part(path, info, read_of(samples, info.sample_bytes()), read_of(targets, info.targets_bytes()), compress));
    return part_rename(path);
}

}   // namespace gradcast
