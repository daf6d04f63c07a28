#include "nn/measure.h"

#include <cstring>
#include <limits>

#include "nn/programs.h"
#include "runtime/core/clock.h"
#include "runtime/core/lanes.h"

namespace gradcast {
namespace {

// A prime: neither samples, channels nor rows begin at the same number.
constexpr uint64_t numbers_count = 65521;

/// The numbers that samples, parameters and edges are made of.
class Numbers {
public:
    Numbers() {
        for (uint64_t i = 0; i < numbers_count; ++i) words_.push_back(static_cast<uint32_t>(splitmix64(i) >> 32));
        // Both halves of a word are a bf16 of 2^-7 to 2^-3, of either sign.  So the word is as small, as a float.
        for (const uint32_t word : words_) small_.push_back((word & 0x81FF81FF) | 0x3C003C00);
    }
    uint32_t operator[](uint64_t i) const { return words_[i % numbers_count]; }
    /// Small numbers, of float or bf16; for each place they begin with another one.
    void fill(Buffer to, uint64_t place) const {
        uint64_t from = splitmix64(place) % numbers_count;
        for (uint64_t at = 0, bytes = 0; at < to.bytes; at += bytes, from = 0) {
            bytes = std::min(to.bytes - at, (numbers_count - from) * sizeof(uint32_t));
            std::memcpy(to.host + at, &small_[from], bytes);
        }
    }

private:
    std::vector<uint32_t> words_, small_;
};

struct MeasuredBlock {
    std::vector<uint8_t> images;
    std::vector<int32_t> labels;
    std::vector<std::byte> targets;
    std::vector<float> mean, std;
    Block block;
    MeasuredBlock(const NetSpec& spec, uint32_t count, const Numbers& numbers)
        : images(count * spec.sample_bytes()),
          labels(count),
          targets(count * spec.targets_bytes()),
          mean(spec.C, 0.5f),
          std(spec.C, 0.25f) {
        const uint64_t width = element_bytes(spec.element);
        for (uint64_t i = 0; i < images.size() / width; ++i) {   // numbers of a byte, whatever the type
            const auto number = static_cast<uint8_t>(numbers[i]);
            const auto value = static_cast<float>(number) / 255;
            if (spec.element == Element::f32) std::memcpy(&images[i * width], &value, sizeof value);
            else images[i * width] = spec.vocabulary > 0 ? static_cast<uint8_t>(number % spec.vocabulary) : number;
        }
        for (uint64_t i = 0; spec.by_position() && i < targets.size(); i += element_bytes(spec.target_element))
            targets[i] = static_cast<std::byte>(numbers[i] % std::min(spec.classes, 256u));
        for (uint32_t i = 0; i < count; ++i) labels[i] = static_cast<int32_t>(numbers[i] % std::max(spec.classes, 1u));
        block = {{0, 0}, {images.data(), labels.data(), count, spec.C, spec.H, spec.W, mean.data(), std.data()}};
        block.samples.element = spec.element;
        block.samples.targets = targets.empty() ? nullptr : targets.data();
    }
};

/// Of the first element of a value or gradient that crosses a cut; those of parameters begin at 0.
uint64_t place_of(const Edge& edge, bool gradient) { return splitmix64(uint64_t{edge.from} << 32 | edge.by << 1 | gradient); }
constexpr uint64_t loss_place = splitmix64(~uint64_t{0});

uint64_t digest_of(Buffer of, uint64_t place) {
    const uint64_t words = of.bytes / sizeof(uint32_t);
    uint32_t rest = 0;   // an odd number of bf16
    std::memcpy(&rest, of.host + words * sizeof rest, of.bytes % sizeof rest);
    return digest64({of.as<uint32_t>(), words}, place) + digest64({&rest, 1}, place + words);
}

struct DigestSink final : GradientSink {
    explicit DigestSink(const Layout& of) : layout(of) {}
    Status bucket(uint32_t, BlockId, uint32_t number, Buffer gradient) override {
        const uint64_t begin_ns = clock_ns();
        const Bucket& bucket = layout.buckets[number];
        for (uint32_t g = bucket.group; g < bucket.group + bucket.group_count; ++g) {
            const Group& group = layout.groups[g];
            digest += digest64(std::span(gradient.as<float>() + (group.offset - bucket.offset), group.count), group.place());
        }
        spent_ns += clock_ns() - begin_ns;
        return {};
    }
    void loss(uint32_t, BlockId, double sum) override {
        digest += digest_of({reinterpret_cast<std::byte*>(&sum), nullptr, sizeof sum}, loss_place);
    }
    const Layout& layout;
    uint64_t digest = 0, spent_ns = 0;
};

class Unit {
public:
    Status open(const NetSpec& spec, const NetConfig& config, const Numbers& numbers, const OptimiserConfig* optimiser) {
        GC_TRY(net_cpu_plan(spec, config, arena_, &net_));
        const Layout& layout = net_->layout();
        if (optimiser) {
            uint64_t most = 0;
            for (const Bucket& bucket : layout.buckets) most = std::max(most, bucket.count);
            GC_TRY(optimiser_plan(*optimiser, layout, arena_, &optimiser_));
            arena_.plan("sums", most * sizeof(int32_t), &words_);
        }
        GC_TRY(arena_.seal());
        GC_TRY(net_cpu_ready(*net_, false));
        for (const Group& group : layout.groups) {
            const std::span<float> values = net_->parameters().subspan(group.offset, group.count);
            numbers.fill({reinterpret_cast<std::byte*>(values.data()), nullptr, values.size_bytes()}, group.place());
        }
        net_->refresh();
        return {};
    }
    /// One block.  *times: the smaller of what they are and of what the passes took.
    Status run(const Block& block, const Numbers& numbers, UnitTimes* times, uint64_t* digest) {
        DigestSink sink(net_->layout());
        const auto timed = [&sink](double& least, auto pass) {
            sink.spent_ns = 0;
            const uint64_t begin_ns = clock_ns();
            const Status status = pass();
            least = std::min(least, static_cast<double>(clock_ns() - begin_ns - sink.spent_ns) * 1e-9);
            return status;
        };
        const auto fill = [&](Buffer memory, uint64_t place) { numbers.fill(memory, place); };
        const auto add_up = [&](Buffer memory, uint64_t place) { sink.digest += digest_of(memory, place); };
        // Passes may work in place, so what they read is written for each.
        each_edge(block, false, true, fill);
        GC_TRY(timed(times->forward, [&] { return net_->forward(0, 0, {&block, 1}, sink); }));
        each_edge(block, false, false, add_up);
        each_edge(block, true, false, fill);
        GC_TRY(timed(times->data, [&] { return net_->backward(0, 0, Backward::data, sink); }));
        each_edge(block, true, true, add_up);
        GC_TRY(timed(times->weights, [&] { return net_->backward(0, 0, Backward::weights, sink); }));
        *digest = sink.digest + net_->engines();
        return {};
    }
    /// A step's sums, of any numbers.
    Status apply(StepId step, UnitTimes* times) {
        const Layout& layout = net_->layout();
        const std::vector<double> units(layout.groups.size(), 1e-9);
        std::vector<BucketSum> sums;
        for (uint32_t i = 0; i < layout.buckets.size(); ++i) {
            const Bucket& bucket = layout.buckets[i];
            sums.push_back({{.step = step, .bucket = i, .words = words_.part(0, bucket.count * sizeof(int32_t)), .maxima = {}},
                            std::span(units).subspan(bucket.group, bucket.group_count)});
        }
        uint64_t digest = 0;
        optimiser_->step(step);
        const uint64_t begin_ns = clock_ns();
        GC_TRY(net_->apply(lanes_, *optimiser_, sums, &digest));
        const double seconds = static_cast<double>(clock_ns() - begin_ns) * 1e-9;
        times->apply = step == 0 ? seconds : std::min(times->apply, seconds);
        return {};
    }
    uint64_t bytes() const { return arena_.whole().bytes; }

private:
    /// Calls f(memory, place) with the values, or gradients, of incoming edges, or of outgoing ones.
    template <typename F>
    void each_edge(const Block& block, bool gradient, bool incoming, F f) {
        for (size_t i = 0; i < net_->edges().size(); ++i)
            if (const Edge& edge = net_->edges()[i]; edge.incoming == incoming && (edge.learns || !gradient))
                f(net_->edge(0, 0, i, gradient, block.samples.count), place_of(edge, gradient));
    }
    Arena arena_;
    std::unique_ptr<Net> net_;
    std::unique_ptr<Optimiser> optimiser_;
    Buffer words_;   // of the largest bucket
    Lanes lanes_;    // one
};

}   // namespace

Status net_measure(const NetSpec& spec, const NetConfig& config, uint32_t passes, const std::atomic<bool>* stop, NetMeasure* measured,
                   const OptimiserConfig* optimiser) {
    NetConfig of_unit{.precision = config.precision, .passes_apart = true};
    for (const ProgramSize& size : program_sizes(config))
        if (size.training) of_unit.block_sizes.push_back(size.samples);
    of_unit.samples_max = of_unit.block_sizes.back();
    std::vector<uint32_t> begins;
    {
        Arena never_sealed;
        std::unique_ptr<Net> whole;
        GC_TRY(net_cpu_plan(spec, of_unit, never_sealed, &whole));
        begins = whole->stage_begins();
    }
    begins.push_back(static_cast<uint32_t>(spec.layers.size()));
    const Numbers numbers;
    const MeasuredBlock made(spec, of_unit.samples_max, numbers);
    NetMeasure result;
    for (size_t i = 0; i + 1 < begins.size(); ++i) {
        of_unit.stage = {begins[i], begins[i + 1]};
        Unit unit;
        GC_TRY(unit.open(spec, of_unit, numbers, optimiser));
        constexpr double any = std::numeric_limits<double>::max();
        UnitTimes& times = result.units.emplace_back(UnitTimes{begins[i], begins[i + 1], any, any, any, 0});
        uint64_t digest = 0;
        for (uint32_t pass = 0; pass < passes; ++pass) {
            if (stop && stop->load(std::memory_order_relaxed)) return fail(Code::cancelled, "stopped while the kernels are measured");
            GC_TRY(unit.run(made.block, numbers, &times, &digest));
        }
        for (uint32_t pass = 0; optimiser && pass < passes; ++pass) GC_TRY(unit.apply(pass, &times));
        result.digest += digest;
        result.bytes = std::max(result.bytes, unit.bytes());
    }
    *measured = std::move(result);
    return {};
}

}   // namespace gradcast
