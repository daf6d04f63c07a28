#include "runtime/job/run/trained_model.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include "algos/cells.h"
#include "runtime/core/crypto.h"
#include "runtime/core/fd.h"
#include "runtime/job/model/tensors.h"
#include "runtime/job/report/transcript.h"
#include "runtime/job/run/gathered_model.h"

namespace gradcast {

TrainedModel::~TrainedModel() {
    if (reserved_) discard();
}

void TrainedModel::discard() const { ::unlink(part().c_str()); }

void TrainedModel::describe() {
    model_.net = parts_.compute.net->spec();
    model_.mean = parts_.train->info().mean;
    model_.std = parts_.train->info().std;
    model_.alphabet = parts_.train->info().alphabet;
    model_.pictures_side = (parts_.test ? *parts_.test : *parts_.train).info().side;
    if (!parts_.train->of_program()) model_.class_names = parts_.train->shards()[0].info.class_names;
    if (std::vector<std::string> names = class_names_split(model_.class_names); names.size() > model_.net.classes)   // data.classes
        names.resize(model_.net.classes), model_.class_names = fmt::format("{}", fmt::join(names, ","));
    model_.job = config_.job.text;
    model_.base = config_.job.base;
    model_.kernel_set = parts_.kernel_set;
    model_.data_digest = parts_.data_digest;
    model_.id = hex(config_.id);
}

const Model& TrainedModel::of(const Context& context, const Standing& standing) {
    model_.digest = digest_;
    model_.step = context.step;
    model_.state = context.state;
    model_.accuracy = standing.accuracy;
    model_.test_loss = standing.test_loss;
    model_.evaluated = standing.evaluated;
    model_.agreed = false;
    return model_;
}

const Model& TrainedModel::part_of(const Context& context, const Standing& standing, StepId steps, uint64_t part) {
    of(context, standing);
    model_.step = steps;
    model_.state = part;
    if (parts_.pipeline->cells() == 1) model_.state += splitmix64(model_.step);   // all of the state
    return model_;
}

Status TrainedModel::reserve(Algorithm& algorithm) {
    const StateSizes sizes = parts_.pipeline ? parts_.state_sizes() : parts_.state(algorithm.state()).sizes();
    uint64_t bytes = 0;
    for (const StateVector which : state_vectors) bytes += sizes[which] * kind_of(which).width;
    GC_TRY(model_reserve(part(), model_, bytes));
    reserved_ = true;
    return {};
}

void TrainedModel::compute_digest() { digest_ = sha256_hex(std::as_bytes(parts_.compute.net->parameters())); }

Status TrainedModel::write(const Context& context, const Standing& standing, Algorithm& algorithm, bool agreed) {
    of(context, standing);
    model_.agreed = agreed;
    GC_TRY(model_write(part(), model_, parts_.state(algorithm.state())));
    written_ = true;
    return {};
}

Status TrainedModel::gather(Context& context, Session& session, const Standing& standing) {
    of(context, standing);
    model_.agreed = true;
    return GatheredModel(parts_).write(
        context, session, part(), model_, parts_.deadline_us, [this] { return name(); }, &digest_, &written_);
}

Status TrainedModel::name() {
    GC_TRY(file_rename(part(), path()));
    named_ = true;
    report_.update([this](JobStatus& status) { status.model = path(); });
    return {};
}

void TrainedModel::transcript(const Context& context) {
    report_.steps_end(context.step);
    Transcript transcript;
    transcript.id = hex(config_.id);
    transcript.job = config_.job.text;
    transcript.data_digest = parts_.data_digest;
    transcript.kernel_set = parts_.kernel_set;
    for (const ViewRecord& view : report_.views()) transcript.views.push_back({view.number, view.first_step, view.members});
    transcript.steps = context.step;
    transcript.digest = digest_;
    if (Status status = transcript_write(config_.folder, transcript, config_.key); !status.ok())
        report_.warn(fmt::format("no transcript: {}", status.what));
}

}   // namespace gradcast
