// One file of a state: a model's file or checkpoint with all of it, or a part with the ranges that one cell has.
//
// Errors name the file and the thing: not a model, damaged.  Every type and size is checked before memory is taken.
#pragma once
#include <string>

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
class ModelPart {
public:
    ModelPart() = default;
    ModelPart(const ModelPart&) = delete;
    ModelPart& operator=(const ModelPart&) = delete;
    ~ModelPart();

    Status open(const std::string& path);
    const std::string& path() const { return path_; }
    /// Its digest is that of the file's parameters.
    const Model& model() const { return model_; }
    /// Of the whole state: as many parameters as the net's layers have.
    const StateSizes& sizes() const { return sizes_; }
    /// What the file has; offsets are those in its data sets.
    const StateRuns& runs() const { return runs_; }
    bool whole() const { return state_sizes(runs_) == sizes_; }
    /// Error: no training can go on from this file.
    Status resumable() const;
    /// Checks the digests of the whole file.  Reads it once, holds a piece of it at a time, and keeps those of the wanted elements that the
    /// file has.  After an error the targets hold anything.
    Status read(std::span<const StateTarget> targets) const;
    /// Those elements from `place` on that the file has; of a file that read() has found whole.  O(elements).
    Status range(StateVector which, uint64_t place, std::span<std::byte> to) const;

private:
    Status describe(uint64_t file_bytes);
    Status check_net() const;
    Status read_stored(StateVector which, uint64_t offset, std::span<std::byte> to) const;

    std::string path_;
    Fd fd_;
    Hid file_;
    PerVector<Hid> data_;   // of vectors that the file has
    Model model_;
    StateSizes sizes_{};
    StateRuns runs_;
    uint64_t version_ = 0;
    std::string content_;   // digest of all that the file holds; empty in version 1
};

}   // namespace gradcast
