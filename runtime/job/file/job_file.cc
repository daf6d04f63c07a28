#include "runtime/job/file/job_file.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "algos/algorithm.h"
#include "nn/graph/layer_kind.h"
#include "runtime/core/fd.h"
#include "runtime/core/limits.h"
#include "runtime/core/nearest.h"
#include "runtime/core/toml.h"
#include "runtime/job/file/job_options.h"
#include "runtime/job/file/job_rules.h"

namespace gradcast {
namespace {

constexpr uint64_t job_bytes_max = 1 << 20;

using Kind = JobOption::Kind;
using Target = JobTarget;
using Value = JobValue;

std::string joined(const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, ", ")); }

std::string shown(std::string_view text) { return fmt::format("\"{}\"", one_line(text)); }

constexpr char plain_rule[] = "is not 1 to 64 letters, digits, '.', '_' and '-' that begin with a letter, a digit or '_'";
bool plain(std::string_view name) {
    if (name.empty() || name.size() > 64 || name[0] == '.' || name[0] == '-') return false;
    return std::all_of(name.begin(), name.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
    });
}

uint32_t line_of(const toml::node& node) { return static_cast<uint32_t>(node.source().begin.line); }
/// Of the key, else of its section, else the first.
uint32_t line_of(const toml::table& root, std::string_view dotted) {
    toml::node_view<const toml::node> node = root.at_path(dotted);
    if (!node) node = root.at_path(dotted.substr(0, dotted.find('.')));
    return node ? line_of(*node.node()) : 1;
}

/// "30s", "500ms", "2min" -> seconds.
std::optional<double> duration(std::string_view text) {
    double number;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
    if (error != std::errc{}) return {};
    std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
    for (auto [name, seconds] : {std::pair{"ms", 1e-3}, {"s", 1.0}, {"min", 60.0}, {"h", 3600.0}})
        if (unit == name) return number * seconds;
    return {};
}

const char* type_name(const toml::node& node) {
    switch (node.type()) {
        case toml::node_type::none: return "nothing";
        case toml::node_type::table: return "a section";
        case toml::node_type::array: return "an array";
        case toml::node_type::string: return "text";
        case toml::node_type::integer: return "a whole number";
        case toml::node_type::floating_point: return "a number";
        case toml::node_type::boolean: return "true or false";
        case toml::node_type::date:
        case toml::node_type::time:
        case toml::node_type::date_time: return "a date";
    }
    return "?";
}

