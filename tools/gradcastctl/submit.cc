// The commands that bring work to a cluster: submit, resume, bench.
#include <algorithm>
#include <cstdlib>

#include "runtime/core/nearest.h"
#include "tools/gradcastctl/client.h"
#include "tools/gradcastctl/commands.h"
#include "tools/gradcastctl/follow.h"
#include "tools/gradcastctl/job_input.h"
#include "tools/gradcastctl/local.h"
#include "tools/gradcastctl/print.h"

namespace gradcast {
namespace {

/// "3" or "a,b,c".
Exit parse_nodes(const std::string& nodes, Submission* submission) {
    if (nodes.find_first_not_of("0123456789") != std::string::npos) {
        for (size_t at = 0; at <= nodes.size();) {
            size_t end = std::min(nodes.find(',', at), nodes.size());
            if (end == at) return complain(exit_usage, "--nodes {}: a node name is empty", nodes), exit_usage;
            submission->nodes.push_back(nodes.substr(at, end - at));
            at = end + 1;
        }
    } else if (!nodes.empty()) {
        submission->count = static_cast<uint32_t>(std::strtoul(nodes.c_str(), nullptr, 10));
        if (submission->count == 0 || nodes.size() > 4)
            return complain(exit_usage, "--nodes {}: 1 to 4096 nodes, or names with commas", nodes), exit_usage;
    }
    return exit_done;
}

int send_job(const Options& options, const Submission& submission, bool wait, const std::string& resumes) {
    Client client(options.target);
    JobDetail job;
    (void)interrupts();   // caught from here on
    std::string submitted;
    Reply reply = client.submit(
        submission, &job,
        [&](const std::string& its_id) {
            submitted = its_id;
            return interrupts() == 0;
        },
        resumes);
    if (interrupts() && !submitted.empty()) return job_goes_on(submitted);
    if (reply.exit != exit_done) return complain_of(reply);
    const std::string& id = job.summary.id;
    if (wait) {
        fmt::print(stderr, "job {}\n", id);
        return follow_to_result(options, id);
    }
    print_warnings(job.summary.status);
    fmt::print("{}\n", options.json ? json_text(reply.json, 2) : "job " + id);
    return exit_done;
}

/// Reads a job file for daemons, and checks it by what this machine has of its data.
Exit take_job(const Options& options, const std::string& path, bool resumes, Submission* submission) {
    JobConfig config;
    JobCheck unused;
    Status status = job_input(path, options.sets, &config);
    const uint32_t nodes = submission->nodes.empty() ? submission->count : static_cast<uint32_t>(submission->nodes.size());
    const JobCheckOptions check{.nodes = nodes, .verify = false, .resumes = resumes, .here = false};
    if (status.ok()) status = job_checked(path, options.sets, config, check, &unused);
    if (!status.ok()) return complain(exit_usage, "{}", status.what), exit_usage;
    submission->text = config.text;
    submission->path = path;
    submission->base = config.base;
    return exit_done;
}

}   // namespace

static int command_submit(const Options& options, const std::string& path, const std::string& nodes, bool wait) {
    Submission submission{.text = {}, .path = {}, .base = {}, .nodes = {}, .count = 0};
    if (Exit exit = parse_nodes(nodes, &submission); exit != exit_done) return exit;
    if (Exit exit = take_job(options, path, false, &submission); exit != exit_done) return exit;
    return send_job(options, submission, wait, {});
}

static int command_resume(const Options& options, const std::string& job, const std::string& path, const std::string& nodes, bool wait,
                          bool force, bool allow_command) {
    Submission submission{.text = {}, .path = {}, .base = {}, .nodes = {}, .count = 0};
    submission.force = force;
    submission.allow_command = allow_command;
    if (path.empty() && !options.sets.empty()) return complain(exit_usage, "--set changes a job file: name it after the job");
    if (Exit exit = parse_nodes(nodes, &submission); exit != exit_done) return exit;
    if (!path.empty())
        if (Exit exit = take_job(options, path, true, &submission); exit != exit_done) return exit;
    return send_job(options, submission, wait, job);
}

static int command_bench(const Options& options, const std::string& nodes, std::vector<std::string> arguments) {
    Submission submission{.text = {}, .path = {}, .base = "/", .nodes = {}, .count = 0, .bench = true};
    if (Exit exit = parse_nodes(nodes, &submission); exit != exit_done) return exit;
    if (arguments.empty()) return complain(exit_usage, "bench: name a command of gradcast-bench: allreduce, ps, multicast or p2p");
    const std::vector<std::string> commands = {"allreduce", "ps", "multicast", "p2p"};
    if (std::find(commands.begin(), commands.end(), arguments[0]) == commands.end()) {
        const std::string best = nearest(arguments[0], commands);
        return complain(exit_usage, "bench: {} is no command of gradcast-bench that nodes run: {}", arguments[0],
                        best.empty() ? fmt::format("{}", fmt::join(commands, ", ")) : fmt::format("did you mean {}?", best));
    }
    if (options.json) arguments.push_back("--json");
    submission.text = fmt::format("{}", fmt::join(arguments, "\n"));
    Client client(options.target);
    JobDetail job;
    (void)interrupts();   // caught from here on
    std::string id;
    Reply reply = client.submit(submission, &job, [&](const std::string& its_id) {
        id = its_id;
        return interrupts() == 0;
    });
    if (interrupts() && !id.empty()) return job_goes_on(id);
    if (reply.exit != exit_done) return complain_of(reply);
    if (int exit = follow_log({.target = options.target, .others = {}, .sets = {}, .json = false}, id, true); exit != exit_done)
        return exit;
    reply = client.job(id, &job);
    if (reply.exit != exit_done) return complain_of(reply);
    if (job.summary.status.state == JobState::done) return exit_done;
    return complain(exit_failed, "{}", job.summary.status.error);
}

// ---- command line --------------------------------------------------------------------------------------------------------------

void add_submit(Cli& cli) {
    struct Flags {
        std::string path, nodes;
        bool wait = false;
    };
    Flags& f = cli.keep<Flags>();
    CLI::App* command =
        cli.add(jobs_group, "submit", "train on a cluster", [&] { return command_submit(cli.options, f.path, f.nodes, f.wait); });
    cli.job_file(command, f.path);
    cli.set(command);
    cli.nodes_and_wait(command, f.nodes, f.wait);
}

void add_resume(Cli& cli) {
    struct Flags {
        std::string job, path, nodes;
        bool wait = false, force = false, allow_command = false;
    };
    Flags& f = cli.keep<Flags>();
    CLI::App* command = cli.add(jobs_group, "resume", "let a job that has ended go on from its newest checkpoint",
                                [&] { return command_resume(cli.options, f.job, f.path, f.nodes, f.wait, f.force, f.allow_command); });
    cli.job(command, f.job);
    command->add_option("JOB.toml", f.path, "a changed job file: other epochs, steps, exchange, deadline, … (default: the job's own)");
    cli.set(command);
    cli.nodes_and_wait(command, f.nodes, f.wait);
    command->add_flag("--force", f.force, "also where nodes that cannot be asked may go on with the job: they are dead");
    cli.allow_command(command, f.allow_command, "the job file in the checkpoint");
}

void add_bench(Cli& cli) {
    auto& nodes = cli.keep<std::string>();
    CLI::App* command = cli.add(cluster_group, "bench", "measure an exchange: runs gradcast-bench at the nodes while they have no job",
                                [&] { return command_bench(cli.options, nodes, cli.app.get_subcommand("bench")->remaining()); });
    command->add_option("--nodes", nodes, "how many, or which: a,b,c (default: all that are alive)");
    command->prefix_command()->fallthrough(false);   // the rest is for gradcast-bench, flags included
    command->footer(
        "then a command of gradcast-bench and its options, as: allreduce --exchange ring,coded-rs --size 4M\n"
        "the daemons add key, interface and addresses; 'gradcastctl cancel bench' ends it");
}

}   // namespace gradcast
