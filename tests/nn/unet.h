// The preset unet, of images with masks.
#pragma once
#include "tests/nn/nets.h"

namespace gradcast {

/// Of 3 planes, with 4 classes.
inline NetSpec unet(uint32_t side) {
    NetSpec spec{.C = 3, .H = side, .W = side, .classes = 4, .targets = side * side, .target_element = Element::u8};
    EXPECT_TRUE(preset_layers("unet", {}, &spec).ok());
    return spec;
}

}   // namespace gradcast
