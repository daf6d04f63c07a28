// A shard whose attributes and data sets are as they should be, but for what an input says.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "datasets/hdf5.h"
#include "runtime/core/fd.h"
#include "runtime/core/status.h"

namespace gradcast {

/// The input, read from the front; zeros when it is used up.
struct Input {
    const uint8_t* at;
    size_t remaining;
    uint8_t byte() { return remaining == 0 ? 0 : (--remaining, *at++); }
    void fill(void* to, size_t bytes) {
        auto* out = static_cast<uint8_t*>(to);
        for (size_t i = 0; i < bytes; ++i) out[i] = byte();
    }
    template <typename T>
    T any() {
        T value;
        fill(&value, sizeof value);
        return value;
    }
};

/// An attribute as it should be, but for what one byte of the input says.
inline void attribute(Input& input, hid_t object, const char* name, hid_t type, std::vector<hsize_t> dims, std::vector<uint8_t> value) {
    uint8_t how = input.byte();
    if (how == 1) return;   // missing
    Hid other;
    if (how == 2) {   // a string, of any length
        other = Hid(H5Tcopy(H5T_C_S1));
        H5Tset_size(other.get(), 1 + input.any<uint16_t>() % 5000);
    }
    if (how == 3) other = Hid(H5Tcopy(input.byte() % 2 ? H5T_NATIVE_DOUBLE : H5T_NATIVE_INT64));
    if (how == 4) other = Hid(H5Tenum_create(H5T_NATIVE_UINT8));
    if (how == 5) {   // a string of variable length
        other = Hid(H5Tcopy(H5T_C_S1));
        H5Tset_size(other.get(), H5T_VARIABLE);
    }
    if (other) type = other.get();
    if (how == 6) dims = {static_cast<hsize_t>(1 + input.byte())};
    if (how == 7) dims = {static_cast<hsize_t>(1 + input.byte() % 4), static_cast<hsize_t>(1 + input.byte() % 4)};
    Hid space(how == 8       ? H5Screate(H5S_NULL)
              : dims.empty() ? H5Screate(H5S_SCALAR)
                             : H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr));
    Hid attribute(H5Acreate2(object, name, type, space.get(), H5P_DEFAULT, H5P_DEFAULT));
    if (!attribute || how == 5 || how == 8) return;   // never written: HDF5 gives zeros
    uint64_t bytes = H5Tget_size(type) * static_cast<uint64_t>(H5Sget_simple_extent_npoints(space.get()));
    value.resize(bytes);
    if (how == 9) input.fill(value.data(), std::min<uint64_t>(bytes, 64));
    H5Awrite(attribute.get(), type, value.data());
}

template <typename T>
std::vector<uint8_t> bytes_of(const T& value) {
    std::vector<uint8_t> bytes(sizeof value);
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
}
inline std::vector<uint8_t> text_of(std::string_view text) { return {text.begin(), text.end()}; }

/// type: of its elements, where the input does not say another one.  with: its first bytes, where the input does not give others.
inline void data_set(Input& input, hid_t file, const char* name, std::vector<hsize_t> dims, hsize_t digests, hid_t usual = H5T_NATIVE_UINT8,
                     const std::vector<uint8_t>& with = {}, const std::string& sha = "") {
    uint8_t how = input.byte();
    if (how == 1) return;
    Hid type(H5Tcopy(how == 2 ? H5T_NATIVE_UINT16 : how == 3 ? H5T_STD_U16BE : how == 4 ? H5T_NATIVE_FLOAT : usual));
    if (how == 5) dims = {input.any<uint32_t>(), input.any<uint16_t>()};
    if (how == 6)
        for (hsize_t& dim : dims) dim = input.byte();
    if (how == 7)
        for (hsize_t& dim : dims) dim = input.any<uint64_t>();
    Hid creation(H5Pcreate(H5P_DATASET_CREATE));
    if (how == 8) H5Pset_layout(creation.get(), H5D_COMPACT);
    if (how == 9) {
        std::vector<hsize_t> chunk(dims.size(), 1);
        H5Pset_chunk(creation.get(), static_cast<int>(chunk.size()), chunk.data());
    }
    if (how == 11 || how == 12) {   // whole samples, deflated
        std::vector<hsize_t> chunk = dims;
        chunk[0] = std::min<hsize_t>(1 + input.byte() % 4, dims[0]);
        H5Pset_chunk(creation.get(), static_cast<int>(chunk.size()), chunk.data());
        H5Pset_deflate(creation.get(), 1 + input.byte() % 9);
    }
    Hid space(H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr));
    Hid data_set(H5Dcreate2(file, name, type.get(), space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT));
    if (!data_set) return;
    // Large ones stay unwritten: contiguous data without an address.
    uint64_t elements = 1;
    for (hsize_t dim : dims)
        if (__builtin_mul_overflow(elements, dim, &elements)) elements = UINT64_MAX;
    if (how != 10 && elements <= 1 << 16) {
        std::vector<uint8_t> values(elements * 8);
        if (with.empty() || how == 13) input.fill(values.data(), std::min<size_t>(elements * 4, 32));
        else std::copy_n(with.begin(), std::min(with.size(), values.size()), values.begin());
        H5Dwrite(data_set.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
    }
    if (how == 12) {   // one of the chunks holds anything
        std::vector<hsize_t> first(dims.size());
        std::vector<uint8_t> stored(1 + input.byte());
        input.fill(stored.data(), stored.size());
        H5Dwrite_chunk(data_set.get(), H5P_DEFAULT, input.byte() & 1, first.data(), stored.size(), stored.data());
    }
    Hid digits(H5Tcopy(H5T_C_S1));
    H5Tset_size(digits.get(), 64);
    H5Tset_strpad(digits.get(), H5T_STR_NULLPAD);
    attribute(input, data_set.get(), "sha256", digits.get(), {digests},
              sha.empty() ? std::vector<uint8_t>(64 * digests, 'a') : text_of(sha));
}

/// The bytes of a file in memory, without `cut` times 16 at its end.
inline std::vector<uint8_t> file_image(hid_t file, uint8_t cut) {
    H5Fflush(file, H5F_SCOPE_LOCAL);
    std::vector<uint8_t> image;
    if (ssize_t size = H5Fget_file_image(file, nullptr, 0); size > 0) {
        image.resize(static_cast<size_t>(size));
        H5Fget_file_image(file, image.data(), image.size());
    }
    image.resize(image.size() - std::min<size_t>(image.size(), cut * 16u));
    return image;
}
inline void file_put(const std::string& path, const std::vector<uint8_t>& image) {
    Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    GC_ASSERT(fd && ::write(fd.get(), image.data(), image.size()) == static_cast<ssize_t>(image.size()));
}

}   // namespace gradcast
