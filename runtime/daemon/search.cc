#include "runtime/daemon/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "runtime/core/digest.h"
#include "runtime/job/file/job_file.h"
#include "runtime/job/run/resume.h"

namespace gradcast {

namespace {

/// A state of one part that a member has.
struct Candidate {
    size_t answer;
    FoundState found;
};

/// One of them all, which have the same steps and cell; null: nobody knows which is right.
const Candidate* settled(std::span<const SearchAnswer> answers, const std::vector<Candidate>& all, std::vector<std::string>* notes) {
    const auto differ = [&](const Candidate& each) { return each.found.state != all[0].found.state; };
    if (std::ranges::none_of(all, differ)) return &all[0];
    std::vector<std::string> nodes;
    const Candidate* agreed = nullptr;
    bool several = false;
    for (const Candidate& each : all) {
        nodes.push_back(answers[each.answer].node);
        if (!each.found.agreed) continue;
        several |= agreed && agreed->found.state != each.found.state;
        if (!agreed) agreed = &each;
    }
    if (several) agreed = nullptr;
    notes->push_back(
        fmt::format("nodes {} have different states after {} steps: {}", fmt::join(nodes, ", "), all[0].found.steps,
                    agreed ? fmt::format("that of node {} is taken, which all nodes had", answers[agreed->answer].node) : "none is taken"));
    return agreed;
}

/// Of those that have this state, one that is to read the fewest parts so far.
size_t holder(const std::vector<Candidate>& all, uint64_t state, const std::vector<size_t>& taken) {
    const Candidate* best = nullptr;
    const auto reads = [&](const Candidate& each) { return std::ranges::count(taken, each.answer); };
    for (const Candidate& each : all)
        if (each.found.state == state && (!best || reads(each) < reads(*best))) best = &each;
    return best->answer;
}

}   // namespace

Status search_choose(const std::string& id, std::span<const SearchAnswer> answers, SearchChoice* choice, std::vector<std::string>* notes) {
    std::vector<std::string> asked;
    std::map<std::pair<uint64_t, uint32_t>, std::map<uint32_t, std::vector<Candidate>>, std::greater<>> all;   // by steps, cells and cell
    FoundState elsewhere;   // the newest at a node that is no member
    std::string where;
    for (size_t i = 0; i < answers.size(); ++i) {
        const SearchAnswer& each = answers[i];
        if (!each.answered) {
            notes->push_back(fmt::format("node {} was not asked for its checkpoints: {}", each.node, each.why));
            continue;
        }
        if (each.found.active) return fail(Code::conflict, "job {} runs at node {}: cancel it there, or wait for its end", id, each.node);
        if (each.member) asked.push_back(each.node);
        for (size_t at = 0; at < each.found.notes.size();) {
            const size_t end = std::min(each.found.notes.find('\n', at), each.found.notes.size());
            notes->push_back(fmt::format("node {}: {}", each.node, each.found.notes.substr(at, end - at)));
            at = end + 1;
        }
        for (const FoundState& found : each.found.states) {
            if (each.member) all[{found.steps, found.cells}][found.cell].push_back({i, found});
            else if (found.steps > elsewhere.steps) elsewhere = found, where = each.node;
        }
    }
    const std::string there =
        elsewhere.cells == 1 ? "a checkpoint" : fmt::format("part {} of {} of a checkpoint", elsewhere.cell + 1, elsewhere.cells);
    for (const auto& [of, parts] : all) {
        const auto& [steps, cells] = of;
        SearchChoice found{.steps = steps, .state = cells > 1 ? splitmix64(steps) : 0, .holders = {}};
        std::vector<uint32_t> missing;
        for (uint32_t cell = 0; cell < cells; ++cell) {
            const auto its = parts.find(cell);
            if (its == parts.end()) {
                missing.push_back(cell + 1);
                continue;
            }
            const Candidate* taken = settled(answers, its->second, notes);
            if (!taken) break;
            found.state += taken->found.state;
            found.holders.push_back(holder(its->second, taken->found.state, found.holders));
        }
        if (!missing.empty())
            notes->push_back(fmt::format("of the checkpoint after {} steps part {} of {} is at none of these nodes", steps,
                                         fmt::join(missing, ", "), cells));
        if (found.holders.size() < cells) continue;
        *choice = found;
        if (elsewhere.steps > steps)
            notes->push_back(
                fmt::format("node {} has {} after {} steps, but it is not among the nodes of this run", where, there, elsewhere.steps));
        return {};
    }
    return fail(Code::data, "no checkpoint of job {} at {}{}{}", id, asked.empty() ? "any node" : fmt::format("{}", fmt::join(asked, ", ")),
                elsewhere.steps == 0 ? ""
                                     : fmt::format("; node {} has {} after {} steps: take it among the nodes", where,
                                                   elsewhere.cells == 1 ? "one" : there, elsewhere.steps),
                notes->empty() ? "" : fmt::format("; {}", fmt::join(*notes, "; ")));
}

bool Search::finished(uint64_t now_us) const {
    return now_us >= deadline_us ||
           std::all_of(answers.begin(), answers.end(), [](const SearchAnswer& each) { return each.answered || !each.why.empty(); });
}

Lookers::~Lookers() {
    for (Looker& each : lookers_)
        if (each.thread.joinable()) each.thread.join();
}

bool Lookers::start(const Look& look, const std::string& folder) {
    if (lookers_.size() >= looks_max) return false;
    Looker& looker = lookers_.emplace_back();
    looker.look = look;
    const Status made = looker.thread.start([&looker, folder] {
        Found& found = looker.look.found;
        Model model;
        std::vector<std::string> notes;
        if (resume_find(folder, &found.states, &model, &notes).ok()) {
            found.text = model.job;
            found.base = model.base;
            JobConfig config;
            std::vector<JobMistake> mistakes;
            if (job_parse(model.job, folder, model.base, &config, &mistakes)) found.name = config.name;
        }
        found.notes = fmt::format("{}", fmt::join(notes, "\n"));
        looker.done.store(true, std::memory_order_release);
    });
    if (!made.ok()) {
        looker.look.found.notes = made.what;
        looker.done.store(true, std::memory_order_release);
    }
    return true;
}

std::vector<Lookers::Look> Lookers::take() {
    std::vector<Look> done;
    for (auto at = lookers_.begin(); at != lookers_.end();) {
        if (!at->done.load(std::memory_order_acquire)) {
            ++at;
            continue;
        }
        if (at->thread.joinable()) at->thread.join();
        done.push_back(std::move(at->look));
        at = lookers_.erase(at);
    }
    return done;
}

}   // namespace gradcast
