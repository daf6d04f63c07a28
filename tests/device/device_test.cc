// tools/device-check against the stand-in of tests/cuda/host: whole, and with programs in place of ours that hang, crash or break.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

namespace gradcast {
namespace {

namespace fs = std::filesystem;

struct Outcome {
    int exit = -1;
    std::string out;
    bool says(const std::string& text) const { return out.find(text) != std::string::npos; }
};

struct SystemDevice : testing::Test {
    fs::path root = fs::absolute("."), build, folder;
    void SetUp() override {
        const char* given = std::getenv("GRADCAST_BUILD");
        build = fs::absolute(given ? given : "build");
        if (std::system("python3 -c 0 2>/dev/null") != 0) GTEST_SKIP() << "python3 is missing";
        if (!fs::exists("tools/device-check")) GTEST_SKIP() << "tools/device-check is missing: run it in the folder of the sources";
        for (const char* name : {"host/libgradcast_cuda.so", "host/gradcast-bench", "host/gradcastctl", "host/gradcastd", "tests/cuda"})
            if (!fs::exists(build / name)) GTEST_SKIP() << "not built: " << name;
        std::string made = testing::TempDir() + "gc-device-XXXXXX";
        ASSERT_NE(::mkdtemp(made.data()), nullptr);
        folder = made;
    }
    void TearDown() override {
        if (!folder.empty()) fs::remove_all(folder);
    }
    static Outcome shell(const std::string& command) {
        Outcome outcome;
        std::FILE* pipe = ::popen(("exec 2>&1; " + command).c_str(), "r");
        char buffer[4096];
        while (const size_t got = std::fread(buffer, 1, sizeof buffer, pipe)) outcome.out.append(buffer, got);
        const int how = ::pclose(pipe);
        outcome.exit = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
        return outcome;
    }
    Outcome check(const std::string& before, const fs::path& programs, const std::string& flags = "") const {
        const std::string places = " --host --work " + (folder / "work").string() + " --out " + (folder / "out").string();
        return shell(before + " timeout 100 tools/device-check " + programs.string() + places + " " + flags);
    }
    nlohmann::json report() const { return nlohmann::json::parse(std::ifstream(folder / "out/gpu-stand-in.json"), nullptr, false); }
    void script(const fs::path& path, const std::string& text) const {
        fs::create_directories(path.parent_path());
        fs::remove(path);
        std::ofstream(path) << "#!/bin/bash\n" << text;
        fs::permissions(path, fs::perms::owner_all);
    }
    /// A folder of programs that do as if everything were right.
    fs::path programs() const {
        const fs::path to = folder / "build";
        script(to / "host/gradcastd", "");
        script(to / "host/libgradcast_cuda.so", "");
        script(to / "host/gradcastctl", R"(
case $1 in
    import) mkdir -p "${@: -1}" && touch "${@: -1}/train.h5" ;;
    run) mkdir -p "${@: -1}"; grep -q 'resident = "no"' "$2" || echo ', data set 1.0 MiB' >"${@: -1}/log"; touch "${@: -1}/log"; echo 'digest 1234' ;;
esac
)");
        script(to / "host/gradcast-bench", R"(
for cell in '"lenet5", "batch": 4' '"mlp", "batch": 4'; do
    echo '{"bench": "'$1'", "net": '"$cell"', "precision": "f32", "rows": [{"blocks": 1, "images_per_s": 10, "queued_images_per_s": 11}, {"blocks": 2, "images_per_s": 9, "queued_images_per_s": null}]}'
done
)");
        tests("");
        return to;
    }
    /// A test program whose tests do what `how` says, by name; the others pass.
    void tests(const std::string& how) const {
        script(folder / "build/tests/cuda", R"sh(
if [ "$1" = --gtest_list_tests ]; then
    printf '%s\n' CudaSmoke. '  First' '  Second' Part. '  A' '  B' '  C' '  D' '  E' '  F' '  G' '  H' '  I' '  J' '  K' '  L'
    exit
fi
code=0
for test in $(tr : ' ' <<<"${1#--gtest_filter=}"); do
    echo "[ RUN      ] $test"
    case $test in
)sh" + how + R"sh(
        *) echo "[       OK ] $test (1 ms)" ;;
    esac
done
exit $code
)sh");
    }
};

