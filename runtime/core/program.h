// Where this program is, and what belongs to it: the other programs of gradcast, the libraries that it opens, its pages.  A program is in a
// build folder, in an installation (PREFIX/bin, PREFIX/sbin) or in an archive of `make dist` (archive.h).  In an archive /proc/self/exe is
// the carried loader, so nothing else of gradcast may read it.
#pragma once
#include <unistd.h>

#include <initializer_list>
#include <string>
#include <string_view>

namespace gradcast {

/// Makes a program of an archive independent of the host; in a program from elsewhere it does nothing.  Call it first in main, before any
/// thread starts.  Names of hosts are then looked up in /etc/hosts and DNS alone, users in /etc/passwd alone: the other modules that
/// /etc/nsswitch.conf may name need the host's C library.  The process gets the program's name, as ps and pgrep show it.
void program_begin();

/// Whether this program is from an archive.  Any thread.
bool program_in_archive();

/// The folder of this program: absolute, without symbolic links, without a last slash.  In an archive ROOT/bin, which has the launchers.
/// Empty where /proc is not mounted.  Any thread.
const std::string& program_folder();

/// The path of the file `name` in the first of `folders` that has it.  A folder is relative to program_folder(); "." is that folder.
/// access: R_OK, or X_OK for a program that is to be started.  Empty: no folder has it.  Any thread.
std::string program_file(std::string_view name, std::initializer_list<const char*> folders, int access = R_OK);

}   // namespace gradcast
