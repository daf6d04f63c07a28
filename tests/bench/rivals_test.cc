// Runs what compares gradcast with PyTorch, Gloo and Open MPI on a tiny case.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "tests/bench/shell.h"

namespace {

/// Runs a bench on one tiny cell of two hosts in a lab.  Returns its file of results; null: skipped or failed.
nlohmann::json tiny_steps(const std::string& bench, std::string* said) {
    namespace fs = std::filesystem;
    const auto run = [&](const fs::path& folder) {
        const std::string before = shell("git status --porcelain bench/results 2>/dev/null").out;
        const Result result =
            shell(fmt::format("TMPDIR={} timeout 250 bench/{} --tiny --out {}/rows.json 2>&1", folder.string(), bench, folder.string()));
        *said = result.out;
        EXPECT_EQ(result.code, 0) << result.out;
        EXPECT_EQ(shell("git status --porcelain bench/results 2>/dev/null").out, before);
        EXPECT_NE(shell(fmt::format("tail -n 1 {}/rows.svg", folder.string())).out.find("</svg>"), std::string::npos);   // beside --out
        std::ifstream in(folder / "rows.json");
        return nlohmann::json::parse(in, nullptr, false);
    };
    const fs::path folder = fs::path(testing::TempDir()) / fmt::format("gc-{}-{}", bench, ::getpid());
    fs::create_directories(folder);
    const nlohmann::json report = run(folder);
    fs::remove_all(folder);
    EXPECT_FALSE(report.is_discarded());
    for (const auto& row : report["rows"]) {
        EXPECT_GT(row["median_ms"].get<double>(), 0) << row.dump();
        EXPECT_GE(row["max_ms"].get<double>(), row["median_ms"].get<double>()) << row.dump();
        EXPECT_GE(row["steps"].get<int>(), 5) << row.dump();
    }
    return report["rows"];
}

std::string no_lab(const std::string& bench) {
    if (const std::string missing = lacks(bench); !missing.empty()) return missing;
    if (::geteuid() != 0) return bench + ": the lab needs root";
    for (const char* tool : {"ip", "tc", "nft"})
        if (shell(std::string("PATH=$PATH:/usr/sbin:/sbin; command -v ") + tool + " 2>/dev/null").code != 0)
            return fmt::format("{}: {} is missing (make deps-lab)", bench, tool);
    return "";
}

std::string ways_of(const nlohmann::json& rows) {
    std::string ways;
    for (const auto& row : rows) ways += row["way"].get<std::string>() + ", ";
    return ways;
}

// Jobs of real daemons on two hosts of a lab, and PyTorch beside them if installed.
TEST(SystemBench, TrainingTimesStepsInALab) {
    if (const std::string missing = no_lab("bench/training"); !missing.empty()) GTEST_SKIP() << missing;
    std::string said;
    const std::string ways = ways_of(tiny_steps("training", &said));
    EXPECT_TRUE(ways.starts_with("one host, ") && ways.ends_with("ring, coded-rs m=2, coded-rs m=2 auto16, auto, ")) << ways;
    EXPECT_NE(said.find("auto by the best of the others"), std::string::npos) << said;
    EXPECT_EQ(shell("bench/training --only mlp:5 2>/dev/null").code, 2);
}

// The net in stages computes the same bits as whole, and both rivals the same loss.
TEST(SystemBench, StagesTimesStepsInALab) {
    if (const std::string missing = no_lab("bench/stages"); !missing.empty()) GTEST_SKIP() << missing;
    std::string said;
    const nlohmann::json rows = tiny_steps("stages", &said);
    EXPECT_TRUE(ways_of(rows).starts_with("one host, ring, 1f1b, zero-bubble, eager-1f1b, eager-zero-bubble, ")) << said;
    std::set<std::string> cuts;
    for (const auto& row : rows) {
        if (row.contains("cuts")) cuts.insert(row["cuts"].get<std::string>());
        if (!row.contains("idle")) continue;
        EXPECT_GT(row["sent_mb"].get<double>(), 0) << row.dump();
        EXPECT_TRUE(row["idle"] > 0 && row["idle"] < 1 && row["idle_least"] > 0 && row["idle_least"] < 1) << row.dump();
    }
    EXPECT_EQ(cuts.size(), 1u) << said;
    if (ways_of(rows).find("torch") != std::string::npos) {
        EXPECT_NE(said.find("ok: PyTorch's pipelines differ in the loss"), std::string::npos) << said;
    }
    EXPECT_EQ(shell("bench/stages --only nin:2:1gbut 2>/dev/null").code, 2);
}

// One small net, data parallel and in two stages, predicted and measured.
TEST(SystemBench, ParallelComparesInALab) {
    namespace fs = std::filesystem;
    if (const std::string missing = no_lab("bench/paper/parallel"); !missing.empty()) GTEST_SKIP() << missing;
    const fs::path folder = fs::path(testing::TempDir()) / fmt::format("gc-parallel-{}", ::getpid());
    fs::create_directories(folder);
    const Result result = shell(fmt::format("TMPDIR={} timeout 100 bench/paper/parallel --widths 16,32 --seconds 0.1 --results {} 2>&1",
                                            folder.string(), folder.string()));
    EXPECT_EQ(result.code, 0) << result.out;
    EXPECT_NE(result.out.find("width 32: data_predicted_ms "), std::string::npos) << result.out;
    EXPECT_NE(result.out.find("Stages are faster "), std::string::npos) << result.out;
    EXPECT_NE(shell(fmt::format("tail -n 1 {}/parallel.csv", folder.string())).out.find("32,2,1gbit,27562,"), std::string::npos);
    EXPECT_NE(shell(fmt::format("tail -n 1 {}/parallel.svg", folder.string())).out.find("</svg>"), std::string::npos);
    fs::remove_all(folder);
}

// The picture, and the table in the page, are those of the file of results.
void has_one_source_of_figures(const std::string& bench, const std::string& page, int lines) {
    namespace fs = std::filesystem;
    if (const std::string missing = lacks("bench/" + bench); !missing.empty()) GTEST_SKIP() << missing;
    const fs::path picture = fs::path(testing::TempDir()) / fmt::format("gc-{}-{}.svg", bench, ::getpid());
    const Result drawn = shell("bench/" + bench + " --draw --svg " + picture.string() + " 2>&1");
    EXPECT_LE(drawn.code, 1) << drawn.out;
    const auto text = [](const fs::path& path) {
        std::ifstream in(path);
        return std::string(std::istreambuf_iterator<char>(in), {});
    };
    EXPECT_EQ(text(picture), text("bench/results/" + bench + ".svg")) << "bench/" << bench << " --draw makes it";
    const Result table = shell("bench/" + bench + " --table 2>&1");
    EXPECT_EQ(table.code, 0) << table.out;
    EXPECT_GT(std::count(table.out.begin(), table.out.end(), '\n'), lines) << table.out;
    EXPECT_NE(text("bench/" + page).find(table.out), std::string::npos) << "bench/" << bench << " --table prints it";
    fs::remove(picture);
}
TEST(SystemBench, TrainingHasOneSourceOfFigures) { has_one_source_of_figures("training", "TRAINING.md", 12); }
TEST(SystemBench, StagesHaveOneSourceOfFigures) { has_one_source_of_figures("stages", "STAGES.md", 8); }

void rival_runs(const std::string& rival) {
    Result result = shell("bench/rivals/run " + rival + " --nodes 2 --count 1000 --runs 3 2>/dev/null");
    ASSERT_EQ(result.code, 0);
    nlohmann::json report = nlohmann::json::parse(result.out, nullptr, false);
    ASSERT_FALSE(report.is_discarded()) << result.out;
    EXPECT_EQ(report["nodes"], 2);
    EXPECT_EQ(report["size_bytes"], 4000);
    EXPECT_EQ(report["wrong_elements"], 0);
    EXPECT_LE(report["median_us"].get<double>(), report["max_us"].get<double>());
}
TEST(SystemBench, TextsAreLearntBesideTorch) {
    if (shell("test -x bench/texts && /usr/bin/python3 -c 'import torch' 2>/dev/null").code != 0)
        GTEST_SKIP() << "bench/texts (run it in the folder of the sources) or python3-torch is missing (make deps-rivals)";
    const std::string out = testing::TempDir() + fmt::format("gc-texts-{}.json", ::getpid());
    const Result table =
        shell(fmt::format("GRADCAST_BUILD={} timeout 200 bench/texts --tiny --seeds 3 --steps 60 --out {} 2>&1", build_folder(), out));
    EXPECT_EQ(table.code, 0) << table.out;
    std::ifstream in(out);
    const nlohmann::json report = nlohmann::json::parse(in, nullptr, false);
    ASSERT_EQ(report["rows"].size(), 1u) << table.out;
    const auto row = report["rows"][0];
    for (const char* name : {"ours", "torch"})
        EXPECT_LT(row[name].get<double>(), 2.9) << table.out;   // 20 characters: log 20 = 3.0 at first
    EXPECT_NEAR(report["verdict"]["ratio"].get<double>(), 1, 0.3) << table.out;
    std::filesystem::remove(out);
}

TEST(SystemBench, NetsRunBesideTorch) {
    if (shell("test -x bench/nets && /usr/bin/python3 -c 'import torch' 2>/dev/null").code != 0)
        GTEST_SKIP() << "bench/nets (run it in the folder of the sources) or python3-torch is missing (make deps-rivals)";
    // The ratio is not checked.
    Result table = shell("GRADCAST_BUILD=" + build_folder() +
                         " timeout 100 bench/nets --nets lenet5 --threads 1 --rounds 1 --seconds 0.02 --batch 16 --out '' 2>/dev/null");
    EXPECT_LE(table.code, 1) << table.out;
    for (const char* name : {"ours, 1 block ", "torch as installed", "torch at its best", "blocks of 16", "PyTorch's ", "MiB"})
        EXPECT_NE(table.out.find(name), std::string::npos) << name << " is not in " << table.out;
    // Both sides have the same nets, by their numbers of parameters.  The user's settings of libraries do not slow PyTorch down.
    std::string as_installed;
    for (const auto& [net, parameters] :
         {std::pair{"lenet5", 61706}, std::pair{"mlp", 2383370}, std::pair{"nin", 966986}, std::pair{"resnet18:64", 11181642},
          std::pair{"unet:128", 7763338}, std::pair{"gpt", 834304}, std::pair{"gpt10m", 10942464}}) {
        const char* set = as_installed.empty() ? "env -u OPENBLAS_CORETYPE" : "env OPENBLAS_CORETYPE=Prescott OMP_NUM_THREADS=7";
        Result result = shell(fmt::format("{} /usr/bin/python3 bench/rivals/torch_step.py {} 2 1 0.01", set, net));
        const nlohmann::json report = nlohmann::json::parse(result.out, nullptr, false);
        EXPECT_EQ(report["parameters"], parameters);
        EXPECT_NE(report["kernels"], "") << result.out;
        if (!as_installed.empty()) {
            EXPECT_EQ(report["kernels"], as_installed);
        }
        as_installed = report["kernels"];
    }
    // What a GPU is compared with, on the CPU: the eager way works with every PyTorch.
    Result ways = shell(
        "/usr/bin/python3 bench/rivals/torch_gpu.py --device cpu --cells lenet5:4 --precisions f32 --seconds 0.01 --profile 2>/dev/null | "
        "tail -n 2");
    const nlohmann::json rates = nlohmann::json::parse(ways.out.substr(0, ways.out.find('\n')), nullptr, false),
                         kernels = nlohmann::json::parse(ways.out.substr(ways.out.find('\n') + 1), nullptr, false);
    EXPECT_GT(rates["ways"]["eager"]["queued"], 0) << ways.out;
    EXPECT_GT(rates["waited"], 0) << ways.out;
    EXPECT_EQ(kernels["bench"], "kernels") << ways.out;
}

TEST(SystemBench, GlooRuns) {
    if (shell("/usr/bin/python3 -c 'import torch' 2>/dev/null").code != 0) GTEST_SKIP() << "python3-torch is missing (make deps-rivals)";
    rival_runs("gloo");
}
TEST(SystemBench, OpenMpiRuns) {
    if (run("bench/rivals/mpi 2>/dev/null").code != 2) GTEST_SKIP() << "bench/rivals/mpi is not built (make rivals)";
    rival_runs("openmpi");
}

}   // namespace
