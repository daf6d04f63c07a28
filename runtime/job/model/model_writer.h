// Writes a model's file by ranges, so that nobody needs to hold a whole state.
//
//     open    into what model_reserve() made, else into a new file; of a whole state, or of the runs that one cell has
//     add     elements of one vector; of each vector they come in ascending order, and the vectors may take turns.  Their SHA-256 is
//             computed as they come
//     close   description and digests.  The file is whole then, and the caller renames it
//
// Errors name the file.  After an error, or without close(), no file remains.
#pragma once
#include "datasets/hdf5.h"
#include "runtime/core/digest.h"
#include "runtime/job/model/model_file.h"

namespace gradcast {

/// One thread at a time.  After an error only the destructor may be called.
class ModelWriter {
public:
    ModelWriter() = default;
    ModelWriter(const ModelWriter&) = delete;
    ModelWriter& operator=(const ModelWriter&) = delete;
    ~ModelWriter() { drop(); }

    /// Of a whole state.
    Status open(const std::string& path, const StateSizes& sizes) { return open(path, sizes, state_runs_whole(sizes)); }
    /// Of a part of the state with these sizes.
    Status open(const std::string& path, const StateSizes& sizes, const StateRuns& runs);
    /// The next elements of a vector, which lie in one run; `place` is the number of the first one in the whole vector.  Writes and hashes
    /// before it returns, and takes no memory.  Error: also where elements come twice, are missing before these, or are more than open()
    /// was told.
    Status add(StateVector which, uint64_t place, std::span<const std::byte> elements);
    /// SHA-256 of the file's parameters in hex; empty until all have come.
    const std::string& digest() const { return digests_[StateVector::parameters]; }
    /// The file has digest() as the model's.  Error: also where some elements have not come, or where model.digest is not empty and
    /// differs.
    Status close(const Model& model);

private:
    bool write(StateVector which, uint64_t offset, std::span<const std::byte> elements);
    uint64_t next_place(StateVector which) const;
    Status wrong(std::string_view what);
    void drop();

    std::string path_;
    Hid file_;
    StateSizes sizes_{}, has_{}, next_{};   // of the whole state, of the file, and offsets in the file of what comes next
    StateRuns runs_;
    PerVector<Sha256> sha_;
    PerVector<std::string> digests_;   // of the vectors that are complete
};

}   // namespace gradcast
