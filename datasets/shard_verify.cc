// Reads all bytes of a shard and compares digests.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <utility>

#include "datasets/chunks.h"
#include "datasets/picture.h"
#include "datasets/shard.h"
#include "datasets/shard_format.h"
#include "runtime/core/digest.h"

namespace gradcast {
namespace {

using namespace shard_format;

/// A reader returns bytes of a data set from byte `at` on: at least 1, at most `most`.
using Bytes = std::span<const std::byte>;

struct ContiguousReader {
    const Shard& shard;
    int fd;
    const char* name;
    uint64_t offset, sample_bytes;
    std::vector<std::byte> buffer = {};
    Status operator()(uint64_t at, uint64_t most, Bytes* bytes) {
        if (const uint64_t wanted = std::min(digest_bytes, most); buffer.size() < wanted) buffer.resize(wanted);
        for (;;) {
            ssize_t got = ::pread(fd, buffer.data(), std::min<uint64_t>(buffer.size(), most), static_cast<off_t>(offset + at));
            if (got < 0 && errno == EINTR) continue;
            if (got <= 0) return shard_read_error(shard, name, at / sample_bytes, got < 0 ? errno : 0);
            *bytes = Bytes(buffer.data(), static_cast<size_t>(got));
            return {};
        }
    }
};

struct ChunkReader {
    const Shard& shard;
    int fd;
    std::vector<uint8_t> inflated = std::vector<uint8_t>(shard.chunk_bytes());
    uint64_t held = UINT64_MAX;
    Inflater inflater = {};
    Status operator()(uint64_t at, uint64_t most, Bytes* bytes) {
        const uint64_t chunk = at / inflated.size(), within = at % inflated.size();
        if (chunk != held) GC_TRY(inflater.read(shard, fd, chunk, inflated.data()));
        held = chunk;
        *bytes = std::as_bytes(std::span(inflated)).subspan(within, std::min<uint64_t>(most, inflated.size() - within));
        return {};
    }
};

/// Little-endian elements whose bytes come in pieces, which may end within one.
class Elements {
public:
    explicit Elements(uint32_t width) : width_(width) {}   // bytes, at most 4
    /// each(value, its number in the data set).  at: of the first byte.
    template <typename Each>
    Status operator()(uint64_t at, Bytes bytes, Each each) {
        for (size_t i = 0; i < bytes.size(); ++i) {
            const auto place = static_cast<uint32_t>((at + i) % width_);
            value_ = (place == 0 ? 0 : value_) | std::to_integer<uint32_t>(bytes[i]) << (8 * place);
            if (place + 1 == width_) GC_TRY(each(value_, (at + i) / width_));
        }
        return {};
    }

private:
    uint32_t width_, value_ = 0;
};

/// Refuses NaN and infinity.
struct FiniteCheck {
    const Shard& shard;
    const char* name;
    uint64_t sample_bytes;
    Elements elements{sizeof(float)};
    Status operator()(uint64_t at, Bytes bytes) {
        return elements(at, bytes, [&](uint32_t value, uint64_t number) {
            constexpr uint32_t exponent = 0x7F80'0000;
            return (value & exponent) != exponent ? Status() : shard_not_finite(shard, name, number * sizeof value / sample_bytes);
        });
    }
};

/// Refuses tokens that are not below the vocabulary.
struct TokenCheck {
    const Shard& shard;
    Elements elements{element_bytes(shard.info.element)};
    Status operator()(uint64_t at, Bytes bytes) {
        return elements(at, bytes, [&](uint32_t token, uint64_t sample) {
            if (token < shard.info.vocabulary) return Status();
            return fail(Code::data, "{}: data set {}, chunk {} (token {}): {} is not below the vocabulary of {}", shard.path,
                        shard.samples_name, sample / shard.digest_samples, sample, token, shard.info.vocabulary);
        });
    }
};

/// Refuses labels of masks that are not below the classes, nor the one that is ignored.
struct MaskCheck {
    const Shard& shard;
    Elements elements{element_bytes(shard.info.target_element)};
    Status operator()(uint64_t at, Bytes bytes) {
        const DataInfo& info = shard.info;
        return elements(at, bytes, [&](uint32_t label, uint64_t number) {
            if (label < info.classes || static_cast<int32_t>(label) == info.ignore) return Status();
            const uint64_t sample = number / info.targets, pixel = number % info.targets;
            return fail(Code::data, "{}: data set {}, chunk {} (sample {}, row {}, column {}): label {} is not below the {} classes",
                        shard.path, shard.targets_name, sample / shard.digest_samples, sample, pixel / info.W, pixel % info.W, label,
                        info.classes);
        });
    }
};

/// Refuses labels that are not below the classes.
struct LabelCheck {
    const Shard& shard;
    Elements elements{shard.target_bytes};
    Status operator()(uint64_t at, Bytes bytes) {
        return elements(at, bytes, [&](uint32_t label, uint64_t sample) {
            return label < shard.info.classes ? Status() : shard_label_error(shard, sample, label);
        });
    }
};

/// Compares the digests of one data set; passes its bytes to `each`, in order.
template <typename Read, typename Each>
Status verify(const Shard& shard, const char* name, uint64_t sample_bytes, const std::vector<std::string>& digests, Read read,
              const std::atomic<bool>* stop, Each each) {
    for (uint64_t chunk = 0; chunk < digests.size(); ++chunk) {
        uint64_t first = chunk * shard.digest_samples, last = first + std::min(shard.digest_samples, shard.info.count - first);
        Sha256 sha;
        for (uint64_t at = first * sample_bytes; at < last * sample_bytes;) {
            if (stop && stop->load(std::memory_order_relaxed)) return fail(Code::cancelled, "stopped while the data are verified");
            Bytes bytes;
            GC_TRY(read(at, last * sample_bytes - at, &bytes));
            sha.add(bytes);
            GC_TRY(each(at, bytes));
            at += bytes.size();
        }
        if (sha.hex() != digests[chunk])
            return fail(Code::data,
                        "{}: data set {}, chunk {} (samples {} .. {}): SHA-256 is not the one written with it: the file is damaged, import "
                        "it again",
                        shard.path, name, chunk, first, last - 1);
    }
    return {};
}

/// Compares the digests of JPEGs, and looks at their headers.
Status pictures_verify(const Shard& shard, int fd, const std::atomic<bool>* stop) {
    PictureDecoder decoder;
    std::vector<uint8_t> bytes;
    for (uint64_t chunk = 0; chunk < shard.sample_digests.size(); ++chunk) {
        const uint64_t first = chunk * shard.digest_samples, last = first + std::min(shard.digest_samples, shard.info.count - first);
        Sha256 sha;
        Status status;
        for (uint64_t sample = first; sample < last; ++sample) {
            if (stop && stop->load(std::memory_order_relaxed)) return fail(Code::cancelled, "stopped while the data are verified");
            uint32_t H = 0, W = 0;
            GC_TRY(shard_picture_read(shard, fd, sample, &bytes));
            sha.add(std::as_bytes(std::span(bytes)));
            // A damaged file is named as such, not by what its damage looks like.
            if (status.ok()) status = shard_picture_open(shard, sample, bytes, &decoder, &H, &W);
        }
        if (sha.hex() != shard.sample_digests[chunk])
            return fail(Code::data,
                        "{}: data set {}, chunk {} (samples {} .. {}): SHA-256 is not the one written with it: the file is damaged, import "
                        "it again",
                        shard.path, shard.samples_name, chunk, first, last - 1);
        GC_TRY(status);
    }
    return {};
}

}   // namespace

Status shard_read_error(const Shard& shard, const char* name, uint64_t sample, int sys) {
    uint64_t chunk = sample / shard.digest_samples;
    if (sys == 0)
        return fail(Code::data, "{}: data set {}, chunk {} (sample {}): the file ends here: truncated while in use", shard.path, name,
                    chunk, sample);
    return fail_sys(sys, "{}: data set {}, chunk {} (sample {}): cannot read", shard.path, name, chunk, sample);
}

Status shard_label_error(const Shard& shard, uint64_t sample, uint32_t label) {
    return fail(Code::data, "{}: data set {}, chunk {} (sample {}): label {} is not below the {} classes", shard.path, shard.targets_name,
                sample / shard.digest_samples, sample, label, shard.info.classes);
}

Status shard_not_finite(const Shard& shard, const char* data_set, uint64_t sample) {
    return fail(Code::data, "{}: data set {}, chunk {} (sample {}): a value is not finite (NaN or infinity): leave the sample out",
                shard.path, data_set, sample / shard.digest_samples, sample);
}

Status shard_picture_error(const Shard& shard, uint64_t sample, std::string_view what) {
    return fail(Code::data, "{}: data set {}, chunk {} (sample {}): its JPEG cannot be used: {}: import it again, or leave it out",
                shard.path, shard.samples_name, sample / shard.digest_samples, sample, what);
}

Status shard_picture_read(const Shard& shard, int fd, uint64_t sample, std::vector<uint8_t>* bytes) {
    const uint64_t begin = shard.offsets[sample], length = shard.offsets[sample + 1] - begin;
    bytes->resize(length);
    for (uint64_t at = 0; at < length;) {
        const ssize_t got = ::pread(fd, bytes->data() + at, length - at, static_cast<off_t>(shard.samples_offset + begin + at));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return shard_read_error(shard, shard.samples_name, sample, got < 0 ? errno : 0);
        at += static_cast<uint64_t>(got);
    }
    return {};
}

Status shard_picture_open(const Shard& shard, uint64_t sample, std::span<const uint8_t> bytes, PictureDecoder* decoder, uint32_t* H,
                          uint32_t* W) {
    if (const char* wrong = decoder->open(bytes, shard.info.C, H, W)) return shard_picture_error(shard, sample, wrong);
    if (std::min(*H, *W) == shard.info.side && std::max(*H, *W) <= shard.info.longest) return {};
    return shard_picture_error(
        shard, sample,
        fmt::format("it has {} x {} pixels, but those of the shard have a short side of {} and a long one of at most {}", *W, *H,
                    shard.info.side, shard.info.longest));
}

Status shard_labels_from_1(const Shard& shard) {
    return fail(Code::data, "{}: data set {}: they are 1 .. {}, but those of {} classes are 0 .. {}: labels - 1 (gradcastctl help shard)",
                shard.path, shard.targets_name, shard.info.classes, shard.info.classes, shard.info.classes - 1);
}

Status shard_verify(const Shard& shard, int fd, const std::atomic<bool>* stop) {
    const uint64_t sample_bytes = shard.sample_bytes();
    const auto any = [](uint64_t, Bytes) { return Status(); };
    FiniteCheck finite_samples{shard, shard.samples_name, sample_bytes}, finite_targets{shard, shard.targets_name, shard.target_bytes};
    auto samples = [&](auto read) {
        return shard.info.element == Element::f32
                   ? verify(shard, shard.samples_name, sample_bytes, shard.sample_digests, std::move(read), stop, finite_samples)
               : shard.info.vocabulary > 0
                   ? verify(shard, shard.samples_name, sample_bytes, shard.sample_digests, std::move(read), stop, TokenCheck{shard})
                   : verify(shard, shard.samples_name, sample_bytes, shard.sample_digests, std::move(read), stop, any);
    };
    GC_TRY(shard.info.pictures()     ? pictures_verify(shard, fd, stop)
           : shard.chunk_samples > 0 ? samples(ChunkReader{shard, fd})
                                     : samples(ContiguousReader{shard, fd, shard.samples_name, shard.samples_offset, sample_bytes}));
    if (shard.info.vocabulary > 0) return {};
    ContiguousReader targets{shard, fd, shard.targets_name, shard.targets_offset, shard.target_bytes};
    if (shard.info.masks())
        return verify(shard, shard.targets_name, shard.target_bytes, shard.target_digests, std::move(targets), stop, MaskCheck{shard});
    if (shard.info.targets > 0)
        return verify(shard, shard.targets_name, shard.target_bytes, shard.target_digests, std::move(targets), stop, finite_targets);
    // Labels are checked before their digest: a label out of range has its own message.
    return verify(shard, shard.targets_name, shard.target_bytes, shard.target_digests, std::move(targets), stop, LabelCheck{shard});
}

}   // namespace gradcast
