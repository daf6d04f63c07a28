// multicast and p2p: buffers are sent, nothing is added.
#include <algorithm>
#include <cstring>

#include "bench/comm/bench.h"
#include "bench/comm/plain.h"
#include "runtime/core/arena.h"
#include "runtime/core/clock.h"
#include "transport/bulk/bulk.h"
#include "transport/wire/packet.h"

namespace gradcast {
namespace {

const Column multicast_columns[] = {{"senders", "senders", 1, 0, 7},
                                    {"size_bytes", "size B", 1, 0, 10},
                                    {"p50_us", "p50 ms", 1e3, 3, 9},
                                    {"p99_us", "p99 ms", 1e3, 3, 9},
                                    {"max_us", "max ms", 1e3, 3, 9},
                                    {"goodput_bytes_per_s", "goodput MB/s", 1e6, 1, 12},
                                    {"bound_us", "bound ms", 1e3, 3, 9},
                                    {"percent_of_bound", "% of bound", 1, 1, 10},
                                    {"sent_bytes", "sent B", 1, 0, 10},
                                    {"received_bytes", "recv B", 1, 0, 10},
                                    {"wire_sent_bytes", "wire tx B", 1, 0, 10},
                                    {"wire_received_bytes", "wire rx B", 1, 0, 10},
                                    {"cpu_us", "cpu ms", 1e3, 2, 8},
                                    {"lost_percent_least", "lost % least", 1, 3, 12},
                                    {"lost_percent_most", "lost % most", 1, 3, 11},
                                    {"repair_percent", "repair %", 1, 3, 8},
                                    {"wrong_elements", "wrong", 1, 0, 6}};
const Column p2p_columns[] = {{"path", "path", 1, 0, 9},
                              {"size_bytes", "size B", 1, 0, 10},
                              {"p50_us", "p50 us", 1, 1, 9},
                              {"p99_us", "p99 us", 1, 1, 9},
                              {"max_us", "max us", 1, 1, 9},
                              {"goodput_bytes_per_s", "MB/s", 1e6, 1, 9},
                              {"bound_us", "bound us", 1, 1, 9},
                              {"percent_of_bound", "% of bound", 1, 1, 10},
                              {"sent_bytes", "sent B", 1, 0, 10},
                              {"received_bytes", "recv B", 1, 0, 10},
                              {"wire_sent_bytes", "wire tx B", 1, 0, 10},
                              {"wire_received_bytes", "wire rx B", 1, 0, 10},
                              {"cpu_us", "cpu ms", 1e3, 2, 8},
                              {"lost_percent_most", "lost %", 1, 3, 7},
                              {"repair_percent", "repair %", 1, 3, 8},
                              {"wrong_elements", "wrong", 1, 0, 6}};

// On Go sends this rank's buffer, and receives the others', one per step and sender.  Completions: the sender whose
// buffer has arrived; this rank, when its own has arrived everywhere.
class Courier final : public Protocol {
public:
    struct Go {
        StepId step = 0;
        RankSet to;
    };
    Courier(Rank self, uint32_t ranks, uint64_t bytes, uint32_t segment_bytes, Arena& arena)
        : self_(self), bytes_(bytes), segment_bytes_(segment_bytes), in_(ranks), steps_(ranks), missing_(ranks, bytes) {
        for (Buffer& buffer : in_) arena.plan("buffers", bytes, &buffer);
    }
    Buffer buffer(Rank sender) const { return in_[sender]; }

    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override {
        const auto body = body_of<DataBody>(packet);
        const uint64_t at = uint64_t{body.index.get()} * segment_bytes_;
        if (packet.type != PacketType::words || packet.sender == self_ || packet.sender >= in_.size()) return Landing::drop;
        if (at >= bytes_ || bytes != std::min<uint64_t>(segment_bytes_, bytes_ - at) || body.step.get() < steps_[packet.sender])
            return Landing::drop;
        if (body.step.get() > steps_[packet.sender]) return Landing::later;
        *place = in_[packet.sender].part(at, bytes);
        return Landing::place;
    }
    void on(std::span<const Event> events, Actions& actions) override {
        for (const Event& event : events) {
            if (const auto* command = event.is<Event::Command>()) send(command->as<Go>(), actions);
            if (const auto* received = event.is<Event::Received>()) take(*received->packet, actions);
            if (event.is<Event::Sent>()) complete(self_, {}, actions);
            if (const auto* lost = event.is<Event::PeerLost>()) complete(lost->rank, lost->status, actions);
        }
    }

private:
    void send(const Go& go, Actions& actions) {
        DataBody body{};
        body.step.set(static_cast<uint32_t>(go.step));
        body.phase = static_cast<uint8_t>(Phase::reduce);
        actions.sends.push_back(
            {.to = go.to, .type = PacketType::words, .body = body_bytes(body), .payload = in_[self_], .ticket = go.step + 1});
    }
    void take(const Packet& packet, Actions& actions) {
        const Rank sender = packet.sender;
        missing_[sender] -= packet.payload.bytes;
        if (missing_[sender] > 0) return;
        missing_[sender] = bytes_;
        ++steps_[sender];
        complete(sender, {}, actions);
    }
    static void complete(Rank rank, const Status& status, Actions& actions) {
        Completion completion;
        completion.id = rank;
        completion.status = status;
        actions.completions.push_back(completion);
    }

