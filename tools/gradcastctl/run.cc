// run JOB.toml --local N: trains on a private cluster and keeps the results.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "runtime/core/clock.h"
#include "runtime/core/fd.h"
#include "runtime/core/isa.h"
#include "runtime/daemon/job_run.h"
#include "runtime/job/file/command.h"
#include "runtime/job/file/engine_config.h"
#include "runtime/job/file/sources.h"
#include "runtime/job/model/checkpoint_files.h"
#include "runtime/job/model/constants.h"
#include "runtime/job/model/model_file.h"
#include "runtime/job/report/event_file.h"
#include "tools/gradcastctl/commands.h"
#include "tools/gradcastctl/job_input.h"
#include "tools/gradcastctl/local.h"
#include "tools/gradcastctl/out_file.h"
#include "tools/gradcastctl/print.h"
#include "tools/gradcastctl/run_record.h"

namespace gradcast {
namespace {

constexpr uint32_t profile_step = 10;        // where the job file names none: after the first steps, which are slower
constexpr uint64_t end_us_max = 2'000'000;   // from the job's end at the node that is followed to its end at the others
constexpr uint32_t log_lines = 3;            // of each daemon, shown when something failed

/// Copies the results from a node's folder, each file whole or not at all; event files, which are named by time, always.
Status keep_results(const std::string& job, const std::string& folder, std::vector<std::string> names) {
    GC_TRY(make_directories(folder));
    for (const std::string& name : folder_names(job))
        if (name.starts_with(event_file_prefix)) names.push_back(name);
    for (const std::string& name : names) {
        std::filesystem::path from = std::filesystem::path(job) / name;
        std::error_code error;
        if (!std::filesystem::exists(from, error)) continue;   // a job that failed has no model
        const std::filesystem::path to = std::filesystem::path(folder) / name, part = to.string() + ".part";
        if (std::filesystem::is_directory(from, error)) {
            std::filesystem::remove_all(to, error);
            std::filesystem::copy(from, part, std::filesystem::copy_options::recursive, error);
        } else {
            std::filesystem::copy_file(from, part, std::filesystem::copy_options::overwrite_existing, error);
        }
        if (!error) std::filesystem::rename(part, to, error);
        if (!error) continue;
        std::error_code ignored;
        if (std::filesystem::space(folder, ignored).available == 0)
            error = std::make_error_code(std::errc::no_space_on_device);   // not EIO
        std::filesystem::remove_all(part, ignored);
        return fail(Code::node_io, "cannot copy {} to {}: {}; it is left where it is", from.string(), folder, error.message());
    }
    return {};
}

const std::vector<std::string> results_of_a_job = {"job.toml",     "job.json",        "log",         "steps.jsonl",
                                                   "final.h5",     "transcript.json", "replay.log",  start_file,
                                                   constants_file, sources_file,      sources_folder};

/// Keeps the newest checkpoint of an unfinished job, and the folder of a node that has it or its first part.  Returns how it goes on, for
/// people; "": there is no checkpoint.  *kept: its steps; unchanged where nothing is.
std::string keep_checkpoint(const Cluster& cluster, const std::string& id, const std::string& folder, uint64_t* kept = nullptr) {
    std::map<std::pair<uint64_t, uint32_t>, std::map<uint32_t, std::string>> all;   // by steps and cells: by cell, a node's folder
    for (uint32_t i = 0; i < cluster.count(); ++i)
        for (const CheckpointName& name : checkpoint_files(cluster.job_folder(i, id)))
            all[{name.steps, name.cells}].emplace(name.cell, cluster.job_folder(i, id));
    std::erase_if(all, [](const auto& each) { return each.second.size() < each.first.second; });
    if (all.empty()) return {};
    const auto& [of, parts] = *all.rbegin();
    const auto& [steps, cells] = of;
    const auto file = [&](uint32_t cell) { return checkpoint_path("", {steps, cell, cells}).substr(1); };
    Status status = keep_results(parts.at(0), folder,
                                 {"job.toml", "job.json", "log", "steps.jsonl", start_file, constants_file, sources_file, sources_folder});
    for (const auto& [cell, from] : parts)
        if (status.ok()) status = keep_results(from, folder, {file(cell)});
    if (!status.ok()) return status.what;
    if (kept) *kept = steps;
    return fmt::format("its state after {} steps is kept: gradcastctl run --resume {}/{} --local {} goes on", steps, folder, file(0),
                       cluster.count());
}

/// The files of a checkpoint of which `path` is one, with their names in another folder.
std::vector<std::pair<std::string, std::string>> checkpoint_copies(const std::string& path, const Model& model, const std::string& to) {
    const std::filesystem::path from(path);
    CheckpointName name;
    if (!checkpoint_parse(from.filename().string(), &name) || name.cells == 1) return {{path, checkpoint_path(to, {model.step})}};
    std::vector<std::pair<std::string, std::string>> all;
    for (name.cell = 0; name.cell < name.cells; ++name.cell)
        all.emplace_back(checkpoint_path(from.parent_path().empty() ? "." : from.parent_path().string(), name), checkpoint_path(to, name));
    return all;
}

std::string folder_of(const std::string& file) { return std::filesystem::absolute(file).parent_path(); }

/// Puts a checkpoint, and what its run has written beside it, where the first daemon finds it.
Status place_checkpoint(const Cluster& cluster, const std::string& path, const Model& model) {
    const std::filesystem::path to = cluster.job_folder(0, model.id), beside = std::filesystem::absolute(path).parent_path();
    GC_TRY(make_directories(to));
    std::error_code error;
    for (const auto& [file, copy] : checkpoint_copies(path, model, to)) {
        std::filesystem::copy_file(file, copy, error);
        if (error) return fail(Code::node_io, "cannot copy {} to {}: {}", file, to.string(), error.message());
    }
    for (const auto& each : std::filesystem::directory_iterator(beside, error)) {
        const std::string name = each.path().filename();   // event files: the new one is named above them
        if (name == "log" || name == "steps.jsonl" || name.starts_with(event_file_prefix))
            if (std::filesystem::is_regular_file(each.path(), error)) std::filesystem::copy_file(each.path(), to / name, error);
    }
    return {};
}

/// Puts the copies of a program's sources beside a checkpoint where every daemon finds them.
Status place_sources(const Cluster& cluster, const std::string& folder, const Model& model) {
    Sources sources;
    GC_TRY(sources_read(folder, &sources));
    for (uint32_t i = 0; i < cluster.count() && !sources.files.empty(); ++i) {
        const std::string to = cluster.job_folder(i, model.id);
        GC_TRY(sources_check(folder, sources, to + "/" + sources_folder));
        GC_TRY(keep_results(folder, to, {sources_file}));
    }
    return {};
}

/// A folder holds one training: nothing of another one than that which `from` goes on with (null: a new one begins).  Event files and
/// steps.jsonl do not say whose they are; they are taken for those of the checkpoint `resume` where it lies beside them.
Status keep_check(const std::string& folder, const std::string& resume, const Model* from) {
    std::error_code error;
    auto of_another = [&](const std::string& path) {
        return fail(Code::invalid, "--keep {}: {} is of another training: choose another folder{}", folder, path,
                    from ? "" : ", or go on with that one by --resume");
    };
    if (std::filesystem::exists(folder + "/final.h5", error))
        return fail(Code::invalid, "--keep {}: there is a model already, choose another folder", folder);
    for (const auto& [steps, path] : checkpoints_in(folder)) {
        Model model;
        if (!from || (checkpoint_check(path, &model).ok() && model.id != from->id)) return of_another(path);
    }
    if (from && std::filesystem::equivalent(std::filesystem::absolute(resume).parent_path(), folder, error)) return {};
    for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
        if (const std::string name = at->path().filename(); name == "steps.jsonl" || name.starts_with(event_file_prefix))
            return of_another(folder + "/" + name);
    return {};
}

/// The folder is this run's until *lock is closed.  Error: another run has it.
Status keep_lock(const std::string& folder, Fd* lock) {
    *lock = Fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (*lock && ::flock(lock->get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)   // some file systems lock no folders
        return fail(Code::conflict, "--keep {}: another run keeps its results there: choose another folder", folder);
    return {};
}

/// Joins the traces of all nodes; each node is a process in the result.
Status keep_profile(const std::vector<std::string>& folders, const std::string& path) {
    nlohmann::json all;
    for (const std::string& folder : folders) {
        std::ifstream in(folder + "/profile.json");
        nlohmann::json one = nlohmann::json::parse(in, nullptr, false);
        if (one.is_discarded()) return fail(Code::node_io, "no profile in {}: the job ended before the step", folder);
        if (all.is_null()) all = std::move(one);
        else
            for (auto& event : one["traceEvents"]) all["traceEvents"].push_back(std::move(event));
    }
    return file_write(path, all.dump() + "\n");
}

/// from: the model in the checkpoint `resume`; null where the job begins.  copies: the job file is that of the checkpoint.
int train(const Options& options, const JobConfig& config, const std::string& path, uint32_t nodes, const std::string& isa,
          std::string keep, const std::string& profile, const std::string& resume, const Model* from, bool copies) {
    Cluster cluster;
    auto give_up = [&](const Status& status) {
        if (status.code == Code::cancelled) return complain(exit_failed, "{}: the daemons are being stopped", status.what);
        fmt::print(stderr, "{}", cluster.last_lines(log_lines));
        return complain(exit_failed, "{}", status.what);
    };
    if (Status status = cluster.start(nodes, isa, config.attached()); !status.ok()) return give_up(status);
    fmt::print(stderr, "{} daemon{} on 127.0.0.1 {} ready\n", nodes, nodes == 1 ? "" : "s", nodes == 1 ? "is" : "are");

    if (from)
        if (Status status = place_checkpoint(cluster, resume, *from); !status.ok()) return give_up(status);
    if (copies && config.attached())
        if (Status status = place_sources(cluster, folder_of(resume), *from); !status.ok()) return give_up(status);
    Submission submission{.text = config.text, .path = path, .base = config.base, .nodes = {}, .count = nodes, .copies = copies};
    Client client = cluster.client(0);
    JobDetail job;
    Status dead;
    std::string id;
    Reply reply = client.submit(
        submission, &job,
        [&](const std::string& given) {
            id = given;
            return (dead = cluster.check()).ok();
        },
        from ? from->id : "");
    if (reply.exit != exit_done) {
        if (dead.ok()) dead = cluster.check();
        if (dead.code == Code::cancelled || (!dead.ok() && id.empty())) return give_up(dead);
        // Its daemon may have ended after the job was accepted, and the others go on.
        if (id.empty() || (dead.ok() && reply.exit != exit_unreachable)) {
            if (from) {   // the private cluster's copy is gone with it
                for (const auto& [file, copy] : checkpoint_copies(resume, *from, cluster.job_folder(0, from->id)))
                    for (size_t at; (at = reply.error.find(copy)) != std::string::npos;) reply.error.replace(at, copy.size(), file);
            }
            return complain(reply.exit, "{}", reply.error);
        }
    }
    if (reply.exit == exit_done) id = job.summary.id;
    if (keep.empty()) keep = fmt::format("{}/{}-{}", runs_folder(), config.name, id.substr(0, 8));
    // No daemon answers any more: the model of a job that has done its last step is in a daemon's folder.
    auto lost = [&](const Status& status) {
        (void)give_up(status);
        cluster.halt();
        for (uint32_t i = 0; i < nodes; ++i) {
            if (model_kept(cluster.job_folder(i, id)).empty()) continue;
            const Status kept = keep_results(cluster.job_folder(i, id), keep, results_of_a_job);
            cluster.stop(!kept.ok());
            return complain(exit_failed, "{}", kept.ok() ? "the model of the last step is " + keep + "/final.h5" : kept.what);
        }
        const std::string goes_on = keep_checkpoint(cluster, id, keep);
        return complain(exit_failed, "there is no model: the job had not done its last step{}{}", goes_on.empty() ? "" : "; ", goes_on);
    };
    ProgressBar bar;
    // When a daemon ends, the others go on without its rank or end the job with the reason.  If it was the one that is followed, another
    // one is followed from then on.
    Status interrupted;
    auto look = [&] {
        const Status status = cluster.check();
        if (status.ok()) return;
        if (status.code == Code::cancelled) return void(interrupted = status);
        dead = status;
        bar.end();
        fmt::print(stderr, "{}\n", dead.what);
    };
    std::vector<bool> silent(nodes);   // a daemon that is stopped, say, or that the others go on without
    for (uint32_t at = 0;;) {
        reply = cluster.client(at).follow(id, &job, [&](const JobDetail& now) {
            bar.show(now);
            look();
            return interrupted.ok() && cluster.alive(at);
        });
        // The stream ends before the process does.
        for (uint64_t end = clock_us() + 2'000'000; reply.exit != exit_done && interrupted.ok() && cluster.alive(at) && clock_us() < end;
             ::usleep(20'000))
            look();
        const bool goes_on = reply.exit == exit_done && job.summary.status.goes_on;
        if (!goes_on && (reply.exit == exit_done || !interrupted.ok() || (cluster.alive(at) && reply.exit != exit_unreachable))) break;
        silent[at] = true;
        for (at = 0; at < nodes && (silent[at] || !cluster.alive(at));) ++at;
        if (at == nodes) break;
        fmt::print(stderr, "job {} is now followed at {}\n", id.substr(0, 8), cluster.name(at));
    }
    bar.end();
    if (!interrupted.ok()) {
        cluster.halt();                             // each daemon writes a checkpoint
        uint64_t steps = job.summary.status.step;   // as last seen here; the nodes have gone on to those of the checkpoint
        const std::string goes_on = keep_checkpoint(cluster, id, keep, &steps);
        return complain(exit_failed, "interrupted after step {} of {}: {}", steps, job.summary.status.steps,
                        goes_on.empty() ? "the training is lost" : goes_on);
    }
    if (reply.exit != exit_done) return lost(dead.ok() ? fail(Code::peer_lost, "{}", reply.error) : dead);

    std::vector<NodeResult> results;
    std::vector<std::string> folders;
    const uint64_t all_ended = clock_us() + end_us_max;
    for (uint32_t i = 0; i < nodes; ++i) {
        results.push_back({cluster.name(i), {}});
        while (!cluster.stopped(i)) {
            JobDetail own;
            if (cluster.client(i).job(job.summary.id, &own).exit != exit_done) break;
            if (!job_ended(own.summary.status.state) && clock_us() < all_ended && interrupts() == 0) {
                std::this_thread::sleep_for(std::chrono::milliseconds(20));
                continue;
            }
            results.back().status = own.summary.status;
            folders.push_back(own.folder);
            break;
        }
    }
    std::string with_model;   // the folder of a node that has it, alive or not
    JobDetail record = job;   // of the node whose results are kept
    for (uint32_t i = 0; i < nodes && with_model.empty(); ++i) {
        const bool has =
            results[i].status ? !results[i].status->model.empty() : !cluster.alive(i) && !model_kept(cluster.job_folder(i, id)).empty();
        if (!has) continue;
        with_model = cluster.job_folder(i, id);
        if (results[i].status) record.summary.status = *results[i].status;
    }
    Status kept = keep_results(with_model.empty() ? job.folder : with_model, keep, results_of_a_job);
    // As it is printed: the daemon may still write its own.
    record.folder = keep;
    if (!record.summary.status.model.empty()) record.summary.status.model = keep + "/final.h5";
    if (kept.ok()) kept = job_record_write(record);
    if (kept.ok() && with_model.empty())
        if (const std::string goes_on = keep_checkpoint(cluster, id, keep); !goes_on.empty()) fmt::print(stderr, "{}\n", goes_on);
    const bool done = job.summary.status.state == JobState::done;
    const std::string trace = profile.empty() && config.profile > 0 ? keep + "/profile.json" : profile;
    if (kept.ok() && done && !trace.empty()) kept = keep_profile(folders, trace);
    // The logs are shown only where the nodes' errors differ.
    const bool agreed = std::all_of(results.begin(), results.end(),
                                    [&](const NodeResult& each) { return each.status && each.status->error == job.summary.status.error; });
    if (!done && !agreed) fmt::print(stderr, "{}", cluster.last_lines(log_lines));
    cluster.stop(!kept.ok());
    if (kept.ok()) job.summary.status.model = with_model.empty() ? "" : keep + "/final.h5";
    int exit = print_result(options.json, job, results, kept.ok() ? keep : "");
    return kept.ok() ? exit : complain(exit_failed, "{}", kept.what);
}

}   // namespace

static int command_run(const Options& options, const std::string& job, uint32_t nodes, const std::string& isa, const std::string& keep,
                       const std::string& profile, const std::string& resume, bool force, bool allow_command) {
    Isa level;
    if (Status status = isa_parse(isa, &level); !status.ok()) return complain(exit_usage, "--{}", status.what);
    if (job.empty() && resume.empty()) return complain(exit_usage, "run: name a job file, or a checkpoint by --resume");
    JobConfig config;
    Model from;
    if (!resume.empty())
        if (Status status = checkpoint_check(resume, &from); !status.ok()) return complain(exit_usage, "--resume: {}", status.what);
    const std::string path = job.empty() ? resume : job == "-" ? "stdin" : job;   // for messages
    std::vector<JobMistake> wrong;
    if (job.empty() && !options.sets.empty()) return complain(exit_usage, "--set changes a job file: name it");
    if (!job.empty()) {
        if (Status status = job_input(job, options.sets, &config); !status.ok()) return complain(exit_usage, "{}", status.what);
    } else if (!job_parse(from.job, resume, from.base, &config, &wrong)) {
        return complain(exit_usage, "{}", wrong.front().text);
    } else if (config.attached() && !allow_command) {
        Sources sources;
        if (Status status = sources_read(folder_of(resume), &sources); !status.ok()) return complain(exit_usage, "{}", status.what);
        return complain(exit_usage, "{}", command_refused(config, resume, sources, folder_of(resume)).what);
    }
    if (!profile.empty() && config.profile == 0) {
        std::vector<JobMistake> mistakes;
        const std::string text = config.text + fmt::format("\n[profile]\nstep = {}\n", profile_step);
        if (!job_parse(text, path, config.base, &config, &mistakes)) {
            const std::string& wrong_text = mistakes.front().text;
            if (const size_t rule = wrong_text.find("profile.step: "); rule != wrong_text.npos)   // the job cannot be traced
                return complain(exit_usage, "--profile: {}", wrong_text.substr(rule));
            return complain(exit_usage, "--profile: {} has a [profile] without a step, or with step 0: give it one, or leave it out", path);
        }
    }
    JobCheck unused;
    const JobCheckOptions check{.nodes = nodes, .verify = false, .resumes = !resume.empty()};
    if (Status status = job_checked(path, options.sets, config, check, &unused); !status.ok())
        return complain(exit_usage, "{}", status.what);
    std::error_code error;
    if (!keep.empty())
        if (Status status = keep_check(keep, resume, resume.empty() ? nullptr : &from); !status.ok())
            return complain(exit_usage, "{}", status.what);
    if (!profile.empty())
        if (int exit = out_check(profile, {job, resume}, force); exit != exit_done) return exit;
    const std::string place = keep.empty() ? runs_folder() : keep;
    const bool made = !std::filesystem::exists(place, error);
    if (Status status = make_directories(place); !status.ok())   // checked before the training
        return complain(exit_usage, "--keep: {}", status.what);
    if (::access(place.c_str(), W_OK) != 0) return complain(exit_usage, "--keep {}: {}", place, std::strerror(errno));
    Fd lock;
    if (!keep.empty())
        if (Status status = keep_lock(keep, &lock); !status.ok()) return complain(exit_usage, "{}", status.what);
    if (!keep.empty())   // once more: another run may have ended since
        if (Status status = keep_check(keep, resume, resume.empty() ? nullptr : &from); !status.ok())
            return complain(exit_usage, "{}", status.what);
    // An existing trace stays until the new one replaces it.
    Status traceable;
    if (!profile.empty() && !std::filesystem::is_regular_file(profile, error)) traceable = file_write(profile, "");
    else if (!profile.empty() && ::access(std::filesystem::absolute(profile).parent_path().c_str(), W_OK) != 0)
        traceable = fail_sys(errno, "cannot write {}", profile);
    int exit = traceable.ok()
                   ? train(options, config, path, nodes, isa, keep, profile, resume, resume.empty() ? nullptr : &from, job.empty())
                   : complain(exit_usage, "--profile: {}", traceable.what);
    if (made) ::rmdir(place.c_str());                                                               // if nothing was kept
    if (!profile.empty() && std::filesystem::is_empty(profile, error)) ::unlink(profile.c_str());   // nor traced
    return exit;
}

// ---- command line --------------------------------------------------------------------------------------------------------------

void add_run(Cli& cli) {
    struct Flags {
        std::string path, isa = "auto", keep, profile, resume;
        uint32_t local = 0;
        bool force = false, allow_command = false;
    };
    Flags& f = cli.keep<Flags>();
    CLI::App* command = cli.add(jobs_group, "run", "train on this machine, on a private cluster that is removed afterwards", [&] {
        return command_run(cli.options, f.path, f.local, f.isa, f.keep, f.profile, f.resume, f.force, f.allow_command);
    });
    command->add_option("JOB.toml", f.path, "the job file (gradcastctl help job); -: from stdin");
    cli.set(command);
    command->add_option("--resume", f.resume, "a checkpoint to go on from; without JOB.toml by the job file that is in it");
    cli.allow_command(command, f.allow_command, "the job file in the checkpoint");
    command->add_option("--local", f.local, "how many daemons")->required()->check(CLI::Range(1, 64));
    command->add_option("--keep", f.keep, "folder for model, step records and log (default: $XDG_STATE_HOME/gradcast/NAME-ID)");
    command->add_option("--isa", f.isa, "instruction set of all daemons, as in gradcastd.toml")
        ->type_name(isa_type())
        ->capture_default_str();
    command->add_option("--profile", f.profile,
                        "write what all threads do in one step, the job's profile.step or step 10, to this file: a Chrome trace");
    cli.force(command, f.force);
}

}   // namespace gradcast
