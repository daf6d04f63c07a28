#include "runtime/job/model/model_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "nn/averaged.h"
#include "nn/graph/layers.h"
#include "runtime/core/digest.h"
#include "runtime/core/fd.h"
#include "runtime/core/memory_room.h"
#include "runtime/job/file/job_file.h"
#include "runtime/job/model/model_format.h"
#include "runtime/job/model/model_reader.h"
#include "runtime/job/model/model_writer.h"

namespace gradcast {

Status model_reserve(const std::string& path, const Model& model, uint64_t state_bytes) {
    // Beside the data sets: headers, attributes, and the texts.
    const uint64_t bytes = state_bytes + model.job.size() + model.base.size() + model.class_names.size() + model.alphabet.size() +
                           layers_text(model.net, model_format_version).size() + (64 << 10) + 8 * (model.mean.size() + model.std.size());
    auto failed = [&](int error) {
        Status status = fail_sys(error, "cannot reserve {:.1f} MB for the model in {}", static_cast<double>(bytes) / 1e6,
                                 path.substr(0, path.rfind('/')));
        ::unlink(path.c_str());
        return status;
    };
    {
        Hdf5Lock lock;
        Hid file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
        if (!file || !file.close()) return failed(errno);
    }
    // HDF5 writes into it and cuts off the rest when it closes the file.
    Fd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (!fd) return failed(errno);
    const int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes));
    return error == 0 ? Status{} : failed(error);
}

Status model_write(const std::string& path, const Model& model, const ModelState& state) {
    return model_write(path, model, state, state.sizes(), state_runs_whole(state.sizes()));
}

Status model_write(const std::string& path, const Model& model, const ModelState& state, const StateSizes& sizes, const StateRuns& runs) {
    ModelWriter writer;
    GC_TRY(writer.open(path, sizes, runs));
    const auto all = state.bytes();
    for (const StateVector which : state_vectors)
        for (const auto& [offset, count, place] : runs[which]) {
            const uint64_t width = kind_of(which).width;
            GC_TRY(writer.add(which, place, all[which].subspan(offset * width, count * width)));
        }
    return writer.close(model);
}

std::string model_kept(const std::string& folder) {
    std::string path = folder + "/final.h5";
    const std::string part = path + ".part";
    if (::access(path.c_str(), F_OK) == 0) return path;
    if (::access(part.c_str(), F_OK) != 0) return {};
    Model model;
    if (model_check(part, &model).ok() && file_rename(part, path).ok()) return path;
    ::unlink(part.c_str());
    return {};
}

namespace {

/// Takes memory for a whole vector of the file.
template <typename T>
Status room_for(const std::string& path, const ModelReader& reader, StateVector which, std::vector<T>* values) {
    const uint64_t count = reader.sizes()[which];
    GC_TRY(memory_room_for(count * sizeof(T), fmt::format("{}: its {}", path, kind_of(which).name)));
    values->resize(count);
    return {};
}

}   // namespace

Status model_read(const std::string& path, Model* model, std::vector<float>* parameters) {
    ModelReader reader;
    std::vector<float> values;
    GC_TRY(reader.open(path));
    GC_TRY(room_for(path, reader, StateVector::parameters, &values));
    const Layout::Run all{0, values.size(), 0};
    const StateTarget target{StateVector::parameters, {&all, 1}, std::as_writable_bytes(std::span(values))};
    GC_TRY(reader.read({&target, 1}));
    *model = reader.model();
    if (model->digest.empty()) model->digest = sha256_hex(std::as_bytes(std::span(values)));   // of several parts
    *parameters = std::move(values);
    return {};
}

Status model_averaged(const std::string& path, Model* model, std::vector<float>* parameters) {
    Model read;
    ModelVectors state;
    GC_TRY(checkpoint_read(path, &read, &state));
    JobConfig job;
    GC_TRY(job_parse(read.job, path, read.base, &job));
    if (!(job.optimiser.ema > 0)) return fail(Code::invalid, "{}: its job kept no averaged weights (optimiser.ema)", path);
    std::vector<Layer> layers;
    GC_TRY(layers_check(read.net, &layers));
    const Layout layout = layers_layout(layers, 1);
    if (state.parameters.size() != layout.elements || state.optimiser.size() != optimiser_vectors(job.optimiser) * layout.elements)
        return fail(Code::data, "{}: its optimiser state has {} values, which is not that of its job", path, state.optimiser.size());
    averaged_swap(layout, state.parameters, state.optimiser);
    read.digest = sha256_hex(std::as_bytes(std::span(state.parameters)));
    *model = std::move(read);
    *parameters = std::move(state.parameters);
    return {};
}

Status checkpoint_read(const std::string& path, Model* model, ModelVectors* state) {
    ModelReader reader;
    ModelVectors values;
    GC_TRY(reader.open(path));
    GC_TRY(room_for(path, reader, StateVector::parameters, &values.parameters));
    GC_TRY(room_for(path, reader, StateVector::optimiser, &values.optimiser));
    GC_TRY(room_for(path, reader, StateVector::exponents, &values.exponents));
    GC_TRY(room_for(path, reader, StateVector::algorithm, &values.algorithm));
    PerVector<Layout::Run> all;
    for (const StateVector which : state_vectors) all[which] = {0, reader.sizes()[which], 0};
    const auto target = [&](StateVector which, auto& to) {
        return StateTarget{which, {&all[which], 1}, std::as_writable_bytes(std::span(to))};
    };
    const StateTarget targets[] = {target(StateVector::parameters, values.parameters), target(StateVector::optimiser, values.optimiser),
                                   target(StateVector::exponents, values.exponents), target(StateVector::algorithm, values.algorithm)};
    GC_TRY(reader.read(targets));
    GC_TRY(reader.resumable());
    *model = reader.model();
    if (model->digest.empty()) model->digest = sha256_hex(std::as_bytes(std::span(values.parameters)));   // of several parts
    *state = std::move(values);
    return {};
}

Status model_check(const std::string& path, Model* model) {
    ModelReader reader;
    GC_TRY(reader.open(path));
    GC_TRY(reader.read());
    *model = reader.model();
    return {};
}

Status checkpoint_check(const std::string& path, Model* model) {
    ModelReader reader;
    GC_TRY(reader.open(path));
    GC_TRY(reader.read());
    GC_TRY(reader.resumable());
    *model = reader.model();
    return {};
}

}   // namespace gradcast
