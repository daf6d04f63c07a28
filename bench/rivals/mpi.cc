// Times MPI_Allreduce (sum of floats): one rank.  bench/rivals/run starts all of them.
//
// usage: mpi COUNT RUNS NAME
// A run starts 10 ms after a barrier (by then ranks on shared cores have all left it) and ends when the slowest rank has its sum.  Rank 0
// prints one line of JSON.
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <vector>

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    int rank = 0, nodes = 0, count = 0, runs = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &nodes);
    auto number = [&](int i, int* value) {
        return argc > i && std::from_chars(argv[i], argv[i] + std::strlen(argv[i]), *value).ec == std::errc() && *value > 0;
    };
    if (!number(1, &count) || !number(2, &runs) || argc != 4) {
        if (rank == 0) std::fprintf(stderr, "usage: mpi COUNT RUNS NAME\n");
        MPI_Finalize();
        return 2;
    }
    std::vector<float> mine(static_cast<size_t>(count)), sum(mine.size());
    for (size_t i = 0; i < mine.size(); ++i) mine[i] = static_cast<float>(i % 1000) + static_cast<float>(rank);
    std::vector<double> times;
    long wrong = 0, bad = 0;
    for (int run = -2; run < runs; ++run) {
        MPI_Barrier(MPI_COMM_WORLD);
        usleep(10'000);
        double start = MPI_Wtime(), slowest = 0;
        MPI_Allreduce(mine.data(), sum.data(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        double took = MPI_Wtime() - start;
        for (size_t i = 0; i < sum.size(); ++i) wrong += sum[i] != static_cast<float>(i % 1000) * nodes + nodes * (nodes - 1) / 2;
        MPI_Allreduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        if (run >= 0) times.push_back(slowest);
    }
    MPI_Allreduce(&wrong, &bad, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0) {
        char version[MPI_MAX_LIBRARY_VERSION_STRING];
        int length = 0;
        MPI_Get_library_version(version, &length);
        *std::find(version, version + length, ',') = 0;
        std::sort(times.begin(), times.end());
        auto at = [&](double share) { return 1e6 * times[std::min(times.size() - 1, static_cast<size_t>(share * runs))]; };
        std::printf(
            "{\"bench\": \"allreduce\", \"rival\": \"%s\", \"version\": \"%s\", \"nodes\": %d, \"size_bytes\": %zu, \"runs\": %d, "
            "\"median_us\": %.0f, \"p50_us\": %.0f, \"p99_us\": %.0f, \"max_us\": %.0f, \"wrong_elements\": %ld}\n",
            argv[3], version, nodes, 4 * mine.size(), runs, at(0.5), at(0.5), at(0.99), at(1), bad);
    }
    MPI_Finalize();
    return bad > 0;
}
