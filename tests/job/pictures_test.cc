// Jobs on pictures: the decoder is a part of the kernel set, a resumed job draws the same parts, and what does not fit is named.
#include <gtest/gtest.h>

#include "datasets/picture_memory.h"
#include "runtime/job/run/engine.h"
#include "runtime/job/run/probe_block.h"
#include "tests/datasets/images.h"
#include "tests/job/jobs.h"

namespace gradcast {
namespace {

constexpr char pictures_job[] =
    "[job]\nsteps = 12\nbatch = 8\nblocks = 4\n[data]\ntrain = \"p/train.h5\"\ntest = \"p/test.h5\"\nside = 12\nresized_crop = 0.2\n"
    "flip = true\njitter = [0.4, 0.4, 0.2]\n[[net.layers]]\nkind = \"inner_product\"\noutputs = 2\n[[net.layers]]\n"
    "kind = \"softmax_cross_entropy\"\n[optimiser]\nlr = 0.05\n";

class PictureJobs : public EngineTest {
protected:
    void SetUp() override {
        EngineTest::SetUp();
        for (uint32_t n = 0; n < 30; ++n) {
            const uint32_t H = 14 + n % 5, W = 14 + n * 3 % 11;
            std::vector<uint8_t> pixels(H * W * 3);
            for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(pixel_of(n, i) / 4 + n % 2 * 120);
            const std::string in = folder_ + "/from/" + (n % 2 ? "b" : "a");
            std::filesystem::create_directories(in);
            jpeg(fmt::format("{}/{}.jpg", in, n), H, W, JCS_RGB, pixels);
        }
        ImportConfig import{.kind = "images", .from = folder_ + "/from", .out = folder_ + "/p", .test = 0.2, .size = 14};
        ImportResult result;
        import.pictures = true;
        ASSERT_TRUE(data_import(import, &result).ok());
        import.pictures = false;
        import.size = 12;
        import.out = folder_ + "/q";
        ASSERT_TRUE(data_import(import, &result).ok());
    }
};

TEST_F(PictureJobs, TheDecoderIsAPartOfTheKernelSet) {
    JobStatus pictures, pixels;
    Status status = run_one(pictures_job, 1, &pictures);
    ASSERT_TRUE(status.ok()) << status.what;
    const std::string of_pixels =
        replaced(replaced(replaced(replaced(pictures_job, "p/train", "q/train"), "p/test", "q/test"), "side = 12\n", ""),
                 "resized_crop = 0.2\n", "");
    status = run_one(of_pixels, 1, &pixels);
    ASSERT_TRUE(status.ok()) << status.what;
    ASSERT_EQ(pixels.kernel_set.size(), 16u);
    // The net is the same, and so is what it computes.
    EXPECT_EQ(pictures.kernel_set, kernel_set_with(pixels.kernel_set, decoder_digest()));
    EXPECT_NE(pictures.kernel_set, pixels.kernel_set);
    EXPECT_EQ(pictures.kernel_set.substr(8), pixels.kernel_set.substr(8));
    EXPECT_NE(kernel_set_with(pixels.kernel_set, "another decoder"), pictures.kernel_set);
    // One digest whatever the nodes and lanes.
    for (const uint32_t nodes : {2u, 4u}) {
        std::vector<JobStatus> many;
        status = run_many(pictures_job, nodes, &many);
        ASSERT_TRUE(status.ok()) << status.what;
        for (const JobStatus& each : many) EXPECT_EQ(each.digest, pictures.digest);
    }
    JobStatus lanes;
    ASSERT_TRUE(run_one(pictures_job, 3, &lanes).ok());
    EXPECT_EQ(lanes.digest, pictures.digest);
    // Each of the draws is one that counts.
    for (const char* without : {"resized_crop = 0.2\n", "jitter = [0.4, 0.4, 0.2]\n", "flip = true\n"}) {
        JobStatus other;
        ASSERT_TRUE(run_one(replaced(pictures_job, without, ""), 1, &other).ok());
        EXPECT_NE(other.digest, pictures.digest) << without;
    }
}

// Of the thread that reads ahead, and of each lane that evaluates; workers read on their lanes.
TEST_F(PictureJobs, DecodersAreCountedBeforeTheFirstStep) {
    std::unique_ptr<DataSet> train, test;
    ASSERT_TRUE(data_open(folder_ + "/p/train.h5", &train, {.side = 12}).ok());
    ASSERT_TRUE(data_open(folder_ + "/p/test.h5", &test, {.side = 12}).ok());
    EXPECT_GT(decoders_bytes(*train, 1), uint64_t{3} * 12 * train->info().longest);
    const std::string workers = std::string(pictures_job) + "[algorithm]\nkind = \"diloco\"\nworkers = 2\nlocal_steps = 2\n";
    for (const auto& [job, readers] : {std::pair{std::string(pictures_job), 1u}, {workers, 3u}}) {
        JobStatus status;
        const Status ran = run_one(job, 3, &status);
        ASSERT_TRUE(ran.ok()) << ran.what;
        const auto place = std::ranges::find(status.memory, "pictures", &MemoryUse::place);
        ASSERT_NE(place, status.memory.end()) << memory_text(status.memory);
        EXPECT_EQ(place->total(), decoders_bytes(*train, readers) + decoders_bytes(*test, 3)) << memory_text(status.memory);
    }
}

TEST_F(PictureJobs, WhatDoesNotFitIsNamed) {
    JobStatus one;
    const auto error = [&](const std::string& text) { return run_one(text, 1, &one); };
    expect_error(error(replaced(pictures_job, "side = 12", "side = 15")),
                 {"side = 15: the short side of the pictures of", "has 14 pixels", "--size 15"});
    expect_error(error(replaced(replaced(replaced(pictures_job, "p/train", "q/train"), "p/test", "q/test"), "side = 12\n", "")),
                 {"data.resized_crop: ", "has samples of one size, not pictures (import images --store jpeg): leave it out, or take crop"});
    expect_error(error(replaced(replaced(pictures_job, "p/train", "q/train"), "p/test", "q/test")),
                 {"side = 12: ", "has samples of one size, not pictures", "leave it out"});
    // Colours are of one channel or three.
    ASSERT_TRUE(write_shard(folder_ + "/two.h5", info_of(20, 2, 12, 12, 2)).ok());
    expect_error(error("[job]\nsteps = 1\nbatch = 4\nblocks = 4\n[data]\ntrain = \"two.h5\"\njitter = [0.1, 0, 0]\n[net]\npreset = "
                       "\"mlp\"\n[optimiser]\nlr = 1\n"),
                 {"data.jitter: samples of", "have 2 channels, and colours are of 1 (grey) or 3 (RGB): leave it out"});
}

}   // namespace
}   // namespace gradcast
