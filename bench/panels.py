"""Named dots in panels over a logarithmic axis, as a self-contained SVG."""

import math, os, sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "paper"))
from plot import tag, ticks

left, top, gap, foot, plot_width, plot_height = 60, 74, 80, 80, 430, 240
letter, line = 7, 13   # of a name: width of a letter, height; generous


def panels(path, title, notes, y_name, y_low, rows):
    """rows: [[(title, x name, {name: (x, y)})]]: panels from left to right; those of a row share its width.  Axes with one name have one range.
    A dot below y_low is an arrow at the foot of its panel, with y in its name.  The notes stand below the panels."""
    drawn = [panel for row in rows for panel in row]
    y_high = max(y for _, _, dots in drawn for _, y in dots.values()) + 1
    y_low = min(y_low, y_high - 5)
    ranges = {}
    for _, x_name, dots in drawn:
        low, high = ranges.get(x_name, (math.inf, 0))
        ranges[x_name] = min(low, *(x / 1.3 for x, _ in dots.values())), max(high, *(x * 1.3 for x, _ in dots.values()))
    columns = max(map(len, rows))
    full = columns * plot_width + (columns - 1) * gap
    height = top + (plot_height + foot) * len(rows) + 17 * len(notes)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + full + 20} {height}" font-family="sans-serif" font-size="13">',
           f'<rect width="100%" height="100%" fill="white"/><text x="16" y="28" font-size="17" font-weight="bold">{tag(title)}</text>']  # fmt: skip
    for number, row in enumerate(rows):
        width = (full - (len(row) - 1) * gap) / len(row)
        for column, (panel, x_name, dots) in enumerate(row):
            low, high = ranges[x_name]
            x_at = lambda x: width * math.log(x / low) / math.log(high / low)
            y_at = lambda y: plot_height * (y_high - y) / (y_high - y_low)
            out.append(f'<g transform="translate({left + column * (width + gap):g} {top + number * (plot_height + foot)})"><text y="-10" font-weight="bold">{tag(panel)}</text>')
            for x in ticks(low, high, True):
                out.append(f'<path d="M{x_at(x):.1f} 0v{plot_height}" stroke="#e4e4e4"/><text x="{x_at(x):.1f}" y="{plot_height + 16}" text-anchor="middle" font-size="11">{x:g}</text>')
            for y in ticks(y_low, y_high, False):
                out.append(f'<path d="M0 {y_at(y):.1f}h{width:g}" stroke="#e4e4e4"/><text x="-6" y="{y_at(y) + 4:.1f}" text-anchor="end" font-size="11">{y:g}</text>')
            out.append(f'<rect width="{width:g}" height="{plot_height}" fill="none" stroke="#808080"/><text x="{width / 2:g}" y="{plot_height + 34}" text-anchor="middle">{tag(x_name)}</text>')
            out.append(f'<text transform="translate(-36 {plot_height / 2}) rotate(-90)" text-anchor="middle">{tag(y_name)}</text>')
            places = {name if y >= y_low else f"{name} {y:.1f}": (x_at(x), min(y_at(y), plot_height - 6)) for name, (x, y) in dots.items()}
            low_ones = {f"{name} {y:.1f}" for name, (_, y) in dots.items() if y < y_low}
            for name, (x, y, line_to) in labels(places, width).items():
                at_x, at_y = places[name]
                if line_to:
                    out.append(f'<path d="M{at_x:.1f} {at_y:.1f}L{line_to[0]:.1f} {line_to[1]:.1f}" stroke="#909090"/>')
                mark = f"M{at_x - 4:.1f} {at_y - 4:.1f}h8l-4 8z" if name in low_ones else f"M{at_x - 4:.1f} {at_y:.1f}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z"
                out.append(f'<path d="{mark}" fill="#0b5cd6"/><text x="{x:.1f}" y="{y + line - 3:.1f}" font-size="12">{tag(name)}</text>')
            out.append("</g>")
    out += [f'<text x="16" y="{top + (plot_height + foot) * len(rows) + 17 * i - 8}" font-size="12" fill="#303030">{tag(note)}</text>' for i, note in enumerate(notes)]
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write("\n".join(out) + "\n</svg>\n")


def labels(places, width):
    """{name: (x, y, end of a line from the dot or None)}: the upper left corner of each name, beside its dot, where it covers neither another name,
    a dot nor a line.  A name that has no room beside its dot gets a line to it.  One that has no room at all covers others."""
    boxes, lines, found = [(x - 5, y - 5, x + 5, y + 5) for x, y in places.values()], [], {}

    def covers(box, points):
        return any(box[0] < x < box[2] and box[1] < y < box[3] for x, y in points)

    for name, (x, y) in sorted(places.items(), key=lambda each: (each[1][1], each[1][0])):
        wide = letter * len(name) + 4
        tries = [(x + 8, y - line / 2), (x - 8 - wide, y - line / 2), (x - wide / 2, y - 6 - line), (x - wide / 2, y + 6)]
        near = len(tries)
        for radius in range(22, 200, 9):
            for turn in (-30, 30, -60, 60, -90, 90, -120, 120, -150, 150, 0, 180):
                centre = x + (radius + wide / 2) * math.cos(math.radians(turn)), y + radius * math.sin(math.radians(turn))
                tries.append((centre[0] - wide / 2, centre[1] - line / 2))
        for number, (at_x, at_y) in enumerate(tries):
            box = (at_x, at_y, at_x + wide, at_y + line)
            if at_x < 2 or at_y < 2 or box[2] > width - 2 or box[3] > plot_height - 1 or any(box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3] for other in boxes):
                continue
            end = None if number < near else (min(max(x, at_x), box[2]), at_y if at_y > y else box[3] if box[3] < y else y)
            path = [(x + (end[0] - x) * k / 20, y + (end[1] - y) * k / 20) for k in range(21)] if end else []
            path = [point for point in path if math.dist(point, (x, y)) > 12]   # dots may lie on one another
            if any(covers(box, points) for points in lines) or any(covers(other, path) for other in boxes):
                continue
            boxes.append(box)
            lines.append(path)
            found[name] = (at_x, at_y, end)
            break
        else:
            found[name] = (*tries[0], None)
    return found
