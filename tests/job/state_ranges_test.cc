// A state as a file by ranges: nodes that have a stage each write and read together what one node with the whole net does.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <map>

#include "runtime/core/digest.h"
#include "runtime/core/fd.h"
#include "runtime/job/model/checkpoint_files.h"
#include "runtime/job/model/model_reader.h"
#include "runtime/job/model/model_writer.h"
#include "tests/datasets/support.h"
#include "tests/nn/rig.h"

namespace gradcast {
namespace {

constexpr uint32_t vectors = 2;   // of the optimiser

ModelVectors vectors_of(uint64_t elements, uint64_t groups) {
    ModelVectors state;
    state.parameters = numbers(elements, 1);
    state.optimiser = numbers(vectors * elements, 2);
    for (uint64_t group = 0; group < groups; ++group) state.exponents.push_back(static_cast<int32_t>(group * group) - 20);
    return state;
}
PerVector<std::span<std::byte>> writable(ModelVectors& state) {
    return {{std::as_writable_bytes(std::span(state.parameters)), std::as_writable_bytes(std::span(state.optimiser)),
             std::as_writable_bytes(std::span(state.exponents)), std::span(state.algorithm)}};
}
bool same(const ModelVectors& a, const ModelVectors& b) {
    const auto x = ModelState(a).bytes(), y = ModelState(b).bytes();
    return std::ranges::equal(x, y, [](auto one, auto other) { return std::ranges::equal(one, other); });
}

/// A net with its state as trained, in one piece and in those of three stages.
struct Cut {
    struct Cell {
        StateRuns runs;
        ModelVectors state;
    };
    explicit Cut(const NetSpec& spec) {
        model.net = spec;
        model.mean.assign(spec.C, 0.4f);
        model.std.assign(spec.C, 0.3f);
        model.job = "[job]\n";
        model.base = "/base";
        model.id = std::string(32, 'd');
        model.step = 7;
        model.agreed = true;
        std::vector<Layer> layers;
        EXPECT_TRUE(layers_check(spec, &layers).ok());
        const Layout all = layers_layout(layers, 1);
        whole = vectors_of(all.elements, all.groups.size());
        whole.algorithm.assign(5, std::byte{3});
        const std::vector<uint32_t> begins = Rig(spec, {.samples_max = 3, .block_sizes = {3}}).net->stage_begins();
        EXPECT_GE(begins.size(), 3u);
        const uint32_t cuts[] = {0, begins[begins.size() / 3], begins[2 * begins.size() / 3], ~0u};
        for (size_t i = 0; i < 3; ++i) {
            const Layout own = layers_layout(layers, 1 << 12, {cuts[i], cuts[i + 1]});
            Cell& cell = cells.emplace_back(Cell{state_runs(own, all, vectors), empty(own)});
            const auto from = ModelState(whole).bytes();
            const auto to = writable(cell.state);
            for (const StateVector which : state_vectors)
                for (const Layout::Run& run : cell.runs[which]) {
                    const uint64_t width = kind_of(which).width;
                    std::ranges::copy(from[which].subspan(run.place * width, run.count * width), &to[which][run.offset * width]);
                }
        }
    }
    static ModelVectors empty(const Layout& own) {
        ModelVectors state;
        state.parameters.resize(own.elements, NAN);
        state.optimiser.resize(vectors * own.elements, NAN);
        state.exponents.resize(own.groups.size(), 1 << 20);
        return state;
    }

    struct Range {
        StateVector which;
        uint64_t place;
        std::span<const std::byte> elements;
    };
    /// Of all cells, ascending in each vector, `elements_max` at a time; the vectors take turns.
    std::vector<Range> ranges(uint64_t elements_max) const {
        std::vector<Range> all;
        for (const Cell& cell : cells)
            for (const StateVector which : state_vectors)
                for (const Layout::Run& run : cell.runs[which])
                    for (uint64_t at = 0, count, width = kind_of(which).width; at < run.count; at += count) {
                        count = std::min(run.count - at, elements_max);
                        all.push_back({which, run.place + at,
                                       ModelState(cell.state).bytes()[which].subspan((run.offset + at) * width, count * width)});
                    }
        all.push_back({StateVector::algorithm, 0, whole.algorithm});
        std::ranges::stable_sort(all, {}, &Range::place);
        return all;
    }
    Status write(const std::string& path, const std::vector<Range>& ranges) const {
        ModelWriter writer;
        GC_TRY(writer.open(path, ModelState(whole).sizes()));
        EXPECT_EQ(writer.digest(), "");
        for (const Range& range : ranges) GC_TRY(writer.add(range.which, range.place, range.elements));
        GC_TRY(writer.close(model));
        EXPECT_EQ(writer.digest(), sha256_hex(std::as_bytes(std::span(whole.parameters))));
        return {};
    }

