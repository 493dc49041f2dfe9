"""Draws lines over one axis as SVG. A logarithmic axis has ticks at 1, 2 and 5 times the powers of ten."""
import math

HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 520, 90, 690, 80, 450
LETTER = 8.5  # at most so wide, of a name beside its line
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#000000"]


def step_for(top):
    power = 10 ** math.floor(math.log10(top / 6))
    return next(digit * power for digit in (1, 2, 5, 10) if top / (digit * power) <= 6)


class Axis:
    def __init__(self, values, begin, end, is_log, ticks=None):
        self.begin, self.end, self.is_log = begin, end, is_log
        if is_log:
            self.low, self.high = min(values) * 0.9, max(values) * 1.1
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            all_ticks = [digit * 10 ** power for power in powers for digit in (1, 2, 5)]
            self.ticks = [tick for tick in all_ticks if self.low <= tick <= self.high]
        else:
            self.low, self.high = 0, max(values) or 1
            step = step_for(self.high)
            self.ticks = [i * step for i in range(int(self.high / step * 1.0001) + 1)]
        self.ticks = ticks or self.ticks

    def at(self, value):
        if self.is_log:
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = value / self.high
        return self.begin + part * (self.end - self.begin)


def number(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"


def draw_lines(file, title, subtitle, x_label, y_label, lines, log_x=False, log_y=False, ticks_at_points=False):
    """lines: name -> list of (x, y); ticks_at_points: the horizontal axis has a tick at each x"""
    points = [point for line in lines.values() for point in line]
    values = sorted({point[0] for point in points})
    x = Axis(values, LEFT, RIGHT, log_x, values if ticks_at_points else None)
    y = Axis([point[1] for point in points], BOTTOM, TOP, log_y)
    width = round(RIGHT + 60 + LETTER * max(len(name) for name in lines))
    if log_y:
        y_label += ", logarithmic"
    svg = [f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {HEIGHT}' width='{width}' height='{HEIGHT}' "
           "font-family='Helvetica,Arial,sans-serif' font-size='15'>",
           "<rect width='100%' height='100%' fill='white'/>",
           f"<text x='{LEFT}' y='32' font-size='20' font-weight='bold'>{title}</text>",
           f"<text x='{LEFT}' y='56' fill='#555'>{subtitle}</text>"]
    for tick in y.ticks:
        at = y.at(tick)
        svg.append(f"<line x1='{LEFT}' y1='{at:.1f}' x2='{RIGHT}' y2='{at:.1f}' stroke='#e2e2e2'/>")
        svg.append(f"<text x='{LEFT - 8}' y='{at + 5:.1f}' text-anchor='end'>{number(tick)}</text>")
    for tick in x.ticks:
        svg.append(f"<text x='{x.at(tick):.1f}' y='{BOTTOM + 22}' text-anchor='middle'>{number(tick)}</text>")
    middle = (LEFT + RIGHT) / 2
    svg.append(f"<text x='{middle}' y='{BOTTOM + 50}' text-anchor='middle'>{x_label}</text>")
    svg.append(f"<text transform='translate(24 {(TOP + BOTTOM) / 2}) rotate(-90)' text-anchor='middle'>{y_label}</text>")
    for i, (name, line) in enumerate(lines.items()):
        colour = COLOURS[i % len(COLOURS)]
        shape = " ".join(f"{x.at(px):.1f},{y.at(py):.1f}" for px, py in line)
        svg.append(f"<polyline fill='none' stroke='{colour}' stroke-width='2' points='{shape}'/>")
        svg += [f"<circle cx='{x.at(px):.1f}' cy='{y.at(py):.1f}' r='3' fill='{colour}'/>" for px, py in line]
        at = TOP + 8 + 22 * i
        svg.append(f"<line x1='{RIGHT + 14}' y1='{at}' x2='{RIGHT + 40}' y2='{at}' stroke='{colour}' stroke-width='3'/>")
        svg.append(f"<text x='{RIGHT + 48}' y='{at + 5}'>{name}</text>")
    with open(file, "w", encoding="utf-8") as out:
        out.write("\n".join(svg) + "\n</svg>\n")
