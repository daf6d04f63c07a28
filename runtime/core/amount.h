// Amounts as people write them in files and on command lines.
#pragma once
#include <cstdint>
#include <string>

#include "runtime/core/status.h"

namespace gradcast {

/// "8GiB", "512MiB", "20GB", "0.5TB": from 1 to 2^60 bytes.  Error: names the text.
Status bytes_parse(const std::string& text, uint64_t* bytes);
/// "50us", "1.5ms", "2s", to microseconds.  Error: names the text.
Status microseconds_parse(const std::string& text, double* us);

}   // namespace gradcast
