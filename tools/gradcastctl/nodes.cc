// The commands about nodes: nodes, drain, undrain, doctor, and what an operator says of a dead one.
#include <algorithm>
#include <thread>

#include "runtime/core/clock.h"
#include "tools/gradcastctl/client.h"
#include "tools/gradcastctl/commands.h"
#include "tools/gradcastctl/local.h"
#include "tools/gradcastctl/print.h"

namespace gradcast {
namespace {

constexpr uint64_t drain_us_max = 600'000'000, join_us_max = 120'000'000;

std::string state_of(const NodeInfo& node) {
    std::string state = node.self ? "this one" : node.alive ? "alive" : "away";
    if (node.draining) state += node.jobs > 0 ? ", draining" : ", drained";
    return state;
}

/// The node as the daemon sees it.
Reply look(const Client& client, const std::string& name, NodeInfo* node) {
    NodeList list;
    Reply reply = client.ask(routes::nodes, {}, {}, &list);
    for (const NodeInfo& each : list.nodes)
        if (each.name == name) *node = each;
    return reply;
}

}   // namespace

static int command_nodes(const Options& options) {
    NodeList list;
    const Reply reply = Client(options.target).ask(routes::nodes, {}, {}, &list);
    if (reply.exit != exit_done) return complain(reply.exit, "{}", reply.error);
    if (options.json) {
        fmt::print("{}\n", json_text(reply.json, 2));
        return exit_done;
    }
    std::vector<std::vector<std::string>> rows = {{"node", "address", "state", "jobs", "isa", "version", "uuid", ""}};
    for (const NodeInfo& node : list.nodes)
        rows.push_back({node.name, node.address, state_of(node), std::to_string(node.jobs), node.isa, node.version, node.uuid,
                        node.hinders.empty() ? node.why : "needed by " + node.hinders});
    print_table(rows);
    return exit_done;
}

static int command_drain(const Options& options, const std::string& name, bool cancel) {
    const Client client(options.target);
    Reply reply = client.ask(routes::drain, name, {cancel});
    if (reply.exit != exit_done) return complain(reply.exit, "{}", reply.error);
    (void)interrupts();   // caught from here on
    NodeInfo node;
    for (const uint64_t end = clock_us() + drain_us_max;;) {
        reply = look(client, name, &node);
        if (reply.exit != exit_done) return complain(reply.exit, "{}", reply.error);
        // A job that was cancelled still hinders until the node has announced its end.
        const bool hindered = node.draining && !node.hinders.empty() && !cancel;
        if (hindered || (node.draining && node.jobs == 0)) break;
        if (!node.alive)
            return complain(exit_failed,
                            "node {} is not alive any more: {}; if it answers again it may still be drained: gradcastctl nodes", name,
                            node.why);
        if (interrupts() || clock_us() > end)
            return complain(exit_failed, "node {} is still draining: gradcastctl nodes tells when it is drained", name);
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
    if (options.json) fmt::print("{}\n", json_text(Json(node), 2));
    if (node.hinders.empty()) {
        if (!options.json) fmt::print("node {0} is drained: it has no job, and takes none until `gradcastctl undrain {0}`\n", name);
        return exit_done;
    }
    fmt::print(stderr,
               "gradcastctl: node {0} takes no new jobs, but is needed by {1}; drain {0} --cancel cancels them, they keep a checkpoint\n",
               name, node.hinders);
    return exit_failed;
}

static int command_undrain(const Options& options, const std::string& name) {
    const Client client(options.target);
    Reply reply = client.ask(routes::undrain, name, {});
    if (reply.exit != exit_done) return complain(reply.exit, "{}", reply.error);
    NodeInfo node;
    for (const uint64_t end = clock_us() + 10'000'000; clock_us() < end; std::this_thread::sleep_for(std::chrono::milliseconds(100))) {
        reply = look(client, name, &node);
        if (reply.exit != exit_done) return complain(reply.exit, "{}", reply.error);
        if (node.draining) continue;
        if (options.json) fmt::print("{}\n", json_text(Json(node), 2));
        else fmt::print("node {} takes jobs again\n", name);
        return exit_done;
    }
    return complain(exit_failed, "node {} does not answer: gradcastctl nodes tells how it is", name);
}

static int command_add_node(const Options& options, const std::string& which, const std::string& node) {
    const Client client(options.target);
    JobDetail job;
    Reply reply = client.job(which, &job);
    if (reply.exit != exit_done) return complain(reply.exit, "{}", reply.error);
    const size_t before = job.summary.status.warnings.size();
    reply = client.ask(routes::add_node, job.summary.id, {node});
    if (reply.exit != exit_done) return complain(reply.exit, "{}", reply.error);
    (void)interrupts();   // caught from here on
    for (const uint64_t end = clock_us() + join_us_max; clock_us() < end && !interrupts();) {
        reply = client.job(job.summary.id, &job);
        if (reply.exit != exit_done) return complain(reply.exit, "{}", reply.error);
        const JobStatus& status = job.summary.status;
        if (job_ended(status.state)) return complain(exit_failed, "job {} has ended: {}", job.summary.id, job_state_name(status.state));
        for (size_t i = before; i < status.warnings.size(); ++i)
            if (status.warnings[i].find(fmt::format("node {} does not join", node)) != std::string::npos)
                return complain(exit_failed, "{}", status.warnings[i]);
        if (!status.views.empty()) {
            const ViewRecord& view = status.views.back();
            if (std::find(view.members.begin(), view.members.end(), node) != view.members.end()) {
                if (options.json) fmt::print("{}\n", json_text(Json(view), 2));
                else fmt::print("node {} is in job {} from step {}\n", node, job.summary.id, view.first_step);
                return exit_done;
            }
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
    return complain(exit_failed,
                    "node {} is invited to job {} and has not joined yet: gradcastctl describe tells when it has.  A new node must be in "
                    "gradcastd.toml of all members, reloaded (SIGHUP)",
                    node, job.summary.id);
}

static int command_force_view(const Options& options, const std::string& job, const std::string& dead) {
    DeclaredDead declared;
    const Reply reply = Client(options.target).ask(routes::force_view, job, {dead}, &declared);
    if (reply.exit != exit_done) return complain(reply.exit, "{}", reply.error);
    if (options.json) fmt::print("{}\n", json_text(reply.json, 2));
    else fmt::print("job {}: {} is declared dead\n", declared.id, dead);
    return exit_done;
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

void add_nodes(Cli& cli) {
    cli.add(cluster_group, "nodes", "the members of the cluster as this daemon sees them", [&] { return command_nodes(cli.options); });
}

void add_drain(Cli& cli) {
    struct Flags {
        std::string node;
        bool cancel = false;
    };
    Flags& f = cli.keep<Flags>();
    CLI::App* command =
        cli.add(cluster_group, "drain", "a node takes no new jobs and leaves those that go on without it: before a restart, say",
                [&] { return command_drain(cli.options, f.node, f.cancel); });
    cli.node(command, f.node);
    command->add_flag("--cancel", f.cancel, "cancel the jobs that cannot go on without it (they keep a checkpoint)");
    command->footer("waits until the node has no job; exit code 1: jobs need it, and are named");
}

void add_undrain(Cli& cli) {
    auto& node = cli.keep<std::string>();
    cli.node(cli.add(cluster_group, "undrain", "a node takes jobs again", [&] { return command_undrain(cli.options, node); }), node);
}

void add_doctor(Cli& cli) {
    cli.add(cluster_group, "doctor", "look for what stands in the way of jobs, here and between the nodes; exit code 1: an error was found",
            [&] { return command_doctor(cli.options); });
}

void add_add_node(Cli& cli) {
    struct Flags {
        std::string job, node;
    };
    Flags& f = cli.keep<Flags>();
    CLI::App* command = cli.add_below(jobs_group, "job", "change a job that runs", "add-node",
                                      "a node joins a job with job.survive while it runs (not over RDMA)",
                                      [&] { return command_add_node(cli.options, f.job, f.node); });
    cli.job(command, f.job);
    cli.node(command, f.node);
}

void add_force_view(Cli& cli) {
    struct Flags {
        std::string job, dead;
    };
    Flags& f = cli.keep<Flags>();
    CLI::App* command = cli.add(jobs_group, "force-view", "tell a job that a node is dead, where the others cannot know it and wait",
                                [&] { return command_force_view(cli.options, f.job, f.dead); });
    cli.job(command, f.job);
    command->add_option("--dead", f.dead, "name of the node, which you have seen to be dead: it must not compute any more")->required();
}

}   // namespace gradcast
