#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "bench/comm/bench.h"
#include "bench/comm/plain.h"
#include "nn/graph/layers.h"
#include "nn/net.h"
#include "runtime/core/clock.h"
#include "runtime/core/lanes.h"
#include "runtime/core/rng.h"
#include "transport/bulk/bulk.h"
#include "transport/exchange/cost.h"

namespace gradcast {
namespace {

constexpr uint64_t seed = 1;
constexpr uint64_t stride = 16;   // offset in floats between the gradients of consecutive blocks

const Column allreduce_columns[] = {{"exchange", "exchange", 1, 0, 9},
                                    {"size_bytes", "size B", 1, 0, 10},
                                    {"d", "d", 1, 0, 3},
                                    {"first_us", "first ms", 1e3, 3, 9},
                                    {"p50_us", "p50 ms", 1e3, 3, 9},
                                    {"p99_us", "p99 ms", 1e3, 3, 9},
                                    {"max_us", "max ms", 1e3, 3, 9},
                                    {"algbw_bytes_per_s", "algbw MB/s", 1e6, 1, 10},
                                    {"busbw_bytes_per_s", "busbw MB/s", 1e6, 1, 10},
                                    {"sent_bytes", "sent B", 1, 0, 10},
                                    {"received_bytes", "recv B", 1, 0, 10},
                                    {"wire_sent_bytes", "wire tx B", 1, 0, 10},
                                    {"wire_received_bytes", "wire rx B", 1, 0, 10},
                                    {"bound_bytes", "bound B", 1, 0, 10},
                                    {"bound_us", "bound ms", 1e3, 3, 9},
                                    {"percent_of_bound", "% of bound", 1, 1, 10},
                                    {"cpu_us", "cpu ms", 1e3, 2, 8},
                                    {"network_us", "net ms", 1e3, 2, 8},
                                    {"cpu_s_per_gb", "cpu s/GB", 1, 2, 8},
                                    {"lost_percent", "lost %", 1, 2, 6},
                                    {"repair_percent", "repair %", 1, 2, 8},
                                    {"page_faults", "faults", 1, 0, 6},
                                    {"wrong_elements", "wrong", 1, 0, 6}};

// Buckets are sent while later ones are quantised, as in a net.  The first bucket is small, so the links start early.
constexpr uint64_t first_elements = 32 * 1024, bucket_elements = 128 * 1024;
Layout layout_of(uint64_t count) {
    Layout layout{count, {}, {}};
    for (uint64_t from = 0; from < count;) {
        const uint64_t here = std::min(count - from, from == 0 ? first_elements : bucket_elements);
        layout.buckets.push_back({from, here, static_cast<uint32_t>(layout.groups.size()), 1});
        layout.groups.push_back({from, here, "bucket"});
        from += here;
    }
    return layout;
}

/// The vectors of --size, in the buckets above, or those of --layout, in the buckets of a preset net.
struct Load {
    std::string name;   // of the net; empty: of --size
    Layout layout;
};
Status load_of(const std::string& net, Load* load) {
    NetSpec spec;
    std::vector<Layer> layers;
    if (Status status = preset_find(net, 1, 28, 28, 10, &spec); !status.ok() || (net != "mlp" && !net.starts_with("lenet")))
        GC_TRY(preset_find(net, 3, 32, 32, 10, &spec));
    GC_TRY(layers_check(spec, &layers));
    *load = {net, layers_layout(layers, NetConfig{}.bucket_bytes)};
    return {};
}
Status loads_of(const BenchOptions& options, std::vector<Load>* loads) {
    for (const std::string& net : options.layouts) GC_TRY(load_of(net, &loads->emplace_back()));
    if (options.layouts.empty())
        for (uint64_t bytes : options.sizes) loads->push_back({"", layout_of(bytes / 4)});
    return {};
}

// `count` random floats in (-1, 1) for a block; each block starts at its own offset.
std::vector<float> numbers(uint64_t count, uint32_t blocks) {
    std::vector<float> base(count + blocks * stride + 4);
    for (uint64_t i = 0; i + 4 <= base.size(); i += 4) {
        const Philox bits = random4(Purpose::test, seed, i / 4, 0);
        for (uint64_t k = 0; k < 4; ++k) base[i + k] = 2 * uniform(bits[k]) - 1;
    }
    return base;
}

// ---- one exchange at one size --------------------------------------------------------------------------------------------------

struct AllreduceCell {
    AllreduceCell(Bench& bench_, const ExchangeKind& kind_, const Layout& layout_)
        : bench(bench_),
          kind(kind_),
          count(layout_.elements),
          n(bench_.rendezvous.ranks()),
          blocks(blocks_of(kind_, bench_.options, n)),
          layout(layout_),
          datagrams(kind_.datagrams && bench_.datagrams && n > 1),
          station(bench_) {}

