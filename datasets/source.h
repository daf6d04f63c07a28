// The published files of a data set: plain, gz or xz, single or in a tar archive.  The checksums of gz and xz are verified.
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

/// A file that is read once, from beginning to end.  The format follows from the first bytes, not from the name.
class Source {
public:
    Source() = default;
    Source(Source&&) = delete;
    ~Source();
    Status open(const std::string& path);
    /// Uses the bytes of an archive's member.
    void hold(std::string path, std::vector<uint8_t> bytes) {
        path_ = std::move(path);
        memory_ = std::move(bytes);
    }
    const std::string& path() const { return path_; }
    bool get(uint8_t* to, size_t bytes) { return read(to, bytes) == bytes; }
    /// At most so many bytes; fewer: there are no more, or an error, which end() tells apart.
    size_t read(uint8_t* to, size_t bytes);
    /// The error after get() returned false: the stream's own, or that the file ends within `within`.
    Status ended(std::string_view within) const;
    /// Checks that no byte follows and that the checksum of a compressed stream is right.
    Status end(std::string_view after);

private:
    size_t read_xz(uint8_t* to, size_t bytes);
    struct GzClose {
        void operator()(gzFile file) const { gzclose_r(file); }
    };
    std::string path_;
    std::vector<uint8_t> memory_;
    size_t at_ = 0;                           // in memory_
    std::unique_ptr<gzFile_s, GzClose> gz_;   // also reads plain files
    Fd xz_;
    lzma_stream lzma_ = LZMA_STREAM_INIT;
    lzma_ret lzma_state_ = LZMA_OK;
    std::vector<uint8_t> input_;   // of lzma_
    int sys_ = 0;                  // errno of a read
};

bool is_folder(const std::string& path);
/// FOLDER/NAME, or that with .gz or .xz behind it, the first one that is a regular file; empty: there is none.
std::string source_in(const std::string& folder, std::string_view name);

/// A folder of such files, or a tar archive (plain, gz or xz) that holds them in any folder.
class SourceFolder {
public:
    /// `archive`: the tar file to use if names[0] is not in the folder; null: none.
    Status open(const std::string& from, const char* archive, const std::vector<std::string>& names);
    /// Opens `name`, name.gz or name.xz.  `hint` ends the message if none exists.  A member of an archive can be opened once.
    Status find(const std::string& name, std::string_view hint, Source* source);

private:
    std::string from_, archive_;
    std::map<std::string, std::vector<uint8_t>> members_;
};

}   // namespace gradcast
