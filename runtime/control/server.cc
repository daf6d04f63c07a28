// The control plane's HTTP server: JSON on a Unix socket, one request a connection.  The gate (gate.h) hands complete requests to
// workers, httplib parses them and finds the route, the Backend answers.  Every error is {"error": text, "code": name}.
#include <httplib.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <sstream>

#include "runtime/control/backend.h"
#include "runtime/control/gate.h"
#include "runtime/control/json.h"
#include "runtime/control/metrics_text.h"
#include "runtime/control/page.h"
#include "runtime/core/fd.h"
#include "runtime/core/limits.h"
#include "runtime/core/version.h"

namespace gradcast {
namespace {

using httplib::Request;
using httplib::Response;

constexpr int backlog = 128;
constexpr uint32_t public_connections_max = 128;         // over TCP, watchers among them
constexpr uint32_t public_watchers_max = 96;             // the rest is for who asks once, as Prometheus does
constexpr uint32_t requests_max = 128;                   // connections beside the watchers
constexpr uint64_t body_bytes_max = (1 << 20) + 65536;   // a job file of 1 MiB and what JSON puts around it
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

/// How many may watch at one time, over one listener.
struct Seats {
    uint32_t max;
    std::atomic<uint32_t>& taken;
};
constexpr char overview_mark = '*';   // begins what watches all jobs; an id has hex digits

bool ended(JobState state) { return state == JobState::done || state == JobState::failed || state == JobState::cancelled; }

/// Makes the path free for bind(): removes a socket that nobody listens on, refuses anything else.
Status socket_clear(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.empty() || path.size() >= sizeof address.sun_path)
        return fail(Code::invalid, "the control socket's path has {} bytes, a Unix socket can have at most {}: {}", path.size(),
                    sizeof address.sun_path - 1, path);
    struct stat info;
    if (::lstat(path.c_str(), &info) != 0) return errno == ENOENT ? Status{} : fail_sys(errno, "cannot make the control socket {}", path);
    if (!S_ISSOCK(info.st_mode)) return fail(Code::invalid, "cannot make the control socket: {} exists and is not a socket", path);
    Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) return fail_sys(errno, "cannot open a Unix socket");
    std::memcpy(address.sun_path, path.data(), path.size());
    // EAGAIN: the backlog of a running daemon is full.  Only ECONNREFUSED shows that there is none.
    if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 || errno == EAGAIN)
        return fail(Code::invalid, "another gradcastd answers at {}: stop it first, or give this one another socket", path);
    if (errno != ECONNREFUSED) return fail_sys(errno, "cannot make the control socket {}", path);
    if (::unlink(path.c_str()) != 0) return fail_sys(errno, "cannot replace the stale control socket {}", path);
    return {};
}

/// "host:port" or "[v6]:port".
Status listen_tcp(const std::string& where, int pending, Fd* listener) {
    const size_t colon = where.rfind(':');
    std::string host = where.substr(0, colon), port = where.substr(colon + 1);
    if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
    addrinfo* found = nullptr;
    if (const int code = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found); code != 0)
        return fail(Code::invalid, "metrics = \"{}\": {}", where, ::gai_strerror(code));
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> release(found, &::freeaddrinfo);
    Fd fd(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int on = 1;
    if (!fd || ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        ::bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0 || ::listen(fd.get(), pending) != 0)
        return fail_sys(errno, "cannot listen on {} (metrics in gradcastd.toml)", where);
    *listener = std::move(fd);
    return {};
}

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

class Server : public ControlServer {
public:
    Server(Backend& backend, const ControlConfig& config, const Log& log)
        : backend_(backend), config_(config), log_(log), overview_(backend) {}

