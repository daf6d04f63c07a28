// The rendezvous of a benchmark's ranks.  One process relays; each rank has a connection to it that carries gathers only: every rank
// sends a value and receives those of all.  A barrier is an empty gather.
//
// A connection begins with 32 random bytes each way.  Each later message is its length (4 bytes, little-endian), an HMAC-SHA256 and JSON
// text.  The MAC's key is derived from the cluster key and the random bytes; the MAC covers direction and number of the message.  Without
// the key nobody can join, or change or replay a message; the text (addresses and figures) is not encrypted.
#pragma once
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/core/crypto.h"
#include "runtime/core/fd.h"
#include "runtime/core/types.h"

namespace gradcast {

class Connection {
public:
    /// Of the client or the server; both wait for the other side's random bytes.
    Status open(Fd fd, const ClusterKey& key, bool server, uint64_t end_us);
    Status send(const nlohmann::json& message);
    Status receive(nlohmann::json* message, uint64_t end_us);   // Code::packet_invalid: the MAC is wrong
    int fd() const { return fd_.get(); }

private:
    std::array<uint8_t, 32> mac(bool by_server, uint64_t number, const std::string& text) const;
    Fd fd_;
    bool server_ = false;
    std::array<uint8_t, 32> key_{};
    uint64_t sent_ = 0, received_ = 0;
};

/// One rank's end of the rendezvous.
class Rendezvous {
public:
    static constexpr uint64_t silence_us = 60'000'000;   // the longest time from one gather to the next, unless a rank announces another
    /// Tries for wait_us.  `wanted`: the rank to get, or -1.
    Status join(const std::string& address, const std::vector<ClusterKey>& keys, int wanted, uint64_t wait_us);
    Rank rank() const { return rank_; }
    uint32_t ranks() const { return ranks_; }
    const std::vector<std::string>& arguments() const { return arguments_; }   // the server's command line
    const std::vector<ClusterKey>& keys() const { return keys_; }
    const std::string& address() const { return address_; }   // of this node, as used to reach the server

    /// next_us: the longest time until this rank's next gather.  Error: names the rank that failed or is late.
    Status gather(const nlohmann::json& mine, std::vector<nlohmann::json>* all, uint64_t next_us = silence_us);
    /// A gather, then 10 ms of sleep: on shared cores the first ranks would otherwise delay the wake-up of the others.
    Status barrier(uint64_t next_us = silence_us) {
        std::vector<nlohmann::json> all;
        GC_TRY(gather(nullptr, &all, next_us));
        ::usleep(10'000);
        return {};
    }
    /// Does not wait: an error that has arrived since the last call.
    Status check();
    void leave(const Status& status);   // this rank's last message

private:
    Connection connection_;
    Rank rank_ = 0;
    uint32_t ranks_ = 0;
    std::vector<std::string> arguments_;
    std::vector<ClusterKey> keys_;
    std::string address_;
    uint64_t patience_us_ = silence_us;
    bool from_server_ = false;   // the error is from the server
};

/// The server: admits `ranks` ranks within wait_us, sends them the arguments, relays until all have departed.  Blocks.
Status rendezvous_relay(const Fd& listener, const std::vector<ClusterKey>& keys, uint32_t ranks, const std::vector<std::string>& arguments,
                        uint64_t wait_us);

}   // namespace gradcast
