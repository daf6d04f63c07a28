// The commands on data sets: import, inspect.
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <numeric>

#include "datasets/image.h"
#include "datasets/import.h"
#include "datasets/reader.h"
#include "datasets/shard.h"
#include "runtime/control/cli_docs.h"
#include "runtime/control/json.h"
#include "runtime/core/amount.h"
#include "runtime/core/clock.h"
#include "runtime/core/cpu_room.h"
#include "runtime/core/fd.h"
#include "runtime/core/nearest.h"
#include "runtime/job/model/tensors.h"
#include "tools/gradcastctl/commands.h"
#include "tools/gradcastctl/out_file.h"
#include "tools/gradcastctl/print.h"

namespace gradcast {

/// A line on a terminal that says how far an import is.
class ImportLine {
public:
    ~ImportLine() {
        if (shown_) fmt::print(stderr, "\r\x1b[K");
    }
    void show(const ImportProgress& progress) {
        if (!terminal_) return;
        if (!shown_ || headers_ != progress.headers) {
            began_us_ = clock_us();
            began_ = progress.done;
        }
        shown_ = true;
        headers_ = progress.headers;
        const double seconds = static_cast<double>(clock_us() - began_us_) * 1e-6;
        const bool images = progress.files > 0;
        std::string text = images ? fmt::format("{} of {} images {}", progress.done, progress.files, headers_ ? "looked at" : "decoded")
                                  : fmt::format("{} MiB taken", progress.done);
        if (const double rate = static_cast<double>(progress.done - began_) / seconds; images && seconds > 1 && rate > 0)
            text += fmt::format(", {:.0f}/s, {} left", rate, text_seconds(static_cast<double>(progress.files - progress.done) / rate));
        fmt::print(stderr, "\r{}\x1b[K", text);
        std::fflush(stderr);
    }

private:
    const bool terminal_ = ::isatty(STDERR_FILENO) != 0;
    bool shown_ = false, headers_ = false;
    uint64_t began_us_ = 0, began_ = 0;
};

/// The paths of a data set's half, or how many there are.
static void print_paths(const std::vector<std::string>& paths, std::string_view half) {
    constexpr size_t shown_max = 4;
    std::vector<std::string> of;
    for (const std::string& path : paths)
        if (path.substr(path.rfind('/') + 1).starts_with(half)) of.push_back(path);
    if (of.size() > shown_max) fmt::print("{} … {}, {} shards\n", of.front(), of.back(), of.size());
    else
        for (const std::string& path : of) fmt::print("{}\n", path);
}

/// False: it is no number.
static bool number_parse(const std::string& text, uint32_t* number) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
    return error == std::errc() && end == text.data() + text.size();
}

static int command_import(const Options& options, ImportConfig config, const std::string& test, const std::string& shard_size) {
    const std::vector<std::string>& kinds = import_kinds();
    if (std::find(kinds.begin(), kinds.end(), config.kind) == kinds.end()) {
        std::string best = nearest(config.kind, kinds);
        return complain(exit_usage, "{} is not a kind of data set that can be imported{}: one of {}", config.kind,
                        best.empty() ? "" : ", did you mean " + best + "?", fmt::join(kinds, ", "));
    }
    if (!test.empty() && !parse_share(test, &config.test)) return complain(exit_usage, "--test {}: a share is needed, as 10%", test);
    if (!shard_size.empty())
        if (const Status status = bytes_parse(shard_size, &config.shard_bytes); !status.ok())
            return complain(exit_usage, "--shard-size {}", status.what);
    if (config.threads == 0) config.threads = cpu_room().threads();
    // Blocks that are as large as an image go back to the system at once: the heaps of many threads would keep them.
    ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
    ImportResult result;
    Status status;
    {
        ImportLine line;
        config.progress = [&](const ImportProgress& progress) { line.show(progress); };
        status = data_import(config, &result);
    }
    for (const std::string& note : result.notes) fmt::print(stderr, "{}\n", note);
    if (!status.ok()) return complain(exit_failed, "{}", status.what);
    if (options.json) {
        fmt::print("{}\n",
                   json_text(Json{{"paths", result.paths}, {"train", result.train}, {"test", result.test}, {"notes", result.notes}}, 2));
        return exit_done;
    }
    for (const char* half : {"train", "test"}) print_paths(result.paths, half);
    const bool text = config.kind == "text" || config.kind == "tokens";
    fmt::print("{} {} to train on, {} to test on\n", result.train, text ? "tokens" : "samples", result.test);
    return exit_done;
}

