#include "runtime/job/run/probe_block.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/core/digest.h"
#include "runtime/core/memory_room.h"

namespace gradcast {

constexpr size_t choice_digits = 8;
constexpr std::string_view no_gradient = "00000000";

std::string gpu_kernel_set(const Net& net, uint64_t gradient) {
    const std::string choice = fmt::format("{}, {:x}", net.kernels(), net.engines());
    return sha256_hex(std::as_bytes(std::span(choice))).substr(0, choice_digits) + fmt::format("{:08x}", static_cast<uint32_t>(gradient));
}

std::string kernel_set_with(std::string_view kernel_set, std::string_view other) {
    const std::string both = fmt::format("{}, {}", kernel_set.substr(0, choice_digits), other);
    return sha256_hex(std::as_bytes(std::span(both))).substr(0, choice_digits) + std::string(kernel_set.substr(choice_digits));
}

bool kernel_sets_agree(std::string_view a, std::string_view b) {
    if (a == b) return true;
    const bool unknown = a.ends_with(no_gradient) || b.ends_with(no_gradient);
    return unknown && a.size() == b.size() && a.substr(0, choice_digits) == b.substr(0, choice_digits);
}

Status ProbeSamples::read(const JobParts& parts) {
    const DataSet& train = *parts.train;
    const uint32_t count = parts.local ? parts.local->block_sizes().front() : parts.sampler->block_size(0);
    GC_TRY(memory_room_for(count * train.sample_bytes(), "the probe block"));
    images_.resize(count * train.sample_bytes());
    labels_.resize(count);
    targets_.resize(count * train.info().targets_bytes());
    std::vector<uint64_t> indices(count);
    parts.sampler->range(0, indices);
    for (uint64_t& index : indices) index = train.in_epoch(index, parts.sampler->seed(), 0);
    GC_TRY(train.read(indices, images_.data(), labels_.data(), targets_.data()));
    samples_ = train.samples(count, images_.data(), labels_.data(), targets_.data());
    for (const uint64_t index : indices) places_.push_back({index, 0});
    if (train.of_program()) samples_.places = places_.data();
    return {};
}

Status ProbeSink::bucket(uint32_t, BlockId, uint32_t bucket, Buffer from) {
    if (config.stop && config.stop->load(std::memory_order_relaxed)) return fail(Code::cancelled, "stopped while the job is prepared");
    const Bucket& range = layout.buckets[bucket];
    const std::span<const float> all(from.as<float>(), range.count);
    digest += digest64(all, range.offset);
    for (uint32_t g = range.group; g < range.group + range.group_count; ++g) {
        const Group& group = layout.groups[g];
        for (const float x : all.subspan(group.offset - range.offset, group.count))
            maxima[g] = std::isfinite(x) ? std::max(maxima[g], std::fabs(x)) : std::numeric_limits<float>::infinity();
    }
    return {};
}

void ProbeSink::row_bound(uint64_t place, uint64_t count, float largest) {
    for (uint32_t g = 0; g < layout.groups.size(); ++g) {
        const Group& group = layout.groups[g];
        const bool inside = group.place() >= place && group.place() < place + count && !group.statistics;
        if (inside && std::isfinite(largest)) bounds[g] = std::max(bounds[g], largest);
    }
}

Status ProbeSink::finite() const {
    for (uint32_t g = 0; g < maxima.size(); ++g)
        if (!std::isfinite(maxima[g]))
            return fail(Code::diverged, "the gradient of layer {} holds NaN or Inf before the first step: look at the data",
                        layout.groups[g].layer);
    return {};
}

Status ProbeSink::scale(Codec& codec, const Layout& of_codec) const {
    GC_TRY(finite());
    std::vector<float> expected(of_codec.groups.size());
    for (size_t g = 0; g < maxima.size(); ++g) expected[g] = 4 * (maxima[g] > 0 ? maxima[g] : bounds[g]);
    codec.commit_all(of_codec, expected);
    return {};
}

}   // namespace gradcast
