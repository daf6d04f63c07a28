#include <gtest/gtest.h>
#include <httplib.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <thread>

#include "runtime/control/json.h"
#include "runtime/core/clock.h"
#include "runtime/core/fd.h"
#include "tests/control/fake_backend.h"
#include "tests/control/resident.h"

namespace gradcast {
namespace {

struct Control : testing::Test {
    std::string folder, path;
    FakeBackend backend;
    std::unique_ptr<ControlServer> server;

    void SetUp() override {
        ::signal(SIGPIPE, SIG_IGN);
        folder = testing::TempDir() + "gc-control-XXXXXX";
        ASSERT_NE(::mkdtemp(folder.data()), nullptr);
        path = folder + "/control.sock";
    }
    void TearDown() override {
        server.reset();
        std::filesystem::remove_all(folder);
    }
    void open(uint32_t watchers_max = 4) {
        Status status = control_open({.socket = path, .mode = 0660, .watchers_max = watchers_max}, backend, Log(), &server);
        ASSERT_TRUE(status.ok()) << status.what;
    }
    httplib::Client client() const {
        httplib::Client client(path, 1);
        client.set_address_family(AF_UNIX);
        client.set_read_timeout(10);
        return client;
    }
    Json get(const std::string& route, int http = 200) {
        auto reply = client().Get(route);
        EXPECT_TRUE(reply) << route << ": " << to_string(reply.error());
        if (!reply) return {};
        EXPECT_EQ(reply->status, http) << route << "\n" << reply->body;
        EXPECT_EQ(reply->get_header_value("Content-Type"), "application/json") << route;
        Json json = Json::parse(reply->body, nullptr, false);
        EXPECT_TRUE(json.is_object()) << reply->body;
        return json;
    }
    /// A connection on which `request` was sent.
    Fd half(const std::string& request) const {
        Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        path.copy(address.sun_path, sizeof address.sun_path - 1);
        EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
        EXPECT_EQ(::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL), static_cast<ssize_t>(request.size()));
        return fd;
    }
    /// The answer to bytes that a client library would not send.
    std::string raw(const std::string& request) const {
        const Fd fd = half(request);
        std::string reply;
        char piece[4096];
        for (ssize_t got; (got = ::recv(fd.get(), piece, sizeof piece, 0)) > 0;) reply.append(piece, static_cast<size_t>(got));
        return reply;
    }
};

const std::string id_a = "aaaa0000000000000000000000000000", id_b = "bbbb0000000000000000000000000000";

TEST_F(Control, StatusSurvivesTheTripThroughJson) {
    JobDetail detail;
    JobStatus& status = detail.summary.status;
    detail.summary.id = id_a;
    detail.summary.nodes = {"a", "b"};
    status.state = JobState::failed;
    status.error = "rank 1 \xff went";
    status.step = 7;
    status.loss = 0.1;
    status.accuracy = 0.25;
    status.step_digest = 0xFEDCBA9876543210;
    status.timeouts_us = {{"heartbeat", 750000}, {"recovery", 15000000}};
    detail.self = NodeId{1};
    status.settings = {{"mu", "0.1"}, {"workers", "4"}};
    status.gradients = 1200;
    status.forwards = 34;
    status.staleness = {{0, 0, 30}, {16, 31, 2}};
    status.workers = {{.worker = 3, .rounds = 2, .last_round = 5, .samples = 64, .gradients = 96, .forwards = 10, .compute_us = 700}};
    status.view = 2;
    status.change_us = 1500;
    status.views = {{.members = {"a", "b", "c"}},
                    {.number = 2,
                     .first_step = 8,
                     .began_unix = 9,
                     .members = {"a", "d"},
                     .joined = {"d"},
                     .departed = {"b", "c"},
                     .why = "b silent",
                     .stood_us = 4}};
    status.memory = {{"job", {{"parameters", 1024}, {"what it has, else", 7}}}, {"gpu 0", {{"parameters", 2048}}}};
    status.datagrams = DatagramsFound{.probed = true,
                                      .multicast = false,
                                      .group = "239.1.2.3:4701",
                                      .interface = "eth0",
                                      .bytes = 1432,
                                      .reached = 2,
                                      .peers = 3,
                                      .rate_mbit = 940,
                                      .gso = true,
                                      .gro = false,
                                      .without_multicast = {"c"}};
    status.choice =
        ExchangeReport{.predictions = {{.exchange = "ring", .m = 0, .s = 0, .r = 0, .servers = 0, .step_us = 20, .measured_us = 21},
                                       {.exchange = "coded-rs", .m = 2, .s = 0, .r = 0, .servers = 0, .step_us = 10.5}},
                       .chosen = 1,
                       .block_us = 3,
                       .wait_us = 4,
                       .latency_us = 5};
    StageNews news{.steps = 3, .micro_batches = 2, .step_us = 9000, .us = {1000, 2000, 0, 0, 4500, 5, 6, 70}, .shown = 2};
    news.passes = {{1, 501}, {502, 1002}, {5000, 6000}, {6001, 7000}};
    status.pipeline = PipelineStatus{
        .schedule = "1f1b", .layers = {"conv1 .. pool2", "fc1 .. loss"}, .nodes = {{"a", 1, 1, news}, {"b", 2, 1, {}}, {"c", 1, 0, {}}}};
    pipeline_status_derive(&*status.pipeline);
    detail.exchange = "ring";
    detail.blocks = 8;
    JobDetail back = Json::parse(json_text(Json(detail))).get<JobDetail>();
    EXPECT_EQ(back.summary.status.state, JobState::failed);
    EXPECT_EQ(back.summary.status.step_digest, status.step_digest);
    EXPECT_EQ(back.summary.status.loss, 0.1);
    EXPECT_EQ(back.summary.status.timeouts_us, status.timeouts_us);
    EXPECT_EQ(back.summary.nodes, detail.summary.nodes);
    EXPECT_EQ(back.self, NodeId{1});
    EXPECT_EQ(back.summary.status.datagrams, status.datagrams);
    EXPECT_EQ(back.summary.status.workers, status.workers);
    EXPECT_EQ(back.summary.status.staleness, status.staleness);
    EXPECT_EQ(back.summary.status.choice, status.choice);
    EXPECT_EQ(back.summary.status.pipeline->nodes[0].news, news);
    EXPECT_EQ(back.summary.status.pipeline->nodes[2].replica, 0u);
    EXPECT_EQ(Json(detail)["schedule"], Json::parse(R"([{"node": "a", "stage": 1, "step": 2, "passes": [["forward", 1, 1, 501],
        ["forward", 2, 502, 1002], ["backward", 1, 5000, 6000], ["backward", 2, 6001, 7000]]}])"));
    EXPECT_FALSE(Json(detail.summary).contains("schedule"));   // lists of jobs have none
    const Json json = Json(detail)["status"];
    EXPECT_EQ(json["pipeline"]["nodes"][0]["gradients_us"], 4500);
    EXPECT_NEAR(json["pipeline"]["nodes"][0]["idle"].get<double>(), 6.0 / 9, 1e-6);
    EXPECT_NEAR(json["pipeline"]["idle_formula"].get<double>(), 1.0 / 3, 1e-6);
    EXPECT_EQ(json["pipeline"]["step_us"], 9000);
    EXPECT_TRUE(json["pipeline"]["nodes"][1]["idle"].is_null());
    EXPECT_TRUE(json["pipeline"]["nodes"][2]["replica"].is_null());
    EXPECT_EQ(json["memory_bytes"], Json::parse(R"({"job": {"parameters": 1024, "what_it_has_else": 7}, "gpu_0": {"parameters": 2048}})"));
    EXPECT_EQ(json["choice"]["exchange"], "coded-rs");
    EXPECT_EQ(json["choice"]["m"], 2);
    EXPECT_EQ(json["choice"]["predictions"][0]["step_us"], 20);
    EXPECT_EQ(json["datagrams"]["rate_mbit_per_s"], 940);
    EXPECT_EQ(json["settings"], Json::parse(R"({"mu": "0.1", "workers": "4"})"));
    EXPECT_EQ(json["gradients"], 1200);
    EXPECT_EQ(json["forwards"], 34);
    EXPECT_EQ(json["view"], 2);
    EXPECT_EQ(json["change_us"], 1500);
    EXPECT_EQ(json["views"][1]["members"], (std::vector<std::string>{"a", "d"}));
    EXPECT_EQ(json["views"][1]["left"], (std::vector<std::string>{"b", "c"}));
    EXPECT_TRUE(Json(JobStatus())["choice"].is_null());
    EXPECT_TRUE(Json(JobStatus())["pipeline"].is_null());
    EXPECT_TRUE(Json(JobStatus())["datagrams"].is_null());
    status.error.clear();
    EXPECT_EQ(json_text(Json(Json(detail).get<JobDetail>())), json_text(Json(detail)));   // each member, not just those above
    status.accuracy = -1;
    EXPECT_TRUE(Json(detail)["status"]["accuracy"].is_null());
    EXPECT_EQ(Json(detail).get<JobDetail>().summary.status.accuracy, -1);
}