    const Rank self_;
    const uint64_t bytes_;
    const uint32_t segment_bytes_;
    std::vector<Buffer> in_;          // by sender; this rank's is the one it sends
    std::vector<uint32_t> steps_;     // by sender: the step of its next buffer
    std::vector<uint64_t> missing_;   // by sender: missing bytes of that buffer
};

struct TransferCell {
    TransferCell(Bench& bench_, uint64_t bytes_, bool datagrams)
        : bench(bench_),
          self(bench_.rendezvous.rank()),
          n(bench_.rendezvous.ranks()),
          bytes(bytes_),
          segment(datagrams                      ? bench_.datagram_bytes
                  : bench_.options.segment_bytes ? bench_.options.segment_bytes
                                                 : segment_bytes_stream),
          courier(self, n, bytes_, segment, arena),
          station(bench_) {
        if (datagrams)
            bulk = bulk_create({.self = self, .ranks = n, .segment_bytes = segment, .rate_bytes_per_s = bench_.options.pace / 8}, courier,
                               arena, &counters);
        deadline_us = deadline_least_us + (bench.rate ? bytes * n * 8 * 1'000'000 / bench.rate * 4 : 0);
    }

    // A rank's content: its rank, and counting words.
    static uint32_t word(Rank sender, uint64_t i) { return (sender + 1) * 0x9E3779B1u + static_cast<uint32_t>(i); }

    Status open() {
        GC_TRY(arena.seal());
        others = ranks_but(self, n);
        for (uint64_t i = 0; i < bytes / 4; ++i) courier.buffer(self).as<uint32_t>()[i] = word(self, i);
        if (bench.options.spoil && self == 0) courier.buffer(self).as<uint32_t>()[bytes / 8] ^= 1;
        return station.open(bulk ? *bulk : static_cast<Protocol&>(courier), arena.whole(), bulk != nullptr);
    }
    void send(StepId step, RankSet to) { station.post(command_event(Courier::Go{step, to})); }
    // Waits until `arrivals` buffers have arrived and, with `own`, the own one has arrived everywhere.  *arrived_us: time of the last
    // arrival.
    Status wait(uint32_t arrivals, bool own, uint64_t* arrived_us) {
        const uint64_t end = clock_us() + deadline_us;
        for (;;) {
            if (arrivals > 0 && arrived >= arrivals) {
                arrived -= arrivals;
                arrivals = 0;
                *arrived_us = clock_us();
            }
            if (own && own_done) own = own_done = false;
            if (arrivals == 0 && !own) return {};
            ready.clear();
            if (Status status = station.wait(&ready, end); !status.ok()) {
                if (status.code != Code::deadline) return status;
                return fail(Code::deadline, "{} of {} buffers came within {} s{}", arrived, arrivals, deadline_us / 1'000'000,
                            own ? ", and the own one is not everywhere" : "");
            }
            for (const Completion& each : ready) {
                GC_TRY(each.status);
                if (each.id == self) own_done = true;
                else ++arrived;
            }
        }
    }
    void forget(Rank sender) { std::memset(courier.buffer(sender).host, 0, bytes); }
    uint64_t wrong(Rank sender) const {
        uint64_t bad = 0;
        for (uint64_t i = 0; i < bytes / 4; ++i) bad += courier.buffer(sender).as<uint32_t>()[i] != word(sender, i);
        return bad;
    }

    /// Ranks 0 .. senders() - 1 send.
    uint32_t senders() const { return bench.options.command == "p2p" ? 2 : bench.options.all_send ? n : 1; }

