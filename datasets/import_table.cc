// A table of numbers (CSV, also with semicolons or tabs between): a row is a sample, a column a channel.  One column has classes, or
// some have floats.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <span>

#include "datasets/import.h"
#include "datasets/source.h"
#include "runtime/core/nearest.h"

namespace gradcast {
namespace {

constexpr uint64_t line_bytes_max = 16 << 20;

/// Fields of a line.  False: a quote is not closed.
bool fields_of(std::string_view line, char separator, std::vector<std::string>* fields) {
    fields->assign(1, "");
    bool quoted = false;
    for (size_t i = 0; i < line.size(); ++i) {
        const char c = line[i];
        if (c == '"' && quoted && i + 1 < line.size() && line[i + 1] == '"') fields->back() += line[++i];
        else if (c == '"' && (quoted || fields->back().find_first_not_of(' ') == std::string::npos)) quoted = !quoted;
        else if (c == separator && !quoted) fields->emplace_back();
        else fields->back() += c;
    }
    for (std::string& field : *fields) {
        field.erase(0, std::min(field.find_first_not_of(' '), field.size()));
        field.erase(field.find_last_not_of(' ') + 1);
    }
    return !quoted;
}

std::optional<double> number_of(std::string_view text) {
    if (text.starts_with('+')) text.remove_prefix(1);
    double value = 0;
    const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
    if (text.empty() || read.ec == std::errc::invalid_argument || read.ptr != text.data() + text.size()) return {};
    return value;
}

/// The lines of a file.
class Lines {
public:
    Status open(const std::string& path) { return source_.open(path); }
    const std::string& path() const { return source_.path(); }
    uint64_t number() const { return number_; }
    /// *line: the next one that is not empty, without its end.  *any: there is one.
    Status next(std::string* line, bool* any) {
        for (line->clear();;) {
            const auto rest = std::string_view(text_).substr(at_);
            const size_t end = rest.find('\n');
            if (end == rest.npos && !ended_) {
                if (line->size() + rest.size() > line_bytes_max)
                    return fail(Code::data, "{}: line {} is longer than {} MiB: is it a table?", path(), number_ + 1, line_bytes_max >> 20);
                line->append(rest);
                text_.resize(1 << 16);
                text_.resize(source_.read(reinterpret_cast<uint8_t*>(text_.data()), text_.size()));
                at_ = 0;
                ended_ = text_.empty();
                continue;
            }
            line->append(rest.substr(0, end));
            at_ = end == rest.npos ? text_.size() : at_ + end + 1;
            ++number_;
            if (line->ends_with('\r')) line->pop_back();
            if (number_ == 1 && line->starts_with("\xEF\xBB\xBF")) line->erase(0, 3);   // byte order mark
            *any = line->find_first_not_of(' ') != std::string::npos;
            if (*any) return {};
            if (end == rest.npos) return source_.end("its lines");
            line->clear();
        }
    }

private:
    Source source_;
    std::string text_;
    size_t at_ = 0;
    uint64_t number_ = 0;
    bool ended_ = false;
};

/// What a table's columns are.
struct Columns {
    std::vector<std::string> names;   // by column; empty: the table has no header
    std::vector<size_t> features, targets;
    std::optional<size_t> label;
    char separator = ',';
    std::string shown(size_t column) const { return names.empty() ? std::to_string(column + 1) : names[column]; }
};

/// A column by its name or its number, from 1.
Status column_find(const std::string& path, const Columns& columns, size_t count, const std::string& wanted, const char* flag,
                   size_t* column) {
    const auto named = std::ranges::find(columns.names, wanted);
    size_t number = 0;
    const auto read = std::from_chars(wanted.data(), wanted.data() + wanted.size(), number);
    if (named != columns.names.end()) *column = static_cast<size_t>(named - columns.names.begin());
    else if (read.ec == std::errc() && read.ptr == wanted.data() + wanted.size() && number >= 1 && number <= count) *column = number - 1;
    else
        return fail(Code::invalid, "--{} {}: {} has no such column: {}", flag, wanted, path,
                    columns.names.empty()
                        ? fmt::format("it has no names, and numbers 1 to {}", count)
                        : fmt::format("its columns are {}", fmt::join(std::span(columns.names).first(std::min<size_t>(count, 20)), ", ")));
    return {};
}

/// Calls row(line's number, fields) for each row.
template <typename Row>
Status rows(const std::string& path, const ImportConfig& config, Columns* columns, Row row) {
    Lines lines;
    GC_TRY(lines.open(path));
    std::string line;
    std::vector<std::string> fields;
    size_t count = 0;
    for (;;) {
        bool any = false;
        GC_TRY(lines.next(&line, &any));
        if (!any) break;
        const bool first = count == 0;
        if (first) {
            const auto has = [&](char c) { return line.find(c) != std::string::npos; };
            columns->separator = has('\t') ? '\t' : has(';') ? ';' : ',';
        }
        if (!fields_of(line, columns->separator, &fields))
            return fail(Code::data, "{}: line {}: a quote is not closed: a field over several lines is not read", path, lines.number());
        if (first) {
            count = fields.size();
            if (count > shard_side_max) return fail(Code::data, "{}: {} columns are more than {}", path, count, shard_side_max);
            columns->names.clear(), columns->features.clear(), columns->targets.clear(), columns->label.reset();
            const bool header = std::ranges::none_of(fields, [](const std::string& field) { return number_of(field).has_value(); });
            if (header) columns->names = fields;
            std::vector<bool> taken(count);
            const auto take = [&](const std::string& wanted, const char* flag, auto&& to) -> Status {
                size_t column = 0;
                GC_TRY(column_find(path, *columns, count, wanted, flag, &column));
                if (taken[column]) return fail(Code::invalid, "--{} {}: the column is named twice", flag, wanted);
                taken[column] = true;
                return to(column), Status{};
            };
            if (!config.label.empty()) GC_TRY(take(config.label, "label", [&](size_t column) { columns->label = column; }));
            for (const std::string& each : config.targets)
                GC_TRY(take(each, "target", [&](size_t column) { columns->targets.push_back(column); }));
            for (const std::string& each : config.without) GC_TRY(take(each, "without", [](size_t) {}));
            for (size_t i = 0; i < count; ++i)
                if (!taken[i]) columns->features.push_back(i);
            if (columns->features.empty()) return fail(Code::data, "{}: no column is left to learn from", path);
            if (header) continue;
        }
        if (fields.size() != count)
            return fail(Code::data, "{}: line {} has {} fields, but the first one {}", path, lines.number(), fields.size(), count);
        GC_TRY(row(lines.number(), fields));
    }
    if (count == 0) return fail(Code::data, "{}: empty", path);
    return {};
}

/// A number column's field.
Status value_of(const std::string& path, const Columns& columns, uint64_t line, const std::vector<std::string>& fields, size_t column,
                float* value) {
    const std::string& field = fields[column];
    const auto wrong = [&](std::string_view what) {
        return fail(Code::data, "{}: line {}, column {}: {}, or leave the column out (--without {})", path, line, columns.shown(column),
                    what, columns.shown(column));
    };
    if (field.empty()) return wrong("it is empty: fill it");
    const std::optional<double> number = number_of(field);
    if (!number) return wrong(fmt::format("\"{}\" is no number: make it one", one_line(field.substr(0, 40))));
    *value = static_cast<float>(*number);
    if (!std::isfinite(*value)) return wrong(fmt::format("{} is not a finite float: correct it", one_line(field.substr(0, 40))));
    return {};
}

/// Classes in the order of their numbers, or else of their names.
struct Classes {
    std::vector<std::string> names;
    bool numbers = true;   // names[i] is "i"
    int32_t of(const std::string& name) const {
        const auto at = index.find(name);
        return at == index.end() ? -1 : at->second;
    }
    std::map<std::string, int32_t> index;
};

Status classes_of(const std::string& path, const std::map<std::string, uint64_t>& seen, Classes* classes) {
    for (const auto& [name, line] : seen) classes->names.push_back(name);
    if (classes->names.size() > shard_side_max)
        return fail(Code::data, "{}: {} classes are more than {}: --target trains on a column of numbers", path, classes->names.size(),
                    shard_side_max);
    const bool all_numbers = std::ranges::all_of(classes->names, [](const std::string& name) { return number_of(name).has_value(); });
    if (all_numbers)
        std::ranges::stable_sort(classes->names, [](const std::string& a, const std::string& b) { return *number_of(a) < *number_of(b); });
    for (size_t i = 0; i < classes->names.size(); ++i) {
        const std::string& name = classes->names[i];
        if (name.empty() || name.find(',') != name.npos)
            return fail(
                Code::data, "{}: line {}: a class {}", path, seen.at(name),
                name.empty() ? "is empty: fill it, or leave the row out" : "has a comma, which divides the names of classes: rename it");
        classes->numbers = classes->numbers && name == std::to_string(i);
        classes->index[name] = static_cast<int32_t>(i);
    }
    return {};
}

}   // namespace

Status table_sets(const ImportConfig& config, uint32_t, Import* import) {
    if (config.label.empty() == config.targets.empty())
        return fail(Code::invalid,
                    "say what is to be learnt: --label COLUMN of classes, or --target COLUMN of numbers, also several times");
    std::string train_path = config.from, test_path;
    if (is_folder(config.from)) {
        train_path = source_in(config.from, "train.csv");
        test_path = source_in(config.from, "test.csv");
        if (train_path.empty())
            return fail(Code::data, "{}/train.csv[.gz, .xz] is missing: --from is that folder, or one table", config.from);
        if (!test_path.empty() && config.test > 0)
            return fail(Code::invalid, "--test: {} is there to test on: leave one of them out", test_path);
    }

    // First the classes, then the rows: which of them test depends on all labels.
    Columns columns, first_columns;
    Classes classes;
    std::vector<int32_t> labels;
    std::map<std::string, uint64_t> seen;
    std::vector<std::string> texts;
    GC_TRY(rows(train_path, config, &first_columns, [&](uint64_t line, const std::vector<std::string>& fields) -> Status {
        if (!first_columns.label) return labels.push_back(0), Status{};
        seen.try_emplace(fields[*first_columns.label], line);
        texts.push_back(fields[*first_columns.label]);
        return {};
    }));
    if (first_columns.label) GC_TRY(classes_of(train_path, seen, &classes));
    for (const std::string& text : texts) labels.push_back(classes.of(text));
    texts.clear();
    if (labels.empty()) return fail(Code::data, "{}: it has a header and no row", train_path);
    if (!classes.numbers) import->class_names = fmt::format("{}", fmt::join(classes.names, ","));
    const std::vector<bool> chosen = test_choose(config, labels);

    std::vector<float> values;
    const auto add = [&](const std::string& path, uint64_t line, const std::vector<std::string>& fields, int32_t label,
                         Set* set) -> Status {
        values.resize(columns.features.size());
        for (size_t i = 0; i < values.size(); ++i) GC_TRY(value_of(path, columns, line, fields, columns.features[i], &values[i]));
        GC_TRY(set->images.append(reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float)));
        set->labels.push_back(label);
        for (const size_t column : columns.targets) {
            float target = 0;
            GC_TRY(value_of(path, columns, line, fields, column, &target));
            set->targets.push_back(target);
        }
        return {};
    };
    size_t row = 0;
    Status status = rows(train_path, config, &columns, [&](uint64_t line, const std::vector<std::string>& fields) -> Status {
        if (row == labels.size()) return fail(Code::data, "{}: changed while it was read", train_path);
        GC_TRY(add(train_path, line, fields, labels[row], chosen[row] ? &import->test : &import->train));
        return ++row, Status{};
    });
    GC_TRY(status);
    if (!test_path.empty()) {
        status = rows(test_path, config, &columns, [&](uint64_t line, const std::vector<std::string>& fields) -> Status {
            if (columns.names != first_columns.names || columns.features.size() != first_columns.features.size())
                return fail(Code::data, "{}: its columns are not those of {}", test_path, train_path);
            const int32_t label = columns.label ? classes.of(fields[*columns.label]) : 0;
            if (label < 0)
                return fail(Code::data, "{}: line {}: the class \"{}\" is not in {}: there is nothing to train it on", test_path, line,
                            one_line(fields[*columns.label].substr(0, 40)), train_path);
            return add(test_path, line, fields, label, &import->test);
        });
        GC_TRY(status);
    }
    for (Set* set : {&import->train, &import->test}) {
        set->C = static_cast<uint32_t>(first_columns.features.size());
        set->H = set->W = 1;
        set->element = Element::f32;
        set->targets_each = static_cast<uint32_t>(first_columns.targets.size());
    }
    if (first_columns.names.empty())
        import->notes.push_back(fmt::format(
            "{}: its first line has a number, so its columns have no names but 1 to {}", train_path,
            first_columns.features.size() + first_columns.targets.size() + config.without.size() + (first_columns.label ? 1 : 0)));
    return {};
}

}   // namespace gradcast
