// The table of metrics, and what /v1/metrics answers: checked by promtool and by the strict parser of python3-prometheus-client.
#include "runtime/core/metrics.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <regex>
#include <set>

#include "runtime/control/json.h"
#include "runtime/control/metrics_text.h"
#include "runtime/core/fd.h"
#include "tests/control/resident.h"

namespace gradcast {
namespace {

std::vector<JobSummary> one_job() {
    Metrics metrics;
    metrics.plan(Metric::phase_time, {"load", "compute"});
    metrics.plan(Metric::peer_wait, {"a", "b\"\n\\"});
    metrics.add(Metric::steps, 3);
    metrics.observe(Metric::phase_time, 64, 0);
    metrics.observe(Metric::phase_time, 65, 1);
    metrics.observe(Metric::phase_time, ~uint64_t{0} >> 20, 1);
    metrics.add(Metric::peer_wait, 2'500'000, 1);
    metrics.gauge(Metric::loss, 0.25);
    JobSummary job;
    job.id = std::string(32, 'a');
    job.name = "evil\"} 1\n# \xff <b>";
    job.status.state = JobState::running;
    job.status.metrics = metrics.read();
    job.status.stragglers = {{"b", "compute", 9000, 1000, "look"}};
    return {job};
}

int shell(const std::string& command) { return std::system(command.c_str()); }

TEST(Metrics, ReadsWhatWasPlannedAndSet) {
    const std::vector<MetricSample> samples = one_job()[0].status.metrics;
    auto find = [&](Metric metric, const std::string& label) {
        for (const MetricSample& each : samples)
            if (each.metric == metric && each.label == label) return each;
        return MetricSample{Metric::steps, "none", -1, {}};
    };
    EXPECT_EQ(find(Metric::steps, "").value, 3);
    EXPECT_EQ(find(Metric::accuracy, "").label, "none");   // never set
    EXPECT_EQ(find(Metric::peer_wait, "b\"\n\\").value, 2.5);
    EXPECT_EQ(find(Metric::phase_time, "load").counts[0], 1u);
    EXPECT_EQ(find(Metric::phase_time, "compute").counts[1], 1u);
    EXPECT_EQ(find(Metric::phase_time, "compute").counts[histogram_buckets - 1], 1u);
    EXPECT_EQ(find(Metric::phase_time, "compute").quantile(0.5), 128e-6);
    JobStatus status, back;
    status.metrics = samples;
    from_json(Json(status), back);
    EXPECT_EQ(back.metrics, samples);
}

/// The updates that a job makes in each step, below 0.1% of a step of a millisecond; bench/micro measures them.
TEST(Metrics, UpdatesOfAStepCostLessThanAMicrosecond) {
    if (!memory_is_judged) GTEST_SKIP() << "a sanitizer makes everything slow";
    Metrics metrics;
    metrics.plan(Metric::phase_time, std::vector<std::string>(8, "phase"));
    auto cpu_ns = [] {
        timespec now{};
        ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        return now.tv_sec * 1'000'000'000 + now.tv_nsec;
    };
    constexpr int steps = 1000;
    long best = 1'000'000'000;
    for (int round = 0; round < 50; ++round) {
        const long begin = cpu_ns();
        for (int step = 0; step < steps; ++step) {
            for (int i = 0; i < 12; ++i) metrics.add(Metric::samples, 128);
            metrics.observe(Metric::step_time, 1000);
            for (size_t i = 0; i < 8; ++i) metrics.observe(Metric::phase_time, 100 + i, i);
        }
        best = std::min(best, cpu_ns() - begin);
    }
    EXPECT_LT(best / steps, 1000);
}

TEST(Metrics, PromtoolTakesTheText) {
    if (shell("command -v promtool >/dev/null") != 0) GTEST_SKIP() << "promtool is missing (make deps-monitoring)";
    const std::string path = testing::TempDir() + "metrics.txt";
    std::ofstream(path) << metrics_text(one_job(), {{.name = "a", .alive = true}}, MetricsFormat::prometheus);
    EXPECT_EQ(shell("promtool check metrics <" + path), 0);
    EXPECT_EQ(shell("promtool check rules tools/monitoring/alerts.yml"), 0);
}

/// Each name of ours in a text, without what a histogram adds.
std::set<std::string> names_in(const std::string& text) {
    std::set<std::string> names;
    const std::regex name("gradcast_[a-z_]+");
    for (std::sregex_iterator at(text.begin(), text.end(), name), end; at != end; ++at)
        names.insert(std::regex_replace(at->str(), std::regex("_(bucket|sum|count)$"), ""));
    return names;
}

TEST(Metrics, DashboardAndRulesNameWhatIsThere) {
    const std::string known = metrics_text(one_job(), {}, MetricsFormat::prometheus);
    std::string dashboard, rules;
    ASSERT_TRUE(file_read("tools/monitoring/dashboard.json", &dashboard).ok() && file_read("tools/monitoring/alerts.yml", &rules).ok());
    const Json json = Json::parse(dashboard, nullptr, false);
    ASSERT_TRUE(json.is_object());
    std::string expressions = json["templating"]["list"][1]["query"]["query"].get<std::string>() + '\n';
    for (const Json& panel : json["panels"]) {
        ASSERT_FALSE(panel["targets"].empty()) << panel["title"];
        for (const Json& target : panel["targets"]) expressions += target["expr"].get<std::string>() + '\n';
    }
    EXPECT_GT(names_in(expressions).size(), 15u);
    for (const std::string& name : names_in(expressions + rules)) EXPECT_NE(known.find("# TYPE " + name + " "), std::string::npos) << name;
}

TEST(Metrics, TheStrictParserTakesOpenMetrics) {
    if (shell("/usr/bin/python3 -c 'import prometheus_client' 2>/dev/null") != 0)
        GTEST_SKIP() << "python3-prometheus-client is missing (make deps-monitoring)";
    const std::string path = testing::TempDir() + "metrics.om";
    std::ofstream(path) << metrics_text(one_job(), {{.name = "a", .alive = true}}, MetricsFormat::open_metrics);
    EXPECT_EQ(
        shell("/usr/bin/python3 -c \"from prometheus_client.openmetrics.parser import text_string_to_metric_families as p; import sys; "
              "f = {m.name: m for m in p(open('" +
              path + "').read())}; sys.exit(f['gradcast_job_steps'].samples[0].value != 3)\""),
        0);
}

}   // namespace
}   // namespace gradcast
