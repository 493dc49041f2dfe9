"""What a hand-over between llama.cpp engines without a common pool costs; bench.py prints it.

  transfer  a prompt of 2,048 tokens and one more, computed by a prefill engine: first token of the decode engine when it
            computes, takes the KV over by TCP, out of the prefill engine's memory, or reads it from a pool
"""
import copy

from bench_storage import TOKENS, details, random_prompt
from programs import BLOCK_TOKENS, pool_path
from servers import Keeper, Server

REFERENCE = "cachalot_reference"
ROUNDS = 3
WAYS = {"by TCP": "tcp:", "by memory": "unix:"}


def offer(prefill, prompt, kind):
    """What a prefill says to the decode engine, with the addresses of one kind only; and how long its copy took."""
    answer = prefill.complete(prompt, max_tokens=1, temperature=0, kv_transfer_params={"do_remote_decode": True})
    params = copy.deepcopy(answer["kv_transfer_params"])
    params[REFERENCE]["addresses"] = [[a for a in params[REFERENCE]["addresses"][0] if a.startswith(kind)]]
    return params, answer["timings"]["prompt_store_ms"]


def check(name, answers, path, expected):
    if any(details(a)[path] != TOKENS for a in answers):
        raise RuntimeError(f"{name}: not all tokens came this way: {[details(a) for a in answers]}")
    return [a["text"] for a in answers] == expected


def bench_transfer(programs, model, repeats):
    """Rows of one way each: the least of all repeats, in milliseconds."""
    pool, body = pool_path("transfer"), {"max_tokens": 8, "temperature": 0}
    prompts = [random_prompt(TOKENS + 1, 500 + i) for i in range(repeats)]
    blocks, one = 2 * repeats * TOKENS // BLOCK_TOKENS, ("--slots", 1)
    with Keeper(programs.cachalot, pool, programs.block_bytes(model), blocks) as _, \
            Server(programs.engine, model, *one) as alone, \
            Server(programs.engine, model, *one, "--transfer-listen", "tcp:127.0.0.1:0", "--transfer-listen", "auto",
                   pool=pool) as prefill, \
            Server(programs.engine, model, *one, "--transfer-listen", "auto") as by_tcp, \
            Server(programs.engine, model, *one, "--transfer-listen", "auto") as by_memory, \
            Server(programs.engine, model, *one, pool=pool) as by_pool:
        answers, copies = {name: [] for name in ("computed", *WAYS, "through a pool")}, []
        for prompt in prompts:
            answers["computed"].append(alone.timed(prompt, **body))
            prefill.complete(prompt, max_tokens=1, temperature=0)
        # Each prompt drives the one before out of the engines' own caches.
        for prompt in prompts * ROUNDS:
            for (name, kind), decode in zip(WAYS.items(), (by_tcp, by_memory)):
                params, copy_ms = offer(prefill, prompt, kind)
                copies.append(copy_ms)
                answers[name].append(decode.timed(prompt, kv_transfer_params=params, **body))
            answers["through a pool"].append(by_pool.timed(prompt, **body))
        copied = by_memory.call("GET", "/health")[2]["transfer"]["copied_bytes"]
        received = by_tcp.call("GET", "/health")[2]["transfer"]
        if received["copied_bytes"] != 0 or copied == 0:
            raise RuntimeError(f"by TCP {received}, by memory {copied} bytes copied: not as told")
        expected = [a["text"] for a in answers["computed"]] * ROUNDS
        is_same = all([check(name, answers[name], "transfer_tokens", expected) for name in WAYS] +
                      [check("pool", answers["through a pool"], "pool_tokens", expected)])
    rows = [{"way": name, "first_text_ms": min(a["first_text_s"] for a in given) * 1000,
             "copy_ms": min(copies) if name in WAYS else 0,
             "wait_ms": min(a["timings"]["prompt_transfer_wait_ms"] for a in given),
             "load_ms": min(a["timings"]["prompt_load_ms"] for a in given),
             "compute_ms": min(a["timings"]["prompt_compute_ms"] for a in given)}
            for name, given in answers.items()]
    return {"rows": rows, "bytes": received["received_bytes"] // len(answers["by TCP"]), "is_same": is_same}


def print_transfer(figures, repeats):
    print(f"\nA prompt of {TOKENS:,} tokens, {figures['bytes'] / 1e6:.1f} MB of KV, from a prefill to a decode engine: "
          f"least of {repeats} (computed) and {ROUNDS * repeats}\n")
    columns = "{:<16}{:>14}{:>12}{:>12}{:>12}{:>14}{:>10}"
    print(columns.format("", "prefill", "decode:", "", "", "decode:", "computed"))
    print(columns.format("the KV comes", "copies out", "waits", "copies in", "computes", "first token", "/ this"))
    computed = figures["rows"][0]["first_text_ms"]
    for row in figures["rows"]:
        print(columns.format(row["way"], f"{row['copy_ms']:.1f} ms", f"{row['wait_ms']:.1f} ms",
                             f"{row['load_ms']:.1f} ms", f"{row['compute_ms']:,.1f} ms",
                             f"{row['first_text_ms']:,.1f} ms", f"{computed / row['first_text_ms']:,.0f} x"))