/// Puts the value of a key where it belongs.  Returns what is wrong with it; empty: nothing.
std::string take(const JobOption& option, const toml::node& node, Target target) {
    Value value;
    switch (option.kind) {
        case Kind::text:
        case Kind::name:
        case Kind::duration:
            if (!node.is_string())
                return fmt::format("is {}, not text{}", type_name(node), option.kind == Kind::duration ? ", as \"30s\"" : " in quotes");
            value.text = **node.as_string();
            break;
        case Kind::integer:
            if (option.names && node.is_string()) {
                if (const std::vector<std::string> names = option.names(); **node.as_string() != names[0])
                    return fmt::format("{} is neither a whole number nor {}", shown(**node.as_string()), names[0]);
                option.set(target, value);
                return {};
            }
            if (!node.is_integer()) return fmt::format("is {}, not a whole number", type_name(node));
            value.integer = **node.as_integer();
            value.number = static_cast<double>(value.integer);
            break;
        case Kind::flag:
            if (!node.is_boolean()) return fmt::format("is {}, not true or false", type_name(node));
            value.integer = **node.as_boolean();
            break;
        case Kind::numbers: {
            const toml::array* array = node.as_array();
            if (!array) return fmt::format("is {}, not a list of numbers, as [1, 2, 1]", type_name(node));
            for (const toml::node& each : *array) {
                if (!each.is_number()) return fmt::format("holds {}, not numbers alone", type_name(each));
                value.numbers.push_back(*each.value<double>());
                if (option.above ? !(value.numbers.back() > option.min) : !(value.numbers.back() >= option.min))
                    return fmt::format("{} is {} {}", value.numbers.back(), option.above ? "not above" : "below", option.min);
                if (!(value.numbers.back() <= option.max)) return fmt::format("{} is above {}", value.numbers.back(), option.max);
            }
            break;
        }
        case Kind::flag_or_texts:
        case Kind::texts: {
            const bool flag = option.kind == Kind::flag_or_texts;
            if (flag && node.is_boolean()) {
                value.integer = **node.as_boolean();
                break;
            }
            const toml::array* array = node.as_array();
            if (!array)
                return fmt::format("is {}, not {}a list of texts, as [\"conv2\", \"fc1\"]", type_name(node), flag ? "true, false or " : "");
            for (const toml::node& each : *array) {
                if (!each.is_string()) return fmt::format("holds {}, not texts alone", type_name(each));
                value.texts.push_back(**each.as_string());
            }
            break;
        }
        case Kind::table: {
            const toml::table* table = node.as_table();
            if (!table) return fmt::format("is {}, not a table of texts, as {{NAME = \"value\"}}", type_name(node));
            for (auto&& [name, each] : *table) {
                if (!each.is_string()) return fmt::format("{} is {}, not text in quotes", shown(name.str()), type_name(each));
                if (name.str().empty() || name.str().find('=') != std::string_view::npos || std::isdigit(name.str()[0]))
                    return fmt::format("{} is no name of a variable", shown(name.str()));
                value.texts.push_back(fmt::format("{}={}", name.str(), **each.as_string()));
            }
            std::ranges::sort(value.texts);
            break;
        }
        case Kind::number:
            if (!node.is_number()) return fmt::format("is {}, not a number", type_name(node));
            value.number = *node.value<double>();
            break;
    }
    if (option.kind == Kind::duration) {
        std::optional<double> seconds = duration(value.text);
        if (!seconds) return fmt::format("{} is not a duration: a number and ms, s, min or h, as \"30s\"", shown(value.text));
        value.number = *seconds;
    }
    if (option.kind == Kind::name) {
        std::vector<std::string> names = option.names();
        if (std::find(names.begin(), names.end(), value.text) == names.end()) {
            std::string near = nearest(value.text, names);
            return fmt::format("{} is not one of {}{}", shown(value.text), joined(names),
                               near.empty() ? "" : fmt::format(" (did you mean {}?)", near));
        }
    }
    if (option.kind == Kind::integer || option.kind == Kind::number || option.kind == Kind::duration) {
        std::string is = option.kind == Kind::duration  ? value.text
                         : option.kind == Kind::integer ? fmt::format("{}", value.integer)
                                                        : fmt::format("{}", value.number);
        if (option.above ? !(value.number > option.min) : !(value.number >= option.min))
            return fmt::format("{} is {} {}{}", is, option.above ? "not above" : "below", option.bound(option.min),
                               option.kind == Kind::integer && option.names ? fmt::format("; \"{}\" chooses", option.names()[0]) : "");
        // A whole number is compared as such: as a double 2^53 + 1 is 2^53.
        if (option.kind == Kind::integer ? value.integer > static_cast<int64_t>(option.max) : !(value.number <= option.max))
            return fmt::format("{} is above {}", is, option.bound(option.max));
        if (option.below && value.number == option.max) return fmt::format("{} is not below {}", is, option.bound(option.max));
    }
    const auto has_zero = [](const std::string& text) { return text.find('\0') != std::string::npos; };
    if (has_zero(value.text) || std::ranges::any_of(value.texts, has_zero)) return "holds a zero byte";
    option.set(target, value);
    return {};
}

class Parser {
public:
    Parser(const std::string& path, const std::string& base, JobConfig& job, std::vector<JobMistake>& mistakes)
        : path_(path), base_(base), job_(job), mistakes_(mistakes) {}

    void mistake(uint32_t line, std::string_view key, std::string_view text) {
        mistakes_.push_back({line, fmt::format("{}:{}: {}{}{}", path_, line, key, key.empty() ? "" : ": ", text)});
        keys_.wrong.emplace(key);
    }

