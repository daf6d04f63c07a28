#include "tools/gradcastctl/client.h"

#include <httplib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cctype>
#include <cstdlib>
#include <thread>

#include "runtime/control/tls_http.h"
#include "runtime/core/clock.h"
#include "runtime/core/fd.h"

namespace gradcast {
namespace {

constexpr time_t connect_seconds = 5;

/// Over the socket httplib's, over TCP ours with TLS: one interface.
std::unique_ptr<httplib::ClientImpl> client_open(const Target& target, time_t read_seconds) {
    std::unique_ptr<httplib::ClientImpl> client;
    if (target.remote()) client = std::make_unique<TlsHttp>(target.host, target.port, target.key);
    else client = std::make_unique<httplib::ClientImpl>(target.socket, 1);
    if (!target.remote()) client->set_address_family(AF_UNIX);
    if (!target.remote()) client->set_default_headers({{"Host", "localhost"}});
    client->set_url_encode(false);   // path_of() did
    client->set_connection_timeout(connect_seconds);
    client->set_read_timeout(read_seconds);
    client->set_write_timeout(connect_seconds);
    return client;
}

/// httplib's texts are the names of its enumerators.
std::string words(const Target& target, const httplib::ClientImpl& client, httplib::Error error) {
    if (target.remote()) {
        const std::string& why = static_cast<const TlsHttp&>(client).why();   // client_open() made it
        if (!why.empty()) return why;
    }
    switch (error) {
        case httplib::Error::Connection: return "nothing listens";
        case httplib::Error::ConnectionTimeout: return "it does not accept the connection";
        case httplib::Error::Read: return "the answer broke off or took too long";
        case httplib::Error::Write: return "it does not read the request";
        default: return to_string(error);
    }
}

/// The route of this job or node, with all but plain letters escaped.
std::string path_of(const Route& route, const std::string& which) {
    std::string escaped;
    for (unsigned char c : which)
        escaped += std::isalnum(c) || c == '-' || c == '_' ? std::string(1, static_cast<char>(c)) : fmt::format("%{:02X}", c);
    return fmt::format(fmt::runtime(route.path), escaped);
}

Reply failed(Exit exit, std::string error) {
    Reply reply;
    reply.exit = exit;
    reply.error = std::move(error);
    return reply;
}

/// The error that a daemon has answered.
Reply refused(int http, const std::string& body) {
    Reply reply;
    reply.exit = exit_failed;
    reply.json = Json::parse(body, nullptr, false);
    auto text = [&](const char* key) {
        return reply.json.is_object() && reply.json[key].is_string() ? reply.json[key].get<std::string>() : "";
    };
    reply.error = text("error");
    if (reply.error.empty()) reply.error = fmt::format("the daemon answered with HTTP status {}", http);
    if (text("code") == code_name(Code::invalid)) reply.exit = exit_usage;
    return reply;
}

}   // namespace

bool job_ended(JobState state) { return state == JobState::done || state == JobState::failed || state == JobState::cancelled; }

Reply Client::unreachable(const std::string& why) const {
    if (target_.remote()) return failed(exit_unreachable, why);
    const std::string& socket = target_.socket;
    const bool there = ::access(socket.c_str(), F_OK) == 0;
    if (there && ::access(socket.c_str(), W_OK) != 0)
        return failed(exit_unreachable, fmt::format("no permission to use {}: be root or in its group (ls -l {})", socket, socket));
    return failed(exit_unreachable,
                  fmt::format("no gradcastd answers at {} ({}): is it running? systemctl status gradcastd, or use run --local", socket,
                              there ? why : "no such file"));
}

Reply Client::submit(const Submission& submission, JobDetail* job, const std::function<bool(const std::string& id)>& wait,
                     const std::string& resumes) const {
    Begun begun;
    Reply reply = ask(resumes.empty() ? routes::submit : routes::resume, resumes, submission, &begun);
    if (reply.exit != exit_done) return reply;
    Reply seen = follow(begun.id, job, [&](const JobDetail& now) { return wait(begun.id) && !now.started; });
    if (job->started) return reply;   // whatever its state is now
    if (seen.exit != exit_done) return seen;
    const JobStatus& status = job->summary.status;
    return failed(status.code == Code::invalid ? exit_usage : exit_failed, status.error);
}

namespace {
/// The process that listens on a socket, where it is stopped; 0: it runs, or is not known.
pid_t stopped_at(const std::string& socket) {
    const Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    socket.copy(address.sun_path, sizeof address.sun_path - 1);
    ucred peer{};
    socklen_t bytes = sizeof peer;
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
        ::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &bytes) != 0)
        return 0;
    std::string stat;
    if (!file_read(fmt::format("/proc/{}/stat", peer.pid), &stat).ok()) return 0;
    const size_t state = stat.rfind(") ");   // pid (name) state …
    return state != stat.npos && (stat[state + 2] == 'T' || stat[state + 2] == 't') ? peer.pid : 0;
}
/// The same of a process that stays stopped for a while: one whose share of a CPU is limited by signals stops for some milliseconds.
pid_t stays_stopped_at(const std::string& socket) {
    constexpr uint64_t while_us = 500'000, look_us = 20'000;
    const uint64_t end_us = clock_us() + while_us;
    for (;; ::usleep(look_us))
        if (const pid_t stopped = stopped_at(socket); stopped == 0 || clock_us() > end_us) return stopped;
}
}   // namespace

