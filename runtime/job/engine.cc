#include "runtime/job/engine.h"

#include <unistd.h>

#include <cstdio>

#include "algos/algorithm.h"
#include "algos/synchronous.h"
#include "runtime/core/crypto.h"
#include "runtime/core/fd.h"
#include "runtime/job/distributed_evaluation.h"
#include "runtime/job/exchange_choice.h"
#include "runtime/job/job_protocol.h"
#include "runtime/job/model_file.h"
#include "runtime/job/parts.h"
#include "runtime/job/report.h"
#include "runtime/job/vacancy.h"
#include "transport/bulk/bulk.h"

namespace gradcast {
namespace {

constexpr uint16_t on(Channel channel) { return static_cast<uint16_t>(channel); }

class JobEngine final : public Engine {
public:
    JobEngine(const EngineConfig& config, const Log& log) : config_(config), job_(config_.job), report_(log) {}

    Status prepare() {
        GC_TRY(make_directories(config_.folder));
        GC_TRY(file_write(config_.folder + "/job.toml", job_.text));
        GC_TRY(report_.open(config_));
        GC_TRY(parts_.plan(config_, report_));
        GC_TRY(choice_.open(config_, *parts_.compute.codec, report_));
        GC_TRY(install(choice_.first(), 0, parts_.arena, &running_));
        if (DeviceWords* device = parts_.compute.codec->device()) device->expect(choice_.targets_most(running_.exchange->targets()));
        if (choice_.among(parts_.steps)) vacancy_ = std::make_unique<Vacancy>(config_.datagram_bytes > 0);
        others_ = ranks_but(config_.self, config_.view.n());
        mail_protocol_ = mail_protocol(config_.self, config_.view.n(), segment_bytes_stream);
        const AlgorithmKind* algorithm;
        GC_TRY(algorithm_find(job_.algorithm, &algorithm));
        algorithm_ = algorithm->create();
        if (parts_.test) evaluation_.plan(parts_, config_.self, config_.view.n(), running_.exchange->losses_tolerated());
        report_.update([this](JobStatus& status) { status.memory = parts_.compute.budget(parts_.arena); });
        GC_TRY(parts_.ready(config_, report_));
        if (config_.self <= running_.exchange->losses_tolerated()) GC_TRY(reserve_model());
        job_protocol_ = job_protocol({config_.view, config_.self, parts_.deadline_us, parts_.kernel_set, parts_.data_digest,
                                      parts_.start_digest, &parts_.progress, running_.exchange->losses_tolerated()},
                                     report_.log());
        const Layout& layout = parts_.compute.net->layout();
        report_.log().info("rank {} of {}, {} parameters in {} buckets, {} of {} blocks, {}", config_.self, config_.view.n(),
                           layout.elements, layout.buckets.size(), own_blocks_.size(), job_.blocks, parts_.compute.budget(parts_.arena));
        return {};
    }

    const std::string& kernel_set() const override { return parts_.kernel_set; }
    const char* kernels() const override { return parts_.compute.net->kernels(); }
    const std::string& data_digest() const override { return parts_.data_digest; }
    const std::string& start_digest() const override { return parts_.start_digest; }
    Buffer memory() const override { return parts_.arena.whole(); }
    Profile* profile() override { return parts_.profile.get(); }
    void counters(const LinkCounters* counters) override { report_.counters(counters); }

    void attach(const std::function<void(uint16_t, Protocol*, bool)>& attach) override {
        attach(on(Channel::job), job_protocol_.get(), false);
        attach(on(Channel::gradient), running_.protocol(), running_.bulk != nullptr);
        if (vacancy_) attach(on(Channel::chosen), vacancy_.get(), config_.datagram_bytes > 0);
        attach(on(Channel::mail), mail_protocol_.get(), false);
    }

