// verify: computes steps of a job again in this process, and checks its transcript.
#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "nn/net.h"
#include "runtime/core/cpu_room.h"
#include "runtime/core/isa.h"
#include "runtime/core/log.h"
#include "runtime/core/run_folder.h"
#include "runtime/core/thread.h"
#include "runtime/job/audit/audit.h"
#include "tools/gradcastctl/client.h"
#include "tools/gradcastctl/commands.h"
#include "tools/gradcastctl/local.h"
#include "tools/gradcastctl/print.h"

namespace gradcast {
namespace {

struct VerifyOptions {
    std::string which;               // a job, its folder, or a transcript.json
    std::string steps, from, base;   // "401..500", a checkpoint, the folder of relative paths; may all be empty
    std::string sample, seed;        // "1%"; empty: all
    std::string key;                 // a key file for the transcript's HMAC
    std::string isa = "auto";
    uint32_t lanes = 0;   // 0: as many as CPUs
    bool allow_command = false;
};

bool parse_number(std::string_view text, uint64_t* number) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
    return error == std::errc() && end == text.data() + text.size();
}

/// "401..500" or "401".
bool parse_steps(std::string_view text, AuditStretch* stretch) {
    const size_t dots = text.find("..");
    return parse_number(text.substr(0, dots), &stretch->first) &&
           parse_number(dots == text.npos ? text : text.substr(dots + 2), &stretch->last) && stretch->first > 0 &&
           stretch->first <= stretch->last;
}

/// The folder that is meant; *transcript is a path where that alone is to be checked.
int find_folder(const Options& options, const std::string& which, std::string* folder, std::string* transcript) {
    std::error_code error;
    *folder = which;
    if (std::filesystem::is_directory(which, error)) return exit_done;
    if (std::filesystem::is_regular_file(which, error)) {
        *transcript = which;
        *folder = std::filesystem::absolute(which, error).parent_path();
        return exit_done;
    }
    if (which.find('/') != std::string::npos) return complain(exit_usage, "{}: there is no such folder", which);
    JobDetail job;
    Reply reply = Client(options.target).job(which, &job);
    if (reply.exit == exit_unreachable) return complain(reply.exit, "{} is no folder, and as a job: {}", which, reply.error);
    if (reply.exit != exit_done) return complain(reply.exit, "{}", reply.error);
    *folder = job.folder;
    return exit_done;
}

/// A folder for what the engine writes, which goes with it.
struct Scratch {
    ~Scratch() {
        std::error_code ignored;
        if (!path.empty()) std::filesystem::remove_all(path, ignored);
    }
    std::string path;
};

class Verification {
public:
    Verification(const Options& options, const VerifyOptions& verify) : options_(options), verify_(verify) {}

