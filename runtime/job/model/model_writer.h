// Writes a model's file by ranges, so that nobody needs to hold a whole state.
//
//     open    into what model_reserve() made, else into a new file
//     add     elements of one vector; of each vector they come in ascending order, and the vectors may take turns.  Their SHA-256 runs
//     along close   description and digests.  The file is whole then, and the caller renames it
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

    Status open(const std::string& path, const StateSizes& sizes);
    /// The next elements of a vector; `place` is the number of the first one in the whole vector.  Writes and hashes before it returns,
    /// and takes no memory.  Error: also where elements come twice, are missing before these, or are more than open() was told.
    Status add(StateVector which, uint64_t place, std::span<const std::byte> elements);
    /// SHA-256 of the parameters in hex; empty until all have come.
    const std::string& digest() const { return digests_[StateVector::parameters]; }
    /// The file has digest() as the model's.  Error: also where some elements have not come, or where model.digest is not empty and
    /// differs.
    Status close(const Model& model);

private:
    bool write(StateVector which, uint64_t place, std::span<const std::byte> elements);
    Status wrong(std::string_view what);
    void drop();

    std::string path_;
    Hid file_;
    StateSizes sizes_{}, next_{};
    PerVector<Sha256> sha_;
    PerVector<std::string> digests_;   // of the vectors that are complete
};

}   // namespace gradcast
