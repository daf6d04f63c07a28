#include "runtime/control/cli_docs.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/core/version.h"

namespace gradcast {
namespace {

using Apps = std::vector<const CLI::App*>;
using Commands = std::map<std::string, std::string>;   // by argument: prints its values

Apps commands_of(const CLI::App& app) {
    return app.get_subcommands([](const CLI::App* each) { return !each->get_group().empty(); });
}
/// Those that help shows.
std::vector<const CLI::Option*> options_of(const CLI::App& app, bool positional) {
    return app.get_options([&](const CLI::Option* each) { return !each->get_group().empty() && each->get_positional() == positional; });
}
std::string summary(const CLI::App& app) { return app.get_description().substr(0, app.get_description().find('\n')); }
std::string path_of(const CLI::App& app) { return (app.get_parent() ? path_of(*app.get_parent()) + " " : "") + app.get_name(); }

/// "-o", "--output".
std::vector<std::string> names_of(const CLI::Option& option) {
    std::vector<std::string> names;
    for (const std::string& each : option.get_snames()) names.push_back("-" + each);
    for (const std::string& each : option.get_lnames()) names.push_back("--" + each);
    return names;
}
bool takes_value(const CLI::Option& option) { return option.get_items_expected_max() > 0 && option.get_type_size_max() > 0; }
/// The words that it may be, as CLI::IsMember lists them in the type: "TEXT:{text,json}".
std::vector<std::string> values_of(const CLI::Option& option) {
    const std::string type = option.get_type_name();
    const size_t begin = type.find('{'), end = type.find('}', begin);
    std::vector<std::string> values;
    if (end == type.npos) return values;
    for (size_t at = begin + 1; at < end;) {
        const size_t comma = std::min(type.find(',', at), end);
        values.push_back(type.substr(at, comma - at));
        at = comma + 1;
    }
    return values;
}

/// Of the arguments of a command: the words that they list, and the command that prints others; it may be empty.
std::pair<std::vector<std::string>, std::string> arguments_of(const CLI::App& app, const Commands& commands) {
    std::vector<std::string> words;
    std::string command;
    for (const CLI::Option* argument : options_of(app, true)) {
        const std::vector<std::string> listed = values_of(*argument);
        words.insert(words.end(), listed.begin(), listed.end());
        if (const auto at = commands.find(argument->get_name(true)); at != commands.end()) command = at->second;
    }
    return {words, command};
}

// ---- man -----------------------------------------------------------------------------------------------------------------------

/// Text for roff: no character of its own meaning, also at the beginning of a line.
std::string roff(std::string_view text) {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
        const bool begins = i == 0 || text[i - 1] == '\n';
        if (begins && (text[i] == '.' || text[i] == '\'')) out += "\\&";
        if (text.substr(i).starts_with("…")) {
            out += "...";
            i += std::string_view("…").size() - 1;
        } else if (text[i] == '\\') out += "\\e";
        else if (text[i] == '-') out += "\\-";
        else out += text[i];
    }
    return out;
}
std::string roff_word(std::string_view text) {
    std::string out = roff(text);
    for (size_t at = 0; (at = out.find('"', at)) != out.npos; at += 2) out.replace(at, 1, "\"\"");
    return "\"" + out + "\"";
}

std::string head(std::string_view name, int section, std::string_view what) {
    std::string upper(name);
    std::transform(upper.begin(), upper.end(), upper.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    return fmt::format(".TH {} {} \"\" {} gradcast\n.SH NAME\n{} \\- {}\n", roff_word(upper), section,
                       roff_word(fmt::format("gradcast {}", version_text)), roff(name), roff(what));
}

/// Lines as they are, each on its own.
std::string lines(std::string_view text) { return fmt::format(".nf\n{}\n.fi\n", roff(text)); }

std::string options_text(const CLI::App& app) {
    std::string text;
    for (bool positional : {true, false})
        for (const CLI::Option* option : options_of(app, positional)) {
            std::vector<std::string> names = names_of(*option);
            if (positional) names = {option->get_name(true)};
            std::string value;
            if (!positional && takes_value(*option)) {
                const std::vector<std::string> values = values_of(*option);
                value = values.empty() ? " VALUE" : fmt::format(" {}", fmt::join(values, "|"));
            }
            text += fmt::format(".TP\n\\fB{}\\fR{}\n{}", roff(fmt::format("{}", fmt::join(names, ", "))), roff(value),
                                roff(option->get_description()));
            if (!option->get_default_str().empty()) text += roff(fmt::format(" (default: {})", option->get_default_str()));
            text += "\n";
        }
    return text;
}

std::string commands_text(const CLI::App& app, const std::string& prefix) {
    std::string text;
    for (const CLI::App* each : commands_of(app)) {
        std::string line = prefix + each->get_name();
        for (const CLI::Option* argument : options_of(*each, true))
            line += fmt::format(fmt::runtime(argument->get_required() ? " {}" : " [{}]"), argument->get_name(true));
        text += fmt::format(".SS {}\n{}\n{}", roff_word(line), roff(each->get_description()), options_text(*each));
        if (each->get_footer() != app.get_footer()) text += ".PP\n" + lines(each->get_footer());   // else inherited
        text += commands_text(*each, prefix + each->get_name() + " ");
    }
    return text;
}

std::string tail(std::string_view see_also) { return fmt::format(".SH SEE ALSO\n{}\n", roff(see_also)); }

// ---- completion ----------------------------------------------------------------------------------------------------------------

/// Within single quotes of a shell.
std::string single(std::string_view text) {
    std::string out;
    for (char c : text) {
        if (c == '\'') out += "'\\''";
        else out += c;
    }
    return "'" + out + "'";
}

void each_command(const CLI::App& app, Apps& all) {
    all.push_back(&app);
    for (const CLI::App* each : commands_of(app)) each_command(*each, all);
}

/// The flags of a command and of those above it.
std::vector<const CLI::Option*> flags_of(const CLI::App& app) {
    std::vector<const CLI::Option*> all = options_of(app, false);
    if (app.get_parent())
        for (const CLI::Option* each : flags_of(*app.get_parent()))
            if (std::none_of(all.begin(), all.end(), [&](const CLI::Option* other) { return names_of(*other) == names_of(*each); }))
                all.push_back(each);
    return all;
}

/// A case for each command by its words, "gradcastctl data inspect".
std::string bash(const CLI::App& app, const Commands& commands) {
    Apps all;
    each_command(app, all);
    std::string known, words, values;
    for (const CLI::App* each : all) {
        std::vector<std::string> names;
        for (const CLI::App* command : commands_of(*each)) {
            names.push_back(command->get_name());
            known += fmt::format("{}{}", known.empty() ? "" : "|", single(path_of(*command)));
        }
        for (const CLI::Option* option : flags_of(*each)) {
            const std::vector<std::string> of = names_of(*option), allowed = values_of(*option);
            names.insert(names.end(), of.begin(), of.end());
            if (takes_value(*option))
                for (const std::string& name : of)
                    values += fmt::format("        {}) {} ;;\n", single(path_of(*each) + " " + name),
                                          allowed.empty() ? "return" : fmt::format("words='{}'", fmt::join(allowed, " ")));
        }
        const auto [listed, command] = arguments_of(*each, commands);
        names.insert(names.end(), listed.begin(), listed.end());
        words += fmt::format("        {}) words={}{} ;;\n", single(path_of(*each)), single(fmt::format("{}", fmt::join(names, " "))),
                             command.empty() ? "" : fmt::format("; [[ $current == -* ]] || words+=\" $({})\"", command));
    }
    return fmt::format(R"(# bash completion for {0}, made from its options.
_{1}() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}} path={0} words= i
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; ++i)); do
        case "$path ${{COMP_WORDS[i]}}" in
        {2}) path="$path ${{COMP_WORDS[i]}}" ;;
        esac
    done
    case "$path" in
{3}    esac
    case "$path $previous" in
{4}    esac
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}}
complete -o bashdefault -o default -F _{1} {0}
)",
                       app.get_name(), CLI::detail::find_and_replace(app.get_name(), "-", "_"), known.empty() ? "''" : known, words,
                       values);
}