const char* shard_help() {
    return "A shard is an HDF5 file, which any program can write:\n"
           "\n"
           "    /          attributes: format \"gradcast shard\", version 1, classes, mean [C] and std [C] of pixels scaled to 0 .. 1 "
           "(test data\n"
           "               have those of the training data), source, digest_samples; optional: class_names (with commas between)\n"
           "    /images    uint8 [N, C, H, W], contiguous, or whole samples in chunks and deflated\n"
           "    /labels    uint8, uint16 above 256 classes, [N], contiguous: 0 .. classes - 1\n"
           "    both have the attribute sha256: 64 hex digits for each digest_samples samples, at most 512 of them\n"
           "\n"
           "Samples of other types or with targets are in version 2: /samples uint8, uint16, uint32 or float32 [N, C, H, W] in place of\n"
           "/images; /targets uint8 or uint16 [N] of labels, or float32 [N, K] with classes=1, in place of /labels.  mean and std of "
           "other\n"
           "elements than uint8 are not scaled.  A text has /samples uint16 or uint32 [N], no targets, and the attribute vocabulary.\n"
           "Pictures of many sizes are baseline JPEGs, one after another, in /samples uint8 [bytes], contiguous; /offsets uint64 [N + 1] "
           "says\n"
           "where each begins and has one sha256.  Attributes: side, of all short sides, longest, of any side, and channels, 1 or 3.\n"
           "\n"
           "Text is of fixed length (numpy.bytes_).  With h5py, of images [N, C, H, W] (transpose(0, 3, 1, 2) makes them of [N, H, W, C])\n"
           "and labels [N] from 0:\n"
           "\n"
           "    import h5py, hashlib, numpy\n"
           "    images, labels = numpy.ascontiguousarray(images, \"uint8\"), labels.astype(\"uint8\")\n"
           "    each = -(-len(images) // 512)\n"
           "    with h5py.File(\"train.h5\", \"w\") as f:\n"
           "        f.attrs.update(format=numpy.bytes_(\"gradcast shard\"), version=1, classes=10, source=numpy.bytes_(\"mine\"),\n"
           "                       mean=(images.mean((0, 2, 3)) / 255).astype(\"f4\"), std=(images.std((0, 2, 3)) / 255).astype(\"f4\"),\n"
           "                       digest_samples=each)\n"
           "        for name, data in (\"images\", images), (\"labels\", labels):\n"
           "            f[name] = data\n"
           "            f[name].attrs[\"sha256\"] = numpy.array([hashlib.sha256(data[i:i + each]).hexdigest() for i in range(0, len(data), "
           "each)], \"S64\")\n"
           "\n"
           "gradcastctl data inspect train.h5 checks it.  gradcastctl import npy needs images.npy and labels.npy alone.\n";
}

/// A row for each class with its first samples; where there are too many classes, the first samples of all.
static Status sheet_write(const DataSet& data, const std::vector<int32_t>& labels, const std::string& path) {
    constexpr uint64_t columns = 10, rows_max = 100, pixels_max = 64 << 20;
    const DataInfo& info = data.info();
    if (info.element != Element::u8)
        return fail(Code::invalid, "{}: a contact sheet shows images, and these samples are {}: leave --sheet out", data.pattern(),
                    element_name(info.element));
    const bool by_class = info.classes <= rows_max;
    const uint64_t H = info.H + 1, W = info.W + 1;   // with a gap
    const uint64_t rows = std::min(by_class ? info.classes : columns, pixels_max / (columns * H * W));
    if (rows == 0) return fail(Code::invalid, "{}: images of {} x {} are too large for a contact sheet", data.pattern(), info.H, info.W);
    std::vector<uint8_t> pixels(rows * H * columns * W * 3, 255), image(data.sample_bytes());
    std::vector<uint64_t> filled(rows);
    for (uint64_t i = 0, remaining = rows * columns; i < info.count && remaining > 0; ++i) {
        uint64_t row = by_class ? static_cast<uint64_t>(labels[i]) : i / columns;
        if (row >= rows || filled[row] == columns) continue;
        int32_t label;
        GC_TRY(data.read(std::span(&i, 1), image.data(), &label));
        uint8_t* cell = pixels.data() + (row * H * columns * W + filled[row]++ * W) * 3;
        --remaining;
        for (uint64_t y = 0; y < info.H; ++y)
            for (uint64_t x = 0; x < info.W; ++x)
                for (uint64_t c = 0; c < 3; ++c)   // of fewer than 3 channels the first
                    cell[(y * columns * W + x) * 3 + c] = image[((info.C < 3 ? 0 : c) * info.H + y) * info.W + x];
    }
    return png_write(path, static_cast<uint32_t>(rows * H), static_cast<uint32_t>(columns * W), pixels.data());
}

