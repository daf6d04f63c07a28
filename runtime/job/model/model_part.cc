#include "runtime/job/model/model_part.h"
#include "datasets/tokeniser.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "nn/graph/layers.h"
#include "runtime/core/digest.h"
#include "runtime/core/identity.h"
#include "runtime/core/nearest.h"
#include "runtime/job/model/model_format.h"

namespace gradcast {
namespace {

constexpr uint64_t text_bytes_max = 1 << 20;
constexpr uint64_t side_max = 65536;   // C, H, W, pad, classes

/// Attributes and data sets of one file.
class Contents {
public:
    Contents(const std::string& path, hid_t file, uint64_t file_bytes) : path_(path), file_(file), file_bytes_(file_bytes) {}

    Status broken(const char* name, std::string_view what) const {
        return fail(Code::data, "{}: not a gradcast model: {} {}", path_, name, what);
    }

    Status text(const char* name, std::string* value) const {
        Hid attribute(H5Aopen(file_, name, H5P_DEFAULT));
        if (!attribute) return broken(name, "is missing");
        Hid type(H5Aget_type(attribute.get())), space(H5Aget_space(attribute.get()));
        GC_TRY(text_check(name, type, space, text_bytes_max));
        value->assign(H5Tget_size(type.get()), '\0');
        if (H5Aread(attribute.get(), type.get(), value->data()) < 0) return broken(name, "cannot be read: " + hdf5_reason());
        value->resize(std::min(value->size(), value->find('\0')));
        return {};
    }
    Status long_text(const char* name, std::string* value, size_t bytes_max = text_bytes_max) const {
        Hid data = data_set(name);
        if (!data) return broken(name, "is missing");
        Hid type(H5Dget_type(data.get())), space(H5Dget_space(data.get()));
        GC_TRY(text_check(name, type, space, bytes_max));
        value->assign(H5Tget_size(type.get()), '\0');
        if (H5Dread(data.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, value->data()) < 0)
            return broken(name, "cannot be read: " + hdf5_reason());
        value->resize(std::min(value->size(), value->find('\0')));
        return {};
    }
    template <typename T>
    Status numbers(const char* name, H5T_class_t kind, hid_t native, std::span<T> values) const {
        Hid attribute(H5Aopen(file_, name, H5P_DEFAULT));
        if (!attribute) return broken(name, "is missing");
        Hid type(H5Aget_type(attribute.get())), space(H5Aget_space(attribute.get()));
        if (!type || !space || H5Tget_class(type.get()) != kind) return broken(name, "has the wrong type");
        if (hssize_t has = H5Sget_simple_extent_npoints(space.get()); has != static_cast<hssize_t>(values.size()))
            return broken(name, fmt::format("has {} elements instead of {}", has, values.size()));
        if (H5Aread(attribute.get(), native, values.data()) < 0) return broken(name, "cannot be read: " + hdf5_reason());
        return {};
    }
    Status number(const char* name, uint64_t low, uint64_t high, uint64_t* value) const {
        GC_TRY(numbers(name, H5T_INTEGER, H5T_NATIVE_UINT64, std::span(value, 1)));
        return *value >= low && *value <= high ? Status{} : broken(name, fmt::format("is {}, outside {} .. {}", *value, low, high));
    }
    /// Opens a vector.  Error: it is not one of the stored type that lies in the file.
    Status vector(StateVector which, Hid* data, uint64_t* elements) const {
        const auto [name, width] = kind_of(which);
        *data = data_set(name);
        if (!*data) return broken(name, "is missing");
        Hid type(H5Dget_type(data->get())), space(H5Dget_space(data->get()));
        if (!type || !space || H5Tequal(type.get(), stored_type(which)) <= 0) return broken(name, "has the wrong type");
        const hssize_t count = H5Sget_simple_extent_npoints(space.get());
        if (count < 0 || static_cast<uint64_t>(count) > file_bytes_ / width)
            return broken(name, "is longer than the file: it is truncated");
        if (H5Sget_simple_extent_ndims(space.get()) != 1) return broken(name, "is not a vector");
        *elements = static_cast<uint64_t>(count);
        return {};
    }
    Status ranges(const StateSizes& sizes, StateRuns* runs) const {
        constexpr const char* name = "ranges";
        const Hid data = data_set(name);
        if (!data) return broken(name, "is missing");
        Hid type(H5Dget_type(data.get())), space(H5Dget_space(data.get()));
        const hssize_t count = H5Sget_simple_extent_npoints(space.get());
        if (!type || H5Tget_class(type.get()) != H5T_INTEGER || H5Tget_size(type.get()) != sizeof(uint64_t))
            return broken(name, "has the wrong type");
        if (count < 0 || static_cast<uint64_t>(count) > std::min(ranges_max, file_bytes_ / sizeof(uint64_t)))
            return broken(name, "is longer than the file: it is truncated");
        std::vector<uint64_t> values(static_cast<size_t>(count));
        if (H5Dread(data.get(), H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) < 0)
            return broken(name, "cannot be read: " + hdf5_reason());
        return ranges_parse(values, sizes, runs) ? Status{} : broken(name, "is not a list of ranges");
    }
    bool has(const char* name) const { return H5Lexists(file_, name, H5P_DEFAULT) > 0; }

private:
    /// One that lies in this very file: a link or external storage could lead HDF5 to any other.
    Hid data_set(const char* name) const {
        H5L_info_t link;
        if (H5Lget_info(file_, name, &link, H5P_DEFAULT) < 0 || link.type != H5L_TYPE_HARD) return {};
        Hid data(H5Dopen2(file_, name, H5P_DEFAULT));
        if (!data) return {};
        Hid creation(H5Dget_create_plist(data.get()));
        const H5D_layout_t layout = H5Pget_layout(creation.get());
        // Nor in chunks, whose size a file of few bytes may give as gigabytes.
        const bool here = (layout == H5D_CONTIGUOUS || layout == H5D_COMPACT) && H5Pget_external_count(creation.get()) == 0;
        return here ? std::move(data) : Hid();
    }
    Status text_check(const char* name, const Hid& type, const Hid& space, size_t bytes_max) const {
        if (!type || !space || H5Tget_class(type.get()) != H5T_STRING || H5Tis_variable_str(type.get()) != 0 ||
            H5Sget_simple_extent_npoints(space.get()) != 1)
            return broken(name, "is not a text");
        if (H5Tget_size(type.get()) > bytes_max) return broken(name, "is too long");
        return {};
    }
    const std::string& path_;
    hid_t file_;
    uint64_t file_bytes_;
};

/// Those of a piece of its vector, which begins at element `at`, that the target wants.
void keep(const StateTarget& target, uint64_t at, std::span<const std::byte> piece) {
    const uint64_t width = kind_of(target.which).width;
    (void)each_stretch(target.runs, at, piece.size() / width, [&](uint64_t offset, uint64_t first, uint64_t count) {
        std::memcpy(&target.to[offset * width], &piece[(first - at) * width], count * width);
        return Status{};
    });
}

}   // namespace

ModelPart::~ModelPart() {
    const Hdf5Lock lock;
    for (Hid& data : data_) data.close();
    file_.close();
}

Status ModelPart::open(const std::string& path) {
    path_ = path;
    uint64_t file_bytes = 0;
    struct stat info;
    if (::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode))
        return fail(Code::data, "{}: a folder: name the model in it, as {}/final.h5", path, path);
    GC_TRY(file_open(path, &fd_, &file_bytes));
    GC_TRY(describe(file_bytes));
    return check_net();
}

