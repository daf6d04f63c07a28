#include "runtime/control/api.h"

#include <httplib.h>
#include <unistd.h>

#include <sstream>

#include "runtime/control/json.h"
#include "runtime/control/metrics_text.h"
#include "runtime/control/page.h"
#include "runtime/core/fd.h"
#include "runtime/core/limits.h"
#include "runtime/core/version.h"

namespace gradcast {
namespace {

using httplib::ContentReader;
using httplib::Request;
using httplib::Response;

constexpr const char* watch_head =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\nTransfer-Encoding: chunked\r\nConnection: "
    "close\r\n\r\n";

void answer(Response& res, const Json& json, int http = 200) {
    res.status = http;
    res.set_content(json_text(json, 2) + "\n", "application/json");
}

void answer_error(Response& res, int http, Code code, const std::string& text) {
    answer(res, Json{{"error", text}, {"code", code_name(code)}}, http);
}

int http_of(Code code) {
    switch (code) {
        case Code::ok: return 200;
        case Code::invalid:
        case Code::data:
        case Code::unsupported: return 400;
        case Code::conflict:
        case Code::cancelled: return 409;
        case Code::peer_lost:
        case Code::peer_refused: return 502;
        case Code::deadline: return 504;
        case Code::packet_invalid:
        case Code::view_changed:
        case Code::diverged:
        case Code::node_io:
        case Code::node_memory: return 500;
    }
    return 500;
}

/// A job that cannot be found is the only mistake of a user that a look-up can meet.
void answer_lookup_error(Response& res, const Status& status) {
    answer_error(res, status.code == Code::invalid ? 404 : http_of(status.code), status.code, status.what);
}

/// Why a request is not from a client of ours: a browser has sent it for another site's page.  Such a page may reach a socket that ssh
/// forwards to localhost, and must neither change nor read anything.  "": nothing speaks against it.
std::string foreign(const Request& req) {
    if (req.method != "GET" && req.has_header("Origin")) return "a page in a browser changes nothing here: use gradcastctl";
    const std::string site = req.get_header_value("Sec-Fetch-Site");
    // Following a link to the page is harmless: its policy forbids frames.
    if ((site == "cross-site" || site == "same-site") && req.get_header_value("Sec-Fetch-Mode") != "navigate")
        return "a page of another site may not read this";
    return {};
}

/// A name of the network's, as "example.org:8080": no address, and not localhost.
bool network_name(std::string host) {
    host = host.substr(0, host.find(':'));
    return host.find('.') != std::string::npos && host.find('/') == std::string::npos &&
           host.find_first_not_of("0123456789.") != std::string::npos;
}

constexpr char overview_mark = '*';   // begins what watches all jobs; an id has hex digits

bool ended(JobState state) { return state == JobState::done || state == JobState::failed || state == JobState::cancelled; }

/// A complete request, and its answer.
class Exchange final : public httplib::Stream {
public:
    explicit Exchange(const std::string& request) : request_(request) {}
    bool is_readable() const override { return true; }
    bool is_writable() const override { return true; }
    ssize_t read(char* data, size_t bytes) override {
        const size_t got = request_.copy(data, bytes, read_);
        read_ += got;
        return static_cast<ssize_t>(got);
    }
    ssize_t write(const char* data, size_t bytes) override {
        answer.append(data, bytes);
        return static_cast<ssize_t>(bytes);
    }
    void get_remote_ip_and_port(std::string&, int&) const override {}
    void get_local_ip_and_port(std::string&, int&) const override {}
    int socket() const override { return -1; }
    std::string answer;

private:
    const std::string& request_;
    size_t read_ = 0;
};

struct Http : httplib::Server {
    using httplib::Server::process_request;
};

/// What a worker serves; handlers find it here, because httplib passes them nothing of ours.
struct Call {
    const Caller& caller;
    Seats& seats;
    bool local;
    Answer answer = {};   // filled where httplib's is not sent
};
thread_local Call* call = nullptr;

class Routes final : public Api {
public:
    Routes(Backend& backend, const Log& log) : backend_(backend), log_(log), overview_(backend) {
        prepare();
        for (const Route& each : table()) add(each);
    }

