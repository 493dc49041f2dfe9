"""Draws when the first tokens of conversations came, as SVG: a dot a request, a line of each turn's median."""
import math
import statistics

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 78, 724, 48, 384
# Distinguishable with colour blindness, and in grey (Okabe and Ito's palette).
COLOURS = ["#d55e00", "#0072b2", "#009e73"]


def step_of(most):
    """The distance of grid lines from 0 to `most`: 1, 2 or 5 times a power of ten, at most eight of them."""
    power = 10 ** math.floor(math.log10(most)) / 10
    return next(power * factor for factor in (1, 2, 5, 10, 20, 50) if most / (power * factor) <= 8)


def time_text(milliseconds):
    return "0" if milliseconds == 0 else f"{milliseconds / 1000:g} s" if milliseconds >= 1000 else f"{milliseconds:g} ms"


def first_tokens(runs):
    """@param runs  name -> requests, each with its turn, first_text_s and usage"""
    values = [r["first_text_s"] * 1000 for requests in runs.values() for r in requests]
    step = step_of(max(values))
    lines = math.ceil(max(values) / step)
    turns = max(r["turn"] for requests in runs.values() for r in requests)

    def x(turn):
        return LEFT + (turn - 0.5) / turns * (RIGHT - LEFT)

    def y(milliseconds):
        return BOTTOM - milliseconds / (lines * step) * (BOTTOM - TOP)

    out = [f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' "
           f"height='{HEIGHT}' font-family='sans-serif' font-size='12'>",
           "<rect width='100%' height='100%' fill='white'/>",
           f"<text x='{LEFT}' y='28' font-size='15'>Time to first token of conversations that hop between two "
           "engines</text>"]
    for line in range(lines + 1):
        at = y(line * step)
        out.append(f"<line x1='{LEFT}' y1='{at:.1f}' x2='{RIGHT}' y2='{at:.1f}' stroke='#ddd'/>")
        out.append(f"<text x='{LEFT - 8}' y='{at + 4:.1f}' text-anchor='end'>{time_text(line * step)}</text>")
    some_run = next(iter(runs.values()))
    for turn in range(1, turns + 1):
        tokens = statistics.mean(r["usage"]["prompt_tokens"] for r in some_run if r["turn"] == turn)
        out.append(f"<text x='{x(turn):.1f}' y='{BOTTOM + 20}' text-anchor='middle'>{turn}</text>")
        out.append(f"<text x='{x(turn):.1f}' y='{BOTTOM + 36}' text-anchor='middle' fill='#666'>"
                   f"{tokens:,.0f} tokens</text>")
    out.append(f"<text x='{LEFT - 8}' y='{BOTTOM + 20}' text-anchor='end'>turn</text>")
    out.append(f"<text x='{LEFT - 8}' y='{BOTTOM + 36}' text-anchor='end' fill='#666'>prompt</text>")
    for number, (name, requests) in enumerate(runs.items()):
        colour = COLOURS[number % len(COLOURS)]
        shift = (number - (len(runs) - 1) / 2) * 10
        medians = []
        for turn in range(1, turns + 1):
            of_turn = [r["first_text_s"] * 1000 for r in requests if r["turn"] == turn]
            medians.append(f"{x(turn) + shift:.1f},{y(statistics.median(of_turn)):.1f}")
            out += [f"<circle cx='{x(turn) + shift:.1f}' cy='{y(v):.1f}' r='3.5' fill='{colour}' "
                    "fill-opacity='0.7'/>" for v in of_turn]
        out.append(f"<polyline fill='none' stroke='{colour}' stroke-width='2' points='{' '.join(medians)}'/>")
        at = TOP + 12 + 18 * number
        out.append(f"<rect x='{LEFT + 12}' y='{at - 5}' width='12' height='3' fill='{colour}'/>")
        out.append(f"<text x='{LEFT + 30}' y='{at}'>{name}</text>")
    return "\n".join([*out, "</svg>", ""])
