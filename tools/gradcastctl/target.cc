#include "tools/gradcastctl/target.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "runtime/core/fd.h"
#include "runtime/core/nearest.h"
#include "runtime/core/toml.h"

namespace gradcast {
namespace {

/// "node1", "node1:4702", "[fe80::1]:4702", "::1".
Status host_parse(const std::string& text, Target* target) {
    target->port = control_port;
    std::string port;
    if (const size_t close = text.find(']'); text.starts_with('[') && close != text.npos) {
        target->host = text.substr(1, close - 1);
        if (close + 1 < text.size()) port = text.substr(close + 1);
    } else if (std::count(text.begin(), text.end(), ':') == 1) {
        target->host = text.substr(0, text.find(':'));
        port = text.substr(text.find(':'));
    } else {
        target->host = text;
    }
    const unsigned long number = std::strtoul(port.empty() ? "1" : port.c_str() + 1, nullptr, 10);
    const bool digits = port.find_first_not_of("0123456789", 1) == port.npos && port.size() >= 2 && port.size() <= 6 && port[0] == ':';
    if (target->host.empty() || target->host.find('/') != text.npos || (!port.empty() && !digits) || number == 0 || number > 65535)
        return fail(Code::invalid, "--host {}: write HOST, HOST:PORT or [V6]:PORT", text);
    if (!port.empty()) target->port = static_cast<uint16_t>(number);
    return {};
}

struct ContextReader {
    const std::string& path;
    Status wrong(const toml::node& node, const std::string& text) const {
        return fail(Code::invalid, "{}:{}: {}", path, node.source().begin.line, text);
    }
    /// A text, or a list of such.
    Status texts(const toml::node& node, const std::string& key, std::vector<std::string>* values) const {
        std::vector<const toml::node*> all = {&node};
        if (const toml::array* list = node.as_array()) {
            all.clear();
            for (const toml::node& each : *list) all.push_back(&each);
        }
        for (const toml::node* each : all) {
            const auto text = each->value_exact<std::string>();
            if (!text || text->empty()) return wrong(*each, fmt::format("{}: must be a text in quotes, or a list of such", key));
            values->push_back(*text);
        }
        return values->empty() ? wrong(node, fmt::format("{}: the list is empty", key)) : Status{};
    }
    std::string file(const std::string& name) const {
        return name[0] == '/' ? name : std::filesystem::path(path).parent_path().string() + "/" + name;
    }
    Status context(const std::string& name, const toml::node& node, NamedTarget* context) const {
        const toml::table* table = node.as_table();
        if (!table) return wrong(node, fmt::format("{}: a context is a table: [{}] and below it host and key, or socket", name, name));
        context->name = name;
        for (const auto& [at, value] : *table) {
            const std::string key(at.str());
            if (key == "host") GC_TRY(texts(value, key, &context->hosts));
            else if (key == "socket") GC_TRY(texts(value, key, &context->sockets));
            else if (key == "key") {
                const auto text = value.value_exact<std::string>();
                if (!text || text->empty()) return wrong(value, "key: must be the path of a key file, in quotes");
                context->key = file(*text);
            } else return wrong(value, fmt::format("{}: unknown key {}: one of host, key, socket", name, key));
        }
        if (context->hosts.empty() == context->sockets.empty()) return wrong(node, fmt::format("{}: needs either host or socket", name));
        if (context->hosts.empty() != context->key.empty())
            return wrong(node, fmt::format("{}: {}", name,
                                           context->key.empty() ? "host needs key, the path of a key file"
                                                                : "key is for host; a socket needs none"));
        return {};
    }
};

Status remote_targets(const std::vector<std::string>& hosts, const std::string& key, std::vector<Target>* targets) {
    ControlKey own;
    GC_TRY(own_key_read(key, &own));
    for (const std::string& each : hosts) {
        Target target;
        target.key = own;
        GC_TRY(host_parse(each, &target));
        targets->push_back(std::move(target));
    }
    return {};
}

Status context_targets(const std::string& name, std::vector<Target>* targets) {
    const std::string path = contexts_path();
    std::vector<NamedTarget> contexts;
    GC_TRY(contexts_read(path, &contexts));
    const auto at = std::find_if(contexts.begin(), contexts.end(), [&](const NamedTarget& each) { return each.name == name; });
    if (at == contexts.end()) {
        std::vector<std::string> names;
        for (const NamedTarget& each : contexts) names.push_back(each.name);
        if (names.empty())
            return fail(Code::invalid, "there is no context {}: {} {}; it has a table for each: [{}], host = \"…\", key = \"…\"", name,
                        path, ::access(path.c_str(), F_OK) == 0 ? "has none" : "does not exist", name);
        const std::string best = nearest(name, names);
        return fail(Code::invalid, "there is no context {} in {}: {}", name, path,
                    best.empty() ? fmt::format("it has {}", fmt::join(names, ", ")) : fmt::format("did you mean {}?", best));
    }
    if (!at->hosts.empty()) return remote_targets(at->hosts, at->key, targets);
    for (const std::string& each : at->sockets) targets->push_back({.socket = each});
    return {};
}

}   // namespace

std::string Target::text() const {
    if (!remote()) return socket;
    return host.find(':') == host.npos ? fmt::format("{}:{}", host, port) : fmt::format("[{}]:{}", host, port);
}

Status contexts_read(const std::string& path, std::vector<NamedTarget>* contexts) {
    contexts->clear();
    std::string text;
    if (::access(path.c_str(), F_OK) != 0 && errno == ENOENT) return {};
    GC_TRY(file_read(path, &text));
    const toml::parse_result parsed = toml_parse(text);
    if (!parsed) return fail(Code::invalid, "{}:{}: {}", path, parsed.error().source().begin.line, parsed.error().description());
    const ContextReader reader{path};
    for (const auto& [name, node] : parsed.table()) {
        NamedTarget context;
        GC_TRY(reader.context(std::string(name.str()), node, &context));
        contexts->push_back(std::move(context));
    }
    return {};
}

Status targets_find(const TargetFlags& flags, std::vector<Target>* targets) {
    targets->clear();
    if (!flags.hosts.empty()) {
        if (flags.key.empty())
            return fail(Code::invalid, "--host {}: --key FILE is missing: your client key, or the cluster key", flags.hosts[0]);
        return remote_targets(flags.hosts, flags.key, targets);
    }
    if (!flags.key.empty()) return fail(Code::invalid, "--key {} is for --host HOST: a socket needs no key", flags.key);
    if (!flags.context.empty()) return context_targets(flags.context, targets);
    if (const char* context = std::getenv("GRADCAST_CONTEXT"); context && *context && flags.sockets.empty())
        return context_targets(context, targets);
    for (const std::string& each : flags.sockets) targets->push_back({.socket = each});
    if (targets->empty()) targets->push_back({.socket = socket_default()});
    return {};
}

std::string contexts_path() {
    const char *config = std::getenv("XDG_CONFIG_HOME"), *home = std::getenv("HOME");
    const std::string folder = config && *config ? config : std::string(home ? home : "") + "/.config";
    return folder + "/gradcast/contexts.toml";
}

std::string socket_default() {
    std::string system = "/run/gradcast/control.sock";
    const char* runtime = std::getenv("XDG_RUNTIME_DIR");
    std::string own = runtime && *runtime ? std::string(runtime) + "/gradcast/control.sock" : "";
    return !own.empty() && ::access(system.c_str(), F_OK) != 0 && ::access(own.c_str(), F_OK) == 0 ? own : system;
}

}   // namespace gradcast
