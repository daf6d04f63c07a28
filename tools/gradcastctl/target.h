// Which daemon a command asks: by its Unix socket, or by host and port with a key; and the file of contexts, which gives names to daemons.
//
//     [lab]                                     # gradcastctl --context lab, or GRADCAST_CONTEXT=lab
//     host = "node1.lab"                        # or a list: watch and --wait go on at the next one; the port is 4702 unless given
//     key = "lab.key"                           # relative to this file
//     [desk]
//     socket = "/run/gradcast/control.sock"     # or a list
#pragma once
#include <string>
#include <vector>

#include "runtime/control/keys.h"

namespace gradcast {

constexpr uint16_t control_port = 4702;   // where --host has none

struct Target {
    std::string socket = {};   // "": over TCP
    std::string host = {};
    uint16_t port = 0;
    ControlKey key = {};
    std::string wrong = {};   // why there is no such target; every request reports it
    bool remote() const { return !host.empty(); }
    std::string text() const;   // "/run/gradcast/control.sock", "node1:4702"
};

/// What a command line says of it.
struct TargetFlags {
    std::vector<std::string> sockets, hosts;
    std::string key, context;
};
/// At least one target, in the order in which they are given.  Error: what is wrong, and the way out.
Status targets_find(const TargetFlags& flags, std::vector<Target>* targets);
/// $XDG_CONFIG_HOME/gradcast/contexts.toml, below ~/.config by default.
std::string contexts_path();
struct NamedTarget {
    std::string name, key;
    std::vector<std::string> sockets, hosts;
};
/// No file: none.  Errors name file and line.
Status contexts_read(const std::string& path, std::vector<NamedTarget>* contexts);
/// /run/gradcast/control.sock, or under XDG_RUNTIME_DIR where only that one exists.
std::string socket_default();

}   // namespace gradcast
