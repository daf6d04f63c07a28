#include "runtime/job/run/part_copies.h"

#include <unistd.h>

#include <algorithm>

namespace gradcast {
namespace {

// Pieces are short, and few of them are asked for at a time: words and edges of the training wait behind those that are on their way.
constexpr uint64_t copy_piece_bytes = 256 * 1024;
constexpr uint64_t rooms_min = 8, rooms_most = 32, pieces_of_room = 32;
constexpr size_t small_ahead = 4;                      // they take room from the training's words (mail_room)
constexpr uint64_t copy_tags = uint64_t{9} << 60;      // no other mail has both bits
constexpr uint64_t copy_tickets = uint64_t{1} << 62;   // no round of the mailbox comes so far; those of Cells have bit 63 instead
constexpr uint64_t of_receive = uint64_t{1} << 40;
constexpr uint32_t session_bits = 20, session_shift = 41, target_shift = 24;

uint64_t tag_of(uint64_t steps, size_t piece) { return copy_tags | steps << 24 | piece; }

}   // namespace

std::vector<PartCopies::Piece> PartCopies::pieces_of(const StateRuns& runs) {
    std::vector<Piece> all;
    for (const StateVector which : state_vectors)
        for (const auto& [offset, count, place] : runs[which])
            for (uint64_t i = 0, most = copy_piece_bytes / kind_of(which).width; i < count; i += most)
                all.push_back({which, offset + i, place + i, std::min(most, count - i)});
    return all;
}

/// More for larger parts, so that a copy does not take many steps whose trainer seldom asks.
PartCopies::Rooms PartCopies::rooms_of(const JobParts& parts) {
    Rooms rooms;
    uint64_t most = 0;   // pieces
    const uint32_t stages = parts.cut->stages();
    std::vector<StateRuns> all;   // that files may have
    for (uint32_t cell = 0; cell < parts.pipeline->cells(); ++cell) all.push_back(parts.state_runs_of(cell));
    for (uint32_t stage = 0; parts.buddies && stage < stages; ++stage)
        for (const StageRun& run : runs_possible(stage, stages)) all.push_back(parts.state_runs_of(run));
    for (const StateRuns& runs : all) {
        const std::vector<Piece> pieces = pieces_of(runs);
        most = std::max(most, pieces.size());
        for (const Piece& each : pieces) rooms.bytes = std::max(rooms.bytes, each.bytes());
    }
    rooms.count = std::clamp(most / pieces_of_room, rooms_min, rooms_most);
    return rooms;
}

uint64_t PartCopies::rooms_bytes(const JobParts& parts) {
    const Rooms rooms = rooms_of(parts);
    return rooms.count * rooms.bytes;
}

void PartCopies::open(Options options, const JobParts& parts, Buffer memory) {
    options_ = std::move(options);
    parts_ = &parts;
    rooms_ = rooms_of(parts);
    memory_ = memory;
}

void PartCopies::join(Host& host, Dispatch& dispatch) {
    leave();
    if (!parts_) return;
    mail_.emplace(host, mail_channel);
    dispatch.add(mail_channel, this);
}

void PartCopies::leave() {
    session_ = (session_ + 1) % (1 << session_bits);
    mail_.reset();
    outgoing_.clear();
    drop(false);
    if (work_due()) options_.due();
}

void PartCopies::close() {
    leave();
    drop(true);
    while (receiving()) work();
}

/// What cannot be finished, or all.
void PartCopies::drop(bool all) {
    std::lock_guard lock(mutex_);
    for (Incoming& each : incoming_) each.dropped |= all || each.arrived < each.pieces.size();
}

void PartCopies::send(uint64_t steps, std::span<const Rank> to, const ModelState& part) {
    own_pieces_ = pieces_of(parts_->runs);   // those of the present view
    GC_ASSERT(outgoing_.empty() && own_pieces_.size() < 1 << target_shift);
    steps_ = steps;
    part_ = part.bytes();
    if (own_pieces_.empty()) return;   // this node answers for no element
    for (const Rank rank : to) outgoing_.push_back({rank});
    for (size_t i = 0; i < outgoing_.size(); ++i) post_sends(outgoing_[i], i);
}

/// As many as the receiver may have rooms.
void PartCopies::post_sends(Outgoing& to, size_t number) {
    for (; to.posted < own_pieces_.size() && to.posted < to.done + rooms_.count; ++to.posted) {
        const Piece& piece = own_pieces_[to.posted];
        const bool small = piece.bytes() <= mail_early_bytes;
        if (small && to.small == small_ahead) return;
        to.small += small;
        const std::byte* from = part_[piece.which].data() + piece.offset * kind_of(piece.which).width;
        mail_->send({to.to}, tag_of(steps_, to.posted), {const_cast<std::byte*>(from), nullptr, piece.bytes()},
                    copy_tickets | session_ << session_shift | number << target_shift | to.posted);
    }
}

void PartCopies::receive(const CheckpointName& name, Rank from, const Model& model) {
    {
        std::lock_guard lock(mutex_);
        Incoming& copy = incoming_.emplace_back();
        copy.name = name;
        copy.from = from;
        copy.model = model;
        copy.runs = parts_->state_runs_of(name.cell);
        copy.pieces = pieces_of(copy.runs);
        copy.here.resize(rooms_.count);
    }
    post_receives();
}

/// Of the oldest copy, as far as there are rooms.
void PartCopies::post_receives() {
    std::lock_guard lock(mutex_);
    if (incoming_.empty() || !mail_) return;
    Incoming& copy = incoming_.front();
    if (copy.dropped) return;
    for (; copy.posted < copy.pieces.size() && copy.posted < copy.written + rooms_.count; ++copy.posted)
        mail_->receive(copy.from, tag_of(copy.name.steps, copy.posted), room(copy.posted, copy.pieces[copy.posted].bytes()),
                       copy_tickets | session_ << session_shift | of_receive | copy.posted);
}

void PartCopies::confirm(uint64_t steps) {
    bool some = false;
    {
        std::lock_guard lock(mutex_);
        for (Incoming& each : incoming_) some |= (each.confirmed |= each.name.steps <= steps);
    }
    if (some) options_.due();
    if (mail_) post_receives();
}

/// Mailbox takes the errors: a rank that is lost ends the session.
Status PartCopies::take(const Completion& completion) {
    if (!mail_ || !completion.status.ok() || completion.id >> 62 != 1) return {};
    if ((completion.id >> session_shift) % (1 << session_bits) != session_) return {};
    const size_t piece = completion.id % (1 << target_shift);
    if (completion.id & of_receive) {
        {
            std::lock_guard lock(mutex_);
            Incoming& copy = incoming_.front();
            copy.here[piece % rooms_.count] = true;
            for (; copy.arrived < copy.posted && copy.here[copy.arrived % rooms_.count]; ++copy.arrived)
                copy.here[copy.arrived % rooms_.count] = false;
        }
        options_.due();
    } else {
        const size_t number = (completion.id >> target_shift) % (1 << (40 - target_shift));
        Outgoing& to = outgoing_[number];
        ++to.done;
        to.small -= own_pieces_[piece].bytes() <= mail_early_bytes;
        post_sends(to, number);
        if (std::ranges::all_of(outgoing_, [this](const Outgoing& each) { return each.done == own_pieces_.size(); })) outgoing_.clear();
    }
    return {};
}

Status PartCopies::taken(Status so_far) {
    post_receives();
    return so_far;
}

bool PartCopies::receiving() const {
    std::lock_guard lock(mutex_);
    return !incoming_.empty();
}

bool PartCopies::work_due() const {
    std::lock_guard lock(mutex_);
    return !incoming_.empty() && due(incoming_.front());
}

void PartCopies::work() {
    std::unique_lock lock(mutex_);
    if (incoming_.empty() || !due(incoming_.front())) return;
    Incoming& copy = incoming_.front();   // stays where it is: no other thread removes it
    const size_t number = copy.written;
    const bool writes = !copy.dropped && number < copy.arrived, names = !copy.dropped && !writes && !copy.failed;
    lock.unlock();
    if (writes) {
        write(copy, copy.pieces[number], number);
        lock.lock();
        ++copy.written;
        return;
    }
    copy.file.reset();
    if (copy.dropped) ::unlink((checkpoint_path(options_.folder, copy.name) + ".part").c_str());
    if (names && copy.pieces.empty()) write_nothing(copy);
    if (names && !copy.failed) options_.ended(copy.name, options_.name(copy.name));
    lock.lock();
    incoming_.pop_front();
}

void PartCopies::write(Incoming& copy, const Piece& piece, size_t number) {
    if (copy.failed) return;   // what still comes is let go, so that its sender has its snapshot back
    Status status;
    if (!copy.file) {
        copy.file = std::make_unique<ModelWriter>();
        status = copy.file->open(checkpoint_path(options_.folder, copy.name) + ".part", parts_->state_sizes(), copy.runs);
    }
    const Buffer bytes = room(number, piece.bytes());
    if (status.ok()) status = copy.file->add(piece.which, piece.place, {bytes.host, bytes.bytes});
    if (status.ok() && number + 1 == copy.pieces.size()) status = close(copy);
    if (!status.ok()) give_up(copy, status);
}

/// The file of a part that has no element.
void PartCopies::write_nothing(Incoming& copy) {
    copy.file = std::make_unique<ModelWriter>();
    Status status = copy.file->open(checkpoint_path(options_.folder, copy.name) + ".part", parts_->state_sizes(), copy.runs);
    if (status.ok()) status = close(copy);
    if (!status.ok()) give_up(copy, status);
    copy.file.reset();
}

Status PartCopies::close(Incoming& copy) {
    copy.model.digest.clear();   // the file gets that of what has come
    return copy.file->close(copy.model);
}

void PartCopies::give_up(Incoming& copy, const Status& status) {
    copy.failed = true;
    copy.file.reset();
    options_.ended(copy.name, status);
}

}   // namespace gradcast
