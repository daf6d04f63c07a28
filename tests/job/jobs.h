// Jobs on a tiny data set: one rank on real threads, several in the simulator.
#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>

#include "datasets/shard.h"
#include "runtime/core/fd.h"
#include "runtime/core/rng.h"
#include "runtime/job/run/alone.h"
#include "runtime/job/run/engine.h"
#include "transport/sim/sim.h"

namespace gradcast {

/// A job of one rank on real threads.
class OneRank final : public Host {
public:
    uint64_t now_us() override { return alone_.now_us(); }
    void post(uint16_t channel, const Event& event) override {
        const auto* ready = event.is<Event::Ready>();
        if (!ready || swallow != ready->step || ready->bucket != 0) alone_.post(channel, event);
    }
    Status wait(std::vector<Completion>* out, uint64_t until_us) override { return alone_.wait(out, until_us); }
    void open_view(uint32_t number, std::span<const Attachment> attachments) override { alone_.open_view(number, attachments); }
    Status close_view(uint64_t until_us) override { return alone_.close_view(until_us); }
    std::optional<StepId> swallow;   // the exchange never gets bucket 0 of this step

private:
    Alone alone_;
};

class EngineTest : public ::testing::Test {
protected:
    void SetUp() override {
        log_level(Level::error);
        folder_ =
            place_ + "gradcast_engine_" + std::to_string(getpid()) + "_" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
        std::filesystem::remove_all(folder_);
        ASSERT_TRUE(make_directories(folder_).ok());
        write("train.h5", 600, 0);
        write("test.h5", 250, 600);
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }

    /// Four classes that differ in which quarter of the picture is bright.
    void write(const std::string& name, uint32_t count, uint32_t first, uint32_t side = 8, uint32_t classes = 4, uint32_t compress = 0) {
        std::vector<uint8_t> images(count * side * side);
        std::vector<int32_t> labels(count);
        for (uint32_t i = 0; i < count; ++i) {
            labels[i] = static_cast<int32_t>((first + i) % classes);
            for (uint32_t y = 0; y < side; ++y)
                for (uint32_t x = 0; x < side; ++x) {
                    uint32_t noise = random4(Purpose::test, 1, first + i, y * side + x)[0] % 100;
                    uint32_t quarter = 2 * (y / (side / 2)) + x / (side / 2);
                    images[(i * side + y) * side + x] = static_cast<uint8_t>(noise + (quarter == (first + i) % 4 ? 90 : 0));
                }
        }
        DataInfo info{.count = count, .C = 1, .H = side, .W = side, .classes = classes, .mean = {0.3f}, .std = {0.2f}, .source = "test"};
        Status status = shard_write(folder_ + "/" + name, info, images.data(), labels.data(), compress);
        ASSERT_TRUE(status.ok()) << status.what;
    }

    std::string job_text(const std::string& more = "") {
        return "[job]\nepochs = 2\nbatch = 24\nblocks = 6\ndeadline = \"20s\"\n[data]\ntrain = \"train.h5\"\ntest = \"test.h5\"\n[net]\n"
               "[[net.layers]]\nkind = \"inner_product\"\noutputs = 16\n[[net.layers]]\nkind = \"relu\"\n[[net.layers]]\nkind = "
               "\"inner_product\"\noutputs = 4\n"
               "[[net.layers]]\nkind = \"softmax_cross_entropy\"\n[optimiser]\nlr = 0.05\nmomentum = 0.9\n" +
               more;
    }
    /// The same with batch norm, dropout and a shortcut: a net with state and random numbers of its own.
    std::string job_text_of_all(const std::string& more = "") {
        return replaced(job_text(more), "[[net.layers]]\nkind = \"relu\"\n",
                        "[[net.layers]]\nkind = \"batch_norm\"\n[[net.layers]]\nkind = \"relu\"\nname = \"low\"\n"
                        "[[net.layers]]\nkind = \"dropout\"\nrate = 0.25\n[[net.layers]]\nkind = \"inner_product\"\noutputs = 16\n"
                        "[[net.layers]]\nkind = \"add\"\nfrom = \"low\"\n");
    }
    static std::string replaced(std::string text, const std::string& from, const std::string& to) {
        size_t at = text.find(from);
        EXPECT_NE(at, std::string::npos) << from;
        return text.replace(at, from.size(), to);
    }

