#include "datasets/reader.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <set>
#include <tuple>

#include "datasets/tokeniser.h"
#include "runtime/core/arena.h"
#include "runtime/core/digest.h"
#include "runtime/core/memory_room.h"
#include "runtime/core/rng.h"

namespace gradcast {
namespace {

/// Those of samples first .. first + count - 1: bytes [count, target_bytes].
Status targets_bytes_read(const Shard& shard, int fd, uint64_t first, uint64_t count, std::byte* bytes) {
    const uint64_t end = (first + count) * shard.target_bytes;
    for (uint64_t at = first * shard.target_bytes; at < end;) {
        ssize_t got = ::pread(fd, bytes, end - at, static_cast<off_t>(shard.targets_offset + at));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return shard_read_error(shard, shard.targets_name, at / shard.target_bytes, got < 0 ? errno : 0);
        at += static_cast<uint64_t>(got);
        bytes += got;
    }
    return {};
}

/// Appends those of the shard.
Status targets_read(const Shard& shard, int fd, std::vector<std::byte>* targets) {
    const size_t before = targets->size(), its = shard.info.count * shard.target_bytes;
    GC_TRY(memory_room_for(3 * (before + its), shard.path + ": its targets"));
    targets->resize(before + its);
    return targets_bytes_read(shard, fd, 0, shard.info.count, targets->data() + before);
}

Status labels_read(const Shard& shard, int fd, std::vector<uint16_t>* labels) {
    // A vector that grows has the old values beside the new ones, which are twice as many at most.
    GC_TRY(memory_room_for(shard.info.count * shard.target_bytes + 3 * sizeof(uint16_t) * (labels->size() + shard.info.count),
                           shard.path + ": its labels"));
    std::vector<uint8_t> bytes(shard.info.count * shard.target_bytes);
    GC_TRY(targets_bytes_read(shard, fd, 0, shard.info.count, std::as_writable_bytes(std::span(bytes)).data()));
    auto label_of = [&](uint64_t i) -> uint32_t { return shard.target_bytes == 1 ? bytes[i] : bytes[2 * i] | bytes[2 * i + 1] << 8; };
    uint32_t least = UINT32_MAX, most = 0;
    for (uint64_t i = 0; i < shard.info.count; ++i) {
        least = std::min(least, label_of(i));
        most = std::max(most, label_of(i));
    }
    if (least == 1 && most == shard.info.classes) return shard_labels_from_1(shard);
    for (uint64_t i = 0; i < shard.info.count; ++i) {
        if (label_of(i) >= shard.info.classes) return shard_label_error(shard, i, label_of(i));
        labels->push_back(static_cast<uint16_t>(label_of(i)));
    }
    return {};
}

/// Everything that a shard's samples depend on; the digests stand for the bytes.
std::string digest_text(const Shard& shard) {
    const DataInfo& info = shard.info;
    std::string text = fmt::format("{} {} {} {} {} {}", info.count, info.C, info.H, info.W, info.classes, shard.digest_samples);
    for (float mean : info.mean) text += fmt::format(" {:a}", mean);
    for (float std : info.std) text += fmt::format(" {:a}", std);
    if (info.target_scale > 0) text += fmt::format(" {:a}", info.target_scale);
    if (info.element != Element::u8) text += fmt::format(" {}", element_name(info.element));
    if (info.ignore >= 0) text += fmt::format(" ignore {}", info.ignore);
    if (info.vocabulary > 0) text += fmt::format(" text {}", info.vocabulary);
    if (info.targets > 0) text += fmt::format(" {} {}", info.targets, element_name(info.target_element));
    if (Tokeniser::is_text(info.alphabet)) text += " merges " + sha256_hex(std::as_bytes(std::span(info.alphabet)));
    if (info.pictures()) text += fmt::format(" pictures {} {}", info.side, shard.offsets_digest);
    for (const std::string& digest : shard.sample_digests) text += " " + digest;
    for (const std::string& digest : shard.target_digests) text += " " + digest;
    return text + "\n";
}
/// "3 f32 targets", for messages.
std::string targets_text(const DataInfo& info) {
    return info.targets == 0 ? "labels" : fmt::format("{} {} targets", info.targets, element_name(info.target_element));
}
std::string sha256_of(const std::string& text) { return sha256_hex(std::as_bytes(std::span(text))); }

}   // namespace

Status data_open(const std::string& pattern, std::unique_ptr<DataSet>* data, const DataOptions& options) {
    Manifest manifest;
    GC_TRY(is_manifest(pattern) ? manifest_read(pattern, &manifest, options.confidential)
                                : shards_find(pattern, options.confidential, &manifest.shards, options.literal));
    return data_open(manifest, pattern, data, options);
}

Status data_open(const Manifest& manifest, const std::string& name, std::unique_ptr<DataSet>* data, const DataOptions& options) {
    GC_ASSERT(!manifest.shards.empty());
    const uint32_t classes = options.classes;
    const std::string first = manifest.shards[0].shown();
    auto result = std::make_unique<DataSet>();
    result->pattern_ = name;
    std::string digests;
    std::map<std::tuple<dev_t, ino_t, std::string>, const Manifest::Entry*> files;
    for (const Manifest::Entry& entry : manifest.shards) {
        if (options.stop && options.stop->load(std::memory_order_relaxed))
            return fail(Code::cancelled, "stopped while the data are opened");
        const std::string path = entry.shown();
        const uint64_t samples = entry.samples;
        const uint32_t line = entry.line;
        Shard shard;
        Fd fd;
        if (Status status = shard_open(entry.path, &shard, &fd); !status.ok()) {
            if (entry.pattern.empty()) return status;
            status = shards_absent(entry.pattern);
            return line > 0 ? fail(status.code, "{}: line {}: {}", name, line, status.what) : status;
        }
        shard.path = path;
        struct stat file;
        if (::fstat(fd.get(), &file) < 0) return fail_sys(errno, "cannot open the shard {}", path);
        const std::string text = digest_text(shard);   // with the inode number, which some file systems repeat
        const Manifest::Entry& one = *files.try_emplace({file.st_dev, file.st_ino, text}, &entry).first->second;
        if (&one != &entry)
            return line > 0 ? fail(Code::data, "{}: line {}: {} is there twice, in line {} as well", name, line, path, one.line)
                            : fail(Code::data, "{} is there twice, as {}: name each shard once", path, one.shown());
        const DataInfo &ours = result->info_, &its = shard.info;
        if (result->shards_.empty()) {
            result->info_ = its;
            result->info_.count = 0;
        } else if (its.C != ours.C || its.H != ours.H || its.W != ours.W || its.classes != ours.classes)
            return fail(Code::data,
                        "{}: samples of {} x {} x {} in {} classes, but {} has {} x {} x {} in {}: shards of one data set are alike", path,
                        its.C, its.H, its.W, its.classes, first, ours.C, ours.H, ours.W, ours.classes);
        else if (its.side != ours.side)
            return fail(Code::data, "{}: {}, but {} has {}: shards of one data set are alike", path, its.pictures() ? "JPEGs" : "pixels",
                        first, ours.pictures() ? "JPEGs" : "pixels");
        else if (its.ignore != ours.ignore)
            return fail(Code::data, "{}: masks ignore {}, but those of {} {} (-1: nothing): shards of one data set are alike", path,
                        its.ignore, first, ours.ignore);
        else if (its.element != ours.element || its.targets != ours.targets || its.target_element != ours.target_element)
            return fail(Code::data, "{}: samples of {} with {}, but {} has {} with {}: shards of one data set are alike", path,
                        element_name(its.element), targets_text(its), first, element_name(ours.element), targets_text(ours));
        else if (its.vocabulary != ours.vocabulary)
            return fail(Code::data, "{}: a vocabulary of {} tokens, but that of {} has {} (0: no text): shards of one data set are alike",
                        path, its.vocabulary, first, ours.vocabulary);
        else if (its.vocabulary > 0 && its.alphabet != ours.alphabet)
            return fail(Code::data, "{}: its tokens stand for other characters or merges than those of {}: import both at once", path,
                        first);
        else if (its.mean != ours.mean || its.std != ours.std)
            return fail(Code::data, "{}: mean and std are not those of {}: shards of one data set are alike", path, first);
        if (samples > 0 && samples != its.count)
            return fail(Code::data, "{}: line {}: {} has {} samples instead of {}", name, line, path, its.count, samples);
        if (its.vocabulary == 0 && its.targets == 0) GC_TRY(labels_read(shard, fd.get(), &result->labels_));
        if (its.regression() && its.targets > 0) GC_TRY(targets_read(shard, fd.get(), &result->targets_));
        digests += text;
        result->first_.push_back(result->info_.count);
        if (its.vocabulary > 0 && !options.look && (options.context == 0 || its.count / options.context < 2))
            return options.context == 0
                       ? fail(Code::invalid, "{} is a text: say how many tokens a sample has ([data] context)", path)
                       : fail(Code::invalid, "{} has {} tokens, too few for a context of {}: at least twice as many are needed", path,
                              its.count, options.context);
        if (its.vocabulary == 0 && options.context > 0)
            return fail(Code::invalid, "context = {}: {} is no text, but has samples: leave it out", options.context, path);
        result->info_.longest = std::max(result->info_.longest, its.longest);
        for (size_t i = 1; i < shard.offsets.size(); ++i)
            result->jpeg_bytes_max_ = std::max(result->jpeg_bytes_max_, shard.offsets[i] - shard.offsets[i - 1]);
        result->info_.count += its.vocabulary > 0 && !options.look ? its.count / options.context - 1 : its.count;
        result->shards_.push_back(std::move(shard));
        result->fds_.push_back(std::move(fd));
    }
    if (!manifest.digest.empty() && manifest.digest != sha256_of(digests))
        return fail(Code::data, "{}: the digest of its shards is {} instead of {}: they are not those of the manifest", name,
                    sha256_of(digests), manifest.digest);
    for (const auto& [given, to, what] :
         {std::tuple{&options.mean, &result->info_.mean, "mean"}, {&options.std, &result->info_.std, "std"}}) {
        if (given->empty()) continue;
        if (given->size() != result->info_.C)
            return fail(Code::invalid, "{} = {} numbers: the samples of {} have {} channels", what, given->size(), name, result->info_.C);
        *to = *given;
        digests += fmt::format("{} {:a}\n", what, fmt::join(*given, " "));
    }
    const uint32_t side = options.side > 0 ? options.side : options.side_of_pictures;
    if (DataInfo& info = result->info_; info.pictures() && side > 0 && side != info.side) {
        if (side > info.side)
            return fail(Code::invalid,
                        "side = {}: the short side of the pictures of {} has {} pixels: at most so many, or import them with --size {}",
                        side, name, info.side, side);
        info.H = info.W = side;
        digests += fmt::format("side {}\n", side);
    } else if (!info.pictures() && options.side > 0)
        return fail(Code::invalid, "side = {}: {} has samples of one size, not pictures (import images --store jpeg): leave it out",
                    options.side, name);
    if (const DataInfo& info = result->info_; info.vocabulary > 0 && !options.look) {
        result->context_ = options.context;
        result->info_.W = options.context + 1;
        digests += fmt::format("context {}\n", options.context);
        if (classes > 0) return fail(Code::invalid, "classes = {}: {} is a text, which has none", classes, name);
    }
    if (classes > 0 && result->info_.regression())
        return fail(Code::invalid, "classes = {}: {} is a regression, which has none", classes, name);
    if (classes > 0 && result->info_.masks())
        return fail(Code::invalid, "classes = {}: {} has masks, not one class a sample", classes, name);
    if (uint32_t has = result->info_.classes; classes > has)
        return fail(Code::invalid, "classes = {} is more than the {} of {}", classes, has, name);
    else if (classes > 0 && classes < has) {
        digests += fmt::format("below {}\n", classes);
        GC_TRY(memory_room_for(3 * sizeof(uint64_t) * result->labels_.size(), name + ": the places of its samples"));
        result->keep(classes);
        if (result->info_.count == 0) return fail(Code::data, "{} has no sample of the first {} classes", name, classes);
    }
    result->digest_ = sha256_of(digests);
    GC_TRY(result->chunks_.open(result->shards_,
                                options.inflated_max ? options.inflated_max : std::min(memory_room().bytes, machine_memory()) / 8));
    *data = std::move(result);
    return {};
}

const Shard* data_shared(const DataSet& a, const DataSet& b) {
    std::set<std::vector<std::string>> digests;
    for (const Shard& shard : a.shards()) digests.insert(shard.sample_digests);
    for (const Shard& shard : b.shards())
        if (digests.contains(shard.sample_digests)) return &shard;
    return nullptr;
}

std::string shard_digest(const Shard& shard) { return sha256_of(digest_text(shard)); }

Status data_verify(const DataSet& data, const std::atomic<bool>* stop) {
    for (uint32_t i = 0; i < data.shards().size(); ++i) GC_TRY(shard_verify(data.shards()[i], data.fd(i), stop));
    return {};
}

void DataSet::keep(uint32_t classes) {
    for (uint64_t i = 0; i < labels_.size(); ++i)
        if (labels_[i] < classes) {
            labels_[kept_.size()] = labels_[i];
            kept_.push_back(i);
        }
    labels_.resize(kept_.size());
    info_.count = kept_.size();
    info_.classes = classes;
}

uint64_t DataSet::in_epoch(uint64_t index, uint64_t seed, uint64_t epoch) const {
    if (context_ == 0) return index;
    const uint32_t draw = random4(Purpose::shuffle, seed, epoch, ~0u)[0];   // a permutation's draws begin with 0
    return index + info_.count * (uint64_t{draw} * context_ >> 32);
}

Run DataSet::run(std::span<const uint64_t> indices) const {
    if (context_ > 0) {
        const uint64_t window = indices[0] % info_.count, moved = indices[0] / info_.count;
        GC_ASSERT(moved < context_);
        const auto shard = static_cast<uint32_t>(std::upper_bound(first_.begin(), first_.end(), window) - first_.begin() - 1);
        const uint64_t token = (window - first_[shard]) * context_ + moved;
        return {shard, 1, token, shards_[shard].samples_offset + token * element_bytes(info_.element), sample_bytes()};
    }
    GC_ASSERT(indices[0] < info_.count);
    uint64_t index = place(indices[0]), bytes = sample_bytes();
    auto shard = static_cast<uint32_t>(std::upper_bound(first_.begin(), first_.end(), index) - first_.begin() - 1);
    uint64_t sample = index - first_[shard];
    uint64_t most =
        std::min({uint64_t{indices.size()}, shards_[shard].info.count - sample, std::max((uint64_t{1} << 30) / bytes, uint64_t{1})});
    uint32_t count = 1;
    while (count < most && indices[count] < info_.count && place(indices[count]) == index + count) ++count;
    return {shard, count, sample, shards_[shard].samples_offset + sample * bytes, count * bytes};
}

/// Repeats after short reads and signals.
Status DataSet::run_read(const Run& run, uint8_t* to) const {
    const Shard& shard = shards_[run.shard];
    if (shard.chunk_samples > 0)
        return chunks_.read(shard, run.shard, fd(run.shard), run.sample, context_ > 0 ? context_ + 1 : run.count, to);
    for (uint64_t at = 0; at < run.bytes;) {
        ssize_t got = ::pread(fd(run.shard), to + at, run.bytes - at, static_cast<off_t>(run.offset + at));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return shard_read_error(shard, shard.samples_name, run.sample + at / sample_bytes(), got < 0 ? errno : 0);
        at += static_cast<uint64_t>(got);
    }
    return {};
}

std::unique_ptr<DataSet> DataSet::of_program(uint64_t count) {
    auto made = std::make_unique<DataSet>();
    made->info_ = {.count = count, .C = 1, .H = 1, .W = 1, .classes = 2, .mean = {0}, .std = {1}, .source = "a program"};
    made->pattern_ = "data.samples";
    made->of_program_ = true;
    return made;
}

void DataSet::labels(std::span<const uint64_t> indices, int32_t* labels) const {
    if (labels_.empty()) return (void)std::fill_n(labels, indices.size(), 0);   // of a program, or there are targets
    for (size_t i = 0; i < indices.size(); ++i) labels[i] = labels_[indices[i]];
}

Status DataSet::targets(std::span<const uint64_t> indices, std::byte* targets) const {
    const uint64_t bytes = info_.targets_bytes();
    if (info_.masks()) {
        for (size_t at = 0; at < indices.size();) {
            const Run next = run(indices.subspan(at));
            GC_TRY(targets_bytes_read(shards_[next.shard], fd(next.shard), next.sample, next.count, targets + at * bytes));
            at += next.count;
        }
        return {};
    }
    for (size_t i = 0; i < indices.size() && bytes > 0; ++i) std::copy_n(&targets_[indices[i] * bytes], bytes, targets + i * bytes);
    return {};
}

std::unique_ptr<DataSet::Cut> DataSet::cut_take() const {
    {
        std::lock_guard lock(cuts_mutex_);
        if (!cuts_.empty()) {
            std::unique_ptr<Cut> cut = std::move(cuts_.back());
            cuts_.pop_back();
            return cut;
        }
    }
    auto made = std::make_unique<Cut>();
    made->jpeg.reserve(jpeg_bytes_max_);
    made->decoder.reserve(info_.C, info_.longest, info_.W);
    return made;
}

Status DataSet::pictures_read(std::span<const uint64_t> indices, uint8_t* images, Drawn drawn) const {
    std::unique_ptr<Cut> cut = cut_take();
    Status status;
    for (size_t i = 0; i < indices.size() && status.ok(); ++i) {
        const Run at = run(indices.subspan(i, 1));
        const Shard& shard = shards_[at.shard];
        uint32_t H = 0, W = 0;
        status = shard_picture_read(shard, fd(at.shard), at.sample, &cut->jpeg);
        if (status.ok()) status = shard_picture_open(shard, at.sample, cut->jpeg, &cut->decoder, &H, &W);
        if (!status.ok()) break;
        const bool random = drawn.how && drawn.how->area > 0;
        const Part part =
            random ? part_drawn(drawn.how->area, drawn.how->seed, drawn.epochs[i], indices[i], H, W) : part_centre(H, W, info_.W);
        if (const char* wrong = cut->decoder.cut(part, info_.W, images + i * sample_bytes()))
            status = shard_picture_error(shard, at.sample, wrong);
    }
    std::lock_guard lock(cuts_mutex_);
    cuts_.push_back(std::move(cut));
    return status;
}

Status DataSet::read(std::span<const uint64_t> indices, uint8_t* images, int32_t* labels_out, std::byte* targets_out, Drawn drawn) const {
    labels(indices, labels_out);
    if (targets_out) GC_TRY(targets(indices, targets_out));
    if (of_program_) return std::fill_n(images, indices.size(), uint8_t{0}), Status{};
    if (info_.pictures()) return pictures_read(indices, images, drawn);
    for (size_t at = 0; at < indices.size();) {
        Run next = run(indices.subspan(at));
        GC_TRY(run_read(next, images + at * sample_bytes()));
        at += next.count;
    }
    return {};
}

}   // namespace gradcast
