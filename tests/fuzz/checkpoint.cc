// Our checks of checkpoints and final.h5.  HDF5's own parser is not the target, as in shard.cc: the library changes a good file as the
// input says, and then it is refused with one line that names it, or its parameters are as many as its net has.
//
// Input: triples (thing, how, length) and what goes into it.  how: 1 it is missing, 2 integers, 3 doubles, 4 a text.  A first byte 254 says
// that the file is the model of a text, 253 of masks; their things have 26 more numbers.
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>

#include "datasets/hdf5.h"
#include "nn/graph/layers.h"
#include "nn/net.h"
#include "runtime/core/digest.h"
#include "runtime/job/model/model_file.h"
#include "tests/fuzz/reached.h"

namespace gradcast {
namespace {

constexpr const char* attributes[] = {"format", "version", "sample",   "pad",       "classes",   "mean",        "std",
                                      "digest", "step",    "accuracy", "test_loss", "evaluated", "kernel_set",  "data_digest",
                                      "id",     "base",    "state",    "agreed",    "content",   "target_scale"};
constexpr const char* data_sets[] = {"parameters", "optimiser", "exponents", "algorithm", "layers", "job"};
constexpr const char* typed_attributes[] = {"element", "targets", "target_element", "vocabulary", "ignore"};
constexpr const char* typed_data_sets[] = {"alphabet", "class_names"};
enum class Base : uint8_t { labels, text, masks };
constexpr uint8_t of_text = 254, of_masks = 253;

std::string good_file(Base base) {
    const std::string path =
        std::filesystem::temp_directory_path() / fmt::format("gradcast-fuzz-{}-good-{}.h5", ::getpid(), static_cast<int>(base));
    Model model;
    model.net = {.C = 1,
                 .H = 2,
                 .W = 1,
                 .classes = 2,
                 .layers = {{.kind = "inner_product", .values = {{"outputs", 2}}}, {.kind = "softmax_cross_entropy"}}};
    const LayerSpec loss{.kind = "softmax_cross_entropy"};
    if (base == Base::text) {
        model.net = {.C = 1, .H = 1, .W = 4, .classes = 1, .element = Element::u16, .vocabulary = 3};
        model.net.layers = {{.kind = "embedding", .values = {{"outputs", 2}}}, {.kind = "linear", .values = {{"outputs", 3}}}, loss};
        model.alphabet = "abc";
    }
    if (base == Base::masks) {
        model.net = {.C = 1, .H = 2, .W = 2, .classes = 2, .targets = 4, .target_element = Element::u8, .ignore = 255};
        model.net.layers = {{.kind = "conv", .values = {{"outputs", 2}, {"kernel", 1}}}, loss};
        model.class_names = "dark,light";
        model.pictures_side = 3;
    }
    model.mean = {0.5f};
    model.std = {0.25f};
    model.job = "[job]\n";
    model.base = "/base";
    model.kernel_set = std::string(16, 'b');
    model.data_digest = std::string(64, 'c');
    model.id = std::string(32, 'd');
    model.step = 7;
    std::vector<Layer> layers;
    GC_ASSERT(layers_check(model.net, &layers).ok());
    const ModelVectors state{std::vector<float>(layers_layout(layers, 1).elements, 0.5f), {1, 2}, {3}, {}};
    model.digest = sha256_hex(std::as_bytes(std::span(state.parameters)));
    GC_ASSERT(model_write(path, model, state).ok());
    return path;
}

struct Input {
    const uint8_t* at;
    size_t remaining;
    uint8_t byte() { return remaining == 0 ? 0 : (--remaining, *at++); }
};

/// What may be changed: its name, and whether it is an attribute.
std::vector<std::pair<const char*, bool>> things_of(Base base) {
    std::vector<std::pair<const char*, bool>> all;
    for (const char* name : attributes) all.emplace_back(name, true);
    for (const char* name : data_sets) all.emplace_back(name, false);
    if (base == Base::labels) return all;
    for (const char* name : typed_attributes) all.emplace_back(name, true);
    for (const char* name : typed_data_sets) all.emplace_back(name, false);
    all.emplace_back("pictures_side", true);
    return all;
}

void change(hid_t file, Base base, Input& input) {
    const auto things = things_of(base);
    const auto [name, attribute] = things[input.byte() % things.size()];
    const uint8_t how = input.byte() % 5;
    const hsize_t length = input.byte() % 9;
    if (how == 0) return;
    if (attribute) (void)H5Adelete(file, name);
    else if (H5Lexists(file, name, H5P_DEFAULT) > 0) (void)H5Ldelete(file, name, H5P_DEFAULT);
    if (how == 1) return;
    Hid type(how == 4 ? H5Tcopy(H5T_C_S1) : H5Tcopy(how == 2 ? H5T_NATIVE_INT64 : H5T_NATIVE_DOUBLE));
    if (how == 4) H5Tset_size(type.get(), length + 1);
    Hid space(how == 4 || length == 1 ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, &length, nullptr));
    uint8_t value[9 * 8];
    for (uint8_t& each : value) each = input.remaining > 0 ? input.byte() : 0;
    if (attribute) {
        Hid made(H5Acreate2(file, name, type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT));
        if (made) (void)H5Awrite(made.get(), type.get(), value);
    } else {
        Hid made(H5Dcreate2(file, name, type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
        if (made) (void)H5Dwrite(made.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, value);
    }
}

}   // namespace
}   // namespace gradcast

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace gradcast;
    static const std::array good = {good_file(Base::labels), good_file(Base::text), good_file(Base::masks)};
    static const std::string path = good[0] + ".changed";
    const Base base = size > 0 && data[0] == of_text ? Base::text : size > 0 && data[0] == of_masks ? Base::masks : Base::labels;
    if (base != Base::labels) ++data, --size;
    std::filesystem::copy_file(good[static_cast<size_t>(base)], path, std::filesystem::copy_options::overwrite_existing);
    {
        const Hdf5Lock lock;
        Hid file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
        GC_ASSERT(file);
        Input input{data, std::min<size_t>(size, 512)};
        while (input.remaining > 0) change(file.get(), base, input);
    }
    auto check = [&](const Status& status, const Model& model, size_t parameters, uint32_t bit) {
        if (!status.ok()) {
            GC_ASSERT(std::strstr(status.what, path.c_str()) && !std::strchr(status.what, '\n'));
            return;
        }
        fuzz_reaches(bit + 2 * static_cast<uint32_t>(base));
        std::vector<Layer> layers;
        GC_ASSERT(layers_check(model.net, &layers).ok() && layers_layout(layers, 1).elements == parameters);
    };
    Model model;
    std::vector<float> parameters;
    const Status as_model = model_read(path, &model, &parameters);
    check(as_model, model, parameters.size(), 0);
    ModelVectors state;
    const Status as_checkpoint = checkpoint_read(path, &model, &state);
    check(as_checkpoint, model, state.parameters.size(), 1);
    ::unlink(path.c_str());
    return 0;
}
