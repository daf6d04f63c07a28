// The commands that ask a daemon about jobs and nodes.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <thread>

#include "runtime/core/nearest.h"
#include "tools/gradcastctl/client.h"
#include "tools/gradcastctl/commands.h"
#include "tools/gradcastctl/job_input.h"
#include "tools/gradcastctl/local.h"
#include "tools/gradcastctl/print.h"
#include "tools/gradcastctl/run_record.h"

namespace gradcast {
namespace {

int complain_of(const Reply& reply) {
    if (reply.error.empty()) return reply.exit;
    return complain(reply.exit, "{}", reply.error);
}

/// "peer_lost": "peer lost".
std::string words_of(std::string key) {
    std::replace(key.begin(), key.end(), '_', ' ');
    return key;
}

std::string progress(const JobStatus& status) { return fmt::format("{}/{}", status.step, status.steps); }

/// "2 from step 121, 2025-01-31 18:00:05: a, c; without b; why: b silent; the job stood for 1.2 s".
std::string view_text(const ViewRecord& view) {
    std::string text =
        fmt::format("{} from step {}, {}: {}", view.number, view.first_step, text_time(view.began_unix), fmt::join(view.members, ", "));
    if (!view.came.empty()) text += fmt::format("; with {}", fmt::join(view.came, ", "));
    if (!view.left.empty()) text += fmt::format("; without {}", fmt::join(view.left, ", "));
    if (!view.why.empty())
        text += fmt::format("; why: {}; the job stood for {}", view.why, text_seconds(static_cast<double>(view.stood_us) * 1e-6));
    return text;
}

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

/// Follows the job to its end, and prints its result.
int finish(const Options& options, const std::string& which) {
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

}   // namespace

namespace {
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
        return finish(options, id);
    }
    print_warnings(job.summary.status);
    fmt::print("{}\n", options.json ? json_text(reply.json, 2) : "job " + id);
    return exit_done;
}

/// Reads a job file for daemons, and checks it by what this machine has of its data.
Exit take_job(const Options& options, const std::string& path, Submission* submission) {
    JobConfig config;
    JobCheck unused;
    Status status = job_input(path, options.sets, &config);
    const uint32_t nodes = submission->nodes.empty() ? submission->count : static_cast<uint32_t>(submission->nodes.size());
    if (status.ok()) status = job_checked(path, options.sets, config, {.nodes = nodes, .verify = false, .here = false}, &unused);
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
    if (Exit exit = take_job(options, path, &submission); exit != exit_done) return exit;
    return send_job(options, submission, wait, {});
}

static int command_resume(const Options& options, const std::string& job, const std::string& path, const std::string& nodes, bool wait,
                          bool force) {
    Submission submission{.text = {}, .path = {}, .base = {}, .nodes = {}, .count = 0};
    submission.force = force;
    if (path.empty() && !options.sets.empty()) return complain(exit_usage, "--set changes a job file: name it after the job");
    if (Exit exit = parse_nodes(nodes, &submission); exit != exit_done) return exit;
    if (!path.empty())
        if (Exit exit = take_job(options, path, &submission); exit != exit_done) return exit;
    return send_job(options, submission, wait, job);
}

static int command_list(const Options& options, const std::vector<std::string>& states) {
    const std::string local = text_local_runs();
    if (!local.empty() && !options.json) fmt::print(stderr, "{}\n", local);
    const Client client(options.target);
    JobList listed;
    NodeList members;
    Reply reply = client.ask(routes::jobs, {}, {}, &listed);
    if (reply.exit != exit_done) return complain_of(reply);
    if (const Reply answer = client.ask(routes::nodes, {}, {}, &members); answer.exit != exit_done) return complain_of(answer);
    for (size_t i = listed.jobs.size(); i-- > 0;) {
        if (states.empty() || std::ranges::find(states, job_state_name(listed.jobs[i].status.state)) != states.end()) continue;
        listed.jobs.erase(listed.jobs.begin() + static_cast<ptrdiff_t>(i));
        reply.json["jobs"].erase(i);
    }
    const auto self = std::ranges::find(members.nodes, true, &NodeInfo::self);
    const std::string whose = self == members.nodes.end() ? "" : text_jobs_of(self->name, members.nodes);
    if (options.json) {
        reply.json["whose"] = whose;
        reply.json["local_runs"] = local;
        fmt::print("{}\n", json_text(reply.json, 2));
        return exit_done;
    }
    std::vector<std::vector<std::string>> rows = {{"job", "name", "state", "step", "accuracy", "nodes", "submitted"}};
    for (const JobSummary& job : listed.jobs) {
        const JobStatus& status = job.status;
        rows.push_back({job.id.substr(0, 8), job.name, job_state_name(status.state), progress(status),
                        status.accuracy >= 0 ? fmt::format("{:.4f}", status.accuracy) : "-", text_nodes(job.nodes_now(), job.nodes.size()),
                        text_time(job.submitted_unix)});
    }
    if (rows.size() == 1) fmt::print("no jobs{}{}\n", states.empty() ? "" : " that are ", fmt::join(states, " or "));
    else print_table(rows);
    if (!whose.empty()) fmt::print(stderr, "{}\n", whose);   // stdout has jobs alone: completion reads it
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

static int command_describe(const Options& options, const std::string& which) {
    const bool path = which.find('/') != std::string::npos;   // else a folder may have the name of a job
    std::error_code error;
    if (std::filesystem::is_directory(which, error) && (path || std::filesystem::exists(which + "/steps.jsonl", error)))
        return describe_folder(options, which);
    if (path) return complain(exit_usage, "{}: there is no such folder", which);
    JobDetail job;
    Reply reply = Client(options.target).job(which, &job);
    if (reply.exit != exit_done) return complain_of(reply);
    if (options.json) {
        fmt::print("{}\n", json_text(reply.json, 2));
        return exit_done;
    }
    const JobStatus& status = job.summary.status;
    auto line = [](const char* name, const std::string& value) {
        if (!value.empty()) fmt::print("{:<15} {}\n", name, value);
    };
    line("job", job.summary.id);
    line("name", job.summary.name);
    line("state", job_state_name(status.state));
    line("error", status.error);
    for (const std::string& loss : status.losses) line("goes on", loss);
    for (const std::string& warning : status.warnings) line("warning", warning);
    line("submitted", text_time(job.summary.submitted_unix));
    const size_t self = static_cast<size_t>(job.self);
    line("nodes", fmt::format("{}; this one is {}", fmt::join(job.summary.nodes, ", "),
                              self < job.summary.nodes.size() ? job.summary.nodes[self] : "not known"));
    if (!job.exchange.empty())
        line("algorithm", fmt::format("{}, exchange {}, quantiser {}, batch {} in {} blocks", job.algorithm, job.exchange, job.quantiser,
                                      job.batch, job.blocks));
    std::string settings;
    for (const auto& [key, value] : status.settings) settings += fmt::format("{}{} {}", settings.empty() ? "" : ", ", key, value);
    line("settings", settings);
    if (status.choice) line("chosen", exchange_report_text(*status.choice));
    line("transport", fmt::format("{}{}protect {}", status.path, status.path.empty() ? "" : ", ", job.protect));
    if (status.datagrams) line("datagrams", datagrams_text(*status.datagrams));
    line("resumed", status.resumed > 0 ? fmt::format("after {} steps", status.resumed) : "");
    line("checkpoint", status.checkpoint > 0 ? fmt::format("after {} steps, at this node", status.checkpoint) : "");
    line("step", fmt::format("{} of {}, epoch {} of {}", status.step, status.steps, status.epoch, status.epochs));
    line("loss", status.stepped() ? fmt::format("{:.6f}", status.loss) : "");
    line("accuracy", status.accuracy >= 0 ? fmt::format("{:.4f}", status.accuracy) : "");
    line("test loss", status.test_loss >= 0 ? fmt::format("{:.6f}", status.test_loss) : "");
    line("time", fmt::format("{}, {:.0f} samples/s", text_seconds(status.seconds), status.samples_per_second));
    line("this node", fmt::format("sent {}, received {}, waited {} for the exchange and {} for data", text_bytes(status.bytes_sent),
                                  text_bytes(status.bytes_received), text_seconds(static_cast<double>(status.exchange_wait_us) * 1e-6),
                                  text_seconds(static_cast<double>(status.load_wait_us) * 1e-6)));
    line("computed", fmt::format("{} samples trained on, {} gradients{}, at this node", status.samples, status.gradients,
                                 status.forwards > 0 ? fmt::format(" and {} forward passes", status.forwards) : ""));
    std::string staleness;
    for (const StalenessBin& each : status.staleness)
        staleness += fmt::format("{}{}{}: {}", staleness.empty() ? "" : ", ", each.from,
                                 each.to > each.from ? fmt::format("-{}", each.to) : "", each.pushes);
    line("staleness", staleness + (staleness.empty() ? "" : " pushes"));
    print_workers({{self < job.summary.nodes.size() ? job.summary.nodes[self] : "", status}});
    for (const Straggler& each : status.stragglers)
        line("straggler", fmt::format("{}: {} takes {:.1f} ms of a step, {:.1f} ms at the others: {}", each.node, each.phase,
                                      each.us * 1e-3, each.others_us * 1e-3, each.advice));
    print_times(status.times);
    print_metrics(status.metrics);
    for (const ViewRecord& view : status.views) line("view", view_text(view));
    if (status.change_us > 0) line("longest change", text_seconds(static_cast<double>(status.change_us) * 1e-6));
    line("memory", words_of(memory_text(status.memory)));
    line("kernel set", status.kernel_set);
    std::string timeouts;
    for (const auto& [name, us] : status.timeouts_us)
        timeouts += fmt::format("{}{} {}", timeouts.empty() ? "" : ", ", words_of(name), text_seconds(static_cast<double>(us) * 1e-6));
    line("time-outs", timeouts);
    line("folder", job.folder);
    line("step digest", status.stepped() ? fmt::format("{:016x}", status.step_digest) : "");
    line("digest", status.digest);
    return exit_done;
}

static int command_watch(const Options& options, const std::string& which) {
    (void)interrupts();   // caught from here on
    return finish(options, which);
}

static int command_logs(const Options& options, const std::string& which, bool follow) {
    Client client(options.target);
    JobDetail job;
    Reply reply = client.job(which, &job);
    if (reply.exit != exit_done) return complain_of(reply);
    const std::string id = job.summary.id;
    if (follow) (void)interrupts();   // caught from here on
    std::string whole;
    for (uint64_t offset = 0;;) {
        if (follow && interrupts()) return job_goes_on(id);
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
        if (!follow || ended) break;
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

static int command_delete(const Options& options, const std::vector<std::string>& which) {
    Json all = Json::array();
    for (const std::string& each : which) {
        Deleted job;
        const Reply reply = Client(options.target).ask(routes::remove, each, {}, &job);
        if (reply.exit != exit_done) return complain_of(reply);
        if (options.json) all.push_back(reply.json);
        else fmt::print("job {} is deleted at this node\n", job.id);
    }
    if (options.json) fmt::print("{}\n", json_text(Json{{"jobs", all}}, 2));
    return exit_done;
}

static int command_cancel(const Options& options, const std::string& which) {
    JobDetail job;
    const Reply reply = Client(options.target).ask(routes::cancel, which, {}, &job);
    if (reply.exit != exit_done) return complain_of(reply);
    if (options.json) fmt::print("{}\n", json_text(reply.json, 2));
    else fmt::print("job {} is being cancelled\n", job.summary.id);
    return exit_done;
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
    if (int exit = command_logs({.target = options.target, .others = {}, .sets = {}, .json = false}, id, true); exit != exit_done)
        return exit;
    reply = client.job(id, &job);
    if (reply.exit != exit_done) return complain_of(reply);
    if (job.summary.status.state == JobState::done) return exit_done;
    return complain(exit_failed, "{}", job.summary.status.error);
}

static int command_doctor(const Options& options) {
    Findings found;
    const Reply reply = Client(options.target).ask(routes::doctor, {}, {}, &found);
    if (reply.exit != exit_done) return complain_of(reply);
    const bool wrong = std::ranges::any_of(found.checks, [](const Finding& each) { return each.verdict == Finding::Verdict::error; });
    if (options.json) {
        fmt::print("{}\n", json_text(reply.json, 2));
        return wrong ? exit_failed : exit_done;
    }
    std::vector<std::vector<std::string>> rows;
    for (const Finding& each : found.checks) rows.push_back({verdict_name(each.verdict), each.check, each.text});
    print_table(rows);
    return wrong ? exit_failed : exit_done;
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
        bool wait = false, force = false;
    };
    Flags& f = cli.keep<Flags>();
    CLI::App* command = cli.add(jobs_group, "resume", "let a job that has ended go on from its newest checkpoint",
                                [&] { return command_resume(cli.options, f.job, f.path, f.nodes, f.wait, f.force); });
    cli.job(command, f.job);
    command->add_option("JOB.toml", f.path, "a changed job file: other epochs, steps, exchange, deadline, … (default: the job's own)");
    cli.set(command);
    cli.nodes_and_wait(command, f.nodes, f.wait);
    command->add_flag("--force", f.force, "also where nodes that cannot be asked may go on with the job: they are dead");
}

void add_list(Cli& cli) {
    auto& states = cli.keep<std::vector<std::string>>();
    cli.add(jobs_group, "list", "the jobs of this daemon's node, and where local runs are",
            [&] { return command_list(cli.options, states); })
        ->add_option("--state", states, "only jobs that are so: running,failed")
        ->delimiter(',')
        ->check(job_states());
}

void add_wait(Cli& cli) {
    auto& which = cli.keep<std::vector<std::string>>();
    cli.add(jobs_group, "wait", "wait for the end of jobs; exit code 1: one of them is not done",
            [&] { return command_wait(cli.options, which); })
        ->add_option("JOB", which, "ids, 4 or more of their first digits, or names")
        ->required();
}

void add_describe(Cli& cli) {
    auto& job = cli.keep<std::string>();
    cli.add(jobs_group, "describe", "all about a job, or what a local run has kept", [&] { return command_describe(cli.options, job); })
        ->add_option("JOB", job, "id, 4 or more of its first digits, or name; or the folder of a run, which list and run tell")
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
    CLI::App* command = cli.add(jobs_group, "logs", "a job's log at this node", [&] { return command_logs(cli.options, f.job, f.follow); });
    cli.job(command, f.job);
    command->add_flag("-f,--follow", f.follow, "go on until the job has ended");
}

void add_delete(Cli& cli) {
    auto& which = cli.keep<std::vector<std::string>>();
    cli.add(jobs_group, "delete", "remove jobs that have ended, with model, checkpoints and log at this node",
            [&] { return command_delete(cli.options, which); })
        ->add_option("JOB", which, "ids, 4 or more of their first digits, or names that one job has")
        ->required();
}

void add_cancel(Cli& cli) {
    auto& job = cli.keep<std::string>();
    cli.job(cli.add(jobs_group, "cancel", "end a job", [&] { return command_cancel(cli.options, job); }), job);
}

void add_doctor(Cli& cli) {
    cli.add(cluster_group, "doctor", "look for what stands in the way of jobs, here and between the nodes; exit code 1: an error was found",
            [&] { return command_doctor(cli.options); });
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
