// Who this daemon is, kept in its state folder: a UUID for good, a number that grows with every start, and a lock while it runs.
#pragma once
#include <string>

#include "runtime/core/fd.h"
#include "transport/link/link.h"

namespace gradcast {

/// Makes the state folder if it is missing and takes its lock, which is held as long as *lock lives.  Then reads (or makes) the UUID and
/// counts the start. Files: lock (pid of the holder), identity (UUID), incarnation (number of starts). Errors: no permission; "… is used by
/// another gradcastd (pid 123)"; a file that is not ours.
Status identity_open(const std::string& state, const std::string& name, Identity* identity, Fd* lock);

/// Whether identity_open() could use the folder, or make it.  Changes nothing.
Status state_check(const std::string& state);

/// Whether another daemon has our name: it answers at `address`, where others look for us.  Asks before we listen ourselves; takes as long
/// as a connection and a handshake, at most 1 s.  Error: who it is.
Status name_check(const std::string& address, const Identity& self, const std::vector<ClusterKey>& keys);

std::string uuid_text(const std::array<uint8_t, 16>& uuid);   // 8-4-4-4-12 hex digits
bool uuid_parse(std::string_view text, std::array<uint8_t, 16>* uuid);

}   // namespace gradcast
