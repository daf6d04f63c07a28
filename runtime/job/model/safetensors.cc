#include "runtime/job/model/safetensors.h"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <fnmatch.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "runtime/core/digest.h"
#include "runtime/core/fd.h"
#include "runtime/core/le.h"
#include "runtime/core/memory_room.h"
#include "runtime/core/nearest.h"
#include "runtime/job/model/constants.h"
#include "runtime/job/model/model_format.h"
#include "runtime/job/model/tensors.h"

namespace gradcast {
namespace {

// Exceptions are off here: parse() returns a discarded value, and every type is asked before it is taken.
using Json = nlohmann::json;

constexpr uint64_t header_bytes_max = 16 << 20;

std::string text(const std::vector<uint64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ",")); }

/// Bytes that are not UTF-8 become replacement characters.
std::string dump(const auto& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

/// The types of numbers that float32 holds exactly, some or all of them.
enum class Dtype : uint8_t { f32, f16, bf16, f64 };
constexpr std::pair<std::string_view, Dtype> dtypes[] = {
    {"F32", Dtype::f32}, {"F16", Dtype::f16}, {"BF16", Dtype::bf16}, {"F64", Dtype::f64}};
uint64_t bytes_of(Dtype dtype) { return dtype == Dtype::f32 ? 4 : dtype == Dtype::f64 ? 8 : 2; }

float of_f16(uint16_t half) {
    const float sign = half & 0x8000 ? -1.0f : 1.0f;
    const uint32_t exponent = half >> 10 & 31, fraction = half & 1023;
    if (exponent == 31) return sign * (fraction ? NAN : INFINITY);
    return sign * (exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                 : std::ldexp(static_cast<float>(1024 + fraction), static_cast<int>(exponent) - 25));
}

/// A tensor, as in the header.
struct Entry {
    std::string name;
    const NetTensor* tensor = nullptr;   // null: one of what we do not need
    const NetExtra* extra = nullptr;     // that it is
    Dtype dtype = Dtype::f32;
    uint64_t begin = 0, end = 0;   // bytes of the data
};

/// A file and its header.
class File {
public:
    /// purpose: "start from" or "use", for messages.
    File(const std::string& path, const char* purpose) : path_(path), purpose_(purpose) {}

    Status open() {
        uint64_t size;
        if (Status status = file_open(path_, &fd_, &size); !status.ok())
            return fail(status.code, "cannot {}: {}", std::string_view(purpose_).substr(0, std::string_view(purpose_).find(' ')),
                        status.what);
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
        data_begin_ = sizeof length + header.size();
        data_bytes_ = size - data_begin_;
        root_ = Json::parse(header, nullptr, false);
        return root_.is_object() ? Status{} : wrong("its header is not a JSON object");
    }

    const Json& root() const { return root_; }
    uint64_t data_bytes() const { return data_bytes_; }
    std::string digest() { return sha_.hex(); }
    Status wrong(std::string_view what) const { return fail(Code::data, "cannot {} {}: {}", purpose_, path_, what); }

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

    const std::string& path() const { return path_; }
    /// A job begins from it.
    bool starts() const { return std::string_view(purpose_).starts_with("start"); }

    /// SHA-256 of bytes of the data, which are read once more.
    Status digest_of(uint64_t begin, uint64_t end, std::string* digest) const {
        Sha256 sha;
        std::byte piece[4096];
        for (uint64_t at = begin; at < end;) {
            const ssize_t got = ::pread(fd_.get(), piece, std::min<uint64_t>(sizeof piece, end - at), static_cast<off_t>(data_begin_ + at));
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) return fail_sys(errno, "cannot read {}", path_);
            if (got == 0) return wrong("it has become shorter while it was read");
            sha.add({piece, static_cast<size_t>(got)});
            at += static_cast<uint64_t>(got);
        }
        *digest = sha.hex();
        return {};
    }

private:
    const std::string path_;
    const char* purpose_;
    Fd fd_;
    Sha256 sha_;   // of the file so far
    Json root_;
    uint64_t data_begin_ = 0, data_bytes_ = 0;
};

class Reader {
public:
    Reader(File& file, const NetSpec& net, std::span<float> parameters, const Layout* own = nullptr, const TensorChoice& choice = {})
        : file_(file),
          net_(net),
          parameters_(parameters),
          choice_(choice),
          own_(own),
          runs_(own ? own->runs() : std::vector<Layout::Run>()) {}

