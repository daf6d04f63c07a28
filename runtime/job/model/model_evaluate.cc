#include "runtime/job/model/model_evaluate.h"

#include "datasets/reader.h"
#include "datasets/verified.h"
#include "runtime/job/model/evaluate.h"
#include "runtime/job/model/model_net.h"

namespace gradcast {

double mean_iou(const Evaluation& evaluation) {
    double sum = 0, classes = 0;
    for (size_t k = 0; k < evaluation.count_of_class.size(); ++k) {
        const uint64_t right = evaluation.right_of_class[k], all = evaluation.count_of_class[k] + evaluation.predicted_of_class[k] - right;
        if (all == 0) continue;
        sum += static_cast<double>(right) / static_cast<double>(all);
        ++classes;
    }
    return classes > 0 ? sum / classes : 0;
}

Status model_evaluate(const std::string& path, const std::string& data, uint32_t threads, Evaluation* evaluation, size_t literal,
                      const std::string& verified, bool averaged) {
    ModelNet of;
    GC_TRY(of.open(path, threads, evaluation_batch, averaged));
    std::unique_ptr<DataSet> set;
    GC_TRY(data_open(data, &set,
                     {.classes = of.classes,
                      .side_of_pictures = of.model.net.H,
                      .context = of.model.net.vocabulary > 0 ? of.model.net.W - 1 : 0,
                      .literal = literal}));
    const DataInfo& info = set->info();
    const NetSpec& spec = of.model.net;
    if (info.C != spec.C || info.H != spec.H || info.W != spec.W || info.classes != spec.classes)
        return fail(Code::data, "the model {} takes samples of {}x{}x{} in {} classes, {} has {}x{}x{} in {}", path, spec.C, spec.H, spec.W,
                    spec.classes, data, info.C, info.H, info.W, info.classes);
    if (info.target_scale != spec.target_scale)
        return fail(Code::data, "the model {} has the target_scale {}, {} has {} (0: classes)", path, spec.target_scale, data,
                    info.target_scale);
    GC_TRY(samples_alike(spec, info, "the model " + path, data));
    GC_TRY(data_verify_once(*set, verified));
    Evaluator evaluator(*set, of.model.mean, of.model.std);
    const bool ranks = !info.regression() && !spec.by_position() && info.classes > Evaluator::top;
    if (ranks) evaluator.rank();
    evaluator.plan(of.threads, of.arena);
    if (!info.regression() && info.vocabulary == 0) evaluator.confuse();
    GC_TRY(of.ready());
    std::vector<BatchResult> results(evaluator.batches());
    Progress progress;
    GC_TRY(evaluator.run(*of.net, of.lanes, 0, 1, results, progress));
    Evaluation done{.count = info.count,
                    .regression = info.regression(),
                    .by_position = of.net->by_position(),
                    .text = info.vocabulary > 0,
                    .count_of_class = evaluator.count_of_class,
                    .right_of_class = evaluator.right_of_class,
                    .predicted_of_class = evaluator.predicted_of_class,
                    .confusion = evaluator.confusion,
                    .class_names = set->shards()[0].info.class_names,
                    .digest = of.model.digest,
                    .kernels = of.net->kernels()};
    BatchResult all;
    for (const BatchResult& result : results) all.add(result);
    done.right = all.right;
    if (ranks) done.right_of_top = evaluator.right_of_top;
    done.counted = all.counted;
    done.loss = all.mean_loss(spec, info.count);
    *evaluation = std::move(done);
    return {};
}

}   // namespace gradcast
