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

std::string uuid_text(const std::array<uint8_t, 16>& uuid);   // 8-4-4-4-12 hex digits
bool uuid_parse(std::string_view text, std::array<uint8_t, 16>* uuid);

}   // namespace gradcast
