// A folder of images for each class, or folders for training and testing that hold such.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <charconv>

#include "datasets/image_sample.h"
#include "datasets/import.h"

namespace gradcast {
namespace {

constexpr uint32_t classes_max = 65536;
constexpr size_t bad_shown_max = 20;

bool is_folder(const std::string& path) {
    struct stat info;
    return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

/// One half of the data set.
struct Found {
    std::string folder;
    struct File {
        int32_t label = 0;
        std::string name;
    };
    std::vector<File> files;
};

/// Files that cannot be used, and what is odd about the others, by kind: how many, and the first one.
class Findings {
public:
    ImageOddities oddities;
    void bad(const Status& status) {
        if (bad_.size() < bad_shown_max) bad_.emplace_back(status.what);
        ++bad_count_;
    }
    uint64_t bad_count() const { return bad_count_; }
    const std::string& first_bad() const { return bad_[0]; }
    void report(std::vector<std::string>* notes) const {
        oddities.report(notes);
        for (const std::string& each : bad_) notes->push_back(each);
        if (bad_count_ > bad_.size()) notes->push_back(fmt::format("… and {} more files that cannot be used", bad_count_ - bad_.size()));
    }

private:
    std::vector<std::string> bad_;
    uint64_t bad_count_ = 0;
};

// ---- which folders -------------------------------------------------------------------------------------------------------------

/// Folders of `from` by the usual names of a half, in any case, the best name first.  A half holds folders; a class of such a name holds
/// images.
Status halves_find(const std::string& from, const std::vector<std::string>& names, std::vector<const char*> usual,
                   std::vector<std::string>* halves) {
    for (const char* word : usual)
        for (const std::string& name : names) {
            const bool same = std::equal(name.begin(), name.end(), word, word + std::char_traits<char>::length(word),
                                         [](char a, char b) { return std::tolower(static_cast<unsigned char>(a)) == b; });
            if (!same || !is_folder(from + "/" + name)) continue;
            std::vector<std::string> inside;
            GC_TRY(image_folder_list(from + "/" + name, &inside));
            if (std::any_of(inside.begin(), inside.end(),
                            [&](const std::string& each) { return is_folder(from + "/" + name + "/" + each); }))
                halves->push_back(name);
        }
    return {};
}

Status classes_find(const std::string& folder, std::vector<std::string>* classes) {
    GC_TRY(image_folder_list(folder, classes));
    if (classes->empty()) return fail(Code::data, "{}: empty: it should hold a folder for each class", folder);
    for (const std::string& name : *classes)
        if (!is_folder(folder + "/" + name))
            return fail(Code::data, "{}/{}: not a folder: images lie in a folder for each class", folder, name);
        else if (name.find(',') != name.npos)
            return fail(Code::data, "{}/{}: a comma divides the names of classes: give the folder a name without one", folder, name);
    if (classes->size() > classes_max) return fail(Code::data, "{}: {} classes are more than {}", folder, classes->size(), classes_max);
    return {};
}

Status images_find(const std::vector<std::string>& classes, Found* found) {
    const std::string& folder = found->folder;
    std::vector<std::string> names;
    GC_TRY(classes_find(folder, &names));
    for (const std::string& name : names) {
        auto label = std::lower_bound(classes.begin(), classes.end(), name);
        if (label == classes.end() || *label != name)
            return fail(Code::data, "{}/{}: a class with nothing to train on: remove it, or add its folder to the training set", folder,
                        name);
        std::vector<std::string> files;
        GC_TRY(image_folder_list(folder + "/" + name, &files));
        if (files.empty()) return fail(Code::data, "{}/{}: a class without images: take the folder away, or fill it", folder, name);
        for (std::string& file : files) found->files.push_back({static_cast<int32_t>(label - classes.begin()), std::move(file)});
    }
    return {};
}

/// Fills in the classes and the files of both halves.
Status sets_find(const ImportConfig& config, std::vector<std::string>* classes, Found* train, Found* test,
                 std::vector<std::string>* notes) {
    const std::string& from = config.from;
    if (!is_folder(from))
        return fail(Code::data, "{}: no such folder: --from holds a folder for each class, or train/ and test/ of such", from);
    std::vector<std::string> names, trains, tests;
    GC_TRY(image_folder_list(from, &names));
    GC_TRY(halves_find(from, names, {"train", "training"}, &trains));
    GC_TRY(halves_find(from, names, {"test", "testing", "val", "valid", "validation"}, &tests));
    if (trains.empty() && !tests.empty())
        return fail(Code::data, "{0}/{1}: samples to test on, but none to train on: name their folder {0}/train", from, tests[0]);
    const bool halves = !trains.empty();
    train->folder = halves ? from + "/" + trains[0] : from;
    GC_TRY(classes_find(train->folder, classes));
    GC_TRY(images_find(*classes, train));
    if (!tests.empty()) {
        if (config.test > 0) return fail(Code::invalid, "--test: {}/{} is there to test on: leave one of them out", from, tests[0]);
        test->folder = from + "/" + tests[0];
        GC_TRY(images_find(*classes, test));
    }
    if (!halves) return {};
    std::vector<std::string> omitted;
    for (const std::string& name : names)
        if (name != trains[0] && (tests.empty() || name != tests[0])) omitted.push_back(from + "/" + name);
    const size_t count = omitted.size();
    omitted.resize(std::min(count, bad_shown_max));
    if (count > 0)
        notes->push_back(fmt::format("left out: {}{}; {} is trained on, {} tested on", fmt::join(omitted, ", "),
                                     count > omitted.size() ? ", …" : "", train->folder,
                                     !tests.empty()    ? test->folder
                                     : config.test > 0 ? "a share of it"
                                                       : "nothing"));
    return {};
}

/// Takes files of the training set for testing.
void files_split(const ImportConfig& config, Found* train, Found* test) {
    std::vector<int32_t> labels;
    for (const Found::File& file : train->files) labels.push_back(file.label);
    const std::vector<bool> chosen = test_choose(config, labels);
    test->folder = train->folder;
    std::vector<Found::File> rest;
    for (size_t i = 0; i < chosen.size(); ++i) (chosen[i] ? test->files : rest).push_back(std::move(train->files[i]));
    train->files = std::move(rest);
}

/// Names that only number the classes, as 0 or 0007, say nothing.
bool are_numbers(const std::vector<std::string>& classes) {
    for (size_t i = 0; i < classes.size(); ++i) {
        size_t number = 0;
        const char* end = classes[i].data() + classes[i].size();
        if (auto read = std::from_chars(classes[i].data(), end, number); read.ec != std::errc() || read.ptr != end || number != i)
            return false;
    }
    return true;
}

// ---- the images ----------------------------------------------------------------------------------------------------------------

class Reader {
public:
    Reader(const ImportConfig& config, const std::vector<std::string>& classes)
        : rules_{.size = config.size, .exif = config.exif}, classes_(classes) {}

    /// Reads all headers: a wrong size is found before anything is decoded, and one RGB image makes all RGB.
    Status headers(const Found& half) {
        ImageFile image;
        for (const Found::File& file : half.files) {
            const std::string path = path_of(half, file);
            if (Status status = image_sample_open(path, &image); !status.ok()) {
                GC_TRY(go_on(status));
                continue;   // read() reports it
            }
            C_ = std::max(C_, image.C);
            auto [h, w] = image_sample_size(image, rules_);
            if (H_ == 0) {
                H_ = h;
                W_ = w;
                first_ = path;
            } else if ((h != H_ || w != W_) && others_++ == 0) {
                other_ = fmt::format("{}: {} x {} pixels, but {} has {} x {}", path, w, h, first_, W_, H_);
            }
        }
        return {};
    }
    Status sizes_alike() const {
        if (others_ == 0) return {};
        return fail(Code::data, "{}{}: --size {} makes all alike (resizes the short side to so many pixels and cuts the middle out)",
                    other_, others_ > 1 ? fmt::format(", and {} more differ", others_ - 1) : "", std::min(H_, W_));
    }
    Status read(const Found& half, Set* set) {
        set->C = C_;
        set->H = H_;
        set->W = W_;
        ImageFile image;
        Planes planes;
        for (const Found::File& file : half.files) {
            const std::string path = path_of(half, file);
            std::string odd;
            Status status = image_sample_open(path, &image);
            if (status.ok() && (image.C > C_ || image_sample_size(image, rules_) != std::pair{H_, W_}))
                return fail(Code::data, "{}: changed while it was read", path);
            if (status.ok()) status = image_sample(image, rules_, C_, &planes, &odd);
            if (!status.ok()) {
                GC_TRY(go_on(status));
                findings.bad(status);
                continue;
            }
            findings.oddities.add(image, rules_, odd);
            GC_TRY(set->images.append(planes.pixels.data(), planes.pixels.size()));
            set->labels.push_back(file.label);
        }
        return {};
    }
    Findings findings;

private:
    std::string path_of(const Found& half, const Found::File& file) const {
        return half.folder + "/" + classes_[static_cast<size_t>(file.label)] + "/" + file.name;
    }
    /// Bad files are reported together at the end; any other error ends the import.
    static Status go_on(const Status& status) { return status.code == Code::data || status.code == Code::invalid ? Status() : status; }

    const ImageRules rules_;
    const std::vector<std::string>& classes_;
    uint32_t C_ = 1, H_ = 0, W_ = 0;   // of all samples
    std::string first_, other_;        // the image whose size that is; one of another size
    uint64_t others_ = 0;
};

}   // namespace

Status image_sets(const ImportConfig& config, uint32_t, Import* import) {
    std::vector<std::string> classes;
    Found train, test;
    GC_TRY(sets_find(config, &classes, &train, &test, &import->notes));
    if (config.test > 0) files_split(config, &train, &test);
    if (!are_numbers(classes)) import->class_names = fmt::format("{}", fmt::join(classes, ","));

    Reader reader(config, classes);
    for (const Found* half : {&train, &test}) GC_TRY(reader.headers(*half));
    GC_TRY(reader.sizes_alike());
    Status status = reader.read(train, &import->train);
    if (status.ok()) status = reader.read(test, &import->test);
    const Findings& findings = reader.findings;
    findings.report(&import->notes);
    GC_TRY(status);
    const uint64_t bad = findings.bad_count();
    if (bad > 0 && (!config.skip_bad || import->train.count() == 0))
        return bad == 1 ? fail(Code::data, "{}{}", findings.first_bad(), config.skip_bad ? "" : ", or go on without it (--skip-bad)")
                        : fail(Code::data, "{}: {} files cannot be used, the first is {}{}", config.from, bad, findings.first_bad(),
                               config.skip_bad ? "" : "; --skip-bad goes on without them");
    return {};
}

}   // namespace gradcast
