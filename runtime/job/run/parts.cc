#include "runtime/job/run/parts.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "algos/worker_sum.h"
#include "datasets/resident.h"
#include "datasets/verified.h"
#include "nn/averaged.h"
#include "nn/evaluation.h"
#include "nn/frozen.h"
#include "nn/graph/slices.h"
#include "nn/measure.h"
#include "runtime/core/clock.h"
#include "runtime/core/crypto.h"
#include "runtime/core/digest.h"
#include "runtime/job/file/cells.h"
#include "runtime/job/model/safetensors.h"
#include "runtime/job/run/job_protocol.h"
#include "runtime/job/run/kernels_memo.h"
#include "runtime/job/run/memory_check.h"
#include "runtime/job/run/probe_block.h"
#include "runtime/job/run/stages.h"

namespace gradcast {
namespace {

constexpr uint64_t workers_of_line_max = 1000;

Status stopped(const EngineConfig& config) {
    const bool stop = config.stop && config.stop->load(std::memory_order_relaxed);
    return stop ? fail(Code::cancelled, "stopped while the job is prepared") : Status{};
}

/// Of a net of these samples, without layers.
NetSpec net_of(const DataInfo& info) {
    return {.C = info.C,
            .H = info.H,
            .W = info.W,
            .classes = info.classes,
            .target_scale = info.target_scale,
            .targets = info.targets,
            .target_element = info.target_element,
            .element = info.element,
            .vocabulary = info.vocabulary,
            .ignore = info.ignore};
}

Status net_spec(const JobConfig& job, const DataInfo& info, NetSpec* spec) {
    *spec = net_of(info);
    spec->pad = job.net_pad;
    spec->layers = job.layers;
    if (job.preset.empty()) return {};
    if (info.targets > 0 && info.regression()) spec->classes = info.targets;   // outputs of the net
    GC_TRY(preset_layers(job.preset, job.size, spec));
    spec->classes = info.classes;
    return {};
}

}   // namespace

PerVector<std::span<std::byte>> writable_state(const Computer& computer) {
    return {{std::as_writable_bytes(computer.net->parameters()),
             std::as_writable_bytes(computer.optimiser->state()),
             std::as_writable_bytes(computer.codec->exponents()),
             {}}};
}

void lane_start(uint32_t lane, const std::vector<uint32_t>& cpus) {
    yield_to_network();
    if (cpus.empty()) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpus[lane % cpus.size()], &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);   // a hint: the daemon reports CPUs outside of its cgroup when it starts
}

/// What is changed of training samples.
static Augment augment_of(const JobConfig& job) {
    Augment how{.crop = job.crop, .flip = job.flip, .seed = job.seed};
    if (job.resized_crop > 0) how.area = share_units(job.resized_crop);
    for (size_t i = 0; i < job.jitter.size(); ++i) how.jitter[i] = job.jitter[i] > 0 ? share_units(job.jitter[i]) : 0;
    return how;
}

