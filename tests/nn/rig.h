// For the tests of this folder: random samples, a sink that gathers the flat gradient, a net ready to run.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "nn/graph/layer_kind.h"
#include "nn/graph/layers.h"
#include "nn/net.h"
#include "nn/optimiser.h"
#include "runtime/core/digest.h"
#include "runtime/core/isa.h"

namespace gradcast {

/// Pseudo-random numbers in [-1, 1): a function of key and index.
inline std::vector<float> numbers(uint64_t count, uint32_t key) {
    std::vector<float> result(count);
    for (uint64_t i = 0; i < count; ++i) result[i] = static_cast<float>(splitmix64(uint64_t{key} << 32 | i) >> 40) * 0x1p-23f - 1;
    return result;
}

/// Name and kernels of each build that this CPU runs.
template <typename Of>
auto builds(Of of) {
    std::vector<std::pair<const char*, std::decay_t<decltype(of(Isa::portable))>>> all;
    for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512})
        if (isa <= isa_best()) all.emplace_back(isa_name(isa), of(isa));
    return all;
}
/// Also the build on AMX, if this CPU has it, and on emulated AMX, if it has AVX-512.
template <typename Of, typename Emulated>
auto builds(Of of, Emulated emulated, bool tiles = true) {
    auto all = builds(of);
    if (tiles && isa_best() >= Isa::amx) all.emplace_back(isa_name(Isa::amx), of(Isa::amx));
    if (tiles && isa_best() >= Isa::avx512) all.emplace_back("emulated", emulated());
    return all;
}

/// Of a line of a preset: "group_norm groups=3".
inline LayerSpec layer(const std::string& text) {
    LayerSpec made;
    EXPECT_TRUE(layer_parse(text, &made)) << text;
    return made;
}
inline LayerSpec conv(uint32_t outputs, uint32_t kernel, uint32_t stride = 1, uint32_t pad = 0) {
    return {.kind = "conv", .values = {{"outputs", outputs}, {"kernel", kernel}, {"stride", stride}, {"pad", pad}}};
}
inline LayerSpec fc(uint32_t outputs) { return {.kind = "inner_product", .values = {{"outputs", outputs}}}; }
inline LayerSpec max_pool(uint32_t kernel, uint32_t stride = 0, uint32_t pad = 0) {
    return {.kind = "max_pool", .values = {{"kernel", kernel}, {"stride", stride}, {"pad", pad}}};
}
inline LayerSpec average_pool(uint32_t kernel, uint32_t stride = 0, uint32_t pad = 0, bool ceil = false) {
    return {.kind = "average_pool", .values = {{"kernel", kernel}, {"stride", stride}, {"pad", pad}, {"ceil", ceil}}};
}
inline LayerSpec global_pool() { return {.kind = "global_average_pool"}; }
inline LayerSpec norm(const char* name = "") { return {.kind = "batch_norm", .name = name}; }
inline LayerSpec dropout(double rate) { return {.kind = "dropout", .values = {{"rate", rate}}}; }
inline LayerSpec add(const char* from) { return {.kind = "add", .from = from}; }
inline LayerSpec concat(const char* from) { return {.kind = "concat", .from = from}; }
inline LayerSpec upsample(uint32_t scale, bool bilinear = false) {
    return {.kind = "upsample", .values = {{"scale", scale}, {"mode", bilinear}}};
}
inline LayerSpec conv_transposed(uint32_t outputs, uint32_t kernel, uint32_t stride = 1, uint32_t pad = 0) {
    LayerSpec layer = conv(outputs, kernel, stride, pad);
    layer.kind = "conv_transposed";
    return layer;
}
inline LayerSpec grouped(LayerSpec layer, uint32_t groups, uint32_t dilation = 1) {
    layer.values.set("groups", groups);
    layer.values.set("dilation", dilation);
    return layer;
}
inline LayerSpec multiply(const char* by) { return {.kind = "multiply", .from = by}; }
inline LayerSpec linear(uint32_t outputs) { return {.kind = "linear", .values = {{"outputs", outputs}}}; }
inline LayerSpec attention(uint32_t heads) { return {.kind = "attention", .values = {{"heads", heads}}}; }
inline LayerSpec squared_loss() { return {.kind = "squared_loss"}; }
inline LayerSpec named(LayerSpec layer, const char* name, const char* from = "") {
    layer.name = name;
    layer.from = from;
    return layer;
}
inline LayerSpec relu() { return {.kind = "relu"}; }
inline LayerSpec loss() { return {.kind = "softmax_cross_entropy"}; }

