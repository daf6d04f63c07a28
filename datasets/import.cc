// Importers: from the files a data set is published in to shards.  To add one: a row in `kinds` and, for a new file format, a function that
// fills a Set.
#include <fmt/format.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <memory>

#include "datasets/shard.h"
#include "runtime/core/fd.h"

namespace gradcast {
namespace {

struct Kind {
    const char* name;
    uint32_t classes;   // 0: as many as the labels show
    const char* source;
    const char* from;   // where Debian's package puts it; null if there is none
    const char* package;
};
constexpr Kind kinds[] = {
    {"fashion-mnist", 10, "Fashion-MNIST, Xiao, Rasul, Vollgraf 2017", "/usr/share/datasets/fashion-mnist", "dataset-fashion-mnist"},
    {"mnist", 10, "MNIST, LeCun, Cortes, Burges 1998", nullptr, nullptr},
    {"idx", 0, "IDX files", nullptr, nullptr},
};

/// One half of a data set, in memory.
struct Set {
    uint64_t count = 0;
    uint32_t H = 0, W = 0;
    std::vector<uint8_t> images;
    std::vector<int32_t> labels;
    std::string labels_path;
};

/// An IDX file (plain or gz): magic 0 0 8 (uint8) and the number of dimensions, each of these as a big-endian uint32, then the bytes.
struct Idx {
    std::string path;
    std::vector<uint32_t> dims;
    std::vector<uint8_t> bytes;
};

struct GzClose {
    void operator()(gzFile file) const { gzclose_r(file); }
};

Status idx_read(const std::string& folder, const std::string& name, size_t rank, Idx* idx) {
    std::string path = folder + "/" + name + ".gz";
    if (::access(path.c_str(), F_OK) != 0) path = folder + "/" + name;
    std::unique_ptr<gzFile_s, GzClose> file(gzopen(path.c_str(), "rbe"));   // reads a file that is not gz as it is
    if (!file) {
        if (errno == ENOENT) return fail(Code::data, "{}/{}[.gz] is missing", folder, name);
        return fail_sys(errno, "cannot open {}", path);
    }
    gzbuffer(file.get(), 1 << 18);
    // The reason why less came than was asked for: the stream's own, or that it just ends.
    auto short_read = [&](std::string_view what) {
        int error = Z_OK;
        const char* reason = gzerror(file.get(), &error);
        if (error == Z_ERRNO) return fail_sys(errno, "cannot read {}", path);
        if (error != Z_OK && error != Z_BUF_ERROR) return fail(Code::data, "{}: damaged: {}", path, reason);
        return fail(Code::data, "{}: truncated: it ends within {}", path, what);
    };
    auto get = [&](uint8_t* to, size_t bytes) { return gzread(file.get(), to, static_cast<unsigned>(bytes)) == static_cast<int>(bytes); };

    uint8_t header[4 + 4 * 3];
    if (!get(header, 4)) return short_read("its header");
    if (header[0] != 0 || header[1] != 0 || header[2] != 8 || header[3] != rank)
        return fail(Code::data, "{}: not an IDX file of uint8 with {} dimensions: it begins with {:02x} {:02x} {:02x} {:02x}", path, rank,
                    header[0], header[1], header[2], header[3]);
    if (!get(header + 4, 4 * rank)) return short_read("its header");
    Idx read{path, {}, {}};
    uint64_t total = 1;
    for (size_t i = 0; i < rank; ++i) {
        const uint8_t* at = header + 4 + 4 * i;
        read.dims.push_back(uint32_t{at[0]} << 24 | uint32_t{at[1]} << 16 | uint32_t{at[2]} << 8 | at[3]);
        if (read.dims[i] == 0 || (i > 0 && read.dims[i] > 65536)) return fail(Code::data, "{}: dimension {} is {}", path, i, read.dims[i]);
        total *= read.dims[i];   // at most 2^64 - 2^32
    }
    // Grows with what really comes: the header may promise anything.
    constexpr uint64_t piece = 16 << 20;
    while (read.bytes.size() < total) {
        uint64_t have = read.bytes.size(), want = std::min(piece, total - have);
        if (have + want > read.bytes.capacity()) read.bytes.reserve(std::min(total, std::max(have + want, 2 * have)));
        read.bytes.resize(have + want);
        if (!get(read.bytes.data() + have, want)) return short_read(fmt::format("the {} bytes that its header promises", total));
    }
    // One byte more: the end of the stream, where zlib has compared the checksum.
    uint8_t more;
    if (gzread(file.get(), &more, 1) != 0) {
        int error = Z_OK;
        gzerror(file.get(), &error);
        return error == Z_OK ? fail(Code::data, "{}: longer than the {} bytes that its header promises", path, total)
                             : short_read("its checksum");
    }
    if (int error = Z_OK; gzerror(file.get(), &error), error != Z_OK) return short_read("its checksum");
    *idx = std::move(read);
    return {};
}

Status set_read(const std::string& folder, const std::string& prefix, Set* set) {
    Idx images, labels;
    GC_TRY(idx_read(folder, prefix + "-labels-idx1-ubyte", 1, &labels));
    GC_TRY(idx_read(folder, prefix + "-images-idx3-ubyte", 3, &images));
    if (images.dims[0] != labels.dims[0])
        return fail(Code::data, "{} has {} labels for the {} images of {}", labels.path, labels.dims[0], images.dims[0], images.path);
    set->count = images.dims[0], set->H = images.dims[1], set->W = images.dims[2];
    set->images = std::move(images.bytes);
    set->labels.assign(labels.bytes.begin(), labels.bytes.end());
    set->labels_path = labels.path;
    return {};
}

Status labels_check(const Set& set, uint32_t classes) {
    auto wrong = std::find_if(set.labels.begin(), set.labels.end(), [&](int32_t label) { return static_cast<uint32_t>(label) >= classes; });
    if (wrong == set.labels.end()) return {};
    return fail(Code::data, "{}: label {} of sample {} is not below the {} classes", set.labels_path, *wrong, wrong - set.labels.begin(),
                classes);
}

/// Per channel, over all pixels, scaled to 0..1; from exact integer sums.  images [count, C, pixels].
void mean_and_std(const uint8_t* images, uint64_t count, uint32_t C, uint64_t pixels, DataInfo* info) {
    for (uint32_t c = 0; c < C; ++c) {
        uint64_t sum = 0, squares = 0;
        for (uint64_t n = 0; n < count; ++n)
            for (const uint8_t *x = images + (n * C + c) * pixels, *end = x + pixels; x != end; ++x)
                sum += *x, squares += uint32_t{*x} * *x;
        double total = static_cast<double>(count * pixels);
        // count * squares - sum^2 in whole numbers: as a difference of two means it would lose the digits that matter.
        auto spread = static_cast<unsigned __int128>(count * pixels) * squares - static_cast<unsigned __int128>(sum) * sum;
        info->mean.push_back(static_cast<float>(static_cast<double>(sum) / total / 255));
        info->std.push_back(
            spread == 0 ? 1.0f : static_cast<float>(std::sqrt(static_cast<double>(spread)) / total / 255));   // 1: all pixels are equal
    }
}

}   // namespace

const std::vector<std::string>& import_kinds() {
    static const std::vector<std::string> names = [] {
        std::vector<std::string> list;
        for (const Kind& kind : kinds) list.emplace_back(kind.name);
        return list;
    }();
    return names;
}

Status data_import(const ImportConfig& config, ImportResult* result) {
    const Kind* kind = std::find_if(std::begin(kinds), std::end(kinds), [&](const Kind& each) { return each.name == config.kind; });
    if (kind == std::end(kinds))
        return fail(Code::invalid, "cannot import \"{}\": known are {}", config.kind, fmt::join(import_kinds(), ", "));
    std::string from = config.from;
    if (from.empty()) {
        if (!kind->from) return fail(Code::invalid, "say where the files of {} are (--from)", kind->name);
        from = kind->from;
        if (::access(from.c_str(), F_OK) != 0)
            return fail(Code::data, "{} is missing: apt-get install {}, or say where the files are (--from)", from, kind->package);
    }
    if (config.out.empty()) return fail(Code::invalid, "say into which folder to write (--out)");
    const std::vector<std::string> paths{config.out + "/train.h5", config.out + "/test.h5"};
    for (const std::string& path : paths)
        if (!config.force && ::access(path.c_str(), F_OK) == 0)
            return fail(Code::invalid, "{} is there already: --force replaces it", path);

    // Everything is read and checked before the first byte is written.
    Set train, test;
    GC_TRY(set_read(from, "train", &train));
    GC_TRY(set_read(from, "t10k", &test));
    if (train.H != test.H || train.W != test.W)
        return fail(Code::data, "{}: images for training are {} x {}, those for testing {} x {}", from, train.H, train.W, test.H, test.W);
    DataInfo info{.C = 1, .H = train.H, .W = train.W, .classes = kind->classes, .mean = {}, .std = {}, .source = kind->source};
    if (info.classes == 0)
        for (const Set* set : {&train, &test})
            info.classes = std::max(info.classes, static_cast<uint32_t>(*std::max_element(set->labels.begin(), set->labels.end())) + 1);
    GC_TRY(labels_check(train, info.classes));
    GC_TRY(labels_check(test, info.classes));
    mean_and_std(train.images.data(), train.count, info.C, uint64_t{info.H} * info.W, &info);

    GC_TRY(make_directories(config.out));
    info.count = train.count;
    GC_TRY(shard_write(paths[0], info, train.images.data(), train.labels.data()));
    info.count = test.count;
    if (Status status = shard_write(paths[1], info, test.images.data(), test.labels.data()); !status.ok()) {
        ::unlink(paths[0].c_str());   // half a data set is none
        return status;
    }
    *result = {paths, train.count, test.count};
    return {};
}

}   // namespace gradcast