std::string zsh_words(std::string_view text) {   // ':' and brackets divide the parts of a specification
    std::string out;
    for (char c : text) {
        if (c == ':' || c == '[' || c == ']' || c == '\\') out += '\\';
        out += c;
    }
    return out;
}

std::string zsh_function(const CLI::App& app) {
    return "_" + CLI::detail::find_and_replace(CLI::detail::find_and_replace(path_of(app), "-", "_"), " ", "_");
}

std::string zsh(const CLI::App& app, const Commands& dynamic) {
    Apps all;
    each_command(app, all);
    std::string text = fmt::format("#compdef {0}\n# zsh completion for {0}, made from its options.\n", app.get_name());
    for (const CLI::App* each : all) {
        std::string arguments;
        for (const CLI::Option* option : flags_of(*each))
            for (const std::string& name : names_of(*option)) {
                std::string spec = fmt::format("{}[{}]", name, zsh_words(option->get_description()));
                if (takes_value(*option)) {
                    const std::vector<std::string> allowed = values_of(*option);
                    spec += allowed.empty() ? ":value:_files" : fmt::format(":value:({})", fmt::join(allowed, " "));
                }
                arguments += fmt::format(" \\\n        {}", single(spec));
            }
        const Apps commands = commands_of(*each);
        text += fmt::format("\n{}() {{\n", zsh_function(*each));
        if (commands.empty()) {
            const auto [listed, command] = arguments_of(*each, dynamic);
            const std::string action = !command.empty() ? fmt::format("{{compadd -- $({}); _files}}", command)
                                       : listed.empty() ? "_files"
                                                        : fmt::format("({})", fmt::join(listed, " "));
            text += fmt::format("    _arguments{} \\\n        {}\n}}\n", arguments, single("*:argument:" + action));
            continue;
        }
        std::string list, cases;
        for (const CLI::App* command : commands) {
            list += fmt::format("        {}\n", single(zsh_words(command->get_name()) + ":" + zsh_words(summary(*command))));
            cases += fmt::format("        {}) {} ;;\n", command->get_name(), zsh_function(*command));
        }
        text += fmt::format(
            "    local state line\n    local -a commands=(\n{}    )\n    _arguments -C{} \\\n        '1:command:->command' "
            "'*::argument:->argument'\n"
            "    case $state in\n    command) _describe command commands ;;\n    argument)\n        case $line[1] in\n{}        esac ;;\n  "
            "  esac\n}}\n",
            list, arguments, cases);
    }
    return text + fmt::format("\n{} \"$@\"\n", zsh_function(app));
}

