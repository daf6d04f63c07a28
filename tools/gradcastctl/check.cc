// check JOB.toml, and the same check before run, submit and resume give a job to daemons.
#include <fmt/ranges.h>

#include <algorithm>

#include "datasets/verified.h"
#include "runtime/core/amount.h"
#include "runtime/core/cpu_room.h"
#include "runtime/core/log.h"
#include "runtime/core/memory_room.h"
#include "tools/gradcastctl/commands.h"
#include "tools/gradcastctl/job_input.h"
#include "tools/gradcastctl/print.h"

namespace gradcast {
namespace {

std::string text(const Shape& shape) { return fmt::format("{}x{}x{}", shape.C, shape.H, shape.W); }
Json numbers(const Shape& shape) { return Json::array({shape.C, shape.H, shape.W}); }
const char* plural(uint64_t count) { return count == 1 ? "" : "s"; }

Json json_of(const JobConfig& job, const JobCheck& check, uint32_t lanes) {
    Json layers = Json::array(), purposes = Json::object();
    for (const Layer& layer : check.layers)
        layers.push_back({{"name", layer.spec.name},
                          {"kind", layer.spec.kind},
                          {"input", numbers(layer.in)},
                          {"output", numbers(layer.out)},
                          {"parameters", layer.parameters()}});
    for (const auto& [purpose, bytes] : check.memory.bytes) purposes[purpose] = bytes;
    Json json = {{"name", job.name},
                 {"data", {{"train", check.train}, {"test", check.test}, {"sample", numbers(check.sample)}, {"classes", check.classes}}},
                 {"layers", layers},
                 {"parameters", check.parameters},
                 {"steps", check.steps},
                 {"epochs", check.epochs},
                 {"warnings", check.warnings}};
    json["memory"] = check.memory.bytes.empty() ? Json() : Json{{"bytes", check.memory.total()}, {"lanes", lanes}, {"purposes", purposes}};
    return json;
}

void print(const JobConfig& job, const JobCheck& check, uint32_t lanes) {
    auto line = [](const char* name, const std::string& value) { fmt::print("{:<11} {}\n", name, value); };
    line("job", job.name);
    line("data", fmt::format("{} samples of {}{} to train on, {} to test on", check.train, text(check.sample),
                             check.classes > 0 ? fmt::format(" in {} classes,", check.classes) : " of a regression,", check.test));
    std::vector<std::vector<std::string>> rows = {{"layer", "kind", "input", "output", "parameters"}};
    for (const Layer& layer : check.layers)
        rows.push_back({layer.spec.name, layer.spec.kind, text(layer.in), text(layer.out), std::to_string(layer.parameters())});
    if (job.attached()) {
        line("net", fmt::format("of the program {}, which says what it has when the job runs", fmt::join(job.command, " ")));
    } else {
        print_table(rows);
        line("parameters", std::to_string(check.parameters));
    }
    line("steps", fmt::format("{}, in {} epoch{}", check.steps, check.epochs, plural(check.epochs)));
    line("memory", check.memory.bytes.empty()
                       ? "depends on the nodes: GPUs, kernels for bf16, or a program"
                       : fmt::format("{} a node with {} lane{} (those of this machine); exchange and checkpoints take more",
                                     text_bytes(check.memory.total()), lanes, plural(lanes)));
    for (const std::string& warning : check.warnings) line("warning", warning);
}

}   // namespace

Status job_checked(const std::string& path, const std::vector<std::string>& sets, const JobConfig& job, const JobCheckOptions& options,
                   JobCheck* check) {
    log_level(Level::error);   // warnings are in *check
    const Status status = job_check(job, path == "-" ? "stdin" : path, options, check);
    if (status.ok() || sets.empty()) return status;
    return fail(status.code, "{} (with --set {})", status.what, fmt::join(sets, ", "));
}

static int command_check(const Options& options, const std::string& path, uint32_t nodes, const std::string& memory) {
    JobConfig job;
    JobCheck check;
    uint64_t bytes = memory_room().bytes;
    if (Status status = memory.empty() ? Status{} : bytes_parse(memory, &bytes); !status.ok())
        return complain(exit_usage, "--memory {}", status.what);
    const uint32_t lanes = cpu_room().threads();
    if (Status status = job_input(path, options.sets, &job); !status.ok()) return complain(exit_usage, "{}", status.what);
    if (Status status = job_checked(path, options.sets, job,
                                    {.nodes = nodes, .lanes = lanes, .memory = bytes, .verified = verified_path_of_user()}, &check);
        !status.ok())
        return complain(exit_usage, "{}", status.what);
    if (options.json) fmt::print("{}\n", json_text(json_of(job, check, lanes), 2));
    else print(job, check, lanes);
    return exit_done;
}

// ---- command line --------------------------------------------------------------------------------------------------------------

void add_check(Cli& cli) {
    struct Flags {
        std::string path, memory;
        uint32_t nodes = 0;
    };
    Flags& f = cli.keep<Flags>();
    CLI::App* command = cli.add(jobs_group, "check", "check a job file and its data without a cluster; show its net, steps and memory",
                                [&] { return command_check(cli.options, f.path, f.nodes, f.memory); });
    cli.job_file(command, f.path);
    cli.set(command);
    command->add_option("--nodes", f.nodes, "how many the job would have")->check(CLI::Range(1, int{ranks_max}));
    command->add_option("--memory", f.memory, "what the job may take of a node, as 8GiB (default: what is available here)");
    command->footer(
        "exit code 2: a mistake, named with its line\nthe data are compared with their digests, as each node does, unless they were before "
        "($XDG_CACHE_HOME/gradcast/verified)");
}

}   // namespace gradcast
