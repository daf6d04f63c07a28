// What a process or a folder says of a program: it is refused with one line, or is bounded and what it says it is.  The first byte says
// which: HELLO, an inventory, sources.json.
#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "nn/graph/layers.h"
#include "runtime/attach/hello.h"
#include "runtime/attach/wire.h"
#include "runtime/core/fd.h"
#include "runtime/core/inventory.h"
#include "runtime/job/file/sources.h"
#include "tests/fuzz/reached.h"

namespace gradcast {
namespace {

void hello(std::string_view text) {
    ProcessHello hello;
    const Status status = hello_parse(text, &hello);
    if (!status.ok()) return GC_ASSERT(!std::strchr(status.what, '\n'));
    fuzz_reaches(0);
    GC_ASSERT(hello.layers.size() <= GC_ATTACH_TENSORS_MAX + 1);
    NetSpec spec{.C = 1, .H = 1, .W = 1, .classes = 2, .layers = hello.layers};
    std::vector<Layer> layers;
    GC_ASSERT(layers_check(spec, &layers).ok());
    for (const LayerSpec& each : hello.layers) {   // model files have them as text
        LayerSpec again;
        GC_ASSERT(layer_parse(layer_text(each), &again) && layer_text(again) == layer_text(each));
    }
    GC_ASSERT(hello_digest(hello).size() == 64 && hello_inventory(hello).size() <= inventory_bytes_max);
}

void inventory(std::string_view text) {
    const size_t half = text.size() / 2;
    const std::string one = inventory_difference({"a", text.substr(0, half)}, {"b", text.substr(half)}),
                      libraries = inventory_libraries(text.substr(0, half), text.substr(half));
    GC_ASSERT(one.size() < 1000 && libraries.size() < 4000 && one.find('\n') == one.npos && libraries.find('\n') == libraries.npos);
    GC_ASSERT(inventory_difference({"a", text}, {"b", text}).empty() || inventory_parse(text).size() > 1);   // a name may come twice
    fuzz_reaches(1, !one.empty() && !libraries.empty());
}

void sources(std::string_view text) {
    static const std::string folder = std::filesystem::temp_directory_path() / fmt::format("gradcast-fuzz-{}.sources", ::getpid());
    GC_ASSERT(make_directories(folder).ok() && file_write(folder + "/" + sources_file, text).ok());
    Sources read;
    const Status status = sources_read(folder, &read);
    GC_ASSERT(status.ok() || (std::strstr(status.what, sources_file) && !std::strchr(status.what, '\n')));
    for (const Sources::File& file : read.files)
        GC_ASSERT(("/" + file.path + "/").find("/../") == std::string::npos && file.path[0] != '/');
    fuzz_reaches(2, !read.files.empty());
    const std::vector<std::string> command = {"python3", "train.py"};
    GC_ASSERT(sources_command(read, command, "/at").size() == command.size());
    std::filesystem::remove_all(folder);
}

}   // namespace
}   // namespace gradcast

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size == 0) return 0;
    const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
    switch (data[0] % 3) {
        case 0: gradcast::hello(text); break;
        case 1: gradcast::inventory(text); break;
        case 2: gradcast::sources(text); break;
    }
    return 0;
}
