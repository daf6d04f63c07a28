// Messages between daemons: whatever comes is refused, or is what writing it again gives.  The first byte says which message.
#include <cstring>

#include "runtime/mesh/membership.h"
#include "runtime/mesh/membership_messages.h"
#include "tests/fuzz/reached.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace gradcast;
    if (size == 0) return 0;
    const std::span<const std::byte> bytes = std::as_bytes(std::span(data + 1, size - 1));
    const uint32_t kind = data[0] % 4;
    if (kind == 0) {
        JobPlan plan, again;
        if (!plan_parse(bytes, &plan)) return 0;
        const std::vector<std::byte> written = plan_write(plan);
        GC_ASSERT(plan_parse(written, &again) && plan_write(again) == written);
        GC_ASSERT(plan.text.size() <= job_text_max && plan.members.size() <= ranks_max && plan.first_nodes() <= plan.members.size());
    } else if (kind == 1) {
        NodeHello hello, again;
        if (!hello_parse(bytes, &hello)) return 0;
        const std::vector<std::byte> written = hello_write(hello);
        GC_ASSERT(hello_parse(written, &again) && hello_write(again) == written);
    } else if (kind == 2) {
        Found found, again;
        uint64_t request = 0;
        MessageReader reader{bytes};
        const JobId id = reader.id();
        if (!found_parse(reader, &request, &found)) return 0;
        const std::vector<std::byte> written = found_write(id, request, found);
        reader = {written};
        reader.id();
        GC_ASSERT(found_parse(reader, &request, &again) && found_write(id, request, again) == written);
    } else {
        Drain drain;
        if (!drain_parse(bytes, &drain)) return 0;
        GC_ASSERT(drain_write(drain).size() == bytes.size());
    }
    fuzz_reaches(kind);
    return 0;
}
