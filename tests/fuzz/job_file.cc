// Whatever a job file holds: it is refused with at least one line, or it is within all limits.
#include "runtime/job/file/job_file.h"

#include "runtime/core/limits.h"
#include "tests/fuzz/reached.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace gradcast;
    JobConfig job;
    std::vector<JobMistake> mistakes;
    bool good = job_parse({reinterpret_cast<const char*>(data), size}, "job.toml", "/base", &job, &mistakes);
    GC_ASSERT(good == mistakes.empty());
    for (const JobMistake& mistake : mistakes) GC_ASSERT(mistake.text.find('\n') == std::string::npos);
    if (!good) return 0;
    fuzz_reaches(0);
    GC_ASSERT((job.epochs == 0) != (job.steps == 0) && job.blocks >= 1 && job.blocks <= job.batch && job.blocks <= blocks_max);
    GC_ASSERT(job.deadline_us >= 4'000'000 && job.preset.empty() == !job.layers.empty() && job.train.front() == '/');
    return 0;
}
