"""What storage behind the pool is worth to llama.cpp engines; bench.py prints it.

  restart   an engine restarted with an empty pool: first token computed, and from storage, in turn
  small     two engines and a pool of a tenth of their working set: with storage behind it, and without
  policies  the three prefetch policies on storage of 50, 200 and 1,000 MB/s: first token, and bytes read in vain
"""
import concurrent.futures
import random
import statistics
import tempfile

from programs import BLOCK_TOKENS, pool_path
from servers import Keeper, Server

TOKENS = 2048


def random_prompt(tokens, seed):
    """Words of the random model's vocabulary, no control tokens and no bytes."""
    pick = random.Random(seed)
    return [1] + [pick.randrange(300, 32000) for _ in range(tokens - 1)]


def keeper_of(programs, pool, model, blocks, storage):
    flags = [] if storage is None else ["--storage", storage, "--metrics", "127.0.0.1:0"]
    keeper = Keeper(programs.cachalot, pool, programs.block_bytes(model), blocks, *flags)
    if storage is not None:
        keeper.wait_for_storage(0)
    return keeper


def details(answer):
    return answer["usage"]["prompt_tokens_details"]


def bench_restart(programs, model, repeats):
    """First tokens in milliseconds, cold and from storage, of prompts of TOKENS tokens and one more."""
    pool, body = pool_path("restart"), {"max_tokens": 8, "temperature": 0}
    blocks = (repeats + 1) * (TOKENS // BLOCK_TOKENS)
    prompts = [random_prompt(TOKENS + 1, 100 + i) for i in range(repeats)]
    rows = []
    with tempfile.TemporaryDirectory(prefix="cachalot_bench_", dir=programs.work) as folder:
        storage = f"file:{folder}/kv"
        with keeper_of(programs, pool, model, blocks, storage) as keeper, \
                Server(programs.engine, model, "--slots", 1, pool=pool) as writer:
            for prompt in prompts:
                writer.complete(prompt, **body)
            keeper.wait_for_storage(repeats * (TOKENS // BLOCK_TOKENS))
        with Server(programs.engine, model, "--slots", 1) as alone:
            alone.complete(random_prompt(BLOCK_TOKENS, 1), **body)
            for prompt in prompts:
                # Both start anew for each prompt: nothing is left in a pool or in a context.
                with keeper_of(programs, pool, model, blocks, storage), \
                        Server(programs.engine, model, "--slots", 1, pool=pool) as engine:
                    warm = engine.timed(prompt, **body)
                cold = alone.timed(prompt, **body)
                if details(warm)["pool_tokens"] != TOKENS or details(cold)["cached_tokens"] != 0:
                    raise RuntimeError(f"restart: {details(warm)} and {details(cold)}: not from storage, or not cold")
                rows.append({"cold_ms": cold["first_text_s"] * 1000, "storage_ms": warm["first_text_s"] * 1000,
                             "wait_ms": warm["timings"]["prompt_storage_wait_ms"],
                             "load_ms": warm["timings"]["prompt_load_ms"], "is_same": warm["text"] == cold["text"]})
    return rows


def print_restart(rows):
    cold, warm = (statistics.median(r[name] for r in rows) for name in ("cold_ms", "storage_ms"))
    wait, load = (statistics.median(r[name] for r in rows) for name in ("wait_ms", "load_ms"))
    print(f"\nA restarted engine and an empty pool, {TOKENS:,} tokens, median of {len(rows)} in turn: first token "
          f"{cold:,.0f} ms computed, {warm:,.1f} ms from storage\n({wait:.1f} ms until it is in the pool, "
          f"{load:.1f} ms into the context): {cold / warm:,.0f} x")


def bench_small_pool(programs, model, prompts, rounds):
    """Two engines ask for the same prompts in turn; the pool holds a tenth of them."""
    tokens = 1024
    blocks = prompts * (tokens // BLOCK_TOKENS)
    pool, texts = pool_path("small"), [random_prompt(tokens + 1, 500 + i) for i in range(prompts)]

    def run(storage):
        with keeper_of(programs, pool, model, max(blocks // 10, 1), storage), \
                Server(programs.engine, model, "--slots", 1, pool=pool) as first, \
                Server(programs.engine, model, "--slots", 1, pool=pool) as second:
            answers = []
            for turn in range(rounds):
                for i, prompt in enumerate(texts):
                    server = (first, second)[(turn + i) % 2]
                    answers.append(server.timed(prompt, max_tokens=4, temperature=0))
            return answers
    without = run(None)
    with tempfile.TemporaryDirectory(prefix="cachalot_bench_", dir=programs.work) as folder:
        behind = run(f"file:{folder}/kv")
    return {"storage off": without, "storage on": behind}


def small_pool_summary(answers):
    first = [a["first_text_s"] * 1000 for a in answers]
    return {"prompt_tokens": sum(a["usage"]["prompt_tokens"] for a in answers),
            "pool_tokens": sum(details(a)["pool_tokens"] for a in answers),
            "own_tokens": sum(details(a)["cached_tokens"] - details(a)["pool_tokens"] for a in answers),
            "mean_ms": statistics.mean(first), "p50_ms": statistics.median(first)}


def print_small_pool(runs):
    print("\nTwo engines, a pool of a tenth of the working set\n")
    columns = "{:<14}{:>14}{:>14}{:>12}{:>14}{:>14}"
    print(columns.format("", "prompt tokens", "from pool", "own", "first, mean", "first, p50"))
    for name, answers in runs.items():
        run = small_pool_summary(answers)
        print(columns.format(name, f"{run['prompt_tokens']:,}", f"{run['pool_tokens']:,}", f"{run['own_tokens']:,}",
                             f"{run['mean_ms']:,.0f} ms", f"{run['p50_ms']:,.0f} ms"))


RATES_MB_S = (50, 200, 1000)
POLICIES = ("best_effort", "wait_complete", "timeout")


def ask_in_pairs(engine, prompts, body):
    """Two requests at a time to one slot: while one is served, the other waits in the queue."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda prompt: engine.timed(prompt, **body), prompts))


def bench_policies(programs, model, repeats):
    """Of each rate and policy: requests alone, and in pairs. The timeout is one that a user might choose for this
    model: about as long as it computes."""
    body, pool = {"max_tokens": 4, "temperature": 0}, pool_path("policies")
    prompts = [random_prompt(TOKENS + 1, 900 + i) for i in range(repeats)]
    blocks, rows = 2 * (repeats + 1) * (TOKENS // BLOCK_TOKENS), []
    block_bytes = programs.block_bytes(model)
    with tempfile.TemporaryDirectory(prefix="cachalot_bench_", dir=programs.work) as folder:
        storage = f"plugin:{programs.folder_storage()}?folder={folder}/kv"
        with keeper_of(programs, pool, model, blocks, storage) as keeper, \
                Server(programs.engine, model, "--slots", 1, pool=pool) as writer:
            texts = [writer.complete(prompt, **body)["choices"][0]["text"] for prompt in prompts]
            keeper.wait_for_storage(repeats * (TOKENS // BLOCK_TOKENS))
        for rate in RATES_MB_S:
            for policy in POLICIES:
                for name, ask in (("alone", lambda e, p, b: [e.timed(x, **b) for x in p]), ("queued", ask_in_pairs)):
                    with keeper_of(programs, pool, model, blocks, f"{storage}&read_mb_s={rate}") as keeper, \
                            Server(programs.engine, model, "--slots", 1, "--prefetch-policy", policy,
                                   "--prefetch-timeout-base", 100, "--prefetch-timeout-per-ki-token", 250,
                                   pool=pool) as engine:
                        answers = ask(engine, prompts, body)
                        keeper.wait_for_fetches()
                        read = keeper.storage()["read_bytes_total"]
                    used = sum(details(a)["storage_tokens"] for a in answers) // BLOCK_TOKENS * block_bytes
                    rows.append({"mb_s": rate, "policy": policy, "requests": name,
                                 "first_ms": statistics.median(a["first_text_s"] * 1000 for a in answers),
                                 "storage_tokens": sum(details(a)["storage_tokens"] for a in answers),
                                 "read_bytes": read, "wasted_bytes": max(0, read - used),
                                 "is_same": [a["text"] for a in answers] == texts})
    return rows


def print_policies(rows, repeats):
    print(f"\nPrefetch policies: {repeats} prompts of {TOKENS:,} tokens in storage, first token (median), bytes read and "
          "not used\n")
    columns = "{:<12}{:<16}{:<10}{:>12}{:>16}{:>12}{:>12}"
    print(columns.format("storage", "policy", "requests", "first token", "from storage", "read", "wasted"))
    for row in rows:
        print(columns.format(f"{row['mb_s']:,} MB/s", row["policy"], row["requests"], f"{row['first_ms']:,.0f} ms",
                             f"{row['storage_tokens'] / (repeats * TOKENS):.0%}", f"{row['read_bytes'] / 1e6:,.0f} MB",
                             f"{row['wasted_bytes'] / 1e6:,.0f} MB"))