/// Data sets are looked at once, in order: a cache of their chunks has room for one.
static const DataOptions look{.look = true, .inflated_max = 1};

/// All of them as one data set; `name` is for messages.
static Status shards_open(const std::vector<std::string>& patterns, const std::string& name, std::unique_ptr<DataSet>* data) {
    Manifest manifest;
    for (const std::string& pattern : patterns) GC_TRY(shards_find(pattern, false, &manifest.shards));
    return data_open(manifest, name, data, look);
}

/// Shards and manifests that were read.
static std::vector<std::string> files_of(std::vector<std::string> files, const DataSet& data) {
    for (const Shard& shard : data.shards()) files.push_back(shard.path);
    return files;
}

static void print_samples(const DataInfo& info) {
    fmt::print("{}\n", info.source);
    if (info.vocabulary > 0)
        return fmt::print("{} tokens, {}, of a vocabulary of {}\n", info.count, element_name(info.element), info.vocabulary);
    if (info.pictures())
        fmt::print("{} pictures of {} channels, the short side {}, no side above {}\n", info.count, info.C, info.side, info.longest);
    else
        fmt::print("{} samples of {} x {} x {}{}\n", info.count, info.C, info.H, info.W,
                   info.element == Element::u8 ? "" : fmt::format(", {}", element_name(info.element)));
    fmt::print("mean {:.4f}\nstd {:.4f}\n", fmt::join(info.mean, ", "), fmt::join(info.std, ", "));
    if (info.targets > 0) fmt::print("{} targets a sample, {}\n", info.targets, element_name(info.target_element));
}

/// What labels are; counts: samples of each class.
static void print_classes(const DataInfo& info, const std::vector<uint64_t>& counts, const std::string& names) {
    if (info.target_scale > 0) return fmt::print("a regression: the target is (label - {}) * {}\n", info.classes / 2, info.target_scale);
    const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
    const std::string samples = *least == *most ? std::to_string(*most) : fmt::format("{} to {}", *least, *most);
    fmt::print("{} classes of {} samples{}\n", info.classes, samples, names.empty() ? "" : ": " + names);
    std::vector<std::string> empty;
    const std::vector<std::string> all = class_names_split(names);
    for (size_t i = 0; i < counts.size(); ++i)
        if (counts[i] == 0) empty.push_back(i < all.size() ? fmt::format("{} ({})", i, all[i]) : std::to_string(i));
    if (!empty.empty()) fmt::print("{} classes have no sample: {}\n", empty.size(), fmt::join(empty, ", "));
}

static int command_inspect(const Options& options, const std::vector<std::string>& patterns, const std::string& sheet, bool force) {
    std::unique_ptr<DataSet> data;
    Status status = patterns.size() == 1 ? data_open(patterns[0], &data, look) : shards_open(patterns, patterns[0], &data);
    if (!status.ok()) return complain(exit_failed, "{}", status.what);
    if (const int exit = sheet.empty() ? exit_done : out_check(sheet, files_of(patterns, *data), force); exit != exit_done) return exit;
    if (status = data_verify(*data); !status.ok()) return complain(exit_failed, "{}", status.what);
    const DataInfo& info = data->info();
    const uint64_t labelled = info.targets > 0 || info.vocabulary > 0 ? 0 : info.count;
    std::vector<uint64_t> indices(labelled), counts(info.classes);
    std::vector<int32_t> labels(labelled);
    std::iota(indices.begin(), indices.end(), 0);
    data->labels(indices, labels.data());
    for (int32_t label : labels) ++counts[static_cast<size_t>(label)];
    if (!sheet.empty()) {
        status = sheet_write(*data, labels, sheet);
        if (!status.ok()) return complain(exit_failed, "{}", status.what);
    }
    const std::string names = data->shards()[0].info.class_names;
    if (options.json) {
        Json json{{"samples", info.count},   {"shape", {info.C, info.H, info.W}},
                  {"classes", info.classes}, {"class_names", class_names_split(names)},
                  {"source", info.source},   {"mean", info.mean},
                  {"std", info.std},         {"digest", data->digest()}};
        if (info.element != Element::u8) json["element"] = element_name(info.element);
        if (info.pictures()) json["pictures"] = {{"side", info.side}, {"longest", info.longest}};
        if (info.vocabulary > 0) json["vocabulary"] = info.vocabulary;
        if (info.targets > 0) json["targets"] = {{"element", element_name(info.target_element)}, {"count", info.targets}};
        else if (info.target_scale > 0) json["target_scale"] = info.target_scale;
        else json["count_of_class"] = counts;
        for (const Shard& shard : data->shards()) json["shards"].push_back({{"path", shard.path}, {"samples", shard.info.count}});
        fmt::print("{}\n", json_text(json, 2));
        return exit_done;
    }
    for (const Shard& shard : data->shards())
        fmt::print("{}: {} {}\n", shard.path, shard.info.count, info.vocabulary > 0 ? "tokens" : "samples");
    print_samples(info);
    if (labelled > 0) print_classes(info, counts, names);
    fmt::print("digest {}, every chunk is as it was written\n", data->digest());
    return exit_done;
}