Status JobParts::open_data(const EngineConfig& config, bool verify, Report& report) {
    const JobConfig& job = config.job;
    const auto floats = [](const std::vector<double>& numbers) { return std::vector<float>(numbers.begin(), numbers.end()); };
    auto open = [&](const std::string& pattern, std::unique_ptr<DataSet>* data) {
        const Status status = data_open(pattern, data,
                                        {.classes = job.classes,
                                         .side = job.side,
                                         .context = job.context,
                                         .mean = floats(job.mean),
                                         .std = floats(job.std),
                                         .literal = job.literal(pattern),
                                         .confidential = config.confidential,
                                         .stop = config.stop});
        if (std::string_view(status.what).starts_with("classes = ")) about = "data.classes";
        for (const char* key : {"side", "context", "mean", "std"})
            if (std::string_view(status.what).starts_with(fmt::format("{} = ", key))) about = fmt::format("data.{}", key);
        return status;
    };
    if (job.samples > 0) {
        train = DataSet::of_program(job.samples);
        if (job.test_samples > 0) test = DataSet::of_program(job.test_samples);
        return {};   // data_digest is what the program says
    }
    about = "data.train";
    GC_TRY(open(job.train, &train));
    if (job.stop_at > 0 && train->info().regression())
        return fail(Code::invalid, "job.stop_at is an accuracy, but {} is a regression: leave it out", job.train);
    if (job.settings.evaluate_workers && train->info().regression())
        return fail(Code::invalid, "algorithm.evaluate_workers tells accuracies, but {} is a regression: leave it out", job.train);
    if (verify) GC_TRY(data_verify_once(*train, config.verified, config.stop));
    data_digest = train->digest();
    if (job.test.empty()) return {};
    about = "data.test";
    GC_TRY(open(job.test, &test));
    if (verify) GC_TRY(data_verify_once(*test, config.verified, config.stop));
    const DataInfo &a = train->info(), &b = test->info();
    if (a.C != b.C || a.H != b.H || a.W != b.W || a.classes != b.classes)
        return fail(Code::data, "{} has samples of {}x{}x{} in {} classes, {} of {}x{}x{} in {}: they must be alike", job.test, b.C, b.H,
                    b.W, b.classes, job.train, a.C, a.H, a.W, a.classes);
    if (a.target_scale != b.target_scale)
        return fail(Code::data, "{} has the target_scale {}, {} has {} (0: classes): they must be alike", job.test, b.target_scale,
                    job.train, a.target_scale);
    GC_TRY(samples_alike(a, b, job.train, job.test));
    if (a.alphabet != b.alphabet)
        return fail(Code::data, "the characters of {} have other tokens than those of {}: import both at once (--test)", job.test,
                    job.train);
    if (const Shard* both = data_shared(*train, *test))
        report.warn(fmt::format("{} is in data.train and in data.test: it tests what was trained on; name other shards in one of them",
                                both->path));
    std::string both = train->digest() + test->digest();
    data_digest = sha256_hex(std::as_bytes(std::span(both)));
    return {};
}

/// Workers in place of blocks: who they are, and what a round is.
Status JobParts::plan_workers(const EngineConfig& config) {
    const JobConfig& job = config.job;
    const AlgorithmSettings& settings = job.settings;
    const uint64_t most = job.quantiser == Quantiser::auto16 ? auto16_blocks_max : blocks_max;
    const uint64_t workers = job.algorithm == "serial" ? 1
                             : settings.workers > 0    ? settings.workers
                             : algorithm->server       ? std::max(config.nodes(), job.servers + 1) - job.servers
                                                       : config.nodes();
    const uint32_t validation = algorithm->gathers ? settings.validation : 0;
    if (algorithm->server && config.nodes() > 1 && job.servers >= config.nodes())
        return fail(Code::invalid, "algorithm.servers: {} of {} nodes leave none to the workers", job.servers, config.nodes());
    if (validation >= train->info().count)
        return fail(Code::invalid, "algorithm.validation: {} samples are not fewer than the {} of {}", validation, train->info().count,
                    job.train);
    if (validation > 0 && train->info().regression())
        return fail(Code::invalid, "algorithm.kind: {} chooses by accuracy, but {} is a regression", job.algorithm, job.train);
    if (validation > 0 && job.command.empty() && (train->info().masks() || train->info().vocabulary > 0))
        return fail(Code::unsupported, "algorithm.kind: {} chooses by one class a sample, but {} has one for each position", job.algorithm,
                    job.train);
    const uint64_t samples = train->info().count - validation;
    if (settings.evaluate_workers && workers > workers_of_line_max)
        return fail(Code::invalid, "algorithm.evaluate_workers: {} workers are too many for a line of steps.jsonl, at most {}", workers,
                    workers_of_line_max);
    if (workers > most || workers > samples)
        return fail(Code::invalid, "algorithm.workers: {} workers are more than the {} {}", workers, std::min(most, samples),
                    samples < most ? "samples of " + job.train : "that the quantiser takes");
    const double in_epochs = std::ceil(settings.local_epochs * static_cast<double>(samples) / static_cast<double>(workers * job.batch));
    const bool once = job.algorithm == "oneshot";
    if (once && job.stop_at > 0)
        return fail(Code::invalid, "job.stop_at: oneshot has parameters to evaluate at its end alone: leave it out");
    const double in_job =
        job.steps > 0
            ? job.steps
            : std::ceil(static_cast<double>(job.epochs) * static_cast<double>(samples) / static_cast<double>(workers * job.batch));
    const uint64_t collect = job.algorithm != "softsync" ? 1 : settings.collect > 0 ? settings.collect : workers;
    const uint64_t steps_of_push = std::max(settings.local_steps, 1u), in_push = steps_of_push * job.batch;
    const uint64_t pushes = (samples + in_push - 1) / in_push;
    if (algorithm->server) updates = settings.updates > 0 ? settings.updates : (pushes + collect - 1) / collect * collect;
    schedule.steps = (updates + collect - 1) / collect;   // of a server in a round
    const uint64_t m = settings.allocation == "parts" ? 0 : settings.allocation_batches;
    const auto of_batch = [&](uint64_t count) { return (count + job.batch - 1) / job.batch; };   // mini-batches
    if (m > 0 && (samples < m || of_batch(samples / m) < workers))
        return fail(Code::invalid, "algorithm.allocation_batches: {} of {} samples have {} mini-batches each, fewer than the {} workers", m,
                    samples, of_batch(samples / m), workers);
    const uint64_t of_share = m > 0 ? (of_batch((samples + m - 1) / m) + workers - 1) / workers : 0;   // mini-batches, at most
    const double steps_of_round = m > 0                      ? static_cast<double>(of_share)
                                  : updates > 0              ? static_cast<double>(updates * steps_of_push) / static_cast<double>(workers)
                                  : once                     ? in_job
                                  : settings.local_steps > 0 ? settings.local_steps
                                                             : std::max(in_epochs, 1.0);
    if (std::max(steps_of_round, 1.0) * static_cast<double>(workers * job.batch) > UINT32_MAX)
        return fail(Code::invalid, "algorithm.local_{}: a round of {} workers has more than {} samples",
                    settings.local_steps > 0 ? "steps" : "epochs", workers, UINT32_MAX);
    double pass_share = algorithm->passes ? settings.anchor_fraction : 0;
    if (settings.anchor == "batch") pass_share = std::min(static_cast<double>(job.batch * workers) / static_cast<double>(samples), 1.0);
    local = std::make_unique<Local>(LocalConfig{.workers = static_cast<uint32_t>(workers),
                                                .seed = job.seed,
                                                .batch = job.batch,
                                                .blocks = job.blocks,
                                                .steps = static_cast<uint32_t>(std::ceil(steps_of_round)),
                                                .pass_share = pass_share,
                                                .validation = validation,
                                                .rounds_of_epoch = static_cast<uint32_t>(m),
                                                .whole = settings.stream == "whole",
                                                .augment = augment_of(job)},
                                    *train);
    batch = static_cast<uint32_t>(job.algorithm == "gd" ? samples
                                  : updates > 0         ? updates * in_push
                                  : m > 0               ? (samples + m - 1) / m
                                                        : local->samples_of_round());
    block_sizes.assign(workers, 1);
    return {};
}

