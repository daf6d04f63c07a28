#include "runtime/attach/lane.h"

#include <cmath>
#include <cstring>

namespace gradcast {

BlockPlaces block_places(uint64_t samples, const NetSpec& spec, uint64_t elements) {
    BlockPlaces places;
    const auto take = [&places](uint64_t bytes) {
        const uint64_t begin = places.bytes;
        places.bytes += (bytes + 63) / 64 * 64;
        return begin;
    };
    places.images = take(samples * spec.sample_bytes());
    places.labels = take(samples * sizeof(int32_t));
    places.targets = take(samples * spec.targets_bytes());
    places.indices = take(samples * sizeof(uint64_t));
    places.predicted = take(samples * sizeof(int32_t));
    places.gradients = take(elements * sizeof(float));
    return places;
}

Status AttachLane::start(ProcessConfig process, std::string_view text, const ProcessChannel::Wait& wait) {
    GC_TRY(channel_.start(std::move(process)));
    return channel_.send_text(GC_ATTACH_START, text, wait);
}

Status AttachLane::hello(const ProcessChannel::Wait& wait, ProcessHello* hello) {
    std::string text;
    GC_TRY(channel_.receive_text(GC_ATTACH_HELLO, wait, &text));
    const Status status = hello_parse(text, hello);
    return status.ok() ? status : fail(status.code, "{}: {}", channel_.name(), status.what);
}

Status AttachLane::give(const SharedMemory& parameters, const BlockPlaces& places, const NetSpec& spec, std::string_view text,
                        const ProcessChannel::Wait& wait) {
    places_ = places;
    targets_bytes_ = spec.targets_bytes();
    GC_TRY(memory_.open("gradcast-block", places.bytes, SharedMemory::Others::write));
    const int fds[] = {parameters.fd(), memory_.fd()};
    return channel_.send_text(GC_ATTACH_MEMORY, text, wait, fds);
}

Status AttachLane::constants(uint64_t bytes, const std::function<Status(std::span<const std::byte>)>& take,
                             const ProcessChannel::Wait& wait) {
    AttachMessage message;
    uint64_t came = 0;
    size_t size = 0;
    do {
        GC_TRY(next(GC_ATTACH_CONSTANTS, wait, &message, &size));
        if (size == 0 && message.text.head.more != 0) return channel_.wrong("an empty piece of constants");
        if (size > bytes - came) return channel_.wrong(fmt::format("more than the {} bytes of its constants", bytes));
        came += size;
        const Status taken = take(std::as_bytes(std::span(message.text.text, size)));
        if (!taken.ok()) return taken.code == Code::invalid ? channel_.wrong(taken.what) : taken;
    } while (message.text.head.more != 0);
    return came == bytes ? Status{} : channel_.wrong(fmt::format("{} bytes of constants instead of {}", came, bytes));
}

Status AttachLane::ready(const ProcessChannel::Wait& wait) {
    std::string text;
    return channel_.receive_text(GC_ATTACH_READY, wait, &text);
}

Status AttachLane::next(gc_attach_kind kind, const ProcessChannel::Wait& wait, AttachMessage* message, size_t* bytes) {
    size_t unused;
    GC_TRY(channel_.receive(wait, message, bytes ? bytes : &unused));
    if (message->kind == static_cast<uint32_t>(kind)) return {};
    return channel_.wrong(fmt::format("message {} instead of {}", message->kind, static_cast<int>(kind)));
}

Status AttachLane::done(const ProcessChannel::Wait& wait) {
    AttachMessage message;
    GC_TRY(next(GC_ATTACH_DONE, wait, &message));
    computes_ = false;
    return {};
}

Status AttachLane::ask(const gc_attach_compute& message, const Samples& samples, const ProcessChannel::Wait& wait) {
    for (AttachMessage old; computes_;) {   // what is left of a block that was given up
        size_t bytes;
        GC_TRY(channel_.receive(wait, &old, &bytes));
        computes_ = old.kind != GC_ATTACH_DONE;
    }
    std::byte* const to = memory_.all().host;
    const auto copy = [&](uint64_t place, const void* from, uint64_t bytes) {
        if (from) std::memcpy(to + place, from, bytes);
    };
    copy(places_.images, samples.images, uint64_t{samples.count} * samples.C * samples.H * samples.W * element_bytes(samples.element));
    copy(places_.labels, samples.labels, samples.count * sizeof(int32_t));
    copy(places_.targets, samples.targets, samples.count * targets_bytes_);
    for (uint32_t i = 0; samples.places && i < samples.count; ++i)
        std::memcpy(to + places_.indices + i * sizeof(uint64_t), &samples.places[i].index, sizeof(uint64_t));
    GC_TRY(channel_.send(message));
    computes_ = true;
    return {};
}

Status AttachLane::train(uint32_t lane, BlockId id, uint64_t seed, const Samples& samples, const Layout& layout,
                         const ProcessChannel::Wait& wait, GradientSink& sink) {
    GC_TRY(ask({GC_ATTACH_COMPUTE, GC_ATTACH_TRAIN, id.step, id.block, samples.count, seed}, samples, wait));
    AttachMessage message;
    GC_TRY(next(GC_ATTACH_LOSS, wait, &message));
    if (!std::isfinite(message.loss.loss))
        return fail(Code::diverged, "{} has the loss {} for block {} of step {}", channel_.name(), message.loss.loss, id.block,
                    id.step + 1);
    sink.loss(lane, id, message.loss.loss);
    for (uint32_t bucket = 0; bucket < layout.buckets.size(); ++bucket) {
        GC_TRY(next(GC_ATTACH_BUCKET, wait, &message));
        if (message.bucket.bucket != bucket) return channel_.wrong(fmt::format("bucket {} instead of {}", message.bucket.bucket, bucket));
        const Bucket& range = layout.buckets[bucket];
        GC_TRY(sink.bucket(lane, id, bucket,
                           memory_.all().part(places_.gradients + range.offset * sizeof(float), range.count * sizeof(float))));
    }
    return done(wait);
}

Status AttachLane::evaluate(const Samples& samples, const ProcessChannel::Wait& wait, gc_attach_loss* found, int32_t* predicted) {
    GC_TRY(ask({GC_ATTACH_COMPUTE, GC_ATTACH_EVALUATE, 0, 0, samples.count, 0}, samples, wait));
    AttachMessage message;
    GC_TRY(next(GC_ATTACH_LOSS, wait, &message));
    *found = message.loss;
    GC_TRY(done(wait));
    if (found->right != UINT32_MAX && found->right > samples.count)
        return channel_.wrong(fmt::format("{} right ones of {} samples", found->right, samples.count));
    if (predicted) std::memcpy(predicted, memory_.all().host + places_.predicted, samples.count * sizeof(int32_t));
    return {};
}

}   // namespace gradcast
