// report: a page of HTML that compares runs, and that needs nothing beside it.
#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "runtime/core/fd.h"
#include "runtime/job/file/job_file.h"
#include "tools/gradcastctl/commands.h"
#include "tools/gradcastctl/out_file.h"
#include "tools/gradcastctl/plot.h"
#include "tools/gradcastctl/print.h"
#include "tools/gradcastctl/run_record.h"

namespace gradcast {
namespace {

constexpr size_t runs_max = 16, page_classes_max = 32;   // larger matrices have no place on a page

constexpr const char* style =
    ":root{--back:#f4f5f7;--card:#fff;--line:#d9dde3;--text:#1b1f24;--dim:#57606a;--bad:#c21f2b;--hot:11,92,214}\n"
    "@media(prefers-color-scheme:dark){:root{--back:#0e1116;--card:#171b22;--line:#2d343e;--text:#e4e8ee;--dim:#98a3b1;--bad:#ff8079;"
    "--hot:108,176,255}}\n"
    "*{box-sizing:border-box}body{margin:0 auto;max-width:1200px;padding:16px;background:var(--back);color:var(--text);"
    "font:15px/1.45 system-ui,\"DejaVu Sans\",sans-serif;font-variant-numeric:tabular-nums}\n"
    "h1{font-size:22px}h2{font-size:17px;margin:26px 0 8px}h3{font-size:15px;margin:14px 0 "
    "6px;overflow-wrap:anywhere}.dim,th{color:var(--dim)}"
    ".bad{color:var(--bad)}\n"
    ".card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 14px;overflow-x:auto}\n"
    ".plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,360px),1fr));gap:10px}\n"
    "table{border-collapse:collapse}th,td{padding:4px 14px 4px 0;border-bottom:1px solid "
    "var(--line);text-align:left;vertical-align:baseline}"
    "tr:last-child td{border-bottom:0}th{font-weight:500}.n{text-align:right;white-space:nowrap}td{overflow-wrap:anywhere}\n"
    ".matrix td,.matrix th{padding:2px 6px;text-align:right;font-size:13px;border:0}\n"
    "svg{display:block;width:100%;height:auto}svg text{fill:var(--dim);font-size:12px}svg "
    ".title{fill:var(--text);font-weight:600;font-size:14px}\n"
    ".grid{stroke:var(--line);fill:none}.curve{fill:none;stroke-width:1.8;stroke-linejoin:round}.dashed{stroke-dasharray:6 "
    "4}.dot{stroke-width:7;stroke-linecap:round}"
    ".key{display:inline-block;width:12px;height:12px;border-radius:3px;margin-right:8px}\n";
/// Of curves, in both schemes.
constexpr const char* colours[] = {"#2f7de1", "#e0701a", "#2a9d4a", "#b04fd8", "#d93a4c", "#12a0a8", "#a8871c", "#7d8590"};
static_assert(std::size(colours) == plot_colours);

using Row = std::vector<std::string>;   // of HTML

/// The first column is text, the others are numbers.
std::string table_html(const Row& head, const std::vector<Row>& rows, const char* kind = "") {
    std::string html = fmt::format("<div class=\"card\"><table class=\"{}\"><thead><tr>", kind);
    auto cells = [&](const Row& row, const char* tag) {
        for (size_t i = 0; i < row.size(); ++i) html += fmt::format("<{}{}>{}</{}>", tag, i > 0 ? " class=\"n\"" : "", row[i], tag);
    };
    cells(head, "th");
    html += "</tr></thead><tbody>\n";
    for (const Row& row : rows) {
        html += "<tr>";
        cells(row, "td");
        html += "</tr>\n";
    }
    return html + "</tbody></table></div>\n";
}

std::string bytes_text(double value) { return text_bytes(static_cast<uint64_t>(std::max(0.0, value))); }

class Page {
public:
    explicit Page(const std::vector<RunRecord>& runs) : runs_(runs) {}
    std::string html() const {
        std::string colour_rules;
        for (size_t i = 0; i < plot_colours; ++i)
            colour_rules += fmt::format(".c{0}{{stroke:{1}}}.k{0}{{background:{1}}}\n", i, colours[i]);
        return "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width, "
               "initial-scale=1\"><meta name=\"color-scheme\" content=\"light dark\"><meta http-equiv=\"Content-Security-Policy\" "
               "content=\"default-src 'none'; style-src 'unsafe-inline'\"><title>gradcast: " +
               names() + "</title><style>\n" + style + colour_rules + "</style></head><body>\n<h1>" +
               (runs_.size() == 1 ? names() : fmt::format("{} runs", runs_.size())) + "</h1>\n" + summary() +
               plots("loss", AxisScale::log, &RunRecord::loss) + plots("accuracy", AxisScale::linear, &RunRecord::accuracy) + settings() +
               classes() + matrices() + times() + "</body></html>\n";
    }

private:
    std::string names() const {
        std::string all;
        for (const RunRecord& run : runs_) all += (all.empty() ? "" : ", ") + html_text(run.name);
        return all;
    }
    std::string name_of(size_t run) const {
        return fmt::format("<span class=\"key k{}\"></span>{}", run % plot_colours, html_text(runs_[run].name));
    }
    Row head(const std::string& first) const {
        Row row = {first};
        for (size_t i = 0; i < runs_.size(); ++i) row.push_back(name_of(i));
        return row;
    }

