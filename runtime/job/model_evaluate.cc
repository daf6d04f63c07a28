#include "runtime/job/model_evaluate.h"

#include <algorithm>

#include "datasets/reader.h"
#include "runtime/job/evaluate.h"
#include "runtime/job/job_file.h"
#include "runtime/job/model_file.h"
#include "runtime/job/safetensors.h"

namespace gradcast {

Status model_evaluate(const std::string& path, const std::string& data, uint32_t threads, Evaluation* evaluation, size_t literal) {
    Model model;
    std::vector<float> parameters;
    const bool tensors = path.ends_with(".safetensors");
    GC_TRY(tensors ? safetensors_model(path, &model, &parameters) : model_read(path, &model, &parameters));
    // A model of the first classes of its data is measured on these: its job file says so.
    JobConfig job;
    std::vector<JobMistake> mistakes;
    (void)job_parse(model.job, path, "", &job, &mistakes);   // of another version, perhaps: then it is measured on all
    if (tensors && model.net.target_scale == 0) job.classes = model.net.classes;
    std::unique_ptr<DataSet> set;
    GC_TRY(data_open(data, &set, {.classes = job.classes, .literal = literal}));
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
    GC_TRY(lanes.open(threads));
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
    for (const BatchResult& result : results) {
        done.right += result.right;
        done.loss += result.loss;
    }
    done.loss /= static_cast<double>(info.count);
    *evaluation = std::move(done);
    return {};
}

}   // namespace gradcast