    Model model;
    ModelVectors whole;
    std::vector<Cell> cells;
};

NetSpec lenet5() {
    NetSpec spec;
    EXPECT_TRUE(preset_find("lenet5", 1, 28, 28, 10, &spec).ok());
    return spec;
}

/// All attributes and data sets of a file: type, shape and bytes.
std::map<std::string, std::string> contents(const std::string& path) {
    std::map<std::string, std::string> all;
    const Hdf5Lock lock;
    const Hid file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT));
    auto put = [&](const std::string& name, const Hid& type, const Hid& space, auto read) {
        std::string bytes(static_cast<size_t>(H5Sget_simple_extent_npoints(space.get())) * H5Tget_size(type.get()), '\0');
        EXPECT_GE(read(type.get(), bytes.data()), 0) << name;
        all[name] =
            fmt::format("{} {} {} ", hdf5_type_name(type.get()), H5Tget_size(type.get()), H5Sget_simple_extent_ndims(space.get())) + bytes;
    };
    H5O_info_t info;
    EXPECT_GE(H5Oget_info2(file.get(), &info, H5O_INFO_NUM_ATTRS), 0);
    for (hsize_t i = 0; i < info.num_attrs; ++i) {
        const Hid attribute(H5Aopen_by_idx(file.get(), ".", H5_INDEX_NAME, H5_ITER_INC, i, H5P_DEFAULT, H5P_DEFAULT));
        char name[64] = "";
        EXPECT_GT(H5Aget_name(attribute.get(), sizeof name, name), 0);
        put(std::string("attribute ") + name, Hid(H5Aget_type(attribute.get())), Hid(H5Aget_space(attribute.get())),
            [&](hid_t type, char* to) { return H5Aread(attribute.get(), type, to); });
    }
    H5G_info_t group;
    EXPECT_GE(H5Gget_info(file.get(), &group), 0);
    for (hsize_t i = 0; i < group.nlinks; ++i) {
        char name[64] = "";
        EXPECT_GT(H5Lget_name_by_idx(file.get(), ".", H5_INDEX_NAME, H5_ITER_INC, i, name, sizeof name, H5P_DEFAULT), 0);
        const Hid data(H5Dopen2(file.get(), name, H5P_DEFAULT));
        put(name, Hid(H5Dget_type(data.get())), Hid(H5Dget_space(data.get())),
            [&](hid_t type, char* to) { return H5Dread(data.get(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, to); });
    }
    return all;
}

TEST(StateRanges, AFileOfThreeStagesIsThatOfTheWhole) {
    const TestFolder folder;
    for (const NetSpec& spec : {lenet5(), everything()}) {
        const Cut cut(spec);
        const std::string one = folder.file("one.h5"), three = folder.file("three.h5");
        ASSERT_TRUE(model_write(one, cut.model, cut.whole).ok());
        const auto expected = contents(one);
        EXPECT_EQ(expected.size(), 19u + 6);
        for (const bool reserved : {false, true})
            for (const uint64_t elements_max : {uint64_t{97}, uint64_t{1} << 31}) {
                if (reserved) {
                    ASSERT_TRUE(model_reserve(three, cut.model, 1 << 20).ok());
                }
                const Status status = cut.write(three, cut.ranges(elements_max));
                ASSERT_TRUE(status.ok()) << status.what;
                EXPECT_TRUE(contents(three) == expected);
                ModelVectors read;
                Model model;
                ASSERT_TRUE(checkpoint_read(three, &model, &read).ok());
                EXPECT_TRUE(same(read, cut.whole));
                EXPECT_LT(std::filesystem::file_size(three), std::filesystem::file_size(one) + 4096);
            }
    }
}

/// What each cell reads of a file; error: of the first that fails.
Status read_cells(const Cut& cut, const std::string& path, std::vector<ModelVectors>* found) {
    for (const Cut::Cell& cell : cut.cells) {
        ModelReader reader;
        GC_TRY(reader.open(path));
        ModelVectors& state = found->emplace_back(cell.state);
        for (const auto& bytes : writable(state)) std::ranges::fill(bytes, std::byte{0xff});
        std::vector<StateTarget> targets;
        for (const StateVector which : state_vectors) targets.push_back({which, cell.runs[which], writable(state)[which]});
        GC_TRY(reader.read(targets));
    }
    return {};
}

TEST(StateRanges, EachStageReadsItsOwn) {
    const TestFolder folder;
    const std::string path = folder.file("whole.h5");
    for (const NetSpec& spec : {lenet5(), everything()}) {
        const Cut cut(spec);
        ASSERT_TRUE(model_write(path, cut.model, cut.whole).ok());
        std::vector<ModelVectors> found;
        const Status status = read_cells(cut, path, &found);
        ASSERT_TRUE(status.ok()) << status.what;
        for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(same(found[i], cut.cells[i].state)) << i;
        ModelReader reader;
        ASSERT_TRUE(reader.open(path).ok());
        std::vector<float> some(10);
        ASSERT_TRUE(reader.range(StateVector::optimiser, 1000, std::as_writable_bytes(std::span(some))).ok());
        EXPECT_TRUE(std::equal(some.begin(), some.end(), cut.whole.optimiser.begin() + 1000));
    }
}

// Whichever node's range it is in, every reader finds it.
TEST(StateRanges, DamageInAnyRangeIsFound) {
    const TestFolder folder;
    const std::string path = folder.file("whole.h5");
    const Cut cut(everything());
    EXPECT_EQ(cut.cells[0].runs[StateVector::parameters].size(), 2u);   // batch norm's statistics lie at the end
    ASSERT_TRUE(model_write(path, cut.model, cut.whole).ok());
    PerVector<uint64_t> at;   // bytes in the file
    {
        const Hdf5Lock lock;
        const Hid file(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT));
        for (const StateVector which : state_vectors)
            at[which] = H5Dget_offset(Hid(H5Dopen2(file.get(), kind_of(which).name, H5P_DEFAULT)).get());
    }
    std::string bytes;
    ASSERT_TRUE(file_read(path, &bytes).ok());
    for (const Cut::Range& range : cut.ranges(1 << 30)) {
        const uint64_t last = range.place + range.elements.size() / kind_of(range.which).width - 1;
        std::string damaged = bytes;
        damaged[at[range.which] + last * kind_of(range.which).width] ^= 1;
        ASSERT_TRUE(file_write(path, damaged).ok());
        const bool parameters = range.which == StateVector::parameters;
        for (const Cut::Cell& cell : cut.cells) {
            ModelReader reader;
            ASSERT_TRUE(reader.open(path).ok());
            std::vector<float> own(cell.state.parameters.size());
            const StateTarget target{StateVector::parameters, cell.runs[StateVector::parameters], std::as_writable_bytes(std::span(own))};
            EXPECT_EQ(reader.read({&target, 1}).what,
                      fmt::format("{}: the digest of its {} differs: the file is damaged", path, parameters ? "parameters" : "content"));
        }
    }
}

