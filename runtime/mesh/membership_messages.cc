#include "runtime/mesh/membership_messages.h"

#include <algorithm>

#include "runtime/core/inventory.h"
#include "runtime/core/limits.h"
#include "transport/bulk/bulk.h"

namespace gradcast {
namespace {

constexpr size_t path_max = 4096;
constexpr size_t layer_name_max = 64;   // job_file.cc: plain()

}   // namespace

std::vector<std::byte> id_write(const JobId& id, std::initializer_list<std::string_view> texts) {
    MessageWriter writer;
    writer.id(id);
    for (std::string_view text : texts) writer.text(text.substr(0, reason_max));
    return std::move(writer.bytes);
}

uint32_t datagram_bytes_of(uint64_t said) {
    return said >= bulk_segment_min && said <= bulk_segment_max ? static_cast<uint32_t>(said) / 8 * 8 : 0;
}

void computes_with_write(const ComputesWith& with, MessageWriter& writer) {
    for (const std::string* text : {&with.kernel_set, &with.data_digest, &with.start_digest})
        writer.text(std::string_view(*text).substr(0, reason_max));
    writer.text(with.inventory);
}

ComputesWith computes_with_read(MessageReader& reader) {
    ComputesWith with;
    for (std::string* text : {&with.kernel_set, &with.data_digest, &with.start_digest}) *text = reader.text(reason_max);
    with.inventory = reader.text(inventory_bytes_max);
    return with;
}

std::vector<std::byte> plan_write(const JobPlan& plan) {
    MessageWriter writer;
    writer.id(plan.id);
    for (const std::string* text : {&plan.name, &plan.text, &plan.path, &plan.base}) writer.text(*text);
    writer.number(plan.deadline_us), writer.number(plan.submitted_unix), writer.number(plan.members.size());
    for (const Member& member : plan.members) writer.member(member);
    writer.number(plan.datagram_bytes);
    writer.number(plan.rdma ? 1 : 0);
    writer.number(plan.rails);
    writer.number(plan.addresses.size());
    for (const std::string& each : plan.addresses) writer.text(each);
    writer.text(plan.server);
    writer.number(plan.resumes ? 1 : 0);
    writer.number(plan.resume_steps);
    writer.number(plan.resume_state);
    writer.number(plan.resume_holders.size());
    for (const Rank holder : plan.resume_holders) writer.number(holder);
    writer.text(std::string_view(plan.notes).substr(0, reason_max));
    for (const uint64_t number :
         {uint64_t{plan.survive}, uint64_t{plan.joins}, uint64_t{plan.first}, uint64_t{plan.elastic}, uint64_t{plan.copies}})
        writer.number(number);
    computes_with_write(plan.with, writer);
    writer.number(plan.stages);
    writer.number(plan.cuts.size());
    for (const std::string& each : plan.cuts) writer.text(each);
    writer.text(std::string_view(plan.grid).substr(0, reason_max));
    writer.number(plan.slice_groups);
    return std::move(writer.bytes);
}

std::vector<std::byte> found_write(const JobId& id, uint64_t request, const Found& found) {
    MessageWriter writer;
    writer.id(id);
    for (const uint64_t number : {request, uint64_t{found.active}, uint64_t{found.states.size()}}) writer.number(number);
    for (const FoundState& each : found.states)
        for (const uint64_t number : {each.steps, each.state, uint64_t{each.agreed}, uint64_t{each.cell}, uint64_t{each.cells}})
            writer.number(number);
    for (const std::string* text : {&found.name, &found.text, &found.base}) writer.text(*text);
    writer.text(std::string_view(found.notes).substr(0, reason_max));
    return std::move(writer.bytes);
}

bool found_parse(MessageReader reader, uint64_t* request, Found* found) {
    *request = reader.number();
    found->active = reader.number() != 0;
    const uint64_t states = reader.number();
    if (states > found_states_max) return false;
    for (uint64_t i = 0; i < states && reader.good; ++i) {
        FoundState& each = found->states.emplace_back();
        each.steps = reader.number();
        each.state = reader.number();
        each.agreed = reader.number() != 0;
        const uint64_t cell = reader.number(), cells = reader.number();
        if (each.steps == 0 || each.steps > UINT32_MAX || cells > ranks_max || cell >= cells) return false;
        each.cell = static_cast<uint32_t>(cell);
        each.cells = static_cast<uint32_t>(cells);
    }
    found->name = reader.text(reason_max);
    found->text = reader.text(job_text_max);
    found->base = reader.text(path_max);
    found->notes = reader.text(reason_max);
    return reader.whole();
}

bool plan_parse(std::span<const std::byte> bytes, JobPlan* plan) {
    MessageReader reader{bytes};
    JobPlan result;
    result.id = reader.id();
    result.name = reader.text(reason_max), result.text = reader.text(job_text_max), result.path = reader.text(4096),
    result.base = reader.text(4096);
    result.deadline_us = reader.number();
    result.submitted_unix = reader.number();
    uint64_t members = reader.number();
    if (members == 0 || members > ranks_max || result.deadline_us == 0 || result.deadline_us > deadline_us_max) return false;
    for (uint64_t i = 0; i < members && reader.good; ++i) result.members.push_back(reader.member());
    const uint64_t datagram_bytes = reader.number();
    const uint64_t rdma = reader.number(), rails = reader.number(), addresses = reader.number();
    if (rails == 0 || rails > rails_max || (addresses != 0 && addresses != members)) return false;
    for (uint64_t i = 0; i < addresses && reader.good; ++i) result.addresses.push_back(reader.text(rails_text_max));
    result.rails = static_cast<uint32_t>(rails);
    result.server = reader.text(reason_max);
    const uint64_t resumes = reader.number();
    result.resume_steps = reader.number();
    result.resume_state = reader.number();
    const uint64_t holders = reader.number();
    if (holders > ranks_max) return false;
    for (uint64_t i = 0; i < holders && reader.good; ++i)
        if (const uint64_t holder = reader.number(); holder < members) result.resume_holders.push_back(static_cast<Rank>(holder));
        else return false;
    result.notes = reader.text(reason_max);
    const uint64_t survive = reader.number(), joins = reader.number(), first = reader.number(), elastic = reader.number(),
                   copies = reader.number();
    result.with = computes_with_read(reader);
    const uint64_t stages = reader.number(), cuts = reader.number();
    if (stages > ranks_max || cuts != (stages > 0 ? stages - 1 : 0)) return false;
    for (uint64_t i = 0; i < cuts && reader.good; ++i) result.cuts.push_back(reader.text(layer_name_max));
    result.stages = static_cast<uint32_t>(stages);
    result.grid = reader.text(reason_max);
    const uint64_t groups = reader.number();
    if (groups < 1 || groups > ranks_max) return false;
    result.slice_groups = static_cast<uint32_t>(groups);
    if (survive > 1 || joins > 1 || first > members || elastic > 1 || copies > 1) return false;
    result.copies = copies == 1;
    result.first = static_cast<uint32_t>(first);
    result.elastic = elastic == 1;
    result.survive = survive == 1;
    result.joins = joins == 1;
    if (!reader.whole() || datagram_bytes != datagram_bytes_of(datagram_bytes)) return false;
    if (resumes > 1 || (resumes == 1) == result.resume_holders.empty() || result.resume_steps > UINT32_MAX) return false;
    if (std::ranges::any_of(result.resume_holders, [&](Rank holder) { return holder >= result.first_nodes(); })) return false;
    result.resumes = resumes == 1;
    if (rdma > 1) return false;
    result.rdma = rdma == 1;
    result.datagram_bytes = static_cast<uint32_t>(datagram_bytes);
    *plan = std::move(result);
    return true;
}

std::vector<std::byte> hello_write(const NodeHello& hello) {
    MessageWriter writer;
    writer.member(hello.member);
    writer.text(hello.version);
    for (const uint64_t number : {static_cast<uint64_t>(hello.isa), uint64_t{hello.datagram_bytes}, uint64_t{hello.rdma_bytes},
                                  uint64_t{hello.jobs}, uint64_t{hello.draining}, uint64_t{hello.rdma_devices}})
        writer.number(number);
    writer.text(hello.rails);
    writer.text(std::string_view(hello.hinders).substr(0, reason_max));
    writer.number(hello.rejoin_requests.size());
    for (const RejoinRequest& each : hello.rejoin_requests) writer.id(each.id), writer.number(each.incarnation);
    writer.number(hello.runs.size());
    for (const JobId& each : hello.runs) writer.id(each);
    writer.number(hello.wall_us);
    writer.number(hello.memory);
    writer.number(hello.rate);
    return std::move(writer.bytes);
}

bool hello_parse(std::span<const std::byte> bytes, NodeHello* hello) {
    MessageReader reader{bytes};
    hello->member = reader.member();
    hello->version = reader.text(64);
    const uint64_t isa = reader.number();
    hello->datagram_bytes = datagram_bytes_of(reader.number());
    hello->rdma_bytes = datagram_bytes_of(reader.number());
    hello->jobs = static_cast<uint32_t>(reader.number());
    hello->draining = reader.number() != 0;
    hello->rdma_devices = static_cast<uint32_t>(std::min<uint64_t>(reader.number(), rails_max));
    hello->rails = reader.text(rails_text_max);
    hello->hinders = reader.text(reason_max);
    const uint64_t rejoin_requests = reader.number();
    for (uint64_t i = 0; i < std::min<uint64_t>(rejoin_requests, rejoin_requests_max); ++i) {
        const JobId id = reader.id();
        hello->rejoin_requests.push_back({id, reader.number()});
    }
    const uint64_t runs = reader.number();
    for (uint64_t i = 0; i < std::min<uint64_t>(runs, runs_announced_max); ++i) hello->runs.push_back(reader.id());
    hello->wall_us = reader.number();
    hello->memory = reader.number();
    hello->rate = reader.number();
    if (!reader.whole() || isa > static_cast<uint64_t>(Isa::amx)) return false;
    hello->isa = static_cast<Isa>(isa);
    return true;
}

std::vector<std::byte> drain_write(const Drain& drain) {
    MessageWriter writer;
    writer.number(drain.on ? 1 : 0);
    writer.number(drain.cancel ? 1 : 0);
    return std::move(writer.bytes);
}

bool drain_parse(std::span<const std::byte> bytes, Drain* drain) {
    MessageReader reader{bytes};
    const uint64_t on = reader.number(), cancel = reader.number();
    *drain = {on == 1, cancel == 1};
    return reader.whole() && on <= 1 && cancel <= 1;
}

}   // namespace gradcast