std::vector<std::pair<std::string, std::string>> JobParts::settings(const JobConfig& job) const {
    std::vector<std::pair<std::string, std::string>> all = algorithm_settings(job);
    for (auto& [key, value] : all)
        if (key == "workers") value = fmt::format("{}", block_sizes.size());
        else if (key == "collect" && value == "0") value = fmt::format("{}", block_sizes.size());
        else if (key == "updates") value = fmt::format("{}", updates);
        else if (key == "local_steps")
            value = fmt::format("{}", updates > 0 ? std::max(job.settings.local_steps, 1u) : local->config().steps);
    if (algorithm->server) {
        all.emplace_back("servers", fmt::format("{}", job.servers));
        all.emplace_back("servers_vote", job.servers_vote ? "true" : "false");
    }
    return all;
}

Facts JobParts::facts(const JobConfig& job) const {
    Facts all = job_identity(job);
    for (const auto& [taken, value] : settings(job))
        for (auto& [key, said] : all)
            if (key == "algorithm." + taken) said = value;
    all.emplace_back("data", data_digest);
    if (kernel_set.empty()) return all;
    all.emplace_back("net.start", start_digest.empty() ? "none" : start_digest);
    all.emplace_back("kernel set", kernel_set);
    return all;
}

Status JobParts::plan_loader(const EngineConfig& config, const Augment& augment, uint32_t lane_count, Report& report) {
    uint32_t ahead = std::max(8u, 2 * lane_count * together_of(*compute.net, config.job.blocks, lane_count));
    if (pipeline) ahead = std::max(ahead, 2 * pipeline->micro_batch);
    if (compute.net->steps_ahead() > 0) ahead = std::max(ahead, config.job.blocks);   // whole steps take all blocks at once
    const bool images = !pipeline || pipeline->own_stage == 0;
    // GPUs crop and flip what they hold; they do not decode, and do not change colours.
    if (compute.device && config.job.resident && images && !train->info().pictures() && !augment.jitters())
        GC_TRY(compute.module->resident_plan(train->info(), augment, *compute.device, &resident));
    if (!resident && !train->of_program())
        return loader_plan(*train, *sampler, {.ahead = ahead, .threaded = config.loader_threaded, .augment = augment}, arena, report.log(),
                           &loader);
    loader = loader_resident(*train, *sampler, ahead, resident.get());
    return {};
}

