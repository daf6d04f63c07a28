// Ranks in one process, each with a driver, its network thread and a listener.
#pragma once
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <thread>

#include "runtime/core/clock.h"
#include "runtime/core/digest.h"
#include "transport/link/link.h"
#include "transport/stream/handshake.h"
#include "transport/wire/packet.h"

namespace gradcast {

constexpr uint64_t link_wait_us = 20'000'000;   // for what must come
constexpr uint32_t datagram_bytes = 1432;       // payload

/// Byte `at` of packet `index` from `rank`: every receiver can check it alone.
inline std::byte content(uint64_t seed, Rank rank, uint64_t index, uint64_t at) {
    return std::byte(splitmix64(seed * 0x10001 + rank * 0x1000003 + index * 0x100000007 + at / 8) >> at % 8 * 8 & 0xff);
}
inline void fill(std::vector<std::byte>& bytes, uint64_t seed, Rank rank, uint64_t index) {
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = content(seed, rank, index, i);
}

inline std::vector<ClusterKey> test_keys(uint8_t fill_with = 7, const std::string& id = "k1") {
    ClusterKey key{id, {}};
    key.secret.fill(fill_with);
    return {key};
}
inline Identity test_identity(Rank rank, uint64_t incarnation = 1) {
    Identity identity{"node" + std::to_string(rank), {}, incarnation};
    identity.uuid.fill(static_cast<uint8_t>(rank + 1));
    return identity;
}

/// One rank: the driver, its thread, its listener.
struct Node {
    std::unique_ptr<Listener> listener;
    std::unique_ptr<Driver> driver;
    std::thread thread;
    Log log;   // of the driver

    void listen(Rank rank, std::vector<ClusterKey> keys = test_keys(), std::shared_ptr<KeyRing> ring = {}) {
        ListenerConfig config;
        config.address = "127.0.0.1:0";
        config.self = test_identity(rank);
        config.keys = std::move(keys);
        config.ring = std::move(ring);
        ASSERT_TRUE(listener_open(config, Log(), &listener).ok());
        ASSERT_TRUE(
            listener->start([this](const JobId& id, std::unique_ptr<AcceptedStream> stream) { return take(id, std::move(stream)); }).ok());
    }
    Status open(const LinkConfig& config) {
        std::unique_ptr<Driver> made;
        GC_TRY(driver_open(config, log, &made));
        std::lock_guard lock(mutex_);
        driver = std::move(made);
        job_ = config.job;
        return {};
    }
    void start() {
        thread = std::thread([this] { EXPECT_TRUE(driver->run().ok()); });
    }
    void stop() {
        if (thread.joinable()) driver->stop(), thread.join();
    }
    /// The job is not open here any more: the listener refuses its streams.
    void leave() {
        stop();
        std::lock_guard lock(mutex_);
        driver = nullptr;
    }
    ~Node() {
        stop();
        listener.reset();
    }

private:
    bool take(const JobId& id, std::unique_ptr<AcceptedStream> stream) {
        std::lock_guard lock(mutex_);
        if (!driver || id != job_) return false;
        driver->adopt(std::move(stream));
        return true;
    }
    std::mutex mutex_;
    JobId job_{};
};

inline LinkConfig test_config(LinkKind kind, Protect protect, Rank rank, const std::vector<std::string>& addresses) {
    LinkConfig config;
    config.kind = kind;
    config.protect = protect;
    config.rank = rank;
    config.job.fill(0xab);
    config.self = test_identity(rank);
    config.keys = test_keys();
    config.packets_per_key = 64;   // so that every test has new keys
    for (Rank peer = 0; peer < addresses.size(); ++peer) config.peers.push_back({test_identity(peer), addresses[peer]});
    return config;
}

/// Names a test of a link and a protection.
inline std::string kind_name(const testing::TestParamInfo<std::tuple<LinkKind, Protect>>& info) {
    static constexpr const char* protects[] = {"none", "auth", "encrypt"};
    return std::string(link_name(std::get<0>(info.param))) + "_" + protects[static_cast<int>(std::get<1>(info.param))];
}

}   // namespace gradcast
