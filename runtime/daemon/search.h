// Which checkpoint a job goes on from: every node is asked for what it has, and the checkpoint of the most steps is taken.  One in parts
// counts where all its parts are there.
#pragma once
#include <atomic>
#include <list>
#include <span>
#include <string>
#include <vector>

#include "runtime/control/backend.h"
#include "runtime/core/log.h"
#include "runtime/core/thread.h"
#include "runtime/mesh/membership.h"

namespace gradcast {

constexpr uint64_t search_us = 60'000'000;   // how long nodes may read their files

/// A node that was asked.
struct SearchAnswer {
    std::string node;
    bool member = false;   // of the run to come
    bool answered = false;
    std::string why;   // it did not: the last error
    Found found = {};
};
struct SearchChoice {
    uint64_t steps = 0, state = 0;
    std::vector<size_t> holders;   // by cell: index of the answer
};
/// What to go on from, and what the user should know: nodes that did not answer, files that are damaged, parts that no member has, a newer
/// checkpoint at a node that is no member.  Where nodes have different states of one step, agreed ones count, and else none of that step.
/// Errors: the job runs somewhere; members have no checkpoint.
Status search_choose(const std::string& id, std::span<const SearchAnswer> answers, SearchChoice* choice, std::vector<std::string>* notes);

/// A search at the node that coordinates the run to come.
struct Search {
    Submission submission;
    std::string name;
    uint64_t submitted_unix = 0;
    uint64_t request = 0, deadline_us = 0;
    std::vector<SearchAnswer> answers;   // by peer
    bool finished(uint64_t now_us) const;
};

/// Looks through this node's folders for others, each in a thread of its own.  One thread calls.
class Lookers {
public:
    ~Lookers();
    struct Look {
        JobId id{};
        Rank peer = 0;
        uint64_t request = 0;
        Found found = {};
    };
    /// At most `looks_max` at a time: false.  Where no thread can be made, the look is done and its notes say so.
    bool start(const Look& look, const std::string& folder);
    /// Those that are done.
    std::vector<Look> take();

private:
    static constexpr size_t looks_max = 4;
    struct Looker {
        Look look;
        std::atomic<bool> done{false};
        Thread thread;
    };
    std::list<Looker> lookers_;
};

}   // namespace gradcast
