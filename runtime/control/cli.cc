#include "runtime/control/cli.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "runtime/core/nearest.h"

namespace gradcast {

int cli_exit(const CLI::App& app, const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    // The flags of the innermost command that was recognised are the candidates.
    const CLI::App* command = &app;
    while (!command->get_subcommands().empty()) command = command->get_subcommands().front();
    std::string text = error.what(), hint;
    std::vector<std::string> rest = app.remaining(true);   // words that no command accepts
    if (!rest.empty()) {
        auto flag = std::find_if(rest.begin(), rest.end(), [](const std::string& each) { return each.starts_with("-"); });
        std::string word = flag != rest.end() ? *flag : rest.front();
        word = word.substr(0, word.find('='));
        std::vector<std::string> names;
        if (word.starts_with("-")) {
            for (const CLI::Option* option : command->get_options())
                for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
            text = fmt::format("unknown flag {}", word);
        } else {
            for (const CLI::App* each : command->get_subcommands([](const CLI::App*) { return true; })) names.push_back(each->get_name());
            text = fmt::format("{} {}", names.empty() ? "unexpected argument" : "unknown command", word);
        }
        if (std::string best = nearest(word, names); !best.empty()) hint = fmt::format("; did you mean {}?", best);
    }
    // "--socket: 1 required TEXT missing"
    if (const size_t at = text.find(": 1 required "); at != text.npos && text.ends_with(" missing"))
        text = text.substr(0, at) + ": its value is missing";
    std::string path = command->get_name();
    for (const CLI::App* each = command->get_parent(); each; each = each->get_parent()) path = each->get_name() + " " + path;
    fmt::print(stderr, "{}: {}{}\nrun '{} --help' for its options\n", path, text, hint, path);
    return 2;
}

void cli_decimal(CLI::App& app) {
    const auto decimal = [](bool may_be_negative) {
        return CLI::Validator(
            [may_be_negative](std::string& text) {
                const bool negative = may_be_negative && text.starts_with('-');
                const std::string digits = text.substr(negative);
                if (digits.empty() || digits.find_first_not_of("0123456789") != digits.npos)
                    return fmt::format("'{}' is not a whole number{}", text, may_be_negative ? "" : " from 0");
                text = (negative ? "-" : "") + digits.substr(std::min(digits.find_first_not_of('0'), digits.size() - 1));
                uint64_t value;
                if (std::from_chars(text.data() + negative, text.data() + text.size(), value).ec == std::errc()) return std::string();
                return fmt::format("{} is above {}", text, std::numeric_limits<uint64_t>::max());
            },
            "");
    };
    for (CLI::Option* option : app.get_options()) {
        const std::string type = option->get_type_name();
        if (type.starts_with("UINT") || type.starts_with("INT")) option->transform(decimal(type.starts_with("INT")));
    }
    for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) cli_decimal(*command);
}

}   // namespace gradcast
