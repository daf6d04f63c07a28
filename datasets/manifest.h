// A manifest lists the shards of one data set, in order, in any folders.  A TOML file:
//
//     digest = "51b1…"                                  of the whole data set, as `gradcastctl data inspect` prints; optional
//     shards = [                                        paths are relative to this file's folder
//         { path = "a/train.h5", samples = 60000 },     samples is optional
//         "b/*.h5",                                     a pattern: all matches, sorted
//     ]
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/status.h"

namespace gradcast {

struct Manifest {
    struct Entry {
        std::string path;
        uint64_t samples = 0;   // 0: not given
        uint32_t line = 0;
        std::string pattern = {};   // confidential: messages show this pattern and `number`, the file's place in it, not the path
        size_t number = 0;
        std::string shown() const;   // the name for messages
    };
    std::vector<Entry> shards;
    std::string digest;   // empty: not given
};
/// Files whose name ends in .toml are manifests.
bool is_manifest(const std::string& path);
/// Patterns are expanded: every entry is one file.  Errors name the manifest and the line.
Status manifest_read(const std::string& path, Manifest* manifest, bool confidential = false);

/// Appends the files that match.  confidential: messages must not show their names (DataOptions).
/// literal: as file_glob().
Status shards_find(const std::string& pattern, bool confidential, std::vector<Manifest::Entry>* shards, size_t literal = 0);
/// The error for a confidential pattern: the same whether nothing matches or a match is not a shard.
Status shards_absent(const std::string& pattern);

}   // namespace gradcast
