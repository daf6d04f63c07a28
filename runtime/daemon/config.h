// gradcastd.toml.  One table in config.cc makes the parser, the errors and `gradcastd --help`.
#pragma once
#include <string>
#include <vector>

#include "runtime/core/file_key.h"
#include "runtime/core/isa.h"
#include "runtime/core/log.h"
#include "transport/link/link.h"

namespace gradcast {

constexpr uint16_t multicast_port = 4701;   // of every group: groups differ

struct NodeAddress {
    std::string name, address;   // "host:port", "[v6]:port"
    std::string host() const { return address.substr(0, address.rfind(':')); }
    std::string port() const { return address.substr(address.rfind(':') + 1); }
    bool operator==(const NodeAddress&) const = default;
};

struct DaemonConfig {
    std::string name;
    std::vector<NodeAddress> members;   // sorted by name, so that an index is the same rank of the daemons' mesh in every daemon
    std::string listen, key, state, socket;
    std::string verified;                        // the record of data_verify_once(); "": the file `verified` in the state folder
    std::string interface;                       // of datagrams; "": none
    std::vector<std::string> interfaces, rdma;   // that streams are spread over: at most rails_max; devices
    std::string metrics, control, clients;       // "host:port", "host:port", a file of client keys; "": none
    uint32_t datagram_bytes = 0;                 // largest payload of a datagram on `interface`; 0: none was chosen
    uint32_t rdma_bytes = 0;                     // the same for RDMA; 0: it is not to be used
    uint64_t pace = 0;                           // highest rate of datagrams sent, bit/s; 0: no limit
    std::vector<uint32_t> cpus;                  // empty: any
    std::vector<uint32_t> gpus;                  // by CUDA's numbers; empty: gpus_used()
    uint32_t jobs_kept = 100;                    // that have ended, with their folders
    uint64_t jobs_bytes = 0;                     // of these folders; 0: any
    uint64_t rate = 0;                           // of this node's link, bit/s; 0: what the driver says
    uint64_t memory = 0;                         // bytes that the jobs here may take together; 0: memory_most()
    bool commands = false;                       // net.command of a job is started here, as the user of this process
    Isa isa = Isa::portable;
    Level log = Level::info;
    LinkKind link = LinkKind::uring_tcp;   // "auto" is the same: the driver falls back to epoll
    std::string only;                      // text of the job file that this daemon was launched for (launch.h); "": it takes all jobs
    bool launched() const { return !only.empty(); }
    /// What messages call a setting: "`listen`" of gradcastd.toml, or the option of a launcher that sets it, "--port".
    std::string setting(std::string_view wanted) const;
    /// The same with its file: "`listen` in gradcastd.toml"; "--port".
    std::string setting_in(std::string_view wanted) const { return setting(wanted) + (launched() ? "" : " in gradcastd.toml"); }
    /// Error: jobs with net.command are refused here.
    Status command_check() const;
    /// How many members have an address of this node's host, itself among them.  They divide its memory, its CPUs and its GPUs.
    uint32_t sharers() const;
    /// For the jobs here: `gpus`, else this node's share of all GPUs.  Empty: all that CUDA finds.  root: see gpu_count().
    std::vector<uint32_t> gpus_used(const std::string& root = "") const;
    /// Bytes that the jobs here may take together: `memory`, else this node's share of memory_for_jobs().  0: that is not known.  root: see
    /// memory_room().
    uint64_t memory_most(const std::string& root = "") const;
    /// What messages call it.
    std::string memory_setting() const;
    Rank self() const;                                                // index of `name` in members
    uint32_t lanes(const std::string& root = "") const;               // of a job; root: see cpu_room()
    std::string drained_path() const { return state + "/drained"; }   // a file that is there while the node is drained
    std::string verified_path() const { return verified.empty() ? state + "/verified" : verified; }
    bool operator==(const DaemonConfig&) const = default;
};

/// Checks the text against this machine's CPU and interfaces.  False: *mistakes has every mistake, "gradcastd.toml:3:
/// name: …". Relative paths are against `base`, an absolute folder.
bool config_parse(const std::string& text, const std::string& path, const std::string& base, DaemonConfig* config,
                  std::vector<std::string>* mistakes);
/// Reads and parses; the error has one line a mistake.
Status config_read(const std::string& path, DaemonConfig* config);
/// The table of options as text.
std::string config_help();
std::vector<FileKey> config_keys();

}   // namespace gradcast
