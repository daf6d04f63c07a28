#include "tools/gradcastctl/run_record.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "algos/algorithm.h"
#include "datasets/verified.h"
#include "runtime/core/cpu_room.h"
#include "runtime/core/fd.h"
#include "runtime/core/toml.h"
#include "runtime/daemon/job_run.h"
#include "runtime/job/file/job_file.h"
#include "runtime/job/file/job_options.h"
#include "runtime/job/model/checkpoint_files.h"
#include "runtime/job/model/model_file.h"
#include "runtime/job/report/step_lines.h"
#include "tools/gradcastctl/print.h"

namespace gradcast {
namespace {

constexpr size_t points_max = 256, gaps_max = 20, line_bytes_max = 1 << 16;

/// Takes steps.jsonl in pieces and keeps a bounded number of points.
class Curves {
public:
    /// resumed: steps before this run, whose seconds and bytes it does not count itself.  batch: samples of a step whose line has no
    /// number of them.
    Curves(RunRecord& run, uint64_t resumed, double batch) : run_(run), resumed_(resumed), batch_(batch) {}
    // Of the steps before this run.
    double seconds_before = 0, bytes_before = 0;
    void add(std::string_view piece) {
        rest_ += piece;
        size_t from = 0;
        for (size_t end; (end = rest_.find('\n', from)) != std::string::npos; from = end + 1)
            line(std::string_view(rest_).substr(from, end - from));
        rest_.erase(0, from);
        if (rest_.size() > line_bytes_max) rest_.clear();   // no line of ours is so long
    }

private:
    void line(std::string_view text) {
        if (StepGap gap; step_gap_parse(text, &gap)) {
            if (run_.gaps.size() < gaps_max) run_.gaps.push_back(step_gap_text(gap));
            return;
        }
        const Json json = Json::parse(text, nullptr, false);
        auto number = [&](const char* key) {
            const auto at = json.find(key);
            return at != json.end() && at->is_number() ? at->get<double>() : std::nan("");
        };
        if (!json.is_object() || !(number("step") > 0)) return;
        run_.steps = static_cast<uint64_t>(number("step"));
        for (const char* key : {"compute_us", "wait_us", "apply_us"})
            if (const double us = number(key); us > 0) run_.seconds += us * 1e-6;
        if (const double bytes = number("bytes_sent"); bytes > 0) run_.bytes += bytes;
        if (run_.steps <= resumed_) seconds_before = run_.seconds, bytes_before = run_.bytes;
        samples_ = number("samples") > 0 ? number("samples") : static_cast<double>(run_.steps) * batch_;
        run_.last_loss = number("loss");
        if (const double loss = run_.last_loss; std::isfinite(loss)) {
            sum_ += loss;
            ++count_;
        }
        if (count_ >= every_) {
            put(run_.loss, sum_ / static_cast<double>(count_));
            sum_ = 0;
            count_ = 0;
            if (run_.loss.size() >= points_max) halve();
        }
        if (const double accuracy = number("accuracy"); accuracy >= 0) {
            put(run_.accuracy, accuracy);
            if (run_.accuracy.size() >= points_max) thin(run_.accuracy);
        }
        if (const double loss = number("test_loss"); std::isfinite(loss)) run_.test_loss = loss;
    }
    void put(std::vector<RunPoint>& points, double value) const { points.push_back({samples_, run_.seconds, run_.bytes, value}); }
    /// Two points become one.
    void halve() {
        for (size_t i = 1; i < run_.loss.size(); i += 2) run_.loss[i].value = (run_.loss[i].value + run_.loss[i - 1].value) / 2;
        thin(run_.loss);
        every_ *= 2;
    }
    /// Every second one stays, the last among them.
    static void thin(std::vector<RunPoint>& points) {
        size_t kept = 0;
        for (size_t i = 1; i < points.size(); i += 2) points[kept++] = points[i];
        points.resize(kept);
    }
    RunRecord& run_;
    const uint64_t resumed_;
    const double batch_;
    std::string rest_;
    double sum_ = 0, samples_ = 0;
    uint64_t count_ = 0, every_ = 1;
};

/// A value as TOML.
std::string value_text(const toml::node& node) {
    if (const auto* text = node.as_string()) return '"' + text->get() + '"';
    if (const auto* number = node.as_integer()) return fmt::format("{}", number->get());
    if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
    if (const auto* flag = node.as_boolean()) return flag->get() ? "true" : "false";
    std::string all;
    auto add = [&](const std::string& part) { all += (all.empty() ? "" : ", ") + part; };
    if (const toml::array* array = node.as_array()) {
        for (const toml::node& each : *array) add(value_text(each));
        return '[' + all + ']';
    }
    if (const toml::table* table = node.as_table())
        for (const auto& [key, value] : *table) add(std::string(key.str()) + " = " + value_text(value));
    return '{' + all + '}';
}

/// "section.key" and the value of each key.
void flatten(const std::string& prefix, const toml::node& node, std::vector<std::pair<std::string, std::string>>* all) {
    if (const toml::table* table = node.as_table()) {
        for (const auto& [key, value] : *table) flatten(prefix + (prefix.empty() ? "" : ".") + std::string(key.str()), value, all);
        return;
    }
    all->emplace_back(prefix, value_text(node));
}

void read_settings(const std::string& text, RunRecord* run) {
    const toml::parse_result parsed = toml_parse(text);
    if (parsed) flatten("", parsed.table(), &run->settings);
    run->settings_whole = true;
    std::erase_if(run->settings, [&](const auto& each) {
        if (each.first == "job.name" && run->name.empty()) run->name = each.second.substr(1, each.second.size() - 2);
        return each.first == "job.name";
    });
}

/// The record by a daemon, where its folder cannot be read here.
void take_settings(RunRecord* run) {
    const JobDetail& job = *run->job;
    run->settings = {{"algorithm.kind", '"' + job.algorithm + '"'},
                     {"algorithm.exchange", '"' + job.exchange + '"'},
                     {"algorithm.quantiser", '"' + job.quantiser + '"'},
                     {"job.batch", std::to_string(job.batch)},
                     {"job.blocks", std::to_string(job.blocks)}};
    for (const auto& [key, value] : job.summary.status.settings) run->settings.emplace_back("algorithm." + key, value);
}

/// By final.h5, which knows its job file and where that was.
void evaluate_model(const std::string& data, RunRecord* run) {
    const std::string path = run->folder + "/final.h5";
    Model model;
    if (run->folder.empty() || ::access(path.c_str(), F_OK) != 0) {
        run->why = "there is no final.h5 here: the job has not ended, or another node keeps the model";
        return;
    }
    if (const Status status = model_check(path, &model); !status.ok()) {
        run->why = status.what;
        return;
    }
    JobConfig config;
    std::vector<JobMistake> mistakes;
    std::string pattern = data;
    size_t literal = 0;
    const bool known = job_parse(model.job, path, model.base, &config, &mistakes);
    if (pattern.empty() && known) {
        pattern = config.test;
        literal = config.literal(pattern);
    }
    if (pattern.empty()) {
        run->why = "the job has no test data: --data names some";
        return;
    }
    Evaluation evaluation;
    const Status status =
        model_evaluate(path, pattern, cpu_room().threads(), &evaluation, literal, verified_path_of_user(), known && config.evaluate_ema);
    if (!status.ok()) run->why = status.what;
    else if (evaluation.regression) run->why = "a regression has no classes";
    else if (evaluation.text) run->why = "a text has no classes";
    else run->evaluation = std::move(evaluation);
}

const std::string* setting(const RunRecord& run, const std::string& key) {
    const auto at = std::find_if(run.settings.begin(), run.settings.end(), [&](const auto& each) { return each.first == key; });
    return at != run.settings.end() ? &at->second : nullptr;
}

/// The folder of the job in a WORK folder, at a rank that has its model where there is one; `folder` itself where it is no WORK folder.
std::string job_folder(const std::string& folder) {
    std::string id, found;
    std::error_code error;
    if (std::filesystem::exists(folder + "/steps.jsonl", error) || !file_read(folder + "/job", &id).ok()) return folder;
    while (!id.empty() && id.back() == '\n') id.pop_back();
    for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
        const std::string each = at->path().string() + "/state/jobs/" + id;
        std::error_code none;
        if (!at->path().filename().string().starts_with("rank-") || !std::filesystem::exists(each + "/steps.jsonl", none)) continue;
        if (found.empty() || std::filesystem::exists(each + "/final.h5", none)) found = each;
    }
    return found.empty() ? folder : found;
}

}   // namespace

