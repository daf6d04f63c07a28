// top: jobs and nodes in a terminal, once a second.  What it shows is /v1/overview, as on the status page.
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <ctime>

#include "runtime/core/clock.h"
#include "tools/gradcastctl/client.h"
#include "tools/gradcastctl/commands.h"
#include "tools/gradcastctl/local.h"
#include "tools/gradcastctl/print.h"

namespace gradcast {
namespace {

constexpr uint64_t refresh_us = 1'000'000;

/// Text from outside without what would move a terminal's cursor: C0, DEL, and C1 as UTF-8.
std::string plain(std::string_view text) {
    std::string result;
    for (size_t i = 0; i < text.size(); ++i) {
        const auto c = static_cast<unsigned char>(text[i]);
        const bool c1 = c == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;
        result += c < ' ' || c == 0x7f || c1 ? '?' : text[i];
        i += c1;
    }
    return result;
}

/// Its first `columns` code points.
std::string fit(const std::string& text, size_t columns) {
    if (text_columns(text) <= columns) return text;
    size_t at = 0;
    for (size_t seen = 0; at < text.size(); ++at)
        if ((text[at] & 0xc0) != 0x80 && seen++ == columns - 1) break;
    return text.substr(0, at) + "…";
}

struct Line {
    std::string text;
    const char* colour = "";   // of ANSI: "31"; "": none
};

std::string number(const Json& job, const char* key, const char* format) {
    const auto at = job.find(key);
    return at != job.end() && at->is_number() ? fmt::format(fmt::runtime(format), at->get<double>()) : "-";
}

void job_lines(const Json& overview, std::vector<Line>* lines) {
    const Json& jobs = overview.at("jobs");
    if (jobs.empty()) return lines->push_back({"no jobs"});
    std::vector<std::vector<std::string>> rows = {
        {"job", "name", "state", "step", "loss", "accuracy", "samples/s", "sent", "nodes", "time", "remaining"}};
    const bool stages = std::ranges::any_of(jobs, [](const Json& job) { return job.contains("stages"); });
    if (stages) rows[0].insert(rows[0].begin() + 3, "stage");
    for (const Json& job : jobs) {
        const auto step = job.value("step", uint64_t{0}), steps = job.value("steps", uint64_t{0});
        const bool running = job.value("state", "") == "running";
        const double remaining =
            running ? seconds_remaining(step, steps, job.value("resumed", uint64_t{0}), job.value("seconds", 0.0)) : -1;
        const auto nodes = job.value("nodes", 0u), submitted = job.value("nodes_submitted", 0u);
        rows.push_back({plain(job.value("id", "")).substr(0, 8), fit(plain(job.value("name", "")), 24), plain(job.value("state", "")),
                        fmt::format("{}/{}{}", step, steps, steps > 0 ? fmt::format(" {}%", step * 100 / steps) : ""),
                        number(job, "loss", "{:.4f}"), number(job, "accuracy", "{:.4f}"), number(job, "samples_per_second", "{:.0f}"),
                        text_bytes(job.value("bytes_sent", uint64_t{0})), text_nodes(nodes, submitted),
                        text_seconds(job.value("seconds", 0.0)), remaining >= 0 ? text_seconds(remaining) : "-"});
        if (stages)
            rows.back().insert(rows.back().begin() + 3,
                               job.contains("stages") ? fmt::format("{}/{}", job.value("stage", 0u), job.value("stages", 0u)) : "-");
    }
    const std::vector<std::string> table = table_lines(rows);
    lines->push_back({table[0], "7"});
    for (size_t i = 0; i < jobs.size(); ++i) {
        const Json& job = jobs[i];
        const std::string state = job.value("state", ""), error = plain(job.value("error", ""));
        lines->push_back({table[i + 1], state == "failed" ? "31" : state == "running" ? "32" : ""});
        if (const std::string waits = plain(job.value("stage_waits", "")); state == "running" && !waits.empty())
            lines->push_back({"          stages wait for " + waits});
        for (const std::string& slow : job.value("stragglers", std::vector<std::string>{}))
            lines->push_back(
                {"          waits for " + plain(slow) + ": gradcastctl describe " + plain(job.value("id", "")).substr(0, 8), "33"});
        if (!error.empty()) lines->push_back({"          " + error, state == "failed" ? "31" : ""});
    }
}

void node_lines(const Json& overview, std::vector<Line>* lines) {
    std::vector<std::vector<std::string>> rows = {{"node", "state", "jobs", "isa", "address", ""}};
    std::vector<bool> away;
    for (const Json& each : overview.at("nodes")) {
        const NodeInfo node = each.get<NodeInfo>();
        away.push_back(!node.self && !node.alive);
        std::string state = node.self ? "this one" : node.alive ? "alive" : "away";
        if (node.draining) state += node.jobs > 0 ? ", draining" : ", drained";
        rows.push_back({plain(node.name), state, std::to_string(node.jobs), plain(node.isa), plain(node.address),
                        plain(node.hinders.empty() ? node.why : "needed by " + node.hinders)});
    }
    if (away.empty()) return;
    const std::vector<std::string> table = table_lines(rows);
    lines->push_back({table[0], "7"});
    for (size_t i = 0; i < away.size(); ++i) lines->push_back({table[i + 1], away[i] ? "31" : ""});
}

std::vector<Line> lines_of(const Json& overview) {
    std::string jobs;
    for (const auto& [state, count] : overview.at("counts").items())
        if (count != 0) jobs += fmt::format("{}{} {}", jobs.empty() ? "" : ", ", count.get<uint64_t>(), state);
    const auto alive = overview.value("nodes_alive", 0u), total = overview.value("nodes_total", 0u);
    std::vector<Line> lines = {
        {fmt::format("gradcast {} at {}, {}: {} of {} nodes alive; jobs: {}", overview.value("version", ""),
                     plain(overview.value("self", "")), text_time(static_cast<uint64_t>(std::time(nullptr))).substr(11), alive, total,
                     jobs.empty() ? "none" : jobs),
         alive < total ? "31" : "1"},
        {}};
    job_lines(overview, &lines);
    if (const std::string whose = text_jobs_of(overview.value("self", ""), overview.at("nodes").get<std::vector<NodeInfo>>());
        !whose.empty())
        lines.push_back({plain(whose)});
    if (overview.value("pages", 1u) > 1)
        lines.push_back({fmt::format("page {} of {}", overview.value("page", 0u) + 1, overview.value("pages", 1u))});
    lines.emplace_back();
    node_lines(overview, &lines);
    if (overview.value("nodes_pages", 1u) > 1) lines.push_back({"the others: gradcastctl nodes"});
    return lines;
}

/// The alternate screen without echo, and what was before at the end.
class Screen {
public:
    Screen() {
        ::tcgetattr(STDIN_FILENO, &before_);
        termios raw = before_;
        raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
        raw.c_cc[VSUSP] = _POSIX_VDISABLE;   // stopped, it would leave the terminal like this
        raw.c_cc[VMIN] = 0;
        raw.c_cc[VTIME] = 0;
        ::tcsetattr(STDIN_FILENO, TCSANOW, &raw);
        struct sigaction resize {};
        resize.sa_handler = [](int) {};   // ends poll()
        ::sigaction(SIGWINCH, &resize, nullptr);
        out("\x1b[?1049h\x1b[?25l\x1b[?7l");
    }
    ~Screen() {
        out("\x1b[?7h\x1b[?25h\x1b[?1049l");
        ::tcsetattr(STDIN_FILENO, TCSAFLUSH, &before_);
    }
    Screen(const Screen&) = delete;
    Screen& operator=(const Screen&) = delete;

