// The files that a data set is published in: plain, gz or xz, alone or in a tar archive.  Checksums of the compressed kinds are compared.
#pragma once
#include <lzma.h>
#include <zlib.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/fd.h"
#include "runtime/core/status.h"

namespace gradcast {

/// A file read from its beginning to its end.  What is inside is told by its first bytes, not by its name.
class Source {
public:
    Source() = default;
    Source(Source&&) = delete;
    ~Source();
    Status open(const std::string& path);
    /// A member of an archive.
    void hold(std::string path, std::vector<uint8_t> bytes) { path_ = std::move(path), memory_ = std::move(bytes); }
    const std::string& path() const { return path_; }
    bool get(uint8_t* to, size_t bytes) { return read(to, bytes) == bytes; }
    /// The reason why get() brought less: the stream's own, or that it just ends.
    Status ended(std::string_view within) const;
    /// Nothing may follow.  At the end of a compressed stream its checksum has been compared.
    Status end(std::string_view after);

private:
    size_t read(uint8_t* to, size_t bytes);
    size_t read_xz(uint8_t* to, size_t bytes);
    struct GzClose {
        void operator()(gzFile file) const { gzclose_r(file); }
    };
    std::string path_;
    std::vector<uint8_t> memory_;
    size_t at_ = 0;                           // in memory_
    std::unique_ptr<gzFile_s, GzClose> gz_;   // plain ones too
    Fd xz_;
    lzma_stream lzma_ = LZMA_STREAM_INIT;
    lzma_ret lzma_state_ = LZMA_OK;
    std::vector<uint8_t> input_;   // of lzma_
    int sys_ = 0;                  // errno of a read
};

/// A folder of such files, or a tar archive (itself plain, gz or xz) that has them in any of its folders.
class SourceFolder {
public:
    /// `archive`: the name of a tar that is taken from the folder where names[0] is not in it; null: none.
    Status open(const std::string& from, const char* archive, const std::vector<std::string>& names);
    /// `name`, or with .gz or .xz after it.  `hint` ends the message if there is none.  An archive's member can be opened once.
    Status find(const std::string& name, std::string_view hint, Source* source);

private:
    std::string from_, archive_;
    std::map<std::string, std::vector<uint8_t>> members_;
};

}   // namespace gradcast
