#include "tools/gradcastctl/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "runtime/control/json.h"

namespace gradcast {
namespace {

constexpr double width = 420, height = 260, left = 50, right = 12, top = 28, bottom = 42;

/// About five round numbers that enclose low and high: multiples of 1, 2 or 5 times a power of ten.  None is above `most`.
std::vector<double> ticks(double low, double high, double most = HUGE_VAL) {
    const double room = std::max(std::abs(high) * 1e-3, 1e-12);
    if (high - low < room) {
        low -= room;
        high = std::min(high + room, most);
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

/// The same for a logarithmic axis; low > 0.
std::vector<double> ticks_log(double low, double high, bool bytes) {
    if (!bytes && high < 3 * low) {
        std::vector<double> all = ticks(low, high);
        if (all.front() <= 0) all.front() = low;
        return all;
    }
    std::vector<double> all;
    if (bytes) {
        const double first = std::floor(std::log2(low)), last = std::max(std::ceil(std::log2(high)), first + 1);
        const double every = std::ceil((last - first) / 6);
        for (double at = first; all.empty() || all.back() < high; at += every) all.push_back(std::exp2(at));
        return all;
    }
    const bool decades = high > 200 * low;   // 2 and 5 between them would be too many
    for (double power = std::pow(10, std::floor(std::log10(low)));; power *= 10)
        for (const double each : {1.0, 2.0, 5.0}) {
            if (decades && each > 1) continue;
            if (each * power <= low * (1 + 1e-9)) all.clear();
            all.push_back(each * power);
            if (each * power >= high * (1 - 1e-9) && all.size() > 1) return all;
        }
}

/// One direction of a plot.
struct Axis {
    AxisScale scale;
    double most = HUGE_VAL;   // no tick is above it; no value may be
    double low = HUGE_VAL, high = -HUGE_VAL;
    std::vector<double> at = {};   // ticks
    bool has(double value) const { return std::isfinite(value) && (scale == AxisScale::linear || value > 0); }
    void add(double value) {
        low = std::min(low, value);
        high = std::max(high, value);
    }
    void set_ticks() { at = scale == AxisScale::linear ? ticks(low, high, most) : ticks_log(low, high, scale == AxisScale::log_bytes); }
    std::string text(double tick) const {
        static constexpr const char* units[] = {" B", " KiB", " MiB", " GiB", " TiB", " PiB"};
        if (scale != AxisScale::log_bytes) return fmt::format("{:.6g}", tick);
        const double unit = std::clamp(std::floor(std::log2(tick) / 10), 0.0, 5.0);
        return fmt::format("{:.6g}{}", tick / std::exp2(10 * unit), units[static_cast<size_t>(unit)]);
    }
    /// 0 at the first tick, 1 at the last.
    double share(double value) const {
        if (scale == AxisScale::linear) return (value - at.front()) / (at.back() - at.front());
        return std::log(value / at.front()) / std::log(at.back() / at.front());
    }
};

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
    Axis x_axis{plot.x}, y_axis{plot.y, plot.y_most};
    std::vector<Series> series = plot.series;
    bool any = false;
    for (Series& each : series) {
        std::erase_if(each.points, [&](const auto& point) { return !x_axis.has(point.first) || !y_axis.has(point.second); });
        any |= each.points.size() > 1;
        for (const auto& [x, y] : each.points) x_axis.add(x), y_axis.add(y);
    }
    if (!any) return {};
    x_axis.set_ticks();
    y_axis.set_ticks();
    const std::vector<double>&xs = x_axis.at, &ys = y_axis.at;
    auto x_at = [&](double x) { return left + x_axis.share(x) * (width - left - right); };
    auto y_at = [&](double y) { return height - bottom - y_axis.share(y) * (height - top - bottom); };
    const std::string title = html_text(plot.title), label = html_text(plot.x_label);
    std::string svg = fmt::format(
        "<svg viewBox=\"0 0 {0} {1}\" role=\"img\" aria-label=\"{2} by {3}\"><text class=\"title\" x=\"{4}\" y=\"16\">{2} by {3}</text>\n",
        width, height, title, label, left);
    for (size_t i = 0; i < ys.size(); ++i)
        svg += fmt::format("<path class=\"grid\" d=\"M{} {:.1f}H{}\"/><text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n", left,
                           y_at(ys[i]), width - right, left - 6, y_at(ys[i]) + 4, y_axis.text(ys[i]));
    for (size_t i = 0; i < xs.size(); ++i) {
        const char* anchor = i + 1 == xs.size() ? "end" : "middle";
        svg += fmt::format("<path class=\"grid\" d=\"M{:.1f} {}V{}\"/><text x=\"{:.1f}\" y=\"{}\" text-anchor=\"{}\">{}</text>\n",
                           x_at(xs[i]), top, height - bottom, x_at(xs[i]), height - bottom + 18, anchor, x_axis.text(xs[i]));
    }
    svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", (left + width - right) / 2, height - 6, label);
    for (const Series& each : series) {
        std::string path;
        for (const auto& [x, y] : each.points) path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x_at(x), y_at(y));
        if (path.empty()) continue;
        const bool dot = each.points.size() == 1;   // a line of no length is drawn by its round cap alone
        svg += fmt::format("<path class=\"curve c{}{}{}\" d=\"{}{}\"/>\n", each.colour % plot_colours,
                           each.colour >= plot_colours ? " dashed" : "", dot ? " dot" : "", path, dot ? "h0" : "");
    }
    return svg + "</svg>\n";
}

}   // namespace gradcast