/// A regression on floats: of samples of that type, with as many targets.
inline NetSpec regression_on_floats(Element element, uint32_t targets = 4) {
    return {.C = 2,
            .H = 9,
            .W = 8,
            .pad = 1,
            .classes = 1,
            .targets = targets,
            .element = element,
            .layers = {conv(6, 4),
                       {.kind = "group_norm", .values = {{"groups", 3}}},
                       relu(),
                       conv(4, 2),
                       {.kind = "layer_norm"},
                       relu(),
                       fc(11),
                       {.kind = "layer_norm"},
                       relu(),
                       fc(targets),
                       {.kind = "squared_loss"}}};
}

/// Down and up again, with skips that are joined: convolutions in groups and with a dilation, upsampling, a transposed convolution.
inline NetSpec encoder_decoder() {
    return {.C = 2,
            .H = 9,
            .W = 13,
            .pad = 1,
            .classes = 5,
            .layers = {conv(16, 3),
                       norm(),
                       named(relu(), "high"),
                       max_pool(3, 2),
                       grouped(conv(16, 3, 1, 2), 16, 2),
                       conv(24, 1),
                       named(relu(), "low"),
                       max_pool(2, 2),
                       grouped(conv(20, 3, 1, 1), 4),
                       upsample(2, true),
                       concat("low"),
                       grouped(conv(11, 3, 1, 1), 1, 1),
                       relu(),
                       conv_transposed(7, 3, 2),
                       concat("high"),
                       upsample(2),
                       conv(5, 2, 2),
                       relu(),
                       fc(5),
                       loss()}};
}

/// Every kind of layer, odd shapes, two shortcuts, one of them with a layer in it.
inline NetSpec everything() {
    LayerSpec bare = conv(20, 3, 1, 1), late = max_pool(3, 2);
    bare.values.set("bias", false);
    late.values.set("ceil", true);
    return {.C = 3,
            .H = 10,
            .W = 13,
            .pad = 1,
            .classes = 5,
            .layers = {bare,
                       norm(),
                       relu(),
                       named(late, "low"),
                       conv(20, 3, 1, 1),
                       named(norm(), "main"),
                       named(conv(20, 1), "side", "low"),
                       add("main"),
                       named(relu(), "sum"),
                       dropout(0.25),
                       conv(20, 3, 1, 1),
                       relu(),
                       add("sum"),
                       average_pool(3, 2, 1, true),
                       conv(19, 2),
                       relu(),
                       global_pool(),
                       dropout(0.5),
                       fc(21),
                       norm(),
                       relu(),
                       fc(5),
                       loss()}};
}