Status ModelPart::describe(uint64_t file_bytes) {
    Hdf5Lock lock;
    file_ = hdf5_open(fd_.get(), H5F_ACC_RDONLY);
    if (!file_) {
        const std::string reason = hdf5_reason();
        if (const int sys = hdf5_open_error(reason)) return fail_sys(sys, "cannot open {}", path_);
        return fail(Code::data, "{}: not a gradcast model: {}", path_, reason);
    }
    const Contents contents(path_, file_.get(), file_bytes);
    StateSizes has{};
    const auto vector = [&](StateVector which) { return contents.vector(which, &data_[which], &has[which]); };
    std::string format, layers;
    GC_TRY(contents.text("format", &format));
    if (format != model_format_name) return contents.broken("format", fmt::format("is not \"{}\"", model_format_name));
    uint64_t &version = version_, pad, classes, sample[3];
    GC_TRY(contents.number("version", 1, UINT32_MAX, &version));
    if (version > model_newest_version)
        return fail(Code::data, "{}: written by a newer gradcast: format version {}, this one reads {}", path_, version,
                    model_newest_version);
    GC_TRY(contents.numbers("sample", H5T_INTEGER, H5T_NATIVE_UINT64, std::span<uint64_t>(sample)));
    for (uint64_t side : sample)
        if (side == 0 || side > side_max) return contents.broken("sample", fmt::format("has a side of {}", side));
    GC_TRY(contents.number("pad", 0, side_max, &pad));
    GC_TRY(contents.number("classes", 1, side_max, &classes));
    GC_TRY(contents.number("step", 0, UINT32_MAX, &model_.step));
    model_.net = {.C = static_cast<uint32_t>(sample[0]),
                  .H = static_cast<uint32_t>(sample[1]),
                  .W = static_cast<uint32_t>(sample[2]),
                  .pad = static_cast<uint32_t>(pad),
                  .classes = static_cast<uint32_t>(classes)};
    if (H5Aexists(file_.get(), "target_scale") > 0) {
        GC_TRY(contents.numbers("target_scale", H5T_FLOAT, H5T_NATIVE_FLOAT, std::span(&model_.net.target_scale, 1)));
        if (!(model_.net.target_scale > 0) || !std::isfinite(model_.net.target_scale))
            return contents.broken("target_scale", "is not above 0");
    }
    if (version >= model_typed_version) {
        std::string element, target_element;
        uint64_t targets, vocabulary;
        GC_TRY(contents.text("element", &element));
        GC_TRY(contents.text("target_element", &target_element));
        GC_TRY(contents.number("targets", 0, targets_max, &targets));
        GC_TRY(contents.number("vocabulary", 0, UINT32_MAX, &vocabulary));
        if (!element_find(element, &model_.net.element)) return contents.broken("element", fmt::format("is {}", one_line(element)));
        if (!element_find(target_element, &model_.net.target_element))
            return contents.broken("target_element", fmt::format("is {}", one_line(target_element)));
        model_.net.targets = static_cast<uint32_t>(targets);
        model_.net.vocabulary = static_cast<uint32_t>(vocabulary);
        if (uint64_t ignore = 0; H5Aexists(file_.get(), "ignore") > 0) {
            GC_TRY(contents.number("ignore", 0, UINT16_MAX, &ignore));
            model_.net.ignore = static_cast<int32_t>(ignore);
        }
    }
    if (version >= model_pictures_version) {
        uint64_t side = 0;
        GC_TRY(contents.number("pictures_side", std::max(sample[1], sample[2]), side_max, &side));
        model_.pictures_side = static_cast<uint32_t>(side);
    }
    model_.mean.resize(sample[0]), model_.std.resize(sample[0]);
    GC_TRY(contents.numbers("mean", H5T_FLOAT, H5T_NATIVE_FLOAT, std::span(model_.mean)));
    GC_TRY(contents.numbers("std", H5T_FLOAT, H5T_NATIVE_FLOAT, std::span(model_.std)));
    GC_TRY(contents.numbers("accuracy", H5T_FLOAT, H5T_NATIVE_DOUBLE, std::span(&model_.accuracy, 1)));
    GC_TRY(contents.text("digest", &model_.digest));
    GC_TRY(contents.text("kernel_set", &model_.kernel_set));
    GC_TRY(contents.long_text("job", &model_.job));
    GC_TRY(contents.long_text("layers", &layers));
    if (!layers_parse(layers, version, &model_.net)) return contents.broken("layers", "is not a list of layers");
    for (float value : model_.std)
        if (!(value > 0) || !std::isfinite(value)) return contents.broken("std", "is not above 0");
    GC_TRY(vector(StateVector::parameters));
    model_.other_functions = version < model_elementary_version;
    sizes_ = has;
    runs_ = state_runs_whole(has);
    if (version < 2) return {};
    uint64_t agreed = 0;
    GC_TRY(contents.numbers("test_loss", H5T_FLOAT, H5T_NATIVE_DOUBLE, std::span(&model_.test_loss, 1)));
    GC_TRY(contents.number("evaluated", 0, UINT32_MAX, &model_.evaluated));
    GC_TRY(contents.text("data_digest", &model_.data_digest));
    GC_TRY(contents.text("id", &model_.id));
    GC_TRY(contents.text("base", &model_.base));
    GC_TRY(contents.number("state", 0, UINT64_MAX, &model_.state));
    GC_TRY(contents.number("agreed", 0, 1, &agreed));
    model_.agreed = agreed == 1;
    GC_TRY(contents.text("content", &content_));
    if (contents.has("optimiser")) GC_TRY(vector(StateVector::optimiser));
    if (contents.has("alphabet")) GC_TRY(contents.long_text("alphabet", &model_.alphabet, Tokeniser::text_bytes_max));
    if (contents.has("class_names")) GC_TRY(contents.long_text("class_names", &model_.class_names));
    GC_TRY(vector(StateVector::exponents));
    if (contents.has("algorithm")) GC_TRY(vector(StateVector::algorithm));
    if (version < model_part_version) return sizes_ = has, runs_ = state_runs_whole(has), Status{};
    runs_ = {};
    GC_TRY(contents.numbers("whole", H5T_INTEGER, H5T_NATIVE_UINT64, std::span<uint64_t>(sizes_)));
    GC_TRY(contents.ranges(sizes_, &runs_));
    return state_sizes(runs_) == has ? Status{} : contents.broken("ranges", "are not those of its vectors");
}

