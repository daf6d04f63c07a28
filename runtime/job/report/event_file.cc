#include "runtime/job/report/event_file.h"

#include <fmt/format.h>
#include <isa-l/crc.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "runtime/core/le.h"

namespace gradcast {
namespace {

constexpr uint64_t number_max = 9'999'999'999'999;   // of 13 digits; a name of more is not ours

/// CRC-32C, rotated and shifted, as a checksum of checksums would be weak.
uint32_t masked_crc(std::string_view data) {
    // isa-l does not change what it is given.
    auto* bytes = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(data.data()));
    const uint32_t crc = ~::crc32_iscsi(bytes, static_cast<int>(data.size()), ~0u);
    return ((crc >> 15) | (crc << 17)) + 0xa282ead8;
}

/// A message of protobuf in a buffer of fixed size.
class Message {
public:
    void varint(uint64_t value) {
        for (; value >= 0x80; value >>= 7) byte(static_cast<uint8_t>(value | 0x80));
        byte(static_cast<uint8_t>(value));
    }
    void number(uint32_t field, uint64_t value) { varint(field << 3 | 0), varint(value); }
    void real64(uint32_t field, double value) { varint(field << 3 | 1), raw(&value, sizeof value); }
    void real32(uint32_t field, float value) { varint(field << 3 | 5), raw(&value, sizeof value); }
    void bytes(uint32_t field, std::string_view value) { varint(field << 3 | 2), varint(value.size()), raw(value.data(), value.size()); }
    std::string_view view() const { return {data_.data(), size_}; }
    void raw(const void* data, size_t bytes) {
        GC_ASSERT(size_ + bytes <= data_.size());
        std::memcpy(data_.data() + size_, data, bytes);
        size_ += bytes;
    }

private:
    void byte(uint8_t value) { raw(&value, 1); }
    std::array<char, 1024> data_;
    size_t size_ = 0;
};

std::string_view text_of(const auto& value) { return {reinterpret_cast<const char*>(&value), sizeof value}; }

void add_record(StepLog& log, const Message& event) {
    Message record;
    Le64 length;
    Le32 crc;
    length.set(event.view().size());
    crc.set(masked_crc(text_of(length)));
    record.raw(&length, sizeof length), record.raw(&crc, sizeof crc);
    crc.set(masked_crc(event.view()));
    record.raw(event.view().data(), event.view().size()), record.raw(&crc, sizeof crc);
    log.add(record.view());
}

}   // namespace

Status EventFile::open(const std::string& folder, const std::string& node, double wall_seconds, bool threaded, const Log& log) {
    // TensorBoard reads them in the order of their names, and a clock may have been set back.
    auto number = static_cast<uint64_t>(wall_seconds * 1e3);
    std::error_code error;
    for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
        const std::string each = at->path().filename().string();
        if (uint64_t its = 0; each.starts_with(event_file_prefix)) {
            const char* digits = each.data() + std::strlen(event_file_prefix);
            if (std::from_chars(digits, each.data() + each.size(), its).ec == std::errc() && its < number_max)
                number = std::max(number, its + 1);
        }
    }
    std::string name = fmt::format("{}{:013}.{}", event_file_prefix, number, node);
    std::replace(name.begin(), name.end(), '/', '_');
    GC_TRY(log_.open(folder + "/" + name, threaded, false, log));
    open_ = true;
    Message event;
    event.real64(1, wall_seconds);
    event.bytes(3, "brain.Event:2");
    add_record(log_, event);
    return {};
}

void EventFile::resume(double wall_seconds, uint64_t steps) {
    constexpr uint64_t start = 1;   // SessionLog.START
    Message session, event;
    session.number(1, start);
    event.real64(1, wall_seconds);
    event.number(2, steps + 1);
    event.bytes(7, session.view());
    add_record(log_, event);
}

void EventFile::scalars(double wall_seconds, uint64_t step, std::span<const Scalar> scalars) {
    Message summary, event;
    for (const Scalar& each : scalars) {
        if (!std::isfinite(each.value)) continue;
        Message value;
        value.bytes(1, each.tag);
        value.real32(2, static_cast<float>(each.value));
        summary.bytes(1, value.view());
    }
    event.real64(1, wall_seconds);
    event.number(2, step);
    event.bytes(5, summary.view());
    add_record(log_, event);
}

}   // namespace gradcast
