// The order in which a parameter server takes the pushes of its workers: kept in replay.log, and repeated from one.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "algos/algorithm.h"
#include "algos/replay.h"

namespace gradcast {

struct Push {
    uint32_t worker, tau;   // tau: staleness, in updates
    uint32_t anew;          // all workers had pulled anew before it, after a change of view
};

class PushLog {
public:
    /// Errors: the file of settings.replay is of another job, or has fewer pushes than the job makes.
    Status plan(const AlgorithmPlan& plan);
    void begin(uint64_t round);
    /// [pushes of a round]: those of the present one, as they are taken.
    std::span<Push> pushes() const { return {pushes_.as<Push>(), updates_}; }
    Buffer message() const { return pushes_; }
    /// They are whole: writes them to replay.log in the job's folder, behind those of the rounds before.
    Status keep(const std::string& head, uint64_t round);
    /// The last round that was kept, for nodes that get the state after it from another.
    std::span<const std::byte> state() const { return {last_round_.host, has_last_ ? last_round_.bytes : 0}; }
    Status restore(std::span<const std::byte> state);
    /// After restore(): writes that round.
    Status catch_up(const std::string& head);

    // These read the log that is repeated, after `taken` pushes of the round:
    bool replays() const { return !order_.empty(); }
    uint32_t worker(uint64_t taken) const { return of_round(taken).worker; }
    bool anew(uint64_t taken) const { return replays() && of_round(taken).anew; }
    bool has_more(uint32_t worker, uint64_t taken) const { return last_[worker] > taken; }

private:
    Status read(const std::string& path, const Facts& job);
    Status write(const std::string& head, uint64_t round, std::span<const Push> pushes);
    const Push& of_round(uint64_t taken) const { return order_[first_ + taken]; }

    uint64_t updates_ = 0, first_ = 0;   // first_: of the round, in order_
    ReplayLog log_;
    Buffer pushes_, last_round_;   // last_round_: its number, and its pushes
    bool has_last_ = false, behind_ = false;
    std::string lines_;   // of a round
    std::vector<Push> order_;
    std::vector<uint64_t> last_;   // by worker: number of its last push of the round in order_, from 1; 0: none
};

}   // namespace gradcast