    std::string summary() const {
        std::vector<Row> rows;
        std::string errors;
        for (size_t i = 0; i < runs_.size(); ++i) {
            const RunRecord& run = runs_[i];
            const JobStatus* status = run.job ? &run.job->summary.status : nullptr;
            const double accuracy = !run.accuracy.empty() ? run.accuracy.back().value : status ? status->accuracy : -1;
            rows.push_back({name_of(i) + (run.id.empty() ? "" : " <span class=\"dim\">" + run.id.substr(0, 8) + "</span>"),
                            status ? job_state_name(status->state) : "-",
                            status ? text_nodes(run.job->summary.nodes_now(), run.job->summary.nodes.size()) : "-",
                            std::to_string(run.steps), std::isfinite(run.last_loss) ? fmt::format("{:.4f}", run.last_loss) : "-",
                            accuracy >= 0 ? fmt::format("{:.4f}", accuracy) : "-",
                            run.test_loss >= 0 ? fmt::format("{:.4f}", run.test_loss) : "-",
                            run.steps > 0 ? text_seconds(run.seconds) : "-", run.steps > 0 ? bytes_text(run.bytes) : "-",
                            run.digest.empty() ? "-" : run.digest.substr(0, 12)});
            for (const std::string& gap : run.gaps) errors += "<p class=\"dim\">" + html_text(run.name + ": " + gap) + "</p>\n";
            if (status && !status->error.empty()) errors += "<p class=\"bad\">" + html_text(run.name + ": " + status->error) + "</p>\n";
        }
        return table_html({"run", "state", "nodes", "steps", "loss", "accuracy", "test loss", "time", "sent by a node", "digest"}, rows) +
               equal_models() + errors;
    }
    std::string equal_models() const {
        std::map<std::string, std::vector<std::string>> names_of;
        for (const RunRecord& run : runs_)
            if (!run.digest.empty()) names_of[run.digest].push_back(html_text(run.name));
        std::string html;
        for (const auto& [digest, equal] : names_of)
            if (equal.size() > 1)
                html += fmt::format("<p>{}: same model, bit for bit (digest {}).</p>\n", fmt::join(equal, ", "), digest.substr(0, 12));
        return html;
    }

    std::string plots(const std::string& what, AxisScale scale, std::vector<RunPoint> RunRecord::*points) const {
        struct Axis {
            const char* label;
            AxisScale scale;
            double (*of)(const RunPoint&);
        };
        constexpr Axis axes[] = {{"samples seen", AxisScale::linear, [](const RunPoint& point) { return point.samples; }},
                                 {"seconds of steps", AxisScale::linear, [](const RunPoint& point) { return point.seconds; }},
                                 {"bytes sent by a node", AxisScale::log_bytes, [](const RunPoint& point) { return point.bytes; }}};
        std::string html;
        for (const Axis& axis : axes) {
            Plot plot{what, axis.label, axis.scale, scale, points == &RunRecord::accuracy ? 1 : HUGE_VAL, {}};
            for (size_t i = 0; i < runs_.size(); ++i) {
                plot.series.push_back({.colour = i, .points = {}});
                for (const RunPoint& each : runs_[i].*points) plot.series.back().points.emplace_back(axis.of(each), each.value);
            }
            if (const std::string svg = plot_svg(plot); !svg.empty()) html += "<div class=\"card\">" + svg + "</div>\n";
        }
        if (html.empty()) return fmt::format("<h2>{0}</h2>\n<p class=\"dim\">No run has two points of it.</p>\n", what);
        return fmt::format("<h2>{}</h2>\n<div class=\"plots\">\n{}</div>\n", what, html);
    }

