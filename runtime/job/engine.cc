#include "runtime/job/engine.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

#include "algos/algorithm.h"
#include "datasets/resident.h"
#include "nn/layers.h"
#include "runtime/core/clock.h"
#include "runtime/core/crypto.h"
#include "runtime/core/digest.h"
#include "runtime/core/fd.h"
#include "runtime/job/cuda_module.h"
#include "runtime/job/evaluate.h"
#include "runtime/job/job_protocol.h"
#include "runtime/job/model_file.h"
#include "runtime/job/safetensors.h"
#include "runtime/job/step_log.h"
#include "runtime/job/vacancy.h"
#include "transport/bulk/bulk.h"
#include "transport/exchange/auto.h"

namespace gradcast {
namespace {

constexpr uint16_t on(Channel channel) { return static_cast<uint16_t>(channel); }

// `auto`: the first step warms caches and streams up, those after it are measured.
constexpr StepId measured_first = 1, measured_end = 6;

/// Keeps the whole gradient of the probe block.
struct ProbeSink final : GradientSink {
    ProbeSink(const Layout& l, std::vector<float>& g) : layout(l), gradient(g) {}
    Status bucket(uint32_t, BlockId, uint32_t bucket, Buffer from) override {
        std::memcpy(gradient.data() + layout.buckets[bucket].offset, from.host, from.bytes);
        return {};
    }
    void loss(uint32_t, BlockId, double) override {}
    const Layout& layout;
    std::vector<float>& gradient;
};

/// What a lane's thread does first.
void lane_start(uint32_t lane, const std::vector<uint32_t>& cpus) {
    yield_to_network();
    if (cpus.empty()) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpus[lane % cpus.size()], &set);
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);   // a hint: cpus outside of our cgroup are told by the daemon when it starts
}

Status net_spec(const JobConfig& job, const DataInfo& info, NetSpec* spec) {
    if (!job.preset.empty()) GC_TRY(preset_find(job.preset, info.C, info.H, info.W, info.classes, spec));
    else *spec = {.C = info.C, .H = info.H, .W = info.W, .pad = job.net_pad, .classes = info.classes, .layers = job.layers};
    spec->target_scale = info.target_scale;
    return {};
}

class JobEngine final : public Engine {
public:
    JobEngine(const EngineConfig& config, const Log& log)
        : config_(config), job_(config_.job), deadline_us_(job_.deadline_us), timeouts_(timeouts_of(deadline_us_)), log_(log) {}

    Status prepare() {
        GC_TRY(make_directories(config_.folder));
        GC_TRY(file_write(config_.folder + "/job.toml", job_.text));
        GC_TRY(log_.open(config_.folder + "/log", fmt::format("job {}: ", hex(config_.id).substr(0, 8))));
        GC_TRY(steps_log_.open(config_.folder + "/steps.jsonl", config_.lanes > 0, log_));
        GC_TRY(open_data());
        GC_TRY(plan());
        GC_TRY(compute_.ready(arena_));
        GC_TRY(start());
        GC_TRY(resident_ ? resident_fill(*train_, *resident_) : loader_start(*loader_));
        lanes_.open(compute_.device ? std::min(config_.lanes, compute_.device->lane_count()) : config_.lanes,
                    [this](uint32_t lane) { lane_start(lane, config_.cpus); });
        GC_TRY(probe());
        job_protocol_ = job_protocol({config_.view, config_.self, deadline_us_, kernel_set_, data_digest_, start_digest_, &progress_,
                                      running_.exchange->losses_tolerated()},
                                     log_);
        log_.info("rank {} of {}, {} parameters in {} buckets, {} of {} blocks, {}", config_.self, config_.view.n(),
                  compute_.net->layout().elements, compute_.net->layout().buckets.size(), own_blocks_.size(), job_.blocks,
                  compute_.budget(arena_));
        return {};
    }

    const std::string& kernel_set() const override { return kernel_set_; }
    const char* kernels() const override { return compute_.net->kernels(); }
    const std::string& data_digest() const override { return data_digest_; }
    const std::string& start_digest() const override { return start_digest_; }
    Buffer memory() const override { return arena_.whole(); }
    Profile* profile() override { return profile_.get(); }
    void counters(const LinkCounters* counters) override { counters_ = counters; }

    void attach(const std::function<void(uint16_t, Protocol*, bool)>& attach) override {
        attach(on(Channel::job), job_protocol_.get(), false);
        attach(on(Channel::gradient), running_.protocol(), running_.bulk != nullptr);
        if (vacancy_) attach(on(Channel::chosen), vacancy_.get(), config_.datagram_bytes > 0);
        attach(on(Channel::mail), mail_protocol_.get(), false);
    }

