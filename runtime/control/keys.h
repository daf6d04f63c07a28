// Who may do what over TCP: the keys of the control plane.
//
//     key                                     identity in TLS   role
//     cluster key "k1 <64 hex digits>"        cluster:k1        admin
//     client key "ana view <64 hex digits>"   client:ana        as its line says
//
// What TLS gets is derived from the secret, so that nothing that is said with a key here means anything in the mesh of the daemons.
#pragma once
#include <string>
#include <vector>

#include "runtime/core/crypto.h"

namespace gradcast {

/// Each may do what those before it may.  none: has shown no key.  view: looks at everything.  submit: begins, resumes and cancels jobs.
enum class Role : uint8_t { none, view, submit, admin };
const char* role_name(Role role);
bool role_parse(std::string_view text, Role* role);   // view, submit or admin

struct ControlKey {
    std::string name;   // "ana", "k1"
    Role role = Role::none;
    std::string identity;
    std::array<uint8_t, 32> secret;   // of TLS
};
ControlKey control_key(const ClusterKey& key);
ControlKey client_key(std::string name, Role role, const std::array<uint8_t, 32>& secret);
/// The file `clients` of gradcastd.toml: "<name> <role> <64 hex digits>" a line, no name twice.
Status client_keys_read(const std::string& path, std::vector<ControlKey>* keys);
/// The first key of a client's file: a client key or a cluster key.
Status own_key_read(const std::string& path, ControlKey* key);

}   // namespace gradcast