/// They say which tensors the net has.
Status JobParts::start_processes(const EngineConfig& config, Report& report) {
    const JobConfig& job = config.job;
    const DataInfo& info = train->info();
    if (!config.commands)
        return fail(Code::invalid, "no program of a job is started here: `commands = true` in gradcastd.toml allows it to this daemon");
    const std::vector<uint32_t> sizes = sizes_computed();
    const std::set<uint32_t> distinct(sizes.begin(), sizes.end());
    const MemoryRoom room = job_room(config, 0);
    std::vector<std::pair<std::string, std::string>> environment = job.variables();
    if (config.sources) environment.emplace_back("PYTHONDONTWRITEBYTECODE", "1");   // the copies stay as they are
    std::function<Status(std::span<const std::byte>)> keep;                         // an audit keeps nothing
    if (config.until == 0) keep = [this](std::span<const std::byte> bytes) { return constants->add(bytes); };
    GC_TRY(NetProcesses::open(
        {.command = config.sources ? sources_command(*config.sources, job.command, config.sources_at) : job.command,
         .folder = job.base,
         .environment = std::move(environment),
         .threads = job.threads,
         .lanes = std::max(config.lanes, 1u),
         .seed = job.seed,
         .samples = net_of(info),
         .mean = info.mean,
         .std = info.std,
         .own_samples = train->of_program(),
         .cpus = config.cpus,
         .samples_max = std::max(*distinct.rbegin(), test || algorithm->gathers ? evaluation_batch : 1),
         .block_sizes = {distinct.begin(), distinct.end()},
         .evaluation_samples = test ? static_cast<uint32_t>(std::min<uint64_t>(evaluation_batch, test->info().count)) : 0,
         .memory_max = room.bytes == UINT64_MAX ? 0 : room.bytes,
         .deadline_us = job.deadline_us,
         .output = [log = report.log()](uint32_t lane, std::string_view line) { log.info("lane {}: {}", lane, line); },
         .stop = config.stop,
         .ending = &ending,
         .constants = std::move(keep)},
        &processes));
    if (!config.sources) return {};
    const std::string differs = sources_difference(*config.sources, processes->hello().modules);
    return differs.empty()
               ? Status{}
               : fail(Code::data,
                      "the program has loaded other files than the copies of its sources: {}; a command that finds its files by the "
                      "working directory ({}) needs them there as they were",
                      differs, job.base);
}

Status JobParts::open_constants(const EngineConfig& config) {
    if (!processes || config.until > 0 || constants_of(spec).empty()) return {};
    constants = std::make_unique<ConstantsWriter>();
    return constants->open(config.folder, spec);
}

/// The net against the samples and the blocks.
Status JobParts::check_net(const EngineConfig& config, Report& report) {
    const JobConfig& job = config.job;
    about = job.attached() ? "net.command" : job.preset.empty() ? "net.layers" : "net.preset";
    auto of_layer = [&](size_t layer) {
        if (job.preset.empty() && layer < job.layers.size()) about = fmt::format("net.layers[{}]", layer);
    };
    if (job.attached()) {
        GC_TRY(start_processes(config, report));
        spec = processes->spec();
        inventory = hello_inventory(processes->hello());
        const std::string& data = processes->hello().data_digest;
        data_compared = !train->of_program() || !data.empty();
        if (!data_compared) report.warn("the program says no data_digest, so whether the nodes have the same samples is not compared");
        if (train->of_program()) {
            const std::string all = fmt::format("{} {} {}", data, job.samples, job.test_samples);
            data_digest = sha256_hex(std::as_bytes(std::span(all)));
        }
    } else {
        GC_TRY(net_spec(job, train->info(), &spec));
    }
    if (job.slices > 1) GC_TRY(slices_choose(job.slices, job.sliced, &spec, &about));
    size_t wrong = spec.layers.size();
    if (const Status status = layers_check(spec, &layers, &wrong); !status.ok()) return of_layer(wrong), status;
    for (const Layer& layer : layers) {
        if (job.algorithm != "dane" || !layer_draws(layer)) continue;
        of_layer(static_cast<size_t>(&layer - layers.data()));
        return fail(Code::invalid, "layer {}: it draws what it drops, and dane needs gradients without that", layer_name(layer));
    }
    about = "optimiser";
    OptimiserConfig optimiser = job.optimiser;
    GC_TRY(optimiser_ranges(layers, &optimiser));
    about = "job.blocks";
    const std::vector<uint32_t> sizes = sizes_computed();
    return blocks_check(layers, *std::min_element(sizes.begin(), sizes.end()));
}

