#!/usr/bin/env python3
"""What the pool is worth to llama.cpp engines: time to first token, and a workload of conversations.

  ttft           prompts of 512, 1,024 and 2,048 tokens and one more: computed, and read from the pool
  conversations  conversations that hop between two engines, round robin, as behind a balancer that
                 knows nothing of caches: with and without a pool; a table and a picture
  transfer       between two engines without a common pool: see bench_transfer.py
  restart, small, policies: storage behind the pool: see bench_storage.py

One request at a time, one thread an engine, random weights of 124.7 million parameters in f16.

exit: 0 done, and all texts were equal; 1 not so; 3 it cannot run
"""
import argparse
import json
import random
import statistics
import subprocess
import sys

import bench_storage
import bench_transfer
import plot
from bench_storage import random_prompt
from programs import BLOCK_TOKENS, Programs, add_flags, pool_path
from servers import Keeper, Server

LENGTHS = (512, 1024, 2048)
SENTENCES = [
    "Once upon a time, there was a little girl named Lily. ", "She loved to play outside in the park. ",
    "One day, she saw a big, red ball near the old tree. ", "Her mom said that they could go back the next day. ",
    "Tom had a boat that was very fast. ", "The dog wanted to play, but the cat was tired. ",
    "They shared their food and were happy. ", "It was dark, and the little bird could not find its nest. ",
]


def least(answers, path):
    """The smallest value: what disturbs on a shared machine only adds."""
    def value(answer):
        for name in path.split("."):
            answer = answer[name]
        return answer
    return min(value(answer) for answer in answers)


def bench_ttft(programs, model, repeats):
    """Rows of one length each: the least of all repeats, in milliseconds."""
    rows, pool = [], pool_path("bench")
    with Keeper(programs.cachalot, pool, programs.block_bytes(model), 40 * repeats * len(LENGTHS)), \
            Server(programs.engine, model, "--slots", 1, pool=pool) as writer, \
            Server(programs.engine, model, "--slots", 1, pool=pool) as reader:
        for tokens in LENGTHS:
            prompts = [random_prompt(tokens + 1, tokens + i) for i in range(repeats)]
            body = {"max_tokens": 4, "temperature": 0}
            cold = [writer.timed(prompt, **body) for prompt in prompts]
            # Each prompt drives the one before out of the reader's own cache.
            pooled = [reader.timed(prompt, **body) for _ in range(3) for prompt in prompts]
            if any(a["usage"]["prompt_tokens_details"]["pool_tokens"] != tokens for a in pooled):
                raise RuntimeError(f"{tokens} tokens: not all of them came from the pool")
            if [a["text"] for a in pooled] != [a["text"] for a in cold] * 3:
                raise RuntimeError(f"{tokens} tokens: the texts differ")
            rows.append({"tokens": tokens,
                         "cold_cpu_ms": least(cold, "timings.prompt_cpu_ms"),
                         "cold_first_text_ms": least(cold, "first_text_s") * 1000,
                         "store_ms": least(cold, "timings.prompt_store_ms"),
                         "load_ms": least(pooled, "timings.prompt_load_ms"),
                         "pool_cpu_ms": least(pooled, "timings.prompt_cpu_ms"),
                         "pool_first_text_ms": least(pooled, "first_text_s") * 1000})
    return rows


def print_ttft(rows, repeats):
    columns = "{:>7}{:>13}{:>10}{:>9}{:>14}{:>16}{:>17}{:>17}{:>9}"
    print(f"Time to first token, least of {repeats} (computed) and {3 * repeats} (pool)\n")
    print(columns.format("", "prefill", "store", "load", "prefill", "computed: CPU", "pool: CPU,", "computed / pool", ""))
    print(columns.format("tokens", "CPU", "wall", "wall", "CPU / load", "first token", "first token", "CPU",
                         "wall"))
    for row in rows:
        print(columns.format(
            f"{row['tokens']:,}", f"{row['cold_cpu_ms']:,.0f} ms", f"{row['store_ms']:.2f} ms",
            f"{row['load_ms']:.2f} ms", f"{row['cold_cpu_ms'] / row['load_ms']:,.0f} x",
            f"{row['cold_first_text_ms']:,.0f} ms",
            f"{row['pool_cpu_ms']:.1f}, {row['pool_first_text_ms']:.1f} ms",
            f"{row['cold_cpu_ms'] / row['pool_cpu_ms']:,.0f} x",
            f"{row['cold_first_text_ms'] / row['pool_first_text_ms']:,.0f} x"))


def sentences(pick, count):
    return "".join(pick.choice(SENTENCES) for _ in range(count))


def converse(servers, conversations, turns, seed):
    """Turn by turn, each request to the next server. What each request took, and what was written."""
    pick = random.Random(seed)
    system = {"role": "system", "content": sentences(pick, 6)}
    histories = [[system] for _ in range(conversations)]
    requests = []
    for turn in range(turns):
        for number, messages in enumerate(histories):
            messages.append({"role": "user", "content": f"{number}. " + sentences(pick, 3)})
            server = servers[len(requests) % len(servers)]
            answer = server.timed_chat(messages, max_tokens=16, temperature=0)
            messages.append({"role": "assistant", "content": answer["text"]})
            requests.append({"turn": turn + 1, "conversation": number, **answer})
    return requests


