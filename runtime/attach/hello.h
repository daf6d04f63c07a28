// What a process says of itself: the JSON of HELLO (README.md).
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nn/graph/net_spec.h"
#include "runtime/core/status.h"

namespace gradcast {

struct ProcessHello {
    std::vector<LayerSpec> layers;                                // tensors, running statistics, constants, aliases, and `process`
    std::string data_digest;                                      // of the samples that the program has; empty: it says none
    std::vector<std::pair<std::string, std::string>> modules;     // path, SHA-256 in hex
    std::vector<std::pair<std::string, std::string>> libraries;   // name, version
};
/// Of a text from outside.  Error: Code::invalid; what is wrong with it, without the process's name.
Status hello_parse(std::string_view text, ProcessHello* hello);
/// SHA-256, in hex, of layers and modules: equal on two nodes means the same net from the same sources.
std::string hello_digest(const ProcessHello& hello);
/// The same and the libraries, item by item (runtime/core/inventory.h).
std::string hello_inventory(const ProcessHello& hello);

}   // namespace gradcast