    Status run(Host& host) override {
        if (config_.lanes > 0) lane_start(0, config_.cpus);   // the network thread has been made
        Mail mail(host, on(Channel::mail));
        Context context{.host = host,
                        .lanes = lanes_,
                        .loader = *loader_,
                        .data = *train_,
                        .sampler = *sampler_,
                        .net = *compute_.net,
                        .optimiser = *compute_.optimiser,
                        .codec = *compute_.codec,
                        .exchange = running_.exchange.get(),
                        .mail = mail,
                        .progress = progress_,
                        .self = config_.self,
                        .view = config_.view,
                        .batch = job_.batch,
                        .blocks = job_.blocks,
                        .deadline_us = deadline_us_,
                        .spend_us = config_.spend_us,
                        .own_blocks = own_blocks_,
                        .profile = profile_.get()};
        context.take_memory(targets_);
        {
            std::lock_guard lock(host_mutex_);
            host_ = &host;
            if (!cancel_.ok()) post_abort(host, cancel_);
        }
        Status status = train(context);
        if (profile_ && context.step > profile_->step)
            if (Status written =
                    file_write(config_.folder + "/profile.json", profile_->json(config_.self, config_.view.members[config_.self].name));
                !written.ok())
                log_.error("{}", written.what);
        if (!status.ok() && context.ended.ok() && !ended_ && !context.outvoted) {
            // Others must hear of it, and may have found something else first: all end with one line.
            post_abort(host, status);
            (void)context.wait_job(static_cast<uint64_t>(JobCommand::abort));
            if (!context.ended.ok()) {
                // What was found here is another rank's word for the same thing, or its consequence.
                if (std::string_view(context.ended.what).find(status.what) == std::string_view::npos)
                    log_.info("found here: {}", status.what);
                status = context.ended;
            }
        }
        {
            std::lock_guard lock(host_mutex_);
            host_ = nullptr;
        }
        finish(context, status);
        return status;
    }

    void cancel(const std::string& why) override {
        std::lock_guard lock(host_mutex_);
        if (!cancel_.ok()) return;
        cancel_ = fail(Code::cancelled, "{}", why);
        if (host_) post_abort(*host_, cancel_);
    }

    JobStatus status() const override {
        std::lock_guard lock(status_mutex_);
        JobStatus status = status_;
        if (counters_) {
            status.bytes_sent = counters_->bytes_sent.load(std::memory_order_relaxed);
            status.bytes_received = counters_->bytes_received.load(std::memory_order_relaxed);
        }
        return status;
    }

private:
    /// Logged, and shown with the job.
    void warn(const std::string& text) {
        log_.warn("{}", text);
        std::lock_guard lock(status_mutex_);
        status_.warnings.push_back(text);
    }

    // ---- before the first step -------------------------------------------------------------------------------------------------

    Status open_data() {
        GC_TRY(data_open(job_.train, &train_, job_.classes));
        if (job_.stop_at > 0 && train_->info().target_scale > 0)
            return fail(Code::invalid, "job.stop_at is an accuracy, but {} is a regression: leave it out", job_.train);
        GC_TRY(data_verify(*train_));
        data_digest_ = train_->digest();
        if (job_.test.empty()) return {};
        GC_TRY(data_open(job_.test, &test_, job_.classes));
        GC_TRY(data_verify(*test_));
        const DataInfo &a = train_->info(), &b = test_->info();
        if (a.C != b.C || a.H != b.H || a.W != b.W || a.classes != b.classes)
            return fail(Code::data, "{} has samples of {}x{}x{} in {} classes, {} of {}x{}x{} in {}: they must be alike", job_.test, b.C,
                        b.H, b.W, b.classes, job_.train, a.C, a.H, a.W, a.classes);
        if (a.target_scale != b.target_scale)
            return fail(Code::data, "{} has the target_scale {}, {} has {} (0: classes): they must be alike", job_.test, b.target_scale,
                        job_.train, a.target_scale);
        std::string both = train_->digest() + test_->digest();
        data_digest_ = sha256_hex(std::as_bytes(std::span(both)));
        return {};
    }