std::string setting_default(const RunRecord& run, const std::string& key) {
    const JobOption* option = job_option(key);
    if (!option || *option->value == '\0') return {};
    const std::string* kind = setting(run, "algorithm.kind");
    const AlgorithmKind* algorithm = nullptr;
    if (algorithm_find(kind ? kind->substr(1, kind->size() - 2) : "ssgd", &algorithm).ok() && !option->taken_by(*algorithm)) return {};
    const toml::parse_result parsed = toml_parse(fmt::format("value = {}", option->value));
    return parsed ? value_text(*parsed.table().get("value")) : "";
}

int run_read(const Options& options, const std::string& which, bool evaluate, const std::string& data, RunRecord* run) {
    std::error_code error;
    const Client client(options.target);
    const bool is_folder = std::filesystem::is_directory(which, error);
    JobDetail job;
    if (is_folder) {
        run->folder = job_folder(which);
        if (job_record_read(run->folder, &job).ok()) run->job = std::move(job);
    } else {
        if (which.find('/') != std::string::npos) return complain(exit_usage, "{}: there is no such folder", which);
        const Reply reply = client.job(which, &job);
        if (reply.exit != exit_done) return complain(reply.exit, "{}", reply.error);
        run->folder = job.folder;
        run->job = std::move(job);
    }
    if (run->job) {
        run->name = run->job->summary.name;
        run->id = run->job->summary.id;
        run->digest = run->job->summary.status.digest;
    }
    std::string text;
    if (!run->folder.empty() && file_read(run->folder + "/job.toml", &text).ok()) read_settings(text, run);
    else if (run->job) take_settings(run);
    if (run->name.empty()) run->name = std::filesystem::path(which).lexically_normal().filename().string();

    const std::string* batch = setting(*run, "job.batch");
    const JobStatus* status = run->job ? &run->job->summary.status : nullptr;
    Curves curves(*run, status ? status->resumed : 0, std::strtod((batch ? *batch : setting_default(*run, "job.batch")).c_str(), nullptr));
    if (is_folder) {
        std::ifstream file(run->folder + "/steps.jsonl");
        if (!file) return complain(exit_failed, "{}: there is no steps.jsonl, as the folder of a run has", which);
        std::string piece(1 << 20, '\0');
        while (file.read(piece.data(), static_cast<std::streamsize>(piece.size())) || file.gcount() > 0)
            curves.add({piece.data(), static_cast<size_t>(file.gcount())});
    } else {
        for (uint64_t offset = 0;;) {
            const Reply reply = client.get(routes::steps, run->id, fmt::format("?offset={}", offset));
            if (reply.exit != exit_done) return complain(reply.exit, "{}", reply.error);
            curves.add(reply.text);
            if (reply.next <= offset) break;
            offset = reply.next;
        }
    }
    // The record of a job that runs, or whose daemon died, is from its beginning.
    if (status && (!is_folder || job_ended(status->state))) {
        run->seconds = curves.seconds_before + status->seconds;
        run->bytes = curves.bytes_before + static_cast<double>(status->bytes_sent);
    }
    if (run->steps == 0 && !run->job) return complain(exit_failed, "{}/steps.jsonl has no line of a step", which);
    if (evaluate) evaluate_model(data, run);
    else run->why = "--quick leaves it out";
    if (run->evaluation && run->digest.empty()) run->digest = run->evaluation->digest;
    return exit_done;
}

