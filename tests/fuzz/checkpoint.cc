// Our checks of checkpoints and final.h5.  HDF5's own parser is not the target, as in shard.cc: the library changes a good file as the
// input says, and then it is refused with one line that names it, or its parameters are as many as its net has.
//
// Input: triples (thing, how, length) and what goes into it.  how: 1 it is missing, 2 integers, 3 doubles, 4 a text.
#include <fmt/format.h>
#include <unistd.h>

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

std::string good_file() {
    const std::string path = std::filesystem::temp_directory_path() / fmt::format("gradcast-fuzz-{}-good.h5", ::getpid());
    Model model;
    model.net = {.C = 1,
                 .H = 2,
                 .W = 1,
                 .classes = 2,
                 .layers = {{.kind = "inner_product", .values = {{"outputs", 2}}}, {.kind = "softmax_cross_entropy"}}};
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

void change(hid_t file, Input& input) {
    const uint32_t thing = input.byte() % (std::size(attributes) + std::size(data_sets));
    const bool attribute = thing < std::size(attributes);
    const char* name = attribute ? attributes[thing] : data_sets[thing - std::size(attributes)];
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
    static const std::string good = good_file(), path = good + ".changed";
    std::filesystem::copy_file(good, path, std::filesystem::copy_options::overwrite_existing);
    {
        const Hdf5Lock lock;
        Hid file(H5Fopen(path.c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
        GC_ASSERT(file);
        Input input{data, std::min<size_t>(size, 512)};
        while (input.remaining > 0) change(file.get(), input);
    }
    auto check = [&](const Status& status, const Model& model, size_t parameters, uint32_t bit) {
        if (!status.ok()) {
            GC_ASSERT(std::strstr(status.what, path.c_str()) && !std::strchr(status.what, '\n'));
            return;
        }
        fuzz_reaches(bit);
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
