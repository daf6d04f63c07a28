#include "datasets/image_sample.h"

#include <dirent.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "datasets/picture.h"
#include "datasets/shard.h"
#include "runtime/core/memory_room.h"

namespace gradcast {

Status image_folder_list(const std::string& path, std::vector<std::string>* names) {
    struct Close {
        void operator()(DIR* folder) const { ::closedir(folder); }
    };
    std::unique_ptr<DIR, Close> folder(::opendir(path.c_str()));
    if (!folder) return fail_sys(errno, "cannot open the folder {}", path);
    for (errno = 0; const dirent* entry = ::readdir(folder.get());)
        if (entry->d_name[0] != '.') names->emplace_back(entry->d_name);
    if (errno != 0) return fail_sys(errno, "cannot read the folder {}", path);
    std::sort(names->begin(), names->end());
    return {};
}

namespace {

/// Never opens a pipe or a device, which may be waited for.
Status file_check(const std::string& path) {
    struct stat info;
    if (::stat(path.c_str(), &info) == 0) {
        if (S_ISDIR(info.st_mode)) return fail(Code::data, "{}: a folder among images: move it away", path);
        if (!S_ISREG(info.st_mode)) return fail(Code::data, "{}: not a file: remove it", path);
    }
    return {};
}

/// What a header says may be any number, whatever the size of the file.
Status size_check(const ImageFile& image) {
    if (image.H > shard_side_max || image.W > shard_side_max || uint64_t{3} * image.H * image.W > shard_sample_bytes_max)
        return fail(Code::data, "{}: {} x {} pixels are more than a shard takes, {} MiB as RGB: make it smaller", image.path, image.W,
                    image.H, shard_sample_bytes_max >> 20);
    return {};
}

}   // namespace

Status image_sample_open(const std::string& path, ImageFile* image) {
    GC_TRY(file_check(path));
    GC_TRY(image_open(path, image));
    return size_check(*image);
}

Status image_sample_header(const std::string& path, ImageFile* image) {
    GC_TRY(file_check(path));
    bool complete = false;
    GC_TRY(image_header(path, image, &complete));
    if (!complete) {
        GC_TRY(image_open(path, image));
        image->bytes = {};
    }
    return size_check(*image);
}

std::pair<uint32_t, uint32_t> image_sample_size(const ImageFile& image, const ImageRules& rules) {
    if (rules.size > 0 && !rules.whole) return {rules.size, rules.size};
    const auto [H, W] = rules.exif && image.orientation >= 5 ? std::pair{image.W, image.H} : std::pair{image.H, image.W};
    if (rules.size == 0) return {H, W};
    const uint64_t shorter = std::min(H, W);
    return {static_cast<uint32_t>(uint64_t{rules.size} * H / shorter), static_cast<uint32_t>(uint64_t{rules.size} * W / shorter)};
}

Status image_picture_check(const ImageFile& image, const ImageRules& rules) {
    const auto [H, W] = image_sample_size(image, rules);
    if (!rules.whole || (std::max(H, W) <= picture_side_max && uint64_t{3} * H * W <= shard_sample_bytes_max)) return {};
    return fail(Code::data, "{}: {} x {} pixels become {} x {} with --size {}, more than a shard takes: cut it, or take a smaller size",
                image.path, image.W, image.H, W, H, rules.size);
}

Status image_sample(const ImageFile& image, const ImageRules& rules, uint32_t C, Planes* sample, std::string* odd) {
    GC_TRY(memory_room_for(image.decode_bytes(C), image.path));
    *sample = {C, image.H, image.W, std::vector<uint8_t>(uint64_t{C} * image.H * image.W)};
    GC_TRY(image_decode(image, C, sample->pixels.data(), odd));
    if (rules.exif) image_turn(image.orientation, sample);
    if (rules.size > 0) rules.whole ? image_resize(rules.size, sample) : image_fit(rules.size, sample);
    return {};
}

void ImageOddities::count(const std::string& what, const std::string& path) {
    auto& [images, first] = kinds_[what];
    if (images++ == 0) first = path;
}

void ImageOddities::add(const ImageFile& image, const ImageRules& rules, const std::string& odd) {
    if (image.deep) count("16 bits, of which the high byte is kept", image.path);
    if (image.alpha) count("transparency is dropped", image.path);
    if (image.colours) count("gamma or colour profile is not applied", image.path);
    if (image.orientation > 1)
        count(rules.exif ? "turned as the EXIF orientation says (--no-exif: as stored)" : "EXIF orientation is not applied", image.path);
    if (!odd.empty()) count("every pixel is read, though the file is odd", fmt::format("{} ({})", image.path, odd));
}

void ImageOddities::report(std::vector<std::string>* notes) const {
    for (const auto& [what, of] : kinds_)
        notes->push_back(of.first == 1 ? fmt::format("{}: {}", of.second, what)
                                       : fmt::format("{} images, {} among them: {}", of.first, of.second, what));
}

}   // namespace gradcast
