// Every fuzz target on its corpus: it compiles, the seeds do no harm, and they still get past its first checks.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "runtime/core/protocol.h"
#include "tests/fuzz/reached.h"

// tests/fuzz/NAME.cc's LLVMFuzzerTestOneInput, as tools/mk/tests.mk renames it.
extern "C" {
int fuzz_attach(const uint8_t*, size_t);
int fuzz_bulk(const uint8_t*, size_t);
int fuzz_checkpoint(const uint8_t*, size_t);
int fuzz_control(const uint8_t*, size_t);
int fuzz_daemon_file(const uint8_t*, size_t);
int fuzz_datagram(const uint8_t*, size_t);
int fuzz_handshake(const uint8_t*, size_t);
int fuzz_import(const uint8_t*, size_t);
int fuzz_job_file(const uint8_t*, size_t);
int fuzz_membership(const uint8_t*, size_t);
int fuzz_packet(const uint8_t*, size_t);
int fuzz_records(const uint8_t*, size_t);
int fuzz_remote(const uint8_t*, size_t);
int fuzz_safetensors(const uint8_t*, size_t);
int fuzz_shard(const uint8_t*, size_t);
int fuzz_view_message(const uint8_t*, size_t);
}

namespace gradcast {
namespace {

namespace fs = std::filesystem;

const fs::path sources = "tests/fuzz";   // of the folder that tests/run is called in

constexpr uint64_t bits_of(std::initializer_list<PacketType> types) {
    uint64_t bits = 0;
    for (PacketType type : types) bits |= uint64_t{1} << static_cast<uint32_t>(type);
    return bits;
}

struct Target {
    const char* name;
    int (*run)(const uint8_t*, size_t);
    uint64_t reaches;   // see fuzz_reached
};
const Target targets[] = {
    {"attach", fuzz_attach, 0b111},            // HELLO, an inventory, sources.json
    {"bulk", fuzz_bulk, 0b111},                // a segment, a repair of ours, a repair of theirs
    {"checkpoint", fuzz_checkpoint, 0b11},     // a model, a checkpoint
    {"control", fuzz_control, 0b11'1111},      // answered, submitted, each kind of JSON
    {"daemon_file", fuzz_daemon_file, 0b11},   // alone, with members
    {"datagram", fuzz_datagram,
     bits_of({PacketType::words, PacketType::record, PacketType::feedback, PacketType::parity, PacketType::probe})},
    {"handshake", fuzz_handshake, 0b11},   // a Hello, an answer to a ClientHello
    {"import", fuzz_import, 0b1111},       // IDX, CIFAR-10, CIFAR-100, images
    {"job_file", fuzz_job_file, 1},
    {"membership", fuzz_membership, 0b1111},   // PREPARE, HELLO, FOUND, DRAIN
    {"packet", fuzz_packet, bits_of({PacketType::words, PacketType::record, PacketType::job, PacketType::mail})},
    {"records", fuzz_records, 0b11},                        // steps.jsonl, transcript.json
    {"remote", fuzz_remote, 0b11},                          // a ClientHello with a key's name, a file of client keys
    {"safetensors", fuzz_safetensors, 0b11},                // to begin from, by its own metadata
    {"shard", fuzz_shard, 0b111},                           // plain, deflated, a sample read
    {"view_message", fuzz_view_message, 0b111'1111'1110},   // every kind, and initial values
};

TEST(Fuzz, EveryTargetIsReplayed) {
    size_t count = 0;
    for (const fs::directory_entry& entry : fs::directory_iterator(sources)) count += entry.path().extension() == ".cc";
    EXPECT_EQ(count, std::size(targets));
}

class Replay : public ::testing::TestWithParam<Target> {};

TEST_P(Replay, ReachesWhatItIsFor) {
    fuzz_reached = 0;
    size_t count = 0;
    for (const fs::directory_entry& entry : fs::directory_iterator(sources / "corpus" / GetParam().name)) {
        std::ifstream file(entry.path(), std::ios::binary);
        const std::vector<char> bytes(std::istreambuf_iterator<char>(file), {});
        EXPECT_EQ(GetParam().run(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()), 0);
        ++count;
    }
    EXPECT_GT(count, 0u);
    EXPECT_EQ(GetParam().reaches & ~fuzz_reached, 0u) << "of " << count << " seeds";
}

INSTANTIATE_TEST_SUITE_P(Fuzz, Replay, ::testing::ValuesIn(targets), [](const auto& target) { return std::string(target.param.name); });

}   // namespace
}   // namespace gradcast
