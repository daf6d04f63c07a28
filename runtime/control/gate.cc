#include "runtime/control/gate.h"

#include <fmt/format.h>
#include <poll.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "runtime/control/client_socket.h"
#include "runtime/core/clock.h"
#include "runtime/core/net/socket.h"
#include "runtime/core/thread.h"

namespace gradcast {
namespace {

constexpr uint64_t piece_bytes = 256 << 10;   // that are written at once
constexpr uint64_t drain_bytes_max = 64 << 20;
constexpr uint64_t round_us = 1'000'000;   // how often deadlines are looked at
constexpr uint64_t crowded_us = 100'000;   // no new connections for so long when there is no descriptor for one

enum class State : uint8_t { reading, serving, writing, watching, draining };

struct Connection {
    ClientSocket socket;
    std::string address;   // of a client of TLS
    State state = State::reading;
    std::string in, out;
    Fd file;   // its next bytes follow `out`
    off_t file_offset = 0;
    uint64_t file_bytes = 0;
    uint64_t serving_bytes = 0;    // of the request that a worker has
    size_t head = 0, wanted = 0;   // bytes of the head and of the whole request; 0: not known
    bool drain = false;            // the client sends more than is read
    uint64_t waits_us = 0;         // since when for the client; of a watcher: last time that all was written
    uint64_t dropped = 0;          // bytes
    std::string watch, last;       // last: the event that was sent last
    uint64_t event_us = 0;         // when
    std::shared_ptr<void> seat;
    bool unsent() const { return !out.empty() || file_bytes > 0 || socket.unsent(); }
    bool waits() const { return state != State::serving && (state != State::watching || unsent()); }
};

struct Event {
    std::string text;
    bool last = false;
};
using Events = std::map<std::string, Event>;   // by watched job

std::string chunk(const std::string& text) { return fmt::format("{:x}\r\n{}\r\n", text.size(), text); }

/// The length of the body by its head; 0 if the head has none.
uint64_t content_length(const std::string& head) {
    constexpr std::string_view key = "content-length:";
    for (size_t at = head.find('\n'); at != std::string::npos && at + key.size() < head.size(); at = head.find('\n', at + 1))
        if (::strncasecmp(head.data() + at + 1, key.data(), key.size()) == 0)
            return std::strtoull(head.c_str() + at + 1 + key.size(), nullptr, 10);
    return 0;
}

class PollGate final : public Gate {
public:
    PollGate(const GateConfig& config, Fd listener, GateHandler handler)
        : config_(config),
          listener_(std::move(listener)),
          handler_(std::move(handler)),
          keys_(config.keys),
          wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
        GC_ASSERT(wake_);
    }

    Status start() {
        for (uint32_t i = 0; i < config_.workers; ++i) {
            Thread worker;
            GC_TRY(worker.start([this] { work(); }));
            workers_.push_back(std::move(worker));
        }
        return thread_.start([this] { run(); });
    }

    ~PollGate() override {
        {
            std::lock_guard lock(mutex_);
            stop_ = true;
        }
        there_is_work_.notify_all();
        wake();
        if (thread_.joinable()) thread_.join();
        for (Thread& worker : workers_) worker.join();
    }

    void keys(std::shared_ptr<const TlsKeys> keys) override {
        GC_ASSERT(config_.keys && keys);
        std::lock_guard lock(mutex_);
        new_keys_ = std::move(keys);
        wake();
    }

private:
    // ---- workers ----

    void work() {
        std::unique_lock lock(mutex_);
        for (;;) {
            there_is_work_.wait(lock, [this] { return stop_ || (!tasks_.empty() && busy_ + answers_.size() < config_.workers); });
            if (stop_) return;
            ++busy_;
            std::function<void()> task = std::move(tasks_.front());
            tasks_.pop_front();
            lock.unlock();
            task();
            task = {};   // with the request
            lock.lock();
            --busy_;
        }
    }
    void give(std::function<void()> task) {
        std::lock_guard lock(mutex_);
        tasks_.push_back(std::move(task));
        there_is_work_.notify_one();
    }
    void wake() { (void)!::eventfd_write(wake_.get(), 1); }

