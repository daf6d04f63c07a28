// key new, contexts.
#include <algorithm>

#include "runtime/control/json.h"
#include "runtime/core/fd.h"
#include "tools/gradcastctl/commands.h"
#include "tools/gradcastctl/print.h"

namespace gradcast {

static int command_key_new(const Options& options, const std::string& path, const std::string& client, const std::string& role) {
    if (client.empty() != role.empty())
        return complain(exit_usage, "a client key has both --client NAME and --role view, submit or admin; the cluster key has neither");
    const bool good = client.size() <= 32 && std::all_of(client.begin(), client.end(), [](char c) { return c > ' ' && c <= '~'; });
    if (!good) return complain(exit_usage, "--client {}: at most 32 letters, digits and signs, without spaces", client);
    const Status status = client.empty() ? cluster_key_create(path) : key_create(path, client + " " + role);
    if (!status.ok()) return complain(exit_failed, "{}", status.what);
    if (options.json) fmt::print("{}\n", json_text(Json{{"file", path}, {"client", client}, {"role", client.empty() ? "admin" : role}}, 2));
    else if (client.empty()) fmt::print("{}: a cluster key; copy it to all nodes\n", path);
    else
        fmt::print(
            "{}: the key of {}, role {}\nits line goes into the file that `clients` in gradcastd.toml names, at each node that {} "
            "asks; then reload gradcastd\n",
            path, client, role, client);
    return exit_done;
}

static int command_contexts(const Options& options) {
    const std::string path = contexts_path();
    std::vector<NamedTarget> contexts;
    if (const Status status = contexts_read(path, &contexts); !status.ok()) return complain(exit_usage, "{}", status.what);
    Json json = Json::array();
    std::vector<std::vector<std::string>> rows = {{"context", "daemons", "key"}};
    for (const NamedTarget& each : contexts) {
        const std::vector<std::string>& daemons = each.hosts.empty() ? each.sockets : each.hosts;
        json.push_back({{"context", each.name}, {each.hosts.empty() ? "sockets" : "hosts", daemons}, {"key", each.key}});
        rows.push_back({each.name, fmt::format("{}", fmt::join(daemons, ", ")), each.key.empty() ? "-" : each.key});
    }
    if (options.json) fmt::print("{}\n", json_text(Json{{"file", path}, {"contexts", json}}, 2));
    else if (contexts.empty()) fmt::print("{}: no contexts\n", path);
    else print_table(rows);
    return exit_done;
}

// ---- command line --------------------------------------------------------------------------------------------------------------

void add_key_new(Cli& cli) {
    struct Flags {
        std::string path, client, role;
    };
    Flags& f = cli.keep<Flags>();
    CLI::App* command =
        cli.add_below(cluster_group, "key", "make keys", "new", "write a new key into a new file, mode 0600: a client's, or the cluster's",
                      [&] { return command_key_new(cli.options, f.path, f.client, f.role); });
    command->add_option("FILE", f.path, "the file, which must not exist")->required();
    command->add_option("--client", f.client, "name of the client; without it: a cluster key");
    command->add_option("--role", f.role, "what it may do: view looks, submit also begins, resumes and cancels jobs, admin does everything")
        ->check(CLI::IsMember({"view", "submit", "admin"}));
}

void add_contexts(Cli& cli) {
    cli.add(cluster_group, "contexts", "the daemons that have names for --context", [&] { return command_contexts(cli.options); })
        ->footer(
            "the file: ~/.config/gradcast/contexts.toml, or below $XDG_CONFIG_HOME\n"
            "    [lab]                gradcastctl --context lab nodes\n"
            "    host = \"node1.lab\"   HOST[:PORT], or a list of such\n"
            "    key = \"lab.key\"      relative to the file\n"
            "or, in place of host and key, socket = \"PATH\"");
}

}   // namespace gradcast