Status JobParts::check_stages(const EngineConfig& config) {
    if (cells_of(config.job) == 1) return {};   // auto that nobody has chosen for: in one piece
    GC_TRY(stages_plan(config.job, spec, config.nodes(), config.self, std::max(config.lanes, 1u), &cut.emplace(), &about));
    cut->block_sizes = block_sizes;
    pipeline = cut;
    run = {cut->own_stage, cut->own_stage + 1};
    for (uint32_t cell = 0; cell < pipeline->cells(); ++cell) {
        Layout layout = layers_layout(layers, NetConfig{}.bucket_bytes, pipeline->cell(cell));
        if (layout.elements > largest_stage.elements) largest_stage = std::move(layout);
    }
    return check_shared_weights(config.job);
}

Status JobParts::check_shared_weights(const JobConfig& job) {
    const std::vector<SharedWeights> all = weights_shared(layers, cut->begins);
    const auto name = [this](const SharedWeights& of) { return layers[of.layer].spec.name; };
    about = "parallel.stages";
    // Stages add up words of the host, and a codec of a GPU has them on the GPU until the exchange takes them.
    if (!all.empty() && job.device != "cpu")
        return fail(Code::unsupported,
                    "layers of several stages take the weights of {} (weights_of), and stages share weights on CPUs alone in this version: "
                    "take device = \"cpu\", or cut the net so that one stage has these layers (parallel.cuts)",
                    name(all.front()));
    // Only cells with the same list of shared weights are compared (Session::cells_alike).  Lists that overlap would go unchecked.
    for (const SharedWeights& one : all)
        for (const SharedWeights& other : all)
            if (one.stages != other.stages && std::ranges::find_first_of(one.stages, other.stages) != one.stages.end())
                return fail(Code::invalid,
                            "the weights of {} and those of {} (weights_of) have a stage in common, and others that differ: cut the net "
                            "elsewhere (parallel.cuts)",
                            name(one), name(other));
    return {};
}

Status JobParts::examine(const EngineConfig& config, bool verify, Report& report) {
    GC_TRY(examine_data(config, verify, report));
    GC_TRY(check_net(config, report));
    return check_stages(config);
}