    Answer serve(const std::string& request, const Caller& caller, Seats& seats, bool local) override {
        Call now{caller, seats, local};
        try {
            call = &now;
            Exchange exchange(request);
            bool closed = false;
            http_.process_request(exchange, true, closed, {});
            if (now.answer.bytes.empty()) now.answer.bytes = std::move(exchange.answer);
        } catch (const std::exception& error) {   // httplib catches exceptions of handlers, not its own
            log_.error("control: a request failed: {}", error.what());
        }
        call = nullptr;
        return std::move(now.answer);
    }

    std::string look(const std::string& id, bool* last) override {
        Json json;
        const char* event = "error";
        *last = true;
        try {
            if (id[0] == overview_mark) {
                *last = false;
                return look_at_all(id.substr(1));
            }
            JobDetail detail;
            if (Status status = job(id, &detail); !status.ok()) {
                json = Json{{"error", status.what}, {"code", code_name(status.code)}};
            } else {
                json = detail;
                event = "status";
                *last = ended(detail.summary.status.state);
            }
        } catch (const std::exception& error) {
            log_.error("control: watching job {} failed: {}", id, error.what());
            json = Json{{"error", error.what()}, {"code", code_name(Code::node_io)}};
        }
        return fmt::format("event: {}\ndata: {}\n\n", event, json_text(json));
    }

private:
    using Handler = void (Routes::*)(const Request&, Response&, const ContentReader&);
    struct Route {
        bool post;
        const char* path;
        Role role;   // that it needs
        Handler handler;
    };
    static std::span<const Route> table();

    void add(const Route& route) {
        auto handle = [this, route](const Request& req, Response& res, const ContentReader& read) {
            const Caller& caller = call->caller;
            if (caller.role < route.role) return answer_role(res, route.role);
            (this->*route.handler)(req, res, read);
            if (route.post && !caller.name.empty())
                log_.info("control: {} ({}) at {}: {} {}: {}", caller.name, role_name(caller.role), caller.address, req.method, req.path,
                          res.status);
        };
        if (route.post) http_.Post(route.path, handle);
        else http_.Get(route.path, [handle](const Request& req, Response& res) { handle(req, res, ContentReader({}, {})); });
    }

    static void answer_role(Response& res, Role role) {
        const Caller& caller = call->caller;
        const char* needs = role_name(role);
        answer_error(
            res, 403, Code::peer_refused,
            caller.name.empty()
                ? fmt::format("this needs the role {}: use the control socket of a node, or its port of `control` with a key", needs)
                : fmt::format("this needs the role {0}, and the key {1} has the role {2}: ask for a key with the role {0}", needs,
                              caller.name, role_name(caller.role)));
    }

    /// What all answers have in common.
    void prepare() {
        http_.set_payload_max_length(body_bytes_max);
        http_.set_pre_routing_handler([](const Request& req, Response& res) {
            if (req.has_header("Transfer-Encoding"))
                answer_error(res, 411, Code::invalid, "a body needs a Content-Length, chunked bodies are not accepted");
            else if (call->local && network_name(req.get_header_value("Host")))   // which may lead to localhost once its page is loaded
                answer_error(res, 403, Code::invalid, "the control socket answers to localhost alone");
            else if (const std::string why = foreign(req); !why.empty()) answer_error(res, 403, Code::invalid, why);
            else return httplib::Server::HandlerResponse::Unhandled;
            return httplib::Server::HandlerResponse::Handled;
        });
        http_.set_exception_handler([this](const Request& req, Response& res, std::exception_ptr error) {
            std::string text = "an unknown exception";
            try {
                std::rethrow_exception(std::move(error));
            } catch (const std::exception& exception) {
                text = exception.what();
            } catch (...) {
            }
            log_.error("control: {} {} failed: {}", req.method, req.path, text);
            answer_error(res, 500, Code::node_io, "inside gradcastd: " + text);
        });
        http_.set_error_handler([](const Request& req, Response& res) {
            if (!res.body.empty()) return;
            if (res.status == 404) return answer_error(res, 404, Code::invalid, fmt::format("there is no {} {}", req.method, req.path));
            if (res.status == 413)
                return answer_error(res, 413, Code::invalid, fmt::format("the body has more than {} bytes", body_bytes_max));
            answer_error(res, res.status, Code::invalid,
                         fmt::format("not an HTTP request that this server accepts (status {})", res.status));
        });
    }