    Status plan() {
        const DataInfo& info = train_->info();
        if (config_.self >= config_.view.n() || config_.view.n() > ranks_max)
            return fail(Code::invalid, "a job has 1 to {} ranks, not rank {} of {}", ranks_max, config_.self, config_.view.n());
        sampler_ = std::make_unique<Sampler>(info.count, job_.seed, job_.batch, job_.blocks);
        steps_ = job_.steps ? job_.steps : sampler_->steps(job_.epochs);
        if (job_.optimiser.warm_up > steps_)
            warn(fmt::format("optimiser.warm_up = {} is more than the {} steps of the job: lr is never reached", job_.optimiser.warm_up,
                             steps_));
        if (job_.profile) profile_ = std::make_unique<Profile>(std::min<StepId>(job_.profile, steps_ - 1));
        if (steps_ > UINT32_MAX)
            return fail(Code::invalid, "job.epochs: {} epochs of {} samples are {} steps, at most {}", job_.epochs, info.count, steps_,
                        UINT32_MAX);
        for (uint32_t block = 0; block < job_.blocks; ++block) sizes_.push_back(sampler_->block_size(block));
        std::set<uint32_t> distinct(sizes_.begin(), sizes_.end());

        if (job_.crop >= std::min(info.H, info.W))
            return fail(Code::invalid, "data.crop: {} zeros on each side are not fewer than the pixels of a sample of {} ({} x {})",
                        job_.crop, job_.train, info.H, info.W);

        uint32_t lanes = std::max(config_.lanes, 1u);
        std::string why;
        GC_TRY(compute_.open(job_.device, {.lanes_max = std::min(lanes, job_.blocks)}, &why));
        if (!why.empty()) warn(why);
        if (compute_.device) lanes = compute_.device->lane_count();
        NetSpec spec;
        GC_TRY(net_spec(job_, info, &spec));
        std::vector<Layer> layers;
        GC_TRY(layers_check(spec, &layers));
        GC_TRY(blocks_check(layers, *distinct.begin()));
        NetConfig net{.lanes = lanes,
                      .samples_max = test_ ? evaluation_batch : sampler_->block_size_max(),
                      .block_sizes = {distinct.begin(), distinct.end()},
                      .seed = job_.seed,
                      .precision = job_.precision,
                      .deterministic = job_.deterministic};
        OptimiserConfig optimiser = job_.optimiser;
        optimiser.steps = steps_;
        GC_TRY(compute_.plan(spec, net, optimiser, {job_.quantiser, job_.batch, job_.blocks, job_.seed}, arena_));

        const uint32_t n = config_.view.n();
        GC_TRY(alternatives_find(job_.exchange,
                                 {.layout = &compute_.codec->words(),
                                  .self = config_.self,
                                  .blocks = job_.blocks,
                                  .quantiser = job_.quantiser,
                                  .m = job_.m,
                                  .s = job_.s,
                                  .r = job_.r,
                                  .weights = job_.weights,
                                  .servers = job_.servers,
                                  .deadline_us = deadline_us_,
                                  .device = compute_.codec->device()},
                                 n, config_.datagram_bytes, &alternatives_));
        const bool one = alternatives_.size() == 1;
        const Alternative& first = alternatives_.front();
        if (one && std::string_view(first.kind->name).starts_with("coded") && first.config.m + first.config.s < job_.m + job_.s)
            warn(fmt::format("{} ranks are too few for m = {} and s = {}: m = {}, s = {} instead", n, job_.m, job_.s, first.config.m,
                             first.config.s));
        if (!one && first.config.s < job_.s)   // auto
            warn(fmt::format("{} ranks are too few for s = {}: s = {} instead", n, job_.s, first.config.s));
        GC_TRY(install(first, 0, arena_, &running_));
        targets_ = running_.exchange->targets();
        for (const Alternative& each : alternatives_)   // of `auto`, where cssgd has r = n - 1 and as many targets
            if (!one) targets_ = std::max({targets_, each.config.m + each.config.s, each.config.r});
        if (compute_.codec->device()) compute_.codec->device()->expect(targets_);
        if (!one && steps_ > measured_end) vacancy_ = std::make_unique<Vacancy>(config_.datagram_bytes > 0);
        const Augment augment{.crop = job_.crop, .flip = job_.flip, .seed = job_.seed};
        const uint32_t ahead = std::max(8u, 2 * lanes * together_of(*compute_.net, job_.blocks, lanes));
        if (compute_.device) GC_TRY(compute_.module->resident_plan(info, augment, *compute_.device, &resident_));
        if (resident_) loader_ = loader_resident(*train_, *sampler_, ahead, *resident_);
        else
            GC_TRY(loader_plan(*train_, *sampler_, {.ahead = ahead, .threaded = config_.loader_threaded, .augment = augment}, arena_, log_,
                               &loader_));
        mail_protocol_ = mail_protocol(config_.self, config_.view.n(), segment_bytes_stream);
        const AlgorithmKind* algorithm;
        GC_TRY(algorithm_find(job_.algorithm, &algorithm));
        algorithm_ = algorithm->create();

        if (test_) {
            evaluator_ = std::make_unique<Evaluator>(*test_, info.mean, info.std);
            evaluator_->plan(lanes, arena_);
            arena_.plan("evaluation", evaluator_->batches() * sizeof(BatchResult), &results_);
            adders_ = std::min(n, running_.exchange->losses_tolerated() + 1);
            arena_.plan("evaluation", adders_ * sizeof(BatchResult), &totals_);
        }
        others_ = ranks_but(config_.self, n);
        to_adders_ = ranks_but(config_.self, adders_), to_adders_.resize(others_.size());
        std::lock_guard lock(status_mutex_);
        status_.steps = steps_;
        status_.epochs = sampler_->epoch_of(steps_ - 1) + 1;
        status_.memory = compute_.budget(arena_);
        return {};
    }

