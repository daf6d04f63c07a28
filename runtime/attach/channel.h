// The conversation with one process of net.command, message by message.  What the messages mean is in README.md.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "runtime/attach/process.h"
#include "runtime/attach/wire.h"
#include "runtime/core/fd.h"

namespace gradcast {

/// Any kind of message from a process.
union AttachMessage {
    uint32_t kind;
    gc_attach_loss loss;
    gc_attach_bucket bucket;
    struct {
        gc_attach_text head;
        char text[GC_ATTACH_TEXT_MAX];
    } text;
};

/// One thread at a time.  Every error names the process.  It is Code::invalid where the process has failed, said so, or sent what the
/// border has not; Code::deadline where it has not answered in time; Code::cancelled where `stopped` is true.
class ProcessChannel {
public:
    /// Until when an answer is waited for, and what ends the wait before, within 50 ms.
    struct Wait {
        uint64_t until_us;
        std::function<bool()> stopped = {};
    };

    /// Starts the process.  config: all but its socket.
    Status start(ProcessConfig config);
    /// The process is to end: it has two seconds for that.
    void close();
    /// Waits for its end; then it is killed.
    void end();

    /// In pieces; `fds` go with the last one.
    Status send_text(gc_attach_kind kind, std::string_view text, const Wait& wait, std::span<const int> fds = {});
    Status send(const gc_attach_compute& message);
    /// The next message; of a text *bytes is its length.  FAIL is an error here.
    Status receive(const Wait& wait, AttachMessage* message, size_t* bytes);
    /// The next text, which must be of this kind, as a whole.
    Status receive_text(gc_attach_kind kind, const Wait& wait, std::string* text);

    /// "the process of lane 0 (python3 train.py)"
    const std::string& name() const { return name_; }
    /// An error about what it sent.
    Status wrong(std::string_view what);
    /// Some error was the process's.  Any thread.
    bool failed() const { return failed_.load(std::memory_order_relaxed); }
    ProcessMemory memory() const { return process_ ? process_->memory() : ProcessMemory(); }
    /// Process::limit_memory()
    void limit_memory(uint64_t bytes) {
        if (process_) process_->limit_memory(bytes);
    }

private:
    Status send_packet(std::span<const std::byte> head, std::string_view text, const Wait& wait, std::span<const int> fds);
    /// Its end of the socket is closed.
    Status ended();
    template <typename... Args>
    Status failure(Code code, fmt::format_string<Args...> format, Args&&... args) {
        failed_.store(true, std::memory_order_relaxed);
        return fail(code, format, std::forward<Args>(args)...);
    }

    std::string name_;
    Fd socket_;
    std::unique_ptr<Process> process_;
    std::atomic<bool> failed_{false};   // a flag: it orders nothing
    uint64_t closed_us_ = 0;            // when the socket was closed
    uint64_t asked_us_ = 0;             // when the last message was sent
};

}   // namespace gradcast