TEST_F(SystemDevice, BothStagesPassOnTheStandIn) {
    const Outcome done = check("", build);
    ASSERT_EQ(done.exit, 0) << done.out;
    EXPECT_TRUE(done.says("passed: one digest twice, without resident data, and with three daemons")) << done.out;
    EXPECT_TRUE(done.says("smoke tests")) << done.out;
    EXPECT_TRUE(done.says(", 0 failed, ")) << done.out;
    size_t files = 0;
    for (const auto& entry : fs::directory_iterator(folder / "out")) files += entry.is_regular_file();
    EXPECT_LE(files, 8u);
    const nlohmann::json found = report();
    ASSERT_FALSE(found.is_discarded());
    EXPECT_EQ(found["digests"].size(), 4u);
    EXPECT_EQ(found["speed"].size(), 2u) << found["speed"].dump();
    for (const auto& row : found["speed"]) EXPECT_TRUE(row["waited"].get<double>() > 0 && row["queued"].get<double>() > 0) << row.dump();
    EXPECT_NE(found["layers"][0]["engines"].dump().find("conv2 backward (data), 2 samples: engine "), std::string::npos)
        << found["layers"][0].dump();
    // Every skip is one of these.
    const std::set<std::string> lacks = {"skipped: PyTorch: a python3 with torch is missing", "skipped: kernel times: ncu is missing",
                                         "skipped: sanitizer: compute-sanitizer is missing"};
    for (const std::string verdict : found["verdicts"]) EXPECT_TRUE(!verdict.starts_with("skipped") || lacks.contains(verdict)) << verdict;
    const Outcome logs = shell("tar tzf " + (folder / "out/gpu-stand-in-logs.tar.gz").string());
    for (const char* name : {"smoke.log", "tests-3.log", "job-files.log", "bench-step.log", "machine.log"})
        EXPECT_TRUE(logs.says(name)) << logs.out;
}

TEST_F(SystemDevice, ATestThatHangsOrCrashesOrBreaksTheDeviceIsNamedAndTheOthersGoOn) {
    const fs::path all = programs();
    tests(R"sh(
        Part.A) sleep 100 ;;
        Part.B) echo 'what(): a vector'; kill -SEGV $$ ;;
        Part.C) echo 'cudaDeviceSynchronize: cudaErrorIllegalAddress'; echo "[  FAILED  ] $test (1 ms)"; code=1 ;;
        Part.D) echo 'this device is too small'; echo "[  SKIPPED ] $test (1 ms)" ;;
        Part.E) echo 'no device: no CUDA-capable device is detected'; echo "[  SKIPPED ] $test (1 ms)" ;;
)sh");
    const Outcome done = check("", all, "--silence 2");
    EXPECT_EQ(done.exit, 1);
    EXPECT_TRUE(done.says("the program hung: it said nothing for 2 s")) << done.out;
    EXPECT_TRUE(done.says("what(): a vector\n  the program was ended by SIGSEGV")) << done.out;
    for (const char* name : {"A", "B", "C", "E"}) EXPECT_TRUE(done.says(std::string("failed: Part.") + name + "\n")) << done.out;
    EXPECT_TRUE(done.says("passed: 7 tests of cuda")) << done.out;   // F to L, also those behind the broken ones
    EXPECT_TRUE(done.says("failed: 4 tests of cuda")) << done.out;
    EXPECT_TRUE(done.says("skipped: 1 tests of cuda: this device is too small")) << done.out;
    EXPECT_TRUE(done.says("skipped: stage B, because stage A did not pass")) << done.out;
    EXPECT_EQ(report()["failures"].size(), 4u);
}

TEST_F(SystemDevice, ADeviceThatDoesNotWorkEndsTheRun) {
    const Outcome done = check("GC_CUDA_HOST_DEVICES=0", build);
    EXPECT_EQ(done.exit, 1);
    EXPECT_TRUE(done.says("no device: cudaErrorNoDevice")) << done.out;
    EXPECT_TRUE(done.says("failed: the device: no smoke test passed, so nothing else is tried")) << done.out;
    EXPECT_TRUE(done.says("skipped: stage B, because stage A did not pass")) << done.out;
}

