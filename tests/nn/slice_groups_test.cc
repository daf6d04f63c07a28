// Nets that have the slices of one group each, on threads that exchange what the groups tell each other: the bits of the whole net.
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "nn/graph/slices.h"
#include "tests/nn/sliced.h"
#include "tests/nn/slot_calls.h"

namespace gradcast {
namespace {

using namespace std::chrono_literals;

/// What all groups have sent, by lane, point, sender and receiver.
struct Exchanged {
    std::mutex mutex;
    std::condition_variable changed;
    std::map<std::tuple<uint32_t, size_t, uint32_t, uint32_t>, std::vector<std::byte>> sent;
};

struct ThreadLink final : SliceLink {
    ThreadLink(Exchanged& exchanged, Net& of, uint32_t group, uint32_t groups) : all(exchanged), net(of), own(group), count(groups) {
        rooms.resize(net.slice_points().size());
        come.resize(rooms.size());
    }
    Status room(uint32_t, size_t point, Buffer* to) override {
        rooms[point].resize(net.slice_bytes(point, own, samples, training));
        EXPECT_GT(rooms[point].size(), 0u);
        EXPECT_LE(rooms[point].size(), net.slice_bytes_most(point, own));
        *to = {rooms[point].data(), nullptr, rooms[point].size()};
        return {};
    }
    Status exchange(uint32_t lane, size_t point, std::span<const uint64_t> sizes) override {
        const SlicePoint& place = net.slice_points()[point];
        EXPECT_EQ(place.varies(), !sizes.empty());
        if (!sizes.empty()) rooms[point].resize(sizes[own]);
        bytes += rooms[point].size();
        std::unique_lock lock(all.mutex);
        for (uint32_t group = 0; group < count; ++group)
            if (place.has(group, own) && !rooms[point].empty()) {
                const std::tuple key{lane, point_key(point), own, group};
                if (!all.changed.wait_for(lock, 20s, [&] { return !all.sent.contains(key); }))
                    return {Code::deadline, 0, "the other group has not taken what was sent before"};
                all.sent[key] = rooms[point];
            }
        all.changed.notify_all();
        for (uint32_t group = 0; group < count; ++group) {
            if (!place.has(group, own) || (!sizes.empty() && sizes[group] == 0)) continue;
            const std::tuple key{lane, point_key(point), group, own};
            if (!all.changed.wait_for(lock, 20s, [&] { return all.sent.contains(key); }))
                return {Code::deadline, 0, "the other group has sent nothing"};
            come[point][group] = all.sent[key];
            const uint64_t most = net.slice_bytes(point, group, samples, training);
            EXPECT_EQ(come[point][group].size(), sizes.empty() ? most : sizes[group]);
            EXPECT_LE(come[point][group].size(), most);
            all.sent.erase(key);
            all.changed.notify_all();
        }
        return {};
    }
    Buffer received(uint32_t, size_t point, uint32_t group) override {
        std::vector<std::byte>& from = come[point][group];
        from.resize(net.slice_bytes(point, group, samples, training));
        return {from.data(), nullptr, from.size()};
    }
    /// Alike at all groups, whose points may have other numbers.
    size_t point_key(size_t point) const {
        const SlicePoint& place = net.slice_points()[point];
        const uint32_t level = place.with == SlicePoint::all ? 0 : place.with ^ own;
        return size_t{place.layer} << 32 | static_cast<size_t>(place.what) << 16 | level;
    }

    Exchanged& all;
    Net& net;
    const uint32_t own, count;
    uint32_t samples = 0;
    bool training = true;
    uint64_t bytes = 0;   // that this group has sent, to one of the others
    std::vector<std::vector<std::byte>> rooms;
    std::vector<std::map<uint32_t, std::vector<std::byte>>> come;   // by point and group
};

struct Groups {
    Exchanged exchanged;
    std::vector<std::unique_ptr<Rig>> rigs;
    std::vector<std::unique_ptr<ThreadLink>> links;
    std::vector<Gather> found;   // by group, of the last block

