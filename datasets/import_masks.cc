// Images, and a mask of the same size for each: a class for each pixel.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <utility>

#include "datasets/image_sample.h"
#include "datasets/import.h"
#include "datasets/source.h"
#include "runtime/core/digest.h"
#include "runtime/core/version.h"

namespace gradcast {
namespace {

constexpr uint8_t void_label = 255;   // as of Pascal VOC: a pixel that says nothing

bool is_half(const std::string& folder) { return is_folder(folder + "/images") && is_folder(folder + "/masks"); }

struct MaskPair {
    std::string image, mask;   // paths
};

/// "a.b.jpg" without its ending.
std::string stem(const std::string& name) { return name.substr(0, name.rfind('.')); }

/// The images of a folder with their masks: NAME.png or NAME_mask.png.
Status pairs_find(const std::string& folder, std::vector<MaskPair>* pairs) {
    std::vector<std::string> images, masks;
    GC_TRY(image_folder_list(folder + "/images", &images));
    GC_TRY(image_folder_list(folder + "/masks", &masks));
    if (images.empty()) return fail(Code::data, "{}/images: empty", folder);
    std::map<std::string, std::string> mask_of;   // by the image's name without its ending
    for (const std::string& mask : masks) {
        std::string name = stem(mask);
        if (constexpr std::string_view end = "_mask"; name.ends_with(end)) name.resize(name.size() - end.size());
        if (const auto [there, is_new] = mask_of.try_emplace(name, mask); !is_new)
            return fail(Code::data, "{}/masks: {} and {} are masks of one image: take one of them away", folder, there->second, mask);
    }
    for (const std::string& image : images) {
        const auto mask = mask_of.find(stem(image));
        if (mask == mask_of.end())
            return fail(Code::data, "{0}/images/{1}: {0}/masks has no {2}.png and no {2}_mask.png for it", folder, image, stem(image));
        if (mask->second.empty()) return fail(Code::data, "{}/images/{}: another image has the same mask", folder, image);
        pairs->push_back({fmt::format("{}/images/{}", folder, image), fmt::format("{}/masks/{}", folder, mask->second)});
        mask->second.clear();
    }
    for (const auto& [name, mask] : mask_of)
        if (!mask.empty()) return fail(Code::data, "{}/masks/{}: a mask without an image", folder, mask);
    return {};
}

Status halves_find(const ImportConfig& config, std::vector<MaskPair>* train, std::vector<MaskPair>* test) {
    const std::string& from = config.from;
    std::string train_folder = from, test_folder;
    if (!is_half(from)) {
        train_folder = from + "/train";
        if (!is_half(train_folder))
            return fail(Code::data, "{}: --from has the folders images and masks, or train and test (val) with such", from);
        for (const char* name : {"test", "val", "valid", "validation"})
            if (test_folder.empty() && is_half(fmt::format("{}/{}", from, name))) test_folder = fmt::format("{}/{}", from, name);
    }
    GC_TRY(pairs_find(train_folder, train));
    if (test_folder.empty()) {
        const std::vector<bool> chosen = test_choose(config, std::vector<int32_t>(train->size()));
        std::vector<MaskPair> rest;
        for (size_t i = 0; i < chosen.size(); ++i) (chosen[i] ? *test : rest).push_back(std::move((*train)[i]));
        *train = std::move(rest);
        return {};
    }
    if (config.test > 0) return fail(Code::invalid, "--test: {} is there to test on: leave one of them out", test_folder);
    return pairs_find(test_folder, test);
}

class MaskReader {
public:
    MaskReader(const ImportConfig& config, uint64_t files) : config_(config), rules_{config.size, config.exif}, files_(files) {}

    /// Finds the size and the channels of all samples, and the labels of their masks.
    Status look(const std::vector<MaskPair>& pairs) {
        ImageFile image, mask;
        std::vector<uint8_t> labels;
        add(fmt::format("{} images\n", pairs.size()));
        for (const MaskPair& pair : pairs) {
            add(file_line(pair.image) + file_line(pair.mask));   // before they are read
            GC_TRY(image_sample_open(pair.image, &image));
            GC_TRY(image_sample_open(pair.mask, &mask));
            if (image.H != mask.H || image.W != mask.W)
                return fail(Code::data, "{}: {} x {} pixels, but {} has {} x {}: a mask has the size of its image", pair.mask, mask.W,
                            mask.H, pair.image, image.W, image.H);
            labels.resize(uint64_t{mask.H} * mask.W);
            GC_TRY(mask_decode(mask, labels.data()));
            for (const uint8_t label : labels) seen[label] = true;
            const auto [H, W] = image_sample_size(image, rules_);
            C_ = std::max(C_, image.C);
            if (H_ == 0) H_ = H, W_ = W, first_ = pair.image;
            else if (H != H_ || W != W_)
                return fail(
                    Code::data,
                    "{}: {} x {} pixels, but {} has {} x {}: --size {} makes all alike (resizes the short side to so many pixels and cuts "
                    "the middle out)",
                    pair.image, W, H, first_, W_, H_, std::min(H_, W_));
            progress(true, ++looked_);
        }
        return {};
    }
    /// Everything that the samples depend on.
    std::string what() {
        add(fmt::format("masks {} {} {} {} {} {} {}\n", version_text, rules_.size, rules_.exif, C_, H_, W_, whites));
        return sha_.hex();
    }

