// Text that a saved model of a text continues, token by token, without a job.
//
// It is computed with portable kernels, and tokens are drawn by comparing integers: one seed gives one text on every CPU.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "datasets/tokeniser.h"
#include "runtime/job/model/model_net.h"

namespace gradcast {

struct Sampling {
    uint64_t seed = 1;
    double temperature = 1;   // probabilities are taken to the power 1 / temperature; 0: the most probable token
    uint32_t top = 0;         // only the most probable so many; 0: all
};

class Generator {
public:
    /// A model as ModelNet::open() takes it.  Error: its net is not of a text, or some position of it sees later ones.  Sets nn_isa() of
    /// the process, so no net may have been planned before.
    Status open(const std::string& path, bool averaged = false);
    /// Tokens of a text: characters of the model's alphabet, words by its merges, or bytes.  Error: names what the model does not have.
    Status tokens(const std::string& text, std::vector<uint32_t>* tokens);
    /// Takes the merges of a file, as Tokeniser::open() does, of a model that has none.  Error: they do not fit the model.
    Status vocabulary(const std::string& path);
    /// As UTF-8 (of bytes and merges: bytes, which may be a part of a character); of other vocabularies the number and a space.
    std::string text(uint32_t token) const;
    /// Error: names a token that the model does not have.
    Status check(std::span<const uint32_t> tokens) const;
    /// Draws what follows the last `context` of these tokens; at least one.  Cost: one forward pass of the context.
    Status next(std::span<const uint32_t> tokens, const Sampling& sampling, uint32_t* next);
    const Model& model() const { return net_.model; }

private:
    std::string path_;
    ModelNet net_;
    std::vector<std::string> characters_;   // by token; empty: bytes, merges or other tokens
    std::optional<Tokeniser> merges_;
    std::vector<float> outputs_;   // [context, vocabulary]
};

/// Draws a place of `probabilities`, by number `draw` of the seed.
uint32_t token_drawn(std::span<const float> probabilities, const Sampling& sampling, uint64_t draw);

}   // namespace gradcast
