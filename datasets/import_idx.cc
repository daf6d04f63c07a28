// IDX files: MNIST's, and others of its format.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <set>

#include "datasets/import.h"
#include "datasets/source.h"
#include "runtime/core/memory_room.h"

namespace gradcast {
namespace {

/// A file that is open behind its header.  Format: bytes 0 0 8 (uint8) and the number of dimensions, each dimension as a big-endian
/// uint32, the elements.
struct Idx {
    Source source;
    std::vector<uint32_t> dims;
    std::string promise;   // for messages
};

Status idx_open(SourceFolder& folder, const std::string& name, size_t rank, Idx* idx) {
    Source& source = idx->source;
    GC_TRY(folder.find(name, "", &source));
    uint8_t header[4 + 4 * 3];
    if (!source.get(header, 4)) return source.ended("its header");
    if (header[0] != 0 || header[1] != 0 || header[2] != 8 || header[3] != rank)
        return fail(Code::data, "{}: not an IDX file of uint8 with {} dimensions: it begins with {:02x} {:02x} {:02x} {:02x}",
                    source.path(), rank, header[0], header[1], header[2], header[3]);
    if (!source.get(header + 4, 4 * rank)) return source.ended("its header");
    uint64_t total = 1;
    for (size_t i = 0; i < rank; ++i) {
        const uint8_t* at = header + 4 + 4 * i;
        idx->dims.push_back(uint32_t{at[0]} << 24 | uint32_t{at[1]} << 16 | uint32_t{at[2]} << 8 | at[3]);
        if (idx->dims[i] == 0 || (i > 0 && idx->dims[i] > shard_side_max))
            return fail(Code::data, "{}: dimension {} is {}", source.path(), i, idx->dims[i]);
        total *= idx->dims[i];   // at most 2^64 - 2^32
    }
    idx->promise = fmt::format("the {} bytes that its header promises", total);
    return {};
}

/// classes 0: any label is valid.
Status labels_read(SourceFolder& folder, const std::string& name, uint32_t classes, std::string* path, std::vector<int32_t>* labels) {
    Idx idx;
    GC_TRY(idx_open(folder, name, 1, &idx));
    *path = idx.source.path();
    // Memory grows with the bytes that arrive: the header is not trusted.
    uint8_t piece[4096];
    for (uint64_t remaining = idx.dims[0]; remaining > 0;) {
        const uint64_t now = std::min<uint64_t>(remaining, sizeof piece);
        if (!idx.source.get(piece, now)) return idx.source.ended(idx.promise);
        for (uint64_t i = 0; i < now; ++i) {
            if (classes > 0 && piece[i] >= classes) return label_error(*path, labels->size(), piece[i], classes);
            labels->push_back(piece[i]);
        }
        remaining -= now;
    }
    return idx.source.end(idx.promise);
}

/// The samples of one pair of files; those that are `chosen` for testing go to test.
struct IdxPair {
    std::string images, labels;   // names without .gz or .xz; empty: missing
};
Status pair_read(const ImportConfig& config, SourceFolder& folder, const IdxPair& names, uint32_t classes, Set* train, Set* test) {
    std::string path;
    std::vector<int32_t> labels;
    GC_TRY(labels_read(folder, names.labels, classes, &path, &labels));
    Idx idx;
    GC_TRY(idx_open(folder, names.images, 3, &idx));
    if (idx.dims[0] != labels.size())
        return fail(Code::data, "{} has {} labels for the {} images of {}", path, labels.size(), idx.dims[0], idx.source.path());
    const uint64_t bytes = uint64_t{idx.dims[1]} * idx.dims[2];
    if (bytes > shard_sample_bytes_max)
        return fail(Code::data, "{}: images of {} x {} are more than a shard takes, {} MiB each", idx.source.path(), idx.dims[1],
                    idx.dims[2], shard_sample_bytes_max >> 20);
    GC_TRY(memory_room_for(bytes, idx.source.path() + ": an image"));
    const std::vector<bool> chosen = test ? test_choose(config, labels) : std::vector<bool>(labels.size());
    for (Set* set : {train, test})
        if (set) set->H = idx.dims[1], set->W = idx.dims[2];
    std::vector<uint8_t> image(bytes);
    for (uint64_t i = 0; i < labels.size(); ++i) {
        if (!idx.source.get(image.data(), bytes)) return idx.source.ended(idx.promise);
        Set* set = chosen[i] ? test : train;
        set->labels.push_back(labels[i]);
        GC_TRY(set->images.append(image.data(), bytes));
    }
    return idx.source.end(idx.promise);
}

/// Which files there are, by the usual names: [PREFIX-]train-images-idx3-ubyte, t10k or test in place of train, labels-idx1 in place of
/// images-idx3, a dot or _ in place of a hyphen, .gz or .xz behind it, in any case.  Fills in MNIST's names for what is missing.
Status pairs_find(const std::string& from, IdxPair* train, IdxPair* test) {
    namespace fs = std::filesystem;
    struct Found {
        std::set<std::string> names[2][2];   // [train, test][images, labels]
    };
    std::map<std::string, Found> sets;   // by prefix
    std::error_code error;
    for (fs::directory_iterator entry(from, error), end; !error && entry != end; entry.increment(error)) {
        std::string name = entry->path().filename(), word;
        std::error_code ignored;
        if (entry->is_directory(ignored)) continue;
        if (name.ends_with(".gz") || name.ends_with(".xz")) name.resize(name.size() - 3);
        for (const char c : name) word += c == '.' || c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        for (int what : {0, 1})
            for (auto [half, key] : {std::pair{0, "train"}, {1, "t10k"}, {1, "test"}}) {
                const std::string ending = std::string(key) + (what == 0 ? "-images-idx3-ubyte" : "-labels-idx1-ubyte");
                if (word.ends_with(ending)) sets[name.substr(0, name.size() - ending.size())].names[half][what].insert(name);
            }
    }
    if (sets.size() > 1) {
        std::vector<std::string> names;
        for (const auto& [prefix, found] : sets) names.push_back(prefix.empty() ? "train" : prefix);
        return fail(Code::data, "{}: files of several data sets ({}…): put those of one into a folder of its own", from,
                    fmt::join(names, "…, "));
    }
    *train = {"train-images-idx3-ubyte", "train-labels-idx1-ubyte"};
    *test = {};
    if (sets.empty()) return {};   // opening reports the missing name
    auto& found = sets.begin()->second.names;
    for (auto& half : found)
        for (auto& names : half)
            if (names.size() > 1)
                return fail(Code::data, "{}: {} and {} are the same file by two names: remove one", from, *names.begin(), *names.rbegin());
    auto name = [&](int half, int what, const std::string& usual) {
        return found[half][what].empty() ? usual : *found[half][what].begin();
    };
    *train = {name(0, 0, train->images), name(0, 1, train->labels)};
    if (!found[1][0].empty() || !found[1][1].empty()) *test = {name(1, 0, "t10k-images-idx3-ubyte"), name(1, 1, "t10k-labels-idx1-ubyte")};
    return {};
}

}   // namespace

Status idx_sets(const ImportConfig& config, uint32_t classes, Import* import) {
    SourceFolder folder;
    GC_TRY(folder.open(config.from, nullptr, {}));
    IdxPair train_names, test_names;
    GC_TRY(pairs_find(config.from, &train_names, &test_names));
    Set &train = import->train, &test = import->test;
    const bool split = test_names.images.empty();
    if (config.test > 0 && !split)
        return fail(Code::invalid, "--test: {}/{} is there to test on: leave one of them out", config.from, test_names.images);
    GC_TRY(pair_read(config, folder, train_names, classes, &train, split ? &test : nullptr));
    if (split) return {};
    GC_TRY(pair_read(config, folder, test_names, classes, &test, nullptr));
    if (train.H == test.H && train.W == test.W) return {};
    return fail(Code::data, "{}: images for training are {} x {}, those for testing {} x {}", config.from, train.H, train.W, test.H,
                test.W);
}

}   // namespace gradcast
