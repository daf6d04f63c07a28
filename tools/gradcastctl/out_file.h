// What a command writes must not take the place of what somebody needs.
#pragma once
#include <string>
#include <vector>

namespace gradcast {

/// Returns exit_done where `out` may be written: it is none of `inputs`, also by a link, and does not exist, or `force` allows to replace
/// it.  Else complains, and returns exit_usage.
int out_check(const std::string& out, const std::vector<std::string>& inputs, bool force);

}   // namespace gradcast
