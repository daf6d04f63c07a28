// Where the ranks of a benchmark meet.  One process relays; each rank has a connection to it, which carries gathers alone: every rank
// sends a value and gets those of all.  A barrier is a gather of nothing.
//
// A connection begins with 32 random bytes each way.  From then on a message is length (4 bytes, little-endian), HMAC-SHA256 and JSON text;
// the MAC's key is made of the cluster key and the random bytes, and it covers direction and number of the message.  Without the key
// nobody can join, or change or repeat a message; the text, addresses and figures, can be read.
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
    /// Of the client or the server; both wait for the other's random bytes.
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

/// One rank's side.
class Meeting {
public:
    static constexpr uint64_t silence_us = 60'000'000;   // what a rank may take from one gather to the next, unless it gives another time
    /// Tries until wait_us have passed.  `wanted` is the rank to be, or -1.
    Status join(const std::string& address, const std::vector<ClusterKey>& keys, int wanted, uint64_t wait_us);
    Rank rank() const { return rank_; }
    uint32_t ranks() const { return ranks_; }
    const std::vector<std::string>& arguments() const { return arguments_; }   // the server's command line
    const std::vector<ClusterKey>& keys() const { return keys_; }
    const std::string& address() const { return address_; }   // our own, by which the server is reached

    /// next_us: how long this rank may take to its next gather.  Error: a rank failed or does not come, by name.
    Status gather(const nlohmann::json& mine, std::vector<nlohmann::json>* all, uint64_t next_us = silence_us);
    /// Then 10 ms of sleep: where ranks share cores, those through first would delay the others' wake-up.
    Status barrier(uint64_t next_us = silence_us) {
        std::vector<nlohmann::json> all;
        GC_TRY(gather(nullptr, &all, next_us));
        ::usleep(10'000);
        return {};
    }
    /// Does not wait: an error that came in the meantime.
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
    bool told_ = false;   // the error came from the server
};

/// The server: takes `ranks` ranks in within wait_us, tells them the arguments, relays until all have left.  Blocks.
Status meeting_relay(const Fd& listener, const std::vector<ClusterKey>& keys, uint32_t ranks, const std::vector<std::string>& arguments,
                     uint64_t wait_us);

}   // namespace gradcast
