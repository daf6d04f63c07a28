// Nets whose layers are sliced.
#pragma once
#include "nn/graph/slices.h"
#include "tests/nn/tied.h"

namespace gradcast {

/// `spec` with these layers in so many slices.
inline NetSpec cut(NetSpec spec, uint32_t slices, const std::vector<std::string>& names) {
    std::string about;
    const Status status = slices_choose(slices, names, &spec, &about);
    EXPECT_TRUE(status.ok()) << status.what;
    return spec;
}

}   // namespace gradcast
