"""Horizontal bars in panels, as a self-contained SVG."""


def tag(text):
    return str(text).replace("&", "&amp;").replace("<", "&lt;")


def bars(path, title, note, panels):
    """panels: [(title, [(label, value, mark, muted, remark)])], two side by side, each with its own scale; a mark of 0 is not drawn."""
    bar_width, row, top = 215, 22, 74
    label_width = max(150, 6 + 7 * max(len(label) for _, rows in panels for label, *_ in rows))
    panel_width = label_width + bar_width + 125
    height = 36 + row * max(len(rows) for _, rows in panels)
    lines = (len(panels) + 1) // 2
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * panel_width + 20} {top + lines * height + 8}" font-family="sans-serif" font-size="13">',
           f'<rect width="100%" height="100%" fill="white"/><text x="16" y="28" font-size="17" font-weight="bold">{tag(title)}</text>',
           f'<text x="16" y="50" font-size="12" fill="#505050">{tag(note)}</text>']  # fmt: skip
    for i, (name, rows) in enumerate(panels):
        left, y = 16 + i % 2 * panel_width, top + i // 2 * height
        scale = bar_width / max(max(value, mark) for _, value, mark, *_ in rows)
        out.append(f'<text x="{left}" y="{y + 12}" font-weight="bold">{tag(name)}</text>')
        for k, (label, value, mark, muted, remark) in enumerate(rows):
            at, x = y + 22 + k * row, left + label_width
            out.append(f'<text x="{x - 6}" y="{at + 12}" text-anchor="end">{tag(label)}</text>')
            out.append(f'<rect x="{x}" y="{at}" width="{value * scale:.1f}" height="16" fill="{"#b0b0b0" if muted else "#2a6fb0"}"/>')
            if mark:
                out.append(f'<path d="M{x + mark * scale:.1f} {at - 2}v20" stroke="#202020" stroke-width="2"/>')
            out.append(f'<text x="{x + max(value, mark) * scale + 6:.1f}" y="{at + 12}">{value:.{0 if value >= 99.5 else 1}f}{tag(remark)}</text>')
    with open(path, "w") as file:
        file.write("\n".join(out) + "\n</svg>\n")