    Status read(std::string* notes) {
        std::vector<Layer> layers;
        GC_TRY(layers_check(net_, &layers));
        tensors_ = net_tensors(layers);
        extras_ = net_extras(layers);
        constants_ = constants_of(net_);
        find_prefix();
        GC_TRY(check_choice());
        GC_TRY(parse());
        if (!prefix_.empty()) *notes += fmt::format("its names without their common \"{}\"", prefix_);
        for (const auto& [name, dtype] : dtypes)
            if (dtype != Dtype::f32 && std::any_of(entries_.begin(), entries_.end(),
                                                   [dtype = dtype](const Entry& each) { return each.tensor && each.dtype == dtype; }))
                *notes += fmt::format("{}{} converted to F32 exactly", notes->empty() ? "" : ", ", name);
        if (!left_.empty()) *notes += fmt::format("{}{} keep their initial values", notes->empty() ? "" : "; ", few(left_));
        if (!unread_.empty()) *notes += fmt::format("{}the file's {} are not taken", notes->empty() ? "" : "; ", few(unread_));
        for (const Entry& entry : entries_) GC_TRY(data(entry));
        GC_TRY(compare_aliases());
        for (const NetTensor& tensor : tensors_) {
            // The initial mean is 0 and the initial second moment 1, so what one of both keeps is a variance, or a mean, too.
            if (tensor.variance && !takes(tensor.name) && !takes(mean_of(tensor))) continue;
            const uint64_t offset = offset_of(tensor);
            for (uint64_t i = 0; i < tensor.count && tensor.variance && offset != Layout::none; ++i) {
                float &held = parameters_[offset + i], mean = parameters_[offset + i - tensor.count];
                if (held < 0) return wrong(fmt::format("tensor {}: its variance {} is below 0", tensor.name, held));
                held = static_cast<float>(double{held} + double{mean} * double{mean});
                if (!std::isfinite(held)) return wrong(fmt::format("tensor {}: it is too large with its mean {}", tensor.name, mean));
            }
        }
        return {};
    }

private:
    /// In `parameters_`; Layout::none: they do not have the tensor.
    uint64_t offset_of(const NetTensor& tensor) const { return own_ ? own_->offset_of(tensor.offset) : tensor.offset; }
    /// How many of its elements they have.
    uint64_t elements_of(const NetTensor& tensor) const {
        if (!own_) return tensor.count;
        uint64_t count = 0;
        for (const Layout::Run& run : runs_) {
            const uint64_t first = std::max(run.place, tensor.offset), end = std::min(run.place + run.count, tensor.offset + tensor.count);
            count += end > first ? end - first : 0;
        }
        return count;
    }
    Status wrong(std::string_view what) const { return file_.wrong(what); }
    Status bytes(void* to, uint64_t count) { return file_.bytes(to, count); }

    /// What wrappers of a module put before all names: "module.", "_orig_mod.", "model.".
    void find_prefix() {
        const Json& root = file_.root();
        for (const NetTensor& tensor : tensors_) {
            if (root.contains(tensor.name)) return;
            for (const auto& [name, value] : root.items()) {
                if (!name.ends_with("." + tensor.name)) continue;
                const std::string prefix = name.substr(0, name.size() - tensor.name.size());
                bool all = true;
                for (const auto& each : root.items()) all = all && (each.key() == "__metadata__" || each.key().starts_with(prefix));
                if (all) return void(prefix_ = prefix);
            }
        }
    }

    static bool matches(const std::string& pattern, const std::string& name) { return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0; }
    bool takes(const std::string& name) const {
        const auto match = [&](const std::string& pattern) { return matches(pattern, name); };
        return (choice_.only.empty() || std::ranges::any_of(choice_.only, match)) && std::ranges::none_of(choice_.skip, match);
    }

