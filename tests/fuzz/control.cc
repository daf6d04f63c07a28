// Whatever a client sends to the control socket: the connection ends, with an answer of HTTP or without; and whatever a daemon answers: the
// client refuses it by an exception that it catches, or can write it again.  The first byte says which.
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "runtime/control/json.h"
#include "runtime/core/fd.h"
#include "tests/control/fake_backend.h"
#include "tests/fuzz/reached.h"

namespace gradcast {
namespace {

struct Server {
    FakeBackend backend;
    std::string socket = std::filesystem::temp_directory_path() / fmt::format("gradcast-fuzz-{}.sock", ::getpid());
    std::unique_ptr<ControlServer> control;
    Server() {
        backend.finish(backend.add("aaaa0000000000000000000000000000", "job"), JobState::done);
        log_level(Level::error);
        GC_ASSERT(control_open({.socket = socket}, backend, Log(), &control).ok());
    }
};

void request(const uint8_t* data, size_t size) {
    static Server server;
    const Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    server.socket.copy(address.sun_path, sizeof address.sun_path - 1);
    GC_ASSERT(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    const timeval patience{20, 0};
    ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    for (size_t at = 0; at < size;) {
        const ssize_t sent = ::send(fd.get(), data + at, size - at, MSG_NOSIGNAL);
        if (sent <= 0) break;   // it has closed the connection
        at += static_cast<size_t>(sent);
    }
    ::shutdown(fd.get(), SHUT_WR);
    std::string answer;
    char bytes[65536];
    ssize_t got;
    while ((got = ::recv(fd.get(), bytes, sizeof bytes, 0)) > 0) answer.append(bytes, static_cast<size_t>(got));
    GC_ASSERT(got == 0 || errno != EAGAIN);
    GC_ASSERT(answer.empty() || answer.starts_with("HTTP/1.1 "));
    if (answer.starts_with("HTTP/1.1 200")) fuzz_reaches(0);
    std::lock_guard lock(server.backend.mutex);
    if (!server.backend.submitted.empty()) fuzz_reaches(1);
    server.backend.submitted.clear();
}

template <typename T>
void value(const Json& json, uint32_t bit) {
    try {
        const T read = json.get<T>();
        fuzz_reaches(bit);
        GC_ASSERT(!json_text(Json(read)).empty());
    } catch (const Json::exception&) {
    }
}

}   // namespace
}   // namespace gradcast

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace gradcast;
    if (size == 0) return 0;
    const uint8_t kind = data[0] % 5;
    if (kind == 0) return request(data + 1, size - 1), 0;
    const Json json = Json::parse(data + 1, data + size, nullptr, false);
    if (kind == 1) value<JobDetail>(json, 2);
    if (kind == 2) value<NodeInfo>(json, 3);
    if (kind == 3) value<Submission>(json, 4);
    if (kind == 4) value<Finding>(json, 5);
    return 0;
}