    void file(const toml::table& root) {
        std::vector<std::string> sections;
        for (const JobOption& option : job_options())
            if (!option.of_layers() && (sections.empty() || sections.back() != option.section)) sections.emplace_back(option.section);
        for (auto&& [key, node] : root) {
            if (std::find(sections.begin(), sections.end(), key.str()) == sections.end()) unknown(node, "", key.str(), sections);
            else if (const toml::table* table = node.as_table()) section(std::string(key.str()), *table, {&job_, nullptr});
            else mistake(line_of(node), key.str(), fmt::format("is {}, not a section: write [{}]", type_name(node), key.str()));
        }
        whole(root);
    }

private:
    void unknown(const toml::node& node, const std::string& section, std::string_view key, const std::vector<std::string>& names) {
        std::string near = nearest(key, names), full = section.empty() ? std::string() : section + ".";
        mistake(line_of(node), full + one_line(key),
                fmt::format("is not known: {}", near.empty() ? joined(names) : fmt::format("did you mean {}?", near)));
    }

    void section(const std::string& name, const toml::table& table, Target target) {
        std::vector<std::string> keys;
        for (const JobOption& option : job_options())
            if (name == option.section) keys.emplace_back(option.key);
        if (name == "net") keys.emplace_back("layers");
        for (auto&& [key, node] : table) {
            keys_.given.insert(fmt::format("{}.{}", name, key.str()));
            const std::span<const JobOption> all = job_options();
            auto at = std::find_if(all.begin(), all.end(), [&key = key, &name](const JobOption& option) {
                return name == option.section && key.str() == option.key;
            });
            if (at != all.end()) value(*at, node, target);
            else if (name == "net" && key.str() == "layers") layers(node);
            else unknown(node, name, key.str(), keys);
        }
    }

    void layers(const toml::node& node) {
        const toml::array* array = node.as_array();
        if (!array || !array->is_homogeneous(toml::node_type::table))   // an empty one is not
            return mistake(
                line_of(node), "net.layers",
                fmt::format("is {}: write one [[net.layers]] for each layer", array ? "not a list of sections" : type_name(node)));
        for (const toml::node& each : *array) {
            LayerSpec layer;
            section("net.layers", *each.as_table(), {&job_, &layer});
            for (auto [key, name] : {std::pair{"net.layers.name", &layer.name},
                                     {"net.layers.from", &layer.from},
                                     {"net.layers.weights_of", &layer.weights_of}})
                if (!name->empty() && !plain(*name)) mistake(line_of(each), key, fmt::format("{} {}", shown(*name), plain_rule));
            if (!each.as_table()->contains("kind"))
                mistake(line_of(each), "net.layers.kind", fmt::format("is missing: {}", fmt::join(layer_kind_names(), ", ")));
            job_.layers.push_back(std::move(layer));
        }
    }

    void value(const JobOption& option, const toml::node& node, Target target) {
        if (const std::string wrong = take(option, node, target); !wrong.empty())
            mistake(line_of(node), fmt::format("{}.{}", option.section, option.key), wrong);
    }

    /// The rules about several keys.
    void whole(const toml::table& root) {
        if (!plain(job_.name)) mistake(line_of(root, "job.name"), "job.name", fmt::format("{} {}", shown(job_.name), plain_rule));
        for (const BrokenRule& each : job_rules_broken(keys_)) mistake(line_of(root, each.key), each.key, each.text);
        for (std::string* path : {&job_.train, &job_.test, &job_.start, &job_.settings.replay})
            if (!path->empty() && path->front() != '/') *path = base_ + '/' + *path;
    }

    const std::string& path_;
    const std::string& base_;
    JobConfig& job_;
    std::vector<JobMistake>& mistakes_;
    JobKeys keys_ = {.job = job_};
};

}   // namespace

