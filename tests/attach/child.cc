#include "tests/attach/child.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <span>

#include "runtime/attach/wire.h"
#include "runtime/control/json.h"
#include "runtime/core/digest.h"
#include "runtime/core/fd.h"
#include "runtime/core/version.h"

namespace gradcast {
namespace {

class Child {
public:
    explicit Child(std::string mode) : mode_(std::move(mode)) {}

    int run() {
        if (mode_ == "exits") return fmt::print(stderr, "Traceback (most recent call last):\nValueError: no such file\n"), 3;
        if (mode_ == "hangs") ::pause();
        const Json start = Json::parse(text());
        const Json& samples = start["samples"];
        own_ = samples["C"] == 0;   // samples of our own: four classes by index, of 16 pixels
        pixels_ = own_ ? 16 : samples["C"].get<size_t>() * samples["H"].get<size_t>() * samples["W"].get<size_t>();
        classes_ = own_ ? 4 : samples["classes"].get<size_t>();
        if (!own_) mean_ = samples["mean"][0], std_ = samples["std"][0];
        fmt::print("lane {} of {}, seed {}\n", start["lane"].get<int>(), start["lanes"].get<int>(), start["seed"].get<int>());
        if (mode_.starts_with("leaves a child ")) print_tasks_limit();
        std::fflush(stdout);
        lane_ = start["lane"];
        if (mode_.starts_with("leaves a child ")) leave_child(mode_.substr(15));
        hello();
        memory();
        initial();
        for (;;) compute();
    }

private:
    template <typename T>
    void send(const T& message) {
        if (::send(socket_, &message, sizeof message, MSG_NOSIGNAL) != sizeof message) std::exit(0);
    }
    void send_text(gc_attach_kind kind, const std::string& text) {
        for (size_t at = 0; at == 0 || at < text.size(); at += GC_ATTACH_TEXT_MAX) {
            const std::string piece = text.substr(at, GC_ATTACH_TEXT_MAX);
            const gc_attach_text head{static_cast<uint32_t>(kind), at + piece.size() < text.size()};
            std::string all(reinterpret_cast<const char*>(&head), sizeof head);
            all += piece;
            if (::send(socket_, all.data(), all.size(), MSG_NOSIGNAL) < 0) std::exit(0);
        }
    }
    size_t receive(void* to, size_t bytes) {
        iovec part{to, bytes};
        alignas(cmsghdr) char control[64];
        msghdr packet{};
        packet.msg_iov = &part;
        packet.msg_iovlen = 1;
        packet.msg_control = control;
        packet.msg_controllen = sizeof control;
        const ssize_t got = ::recvmsg(socket_, &packet, 0);
        if (got <= 0) std::exit(0);   // the daemon wants the end
        if (const cmsghdr* rights = CMSG_FIRSTHDR(&packet)) std::memcpy(fds_, CMSG_DATA(rights), sizeof fds_);
        return static_cast<size_t>(got);
    }
    std::string text() {
        std::string all;
        struct {
            gc_attach_text head;
            char text[GC_ATTACH_TEXT_MAX];
        } message;
        do all.append(message.text, receive(&message, sizeof message) - sizeof message.head);
        while (message.head.more);
        return all;
    }

