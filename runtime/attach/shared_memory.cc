#include "runtime/attach/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

#include "runtime/core/memory_room.h"

namespace gradcast {

SharedMemory::~SharedMemory() {
    if (base_) ::munmap(base_, bytes_);
}

Status SharedMemory::open(const char* name, uint64_t bytes, Others others) {
    GC_TRY(memory_room_for(bytes, "memory that a process of net.command shares"));
    fd_ = Fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd_) return fail_sys(errno, "cannot make shared memory");
    if (::ftruncate(fd_.get(), static_cast<off_t>(bytes)) != 0) return fail_sys(errno, "cannot make {} bytes of shared memory", bytes);
    // All of it is taken now: a later access must not fault.
    void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_.get(), 0);
    if (mapped == MAP_FAILED) return fail_sys(errno, "cannot map {} bytes of shared memory", bytes);
    base_ = static_cast<std::byte*>(mapped);
    bytes_ = bytes;
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | (others == Others::read ? F_SEAL_FUTURE_WRITE : 0);
    if (::fcntl(fd_.get(), F_ADD_SEALS, seals) != 0 || ::fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_SEAL) != 0)
        return fail_sys(errno, "cannot seal shared memory");
    return {};
}

}   // namespace gradcast