    Status run(Host& host) override {
        if (config_.lanes > 0) lane_start(0, config_.cpus);   // the network thread has been made
        Context context{.host = host,
                        .lanes = parts_.lanes,
                        .loader = *parts_.loader,
                        .data = *parts_.train,
                        .sampler = *parts_.sampler,
                        .net = *parts_.compute.net,
                        .optimiser = *parts_.compute.optimiser,
                        .codec = *parts_.compute.codec,
                        .progress = parts_.progress,
                        .batch = job_.batch,
                        .blocks = job_.blocks,
                        .deadline_us = parts_.deadline_us,
                        .spend_us = config_.spend_us,
                        .profile = parts_.profile.get()};
        Dispatch dispatch(host, parts_.progress, config_.view.n(), parts_.deadline_us);
        Mailbox mailbox(host, dispatch, parts_.progress, parts_.deadline_us);
        context.mail = &mailbox;
        use(context, dispatch, running_, Channel::gradient);
        {
            std::lock_guard lock(host_mutex_);
            host_ = &host;
            if (!cancel_.ok()) post(host, cancel_command_, cancel_);
        }
        Status status = train(context, dispatch);
        if (const Profile* profile = parts_.profile.get(); profile && context.step > profile->step)
            if (Status written =
                    file_write(config_.folder + "/profile.json", profile->json(config_.self, config_.view.members[config_.self].name));
                !written.ok())
                report_.log().error("{}", written.what);
        if (!status.ok() && dispatch.ended().ok() && !ended_ && !synchronous_->outvoted()) {
            // Others must hear of it, and may have found something else first: all end with one line.
            post(host, JobCommand::abort, status);
            // Whatever else fails meanwhile is a consequence.
            const uint64_t until_us = host.now_us() + 20 * parts_.deadline_us;
            for (Status waited; dispatch.ended().ok() && waited.code != Code::cancelled && host.now_us() < until_us;)
                waited = dispatch.wait_job(static_cast<uint64_t>(JobCommand::abort));
            if (!dispatch.ended().ok()) {
                // What was found here is another rank's word for the same thing, or its consequence.
                if (std::string_view(dispatch.ended().what).find(status.what) == std::string_view::npos)
                    report_.log().info("found here: {}", status.what);
                status = dispatch.ended();
            }
        }
        {
            std::lock_guard lock(host_mutex_);
            host_ = nullptr;
        }
        if (!status.ok() && !ended_ && trained_) rescue_model(context.step, status);
        // What was reserved and is not needed, or has bits that are in doubt; not a model that could not be renamed.
        if (!written_ || status.code == Code::conflict) ::unlink((model_path() + ".part").c_str());
        report_.end(status, context.step, digest_, host.now_us(), dispatch.why_lost());
        synchronous_.reset();
        return status;
    }

    void cancel(const std::string& why) override { end(JobCommand::abort, why); }
    void leave(const std::string& why) override { end(JobCommand::leave, why); }

    JobStatus status() const override { return report_.status(); }

private:
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
        own_blocks_ = installed->exchange->place(config_.view, parts_.block_sizes).blocks_of(config_.self);
        GC_TRY(installed->exchange->install(config_.view, arena));
        if (alternative.datagrams)
            installed->bulk = bulk_create({.self = config_.self,
                                           .ranks = config_.view.n(),
                                           .segment_bytes = config_.datagram_bytes,
                                           .rate_bytes_per_s = config_.pace_bytes_per_s},
                                          *installed->exchange, arena, &bulk_counters_);
        exchange_name_ = alternative.kind->name;
        report_.update([&](JobStatus& status) {
            status.bytes_bound = static_cast<uint64_t>(cost_of_rank(exchange_name_, config, config_.view.n(), {}).words_sent);
        });
        return {};
    }

    /// The algorithm sums by this exchange from now on.
    void use(Context& context, Dispatch& dispatch, const Installed& installed, Channel channel) {
        synchronous_ = std::make_unique<SynchronousStep>(
            context, dispatch, *installed.exchange, SynchronousConfig{on(channel), config_.self, config_.view, own_blocks_, context.step});
        context.synchronous = synchronous_.get();
    }

