#include "tools/gradcastctl/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/control/json.h"

namespace gradcast {
namespace {

constexpr double width = 560, height = 300, left = 62, right = 12, top = 28, bottom = 42;

/// About five round numbers that enclose low and high: multiples of 1, 2 or 5 times a power of ten; of bytes, multiples of a power of two.
/// None is above `most`.
std::vector<double> ticks(double low, double high, bool bytes = false, double most = HUGE_VAL) {
    const double room = std::max(std::abs(high) * 1e-3, 1e-12);
    if (high - low < room) {
        low -= room;
        high = std::min(high + room, most);
    }
    const double rough = (high - low) / 5, power = std::pow(10, std::floor(std::log10(rough)));
    double unit = 10 * power;
    for (const double each : {5.0, 2.0, 1.0})
        if (each * power >= rough) unit = each * power;
    if (bytes) unit = std::exp2(std::max(0.0, std::ceil(std::log2(rough))));
    std::vector<double> all;
    for (double at = std::floor(low / unit + 1e-9) * unit; all.size() < 20; at += unit) {
        all.push_back(std::abs(at) < unit * 1e-9 ? 0 : at);
        if (at >= high - unit * 1e-9) break;
    }
    return all;
}

std::string plain_number(double value) { return fmt::format("{:.6g}", value); }

/// Labels of ticks; those of bytes are all in one unit, and exact.
std::vector<std::string> labels(const std::vector<double>& all, bool bytes) {
    static constexpr const char* units[] = {" B", " KiB", " MiB", " GiB", " TiB", " PiB"};
    const double power = bytes ? std::clamp(std::floor(std::log2((all[1] - all[0]) * 8) / 10), 0.0, 5.0) : 0;
    std::vector<std::string> texts;
    for (const double each : all)
        texts.push_back(plain_number(each / std::exp2(10 * power)) + (bytes ? units[static_cast<size_t>(power)] : ""));
    return texts;
}

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
    const std::vector<double> xs = ticks(x_low, x_high, plot.x_bytes), ys = ticks(y_low, y_high, false, plot.y_most);
    const std::vector<std::string> x_labels = labels(xs, plot.x_bytes), y_labels = labels(ys, false);
    auto x_at = [&](double x) { return left + (x - xs.front()) / (xs.back() - xs.front()) * (width - left - right); };
    auto y_at = [&](double y) { return height - bottom - (y - ys.front()) / (ys.back() - ys.front()) * (height - top - bottom); };
    const std::string title = html_text(plot.title), label = html_text(plot.x_label);
    std::string svg = fmt::format(
        "<svg viewBox=\"0 0 {0} {1}\" role=\"img\" aria-label=\"{2} by {3}\"><text class=\"title\" x=\"{4}\" y=\"16\">{2} by {3}</text>\n",
        width, height, title, label, left);
    for (size_t i = 0; i < ys.size(); ++i)
        svg += fmt::format("<path class=\"grid\" d=\"M{} {:.1f}H{}\"/><text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", left,
                           y_at(ys[i]), width - right, left - 6, y_at(ys[i]) + 4, y_labels[i]);
    for (size_t i = 0; i < xs.size(); ++i) {
        const char* anchor = i + 1 == xs.size() ? "end" : "middle";
        svg += fmt::format("<path class=\"grid\" d=\"M{:.1f} {}V{}\"/><text x=\"{:.1f}\" y=\"{}\" text-anchor=\"{}\">{}</text>\n",
                           x_at(xs[i]), top, height - bottom, x_at(xs[i]), height - bottom + 16, anchor, x_labels[i]);
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
