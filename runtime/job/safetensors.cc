#include "runtime/job/safetensors.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/core/digest.h"
#include "runtime/core/fd.h"
#include "runtime/core/le.h"
#include "runtime/core/nearest.h"
#include "runtime/job/tensors.h"

namespace gradcast {
namespace {

// Exceptions are off here: parse() returns a discarded value, and every type is asked before it is taken.
using Json = nlohmann::json;

constexpr uint64_t header_bytes_max = 16 << 20;

std::string text(const std::vector<uint64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ",")); }

/// Bytes that are not UTF-8 become replacement characters.
std::string dump(const auto& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string layers_json(const std::vector<Layer>& layers) {
    auto all = nlohmann::ordered_json::array();
    for (const Layer& layer : layers) {
        const LayerSpec& spec = layer.spec;
        all.push_back({{"name", spec.name},
                       {"kind", spec.kind},
                       {"outputs", spec.outputs},
                       {"kernel", spec.kernel},
                       {"stride", spec.stride},
                       {"pad", spec.pad},
                       {"ceil", spec.ceil},
                       {"bias", spec.bias},
                       {"rate", spec.rate},
                       {"from", spec.from}});
    }
    return dump(all);
}

/// A tensor as the header tells it.
struct Entry {
    std::string name;
    const NetTensor* tensor = nullptr;   // null: one of what we do not need
    uint64_t begin = 0, end = 0;         // bytes of the data
};

class Reader {
public:
    Reader(const std::string& path, const NetSpec& net, std::span<float> parameters) : path_(path), net_(net), parameters_(parameters) {}

    Status read(std::string* digest) {
        std::vector<Layer> layers;
        GC_TRY(layers_check(net_, &layers));
        tensors_ = net_tensors(layers);
        uint64_t size;
        if (Status status = file_open(path_, &fd_, &size); !status.ok()) return fail(status.code, "cannot start: {}", status.what);
        Le64 length;
        if (size < sizeof length) return wrong(fmt::format("its {} bytes are too few for a header", size));
        GC_TRY(bytes(&length, sizeof length));
        constexpr uint64_t hdf5 = 0x0A1A0A0D46444889;   // "\x89HDF\r\n\x1a\n"
        if (length.get() == hdf5) return wrong("it is an HDF5 file: make one of it by gradcastctl export MODEL --format safetensors");
        if (length.get() > size - sizeof length)
            return wrong(fmt::format("its header would have {} bytes, the file has {}: it is cut short, or no safetensors file",
                                     length.get(), size));
        if (length.get() > header_bytes_max)
            return wrong(fmt::format("its header of {} bytes is longer than {}", length.get(), header_bytes_max));
        std::string header(length.get(), '\0');
        GC_TRY(bytes(header.data(), header.size()));
        GC_TRY(parse(header, size - sizeof length - header.size()));
        for (const Entry& entry : entries_) GC_TRY(data(entry));
        for (const NetTensor& tensor : tensors_)
            for (uint64_t i = 0; i < tensor.count && tensor.variance; ++i) {
                float &held = parameters_[tensor.offset + i], mean = parameters_[tensor.offset + i - tensor.count];
                if (held < 0) return wrong(fmt::format("tensor {}: its variance {} is below 0", tensor.name, held));
                held = static_cast<float>(double{held} + double{mean} * double{mean});
                if (!std::isfinite(held)) return wrong(fmt::format("tensor {}: it is too large with its mean {}", tensor.name, mean));
            }
        *digest = sha_.hex();
        return {};
    }

private:
    Status wrong(std::string_view what) const { return fail(Code::data, "cannot start from {}: {}", path_, what); }

    /// The next bytes of the file.
    Status bytes(void* to, uint64_t count) {
        auto* out = static_cast<std::byte*>(to);
        for (uint64_t have = 0; have < count;) {
            ssize_t got = ::read(fd_.get(), out + have, count - have);
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) return fail_sys(errno, "cannot read {}", path_);
            if (got == 0) return wrong("it has become shorter while it was read");
            have += static_cast<uint64_t>(got);
        }
        sha_.add({out, count});
        return {};
    }

    Status parse(const std::string& header, uint64_t data_bytes) {
        const Json root = Json::parse(header, nullptr, false);
        if (!root.is_object()) return wrong("its header is not a JSON object");
        for (const auto& [name, value] : root.items())
            if (name != "__metadata__") GC_TRY(known(name));
        for (const NetTensor& tensor : tensors_) {
            auto found = root.find(tensor.name);
            if (found == root.end())
                return wrong(fmt::format("it has no tensor {} of shape {}, which the net needs", tensor.name, text(tensor.shape)));
            GC_TRY(entry(tensor.name, *found, &tensor, data_bytes));
            if (auto counts = root.find(batches_of(tensor)); counts != root.end())
                GC_TRY(entry(batches_of(tensor), *counts, nullptr, data_bytes));
        }
        // Every byte of the data belongs to one tensor.
        std::sort(entries_.begin(), entries_.end(),
                  [](const Entry& a, const Entry& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
        uint64_t at = 0;
        const std::string* before = nullptr;
        for (const Entry& entry : entries_) {
            if (entry.begin < at) return wrong(fmt::format("the tensors {} and {} overlap", *before, entry.name));
            if (entry.begin > at) return wrong(fmt::format("bytes {} to {} of its data belong to no tensor", at, entry.begin));
            at = entry.end;
            before = &entry.name;
        }
        if (at != data_bytes) return wrong(fmt::format("bytes {} to {} of its data belong to no tensor", at, data_bytes));
        return {};
    }

    /// What PyTorch keeps beside a variance; "" beside anything else.
    static std::string batches_of(const NetTensor& tensor) {
        return tensor.variance ? tensor.name.substr(0, tensor.name.rfind('.')) + ".num_batches_tracked" : "";
    }

    Status known(const std::string& name) const {
        std::vector<std::string> names;
        for (const NetTensor& each : tensors_) {
            if (name == each.name || (each.variance && name == batches_of(each))) return {};
            names.push_back(each.name);
        }
        const std::string near = nearest(std::string_view(name).substr(0, 256), names);
        return wrong(fmt::format("tensor {}: the net has none of this name: {}", one_line(name),
                                 near.empty() ? "a tensor is named by its layer, as " + names.front() : "did you mean " + near + "?"));
    }

    /// Where the header says that a tensor is; null: one that we do not need.
    Status entry(const std::string& name, const Json& value, const NetTensor* tensor, uint64_t data_bytes) {
        auto bad = [&](std::string_view what) { return wrong(fmt::format("tensor {}: {}", name, what)); };
        if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") || !value.contains("data_offsets"))
            return bad("it lacks dtype, shape or data_offsets");
        const Json &dtype = value["dtype"], &shape = value["shape"], &offsets = value["data_offsets"];
        Entry entry{.name = name, .tensor = tensor};
        if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned())
            return bad("its data_offsets are not two whole numbers");
        entry.begin = offsets[0].get<uint64_t>();
        entry.end = offsets[1].get<uint64_t>();
        if (entry.end > data_bytes)
            return bad(fmt::format("it ends at byte {} of {} bytes of data: the file is cut short", entry.end, data_bytes));
        if (entry.begin > entry.end) return bad(fmt::format("it begins at byte {} and ends at {}", entry.begin, entry.end));
        if (tensor) {
            if (!dtype.is_string() || dtype.get_ref<const std::string&>() != "F32")
                return bad(fmt::format("its dtype is {}, not F32: convert it before", one_line(dump(dtype))));
            const std::vector<uint64_t>& wanted = tensor->shape;
            const bool same = shape.is_array() &&
                              std::equal(shape.begin(), shape.end(), wanted.begin(), wanted.end(), [](const Json& side, uint64_t want) {
                                  return side.is_number_unsigned() && side.get<uint64_t>() == want;
                              });
            if (!same) return bad(fmt::format("its shape is {}, the net's is {}", one_line(dump(shape)), text(wanted)));
            if (entry.end - entry.begin != tensor->count * sizeof(float))
                return bad(fmt::format("it has {} bytes instead of {}", entry.end - entry.begin, tensor->count * sizeof(float)));
        }
        entries_.push_back(std::move(entry));
        return {};
    }

    Status data(const Entry& entry) {
        if (!entry.tensor) {
            std::byte passed[4096];
            for (uint64_t at = entry.begin, count; at < entry.end; at += count)
                GC_TRY(bytes(passed, count = std::min<uint64_t>(entry.end - at, sizeof passed)));
            return {};
        }
        std::span<float> values = parameters_.subspan(entry.tensor->offset, entry.tensor->count);
        GC_TRY(bytes(values.data(), values.size_bytes()));
        if (std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); })) return {};
        return wrong(fmt::format("tensor {} holds NaN or Inf", entry.name));
    }

    const std::string& path_;
    const NetSpec& net_;
    const std::span<float> parameters_;
    std::vector<NetTensor> tensors_;
    std::vector<Entry> entries_;
    Fd fd_;
    Sha256 sha_;   // of the file so far
};

}   // namespace

