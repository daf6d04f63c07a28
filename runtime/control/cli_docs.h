// Man pages and shell completion, made from the table of options that parses the command line.
#pragma once
#include <CLI/CLI.hpp>
#include <map>
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
/// The type name of an option that lists its values, as CLI::IsMember gives it, where something else checks them: "TEXT:{a,b}".
std::string type_of_words(const std::vector<std::string>& words);
/// Script for "bash", "zsh" or "fish".  Files are completed where an option or argument does not list its values.  commands: by the name of
/// an argument, a command line without single quotes and colons that prints its values, a line each.
std::string completion(const CLI::App& app, std::string_view shell, const std::map<std::string, std::string>& commands = {});

}   // namespace gradcast
