#include "runtime/job/run/resume.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "nn/graph/process.h"
#include "nn/graph/slices.h"
#include "runtime/core/bits.h"
#include "runtime/core/fd.h"
#include "runtime/core/memory_room.h"
#include "runtime/core/short_texts.h"
#include "runtime/job/model/checkpoint_files.h"
#include "runtime/job/run/probe_block.h"
#include "runtime/job/run/state_move.h"

namespace gradcast {
namespace {

constexpr uint64_t algorithm_bytes_max = uint64_t{1} << 32;
constexpr int32_t exponent_max = 400;   // a scale that no float gradient has
constexpr size_t notes_max = 3;         // files that are named as damaged
constexpr size_t parts_max = 4;         // checkpoints in parts, of which a node reports its parts, where it has all of none

/// The state of that file fits this job on these nodes.
Status check(const std::string& path, const ModelReader& file, const EngineConfig& config, JobParts& parts) {
    const Model& model = file.model();
    JobConfig before;
    std::vector<JobMistake> mistakes;
    if (!job_parse(model.job, path, model.base, &before, &mistakes))
        return fail(Code::data, "{}: its job file is not one for this version: {}", path, mistakes.front().text);
    const std::string begins_anew = fmt::format(
        "; a new job can begin with its parameters: gradcastctl export {} NAME.safetensors, and net.start = \"NAME.safetensors\"", path);
    const auto was = job_identity(before), is = job_identity(config.job);
    for (size_t i = 0; i < std::max(was.size(), is.size()); ++i) {
        if (i < was.size() && i < is.size() && was[i] == is[i]) continue;
        const auto& [key, value] = i < was.size() ? was[i] : is[i];
        const bool both = i < was.size() && i < is.size() && was[i].first == is[i].first;
        const bool same_net = !key.starts_with("net.") && !key.starts_with("layer ");
        return fail(Code::data, "{}: of another training: {} was {}{}{}", path, key, i < was.size() ? value : "not set",
                    both ? fmt::format(" and is {} now", is[i].second) : "", same_net ? begins_anew : "");
    }
    std::vector<Layer> layers;
    GC_TRY(layers_check(model.net, &layers));
    if (const auto were = sliced_layers(layers), are = sliced_layers(parts.layers); were != are)
        return fail(Code::data, "{}: of another training: the sliced layers were [{}] and are [{}] now", path, fmt::join(were, ", "),
                    fmt::join(are, ", "));
    if (const std::string constant = constant_difference(model.net, parts.spec); !constant.empty())
        return fail(Code::data,
                    "{}: trained with other values or another shape of {}, which the program does not train: give it those again{}", path,
                    constant, begins_anew);
    if (model.data_digest != parts.data_digest)
        return fail(Code::data, "{}: trained on other data: its digest was {:.8}, that of {} is {:.8}", path, model.data_digest,
                    data_names(config.job), parts.data_digest);
    if (!model.other_functions && !kernel_sets_agree(model.kernel_set, parts.kernel_set))
        return fail(
            Code::data,
            "{}: trained with other kernels: the kernel set was {}, here it is {}; nodes of the same instruction set ({}), device and "
            "version of gradcast are needed{}{}",
            path, model.kernel_set, parts.kernel_set, config.isa_setting,
            parts.kernels_measured() || (before.start.empty() && config.job.start.empty()) ? "" : ", and the same file net.start",
            begins_anew);
    // A job may have done its last step and ended before its model had its name.  It is resumed after that step, and writes the model.
    const bool named = model.agreed || path.ends_with("final.h5") || before.steps != config.job.steps || before.epochs != config.job.epochs;
    if (model.step > parts.steps || (model.step == parts.steps && named))
        return fail(Code::invalid, "{}: all {} steps of the job are done: more epochs or steps in the job file would go on", path,
                    parts.steps);
    return {};
}

Status check_sizes(const std::string& path, const ModelReader& file, const JobParts& parts) {
    StateSizes sizes = parts.state_sizes();
    const StateSizes& has = file.sizes();
    sizes[StateVector::algorithm] = has[StateVector::algorithm];   // its own restore() checks it
    if (has != sizes)
        return fail(Code::data, "{}: {} parameters, {} values of the optimiser and {} scales do not fit the job's {}, {} and {}", path,
                    has[StateVector::parameters], has[StateVector::optimiser], has[StateVector::exponents], sizes[StateVector::parameters],
                    sizes[StateVector::optimiser], sizes[StateVector::exponents]);
    return {};
}

/// The scales in a file that was found whole.
Status check_exponents(const std::string& path, const ModelReader& file) {
    for (const Layout::Run& run : file.has(StateVector::exponents)) {
        std::vector<int32_t> exponents(run.count);
        GC_TRY(file.range(StateVector::exponents, run.place, std::as_writable_bytes(std::span(exponents))));
        for (const int32_t exponent : exponents)
            if (exponent < -exponent_max || exponent > exponent_max)
                return fail(Code::data, "{}: a scale of 2^{} is no gradient's", path, exponent);
    }
    return {};
}

/// What a rank that has `own` takes of a file.
StateRuns wanted_of(const ModelReader& file, const StateRuns& own) {
    StateRuns wanted;
    for (const StateVector which : state_vectors)
        for (const Layout::Run& run : file.has(which))
            (void)each_stretch(own[which], run.place, run.count, [&](uint64_t offset, uint64_t place, uint64_t count) {
                wanted[which].push_back({offset, count, place});
                return Status{};
            });
    return wanted;
}

Buffer bytes_of(auto span) { return {reinterpret_cast<std::byte*>(span.data()), nullptr, span.size_bytes()}; }

}   // namespace

Status resume_find(const std::string& folder, std::vector<FoundState>* states, Model* newest, std::vector<std::string>* notes) {
    const ShortTexts for_the_caller;
    bool some = false;
    uint64_t whole = 0, damaged = 0;                           // steps of the newest state that is whole, in one file or in parts
    std::map<std::pair<uint64_t, uint32_t>, uint32_t> parts;   // that are whole, by steps and cells
    std::error_code error;
    if (const std::filesystem::directory_iterator folder_of(folder, error); error && error != std::errc::no_such_file_or_directory)
        notes->push_back(fmt::format("cannot read {}: {}", folder, error.message()));
    const auto take = [&](const std::string& path, const CheckpointName& name) {
        some = true;
        ModelReader file;
        Status status = file.open_alone(path);
        if (status.ok()) status = file.read();
        if (status.ok()) status = file.resumable();
        if (!status.ok() && ++damaged <= notes_max) notes->push_back(status.what);
        if (!status.ok()) return;
        const Model& model = file.model();
        if (states->empty() || model.step > newest->step) *newest = model;
        if (++parts[{name.steps, name.cells}] == name.cells) whole = std::max(whole, model.step);
        states->push_back({model.step, model.state, model.agreed, name.cell, name.cells});
    };
    // Checkpoints after final.h5 are of a longer job that has gone on from it.
    if (const std::string final = folder + "/final.h5"; ::access(final.c_str(), F_OK) == 0) take(final, {});
    const std::vector<CheckpointName> all = checkpoint_files(folder);
    std::set<uint64_t> in_parts;   // steps
    for (size_t i = all.size(); i-- > 0 && all[i].steps > whole;) {
        if (all[i].cells > 1 && in_parts.size() >= parts_max && !in_parts.contains(all[i].steps)) continue;
        if (all[i].cells > 1) in_parts.insert(all[i].steps);
        if (states->size() < found_states_max) take(checkpoint_path(folder, all[i]), all[i]);
    }
    if (damaged > notes_max) notes->push_back(fmt::format("{} more files in {} are not whole", damaged - notes_max, folder));
    return states->empty() ? fail(Code::data, "{} holds no checkpoint{}", folder, some ? " that is whole" : "") : Status{};
}

Status resume_load(const EngineConfig& config, JobParts& parts, Algorithm& algorithm, Report& report, ResumeFiles* files,
                   Standing* standing) {
    const Resume& resume = config.resume;
    for (uint32_t cell = 0; cell < resume.holders.size(); ++cell) {
        if (resume.holders[cell] != config.self) continue;
        const std::string& path = resume.paths[cell];
        ModelReader& file = files->parts.emplace_back(cell, ModelReader()).second;
        GC_TRY(resume.holders.size() > 1 ? file.open_alone(path) : file.open(path));
        GC_TRY(file.resumable());
        GC_TRY(check(path, file, config, parts));
        const Model& model = file.model();
        const bool other = resume.holders.size() == 1 && model.state != resume.state;
        if (model.step != resume.steps || other)
            return fail(Code::data, "{}: holds the state {:016x} of step {} instead of {:016x} of step {}", path, model.state, model.step,
                        resume.state, resume.steps);
        std::vector<std::byte> of_algorithm;
        const uint64_t bytes = file.sizes()[StateVector::algorithm];
        GC_TRY(memory_room_for(bytes, "the state of the algorithm"));
        of_algorithm.resize(bytes);
        const Status fits = check_sizes(path, file, parts);   // what the algorithm says comes first
        std::vector<StateMemory> memory = parts.state_memory();
        std::vector<StateTarget> targets;
        for (StateMemory& each : memory) {
            each.runs = fits.ok() ? wanted_of(file, each.runs) : StateRuns();
            for (const StateVector which : state_vectors) targets.push_back({which, each.runs[which], each.vectors[which]});
        }
        const Layout::Run all_of_algorithm{0, bytes, 0};
        if (bytes > 0) targets.push_back({StateVector::algorithm, {&all_of_algorithm, 1}, of_algorithm});
        GC_TRY(file.read(targets));
        if (Status restored = algorithm.restore(of_algorithm); !restored.ok()) return fail(restored.code, "{}: {}", path, restored.what);
        GC_TRY(fits);
        GC_TRY(check_exponents(path, file));
        if (model.other_functions)
            report.warn(fmt::format(
                "{}: written before gradcast had exp, log, sin and cos of its own: the trained model will not have the bits of a "
                "job that was never interrupted",
                path));
        *standing = {resume.steps, resume.state, model.evaluated, model.accuracy, model.test_loss, bytes};
    }
    parts.refresh();
    return {};
}

namespace {

/// A message of `from` to the ranks `to`; each has a number of its own.
Status message(Context& context, Session& session, Rank from, const RankSet& to, uint64_t number, std::span<std::byte> bytes) {
    if (bytes.empty()) return {};
    Mailbox& mail = *context.mail;
    constexpr uint64_t tags = uint64_t{1} << 62;
    mail.begin(1);
    if (from == session.self()) mail.send(to, tags | number, bytes_of(bytes), 1);
    else mail.receive(from, tags | number, bytes_of(bytes), 1);
    GC_TRY(mail.wait(1, 1, session.first_step_us(), "state to go on from"));
    if (from == session.self() || !mail.lost(1)) return {};
    return fail(Code::peer_lost, "{} is lost, which holds the state to go on from", session.view().members[from].name);
}

/// What is not in vectors of the net: from the first source.
Status move_rest(Context& context, Session& session, Rank from, const RankSet& to, Algorithm& algorithm, Standing* standing) {
    const bool holds = from == session.self();
    const std::span<std::byte> head = session.keep(sizeof *standing);
    if (holds) std::memcpy(head.data(), standing, sizeof *standing);
    GC_TRY(message(context, session, from, to, 0, head));
    if (!holds) std::memcpy(standing, head.data(), sizeof *standing);
    if (standing->algorithm_bytes > algorithm_bytes_max)
        return fail(Code::conflict, "the state of the algorithm has {} bytes: too many", standing->algorithm_bytes);
    GC_TRY(memory_room_for(standing->algorithm_bytes, "the state of the algorithm"));
    const std::span<std::byte> state = session.keep(standing->algorithm_bytes);
    if (holds) std::ranges::copy(algorithm.state(), state.begin());
    GC_TRY(message(context, session, from, to, 1, state));
    return holds ? Status{} : algorithm.restore(state);
}

Status move_whole(Context& context, Session& session, Rank from, const RankSet& to, JobParts& parts, Algorithm& algorithm,
                  Standing* standing) {
    const bool holds = from == session.self();
    GC_TRY(move_rest(context, session, from, to, algorithm, standing));
    const StateSource source{from, state_runs_whole(parts.state_sizes())};
    const auto receives = [&](Rank rank, uint32_t) { return holds ? bit(to.bits, rank) : rank == session.self(); };
    GC_TRY(state_move(context, session, parts, {&source, 1}, receives, {}));
    if (!holds) parts.refresh();
    return {};
}

}   // namespace

Status standing_move(Context& context, Session& session, Rank from, Algorithm& algorithm, Standing* standing) {
    return move_rest(context, session, from, session.others(), algorithm, standing);
}

Status state_send(Context& context, Session& session, const RankSet& to, JobParts& parts, Algorithm& algorithm, Standing* standing) {
    return move_whole(context, session, session.self(), to, parts, algorithm, standing);
}

Status state_receive(Context& context, Session& session, Rank from, JobParts& parts, Algorithm& algorithm, Standing* standing) {
    return move_whole(context, session, from, {}, parts, algorithm, standing);
}

namespace {

/// All ranks learn which elements each file has.
Status sources_of(const EngineConfig& config, Context& context, Session& session, const JobParts& parts, const ResumeFiles& files,
                  std::span<const Rank> holders, std::vector<StateSource>* sources) {
    const StateSizes sizes = parts.state_sizes();
    if (holders.size() == 1) return sources->push_back({holders[0], state_runs_whole(sizes)}), Status{};
    StateSizes covered{};
    for (uint32_t cell = 0; cell < holders.size(); ++cell) {
        const bool own = holders[cell] == session.self();
        std::vector<uint64_t> values;
        if (own)
            for (const auto& [of, file] : files.parts)
                if (of == cell) values = ranges_values(file.has());
        const std::span<std::byte> count = session.keep(sizeof(uint64_t));
        const uint64_t own_count = values.size();
        if (own) std::memcpy(count.data(), &own_count, sizeof own_count);
        GC_TRY(message(context, session, holders[cell], session.others(), 2 + 2 * cell, count));
        uint64_t its_count = 0;
        std::memcpy(&its_count, count.data(), sizeof its_count);
        if (its_count > ranges_max) return fail(Code::conflict, "a checkpoint of {} ranges has too many", its_count / ranges_width);
        const std::span<std::byte> bytes = session.keep(its_count * sizeof(uint64_t));
        if (own) std::memcpy(bytes.data(), values.data(), bytes.size());
        GC_TRY(message(context, session, holders[cell], session.others(), 3 + 2 * cell, bytes));
        values.resize(its_count);
        std::memcpy(values.data(), bytes.data(), bytes.size());
        StateSource& source = sources->emplace_back(StateSource{holders[cell], {}});
        if (!ranges_parse(values, sizes, &source.runs))
            return fail(Code::conflict, "part {} of the checkpoint has impossible ranges", cell + 1);
        for (const StateVector which : state_vectors) covered[which] += state_sizes(source.runs)[which];
    }
    session.keep_none();
    if (covered == sizes) return {};   // with the digest of all, they do not overlap
    return fail(Code::data, "the {} parts of the checkpoint after {} steps have {} of {} parameters: some part is of another cut",
                holders.size(), config.resume.steps, covered[StateVector::parameters], sizes[StateVector::parameters]);
}

}   // namespace

Status resume_spread(const EngineConfig& config, Context& context, Session& session, JobParts& parts, Algorithm& algorithm,
                     const ResumeFiles& files, Standing* standing) {
    const std::vector<NodeId>& nodes = session.config().nodes;
    std::vector<Rank> holders;
    for (const NodeId holder : config.resume.holders) {
        const auto rank = static_cast<Rank>(std::find(nodes.begin(), nodes.end(), holder) - nodes.begin());
        GC_ASSERT(rank < nodes.size());
        holders.push_back(rank);
    }
    if (nodes.size() > 1) {
        GC_TRY(standing_move(context, session, holders[0], algorithm, standing));
        std::vector<StateSource> sources;
        GC_TRY(sources_of(config, context, session, parts, files, holders, &sources));
        const auto read = [&](StateVector which, uint64_t place, std::span<std::byte> to) -> Status {
            for (const auto& [cell, file] : files.parts)
                if (file.holds(which, place, to.size() / kind_of(which).width).ok()) return file.range(which, place, to);
            return fail(Code::data, "no file here has elements {} .. of the {}", place, kind_of(which).name);
        };
        GC_TRY(state_move(
            context, session, parts, sources, [](Rank, uint32_t) { return true; }, read));
    }
    parts.refresh();
    uint64_t digest = 0;
    GC_TRY(context.digest(config.resume.steps, parts.model_digest(), &digest));
    if (standing->steps != config.resume.steps || digest != config.resume.state)
        return fail(Code::conflict, "the state after {} steps has the digest {:016x}, its checkpoint says {:016x}", config.resume.steps,
                    digest, config.resume.state);
    return {};
}

}   // namespace gradcast
