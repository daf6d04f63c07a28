// What an import that is killed leaves for the next one: what it has made of its sources, in files, and a record of how far it is.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "datasets/image_sample.h"
#include "datasets/spool.h"

namespace gradcast {

/// How far an import is: in the training set, then in the test set.
struct ImportState {
    uint64_t taken = 0;                   // files; of texts and tokens: bytes of the sources
    std::vector<uint64_t> bytes;          // by spool: of what was taken
    std::vector<uint64_t> bad;            // of these files: those that have no sample
    std::vector<std::string> bad_texts;   // of the first of them, one line each
    ImageOddities oddities;
};

/// A spool whose file has a name, one of import_spools.
struct KeptSpool {
    const char* name;
    Spool* spool;
};
constexpr const char* import_spools[] = {"train.samples", "test.samples", "train.masks", "test.masks"};

/// The files of a folder in which an import works: `import.part`, and SPOOL.part of each spool, as `train.samples.part`.  They stay where
/// the process is killed.  One process at a time: the caller holds the folder's lock.
class ImportFiles {
public:
    ImportFiles() = default;
    ImportFiles(ImportFiles&&) = delete;
    ~ImportFiles();   // removes them
    /// what: a digest of the arguments and files.  Opens the spools, which must stay, and goes on from *state where the record is of the
    /// same: *found.  *other: there was a record, but it is damaged or of something else.
    Status open(const std::string& folder, const std::string& what, std::vector<KeptSpool> spools, ImportState* state, bool* found,
                bool* other);
    /// About once a second, so that an import that is killed has lost little: brings the spools to the disk, then the record.
    Status save(ImportState& state);
    /// Removes what an import has left.
    static void remove(const std::string& folder);

private:
    std::string folder_, what_;
    std::vector<KeptSpool> spools_;
    uint64_t saved_us_ = 0;
};

/// A line of the digest `what`: a file's size, the time of its last change, and its path.
std::string file_line(const std::string& path);

}   // namespace gradcast
