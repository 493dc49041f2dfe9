"""What CachalotConnector costs and saves in the real vLLM, beside vLLM's own ways. In one run, interleaved.

usage: bench/vllm/connector.py MODELS [--part hit|cold|load|lookup|memory] [--rounds N] [--json FILE]

    hit     time to first token of prompts that another engine has computed: computed again; from the pool; by
            vLLM's ExampleConnector, from files in memory; by vLLM's own prefix cache (the bound: nothing is copied)
    cold    1,500 tokens in, 64 out, no hit: with the connector, whose stores are on, against none; pairs
    load    4 K tokens: the connector's load, against a plain copy of as many bytes out of the pool, in the same process
    lookup  256 blocks that are in the pool, in the scheduler
    memory  what two engines take for 256 MiB of cache: one pool, against the primary tiers of vLLM's own offloading

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

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "vllm"))
from processes import Engine, Pool  # noqa: E402
from tiny_models import make  # noqa: E402

_POOL = "/dev/shm/cachalot_bench_vllm"
_FILES = "/dev/shm/cachalot_bench_example"
#: A store goes on after its request has been answered.
_STORED_S = 0.2


def draw(seed, tokens):
    source = random.Random(seed)
    return [source.randrange(3, 250) for _ in range(tokens)]


def mapped_bytes(process, name):
    """Of the files with this name that a process maps, once or several times. A file without a name any more counts, too."""
    ends = {}
    for line in Path(f"/proc/{process.pid}/maps").read_text().splitlines():
        if name in line:
            addresses, _, offset, _, inode = line.split()[:5]
            begin, end = (int(address, 16) for address in addresses.split("-"))
            ends[inode] = max(ends.get(inode, 0), int(offset, 16) + end - begin)
    return sum(ends.values())


def median_ms(seconds):
    return 1000 * statistics.median(seconds)


def spread_ms(seconds):
    low, _, high = statistics.quantiles(seconds, n=4)
    return f"{1000 * low:.1f} to {1000 * high:.1f}"


class Bench:
    def __init__(self, model, rounds):
        self.model, self.rounds = model, rounds
        self.pool = Pool(_POOL, 1 << 18, 3072)
        self.engines = []

    def engine(self, connector=None, **arguments):
        self.engines.append(Engine(self.model, connector, **{"kv_cache_memory_bytes": 256 << 20, **arguments}))
        return self.engines[-1].wait_ready()

    def sharing(self, **arguments):
        return self.engine({"pool": self.pool.path, **arguments.pop("options", {})}, **arguments)

    def end_part(self):
        for engine in self.engines:
            engine.close()
        self.engines = []

    def close(self):
        self.end_part()
        self.pool.close()
        shutil.rmtree(_FILES, ignore_errors=True)

    def progress(self, part, number):
        print(f"\r{part}: {number} of {self.rounds}  ", end="", file=sys.stderr, flush=True)

    # --- Parts -------------------------------------------------------------------------------------

    def hit(self):
        tokens = 4000
        example = {"kv_connector": "ExampleConnector", "kv_role": "kv_both",
                   "kv_connector_extra_config": {"shared_storage_path": _FILES}}
        no_cache = {"enable_prefix_caching": False}
        writers = [self.sharing(), self.engine(kv_transfer_config=example, disable_hybrid_kv_cache_manager=True)]
        arms = {"computed": self.engine(**no_cache), "pool": self.sharing(),
                "ExampleConnector": self.engine(kv_transfer_config=example, disable_hybrid_kv_cache_manager=True),
                "own prefix cache": self.engine()}
        seconds = {name: [] for name in arms}
        hits = {name: 0 for name in arms}
        for number in range(self.rounds + 1):
            self.progress("hit", number)
            prompt = draw(number, tokens)
            for writer in [*writers, arms["own prefix cache"]]:
                writer.answer([prompt], max_tokens=1)
            for name in random.Random(number).sample(sorted(arms), len(arms)):
                answer = arms[name].answer([prompt], max_tokens=1)
                if number > 0:  # the first one warms up
                    seconds[name].append(answer["seconds"])
                    hits[name] += answer["cached"][0]
        self.end_part()
        return {name: {"ttft_ms": median_ms(values), "quartiles_ms": spread_ms(values),
                       "times_faster": statistics.median(seconds["computed"]) / statistics.median(values),
                       "hit_tokens": hits[name] / self.rounds} for name, values in seconds.items()}

    def cold(self):
        plain, sharing = self.engine(), self.sharing()
        ratios = []
        for number in range(self.rounds + 2):
            self.progress("cold", number)
            prompt = draw(100_000 + number, 1500)
            pair = [plain, sharing] if number % 2 == 0 else [sharing, plain]
            took = {engine: engine.answer([prompt], max_tokens=64)["seconds"] for engine in pair}
            if number > 1:
                ratios.append(took[sharing] / took[plain])
        self.end_part()
        return {"time with the connector / without": {"median": statistics.median(ratios), "pairs": len(ratios)}}

    def load(self):
        tokens = 4000
        writer = self.sharing()
        result = {}
        for load in ("sync", "async"):
            reader = self.sharing(options={"load": load})
            ratios, loads, copies = [], [], []
            before = {}
            for number in range(self.rounds + 1):
                self.progress(f"load {load}", number)
                prompt = draw(200_000 + number, tokens)
                writer.answer([prompt], max_tokens=1)
                time.sleep(_STORED_S)
                now = reader.answer([prompt], max_tokens=1)["metrics"]
                took, moved = (now[f"vllm:cachalot_{what}"] - before.get(f"vllm:cachalot_{what}", 0)
                               for what in ("load_seconds", "loaded_bytes"))
                before = now
                copy = reader.answer([], copy=self.pool.path, bytes=int(moved))["seconds"]
                if number > 0:
                    loads.append(took)
                    copies.append(copy)
                    ratios.append(took / copy)
            result[load] = {"load_ms": median_ms(loads), "copy_ms": median_ms(copies), "bytes": moved,
                            "ratio": statistics.median(ratios)}
            reader.close()
        self.end_part()
        return result

    def lookup(self):
        wide = {"block_size": 32, "max_model_len": 8400, "max_num_batched_tokens": 8400,
                "hf_overrides": {"max_position_embeddings": 8400}}
        writer, reader = self.sharing(**wide), self.sharing(**wide)
        micros, before = [], {"vllm:cachalot_lookups": 0, "vllm:cachalot_lookup_seconds": 0}
        for number in range(self.rounds + 1):
            self.progress("lookup", number)
            prompt = draw(300_000 + number, 256 * 32 + 1)
            writer.answer([prompt], max_tokens=1)
            time.sleep(_STORED_S)
            answer = reader.answer([prompt], max_tokens=1)
            now = answer["metrics"]
            times, took = (now[name] - before[name] for name in before)
            before = {name: now[name] for name in before}
            if number > 0:
                assert answer["cached"][0] == 256 * 32, answer["cached"]
                micros.append(1e6 * took / times)
        self.end_part()
        return {"256 blocks, all in the pool": {"microseconds": statistics.median(micros)}}

    def memory(self):
        asked = 256 << 20
        made, name = _POOL + "_made", f"bench_{os.getpid()}"
        pooled = [self.engine({"pool": made, "create": {"size": asked}}) for _ in range(2)]
        in_pool = mapped_bytes(pooled[1].process, made)
        self.end_part()
        os.unlink(made)
        tiers = {"spec_name": "MemcpyTieringSpec", "spec_module_path": "memcpy_offload", "cpu_bytes_to_use": asked}
        transfer = {"kv_connector": "OffloadingConnector"}
        own = [self.engine(tiers, transfer={**transfer, "engine_id": f"{name}_{number}"}) for number in range(2)]
        in_tiers = sum(mapped_bytes(engine.process, name) for engine in own)
        self.end_part()
        for file in Path("/dev/shm").glob(f"vllm_offload_{name}_*"):
            file.unlink()
        return {which: {"asked_mib": asked >> 20, "taken_mib": taken / (1 << 20), "ratio": taken / asked}
                for which, taken in (("one pool of two engines", in_pool), ("vLLM's own tiers of two engines", in_tiers))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", type=Path)
    parser.add_argument("--part", choices=("hit", "cold", "load", "lookup", "memory"), action="append")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    bench = Bench(make(given.models, "llama"), given.rounds)
    results = {}
    try:
        for part in given.part or ("hit", "cold", "load", "lookup", "memory"):
            results[part] = getattr(bench, part)()
            print("\r" + 60 * " " + "\r", end="", file=sys.stderr)
            for name, values in results[part].items():
                print(f"{part:8} {name:36}", "  ".join(f"{key} {value:.4g}" if isinstance(value, float) else
                                                        f"{key} {value}" for key, value in values.items()), flush=True)
    finally:
        bench.close()
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
