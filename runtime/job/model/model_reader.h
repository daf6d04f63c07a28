// Reads a model's file or a checkpoint by ranges, so that nobody needs to hold a whole state.
//
//     open     the description and the sizes of the vectors
//     read     all vectors once, in pieces, with their digests; the elements that the caller wants are kept
//     range    some elements once more, after read()
//
// Errors name the file and the thing: not a model, damaged.  Every type and size is checked before memory is taken.
#pragma once
#include "datasets/hdf5.h"
#include "runtime/core/fd.h"
#include "runtime/job/model/model_file.h"

namespace gradcast {

/// Elements of a vector that a caller wants: those of `runs`, at their offsets in `to`.
struct StateTarget {
    StateVector which;
    std::span<const Layout::Run> runs;
    std::span<std::byte> to;
};

/// One thread at a time.
class ModelReader {
public:
    ModelReader() = default;
    ModelReader(const ModelReader&) = delete;
    ModelReader& operator=(const ModelReader&) = delete;
    ~ModelReader();

    Status open(const std::string& path);
    const Model& model() const { return model_; }
    /// As many parameters as the net's layers have.
    const StateSizes& sizes() const { return sizes_; }
    /// Error: no training can go on from this file.
    Status resumable() const;
    /// Checks the digests of the whole file, whatever the targets; reads it once and holds a piece of it at a time.  Error: also where the
    /// file lacks wanted elements; after an error the targets hold anything.
    Status read(std::span<const StateTarget> targets = {});
    /// The elements from `place` on, of a file that read() has found whole.  O(elements).
    Status range(StateVector which, uint64_t place, std::span<std::byte> to) const;

private:
    Status describe(uint64_t file_bytes);
    Status check_net() const;
    Status holds(StateVector which, uint64_t place, uint64_t count) const;

    std::string path_;
    Fd fd_;
    Hid file_;
    PerVector<Hid> data_;   // of vectors that the file has
    Model model_;
    StateSizes sizes_{};
    uint64_t version_ = 0;
    std::string content_;   // digest of all that the file holds; empty in version 1
};

}   // namespace gradcast
