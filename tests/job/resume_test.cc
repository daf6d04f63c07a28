// Checkpoints, and jobs that go on from them.
#include "runtime/job/run/resume.h"

#include <fstream>
#include <set>
#include <thread>

#include "datasets/hdf5.h"
#include "runtime/core/crypto.h"
#include "runtime/core/digest.h"
#include "runtime/core/fd.h"
#include "runtime/job/audit/audit.h"
#include "runtime/job/report/transcript.h"
#include "tests/job/runs.h"

namespace gradcast {
namespace {

class ResumeTest : public RunsTest {
protected:
    /// The newest checkpoint in a folder, as resume_find() has it.
    static Status newest(const std::string& folder, Model* model, std::string* path, std::vector<std::string>* notes) {
        std::vector<FoundState> states;
        GC_TRY(resume_find(folder, &states, model, notes));
        *path = checkpoint_path(folder, model->step);
        if (!std::filesystem::exists(*path)) *path = folder + "/final.h5";
        return {};
    }
    /// The state after so many steps, whose parts lie in the folders of a run; the holders are these ranks in turn.
    static Resume from_parts(const Run& run, uint64_t steps, uint32_t cells, uint32_t ranks) {
        Resume resume{.on = true, .steps = steps, .state = splitmix64(steps), .holders = {}, .paths = {}, .notes = {}};
        for (uint32_t cell = 0; cell < cells; ++cell) {
            std::string path;
            for (const std::string& folder : run.folders)
                if (const std::string each = checkpoint_path(folder, {steps, cell, cells}); std::filesystem::exists(each)) path = each;
            ModelPart part;
            const Status status = part.open(path);
            EXPECT_TRUE(status.ok()) << status.what;
            resume.state += part.model().state;
            resume.holders.push_back(NodeId{(cell + 1) % ranks});
            resume.paths.push_back(path);
        }
        return resume;
    }
};

// While the state of a resumed job is on its way to the others, a rank is lost: at each of many times.
TEST_F(ResumeTest, GoesOnWithoutARankThatIsLostWhileTheStateIsSent) {
    const std::string text = with_job(job_text(), "survive = true\ncheckpoint_every = 7\ncheckpoint_keep = 100\n");
    const Run whole = run(text, 2);
    ASSERT_TRUE(whole.status.ok()) << whole.status.what;
    const std::string checkpoint = checkpoints(whole).at(7);
    const auto steps = digests(whole.folders[0]);
    constexpr Rank holder = 1;
    SimConfig slow{.ranks = 3};
    slow.rate_bytes_per_s = 1e6;
    uint32_t began = 0, sent = 0, ended = 0;
    for (const Rank dead : {0u, holder, 2u}) {
        for (uint64_t at_us = 200; at_us <= 14'000; at_us += 600) {
            const auto kill = [&](Simulator& simulator) { simulator.kill(dead, at_us); };
            const Run rest = run(text, slow, {.resume = from(checkpoint, holder), .meddle = kill});
            for (Rank rank = 0; rank < 3; ++rank) {
                if (rank == dead) continue;
                const std::string error = rest.ranks[rank].error;
                if (error.find(" lost in step 8: ") != error.npos) continue;   // nobody can be missed before all have begun
                ++began;
                if (dead == holder && error == "node-b is lost, which holds the state to go on from") {
                    ++ended;
                    continue;
                }
                sent += dead == holder;
                EXPECT_EQ(error, "") << dead << " at " << at_us;
                EXPECT_EQ(rest.ranks[rank].digest, whole.digest()) << dead << " at " << at_us;
                EXPECT_TRUE(std::filesystem::exists(rest.folders[rank] + "/job.toml"));
                for (const auto& [step, digest] : digests(rest.folders[rank])) EXPECT_EQ(digest, steps.at(step)) << step;
            }
        }
    }
    EXPECT_GT(began, 100u);   // of 144
    EXPECT_GT(sent, 0u);      // somebody had the state
    EXPECT_GT(ended, 0u);     // nobody had
}

/// Every kind of training with a state of its own: optimisers, schedules, batch norm, dropout, augmentation, quantisers.
TEST_F(ResumeTest, AnyCheckpointGoesOnToTheSameModel) {
    const std::string plain = job_text(), often = "checkpoint_every = 7\ncheckpoint_keep = 100\n";
    const std::string optimiser = "[optimiser]\nlr = 0.05\nmomentum = 0.9\n";
    const std::pair<const char*, std::string> jobs[] = {
        {"momentum", plain},
        {"sgd without state", replaced(plain, "momentum = 0.9\n", "")},
        {"nesterov, cosine", replaced(plain, optimiser, optimiser + "nesterov = true\nschedule = \"cosine\"\nwarm_up = 9\n")},
        {"adam, steps", replaced(plain, optimiser, "[optimiser]\nkind = \"adam\"\nlr = 0.005\nschedule = \"step\"\ndecay_every = 20\n")},
        {"batch norm and dropout", job_text_of_all()},
        {"augmentation", replaced(plain, "[net]\n", "crop = 2\nflip = true\n[net]\n")},
        {"slices", job_text("[parallel]\nslices = 4\nsliced = [\"fc1\"]\n")},
        {"auto16", job_text("[algorithm]\nquantiser = \"auto16\"\n")},
        {"fixed", job_text("[algorithm]\nexchange = \"unicast\"\nquantiser = \"fixed\"\n")},
        {"auto", job_text("[algorithm]\nexchange = \"auto\"\n")},
    };
    for (const auto& [name, text] : jobs) {
        SCOPED_TRACE(name);
        const Run quiet = run(text, 1);
        ASSERT_TRUE(quiet.status.ok()) << quiet.status.what;
        const Run first = run(with_job(text, often), 3);
        ASSERT_TRUE(first.status.ok()) << first.status.what;
        EXPECT_EQ(first.ranks[0].digest, quiet.ranks[0].digest);
        const auto all = checkpoints(first);
        ASSERT_EQ(all.size(), 7u);   // after 7, 14, … 49 of 50 steps
        const auto quiet_digests = digests(quiet.folders[0]);
        for (const uint32_t n : {1u, 2u, 5u}) {
            const uint64_t steps = 7 * (n + 1);
            SCOPED_TRACE(fmt::format("{} ranks after {} steps", n, steps));
            std::string other = text;
            if (text.find("[algorithm]") == std::string::npos) other += "[algorithm]\nexchange = \"coded-rs\"\nm = 1\n";
            const Run second = run(other, n, from(all.at(steps), n - 1));
            ASSERT_TRUE(second.status.ok()) << second.status.what;
            for (const JobStatus& rank : second.ranks) {
                EXPECT_EQ(rank.digest, quiet.ranks[0].digest);
                EXPECT_EQ(rank.accuracy, quiet.ranks[0].accuracy);
                EXPECT_EQ(rank.resumed, steps);
            }
            for (const auto& [step, digest] : digests(second.folders[0])) EXPECT_EQ(digest, quiet_digests.at(step)) << step;
        }
    }
}

/// A net in stages writes parts, and any grid goes on from them.
TEST_F(ResumeTest, AnyGridGoesOnFromThePartsOfAnother) {
    struct Shape {
        uint32_t nodes, stages;
        const char* more;
    };
    const std::string often = "checkpoint_every = 7\ncheckpoint_keep = 100\n";
    auto text_of = [](const std::string& text, const Shape& shape) {
        return text + fmt::format("[parallel]\nstages = {}\n{}", shape.stages, shape.more);
    };
    struct Job {
        const char* name;
        std::string text;
        uint32_t stages_most;
    };
    const Job jobs[] = {
        {"adam, auto16",
         replaced(replaced(job_text("[algorithm]\nquantiser = \"auto16\"\n"), "momentum = 0.9\n", ""), "[optimiser]\n",
                  "[optimiser]\nkind = \"adam\"\n"),
         2},
        {"batch norm and dropout", job_text_of_all(), 4},
    };
    for (const auto& [name, text, stages_most] : jobs) {
        SCOPED_TRACE(name);
        const Run quiet = run(text, 1);
        ASSERT_TRUE(quiet.status.ok()) << quiet.status.what;
        const auto quiet_digests = digests(quiet.folders[0]);
        const Shape first_shape{4, 2, "schedule = \"zero-bubble\"\n"};
        const Run first = run(with_job(text_of(text, first_shape), often), first_shape.nodes);
        ASSERT_TRUE(first.status.ok()) << first.status.what;
        EXPECT_EQ(first.digest(), quiet.digest());
        uint64_t steps = 7;
        for (const Shape& shape : {Shape{1, 1, ""}, Shape{2, 1, ""}, Shape{2, 2, ""}, Shape{3, 3, ""}, Shape{6, 3, ""}, Shape{4, 4, ""}}) {
            if (shape.stages > stages_most) continue;
            SCOPED_TRACE(fmt::format("{} nodes, {} stages after {} steps", shape.nodes, shape.stages, steps));
            const Run second = run(text_of(text, shape), shape.nodes, from_parts(first, steps, 2, shape.nodes));
            ASSERT_EQ(second.digest(), quiet.digest());
            EXPECT_EQ(second.ranks[0].accuracy, quiet.ranks[0].accuracy);
            for (const auto& [step, digest] : digests(second.folders[0])) EXPECT_EQ(digest, quiet_digests.at(step)) << step;
            steps += 7;
        }
        // And from a whole state.
        const Run alone = run(with_job(text, often), 1);
        const Run second = run(text_of(text, {4, 2, ""}), 4, from(checkpoint_path(alone.folders[0], 21), 3));
        EXPECT_EQ(second.digest(), quiet.digest());
    }
}

// Every part is one of three nodes', in turn, and the newest checkpoints stay whole.
TEST_F(ResumeTest, PartsAreTakenAndRemovedTogether) {
    const std::string text = with_job(job_text("[parallel]\nstages = 2\n"), "checkpoint_every = 5\naudit_every = 100\n");
    const Run run = this->run(text, 6);
    ASSERT_TRUE(run.status.ok()) << run.status.what;
    std::map<uint64_t, std::set<uint32_t>> all;
    for (const std::string& folder : run.folders)
        for (const CheckpointName& name : checkpoint_files(folder)) {
            EXPECT_EQ(name.cells, 2u);
            EXPECT_TRUE(all[name.steps].insert(name.cell).second) << "twice";
        }
    EXPECT_EQ(all, (std::map<uint64_t, std::set<uint32_t>>{{40, {0, 1}}, {45, {0, 1}}}));
    EXPECT_EQ(run.ranks[0].checkpoint, 45u);

    // A part that is damaged: a node finds the others, and says which is not whole.
    const std::string &folder = run.folders[0], to = folder + "/parts";
    std::filesystem::create_directories(to);
    for (const std::string& each : run.folders)
        for (const CheckpointName& name : checkpoint_files(each))
            std::filesystem::copy_file(checkpoint_path(each, name), checkpoint_path(to, name));
    const std::string damaged = checkpoint_path(to, {45, 1, 2});
    std::filesystem::resize_file(damaged, std::filesystem::file_size(damaged) / 2);
    std::vector<FoundState> states;
    Model model;
    std::vector<std::string> notes;
    ASSERT_TRUE(resume_find(to, &states, &model, &notes).ok());
    EXPECT_EQ(states.size(), 3u);
    ASSERT_EQ(notes.size(), 1u);
    EXPECT_EQ(notes[0].substr(0, notes[0].find(": ")), damaged);
    ASSERT_TRUE(checkpoint_check(checkpoint_path(to, {40, 1, 2}), &model).ok());
    EXPECT_EQ(fmt::format("{:016x}", model.state), digests(run.folders[0]).at(40));
    EXPECT_FALSE(checkpoint_check(checkpoint_path(to, {45, 0, 2}), &model).ok());
    std::filesystem::remove(damaged);
    EXPECT_EQ(checkpoint_check(checkpoint_path(to, {45, 0, 2}), &model).what,
              fmt::format("{}: holds a part of a state: {} is missing beside it, which another node of the job has",
                          checkpoint_path(to, {45, 0, 2}), damaged));
}

// Where one node cannot write its parts, those of the other do not pile up.
TEST_F(ResumeTest, PartsThatNeverBecomeWholeGo) {
    const std::string text =
        with_job(job_text("[parallel]\nstages = 2\n"), "checkpoint_every = 3\naudit_every = 100\ncheckpoint_copies = 1\n");
    const std::vector<std::string> folders = {folder_ + "/first", folder_ + "/second"};
    for (uint64_t steps = 3; steps < 50; steps += 3)   // folders are in the way
        std::filesystem::create_directories(checkpoint_path(folders[1], {steps, 1, 2}) + ".part/x");
    const Run run = this->run(text, 2, {}, {}, folders);
    ASSERT_TRUE(run.status.ok()) << run.status.what;
    EXPECT_TRUE(checkpoint_files(run.folders[1]).empty());
    EXPECT_EQ(checkpoint_files(run.folders[0]).size(), 3u);
    EXPECT_EQ(run.ranks[0].checkpoint, 0u);
    ASSERT_EQ(run.ranks[1].warnings.size(), 1u);
    EXPECT_EQ(run.ranks[1].warnings[0].find("no checkpoint after 3 steps: cannot write "), 0u) << run.ranks[1].warnings[0];
}

// Who has applied a step keeps the state after it, also where the others have not reported theirs: all had the sums.
TEST_F(ResumeTest, WhereverAJobOfStagesEndsItsNodesKeepTheirParts) {
    const std::string text = job_text("[parallel]\nstages = 2\n");
    const Run quiet = run(text, 2);
    ASSERT_TRUE(quiet.status.ok()) << quiet.status.what;
    uint32_t whole = 0, tried = 0;
    for (uint64_t at_us = 4'000; at_us < 11'000; at_us += 311, ++tried) {
        const Run broken = run(text, 2, {}, [&](Simulator& simulator) { simulator.kill(1, at_us); });
        ASSERT_FALSE(broken.status.ok());
        std::vector<CheckpointName> parts = checkpoint_files(broken.folders[0]);
        if (parts.empty() && broken.ranks[0].step == 0) continue;
        ASSERT_EQ(parts.size(), 1u) << at_us;
        EXPECT_GE(parts[0].steps, broken.ranks[0].step);
        EXPECT_LE(parts[0].steps, broken.ranks[0].step + 1);
        whole += parts[0].steps == broken.ranks[0].step;
    }
    EXPECT_GT(whole, tried / 2);
}

TEST_F(ResumeTest, WhatADeathLeavesBehindGoesOnOnFewerNodes) {
    const Run quiet = run(job_text(), 3);
    ASSERT_TRUE(quiet.status.ok()) << quiet.status.what;
    const Run broken = run(job_text(), 3, {}, [](Simulator& simulator) { simulator.kill(1, 6'000); });
    ASSERT_FALSE(broken.status.ok());
    // The survivors keep the state in which they were, a step beyond the last checkpoint.
    Model model;
    std::string path;
    std::vector<std::string> notes;
    ASSERT_TRUE(newest(broken.folders[0], &model, &path, &notes).ok());
    EXPECT_EQ(model.step, broken.ranks[0].step);
    EXPECT_EQ(broken.ranks[0].checkpoint, model.step);
    EXPECT_GT(model.step, 0u);
    EXPECT_FALSE(model.agreed);
    // In the same folders: steps.jsonl goes on where it was.
    const Run second = run(job_text(), 2, from(path), {}, {broken.folders[0], broken.folders[2]});
    ASSERT_TRUE(second.status.ok()) << second.status.what;
    EXPECT_EQ(second.ranks[0].digest, quiet.ranks[0].digest);
    EXPECT_EQ(digests(second.folders[0]), digests(quiet.folders[0]));
    EXPECT_TRUE(std::filesystem::exists(second.folders[0] + "/final.h5"));
}

TEST_F(ResumeTest, AnEvaluationThatWasMissedIsMadeUpFor) {
    const std::string text =
        with_job(replaced(job_text(), "lr = 0.05", "lr = 0.002"), "checkpoint_every = 10\ncheckpoint_keep = 100\nevaluate = 10\n");
    const Run first = run(text, 2);
    ASSERT_TRUE(first.status.ok()) << first.status.what;
    Model model;
    ModelVectors state;
    // The first that is better than all before it, but not the first of all.
    std::string path;
    for (const auto& [steps, each] : checkpoints(first)) {
        const double before = model.accuracy;
        ASSERT_TRUE(checkpoint_read(each, &model, &state).ok());
        EXPECT_EQ(model.evaluated, steps);
        path = each;
        if (before >= 0 && model.accuracy > before) break;
    }
    ASSERT_GT(model.step, 10u);
    // As a run leaves it that ends in the evaluation.
    const double accuracy = model.accuracy;
    model.evaluated -= 10;
    model.accuracy = 0;
    ASSERT_TRUE(model_write(path, model, {state.parameters, state.optimiser, state.exponents, state.algorithm}).ok());
    const std::string stop = with_job(text, fmt::format("stop_at = {}\n", accuracy));
    const Run whole = run(stop, 1), second = run(stop, 1, from(path));
    ASSERT_TRUE(whole.status.ok() && second.status.ok()) << second.status.what;
    EXPECT_EQ(second.ranks[0].digest, whole.ranks[0].digest);
    EXPECT_EQ(second.ranks[0].step, model.step);
}

TEST_F(ResumeTest, ACheckpointThatIsNotWholeIsToldAndTheOneBeforeIsTaken) {
    const Run first = run(with_job(job_text(), "checkpoint_every = 10\ncheckpoint_keep = 100\n"), 1);
    ASSERT_TRUE(first.status.ok()) << first.status.what;
    const std::string& folder = first.folders[0];
    std::filesystem::remove(folder + "/final.h5");
    // Half of one, and one flipped bit in the other's optimiser state.
    std::filesystem::resize_file(checkpoint_path(folder, 40), std::filesystem::file_size(checkpoint_path(folder, 40)) / 2);
    {
        Hdf5Lock lock;
        Hid file(H5Fopen(checkpoint_path(folder, 30).c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
        Hid data(H5Dopen2(file.get(), "optimiser", H5P_DEFAULT));
        std::vector<float> values(static_cast<size_t>(H5Sget_simple_extent_npoints(Hid(H5Dget_space(data.get())).get())));
        ASSERT_GE(H5Dread(data.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
        values[3] += 1;
        ASSERT_GE(H5Dwrite(data.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
    }
    std::ofstream(checkpoint_path(folder, 25)) << "";
    Model model;
    std::string path;
    std::vector<std::string> notes;
    ASSERT_TRUE(newest(folder, &model, &path, &notes).ok());
    EXPECT_EQ(path, checkpoint_path(folder, 20));
    ASSERT_EQ(notes.size(), 3u);
    EXPECT_EQ(notes[0].substr(0, notes[0].find(": ")), checkpoint_path(folder, 40));
    EXPECT_EQ(notes[1], checkpoint_path(folder, 30) + ": the digest of its content differs: the file is damaged");
    for (const uint64_t steps : {10, 20}) std::filesystem::remove(checkpoint_path(folder, steps));
    EXPECT_EQ(newest(folder, &model, &path, &notes).what, folder + " holds no checkpoint that is whole");
    notes.clear();
    EXPECT_EQ(newest(folder_ + "/nothing", &model, &path, &notes).what, folder_ + "/nothing holds no checkpoint");
    EXPECT_EQ(notes.size(), 0u);
    ASSERT_TRUE(file_write(folder_ + "/file", "").ok());
    EXPECT_FALSE(newest(folder_ + "/file", &model, &path, &notes).ok());
    EXPECT_EQ(notes, std::vector<std::string>{"cannot read " + folder_ + "/file: Not a directory"});
}

TEST_F(ResumeTest, ACheckpointOfANewerVersionIsToldAndTheOneBeforeIsTaken) {
    const Run first = run(with_job(job_text(), "checkpoint_every = 10\ncheckpoint_keep = 100\n"), 1);
    ASSERT_TRUE(first.status.ok()) << first.status.what;
    const std::string& folder = first.folders[0];
    std::filesystem::remove(folder + "/final.h5");
    {
        Hdf5Lock lock;
        Hid file(H5Fopen(checkpoint_path(folder, 40).c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
        Hid version(H5Aopen(file.get(), "version", H5P_DEFAULT));
        const uint64_t newer = 9;
        ASSERT_GE(H5Awrite(version.get(), H5T_NATIVE_UINT64, &newer), 0);
    }
    Model model;
    std::string path;
    std::vector<std::string> notes;
    ASSERT_TRUE(newest(folder, &model, &path, &notes).ok());
    EXPECT_EQ(path, checkpoint_path(folder, 30));
    EXPECT_EQ(notes,
              std::vector<std::string>{checkpoint_path(folder, 40) + ": written by a newer gradcast: format version 9, this one reads 8"});
}

TEST_F(ResumeTest, ACheckpointOfBeforeTheElementaryFunctionsGoesOnWithAWarning) {
    const Run first = run(with_job(job_text(), "checkpoint_every = 10\n"), 1);
    ASSERT_TRUE(first.status.ok()) << first.status.what;
    const std::string path = checkpoint_path(first.folders[0], 40);
    Model model;
    ModelVectors state;
    ASSERT_TRUE(checkpoint_read(path, &model, &state).ok());
    EXPECT_FALSE(model.other_functions);
    model.kernel_set = "0123456789abcdef";
    ASSERT_TRUE(model_write(path, model, {state.parameters, state.optimiser, state.exponents, state.algorithm}).ok());
    {
        Hdf5Lock lock;
        Hid file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
        Hid version(H5Aopen(file.get(), "version", H5P_DEFAULT));
        const uint64_t older = 4;
        ASSERT_GE(H5Awrite(version.get(), H5T_NATIVE_UINT64, &older), 0);
    }
    std::string lines;
    ASSERT_TRUE(file_read(first.folders[0] + "/steps.jsonl", &lines).ok());
    ASSERT_TRUE(file_write(first.folders[0] + "/steps.jsonl", replaced(lines, first.ranks[0].kernel_set, model.kernel_set)).ok());
    const Run second = run(job_text(), 1, from(path), {}, first.folders);
    ASSERT_TRUE(second.status.ok()) << second.status.what;
    EXPECT_EQ(
        second.ranks[0].warnings,
        std::vector<std::string>{path + ": written before gradcast had exp, log, sin and cos of its own: the trained model will not have "
                                        "the bits of a job that was never interrupted"});
    EXPECT_EQ(second.ranks[0].digest, first.ranks[0].digest);   // only the file says that it is older
    // Its transcript has the kernel set of the end, steps.jsonl begins with another one.
    AuditFolder folder;
    Transcript transcript;
    ASSERT_TRUE(audit_read(first.folders[0], folder_, &folder).ok());
    ASSERT_TRUE(transcript_read(first.folders[0] + "/transcript.json", &transcript).ok());
    EXPECT_NE(folder.kernel_set, folder.kernel_set_last);
    EXPECT_EQ(audit_transcript(folder, transcript, {}), std::vector<std::string>{});
}

TEST_F(ResumeTest, TheStatusTellsTheCheckpointThatIsThereAlready) {
    const std::string text = with_job(job_text(), "checkpoint_every = 49\n");
    const Run first = run(text, 1);
    ASSERT_TRUE(first.status.ok()) << first.status.what;
    const Run second = run(text, 1, from(checkpoint_path(first.folders[0], 49)), {}, first.folders);
    ASSERT_TRUE(second.status.ok()) << second.status.what;
    EXPECT_EQ(second.ranks[0].checkpoint, 49u);
}

TEST_F(ResumeTest, ACheckpointOfAnotherTrainingIsRefusedByName) {
    const Run first = run(with_job(job_text(), "checkpoint_every = 10\n"), 1);
    ASSERT_TRUE(first.status.ok()) << first.status.what;
    const std::string path = checkpoint_path(first.folders[0], 40);
    auto refused = [&](const std::string& text, const std::string& found = "") -> std::string {
        return run(text, 1, from(found.empty() ? path : found)).status.what;
    };
    EXPECT_EQ(refused(replaced(job_text(), "blocks = 6", "blocks = 5")),
              path + ": of another training: job.blocks was 6 and is 5 now; a new job can begin with its parameters: gradcastctl export " +
                  path + " NAME.safetensors, and net.start = \"NAME.safetensors\"");
    EXPECT_EQ(refused(replaced(job_text(), "outputs = 16", "outputs = 17")).substr(0, path.size() + 30),
              path + ": of another training: layer 1");
    EXPECT_PRED2(starts, refused(job_text("[parallel]\nslices = 2\nsliced = [\"fc1\"]\n")),
                 path + ": of another training: parallel.slices was not set; ");
    const Run sliced = run(with_job(job_text("[parallel]\nslices = 2\nsliced = [\"fc1\"]\n"), "checkpoint_every = 10\n"), 1);
    const std::string of_slices = checkpoint_path(sliced.folders[0], 40);
    EXPECT_PRED2(starts, refused(job_text(), of_slices), of_slices + ": of another training: parallel.slices was 2; ");
    EXPECT_EQ(refused(job_text("[parallel]\nslices = 2\nsliced = [\"fc1\", \"fc2\"]\n"), of_slices),
              of_slices + ": of another training: the sliced layers were [fc1] and are [fc1, fc2] now");
    EXPECT_EQ(refused(replaced(job_text(), "epochs = 2", "steps = 40")),
              path + ": all 40 steps of the job are done: more epochs or steps in the job file would go on");
    write("train.h5", 601, 0);
    EXPECT_PRED2(starts, refused(job_text()), path + ": trained on other data: its digest was ");
    EXPECT_NE(refused(job_text()).find(folder_ + "/train.h5 and " + folder_ + "/test.h5 is "), std::string::npos) << refused(job_text());
    write("train.h5", 600, 0);
    Model model;
    ModelVectors state;
    ASSERT_TRUE(checkpoint_read(path, &model, &state).ok());
    const std::string forged = folder_ + "/forged.h5";
    auto forge = [&](const std::function<void()>& change) {
        const Model before = model;
        change();
        EXPECT_TRUE(model_write(forged, model, {state.parameters, state.optimiser, state.exponents, state.algorithm}).ok());
        model = before;
        std::string what = refused(job_text(), forged);
        std::filesystem::remove(forged);
        return what;
    };
    EXPECT_PRED2(starts, forge([&] { model.kernel_set = "0123456789abcdef"; }),
                 forged + ": trained with other kernels: the kernel set was 0123456789abcdef,");
    EXPECT_NE(
        forge([&] { model.kernel_set = "0123456789abcdef"; })
            .find("; nodes of the same instruction set (`isa` in gradcastd.toml), device and version of gradcast are needed; a new job "
                  "can begin with its parameters: gradcastctl export " +
                  forged + " NAME.safetensors, and net.start = \"NAME.safetensors\""),
        std::string::npos);
    // A state that is whole as a file, but not the one that it says: found before the first step.
    EXPECT_NE(forge([&] { model.state ^= 1; }).find("its checkpoint says"), std::string::npos);
    EXPECT_PRED2(starts, forge([&] { model.job = "[jobs]\n"; }), forged + ": its job file is not one for this version: ");
    const std::vector<int32_t> scales = std::exchange(state.exponents, std::vector<int32_t>(state.exponents.size(), 1 << 20));
    EXPECT_EQ(forge([] {}), forged + ": a scale of 2^1048576 is no gradient's");
    state.exponents = scales;
    // An id that names a folder outside of the jobs' folder.
    model.id = "../../../elsewhere";
    ASSERT_TRUE(model_write(forged, model, {state.parameters, state.optimiser, state.exponents, state.algorithm}).ok());
    Model read;
    ModelVectors vectors;
    EXPECT_EQ(checkpoint_read(forged, &read, &vectors).what, forged + ": not a checkpoint: its job has the id \"../../../elsewhere\"");
    // What is refused leaves the folder as it was.
    std::string before, after;
    ASSERT_TRUE(file_read(first.folders[0] + "/job.toml", &before).ok());
    EXPECT_FALSE(run(replaced(job_text(), "blocks = 6", "blocks = 5"), 1, from(path), {}, first.folders).status.ok());
    ASSERT_TRUE(file_read(first.folders[0] + "/job.toml", &after).ok());
    EXPECT_EQ(after, before);
    EXPECT_FALSE(std::filesystem::exists(first.folders[0] + "/final.h5.part"));
    // More epochs than before: final.h5 goes on to what a longer job gives.
    const Run whole = run(replaced(job_text(), "epochs = 2", "epochs = 3"), 1);
    const Run more = run(replaced(job_text(), "epochs = 2", "epochs = 3"), 2, from(first.folders[0] + "/final.h5"));
    ASSERT_TRUE(more.status.ok()) << more.status.what;
    EXPECT_EQ(more.ranks[0].digest, whole.ranks[0].digest);
}

TEST_F(ResumeTest, TheNewestStayAndSomeForAudits) {
    auto checkpoints_after = [&](const std::string& lines, uint32_t n) {
        const Run run = this->run(with_job(job_text(), lines), n);
        EXPECT_TRUE(run.status.ok()) << run.status.what;
        std::vector<uint64_t> steps;
        for (const auto& [each, path] : checkpoints(run)) steps.push_back(each);
        for (const std::string& folder : run.folders)
            for (const auto& entry : std::filesystem::directory_iterator(folder)) EXPECT_NE(entry.path().extension(), ".part");
        return steps;
    };
    using Steps = std::vector<uint64_t>;
    EXPECT_EQ(checkpoints_after("", 1), (Steps{25}));   // an epoch each; the last state is final.h5
    EXPECT_EQ(checkpoints_after("checkpoint_keep = 0\n", 1), Steps{});
    EXPECT_EQ(checkpoints_after("checkpoint_every = 10\naudit_every = 100\n", 1), (Steps{30, 40}));
    EXPECT_EQ(checkpoints_after("checkpoint_every = 5\naudit_every = 3\n", 1), (Steps{15, 30, 35, 40, 45}));
    EXPECT_EQ(checkpoints_after("checkpoint_every = 10\naudit_every = 100\n", 4), (Steps{10, 20, 30, 40}));   // two a node
    EXPECT_EQ(checkpoints_after("checkpoint_every = 1\ncheckpoint_keep = 1\n", 1).size(),
              17u);   // 49, of which one in three stays, and the last
}

TEST_F(ResumeTest, ACheckpointAfterTheModelIsOfALongerJob) {
    const std::string longer = with_job(replaced(job_text(), "epochs = 2", "epochs = 3"), "checkpoint_every = 10\ncheckpoint_keep = 9\n");
    const Run first = run(job_text(), 1), second = run(longer, 1);
    ASSERT_TRUE(first.status.ok() && second.status.ok()) << first.status.what << second.status.what;
    const std::string& folder = first.folders[0];
    for (const uint64_t steps : {40, 60, 70})
        std::filesystem::copy_file(checkpoint_path(second.folders[0], steps), checkpoint_path(folder, steps));
    std::filesystem::resize_file(checkpoint_path(folder, 70), 1000);
    Model model;
    std::string path;
    std::vector<std::string> notes;
    ASSERT_TRUE(newest(folder, &model, &path, &notes).ok());
    EXPECT_EQ(path, checkpoint_path(folder, 60));
    EXPECT_EQ(notes.size(), 1u);
    std::filesystem::remove(path);
    ASSERT_TRUE(newest(folder, &model, &path, &notes).ok());
    EXPECT_EQ(path, folder + "/final.h5");
    EXPECT_EQ(model.step, 50u);
}

TEST_F(ResumeTest, TheProfileOfAnEarlierRunStays) {
    const std::string text = job_text("[profile]\nstep = 5\n");
    const Run first = run(with_job(text, "checkpoint_every = 20\n"), 1);
    ASSERT_TRUE(first.status.ok()) << first.status.what;
    std::string before, after;
    ASSERT_TRUE(file_read(first.folders[0] + "/profile.json", &before).ok());
    const Run second = run(text, 1, from(checkpoint_path(first.folders[0], 40)), {}, first.folders);
    ASSERT_TRUE(second.status.ok()) << second.status.what;
    ASSERT_TRUE(file_read(first.folders[0] + "/profile.json", &after).ok());
    EXPECT_EQ(after, before);
}

TEST_F(ResumeTest, DataSetsInChunksAreNotRead) {
    const Run first = run(with_job(job_text(), "checkpoint_every = 20\n"), 1);
    ASSERT_TRUE(first.status.ok()) << first.status.what;
    const std::string path = checkpoint_path(first.folders[0], 40);
    {
        Hdf5Lock lock;
        Hid file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
        ASSERT_GE(H5Ldelete(file.get(), "exponents", H5P_DEFAULT), 0);
        const hsize_t count = 2, most = H5S_UNLIMITED, chunk = 1 << 28;   // a gigabyte
        Hid space(H5Screate_simple(1, &count, &most)), creation(H5Pcreate(H5P_DATASET_CREATE));
        ASSERT_GE(H5Pset_chunk(creation.get(), 1, &chunk), 0);
        Hid data(H5Dcreate2(file.get(), "exponents", H5T_STD_I32LE, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT));
        ASSERT_TRUE(data);
    }
    Model model;
    ModelVectors state;
    EXPECT_EQ(checkpoint_read(path, &model, &state).what, path + ": not a gradcast model: exponents is missing");
}

// The daemon may be killed at any time, and steps.jsonl is written twice a second.
TEST_F(ResumeTest, TheRecordsGoAsFarAsTheCheckpoint) {
    EngineConfig c = config(with_job(job_text(), "checkpoint_every = 14\n"));
    c.lanes = 1;
    std::unique_ptr<Engine> engine;
    ASSERT_TRUE(Engine::open(c, Log(), &engine).ok());
    ASSERT_EQ(engine->status().memory.size(), 3u);
    EXPECT_EQ(engine->status().memory[1].place, "checkpoint");
    OneRank host;
    host.swallow = 15;
    std::thread trainer([&] { (void)engine->run(host).ok(); });
    for (const uint64_t end = clock_us() + 15'000'000; clock_us() < end && checkpoints_in(c.folder).empty();) std::this_thread::yield();
    EXPECT_EQ(checkpoints_in(c.folder)[0].steps, 14u);
    EXPECT_TRUE(digests(c.folder).contains(14));
    engine->cancel("enough");
    trainer.join();
}

// A daemon that is killed leaves what it was writing.
TEST_F(ResumeTest, ACheckpointThatWasNeverFinishedIsRemoved) {
    EngineConfig c = config(with_job(job_text(), "checkpoint_keep = 0\n"));
    const std::string unfinished[] = {checkpoint_path(c.folder, 14) + ".part", checkpoint_path(c.folder, {14, 1, 2}) + ".part"};
    const std::string other = c.folder + "/notes.part";
    std::filesystem::create_directories(c.folder);
    for (const std::string& path : {unfinished[0], unfinished[1], other}) ASSERT_TRUE(file_write(path, "half").ok());
    std::unique_ptr<Engine> engine;
    ASSERT_TRUE(Engine::open(c, Log(), &engine).ok());
    OneRank host;
    const Status status = engine->run(host);
    EXPECT_TRUE(status.ok()) << status.what;
    for (const std::string& path : unfinished) EXPECT_FALSE(std::filesystem::exists(path)) << path;
    EXPECT_TRUE(std::filesystem::exists(other));
}

TEST_F(ResumeTest, AStateThatHasLostABitIsNotKept) {
#ifdef __SANITIZE_THREAD__
    GTEST_SKIP() << "memory that changes: a sanitizer takes the test's writes for a race";
#endif
    EngineConfig c = config(with_job(job_text(), "checkpoint_every = 15\n"));
    c.lanes = 1;
    std::unique_ptr<Engine> engine;
    ASSERT_TRUE(Engine::open(c, Log(), &engine).ok());
    OneRank host;
    host.swallow = 15;
    Status status;
    std::thread trainer([&] { status = engine->run(host); });
    Model model;
    ModelVectors state;
    const std::string part = checkpoint_path(c.folder, 15) + ".part";
    for (const uint64_t end = clock_us() + 15'000'000; clock_us() < end && !checkpoint_read(part, &model, &state).ok();)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(model.step, 15u);
    const Buffer memory = engine->memory();
    auto* at =
        static_cast<std::byte*>(::memmem(memory.host, memory.bytes, state.parameters.data(), state.parameters.size() * sizeof(float)));
    EXPECT_NE(at, nullptr);
    if (at) at[5] ^= std::byte{16};
    engine->cancel("enough");
    trainer.join();
    EXPECT_EQ(status.code, Code::cancelled) << status.what;
    EXPECT_TRUE(checkpoints_in(c.folder).empty());
    EXPECT_EQ(engine->status().warnings, std::vector<std::string>{"the state after 15 steps is not kept: its digest is another by now"});
}

TEST_F(ResumeTest, ADiskThatIsSlowerThanTheStepsHoldsNoneUp) {
    EngineConfig c = config(with_job(job_text(), "checkpoint_every = 2\n"));
    c.lanes = 1;
    std::unique_ptr<Engine> engine;
    ASSERT_TRUE(Engine::open(c, Log(), &engine).ok());
    std::optional<Hdf5Lock> disk(std::in_place);   // whoever writes a file waits
    std::thread release([&] {
        while (engine->status().step < 20 && engine->status().state != JobState::failed)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
    OneRank host;
    Status status;
    std::thread trainer([&] { status = engine->run(host); });
    release.join();
    disk.reset();
    trainer.join();
    EXPECT_TRUE(status.ok()) << status.what;
    const std::vector<std::string> warnings = engine->status().warnings;
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_PRED2(starts, warnings[0], "checkpoint after 4 steps left out: ");
}

TEST_F(ResumeTest, ADiskWithoutRoomForCheckpointsEndsNoJob) {
    const std::string folder = folder_ + "/small";
    SmallDisk disk(folder, "256k");
    if (!disk.mounted) GTEST_SKIP() << "a tmpfs cannot be mounted";
    EngineConfig c = config(with_job(job_text(), "checkpoint_every = 10\ncheckpoint_keep = 9\n"));
    c.folder = folder;
    c.lanes = 0;   // each is written before the next step: the end frees room
    std::unique_ptr<Engine> engine;
    ASSERT_TRUE(Engine::open(c, Log(), &engine).ok());
    disk.fill();
    OneRank host;
    const Status status = engine->run(host);
    EXPECT_TRUE(status.ok()) << status.what;
    const std::vector<std::string> warnings = engine->status().warnings;
    const std::string why = "no checkpoint after 10 steps: cannot write " + checkpoint_path(folder, 10);
    EXPECT_TRUE(std::any_of(warnings.begin(), warnings.end(), [&](const std::string& each) { return each.starts_with(why); }));
    // A later one may find the room that final.h5 gives back.
    EXPECT_FALSE(std::filesystem::exists(checkpoint_path(folder, 10)));
}

}   // namespace
}   // namespace gradcast
