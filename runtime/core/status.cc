#include "runtime/core/status.h"
#include "runtime/core/short_texts.h"

#include <sys/resource.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace gradcast {

const char* code_name(Code code) {
    switch (code) {
        case Code::ok: return "ok";
        case Code::packet_invalid: return "packet_invalid";
        case Code::peer_lost: return "peer_lost";
        case Code::peer_refused: return "peer_refused";
        case Code::view_changed: return "view_changed";
        case Code::cancelled: return "cancelled";
        case Code::deadline: return "deadline";
        case Code::diverged: return "diverged";
        case Code::conflict: return "conflict";
        case Code::invalid: return "invalid";
        case Code::data: return "data";
        case Code::node_io: return "node_io";
        case Code::node_memory: return "node_memory";
        case Code::unsupported: return "unsupported";
    }
    return "?";
}

namespace {

constexpr size_t texts_kept = 4096, text_bytes = 512;   // most texts are one line
constexpr size_t long_texts_kept = 64, long_text_bytes = 16 << 10;

/// The latest texts, each once, in slots that are never freed: pointers stay valid memory.  A slot is reused after all others have been
/// filled since its text was last made.
class Texts {
public:
    Texts(size_t count, size_t bytes) : count_(count), bytes_(bytes), slots_(static_cast<char*>(std::calloc(count, bytes))), again_(count) {
        GC_ASSERT(slots_);
    }
    const char* keep(std::string_view text) {
        text = text.substr(0, bytes_ - 1);
        std::lock_guard lock(mutex_);
        if (auto found = by_text_.find(text); found != by_text_.end()) {
            again_[found->second] = true;
            return slots_ + found->second * bytes_;
        }
        while (again_[next_]) {
            again_[next_] = false;
            next_ = (next_ + 1) % count_;
        }
        const size_t slot = std::exchange(next_, (next_ + 1) % count_);
        char* kept = slots_ + slot * bytes_;
        if (auto old = by_text_.find(std::string_view(kept)); old != by_text_.end() && old->second == slot) by_text_.erase(old);
        text.copy(kept, text.size());
        kept[text.size()] = '\0';
        by_text_.emplace(std::string_view(kept, text.size()), slot);
        return kept;
    }

private:
    const size_t count_, bytes_;
    char* const slots_;
    std::vector<bool> again_;   // the text was made again since the last round
    size_t next_ = 0;
    std::unordered_map<std::string_view, size_t> by_text_;
    std::mutex mutex_;
};

thread_local uint32_t short_lived = 0;   // number of ShortTexts that exist

/// Keeps a text for this thread alone.
const char* keep_short(std::string_view text) {
    constexpr size_t kept = 64;
    thread_local std::array<std::string, kept> texts;
    thread_local size_t next = 0;
    std::string& slot = texts[next++ % kept];
    slot = text.substr(0, long_text_bytes - 1);
    return slot.c_str();
}

}   // namespace

ShortTexts::ShortTexts() { ++short_lived; }
ShortTexts::~ShortTexts() { --short_lived; }

Status fail_text(Code code, int sys, std::string_view message) {
    static Texts& texts = *new Texts(texts_kept, text_bytes);   // never freed: errors may be printed while the process exits
    static Texts& long_texts = *new Texts(long_texts_kept, long_text_bytes);
    std::string text(message);
    if (sys != 0) text.append(": ").append(std::strerror(sys));
    if (rlimit limit; sys == EMFILE && ::getrlimit(RLIMIT_NOFILE, &limit) == 0)
        text.append(fmt::format(" (RLIMIT_NOFILE is {}: raise it by ulimit -n, or LimitNOFILE= of systemd)", limit.rlim_cur));
    if (const size_t nul = text.find('\0'); nul != std::string::npos) text.resize(nul);
    return {code, sys, short_lived ? keep_short(text) : text.size() < text_bytes ? texts.keep(text) : long_texts.keep(text)};
}

void assert_failed(const char* expression, const char* file, int line) {
    std::fprintf(stderr, "%s:%d: assertion failed: %s\n", file, line, expression);
    std::abort();
}

}   // namespace gradcast
