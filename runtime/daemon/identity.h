// The identity of a daemon, in its state folder: a UUID that never changes, the number of starts, and a lock while it runs.
#pragma once
#include <string>

#include "runtime/core/fd.h"
#include "transport/link/link.h"

namespace gradcast {

/// Makes the state folder if it is missing and takes its lock, which is held as long as *lock lives.  Then reads (or makes) the UUID and
/// counts the start. Files: lock (pid of the holder), identity (UUID), incarnation (number of starts). Errors: no permission; "… is used by
/// another gradcastd (pid 123)"; a damaged file.  setting: what errors call the setting of `state`.
Status identity_open(const std::string& state, const std::string& name, Identity* identity, Fd* lock,
                     const std::string& setting = "`state`");

/// Whether identity_open() could use the folder, or make it.  Changes nothing.
Status state_check(const std::string& state);

/// Whether a daemon that runs holds the folder.
bool state_locked(const std::string& state);

/// Whether another daemon with this name answers at `address`.  Called before this daemon listens; takes at most 1 s for each
/// address of the host.  Error: names it.
/// setting: what the error calls the setting of the name.
Status name_check(const std::string& address, const Identity& self, const std::vector<ClusterKey>& keys,
                  const std::string& setting = "`name`");

std::string uuid_text(const std::array<uint8_t, 16>& uuid);   // 8-4-4-4-12 hex digits
bool uuid_parse(std::string_view text, std::array<uint8_t, 16>* uuid);

}   // namespace gradcast
