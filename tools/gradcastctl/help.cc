// help, completion, man.
#include <fmt/format.h>

#include "nn/presets.h"
#include "runtime/control/cli_docs.h"
#include "runtime/job/file/job_file.h"
#include "tools/gradcastctl/commands.h"

namespace gradcast {

static int command_help(const CLI::App& app, const std::string& topic) {
    auto named = app.get_subcommands([&](const CLI::App* each) { return each->get_name() == topic; });
    if (topic == "job") fmt::print("{}", job_help());
    else if (topic == "shard") fmt::print("{}", shard_help());
    else if (topic == "presets") fmt::print("{}", presets_help());
    else if (topic.empty()) fmt::print("{}", app.get_formatter()->make_help(&app, app.get_name(), CLI::AppFormatMode::Normal));
    else if (!named.empty()) fmt::print("{}", named.front()->help("gradcastctl"));
    else
        return complain(exit_usage,
                        "there is no help on {}: name a command, job for the job file, presets for nets, or shard for data sets", topic);
    return exit_done;
}

static int command_man(const CLI::App& app, const std::string& page) {
    if (page == "gradcast-job")
        fmt::print("{}",
                   man_page(page, "job file of gradcast: what is trained, and how",
                            {"TOML.  A key without a default is required, or excludes another one as its text says.",
                             "gradcastctl submit and run check the whole file first, and name every mistake with its line.",
                             "A page and an example for each algorithm are in share/doc/gradcast/tools/jobs: ma.md, ma.toml, and so on."},
                            job_keys(), "gradcastctl(1)"));
    else fmt::print("{}", man_page(app, 1, "gradcastd(8), gradcast-bench(1), gradcast-job(5), gradcastd.toml(5)"));
    return exit_done;
}

/// For completion: the ids of the jobs that the daemon knows, as `list` shows them.
constexpr char jobs_command[] = "gradcastctl list 2>/dev/null | sed \"1d;s/ .*//\"";

// ---- command line --------------------------------------------------------------------------------------------------------------

void add_help(Cli& cli) {
    auto& topic = cli.keep<std::string>();
    CLI::App* command = cli.add(help_group, "help", "help on a command, on the job file, on presets, or on shards",
                                [&] { return command_help(cli.app, topic); });
    std::vector<std::string> words = {"job", "presets", "shard"};
    for (const CLI::App* each : cli.app.get_subcommands([](const CLI::App* each) { return !each->get_group().empty(); }))
        if (each->get_name() != "job") words.push_back(each->get_name());
    command->add_option("TOPIC", topic, "a command, job, presets, or shard")->type_name(type_of_words(words));
}

void add_completion(Cli& cli) {
    auto& shell = cli.keep<std::string>();
    cli.add(help_group, "completion", "print completion for a shell: source <(gradcastctl completion bash)",
            [&] {
                fmt::print("{}", completion(cli.app, shell, {{"JOB", jobs_command}}));
                return exit_done;
            })
        ->add_option("SHELL", shell, "bash, zsh or fish")
        ->required()
        ->check(CLI::IsMember({"bash", "zsh", "fish"}));
}

void add_man(Cli& cli) {   // for packages: no group, so no help shows it
    auto& page = cli.keep<std::string>();
    cli.add("", "man", "print a man page", [&] { return command_man(cli.app, page); })
        ->add_option("PAGE", page)
        ->required()
        ->check(CLI::IsMember({"gradcastctl", "gradcast-job"}));
}

}   // namespace gradcast
