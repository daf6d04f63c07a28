// The commands on models: evaluate, predict, export.  They need a daemon only where a job is named instead of a file.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "datasets/import.h"
#include "datasets/verified.h"
#include "runtime/core/cpu_room.h"
#include "runtime/job/model/model_evaluate.h"
#include "runtime/job/model/model_predict.h"
#include "runtime/job/model/onnx.h"
#include "runtime/job/model/safetensors.h"
#include "tools/gradcastctl/client.h"
#include "tools/gradcastctl/commands.h"
#include "tools/gradcastctl/out_file.h"
#include "tools/gradcastctl/print.h"

namespace gradcast {
namespace {

constexpr size_t terminal_classes_max = 20;   // fits a terminal

bool is_folder(const std::string& path) {
    struct stat info;
    return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

double share(uint64_t part, uint64_t whole) { return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0; }

/// Ends with .safetensors: "safetensors".
std::string format_of(const std::string& path) { return path.substr(std::min(path.rfind('.'), path.size() - 1) + 1); }

struct Format {
    const char* name;
    /// folder: of the model's file.
    Status (*write)(const std::string& path, const Model& model, std::span<const float> parameters, const std::string& folder);
};
Status write_onnx(const std::string& path, const Model& model, std::span<const float> parameters, const std::string&) {
    return onnx_write(path, model, parameters);
}
constexpr Format formats[] = {{"safetensors", safetensors_write}, {"onnx", write_onnx}};

/// An image that is named, or that lies in a folder that is.  error: why there is none.
struct Named {
    std::string path, error = {};
};
std::vector<Named> images_named(const std::vector<std::string>& images) {
    std::vector<Named> all;
    for (const std::string& each : images) {
        if (!is_folder(each)) {
            all.push_back({each});
            continue;
        }
        std::vector<std::string> names;
        if (const Status status = image_folder_list(each, &names); !status.ok()) all.push_back({each, status.what});
        else if (names.empty()) all.push_back({each, each + ": a folder without images"});
        for (const std::string& name : names) {
            all.push_back({each + (each.ends_with('/') ? "" : "/") + name});
            if (const std::string& path = all.back().path; is_folder(path))
                all.back().error = fmt::format("{}: a folder in a folder: name it by itself", path);
        }
    }
    return all;
}

/// A field of a line whose fields are divided by tabs.
std::string field(std::string text) {
    std::replace_if(
        text.begin(), text.end(), [](unsigned char letter) { return letter < ' '; }, '?');
    return text;
}

/// Predictions as text, line by line, or collected as JSON.  Bad images are named on stderr.
class PredictionPrinter {
public:
    /// masks: the folder for masks.
    PredictionPrinter(const Predictor& predictor, bool json, std::string masks)
        : predictor_(predictor),
          masks_(std::move(masks)),
          labels_(labels_of(predictor.model().class_names, predictor.model().net.classes)),
          key_(predictor.probabilities() ? "probability" : "output"),
          json_(json) {}
    void image(const std::string& path, const Prediction& of) {
        if (!of.error.empty()) {
            failed = true;
            fmt::print(stderr, "gradcastctl: {}\n", of.error);
            if (json_) images.push_back({{"path", path}, {"error", of.error}});
            return;
        }
        if (!of.mask.empty()) return mask(path, of.mask);
        Json classes = Json::array();
        for (const auto& [label, probability] : of.best)
            if (json_) classes.push_back({{"class", label}, {"name", labels_[label]}, {key_, probability}});
            else fmt::print("{}\t{}\t{:.4f}\n", field(path), field(labels_[label]), probability);
        if (json_) images.push_back({{"path", path}, {"classes", std::move(classes)}});
    }
    /// The shares of classes in an image, and its mask as a file.
    void mask(const std::string& path, const std::vector<uint8_t>& mask) {
        const NetSpec& net = predictor_.model().net;
        const std::string to = mask_path(path);
        if (const Status status = mask_write(to, net.H, net.W, net.classes, mask.data()); !status.ok()) {
            failed = true;
            fmt::print(stderr, "gradcastctl: {}\n", status.what);
            if (json_) images.push_back({{"path", path}, {"error", status.what}});
            return;
        }
        std::vector<uint64_t> pixels(net.classes);
        for (const uint8_t each : mask) ++pixels[each];
        Json classes = Json::array();
        for (size_t k = 0; k < pixels.size(); ++k) {
            if (pixels[k] == 0) continue;
            if (json_) classes.push_back({{"class", k}, {"name", labels_[k]}, {"pixels", pixels[k]}});
            else fmt::print("{}\t{}\t{:.4f}\n", field(path), field(labels_[k]), share(pixels[k], mask.size()));
        }
        if (json_) images.push_back({{"path", path}, {"mask", to}, {"classes", std::move(classes)}});
    }
    /// Where an image's mask goes.
    std::string mask_path(const std::string& image) const { return masks_ / std::filesystem::path(image).stem().concat(".png"); }
    bool failed = false;   // of some image
    Json images = Json::array();

private:
    const Predictor& predictor_;
    const std::filesystem::path masks_;
    const std::vector<std::string> labels_;
    const char* key_;
    const bool json_;
};

}   // namespace

int find_model(const Options& options, const std::string& which, std::string* path) {
    *path = which;
    if (const std::string kept = which + "/final.h5"; ::access(kept.c_str(), F_OK) == 0) return *path = kept, exit_done;
    if (which.find('/') != std::string::npos || which.ends_with(".h5") || which.ends_with(".safetensors") ||
        ::access(which.c_str(), F_OK) == 0)
        return exit_done;
    JobDetail job;
    Reply reply = Client(options.target).job(which, &job);
    if (reply.exit == exit_unreachable) return complain(reply.exit, "{} is no file, and as a job: {}", which, reply.error);
    if (reply.exit != exit_done) return complain(reply.exit, "{}", reply.error);
    *path = job.folder + "/final.h5";
    if (::access(path->c_str(), R_OK) == 0) return exit_done;
    const JobState state = job.summary.status.state;
    if (state != JobState::done) return complain(exit_failed, "job {} has no model: it is {}", which, job_state_name(state));
    return complain(exit_failed, "the model of job {} cannot be read here as {}: {} keeps it, unless it was lost", which, *path,
                    job.summary.nodes.empty() ? "its first node" : job.summary.nodes.front());
}

const std::vector<std::string>& export_formats() {
    static const std::vector<std::string> names = [] {
        std::vector<std::string> all;
        for (const Format& format : formats) all.emplace_back(format.name);
        return all;
    }();
    return names;
}

static int command_evaluate(const Options& options, const std::string& which, const std::string& data, bool averaged) {
    std::string path;
    if (int exit = find_model(options, which, &path); exit != exit_done) return exit;
    Evaluation evaluation;
    Status status = model_evaluate(path, data, cpu_room().threads(), &evaluation, 0, verified_path_of_user(), averaged);
    if (!status.ok()) return complain(exit_failed, "{}", status.what);
    if (evaluation.regression) {
        Json json{{"samples", evaluation.count}, {"mse", evaluation.loss}, {"digest", evaluation.digest}, {"kernels", evaluation.kernels}};
        if (options.json) fmt::print("{}\n", json_text(json, 2));
        else fmt::print("{} samples\nmse {:.6f}\ndigest {}\n", evaluation.count, evaluation.loss, evaluation.digest);
        return exit_done;
    }
    if (evaluation.text) {
        const double accuracy = share(evaluation.right, evaluation.counted), perplexity = std::exp(evaluation.loss);
        if (options.json)
            fmt::print("{}\n", json_text({{"samples", evaluation.count},
                                          {"tokens", evaluation.counted},
                                          {"right", evaluation.right},
                                          {"loss", evaluation.loss},
                                          {"perplexity", perplexity},
                                          {"accuracy", accuracy},
                                          {"digest", evaluation.digest},
                                          {"kernels", evaluation.kernels}},
                                         2));
        else
            fmt::print("{} samples, {} tokens, {} right, loss {:.6f}, kernels {}\nperplexity {:.4f}\naccuracy {:.4f}\ndigest {}\n",
                       evaluation.count, evaluation.counted, evaluation.right, evaluation.loss, evaluation.kernels, perplexity, accuracy,
                       evaluation.digest);
        return exit_done;
    }
    const size_t classes = evaluation.count_of_class.size();
    const std::vector<std::string> labels = labels_of(evaluation.class_names, classes);
    const double accuracy = share(evaluation.right, evaluation.counted);
    if (options.json) {
        Json json{{"samples", evaluation.count},
                  {"right", evaluation.right},
                  {"loss", evaluation.loss},
                  {"classes", labels},
                  {"count_of_class", evaluation.count_of_class},
                  {"right_of_class", evaluation.right_of_class}};
        json["accuracy_of_class"] = Json::array();
        for (size_t i = 0; i < classes; ++i)
            json["accuracy_of_class"].push_back(
                evaluation.count_of_class[i] ? Json(share(evaluation.right_of_class[i], evaluation.count_of_class[i])) : Json(nullptr));
        if (!evaluation.confusion.empty()) json["confusion"] = Json::array();
        for (auto row = evaluation.confusion.begin(); row != evaluation.confusion.end(); row += static_cast<ptrdiff_t>(classes))
            json["confusion"].push_back(std::vector<uint64_t>(row, row + static_cast<ptrdiff_t>(classes)));
        json["accuracy"] = accuracy;
        if (evaluation.right_of_top) json["top5"] = share(*evaluation.right_of_top, evaluation.count);
        if (evaluation.by_position) json["pixels"] = evaluation.counted, json["mean_iou"] = mean_iou(evaluation);
        json["digest"] = evaluation.digest;
        json["kernels"] = evaluation.kernels;
        fmt::print("{}\n", json_text(json, 2));
        return exit_done;
    }
    fmt::print("{} samples, {} right, loss {:.6f}, kernels {}\n", evaluation.count, evaluation.right, evaluation.loss, evaluation.kernels);
    std::vector<std::vector<std::string>> rows = {{"class", evaluation.by_position ? "pixels" : "samples", "right", "accuracy"}};
    const bool matrix = classes <= terminal_classes_max;
    for (size_t k = 0; k < classes && matrix; ++k) rows[0].push_back(fmt::format("as {}", k));
    for (size_t i = 0; i < classes; ++i) {
        const uint64_t count = evaluation.count_of_class[i], right = evaluation.right_of_class[i];
        rows.push_back({labels[i] == std::to_string(i) ? labels[i] : fmt::format("{} {}", i, labels[i]), std::to_string(count),
                        std::to_string(right), count ? fmt::format("{:.4f}", share(right, count)) : "-"});
        for (size_t k = 0; k < classes && matrix; ++k) rows.back().push_back(std::to_string(evaluation.confusion[i * classes + k]));
    }
    print_table(rows);
    if (!matrix && !evaluation.confusion.empty()) fmt::print("the confusion matrix: -o json\n");
    if (evaluation.right_of_top) fmt::print("top 5 {:.4f}\n", share(*evaluation.right_of_top, evaluation.count));
    if (evaluation.by_position) fmt::print("mean IoU {:.4f}\n", mean_iou(evaluation));
    fmt::print("accuracy {:.4f}\ndigest {}\n", accuracy, evaluation.digest);
    return exit_done;
}

/// Makes the folder.  Complains if two images would have one mask, or a mask is there that `force` does not allow to replace.
static int masks_ready(const std::string& folder, const PredictionPrinter& printer, const std::vector<Named>& images, bool force) {
    std::map<std::string, std::string> taken;
    for (const Named& image : images) {
        if (!image.error.empty()) continue;
        const std::string to = printer.mask_path(image.path);
        if (const auto [at, is_new] = taken.emplace(to, image.path); !is_new)
            return complain(exit_usage, "{} and {} would have the same mask {}: predict them apart", at->second, image.path, to);
        if (const int exit = out_check(to, {image.path}, force); exit != exit_done) return exit;
    }
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) return complain(exit_failed, "{}: {}", folder, error.message());
    return exit_done;
}

static int command_predict(const Options& options, const std::string& which, const std::vector<std::string>& images, uint32_t top,
                           const ImageRules& rules, const std::string& masks, bool averaged, bool force) {
    std::string path;
    if (int exit = find_model(options, which, &path); exit != exit_done) return exit;
    Predictor predictor;
    Status status = predictor.open(path, rules, cpu_room().threads(), averaged);
    if (!status.ok()) return complain(exit_failed, "{}", status.what);
    const std::vector<Named> all = images_named(images);
    if (predictor.masks() && masks.empty())
        return complain(exit_usage, "the model {} has a class for each pixel: give --masks FOLDER for a PNG of the classes of each image",
                        path);
    if (!predictor.masks() && !masks.empty())
        return complain(exit_usage, "--masks: the model {} has one class for an image, and none for each pixel", path);
    PredictionPrinter printer(predictor, options.json, masks);
    if (const int exit = masks.empty() ? exit_done : masks_ready(masks, printer, all, force); exit != exit_done) return exit;
    for (size_t first = 0, end; first < all.size(); first = end) {
        std::vector<std::string> paths;
        for (end = first; end < all.size() && paths.size() < predictor.images_at_once(); ++end)
            if (all[end].error.empty()) paths.push_back(all[end].path);
        std::vector<Prediction> results(paths.size());
        if (status = predictor.run(paths, top, results); !status.ok()) return complain(exit_failed, "{}", status.what);
        for (size_t i = first, good = 0; i < end; ++i)
            printer.image(all[i].path, all[i].error.empty() ? results[good++] : Prediction{.error = all[i].error});
        std::fflush(stdout);
    }
    std::vector<std::string> notes;
    predictor.oddities().report(&notes);
    for (const std::string& note : notes) fmt::print(stderr, "{}\n", note);
    if (options.json) {
        const Json json{{"images", printer.images}, {"digest", predictor.model().digest}, {"kernels", predictor.kernels()}};
        fmt::print("{}\n", json_text(json, 2));
    }
    return printer.failed ? exit_failed : exit_done;
}

static int command_export(const Options& options, const std::string& which, const std::string& out, const std::string& format,
                          bool averaged, bool force) {
    const std::string name = format.empty() ? format_of(out) : format;
    auto found = std::find_if(std::begin(formats), std::end(formats), [&](const Format& each) { return each.name == name; });
    if (found == std::end(formats))
        return complain(exit_usage, "{} ends with none of {}: name it so, or say --format", out, fmt::join(export_formats(), ", "));
    std::string path;
    if (int exit = find_model(options, which, &path); exit != exit_done) return exit;
    if (int exit = out_check(out, {path}, force); exit != exit_done) return exit;
    Model model;
    std::vector<float> parameters;
    Status status = (averaged ? model_averaged : model_read)(path, &model, &parameters);
    const size_t slash = path.rfind('/');
    const bool apart = status.ok() && found->write == write_onnx && onnx_apart(parameters);
    const std::string data = apart ? onnx_data_path(out) : "";
    if (apart)
        if (int exit = out_check(data, {path}, force); exit != exit_done) return exit;
    if (status.ok()) status = found->write(out, model, parameters, slash == path.npos ? "." : path.substr(0, std::max<size_t>(slash, 1)));
    if (!status.ok()) return complain(exit_failed, "{}", status.what);
    if (options.json) {
        Json said = {{"path", out}, {"format", name}, {"digest", model.digest}};
        if (apart) said["data"] = data;
        fmt::print("{}\n", json_text(said, 2));
        return exit_done;
    }
    fmt::print("{}{}{}\n{} parameters, digest {}\n", out, apart ? "\n" : "", data, parameters.size(), model.digest);
    return exit_done;
}

// ---- command line --------------------------------------------------------------------------------------------------------------

void model_argument(CLI::App* command, std::string& model, bool& averaged, const char* others) {
    command->add_option("MODEL", model, fmt::format("final.h5, the folder that has it, {}or the job whose model it is", others))
        ->required();
    command->add_flag("--ema", averaged, "the averaged weights of a job with optimiser.ema in place of the weights");
}

void add_evaluate(Cli& cli) {
    struct Flags {
        std::string model, data;
        bool averaged = false;
    };
    Flags& f = cli.keep<Flags>();
    CLI::App* command = cli.add(models_group, "evaluate", "accuracy of a model, by class, with the confusion matrix; on this machine",
                                [&] { return command_evaluate(cli.options, f.model, f.data, f.averaged); });
    model_argument(command, f.model, f.averaged, every_file);
    command->add_option("--data", f.data, "shards: a path or a pattern in quotes")->required();
}

void add_predict(Cli& cli) {
    struct Flags {
        std::string model;
        std::vector<std::string> images;
        ImageRules rules;
        uint32_t top = 1;
        std::string masks;
        bool averaged = false, force = false;
    };
    Flags& f = cli.keep<Flags>();
    CLI::App* command =
        cli.add(models_group, "predict", "the class that a model sees in each image, with its probability; on this machine",
                [&] { return command_predict(cli.options, f.model, f.images, f.top, f.rules, f.masks, f.averaged, f.force); });
    model_argument(command, f.model, f.averaged, every_file);
    command->add_option("IMAGE", f.images, "PNG and JPEG files, and folders of such")->required();
    command->add_option("--top", f.top, "how many classes of each image, the most probable ones")
        ->capture_default_str()
        ->check(CLI::Range(uint32_t{1}, uint32_t{65536}));
    command->add_option("--size", f.rules.size, fmt::format("{} (default: of a model of pictures that of its evaluations)", size_help))
        ->check(CLI::Range(uint32_t{1}, import_side_max));
    command->add_flag_callback(
        "--no-exif", [&] { f.rules.exif = false; }, exif_help);
    command->add_option("--masks", f.masks, "of a model with a class for each pixel: the folder for a PNG of the classes of each image");
    cli.force(command, f.force);
    command->footer(
        "a line for each image and class: path, class and probability, divided by tabs\n"
        "    (of a model with a class for each pixel: a line for each class in the image, with its share of the pixels)\n"
        "    (of a net that ends with squared_loss: its output in place of the probability)\n"
        "an image becomes what gradcastctl import images makes of it, with as many planes as the model takes\n"
        "of a model that was trained on pictures (import images --store jpeg) it is stored as they were, then the middle is cut out\n"
        "exit code 1: an image cannot be used, and is named; the others are printed");
}

void add_export(Cli& cli) {
    struct Flags {
        std::string model, out, format;
        bool averaged = false, force = false;
    };
    Flags& f = cli.keep<Flags>();
    CLI::App* command = cli.add(models_group, "export", "write a model for other programs",
                                [&] { return command_export(cli.options, f.model, f.out, f.format, f.averaged, f.force); });
    model_argument(command, f.model, f.averaged, "");
    command->add_option("FILE", f.out, fmt::format("output file; its ending is the format, one of {}", fmt::join(export_formats(), ", ")))
        ->required();
    command->add_option("--format", f.format, "the format, where the ending is another")->check(CLI::IsMember(export_formats()));
    cli.force(command, f.force);
    command->footer("an ONNX model of more than 1.75 GiB is two files: FILE, and FILE.data beside it, which keeps its name");
}

}   // namespace gradcast