/// Values between 0 and 1 and float targets around 0, where the net takes such.
struct Data {
    std::vector<uint8_t> images;
    std::vector<int32_t> labels;
    std::vector<float> mean, std, targets;
    std::vector<std::byte> position_labels;   // [count, targets_bytes()]
    Samples samples;
    Data(const NetSpec& spec, uint32_t count, uint32_t seed = 1)
        : images(uint64_t{count} * spec.C * spec.H * spec.W * element_bytes(spec.element)),
          labels(count),
          mean(spec.C, 0.4f),
          std(spec.C, 0.3f),
          targets(spec.by_position() ? 0 : uint64_t{count} * spec.targets),
          position_labels(spec.by_position() && spec.targets > 0 ? uint64_t{count} * spec.targets_bytes() : 0) {
        std::mt19937 random(seed);
        const uint32_t width = element_bytes(spec.element);
        for (uint64_t i = 0; i < images.size(); i += width) {
            const auto pixel = static_cast<uint8_t>(random());
            const float value = static_cast<float>(pixel) / 255;
            if (spec.element == Element::f32) std::memcpy(&images[i], &value, width);
            else images[i] = spec.vocabulary > 0 ? static_cast<uint8_t>(pixel % spec.vocabulary) : pixel;
        }
        for (uint64_t i = 0; i < position_labels.size(); i += element_bytes(spec.target_element)) {
            const uint32_t label = random() % (spec.classes + (spec.ignore >= 0));
            position_labels[i] = static_cast<std::byte>(label < spec.classes ? label : static_cast<uint32_t>(spec.ignore));
        }
        for (int32_t& label : labels) label = static_cast<int32_t>(random() % spec.classes);
        for (float& target : targets) target = static_cast<float>(random() % 1000) / 250 - 2;
        samples = {images.data(), labels.data(), count, spec.C, spec.H, spec.W, mean.data(), std.data()};
        samples.element = spec.element;
        if (spec.targets > 0) samples.targets = spec.by_position() ? position_labels.data() : std::as_bytes(std::span(targets)).data();
    }
    Data(const Data&) = delete;
};

/// Gathers the flat gradient; checks that buckets come in order, each with its size, after the loss.  A bucket of tied weights comes once
/// for each use of them, and its turn is the last one.
struct Gather : GradientSink {
    explicit Gather(const Layout& of) : layout(of), gradient(of.elements, NAN), came(of.buckets.size()) {}
    const Layout& layout;
    std::vector<float> gradient;
    double total = NAN;
    uint32_t next = 0;
    bool has_loss = false;
    bool by_pieces = false;       // take the pieces of large layers
    uint32_t in_pieces = 0;       // buckets that came in pieces
    std::vector<uint32_t> came;   // by bucket: gradients
    void loss(uint32_t, BlockId, double sum) override {
        EXPECT_TRUE(next == 0 && !has_loss);
        total = sum;
        has_loss = true;
    }
    bool pieces(uint32_t, std::span<const Block>, uint32_t bucket, const GradientPiece& piece, Status*) override {
        if (!by_pieces) return false;
        EXPECT_EQ(bucket, next++);
        for (uint64_t at = 0; at < layout.buckets[bucket].count;) at += take(0, bucket, at, piece);
        return true;
    }
    /// Copies one piece; returns its number of elements.
    uint64_t take(uint32_t block, uint32_t bucket, uint64_t at, const GradientPiece& piece) {
        EXPECT_TRUE(has_loss);
        in_pieces += at == 0;
        const Bucket& range = layout.buckets[bucket];
        const GradientPart part = piece(block, at);
        const uint64_t count = part.rows * part.count;
        EXPECT_TRUE(count > 0 && count < range.count && at + count <= range.count);
        for (uint32_t row = 0; row < part.rows; ++row)
            std::copy_n(part.x + row * part.apart, part.count,
                        gradient.begin() + static_cast<int64_t>(range.offset + at + row * part.count));
        return count;
    }
    Status bucket(uint32_t, BlockId, uint32_t bucket, Buffer part) override {
        const Bucket& range = layout.buckets[bucket];
        EXPECT_TRUE(has_loss);
        if (++came[bucket] == layout.groups[range.group].uses) {
            EXPECT_EQ(bucket, next++);
        }
        EXPECT_EQ(part.bytes, range.count * sizeof(float));
        for (uint64_t i = 0; i < range.count; ++i) {
            float& to = gradient[range.offset + i];
            to = part.as<float>()[i] + (came[bucket] > 1 ? to : 0.0f);
        }
        return {};
    }
};

