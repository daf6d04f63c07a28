// Metrics and stragglers of a job on real daemons.
#include "tests/daemon/jobs.h"

namespace gradcast {
namespace {

TEST(SystemMetrics, AStragglerIsNamedAndMetricsAreServedOverTcp) {
    Cluster cluster(3);
    const std::string data = make_data(cluster.folder + "/data.h5", 4096);
    const uint16_t port = free_port();
    cluster.configure(cluster[0], "metrics = \"127.0.0.1:" + std::to_string(port) + "\"\n");
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    const std::string id = cluster[0].submit(job_text(data, 1'000'000)).value("id", "");
    ASSERT_FALSE(id.empty());
    auto stragglers = [&](size_t at) { return cluster[at].job(id)["status"].value("stragglers", Json::array()); };
    ASSERT_TRUE(eventually([&] { return cluster[0].job(id)["status"].value("times", Json::array()).size() == 3; })) << logs(cluster);

    httplib::Client http("127.0.0.1", port);
    const auto text = http.Get("/v1/metrics");
    ASSERT_TRUE(text);
    EXPECT_EQ(text->status, 200);
    EXPECT_TRUE(has(text->body, "gradcast_job_steps_total{job=\"j\"")) << text->body;
    EXPECT_TRUE(has(text->body, "gradcast_job_phase_time_seconds_bucket")) << text->body;
    const auto refused = http.Post("/v1/jobs/" + id + "/cancel");   // it reads alone
    ASSERT_TRUE(refused);
    EXPECT_EQ(refused->status, 403);
    EXPECT_EQ(cluster[0].job(id)["status"]["state"], "running");

    // c runs for a small part of the time.
    std::atomic<bool> slow{true};
    const pid_t pid = cluster[2].process->pid();
    std::thread brake([&] {
        while (slow.load()) {
            ::kill(pid, SIGSTOP);
            ::usleep(40'000);
            ::kill(pid, SIGCONT);
            ::usleep(2'000);
        }
    });
    const bool named = eventually([&] {
        const Json found = stragglers(0);
        return found.size() == 1 && found[0]["node"] == "c" && found[0]["us"].get<uint32_t>() > found[0]["others_us"].get<uint32_t>();
    });
    const Json last = cluster[0].job(id)["status"];
    slow.store(false);
    brake.join();
    EXPECT_TRUE(named) << last["times"].dump(1) << last["stragglers"].dump(1);
    EXPECT_TRUE(eventually([&] { return stragglers(0).empty(); }));
    cluster[0].post("/v1/jobs/" + id + "/cancel", Json::object());
    EXPECT_EQ(cluster[0].ended(id).state, JobState::cancelled);
}

TEST(SystemMetrics, PrometheusScrapesADaemon) {
    if (std::system("command -v prometheus >/dev/null") != 0) GTEST_SKIP() << "prometheus is missing (make deps-monitoring)";
    Cluster cluster(1);
    const uint16_t port = free_port(), web = free_port();
    const std::string target = "127.0.0.1:" + std::to_string(port);
    cluster.configure(cluster[0], "metrics = \"" + target + "\"\n");
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    const std::string config = cluster.folder + "/prometheus.yml";
    ASSERT_TRUE(
        file_write(config,
                   "scrape_configs: [{job_name: gradcast, scrape_interval: 1s, metrics_path: /v1/metrics, static_configs: [{targets: ['" +
                       target + "']}]}]\n")
            .ok());
    const pid_t pid = ::fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
        const Fd log(::open((cluster.folder + "/prometheus.log").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
        ::dup2(log.get(), 1), ::dup2(log.get(), 2);
        ::execlp("prometheus", "prometheus", ("--config.file=" + config).c_str(),
                 ("--storage.tsdb.path=" + cluster.folder + "/tsdb").c_str(),
                 ("--web.listen-address=127.0.0.1:" + std::to_string(web)).c_str(), nullptr);
        ::_exit(127);
    }
    httplib::Client http("127.0.0.1", web);
    std::string seen;
    const bool scraped = eventually([&] {
        const auto answer = http.Get("/api/v1/query?query=gradcast_node_alive");
        seen = answer ? answer->body : "no answer";
        return has(seen, "\"node\":\"a\"");
    });
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    EXPECT_TRUE(scraped) << seen;
}

}   // namespace
}   // namespace gradcast
