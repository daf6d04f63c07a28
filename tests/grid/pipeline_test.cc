// Stages of a net that follow a schedule, each with as many slots as the schedule says, in one process: the gradients of every block have
// the bits of the whole net.
#include <map>

#include "algos/grid/schedule.h"
#include "tests/nn/nets.h"

namespace gradcast {
namespace {

constexpr uint32_t samples = 3;

class Pipeline {
public:
    Pipeline(const NetSpec& spec, const std::vector<uint32_t>& begins, Schedule schedule, uint32_t micro_batches, bool recompute) {
        const auto stages = static_cast<uint32_t>(begins.size());
        for (uint32_t i = 0; i < stages; ++i) {
            Stage& stage = stages_.emplace_back();
            stage.tasks = stage_tasks(schedule, stages, i, micro_batches);
            NetConfig config = sizes({samples});
            config.stage = {begins[i], i + 1 < stages ? begins[i + 1] : ~0u};
            config.slots = slots_of(stage.tasks);
            config.passes_apart = passes_apart(schedule);
            config.recompute = recompute;
            stage.rig = std::make_unique<Rig>(spec, config);
            for (uint32_t b = 0; b < micro_batches; ++b) {
                stage.found.emplace_back(stage.rig->net->layout());
                stage.found.back().has_loss = i + 1 < stages;   // the last stage has the loss
            }
        }
    }
    /// Runs whatever can run, until all has.
    void run(std::span<const Block> blocks) {
        for (bool any = true; any;) {
            any = false;
            for (Stage& stage : stages_)
                while (stage.next < stage.tasks.size() && arrived(stage)) {
                    task(stage, blocks);
                    any = true;
                }
        }
        for (const Stage& stage : stages_) ASSERT_EQ(stage.next, stage.tasks.size()) << "stages wait for each other";
    }
    std::vector<float> gradient(uint32_t block, uint64_t elements) const {
        std::vector<float> whole(elements, NAN);
        for (const Stage& stage : stages_)
            for (const Layout::Run& run : stage.rig->net->layout().runs())
                std::copy_n(stage.found[block].gradient.begin() + static_cast<int64_t>(run.offset), run.count,
                            whole.begin() + static_cast<int64_t>(run.place));
        return whole;
    }
    double loss(uint32_t block) const { return stages_.back().found[block].total; }

private:
    struct Stage {
        std::vector<StageTask> tasks;
        size_t next = 0;
        std::unique_ptr<Rig> rig;
        std::vector<Gather> found;   // by block
    };
    /// Of the reading layer, the layer read, gradient or value, and the micro-batch.
    using Letter = std::tuple<uint32_t, uint32_t, bool, uint32_t>;

    static bool takes_gradients(StagePass pass) { return pass == StagePass::backward || pass == StagePass::data; }
    /// Calls f(number of the edge, gradient) for what comes before a pass, or leaves after it.
    template <typename F>
    static void each(const Stage& stage, StagePass pass, bool before, F f) {
        const std::span<const Edge> edges = stage.rig->net->edges();
        for (size_t i = 0; i < edges.size(); ++i) {
            if (pass == StagePass::forward && edges[i].incoming == before) f(i, false);
            if (takes_gradients(pass) && edges[i].incoming != before && edges[i].learns) f(i, true);
        }
    }
    static Letter letter(const Edge& edge, bool gradient, uint32_t micro_batch) { return {edge.by, edge.from, gradient, micro_batch}; }

    bool arrived(const Stage& stage) const {
        const auto& [pass, micro_batch] = stage.tasks[stage.next];
        bool all = true;
        each(stage, pass, true,
             [&](size_t i, bool gradient) { all = all && mail_.contains(letter(stage.rig->net->edges()[i], gradient, micro_batch)); });
        return all;
    }
    void task(Stage& stage, std::span<const Block> blocks) {
        const auto [pass, b] = stage.tasks[stage.next++];
        Net& net = *stage.rig->net;
        const uint32_t slot = b % net.slots();
        each(stage, pass, true, [&](size_t i, bool gradient) {
            const std::vector<std::byte>& sent = mail_.at(letter(net.edges()[i], gradient, b));
            const Buffer to = net.edge(0, slot, i, gradient, samples);
            ASSERT_EQ(sent.size(), to.bytes);
            std::memcpy(to.host, sent.data(), to.bytes);
        });
        const Status status = pass == StagePass::forward ? net.forward(0, slot, blocks.subspan(b, 1), stage.found[b])
                                                         : net.backward(0, slot,
                                                                        pass == StagePass::backward ? Backward::both
                                                                        : pass == StagePass::data   ? Backward::data
                                                                                                    : Backward::weights,
                                                                        stage.found[b]);
        ASSERT_TRUE(status.ok()) << status.what;
        each(stage, pass, false, [&](size_t i, bool gradient) {
            const Buffer from = net.edge(0, slot, i, gradient, samples);
            mail_[letter(net.edges()[i], gradient, b)].assign(from.host, from.host + from.bytes);
        });
    }

    std::vector<Stage> stages_;
    std::map<Letter, std::vector<std::byte>> mail_;
};

TEST(Pipeline, HasTheBitsOfTheWholeNet) {
    constexpr uint32_t micro_batches = 5;
    for (const char* name : {"lenet5", "mlp", "nin", "resnet9", "everything"}) {
        const bool grey = name == std::string("lenet5") || name == std::string("mlp");
        const NetSpec spec = name == std::string("everything") ? everything() : preset(name, grey ? 1 : 3, grey ? 28 : 32);
        Rig whole(spec, sizes({samples}));
        std::vector<std::unique_ptr<Data>> data;
        std::vector<Block> blocks;
        std::vector<Gather> wanted;
        for (uint32_t b = 0; b < micro_batches; ++b) {
            data.push_back(std::make_unique<Data>(spec, samples, b + 1));
            blocks.push_back({{0, b}, data[b]->samples});
            ASSERT_TRUE(whole.net->block(0, blocks[b].id, blocks[b].samples, wanted.emplace_back(whole.net->layout())).ok());
        }
        const std::vector<uint32_t> all = whole.net->stage_begins();
        const std::vector<uint32_t> begins = {0, all[all.size() / 4], all[all.size() / 2], all[all.size() * 3 / 4]};
        for (Schedule schedule : all_schedules)
            for (const bool recompute : {false, true}) {
                if (recompute && passes_apart(schedule)) continue;
                SCOPED_TRACE(
                    fmt::format("{}, {}, recompute {}", name, pipeline_schedule_names()[static_cast<size_t>(schedule)], recompute));
                Pipeline pipeline(spec, begins, schedule, micro_batches, recompute);
                pipeline.run(blocks);
                for (uint32_t b = 0; b < micro_batches; ++b) {
                    EXPECT_EQ(pipeline.loss(b), wanted[b].total);
                    EXPECT_TRUE(same_bits(pipeline.gradient(b, whole.net->layout().elements), wanted[b].gradient)) << "block " << b;
                }
            }
    }
}

}   // namespace
}   // namespace gradcast
