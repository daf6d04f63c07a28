#include "runtime/job/model/model_writer.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "runtime/job/model/model_format.h"

namespace gradcast {
namespace {

Hid text_type(uint64_t bytes) {
    Hid type(H5Tcopy(H5T_C_S1));
    if (type) H5Tset_size(type.get(), bytes == 0 ? 1 : bytes);
    return type;
}

bool put_attribute(hid_t file, const char* name, hid_t type, hid_t space, const void* value) {
    Hid attribute(H5Acreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT));
    return attribute && H5Awrite(attribute.get(), type, value) >= 0;
}
bool put_text(hid_t file, const char* name, const std::string& text) {
    Hid type = text_type(text.size()), space(H5Screate(H5S_SCALAR));
    return put_attribute(file, name, type.get(), space.get(), text.empty() ? "" : text.data());
}
template <typename T>
bool put_numbers(hid_t file, const char* name, hid_t type, std::span<const T> values) {
    hsize_t count = values.size();
    Hid space(values.size() == 1 ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, &count, nullptr));
    return put_attribute(file, name, type, space.get(), values.data());
}
bool put_long_text(hid_t file, const char* name, const std::string& text) {
    Hid type = text_type(text.size()), space(H5Screate(H5S_SCALAR));
    Hid data(H5Dcreate2(file, name, type.get(), space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    return data && H5Dwrite(data.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, text.empty() ? "" : text.data()) >= 0;
}
bool make_vector(hid_t file, StateVector which, hsize_t count) {
    const bool optional = which == StateVector::optimiser || which == StateVector::algorithm;
    if (count == 0 && optional) return true;
    Hid space(H5Screate_simple(1, &count, nullptr));
    const Hid data(H5Dcreate2(file, kind_of(which).name, stored_type(which), space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    return static_cast<bool>(data);
}

bool put_ranges(hid_t h, const StateSizes& sizes, const StateRuns& runs) {
    const std::vector<uint64_t> values = ranges_values(runs);
    const hsize_t shape[] = {values.size() / ranges_width, ranges_width};
    Hid space(H5Screate_simple(2, shape, nullptr));
    Hid data(H5Dcreate2(h, "ranges", H5T_STD_U64LE, space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    return put_numbers(h, "whole", H5T_NATIVE_UINT64, std::span<const uint64_t>(sizes.data(), sizes.size())) && data &&
           H5Dwrite(data.get(), H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >= 0;
}

bool put_description(hid_t h, const Model& model, const uint64_t version, const std::string& digest, const std::string& content) {
    const uint64_t sample[] = {model.net.C, model.net.H, model.net.W}, pad = model.net.pad, classes = model.net.classes,
                   targets = model.net.targets, vocabulary = model.net.vocabulary, ignore = static_cast<uint64_t>(model.net.ignore),
                   side = model.pictures_side, agreed = model.agreed ? 1 : 0;
    return put_text(h, "format", model_format_name) && put_numbers(h, "version", H5T_NATIVE_UINT64, std::span(&version, 1)) &&
           put_numbers(h, "sample", H5T_NATIVE_UINT64, std::span<const uint64_t>(sample)) &&
           put_numbers(h, "pad", H5T_NATIVE_UINT64, std::span(&pad, 1)) &&
           put_numbers(h, "classes", H5T_NATIVE_UINT64, std::span(&classes, 1)) &&
           (model.net.target_scale == 0 || put_numbers(h, "target_scale", H5T_NATIVE_FLOAT, std::span(&model.net.target_scale, 1))) &&
           (version < model_typed_version || (put_text(h, "element", std::string(element_name(model.net.element))) &&
                                              put_numbers(h, "targets", H5T_NATIVE_UINT64, std::span<const uint64_t>(&targets, 1)) &&
                                              put_numbers(h, "vocabulary", H5T_NATIVE_UINT64, std::span<const uint64_t>(&vocabulary, 1)) &&
                                              put_text(h, "target_element", std::string(element_name(model.net.target_element))))) &&
           (side == 0 || put_numbers(h, "pictures_side", H5T_NATIVE_UINT64, std::span<const uint64_t>(&side, 1))) &&
           (model.net.ignore < 0 || put_numbers(h, "ignore", H5T_NATIVE_UINT64, std::span<const uint64_t>(&ignore, 1))) &&
           put_numbers(h, "mean", H5T_NATIVE_FLOAT, std::span(model.mean)) &&
           put_numbers(h, "std", H5T_NATIVE_FLOAT, std::span(model.std)) && put_text(h, "digest", digest) &&
           put_numbers(h, "step", H5T_NATIVE_UINT64, std::span(&model.step, 1)) &&
           put_numbers(h, "accuracy", H5T_NATIVE_DOUBLE, std::span(&model.accuracy, 1)) &&
           put_numbers(h, "test_loss", H5T_NATIVE_DOUBLE, std::span(&model.test_loss, 1)) &&
           put_numbers(h, "evaluated", H5T_NATIVE_UINT64, std::span(&model.evaluated, 1)) && put_text(h, "kernel_set", model.kernel_set) &&
           put_text(h, "data_digest", model.data_digest) && put_text(h, "id", model.id) && put_text(h, "base", model.base) &&
           put_numbers(h, "state", H5T_NATIVE_UINT64, std::span(&model.state, 1)) &&
           put_numbers(h, "agreed", H5T_NATIVE_UINT64, std::span(&agreed, 1)) && put_text(h, "content", content) &&
           put_long_text(h, "job", model.job) && put_long_text(h, "layers", layers_text(model.net, version)) &&
           (model.class_names.empty() || put_long_text(h, "class_names", model.class_names)) &&
           (model.alphabet.empty() || put_long_text(h, "alphabet", model.alphabet));
}

}   // namespace

Status ModelWriter::open(const std::string& path, const StateSizes& sizes, const StateRuns& runs) {
    path_ = path;
    sizes_ = sizes;
    runs_ = runs;   // in the file they lie one behind the other
    for (std::vector<Layout::Run>& each : runs_)
        for (uint64_t next = 0; Layout::Run & run : each) run.offset = std::exchange(next, next + run.count);
    has_ = state_sizes(runs);
    bool good = true;
    {
        Hdf5Lock lock;
        // Without the library's buffer for small writes an error comes from the write that has caused it.
        Hid access(H5Pcreate(H5P_FILE_ACCESS));
        H5Pset_sieve_buf_size(access.get(), 0);
        file_ = Hid(H5Fopen(path.c_str(), H5F_ACC_RDWR, access.get()));
        const bool reserved =
            file_ && H5Aexists(file_.get(), "format") == 0 && H5Lexists(file_.get(), state_vector_kinds[0].name, H5P_DEFAULT) == 0;
        if (!reserved) {
            file_.close();
            file_ = Hid(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.get()));
        }
        good = static_cast<bool>(file_);
        for (const StateVector which : state_vectors) good = good && make_vector(file_.get(), which, has_[which]);
    }
    if (!good) return wrong("");
    for (const StateVector which : state_vectors)
        if (has_[which] == 0) digests_[which] = sha_[which].hex();
    return {};
}

/// Not hdf5_reason(): whatever is closed on the way here has wiped it.
Status ModelWriter::wrong(std::string_view what) {
    const Status status = what.empty() ? fail_sys(errno, "cannot write {}", path_) : fail(Code::data, "cannot write {}: {}", path_, what);
    drop();
    return status;
}

void ModelWriter::drop() {
    if (path_.empty()) return;
    {
        Hdf5Lock lock;
        file_.close();
    }
    ::unlink(path_.c_str());
    path_.clear();
}

uint64_t ModelWriter::next_place(StateVector which) const {
    for (const Layout::Run& run : runs_[which])
        if (next_[which] < run.offset + run.count) return run.place + next_[which] - run.offset;
    return runs_[which].empty() ? 0 : runs_[which].back().place + runs_[which].back().count;
}

bool ModelWriter::write(StateVector which, uint64_t offset, std::span<const std::byte> elements) {
    const hsize_t first = offset, count = elements.size() / kind_of(which).width;
    Hdf5Lock lock;
    Hid data(H5Dopen2(file_.get(), kind_of(which).name, H5P_DEFAULT)), from(H5Screate_simple(1, &count, nullptr));
    Hid to(H5Dget_space(data.get()));
    return H5Sselect_hyperslab(to.get(), H5S_SELECT_SET, &first, nullptr, &count, nullptr) >= 0 &&
           H5Dwrite(data.get(), stored_type(which), from.get(), to.get(), H5P_DEFAULT, elements.data()) >= 0;
}

Status ModelWriter::add(StateVector which, uint64_t place, std::span<const std::byte> elements) {
    GC_ASSERT(!path_.empty());
    const auto [name, width] = kind_of(which);
    const uint64_t count = elements.size() / width;
    uint64_t& next = next_[which];
    const uint64_t expected = next_place(which);
    GC_ASSERT(elements.size() % width == 0);
    if (count == 0) return {};
    if (place < expected) return wrong(fmt::format("element {} of its {} comes twice", place, name));
    if (place > expected) return wrong(fmt::format("elements {} to {} of its {} are missing", expected, place - 1, name));
    if (count > has_[which] - next) return wrong(fmt::format("its {} have {} elements, not {}", name, has_[which], next + count));
    for (uint64_t at = 0; at < elements.size(); at += model_piece_bytes) {
        const auto piece = elements.subspan(at, std::min(model_piece_bytes, elements.size() - at));
        sha_[which].add(piece);
        if (!write(which, next + at / width, piece)) return wrong("");
    }
    next += count;
    GC_ASSERT(next == has_[which] || next_place(which) >= place + count);   // they lie in one run
    if (next == has_[which]) digests_[which] = sha_[which].hex();
    return {};
}

Status ModelWriter::close(const Model& model) {
    GC_ASSERT(!path_.empty());
    for (const StateVector which : state_vectors)
        if (next_[which] < has_[which])
            return wrong(fmt::format("elements {} to {} of its {} are missing", next_place(which),
                                     runs_[which].back().place + runs_[which].back().count - 1, kind_of(which).name));
    if (!model.digest.empty() && model.digest != digest())
        return wrong(fmt::format("its parameters have the digest {}, not {}", digest(), model.digest));
    bool good = false;
    {
        Hdf5Lock lock;
        const bool part = has_ != sizes_;
        const uint64_t version = model.pictures_side > 0 ? model_pictures_version
                                 : typed(model.net)      ? model_typed_version
                                 : part                  ? model_part_version
                                                         : model_format_version;
        good = put_description(file_.get(), model, version, digest(), model_content(model, digests_, version, sizes_, runs_)) &&
               (version < model_part_version || put_ranges(file_.get(), sizes_, runs_)) && file_.close();
    }
    if (!good) return wrong("");
    path_.clear();
    return {};
}

}   // namespace gradcast
