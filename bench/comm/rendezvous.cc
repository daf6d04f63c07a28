#include "bench/comm/rendezvous.h"

#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>

#include "runtime/core/clock.h"
#include "runtime/core/le.h"
#include "runtime/core/net/socket.h"
#include "runtime/core/version.h"

namespace gradcast {
namespace {

constexpr uint64_t message_bytes_max = 64 << 20, first_bytes_max = 64 << 10;   // first: from a peer that is not authenticated yet
constexpr uint64_t hello_us = 3'000'000, grace_us = 5'000'000;
using Mac = std::array<uint8_t, 32>;

int remaining_ms(uint64_t end_us) {
    const uint64_t now = clock_us();
    return now >= end_us ? 0 : static_cast<int>(std::min<uint64_t>((end_us - now) / 1000 + 1, 1'000'000));
}

Status move_bytes(int fd, char* bytes, size_t count, bool out, uint64_t end_us) {
    while (count > 0) {
        const ssize_t moved = out ? ::send(fd, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT) : ::recv(fd, bytes, count, MSG_DONTWAIT);
        if (moved > 0) {
            bytes += moved;
            count -= static_cast<size_t>(moved);
            continue;
        }
        if (moved == 0) return fail(Code::peer_lost, "the connection was closed");
        if (errno != EAGAIN && errno != EINTR) return fail(Code::peer_lost, "the connection broke: {}", std::strerror(errno));
        pollfd ready{fd, static_cast<short>(out ? POLLOUT : POLLIN), 0};
        if (clock_us() >= end_us) return fail(Code::deadline, "no answer in time");
        ::poll(&ready, 1, remaining_ms(end_us));
    }
    return {};
}

Mac hmac(std::span<const uint8_t> key, const std::string& text) {
    Mac mac;
    unsigned bytes = mac.size();
    ::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const uint8_t*>(text.data()), text.size(), mac.data(),
           &bytes);
    return mac;
}

std::string text_of(std::span<const uint8_t> bytes) { return {bytes.begin(), bytes.end()}; }

}   // namespace

// ---- a connection --------------------------------------------------------------------------------------------------------------

Status Connection::open(Fd fd, const ClusterKey& key, bool server, uint64_t end_us) {
    fd_ = std::move(fd);
    server_ = server;
    sent_ = received_ = 0;
    const int on = 1;
    ::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    Mac own, other;
    random_bytes(own);
    GC_TRY(move_bytes(fd_.get(), reinterpret_cast<char*>(own.data()), own.size(), true, end_us));
    GC_TRY(move_bytes(fd_.get(), reinterpret_cast<char*>(other.data()), other.size(), false, end_us));
    key_ = hmac(key.secret, "gradcast-bench" + text_of(server ? other : own) + text_of(server ? own : other));
    return {};
}

Mac Connection::mac(bool by_server, uint64_t number, const std::string& text) const {
    Le64 counted;
    counted.set(number);
    return hmac(key_, std::string(by_server ? "s" : "c") + std::string(reinterpret_cast<const char*>(&counted), sizeof counted) + text);
}

Status Connection::send(const nlohmann::json& message) {
    const std::string text = message.dump();
    Le32 length;
    length.set(static_cast<uint32_t>(text.size()));
    std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
    bytes += text_of(mac(server_, sent_++, text)) + text;
    return move_bytes(fd_.get(), bytes.data(), bytes.size(), true, clock_us() + grace_us);
}

Status Connection::receive(nlohmann::json* message, uint64_t end_us) {
    Le32 length;
    Mac theirs;
    GC_TRY(move_bytes(fd_.get(), reinterpret_cast<char*>(&length), sizeof length, false, end_us));
    if (length.get() > (received_ == 0 ? first_bytes_max : message_bytes_max))
        return fail(Code::packet_invalid, "not a message of gradcast-bench");
    GC_TRY(move_bytes(fd_.get(), reinterpret_cast<char*>(theirs.data()), theirs.size(), false, end_us));
    std::string text(length.get(), 0);
    GC_TRY(move_bytes(fd_.get(), text.data(), text.size(), false, end_us));
    const Mac wanted = mac(!server_, received_++, text);
    if (CRYPTO_memcmp(theirs.data(), wanted.data(), theirs.size()) != 0)
        return fail(Code::packet_invalid, "the keys differ: give --key the same file everywhere");
    *message = nlohmann::json::parse(text, nullptr, false);
    return message->is_discarded() ? fail(Code::packet_invalid, "not a message of gradcast-bench") : Status{};
}

