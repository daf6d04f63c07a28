// Audits: what one rank finds in the folders of a run that was of several.
#include "runtime/job/audit/audit.h"

#include <sys/stat.h>

#include "runtime/core/crypto.h"
#include "tests/job/runs.h"

namespace gradcast {
namespace {

class AuditTest : public RunsTest {
protected:
    /// A run of four ranks, with all their checkpoints in one folder.
    std::string gathered(const std::string& text, uint32_t n = 4) {
        const Run run = this->run(text, n);
        EXPECT_TRUE(run.status.ok()) << run.status.what;
        for (const auto& [steps, path] : checkpoints(run))
            if (const std::string to = checkpoint_path(run.folders[0], steps); to != path) std::filesystem::rename(path, to);
        return run.folders[0];
    }
    AuditFolder read(const std::string& path) {
        AuditFolder folder;
        const Status status = audit_read(path, "", &folder);
        EXPECT_TRUE(status.ok()) << status.what;
        return folder;
    }
    AuditResult audit(const std::string& path, uint64_t first = 0, uint64_t last = 0, uint32_t lanes = 2, const std::string& from = "") {
        AuditResult result;
        const Status status = stretch(path, first, last, lanes, from, &result);
        EXPECT_TRUE(status.ok()) << status.what;
        return result;
    }
    Status stretch(const std::string& path, uint64_t first, uint64_t last, uint32_t lanes, const std::string& from, AuditResult* result) {
        const AuditConfig config{.first = first,
                                 .last = last,
                                 .from = from,
                                 .scratch = fmt::format("{}/scratch-{}", folder_, runs_++),
                                 .lanes = lanes,
                                 .progress = {}};
        return audit_stretch(read(path), config, result);
    }
    static void edit(const std::string& path, const std::function<void(std::string&)>& change) {
        std::string text;
        ASSERT_TRUE(file_read(path, &text).ok());
        change(text);
        ASSERT_TRUE(file_write(path, text).ok());
    }
    /// Another digest in the line of this step.
    static void flip(const std::string& folder, uint64_t step) {
        edit(folder + "/steps.jsonl", [&](std::string& text) {
            const size_t at = text.find("\"digest\":\"", text.find(fmt::format("{{\"step\":{},", step))) + 10;
            text[at] = text[at] == '0' ? '1' : '0';
        });
    }
    const std::string often_ = "checkpoint_every = 7\naudit_every = 1\n";
};

TEST_F(AuditTest, OneRankFindsWhatFourHaveComputed) {
    const std::string jobs[] = {
        job_text("[algorithm]\nexchange = \"coded-rs\"\nm = 2\ns = 1\n"),
        job_text_of_all("[algorithm]\nexchange = \"auto\"\nquantiser = \"auto16\"\n"),
        replaced(job_text("[algorithm]\nexchange = \"ps\"\nquantiser = \"fixed\"\n"), "[optimiser]\n",
                 "[optimiser]\nschedule = \"cosine\"\n"),
        replaced(job_text(), "epochs = 2", "epochs = 9\nstop_at = 0.9"),
    };
    for (const std::string& text : jobs) {
        const std::string path = gathered(with_job(text, often_));
        const uint64_t steps = read(path).lines.back().step;
        for (uint32_t place = 0; place < 4; ++place) {
            const auto random = random4(Purpose::test, 5, place, 0);
            const uint64_t first = 1 + random[0] % steps, last = first + random[1] % (steps - first + 1);
            SCOPED_TRACE(fmt::format("{}: steps {}..{}", text, first, last));
            const AuditResult result = audit(path, first, last, 1 + place);
            EXPECT_EQ(result.finding, "");
            EXPECT_EQ(result.compared, last - first + 1);
            EXPECT_EQ(result.from, (first - 1) / 7 * 7);
        }
        const AuditResult all = audit(path);
        EXPECT_EQ(all.finding, "");
        EXPECT_EQ(all.compared, steps);
        EXPECT_TRUE(all.notes.empty());
    }
}

TEST_F(AuditTest, TheFirstStepThatDiffersIsNamed) {
    const std::string path = gathered(with_job(job_text(), often_));
    flip(path, 26), flip(path, 30);
    EXPECT_PRED2(starts, audit(path).finding, "step 26 differs: computed ");
    EXPECT_PRED2(starts, audit(path, 27, 50).finding, "step 26 differs: computed ");   // on the way from step 21
    EXPECT_PRED2(starts, audit(path, 29, 50).finding, "step 30 differs: computed ");
    EXPECT_EQ(audit(path, 1, 25).compared, 25u);
    edit(path + "/steps.jsonl", [](std::string& text) { text[text.find("\"loss\":", text.find("{\"step\":5,")) + 7] = '9'; });
    EXPECT_PRED2(starts, audit(path).finding, "step 5 differs: computed a loss of ");
    flip(path, 14);   // that of a checkpoint
    EXPECT_PRED2(starts, audit(path, 15, 20).finding, checkpoint_path(path, 14) + ": holds the state ");
    EXPECT_PRED2(starts, audit(path, 8, 20).finding, checkpoint_path(path, 14) + ": holds the state ");
}

TEST_F(AuditTest, AForgedCheckpointIsNamed) {
    const std::string path = gathered(with_job(job_text(), often_)), forged = checkpoint_path(path, 21);
    Model model;
    ModelVectors state;
    ASSERT_TRUE(checkpoint_read(forged, &model, &state).ok());
    auto forge = [&](const std::function<void(Model&, ModelVectors&)>& change) {
        Model other = model;
        ModelVectors vectors = state;
        change(other, vectors);
        other.digest = sha256_hex(std::as_bytes(std::span(vectors.parameters)));
        std::filesystem::remove(forged);
        EXPECT_TRUE(model_write(forged, other, {vectors.parameters, vectors.optimiser, vectors.exponents, vectors.algorithm}).ok());
    };
    // Whole as a file, with the digest that the line has, but other parameters.
    forge([](Model&, ModelVectors& vectors) { vectors.parameters[7] += 1; });
    EXPECT_PRED2(starts, audit(path, 22, 30).finding, forged + ": the state after 21 steps has the digest ");
    EXPECT_EQ(audit(path, 29, 40).finding, "");   // from the next one
    forge([](Model& other, ModelVectors&) { other.state ^= 1; });
    EXPECT_PRED2(starts, audit(path, 22, 30).finding, forged + ": holds the state ");
    // Of another step: not taken.
    forge([](Model& other, ModelVectors&) { other.step = 20; });
    const AuditResult before = audit(path, 22, 30);
    EXPECT_EQ(before.finding, "");
    EXPECT_EQ(before.from, 14u);
    EXPECT_EQ(read(path).findings, std::vector{forged + ": holds step 20"});
    // Half of it: found, and the one before is taken.
    std::filesystem::resize_file(forged, std::filesystem::file_size(forged) / 2);
    const AuditResult half = audit(path, 22, 30);
    EXPECT_EQ(half.finding, "");
    EXPECT_EQ(half.from, 14u);
    ASSERT_EQ(read(path).findings.size(), 1u);
    EXPECT_PRED2(starts, read(path).findings[0], forged + ": ");
    // Another kernel set, or job, is refused as by resume.
    forge([](Model& other, ModelVectors&) { other.kernel_set = "0123"; });
    AuditResult result;
    EXPECT_PRED2(starts, std::string(stretch(path, 22, 30, 1, "", &result).what), forged + ": trained with other kernels: ");
    forge([](Model& other, ModelVectors&) { other.job = replaced(other.job, "lr = 0.05", "lr = 0.06"); });
    EXPECT_PRED2(starts, std::string(stretch(path, 22, 30, 1, "", &result).what),
                 forged + ": of another training: optimiser.lr was 0.06 and is 0.05 now; a new job can begin with its parameters: ");
    edit(path + "/steps.jsonl", [](std::string& text) { text[text.find("\"kernel_set\":\"") + 14] = 'x'; });
    EXPECT_PRED2(starts, std::string(stretch(path, 1, 5, 1, "", &result).what),
                 path + ": trained with other kernels: the kernel set was x");
}

TEST_F(AuditTest, ACheckpointMayBeNamed) {
    const std::string path = gathered(with_job(job_text(), often_)), from = folder_ + "/moved.h5";
    std::filesystem::rename(checkpoint_path(path, 28), from);
    const AuditResult result = audit(path, 0, 0, 1, from);
    EXPECT_EQ(result.finding, "");
    EXPECT_EQ(result.first, 29u);
    EXPECT_EQ(result.from, 28u);
    EXPECT_EQ(result.compared, 22u);
    AuditResult none;
    EXPECT_EQ(stretch(path, 28, 30, 1, from, &none).what, from + ": the state after step 28, from which step 28 does not follow");
    EXPECT_EQ(stretch(path, 40, 51, 1, "", &none).what,
              fmt::format("steps 40..51 are not a stretch of {}/steps.jsonl, whose last step is 50", path));
}

TEST_F(AuditTest, AFolderIsOnlyRead) {
    const std::string path = gathered(with_job(job_text(), often_));
    auto contents = [&] {
        std::map<std::string, std::string> all;
        for (const auto& entry : std::filesystem::directory_iterator(path)) EXPECT_TRUE(file_read(entry.path(), &all[entry.path()]).ok());
        return all;
    };
    const auto before = contents();
    ASSERT_EQ(::chmod(path.c_str(), 0500), 0);
    EXPECT_EQ(audit(path, 20, 30).compared, 11u);
    ASSERT_EQ(::chmod(path.c_str(), 0700), 0);
    EXPECT_EQ(contents(), before);   // where root may write anyway
}

TEST_F(AuditTest, LinesThatAreMissingAreToldAndOthersAreCompared) {
    const std::string path = gathered(with_job(job_text(), often_));
    std::string whole;
    ASSERT_TRUE(file_read(path + "/steps.jsonl", &whole).ok());
    // A node that came later, one that could not write for a while, and a last line that is torn.
    std::string some = whole;
    some.erase(some.find("{\"step\":33,"), some.find("{\"step\":36,") - some.find("{\"step\":33,"));
    some.erase(0, some.find("{\"step\":16,"));
    some.resize(some.size() - 20);
    ASSERT_TRUE(file_write(path + "/steps.jsonl", some).ok());
    const std::vector<std::string> notes = {"steps.jsonl has no lines of steps 1..15", "steps.jsonl has no lines of steps 33..35",
                                            "steps.jsonl ends with a part of a line, after step 49"};
    EXPECT_EQ(read(path).notes, notes);
    const AuditResult result = audit(path);
    EXPECT_EQ(result.finding, "");
    EXPECT_EQ(result.first, 16u);
    EXPECT_EQ(result.last, 49u);
    EXPECT_EQ(result.from, 14u);
    EXPECT_EQ(result.compared, 31u);
    EXPECT_EQ(result.notes, std::vector{checkpoint_path(path, 14) + ": steps.jsonl has no line of its step"});
    AuditResult none;
    EXPECT_EQ(stretch(path, 33, 34, 1, "", &none).what, path + "/steps.jsonl has no lines of steps 33..34");

    // What is no record of a step is refused with its line.
    AuditFolder folder;
    auto refused = [&](const std::string& text) -> std::string {
        EXPECT_TRUE(file_write(path + "/steps.jsonl", text).ok());
        return audit_read(path, "", &folder).what;
    };
    const std::string first = whole.substr(0, whole.find('\n') + 1), name = path + "/steps.jsonl: ";
    EXPECT_EQ(refused(first + first), name + "line 2 is of step 1, the one before of step 1");
    EXPECT_EQ(refused(""), name + "no step has been recorded");
    EXPECT_EQ(refused(first + std::string(200'000, 'x')), name + "line 2 is too long");
    for (const std::string& wrong : {std::string("{}"), std::string(), replaced(first, "\"digest\":\"", "\"digest\":\"0"),
                                     replaced(first, "{\"step\":1,", "{\"step\":-1,"), replaced(first, "\"loss\":", "\"loss\":1e"),
                                     replaced(first, "{\"step\":1,", "{\"step\":4294967296,"), replaced(first, "\"epoch\"", "\"epoc\""),
                                     first.substr(0, 30), std::string("\0\0", 2)})
        EXPECT_EQ(refused(wrong.ends_with('\n') ? wrong : wrong + "\n"), name + "line 1 is not the record of a step") << wrong;
    std::filesystem::remove(path + "/steps.jsonl");
    EXPECT_NE(std::string(audit_read(path, "", &folder).what).find("steps.jsonl"), std::string::npos);
}

TEST_F(AuditTest, ASampleIsChosenByItsSeedWithTheProbabilityThatItSays) {
    AuditFolder folder = read(gathered(with_job(job_text(), often_)));
    double missed = 0;
    std::map<uint64_t, uint32_t> chosen;
    constexpr uint32_t seeds = 4000;
    for (uint64_t seed = 0; seed < seeds; ++seed) {
        const std::vector<AuditStretch> some = audit_sample(folder, 0.3, seed, &missed);
        ASSERT_EQ(some.size(), 3u);   // of 1..7, 8..14, … 50..50
        for (const AuditStretch& each : some) {
            EXPECT_EQ(each.first % 7, 1u);
            EXPECT_EQ(each.last, std::min<uint64_t>(each.first + 6, 50));
            ++chosen[each.first];
        }
    }
    EXPECT_DOUBLE_EQ(missed, 1 - 3.0 / 8);
    ASSERT_EQ(chosen.size(), 8u);
    for (const auto& [first, times] : chosen) EXPECT_NEAR(times, seeds * 3 / 8.0, 5 * std::sqrt(seeds * 0.24)) << first;
    EXPECT_EQ(audit_sample(folder, 1, 9, &missed).size(), 8u);
    EXPECT_EQ(missed, 0);
    EXPECT_EQ(audit_sample(folder, 0.0001, 9, &missed).size(), 1u);
}

class TranscriptTest : public AuditTest {
protected:
    static Transcript transcript(const std::string& folder) {
        Transcript read;
        const Status status = transcript_read(folder + "/transcript.json", &read);
        EXPECT_TRUE(status.ok()) << status.what;
        return read;
    }
    /// What is found, with and without the key.
    std::vector<std::string> findings(const std::string& folder, const std::vector<ClusterKey>& keys = {}) {
        return audit_transcript(read(folder), transcript(folder), keys);
    }
};

TEST_F(TranscriptTest, EveryNodeWritesTheSameChain) {
    const Run run = this->run(job_text("[algorithm]\nexchange = \"auto\"\n"), 3);
    ASSERT_TRUE(run.status.ok()) << run.status.what;
    const Transcript first = transcript(run.folders[0]);
    EXPECT_EQ(first.digest, run.ranks[0].digest);
    EXPECT_EQ(first.steps, 50u);
    EXPECT_EQ(first.first, 1u);
    EXPECT_EQ(first.lines, 50u);
    EXPECT_EQ(first.job, job_text("[algorithm]\nexchange = \"auto\"\n"));
    EXPECT_EQ(first.views.front().members, (std::vector<std::string>{"node-a", "node-b", "node-c"}));
    EXPECT_EQ(first.views.front().first_step, 1u);
    EXPECT_EQ(first.views.size(), run.ranks[0].view);   // `auto` may have gone on in another one
    for (const std::string& folder : run.folders) {
        EXPECT_EQ(transcript_content(transcript(folder)), transcript_content(first));
        EXPECT_TRUE(findings(folder).empty());
    }
    // The form that the header documents.
    StepLines lines;
    ASSERT_TRUE(lines.open(run.folders[1] + "/steps.jsonl").ok());
    auto sha = [](const std::string& text) { return sha256_hex(std::as_bytes(std::span(text))); };
    std::string chain =
        sha(fmt::format("gradcast steps 1\n{}\n{}\n{}\n{}\n", first.id, first.kernel_set, first.data_digest, sha(first.job)));
    StepLine line;
    for (bool got = true; lines.next(&line, &got).ok() && got;)
        chain = sha(fmt::format("{} {} {} {:016x}\n", chain, line.step, line.loss, line.digest));
    EXPECT_EQ(chain, first.chain);
}

TEST_F(TranscriptTest, TheChainOfAResumedRunGoesOn) {
    const Run quiet = run(job_text(), 2);
    const Run broken = run(job_text(), 3, {}, [](Simulator& simulator) { simulator.kill(1, 6'000); });
    ASSERT_TRUE(quiet.status.ok() && !broken.status.ok());
    EXPECT_FALSE(std::filesystem::exists(broken.folders[0] + "/transcript.json"));
    const std::vector<CheckpointHere> all = checkpoints_in(broken.folders[0]);
    ASSERT_FALSE(all.empty());
    ASSERT_TRUE(file_write(broken.folders[0] + "/transcript.json", "of an earlier run").ok());
    const Run second = run(job_text(), 2, from(all.back().path), {}, {broken.folders[0]});
    ASSERT_TRUE(second.status.ok()) << second.status.what;
    EXPECT_EQ(transcript(second.folders[0]).chain, transcript(quiet.folders[0]).chain);
    // The other one has begun with the second run.
    const Transcript late = transcript(second.folders[1]);
    EXPECT_EQ(late.first, all.back().steps + 1);
    EXPECT_EQ(late.lines, 50 - all.back().steps);
    EXPECT_EQ(late.views.front().first_step, all.back().steps + 1);
    EXPECT_TRUE(findings(second.folders[1]).empty());
}

TEST_F(TranscriptTest, WhatWasEditedIsNamed) {
    const std::string path = gathered(job_text(), 1), file = path + "/transcript.json";
    ClusterKey key{.id = "first", .secret = {}}, other{.id = "other", .secret = {}};
    key.secret[0] = 7;
    ASSERT_TRUE(transcript_write(
                    path,
                    [&] {
                        Transcript mine = transcript(path);
                        mine.lines = 0;
                        return mine;
                    }(),
                    &key)
                    .ok());
    EXPECT_TRUE(findings(path).empty());
    EXPECT_TRUE(findings(path, {other, key}).empty());
    using Findings = std::vector<std::string>;
    EXPECT_EQ(findings(path, {other}), Findings{"transcript.json: its HMAC is of key first, which the key file does not have"});
    other.id = "first";
    const std::string unfit = "transcript.json: its HMAC under key first does not fit: it was edited, or another key has that name";
    EXPECT_EQ(findings(path, {other}), Findings{unfit});

    std::string lines, whole;
    ASSERT_TRUE(file_read(path + "/steps.jsonl", &lines).ok() && file_read(file, &whole).ok());
    flip(path, 31);
    EXPECT_EQ(findings(path),
              Findings{"transcript.json: its chain over steps 1..50 differs: a line of steps.jsonl or the transcript was edited"});
    EXPECT_EQ(findings(path, {key}), Findings{"transcript.json: its chain over steps 1..50 differs: a line of steps.jsonl was edited"});
    ASSERT_TRUE(file_write(path + "/steps.jsonl", lines.substr(0, lines.find("{\"step\":50,"))).ok());
    EXPECT_EQ(findings(path),
              Findings{"transcript.json: its chain is over 50 lines, steps 1..50; steps.jsonl has 49 of them, steps 1..49"});
    ASSERT_TRUE(file_write(path + "/steps.jsonl", lines).ok());

    auto edited = [&](const std::string& from, const std::string& to, const std::vector<ClusterKey>& keys = {}) {
        EXPECT_TRUE(file_write(file, replaced(whole, from, to)).ok());
        return findings(path, keys);
    };
    const Transcript good = transcript(path);
    EXPECT_PRED2(starts, edited(good.digest, std::string(64, '0')).at(0), "transcript.json: its digest is 00000000, that of final.h5 ");
    EXPECT_PRED2(starts, edited(good.data_digest, std::string(64, '0')).at(0), "transcript.json: its data digest is 00000000, ");
    EXPECT_EQ(edited("lr = 0.05", "lr = 0.06").at(0), "transcript.json: its job file is not job.toml");
    EXPECT_PRED2(starts, edited(good.chain, std::string(64, '0')).at(0), "transcript.json: its chain over ");
    // Who took part is known by the key alone.
    EXPECT_TRUE(edited("node-a", "node-b").empty());
    EXPECT_EQ(edited("node-a", "node-b", {key}), Findings{unfit});

    Transcript none;
    auto refused = [&](const std::string& text) -> std::string {
        EXPECT_TRUE(file_write(file, text).ok());
        return std::string(transcript_read(file, &none).what).substr(file.size());
    };
    EXPECT_EQ(refused(whole.substr(0, 100)), ": not a transcript: no JSON object");
    EXPECT_EQ(refused(replaced(whole, "\"version\": 1", "\"version\": 2")), ": written by a newer gradcast: version 2, this one reads 1");
    EXPECT_EQ(refused(replaced(whole, "\"steps\": 50", "\"steps\": -50")), ": not a transcript: steps is missing or wrong");
    EXPECT_EQ(refused(replaced(whole, "\"steps\": 50", "\"steps\": 50, \"more\": 1")), ": not a transcript: it has members of other names");
    EXPECT_EQ(refused(replaced(whole, "\"lines\"", "\"line\"")), ": not a transcript: chain: lines is missing or wrong");
    EXPECT_EQ(refused(replaced(whole, "\"node-a\"", "7")), ": not a transcript: views: members is missing or wrong");
    EXPECT_EQ(refused(std::string(100'000, '[')), ": not a transcript: no JSON object");
}

}   // namespace
}   // namespace gradcast
