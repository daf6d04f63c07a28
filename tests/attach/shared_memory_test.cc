// What a process cannot do to the memory that it shares with the daemon.
#include "runtime/attach/shared_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace gradcast {
namespace {

constexpr uint64_t bytes = 3 << 12;

/// Another descriptor of the same memory with rights of its own, as a process can make one by /proc.
Fd again(const SharedMemory& memory) { return Fd(::open(fmt::format("/proc/self/fd/{}", memory.fd()).c_str(), O_RDWR | O_CLOEXEC)); }

TEST(SharedMemory, KeepsItsSize) {
    for (const auto others : {SharedMemory::Others::read, SharedMemory::Others::write}) {
        SharedMemory memory;
        const Status status = memory.open("test", bytes, others);
        ASSERT_TRUE(status.ok()) << status.what;
        const Fd other = again(memory);
        for (const int fd : {memory.fd(), other.get()}) {
            for (const off_t size : {0, 4096, 1 << 20}) {
                EXPECT_EQ(::ftruncate(fd, size), -1);
                EXPECT_EQ(errno, EPERM);
            }
            EXPECT_EQ(::fallocate(fd, 0, 0, 1 << 20), -1);
            EXPECT_EQ(::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);   // which would take the daemon's own mapping away
        }
        std::fill_n(memory.all().as<std::byte>(), bytes, std::byte{7});   // all of it is there
    }
}

TEST(SharedMemory, ParametersAreReadAlone) {
    SharedMemory memory;
    ASSERT_TRUE(memory.open("test", bytes, SharedMemory::Others::read).ok());
    const Fd other = again(memory);
    for (const int fd : {memory.fd(), other.get()}) {
        EXPECT_EQ(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
        EXPECT_EQ(::pwrite(fd, "x", 1, 0), -1);
        EXPECT_EQ(::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
        void* mapped = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
        ASSERT_NE(mapped, MAP_FAILED);
        EXPECT_EQ(::mprotect(mapped, bytes, PROT_READ | PROT_WRITE), -1);
        // The daemon writes, and the process sees it.
        *memory.all().as<char>() = 'y';
        EXPECT_EQ(*static_cast<const char*>(mapped), 'y');
        ::munmap(mapped, bytes);
    }
}

}   // namespace
}   // namespace gradcast
