// A net of texts with dropout wherever GPT-2 has it.
#pragma once
#include "tests/nn/nets.h"

namespace gradcast {

inline NetSpec dropping_gpt() {
    NetSpec spec{.C = 1, .H = 1, .W = 10, .classes = 1, .element = Element::u16, .vocabulary = 7};
    EXPECT_TRUE(preset_layers("gpt", {.depth = 2, .width = 24, .heads = 3, .dropout = 0.2}, &spec).ok());
    return spec;
}

}   // namespace gradcast