    /// Decodes the pairs from state.taken on; `begin` are taken before those of this half.
    Status read(std::span<const MaskPair> pairs, uint64_t begin, Set* set, Import* import) {
        set->C = C_, set->H = H_, set->W = W_;
        set->masked = true;
        const uint64_t done = std::min<uint64_t>(state.taken - begin, pairs.size());
        set->labels.assign(done, 0);
        ImageFile file;
        Planes image, mask;
        for (const MaskPair& pair : pairs.subspan(done)) {
            std::string odd;
            GC_TRY(image_sample_open(pair.image, &file));
            if (file.C > C_ || image_sample_size(file, rules_) != std::pair{H_, W_}) return changed(pair.image);
            GC_TRY(image_sample(file, rules_, C_, &image, &odd));
            state.oddities.add(file, rules_, odd);
            const uint32_t orientation = file.orientation, H = file.H, W = file.W;
            GC_TRY(image_sample_open(pair.mask, &file));
            if (file.H != H || file.W != W) return changed(pair.mask);
            mask = {1, H, W, std::vector<uint8_t>(uint64_t{H} * W)};
            GC_TRY(mask_decode(file, mask.pixels.data()));
            if (rules_.exif) image_turn(orientation, &mask);   // as its image
            if (rules_.size > 0) mask_fit(rules_.size, &mask);
            if (whites) std::ranges::replace(mask.pixels, void_label, uint8_t{1});
            GC_TRY(set->images.append(image.pixels.data(), image.pixels.size()));
            GC_TRY(set->masks.append(mask.pixels.data(), mask.pixels.size()));
            set->labels.push_back(0);
            progress(false, ++state.taken);
            GC_TRY(import->kept.save(state));
        }
        return {};
    }
    ImportState state;
    std::array<bool, 256> seen{};   // labels
    bool whites = false;            // the label 255 is the class 1

private:
    static Status changed(const std::string& path) { return fail(Code::data, "{}: changed while it was read", path); }
    void add(const std::string& text) { sha_.add(std::as_bytes(std::span(text))); }
    void progress(bool headers, uint64_t done) {
        const bool turn = std::exchange(headers_, headers) != headers || done == files_;
        if (config_.progress && pace_.due(turn)) config_.progress({headers, done, files_});
    }
    const ImportConfig& config_;
    const ImageRules rules_;
    const uint64_t files_;   // images
    uint64_t looked_ = 0;    // images, and their masks
    bool headers_ = true;
    ImportPace pace_;
    Sha256 sha_;   // of what()
    uint32_t C_ = 1, H_ = 0, W_ = 0;
    std::string first_;
};

}   // namespace

Status mask_sets(const ImportConfig& config, uint32_t, Import* import) {
    std::vector<MaskPair> train, test;
    GC_TRY(halves_find(config, &train, &test));
    MaskReader reader(config, train.size() + test.size());
    for (const auto* pairs : {&train, &test}) GC_TRY(reader.look(*pairs));
    uint32_t most = 0;
    for (uint32_t label = 0; label < void_label; ++label)
        if (reader.seen[label]) most = label;
    import->classes = most + 1;
    if (reader.seen[void_label] && most == 0) {
        reader.whites = true;
        import->classes = 2;
        import->notes.emplace_back("masks of 0 and 255: 255 is the class 1");
    } else if (reader.seen[void_label]) {
        import->ignore = void_label;
        import->notes.emplace_back("255 in masks is no class: such pixels say nothing (settings.ignore)");
    }
    if (import->classes < 2) return fail(Code::data, "{}: all masks are 0: there is one class, and nothing to learn", config.from);
    GC_TRY(import->keep(config, reader.what(), fmt::format(" of {} images", train.size() + test.size()), &reader.state, 1, true));
    GC_TRY(reader.read(train, 0, &import->train, import));
    GC_TRY(reader.read(test, train.size(), &import->test, import));
    reader.state.oddities.report(&import->notes);
    return {};
}

}   // namespace gradcast