    /// An exchange, with the datagrams beneath it where it goes by them.  Not attached to a link yet.
    struct Installed {
        std::unique_ptr<Exchange> exchange;
        std::unique_ptr<Protocol> bulk;   // around it
        Protocol* protocol() const { return bulk ? bulk.get() : exchange.get(); }
    };
    /// From step `step` on.  own_blocks_ and the status are of this exchange then.
    Status install(const Alternative& alternative, StepId step, Arena& arena, Installed* installed) {
        ExchangeConfig config = alternative.config;
        config.first_step = step;
        installed->exchange = alternative.kind->create(config);
        own_blocks_ = installed->exchange->place(config_.view, sizes_).blocks_of(config_.self);
        GC_TRY(installed->exchange->install(config_.view, arena));
        if (alternative.datagrams)
            installed->bulk = bulk_create({.self = config_.self,
                                           .ranks = config_.view.n(),
                                           .segment_bytes = config_.datagram_bytes,
                                           .rate_bytes_per_s = config_.pace_bytes_per_s},
                                          *installed->exchange, arena, &bulk_counters_);
        exchange_name_ = alternative.kind->name;
        std::lock_guard lock(status_mutex_);
        status_.bytes_bound = static_cast<uint64_t>(cost_of_rank(exchange_name_, config, config_.view.n(), {}).words_sent);
        return {};
    }

    /// Parameters of another training in place of the seed's.
    Status start() {
        if (job_.start.empty()) return {};
        GC_TRY(safetensors_read(job_.start, compute_.net->spec(), compute_.net->parameters(), &start_digest_));
        compute_.net->refresh();
        log_.info("begins with the parameters of {}, digest {}", job_.start, start_digest_);
        return {};
    }

    /// Block 0 of step 0: the digest of its gradient is the identity of the kernel set, its maxima are the first scales.
    Status probe() {
        const DataInfo& info = train_->info();
        const uint32_t count = sampler_->block_size(0);
        std::vector<uint64_t> indices(count);
        std::vector<uint8_t> images(count * train_->sample_bytes());
        std::vector<int32_t> labels(count);
        sampler_->block({0, 0}, indices);
        GC_TRY(train_->read(indices, images.data(), labels.data()));
        Samples samples{images.data(), labels.data(), count, info.C, info.H, info.W, info.mean.data(), info.std.data()};
        std::vector<float> gradient(compute_.net->layout().elements);
        ProbeSink sink(compute_.net->layout(), gradient);
        uint64_t begin_us = clock_us();
        GC_TRY(compute_.net->block(0, {0, 0}, samples, sink));
        uint64_t block_us = clock_us() - begin_us;
        for (const Group& group : compute_.net->layout().groups)
            for (uint64_t i = 0; i < group.count; ++i)
                if (!std::isfinite(gradient[group.offset + i]))
                    return fail(Code::diverged, "the gradient of layer {} holds NaN or Inf before the first step: look at the data",
                                group.layer);
        // Ranks that must agree on the kernel set are much alike, so each raises its own deadline.  Virtual time knows no slow blocks.
        if (config_.lanes > 0 && 8 * block_us > deadline_us_) {
            warn(fmt::format("a block takes {:.3f} s, so the deadline of {} s is raised to {:.3f} s: smaller blocks would do with less",
                             static_cast<double>(block_us) / 1e6, static_cast<double>(deadline_us_) / 1e6,
                             static_cast<double>(block_us) / 1e6 * 8));
            deadline_us_ = 8 * block_us;
            timeouts_ = timeouts_of(deadline_us_);
        }
        kernel_set_ = fmt::format("{:016x}", digest64(std::span<const float>(gradient)));
        compute_.codec->probe(gradient.data());
        std::lock_guard lock(status_mutex_);
        status_.kernel_set = kernel_set_;
        status_.timeouts_us = timeouts_list(timeouts_);
        return {};
    }

    // ---- training --------------------------------------------------------------------------------------------------------------

    static Event job_event(JobCommand command) {
        Event event;
        event.kind = Event::Kind::command;
        event.id = static_cast<uint64_t>(command);
        return event;
    }
    static void post_abort(Host& host, Status status) {
        Event event = job_event(JobCommand::abort);
        event.status = status;
        host.post(on(Channel::job), event);
    }