    void end(JobCommand command, const std::string& why) {
        std::lock_guard lock(host_mutex_);
        if (!cancel_.ok()) return;
        cancel_ = fail(Code::cancelled, "{}", why);
        cancel_command_ = command;
        if (host_) post(*host_, command, cancel_);
    }
    static void post(Host& host, JobCommand command, Status status) {
        Event event = command_event(command);
        event.status = status;
        host.post(on(Channel::job), event);
    }

    Status train(Context& context, Dispatch& dispatch) {
        if (!own_blocks_.empty()) parts_.loader->plan(0, own_blocks_);
        context.state = context.digest(0, parts_.model_digest());
        Event begin = command_event(JobCommand::begin);
        begin.tag = context.state;
        context.host.post(on(Channel::job), begin);
        GC_TRY(dispatch.wait_job(static_cast<uint64_t>(JobCommand::begin)));
        report_.begin(context.host.now_us());
        uint64_t epoch = 0;
        while (context.step < parts_.steps && !(job_.stop_at > 0 && accuracy_ >= job_.stop_at)) {
            if (choice_.due(context.step)) GC_TRY(choose(context, dispatch));
            GC_TRY(algorithm_->round(context));
            choice_.record(context.record);
            record(context, dispatch);
            trained_ = context.step == parts_.steps;
            bool boundary = false;
            for (; parts_.sampler->steps(epoch + 1) <= context.step; ++epoch) boundary = true;
            if (job_.evaluate > 0) boundary = context.step % job_.evaluate == 0;
            Status status;
            if (parts_.test && (boundary || context.step == parts_.steps)) status = evaluate(context, epoch, &accuracy_);
            report_.step_end();
            GC_TRY(status);
        }
        return finish(context, dispatch);
    }

    /// What the job has trained gets its file when all ranks have the same bits.
    Status finish(Context& context, Dispatch& dispatch) {
        trained_ = true;
        digest_ = sha256_hex(std::as_bytes(parts_.compute.net->parameters()));
        bool lowest = true;   // of those that live: it keeps the model
        for (Rank rank = 0; rank < config_.self; ++rank) lowest &= dispatch.lost(rank);
        if (lowest) GC_TRY(write_model(context.step));
        Event end = command_event(JobCommand::end);
        end.buffer = {reinterpret_cast<std::byte*>(digest_.data()), nullptr, digest_.size(), 0};
        context.host.post(on(Channel::job), end);
        GC_TRY(dispatch.wait_job(static_cast<uint64_t>(JobCommand::end)));
        ended_ = true;
        return lowest ? name_model() : Status{};
    }

    std::string model_path() const { return config_.folder + "/final.h5"; }
    Model model(StepId step) const {
        return {parts_.compute.net->spec(),
                parts_.train->info().mean,
                parts_.train->info().std,
                job_.text,
                digest_,
                parts_.kernel_set,
                step,
                accuracy_};
    }
    /// At the ranks that may come to write it.
    Status reserve_model() {
        return model_reserve(model_path() + ".part", model(0), parts_.compute.net->layout().elements,
                             parts_.compute.optimiser->state_size(), parts_.compute.codec->exponents().size());
    }
    Status write_model(StepId step) {
        GC_TRY(model_write(model_path() + ".part", model(step), parts_.compute.net->parameters(), parts_.compute.optimiser->state(),
                           parts_.compute.codec->exponents()));
        written_ = true;
        return {};
    }
    Status name_model() {
        GC_TRY(file_rename(model_path() + ".part", model_path()));
        report_.update([this](JobStatus& status) { status.model = model_path(); });
        return {};
    }
    /// Other ranks were lost, or the job was cancelled, when this rank had done all steps: its model is not lost with them.
    void rescue_model(StepId step, Status why) {
        const bool good = why.code == Code::peer_lost || why.code == Code::deadline || why.code == Code::cancelled;
        if (!good || synchronous_->outvoted()) return;
        if (digest_.empty()) digest_ = sha256_hex(std::as_bytes(parts_.compute.net->parameters()));
        Status status = written_ ? Status{} : write_model(step);
        if (status.ok()) status = name_model();
        if (status.ok()) report_.warn(fmt::format("the model of the last step is in {}; not every rank has confirmed it", model_path()));
        else report_.log().error("{}", status.what);
    }

