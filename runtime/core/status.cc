#include "runtime/core/status.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>

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

Status fail_text(Code code, int sys, std::string_view message) {
    // A set, because a Status is copied freely and nobody could say when its text may go; errors are rare and repeat.
    static std::mutex mutex;
    static std::set<std::string, std::less<>>& texts = *new std::set<std::string, std::less<>>;
    std::string text(message);
    if (sys != 0) text.append(": ").append(std::strerror(sys));
    std::lock_guard lock(mutex);
    return {code, sys, texts.insert(std::move(text)).first->c_str()};
}

void assert_failed(const char* expression, const char* file, int line) {
    std::fprintf(stderr, "%s:%d: assertion failed: %s\n", file, line, expression);
    std::abort();
}

}   // namespace gradcast
