"""Shared by figures and curves: CSV files written atomically, and charts as SVG."""

import csv, math, os

colours = {
    "multicast": "#1f77b4", "unicast": "#7f7f7f", "ring": "#2ca02c", "coded-rs": "#d62728", "cssgd r=2": "#ff7f0e", "cssgd r=3": "#9467bd",
    "cssgd": "#ff7f0e", "cssgd, best r": "#ff7f0e",
}


def read(path):
    if not os.path.exists(path):
        return []
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def write(path, head, rows):
    """Writes the file atomically: the run may be interrupted."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".new", "w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *rows])
    os.replace(path + ".new", path)


def tag(text):
    return str(text).replace("&", "&amp;").replace("<", "&lt;")


def ticks(low, high, log):
    if not log:
        step = 10 ** math.floor(math.log10((high - low) / 4))
        step *= next(k for k in (1, 2, 5, 10) if (high - low) / (step * k) <= 7)
        return [round(i * step, 10) for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    fine = (1, 2, 5) if math.log10(high / low) < 3 else (1,)
    return [k * 10.0**p for p in powers for k in fine if low * 0.999 <= k * 10.0**p <= high * 1.001]


def chart(path, title, claim, x_name, y_name, series, log_x=False, log_y=False, line=None):
    """series: {name: ([(x, y)], dashed)}; `line`: (height, name) of a horizontal line.  The claim is wrapped below the chart."""
    width, height, left, right, top, plot = 820, 0, 80, 190, 40, 360
    words, claims = claim.split(), [""]
    for word in words:
        if len(claims[-1]) + len(word) > 118:
            claims.append("")
        claims[-1] += (" " if claims[-1] else "") + word
    height = top + plot + 60 + 17 * len(claims)
    points = [point for drawn, _ in series.values() for point in drawn]
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
           f'<rect width="{width}" height="{height}" fill="white"/><text x="{left}" y="24" font-size="16">{tag(title)}</text>']
    scales = []
    for axis, log in ((0, log_x), (1, log_y)):
        values = [point[axis] for point in points] + ([line[0]] if line and axis else [])
        low, high = min(values), max(values)
        if log:
            low, high = low / 1.15, high * 1.15
        elif axis:
            low, high = min(0, low), high * 1.05
        if low == high:
            low, high = low - 0.5, high + 0.5
        begin, end = (left, width - right) if axis == 0 else (top + plot, top)
        change = math.log10 if log else float
        scales.append(lambda v, low=low, high=high, begin=begin, end=end, change=change: begin + (change(v) - change(low)) / (change(high) - change(low)) * (end - begin))
        for value in ticks(low, high, log):
            at, text = scales[axis](value), f"{value:g}"
            if axis == 0:
                out.append(f'<path d="M{at:.1f} {top}V{top + plot}" stroke="#e0e0e0"/><text x="{at:.1f}" y="{top + plot + 18}" text-anchor="middle">{text}</text>')
            else:
                out.append(f'<path d="M{left} {at:.1f}H{width - right}" stroke="#e0e0e0"/><text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{text}</text>')
    out.append(f'<rect x="{left}" y="{top}" width="{width - right - left}" height="{plot}" fill="none" stroke="#404040"/>')
    out.append(f'<text x="{(left + width - right) / 2}" y="{top + plot + 38}" text-anchor="middle">{tag(x_name)}</text>')
    out.append(f'<text transform="translate(18 {top + plot / 2}) rotate(-90)" text-anchor="middle">{tag(y_name)}</text>')
    if line:
        at = scales[1](line[0])
        out.append(f'<path d="M{left} {at:.1f}H{width - right}" stroke="black" stroke-dasharray="2 3"/><text x="{left + 6}" y="{at - 5:.1f}">{tag(line[1])}</text>')
    legend = top + 12
    for i, (name, (drawn, dashed)) in enumerate(series.items()):
        colour = colours.get(name.removesuffix(", the paper's model"), f"hsl({i * 137} 65% 42%)")
        places = [(scales[0](x), scales[1](y)) for x, y in drawn]
        dash = ' stroke-dasharray="6 4" opacity="0.7"' if dashed else ""
        out.append(f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>')
        if not dashed and len(places) < 30:
            out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in places]
        out.append(f'<path d="M{width - right + 10} {legend}h24" stroke="{colour}" stroke-width="2"{dash}/>')
        for part in name.split(", ", 1) if len(name) > 20 else [name]:
            out.append(f'<text x="{width - right + 40}" y="{legend + 4}" font-size="12">{tag(part)}</text>')
            legend += 15
        legend += 5
    out += [f'<text x="20" y="{top + plot + 64 + 17 * i}" font-size="12" fill="#303030">{tag(text)}</text>' for i, text in enumerate(claims)]
    with open(path, "w") as file:
        file.write("\n".join(out) + "\n</svg>\n")