    /// False: the terminal is gone.
    bool show(const std::vector<Line>& lines, const Line& foot) const {
        winsize size{};
        if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row < 2 || size.ws_col < 10) {
            size.ws_row = 24;
            size.ws_col = 80;
        }
        const size_t rows = size.ws_row - 1u;
        std::string text = "\x1b[H";
        for (size_t i = 0; i < rows; ++i) {
            const bool more = i + 1 == rows && lines.size() > rows;
            if (i < lines.size() || more)
                text += styled(more ? Line{fmt::format("… {} more lines", lines.size() - i)} : lines[i], size.ws_col);
            text += "\x1b[K\r\n";
        }
        return out(text + styled(foot, size.ws_col) + "\x1b[K");
    }

    /// A key, or 0 after `wait_us`, a signal or a new size.  False: the terminal is gone.
    static bool key(uint64_t wait_us, char* pressed) {
        *pressed = 0;
        pollfd in{STDIN_FILENO, POLLIN, 0};
        if (::poll(&in, 1, static_cast<int>((wait_us + 999) / 1000)) <= 0) return true;
        const ssize_t got = ::read(STDIN_FILENO, pressed, 1);
        return got > 0 || (got < 0 && errno == EINTR);
    }

private:
    static std::string styled(const Line& line, size_t columns) {
        const std::string text = fit(line.text, columns);
        return *line.colour ? fmt::format("\x1b[{}m{}\x1b[0m", line.colour, text) : text;
    }
    static bool out(const std::string& text) {
        for (std::string_view rest = text; !rest.empty();) {
            const ssize_t done = ::write(STDOUT_FILENO, rest.data(), rest.size());
            if (done > 0) rest.remove_prefix(static_cast<size_t>(done));
            else if (errno != EINTR) return false;
        }
        return true;
    }
    termios before_{};
};

}   // namespace

