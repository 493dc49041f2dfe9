#!/usr/bin/env python3
"""Beluga's argument and its experiments 6 to 8, simulated: tables on stdout, drawings into a folder.

bench/beluga_curves.py CACHALOT OUT_FOLDER [zipf|rate|length|blocks|pd ...]
"""
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from line_plot import draw_lines

# 46 GB/s an adapter, 2 adapters for 8 GPUs.
LOAD_STORE = ["--link-gb-s", "11.5", "--link-latency-us", "0.75"]
SERVED = ["--model", "Qwen3-32B", "--hardware", "H20"]
DOCUMENTS = 1200


def bounce(operation_bytes=20480):
    """One operation at a time for all requests of an instance: an RDMA read and a copy, 24 us; 25 GB/s at most."""
    return ["--link-gb-s", f"{min(25, operation_bytes / 24e-6 / 1e9):.6f}", "--link-latency-us", "24"]


class Runner:
    def __init__(self, cachalot, out, folder):
        self.cachalot, self.out, self.folder = cachalot, pathlib.Path(out), folder

    def call(self, *arguments):
        done = subprocess.run([self.cachalot, *map(str, arguments)], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit("beluga_curves: " + done.stderr.strip())
        return done.stdout

    def trace(self, name, *flags):
        file = f"{self.folder}/{name}.jsonl"
        self.call("trace", "generate", "--kind", "chat", "--turns", 1, *flags, "--out", file)
        return file

    def documents(self, tokens, block_tokens, sessions_per_s=1):
        return self.trace(f"long-{tokens}-{block_tokens}-{sessions_per_s}", "--requests", 400, "--system-prompts",
                          DOCUMENTS, "--system-tokens", tokens, "--user-tokens", 50, "--output-tokens", 16,
                          "--block-tokens", block_tokens, "--sessions-per-s", sessions_per_s)

    def simulate(self, trace, *flags):
        return json.loads(self.call("simulate", "--trace", trace, *flags, "--json", "-"))

    def hit_run(self, trace, block_tokens, *flags):
        """The second pass, by when the pool has all documents."""
        found = self.simulate(trace, "--block-tokens", block_tokens, *SERVED, "--shared-pool", "--pool-capacity-blocks",
                              "inf", "--policy", "least_loaded", "--passes", 2, *flags)
        return found["passes"][1]


def row(*cells):
    print("| " + " | ".join(str(cell) for cell in cells) + " |")


def header(*cells):
    print()
    row(*cells)
    row(*["---"] * len(cells))


def unevenness(found):
    """Standard deviation over mean of the instances' busy time."""
    busy = [instance["busy_s"] for instance in found["per_instance"] if instance["role"] == "prefill"]
    return statistics.pstdev(busy) / statistics.mean(busy)


def zipf(run):
    """A load in which prompt k has a share of 1 / k^0.99: routing that knows no caches on a pool, and conductor."""
    ways = {"conductor, own caches": ["--policy", "conductor"],
            "least_loaded, own caches": ["--policy", "least_loaded"]}
    for gb_s in (100, 20, 5):
        ways[f"least_loaded, pool, {gb_s} GB/s"] = ["--policy", "least_loaded", "--shared-pool", "--pool-link-gb-s", gb_s]
    curves = {name: [] for name in ways}
    header("requests/s", "way", "TTFT mean, s", "p99, s", "tokens hit", "unevenness of busy time")
    for rate in (4, 8, 12, 16, 20):
        trace = run.trace(f"zipf-{rate}", "--zipf", 0.99, "--requests", 6000, "--system-prompts", 4000, "--system-tokens",
                          8000, "--user-tokens", 500, "--output-tokens", 16, "--sessions-per-s", rate)
        for name, flags in ways.items():
            found = run.simulate(trace, "--prefill", 10, "--node-capacity-blocks", 3000, *flags)
            ttft = found["ttft_ms"]
            curves[name].append((rate, ttft["mean"] / 1e3))
            row(rate, name, f"{ttft['mean'] / 1e3:.3f}", f"{ttft['p99'] / 1e3:.2f}",
                f"{100 * found['token_hit_rate']:.1f} %", f"{100 * unevenness(found):.1f} %")
    draw_lines(run.out / "beluga-zipf.svg", "Zipf 0.99: a pool without cache-aware routing, and conductor",
               "10 instances, caches of 3,000 blocks each or one pool of 30,000", "offered requests a second",
               "mean TTFT in s", curves, log_y=True)


def rate(run):
    """Experiment 6: the hit run at 0.3 to 9 requests a second."""
    ways = {"load and store": LOAD_STORE, "bounce buffer": bounce()}
    curves = {name: [] for name in ways}
    header("requests/s", "load and store, s", "bounce buffer, s", "ratio")
    for qps in (0.3, 1, 2, 3, 4, 5, 7, 9):
        trace = run.documents(15000, 256, qps)
        for name, link in ways.items():
            found = run.hit_run(trace, 256, "--prefill", 16, *link)
            curves[name].append((qps, found["ttft_ms"]["mean"] / 1e3))
        one, two = (curve[-1][1] for curve in curves.values())
        row(qps, f"{one:.3f}", f"{two:.3f}", f"{two / one:.1f}")
    draw_lines(run.out / "beluga-rate.svg", "Hit run over the rate of requests",
               "inputs of 15,000 tokens, Qwen3-32B on 16 H20", "offered requests a second", "mean TTFT in s", curves, log_y=True)


def length(run):
    """Experiment 7: the hit run for inputs of 2 K to 15 K."""
    ways = {"load and store": LOAD_STORE, "bounce buffer": bounce()}
    curves = {name: [] for name in ways}
    header("input tokens", "load and store, s", "bounce buffer, s", "ratio")
    for tokens in (2000, 4000, 8000, 15000):
        trace = run.documents(tokens, 256)
        for name, link in ways.items():
            found = run.hit_run(trace, 256, "--prefill", 16, "--closed-loop", 20, *link)
            curves[name].append((tokens, found["ttft_ms"]["mean"] / 1e3))
        one, two = (curve[-1][1] for curve in curves.values())
        row(tokens, f"{one:.3f}", f"{two:.3f}", f"{two / one:.1f}")
    draw_lines(run.out / "beluga-length.svg", "Hit run over the length of the input",
               "20 requests in flight, Qwen3-32B on 16 H20", "tokens of the input", "mean TTFT in s", curves, log_y=True,
               ticks_at_points=True)


def blocks(run):
    """Experiment 8: blocks of 16 to 256 tokens. A layer's keys of 16 tokens are an operation of 20 KiB (the paper's
    figure), of 256 tokens 16 times as much."""
    curves = {"load and store": [], "bounce buffer": []}
    header("tokens of a block", "load and store, s", "bounce buffer, s", "ratio")
    for tokens in (16, 32, 64, 128, 256):
        trace = run.documents(15000, tokens)
        for name, link in (("load and store", LOAD_STORE), ("bounce buffer", bounce(20480 * tokens // 16))):
            found = run.hit_run(trace, tokens, "--prefill", 16, "--closed-loop", 20, *link)
            curves[name].append((tokens, found["ttft_ms"]["mean"] / 1e3))
        one, two = (curve[-1][1] for curve in curves.values())
        row(tokens, f"{one:.3f}", f"{two:.3f}", f"{two / one:.1f}")
    draw_lines(run.out / "beluga-blocks.svg", "Hit run over the size of a block",
               "inputs of 15,000 tokens, 20 requests in flight, Qwen3-32B on 16 H20", "tokens of a block, logarithmic",
               "mean TTFT in s", curves, log_x=True, log_y=True, ticks_at_points=True)


def pd(run):
    """Experiment 8: prefill and decode separated, 16 instances in all."""
    ways = {"load and store": LOAD_STORE, "bounce buffer": bounce()}
    curves = {name: [] for name in ways}
    header("prefill + decode", "load and store, requests/s", "bounce buffer, requests/s", "ratio")
    trace = run.documents(15000, 256)
    for prefill in (4, 6, 8, 10, 12):
        for name, link in ways.items():
            found = run.hit_run(trace, 256, "--prefill", prefill, "--decode", 16 - prefill, "--closed-loop", 20, *link)
            curves[name].append((prefill, found["completed_rps"]))
        one, two = (curve[-1][1] for curve in curves.values())
        row(f"{prefill} + {16 - prefill}", f"{one:.2f}", f"{two:.2f}", f"{one / two:.1f}")
    draw_lines(run.out / "beluga-pd.svg", "Hit run, prefill and decode separated",
               "inputs of 15,000 tokens, 20 requests in flight, Qwen3-32B on 16 H20 in all",
               "prefill instances of 16; the others decode", "completed requests a second", curves, ticks_at_points=True)


EXPERIMENTS = {"zipf": zipf, "rate": rate, "length": length, "blocks": blocks, "pd": pd}


def main():
    names = sys.argv[3:] or list(EXPERIMENTS)
    unknown = [name for name in names if name not in EXPERIMENTS]
    if len(sys.argv) < 3 or unknown:
        sys.exit("usage: beluga_curves.py CACHALOT OUT_FOLDER [" + "|".join(EXPERIMENTS) + " ...]")
    pathlib.Path(sys.argv[2]).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            EXPERIMENTS[name](Runner(sys.argv[1], sys.argv[2], folder))


if __name__ == "__main__":
    main()