Status safetensors_write(const std::string& path, const Model& model, std::span<const float> parameters) {
    std::vector<Layer> layers;
    GC_TRY(layers_check(model.net, &layers));
    const NetSpec& net = model.net;
    nlohmann::ordered_json header;
    header["__metadata__"] = {{"format", "pt"},
                              {"net", layers_json(layers)},
                              {"sample", fmt::format("[{},{},{}]", net.C, net.H, net.W)},
                              {"pad", fmt::format("{}", net.pad)},
                              {"classes", fmt::format("{}", net.classes)},
                              {"mean", fmt::format("[{}]", fmt::join(model.mean, ","))},
                              {"std", fmt::format("[{}]", fmt::join(model.std, ","))},
                              {"digest", model.digest},
                              {"step", fmt::format("{}", model.step)},
                              {"accuracy", model.accuracy < 0 ? "null" : fmt::format("{}", model.accuracy)},
                              {"kernel_set", model.kernel_set},
                              {"target_scale", fmt::format("{}", net.target_scale)}};
    std::string data;
    for (const NetTensor& tensor : net_tensors(layers)) {
        const uint64_t begin = data.size();
        const std::vector<float> values = tensor.values(parameters);
        data.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
        header[tensor.name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
    }
    std::string text = dump(header);
    text.append((8 - text.size() % 8) % 8, ' ');   // the data begin at a multiple of 8
    Le64 length;
    length.set(text.size());
    return file_write(path, std::string(reinterpret_cast<const char*>(length.bytes), sizeof length) + text + data);
}

Status safetensors_read(const std::string& path, const NetSpec& net, std::span<float> parameters, std::string* digest) {
    return Reader(path, net, parameters).read(digest);
}

}   // namespace gradcast