static int command_top(const Options& options, const std::string& state) {
    const Client client(options.target, 5);
    uint64_t page = 0;
    auto ask = [&] { return client.get(routes::overview, {}, fmt::format("?page={}&state={}", page, state)); };
    Reply reply = ask();
    if (reply.exit != exit_done) return complain(reply.exit, "{}", reply.error);
    if (options.json) {
        fmt::print("{}\n", json_text(reply.json, 2));
        return exit_done;
    }
    std::vector<Line> lines = lines_of(reply.json);
    if (::isatty(STDOUT_FILENO) == 0 || ::isatty(STDIN_FILENO) == 0) {
        for (const Line& line : lines) fmt::print("{}\n", line.text);
        return exit_done;
    }
    (void)interrupts();   // caught from here on, so that the terminal becomes as it was
    const Screen screen;
    Line foot;
    for (uint64_t due = clock_us() + refresh_us; interrupts() == 0;) {
        if (reply.exit == exit_done) page = reply.json.value("page", uint64_t{0});
        foot = reply.exit == exit_done ? Line{"q leaves, n and p turn pages"} : Line{plain(reply.error) + "; it is asked again", "31"};
        if (!screen.show(lines, foot)) break;
        const uint64_t now = clock_us();
        char pressed = 0;
        if (now < due && !Screen::key(due - now, &pressed)) break;
        if (pressed == 'q' || pressed == 'Q') break;
        if (pressed == 'n') ++page;
        if (pressed == 'p' && page > 0) --page;
        if (pressed != 'n' && pressed != 'p' && clock_us() < due) continue;   // another key, or another size
        reply = ask();
        if (reply.exit == exit_done) lines = lines_of(reply.json);
        due = clock_us() + refresh_us;
    }
    return exit_done;
}

// ---- command line --------------------------------------------------------------------------------------------------------------

void add_top(Cli& cli) {
    auto& state = cli.keep<std::string>();
    CLI::App* command =
        cli.add(cluster_group, "top", "jobs and nodes, refreshed each second; where stdout is no terminal, or with -o json: once",
                [&] { return command_top(cli.options, state); });
    command->add_option("--state", state, "only jobs that are so")->check(job_states());
    command->footer("keys: q or Ctrl-C leaves, n and p turn pages");
}

}   // namespace gradcast
