#include "runtime/control/page.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/sha.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "runtime/core/clock.h"
#include "runtime/core/version.h"

// The Makefile names page.html among the prerequisites of this file's object.
asm(R"(
    .section .rodata
    .global gradcast_page, gradcast_page_end
    gradcast_page: .incbin "runtime/control/page.html"
    gradcast_page_end: .byte 0
    .previous
)");
extern "C" const char gradcast_page[], gradcast_page_end[];

namespace gradcast {
namespace {

constexpr uint64_t snapshot_us = 1'000'000;
constexpr JobState states[] = {JobState::preparing, JobState::running, JobState::done, JobState::failed, JobState::cancelled};

/// "'sha256-…'" of what stands between the tags.
std::string source_of(std::string_view open, std::string_view close) {
    const std::string_view html = page_html();
    const size_t begin = html.find(open) + open.size(), end = html.find(close, begin);
    unsigned char digest[SHA256_DIGEST_LENGTH], text[4 * ((SHA256_DIGEST_LENGTH + 2) / 3) + 1];
    ::SHA256(reinterpret_cast<const unsigned char*>(html.data()) + begin, end - begin, digest);
    ::EVP_EncodeBlock(text, digest, sizeof digest);
    return fmt::format("'sha256-{}'", reinterpret_cast<const char*>(text));
}

bool number(const std::string& text, uint32_t* value) {
    if (text.empty()) return true;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
    return error == std::errc() && end == text.data() + text.size();
}

bool active(const JobSummary& job) { return job.status.state == JobState::running || job.status.state == JobState::preparing; }

Json row_of(const JobSummary& job) {
    // The status has all and is large: its small members alone.
    const JobStatus& from = job.status;
    Json row{{"id", job.id},
             {"name", job.name},
             {"submitted_unix", job.submitted_unix},
             {"nodes", job.nodes_now()},
             {"nodes_submitted", job.nodes.size()},
             {"state", job_state_name(from.state)},
             {"error", from.error},
             {"warnings", from.warnings.size()},
             {"step", from.step},
             {"steps", from.steps},
             {"resumed", from.resumed},
             {"epoch", from.epoch},
             {"epochs", from.epochs},
             {"loss", nullptr},
             {"accuracy", nullptr},
             {"test_loss", nullptr},
             {"seconds", from.seconds},
             {"samples_per_second", from.samples_per_second},
             {"tokens", from.tokens},
             {"bytes_sent", from.bytes_sent},
             {"bytes_received", from.bytes_received},
             {"view", from.view},
             {"losses", from.losses.size()}};
    if (from.stepped() && std::isfinite(from.loss)) row["loss"] = from.loss;
    if (from.accuracy >= 0) row["accuracy"] = from.accuracy;
    if (from.test_loss >= 0 && std::isfinite(from.test_loss)) row["test_loss"] = from.test_loss;
    if (from.pipeline) {
        row["stage"] = from.pipeline->own_stage;
        row["stages"] = from.pipeline->layers.size();
        row["stage_waits"] = pipeline_line(*from.pipeline);
    }
    row["stragglers"] = Json::array();
    for (const Straggler& each : from.stragglers) row["stragglers"].push_back(each.node);
    return row;
}

/// The rows of a page; *page is lowered to the last one.
template <typename Row>
std::vector<const Row*> page_of(const std::vector<const Row*>& all, size_t rows, uint32_t* page, size_t* pages) {
    *pages = std::max<size_t>(1, (all.size() + rows - 1) / rows);
    *page = static_cast<uint32_t>(std::min<size_t>(*page, *pages - 1));
    const size_t first = *page * rows;
    return {all.begin() + static_cast<ptrdiff_t>(first), all.begin() + static_cast<ptrdiff_t>(std::min(all.size(), first + rows))};
}

}   // namespace

std::string_view page_html() { return {gradcast_page, static_cast<size_t>(gradcast_page_end - gradcast_page)}; }

const std::string& page_policy() {
    static const std::string policy = fmt::format(
        "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
        source_of("<script>", "</script>"), source_of("<style>", "</style>"));
    return policy;
}

bool OverviewQuery::parse(const std::string& page, const std::string& nodes, const std::string& state, OverviewQuery* query,
                          std::string* why) {
    if (!number(page, &query->page) || !number(nodes, &query->nodes_page)) {
        *why = "page and nodes must be numbers from 0 on";
        return false;
    }
    const bool known =
        state.empty() || std::any_of(std::begin(states), std::end(states), [&](JobState each) { return state == job_state_name(each); });
    if (!known) {
        *why = "state must be one of preparing, running, done, failed, cancelled";
        return false;
    }
    query->state = state;
    return true;
}

Json overview_json(const std::vector<JobSummary>& jobs, const std::vector<NodeInfo>& nodes, const OverviewQuery& query) {
    Json json{{"self", ""}, {"version", version_text}, {"state", query.state}, {"counts", Json::object()}};
    uint32_t page = query.page, nodes_page = query.nodes_page;
    size_t pages = 1, alive = 0;
    for (const JobState state : states)
        json["counts"][job_state_name(state)] =
            std::count_if(jobs.begin(), jobs.end(), [&](const JobSummary& each) { return each.status.state == state; });
    std::vector<const JobSummary*> wanted;
    for (auto each = jobs.rbegin(); each != jobs.rend(); ++each)   // the newest first
        if (query.state.empty() || query.state == job_state_name(each->status.state)) wanted.push_back(&*each);
    std::stable_partition(wanted.begin(), wanted.end(), [](const JobSummary* each) { return active(*each); });
    json["jobs"] = Json::array();
    for (const JobSummary* each : page_of(wanted, overview_jobs, &page, &pages)) json["jobs"].push_back(row_of(*each));
    json["page"] = page;
    json["pages"] = pages;

    std::vector<const NodeInfo*> members;
    for (const NodeInfo& each : nodes) {
        members.push_back(&each);
        alive += each.alive || each.self;
        if (each.self) json["self"] = each.name;
    }
    auto rank = [](const NodeInfo* each) { return each->self || (each->alive && !each->draining) ? 2 : each->alive ? 1 : 0; };
    std::stable_sort(members.begin(), members.end(), [&](const NodeInfo* a, const NodeInfo* b) { return rank(a) < rank(b); });
    json["nodes"] = Json::array();
    for (const NodeInfo* each : page_of(members, overview_nodes, &nodes_page, &pages)) json["nodes"].push_back(*each);
    json["nodes_page"] = nodes_page;
    json["nodes_pages"] = pages;
    json["nodes_alive"] = alive;
    json["nodes_total"] = nodes.size();
    return json;
}

Json Overview::look(const OverviewQuery& query) {
    std::shared_ptr<const Snapshot> now;
    {
        std::lock_guard lock(mutex_);   // while one asks, the others wait for its answer
        if (!last_ || clock_us() - last_->made_us >= snapshot_us) {
            auto made = std::make_shared<Snapshot>();
            made->jobs = backend_.jobs();
            made->nodes = backend_.nodes();
            made->made_us = clock_us();
            last_ = std::move(made);
        }
        now = last_;
    }
    return overview_json(now->jobs, now->nodes, query);
}

}   // namespace gradcast
