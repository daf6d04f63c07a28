#include "runtime/job/model/model_reader.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "runtime/core/digest.h"
#include "runtime/job/model/checkpoint_files.h"

namespace gradcast {

Status ModelReader::add(const std::string& path) {
    ModelPart& part = *parts_.emplace_back(std::make_unique<ModelPart>());
    GC_TRY(part.open(path));
    if (parts_.size() == 1) return model_ = part.model(), Status{};
    const Model& model = part.model();
    if (model.id != model_.id || model.step != model_.step || part.sizes() != sizes())
        return fail(Code::data, "{}: step {} of job {}, not of the same state as {}, step {} of job {}", path, model.step, model.id,
                    parts_[0]->path(), model_.step, model_.id);
    model_.digest.clear();
    model_.state += model.state;
    model_.agreed &= model.agreed;
    return {};
}

Status ModelReader::open_alone(const std::string& path) {
    parts_.clear();
    return add(path);
}

Status ModelReader::open(const std::string& path) {
    GC_TRY(open_alone(path));
    if (parts_[0]->whole()) return {};
    const size_t slash = path.rfind('/');
    const std::string folder = slash == path.npos ? "." : path.substr(0, slash);
    CheckpointName name;
    if (!checkpoint_parse(path.substr(slash == path.npos ? 0 : slash + 1), &name) || name.cells == 1)
        return fail(Code::data,
                    "{}: holds a part of a state; under its name, as checkpoint-0000000100-cell-1-of-2.h5, it is found with the others",
                    path);
    const uint32_t own = name.cell;
    for (name.cell = 0; name.cell < name.cells; ++name.cell) {
        if (name.cell == own) continue;
        const std::string other = checkpoint_path(folder, name);
        if (::access(other.c_str(), F_OK) != 0)
            return fail(Code::data, "{}: holds a part of a state: {} is missing beside it, which another node of the job has", path, other);
        GC_TRY(add(other));
    }
    model_.state += splitmix64(model_.step);
    for (const StateVector which : state_vectors) GC_TRY(holds(which, 0, sizes()[which]));
    return {};
}

std::vector<Layout::Run> ModelReader::has(StateVector which) const {
    std::vector<Layout::Run> all;
    for (const auto& part : parts_) all.insert(all.end(), part->runs()[which].begin(), part->runs()[which].end());
    std::ranges::sort(all, {}, &Layout::Run::place);
    return all;
}

StateRuns ModelReader::has() const {
    StateRuns all;
    for (const StateVector which : state_vectors) all[which] = has(which);
    return all;
}

Status ModelReader::holds(StateVector which, uint64_t place, uint64_t count) const {
    const uint64_t size = sizes()[which], end = place + count;
    if (count > size || place > size - count)
        return fail(Code::data, "{}: elements {} to {} of its {} are wanted, it has {}", parts_[0]->path(), place, end - 1,
                    kind_of(which).name, size);
    for (const Layout::Run& run : has(which))
        if (run.place <= place) place = std::max(place, run.place + run.count);
    if (place >= end) return {};
    return fail(Code::data, "{}: its {} from element {} on are missing{}", parts_[0]->path(), kind_of(which).name, place,
                parts_.size() > 1 ? ", and no part beside it has them" : "");
}

Status ModelReader::range(StateVector which, uint64_t place, std::span<std::byte> to) const {
    GC_TRY(holds(which, place, to.size() / kind_of(which).width));
    for (const auto& part : parts_) GC_TRY(part->range(which, place, to));
    return {};
}

Status ModelReader::read(std::span<const StateTarget> targets) {
    for (const StateTarget& target : targets)
        for (const Layout::Run& run : target.runs) {
            GC_ASSERT((run.offset + run.count) * kind_of(target.which).width <= target.to.size());
            GC_TRY(holds(target.which, run.place, run.count));
        }
    for (const auto& part : parts_) GC_TRY(part->read(targets));
    return {};
}

}   // namespace gradcast
