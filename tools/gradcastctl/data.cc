// The commands that need no daemon: import a data set, evaluate a model.
#include <algorithm>
#include <thread>

#include "datasets/shard.h"
#include "runtime/control/json.h"
#include "runtime/core/nearest.h"
#include "runtime/job/engine.h"
#include "tools/gradcastctl/ctl.h"

namespace gradcast {

int command_import(const Options& options, const ImportConfig& config) {
    const std::vector<std::string>& kinds = import_kinds();
    if (std::find(kinds.begin(), kinds.end(), config.kind) == kinds.end()) {
        std::string best = nearest(config.kind, kinds);
        return complain(exit_usage, "{} is not a kind of data set that can be imported{}: one of {}", config.kind,
                        best.empty() ? "" : ", did you mean " + best + "?", fmt::join(kinds, ", "));
    }
    ImportResult result;
    Status status = data_import(config, &result);
    if (!status.ok()) return complain(exit_failed, "{}", status.what);
    if (options.json) {
        fmt::print("{}\n", json_text(Json{{"paths", result.paths}, {"train", result.train}, {"test", result.test}}, 2));
        return exit_done;
    }
    for (const std::string& path : result.paths) fmt::print("{}\n", path);
    fmt::print("{} samples to train on, {} to test on\n", result.train, result.test);
    return exit_done;
}

int command_evaluate(const Options& options, const std::string& model, const std::string& data) {
    Evaluation evaluation;
    Status status = model_evaluate(model, data, std::max(1u, std::thread::hardware_concurrency()), &evaluation);
    if (!status.ok()) return complain(exit_failed, "{}", status.what);
    double accuracy = evaluation.count ? static_cast<double>(evaluation.right) / static_cast<double>(evaluation.count) : 0;
    if (options.json) {
        fmt::print("{}\n", json_text(Json{{"samples", evaluation.count},
                                          {"right", evaluation.right},
                                          {"loss", evaluation.loss},
                                          {"count_of_class", evaluation.count_of_class},
                                          {"right_of_class", evaluation.right_of_class},
                                          {"accuracy", accuracy},
                                          {"digest", evaluation.digest}},
                                     2));
        return exit_done;
    }
    fmt::print("{} samples, {} right, loss {:.6f}\n", evaluation.count, evaluation.right, evaluation.loss);
    for (size_t i = 0; i < evaluation.count_of_class.size(); ++i)
        fmt::print("class {}: {} of {} right\n", i, evaluation.right_of_class[i], evaluation.count_of_class[i]);
    fmt::print("accuracy {:.4f}\ndigest {}\n", accuracy, evaluation.digest);
    return exit_done;
}

}   // namespace gradcast
