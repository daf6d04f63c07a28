// The commands that follow jobs: watch, wait, logs.
#include "tools/gradcastctl/follow.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "tools/gradcastctl/client.h"
#include "tools/gradcastctl/commands.h"
#include "tools/gradcastctl/local.h"
#include "tools/gradcastctl/print.h"

namespace gradcast {
namespace {

/// The daemon does not answer any more, while the job ran.
int went_away(const Options& options, const JobDetail& job) {
    std::vector<std::string> others = job.summary.nodes;
    if (const auto self = static_cast<size_t>(job.self); self < others.size()) others.erase(others.begin() + static_cast<ptrdiff_t>(self));
    const std::string digits = job.summary.id.substr(0, 8),
                      what = fmt::format("the gradcastd at {} went away while job {} ran", options.target.text(), digits);
    if (others.empty()) return complain(exit_unreachable, "{}, which had no other node: it has ended", what);
    return complain(exit_unreachable, "{}; the job goes on at {} where it can do without a node: gradcastctl watch {} there follows it",
                    what, fmt::join(others, ", "), digits);
}

/// The daemon of `others` at which the job goes on, or has ended since; others.end(): none.
std::vector<Target>::iterator elsewhere(std::vector<Target>& others, const std::string& id) {
    for (auto at = others.begin(); at != others.end(); ++at) {
        JobDetail job;
        if (Client(*at).job(id, &job).exit != exit_done || !job.started || job.summary.status.goes_on) continue;
        const size_t self = static_cast<size_t>(job.self);
        fmt::print(stderr, "job {} is now followed at {}\n", id.substr(0, 8),
                   self < job.summary.nodes.size() ? job.summary.nodes[self] : at->text());
        return at;
    }
    return others.end();
}

/// Follows the job to its end, at other daemons where one goes away or its node is no longer in the job.  bar: may be null.
Reply follow(const Options& options, const std::string& which, ProgressBar* bar, JobDetail* job) {
    std::vector<Target> others = options.others;
    for (Target target = options.target;;) {
        const Reply reply = Client(target).follow(job->summary.id.empty() ? which : job->summary.id, job, [&](const JobDetail& now) {
            if (bar) bar->show(now);
            return interrupts() == 0;
        });
        if (bar) bar->end();
        const bool goes_on = (reply.exit == exit_unreachable && job->started) || (reply.exit == exit_done && job->summary.status.goes_on);
        if (interrupts() || !goes_on) return reply;
        const auto next = elsewhere(others, job->summary.id);
        if (next == others.end()) return reply;
        target = std::move(*next);
        others.erase(next);
    }
}

}   // namespace

int follow_to_result(const Options& options, const std::string& which) {
    ProgressBar bar;
    JobDetail job;
    const Reply reply = follow(options, which, &bar, &job);
    if (interrupts()) return job_goes_on(job.summary.id.empty() ? which : job.summary.id);
    if (reply.exit == exit_unreachable && job.started) return went_away(options, job);
    if (reply.exit != exit_done) return complain_of(reply);
    std::vector<NodeResult> nodes;
    for (uint32_t i = 0; i < job.summary.nodes.size(); ++i) {
        nodes.push_back({job.summary.nodes[i], {}});
        if (NodeId{i} == job.self) nodes.back().status = job.summary.status;
    }
    return print_result(options.json, job, nodes, job.self == NodeId{0} && job.summary.status.state == JobState::done ? job.folder : "");
}

int follow_log(const Options& options, const std::string& which, bool on) {
    Client client(options.target);
    JobDetail job;
    Reply reply = client.job(which, &job);
    if (reply.exit != exit_done) return complain_of(reply);
    const std::string id = job.summary.id;
    if (on) (void)interrupts();   // caught from here on
    std::string whole;
    for (uint64_t offset = 0;;) {
        if (on && interrupts()) return job_goes_on(id);
        bool ended = job_ended(job.summary.status.state);   // asked before the read, so that no last lines are missed
        reply = client.get(routes::log, id, fmt::format("?offset={}", offset));
        if (reply.exit != exit_done) return complain_of(reply);
        bool more = reply.next > offset;
        offset = reply.next;
        if (options.json) {
            whole += reply.text;
        } else if (std::fwrite(reply.text.data(), 1, reply.text.size(), stdout) != reply.text.size() || std::fflush(stdout) != 0) {
            return exit_failed;   // the reader has closed its end
        }
        if (more) continue;   // a long log comes in pieces
        if (!on || ended) break;
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        reply = client.job(id, &job);
        if (reply.exit != exit_done) return complain_of(reply);
    }
    if (options.json) {
        Json lines = Json::array();
        for (size_t at = 0; at < whole.size();) {
            const size_t end = std::min(whole.find('\n', at), whole.size());
            lines.push_back(whole.substr(at, end - at));
            at = end + 1;
        }
        fmt::print("{}\n", json_text(Json{{"id", id}, {"lines", lines}}, 2));
    }
    return exit_done;
}

static int command_wait(const Options& options, const std::vector<std::string>& which) {
    int exit = exit_done;
    Json all = Json::array();
    (void)interrupts();   // caught from here on
    for (const std::string& each : which) {
        JobDetail job;
        const Reply reply = follow(options, each, nullptr, &job);
        if (interrupts()) return complain(exit_failed, "interrupted; the jobs go on");
        if (reply.exit == exit_unreachable && job.started) return went_away(options, job);
        if (reply.exit != exit_done) return complain_of(reply);
        const JobStatus& status = job.summary.status;
        if (status.state != JobState::done) exit = exit_failed;
        if (options.json) all.push_back(job.summary);
        else
            fmt::print("{}  {}  {}{}{}\n", job.summary.id.substr(0, 8), job.summary.name, job_state_name(status.state),
                       status.error.empty() ? "" : "  ", status.error);
        std::fflush(stdout);
    }
    if (options.json) fmt::print("{}\n", json_text(Json{{"jobs", all}}, 2));
    return exit;
}

static int command_watch(const Options& options, const std::string& which) {
    (void)interrupts();   // caught from here on
    return follow_to_result(options, which);
}

// ---- command line --------------------------------------------------------------------------------------------------------------

void add_wait(Cli& cli) {
    auto& which = cli.keep<std::vector<std::string>>();
    cli.add(jobs_group, "wait", "wait for the end of jobs; exit code 1: one of them is not done",
            [&] { return command_wait(cli.options, which); })
        ->add_option("JOB", which, "ids, 4 or more of their first digits, or names")
        ->required();
}

void add_watch(Cli& cli) {
    auto& job = cli.keep<std::string>();
    cli.job(
        cli.add(jobs_group, "watch", "show a job's progress and, at its end, the result", [&] { return command_watch(cli.options, job); }),
        job);
}

void add_logs(Cli& cli) {
    struct Flags {
        std::string job;
        bool follow = false;
    };
    Flags& f = cli.keep<Flags>();
    CLI::App* command = cli.add(jobs_group, "logs", "a job's log at this node", [&] { return follow_log(cli.options, f.job, f.follow); });
    cli.job(command, f.job);
    command->add_flag("-f,--follow", f.follow, "go on until the job has ended");
}

}   // namespace gradcast
