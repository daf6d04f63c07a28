#include "runtime/job/model/model_net.h"

#include <algorithm>

#include "nn/evaluation.h"
#include "runtime/job/model/evaluate.h"
#include "runtime/job/model/safetensors.h"

namespace gradcast {
namespace {

constexpr uint32_t evaluated_as = 8;   // memory as for training blocks of so many samples (evaluation_piece())

}   // namespace

Status ModelNet::open(const std::string& path, uint32_t thread_count, uint32_t samples, bool averaged) {
    const bool tensors = path.ends_with(".safetensors");
    if (tensors && averaged)
        return fail(Code::invalid, "{}: a file of tensors has one set of weights, and no averaged ones beside them", path);
    GC_TRY(tensors ? safetensors_model(path, &model, &parameters_) : (averaged ? model_averaged : model_read)(path, &model, &parameters_));
    // The job file says whether only the first classes of its data were trained on.  One of another version may not be readable here.
    JobConfig job;
    std::vector<JobMistake> mistakes;
    (void)job_parse(model.job, path, "", &job, &mistakes);
    classes = tensors && !model.net.regression() && !model.net.by_position() ? model.net.classes : job.classes;
    threads = std::max(thread_count, 1u);
    const uint32_t piece = evaluation_piece(model.net, evaluated_as, samples);
    // No block is computed: the smallest takes the least memory.
    NetConfig config{.lanes = threads, .samples_max = piece, .block_sizes = {1}, .precision = job.precision};
    Status planned = net_cpu_plan(model.net, config, arena, &net);
    if (planned.code == Code::unsupported && config.precision != Precision::f32) {
        config.precision = Precision::f32;
        planned = net_cpu_plan(model.net, config, arena, &net);
    }
    return planned;
}

Status ModelNet::ready() {
    GC_TRY(arena.seal());
    GC_TRY(net_cpu_ready(*net));
    std::copy(parameters_.begin(), parameters_.end(), net->parameters().begin());
    parameters_ = {};
    net->refresh();
    return lanes.open(threads);
}

}   // namespace gradcast