    Status train(Context& context) {
        if (!own_blocks_.empty()) loader_->plan(0, own_blocks_);
        context.state = context.digest(0, compute_.net->digest() + compute_.optimiser->digest(compute_.net->layout().elements));
        Event begin = job_event(JobCommand::begin);
        begin.tag = context.state;
        context.host.post(on(Channel::job), begin);
        GC_TRY(context.wait_job(static_cast<uint64_t>(JobCommand::begin)));
        begin_us_ = context.host.now_us();
        {
            std::lock_guard lock(status_mutex_);
            status_.state = JobState::running;
        }
        uint64_t epoch = 0;
        double accuracy = -1;
        while (context.step < steps_ && !(job_.stop_at > 0 && accuracy >= job_.stop_at)) {
            if (vacancy_ && context.step == measured_end) GC_TRY(choose(context));
            GC_TRY(algorithm_->round(context));
            record(context);
            bool boundary = false;
            for (; sampler_->steps(epoch + 1) <= context.step; ++epoch) boundary = true;
            if (job_.evaluate > 0) boundary = context.step % job_.evaluate == 0;
            Status status;
            if (test_ && (boundary || context.step == steps_)) status = evaluate(context, epoch, &accuracy);
            line_.append(std::string_view("}\n"));
            steps_log_.add({line_.data(), line_.size()});
            GC_TRY(status);
        }
        std::span<const float> parameters = compute_.net->parameters();
        digest_ = sha256_hex(std::as_bytes(parameters));
        const std::string path = config_.folder + "/final.h5", part = path + ".part";
        bool lowest = true;   // of those that live: it keeps the model
        for (Rank rank = 0; rank < config_.self; ++rank) lowest &= rank < context.lost.size() && context.lost[rank];
        if (lowest) {
            Model model{compute_.net->spec(), train_->info().mean, train_->info().std, job_.text, digest_,
                        kernel_set_,          context.step,        status_.accuracy};
            GC_TRY(model_write(part, model, parameters, compute_.optimiser->state(), compute_.codec->exponents()));
        }
        // The file gets its name when all ranks have the same bits.
        Event end = job_event(JobCommand::end);
        end.buffer = {reinterpret_cast<std::byte*>(digest_.data()), nullptr, digest_.size(), 0};
        context.host.post(on(Channel::job), end);
        GC_TRY(context.wait_job(static_cast<uint64_t>(JobCommand::end)));
        ended_ = true;
        if (lowest && ::rename(part.c_str(), path.c_str()) != 0) return fail_sys(errno, "cannot rename {}", part);
        return {};
    }

    /// `auto`, between two steps: all tell what they have measured, predict the same, and go on with what is fastest.
    Status choose(Context& context) {
        constexpr StepId count = measured_end - measured_first;
        std::nth_element(computes_us_, computes_us_ + count / 2, computes_us_ + count);
        std::nth_element(waits_us_, waits_us_ + count / 2, waits_us_ + count);
        const uint64_t lanes = std::max(config_.lanes, 1u), waves = (own_blocks_.size() + lanes - 1) / lanes;
        Measured measured{.wave_us = waves > 0 ? computes_us_[count / 2] / waves : 0, .lanes = lanes, .wait_us = waits_us_[count / 2]};
        if (counters_) measured.copies = counters_->copies.load(std::memory_order_relaxed);
        // Whose mail is here has its sums of the last step, so the exchange that went before is needed no more.
        GC_TRY(agree(context, &measured));
        constexpr uint64_t echoes = 4;   // every rank waits for all others, so each takes about a latency
        const uint64_t begin_us = context.host.now_us();
        for (uint64_t i = 0; i < echoes; ++i) GC_TRY(agree(context, &measured));
        const uint64_t rounds = echoes * (context.exchange->losses_tolerated() + 1);
        measured.latency_us = std::max<uint64_t>(measured.latency_us, (context.host.now_us() - begin_us) / rounds);
        GC_TRY(agree(context, &measured));

        const Alternative& best = alternatives_choose(alternatives_, measured, config_.view.n());
        const std::string text = alternatives_text(alternatives_, best, measured);
        if (config_.self == 0) log_.info("auto: {}", text);
        {
            std::lock_guard lock(status_mutex_);
            status_.choice = text;
        }
        if (&best == &alternatives_.front()) return {};
        GC_TRY(install(best, context.step, chosen_arena_, &chosen_));
        GC_TRY(chosen_arena_.seal());
        vacancy_->fill(*chosen_.protocol(), context.host, on(Channel::chosen));
        context.exchange = chosen_.exchange.get(), context.channel = on(Channel::chosen), context.first_step = context.step;
        context.own_blocks = own_blocks_;
        if (!own_blocks_.empty()) loader_->plan(context.step, own_blocks_);
        return {};
    }

