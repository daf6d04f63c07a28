#include "runtime/daemon/config.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <span>

#include "runtime/core/amount.h"
#include "runtime/core/cpu_room.h"
#include "runtime/core/fd.h"
#include "runtime/core/gpu_count.h"
#include "runtime/core/memory_room.h"
#include "runtime/core/nearest.h"
#include "runtime/core/net/interface.h"
#include "runtime/core/net/socket.h"
#include "runtime/core/program.h"
#include "runtime/core/toml.h"
#include "transport/kernel/rdma.h"

namespace gradcast {
namespace {

constexpr int64_t gpu_number_max = 1023;

struct Parser {
    std::string path, base;
    DaemonConfig& config;
    std::vector<std::string>& mistakes;
    std::string rdma_interface = {};   // of `rdma`

    void wrong(const toml::node& node, const std::string& text) { wrong(node.source().begin.line, text); }
    void wrong(uint32_t line, const std::string& text) { mistakes.push_back(fmt::format("{}:{}: {}", path, line, text)); }
    bool text(const toml::node& node, const char* key, std::string* value) {
        if (auto string = node.value_exact<std::string>(); string && !string->empty()) {
            *value = *string;
            return true;
        }
        wrong(node, fmt::format("{}: must be a text in quotes", key));
        return false;
    }
    /// One text, or a list of different ones.
    bool texts(const toml::node& node, const char* key, std::vector<std::string>* values) {
        const toml::array* list = node.as_array();
        if (!list) return text(node, key, &values->emplace_back());
        for (const toml::node& each : *list) {
            if (!text(each, key, &values->emplace_back())) return false;
            if (std::count(values->begin(), values->end(), values->back()) > 1)
                return wrong(each, fmt::format("{}: \"{}\" is listed twice", key, values->back())), false;
        }
        if (!list->empty() && list->size() <= rails_max) return true;
        wrong(node, fmt::format("{}: a list of 1 to {} names", key, rails_max));
        return false;
    }
    bool file(const toml::node& node, const char* key, std::string* value) {
        if (!text(node, key, value)) return false;
        if (value->front() != '/') *value = base + "/" + *value;
        return true;
    }
};

bool name_good(std::string_view name) {
    return !name.empty() && name.size() <= 64 &&
           std::all_of(name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_' || c == '.'; });
}

/// "host:port" or "[v6]:port".  Null, or what is wrong.
const char* address_wrong(std::string_view address, bool port_zero) {
    size_t colon = address.rfind(':');
    if (colon == address.npos || colon == 0) return "must be \"host:port\"";
    std::string_view host = address.substr(0, colon), port = address.substr(colon + 1);
    if (host.find(':') != host.npos && (host.front() != '[' || host.back() != ']'))
        return "an IPv6 address must be in brackets: \"[::1]:4700\"";
    if (port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != port.npos)
        return "the port must be a number up to 65535";
    long number = std::strtol(std::string(port).c_str(), nullptr, 10);
    if (number > 65535) return "the port must be a number up to 65535";
    if (number == 0 && !port_zero) return "nobody can connect to port 0";
    in6_addr six;
    if (host.front() == '[' && ::inet_pton(AF_INET6, std::string(host.substr(1, host.size() - 2)).c_str(), &six) == 1 &&
        IN6_IS_ADDR_LINKLOCAL(&six))
        return "a link-local address needs its interface: \"[fe80::1%eth0]:4700\"";
    return nullptr;
}

void read_name(const toml::node& node, Parser& parser) {
    if (!parser.text(node, "name", &parser.config.name)) return;
    if (!name_good(parser.config.name))
        parser.wrong(node, fmt::format("name: \"{}\" must have 1 to 64 letters, digits, '-', '_' or '.'", parser.config.name));
}

void read_member(const toml::node& node, Parser& parser) {
    NodeAddress member;
    if (auto text = node.value_exact<std::string>()) {
        size_t equals = text->find('=');
        if (equals == text->npos) return parser.wrong(node, fmt::format("members: \"{}\" is not \"name=host:port\"", *text));
        member = {text->substr(0, equals), text->substr(equals + 1)};
    } else if (const toml::table* table = node.as_table()) {
        size_t before = parser.mistakes.size();
        for (const auto& [key, value] : *table) {
            if (key != "name" && key != "address") {
                parser.wrong(value, fmt::format("members: unknown key \"{}\": a member has name and address", std::string_view(key.str())));
                continue;
            }
            auto string = value.value_exact<std::string>();
            if (!string) parser.wrong(value, fmt::format("members: {}: must be a text in quotes", std::string_view(key.str())));
            else (key == "name" ? member.name : member.address) = *string;
        }
        for (const char* key : {"name", "address"})
            if (!table->contains(key)) parser.wrong(node, fmt::format("members: a member lacks its {}", key));
        if (parser.mistakes.size() != before) return;
    } else {
        return parser.wrong(node, "members: a member is \"name=host:port\" or { name = \"a\", address = \"host:port\" }");
    }
    if (!name_good(member.name))
        parser.wrong(node, fmt::format("members: the name \"{}\" must have 1 to 64 letters, digits, '-', '_' or '.'", member.name));
    else if (const char* why = address_wrong(member.address, true))
        parser.wrong(node, fmt::format("members: {}: \"{}\": {}", member.name, member.address, why));
    for (const NodeAddress& other : parser.config.members) {
        if (other.name == member.name) return parser.wrong(node, fmt::format("members: {} is listed twice", member.name));
        if (other.address == member.address && !member.address.ends_with(":0"))
            parser.wrong(node, fmt::format("members: {} and {} have the same address {}", other.name, member.name, member.address));
    }
    parser.config.members.push_back(std::move(member));
}

void read_members(const toml::node& node, Parser& parser) {
    const toml::array* list = node.as_array();
    if (!list) return parser.wrong(node, "members: must be a list: [\"a=10.0.0.1:4700\", \"b=10.0.0.2:4700\"]");
    if (list->empty()) parser.wrong(node, "members: the list is empty");
    if (list->size() > ranks_max)
        return parser.wrong(node, fmt::format("members: {} nodes, at most {} are allowed", list->size(), ranks_max));
    for (const toml::node& member : *list) read_member(member, parser);
    const auto here = [](const NodeAddress& each) { return host_loopback(each.host()); };
    const std::vector<NodeAddress>& members = parser.config.members;
    const auto local = std::find_if(members.begin(), members.end(), here), other = std::find_if_not(members.begin(), members.end(), here);
    if (local != members.end() && other != members.end())
        parser.wrong(*list,
                     fmt::format("members: {} is {}, which is another machine for each that reads it, and {} is not: give the address "
                                 "that the others reach",
                                 local->name, local->address, other->name));
}

void read_listen(const toml::node& node, Parser& parser) {
    if (!parser.text(node, "listen", &parser.config.listen)) return;
    if (const char* why = address_wrong(parser.config.listen, true))
        parser.wrong(node, fmt::format("listen: \"{}\": {}", parser.config.listen, why));
}

void read_interface(const toml::node& node, Parser& parser) {
    DaemonConfig& config = parser.config;
    if (!parser.texts(node, "interface", &config.interfaces)) return;
    for (const std::string& each : config.interfaces) {
        NetworkInterface found;
        if (Status status = interface_find(each, &found); !status.ok())
            return parser.wrong(node, fmt::format("interface: {}", status.what));
        if (config.datagram_bytes == 0) config.datagram_bytes = datagram_segment(found.mtu, found.ipv6());
    }
    config.interface = config.interfaces[0];
}

void read_rdma(const toml::node& node, Parser& parser) {
    std::vector<std::string> texts;
    if (!parser.texts(node, "rdma", &texts) || texts[0] == "none") return;
    const RdmaModule* module;
    Status status = rdma_module(&module);
    for (const std::string& text : texts) {
        RdmaDevice found;
        if (status.ok()) status = module->find(text == "auto" ? "" : text, &found);
        if (status.code == Code::unsupported && text == "auto") return;   // a machine without
        if (!status.ok()) return parser.wrong(node, fmt::format("rdma: {}", status.what));
        if (parser.config.rdma.empty()) {
            parser.config.rdma_bytes = rdma_segment(found.mtu);
            parser.rdma_interface = found.interface;
        }
        parser.config.rdma.push_back(text == "auto" ? fmt::format("{}:{}", found.name, found.port) : text);
    }
}

void read_pace(const toml::node& node, Parser& parser) {
    std::string text;
    if (!parser.text(node, "pace", &text)) return;
    if (Status status = rate_parse(text, &parser.config.pace); !status.ok()) parser.wrong(node, fmt::format("pace: {}", status.what));
}

void read_rate(const toml::node& node, Parser& parser) {
    std::string text;
    if (!parser.text(node, "rate", &text)) return;
    if (Status status = rate_parse(text, &parser.config.rate); !status.ok()) parser.wrong(node, fmt::format("rate: {}", status.what));
}

void read_key(const toml::node& node, Parser& parser) { parser.file(node, "key", &parser.config.key); }
void read_state(const toml::node& node, Parser& parser) { parser.file(node, "state", &parser.config.state); }
void read_verified(const toml::node& node, Parser& parser) { parser.file(node, "verified", &parser.config.verified); }
void read_socket(const toml::node& node, Parser& parser) {
    if (!parser.file(node, "socket", &parser.config.socket)) return;
    if (parser.config.socket.size() > 107)   // sockaddr_un::sun_path
        parser.wrong(node, fmt::format("socket: the path has {} bytes, a Unix socket can have at most 107: {}", parser.config.socket.size(),
                                       parser.config.socket));
}

void read_metrics(const toml::node& node, Parser& parser) {
    if (!parser.text(node, "metrics", &parser.config.metrics)) return;
    if (const char* why = address_wrong(parser.config.metrics, false))
        parser.wrong(node, fmt::format("metrics: \"{}\": {}", parser.config.metrics, why));
}

void read_control(const toml::node& node, Parser& parser) {
    if (!parser.text(node, "control", &parser.config.control)) return;
    if (const char* why = address_wrong(parser.config.control, false))
        parser.wrong(node, fmt::format("control: \"{}\": {}", parser.config.control, why));
}
void read_clients(const toml::node& node, Parser& parser) { parser.file(node, "clients", &parser.config.clients); }

void read_cpus(const toml::node& node, Parser& parser) {
    const toml::array* list = node.as_array();
    if (!list || list->empty()) return parser.wrong(node, "cpus: must be a list of CPU numbers: [0, 1]");
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    ::sched_getaffinity(0, sizeof allowed, &allowed);
    for (const toml::node& each : *list) {
        auto number = each.value_exact<int64_t>();
        std::vector<uint32_t>& cpus = parser.config.cpus;
        if (!number) parser.wrong(each, "cpus: each must be a number");
        else if (*number < 0 || *number >= CPU_SETSIZE || !CPU_ISSET(static_cast<size_t>(*number), &allowed))
            parser.wrong(
                each, fmt::format("cpus: CPU {} is not available to this process ({} are, the first is 0)", *number, CPU_COUNT(&allowed)));
        else if (std::find(cpus.begin(), cpus.end(), *number) != cpus.end())
            parser.wrong(each, fmt::format("cpus: {} is listed twice", *number));
        else cpus.push_back(static_cast<uint32_t>(*number));
    }
}

// Whether CUDA finds these GPUs is also seen when a job opens them: the driver may be loaded later than this file is read.
void read_gpus(const toml::node& node, Parser& parser) {
    const toml::array* list = node.as_array();
    if (!list || list->empty()) return parser.wrong(node, "gpus: must be a list of numbers of GPUs: [0, 1]");
    const uint32_t count = gpu_count();
    for (const toml::node& each : *list) {
        const auto number = each.value_exact<int64_t>();
        std::vector<uint32_t>& gpus = parser.config.gpus;
        if (!number) parser.wrong(each, "gpus: each must be a number");
        else if (*number < 0 || *number > gpu_number_max)
            parser.wrong(each, fmt::format("gpus: {} is the number of no GPU: they are counted from 0", *number));
        else if (count > 0 && *number >= count)
            parser.wrong(each, fmt::format("gpus: there is no GPU {}: this machine has {}, counted from 0", *number, count));
        else if (std::find(gpus.begin(), gpus.end(), *number) != gpus.end())
            parser.wrong(each, fmt::format("gpus: {} is listed twice", *number));
        else gpus.push_back(static_cast<uint32_t>(*number));
    }
}

void read_jobs_kept(const toml::node& node, Parser& parser) {
    auto number = node.value_exact<int64_t>();
    if (!number || *number < 1 || *number > 100'000) return parser.wrong(node, "jobs_kept: must be a number from 1 to 100000");
    parser.config.jobs_kept = static_cast<uint32_t>(*number);
}

void read_jobs_bytes(const toml::node& node, Parser& parser) {
    std::string text;
    if (!parser.text(node, "jobs_bytes", &text)) return;
    if (!bytes_parse(text, &parser.config.jobs_bytes).ok() || parser.config.jobs_bytes < 1'000'000)
        parser.wrong(node, fmt::format("jobs_bytes = \"{}\": must be a size such as \"500MB\", \"20GB\" or \"1TB\"", text));
}

void read_memory(const toml::node& node, Parser& parser) {
    std::string text;
    if (!parser.text(node, "memory", &text)) return;
    if (Status status = bytes_parse(text, &parser.config.memory); !status.ok()) parser.wrong(node, fmt::format("memory: {}", status.what));
}

void read_commands(const toml::node& node, Parser& parser) {
    const auto flag = node.value_exact<bool>();
    if (!flag) return parser.wrong(node, "commands: must be true or false");
    parser.config.commands = *flag;
}

void read_isa(const toml::node& node, Parser& parser) {
    std::string text;
    if (!parser.text(node, "isa", &text)) return;
    if (Status status = isa_parse(text, &parser.config.isa); !status.ok()) parser.wrong(node, status.what);
}

void read_link(const toml::node& node, Parser& parser) {
    std::string text;
    if (!parser.text(node, "link", &text)) return;
    if (text == "auto" || text == "uring_tcp") parser.config.link = LinkKind::uring_tcp;
    else if (text == "epoll_tcp") parser.config.link = LinkKind::epoll_tcp;
    else parser.wrong(node, fmt::format("link = \"{}\": one of auto, uring_tcp, epoll_tcp", text));
}

void read_log(const toml::node& node, Parser& parser) {
    constexpr std::pair<const char*, Level> levels[] = {
        {"debug", Level::debug}, {"info", Level::info}, {"warn", Level::warn}, {"error", Level::error}};
    std::string text;
    if (!parser.text(node, "log", &text)) return;
    for (const auto& [name, level] : levels)
        if (text == name) return void(parser.config.log = level);
    parser.wrong(node, fmt::format("log = \"{}\": one of debug, info, warn, error", text));
}

std::string name_default() {
    char host[256] = "";
    ::gethostname(host, sizeof host - 1);
    return std::string(host, std::strcspn(host, "."));
}
std::string folder_of(const char* variable, const char* otherwise) {
    const char* set = std::getenv(variable);   // set by systemd for RuntimeDirectory=, StateDirectory= and LoadCredential=
    return set && *set ? std::string(set, std::strcspn(set, ":")) : otherwise;
}

/// This member's address; all addresses, where the others cannot reach that of its name: in its own /etc/hosts Debian gives a host
/// 127.0.1.1.
std::string listen_default(const DaemonConfig& config) {
    const NodeAddress& own = config.members[config.self()];
    std::vector<SocketAddress> found;
    if (config.members.size() == 1 || host_loopback(own.host()) || !addresses_resolve(own.address, true, &found).ok() ||
        !std::any_of(found.begin(), found.end(), address_loopback))
        return own.address;
    return address_any(own.port());
}

struct Option {
    const char* name;
    const char* fallback;   // for help
    const char* help;
    void (*read)(const toml::node&, Parser&);
};
constexpr Option options[] = {
    {"name", "the host's name", "this node's name in members", read_name},
    {"members", "this node alone",
     "all nodes: [\"a=10.0.0.1:4700\", …] or [{ name = \"a\", address = \"10.0.0.1:4700\" }, …]; more whose names sort behind take effect "
     "at SIGHUP",
     read_members},
    {"listen", "this member's address",
     "\"host:port\" to listen on; port 0 picks one; all addresses where this host knows its own name as 127.0.1.1", read_listen},
    {"interface", "none",
     "the network interface (or an address of it) that multicast may use; a list, each in a network of its own: streams use all",
     read_interface},
    {"rdma", "none",
     "the RDMA device (\"mlx5_0\", \"mlx5_0:2\", or its interface or an address) that jobs may use; auto: the only active one; a list: "
     "streams use all",
     read_rdma},
    {"pace", "none", "highest rate of datagrams, such as \"800mbit\"", read_pace},
    {"rate", "what the driver says, else 1gbit",
     "what this node's link carries, as \"10gbit\": jobs that leave their stages or cuts open choose them by the slowest link", read_rate},
    {"key", "/etc/gradcast/key", "the cluster key, one file that all members share, mode 0600; under systemd the credential \"key\"",
     read_key},
    {"state", "/var/lib/gradcast", "folder of this node's identity and of all jobs", read_state},
    {"verified", "`verified` in the state folder",
     "the record of shards that this node has compared with their digests: a job reads those that are not in it, or have changed since",
     read_verified},
    {"socket", "/run/gradcast/control.sock", "the control socket, for gradcastctl", read_socket},
    {"metrics", "none",
     "\"host:port\" that serves the status page and /v1/metrics over TCP, read only and to everybody who reaches it: \"127.0.0.1:9470\"",
     read_metrics},
    {"control", "none",
     "\"host:port\" at which gradcastctl --host does what the role of its key allows, over TLS; the cluster key is of an admin",
     read_control},
    {"clients", "none", "file of client keys for `control`, mode 0600, a line \"<name> <view|submit|admin> <64 hex digits>\" each",
     read_clients},
    {"jobs_kept", "100", "how many jobs that are over stay, with model, checkpoints and logs; the oldest go", read_jobs_kept},
    {"jobs_bytes", "any", "how much their folders may take in all, as \"20GB\"; the oldest go, the newest stays", read_jobs_bytes},
    {"cpus", "all, or as many as a CPU quota allows; members at one host divide them", "CPUs that compute, one lane each: [0, 1]",
     read_cpus},
    {"gpus", "all; members at one host divide them",
     "GPUs that the jobs here may use, by CUDA's numbers: [0]; one daemon for each GPU of a host makes each GPU a node", read_gpus},
    {"memory", "15/16 of the machine's or its control group's, which members at one host divide; never more than is available",
     "how much the jobs here may take together, as \"8GiB\"; a job on CPUs that needs more gets as many lanes as fit, and is refused where "
     "not even one fits",
     read_memory},
    {"commands", "false",
     "true: this node starts the programs of jobs that have net.command, as the daemon's own user; who may submit such a job, by the "
     "socket or with the role admin, then has the cluster key",
     read_commands},
    {"isa", "\"auto\"",
     "instruction set of the kernels: auto, portable, common, avx2, avx512, avx512-bf16, amx; members of a job must agree", read_isa},
    {"link", "\"auto\"", "auto, uring_tcp, epoll_tcp", read_link},
    {"log", "\"info\"", "the least important lines that are logged: debug, info, warn, error", read_log},
};

}   // namespace

Rank DaemonConfig::self() const {
    return static_cast<Rank>(std::find_if(members.begin(), members.end(), [&](const NodeAddress& each) { return each.name == name; }) -
                             members.begin());
}

std::string DaemonConfig::setting(std::string_view wanted) const {
    constexpr std::pair<std::string_view, const char*> options[] = {
        {"name", "--work and --port"}, {"listen", "--port"}, {"interface", "--interface"}, {"isa", "--isa"}, {"state", "--work"}};
    for (const auto& [of_file, of_launcher] : options)
        if (launched() && of_file == wanted) return of_launcher;
    return fmt::format("`{}`", wanted);
}

Status DaemonConfig::command_check() const {
    if (commands) return {};
    return fail(
        Code::invalid,
        "net.command: node {} starts no programs of jobs: set `commands = true` in its gradcastd.toml, after reading what that means "
        "(gradcastd --help), and systemctl reload gradcastd",
        name);
}

/// How many of these members have that host.
static uint32_t at_host(std::span<const NodeAddress> members, const std::string& host) {
    return static_cast<uint32_t>(std::ranges::count(members, host, &NodeAddress::host));
}

uint32_t DaemonConfig::sharers() const {
    const size_t own = self();
    return own == members.size() ? 1 : at_host(members, members[own].host());
}

std::vector<uint32_t> DaemonConfig::gpus_used(const std::string& root) const {
    const size_t own = self();
    if (!gpus.empty() || own == members.size()) return gpus;
    return gpus_shared_out(gpu_count(root), at_host(std::span(members).first(own), members[own].host()), sharers());
}

uint64_t DaemonConfig::memory_most(const std::string& root) const {
    const uint64_t usual = memory_for_jobs(root).bytes;
    return memory > 0 ? memory : usual == UINT64_MAX ? 0 : usual / sharers();
}

std::string DaemonConfig::memory_setting() const {
    if (memory > 0) return setting_in("memory");
    const std::string divided = sharers() > 1 ? fmt::format(", divided by the {} members at this host", sharers()) : "";
    return fmt::format("15/16 of {}{}, the default of {}", memory_for_jobs().where, divided, setting_in("memory"));
}

uint32_t DaemonConfig::lanes(const std::string& root) const {
    return cpus.empty() ? std::max(1u, cpu_room(root).threads() / sharers()) : static_cast<uint32_t>(cpus.size());
}

bool config_parse(const std::string& text, const std::string& path, const std::string& base, DaemonConfig* config,
                  std::vector<std::string>* mistakes) {
    DaemonConfig result;
    result.name = name_default();
    result.key = folder_of("CREDENTIALS_DIRECTORY", "/etc/gradcast") + "/key";
    result.state = folder_of("STATE_DIRECTORY", "/var/lib/gradcast");
    result.socket = folder_of("RUNTIME_DIRECTORY", "/run/gradcast") + "/control.sock";
    result.isa = isa_best();
    mistakes->clear();
    Parser parser{path, base, result, *mistakes};
    toml::parse_result parsed = toml_parse(text);
    if (!parsed) {
        parser.wrong(parsed.error().source().begin.line, std::string(parsed.error().description()));
        return false;
    }
    const toml::table& table = parsed.table();
    bool named = true;   // name and members have no mistake of their own
    for (const auto& [key, value] : table) {
        auto known =
            std::find_if(std::begin(options), std::end(options), [name = key.str()](const Option& each) { return name == each.name; });
        if (known != std::end(options)) {
            size_t before = mistakes->size();
            known->read(value, parser);
            if (mistakes->size() != before && (key == "name" || key == "members")) named = false;
            continue;
        }
        std::vector<std::string> names;
        for (const Option& each : options) names.emplace_back(each.name);
        std::string best = nearest(key.str(), names);
        parser.wrong(key.source().begin.line,
                     fmt::format("unknown key \"{}\": {}", std::string_view(key.str()),
                                 best.empty() ? fmt::format("one of {}", fmt::join(names, ", ")) : "did you mean " + best + "?"));
    }
    if (!table.contains("members")) {
        if (result.listen.empty()) result.listen = "127.0.0.1:4700";
        result.members = {{result.name, result.listen}};
    }
    std::sort(result.members.begin(), result.members.end(), [](const NodeAddress& a, const NodeAddress& b) { return a.name < b.name; });
    if (named && result.self() == result.members.size()) {
        std::vector<std::string> names;
        for (const NodeAddress& each : result.members) names.push_back(each.name);
        const toml::node* name = table.get("name");
        parser.wrong(name ? name->source().begin.line : table.get("members")->source().begin.line,
                     fmt::format("name: \"{}\"{} is not among the members ({}): add it there, or set `name` to the one that this node is",
                                 result.name, name ? "" : ", the host's name,", fmt::join(names, ", ")));
    }
    if (const toml::node* clients = table.get("clients"); clients && result.control.empty() && !table.contains("control"))
        parser.wrong(*clients, "clients: nobody can use these keys: add control = \"host:port\"");
    if (!mistakes->empty()) {
        // toml++ sorts keys by name; mistakes are listed by line.
        auto line = [&](const std::string& each) { return std::atoi(each.c_str() + path.size() + 1); };
        std::stable_sort(mistakes->begin(), mistakes->end(), [&](const std::string& a, const std::string& b) { return line(a) < line(b); });
        return false;
    }
    if (result.listen.empty()) result.listen = listen_default(result);
    if (NetworkInterface found;
        result.interface.empty() && !parser.rdma_interface.empty() && interface_find(parser.rdma_interface, &found).ok()) {
        result.interface = found.name;
        result.interfaces = {found.name};
        result.datagram_bytes = datagram_segment(found.mtu, found.ipv6());
    }
    *config = std::move(result);
    return true;
}

/// Of gradcastd.toml: installed with this program, or where the package has it.
static std::string example_path() {
    const std::string own = program_file("gradcastd.toml", {"../share/doc/gradcast"});
    return own.empty() ? "/usr/share/doc/gradcast/gradcastd.toml" : own;
}

Status config_read(const std::string& path, DaemonConfig* config) {
    std::string text;
    if (Status status = file_read(path, &text); !status.ok())
        return fail(status.code, "{} (a commented example is {})", status.what, example_path());
    std::error_code error;
    std::string base = std::filesystem::absolute(path, error).parent_path().string();
    std::vector<std::string> mistakes;
    if (!config_parse(text, path, base, config, &mistakes)) return fail(Code::invalid, "{}", fmt::join(mistakes, "\n"));
    return {};
}

std::vector<FileKey> config_keys() {
    std::vector<FileKey> keys;
    for (const Option& each : options) keys.push_back({"", each.name, "", each.help, fmt::format("default: {}", each.fallback)});
    return keys;
}

std::string config_help() {
    std::string text;
    for (const FileKey& each : config_keys()) text += fmt::format("  {:<10} {} ({})\n", each.key, each.help, each.range);
    return text;
}

}   // namespace gradcast
