#include "runtime/job/audit/audit.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <thread>

#include "algos/algorithm.h"
#include "runtime/core/digest.h"
#include "runtime/core/inventory.h"
#include "runtime/core/thread.h"
#include "runtime/job/file/command.h"
#include "runtime/job/model/model_reader.h"
#include "runtime/job/run/alone.h"
#include "runtime/job/run/engine.h"
#include "runtime/job/run/probe_block.h"

namespace gradcast {
namespace {

constexpr size_t lines_max = 1 << 24;
constexpr auto look_every = std::chrono::milliseconds(50);

const StepLine* line_of(const AuditFolder& folder, uint64_t step) {
    const auto found =
        std::lower_bound(folder.lines.begin(), folder.lines.end(), step, [](const StepLine& line, uint64_t of) { return line.step < of; });
    return found != folder.lines.end() && found->step == step ? &*found : nullptr;
}

Status lines_read(AuditFolder* folder) {
    StepLines lines;
    const std::string path = folder->path + "/steps.jsonl";
    GC_TRY(lines.open(path));
    uint64_t before = 0;
    StepLine line;
    for (bool got = false;;) {
        GC_TRY(lines.next(&line, &got));
        const StepGap& gap = lines.gap();
        const uint64_t until = got ? line.step - 1 : gap.last;   // without lines
        if (until > before && folder->notes.size() < 100)
            folder->notes.push_back(
                step_gap_text({before + 1, until, gap.first == before + 1 && gap.last == until ? gap.logged_by : std::string()}));
        if (!got) break;
        if (folder->lines.size() == lines_max) return fail(Code::data, "{}: more than {} lines", path, lines_max);
        before = line.step;
        folder->lines.push_back(line);
    }
    if (folder->lines.empty()) return fail(Code::data, "{}: no step has been recorded", path);
    if (lines.torn()) folder->notes.push_back(fmt::format("steps.jsonl ends with a part of a line, after step {}", before));
    folder->kernels = lines.kernels();
    folder->kernel_set = lines.kernel_set();
    folder->kernel_set_last = lines.kernel_set_last();
    return {};
}

/// "" or what differs.
std::string state_differs(const AuditFolder& folder, const std::string& path, const Model& model) {
    const StepLine* line = line_of(folder, model.step);
    if (!line || line->digest == model.state) return {};
    return fmt::format("{}: holds the state {:016x} of step {}, steps.jsonl has {:016x}", path, model.state, model.step, line->digest);
}

/// Finds where to begin, and looks at all checkpoints on the way.
Status choose_start(const AuditFolder& folder, const AuditConfig& config, AuditResult* result, Resume* start) {
    auto take = [&](const std::string& path, const Model& model) {
        *start = {.on = true, .steps = model.step, .state = model.state, .holders = {NodeId{0}}, .paths = {path}, .notes = {}};
        if (!line_of(folder, model.step)) result->notes.push_back(fmt::format("{}: steps.jsonl has no line of its step", path));
    };
    Model model;
    if (!config.from.empty()) {
        GC_TRY(checkpoint_check(config.from, &model));
        if (model.step >= result->first)
            return fail(Code::invalid, "{}: the state after step {}, from which step {} does not follow", config.from, model.step,
                        result->first);
        result->finding = state_differs(folder, config.from, model);
        take(config.from, model);
        return {};
    }
    for (size_t i = folder.checkpoints.size(); i-- > 0 && result->finding.empty();) {
        const auto& [steps, path] = folder.checkpoints[i];
        if (steps > result->last) continue;
        if (!checkpoint_check(path, &model).ok() || model.step != steps) continue;   // audit_read() has named it
        result->finding = state_differs(folder, path, model);
        if (steps >= result->first) continue;
        take(path, model);
        break;
    }
    return {};
}

/// What the engine has written so far against what the folder says.
class Comparison {
public:
    Comparison(const AuditFolder& folder, AuditResult& result) : folder_(folder), result_(result) {}
    Status open(const std::string& path) { return lines_.open(path); }
    Status go_on() {
        StepLine is;
        for (bool got = false; result_.finding.empty();) {
            GC_TRY(lines_.next(&is, &got));
            if (!got) break;
            step_ = is.step;
            const StepLine* was = line_of(folder_, is.step);
            if (was && was->digest != is.digest)
                result_.finding =
                    fmt::format("step {} differs: computed {:016x}, steps.jsonl has {:016x}", is.step, is.digest, was->digest);
            else if (was && was->loss != is.loss)
                result_.finding = fmt::format("step {} differs: computed a loss of {}, steps.jsonl has {}", is.step, is.loss, was->loss);
            else if (was && is.step >= result_.first) ++result_.compared;
        }
        return {};
    }
    uint64_t step() const { return step_; }

private:
    const AuditFolder& folder_;
    AuditResult& result_;
    StepLines lines_;
    uint64_t step_ = 0;
};

EngineConfig engine_config(const AuditFolder& folder, const AuditConfig& config, const AuditResult& result, const Resume& start) {
    EngineConfig engine;
    engine.job = folder.job;
    engine.job.exchange = "unicast";   // of one rank; any exchange has the same sums
    engine.job.stages = 1;             // and any cut
    engine.job.buddy = false;
    engine.job.slice_groups = 1;
    engine.job.s = 0;
    const AlgorithmKind* kind;
    if (algorithm_find(folder.job.algorithm, &kind).ok() && follows_clock(*kind, folder.job.settings))
        engine.job.settings.replay = folder.path + "/replay.log";   // the nodes' own
    if (engine.job.attached() && !start.on && engine.job.start.empty()) engine.job.start = fmt::format("{}/{}", folder.path, start_file);
    engine.job.stop_at = 0;
    engine.job.checkpoint_keep = 0;
    engine.job.checkpoint_copies = copies_auto;
    engine.job.profile = 0;
    engine.job.deadline_us = uint64_t{24} * 3600 * 1'000'000;   // one machine computes what many did
    engine.roster = {Member{"audit"}};
    engine.folder = config.scratch;
    engine.lanes = std::max(config.lanes, 1u);
    engine.commands = config.commands;
    engine.until = result.last;
    engine.resume = start;
    engine.stop = config.stop;
    return engine;
}

}   // namespace

Status audit_read(const std::string& path, const std::string& base, AuditFolder* folder) {
    AuditFolder read;
    read.path = path;
    read.checkpoints = checkpoints_in(path);
    std::string text, newest_base;
    GC_TRY(file_read(path + "/job.toml", &text));
    // All are read whole.  The data is where the newest whole one says.
    std::vector<std::pair<std::string, CheckpointName>> files;
    const std::string final = path + "/final.h5";
    if (::access(final.c_str(), F_OK) == 0) files.emplace_back(final, CheckpointName());
    const std::vector<CheckpointName> names = checkpoint_files(path);
    for (size_t i = names.size(); i-- > 0;) files.emplace_back(checkpoint_path(path, names[i]), names[i]);
    for (const auto& [file, name] : files) {
        ModelReader reader;   // of one file, also where it is a part
        Status status = reader.open_alone(file);
        if (status.ok()) status = reader.read();
        if (status.ok()) status = reader.resumable();
        const Model& model = reader.model();
        if (status.ok() && file != final && model.step != name.steps) status = fail(Code::data, "{}: holds step {}", file, model.step);
        if (!status.ok()) {
            // A job that runs removes old checkpoints.
            if (::access(file.c_str(), F_OK) == 0) read.findings.emplace_back(status.what);
            continue;
        }
        if (newest_base.empty()) {
            newest_base = model.base;
            read.data_digest = model.data_digest;
        }
        if (file == final) {
            read.digest = model.digest;
            read.model_steps = model.step;
        }
    }
    std::error_code error;
    std::string where = !base.empty() ? base : newest_base.starts_with('/') ? newest_base : path;
    where = std::filesystem::absolute(where, error).lexically_normal();
    std::vector<JobMistake> mistakes;
    if (!job_parse(text, path + "/job.toml", where, &read.job, &mistakes)) return fail(Code::data, "{}", mistakes.front().text);
    if (read.job.attached()) GC_TRY(sources_read(path, &read.sources));
    const AlgorithmKind* kind;
    GC_TRY(algorithm_find(read.job.algorithm, &kind));
    if (kind->workers && read.job.settings.workers == 0)
        return fail(Code::data, "{}/job.toml does not say how many workers there were, one a node: set algorithm.workers", path);
    GC_TRY(lines_read(&read));
    *folder = std::move(read);
    return {};
}

Status audit_stretch(const AuditFolder& folder, const AuditConfig& config, AuditResult* result) {
    *result = {};
    const uint64_t recorded = folder.lines.back().step;
    result->first = config.first > 0 ? config.first : folder.lines.front().step;
    result->last = config.last > 0 ? config.last : recorded;
    if (config.first == 0 && !config.from.empty()) {
        Model model;
        GC_TRY(checkpoint_check(config.from, &model));
        result->first = std::max(result->first, model.step + 1);
    }
    if (result->first > result->last || result->last > recorded)
        return fail(Code::invalid, "steps {}..{} are not a stretch of {}/steps.jsonl, whose last step is {}", result->first, result->last,
                    folder.path, recorded);
    const auto next = std::lower_bound(folder.lines.begin(), folder.lines.end(), result->first,
                                       [](const StepLine& line, uint64_t of) { return line.step < of; });
    if (next->step > result->last)
        return fail(Code::invalid, "{}/steps.jsonl has no lines of steps {}..{}", folder.path, result->first, result->last);
    if (folder.job.attached() && !config.commands)
        return command_refused(folder.job, folder.path + "/job.toml", folder.sources, folder.path);
    Resume start;
    GC_TRY(choose_start(folder, config, result, &start));
    result->from = start.steps;
    if (!result->finding.empty()) return {};

    EngineConfig engine_of_folder = engine_config(folder, config, *result, start);
    if (!folder.sources.files.empty()) {   // not in the folder itself, where the program might write
        engine_of_folder.sources = std::make_shared<const Sources>(folder.sources);
        engine_of_folder.sources_at = config.scratch + "/" + sources_folder;
        GC_TRY(sources_check(folder.path, folder.sources, engine_of_folder.sources_at));
    } else if (folder.job.attached()) {
        result->notes.push_back("the folder has no copies of the program's sources: the program is started as it is now");
    }
    std::unique_ptr<Engine> engine;
    GC_TRY(Engine::open(engine_of_folder, Log(), &engine));
    if (!folder.kernel_set.empty() && !kernel_sets_agree(engine->kernel_set(), folder.kernel_set)) {
        std::vector<InventoryItem> trained;
        for (const auto& [name, version] : folder.sources.libraries) trained.push_back({library_item, name, version});
        const std::string libraries = trained.empty() ? std::string() : inventory_libraries(inventory_write(trained), engine->inventory());
        return fail(
            Code::data,
            "{}: trained with other kernels: the kernel set was {} of {}, here it is {} of {}; a machine of the same instruction set "
            "(--isa) or device and the version of gradcast that trained it are needed{}",
            folder.path, folder.kernel_set, folder.kernels, engine->kernel_set(), engine->kernels(),
            libraries.empty() ? "" : fmt::format("; versions of libraries were other ones: {}", libraries));
    }
    if (!folder.data_digest.empty() && engine->data_digest() != folder.data_digest)
        return fail(Code::data, "{}: trained on other data: its digest was {:.8}, that of {} is {:.8}", folder.path, folder.data_digest,
                    data_names(folder.job), engine->data_digest());
    if (!engine->data_compared())
        result->notes.push_back("the program says no data_digest: whether it had the same samples is not compared");
    Comparison comparison(folder, *result);
    GC_TRY(comparison.open(config.scratch + "/steps.jsonl"));

    Alone host;
    Status run, compared;
    std::atomic<bool> done{false};
    Thread trainer;   // of its own: as a lane it lowers its priority for good
    GC_TRY(trainer.start([&] {
        run = engine->run(host);
        done.store(true, std::memory_order_release);
    }));
    while (!done.load(std::memory_order_acquire)) {
        std::this_thread::sleep_for(look_every);
        compared = comparison.go_on();
        if (config.progress) config.progress(comparison.step(), result->last);
        if (!compared.ok() || !result->finding.empty()) engine->cancel("the audit has found a difference");
        else if (config.stop && config.stop->load(std::memory_order_relaxed)) engine->cancel("interrupted");
    }
    trainer.join();
    if (compared.ok()) compared = comparison.go_on();
    GC_TRY(compared);
    if (!result->finding.empty()) return {};
    // A forged checkpoint is found before the first step, and a state from which no step follows in it.
    std::string_view why = run.what;
    if (const size_t at = why.find("): "); why.starts_with("rank 0 (") && at != why.npos) why.remove_prefix(at + 3);   // this machine
    if (run.code == Code::conflict) result->finding = fmt::format("{}: {}", start.paths[0], why);
    else if (run.code == Code::diverged) result->finding = fmt::format("step {} differs: {}", comparison.step() + 1, why);
    else if (!run.ok()) return fail(run.code, "{}", why);
    return {};
}

std::vector<AuditStretch> audit_sample(const AuditFolder& folder, double share, uint64_t seed, double* missed) {
    const uint64_t first = folder.lines.front().step, last = folder.lines.back().step;
    std::vector<AuditStretch> all;
    uint64_t from = first;
    for (const auto& [steps, path] : folder.checkpoints) {
        if (steps < from || steps >= last) continue;
        all.push_back({from, steps});
        from = steps + 1;
    }
    all.push_back({from, last});
    // Those without a line would have nothing to compare.
    std::erase_if(all, [&](const AuditStretch& each) {
        const auto next = std::lower_bound(folder.lines.begin(), folder.lines.end(), each.first,
                                           [](const StepLine& line, uint64_t of) { return line.step < of; });
        return next == folder.lines.end() || next->step > each.last;
    });
    const size_t count = std::clamp<size_t>(static_cast<size_t>(std::ceil(share * static_cast<double>(all.size()) - 1e-9)), 1, all.size());
    *missed = 1 - static_cast<double>(count) / static_cast<double>(all.size());
    for (size_t i = 0; i < count; ++i) std::swap(all[i], all[i + splitmix64(seed + i * 0x9E3779B97F4A7C15) % (all.size() - i)]);
    all.resize(count);
    std::sort(all.begin(), all.end(), [](const AuditStretch& a, const AuditStretch& b) { return a.first < b.first; });
    return all;
}

std::vector<std::string> audit_transcript(const AuditFolder& folder, const Transcript& transcript, const std::vector<ClusterKey>& keys) {
    std::vector<std::string> findings;
    auto differs = [&](const std::string& what) { findings.push_back("transcript.json: " + what); };
    bool genuine = false;
    if (!keys.empty()) {
        const auto key = std::find_if(keys.begin(), keys.end(), [&](const ClusterKey& each) { return each.id == transcript.key; });
        if (transcript.hmac.empty()) differs("it has no HMAC: no member of a cluster has signed it");
        else if (key == keys.end()) differs(fmt::format("its HMAC is of key {}, which the key file does not have", transcript.key));
        else if (!(genuine = transcript_hmac(transcript, *key) == transcript.hmac))
            differs(fmt::format("its HMAC under key {} does not fit: it was edited, or another key has that name", transcript.key));
    }
    // With the key, it is known which of two was edited.
    const char* edited = genuine ? ", and the transcript is genuine" : "";
    if (transcript.job != folder.job.text) differs(fmt::format("its job file is not job.toml{}", edited));
    if (!folder.kernel_set_last.empty() && transcript.kernel_set != folder.kernel_set_last)
        differs(fmt::format("its kernel set is {}, that of steps.jsonl {}{}", transcript.kernel_set, folder.kernel_set_last, edited));
    if (!folder.data_digest.empty() && transcript.data_digest != folder.data_digest)
        differs(
            fmt::format("its data digest is {:.8}, that of the checkpoints {:.8}{}", transcript.data_digest, folder.data_digest, edited));
    if (!folder.digest.empty() && folder.model_steps == transcript.steps && transcript.digest != folder.digest)
        differs(fmt::format("its digest is {:.8}, that of final.h5 {:.8}{}", transcript.digest, folder.digest, edited));
    if (!folder.digest.empty() && folder.model_steps != transcript.steps)
        differs(fmt::format("it has {} steps, final.h5 {}{}", transcript.steps, folder.model_steps, edited));
    StepChain chain(transcript);
    uint64_t lines = 0;
    for (const StepLine& line : folder.lines) {
        if (line.step < transcript.first) continue;
        chain.add(line);
        ++lines;
    }
    const uint64_t first = folder.lines.front().step, last = folder.lines.back().step;
    if (first > transcript.first || last != transcript.steps || lines != transcript.lines)
        differs(fmt::format("its chain is over {} lines, steps {}..{}; steps.jsonl has {} of them, steps {}..{}{}", transcript.lines,
                            transcript.first, transcript.steps, lines, first, last, edited));
    else if (chain.hex() != transcript.chain)
        differs(fmt::format("its chain over steps {}..{} differs: {}", transcript.first, transcript.steps,
                            genuine ? "a line of steps.jsonl was edited" : "a line of steps.jsonl or the transcript was edited"));
    return findings;
}

}   // namespace gradcast
