// The wire form of what daemons say to each other (membership.h), and its bounds.
#pragma once
#include <string_view>

#include "runtime/core/message.h"
#include "runtime/mesh/membership.h"

namespace gradcast {

constexpr size_t rails_text_max = 512;                    // letters of the addresses of a node's interfaces
constexpr size_t rejoin_requests_max = 16;                // jobs that a node asks to rejoin
constexpr size_t runs_announced_max = 64;                 // jobs that a node is a member of
constexpr uint64_t deadline_us_max = UINT64_C(1) << 50;   // of a job

/// What a member says that its datagrams carry; 0, which is none, if bulk cannot use it.
uint32_t datagram_bytes_of(uint64_t said);

void computes_with_write(const ComputesWith& with, MessageWriter& writer);
ComputesWith computes_with_read(MessageReader& reader);
std::vector<std::byte> id_write(const JobId& id, std::initializer_list<std::string_view> texts = {});
std::vector<std::byte> found_write(const JobId& id, uint64_t request, const Found& found);
bool found_parse(MessageReader reader, uint64_t* request, Found* found);

/// What a daemon says of itself once a second.
struct NodeHello {
    Member member;
    std::string version;
    Isa isa = Isa::portable;
    uint32_t datagram_bytes = 0, rdma_bytes = 0, rdma_devices = 0;
    std::string rails;
    uint32_t jobs = 0;
    bool draining = false;
    std::string hinders;                          // see PeerState
    std::vector<RejoinRequest> rejoin_requests;   // likewise; rejoin_requests_max at most
    std::vector<JobId> runs;                      // likewise; runs_announced_max
    uint64_t memory = 0, rate = 0;                // see PeerState
    uint64_t wall_us = 0;                         // its clock when it said so, since 1970; 0: not announced
};
std::vector<std::byte> hello_write(const NodeHello& hello);
bool hello_parse(std::span<const std::byte> bytes, NodeHello* hello);

/// Of the order to a node to be drained.
struct Drain {
    bool on = false, cancel = false;
};
std::vector<std::byte> drain_write(const Drain& drain);
bool drain_parse(std::span<const std::byte> bytes, Drain* drain);

}   // namespace gradcast
