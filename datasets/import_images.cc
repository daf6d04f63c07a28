// A folder of images for each class, or folders for training and testing that hold such.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <span>
#include <tuple>
#include <utility>

#include "datasets/image_sample.h"
#include "datasets/import.h"
#include "datasets/in_order.h"
#include "datasets/picture.h"
#include "datasets/source.h"
#include "runtime/core/digest.h"
#include "runtime/core/memory_room.h"
#include "runtime/core/version.h"

namespace gradcast {
namespace {

constexpr uint32_t classes_max = 65536;
constexpr size_t bad_shown_max = 20;

/// One half of the data set.
struct Found {
    std::string folder;
    struct File {
        int32_t label = 0;
        std::string name;
        uint64_t decode_bytes = 0;            // memory that decoding takes
        uint64_t bytes = 0, changed_ns = 0;   // its size, and when it was changed
    };
    std::vector<File> files;
};

/// Of the files that cannot be used the first texts; what is odd about the others, by kind: how many, and the first one.
void report(const ImportState& state, std::vector<std::string>* notes) {
    state.oddities.report(notes);
    for (const std::string& each : state.bad_texts) notes->push_back(each);
    if (state.bad.size() > state.bad_texts.size())
        notes->push_back(fmt::format("… and {} more files that cannot be used", state.bad.size() - state.bad_texts.size()));
}

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
        for (std::string& file : files)
            found->files.push_back({.label = static_cast<int32_t>(label - classes.begin()), .name = std::move(file)});
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

constexpr uint64_t decode_bytes_max = 192 << 20;   // of all images that are being decoded or wait for their turn
constexpr uint64_t header_bytes = 8 << 20;         // of a file whose header is read; few have headers of more than 256 KiB

class ImageReader {
public:
    ImageReader(const ImportConfig& config, const std::vector<std::string>& classes)
        : config_(config), rules_{config.size, config.exif, config.pictures}, classes_(classes) {}
    /// Finds the size and the channels of all samples, and what each image takes to decode.
    Status headers(Found& half) {
        std::vector<Header> slots(in_order_slots(config_.threads));
        return in_order({.count = half.files.size(),
                         .threads = config_.threads,
                         .bytes_max = bytes_max_,
                         .bytes = [](uint64_t) { return header_bytes; },
                         .make = [&](uint64_t i, uint32_t slot) { header(path_of(half, half.files[i]), &slots[slot]); },
                         .take =
                             [&](uint64_t i, uint32_t slot) {
                                 progress(true);
                                 Found::File& file = half.files[i];
                                 file.decode_bytes = slots[slot].decode_bytes;
                                 file.bytes = slots[slot].bytes;
                                 file.changed_ns = slots[slot].changed_ns;
                                 return compare(path_of(half, file), slots[slot]);
                             }});
    }
    Status sizes_alike() const {
        if (others_ == 0 || config_.pictures) return {};
        return fail(Code::data,
                    "{}{}: --size {} makes all alike (resizes the short side to so many pixels and cuts the middle out), or --store jpeg "
                    "with it keeps their shapes",
                    other_, others_ > 1 ? fmt::format(", and {} more differ", others_ - 1) : "", std::min(H_, W_));
    }
    /// Everything that decoded samples depend on.
    std::string what(const Found& train, const Found& test) const {
        Sha256 sha;
        auto add = [&](const std::string& text) { sha.add(std::as_bytes(std::span(text))); };
        add(fmt::format("{} {} {} {} {} {}{}\n", version_text, rules_.size, rules_.exif, C_, H_, W_, config_.pictures ? " jpeg" : ""));
        for (const Found* half : {&train, &test}) {
            add(fmt::format("{} files\n", half->files.size()));
            for (const Found::File& file : half->files)
                add(fmt::format("{} {} {} {}\n", file.bytes, file.changed_ns, file.label, path_of(*half, file)));
        }
        return sha.hex();
    }
    /// Decodes the files from state.taken on, and gives the samples that are there their labels.
    Status read(const Found& train, const Found& test, Import* import) {
        uint64_t begin = 0;   // of the half's files among all
        for (auto [half, set] : {std::pair{&train, &import->train}, {&test, &import->test}}) {
            set->C = C_;
            set->H = H_;
            set->W = W_;
            if (config_.pictures) {
                set->H = set->W = set->side = rules_.size;
                set->longest = std::max(longest_, rules_.size);
            }
            const uint64_t count = half->files.size(), done = std::min(state.taken - begin, count);
            uint64_t at = 0;   // in the spool
            for (uint64_t i = 0; i < done; ++i)
                if (!std::binary_search(state.bad.begin(), state.bad.end(), begin + i)) {
                    set->labels.push_back(half->files[i].label);
                    if (config_.pictures) GC_TRY(length_read(&at, set));
                }
            GC_TRY(read(std::span(half->files).subspan(done), *half, set, import));
            begin += count;
        }
        return {};
    }
    void files(uint64_t count) { files_ = count; }
    uint64_t files() const { return files_; }
    ImportState state;

private:
    Status read(std::span<const Found::File> files, const Found& half, Set* set, Import* import) {
        std::vector<Decoded> slots(in_order_slots(config_.threads));
        return in_order({.count = files.size(),
                         .threads = config_.threads,
                         .bytes_max = bytes_max_,
                         .bytes = [&](uint64_t i) { return files[i].decode_bytes; },
                         .make = [&](uint64_t i, uint32_t slot) { decode(path_of(half, files[i]), &slots[slot]); },
                         .take = [&](uint64_t i, uint32_t slot) -> Status {
                             GC_TRY(append(files[i].label, &slots[slot], set));
                             ++state.taken;
                             progress(false);
                             return import->kept.save(state);
                         }});
    }
    /// Of the next picture in the spool of an import that goes on.
    static Status length_read(uint64_t* at, Set* set) {
        uint32_t length = 0;
        GC_TRY(set->images.read(*at, reinterpret_cast<uint8_t*>(&length), sizeof length));
        *at += sizeof length + length;
        set->lengths.push_back(length);
        return {};
    }
    struct Header {
        Status status;
        uint32_t C = 0, H = 0, W = 0;   // of the sample
        uint64_t decode_bytes = 0;
        uint64_t bytes = 0, changed_ns = 0;
    };
    struct Decoded {
        Status status;
        bool changed = false;   // since its header was read
        ImageFile image;        // without its bytes
        Planes planes;
        std::string jpeg;   // of pictures, in place of planes
        std::string odd;
    };

