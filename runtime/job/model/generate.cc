#include "runtime/job/model/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "nn/graph/layers.h"
#include "nn/programs.h"
#include "runtime/core/elementary.h"
#include "runtime/core/memory_room.h"
#include "runtime/core/rng.h"

namespace gradcast {
namespace {

constexpr uint32_t byte_values = 256;

/// The characters of a UTF-8 text; bytes that are none are characters of their own.
std::vector<std::string> characters_of(const std::string& text) {
    std::vector<std::string> all;
    for (size_t at = 0, bytes = 0; at < text.size(); at += bytes) {
        const auto first = static_cast<uint8_t>(text[at]);
        bytes = std::min<size_t>(first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : first >= 0xC0 ? 2 : 1, text.size() - at);
        all.push_back(text.substr(at, bytes));
    }
    return all;
}

/// Error: outputs at a position depend on later tokens.
Status causal_check(const std::string& path, const std::vector<Layer>& layers) {
    for (const Layer& layer : layers) {
        if (layer.kind->causal && layer.kind->causal(layer)) continue;
        return fail(Code::data, "the model {} cannot continue a text: its layer {} ({}) sees later tokens{}", path, layer.spec.name,
                    layer.spec.kind, layer.kind->causal ? "; train it with causal = true" : "");
    }
    return {};
}

}   // namespace

uint32_t token_drawn(std::span<const float> probabilities, const Sampling& sampling, uint64_t draw) {
    std::vector<uint32_t> order(probabilities.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](uint32_t a, uint32_t b) { return probabilities[a] > probabilities[b]; });
    if (sampling.temperature == 0) return order[0];
    if (sampling.top > 0 && sampling.top < order.size()) order.resize(sampling.top);
    // Whole weights below 2^40, so that no rounding of their sum decides.
    constexpr double one = uint64_t{1} << 40;
    std::vector<uint64_t> weights;
    unsigned __int128 total = 0;
    const double largest = elementary::log(static_cast<double>(probabilities[order[0]]));
    for (const uint32_t token : order) {
        const double power = (elementary::log(static_cast<double>(probabilities[token])) - largest) / sampling.temperature;
        weights.push_back(static_cast<uint64_t>(one * elementary::exp(power)));
        total += weights.back();
    }
    const Philox bits = random4(Purpose::generate, sampling.seed, draw, 0);
    auto left = static_cast<uint64_t>((uint64_t{bits[1]} << 32 | bits[0]) * total >> 64);
    for (size_t i = 0; i < order.size(); ++i) {
        if (left < weights[i]) return order[i];
        left -= weights[i];
    }
    return order[0];
}

Status Generator::open(const std::string& path, bool averaged) {
    path_ = path;
    GC_TRY(nn_isa(Isa::portable));
    GC_TRY(net_.open(path, 1, 1, averaged));
    const NetSpec& spec = net_.model.net;
    if (spec.vocabulary == 0) return fail(Code::data, "the model {} is not of a text, so it has nothing to continue", path);
    std::vector<Layer> layers;
    GC_TRY(layers_check(spec, &layers));
    GC_TRY(causal_check(path, layers));
    if (Tokeniser::is_text(net_.model.alphabet)) {
        merges_.emplace();
        GC_TRY(Tokeniser::parse(net_.model.alphabet, "the model " + path, &*merges_));
        if (merges_->vocabulary() != spec.vocabulary)
            return fail(Code::data, "the model {} has a vocabulary of {} tokens, and merges of {}: the file is damaged", path,
                        spec.vocabulary, merges_->vocabulary());
    } else {
        characters_ = characters_of(net_.model.alphabet);
    }
    if (!characters_.empty() && characters_.size() != spec.vocabulary)
        return fail(Code::data, "the model {} has a vocabulary of {} tokens, and an alphabet of {}: the file is damaged", path,
                    spec.vocabulary, characters_.size());
    const uint64_t outputs = uint64_t{spec.positions()} * spec.vocabulary;
    GC_TRY(memory_room_for(outputs * sizeof(float), "the outputs of the model " + path));
    GC_TRY(net_.ready());
    outputs_.resize(outputs);
    return {};
}

