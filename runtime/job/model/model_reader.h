// Reads a state by ranges, so that nobody needs to hold a whole one: of a model's file or a checkpoint, or of the parts of a checkpoint
// that lie in one folder.
//
//     open     the description and the sizes of the vectors
//     read     all vectors once, in pieces, with their digests; the elements that the caller wants are kept
//     range    some elements once more, after read()
//
// Errors name the file and the thing: not a model, damaged, a part that is missing.
#pragma once
#include <memory>

#include "runtime/job/model/model_part.h"

namespace gradcast {

/// One thread at a time.
class ModelReader {
public:
    /// A file with a whole state; or any part of a checkpoint, beside which all others lie.
    Status open(const std::string& path);
    /// One file, whatever it has.
    Status open_alone(const std::string& path);
    /// Of several parts the digest is empty, and the state is that of all of them.
    const Model& model() const { return model_; }
    /// Of the whole state: as many parameters as the net's layers have.
    const StateSizes& sizes() const { return parts_[0]->sizes(); }
    /// What is there of a vector; the offsets mean nothing.
    std::vector<Layout::Run> has(StateVector which) const;
    StateRuns has() const;
    /// Error: no training can go on from this state.
    Status resumable() const { return parts_[0]->resumable(); }
    /// Checks the digests of all that is there, whatever the targets; reads it once and holds a piece of it at a time.  Error: also where
    /// wanted elements are missing; after an error the targets hold anything.
    Status read(std::span<const StateTarget> targets = {});
    /// The elements from `place` on, of a state that read() has found whole.  O(elements).
    Status range(StateVector which, uint64_t place, std::span<std::byte> to) const;

    /// Error: names what is not there of these elements.
    Status holds(StateVector which, uint64_t place, uint64_t count) const;

private:
    Status add(const std::string& path);

    std::vector<std::unique_ptr<ModelPart>> parts_;
    Model model_;
};

}   // namespace gradcast
