#include "runtime/job/parts.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "datasets/resident.h"
#include "nn/layers.h"
#include "runtime/core/clock.h"
#include "runtime/core/crypto.h"
#include "runtime/core/digest.h"
#include "runtime/job/job_protocol.h"
#include "runtime/job/safetensors.h"

namespace gradcast {
namespace {

Status stopped(const EngineConfig& config) {
    const bool stop = config.stop && config.stop->load(std::memory_order_relaxed);
    return stop ? fail(Code::cancelled, "stopped while the job is prepared") : Status{};
}

/// Keeps the whole gradient of the probe block.
struct ProbeSink final : GradientSink {
    ProbeSink(const Layout& l, std::vector<float>& g, const EngineConfig& c) : layout(l), gradient(g), config(c) {}
    Status bucket(uint32_t, BlockId, uint32_t bucket, Buffer from) override {
        GC_TRY(stopped(config));
        std::memcpy(gradient.data() + layout.buckets[bucket].offset, from.host, from.bytes);
        return {};
    }
    void loss(uint32_t, BlockId, double) override {}
    const Layout& layout;
    std::vector<float>& gradient;
    const EngineConfig& config;
};

Status net_spec(const JobConfig& job, const DataInfo& info, NetSpec* spec) {
    if (!job.preset.empty()) GC_TRY(preset_find(job.preset, info.C, info.H, info.W, info.classes, spec));
    else *spec = {.C = info.C, .H = info.H, .W = info.W, .pad = job.net_pad, .classes = info.classes, .layers = job.layers};
    spec->target_scale = info.target_scale;
    return {};
}

}   // namespace

void lane_start(uint32_t lane, const std::vector<uint32_t>& cpus) {
    yield_to_network();
    if (cpus.empty()) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpus[lane % cpus.size()], &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);   // a hint: cpus outside of our cgroup are told by the daemon when it starts
}

Status JobParts::open_data(const EngineConfig& config) {
    const JobConfig& job = config.job;
    const DataOptions options{.classes = job.classes, .confidential = config.confidential, .stop = config.stop};
    GC_TRY(data_open(job.train, &train, options));
    if (job.stop_at > 0 && train->info().target_scale > 0)
        return fail(Code::invalid, "job.stop_at is an accuracy, but {} is a regression: leave it out", job.train);
    GC_TRY(data_verify(*train, config.stop));
    data_digest = train->digest();
    if (job.test.empty()) return {};
    GC_TRY(data_open(job.test, &test, options));
    GC_TRY(data_verify(*test, config.stop));
    const DataInfo &a = train->info(), &b = test->info();
    if (a.C != b.C || a.H != b.H || a.W != b.W || a.classes != b.classes)
        return fail(Code::data, "{} has samples of {}x{}x{} in {} classes, {} of {}x{}x{} in {}: they must be alike", job.test, b.C, b.H,
                    b.W, b.classes, job.train, a.C, a.H, a.W, a.classes);
    if (a.target_scale != b.target_scale)
        return fail(Code::data, "{} has the target_scale {}, {} has {} (0: classes): they must be alike", job.test, b.target_scale,
                    job.train, a.target_scale);
    std::string both = train->digest() + test->digest();
    data_digest = sha256_hex(std::as_bytes(std::span(both)));
    return {};
}