    void page(const Request&, Response& res, const ContentReader&) {
        res.set_header("Content-Security-Policy", page_policy());
        res.set_header("X-Content-Type-Options", "nosniff");
        res.set_header("Referrer-Policy", "no-referrer");
        res.set_header("Cache-Control", "no-cache");
        res.set_content(page_html().data(), page_html().size(), "text/html; charset=utf-8");
    }
    void overview(const Request& req, Response& res, const ContentReader&) {
        if (OverviewQuery query; overview_query(req, res, &query)) answer(res, overview_.look(query));
    }
    void overview_watch(const Request& req, Response& res, const ContentReader&) {
        if (OverviewQuery query; overview_query(req, res, &query))
            watch(res, fmt::format("{}{} {} {}", overview_mark, query.page, query.nodes_page, query.state));
    }
    void version(const Request&, Response& res, const ContentReader&) {
        Json json{{"version", version_text}, {"api", 1}};
        if (!call->caller.name.empty()) {
            json["role"] = role_name(call->caller.role);
            json["key"] = call->caller.name;
        }
        answer(res, json);
    }
    void nodes(const Request&, Response& res, const ContentReader&) { answer(res, Json{{"nodes", backend_.nodes()}}); }
    void jobs(const Request&, Response& res, const ContentReader&) { answer(res, Json{{"jobs", backend_.jobs()}}); }
    void job_detail(const Request& req, Response& res, const ContentReader&) {
        if (JobDetail detail; find(req, res, &detail)) answer(res, detail);
    }
    void job_watch(const Request& req, Response& res, const ContentReader&) {
        if (JobDetail detail; find(req, res, &detail)) watch(res, detail.summary.id);
    }
    void job_log(const Request& req, Response& res, const ContentReader&) { file(req, res, "log", "text/plain; charset=utf-8"); }
    void job_steps(const Request& req, Response& res, const ContentReader&) { file(req, res, "steps.jsonl", "application/jsonl"); }
    void metrics(const Request& req, Response& res, const ContentReader&) {
        const bool open = req.get_header_value("Accept").find("application/openmetrics-text") != std::string::npos;
        const MetricsFormat format = open ? MetricsFormat::open_metrics : MetricsFormat::prometheus;
        res.set_content(metrics_text(backend_.jobs(), backend_.nodes(), format), metrics_content_type(format));
    }
    void doctor(const Request&, Response& res, const ContentReader&) { answer(res, Json{{"checks", backend_.doctor()}}); }

    /// Where no body is wanted one is read and dropped: a client that still writes when the connection is closed would miss the answer.
    static void drop_body(const Request& req, const ContentReader& read) {
        if (req.has_header("Content-Length")) read([](const char*, size_t) { return true; });
    }
    void remove(const Request& req, Response& res, const ContentReader& read) {
        drop_body(req, read);
        std::string id;
        const Status status = backend_.remove(req.matches[1], &id);
        if (!status.ok()) return answer_lookup_error(res, status);
        answer(res, Json{{"id", id}, {"deleted", true}});
    }
    void cancel(const Request& req, Response& res, const ContentReader& read) {
        drop_body(req, read);
        std::string id;
        JobDetail detail;
        Status status = backend_.cancel(req.matches[1], &id);
        if (status.ok()) status = job(id, &detail);
        if (!status.ok()) return answer_lookup_error(res, status);
        answer(res, detail);
    }
    void drain_on(const Request& req, Response& res, const ContentReader& read) { drain(req, res, read, true); }
    void drain_off(const Request& req, Response& res, const ContentReader& read) { drain(req, res, read, false); }

    /// The body: {"cancel": true}, {"node": name} or {"dead": name}; it may be left out.
    static bool body_of(const Request& req, Response& res, const ContentReader& read, Json* json) {
        *json = Json::object();
        if (!req.has_header("Content-Length")) return true;
        std::string body;
        constexpr size_t bytes_max = 4096;
        read([&](const char* data, size_t bytes) { return body.append(data, bytes).size() <= bytes_max; });
        if (body.empty()) return true;
        *json = Json::parse(body, nullptr, false);
        if (json->is_object() && body.size() <= bytes_max) return true;
        answer_error(res, 400, Code::invalid, "the body is not a JSON object of at most 4096 bytes");
        return false;
    }

    void drain(const Request& req, Response& res, const ContentReader& read, bool on) {
        Json body;
        if (!body_of(req, res, read, &body)) return;
        const auto cancel = body.find("cancel");
        if (cancel != body.end() && !cancel->is_boolean()) return answer_error(res, 400, Code::invalid, "cancel must be true or false");
        const std::string node = req.matches[1];
        const Status status = backend_.drain(node, on, cancel != body.end() && cancel->get<bool>());
        if (!status.ok()) return answer_lookup_error(res, status);
        answer(res, Json{{"node", node}, {"draining", on}}, 202);
    }

