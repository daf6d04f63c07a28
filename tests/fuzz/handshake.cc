// Bytes of a peer that has no key into either side of a handshake, and bytes of one that has into the parser behind TLS.
// The first byte chooses which, and the pieces.
#include <algorithm>
#include <cstdint>

#include "tests/fuzz/reached.h"
#include "transport/stream/handshake.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace gradcast;
    if (size < 1) return 0;
    std::span rest = std::as_bytes(std::span(data, size)).subspan(1);
    Hello own;
    own.name = "fuzz";
    own.stream = 1;
    if (data[0] % 4 == 0) {
        Hello hello;
        size_t used = 0;
        if (hello_parse(rest, &hello, &used) || !used) return 0;
        fuzz_reaches(0);
        GC_ASSERT(used <= rest.size() && !hello.name.empty());
        std::vector<std::byte> again;
        hello_write(hello, &again);
        Hello back;
        GC_ASSERT(!hello_parse(again, &back, &used) && used == again.size() && back.name == hello.name && back.reason == hello.reason);
        return 0;
    }
    static const auto tls = std::make_shared<TlsContext>(std::vector<ClusterKey>{{"k1", {1, 2, 3}}});
    Handshake handshake(tls, data[0] % 4 == 1 ? Handshake::Side::connector : Handshake::Side::acceptor, own);
    size_t piece = 1 + data[0] * size_t{4};
    while (!rest.empty()) {
        size_t used = handshake.feed(rest.first(std::min(piece, rest.size())));
        fuzz_reaches(1, data[0] % 4 != 1 && !handshake.output().empty() && handshake.state() == Handshake::State::negotiating);
        handshake.wrote(handshake.output().size());
        rest = rest.subspan(used);
        if (used == 0) break;
    }
    GC_ASSERT(handshake.state() == Handshake::State::negotiating || handshake.state() == Handshake::State::failed);   // it has no key
    return 0;
}
