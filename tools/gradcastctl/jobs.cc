// The commands that look at jobs and end them: list, describe, delete, cancel.
#include <algorithm>
#include <cmath>
#include <filesystem>

#include "tools/gradcastctl/client.h"
#include "tools/gradcastctl/commands.h"
#include "tools/gradcastctl/local.h"
#include "tools/gradcastctl/print.h"
#include "tools/gradcastctl/run_record.h"

namespace gradcast {
namespace {

std::string progress(const JobStatus& status) { return fmt::format("{}/{}", status.step, status.steps); }

/// "2 from step 121, 2025-01-31 18:00:05: a, c; without b; why: b silent; the job stood for 1.2 s".
std::string view_text(const ViewRecord& view) {
    std::string text =
        fmt::format("{} from step {}, {}: {}", view.number, view.first_step, text_time(view.began_unix), fmt::join(view.members, ", "));
    if (!view.joined.empty()) text += fmt::format("; with {}", fmt::join(view.joined, ", "));
    if (!view.departed.empty()) text += fmt::format("; without {}", fmt::join(view.departed, ", "));
    if (!view.why.empty())
        text += fmt::format("; why: {}; the job stood for {}", view.why, text_seconds(static_cast<double>(view.stood_us) * 1e-6));
    return text;
}

}   // namespace

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
    line("perplexity", status.tokens > 0 && status.test_loss >= 0 ? fmt::format("{:.4f}", std::exp(status.test_loss)) : "");
    line("time", fmt::format("{}, {}", text_seconds(status.seconds), speed_text(status)));
    line("this node", fmt::format("sent {}, received {}, waited {} for the exchange and {} for data", text_bytes(status.bytes_sent),
                                  text_bytes(status.bytes_received), text_seconds(static_cast<double>(status.exchange_wait_us) * 1e-6),
                                  text_seconds(static_cast<double>(status.load_wait_us) * 1e-6)));
    if (status.edge_bytes > 0)
        line("by formula", fmt::format("{} of words and {} of edges sent", text_bytes(status.bytes_bound), text_bytes(status.edge_bytes)));
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
    if (status.pipeline) print_pipeline(*status.pipeline);
    print_times(status.times);
    print_metrics(status.metrics);
    for (const ViewRecord& view : status.views) line("view", view_text(view));
    if (status.change_us > 0) line("longest change", text_seconds(static_cast<double>(status.change_us) * 1e-6));
    line("memory", words_of(memory_text(status.memory)));
    line("stage", status.stage);
    line("grid", status.grid);
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

// ---- command line --------------------------------------------------------------------------------------------------------------

void add_list(Cli& cli) {
    auto& states = cli.keep<std::vector<std::string>>();
    cli.add(jobs_group, "list", "the jobs of this daemon's node, and where local runs are",
            [&] { return command_list(cli.options, states); })
        ->add_option("--state", states, "only jobs that are so: running,failed")
        ->delimiter(',')
        ->check(job_states());
}

void add_describe(Cli& cli) {
    auto& job = cli.keep<std::string>();
    cli.add(jobs_group, "describe", "all about a job, or what a local run has kept", [&] { return command_describe(cli.options, job); })
        ->add_option("JOB", job, "id, 4 or more of its first digits, or name; or the folder of a run, which list and run tell")
        ->required();
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

}   // namespace gradcast