Status ModelPart::check_net() const {
    std::vector<Layer> layers;
    if (Status status = layers_check(model_.net, &layers); !status.ok()) return fail(Code::data, "{}: damaged: {}", path_, status.what);
    const uint64_t elements = layers_layout(layers, 1).elements, has = sizes_[StateVector::parameters];
    if (elements == has) return {};
    return fail(Code::data, "{}: damaged: it holds {} parameters, its layers have {}", path_, has, elements);
}

Status ModelPart::resumable() const {
    if (content_.empty()) return fail(Code::data, "{}: a model of format version 1, from which no training can go on", path_);
    JobId id;   // it names a folder
    if (job_id_parse(model_.id, &id)) return {};
    return fail(Code::data, "{}: not a checkpoint: its job has the id \"{}\"", path_, one_line(model_.id));
}

Status ModelPart::read_stored(StateVector which, uint64_t offset, std::span<std::byte> to) const {
    const auto [name, width] = kind_of(which);
    const hsize_t first = offset, count = to.size() / width;
    const Hdf5Lock lock;
    Hid from(H5Dget_space(data_[which].get())), memory(H5Screate_simple(1, &count, nullptr));
    if (H5Sselect_hyperslab(from.get(), H5S_SELECT_SET, &first, nullptr, &count, nullptr) >= 0 &&
        H5Dread(data_[which].get(), stored_type(which), memory.get(), from.get(), H5P_DEFAULT, to.data()) >= 0)
        return {};
    return fail(Code::data, "{}: not a gradcast model: {} cannot be read: {}", path_, name, hdf5_reason());
}

