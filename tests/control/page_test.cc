// The status page as it is served, and the overview that it shows.  tests/page opens it in a browser.
#include "runtime/control/page.h"

#include <gtest/gtest.h>
#include <httplib.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <thread>

#include "tests/control/fake_backend.h"
#include "tests/control/resident.h"

namespace gradcast {
namespace {

struct Page : testing::Test {
    std::string folder;
    FakeBackend backend;
    std::unique_ptr<ControlServer> server;
    int port = 0;

    void SetUp() override {
        ::signal(SIGPIPE, SIG_IGN);
        folder = testing::TempDir() + "gc-page-XXXXXX";
        ASSERT_NE(::mkdtemp(folder.data()), nullptr);
    }
    void TearDown() override {
        server.reset();
        std::filesystem::remove_all(folder);
    }
    void open(uint32_t watchers_max = 256) {
        for (port = 20'000 + static_cast<int>(::getpid()) % 10'000; !server; ++port) {
            const Status status =
                control_open({.socket = folder + "/s", .watchers_max = watchers_max, .tcp = "127.0.0.1:" + std::to_string(port)}, backend,
                             Log(), &server);
            ASSERT_TRUE(status.ok() || status.sys == EADDRINUSE) << status.what;
        }
        --port;
    }
    httplib::Client local() const {
        httplib::Client client(folder + "/s", 1);
        client.set_address_family(AF_UNIX);
        client.set_read_timeout(10);
        return client;
    }
    httplib::Client tcp() const {
        httplib::Client client("127.0.0.1", port);
        client.set_read_timeout(10);
        return client;
    }
    Json overview(const std::string& query = "") const {
        const auto reply = local().Get("/v1/overview" + query);
        EXPECT_TRUE(reply && reply->status == 200) << query;
        return reply ? Json::parse(reply->body, nullptr, false) : Json();
    }
    int status_of(const std::string& route, const httplib::Headers& headers, bool post = false) const {
        httplib::Client client = local();
        const auto reply = post ? client.Post(route, headers, "", "text/plain") : client.Get(route, headers);
        return reply ? reply->status : 0;
    }
};

TEST_F(Page, IsOneFileThatLoadsNothing) {
    open();
    for (const bool over_tcp : {false, true}) {
        const auto reply = (over_tcp ? tcp() : local()).Get("/");
        ASSERT_TRUE(reply);
        EXPECT_EQ(reply->status, 200);
        EXPECT_EQ(reply->get_header_value("Content-Type"), "text/html; charset=utf-8");
        EXPECT_EQ(reply->body, page_html());
        const std::string policy = reply->get_header_value("Content-Security-Policy");
        for (const char* part :
             {"default-src 'none'", "script-src 'sha256-", "style-src 'sha256-", "connect-src 'self'", "frame-ancestors 'none'"})
            EXPECT_NE(policy.find(part), std::string::npos) << policy;
        EXPECT_EQ(policy.find("unsafe"), std::string::npos) << policy;
    }
    EXPECT_LT(page_html().size(), 100'000u);
    for (const char* outside : {"src=", "@import", "url(", "innerHTML", "https://"})
        EXPECT_EQ(page_html().find(outside), std::string_view::npos) << outside;
}

TEST_F(Page, AnOverviewHasThePageThatWasAskedFor) {
    {
        std::lock_guard lock(backend.mutex);
        for (int i = 0; i < 60; ++i) {
            JobDetail job;
            job.summary.id = fmt::format("{:032x}", i);
            job.summary.name = fmt::format("job-{}", i);
            job.summary.status.state = i == 0 ? JobState::running : i == 7 ? JobState::failed : JobState::done;
            job.summary.status.loss = std::numeric_limits<double>::quiet_NaN();
            job.summary.status.step = 1;
            if (i == 7) job.summary.status.error = "node b went away";
            backend.all.push_back(job);
        }
        for (int i = 0; i < 50; ++i)
            backend.members.push_back({.name = fmt::format("n{}", i), .self = i == 0, .alive = i != 30 && i != 0, .draining = i == 20});
    }
    open();
    Json all = overview();
    EXPECT_EQ(all["counts"], Json::parse(R"({"preparing": 0, "running": 1, "done": 58, "failed": 1, "cancelled": 0})"));
    EXPECT_EQ(all["pages"], 3);
    EXPECT_EQ(all["jobs"].size(), overview_jobs);
    EXPECT_EQ(all["jobs"][0]["name"], "job-0");   // active ones first, then the newest
    EXPECT_EQ(all["jobs"][1]["name"], "job-59");
    EXPECT_TRUE(all["jobs"][0]["loss"].is_null());
    EXPECT_EQ(all["self"], "n0");
    EXPECT_EQ(all["nodes_alive"], 49);
    EXPECT_EQ(all["nodes_total"], 50);
    EXPECT_EQ(all["nodes"][0]["name"], "n30");
    EXPECT_EQ(all["nodes"][1]["name"], "n20");
    EXPECT_EQ(overview("?page=2&nodes=1")["jobs"].size(), 10u);
    EXPECT_EQ(overview("?page=2&nodes=1")["nodes"].size(), 2u);
    EXPECT_EQ(overview("?page=999")["page"], 2);   // the last one
    all = overview("?state=failed");
    ASSERT_EQ(all["jobs"].size(), 1u);
    EXPECT_EQ(all["jobs"][0]["error"], "node b went away");
    for (const char* query : {"?page=-1", "?page=x", "?page=99999999999", "?nodes=1.5", "?state=lost", "?state=*"})
        EXPECT_EQ(status_of(std::string("/v1/overview") + query, {}), 400) << query;
    EXPECT_EQ(status_of("/v1/overview/watch?page=x", {}), 400);
}

TEST_F(Page, TheOverviewIsWatched) {
    JobDetail* job = backend.add(std::string(32, 'a'), "first");
    open(2);
    std::string text;
    httplib::Client client = tcp();
    client.Get("/v1/overview/watch?state=failed", [&](const char* data, size_t bytes) {
        text.append(data, bytes);
        if (text.find("event: overview\n") != std::string::npos && text.find("went") == std::string::npos)
            backend.finish(job, JobState::failed, "node b went away");
        return text.find("node b went away") == std::string::npos && text.size() < 1 << 20;
    });
    EXPECT_NE(text.find("node b went away"), std::string::npos) << text;

    // Where no watcher has room the page asks again and again; those of the socket have seats of their own.
    std::vector<std::thread> watchers;
    std::atomic<int> there{0};
    std::atomic<bool> leave{false};
    for (int i = 0; i < 2; ++i)
        watchers.emplace_back([&] {
            bool first = true;
            tcp().Get("/v1/overview/watch", [&](const char*, size_t) {
                there += std::exchange(first, false);
                return !leave.load();
            });
        });
    for (int i = 0; i < 1000 && there < 2; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_EQ(there, 2);
    const auto third = tcp().Get("/v1/overview/watch");
    ASSERT_TRUE(third);
    EXPECT_EQ(third->status, 503);
    EXPECT_EQ(tcp().Get("/v1/metrics")->status, 200);
    bool received = false;
    local().Get("/v1/overview/watch", [&](const char*, size_t) { return received = true, false; });
    EXPECT_TRUE(received);
    leave = true;
    for (std::thread& each : watchers) each.join();
}

TEST_F(Page, PagesOfOtherSitesReachNothing) {
    backend.add(std::string(32, 'a'), "first");
    open();
    EXPECT_EQ(status_of("/v1/jobs", {{"Host", "localhost:8080"}, {"Sec-Fetch-Site", "same-origin"}}), 200);
    EXPECT_EQ(status_of("/", {{"Host", "127.0.0.1:8080"}, {"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Mode", "navigate"}}), 200);
    EXPECT_EQ(status_of("/v1/jobs", {{"Host", "localhost"}, {"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Mode", "no-cors"}}), 403);
    EXPECT_EQ(status_of("/v1/jobs", {{"Host", "evil.example:8080"}}), 403);   // a name that leads to localhost by now
    EXPECT_EQ(status_of("/v1/jobs/first/cancel", {{"Origin", "null"}}, true), 403);
    EXPECT_EQ(status_of("/v1/jobs/first/cancel", {{"Origin", "http://localhost:8080"}}, true), 403);
    EXPECT_EQ(backend.all[0].summary.status.state, JobState::running);
    EXPECT_EQ(status_of("/v1/jobs/first/cancel", {}, true), 200);
}

TEST_F(Page, ThousandsThatAskAreAnsweredOrClosed) {
    open();
    if (!resident_peak_reset()) GTEST_SKIP() << "/proc/self/clear_refs cannot be written";
    const uint64_t before = resident_bytes();
    std::atomic<int> whole{0}, closed{0}, wrong{0};
    std::vector<std::thread> clients;
    for (int i = 0; i < 16; ++i)
        clients.emplace_back([&] {
            for (int k = 0; k < 125; ++k) {
                const auto reply = tcp().Get("/");
                if (!reply) ++closed;
                else ++(reply->status == 200 && reply->body == page_html() ? whole : wrong);
            }
        });
    for (std::thread& each : clients) each.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_GT(whole, 1900);
    EXPECT_EQ(tcp().Get("/v1/metrics")->status, 200);
    if (memory_is_judged) {
        EXPECT_LT(resident_peak_bytes(), before + (48 << 20));
    }
}

}   // namespace
}   // namespace gradcast
