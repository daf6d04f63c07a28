// Coded: cutting, memory, records and messages.
#include "transport/exchange/coded.h"

#include <utility>

#include "transport/exchange/counting.h"

namespace gradcast {

Placement Coded::place(const View& view, std::span<const uint32_t> samples_of_block) const {
    Placement placement = ExchangeBase::place(view, samples_of_block);
    const uint32_t d = codes_ ? config_.m + config_.s : 1;
    for (Rank k = 0; k < view.n(); ++k)
        for (uint32_t i = 1; i < d && d <= view.n(); ++i) placement.holders[k].push_back((k + i) % view.n());
    if (local(view.n())) return {{0, placement.bounds.back()}, {placement.holders[0]}};   // one super-block
    return placement;
}

uint32_t Coded::target_of(uint32_t block) const {
    if (!combines()) return 0;
    const auto super_block = static_cast<uint32_t>(((uint64_t{block} + 1) * n() - 1) / config_.blocks);
    const uint32_t target = (super_block + n() - code_.held(config_.self, 0)) % n();
    GC_ASSERT(target < targets());
    return target;
}

Word Coded::word_of(Rank rank) const {
    if (config_.quantiser == Quantiser::auto16) return Word::i16;
    // `fixed` words of one block fit int32 and travel so.
    const bool narrow = blocks_of(rank) == 1 && one_gradient(layout_);
    return config_.quantiser == Quantiser::auto32 || narrow ? Word::i32 : Word::i64;
}

// ---- memory --------------------------------------------------------------------------------------------------------------------

Status Coded::plan_memory(Arena& arena) {
    GC_ASSERT(config_.segment_bytes % 8 == 0 && config_.piece_words > 0);
    GC_ASSERT(!codes_ || config_.quantiser != Quantiser::fixed);
    if (codes_) {
        code_ = {n(), config_.m, config_.s, config_.quantiser == Quantiser::auto16 ? prime_16 : prime_32};
        GC_TRY(code_.check());
    }
    if (who_ == Reducers::servers && (config_.servers < 1 || config_.servers > n()))
        return fail(Code::invalid, "{} servers of {} ranks: 1 to {} are possible", config_.servers, n(), n());
    sum_word_ = config_.quantiser == Quantiser::fixed ? Word::i64 : config_.quantiser == Quantiser::auto16 ? Word::i16 : Word::i32;

    plan_records(place(view_, std::vector<uint32_t>(config_.blocks)).bounds, arena);
    losses_ = 0;
    usual_us_ = 0;
    uint32_t widest = 0;
    for (Rank r = 0; r < n(); ++r) widest = std::max(widest, width(r));

    cuts_.clear();
    Cut next{};
    uint64_t received = 0;
    uint32_t have = 0, gathered = 0;
    for (uint32_t b = 0; b < layout_.buckets.size(); ++b) {
        const uint64_t count = layout_.buckets[b].count, share = uint64_t{reducers()} * m();
        const uint64_t pieces = std::max<uint64_t>(1, (count + share * config_.piece_words - 1) / (share * config_.piece_words));
        if (pieces * reducers() > UINT16_MAX)
            return fail(Code::invalid, "a bucket of {} elements makes more parts than a packet can name ({}): make it smaller", count,
                        UINT16_MAX);
        next.parts = static_cast<uint32_t>(pieces * reducers());
        next.coded_words = (count + next.parts * m() - 1) / (next.parts * m());
        next.words = next.coded_words * m();
        next.segments = segments_of(next.coded_words * widest);
        next.gather_segments = segments_of(next.words * sum_width());
        next.received_at = received;
        next.have_at = have;
        next.gather_at = gathered;
        cuts_.push_back(next);
        next.first_part += next.parts;
        next.at += next.parts * next.words;
        next.coded_at += next.parts * next.coded_words;
        received += received_parts(next) * next.coded_words;
        have += received_parts(next) * next.segments;
        gathered += scatters() ? next.parts * next.gather_segments : 0;
    }

    const auto buckets = static_cast<uint32_t>(layout_.buckets.size());
    bool on_device = config_.device && combines();
    for (SlotState& slot : memory_) {
        slot.acc.assign(targets(), {});
        slot.received.assign(n(), {});
        for (Buffer& acc : slot.acc) arena.plan("own words", next.at * width(config_.self), &acc);
        slot.acc_device.assign(targets(), nullptr);
        for (uint32_t t = 0; on_device && t < targets(); ++t)
            on_device = config_.device->plan(next.at * width(config_.self), &slot.acc_device[t]);
        if (combines()) arena.plan("coded words", next.coded_at * width(config_.self), &slot.coded);
        for (Rank r = 0; r < n(); ++r)
            if (r != config_.self && contributes(r) && received > 0) arena.plan("words of others", received * width(r), &slot.received[r]);
        if (!local()) arena.plan("sums", next.at * sum_width(), &slot.sum);
        arena.plan("records", n() * sizeof(Le64), &slot.asking);
        slot.have.resize(uint64_t{have} * n());
        slot.senders.resize(have);
        slot.gathered.resize(gathered);
        slot.parts.resize(next.first_part);
        slot.complete.resize(n());
        slot.asked.resize(buckets * n());
        slot.wanted.resize(buckets * n());
        slot.remaining.resize(buckets * reducers());
        slot.rooms.resize(buckets * reducers());
        slot.replies.reserve(spare() ? n() : 0);
        slot.work = std::vector<Work>(buckets);
        for (uint32_t b = 0; b < buckets; ++b) {
            if (!combines()) continue;
            Work& work = slot.work[b];
            work.encode.in.resize(targets() * m());
            work.encode.out.resize(1);
            work.decode.in.resize(needed());
            work.decode.out.resize(m());
            work.decode.weights.resize(m() * needed());
            work.decode.senders.resize(needed());
            work.encode.combine = {code_.prime,
                                   1,
                                   targets() * m(),
                                   nullptr,
                                   work.encode.in.data(),
                                   work.encode.out.data(),
                                   true,
                                   false,
                                   false,
                                   on_device ? config_.device : nullptr};
            work.decode.combine = {
                code_.prime, m(),   needed(), work.decode.weights.data(), work.decode.in.data(), work.decode.out.data(), false,
                true,        false, nullptr};
        }
    }
    if (combines()) {
        encode_weights_.resize(targets() * m());
        code_.encode_weights(config_.self, encode_weights_);
        for (SlotState& slot : memory_)
            for (Work& work : slot.work) work.encode.combine.weights = encode_weights_.data();
        std::vector<Rank> set(needed());
        cache_.assign(tolerated() == 0 ? 1 : 32, {});
        for (Weights& each : cache_) {
            each.senders.assign(needed(), n());
            each.weights.resize(m() * needed());
        }
        cached_ = 0;
        for (uint32_t i = 0; i < needed(); ++i) set[i] = i;
        (void)weights_of(set);
    }
    return {};
}

void Coded::cleared(uint32_t s) {
    SlotState& slot = memory_[s];
    std::fill(slot.have.begin(), slot.have.end(), 0);
    std::fill(slot.senders.begin(), slot.senders.end(), 0);
    std::fill(slot.gathered.begin(), slot.gathered.end(), 0);
    clear_records(s);
    std::fill(slot.complete.begin(), slot.complete.end(), 0);
    std::fill(slot.asked.begin(), slot.asked.end(), 0);
    std::fill(slot.wanted.begin(), slot.wanted.end(), 0);
    std::fill(slot.rooms.begin(), slot.rooms.end(), Room{});
    slot.replies.clear();
    for (uint32_t b = 0; b < cuts_.size(); ++b) {
        const Cut& cut = cuts_[b];
        Work& work = slot.work[b];
        work.parts_remaining = cut.parts;
        work.reducers_remaining = reducers();
        work.encoded = 0;
        work.encoding = work.settled = false;
        work.added = 0;
        work.rooms = work.rooms_unasked = 0;
        work.reducing = Work::Reducing::none;
        work.ready_us = work.late_us = 0;
        for (uint32_t k = 0; k < reducers(); ++k) slot.remaining[b * reducers() + k] = cut.parts / reducers();
        uint32_t waiting = local() ? 1 : 0;
        for (Rank r = 0; r < n() && !local(); ++r)
            if (!combines() && contributes(r)) waiting += segments_of(cut.coded_words * width(r));
        if (combines()) waiting = cut.segments;
        for (uint32_t p = 0; p < cut.parts; ++p) part_of(s, b, p) = {waiting, cut.gather_segments, false, false, false, false, false};
        state(s, b).missing = 1 + needed();   // all parts, and records
    }
}

Buffer Coded::target(uint32_t s, uint32_t bucket, uint32_t t) {
    return memory_[s].accumulator(t).part(cuts_[bucket].at * width(config_.self), layout_.buckets[bucket].count * width(config_.self));
}

Buffer Coded::words_of(uint32_t s, uint32_t b, uint32_t part, Rank sender) const {
    const Cut& cut = cuts_[b];
    const SlotState& slot = memory_[s];
    const uint32_t bytes = width(sender);
    if (sender != config_.self)
        return slot.received[sender].part((cut.received_at + place_of(s, b, part) * cut.coded_words) * bytes, cut.coded_words * bytes);
    if (!combines()) return acc_of(s, b, part, 0);
    return slot.coded.part((cut.coded_at + part * cut.coded_words) * bytes, cut.coded_words * bytes);
}

bool Coded::valid(Arrival* a) const {
    const Cut& cut = cuts_[a->bucket];
    uint64_t bytes = 0;   // of the whole transfer
    if (a->record && a->phase == Phase::reduce) return record_valid(*a);
    if (a->record && (a->phase == Phase::want || a->phase == Phase::want_reply) && a->part < reducers() && spare()) {
        bytes = sizeof(Le64);
    } else if (a->record && a->phase == Phase::complete && a->bucket == 0 && a->part == 0 && tolerated() > 0) {
        bytes = sizeof(Le64);
    } else if (a->record || a->part >= cut.parts || local()) {
        return false;
    } else if (a->phase == Phase::gather) {
        if (scatters() && !reduces(a->part) && a->sender == reducer_of(a->part)) bytes = cut.words * sum_width();
    } else if (reduces(a->part) ? a->phase == Phase::reduce : (a->phase == Phase::again || a->phase == Phase::reply) && spare()) {
        // Words of a part are taken in one phase only: those of the other could overwrite what is being decoded.
        if (contributes(a->sender)) bytes = cut.coded_words * width(a->sender);
    }
    const uint64_t at = uint64_t{a->index} * config_.segment_bytes;
    return at < bytes && a->bytes == std::min<uint64_t>(config_.segment_bytes, bytes - at);
}

// ---- records -------------------------------------------------------------------------------------------------------------------

void Coded::counted(uint32_t s, uint32_t b, Rank rank, Actions& actions) {
    const Cut& cut = cuts_[b];
    for (uint32_t p = 0; p < cut.parts && !local(); ++p)
        for (uint32_t i = 0; receives(s, b, p) && i < cut.segments; ++i)
            if (memory_[s].have[uint64_t{have_index(s, b, p, i)} * n() + rank]) counts(s, b, p, i, actions);
    if (counting(s, b) <= needed()) count_down(s, b, actions);
}

void Coded::read_again(uint32_t s, uint32_t b, Actions& actions) {
    const Cut& cut = cuts_[b];
    state(s, b).missing += counting(s, b);   // fewer than a sum needs: nothing has been decoded
    for (uint32_t p = 0; p < cut.parts && combines(); ++p) {
        if (!receives(s, b, p)) continue;
        part_of(s, b, p).waiting = cut.segments;
        std::fill_n(memory_[s].senders.begin() + have_index(s, b, p, 0), cut.segments, 0);
    }
    HeldExchange::read_again(s, b, actions);
    reduce_next(s, b, actions);
}

void Coded::total(uint32_t s, uint32_t b, Sum* sum) const {
    const SlotState& slot = memory_[s];
    const Cut& cut = cuts_[b];
    bool aside = local();
    for (uint32_t p = 0; p < cut.parts; ++p) aside |= part_of(s, b, p).aside;
    const Buffer& whole = aside ? slot.acc[0] : slot.sum;
    sum->word = sum_word_;
    sum->words = whole.part(cut.at * sum_width(), layout_.buckets[b].count * sum_width());
    record_total(s, b, sum);
}

std::string Coded::missing_text(uint32_t s, uint32_t b) const {
    const SlotState& slot = memory_[s];
    const Cut& cut = cuts_[b];
    std::string text = records_missing(s, b), ranks;
    text += fmt::format("{} of {} parts are missing", slot.work[b].parts_remaining, cut.parts);
    for (uint32_t p = 0; p < cut.parts && !local(); ++p) {   // own parts first: other reducers may wait for the same senders
        if (!reduces(p) || part_of(s, b, p).done) continue;
        ranks.clear();
        for (Rank r = 0; r < n(); ++r) {
            uint64_t lacks = contributes(r) ? cut.coded_words * width(r) : 0;
            for (uint32_t i = 0; i < cut.segments; ++i)
                if (slot.have[uint64_t{have_index(s, b, p, i)} * n() + r]) lacks -= std::min<uint64_t>(lacks, config_.segment_bytes);
            if (lacks > 0) ranks += fmt::format("{}{} bytes from rank {}", ranks.empty() ? "" : ", ", lacks, r);
        }
        if (!ranks.empty()) return text + fmt::format(": phase reduce, part {} lacks {}", p, ranks);
    }
    for (uint32_t p = 0; p < cut.parts && !local(); ++p) {
        const Part& part = part_of(s, b, p);
        if (!reduces(p) && !part.done)
            return text + fmt::format(": phase gather, part {} lacks {} bytes from rank {}", p,
                                      std::min<uint64_t>(cut.words * sum_width(), uint64_t{part.gather_remaining} * config_.segment_bytes),
                                      reducer_of(p));
    }
    return text;
}

namespace {

// multicast, ps, coded, coded-rs.  reducers 0: everybody reduces everything.
Cost cost(const ExchangeConfig& config, uint32_t n, const CostWire& wire, bool codes, uint32_t reducers) {
    Counting counting{config, n, wire};
    const uint32_t m = codes ? config.m : 1, s = codes ? config.s : 0, targets = codes ? m + s : 1, segment = config.segment_bytes;
    const bool local = codes && targets == n && !words_travel(config, n), scatters = reducers > 0;   // local: every rank holds everything
    counting.cost.d = targets;
    counting.cost.rounds = scatters && !local ? 2 : 1;
    auto word = [&](Rank rank) { return counting.width(counting.blocks_of(rank) == 1); };
    auto contributes = [&](Rank rank) { return codes || counting.blocks_of(rank) > 0; };
    uint32_t others = 0;   // that contribute
    for (Rank rank = 0; rank < n; ++rank) others += rank != config.self && contributes(rank);
    for (const Bucket& bucket : config.layout->buckets) {
        const uint32_t cuts = scatters ? reducers : 1;
        const double count = static_cast<double>(bucket.count),
                     pieces = std::max(1.0, ceil_of(count, static_cast<double>(config.piece_words) * cuts * m));
        const double coded_words = ceil_of(count, pieces * cuts * m), whole = coded_words * m * counting.sum_width();
        // Parts that this rank reduces, and those that others do.
        const double own = local                    ? 0
                           : !scatters              ? pieces
                           : config.self < reducers ? pieces
                                                    : 0,
                     foreign = scatters && !local ? pieces * cuts - own : 0;
        const double mine = contributes(config.self) ? coded_words * word(config.self) : 0;
        if (scatters) {
            counting.sends(Counting::words, mine, foreign, segment);
            counting.multicasts(Counting::words, whole, own, n - 1);
        } else counting.multicasts(Counting::words, mine, own, n - 1);
        counting.receives(Counting::words, whole, foreign, foreign, segment);
        double needed = codes ? n - 1 - s : others;
        for (Rank rank = 0; rank < n; ++rank) {
            if (rank == config.self || !contributes(rank)) continue;
            counting.receives(Counting::words, coded_words * word(rank), own, needed > 0 ? own : 0, segment);
            --needed;
        }
        const double bytes = sizeof(Le64) + (local ? 1 : targets) * sizeof(HeldRecord) + bucket.group_count * sizeof(float);
        counting.multicasts(Counting::record, bytes, 1, n - 1);
        counting.receives(Counting::record, bytes, n - 1, 0, segment);
    }
    return counting.cost;
}

std::vector<ExchangeConfig> codes_of(const ExchangeConfig& job, uint32_t n) {
    constexpr uint32_t m_max = 8;   // a larger m saves little, while a rank's computing and memory grow with it
    std::vector<ExchangeConfig> all;
    for (uint32_t m = 1; n > 1 && m + job.s <= n && m <= m_max; ++m) {
        all.push_back(uncoded(job));
        all.back().m = m;
        all.back().s = job.s;
    }
    return all;
}

}   // namespace

extern const ExchangeKind multicast_kind{
    .name = "multicast",
    .summary = "each node sends its gradient once, to all: G sent per node, (n-1)G received",
    .create = [](const ExchangeConfig& config) -> std::unique_ptr<Exchange> {
        return std::make_unique<Coded>(config, false, Reducers::all);
    },
    .fixed = true,
    .datagrams = true,
    .weighs = true,
    .balances = true,
    .cost = [](const ExchangeConfig& config, uint32_t n, const CostWire& wire) { return cost(config, n, wire, false, 0); },
    .candidates =
        [](const ExchangeConfig& job, uint32_t n) {
            if (job.quantiser != Quantiser::fixed && (job.s > 0 || n == 1)) return std::vector<ExchangeConfig>{};
            return std::vector{uncoded(job)};
        }};
extern const ExchangeKind ps_kind{
    .name = "ps",
    .summary = "the first `servers` nodes sum up a part each and send the sums to all: G sent and received per node",
    .create = [](const ExchangeConfig& config) -> std::unique_ptr<Exchange> {
        return std::make_unique<Coded>(config, false, Reducers::servers);
    },
    .fixed = true,
    .datagrams = true,
    .serves = true,
    .weighs = true,
    .balances = true,
    .cost = [](const ExchangeConfig& config, uint32_t n, const CostWire& wire) { return cost(config, n, wire, false, config.servers); },
    .candidates =
        [](const ExchangeConfig& job, uint32_t n) {
            if (n == 1 || (job.quantiser != Quantiser::fixed && job.s > 0)) return std::vector<ExchangeConfig>{};
            ExchangeConfig served = uncoded(job);
            served.servers = std::min(job.servers, n);
            return std::vector{served};
        }};
extern const ExchangeKind coded_kind{
    .name = "coded",
    .summary = "each node sends a combination of its m+s blocks to all: G/m sent per node; s nodes may be lost",
    .create = [](const ExchangeConfig& config) -> std::unique_ptr<Exchange> {
        return std::make_unique<Coded>(config, true, Reducers::all);
    },
    .datagrams = true,
    .codes = true,
    .cost = [](const ExchangeConfig& config, uint32_t n, const CostWire& wire) { return cost(config, n, wire, true, 0); },
    .candidates = codes_of};
extern const ExchangeKind coded_rs_kind{
    .name = "coded-rs",
    .summary = "coded reduce-scatter, then the sums to all: (n-1)G/(n m) + G/n sent per node; s nodes may be lost",
    .create = [](const ExchangeConfig& config) -> std::unique_ptr<Exchange> {
        return std::make_unique<Coded>(config, true, Reducers::ranks);
    },
    .datagrams = true,
    .codes = true,
    .cost = [](const ExchangeConfig& config, uint32_t n, const CostWire& wire) { return cost(config, n, wire, true, n); },
    .candidates = codes_of};

}   // namespace gradcast