    Status open() {
        GC_TRY(socket_clear(config_.socket));
        prepare(http_);
        prepare(public_);
        read_routes(http_, {config_.watchers_max, watchers_});
        read_routes(public_, {std::min(config_.watchers_max, public_watchers_max), public_watchers_});
        routes();
        Fd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        config_.socket.copy(address.sun_path, sizeof address.sun_path - 1);
        // Before bind(), so that the socket's mode is never wider; bind() takes the umask's bits away, so once more after it.
        if (!listener || ::fchmod(listener.get(), config_.mode) != 0 ||
            ::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
            return fail_sys(errno, "cannot make the control socket {}", config_.socket);
        if (::chmod(config_.socket.c_str(), config_.mode) != 0) return fail_sys(errno, "cannot set the mode of {}", config_.socket);
        if (::listen(listener.get(), backlog) != 0) return fail_sys(errno, "cannot listen on {}", config_.socket);
        struct stat info;
        if (::stat(config_.socket.c_str(), &info) == 0) inode_ = info.st_ino;
        gate_ = gate_open(
            {.connections_max = config_.watchers_max + requests_max, .body_bytes_max = body_bytes_max, .head_too_large = head_too_large()},
            std::move(listener),
            {.serve = [this](const std::string& request) { return serve(http_, request); },
             .look = [this](const std::string& id, bool* last) { return look(id, last); }});
        return open_public();
    }

    ~Server() override {
        public_gate_.reset();
        if (!gate_) return;
        gate_.reset();
        struct stat info;   // another daemon may have replaced the socket
        if (::stat(config_.socket.c_str(), &info) == 0 && info.st_ino == inode_) ::unlink(config_.socket.c_str());
    }

private:
    /// What all answers have in common.
    void prepare(Http& http) {
        http.set_payload_max_length(body_bytes_max);
        http.set_pre_routing_handler([this, &http](const Request& req, Response& res) {
            if (req.has_header("Transfer-Encoding"))
                answer_error(res, 411, Code::invalid, "a body needs a Content-Length, chunked bodies are not accepted");
            else if (&http == &http_ && network_name(req.get_header_value("Host")))   // which may lead to localhost once its page is loaded
                answer_error(res, 403, Code::invalid, "the control socket answers to localhost alone");
            else if (const std::string why = foreign(req); !why.empty()) answer_error(res, 403, Code::invalid, why);
            else return httplib::Server::HandlerResponse::Unhandled;
            return httplib::Server::HandlerResponse::Handled;
        });
        http.set_exception_handler([this](const Request& req, Response& res, std::exception_ptr error) {
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
        http.set_error_handler([](const Request& req, Response& res) {
            if (!res.body.empty()) return;
            if (res.status == 404) return answer_error(res, 404, Code::invalid, fmt::format("there is no {} {}", req.method, req.path));
            if (res.status == 413)
                return answer_error(res, 413, Code::invalid, fmt::format("the body has more than {} bytes", body_bytes_max));
            answer_error(res, res.status, Code::invalid,
                         fmt::format("not an HTTP request that this server accepts (status {})", res.status));
        });
    }

    Status open_public() {
        if (config_.tcp.empty()) return {};
        Fd listener;
        GC_TRY(listen_tcp(config_.tcp, backlog, &listener));
        public_gate_ = gate_open({.workers = 2,
                                  .connections_max = public_connections_max,
                                  .buffers_bytes_max = 16 << 20,
                                  .watch_us = 500'000,
                                  .head_too_large = head_too_large()},
                                 std::move(listener),
                                 {.serve = [this](const std::string& request) { return serve(public_, request); },
                                  .look = [this](const std::string& id, bool* last) { return look(id, last); }});
        return {};
    }
    static std::string head_too_large() {
        const std::string text = json_text(Json{{"error", "the head of the request is too large"}, {"code", "invalid"}});
        return fmt::format(
            "HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: application/json\r\n"
            "Content-Length: {}\r\nConnection: close\r\n\r\n{}",
            text.size(), text);
    }

    Answer serve(Http& http, const std::string& request) {
        Answer answer;
        try {
            answering = &answer;
            Exchange exchange(request);
            bool closed = false;
            http.process_request(exchange, true, closed, {});
            if (answer.bytes.empty()) answer.bytes = std::move(exchange.answer);
        } catch (const std::exception& error) {   // httplib catches exceptions of handlers, not its own
            log_.error("control: a request failed: {}", error.what());
        }
        answering = nullptr;
        return answer;
    }

    /// What changes nothing; also over TCP.
    void read_routes(Http& http, const Seats& seats) {
        http.Get("/", [](const Request&, Response& res) {
            res.set_header("Content-Security-Policy", page_policy());
            res.set_header("X-Content-Type-Options", "nosniff");
            res.set_header("Referrer-Policy", "no-referrer");
            res.set_header("Cache-Control", "no-cache");
            res.set_content(page_html().data(), page_html().size(), "text/html; charset=utf-8");
        });
        http.Get("/v1/overview", [this](const Request& req, Response& res) {
            if (OverviewQuery query; overview_query(req, res, &query)) answer(res, overview_.look(query));
        });
        http.Get("/v1/overview/watch", [this, seats](const Request& req, Response& res) {
            if (OverviewQuery query; overview_query(req, res, &query))
                watch(res, seats, fmt::format("{}{} {} {}", overview_mark, query.page, query.nodes_page, query.state));
        });
        http.Get("/v1/version", [](const Request&, Response& res) { answer(res, Json{{"version", version_text}, {"api", 1}}); });
        http.Get("/v1/nodes", [this](const Request&, Response& res) { answer(res, Json{{"nodes", backend_.nodes()}}); });
        http.Get("/v1/jobs", [this](const Request&, Response& res) { answer(res, Json{{"jobs", backend_.jobs()}}); });
        http.Get("/v1/jobs/([^/]+)", [this](const Request& req, Response& res) {
            if (JobDetail detail; find(req, res, &detail)) answer(res, detail);
        });
        http.Get("/v1/jobs/([^/]+)/watch", [this, seats](const Request& req, Response& res) {
            if (JobDetail detail; find(req, res, &detail)) watch(res, seats, detail.summary.id);
        });
        http.Get("/v1/metrics", [this](const Request& req, Response& res) {
            const bool open = req.get_header_value("Accept").find("application/openmetrics-text") != std::string::npos;
            const MetricsFormat format = open ? MetricsFormat::open_metrics : MetricsFormat::prometheus;
            res.set_content(metrics_text(backend_.jobs(), backend_.nodes(), format), metrics_content_type(format));
        });
    }

    void routes() {
        http_.Get("/v1/doctor", [this](const Request&, Response& res) { answer(res, Json{{"checks", backend_.doctor()}}); });
        http_.Post("/v1/jobs", [this](const Request& req, Response& res, const httplib::ContentReader& read) { submit(req, res, read); });
        http_.Post("/v1/jobs/([^/]+)/resume",
                   [this](const Request& req, Response& res, const httplib::ContentReader& read) { submit(req, res, read); });
        http_.Get("/v1/jobs/([^/]+)/log",
                  [this](const Request& req, Response& res) { file(req, res, "log", "text/plain; charset=utf-8"); });
        http_.Get("/v1/jobs/([^/]+)/steps",
                  [this](const Request& req, Response& res) { file(req, res, "steps.jsonl", "application/jsonl"); });
        for (const bool on : {true, false})
            http_.Post(on ? "/v1/nodes/([^/]+)/drain" : "/v1/nodes/([^/]+)/undrain",
                       [this, on](const Request& req, Response& res, const httplib::ContentReader& read) { drain(req, res, read, on); });
        http_.Post("/v1/jobs/([^/]+)/delete", [this](const Request& req, Response& res, const httplib::ContentReader& read) {
            if (req.has_header("Content-Length")) read([](const char*, size_t) { return true; });
            std::string id;
            const Status status = backend_.remove(req.matches[1], &id);
            if (!status.ok()) return answer_lookup_error(res, status);
            answer(res, Json{{"id", id}, {"deleted", true}});
        });
        http_.Post("/v1/jobs/([^/]+)/nodes",
                   [this](const Request& req, Response& res, const httplib::ContentReader& read) { add_node(req, res, read); });
        http_.Post("/v1/jobs/([^/]+)/force-view",
                   [this](const Request& req, Response& res, const httplib::ContentReader& read) { force_view(req, res, read); });
        // A content reader, because httplib waits for a body where there is no Content-Length.  A body is read and dropped: a client that
        // still writes when the connection is closed would miss the answer.
        http_.Post("/v1/jobs/([^/]+)/cancel", [this](const Request& req, Response& res, const httplib::ContentReader& read) {
            if (req.has_header("Content-Length")) read([](const char*, size_t) { return true; });
            std::string id;
            JobDetail detail;
            Status status = backend_.cancel(req.matches[1], &id);
            if (status.ok()) status = job(id, &detail);
            if (!status.ok()) return answer_lookup_error(res, status);
            answer(res, detail);
        });
    }

    /// The body: {"cancel": true}, {"node": name} or {"dead": name}; it may be left out.
    static bool body_of(const Request& req, Response& res, const httplib::ContentReader& read, Json* json) {
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

    void drain(const Request& req, Response& res, const httplib::ContentReader& read, bool on) {
        Json body;
        if (!body_of(req, res, read, &body)) return;
        const auto cancel = body.find("cancel");
        if (cancel != body.end() && !cancel->is_boolean()) return answer_error(res, 400, Code::invalid, "cancel must be true or false");
        const std::string node = req.matches[1];
        const Status status = backend_.drain(node, on, cancel != body.end() && cancel->get<bool>());
        if (!status.ok()) return answer_lookup_error(res, status);
        answer(res, Json{{"node", node}, {"draining", on}}, 202);
    }

    void add_node(const Request& req, Response& res, const httplib::ContentReader& read) {
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

    void force_view(const Request& req, Response& res, const httplib::ContentReader& read) {
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
    void submit(const Request& req, Response& res, const httplib::ContentReader& read) {
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
        *answering = std::move(file);
    }

    /// Server-sent events: `status` with the job's detail whenever it changes, at most ten a second, until the job has ended; or `overview`
    /// with the page of jobs and nodes that was asked for, at most once a second.
    void watch(Response& res, const Seats& seats, const std::string& what) {
        auto seat = std::shared_ptr<void>(nullptr, [&taken = seats.taken](void*) { taken.fetch_sub(1, std::memory_order_relaxed); });
        if (seats.taken.fetch_add(1, std::memory_order_relaxed) >= seats.max)
            return answer_error(res, 503, Code::node_memory,
                                fmt::format("{} watchers are connected, which is the limit: try again later, or poll", seats.max));
        answering->bytes = watch_head;
        answering->watch = what;
        answering->seat = std::move(seat);
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

    std::string look(const std::string& id, bool* last) {
        Json json;
        const char* event = "error";
        *last = true;
        try {
            if (id[0] == overview_mark) return *last = false, look_at_all(id.substr(1));
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

    inline static thread_local Answer* answering = nullptr;   // of the request that this worker serves: filled where httplib's is not sent
    Backend& backend_;
    const ControlConfig config_;
    Log log_;
    Http http_, public_;   // of the Unix socket; over TCP
    ino_t inode_ = 0;
    Overview overview_;
    std::atomic<uint32_t> watchers_{0}, public_watchers_{0};
    std::unique_ptr<Gate> gate_, public_gate_;   // last: it calls what is above
};

}   // namespace

Status control_open(const ControlConfig& config, Backend& backend, const Log& log, std::unique_ptr<ControlServer>* server) {
    try {
        auto made = std::make_unique<Server>(backend, config, log);
        GC_TRY(made->open());
        *server = std::move(made);
        return {};
    } catch (const std::exception& error) {
        return fail(Code::node_io, "cannot start the control server: {}", error.what());
    }
}

}   // namespace gradcast
