// gradcast-bench: what an exchange costs.  One process a rank on loopback; settings first, one row a size, verdict last.
#include <cstdio>

#include "bench/comm/allreduce.h"
#include "runtime/control/cli.h"
#include "transport/exchange/exchange.h"

using namespace gradcast;

int main(int argc, char** argv) {
    CLI::App app{"how fast and how exact the exchanges are", "gradcast-bench"};
    app.require_subcommand(1);
    AllreduceConfig config;
    std::string sizes = "4K..16M";
    CLI::App* allreduce = app.add_subcommand("allreduce", "sum float32 vectors over all ranks: quantise, exchange, back to float");
    std::map<std::string, LinkKind> links{{"uring_tcp", LinkKind::uring_tcp}, {"epoll_tcp", LinkKind::epoll_tcp}};
    std::map<std::string, Protect> protects{{"none", Protect::none}, {"auth", Protect::auth}, {"encrypt", Protect::encrypt}};
    std::map<std::string, Quantiser> quantisers{{"fixed", Quantiser::fixed}, {"auto32", Quantiser::auto32}};
    allreduce->add_option("--exchange", config.exchange, "ring or unicast")->capture_default_str();
    allreduce->add_option("--nodes", config.ranks, "ranks, one process each")->check(CLI::Range(1, 64))->capture_default_str();
    allreduce->add_option("--size", sizes, "bytes of float32 a rank: 64K, a list 4K,1M or a range 4K..16M in steps of 4x")
        ->capture_default_str();
    allreduce->add_option("--runs", config.runs, "timed repetitions of each size")->check(CLI::Range(1, 10000))->capture_default_str();
    allreduce->add_option("--warmup", config.warmup, "untimed repetitions before them")->check(CLI::Range(0, 1000))->capture_default_str();
    allreduce->add_option("--link", config.link, "uring_tcp (default) or epoll_tcp")->transform(CLI::CheckedTransformer(links));
    allreduce->add_option("--protect", config.protect, "auth (default), encrypt or none")->transform(CLI::CheckedTransformer(protects));
    allreduce->add_option("--quantiser", config.quantiser, "auto32 (default) or fixed")->transform(CLI::CheckedTransformer(quantisers));
    allreduce->add_flag("--json", config.json, "print JSON instead of the table");
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return cli_exit(app, error);
    }
    const ExchangeKind* kind = nullptr;
    Status status = allreduce_sizes(sizes, &config.sizes);
    if (status.ok()) status = exchange_find(config.exchange, config.quantiser, &kind);
    if (!status.ok()) {
        fmt::print(stderr, "gradcast-bench: {}\n", status.what);
        return 2;
    }
    bool wrong = false;
    status = allreduce_run(config, *kind, &wrong);
    if (!status.ok()) fmt::print(stderr, "gradcast-bench: {}\n", status.what);
    return status.ok() && !wrong ? 0 : 1;
}
