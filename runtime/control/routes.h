// The routes of the control plane: a row has all that the server (api.cc) and gradcastctl (client.h) know of one.  To add a plain order: a
// row here and in each_order(), a method of Backend, and a command that sends it by Client::ask().
#pragma once
#include "runtime/control/json.h"

namespace gradcast {

struct Route {
    bool post;
    const char* path;   // "{}": a job or a node
    Role role;          // that it needs; none: also without a key, at the port of `metrics`
};

/// A plain order: Q asks and A answers, each a JSON object.
template <typename Q, typename A>
struct Order : Route {
    int http;   // the HTTP status of an answer
    /// Sends it to a daemon.  which: the job or the node.
    Status (*serve)(Backend& backend, const std::string& which, const Q& asked, A& answer);
    int http_invalid = 404;   // the HTTP status for Code::invalid, by which most orders mean that `which` does not exist
    const char* wrong = "";   // the error for a body that is an object but not a Q
};

/// As Backend::job(), but without the folder if that no longer exists.
Status job_look(Backend& backend, const std::string& which, JobDetail* job);

// clang-format off
struct Nothing {};   // GET has no body, that of POST is dropped
void fields(const auto&, Is<Nothing> auto&) {}
struct NewNode { std::string node; };
void fields(const auto& each, Is<NewNode> auto& asked) { each.must("node", asked.node); }
struct DeadNode { std::string dead; };
void fields(const auto& each, Is<DeadNode> auto& asked) { each.must("dead", asked.dead); }
struct DrainAsked { bool cancel = false; };   // true: cancel the jobs that cannot go on without the node
void fields(const auto& each, Is<DrainAsked> auto& asked) { each("cancel", asked.cancel); }

struct JobList { std::vector<JobSummary> jobs; };
void fields(const auto& each, Is<JobList> auto& answer) { each("jobs", answer.jobs); }
struct NodeList { std::vector<NodeInfo> nodes; };
void fields(const auto& each, Is<NodeList> auto& answer) { each("nodes", answer.nodes); }
struct Findings { std::vector<Finding> checks; };
void fields(const auto& each, Is<Findings> auto& answer) { each("checks", answer.checks); }
struct Begun { std::string id, state = job_state_name(JobState::preparing); };
void fields(const auto& each, Is<Begun> auto& answer) { each("id", answer.id), each("state", answer.state); }
struct Deleted { std::string id; bool deleted = true; };
void fields(const auto& each, Is<Deleted> auto& answer) { each("id", answer.id), each("deleted", answer.deleted); }
struct Invited { std::string id, node; };
void fields(const auto& each, Is<Invited> auto& answer) { each("id", answer.id), each("node", answer.node); }
struct DeclaredDead { std::string id, dead; };
void fields(const auto& each, Is<DeclaredDead> auto& answer) { each("id", answer.id), each("dead", answer.dead); }
struct Draining { std::string node; bool draining = false; };
void fields(const auto& each, Is<Draining> auto& answer) { each("node", answer.node), each("draining", answer.draining); }

namespace routes {

// Of text, events, or who asks: their handlers are in api.cc.
inline constexpr Route page{false, "/", Role::none};
inline constexpr Route overview{false, "/v1/overview", Role::none};
inline constexpr Route overview_watch{false, "/v1/overview/watch", Role::none};
inline constexpr Route version{false, "/v1/version", Role::none};
inline constexpr Route metrics{false, "/v1/metrics", Role::none};
inline constexpr Route watch{false, "/v1/jobs/{}/watch", Role::none};
inline constexpr Route log{false, "/v1/jobs/{}/log", Role::view};
inline constexpr Route steps{false, "/v1/jobs/{}/steps", Role::view};

inline constexpr Order<Nothing, JobList> jobs{{false, "/v1/jobs", Role::none}, 200,
    [](auto& to, auto&, auto&, auto& answer) { return answer.jobs = to.jobs(), Status{}; }};
inline constexpr Order<Nothing, NodeList> nodes{{false, "/v1/nodes", Role::none}, 200,
    [](auto& to, auto&, auto&, auto& answer) { return answer.nodes = to.nodes(), Status{}; }};
inline constexpr Order<Nothing, Findings> doctor{{false, "/v1/doctor", Role::view}, 200,
    [](auto& to, auto&, auto&, auto& answer) { return answer.checks = to.doctor(), Status{}; }};
inline constexpr Order<Nothing, JobDetail> job{{false, "/v1/jobs/{}", Role::none}, 200,
    [](auto& to, auto& which, auto&, auto& answer) { return job_look(to, which, &answer); }};
inline constexpr Order<Submission, Begun> submit{{true, "/v1/jobs", Role::submit}, 202,
    [](auto& to, auto&, auto& asked, auto& answer) { return to.submit(asked, &answer.id); }, 400};
inline constexpr Order<Submission, Begun> resume{{true, "/v1/jobs/{}/resume", Role::submit}, 202,
    [](auto& to, auto& which, auto& asked, auto& answer) { return to.resume(which, asked, &answer.id); }, 400};
inline constexpr Order<Nothing, JobDetail> cancel{{true, "/v1/jobs/{}/cancel", Role::submit}, 200,
    [](auto& to, auto& which, auto&, auto& answer) {
        std::string id;
        GC_TRY(to.cancel(which, &id));
        return job_look(to, id, &answer);
    }};
inline constexpr Order<Nothing, Deleted> remove{{true, "/v1/jobs/{}/delete", Role::admin}, 200,
    [](auto& to, auto& which, auto&, auto& answer) { return to.remove(which, &answer.id); }};
inline constexpr Order<NewNode, Invited> add_node{{true, "/v1/jobs/{}/nodes", Role::admin}, 202,
    [](auto& to, auto& which, auto& asked, auto& answer) { return to.add_node(which, answer.node = asked.node, &answer.id); },
    400, R"(the body must be {"node": its name})"};
inline constexpr Order<DeadNode, DeclaredDead> force_view{{true, "/v1/jobs/{}/force-view", Role::admin}, 202,
    [](auto& to, auto& which, auto& asked, auto& answer) { return to.force_view(which, answer.dead = asked.dead, &answer.id); },
    400, R"(the body must be {"dead": name of a node})"};
inline constexpr Order<DrainAsked, Draining> drain{{true, "/v1/nodes/{}/drain", Role::admin}, 202,
    [](auto& to, auto& node, auto& asked, auto& answer) { return answer = {node, true}, to.drain(node, true, asked.cancel); },
    404, "cancel must be true or false"};
inline constexpr Order<DrainAsked, Draining> undrain{{true, "/v1/nodes/{}/undrain", Role::admin}, 202,
    [](auto& to, auto& node, auto& asked, auto& answer) { return answer = {node, false}, to.drain(node, false, asked.cancel); },
    404, "cancel must be true or false"};

void each_order(auto add) {
    add(jobs), add(nodes), add(doctor), add(job), add(submit), add(resume);
    add(cancel), add(remove), add(add_node), add(force_view), add(drain), add(undrain);
}

}   // namespace routes
// clang-format on
}   // namespace gradcast