    void hello() {
        Json tensors = {{{"name", "w"}, {"shape", {classes_, pixels_}}}, {{"name", "b"}, {"shape", {classes_}}}};
        if (mode_ == "many tensors")
            for (int i = 0; i < 3000; ++i) tensors.push_back({{"name", fmt::format("unused.{}.weight", i)}, {"shape", {1}}});
        if (mode_ == "twice") tensors.push_back(tensors[0]);
        if (mode_ == "lanes differ" && lane_ == 1) tensors.push_back({{"name", "c"}, {"shape", Json::array()}});
        read_sources();
        Json hello = {{"wire", mode_ == "other border" ? 1 : GC_ATTACH_VERSION},
                      {"version", mode_ == "other version" ? "0.0.9" : version_text},
                      {"tensors", tensors},
                      {"running", Json::array()},
                      {"libraries", {{"libc", "any"}}},
                      {"modules", modules_}};
        if (mode_.starts_with("library ")) hello["libraries"]["libc"] = mode_;
        if (mode_.starts_with("other libraries") && lane_ == 1) hello["libraries"]["blas"] = "3.11";
        if (mode_ == "data digest") hello["data_digest"] = "d1";
        if (mode_ == "running") hello["running"].push_back({{"name", "n"}, {"channels", 3}});
        if (mode_.starts_with("constants")) add_constants(hello);
        if (mode_.starts_with("one node has other ")) one_node(hello);
        if (mode_ == "no json") return send_text(GC_ATTACH_HELLO, "hello");
        send_text(GC_ATTACH_HELLO, hello.dump());
    }
    /// "one node has other libraries FOLDER", ...: the first process is of that node, where nodes have a lane each.
    void one_node(Json& hello) {
        const std::string what = mode_.substr(19, mode_.find(' ', 19) - 19);
        if (what == "constants") add_constants(hello);
        if (!first(mode_.substr(mode_.rfind(' ') + 1))) return;
        if (what == "libraries" || what == "bits") hello["libraries"]["libc"] = "another";
        if (what == "constants") {
            constants_[16] = 'Y';
            hello["constants"][2]["sha256"] = sha256_hex(std::as_bytes(std::span(constants_).subspan(16)));
        }
        if (what == "sources") hello["modules"].push_back({{"path", "extra.py"}, {"sha256", std::string(64, 'a')}});
        otherwise_ = what == "bits";
    }
    void read_sources() {
        FILE* file = std::fopen("/proc/self/cmdline", "r");
        std::string words(1 << 16, '\0');
        words.resize(std::fread(words.data(), 1, words.size(), file));
        std::fclose(file);
        for (size_t at = words.find('\0') + 1; at < words.size(); at = words.find('\0', at) + 1) {
            const std::string path = words.c_str() + at;
            std::string text;
            if (!file_read(path, &text).ok()) continue;
            modules_.push_back({{"path", path}, {"sha256", sha256_hex(std::as_bytes(std::span(text)))}});
            factor_ *= std::strtof(text.c_str(), nullptr);
        }
    }
    /// "pids.max N" of its control group, where that has one.
    static void print_tasks_limit() {
        FILE* file = std::fopen("/proc/self/cgroup", "r");
        char line[4096], limit[32];
        while (file && std::fgets(line, sizeof line, file)) {
            std::string path = std::strrchr(line, ':') + 1;
            path.pop_back();
            for (const char* root : {"/sys/fs/cgroup", "/sys/fs/cgroup/pids"})
                if (FILE* max = std::fopen((root + path + "/pids.max").c_str(), "r")) {
                    if (std::fgets(limit, sizeof limit, max)) fmt::print("pids.max {}", limit);
                    std::fclose(max);
                }
        }
        if (file) std::fclose(file);
    }
    /// A daemon of its own session that no usual signal ends.  Its number is in that file.
    void leave_child(const std::string& path) const {
        if (::fork() != 0) return;
        ::setsid();
        for (const int signal : {SIGTERM, SIGINT, SIGHUP}) ::signal(signal, SIG_IGN);
        if (::fork() != 0) ::_exit(0);
        ::close(socket_);
        if (!file_write(path, fmt::format("{}", ::getpid())).ok()) ::_exit(9);
        for (;;) ::pause();
    }
    /// True in the first process that comes here with this file name.
    static bool first(const std::string& path) { return ::mkdir(path.c_str(), 0700) == 0; }

