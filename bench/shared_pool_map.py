#!/usr/bin/env python3
"""Draws where a shared pool with routing that knows no caches keeps up with conductor: bandwidth against latency.

bench/shared_pool_map.py CACHALOT TRACE OUT.svg
"""
import json
import subprocess
import sys

GB_S = [1, 2, 5, 10, 20, 50, 100, 200]
LATENCY_US = [1, 5, 20, 50, 100]
CELL, LEFT, TOP = 72, 90, 60


def mean_ttft(cachalot, trace, flags):
    command = [cachalot, "simulate", "--trace", trace, "--prefill", "10", "--json", "-", *flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit("shared_pool_map: " + done.stderr.strip())
    return json.loads(done.stdout)["ttft_ms"]["mean"]


def excess(cachalot, trace, gb_s, latency_us):
    link = ["--link-gb-s", str(gb_s), "--link-latency-us", str(latency_us), "--operation-bytes", "163840"]
    pool = mean_ttft(cachalot, trace, ["--shared-pool", "--policy", "least_loaded", *link])
    return pool / mean_ttft(cachalot, trace, ["--policy", "conductor", *link]) - 1


def colour(value):
    """Green up to 2 %, yellow up to 10 %, red above."""
    return "#9ad29a" if value <= 0.02 else "#f2dc8c" if value <= 0.10 else "#eda08f"


def main():
    if len(sys.argv) != 4:
        sys.exit("usage: shared_pool_map.py CACHALOT TRACE OUT.svg")
    cachalot, trace, out = sys.argv[1:]
    width, height = LEFT + CELL * len(GB_S) + 20, TOP + 40 * len(LATENCY_US) + 50
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
           'font-family="sans-serif" font-size="13" text-anchor="middle">',
           '<rect width="100%" height="100%" fill="white"/>',
           f'<text x="{width / 2}" y="22">Mean TTFT: least_loaded on a shared pool over conductor</text>',
           f'<text x="{width / 2}" y="42">10 instances, operations of 160 KiB, 16 in flight</text>']
    for y, latency in enumerate(LATENCY_US):
        top = TOP + 40 * y
        svg.append(f'<text x="{LEFT - 40}" y="{top + 25}">{latency} µs</text>')
        for x, gb_s in enumerate(GB_S):
            value, left = excess(cachalot, trace, gb_s, latency), LEFT + CELL * x
            svg.append(f'<rect x="{left}" y="{top}" width="{CELL - 2}" height="38" fill="{colour(value)}"/>')
            svg.append(f'<text x="{left + CELL / 2}" y="{top + 25}">{value * 100:+.1f} %</text>')
    for x, gb_s in enumerate(GB_S):
        svg.append(f'<text x="{LEFT + CELL * x + CELL / 2}" y="{height - 28}">{gb_s}</text>')
    svg.append(f'<text x="{width / 2}" y="{height - 8}">GB/s of an instance\'s link</text></svg>')
    with open(out, "w", encoding="utf-8") as file:
        file.write("\n".join(svg) + "\n")


if __name__ == "__main__":
    main()
