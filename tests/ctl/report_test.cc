// gradcastctl report: jobs of a daemon, folders of runs, and what is missing.
#include "tests/ctl/models.h"

namespace gradcast {
namespace {

struct Report : CtlModel {
    /// Steps of which every tenth is evaluated.
    static std::string lines(int steps, double scale) {
        std::string text;
        for (int i = 1; i <= steps; ++i) {
            text += fmt::format(
                "{{\"step\":{},\"epoch\":1,\"loss\":{:.6f},\"digest\":\"0\",\"compute_us\":900,\"wait_us\":90,\"apply_us\":10,\"bytes_"
                "sent\":1000",
                i, scale / i);
            if (i % 10 == 0) text += fmt::format(",\"accuracy\":{:.6f},\"test_loss\":0.5", 1 - 1.0 / i);
            text += "}\n";
        }
        return text;
    }
    void make(const std::string& name, const std::string& job, const std::string& steps) const {
        fs::create_directories(folder + "/" + name);
        write(name + "/job.toml", job);
        write(name + "/steps.jsonl", steps);
    }
    static size_t count(const std::string& text, const std::string& part) {
        size_t found = 0;
        for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
        return found;
    }
};

std::string changed(std::string text, const std::string& from, const std::string& to) {
    return text.replace(text.find(from), from.size(), to);
}

TEST_F(Report, ListAndDescribeKnowLocalRuns) {
    serve();
    EXPECT_EQ(ask("list").err, "");
    make("state/gradcast/tiny-1", good_job, lines(20, 2));
    make("state/gradcast/tiny-2", good_job, lines(20, 2));
    const std::string where = "local runs: 2 in " + folder + "/state/gradcast; gradcastctl describe and report take the folder of one";
    EXPECT_EQ(ask("list").err, where + "\n");
    EXPECT_EQ(ask("list -o json").json()["local_runs"], where);
    server.reset();
    EXPECT_TRUE(ask("list").says(where));   // also where no daemon answers

    import();
    save("state/gradcast/tiny-2/final.h5", good_job);
    Outcome outcome = run("describe state/gradcast/tiny-1");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    for (const char* part : {"name            tiny\n", "state           no model: ", "step            20\n", "accuracy        0.9500\n",
                             "sent by a node  19.5 KiB\n", "optimiser.lr    0.05\n"})
        EXPECT_NE(outcome.out.find(part), std::string::npos) << outcome.out;
    const Json json = run("describe state/gradcast/tiny-2 -o json").json();
    EXPECT_EQ(json["state"], "done");
    EXPECT_EQ(json["step"], 20);
    EXPECT_EQ(json["digest"].get<std::string>().size(), 64u);
    outcome = run("describe state/nowhere");
    EXPECT_EQ(outcome.exit, 2);
    EXPECT_TRUE(outcome.says("state/nowhere: there is no such folder"));
}

TEST_F(Report, NoTickOfAccuracyIsAboveOne) {
    std::string steps;
    for (int i = 1; i <= 3; ++i) steps += fmt::format("{{\"step\":{},\"loss\":1,\"bytes_sent\":1000,\"accuracy\":1}}\n", i);
    make("one", good_job, steps);
    ASSERT_EQ(run("report one --out report.html --quick").exit, 0);
    std::string page = read("report.html");
    page.erase(0, page.find("accuracy by samples seen"));
    page.erase(page.find("</svg>"));
    EXPECT_NE(page.find("\"end\">1<"), std::string::npos) << page;
    EXPECT_EQ(page.find("\"end\">1.0"), std::string::npos) << page;
}

TEST_F(Report, ComparesAJobAndAFolder) {
    import();
    const std::string evil = "<script>alert(1)</script>";
    make("one", changed(good_job, "\"tiny\"", "\"" + evil + "\""),
         lines(5000, 2) + "{\"gap\":[5001,5008],\"logged_by\":\"<b>\"}\n{\"step\":5009,\"lo");
    make("two", changed(good_job, "lr = 0.05", "lr = 0.5"), "not json\n{}\n[]\n{\"step\":\"x\"}\n" + lines(40, 3));
    save("two/final.h5", good_job);   // whose paths are relative to its own base
    JobDetail* job = backend.add(id_a, "of a daemon");
    job->folder = folder + "/two";
    job->summary.status.times = {{.node = "n<1", .times = {.steps = 16}}};
    job->summary.status.times[0].times.phases[1] = {.recent = 1, .p50 = 1500, .p99 = 2500};
    job->summary.status.stragglers = {{"n<1", "compute", 9000, 1000, "look"}};
    backend.finish(job, JobState::failed, "node b <went> away");
    serve();
    Outcome outcome = ask("report one aaaa --out report.html");
    EXPECT_EQ(outcome.exit, 0) << outcome.err;
    EXPECT_EQ(outcome.out, "report.html\n");
    EXPECT_TRUE(outcome.says("there is no final.h5 here")) << outcome.err;
    const std::string page = read("report.html");
    EXPECT_LT(page.size(), 400'000u);
    EXPECT_EQ(count(page, "<svg"), 6u);   // loss and accuracy by samples, seconds and bytes
    EXPECT_EQ(count(page, "class=\"curve c0\""), 6u);
    EXPECT_EQ(count(page, "class=\"curve c1\""), 6u);
    EXPECT_EQ(count(page, ": steps.jsonl has no lines of steps 5001..5008: node &lt;b&gt; logged them</p>"), 1u);
    EXPECT_EQ(count(page, "<script"), 0u);
    EXPECT_EQ(count(page, "https:") + count(page, "src="), 0u);
    for (const char* part :
         {"&lt;script&gt;alert(1)", "of a daemon", "<td>optimiser.lr</td><td class=\"n\">0.05</td><td class=\"n\">0.5</td>",
          "node b &lt;went&gt; away", "n&lt;1 is slow: compute takes", "1.5 / 2.5", "class, predicted", "4.77 MiB", "5.00 s",
          "there is no final.h5 here"})
        EXPECT_NE(page.find(part), std::string::npos) << part;
    EXPECT_EQ(page.find("<td>job.batch</td>"), std::string::npos);   // equal in both

    for (const char* tick : {">512 KiB<", ">2 MiB<", ">8 MiB<"})   // of 5,000,000 bytes
        EXPECT_NE(page.find(tick), std::string::npos) << tick;

    const Json json = ask("report one two --out r.html --quick -o json").json();
    EXPECT_EQ(json["path"], "r.html");
    EXPECT_EQ(json["runs"][0]["steps"], 5000);
    EXPECT_NEAR(json["runs"][0]["seconds"].get<double>(), 5, 1e-9);
    EXPECT_EQ(json["runs"][1]["bytes_sent"], 40'000.0);
    EXPECT_EQ(ask("report two --out r.html --force --data 'test*.h5'").exit, 0);
    EXPECT_NE(read("r.html").find("class, predicted"), std::string::npos);
}

/// job.json of a run, as a folder has it.
JobDetail record(const std::string& name, const std::string& digest) {
    JobDetail job;
    job.summary.id = id_a;
    job.summary.name = name;
    job.summary.nodes = {"a", "b", "c"};
    JobStatus& status = job.summary.status;
    status.state = JobState::done;
    status.step = status.steps = 3000;
    status.seconds = 77;
    status.bytes_sent = 123 << 20;
    status.digest = digest;
    return job;
}

TEST_F(Report, HasTheFiguresOfTheJobItself) {
    make("one", good_job, lines(3000, 2));
    write("one/job.json", json_text(Json(record("tiny", std::string(64, 'd'))), 2));
    // The folder of a launcher: rank-1 has the model.
    for (const char* rank : {"rank-0", "rank-1"}) make(fmt::format("work/{}/state/jobs/{}", rank, id_a), good_job, lines(3000, 2));
    write("work/job", id_a + "\n");
    const std::string own = "work/rank-1/state/jobs/" + id_a;
    JobDetail resumed = record("tiny", std::string(64, 'd'));
    resumed.summary.status.resumed = 2000;
    write(own + "/job.json", json_text(Json(resumed), 2));
    save(own + "/final.h5", good_job);
    Outcome outcome = run("report one work --quick --out r.html -o json");
    ASSERT_EQ(outcome.exit, 0) << outcome.err;
    const Json runs = outcome.json()["runs"];
    EXPECT_NEAR(runs[0]["loss"].get<double>(), 2.0 / 3000, 1e-6);   // of the last step, not a mean
    EXPECT_EQ(runs[0]["bytes_sent"], static_cast<double>(123 << 20));
    EXPECT_EQ(runs[1]["bytes_sent"], static_cast<double>((123 << 20) + 2000 * 1000));
    EXPECT_NEAR(runs[1]["seconds"].get<double>(), 77 + 2, 1e-6);
    const std::string page = read("r.html");
    for (const char* part : {"<td class=\"n\">done</td><td class=\"n\">3</td><td class=\"n\">3000</td><td class=\"n\">0.0007</td>",
                             "77.0 s", "tiny (one), tiny (work): same model, bit for bit (digest dddddddddddd)"})
        EXPECT_NE(page.find(part), std::string::npos) << part;

    // The table says what run has printed.
    import();
    write("job.toml", good_job);
    outcome = run("run job.toml --local 2 --keep kept -o json");
    ASSERT_EQ(outcome.exit, 0) << outcome.err;
    const Json job = outcome.json();
    const Json kept = run("report kept --quick --force --out r.html -o json").json()["runs"][0];
    EXPECT_EQ(kept["digest"], job["status"]["digest"]);
    EXPECT_NEAR(kept["loss"].get<double>(), job["status"]["loss"].get<double>(), 1e-6);
    bool same = false;   // of the node whose results are kept
    for (const Json& node : job["node_results"]) same |= node["status"]["bytes_sent"] == kept["bytes_sent"];
    EXPECT_TRUE(same) << kept << job["node_results"];
    EXPECT_NE(read("r.html").find("<td class=\"n\">done</td><td class=\"n\">2</td><td class=\"n\">6</td>"), std::string::npos);
}

TEST_F(Report, DefaultsAreNoDifference) {
    make("one", good_job, lines(40, 2));
    make("two", changed(good_job, "lr = 0.05", "lr = 0.050\nmomentum = 0.0") + "quantiser = \"auto32\"\ns = 0\n", lines(40, 2));
    ASSERT_EQ(run("report one two --quick --out r.html").exit, 0);
    std::string page = read("r.html");
    EXPECT_NE(page.find("<h2>Settings that differ</h2>\n<p class=\"dim\">None.</p>"), std::string::npos) << page;
    EXPECT_EQ(page.find("bit for bit"), std::string::npos);

    make("two", changed(good_job, "lr = 0.05", "lr = 0.05\nmomentum = 0.9"), lines(40, 2));
    ASSERT_EQ(run("report one two --quick --force --out r.html").exit, 0);
    page = read("r.html");
    EXPECT_NE(page.find("<td>optimiser.momentum</td><td class=\"n\"><span class=\"dim\">0</span></td><td class=\"n\">0.9</td>"),
              std::string::npos);
    EXPECT_EQ(count(page, "<td>optimiser."), 1u);
}

// "0.5min" is 30s, and a daemon gives a text without quotes.
TEST_F(Report, WaysToWriteAValueAreNoDifference) {
    const std::string none = "<h2>Settings that differ</h2>\n<p class=\"dim\">None.</p>", ma = changed(good_job, "\"ssgd\"", "\"ma\"");
    make("one", changed(good_job, "batch", "deadline = \"30s\"\nbatch"), lines(40, 2));
    make("two", changed(good_job, "batch", "deadline = \"0.5min\"\nbatch"), lines(40, 2));
    ASSERT_EQ(run("report one two --quick --out r.html").exit, 0);
    EXPECT_NE(read("r.html").find(none), std::string::npos) << read("r.html");
    make("two", changed(good_job, "batch", "deadline = \"1min\"\nbatch"), lines(40, 2));
    ASSERT_EQ(run("report one two --quick --force --out r.html").exit, 0);
    EXPECT_NE(read("r.html").find("<td>job.deadline</td><td class=\"n\">&quot;30s&quot;</td><td class=\"n\">&quot;1min&quot;</td>"),
              std::string::npos)
        << read("r.html");

    make("one", ma + "allocation = \"parts\"\n", lines(40, 2));
    fs::remove(folder + "/two/job.toml");   // the daemon's word is all there is
    JobDetail* job = backend.add(id_a, "two");
    job->folder = folder + "/two";
    job->algorithm = "ma";
    job->quantiser = "auto32";
    job->batch = 16;
    job->blocks = 4;
    job->summary.status.settings = {{"allocation", "parts"}, {"local_epochs", "1"}};
    serve();
    ASSERT_EQ(ask("report one aaaa --quick --force --out r.html").exit, 0);
    EXPECT_NE(read("r.html").find(none), std::string::npos) << read("r.html");
}

/// The plot's part of the page.
std::string plot_of(const std::string& page, const std::string& title) {
    const size_t at = page.find(">" + title + "</text>");
    return at == page.npos ? "" : page.substr(at, page.find("</svg>", at) - at);
}

TEST_F(Report, AxesAreLogarithmicInLossAndBytes) {
    make("one", good_job, lines(4000, 2));
    ASSERT_EQ(run("report one --quick --out r.html").exit, 0);
    const std::string page = read("r.html"), bytes = plot_of(page, "loss by bytes sent by a node"),
                      samples = plot_of(page, "loss by samples seen");
    for (const char* tick : {">1<", ">0.1<", ">0.01<", ">0.001<"}) {
        EXPECT_NE(bytes.find(tick), std::string::npos) << tick << bytes;
        EXPECT_NE(samples.find(tick), std::string::npos) << tick << samples;
    }
    for (const char* tick : {">32 KiB<", ">512 KiB<", ">8 MiB<"}) EXPECT_NE(bytes.find(tick), std::string::npos) << tick << bytes;
    for (const char* tick : {">0<", ">20000<", ">40000<"})
        EXPECT_NE(samples.find(tick), std::string::npos) << tick << samples;   // batch 16
}

TEST_F(Report, NamesWhatIsWrong) {
    serve();
    make("empty", good_job, "");
    EXPECT_EQ(ask("report nothing --out r.html").exit, 2);
    EXPECT_TRUE(ask("report ./absent --out r.html").says("./absent: there is no such folder"));
    EXPECT_TRUE(ask("report empty --out r.html").says("empty/steps.jsonl has no line of a step"));
    EXPECT_TRUE(ask("report . --out r.html").says(".: there is no steps.jsonl"));
    EXPECT_FALSE(fs::exists(folder + "/r.html"));
    make("good", good_job, lines(3, 1));
    EXPECT_TRUE(ask("report good --out absent/r.html").says("absent/r.html"));
    EXPECT_EQ(ask("report good").exit, 2);
    EXPECT_EQ(ask("report good --quick --out r.html").exit, 0);
}

}   // namespace
}   // namespace gradcast
