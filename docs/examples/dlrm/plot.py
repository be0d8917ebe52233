# SPDX-License-Identifier: Apache-2.0
"""Line plots as SVG, readable in light and dark themes."""
import math
from html import escape

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 76, 36, 44, 108
NAMES_PER_LINE = 3
STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: #1f2328; }
  .title { font-weight: 600; font-size: 15px; } .middle { text-anchor: middle; } .end { text-anchor: end; }
  .card { fill: #ffffff; stroke: #d1d9e0; } .grid { stroke: #d1d9e0; } .line { fill: none; stroke-width: 2.2; }
  .c0 { stroke: #0969da; } .c1 { stroke: #bc4c00; } .c2 { stroke: #1a7f37; } .c3 { stroke: #8250df; } .c4 { stroke: #818b98; }
  .c5 { stroke: #bf3989; }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc; } .card { fill: #0d1117; stroke: #3d444d; } .grid { stroke: #3d444d; }
    .c0 { stroke: #58a6ff; } .c1 { stroke: #f0883e; } .c2 { stroke: #3fb950; } .c3 { stroke: #bc8cff; } .c4 { stroke: #9198a1; }
    .c5 { stroke: #f778ba; }
  }
"""
DASHES = ("", "7 4", "2 3", "9 3 2 3", "4 4", "12 3")


def ticks(low, high, log):
    """Positions of labels: powers, or multiples of 1, 2 or 5."""
    if log:
        base = 10 if math.log10(high / low) > 3 or math.log2(high / low) % 1 else 4
        first, last = math.floor(math.log(low, base) + 1e-9), math.ceil(math.log(high, base) - 1e-9)
        return [base ** i for i in range(first, last + 1)]
    step = 10 ** math.floor(math.log10(max(high - low, 1e-9) / 3))
    step *= next(by for by in (1, 2, 5, 10) if (high - low) / (step * by) <= 6)
    return [i * step for i in range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)]


def label(value):
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"


def lines(path, title, x_name, y_name, series, log_x=False, log_y=False):
    """Write a plot of {name: [(x, y), ...]}."""
    def axis(values, log, begin, end):
        marks = ticks(min(values), max(values), log)
        to = math.log if log else float
        low, high = to(marks[0]), to(marks[-1])
        return marks, lambda value: begin + (end - begin) * (to(value) - low) / ((high - low) or 1)

    points = [point for of in series.values() for point in of]
    xs, place_x = axis([x for x, _ in points], log_x, LEFT, WIDTH - RIGHT)
    ys, place_y = axis([y for _, y in points], log_y, HEIGHT - BOTTOM, TOP)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">', f"<title>{escape(title)}</title>",
           f"<style>{STYLE}</style>", f'<rect class="card" width="{WIDTH}" height="{HEIGHT}" rx="8"/>',
           f'<text class="title" x="{LEFT}" y="26">{escape(title)}</text>']
    for y in ys:
        at = place_y(y)
        out.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>'
                   f'<text class="end" x="{LEFT - 8}" y="{at + 4:.1f}">{label(y)}</text>')
    for x in xs:
        out.append(f'<text class="middle" x="{place_x(x):.1f}" y="{HEIGHT - BOTTOM + 20}">{label(x)}</text>')
    out.append(f'<text class="middle" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - BOTTOM + 42}">{escape(x_name)}</text>')
    middle = (TOP + HEIGHT - BOTTOM) / 2
    out.append(f'<text class="middle" transform="translate(18 {middle}) rotate(-90)">{escape(y_name)}</text>')
    for i, (name, of) in enumerate(series.items()):
        how = f'class="line c{i % 6}" stroke-dasharray="{DASHES[i % 6]}"'
        at, down = LEFT + i % NAMES_PER_LINE * 205, HEIGHT - 42 + i // NAMES_PER_LINE * 22
        out.append(f'<polyline {how} points="{" ".join(f"{place_x(x):.1f},{place_y(y):.1f}" for x, y in of)}"/>')
        out.append(f'<path {how} d="M{at} {down}h26"/><text x="{at + 32}" y="{down + 4}">{escape(name)}</text>')
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(out) + "\n</svg>\n")
