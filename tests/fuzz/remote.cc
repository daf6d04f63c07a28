// Control over TCP: bytes of somebody without a key into either side of TLS, and the files of keys.  The first byte chooses which, and the
// pieces.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "runtime/control/tls.h"
#include "runtime/core/fd.h"
#include "tests/fuzz/reached.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace gradcast;
    if (size < 1) return 0;
    std::span rest(reinterpret_cast<const char*>(data) + 1, size - 1);
    if (data[0] % 3 == 2) {
        static const std::string path = std::filesystem::temp_directory_path() / fmt::format("gradcast-fuzz-{}.keys", ::getpid());
        {
            const Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
            GC_ASSERT(fd && ::write(fd.get(), rest.data(), rest.size()) == static_cast<ssize_t>(rest.size()));
        }
        std::vector<ControlKey> keys;
        const Status status = client_keys_read(path, &keys);
        if (!status.ok()) GC_ASSERT(std::strstr(status.what, path.c_str()) && !std::strchr(status.what, '\n'));
        for (const ControlKey& each : keys) GC_ASSERT(each.role != Role::none && !each.name.empty() && each.name.size() <= 32);
        fuzz_reaches(1, !keys.empty());
        ControlKey own;
        if (own_key_read(path, &own).ok()) GC_ASSERT(own.role != Role::none && !own.name.empty());
        ::unlink(path.c_str());
        return 0;
    }
    static const auto keys = std::make_shared<const TlsKeys>(std::vector{client_key("ana", Role::view, {1, 2, 3})});
    const bool accepts = data[0] % 3 == 0;
    TlsEnd end(keys, accepts ? TlsEnd::Side::acceptor : TlsEnd::Side::connector);
    const size_t piece = 1 + data[0] * size_t{4};
    bool good = true;
    while (good && !rest.empty()) {
        const size_t now = std::min(piece, rest.size());
        good = end.receive(rest.first(now));
        rest = rest.subspan(now);
        end.wrote(end.output().size());
    }
    fuzz_reaches(0, accepts && end.keys_differ());
    GC_ASSERT(!end.open() && good == end.why().empty() && end.why().find('\n') == std::string::npos);
    return 0;
}
