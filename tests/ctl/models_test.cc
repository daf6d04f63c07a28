// evaluate and export, of a file or of a job.
#include "tests/ctl/models.h"

namespace gradcast {
namespace {

TEST_F(CtlData, EvaluateNamesWhatIsNotAModel) {
    import();
    Outcome outcome = run("evaluate absent.h5 --data test.h5");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says("absent.h5")) << outcome.err;
    outcome = run("evaluate train.h5 --data test.h5");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says("train.h5")) << outcome.err;
    outcome = run("evaluate . --data test.h5");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says(".: a folder: name the model in it, as ./final.h5")) << outcome.err;
    ASSERT_EQ(::mkfifo((folder + "/pipe.h5").c_str(), 0600), 0);
    outcome = run("evaluate pipe.h5 --data test.h5");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says("pipe.h5: it is a pipe, not a file")) << outcome.err;
    outcome = run("evaluate train.h5 --data 'nothing*.h5'");
    EXPECT_EQ(outcome.exit, 1);
}

TEST_F(CtlModel, EvaluateTellsClassesAndConfusion) {
    import();
    save("final.h5");
    const Json json = run("evaluate final.h5 --data test.h5 -o json").json();
    ASSERT_EQ(json["confusion"].size(), 10u);
    uint64_t right = 0, samples = 0;
    for (size_t i = 0; i < 10; ++i) {
        uint64_t of_class = 0;
        for (const Json& count : json["confusion"][i]) of_class += count.get<uint64_t>();
        EXPECT_EQ(of_class, 8u);
        EXPECT_EQ(json["count_of_class"][i], 8);
        EXPECT_EQ(json["right_of_class"][i], json["confusion"][i][i]);
        EXPECT_EQ(json["accuracy_of_class"][i], json["right_of_class"][i].get<double>() / 8);
        EXPECT_EQ(json["classes"][i], std::to_string(i));
        right += json["confusion"][i][i].get<uint64_t>();
        samples += of_class;
    }
    EXPECT_EQ(json["right"], right);
    EXPECT_EQ(json["samples"], samples);
    EXPECT_EQ(json["accuracy"], static_cast<double>(right) / static_cast<double>(samples));
    EXPECT_GE(json["top5"], json["accuracy"]);
    EXPECT_LT(json["top5"], 1);   // of 10 classes, of a net that has hardly learnt

    const Outcome text = run("evaluate final.h5 --data test.h5");
    EXPECT_EQ(text.exit, 0) << text.err;
    EXPECT_TRUE(text.out.ends_with(
        fmt::format("\naccuracy {:.4f}\ndigest {}\n", json["accuracy"].get<double>(), json["digest"].get<std::string>())))
        << text.out;
    const size_t head = text.out.find("\nclass  samples  right  accuracy  as 0");
    ASSERT_NE(head, std::string::npos) << text.out;
    std::istringstream row(text.out.substr(text.out.find("\n3 ", head)));
    std::string label, count, hits, share;
    row >> label >> count >> hits >> share;
    EXPECT_EQ(label + count, "38");
    EXPECT_EQ(hits, std::to_string(json["right_of_class"][3].get<int>()));
    for (size_t k = 0, as; k < 10 && row >> as; ++k) EXPECT_EQ(as, json["confusion"][3][k].get<size_t>()) << text.out;

    std::string bytes = read("test.h5");
    bytes[bytes.size() / 4 * 3] ^= 0x10;   // a pixel
    write("test.h5", bytes);
    const Outcome damaged = run("evaluate final.h5 --data test.h5");
    EXPECT_EQ(damaged.exit, 1);
    EXPECT_TRUE(damaged.says("test.h5: data set images, chunk 0")) << damaged.err;
    EXPECT_EQ(damaged.out, "");
}

TEST_F(CtlModel, EvaluateTakesWhatExportWrites) {
    import();
    save("final.h5");
    ASSERT_EQ(run("export final.h5 model.safetensors").exit, 0);
    const Outcome own = run("evaluate final.h5 --data test.h5 -o json"), other = run("evaluate model.safetensors --data test.h5 -o json");
    ASSERT_EQ(other.exit, 0) << other.err;
    EXPECT_EQ(own.out, other.out);
    std::string bytes = read("model.safetensors");
    bytes[bytes.find("\"sample\"") + 1] = 'x';
    write("model.safetensors", bytes);
    const Outcome outcome = run("evaluate model.safetensors --data test.h5");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says("cannot use model.safetensors: its __metadata__ does not say sample")) << outcome.err;
}

TEST_F(CtlModel, ExportWritesAveragedWeights) {
    const std::string job = "[job]\nsteps = 1\n[data]\ntrain = \"train.h5\"\n[net]\npreset = \"lenet5\"\n[optimiser]\n";
    save("final.h5", job + "ema = 0.5\n", {}, true);
    save("plain.h5", job);
    ASSERT_EQ(run("export final.h5 weights.safetensors").exit, 0);
    const Outcome outcome = run("export final.h5 averaged.safetensors --ema -o json");
    ASSERT_EQ(outcome.exit, 0) << outcome.err;
    const std::string weights = read("weights.safetensors"), averaged = read("averaged.safetensors");
    ASSERT_EQ(weights.size(), averaged.size());
    const size_t count = 61706;
    for (size_t i = 0; i < count; ++i) {   // the tensors are behind the header
        float weight, average;
        const size_t at = weights.size() - (count - i) * sizeof(float);
        std::memcpy(&weight, weights.data() + at, sizeof weight);
        std::memcpy(&average, averaged.data() + at, sizeof average);
        ASSERT_EQ(average, weight + 1) << i;
    }
    EXPECT_NE(averaged.find(outcome.json()["digest"].get<std::string>()), std::string::npos);
    EXPECT_EQ(run("export final.h5 averaged.onnx --ema").exit, 0);
    const Outcome none = run("export plain.h5 none.onnx --ema");
    EXPECT_EQ(none.exit, 1);
    EXPECT_TRUE(none.says("plain.h5: its job kept no averaged weights (optimiser.ema)")) << none.err;
}

