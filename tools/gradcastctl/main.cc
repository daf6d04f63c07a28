// gradcastctl: the options of all commands, and their list (commands.h).
#include <fmt/format.h>

#include <csignal>
#include <iterator>
#include <utility>
#include <vector>

#include "runtime/core/program.h"
#include "runtime/core/version.h"
#include "tools/gradcastctl/client.h"
#include "tools/gradcastctl/commands.h"
#include "tools/gradcastctl/local.h"

using namespace gradcast;

namespace {

/// Whether a wrong command line asks for JSON.
bool asks_json(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i], next = i + 1 < argc ? argv[i + 1] : "";
        if (word == "-ojson" || word == "--output=json" || ((word == "-o" || word == "--output") && next == "json")) return true;
    }
    return false;
}

int run(int argc, char** argv) {
    CLI::App app{"trains neural networks on many nodes, exactly", "gradcastctl"};
    app.require_subcommand(1);
    app.fallthrough();   // the flags below stand before or after the command
    app.set_version_flag("--version", std::string("gradcastctl ") + version_text);
    Options options;
    std::string output = "text";
    app.add_option("-o,--output", output, "text, or json: the same content for programs")
        ->check(CLI::IsMember({"text", "json"}))
        ->capture_default_str();
    TargetFlags flags;
    auto* on_socket =
        app.add_option("--socket", flags.sockets,
                       "control socket of the daemon to ask; given more than once: watch, wait and --wait go on at the next one where "
                       "a daemon goes away, or its node is no longer in the job")
            ->allow_extra_args(false)
            ->default_str(socket_default());
    auto* on_host =
        app.add_option("--host", flags.hosts,
                       fmt::format("HOST[:PORT] of the daemon to ask, as `control` in its gradcastd.toml says (port {}); more than "
                                   "once as --socket",
                                   control_port))
            ->allow_extra_args(false)
            ->excludes(on_socket);
    app.add_option("--key", flags.key, "key file for --host: a client key, or the cluster key");
    app.add_option("--context", flags.context,
                   "the daemon that has this name in contexts.toml (default: $GRADCAST_CONTEXT, if that is set)")
        ->excludes(on_socket)
        ->excludes(on_host);
    app.footer(
        "exit codes: 0 done, 1 failed or interrupted, 2 wrong command line or job file, 3 no daemon answers\nthe job file: gradcastctl "
        "help job");

    Cli cli(app, options);
#define GC_COMMAND(name) add_##name(cli);
    GC_COMMANDS(GC_COMMAND)
#undef GC_COMMAND

    cli_decimal(app);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        const int exit = cli_exit(app, error);
        if (exit != exit_done && asks_json(argc, argv)) fmt::print("{}\n", json_text(Json{{"error", error.what()}, {"exit", exit}}, 2));
        return exit;
    }
    options.json = errors_as_json = output == "json";
    std::vector<Target> targets;
    if (const Status found = targets_find(flags, &targets); !found.ok()) targets = {{.wrong = found.what}};   // a request reports it
    options.target = std::move(targets.front());
    options.others.assign(std::make_move_iterator(targets.begin() + 1), std::make_move_iterator(targets.end()));
    interrupts_end();
    return cli.run();
}

}   // namespace

int main(int argc, char** argv) {
    program_begin();
    std::signal(SIGPIPE, SIG_IGN);   // a closed connection is an error of the request
    try {
        return run(argc, argv);
    } catch (const std::exception& error) {   // unexpected ones, of CLI11, JSON or the file system
        return complain(exit_failed, "{}", error.what());
    }
}