    /// Of several runs, keys whose values differ; a key that a job file leaves out has its default.
    std::string settings() const {
        std::map<std::string, std::vector<const std::string*>> by_key;
        for (size_t i = 0; i < runs_.size(); ++i)
            for (const auto& [key, value] : runs_[i].settings) by_key.try_emplace(key, runs_.size()).first->second[i] = &value;
        std::vector<Row> rows;
        for (const auto& [key, written] : by_key) {
            Row row = {html_text(key)};
            std::set<std::string> different;
            for (size_t i = 0; i < runs_.size(); ++i) {
                const bool known = written[i] || runs_[i].settings_whole;
                const std::string value = written[i] ? *written[i] : known ? setting_default(runs_[i], key) : "";
                if (known) different.insert(job_value(key, value));
                row.push_back(written[i] ? html_text(value) : value.empty() ? "-" : "<span class=\"dim\">" + html_text(value) + "</span>");
            }
            if (runs_.size() == 1 || different.size() > 1) rows.push_back(std::move(row));
        }
        const char* title = runs_.size() > 1 ? "<h2>Settings that differ</h2>\n" : "<h2>Settings</h2>\n";
        return title + (rows.empty() ? std::string("<p class=\"dim\">None.</p>\n") : table_html(head("key"), rows));
    }

    /// Where a run has no evaluation: a line that says why.
    std::string classes() const {
        std::string html = "<h2>Accuracy by class</h2>\n", missing;
        size_t most = 0;
        const Evaluation* names = nullptr;
        for (const RunRecord& run : runs_) {
            if (!run.evaluation) missing += "<p class=\"dim\">" + html_text(run.name + ": " + run.why) + "</p>\n";
            else if (run.evaluation->count_of_class.size() > most) {
                most = run.evaluation->count_of_class.size();
                names = &*run.evaluation;
            }
        }
        if (names == nullptr) return html + missing;
        const std::vector<std::string> labels = labels_of(names->class_names, names->count_of_class.size());
        std::vector<Row> rows;
        auto share = [](uint64_t right, uint64_t count) {
            return count > 0 ? fmt::format("{:.4f}", static_cast<double>(right) / static_cast<double>(count)) : "";
        };
        for (size_t k = 0; k < most; ++k) {
            Row row = {html_text(labels[k])};
            for (const RunRecord& run : runs_) {
                const bool known = run.evaluation && k < run.evaluation->count_of_class.size();
                row.push_back(known ? share(run.evaluation->right_of_class[k], run.evaluation->count_of_class[k]) : "");
            }
            rows.push_back(std::move(row));
        }
        Row all = {"all"};
        for (const RunRecord& run : runs_) all.push_back(run.evaluation ? share(run.evaluation->right, run.evaluation->counted) : "");
        rows.push_back(std::move(all));
        return html + table_html(head("class"), rows) + missing;
    }

    std::string matrices() const {
        std::string html;
        for (size_t i = 0; i < runs_.size(); ++i) {
            if (!runs_[i].evaluation) continue;
            const Evaluation& found = *runs_[i].evaluation;
            const size_t classes = found.count_of_class.size();
            html += "<h3>" + name_of(i) + "</h3>\n";
            if (classes > page_classes_max || found.confusion.size() != classes * classes) {
                html += fmt::format("<p class=\"dim\">{} classes are too many for a page: gradcastctl evaluate -o json has all.</p>\n",
                                    classes);
                continue;
            }
            const std::vector<std::string> labels = labels_of(found.class_names, classes);
            Row head = {"class, predicted"};
            for (const std::string& label : labels) head.push_back(html_text(label));
            std::string table = "<div class=\"card\"><table class=\"matrix\"><tr>";
            for (const std::string& each : head) table += "<th>" + each + "</th>";
            table += "</tr>\n";
            for (size_t k = 0; k < classes; ++k) {
                table += "<tr><th>" + html_text(labels[k]) + "</th>";
                for (size_t j = 0; j < classes; ++j) {
                    const uint64_t count = found.confusion[k * classes + j];
                    const double share =
                        found.count_of_class[k] ? static_cast<double>(count) / static_cast<double>(found.count_of_class[k]) : 0;
                    table += fmt::format("<td style=\"background:rgba(var(--hot),{:.2f})\">{}</td>", share * 0.6, count);
                }
                table += "</tr>\n";
            }
            html += table + "</table></div>\n";
        }
        return html.empty() ? html : "<h2>Confusion matrix</h2>\n" + html;
    }