Status JobParts::examine_data(const EngineConfig& config, bool verify, Report& report) {
    const JobConfig& job = config.job;
    GC_TRY(algorithm_find(job.algorithm, &algorithm));
    exact_ = exact(job);
    deadline_us = job.deadline_us;
    GC_TRY(open_data(config, verify, report));
    about = "job";
    const DataInfo& info = train->info();
    if (static_cast<uint32_t>(config.self) >= config.roster.size() || config.roster.size() > ranks_max)
        return fail(Code::invalid, "a job has 1 to {} ranks, not rank {} of {}", ranks_max, static_cast<uint32_t>(config.self),
                    config.roster.size());
    batch = job.batch;
    if (algorithm->workers) GC_TRY(plan_workers(config));
    sampler = std::make_unique<Sampler>(info.count - (local ? local->config().validation : 0), job.seed, batch, job.blocks);
    report.samples(batch, train->context());
    const uint64_t rounds_of_epoch = local ? local->config().rounds_of_epoch : 0;
    steps = job.algorithm == "oneshot" ? 1
            : job.steps                ? job.steps
            : rounds_of_epoch > 0      ? rounds_of_epoch * job.epochs
                                       : sampler->steps(job.epochs);
    if (job.optimiser.warm_up > steps)
        report.warn(
            fmt::format("optimiser.warm_up = {} is more than the {} steps of the job: lr is never reached", job.optimiser.warm_up, steps));
    profile = std::make_unique<Profile>(job.profile ? std::min<StepId>(job.profile, steps) - 1 : Profile::no_step);
    if (steps > UINT32_MAX)
        return fail(Code::invalid, "job.epochs: {} epochs of {} samples are {} steps, at most {}", job.epochs, info.count, steps,
                    UINT32_MAX);
    if (!local)
        for (uint32_t block = 0; block < job.blocks; ++block) block_sizes.push_back(sampler->block_size(block));
    const bool jitters = augment_of(job).jitters();
    for (const auto& [key, given] : {std::pair{"crop", job.crop > 0}, {"flip", job.flip}, {"jitter", jitters}})
        if (given && info.element != Element::u8)
            return fail(Code::invalid, "data.{}: {} has samples of {}, which are no images: leave it out", key, job.train,
                        element_name(info.element));
    if (jitters && info.C != 1 && info.C != 3)
        return fail(Code::invalid, "data.jitter: samples of {} have {} channels, and colours are of 1 (grey) or 3 (RGB): leave it out",
                    job.train, info.C);
    if (job.resized_crop > 0 && !info.pictures())
        return fail(Code::invalid,
                    "data.resized_crop: {} has samples of one size, not pictures (import images --store jpeg): leave it out, or take crop",
                    job.train);
    if (job.crop >= std::min(info.H, info.W))
        return fail(Code::invalid, "data.crop: {} zeros on each side are not fewer than the pixels of a sample of {} ({} x {})", job.crop,
                    job.train, info.H, info.W);
    return {};
}

Status JobParts::plan_examined(const EngineConfig& config, const std::string& device, Report& report) {
    const JobConfig& job = config.job;
    const DataInfo& info = train->info();
    const std::vector<uint32_t> sizes = sizes_computed();
    const std::set<uint32_t> distinct(sizes.begin(), sizes.end());
    uint32_t lane_count = std::max(config.lanes, 1u);
    std::string why;
    GC_TRY(compute.open(device, {.lanes_max = std::min(lane_count, pipeline ? pipeline->micro_batch : job.blocks), .numbers = config.gpus},
                        &why));
    if (!why.empty()) report.warn(why);
    if (compute.device) lane_count = compute.device->lane_count();
    if (pipeline) pipeline->lanes = cut->lanes = lane_count;
    // Programs of processes and GPUs, whose memory is not that of the nodes, evaluate whole batches.
    const bool whole = compute.device || processes;
    const uint32_t piece = whole ? evaluation_batch : evaluation_piece(spec, *distinct.rbegin(), evaluation_batch);
    NetConfig net{.lanes = lane_count,
                  .samples_max = test || algorithm->gathers ? piece : *distinct.rbegin(),
                  .block_sizes = {distinct.begin(), distinct.end()},
                  .seed = job.seed,
                  .precision = job.precision,
                  .deterministic = job.deterministic};
    if (pipeline) {
        net.stage = pipeline->cell(pipeline->own_cell());
        net.slots = pipeline->slots();
        net.passes_apart = pipeline->passes_apart();
        net.recompute = pipeline->recomputes();
    }
    // Whole steps know no factor of a step's sums, which a clip and a mean over positions that count are, and no norms of tensors.
    const bool whole_steps = !local && job.optimiser.clip_norm == 0 && !mean_over_valid(spec) && !optimiser_find(job.optimiser.kind)->look;
    if (compute.device && whole_steps && config.nodes() == 1 && block_sizes.size() <= step_blocks_max) net.step_blocks = block_sizes;
    const uint64_t of_round = updates > 0 ? schedule.steps : local ? local->config().steps : 1;
    schedule = job.optimiser;
    schedule.steps = steps * of_round;
    GC_TRY(optimiser_ranges(layers, &schedule));
    if (pipeline) runs = state_runs_of(pipeline->own_cell());
    compute.processes = processes.get();
    GC_TRY(compute.plan(spec, net, schedule, {job.quantiser, job.batch, job.blocks, job.seed}, arena, layers_frozen(layers, schedule)));
    if (pipeline && job.buddy) GC_TRY((buddies = std::make_unique<BuddyParts>())->plan(*this, config, net));

    const Augment augment = augment_of(job);
    if (local) {
        const auto workers = static_cast<uint32_t>(block_sizes.size());
        local->plan(*compute.net, lane_count, arena);
        carried = layout_with_maxima(compute.net->layout(), workers);
        // A server's words are those of synchronous SGD, the others' are means of workers.
        compute.codec = codec_cpu(carried, {job.quantiser, algorithm->server ? workers * job.batch : workers, workers, job.seed});
    } else {
        GC_TRY(plan_loader(config, augment, lane_count, report));
    }
    if (test) {
        evaluator = std::make_unique<Evaluator>(*test, info.mean, info.std, piece);
        evaluator->plan(lane_count, arena);
    }
    report.update([this](JobStatus& status) {
        status.steps = steps;
        status.epochs = sampler->epoch_of(steps - 1) + 1;
    });
    return {};
}