    void add_node(const Request& req, Response& res, const ContentReader& read) {
        Json body;
        if (!body_of(req, res, read, &body)) return;
        const auto node = body.find("node");
        if (node == body.end() || !node->is_string())
            return answer_error(res, 400, Code::invalid, R"(the body must be {"node": its name})");
        std::string id;
        const Status status = backend_.add_node(req.matches[1], node->get<std::string>(), &id);
        if (!status.ok()) return answer_error(res, http_of(status.code), status.code, status.what);
        answer(res, Json{{"id", id}, {"node", *node}}, 202);
    }

    void force_view(const Request& req, Response& res, const ContentReader& read) {
        Json body;
        if (!body_of(req, res, read, &body)) return;
        const auto dead = body.find("dead");
        if (dead == body.end() || !dead->is_string())
            return answer_error(res, 400, Code::invalid, R"(the body must be {"dead": name of a node})");
        std::string id;
        const Status status = backend_.force_view(req.matches[1], dead->get<std::string>(), &id);
        if (!status.ok()) return answer_error(res, http_of(status.code), status.code, status.what);
        answer(res, Json{{"id", id}, {"dead", *dead}}, 202);
    }

    Status job(const std::string& which, JobDetail* detail) {
        GC_TRY(backend_.job(which, detail));
        if (::access(detail->folder.c_str(), F_OK) != 0) detail->folder.clear();
        return {};
    }
    bool find(const Request& req, Response& res, JobDetail* detail) {
        Status status = job(req.matches[1], detail);
        if (!status.ok()) answer_lookup_error(res, status);
        return status.ok();
    }

    /// Of a new job; or of one that is to go on, which may come without a job file.
    void submit(const Request& req, Response& res, const ContentReader& read) {
        if (!req.has_header("Content-Length")) return answer_error(res, 411, Code::invalid, "a body needs a Content-Length");
        std::string body;
        bool whole = read([&](const char* data, size_t bytes) {
            body.append(data, bytes);
            return body.size() <= body_bytes_max;
        });
        if (!whole) {   // httplib has set 413, or 400 when the client broke off
            if (body.size() > body_bytes_max) res.status = 413;
            return;
        }
        const bool resume = req.matches.size() > 1;
        Submission submission;
        try {
            Json json = Json::parse(body);
            if (!json.is_object() || (!json.contains("text") && !resume))
                return answer_error(res, 400, Code::invalid, R"(the body must be {"text": the job file, "base": its folder})");
            json.get_to(submission);
        } catch (const Json::exception& error) {
            return answer_error(res, 400, Code::invalid, fmt::format("the body is not the JSON of a submission: {}", error.what()));
        }
        if ((submission.base.empty() || submission.base[0] != '/') && !(resume && submission.text.empty()))
            return answer_error(res, 400, Code::invalid, "base must be an absolute folder");
        if (submission.count > ranks_max) return answer_error(res, 400, Code::invalid, fmt::format("count must be at most {}", ranks_max));
        // Its command line is that of a program of its own, which writes files.
        if (submission.bench && call->caller.role < Role::admin) return answer_role(res, Role::admin);
        std::string id;
        Status status = resume ? backend_.resume(req.matches[1], submission, &id) : backend_.submit(submission, &id);
        if (!status.ok()) return answer_error(res, http_of(status.code), status.code, status.what);
        answer(res, Json{{"id", id}, {"state", job_state_name(JobState::preparing)}}, 202);
    }

    /// A piece of one of a job's files: from ?offset= (default 0) to its end, at most piece_bytes_max.  Header Gradcast-Next: the offset to
    /// go on from.
    void file(const Request& req, Response& res, const char* name, const char* type) {
        constexpr uint64_t piece_bytes_max = 4 << 20;
        JobDetail detail;
        if (!find(req, res, &detail)) return;
        uint64_t offset = 0;
        if (req.has_param("offset")) {
            std::string text = req.get_param_value("offset");
            if (text.empty() || text.size() > 18 || text.find_first_not_of("0123456789") != std::string::npos)
                return answer_error(res, 400, Code::invalid, fmt::format("offset must be a number of bytes, not '{}'", text));
            offset = std::stoull(text);
        }
        const std::string path = detail.folder + "/" + name;
        Answer file;   // of a job that has not written it yet: empty
        uint64_t size = 0;
        const Status opened = detail.folder.empty() ? Status{} : file_open(path, &file.file, &size);
        if (!opened.ok() && opened.sys != ENOENT) return answer_error(res, 500, Code::node_io, opened.what);
        file.file_offset = offset;
        file.file_bytes = std::min(piece_bytes_max, size - std::min(size, offset));
        file.bytes =
            fmt::format("HTTP/1.1 200 OK\r\nContent-Type: {}\r\nGradcast-Next: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", type,
                        offset + file.file_bytes, file.file_bytes);
        call->answer = std::move(file);
    }