    /// `auto`, between two steps.
    Status choose(Context& context, Dispatch& dispatch) {
        const Alternative* best = nullptr;
        GC_TRY(choice_.choose(context, config_.self, config_.view.n(), {0, others_.data()}, std::max(config_.lanes, 1u), first_step_us(),
                              report_, &best));
        if (best == &choice_.first()) return {};
        GC_TRY(install(*best, context.step, chosen_arena_, &chosen_));
        GC_TRY(chosen_arena_.seal());
        vacancy_->fill(*chosen_.protocol(), context.host, on(Channel::chosen));
        use(context, dispatch, chosen_, Channel::chosen);
        if (!own_blocks_.empty()) parts_.loader->plan(context.step, own_blocks_);
        return {};
    }

    void record(const Context& context, const Dispatch& dispatch) {
        const uint32_t deaf = bulk_counters_.deaf.load(std::memory_order_relaxed);
        if (deaf > 0 && !std::exchange(deaf_told_, true))
            report_.warn(fmt::format(
                "multicast from {} does not reach {} any more, datagrams to it alone do: each rank gets its own copy from now on "
                "(do the switches snoop IGMP without a querier? transport.kind = \"tcp\" does without multicast)",
                config_.view.members[config_.self].name, config_.view.members[deaf - 1].name));
        report_.step({.record = context.record,
                      .epoch = parts_.sampler->epoch_of(context.record.step) + 1,
                      .load_wait_us = parts_.loader->waited_us(),
                      .now_us = context.host.now_us(),
                      .kernels = kernels(),
                      .kernel_set = parts_.kernel_set,
                      .exchange = exchange_name_,
                      .logs = config_.self == 0},
                     dispatch.why_lost());
    }

    Status evaluate(Context& context, uint64_t epoch, double* accuracy) {
        BatchResult sum;
        GC_TRY(evaluation_.run(context, parts_, config_.self, config_.view.n(), first_step_us(), &sum));
        const auto samples = static_cast<double>(parts_.test->info().count);
        if (parts_.test->info().target_scale == 0) *accuracy = static_cast<double>(sum.right) / samples;
        report_.evaluated(epoch, *accuracy, sum.loss / samples);
        return {};
    }

    uint64_t first_step_us() const { return timeouts_of(parts_.deadline_us).first_step_us; }

    const EngineConfig config_;
    const JobConfig& job_;
    Report report_;

    // In the order in which they are made; each may use those before it.
    JobParts parts_;
    BulkCounters bulk_counters_;
    bool deaf_told_ = false;
    ExchangeChoice choice_;
    Installed running_;
    std::unique_ptr<Vacancy> vacancy_;   // `auto`: where chosen_ will go
    Arena chosen_arena_;
    Installed chosen_;
    std::unique_ptr<Protocol> mail_protocol_, job_protocol_;
    std::unique_ptr<Algorithm> algorithm_;
    DistributedEvaluation evaluation_;
    std::unique_ptr<SynchronousStep> synchronous_;   // while run() runs

    const char* exchange_name_ = nullptr;
    std::vector<uint32_t> own_blocks_;
    std::vector<uint64_t> others_;   // bits of ranks: all but this one
    std::string digest_;
    double accuracy_ = -1;                     // of the last evaluation
    bool trained_ = false, written_ = false;   // all steps are done; the model is written
    bool ended_ = false;                       // all ranks have agreed that the job is done

    std::mutex host_mutex_;   // of all below: cancel() comes from any thread
    Host* host_ = nullptr;    // while run() runs
    Status cancel_;
    JobCommand cancel_command_ = JobCommand::abort;
};

}   // namespace

Status Engine::open(const EngineConfig& config, const Log& log, std::unique_ptr<Engine>* engine) {
    auto made = std::make_unique<JobEngine>(config, log);
    GC_TRY(made->prepare());
    *engine = std::move(made);
    return {};
}

}   // namespace gradcast