Status JobParts::plan(const EngineConfig& config, Report& report) {
    const JobConfig& job = config.job;
    deadline_us = job.deadline_us;
    GC_TRY(open_data(config));
    const DataInfo& info = train->info();
    if (static_cast<uint32_t>(config.self) >= config.roster.size() || config.roster.size() > ranks_max)
        return fail(Code::invalid, "a job has 1 to {} ranks, not rank {} of {}", ranks_max, static_cast<uint32_t>(config.self),
                    config.roster.size());
    sampler = std::make_unique<Sampler>(info.count, job.seed, job.batch, job.blocks);
    steps = job.steps ? job.steps : sampler->steps(job.epochs);
    if (job.optimiser.warm_up > steps)
        report.warn(
            fmt::format("optimiser.warm_up = {} is more than the {} steps of the job: lr is never reached", job.optimiser.warm_up, steps));
    if (job.profile) profile = std::make_unique<Profile>(std::min<StepId>(job.profile, steps) - 1);
    if (steps > UINT32_MAX)
        return fail(Code::invalid, "job.epochs: {} epochs of {} samples are {} steps, at most {}", job.epochs, info.count, steps,
                    UINT32_MAX);
    for (uint32_t block = 0; block < job.blocks; ++block) block_sizes.push_back(sampler->block_size(block));
    std::set<uint32_t> distinct(block_sizes.begin(), block_sizes.end());

    if (job.crop >= std::min(info.H, info.W))
        return fail(Code::invalid, "data.crop: {} zeros on each side are not fewer than the pixels of a sample of {} ({} x {})", job.crop,
                    job.train, info.H, info.W);

    uint32_t lane_count = std::max(config.lanes, 1u);
    std::string why;
    GC_TRY(compute.open(job.device, {.lanes_max = std::min(lane_count, job.blocks)}, &why));
    if (!why.empty()) report.warn(why);
    if (compute.device) lane_count = compute.device->lane_count();
    NetSpec spec;
    GC_TRY(net_spec(job, info, &spec));
    std::vector<Layer> layers;
    GC_TRY(layers_check(spec, &layers));
    GC_TRY(blocks_check(layers, *distinct.begin()));
    NetConfig net{.lanes = lane_count,
                  .samples_max = test ? evaluation_batch : sampler->block_size_max(),
                  .block_sizes = {distinct.begin(), distinct.end()},
                  .seed = job.seed,
                  .precision = job.precision,
                  .deterministic = job.deterministic};
    OptimiserConfig optimiser = job.optimiser;
    optimiser.steps = steps;
    GC_TRY(compute.plan(spec, net, optimiser, {job.quantiser, job.batch, job.blocks, job.seed}, arena));

    const Augment augment{.crop = job.crop, .flip = job.flip, .seed = job.seed};
    const uint32_t ahead = std::max(8u, 2 * lane_count * together_of(*compute.net, job.blocks, lane_count));
    if (compute.device) GC_TRY(compute.module->resident_plan(info, augment, *compute.device, &resident));
    if (resident) loader = loader_resident(*train, *sampler, ahead, *resident);
    else
        GC_TRY(loader_plan(*train, *sampler, {.ahead = ahead, .threaded = config.loader_threaded, .augment = augment}, arena, report.log(),
                           &loader));
    if (test) {
        evaluator = std::make_unique<Evaluator>(*test, info.mean, info.std);
        evaluator->plan(lane_count, arena);
    }
    report.update([this](JobStatus& status) {
        status.steps = steps;
        status.epochs = sampler->epoch_of(steps - 1) + 1;
    });
    return {};
}

Status JobParts::ready(const EngineConfig& config, Report& report) {
    GC_TRY(stopped(config));
    GC_TRY(compute.ready(arena));
    GC_TRY(start(config.job, report.log()));
    GC_TRY(stopped(config));
    GC_TRY(resident ? resident_fill(*train, *resident) : loader_start(*loader));
    lanes.open(compute.device ? std::min(config.lanes, compute.device->lane_count()) : config.lanes,
               [cpus = config.cpus](uint32_t lane) { lane_start(lane, cpus); });
    return probe(config, report);
}

/// Parameters of another training in place of the seed's.
Status JobParts::start(const JobConfig& job, const Log& log) {
    if (job.start.empty()) return {};
    GC_TRY(safetensors_read(job.start, compute.net->spec(), compute.net->parameters(), &start_digest));
    compute.net->refresh();
    log.info("begins with the parameters of {}, digest {}", job.start, start_digest);
    return {};
}

/// Block 0 of step 0: the digest of its gradient is the identity of the kernel set, its maxima are the first scales.
Status JobParts::probe(const EngineConfig& config, Report& report) {
    const DataInfo& info = train->info();
    const uint32_t count = sampler->block_size(0);
    std::vector<uint64_t> indices(count);
    std::vector<uint8_t> images(count * train->sample_bytes());
    std::vector<int32_t> labels(count);
    sampler->block({0, 0}, indices);
    GC_TRY(train->read(indices, images.data(), labels.data()));
    Samples samples{images.data(), labels.data(), count, info.C, info.H, info.W, info.mean.data(), info.std.data()};
    std::vector<float> gradient(compute.net->layout().elements);
    ProbeSink sink(compute.net->layout(), gradient, config);
    uint64_t begin_us = clock_us();
    GC_TRY(compute.net->block(0, {0, 0}, samples, sink));
    uint64_t block_us = clock_us() - begin_us;
    for (const Group& group : compute.net->layout().groups)
        for (uint64_t i = 0; i < group.count; ++i)
            if (!std::isfinite(gradient[group.offset + i]))
                return fail(Code::diverged, "the gradient of layer {} holds NaN or Inf before the first step: look at the data",
                            group.layer);
    // Ranks that must agree on the kernel set are much alike, so each raises its own deadline.  Virtual time knows no slow blocks.
    if (config.lanes > 0 && 8 * block_us > deadline_us) {
        report.warn(fmt::format("a block takes {:.3f} s, so the deadline of {} s is raised to {:.3f} s: smaller blocks would do with less",
                                static_cast<double>(block_us) / 1e6, static_cast<double>(deadline_us) / 1e6,
                                static_cast<double>(block_us) / 1e6 * 8));
        deadline_us = 8 * block_us;
    }
    kernel_set = fmt::format("{:016x}", digest64(std::span<const float>(gradient)) + compute.net->engines());
    compute.codec->probe(gradient.data());
    report.update([this](JobStatus& status) {
        status.kernel_set = kernel_set;
        status.timeouts_us = timeouts_list(timeouts_of(deadline_us));
    });
    return {};
}

}   // namespace gradcast