    EngineConfig config(const std::string& text, uint32_t n = 1, Rank self = 0) {
        EngineConfig config;
        std::vector<JobMistake> mistakes;
        EXPECT_TRUE(job_parse(text, "job.toml", folder_, &config.job, &mistakes)) << mistakes[0].text;
        for (Rank rank = 0; rank < n; ++rank) config.roster.push_back({fmt::format("node-{}", static_cast<char>('a' + rank))});
        config.self = NodeId{self};
        config.commands = true;
        config.folder = fmt::format("{}/job-{}-{}-{}", folder_, runs_++, n, self);
        return config;
    }

    /// A job of one rank.
    Status run_one(const std::string& text, uint32_t lanes, JobStatus* status, std::string* final_path = nullptr) {
        EngineConfig c = config(text);
        c.lanes = lanes;
        std::unique_ptr<Engine> engine;
        GC_TRY(Engine::open(c, Log(), &engine));
        OneRank host;
        Status result = engine->run(host);
        *status = engine->status();
        if (final_path) *final_path = c.folder + "/final.h5";
        return result;
    }

    /// A job of n ranks in the simulator.
    Status run_many(const std::string& text, uint32_t n, std::vector<JobStatus>* statuses,
                    std::function<void(std::vector<std::unique_ptr<Engine>>&)> meddle = {}) {
        auto simulator = Simulator::create({.ranks = n});
        std::vector<std::unique_ptr<Engine>> engines(n);
        for (Rank rank = 0; rank < n; ++rank) {
            EngineConfig c = config(text, n, rank);
            c.lanes = 0;
            c.loader_threaded = false;
            c.spend_us = 100;
            GC_TRY(Engine::open(c, Log(), &engines[rank]));
            simulator->trainer(rank, [&engine = *engines[rank]](Host& host) { return engine.run(host); });
        }
        if (meddle) meddle(engines);
        Status status = simulator->run();
        statuses->clear();
        for (auto& engine : engines) statuses->push_back(engine->status());
        simulator.reset();
        return status;
    }

    std::string place_ = ::testing::TempDir(), folder_;
    uint32_t runs_ = 0;
};

/// A disk of few bytes at `path`: a tmpfs, which only root may mount.
struct SmallDisk {
    SmallDisk(const std::string& path, const char* size) : path_(path) {
        std::filesystem::create_directories(path);
        mounted = ::mount("tmpfs", path.c_str(), "tmpfs", 0, fmt::format("size={}", size).c_str()) == 0;
    }
    ~SmallDisk() {
        if (mounted) ::umount2(path_.c_str(), MNT_DETACH);
    }
    /// Writes until nothing more fits.
    void fill() const {
        Fd fd(::open((path_ + "/rest").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
        const std::string page(4096, 'x');
        while (::write(fd.get(), page.data(), page.size()) > 0) {
        }
        EXPECT_EQ(errno, ENOSPC);
    }
    bool mounted = false;

private:
    const std::string path_;
};

/// Steps of the lines of steps.jsonl that hold an accuracy, and the accuracies.
inline std::vector<std::pair<uint64_t, double>> evaluations(const std::string& final_path, size_t* lines) {
    std::vector<std::pair<uint64_t, double>> found;
    std::ifstream in(final_path.substr(0, final_path.rfind('/')) + "/steps.jsonl");
    *lines = 0;
    for (std::string line; std::getline(in, line); ++*lines) {
        EXPECT_EQ(line.front(), '{');
        EXPECT_EQ(line.back(), '}');
        size_t at = line.find("\"accuracy\":");
        if (at != std::string::npos) found.emplace_back(std::stoull(line.substr(8)), std::stod(line.substr(at + 11)));
    }
    return found;
}

}   // namespace gradcast
