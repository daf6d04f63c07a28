#include "runtime/job/model/model_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>

#include "datasets/hdf5.h"
#include "nn/graph/layers.h"
#include "nn/net.h"
#include "runtime/core/digest.h"
#include "runtime/core/fd.h"
#include "runtime/core/identity.h"
#include "runtime/core/memory_room.h"
#include "runtime/core/nearest.h"

namespace gradcast {
namespace {

constexpr char format_name[] = "gradcast model";
// 2: with the states that a training goes on from; 3: with class_names; 4: layers by layer_text(); 5: trained with
// runtime/core/elementary.h
constexpr uint32_t format_version = 5, elementary_version = 5;
constexpr uint64_t text_bytes_max = 1 << 20;
constexpr uint64_t side_max = 65536;   // C, H, W, pad, classes

Hid text_type(uint64_t bytes) {
    Hid type(H5Tcopy(H5T_C_S1));
    if (type) H5Tset_size(type.get(), bytes == 0 ? 1 : bytes);
    return type;
}

bool put_attribute(hid_t file, const char* name, hid_t type, hid_t space, const void* value) {
    Hid attribute(H5Acreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT));
    return attribute && H5Awrite(attribute.get(), type, value) >= 0;
}
bool put_text(hid_t file, const char* name, const std::string& text) {
    Hid type = text_type(text.size()), space(H5Screate(H5S_SCALAR));
    return put_attribute(file, name, type.get(), space.get(), text.empty() ? "" : text.data());
}
template <typename T>
bool put_numbers(hid_t file, const char* name, hid_t type, std::span<const T> values) {
    hsize_t count = values.size();
    Hid space(values.size() == 1 ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, &count, nullptr));
    return put_attribute(file, name, type, space.get(), values.data());
}
bool put_data(hid_t file, const char* name, hid_t type, hid_t space, const void* values) {
    Hid data(H5Dcreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    return data && H5Dwrite(data.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0;
}
bool put_vector(hid_t file, const char* name, hid_t type, uint64_t count, const void* values) {
    hsize_t dims = count;
    Hid space(H5Screate_simple(1, &dims, nullptr));
    return put_data(file, name, type, space.get(), values);
}
bool put_long_text(hid_t file, const char* name, const std::string& text) {
    Hid type = text_type(text.size()), space(H5Screate(H5S_SCALAR));
    return put_data(file, name, type.get(), space.get(), text.empty() ? "" : text.data());
}

/// Reads attributes and data sets of one file; every type and size is checked before memory is taken.
class Reader {
public:
    Reader(const std::string& path, hid_t file, uint64_t file_bytes) : path_(path), file_(file), file_bytes_(file_bytes) {}

    Status broken(const char* name, std::string_view what) const {
        return fail(Code::data, "{}: not a gradcast model: {} {}", path_, name, what);
    }

    Status text(const char* name, std::string* value) const {
        Hid attribute(H5Aopen(file_, name, H5P_DEFAULT));
        if (!attribute) return broken(name, "is missing");
        Hid type(H5Aget_type(attribute.get())), space(H5Aget_space(attribute.get()));
        GC_TRY(text_check(name, type, space));
        value->assign(H5Tget_size(type.get()), '\0');
        if (H5Aread(attribute.get(), type.get(), value->data()) < 0) return broken(name, "cannot be read: " + hdf5_reason());
        value->resize(std::min(value->size(), value->find('\0')));
        return {};
    }
    Status long_text(const char* name, std::string* value) const {
        Hid data = data_set(name);
        if (!data) return broken(name, "is missing");
        Hid type(H5Dget_type(data.get())), space(H5Dget_space(data.get()));
        GC_TRY(text_check(name, type, space));
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
    template <typename T>
    Status vector(const char* name, hid_t stored, std::vector<T>* values) const {
        Hid data = data_set(name);
        if (!data) return broken(name, "is missing");
        Hid type(H5Dget_type(data.get())), space(H5Dget_space(data.get()));
        if (!type || !space || H5Tequal(type.get(), stored) <= 0) return broken(name, "has the wrong type");
        hssize_t count = H5Sget_simple_extent_npoints(space.get());
        if (count < 0 || static_cast<uint64_t>(count) > file_bytes_ / sizeof(T))
            return broken(name, "is longer than the file: it is truncated");
        GC_TRY(memory_room_for(static_cast<uint64_t>(count) * sizeof(T), fmt::format("{}: its {}", path_, name)));
        values->resize(static_cast<uint64_t>(count));
        if (H5Dread(data.get(), stored, H5S_ALL, H5S_ALL, H5P_DEFAULT, values->data()) < 0)
            return broken(name, "cannot be read: " + hdf5_reason());
        return {};
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
    Status text_check(const char* name, const Hid& type, const Hid& space) const {
        if (!type || !space || H5Tget_class(type.get()) != H5T_STRING || H5Tis_variable_str(type.get()) != 0 ||
            H5Sget_simple_extent_npoints(space.get()) != 1)
            return broken(name, "is not a text");
        if (H5Tget_size(type.get()) > text_bytes_max) return broken(name, "is too long");
        return {};
    }
    const std::string& path_;
    hid_t file_;
    uint64_t file_bytes_;
};

constexpr uint64_t key_value_version = 4;   // of layers

std::string layers_text(const NetSpec& net, uint64_t version) {
    auto value = [](const LayerSpec& layer, const char* key) {
        const double* given = layer.values.find(key);
        return given ? *given : layer_key_find(key)->value;
    };
    auto named = [](const std::string& name) { return name.empty() ? "-" : name; };
    std::string text;
    for (const LayerSpec& layer : net.layers)
        text += version >= key_value_version
                    ? layer_text(layer) + "\n"
                    : fmt::format("{} {} {} {} {} {} {} {} {} {}\n", layer.kind, named(layer.name), value(layer, "outputs"),
                                  value(layer, "kernel"), value(layer, "stride"), value(layer, "pad"), value(layer, "ceil"),
                                  value(layer, "bias"), value(layer, "rate"), named(layer.from));
    return text;
}

/// A line of a model of a version before key_value_version; in the oldest it ends with pad.
bool layer_parse_old(const std::string& line, LayerSpec* layer) {
    char kind[65], name[65], from[65] = "-";
    unsigned outputs, kernel, stride, pad, ceil = 0, bias = 1;
    double rate = 0;
    const int found = std::sscanf(line.c_str(), "%64s %64s %u %u %u %u %u %u %lf %64s", kind, name, &outputs, &kernel, &stride, &pad, &ceil,
                                  &bias, &rate, from);
    if (found != 6 && found != 10) return false;
    layer->kind = kind;
    if (std::string_view(from) != "-") layer->from = from;
    if (std::string_view(name) != "-") layer->name = name;
    const std::pair<const char*, double> values[] = {{"outputs", outputs}, {"kernel", kernel}, {"stride", stride}, {"pad", pad},
                                                     {"ceil", ceil},       {"bias", bias},     {"rate", rate}};
    for (const auto& [key, value] : values)
        if (value != layer_key_find(key)->value && !layer_set(*layer, key, value)) return false;
    return true;
}

/// False: some line is not such a layer.
bool layers_parse(const std::string& text, uint64_t version, NetSpec* net) {
    for (size_t begin = 0, end; begin < text.size(); begin = end + 1) {
        end = std::min(text.find('\n', begin), text.size());
        const std::string line = text.substr(begin, end - begin);
        LayerSpec layer;
        if (!(version >= key_value_version ? layer_parse(line, &layer) : layer_parse_old(line, &layer))) return false;
        net->layers.push_back(std::move(layer));
    }
    return !net->layers.empty();
}

std::string digest_of(auto values) { return sha256_hex(std::as_bytes(values)); }

/// All that a file holds as text, vectors by their SHA-256.
std::string model_content(const Model& model, const ModelState& state, uint64_t version) {
    const NetSpec& net = model.net;
    std::string text = fmt::format(
        "sample {} {} {} pad {} classes {} target_scale {}\nmean {}\nstd {}\nstep {} state {:016x} agreed {:d}\naccuracy {} test_loss {} "
        "evaluated {}\n"
        "kernel_set {}\ndata_digest {}\nid {}\nbase {}\njob {}\nlayers {}\nparameters {}\noptimiser {}\nexponents {}\nalgorithm {}\n",
        net.C, net.H, net.W, net.pad, net.classes, net.target_scale, fmt::join(model.mean, " "), fmt::join(model.std, " "), model.step,
        model.state, model.agreed, model.accuracy, model.test_loss, model.evaluated, model.kernel_set, model.data_digest, model.id,
        model.base, digest_of(std::span(model.job)), digest_of(std::span<const char>(layers_text(net, version))), model.digest,
        digest_of(state.optimiser), digest_of(state.exponents), digest_of(state.algorithm));
    if (!model.class_names.empty()) text += fmt::format("class_names {}\n", digest_of(std::span(model.class_names)));
    return digest_of(std::span(text));
}

/// What a file says of itself.
struct Stored {
    uint64_t version = 0;
    std::string content;   // see model_content(); empty in version 1
};

Status model_load(const std::string& path, int fd, uint64_t file_bytes, Model* model, ModelVectors* state, Stored* stored) {
    Hdf5Lock lock;
    Hid file = hdf5_open(fd, H5F_ACC_RDONLY);
    if (!file) {
        const std::string reason = hdf5_reason();
        if (const int sys = hdf5_open_error(reason)) return fail_sys(sys, "cannot open {}", path);
        return fail(Code::data, "{}: not a gradcast model: {}", path, reason);
    }
    Reader reader(path, file.get(), file_bytes);
    std::string format, layers;
    GC_TRY(reader.text("format", &format));
    if (format != format_name) return reader.broken("format", fmt::format("is not \"{}\"", format_name));
    uint64_t &version = stored->version, pad, classes, sample[3];
    GC_TRY(reader.number("version", 1, UINT32_MAX, &version));
    if (version > format_version)
        return fail(Code::data, "{}: written by a newer gradcast: format version {}, this one reads {}", path, version, format_version);
    GC_TRY(reader.numbers("sample", H5T_INTEGER, H5T_NATIVE_UINT64, std::span<uint64_t>(sample)));
    for (uint64_t side : sample)
        if (side == 0 || side > side_max) return reader.broken("sample", fmt::format("has a side of {}", side));
    GC_TRY(reader.number("pad", 0, side_max, &pad));
    GC_TRY(reader.number("classes", 1, side_max, &classes));
    GC_TRY(reader.number("step", 0, UINT32_MAX, &model->step));
    model->net = {.C = static_cast<uint32_t>(sample[0]),
                  .H = static_cast<uint32_t>(sample[1]),
                  .W = static_cast<uint32_t>(sample[2]),
                  .pad = static_cast<uint32_t>(pad),
                  .classes = static_cast<uint32_t>(classes)};
    if (H5Aexists(file.get(), "target_scale") > 0) {
        GC_TRY(reader.numbers("target_scale", H5T_FLOAT, H5T_NATIVE_FLOAT, std::span(&model->net.target_scale, 1)));
        if (!(model->net.target_scale > 0) || !std::isfinite(model->net.target_scale))
            return reader.broken("target_scale", "is not above 0");
    }
    model->mean.resize(sample[0]), model->std.resize(sample[0]);
    GC_TRY(reader.numbers("mean", H5T_FLOAT, H5T_NATIVE_FLOAT, std::span(model->mean)));
    GC_TRY(reader.numbers("std", H5T_FLOAT, H5T_NATIVE_FLOAT, std::span(model->std)));
    GC_TRY(reader.numbers("accuracy", H5T_FLOAT, H5T_NATIVE_DOUBLE, std::span(&model->accuracy, 1)));
    GC_TRY(reader.text("digest", &model->digest));
    GC_TRY(reader.text("kernel_set", &model->kernel_set));
    GC_TRY(reader.long_text("job", &model->job));
    GC_TRY(reader.long_text("layers", &layers));
    if (!layers_parse(layers, version, &model->net)) return reader.broken("layers", "is not a list of layers");
    for (float value : model->std)
        if (!(value > 0) || !std::isfinite(value)) return reader.broken("std", "is not above 0");
    GC_TRY(reader.vector("parameters", H5T_IEEE_F32LE, &state->parameters));
    model->other_functions = version < elementary_version;
    if (version < 2) return {};
    uint64_t agreed = 0;
    GC_TRY(reader.numbers("test_loss", H5T_FLOAT, H5T_NATIVE_DOUBLE, std::span(&model->test_loss, 1)));
    GC_TRY(reader.number("evaluated", 0, UINT32_MAX, &model->evaluated));
    GC_TRY(reader.text("data_digest", &model->data_digest));
    GC_TRY(reader.text("id", &model->id));
    GC_TRY(reader.text("base", &model->base));
    GC_TRY(reader.number("state", 0, UINT64_MAX, &model->state));
    GC_TRY(reader.number("agreed", 0, 1, &agreed));
    model->agreed = agreed == 1;
    GC_TRY(reader.text("content", &stored->content));
    if (reader.has("optimiser")) GC_TRY(reader.vector("optimiser", H5T_IEEE_F32LE, &state->optimiser));
    if (reader.has("class_names")) GC_TRY(reader.long_text("class_names", &model->class_names));
    GC_TRY(reader.vector("exponents", H5T_STD_I32LE, &state->exponents));
    if (reader.has("algorithm")) GC_TRY(reader.vector("algorithm", H5T_STD_U8LE, &state->algorithm));
    return {};
}

Status model_check(const std::string& path, Model* model, ModelVectors* state, Stored* stored) {
    Fd fd;
    uint64_t file_bytes = 0;
    struct stat info;
    if (::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode))
        return fail(Code::data, "{}: a folder: name the model in it, as {}/final.h5", path, path);
    GC_TRY(file_open(path, &fd, &file_bytes));
    GC_TRY(model_load(path, fd.get(), file_bytes, model, state, stored));
    if (digest_of(std::span(state->parameters)) != model->digest)
        return fail(Code::data, "{}: the digest of its parameters differs: the file is damaged", path);
    std::vector<Layer> layers;
    if (Status status = layers_check(model->net, &layers); !status.ok()) return fail(Code::data, "{}: damaged: {}", path, status.what);
    if (const uint64_t elements = layers_layout(layers, 1).elements; elements != state->parameters.size())
        return fail(Code::data, "{}: damaged: it holds {} parameters, its layers have {}", path, state->parameters.size(), elements);
    const ModelState vectors = {state->parameters, state->optimiser, state->exponents, state->algorithm};
    if (!stored->content.empty() && stored->content != model_content(*model, vectors, stored->version))
        return fail(Code::data, "{}: the digest of its content differs: the file is damaged", path);
    return {};
}

}   // namespace

Status model_reserve(const std::string& path, const Model& model, uint64_t state_bytes) {
    // Beside the data sets: headers, attributes, and the texts.
    const uint64_t bytes = state_bytes + model.job.size() + model.base.size() + model.class_names.size() +
                           layers_text(model.net, format_version).size() + (64 << 10) + 8 * (model.mean.size() + model.std.size());
    auto failed = [&](int error) {
        Status status = fail_sys(error, "cannot reserve {:.1f} MB for the model in {}", static_cast<double>(bytes) / 1e6,
                                 path.substr(0, path.rfind('/')));
        ::unlink(path.c_str());
        return status;
    };
    {
        Hdf5Lock lock;
        Hid file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
        if (!file || !file.close()) return failed(errno);
    }
    // HDF5 writes into it and cuts off the rest when it closes the file.
    Fd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (!fd) return failed(errno);
    const int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes));
    return error == 0 ? Status{} : failed(error);
}