TEST_F(Control, EveryRouteAnswers) {
    backend.add(id_a, "first");
    backend.add(id_b, "second")->folder = folder;
    backend.members = {{.name = "node-1",
                        .address = "127.0.0.1:1",
                        .uuid = "",
                        .version = "1",
                        .self = true,
                        .alive = true,
                        .jobs = 2,
                        .why = "",
                        .isa = ""}};
    open();
    EXPECT_EQ(get("/v1/version")["api"], 1);
    EXPECT_EQ(get("/v1/nodes")["nodes"][0]["name"], "node-1");
    EXPECT_EQ(get("/v1/doctor")["checks"][1], (Json{{"check", "clock"}, {"verdict", "warning"}, {"text", "not synchronised"}}));
    Json jobs = get("/v1/jobs")["jobs"];
    ASSERT_EQ(jobs.size(), 2u);
    EXPECT_EQ(jobs[1]["name"], "second");
    EXPECT_EQ(get("/v1/jobs/aaaa")["id"], id_a);
    EXPECT_EQ(get("/v1/jobs/second")["id"], id_b);
    EXPECT_EQ(get("/v1/jobs/" + id_b)["status"]["loss"], 2.25);
    auto reply = client().Post("/v1/jobs/aaaa/cancel");
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 200);
    EXPECT_EQ(Json::parse(reply->body)["status"]["state"], "cancelled");
    auto post = [&](const char* route, const char* body, int http) {
        auto answer = client().Post(route, body, "application/json");
        ASSERT_TRUE(answer) << route;
        EXPECT_EQ(answer->status, http) << route << " " << body << "\n" << answer->body;
    };
    post("/v1/nodes/node-1/drain", R"({"cancel": true})", 202);
    EXPECT_EQ(get("/v1/nodes")["nodes"][0]["draining"], true);
    post("/v1/nodes/node-1/undrain", "", 202);
    EXPECT_EQ(get("/v1/nodes")["nodes"][0]["draining"], false);
    post("/v1/nodes/nobody/drain", "", 404);
    for (const char* body : {"[]", "{", R"({"cancel": 1})"}) post("/v1/nodes/node-1/drain", body, 400);
    auto null = client().Post("/v1/nodes/node-1/drain", R"({"cancel": null})", "application/json");
    ASSERT_TRUE(null);
    EXPECT_EQ(null->status, 400);
    EXPECT_NE(null->body.find("cancel must be true or false"), std::string::npos) << null->body;
    EXPECT_EQ(get("/v1/nodes")["nodes"][0]["draining"], false);
    null = client().Post("/v1/jobs", R"({"text": "", "base": "/", "nodes": null})", "application/json");
    ASSERT_TRUE(null);
    EXPECT_EQ(null->status, 400);
    EXPECT_NE(null->body.find("nodes is null"), std::string::npos) << null->body;
    post("/v1/nodes/node-1/drain", std::string(5000, ' ').c_str(), 400);
    post("/v1/jobs/aaaa/force-view", R"({"dead": "node-1"})", 202);
    post("/v1/jobs/aaaa/force-view", R"({"dead": "node-2"})", 409);
    post("/v1/jobs/aaaa/nodes", R"({"node": "node-3"})", 202);
    post("/v1/jobs/aaaa/nodes", R"({"node": 3})", 400);
    for (const char* body : {"{}", R"({"dead": 2})"}) post("/v1/jobs/aaaa/force-view", body, 400);
}

