// A net of texts whose layers share weights.
#pragma once
#include "tests/nn/nets.h"

namespace gradcast {

/// small_gpt() whose head has the embedding's weights.
inline NetSpec tied_gpt() {
    NetSpec spec{.C = 1, .H = 1, .W = 10, .classes = 1, .element = Element::u16, .vocabulary = 7};
    EXPECT_TRUE(preset_layers("gpt", {.depth = 2, .width = 24, .heads = 3, .tied_head = true}, &spec).ok());
    return spec;
}

}   // namespace gradcast
