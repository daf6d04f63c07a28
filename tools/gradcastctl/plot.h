// Line plots as SVG, for the page that `report` writes.
#pragma once
#include <cmath>
#include <cstdint>
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
/// log: ticks at round numbers; log_bytes: at powers of two.  Both leave out points that are not above zero.
enum class AxisScale : uint8_t { linear, log, log_bytes };
struct Plot {
    std::string title, x_label;   // "loss", "samples"
    AxisScale x = AxisScale::linear, y = AxisScale::linear;
    double y_most = HUGE_VAL;   // no tick of a linear y is above it; no value may be
    std::vector<Series> series;
};
/// "" where no series has two points.
std::string plot_svg(const Plot& plot);
constexpr size_t plot_colours = 8;   // of the page's style; further series begin anew, dashed

}   // namespace gradcast
