// generate: text that a model continues.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "runtime/job/model/generate.h"
#include "tools/gradcastctl/client.h"
#include "tools/gradcastctl/commands.h"
#include "tools/gradcastctl/print.h"

namespace gradcast {
namespace {

struct Flags {
    std::string model, prompt, vocabulary;
    bool averaged = false;
    std::vector<uint32_t> tokens;
    uint32_t count = 200;
    Sampling sampling;
};

int command_generate(const Options& options, const Flags& flags) {
    if (flags.prompt.empty() == flags.tokens.empty())
        return complain(exit_usage, "{}: say what the model continues, by --prompt or by --prompt-tokens",
                        flags.prompt.empty() ? "there is no prompt" : "there are two prompts");
    if (!std::isfinite(flags.sampling.temperature)) return complain(exit_usage, "--temperature must be a number from 0 to 100");
    std::string path;
    if (int exit = find_model(options, flags.model, &path); exit != exit_done) return exit;
    Generator generator;
    std::vector<uint32_t> tokens = flags.tokens;
    Status status = generator.open(path, flags.averaged);
    if (status.ok() && !flags.vocabulary.empty()) status = generator.vocabulary(flags.vocabulary);
    if (status.ok() && tokens.empty()) status = generator.tokens(flags.prompt, &tokens);
    if (status.ok()) status = generator.check(tokens);
    const size_t given = tokens.size();
    std::string text;
    const bool terminal = ::isatty(STDOUT_FILENO) == 1;
    const auto say = [&](uint32_t token) {
        text += generator.text(token);
        if (options.json) return;
        std::string shown = generator.text(token);
        const auto steers = [](char each) { return static_cast<uint8_t>(each) < ' ' && each != '\n' && each != '\t'; };
        if (terminal) std::ranges::replace_if(shown, steers, '?');
        fmt::print("{}", shown);
        std::fflush(stdout);
    };
    for (size_t i = 0; status.ok() && i < given; ++i) say(tokens[i]);
    for (uint32_t i = 0; status.ok() && i < flags.count; ++i) {
        uint32_t next = 0;
        status = generator.next(tokens, flags.sampling, &next);
        if (!status.ok()) break;
        tokens.push_back(next);
        say(next);
    }
    if (!status.ok()) return complain(exit_failed, "{}", status.what);
    if (options.json)
        fmt::print("{}\n",
                   json_text({{"text", text}, {"tokens", tokens}, {"prompt_tokens", given}, {"digest", generator.model().digest}}, 2));
    else fmt::print("\n");
    return exit_done;
}

}   // namespace

void add_generate(Cli& cli) {
    Flags& f = cli.keep<Flags>();
    CLI::App* command = cli.add(models_group, "generate", "text that a model of a text continues; on this machine",
                                [&] { return command_generate(cli.options, f); });
    model_argument(command, f.model, f.averaged, every_file);
    command->add_option("--prompt", f.prompt,
                        "how the text begins, in characters that the model was trained on, or any where it has merges");
    command->add_option("--prompt-tokens", f.tokens, "the same as numbers of tokens, with commas")->delimiter(',');
    command->add_option("--vocabulary", f.vocabulary, "file or folder of GPT-2's merges, of a model of tokens that has no vocabulary");
    command->add_option("--tokens", f.count, "how many tokens follow")
        ->capture_default_str()
        ->check(CLI::Range(uint32_t{1}, uint32_t{1} << 20));
    command->add_option("--seed", f.sampling.seed, "of what is drawn: one seed gives one text on every CPU")->capture_default_str();
    command
        ->add_option("--temperature", f.sampling.temperature,
                     "below 1 probable tokens are drawn more often; 0: always the most probable one")
        ->capture_default_str()
        ->check(CLI::Range(0.0, 100.0));
    command->add_option("--top", f.sampling.top, "draw among so many of the most probable tokens alone; 0: among all")
        ->capture_default_str();
}

}   // namespace gradcast
