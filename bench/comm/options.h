// The command line of gradcast-bench.  A server sends its own to the clients, so all ranks run with the same options.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "nn/net.h"
#include "transport/exchange/exchange.h"
#include "transport/link/link.h"

namespace gradcast {

struct BenchOptions {
    std::string command;   // allreduce, ps, simulate, multicast, p2p, layers, step; "" with --connect
    std::vector<std::string> exchanges{"ring"};
    uint32_t nodes = 4, repeat = 20, warmup = 3;
    std::vector<uint64_t> sizes;        // bytes
    std::vector<std::string> layouts;   // allreduce: nets whose buckets replace sizes
    uint64_t skew_us = 0;   // allreduce: steps back to back, with gradients that take 0 to skew_us by rank; 0: a barrier before each step
    LinkKind link = LinkKind::uring_tcp;
    Protect protect = Protect::auth;
    Quantiser quantiser = Quantiser::auto32;
    uint32_t m = 2, s = 0, r = 2, servers = 1;
    std::vector<double> weights;   // of blocks, by rank
    uint32_t segment_bytes = 0;    // 0: the link's default
    uint64_t rate = 0;             // of each node's link, bit/s; 0: unknown
    uint64_t pace = 0;             // of a node's datagrams, bit/s; 0: not limited
    bool all_send = false;         // multicast
    bool json = false, spoil = false, check = false;
    std::vector<uint32_t> simulated{8};        // simulate: numbers of nodes
    uint32_t group = 16;                       // grouped: nodes of a group
    uint64_t latency_us = 50;                  // one way
    double block_us = 0;                       // time of computing one super-block
    std::vector<std::string> nets{"lenet5"};   // layers, step: each net with each batch and precision
    std::vector<uint32_t> batches{100};
    std::vector<Precision> precisions{Precision::f32};
    std::string isa = "auto";
    std::string device = "cpu";
    bool deterministic = true;
    uint32_t threads = 1;
    std::vector<uint32_t> blocks{1};
    // Places: each node has its own.
    std::string server, connect, key, interface, rdma;
    uint32_t wait_s = 60;
    int listen_fd = -1;                   // an open listening socket for `server`
    std::vector<std::string> arguments;   // the command line of the options above
};

/// Returns the exit code if there is nothing to run: after help or a reported mistake.
std::optional<int> options_parse(const std::vector<std::string>& arguments, BenchOptions* options);

/// Parses "4K,64K" or "4K..1M"; units of 1024: K, M, G.  Each a multiple of 4, from 4 bytes to 1 GiB.
Status sizes_parse(const std::string& text, std::vector<uint64_t>* sizes);

}   // namespace gradcast