    // ---- the gate's thread ----

    void run() {
        std::vector<pollfd> polls;
        std::vector<uint64_t> ids;
        for (;;) {
            polls.clear();
            ids.clear();
            polls.push_back({wake_.get(), POLLIN, 0});
            polls.push_back({now_us_ < crowded_until_us_ ? -1 : listener_.get(), POLLIN, 0});
            bool watched = false;
            for (const auto& [id, each] : connections_) {
                watched |= each.state == State::watching;
                if (each.state == State::serving) continue;   // a client that goes away would be reported again and again
                const bool write = each.unsent(), read = each.state != State::writing;
                polls.push_back({each.socket.fd(), static_cast<short>((write ? POLLOUT : 0) | (read ? POLLIN : 0)), 0});
                ids.push_back(id);
            }
            const uint64_t wait_us = watched ? config_.watch_us : now_us_ < crowded_until_us_ ? crowded_us : round_us;
            ::poll(polls.data(), polls.size(), static_cast<int>(wait_us / 1000));
            now_us_ = clock_us();
            if (polls[0].revents && !finished()) return;
            for (size_t i = 0; i < ids.size(); ++i) {
                const auto at = connections_.find(ids[i]);   // finished() may have closed it
                if (polls[i + 2].revents && at != connections_.end() && !advance(at->first, at->second)) connections_.erase(at);
            }
            if (polls[1].revents) accept();
            std::erase_if(connections_, [&](const auto& each) {
                const Connection& one = each.second;
                return one.waits() && now_us_ - one.waits_us > (one.socket.stranger() ? config_.stranger_us : config_.client_us);
            });
            bound_buffers();
            if (!looking_ && now_us_ >= look_us_) look();
        }
    }

