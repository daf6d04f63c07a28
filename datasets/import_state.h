// What an import that is killed leaves for the next one: its decoded samples in two files, and a record of how far they are.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "datasets/image_sample.h"
#include "datasets/spool.h"

namespace gradcast {

/// How far an import of images is: files of the training set, then those of the test set.
struct ImportState {
    uint64_t files = 0;                         // taken
    uint64_t train_bytes = 0, test_bytes = 0;   // of their samples
    std::vector<uint64_t> bad;                  // of these files: those that have no sample
    std::vector<std::string> bad_texts;         // of the first of them, one line each
    ImageOddities oddities;
};

/// The files of a folder in which an import works, `import.part`, `train.samples.part` and `test.samples.part`.  They stay where the
/// process is killed.  One process at a time: the caller holds the folder's lock.
class ImportFiles {
public:
    ImportFiles() = default;
    ImportFiles(ImportFiles&&) = delete;
    ~ImportFiles();   // removes them
    /// what: a digest of the arguments and files.  Opens both spools, and goes on from *state where the record is of the same: *found.
    /// *other: there was a record, but it is damaged or of something else.
    Status open(const std::string& folder, const std::string& what, Spool* train, Spool* test, ImportState* state, bool* found,
                bool* other);
    /// Brings the spools to the disk, then the record.
    Status save(Spool& train, Spool& test, ImportState& state);
    /// Removes what an import has left.
    static void remove(const std::string& folder);

private:
    std::string folder_, what_;
};

}   // namespace gradcast
