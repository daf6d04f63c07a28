#include "nn/optimiser.h"

#include <fmt/format.h>

#include <algorithm>

#include "nn/averaged.h"
#include "nn/kernels.h"
#include "nn/optimiser_parts.h"
#include "nn/sums.h"

namespace gradcast {
namespace {

constexpr OptimiserKey lr_key{.name = "lr", .member = &OptimiserConfig::lr, .above = true, .help = "learning rate"};

class HostOptimiser final : public Optimiser {
public:
    HostOptimiser(const OptimiserKind& kind, const OptimiserConfig& config, const Layout& layout, Arena& arena)
        : kind_(kind),
          config_(config),
          undecayed_(optimiser_without_decay(config)),
          elements_(layout.elements),
          whole_(layout.whole()),
          runs_(layout.runs()),
          answered_(layout.runs(false)),
          parts_(optimiser_parts(config.ranges, layout, kind.look != nullptr)),
          vectors_(kind.vectors(config)),
          vectors_in_all_(optimiser_vectors(config)) {
        if (vectors_in_all_ > 0) arena.plan("optimiser", vectors_in_all_ * elements_ * sizeof(float), &state_);
        for (size_t i = 0; i < parts_.size() && kind.look; ++i)
            for (uint64_t at = 0; at < parts_[i].count && parts_[i].how == Treatment::plain; at += piece_most)
                pieces_.push_back({i, parts_[i].offset + at, std::min(piece_most, parts_[i].count - at)});
        norms_.resize(kind.look ? parts_.size() : 0);
        step(0);
    }
    void step(StepId step) override {
        now_ = kind_.rates(config_, step);
        exempt_ = kind_.rates(undecayed_, step);
        fresh_ = averaged_share(config_, step);
    }
    std::span<Piece> pieces() override { return pieces_; }
    void look(Piece& piece, uint64_t offset, std::span<const float> w, std::span<const float> gradient) override {
        const float* state[optimiser_vectors_max] = {};
        for (uint32_t i = 0; i < vectors_; ++i) state[i] = state_.as<float>() + i * elements_ + offset;
        kind_.look(now_, w.data(), state, gradient.data(), w.size(), &piece.norms);
    }
    void looked() override {
        std::ranges::fill(norms_, TensorNorms{});
        for (Piece& piece : pieces_) {
            norms_[piece.tensor].w += piece.norms.w;
            norms_[piece.tensor].step += piece.norms.step;
            piece.norms = {};
        }
    }
    uint64_t update(uint64_t offset, std::span<float> w, std::span<const float> gradient) override {
        GC_ASSERT(w.size() == gradient.size());
        float* state[optimiser_vectors_max] = {};
        auto part = std::ranges::upper_bound(parts_, offset, {}, &OptimiserPart::end);
        for (uint64_t at = offset, count; at < offset + w.size(); at += count, ++part) {
            count = std::min(part->end(), offset + w.size()) - at;
            if (part->how == Treatment::frozen) continue;
            for (uint32_t i = 0; i < vectors_; ++i) state[i] = state_.as<float>() + i * elements_ + at;
            StepRates rates = part->how == Treatment::exempt ? exempt_ : now_;
            if (kind_.scale && part->how == Treatment::plain) kind_.scale(&rates, norms_[static_cast<size_t>(part - parts_.begin())]);
            kind_.update(kernels_, rates, w.data() + (at - offset), state, gradient.data() + (at - offset), count);
        }
        if (config_.ema > 0) {
            float* const mean = state_.as<float>() + vectors_ * elements_ + offset;
            for (uint64_t i = 0; i < w.size(); ++i) mean[i] += fresh_ * (w[i] - mean[i]);
        }
        const auto run = std::ranges::find_if(runs_, [offset](const Layout::Run& each) { return offset - each.offset < each.count; });
        GC_ASSERT(run != runs_.end());
        const uint64_t place = run->place + (offset - run->offset);
        uint64_t digest = digest64(w, place);
        for (uint32_t i = 0; i < vectors_in_all_; ++i)
            digest += digest64({state_.as<float>() + i * elements_ + offset, w.size()}, (i + 1) * whole_ + place);
        return digest;
    }
    uint64_t digest(uint64_t first) override {
        uint64_t sum = 0;
        for (uint32_t i = 0; i < vectors_in_all_; ++i)
            for (const Layout::Run& run : answered_)
                sum += digest64(state().subspan(i * elements_ + run.offset, run.count), first + i * whole_ + run.place);
        return sum;
    }
    std::span<float> state() override { return {state_.as<float>(), vectors_in_all_ * elements_}; }

private:
    const FloatKernels& kernels_ = float_kernels(isa_best());
    const OptimiserKind& kind_;
    const OptimiserConfig config_, undecayed_;   // undecayed_: for what is exempt
    const uint64_t elements_, whole_;
    const std::vector<Layout::Run> runs_, answered_;   // answered_: of what this node stands for
    const std::vector<OptimiserPart> parts_;
    const uint32_t vectors_, vectors_in_all_;   // of the kind; with the averaged weights
    std::vector<Piece> pieces_;
    std::vector<TensorNorms> norms_;   // by part, where the kind looks at norms
    StepRates now_{}, exempt_{};
    float fresh_ = 1;   // share of the new weights in the averaged ones
    Buffer state_;
};

Status one_of(const char* key, const std::string& name, const std::vector<std::string>& names) {
    if (std::find(names.begin(), names.end(), name) != names.end()) return {};
    return fail(Code::invalid, "optimiser.{} \"{}\" is unknown: one of {}", key, name, fmt::join(names, ", "));
}

Status range_check(const OptimiserKey& key, const OptimiserConfig& config) {
    const double value = key.value(config);
    if (key.in_range(value)) return {};
    const bool bounded = key.max < 1e6;   // others are beyond what anybody means
    return fail(Code::invalid, "optimiser.{} {} must be {} {}{}", key.name, value, key.above ? "above" : "at least", key.min,
                bounded ? fmt::format(" and {} {}", key.below ? "below" : "at most", key.max) : "");
}

/// `row` is that of the config's value of the key `what`.
template <typename Row>
void add_mistakes(const OptimiserConfig& config, const char* what, const Row& row, const std::vector<OptimiserKeyUse>& keys,
                  std::vector<OptimiserMistake>& mistakes) {
    for (const auto& [key, kinds] : keys)
        if (!kinds.empty() && std::ranges::find(row.keys, key) == row.keys.end() && key->changed(config))
            mistakes.push_back({key->name, fmt::format("goes with {} = \"{}\", not \"{}\"", what, fmt::join(kinds, "\" or \""), row.name)});
    if (!row.check) return;
    if (auto mistake = row.check(config)) mistakes.push_back(std::move(*mistake));
}

void add_uses(const char* kind, std::span<const OptimiserKey* const> keys, std::vector<OptimiserKeyUse>& uses) {
    for (const OptimiserKey* key : keys) {
        auto at = std::ranges::find(uses, key, &OptimiserKeyUse::key);
        if (at == uses.end()) at = uses.insert(uses.end(), {key, {}});
        at->kinds.push_back(kind);
    }
}

}   // namespace

std::vector<OptimiserPart> optimiser_parts(const std::vector<OptimiserRange>& ranges, const Layout& layout, bool by_range) {
    std::vector<OptimiserPart> parts;
    std::vector<Layout::Run> runs = layout.runs();
    if (by_range) runs.clear();
    for (const Group& group : layout.groups)
        if (by_range) runs.push_back({group.offset, group.count, group.place()});
    for (const Layout::Run& run : runs) {
        uint64_t at = run.place;
        const uint64_t end = run.place + run.count;
        const auto up_to = [&](uint64_t place, Treatment how) {
            place = std::clamp(place, at, end);
            if (place > at && !by_range && !parts.empty() && parts.back().how == how) parts.back().count += place - at;
            else if (place > at) parts.push_back({run.offset + (at - run.place), place - at, how});
            at = place;
        };
        for (const OptimiserRange& range : ranges) {
            up_to(range.place, Treatment::plain);
            up_to(range.place + range.count, !range.learns ? Treatment::frozen : range.decays ? Treatment::plain : Treatment::exempt);
        }
        up_to(end, Treatment::plain);
    }
    return parts;
}

OptimiserConfig optimiser_without_decay(OptimiserConfig config) {
    config.weight_decay = 0;
    return config;
}

std::span<const OptimiserKind* const> optimiser_kinds() {
#define GC_OPTIMISER(kind) &kind##_optimiser,
    static constexpr const OptimiserKind* all[] = {GC_OPTIMISERS(GC_OPTIMISER)};
#undef GC_OPTIMISER
    return all;
}
std::vector<std::string> optimiser_names() {
    std::vector<std::string> names;
    for (const OptimiserKind* kind : optimiser_kinds()) names.emplace_back(kind->name);
    return names;
}
const OptimiserKind* optimiser_find(std::string_view name) {
    for (const OptimiserKind* kind : optimiser_kinds())
        if (name == kind->name) return kind;
    return nullptr;
}

uint32_t optimiser_vectors(const OptimiserConfig& config) { return optimiser_find(config.kind)->vectors(config) + (config.ema > 0); }

const OptimiserKey weight_decay_key{.name = "weight_decay",
                                    .member = &OptimiserConfig::weight_decay,
                                    .help =
                                        "factor of the weights that is added to the gradient; adamw instead subtracts lr * weight_decay * "
                                        "w from each weight, and lamb adds it to the step before it scales that"};

double OptimiserKey::value(const OptimiserConfig& config) const {
    return std::visit([&](auto at) { return static_cast<double>(config.*at); }, member);
}

std::vector<OptimiserKeyUse> optimiser_keys() {
    std::vector<OptimiserKeyUse> uses = {{&lr_key, {}}};
    for (const OptimiserKind* kind : optimiser_kinds()) add_uses(kind->name, kind->keys, uses);
    for (OptimiserKeyUse& use : uses)
        if (use.kinds.size() == optimiser_kinds().size()) use.kinds.clear();
    return uses;
}

std::vector<OptimiserKeyUse> schedule_keys() {
    std::vector<OptimiserKeyUse> uses = {{&warm_up_key, {}}};
    for (const ScheduleKind& kind : schedule_kinds()) add_uses(kind.name, kind.keys, uses);
    return uses;
}

std::vector<OptimiserMistake> optimiser_mistakes(const OptimiserConfig& config) {
    std::vector<OptimiserMistake> mistakes;
    add_mistakes(config, "kind", *optimiser_find(config.kind), optimiser_keys(), mistakes);
    add_mistakes(config, "schedule", *schedule_find(config.schedule), schedule_keys(), mistakes);
    return mistakes;
}

Status optimiser_check(const OptimiserConfig& config) {
    GC_TRY(one_of("kind", config.kind, optimiser_names()));
    GC_TRY(one_of("schedule", config.schedule, schedule_names()));
    for (const auto& keys : {optimiser_keys(), schedule_keys()})
        for (const OptimiserKeyUse& use : keys) GC_TRY(range_check(*use.key, config));
    for (const auto& [key, text] : optimiser_mistakes(config)) return fail(Code::invalid, "optimiser.{} {}", key, text);
    if (schedule_find(config.schedule)->ends && config.steps == 0)
        return fail(Code::invalid, "the schedule {} needs to know how many steps there are", config.schedule);
    return {};
}

void averaged_swap(const Layout& layout, std::span<float> weights, std::span<float> state) {
    const std::span<float> averaged = state.last(layout.elements);
    for (const Group& group : layout.groups)
        if (!group.statistics)
            std::ranges::swap_ranges(weights.subspan(group.offset, group.count), averaged.subspan(group.offset, group.count));
}

Status optimiser_plan(const OptimiserConfig& config, const Layout& layout, Arena& arena, std::unique_ptr<Optimiser>* optimiser) {
    GC_TRY(optimiser_check(config));
    *optimiser = std::make_unique<HostOptimiser>(*optimiser_find(config.kind), config, layout, arena);
    return {};
}

}   // namespace gradcast
