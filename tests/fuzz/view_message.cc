// A message about views: whatever comes is refused, or is what writing it again gives; then a member takes it.
#include <cstring>

#include "runtime/core/status.h"
#include "runtime/view/change.h"
#include "tests/fuzz/reached.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace gradcast;
    ViewMessage message;
    const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
    if (!view_message_parse(bytes, &message)) return 0;
    fuzz_reaches(static_cast<uint32_t>(message.what.index() + 1));
    if (const auto* state = std::get_if<ViewMessage::State>(&message.what); state && state->state.initial) fuzz_reaches(10);
    const std::vector<std::byte> again = view_message_write(message);
    GC_ASSERT(again.size() == size && std::memcmp(again.data(), data, size) == 0);

    constexpr uint64_t deadline_us = 4'000'000;
    const ViewExchange exchange{"ring", 2, 1, 0};
    const AgreedView first{.number = 1,
                           .parent = 0,
                           .deadline_us = deadline_us,
                           .exchange = exchange,
                           .action = {},
                           .members = {{NodeId{0}, 1, 1}, {NodeId{1}, 1, 1}, {NodeId{2}, 1, 1}}};
    ViewChange member({.self = NodeId{0}, .incarnation = 1, .nodes = 4, .deadline_us = deadline_us});
    member.begin(first, 1);
    if (message.is<ViewMessage::Promise>() || message.is<ViewMessage::Accepted>()) member.suspect(NodeId{2}, Suspicion::stuck, 1);
    member.receive(message, 2);
    for (uint64_t now_us = 2; now_us < 3 * deadline_us && member.next_us() > 0; now_us = std::max(now_us + 1, member.next_us())) {
        member.tick(now_us);
        GC_ASSERT(member.sends().size() < 100 && member.notices().size() < 10);
        member.sends().clear(), member.notices().clear();
    }
    return 0;
}
