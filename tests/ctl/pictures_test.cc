// Images of many sizes from import to the accuracy: one digest whatever the number of nodes.
#include "datasets/picture.h"
#include "tests/ctl/ctl.h"
#include "tests/datasets/images.h"

namespace gradcast {
namespace {

constexpr char pictures_job[] = R"([job]
name = "pictures"
steps = 24
batch = 16
blocks = 8
[data]
train = "shards/train.h5"
test = "shards/test.h5"
side = 16
resized_crop = 0.3
flip = true
jitter = [0.3, 0.3, 0.3]
[[net.layers]]
kind = "conv"
outputs = 8
kernel = 3
pad = 1
[[net.layers]]
kind = "relu"
[[net.layers]]
kind = "max_pool"
kernel = 2
stride = 2
[[net.layers]]
kind = "inner_product"
outputs = 2
[[net.layers]]
kind = "softmax_cross_entropy"
[optimiser]
kind = "adam"
lr = 0.01
)";

class CtlPictures : public CtlData {
protected:
    void SetUp() override {
        CtlData::SetUp();
        // Stripes that lie or stand, in pictures of many shapes.
        for (uint32_t n = 0; n < 60; ++n) {
            const uint32_t H = 20 + n * 7 % 23, W = 20 + n * 5 % 31, label = n % 2;
            std::vector<uint8_t> image(H * W * 3);
            for (uint32_t i = 0; i < image.size(); ++i) {
                const uint32_t y = i / 3 / W, x = i / 3 % W;
                image[i] = static_cast<uint8_t>(((label ? y : x) / 3 % 2 ? 190 : 40) + (i * 7 + n * 13) % 40);
            }
            const std::string in = fmt::format("{}/from/{}/{}", folder, n < 48 ? "train" : "test", label ? "lying" : "standing");
            fs::create_directories(in);
            jpeg(fmt::format("{}/{}.jpg", in, n), H, W, JCS_RGB, image);
        }
        const Outcome outcome = run("import images --from from --out shards --store jpeg --size 20");
        ASSERT_EQ(outcome.exit, 0) << outcome.err;
    }
    void write_with(const std::string& from, const std::string& to) {
        std::string text = pictures_job;
        ASSERT_NE(text.find(from), text.npos);
        write("job.toml", text.replace(text.find(from), from.size(), to));
    }
};

TEST_F(CtlPictures, OneDigestWhateverTheNodes) {
    write("job.toml", pictures_job);
    std::string found, kernels;
    for (const char* how : {"1", "2", "4", "3 --set algorithm.exchange=ring"}) {
        const Outcome outcome = run(fmt::format("run job.toml --local {} --keep kept{}", how, how[0]));
        ASSERT_EQ(outcome.exit, 0) << outcome.err;
        const std::string its = outcome.out.substr(outcome.out.find("\naccuracy "));
        EXPECT_EQ(its, found.empty() ? its : found) << how;
        found = its;
    }
    // Another draw is another training.
    const Outcome other = run("run job.toml --local 1 --set data.resized_crop=0.4");
    EXPECT_EQ(other.exit, 0) << other.err;
    EXPECT_EQ(other.out.find(found.substr(found.find("digest"))), other.out.npos);
    // An evaluation cuts the middle out, as the job did.
    const Json json = run("-o json evaluate kept1/final.h5 --data shards/test.h5").json();
    EXPECT_EQ(json["samples"], 12) << json.dump();
    EXPECT_GT(json["accuracy"], 0.9) << json.dump();
    EXPECT_NE(found.find(fmt::format("accuracy {:.4f}", json["accuracy"].get<double>())), found.npos) << found << json.dump();
}

// The short side gets the 20 pixels of the shards, and 16 x 16 are cut out: resizing to 16 would be another sample.
TEST_F(CtlPictures, APictureIsPredictedFromItsFileAsItIsEvaluated) {
    write_with("steps = 24", "steps = 6");   // not sure of all
    Outcome outcome = run("run job.toml --local 1 --keep kept");
    ASSERT_EQ(outcome.exit, 0) << outcome.err;
    ASSERT_EQ(run("export kept model.safetensors").exit, 0);
    const Json measured = run("-o json evaluate kept --data shards/test.h5").json();
    const char* names[] = {"lying", "standing"};
    const auto predicted = [&](const std::string& model, const std::string& options, Json* confusion) {
        double loss = 0;
        *confusion = {{0, 0}, {0, 0}};
        for (size_t label = 0; label < 2; ++label) {
            const Outcome said = run(fmt::format("-o json predict {} from/test/{} --top 2 {}", model, names[label], options));
            EXPECT_EQ(said.exit, 0) << said.err;
            const Json images = said.json()["images"];
            EXPECT_EQ(images.size(), 6u) << said.out;
            for (const Json& image : images) {
                Json& count = (*confusion)[label][image["classes"][0]["class"].get<size_t>()];
                count = count.get<int>() + 1;
                for (const Json& each : image["classes"])
                    if (each["class"] == label) loss -= std::log(each["probability"].get<double>()) / 12;
            }
        }
        return loss;
    };
    Json confusion;
    for (const auto& [model, options] : {std::pair{"kept", ""}, {"kept", "--size 20"}, {"model.safetensors", ""}}) {
        EXPECT_NEAR(predicted(model, options, &confusion), measured["loss"].get<double>(), 1e-6) << model << options;
        EXPECT_EQ(confusion, measured["confusion"]) << model << options;
    }
    EXPECT_GT(std::abs(predicted("kept", "--size 16", &confusion) - measured["loss"].get<double>()), 1e-4);
    outcome = run("predict kept from/test --size 15");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says("--size 15: the model kept/final.h5 takes images of 16 x 16 pixels: give --size 16 or more")) << outcome.err;
}

// A worker that learns alone reads its own samples, by the same draws.
TEST_F(CtlPictures, OneDigestOfAlgorithmsWithWorkers) {
    write("job.toml", std::string(pictures_job) + "[algorithm]\nkind = \"diloco\"\nworkers = 4\nlocal_steps = 3\n");
    std::string found;
    for (const int nodes : {1, 2}) {
        const Outcome outcome = run(fmt::format("run job.toml --local {}", nodes));
        ASSERT_EQ(outcome.exit, 0) << outcome.err;
        const std::string its = outcome.out.substr(outcome.out.find("\naccuracy "));
        EXPECT_EQ(its, found.empty() ? its : found);
        found = its;
    }
}

TEST_F(CtlPictures, WhatDoesNotFitIsSaidBeforeAnybodyComputes) {
    const auto refused = [&](const char* what) {
        const Outcome outcome = run("run job.toml --local 1");
        EXPECT_EQ(outcome.exit, 2) << outcome.err;
        EXPECT_TRUE(outcome.says(what)) << outcome.err;
    };
    write_with("side = 16", "side = 21");
    refused("data.side: side = 21: the short side of the pictures of");
    write_with("resized_crop = 0.3", "crop = 2\nresized_crop = 0.3");
    refused("data.resized_crop: either a part that is resized, or crop, not both");
    write_with("jitter = [0.3, 0.3, 0.3]", "jitter = [0.3]");
    refused("data.jitter: has three numbers");
    Outcome inspected = run("data inspect shards/train.h5 --sheet sheet.png");
    EXPECT_EQ(inspected.exit, 0) << inspected.err;
    EXPECT_NE(inspected.out.find("48 pictures of 3 channels, the short side 20, no side above "), std::string::npos) << inspected.out;
    EXPECT_EQ(run("-o json data inspect shards/train.h5").json()["pictures"]["side"], 20);
}

}   // namespace
}   // namespace gradcast
