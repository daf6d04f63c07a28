// The records of a job's views, from rank 0 to the other ranks.
#pragma once
#include <vector>

#include "runtime/job/run/session.h"

namespace gradcast {

/// At all ranks of a session that has begun: blocks until this one has, in `report`, what are `views` at rank 0; where rank 0 is lost, its
/// own `views`.  Errors as those of a wait for mail.
Status view_records_spread(Context& context, Session& session, std::vector<ViewRecord> views, Report& report);

}   // namespace gradcast
