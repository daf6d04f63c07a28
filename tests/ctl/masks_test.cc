// Images with masks from import to the mean IoU, by a net of layers.
#include "datasets/image.h"
#include "tests/ctl/ctl.h"
#include "tests/datasets/images.h"

namespace gradcast {
namespace {

constexpr char masks_job[] = R"([job]
name = "masks"
steps = 30
batch = 8
blocks = 4
[data]
train = "shards/train.h5"
test = "shards/test.h5"
flip = true
[[net.layers]]
kind = "conv"
outputs = 8
kernel = 3
pad = 1
[[net.layers]]
kind = "relu"
[[net.layers]]
kind = "conv"
outputs = 2
kernel = 1
[[net.layers]]
kind = "softmax_cross_entropy"
[optimiser]
kind = "adam"
lr = 0.02
)";

// Bright squares on a dark ground, whose mask they are.
TEST_F(CtlData, MasksAreLearnt) {
    constexpr uint32_t H = 12, W = 10, count = 40;
    for (const char* name : {"from/images", "from/masks"}) fs::create_directories(folder + "/" + name);
    for (uint32_t n = 0; n < count; ++n) {
        std::vector<uint8_t> image(H * W), mask(H * W);
        for (uint32_t i = 0; i < H * W; ++i) {
            const uint32_t y = i / W, x = i % W, top = n % 7, left = n % 5;
            mask[i] = y >= top && y < top + 5 && x >= left && x < left + 4;
            image[i] = static_cast<uint8_t>((mask[i] ? 170 : 20) + (i * 7 + n * 13) % 50);
        }
        png(fmt::format("{}/from/images/{}.png", folder, n), H, W, PNG_FORMAT_GRAY, image);
        png(fmt::format("{}/from/masks/{}.png", folder, n), H, W, PNG_FORMAT_GRAY, mask);
    }
    Outcome outcome = run("import masks --from from --out shards --test 25%");
    ASSERT_EQ(outcome.exit, 0) << outcome.err;
    write("job.toml", masks_job);
    std::string digest;
    for (const int nodes : {1, 3}) {
        outcome = run(fmt::format("run job.toml --local {} --keep kept{}", nodes, nodes));
        ASSERT_EQ(outcome.exit, 0) << outcome.err;
        const std::string found = outcome.out.substr(outcome.out.find("\naccuracy "));
        if (nodes > 1) {
            EXPECT_EQ(found, digest);
        }
        digest = found;
    }
    outcome = run("evaluate kept1/final.h5 --data shards/test.h5");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_NE(outcome.out.find("\nmean IoU "), std::string::npos) << outcome.out;
    const Json json = run("-o json evaluate kept1/final.h5 --data shards/test.h5").json();
    EXPECT_EQ(json["pixels"], json["samples"].get<uint64_t>() * H * W) << json.dump();
    EXPECT_GT(json["accuracy"], 0.95) << json.dump();
    EXPECT_GT(json["mean_iou"], 0.9) << json.dump();
    EXPECT_LT(json["mean_iou"], json["accuracy"]) << json.dump();
    outcome = run("predict kept1/final.h5 from/images/0.png");
    EXPECT_EQ(outcome.exit, 2);
    EXPECT_TRUE(outcome.says("kept1/final.h5 has a class for each pixel: give --masks FOLDER for a PNG")) << outcome.err;
    // The predicted masks are masks: of 40 images they are right where the model is, and import takes them.
    outcome = run("predict kept1/final.h5 from/images/ --masks seen/masks");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_TRUE(outcome.out.starts_with("from/images/0.png\t0\t0.8")) << outcome.out;
    uint32_t right = 0;
    for (uint32_t n = 0; n < count; ++n) {
        std::vector<uint8_t> classes[2];
        for (const char* from : {"from", "seen"}) {
            ImageFile image;
            ASSERT_TRUE(image_open(fmt::format("{}/{}/masks/{}.png", folder, from, n), &image).ok());
            ASSERT_EQ(image.H * image.W, H * W);
            std::vector<uint8_t>& to = classes[from[0] == 's'];
            to.resize(H * W);
            const Status status = mask_decode(image, to.data());
            ASSERT_TRUE(status.ok()) << status.what;
        }
        for (uint32_t i = 0; i < H * W; ++i) right += classes[0][i] == classes[1][i];
    }
    EXPECT_GT(right, count * H * W * 95 / 100);
    const Json seen = run("-o json predict kept1/final.h5 from/images/0.png --masks seen/masks --force").json();
    EXPECT_EQ(seen["images"][0]["mask"], "seen/masks/0.png") << seen.dump();
    EXPECT_EQ(seen["images"][0]["classes"][0]["pixels"].get<uint32_t>() + seen["images"][0]["classes"][1]["pixels"].get<uint32_t>(), H * W);
    outcome = run("predict kept1/final.h5 from/images/0.png --masks seen/masks");
    EXPECT_EQ(outcome.exit, 2);
    EXPECT_TRUE(outcome.says("seen/masks/0.png exists: --force replaces it")) << outcome.err;
    outcome = run("predict kept1/final.h5 from/images/0.png seen/masks/0.png --masks other");
    EXPECT_EQ(outcome.exit, 2);
    EXPECT_TRUE(outcome.says("would have the same mask other/0.png")) << outcome.err;
    // Another size of images, or of outputs, is refused before anybody computes.
    std::string wrong = masks_job;
    wrong.replace(wrong.find("pad = 1"), 7, "pad = 0");
    write("wrong.toml", wrong);
    outcome = run("run wrong.toml --local 1");
    EXPECT_EQ(outcome.exit, 2);
    EXPECT_TRUE(outcome.says("does not fit masks of 2 classes for 12x10 pixels: 2x12x10 is needed")) << outcome.err;
}

}   // namespace
}   // namespace gradcast