    Bench& bench;
    const Rank self;
    const uint32_t n;
    const uint64_t bytes;
    const uint32_t segment;
    uint64_t deadline_us = 0;
    Arena arena;
    BulkCounters counters;
    Courier courier;
    std::unique_ptr<Protocol> bulk;
    std::vector<uint64_t> others;
    std::vector<Completion> ready;
    uint32_t arrived = 0;
    bool own_done = false;
    PlainRing plain;
    Station station;   // last member: its thread ends first
};

// A repetition at this rank.  *took_us: the measured time; 0: this rank measures nothing.
Status spread(TransferCell& cell, StepId step, uint64_t* took_us) {
    const bool sends = cell.self < cell.senders();
    const uint64_t start = clock_us();
    uint64_t end = start;
    if (sends) cell.send(step, {0, cell.others.data()});
    GC_TRY(cell.wait(cell.senders() - sends, sends, &end));
    *took_us = end - start;
    return {};
}

// A round trip; the result is half of it.
Status bounce(TransferCell& cell, StepId step, uint64_t* took_us) {
    const uint64_t start = clock_us();
    uint64_t end = 0;
    if (cell.self == 0) cell.send(step, {.rank = 1});
    GC_TRY(cell.wait(1, false, &end));
    if (cell.self == 1) cell.send(step, {.rank = 0});
    else *took_us = (end - start + 1) / 2;
    return cell.wait(0, true, &end);
}

// One repetition over plain TCP sockets, if the link's rate is unknown.
Status plain_spread(TransferCell& cell) {
    const uint64_t in = cell.bytes * (cell.senders() == 1 ? 1 : cell.n - 1);
    return cell.plain.exchange(in, in);
}
Status plain_bounce(TransferCell& cell) {
    const bool first = cell.self == 0;
    GC_TRY(cell.plain.exchange(first ? cell.bytes : 0, first ? 0 : cell.bytes));
    return cell.plain.exchange(first ? 0 : cell.bytes, first ? cell.bytes : 0);
}

Status cell_run(Bench& bench, uint64_t bytes, bool datagrams, nlohmann::json* row) {
    const BenchOptions& options = bench.options;
    const bool there_and_back = options.command == "p2p", plain = bench.rate == 0;
    TransferCell cell(bench, bytes, datagrams);
    GC_TRY(cell.open());
    if (plain) GC_TRY(cell.plain.open(bench));
    std::vector<double> took(options.repeat), raw(options.repeat), cpu(options.repeat);
    uint64_t wrong = 0, sent = 0, received = 0, wire_sent = 0, wire_received = 0;
    const LinkCounters& counters = cell.station.counters();
    const std::string interface = bench.nodes[cell.self]["interface"];
    // Repetition -1 - warmup opens the streams.
    for (int64_t run = -1 - static_cast<int64_t>(options.warmup); run < options.repeat; ++run) {
        const bool look = run < 0 || run + 1 == options.repeat;
        for (Rank rank = 0; look && rank < cell.senders(); ++rank)
            if (rank != cell.self) cell.forget(rank);
        // Before the barrier: another rank may leave it first and send.
        const uint64_t out = counters.bytes_sent, in = counters.bytes_received;
        const InterfaceBytes wire = interface_bytes(interface);
        GC_TRY(bench.rendezvous.barrier(cell.deadline_us + Rendezvous::silence_us));
        const uint64_t busy = process_cpu_us();
        const auto step = static_cast<StepId>(run + 1 + options.warmup);
        uint64_t took_us = 0, raw_us = 0;
        GC_TRY(there_and_back ? bounce(cell, step, &took_us) : spread(cell, step, &took_us));
        const uint64_t worked = process_cpu_us() - busy;
        GC_TRY(bench.rendezvous.barrier());
        const InterfaceBytes wired = interface_bytes(interface);
        for (Rank rank = 0; look && rank < cell.senders(); ++rank)
            if (rank != cell.self) wrong += cell.wrong(rank);
        if (plain) {
            GC_TRY(bench.rendezvous.barrier());
            const uint64_t begun = clock_us();
            GC_TRY(there_and_back ? plain_bounce(cell) : plain_spread(cell));
            raw_us = (clock_us() - begun) / (there_and_back ? 2 : 1);
        }
        if (run < 0) continue;
        took[run] = static_cast<double>(took_us);
        raw[run] = static_cast<double>(raw_us);
        cpu[run] = static_cast<double>(worked);
        sent += counters.bytes_sent - out;
        received += counters.bytes_received - in;
        wire_sent += wired.sent - wire.sent;
        wire_received += wired.received - wire.received;
    }
    const std::string path = cell.station.path();
    std::vector<nlohmann::json> all;
    GC_TRY(bench.rendezvous.gather({{"took", took},
                                    {"raw", raw},
                                    {"cpu", percentile(cpu, 0.5)},
                                    {"wrong", wrong},
                                    {"sent", sent},
                                    {"received", received},
                                    {"wire_sent", wire_sent},
                                    {"wire_received", wire_received},
                                    {"packets", cell.counters.packets_sent.load()},
                                    {"repairs", cell.counters.repairs_sent.load()},
                                    {"came", cell.counters.packets_received.load()},
                                    {"mended", cell.counters.repaired.load()},
                                    {"lost", cell.counters.lost.load()}},
                                   &all));
    GC_TRY(cell.station.leave());

    const double repeat = options.repeat;
    auto if_known = [](bool known, double value) { return known ? nlohmann::json(value) : nlohmann::json(); };
    // The bound counts the bytes that one rank receives; p2p counts one direction.
    const double bytes_in = static_cast<double>(bytes) * (there_and_back || cell.senders() == 1 ? 1 : cell.n - 1);
    std::vector<double> times(options.repeat), plain_times(options.repeat), losses;
    double packets = 0, repairs = 0, cpu_us = 0;
    uint64_t wrong_elements = 0;
    nlohmann::json ranks;
    auto most = [&](const char* key) {
        double result = 0;
        for (const auto& each : all) result = std::max(result, each[key].get<double>() / repeat);
        return result;
    };
    for (const auto& each : all) {
        const auto own = each["took"].get<std::vector<double>>(), own_plain = each["raw"].get<std::vector<double>>();
        for (uint32_t run = 0; run < options.repeat; ++run) {
            times[run] = std::max({1.0, times[run], own[run]});
            plain_times[run] = std::max(plain_times[run], own_plain[run]);
        }
        const double lost = each["lost"], came = each["came"], typical = percentile(own, 0.5);
        if (lost + came > 0) losses.push_back(100 * lost / (lost + came));
        packets += each["packets"].get<double>();
        repairs += each["repairs"].get<double>();
        cpu_us += each["cpu"].get<double>() / static_cast<double>(all.size());
        wrong_elements += each["wrong"].get<uint64_t>();
        ranks.push_back({{"sent_bytes", each["sent"].get<double>() / repeat},
                         {"received_bytes", each["received"].get<double>() / repeat},
                         {"wire_sent_bytes", if_known(!bench.alone, each["wire_sent"].get<double>() / repeat)},
                         {"wire_received_bytes", if_known(!bench.alone, each["wire_received"].get<double>() / repeat)}});
        if (there_and_back) continue;
        ranks.back()["goodput_bytes_per_s"] =
            if_known(typical > 0, bytes_in / std::max(typical, 1.0) * 1e6);   // unknown for ranks that only send
        ranks.back()["lost_percent"] = if_known(lost + came > 0, 100 * lost / (lost + came));
        ranks.back()["packets_mended"] = each["mended"];
        ranks.back()["repairs_sent"] = each["repairs"];
    }
    const double p50 = std::max(percentile(times, 0.5), 1.0);
    const double bound_us = plain ? percentile(plain_times, 0.5) : bytes_in * 8e6 / static_cast<double>(bench.rate);
    *row = {{"path", datagrams ? "datagrams" : "streams"},
            {"link", path},
            {"senders", cell.senders()},
            {"size_bytes", bytes},
            {"p50_us", p50},
            {"p99_us", percentile(times, 0.99)},
            {"max_us", percentile(times, 1)},
            {"goodput_bytes_per_s", bytes_in / p50 * 1e6},
            {"bound_bytes", static_cast<uint64_t>(bytes_in)},
            {"bound_us", bound_us},
            {"percent_of_bound", 100 * bound_us / p50},
            {"sent_bytes", most("sent")},
            {"received_bytes", most("received")},
            {"wire_sent_bytes", if_known(!bench.alone, most("wire_sent"))},
            {"wire_received_bytes", if_known(!bench.alone, most("wire_received"))},
            {"cpu_us", cpu_us},
            {"lost_percent_least", if_known(!losses.empty(), losses.empty() ? 0 : percentile(losses, 0))},
            {"lost_percent_most", if_known(!losses.empty(), losses.empty() ? 0 : percentile(losses, 1))},
            {"repair_percent", if_known(datagrams, 100 * repairs / std::max(packets, 1.0))},
            {"wrong_elements", wrong_elements},
            {"ranks", ranks},
            {"times_us", times}};
    return {};
}

}   // namespace

Status multicast_run(Bench& bench, bool* wrong) {
    BenchReport report(bench, multicast_columns, "a buffer to all others; time until the slowest has it");
    for (uint64_t bytes : bench.options.sizes) {
        nlohmann::json row;
        GC_TRY(cell_run(bench, bytes, true, &row));
        *wrong |= row["wrong_elements"] != 0;
        report.row(std::move(row));
    }
    report.close(!*wrong, "exact: every element at every rank is right", "WRONG: elements differ from what was sent");
    return {};
}

Status p2p_run(Bench& bench, bool* wrong) {
    BenchReport report(bench, p2p_columns, "half of the way there and back, one message at a time");
    for (uint64_t bytes : bench.options.sizes)
        for (bool datagrams : {false, true}) {
            if (datagrams && !bench.datagrams) continue;
            nlohmann::json row;
            GC_TRY(cell_run(bench, bytes, datagrams, &row));
            *wrong |= row["wrong_elements"] != 0;
            report.row(std::move(row));
        }
    report.close(!*wrong, "exact: every element at both ranks is right", "WRONG: elements differ from what was sent");
    return {};
}

}   // namespace gradcast