Reply Client::request(const Route& route, const std::string& which, const std::string& query, const std::string& body) const {
    if (!target_.wrong.empty()) return failed(exit_usage, target_.wrong);
    if (const pid_t stopped = target_.remote() ? 0 : stays_stopped_at(target_.socket); stopped > 0)
        return failed(exit_unreachable, fmt::format("gradcastd at {} is stopped (process {}, state T): kill -CONT {} lets it go on",
                                                    target_.socket, stopped, stopped));
    const auto client = client_open(target_, answer_seconds_);
    const std::string path = path_of(route, which) + query;
    auto result = route.post ? client->Post(path, body, "application/json") : client->Get(path);
    if (!result) return unreachable(words(target_, *client, result.error()));
    if (result->status / 100 != 2) return refused(result->status, result->body);
    Reply reply;
    if (result->get_header_value("Content-Type") == "application/json") {
        reply.json = Json::parse(result->body, nullptr, false);
        if (!reply.json.is_object()) return unreachable("its answer is not JSON");
        return reply;
    }
    reply.next = std::strtoull(result->get_header_value("Gradcast-Next").c_str(), nullptr, 10);
    reply.text = std::move(result->body);
    return reply;
}

Reply Client::follow(const std::string& which, JobDetail* detail, const std::function<bool(const JobDetail&)>& seen) const {
    Reply reply = job(which, detail);
    if (reply.exit != exit_done) return reply;
    const std::string id = detail->summary.id;
    int http = 0;
    bool wanted = true;
    std::string text, wrong;
    const auto client = client_open(target_, answer_seconds_);
    auto result = client->Get(
        path_of(routes::watch, id), [&](const httplib::Response& response) { return (http = response.status) != 0; },
        [&](const char* data, size_t bytes) {
            text.append(data, bytes);
            for (size_t end; (end = text.find("\n\n")) != std::string::npos && http == 200; text.erase(0, end + 2)) {
                if (size_t at = text.find("data: "); at < end) {
                    Json json = Json::parse(text.substr(at + 6, end - at - 6), nullptr, false);
                    if (text.starts_with("event: error")) {
                        wrong = json.value("error", "the job is gone");
                        return false;
                    }
                    try {
                        *detail = json.get<JobDetail>();
                    } catch (const Json::exception& error) {
                        wrong = error.what();
                        return false;
                    }
                }
                if (!(wanted = seen(*detail))) return false;   // after an idle line: the last status again
            }
            return true;
        });
    if (!wanted) return failed(exit_failed, "");
    if (http == 503) {   // too many watchers: poll instead
        for (;;) {
            reply = job(id, detail);
            if (reply.exit != exit_done) return reply;
            if (!seen(*detail)) return failed(exit_failed, "");
            if (job_ended(detail->summary.status.state)) return {};
            std::this_thread::sleep_for(std::chrono::seconds(1));
        }
    }
    if (!wrong.empty()) return failed(exit_failed, wrong);
    if (result && http != 200) return refused(http, text);
    if (!job_ended(detail->summary.status.state))
        return unreachable(result ? "it ended while the job ran" : words(target_, *client, result.error()) + " while the job ran");
    return {};
}

int complain_of(const Reply& reply) {
    if (reply.error.empty()) return reply.exit;
    return complain(reply.exit, "{}", reply.error);
}

}   // namespace gradcast