    /// Merges what all ranks tell.  The result is the same at every rank, also when some are lost meanwhile: what only some have heard from
    /// a rank is told on, in one round more than ranks may be lost.
    Status agree(Context& context, Measured* measured) {
        const uint32_t n = config_.view.n();
        told_.resize(n);
        auto part = [&](Rank rank) { return Buffer{reinterpret_cast<std::byte*>(&told_[rank]), nullptr, sizeof(Measured), 0}; };
        for (uint32_t round = 0; round <= context.exchange->losses_tolerated(); ++round) {
            const uint64_t tag = uint64_t{1} << 63 | agreements_++, first = 1, last = n + 1;   // tickets: by rank, and of what is sent
            context.mailed.assign(last + 1, Context::Mailed::open);
            context.mailed[first + config_.self] = Context::Mailed::lost;
            told_[config_.self] = *measured;
            for (Rank rank = 0; rank < n; ++rank)
                if (rank != config_.self) context.mail.receive(rank, tag, part(rank), first + rank);
            context.mail.send({0, others_.data()}, tag, part(config_.self), last);
            GC_TRY(context.wait_mail(first, last, timeouts_.first_step_us, "measurements to choose an exchange by"));
            for (Rank rank = 0; rank < n; ++rank)
                if (context.mailed[first + rank] == Context::Mailed::done) measured->merge(told_[rank]);
        }
        return {};
    }

    /// Leaves the step's line open for what an evaluation adds.
    void record(Context& context) {
        const StepRecord& step = context.record;
        const uint32_t deaf = bulk_counters_.deaf.load(std::memory_order_relaxed);
        if (deaf > 0 && !std::exchange(deaf_told_, true))
            warn(fmt::format(
                "multicast from {} does not reach {} any more, datagrams to it alone do: each rank gets its own copy from now on "
                "(do the switches snoop IGMP without a querier? transport.kind = \"tcp\" does without multicast)",
                config_.view.members[config_.self].name, config_.view.members[deaf - 1].name));
        if (step.step >= measured_first && step.step < measured_end) {
            computes_us_[step.step - measured_first] = step.compute_us;
            waits_us_[step.step - measured_first] = step.wait_us;
        }
        uint64_t sent = 0, received = 0, now_us = context.host.now_us();
        if (counters_) {
            sent = counters_->bytes_sent.load(std::memory_order_relaxed);
            received = counters_->bytes_received.load(std::memory_order_relaxed);
        }
        const uint64_t epoch = sampler_->epoch_of(step.step);
        line_.clear();
        fmt::format_to(
            std::back_inserter(line_),
            "{{\"step\":{},\"epoch\":{},\"loss\":{:.6f},\"digest\":\"{:016x}\",\"clipped\":{},\"compute_us\":{},\"wait_us\":{},"
            "\"apply_us\":{},"
            "\"bytes_sent\":{},\"bytes_received\":{},\"kernels\":\"{}\",\"kernel_set\":\"{}\",\"exchange\":\"{}\",\"quantiser\":\"{}\"",
            step.step, epoch, step.loss, step.digest, step.clipped, step.compute_us, step.wait_us, step.apply_us, sent - sent_,
            received - received_, compute_.net->kernels(), kernel_set_, exchange_name_, quantiser_name(job_.quantiser));
        sent_ = sent, received_ = received;

        std::unique_lock lock(status_mutex_);
        status_.step = context.step;
        status_.epoch = epoch;
        status_.loss = step.loss;
        if (status_.losses.size() != context.why_lost.size()) status_.losses = context.why_lost;
        status_.step_digest = step.digest;
        status_.seconds = static_cast<double>(now_us - begin_us_) / 1e6;
        status_.samples_per_second = status_.seconds > 0 ? static_cast<double>(context.step * job_.batch) / status_.seconds : 0;
        status_.load_wait_us = loader_->waited_us();
        status_.exchange_wait_us += step.wait_us;
        double rate = status_.samples_per_second;
        lock.unlock();
        if (config_.self == 0 && now_us - logged_us_ >= 1'000'000) {
            logged_us_ = now_us;
            log_.info("step {}/{} epoch {} loss {:.4f} {:.0f} samples/s compute {} us wait {} us apply {} us", context.step, steps_, epoch,
                      step.loss, rate, step.compute_us, step.wait_us, step.apply_us);
        }
    }

