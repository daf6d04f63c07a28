// gradcastctl: command line, and the function of each command.
#include <fmt/format.h>

#include <csignal>
#include <functional>
#include <iterator>
#include <utility>
#include <vector>

#include "datasets/import.h"
#include "nn/presets.h"
#include "runtime/control/cli.h"
#include "runtime/control/cli_docs.h"
#include "runtime/core/isa.h"
#include "runtime/core/version.h"
#include "runtime/job/job_file.h"
#include "tools/gradcastctl/client.h"
#include "tools/gradcastctl/ctl.h"
#include "tools/gradcastctl/local.h"

using namespace gradcast;

namespace {

int command_help(const CLI::App& app, const std::string& topic) {
    auto named = app.get_subcommands([&](const CLI::App* each) { return each->get_name() == topic; });
    if (topic == "job") fmt::print("{}", job_help());
    else if (topic == "shard") fmt::print("{}", shard_help());
    else if (topic == "presets") fmt::print("{}", presets_help());
    else if (topic.empty()) fmt::print("{}", app.get_formatter()->make_help(&app, app.get_name(), CLI::AppFormatMode::Normal));
    else if (!named.empty()) fmt::print("{}", named.front()->help("gradcastctl"));
    else
        return complain(exit_usage,
                        "there is no help on {}: name a command, job for the job file, presets for nets, or shard for data sets", topic);
    return exit_done;
}

int command_man(const CLI::App& app, const std::string& page) {
    if (page == "gradcast-job")
        fmt::print("{}",
                   man_page(page, "job file of gradcast: what is trained, and how",
                            {"TOML.  A key without a default is required, or excludes another one as its text says.",
                             "gradcastctl submit and run check the whole file first, and name every mistake with its line.",
                             "A page and an example for each algorithm are in share/doc/gradcast/tools/jobs: ma.md, ma.toml, and so on."},
                            job_keys(), "gradcastctl(1)"));
    else fmt::print("{}", man_page(app, 1, "gradcastd(8), gradcast-bench(1), gradcast-job(5), gradcastd.toml(5)"));
    return exit_done;
}

/// For completion: the ids of the jobs that the daemon knows, as `list` shows them.
constexpr char jobs_command[] = "gradcastctl list 2>/dev/null | sed \"1d;s/ .*//\"";

std::vector<std::string> isa_words() {
    std::vector<std::string> words = {"auto"};
    for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::amx}) words.emplace_back(isa_name(isa));
    return words;
}

/// As --help shows the commands.
void group_commands(CLI::App& app) {
    const std::pair<const char*, std::vector<const char*>> groups[] = {
        {"Jobs",
         {"run", "check", "submit", "resume", "list", "wait", "describe", "watch", "logs", "delete", "cancel", "verify", "job",
          "force-view"}},
        {"Cluster", {"top", "doctor", "nodes", "drain", "undrain", "bench", "key", "contexts"}},
        {"Data and models", {"evaluate", "predict", "report", "export", "import", "data"}},
        {"Help", {"help", "completion"}}};
    for (const auto& [group, names] : groups)
        for (const char* name : names) app.get_subcommand(name)->group(group);
}

constexpr char size_help[] = "resize the short side to so many pixels and cut a square out of the middle";
constexpr char exif_help[] = "as they are stored, not turned as their EXIF orientation says";

/// Whether a wrong command line asks for JSON.
bool asks_json(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i], next = i + 1 < argc ? argv[i + 1] : "";
        if (word == "-ojson" || word == "--output=json" || ((word == "-o" || word == "--output") && next == "json")) return true;
    }
    return false;
}