    /// Each pattern is there for something, and something remains.
    Status check_choice() const {
        for (const auto& [key, patterns] : {std::pair{"start_only", &choice_.only}, {"start_skip", &choice_.skip}})
            for (const std::string& pattern : *patterns) {
                bool found = std::ranges::any_of(tensors_, [&](const NetTensor& each) { return matches(pattern, each.name); });
                for (const auto& each : file_.root().items())
                    found = found || (each.key() != "__metadata__" && matches(pattern, each.key().substr(prefix_.size())));
                if (found) continue;
                std::vector<std::string> names;
                for (const NetTensor& each : tensors_) names.push_back(each.name);
                return fail(Code::invalid, "net.{}: \"{}\" matches no tensor of the net, which has {}, nor of {}", key, one_line(pattern),
                            few(names), file_.path());
            }
        if (std::ranges::any_of(tensors_, [&](const NetTensor& each) { return takes(each.name); })) return {};
        return fail(Code::invalid, "net.{}: the net takes no tensor of {}: leave start out",
                    choice_.skip.empty() ? "start_only" : "start_skip", file_.path());
    }

    /// For people: "conv1.weight, conv1.bias, fc.weight and 3 others".
    static std::string few(std::span<const std::string> names) {
        constexpr size_t most = 3;
        std::string text;
        for (size_t i = 0; i < std::min(names.size(), most); ++i)
            text += fmt::format("{}{}", i == 0 ? "" : i + 1 == names.size() ? " and " : ", ", one_line(names[i]));
        return names.size() > most ? fmt::format("{} and {} more", text, names.size() - most) : text;
    }

    Status parse() {
        const Json& root = file_.root();
        const uint64_t data_bytes = file_.data_bytes();
        for (const auto& [full, value] : root.items()) {
            if (full == "__metadata__") continue;
            const std::string name = full.substr(prefix_.size());
            if (takes(name)) GC_TRY(known(name));
            else GC_TRY(entry(name, value, nullptr, data_bytes));
            if (!takes(name)) unread_.push_back(name);
        }
        std::vector<const NetExtra*> taken;   // in place of the tensors whose other names they are
        for (const NetTensor& tensor : tensors_) {
            auto found = root.find(prefix_ + tensor.name);
            const NetExtra* const other = found == root.end() && takes(tensor.name) ? alias_alone(tensor) : nullptr;
            if (other) {
                found = root.find(prefix_ + other->name);
                taken.push_back(other);
            }
            if (!takes(tensor.name)) left_.push_back(tensor.name);
            else if (found == root.end())
                return wrong(
                    fmt::format("it has no tensor {} of shape {}, which the net needs{}", tensor.name, text(tensor.shape), hint()));
            else GC_TRY(entry(tensor.name, *found, &tensor, data_bytes));
            if (auto counts = root.find(prefix_ + batches_of(tensor)); counts != root.end() && takes(batches_of(tensor)))
                GC_TRY(entry(batches_of(tensor), *counts, nullptr, data_bytes));
        }
        for (const NetExtra& extra : extras_)
            if (auto found = root.find(prefix_ + extra.name); found != root.end() && extra.kind != NetExtra::Kind::batches &&
                                                              takes(extra.name) && std::ranges::find(taken, &extra) == taken.end())
                GC_TRY(entry(extra.name, *found, nullptr, data_bytes, &extra));
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

    /// The other name under which the file has a tensor that it lacks; null: none.
    const NetExtra* alias_alone(const NetTensor& tensor) const {
        for (const NetExtra& extra : extras_)
            if (extra.kind == NetExtra::Kind::alias && extra.of == tensor.name && takes(extra.name) &&
                file_.root().contains(prefix_ + extra.name))
                return &extra;
        return nullptr;
    }

    static std::string mean_of(const NetTensor& variance) { return variance.name.substr(0, variance.name.rfind('.')) + ".running_mean"; }
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
        if (std::ranges::find(extras_, name, &NetExtra::name) != extras_.end()) return {};
        const std::string near = nearest(std::string_view(name).substr(0, 256), names);
        return wrong(fmt::format("tensor {}: the net has none of this name: {}", one_line(name),
                                 near.empty() ? "a tensor is named by its layer, as " + names.front() : "did you mean " + near + "?"));
    }

    /// For what is wrong with one tensor of a start.
    const char* hint() const { return file_.starts() ? ": net.start_skip can leave it out" : ""; }

