// What the files of gradcastctl share: the flags that all commands take, exit codes, and one function a command.
//
// main.cc     flags, and which function they call
// target.*    which daemon is asked: its socket, or its host and a key; contexts
// client.*    requests to a daemon, watching a job
// print.*     numbers with units, tables, the progress line, the result of a job
// top.cc      top: jobs and nodes in a terminal
// report.cc   report: a page that compares runs, of run_record.* and plot.*
// jobs.cc     submit, resume, list, describe, watch, logs, cancel      nodes.cc  nodes, drain, undrain, force-view
// local.*     a private cluster on this machine;  run.cc  the command that trains on it
// check.cc    check, and what run and submit check before
// data.cc     import, data inspect;  models.cc  evaluate, predict, export;  verify.cc  verify;  out_file.*  which files they may write
#pragma once
#include <fmt/format.h>

#include <string>
#include <vector>

#include "datasets/image_sample.h"
#include "datasets/shard.h"
#include "tools/gradcastctl/target.h"

namespace gradcast {

enum Exit : int { exit_done = 0, exit_failed = 1, exit_usage = 2, exit_unreachable = 3 };

struct Options {
    Target target;                   // the daemon that is asked
    std::vector<Target> others;      // other daemons, where a job that is followed may go on
    std::vector<std::string> sets;   // --set, of job files
    bool json = false;               // -o json: the same content as the text, on stdout
};

/// -o json, once the command line is read; for complain() alone.
inline bool errors_as_json = false;

/// Prints "gradcastctl: text" on stderr, once, where the error is found; callers pass `exit` on.  With -o json also {"error": text, "exit":
/// code} on stdout.
int complain_text(Exit exit, const std::string& text);
template <typename... Args>
int complain(Exit exit, fmt::format_string<Args...> format, Args&&... args) {
    return complain_text(exit, fmt::format(format, std::forward<Args>(args)...));
}

// Each returns the exit code.  force: a file that exists may be replaced; see out_check().
/// Of a job file: what needs no cluster; shows its net, steps and memory.
int command_check(const Options& options, const std::string& path);
int command_submit(const Options& options, const std::string& path, const std::string& nodes, bool wait);
/// path: of a job file that takes the place of the job's; may be empty.
int command_resume(const Options& options, const std::string& job, const std::string& path, const std::string& nodes, bool wait,
                   bool force);
/// states: of the jobs that are shown; empty: all.
int command_list(const Options& options, const std::vector<std::string>& states);
/// Until all have ended; a line for each.  exit_failed where one is not done.
int command_wait(const Options& options, const std::vector<std::string>& which);
int command_describe(const Options& options, const std::string& job);
int command_watch(const Options& options, const std::string& job);
int command_logs(const Options& options, const std::string& job, bool follow);
int command_delete(const Options& options, const std::vector<std::string>& which);
int command_cancel(const Options& options, const std::string& job);
int command_nodes(const Options& options);
int command_drain(const Options& options, const std::string& node, bool cancel);
int command_undrain(const Options& options, const std::string& node);
int command_add_node(const Options& options, const std::string& job, const std::string& node);
int command_force_view(const Options& options, const std::string& job, const std::string& dead);
/// Until q or Ctrl-C; once where stdout is no terminal.
int command_top(const Options& options, const std::string& state);
int command_doctor(const Options& options);
/// A new key in a new file: a client's, of this name and role, or, without a name, the cluster's.
int command_key_new(const Options& options, const std::string& path, const std::string& client, const std::string& role);
int command_contexts(const Options& options);
int command_bench(const Options& options, const std::string& nodes, std::vector<std::string> arguments);
/// `job`, its file, may be empty where `resume` names a checkpoint to go on from.
int command_run(const Options& options, const std::string& job, uint32_t nodes, const std::string& isa, const std::string& keep,
                const std::string& profile, const std::string& resume, bool force);
/// test: of ImportConfig::test, as "10%"; may be empty.
int command_import(const Options& options, ImportConfig config, const std::string& test);
const char* shard_help();
int command_inspect(const Options& options, const std::vector<std::string>& patterns, const std::string& sheet, bool force);
int command_manifest(const Options& options, const std::string& path, const std::vector<std::string>& patterns, bool force);
int command_evaluate(const Options& options, const std::string& which, const std::string& data);
/// images: files, and folders of files.  A bad image is named, the others are printed all the same, and the exit code is exit_failed.
int command_predict(const Options& options, const std::string& which, const std::vector<std::string>& images, uint32_t top,
                    const ImageRules& rules);
struct VerifyOptions {
    std::string which;               // a job, its folder, or a transcript.json
    std::string steps, from, base;   // "401..500", a checkpoint, the folder of relative paths; may all be empty
    std::string sample, seed;        // "1%"; empty: all
    std::string key;                 // a key file for the transcript's HMAC
    std::string isa = "auto";
    uint32_t lanes = 0;   // 0: as many as CPUs
};
int command_verify(const Options& options, const VerifyOptions& verify);
/// A page of HTML that compares jobs or folders of runs.  data: of the evaluation; empty: the jobs' own test data.
int command_report(const Options& options, const std::vector<std::string>& which, const std::string& out, const std::string& data,
                   bool evaluate, bool force);
/// `format` is one of export_formats(), or empty: as `out` ends.
int command_export(const Options& options, const std::string& which, const std::string& out, const std::string& format, bool force);
const std::vector<std::string>& export_formats();

}   // namespace gradcast
