// final.h5 is not lost: disks that are full, nodes that die at the end; a saved model is read back, or named where it is broken.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>

#include "datasets/hdf5.h"
#include "nn/graph/layers.h"
#include "runtime/core/fd.h"
#include "runtime/job/model/model_evaluate.h"
#include "runtime/job/model/model_file.h"
#include "runtime/job/model/safetensors.h"
#include "runtime/job/run/engine.h"
#include "runtime/job/run/job_protocol.h"
#include "tests/job/jobs.h"
#include "tests/wrapped_host.h"
#include "transport/sim/sim.h"

namespace gradcast {
namespace {

// tests/job/older.h5 is of format version 2, whose layers are ten words each.
TEST(ModelFile, OfAnOlderVersionIsReadAndWrittenAnew) {
    Model model;
    ModelVectors state;
    ASSERT_TRUE(checkpoint_read("tests/job/older.h5", &model, &state).ok());
    auto layers = [](const Model& of) {
        std::vector<std::string> all;
        for (const LayerSpec& layer : of.net.layers) all.push_back(layer_text(layer));
        return all;
    };
    const std::vector<std::string> expected = {"conv outputs=2 kernel=3 bias=0", "max_pool kernel=3 stride=2 pad=1 ceil=1",
                                               "dropout rate=0.3", "inner_product name=logits outputs=2", "softmax_cross_entropy"};
    EXPECT_EQ(layers(model), expected);
    const std::string path = testing::TempDir() + "gc-newer-" + std::to_string(getpid()) + ".h5";
    ASSERT_TRUE(model_write(path, model, {state.parameters, state.optimiser, state.exponents, state.algorithm}).ok());
    Model newer;
    std::vector<float> parameters;
    EXPECT_TRUE(model_read(path, &newer, &parameters).ok());
    EXPECT_EQ(layers(newer), expected);
    EXPECT_EQ(parameters, state.parameters);
    EXPECT_EQ(::unlink(path.c_str()), 0);
}

// More labels a sample than a side may have pixels; and what generate needs of a text.
TEST(ModelFile, OfMasksAndTextsIsReadBack) {
    NetSpec masks{.C = 1, .H = 300, .W = 301, .classes = 2, .targets = 300 * 301, .target_element = Element::u8, .ignore = 255};
    masks.layers = {{.kind = "conv", .values = {{"outputs", 2}, {"kernel", 1}}}, {.kind = "softmax_cross_entropy"}};
    NetSpec text{.C = 1, .H = 1, .W = 5, .classes = 1, .element = Element::u16, .vocabulary = 3};
    text.layers = {{.kind = "embedding", .values = {{"outputs", 3}}}, {.kind = "softmax_cross_entropy"}};
    for (const NetSpec& spec : {masks, text}) {
        SCOPED_TRACE(spec.layers[0].kind);
        std::vector<Layer> layers;
        ASSERT_TRUE(layers_check(spec, &layers).ok());
        std::vector<float> parameters(layers[0].parameters(), 0.5f), found;
        Model model;
        model.net = spec;
        model.mean = {0}, model.std = {1};
        if (spec.vocabulary > 0) model.alphabet = "ab\xC3\xA4";
        const std::string path = testing::TempDir() + "gc-typed-" + std::to_string(getpid());
        ASSERT_TRUE(model_write(path + ".h5", model, {parameters, {}, {}, {}}).ok());
        for (const char* end : {".h5", ".safetensors"}) {
            Model again;
            const Status read = end[1] == 'h' ? model_read(path + end, &again, &found) : safetensors_model(path + end, &again, &found);
            ASSERT_TRUE(read.ok()) << read.what;
            EXPECT_EQ(found, parameters);
            EXPECT_EQ(again.net.targets, spec.targets);
            EXPECT_EQ(again.net.ignore, spec.ignore);
            EXPECT_EQ(again.net.vocabulary, spec.vocabulary);
            EXPECT_EQ(again.alphabet, model.alphabet);
            if (end[1] == 'h') {
                ASSERT_TRUE(safetensors_write(path + ".safetensors", again, found).ok());
            }
            std::filesystem::remove(path + end);
        }
        std::filesystem::remove(path + ".safetensors");
    }
}

// predict resizes to that side; a model of samples of one size keeps the version that earlier versions of gradcast read.
TEST(ModelFile, KeepsTheShortSideOfPictures) {
    const std::string path = testing::TempDir() + "gc-side-" + std::to_string(getpid());
    Model model;
    model.net = {.C = 3, .H = 4, .W = 4, .classes = 2};
    model.net.layers = {{.kind = "inner_product", .values = {{"outputs", 2}}}, {.kind = "softmax_cross_entropy"}};
    model.mean = {0, 0, 0}, model.std = {1, 1, 1};
    std::vector<float> parameters(4 * 4 * 3 * 2 + 2, 0.5f), found;
    const auto version = [&] {
        Hdf5Lock lock;
        Hid file(H5Fopen((path + ".h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT)), attribute(H5Aopen(file.get(), "version", H5P_DEFAULT));
        uint64_t value = 0;
        EXPECT_GE(H5Aread(attribute.get(), H5T_NATIVE_UINT64, &value), 0);
        return value;
    };
    for (const uint32_t side : {0u, 3u, 4u, 300u}) {
        model.pictures_side = side;
        ASSERT_TRUE(model_write(path + ".h5", model, {parameters, {}, {}, {}}).ok());
        ASSERT_TRUE(safetensors_write(path + ".safetensors", model, parameters).ok());
        EXPECT_EQ(version(), side > 0 ? 8u : 5u);
        Model again, exported;
        const Status read = model_read(path + ".h5", &again, &found);
        const Status other = safetensors_model(path + ".safetensors", &exported, &found);
        if (side == 3) {   // no sample of 4 x 4 can be cut out
            EXPECT_EQ(read.what, path + ".h5: not a gradcast model: pictures_side is 3, outside 4 .. 65536");
            EXPECT_NE(std::string_view(other.what).find("its __metadata__ does not say pictures_side"), std::string_view::npos)
                << other.what;
        } else {
            EXPECT_TRUE(read.ok()) << read.what;
            EXPECT_TRUE(other.ok()) << other.what;
            EXPECT_EQ(again.pictures_side, side);
            EXPECT_EQ(exported.pictures_side, side);
        }
        std::filesystem::remove(path + ".h5");
        std::filesystem::remove(path + ".safetensors");
    }
}

TEST(ModelFile, SaysWhyItCannotBeWritten) {
    std::string path = testing::TempDir() + "gc-model-" + std::to_string(getpid()) + ".h5";
    Model model;
    model.net.C = model.net.H = model.net.W = model.net.classes = 1;
    model.mean = {0};
    model.std = {1};
    std::vector<float> parameters(100'000, 1.0f);
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    rlimit small = before;
    small.rlim_cur = 50'000;
    auto handler = std::signal(SIGXFSZ, SIG_IGN);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    Status status = model_write(path, model, {parameters, {}, {}, {}});
    ::setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
    EXPECT_EQ(status.what, "cannot write " + path + ": File too large");
    EXPECT_FALSE(std::filesystem::exists(path));
    // The library can still be used, also at exit.
    EXPECT_TRUE(model_write(path, model, {parameters, {}, {}, {}}).ok());
    std::filesystem::remove(path);
}

TEST_F(EngineTest, AModelThatDoesNotFitTheDiskIsRefusedBeforeTheFirstStep) {
    EngineConfig c = config(job_text());
    c.folder = folder_ + "/disk/job";
    SmallDisk disk(folder_ + "/disk", "64k");
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    auto handler = std::signal(SIGXFSZ, SIG_IGN);
    if (!disk.mounted) {
        rlimit small = before;
        small.rlim_cur = 50'000;
        ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    }
    std::unique_ptr<Engine> engine;
    Status status = Engine::open(c, Log(), &engine);
    ::setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
    EXPECT_EQ(status.what, fmt::format("cannot reserve 0.1 MB for the model in {}: {}", c.folder,
                                       disk.mounted ? "No space left on device" : "File too large"));
    EXPECT_FALSE(std::filesystem::exists(c.folder + "/final.h5.part"));
}

TEST_F(EngineTest, ADiskThatFillsUpWhileTrainingLosesNoModel) {
    SmallDisk disk(folder_ + "/disk", "1m");
    if (!disk.mounted) GTEST_SKIP() << "no tmpfs: " << std::strerror(errno) << " (needs root)";
    JobStatus undisturbed, status;
    ASSERT_TRUE(run_one(job_text(), 1, &undisturbed).ok());
    EngineConfig c = config(job_text());
    c.folder = folder_ + "/disk/job";
    std::unique_ptr<Engine> engine;
    ASSERT_TRUE(Engine::open(c, Log(), &engine).ok());
    disk.fill();
    OneRank host;
    Status result = engine->run(host);
    ASSERT_TRUE(result.ok()) << result.what;
    status = engine->status();
    EXPECT_EQ(status.digest, undisturbed.digest);
    EXPECT_EQ(status.model, c.folder + "/final.h5");
    Model model;
    std::vector<float> parameters;
    result = model_read(status.model, &model, &parameters);
    EXPECT_TRUE(result.ok()) << result.what;
    EXPECT_EQ(model.digest, undisturbed.digest);
    EXPECT_LT(std::filesystem::file_size(status.model), 60'000u);   // what was not needed of the room is given back
}

// Reports that its rank is at the last barrier and drops its message to the others, as if it died there.
struct DiesAtTheEnd : Protocol {
    DiesAtTheEnd(Protocol* protocol, Simulator& simulator, Rank rank) : inner(*protocol), sim(simulator), self(rank) {}
    void on(std::span<const Event> events, Actions& actions) override {
        for (const Event& event : events)
            if (const auto* command = event.is<Event::Command>();
                command && std::holds_alternative<JobCommand::End>(command->as<JobCommand>().what))
                return sim.kill(self, actions.now_us);
        inner.on(events, actions);
    }
    Landing land(const Packet& packet, uint64_t bytes, Buffer* place) override { return inner.land(packet, bytes, place); }
    Protocol& inner;
    Simulator& sim;
    const Rank self;
};

TEST_F(EngineTest, ADeathAtTheLastBarrierLosesNoModel) {
    JobStatus undisturbed;
    ASSERT_TRUE(run_one(job_text(), 1, &undisturbed).ok());
    constexpr uint32_t n = 3;
    for (Rank victim = 0; victim < n; ++victim) {
        auto simulator = Simulator::create({.ranks = n});
        std::vector<std::unique_ptr<Engine>> engines(n);
        std::vector<std::string> folders;
        std::unique_ptr<DiesAtTheEnd> dies;
        for (Rank rank = 0; rank < n; ++rank) {
            EngineConfig c = config(job_text(), n, rank);
            c.lanes = 0;
            c.loader_threaded = false;
            c.spend_us = 100;
            folders.push_back(c.folder);
            ASSERT_TRUE(Engine::open(c, Log(), &engines[rank]).ok());
            simulator->trainer(rank, [&, rank](Host& host) {
                WrappedHost wrapped(host, [&, rank](uint16_t channel, Protocol* protocol) -> Protocol* {
                    if (rank != victim || channel != job_channel) return protocol;
                    dies = std::make_unique<DiesAtTheEnd>(protocol, *simulator, rank);
                    return dies.get();
                });
                return engines[rank]->run(wrapped);
            });
        }
        EXPECT_FALSE(simulator->run().ok());
        for (Rank rank = 0; rank < n; ++rank) {
            if (rank == victim) continue;
            const JobStatus status = engines[rank]->status();
            Model model;
            std::vector<float> parameters;
            EXPECT_EQ(status.state, JobState::failed);
            EXPECT_NE(status.error.find(fmt::format("rank {} ", victim)), std::string::npos) << status.error;
            EXPECT_EQ(status.model, folders[rank] + "/final.h5");
            EXPECT_EQ(status.warnings,
                      std::vector{fmt::format("the model of the last step is in {}; not every rank has confirmed it", status.model)});
            Status read = model_read(folders[rank] + "/final.h5", &model, &parameters);
            EXPECT_TRUE(read.ok()) << read.what;
            EXPECT_EQ(model.digest, undisturbed.digest);
            EXPECT_FALSE(std::filesystem::exists(folders[rank] + "/final.h5.part"));
        }
        simulator.reset();
    }
}

TEST_F(EngineTest, RoomThatIsNotNeededIsGivenBack) {
    EngineConfig c = config(job_text());
    std::unique_ptr<Engine> engine;
    ASSERT_TRUE(Engine::open(c, Log(), &engine).ok());
    EXPECT_TRUE(std::filesystem::exists(c.folder + "/final.h5.part"));
    EXPECT_EQ(model_kept(c.folder), "");   // as a killed daemon leaves it: no model
    EXPECT_FALSE(std::filesystem::exists(c.folder + "/final.h5.part"));
    JobStatus status;
    std::string path;
    ASSERT_TRUE(run_one(job_text(), 1, &status, &path).ok());
    std::filesystem::rename(path, path + ".part");   // its daemon was ended before the last barrier was through
    EXPECT_EQ(model_kept(path.substr(0, path.rfind('/'))), path);
    EXPECT_TRUE(std::filesystem::exists(path));
    EXPECT_EQ(run_one(replaced(job_text(), "lr = 0.05", "lr = 1e30"), 1, &status, &path).code, Code::diverged);
    EXPECT_FALSE(std::filesystem::exists(path) || std::filesystem::exists(path + ".part"));
    EXPECT_EQ(status.model, "");
}

TEST_F(EngineTest, FinalModelEvaluatesToTheJobsAccuracy) {
    JobStatus status;
    std::string path;
    ASSERT_TRUE(run_one(job_text(), 2, &status, &path).ok());
    for (uint32_t threads : {1u, 3u}) {
        Evaluation evaluation;
        Status result = model_evaluate(path, folder_ + "/test.h5", threads, &evaluation);
        ASSERT_TRUE(result.ok()) << result.what;
        EXPECT_EQ(evaluation.count, 250u);
        EXPECT_EQ(static_cast<double>(evaluation.right) / 250, status.accuracy);
        EXPECT_EQ(evaluation.digest, status.digest);
        uint64_t right = 0, count = 0;
        for (uint64_t each : evaluation.right_of_class) right += each;
        for (uint64_t each : evaluation.count_of_class) count += each;
        EXPECT_EQ(right, evaluation.right);
        EXPECT_EQ(count, 250u);
    }
    Model model;
    std::vector<float> parameters;
    ASSERT_TRUE(model_read(path, &model, &parameters).ok());
    EXPECT_EQ(model.job, job_text());
    EXPECT_EQ(model.step, 50u);
    EXPECT_EQ(model.accuracy, status.accuracy);
    EXPECT_EQ(model.kernel_set, status.kernel_set);
    EXPECT_EQ(parameters.size(), 64u * 16 + 16 + 16 * 4 + 4);
    EXPECT_FALSE(std::filesystem::exists(path + ".part"));
}

// Slices change the bits of a training, not its files: a sliced layer's parameters are one tensor.
TEST_F(EngineTest, SlicedLayersAreWholeInFiles) {
    const std::string text = job_text("[parallel]\nslices = 4\nsliced = [\"fc1\", \"fc2\"]\n");
    JobStatus whole, status;
    std::string path;
    ASSERT_TRUE(run_one(job_text(), 1, &whole).ok());
    ASSERT_TRUE(run_one(text, 1, &status, &path).ok());
    EXPECT_NE(status.digest, whole.digest);
    EXPECT_GT(status.accuracy, 0.9);
    for (const uint32_t lanes : {0u, 2u, 3u}) {
        JobStatus other;
        ASSERT_TRUE(run_one(text, lanes, &other).ok());
        EXPECT_EQ(other.digest, status.digest) << lanes;
    }
    for (const char* exchange : {"ring", "coded-rs"}) {
        std::vector<JobStatus> many;
        ASSERT_TRUE(run_many(text + fmt::format("[algorithm]\nexchange = \"{}\"\n", exchange), 3, &many).ok());
        for (const JobStatus& each : many) EXPECT_EQ(each.digest, status.digest) << exchange;
    }
    Model model;
    std::vector<float> parameters;
    ASSERT_TRUE(model_read(path, &model, &parameters).ok());
    EXPECT_EQ(parameters.size(), 64u * 16 + 16 + 16 * 4 + 4);
    EXPECT_EQ(layer_text(model.net.layers[0]), "inner_product outputs=16 slices=4");
    const std::string saved = folder_ + "/sliced.safetensors";
    ASSERT_TRUE(safetensors_write(saved, model, parameters).ok());
    for (const std::string& file : {path, saved}) {
        Evaluation evaluation;
        const Status evaluated = model_evaluate(file, folder_ + "/test.h5", 2, &evaluation);
        ASSERT_TRUE(evaluated.ok()) << evaluated.what;
        EXPECT_EQ(static_cast<double>(evaluation.right) / 250, status.accuracy);
    }
    // A job without slices begins with them.
    JobStatus start;
    const std::string still = replaced(replaced(job_text(), "lr = 0.05", "lr = 1e-30"), "epochs = 2", "steps = 2");
    ASSERT_TRUE(run_one(replaced(still, "[net]\n", "[net]\nstart = \"sliced.safetensors\"\n"), 1, &start).ok());
    EXPECT_EQ(start.digest, status.digest);

    auto mistake = [&](const std::string& parallel) { return std::string(run_one(job_text("[parallel]\n" + parallel), 1, &status).what); };
    EXPECT_EQ(mistake("slices = 2\n"),
              "no inner product, linear layer or embedding has 262144 weights: name layers in `sliced`; possible are fc1, fc2");
    EXPECT_EQ(mistake("slices = 8\nsliced = [\"fc2\"]\n"), "layer fc2: 4 outputs do not make 8 slices: take 2 or 4");
}

TEST_F(EngineTest, StartsFromSavedParameters) {
    JobStatus first, status;
    std::string path;
    ASSERT_TRUE(run_one(job_text(), 1, &first, &path).ok());
    Model model;
    std::vector<float> parameters;
    ASSERT_TRUE(model_read(path, &model, &parameters).ok());
    const std::string start = folder_ + "/start.safetensors";
    ASSERT_TRUE(safetensors_write(start, model, parameters).ok());

    // With a tiny learning rate the final parameters are the initial ones.
    auto from = [&](std::string text, const std::string& file) { return replaced(text, "[net]\n", "[net]\nstart = \"" + file + "\"\n"); };
    const std::string still =
        replaced(replaced(from(job_text(), "start.safetensors"), "lr = 0.05", "lr = 1e-30"), "epochs = 2", "steps = 2");
    ASSERT_TRUE(run_one(still, 1, &status).ok());
    EXPECT_EQ(status.digest, first.digest);
    EXPECT_EQ(status.accuracy, first.accuracy);
    ASSERT_TRUE(run_one(replaced(still, "[job]", "[job]\nseed = 9"), 2, &status).ok());
    EXPECT_EQ(status.digest, first.digest);

    // From there on one digest whatever the ranks; with batch norm, dropout and a shortcut too.
    std::string all = folder_ + "/all.safetensors";
    ASSERT_TRUE(run_one(job_text_of_all(), 1, &status, &path).ok());
    ASSERT_TRUE(model_read(path, &model, &parameters).ok());
    ASSERT_TRUE(safetensors_write(all, model, parameters).ok());
    for (const std::string& text : {from(job_text(), start), from(job_text_of_all(), all)}) {
        JobStatus one;
        ASSERT_TRUE(run_one(text, 1, &one).ok());
        EXPECT_GE(one.accuracy, 0.9);
        for (uint32_t n : {2u, 3u}) {
            std::vector<JobStatus> statuses;
            ASSERT_TRUE(run_many(text, n, &statuses).ok());
            for (const JobStatus& each : statuses) EXPECT_EQ(each.digest, one.digest);
        }
    }

    Status result = run_one(replaced(from(job_text(), start), "outputs = 16", "outputs = 17"), 1, &status);
    EXPECT_EQ(
        std::string(result.what),
        "cannot start from " + start + ": tensor fc1.weight: its shape is [16,64], the net's is [17,64]: net.start_skip can leave it out");
    result = run_one(from(job_text(), "none.safetensors"), 1, &status);
    EXPECT_EQ(std::string(result.what), "cannot start: cannot open " + folder_ + "/none.safetensors: No such file or directory");
}

TEST_F(EngineTest, BrokenModelsAreNamed) {
    JobStatus status;
    std::string path;
    ASSERT_TRUE(run_one(replaced(job_text(), "epochs = 2", "steps = 3"), 1, &status, &path).ok());
    auto error = [&](const std::string& model, const std::string& data) {
        Evaluation unused;
        Status result = model_evaluate(model, data, 1, &unused);
        EXPECT_FALSE(result.ok());
        EXPECT_EQ(std::string_view(result.what).find('\n'), std::string_view::npos);
        return std::string(result.what);
    };
    const std::string test = folder_ + "/test.h5";
    EXPECT_NE(error(folder_ + "/absent.h5", test).find("absent.h5: No such file"), std::string::npos);
    EXPECT_NE(error(test, test).find("test.h5: not a gradcast model: format is not \"gradcast model\""), std::string::npos)
        << error(test, test);
    ASSERT_TRUE(file_write(folder_ + "/text.h5", "hello").ok());
    EXPECT_NE(error(folder_ + "/text.h5", test).find("text.h5: not a gradcast model: "), std::string::npos);

    Model model;
    std::vector<float> parameters;
    ASSERT_TRUE(model_read(path, &model, &parameters).ok());
    // A limit of open files is reached where HDF5 opens the file once more.
    rlimit limit{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
    const rlimit one{static_cast<rlim_t>(Fd(::open("/dev/null", O_RDONLY)).get()) + 1, limit.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &one);
    const Status limited = model_read(path, &model, &parameters);
    ::setrlimit(RLIMIT_NOFILE, &limit);
    EXPECT_TRUE(std::string(limited.what).starts_with("cannot open " + path + ": Too many open files (RLIMIT_NOFILE is ")) << limited.what;

    // One bit of one parameter.
    std::string bytes;
    ASSERT_TRUE(file_read(path, &bytes).ok());
    size_t at = bytes.find(std::string_view(reinterpret_cast<const char*>(parameters.data()), 64));
    ASSERT_NE(at, std::string::npos);
    bytes[at + 100] ^= 4;
    ASSERT_TRUE(file_write(path, bytes).ok());
    EXPECT_NE(error(path, test).find("digest of its parameters differs: the file is damaged"), std::string::npos);
    bytes[at + 100] ^= 4;
    for (size_t size = 1; size < bytes.size(); size += bytes.size() / 40) {
        ASSERT_TRUE(file_write(path, bytes.substr(0, size)).ok());
        error(path, test);
    }
    ASSERT_TRUE(file_write(path, bytes).ok());
    write("other.h5", 30, 0, 10);
    EXPECT_NE(error(path, folder_ + "/other.h5").find("takes samples of 1x8x8 in 4 classes"), std::string::npos)
        << error(path, folder_ + "/other.h5");
    EXPECT_NE(error(path, folder_ + "/none*.h5").find("none*.h5"), std::string::npos);
}

}   // namespace
}   // namespace gradcast
