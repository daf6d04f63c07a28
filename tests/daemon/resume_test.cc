// Jobs that go on from their checkpoints, on real daemons.
#include <fstream>

#include "runtime/core/digest.h"
#include "runtime/daemon/search.h"
#include "runtime/job/model/checkpoint_files.h"
#include "tests/daemon/jobs.h"

namespace gradcast {
namespace {

TEST(Search, TakesTheCheckpointOfTheMostSteps) {
    std::vector<SearchAnswer> answers(4);
    auto give = [&](size_t i, uint64_t steps, uint64_t state, bool agreed = true) {
        answers[i].answered = answers[i].member = true;
        answers[i].found.states = {{steps, state, agreed}};
    };
    for (size_t i = 0; i < answers.size(); ++i) answers[i].node = std::string(1, static_cast<char>('a' + i));
    answers[3].why = "not reached yet";
    give(0, 10, 1);
    give(1, 30, 3);
    give(2, 20, 2);
    SearchChoice best;
    std::vector<std::string> notes;
    ASSERT_TRUE(search_choose("j", answers, &best, &notes).ok());
    EXPECT_EQ(best.holders, std::vector<size_t>{1});
    EXPECT_EQ(notes, std::vector<std::string>{"node d was not asked for its checkpoints: not reached yet"});

    // Two states of one step: that which all nodes had, else the step before.
    give(0, 30, 4, false);
    notes.clear();
    ASSERT_TRUE(search_choose("j", answers, &best, &notes).ok());
    EXPECT_EQ(best.holders, std::vector<size_t>{1});
    EXPECT_EQ(notes[1], "nodes a, b have different states after 30 steps: that of node b is taken, which all nodes had");
    give(1, 30, 3, false);
    notes.clear();
    ASSERT_TRUE(search_choose("j", answers, &best, &notes).ok());
    EXPECT_EQ(best.holders, std::vector<size_t>{2});
    EXPECT_EQ(notes[1], "nodes a, b have different states after 30 steps: none is taken");

    // The newest is elsewhere.
    give(1, 30, 3);
    give(0, 10, 1);
    answers[1].member = answers[0].member = false;
    answers[2].found.notes = "x.h5: torn\ny.h5: torn";
    notes.clear();
    ASSERT_TRUE(search_choose("j", answers, &best, &notes).ok());
    EXPECT_EQ(best.holders, std::vector<size_t>{2});
    EXPECT_EQ(notes[0], "node c: x.h5: torn");
    EXPECT_EQ(notes[1], "node c: y.h5: torn");
    EXPECT_EQ(notes[3], "node b has a checkpoint after 30 steps, but it is not among the nodes of this run");
    answers[2].found.states.clear();
    answers[2].found.notes.clear();
    notes.clear();
    EXPECT_STREQ(
        search_choose("j", answers, &best, &notes).what,
        "no checkpoint of job j at c; node b has one after 30 steps: take it among the nodes; node d was not asked for its checkpoints: "
        "not reached yet");
    answers[0].found.active = true;
    EXPECT_EQ(std::string(search_choose("j", answers, &best, &notes).what), "job j runs at node a: cancel it there, or wait for its end");
}

TEST(Search, TakesPartsThatAreAllThere) {
    std::vector<SearchAnswer> answers(4);
    for (size_t i = 0; i < answers.size(); ++i) {
        answers[i].node = std::string(1, static_cast<char>('a' + i));
        answers[i].answered = answers[i].member = true;
    }
    auto part = [](uint64_t steps, uint64_t state, uint32_t cell, bool agreed = true) { return FoundState{steps, state, agreed, cell, 2}; };
    answers[0].found.states = {part(30, 10, 0), part(20, 1, 0)};
    answers[1].found.states = {part(20, 2, 1), {10, 5, true}};
    answers[2].found.states = {part(20, 2, 1)};
    SearchChoice best;
    std::vector<std::string> notes;
    ASSERT_TRUE(search_choose("j", answers, &best, &notes).ok());
    EXPECT_EQ(best.holders, (std::vector<size_t>{0, 1}));
    EXPECT_EQ(best.steps, 20u);
    EXPECT_EQ(best.state, splitmix64(20) + 3);
    EXPECT_EQ(notes, std::vector<std::string>{"of the checkpoint after 30 steps part 2 of 2 is at none of these nodes"});

    // At a node that is no member.
    answers[3].member = false;
    answers[3].found.states = {part(30, 11, 1)};
    notes.clear();
    ASSERT_TRUE(search_choose("j", answers, &best, &notes).ok());
    EXPECT_EQ(notes[1], "node d has part 2 of 2 of a checkpoint after 30 steps, but it is not among the nodes of this run");
    answers[3].member = true;
    notes.clear();
    ASSERT_TRUE(search_choose("j", answers, &best, &notes).ok());
    EXPECT_EQ(best.holders, (std::vector<size_t>{0, 3}));

    // Two different states of one part: the agreed one, else that of fewer steps.
    answers[2].found.states = {part(30, 12, 1, false)};
    ASSERT_TRUE(search_choose("j", answers, &best, &notes).ok());
    EXPECT_EQ(best.holders, (std::vector<size_t>{0, 3}));
    answers[3].found.states[0].agreed = false;
    ASSERT_TRUE(search_choose("j", answers, &best, &notes).ok());
    EXPECT_EQ(best.holders, (std::vector<size_t>{0, 1}));
    EXPECT_EQ(best.steps, 20u);

    // Two nodes have both parts: each reads one.
    answers[0].found.states = answers[1].found.states = {part(40, 1, 0), part(40, 2, 1)};
    ASSERT_TRUE(search_choose("j", answers, &best, &notes).ok());
    EXPECT_EQ(best.holders, (std::vector<size_t>{0, 1}));
}

std::string often(std::string text) { return text.insert(text.find("[data]"), "checkpoint_every = 20\n"); }

// Three nodes train; one is killed, and the job goes on on the two others; then one of these and the coordinator are killed too, and it
// ends on the node that came back and the last one.
TEST(SystemResume, AJobGoesOnOnTheNodesThatAreLeft) {
    Cluster cluster(3);
    const std::string data = make_data(cluster.folder + "/data.h5");
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    constexpr uint32_t steps = 300;
    const std::string text = often(job_text(data, steps));
    const std::string quiet = cluster[0].submit(text, {"a"}).value("id", "");
    const JobStatus whole = cluster[0].ended(quiet);
    ASSERT_EQ(whole.state, JobState::done) << whole.error << logs(cluster);

    const std::string id = cluster[0].submit(text).value("id", "");
    ASSERT_TRUE(eventually([&] { return cluster[1].step(id) > 50; })) << logs(cluster);
    EXPECT_TRUE(has(cluster[1].post("/v1/jobs/" + id + "/resume", Json::object()).value("error", ""), "has not ended"));
    cluster[2].process->kill(SIGKILL);
    EXPECT_EQ(cluster[0].ended(id).state, JobState::failed) << logs(cluster);
    EXPECT_EQ(cluster[1].ended(id).state, JobState::failed);

    // At b, with another exchange, once it has seen that c is away.
    ASSERT_TRUE(eventually([&] { return cluster[1].sees() == "a b"; }));
    std::string other = text;
    other.replace(other.find("\"ring\""), 6, "\"unicast\"");
    Json answer = cluster[1].post("/v1/jobs/" + id + "/resume", Json{{"text", other}, {"base", "/"}, {"path", "other.toml"}});
    ASSERT_EQ(answer.value("id", ""), id) << answer.dump();
    ASSERT_TRUE(eventually([&] { return cluster[0].step(id) > 150; })) << cluster[0].job(id).dump(2) << logs(cluster);
    Json detail = cluster[0].job(id);
    EXPECT_EQ(detail["exchange"], "unicast");
    EXPECT_GT(detail["status"]["resumed"].get<uint64_t>(), 40u);
    EXPECT_TRUE(has(detail["status"]["warnings"].dump(), "goes on from the checkpoint of node")) << detail.dump(2);
    EXPECT_TRUE(has(detail["status"]["warnings"].dump(), "node c was not asked for its checkpoints")) << detail.dump(2);
    // SIGTERM at a writes a checkpoint there and at b, which the job's end gives all the same.
    cluster[0].process->kill(SIGTERM);
    EXPECT_EQ(cluster[0].process->wait(), 0);
    EXPECT_EQ(cluster[1].ended(id).state, JobState::cancelled);
    cluster.start(cluster[2]);
    ASSERT_TRUE(eventually([&] { return cluster[1].sees() == "b c" && cluster[2].sees() == "b c"; }));

    // c comes back: it has lines of the first run alone.  The newest checkpoint at b is torn, so the one before is taken, and a note says
    // so.
    const std::string folder = cluster[1].folder + "/state/jobs/" + id;
    const std::vector<CheckpointHere> kept = checkpoints_in(folder);
    ASSERT_GE(kept.size(), 2u);
    const std::string torn = kept.back().path;
    std::filesystem::resize_file(torn, std::filesystem::file_size(torn) / 3);
    answer = cluster[2].post("/v1/jobs/" + id + "/resume", Json{{"nodes", {"b", "c"}}});
    ASSERT_EQ(answer.value("id", ""), id) << answer.dump();
    ASSERT_TRUE(eventually([&] { return cluster[2].job(id).value("started", false); })) << cluster[2].job(id).dump(2) << logs(cluster);
    const JobStatus last = cluster[2].ended(id);
    EXPECT_EQ(last.state, JobState::done) << last.error << logs(cluster);
    EXPECT_EQ(last.digest, whole.digest);
    EXPECT_EQ(last.accuracy, whole.accuracy);
    detail = cluster[2].job(id);
    EXPECT_TRUE(has(detail["status"]["warnings"].dump(), "node b: " + torn + ": not a gradcast model")) << detail.dump(2);
    EXPECT_EQ(step_digests(folder), step_digests(cluster[0].folder + "/state/jobs/" + quiet));
    EXPECT_EQ(cluster[1].ended(id).state, JobState::done);
    EXPECT_TRUE(has(cluster[1].post("/v1/jobs/" + id + "/resume", Json::object()).value("error", ""), "is done"));
    EXPECT_EQ(cluster[2].get("/v1/jobs")["jobs"].size(), 1u);

    // What does not start leaves everything as it was.
    std::string wrong = text;
    wrong.replace(wrong.find("seed = 1"), 8, "seed = 2");
    wrong.replace(wrong.find("steps = 300"), 11, "steps = 400");
    answer = cluster[1].post("/v1/jobs/" + id + "/resume", Json{{"text", wrong}, {"base", "/"}, {"path", "wrong.toml"}});
    ASSERT_EQ(answer.value("id", ""), id) << answer.dump();
    const JobStatus refused = cluster[1].ended(id);
    EXPECT_EQ(refused.state, JobState::failed);   // of the attempt
    EXPECT_EQ(refused.digest, whole.digest);
    EXPECT_TRUE(has(refused.error, "; what the job has trained before stays")) << refused.error;
    EXPECT_TRUE(has(refused.error, "not resumed: "));
    EXPECT_TRUE(has(refused.error, "of another training: job.seed was 1 and is 2 now")) << refused.error;
    EXPECT_TRUE(std::filesystem::exists(cluster[2].folder + "/state/jobs/" + id + "/final.h5") ||
                std::filesystem::exists(folder + "/final.h5"));
    std::string record;
    ASSERT_TRUE(file_read(folder + "/job.json", &record).ok());
    EXPECT_TRUE(has(record, whole.digest) && !has(record, "not resumed")) << record;
    EXPECT_TRUE(has(cluster[1].post("/v1/jobs/" + id + "/resume", Json{{"bench", true}}).value("error", ""), "a benchmark cannot"));
    // A longer one goes on from the model, at whichever node that is.
    wrong.replace(wrong.find("seed = 2"), 8, "seed = 1");
    answer = cluster[1].post("/v1/jobs/" + id + "/resume", Json{{"text", wrong}, {"base", "/"}, {"path", "longer.toml"}});
    ASSERT_TRUE(eventually([&] { return cluster[1].job(id).value("started", false); })) << cluster[1].job(id).dump(2) << logs(cluster);
    EXPECT_EQ(cluster[1].ended(id).state, JobState::done) << cluster[1].ended(id).error;
    EXPECT_EQ(cluster[1].step(id), 400u);

    EXPECT_TRUE(has(cluster[1].post("/v1/jobs/nothing/resume", Json::object()).value("error", ""), "there is no job nothing"));
    const std::string unknown(32, 'a');
    answer = cluster[1].post("/v1/jobs/" + unknown + "/resume", Json::object());
    EXPECT_EQ(answer.value("id", ""), unknown) << answer.dump();
    const JobStatus none = cluster[1].ended(unknown);
    EXPECT_TRUE(has(none.error, "no checkpoint of job " + unknown + " at b, c; node a was not asked")) << none.error;
}

// Two nodes resume one job at the same time, while a third one does not answer and dies: one of the two goes on, at once.
TEST(SystemResume, TwoNodesResumeAtOnce) {
    Cluster cluster(3);
    const std::string data = make_data(cluster.folder + "/data.h5");
    ASSERT_NO_FATAL_FAILURE(cluster.up());
    const std::string text = often(job_text(data, 100'000));
    const std::string id = cluster[0].submit(text).value("id", "");
    uint64_t steps = 30;
    for (int i = 0; i < 3; ++i) {
        ASSERT_TRUE(eventually([&] { return cluster[0].step(id) > steps; })) << cluster[0].job(id).dump(2) << logs(cluster);
        cluster[0].post("/v1/jobs/" + id + "/cancel", Json::object());
        for (uint32_t node = 0; node < (i < 2 ? 3u : 2u); ++node) EXPECT_EQ(cluster[node].ended(id).state, JobState::cancelled);
        steps = cluster[1].step(id);
        if (i == 2) cluster[2].process->kill(SIGSTOP);
        std::vector<std::thread> both;
        for (uint32_t node = 0; node < 2; ++node)
            both.emplace_back([&, node] {
                const Json answer = cluster[node].post("/v1/jobs/" + id + "/resume", Json::object());
                EXPECT_TRUE(answer.value("id", "") == id || has(answer.value("error", ""), "has not ended")) << answer.dump();
            });
        for (std::thread& each : both) each.join();
        if (i == 2) cluster[2].process->kill(SIGKILL);
        for (uint32_t node = 0; node < 2; ++node)
            ASSERT_TRUE(eventually([&] { return cluster[node].step(id) > steps && cluster[node].job(id)["status"]["state"] == "running"; }))
                << cluster[node].job(id).dump(2) << logs(cluster);
        steps += 20;
    }
    cluster[1].post("/v1/jobs/" + id + "/cancel", Json::object());
    for (uint32_t node = 0; node < 2; ++node) EXPECT_EQ(cluster[node].ended(id).state, JobState::cancelled);
    EXPECT_EQ(cluster[0].get("/v1/jobs")["jobs"].size(), 1u);

    // A resume that is refused leaves the checkpoints where they are, also of a job whose job.json is gone.
    const std::string folder = cluster[0].folder + "/state/jobs/" + id;
    std::filesystem::remove(folder + "/job.json");
    const Json few = {{"text", job_text(data, 10)}, {"base", "/"}, {"path", "few.toml"}, {"nodes", {"a"}}};
    EXPECT_EQ(cluster[0].post("/v1/jobs/" + id + "/resume", few).value("id", ""), id);
    EXPECT_TRUE(has(cluster[0].ended(id).error, "all 10 steps of the job are done")) << cluster[0].ended(id).error;
    EXPECT_FALSE(checkpoints_in(folder).empty());
}

}   // namespace
}   // namespace gradcast
