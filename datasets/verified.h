// Which shards were verified on this machine: a record in a file, so that a job need not read all bytes of its data before it starts.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>

#include "runtime/core/status.h"

namespace gradcast {

class DataSet;

constexpr size_t verified_max = 4096;                 // shards in a record; those verified longest ago are dropped
constexpr uint64_t verified_age_ns = 2'000'000'000;   // a file changed less than this before is not recorded: time stamps are coarse
constexpr uint64_t verified_lock_us = 1'000'000;      // longest wait for other processes that write the record
constexpr char verified_name[] = "verified";          // of the file

/// The record of a user: $XDG_CACHE_HOME/gradcast/verified, else ~/.cache/gradcast/verified.  "": neither variable holds an absolute path.
std::string verified_path_of_user();

/// Nanoseconds since 1970.
uint64_t unix_ns();

/// Does shard_verify() for each shard that the record does not list, then lists it.  The record is a file; "": none, and every shard is
/// read. A shard is known by this host's name, by device, inode, size, mtime and ctime of its file, and by its own digests: a changed file
/// is read again.  A shard is not listed if its file changed during the verification, or less than verified_age_ns before it. The record
/// never makes this fail.  A record that is damaged counts as empty and is replaced.  One that cannot be written stays as it is; the last
/// folder of its path and the one above are made if they are missing. Blocks: O(bytes of the shards that are not listed), and
/// verified_lock_us at most for other processes that write the record.  Any thread. Errors: those of shard_verify().  `now`: for tests.
Status data_verify_once(const DataSet& data, const std::string& record, const std::atomic<bool>* stop = nullptr,
                        uint64_t (*now)() = unix_ns);

}   // namespace gradcast