TEST_F(SystemDevice, SpeedKeepsWhatWasMeasuredBeforeAFault) {
    const fs::path all = programs();
    script(all / "host/gradcast-bench", R"(
echo '{"bench": "'$1'", "net": "lenet5", "batch": 4, "precision": "f32", "rows": [{"blocks": 1, "images_per_s": 10, "queued_images_per_s": 11}]}'
[ $1 = step ] && sleep 100
for net in mlp nin; do echo '{"bench": "layers", "net": "'$net'", "batch": 4, "precision": "f32", "rows": [], "error": "cudaErrorIllegalAddress"}'; done
exit 1
)");
    const Outcome done = check("", all, "--stages B --silence 0.3");
    EXPECT_EQ(done.exit, 1);
    EXPECT_TRUE(done.says("failed: gradcast-bench step hung: it said nothing for 1 s, after 1 cells")) << done.out;
    EXPECT_TRUE(done.says("failed: gradcast-bench layers, mlp 4 f32: cudaErrorIllegalAddress")) << done.out;
    ASSERT_EQ(report()["speed"].size(), 1u);
    EXPECT_EQ(report()["speed"][0]["queued"], 11);
    EXPECT_EQ(report()["layers"].size(), 3u);
}

TEST_F(SystemDevice, AnInterruptedRunLeavesItsResults) {
    const fs::path all = programs();
    tests("        Part.A) sleep 100 ;;\n");
    const std::string log = (folder / "out/gpu-stand-in.txt").string();
    const Outcome done =
        shell("{ OUT=" + (folder / "out").string() + " timeout 100 tools/device-check " + all.string() + " --host --work " +
              (folder / "work").string() + " --silence 60 & for i in $(seq 600); do grep -sq 'one digest twice' " + log +
              " && break; sleep 0.05; done; kill $!; wait $!; }");
    EXPECT_TRUE(done.says("failed: interrupted by SIGTERM")) << done.out;
    EXPECT_EQ(report()["results"]["failed"].get<int>() >= 1, true);
    EXPECT_EQ(report()["digests"].size(), 4u);
    EXPECT_TRUE(fs::exists(folder / "out/gpu-stand-in-logs.tar.gz"));
}

TEST_F(SystemDevice, WhatIsNewerThanTheTargetsCLibraryIsNotPacked) {
    for (const char* name : {"gradcastd", "gradcastctl", "gradcast-bench", "libgradcast_cuda.so", "tests/cuda-device"}) {
        fs::create_directories((folder / "build" / name).parent_path());
        fs::copy_file(fs::canonical("/bin/true"), folder / "build" / name);
    }
    const std::string flags = " --pack " + (folder / "gpu").string() + " --data " + folder.string();
    const Outcome lacks = shell("tools/device-check " + (folder / "build").string() + flags);
    EXPECT_TRUE(lacks.exit == 1 && lacks.says("mnist/train.h5 is missing: make device-pack")) << lacks.out;
    script(folder / "mnist/train.h5", "");
    script(folder / "mnist/test.h5", "");
    script(folder / "bin/objdump", "case $2 in */gradcastd) echo '    0x09691972 0x00 03 GLIBC_2.38' ;; esac\n");
    const Outcome newer = shell("PATH=" + (folder / "bin").string() + ":$PATH tools/device-check " + (folder / "build").string() + flags);
    EXPECT_TRUE(newer.exit == 1 && newer.says("device-check: newer than glibc 2.36: gradcastd needs 2.38")) << newer.out;
    const Outcome packed = shell("tools/device-check " + (folder / "build").string() + flags);
    EXPECT_EQ(packed.exit, 0) << packed.out;
    EXPECT_TRUE(fs::exists(folder / "gpu.tar.gz") && packed.says("needs glibc 2.")) << packed.out;
    // The unpacked copy runs from another folder, and says so where there is no GPU.
    const Outcome there = shell("cd / && PATH=" + (folder / "bin").string() + ":/usr/bin:/bin " +
                                (folder / "gpu/tools/device-check").string() + " --out " + (folder / "out").string());
    if (!fs::exists("/dev/nvidia0")) {
        EXPECT_TRUE(there.exit == 77 && there.says("nvidia-smi finds no GPU")) << there.out;
    }
}

}   // namespace
}   // namespace gradcast
