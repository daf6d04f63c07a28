#include "runtime/control/api.h"

#include <httplib.h>
#include <unistd.h>

#include <functional>
#include <sstream>

#include "runtime/control/metrics_text.h"
#include "runtime/control/page.h"
#include "runtime/control/routes.h"
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

/// invalid: the status of Code::invalid, by which a look-up means that a name does not exist.
void answer_failed(Response& res, const Status& status, int invalid = 404) {
    answer_error(res, status.code == Code::invalid ? invalid : http_of(status.code), status.code, status.what);
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
        add(routes::page, &Routes::page);
        add(routes::overview, &Routes::overview);
        add(routes::overview_watch, &Routes::overview_watch);
        add(routes::version, &Routes::version);
        add(routes::metrics, &Routes::metrics);
        add(routes::watch, &Routes::job_watch);
        add(routes::log, &Routes::job_log);
        add(routes::steps, &Routes::job_steps);
        routes::each_order([this](const auto& order) { add(order); });
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
            if (Status status = job_look(backend_, id, &detail); !status.ok()) {
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
    void add(const Route& route, auto handler) {
        auto handle = [this, route, handler](const Request& req, Response& res, const ContentReader& read) {
            const Caller& caller = call->caller;
            if (caller.role < route.role) return answer_role(res, route.role);
            std::invoke(handler, this, req, res, read);
            if (route.post && !caller.name.empty())
                log_.info("control: {} ({}) at {}: {} {}: {}", caller.name, role_name(caller.role), caller.address, req.method, req.path,
                          res.status);
        };
        const std::string path = fmt::format(fmt::runtime(route.path), "([^/]+)");
        if (route.post) http_.Post(path, handle);
        else http_.Get(path, [handle](const Request& req, Response& res) { handle(req, res, ContentReader({}, {})); });
    }

    template <typename Q, typename A>
    void add(const Order<Q, A>& order) {
        add(order, [&order](Routes* self, const Request& req, Response& res, const ContentReader& read) {
            Q asked;
            if (!body_of(order, req, res, read, &asked)) return;
            A made;
            const Status status = order.serve(self->backend_, req.matches.size() > 1 ? req.matches[1].str() : "", asked, made);
            if (status.ok()) answer(res, made, order.http);
            else if (status.code == Code::peer_refused && call->caller.role < Role::admin)   // what is asked needs more than the route
                answer_error(res, 403, status.code, status.what);
            else answer_failed(res, status, order.http_invalid);
        });
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

    /// The first field of an order that is null, where none may be: reading takes null for what is absent.  Null: there is none.
    static const char* null_of(const Json& order) {
        for (auto at = order.begin(); at != order.end(); ++at)
            if (at->is_null()) return at.key().c_str();
        return nullptr;
    }
    /// Where nothing is asked a body is read and dropped: a client that still writes when the connection is closed would miss the answer.
    static bool body_of(const auto& order, const Request& req, Response&, const ContentReader& read, Nothing*) {
        if (order.post && req.has_header("Content-Length")) read([](const char*, size_t) { return true; });
        return true;
    }
    template <typename Q>
    static bool body_of(const auto& order, const Request& req, Response& res, const ContentReader& read, Q* asked) {
        std::string body;
        constexpr size_t bytes_max = 4096;
        if (req.has_header("Content-Length"))
            read([&](const char* data, size_t bytes) { return body.append(data, bytes).size() <= bytes_max; });
        const Json json = body.empty() ? Json::object() : Json::parse(body, nullptr, false);
        if (!json.is_object() || body.size() > bytes_max)
            return answer_error(res, 400, Code::invalid, "the body is not a JSON object of at most 4096 bytes"), false;
        if (null_of(json)) return answer_error(res, 400, Code::invalid, order.wrong), false;
        try {
            json.get_to(*asked);
        } catch (const Json::exception&) {
            return answer_error(res, 400, Code::invalid, order.wrong), false;
        }
        return true;
    }
    /// Of a new job; or of one that is to go on, which may come without a job file.
    static bool body_of(const auto&, const Request& req, Response& res, const ContentReader& read, Submission* asked) {
        auto wrong = [&](const std::string& text, int http = 400) { return answer_error(res, http, Code::invalid, text), false; };
        if (!req.has_header("Content-Length")) return wrong("a body needs a Content-Length", 411);
        std::string body;
        bool whole = read([&](const char* data, size_t bytes) {
            body.append(data, bytes);
            return body.size() <= body_bytes_max;
        });
        if (!whole) {   // httplib has set 413, or 400 when the client broke off
            if (body.size() > body_bytes_max) res.status = 413;
            return false;
        }
        const bool resume = req.matches.size() > 1;
        try {
            Json json = Json::parse(body);
            if (!json.is_object() || (!json.contains("text") && !resume))
                return wrong(R"(the body must be {"text": the job file, "base": its folder})");
            if (const char* key = null_of(json)) return wrong(fmt::format("{} is null: leave it out, or give it a value", key));
            json.get_to(*asked);
        } catch (const Json::exception& error) {
            return wrong(fmt::format("the body is not the JSON of a submission: {}", error.what()));
        }
        if ((asked->base.empty() || asked->base[0] != '/') && !(resume && asked->text.empty()))
            return wrong("base must be an absolute folder");
        if (asked->count > ranks_max) return wrong(fmt::format("count must be at most {}", ranks_max));
        asked->role = call->caller.role;
        // Its command line is that of a program of its own, which writes files.
        if (asked->bench && call->caller.role < Role::admin) return answer_role(res, Role::admin), false;
        return true;
    }

    bool find(const Request& req, Response& res, JobDetail* detail) {
        Status status = job_look(backend_, req.matches[1], detail);
        if (!status.ok()) answer_failed(res, status);
        return status.ok();
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

}   // namespace

Status job_look(Backend& backend, const std::string& which, JobDetail* job) {
    GC_TRY(backend.job(which, job));
    if (::access(job->folder.c_str(), F_OK) != 0) job->folder.clear();
    return {};
}

std::unique_ptr<Api> api_open(Backend& backend, const Log& log) { return std::make_unique<Routes>(backend, log); }

std::string head_too_large() {
    const std::string text = json_text(Json{{"error", "the head of the request is too large"}, {"code", "invalid"}});
    return fmt::format(
        "HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: application/json\r\n"
        "Content-Length: {}\r\nConnection: close\r\n\r\n{}",
        text.size(), text);
}

}   // namespace gradcast