// ---- a rank's side -------------------------------------------------------------------------------------------------------------

Status Rendezvous::join(const std::string& address, const std::vector<ClusterKey>& keys, int wanted, uint64_t wait_us) {
    SocketAddress server;
    GC_TRY(address_resolve(address, false, &server));
    const uint64_t end = clock_us() + wait_us;
    Fd fd;
    for (;;) {
        fd = Fd(::socket(server.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
        if (!fd) return fail_sys(errno, "cannot open a socket");
        const timeval patience{static_cast<time_t>(grace_us / 1'000'000), 0};   // bounds connect()
        ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
        if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&server.storage), server.bytes) == 0) break;
        if (clock_us() > end)
            return fail(Code::peer_lost, "no gradcast-bench --server answers at {} within {} s: {}", address, wait_us / 1'000'000,
                        std::strerror(errno));
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    SocketAddress own;
    own.bytes = sizeof own.storage;
    ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own.storage), &own.bytes);
    address_ = address_text(own);
    address_.resize(address_.rfind(':'));   // without port
    auto named = [&](const Status& status) { return status.ok() ? status : fail(status.code, "{}: {}", address, status.what); };
    keys_ = keys;
    char name[256] = "";
    ::gethostname(name, sizeof name - 1);
    nlohmann::json welcome;
    GC_TRY(named(connection_.open(std::move(fd), keys.front(), false, clock_us() + 2 * hello_us)));
    GC_TRY(named(connection_.send({{"version", version_text}, {"name", name}, {"rank", wanted}})));
    GC_TRY(named(connection_.receive(&welcome, end + silence_us)));
    if (welcome.contains("error")) {
        from_server_ = true;
        return fail(Code::peer_refused, "{}", welcome["error"].get<std::string>());
    }
    rank_ = welcome.at("rank");
    ranks_ = welcome.at("ranks");
    arguments_ = welcome.at("arguments");
    return {};
}

Status Rendezvous::gather(const nlohmann::json& mine, std::vector<nlohmann::json>* all, uint64_t next_us) {
    nlohmann::json reply;
    Status status = connection_.send({{"mine", mine}, {"next_us", next_us}});
    // The server's reason is more precise than the broken connection.
    if (Status answer = connection_.receive(&reply, clock_us() + patience_us_ + 2 * grace_us); !answer.ok()) {
        from_server_ = true;
        return fail(answer.code, "the server is gone: {}", status.ok() ? answer.what : status.what);
    }
    if (reply.contains("error")) {
        from_server_ = true;
        return fail(Code::peer_lost, "{}", reply["error"].get<std::string>());
    }
    patience_us_ = reply.at("next_us");
    *all = reply.at("all").get<std::vector<nlohmann::json>>();
    return {};
}

Status Rendezvous::check() {
    pollfd ready{connection_.fd(), POLLIN, 0};
    if (::poll(&ready, 1, 0) <= 0) return {};
    nlohmann::json word;
    Status status = connection_.receive(&word, clock_us() + grace_us);
    from_server_ = true;
    if (!status.ok()) return fail(status.code, "the server is gone: {}", status.what);
    return fail(Code::peer_lost, "{}", word.value("error", "the server spoke out of turn"));
}

void Rendezvous::leave(const Status& status) {
    if (from_server_) return;
    (void)connection_.send(status.ok() ? nlohmann::json{{"departed", true}} : nlohmann::json{{"error", status.what}});
}

// ---- the server ----------------------------------------------------------------------------------------------------------------

