// Errors by value.  A failure of the environment is a Status, always handled; a bug is a GC_ASSERT, also in release builds.
//
// The code that finds an error calls fail() with one sentence that names the thing and the way out; callers pass it on with GC_TRY; the
// outermost code (a command's main, the end of a job, an HTTP reply) prints `what` once.
#pragma once
#include <fmt/core.h>

#include <cstdint>
#include <string_view>

namespace gradcast {

/// Grouped by what must be rebuilt afterwards.
enum class Code : uint8_t {
    ok,
    packet_invalid,   // one packet is dropped
    peer_lost,        // a peer: dead, or silent longer than its time-out
    peer_refused,     // a peer: wrong key, version, identity, job
    view_changed,     // the step is repeated in the next view
    cancelled,        // the job: ended on request
    deadline,         // the job: no answer in time
    diverged,         // the job: NaN or Inf in a gradient
    conflict,         // the job: two ranks have different bits that must be equal
    invalid,          // wrong input of a user (file, flag, job, checkpoint)
    data,             // a data set or checkpoint on disk is missing, broken or of another format
    node_io,          // this node: a system call failed (sys holds errno)
    node_memory,      // this node: out of memory, or over a limit
    unsupported,      // this build or machine cannot do it
};

/// 16 bytes, returned in registers.  `what` is "" for ok; its memory is always readable, its text valid until thousands of later errors.
struct [[nodiscard]] Status {
    Code code = Code::ok;
    int32_t sys = 0;   // errno or a library's code; 0: none
    const char* what = "";
    bool ok() const { return code == Code::ok; }
};
static_assert(sizeof(Status) == 16);

const char* code_name(Code code);   // "peer_lost"

/// Makes an error.  Texts are cut at 16 KiB; equal texts share one pointer.  To keep an error for long, copy its text.  Any thread;
/// allocates.
Status fail_text(Code code, int sys, std::string_view message);

template <typename... Args>
Status fail(Code code, fmt::format_string<Args...> format, Args&&... args) {
    return fail_text(code, 0, fmt::format(format, std::forward<Args>(args)...));
}

/// A failed system call: appends ": <strerror(sys)>" to the message.
template <typename... Args>
Status fail_sys(int sys, fmt::format_string<Args...> format, Args&&... args) {
    return fail_text(Code::node_io, sys, fmt::format(format, std::forward<Args>(args)...));
}

[[noreturn]] void assert_failed(const char* expression, const char* file, int line);

}   // namespace gradcast

#define GC_TRY(expression)                                                                     \
    do {                                                                                       \
        if (::gradcast::Status gc_status_ = (expression); !gc_status_.ok()) return gc_status_; \
    } while (0)
#define GC_ASSERT(expression) ((expression) ? static_cast<void>(0) : ::gradcast::assert_failed(#expression, __FILE__, __LINE__))
