// A folder for hundreds of jobs, whose files are synced: in memory if possible.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace gradcast {

/// Named after the process; removed when it goes out of scope.
struct SyncedFolder {
    std::string path;
    template <typename Fill>
    SyncedFolder(const char* name, Fill fill)
        : path((::access("/dev/shm", W_OK) == 0 ? "/dev/shm/" : ::testing::TempDir()) + "gradcast-" + name + "-" +
               std::to_string(::getpid())) {
        std::filesystem::create_directories(path);
        fill(path);
    }
    ~SyncedFolder() { std::filesystem::remove_all(path); }
    SyncedFolder(const SyncedFolder&) = delete;
};

}   // namespace gradcast
