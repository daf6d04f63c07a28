// Arrays that numpy.save has written: images.npy and labels.npy, and test-images.npy and test-labels.npy if there are any.
#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cmath>
#include <cstring>

#include "datasets/import.h"
#include "datasets/source.h"
#include "runtime/core/memory_room.h"

namespace gradcast {
namespace {

constexpr uint64_t elements_max = uint64_t{1} << 48;   // far below an overflow of products

/// An array that is open behind its header: "\x93NUMPY", version, the header's length, a dict of Python as text.
struct Npy {
    Source source;
    std::string type;   // "|u1", "<i8", …
    std::vector<uint64_t> dims;
    std::string shown() const { return fmt::format("{} [{}]", type, fmt::join(dims, ", ")); }
};

/// The text of `key` in the header up to `end`; false if it is not there.
bool field(std::string_view header, std::string_view key, char end, std::string_view* text) {
    const size_t at = header.find(key);
    if (at == header.npos) return false;
    const size_t from = at + key.size(), to = header.find(end, from);
    if (to == header.npos) return false;
    *text = header.substr(from, to - from);
    return true;
}

Status npy_open(const std::string& path, Npy* npy) {
    Source& source = npy->source;
    GC_TRY(source.open(path));
    uint8_t head[12];
    if (!source.get(head, 10)) return source.ended("its header");
    if (std::memcmp(head, "\x93NUMPY", 6) != 0) return fail(Code::data, "{}: not a NumPy file: write it with numpy.save", path);
    uint64_t bytes = head[8] | uint64_t{head[9]} << 8;
    if (head[6] >= 2) {
        if (!source.get(head + 10, 2)) return source.ended("its header");
        bytes |= uint64_t{head[10]} << 16 | uint64_t{head[11]} << 24;
    }
    constexpr uint64_t header_max = 1 << 16;
    if (bytes > header_max) return fail(Code::data, "{}: not a NumPy file: its header has {} bytes", path, bytes);
    std::string header(bytes, '\0');
    if (!source.get(reinterpret_cast<uint8_t*>(header.data()), bytes)) return source.ended("its header");
    std::string_view type, order, shape;
    if (!field(header, "'descr': '", '\'', &type) || !field(header, "'fortran_order': ", ',', &order) ||
        !field(header, "'shape': (", ')', &shape))
        return fail(Code::data, "{}: not an array of numbers", path);
    if (order != "False") return fail(Code::data, "{}: in Fortran order: save numpy.ascontiguousarray(x)", path);
    npy->type = type;
    uint64_t elements = 1;
    for (size_t at = 0; (at = shape.find_first_of("0123456789", at)) != shape.npos;) {
        uint64_t dim = 0;
        const auto end = std::from_chars(shape.data() + at, shape.data() + shape.size(), dim);
        at = static_cast<size_t>(end.ptr - shape.data());
        if (end.ec != std::errc() || dim == 0 || __builtin_mul_overflow(elements, dim, &elements) || elements > elements_max)
            return fail(Code::data, "{}: of shape ({}), which is empty or too large", path, shape);
        npy->dims.push_back(dim);
    }
    return {};
}

/// Integers of 1, 2, 4 or 8 bytes in either byte order.
Status labels_read(const std::string& path, std::vector<int32_t>* labels) {
    Npy npy;
    GC_TRY(npy_open(path, &npy));
    const bool whole = npy.type.size() == 3 && std::strchr("iu", npy.type[1]) && std::strchr("1248", npy.type[2]);
    if (!whole || npy.dims.size() != 1)
        return fail(Code::data, "{}: {}: labels are integers [N], one a sample: save x.astype(numpy.uint16)", path, npy.shown());
    const auto width = static_cast<size_t>(npy.type[2] - '0');
    for (uint64_t i = 0; i < npy.dims[0]; ++i) {
        uint8_t bytes[8];
        if (!npy.source.get(bytes, width)) return npy.source.ended("its labels");
        uint64_t label = 0;
        for (size_t k = 0; k < width; ++k) label = label << 8 | bytes[npy.type[0] == '>' ? k : width - 1 - k];
        if (npy.type[1] == 'i' && label >> (8 * width - 1) != 0)
            return fail(Code::data, "{}: label {} of sample {}: labels begin with 0", path,
                        static_cast<int64_t>(label << (64 - 8 * width)) >> (64 - 8 * width), i);
        if (label >= shard_side_max) return label_error(path, i, label, shard_side_max);
        labels->push_back(static_cast<int32_t>(label));
    }
    return npy.source.end("its labels");
}

Status pair_read(const ImportConfig& config, const std::string& prefix, Set* train, Set* test, std::vector<std::string>* notes) {
    const std::string path = config.from + "/" + prefix + "images.npy", labels_path = config.from + "/" + prefix + "labels.npy";
    std::vector<int32_t> labels;
    GC_TRY(labels_read(labels_path, &labels));
    Npy npy;
    GC_TRY(npy_open(path, &npy));
    const std::vector<uint64_t>& dims = npy.dims;
    const bool floats = npy.type == "<f4";
    if ((npy.type != "|u1" && !floats) || dims.size() < (floats ? 2 : 3) || dims.size() > 4)
        return fail(Code::data,
                    "{}: {}: images are uint8 [N, H, W], [N, C, H, W] or [N, H, W, C], other values float32 [N, C] or as images{}", path,
                    npy.shown(), npy.type.find('f') != npy.type.npos ? ": save x.astype(numpy.float32)" : "");
    if (dims[0] != labels.size())
        return fail(Code::data, "{} has {} labels for the {} images of {}", labels_path, labels.size(), dims[0], path);
    const auto is_channels = [](uint64_t dim) { return dim == 1 || dim == 3; };
    // Of floats the order is not guessed: any number of channels is common.
    const bool last = !floats && dims.size() == 4 && !is_channels(dims[1]) && is_channels(dims[3]);
    const uint64_t C = dims.size() == 2   ? dims[1]
                       : dims.size() == 3 ? 1
                       : last             ? dims[3]
                                          : dims[1],
                   H = dims.size() == 2 ? 1 : dims[dims.size() == 3 || last ? 1 : 2],
                   W = dims.size() == 2 ? 1 : dims[dims.size() == 3 || last ? 2 : 3], plane = H * W, values = C * plane,
                   bytes = values * (floats ? sizeof(float) : 1);
    if (C > shard_side_max || H > shard_side_max || W > shard_side_max || values > shard_sample_bytes_max || bytes > shard_sample_bytes_max)
        return fail(Code::data, "{}: samples of {} x {} x {} are more than a shard takes, {} MiB each", path, C, H, W,
                    shard_sample_bytes_max >> 20);
    GC_TRY(memory_room_for(2 * bytes, path + ": an image"));
    if (last) notes->push_back(fmt::format("{}: {} is read as [N, H, W, C]", path, npy.shown()));
    const std::vector<bool> chosen = test ? test_choose(config, labels) : std::vector<bool>(labels.size());
    for (Set* set : {train, test})
        if (set) {
            set->C = static_cast<uint32_t>(C);
            set->H = static_cast<uint32_t>(H);
            set->W = static_cast<uint32_t>(W);
            set->element = floats ? Element::f32 : Element::u8;
        }
    std::vector<uint8_t> image(bytes), planes(bytes);
    for (uint64_t i = 0; i < labels.size(); ++i) {
        if (!npy.source.get(image.data(), bytes)) return npy.source.ended(fmt::format("image {} of {}", i, labels.size()));
        for (uint64_t k = 0; floats && k < values; ++k) {
            float value;
            std::memcpy(&value, &image[k * sizeof value], sizeof value);
            if (!std::isfinite(value))
                return fail(Code::data, "{}: sample {}, value {}: {} is not finite: leave the sample out", path, i, k, value);
        }
        if (last)
            for (uint64_t c = 0; c < C; ++c)
                for (uint64_t k = 0; k < plane; ++k) planes[c * plane + k] = image[k * C + c];
        Set* set = chosen[i] ? test : train;
        set->labels.push_back(labels[i]);
        GC_TRY(set->images.append(last ? planes.data() : image.data(), bytes));
    }
    return npy.source.end(fmt::format("its {} images", labels.size()));
}

}   // namespace

Status npy_sets(const ImportConfig& config, uint32_t, Import* import) {
    Set &train = import->train, &test = import->test;
    const bool has_test = (::access((config.from + "/test-images.npy").c_str(), F_OK) == 0) ||
                          (::access((config.from + "/test-labels.npy").c_str(), F_OK) == 0);
    if (config.test > 0 && has_test)
        return fail(Code::invalid, "--test: {}/test-images.npy is there to test on: leave one of them out", config.from);
    GC_TRY(pair_read(config, "", &train, has_test ? nullptr : &test, &import->notes));
    if (!has_test) return {};
    GC_TRY(pair_read(config, "test-", &test, nullptr, &import->notes));
    if (train.element != test.element)
        return fail(Code::data, "{}: samples for training are {}, those for testing {}: save both alike", config.from,
                    element_name(train.element), element_name(test.element));
    if (train.C == test.C && train.H == test.H && train.W == test.W) return {};
    return fail(Code::data, "{}: images for training are {} x {} x {}, those for testing {} x {} x {}", config.from, train.C, train.H,
                train.W, test.C, test.H, test.W);
}

}   // namespace gradcast