    Groups(const NetSpec& spec, NetConfig config, uint32_t groups, const OptimiserConfig& optimiser = {}) {
        for (uint32_t group = 0; group < groups; ++group) {
            config.stage.slice_group = group;
            config.stage.slice_groups = groups;
            rigs.push_back(std::make_unique<Rig>(spec, config, optimiser));
            links.push_back(std::make_unique<ThreadLink>(exchanged, net(group), group, groups));
            net(group).slice_link(links[group].get());
        }
    }
    Net& net(size_t group) { return *rigs[group]->net; }
    uint32_t count() const { return static_cast<uint32_t>(rigs.size()); }
    /// act(group) on a thread of each group.
    template <typename Act>
    void run(uint32_t samples, bool training, Act act) {
        std::vector<std::thread> threads;
        for (uint32_t group = 0; group < count(); ++group) {
            links[group]->samples = samples;
            links[group]->training = training;
            threads.emplace_back([&act, group] {
                const Status status = act(group);
                EXPECT_TRUE(status.ok()) << "group " << group << ": " << status.what;
            });
        }
        for (std::thread& each : threads) each.join();
        EXPECT_TRUE(exchanged.sent.empty());
    }
    void gathers() {
        found.clear();
        for (uint32_t group = 0; group < count(); ++group) found.emplace_back(net(group).layout());
    }
    void block(const Block& block, bool apart = false) {
        gathers();
        run(block.samples.count, true, [&](uint32_t group) -> Status {
            GC_TRY(net(group).forward(0, 0, {&block, 1}, found[group]));
            if (!apart) return net(group).backward(0, 0, Backward::both, found[group]);
            GC_TRY(net(group).backward(0, 0, Backward::data, found[group]));
            return net(group).backward(0, 0, Backward::weights, found[group]);
        });
    }
    /// of(group): a span of what the group owns.  What several groups own must be the same.
    template <typename Of>
    std::vector<float> gathered(uint64_t elements, Of of) {
        std::vector<float> whole(elements, NAN);
        std::vector<bool> has(elements);
        for (uint32_t group = 0; group < count(); ++group)
            for (const Group& each : net(group).layout().groups) {
                uint64_t wrong = 0;
                for (uint64_t i = 0; i < each.count; ++i) {
                    const float value = of(group)[each.offset + i];
                    float& to = whole[each.place() + i];
                    const bool known = has[each.place() + i];
                    wrong +=
                        known != (each.shared && group > 0) || (known && std::bit_cast<uint32_t>(to) != std::bit_cast<uint32_t>(value));
                    to = value;
                    has[each.place() + i] = true;
                }
                EXPECT_EQ(wrong, 0u) << each.layer;
            }
        EXPECT_EQ(std::ranges::count(has, true), static_cast<int64_t>(elements));
        return whole;
    }
};

/// Two steps of one block, and evaluations after them.
void expect_bits_of_the_whole(const NetSpec& spec, uint32_t groups, uint32_t samples, bool apart, Precision precision = Precision::f32) {
    const OptimiserConfig adam = {.kind = "adam", .lr = 0.01};
    NetConfig config = sizes({samples});
    config.samples_max = 37;   // of evaluations
    config.precision = precision;
    config.bucket_bytes = 4096;
    Rig whole(spec, config, adam);
    config.passes_apart = apart;
    Groups all(spec, config, groups, adam);
    const uint64_t elements = whole.net->layout().elements;
    EXPECT_TRUE(same_bits(all.gathered(elements, [&](uint32_t group) { return all.net(group).parameters(); }),
                          {whole.net->parameters().begin(), whole.net->parameters().end()}));
    for (StepId step = 0; step < 2; ++step) {
        Data data(spec, samples, static_cast<uint32_t>(step + 1));
        const Block block{{step, 0}, data.samples};
        const Gather wanted = whole.block(data.samples, 0, step);
        all.block(block, apart);
        ASSERT_TRUE(
            same_bits(all.gathered(elements, [&](uint32_t group) { return std::span(all.found[group].gradient); }), wanted.gradient));
        whole.step(step, wanted.gradient, samples);
        uint64_t digest = 0;
        for (uint32_t group = 0; group < groups; ++group) {
            EXPECT_EQ(all.found[group].total, wanted.total);
            EXPECT_EQ(all.found[group].next, all.net(group).layout().buckets.size());
            EXPECT_EQ(all.net(group).layout().whole(), elements);
            EXPECT_STREQ(all.net(group).kernels(), whole.net->kernels());
            all.rigs[group]->step(step, all.found[group].gradient, samples);
            digest += all.net(group).digest() + all.rigs[group]->optimiser->digest(elements);
            EXPECT_EQ(all.net(group).shared_digest(), all.net(0).shared_digest());
        }
        EXPECT_EQ(digest, whole.net->digest() + whole.optimiser->digest(elements));
    }
    for (const uint32_t count : {37u, 21u, samples}) {
        Data data(spec, count, count);
        uint32_t right = 0;
        double loss = 0;
        const uint64_t positions = spec.positions();
        std::vector<int32_t> predicted(count * positions, -1);
        ASSERT_TRUE(whole.net->evaluate(0, data.samples, &right, &loss, predicted.data()).ok());
        std::vector<uint32_t> its_right(groups, ~0u);
        std::vector<double> its_loss(groups, NAN);
        std::vector<std::vector<int32_t>> its_predicted(groups, std::vector<int32_t>(predicted.size(), -1));
        all.run(count, false, [&](uint32_t group) {
            return all.net(group).evaluate(0, data.samples, &its_right[group], &its_loss[group], its_predicted[group].data());
        });
        for (uint32_t group = 0; group < groups; ++group) {
            EXPECT_EQ(its_right[group], right);
            EXPECT_EQ(its_loss[group], loss);
            EXPECT_EQ(its_predicted[group], predicted);
        }
    }
}

struct SliceCase {
    const char* name;
    NetSpec spec;
    std::vector<std::string> sliced;
    std::vector<uint32_t> samples;
};

std::vector<SliceCase> slice_cases() {
    return {
        {"before a softmax", of(1, 6, 9, 0, 23, {fc(77), relu(), dropout(0.2), fc(23), loss()}), {"fc1", "fc2"}, {3, 50}},
        {"the softmax alone", of(1, 6, 9, 0, 23, {fc(77), relu(), fc(23), loss()}), {"fc2"}, {3}},
        {"before another loss", of(1, 6, 9, 0, 23, {fc(77), relu(), fc(23), squared_loss()}), {"fc1", "fc2"}, {5}},
        {"between layers that are not",
         of(2, 7, 7, 0, 9, {conv(5, 3), relu(), fc(64), norm(), relu(), fc(40), fc(9), loss()}),
         {"fc2"},
         {6}},
        {"a softmax that is not the only reader",
         of(1, 6, 9, 0, 13, {named(fc(13), "x"), named(fc(13), "y"), add("x"), loss()}),
         {"x", "y"},
         {5}},
        {"convolutions of few channels, with pooling",
         of(3, 12, 10, 0, 12, {conv(64, 3), max_pool(2), relu(), fc(31), relu(), fc(12), loss()}),
         {"conv1", "fc1"},
         {5, 16}},
        {"convolutions of many channels",
         of(3, 9, 7, 0, 12, {conv(64, 3, 1, 1), conv(128, 3, 1, 1), relu(), conv(64, 5, 1, 2), conv(64, 1), fc(12), loss()}),
         {"conv2", "conv3", "conv4"},
         {5}},
        {"several readers, batch norm",
         of(3, 6, 6, 0, 12,
            {conv(64, 3, 1, 1), named(relu(), "r"), conv(64, 3, 1, 1), add("r"), norm(), average_pool(2), fc(9), fc(12), loss()}),
         {"conv1", "conv2", "fc1"},
         {5}},
        {"a transformer", small_gpt(), {"wte", "h1_qkv", "h1_projection", "h1_mlp1", "h1_mlp2", "h2_qkv", "h2_mlp2", "head"}, {3, 7}},
        {"its hidden layers", small_gpt(), {"h1_mlp1", "h1_mlp2", "h2_qkv"}, {4}},
        {"its last layer", small_gpt(), {"head"}, {4}},
        {"an embedding whose rows most samples do not name", small_text(250, 4), {"wte"}, {1, 5}},
        {"an embedding right before the softmax",
         [] {
             NetSpec spec = small_text(8, 5);
             spec.layers = {{.kind = "embedding", .name = "wte", .values = {{"outputs", 8}}}, loss()};
             return spec;
         }(),
         {"wte"},
         {4}},
        {"weights that layers share", tied_gpt(), {"h1_qkv", "h1_mlp1"}, {4}},
        {"slices of weights that layers share", tied_gpt(), {"wte", "h1_qkv", "h2_mlp2", "head"}, {1, 4}},
        {"masks",
         [] {
             NetSpec spec = of_masks();
             spec.classes = 6, spec.layers[3] = linear(6);
             return spec;
         }(),
         {"linear1"},
         {5}},
    };
}

TEST(SliceGroups, HaveTheBitsOfTheWholeNet) {
    for (const SliceCase& each : slice_cases())
        for (const auto& [slices, groups, apart] : {std::tuple{4u, 2u, false}, {4u, 4u, true}, {2u, 2u, false}})
            for (const uint32_t samples : each.samples) {
                const bool convolutions = each.spec.layers[0].kind == "conv";
                if (convolutions && slices == 2) continue;   // whose kernels take long to make
                SCOPED_TRACE(fmt::format("{}, {} slices, {} groups, {} samples, apart {}", each.name, slices, groups, samples, apart));
                expect_bits_of_the_whole(cut(each.spec, slices, each.sliced), groups, samples, apart);
            }
}

TEST(SliceGroups, OfManySlices) {
    const NetSpec spec = of(1, 9, 9, 0, 40, {fc(130), relu(), fc(40), loss()});
    for (const auto& [slices, groups] : {std::pair{32u, 8u}, {32u, 32u}, {16u, 1u}})
        expect_bits_of_the_whole(cut(spec, slices, {"fc1", "fc2"}), groups, 4, false);
}

TEST(SliceGroups, InBf16) {
    if (isa_best() < Isa::avx512_bf16) GTEST_SKIP() << "this CPU has no bf16";
    const NetSpec spec = of(3, 8, 8, 0, 6, {conv(64, 3, 1, 1), conv(64, 3, 1, 1), relu(), conv(64, 1), fc(70), relu(), fc(6), loss()});
    expect_bits_of_the_whole(cut(spec, 2, {"conv1", "conv2", "conv3", "fc1", "fc2"}), 2, 16, false, Precision::bf16);
}

// Stages of which each has two slice groups.
TEST(SliceGroups, OfAStage) {
    const NetSpec spec = cut(of(1, 6, 9, 0, 23, {fc(77), relu(), fc(60), relu(), fc(23), loss()}), 4, {"fc1", "fc2", "fc3"});
    NetConfig config = sizes({5});
    Rig whole(spec, config);
    config.stage = {2, ~0u};
    Groups last(spec, config, 2);
    config.stage = {0, 2};
    Groups first(spec, config, 2);
    Data data(spec, 5);
    const Block block{{0, 0}, data.samples};
    const Gather wanted = whole.block(data.samples);
    first.gathers(), last.gathers();
    for (Gather& each : first.found) each.has_loss = true;   // the last stage has it
    auto cross = [](Net& from, Net& to, bool gradient) {
        const Buffer sent = from.edge(0, 0, 0, gradient, 5), received = to.edge(0, 0, 0, gradient, 5);
        ASSERT_EQ(sent.bytes, received.bytes);
        std::memcpy(received.host, sent.host, sent.bytes);
    };
    first.run(5, true, [&](uint32_t group) { return first.net(group).forward(0, 0, {&block, 1}, first.found[group]); });
    for (const uint32_t group : {0u, 1u}) cross(first.net(group), last.net(group), false);
    last.run(5, true, [&](uint32_t group) { return last.net(group).block(0, block.id, block.samples, last.found[group]); });
    for (const uint32_t group : {0u, 1u}) cross(last.net(group), first.net(group), true);
    first.run(5, true, [&](uint32_t group) { return first.net(group).backward(0, 0, Backward::both, first.found[group]); });
    for (Groups* stage : {&first, &last})
        for (const uint32_t group : {0u, 1u})
            for (const Layout::Run& run : stage->net(group).layout().runs())
                EXPECT_EQ(std::memcmp(stage->found[group].gradient.data() + run.offset, wanted.gradient.data() + run.place,
                                      run.count * sizeof(float)),
                          0);
    for (const Gather& each : last.found) EXPECT_EQ(each.total, wanted.total);
}

TEST(SliceGroups, OfBlocksTogether) {
    const NetSpec spec =
        cut(of(1, 20, 20, 0, 10, {fc(700), relu(), dropout(0.2), fc(150), relu(), fc(10), loss()}), 4, {"fc1", "fc2", "fc3"});
    constexpr uint32_t samples = 16, count = 3;
    const NetConfig config = sizes({samples});
    Rig whole(spec, config);
    for (const bool by_pieces : {false, true}) {
        Groups all(spec, config, 2);
        std::vector<std::unique_ptr<Data>> data;
        std::vector<Block> blocks;
        for (uint32_t b = 0; b < count; ++b) {
            data.push_back(std::make_unique<Data>(spec, samples, b));
            blocks.push_back({{0, b}, data[b]->samples});
        }
        std::vector<GatherEach> found;
        for (uint32_t group = 0; group < 2; ++group) {
            ASSERT_GE(all.net(group).together(), count);
            found.emplace_back(all.net(group).layout(), count, by_pieces);
        }
        all.run(samples * count, true, [&](uint32_t group) { return all.net(group).blocks(0, blocks, found[group]); });
        for (uint32_t b = 0; b < count; ++b) {
            Gather wanted(whole.net->layout());
            ASSERT_TRUE(whole.net->block(0, blocks[b].id, blocks[b].samples, wanted).ok());
            for (uint32_t group = 0; group < 2; ++group) {
                EXPECT_EQ(found[group].each[b].total, wanted.total);
                EXPECT_EQ(found[group].each[b].in_pieces > 0, by_pieces);
            }
            EXPECT_TRUE(same_bits(
                all.gathered(whole.net->layout().elements, [&](uint32_t group) { return std::span(found[group].each[b].gradient); }),
                wanted.gradient));
        }
    }
}

// A forward pass that is computed again exchanges nothing: a slot keeps what has come.
TEST(SliceGroups, ComputeForwardPassesAgain) {
    struct Order {
        const char* name;
        const std::vector<Call>& calls;
        uint32_t slots, blocks;
    };
    const Order orders[] = {{"gpipe", all_forward_then_all_backward, 3, 3}, {"1f1b", one_forward_one_backward, 2, 4}};
    for (const SliceCase& each : slice_cases())
        for (const auto& [name, calls, slots, blocks] : orders)
            for (const uint32_t groups : {2u, 4u}) {
                if (groups == 4 && each.spec.layers[0].kind == "conv") continue;   // whose kernels take long to make
                SCOPED_TRACE(fmt::format("{}, {}, {} groups", each.name, name, groups));
                const NetSpec spec = cut(each.spec, 4, each.sliced);
                const uint32_t samples = each.samples[0];
                Rig whole(spec, sizes({samples}));
                NetConfig config = sizes({samples});
                config.slots = slots;
                uint64_t bytes[2] = {}, activations[2] = {};
                for (const bool recompute : {false, true}) {
                    config.recompute = recompute;
                    Groups all(spec, config, groups);
                    std::vector<GatherEach> found;
                    for (uint32_t group = 0; group < groups; ++group) found.emplace_back(all.net(group).layout(), blocks, false);
                    std::vector<std::unique_ptr<Data>> data;
                    for (uint32_t b = 0; b < blocks; ++b) data.push_back(std::make_unique<Data>(spec, samples, b + 1));
                    all.run(samples, true, [&](uint32_t group) -> Status {
                        Net& net = all.net(group);
                        for (const auto& [pass, b] : calls) {
                            const Block block{{0, b}, data[b]->samples};
                            GC_TRY(pass == Call::forward ? net.forward(0, b % slots, {&block, 1}, found[group])
                                                         : net.backward(0, b % slots, Backward::both, found[group]));
                        }
                        return {};
                    });
                    for (uint32_t b = 0; b < blocks; ++b) {
                        Gather wanted(whole.net->layout());
                        ASSERT_TRUE(whole.net->block(0, {0, b}, data[b]->samples, wanted).ok());
                        for (uint32_t group = 0; group < groups; ++group) EXPECT_EQ(found[group].each[b].total, wanted.total);
                        const auto gradient = [&](uint32_t group) { return std::span(found[group].each[b].gradient); };
                        EXPECT_TRUE(same_bits(all.gathered(whole.net->layout().elements, gradient), wanted.gradient)) << "block " << b;
                    }
                    for (const auto& link : all.links) bytes[recompute] += link->bytes;
                    activations[recompute] = activation_bytes(*all.rigs[0]);
                }
                EXPECT_EQ(bytes[true], bytes[false]);
                EXPECT_LT(activations[true], activations[false]);
            }
}

// Inputs of the softmax that are alike, and NaN, at several groups.
TEST(SliceGroups, PredictTheFirstOfTheLargest) {
    constexpr uint32_t K = 11;
    const NetSpec spec = cut(of(1, 1, 1, 0, K, {fc(K), loss()}), 4, {"fc1"});
    Rig whole(spec, sizes({1}));
    Data data(spec, 1);
    for (const uint32_t groups : {2u, 4u}) {
        Groups all(spec, sizes({1}), groups);
        auto predicted = [&](std::vector<std::pair<uint32_t, float>> logits) {
            std::vector<float> values(2 * K);   // weights, then biases
            for (uint32_t k = 0; k < K; ++k) values[K + k] = -1;
            for (const auto& [k, value] : logits) values[K + k] = value;
            std::ranges::copy(values, whole.net->parameters().begin());
            whole.net->refresh();
            std::vector<int32_t> found(groups, -1);
            std::vector<double> sums(groups);
            std::vector<uint32_t> right(groups);
            for (uint32_t group = 0; group < groups; ++group) {
                for (const Layout::Run& run : all.net(group).layout().runs())
                    std::copy_n(values.begin() + static_cast<int64_t>(run.place), run.count,
                                all.net(group).parameters().begin() + static_cast<int64_t>(run.offset));
                all.net(group).refresh();
            }
            all.run(1, false,
                    [&](uint32_t group) { return all.net(group).evaluate(0, data.samples, &right[group], &sums[group], &found[group]); });
            uint32_t wanted_right = 0;
            double wanted_sum = 0;
            int32_t wanted = -1;
            EXPECT_TRUE(whole.net->evaluate(0, data.samples, &wanted_right, &wanted_sum, &wanted).ok());
            for (uint32_t group = 0; group < groups; ++group) {
                EXPECT_EQ(found[group], wanted);
                EXPECT_EQ(right[group], wanted_right);
                EXPECT_EQ(std::isnan(sums[group]), std::isnan(wanted_sum));
                if (!std::isnan(wanted_sum)) {
                    EXPECT_EQ(sums[group], wanted_sum);
                }
            }
            return wanted;
        };
        EXPECT_EQ(predicted({{9, 3.0f}}), 9);
        EXPECT_EQ(predicted({{4, 3.0f}, {9, 3.0f}}), 4);
        EXPECT_EQ(predicted({}), 0);
        EXPECT_EQ(predicted({{2, INFINITY}, {7, NAN}, {10, NAN}}), 7);
        for (const uint32_t label : {0u, 3u, 5u, 8u, 10u})
            data.labels[0] = static_cast<int32_t>(label), predicted({{label, 0.5f}, {6, 2.0f}});
    }
}

// A group has its slices alone, and does not send what nobody reads.
TEST(SliceGroups, TakeTheMemoryAndTheBytesOfTheirSlices) {
    const NetSpec spec = cut(preset("mlp"), 4, {"fc1", "fc2", "fc3"});
    constexpr uint32_t samples = 8;
    Rig whole(spec, sizes({samples}));
    Groups all(spec, sizes({samples}), 2);
    for (uint32_t group = 0; group < 2; ++group) {
        EXPECT_LT(all.net(group).layout().elements, whole.net->layout().elements * 51 / 100);
        EXPECT_LT(all.rigs[group]->arena.whole().bytes, whole.arena.whole().bytes * 6 / 10);
    }
    const NetSpec last = cut(of(1, 8, 8, 0, 16, {fc(32), fc(16), loss()}), 2, {"fc2"});
    Groups of_softmax(last, sizes({samples}), 2);
    Data data(last, samples);
    of_softmax.block({{0, 0}, data.samples});
    const uint64_t told = samples * 12, sums = samples * 4, gradients = samples * 32 * 4;
    for (const auto& link : of_softmax.links) EXPECT_EQ(link->bytes, told + sums + gradients);
}

// A row that several positions name is sent once, and one that none names not at all.
TEST(SliceGroups, SendTheRowsThatAreNamed) {
    const NetSpec spec = cut(small_text(100, 6), 4, {"wte"});
    Groups all(spec, sizes({2}), 2);
    std::vector<uint16_t> tokens = {3, 3, 99, 3, 98, 99, 7, 50, 98, 99, 98, 99, 99, 0};   // the last one of each sample is a label alone
    const std::vector<float> mean(1, 0.0f), std(1, 1.0f);
    Samples samples{reinterpret_cast<const uint8_t*>(tokens.data()), nullptr, 2, 1, 1, 7, mean.data(), std.data()};
    samples.element = Element::u16;
    all.block({{0, 0}, samples});
    const uint64_t row = 12 * sizeof(float);
    EXPECT_EQ(all.links[0]->bytes, row);       // 3
    EXPECT_EQ(all.links[1]->bytes, 3 * row);   // 50, 98, 99
}

TEST(SliceGroups, DivideTheSlices) {
    const NetSpec spec = cut(of(1, 4, 4, 0, 8, {fc(32), fc(8), loss()}), 2, {"fc1"});
    NetConfig config = sizes({4});
    config.stage.slice_groups = 4;
    Arena arena;
    std::unique_ptr<Net> net;
    EXPECT_STREQ(net_cpu_plan(spec, config, arena, &net).what, "4 slice groups do not divide the 2 slices of layer fc1");
}

}   // namespace
}   // namespace gradcast