TEST_F(Control, FilesOfAJobComeByOffset) {
    backend.add(id_a, "first")->folder = folder;
    open();
    auto reply = client().Get("/v1/jobs/first/log");
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 200);   // not written yet
    EXPECT_EQ(reply->body, "");
    EXPECT_EQ(reply->get_header_value("Gradcast-Next"), "0");
    ASSERT_TRUE(file_write(folder + "/log", "one\ntwo\n").ok());
    ASSERT_TRUE(file_write(folder + "/steps.jsonl", "{}\n").ok());
    reply = client().Get("/v1/jobs/first/log?offset=4");
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->body, "two\n");
    EXPECT_EQ(reply->get_header_value("Gradcast-Next"), "8");
    reply = client().Get("/v1/jobs/first/log?offset=800");
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->body, "");
    reply = client().Get("/v1/jobs/first/steps");
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->body, "{}\n");
    get("/v1/jobs/first/log?offset=-1", 400);
    get("/v1/jobs/first/log?offset=99999999999999999999", 400);
}

TEST_F(Control, SubmissionReachesTheBackendWhole) {
    backend.add(id_a, "first");
    open();
    Submission submission{.text = "[job]\nname = \"\xc3\xa4\"\n", .path = "job.toml", .base = "/data", .nodes = {"a", "b"}, .count = 0};
    auto reply = client().Post("/v1/jobs", json_text(Json(submission)), "application/json");
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 202) << reply->body;
    EXPECT_EQ(Json::parse(reply->body)["state"], "preparing");
    EXPECT_EQ(Json::parse(reply->body)["id"], id_a);
    ASSERT_EQ(backend.submissions().size(), 1u);
    EXPECT_EQ(backend.submissions()[0].text, submission.text);
    EXPECT_EQ(backend.submissions()[0].base, "/data");
    EXPECT_EQ(backend.submissions()[0].nodes, submission.nodes);

    backend.answer_submit(fail(Code::peer_refused, "node b lacks /data/train*.h5"));
    reply = client().Post("/v1/jobs", json_text(Json(submission)), "application/json");
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 502);
    EXPECT_EQ(Json::parse(reply->body)["error"], "node b lacks /data/train*.h5");
    EXPECT_EQ(Json::parse(reply->body)["code"], "peer_refused");
}

