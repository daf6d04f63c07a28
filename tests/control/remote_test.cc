// Control over TCP: TLS with keys, roles, and what those without a key can do.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <thread>

#include "runtime/control/json.h"
#include "runtime/control/tls_http.h"
#include "runtime/core/clock.h"
#include "runtime/core/fd.h"
#include "tests/control/fake_backend.h"
#include "tests/control/resident.h"

namespace gradcast {
namespace {

const std::string id = "aaaa0000000000000000000000000000";

ControlKey key_of(const std::string& name, Role role, uint8_t byte) {
    std::array<uint8_t, 32> secret;
    secret.fill(byte);
    return client_key(name, role, secret);
}

struct Remote : testing::Test {
    std::string folder;
    FakeBackend backend;
    std::unique_ptr<ControlServer> server;
    uint16_t port = 0;
    const ControlKey vera = key_of("vera", Role::view, 1), sue = key_of("sue", Role::submit, 2), ada = key_of("ada", Role::admin, 3);

    void SetUp() override {
        ::signal(SIGPIPE, SIG_IGN);
        folder = testing::TempDir() + "gc-remote-XXXXXX";
        ASSERT_NE(::mkdtemp(folder.data()), nullptr);
        const Status status =
            control_open({.socket = folder + "/s", .remote = "127.0.0.1:0", .keys = {vera, sue, ada}}, backend, Log(), &server);
        ASSERT_TRUE(status.ok()) << status.what;
        port = static_cast<uint16_t>(std::stoi(server->address().substr(server->address().rfind(':') + 1)));
        backend.add(id, "first");
    }
    void TearDown() override {
        server.reset();
        std::filesystem::remove_all(folder);
    }
    std::unique_ptr<TlsHttp> client(const ControlKey& key) const {
        auto made = std::make_unique<TlsHttp>("127.0.0.1", port, key);
        made->set_connection_timeout(10);
        made->set_read_timeout(20);
        return made;
    }
    int get(const ControlKey& key, const std::string& route) const {
        const auto reply = client(key)->Get(route.c_str());
        return reply ? reply->status : -1;
    }
    int post(const ControlKey& key, const std::string& route, const std::string& body, std::string* answer = nullptr) const {
        const auto reply = client(key)->Post(route.c_str(), body, "application/json");
        if (reply && answer) *answer = reply->body;
        return reply ? reply->status : -1;
    }
    Fd connection() const {
        Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        sockaddr_in to{};
        to.sin_family = AF_INET;
        to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        to.sin_port = htons(port);
        EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
        return fd;
    }
    /// All that comes until the end, or for 10 s at most.
    static std::string rest(const Fd& fd) {
        std::string text;
        const timeval patience{10, 0};
        ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        char piece[4096];
        ssize_t got;
        while ((got = ::recv(fd.get(), piece, sizeof piece, 0)) > 0) text.append(piece, static_cast<size_t>(got));
        EXPECT_TRUE(got == 0 || errno == ECONNRESET) << "not closed";
        return text;
    }
    static bool closed(const Fd& fd, int wait_ms) {
        pollfd each{fd.get(), POLLRDHUP, 0};
        return ::poll(&each, 1, wait_ms) == 1;
    }
};

const std::string a_job = R"({"text": "x", "base": "/"})";

TEST_F(Remote, EachRoleDoesWhatItMay) {
    struct {
        const char* route;
        std::string body;
        Role needs;
    } const changes[] = {
        {"/v1/jobs", a_job, Role::submit},
        {"/v1/jobs/first/resume", "{}", Role::submit},
        {"/v1/jobs/first/nodes", R"({"node": "node-3"})", Role::admin},
        {"/v1/jobs/first/force-view", R"({"dead": "node-1"})", Role::admin},
        {"/v1/nodes/node-1/drain", "", Role::admin},
        {"/v1/nodes/node-1/undrain", "", Role::admin},
        {"/v1/jobs/first/cancel", "", Role::submit},
        {"/v1/jobs/first/delete", "", Role::admin},
    };
    backend.members = {{.name = "node-1", .self = true, .alive = true}};
    for (const ControlKey* key : {&vera, &sue, &ada}) {
        for (const char* route : {"/", "/v1/version", "/v1/jobs", "/v1/jobs/first", "/v1/jobs/first/log", "/v1/doctor", "/v1/metrics"})
            EXPECT_EQ(get(*key, route), 200) << key->name << " " << route;
        for (const auto& [route, body, needs] : changes) {
            std::string answer;
            const int status = post(*key, route, body, &answer);
            if (key->role >= needs) {
                EXPECT_EQ(status / 100, 2) << key->name << " " << route << answer;
                continue;
            }
            EXPECT_EQ(status, 403) << key->name << " " << route << answer;
            const std::string text = Json::parse(answer, nullptr, false).value("error", "");
            EXPECT_EQ(text, fmt::format("this needs the role {0}, and the key {1} has the role {2}: ask for a key with the role {0}",
                                        role_name(needs), key->name, role_name(key->role)));
        }
        if (key == &vera) {
            EXPECT_TRUE(backend.submissions().empty());
            EXPECT_EQ(backend.all[0].summary.status.state, JobState::running);
        }
    }
    EXPECT_TRUE(backend.all.empty());
    // A benchmark is a command line of its own.
    const std::string bench = R"({"text": "x", "base": "/", "bench": true})";
    EXPECT_EQ(post(sue, "/v1/jobs", bench), 403);
    EXPECT_EQ(post(ada, "/v1/jobs", bench), 202);
    const auto reply = client(vera)->Get("/v1/version");
    ASSERT_TRUE(reply);
    EXPECT_EQ(Json::parse(reply->body)["role"], "view");
}

TEST_F(Remote, LargeBodiesFilesAndWatchersTravel) {
    const std::string log = folder + "/log", text(5 << 20, 'x');
    ASSERT_TRUE(file_write(log, text).ok());
    backend.all[0].folder = folder;
    std::string read;
    for (const auto one = client(vera); read.size() < text.size();) {
        const auto reply = one->Get(("/v1/jobs/first/log?offset=" + std::to_string(read.size())).c_str());
        ASSERT_TRUE(reply && reply->status == 200 && !reply->body.empty());
        read += reply->body;
    }
    EXPECT_EQ(read, text);
    EXPECT_EQ(post(sue, "/v1/jobs", R"({"base": "/", "text": ")" + std::string(1 << 20, 'y') + "\"}"), 202);
    EXPECT_EQ(backend.submissions()[0].text.size(), size_t{1} << 20);
    EXPECT_EQ(post(sue, "/v1/jobs", std::string(2 << 20, 'y')), 413);
    std::string events;
    const auto reply = client(vera)->Get("/v1/jobs/first/watch", [&](const char* data, size_t bytes) {
        events.append(data, bytes);
        if (events.find("\"running\"") != std::string::npos) backend.finish(&backend.all[0], JobState::done);
        return true;
    });
    EXPECT_TRUE(reply);
    EXPECT_NE(events.find("\"done\""), std::string::npos) << events;
}

TEST_F(Remote, OtherKeysAreToldFromOtherPorts) {
    struct {
        ControlKey key;
        const char* why;
    } const wrong[] = {
        {key_of("vera", Role::view, 9), "does not take the key vera"},
        {key_of("eve", Role::admin, 1), "does not take the key eve"},
        {control_key({"vera", {}}), "does not take the key vera"},   // a cluster key of that name
    };
    for (const auto& [key, why] : wrong) {
        const auto one = client(key);
        EXPECT_FALSE(one->Get("/v1/jobs"));
        EXPECT_NE(one->why().find(why), std::string::npos) << one->why();
    }
    // The role in a client's own file is not what counts.
    EXPECT_EQ(post(key_of("vera", Role::admin, 1), "/v1/jobs", a_job), 403);

    server.reset();
    const auto none = client(vera);
    EXPECT_FALSE(none->Get("/v1/jobs"));
    EXPECT_NE(none->why().find("nothing listens at 127.0.0.1:"), std::string::npos) << none->why();
    TlsHttp nowhere("no-such-host.invalid", port, vera);
    EXPECT_FALSE(nowhere.Get("/v1/jobs"));
    EXPECT_NE(nowhere.why().find("cannot find the host no-such-host.invalid"), std::string::npos) << nowhere.why();
    // Without TLS, and with TLS that shows a certificate or nothing.
    const Fd plain(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    ASSERT_EQ(::bind(plain.get(), reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
    ASSERT_EQ(::listen(plain.get(), 8), 0);
    ASSERT_EQ(::getsockname(plain.get(), reinterpret_cast<sockaddr*>(&at), &size), 0);
    for (const std::string answer : {"HTTP/1.1 400 Bad Request\r\n\r\n", "", "\x15\x03\x03\x00\x02\x02\x28"}) {
        std::thread other([&] {
            const Fd guest(::accept(plain.get(), nullptr, nullptr));
            char piece[4096];
            (void)!::recv(guest.get(), piece, sizeof piece, 0);
            (void)!::send(guest.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
        });
        TlsHttp one("127.0.0.1", ntohs(at.sin_port), vera);
        EXPECT_FALSE(one.Get("/v1/jobs"));
        EXPECT_NE(one.why().find("is this its port of `control`"), std::string::npos) << one.why();
        other.join();
    }
}

/// A server without the key that shows a certificate instead.
TEST_F(Remote, ACertificateIsNoKey) {
    TlsEnd end(std::make_shared<const TlsKeys>(std::vector{vera}), TlsEnd::Side::connector);
    const std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
    const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
    const std::unique_ptr<X509, decltype(&X509_free)> certificate(X509_new(), X509_free);
    X509_gmtime_adj(X509_getm_notBefore(certificate.get()), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
    X509_set_pubkey(certificate.get(), key.get());
    ASSERT_GT(X509_sign(certificate.get(), key.get(), EVP_sha256()), 0);
    ASSERT_EQ(SSL_CTX_use_certificate(context.get(), certificate.get()), 1);
    ASSERT_EQ(SSL_CTX_use_PrivateKey(context.get(), key.get()), 1);
    const std::unique_ptr<SSL, decltype(&SSL_free)> other(SSL_new(context.get()), SSL_free);
    SSL_set_bio(other.get(), BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    SSL_set_accept_state(other.get());
    bool failed = false;
    for (int round = 0; round < 4 && !failed; ++round) {
        const auto out = end.output();
        BIO_write(SSL_get_rbio(other.get()), out.data(), static_cast<int>(out.size()));
        end.wrote(out.size());
        (void)SSL_do_handshake(other.get());
        char bytes[16384];
        const int got = BIO_read(SSL_get_wbio(other.get()), bytes, sizeof bytes);
        if (got > 0) failed = !end.receive({bytes, static_cast<size_t>(got)});
    }
    EXPECT_TRUE(failed);
    EXPECT_FALSE(end.open());
}

TEST_F(Remote, StrangersGetNothing) {
    // A name of 64 KiB, a ClientHello that goes on for ever, plain HTTP, noise, nothing.
    std::string name = "\x16\x03\x01\x40\x00\x01\x00\xff\xf0\x03\x03" + std::string(64 << 10, 'n');
    name[3] = '\x40';
    name[4] = '\0';
    name[6] = '\0';
    for (const std::string& bytes :
         {name, std::string("GET /v1/jobs HTTP/1.1\r\n\r\n"), std::string(100'000, '\0'), std::string("\x16\x03\x01\xff\xff", 5)}) {
        const Fd fd = connection();
        (void)!::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
        const std::string answer = rest(fd);
        EXPECT_LE(answer.size(), 64u);   // an alert
        EXPECT_EQ(answer.find("HTTP"), std::string::npos);
    }
    EXPECT_EQ(get(vera, "/v1/jobs"), 200);
}

/// What a client has sent is of no use to whoever has recorded it.
TEST_F(Remote, RepeatedBytesGetNothing) {
    std::string sent;
    {
        TlsEnd end(std::make_shared<const TlsKeys>(std::vector{sue}), TlsEnd::Side::connector);
        const Fd fd = connection();
        auto say = [&] {
            const auto out = end.output();
            sent.append(out.data(), out.size());
            ASSERT_EQ(::send(fd.get(), out.data(), out.size(), MSG_NOSIGNAL), static_cast<ssize_t>(out.size()));
            end.wrote(out.size());
        };
        say();
        while (!end.open()) {
            char piece[4096];
            const ssize_t got = ::recv(fd.get(), piece, sizeof piece, 0);
            ASSERT_GT(got, 0);
            ASSERT_TRUE(end.receive({piece, static_cast<size_t>(got)}));
        }
        const std::string request = "POST /v1/jobs HTTP/1.1\r\nContent-Length: " + std::to_string(a_job.size()) + "\r\n\r\n" + a_job;
        ASSERT_EQ(end.write(request), request.size());
        say();
        EXPECT_GT(rest(fd).size(), 0u);
        ASSERT_EQ(backend.submissions().size(), 1u);
    }
    const Fd fd = connection();
    ASSERT_EQ(::send(fd.get(), sent.data(), sent.size(), MSG_NOSIGNAL), static_cast<ssize_t>(sent.size()));
    (void)rest(fd);
    EXPECT_EQ(backend.submissions().size(), 1u);
}

TEST_F(Remote, ManyStrangersPushNoClientOut) {
    std::atomic<bool> leave{false}, there{false};
    std::thread watcher([&] {
        const auto reply = client(vera)->Get("/v1/jobs/first/watch", [&](const char*, size_t) { return there = true, !leave.load(); });
        EXPECT_TRUE(leave);
    });
    for (int i = 0; i < 1000 && !there; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ASSERT_TRUE(there);
    const bool judged = memory_is_judged && resident_peak_reset();
    const uint64_t before = resident_bytes();
    std::vector<Fd> strangers;
    const std::string begun("\x16\x03\x01\x06\x00\x01\x00\x05\xfc\x03\x03", 11);
    for (int i = 0; i < 400; ++i) {
        strangers.push_back(connection());
        const std::string bytes = begun + std::string(1400, 'x');   // of a ClientHello that does not end
        (void)!::send(strangers.back().get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    }
    EXPECT_EQ(get(ada, "/v1/jobs"), 200);
    // 64 at most are kept; of those one went for ada.
    auto open = [&] { return std::count_if(strangers.begin(), strangers.end(), [](const Fd& fd) { return !closed(fd, 0); }); };
    EXPECT_LE(open(), 64);
    EXPECT_GT(open(), 0);
    if (judged) {
        EXPECT_LT(resident_peak_bytes(), before + (16 << 20));
    }
    EXPECT_TRUE(closed(strangers.back(), 10'000));
    leave = true;
    watcher.join();
}

TEST_F(Remote, NewKeysCutOffWhoHasAnOldOne) {
    std::atomic<bool> vera_there{false}, ada_there{false}, vera_ended{false}, leave{false};
    std::thread first([&] {
        client(vera)->Get("/v1/jobs/first/watch", [&](const char*, size_t) { return vera_there = true; });
        vera_ended = true;
    });
    std::thread second([&] {
        client(ada)->Get("/v1/jobs/first/watch", [&](const char*, size_t) { return ada_there = true, !leave.load(); });
        EXPECT_TRUE(leave);
    });
    auto wait = [](const std::atomic<bool>& what) {
        for (int i = 0; i < 1000 && !what; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        return what.load();
    };
    EXPECT_TRUE(wait(vera_there) && wait(ada_there));
    server->keys({key_of("vera", Role::view, 7), ada});
    EXPECT_TRUE(wait(vera_ended));
    EXPECT_EQ(get(vera, "/v1/jobs"), -1);
    EXPECT_EQ(get(sue, "/v1/jobs"), -1);
    EXPECT_EQ(get(key_of("vera", Role::view, 7), "/v1/jobs"), 200);
    leave = true;
    first.join();
    second.join();
}

TEST(ControlKeys, FilesAreReadAndMistakesNamed) {
    std::string folder = testing::TempDir() + "gc-keys-XXXXXX";
    ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    const std::string path = folder + "/clients", digits(64, 'a');
    std::vector<ControlKey> keys;
    ASSERT_TRUE(file_write(path, "ana view " + digits + "\n\nbob admin " + digits + "\n", 0600).ok());
    ASSERT_TRUE(client_keys_read(path, &keys).ok());
    ASSERT_EQ(keys.size(), 2u);
    EXPECT_EQ(keys[1].role, Role::admin);
    ControlKey own;
    ASSERT_TRUE(own_key_read(path, &own).ok());
    EXPECT_EQ(own.identity, "client:ana");
    EXPECT_EQ(own.secret, keys[0].secret);
    struct {
        std::string text, why;
    } const wrong[] = {
        {"ana view " + digits + "\nana admin " + digits + "\n", ":2: the name ana is there twice"},
        {"ana root " + digits + "\n", ":1: the role root is none of view, submit, admin"},
        {"ana " + digits + "\n", ":1: a key is '<name> <view|submit|admin> <64 hex digits>'"},
        {"ana view 12\n", ":1: a key is"},
        {"ana view " + std::string(64, 'g') + "\n", ":1: a key is"},
        {"a\tb view " + digits + "\n", ":1: a key is"},
        {std::string(33, 'n') + " view " + digits + "\n", ":1: a key is"},
        {"ana view more " + digits + "\n", ":1: a key is"},
        {"", " is empty: write "},
    };
    for (const auto& [text, why] : wrong) {
        ASSERT_TRUE(file_write(path, text, 0600).ok());
        const Status status = client_keys_read(path, &keys);
        EXPECT_EQ(status.code, Code::invalid) << text;
        EXPECT_NE(std::string(status.what).find(path + why), std::string::npos) << status.what;
    }
    ASSERT_TRUE(file_write(path, "k1 " + digits + "\n", 0640).ok());
    ::chmod(path.c_str(), 0640);
    EXPECT_NE(std::string(own_key_read(path, &own).what).find("can be read by others: chmod 600"), std::string::npos);
    ::chmod(path.c_str(), 0600);
    ASSERT_TRUE(own_key_read(path, &own).ok());
    EXPECT_EQ(own.identity, "cluster:k1");
    EXPECT_EQ(own.role, Role::admin);
    std::filesystem::remove_all(folder);
}

}   // namespace
}   // namespace gradcast
