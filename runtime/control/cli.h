// How all programs report a wrong command line.  Exit codes: 0 done, 1 failed, 2 usage, 3 unreachable.
#pragma once
#include <CLI/CLI.hpp>

namespace gradcast {

/// Prints help (stdout, returns 0) or the error with the nearest flag or command (stderr, returns 2).
int cli_exit(const CLI::App& app, const CLI::ParseError& error);

}   // namespace gradcast
