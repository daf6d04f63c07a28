// Following a job of a cluster: to its end, and through its log.
#pragma once
#include <string>

#include "tools/gradcastctl/ctl.h"

namespace gradcast {

/// Follows the job to its end and prints its result, at other daemons of `options` where one goes away.  Returns the exit code.  Ctrl-C
/// ends it once interrupts() has been called.
int follow_to_result(const Options& options, const std::string& which);
/// Prints the job's log; with `on`, also what comes until the job has ended.  Returns the exit code.
int follow_log(const Options& options, const std::string& which, bool on);

}   // namespace gradcast