Status ModelPart::range(StateVector which, uint64_t place, std::span<std::byte> to) const {
    const uint64_t width = kind_of(which).width;
    return each_stretch(runs_[which], place, to.size() / width, [&](uint64_t offset, uint64_t first, uint64_t count) {
        return read_stored(which, offset, to.subspan((first - place) * width, count * width));
    });
}

Status ModelPart::read(std::span<const StateTarget> targets) const {
    PerVector<std::string> digests;
    uint64_t most = 0;   // bytes of a run
    for (const StateVector which : state_vectors)
        for (const Layout::Run& run : runs_[which]) most = std::max(most, run.count * kind_of(which).width);
    std::vector<std::byte> memory(std::min<uint64_t>(most, model_piece_bytes));
    for (const StateVector which : state_vectors) {
        const uint64_t width = kind_of(which).width;
        Sha256 sha;
        for (const Layout::Run& run : runs_[which])
            for (uint64_t at = 0, count; at < run.count; at += count) {
                count = std::min(run.count - at, model_piece_bytes / width);
                const std::span<std::byte> piece = std::span(memory).first(count * width);
                GC_TRY(read_stored(which, run.offset + at, piece));
                sha.add(piece);
                for (const StateTarget& target : targets)
                    if (target.which == which) keep(target, run.place + at, piece);
            }
        digests[which] = sha.hex();
    }
    if (digests[StateVector::parameters] != model_.digest)
        return fail(Code::data, "{}: the digest of its parameters differs: the file is damaged", path_);
    if (!content_.empty() && content_ != model_content(model_, digests, version_, sizes_, runs_))
        return fail(Code::data, "{}: the digest of its content differs: the file is damaged", path_);
    return {};
}

}   // namespace gradcast
