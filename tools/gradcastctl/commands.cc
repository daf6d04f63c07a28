#include "tools/gradcastctl/commands.h"

#include "runtime/control/cli_docs.h"
#include "runtime/core/isa.h"

namespace gradcast {

CLI::App* Cli::add_below(const char* group, const char* parent, const char* parent_help, const char* name, const char* help,
                         std::function<int()> action) {
    const auto there = app.get_subcommands([parent](const CLI::App* each) { return each->get_name() == parent; });
    CLI::App* above = there.empty() ? nullptr : there.front();
    if (!above) {
        above = app.add_subcommand(parent, parent_help);
        above->group(group);
        above->require_subcommand(1);
    }
    return add(above, name, help, std::move(action));
}

int Cli::run() const {
    for (const auto& [command, action] : commands_)
        if (command->parsed()) return action();
    return exit_usage;   // not reached: require_subcommand(1)
}

void Cli::job(CLI::App* command, std::string& job) {
    command->add_option("JOB", job, "its id, 4 or more of its first digits, or its name")->required();
}
void Cli::job_file(CLI::App* command, std::string& path) {
    command->add_option("JOB.toml", path, "the job file (gradcastctl help job); -: from stdin")->required();
}
void Cli::set(CLI::App* command) {
    command->add_option("--set", options.sets, "another value in the job file, as optimiser.lr=0.01; more than once")
        ->allow_extra_args(false);
}
void Cli::nodes_and_wait(CLI::App* command, std::string& nodes, bool& wait) {
    command->add_option("--nodes", nodes, "how many, or which: a,b,c (default: all that are alive)");
    command->add_flag("--wait", wait, "show progress and, at its end, the result");
}
void Cli::allow_command(CLI::App* command, bool& allow, const std::string& from) {
    command->add_flag("--allow-command", allow,
                      fmt::format("start the program that net.command of {} names; without it the refusal prints the command and the "
                                  "SHA-256 of its files",
                                  from));
}
void Cli::force(CLI::App* command, bool& force) {
    command->add_flag("--force", force, "replace the file that is written, where it exists");
}
void Cli::node(CLI::App* command, std::string& node) { command->add_option("NODE", node, "its name")->required(); }

CLI::Validator job_states() { return CLI::IsMember({"preparing", "running", "done", "failed", "cancelled"}); }

std::string isa_type() {
    std::vector<std::string> words = {"auto"};
    for (Isa isa : {Isa::portable, Isa::common, Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx}) words.emplace_back(isa_name(isa));
    return type_of_words(words);
}

}   // namespace gradcast