TEST_F(Control, GarbageIsRefusedWithOneClearLine) {
    open();
    for (const char* body :
         {"", "{", "[]", "17", "null", R"({"text": 1, "base": "/"})", R"({"text": "x", "base": "relative"})", R"({"text": "x"})",
          R"({"text": "x", "base": "/", "nodes": "a"})", R"({"text": "x", "base": "/", "nodes": [1]})",
          R"({"text": "x", "base": "/", "count": -1})", R"({"text": "x", "base": "/", "count": "four"})", "\xff\xfe"}) {
        auto reply = client().Post("/v1/jobs", body, "application/json");
        ASSERT_TRUE(reply) << body;
        EXPECT_EQ(reply->status, 400) << body << reply->body;
        Json json = Json::parse(reply->body, nullptr, false);
        ASSERT_TRUE(json.is_object()) << reply->body;
        EXPECT_FALSE(json["error"].get<std::string>().empty());
    }
    EXPECT_TRUE(backend.submissions().empty());
    std::string deep(1 << 20, '[');
    auto reply = client().Post("/v1/jobs", deep, "application/json");
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->status, 400);

    EXPECT_EQ(get("/v1/jobs/nothing", 404)["error"], "there is no job nothing");
    get("/v1/jobs/nothing/watch", 404);
    get("/v1/jobs/nothing/log", 404);
    EXPECT_EQ(get("/v2/jobs", 404)["error"], "there is no GET /v2/jobs");
    EXPECT_EQ(get("/v1/jobs/%2e%2e%2f%2e%2e/log", 404)["code"], "invalid");
    EXPECT_NE(raw("nonsense\r\n\r\n").find(" 400 "), std::string::npos);
    EXPECT_NE(raw("POST /v1/jobs HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n").find(" 411 "), std::string::npos);
    EXPECT_NE(raw("POST /v1/jobs HTTP/1.1\r\n\r\n").find(" 411 "), std::string::npos);
    get("/v1/version");   // the server still answers
}

TEST_F(Control, OversizeBodyIsRefused) {
    open();
    std::string body(3 << 20, 'x');
    auto reply = client().Post("/v1/jobs", body, "application/json");
    ASSERT_TRUE(reply) << to_string(reply.error());
    EXPECT_EQ(reply->status, 413);
    EXPECT_NE(Json::parse(reply->body)["error"].get<std::string>().find("bytes"), std::string::npos);
    EXPECT_TRUE(backend.submissions().empty());
}

TEST_F(Control, AnExceptionInsideIsAnAnswer) {
    backend.throws = true;
    open();
    EXPECT_EQ(get("/v1/jobs", 500)["error"], "inside gradcastd: the backend is broken");
    backend.throws = false;
    get("/v1/jobs");
}

