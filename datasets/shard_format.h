// A shard's objects are in the root group.  Version 1 has pixels and labels:
//   images   uint8  [N, C, H, W]           attribute sha256: 64 hex digits for each run of `digest_samples` samples ("chunk");
//                                          contiguous, or in chunks of whole samples ("stored chunk"), deflated or plain
//   labels   uint8 or uint16 [N]           attribute sha256: the same
//   attributes of the root: format "gradcast shard", version 1, classes, digest_samples, mean [C], std [C], source,
//            optional: class_names, target_scale (regression)
// Version 2 has elements of other types, or targets:
//   samples  uint8, uint16, uint32 or float32 [N, C, H, W]     as images
//   targets  uint8 or uint16 [N]: labels, or float32 [N, K]    as labels
//            uint8 or uint16 [N, H, W]: masks                  optional attribute of the root: ignore
// or is a text:
//   samples  uint16 or uint32 [N]          tokens, as images; attributes of the root: vocabulary, optional: alphabet; classes, mean and
//                                          std say nothing
//   alphabet uint8 [bytes]                 optional, in place of the attribute: merges (Tokeniser::text()); sha256 of them
// or has pictures of many sizes:
//   samples  uint8 [bytes], contiguous     JPEGs, one after another; attributes of the root: side, of their short sides, longest, which no
//                                          side exceeds, channels; sha256 as images, each of the bytes of `digest_samples` JPEGs
//   offsets  uint64 [N + 1]                the first byte of each JPEG, and the end; attribute sha256: 64 hex digits of all
//   targets  as above, no masks
// What is little-endian in a file is so in memory: gradcast runs on x86-64.
#pragma once
#include <cstdint>

#include "datasets/shard.h"

namespace gradcast::shard_format {

constexpr char format_name[] = "gradcast shard";
constexpr uint32_t format_version = 2;   // the newest that is read
/// Returns the version to write: the oldest that can hold these data.
inline uint32_t format_version_of(const DataInfo& info) {
    return info.element == Element::u8 && info.targets == 0 && !info.pictures() ? 1 : 2;
}
constexpr uint64_t digest_bytes = 1 << 20;   // of images under one digest; more if a shard
constexpr uint64_t digests_max = 512;        // would have more digests: an HDF5 attribute holds at most 64 KiB
constexpr uint64_t digest_digits = 64;
constexpr uint64_t source_bytes_max = 4096;
// Stored chunks: large enough to compress well, small enough to inflate for one sample.  Their number is bounded because HDF5 1.10 needs
// O(chunks^2) time to list them.
constexpr uint64_t stored_bytes = 64 << 10, stored_written_max = 2048, stored_read_max = 8192;

}   // namespace gradcast::shard_format
