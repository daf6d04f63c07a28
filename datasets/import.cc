// Importers: from the published files of a data set to shards.  To add one: a row in `kinds` and, for a new file format, a function that
// fills an Import.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <span>

#include "datasets/import.h"
#include "datasets/picture.h"
#include "datasets/source.h"
#include "runtime/core/fd.h"
#include "runtime/core/rng.h"

namespace gradcast {
namespace {

// ---- CIFAR, the binary version -------------------------------------------------------------------------------------------------

/// A record: label bytes (the last one is used), then 3 planes of 32 x 32.  Appends all records to the set.
Status cifar_file(SourceFolder& folder, const std::string& name, uint32_t label_bytes, uint32_t classes, uint64_t count, Set* set) {
    constexpr uint32_t C = 3, side = 32, pixels = C * side * side;
    Source source;
    GC_TRY(folder.find(name, ": --from is the archive of the binary version, or the folder that it unpacks to", &source));
    set->C = C;
    set->H = set->W = side;
    std::vector<uint8_t> record(label_bytes + pixels);
    for (uint64_t i = 0; i < count; ++i) {
        if (!source.get(record.data(), record.size())) return source.ended(fmt::format("record {} of {}", i, count));
        const uint32_t label = record[label_bytes - 1];
        if (label >= classes) return label_error(source.path(), i, label, classes);
        set->labels.push_back(static_cast<int32_t>(label));
        GC_TRY(set->images.append(record.data() + label_bytes, pixels));
    }
    return source.end(fmt::format("{} records of {} bytes", count, record.size()));
}

Status cifar10_sets(const ImportConfig& config, uint32_t classes, Import* import) {
    std::vector<std::string> names;
    for (int i = 1; i <= 5; ++i) names.push_back(fmt::format("data_batch_{}.bin", i));
    names.emplace_back("test_batch.bin");
    SourceFolder folder;
    GC_TRY(folder.open(config.from, "cifar-10-binary.tar", names));
    for (int i = 0; i < 5; ++i) GC_TRY(cifar_file(folder, names[i], 1, classes, 10000, &import->train));
    return cifar_file(folder, names[5], 1, classes, 10000, &import->test);
}

// Each record has a coarse and a fine label; the fine one is kept.
Status cifar100_sets(const ImportConfig& config, uint32_t classes, Import* import) {
    SourceFolder folder;
    GC_TRY(folder.open(config.from, "cifar-100-binary.tar", {"train.bin", "test.bin"}));
    GC_TRY(cifar_file(folder, "train.bin", 2, classes, 50000, &import->train));
    return cifar_file(folder, "test.bin", 2, classes, 10000, &import->test);
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
    bool goes_on = false;                        // after it was killed: its reader calls Import::keep()
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
    {.name = "images", .classes = 0, .source = "a folder of images", .read = image_sets, .goes_on = true},
    {.name = "masks", .classes = 0, .source = "images with masks", .read = mask_sets, .goes_on = true},
    {"npy", 0, "NumPy arrays", npy_sets},
    {"table", 0, "a table", table_sets},
    {.name = "text", .classes = 1, .source = "a text", .read = text_sets, .goes_on = true},
    {.name = "tokens", .classes = 1, .source = "tokens", .read = token_sets, .goes_on = true},
    {.name = "ridge",
     .classes = ridge_levels,
     .source = "synthetic ridge regression",
     .read = ridge_sets,
     .target_scale = ridge_target_scale,
     .mean = ridge_mean,
     .std = ridge_std},
};

bool is_text(const Kind& kind) { return kind.read == text_sets || kind.read == token_sets; }

/// A kind whose files may lack a test set.
bool splits(const Kind& kind) {
    return kind.read == idx_sets || kind.read == image_sets || kind.read == npy_sets || kind.read == table_sets || kind.read == mask_sets ||
           is_text(kind);
}

/// Calls each(bytes, samples) for all samples of a set, in order.
template <typename Each>
Status pieces(Set& set, uint64_t sample_bytes, Each each) {
    constexpr uint64_t piece_bytes = 4 << 20;
    const uint64_t count = set.count(), piece = std::max(piece_bytes / sample_bytes, uint64_t{1});
    std::vector<uint8_t> bytes(std::min(piece, count) * sample_bytes);
    for (uint64_t first = 0; first < count; first += piece) {
        const uint64_t some = std::min(piece, count - first);
        GC_TRY(set.images.read(first * sample_bytes, bytes.data(), some * sample_bytes));
        each(bytes.data(), some);
    }
    return {};
}

/// Mean and deviation per channel, of pixels scaled to 0..1, from exact integer sums.
class Moments {
public:
    explicit Moments(const DataInfo& info) : pixels_(uint64_t{info.H} * info.W), sums_(info.C), squares_(info.C) {}
    /// Samples [count, C, H, W].
    void add(const uint8_t* x, uint64_t count) {
        samples_ += count;
        for (uint64_t n = 0; n < count; ++n)
            for (size_t c = 0; c < sums_.size(); ++c) {
                uint64_t sum = 0, square = 0;
                for (const uint8_t* end = x + pixels_; x != end; ++x) {
                    sum += *x;
                    square += uint32_t{*x} * *x;
                }
                sums_[c] += sum;
                squares_[c] += square;
            }
    }
    void finish(DataInfo* info) const {
        const uint64_t total = samples_ * pixels_;
        const auto count = static_cast<double>(total);
        for (size_t c = 0; c < sums_.size(); ++c) {
            // total * squares - sum^2 in integers: a difference of two means would cancel.
            auto spread = static_cast<unsigned __int128>(total) * squares_[c] - static_cast<unsigned __int128>(sums_[c]) * sums_[c];
            info->mean.push_back(static_cast<float>(static_cast<double>(sums_[c]) / count / 255));
            info->std.push_back(
                spread == 0 ? 1.0f : static_cast<float>(std::sqrt(static_cast<double>(spread)) / count / 255));   // 1: all pixels are equal
        }
    }

private:
    uint64_t pixels_, samples_ = 0;
    std::vector<uint64_t> sums_, squares_;
};

Status mean_and_std_pixels(Set& set, DataInfo* info) {
    Moments moments(*info);
    GC_TRY(pieces(set, info->sample_bytes(), [&](const uint8_t* x, uint64_t samples) { moments.add(x, samples); }));
    return moments.finish(info), Status();
}

/// The same of floats [count, C, H, W], as they are.  Sums are in the order of the samples.
Status mean_and_std_floats(Set& set, DataInfo* info) {
    const uint32_t C = info->C;
    const uint64_t pixels = uint64_t{info->H} * info->W;
    const auto count = static_cast<double>(set.count() * pixels);
    std::vector<double> means(C), squares(C);
    auto values = [&](auto add) {
        return pieces(set, info->sample_bytes(), [&](const uint8_t* bytes, uint64_t samples) {
            const auto* x = reinterpret_cast<const float*>(bytes);
            for (uint64_t i = 0; i < samples * C * pixels; ++i) add(i / pixels % C, static_cast<double>(x[i]));
        });
    };
    GC_TRY(values([&](uint64_t c, double value) { means[c] += value; }));
    for (double& mean : means) mean /= count;
    GC_TRY(values([&](uint64_t c, double value) { squares[c] += (value - means[c]) * (value - means[c]); }));
    for (uint32_t c = 0; c < C; ++c) {
        const auto std = static_cast<float>(std::sqrt(squares[c] / count));
        info->mean.push_back(static_cast<float>(means[c]));
        info->std.push_back(std > 0 && std::isfinite(1 / std) && std::isfinite(std) ? std : 1.0f);   // 1: all values are equal
    }
    return {};
}

/// The folder of the output, which one import uses at a time.  Removes what it has made, unless keep() is called or there is a file in it.
class ImportFolder {
public:
    ~ImportFolder() {
        for (const std::string& path : made_) ::rmdir(path.c_str());
    }
    Status open(const std::string& path) {
        std::error_code error;
        std::filesystem::path each = std::filesystem::absolute(path, error).lexically_normal();
        if (!each.has_filename()) each = each.parent_path();   // a slash at the end
        for (; each.has_relative_path() && ::access(each.c_str(), F_OK) != 0; each = each.parent_path()) made_.push_back(each.string());
        GC_TRY(make_directories(path));
        // Two imports into one folder would write the same .part files.  A file system without locks is used without one.
        lock_ = Fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        if (!lock_ || ::flock(lock_.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return {};
        return fail(Code::data, "{}: another import is writing there: wait for its end, or take another folder", path);
    }
    void keep() { made_.clear(); }

private:
    std::vector<std::string> made_;   // innermost first
    Fd lock_;
};

// ---- the files of a data set ---------------------------------------------------------------------------------------------------

constexpr uint64_t shards_max = 100'000;
constexpr size_t shard_digits = 5;

/// train.h5, train-00000.h5, …, and the same of test.
bool is_shard(std::string_view name) {
    for (const std::string_view half : {"train", "test"}) {
        if (!name.starts_with(half)) continue;
        std::string_view rest = name.substr(half.size());
        if (rest == ".h5") return true;
        if (rest.size() != 1 + shard_digits + 3 || rest[0] != '-' || !rest.ends_with(".h5")) continue;
        if (rest.substr(1, shard_digits).find_first_not_of("0123456789") == rest.npos) return true;
    }
    return false;
}

/// The paths of shards that are in a folder, with this behind their names; those to train on come first.
std::vector<std::string> shards_in(const std::string& folder, std::string_view behind = "") {
    std::vector<std::string> paths;
    for (const std::string& name : folder_names(folder))
        if (name.ends_with(behind) && is_shard(std::string_view(name).substr(0, name.size() - behind.size())))
            paths.push_back(folder + "/" + name);
    std::ranges::stable_partition(paths, [&](const std::string& path) { return path.compare(folder.size() + 1, 2, "tr") == 0; });
    return paths;
}

/// Where the JPEGs of a set begin in its spool, and the end: each has its length before it.
std::vector<uint64_t> places_of(const Set& set) {
    std::vector<uint64_t> places = {sizeof(uint32_t)};
    for (const uint32_t length : set.lengths) places.push_back(places.back() + length + sizeof(uint32_t));
    return places;
}

/// Mean and deviation of pictures: of the middle of each, or of 10,000 of them at equal distances.
Status mean_and_std_pictures(Set& set, const std::string& folder, DataInfo* info) {
    Moments moments(*info);
    constexpr uint64_t samples_max = 10'000;
    const std::vector<uint64_t> places = places_of(set);
    const uint64_t count = std::min(set.count(), samples_max);
    PictureDecoder decoder;
    std::vector<uint8_t> jpeg, planes(info->sample_bytes());
    for (uint64_t i = 0; i < count; ++i) {
        const uint64_t sample = i * set.count() / count;
        jpeg.resize(set.lengths[sample]);
        GC_TRY(set.images.read(places[sample], jpeg.data(), jpeg.size()));
        uint32_t H = 0, W = 0;
        const char* wrong = decoder.open(jpeg, info->C, &H, &W);
        if (!wrong) wrong = decoder.cut(part_centre(H, W, info->side), info->side, planes.data());
        if (wrong)
            return fail(Code::data,
                        "{}: a picture that an earlier import has left there is damaged ({}): remove its *.part files and import again",
                        folder, wrong);
        moments.add(planes.data(), 1);
    }
    return moments.finish(info), Status();
}

/// Copies JPEGs of sample `begin` on, one after another, out of the spool.
Status jpegs_read(Set& set, const std::vector<uint64_t>& places, uint64_t begin, uint64_t at, uint64_t bytes, uint8_t* to) {
    // Byte `at` of them is in the sample whose place, less the lengths between, is the last one before it.
    const auto place = [&](uint64_t sample) { return places[sample] - places[begin] - sizeof(uint32_t) * (sample - begin); };
    uint64_t low = begin, high = set.count();
    while (high - low > 1) (place((low + high) / 2) <= at ? low : high) = (low + high) / 2;
    for (uint64_t within = at - place(low); bytes > 0; ++low, within = 0) {
        const uint64_t some = std::min(bytes, set.lengths[low] - within);
        GC_TRY(set.images.read(places[low] + within, to, some));
        to += some;
        bytes -= some;
    }
    return {};
}

/// Writes the shards of one half as .part files; appends their paths without .part.
Status shards_write(const ImportConfig& config, const char* half, DataInfo info, Set& set, std::vector<std::string>* paths) {
    const uint64_t count = set.count(), sample_bytes = info.pictures()
                                                           ? std::max(set.images.bytes() / std::max(count, uint64_t{1}), uint64_t{1})
                                                           : info.sample_bytes();
    const std::vector<uint64_t> places = places_of(set);
    const uint64_t most = std::max(config.shard_bytes / (sample_bytes + info.targets_bytes()), uint64_t{1}),
                   shards = (count + most - 1) / most;
    if (shards > shards_max)
        return fail(Code::invalid, "{} shards of {} samples are more than {}: take a larger --shard-size", shards, most, shards_max);
    uint64_t begin = 0;
    for (uint64_t shard = 0; shard < shards; ++shard, begin += info.count) {
        info.count = count / shards + (shard < count % shards ? 1 : 0);   // alike: of a text each has room for samples
        paths->push_back(shards == 1 ? fmt::format("{}/{}.h5", config.out, half)
                                     : fmt::format("{}/{}-{:0{}}.h5", config.out, half, shard, shard_digits));
        const SamplesRead read = [&](uint64_t first, uint64_t some, uint8_t* to) {
            return set.images.read((begin + first) * sample_bytes, to, some * sample_bytes);
        };
        const SamplesRead targets = [&](uint64_t first, uint64_t some, uint8_t* to) {
            const uint64_t at = (begin + first) * info.targets_bytes(), bytes = some * info.targets_bytes();
            if (set.masked) return set.masks.read(at, to, bytes);
            return std::memcpy(to, std::as_bytes(std::span(set.targets)).data() + at, bytes), Status();
        };
        if (info.pictures()) {
            const PicturesRead jpegs = [&](uint64_t at, uint64_t bytes, uint8_t* to) {
                return jpegs_read(set, places, begin, at, bytes, to);
            };
            GC_TRY(
                shard_write_part(paths->back(), info, std::span(set.lengths).subspan(begin, info.count), jpegs, set.labels.data() + begin));
            continue;
        }
        GC_TRY(info.targets > 0 || info.vocabulary > 0
                   ? shard_write_part(paths->back(), info, read, targets, config.compress)
                   : shard_write_part(paths->back(), info, read, set.labels.data() + begin, config.compress));
    }
    return {};
}

/// Gives all .part files their names; after an error none of them is there.  Then removes the other shards of an earlier import; one that
/// cannot be removed is named, and the new ones stay.
Status shards_rename(const ImportConfig& config, const std::vector<std::string>& paths) {
    for (size_t i = 0; i < paths.size(); ++i)
        if (const Status status = file_rename(paths[i] + ".part", paths[i]); !status.ok()) {
            while (i > 0) ::unlink(paths[--i].c_str());   // never leave half a data set
            return status;
        }
    for (const std::string& old : shards_in(config.out))
        if (std::find(paths.begin(), paths.end(), old) == paths.end() && ::unlink(old.c_str()) != 0)
            return fail_sys(errno, "cannot remove {}, a shard of an earlier import, which is no part of the new data set", old);
    return {};
}

/// Says which classes have nothing to train on.
void note_empty(const DataInfo& info, const Set& train, std::vector<std::string>* notes) {
    constexpr size_t shown_max = 20;
    std::vector<bool> seen(info.classes);
    for (const int32_t label : train.labels) seen[static_cast<size_t>(label)] = true;
    std::vector<size_t> empty;
    for (size_t i = 0; i < seen.size(); ++i)
        if (!seen[i]) empty.push_back(i);
    if (empty.empty()) return;
    const size_t count = empty.size();
    const bool from_1 = count == 1 && empty[0] == 0;
    empty.resize(std::min(count, shown_max));
    notes->push_back(
        fmt::format("{} of {} classes: no sample to train on has the label {}{}{}", count, info.classes, fmt::join(empty, ", "),
                    count > shown_max ? ", …" : "",
                    from_1 ? ": labels that begin with 1 are to have 1 taken away, or the net has an output for nothing" : ""));
}

}   // namespace

Status label_error(const std::string& path, uint64_t sample, uint64_t label, uint32_t classes) {
    return fail(Code::data, "{}: label {} of sample {} is not below the {} classes", path, label, sample, classes);
}

std::vector<bool> test_choose(const ImportConfig& config, const std::vector<int32_t>& labels) {
    std::vector<bool> chosen(labels.size());
    if (config.test == 0) return chosen;
    std::map<int32_t, std::vector<std::pair<uint64_t, size_t>>> classes;   // (a random number, sample)
    for (size_t i = 0; i < labels.size(); ++i) {
        const Philox bits = random4(Purpose::split, config.seed, i, 0);
        classes[labels[i]].emplace_back(uint64_t{bits[0]} << 32 | bits[1], i);
    }
    for (auto& [label, samples] : classes) {
        std::sort(samples.begin(), samples.end());
        const auto wanted = static_cast<size_t>(std::llround(static_cast<double>(samples.size()) * config.test));
        for (size_t i = 0; i < std::min(wanted, samples.size() - 1); ++i) chosen[samples[i].second] = true;
    }
    return chosen;
}

const std::vector<std::string>& import_kinds() {
    static const std::vector<std::string> names = [] {
        std::vector<std::string> list;
        for (const Kind& kind : kinds) list.emplace_back(kind.name);
        return list;
    }();
    return names;
}

Status Import::keep(const ImportConfig& config, const std::string& what, const std::string& of_all, ImportState* state, uint64_t shown,
                    bool masked) {
    std::vector<KeptSpool> spools = {{import_spools[0], &train.images}, {import_spools[1], &test.images}};
    if (masked) spools.insert(spools.end(), {{import_spools[2], &train.masks}, {import_spools[3], &test.masks}});
    bool found = false, other = false;
    GC_TRY(kept.open(config.out, what, std::move(spools), state, &found, &other));
    if (found) notes.push_back(fmt::format("goes on after {}{}, where an import was ended", state->taken / shown, of_all));
    if (other)
        notes.push_back(fmt::format("{}: what an import has left that was ended is of other files or options: it begins anew", config.out));
    return {};
}

Status data_import(const ImportConfig& config, ImportResult* result) {
    *result = {};
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
    if (config.test > 0 && !splits(*kind)) return fail(Code::invalid, "--test: {} has samples to test on: leave it out", kind->name);
    if (config.test < 0 || config.test >= 1) return fail(Code::invalid, "--test: a share above 0% and below 100% is needed, as 10%");
    if (!config.vocabulary_file.empty() && !is_text(*kind))
        return fail(Code::invalid, "--vocabulary: {} is neither text nor tokens: leave it out", kind->name);
    if (config.pictures && kind->read != image_sets)
        return fail(Code::invalid, "--store jpeg: {} is no folder of images: leave it out", kind->name);
    if (config.pictures && config.compress > 0)
        return fail(Code::invalid, "--compress: JPEGs are compressed (--store): leave one of them out");
    if (config.compress > 9) return fail(Code::invalid, "{} is no level of compression: 1 (fast) to 9 (small)", config.compress);
    if (config.out.empty()) return fail(Code::invalid, "say into which folder to write (--out)");
    auto absent = [&] {
        const std::vector<std::string> there = shards_in(config.out);
        return config.force || there.empty() ? Status() : fail(Code::invalid, "{} is there already: --force replaces it", there[0]);
    };
    GC_TRY(absent());
    ImportFolder folder;
    GC_TRY(folder.open(config.out));
    GC_TRY(absent());   // again, under the lock

    // Read and check everything before the first shard is written.
    Import import;
    if (!kind->goes_on) {
        ImportFiles::remove(config.out);
        GC_TRY(import.train.images.open(config.out));
        GC_TRY(import.test.images.open(config.out));
    }
    const Status status = kind->read(read, kind->classes, &import);
    result->notes = std::move(import.notes);
    GC_TRY(status);
    Set &train = import.train, &test = import.test;
    DataInfo info{.C = train.C,
                  .H = train.H,
                  .W = train.W,
                  .classes = train.masked ? import.classes : kind->classes,
                  .mean = {},
                  .std = {},
                  .source = kind->source,
                  .class_names = import.class_names.empty() ? kind->class_names : import.class_names,
                  .target_scale = kind->target_scale,
                  .element = train.element,
                  .targets = train.masked ? train.H * train.W : train.targets_each,
                  .target_element = train.masked ? Element::u8 : Element::f32,
                  .ignore = import.ignore,
                  .vocabulary = import.vocabulary,
                  .alphabet = import.alphabet,
                  .side = train.side,
                  .longest = std::max(train.longest, test.longest)};
    if (info.classes == 0)
        for (const Set* set : {&train, &test})
            for (int32_t label : set->labels) info.classes = std::max(info.classes, static_cast<uint32_t>(label) + 1);
    if (info.class_names.size() > class_names_max)
        return fail(Code::data,
                    "{}: the names of its {} classes have {} bytes, more than the {} that a shard holds: give the classes shorter names, "
                    "or numbers from 0 (000, 001, …)",
                    read.from, info.classes, info.class_names.size(), class_names_max);
    if (info.vocabulary > 0) {
        info.mean = {0}, info.std = {1};
    } else if (kind->std > 0) {
        info.mean.assign(info.C, kind->mean);
        info.std.assign(info.C, kind->std);
    } else if (info.pictures()) {
        GC_TRY(mean_and_std_pictures(train, config.out, &info));
    } else GC_TRY(info.element == Element::f32 ? mean_and_std_floats(train, &info) : mean_and_std_pixels(train, &info));
    if (!info.regression() && !info.masks() && info.vocabulary == 0) note_empty(info, train, &result->notes);
    if (test.count() == 0)
        result->notes.push_back(
            fmt::format("no samples to test on: --test 10% takes some{}", info.vocabulary > 0 || info.masks() ? "" : " of each class"));

    for (const std::string& part : shards_in(config.out, ".part")) ::unlink(part.c_str());   // of an import that was killed
    std::vector<std::string> paths;
    Status written = shards_write(config, "train", info, train, &paths);
    if (written.ok()) written = shards_write(config, "test", info, test, &paths);
    if (written.ok()) written = shards_rename(config, paths);
    if (!written.ok()) {
        for (const std::string& path : paths) ::unlink((path + ".part").c_str());
        return written;
    }
    folder.keep();
    result->paths = paths;
    result->train = train.count();
    result->test = test.count();
    return {};
}

}   // namespace gradcast
