// A private cluster: child processes on 127.0.0.1 with a key and folders of their own, which all end with the object.
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

#include "runtime/core/fd.h"
#include "tools/gradcastctl/client.h"

namespace gradcast {

/// From here on SIGINT, SIGTERM and SIGHUP end this process with exit_failed and a line on stderr; one that is ignored (nohup) stays so.
void interrupts_end();
/// From the first call on they are counted instead.
int interrupts();

class Cluster {
public:
    Cluster() = default;
    Cluster(const Cluster&) = delete;
    Cluster& operator=(const Cluster&) = delete;
    ~Cluster() { stop(); }
    /// Starts `nodes` daemons and waits until each sees all the others.  Error: what is missing, or which daemon ended, with its last line.
    /// isa: of all daemons, as in gradcastd.toml.
    /// commands: they start net.command of their jobs.
    Status start(uint32_t nodes, const std::string& isa, bool commands = false);
    /// Not ok when a daemon has ended, with its last line, or (Code::cancelled) when the user wants to stop.  Never waits.
    Status check();
    /// SIGTERM, after stop_seconds (or a second Ctrl-C) SIGKILL.
    void halt();
    /// The same; then removes all files, or leaves them.
    void stop(bool leave = false);
    Client client(uint32_t node) const { return Client({.socket = nodes_[node].socket}, answer_seconds); }
    const std::string& name(uint32_t node) const { return nodes_[node].name; }
    bool alive(uint32_t node) const { return nodes_[node].pid > 0; }   // at the last check()
    bool stopped(uint32_t node) const;                                 // by a signal: it answers nothing
    std::string job_folder(uint32_t node, const std::string& id) const { return nodes_[node].folder + "/state/jobs/" + id; }
    uint32_t count() const { return static_cast<uint32_t>(nodes_.size()); }
    std::string last_lines(uint32_t lines) const;   // of every daemon's log

private:
    static constexpr uint32_t answer_seconds = 15;
    struct Node {
        std::string name, folder, socket, log;
        Fd listener;      // until the daemon has it
        pid_t pid = -1;   // -1: not running
    };
    Status prepare(uint32_t nodes, const std::string& isa, bool commands);
    Status spawn(const std::string& program, Node& node);
    Status ready();
    std::string folder_;
    std::vector<Node> nodes_;
};

}   // namespace gradcast