def bench_conversations(programs, model, conversations, turns):
    """Requests of the run without a pool, and of that with one."""
    def run(pool):
        servers = [Server(programs.engine, model, pool=pool) for _ in range(2)]
        try:
            return converse(servers, conversations, turns, seed=1)
        finally:
            for server in servers:
                server.stop()
    without = run(None)
    pool = pool_path("bench")
    with Keeper(programs.cachalot, pool, programs.block_bytes(model), 1000):
        return without, run(pool)


def summary(requests):
    first = [r["first_text_s"] * 1000 for r in requests]
    prompt = sum(r["usage"]["prompt_tokens"] for r in requests)
    details = [r["usage"]["prompt_tokens_details"] for r in requests]
    pool = sum(d["pool_tokens"] for d in details)
    cached = sum(d["cached_tokens"] for d in details)
    return {"first_token_ms": {"mean": statistics.mean(first), "p50": statistics.median(first),
                               "p90": statistics.quantiles(first, n=10)[8], "max": max(first)},
            "prompt_tokens": prompt, "own_rate": (cached - pool) / prompt, "pool_rate": pool / prompt,
            "prompt_cpu_s": sum(r["timings"]["prompt_cpu_ms"] for r in requests) / 1000}


def print_conversations(runs, conversations, turns):
    print(f"\n{conversations} conversations of {turns} turns, two engines of two slots, round robin\n")
    columns = "{:<16}{:>10}{:>10}{:>10}{:>10}{:>12}{:>12}{:>12}{:>14}"
    print(columns.format("first token", "mean", "p50", "p90", "max", "own cache", "pool", "computed", "prompts' CPU"))
    for name, run in runs.items():
        first = run["first_token_ms"]
        print(columns.format(name, *[f"{first[k]:,.0f} ms" for k in ("mean", "p50", "p90", "max")],
                             f"{run['own_rate']:.1%}", f"{run['pool_rate']:.1%}",
                             f"{1 - run['own_rate'] - run['pool_rate']:.1%}", f"{run['prompt_cpu_s']:.1f} s"))


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_flags(parser)
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="prompts of each length (3)")
    parser.add_argument("--conversations", type=int, default=5, metavar="N",
                        help="an odd number hops (5)")
    parser.add_argument("--turns", type=int, default=5, metavar="N", help="of each conversation (5)")
    parser.add_argument("--restarts", type=int, default=9, metavar="N", help="of an engine with an empty pool (9)")
    parser.add_argument("--asked", type=int, default=4, metavar="N", help="prompts of each prefetch policy (4)")
    parser.add_argument("--only", choices=("all", "pool", "transfer", "storage", "policies"), default="all",
                        help="which measurements (all)")
    parser.add_argument("--json", metavar="FILE", help="write all figures to FILE")
    parser.add_argument("--svg", metavar="FILE", help="draw the conversations' first tokens into FILE")
    options = parser.parse_args()
    for name, low, high in (("repeats", 1, 20), ("conversations", 1, 50), ("turns", 1, 12),
                            ("restarts", 1, 50), ("asked", 1, 50)):
        if not low <= getattr(options, name) <= high:
            parser.error(f"--{name} is {getattr(options, name)}, expected {low} to {high}")
    return options


def measure_pool(programs, model, options, figures):
    """@return whether all texts were equal"""
    rows = bench_ttft(programs, model, options.repeats)
    print_ttft(rows, options.repeats)
    without, pooled = bench_conversations(programs, model, options.conversations, options.turns)
    runs = {"without a pool": summary(without), "with a pool": summary(pooled)}
    print_conversations(runs, options.conversations, options.turns)
    figures.update(ttft=rows, conversations=runs)
    if options.svg:
        with open(options.svg, "w", encoding="utf-8") as file:
            file.write(plot.first_tokens({"without a pool": without, "with a pool": pooled}))
    return [r["text"] for r in without] == [r["text"] for r in pooled]


def measure_transfer(programs, model, options, figures):
    """@return whether all texts were equal"""
    measured = bench_transfer.bench_transfer(programs, model, options.repeats)
    bench_transfer.print_transfer(measured, options.repeats)
    figures.update(transfer=measured)
    return measured["is_same"]


def measure_storage(programs, model, options, figures):
    """@return whether all texts were equal"""
    restarts = bench_storage.bench_restart(programs, model, options.restarts)
    bench_storage.print_restart(restarts)
    small = bench_storage.bench_small_pool(programs, model, prompts=10, rounds=3)
    bench_storage.print_small_pool(small)
    figures.update(restart=restarts, small_pool={k: bench_storage.small_pool_summary(v) for k, v in small.items()})
    texts = [[a["text"] for a in answers] for answers in small.values()]
    return all(r["is_same"] for r in restarts) and texts[0] == texts[1]


def measure_policies(programs, model, options, figures):
    """@return whether all texts were equal"""
    rows = bench_storage.bench_policies(programs, model, options.asked)
    bench_storage.print_policies(rows, options.asked)
    figures.update(policies=rows)
    return all(r["is_same"] for r in rows)


def main():
    options = parse()
    programs = Programs(options)
    model = programs.random_model()
    figures = {"block_tokens": BLOCK_TOKENS}
    is_same = True
    for name, measure in (("pool", measure_pool), ("transfer", measure_transfer), ("storage", measure_storage),
                          ("policies", measure_policies)):
        if options.only in ("all", name):
            is_same = measure(programs, model, options, figures) and is_same
    print("\nall answers are the same in all runs" if is_same else "\nSOME ANSWERS DIFFER between runs")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=1)
    return 0 if is_same else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(3)
