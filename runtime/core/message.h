// Numbers and texts one after the other as bytes of a message, and read back.
#pragma once
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/identity.h"
#include "runtime/core/types.h"

namespace gradcast {

constexpr size_t reason_max = 2000;   // letters of a reason from another node

struct MessageWriter {
    std::vector<std::byte> bytes;
    void raw(const void* data, size_t size) {
        bytes.insert(bytes.end(), static_cast<const std::byte*>(data), static_cast<const std::byte*>(data) + size);
    }
    void number(uint64_t value) { raw(&value, sizeof value); }
    void text(std::string_view value) { number(value.size()), raw(value.data(), value.size()); }
    void id(const JobId& value) { raw(value.data(), value.size()); }
    void member(const Member& value) { text(value.name), raw(value.uuid.data(), value.uuid.size()), number(value.incarnation); }
};

/// Everything reads as zero or empty once `good` is false.
struct MessageReader {
    std::span<const std::byte> bytes;
    bool good = true;
    void raw(void* data, size_t size) {
        if (size > bytes.size()) {
            good = false;
            bytes = {};
        }
        if (good) std::memcpy(data, bytes.data(), size), bytes = bytes.subspan(size);
    }
    uint64_t number() {
        uint64_t value = 0;
        raw(&value, sizeof value);
        return value;
    }
    std::string text(size_t bytes_max) {
        uint64_t size = number();
        if (size > bytes_max || size > bytes.size()) {
            good = false;
            bytes = {};
            size = 0;
        }
        std::string value(size, '\0');
        raw(value.data(), size);
        return value;
    }
    JobId id() {
        JobId value{};
        raw(value.data(), value.size());
        return value;
    }
    Member member() {
        Member value;
        value.name = text(64);
        raw(value.uuid.data(), value.uuid.size());
        value.incarnation = number();
        return value;
    }
    bool whole() const { return good && bytes.empty(); }
};

}   // namespace gradcast