bool job_parse(const std::string& text, const std::string& path, const std::string& base, JobConfig* config,
               std::vector<JobMistake>* mistakes) {
    JobConfig job;
    job.text = text;
    job.base = base;
    mistakes->clear();
    Parser parser(path, base, job, *mistakes);
    if (text.size() > job_bytes_max) {
        parser.mistake(1, "", fmt::format("{} bytes are too many for a job file, at most {}", text.size(), job_bytes_max));
        return false;
    }
    toml::parse_result parsed = toml_parse(text);
    if (!parsed) {
        const toml::source_position& at = parsed.error().source().begin;
        std::string what(parsed.error().description());
        for (char& c : what)
            if (static_cast<unsigned char>(c) < ' ') c = ' ';
        parser.mistake(static_cast<uint32_t>(at.line), "", fmt::format("column {}: {}", at.column, what));
        return false;
    }
    parser.file(parsed.table());
    std::stable_sort(mistakes->begin(), mistakes->end(), [](const JobMistake& a, const JobMistake& b) { return a.line < b.line; });
    if (!mistakes->empty()) return false;
    *config = std::move(job);
    return true;
}

Status job_parse(const std::string& text, const std::string& path, const std::string& base, JobConfig* config) {
    std::vector<JobMistake> mistakes;
    if (job_parse(text, path, base, config, &mistakes)) return {};
    std::string all;
    for (const JobMistake& mistake : mistakes) all += (all.empty() ? "" : "\n") + mistake.text;
    return fail(Code::invalid, "{}", all);
}

JobMistake job_mistake(const std::string& text, const std::string& path, std::string_view key, std::string_view what) {
    const std::string_view first = what.substr(0, what.find_first_of(": "));
    const bool named = job_option(first) != nullptr;
    if (named) key = first;
    const toml::parse_result parsed = toml_parse(text);
    const uint32_t line = parsed ? line_of(parsed.table(), key) : 1;
    return {line, fmt::format("{}:{}: {}{}", path, line, named ? "" : fmt::format("{}: ", key.substr(0, key.find('['))), what)};
}

Status job_read(const std::string& path, JobConfig* config) {
    std::string text;
    GC_TRY(file_read(path, &text));
    char* folder = ::realpath(path.substr(0, path.rfind('/') == std::string::npos ? 0 : path.rfind('/') + 1).append(".").c_str(), nullptr);
    if (!folder) return fail_sys(errno, "cannot find the folder of {}", path);
    std::string base = folder;
    ::free(folder);
    return job_parse(text, path, base, config);
}

std::vector<std::pair<std::string, std::string>> JobConfig::variables() const {
    std::vector<std::pair<std::string, std::string>> all;
    for (const std::string& each : environment) {
        const size_t equals = each.find('=');
        all.emplace_back(each.substr(0, equals), each.substr(equals + 1));
    }
    return all;
}

std::string data_names(const JobConfig& config) {
    if (config.samples > 0) return "the program's data";
    return config.train + (config.test.empty() ? "" : " and " + config.test);
}

std::string job_value(std::string_view key, const std::string& text) {
    const JobOption* option = job_option(key);
    if (!option || option->of_layers()) return text;
    const toml::parse_result parsed = toml_parse("value = " + text);
    JobConfig job;
    if (!parsed || parsed.table().size() != 1 || !take(*option, *parsed.table().get("value"), {&job, nullptr}).empty()) return text;
    return option->show(job);
}

std::vector<std::pair<std::string, std::string>> job_identity(const JobConfig& config) {
    const AlgorithmKind* algorithm;
    GC_ASSERT(algorithm_find(config.algorithm, &algorithm).ok());
    std::vector<std::pair<std::string, std::string>> all;
    const auto add = [&](JobOption::Identity identity) {
        for (const JobOption& option : job_options()) {
            if (option.field.identity != identity || !option.taken_by(*algorithm)) continue;
            const std::string value = option.show(config);
            if (identity == JobOption::Identity::changed && value == option.show({})) continue;
            all.emplace_back(fmt::format("{}.{}", option.section, option.key), value.empty() ? "none" : value);
        }
    };
    add(JobOption::Identity::yes);
    const ScheduleKind* schedule = schedule_find(config.optimiser.schedule);
    GC_ASSERT(schedule);
    if (schedule->ends) add(JobOption::Identity::length);
    for (size_t i = 0; i < config.layers.size(); ++i) all.emplace_back(fmt::format("layer {}", i + 1), layer_text(config.layers[i]));
    add(JobOption::Identity::changed);
    return all;
}

}   // namespace gradcast
