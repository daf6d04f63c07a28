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
    page.erase(0, page.find("accuracy by steps"));
    page.erase(page.find("</svg>"));
    EXPECT_NE(page.find("\"end\">1<"), std::string::npos) << page;
    EXPECT_EQ(page.find("\"end\">1.0"), std::string::npos) << page;
}

TEST_F(Report, ComparesAJobAndAFolder) {
    import();
    const std::string evil = "<script>alert(1)</script>";
    make("one", changed(good_job, "\"tiny\"", "\"" + evil + "\""), lines(5000, 2) + "{\"step\":5001,\"lo");
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
    EXPECT_EQ(count(page, "<svg"), 6u);   // loss and accuracy by steps, seconds and bytes
    EXPECT_EQ(count(page, "class=\"curve c0\""), 6u);
    EXPECT_EQ(count(page, "class=\"curve c1\""), 6u);
    EXPECT_EQ(count(page, "<script"), 0u);
    EXPECT_EQ(count(page, "https:") + count(page, "src="), 0u);
    for (const char* part :
         {"&lt;script&gt;alert(1)", "of a daemon", "<td>optimiser.lr</td><td class=\"n\">0.05</td><td class=\"n\">0.5</td>",
          "node b &lt;went&gt; away", "n&lt;1 is slow: compute takes", "1.5 / 2.5", "class, predicted", "4.77 MiB", "5.00 s",
          "there is no final.h5 here"})
        EXPECT_NE(page.find(part), std::string::npos) << part;
    EXPECT_EQ(page.find("<td>job.batch</td>"), std::string::npos);   // equal in both

    for (const char* tick : {">0 MiB<", ">1 MiB<", ">5 MiB<"})   // of 5,000,000 bytes
        EXPECT_NE(page.find(tick), std::string::npos) << tick;

    const Json json = ask("report one two --out r.html --quick -o json").json();
    EXPECT_EQ(json["path"], "r.html");
    EXPECT_EQ(json["runs"][0]["steps"], 5000);
    EXPECT_NEAR(json["runs"][0]["seconds"].get<double>(), 5, 1e-9);
    EXPECT_EQ(json["runs"][1]["bytes_sent"], 40'000.0);
    EXPECT_EQ(ask("report two --out r.html --force --data 'test*.h5'").exit, 0);
    EXPECT_NE(read("r.html").find("class, predicted"), std::string::npos);
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
