// Every fuzz target on its corpus: it compiles, the seeds do no harm, and they still get past its first checks.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
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
int fuzz_typed_shard(const uint8_t*, size_t);
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
    {"attach", fuzz_attach, 0b111},               // HELLO, an inventory, sources.json
    {"bulk", fuzz_bulk, 0b111},                   // a segment, a repair of ours, a repair of theirs
    {"checkpoint", fuzz_checkpoint, 0b11'1111},   // a model, a checkpoint: of labels, of a text, of masks
    {"control", fuzz_control, 0b11'1111},         // answered, submitted, each kind of JSON
    {"daemon_file", fuzz_daemon_file, 0b11},      // alone, with members
    {"datagram", fuzz_datagram,
     bits_of({PacketType::words, PacketType::record, PacketType::feedback, PacketType::parity, PacketType::probe})},
    {"handshake", fuzz_handshake, 0b11},         // a Hello, an answer to a ClientHello
    {"import", fuzz_import, 0b1111'1111'1111},   // every case
    {"job_file", fuzz_job_file, 1},
    {"membership", fuzz_membership, 0b1111},   // PREPARE, HELLO, FOUND, DRAIN
    {"packet", fuzz_packet, bits_of({PacketType::words, PacketType::record, PacketType::job, PacketType::mail})},
    {"records", fuzz_records, 0b11},                        // steps.jsonl, transcript.json
    {"remote", fuzz_remote, 0b11},                          // a ClientHello with a key's name, a file of client keys
    {"safetensors", fuzz_safetensors, 0b11},                // to begin from, by its own metadata
    {"shard", fuzz_shard, 0b111},                           // plain, deflated, a sample read
    {"typed_shard", fuzz_typed_shard, 0b11'1111'1111},      // each kind is verified, and a sample is read
    {"view_message", fuzz_view_message, 0b111'1111'1110},   // every kind, and initial values
};

TEST(Fuzz, EveryTargetIsReplayed) {
    size_t count = 0;
    for (const fs::directory_entry& entry : fs::directory_iterator(sources)) count += entry.path().extension() == ".cc";
    EXPECT_EQ(count, std::size(targets));
}

/// A seed with some bytes changed, left out or repeated.
std::vector<char> mutated(std::vector<char> bytes, std::mt19937& random) {
    for (uint32_t edits = 1 + random() % 4; edits > 0; --edits) {
        const size_t at = bytes.empty() ? 0 : random() % bytes.size(), some = std::min<size_t>(1 + random() % 8, bytes.size() - at);
        switch (random() % 4) {
            case 0: bytes.insert(bytes.begin() + static_cast<ptrdiff_t>(at), static_cast<char>(random())); break;
            case 1: bytes.erase(bytes.begin() + static_cast<ptrdiff_t>(at), bytes.begin() + static_cast<ptrdiff_t>(at + some)); break;
            case 2:
                bytes.insert(bytes.end(), bytes.begin() + static_cast<ptrdiff_t>(at), bytes.begin() + static_cast<ptrdiff_t>(at + some));
                break;
            default:
                if (!bytes.empty()) bytes[at] = static_cast<char>(random() % 3 ? random() % 14 : random());
        }
    }
    return bytes;
}

// A bounded run of the targets on files, the same in each run of the tests; `make fuzz` goes on from there.
TEST(Fuzz, SeedsThatAreChangedDoNoHarm) {
    for (const Target& target : targets) {
        if (target.run != fuzz_shard && target.run != fuzz_typed_shard && target.run != fuzz_import && target.run != fuzz_checkpoint)
            continue;
        std::vector<fs::path> paths;
        for (const fs::directory_entry& entry : fs::directory_iterator(sources / "corpus" / target.name)) paths.push_back(entry.path());
        std::ranges::sort(paths);
        std::mt19937 random(9);
        for (int run = 0; run < 300; ++run) {
            std::ifstream file(paths[random() % paths.size()], std::ios::binary);
            const std::vector<char> bytes = mutated({std::istreambuf_iterator<char>(file), {}}, random);
            EXPECT_EQ(target.run(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()), 0);
        }
    }
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
