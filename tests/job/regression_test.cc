// Jobs whose targets are real numbers.
#include <gtest/gtest.h>

#include "datasets/reader.h"
#include "datasets/shard.h"
#include "runtime/job/model/model_evaluate.h"
#include "runtime/job/model/model_file.h"
#include "runtime/job/model/safetensors.h"
#include "runtime/job/run/engine.h"
#include "tests/datasets/support.h"
#include "tests/job/jobs.h"

namespace gradcast {
namespace {

constexpr char ridge_job[] =
    "[job]\nsteps = 500\nevaluate = 500\nbatch = 800\nblocks = 4\n[data]\ntrain = \"ridge/train.h5\"\ntest = \"ridge/test.h5\"\n"
    "[net]\npreset = \"ridge\"\n[optimiser]\nlr = 0.2\nmomentum = 0.9\nweight_decay = 0.01\n";

/// Where (1/N) sum (<x, w> - y)^2 + 0.005 ||w||^2 is least: (X'X / N + 0.005) w = X'y / N, by Cholesky's decomposition.
std::vector<double> ridge_solution(const std::string& path) {
    std::unique_ptr<DataSet> data;
    EXPECT_TRUE(data_open(path, &data).ok());
    const size_t N = data->info().count, d = data->sample_bytes();
    std::vector<double> A(d * d), b(d), x(d);
    std::vector<uint8_t> bytes(d);
    for (uint64_t n = 0; n < N; ++n) {
        int32_t label;
        EXPECT_TRUE(data->read(std::span(&n, 1), bytes.data(), &label).ok());
        const double y = (label - 32768) / 256.0;
        for (size_t i = 0; i < d; ++i) x[i] = (bytes[i] - 128) / 32.0;
        for (size_t i = 0; i < d; ++i) {
            b[i] += x[i] * y / static_cast<double>(N);
            for (size_t j = 0; j <= i; ++j) A[i * d + j] += x[i] * x[j] / static_cast<double>(N);
        }
    }
    for (size_t i = 0; i < d; ++i) {
        A[i * d + i] += 0.005;
        for (size_t j = 0; j <= i; ++j) {
            for (size_t k = 0; k < j; ++k) A[i * d + j] -= A[i * d + k] * A[j * d + k];
            A[i * d + j] = i == j ? std::sqrt(A[i * d + i]) : A[i * d + j] / A[j * d + j];
        }
    }
    for (size_t i = 0; i < d; ++i) {
        for (size_t k = 0; k < i; ++k) b[i] -= A[i * d + k] * b[k];
        b[i] /= A[i * d + i];
    }
    for (size_t i = d; i-- > 0;) {
        for (size_t k = i + 1; k < d; ++k) b[i] -= A[k * d + i] * b[k];
        b[i] /= A[i * d + i];
    }
    return b;
}

TEST_F(EngineTest, RidgeComesToTheClosedForm) {
    ImportResult imported;
    Status status = data_import({.kind = "ridge", .from = "", .out = folder_ + "/ridge", .samples = 800}, &imported);
    ASSERT_TRUE(status.ok()) << status.what;
    JobStatus one;
    std::string path;
    status = run_one(ridge_job, 2, &one, &path);
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_EQ(one.accuracy, -1);
    EXPECT_GT(one.test_loss, 1.0);   // the variance of the noise
    EXPECT_LT(one.test_loss, 6.0);
    size_t lines;
    EXPECT_TRUE(evaluations(path, &lines).empty());

    Model model;
    std::vector<float> parameters;
    ASSERT_TRUE(model_read(path, &model, &parameters).ok());
    EXPECT_EQ(model.net.target_scale, 1.0f / 256);
    const std::vector<double> best = ridge_solution(folder_ + "/ridge/train.h5");
    ASSERT_EQ(parameters.size(), best.size());
    double off = 0, size = 0;
    for (size_t i = 0; i < best.size(); ++i) {
        off += (static_cast<double>(parameters[i]) - best[i]) * (static_cast<double>(parameters[i]) - best[i]);
        size += best[i] * best[i];
    }
    EXPECT_LT(std::sqrt(off / size), 1e-4);

    Evaluation evaluation;
    ASSERT_TRUE(model_evaluate(path, folder_ + "/ridge/test.h5", 2, &evaluation).ok());
    EXPECT_TRUE(evaluation.regression);
    EXPECT_NEAR(evaluation.loss, one.test_loss, 1e-9);
    EXPECT_TRUE(evaluation.count_of_class.empty() && evaluation.confusion.empty());

    std::vector<JobStatus> two;
    status = run_many(ridge_job, 2, &two);
    ASSERT_TRUE(status.ok()) << status.what;
    for (const JobStatus& each : two) {
        EXPECT_EQ(each.digest, one.digest);
        EXPECT_EQ(each.test_loss, one.test_loss);
    }
}

TEST_F(EngineTest, RegressionAndClassesDoNotMix) {
    ImportResult imported;
    ASSERT_TRUE(data_import({.kind = "ridge", .from = "", .out = folder_ + "/ridge", .samples = 800}, &imported).ok());
    JobStatus status;
    std::string model;
    const std::string short_job = replaced(replaced(ridge_job, "steps = 500", "steps = 1"), "evaluate = 500", "evaluate = 1");
    ASSERT_TRUE(run_one(short_job, 1, &status, &model).ok());
    auto error = [&](const std::string& text) { return std::string(run_one(text, 1, &status).what); };
    auto with_net = [&](const std::string& net) { return replaced(short_job, "preset = \"ridge\"\n", net); };
    EXPECT_EQ(error(with_net("preset = \"mlp\"\n")),
              "layer loss1: softmax_cross_entropy is for classes, but the data are a regression (target_scale): take squared_loss");
    EXPECT_EQ(error(with_net("[[net.layers]]\nkind = \"inner_product\"\noutputs = 10\n[[net.layers]]\nkind = \"squared_loss\"\n")),
              "layer loss1: its input 10x1x1 does not fit a regression, which has one output (1x1x1)");
    EXPECT_EQ(error(replaced(short_job, "[job]\n", "[job]\nstop_at = 0.5\n")),
              "job.stop_at is an accuracy, but " + folder_ + "/ridge/train.h5 is a regression: leave it out");
    EXPECT_EQ(error(replaced(short_job, "[data]\n", "[data]\nclasses = 2\n")),
              "classes = 2: " + folder_ + "/ridge/train.h5 is a regression, which has none");
    EXPECT_EQ(error(replaced(replaced(short_job, "ridge/train", "train"), "ridge/test", "test")),
              "layer loss1: its input 1x1x1 does not fit 4 classes (4x1x1)");

    // The same shapes and classes, once as classes.
    std::vector<uint8_t> images(500 * 10, 128);
    DataInfo info{.count = 10, .C = 1, .H = 1, .W = 500, .classes = 65536, .mean = {0.5f}, .std = {0.1f}, .source = "test"};
    const std::vector<int32_t> labels(10, 7);
    ASSERT_TRUE(shard_write(folder_ + "/ridge/classes.h5", info, images.data(), labels.data()).ok());
    EXPECT_EQ(error(replaced(short_job, "ridge/test.h5", "ridge/classes.h5")),
              folder_ + "/ridge/classes.h5 has the target_scale 0, " + folder_ +
                  "/ridge/train.h5 has 0.00390625 (0: classes): they must be alike");
    Evaluation unused;
    EXPECT_EQ(std::string(model_evaluate(model, folder_ + "/ridge/classes.h5", 1, &unused).what),
              "the model " + model + " has the target_scale 0.00390625, " + folder_ + "/ridge/classes.h5 has 0 (0: classes)");
}

/// y = 2 a - 3 b + 1 and z = a b, of a table with 240 rows.
std::string table(const char* head, bool classes) {
    std::string text = std::string(head) + "\n";
    for (uint64_t n = 0; n < 240; ++n) {
        const double a = static_cast<double>(splitmix64(2 * n) % 2000) / 1000 - 1,
                     b = static_cast<double>(splitmix64(2 * n + 1) % 2000) / 10;
        if (classes) text += fmt::format("{},{},{}\n", a, b, a * b > 0 ? "above" : "below");
        else text += fmt::format("{},{},{},{}\n", a, b, 2 * a - 0.03 * b + 1, a * b / 100);
    }
    return text;
}

constexpr char table_job[] =
    "[job]\nsteps = 300\nevaluate = 300\nbatch = 48\nblocks = 6\n[data]\ntrain = \"table/train.h5\"\ntest = \"table/test.h5\"\n"
    "[net]\n[[net.layers]]\nkind = \"inner_product\"\noutputs = 32\n[[net.layers]]\nkind = \"relu\"\n[[net.layers]]\nkind = "
    "\"inner_product\"\noutputs = 2\n[[net.layers]]\nkind = \"squared_loss\"\n[optimiser]\nlr = 0.05\nmomentum = 0.9\n";

TEST_F(EngineTest, ATableOfFloatsIsLearntToTheSameBits) {
    ASSERT_TRUE(file_write(folder_ + "/t.csv", table("a,b,y,z", false)).ok());
    ImportResult imported;
    Status status = data_import(
        {.kind = "table", .from = folder_ + "/t.csv", .out = folder_ + "/table", .test = 0.2, .targets = {"y", "z"}}, &imported);
    ASSERT_TRUE(status.ok()) << status.what;
    JobStatus one;
    std::string path;
    status = run_one(table_job, 2, &one, &path);
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_LT(one.test_loss, 0.02);   // the targets' variance is above 1
    EXPECT_EQ(one.accuracy, -1);

    Model model;
    std::vector<float> parameters;
    ASSERT_TRUE(model_read(path, &model, &parameters).ok());
    EXPECT_EQ(model.net.element, Element::f32);
    EXPECT_EQ(model.net.targets, 2u);
    const std::string tensors = folder_ + "/m.safetensors";
    ASSERT_TRUE(safetensors_write(tensors, model, parameters).ok());
    for (const std::string& each : {path, tensors}) {
        Evaluation evaluation;
        status = model_evaluate(each, folder_ + "/table/test.h5", 2, &evaluation);
        ASSERT_TRUE(status.ok()) << status.what;
        EXPECT_TRUE(evaluation.regression);
        EXPECT_NEAR(evaluation.loss, one.test_loss, 1e-9);
    }
    Evaluation unused;
    expect_error(model_evaluate(path, folder_ + "/test.h5", 1, &unused), {"the model", "takes samples of 2x1x1 in 1 classes"});

    for (const char* exchange : {"ring", "coded-rs"}) {
        std::vector<JobStatus> three;
        status = run_many(fmt::format("{}[algorithm]\nexchange = \"{}\"\n", table_job, exchange), 3, &three);
        ASSERT_TRUE(status.ok()) << exchange << ": " << status.what;
        for (const JobStatus& each : three) {
            EXPECT_EQ(each.digest, one.digest);
            EXPECT_EQ(each.test_loss, one.test_loss);
        }
    }
}

TEST_F(EngineTest, ATableOfClassesAndWhatDoesNotFitIt) {
    ASSERT_TRUE(file_write(folder_ + "/t.csv", table("a,b,side", true)).ok());
    ImportResult imported;
    Status status =
        data_import({.kind = "table", .from = folder_ + "/t.csv", .out = folder_ + "/table", .test = 0.2, .label = "side"}, &imported);
    ASSERT_TRUE(status.ok()) << status.what;
    const std::string job = replaced(table_job, "squared_loss", "softmax_cross_entropy");
    JobStatus one;
    std::string path;
    status = run_one(job, 2, &one, &path);
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_GT(one.accuracy, 0.95);
    auto error = [&](const std::string& text) { return run_one(text, 1, &one); };
    expect_error(error(replaced(job, "[data]\n", "[data]\nflip = true\n")),
                 {"data.flip: ", "has samples of f32, which are no images: leave it out"});
    expect_error(error(replaced(job, "table/test.h5", "test.h5")), {"test.h5 has samples of 1x8x8"});
    expect_error(error(job + "[algorithm]\nkind = \"dane\"\nsolver = \"exact\"\n"), {"algorithm.solver: exact"});

    std::vector<JobStatus> workers;
    const std::string local = job + "[algorithm]\nkind = \"ma\"\nworkers = 2\nlocal_steps = 2\n";
    status = run_one(replaced(local, "steps = 300", "steps = 40"), 2, &one);
    ASSERT_TRUE(status.ok()) << status.what;
}

}   // namespace
}   // namespace gradcast
