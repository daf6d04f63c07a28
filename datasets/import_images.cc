#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <memory>

#include "datasets/image.h"
#include "datasets/import.h"
#include "runtime/core/arena.h"

namespace gradcast {
namespace {

constexpr uint32_t classes_max = 65536;

/// The names in a folder, sorted bytewise, without those that begin with a dot.
Status folder_list(const std::string& path, std::vector<std::string>* names) {
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

/// The S_IFMT bits of a path; 0 if nothing is there.
mode_t type_of(const std::string& path) {
    struct stat info;
    return ::stat(path.c_str(), &info) == 0 ? info.st_mode & S_IFMT : 0;
}
bool is_folder(const std::string& path) { return type_of(path) == S_IFDIR; }

struct Found {
    std::vector<std::string> paths;
    std::vector<int32_t> labels;
};

Status classes_find(const std::string& folder, std::vector<std::string>* classes) {
    GC_TRY(folder_list(folder, classes));
    if (classes->empty()) return fail(Code::data, "{}: empty: it should hold a folder for each class", folder);
    for (const std::string& name : *classes)
        if (!is_folder(folder + "/" + name))
            return fail(Code::data, "{}/{}: not a folder: images lie in a folder for each class", folder, name);
        else if (name.find(',') != name.npos)
            return fail(Code::data, "{}/{}: a comma divides the names of classes: give the folder a name without one", folder, name);
    if (classes->size() > classes_max) return fail(Code::data, "{}: {} classes are more than {}", folder, classes->size(), classes_max);
    return {};
}

Status images_find(const std::string& folder, const std::vector<std::string>& classes, Found* found) {
    std::vector<std::string> names;
    GC_TRY(classes_find(folder, &names));
    for (const std::string& name : names) {
        auto label = std::lower_bound(classes.begin(), classes.end(), name);
        if (label == classes.end() || *label != name)
            return fail(Code::data, "{}/{}: a class with nothing to train on: remove it, or add its folder to the training set", folder,
                        name);
        std::vector<std::string> files;
        GC_TRY(folder_list(folder + "/" + name, &files));
        if (files.empty()) return fail(Code::data, "{}/{}: a class without images: take the folder away, or fill it", folder, name);
        for (const std::string& file : files) {
            found->paths.push_back(folder + "/" + name + "/" + file);
            found->labels.push_back(static_cast<int32_t>(label - classes.begin()));
        }
    }
    return {};
}

}   // namespace

Status image_sets(const ImportConfig& config, uint32_t, Set* train, Set* test) {
    const std::string& from = config.from;
    if (!is_folder(from))
        return fail(Code::data, "{}: no such folder: --from holds a folder for each class, or train/ and test/ of such", from);
    const bool halves = is_folder(from + "/train");
    const std::string folder = halves ? from + "/train" : from;
    std::vector<std::string> classes;
    Found found[2];
    GC_TRY(classes_find(folder, &classes));
    GC_TRY(images_find(folder, classes, &found[0]));
    if (halves && is_folder(from + "/test")) GC_TRY(images_find(from + "/test", classes, &found[1]));
    for (const std::string& name : classes) train->class_names += (train->class_names.empty() ? "" : ",") + name;
    if (train->class_names.size() > class_names_max) train->class_names.clear();   // too long for an attribute: classes go by number

    // All headers first: a wrong size is found before anything is decoded, and one RGB image makes all RGB.
    const std::string& first = found[0].paths[0];
    ImageFile image;
    uint32_t C = 1, H = 0, W = 0;
    for (const Found& half : found)
        for (const std::string& path : half.paths) {
            const mode_t type = type_of(path);
            if (type == S_IFDIR) return fail(Code::data, "{}: a folder: images lie directly in the folder of their class", path);
            if (type != 0 && type != S_IFREG)   // never read a pipe or a device
                return fail(Code::data, "{}: not a file: remove it", path);
            GC_TRY(image_open(path, &image));
            if (image.H > shard_side_max || image.W > shard_side_max || uint64_t{3} * image.H * image.W > shard_sample_bytes_max)
                return fail(Code::data, "{}: {} x {} pixels are more than a shard takes, {} MiB as RGB: make it smaller", path, image.W,
                            image.H, shard_sample_bytes_max >> 20);
            if (H == 0) {
                H = image.H;
                W = image.W;
            }
            if (image.H != H || image.W != W)
                return fail(Code::data,
                            "{}: {} x {} pixels, but {} has {} x {}: all must be alike (as by mogrify -resize {}x{}! in a copy)", path,
                            image.W, image.H, first, W, H, W, H);
            C = std::max(C, image.C);
        }
    const uint64_t sample = uint64_t{C} * H * W, count = found[0].paths.size() + found[1].paths.size();
    const uint64_t memory = machine_memory();
    if (sample > memory / count)
        return fail(Code::data, "{}: {} images of {} x {} x {} are more than the memory of this machine, {} MiB: import parts of them",
                    from, count, C, H, W, memory >> 20);
    for (Set* set : {train, test}) {
        Found& half = found[set == test];
        set->count = half.paths.size();
        set->C = C;
        set->H = H;
        set->W = W;
        set->images.resize(set->count * sample);
        set->labels = std::move(half.labels);
        for (uint64_t i = 0; i < set->count; ++i) {
            GC_TRY(image_open(half.paths[i], &image));
            if (image.H != H || image.W != W || image.C > C) return fail(Code::data, "{}: changed while it was read", half.paths[i]);
            GC_TRY(image_decode(image, C, set->images.data() + i * sample));
        }
    }
    return {};
}

}   // namespace gradcast