std::string runs_folder() {
    const char* state = std::getenv("XDG_STATE_HOME");
    const char* home = std::getenv("HOME");
    const std::string base = state && *state == '/' ? state : home && *home == '/' ? std::string(home) + "/.local/state" : ".";
    return base + "/gradcast";
}

std::string text_local_runs() {
    const std::string folder = runs_folder();
    size_t runs = 0;
    std::error_code error;
    for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
        runs += ::access((at->path() / "steps.jsonl").c_str(), F_OK) == 0;
    if (runs == 0) return {};
    return fmt::format("local runs: {} in {}; gradcastctl describe and report take the folder of one", runs, folder);
}

int describe_folder(const Options& options, const std::string& folder) {
    RunRecord run;
    if (const int exit = run_read(options, folder, false, {}, &run); exit != exit_done) return exit;
    const std::string path = folder + "/final.h5";
    Model model;
    const bool done = ::access(path.c_str(), F_OK) == 0;
    if (done)
        if (const Status status = model_check(path, &model); !status.ok()) return complain(exit_failed, "{}", status.what);
    const std::vector<CheckpointHere> checkpoints = checkpoints_in(folder);
    const std::string checkpoint = checkpoints.empty() ? "" : checkpoints.back().path;
    Json json{{"folder", folder},  {"name", run.name},       {"state", done ? "done" : "no model"},
              {"step", run.steps}, {"seconds", run.seconds}, {"bytes_sent", run.bytes}};
    if (std::isfinite(run.last_loss)) json["loss"] = run.last_loss;
    if (!run.accuracy.empty()) json["accuracy"] = run.accuracy.back().value;
    if (run.test_loss >= 0) json["test_loss"] = run.test_loss;
    if (!checkpoint.empty()) json["checkpoint"] = checkpoint;
    if (done) json["model"] = path, json["digest"] = model.digest;
    for (const auto& [key, value] : run.settings) json["settings"][key] = value;
    if (options.json) {
        fmt::print("{}\n", json_text(json, 2));
        return exit_done;
    }
    auto line = [](const char* name, const std::string& value) {
        if (!value.empty()) fmt::print("{:<15} {}\n", name, value);
    };
    auto number = [&](const char* key, const char* format) {
        return json.contains(key) ? fmt::format(fmt::runtime(format), json[key].get<double>()) : "";
    };
    line("folder", folder);
    line("name", run.name);
    line("state", done ? "done" : "no model: the run has not come to its last step");
    line("step", std::to_string(run.steps));
    line("loss", number("loss", "{:.6f}"));
    line("accuracy", number("accuracy", "{:.4f}"));
    line("test loss", number("test_loss", "{:.6f}"));
    line("time", text_seconds(run.seconds));
    line("sent by a node", text_bytes(static_cast<uint64_t>(run.bytes)));
    for (const auto& [key, value] : run.settings) line(key.c_str(), value);
    if (run.job) {   // of the node that reported the run
        const JobStatus& status = run.job->summary.status;
        if (status.edge_bytes > 0)
            line("by formula",
                 fmt::format("{} of words and {} of edges sent", text_bytes(status.bytes_bound), text_bytes(status.edge_bytes)));
        if (status.pipeline) print_pipeline(*status.pipeline);
        line("memory", words_of(memory_text(status.memory)));
        line("stage", status.stage);
        line("grid", status.grid);
    }
    line("checkpoint", checkpoint.empty() ? "" : checkpoint + ": gradcastctl run --resume goes on from it");
    line("model", done ? path : "");
    line("digest", model.digest);
    return exit_done;
}

}   // namespace gradcast
