#include "runtime/core/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "runtime/core/fd.h"
#include "runtime/core/memory_room.h"

namespace gradcast {
namespace {

#ifndef MADV_POPULATE_WRITE
constexpr int MADV_POPULATE_WRITE = 23;
#endif
constexpr uint64_t page = 4096, huge_page = 2 << 20;
constexpr uint64_t checked_from = 1 << 20;   // smaller arenas are not checked
constexpr uint64_t spare_max = 64 << 20;     // kept free for stacks, queues, libraries
constexpr uint64_t piece_max = 64 << 20;   // a few 10 ms: other threads wait as long for mmap, and a process with a CPU quota for the next

}   // namespace

Arena::~Arena() {
    if (base_) ::munmap(base_, bytes_);
}

void Arena::plan(const char* purpose, uint64_t bytes, Buffer* buffer) {
    GC_ASSERT(!base_);
    uint64_t alignment = bytes >= 65536 ? 4096 : 64;
    uint64_t offset = (bytes_ + alignment - 1) / alignment * alignment;
    items_.push_back({purpose, offset, bytes, buffer});
    bytes_ = offset + bytes;
}

Status Arena::seal() {
    GC_ASSERT(!base_);
    bytes_ = (bytes_ + page - 1) / page * page + (bytes_ == 0 ? page : 0);
    const MemoryRoom room = checked_from <= bytes_ ? memory_room() : MemoryRoom{};
    const uint64_t spare = std::min(spare_max, room.bytes / 16);
    if (bytes_ + spare > room.bytes) return too_little(room);
    void* memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return fail(Code::node_memory, "the job needs {}; this process may not map as much (ulimit -v, vm.overcommit_memory)", budget());
    base_ = static_cast<std::byte*>(memory);
    ::madvise(base_, bytes_, MADV_HUGEPAGE);   // a hint: errors are ignored
    if (Status status = touch(spare); !status.ok()) {
        ::munmap(std::exchange(base_, nullptr), bytes_);
        return status;
    }
    for (Item& item : items_) *item.buffer = {base_ + item.offset, nullptr, item.bytes};
    return {};
}

/// In pieces of at most 1/16 of the memory that is free, so that 16 processes at the same time do not take more than there is.
Status Arena::touch(uint64_t spare) {
    for (uint64_t done = 0; done < bytes_;) {
        const MemoryRoom room = checked_from <= bytes_ ? memory_room() : MemoryRoom{};
        if (bytes_ - done + spare > room.bytes) return too_little({room.bytes + done, room.where});
        const uint64_t piece = std::min(bytes_ - done, std::clamp(room.bytes / 16 / huge_page * huge_page, huge_page, piece_max));
        if (::madvise(base_ + done, piece, MADV_POPULATE_WRITE) != 0) {
            if (errno != EINVAL)
                return fail(Code::node_memory, "the job needs {}; the kernel gave {:.1f} MiB of it", budget(),
                            static_cast<double>(done) / 0x1p20);
            for (uint64_t at = done; at < done + piece; at += page)
                *static_cast<volatile std::byte*>(base_ + at) = std::byte{0};   // Linux before 5.14
        }
        done += piece;
    }
    return {};
}

Status Arena::too_little(const MemoryRoom& room) const {
    return fail(Code::node_memory, "the job needs {}; {:.1f} MiB are available ({}): a smaller batch or net needs less", budget(),
                static_cast<double>(room.bytes) / 0x1p20, room.where);
}

MemoryUse Arena::use(const std::string& place) const {
    MemoryUse use{place, {}};
    for (const Item& item : items_) use.add(item.purpose, item.bytes);
    return use;
}

uint64_t machine_memory() { return static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)); }

uint64_t third_level_cache() {
    std::string kilobytes;   // "32768K"
    if (!file_read("/sys/devices/system/cpu/cpu0/cache/index3/size", &kilobytes).ok()) return 0;
    return std::strtoull(kilobytes.c_str(), nullptr, 10) * 1024;
}

}   // namespace gradcast
