// Copies of the sources that a program of net.command has loaded, in the job's folder.  `verify` starts them, and so does a job that goes
// on from a checkpoint without a job file of its own.
//
//     sources.json   the files with their SHA-256, which word of the command is which of them, and the versions of the libraries
//     sources/       the files, below their deepest common folder as they were
//
// A folder may come from anywhere: nothing in it is trusted, and no copy is started that sources.json does not have with this SHA-256.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/status.h"

namespace gradcast {

constexpr char sources_file[] = "sources.json", sources_folder[] = "sources";
constexpr size_t sources_max = 4096;                         // files
constexpr uint64_t sources_bytes_max = uint64_t{64} << 20;   // of all of them

struct Sources {
    struct File {
        std::string path;     // below `root`, and below sources/
        std::string sha256;   // in hex
        bool executable = false;
    };
    std::string root;                                             // the folder that they were copied from
    std::vector<File> files;                                      // by path; empty: there are none
    std::vector<std::string> words;                               // by word of net.command: the path of the source that it names, or ""
    std::vector<std::pair<std::string, std::string>> libraries;   // name, version
};

/// Copies what a program has loaded, in place of what the folder has.
/// base: the program's working directory.  command: its words.  modules: path, absolute or against `base`, and SHA-256 of each file; none:
/// the folder then has no copies.
/// Errors name the file: one cannot be read or has another SHA-256; more than sources_bytes_max.  The folder is then as it was.
/// Blocks on the disk.  Memory: the largest file.
Status sources_keep(const std::string& folder, const std::string& base, const std::vector<std::string>& command,
                    const std::vector<std::pair<std::string, std::string>>& modules,
                    const std::vector<std::pair<std::string, std::string>>& libraries);
/// What sources.json of a folder says; no files where it is missing.  Error: it is damaged, or a path leads out of sources/.
Status sources_read(const std::string& folder, Sources* sources);
/// Compares every copy with its SHA-256, and writes it below `to` where that is not empty.  Error: names the copy that is missing or
/// altered.
Status sources_check(const std::string& folder, const Sources& sources, const std::string& to = {});
/// The words of net.command that start the copies, which are below `at`.
std::vector<std::string> sources_command(const Sources& sources, const std::vector<std::string>& command, const std::string& at);
/// The first file that a program has loaded, or has not, otherwise than these: "train.py is not that of sources.json".  Empty: there is
/// none.
std::string sources_difference(const Sources& sources, const std::vector<std::pair<std::string, std::string>>& modules);
/// The first source whose file below `root` is missing or has changed; empty: there is none.
std::string sources_changed(const Sources& sources);

}   // namespace gradcast
