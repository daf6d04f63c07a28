#include "tools/gradcastctl/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/control/json.h"

namespace gradcast {
namespace {

constexpr double width = 560, height = 300, left = 62, right = 12, top = 28, bottom = 42;

/// About five round numbers that enclose low and high.
std::vector<double> ticks(double low, double high) {
    const double room = std::max(std::abs(high) * 1e-3, 1e-12);
    if (high - low < room) {
        low -= room;
        high += room;
    }
    const double rough = (high - low) / 5, power = std::pow(10, std::floor(std::log10(rough)));
    double unit = 10 * power;
    for (const double each : {5.0, 2.0, 1.0})
        if (each * power >= rough) unit = each * power;
    std::vector<double> all;
    for (double at = std::floor(low / unit + 1e-9) * unit; all.size() < 20; at += unit) {
        all.push_back(std::abs(at) < unit * 1e-9 ? 0 : at);
        if (at >= high - unit * 1e-9) break;
    }
    return all;
}

std::string plain_number(double value) { return fmt::format("{:.4g}", value); }

}   // namespace

std::string html_text(std::string_view text) {
    std::string result;
    const std::string valid = Json::parse(json_text(Json(std::string(text)))).get<std::string>();
    for (const char c : valid) {
        switch (c) {
            case '&': result += "&amp;"; break;
            case '<': result += "&lt;"; break;
            case '>': result += "&gt;"; break;
            case '"': result += "&quot;"; break;
            case '\'': result += "&#39;"; break;
            default: result += static_cast<unsigned char>(c) < ' ' && c != '\n' && c != '\t' ? ' ' : c;
        }
    }
    return result;
}

std::string plot_svg(const Plot& plot) {
    double x_low = HUGE_VAL, x_high = -HUGE_VAL, y_low = HUGE_VAL, y_high = -HUGE_VAL;
    bool any = false;
    for (const Series& each : plot.series) {
        any |= each.points.size() > 1;
        for (const auto& [x, y] : each.points) {
            x_low = std::min(x_low, x);
            x_high = std::max(x_high, x);
            y_low = std::min(y_low, y);
            y_high = std::max(y_high, y);
        }
    }
    if (!any) return {};
    const std::vector<double> xs = ticks(x_low, x_high), ys = ticks(y_low, y_high);
    auto x_at = [&](double x) { return left + (x - xs.front()) / (xs.back() - xs.front()) * (width - left - right); };
    auto y_at = [&](double y) { return height - bottom - (y - ys.front()) / (ys.back() - ys.front()) * (height - top - bottom); };
    const std::string title = html_text(plot.title), label = html_text(plot.x_label);
    std::string svg = fmt::format(
        "<svg viewBox=\"0 0 {0} {1}\" role=\"img\" aria-label=\"{2} by {3}\"><text class=\"title\" x=\"{4}\" y=\"16\">{2} by {3}</text>\n",
        width, height, title, label, left);
    for (const double y : ys)
        svg += fmt::format("<path class=\"grid\" d=\"M{} {:.1f}H{}\"/><text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", left,
                           y_at(y), width - right, left - 6, y_at(y) + 4, plain_number(y));
    for (size_t i = 0; i < xs.size(); ++i) {
        const char* anchor = i + 1 == xs.size() ? "end" : "middle";
        svg += fmt::format("<path class=\"grid\" d=\"M{:.1f} {}V{}\"/><text x=\"{:.1f}\" y=\"{}\" text-anchor=\"{}\">{}</text>\n",
                           x_at(xs[i]), top, height - bottom, x_at(xs[i]), height - bottom + 16, anchor,
                           html_text(plot.x_text ? plot.x_text(xs[i]) : plain_number(xs[i])));
    }
    svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", (left + width - right) / 2, height - 6, label);
    for (const Series& each : plot.series) {
        std::string path;
        for (const auto& [x, y] : each.points) path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x_at(x), y_at(y));
        if (!path.empty())
            svg += fmt::format("<path class=\"curve c{}{}\" d=\"{}\"/>\n", each.colour % plot_colours,
                               each.colour >= plot_colours ? " dashed" : "", path);
    }
    return svg + "</svg>\n";
}

}   // namespace gradcast