static int command_manifest(const Options& options, const std::string& path, const std::vector<std::string>& patterns, bool force) {
    if (!is_manifest(path)) return complain(exit_usage, "{}: the name of a manifest ends in .toml", path);
    std::unique_ptr<DataSet> data;
    Status status = shards_open(patterns, path, &data);
    if (!status.ok()) return complain(exit_failed, "{}", status.what);
    if (const int exit = out_check(path, files_of(patterns, *data), force); exit != exit_done) return exit;
    if (status = data_verify(*data); !status.ok()) return complain(exit_failed, "{}", status.what);
    const std::filesystem::path folder = std::filesystem::absolute(path).lexically_normal().parent_path();
    std::string text = fmt::format("digest = \"{}\"\nshards = [\n", data->digest());
    for (const Shard& shard : data->shards()) {
        std::filesystem::path relative = std::filesystem::absolute(shard.path).lexically_normal().lexically_relative(folder);
        text += fmt::format("    {{ path = {}, samples = {} }},\n", json_text(Json(relative.string())), shard.info.count);
    }
    status = file_write(path, text + "]\n");
    if (!status.ok()) return complain(exit_failed, "{}", status.what);
    const uint64_t samples = data->info().count, shards = data->shards().size();
    if (options.json)
        fmt::print("{}\n", json_text(Json{{"path", path}, {"samples", samples}, {"shards", shards}, {"digest", data->digest()}}, 2));
    else fmt::print("{}\n{} samples in {} shard{}\ndigest {}\n", path, samples, shards, shards == 1 ? "" : "s", data->digest());
    return exit_done;
}

// ---- command line --------------------------------------------------------------------------------------------------------------

