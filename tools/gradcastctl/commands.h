// The commands of gradcastctl. To add one: its name here, and add_NAME() in the file that has it.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/control/cli.h"
#include "tools/gradcastctl/ctl.h"

namespace gradcast {

/// The command line in the making, and what its commands do.
class Cli {
public:
    Cli(CLI::App& app_, Options& options_) : app(app_), options(options_) {}
    CLI::App& app;
    Options& options;   // complete when an action runs

    /// A command of `app`, in this group of its help.  `action` returns the exit code.
    CLI::App* add(const char* group, const char* name, const char* help, std::function<int()> action) {
        CLI::App* command = add(&app, name, help, std::move(action));
        command->group(group);
        return command;
    }
    /// Of two words: a command of `parent`, which is a command of that name in `app`; it is made where it does not exist.
    CLI::App* add_below(const char* group, const char* parent, const char* parent_help, const char* name, const char* help,
                        std::function<int()> action);
    /// Values of a command's options, which live as long as this object.
    template <typename T>
    T& keep() {
        auto made = std::make_shared<T>();
        kept_.push_back(made);
        return *made;
    }

    /// Arguments and options that several commands have.
    void job(CLI::App* command, std::string& job);         // JOB
    void job_file(CLI::App* command, std::string& path);   // JOB.toml
    void set(CLI::App* command);                           // --set
    void nodes_and_wait(CLI::App* command, std::string& nodes, bool& wait);
    void force(CLI::App* command, bool& force);        // --force
    void node(CLI::App* command, std::string& node);   // NODE
    /// --allow-command.  from: whose net.command it is.
    void allow_command(CLI::App* command, bool& allow, const std::string& from);

    /// Runs the command that was given.  After app.parse().
    int run() const;

private:
    CLI::App* add(CLI::App* parent, const char* name, const char* help, std::function<int()> action) {
        CLI::App* command = parent->add_subcommand(name, help);
        commands_.emplace_back(command, std::move(action));
        return command;
    }
    std::vector<std::pair<CLI::App*, std::function<int()>>> commands_;
    std::vector<std::shared_ptr<void>> kept_;
};

constexpr char jobs_group[] = "Jobs", cluster_group[] = "Cluster", models_group[] = "Data and models", help_group[] = "Help";
/// The states of jobs, for --state.
CLI::Validator job_states();
/// The file `which`, or final.h5 of the folder or job of that name.  Returns exit_done, or says what is wrong.
int find_model(const Options& options, const std::string& which, std::string* path);
/// The argument MODEL, and the flag --ema; others: what it may name besides final.h5 and a job, as every_file.
void model_argument(CLI::App* command, std::string& model, bool& averaged, const char* others);
constexpr char every_file[] = "a checkpoint, a .safetensors file of gradcastctl export, ";
/// Type of --isa in help and completion.
std::string isa_type();

/// In the order of the help; `help` knows those before it.
#define GC_COMMANDS(GC_COMMAND) \
    GC_COMMAND(run)             \
    GC_COMMAND(check)           \
    GC_COMMAND(plan)            \
    GC_COMMAND(submit)          \
    GC_COMMAND(resume)          \
    GC_COMMAND(list)            \
    GC_COMMAND(wait)            \
    GC_COMMAND(describe)        \
    GC_COMMAND(watch)           \
    GC_COMMAND(logs)            \
    GC_COMMAND(delete)          \
    GC_COMMAND(cancel)          \
    GC_COMMAND(verify)          \
    GC_COMMAND(add_node)        \
    GC_COMMAND(force_view)      \
    GC_COMMAND(top)             \
    GC_COMMAND(doctor)          \
    GC_COMMAND(nodes)           \
    GC_COMMAND(drain)           \
    GC_COMMAND(undrain)         \
    GC_COMMAND(bench)           \
    GC_COMMAND(key_new)         \
    GC_COMMAND(contexts)        \
    GC_COMMAND(evaluate)        \
    GC_COMMAND(predict)         \
    GC_COMMAND(generate)        \
    GC_COMMAND(report)          \
    GC_COMMAND(export)          \
    GC_COMMAND(import)          \
    GC_COMMAND(inspect)         \
    GC_COMMAND(manifest)        \
    GC_COMMAND(completion)      \
    GC_COMMAND(man)             \
    GC_COMMAND(help)

#define GC_COMMAND(name) void add_##name(Cli& cli);
GC_COMMANDS(GC_COMMAND)
#undef GC_COMMAND

}   // namespace gradcast