    std::string times() const {
        std::string html;
        for (size_t i = 0; i < runs_.size(); ++i) {
            if (!runs_[i].job) continue;
            const JobStatus& status = runs_[i].job->summary.status;
            if (status.times.empty()) continue;
            html += "<h3>" + name_of(i) + "</h3>\n";
            for (const Straggler& each : status.stragglers)
                html += "<p class=\"bad\">" +
                        html_text(fmt::format("{} is slow: {} takes {:.1f} ms of a step, {:.1f} ms at the others. {}", each.node,
                                              each.phase, each.us * 1e-3, each.others_us * 1e-3, each.advice)) +
                        "</p>\n";
            // Only of a job that runs it is known who is one.
            const bool none = status.state == JobState::running && status.stragglers.empty();
            html += fmt::format("<p class=\"dim\">{}p50 / p99 of the last steps in ms:</p>\n", none ? "No node is a straggler. " : "");
            Row head = {"node"};
            for (size_t phase = 0; phase < step_phases; ++phase) head.emplace_back(step_phase_name(static_cast<StepPhase>(phase)));
            std::vector<Row> rows;
            for (const NodeTimes& node : status.times) {
                Row row = {html_text(node.node)};
                for (const PhaseTimes& each : node.times.phases)
                    row.push_back(fmt::format("{:.1f} / {:.1f}", each.p50 * 1e-3, each.p99 * 1e-3));
                rows.push_back(std::move(row));
            }
            html += table_html(head, rows);
        }
        if (html.empty()) html = "<p class=\"dim\">No run has a record of its nodes' times.</p>\n";
        return "<h2>Where a step's time goes</h2>\n" + html;
    }

    const std::vector<RunRecord>& runs_;
};

}   // namespace

static int command_report(const Options& options, const std::vector<std::string>& which, const std::string& out, const std::string& data,
                          bool evaluate, bool force) {
    if (which.size() > runs_max) return complain(exit_usage, "a report compares {} runs at most, not {}", runs_max, which.size());
    std::vector<RunRecord> runs(which.size());
    for (size_t i = 0; i < which.size(); ++i)
        if (const int exit = run_read(options, which[i], evaluate, data, &runs[i]); exit != exit_done) return exit;
    std::vector<std::string> inputs;
    std::error_code error;
    for (const RunRecord& run : runs)
        for (std::filesystem::directory_iterator at(run.folder, error), end; !error && at != end; at.increment(error))
            inputs.push_back(at->path().string());
    if (const int exit = out_check(out, inputs, force); exit != exit_done) return exit;
    // Distinguishes runs of one name.
    std::map<std::string, size_t> names;
    for (const RunRecord& run : runs) ++names[run.name];
    for (size_t i = 0; i < runs.size(); ++i)
        if (names[runs[i].name] > 1)
            runs[i].name += fmt::format(" ({})", std::filesystem::is_directory(which[i], error) ? which[i] : runs[i].id.substr(0, 8));
    if (const Status status = file_write(out, Page(runs).html()); !status.ok()) return complain(exit_failed, "{}", status.what);
    for (const RunRecord& run : runs)
        if (evaluate && !run.evaluation) fmt::print(stderr, "no accuracy by class of {}: {}\n", run.name, run.why);
    if (options.json) {
        Json json{{"path", out}, {"runs", Json::array()}};
        for (const RunRecord& run : runs)
            json["runs"].push_back(Json{{"name", run.name},
                                        {"id", run.id},
                                        {"steps", run.steps},
                                        {"loss", run.last_loss},
                                        {"seconds", run.seconds},
                                        {"bytes_sent", run.bytes},
                                        {"digest", run.digest}});
        fmt::print("{}\n", json_text(json, 2));
    } else {
        fmt::print("{}\n", out);
    }
    return exit_done;
}

// ---- command line --------------------------------------------------------------------------------------------------------------

void add_report(Cli& cli) {
    struct Flags {
        std::vector<std::string> which;
        std::string out, data;
        bool quick = false, force = false;
    };
    Flags& f = cli.keep<Flags>();
    CLI::App* command =
        cli.add(models_group, "report", "write a page of HTML that compares jobs: by samples, seconds and bytes, by class, by settings",
                [&] { return command_report(cli.options, f.which, f.out, f.data, !f.quick, f.force); });
    command->add_option("JOB", f.which, "jobs of this daemon, folders of `run --keep`, or WORK folders of gradcastd under a launcher")
        ->required();
    command->add_option("--out", f.out, "the page; it needs nothing beside it")->required();
    command->add_option("--data", f.data, "shards for accuracy by class (default: each job's own test data)");
    command->add_flag("--quick", f.quick, "leave out accuracy by class, which evaluates each model on this machine");
    cli.force(command, f.force);
}

}   // namespace gradcast
