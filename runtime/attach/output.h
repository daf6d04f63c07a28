// What a process of the user prints, as lines for the job's log: bounded, and readable as one line of UTF-8 each.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace gradcast {

/// Cuts the two streams of one process into lines and passes them on.  A line ends at '\n' or '\r', so each state of a progress bar is a
/// line of its own; empty lines are left out.  A line has at most line_max bytes and then says how many are missing.  Bytes that are not
/// UTF-8 become '?'; control characters and the escape sequences of terminals are left out.
/// Passes on second_max bytes a second and all_max in total; one line says when lines are dropped.
/// Not thread-safe.  Memory: 2 line_max, whatever the process prints.
class ProcessOutput {
public:
    static constexpr size_t line_max = 4096, last_max = 1024;   // bytes
    static constexpr uint64_t second_max = 64 << 10, all_max = 16 << 20;
    enum class Stream : uint8_t { out, error };

    /// line: may be empty; then nothing is passed on.
    explicit ProcessOutput(std::function<void(std::string_view line)> line) : line_(std::move(line)) {}
    /// The next bytes of a stream.  now_us: of a clock that does not go back.
    void push(Stream stream, std::string_view bytes, uint64_t now_us);
    /// The streams have ended: passes on what stands after their last line end.
    void finish(uint64_t now_us);
    /// The last line of the error stream, also where it was dropped or has no line end yet; at most last_max bytes.
    std::string last_error() const;

private:
    struct Line {
        std::string text;       // at most line_max bytes
        uint64_t missing = 0;   // bytes that came after them
    };
    void end(Stream stream, uint64_t now_us);
    void pass(std::string_view text, uint64_t now_us);

    std::function<void(std::string_view)> line_;
    Line lines_[2];
    std::string last_error_;
    uint64_t second_us_ = 0, second_bytes_ = 0, all_bytes_ = 0;
    bool dropped_ = false;   // in this second
    bool flooded_ = false;   // the line about dropped lines is passed on, and no second without drops has gone by since
    bool full_ = false;      // all_max is reached
};

/// One line of `text`: valid UTF-8 without control characters and without the escape sequences of terminals.
std::string printable(std::string_view text);

}   // namespace gradcast
