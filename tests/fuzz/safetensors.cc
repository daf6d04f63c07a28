// Whatever a file to start from holds: it is refused with one line that names it, or every parameter is a number.
#include "runtime/job/model/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>

#include "nn/graph/layers.h"
#include "nn/net.h"
#include "runtime/core/fd.h"
#include "tests/fuzz/reached.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace gradcast;
    const NetSpec net{
        .C = 1,
        .H = 2,
        .W = 1,
        .classes = 2,
        .layers = {{.kind = "inner_product", .values = {{"outputs", 2}}}, {.kind = "batch_norm"}, {.kind = "softmax_cross_entropy"}}};
    std::vector<Layer> layers;
    GC_ASSERT(layers_check(net, &layers).ok());
    static const std::string path = std::filesystem::temp_directory_path() / fmt::format("gradcast-fuzz-{}.safetensors", ::getpid());
    {
        Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
        GC_ASSERT(fd && ::write(fd.get(), data, size) == static_cast<ssize_t>(size));
    }
    std::vector<float> parameters(layers_layout(layers, 1).elements, NAN);
    std::string digest, notes;
    Status status = safetensors_read(path, net, parameters, &digest, &notes);
    Model model;
    std::vector<float> values;
    const Status whole = safetensors_model(path, &model, &values);   // by its own metadata
    GC_ASSERT(whole.ok() || (std::strstr(whole.what, path.c_str()) && !std::strchr(whole.what, '\n')));
    fuzz_reaches(1, whole.ok());
    if (status.ok()) {
        fuzz_reaches(0);
        GC_ASSERT(digest.size() == 64);
        for (float value : parameters) GC_ASSERT(std::isfinite(value));
    } else {
        GC_ASSERT(std::strstr(status.what, path.c_str()) && !std::strchr(status.what, '\n'));
    }
    ::unlink(path.c_str());
    return 0;
}
