"""What CachalotLinker costs and saves in the real SGLang, beside SGLang's own ways. In one run, interleaved.

usage: bench/sglang/connector.py MODELS [--part cold|hit] [--rounds N] [--json FILE]

    cold    1,500 tokens in, 64 out, no hit: an engine with the linker, whose stores are on, against one without; and one without
            against another one without, which is the error of this measurement
    hit     1,500 tokens that another engine has computed, to the first token: computed again; from the pool, by the linker;
            from HiCache's own file backend, its files in memory; from SGLang's own radix tree (the bound: nothing is copied)

MODELS: a folder for tiny models, which are made there if they are missing.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "sglang"), str(ROOT / "tests" / "engines")]
from conftest import Engine, Pool  # noqa: E402
from tiny_models import make  # noqa: E402

_POOL, _FILES = (f"/dev/shm/cachalot_bench_sglang_{what}_{os.getpid()}" for what in ("pool", "files"))
TOKENS, PAGE = 1500, 16
_PAGE_BYTES = 64 << 10  # of "llama"
PAGES = (TOKENS - 1) // PAGE  # of a prompt that a cache can have: SGLang computes its last token
_WARM_UP, _STARTS = 2, 2
_STORED_S = 60


def draw(seed):
    source = random.Random(seed)
    return [source.randrange(3, 250) for _ in range(TOKENS)]


def milliseconds(seconds):
    low, middle, high = statistics.quantiles(seconds, n=4)
    return {"ttft_ms": 1000 * middle, "quartiles_ms": f"{1000 * low:.1f} to {1000 * high:.1f}"}


class Bench:
    def __init__(self, model, rounds):
        self.model, self.rounds = model, rounds
        self.pool = Pool(_POOL, _PAGE_BYTES, 3 * (rounds + _WARM_UP) * (TOKENS // PAGE))  # nothing is evicted
        self.engines = []

    def engine(self, linker=None, **arguments):
        self.engines.append(Engine(self.model, linker, {"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": _FILES}, page_size=PAGE,
                                   **arguments))
        return self.engines[-1]

    def linked(self, **arguments):
        return self.engine({"pool": self.pool.path}, **arguments)

    def with_files(self, **arguments):
        return self.engine(**arguments, enable_hierarchical_cache=True, hicache_ratio=2.0, hicache_io_backend="direct",
                           hicache_mem_layout="page_first_direct", hicache_storage_backend="file",
                           hicache_storage_prefetch_policy="wait_complete", hicache_write_policy="write_through",
                           hicache_storage_backend_extra_config=json.dumps({"prefetch_threshold": PAGE}))

    def end_part(self):
        for engine in self.engines:
            engine.close()
        self.engines = []

    def close(self):
        self.end_part()
        self.pool.close()
        shutil.rmtree(_FILES, ignore_errors=True)

    @staticmethod
    def progress(part, number):
        print(f"\r{part}: round {number}  ", end="", file=sys.stderr, flush=True)

    @staticmethod
    def wait_until(count, wanted, what):
        until = time.monotonic() + _STORED_S
        while count() < wanted:
            if time.monotonic() > until:
                raise RuntimeError(f"{count()} of {wanted} {what} after {_STORED_S} s")
            time.sleep(0.05)

    # --- Parts -------------------------------------------------------------------------------------

    def cold(self):
        """Two processes that do the same take not the same time, so the engines start anew, and two of them are without the linker."""
        times = {name: {"first_s": [], "seconds": []} for name in ("linker", "without", "without, again")}
        for start in range(_STARTS):
            arms = {"linker": self.linked(), "without": self.engine(), "without, again": self.engine()}
            for number in range(_WARM_UP + self.rounds // _STARTS):
                self.progress("cold", start * (_WARM_UP + self.rounds // _STARTS) + number)
                prompt = draw(100_000 + 1_000 * start + number)
                for name in random.Random(number).sample(sorted(arms), len(arms)):
                    answer = arms[name].answer([prompt], max_tokens=64, stream=True)
                    if answer["cached"] != [0]:
                        raise RuntimeError(f"of a new prompt {answer['details']} were cached")
                    if number >= _WARM_UP:
                        for key, of in times[name].items():
                            of.append(answer[key])
            self.end_part()
        return {f"{text}, {name}": {"ms": 1000 * statistics.median(of[key]), "pairs": len(of[key]),
                                    "ratio": statistics.median(a / b for a, b in zip(of[key], times["without"][key]))}
                for key, text in (("first_s", "first token"), ("seconds", "64 tokens")) for name, of in times.items()}

    def hit(self):
        prompts = [draw(number) for number in range(self.rounds + _WARM_UP)]
        before = self.pool.live_blocks()
        # Unfinished stores may hold a quarter of a cache: in a large one each prompt is stored.
        for writer in (self.linked(max_total_tokens=65536), self.with_files(max_total_tokens=65536)):
            for prompt in prompts:
                writer.answer([prompt], max_tokens=1)
        self.wait_until(self.pool.live_blocks, before + len(prompts) * PAGES, "blocks in the pool")
        self.wait_until(lambda: len(list(Path(_FILES).iterdir())), len(prompts) * PAGES, "files")
        self.end_part()
        computes, arms = self.engine(), {"pool": self.linked(), "HiCache, files": self.with_files()}
        names = ["computed", *arms, "own radix tree"]
        seconds, hits = {name: [] for name in names}, {name: 0 for name in names}
        for number, prompt in enumerate(prompts):
            self.progress("hit", number)
            # The engine that computes has the prompt afterwards; its two turns keep their order.
            turns = random.Random(number).sample([*arms, computes, computes], 4)
            order = iter(("computed", "own radix tree"))
            for turn in turns:
                name, engine = (next(order), computes) if turn is computes else (turn, arms[turn])
                answer = engine.answer([prompt], max_tokens=1, stream=True)
                if number >= _WARM_UP:
                    seconds[name].append(answer["first_s"])
                    hits[name] += answer["cached"][0]
        self.end_part()
        return {name: {**milliseconds(values), "times_faster": statistics.median(seconds["computed"]) / statistics.median(values),
                       "hit_tokens": hits[name] / self.rounds} for name, values in seconds.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path)
    parser.add_argument("--part", choices=("cold", "hit"), action="append")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if given.rounds < _STARTS:
        parser.error(f"--rounds {given.rounds}, expected at least {_STARTS}")
    bench = Bench(make(given.models, "llama"), given.rounds)
    results = {}
    try:
        for part in given.part or ("cold", "hit"):
            results[part] = getattr(bench, part)()
            print("\r" + 60 * " " + "\r", end="", file=sys.stderr)
            for name, values in results[part].items():
                print(f"{part:6} {name:28}", "  ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
                                                       for key, value in values.items()), flush=True)
        print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs")
    finally:
        bench.close()
    if given.json:
        given.json.write_text(json.dumps({"load_average": os.getloadavg()[0], **results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