StateRuns JobParts::runs_of(const Stage& stage, bool owned) const {
    return state_runs(layers_layout(layers, 0, stage), layers_layout(layers, 0), optimiser_vectors(), owned);
}

StateRuns JobParts::state_runs_of(const StageRun& of, uint32_t slice_group, bool owned) const {
    return runs_of({cut->stage(of.first).first, cut->stage(of.end - 1).end, slice_group, cut->slice_groups}, owned);
}

StateSizes JobParts::state_sizes() const {
    if (!pipeline) return state({}).sizes();
    const Layout whole = layers_layout(layers, 0);   // not of the present net: writers of checkpoints ask meanwhile
    return {{whole.elements, optimiser_vectors() * whole.elements, whole.groups.size(), 0}};
}

Status JobParts::ready(const EngineConfig& config, Report& report) {
    GC_TRY(stopped(config));
    GC_TRY(measure_kernels(config));
    GC_TRY(compute.ready(arena));
    if (processes) GC_TRY(measure_processes());
    GC_TRY(start(config.job, report.log()));
    if (buddies) GC_TRY(buddies->ready(config));
    GC_TRY(stopped(config));
    if (resident) GC_TRY(resident_fill(*train, *resident));
    else if (loader && !train->of_program()) GC_TRY(loader_start(*loader));
    GC_TRY(lanes.open(compute.device ? std::min(config.lanes, compute.device->lane_count()) : config.lanes,
                      [cpus = config.cpus](uint32_t lane) { lane_start(lane, cpus); }));
    begins_with = start_digest;
    if (processes) begins_with += (start_digest.empty() ? "" : " ") + hello_digest(processes->hello());
    return probe(config, report);
}

ModelState JobParts::state(std::span<const std::byte> of_algorithm) const {
    return {compute.net->parameters(), compute.optimiser->state(), compute.codec->exponents(), of_algorithm};
}

std::vector<StateMemory> JobParts::state_memory() {
    const auto own = [this] { return runs_of(pipeline->cell(pipeline->own_cell()), true); };
    std::vector<StateMemory> all = {{pipeline ? own() : state_runs_whole(state_sizes()), writable_state()}};
    if (buddies) std::ranges::move(buddies->kept_memory(*this), std::back_inserter(all));
    return all;
}

void JobParts::restore(const ModelState& state) {
    std::ranges::copy(state.parameters, compute.net->parameters().begin());
    std::ranges::copy(state.optimiser, compute.optimiser->state().begin());
    std::ranges::copy(state.exponents, compute.codec->exponents().begin());
    refresh();
}

void JobParts::swap_averaged() {
    GC_ASSERT(schedule.ema > 0);
    averaged_swap(compute.net->layout(), compute.net->parameters(), compute.optimiser->state());
    compute.net->refresh();
}

void JobParts::give(Context& context) const {
    context.net = compute.net.get();
    context.optimiser = compute.optimiser.get();
    context.codec = compute.codec.get();
    context.groups = runs[StateVector::exponents];
}

void JobParts::refresh() {
    compute.net->refresh();
    compute.optimiser->refresh();
}

/// Parameters of another training in place of the seed's.
Status JobParts::start(const JobConfig& job, const Log& log) {
    if (job.start.empty()) return {};
    std::string notes;
    GC_TRY(safetensors_read(job.start, compute.net->spec(), compute.net->parameters(), &start_digest, &notes, &compute.net->layout(),
                            {job.start_only, job.start_skip}));
    compute.net->refresh();
    log.info("begins with the parameters of {}, digest {}{}{}", job.start, start_digest, notes.empty() ? "" : "; ", notes);
    return {};
}