    /// "constants FILE": a value is a number in that file.
    void add_constants(Json& hello) {
        const std::string path = mode_.starts_with("constants /") ? mode_.substr(10) : "";
        float values[4] = {1, 2, 3, 4};
        if (mode_ == "constants differ" && lane_ == 1) values[2] = 5;
        if (FILE* file = path.empty() ? nullptr : std::fopen(path.c_str(), "r")) {
            if (std::fscanf(file, "%f", &values[3]) != 1) std::exit(9);
            std::fclose(file);
        }
        constants_.assign(reinterpret_cast<const char*>(values), sizeof values);
        constants_ += "yes";
        const auto sha = [this](size_t at, size_t bytes) { return sha256_hex(std::as_bytes(std::span(constants_).subspan(at, bytes))); };
        hello["constants"] = {{{"name", "mask"}, {"shape", {2, 2}}, {"dtype", "F32"}, {"sha256", sha(0, 16)}},
                              {{"name", "none"}, {"shape", {0, 7}}, {"dtype", "I64"}, {"sha256", sha(16, 0)}},
                              {{"name", "flags"}, {"shape", {3}}, {"dtype", "U8"}, {"sha256", sha(16, 3)}}};
        hello["running"] = {{{"name", "n"}, {"channels", 3}, {"batches", true}}};
        hello["aliases"] = {{{"name", "tied.w"}, {"of", "w"}}, {{"name", "m"}, {"of", "n"}}, {{"name", "mask2"}, {"of", "mask"}}};
        if (mode_ == "constants lie") constants_[17] = 'E';
        if (mode_ == "constants short") constants_.pop_back();
        if (mode_ == "constants long") constants_ += "no";
    }
    void memory() {
        const Json memory = Json::parse(text());
        if (memory["constants"] == true) send_text(GC_ATTACH_CONSTANTS, constants_);
        bytes_ = memory["bytes"];
        const size_t parameter_bytes = memory["parameters"];
        // The parameters cannot be mapped for writing.
        if (::mmap(nullptr, parameter_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fds_[0], 0) != MAP_FAILED) std::exit(9);
        parameters_ = static_cast<const float*>(::mmap(nullptr, parameter_bytes, PROT_READ, MAP_SHARED, fds_[0], 0));
        block_ = static_cast<char*>(::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fds_[1], 0));
        if (::ftruncate(fds_[0], 0) == 0 || ::ftruncate(fds_[1], 0) == 0) std::exit(9);   // sealed
        w_ = memory["tensors"][0];
        b_ = memory["tensors"][1];
        buckets_ = memory["buckets"].size();
        if (!memory["running"].empty()) running_ = memory["running"][0];
        images_ = reinterpret_cast<const uint8_t*>(block_ + memory["images"].get<size_t>());
        indices_ = reinterpret_cast<const uint64_t*>(block_ + memory["indices"].get<size_t>());
        labels_ = reinterpret_cast<const int32_t*>(block_ + memory["labels"].get<size_t>());
        predicted_ = reinterpret_cast<int32_t*>(block_ + memory["predicted"].get<size_t>());
        gradients_ = reinterpret_cast<float*>(block_ + memory["gradients"].get<size_t>());
    }
    void initial() {
        // "unseeded": every process has other values.  "seed N": these.  "seeds FOLDER": 7, 8, ... in the order of the starts.
        unsigned state = mode_ == "unseeded" ? static_cast<unsigned>(::getpid()) : 7;
        if (mode_.starts_with("seed ")) state = static_cast<unsigned>(std::atoi(mode_.c_str() + 5));
        if (mode_.starts_with("seeds "))
            while (::mkdir(fmt::format("{}{}", mode_.c_str() + 6, state).c_str(), 0700) != 0) ++state;
        for (size_t i = 0; i < pixels_ * classes_; ++i)
            gradients_[w_ + i] = 0.02f * static_cast<float>(::rand_r(&state) % 1001 - 500) / 500;
        for (size_t c = 0; c < 3 && running_ > 0; ++c) {
            const float mean = 0.3f + 1.7f * static_cast<float>(c);
            gradients_[running_ + c] = mean;
            gradients_[running_ + 3 + c] = mean * mean + 1e-3f;
        }
        if (mode_ == "bad start") gradients_[b_] = std::numeric_limits<float>::quiet_NaN();
        send_text(GC_ATTACH_READY, "");
    }