    void accept() {
        for (uint32_t i = 0; i < config_.connections_max; ++i) {
            SocketAddress from;
            from.bytes = sizeof from.storage;
            Fd fd(::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&from.storage), &from.bytes, SOCK_CLOEXEC | SOCK_NONBLOCK));
            if (!fd && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)) {
                if (drop_longest()) continue;
                crowded_until_us_ = now_us_ + crowded_us;
            }
            if (!fd) return;
            if (connections_.size() >= config_.connections_max && !drop_longest()) return;   // all are being served: this one is closed
            if (keys_ && strangers() >= config_.strangers_max) drop_longest();
            Connection& made = connections_[++last_id_];
            made.socket = ClientSocket(std::move(fd), keys_);
            if (keys_) made.address = address_text(from);
            made.waits_us = now_us_;
        }
    }

    /// Closes the one that has waited longest for its client, a stranger where there is one.  False: none waits.
    bool drop_longest() {
        auto longest = connections_.end();
        auto before = [](const Connection& a, const Connection& b) {
            if (a.socket.stranger() != b.socket.stranger()) return a.socket.stranger();
            return a.waits_us < b.waits_us;
        };
        for (auto at = connections_.begin(); at != connections_.end(); ++at)
            if (at->second.waits() && (longest == connections_.end() || before(at->second, longest->second))) longest = at;
        if (longest == connections_.end()) return false;
        connections_.erase(longest);
        return true;
    }

    void bound_buffers() {
        while (buffered() > config_.buffers_bytes_max && drop_longest()) {
        }
    }
    uint64_t buffered() const {
        uint64_t bytes = 0;
        for (const auto& [id, each] : connections_)
            bytes += each.in.capacity() + each.out.capacity() + each.serving_bytes + each.socket.bytes();
        return bytes;
    }
    size_t strangers() const {
        return static_cast<size_t>(
            std::count_if(connections_.begin(), connections_.end(), [](const auto& each) { return each.second.socket.stranger(); }));
    }
    uint64_t serving() const {
        uint64_t bytes = 0;
        for (const auto& [id, each] : connections_) bytes += each.serving_bytes;
        return bytes;
    }

    /// Whatever the socket is ready for.  False: the connection has ended.
    bool advance(uint64_t id, Connection& each) {
        switch (each.state) {
            case State::reading: return each.socket.flush() && read(id, each);
            case State::writing: return write(each);
            case State::watching: return listen(each) && (!each.unsent() || write(each));
            case State::draining: return drain(each);
            case State::serving: return true;
        }
        return false;
    }

    bool read(uint64_t id, Connection& each) {
        for (char piece[16 << 10];;) {
            const ssize_t got = each.socket.receive(piece);
            if (got < 0) return errno == EAGAIN || errno == EINTR;
            if (got == 0) {
                const std::string why = each.in.empty() ? each.socket.why() : "";
                if (!why.empty() && each.socket.stranger() && handler_.refused) handler_.refused(each.address, why);
                return false;
            }
            each.in.append(piece, static_cast<size_t>(got));
            if (each.head == 0) {
                const size_t end = each.in.find("\r\n\r\n");
                if (end == std::string::npos && each.in.size() > config_.head_bytes_max) return begin_answer(each, config_.head_too_large);
                if (end == std::string::npos) continue;
                each.head = each.wanted = end + 4;
                const uint64_t body = content_length(each.in.substr(0, each.head));
                each.drain = body > config_.body_bytes_max;   // the server refuses it by its head
                if (!each.drain) each.wanted += body;
            }
            if (each.in.size() < each.wanted) continue;
            each.in.resize(each.wanted);
            if (serving() + each.in.size() > config_.buffers_bytes_max) return false;
            each.state = State::serving;
            each.serving_bytes = each.in.size();
            Caller caller{config_.role, {}, each.address};
            if (const ControlKey* key = each.socket.key()) {
                caller.role = key->role;
                caller.name = key->name;
            }
            give([this, id, request = std::move(each.in), caller = std::move(caller)] {
                Answer answer = handler_.serve(request, caller);
                std::lock_guard lock(mutex_);
                answers_.emplace_back(id, std::move(answer));
                wake();
            });
            each.in = {};
            return true;
        }
    }

    bool begin_answer(Connection& each, std::string bytes) {
        each.in = {};
        each.out = std::move(bytes);
        each.state = each.watch.empty() ? State::writing : State::watching;
        each.waits_us = now_us_;
        return write(each);
    }

    bool write(Connection& each) {
        while (!each.out.empty()) {
            const ssize_t put = each.socket.send(std::span(each.out).first(std::min(each.out.size(), piece_bytes)));
            if (put < 0) return errno == EAGAIN || errno == EINTR;
            each.out.erase(0, static_cast<size_t>(put));
            each.waits_us = now_us_;
        }
        each.out = {};
        while (each.file_bytes > 0) {
            const ssize_t put = each.socket.send_file(each.file.get(), &each.file_offset, std::min(each.file_bytes, piece_bytes));
            if (put < 0) return errno == EAGAIN || errno == EINTR;
            if (put == 0) return false;   // the file has become shorter
            each.file_bytes -= static_cast<uint64_t>(put);
            each.waits_us = now_us_;
        }
        if (!each.socket.flush()) return false;
        if (each.socket.unsent() || each.state == State::watching) return true;
        if (!each.drain) return false;
        each.socket.shut();
        each.state = State::draining;
        return true;
    }

    /// What a watcher sends is dropped; its end is the end.
    bool listen(Connection& each) {
        char piece[4096];
        const ssize_t got = each.socket.receive(piece);
        return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
    }

    bool drain(Connection& each) {
        char piece[64 << 10];
        const ssize_t got = each.socket.receive(piece);
        if (got < 0) return errno == EAGAIN || errno == EINTR;
        each.dropped += static_cast<uint64_t>(got);
        return got > 0 && each.dropped < drain_bytes_max;
    }

    /// Takes what the workers have finished.  False: the gate ends.
    bool finished() {
        eventfd_t count;
        (void)!::eventfd_read(wake_.get(), &count);
        std::vector<std::pair<uint64_t, Answer>> answers;
        std::optional<Events> events;
        bool changed = false;
        {
            std::lock_guard lock(mutex_);
            if (stop_) return false;
            answers.swap(answers_);
            events.swap(events_);
            if (new_keys_) {
                keys_ = std::move(new_keys_);
                changed = true;
            }
        }
        if (changed)
            std::erase_if(connections_, [&](const auto& each) { return each.second.state != State::serving && !stays(each.second); });
        there_is_work_.notify_all();
        for (auto& [id, answer] : answers) {
            Connection& each = connections_.at(id);   // nothing closes one that is being served
            each.serving_bytes = 0;
            each.watch = std::move(answer.watch);
            each.seat = std::move(answer.seat);
            each.file = std::move(answer.file);
            each.file_offset = static_cast<off_t>(answer.file_offset);
            each.file_bytes = answer.file_bytes;
            if (!each.watch.empty()) look_us_ = 0;
            if (!stays(each) || !begin_answer(each, std::move(answer.bytes))) connections_.erase(id);
            bound_buffers();
        }
        if (events) {
            looking_ = false;
            for (auto at = connections_.begin(); at != connections_.end();)
                at = at->second.state == State::watching && !send_event(at->second, *events) ? connections_.erase(at) : std::next(at);
        }
        return true;
    }

    /// Whether its client's key still is one.
    bool stays(const Connection& each) const {
        const ControlKey* key = each.socket.key();
        if (!key) return true;
        return std::any_of(keys_->keys.begin(), keys_->keys.end(), [&](const ControlKey& now) {
            return now.identity == key->identity && now.role == key->role && now.secret == key->secret;
        });
    }

    bool send_event(Connection& each, const Events& events) {
        auto event = events.find(each.watch);
        if (event == events.end() || !each.out.empty()) return true;   // came after the look, or reads slowly and gets the next one
        const auto& [text, last] = event->second;
        if (text != each.last) each.out = chunk(each.last = text);
        else if (now_us_ - each.event_us >= config_.idle_us) each.out = chunk(":\n\n");
        else return true;
        each.event_us = each.waits_us = now_us_;
        if (last) {
            each.out += "0\r\n\r\n";
            each.state = State::writing;
        }
        return write(each);
    }

    /// One worker looks at all jobs that are watched.
    void look() {
        std::set<std::string> watched;
        for (const auto& [id, each] : connections_)
            if (each.state == State::watching) watched.insert(each.watch);
        look_us_ = now_us_ + config_.watch_us;
        if (watched.empty()) return;
        looking_ = true;
        give([this, watched = std::move(watched)] {
            Events events;
            for (const std::string& job : watched) {
                Event event;
                event.text = handler_.look(job, &event.last);
                events.emplace(job, std::move(event));
            }
            std::lock_guard lock(mutex_);
            events_ = std::move(events);
            wake();
        });
    }

    const GateConfig config_;
    const Fd listener_;
    const GateHandler handler_;
    std::shared_ptr<const TlsKeys> keys_;   // the gate's thread alone, as what follows
    const Fd wake_;
    std::map<uint64_t, Connection> connections_;
    uint64_t last_id_ = 0, now_us_ = 0, look_us_ = 0, crowded_until_us_ = 0;
    bool looking_ = false;
    // Under the mutex:
    std::mutex mutex_;
    std::condition_variable there_is_work_;
    std::deque<std::function<void()>> tasks_;
    uint32_t busy_ = 0;   // workers
    std::vector<std::pair<uint64_t, Answer>> answers_;
    std::optional<Events> events_;
    std::shared_ptr<const TlsKeys> new_keys_;
    bool stop_ = false;
    std::vector<Thread> workers_;
    Thread thread_;
};

}   // namespace

Status gate_open(const GateConfig& config, Fd listener, GateHandler handler, std::unique_ptr<Gate>* gate) {
    auto made = std::make_unique<PollGate>(config, std::move(listener), std::move(handler));
    GC_TRY(made->start());
    *gate = std::move(made);
    return {};
}

}   // namespace gradcast