    /// Rank r evaluates batches r, r + n, …; the lowest ranks, one more than may be lost, each add all up in the order of the batches, so
    /// the sum has the same bits whatever n.  What a lost rank owes they evaluate themselves.
    Status evaluate(Context& context, uint64_t epoch, double* accuracy) {
        const uint32_t n = config_.view.n(), batches = evaluator_->batches(), self = config_.self;
        auto* results = results_.as<BatchResult>();
        auto count = [&](Rank rank) {
            return rank < batches ? (batches - rank - 1) / n + 1 : 0;
        };   // of rank's batches, which lie side by side
        auto first = [&](Rank rank) { return rank * (batches / n) + std::min(rank, batches % n); };
        auto part = [&](Rank rank) { return results_.part(first(rank) * sizeof(BatchResult), count(rank) * sizeof(BatchResult)); };
        auto total = [&](Rank adder) { return totals_.part(adder * sizeof(BatchResult), sizeof(BatchResult)); };
        auto run = [&](Rank rank) {
            return evaluator_->run(*compute_.net, lanes_, rank, n, {results + first(rank), count(rank)}, progress_);
        };

        // Tickets: parts by rank, then totals by adder, then what is sent.
        const std::string what = fmt::format("result of the evaluation after step {}", context.step);
        const uint64_t tag = 2 * context.step, parts = 1, totals = parts + n, sends = totals + adders_;
        context.mailed.assign(sends + 2, Context::Mailed::done);
        auto open = [&](uint64_t ticket) {
            context.mailed[ticket] = Context::Mailed::open;
            return ticket;
        };
        for (Rank rank = 0; rank < n && self < adders_; ++rank)
            if (rank != self && count(rank) > 0) context.mail.receive(rank, tag, part(rank), open(parts + rank));
        for (Rank adder = 0; adder < adders_; ++adder)
            if (adder != self) context.mail.receive(adder, tag + 1, total(adder), open(totals + adder));
        GC_TRY(run(self));
        if (count(self) > 0 && !(self == 0 && adders_ == 1)) context.mail.send({0, to_adders_.data()}, tag, part(self), open(sends));
        if (self < adders_) {
            GC_TRY(context.wait_mail(parts, parts + n - 1, timeouts_.first_step_us, what.c_str()));
            BatchResult sum;
            for (Rank rank = 0; rank < n; ++rank)
                if (context.mailed[parts + rank] == Context::Mailed::lost) GC_TRY(run(rank));
            for (uint32_t batch = 0; batch < batches; ++batch) {
                const BatchResult& result = results[first(batch % n) + batch / n];
                sum.right += result.right, sum.loss += result.loss;
            }
            *total(self).as<BatchResult>() = sum;
            if (n > 1) context.mail.send({0, others_.data()}, tag + 1, total(self), open(sends + 1));
        }
        GC_TRY(context.wait_mail(totals, sends + 1, timeouts_.first_step_us, what.c_str()));
        Rank adder = 0;
        while (adder + 1 < adders_ && context.mailed[totals + adder] == Context::Mailed::lost) ++adder;
        const BatchResult sum = *total(adder).as<BatchResult>();
        const auto samples = static_cast<double>(test_->info().count);
        const double loss = sum.loss / samples;
        std::string shown;
        if (test_->info().target_scale == 0) {   // of a regression nothing is right or wrong
            *accuracy = static_cast<double>(sum.right) / samples;
            shown = fmt::format(" accuracy {:.4f}", *accuracy);
            fmt::format_to(std::back_inserter(line_), ",\"accuracy\":{:.6f}", *accuracy);
        }
        fmt::format_to(std::back_inserter(line_), ",\"test_loss\":{:.6f}", loss);
        {
            std::lock_guard lock(status_mutex_);
            status_.accuracy = *accuracy;
            status_.test_loss = loss;
        }
        log_.info("epoch {} step {} loss {:.4f} test loss {:.4f}{}", epoch, context.step, context.record.loss, loss, shown);
        return {};
    }

    void finish(Context& context, Status status) {
        if (!status.ok()) ::unlink((config_.folder + "/final.h5.part").c_str());
        steps_log_.close();
        if (status.ok()) log_.info("done after {} steps, digest {}", context.step, digest_);
        else log_.error("{}", status.what);
        std::lock_guard lock(status_mutex_);
        status_.state = status.ok() ? JobState::done : status.code == Code::cancelled ? JobState::cancelled : JobState::failed;
        status_.error = status.what;
        status_.losses = context.why_lost;
        status_.digest = status.ok() ? digest_ : "";
        if (begin_us_) status_.seconds = static_cast<double>(context.host.now_us() - begin_us_) / 1e6;
    }

    const EngineConfig config_;
    const JobConfig& job_;
    uint64_t deadline_us_;   // the job's, or what probe() raised it to
    Timeouts timeouts_;
    Log log_;
    StepLog steps_log_;

    // In the order in which they are made; each may use those before it.
    Arena arena_;
    std::unique_ptr<Profile> profile_;
    std::unique_ptr<DataSet> train_, test_;
    std::unique_ptr<Sampler> sampler_;
    Computer compute_;
    BulkCounters bulk_counters_;
    bool deaf_told_ = false;
    Installed running_;
    std::unique_ptr<Vacancy> vacancy_;   // `auto`: where chosen_ will go
    Arena chosen_arena_;
    Installed chosen_;
    std::unique_ptr<ResidentImages> resident_;   // null: each block's samples are read
    std::unique_ptr<Loader> loader_;
    std::unique_ptr<Protocol> mail_protocol_, job_protocol_;
    std::unique_ptr<Algorithm> algorithm_;
    std::unique_ptr<Evaluator> evaluator_;
    Progress progress_;
    Lanes lanes_;

