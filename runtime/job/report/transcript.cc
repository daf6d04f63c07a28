#include "runtime/job/report/transcript.h"

#include <openssl/hmac.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "runtime/core/digest.h"

namespace gradcast {
namespace {

// Exceptions are off here: parse() returns a discarded value, and every type is asked before it is taken.
using Json = nlohmann::ordered_json;

constexpr char format_name[] = "gradcast transcript";
constexpr uint64_t format_version = 1;
constexpr size_t members_max = 1 << 20;   // of all views

std::string sha256_of(const std::string& text) { return sha256_hex(std::as_bytes(std::span(text))); }
/// Bytes that are not UTF-8 become replacement characters.
std::string dump(const Json& json, int indent) { return json.dump(indent, ' ', false, Json::error_handler_t::replace); }

Json json_of(const Transcript& transcript) {
    Json json{{"format", format_name},
              {"version", format_version},
              {"id", transcript.id},
              {"job", transcript.job},
              {"data_digest", transcript.data_digest},
              {"kernel_set", transcript.kernel_set},
              {"views", Json::array()}};
    for (const TranscriptView& view : transcript.views)
        json["views"].push_back({{"number", view.number}, {"first_step", view.first_step}, {"members", view.members}});
    json["steps"] = transcript.steps;
    json["digest"] = transcript.digest;
    json["chain"] = {{"first", transcript.first}, {"lines", transcript.lines}, {"sha256", transcript.chain}};
    return json;
}

/// Takes the members of one object; all must be taken.
class Taker {
public:
    Taker(const std::string& path, const Json& json, std::string where) : path_(path), json_(json), where_(std::move(where)) {}
    Status text(const char* name, std::string* value) {
        const Json* found = find(name);
        if (!found || !found->is_string()) return wrong(name);
        *value = found->get_ref<const std::string&>();
        return {};
    }
    Status number(const char* name, uint64_t* value) {
        const Json* found = find(name);
        if (!found || !found->is_number_unsigned() || found->get<uint64_t>() > UINT32_MAX) return wrong(name);
        *value = found->get<uint64_t>();
        return {};
    }
    Status object(const char* name, const Json** value) {
        *value = find(name);
        return *value && (*value)->is_object() ? Status{} : wrong(name);
    }
    Status list(const char* name, const Json** value) {
        *value = find(name);
        return *value && (*value)->is_array() ? Status{} : wrong(name);
    }
    bool has(const char* name) const { return json_.contains(name); }
    Status all() const {
        return taken_ == json_.size() ? Status{} : fail(Code::data, "{}: not a transcript: {}it has members of other names", path_, where_);
    }
    Status wrong(const char* name) const { return fail(Code::data, "{}: not a transcript: {}{} is missing or wrong", path_, where_, name); }

private:
    const Json* find(const char* name) {
        const auto found = json_.find(name);
        if (found == json_.end()) return nullptr;
        ++taken_;
        return &*found;
    }
    const std::string& path_;
    const Json& json_;
    const std::string where_;
    size_t taken_ = 0;
};

Status view_take(const std::string& path, const Json& json, TranscriptView* view, size_t* members) {
    if (!json.is_object()) return fail(Code::data, "{}: not a transcript: views are not objects", path);
    Taker taker(path, json, "views: ");
    uint64_t number = 0;
    const Json* names = nullptr;
    GC_TRY(taker.number("number", &number));
    GC_TRY(taker.number("first_step", &view->first_step));
    GC_TRY(taker.list("members", &names));
    view->number = static_cast<uint32_t>(number);
    *members += names->size();
    if (*members > members_max) return taker.wrong("members");
    for (const Json& name : *names) {
        if (!name.is_string()) return taker.wrong("members");
        view->members.push_back(name.get_ref<const std::string&>());
    }
    return taker.all();
}

}   // namespace

StepChain::StepChain(const Transcript& of)
    : hex_(sha256_of(fmt::format("gradcast steps 1\n{}\n{}\n{}\n{}\n", of.id, of.kernel_set, of.data_digest, sha256_of(of.job)))) {}

void StepChain::add(const StepLine& line) { hex_ = sha256_of(fmt::format("{} {} {} {:016x}\n", hex_, line.step, line.loss, line.digest)); }

std::string transcript_content(const Transcript& transcript) { return dump(json_of(transcript), -1); }

std::string transcript_hmac(const Transcript& transcript, const ClusterKey& key) {
    const std::string content = transcript_content(transcript);
    std::array<uint8_t, EVP_MAX_MD_SIZE> value;
    unsigned bytes = 0;
    GC_ASSERT(::HMAC(EVP_sha256(), key.secret.data(), static_cast<int>(key.secret.size()), reinterpret_cast<const uint8_t*>(content.data()),
                     content.size(), value.data(), &bytes) != nullptr);
    return hex(std::span(value).first(bytes));
}

Status transcript_write(const std::string& folder, Transcript transcript, const ClusterKey* key) {
    StepLines lines;
    GC_TRY(lines.open(folder + "/steps.jsonl"));
    StepChain chain(transcript);
    StepLine line;
    for (bool got = false;;) {
        GC_TRY(lines.next(&line, &got));
        if (!got) break;
        if (transcript.lines++ == 0) transcript.first = line.step;
        chain.add(line);
    }
    transcript.chain = chain.hex();
    Json json = json_of(transcript);
    if (key) json["hmac"] = {{"key", key->id}, {"sha256", transcript_hmac(transcript, *key)}};
    return file_write(folder + "/transcript.json", dump(json, 2) + "\n");
}

Status transcript_read(const std::string& path, Transcript* transcript) {
    std::string text;
    GC_TRY(file_read(path, &text));
    const Json json = Json::parse(text, nullptr, false);
    if (!json.is_object()) return fail(Code::data, "{}: not a transcript: no JSON object", path);
    Taker taker(path, json, "");
    Transcript read;
    std::string format;
    uint64_t version = 0;
    const Json *views = nullptr, *chain = nullptr, *hmac = nullptr;
    GC_TRY(taker.text("format", &format));
    GC_TRY(taker.number("version", &version));
    if (format != format_name) return taker.wrong("format");
    if (version > format_version)
        return fail(Code::data, "{}: written by a newer gradcast: version {}, this one reads {}", path, version, format_version);
    auto hex_of = [](const std::string& value, size_t digits) {
        return value.size() == digits && value.find_first_not_of("0123456789abcdef") == value.npos;
    };
    GC_TRY(taker.text("id", &read.id));
    if (!hex_of(read.id, 32)) return taker.wrong("id");
    GC_TRY(taker.text("job", &read.job));
    GC_TRY(taker.text("data_digest", &read.data_digest));
    GC_TRY(taker.text("kernel_set", &read.kernel_set));
    GC_TRY(taker.list("views", &views));
    size_t members = 0;
    for (const Json& each : *views) GC_TRY(view_take(path, each, &read.views.emplace_back(), &members));
    GC_TRY(taker.number("steps", &read.steps));
    GC_TRY(taker.text("digest", &read.digest));
    GC_TRY(taker.object("chain", &chain));
    Taker of_chain(path, *chain, "chain: ");
    GC_TRY(of_chain.number("first", &read.first));
    GC_TRY(of_chain.number("lines", &read.lines));
    GC_TRY(of_chain.text("sha256", &read.chain));
    if (!hex_of(read.chain, 64)) return of_chain.wrong("sha256");
    GC_TRY(of_chain.all());
    if (taker.has("hmac")) {
        GC_TRY(taker.object("hmac", &hmac));
        Taker of_hmac(path, *hmac, "hmac: ");
        GC_TRY(of_hmac.text("key", &read.key));
        GC_TRY(of_hmac.text("sha256", &read.hmac));
        if (!hex_of(read.hmac, 64)) return of_hmac.wrong("sha256");
        GC_TRY(of_hmac.all());
    }
    GC_TRY(taker.all());
    *transcript = std::move(read);
    return {};
}

}   // namespace gradcast
