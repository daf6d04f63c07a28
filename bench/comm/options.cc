#include "bench/comm/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "nn/net.h"
#include "runtime/control/cli.h"
#include "runtime/control/cli_docs.h"
#include "runtime/core/device.h"
#include "runtime/core/net/interface.h"
#include "runtime/core/version.h"
#include "transport/bulk/bulk.h"

namespace gradcast {
namespace {

Status size_parse(const std::string& text, std::string_view word, uint64_t* bytes) {
    uint64_t value = 0, unit = 1;
    auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    std::string_view rest(end, static_cast<size_t>(word.data() + word.size() - end));
    if (rest == "K") unit = 1 << 10;
    else if (rest == "M") unit = 1 << 20;
    else if (rest == "G") unit = 1 << 30;
    else if (!rest.empty()) error = std::errc::invalid_argument;
    if (word.empty()) return fail(Code::invalid, "--size {}: a size is missing", text);
    if (error != std::errc() || value == 0 || value > (1u << 30) / unit || value * unit % 4 != 0)
        return fail(Code::invalid, "--size {}: '{}' is not a multiple of 4 bytes up to 1G, like 64K or 16M", text, word);
    *bytes = value * unit;
    return {};
}

/// Returns an error if an option is given that none of the exchanges takes.
Status idle_check(const CLI::App& command, const std::vector<std::string>& exchanges) {
    struct OptionUse {
        const char* option;
        bool ExchangeKind::*trait;
        const char* simulated = "";   // an exchange of `simulate` alone that takes it, too
    };
    for (const auto& [name, trait, simulated] : {OptionUse{"-m", &ExchangeKind::codes, "grouped"},
                                                 {"-s", &ExchangeKind::codes},
                                                 {"-r", &ExchangeKind::shares},
                                                 {"--weights", &ExchangeKind::weighs},
                                                 {"--servers", &ExchangeKind::serves}}) {
        const CLI::Option* option = command.get_option_no_throw(name);
        if (!option || option->count() == 0) continue;
        const std::string more = command.get_name() == "simulate" ? simulated : "";
        auto takes = [&](const std::string& exchange) {
            const auto kind = std::ranges::find(exchange_kinds(), exchange, &ExchangeKind::name);
            return kind != exchange_kinds().end() ? *kind.*trait : exchange == more;
        };
        if (std::ranges::none_of(exchanges, takes))
            return fail(Code::invalid, "{} is for {}{}, and --exchange {} is none of these", name, exchange_names(trait),
                        more.empty() ? "" : " or " + more, fmt::join(exchanges, ","));
    }
    return {};
}

}   // namespace

Status sizes_parse(const std::string& text, std::vector<uint64_t>* sizes) {
    std::vector<uint64_t> result;
    if (size_t dots = text.find(".."); dots != text.npos) {
        uint64_t from = 0, to = 0;
        GC_TRY(size_parse(text, std::string_view(text).substr(0, dots), &from));
        GC_TRY(size_parse(text, std::string_view(text).substr(dots + 2), &to));
        if (from > to) return fail(Code::invalid, "--size {}: the range is empty", text);
        for (; from <= to; from *= 4) result.push_back(from);
    } else {
        for (size_t at = 0; at <= text.size();) {
            size_t comma = std::min(text.find(',', at), text.size());
            uint64_t bytes = 0;
            GC_TRY(size_parse(text, std::string_view(text).substr(at, comma - at), &bytes));
            result.push_back(bytes);
            at = comma + 1;
        }
    }
    *sizes = std::move(result);
    return {};
}

std::optional<int> options_parse(const std::vector<std::string>& arguments, BenchOptions* options) {
    CLI::App app{"how fast and how exact the exchanges are", "gradcast-bench"};
    app.set_version_flag("--version", std::string("gradcast-bench ") + version_text);
    app.require_subcommand(0, 1);
    BenchOptions result;
    result.arguments = arguments;
    std::vector<std::string> precisions{precision_names()[0]};
    std::string sizes = "4K..16M", rate, pace, link, protect;
    std::string quantiser = quantiser_name(result.quantiser);
    double skew_ms = 0;
    bool man = false;
    std::string shell;
    app.add_flag("--man", man)->group("");
    app.add_option("--completion", shell)->group("")->check(CLI::IsMember({"bash", "zsh", "fish"}));

    app.add_option("--connect", result.connect, "take part in the benchmark of the server at this address: host:port");
    auto add_place = [&](CLI::App* command) {
        command->add_option("--key", result.key, "file of the key that all nodes share; a server makes it if it is missing");
        command->add_option(
            "--interface", result.interface,
            "network interface for multicast, as eth0 or one of its addresses; without it all goes by streams.  eth0,eth1: streams go "
            "over both");
        command->add_option(
            "--rdma", result.rdma,
            "streams and datagrams by RDMA, with this device (mlx5_0, mlx5_0:2) or the one of this interface; mlx5_0,mlx5_1: streams go "
            "over both");
        command->add_option("--wait", result.wait_s, "seconds that all nodes may take to come")
            ->check(CLI::Range(1, 3600))
            ->capture_default_str();
    };
    add_place(&app);
    auto add = [&](const char* name, const char* what) {
        CLI::App* command = app.add_subcommand(name, what);
        command->add_option("--nodes", result.nodes, "ranks")->check(CLI::Range(1, 64))->capture_default_str();
        command->add_option("--server", result.server,
                            "host:port: wait here for --nodes - 1 others that 'gradcast-bench --connect'; without it all ranks are "
                            "processes on this machine");
        // From gradcastd, which starts this program.
        command->add_option("--listen-fd", result.listen_fd)->check(CLI::Range(3, 1000))->group("");
        command->add_flag("--check", result.check, "only check the command line");
        add_place(command);
        command->add_option("--size", sizes, "bytes: 64K, a list 4K,1M or a range 4K..16M in steps of 4x")->capture_default_str();
        command->add_option("--repeat", result.repeat, "timed repetitions of each")->check(CLI::Range(1, 10000))->capture_default_str();
        command->add_option("--warmup", result.warmup, "untimed ones before them")->check(CLI::Range(0, 1000))->capture_default_str();
        command->add_option("--link", link, "uring_tcp or epoll_tcp")
            ->check(CLI::IsMember({"uring_tcp", "epoll_tcp"}))
            ->default_str("uring_tcp");
        command->add_option("--protect", protect, "auth, encrypt or none")
            ->check(CLI::IsMember({"auth", "encrypt", "none"}))
            ->default_str("auth");
        command->add_option("--segment", result.segment_bytes, "payload of one packet, bytes; 0: what suits the link")
            ->check(CLI::Range(0u, segment_bytes_stream));
        command->add_option("--rate", rate, "speed of each node's link, as 100mbit or 1gbit, for the bound; else as the interface tells");
        command->add_option("--pace", pace, "send datagrams no faster, as 800mbit; else as the link takes them");
        command->add_flag("--json", result.json, "print JSON instead of the table");
        command->add_flag("--spoil", result.spoil, "make one element of rank 0 wrong on purpose, which must be found");
        return command;
    };
    auto add_sum = [&](CLI::App* command) {
        command->add_option("--quantiser", quantiser, "auto32, auto16 or fixed")->capture_default_str();
        command->add_option("--servers", result.servers, exchange_names(&ExchangeKind::serves) + ": how many ranks sum up")
            ->check(CLI::Range(1, 64))
            ->capture_default_str();
    };
    CLI::App* allreduce = add("allreduce", "sum float32 vectors over all ranks: quantise, encode, exchange, decode");
    allreduce->add_option("--exchange", result.exchanges, "one or more, with commas; 'gradcast-bench exchanges' lists them")
        ->delimiter(',')
        ->capture_default_str();
    allreduce->add_option("--layout", result.layouts, "the buckets of these nets, as mlp,cnn, in place of --size")->delimiter(',');
    allreduce
        ->add_option(
            "--skew", skew_ms,
            "ms: steps back to back, as a job's: a rank with its sums goes on at once, and its gradient takes 0 to so long, drawn anew "
            "each step")
        ->check(CLI::Range(0.001, 1e6));
    add_sum(allreduce);
    auto add_code = [&](CLI::App* command) {
        command->add_option("-m", result.m, exchange_names(&ExchangeKind::codes) + ": parts a gradient is cut in")
            ->check(CLI::Range(1, 64))
            ->capture_default_str();
        command->add_option("-s", result.s, exchange_names(&ExchangeKind::codes) + ": ranks that may be late or lost")
            ->check(CLI::Range(0, 63))
            ->capture_default_str();
        command->add_option("-r", result.r, exchange_names(&ExchangeKind::shares) + ": ranks that share a block")
            ->check(CLI::Range(1, 64))
            ->capture_default_str();
    };
    add_code(allreduce);
    allreduce
        ->add_option("--weights", result.weights,
                     exchange_names(&ExchangeKind::weighs) + ": shares of the blocks by rank, as 1,2,1; none: all alike")
        ->delimiter(',');
    add_sum(add("ps", "the same by parameter servers, and what these see"));
    CLI::App* multicast = add("multicast", "a buffer to all others: goodput, loss at each receiver, repairs");
    std::string senders = "one";
    multicast->add_option("--senders", senders, "one or all")->check(CLI::IsMember({"one", "all"}))->capture_default_str();
    CLI::App* p2p = add("p2p", "latency and bandwidth between two");
    CLI::App* simulate = app.add_subcommand("simulate", "bytes and time on simulated links, beside the predicted ones");
    simulate->add_option("--exchange", result.exchanges, "one or more, with commas; also 'grouped': coded-rs in groups, rings between them")
        ->delimiter(',')
        ->capture_default_str();
    simulate->add_option("--nodes", result.simulated, "numbers of nodes, with commas")
        ->delimiter(',')
        ->check(CLI::Range(1u, ranks_max))
        ->capture_default_str();
    simulate->add_option("--group", result.group, "grouped: nodes of a group")->check(CLI::Range(1, 64))->capture_default_str();
    simulate->add_option("--size", sizes, "bytes, as with allreduce")->default_str("256K");
    simulate->add_option("--rate", rate, "speed of each node's link, each way, as 100mbit")->default_str("1gbit");
    simulate->add_option("--latency", result.latency_us, "microseconds from node to node")
        ->check(CLI::Range(0, 10'000'000))
        ->capture_default_str();
    simulate->add_option("--block-us", result.block_us, "microseconds to compute one super-block, of which a node computes d")
        ->check(CLI::Range(0.0, 1e9))
        ->capture_default_str();
    simulate->add_flag("--json", result.json, "print JSON instead of the table");
    add_sum(simulate);
    add_code(simulate);
    auto add_net = [&](const char* name, const char* what) {
        CLI::App* command = app.add_subcommand(name, what);
        command->add_option("--net", result.nets, "presets, with commas; resnet18:224: of samples of that side")
            ->delimiter(',')
            ->capture_default_str();
        command->add_option("--isa", result.isa, "portable, avx2, avx512, avx512-bf16, amx or auto: what this CPU has")
            ->capture_default_str();
        command->add_option("--precision", precisions, "of convolutions and inner products, with commas: f32, bf16 or, on GPUs, tf32")
            ->delimiter(',')
            ->check(CLI::IsMember(std::vector<std::string>(precision_names().begin(), precision_names().end())))
            ->capture_default_str();
        command->add_option("--device", result.device, "cpu, cuda or auto: cuda where there is a GPU")
            ->check(CLI::IsMember(std::vector<std::string>(device_names.begin(), device_names.end())))
            ->capture_default_str();
        command->add_flag("!--any-bits", result.deterministic, "cuda: the fastest kernels, whose bits may differ from run to run");
        command->add_option("--batch", result.batches, "samples of a step, with commas")
            ->delimiter(',')
            ->check(CLI::Range(1, 65536))
            ->capture_default_str();
        command->add_option("--blocks", result.blocks, "that the batch is cut in; `step` takes several, with commas")
            ->delimiter(',')
            ->check(CLI::Range(1, 4096))
            ->capture_default_str();
        command->add_option("--threads", result.threads, "lanes, each of which computes its share of the blocks")
            ->check(CLI::Range(1, 64))
            ->capture_default_str();
        command->add_option("--repeat", result.repeat, "timed steps")->check(CLI::Range(1, 10000))->capture_default_str();
        command->add_option("--warmup", result.warmup, "untimed ones before them")->check(CLI::Range(0, 1000))->capture_default_str();
        command->add_flag("--json", result.json, "print a line of JSON for each net, batch and precision, instead of tables");
    };
    add_net("layers", "time of each layer and pass of a net, and its share of what this CPU could do");
    add_net("step", "images/s of whole training steps of one node, without loading and exchange");
    app.add_subcommand("exchanges", "list the exchanges");

    std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
    cli_decimal(app);
    try {
        app.parse(reversed);
    } catch (const CLI::ParseError& error) {
        return cli_exit(app, error);
    }
    if (man) fmt::print("{}", man_page(app, 1, "gradcastctl(1), gradcast-lab(1)"));
    if (!shell.empty()) fmt::print("{}", completion(app, shell));
    if (man || !shell.empty()) return 0;
    if (!app.get_subcommands().empty()) result.command = app.get_subcommands().front()->get_name();
    auto wrong = [](const Status& status) {
        fmt::print(stderr, "gradcast-bench: {}\n", status.what);
        return 2;
    };
    if (result.command.empty() == result.connect.empty())
        return wrong(fail(Code::invalid, "give either a command or --connect; 'gradcast-bench --help' lists them"));
    if (result.command == "simulate") {
        if (simulate->count("--size") == 0) sizes = "256K";
        if (rate.empty()) rate = "1gbit";
    }
    const uint32_t batch = *std::ranges::min_element(result.batches);
    for (uint32_t blocks : result.blocks)
        if (blocks > batch) return wrong(fail(Code::invalid, "--blocks {}: a batch of {} has no more blocks", blocks, batch));
    if (result.command == "layers" && result.blocks.size() > 1)
        return wrong(fail(Code::invalid, "layers takes one number of --blocks, not {}", result.blocks.size()));
    if (result.command == "exchanges") {
        for (const ExchangeKind& kind : exchange_kinds()) fmt::print("{}\t{}\n", kind.name, kind.summary);
        return 0;
    }
    if (!result.layouts.empty() && allreduce->count("--size") > 0) return wrong(fail(Code::invalid, "give --size or --layout, not both"));
    result.skew_us = static_cast<uint64_t>(skew_ms * 1e3);
    if (!link.empty()) result.link = link == "epoll_tcp" ? LinkKind::epoll_tcp : LinkKind::uring_tcp;
    if (!protect.empty()) result.protect = protect == "none" ? Protect::none : protect == "encrypt" ? Protect::encrypt : Protect::auth;
    if (Status status = sizes_parse(sizes, &result.sizes); !status.ok()) return wrong(status);
    for (auto [name, text, bits] : {std::tuple{"--rate", &rate, &result.rate}, std::tuple{"--pace", &pace, &result.pace}})
        if (Status status = text->empty() ? Status{} : rate_parse(*text, bits); !status.ok())
            return wrong(fail(Code::invalid, "{} {}", name, status.what));
    if (Status status = quantiser_parse(quantiser, &result.quantiser); !status.ok()) return wrong(status);
    if (result.segment_bytes > 0 && result.segment_bytes < bulk_segment_min)
        return wrong(fail(Code::invalid, "--segment {}: {} bytes at least", result.segment_bytes, bulk_segment_min));
    if (result.segment_bytes % 8 != 0) return wrong(fail(Code::invalid, "--segment {}: not a multiple of 8", result.segment_bytes));
    if ((!result.server.empty() || !result.connect.empty()) && result.key.empty())
        return wrong(fail(Code::invalid, "--key FILE is missing: the same file at the server, which makes it, and at the others"));
    result.precisions.clear();
    for (const std::string& name : precisions) result.precisions.push_back(precision_of(name));
    result.all_send = senders == "all";
    if (result.command == "multicast" && (result.interface.empty() || result.nodes < 2))
        return wrong(fail(Code::invalid, "multicast needs --interface, as eth0 or lo, and at least 2 --nodes"));
    if (result.command == "p2p") {
        if (p2p->count("--nodes") > 0 && result.nodes != 2)
            return wrong(fail(Code::invalid, "p2p is between 2 --nodes, not {}", result.nodes));
        result.nodes = 2;
    }
    if (result.command == "ps") result.exchanges = {"ps"};
    if (result.command == "allreduce" || result.command == "ps")
        for (const std::string& name : result.exchanges) {
            const ExchangeKind* kind;
            if (Status status = exchange_find(name, result.quantiser, &kind); !status.ok()) return wrong(status);
        }
    if (result.command == "simulate")
        for (const std::string& name : result.exchanges) {
            const ExchangeKind* kind;
            if (name == "grouped" && result.quantiser == Quantiser::auto32) continue;
            if (name == "grouped") return wrong(fail(Code::invalid, "grouped is simulated with the quantiser auto32 alone"));
            if (Status status = exchange_find(name, result.quantiser, &kind); !status.ok()) return wrong(status);
        }
    if (result.command == "allreduce" || result.command == "simulate")
        if (Status status = idle_check(*app.get_subcommands().front(), result.exchanges); !status.ok()) return wrong(status);
    if (result.pace > 0 && result.interface.empty())
        return wrong(fail(Code::invalid, "--pace is the speed of datagrams: it needs --interface, as eth0 or lo"));
    if (!result.key.empty() && result.server.empty() && result.connect.empty())
        return wrong(fail(Code::invalid, "--key is for ranks on several nodes: it needs --server or --connect"));
    *options = std::move(result);
    return {};
}

}   // namespace gradcast
