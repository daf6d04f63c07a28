// Importers: from the published files of a data set to shards.  To add one: a row in `kinds` and, for a new file format, a function that
// fills the two Sets.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>

#include "datasets/import.h"
#include "datasets/source.h"
#include "runtime/core/fd.h"

namespace gradcast {
namespace {

// ---- IDX -----------------------------------------------------------------------------------------------------------------------

/// Format: bytes 0 0 8 (uint8) and the number of dimensions, each dimension as a big-endian uint32, the elements.
struct Idx {
    std::string path;
    std::vector<uint32_t> dims;
    std::vector<uint8_t> bytes;
};

Status idx_read(SourceFolder& folder, const std::string& name, size_t rank, Idx* idx) {
    Source source;
    GC_TRY(folder.find(name, "", &source));
    Idx read{source.path(), {}, {}};
    uint8_t header[4 + 4 * 3];
    if (!source.get(header, 4)) return source.ended("its header");
    if (header[0] != 0 || header[1] != 0 || header[2] != 8 || header[3] != rank)
        return fail(Code::data, "{}: not an IDX file of uint8 with {} dimensions: it begins with {:02x} {:02x} {:02x} {:02x}", read.path,
                    rank, header[0], header[1], header[2], header[3]);
    if (!source.get(header + 4, 4 * rank)) return source.ended("its header");
    uint64_t total = 1;
    for (size_t i = 0; i < rank; ++i) {
        const uint8_t* at = header + 4 + 4 * i;
        read.dims.push_back(uint32_t{at[0]} << 24 | uint32_t{at[1]} << 16 | uint32_t{at[2]} << 8 | at[3]);
        if (read.dims[i] == 0 || (i > 0 && read.dims[i] > 65536))
            return fail(Code::data, "{}: dimension {} is {}", read.path, i, read.dims[i]);
        total *= read.dims[i];   // at most 2^64 - 2^32
    }
    // Memory grows with the bytes that arrive: the header is not trusted.
    constexpr uint64_t piece = 16 << 20;
    const std::string promise = fmt::format("the {} bytes that its header promises", total);
    while (read.bytes.size() < total) {
        uint64_t have = read.bytes.size(), want = std::min(piece, total - have);
        if (have + want > read.bytes.capacity()) read.bytes.reserve(std::min(total, std::max(have + want, 2 * have)));
        read.bytes.resize(have + want);
        if (!source.get(read.bytes.data() + have, want)) return source.ended(promise);
    }
    GC_TRY(source.end(promise));
    *idx = std::move(read);
    return {};
}

Status label_error(const std::string& path, uint64_t sample, uint32_t label, uint32_t classes) {
    return fail(Code::data, "{}: label {} of sample {} is not below the {} classes", path, label, sample, classes);
}

/// classes 0: any label is valid.
Status idx_set(SourceFolder& folder, const std::string& prefix, uint32_t classes, Set* set) {
    Idx images, labels;
    GC_TRY(idx_read(folder, prefix + "-labels-idx1-ubyte", 1, &labels));
    GC_TRY(idx_read(folder, prefix + "-images-idx3-ubyte", 3, &images));
    if (images.dims[0] != labels.dims[0])
        return fail(Code::data, "{} has {} labels for the {} images of {}", labels.path, labels.dims[0], images.dims[0], images.path);
    for (uint64_t i = 0; classes > 0 && i < labels.bytes.size(); ++i)
        if (labels.bytes[i] >= classes) return label_error(labels.path, i, labels.bytes[i], classes);
    set->count = images.dims[0];
    set->H = images.dims[1];
    set->W = images.dims[2];
    set->images = std::move(images.bytes);
    set->labels.assign(labels.bytes.begin(), labels.bytes.end());
    return {};
}

Status idx_sets(const ImportConfig& config, uint32_t classes, Set* train, Set* test) {
    SourceFolder folder;
    GC_TRY(folder.open(config.from, nullptr, {}));
    GC_TRY(idx_set(folder, "train", classes, train));
    GC_TRY(idx_set(folder, "t10k", classes, test));
    if (train->H == test->H && train->W == test->W) return {};
    return fail(Code::data, "{}: images for training are {} x {}, those for testing {} x {}", config.from, train->H, train->W, test->H,
                test->W);
}

// ---- CIFAR, the binary version -------------------------------------------------------------------------------------------------

/// A record: label bytes (the last one is used), then 3 planes of 32 x 32.  Appends all records to the set.
Status cifar_file(SourceFolder& folder, const std::string& name, uint32_t label_bytes, uint32_t classes, uint64_t count, Set* set) {
    constexpr uint32_t C = 3, side = 32, pixels = C * side * side;
    Source source;
    GC_TRY(folder.find(name, ": --from is the archive of the binary version, or the folder that it unpacks to", &source));
    set->C = C;
    set->H = set->W = side;
    uint64_t first = set->count;
    set->count += count;
    set->images.resize(set->count * pixels);
    for (uint64_t i = 0; i < count; ++i) {
        uint8_t labels[2];
        if (!source.get(labels, label_bytes) || !source.get(set->images.data() + (first + i) * pixels, pixels))
            return source.ended(fmt::format("record {} of {}", i, count));
        uint32_t label = labels[label_bytes - 1];
        if (label >= classes) return label_error(source.path(), i, label, classes);
        set->labels.push_back(static_cast<int32_t>(label));
    }
    return source.end(fmt::format("{} records of {} bytes", count, label_bytes + pixels));
}

Status cifar10_sets(const ImportConfig& config, uint32_t classes, Set* train, Set* test) {
    std::vector<std::string> names;
    for (int i = 1; i <= 5; ++i) names.push_back(fmt::format("data_batch_{}.bin", i));
    names.emplace_back("test_batch.bin");
    SourceFolder folder;
    GC_TRY(folder.open(config.from, "cifar-10-binary.tar", names));
    for (int i = 0; i < 5; ++i) GC_TRY(cifar_file(folder, names[i], 1, classes, 10000, train));
    return cifar_file(folder, names[5], 1, classes, 10000, test);
}

// Each record has a coarse and a fine label; the fine one is kept.
Status cifar100_sets(const ImportConfig& config, uint32_t classes, Set* train, Set* test) {
    SourceFolder folder;
    GC_TRY(folder.open(config.from, "cifar-100-binary.tar", {"train.bin", "test.bin"}));
    GC_TRY(cifar_file(folder, "train.bin", 2, classes, 50000, train));
    return cifar_file(folder, "test.bin", 2, classes, 10000, test);
}

// --------------------------------------------------------------------------------------------------------------------------------

struct Kind {
    const char* name;
    uint32_t classes;   // 0: 1 + the largest label
    const char* source;
    ReadSets read;
    const char* class_names = "";
    const char* from = nullptr;   // where Debian's package installs it
    const char* package = nullptr;
    float target_scale = 0, mean = 0, std = 0;   // of a regression; std 0: computed from the training set
};
constexpr Kind kinds[] = {
    {"fashion-mnist", 10, "Fashion-MNIST, Xiao, Rasul, Vollgraf 2017", idx_sets,
     "t-shirt,trouser,pullover,dress,coat,sandal,shirt,sneaker,bag,ankle_boot", "/usr/share/datasets/fashion-mnist",
     "dataset-fashion-mnist"},
    {"mnist", 10, "MNIST, LeCun, Cortes, Burges 1998", idx_sets},
    {"cifar10", 10, "CIFAR-10, Krizhevsky 2009", cifar10_sets, "airplane,automobile,bird,cat,deer,dog,frog,horse,ship,truck"},
    {"cifar100", 100, "CIFAR-100, Krizhevsky 2009", cifar100_sets,
     "apple,aquarium_fish,baby,bear,beaver,bed,bee,beetle,bicycle,bottle,bowl,boy,bridge,bus,butterfly,camel,can,castle,caterpillar,"
     "cattle,chair,chimpanzee,clock,cloud,cockroach,couch,crab,crocodile,cup,dinosaur,dolphin,elephant,flatfish,forest,fox,girl,hamster,"
     "house,kangaroo,keyboard,lamp,lawn_mower,leopard,lion,lizard,lobster,man,maple_tree,motorcycle,mountain,mouse,mushroom,oak_tree,"
     "orange,orchid,otter,palm_tree,pear,pickup_truck,pine_tree,plain,plate,poppy,porcupine,possum,rabbit,raccoon,ray,road,rocket,rose,"
     "sea,seal,shark,shrew,skunk,skyscraper,snail,snake,spider,squirrel,streetcar,sunflower,sweet_pepper,table,tank,telephone,"
     "television,tiger,tractor,train,trout,tulip,turtle,wardrobe,whale,willow_tree,wolf,woman,worm"},
    {"idx", 0, "IDX files", idx_sets},
    {"images", 0, "a folder of images", image_sets},
    {.name = "ridge",
     .classes = ridge_levels,
     .source = "synthetic ridge regression",
     .read = ridge_sets,
     .target_scale = ridge_target_scale,
     .mean = ridge_mean,
     .std = ridge_std},
};

/// Per channel, of pixels scaled to 0..1, from exact integer sums.  images [count, C, pixels].
void mean_and_std(const uint8_t* images, uint64_t count, uint32_t C, uint64_t pixels, DataInfo* info) {
    for (uint32_t c = 0; c < C; ++c) {
        uint64_t sum = 0, squares = 0;
        for (uint64_t n = 0; n < count; ++n)
            for (const uint8_t *x = images + (n * C + c) * pixels, *end = x + pixels; x != end; ++x) {
                sum += *x;
                squares += uint32_t{*x} * *x;
            }
        double total = static_cast<double>(count * pixels);
        // count * squares - sum^2 in integers: a difference of two means would cancel.
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
    ImportConfig read = config;
    if (read.from.empty() && kind->read != ridge_sets) {
        if (!kind->from) return fail(Code::invalid, "say where the files of {} are (--from)", kind->name);
        read.from = kind->from;
        if (::access(kind->from, F_OK) != 0)
            return fail(Code::data, "{} is missing: apt-get install {}, or say where the files are (--from)", read.from, kind->package);
    }
    if (config.compress > 9) return fail(Code::invalid, "{} is no level of compression: 1 (fast) to 9 (small)", config.compress);
    if (config.out.empty()) return fail(Code::invalid, "say into which folder to write (--out)");
    std::vector<std::string> paths{config.out + "/train.h5", config.out + "/test.h5"};
    auto absent = [&] {
        for (const std::string& path : paths)
            if (!config.force && ::access(path.c_str(), F_OK) == 0)
                return fail(Code::invalid, "{} is there already: --force replaces it", path);
        return Status();
    };
    GC_TRY(absent());

    // Read and check everything before the first byte is written.
    Set train, test;
    GC_TRY(kind->read(read, kind->classes, &train, &test));
    DataInfo info{.C = train.C,
                  .H = train.H,
                  .W = train.W,
                  .classes = kind->classes,
                  .mean = {},
                  .std = {},
                  .source = kind->source,
                  .class_names = train.class_names.empty() ? kind->class_names : train.class_names,
                  .target_scale = kind->target_scale};
    if (info.classes == 0)
        for (const Set* set : {&train, &test})
            for (int32_t label : set->labels) info.classes = std::max(info.classes, static_cast<uint32_t>(label) + 1);
    if (kind->std > 0) {
        info.mean.assign(info.C, kind->mean);
        info.std.assign(info.C, kind->std);
    } else mean_and_std(train.images.data(), train.count, info.C, uint64_t{info.H} * info.W, &info);

    GC_TRY(make_directories(config.out));
    // Two imports into one folder would write the same .part files.  A file system without locks is used without one.
    Fd folder(::open(config.out.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder && ::flock(folder.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return fail(Code::data, "{}: another import is writing there: wait for its end, or take another folder", config.out);
    GC_TRY(absent());   // again, under the lock
    info.count = train.count;
    GC_TRY(shard_write(paths[0], info, train.images.data(), train.labels.data(), config.compress));
    if (test.count == 0) {
        ::unlink(paths[1].c_str());   // the old test set, with --force
        paths.pop_back();
    } else {
        info.count = test.count;
        if (Status status = shard_write(paths[1], info, test.images.data(), test.labels.data(), config.compress); !status.ok()) {
            ::unlink(paths[0].c_str());   // never leave half a data set
            return status;
        }
    }
    *result = {paths, train.count, test.count};
    return {};
}

}   // namespace gradcast