TEST_F(CtlModel, ExportWritesWhatTheEndingSays) {
    save("final.h5");
    Outcome outcome = run("export final.h5 out.safetensors");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_TRUE(outcome.out.starts_with("out.safetensors\n61706 parameters, digest ")) << outcome.out;
    EXPECT_NE(read("out.safetensors").find("\"conv1.weight\":{\"dtype\":\"F32\",\"shape\":[6,1,5,5],\"data_offsets\":[0,600]}"),
              std::string::npos);
    outcome = run("export final.h5 out.onnx -o json");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_EQ(outcome.json()["format"], "onnx");
    EXPECT_NE(read("out.onnx").find("MaxPool"), std::string::npos);
    EXPECT_EQ(run("export final.h5 other --format onnx").exit, 0);
    EXPECT_EQ(read("other"), read("out.onnx"));
    // Of a job.
    JobDetail* job = backend.add(id_a, "first");
    job->folder = folder;
    serve();
    EXPECT_EQ(ask("export first of_job.onnx").exit, 0);
    EXPECT_EQ(read("of_job.onnx"), read("out.onnx"));
    {
        std::lock_guard lock(backend.mutex);
        job->folder = folder + "/elsewhere";
    }
    outcome = ask("export first none.onnx");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says("job first has no model: it is running")) << outcome.err;
    backend.finish(job, JobState::done);
    outcome = ask("export first none.onnx");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says("node-1 keeps it")) << outcome.err;
}

TEST_F(CtlModel, NoCommandWritesOverWhatItReads) {
    import();
    save("final.h5");
    const std::string model = read("final.h5"), data = read("train.h5");
    fs::create_hard_link(folder + "/final.h5", folder + "/hard");
    fs::create_symlink("final.h5", folder + "/soft");
    for (const char* out : {"final.h5", "./final.h5", "hard", "soft"}) {
        Outcome outcome = run(fmt::format("export final.h5 {} --format onnx --force", out));
        EXPECT_EQ(outcome.exit, 2) << out;
        EXPECT_TRUE(outcome.says(fmt::format("{} is final.h5, which is read: name another file", out))) << outcome.err;
    }
    EXPECT_EQ(read("final.h5"), model);
    write("model.onnx", "mine");
    write("all.toml", "mine");
    write("sheet.png", "mine");
    for (const char* arguments :
         {"export final.h5 model.onnx", "data manifest all.toml train.h5", "data inspect train.h5 --sheet sheet.png"}) {
        Outcome outcome = run(arguments);
        EXPECT_EQ(outcome.exit, 2) << arguments;
        EXPECT_TRUE(outcome.says(" exists: --force replaces it, or name another file")) << outcome.err;
        outcome = run(std::string(arguments) + " --force");
        EXPECT_EQ(outcome.exit, 0) << outcome.err;
    }
    for (const char* name : {"model.onnx", "all.toml", "sheet.png"}) EXPECT_NE(read(name), "mine") << name;
    EXPECT_EQ(run("data inspect train.h5 --sheet train.h5 --force").exit, 2);
    EXPECT_EQ(read("train.h5"), data);
    fs::create_directory(folder + "/kept");
    fs::rename(folder + "/final.h5", folder + "/kept/final.h5");
    write("kept/steps.jsonl", "{\"step\":1,\"epoch\":1,\"loss\":2.5,\"digest\":\"0000000000000001\"}\n");
    EXPECT_TRUE(run("report kept --out kept/final.h5 --quick --force").says("which is read"));
    EXPECT_EQ(read("kept/final.h5"), model);
}

TEST_F(CtlModel, ExportLeavesNothingHalfWritten) {
    save("final.h5");
    struct {
        const char* arguments;
        int exit;
        const char* says;
    } cases[] = {
        {"export final.h5 model.pt", 2, "model.pt ends with none of safetensors, onnx"},
        {"export final.h5 model", 2, "model ends with none of"},
        {"export final.h5 model --format keras", 2, "keras"},
        {"export final.h5", 2, "FILE"},
        {"export absent.h5 model.onnx", 1, "absent.h5"},
        {"export nobody model.onnx --socket none.sock", 3, "nobody is no file"},
        {"export final.h5 absent/model.onnx", 1, "absent/model.onnx"},
        {"export cut.h5 model.safetensors", 1, "cut.h5: not a gradcast model"},
    };
    write("cut.h5", read("final.h5").substr(0, 5000));
    for (const auto& each : cases) {
        Outcome outcome = run(each.arguments);
        EXPECT_EQ(outcome.exit, each.exit) << each.arguments << outcome.err;
        EXPECT_TRUE(outcome.says(each.says)) << each.arguments << "\n" << outcome.err;
    }
    for (const auto& entry : fs::directory_iterator(folder)) EXPECT_FALSE(entry.path().filename().string().starts_with("model"));
}

}   // namespace
}   // namespace gradcast