void add_import(Cli& cli) {
    struct Flags {
        ImportConfig import;
        std::string test, shard_size, vocabulary, store = "pixels";
    };
    Flags& f = cli.keep<Flags>();
    ImportConfig& import = f.import;
    CLI::App* command = cli.add(models_group, "import", "write a data set as shards", [&] {
        if (f.import.kind != "tokens" || !number_parse(f.vocabulary, &f.import.vocabulary)) f.import.vocabulary_file = f.vocabulary;
        f.import.pictures = f.store == "jpeg";
        return command_import(cli.options, f.import, f.test, f.shard_size);
    });
    command->add_option("KIND", import.kind, "what the source is")->required()->type_name(type_of_words(import_kinds()));
    command->add_option(
        "FROM,--from", import.from,
        "folder of the original files, CIFAR's archive or a table (default of fashion-mnist: where Debian's package puts it)");
    command->add_option("--out", import.out, "folder for train.h5 and test.h5, or train-00000.h5, train-00001.h5, …")->required();
    command->add_option("--shard-size", f.shard_size,
                        "samples of a shard, as 512MiB (default: 256MiB); a larger half has several, which 'train*.h5' names");
    command->add_flag("--compress{6}", import.compress, "deflated chunks, --compress=9 for the smallest")->check(CLI::Range(1, 9));
    command->add_option("--samples", import.samples, "of ridge: how many to train on")
        ->capture_default_str()
        ->check(CLI::Range(uint64_t{1}, ridge_samples_max));
    command->add_option("--seed", import.seed, "of ridge and --test: which random numbers")->capture_default_str();
    command->add_option("--test", f.test, "a share of each class to test on, as 10%, where the source has no samples to test on");
    command->add_option("--size", import.size, fmt::format("of images: {}", size_help))->check(CLI::Range(uint32_t{1}, import_side_max));
    command
        ->add_option("--store", f.store,
                     "of images: pixels, or jpeg: pictures of many shapes, whose short side --size resizes, stored as JPEGs")
        ->capture_default_str()
        ->check(CLI::IsMember({"pixels", "jpeg"}));
    command->add_flag_callback(
        "--no-exif", [&] { import.exif = false; }, fmt::format("of images: {}", exif_help));
    command->add_option("--by", import.by, "of text: what a token is")
        ->capture_default_str()
        ->check(CLI::IsMember({"characters", "bytes"}));
    command->add_flag("--wide", import.wide_tokens, "of tokens without a header: they have 32 bits, not 16");
    command->add_option(
        "--vocabulary", f.vocabulary,
        "of text and tokens: merges.txt of GPT-2, vocab.json with it, or their folder; of tokens also a number that all are below");
    command->add_option("--label", import.label, "of table: the column of classes, by its name or number");
    command->add_option("--target", import.targets, "of table: a column of numbers to predict; also several times")
        ->allow_extra_args(false);
    command->add_option("--without", import.without, "of table: a column to leave out; also several times")->allow_extra_args(false);
    command->add_flag("--skip-bad", import.skip_bad, "of images: leave out the files that cannot be read, and name them");
    import.threads = 0;
    command->add_option("--threads", import.threads, "of images: that decode (default: as many as CPUs)")->check(CLI::Range(1, 1024));
    command->add_flag("--force", import.force, "replace shards that are there, all files of an earlier import");
    command->footer(
        "images: a folder of PNG and JPEG for each class; or train/ (training/) and test/ (testing/, val/, valid/, validation/) of such,\n"
        "    in any case.  Pixels are the values that a file holds, as OpenCV reads them: of 16 bits the high byte; gamma and colour\n"
        "    profiles are not applied; transparency is dropped.  What was so is counted and named.\n"
        "    An import of images, masks, a text or tokens that is killed goes on when the same command is given again.\n"
        "idx: {train,t10k}-{images-idx3,labels-idx1}-ubyte, as mnist has them, also with a dot for a hyphen, test for t10k, or a name\n"
        "    before it, as EMNIST has; .gz or .xz\n"
        "npy: images.npy, uint8 [N, H, W], [N, C, H, W] or [N, H, W, C]; labels.npy, integers [N]; test-images.npy and test-labels.npy\n"
        "masks: images/ and masks/ with a PNG of the same name for each, or train/ and test/ (val/) of such; its values are the classes\n"
        "table: a CSV file (commas, semicolons or tabs; .gz, .xz), or a folder with train.csv and test.csv; a row is a sample, a column\n"
        "    a value of it, and --label or --target what is to be learnt\n"
        "text: a file of UTF-8, or a folder with train.txt and test.txt (val.txt); tokens: .bin files of little-endian integers, as\n"
        "    nanoGPT and llm.c write them, likewise.  A job says the length of a sample: [data] context.  --test takes the end\n"
        "ridge: made, it needs no --from");
}

void add_inspect(Cli& cli) {
    struct Flags {
        std::vector<std::string> shards;
        std::string sheet;
        bool force = false;
    };
    Flags& f = cli.keep<Flags>();
    CLI::App* command =
        cli.add_below(models_group, "data", "look at data sets", "inspect", "show what shards hold, and verify every digest",
                      [&] { return command_inspect(cli.options, f.shards, f.sheet, f.force); });
    command->add_option("SHARDS", f.shards, "paths or patterns, or a manifest")->required();
    command->add_option("--sheet", f.sheet, "write a contact sheet to this PNG");
    cli.force(command, f.force);
}

void add_manifest(Cli& cli) {
    struct Flags {
        std::string out;
        std::vector<std::string> shards;
        bool force = false;
    };
    Flags& f = cli.keep<Flags>();
    CLI::App* command = cli.add_below(models_group, "data", "look at data sets", "manifest",
                                      "make shards one data set: their paths, samples and digest in a TOML file",
                                      [&] { return command_manifest(cli.options, f.out, f.shards, f.force); });
    command->add_option("OUT", f.out, "the manifest, a name that ends in .toml")->required();
    command->add_option("SHARDS", f.shards, "paths or patterns, in the order that the samples shall have")->required();
    cli.force(command, f.force);
}

}   // namespace gradcast
