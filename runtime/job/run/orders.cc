#include "runtime/job/run/orders.h"

#include <utility>

#include "runtime/job/run/session.h"
#include "runtime/view/protocol.h"

namespace gradcast {

void Orders::begin(Host& host) {
    std::lock_guard lock(mutex_);
    run_ = &host;
    for (const NodeId node : std::exchange(dead_, {})) ViewProtocol::force_dead(host, node);
}

void Orders::open(Host& host, bool may_leave) {
    std::lock_guard lock(mutex_);
    session_ = &host;
    if (!leaves_.empty() && may_leave) ViewProtocol::drain(host, self_);
    else end_in_any_case();
    if (end_) Session::post(host, *end_);
}

void Orders::end_in_any_case() {
    if (!leaves_.empty() && in_any_case_ && !end_) end_ = {JobCommand::Abort{fail(Code::cancelled, "{}", leaves_)}};
}

void Orders::stays(bool now) {
    std::lock_guard lock(mutex_);
    const bool had = end_.has_value();
    end_in_any_case();
    if (now && !had && end_ && session_) Session::post(*session_, *end_);
}

void Orders::close() {
    std::lock_guard lock(mutex_);
    session_ = nullptr;
}

void Orders::stop() {
    std::lock_guard lock(mutex_);
    run_ = nullptr;
}

std::string Orders::leaves() const {
    std::lock_guard lock(mutex_);
    return leaves_;
}

void Orders::abort(const std::string& why) { end({JobCommand::Abort{fail(Code::cancelled, "{}", why)}}); }
void Orders::leave_alone(const std::string& why) { end({JobCommand::Leave{fail(Code::cancelled, "{}", why)}}); }
void Orders::end(const JobCommand& command) {
    std::lock_guard lock(mutex_);
    if (end_) return;
    end_ = command;
    if (session_) Session::post(*session_, command);
}

void Orders::leave(const std::string& why) {
    std::lock_guard lock(mutex_);
    if (leaves_.empty()) leaves_ = why;
    if (session_) ViewProtocol::drain(*session_, self_);
}

void Orders::leave_in_any_case() {
    std::lock_guard lock(mutex_);
    in_any_case_ = true;
}

void Orders::force_dead(NodeId node) {
    std::lock_guard lock(mutex_);
    if (run_) ViewProtocol::force_dead(*run_, node);   // also between two sessions
    else dead_.push_back(node);
}

}   // namespace gradcast