    /// Where the header says that a tensor is; null: one that we do not need.
    Status entry(const std::string& name, const Json& value, const NetTensor* tensor, uint64_t data_bytes,
                 const NetExtra* extra = nullptr) {
        auto bad = [&](std::string_view what) { return wrong(fmt::format("tensor {}: {}", name, what)); };
        if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") || !value.contains("data_offsets"))
            return bad("it lacks dtype, shape or data_offsets");
        const Json &dtype = value["dtype"], &shape = value["shape"], &offsets = value["data_offsets"];
        Entry entry{.name = name, .tensor = tensor, .extra = extra};
        if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned())
            return bad("its data_offsets are not two whole numbers");
        entry.begin = offsets[0].get<uint64_t>();
        entry.end = offsets[1].get<uint64_t>();
        if (entry.end > data_bytes)
            return bad(fmt::format("it ends at byte {} of {} bytes of data: the file is cut short", entry.end, data_bytes));
        if (entry.begin > entry.end) return bad(fmt::format("it begins at byte {} and ends at {}", entry.begin, entry.end));
        if (tensor) {
            const auto its = std::find_if(std::begin(dtypes), std::end(dtypes), [&](const auto& each) {
                return dtype.is_string() && dtype.get_ref<const std::string&>() == each.first;
            });
            if (its == std::end(dtypes))
                return bad(fmt::format("its dtype is {}, not F32, F16, BF16 or F64: {}", one_line(dump(dtype)), conversion()));
            entry.dtype = its->second;
            const std::vector<uint64_t>& wanted = tensor->shape;
            const bool same = shape.is_array() &&
                              std::equal(shape.begin(), shape.end(), wanted.begin(), wanted.end(), [](const Json& side, uint64_t want) {
                                  return side.is_number_unsigned() && side.get<uint64_t>() == want;
                              });
            if (!same) return bad(fmt::format("its shape is {}, the net's is {}{}", one_line(dump(shape)), text(wanted), hint()));
            if (entry.end - entry.begin != tensor->count * bytes_of(entry.dtype))
                return bad(fmt::format("it has {} bytes instead of {}", entry.end - entry.begin, tensor->count * bytes_of(entry.dtype)));
        }
        entries_.push_back(std::move(entry));
        return {};
    }

    Status data(const Entry& entry) {
        if (!entry.tensor) return passed(entry);
        const auto [first, count] = std::pair(entry.tensor->offset, entry.tensor->count);
        const bool whole = elements_of(*entry.tensor) == count;
        if (!whole) {
            GC_TRY(memory_room_for(count * sizeof(float), file_.path()));
            passing_.resize(count);
        }
        const std::span<float> values = whole ? parameters_.subspan(offset_of(*entry.tensor), count) : std::span(passing_);
        if (entry.dtype == Dtype::f32) GC_TRY(bytes(values.data(), values.size_bytes()));
        else GC_TRY(converted(entry, values));
        for (const Layout::Run& run : whole ? std::span<const Layout::Run>() : runs_) {
            const uint64_t from = std::max(run.place, first), end = std::min(run.place + run.count, first + count);
            for (uint64_t place = from; place < end; ++place) parameters_[run.offset + place - run.place] = values[place - first];
        }
        if (std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); })) return {};
        return wrong(fmt::format("tensor {} holds NaN or Inf", entry.name));
    }

    /// What the parameters do not have: the program's constants must be those of the file.
    Status passed(const Entry& entry) {
        std::byte piece[4096];
        Sha256 sha;
        for (uint64_t at = entry.begin, count; at < entry.end; at += count) {
            GC_TRY(bytes(piece, count = std::min<uint64_t>(entry.end - at, sizeof piece)));
            if (entry.extra) sha.add({piece, count});
        }
        if (!entry.extra) return {};
        const std::string digest = sha.hex();
        if (entry.extra->kind == NetExtra::Kind::alias) aliases_.emplace_back(entry.extra, digest);
        if (entry.extra->kind != NetExtra::Kind::constant || digest == constants_[entry.extra->constant].sha256) return {};
        return wrong(fmt::format(
            "tensor {}: it is not trained, and the program has other values: let the program load those of the file, or leave the "
            "tensor out of it",
            entry.name));
    }

    /// A tensor with several names has one value.
    Status compare_aliases() {
        for (const auto& [alias, digest] : aliases_) {
            const auto of = std::ranges::find(entries_, alias->of, &Entry::name);
            if (of == entries_.end()) continue;   // of a constant that is not in the file
            std::string other;
            GC_TRY(file_.digest_of(of->begin, of->end, &other));
            if (other != digest)
                return wrong(fmt::format("tensors {} and {} differ, and are one in the net{}", alias->of, alias->name, hint()));
        }
        return {};
    }

    /// The line that converts the file, in the words of a shell.
    std::string conversion() const {
        return fmt::format(
            "python3 -c \"from safetensors.torch import *; save_file({{k: v.float() for k, v in load_file('{}').items()}}, "
            "'f32.safetensors')\" rounds it",
            file_.path());
    }

    Status converted(const Entry& entry, std::span<float> values) {
        const uint64_t width = bytes_of(entry.dtype);
        std::byte block[4096];
        for (uint64_t at = 0, count; at < values.size(); at += count) {
            count = std::min<uint64_t>(values.size() - at, sizeof block / width);
            GC_TRY(bytes(block, count * width));
            for (uint64_t i = 0; i < count; ++i) {
                if (entry.dtype == Dtype::f64) {
                    double wide;
                    std::memcpy(&wide, block + i * width, sizeof wide);
                    values[at + i] = static_cast<float>(wide);
                    if (std::isfinite(wide) && double{values[at + i]} != wide)
                        return wrong(fmt::format("tensor {}: {} is F64 and no float32: {}", entry.name, wide, conversion()));
                    continue;
                }
                uint16_t narrow;
                std::memcpy(&narrow, block + i * width, sizeof narrow);
                values[at + i] = entry.dtype == Dtype::f16 ? of_f16(narrow) : std::bit_cast<float>(uint32_t{narrow} << 16);
            }
        }
        return {};
    }

    File& file_;
    const NetSpec& net_;
    const std::span<float> parameters_;
    const TensorChoice choice_;
    const Layout* const own_;
    const std::vector<Layout::Run> runs_;   // of own_
    std::vector<float> passing_;            // the last tensor that `parameters_` do not have, or a part of it alone
    std::string prefix_;
    std::vector<std::string> left_, unread_;   // that the choice leaves out, of the net and of the file
    std::vector<NetTensor> tensors_;
    std::vector<NetExtra> extras_;
    std::vector<Constant> constants_;
    std::vector<std::pair<const NetExtra*, std::string>> aliases_;   // that the file has, with the SHA-256 of their bytes
    std::vector<Entry> entries_;
};

