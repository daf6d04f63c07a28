// A Backend whose answers tests set.
#pragma once
#include <mutex>

#include "runtime/control/backend.h"

namespace gradcast {

struct FakeBackend : Backend {
    std::mutex mutex;
    std::vector<JobDetail> all;
    std::vector<NodeInfo> members;
    std::vector<Submission> submitted;   // server threads write it: read it by submissions()
    Status submit_answer;
    std::string resumed;   // by the last resume()
    bool throws = false;

    /// A running job of two nodes.
    JobDetail* add(const std::string& id, const std::string& name) {
        JobDetail detail;
        detail.summary.id = id;
        detail.summary.name = name;
        detail.summary.submitted_unix = 1'700'000'000;
        detail.summary.nodes = {"node-1", "node-2"};
        detail.summary.status.state = JobState::running;
        detail.summary.status.step = 1;
        detail.summary.status.steps = 10;
        detail.summary.status.epoch = detail.summary.status.epochs = 1;
        detail.summary.status.seconds = 2;
        detail.summary.status.loss = 2.25;
        detail.summary.status.bytes_sent = 3 << 20;
        detail.summary.status.bytes_received = 1 << 20;
        detail.started = true;
        detail.exchange = "ring";
        detail.batch = 128;
        detail.blocks = 8;
        std::lock_guard lock(mutex);
        all.reserve(16);
        all.push_back(detail);
        return &all.back();
    }
    void finish(JobDetail* detail, JobState state, const std::string& error = {}) {
        std::lock_guard lock(mutex);
        JobStatus& status = detail->summary.status;
        status.state = state;
        status.error = error;
        if (state == JobState::failed) status.code = Code::peer_lost;
        if (state != JobState::done) return;
        status.step = status.steps;
        status.accuracy = 0.8912;
        status.digest = std::string(64, 'a');
    }

    std::vector<Submission> submissions() {
        std::lock_guard lock(mutex);
        return submitted;
    }
    void answer_submit(Status status) {
        std::lock_guard lock(mutex);
        submit_answer = status;
    }

    Status resume(const std::string& which, const Submission& submission, std::string* id) override {
        resumed = which;
        return submit(submission, id);
    }
    Status submit(const Submission& submission, std::string* id) override {
        std::lock_guard lock(mutex);
        GC_TRY(submit_answer);
        submitted.push_back(submission);
        *id = all.empty() ? std::string(32, '0') : all.back().summary.id;
        return {};
    }
    std::vector<JobSummary> jobs() override {
        if (throws) throw std::runtime_error("the backend is broken");
        std::lock_guard lock(mutex);
        std::vector<JobSummary> result;
        for (const JobDetail& detail : all) result.push_back(detail.summary);
        return result;
    }
    Status job(const std::string& which, JobDetail* detail) override {
        std::lock_guard lock(mutex);
        for (const JobDetail& each : all) {
            if (each.summary.name != which && !(which.size() >= 4 && each.summary.id.starts_with(which))) continue;
            *detail = each;
            return {};
        }
        return fail(Code::invalid, "there is no job {}", which);
    }
    Status cancel(const std::string& which, std::string* id) override {
        JobDetail found;
        GC_TRY(job(which, &found));
        *id = found.summary.id;
        std::lock_guard lock(mutex);
        for (JobDetail& each : all)
            if (each.summary.id == found.summary.id) each.summary.status.state = JobState::cancelled;
        return {};
    }
    Status remove(const std::string& which, std::string* id) override {
        JobDetail found;
        GC_TRY(job(which, &found));
        *id = found.summary.id;
        if (found.summary.status.state == JobState::running) return fail(Code::conflict, "job {} has not ended", *id);
        std::lock_guard lock(mutex);
        std::erase_if(all, [&](const JobDetail& each) { return each.summary.id == *id; });
        return {};
    }
    Status drain(const std::string& node, bool on, bool cancel) override {
        std::lock_guard lock(mutex);
        for (NodeInfo& each : members) {
            if (each.name != node) continue;
            each.draining = on;
            if (!on || cancel) each.hinders.clear();
            return {};
        }
        return fail(Code::invalid, "there is no node {}", node);
    }
    Status add_node(const std::string& which, const std::string& node, std::string* id) override {
        JobDetail found;
        GC_TRY(job(which, &found));
        *id = found.summary.id;
        std::lock_guard lock(mutex);
        for (JobDetail& each : all) {
            JobStatus& status = each.summary.status;
            if (node == "node-3") status.views.push_back({.number = 2, .first_step = 5, .members = {"node-1", "node-2", "node-3"}});
            else status.warnings.push_back("node " + node + " does not join: it has other data");
        }
        return {};
    }
    Status force_view(const std::string& which, const std::string& dead, std::string* id) override {
        JobDetail found;
        GC_TRY(job(which, &found));
        if (dead == "node-2") return fail(Code::conflict, "node node-2 answers");
        *id = found.summary.id;
        return {};
    }
    std::vector<Finding> doctor() override {
        return {{"memlock", Finding::Verdict::ok, "no limit"}, {"clock", Finding::Verdict::warning, "not synchronised"}};
    }
    std::vector<NodeInfo> nodes() override {
        std::lock_guard lock(mutex);
        return members;
    }
};

}   // namespace gradcast
