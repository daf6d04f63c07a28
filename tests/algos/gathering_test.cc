// Algorithms that choose among the workers' models.
#include <fstream>
#include <set>

#include "datasets/import.h"
#include "tests/algos/runs.h"
#include "tests/datasets/images.h"
#include "tests/job/runs.h"

namespace gradcast {
namespace {

struct GatheringTest : AlgosTest {};
struct Read : RunsTest {
    void TestBody() override {}
    using RunsTest::from;
};
const std::string five = "workers = 5\nlocal_steps = 3\nvalidation = 150\n";

TEST_F(GatheringTest, DeHasOneDigest) { one_digest("de", five, true); }
TEST_F(GatheringTest, SoupHasOneDigest) { one_digest("soup", five, true); }
TEST_F(GatheringTest, RgHasOneDigest) { one_digest("rg", five, true); }

TEST_F(GatheringTest, DeOfEveryForm) {
    std::map<std::string, std::string> all;
    for (const char* more : {"", "adapt = false\n", "crossover = \"layer\"\n", "distribute = \"best\"\n", "cr = 0.1\nf = 0.3\n"}) {
        const std::string job = replaced(text("de", five + more), "steps = 2\n", "steps = 4\n");
        const std::string one = run(job, 1).digest();
        EXPECT_EQ(one.size(), 64u) << one;
        EXPECT_EQ(run(job, 3).digest(), one) << more;
        all[one] = more;
    }
    EXPECT_EQ(all.size(), 5u);   // each has an effect
    for (const uint32_t workers : {1u, 2u, 3u, 4u}) {
        const std::string job = text("de", fmt::format("workers = {}\nlocal_steps = 3\nvalidation = 150\n", workers));
        EXPECT_EQ(run(job, 1).digest(), run(job, 2).digest()) << workers;
        EXPECT_EQ(run(job, 1).digest().size(), 64u) << workers;
    }
}

TEST_F(GatheringTest, BatchNormIsChosenToo) {
    for (const char* kind : {"de", "soup", "rg"}) {
        const std::string job =
            replaced(job_text_of_all(fmt::format("[algorithm]\nkind = \"{}\"\n{}", kind, five)), "epochs = 2\n", "steps = 3\n");
        EXPECT_EQ(run(job, 1).digest().size(), 64u) << run(job, 1).digest();
        EXPECT_EQ(run(job, 3).digest(), run(job, 1).digest());
        const Run learns = run(replaced(job, "steps = 3", "steps = 30"), 2);
        EXPECT_GT(learns.ranks[0].accuracy, 0.7) << kind;   // statistics of mixed parameters are measured
    }
}

TEST_F(GatheringTest, TheyLearn) {
    for (const char* kind : {"de", "soup", "rg"}) {
        const Run run =
            this->run(replaced(job_text(fmt::format("[algorithm]\nkind = \"{}\"\n{}", kind, five)), "epochs = 2", "epochs = 6"), 2);
        ASSERT_TRUE(run.status.ok()) << run.status.what;
        EXPECT_GT(run.ranks[0].accuracy, 0.9) << kind;
        EXPECT_GT(run.ranks[0].forwards, 0u);
    }
}

TEST_F(GatheringTest, DeGoesOnFromACheckpointAndWithoutANode) {
    const std::string six =
        replaced(with_job(text("de", five), "checkpoint_every = 2\ncheckpoint_keep = 9\n"), "steps = 2\n", "steps = 6\n");
    const Run whole = run(six, 3);
    ASSERT_EQ(whole.digest().size(), 64u) << whole.digest();
    uint32_t tried = 0;
    for (const std::string& folder : whole.folders)
        for (const auto& [steps, path] : checkpoints_in(folder)) {
            EXPECT_EQ(run(six, {.ranks = 2}, false, {}, Read::from(path)).digest(), whole.digest()) << steps;
            ++tried;
        }
    EXPECT_EQ(tried, 2u);
    const std::string survives = with_job(replaced(six, "deadline = \"20s\"", "deadline = \"4s\""), "survive = true\n");
    const double us = run(survives, 4).ranks[0].seconds * 1e6;
    for (const double share : {0.3, 0.7}) {
        const Run run = this->run(survives, {.ranks = 4, .lost_after_us = 2'000'000}, false,
                                  [&](Simulator& sim) { sim.kill(1, static_cast<uint64_t>(share * us)); });
        for (const Rank rank : {0u, 2u, 3u}) EXPECT_EQ(run.ranks[rank].digest, whole.digest()) << run.status.what;
    }
}

TEST_F(GatheringTest, BadSettingsAreRefused) {
    EXPECT_EQ(run(text("de", "validation = 600\n"), 1).digest(),
              fmt::format("algorithm.validation: 600 samples are not fewer than the 600 of {}/train.h5", folder_));
    EXPECT_EQ(run(text("soup", "workers = 201\nvalidation = 400\n"), 1).digest(),
              fmt::format("algorithm.workers: 201 workers are more than the 200 samples of {}/train.h5", folder_));
    std::vector<JobMistake> mistakes;
    JobConfig job;
    EXPECT_FALSE(job_parse(text("ma", "cr = 1.5\nmu = -1\nvalidation = 3\n"), "job.toml", folder_, &job, &mistakes));
    std::string all;
    for (const JobMistake& each : mistakes) all += each.text + "\n";
    for (const char* what :
         {"algorithm.cr: 1.5 is above 1", "algorithm.mu: -1 is below 0", "algorithm.validation: goes with de, soup, rg, not ma"})
        EXPECT_NE(all.find(what), all.npos) << all;
}

// Every kind has a page in tools/jobs, which the list there links; it has each setting with its default and range.
TEST(JobPages, NameEverySetting) {
    std::string list;
    ASSERT_TRUE(file_read("tools/jobs/README.md", &list).ok());
    const std::vector<FileKey> keys = job_keys();
    for (const AlgorithmKind& kind : algorithm_kinds()) {
        SCOPED_TRACE(kind.name);
        EXPECT_NE(list.find(fmt::format("[{0}]({0}.md)", kind.name)), std::string::npos);
        std::string page;
        const Status read = file_read(fmt::format("tools/jobs/{}.md", kind.name), &page);
        ASSERT_TRUE(read.ok()) << read.what;
        for (const char* part :
             {"**When.**", "**A round.**", "**Settings.**", "**Messages and bytes.**", "**Keeps.**", "**May go wrong.**"})
            EXPECT_NE(page.find(part), std::string::npos) << part;
        std::vector<std::string_view> words(kind.keys.begin(), kind.keys.end());
        if (kind.server) words.insert(words.end(), {"servers", "servers_vote"});
        for (const std::string_view word : words) {
            const auto key = std::find_if(keys.begin(), keys.end(),
                                          [&](const FileKey& each) { return each.section == "[algorithm]" && each.key == word; });
            ASSERT_NE(key, keys.end()) << word;
            const std::string row = fmt::format("\n| `{}` | {} | {} | ", word, key->value, key->range.empty() ? "any path" : key->range);
            EXPECT_NE(page.find(row), std::string::npos) << row;
        }
    }
}

// Every kind has a job file in tools/jobs; each file there is good and trains.
TEST_F(GatheringTest, TheExamplesOfJobFilesTrain) {
    write("train28.h5", 600, 0, 28);
    write("test28.h5", 100, 600, 28);
    ImportResult imported;
    ASSERT_TRUE(data_import({.kind = "ridge", .from = "", .out = folder_ + "/ridge", .samples = 600}, &imported).ok());
    for (const char* part : {"/from/images", "/from/masks"}) std::filesystem::create_directories(folder_ + part);
    for (uint32_t n = 0; n < 20; ++n) {
        const std::vector<uint8_t> image(32 * 32, static_cast<uint8_t>(n * 10)), mask(32 * 32, n % 2);
        png(fmt::format("{}/from/images/{}.png", folder_, n), 32, 32, PNG_FORMAT_GRAY, image);
        png(fmt::format("{}/from/masks/{}.png", folder_, n), 32, 32, PNG_FORMAT_GRAY, mask);
    }
    ASSERT_TRUE(data_import({.kind = "masks", .from = folder_ + "/from", .out = folder_ + "/masks", .test = 0.2}, &imported).ok());
    std::string words;
    for (int i = 0; i < 500; ++i) words += fmt::format("{} words. ", i * 7919 % 100);
    ASSERT_TRUE(file_write(folder_ + "/words.txt", words).ok());
    ASSERT_TRUE(data_import({.kind = "text", .from = folder_ + "/words.txt", .out = folder_ + "/text", .test = 0.2}, &imported).ok());
    std::string rows = "rooms,age,price\n";
    for (int i = 0; i < 200; ++i) rows += fmt::format("{},{},{}\n", i % 7, i * 31 % 90, i % 7 * 10 - i * 31 % 90);
    ASSERT_TRUE(file_write(folder_ + "/houses.csv", rows).ok());
    const ImportConfig houses{
        .kind = "table", .from = folder_ + "/houses.csv", .out = folder_ + "/table", .test = 0.2, .targets = {"price"}};
    ASSERT_TRUE(data_import(houses, &imported).ok());
    const std::filesystem::path base = std::filesystem::canonical("tools/jobs");
    std::set<std::string> kinds, files;
    for (const auto& entry : std::filesystem::directory_iterator(base))
        if (entry.path().extension() == ".toml") files.insert(entry.path().filename());
    for (const std::string& file : files) {
        SCOPED_TRACE(file);
        JobConfig job;
        const Status read = job_read("tools/jobs/" + file, &job);
        ASSERT_TRUE(read.ok()) << read.what;
        if (file == job.algorithm + ".toml") kinds.insert(job.algorithm);
        const AlgorithmKind* kind;
        ASSERT_TRUE(algorithm_find(job.algorithm, &kind).ok());
        const bool exact = job.settings.solver == "exact", many = job.preset == "resnet18" || job.preset == "unet";   // several shards
        const std::map<std::string, std::string> of_preset = {
            {"ridge", "ridge"}, {"gpt", "text"}, {"resnet18", "photos"}, {"unet", "masks"}, {"", "table"}};
        const auto data = of_preset.find(job.preset);
        const std::string named = data == of_preset.end() ? "fashion-mnist" : data->second, shards = many ? "*.h5" : ".h5";
        EXPECT_EQ(job.train, base / (named + "/train" + shards));
        EXPECT_EQ(job.test, base / (named + "/test" + shards));
        if (many) job.batch = 8;
        const bool own = data != of_preset.end() && named != "photos";
        job.train = folder_ + (own ? "/" + named + "/train.h5" : "/train28.h5");
        job.test = folder_ + (own ? "/" + named + "/test.h5" : "/test28.h5");
        job.epochs = 0;
        job.steps = 1;
        if (!exact) job.settings.local_steps = job.algorithm == "gd" ? 0 : 1;
        job.settings.validation = 100;
        job.settings.allocation_batches = 2;
        EngineConfig c = config(job_text());
        c.job = job;
        c.lanes = 1;
        std::unique_ptr<Engine> engine;
        const Status opened = Engine::open(c, Log(), &engine);
        ASSERT_TRUE(opened.ok()) << opened.what;
        OneRank host;
        const Status status = engine->run(host);
        EXPECT_TRUE(status.ok()) << status.what;
    }
    for (const AlgorithmKind& kind : algorithm_kinds()) EXPECT_TRUE(kinds.contains(kind.name)) << kind.name;
    EXPECT_GT(files.size(), kinds.size());
}

}   // namespace
}   // namespace gradcast
