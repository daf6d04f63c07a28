// The status page in Debian's Chromium: over a daemon whose answers the test sets, and over real ones.
#include <fmt/format.h>

#include "tests/control/fake_backend.h"
#include "tests/daemon/jobs.h"

namespace gradcast {
namespace {

std::string quoted(const std::string& word) {
    std::string text = "'";
    for (const char each : word) text += each == '\'' ? std::string("'\\''") : std::string(1, each);
    return text + "'";
}

/// What tests/page/browser.py prints; a failure of a step fails the test.
std::string browse(uint16_t port, const std::vector<std::string>& steps) {
    std::string command = "/usr/bin/python3 tests/page/browser.py http://127.0.0.1:" + std::to_string(port) + "/";
    for (const std::string& each : steps) command += " " + quoted(each);
    FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
    std::string text;
    char piece[4096];
    for (size_t got; (got = std::fread(piece, 1, sizeof piece, pipe)) > 0;) text.append(piece, got);
    const int how = ::pclose(pipe);
    EXPECT_EQ(how, 0) << text;
    return text;
}

/// Where pictures for a person go: GC_SHOTS, a folder; "": nowhere.
void shoot(std::vector<std::string>* steps, const std::string& name) {
    const char* folder = std::getenv("GC_SHOTS");
    if (!folder) return;
    for (const char* colours : {"light", "dark"})
        for (const char* size : {"390x844", "1280x800", "1920x1080"})
            for (const std::string& each :
                 {std::string("size=") + size, std::string(colours), fmt::format("shot={}/{}-{}-{}.png", folder, name, colours, size)})
                steps->push_back(each);
}

struct SystemPage : testing::Test {
    std::string folder;
    FakeBackend backend;
    std::unique_ptr<ControlServer> server;
    uint16_t port = 0;