/// The values of __metadata__ that safetensors_write() puts there, each a text of JSON.
class Metadata {
public:
    explicit Metadata(const Json& root) : all_(root.value("__metadata__", Json())) {}
    Json value(const char* key) const {
        const Json text = all_.is_object() ? all_.value(key, Json()) : Json();
        return text.is_string() ? Json::parse(text.get_ref<const std::string&>(), nullptr, false) : Json();
    }
    /// False: there is no such whole number up to `most`.
    static bool whole(const Json& json, uint64_t most, uint32_t* value) {
        if (!json.is_number_unsigned() || json.get<uint64_t>() > most) return false;
        *value = json.get<uint32_t>();
        return true;
    }
    static bool reals(const Json& json, size_t count, std::vector<float>* values) {
        if (!json.is_array() || json.size() != count) return false;
        for (const Json& each : json) {
            if (!each.is_number() || !std::isfinite(each.get<float>())) return false;
            values->push_back(each.get<float>());
        }
        return true;
    }
    static bool layer(const Json& json, LayerSpec* spec) {
        if (!json.is_object()) return false;
        for (const auto& [key, to] : {std::pair{"name", &spec->name}, {"kind", &spec->kind}, {"from", &spec->from}}) {
            if (!json.contains(key) || !json[key].is_string()) return false;
            *to = json[key].get<std::string>();
        }
        for (const auto& [key, value] : json.items()) {
            if (key == "name" || key == "kind" || key == "from") continue;
            if (value.is_string() && key == "weights_of") {
                spec->weights_of = value.get<std::string>();
                continue;
            }
            if (value.is_string()) {
                if (!layer_set(*spec, key, std::string_view(value.get_ref<const std::string&>()))) return false;
                continue;
            }
            if (!value.is_number() && !value.is_boolean()) return false;
            if (!layer_set(*spec, key, value.is_boolean() ? value.get<bool>() : value.get<double>())) return false;
        }
        return true;
    }
    /// "" or the key that is missing, or wrong.
    const char* model(Model* model) const {
        NetSpec& net = model->net;
        const Json sample = value("sample"), layers = value("net"), scale = value("target_scale");
        uint32_t* const sides[] = {&net.C, &net.H, &net.W};
        if (!sample.is_array() || sample.size() != 3) return "sample";
        for (size_t i = 0; i < 3; ++i)
            if (!whole(sample[i], side_max, sides[i]) || *sides[i] == 0) return "sample";
        if (!whole(value("pad"), side_max, &net.pad)) return "pad";
        if (!whole(value("classes"), side_max, &net.classes) || net.classes == 0) return "classes";
        if (!scale.is_number() || !(scale.get<float>() >= 0) || !std::isfinite(scale.get<float>())) return "target_scale";
        net.target_scale = scale.get<float>();
        const Json element = value("element"), target_element = value("target_element");   // absent where pixels have labels
        if (element.is_string() && !element_find(element.get<std::string>(), &net.element)) return "element";
        if (target_element.is_string() && !element_find(target_element.get<std::string>(), &net.target_element)) return "target_element";
        if (!value("vocabulary").is_null() && !whole(value("vocabulary"), UINT32_MAX, &net.vocabulary)) return "vocabulary";
        if (!value("targets").is_null() && !whole(value("targets"), targets_max, &net.targets)) return "targets";
        if (const Json alphabet = value("alphabet"); alphabet.is_string()) model->alphabet = alphabet.get<std::string>();
        if (uint32_t ignore = 0; !value("ignore").is_null()) {
            if (!whole(value("ignore"), UINT16_MAX, &ignore)) return "ignore";
            net.ignore = static_cast<int32_t>(ignore);
        }
        const Json side = value("pictures_side");   // absent without pictures
        if (!side.is_null() && (!whole(side, side_max, &model->pictures_side) || model->pictures_side < std::max(net.H, net.W)))
            return "pictures_side";
        if (!reals(value("mean"), net.C, &model->mean)) return "mean";
        if (!reals(value("std"), net.C, &model->std)) return "std";
        for (const float each : model->std)
            if (!(each > 0)) return "std";
        if (!layers.is_array() || layers.empty()) return "net";
        for (const Json& each : layers)
            if (!layer(each, &net.layers.emplace_back())) return "net";
        const Json names = value("class_names");   // absent in older files
        for (size_t i = 0; names.is_array() && i < names.size(); ++i)
            if (names[i].is_string()) model->class_names += (i > 0 ? "," : "") + names[i].get<std::string>();
        return "";
    }

private:
    static constexpr uint64_t side_max = 65536;
    const Json all_;
};

}   // namespace

