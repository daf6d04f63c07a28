// Who jobs and daemons are.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace gradcast {

using JobId = std::array<uint8_t, 16>;      // all zero: the daemons' own mesh
std::string job_id_text(const JobId& id);   // 32 hex digits
bool job_id_parse(std::string_view text, JobId* id);

/// A daemon's identity, sent in every handshake.
struct Identity {
    std::string name;                 // from gradcastd.toml
    std::array<uint8_t, 16> uuid{};   // kept in the state directory
    uint64_t incarnation = 0;         // grows with every start of the daemon
};

}   // namespace gradcast
