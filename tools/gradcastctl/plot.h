// Line plots as SVG, for the page that `report` writes.
#pragma once
#include <cmath>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gradcast {

/// Text as it stands between tags and in attributes: UTF-8 without what HTML reads as its own.
std::string html_text(std::string_view text);

struct Series {
    size_t colour = 0;   // class c0, c1, … of the page's style
    std::vector<std::pair<double, double>> points;
};
struct Plot {
    std::string title, x_label;   // "loss", "steps"
    bool x_bytes = false;         // ticks of bytes: round in binary units
    double y_most = HUGE_VAL;     // no tick is above it; no value may be
    std::vector<Series> series;
};
/// "" where no series has two points.
std::string plot_svg(const Plot& plot);
constexpr size_t plot_colours = 8;   // of the page's style; further series begin anew, dashed

}   // namespace gradcast
