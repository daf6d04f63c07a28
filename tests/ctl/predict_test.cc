// predict: the classes that a model sees in image files.
#include "datasets/reader.h"
#include "tests/ctl/models.h"
#include "tests/datasets/images.h"

namespace gradcast {
namespace {

using namespace std::string_literals;

struct CtlPredict : CtlModel {
    static constexpr uint32_t side = 28;
    /// Sample `number` of idx(), one plane.
    static std::vector<uint8_t> pixels(uint32_t number) {
        std::vector<uint8_t> all(side * side);
        for (uint32_t at = 0; at < all.size(); ++at)
            all[at] = static_cast<uint8_t>(at / 56 == number % 10 ? 200 + (number * 31 + at * 7) % 50 : (number * 13 + at * 5) % 40);
        return all;
    }
    void image(const std::string& name, uint32_t number) const { png(folder + "/" + name, side, side, PNG_FORMAT_GRAY, pixels(number)); }
    static std::vector<std::string> lines(const std::string& text) {
        std::vector<std::string> all;
        std::istringstream stream(text);
        for (std::string line; std::getline(stream, line);) all.push_back(line);
        return all;
    }
};

TEST_F(CtlPredict, SeesWhatEvaluateCounts) {
    import();
    save("final.h5");
    fs::create_directory(folder + "/images");
    for (uint32_t i = 0; i < 80; ++i) image(fmt::format("images/{:02}.png", i), i);
    const Json measured = run("evaluate final.h5 --data test.h5 -o json").json();
    const Outcome outcome = run("predict final.h5 images -o json");
    ASSERT_EQ(outcome.exit, 0) << outcome.err;
    const Json json = outcome.json();
    ASSERT_EQ(json["images"].size(), 80u);
    EXPECT_EQ(json["digest"], measured["digest"]);
    std::vector<std::vector<uint64_t>> confusion(10, std::vector<uint64_t>(10));
    double loss = 0;
    for (uint32_t i = 0; i < 80; ++i) {
        const Json& each = json["images"][i];
        EXPECT_EQ(each["path"], fmt::format("images/{:02}.png", i));
        ASSERT_EQ(each["classes"].size(), 1u);
        const size_t seen = each["classes"][0]["class"];
        EXPECT_EQ(each["classes"][0]["name"], std::to_string(seen));
        ++confusion[i % 10][seen];
    }
    EXPECT_EQ(Json(confusion), measured["confusion"]);
    // The probabilities of the right classes make the loss.
    const Json all = run("predict final.h5 images --top 10 -o json").json();
    for (uint32_t i = 0; i < 80; ++i) {
        double sum = 0, before = 1;
        for (const Json& each : all["images"][i]["classes"]) {
            const double probability = each["probability"];
            EXPECT_LE(probability, before);
            before = probability;
            sum += probability;
            if (each["class"] == i % 10) loss -= std::log(probability) / 80;
        }
        EXPECT_NEAR(sum, 1, 1e-5);
    }
    EXPECT_NEAR(loss, measured["loss"].get<double>(), 1e-5);
}

TEST_F(CtlPredict, PrintsALineForEachImageAndClass) {
    save("final.h5", {}, "ant,bee,cat,dog,elk,fox,gnu,hen,ibis,jay");
    fs::create_directory(folder + "/kept");
    fs::rename(folder + "/final.h5", folder + "/kept/final.h5");
    image("b.png", 1);
    image("tab\tname.png", 2);
    const Json json = run("predict kept b.png --top 3 -o json").json();
    std::string expected;
    for (const Json& each : json["images"][0]["classes"])
        expected += fmt::format("b.png\t{}\t{:.4f}\n", each["name"].get<std::string>(), each["probability"].get<double>());
    const Outcome outcome = run("predict kept b.png --top 3");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_EQ(outcome.out, expected);
    EXPECT_EQ(outcome.err, "");
    EXPECT_EQ(lines(outcome.out).size(), 3u);
    const std::string names[] = {"ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen", "ibis", "jay"};
    for (const Json& each : json["images"][0]["classes"]) EXPECT_EQ(each["name"], names[each["class"].get<size_t>()]);
    EXPECT_TRUE(run("predict kept/final.h5 tab*").out.starts_with("tab?name.png\t"));
    EXPECT_EQ(run("predict kept b.png --top 99").out, run("predict kept b.png --top 10").out);

    // Of an exported model the same; of one without the data's mean one error.
    ASSERT_EQ(run("export kept model.safetensors").exit, 0);
    EXPECT_EQ(run("predict model.safetensors b.png --top 3").out, expected);
    std::string bytes = read("model.safetensors");
    bytes.replace(bytes.find("\"mean\""), 6, "\"xean\"");
    write("model.safetensors", bytes);
    const Outcome bare = run("predict model.safetensors b.png");
    EXPECT_EQ(bare.exit, 1);
    EXPECT_EQ(bare.out, "");
    EXPECT_TRUE(bare.says("cannot use model.safetensors: its __metadata__ does not say mean")) << bare.err;
}

TEST_F(CtlPredict, BadImagesAreNamedAndTheOthersPrinted) {
    save("final.h5");
    fs::create_directories(folder + "/images/inner");
    fs::create_directory(folder + "/empty");
    image("images/good.png", 3);
    image("images/.hidden.png", 3);
    const std::string good = read("images/good.png");
    write("images/cut.png", good.substr(0, good.size() / 2));
    write("images/text.txt", "no image");
    png(folder + "/images/wide.png", 30, 40, PNG_FORMAT_GRAY, std::vector<uint8_t>(30 * 40, 7));
    const Outcome outcome = run("predict final.h5 images empty absent.png");
    EXPECT_EQ(outcome.exit, 1);
    ASSERT_EQ(lines(outcome.out).size(), 1u) << outcome.out;
    EXPECT_TRUE(outcome.out.starts_with("images/good.png\t")) << outcome.out;
    EXPECT_EQ(lines(outcome.err).size(), 6u) << outcome.err;
    for (const char* text :
         {"gradcastctl: images/cut.png: corrupt PNG: ", "images/text.txt: neither PNG nor JPEG", "images/inner: a folder in a folder",
          "empty: a folder without images", "absent.png",
          "images/wide.png: 40 x 30 pixels, but the model final.h5 takes 28 x 28: --size 28 resizes the short side to so many pixels and "
          "cuts the middle out; if it was trained on pictures, give the --size of their import\n"})
        EXPECT_TRUE(outcome.says(text)) << text << "\n" << outcome.err;
    const Json json = run("predict final.h5 images empty absent.png -o json").json();
    ASSERT_EQ(json["images"].size(), 7u);
    EXPECT_TRUE(json["images"][0]["error"].get<std::string>().starts_with("images/cut.png: corrupt PNG")) << json["images"][0];
    EXPECT_TRUE(json["images"][1].contains("classes"));
    const Outcome sized = run("predict final.h5 images/wide.png --size 28");
    EXPECT_EQ(sized.exit, 0) << sized.err;
    EXPECT_TRUE(sized.out.starts_with("images/wide.png\t")) << sized.out;
    const Outcome other = run("predict final.h5 images/wide.png --size 27");
    EXPECT_EQ(other.exit, 1);
    EXPECT_TRUE(other.says("--size 27: the model final.h5 takes images of 28 x 28 pixels: give --size 28 or more")) << other.err;
}

TEST_F(CtlPredict, ImagesBecomeWhatImportMakesOfThem) {
    save("final.h5");
    const std::vector<uint8_t> grey = pixels(4);
    std::vector<uint8_t> colours, turned(grey.size());
    for (uint8_t value : grey) colours.insert(colours.end(), 3, value);
    for (uint32_t y = 0; y < side; ++y)   // orientation 3: upside down and mirrored
        for (uint32_t x = 0; x < side; ++x) turned[(side - 1 - y) * side + side - 1 - x] = grey[y * side + x];
    std::string rows;
    for (uint32_t y = 0; y < side; ++y) rows += "\0"s + std::string(turned.begin() + y * side, turned.begin() + (y + 1) * side);
    image("plain.png", 4);
    png(folder + "/rgb.png", side, side, PNG_FORMAT_RGB, colours);
    png_raw(folder + "/turned.png", side, side, 8, 0, rows, png_chunk("eXIf", exif(3, true)));
    png_raw(folder + "/stored.png", side, side, 8, 0, rows, "");
    const Outcome outcome = run("predict final.h5 plain.png rgb.png turned.png --top 10 -o json");
    ASSERT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_TRUE(outcome.says("turned.png: turned as the EXIF orientation says (--no-exif: as stored)")) << outcome.err;
    const Json images = outcome.json()["images"];
    EXPECT_EQ(images[0]["classes"], images[1]["classes"]);
    EXPECT_EQ(images[0]["classes"], images[2]["classes"]);
    const Json stored = run("predict final.h5 turned.png stored.png --no-exif --top 10 -o json").json()["images"];
    EXPECT_EQ(stored[0]["classes"], stored[1]["classes"]);
    EXPECT_NE(stored[0]["classes"], images[0]["classes"]);
}

TEST_F(CtlPredict, NamesAModelThatHasNoClassesOfImages) {
    image("a.png", 1);
    Outcome outcome = run("predict absent.h5 a.png");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says("absent.h5")) << outcome.err;
    for (const bool regression : {true, false}) {
        Model model;
        model.net = {.C = regression ? 1u : 2u, .H = 2, .W = 2, .classes = 10};
        model.net.layers = {{.kind = "inner_product", .values = {{"outputs", regression ? 1u : 10u}}}, {.kind = "squared_loss"}};
        if (regression) model.net.target_scale = 0.5f;
        model.mean.assign(model.net.C, 0.1f), model.std.assign(model.net.C, 0.3f);
        std::vector<Layer> layers;
        const Status checked = layers_check(model.net, &layers);
        ASSERT_TRUE(checked.ok()) << checked.what;
        std::vector<float> parameters(layers_layout(layers, 1).elements, 0.5f);
        model.digest = sha256_hex(std::as_bytes(std::span(parameters)));
        ASSERT_TRUE(model_write(folder + "/other.h5", model, {parameters, {}, {}, {}}).ok());
        outcome = run("predict other.h5 a.png");
        EXPECT_EQ(outcome.exit, 1);
        EXPECT_EQ(outcome.err, regression ? "gradcastctl: the model other.h5 is a regression: it has no classes\n"
                                          : "gradcastctl: the model other.h5 takes samples of 2 planes: an image has 1 or 3\n");
    }
}

}   // namespace
}   // namespace gradcast