Status safetensors_read(const std::string& path, const NetSpec& net, std::span<float> parameters, std::string* digest, std::string* notes,
                        const Layout* own, const TensorChoice& choice) {
    File file(path, "start from");
    GC_TRY(file.open());
    GC_TRY(Reader(file, net, parameters, own, choice).read(notes));
    *digest = file.digest();
    return {};
}

Status safetensors_model(const std::string& path, Model* model, std::vector<float>* parameters) {
    File file(path, "use");
    GC_TRY(file.open());
    Model read;
    if (const std::string_view missing = Metadata(file.root()).model(&read); !missing.empty())
        return file.wrong(
            fmt::format("its __metadata__ does not say {}, as that of gradcastctl export does: a job "
                        "that starts from it (net.start) does",
                        missing));
    std::vector<Layer> layers;
    if (Status status = layers_check(read.net, &layers); !status.ok()) return file.wrong(status.what);
    const uint64_t elements = layers_layout(layers, 1).elements;
    if (elements / 2 > file.data_bytes())   // before memory is taken
        return file.wrong(fmt::format("its net has {} parameters, it has {} bytes of data", elements, file.data_bytes()));
    GC_TRY(memory_room_for(elements * sizeof(float), path));
    std::vector<float> values(elements);
    std::string notes;
    GC_TRY(Reader(file, read.net, values).read(&notes));
    read.digest = sha256_hex(std::as_bytes(std::span(values)));
    *model = std::move(read);
    *parameters = std::move(values);
    return {};
}

}   // namespace gradcast