TEST(StateRanges, WhatDoesNotCoverTheWholeIsNamed) {
    const TestFolder folder;
    const std::string path = folder.file("short.h5");
    Cut cut(everything());
    const std::vector<Cut::Range> all = cut.ranges(1 << 30);
    auto written = [&](const std::vector<Cut::Range>& ranges) -> std::string {
        const Status status = cut.write(path, ranges);
        EXPECT_FALSE(status.ok());
        EXPECT_TRUE(folder.names().empty());
        return status.what;
    };
    const auto second = std::ranges::find_if(all, [](const auto& each) { return each.place > 0 && each.which == StateVector::parameters; });
    const auto last = std::find_if(all.rbegin(), all.rend(), [](const auto& each) { return each.which == StateVector::parameters; });
    const uint64_t P = cut.whole.parameters.size(), end = second->place + second->elements.size() / 4;
    std::vector<Cut::Range> some = all;
    some.erase(some.begin() + (second - all.begin()));
    EXPECT_EQ(written(some), fmt::format("cannot write {}: elements {} to {} of its parameters are missing", path, second->place, end - 1));
    some = all;
    some.insert(some.begin() + (second - all.begin()), *second);
    EXPECT_EQ(written(some), fmt::format("cannot write {}: element {} of its parameters comes twice", path, second->place));
    some = all;
    some.erase(some.begin() + (all.rend() - last - 1));
    EXPECT_EQ(written(some), fmt::format("cannot write {}: elements {} to {} of its parameters are missing", path, last->place, P - 1));
    some = all;
    some.push_back({StateVector::parameters, P, some.back().elements.first(8)});
    EXPECT_EQ(written(some), fmt::format("cannot write {}: its parameters have {} elements, not {}", path, P, P + 2));
    cut.model.digest = std::string(64, '0');
    EXPECT_EQ(written(all), fmt::format("cannot write {}: its parameters have the digest {}, not {}", path,
                                        sha256_hex(std::as_bytes(std::span(cut.whole.parameters))), cut.model.digest));
    cut.model.digest.clear();
    {
        ModelWriter unfinished;
        ASSERT_TRUE(unfinished.open(path, ModelState(cut.whole).sizes()).ok());
        EXPECT_EQ(folder.names().size(), 1u);
    }
    EXPECT_TRUE(folder.names().empty());

    ASSERT_TRUE(model_write(path, cut.model, {cut.whole.parameters, {}, {}, {}}).ok());
    std::vector<ModelVectors> found;
    EXPECT_EQ(read_cells(cut, path, &found).what, fmt::format("{}: elements 0 to {} of its optimiser are wanted, it has 0", path,
                                                              cut.cells[0].runs[StateVector::optimiser][0].count - 1));
}