    int run() {
        AuditStretch wanted{0, 0};
        double share = 0;
        uint64_t seed = 0;
        if (!verify_.steps.empty() && !parse_steps(verify_.steps, &wanted))
            return complain(exit_usage, "--steps {}: two steps are needed, as 401..500", verify_.steps);
        if (!verify_.sample.empty() && !parse_share(verify_.sample, &share))
            return complain(exit_usage, "--sample {}: a share is needed, as 1%", verify_.sample);
        if (!verify_.seed.empty() && (share == 0 || !parse_number(verify_.seed, &seed)))
            return complain(exit_usage, "--seed {}: a number, beside --sample", verify_.seed);
        std::vector<ClusterKey> keys;
        if (!verify_.key.empty())
            if (Status status = cluster_keys_read(verify_.key, &keys); !status.ok()) return complain(exit_usage, "--key: {}", status.what);
        std::string path, transcript;
        if (int exit = find_folder(options_, verify_.which, &path, &transcript); exit != exit_done) return exit;
        if (Status status = audit_read(path, verify_.base, &folder_); !status.ok()) return complain(exit_failed, "{}", status.what);
        json_ = {{"folder", path}, {"notes", Json::array()}};
        note(folder_.notes);
        findings_ = folder_.findings;

        const bool alone = !transcript.empty();   // nothing is computed
        if (!alone && ::access((path + "/transcript.json").c_str(), F_OK) == 0) transcript = path + "/transcript.json";
        if (!transcript.empty()) check_transcript(transcript, keys);
        else if (!keys.empty()) return complain(exit_failed, "{}: it has no transcript.json for --key", path);
        if (alone) return finish();

        std::vector<AuditStretch> stretches{wanted};
        if (share > 0) {
            if (verify_.seed.empty()) random_bytes({reinterpret_cast<uint8_t*>(&seed), 4});   // short enough to type
            double missed = 0;
            stretches = audit_sample(folder_, share, seed, &missed);
            if (stretches.size() == 1 && missed == 0)
                note(
                    {fmt::format("{}: no checkpoint divides its steps, so the sample is all of them; the job's folder at a node keeps "
                                 "checkpoints for audits (job.audit_every), the folder of run --keep does not",
                                 path)});
            json_["sample"] = {{"seed", seed}, {"stretches", stretches.size()}, {"missed", missed}};
            sample_ = fmt::format("{} stretch{} chosen by --seed {}: a single false step was missed with a probability of {:.1f}%\n",
                                  stretches.size(), stretches.size() == 1 ? "" : "es", seed, missed * 100);
        }
        if (int exit = choose_isa(); exit != exit_done) return exit;
        json_["stretches"] = Json::array();
        const size_t of_transcript = findings_.size();
        for (size_t i = 0; i < stretches.size() && findings_.size() == of_transcript; ++i)
            if (int exit = compute(stretches[i]); exit != exit_done) return exit;
        return finish();
    }

private:
    void note(const std::vector<std::string>& notes) {
        for (const std::string& each : notes) {
            fmt::print(stderr, "{}\n", each);
            json_["notes"].push_back(each);
        }
    }
    /// A line of what is found to be right.
    template <typename... Args>
    void say(fmt::format_string<Args...> format, Args&&... args) {
        if (!options_.json) fmt::print(format, std::forward<Args>(args)...);
    }
    int finish() {
        for (const std::string& each : findings_) fmt::print(stderr, "gradcastctl: {}\n", each);
        if (findings_.empty() && !sample_.empty()) say("{}", sample_);
        if (options_.json) {
            json_["findings"] = findings_;
            fmt::print("{}\n", json_text(json_, 2));
        }
        return findings_.empty() ? exit_done : exit_failed;
    }
    void check_transcript(const std::string& path, const std::vector<ClusterKey>& keys) {
        Transcript transcript;
        if (Status status = transcript_read(path, &transcript); !status.ok()) {
            findings_.emplace_back(status.what);
            return;
        }
        const std::vector<std::string> differs = audit_transcript(folder_, transcript, keys);
        findings_.insert(findings_.end(), differs.begin(), differs.end());
        std::string signer;
        if (!transcript.hmac.empty())
            signer = keys.empty() ? fmt::format(", its HMAC of key {} not checked (--key FILE)", transcript.key)
                                  : fmt::format(", HMAC of key {}", transcript.key);
        json_["transcript"] = {{"id", transcript.id},
                               {"steps", transcript.steps},
                               {"digest", transcript.digest},
                               {"key", transcript.key},
                               {"hmac_checked", !keys.empty()}};
        if (differs.empty())
            say("transcript of job {:.8} verified: chain over steps {}..{}{}\n", transcript.id, transcript.first, transcript.steps, signer);
    }

    /// Before anything computes: the one that the job's nodes had, where this CPU has it.
    int choose_isa() const {
        Isa isa;
        if (verify_.isa == "auto") {
            if (isa_parse(folder_.kernels, &isa).ok()) (void)nn_isa(isa);
            return exit_done;
        }
        Status status = isa_parse(verify_.isa, &isa);
        if (status.ok()) status = nn_isa(isa);
        return status.ok() ? exit_done : complain(exit_usage, "--{}", status.what);
    }

