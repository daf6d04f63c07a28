// A manifest makes shards one data set, wherever they lie and in the order it says.  A TOML file:
//
//     digest = "51b1…"                                  of the whole, as `gradcastctl data inspect` tells; may be missing
//     shards = [                                        paths are against this file's folder
//         { path = "a/train.h5", samples = 60000 },     samples may be missing
//         "b/*.h5",                                     a pattern is for all that match it, sorted
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
        uint64_t samples = 0;   // 0: not said
        uint32_t line = 0;
        std::string pattern = {};   // confidential: messages have this and `number`, which of its files it is, in place of the path
        size_t number = 0;
        std::string shown() const;   // in messages
    };
    std::vector<Entry> shards;
    std::string digest;   // empty: not said
};
/// Files whose name ends in .toml are manifests.
bool is_manifest(const std::string& path);
/// Every entry is one file.  Errors name the manifest and the line.
Status manifest_read(const std::string& path, Manifest* manifest, bool confidential = false);

/// Appends the files that match.  confidential: their names are not to be told (see DataOptions).
Status shards_find(const std::string& pattern, bool confidential, std::vector<Manifest::Entry>* shards);
/// What is said of a confidential pattern, whether nothing matches it or what does is no shard: it tells nothing of the files.
Status shards_absent(const std::string& pattern);

}   // namespace gradcast
