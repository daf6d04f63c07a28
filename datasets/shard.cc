// Opens a shard.  The bytes are not trusted: the type and size of an attribute is checked before it is read, a size before memory is taken
// for it.
#include "datasets/shard.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "datasets/hdf5.h"
#include "datasets/picture.h"
#include "datasets/shard_format.h"
#include "datasets/tokeniser.h"
#include "runtime/core/digest.h"
#include "runtime/core/memory_room.h"
#include "runtime/core/nearest.h"

namespace gradcast {
namespace {

using namespace shard_format;

Status broken(const std::string& path, const char* attribute, std::string_view what) {
    return fail(Code::data, "{}: not a gradcast shard: attribute {} {}; gradcastctl help shard: how one is written", path, attribute, what);
}

/// The command that stores the samples anew so that they can be read.
std::string repack(const std::string& path, const char* name, Element element, int rank, const hsize_t* dims) {
    const hsize_t fit = stored_bytes * 16 / std::max<hsize_t>(1, dims[1] * dims[2] * dims[3] * element_bytes(element));
    const hsize_t samples = std::max({std::min<hsize_t>(fit, 100), dims[0] / stored_written_max + 1, hsize_t{1}});
    return fmt::format("h5repack -f {0}:GZIP=6 -l {0}:CHUNK={1}{2}{3} '{4}' '{4}.new'", name, std::min(samples, dims[0]),
                       rank > 1 ? "x" : "", fmt::join(dims + 1, dims + rank, "x"), path);
}

/// Opens an attribute of type class `kind` with exactly `count` elements.
Status attribute_open(hid_t object, const std::string& path, const char* name, H5T_class_t kind, uint64_t count, Hid* attribute,
                      Hid* type) {
    Hid found(H5Aopen(object, name, H5P_DEFAULT));
    if (!found) return broken(path, name, "is missing");
    Hid found_type(H5Aget_type(found.get())), space(H5Aget_space(found.get()));
    if (!found_type || !space) return broken(path, name, "cannot be read: " + hdf5_reason());
    if (H5Tget_class(found_type.get()) != kind || (kind == H5T_STRING && H5Tis_variable_str(found_type.get()) != 0))
        return broken(path, name,
                      fmt::format("is {}, not {}", hdf5_type_name(found_type.get()),
                                  kind == H5T_STRING  ? "text of fixed length (numpy.bytes_)"
                                  : kind == H5T_FLOAT ? "of floats"
                                                      : "an integer"));
    if (hssize_t has = H5Sget_simple_extent_npoints(space.get()); has < 0 || static_cast<uint64_t>(has) != count)
        return broken(path, name, fmt::format("has {} elements instead of {}", has, count));
    *attribute = std::move(found);
    *type = std::move(found_type);
    return {};
}

template <typename T>
Status attribute_numbers(hid_t object, const std::string& path, const char* name, H5T_class_t kind, hid_t native, std::span<T> values) {
    Hid attribute, type;
    GC_TRY(attribute_open(object, path, name, kind, values.size(), &attribute, &type));
    if (H5Aread(attribute.get(), native, values.data()) < 0) return broken(path, name, "cannot be read: " + hdf5_reason());
    return {};
}

Status attribute_number(hid_t object, const std::string& path, const char* name, uint64_t low, uint64_t high, uint64_t* value) {
    uint64_t read = 0;
    GC_TRY(attribute_numbers(object, path, name, H5T_INTEGER, H5T_NATIVE_UINT64, std::span(&read, 1)));
    if (read < low || read > high) return broken(path, name, fmt::format("is {}, outside {} .. {}", read, low, high));
    *value = read;
    return {};
}

/// Reads `count` strings of one fixed length, at most bytes_max, concatenated; *bytes is the length of one.
Status attribute_text(hid_t object, const std::string& path, const char* name, uint64_t count, uint64_t bytes_max, std::string* text,
                      uint64_t* bytes) {
    Hid attribute, type;
    GC_TRY(attribute_open(object, path, name, H5T_STRING, count, &attribute, &type));
    uint64_t size = H5Tget_size(type.get());
    if (size == 0 || size > bytes_max) return broken(path, name, fmt::format("has strings of {} bytes, more than {}", size, bytes_max));
    std::string read(size * count, '\0');
    if (H5Aread(attribute.get(), type.get(), read.data()) < 0) return broken(path, name, "cannot be read: " + hdf5_reason());
    *text = std::move(read);
    *bytes = size;
    return {};
}

Status attribute_string(hid_t object, const std::string& path, const char* name, std::string* text, uint64_t bytes_max = source_bytes_max) {
    std::string read;
    uint64_t bytes = 0;
    GC_TRY(attribute_text(object, path, name, 1, bytes_max, &read, &bytes));
    read.resize(std::min(read.size(), read.find('\0')));
    *text = std::move(read);
    return {};
}

Status digests_read(hid_t data_set, const std::string& path, uint64_t count, std::vector<std::string>* digests) {
    std::string text;
    uint64_t bytes = 0;
    GC_TRY(attribute_text(data_set, path, "sha256", count, digest_digits, &text, &bytes));
    if (bytes != digest_digits || text.find_first_not_of("0123456789abcdef") != text.npos)
        return broken(path, "sha256", "is not made of 64 hex digits a chunk");
    for (uint64_t i = 0; i < count; ++i) digests->push_back(text.substr(i * digest_digits, digest_digits));
    return {};
}

/// A data set of a shard.
struct OpenSet {
    Hid id;
    int rank = 0;
    hsize_t dims[4] = {1, 1, 1, 1};
    Element element = Element::u8;
    uint64_t offset = 0;   // of its first byte in the file; 0: it is in chunks
};

/// Lists the stored chunks of the samples.
Status chunks_read(hid_t data_set, hid_t space, hid_t creation, const char* set_name, const OpenSet& set, uint64_t file_bytes,
                   Shard* shard) {
    auto wrong = [&](std::string_view what) { return fail(Code::data, "{}: data set {} {}", shard->path, set_name, what); };
    const hsize_t* dims = set.dims;
    const auto repack_command = [&] { return repack(shard->path, set_name, set.element, set.rank, dims); };
    int filters = H5Pget_nfilters(creation);
    size_t none = 0;
    bool readable = false;
    const std::string names = hdf5_filter_names(creation, &readable);
    if (filters > 1 || (filters == 1 && H5Pget_filter2(creation, 0, nullptr, &none, nullptr, 0, nullptr, nullptr) != H5Z_FILTER_DEFLATE))
        return wrong(fmt::format("is stored through {}, not deflate alone: {}", one_line(names),
                                 readable ? repack_command() : "leave compression and shuffle out (gradcastctl help shard)"));
    hsize_t sides[4] = {1, 1, 1, 1};
    if (H5Pget_chunk(creation, set.rank, sides) != set.rank) return wrong("cannot be read: " + hdf5_reason());
    if (sides[0] == 0 || !std::equal(sides + 1, sides + 4, dims + 1))
        return wrong(fmt::format("is in chunks of {}, not of whole samples: {}", fmt::join(sides, " x "), repack_command()));
    uint64_t bytes = element_bytes(set.element), count = (dims[0] - 1) / sides[0] + 1;
    for (hsize_t side : sides)
        if (__builtin_mul_overflow(bytes, side, &bytes) || bytes > shard_sample_bytes_max)
            return wrong(fmt::format("has chunks of more than {} MiB: {}", shard_sample_bytes_max >> 20, repack_command()));
    if (count > stored_read_max) return wrong(fmt::format("has {} chunks, more than {}: {}", count, stored_read_max, repack_command()));
    hsize_t has = 0;
    if (H5Dget_num_chunks(data_set, space, &has) < 0) return wrong("cannot be read: " + hdf5_reason());
    if (has != count) return wrong(fmt::format("has {} of its {} chunks: it was not written to its end", has, count));
    shard->chunk_samples = sides[0];
    shard->chunks.assign(count, {});
    for (hsize_t i = 0; i < count; ++i) {
        hsize_t first[4] = {}, size = 0;
        unsigned unfiltered = 0;   // bit 0: this chunk is stored plain
        haddr_t address = HADDR_UNDEF;
        if (H5Dget_chunk_info(data_set, space, i, first, &unfiltered, &address, &size) < 0)
            return wrong("cannot be read: " + hdf5_reason());
        const uint64_t chunk = first[0] / sides[0];
        const bool deflated = filters == 1 && (unfiltered & 1) == 0;
        // Deflate adds at most 5 bytes to each 16 KiB; a much larger chunk is damage.
        if (chunk >= count || size == 0 || (deflated ? size > bytes + bytes / 8 + 1024 : size != bytes))
            return wrong(fmt::format("is damaged: stored chunk {} has {} bytes for {} of samples; import it again", chunk, size, bytes));
        if (address > file_bytes || size > file_bytes - address)
            return wrong(
                fmt::format("is truncated: stored chunk {} (samples from {} on) begins at byte {} and goes beyond the end of the file "
                            "({} bytes): import it again",
                            chunk, first[0], address, file_bytes));
        shard->chunks[chunk] = {address, static_cast<uint32_t>(size), deflated};
    }
    for (uint64_t i = 0; i < count; ++i)
        if (shard->chunks[i].bytes == 0) return wrong(fmt::format("has no stored chunk {}; import it again", i));
    return {};
}

/// What it may be.
struct SetRules {
    const char* name;
    int ranks[3];
    const char* dims;   // for messages
    std::span<const Element> elements;
    const char* elements_text;
};
constexpr Element pixels_alone[] = {Element::u8}, labels_alone[] = {Element::u8, Element::u16},
                  of_samples[] = {Element::u8, Element::u16, Element::u32, Element::f32},
                  of_targets[] = {Element::u8, Element::u16, Element::f32};
constexpr SetRules version_1_rules[] = {
    {"images", {4, 4, 4}, "4, [N, C, H, W]", pixels_alone, "uint8: x.astype(\"uint8\") of values in 0 .. 255"},
    {"labels", {1, 1, 1}, "1, [N]", labels_alone, "uint8, or uint16 above 256 classes: labels.astype(\"uint8\")"}};
constexpr SetRules version_2_rules[] = {{"samples",
                                         {1, 4, 4},
                                         "4, [N, C, H, W], or 1, [N] of tokens or [bytes] of JPEGs",
                                         of_samples,
                                         "uint8, uint16, uint32 or float32: x.astype(\"float32\")"},
                                        {"targets",
                                         {1, 2, 3},
                                         "1, [N] of labels, 2, [N, K] of floats, or 3, [N, H, W] of masks",
                                         of_targets,
                                         "uint8 or uint16 of labels, or float32"}};

/// A data set of this very file.
struct FoundSet {
    Hid id, type, space, creation;
};
/// wrong: makes the error of what is wrong with it.
template <typename Wrong>
Status set_find(hid_t file, const char* name, const Wrong& wrong, FoundSet* found) {
    // Hard links only: a soft or external link may lead to another file.
    H5L_info_t link;
    if (H5Lget_info(file, name, &link, H5P_DEFAULT) < 0 || link.type != H5L_TYPE_HARD) return wrong("is missing");
    found->id = Hid(H5Dopen2(file, name, H5P_DEFAULT));
    if (!found->id) return wrong("cannot be opened: " + hdf5_reason());
    const hid_t id = found->id.get();
    found->type = Hid(H5Dget_type(id)), found->space = Hid(H5Dget_space(id)), found->creation = Hid(H5Dget_create_plist(id));
    return found->type && found->space && found->creation ? Status{} : wrong("cannot be read: " + hdf5_reason());
}

/// Where a shard is given and the data set is in chunks, its chunks are listed there.
Status data_set_open(hid_t file, const std::string& path, const SetRules& rules, uint64_t file_bytes, Shard* shard, OpenSet* set) {
    auto wrong = [&](std::string_view what) { return fail(Code::data, "{}: data set {} {}", path, rules.name, what); };
    FoundSet opened;
    GC_TRY(set_find(file, rules.name, wrong, &opened));
    auto& [found, type, space, creation] = opened;
    if (!hdf5_element(type.get(), &set->element) || std::ranges::find(rules.elements, set->element) == rules.elements.end())
        return wrong(fmt::format("is {}, not {} (gradcastctl help shard)", hdf5_type_name(type.get()),
                                 rules.elements.size() == 1 && H5Tget_class(type.get()) == H5T_FLOAT
                                     ? "uint8: (x * 255).round().astype(\"uint8\") of values in 0 .. 1"
                                     : rules.elements_text));
    set->rank = H5Sget_simple_extent_ndims(space.get());
    if (H5Sget_simple_extent_type(space.get()) != H5S_SIMPLE || std::ranges::find(rules.ranks, set->rank) == std::end(rules.ranks))
        return wrong(fmt::format("has {} dimensions instead of {} (gradcastctl help shard)", set->rank, rules.dims));
    const auto dims = std::span(set->dims).first(static_cast<size_t>(set->rank));
    H5Sget_simple_extent_dims(space.get(), dims.data(), nullptr);
    if (std::ranges::find(dims, hsize_t{0}) != dims.end()) return wrong("is empty");
    H5D_layout_t layout = H5Pget_layout(creation.get());
    if (layout == H5D_CHUNKED && shard) {
        GC_TRY(chunks_read(found.get(), space.get(), creation.get(), rules.name, *set, file_bytes, shard));
        set->id = std::move(found);
        return {};
    }
    if (layout != H5D_CONTIGUOUS || H5Pget_external_count(creation.get()) != 0)
        return wrong(
            fmt::format("is not stored contiguously in this file: h5repack -f {0}:NONE -l {0}:CONTI '{1}' '{1}.new'", rules.name, path));
    haddr_t address = H5Dget_offset(found.get());
    if (address == HADDR_UNDEF) return wrong("has no data: it was never written");
    uint64_t remaining = address > file_bytes ? 0 : file_bytes - address, bytes = element_bytes(set->element);
    for (const hsize_t dim : dims) {
        if (__builtin_mul_overflow(bytes, dim, &bytes) || bytes > remaining)
            return wrong(
                fmt::format("is truncated: it begins at byte {} and goes beyond the end of the file ({} bytes)", address, file_bytes));
    }
    set->id = std::move(found);
    set->offset = address;
    return {};
}

/// Mean and deviation by channel.  Pixels are scaled to 0 .. 1; tokens are not scaled; other values have any scale.
Status scale_read(hid_t file, const std::string& path, DataInfo* info) {
    info->mean.resize(info->C);
    info->std.resize(info->C);
    GC_TRY(attribute_numbers(file, path, "mean", H5T_FLOAT, H5T_NATIVE_FLOAT, std::span(info->mean)));
    GC_TRY(attribute_numbers(file, path, "std", H5T_FLOAT, H5T_NATIVE_FLOAT, std::span(info->std)));
    const bool pixels = info->element == Element::u8;
    for (float mean : info->mean)
        if (pixels ? !(mean >= 0 && mean <= 1) : !std::isfinite(mean))
            return broken(path, "mean",
                          pixels ? fmt::format("is {}, outside 0 .. 1: it is of pixels scaled to 0 .. 1", mean)
                                 : fmt::format("is {}, not finite", mean));
    for (float std : info->std)
        if (!(std > 0) || (pixels ? std > 1 : !std::isfinite(1 / std)))
            return broken(path, "std",
                          pixels ? fmt::format("is {}, not above 0 and at most 1: it is of pixels scaled to 0 .. 1", std)
                                 : fmt::format("is {}, not above 0", std));
    return {};
}

Status digests_of(const OpenSet& set, const char* name, Shard* shard, std::vector<std::string>* digests) {
    const uint64_t count = (shard->info.count - 1) / shard->digest_samples + 1;
    if (count > digests_max)
        return broken(shard->path, "digest_samples", fmt::format("is {}: more than {} chunks", shard->digest_samples, digests_max));
    return digests_read(set.id.get(), fmt::format("{}: data set {}", shard->path, name), count, digests);
}

/// The merges of a vocabulary, which are too long for an attribute.
Status merges_read(hid_t file, uint64_t file_bytes, Shard* shard) {
    constexpr Element bytes_alone[] = {Element::u8};
    const SetRules rules{"alphabet", {1, 1, 1}, "1, [bytes]", bytes_alone, "uint8"};
    OpenSet set;
    GC_TRY(data_set_open(file, shard->path, rules, file_bytes, nullptr, &set));
    std::string text;
    if (set.dims[0] > Tokeniser::text_bytes_max)
        return fail(Code::data, "{}: data set alphabet has {} bytes, more than {} MiB", shard->path, set.dims[0],
                    Tokeniser::text_bytes_max >> 20);
    text.resize(set.dims[0]);
    if (H5Dread(set.id.get(), H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, text.data()) < 0)
        return fail(Code::data, "{}: data set alphabet cannot be read: {}", shard->path, hdf5_reason());
    std::vector<std::string> digests;
    GC_TRY(digests_read(set.id.get(), shard->path + ": data set alphabet", 1, &digests));
    if (sha256_hex(std::as_bytes(std::span(text))) != digests[0])
        return fail(Code::data, "{}: data set alphabet is damaged: SHA-256 is not the one written with it: import it again", shard->path);
    Tokeniser tokeniser;
    GC_TRY(Tokeniser::parse(text, shard->path + ": data set alphabet", &tokeniser));
    if (tokeniser.vocabulary() != shard->info.vocabulary)
        return fail(Code::data, "{}: data set alphabet has {} tokens, but attribute vocabulary is {}: it is that of another text",
                    shard->path, tokeniser.vocabulary(), shard->info.vocabulary);
    shard->info.alphabet = std::move(text);
    return {};
}

/// A shard of tokens.
Status text_read(hid_t file, uint64_t file_bytes, const OpenSet& samples, Shard* shard) {
    DataInfo& info = shard->info;
    uint64_t vocabulary = 0;
    if (samples.element != Element::u16 && samples.element != Element::u32)
        return fail(Code::data, "{}: data set samples is {} with 1 dimension: tokens are uint16 or uint32 (gradcastctl help shard)",
                    shard->path, element_name(samples.element));
    GC_TRY(attribute_number(file, shard->path, "vocabulary", 1, samples.element == Element::u16 ? 65536 : UINT32_MAX, &vocabulary));
    info.count = samples.dims[0];
    info.C = info.H = info.W = info.classes = 1;
    info.mean = {0}, info.std = {1};
    info.element = samples.element;
    info.vocabulary = static_cast<uint32_t>(vocabulary);
    if (H5Aexists(file, "alphabet") > 0) GC_TRY(attribute_string(file, shard->path, "alphabet", &info.alphabet, class_names_max));
    else if (H5Lexists(file, "alphabet", H5P_DEFAULT) > 0) GC_TRY(merges_read(file, file_bytes, shard));
    shard->samples_offset = samples.offset;
    shard->target_bytes = 0;
    return digests_of(samples, shard->samples_name, shard, &shard->sample_digests);
}

/// Where each JPEG of a shard of pictures begins.
Status offsets_read(hid_t file, const std::string& path, uint64_t file_bytes, uint64_t jpeg_bytes, Shard* shard) {
    constexpr const char* name = "offsets";
    auto wrong = [&](std::string_view what) { return fail(Code::data, "{}: data set {} {} (gradcastctl help shard)", path, name, what); };
    FoundSet opened;
    GC_TRY(set_find(file, name, wrong, &opened));
    const auto& [found, type, space, creation] = opened;
    if (H5Tequal(type.get(), H5T_STD_U64LE) <= 0) return wrong(fmt::format("is {}, not uint64", hdf5_type_name(type.get())));
    hsize_t entries = 0;
    if (H5Sget_simple_extent_type(space.get()) != H5S_SIMPLE || H5Sget_simple_extent_ndims(space.get()) != 1)
        return wrong("has not 1 dimension, [N + 1]");
    H5Sget_simple_extent_dims(space.get(), &entries, nullptr);
    if (entries < 2) return wrong(fmt::format("has {} entries: one for each JPEG, and the end", entries));
    if (H5Pget_layout(creation.get()) != H5D_CONTIGUOUS || H5Pget_external_count(creation.get()) != 0)
        return wrong(fmt::format("is not stored contiguously in this file: h5repack -l {0}:CONTI '{1}' '{1}.new'", name, path));
    const haddr_t address = H5Dget_offset(found.get());
    if (address == HADDR_UNDEF || address > file_bytes || entries > (file_bytes - address) / sizeof(uint64_t))
        return wrong("is truncated: import it again");
    GC_TRY(memory_room_for(entries * sizeof(uint64_t), path + ": the places of its samples"));
    shard->offsets.resize(entries);
    if (H5Dread(found.get(), H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, shard->offsets.data()) < 0)
        return wrong("cannot be read: " + hdf5_reason());
    std::vector<std::string> digests;
    GC_TRY(digests_read(found.get(), fmt::format("{}: data set {}", path, name), 1, &digests));
    shard->offsets_digest = sha256_hex(std::as_bytes(std::span(shard->offsets)));
    if (shard->offsets_digest != digests[0]) return wrong("is damaged: SHA-256 is not the one written with it: import it again");
    if (shard->offsets[0] != 0 || shard->offsets.back() != jpeg_bytes)
        return wrong(fmt::format("is from {} to {}, but samples has {} bytes", shard->offsets[0], shard->offsets.back(), jpeg_bytes));
    for (size_t i = 0; i + 1 < entries; ++i)
        if (shard->offsets[i + 1] <= shard->offsets[i] || shard->offsets[i + 1] - shard->offsets[i] > shard_sample_bytes_max)
            return wrong(fmt::format("says that sample {} begins at byte {} and ends at {}", i, shard->offsets[i], shard->offsets[i + 1]));
    return {};
}

/// A shard of pictures: fills in the sizes of its samples.
Status pictures_read(hid_t file, uint64_t file_bytes, OpenSet* samples, Shard* shard) {
    const std::string& path = shard->path;
    if (shard->chunk_samples > 0)
        return fail(Code::data, "{0}: data set {1} has JPEGs, but is in chunks: h5repack -f {1}:NONE -l {1}:CONTI '{0}' '{0}.new'", path,
                    shard->samples_name);
    uint64_t side = 0, longest = 0, channels = 0;
    GC_TRY(attribute_number(file, path, "side", 1, picture_side_max, &side));
    GC_TRY(attribute_number(file, path, "longest", side, picture_side_max, &longest));
    GC_TRY(attribute_number(file, path, "channels", 1, 3, &channels));
    if (channels == 2) return broken(path, "channels", "is 2, not 1 (grey) or 3 (RGB)");
    if (channels * side * longest > shard_sample_bytes_max)
        return broken(path, "longest",
                      fmt::format("is {}: pictures of {} x {} are above {} MiB", longest, side, longest, shard_sample_bytes_max >> 20));
    GC_TRY(offsets_read(file, path, file_bytes, samples->dims[0], shard));
    const hsize_t dims[4] = {shard->offsets.size() - 1, channels, side, side};
    std::copy_n(dims, 4, samples->dims);
    shard->info.side = static_cast<uint32_t>(side);
    shard->info.longest = static_cast<uint32_t>(longest);
    return {};
}

Status shard_read(hid_t file, uint64_t file_bytes, Shard* shard) {
    const std::string& path = shard->path;
    std::string format;
    GC_TRY(attribute_string(file, path, "format", &format));
    if (format != format_name) return broken(path, "format", fmt::format("is not \"{}\"", format_name));
    uint64_t version, classes;
    GC_TRY(attribute_number(file, path, "version", 1, UINT32_MAX, &version));
    if (version > format_version)
        return fail(Code::data, "{}: shard format version {} is newer than this gradcast, which reads up to {}: update it", path, version,
                    format_version);
    GC_TRY(attribute_number(file, path, "classes", 1, shard_side_max, &classes));
    GC_TRY(attribute_number(file, path, "digest_samples", 1, UINT64_MAX, &shard->digest_samples));
    GC_TRY(attribute_string(file, path, "source", &shard->info.source));

    const SetRules* rules = version == 1 ? version_1_rules : version_2_rules;
    shard->samples_name = rules[0].name;
    shard->targets_name = rules[1].name;
    OpenSet samples, targets;
    GC_TRY(data_set_open(file, path, rules[0], file_bytes, shard, &samples));
    const hsize_t* dims = samples.dims;
    if (samples.rank == 1 && samples.element != Element::u8) return text_read(file, file_bytes, samples, shard);
    if (samples.rank == 1) GC_TRY(pictures_read(file, file_bytes, &samples, shard));
    GC_TRY(data_set_open(file, path, rules[1], file_bytes, nullptr, &targets));
    if (targets.dims[0] != dims[0])
        return fail(Code::data, "{}: data set {} has {} entries for {} {}", path, rules[1].name, targets.dims[0], dims[0], rules[0].name);
    if (dims[1] > shard_side_max || dims[2] > shard_side_max || dims[3] > shard_side_max ||
        dims[1] * dims[2] * dims[3] * element_bytes(samples.element) > shard_sample_bytes_max)
        return fail(Code::data, "{}: data set {} has samples of {} x {} x {}, above {} MiB each", path, rules[0].name, dims[1], dims[2],
                    dims[3], shard_sample_bytes_max >> 20);
    if ((targets.rank == 2) != (targets.element == Element::f32))
        return fail(Code::data,
                    "{}: data set {} is {} with {} dimensions: labels are [N], floats [N, K], masks [N, H, W] (gradcastctl help shard)",
                    path, rules[1].name, element_name(targets.element), targets.rank);
    if (targets.rank == 3 && shard->info.pictures())
        return fail(Code::data, "{}: data set {} has masks, but samples has JPEGs of many sizes: store the pixels, [N, C, H, W]", path,
                    rules[1].name);
    if (targets.rank == 3 && (targets.dims[1] != dims[2] || targets.dims[2] != dims[3]))
        return fail(Code::data, "{}: data set {} has masks of {} x {} for samples of {} x {}", path, rules[1].name, targets.dims[1],
                    targets.dims[2], dims[2], dims[3]);
    if (targets.rank == 2 && targets.dims[1] > shard_targets_max)
        return fail(Code::data, "{}: data set {} has {} targets a sample, more than {}", path, rules[1].name, targets.dims[1],
                    shard_targets_max);
    shard->samples_offset = samples.offset;
    shard->targets_offset = targets.offset;
    DataInfo& info = shard->info;
    info.count = dims[0];
    info.classes = static_cast<uint32_t>(classes);
    info.C = static_cast<uint32_t>(dims[1]);
    info.H = static_cast<uint32_t>(dims[2]);
    info.W = static_cast<uint32_t>(dims[3]);
    info.element = samples.element;
    if (targets.rank > 1) {
        info.targets = static_cast<uint32_t>(targets.dims[1] * targets.dims[2]);
        info.target_element = targets.element;
        if (targets.rank == 2 && classes != 1)
            return broken(path, "classes", fmt::format("is {}, but samples with float targets are of 1 class", classes));
    }
    shard->target_bytes = info.targets > 0 ? static_cast<uint32_t>(info.targets_bytes()) : element_bytes(targets.element);
    Hid of_channels(H5Aopen(file, "mean", H5P_DEFAULT)), extent(of_channels ? H5Aget_space(of_channels.get()) : H5I_INVALID_HID);
    const auto means = static_cast<hsize_t>(extent ? H5Sget_simple_extent_npoints(extent.get()) : 0);
    if (means != dims[1] && means == dims[3])
        return fail(Code::data,
                    "{}: data set {} is {} x {} x {} x {} for {} means, one a channel: [N, H, W, C] in place of [N, C, H, W]: "
                    "numpy.ascontiguousarray(x.transpose(0, 3, 1, 2)) (gradcastctl help shard)",
                    path, rules[0].name, dims[0], dims[1], dims[2], dims[3], means);
    GC_TRY(scale_read(file, path, &info));

    // These are optional.
    if (H5Aexists(file, "ignore") > 0) {
        uint64_t ignore = 0;
        GC_TRY(attribute_number(file, path, "ignore", 0, info.target_element == Element::u8 ? UINT8_MAX : UINT16_MAX, &ignore));
        if (!info.masks()) return broken(path, "ignore", "is of masks, but there are none: leave it out");
        info.ignore = static_cast<int32_t>(ignore);
    }
    if (H5Aexists(file, "class_names") > 0) GC_TRY(attribute_string(file, path, "class_names", &info.class_names, class_names_max));
    if (H5Aexists(file, "target_scale") > 0) {
        GC_TRY(attribute_numbers(file, path, "target_scale", H5T_FLOAT, H5T_NATIVE_FLOAT, std::span(&info.target_scale, 1)));
        if (!std::isfinite(info.target_scale) || info.target_scale <= 0) return broken(path, "target_scale", "is not above 0");
        if (info.targets > 0) return broken(path, "target_scale", "is of labels, but there are targets: leave it out");
    }

    GC_TRY(digests_of(samples, rules[0].name, shard, &shard->sample_digests));
    GC_TRY(digests_of(targets, rules[1].name, shard, &shard->target_digests));
    return {};
}

constexpr uint64_t beyond_any_file = uint64_t{1} << 40;

/// The error for a shard that HDF5 refuses as too short: names what is missing.  Reads the metadata from a sparse copy of full length;
/// `reason` is the message if the metadata is damaged too.
Status truncated(const std::string& path, int from, uint64_t file_bytes, const std::string& reason) {
    Status plain = fail(Code::data, "{}: truncated: {} bytes are left ({})", path, file_bytes, reason);
    char copy_path[] = "/tmp/gradcast-shard-XXXXXX";   // HDF5 opens by path only, and a memory file has none
    Fd copy(::mkostemp(copy_path, O_CLOEXEC));
    if (!copy) return plain;
    off_t begin = 0;
    bool copied = ::sendfile(copy.get(), from, &begin, 1 << 20) > 0 && ::ftruncate(copy.get(), beyond_any_file) == 0;
    Hid file = copied ? hdf5_open(copy.get(), H5F_ACC_RDONLY) : Hid();
    ::unlink(copy_path);
    Shard read;
    read.path = path;
    if (!file || H5Aexists(file.get(), "side") > 0) return plain;   // of pictures, whose places would be read
    if (!shard_read(file.get(), beyond_any_file, &read).ok() || read.info.pictures()) return plain;
    const DataInfo& info = read.info;
    struct {
        const char* name;
        uint64_t offset, sample_bytes;
    } sets[] = {{read.samples_name, read.samples_offset, read.sample_bytes()}, {read.targets_name, read.targets_offset, read.target_bytes}};
    for (const StoredChunk& chunk : read.chunks)
        if (chunk.offset + chunk.bytes > file_bytes)
            return fail(Code::data,
                        "{}: data set {}, stored chunk {}: truncated: the file ends at byte {}, the chunk at {}: import it again", path,
                        read.samples_name, &chunk - read.chunks.data(), file_bytes, chunk.offset + chunk.bytes);
    for (const auto& each : sets) {
        if (each.offset == 0) continue;   // in chunks
        uint64_t end = each.offset + info.count * each.sample_bytes;
        if (end <= file_bytes) continue;
        uint64_t sample = (std::max(file_bytes, each.offset) - each.offset) / each.sample_bytes;
        return fail(Code::data,
                    "{}: data set {}, chunk {} (sample {}): truncated: the file ends at byte {}, the data set at {}: import it again", path,
                    each.name, sample / read.digest_samples, sample, file_bytes, end);
    }
    return plain;
}

}   // namespace

Status shard_open(const std::string& path, Shard* shard, Fd* fd) {
    Fd opened;
    uint64_t file_bytes = 0;
    struct stat info;
    if (::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode))
        return fail(Code::data, "{}: a folder: name the shards in it, as {}/train*.h5", path, path);
    GC_TRY(file_open(path, &opened, &file_bytes));
    Shard read;
    read.path = path;
    Hdf5Lock lock;
    Hid file = hdf5_open(opened.get(), H5F_ACC_RDONLY);
    if (!file) {
        const std::string reason = hdf5_reason();
        if (const int sys = hdf5_open_error(reason)) return fail_sys(sys, "cannot open {}", path);
        if (reason.starts_with("unable to lock file"))
            return fail(Code::data, "{}: another program has it open for writing: close it there, as by f.close() of h5py", path);
        if (reason.starts_with("file is already open for write"))
            return fail(Code::data,
                        "{}: another program has it open for writing, or has ended without closing it: close it there, or h5clear -s '{}'",
                        path, path);
        char signature[8];
        if (::pread(opened.get(), signature, sizeof signature, 0) != sizeof signature ||
            std::memcmp(signature, "\x89HDF\r\n\x1a\n", 8) != 0)
            return fail(Code::data, "{}: not a gradcast shard: not an HDF5 file", path);
        if (reason.starts_with("truncated")) return truncated(path, opened.get(), file_bytes, reason);
        return fail(Code::data, "{}: damaged: HDF5 cannot open it ({})", path, reason);
    }
    GC_TRY(shard_read(file.get(), file_bytes, &read));
    *shard = std::move(read);
    if (fd) *fd = std::move(opened);
    return {};
}

}   // namespace gradcast