    int compute(const AuditStretch& stretch) {
        Scratch scratch;
        if (Status status = run_folder_make(&scratch.path); !status.ok()) return complain(exit_failed, "{}", status.what);
        std::atomic<bool> stop{false};
        const bool terminal = ::isatty(STDERR_FILENO) != 0;
        AuditConfig config{.first = stretch.first,
                           .last = stretch.last,
                           .from = verify_.from,
                           .scratch = scratch.path,
                           .lanes = verify_.lanes > 0 ? verify_.lanes : cpu_room().threads(),
                           .commands = verify_.allow_command,
                           .stop = &stop,
                           .progress = [&](uint64_t step, uint64_t last) {
                               if (terminal && step > 0) fmt::print(stderr, "\rstep {} of {} ", step, last);
                           }};
        (void)interrupts();   // caught from here on, so that the folder goes
        std::atomic<bool> done{false};
        Thread watch;
        const Status watched = watch.start([&] {
            for (; !done.load(std::memory_order_relaxed); std::this_thread::sleep_for(std::chrono::milliseconds(20)))
                stop.store(interrupts() > 0, std::memory_order_relaxed);
        });
        if (!watched.ok()) return complain(exit_failed, "{}", watched.what);
        AuditResult result;
        const Status status = audit_stretch(folder_, config, &result);
        done.store(true, std::memory_order_relaxed);
        watch.join();
        if (terminal) fmt::print(stderr, "\r\033[K");
        note(result.notes);
        if (!status.ok() && findings_.empty()) return complain(exit_failed, "{}", status.what);
        if (!status.ok()) {   // reported beside what was found
            findings_.emplace_back(status.what);
            return exit_done;
        }
        json_["stretches"].push_back(
            {{"first", result.first}, {"last", result.last}, {"from", result.from}, {"compared", result.compared}});
        if (!result.finding.empty()) findings_.push_back(result.finding);
        else say("steps {}..{} verified: {} digests equal\n", result.first, result.last, result.compared);
        return exit_done;
    }

    const Options& options_;
    const VerifyOptions& verify_;
    AuditFolder folder_;
    Json json_;
    std::vector<std::string> findings_;
    std::string sample_;
};

}   // namespace

static int command_verify(const Options& options, const VerifyOptions& verify) {
    log_level(Level::error);
    return Verification(options, verify).run();
}

// ---- command line --------------------------------------------------------------------------------------------------------------

void add_verify(Cli& cli) {
    auto& f = cli.keep<VerifyOptions>();
    CLI::App* command = cli.add(jobs_group, "verify", "compute steps of a job again, on this machine alone, and compare every digest",
                                [&] { return command_verify(cli.options, f); });
    command->add_option("JOB", f.which, "a job, the folder of one, or a transcript.json, which is then checked without computing")
        ->required();
    CLI::Option* steps = command->add_option("--steps", f.steps, "which: A..B (default: all that steps.jsonl has)");
    CLI::Option* from = command->add_option("--from", f.from, "checkpoint to begin with (default: the nearest one before A)");
    command->add_option("--sample", f.sample, "a share, as 1%, of the stretches between checkpoints, chosen by chance")
        ->excludes(steps)
        ->excludes(from);
    command->add_option("--seed", f.seed, "of --sample: choose as before (default: by chance; it is printed)");
    command->add_option("--lanes", f.lanes, "threads that compute (default: one a CPU)")->check(CLI::Range(1, 1024));
    command->add_option("--isa", f.isa, "instruction set (default: the one that the steps name, where this CPU has it)")
        ->type_name(isa_type());
    command->add_option("--base", f.base, "folder of the job file's relative paths (default: as the job had it)");
    cli.allow_command(command, f.allow_command, "the folder's job.toml");
    command->add_option("--key", f.key, "key file of the cluster: check the transcript's HMAC, too");
    command->footer(
        "exit code 1: a step, the model, a checkpoint or the transcript differs or is damaged, and is named\n"
        "the folder is only read; checkpoints lie at all nodes of a job, and may be copied into one folder");
}

}   // namespace gradcast
