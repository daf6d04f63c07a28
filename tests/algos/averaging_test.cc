// Algorithms that average what workers have learnt alone.
#include "tests/algos/runs.h"
#include "tests/job/runs.h"

namespace gradcast {
namespace {

struct AveragingTest : AlgosTest {};
const std::string eight = "workers = 8\nlocal_steps = 4\n";

TEST_F(AveragingTest, MaHasOneDigest) { one_digest("ma", eight, true); }

TEST_F(AveragingTest, DilocoHasOneDigest) { one_digest("diloco", eight + "outer_lr = 0.5\nouter_momentum = 0.8\n", true); }
TEST_F(AveragingTest, GdHasOneDigest) { one_digest("gd", "workers = 8\n", true); }
TEST_F(AveragingTest, OneShotHasOneDigest) { one_digest("oneshot", "workers = 8\nfraction = 0.3\n", true); }
TEST_F(AveragingTest, DaneHasOneDigest) { one_digest("dane", eight + "mu = 0.5\neta = 0.9\nanchor_fraction = 0.4\n", true); }
TEST_F(AveragingTest, FedProxHasOneDigest) { one_digest("fedprox", eight, true); }
TEST_F(AveragingTest, AdmmHasOneDigest) { one_digest("admm", eight + "rho = 0.3\n", true); }

TEST_F(AveragingTest, MaWithBatchNormDropoutAndDigitsHasOneDigest) {
    const std::string all = replaced(job_text_of_all("[algorithm]\nkind = \"ma\"\nworkers = 4\nlocal_steps = 3\nquantiser = \"auto16\"\n"),
                                     "epochs = 2\n", "steps = 3\n");
    const std::string wanted = run(all, 1).digest();
    ASSERT_EQ(wanted.size(), 64u) << wanted;
    for (const uint32_t n : {2u, 4u}) EXPECT_EQ(run(all, n).digest(), wanted) << n;
}

TEST_F(AveragingTest, TheWorkersAreNumbersInTheJobFileOrTheNodes) {
    const std::string two = "workers = 2\nlocal_steps = 4\n", none = "local_steps = 4\n";
    EXPECT_EQ(run(text("ma", none), 2).digest(), run(text("ma", two), 1).digest());
    EXPECT_EQ(run(text("ma", none + "workers = 0\n"), 2).digest(), run(text("ma", two), 1).digest());
    EXPECT_NE(run(text("ma", none), 3).digest(), run(text("ma", two), 1).digest());
    EXPECT_EQ(run(text("ma", two), 4).digest(), run(text("ma", two), 1).digest());   // two of them have none
    EXPECT_EQ(run(text("ma", "workers = 601\n"), 1).digest(),
              fmt::format("algorithm.workers: 601 workers are more than the 600 samples of {}/train.h5", folder_));
}

TEST_F(AveragingTest, LanesChangeNothing) {
    JobStatus one, three;
    ASSERT_TRUE(run_one(text("ma", eight), 1, &one).ok());
    ASSERT_TRUE(run_one(text("ma", eight), 3, &three).ok());
    EXPECT_EQ(one.digest, three.digest);
    EXPECT_EQ(one.digest, run(text("ma", eight), 2).digest());
}

TEST_F(AveragingTest, EpochsOfWorkersAreEpochs) {
    const std::string epochs = job_text("[algorithm]\nkind = \"ma\"\nworkers = 5\n");   // one pass a round
    const Run two = run(epochs, 2);
    ASSERT_TRUE(two.status.ok()) << two.status.what;
    EXPECT_EQ(two.ranks[0].steps, 2u);
    EXPECT_EQ(two.ranks[0].epochs, 2u);
    EXPECT_GT(two.ranks[0].accuracy, 0.5);
    const Run more = run(replaced(epochs, "epochs = 2", "epochs = 8"), 2);
    EXPECT_GT(more.ranks[0].accuracy, 0.9);
    EXPECT_LT(loss(more), loss(two));
}

// One worker with one step a round is SGD alone: its momentum begins at zero each time.
TEST_F(AveragingTest, OneWorkerIsTheLocalOptimiser) {
    const std::string once = "workers = 1\nlocal_steps = 12\n", often = "workers = 1\nlocal_steps = 1\n";
    const auto plain = [&](const std::string& more, const char* rounds) {
        return run(replaced(replaced(text("ma", more), "steps = 2\n", rounds), "momentum = 0.9\n", ""), 1);
    };
    const Run a = plain(once, "steps = 1\n"), b = plain(often, "steps = 12\n");
    ASSERT_TRUE(a.status.ok() && b.status.ok()) << a.status.what << b.status.what;
    EXPECT_NEAR(loss(a), loss(b), 1e-6 * loss(a));   // differences are rounded once a round
}

TEST_F(AveragingTest, ADivergedWorkerEndsTheJobByName) {
    for (const auto& [exchange, options] : {std::pair{"ring", ""}, {"coded-rs", "s = 1\n"}}) {
        const Run run = this->run(replaced(text("ma", eight + options, exchange), "lr = 0.05", "lr = 1e30"), 3);
        EXPECT_EQ(run.status.code, Code::diverged);
        const std::string what(run.status.what);
        EXPECT_NE(what.find("round 1: the loss or layer "), what.npos) << what;
        EXPECT_TRUE(what.ends_with(" is NaN or Inf: lower the learning rate, or look at the data")) << what;
    }
}

TEST_F(AveragingTest, MaGoesOnFromACheckpoint) {
    const std::string six =
        replaced(with_job(text("ma", eight), "checkpoint_every = 2\ncheckpoint_keep = 9\n"), "steps = 2\n", "steps = 6\n");
    const Run whole = run(six, 3);
    ASSERT_EQ(whole.digest().size(), 64u) << whole.digest();
    std::map<uint64_t, std::string> all;
    for (const std::string& folder : whole.folders)
        for (const auto& [steps, path] : checkpoints_in(folder)) all[steps] = path;
    ASSERT_EQ(all.size(), 2u);
    for (const auto& [steps, path] : all) EXPECT_EQ(run(six, {.ranks = 2}, false, {}, from(path)).digest(), whole.digest()) << steps;
    // Without a number in the job file the nodes are the workers.
    const std::string four = replaced(six, "workers = 8", "workers = 4");
    EXPECT_EQ(
        run(four, {.ranks = 2}, false, {}, from(all[2])).digest(),
        all[2] +
            ": of another training: algorithm.workers was 8 and is 4 now; a new job can begin with its parameters: gradcastctl export " +
            all[2] + " NAME.safetensors, and net.start = \"NAME.safetensors\"");
    const std::string nodes = replaced(six, "workers = 8\n", "");
    const Run three = run(nodes, 3);
    all.clear();
    for (const std::string& folder : three.folders)
        for (const auto& [steps, path] : checkpoints_in(folder)) all[steps] = path;
    EXPECT_EQ(run(nodes, {.ranks = 3}, false, {}, from(all[2])).digest(), three.digest());
    EXPECT_EQ(run(nodes, {.ranks = 2}, false, {}, from(all[2])).digest(),
              all[2] + ": trained by 3 workers, and 2 are to go on: set algorithm.workers = 3");
}

// Their workers' states come to the node that writes, and from it to the nodes that go on.
TEST_F(AveragingTest, WorkersWithStatesGoOnFromACheckpoint) {
    for (const auto& [kind, more] : {std::pair{"diloco", ""}, {"admm", "rho = 0.3\n"}}) {
        const std::string six =
            replaced(with_job(text(kind, eight + more), "checkpoint_every = 2\ncheckpoint_keep = 9\n"), "steps = 2\n", "steps = 6\n");
        const std::string alone = run(replaced(six, "checkpoint_keep = 9", "checkpoint_keep = 0"), 1).digest();
        ASSERT_EQ(alone.size(), 64u) << alone;
        const std::string coded = replaced(six, "exchange = \"ring\"", "exchange = \"coded-rs\"\nm = 2\ns = 1");
        for (const std::string& job : {six, coded}) {
            const Run whole = run(job, 4);
            EXPECT_EQ(whole.digest(), alone);
            std::map<uint64_t, std::string> all;
            for (const std::string& folder : whole.folders)
                for (const auto& [steps, path] : checkpoints_in(folder)) all[steps] = path;
            ASSERT_EQ(all.size(), 2u) << kind;
            for (const auto& [steps, path] : all)
                for (const uint32_t n : {1u, 3u}) EXPECT_EQ(run(six, {.ranks = n}, false, {}, from(path)).digest(), alone) << kind << steps;
        }
        // From its end a longer job goes on.
        const std::string model = run(six, 2).ranks[0].model, longer = replaced(six, "steps = 6\n", "steps = 8\n");
        EXPECT_EQ(run(longer, {.ranks = 3}, false, {}, from(model)).digest(), run(longer, 1).digest()) << kind;
    }
}

// The state of a worker on the lost node is on another where s covers it.
TEST_F(AveragingTest, WorkersWithStatesLoseANode) {
    const std::string job =
        replaced(with_job(text("admm", eight + "m = 1\ns = 1\n", "coded-rs"), "checkpoint_every = 1\ncheckpoint_keep = 9\n"), "steps = 2\n",
                 "steps = 8\n");
    const Run quiet = run(job, 2);
    ASSERT_EQ(quiet.digest().size(), 64u) << quiet.digest();
    const double us = run(job, 4).ranks[0].seconds * 1e6;
    const Run lossy =
        run(job, {.ranks = 4, .lost_after_us = 2'000'000}, false, [&](Simulator& sim) { sim.kill(2, static_cast<uint64_t>(0.5 * us)); });
    for (const Rank rank : {0u, 1u, 3u}) EXPECT_EQ(lossy.ranks[rank].digest, quiet.digest()) << lossy.ranks[rank].error;
    std::map<uint64_t, std::string> all;
    for (const Rank rank : {0u, 1u, 3u})
        for (const auto& [steps, path] : checkpoints_in(lossy.folders[rank])) all[steps] = path;
    ASSERT_TRUE(all.contains(7) || all.contains(6));
    EXPECT_EQ(run(job, {.ranks = 2}, false, {}, from(all.rbegin()->second)).digest(), quiet.digest());
}

TEST_F(AveragingTest, MaGoesOnWithoutANode) {
    const std::string plain = replaced(text("ma", eight), "steps = 2\n", "steps = 8\n");
    const Run quiet = run(plain, 1);
    ASSERT_EQ(quiet.digest().size(), 64u) << quiet.digest();
    const std::string survives = with_job(replaced(plain, "deadline = \"20s\"", "deadline = \"4s\""), "survive = true\n");
    const double us = run(survives, 4).ranks[0].seconds * 1e6;
    for (const double share : {0.3, 0.7}) {
        const Run run = this->run(survives, {.ranks = 4, .lost_after_us = 2'000'000}, false,
                                  [&](Simulator& sim) { sim.kill(2, static_cast<uint64_t>(share * us)); });
        for (const Rank rank : {0u, 1u, 3u}) {
            EXPECT_EQ(run.ranks[rank].digest, quiet.digest()) << run.status.what;
            EXPECT_GT(run.ranks[rank].view, 1u);
        }
    }
}

// Settings for which two algorithms are the same.
TEST_F(AveragingTest, SomeAreOneAtTheirEdges) {
    const auto plain = [&](const std::string& kind, const std::string& more) {
        return run(replaced(text(kind, more), "momentum = 0.9\n", ""), 2).digest();
    };
    const std::string ma = plain("ma", eight);
    ASSERT_EQ(ma.size(), 64u) << ma;
    EXPECT_EQ(plain("fedprox", eight + "mu = 0\n"), ma);
    EXPECT_EQ(plain("diloco", eight + "outer_lr = 1\nouter_momentum = 0\n"), ma);
    EXPECT_NE(plain("fedprox", eight + "mu = 1\n"), ma);
    EXPECT_NE(plain("diloco", eight), ma);
    const std::string once = run(replaced(text("ma", "workers = 8\nlocal_steps = 2\n"), "steps = 2\n", "steps = 1\n"), 2).digest();
    EXPECT_EQ(run(text("oneshot", "workers = 8\n"), 2).digest(), once);
}

TEST_F(AveragingTest, AllLearn) {
    for (const auto& [kind, more] :
         {std::pair{"ma", ""}, {"diloco", ""}, {"dane", "mu = 0.1\n"}, {"fedprox", ""}, {"admm", "rho = 0.1\n"}}) {
        const Run run = this->run(job_text(fmt::format("[algorithm]\nkind = \"{}\"\nworkers = 4\nlocal_steps = 6\n{}", kind, more)), 2);
        ASSERT_TRUE(run.status.ok()) << kind << ": " << run.status.what;
        EXPECT_GT(run.ranks[0].accuracy, 0.8) << kind;
    }
    const Run gd = this->run(replaced(job_text("[algorithm]\nkind = \"gd\"\nworkers = 4\n"), "epochs = 2", "epochs = 30"), 2);
    EXPECT_GT(gd.ranks[0].accuracy, 0.8);
    EXPECT_EQ(gd.ranks[0].steps, 30u);
    EXPECT_EQ(gd.ranks[0].gradients + gd.ranks[1].gradients, 30u * 600u);
}

// Each node reports its own workers, in the rounds that are evaluated; what is trained is the same.
TEST_F(AveragingTest, WhatWorkersHaveLearntIsEvaluated) {
    const auto by_step = [](const std::string& folder) {   // by step, the text behind "workers":
        std::map<uint64_t, std::string> all;
        std::ifstream file(folder + "/steps.jsonl");
        for (std::string line; std::getline(file, line);)
            if (const size_t at = line.find(",\"workers\":"); at != line.npos) all[std::stoull(line.substr(8))] = line.substr(at + 11);
        return all;
    };
    const std::string job =
        with_job(replaced(text("ma", "workers = 3\nlocal_steps = 4\n"), "steps = 2\n", "steps = 5\n"), "evaluate = 2\n");
    const std::string asks = replaced(job, "local_steps", "evaluate_workers = true\nlocal_steps");
    const Run one = run(asks, 1), two = run(asks, 2);
    EXPECT_EQ(one.digest(), run(job, 1).digest());
    EXPECT_EQ(two.digest(), one.digest());
    const auto all = by_step(one.folders[0]), first = by_step(two.folders[0]), second = by_step(two.folders[1]);
    for (const uint64_t step : {2, 4, 5}) {
        double accuracies[3];
        ASSERT_EQ(std::sscanf(all.at(step).c_str(), "{\"0\":%lf,\"1\":%lf,\"2\":%lf}}", &accuracies[0], &accuracies[1], &accuracies[2]), 3);
        const auto part = [&](uint32_t worker) { return fmt::format("\"{}\":{:.6f}", worker, accuracies[worker]); };
        std::string both = first.at(step) + second.at(step);
        for (const uint32_t worker : {0, 1, 2}) EXPECT_NE(both.find(part(worker)), both.npos) << both;
        EXPECT_EQ(std::count(both.begin(), both.end(), ':'), 3);
    }
    EXPECT_EQ(all.size(), 3u);
    EXPECT_TRUE(by_step(run(job, 1).folders[0]).empty());
    // The mean of one worker is the worker.
    const Run alone = run(replaced(asks, "workers = 3\n", "workers = 1\n"), 1);
    EXPECT_EQ(by_step(alone.folders[0]).at(5), fmt::format("{{\"0\":{:.6f}}}}}", alone.ranks[0].accuracy));
    const Run many = run(replaced(asks, "workers = 3\n", "workers = 1001\n"), 1);
    EXPECT_NE(many.digest().find("1001 workers are too many"), std::string::npos) << many.digest();
    for (const auto& [text, what] : {std::pair{replaced(asks, "test = \"test.h5\"\n", ""), "data.test is missing"},
                                     {replaced(asks, "\"ma\"", "\"gd\""), "goes with ma, diloco, fedprox, de, soup, rg, not gd"}}) {
        std::vector<JobMistake> mistakes;
        JobConfig refused;
        EXPECT_FALSE(job_parse(text, "job.toml", folder_, &refused, &mistakes));
        std::string said;
        for (const JobMistake& each : mistakes) said += each.text + "\n";
        EXPECT_NE(said.find(what), said.npos) << said;
    }
}

TEST_F(AveragingTest, DaneSaysToRaiseMu) {
    const Run run = this->run(replaced(text("dane", eight + "mu = 0\n"), "lr = 0.05", "lr = 1e25"), 2);
    EXPECT_EQ(run.status.code, Code::diverged);
    EXPECT_NE(std::string(run.status.what).find("raise algorithm.mu"), std::string::npos) << run.status.what;
}

TEST_F(AveragingTest, WhatLivesWithWorkersIsNotPromised) {
    for (const char* kind : {"diloco", "admm"}) {
        std::vector<JobMistake> mistakes;
        JobConfig job;
        EXPECT_FALSE(job_parse(with_job(text(kind), "survive = true\n"), "job.toml", folder_, &job, &mistakes));
        ASSERT_EQ(mistakes.size(), 1u);
        EXPECT_EQ(
            mistakes[0].text.substr(mistakes[0].text.find("job.survive")),
            fmt::format("job.survive: workers of {} have state that is lost with their node, so it does not go on without one", kind));
    }
}

}   // namespace
}   // namespace gradcast