Status Generator::vocabulary(const std::string& path) {
    if (merges_ || !characters_.empty()) return fail(Code::invalid, "--vocabulary {}: the model {} has its own: leave it out", path, path_);
    Tokeniser read;
    GC_TRY(Tokeniser::open(path, &read));
    if (read.vocabulary() != net_.model.net.vocabulary)
        return fail(Code::invalid, "--vocabulary {}: it has {} tokens, but the model {} has {}: it is that of another text", path,
                    read.vocabulary(), path_, net_.model.net.vocabulary);
    merges_ = std::move(read);
    return {};
}

Status Generator::tokens(const std::string& text, std::vector<uint32_t>* tokens) {
    const uint32_t vocabulary = net_.model.net.vocabulary;
    if (merges_) return merges_->encode(text, tokens), Status();
    if (characters_.empty()) {
        if (vocabulary != byte_values)
            return fail(
                Code::invalid,
                "the model {} has {} tokens that are no characters: give their numbers (--prompt-tokens), or their file (--vocabulary)",
                path_, vocabulary);
        for (const char byte : text) tokens->push_back(static_cast<uint8_t>(byte));
        return {};
    }
    for (const std::string& each : characters_of(text)) {
        const auto at = std::ranges::find(characters_, each);
        if (at == characters_.end())
            return fail(Code::invalid, "the prompt has the character \"{}\", which is not among the {} of the model {}", each,
                        characters_.size(), path_);
        tokens->push_back(static_cast<uint32_t>(at - characters_.begin()));
    }
    return {};
}

std::string Generator::text(uint32_t token) const {
    if (merges_) return merges_->bytes(token);
    if (!characters_.empty()) return characters_[token];
    if (net_.model.net.vocabulary == byte_values) return {static_cast<char>(token)};
    return fmt::format("{} ", token);
}

Status Generator::check(std::span<const uint32_t> tokens) const {
    const uint32_t vocabulary = net_.model.net.vocabulary;
    const auto other = std::ranges::find_if(tokens, [&](uint32_t token) { return token >= vocabulary; });
    if (other == tokens.end()) return {};
    return fail(Code::invalid, "token {} is not below the vocabulary of {} of the model {}", *other, vocabulary, path_);
}

Status Generator::next(std::span<const uint32_t> tokens, const Sampling& sampling, uint32_t* next) {
    const NetSpec& spec = net_.model.net;
    const uint32_t context = spec.positions();
    GC_ASSERT(!tokens.empty());
    const std::span<const uint32_t> seen = tokens.last(std::min<size_t>(tokens.size(), context));
    GC_TRY(check(seen));
    std::vector<uint8_t> window(spec.sample_bytes());   // behind the prompt zeros, which no position before sees
    const uint32_t width = element_bytes(spec.element);
    for (size_t i = 0; i < seen.size(); ++i) std::memcpy(&window[i * width], &seen[i], width);   // the low bytes
    Samples samples{window.data(), nullptr, 1, spec.C, spec.H, spec.W, net_.model.mean.data(), net_.model.std.data()};
    samples.element = spec.element;
    uint32_t right = 0;
    double loss = 0;
    GC_TRY(net_.net->evaluate(0, samples, &right, &loss, nullptr, outputs_.data()));
    const std::span of(outputs_.data() + (seen.size() - 1) * spec.vocabulary, spec.vocabulary);
    if (!std::ranges::all_of(of, [](float value) { return std::isfinite(value); }))
        return fail(Code::data, "the model {} gives NaN or Inf: its parameters are damaged", path_);
    *next = token_drawn(of, sampling, tokens.size());
    return {};
}

}   // namespace gradcast
