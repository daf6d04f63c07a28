#include "algos/lbfgs.h"

namespace gradcast {
namespace {

using Row = std::span<double>;

double dot(std::span<const double> a, std::span<const double> b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
}
void add(Row to, double factor, std::span<const double> what) {
    for (size_t i = 0; i < to.size(); ++i) to[i] += factor * what[i];
}

constexpr double flat = 0.5;   // of the derivative along the direction that may be left
constexpr int halvings_max = 40;

}   // namespace

Status Lbfgs::minimise(std::span<const double> first, Row x) {
    const size_t d = x.size();
    const auto vector = [&](uint64_t i) { return memory.subspan(i * d, d); };
    const auto s = [&](uint64_t i) { return vector(i % pairs); };
    const auto y = [&](uint64_t i) { return vector(pairs + i % pairs); };
    const Row g = vector(2 * pairs), direction = vector(2 * pairs + 1), place = vector(2 * pairs + 2), there = vector(2 * pairs + 3);
    std::ranges::fill(x, 0.0);
    std::ranges::copy(first, g.begin());
    const double goal = std::max(floor, tolerance * std::sqrt(dot(g, g)));
    uint32_t evaluations = 0;
    for (uint64_t k = 0; std::sqrt(dot(g, g)) > goal; ++k) {
        const uint64_t oldest = k > pairs ? k - pairs : 0;
        double alpha[pairs];
        std::ranges::copy(g, direction.begin());
        for (uint64_t i = k; i-- > oldest;) {
            alpha[i % pairs] = dot(s(i), direction) / dot(s(i), y(i));
            add(direction, -alpha[i % pairs], y(i));
        }
        const double scale = k > 0 ? dot(s(k - 1), y(k - 1)) / dot(y(k - 1), y(k - 1)) : 1 / std::sqrt(dot(g, g));
        for (double& each : direction) each *= scale;
        for (uint64_t i = oldest; i < k; ++i) add(direction, alpha[i % pairs] - dot(y(i), direction) / dot(s(i), y(i)), s(i));
        for (double& each : direction) each = -each;

        const double slope = dot(g, direction);
        if (!(slope < 0)) return {};   // rounding is all that is left
        double low = 0, high = INFINITY, t = 1;
        for (int tried = 0;; ++tried) {
            if (evaluations++ == evaluations_max) return fail(Code::deadline, "no minimum after {} gradients", evaluations_max);
            for (size_t i = 0; i < d; ++i) place[i] = x[i] + t * direction[i];
            GC_TRY(f(place, there));
            const double now = dot(there, direction);
            if (std::abs(now) <= flat * -slope || tried == halvings_max) break;
            (now < 0 ? low : high) = t;
            t = std::isinf(high) ? 2 * t : (low + high) / 2;
        }
        for (size_t i = 0; i < d; ++i) {
            s(k)[i] = place[i] - x[i];
            y(k)[i] = there[i] - g[i];
            x[i] = place[i];
            g[i] = there[i];
        }
        if (!(dot(s(k), y(k)) > 0)) return {};
    }
    return {};
}

}   // namespace gradcast