// Each stage writes its own part, and they are read together as one file is.
TEST(StateRanges, PartsAreReadAsTheWholeIs) {
    const TestFolder folder;
    for (const NetSpec& spec : {lenet5(), everything()}) {
        Cut cut(spec);
        cut.whole.algorithm.clear();
        const StateSizes sizes = ModelState(cut.whole).sizes();
        const auto path = [&](uint32_t cell) { return checkpoint_path(folder.path.string(), {7, cell, 3}); };
        for (uint32_t cell = 0; cell < 3; ++cell) {
            cut.model.state = cell + 1;
            ASSERT_TRUE(model_write(path(cell), cut.model, cut.cells[cell].state, sizes, cut.cells[cell].runs).ok());
            ModelPart part;
            ASSERT_TRUE(part.open(path(cell)).ok());
            ASSERT_TRUE(part.read({}).ok());
            EXPECT_FALSE(part.whole());
            EXPECT_EQ(part.sizes(), sizes);
            EXPECT_EQ(part.model().digest, sha256_hex(std::as_bytes(std::span(cut.cells[cell].state.parameters))));
        }
        for (uint32_t cell = 0; cell < 3; ++cell) {
            Model model;
            ModelVectors read;
            const Status status = checkpoint_read(path(cell), &model, &read);
            ASSERT_TRUE(status.ok()) << status.what;
            EXPECT_TRUE(same(read, cut.whole));
            EXPECT_EQ(model.digest, sha256_hex(std::as_bytes(std::span(cut.whole.parameters))));
            EXPECT_EQ(model.state, splitmix64(7) + 1 + 2 + 3);
        }
        std::vector<ModelVectors> found;
        const Status status = read_cells(cut, path(1), &found);
        ASSERT_TRUE(status.ok()) << status.what;
        for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(same(found[i], cut.cells[i].state)) << i;
        ModelReader reader;
        ASSERT_TRUE(reader.open(path(0)).ok());
        std::vector<float> all(sizes[StateVector::optimiser]);   // over the bounds of all parts
        ASSERT_TRUE(reader.range(StateVector::optimiser, 0, std::as_writable_bytes(std::span(all))).ok());
        EXPECT_EQ(all, cut.whole.optimiser);
        ASSERT_TRUE(reader.open_alone(path(2)).ok());
        EXPECT_PRED2([](std::string_view text, std::string_view part) { return text.find(part) != text.npos; },
                     reader.range(StateVector::parameters, 0, std::as_writable_bytes(std::span(all).first(1))).what,
                     ": its parameters from element 0 on are missing");
    }
}