Status model_write(const std::string& path, const Model& model, const ModelState& state) {
    const std::string content = model_content(model, state, format_version);
    Status status;
    {
        Hdf5Lock lock;
        Hid file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
        if (!file || H5Aexists(file.get(), "format") != 0) {   // not what model_reserve() has made
            file.close();
            file = Hid(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
        }
        const hid_t h = file.get();
        const uint64_t sample[] = {model.net.C, model.net.H, model.net.W}, version = format_version, pad = model.net.pad,
                       classes = model.net.classes, agreed = model.agreed ? 1 : 0;
        bool good =
            file && put_text(h, "format", format_name) && put_numbers(h, "version", H5T_NATIVE_UINT64, std::span(&version, 1)) &&
            put_numbers(h, "sample", H5T_NATIVE_UINT64, std::span<const uint64_t>(sample)) &&
            put_numbers(h, "pad", H5T_NATIVE_UINT64, std::span(&pad, 1)) &&
            put_numbers(h, "classes", H5T_NATIVE_UINT64, std::span(&classes, 1)) &&
            (model.net.target_scale == 0 || put_numbers(h, "target_scale", H5T_NATIVE_FLOAT, std::span(&model.net.target_scale, 1))) &&
            put_numbers(h, "mean", H5T_NATIVE_FLOAT, std::span(model.mean)) &&
            put_numbers(h, "std", H5T_NATIVE_FLOAT, std::span(model.std)) && put_text(h, "digest", model.digest) &&
            put_numbers(h, "step", H5T_NATIVE_UINT64, std::span(&model.step, 1)) &&
            put_numbers(h, "accuracy", H5T_NATIVE_DOUBLE, std::span(&model.accuracy, 1)) &&
            put_numbers(h, "test_loss", H5T_NATIVE_DOUBLE, std::span(&model.test_loss, 1)) &&
            put_numbers(h, "evaluated", H5T_NATIVE_UINT64, std::span(&model.evaluated, 1)) && put_text(h, "kernel_set", model.kernel_set) &&
            put_text(h, "data_digest", model.data_digest) && put_text(h, "id", model.id) && put_text(h, "base", model.base) &&
            put_numbers(h, "state", H5T_NATIVE_UINT64, std::span(&model.state, 1)) &&
            put_numbers(h, "agreed", H5T_NATIVE_UINT64, std::span(&agreed, 1)) && put_text(h, "content", content) &&
            put_long_text(h, "job", model.job) && put_long_text(h, "layers", layers_text(model.net, format_version)) &&
            (model.class_names.empty() || put_long_text(h, "class_names", model.class_names)) &&
            put_vector(h, "parameters", H5T_NATIVE_FLOAT, state.parameters.size(), state.parameters.data()) &&
            (state.optimiser.empty() || put_vector(h, "optimiser", H5T_NATIVE_FLOAT, state.optimiser.size(), state.optimiser.data())) &&
            put_vector(h, "exponents", H5T_NATIVE_INT32, state.exponents.size(), state.exponents.data()) &&
            (state.algorithm.empty() || put_vector(h, "algorithm", H5T_NATIVE_UINT8, state.algorithm.size(), state.algorithm.data()));
        // Not hdf5_reason(): whatever is closed on the way here has wiped it.
        if (!good || !file.close()) status = fail_sys(errno, "cannot write {}", path);
    }
    if (!status.ok()) ::unlink(path.c_str());
    return status;
}

std::string model_kept(const std::string& folder) {
    std::string path = folder + "/final.h5";
    const std::string part = path + ".part";
    if (::access(path.c_str(), F_OK) == 0) return path;
    if (::access(part.c_str(), F_OK) != 0) return {};
    Model model;
    std::vector<float> parameters;
    if (model_read(part, &model, &parameters).ok() && file_rename(part, path).ok()) return path;
    ::unlink(part.c_str());
    return {};
}

Status model_read(const std::string& path, Model* model, std::vector<float>* parameters) {
    Model read;
    ModelVectors state;
    Stored stored;
    GC_TRY(model_check(path, &read, &state, &stored));
    *model = std::move(read);
    *parameters = std::move(state.parameters);
    return {};
}

Status checkpoint_read(const std::string& path, Model* model, ModelVectors* state) {
    Model read;
    ModelVectors vectors;
    Stored stored;
    GC_TRY(model_check(path, &read, &vectors, &stored));
    if (stored.content.empty()) return fail(Code::data, "{}: a model of format version 1, from which no training can go on", path);
    JobId id;   // it names a folder
    if (!job_id_parse(read.id, &id)) return fail(Code::data, "{}: not a checkpoint: its job has the id \"{}\"", path, one_line(read.id));
    *model = std::move(read);
    *state = std::move(vectors);
    return {};
}

}   // namespace gradcast
