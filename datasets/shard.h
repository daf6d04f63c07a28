// Shards: HDF5 files with samples [N,C,H,W], contiguous or in deflated chunks, or JPEGs of many sizes, and with labels [N] or targets
// [N,K], and attributes (datasets/shard_format.h).  The HDF5 library opens them and reports the file offsets; datasets/reader.h reads the
// bytes.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/element.h"
#include "runtime/core/fd.h"

namespace gradcast {

constexpr uint64_t class_names_max = 32768;   // bytes; an HDF5 attribute holds at most 64 KiB
constexpr uint64_t shard_side_max = 65536;    // C, H, W, classes
constexpr uint64_t shard_sample_bytes_max = 256 << 20;
constexpr uint64_t shard_targets_max = 65536;   // floats of a sample

struct DataInfo {
    uint64_t count = 0;
    uint32_t C = 0, H = 0, W = 0, classes = 0;
    std::vector<float> mean, std;   // [C], of pixels scaled to 0..1, of other elements as they are
    std::string source;
    std::string class_names = {};   // separated by commas; empty: not known
    float target_scale = 0;         // above 0: a regression, whose target is (label - classes / 2) * target_scale
    Element element = Element::u8;
    uint32_t targets = 0;                    // above 0: a sample has so many targets in place of a label
    Element target_element = Element::f32;   // f32: a regression, which has 1 class; u8, u16: a mask, H W labels
    int32_t ignore = -1;                     // of masks: the label that says nothing; -1: none
    uint32_t vocabulary = 0;                 // above 0: a text, whose samples are tokens below it, one after another, without labels
    std::string alphabet = {};               // of a text of characters: all of them in the order of their tokens, UTF-8; of one of merges:
                                             // Tokeniser::text(); empty: not known
    uint32_t side = 0;                       // above 0: samples are pictures, stored as JPEGs whose short side it is, and cut to H x W
    uint32_t longest = 0;                    // of pictures: no side is longer
    bool pictures() const { return side > 0; }
    uint64_t sample_bytes() const { return uint64_t{C} * H * W * element_bytes(element); }         // in memory
    uint64_t targets_bytes() const { return uint64_t{targets} * element_bytes(target_element); }   // of a sample
    bool masks() const { return targets > 0 && target_element != Element::f32; }
    bool regression() const { return target_scale > 0 || (targets > 0 && target_element == Element::f32); }
};

/// A chunk of samples in the file.
struct StoredChunk {
    uint64_t offset = 0;
    uint32_t bytes = 0;      // in the file; 0: the chunk is missing
    bool deflated = false;   // a zlib stream
};

/// A shard on disk.
struct Shard {
    std::string path;   // for messages; a placeholder where the path is confidential
    DataInfo info;
    const char *samples_name = "images", *targets_name = "labels";   // of the data sets
    uint64_t samples_offset = 0, targets_offset = 0;                 // contiguous layout: file offsets of the first byte
    uint64_t chunk_samples = 0;                                      // above 0: samples are in chunks of so many, and samples_offset is 0
    std::vector<StoredChunk> chunks = {};                            // each inflates to chunk_bytes(), the last one too
    std::vector<uint64_t> offsets = {};   // [count + 1] of pictures: sample i is bytes offsets[i] .. offsets[i + 1] - 1
    std::string offsets_digest = {};      // SHA-256, hex
    uint32_t target_bytes = 1;            // of a sample: 1 or 2 of a label, 4 of each float
    uint64_t digest_samples = 0;          // samples a digest covers ("chunk" in messages)
    std::vector<std::string> sample_digests, target_digests;   // SHA-256, hex
    uint64_t sample_bytes() const { return info.sample_bytes(); }
    uint64_t chunk_bytes() const { return chunk_samples * sample_bytes(); }
};
/// Errors name file, data set and what is wrong ("not a gradcast shard", "truncated: …").
Status shard_open(const std::string& path, Shard* shard, Fd* fd = nullptr);
/// Reads all bytes, compares digests, checks labels: O(bytes).  Errors name file, data set and chunk; Code::cancelled when *stop is
/// set.
Status shard_verify(const Shard& shard, int fd, const std::atomic<bool>* stop = nullptr);

/// Errors for readers of a shard's bytes; both name file, data set and chunk.  sys 0: the file ended too early.
Status shard_read_error(const Shard& shard, const char* data_set, uint64_t sample, int sys);
Status shard_label_error(const Shard& shard, uint64_t sample, uint32_t label);
/// A JPEG that is no sample.  what: of PictureDecoder, or "".
Status shard_picture_error(const Shard& shard, uint64_t sample, std::string_view what);
/// Reads the JPEG of a sample of pictures.
Status shard_picture_read(const Shard& shard, int fd, uint64_t sample, std::vector<uint8_t>* bytes);
class PictureDecoder;
/// PictureDecoder::open() of these bytes.  Error: the header does not say what the shard says.
Status shard_picture_open(const Shard& shard, uint64_t sample, std::span<const uint8_t> bytes, PictureDecoder* decoder, uint32_t* H,
                          uint32_t* W);
Status shard_not_finite(const Shard& shard, const char* data_set, uint64_t sample);
/// The same as shard_label_error() where all labels are 1 .. classes.
Status shard_labels_from_1(const Shard& shard);

/// Writes <path>.part and renames it; equal data give equal bytes.  images [count, C, H, W], labels [count].  compress 1 .. 9: images in
/// chunks, deflated at this level; the digests are those of the contiguous shard.
Status shard_write(const std::string& path, const DataInfo& info, const uint8_t* images, const int32_t* labels, uint32_t compress = 0);
/// The same where samples have targets: [count, info.targets_bytes()]; null of a text, which has none.
Status shard_write(const std::string& path, const DataInfo& info, const uint8_t* samples, const std::byte* targets, uint32_t compress = 0);
/// Copies `count` samples from sample `first` of a shard on: [count, C, H, W] of info.element.
using SamplesRead = std::function<Status(uint64_t first, uint64_t count, uint8_t* to)>;
/// The same bytes in <path>.part, for a caller that renames it.  Asks for the samples in order, about 4 MiB at a time.
Status shard_write_part(const std::string& path, const DataInfo& info, const SamplesRead& samples, const int32_t* labels,
                        uint32_t compress = 0);
/// targets: gives [count, info.targets_bytes()]; not called of a text.
Status shard_write_part(const std::string& path, const DataInfo& info, const SamplesRead& samples, const SamplesRead& targets,
                        uint32_t compress = 0);

/// Pictures: JPEGs of `lengths` bytes each, one for each sample; info.side > 0.  `jpegs` copies `bytes` bytes of them, counted over all,
/// from byte `at` on, at most 4 MiB at a time and in order.
using PicturesRead = std::function<Status(uint64_t at, uint64_t bytes, uint8_t* to)>;
Status shard_write_part(const std::string& path, const DataInfo& info, std::span<const uint32_t> lengths, const PicturesRead& jpegs,
                        const int32_t* labels);

/// How far an import of images, masks, a text or tokens is.
struct ImportProgress {
    bool headers = false;           // the first look at all files, for their sizes; then they are decoded
    uint64_t done = 0, files = 0;   // images; of a text and tokens: MiB of it, files = 0, as their number is not known
};

struct ImportConfig {
    std::string kind = {};   // one of import_kinds()
    std::string from = {}, out = {};
    bool force = false;                                         // replace existing shards
    uint32_t compress = 0;                                      // deflate level, 1 .. 9; 0: contiguous
    uint64_t samples = 6000, seed = 1;                          // of ridge; seed also of `test`
    double test = 0;                                            // share of each class to test on, below 1; 0: as the source has it
    uint64_t shard_bytes = 256 << 20;                           // of the samples of a shard; a larger half of a data set has several
    uint32_t size = 0;                                          // of images: side after resizing and cutting; 0: as they are
    uint32_t threads = 1;                                       // of images: that decode
    bool exif = true;                                           // of images: turn as their EXIF orientation says
    bool skip_bad = false;                                      // of images: leave out files that cannot be read
    bool pictures = false;                                      // of images: `size` resizes the short side alone; stored as JPEGs
    std::string by = "characters";                              // of a text: what a token is; or "bytes"
    bool wide_tokens = false;                                   // of tokens without a header: they have 4 bytes, not 2
    uint32_t vocabulary = 0;                                    // of tokens: all are below it; 0: 1 + the largest
    std::string vocabulary_file = {};                           // of a text or tokens: as Tokeniser::open() takes it; empty: none
    std::string label = {};                                     // of a table: the column of classes; or:
    std::vector<std::string> targets = {}, without = {};        // of a table: columns of float targets; columns that are left out
    std::function<void(const ImportProgress&)> progress = {};   // called by the thread that imports, about 10 times a second
};
struct ImportResult {
    std::vector<std::string> paths;
    uint64_t train = 0, test = 0;
    std::vector<std::string> notes = {};   // one line each: what was omitted, turned or is odd; also of an import that fails
};
/// Writes out/train.h5 and, if the source has a test set, out/test.h5.  A half of more than shard_bytes is written as train-00000.h5,
/// train-00001.h5, …, as few as can be, of as many samples each or one more.  Nothing is renamed before all of them are written, so
/// an error leaves no half of a data set.  With `force`, all files of these names that an earlier import has left are replaced or removed.
Status data_import(const ImportConfig& config, ImportResult* result);
const std::vector<std::string>& import_kinds();

}   // namespace gradcast
