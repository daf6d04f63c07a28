#include "runtime/daemon/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "runtime/job/file/job_file.h"
#include "runtime/job/run/resume.h"

namespace gradcast {

Status search_choose(const std::string& id, std::span<const SearchAnswer> answers, size_t* best, std::vector<std::string>* notes) {
    std::vector<std::string> asked;
    uint64_t elsewhere = 0;   // steps, of the newest at a node that is no member
    std::string where;
    std::map<uint64_t, std::vector<size_t>, std::greater<>> by_steps;   // of members
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
        if (each.found.steps == 0) continue;
        if (each.member) by_steps[each.found.steps].push_back(i);
        else if (each.found.steps > elsewhere) {
            elsewhere = each.found.steps;
            where = each.node;
        }
    }
    for (const auto& [steps, all] : by_steps) {
        std::vector<size_t> fit = all;
        auto differ = [&](size_t i) { return answers[i].found.state != answers[fit[0]].found.state; };
        if (std::any_of(fit.begin(), fit.end(), differ)) {
            std::vector<std::string> nodes;
            for (const size_t i : fit) nodes.push_back(answers[i].node);
            std::erase_if(fit, [&](size_t i) { return !answers[i].found.agreed; });
            const bool settled = !fit.empty() && std::none_of(fit.begin(), fit.end(), differ);
            notes->push_back(fmt::format(
                "nodes {} have different states after {} steps: {}", fmt::join(nodes, ", "), steps,
                settled ? fmt::format("that of node {} is taken, which all nodes had", answers[fit[0]].node) : "none is taken"));
            if (!settled) continue;
        }
        *best = fit[0];
        if (elsewhere > steps)
            notes->push_back(
                fmt::format("node {} has a checkpoint after {} steps, but it is not among the nodes of this run", where, elsewhere));
        return {};
    }
    return fail(Code::data, "no checkpoint of job {} at {}{}{}", id, asked.empty() ? "any node" : fmt::format("{}", fmt::join(asked, ", ")),
                elsewhere > 0 ? fmt::format("; node {} has one after {} steps: take it among the nodes", where, elsewhere) : "",
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
        std::string path;
        std::vector<std::string> notes;
        if (resume_find(folder, &model, &path, &notes).ok()) {
            found.steps = model.step;
            found.state = model.state;
            found.agreed = model.agreed;
            found.text = model.job;
            found.base = model.base;
            JobConfig config;
            std::vector<JobMistake> mistakes;
            if (job_parse(model.job, path, model.base, &config, &mistakes)) found.name = config.name;
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
