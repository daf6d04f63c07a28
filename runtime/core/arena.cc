#include "runtime/core/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "runtime/core/fd.h"

namespace gradcast {

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
    bytes_ = (bytes_ + 4095) / 4096 * 4096 + (bytes_ == 0 ? 4096 : 0);
    void* memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return fail(Code::node_memory, "cannot take memory for the job, a smaller batch needs less: {}", budget());
    ::madvise(memory, bytes_, MADV_HUGEPAGE);   // a hint; small pages do as well
    base_ = static_cast<std::byte*>(memory);
    for (Item& item : items_) *item.buffer = {base_ + item.offset, nullptr, item.bytes, 0};
    return {};
}

std::string Arena::budget() const {
    std::vector<std::pair<const char*, uint64_t>> sums;
    for (const Item& item : items_) {
        auto same = sums.begin();
        while (same != sums.end() && std::string_view(same->first) != item.purpose) ++same;
        if (same == sums.end()) sums.emplace_back(item.purpose, item.bytes);
        else same->second += item.bytes;
    }
    std::string text;
    for (auto [purpose, bytes] : sums) text += fmt::format("{} {:.1f} MiB, ", purpose, static_cast<double>(bytes) / 0x1p20);
    return text + fmt::format("{:.1f} MiB in all", static_cast<double>(bytes_) / 0x1p20);
}

uint64_t machine_memory() { return static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)); }

uint64_t third_level_cache() {
    std::string kilobytes;   // "32768K"
    if (!file_read("/sys/devices/system/cpu/cpu0/cache/index3/size", &kilobytes).ok()) return 0;
    return std::strtoull(kilobytes.c_str(), nullptr, 10) * 1024;
}

}   // namespace gradcast