    std::vector<Alternative> alternatives_;
    const char* exchange_name_ = nullptr;
    uint64_t computes_us_[measured_end - measured_first] = {}, waits_us_[measured_end - measured_first] = {};
    std::vector<Measured> told_;   // by rank
    uint64_t agreements_ = 0;
    std::vector<uint32_t> sizes_;   // of blocks
    std::vector<uint32_t> own_blocks_;
    std::vector<uint64_t> others_, to_adders_;   // bits of ranks: all but this one; the adders but this one
    uint32_t targets_ = 0;                       // of any exchange that the job may use, at most
    uint32_t adders_ = 1;                        // lowest ranks that add up an evaluation
    Buffer results_, totals_;                    // BatchResult by rank and batch; of the whole test set
    uint64_t steps_ = 0, begin_us_ = 0, logged_us_ = 0, sent_ = 0, received_ = 0;
    std::string kernel_set_, data_digest_, start_digest_, digest_;
    fmt::memory_buffer line_;
    bool ended_ = false;   // all ranks have agreed that the job is done
    const LinkCounters* counters_ = nullptr;

    mutable std::mutex status_mutex_;
    JobStatus status_;
    std::mutex host_mutex_;   // of the two below: cancel() comes from any thread
    Host* host_ = nullptr;    // while run() runs
    Status cancel_;
};

}   // namespace

const char* job_state_name(JobState state) {
    switch (state) {
        case JobState::preparing: return "preparing";
        case JobState::running: return "running";
        case JobState::done: return "done";
        case JobState::failed: return "failed";
        case JobState::cancelled: return "cancelled";
    }
    return "?";
}

Status Engine::open(const EngineConfig& config, const Log& log, std::unique_ptr<Engine>* engine) {
    auto made = std::make_unique<JobEngine>(config, log);
    GC_TRY(made->prepare());
    *engine = std::move(made);
    return {};
}

Status model_evaluate(const std::string& path, const std::string& data, uint32_t threads, Evaluation* evaluation) {
    Model model;
    std::vector<float> parameters;
    GC_TRY(model_read(path, &model, &parameters));
    // A model of the first classes of its data is measured on these: its job file says so.
    JobConfig job;
    std::vector<JobMistake> mistakes;
    (void)job_parse(model.job, path, "", &job, &mistakes);   // of another version, perhaps: then it is measured on all
    std::unique_ptr<DataSet> set;
    GC_TRY(data_open(data, &set, job.classes));
    const DataInfo& info = set->info();
    const NetSpec& spec = model.net;
    if (info.C != spec.C || info.H != spec.H || info.W != spec.W || info.classes != spec.classes)
        return fail(Code::data, "the model {} takes samples of {}x{}x{} in {} classes, {} has {}x{}x{} in {}", path, spec.C, spec.H, spec.W,
                    spec.classes, data, info.C, info.H, info.W, info.classes);
    if (info.target_scale != spec.target_scale)
        return fail(Code::data, "the model {} has the target_scale {}, {} has {} (0: classes)", path, spec.target_scale, data,
                    info.target_scale);
    GC_TRY(data_verify(*set));
    threads = std::max(threads, 1u);
    Arena arena;
    std::unique_ptr<Net> net;
    // Forward only, but for blocks of one sample; in bf16 where the job was and this CPU can.
    NetConfig config{.lanes = threads, .samples_max = evaluation_batch, .block_sizes = {1}, .precision = job.precision};
    Status planned = net_cpu_plan(spec, config, arena, &net);
    if (planned.code == Code::unsupported && config.precision != Precision::f32) {
        config.precision = Precision::f32;
        planned = net_cpu_plan(spec, config, arena, &net);
    }
    GC_TRY(planned);
    Evaluator evaluator(*set, model.mean, model.std);
    evaluator.plan(threads, arena);
    if (info.target_scale == 0) evaluator.confuse();
    GC_TRY(arena.seal());
    GC_TRY(net_cpu_ready(*net));
    std::copy(parameters.begin(), parameters.end(), net->parameters().begin());
    net->refresh();
    Lanes lanes;
    lanes.open(threads);
    std::vector<BatchResult> results(evaluator.batches());
    Progress progress;
    GC_TRY(evaluator.run(*net, lanes, 0, 1, results, progress));
    Evaluation done{.count = info.count,
                    .regression = info.target_scale > 0,
                    .count_of_class = evaluator.count_of_class,
                    .right_of_class = evaluator.right_of_class,
                    .confusion = evaluator.confusion,
                    .class_names = set->shards()[0].info.class_names,
                    .digest = model.digest,
                    .kernels = net->kernels()};
    for (const BatchResult& result : results) done.right += result.right, done.loss += result.loss;
    done.loss /= static_cast<double>(info.count);
    *evaluation = std::move(done);
    return {};
}

}   // namespace gradcast