    /// Server-sent events: `status` with the job's detail whenever it changes, at most ten a second, until the job has ended; or `overview`
    /// with the page of jobs and nodes that was asked for, at most once a second.
    static void watch(Response& res, const std::string& what) {
        Seats& seats = call->seats;
        auto seat = std::shared_ptr<void>(nullptr, [&taken = seats.taken](void*) { taken.fetch_sub(1, std::memory_order_relaxed); });
        if (seats.taken.fetch_add(1, std::memory_order_relaxed) >= seats.max)
            return answer_error(res, 503, Code::node_memory,
                                fmt::format("{} watchers are connected, which is the limit: try again later, or poll", seats.max));
        call->answer.bytes = watch_head;
        call->answer.watch = what;
        call->answer.seat = std::move(seat);
    }

    static bool overview_query(const Request& req, Response& res, OverviewQuery* query) {
        std::string why;
        auto value = [&](const char* key) { return req.get_param_value(key); };
        if (OverviewQuery::parse(value("page"), value("nodes"), value("state"), query, &why)) return true;
        answer_error(res, 400, Code::invalid, why);
        return false;
    }

    std::string look_at_all(const std::string& what) {
        std::istringstream words(what);
        OverviewQuery query;
        words >> query.page >> query.nodes_page >> query.state;
        return fmt::format("event: overview\ndata: {}\n\n", json_text(overview_.look(query)));
    }

    Backend& backend_;
    const Log log_;
    Http http_;
    Overview overview_;
};

// Role::none: also without a key, at the port of `metrics`.
std::span<const Routes::Route> Routes::table() {
    static constexpr Route all[] = {
        {false, "/", Role::none, &Routes::page},
        {false, "/v1/overview", Role::none, &Routes::overview},
        {false, "/v1/overview/watch", Role::none, &Routes::overview_watch},
        {false, "/v1/version", Role::none, &Routes::version},
        {false, "/v1/nodes", Role::none, &Routes::nodes},
        {false, "/v1/metrics", Role::none, &Routes::metrics},
        {false, "/v1/jobs", Role::none, &Routes::jobs},
        {false, "/v1/jobs/([^/]+)", Role::none, &Routes::job_detail},
        {false, "/v1/jobs/([^/]+)/watch", Role::none, &Routes::job_watch},
        {false, "/v1/jobs/([^/]+)/log", Role::view, &Routes::job_log},
        {false, "/v1/jobs/([^/]+)/steps", Role::view, &Routes::job_steps},
        {false, "/v1/doctor", Role::view, &Routes::doctor},
        {true, "/v1/jobs", Role::submit, &Routes::submit},
        {true, "/v1/jobs/([^/]+)/resume", Role::submit, &Routes::submit},
        {true, "/v1/jobs/([^/]+)/cancel", Role::submit, &Routes::cancel},
        {true, "/v1/jobs/([^/]+)/delete", Role::admin, &Routes::remove},
        {true, "/v1/jobs/([^/]+)/nodes", Role::admin, &Routes::add_node},
        {true, "/v1/jobs/([^/]+)/force-view", Role::admin, &Routes::force_view},
        {true, "/v1/nodes/([^/]+)/drain", Role::admin, &Routes::drain_on},
        {true, "/v1/nodes/([^/]+)/undrain", Role::admin, &Routes::drain_off},
    };
    return all;
}

}   // namespace

std::unique_ptr<Api> api_open(Backend& backend, const Log& log) { return std::make_unique<Routes>(backend, log); }

std::string head_too_large() {
    const std::string text = json_text(Json{{"error", "the head of the request is too large"}, {"code", "invalid"}});
    return fmt::format(
        "HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: application/json\r\n"
        "Content-Length: {}\r\nConnection: close\r\n\r\n{}",
        text.size(), text);
}

}   // namespace gradcast
