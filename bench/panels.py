"""Curves in panels over logarithmic axes, with one legend, as a self-contained SVG."""

import math, os, sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "paper"))
from plot import tag, ticks

cell_width, cell_height, left, top, plot_width, plot_height = 450, 320, 60, 74, 370, 240


def panels(path, title, notes, y_name, y_low, rows):
    """rows: [[(title, x name, {name: [(x, y)]})]]: panels from left to right, of which the first row has room for the legend at its end.
    Axes with one name have one range.  What is below y_low is cut off; the notes stand below the panels."""
    drawn = [panel for row in rows for panel in row]
    names = sorted({name for _, _, curves in drawn for name in curves})
    y_high = max(y for _, _, curves in drawn for points in curves.values() for _, y in points) + 1
    ranges = {}
    for _, x_name, curves in drawn:
        values = [x for points in curves.values() for x, _ in points]
        low, high = ranges.get(x_name, (math.inf, 0))
        ranges[x_name] = min(low, min(values) / 1.15), max(high, max(values) * 1.15)
    columns, height = max(map(len, [rows[0] + [None], *rows])), top + cell_height * len(rows) + 17 * len(notes) + 8
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {columns * cell_width + 10} {height}" font-family="sans-serif" font-size="13">',
           f'<rect width="100%" height="100%" fill="white"/><text x="16" y="28" font-size="17" font-weight="bold">{tag(title)}</text>',
           f'<clipPath id="plot"><rect y="-4" x="-4" width="{plot_width + 8}" height="{plot_height + 4}"/></clipPath>']  # fmt: skip
    for line, row in enumerate(rows):
        for column, (panel, x_name, curves) in enumerate(row):
            low, high = ranges[x_name]
            x_at = lambda x, low=low, high=high: plot_width * math.log(x / low) / math.log(high / low)
            y_at = lambda y: plot_height * (y_high - y) / (y_high - y_low)
            out.append(f'<g transform="translate({left + column * cell_width} {top + line * cell_height})"><text y="-10" font-weight="bold">{tag(panel)}</text>')
            for x in ticks(low, high, True):
                out.append(f'<path d="M{x_at(x):.1f} 0v{plot_height}" stroke="#e4e4e4"/><text x="{x_at(x):.1f}" y="{plot_height + 16}" text-anchor="middle" font-size="11">{x:g}</text>')
            for y in ticks(y_low, y_high, False):
                out.append(f'<path d="M0 {y_at(y):.1f}h{plot_width}" stroke="#e4e4e4"/><text x="-6" y="{y_at(y) + 4:.1f}" text-anchor="end" font-size="11">{y:g}</text>')
            out.append(f'<rect width="{plot_width}" height="{plot_height}" fill="none" stroke="#808080"/><text x="{plot_width / 2}" y="{plot_height + 34}" text-anchor="middle">{tag(x_name)}</text>')
            out.append(f'<text transform="translate(-36 {plot_height / 2}) rotate(-90)" text-anchor="middle">{tag(y_name)}</text><g clip-path="url(#plot)">')
            for name, points in curves.items():
                places = [(x_at(x), y_at(y)) for x, y in points]
                out.append(f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}" fill="none" stroke="{colour(names, name)}" stroke-width="2"{dash(names, name)}/>')
                out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour(names, name)}"/>' for x, y in (places if len(places) < 25 else places[-1:])]
            out.append("</g></g>")
    for i, name in enumerate(names):
        x, y = left + len(rows[0]) * cell_width + i // 10 * 140, top + 12 + i % 10 * 22
        out.append(f'<path d="M{x} {y}h30" stroke="{colour(names, name)}" stroke-width="2"{dash(names, name)}/><circle cx="{x + 15}" cy="{y}" r="3" fill="{colour(names, name)}"/>'
                   f'<text x="{x + 38}" y="{y + 4}">{tag(name)}</text>')
    out += [f'<text x="16" y="{top + cell_height * len(rows) + 17 * i}" font-size="12" fill="#303030">{tag(note)}</text>' for i, note in enumerate(notes)]
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write("\n".join(out) + "\n</svg>\n")


def colour(names, name):
    return f"hsl({360 * names.index(name) // len(names)} 70% {32 + names.index(name) % 2 * 14}%)"


def dash(names, name):
    return ' stroke-dasharray="7 3"' if names.index(name) % 2 else ""
