#include "runtime/job/run/job_news.h"

#include <fmt/format.h>

#include <string_view>

namespace gradcast {
namespace {

template <size_t bytes>
std::string_view text_of(const char (&field)[bytes]) {
    return {field, bytes};
}

}   // namespace

Code job_news_code(const JobNews& said) {
    return said.code > 0 && said.code <= static_cast<uint8_t>(Code::unsupported) ? static_cast<Code>(said.code) : Code::conflict;
}

std::string job_news_conflict(const NamedNews& theirs, const NamedNews& ours, const std::string& isa_setting) {
    const JobNews &their = theirs.news, &our = ours.news;
    const auto named = [](const JobNews& news) {
        const auto phase = static_cast<JobPhase>(news.phase);
        return phase >= JobPhase::started && phase <= JobPhase::done;
    };
    if (!named(their) || !named(our)) return {};
    const auto differs = [&](const char* what, std::string_view their_value, std::string_view our_value, std::string_view way) {
        return fmt::format("{} {} {}, {} {}{}", theirs.name(), what, their_value, ours.name(), our_value, way);
    };
    const auto ended = [](const JobNews& news) { return static_cast<JobPhase>(news.phase) >= JobPhase::ended; };
    // Data and parameters first: with others the probe block, from which some jobs have their kernel set, has another gradient.
    if (text_of(their.data) != text_of(our.data))
        return differs("has data with the digest", text_of(their.data), text_of(our.data), ": import the same data on all nodes");
    if (text_of(their.start) != text_of(our.start))
        return differs("starts from a file with the digest", text_of(their.start), text_of(our.start), ": copy the same to all nodes");
    if (text_of(their.kernel_set) != text_of(our.kernel_set))
        return differs("computes with kernel set", text_of(their.kernel_set), text_of(our.kernel_set),
                       fmt::format(": set the same {} at all nodes", isa_setting));
    if (their.state.get() != our.state.get())
        return differs("begins with state", fmt::format("{:016x}", their.state.get()), fmt::format("{:016x}", our.state.get()), "");
    if (ended(our) && ended(their) && text_of(their.digest) != text_of(our.digest))
        return differs("ends with digest", text_of(their.digest), text_of(our.digest), ": a node computes wrongly");
    return {};
}

}   // namespace gradcast