int run(int argc, char** argv) {
    CLI::App app{"trains neural networks on many nodes, exactly", "gradcastctl"};
    app.require_subcommand(1);
    app.fallthrough();   // the flags below stand before or after the command
    app.set_version_flag("--version", std::string("gradcastctl ") + version_text);
    Options options;
    std::string output = "text", path, job, nodes, keep, model, data, sheet, out, format, topic, page, shell, profile, resume, isa = "auto";
    uint32_t local = 0;
    bool wait = false, follow = false, force = false;
    std::vector<std::string> shards;
    ImportConfig import;
    std::string test;   // --test of import
    app.add_option("-o,--output", output, "text, or json: the same content for programs")
        ->check(CLI::IsMember({"text", "json"}))
        ->capture_default_str();
    TargetFlags flags;
    auto* on_socket =
        app.add_option("--socket", flags.sockets,
                       "control socket of the daemon to ask; given more than once: watch and --wait go on at the next one where a "
                       "daemon goes away")
            ->allow_extra_args(false)
            ->default_str(socket_default());
    auto* on_host =
        app.add_option("--host", flags.hosts,
                       fmt::format("HOST[:PORT] of the daemon to ask, as `control` in its gradcastd.toml says (port {}); more than "
                                   "once as --socket",
                                   control_port))
            ->allow_extra_args(false)
            ->excludes(on_socket);
    app.add_option("--key", flags.key, "key file for --host: a client key, or the cluster key");
    app.add_option("--context", flags.context,
                   "the daemon that has this name in contexts.toml (default: $GRADCAST_CONTEXT, if that is set)")
        ->excludes(on_socket)
        ->excludes(on_host);
    app.footer(
        "exit codes: 0 done, 1 failed or interrupted, 2 wrong command line or job file, 3 no daemon answers\nthe job file: gradcastctl "
        "help job");

    std::vector<std::pair<CLI::App*, std::function<int()>>> commands;
    auto add = [&](const char* name, const char* help, std::function<int()> action) {
        commands.emplace_back(app.add_subcommand(name, help), std::move(action));
        return commands.back().first;
    };
    auto job_argument = [&](CLI::App* command) {
        command->add_option("JOB", job, "its id, 4 or more of its first digits, or its name")->required();
    };
    auto file_argument = [&](CLI::App* command) {
        command->add_option("JOB.toml", path, "the job file (gradcastctl help job); -: from stdin")->required();
    };
    auto force_flag = [&](CLI::App* on) { on->add_flag("--force", force, "replace the file that is written, where it exists"); };
    auto set_option = [&](CLI::App* command) {
        command->add_option("--set", options.sets, "another value in the job file, as optimiser.lr=0.01; more than once")
            ->allow_extra_args(false);
    };

    CLI::App* command = add("run", "train on this machine, on a private cluster that is removed afterwards",
                            [&] { return command_run(options, path, local, isa, keep, profile, resume, force); });
    command->add_option("JOB.toml", path, "the job file (gradcastctl help job); -: from stdin");
    set_option(command);
    command->add_option("--resume", resume, "a checkpoint to go on from; without JOB.toml by the job file that is in it");
    command->add_option("--local", local, "how many daemons")->required()->check(CLI::Range(1, 64));
    command->add_option("--keep", keep, "folder for model, step records and log (default: $XDG_STATE_HOME/gradcast/NAME-ID)");

    command->add_option("--isa", isa, "instruction set of all daemons, as in gradcastd.toml")
        ->type_name(type_of_words(isa_words()))
        ->capture_default_str();
    command->add_option("--profile", profile,
                        "write what all threads do in one step, the job's profile.step or step 10, to this file: a Chrome trace");
    force_flag(command);

    command = add("check", "check a job file and its data without a cluster; show its net, steps and memory",
                  [&] { return command_check(options, path); });
    file_argument(command);
    set_option(command);
    command->footer("exit code 2: a mistake, named with its line\nthe data are read and compared with their digests, as each node does");

    command = add("submit", "train on a cluster", [&] { return command_submit(options, path, nodes, wait); });
    file_argument(command);
    set_option(command);
    command->add_option("--nodes", nodes, "how many, or which: a,b,c (default: all that are alive)");
    command->add_flag("--wait", wait, "show progress and, at its end, the result");

    command = add("resume", "let a job that has ended go on from its newest checkpoint",
                  [&] { return command_resume(options, job, path, nodes, wait, force); });
    job_argument(command);
    command->add_option("JOB.toml", path, "a changed job file: other epochs, steps, exchange, deadline, … (default: the job's own)");
    set_option(command);
    command->add_option("--nodes", nodes, "how many, or which: a,b,c (default: all that are alive)");
    command->add_flag("--wait", wait, "show progress and, at its end, the result");
    command->add_flag("--force", force, "also where nodes that cannot be asked may go on with the job: they are dead");

    VerifyOptions verify;
    command = add("verify", "compute steps of a job again, on this machine alone, and compare every digest",
                  [&] { return command_verify(options, verify); });
    command->add_option("JOB", verify.which, "a job, the folder of one, or a transcript.json, which is then checked without computing")
        ->required();
    CLI::Option* steps = command->add_option("--steps", verify.steps, "which: A..B (default: all that steps.jsonl has)");
    CLI::Option* from = command->add_option("--from", verify.from, "checkpoint to begin with (default: the nearest one before A)");
    command->add_option("--sample", verify.sample, "a share, as 1%, of the stretches between checkpoints, chosen by chance")
        ->excludes(steps)
        ->excludes(from);
    command->add_option("--seed", verify.seed, "of --sample: choose as before (default: by chance; it is printed)");
    command->add_option("--lanes", verify.lanes, "threads that compute (default: one a CPU)")->check(CLI::Range(1, 1024));
    command->add_option("--isa", verify.isa, "instruction set (default: the one that the steps name, where this CPU has it)")
        ->type_name(type_of_words(isa_words()));
    command->add_option("--base", verify.base, "folder of the job file's relative paths (default: as the job had it)");
    command->add_option("--key", verify.key, "key file of the cluster: check the transcript's HMAC, too");
    command->footer(
        "exit code 1: a step, the model, a checkpoint or the transcript differs or is damaged, and is named\n"
        "the folder is only read; checkpoints lie at all nodes of a job, and may be copied into one folder");

    std::vector<std::string> states, which;
    command = add("list", "the jobs of this daemon's node, and where local runs are", [&] { return command_list(options, states); });
    command->add_option("--state", states, "only jobs that are so: running,failed")
        ->delimiter(',')
        ->check(CLI::IsMember({"preparing", "running", "done", "failed", "cancelled"}));
    command = add("wait", "wait for the end of jobs; exit code 1: one of them is not done", [&] { return command_wait(options, which); });
    command->add_option("JOB", which, "ids, 4 or more of their first digits, or names")->required();
    command = add("describe", "all about a job, or what a local run has kept", [&] { return command_describe(options, job); });
    command->add_option("JOB", job, "id, 4 or more of its first digits, or name; or the folder of a run, which list and run tell")
        ->required();
    job_argument(add("watch", "show a job's progress and, at its end, the result", [&] { return command_watch(options, job); }));
    command = add("logs", "a job's log at this node", [&] { return command_logs(options, job, follow); });
    job_argument(command);
    command->add_flag("-f,--follow", follow, "go on until the job has ended");
    command = add("delete", "remove jobs that have ended, with model, checkpoints and log at this node",
                  [&] { return command_delete(options, which); });
    command->add_option("JOB", which, "ids, 4 or more of their first digits, or names that one job has")->required();
    job_argument(add("cancel", "end a job", [&] { return command_cancel(options, job); }));
    std::string state;
    command = add("top", "jobs and nodes, refreshed each second; where stdout is no terminal, or with -o json: once",
                  [&] { return command_top(options, state); });
    command->add_option("--state", state, "only jobs that are so")
        ->check(CLI::IsMember({"preparing", "running", "done", "failed", "cancelled"}));
    command->footer("keys: q or Ctrl-C leaves, n and p turn pages");
    add("doctor", "look for what stands in the way of jobs, here and between the nodes; exit code 1: an error was found",
        [&] { return command_doctor(options); });
    add("nodes", "the members of the cluster as this daemon sees them", [&] { return command_nodes(options); });

    std::string node, dead;
    bool cancel = false;
    auto node_argument = [&](CLI::App* on) { on->add_option("NODE", node, "its name")->required(); };
    command = add("drain", "a node takes no new jobs and leaves those that go on without it: before a restart, say",
                  [&] { return command_drain(options, node, cancel); });
    node_argument(command);
    command->add_flag("--cancel", cancel, "cancel the jobs that cannot go on without it (they keep a checkpoint)");
    command->footer("waits until the node has no job; exit code 1: jobs need it, and are named");
    node_argument(add("undrain", "a node takes jobs again", [&] { return command_undrain(options, node); }));
    CLI::App* on_job = app.add_subcommand("job", "change a job that runs");
    on_job->require_subcommand(1);
    command = on_job->add_subcommand("add-node", "a node joins a job with job.survive while it runs (not over RDMA)");
    commands.emplace_back(command, [&] { return command_add_node(options, job, node); });
    job_argument(command);
    node_argument(command);
    command = add("force-view", "tell a job that a node is dead, where the others cannot know it and wait",
                  [&] { return command_force_view(options, job, dead); });
    job_argument(command);
    command->add_option("--dead", dead, "name of the node, which you have seen to be dead: it must not compute any more")->required();

    command = add("bench", "measure an exchange: runs gradcast-bench at the nodes while they have no job",
                  [&] { return command_bench(options, nodes, app.get_subcommand("bench")->remaining()); });
    command->add_option("--nodes", nodes, "how many, or which: a,b,c (default: all that are alive)");
    command->prefix_command()->fallthrough(false);   // the rest is for gradcast-bench, flags included
    command->footer(
        "then a command of gradcast-bench and its options, as: allreduce --exchange ring,coded-rs --size 4M\n"
        "the daemons add key, interface and addresses; 'gradcastctl cancel bench' ends it");

    auto model_argument = [&](CLI::App* of, const char* others) {
        of->add_option("MODEL", model, fmt::format("final.h5, the folder that has it, {}or the job whose model it is", others))->required();
    };
    constexpr char every_file[] = "a checkpoint, a .safetensors file of gradcastctl export, ";
    command = add("evaluate", "accuracy of a model, by class, with the confusion matrix; on this machine",
                  [&] { return command_evaluate(options, model, data); });
    model_argument(command, every_file);
    command->add_option("--data", data, "shards: a path or a pattern in quotes")->required();

    std::vector<std::string> images;
    ImageRules rules;
    uint32_t top = 1;
    command = add("predict", "the class that a model sees in each image, with its probability; on this machine",
                  [&] { return command_predict(options, model, images, top, rules); });
    model_argument(command, every_file);
    command->add_option("IMAGE", images, "PNG and JPEG files, and folders of such")->required();
    command->add_option("--top", top, "how many classes of each image, the most probable ones")
        ->capture_default_str()
        ->check(CLI::Range(uint32_t{1}, uint32_t{65536}));
    command->add_option("--size", rules.size, size_help)->check(CLI::Range(uint32_t{1}, import_side_max));
    command->add_flag_callback(
        "--no-exif", [&] { rules.exif = false; }, exif_help);
    command->footer(
        "a line for each image and class: path, class and probability, divided by tabs\n"
        "    (of a net that ends with squared_loss: its output in place of the probability)\n"
        "an image becomes what gradcastctl import images makes of it, with as many planes as the model takes\n"
        "exit code 1: an image cannot be used, and is named; the others are printed");

    bool quick = false;
    command = add("report", "write a page of HTML that compares jobs: by samples, seconds and bytes, by class, by settings",
                  [&] { return command_report(options, which, out, data, !quick, force); });
    command->add_option("JOB", which, "jobs of this daemon, folders of `run --keep`, or WORK folders of gradcastd under a launcher")
        ->required();
    command->add_option("--out", out, "the page; it needs nothing beside it")->required();
    command->add_option("--data", data, "shards for accuracy by class (default: each job's own test data)");
    command->add_flag("--quick", quick, "leave out accuracy by class, which evaluates each model on this machine");
    force_flag(command);

    command = add("export", "write a model for other programs", [&] { return command_export(options, model, out, format, force); });
    model_argument(command, "");
    command->add_option("FILE", out, fmt::format("output file; its ending is the format, one of {}", fmt::join(export_formats(), ", ")))
        ->required();
    command->add_option("--format", format, "the format, where the ending is another")->check(CLI::IsMember(export_formats()));
    force_flag(command);

    command = add("import", "write a data set as shards", [&] { return command_import(options, import, test); });
    command->add_option("KIND", import.kind, "what the source is")->required()->type_name(type_of_words(import_kinds()));
    command->add_option("--from", import.from,
                        "folder of the original files, or CIFAR's archive (default of fashion-mnist: where Debian's package puts it)");
    command->add_option("--out", import.out, "folder for train.h5 and test.h5")->required();
    command->add_flag("--compress{6}", import.compress, "deflated chunks, --compress=9 for the smallest")->check(CLI::Range(1, 9));
    command->add_option("--samples", import.samples, "of ridge: how many to train on")
        ->capture_default_str()
        ->check(CLI::Range(uint64_t{1}, ridge_samples_max));
    command->add_option("--seed", import.seed, "of ridge and --test: which random numbers")->capture_default_str();
    command->add_option("--test", test, "a share of each class to test on, as 10%, where the source has no samples to test on");
    command->add_option("--size", import.size, fmt::format("of images: {}", size_help))->check(CLI::Range(uint32_t{1}, import_side_max));
    command->add_flag_callback(
        "--no-exif", [&] { import.exif = false; }, fmt::format("of images: {}", exif_help));
    command->add_flag("--skip-bad", import.skip_bad, "of images: leave out the files that cannot be read, and name them");
    command->add_flag("--force", import.force, "replace shards that are there");
    command->footer(
        "images: a folder of PNG and JPEG for each class; or train/ (training/) and test/ (testing/, val/, valid/, validation/) of such,\n"
        "    in any case.  Pixels are the values that a file holds, as OpenCV reads them: of 16 bits the high byte; gamma and colour\n"
        "    profiles are not applied; transparency is dropped.  What was so is counted and named.\n"
        "idx: {train,t10k}-{images-idx3,labels-idx1}-ubyte, as mnist has them, also with a dot for a hyphen, test for t10k, or a name\n"
        "    before it, as EMNIST has; .gz or .xz\n"
        "npy: images.npy, uint8 [N, H, W], [N, C, H, W] or [N, H, W, C]; labels.npy, integers [N]; test-images.npy and test-labels.npy\n"
        "ridge: made, it needs no --from");

    CLI::App* on_data = app.add_subcommand("data", "look at data sets");
    on_data->require_subcommand(1);
    command = on_data->add_subcommand("inspect", "show what shards hold, and verify every digest");
    commands.emplace_back(command, [&] { return command_inspect(options, shards, sheet, force); });
    command->add_option("SHARDS", shards, "paths or patterns, or a manifest")->required();
    command->add_option("--sheet", sheet, "write a contact sheet to this PNG");
    force_flag(command);
    command = on_data->add_subcommand("manifest", "make shards one data set: their paths, samples and digest in a TOML file");
    commands.emplace_back(command, [&] { return command_manifest(options, out, shards, force); });
    command->add_option("OUT", out, "the manifest, a name that ends in .toml")->required();
    command->add_option("SHARDS", shards, "paths or patterns, in the order that the samples shall have")->required();
    force_flag(command);

    std::string key_path, client, role;
    CLI::App* on_key = app.add_subcommand("key", "make keys");
    on_key->require_subcommand(1);
    command = on_key->add_subcommand("new", "write a new key into a new file, mode 0600: a client's, or the cluster's");
    commands.emplace_back(command, [&] { return command_key_new(options, key_path, client, role); });
    command->add_option("FILE", key_path, "the file, which must not exist")->required();
    command->add_option("--client", client, "name of the client; without it: a cluster key");
    command->add_option("--role", role, "what it may do: view looks, submit also begins, resumes and cancels jobs, admin does everything")
        ->check(CLI::IsMember({"view", "submit", "admin"}));
    command = add("contexts", "the daemons that have names for --context", [&] { return command_contexts(options); });
    command->footer(
        "the file: ~/.config/gradcast/contexts.toml, or below $XDG_CONFIG_HOME\n"
        "    [lab]                gradcastctl --context lab nodes\n"
        "    host = \"node1.lab\"   HOST[:PORT], or a list of such\n"
        "    key = \"lab.key\"      relative to the file\n"
        "or, in place of host and key, socket = \"PATH\"");

    command = add("help", "help on a command, on the job file, on presets, or on shards", [&] { return command_help(app, topic); });
    CLI::Option* topics = command->add_option("TOPIC", topic, "a command, job, presets, or shard");

    command = add("completion", "print completion for a shell: source <(gradcastctl completion bash)", [&] {
        fmt::print("{}", completion(app, shell, {{"JOB", jobs_command}}));
        return exit_done;
    });
    command->add_option("SHELL", shell, "bash, zsh or fish")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
    command = add("man", "print a man page", [&] { return command_man(app, page); });
    command->group("")->add_option("PAGE", page)->required()->check(CLI::IsMember({"gradcastctl", "gradcast-job"}));

    group_commands(app);
    std::vector<std::string> words = {"job", "presets", "shard"};
    for (const CLI::App* each : app.get_subcommands([](const CLI::App* each) { return !each->get_group().empty(); }))
        if (each->get_name() != "job") words.push_back(each->get_name());
    topics->type_name(type_of_words(words));

    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        const int exit = cli_exit(app, error);
        if (exit != exit_done && asks_json(argc, argv)) fmt::print("{}\n", json_text(Json{{"error", error.what()}, {"exit", exit}}, 2));
        return exit;
    }
    options.json = errors_as_json = output == "json";
    std::vector<Target> targets;
    if (const Status found = targets_find(flags, &targets); !found.ok()) targets = {{.wrong = found.what}};   // told when it is asked
    options.target = std::move(targets.front());
    options.others.assign(std::make_move_iterator(targets.begin() + 1), std::make_move_iterator(targets.end()));
    interrupts_end();
    for (const auto& [each, action] : commands)
        if (each->parsed()) return action();
    return exit_usage;   // not reached: require_subcommand(1)
}

}   // namespace

int main(int argc, char** argv) {
    std::signal(SIGPIPE, SIG_IGN);   // a closed connection is an error of the request
    try {
        return run(argc, argv);
    } catch (const std::exception& error) {   // unexpected ones, of CLI11, JSON or the file system
        return complain(exit_failed, "{}", error.what());
    }
}
