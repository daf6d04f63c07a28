// Command lines that are wrong, and what holds for every command: exit codes, errors as JSON, interruptions.
#include <sys/socket.h>
#include <sys/un.h>

#include "tests/ctl/ctl.h"

namespace gradcast {
namespace {

TEST_F(Ctl, WrongCommandLinesExitWithTwoAndNameTheNearest) {
    struct {
        const char *arguments, *says;
    } cases[] = {
        {"", "subcommand is required"},
        {"sbmit job.toml", "did you mean submit?"},
        {"submit job.toml --node 4", "did you mean --nodes?"},
        {"run job.toml --locl 4", "did you mean --local?"},
        {"run job.toml", "--local is required"},
        {"run job.toml --local", "--local: its value is missing"},
        {"bench allreducee", "did you mean allreduce?"},
        {"run job.toml --local 0", "--local"},
        {"run job.toml --local 65", "--local"},
        {"run job.toml --local four", "--local"},
        {"list extra", "extra"},
        {"-o yaml list", "json"},
        {"describe", "JOB"},
        {"evaluate final.h5", "--data"},
        {"predict final.h5", "IMAGE"},
        {"predict final.h5 a.png --top 0", "--top"},
        {"generate final.h5", "no prompt"},
        {"generate final.h5 --prompt a --tokens 0", "--tokens"},
        {"prdict final.h5 a.png", "did you mean predict?"},
        {"import mist --from . --out .", "did you mean mnist?"},
        {"import ridge --out . --samples -5", "--samples"},
        {"import ridge --out . --samples 0", "--samples"},
        {"import ridge --out . --seed -1", "--seed: '-1' is not a whole number from 0"},
        {"import ridge --out . --seed 18446744073709551616", "--seed: 18446744073709551616 is above 18446744073709551615"},
        {"import ridge --out . --seed 0x10", "--seed: '0x10' is not a whole number from 0"},
        {"import ridge --out . --seed ''", "--seed: '' is not a whole number from 0"},
        {"run job.toml --local 0x2", "--local: '0x2' is not a whole number from 0"},
        {"run job.toml --local 065", "--local"},
        {"import ridge --out . --compress=0", "--compress"},
        {"import ridge --out . --compress=12", "--compress"},
        {"help jbo", "no help on jbo"},
        {"submit absent.toml", "absent.toml"},
    };
    for (const auto& each : cases) {
        Outcome outcome = run(each.arguments);
        EXPECT_EQ(outcome.exit, 2) << each.arguments;
        EXPECT_TRUE(outcome.says(each.says)) << each.arguments << "\n" << outcome.err;
        EXPECT_EQ(outcome.out, "") << each.arguments;
    }
}

TEST_F(Ctl, NumbersAreDecimalAlsoBehindAZero) {
    std::string digests[2];
    for (const char* seed : {"10", "010"}) {
        ASSERT_EQ(run(fmt::format("import ridge --samples 10 --out {}/{} --seed {}", folder, seed, seed)).exit, 0);
        ASSERT_TRUE(file_read(fmt::format("{}/{}/train.h5", folder, seed), &digests[seed[0] == '0']).ok());
    }
    EXPECT_EQ(digests[0], digests[1]);
}

TEST_F(Ctl, HelpAndVersionGoToStdout) {
    for (const char* arguments : {"--help", "--version", "help", "help submit", "help job", "submit --help"}) {
        Outcome outcome = run(arguments);
        EXPECT_EQ(outcome.exit, 0) << arguments << outcome.err;
        EXPECT_NE(outcome.out, "") << arguments;
        EXPECT_EQ(outcome.err, "") << arguments;
    }
    EXPECT_EQ(run("help").out, run("--help").out);
    EXPECT_NE(run("help job").out.find("exchange"), std::string::npos);
    EXPECT_NE(run("help submit").out.find("--wait"), std::string::npos);
    EXPECT_TRUE(run("help presets").out.starts_with("preset ")) << run("help presets").out;
}

TEST_F(Ctl, HelpHasCommandsInGroups) {
    const std::string help = run("--help").out;
    size_t before = 0;
    for (const char* line : {"\nJobs:\n", "\n  submit ", "\n  force-view ", "\nCluster:\n", "\n  drain ", "\nData and models:\n",
                             "\n  predict ", "\n  generate ", "\n  import ", "\nHelp:\n", "\n  completion "}) {
        const size_t at = help.find(line);
        ASSERT_NE(at, help.npos) << line << help;
        EXPECT_GT(at, before) << line;
        before = at;
    }
    EXPECT_EQ(help.find("Subcommands"), help.npos) << "a command has no group:\n" << help;
}

/// Whether a tool is installed.
bool have(const char* tool) { return std::system(fmt::format("command -v {} >/dev/null 2>&1", tool).c_str()) == 0; }

// Man pages name every command, flag and key, and the formatter finds no fault in them.
TEST_F(Ctl, ManPagesAreOfTheSameTables) {
    const std::string build = fs::path(program).parent_path();
    for (const auto& [command, words] :
         {std::pair<std::string, std::vector<std::string>>{"gradcastctl man gradcastctl",
                                                           {"submit JOB.toml", "data inspect SHARDS", "\\-\\-resume", "text|json"}},
          {"gradcastctl man gradcast-job", {"[job]", "\\fBepochs", "[[net.layers]]", "SEE ALSO"}},
          {"gradcastd --man gradcastd", {"\\-\\-check", ".SH NOTES"}},
          {"gradcastd --man gradcastd.toml", {"\\fBmembers", "jobs_kept"}},
          {"gradcast-bench --man", {"allreduce", "\\-\\-layout"}}}) {
        if (::access((build + "/" + command.substr(0, command.find(' '))).c_str(), X_OK) != 0) continue;
        const std::string page = folder + "/page";
        ASSERT_EQ(std::system(fmt::format("{}/{} >{}", build, command, page).c_str()), 0) << command;
        const std::string text = read("page");
        EXPECT_TRUE(text.starts_with(".TH \"GRADCAST")) << command;
        for (const std::string& word : words) EXPECT_NE(text.find(word), text.npos) << command << ": " << word;
        if (!have("groff")) continue;
        ASSERT_EQ(std::system(fmt::format("groff -man -Tutf8 -ww {} >/dev/null 2>{}/warnings", page, folder).c_str()), 0);
        EXPECT_EQ(read("warnings"), "") << command;
    }
}

TEST_F(Ctl, ShellsCompleteCommandsFlagsAndValues) {
    for (const char* shell : {"bash", "zsh", "fish"}) {
        Outcome outcome = run(std::string("completion ") + shell);
        ASSERT_EQ(outcome.exit, 0);
        write(shell, outcome.out);
        if (have(shell)) {
            EXPECT_EQ(std::system(fmt::format("{0} -n {1}/{0}", shell, folder).c_str()), 0) << shell;
        }
    }
    EXPECT_EQ(run("completion tcsh").exit, 2);
    if (!have("bash")) return;
    auto completes = [&](const std::string& words) {   // the last one
        write("asks",
              fmt::format(
                  "source '{}/bash'\nCOMP_WORDS=({})\nCOMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n_gradcastctl\necho \"${{COMPREPLY[*]}}\"\n",
                  folder, words));
        EXPECT_EQ(std::system(fmt::format("bash '{0}/asks' >'{0}/said'", folder).c_str()), 0);
        return read("said");
    };
    EXPECT_EQ(completes("gradcastctl res"), "resume\n");
    EXPECT_EQ(completes("gradcastctl submit --wa"), "--wait\n");
    EXPECT_EQ(completes("gradcastctl pre"), "predict\n");
    EXPECT_EQ(completes("gradcastctl predict final.h5 a.png --to"), "--top\n");
    EXPECT_EQ(completes("gradcastctl data ins"), "inspect\n");
    EXPECT_EQ(completes("gradcastctl -o json data inspect --she"), "--sheet\n");
    EXPECT_EQ(completes("gradcastctl list --output ''"), "text json\n");
    EXPECT_EQ(completes("gradcastctl submit --nodes ''"), "\n");   // then files, by the shell
    for (const char* command : {"run", "verify"})
        EXPECT_EQ(completes(fmt::format("gradcastctl {} --isa ''", command)), "auto portable common avx2 avx512 avx512-bf16 amx\n");
    EXPECT_EQ(completes("gradcastctl import cif"), "cifar10 cifar100\n");
    EXPECT_EQ(completes("gradcastctl help pres"), "presets\n");
    EXPECT_EQ(completes("gradcastctl help dra"), "drain\n");
    // Jobs are asked of the daemon of the context.
    serve();
    backend.add(id_a, "tiny");
    fs::create_directories(folder + "/gradcast");
    write("gradcast/contexts.toml", "[lab]\nsocket = \"" + socket + "\"\n");
    const std::string environment =
        fmt::format("export XDG_CONFIG_HOME='{}' GRADCAST_CONTEXT=lab PATH='{}':$PATH\n", folder, fs::path(program).parent_path().string());
    write("bash", environment + read("bash"));
    EXPECT_EQ(completes("gradcastctl describe aa"), "aaaa0000\n");
    EXPECT_EQ(completes("gradcastctl job add-node aa"), "aaaa0000\n");
    EXPECT_EQ(completes("gradcastctl logs --fol"), "--follow\n");
    for (const auto& [shell, jobs, kinds] :
         {std::tuple{"zsh", "'*:argument:{compadd -- $(gradcastctl list", "'*:argument:(fashion-mnist "},
          {"fish", "complete -c gradcastctl -n '__fish_seen_subcommand_from describe' -a '(gradcastctl list",
           "complete -c gradcastctl -n '__fish_seen_subcommand_from import' -a 'fashion-mnist "}}) {
        EXPECT_NE(read(shell).find(jobs), std::string::npos) << shell;
        EXPECT_NE(read(shell).find(kinds), std::string::npos) << shell;
    }
}

TEST_F(Ctl, NoDaemonIsExitThree) {
    for (const char* arguments : {"list", "nodes", "describe x", "watch x", "logs x", "cancel x"}) {
        Outcome outcome = ask(arguments);
        EXPECT_EQ(outcome.exit, 3) << arguments;
        EXPECT_TRUE(outcome.says("no gradcastd answers at " + socket)) << outcome.err;
        EXPECT_TRUE(outcome.says("run --local")) << outcome.err;
    }
}

TEST_F(Ctl, TheSocketOfAnotherUserSaysSo) {
    if (::getuid() != 0) GTEST_SKIP() << "needs root to become another user";
    serve();
    fs::copy_file(program, folder + "/client");   // where that user may read it
    ASSERT_EQ(::chmod(folder.c_str(), 0755), 0);
    write("as", "#!/bin/sh\nexec setpriv --reuid=65534 --regid=65534 --clear-groups '" + folder + "/client' \"$@\"\n");
    program = folder + "/as";
    ASSERT_EQ(::chmod(program.c_str(), 0755), 0);
    const Outcome outcome = ask("list");
    EXPECT_EQ(outcome.exit, 3);
    EXPECT_TRUE(outcome.says("no permission to use " + socket + ": be root or in its group")) << outcome.err;
}

TEST_F(Ctl, ErrorsAreJsonToo) {
    struct {
        const char* arguments;
        int exit;
    } cases[] = {{"-o json list", 3},
                 {"list --output=json", 3},
                 {"-ojson describe x", 3},
                 {"-o json submit absent.toml", 2},
                 {"-o json sbmit absent.toml", 2},
                 {"-o json list extra", 2},
                 {"-o json evaluate a.h5 --data b", 1}};
    for (const auto& each : cases) {
        Outcome outcome = ask(each.arguments);
        EXPECT_EQ(outcome.exit, each.exit) << each.arguments;
        const Json json = outcome.json();
        ASSERT_TRUE(json.is_object()) << each.arguments << "\n" << outcome.out;
        EXPECT_EQ(json["exit"], each.exit) << each.arguments;
        EXPECT_FALSE(json["error"].get<std::string>().empty()) << each.arguments;
        EXPECT_NE(outcome.err, "") << each.arguments;
    }
}

TEST_F(Ctl, EveryMistakeOfAJobFileIsTold) {
    write("job.toml",
          "[job]\nname = \"x\"\nepochs = -1\nbatchs = 128\n[data]\ntrain = \"train.h5\"\n[net]\npreset = \"lenet5\"\n[algorithm]\nexchange "
          "= \"rong\"\n");
    for (const char* arguments : {"run job.toml --local 2", "submit job.toml"}) {
        Outcome outcome = ask(arguments);
        EXPECT_EQ(outcome.exit, 2) << outcome.err;
        EXPECT_TRUE(outcome.says("job.toml:3:")) << outcome.err;
        EXPECT_TRUE(outcome.says("job.toml:4:")) << outcome.err;
        EXPECT_TRUE(outcome.says("batch")) << outcome.err;
        EXPECT_TRUE(outcome.says("job.toml:10:")) << outcome.err;
        EXPECT_TRUE(outcome.says("ring")) << outcome.err;
    }
    for (const auto& entry : fs::directory_iterator(folder)) EXPECT_FALSE(entry.path().filename().string().starts_with("gradcast-"));
}

TEST_F(Ctl, CtrlCEndsEveryCommandWithOne) {
    Fd silent(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));   // accepts, and never answers
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    socket.copy(address.sun_path, sizeof address.sun_path - 1);
    ASSERT_EQ(::bind(silent.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ASSERT_EQ(::listen(silent.get(), 8), 0);
    for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
        const pid_t pid = start("--socket " + socket + " -o json list");
        Fd client(::accept4(silent.get(), nullptr, nullptr, SOCK_CLOEXEC));
        char byte;
        if (::recv(client.get(), &byte, 1, 0) == 0)
            client = Fd(::accept4(silent.get(), nullptr, nullptr, SOCK_CLOEXEC));   // it had asked who listens
        ASSERT_EQ(::recv(client.get(), &byte, 1, 0), 1);
        ::usleep(20'000);   // it waits for its answer
        ::kill(pid, signal);
        const Outcome outcome = wait(pid);
        EXPECT_EQ(outcome.exit, 1) << signal;
        EXPECT_EQ(outcome.err, "gradcastctl: interrupted\n");
        EXPECT_EQ(outcome.json()["error"], "interrupted");
        EXPECT_EQ(outcome.json()["exit"], 1);
    }
}

}   // namespace
}   // namespace gradcast