std::string fish(const CLI::App& app, const Commands& commands) {
    std::string text = fmt::format("# fish completion for {0}, made from its options.\n", app.get_name());
    Apps all;
    each_command(app, all);
    for (const CLI::App* each : all) {
        std::vector<std::string> names;
        for (const CLI::App* command : commands_of(*each)) names.push_back(command->get_name());
        // The words of this command have been typed, none of its own commands has.
        std::string when;
        for (const CLI::App* at = each; at->get_parent(); at = at->get_parent())
            when = fmt::format("__fish_seen_subcommand_from {}{}{}", at->get_name(), when.empty() ? "" : "; and ", when);
        if (!names.empty()) {
            const std::string none = fmt::format("not __fish_seen_subcommand_from {}", fmt::join(names, " "));
            when = when.empty() ? none : when + "; and " + none;
        }
        for (const CLI::App* command : commands_of(*each))
            text += fmt::format("complete -c {} -n {} -a {} -d {}\n", app.get_name(), single(when), command->get_name(),
                                single(summary(*command)));
        const auto [listed, command] = arguments_of(*each, commands);
        std::string values = fmt::format("{}", fmt::join(listed, " "));
        if (!command.empty()) values += fmt::format("{}({})", values.empty() ? "" : " ", command);
        if (!values.empty()) text += fmt::format("complete -c {} -n {} -a {}\n", app.get_name(), single(when), single(values));
        for (const CLI::Option* option : flags_of(*each)) {
            std::string line = fmt::format("complete -c {}{}", app.get_name(), when.empty() ? "" : " -n " + single(when));
            for (const std::string& name : option->get_snames()) line += " -s " + name;
            for (const std::string& name : option->get_lnames()) line += " -l " + name;
            if (takes_value(*option)) {
                const std::vector<std::string> allowed = values_of(*option);
                line += allowed.empty() ? " -r" : fmt::format(" -x -a {}", single(fmt::format("{}", fmt::join(allowed, " "))));
            }
            text += line + " -d " + single(option->get_description()) + "\n";
        }
    }
    return text;
}

}   // namespace

std::string man_page(const CLI::App& app, int section, std::string_view see_also) {
    const Apps commands = commands_of(app);
    std::string text = head(app.get_name(), section, summary(app));
    text += fmt::format(".SH SYNOPSIS\n\\fB{}\\fR [OPTIONS]{}\n", roff(app.get_name()), commands.empty() ? "" : " COMMAND ...");
    text += ".SH OPTIONS\n" + options_text(app);
    if (!commands.empty()) text += ".SH COMMANDS\n" + commands_text(app, "");
    if (!app.get_footer().empty()) text += ".SH NOTES\n" + lines(app.get_footer());
    return text + tail(see_also);
}

std::string man_page(std::string_view name, std::string_view what, const std::vector<std::string>& about, const std::vector<FileKey>& keys,
                     std::string_view see_also) {
    std::string text = head(name, 5, what) + ".SH DESCRIPTION\n", section;
    for (const std::string& each : about) text += fmt::format(".PP\n{}\n", roff(each));
    text += ".SH KEYS\n";
    for (const FileKey& each : keys) {
        if (each.section != section) text += fmt::format(".SS {}\n", roff_word(section = each.section));
        text += fmt::format(".TP\n\\fB{}\\fR{}\n{}{}\n", roff(each.key), roff(each.value.empty() ? "" : " = " + each.value),
                            roff(each.help), roff(each.range.empty() ? "" : fmt::format(" ({})", each.range)));
    }
    return text + tail(see_also);
}

std::string type_of_words(const std::vector<std::string>& words) { return fmt::format("TEXT:{{{}}}", fmt::join(words, ",")); }

std::string completion(const CLI::App& app, std::string_view shell, const Commands& commands) {
    return shell == "bash" ? bash(app, commands) : shell == "zsh" ? zsh(app, commands) : fish(app, commands);
}

}   // namespace gradcast
