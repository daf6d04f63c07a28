// The one message of the job protocol: the news of a rank.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "runtime/core/le.h"
#include "runtime/core/status.h"
#include "runtime/job/report/step_times.h"

namespace gradcast {

/// How far a rank is with the job; JobNews::phase.
enum class JobPhase : uint8_t { preparing, started, ended, done, aborted, departed };

/// The payload of PacketType::job.  Before an abort the news of a stage follow (StageNewsWire), else its text.  JobBody::kind is 1,
/// JobBody::value a serial number.
struct JobNews {
    uint8_t phase, waiting, code;
    uint8_t expelled;   // the others go on without the receiver, as the text says
    Le32 origin;        // aborted: the rank that found the cause
    Le64 step, done, state;
    char kernel_set[16], data[64], start[64], digest[64];   // start: zeros where there is no file
    RankTimesWire times;                                    // statistics: nothing depends on them
};
static_assert(sizeof(JobNews) == 368 && alignof(JobNews) == 1);

/// The code of an abort; conflict where `said` has none that is known.
Code job_news_code(const JobNews& said);

/// News, and the rank as messages name it: called for a message alone.
struct NamedNews {
    const std::function<std::string()>& name;
    const JobNews& news;
};
/// How two ranks differ in what must be equal at all, as soon as the news of both have it.  Empty: they do not differ.  isa_setting: what
/// messages call the setting of the instruction set.
std::string job_news_conflict(const NamedNews& theirs, const NamedNews& ours, const std::string& isa_setting);

}   // namespace gradcast