    void SetUp() override {
        ::signal(SIGPIPE, SIG_IGN);
        if (std::system("command -v chromium >/dev/null && /usr/bin/python3 -c 0 2>/dev/null") != 0)
            GTEST_SKIP() << "chromium or python3 is missing (make deps-page)";
        if (::access("tests/page/browser.py", R_OK) != 0)
            GTEST_SKIP() << "tests/page/browser.py is missing: run it in the folder of the sources";
        folder = testing::TempDir() + "gc-page-XXXXXX";
        ASSERT_NE(::mkdtemp(folder.data()), nullptr);
        port = free_port();
    }
    void TearDown() override {
        server.reset();
        if (!folder.empty()) std::filesystem::remove_all(folder);
    }
    void serve(uint32_t watchers_max = 16) {
        const Status status = control_open(
            {.socket = folder + "/s", .watchers_max = watchers_max, .tcp = "127.0.0.1:" + std::to_string(port)}, backend, Log(), &server);
        ASSERT_TRUE(status.ok()) << status.what;
    }
};

TEST_F(SystemPage, TextOfAJobIsNeverHtml) {
    const std::string evil = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>&amp;";
    JobDetail* job = backend.add(std::string(32, 'a'), evil);
    job->summary.status.warnings = {evil};
    job->summary.status.settings = {{evil, evil}};
    job->summary.nodes = {evil, "node-2"};
    job->summary.status.curve = {{.step = 1, .loss = 2}, {.step = 2, .loss = 1}};
    backend.members = {{.name = evil, .self = true, .alive = true}, {.name = "node-2", .why = evil}};
    backend.finish(job, JobState::failed, evil);
    serve();
    const std::string text =
        browse(port, {"wait=document.querySelector('.jobs a')", "print=document.querySelectorAll('img, main script').length",
                      "print=document.querySelector('.jobs a').textContent", "go=#/job/" + std::string(32, 'a'),
                      "wait=document.querySelector('h1')", "print=document.querySelectorAll('img, main script').length",
                      "print=document.querySelector('.box.bad').textContent", "print=document.title.startsWith('<img')",
                      "go=#/?state=%3Cimg%3E&page=-1", "wait=document.querySelector('.jobs a')", "go=#/job/%3Cimg%20src=x%3E%zz",
                      "wait=document.querySelector('.box.bad')", "print=document.querySelectorAll('img').length", "allow=404"});
    EXPECT_EQ(text, "0\n" + evil + "\n0\n" + evil + "\ntrue\n0\n");
}

TEST_F(SystemPage, JobsAreOnPages) {
    {
        std::lock_guard lock(backend.mutex);
        for (int i = 0; i < 1000; ++i) {
            JobDetail job;
            job.summary.id = fmt::format("{:032x}", i);
            job.summary.name = fmt::format("job-{}", i);
            job.summary.status.state = i == 500 ? JobState::failed : JobState::done;
            backend.all.push_back(job);
        }
    }
    serve();
    EXPECT_EQ(
        browse(port,
               {"wait=document.querySelector('.jobs a')", "print=document.querySelectorAll('tr.job').length",
                "print=document.querySelector('.note').textContent.trim()", "wait=document.querySelector('a[rel=next]').click() || true",
                "wait=document.querySelector('.note')?.textContent.includes('page 2 of 40')",
                "print=document.querySelector('.jobs a').textContent",
                "wait=[...document.querySelectorAll('.tabs a')].find(a => a.textContent === 'failed 1').click() || true",
                "wait=document.querySelectorAll('tr.job').length === 1", "print=document.querySelector('.jobs a').textContent"}),
        "25\n← before  page 1 of 40  after →\njob-974\njob-500\n");
}

TEST_F(SystemPage, WithoutASeatItAsksAgain) {
    JobDetail* job = backend.add(std::string(32, 'a'), "first");
    serve(0);
    std::thread later([&] {
        ::usleep(1'000'000);
        backend.finish(job, JobState::failed, "node-2 is silent");
    });
    browse(port, {"wait=document.getElementById('link').textContent === 'every 5 s'",
                  "wait=document.body.innerText.includes('node-2 is silent')", "allow=503"});
    later.join();
}

TEST_F(SystemPage, AJobThatHasEndedHasATimeAndNothingLeft) {
    JobDetail* job = backend.add(std::string(32, 'a'), "first");
    job->summary.status.step = 10;
    backend.finish(job, JobState::done);
    backend.members = {{.name = "node-1", .self = true, .alive = true}, {.name = "node-2"}};
    serve();
    EXPECT_EQ(browse(port, {"wait=document.querySelector('.jobs a')", "print=document.querySelector('.whose').textContent"}),
              "jobs of node node-1; jobs without it are shown by gradcastctl list on the other nodes, and on their status pages\n");
    EXPECT_EQ(browse(port, {"size=1920x1080", "wait=document.querySelector('.jobs a')",
                            "print=[...document.querySelectorAll('.jobs th')].slice(-2).map(each => each.textContent).join()",
                            "print=[...document.querySelectorAll('.jobs tbody td')].slice(-2).map(each => each.textContent).join()",
                            "print=document.querySelector('.card').offsetWidth > 0.95 * innerWidth"}),
              "time,left\n2.00 s,–\ntrue\n");
}

TEST_F(SystemPage, AJobOnATextHasTokensAndAPerplexity) {
    JobDetail* job = backend.add(std::string(32, 'a'), "first");
    JobStatus& status = job->summary.status;
    status.steps = status.step = 10;
    status.tokens = 64;
    status.samples_per_second = 1000;
    status.test_loss = 1.5;   // perplexity e^1.5
    status.accuracy = 0.3;    // by token, as real jobs have it
    backend.finish(job, JobState::done);
    serve();
    const std::string shown =
        browse(port, {"wait=document.querySelector('.jobs a')", "print=document.querySelector('.jobs tbody').innerText"});
    EXPECT_NE(shown.find("perplexity 4.482"), std::string::npos) << shown;
    EXPECT_NE(shown.find(" tokens/s"), std::string::npos) << shown;
    const std::string tiles = browse(port, {"go=#/job/" + job->summary.id, "wait=document.querySelector('h1 .done')",
                                            "print=document.querySelector('.tiles').innerText"});
    EXPECT_NE(tiles.find("perplexity"), std::string::npos) << tiles;
    EXPECT_NE(tiles.find("4.482"), std::string::npos) << tiles;
    EXPECT_NE(tiles.find("tokens/s"), std::string::npos) << tiles;
    EXPECT_EQ(tiles.find("accuracy"), std::string::npos) << tiles;
}

TEST_F(SystemPage, ANodeThatCameBackIsAMarkAndNoAlarm) {
    JobDetail* job = backend.add(std::string(32, 'a'), "first");
    JobStatus& status = job->summary.status;
    status.steps = 40;
    const auto view = [](uint32_t number, uint64_t step, std::vector<std::string> members, std::vector<std::string> joined,
                         std::vector<std::string> departed) {
        return ViewRecord{.number = number,
                          .first_step = step,
                          .members = std::move(members),
                          .joined = std::move(joined),
                          .departed = std::move(departed),
                          .why = "w"};
    };
    status.views = {view(1, 1, {"node-1", "node-2"}, {}, {}), view(2, 12, {"node-1"}, {}, {"node-2"}),
                    view(3, 30, {"node-1", "node-2"}, {"node-2"}, {})};
    for (uint64_t step = 1; step <= 40; ++step)
        status.curve.push_back(
            {.step = step, .loss = 1, .accuracy = 1, .seconds = static_cast<double>(step), .bytes_sent = step * 13'000'000});
    backend.finish(job, JobState::done);
    serve();
    const auto labels = [](const std::string& chart) {
        return "print=[..." + ("document.querySelectorAll('[data-chart=" + chart) +
               "] svg text[text-anchor=end]')].slice(0, -1).map(each => each.textContent).join()";
    };
    const std::string bad = "print=document.querySelectorAll('.box.bad, [role=alert]').length";
    std::vector<std::string> steps = {
        "go=#/job/" + job->summary.id,
        "wait=document.querySelector('h1 .done')",
        bad,
        "print=[...document.querySelectorAll('[data-chart=loss] text.change')].map(each => each.textContent).join()",
        "print=document.querySelectorAll('[data-chart=accuracy] line.change').length",
        labels("accuracy"),
        labels("bytes")};
    EXPECT_EQ(browse(port, steps), "0\n− node-2,+ node-2\n2\n0.9400,0.9600,0.9800,1.0000\n11.5 MiB,12 MiB,12.5 MiB,13 MiB,13.5 MiB\n");

    status.views.pop_back();   // it has not come back
    status.losses = {"1 node goes on without node-2"};
    EXPECT_EQ(browse(port, {"go=#/job/" + job->summary.id, "wait=document.querySelector('h1 .done')", bad,
                            "print=[...document.querySelectorAll('.box')].map(each => each.textContent).join()"}),
              "0\nended without node-2: w\n");
}

/// A row a stage, boxes where the stage computes.
TEST_F(SystemPage, DrawsTheScheduleOfStages) {
    JobDetail* job = backend.add(std::string(32, 'a'), "staged");
    PipelineStatus pipeline{.schedule = "zero-bubble", .layers = {"conv1 .. pool1", "conv2 .. pool2", "fc1 .. loss"}};
    constexpr uint32_t micro_batches = 8;
    for (uint32_t stage = 0; stage < 3; ++stage) {
        StageNews news{.steps = 16,
                       .micro_batches = micro_batches,
                       .step_us = 28'000,
                       .us = {8000, 8000, 8000, stage * 500, (2 - stage) * 750, 0, 20, 700},
                       .shown = 64};
        uint32_t now = 1000 * stage;
        for (const StageTask& task : stage_tasks(Schedule::zero_bubble, 3, stage, micro_batches)) {
            if (task.pass == StagePass::data && task.micro_batch == 0) now += (2 - stage) * 500;
            news.passes.push_back({now, now + 1000});
            now += 1020;
        }
        pipeline.nodes.push_back({fmt::format("node-{}", stage + 1), stage + 1, 1, news});
    }
    pipeline.nodes.push_back({"node-4", 1, 0, {}});
    pipeline_status_derive(&pipeline);
    job->summary.status.pipeline = pipeline;
    job->summary.status.stage = "stage 1 of 3 (conv1 .. pool1)";
    serve();
    std::vector<std::string> steps = {"wait=document.querySelector('.jobs a')",
                                      "print=document.querySelector('tr.job').textContent.includes('stage 1 of 3')",
                                      "print=document.querySelector('.why').textContent",
                                      "go=#/job/" + job->summary.id,
                                      "wait=document.querySelector('[data-schedule]')",
                                      "print=document.querySelectorAll('[data-schedule] rect.idle').length",
                                      "print=['forward', 'backward', 'weights'].map(each => document.querySelectorAll('[data-schedule] "
                                      "rect.' + each).length).join()",
                                      "print=document.querySelector('[data-schedule] rect.backward title').textContent",
                                      "print=[...document.querySelectorAll('.stages tbody tr')].pop().lastChild.textContent",
                                      "print=[...document.querySelectorAll('.stages tbody tr')][1].textContent"};
    shoot(&steps, "stages");
    EXPECT_EQ(browse(port, steps),
              "true\nstages wait for 1: gradients of stage 2 (14% idle), 2: gradients of stage 3 (14% idle), 3: values of stage 2 (14% "
              "idle)\n3\n24,24,24\ndata pass of micro-batch 1: 4.06 to 5.06 ms\nvalues of stage 2 1.00 ms, reports of the other stages "
              "0.70 ms\n1conv1 .. pool1node-4spare–––––\n");
}

/// A job of `nodes` of real daemons; one is lost and comes back; another job fails.
TEST_F(SystemPage, ShowsARunningJobALostNodeAndAFailedJob) {
    Cluster cluster(3);
    const std::string data = make_data(cluster.folder + "/data.h5", 4096);
    cluster.configure(cluster[0], "metrics = \"127.0.0.1:" + std::to_string(port) + "\"\n");
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    std::string text = job_text(data, 1'000'000, "curve", "10s");
    text.insert(text.find("[data]"), "survive = true\n");
    const std::string id = cluster[0].submit(text).value("id", "");
    ASSERT_FALSE(id.empty()) << logs(cluster);
    const std::string lost = cluster[0].submit(job_text(cluster.folder + "/nothing.h5", 5, "broken")).value("error", "");
    ASSERT_FALSE(lost.empty());

    const std::string points = "(document.querySelector('[data-chart=loss] .curve')?.getAttribute('d').match(/L/g) || []).length";
    std::vector<std::string> steps = {
        "wait=document.querySelectorAll('tr.job').length === 2", "wait=document.querySelectorAll('.nodes .alive').length === 3",
        "print=document.querySelector('.why').textContent", "wait=document.getElementById('link').textContent === 'live'"};
    shoot(&steps, "list");
    for (const std::string& each : {"go=#/job/" + id, "wait=" + points + " > 5",
                                    "wait=(window.before ?"
                                    "?= " +
                                        points + ") < " + points,
                                    std::string("wait=document.querySelectorAll('svg.bar').length > 2")})
        steps.push_back(each);
    shoot(&steps, "job");
    const std::string why = browse(port, steps);
    EXPECT_TRUE(has(why, "nothing.h5")) << why;
    EXPECT_TRUE(has(why, lost)) << why;

    cluster[2].process->kill(SIGKILL);
    steps = {"wait=document.querySelector('.nodes .away')", "print=document.querySelector('.nodes b').textContent", "go=#/job/" + id,
             "wait=[...document.querySelectorAll('.box.bad')].some(box => box.textContent.includes('goes on without c'))",
             "wait=document.querySelector('.views')?.textContent.includes('without c')"};
    shoot(&steps, "lost");
    EXPECT_EQ(browse(port, steps), "c\n");
    cluster.start(cluster[2]);
    steps = {"go=#/job/" + id, "wait=document.querySelector('.views')?.textContent.includes('with c')",
             "wait=document.querySelectorAll('.box.bad').length === 0",
             "wait=document.querySelector('[data-chart=loss]').textContent.includes('+ c')"};
    shoot(&steps, "back");
    browse(port, steps);
    cluster[0].post("/v1/jobs/" + id + "/cancel", Json::object());
    EXPECT_EQ(cluster[0].ended(id).state, JobState::cancelled);
    browse(port, {"go=#/job/" + id, "wait=document.querySelector('h1 .cancelled')"});
}

}   // namespace
}   // namespace gradcast
