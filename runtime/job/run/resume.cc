#include "runtime/job/run/resume.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "runtime/core/fd.h"
#include "runtime/core/memory_room.h"
#include "runtime/core/short_texts.h"
#include "runtime/job/model/checkpoint_files.h"

namespace gradcast {
namespace {

constexpr uint64_t algorithm_bytes_max = uint64_t{1} << 32;
constexpr int32_t exponent_max = 400;   // a scale that no float gradient has

/// The state of that checkpoint fits this job on these nodes.
Status check(const std::string& path, const Model& model, const ModelVectors& state, const EngineConfig& config, JobParts& parts,
             Algorithm& algorithm) {
    JobConfig before;
    std::vector<JobMistake> mistakes;
    if (!job_parse(model.job, path, model.base, &before, &mistakes))
        return fail(Code::data, "{}: its job file is not one for this version: {}", path, mistakes.front().text);
    const std::string begins_anew = fmt::format(
        "; a new job can begin with its parameters: gradcastctl export {} NAME.safetensors, and net.start = \"NAME.safetensors\"", path);
    const auto was = job_identity(before), is = job_identity(config.job);
    for (size_t i = 0; i < std::max(was.size(), is.size()); ++i) {
        if (i < was.size() && i < is.size() && was[i] == is[i]) continue;
        const auto& [key, value] = i < was.size() ? was[i] : is[i];
        const bool both = i < was.size() && i < is.size() && was[i].first == is[i].first;
        const bool same_net = !key.starts_with("net.") && !key.starts_with("layer ");
        return fail(Code::data, "{}: of another training: {} was {}{}{}", path, key, i < was.size() ? value : "not set",
                    both ? fmt::format(" and is {} now", is[i].second) : "", same_net ? begins_anew : "");
    }
    if (model.data_digest != parts.data_digest)
        return fail(Code::data, "{}: trained on other data: its digest was {:.8}, that of {} is {:.8}", path, model.data_digest,
                    data_names(config.job), parts.data_digest);
    if (!model.other_functions && model.kernel_set != parts.kernel_set)
        return fail(
            Code::data,
            "{}: trained with other kernels: the kernel set was {}, here it is {}; nodes of the same instruction set ({}), device and "
            "version of gradcast are needed{}{}",
            path, model.kernel_set, parts.kernel_set, config.isa_setting,
            parts.kernels_measured() || (before.start.empty() && config.job.start.empty()) ? "" : ", and the same file net.start",
            begins_anew);
    if (model.step >= parts.steps)
        return fail(Code::invalid, "{}: all {} steps of the job are done: more epochs or steps in the job file would go on", path,
                    parts.steps);
    if (Status restored = algorithm.restore(state.algorithm); !restored.ok()) return fail(restored.code, "{}: {}", path, restored.what);
    if (state.parameters.size() != parts.compute.net->layout().elements ||
        state.optimiser.size() != parts.compute.optimiser->state_size() ||
        state.exponents.size() != parts.compute.codec->exponents().size())
        return fail(Code::data, "{}: {} parameters, {} values of the optimiser and {} scales do not fit the job's {}, {} and {}", path,
                    state.parameters.size(), state.optimiser.size(), state.exponents.size(), parts.compute.net->layout().elements,
                    parts.compute.optimiser->state_size(), parts.compute.codec->exponents().size());
    for (const int32_t exponent : state.exponents)
        if (exponent < -exponent_max || exponent > exponent_max)
            return fail(Code::data, "{}: a scale of 2^{} is no gradient's", path, exponent);
    return {};
}

Buffer bytes_of(auto span) { return {reinterpret_cast<std::byte*>(span.data()), nullptr, span.size_bytes()}; }

}   // namespace

Status resume_find(const std::string& folder, Model* model, std::string* path, std::vector<std::string>* notes) {
    const ShortTexts for_the_caller;
    const std::vector<uint64_t> all = checkpoints_in(folder);
    bool some = !all.empty(), found = false;
    std::error_code error;
    if (const std::filesystem::directory_iterator folder_of(folder, error); error && error != std::errc::no_such_file_or_directory)
        notes->push_back(fmt::format("cannot read {}: {}", folder, error.message()));
    const auto take = [&](const std::string& each) {
        const Status status = checkpoint_check(each, model);
        if (status.ok()) *path = each;
        else notes->push_back(status.what);
        some = true;
        return status.ok();
    };
    // Checkpoints after final.h5 are of a longer job that has gone on from it.
    if (const std::string final = folder + "/final.h5"; ::access(final.c_str(), F_OK) == 0) found = take(final);
    for (size_t i = all.size(); i-- > 0 && (!found || all[i] > model->step);)
        if (take(checkpoint_path(folder, all[i]))) return {};
    return found ? Status{} : fail(Code::data, "{} holds no checkpoint{}", folder, some ? " that is whole" : "");
}

Status resume_load(const EngineConfig& config, JobParts& parts, Algorithm& algorithm, Report& report, Standing* standing) {
    Model model;
    ModelVectors state;
    const std::string& path = config.resume.path;
    GC_TRY(checkpoint_read(path, &model, &state));
    GC_TRY(check(path, model, state, config, parts, algorithm));
    if (model.step != config.resume.steps || model.state != config.resume.state)
        return fail(Code::data, "{}: holds the state {:016x} of step {} instead of {:016x} of step {}", path, model.state, model.step,
                    config.resume.state, config.resume.steps);
    if (model.other_functions)
        report.warn(
            fmt::format("{}: written before gradcast had exp, log, sin and cos of its own: the trained model will not have the bits of a "
                        "job that was never interrupted",
                        path));
    parts.restore(state);
    *standing = {model.step, model.state, model.evaluated, model.accuracy, model.test_loss, state.algorithm.size()};
    return {};
}

namespace {

/// One message after the other, each with a tag and a ticket of its own.
Status move_state(Context& context, Session& session, bool holds, const RankSet& to, Rank from, JobParts& parts, Algorithm& algorithm,
                  Standing* standing) {
    Mailbox& mail = *context.mail;
    const uint64_t tags = uint64_t{1} << 62;
    auto move = [&](uint64_t number, Buffer message) -> Status {
        if (message.bytes == 0) return {};
        mail.begin(1);
        if (holds) mail.send(to, tags | number, message, 1);
        else mail.receive(from, tags | number, message, 1);
        GC_TRY(mail.wait(1, 1, session.first_step_us(), "state to go on from"));
        if (!holds && mail.lost(1))
            return fail(Code::peer_lost, "{} is lost, which holds the state to go on from", session.view().members[from].name);
        return {};
    };
    const std::span<std::byte> head = session.keep(sizeof *standing);
    if (holds) std::memcpy(head.data(), standing, sizeof *standing);
    GC_TRY(move(0, bytes_of(head)));
    if (!holds) std::memcpy(standing, head.data(), sizeof *standing);
    if (standing->algorithm_bytes > algorithm_bytes_max)
        return fail(Code::conflict, "the state of the algorithm has {} bytes: too many", standing->algorithm_bytes);
    GC_TRY(memory_room_for(standing->algorithm_bytes, "the state of the algorithm"));
    GC_TRY(move(1, bytes_of(parts.compute.net->parameters())));
    GC_TRY(move(2, bytes_of(parts.compute.optimiser->state())));
    GC_TRY(move(3, bytes_of(parts.compute.codec->exponents())));
    const std::span<std::byte> state = session.keep(standing->algorithm_bytes);
    if (holds) std::ranges::copy(algorithm.state(), state.begin());
    GC_TRY(move(4, bytes_of(state)));
    if (!holds) {
        parts.refresh();
        GC_TRY(algorithm.restore(state));
    }
    session.keep_none();
    return {};
}

}   // namespace

Status state_send(Context& context, Session& session, const RankSet& to, JobParts& parts, Algorithm& algorithm, Standing* standing) {
    return move_state(context, session, true, to, 0, parts, algorithm, standing);
}

Status state_receive(Context& context, Session& session, Rank from, JobParts& parts, Algorithm& algorithm, Standing* standing) {
    return move_state(context, session, false, {}, from, parts, algorithm, standing);
}

Status resume_spread(const EngineConfig& config, Context& context, Session& session, JobParts& parts, Algorithm& algorithm,
                     Standing* standing) {
    const std::vector<NodeId>& nodes = session.config().nodes;
    const auto holder = static_cast<Rank>(std::find(nodes.begin(), nodes.end(), config.resume.holder) - nodes.begin());
    GC_ASSERT(holder < nodes.size());
    if (holder != session.self()) GC_TRY(state_receive(context, session, holder, parts, algorithm, standing));
    else if (nodes.size() > 1) GC_TRY(state_send(context, session, session.others(), parts, algorithm, standing));
    const uint64_t digest = context.digest(config.resume.steps, parts.model_digest());
    if (standing->steps != config.resume.steps || digest != config.resume.state)
        return fail(Code::conflict, "the state after {} steps has the digest {:016x}, its checkpoint says {:016x}", config.resume.steps,
                    digest, config.resume.state);
    return {};
}

}   // namespace gradcast
