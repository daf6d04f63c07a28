// gradcastctl over TCP: --host, --key, contexts, and what it says where they are wrong.
#include "runtime/control/keys.h"
#include "tests/ctl/ctl.h"

namespace gradcast {
namespace {

struct CtlRemote : Ctl {
    std::string host;   // with the port
    void SetUp() override {
        Ctl::SetUp();
        if (IsSkipped()) return;
        ASSERT_EQ(run("key new ana.key --client ana --role submit").exit, 0);
        ASSERT_EQ(run("key new cluster.key").exit, 0);
        std::vector<ControlKey> keys;
        std::vector<ClusterKey> ring;
        ASSERT_TRUE(client_keys_read(folder + "/ana.key", &keys).ok() && cluster_keys_read(folder + "/cluster.key", &ring).ok());
        keys.push_back(control_key(ring[0]));
        const Status status = control_open({.socket = socket, .remote = "127.0.0.1:0", .keys = keys}, backend, Log(), &server);
        ASSERT_TRUE(status.ok()) << status.what;
        host = server->address();
        backend.members = {{.name = "a", .address = "a:1", .uuid = "", .version = "1", .self = true, .alive = true, .why = "", .isa = ""}};
        backend.finish(backend.add(id_a, "first"), JobState::done);
    }
    Outcome in(const std::string& context, const std::string& command) const {
        ::setenv("XDG_CONFIG_HOME", folder.c_str(), 1);
        const Outcome outcome = run((context.empty() ? "" : "--context " + context + " ") + command);
        ::unsetenv("XDG_CONFIG_HOME");
        return outcome;
    }
};

TEST_F(CtlRemote, DoesWhatTheRoleAllows) {
    const std::string ana = "--host " + host + " --key ana.key ", admin = "--host " + host + " --key cluster.key ";
    EXPECT_NE(run(ana + "list").out.find("first"), std::string::npos);
    const Outcome watched = run(ana + "watch first");
    EXPECT_EQ(watched.exit, 0) << watched.err;
    EXPECT_NE(watched.out.find("accuracy 0.8912"), std::string::npos) << watched.out;
    Outcome outcome = run(ana + "delete first");
    EXPECT_EQ(outcome.exit, 1);
    EXPECT_TRUE(outcome.says("this needs the role admin, and the key ana has the role submit: ask for a key with the role admin"))
        << outcome.err;
    outcome = run(admin + "-o json delete first");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_EQ(run(ana + "list").out.find("first"), std::string::npos);
    // Flags stand behind the command as well.
    EXPECT_EQ(run("nodes --host " + host + " --key ana.key").exit, 0);
}

TEST_F(CtlRemote, GoesOnAtAnotherHost) {
    const Outcome outcome = run("--host 127.0.0.1:1 --host " + host + " --key ana.key list");
    EXPECT_EQ(outcome.exit, 3);   // only what is followed goes on elsewhere
    EXPECT_TRUE(outcome.says("nothing listens at 127.0.0.1:1: is gradcastd running there")) << outcome.err;
}

TEST_F(CtlRemote, SaysWhatIsWrong) {
    ASSERT_EQ(run("key new other.key --client ana --role submit").exit, 0);
    ASSERT_EQ(run("key new eve.key --client eve --role admin").exit, 0);
    struct {
        std::string arguments;
        int exit;
        std::string why;
    } const cases[] = {
        {"--host " + host + " list", 2, "--key FILE is missing: your client key, or the cluster key"},
        {"--host " + host + " --key none.key list", 2, "cannot read the key none.key: No such file"},
        {"--host " + host + " --key other.key list", 3, "does not take the key ana: "},
        {"--host " + host + " --key eve.key list", 3, "does not take the key eve: "},
        {"--host http://a:1 --key ana.key list", 2, "--host http://a:1: write HOST, HOST:PORT or [V6]:PORT"},
        {"--host a:b --key ana.key list", 2, "--host a:b: write HOST"},
        {"--host a:70000 --key ana.key list", 2, "--host a:70000: write HOST"},
        {"--host a: --key ana.key list", 2, "--host a:: write HOST"},
        {"--host a:0 --key ana.key list", 2, "--host a:0: write HOST"},
        {"--host no-such-host.invalid --key ana.key list", 3, "cannot find the host no-such-host.invalid: "},
        {"--host [::1]:1 --key ana.key list", 3, "nothing listens at ::1:1"},
        {"--key ana.key list", 2, "--key ana.key is for --host HOST"},
        {"--host a --socket b --key ana.key list", 2, "--socket excludes --host"},
        {"key new ana.key", 1, "the key file ana.key exists already and stays as it is: name another file"},
        {"key new x.key --client a", 2, "a client key has both --client NAME and --role"},
        {"key new x.key --client 'a b' --role view", 2, "--client a b: at most 32 letters"},
        {"key new x.key --client a --role root", 2, "--role: root not in {view,submit,admin}"},
        {"contexts", 0, ""},
    };
    for (const auto& [arguments, exit, why] : cases) {
        const Outcome outcome = run(arguments);
        EXPECT_EQ(outcome.exit, exit) << arguments << "\n" << outcome.err;
        EXPECT_TRUE(outcome.says(why)) << arguments << "\n" << outcome.err;
        if (exit == 1 || exit == 3) {
            EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
        }
    }
    ASSERT_EQ(::chmod((folder + "/ana.key").c_str(), 0644), 0);
    EXPECT_TRUE(run("--host " + host + " --key ana.key list").says("can be read by others: chmod 600 ana.key"));
}

TEST_F(CtlRemote, ContextsNameDaemons) {
    EXPECT_TRUE(in("lab", "list").says("there is no context lab: " + folder + "/gradcast/contexts.toml does not exist"));
    fs::create_directories(folder + "/gradcast");
    write("gradcast/contexts.toml",
          "[lab]\nhost = [\"" + host + "\", \"127.0.0.1:1\"]\nkey = \"../ana.key\"\n[here]\nsocket = \"" + socket + "\"\n");
    for (const char* context : {"lab", "here"}) EXPECT_NE(in(context, "list").out.find("first"), std::string::npos) << context;
    const Outcome all = in("", "contexts");
    EXPECT_NE(all.out.find("lab"), std::string::npos);
    EXPECT_NE(all.out.find("here"), std::string::npos);
    EXPECT_TRUE(in("lba", "list").says("there is no context lba in " + folder + "/gradcast/contexts.toml: did you mean lab?"));
    EXPECT_TRUE(in("", "--context lab --socket x list").says("--socket excludes --context"));
    ::setenv("GRADCAST_CONTEXT", "lab", 1);
    EXPECT_NE(in("", "list").out.find("first"), std::string::npos);
    ::setenv("GRADCAST_CONTEXT", "moon", 1);
    EXPECT_TRUE(in("", "list").says("there is no context moon"));
    EXPECT_NE(in("here", "list").out.find("first"), std::string::npos);
    EXPECT_NE(in("", "--socket " + socket + " list").out.find("first"), std::string::npos);
    EXPECT_EQ(in("", "help job").exit, 0);   // asks no daemon
    ::unsetenv("GRADCAST_CONTEXT");
    const std::pair<const char*, const char*> wrong[] = {
        {"[lab", "contexts.toml:1: "},
        {"lab = 1", "contexts.toml:1: lab: a context is a table"},
        {"[lab]\nkey = \"k\"", "contexts.toml:1: lab: needs either host or socket"},
        {"[lab]\nhost = \"h\"", "contexts.toml:1: lab: host needs key, the path of a key file"},
        {"[lab]\nsocket = \"s\"\nkey = \"k\"", "contexts.toml:1: lab: key is for host"},
        {"[lab]\nhost = []\nkey = \"k\"", "contexts.toml:2: host: the list is empty"},
        {"[lab]\nhost = 7\nkey = \"k\"", "contexts.toml:2: host: must be a text in quotes"},
        {"[lab]\nhots = \"h\"", "contexts.toml:2: lab: unknown key hots: one of host, key, socket"},
        {"[lab]\nhost = \"h\"\nkey = \"none\"", "cannot read the key "},
    };
    for (const auto& [text, why] : wrong) {
        write("gradcast/contexts.toml", text);
        const Outcome outcome = in("lab", "list");
        EXPECT_EQ(outcome.exit, 2) << text;
        EXPECT_TRUE(outcome.says(why)) << text << "\n" << outcome.err;
    }
}

}   // namespace
}   // namespace gradcast
