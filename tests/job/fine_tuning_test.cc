// Jobs that fine-tune: frozen layers, tensors without decay, a clipped gradient, and parts of a file to start from.
#include "nn/graph/layers.h"
#include "runtime/job/model/model_evaluate.h"
#include "runtime/job/model/safetensors.h"
#include "tests/job/runs.h"

namespace gradcast {
namespace {

class FineTuning : public RunsTest {
protected:
    std::string text(const std::string& optimiser, const std::string& more = "") {
        return replaced(job_text_of_all(more), "momentum = 0.9\n", "momentum = 0.9\nweight_decay = 0.01\n" + optimiser);
    }
    /// That one rank gives, and any number of them by any exchange.
    std::string digest_of(const std::string& optimiser) {
        const std::string wanted = run(text(optimiser), 1).digest();
        EXPECT_EQ(wanted.size(), 64u) << wanted;
        for (const uint32_t n : {2u, 4u}) {
            for (const char* algorithm : {"exchange = \"ring\"\n", "exchange = \"coded-rs\"\nm = 2\n"})
                EXPECT_EQ(run(text(optimiser, fmt::format("[algorithm]\n{}", algorithm)), n).digest(), wanted) << n << algorithm;
            EXPECT_EQ(run(text(optimiser, "[algorithm]\nexchange = \"ring\"\n"), {.ranks = n, .jitter_us = 500}, {}).digest(), wanted) << n;
        }
        return wanted;
    }
    /// Of the model that rank 0 has written.
    static std::vector<float> parameters_of(const Run& run, Model* model) {
        std::vector<float> parameters;
        const Status status = model_read(run.folders[0] + "/final.h5", model, &parameters);
        EXPECT_TRUE(status.ok()) << status.what;
        return parameters;
    }
    std::string refused(const std::string& text) {
        std::unique_ptr<Engine> engine;
        return Engine::open(config(text), Log(), &engine).what;
    }
};

TEST_F(FineTuning, OneDigestForAnyNumberOfNodes) {
    const std::string plain = digest_of(""), exempt = digest_of("decay_exempt = true\n"), named = digest_of("decay_exempt = [\"fc1\"]\n"),
                      frozen = digest_of("freeze = [\"fc1\", \"norm1.bias\"]\n"), clipped = digest_of("clip_norm = 0.5\n"),
                      all = digest_of("decay_exempt = true\nfreeze = [\"norm1\"]\nclip_norm = 0.5\nema = 0.9\n");
    EXPECT_EQ((std::set<std::string>{plain, exempt, named, frozen, clipped, all}).size(), 6u);
    EXPECT_EQ(digest_of("ema = 0.9\nevaluate = \"ema\"\n"), plain);   // of the weights, which averages do not change
    EXPECT_EQ(digest_of("decay_exempt = false\nfreeze = []\nclip_norm = 0\n"), plain);
    EXPECT_EQ(digest_of("clip_norm = 1e30\n"), plain);   // a factor of 1 changes no bit
}

// What nodes share of a net, and what buddies keep of each other, changes no bit: the state is that of a plain net, and of one with slices.
TEST_F(FineTuning, OneDigestOverStagesBuddiesAndSlices) {
    for (const char* optimiser : {"freeze = [\"fc1\", \"norm1\"]\n", "freeze = [\"fc2.weight\"]\n", "decay_exempt = true\n", "ema = 0.75\n",
                                  "decay_exempt = [\"fc3\"]\nfreeze = [\"fc1.weight\", \"norm1\"]\nema = 0.75\n"}) {
        SCOPED_TRACE(optimiser);
        const auto of = [&](const std::string& parallel, uint32_t n, const std::string& more = "") {
            return run(with_job(text(optimiser, parallel), more + "checkpoint_keep = 1\n"), n);
        };
        const Run plain = of("", 1);
        EXPECT_EQ(plain.digest().size(), 64u) << plain.digest();
        const auto same = [&](const Run& other, const Run& wanted) {
            EXPECT_EQ(other.digest(), wanted.digest());
            EXPECT_EQ(digests(other.folders[0]), digests(wanted.folders[0]));   // of each step: also of the optimiser's state
        };
        same(of("[parallel]\nstages = 2\n", 2), plain);
        same(of("[parallel]\nstages = 2\nbuddy = true\n", 2, "survive = true\n"), plain);
        const std::string slices = "[parallel]\nslices = 2\nsliced = [\"fc1\", \"fc3\"]\n";
        const Run sliced = of(slices, 1);
        EXPECT_EQ(sliced.digest().size(), 64u) << sliced.digest();
        same(of(slices, 2), sliced);
        same(of(slices + "slice_groups = 2\n", 2), sliced);
        same(of(slices + "slice_groups = 2\n", 4), sliced);
        same(of(slices + "stages = 2\nslice_groups = 2\n", 4), sliced);
    }
}

// The nodes that remain go on with the frozen parameters and averages that one of them has kept of the lost node's stage.
TEST_F(FineTuning, BuddiesKeepFrozenAndAveragedWeights) {
    const std::string optimiser = "decay_exempt = true\nfreeze = [\"fc1\", \"norm1\"]\nema = 0.75\n";
    const Run plain = run(text(optimiser), 1);
    const std::string three = with_job(text(optimiser, "[parallel]\nstages = 3\nbuddy = true\n"), "survive = true\n");
    for (const Rank dead : {0u, 1u, 2u}) {
        const Run rest = run(three, 3, {}, [&](Simulator& simulator) { simulator.kill(dead, 60'000); });
        ASSERT_TRUE(rest.status.ok()) << rest.status.what;
        const Rank alive = (dead + 1) % 3;
        EXPECT_EQ(rest.ranks[alive].digest, plain.digest()) << dead;
        EXPECT_EQ(digests(rest.folders[alive]).rbegin()->second, digests(plain.folders[0]).rbegin()->second) << dead;
        EXPECT_GT(rest.ranks[alive].views.size(), 1u) << dead;
    }
}

TEST_F(FineTuning, FrozenLayersKeepTheirBitsAndTheirStatisticsGoOn) {
    Model model;
    const std::vector<float> trained = parameters_of(run(text("freeze = [\"fc1\", \"norm1\"]\n"), 2), &model);
    std::vector<Layer> layers;
    ASSERT_TRUE(layers_check(model.net, &layers).ok());
    std::vector<float> initial(trained.size());
    weights_initial(model.net, layers_layout(layers, 1), 1, initial);
    for (const Layer& layer : layers)
        for (uint64_t i = 0; i < layer.parameters() + layer.statistics; ++i) {
            const bool statistics = i >= layer.parameters(), frozen = layer.spec.name == "fc1" || layer.spec.name == "norm1";
            const uint64_t at = statistics ? layer.statistics_offset + i - layer.parameters() : layer.offset + i;
            if (frozen && !statistics) ASSERT_EQ(trained[at], initial[at]) << layer.spec.name << i;
            else ASSERT_NE(trained[at], initial[at]) << layer.spec.name << i;
        }
}

TEST_F(FineTuning, AResumedJobEndsWithTheSameBits) {
    const std::string job = text("decay_exempt = true\nfreeze = [\"fc1\"]\nclip_norm = 0.5\n");
    const Run whole = run(with_job(job, "checkpoint_every = 10\ncheckpoint_keep = 100\n"), 1);
    const auto all = checkpoints(whole);
    ASSERT_TRUE(all.contains(20));
    EXPECT_EQ(run(job, 2, from(all.at(20))).digest(), whole.digest());
    // Another value of one of the keys is another training.
    for (const char* other : {"decay_exempt = true\nfreeze = [\"fc2\"]\nclip_norm = 0.5\n", "freeze = [\"fc1\"]\nclip_norm = 0.5\n",
                              "decay_exempt = true\nfreeze = [\"fc1\"]\nclip_norm = 0.25\n"})
        EXPECT_NE(run(text(other), 1, from(all.at(20))).status.code, Code::ok) << other;
}

TEST_F(FineTuning, LambHasOneDigest) {
    const auto lamb = [&](const std::string& more) {
        return replaced(replaced(job_text_of_all(more), "lr = 0.05",
                                 "kind = \"lamb\"\nlr = 0.01\nweight_decay = 0.01\ndecay_exempt = true\nclip_norm = 1"),
                        "momentum = 0.9\n", "");
    };
    const std::string wanted = run(lamb(""), 1).digest();
    EXPECT_EQ(wanted.size(), 64u) << wanted;
    for (const uint32_t n : {2u, 4u})
        for (const char* algorithm : {"exchange = \"ring\"\n", "exchange = \"coded-rs\"\nm = 2\n"})
            EXPECT_EQ(run(lamb(fmt::format("[algorithm]\n{}", algorithm)), n).digest(), wanted) << n << algorithm;
    JobStatus status;
    ASSERT_TRUE(run_one(lamb(""), 3, &status).ok());   // three lanes
    EXPECT_EQ(status.digest, wanted);
    EXPECT_GT(status.accuracy, 0.9);
}

// Averages by hand from the checkpoints of each step; an evaluation measures them, and export writes them.
TEST_F(FineTuning, AveragedWeightsAreStateAndAreEvaluated) {
    const std::string job =
        replaced(with_job(text("ema = 0.75\n"), "checkpoint_every = 1\ncheckpoint_keep = 1000\n"), "epochs = 2", "steps = 12");
    const Run all = run(job, 1);
    ASSERT_TRUE(all.status.ok()) << all.status.what;
    std::vector<double> mean;
    Model model;
    ModelVectors state;
    for (const auto& [steps, path] : checkpoints(all)) {
        ASSERT_TRUE(checkpoint_read(path, &model, &state).ok());
        ASSERT_EQ(state.optimiser.size(), 2 * state.parameters.size());   // momentum and averages
        if (mean.empty()) mean.assign(state.parameters.begin(), state.parameters.end());
        std::vector<Layer> layers;
        ASSERT_TRUE(layers_check(model.net, &layers).ok());
        for (const Group& group : layers_layout(layers, 1).groups)
            for (uint64_t i = group.offset; i < group.offset + group.count; ++i) {
                mean[i] = 0.75 * mean[i] + 0.25 * double{state.parameters[i]};
                ASSERT_NEAR(state.optimiser[state.parameters.size() + i], group.statistics ? 0 : mean[i], 1e-5) << steps;
            }
    }
    std::vector<float> averaged, weights;
    ASSERT_TRUE(model_averaged(all.folders[0] + "/final.h5", &model, &averaged).ok());
    ASSERT_TRUE(model_read(all.folders[0] + "/final.h5", &model, &weights).ok());
    ASSERT_EQ(checkpoints(all).rbegin()->first, 11u);   // final.h5 has the twelfth state
    for (size_t i = 0; i < averaged.size(); ++i)
        ASSERT_TRUE(averaged[i] == weights[i] || std::abs(averaged[i] - (0.75 * mean[i] + 0.25 * double{weights[i]})) < 1e-5);
    EXPECT_NE(averaged, weights);
    // What evaluate = "ema" measures is what the exported averages are worth.
    const Run measured = run(replaced(job, "ema = 0.75\n", "ema = 0.75\nevaluate = \"ema\"\n"), 2);
    EXPECT_EQ(measured.digest(), all.digest());
    EXPECT_EQ(digests(measured.folders[0]), digests(all.folders[0]));
    EXPECT_NE(measured.ranks[0].test_loss, all.ranks[0].test_loss);
    ASSERT_TRUE(safetensors_write(folder_ + "/ema.safetensors", model, averaged).ok());
    Evaluation of_export;
    const Status evaluated = model_evaluate(folder_ + "/ema.safetensors", folder_ + "/test.h5", 1, &of_export);
    ASSERT_TRUE(evaluated.ok()) << evaluated.what;
    EXPECT_NEAR(of_export.loss, measured.ranks[0].test_loss, 1e-5);
    const auto averaged_loss = [&](const std::string& path, Evaluation* evaluation) {
        return model_evaluate(path, folder_ + "/test.h5", 1, evaluation, 0, {}, true);
    };
    Evaluation of_file;
    ASSERT_TRUE(averaged_loss(all.folders[0] + "/final.h5", &of_file).ok());
    EXPECT_EQ(of_file.loss, of_export.loss);
    EXPECT_EQ(of_file.digest, of_export.digest);
    EXPECT_EQ(std::string(averaged_loss(folder_ + "/ema.safetensors", &of_file).what),
              folder_ + "/ema.safetensors: a file of tensors has one set of weights, and no averaged ones beside them");
    // Resumed, the averages go on; a job without them has none.
    const Run rest = run(job, 2, from(checkpoints(all).at(5)));
    EXPECT_EQ(rest.digest(), all.digest());
    EXPECT_EQ(digests(rest.folders[0]).rbegin()->second, digests(all.folders[0]).rbegin()->second);
    const Run plain = run(text(""), 1);
    const Status none = model_averaged(plain.folders[0] + "/final.h5", &model, &averaged);
    EXPECT_NE(std::string(none.what).find("its job kept no averaged weights (optimiser.ema)"), std::string::npos) << none.what;
}

TEST_F(FineTuning, NamesThatTheNetDoesNotHaveAreRefused) {
    EXPECT_EQ(
        refused(text("freeze = [\"conv1\"]\n")),
        "optimiser.freeze: \"conv1\" names no layer with weights: one of fc1, norm1, fc2, fc3, or one of their tensors, as fc1.weight");
    EXPECT_EQ(
        refused(text("decay_exempt = [\"fc9\"]\n")).find("optimiser.decay_exempt: \"fc9\" names no layer with weights (did you mean fc1?)"),
        0u);
}

// A trained net of 4 classes gives another of 3 all but its head.
TEST_F(FineTuning, BeginsWithAllButTheHeadOfAFile) {
    Model model;
    const std::vector<float> trained = parameters_of(run(text(""), 1), &model);
    ASSERT_TRUE(safetensors_write(folder_ + "/four.safetensors", model, trained).ok());
    const auto of = [&](const std::string& net, const std::string& optimiser) {
        const std::string job =
            replaced(replaced(text(optimiser), "[net]\n", "[net]\nstart = \"four.safetensors\"\n" + net), "outputs = 4", "outputs = 3");
        return replaced(job, "[data]\n", "[data]\nclasses = 3\n");
    };
    const Run tuned = run(of("start_skip = [\"fc3.*\"]\n", "freeze = [\"fc1\", \"norm1\", \"fc2\"]\n"), 1);
    ASSERT_TRUE(tuned.status.ok()) << tuned.status.what;
    EXPECT_EQ(run(of("start_only = [\"fc[12].*\", \"norm?.*\"]\n", "freeze = [\"fc1\", \"norm1\", \"fc2\"]\n"), 2).digest(),
              tuned.digest());
    Model other;
    const std::vector<float> found = parameters_of(tuned, &other);
    std::vector<Layer> layers;
    ASSERT_TRUE(layers_check(other.net, &layers).ok());
    for (const Layer& layer : layers)
        for (uint64_t i = layer.offset; layer.spec.name != "fc3" && i < layer.offset + layer.parameters(); ++i)
            ASSERT_EQ(found[i], trained[i]);
    EXPECT_NE(refused(of("", "")).find("tensor fc3.weight: its shape is [4,16], the net's is [3,16]"), std::string::npos)
        << refused(of("", ""));
    EXPECT_EQ(refused(of("start_skip = [\"fc3.*\", \"head.*\"]\n", ""))
                  .find("net.start_skip: \"head.*\" matches no tensor of the net, which has "
                        "fc1.weight, fc1.bias, norm1.weight and "),
              0u);
    EXPECT_EQ(refused(of("start_skip = [\"*\"]\n", "")).find("net.start_skip: the net takes no tensor of "), 0u);
}

}   // namespace
}   // namespace gradcast
