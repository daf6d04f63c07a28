// The status page, and the overview of jobs and nodes that it and `gradcastctl top` show.
#pragma once
#include <memory>
#include <mutex>
#include <string_view>

#include "runtime/control/json.h"

namespace gradcast {

/// page.html, which is in the program.  It loads nothing but what this server answers.
std::string_view page_html();
/// Its Content-Security-Policy: the page's own script and style, by their digests, and requests to this server.
const std::string& page_policy();

constexpr size_t overview_jobs = 25, overview_nodes = 48;   // of a page

struct OverviewQuery {
    uint32_t page = 0, nodes_page = 0;   // from 0 on; the last one where there are fewer
    std::string state = {};              // of the jobs; "": all
    /// "?page=2&nodes=0&state=failed".  False: `why` says what is wrong.
    static bool parse(const std::string& page, const std::string& nodes, const std::string& state, OverviewQuery* query, std::string* why);
};
/// {"self", "version", "counts": {state: jobs}, "jobs": […], "page", "pages", "nodes": […], "nodes_page", "nodes_pages", "nodes_alive",
/// "nodes_total", "state"}.  Active jobs come first, then the newest; of the nodes those that are away, then those that drain.
/// "nodes_total" counts this one.  A job's row has what a line can show; of a net in stages "stage"
/// (this node's), "stages" and "stage_waits" (pipeline_line()) too.
Json overview_json(const std::vector<JobSummary>& jobs, const std::vector<NodeInfo>& nodes, const OverviewQuery& query);

/// What a daemon knows of all jobs and nodes, asked once a second at most, however many look.
class Overview {
public:
    explicit Overview(Backend& backend) : backend_(backend) {}
    Json look(const OverviewQuery& query);   // any thread

private:
    struct Snapshot {
        std::vector<JobSummary> jobs;
        std::vector<NodeInfo> nodes;
        uint64_t made_us = 0;
    };
    Backend& backend_;
    std::mutex mutex_;
    std::shared_ptr<const Snapshot> last_;
};

}   // namespace gradcast