namespace {

struct Guest {
    Connection connection;
    std::string label;   // "rank 2 (node-c)"
};

Status take_in(const Fd& listener, const std::vector<ClusterKey>& keys, uint64_t wait_us, std::vector<std::unique_ptr<Guest>>& guests) {
    const uint64_t end = clock_us() + wait_us;
    for (size_t taken = 0; taken < guests.size();) {
        if (clock_us() >= end)
            return fail(Code::deadline, "{} of {} nodes came within {} s: start 'gradcast-bench --connect' on the others", taken,
                        guests.size(), wait_us / 1'000'000);
        pollfd ready{listener.get(), POLLIN, 0};
        if (::poll(&ready, 1, remaining_ms(end)) <= 0) continue;
        Fd fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (!fd) continue;
        auto guest = std::make_unique<Guest>();
        nlohmann::json hello;
        Status status = guest->connection.open(std::move(fd), keys.front(), true, clock_us() + hello_us);
        if (status.ok()) status = guest->connection.receive(&hello, clock_us() + hello_us);
        if (!status.ok()) {   // a foreign peer or another key: it receives the reason
            fmt::print(stderr, "gradcast-bench: a node could not join: {}\n", status.what);
            (void)guest->connection.send({{"error", status.what}});
            continue;
        }
        const std::string version = hello.value("version", ""), name = hello.value("name", "");
        if (version != version_text) {
            (void)guest->connection.send({{"error", fmt::format("this is gradcast-bench {}, the server is {}", version, version_text)}});
            return fail(Code::peer_refused, "{} runs gradcast-bench {}, this is {}: install one version", name, version, version_text);
        }
        // Ranks are given in the order of arrival: from 1 if the server has a rank, which asks for 0.
        const int64_t wanted = hello.value("rank", -1);
        size_t rank = wanted >= 0 ? static_cast<size_t>(wanted) : 1;
        while (wanted < 0 && rank < guests.size() && guests[rank]) ++rank;
        if (rank >= guests.size() || guests[rank]) {
            (void)guest->connection.send({{"error", fmt::format("all {} ranks are taken: raise --nodes at the server", guests.size())}});
            continue;
        }
        guest->label = fmt::format("rank {} ({})", rank, name);
        guests[rank] = std::move(guest);
        ++taken;
    }
    return {};
}

// Receives one message of each rank; returns the first error.  *ended: all have departed.
Status collect(std::vector<std::unique_ptr<Guest>>& guests, uint64_t patience_us, nlohmann::json* all, uint64_t* next_us, bool* ended) {
    const uint64_t end = clock_us() + patience_us;
    std::vector<pollfd> waiting;
    for (const auto& guest : guests) waiting.push_back({guest->connection.fd(), POLLIN, 0});
    *all = nlohmann::json::array();
    *next_us = 0;
    std::vector<nlohmann::json> words(guests.size());
    size_t departed = 0;
    for (size_t missing = guests.size(); missing > 0;) {
        if (clock_us() >= end) {
            std::string names;
            for (size_t i = 0; i < guests.size(); ++i)
                if (waiting[i].fd >= 0) names += (names.empty() ? "" : ", ") + guests[i]->label;
            return fail(Code::deadline, "{} did not answer within {} s", names, patience_us / 1'000'000);
        }
        ::poll(waiting.data(), waiting.size(), remaining_ms(end));
        for (size_t i = 0; i < guests.size(); ++i) {
            if (waiting[i].fd < 0 || !waiting[i].revents) continue;
            nlohmann::json word;
            if (Status status = guests[i]->connection.receive(&word, clock_us() + grace_us); !status.ok())
                return fail(status.code, "{}: {}", guests[i]->label, status.what);
            if (word.contains("error")) return fail(Code::peer_lost, "{}: {}", guests[i]->label, word["error"].get<std::string>());
            waiting[i].fd = -1;
            --missing;
            departed += word.contains("departed");
            if (word.contains("departed")) continue;
            words[i] = std::move(word["mine"]);
            *next_us = std::max<uint64_t>(*next_us, word["next_us"]);
        }
    }
    for (auto& word : words) all->push_back(std::move(word));
    *ended = departed == guests.size();
    return departed == 0 || *ended ? Status{} : fail(Code::peer_lost, "some ranks ended before the others");
}

}   // namespace

Status rendezvous_relay(const Fd& listener, const std::vector<ClusterKey>& keys, uint32_t ranks, const std::vector<std::string>& arguments,
                        uint64_t wait_us) {
    std::vector<std::unique_ptr<Guest>> guests(ranks);
    // Rank 0 last: it shares this machine's link, and its packets would delay the others' messages.
    auto send_all = [&](auto message) {
        for (Rank rank = ranks; rank-- > 0;)
            if (guests[rank]) (void)guests[rank]->connection.send(message(rank));   // the next receive() finds a rank that is gone
    };
    auto run = [&]() -> Status {
        GC_TRY(take_in(listener, keys, wait_us, guests));
        send_all([&](Rank rank) { return nlohmann::json{{"rank", rank}, {"ranks", ranks}, {"arguments", arguments}}; });
        uint64_t next_us = Rendezvous::silence_us;
        for (bool ended = false; !ended;) {
            nlohmann::json all;
            GC_TRY(collect(guests, next_us + grace_us, &all, &next_us, &ended));
            if (!ended) send_all([&](Rank) { return nlohmann::json{{"all", all}, {"next_us", next_us}}; });
        }
        return {};
    };
    Status status = run();
    if (!status.ok()) send_all([&](Rank) { return nlohmann::json{{"error", status.what}}; });
    return status;
}

}   // namespace gradcast