/// A Gather for each of the blocks that are computed together.
struct GatherEach : GradientSink {
    GatherEach(const Layout& layout, size_t blocks, bool by_pieces) : each(blocks, Gather(layout)), by_pieces_(by_pieces) {}
    std::vector<Gather> each;
    void loss(uint32_t lane, BlockId id, double sum) override { each[id.block].loss(lane, id, sum); }
    Status bucket(uint32_t lane, BlockId id, uint32_t bucket, Buffer part) override {
        return each[id.block].bucket(lane, id, bucket, part);
    }
    bool pieces(uint32_t, std::span<const Block> blocks, uint32_t bucket, const GradientPiece& piece, Status*) override {
        if (!by_pieces_) return false;
        for (const Block& block : blocks) EXPECT_EQ(bucket, each[block.id.block].next++);
        for (uint64_t at = 0, count = 0; at < each[0].layout.buckets[bucket].count; at += count)
            for (uint32_t i = 0; i < blocks.size(); ++i) count = each[blocks[i].id.block].take(i, bucket, at, piece);
        return true;
    }

private:
    bool by_pieces_;
};

/// Sums of all buckets: words [layout.elements] and units by group.
inline std::vector<BucketSum> sums_of(const Layout& layout, void* words, Word word, std::span<const double> units) {
    std::vector<BucketSum> sums;
    const Buffer all{static_cast<std::byte*>(words), nullptr, layout.elements * word_bytes(word)};
    for (uint32_t b = 0; b < layout.buckets.size(); ++b) {
        const Bucket& bucket = layout.buckets[b];
        BucketSum& made = sums.emplace_back();
        made.sum.bucket = b;
        made.sum.word = word;
        made.sum.words = all.part(bucket.offset * word_bytes(word), bucket.count * word_bytes(word));
        made.units = units.subspan(bucket.group, bucket.group_count);
    }
    return sums;
}

/// A net with its optimiser, on CPU or GPU.
struct AnyRig {
    std::unique_ptr<Net> net;
    std::unique_ptr<Optimiser> optimiser;
    Lanes lanes;   // for apply(); not opened: this thread alone
    /// Loss and gradient of a block.
    Gather block(const Samples& samples, uint32_t lane = 0, StepId step = 0) {
        Gather gather(net->layout());
        Status status = net->block(lane, {step, 0}, samples, gather);
        EXPECT_TRUE(status.ok()) << status.what;
        EXPECT_EQ(gather.next, net->layout().buckets.size());
        return gather;
    }
    double loss(const Samples& samples) {
        uint32_t right = 0;
        double sum = NAN;
        EXPECT_TRUE(net->evaluate(0, samples, &right, &sum, nullptr).ok());
        return sum;
    }
    /// One step: passes the mean gradient to apply() as an exact sum in units of 2^-40.
    void step(StepId step, const std::vector<float>& gradient, uint32_t batch) {
        const Layout& layout = net->layout();
        const std::vector<double> units(layout.groups.size(), 0x1p-40 / batch);
        std::vector<int64_t> words(layout.elements);
        for (uint64_t i = 0; i < words.size(); ++i) words[i] = std::llrint(static_cast<double>(gradient[i]) * 0x1p40);
        const std::vector<BucketSum> sums = sums_of(layout, words.data(), Word::i64, units);
        uint64_t digest = 0;
        optimiser->step(step);
        ASSERT_TRUE(net->apply(lanes, *optimiser, sums, &digest).ok());
        EXPECT_EQ(digest, net->digest() + optimiser->digest(layout.whole()));
    }
};

struct Rig : AnyRig {
    Arena arena;
    explicit Rig(const NetSpec& spec, const NetConfig& config, const OptimiserConfig& sgd = {}) {
        Status status = net_cpu_plan(spec, config, arena, &net);
        if (status.ok()) status = optimiser_plan(sgd, net->layout(), arena, &optimiser);
        if (status.ok()) status = arena.seal();
        if (status.ok()) status = net_cpu_ready(*net);
        EXPECT_TRUE(status.ok()) << status.what;
    }
};

inline uint64_t activation_bytes(const Rig& rig) {
    uint64_t bytes = 0;
    for (const auto& [purpose, count] : rig.arena.use("").bytes) bytes += purpose == "activations" ? count : 0;
    return bytes;
}

inline NetConfig sizes(std::vector<uint32_t> block_sizes, uint32_t lanes = 1) {
    NetConfig config;
    config.lanes = lanes, config.samples_max = *std::max_element(block_sizes.begin(), block_sizes.end()),
    config.block_sizes = std::move(block_sizes);
    return config;
}

}   // namespace gradcast