    Status open();
    Status contribute(StepId step, uint64_t pause_us);
    Status collect(StepId step, uint64_t start_us);
    void release(StepId step);
    Status repeat(int64_t run, nlohmann::json& mine);
    Status train(nlohmann::json& mine);
    StepId step_of(int64_t run) const { return static_cast<StepId>(run + 1 + bench.options.warmup); }
    Status wrong_in(StepId step, Word word, uint64_t* wrong);

    Bench& bench;
    const ExchangeKind& kind;
    const uint64_t count;
    const uint32_t n, blocks;
    const Layout layout;
    const bool datagrams;
    std::vector<float> base;
    std::vector<uint32_t> own;   // blocks of this rank
    std::vector<Buffer> gradients;
    Buffer expected_words;
    uint64_t bound_bytes = 0, deadline_us = deadline_least_us;
    double d = 0;
    PlainRing plain;
    BulkCounters bulk_counters;
    Arena arena;
    std::unique_ptr<Exchange> exchange;
    std::unique_ptr<Protocol> bulk;
    std::unique_ptr<Codec> codec;
    Word sums_word = Word::i32;
    std::vector<const Sum*> sums;                 // by bucket, of the step that is collected
    std::vector<Completion> early, completions;   // early: of later steps
    Station station;                              // last member: its thread ends first
};

Status AllreduceCell::open() {
    const BenchOptions& options = bench.options;
    Rendezvous& rendezvous = bench.rendezvous;
    const uint32_t segment = datagrams ? bench.datagram_bytes : options.segment_bytes ? options.segment_bytes : segment_bytes_stream;
    codec = codec_cpu(layout, {.quantiser = options.quantiser, .batch = blocks, .blocks = blocks});
    const ExchangeConfig config = exchange_config(options, codec->words(), rendezvous.rank(), blocks, segment);
    exchange = kind.create(config);
    const View view = view_of(n);
    const std::vector<uint32_t> samples(blocks, 1);
    own = exchange->place(view, samples).blocks_of(rendezvous.rank());
    GC_TRY(exchange->install(view, arena));
    const Cost cost = cost_of(kind.name, config, n, {});
    d = cost.d;
    bound_bytes = static_cast<uint64_t>(cost.bound());
    if (datagrams)
        bulk = bulk_create({.self = rendezvous.rank(), .ranks = n, .segment_bytes = segment, .rate_bytes_per_s = options.pace / 8},
                           *exchange, arena, &bulk_counters);
    gradients.resize(own.size());
    for (Buffer& gradient : gradients) arena.plan("gradients", count * 4, &gradient);
    arena.plan("reference", codec->words().elements * 8, &expected_words);
    GC_TRY(arena.seal());
    sums.resize(layout.buckets.size()), early.reserve(2 * sums.size()), completions.reserve(2 * sums.size());
    base = numbers(count, blocks);
    codec->probe(base.data());   // the same scale at every rank
    for (size_t i = 0; i < own.size(); ++i) std::memcpy(gradients[i].host, base.data() + own[i] * stride, count * 4);
    if (options.spoil && rendezvous.rank() == 0 && !own.empty()) {
        float& element = gradients[0].as<float>()[count / 2];
        element += element > 0 ? -1.0f : 1.0f;
    }

    if (bench.rate) deadline_us += bound_bytes * 8 * 1'000'000 / bench.rate * 4;
    if (bench.rate == 0 && n > 1) GC_TRY(plain.open(bench));
    return station.open(bulk ? *bulk : static_cast<Protocol&>(*exchange), arena.whole(), datagrams);
}

// Compares with the sum over all blocks, computed by this rank alone.
Status AllreduceCell::wrong_in(StepId step, Word word, uint64_t* wrong) {
    for (uint32_t b = 0; b < sums.size(); ++b) {
        const Bucket &bucket = layout.buckets[b], &words = codec->words().buckets[b];
        std::vector<float> maxima(bucket.group_count);
        Record record;
        record.maxima = maxima;
        const Plan plan{.word = word, .words = expected_words.part(0, words.count * word_bytes(word)), .record = &record};
        for (uint32_t block = 0; block < blocks; ++block) {
            Buffer gradient;
            gradient.host = reinterpret_cast<std::byte*>(base.data() + block * stride + bucket.offset);
            gradient.bytes = bucket.count * 4;
            GC_TRY(codec->add(0, {step, block}, b, gradient, plan));
        }
        for (uint64_t i = 0; i < words.count; ++i) *wrong += word_at(sums[b]->word, sums[b]->words, i) != word_at(word, expected_words, i);
    }
    return {};
}

// Quantises and encodes on a lane as a net does: a bucket is sent while the next one is made.  pause_us: extra time of the step's gradient,
// divided among the buckets.
Status AllreduceCell::contribute(StepId step, uint64_t pause_us) {
    for (uint32_t b = 0; b < layout.buckets.size(); ++b) {
        const Bucket& bucket = layout.buckets[b];
        if (pause_us > 0) ::usleep(static_cast<useconds_t>(pause_us / layout.buckets.size()));
        for (size_t i = 0; i < own.size(); ++i) {   // blocks of one target are adjacent
            const uint32_t target = exchange->target_of(own[i]);
            const Plan plan = exchange->plan(step, b, target);
            GC_TRY(codec->add(0, {step, own[i]}, b, gradients[i].part(bucket.offset * 4, bucket.count * 4), plan));
            plan.record->state = 0;
            plan.record->loss = 0;
            sums_word = plan.word;
            if (i + 1 == own.size() || exchange->target_of(own[i + 1]) != target) GC_TRY(codec->finish(step, b, plan));
        }
        station.post({Event::Ready{step, b}});
        sched_yield();   // as training does
    }
    return {};
}

// Waits for all sums of a step.
Status AllreduceCell::collect(StepId step, uint64_t start_us) {
    size_t remaining = sums.size();
    auto take = [&](const Completion& each) {
        if (each.step != step) return false;
        sums[each.id] = each.sum;
        --remaining;
        return true;
    };
    std::erase_if(early, take);
    for (; remaining > 0; completions.clear()) {
        if (Status status = station.wait(&completions, start_us + deadline_us); !status.ok()) {
            if (status.code != Code::deadline) return status;
            station.post(command_event<ExchangeCommand>({ExchangeCommand::Explain{step}}));
            const char* missing =
                station.wait(&completions, clock_us() + 1'000'000).ok() ? completions.front().status.what : "nothing is missing";
            return fail(Code::deadline, "{}: no sum within {} s: {}", kind.name, deadline_us / 1'000'000, missing);
        }
        for (const Completion& each : completions) {
            GC_TRY(each.status);
            if (!take(each)) early.push_back(each);
        }
    }
    return {};
}

void AllreduceCell::release(StepId step) { station.post(command_event<ExchangeCommand>({ExchangeCommand::Release{step}})); }

uint64_t page_faults() {
    rusage usage;
    ::getrusage(RUSAGE_SELF, &usage);
    return static_cast<uint64_t>(usage.ru_minflt + usage.ru_majflt);
}

Status AllreduceCell::repeat(int64_t run, nlohmann::json& mine) {
    const BenchOptions& options = bench.options;
    const StepId step = step_of(run);
    const std::string interface = bench.nodes[bench.rendezvous.rank()]["interface"];
    const LinkCounters& counters = station.counters();
    // Before the barrier: another rank may leave it first and send.
    const uint64_t sent = counters.bytes_sent, received = counters.bytes_received;
    const InterfaceBytes wire = interface_bytes(interface);
    GC_TRY(bench.rendezvous.barrier(deadline_us + Rendezvous::silence_us));
    const uint64_t faults = page_faults(), cpu = process_cpu_us(), network = station.network_cpu_us(), start = clock_us();
    GC_TRY(contribute(step, 0));
    GC_TRY(collect(step, start));
    const uint64_t took = clock_us() - start, busy = process_cpu_us() - cpu, networking = station.network_cpu_us() - network;
    const uint64_t faulted = page_faults() - faults;
    GC_TRY(bench.rendezvous.barrier());
    const InterfaceBytes wired = interface_bytes(interface);
    uint64_t wrong = 0;
    if (run < 0 || run + 1 == options.repeat) {
        // The sums of `fixed` can exceed int32; the others' are words of their own type.
        GC_TRY(wrong_in(step, options.quantiser == Quantiser::fixed ? Word::i64 : sums_word, &wrong));
    }
    uint64_t raw = 0;
    if (bench.rate == 0 && n > 1) {
        GC_TRY(bench.rendezvous.barrier());
        const uint64_t begun = clock_us();
        GC_TRY(plain.exchange(bound_bytes, bound_bytes));
        raw = clock_us() - begun;
    }
    release(step);
    mine["wrong"] = mine.value("wrong", uint64_t{0}) + wrong;
    if (step == 0) mine["first"] = took;
    if (run < 0) return {};
    mine["took"].push_back(took), mine["cpu"].push_back(busy), mine["network"].push_back(networking), mine["raw"].push_back(raw);
    auto add = [&](const char* key, uint64_t value) { mine[key] = mine.value(key, uint64_t{0}) + value; };
    add("sent", counters.bytes_sent - sent), add("received", counters.bytes_received - received);
    add("wire_sent", wired.sent - wire.sent), add("wire_received", wired.received - wire.received), add("faults", faulted);
    return {};
}

// Steps back to back, as in a job: a rank that has its sums begins the next step, whose gradient takes up to --skew.  "took" is the time
// from the barrier before the first step to each step's end at this rank.
Status AllreduceCell::train(nlohmann::json& mine) {
    const BenchOptions& options = bench.options;
    const std::string interface = bench.nodes[bench.rendezvous.rank()]["interface"];
    const LinkCounters& counters = station.counters();
    const StepId first = step_of(0), end = step_of(options.repeat);
    std::vector<uint64_t> ended(options.repeat);
    const uint64_t sent = counters.bytes_sent, received = counters.bytes_received;
    const InterfaceBytes wire = interface_bytes(interface);
    GC_TRY(bench.rendezvous.barrier((deadline_us + options.skew_us) * options.repeat + Rendezvous::silence_us));
    const uint64_t faults = page_faults(), cpu = process_cpu_us(), network = station.network_cpu_us(), start = clock_us();
    for (StepId step = first; step < end; ++step) {
        const uint64_t begun = clock_us();
        while (!exchange->begun(step)) {
            if (clock_us() > begun + deadline_us) return fail(Code::deadline, "{}: step {} cannot begin", kind.name, step);
            ::usleep(50);
        }
        const Philox draw = random4(Purpose::test, seed, step, bench.rendezvous.rank());
        GC_TRY(contribute(step, static_cast<uint64_t>(uniform(draw[0]) * static_cast<float>(options.skew_us))));
        GC_TRY(collect(step, begun));
        ended[step - first] = clock_us() - start;
        if (step > first) release(step - 1);
    }
    const uint64_t faulted = page_faults() - faults, busy = process_cpu_us() - cpu, networking = station.network_cpu_us() - network;
    GC_TRY(bench.rendezvous.barrier());
    const InterfaceBytes wired = interface_bytes(interface);
    uint64_t wrong = 0;
    GC_TRY(wrong_in(end - 1, options.quantiser == Quantiser::fixed ? Word::i64 : sums_word, &wrong));
    release(end - 1);
    mine["wrong"] = mine.value("wrong", uint64_t{0}) + wrong;
    mine["took"] = ended;
    mine["raw"] = std::vector<uint64_t>(options.repeat);
    mine["cpu"] = std::vector<uint64_t>(1, busy / options.repeat);
    mine["network"] = std::vector<uint64_t>(1, networking / options.repeat);
    mine["sent"] = counters.bytes_sent - sent;
    mine["received"] = counters.bytes_received - received;
    mine["faults"] = faulted;
    mine["wire_sent"] = wired.sent - wire.sent;
    mine["wire_received"] = wired.received - wire.received;
    return {};
}

// The slowest rank's time of each repetition.
std::vector<double> slowest(const std::vector<nlohmann::json>& all, const char* key, uint32_t repeat) {
    std::vector<double> times(repeat);
    for (const auto& each : all)
        for (uint32_t run = 0; run < repeat; ++run) times[run] = std::max(times[run], each[key][run].get<double>());
    return times;
}

Status cell_run(Bench& bench, const ExchangeKind& kind, const Load& load, nlohmann::json* row) {
    const BenchOptions& options = bench.options;
    const uint64_t bytes = load.layout.elements * 4;
    AllreduceCell cell(bench, kind, load.layout);
    GC_TRY(cell.open());
    nlohmann::json mine = nlohmann::json::object();
    // Repetition -1 - warmup opens the streams; their handshakes are not measured.  The repetitions run in a thread of their own, like a
    // job's trainer.  It is created after the network thread, which would inherit its scheduling.
    Status status;
    std::thread([&] {
        yield_to_network();
        const int64_t end = options.skew_us ? 0 : options.repeat;
        for (int64_t run = -1 - static_cast<int64_t>(options.warmup); run < end && status.ok(); ++run) status = cell.repeat(run, mine);
        if (options.skew_us && status.ok()) status = cell.train(mine);
    }).join();
    GC_TRY(status);
    const BulkCounters& bulk = cell.bulk_counters;
    mine["packets"] = bulk.packets_sent.load();
    mine["repairs"] = bulk.repairs_sent.load();
    mine["came"] = bulk.packets_received.load();
    mine["lost"] = bulk.lost.load();
    std::vector<nlohmann::json> all;
    const std::string path = cell.station.path();
    GC_TRY(bench.rendezvous.gather(mine, &all));
    GC_TRY(cell.station.leave());

    const double n = cell.n, repeat = options.repeat, size = static_cast<double>(bytes);
    std::vector<double> times = slowest(all, "took", options.repeat);
    if (options.skew_us)   // time from one step's end to the next
        for (size_t run = times.size(); run-- > 1;) times[run] -= times[run - 1];
    double first_us = 0;
    for (const auto& each : all) first_us = std::max(first_us, each["first"].get<double>());
    auto most = [&](const char* key) {   // bytes of a repetition at the busiest rank
        double result = 0;
        for (const auto& each : all) result = std::max(result, each[key].get<double>() / repeat);
        return result;
    };
    auto sum = [&](const char* key) {
        double result = 0;
        for (const auto& each : all) result += each[key].get<double>();
        return result;
    };
    auto typical = [&](const char* key) {   // of a repetition: the median, averaged over the ranks
        double result = 0;
        for (const auto& each : all) result += percentile(each[key].get<std::vector<double>>(), 0.5) / n;
        return result;
    };
    const double p50 = std::max(percentile(times, 0.5), 1.0), bound = static_cast<double>(cell.bound_bytes);
    const double bound_us =
        bench.rate ? bound * 8e6 / static_cast<double>(bench.rate) : percentile(slowest(all, "raw", options.repeat), 0.5);
    const bool bound_known = bench.rate > 0 || options.skew_us == 0;   // steps back to back have no figure of plain sockets
    auto if_known = [](bool known, double value) { return known ? nlohmann::json(value) : nlohmann::json(); };
    *row = {{"exchange", kind.name},
            {"layout", load.name.empty() ? nlohmann::json() : nlohmann::json(load.name)},
            {"size_bytes", bytes},
            {"d", cell.d},
            {"blocks", cell.blocks},
            {"link", path},
            {"first_us", first_us},
            {"p50_us", p50},
            {"p99_us", percentile(times, 0.99)},
            {"max_us", percentile(times, 1)},
            {"algbw_bytes_per_s", size / p50 * 1e6},
            {"busbw_bytes_per_s", size / p50 * 1e6 * 2 * (n - 1) / n},
            {"sent_bytes", most("sent")},
            {"received_bytes", most("received")},
            {"wire_sent_bytes", if_known(!bench.alone, most("wire_sent"))},
            {"wire_received_bytes", if_known(!bench.alone, most("wire_received"))},
            {"bound_bytes", cell.bound_bytes},
            {"bound_us", if_known(bound_known, bound_us)},
            {"percent_of_bound", if_known(cell.n > 1 && bound_known, 100 * bound_us / p50)},
            {"cpu_us", typical("cpu")},
            {"network_us", typical("network")},
            {"cpu_s_per_gb", typical("cpu") * 1e3 / size},
            {"lost_percent", if_known(cell.datagrams, 100 * sum("lost") / std::max(1.0, sum("lost") + sum("came")))},
            {"repair_percent", if_known(cell.datagrams, 100 * sum("repairs") / std::max(1.0, sum("packets")))},
            {"page_faults", most("faults") * repeat},
            {"wrong_elements", static_cast<uint64_t>(sum("wrong"))},
            {"times_us", times}};
    for (const auto& each : all)
        (*row)["ranks"].push_back(
            {{"sent_bytes", each["sent"].get<double>() / repeat},
             {"received_bytes", each["received"].get<double>() / repeat},
             {"wire_sent_bytes", if_known(!bench.alone, each["wire_sent"].get<double>() / repeat)},
             {"wire_received_bytes", if_known(!bench.alone, each["wire_received"].get<double>() / repeat)},
             {"lost_percent", if_known(cell.datagrams, 100 * each["lost"].get<double>() /
                                                           std::max(1.0, each["lost"].get<double>() + each["came"].get<double>()))}});
    return {};
}

}   // namespace

// ---- shared with simulate ------------------------------------------------------------------------------------------------------

// The fewest blocks that the placement allows: cssgd cuts a mini-batch in C(n, r), the others in n.  Weights need more to distribute.
uint32_t blocks_of(const ExchangeKind& kind, const BenchOptions& options, uint32_t n) {
    const uint64_t shared = kind.shares ? binomial(n, options.r) : n;   // r > n: install() refuses it
    const auto least = static_cast<uint32_t>(std::clamp<uint64_t>(shared, 1, blocks_max));
    return options.weights.empty() || !kind.weighs ? least : std::min(blocks_max, least * 8);
}

View view_of(uint32_t n) {
    View view;
    view.members.resize(n);
    for (Rank rank = 0; rank < n; ++rank) view.members[rank].name = fmt::format("rank-{}", rank);
    return view;
}

int64_t word_at(Word word, Buffer words, uint64_t i) {
    switch (word) {
        case Word::i16: return words.as<int16_t>()[i];
        case Word::i32: return words.as<int32_t>()[i];
        case Word::i64: return words.as<int64_t>()[i];
    }
    return 0;
}

ExchangeConfig exchange_config(const BenchOptions& options, const Layout& layout, Rank self, uint32_t blocks, uint32_t segment_bytes) {
    return {.layout = &layout,
            .self = self,
            .blocks = blocks,
            .quantiser = options.quantiser,
            .segment_bytes = segment_bytes,
            .m = options.m,
            .s = options.s,
            .r = options.r,
            .weights = options.weights,
            .servers = options.servers};
}

Status exchange_check(const ExchangeKind& kind, const BenchOptions& options, uint32_t n) {
    const Layout layout{1, {{0, 1, "all"}}, {{0, 1, 0, 1}}};
    const uint32_t blocks = blocks_of(kind, options, n);
    if (options.quantiser == Quantiser::auto16 && blocks > 64)
        return fail(Code::invalid, "{} of {} nodes cuts a mini-batch in {} blocks, auto16 allows 64: use auto32", kind.name, n, blocks);
    Arena arena;
    return kind.create(exchange_config(options, layout, 0, blocks, segment_bytes_stream))->install(view_of(n), arena);
}

Status allreduce_check(const BenchOptions& options) {
    std::vector<Load> loads;
    if (!options.layouts.empty()) GC_TRY(loads_of(options, &loads));
    for (const std::string& name : options.exchanges) {
        const ExchangeKind* kind;
        GC_TRY(exchange_find(name, options.quantiser, &kind));
        GC_TRY(exchange_check(*kind, options, options.nodes));
    }
    return {};
}

Status allreduce_run(Bench& bench, bool* wrong) {
    const BenchOptions& options = bench.options;
    BenchReport report(bench, allreduce_columns,
                       fmt::format("quantiser {}, m = {}, s = {}, r = {}, servers {}; {}", quantiser_name(options.quantiser), options.m,
                                   options.s, options.r, options.servers,
                                   options.skew_us ? "time of a step, back to back" : "time until the slowest rank has the sum"));
    report.set("quantiser", quantiser_name(options.quantiser));
    report.set("m", options.m);
    report.set("s", options.s);
    report.set("r", options.r);
    report.set("servers", options.servers);
    if (options.skew_us) report.set("skew_us", options.skew_us);
    std::vector<Load> loads;
    GC_TRY(loads_of(options, &loads));
    for (const Load& load : loads) {
        const uint64_t bytes = load.layout.elements * 4;
        nlohmann::json ring;
        std::vector<nlohmann::json> rows;
        for (const std::string& name : options.exchanges) {
            const ExchangeKind* kind;
            GC_TRY(exchange_find(name, options.quantiser, &kind));
            nlohmann::json row;
            GC_TRY(cell_run(bench, *kind, load, &row));
            *wrong |= row["wrong_elements"] != 0;
            report.row(row);
            rows.push_back(std::move(row));
        }
        for (const auto& row : rows)
            if (row["exchange"] == "ring") ring = row;
        for (const auto& row : rows) {
            const double d = row["d"];
            if (ring.is_null() || d <= 1) continue;
            const double gain = ring["p50_us"].get<double>() - row["p50_us"].get<double>(), us = gain / (d - 1);
            const std::string name = row["exchange"];
            report.note("break_even", {{"exchange", name}, {"size_bytes", bytes}, {"gradient_us", us}},
                        us > 0 ? fmt::format("{} bytes: {} beats ring while one block's gradient takes less than {:.3f} ms ({:.0f} are "
                                             "computed instead of one)",
                                             bytes, name, us / 1e3, d)
                               : fmt::format("{} bytes: {} never beats ring here, however fast gradients are", bytes, name));
        }
        if (options.command == "ps")
            for (const auto& row : rows) {
                const auto view = [&](bool server, const char* key) {
                    double most = 0;
                    for (Rank rank = 0; rank < bench.rendezvous.ranks(); ++rank)
                        if ((rank < options.servers) == server) most = std::max(most, row["ranks"][rank][key].get<double>());
                    return most;
                };
                nlohmann::json seen{{"size_bytes", bytes},
                                    {"server_sent_bytes", view(true, "sent_bytes")},
                                    {"server_received_bytes", view(true, "received_bytes")},
                                    {"worker_sent_bytes", view(false, "sent_bytes")},
                                    {"worker_received_bytes", view(false, "received_bytes")}};
                report.note("servers_view", seen,
                            fmt::format("{} bytes: a server sends {:.0f} B and receives {:.0f} B, another node {:.0f} B and {:.0f} B",
                                        bytes, view(true, "sent_bytes"), view(true, "received_bytes"), view(false, "sent_bytes"),
                                        view(false, "received_bytes")));
            }
    }
    report.close(!*wrong, "exact: every element at every rank is right", "WRONG: sums differ from the reference");
    return {};
}

}   // namespace gradcast