TEST_F(Control, WatchTellsEveryChangeUntilTheEnd) {
    JobDetail* detail = backend.add(id_a, "first");
    open();
    std::string text;
    uint32_t events = 0;
    auto reply = client().Get("/v1/jobs/first/watch", [&](const char* data, size_t bytes) {
        text.append(data, bytes);
        ++events;
        if (events < 4) {
            std::lock_guard lock(backend.mutex);
            ++detail->summary.status.step;
        } else if (events == 4) {
            backend.finish(detail, JobState::done);
        }
        return true;
    });
    ASSERT_TRUE(reply) << to_string(reply.error());
    EXPECT_EQ(reply->status, 200);
    EXPECT_EQ(reply->get_header_value("Content-Type"), "text/event-stream");
    std::vector<Json> seen;
    for (size_t at = 0; (at = text.find("data: ", at)) != std::string::npos; at += 6)
        seen.push_back(Json::parse(text.substr(at + 6, text.find('\n', at) - at - 6)));
    ASSERT_EQ(seen.size(), 5u) << text;
    EXPECT_EQ(seen[0]["status"]["step"], 1);
    EXPECT_EQ(seen[3]["status"]["step"], 4);
    EXPECT_EQ(seen[4]["status"]["state"], "done");
    EXPECT_EQ(seen[4]["status"]["digest"], std::string(64, 'a'));
}

TEST_F(Control, WatchersAreCappedAndTheRestIsServedOn) {
    JobDetail* detail = backend.add(id_a, "first");
    open(2);
    std::atomic<int> watching{0}, ended{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i)
        threads.emplace_back([&] {
            bool first = true;
            auto reply = client().Get("/v1/jobs/first/watch", [&](const char*, size_t) {
                if (std::exchange(first, false)) ++watching;
                return true;
            });
            if (reply && reply->status == 200) ++ended;
        });
    for (uint64_t end = clock_us() + 10'000'000; watching < 2 && clock_us() < end;)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ASSERT_EQ(watching, 2);
    EXPECT_NE(get("/v1/jobs/first/watch", 503)["error"].get<std::string>().find("2 watchers"), std::string::npos);
    for (int i = 0; i < 20; ++i) get("/v1/jobs");
    backend.finish(detail, JobState::failed, "rank 1 lost");
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(ended, 2);
    // Seats are freed when the connections are closed.
    for (uint64_t end = clock_us() + 10'000'000;;) {
        auto reply = client().Get("/v1/jobs/first/watch");
        ASSERT_TRUE(reply);
        if (reply->status == 200) break;
        ASSERT_LT(clock_us(), end);
    }
}

TEST_F(Control, ClientsThatSayNothingHoldNobodyUp) {
    backend.add(id_a, "first");
    open(1);   // beside 128 connections for requests
    std::vector<Fd> idle;
    for (int i = 0; i < 400; ++i)
        idle.push_back(half(i % 3 == 0 ? "" : i % 3 == 1 ? "GET /v1/ver" : "POST /v1/jobs HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n{"));
    const uint64_t start = clock_us();
    for (int i = 0; i < 20; ++i) get("/v1/version");
    EXPECT_LT(clock_us() - start, 2'000'000u);
    // The oldest are closed where there is no room, the rest because they send nothing.
    char byte;
    for (const Fd& fd : idle) EXPECT_LE(::recv(fd.get(), &byte, 1, 0), 0);
    EXPECT_LT(clock_us() - start, 15'000'000u);
    get("/v1/version");
}

