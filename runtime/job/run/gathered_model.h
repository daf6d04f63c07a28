// The model of a net in stages as one file: the lowest living rank writes what the stages send it, range by range, so that no node holds
// all of it.  Of each stage the lowest living rank sends.  A rank that is lost meanwhile is replaced by the next one that has the same.
//
// The writer announces the digest to all ranks once its file has its name.  Where replicas may be lost, a writer may die when only some
// ranks have got it.  So a rank that has the digest announces it to the others, and a rank without it asks all others before the next rank
// begins anew.  A rank that announces may die too: ranks ask in rounds, of which there are more than ranks that may be lost.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "runtime/job/model/model_writer.h"
#include "runtime/job/run/session.h"

namespace gradcast {

class GatheredModel {
public:
    /// For a job whose net is in stages.  `parts` outlive it.
    explicit GatheredModel(JobParts& parts) : parts_(parts) {}
    /// Memory that write() takes at the lowest rank.
    uint64_t rooms_bytes() const;
    /// All ranks call it after the last step.  The lowest one writes the state to `path`, closes the file with `model`, sets *wrote and
    /// calls name().  *digest, at all ranks: SHA-256 of the parameters, in hex.  Blocks until that rank has all, or for `us` a piece of
    /// 4 MiB.  Its messages are in memory of the session, because the link may still use it after an error.
    /// In another view it is called once more: a rank with *wrote and *digest of the call before has the file, and announces its digest.
    Status write(Context& context, Session& session, const std::string& path, const Model& model, uint64_t us,
                 const std::function<Status()>& name, std::string* digest, bool* wrote);

private:
    /// Elements that lie side by side in the whole vector and at their owner.
    struct Piece {
        StateVector which;
        uint32_t cell;
        uint64_t place, count;   // in the whole vector
        uint64_t offset;         // at the cell's ranks
    };
    std::vector<Piece> pieces() const;
    uint64_t room_bytes() const;   // of the largest piece
    std::span<const std::byte> own(const Piece& piece) const;
    Rank owner(const Session& session, const Piece& piece) const;
    Status send(Mailbox& mail, Session& session, std::span<const Piece> all, Rank writer, uint64_t us, Buffer digest);
    static void announce(Mailbox& mail, Session& session, Rank writer, uint32_t round, Buffer digest);
    static Status ask(Mailbox& mail, Session& session, Rank writer, uint64_t us, Buffer digest, bool* announced);
    Status collect(Mailbox& mail, Session& session, std::span<const Piece> all, uint64_t us, ModelWriter& writer);

    JobParts& parts_;
};

}   // namespace gradcast
