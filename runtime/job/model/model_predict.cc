#include "runtime/job/model/model_predict.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>

#include "datasets/picture.h"
#include "runtime/job/model/evaluate.h"

namespace gradcast {

Status Predictor::open(const std::string& path, const ImageRules& rules, uint32_t threads, bool averaged) {
    path_ = path;
    rules_ = rules;
    GC_TRY(net_.open(path, threads, evaluation_batch, averaged));
    const NetSpec& spec = net_.model.net;
    if (spec.element != Element::u8)
        return fail(Code::data, "the model {} takes samples of {}, not images", path, element_name(spec.element));
    if (masks() && spec.classes > 256)
        return fail(Code::data, "the model {} has {} classes, but a PNG of classes has 256 at most", path, spec.classes);
    if (spec.regression()) return fail(Code::data, "the model {} is a regression: it has no classes", path);
    if (spec.C != 1 && spec.C != 3) return fail(Code::data, "the model {} takes samples of {} planes: an image has 1 or 3", path, spec.C);
    const bool square = spec.H == spec.W, cuts = square && !masks();
    if (rules.size > 0 && (!square || rules.size < spec.H || (rules.size > spec.H && !cuts)))
        return fail(Code::invalid, "--size {}: the model {} takes images of {} x {} pixels{}", rules.size, path, spec.W, spec.H,
                    square ? fmt::format(": give --size {}{}", spec.H, cuts ? " or more" : "") : ": resize them before");
    if (rules.size == 0) rules_.size = net_.model.pictures_side;
    rules_.whole = net_.model.pictures_side > 0 || rules_.size > spec.H;
    rooms_.resize(net_.threads);
    const uint64_t labels = masks() ? spec.targets_bytes() : sizeof(int32_t);
    const uint64_t outputs = masks() ? spec.positions() * sizeof(int32_t) : spec.classes * sizeof(float);
    for (Room& room : rooms_) {
        net_.arena.plan("images", uint64_t{evaluation_batch} * spec.C * spec.H * spec.W, &room.images);
        net_.arena.plan("images", evaluation_batch * labels, &room.labels);
        net_.arena.plan("images", evaluation_batch * outputs, &room.outputs);
    }
    GC_TRY(net_.ready());
    // A label that counts, so that the loss shows whether outputs are numbers.
    if (masks())
        for (Room& room : rooms_) std::memset(room.labels.as<std::byte>(), spec.ignore == 0 ? 1 : 0, evaluation_batch * labels);
    return {};
}

Status Predictor::read(const std::string& path, uint8_t* to, Read* read) const {
    const NetSpec& spec = net_.model.net;
    ImageFile& image = read->image;
    GC_TRY(image_sample_open(path, &image));
    GC_TRY(image_picture_check(image, rules_));
    if (const auto [H, W] = image_sample_size(image, rules_); !rules_.whole && (H != spec.H || W != spec.W))
        return fail(Code::data, "{}: {} x {} pixels, but the model {} takes {} x {}: {}", path, W, H, path_, spec.W, spec.H,
                    spec.H != spec.W ? "resize it"
                                     : fmt::format("--size {} resizes the short side to so many pixels and cuts the middle out{}", spec.H,
                                                   masks() ? "" : "; if it was trained on pictures, give the --size of their import"));
    Planes sample;
    GC_TRY(image_sample(image, rules_, spec.C, &sample, &read->odd));
    image.bytes = {};
    if (!rules_.whole) return std::copy(sample.pixels.begin(), sample.pixels.end(), to), Status{};
    std::string jpeg;
    picture_encode(sample, &jpeg);
    PictureDecoder decoder;
    uint32_t H = 0, W = 0;
    const char* wrong = decoder.open({reinterpret_cast<const uint8_t*>(jpeg.data()), jpeg.size()}, spec.C, &H, &W);
    if (!wrong) wrong = decoder.cut(part_centre(H, W, spec.H), spec.H, to);
    return wrong ? fail(Code::data, "{}: {}", path, wrong) : Status{};
}

Status Predictor::batch(uint32_t lane, std::span<const std::string> paths, uint32_t top, std::span<Prediction> results,
                        std::span<Read> reads) {
    const NetSpec& spec = net_.model.net;
    const uint64_t sample_bytes = uint64_t{spec.C} * spec.H * spec.W;
    const Room& room = rooms_[lane];
    auto* images = room.images.as<uint8_t>();
    std::array<size_t, evaluation_batch> places;   // of the images that are good
    uint32_t count = 0;
    for (size_t i = 0; i < paths.size(); ++i) {
        if (const Status status = read(paths[i], images + count * sample_bytes, &reads[i]); !status.ok()) results[i].error = status.what;
        else places[count++] = i;
    }
    if (count == 0) return {};
    Samples samples{images, nullptr, count, spec.C, spec.H, spec.W, net_.model.mean.data(), net_.model.std.data()};
    uint32_t right = 0;
    double loss = 0;
    if (masks()) {
        samples.targets = room.labels.as<std::byte>();
        auto* classes = room.outputs.as<int32_t>();
        GC_TRY(net_.net->evaluate(lane, samples, &right, &loss, classes));
        if (!std::isfinite(loss))
            return fail(Code::data, "the model {} gives NaN or Inf for {}: its parameters are damaged", path_, paths[places[0]]);
        for (uint32_t i = 0; i < count; ++i, classes += spec.positions())
            std::transform(classes, classes + spec.positions(), std::back_inserter(results[places[i]].mask),
                           [](int32_t each) { return static_cast<uint8_t>(each); });
        return {};
    }
    samples.labels = room.labels.as<int32_t>();
    auto* outputs = room.outputs.as<float>();
    GC_TRY(net_.net->evaluate(lane, samples, &right, &loss, nullptr, outputs));
    std::vector<uint32_t> order(spec.classes);
    for (uint32_t i = 0; i < count; ++i) {
        const float* of = outputs + uint64_t{i} * spec.classes;
        if (!std::all_of(of, of + spec.classes, [](float value) { return std::isfinite(value); }))
            return fail(Code::data, "the model {} gives NaN or Inf for {}: its parameters are damaged", path_, paths[places[i]]);
        std::iota(order.begin(), order.end(), 0);
        const auto end = order.begin() + std::min(top, spec.classes);
        std::partial_sort(order.begin(), end, order.end(), [of](uint32_t a, uint32_t b) { return of[a] != of[b] ? of[a] > of[b] : a < b; });
        for (auto at = order.begin(); at != end; ++at) results[places[i]].best.push_back({*at, of[*at]});
    }
    return {};
}

Status Predictor::run(std::span<const std::string> paths, uint32_t top, std::span<Prediction> results) {
    const auto batches = static_cast<uint32_t>((paths.size() + evaluation_batch - 1) / evaluation_batch);
    std::vector<Read> reads(paths.size());
    std::vector<Status> ends(batches);
    net_.lanes.run(batches, [&](uint32_t lane, uint32_t item) {
        const size_t first = size_t{item} * evaluation_batch, count = std::min<size_t>(evaluation_batch, paths.size() - first);
        ends[item] = batch(lane, paths.subspan(first, count), top, results.subspan(first, count), std::span(reads).subspan(first, count));
    });
    for (const Status& status : ends) GC_TRY(status);
    for (size_t i = 0; i < paths.size(); ++i)
        if (results[i].error.empty()) oddities_.add(reads[i].image, rules_, reads[i].odd);
    return {};
}

}   // namespace gradcast