TEST_F(Control, ARequestThatDripsIsCutOff) {
    open();
    const Fd fd = half("GET /v1/version HTTP/1.1\r\n");
    bool open = true;
    const uint64_t start = clock_us();
    while (open && clock_us() - start < 20'000'000) {
        open = ::send(fd.get(), "A: b\r\n", 6, MSG_NOSIGNAL) == 6;
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    EXPECT_FALSE(open);
    EXPECT_NE(raw("GET /v1/version HTTP/1.1\r\nA: " + std::string(20'000, 'b')).find(" 431 "), std::string::npos);
    get("/v1/version");
}

TEST_F(Control, ManyWatchersHoldNoThread) {
    backend.add(id_a, "first");
    open(200);
    std::vector<Fd> watchers;
    for (int i = 0; i < 200; ++i) watchers.push_back(half("GET /v1/jobs/first/watch HTTP/1.1\r\n\r\n"));
    for (const Fd& fd : watchers) {
        std::string text;
        char piece[4096];
        for (ssize_t got; text.find("event: status") == std::string::npos && (got = ::recv(fd.get(), piece, sizeof piece, 0)) > 0;)
            text.append(piece, static_cast<size_t>(got));
        EXPECT_NE(text.find("event: status"), std::string::npos) << text;
    }
    const uint64_t start = clock_us();
    for (int i = 0; i < 20; ++i) get("/v1/version");
    EXPECT_LT(clock_us() - start, 2'000'000u);
    get("/v1/jobs/first/watch", 503);
    EXPECT_LT(std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}), 20);
}

TEST_F(Control, AFileThatNobodyReadsHoldsNoMemory) {
    backend.add(id_a, "first")->folder = folder;
    ASSERT_TRUE(file_write(folder + "/log", std::string(4 << 20, 'x')).ok());
    open(1);
    get("/v1/version");
    const uint64_t before = resident_bytes();
    std::vector<Fd> deaf;
    for (int i = 0; i < 60; ++i) deaf.push_back(half("GET /v1/jobs/first/log HTTP/1.1\r\n\r\n"));
    for (const Fd& fd : deaf) {
        pollfd answered{fd.get(), POLLIN, 0};
        ASSERT_EQ(::poll(&answered, 1, 10'000), 1);
    }
    if (memory_is_judged) {
        EXPECT_LT(resident_bytes(), before + (16 << 20));   // 240 MiB, if all were kept
    }
    auto reply = client().Get("/v1/jobs/first/log");   // a client that reads gets it
    ASSERT_TRUE(reply);
    EXPECT_EQ(reply->body.size(), 4u << 20);
    for (const Fd& fd : deaf) {
        pollfd closed{fd.get(), POLLRDHUP, 0};
        ASSERT_EQ(::poll(&closed, 1, 20'000), 1);
    }
}

TEST_F(Control, ClosingEndsWatchers) {
    backend.add(id_a, "first");
    open();
    std::atomic<bool> watching{false};
    std::thread thread([&] {
        auto reply = client().Get("/v1/jobs/first/watch", [&](const char*, size_t) { return watching = true; });
        (void)reply;
    });
    for (uint64_t end = clock_us() + 10'000'000; !watching && clock_us() < end;) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    server.reset();
    thread.join();
    EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(Control, SocketHasItsModeAndAStaleOneIsReplaced) {
    {
        Fd fd(::socket(AF_UNIX, SOCK_STREAM, 0));
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        path.copy(address.sun_path, sizeof address.sun_path - 1);
        ASSERT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
        ASSERT_EQ(::listen(fd.get(), 1), 0);
    }   // as a killed daemon leaves it
    mode_t before = ::umask(0077);
    open();
    ::umask(before);
    struct stat info;
    ASSERT_EQ(::stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0660u);
    get("/v1/version");
}

TEST_F(Control, ManyMayConnectAtOnce) {
    cpu_set_t all, one;   // on one CPU the server cannot accept while we connect
    ASSERT_EQ(::sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(::sched_getcpu()), &one);
    ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
    open();
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    std::vector<Fd> clients;
    int refused = 0;
    for (int i = 0; i < 100; ++i) {
        clients.emplace_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        refused += ::connect(clients.back().get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0;
    }
    EXPECT_EQ(refused, 0);
    clients.clear();
    get("/v1/version");
    ASSERT_EQ(::sched_setaffinity(0, sizeof all, &all), 0);
}

TEST_F(Control, BadSocketsAreNamed) {
    open();
    FakeBackend other;
    std::unique_ptr<ControlServer> second;
    Status status = control_open({.socket = path}, other, Log(), &second);
    EXPECT_EQ(status.code, Code::invalid);
    EXPECT_NE(std::string(status.what).find("another gradcastd answers at " + path), std::string::npos) << status.what;
    get("/v1/version");   // the first server keeps its socket

    ASSERT_TRUE(file_write(folder + "/file", "precious").ok());
    status = control_open({.socket = folder + "/file"}, other, Log(), &second);
    EXPECT_NE(std::string(status.what).find("is not a socket"), std::string::npos) << status.what;
    std::string text;
    ASSERT_TRUE(file_read(folder + "/file", &text).ok());
    EXPECT_EQ(text, "precious");

    status = control_open({.socket = folder + "/absent/control.sock"}, other, Log(), &second);
    EXPECT_EQ(status.sys, ENOENT) << status.what;
    status = control_open({.socket = folder + "/" + std::string(200, 'x')}, other, Log(), &second);
    EXPECT_NE(std::string(status.what).find("at most 107"), std::string::npos) << status.what;
    EXPECT_EQ(second, nullptr);
}

}   // namespace
}   // namespace gradcast
