// What people are told of the presets (nn/net.h finds and names them).
#pragma once
#include <string>

namespace gradcast {

/// A line each: its samples, its parameters for one kind of them, what it is for.
std::string presets_help();

}   // namespace gradcast
