// The constants of a net that a process computes (nn/graph/process.h) in a file of the job's folder, from which exports take them.
//
//     constants.safetensors    a safetensors file: the constants in the order of the net; of a tensor with several names the first one
//
// The net in a model's file says which constants there are, with their SHA-256, so the file is checked whenever it is read.
#pragma once
#include <functional>
#include <optional>
#include <span>

#include "nn/graph/process.h"
#include "runtime/core/digest.h"
#include "runtime/core/fd.h"

namespace gradcast {

constexpr char constants_file[] = "constants.safetensors";

std::vector<Constant> constants_of(const NetSpec& net);

/// Writes such a file as the bytes come.  One thread at a time.  After an error only the destructor may be called.
class ConstantsWriter {
public:
    ConstantsWriter() = default;
    ConstantsWriter(const ConstantsWriter&) = delete;
    ConstantsWriter& operator=(const ConstantsWriter&) = delete;
    ~ConstantsWriter();   // without keep() nothing is left

    /// Makes the file with all its room on the disk.  Error: names the folder and the size.
    Status open(const std::string& folder, const NetSpec& net);
    /// The next bytes of all constants, one after the other.  Error: a constant has other bytes than its SHA-256 says, by name; more bytes
    /// than there are; the disk.
    Status add(std::span<const std::byte> bytes);
    /// All bytes have come.  The file gets its name, and is on the disk at return.
    Status keep();

private:
    Status next();
    std::string path_;
    Fd fd_;
    std::vector<Constant> constants_;
    size_t at_ = 0;        // the constant whose bytes come
    uint64_t has_ = 0;     // of its bytes
    uint64_t place_ = 0;   // in the file
    std::optional<Sha256> sha_;
};

/// Reads such a file, which must have the constants of that net and nothing else.  Memory: 1 MiB.
class ConstantsReader {
public:
    /// Error: there is no such file, or it is that of another net.
    Status open(const std::string& folder, const NetSpec& net);
    /// The bytes of the constant of this number, in pieces.  Error: they are not those of its SHA-256; what `take` says.
    Status read(size_t number, const std::function<Status(std::span<const std::byte>)>& take);

private:
    std::string path_;
    Fd fd_;
    std::vector<Constant> constants_;
    std::vector<uint64_t> places_;   // in the file
};

}   // namespace gradcast