TEST(StateRanges, PartsThatDoNotFitAreNamed) {
    const TestFolder folder;
    Cut cut(everything());
    cut.whole.algorithm.clear();
    const StateSizes sizes = ModelState(cut.whole).sizes();
    auto path = [&](uint32_t cell) { return checkpoint_path(folder.path.string(), {7, cell, 3}); };
    auto write = [&](uint32_t cell, uint32_t of) {
        ASSERT_TRUE(model_write(path(cell), cut.model, cut.cells[of].state, sizes, cut.cells[of].runs).ok());
    };
    Model model;
    for (uint32_t cell = 0; cell < 3; ++cell) write(cell, cell);
    ASSERT_TRUE(checkpoint_check(path(0), &model).ok());
    write(1, 2);   // another cut
    const auto missing = cut.cells[1].runs[StateVector::parameters][0].place;
    EXPECT_EQ(checkpoint_check(path(0), &model).what,
              fmt::format("{}: its parameters from element {} on are missing, and no part beside it has them", path(0), missing));
    cut.model.id = std::string(32, 'e');
    write(1, 1);
    EXPECT_EQ(checkpoint_check(path(0), &model).what, fmt::format("{}: step 7 of job {}, not of the same state as {}, step 7 of job {}",
                                                                  path(1), std::string(32, 'e'), path(0), std::string(32, 'd')));
    std::filesystem::rename(path(0), folder.file("first.h5"));
    EXPECT_EQ(checkpoint_check(folder.file("first.h5"), &model).what,
              folder.file("first.h5") +
                  ": holds a part of a state; under its name, as checkpoint-0000000100-cell-1-of-2.h5, it is found with the "
                  "others");

    // Ranges that lie outside, overlap or are more than the vectors have.
    cut.model.id = std::string(32, 'd');
    for (const size_t wrong : {0, 1, 2}) {
        write(0, 0);
        {
            const Hdf5Lock lock;
            const Hid file(H5Fopen(path(0).c_str(), H5F_ACC_RDWR, H5P_DEFAULT));
            const Hid data(H5Dopen2(file.get(), "ranges", H5P_DEFAULT));
            std::vector<uint64_t> values = ranges_values(cut.cells[0].runs);
            if (wrong == 0) values[1] = ~uint64_t{0} - 3;
            if (wrong == 1) values[2] += 1;
            if (wrong == 2) values[0] = 9;
            ASSERT_GE(H5Dwrite(data.get(), H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
        }
        EXPECT_EQ(checkpoint_check(path(0), &model).what,
                  fmt::format("{}: not a gradcast model: ranges {}", path(0),
                              wrong == 1 ? "are not those of its vectors" : "is not a list of ranges"));
    }
}

TEST(StateRanges, ADiskThatFillsUpLeavesNoFile) {
    const TestFolder folder;
    const std::string path = folder.file("large.h5");
    const Cut cut(lenet5());
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    auto handler = std::signal(SIGXFSZ, SIG_IGN);
    for (const rlim_t bytes : {100, 100'000, 600'000}) {   // in the head, in the parameters, in the optimiser's state
        ModelWriter writer;
        rlimit small = before;
        small.rlim_cur = bytes;
        ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
        Status status = writer.open(path, ModelState(cut.whole).sizes());
        for (const Cut::Range& range : cut.ranges(1000))
            if (status.ok()) status = writer.add(range.which, range.place, range.elements);
        if (status.ok()) status = writer.close(cut.model);
        ::setrlimit(RLIMIT_FSIZE, &before);
        EXPECT_EQ(status.what, "cannot write " + path + ": File too large") << bytes;
        EXPECT_TRUE(folder.names().empty());
    }
    std::signal(SIGXFSZ, handler);
    EXPECT_TRUE(cut.write(path, cut.ranges(1000)).ok());   // the library can still be used
}

}   // namespace
}   // namespace gradcast
