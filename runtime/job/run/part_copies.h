// Copies of a checkpoint's parts on their way to ranks of other stages, by mail, beside the training.
//
// A sender's messages are in its snapshot, which must not change while sending() is true.  A receiver has a few rooms for pieces: it asks
// for a piece when there is a room for it, its writer takes the pieces out of the rooms into the file.  So a slow disk holds up the
// sender's next checkpoint, and no step.  Copies of several parts come one after the other.
//
// Only the trainer asks for pieces, each time that it has collected completions: the writer does not know of a change of the session.
//
// What is under way when a session ends is dropped.  The part is then at fewer nodes.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "algos/dispatch.h"
#include "runtime/job/model/checkpoint_files.h"
#include "runtime/job/model/model_writer.h"
#include "runtime/job/run/parts.h"
#include "transport/mail.h"

namespace gradcast {

class PartCopies final : public Consumer {
public:
    struct Options {
        std::string folder;
        /// Trainer thread: there is work().
        std::function<void()> due;
        /// In work(): gives a file that is complete its name.
        std::function<Status(const CheckpointName&)> name;
        /// In work(): a copy has its name, or the error why it will have none.  Not called for a copy that is dropped.
        std::function<void(const CheckpointName&, const Status&)> ended;
    };
    /// Memory for rooms, of a job whose net is in stages.
    static uint64_t rooms_bytes(const JobParts& parts);
    /// `parts` and the memory, which is of rooms_bytes(), outlive it.
    void open(Options options, const JobParts& parts, Buffer memory);

    // Trainer thread.
    /// A session is open, in which it sends and receives.
    void join(Host& host, Dispatch& dispatch);
    /// Drops what is under way: the session has ended.
    void leave();
    /// The job has ended, and so has the thread of work(): drops all that has no name yet.
    void close();
    /// This rank's part of the state after so many steps, to each of these ranks.
    void send(uint64_t steps, std::span<const Rank> to, const ModelState& part);
    bool sending() const { return !outgoing_.empty(); }
    /// The part of that name, of which this is the description, from that rank.
    void receive(const CheckpointName& name, Rank from, const Model& model);
    /// All ranks had the state after so many steps, and those before.
    void confirm(uint64_t steps);
    Status take(const Completion& completion) override;
    Status taken(Status so_far) override;

    // Any thread.
    bool receiving() const;
    bool work_due() const;
    /// One thread at a time: does one thing that is due, for example writes a piece.
    void work();

private:
    /// Elements of one vector that lie side by side.
    struct Piece {
        StateVector which;
        uint64_t offset, place, count;   // offset: at the ranks of the stage; place: in the whole vector
        uint64_t bytes() const { return count * kind_of(which).width; }
    };
    struct Outgoing {
        Rank to;
        size_t posted = 0, done = 0;   // pieces
        size_t small = 0;              // pieces that are posted and not done, of those that go unasked
    };
    struct Incoming {
        CheckpointName name;
        Rank from = 0;
        Model model;
        StateRuns runs;
        std::vector<Piece> pieces;
        std::unique_ptr<ModelWriter> file = {};   // of work(), like failed
        bool failed = false;
        size_t posted = 0, arrived = 0, written = 0;   // pieces; arrived: in order
        std::vector<bool> here;                        // pieces that have come, by room
        bool confirmed = false, dropped = false;
    };
    static std::vector<Piece> pieces_of(const StateRuns& runs);
    /// How many rooms there are, of which size.
    struct Rooms {
        uint64_t count = 0, bytes = 0;
    };
    static Rooms rooms_of(const JobParts& parts);
    Buffer room(size_t piece, uint64_t bytes) const { return memory_.part(piece % rooms_.count * rooms_.bytes, bytes); }
    void post_sends(Outgoing& to, size_t number);
    void post_receives();
    void drop(bool all);
    void write(Incoming& copy, const Piece& piece, size_t number);
    void write_nothing(Incoming& copy);
    static Status close(Incoming& copy);
    void give_up(Incoming& copy, const Status& status);
    bool due(const Incoming& copy) const {
        return copy.dropped || copy.written < copy.arrived || (copy.written == copy.pieces.size() && (copy.confirmed || copy.failed));
    }

    Options options_;
    const JobParts* parts_ = nullptr;
    Rooms rooms_;
    Buffer memory_;
    std::optional<Mail> mail_;   // of the session
    uint64_t session_ = 0;       // its number, in tickets
    // The snapshot that is sent.
    uint64_t steps_ = 0;
    PerVector<std::span<const std::byte>> part_;
    std::vector<Piece> own_pieces_;
    std::vector<Outgoing> outgoing_;   // empty: nothing is sent

    mutable std::mutex mutex_;   // of the counters and flags in incoming_
    std::deque<Incoming> incoming_;
};

}   // namespace gradcast
