// Whole jobs whose net processes compute: one digest whatever the ranks, the exchange, a failure and a resume.
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <tuple>

#include "runtime/attach/attach.h"
#include "runtime/core/digest.h"
#include "runtime/job/audit/audit.h"
#include "runtime/job/model/constants.h"
#include "runtime/job/model/safetensors.h"
#include "tests/attach/child.h"
#include "tests/job/runs.h"

namespace gradcast {
namespace {

class AttachedJob : public RunsTest {
protected:
    /// An error of a job that nobody can be missed in, because not all have begun.
    static bool has_not_begun(const std::string& error) {
        return error.find(" lost in step 1: ") != error.npos || error.find(" has not started within ") != error.npos;
    }
    void audited(const std::string& mode);
    static std::string job(const std::string& mode = "good", const std::string& more = "") {
        return "[job]\nsteps = 12\nbatch = 24\nblocks = 5\ndeadline = \"20s\"\nevaluate = 6\n[data]\ntrain = \"train.h5\"\ntest = "
               "\"test.h5\"\n[net]\n" +
               child_toml(mode) + "[optimiser]\nlr = 0.05\nmomentum = 0.9\n" + more;
    }
};

TEST_F(AttachedJob, LearnsAndGivesOneDigest) {
    JobStatus alone;
    ASSERT_TRUE(run_one(job(), 1, &alone).ok());
    EXPECT_EQ(alone.state, JobState::done);
    EXPECT_GT(alone.accuracy, 0.8);
    JobStatus lanes;
    ASSERT_TRUE(run_one(job(), 3, &lanes).ok());
    EXPECT_EQ(lanes.digest, alone.digest);
    EXPECT_EQ(lanes.kernel_set, alone.kernel_set);
    for (const uint32_t n : {1u, 2u, 4u}) {
        const Run ring = run(job(), n);
        EXPECT_EQ(ring.digest(), alone.digest) << n;
        for (const JobStatus& each : ring.ranks) EXPECT_EQ(each.accuracy, alone.accuracy);
    }
    EXPECT_EQ(run(job("good", "[algorithm]\nexchange = \"coded-rs\"\nm = 2\n"), 4).digest(), alone.digest);
    EXPECT_EQ(run(job("good", "[algorithm]\nexchange = \"coded-rs\"\nm = 1\ns = 1\n"), 4).digest(), alone.digest);
}

// Each process has initial values of its own: all ranks begin with those of the first.
TEST_F(AttachedJob, InitialValuesAreThoseOfTheFirstRank) {
    const Run several = run(job("unseeded"), 3);
    ASSERT_TRUE(several.status.ok()) << several.status.what;
    EXPECT_EQ(several.digest().size(), 64u);
    // They are kept, and give the same model.
    const std::string start = several.folders[0] + "/" + start_file;
    const Run again = run(replaced(job("unseeded"), "[net]\n", fmt::format("[net]\nstart = \"{}\"\n", start)), 2);
    EXPECT_EQ(again.digest(), several.digest());
    const auto first = digests(several.folders[0]), second = digests(again.folders[1]);
    EXPECT_EQ(first, second);
}

TEST_F(AttachedJob, GoesOnFromACheckpoint) {
    const Run whole = run(with_job(job("unseeded"), "checkpoint_every = 4\ncheckpoint_keep = 10\n"), 2);
    ASSERT_TRUE(whole.status.ok()) << whole.status.what;
    const auto all = checkpoints(whole);
    ASSERT_TRUE(all.contains(4));
    for (const uint32_t n : {1u, 3u}) EXPECT_EQ(run(job("unseeded"), n, from(all.at(4), n - 1)).digest(), whole.digest());
    // Another program is another training.
    const Run other = run(job("good"), 1, from(all.at(4)));
    EXPECT_NE(std::string_view(other.status.what).find("net.command was"), std::string_view::npos) << other.status.what;
}

// The first parameters come from a file, which has variances.
TEST_F(AttachedJob, IsAudited) { audited("unseeded"); }
TEST_F(AttachedJob, RunningStatisticsAreAudited) { audited("running"); }

void AttachedJob::audited(const std::string& mode) {
    const Run trained = run(with_job(job(mode), "checkpoint_every = 5\n"), 2);
    ASSERT_TRUE(trained.status.ok()) << trained.status.what;
    AuditFolder folder;
    ASSERT_TRUE(audit_read(trained.folders[0], folder_, &folder).ok());
    for (const auto& [first, last] : {std::pair{1u, 12u}, {7u, 9u}}) {
        AuditResult result;
        AuditConfig audit;
        audit.first = first;
        audit.last = last;
        audit.scratch = fmt::format("{}/scratch{}", folder_, first);
        audit.commands = true;
        const Status status = audit_stretch(folder, audit, &result);
        ASSERT_TRUE(status.ok()) << status.what;
        EXPECT_EQ(result.finding, "");
        EXPECT_EQ(result.compared, last - first + 1);
    }
}

// `memory` of a node decides how many lanes it has, and nothing else.
TEST_F(AttachedJob, LanesFollowTheMemory) {
    const auto open = [&](uint32_t lanes, MemoryBudget* budget, std::unique_ptr<Engine>* engine) {
        EngineConfig c = config(job());
        c.lanes = lanes;
        c.budget = budget;
        return Engine::open(c, Log(), engine);
    };
    const auto planned = [&](uint32_t lanes) {
        std::unique_ptr<Engine> engine;
        const Status status = open(lanes, nullptr, &engine);
        EXPECT_TRUE(status.ok()) << status.what;
        uint64_t bytes = 0;
        for (const MemoryUse& each : engine->status().memory) bytes += each.total();
        EXPECT_TRUE(engine->status().warnings.empty());
        return bytes;
    };
    const uint64_t one = planned(1), lane = (planned(3) - one) / 2;
    ASSERT_GT(lane, process_growth_min);
    MemoryBudget two(one + lane * 3 / 2, "`memory` in gradcastd.toml");
    std::unique_ptr<Engine> engine;
    Status status = open(4, &two, &engine);
    ASSERT_TRUE(status.ok()) << status.what;
    const std::vector<std::string> warnings = engine->status().warnings;
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_EQ(warnings[0].find("this node has 2 of 4 lanes: with 4 the job would take "), 0u) << warnings[0];
    EXPECT_NE(warnings[0].find(fmt::format(" and {:.1f} MiB are available (`memory` in gradcastd.toml); a lane takes ",
                                           static_cast<double>(one + lane * 3 / 2) / 0x1p20)),
              std::string::npos)
        << warnings[0];
    OneRank host;
    status = engine->run(host);
    ASSERT_TRUE(status.ok()) << status.what;
    JobStatus alone;
    ASSERT_TRUE(run_one(job(), 1, &alone).ok());
    EXPECT_EQ(engine->status().digest, alone.digest);
    EXPECT_LT(two.remaining(), lane * 3 / 4);   // what is planned is taken
    engine.reset();
    EXPECT_EQ(two.remaining(), one + lane * 3 / 2);

    MemoryBudget none(one - lane / 4, "`memory` in gradcastd.toml");
    status = open(4, &none, &engine);
    EXPECT_EQ(status.code, Code::node_memory);
    const std::string refused = status.what;
    EXPECT_EQ(refused.find("the job needs "), 0u) << refused;
    EXPECT_NE(refused.find(" MiB here with one lane (programs "), refused.npos) << refused;
    EXPECT_NE(refused.find(" MiB are available (`memory` in gradcastd.toml); more memory, a smaller batch (job.batch) or smaller blocks of "
                           "it (more job.blocks) make it fit"),
              refused.npos)
        << refused;
    EXPECT_EQ(none.remaining(), one - lane / 4);
}

TEST_F(AttachedJob, AProcessThatGrowsEndsTheJob) {
    MemoryBudget budget(256 << 20, "`memory` in gradcastd.toml");
    EngineConfig c = config(job("grows"));
    c.budget = &budget;
    std::unique_ptr<Engine> engine;
    ASSERT_TRUE(Engine::open(c, Log(), &engine).ok());
    OneRank host;
    const Status result = engine->run(host);
    EXPECT_EQ(engine->status().state, JobState::failed);
    EXPECT_NE(std::string_view(result.what).find("it took more memory, with its children, than the "), std::string_view::npos)
        << result.what;
}

TEST_F(AttachedJob, GoesOnWithoutARank) {
    const std::string survives = with_job(job("good"), "survive = true\n");
    const std::string quiet = run(job("good"), 1).digest();
    const Run lost = run(survives, {.ranks = 3}, {.meddle = [](Simulator& simulator) { simulator.kill(2, 3000); }});
    ASSERT_TRUE(lost.status.ok()) << lost.status.what;
    EXPECT_EQ(lost.ranks[0].digest, quiet);
    EXPECT_EQ(lost.ranks[1].digest, quiet);
}

// Each rank's process has initial values of its own.  While those of rank 0 are on their way, a rank is lost: at each of many times.
TEST_F(AttachedJob, GoesOnWithoutARankThatIsLostWhileInitialValuesAreSent) {
    const auto begins_with = [&](uint32_t seed) {
        JobStatus status;
        const Status result = run_one(job(fmt::format("seed {}", seed)), 1, &status);
        EXPECT_TRUE(result.ok()) << result.what;
        return status.digest;
    };
    const std::string first = begins_with(7), second = begins_with(8);
    ASSERT_NE(first, second);
    uint32_t runs = 0;
    std::set<std::string> kept;
    const auto without = [&](Rank dead, uint64_t at_us) {
        const std::string folder = fmt::format("{}/seeds-{}-", folder_, runs++);
        // Slow links: initial values take some milliseconds.
        SimConfig slow{.ranks = 3};
        slow.rate_bytes_per_s = 1e6;
        const Run lost = run(with_job(job("seeds " + folder), "survive = true\n"), slow,
                             {.meddle = [&](Simulator& simulator) { simulator.kill(dead, at_us); }});
        std::string digest;
        for (Rank rank = 0; rank < 3; ++rank) {
            if (rank == dead) continue;
            const JobStatus& each = lost.ranks[rank];
            if (each.state != JobState::done) return "failed: " + each.error;
            EXPECT_TRUE(digest.empty() || digest == each.digest) << dead << " at " << at_us;
            digest = each.digest;
            if (kept.contains(digest)) continue;
            // What the job began with is kept, so that it can be verified.
            const Run again =
                run(replaced(job("seed 99"), "[net]\n", fmt::format("[net]\nstart = \"{}/{}\"\n", lost.folders[rank], start_file)), 1);
            EXPECT_EQ(again.digest(), digest);
            kept.insert(digest);
        }
        return digest;
    };
    std::map<std::string, uint32_t> of_first, of_last;
    for (uint64_t at_us = 200; at_us <= 6'000; at_us += 700) ++of_first[without(0, at_us)];
    for (uint64_t at_us = 200; at_us <= 6'000; at_us += 1400) ++of_last[without(2, at_us)];
    EXPECT_GT(of_first[first], 0u);    // somebody had them
    EXPECT_GT(of_first[second], 0u);   // nobody had: those of the lowest rank that is left
    EXPECT_GT(of_last[first], 0u);
    EXPECT_EQ(of_last[second], 0u);
    for (auto* all : {&of_first, &of_last})
        for (const auto& [digest, count] : *all) EXPECT_TRUE(digest == first || digest == second || has_not_begun(digest)) << digest;
}

TEST_F(AttachedJob, GoesOnWithoutANodeWhoseProcessHasEnded) {
    const std::string quiet = run(job("good"), 1).digest();
    const std::string dies = job("one dies " + folder_ + "/died");
    const Run lost = run(with_job(replaced(dies, "deadline = \"20s\"", "deadline = \"5s\""), "survive = true\n"), 3);
    uint32_t done = 0;
    for (const JobStatus& each : lost.ranks) {
        if (each.state == JobState::done) {
            ++done;
            EXPECT_EQ(each.digest, quiet);
            continue;
        }
        EXPECT_NE(each.error.find("was ended by signal 9 (SIGKILL); the job goes on without this node"), std::string::npos) << each.error;
    }
    EXPECT_EQ(done, 2u);
    // Without survive it ends everywhere.
    std::filesystem::remove(folder_ + "/died");
    const Run all = run(dies, 3);
    for (const JobStatus& each : all.ranks) EXPECT_NE(each.error.find("SIGKILL"), std::string::npos) << each.error;
}

TEST_F(AttachedJob, WorkersThatLearnAloneUseTheProcesses) {
    for (const char* kind : {"ma", "admm", "diloco"}) {
        const std::string local = job("unseeded", fmt::format("[algorithm]\nkind = \"{}\"\nworkers = 3\nlocal_epochs = 0.2\n", kind));
        const Run several = run(local, 2);
        ASSERT_TRUE(several.status.ok()) << kind << ": " << several.status.what;
        const Run alone = run(replaced(local, "[net]\n", fmt::format("[net]\nstart = \"{}/{}\"\n", several.folders[1], start_file)), 1);
        EXPECT_EQ(several.digest(), alone.digest()) << kind;
    }
}

TEST_F(AttachedJob, BlocksMayBeLargerThanABatchOfAnEvaluation) {
    JobStatus status;
    const Status result = run_one(replaced(job(), "batch = 24\nblocks = 5", "batch = 150\nblocks = 1"), 1, &status);
    EXPECT_TRUE(result.ok()) << result.what;
}

TEST_F(AttachedJob, AProgramMayHaveTheSamples) {
    const auto own = [&](const std::string& mode) {
        return replaced(job(mode), "train = \"train.h5\"\ntest = \"test.h5\"\n", "samples = 480\ntest_samples = 100\n");
    };
    JobStatus alone, said;
    const Status status = run_one(own("good"), 1, &alone);
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_GT(alone.accuracy, 0.8);
    ASSERT_EQ(alone.warnings.size(), 1u);
    EXPECT_NE(alone.warnings[0].find("is not compared"), std::string::npos) << alone.warnings[0];
    EXPECT_EQ(run(own("good"), 3).digest(), alone.digest);
    ASSERT_TRUE(run_one(own("data digest"), 2, &said).ok());
    EXPECT_EQ(said.digest, alone.digest);
    EXPECT_TRUE(said.warnings.empty());
}

// A model has all names of the program's state.  What is not trained lies beside it in the job's folder.
TEST_F(AttachedJob, ConstantsAreExported) {
    const std::string number = folder_ + "/number", out = folder_ + "/out.safetensors";
    ASSERT_TRUE(file_write(number, "0.5").ok());
    const std::string text = with_job(job("constants " + number), "checkpoint_every = 4\n");
    const Run trained = run(text, 2);
    ASSERT_TRUE(trained.status.ok()) << trained.status.what;
    Model model;
    std::vector<float> parameters;
    ASSERT_TRUE(model_read(trained.folders[0] + "/final.h5", &model, &parameters).ok());
    for (const std::string& folder : trained.folders) {   // any node has them
        const Status written = safetensors_write(out, model, parameters, folder);
        ASSERT_TRUE(written.ok()) << written.what;
    }
    std::string whole;
    ASSERT_TRUE(file_read(out, &whole).ok());
    uint64_t length = 0;
    std::memcpy(&length, whole.data(), sizeof length);
    const std::string header = whole.substr(sizeof length, length), data = whole.substr(sizeof length + length);
    const nlohmann::json root = nlohmann::json::parse(header);
    std::set<std::string> names;
    for (const auto& [name, value] : root.items()) names.insert(name);
    EXPECT_EQ(names, (std::set<std::string>{"__metadata__", "w", "tied.w", "b", "n.running_mean", "n.running_var", "n.num_batches_tracked",
                                            "m.running_mean", "m.running_var", "m.num_batches_tracked", "mask", "mask2", "none", "flags"}));
    const auto bytes = [&](const char* name) {
        const uint64_t begin = root[name]["data_offsets"][0], end = root[name]["data_offsets"][1];
        return data.substr(begin, end - begin);
    };
    EXPECT_EQ(bytes("w"), bytes("tied.w"));
    EXPECT_EQ(bytes("n.running_var"), bytes("m.running_var"));
    EXPECT_EQ(bytes("n.num_batches_tracked"), std::string("\x0c\0\0\0\0\0\0\0", 8));   // steps
    const float mask[] = {1, 2, 3, 0.5f};
    EXPECT_EQ(bytes("mask"), std::string(reinterpret_cast<const char*>(mask), sizeof mask));
    EXPECT_EQ(bytes("mask2"), bytes("mask"));
    EXPECT_EQ(bytes("flags"), "yes");
    EXPECT_EQ(root["none"]["shape"], (std::vector<uint64_t>{0, 7}));
    EXPECT_EQ(root["none"]["data_offsets"][0].get<uint64_t>() % 8, 0u);

    // It is what a job of the same program can begin from.
    const auto from_file = [&](const std::string& program) {
        return run(replaced(job(program), "[net]\n", fmt::format("[net]\nstart = \"{}\"\n", out)), 1);
    };
    Run again = from_file("constants " + number);
    EXPECT_TRUE(again.status.ok()) << again.status.what;
    again = from_file("constants");
    EXPECT_NE(std::string_view(again.status.what).find("tensor mask: it is not trained, and the program has other values"),
              std::string_view::npos)
        << again.status.what;
    std::string forged = whole;
    const uint64_t tied = root["tied.w"]["data_offsets"][0];
    forged[sizeof length + length + tied] ^= 1;
    ASSERT_TRUE(file_write(out, forged).ok());
    again = from_file("constants " + number);
    EXPECT_NE(std::string_view(again.status.what).find("tensors w and tied.w differ, and are one in the net"), std::string_view::npos)
        << again.status.what;

    // An altered one is found, and so is a missing file.
    const std::string file = trained.folders[1] + "/" + constants_file;
    std::string kept;
    ASSERT_TRUE(file_read(file, &kept).ok());
    kept[kept.size() - 4] ^= 1;   // the last byte of mask
    ASSERT_TRUE(file_write(file, kept).ok());
    const std::string altered = safetensors_write(out, model, parameters, trained.folders[1]).what;
    EXPECT_NE(altered.find("tensor mask is not that of the model: its SHA-256 differs"), altered.npos) << altered;
    ASSERT_TRUE(file_write(file, kept + "x").ok());
    const std::string longer = safetensors_write(out, model, parameters, trained.folders[1]).what;
    EXPECT_NE(longer.find("it has not the frozen parameters and buffers of this model"), longer.npos) << longer;
    std::filesystem::remove(file);
    const std::string missing = safetensors_write(out, model, parameters, trained.folders[1]).what;
    EXPECT_NE(missing.find("the model has frozen parameters or buffers, which lie beside it in the job's folder: "), missing.npos)
        << missing;

    // A job goes on with the same ones alone.
    const auto all = checkpoints(trained);
    ASSERT_TRUE(all.contains(8));
    const Run on = run(text, 3, from(all.at(8), 1));
    EXPECT_EQ(on.digest(), trained.digest());
    EXPECT_TRUE(std::filesystem::exists(on.folders[2] + "/" + constants_file));
    ASSERT_TRUE(file_write(number, "0.25").ok());
    const Run other = run(text, 1, from(all.at(8)));
    EXPECT_NE(std::string_view(other.status.what).find("trained with other values or another shape of mask"), std::string_view::npos)
        << other.status.what;
}

// An audit starts the program that was trained, whatever has become of it.
TEST_F(AttachedJob, SourcesAreKeptForAudits) {
    ASSERT_TRUE(make_directories(folder_ + "/lib").ok());
    const std::vector<std::string> sources = {"model.txt", folder_ + "/lib/deep.txt"};
    ASSERT_TRUE(file_write(folder_ + "/model.txt", "0.5").ok());
    ASSERT_TRUE(file_write(sources[1], "0.75", 0755).ok());
    const std::string text = replaced(with_job(job(), "checkpoint_every = 5\n"), child_toml(), child_toml("good", sources));
    const Run trained = run(text, 2);
    ASSERT_TRUE(trained.status.ok()) << trained.status.what;
    const std::string kept = trained.folders[1];
    EXPECT_TRUE(std::filesystem::exists(kept + "/" + sources_file));
    EXPECT_EQ(std::filesystem::status(kept + "/sources/lib/deep.txt").permissions(), std::filesystem::perms(0755));
    std::string copy;
    ASSERT_TRUE(file_read(kept + "/sources/model.txt", &copy).ok());
    EXPECT_EQ(copy, "0.5");

    int audits = 0;
    AuditResult result;
    const auto audit = [&](bool commands = true) -> Status {
        AuditFolder folder;
        GC_TRY(audit_read(kept, folder_, &folder));
        AuditConfig config;
        config.commands = commands;
        config.scratch = fmt::format("{}/scratch{}", folder_, ++audits);
        return audit_stretch(folder, config, &result);
    };
    Status status = audit();
    ASSERT_TRUE(status.ok()) << status.what;
    EXPECT_EQ(result.compared, 12u);
    EXPECT_TRUE(result.notes.empty());
    // The file is another one by now, and then it is gone.
    ASSERT_TRUE(file_write(folder_ + "/model.txt", "7").ok());
    EXPECT_TRUE(audit().ok());
    EXPECT_EQ(result.compared, 12u);
    EXPECT_EQ(result.finding, "");
    std::filesystem::remove(folder_ + "/model.txt");
    EXPECT_TRUE(audit().ok());
    EXPECT_EQ(result.compared, 12u);
    // The copies are named before they are started.
    const std::string refused = audit(false).what;
    EXPECT_NE(refused.find("SHA-256 of \"" + kept + "/sources/model.txt\": " + sha256_hex(std::as_bytes(std::span(copy)))), refused.npos)
        << refused;
    EXPECT_NE(refused.find("with 2 copies of its sources in"), refused.npos) << refused;

    // What was altered is not started.
    ASSERT_TRUE(file_write(kept + "/sources/model.txt", "0.25").ok());
    std::string error = audit().what;
    EXPECT_NE(error.find("/sources/model.txt: the copy was altered: its SHA-256 is not that of sources.json"), error.npos) << error;
    std::filesystem::remove(kept + "/sources/model.txt");
    error = audit().what;
    EXPECT_NE(error.find("/sources/model.txt"), error.npos) << error;
    ASSERT_TRUE(file_write(kept + "/sources/model.txt", "0.5").ok());
    std::string json;
    ASSERT_TRUE(file_read(kept + "/" + sources_file, &json).ok());
    for (const auto& [was, is, says] : {std::tuple{"\"model.txt\"", "\"../model.txt\"", "../model.txt is no path below sources/"},
                                        {"\"model.txt\"", "\"/etc/passwd\"", "/etc/passwd is no path below sources/"},
                                        {"\"lib/deep.txt\"", "\"model.txt\"", "comes twice"},
                                        {"gradcast sources", "other sources", "it is no list of sources"}}) {
        ASSERT_TRUE(file_write(kept + "/" + sources_file, replaced(json, was, is)).ok());
        error = audit().what;
        EXPECT_NE(error.find(says), error.npos) << error;
        EXPECT_NE(error.find(kept + "/" + sources_file), error.npos) << error;
    }
    // Without copies the program is started as it is: it computes other bits, which is found.
    std::filesystem::remove(kept + "/" + sources_file);
    ASSERT_TRUE(file_write(folder_ + "/model.txt", "7").ok());
    status = audit();
    EXPECT_NE(std::string_view(status.what).find("trained with other kernels"), std::string_view::npos) << status.what;
    ASSERT_EQ(result.notes.size(), 1u);
    EXPECT_NE(result.notes[0].find("no copies of the program's sources"), std::string::npos);
}

// A program that finds its files otherwise than by the words of its command.
TEST_F(AttachedJob, OtherSourcesThanTheCopiesAreRefused) {
    ASSERT_TRUE(file_write(folder_ + "/model.txt", "0.5").ok());
    const Run trained = run(replaced(job(), child_toml(), child_toml("good", {"model.txt"})), 1);
    ASSERT_TRUE(trained.status.ok()) << trained.status.what;
    const std::string path = trained.folders[0] + "/" + sources_file;
    std::string json;
    ASSERT_TRUE(file_read(path, &json).ok());
    nlohmann::json root = nlohmann::json::parse(json);
    for (auto& word : root["words"]) word = "";
    ASSERT_TRUE(file_write(path, root.dump()).ok());
    ASSERT_TRUE(file_write(folder_ + "/model.txt", "7").ok());
    AuditFolder folder;
    ASSERT_TRUE(audit_read(trained.folders[0], folder_, &folder).ok());
    AuditConfig config;
    config.commands = true;
    config.scratch = folder_ + "/scratch";
    AuditResult result;
    const std::string error = audit_stretch(folder, config, &result).what;
    EXPECT_NE(error.find("the program has loaded other files than the copies of its sources: model.txt is not among the sources"),
              error.npos)
        << error;
}

TEST_F(AttachedJob, SourcesThatCannotBeKeptEndNoJob) {
    ASSERT_TRUE(file_write(folder_ + "/model.txt", "0.5" + std::string(65 << 20, ' ')).ok());
    JobStatus status;
    const Status trained = run_one(replaced(job(), child_toml(), child_toml("good", {"model.txt"})), 1, &status);
    ASSERT_TRUE(trained.ok()) << trained.what;
    // file_read() of the child takes no more than 64 MiB, so that it has no modules.
    EXPECT_TRUE(status.warnings.empty());
    std::vector<std::string> many;
    for (int i = 0; i < 5; ++i) {
        many.push_back(fmt::format("m{}.txt", i));
        ASSERT_TRUE(file_write(folder_ + "/" + many.back(), "1" + std::string(15 << 20, ' ')).ok());
    }
    ASSERT_TRUE(run_one(replaced(job(), child_toml(), child_toml("good", many)), 1, &status).ok());
    ASSERT_EQ(status.warnings.size(), 1u);
    EXPECT_EQ(status.warnings[0], "no copies of the program's sources are kept: the sources have more than 67108864 bytes");
}

TEST_F(AttachedJob, ConstantsMustBeThoseOfTheirDigests) {
    const Run lies = run(job("constants lie"), 1);
    EXPECT_NE(std::string_view(lies.status.what).find("sent what it may not: constant flags: its bytes are not those of its SHA-256"),
              std::string_view::npos)
        << lies.status.what;
    for (const std::string& name : folder_names(lies.folders[0])) EXPECT_FALSE(name.starts_with("constants")) << name;
}

// Names of tensors, constants and aliases are those of an audit, too.
TEST_F(AttachedJob, ConstantsAreAudited) { audited("constants"); }

TEST_F(AttachedJob, WithoutClassesThereIsNoAccuracy) {
    JobStatus status;
    ASSERT_TRUE(run_one(job("no classes"), 1, &status).ok());
    EXPECT_LT(status.accuracy, 0);
    EXPECT_GT(status.test_loss, 0);
    const Status stops = run_one(with_job(job("no classes"), "stop_at = 0.5\n"), 1, &status);
    EXPECT_NE(std::string_view(stops.what).find("job.stop_at is an accuracy"), std::string_view::npos) << stops.what;
}

TEST_F(AttachedJob, ANaNEndsTheJob) {
    for (const char* mode : {"nan", "nan gradient"}) {
        const Run failed = run(job(mode), 2);
        EXPECT_EQ(failed.status.code, Code::diverged) << mode << ": " << failed.status.what;
    }
}

TEST_F(AttachedJob, AProgramIsStartedOnlyWhereThatIsAllowed) {
    EngineConfig c = config(job());
    c.commands = false;
    std::unique_ptr<Engine> engine;
    const Status status = Engine::open(c, Log(), &engine);
    EXPECT_EQ(status.code, Code::invalid);
    EXPECT_NE(std::string_view(status.what).find("commands = true"), std::string_view::npos) << status.what;
}

}   // namespace
}   // namespace gradcast
