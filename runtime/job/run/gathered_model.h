// The model of a net in stages as one file: the lowest rank writes what the stages send it, range by range, so that no node holds all of
// it.
#pragma once
#include <string>
#include <vector>

#include "runtime/job/model/model_writer.h"
#include "runtime/job/run/session.h"

namespace gradcast {

class GatheredModel {
public:
    /// Of the job whose net has these layers in those stages.  `parts` outlive it.
    explicit GatheredModel(JobParts& parts) : parts_(parts) {}
    /// All ranks call it after the last step.  Rank 0 writes the state to `path` and closes the file with `model`.  *digest, at all ranks:
    /// SHA-256 of the parameters, in hex.  Blocks until rank 0 has all, or for `us` a piece of 4 MiB.  Its messages are in memory of the
    /// session, because the link may still use it after an error.
    Status write(Context& context, Session& session, const std::string& path, const Model& model, uint64_t us, std::string* digest);

private:
    /// Elements that lie side by side in the whole vector and at their owner.
    struct Piece {
        StateVector which;
        Rank owner;
        uint64_t place, count;   // in the whole vector
        uint64_t offset;         // at the owner
    };
    std::vector<Piece> pieces() const;
    std::span<const std::byte> own(const Piece& piece) const;

    JobParts& parts_;
};

}   // namespace gradcast
