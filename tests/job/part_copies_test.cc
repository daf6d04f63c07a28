// Parts of checkpoints at several nodes.
#include <set>

#include "algos/dispatch.h"
#include "runtime/job/model/model_part.h"
#include "runtime/job/run/job_check.h"
#include "runtime/job/run/part_copies.h"
#include "runtime/job/run/part_holders.h"
#include "runtime/job/run/planned_job.h"
#include "runtime/job/run/resume.h"
#include "tests/job/runs.h"

namespace gradcast {
namespace {

struct Row {
    uint32_t nodes, stages;
    std::vector<Rank> lost;
    uint64_t number;
    uint32_t copies;
    bool travel;
    std::vector<std::pair<std::vector<Rank>, std::vector<Rank>>> wanted;   // by stage: writers, receivers
};

TEST(PartHolders, EachPartIsAtSoManyNodes) {
    const Row rows[] = {
        {2, 2, {}, 1, copies_auto, true, {{{0}, {1}}, {{1}, {0}}}},
        {2, 2, {}, 1, 1, true, {{{0}, {}}, {{1}, {}}}},
        {2, 2, {}, 1, copies_auto, false, {{{0}, {}}, {{1}, {}}}},
        {4, 4, {}, 7, 3, true, {{{0}, {1, 2}}, {{1}, {2, 3}}, {{2}, {3, 0}}, {{3}, {0, 1}}}},
        {4, 2, {}, 0, copies_auto, true, {{{0}, {}}, {{1}, {}}}},
        {4, 2, {}, 1, copies_auto, true, {{{2}, {}}, {{3}, {}}}},
        {4, 2, {}, 1, 2, true, {{{2, 0}, {}}, {{3, 1}, {}}}},
        {4, 2, {}, 1, 3, true, {{{2, 0}, {3}}, {{3, 1}, {2}}}},
        {4, 2, {}, 0, 4, true, {{{0, 2}, {1, 3}}, {{1, 3}, {0, 2}}}},
        {4, 2, {2}, 1, 2, true, {{{0}, {1}}, {{3, 1}, {}}}},
        {5, 2, {}, 4, 2, true, {{{0, 2}, {}}, {{1, 3}, {}}}},   // node 4 is a spare
        {3, 2, {}, 1, 3, true, {{{0}, {1}}, {{1}, {0}}}},       // and has no place for more
    };
    for (const Row& row : rows) {
        SCOPED_TRACE(fmt::format("{} nodes, {} stages, number {}, {} copies", row.nodes, row.stages, row.number, row.copies));
        Grid grid;
        ASSERT_TRUE(Grid::make(row.nodes, row.stages, 1, &grid).ok());
        const auto lost = [&](Rank rank) { return std::ranges::find(row.lost, rank) != row.lost.end(); };
        const auto found = part_holders(grid, lost, row.number, row.copies, row.travel);
        ASSERT_EQ(found.size(), row.stages);
        for (uint32_t stage = 0; stage < row.stages; ++stage) {
            EXPECT_EQ(found[stage].writers, row.wanted[stage].first) << "stage " << stage;
            EXPECT_EQ(found[stage].receivers, row.wanted[stage].second) << "stage " << stage;
        }
    }
}

class PartCopiesTest : public RunsTest {
protected:
    /// A net of four inner products.
    std::string text(uint32_t stages, const std::string& job) {
        std::string layers = job_text(fmt::format("[parallel]\nstages = {}\n", stages));
        const std::string one = "[[net.layers]]\nkind = \"inner_product\"\noutputs = 16\n";
        return with_job(replaced(replaced(layers, one, one + one + replaced(one, "16", "700")), "lr = 0.05", "lr = 0.002"), job);
    }
    using Held = std::map<uint64_t, std::map<uint32_t, std::vector<std::string>>>;   // folders by steps and cell
    static Held held(const Run& run) {
        Held all;
        for (const std::string& folder : run.folders)
            for (const CheckpointName& name : checkpoint_files(folder)) all[name.steps][name.cell].push_back(folder);
        return all;
    }
    static std::set<uint64_t> steps_of(const Held& held) {
        std::set<uint64_t> all;
        for (const auto& [steps, cells] : held) all.insert(steps);
        return all;
    }
    /// The newest state of which one folder has all parts.
    static Resume newest_in(const std::string& folder, uint32_t cells) {
        const std::vector<CheckpointHere> all = checkpoints_in(folder);
        Resume resume;
        if (all.empty()) return resume;
        resume.on = true;
        resume.steps = all.back().steps;
        resume.state = splitmix64(resume.steps);
        for (uint32_t cell = 0; cell < cells; ++cell) {
            const std::string path = checkpoint_path(folder, {resume.steps, cell, cells});
            ModelPart part;
            const Status status = part.open(path);
            EXPECT_TRUE(status.ok()) << status.what;
            resume.state += part.model().state;
            resume.holders.push_back(NodeId{0});
            resume.paths.push_back(path);
        }
        return resume;
    }
};

TEST_F(PartCopiesTest, EachPartIsAtSoManyNodes) {
    struct Shape {
        uint32_t nodes, stages, copies;
        const char* key;
    };
    for (const auto& [nodes, stages, copies, key] : {Shape{2, 2, 2, ""},
                                                     {2, 2, 1, "1"},
                                                     {4, 4, 2, "\"auto\""},
                                                     {4, 4, 4, "4"},
                                                     {4, 2, 1, ""},
                                                     {4, 2, 2, "2"},
                                                     {4, 2, 3, "3"},
                                                     {3, 1, 2, "2"}}) {
        SCOPED_TRACE(fmt::format("{} nodes, {} stages, copies {}", nodes, stages, key));
        const std::string more = *key ? fmt::format("checkpoint_copies = {}\n", key) : "";
        const Run quiet = run(text(1, ""), 1);
        const Run run = this->run(text(stages, "checkpoint_every = 5\naudit_every = 100\n" + more), nodes);
        ASSERT_EQ(run.digest(), quiet.digest());
        const Held all = held(run);
        // Of the last one a copy may still have been under way.
        if (stages > 1) {
            EXPECT_EQ(steps_of(all), (std::set<uint64_t>{40, 45}));
        }
        for (const auto& [steps, cells] : all) {
            EXPECT_EQ(cells.size(), stages);
            for (const auto& [cell, folders] : cells) {
                EXPECT_EQ(folders.size(), copies) << "after " << steps << " steps, part " << cell;
                Model first;
                for (const std::string& folder : folders) {
                    ModelPart part;
                    Status status = part.open(checkpoint_path(folder, {steps, cell, stages}));
                    ASSERT_TRUE(status.ok()) << status.what;
                    status = part.read({});
                    EXPECT_TRUE(status.ok()) << status.what;
                    if (folder == folders[0]) first = part.model();
                    EXPECT_EQ(part.model().digest, first.digest);
                    EXPECT_EQ(part.model().state, first.state);
                    EXPECT_EQ(part.model().evaluated, first.evaluated);
                    EXPECT_TRUE(part.model().agreed);
                }
            }
        }
        for (const JobStatus& rank : run.ranks) EXPECT_TRUE(rank.warnings.empty()) << rank.warnings[0];
        for (const std::string& folder : run.folders)
            for (const auto& file : std::filesystem::directory_iterator(folder)) EXPECT_NE(file.path().extension(), ".part") << file.path();
    }
}

// The nodes with the same part take turns.
TEST_F(PartCopiesTest, SuccessiveCheckpointsHaveDifferentWriters) {
    const std::string stages = text(2, "");
    const std::string slices = replaced(stages, "stages = 2\n", "slices = 2\nsliced = [\"fc3\"]\nslice_groups = 2\n");
    for (const std::string& two_parts : {stages, slices}) {
        SCOPED_TRACE(two_parts);
        const Run run = this->run(with_job(two_parts, "checkpoint_every = 5\naudit_every = 100\ncheckpoint_copies = 1\n"), 4);
        ASSERT_TRUE(run.status.ok()) << run.status.what;
        const Held all = held(run);
        ASSERT_EQ(steps_of(all), (std::set<uint64_t>{40, 45}));
        for (uint32_t cell = 0; cell < 2; ++cell) {
            std::set<std::string> writers;
            for (const auto& [steps, cells] : all) {
                ASSERT_TRUE(cells.contains(cell));
                ASSERT_EQ(cells.at(cell).size(), 1u);
                writers.insert(cells.at(cell)[0]);
            }
            EXPECT_EQ(writers, (std::set{run.folders[cell], run.folders[cell + 2]}));
        }
    }
}

// The node that is killed has the only node of its stage, and its folder is lost with it.
TEST_F(PartCopiesTest, OneNodesFolderIsEnoughOfTwoStages) {
    const Run quiet = run(text(1, ""), 1);
    const std::string often = "checkpoint_every = 3\n";
    uint32_t resumed = 0;
    uint64_t last = 0;
    for (uint64_t at_us = 10'000; at_us < 110'000; at_us += 9'700)
        for (const Rank dead : {0u, 1u}) {
            SCOPED_TRACE(fmt::format("rank {} killed at {}", dead, at_us));
            const Run broken = run(text(2, often), 2, {}, [&](Simulator& simulator) { simulator.kill(dead, at_us); });
            if (broken.status.ok()) continue;
            std::filesystem::remove_all(broken.folders[dead]);
            const Resume resume = newest_in(broken.folders[1 - dead], 2);
            if (!resume.on) {
                EXPECT_LT(broken.ranks[1 - dead].step, 8u);
                continue;
            }
            EXPECT_GE(resume.steps + 7, broken.ranks[1 - dead].step);
            last = std::max(last, resume.steps);
            ++resumed;
            for (const uint32_t nodes : {1u, 2u}) {
                const Run second = run(text(nodes, often), nodes, resume);
                ASSERT_EQ(second.digest(), quiet.digest());
                EXPECT_EQ(second.ranks[0].resumed, resume.steps);
            }
        }
    EXPECT_GT(resumed, 8u);
    EXPECT_GT(last, 20u);
}

// The rank that is to write the model is lost after the last step: the others have all parts of the last state.
TEST_F(PartCopiesTest, TheLastStateIsWrittenInPartsWhereItsModelIsNot) {
    const Run quiet = run(text(1, ""), 1);
    const std::string text = this->text(2, "checkpoint_every = 10\n");
    const auto killed = [&](uint64_t at_us) { return run(text, 4, {}, [&](Simulator& simulator) { simulator.kill(0, at_us); }); };
    const uint64_t last = quiet.ranks[0].step;
    uint64_t before = 1'000, after = 10'000'000;   // the last step ends in between
    while (after - before > 20) {
        const uint64_t middle = (before + after) / 2;
        (killed(middle).ranks[2].step < last ? before : after) = middle;
    }
    const Run broken = killed(after);
    ASSERT_FALSE(broken.status.ok());
    ASSERT_FALSE(std::filesystem::exists(broken.folders[0] + "/final.h5"));
    const Held all = held(broken);
    ASSERT_TRUE(all.contains(last));
    for (const Rank rank : {1u, 2u, 3u})
        EXPECT_EQ(std::ranges::count(all.at(last).at(rank % 2), broken.folders[rank]), 1) << "rank " << rank;
    Resume resume{.on = true, .steps = last, .state = splitmix64(last), .holders = {}, .paths = {}, .notes = {}};
    for (uint32_t cell = 0; cell < 2; ++cell) {
        ModelPart part;
        const std::string path = checkpoint_path(broken.folders[cell == 0 ? 2 : 1], {last, cell, 2});
        const Status status = part.open(path);
        ASSERT_TRUE(status.ok()) << status.what;
        resume.state += part.model().state;
        resume.holders.push_back(NodeId{0});
        resume.paths.push_back(path);
    }
    for (const uint32_t nodes : {1u, 2u}) {
        const Run second = run(this->text(nodes, ""), nodes, resume);
        EXPECT_EQ(second.digest(), quiet.digest());
        EXPECT_TRUE(std::filesystem::exists(second.folders[0] + "/final.h5"));
    }
}

// On fewer nodes than the job began with.
TEST_F(PartCopiesTest, AResumedJobGoesOnWithFewerCopies) {
    const Run quiet = run(text(1, ""), 1);
    const Run first = run(text(3, "checkpoint_every = 10\naudit_every = 100\ncheckpoint_copies = 3\n"), 3);
    ASSERT_EQ(first.digest(), quiet.digest());
    const Resume resume = newest_in(first.folders[1], 3);
    ASSERT_EQ(resume.steps, 40u);
    for (const uint32_t nodes : {1u, 2u}) {
        const Run second = run(text(nodes, "checkpoint_every = 2\naudit_every = 100\ncheckpoint_copies = 3\n"), nodes, resume);
        ASSERT_EQ(second.digest(), quiet.digest());
        for (const JobStatus& rank : second.ranks)
            EXPECT_EQ(rank.warnings,
                      std::vector<std::string>{nodes == 1 ? "job.checkpoint_copies = 3, but the job has 1 node: only 1 is possible, or "
                                                            "\"auto\"; the job goes on with 1"
                                                          : "job.checkpoint_copies = 3, but the job has 2 nodes: 1 to 2 are possible, or "
                                                            "\"auto\"; the job goes on with 2"});
        const Held all = held(second);
        for (uint32_t cell = 0; cell < nodes; ++cell) EXPECT_EQ(all.at(46).at(cell).size(), nodes);
    }

    // A node that has all parts reads those of the newest checkpoint, and none before.
    std::vector<FoundState> states;
    Model model;
    std::vector<std::string> notes;
    ASSERT_GT(checkpoint_files(first.folders[1]).size(), 3u);
    ASSERT_TRUE(resume_find(first.folders[1], &states, &model, &notes).ok());
    EXPECT_EQ(states.size(), 3u);
    EXPECT_EQ(model.step, 40u);
}

/// Counts the words that come between the pieces.
struct Words final : Consumer {
    static constexpr uint64_t ticket = 7;
    Status take(const Completion& completion) override {
        count += completion.id == ticket;
        return {};
    }
    uint32_t count = 0;
};

// The receiver's writer takes nothing out of the rooms before all are full, and is done before the trainer looks again: the trainer then
// gets one word, and nothing else of the copy.
TEST_F(PartCopiesTest, ACopyGoesOnWheneverTheTrainerCollects) {
    constexpr uint32_t words = 30;
    constexpr uint64_t steps = 5, tag = 77, between_us = 100'000;
    constexpr auto channel = mail_channel;
    const std::string text = replaced(this->text(2, ""), "outputs = 700", "outputs = 60000");
    std::vector<EngineConfig> configs = {config(text, 2, 0), config(text, 2, 1)};
    Report reports[] = {Report{Log()}, Report{Log()}};
    PlannedJob planned[2];
    std::unique_ptr<Protocol> mails[2];
    auto sim = Simulator::create({.ranks = 2});
    for (Rank rank = 0; rank < 2; ++rank) {
        ASSERT_TRUE(make_directories(configs[rank].folder).ok());
        ASSERT_TRUE(planned[rank].parts.examine(configs[rank], false, reports[rank]).ok());
        ASSERT_TRUE(planned[rank].plan(configs[rank], "cpu", reports[rank]).ok());
        mails[rank] = mail_protocol(rank, 2, segment_bytes_stream);
        sim->attach(rank, channel, mails[rank].get());
    }
    const auto sizes_of = [&](Rank rank) { return state_sizes(planned[rank].parts.runs); };
    const Rank from = sizes_of(0)[StateVector::parameters] > sizes_of(1)[StateVector::parameters] ? 0 : 1;   // the larger part
    const StateSizes sizes = sizes_of(from);
    const std::vector<float> parameters(sizes[StateVector::parameters], 0.5f), optimiser(sizes[StateVector::optimiser], 0.25f);
    const std::vector<int32_t> exponents(sizes[StateVector::exponents], -3);
    const CheckpointName name{steps, from, 2};
    size_t all = 0, pieces = 0;
    for (const StateVector which : state_vectors)
        for (const Layout::Run& run : planned[from].parts.runs[which])
            all += (run.count * kind_of(which).width + 256 * 1024 - 1) / (256 * 1024);
    ASSERT_GT(all, 30u);
    Model model;
    model.net = planned[0].parts.spec;
    model.mean = {0.3f}, model.std = {0.2f};
    model.job = text;
    model.step = steps;
    std::byte word{};
    uint32_t heard = 0;
    for (Rank self = 0; self < 2; ++self)
        sim->trainer(self, [&, self](Host& host) -> Status {
            Progress progress;
            std::vector<std::string> why_lost;
            Dispatch dispatch(host, progress, {false, false}, why_lost, 4'000'000);
            Mail mail(host, channel);
            Words said;
            dispatch.add(channel, &said);
            std::vector<std::byte> memory(PartCopies::rooms_bytes(planned[self].parts));
            const auto finish = [&](const CheckpointName& of) {
                const std::string path = checkpoint_path(configs[self].folder, of);
                return file_rename(path + ".part", path);
            };
            const auto ended = [](const CheckpointName&, const Status& status) { EXPECT_TRUE(status.ok()) << status.what; };
            PartCopies copies;
            copies.open({.folder = configs[self].folder, .due = [] {}, .name = finish, .ended = ended}, planned[self].parts,
                        {memory.data(), nullptr, memory.size()});
            copies.join(host, dispatch);
            if (self == from) {
                copies.send(steps, std::vector<Rank>{1 - from}, {parameters, optimiser, exponents, {}});
                for (uint32_t i = 0; i < words; ++i) {
                    for (const uint64_t until_us = host.now_us() + between_us; host.now_us() < until_us;)
                        if (const Status status = dispatch.collect(until_us); status.code != Code::deadline) GC_TRY(status);
                    mail.send({1 - from}, tag + i, {&word, nullptr, 1}, Words::ticket + 1);
                }
                EXPECT_FALSE(copies.sending());
                return {};
            }
            copies.receive(name, from, model);
            for (; heard < words && pieces < all; ++heard) {
                mail.receive(from, tag + heard, {&word, nullptr, 1}, Words::ticket);
                while (said.count == heard) GC_TRY(dispatch.collect(host.now_us() + 10 * between_us));
                for (; copies.work_due(); ++pieces) copies.work();
            }
            copies.confirm(steps);
            while (copies.work_due()) copies.work();
            EXPECT_FALSE(copies.receiving());
            return {};
        });
    const Status status = sim->run();
    EXPECT_TRUE(status.ok()) << status.what;
    EXPECT_EQ(pieces, all);
    EXPECT_LE(heard, 2 * ((all + 7) / 8));   // it looks once, then the rooms are empty, and asks the next time
    ModelPart part;
    const Status read = part.open(checkpoint_path(configs[1 - from].folder, name));
    EXPECT_TRUE(read.ok()) << read.what;
}

TEST_F(PartCopiesTest, ANodeThatCannotWriteACopyEndsNoJob) {
    const std::string text = this->text(2, "checkpoint_every = 3\naudit_every = 100\n");
    const std::vector<std::string> folders = {folder_ + "/first", folder_ + "/second"};
    for (uint64_t steps = 9; steps < 50; steps += 3)   // folders are in the way
        std::filesystem::create_directories(checkpoint_path(folders[1], {steps, 0, 2}) + ".part/x");
    const Run run = this->run(text, 2, {}, {}, folders);
    ASSERT_TRUE(run.status.ok()) << run.status.what;
    EXPECT_TRUE(run.ranks[0].warnings.empty());
    ASSERT_EQ(run.ranks[1].warnings.size(), 1u);
    EXPECT_PRED2(starts, run.ranks[1].warnings[0], "no copy of part 1 of 2 of the checkpoint after 9 steps: cannot write ");
    // The last one that all nodes have stays, beside the newest parts.
    EXPECT_EQ(run.ranks[0].checkpoint, 6u);
    const Held all = held(run);
    EXPECT_EQ(all.begin()->first, 3u);
    EXPECT_EQ(steps_of(all), (std::set<uint64_t>{3, 6, 42, 45, 48}));
    EXPECT_EQ(all.at(6).at(0).size(), 2u);
    EXPECT_EQ(all.at(6).at(1).size(), 2u);
}

// The network is too slow for a copy at each step: some checkpoints are left out, and steps do not wait for those that are written.
TEST_F(PartCopiesTest, ASlowNetworkLeavesCheckpointsOut) {
    uint64_t steps[2] = {};
    for (const bool copies : {false, true}) {
        const std::string job = copies ? "checkpoint_every = 1\naudit_every = 100\n" : "checkpoint_keep = 0\n";
        const Run run =
            this->run(text(2, job), {.ranks = 2, .rate_bytes_per_s = 4e6}, {.meddle = [&](Simulator& sim) { sim.kill(1, 900'000); }});
        ASSERT_FALSE(run.status.ok());
        steps[copies] = run.ranks[0].step;
        if (!copies) continue;
        ASSERT_FALSE(run.ranks[0].warnings.empty());
        EXPECT_PRED2(starts, run.ranks[0].warnings[0], "checkpoint after 2 steps left out: ");
        EXPECT_NE(run.ranks[0].warnings[0].find("the network on which copies travel"), std::string::npos);
        const Resume kept = newest_in(run.folders[0], 2);
        EXPECT_GT(kept.steps, 1u);
        EXPECT_LT(kept.steps, steps[1]);
    }
    EXPECT_LT(steps[0], 50u);
    EXPECT_GT(steps[1] * 4, steps[0]);   // the bytes of copies share the link with those of the steps
}

// Two replicas, of which one may be lost and is: the rank that is left of its stage writes its part, and no rank of another stage does.
// So it is in the next view too, of one replica.
TEST_F(PartCopiesTest, NoCopiesTravelWhereReplicasMayBeLost) {
    const std::string job = text(2, "survive = true\ncheckpoint_every = 2\naudit_every = 100\ncheckpoint_copies = 2\n");
    const std::string lossy = replaced(job, "[parallel]", "[algorithm]\nexchange = \"coded-rs\"\nm = 1\ns = 1\n[parallel]");
    const Run quiet = run(text(1, ""), 1);
    for (const Rank dead : {2u, 3u}) {
        const Run run =
            this->run(lossy, {.ranks = 4, .lost_after_us = 2'000}, {.meddle = [&](Simulator& simulator) { simulator.kill(dead, 15'000); }});
        ASSERT_TRUE(run.status.ok()) << run.status.what;
        EXPECT_EQ(run.ranks[0].digest, quiet.digest());
        const Held all = held(run);
        ASSERT_FALSE(all.empty());
        EXPECT_GT(all.rbegin()->first, 40u);
        for (const auto& [steps, cells] : all)
            for (const auto& [cell, folders] : cells)
                for (const std::string& folder : folders) {
                    const auto rank = static_cast<uint32_t>(std::ranges::find(run.folders, folder) - run.folders.begin());
                    EXPECT_EQ(rank % 2, cell) << "after " << steps << " steps, at rank " << rank;
                }
    }
}

TEST_F(PartCopiesTest, CopiesThatAreNotPossibleAreRefused) {
    const auto error = [&](uint32_t nodes, const std::string& text) {
        std::unique_ptr<Engine> engine;
        const Status status = Engine::open(config(text, nodes, 0), Log(), &engine);
        return std::string(status.what);
    };
    EXPECT_EQ(error(2, text(2, "checkpoint_copies = 3\n")),
              "job.checkpoint_copies = 3, but the job has 2 nodes: 1 to 2 are possible, or \"auto\"");
    EXPECT_EQ(error(1, text(1, "checkpoint_copies = 2\n")),
              "job.checkpoint_copies = 2, but the job has 1 node: only 1 is possible, or \"auto\"");
    EXPECT_EQ(error(5, text(2, "survive = true\ncheckpoint_copies = 5\n")),
              "job.checkpoint_copies = 5, but the job has 5 nodes: 1 to 4 are possible, or \"auto\"");
    EXPECT_EQ(error(6, text(2, "checkpoint_copies = 4\n") + "[algorithm]\nexchange = \"coded-rs\"\ns = 1\n"),
              "job.checkpoint_copies = 4, but each stage is computed at 3 nodes: where replicas may be lost, only these write its part; 1 "
              "to 3 are possible, or \"auto\"");
    JobCheck check;
    const JobConfig three = config(text(2, "checkpoint_copies = 3\n"), 2).job;
    EXPECT_STREQ(job_check(three, "job.toml", {.nodes = 2}, &check).what,
                 "job.toml:6: job.checkpoint_copies = 3, but the job has 2 nodes: 1 to 2 are possible, or \"auto\"");
    EXPECT_TRUE(job_check(three, "job.toml", {.nodes = 2, .resumes = true}, &check).ok());
    EXPECT_TRUE(job_check(three, "job.toml", {}, &check).ok());
    JobConfig job;
    std::vector<JobMistake> mistakes;
    ASSERT_FALSE(job_parse(text(2, "checkpoint_copies = 0\n"), "job.toml", "/", &job, &mistakes));
    EXPECT_EQ(mistakes[0].text, "job.toml:6: job.checkpoint_copies: 0 is below 1; \"auto\" chooses");
}

}   // namespace
}   // namespace gradcast
