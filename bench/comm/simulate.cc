// gradcast-bench simulate: bytes and time of exchanges on simulated links, beside what transport/exchange/cost.h predicts.
//
// Up to nodes_real ranks run the exchanges themselves over transport/sim, with transport/bulk beneath those that multicast; real words
// are sent and every sum is compared.  `grouped` runs at any number of nodes (bench/comm/grouped.h).  Larger cases, and those that do not
// fit in half of this machine's memory, have only the prediction.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "bench/comm/bench.h"
#include "bench/comm/grouped.h"
#include "runtime/core/digest.h"
#include "transport/bulk/bulk.h"
#include "transport/exchange/cost.h"

namespace gradcast {
namespace {

constexpr uint32_t nodes_real = 64;
constexpr uint32_t datagram_payload = 1432;   // on Ethernet
constexpr uint64_t end_us = 36'000'000'000;

const Column simulate_columns[] = {{"exchange", "exchange", 1, 0, 9},      {"nodes", "nodes", 1, 0, 6},
                                   {"size_bytes", "size B", 1, 0, 10},     {"d", "d", 1, 0, 3},
                                   {"sent_bytes", "sent B", 1, 0, 12},     {"predicted_sent_bytes", "predicted", 1, 0, 12},
                                   {"received_bytes", "recv B", 1, 0, 12}, {"predicted_received_bytes", "predicted", 1, 0, 12},
                                   {"time_us", "time ms", 1e3, 3, 11},     {"predicted_us", "predicted", 1e3, 3, 11},
                                   {"wrong_elements", "wrong", 1, 0, 6}};

/// The word that a block contributes: within every quantiser's limit.
int32_t word_of(uint32_t block, uint64_t element) { return static_cast<int32_t>(splitmix64(element << 16 | block) % 15) - 7; }

void word_add(Word word, Buffer words, uint64_t i, int32_t value) {
    switch (word) {
        case Word::i16: words.as<int16_t>()[i] = static_cast<int16_t>(words.as<int16_t>()[i] + value); break;
        case Word::i32: words.as<int32_t>()[i] += value; break;
        case Word::i64: words.as<int64_t>()[i] += value; break;
    }
}

struct Counted {
    double sent = 0, received = 0, us = 0;   // of the busiest rank
    uint64_t wrong = 0;
    void bytes(const Simulator& simulator, uint32_t n) {
        for (Rank rank = 0; rank < n; ++rank) {
            sent = std::max(sent, static_cast<double>(simulator.bytes_sent(rank)));
            received = std::max(received, static_cast<double>(simulator.bytes_received(rank)));
        }
    }
};

SimConfig links(const BenchOptions& options, uint32_t n, uint32_t segment_bytes) {
    SimConfig config;
    config.ranks = n;
    config.segment_bytes = segment_bytes;
    config.rate_bytes_per_s = static_cast<double>(options.rate) / 8;
    config.latency_us = options.latency_us;
    config.jitter_us = 0;
    config.batch_us = 0;
    config.compute_ns_per_word = 0;
    config.window_bytes = uint64_t{1} << 40;
    config.end_us = end_us;
    config.lost_after_us = end_us;
    return config;
}

/// One step of one exchange at all ranks.  *counted stays empty if that does not fit in memory.
Status run_real(const ExchangeKind& kind, const BenchOptions& options, ExchangeConfig config, uint32_t n, double block_us,
                std::optional<Counted>* counted) {
    const uint64_t count = config.layout->elements;
    const View view = view_of(n);
    struct Node {
        Arena arena;
        std::unique_ptr<Exchange> exchange;
        std::unique_ptr<Protocol> bulk;
        std::vector<uint32_t> blocks;
    };
    const bool datagrams = kind.datagrams && n > 1;
    std::vector<Node> nodes(n);
    BulkCounters counters;
    const std::vector<uint32_t> samples(config.blocks, 1);
    double bytes = 0;
    for (Rank rank = 0; rank < n; ++rank) {
        Node& node = nodes[rank];
        config.self = rank;
        node.exchange = kind.create(config);
        node.blocks = node.exchange->place(view, samples).blocks_of(rank);
        GC_TRY(node.exchange->install(view, node.arena));
        if (datagrams)
            node.bulk = bulk_create({.self = rank, .ranks = n, .segment_bytes = config.segment_bytes, .rate_bytes_per_s = options.rate / 8},
                                    *node.exchange, node.arena, &counters);
        bytes += static_cast<double>(node.arena.whole().bytes);   // planned
    }
    if (bytes > static_cast<double>(machine_memory()) / 2) return {};
    std::vector<int64_t> expected(count);
    for (uint32_t block = 0; block < config.blocks; ++block)
        for (uint64_t i = 0; i < count; ++i) expected[i] += word_of(block, i);
    Counted result;
    auto simulator = Simulator::create(links(options, n, datagrams ? config.segment_bytes : segment_bytes_stream));
    for (Rank rank = 0; rank < n; ++rank) {
        Node& node = nodes[rank];
        GC_TRY(node.arena.seal());
        if (datagrams) simulator->attach_datagrams(rank, 1, node.bulk.get());
        else simulator->attach(rank, 1, node.exchange.get());
        simulator->trainer(rank, [&](Host& host) {
            Exchange& exchange = *node.exchange;
            for (uint32_t target = 0; target < exchange.targets(); ++target) {
                const Plan plan = exchange.plan(0, 0, target);
                std::memset(plan.words.host, 0, plan.words.bytes);
                for (uint32_t block : node.blocks) {
                    if (exchange.target_of(block) != target) continue;
                    for (uint64_t i = 0; i < count; ++i) word_add(plan.word, plan.words, i, word_of(block, i));
                }
                std::fill(plan.record->maxima.begin(), plan.record->maxima.end(), 1.0f);
            }
            if (block_us > 0) host.spend(static_cast<uint64_t>(block_us));
            host.post(1, {Event::Ready{0, 0}});
            std::vector<Completion> completions;
            GC_TRY(host.wait(&completions, end_us));
            GC_TRY(completions.front().status);
            result.us = std::max(result.us, static_cast<double>(host.now_us()));
            const Sum& sum = *completions.front().sum;
            for (uint64_t i = 0; i < count; ++i) result.wrong += word_at(sum.word, sum.words, i) != expected[i];
            return Status{};
        });
    }
    GC_TRY(simulator->run());
    result.bytes(*simulator, n);
    *counted = result;
    return {};
}

Status run_grouped(const BenchOptions& options, uint32_t n, uint64_t count, double block_us, Counted* counted) {
    GroupedPlan plan{.n = n,
                     .group = std::min(options.group, n),
                     .m = options.m,
                     .count = count,
                     .segment_bytes = datagram_payload,
                     .word = word_of,
                     .expected = std::vector<int32_t>(count)};
    GC_TRY(grouped_check(plan));
    for (uint32_t block = 0; block < n; ++block)
        for (uint64_t i = 0; i < count; ++i) plan.expected[i] += word_of(block, i);
    SimConfig config = links(options, n, datagram_payload);
    config.group_ranks = plan.group;
    auto simulator = Simulator::create(config);
    std::vector<std::unique_ptr<Protocol>> ranks;
    for (Rank rank = 0; rank < n; ++rank) {
        ranks.push_back(grouped_create(plan, rank));
        simulator->attach_datagrams(rank, 1, ranks.back().get());
        simulator->host(rank).post(1, {Event::Ready{0, 0}});
    }
    GC_TRY(simulator->run());
    if (plan.done != n) return fail(Code::deadline, "{} of {} nodes have no whole sum when nothing is left to happen", n - plan.done, n);
    counted->bytes(*simulator, n);
    counted->us = static_cast<double>(plan.done_us) + block_us;
    counted->wrong = plan.wrong;
    return {};
}

Status simulate(const std::string& name, const BenchOptions& options, uint32_t n, uint64_t bytes, nlohmann::json* row) {
    const bool grouped = name == "grouped";
    const ExchangeKind* kind = nullptr;
    GC_TRY(exchange_find(grouped ? "coded-rs" : name, options.quantiser, &kind));
    const uint64_t count = bytes / 4;
    const Layout layout{count, {{0, count, "all"}}, {{0, count, 0, 1}}};
    const bool datagrams = kind->datagrams && n > 1;
    const uint32_t segment = datagrams ? datagram_payload : segment_bytes_stream;
    ExchangeConfig config = exchange_config(options, layout, 0, blocks_of(*kind, options, n), segment);
    const CostWire wire{datagrams ? sim_datagram_overhead_bytes : sim_stream_overhead_bytes,
                        datagrams ? CostWire::Multicast::flat : CostWire::Multicast::copies};
    Cost cost;
    std::optional<Counted> counted;
    if (grouped) {
        config.quantiser = Quantiser::auto32;
        config.s = 0;
        config.piece_words = ~0u;
        const uint32_t group = std::min(options.group, n);
        counted.emplace();
        GC_TRY(run_grouped(options, n, count, options.m * options.block_us, &*counted));
        cost = cost_grouped(config, n, group, wire);
    } else {
        GC_TRY(exchange_check(*kind, options, n));
        cost = cost_of(name, config, n, wire);
        if (n <= nodes_real) GC_TRY(run_real(*kind, options, config, n, cost.d * options.block_us, &counted));
    }
    auto known = [&](double value) { return counted ? nlohmann::json(value) : nlohmann::json(); };
    const Counted shown = counted.value_or(Counted{});
    *row = {
        {"exchange", name},
        {"nodes", n},
        {"size_bytes", bytes},
        {"d", cost.d},
        {"sent_bytes", known(shown.sent)},
        {"predicted_sent_bytes", cost.sent},
        {"received_bytes", known(shown.received)},
        {"predicted_received_bytes", cost.received},
        {"time_us", known(shown.us)},
        {"predicted_us", predicted_us(cost, options.block_us, static_cast<double>(options.rate), static_cast<double>(options.latency_us))},
        {"wrong_elements", known(static_cast<double>(shown.wrong))}};
    return {};
}

void head_print(const BenchOptions& options) {
    fmt::print(
        "# gradcast-bench simulate: quantiser {}, m = {}, s = {}, r = {}, servers {}, groups of {}; links of {:g} Mbit/s, {} us one "
        "way, "
        "{:g} us a block\n",
        quantiser_name(options.quantiser), options.m, options.s, options.r, options.servers, options.group,
        static_cast<double>(options.rate) / 1e6, options.latency_us, options.block_us);
    columns_print(simulate_columns);
}

}   // namespace

Status simulate_run(const BenchOptions& options, bool* wrong) {
    nlohmann::json report{{"bench", "simulate"},
                          {"quantiser", quantiser_name(options.quantiser)},
                          {"m", options.m},
                          {"s", options.s},
                          {"r", options.r},
                          {"servers", options.servers},
                          {"group", options.group},
                          {"rate_bits_per_s", options.rate},
                          {"latency_us", options.latency_us},
                          {"block_us", options.block_us},
                          {"rows", nlohmann::json::array()}};
    for (uint64_t bytes : options.sizes)
        for (const std::string& name : options.exchanges)
            for (uint32_t n : options.simulated) {
                nlohmann::json row;
                GC_TRY(simulate(name, options, n, bytes, &row));
                if (!options.json && report["rows"].empty()) head_print(options);
                *wrong |= row["wrong_elements"].is_number() && row["wrong_elements"] != 0;
                if (!options.json) row_print(simulate_columns, row);
                report["rows"].push_back(std::move(row));
            }
    report["exact"] = !*wrong;
    if (options.json) fmt::print("{}\n", report.dump(2));
    else fmt::print("# {}\n", *wrong ? "WRONG: sums differ from the reference" : "exact: every element at every simulated rank is right");
    return {};
}

}   // namespace gradcast
