// How all programs report a wrong command line.  Exit codes: 0 done, 1 failed, 2 usage, 3 unreachable.
#pragma once
#include <CLI/CLI.hpp>

namespace gradcast {

/// Prints help (stdout, returns 0) or the error with the nearest flag or command (stderr, returns 2).
int cli_exit(const CLI::App& app, const CLI::ParseError& error);

/// Makes every option of app and of its commands that takes a whole number take decimal digits only.  CLI11 by itself reads 010 as 8,
/// 0x10 as 16, and for an option that is unsigned, -1 and 2^64 as 2^64 - 1.  Call it when all options are added.
void cli_decimal(CLI::App& app);

}   // namespace gradcast
