// An import that is killed, for tests of what the next one makes of what it left.
#pragma once
#include <signal.h>
#include <sys/wait.h>

#include <thread>

#include "tests/datasets/images.h"

namespace gradcast {

/// Imports in another process, which kills itself when it has taken `taken`.  It waits once for longer than a second before, when it has
/// taken `recorded`, so that its record says so.
inline void kill_import(ImportConfig config, uint64_t taken, uint64_t recorded) {
    const pid_t pid = ::fork();
    if (pid == 0) {
        config.progress = [&](const ImportProgress& progress) {
            if (progress.headers) return;
            if (progress.done >= taken) ::kill(::getpid(), SIGKILL);
            std::this_thread::sleep_for(std::chrono::milliseconds(progress.done == recorded ? 1100 : 110));
        };
        ImportResult result;
        (void)data_import(config, &result).ok();
        ::_exit(0);
    }
    int how = 0;
    ASSERT_EQ(::waitpid(pid, &how, 0), pid);
    ASSERT_TRUE(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
    ASSERT_TRUE(std::filesystem::exists(config.out + "/import.part") && std::filesystem::exists(config.out + "/train.samples.part"));
    ASSERT_FALSE(std::filesystem::exists(config.out + "/train.h5"));
}

}   // namespace gradcast
