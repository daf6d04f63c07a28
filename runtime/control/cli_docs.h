// Man pages and shell completion, made from the table of options that parses the command line.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/file_key.h"

namespace gradcast {

/// Page of section 1 or 8 for a program: its commands, options and footer.
std::string man_page(const CLI::App& app, int section, std::string_view see_also);
/// Page of section 5 for a file.  `name` is its page, as "gradcast-job"; `what`, one line; `about`, paragraphs.
std::string man_page(std::string_view name, std::string_view what, const std::vector<std::string>& about, const std::vector<FileKey>& keys,
                     std::string_view see_also);
/// Script for "bash", "zsh" or "fish".  Files are completed where an option does not list its values.
std::string completion(const CLI::App& app, std::string_view shell);

}   // namespace gradcast