/// Pictures are decoded by libjpeg, whose versions may differ in bits.
void JobParts::name_kernels(const std::string& computing) {
    const bool decodes = train->info().pictures() || (test && test->info().pictures());
    kernel_set = decodes ? kernel_set_with(computing, decoder_digest()) : computing;
}

/// It takes memory that is free again before the job's is taken.
/// What the result of net_measure() depends on.
static std::string measured_text(const JobParts& parts, Precision precision) {
    const NetSpec& spec = parts.spec;
    std::string text =
        fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {}", parts.compute.net->kernels(), static_cast<int>(precision), spec.C, spec.H,
                    spec.W, spec.pad, spec.classes, spec.target_scale, spec.targets, static_cast<int>(spec.target_element),
                    static_cast<int>(spec.element), spec.vocabulary, spec.ignore, fmt::join(parts.block_sizes, ","));
    for (const LayerSpec& layer : spec.layers) text += "; " + layer_text(layer);
    return text;
}

Status JobParts::measure_kernels(const EngineConfig& config) {
    if (processes || !kernels_measured()) return {};
    KernelsMemo* const memo = config.kernels_memo;
    const std::string net_text = memo ? measured_text(*this, config.job.precision) : "";
    std::optional<KernelsMemo::Known> known = memo ? memo->find(net_text) : std::nullopt;
    if (!known) {
        NetMeasure measured;
        const NetConfig net{
            .samples_max = *std::ranges::max_element(block_sizes), .block_sizes = block_sizes, .precision = config.job.precision};
        GC_TRY(net_measure(spec, net, 1, config.stop, &measured));
        double seconds = 0;
        for (const UnitTimes& unit : measured.units) seconds += unit.forward + unit.data + unit.weights;
        known = {measured.digest, static_cast<uint64_t>(seconds * 1e6)};
        if (memo) memo->keep(net_text, *known);
    }
    name_kernels(fmt::format("{:016x}", known->digest));
    block_us_ = known->block_us;
    return {};
}

Status JobParts::measure_processes() {
    uint64_t digest = 0;
    GC_TRY(processes->measure(&digest, &block_us_));
    name_kernels(fmt::format("{:016x}", digest));
    return {};
}

/// Block 0 of step 0: its maxima are the first scales.  Where kernels were not measured, the digest of its gradient is the identity of the
/// kernel set.
Status JobParts::probe_block(const EngineConfig& config) {
    ProbeSamples samples;
    GC_TRY(samples.read(*this));
    ProbeSink sink(compute.net->layout(), config);
    const uint64_t begin_us = clock_us();
    GC_TRY(compute.net->block(0, {0, 0}, samples.samples(), sink));
    block_us_ = clock_us() - begin_us;
    if (compute.device) name_kernels(gpu_kernel_set(*compute.net, sink.digest));
    else if (!kernels_measured()) name_kernels(fmt::format("{:016x}", sink.digest));
    if (local && !algorithm->server) return sink.finite();   // a worker's vectors bring their scales
    return sink.scale(*compute.codec, local ? carried : compute.net->layout());
}

Status JobParts::probe(const EngineConfig& config, Report& report) {
    if (!pipeline) GC_TRY(probe_block(config));   // else Session::probe()
    else if (!kernels_measured()) name_kernels(gpu_kernel_set(*compute.net, 0));
    // Virtual time knows no slow blocks.
    if (config.lanes > 0 && 8 * block_us_ > deadline_us) {
        report.warn(fmt::format("a block takes {:.3f} s, so the deadline of {} s is to be {:.3f} s: smaller blocks would do with less",
                                static_cast<double>(block_us_) / 1e6, static_cast<double>(deadline_us) / 1e6,
                                static_cast<double>(block_us_) / 1e6 * 8));
        deadline_us = 8 * block_us_;
    }
    report.update([this](JobStatus& status) { status.kernel_set = kernel_set; });
    agree(deadline_us, report);
    return {};
}

void JobParts::agree(uint64_t agreed_us, Report& report) {
    deadline_us = agreed_us;
    if (processes) processes->deadline(agreed_us);
    report.update([this](JobStatus& status) { status.timeouts_us = timeouts_list(timeouts_of(deadline_us)); });
}

}   // namespace gradcast
