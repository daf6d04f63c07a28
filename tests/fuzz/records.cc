// steps.jsonl and transcript.json of somebody else: each is refused with one line that names the file, or what was read fits.  The first
// byte says which of the two the rest is.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "runtime/job/report/step_lines.h"
#include "runtime/job/report/transcript.h"
#include "tests/fuzz/reached.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace gradcast;
    if (size == 0) return 0;
    static const std::string path = std::filesystem::temp_directory_path() / fmt::format("gradcast-fuzz-{}.record", ::getpid());
    {
        Fd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
        GC_ASSERT(fd && ::write(fd.get(), data + 1, size - 1) == static_cast<ssize_t>(size - 1));
    }
    auto refused = [](const Status& status) { GC_ASSERT(std::strstr(status.what, path.c_str()) && !std::strchr(status.what, '\n')); };
    if (data[0] % 2 == 0) {
        StepLines lines;
        GC_ASSERT(lines.open(path).ok());
        auto gap_fits = [&] {
            StepGap again;
            const StepGap& gap = lines.gap();
            if (gap.last == 0) return;
            GC_ASSERT(gap.first <= gap.last && !step_gap_text(gap).empty());
            std::string text = step_gap_line(gap);
            text.pop_back();
            GC_ASSERT(step_gap_parse(text, &again) && again.last == gap.last);
        };
        uint64_t before = 0;
        for (bool got = true; got;) {
            StepLine line;
            if (const Status status = lines.next(&line, &got); !status.ok()) {
                refused(status);
                break;
            }
            gap_fits();
            if (!got) break;
            fuzz_reaches(0);
            GC_ASSERT(line.step > before);
            before = line.step;
        }
    } else {
        Transcript transcript;
        if (const Status status = transcript_read(path, &transcript); status.ok()) {
            fuzz_reaches(1);
            GC_ASSERT(transcript.id.size() == 32 && transcript.chain.size() == 64);
            GC_ASSERT(!transcript_content(transcript).empty());
        } else {
            refused(status);
        }
    }
    ::unlink(path.c_str());
    return 0;
}