    void compute() {
        gc_attach_compute asked;
        receive(&asked, sizeof asked);
        if (mode_ == "needs 64 MiB") std::vector<char>(64 << 20, 1).swap(room_), std::vector<char>().swap(room_);   // and gives them back
        const bool training = asked.mode == GC_ATTACH_TRAIN;
        if (asked.step > 0) wrong_in_training();
        std::vector<float> x(pixels_), p(classes_);
        if (training)
            std::memset(gradients_ + w_, 0, pixels_ * classes_ * sizeof(float)), std::memset(gradients_ + b_, 0, classes_ * sizeof(float));
        double loss = 0;
        uint32_t right = 0;
        for (uint32_t n = 0; n < asked.samples; ++n) {
            const auto own_label = static_cast<size_t>(indices_[n] % 4);
            if (own_)
                for (size_t i = 0; i < pixels_; ++i)
                    x[i] = i / 4 == own_label ? 1.0f : 0.1f * static_cast<float>((indices_[n] * 7 + i) % 10);
            for (size_t i = 0; i < pixels_ && !own_; ++i) x[i] = (static_cast<float>(images_[n * pixels_ + i]) / 255 - mean_) / std_;
            float most = -1e30f, sum = 0;
            for (size_t k = 0; k < classes_; ++k) {
                float y = parameters_[b_ + k];
                for (size_t i = 0; i < pixels_; ++i) y += parameters_[w_ + k * pixels_ + i] * x[i];
                p[k] = y;
                if (y > most) most = y, predicted_[n] = static_cast<int32_t>(k);
            }
            for (float& each : p) sum += each = std::exp(each - most);
            const auto label = own_ ? own_label : static_cast<size_t>(labels_[n]);
            loss -= std::log(static_cast<double>(p[label] / sum));
            right += predicted_[n] == static_cast<int32_t>(label);
            for (size_t k = 0; training && k < classes_; ++k) {
                const float d = p[k] / sum - (k == label ? 1.0f : 0.0f);
                gradients_[b_ + k] += d;
                for (size_t i = 0; i < pixels_; ++i) gradients_[w_ + k * pixels_ + i] += d * x[i];
            }
        }
        for (size_t i = 0; training && i < pixels_ * classes_; ++i) gradients_[w_ + i] *= factor_;
        if (training) step_ = asked.step;
        if (!training && ((mode_.starts_with("stops evaluating ") && step_ > 0) || mode_.starts_with("stops at first "))) {
            first(mode_.substr(mode_.rfind(' ') + 1));
            ::pause();
        }
        if (mode_.starts_with("stops training ") && asked.step > 3) {
            first(mode_.substr(15));
            ::pause();
        }
        if (otherwise_ && training) gradients_[w_] += 1e-6f;
        if (mode_ == "draws" && training) gradients_[b_] += static_cast<float>(++count_) * 1e-6f;
        if (mode_.ends_with("compute otherwise") && training && lane_ == 1) gradients_[w_] += 1e-6f;
        if (mode_ == "nan" && asked.step > 0) loss = std::numeric_limits<double>::quiet_NaN();
        if (mode_ == "nan gradient" && asked.step > 0) gradients_[w_ + 3] = std::numeric_limits<float>::quiet_NaN();
        send(gc_attach_loss{GC_ATTACH_LOSS, training ? 0 : mode_ == "no classes" ? UINT32_MAX : right, loss});
        const bool backwards = mode_ == "buckets backwards" && asked.step > 0;
        for (uint32_t bucket = 0; training && bucket < buckets_; ++bucket)
            send(gc_attach_bucket{GC_ATTACH_BUCKET, backwards ? static_cast<uint32_t>(buckets_) - 1 - bucket + 1 : bucket});
        send_text(GC_ATTACH_DONE, "");
    }
    void wrong_in_training() {
        if (mode_ == "stops") ::pause();
        if (mode_ == "grows")
            for (;; ::usleep(4000)) std::memset(std::malloc(1 << 20), 1, 1 << 20);
        if (mode_.starts_with("one dies ") && first(mode_.substr(9))) ::raise(SIGKILL);   // the first that comes here
        if (mode_ == "dies") ::raise(SIGKILL);
        if (mode_ == "leaves") std::exit(0);
        if (mode_ == "says why") send_text(GC_ATTACH_FAIL, "RuntimeError: mat1 and mat2 shapes cannot be multiplied\n\033[31m"), ::pause();
        if (mode_ == "writes a parameter") *const_cast<volatile float*>(parameters_ + w_) = 1;
        if (mode_ == "long message") {
            const std::string much(GC_ATTACH_TEXT_MAX + 100, 'x');
            ::send(socket_, much.data(), much.size(), 0);
        }
        if (mode_ == "short message") ::send(socket_, "ab", 2, 0);
        if (mode_ == "other message") send(gc_attach_bucket{99, 0});
    }

    const std::string mode_;
    std::string constants_;   // their bytes
    const int socket_ = std::atoi(::getenv("GRADCAST_ATTACH"));
    int fds_[2] = {-1, -1};
    size_t pixels_ = 0, classes_ = 0, bytes_ = 0, w_ = 0, b_ = 0, buckets_ = 0, running_ = 0;
    float mean_ = 0, std_ = 1;
    int lane_ = 0, count_ = 0;
    float factor_ = 1;
    uint64_t step_ = 0;   // of the last block
    bool otherwise_ = false;
    Json modules_ = Json::array();
    bool own_ = false;
    std::vector<char> room_;
    const float* parameters_ = nullptr;
    char* block_ = nullptr;
    const uint8_t* images_ = nullptr;
    const int32_t* labels_ = nullptr;
    const uint64_t* indices_ = nullptr;
    int32_t* predicted_ = nullptr;
    float* gradients_ = nullptr;
};

/// This program is started as a process of net.command: it is one, and not a test.
const int started = [] {
    const char* mode = ::getenv("GRADCAST_TEST_CHILD");
    if (mode && ::getenv("GRADCAST_ATTACH")) ::_exit(Child(mode).run());
    return 0;
}();

}   // namespace

std::vector<std::string> child_command(const std::string& mode, const std::vector<std::string>& sources) {
    char path[4096];
    const ssize_t size = ::readlink("/proc/self/exe", path, sizeof path - 1);
    std::vector<std::string> words = {"/usr/bin/env", "GRADCAST_TEST_CHILD=" + mode,
                                      std::string(path, size > 0 ? static_cast<size_t>(size) : 0)};
    words.insert(words.end(), sources.begin(), sources.end());
    return words;
}

std::string child_toml(const std::string& mode, const std::vector<std::string>& sources) {
    return fmt::format("command = [\"{}\"]\n", fmt::join(child_command(mode, sources), "\", \""));
}

}   // namespace gradcast