    // Any thread.
    void header(const std::string& path, Header* header) const {
        ImageFile image;
        struct stat file {};
        (void)::stat(path.c_str(), &file);   // before it is read
        *header = {.status = image_sample_header(path, &image)};
        header->bytes = static_cast<uint64_t>(file.st_size);
        header->changed_ns = static_cast<uint64_t>(file.st_mtim.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(file.st_mtim.tv_nsec);
        header->decode_bytes = image.file_bytes;
        if (!header->status.ok()) return;   // decode() reports it
        header->C = image.C;
        std::tie(header->H, header->W) = image_sample_size(image, rules_);
        // What image_fit() makes of the rows, then of the columns, comes on top.
        header->decode_bytes = image.decode_bytes(3) + uint64_t{3} * rules_.size * (uint64_t{rules_.size} + std::max(image.H, image.W));
        if (!rules_.whole) return;
        // The resized picture, the rows of its width before, and its JPEG, which is smaller.
        const uint64_t H = header->H, W = header->W;
        header->decode_bytes = image.decode_bytes(3) + 3 * W * (H + std::max(image.H, image.W)) + 3 * H * W;
        header->status = image_picture_check(image, rules_);
    }
    void decode(const std::string& path, Decoded* decoded) const {
        ImageFile& image = decoded->image;
        decoded->status = image_sample_open(path, &image);
        if (decoded->status.ok()) decoded->status = image_picture_check(image, rules_);
        decoded->changed = decoded->status.ok() && is_other(image);
        decoded->odd.clear();
        if (decoded->status.ok() && !decoded->changed) decoded->status = image_sample(image, rules_, C_, &decoded->planes, &decoded->odd);
        image.bytes = {};
        if (!rules_.whole || decoded->changed || !decoded->status.ok()) return;
        picture_encode(decoded->planes, &decoded->jpeg);
        decoded->planes = {};
    }

    /// Its header is not as it was.
    bool is_other(const ImageFile& image) const {
        const auto [H, W] = image_sample_size(image, rules_);
        return image.C > C_ || (rules_.whole ? std::max(H, W) > longest_ : H != H_ || W != W_);
    }

    // The thread that imports.
    Status compare(const std::string& path, const Header& header) {
        if (!header.status.ok()) return go_on(header.status);
        C_ = std::max(C_, header.C);
        longest_ = std::max({longest_, header.H, header.W});
        if (H_ == 0) {
            H_ = header.H;
            W_ = header.W;
            first_ = path;
        } else if ((header.H != H_ || header.W != W_) && others_++ == 0) {
            other_ = fmt::format("{}: {} x {} pixels, but {} has {} x {}", path, header.W, header.H, first_, W_, H_);
        }
        return {};
    }
    Status append(int32_t label, Decoded* decoded, Set* set) {
        if (decoded->changed) return fail(Code::data, "{}: changed while it was read", decoded->image.path);
        if (!decoded->status.ok()) {
            GC_TRY(go_on(decoded->status));
            if (state.bad_texts.size() < bad_shown_max) state.bad_texts.emplace_back(decoded->status.what);
            state.bad.push_back(state.taken);
            return {};
        }
        state.oddities.add(decoded->image, rules_, decoded->odd);
        if (rules_.whole) {
            const auto length = static_cast<uint32_t>(decoded->jpeg.size());
            GC_TRY(set->images.append(reinterpret_cast<const uint8_t*>(&length), sizeof length));
            GC_TRY(set->images.append(reinterpret_cast<const uint8_t*>(decoded->jpeg.data()), length));
            set->lengths.push_back(length);
            decoded->jpeg = {};
        } else {
            GC_TRY(set->images.append(decoded->planes.pixels.data(), decoded->planes.pixels.size()));
        }
        set->labels.push_back(label);
        decoded->planes = {};
        return {};
    }
    void progress(bool headers) {
        done_ = !headers ? state.taken : done_ + 1;
        const bool turn = std::exchange(headers_, headers) != headers || done_ == files_;
        if (config_.progress && pace_.due(turn)) config_.progress({headers, done_, files_});
    }

    std::string path_of(const Found& half, const Found::File& file) const {
        return half.folder + "/" + classes_[static_cast<size_t>(file.label)] + "/" + file.name;
    }
    /// Bad files are reported together at the end; any other error ends the import.
    static Status go_on(const Status& status) { return status.code == Code::data || status.code == Code::invalid ? Status() : status; }

    const ImportConfig& config_;
    const ImageRules rules_;
    const std::vector<std::string>& classes_;
    const uint64_t bytes_max_ = std::min(decode_bytes_max, memory_room().bytes / 4);
    uint32_t C_ = 1, H_ = 0, W_ = 0;   // of all samples; of pictures those of the first one
    uint32_t longest_ = 0;             // side of any sample
    std::string first_, other_;        // the image whose size that is; one of another size
    uint64_t others_ = 0;
    uint64_t files_ = 0, done_ = 0;
    ImportPace pace_;
    bool headers_ = true;   // done_ counts these
};

}   // namespace

Status image_sets(const ImportConfig& config, uint32_t, Import* import) {
    if (config.pictures && config.size == 0)
        return fail(Code::invalid, "--store jpeg: say how many pixels the short side of each picture is to have, as --size 256");
    std::vector<std::string> classes;
    Found train, test;
    GC_TRY(sets_find(config, &classes, &train, &test, &import->notes));
    if (config.test > 0) files_split(config, &train, &test);
    if (!are_numbers(classes)) import->class_names = fmt::format("{}", fmt::join(classes, ","));

    ImageReader reader(config, classes);
    reader.files(train.files.size() + test.files.size());
    for (Found* half : {&train, &test}) GC_TRY(reader.headers(*half));
    GC_TRY(reader.sizes_alike());
    ImportState& state = reader.state;
    GC_TRY(import->keep(config, reader.what(train, test), fmt::format(" of {} images", reader.files()), &state));
    const Status status = reader.read(train, test, import);
    report(state, &import->notes);
    GC_TRY(status);
    const uint64_t bad = state.bad.size();
    if (bad > 0 && (!config.skip_bad || import->train.count() == 0)) {
        const std::string& first = state.bad_texts[0];
        return bad == 1 ? fail(Code::data, "{}{}", first, config.skip_bad ? "" : ", or go on without it (--skip-bad)")
                        : fail(Code::data, "{}: {} files cannot be used, the first is {}{}", config.from, bad, first,
                               config.skip_bad ? "" : "; --skip-bad goes on without them");
    }
    return {};
}

}   // namespace gradcast
