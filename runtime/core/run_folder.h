// A folder for the sockets and files of a process that lives as long as it.
#pragma once
#include <string>

#include "runtime/core/status.h"

namespace gradcast {

/// Makes a folder of mode 0700 in TMPDIR, in /tmp, or in the working folder: the first that can be written.  The caller removes it.  The
/// name is short, because the path of a Unix socket has at most 107 bytes: a folder whose path has more than 60 bytes is left out.
/// Error: none can be written; tells the way out.
Status run_folder_make(std::string* folder);

}   // namespace gradcast
