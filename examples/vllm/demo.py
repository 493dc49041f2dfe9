#!/usr/bin/env python3
"""Two vLLM servers and one pool: what one has computed, the other only reads.

Makes a random Llama of 18 million parameters, runs a keeper and two of vLLM's OpenAI servers on the CPU, asks both for
long prompts and shows how long the first token took: computed, from the server's own prefix cache, from the pool.
Needs about 5 GiB of memory and some minutes.

exit: 0 every full block came from the pool, and all texts are equal; 1 not so; 3 it cannot run
"""

import argparse
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from servers import Keeper, Server

from cachalot.command import PROGRAM

MODEL, BLOCK_TOKENS, BLOCK_BYTES = "llama-17m", 128, 6 * 2 * 4 * 64 * 2 * 128
CACHE_BYTES = 256 << 20  # of each server: all prompts of a row fit
ROW = "{:<38}{:>8}{:>8}{:>8}{:>10}{:>13}{:>18}{:>9}"
COUNTERS = [("vllm:prompt_tokens_by_source_total/local_compute", "prompt tokens computed"),
            ("vllm:prompt_tokens_by_source_total/local_cache_hit", "prompt tokens from its own cache"),
            ("vllm:prompt_tokens_by_source_total/external_kv_transfer", "prompt tokens from the pool"),
            ("vllm:external_prefix_cache_hits_total", "external prefix cache hits"),
            ("vllm:cachalot_stored_blocks_total", "blocks stored"),
            ("vllm:cachalot_loaded_blocks_total", "blocks loaded")]


def say(text=""):
    """A line of progress, which the next one overwrites."""
    if sys.stdout.isatty():
        print(f"\r\033[K{text}", end="", flush=True)


def milliseconds(seconds):
    return f"{seconds * 1000:,.0f} ms"


class Demo:
    def __init__(self, servers, prompts, tokens):
        self.servers, self.tokens, self.prompts = servers, tokens, prompts
        source = random.Random(1)
        self.shared, self.others = ([[source.randrange(3, 250) for _ in range(tokens)] for _ in range(prompts)]
                                    for _ in range(2))
        self.answers = {}
        # The first request of a process is slow in many ways; it is no prompt of a row.
        for server in servers:
            say("first request")
            server.complete([source.randrange(3, 250) for _ in range(tokens)], max_tokens=2)

    def ask(self, row, server, prompt):
        answers = self.answers.setdefault(row, [])
        say(f"{row}: prompt {len(answers) + 1} of {self.prompts}")
        before = server.metrics()
        answer = server.stream(prompt)
        after = server.metrics()
        answer["by"] = {source: int(after.get(name, 0) - before.get(name, 0)) for source, name in
                        (("computed", COUNTERS[0][0]), ("own", COUNTERS[1][0]), ("pool", COUNTERS[2][0]))}
        answers.append(answer)

    def run(self):
        """Rows that are compared take turns."""
        first, second = self.servers
        for prompt in self.shared:
            self.ask("server A: computed, and stored", first, prompt)
            self.ask("server A again: its own prefix cache", first, prompt)
        stored = "vllm:cachalot_stored_blocks_total"
        say("server A stores")
        until = time.monotonic() + 60
        while first.metrics()[stored] < (self.prompts + 1) * (self.tokens // BLOCK_TOKENS):
            if time.monotonic() > until:
                raise RuntimeError(f"server A has stored {first.metrics()[stored]:.0f} blocks in 60 s")
            time.sleep(0.1)
        for other, prompt in zip(self.others, self.shared):
            self.ask("server B: computed (other prompts)", second, other)
            self.ask("server B: from the pool", second, prompt)
        say()

    def print_rows(self):
        print(ROW.format("", "prompts", "tokens", "own", "pool", "first token", "lowest-highest", "sooner"))
        cold = None
        for row, answers in self.answers.items():
            times = [answer["first_s"] for answer in answers]
            median = statistics.median(times)
            cold = median if "computed" in row else cold
            own, pool = (statistics.median(answer["by"][source] for answer in answers) for source in ("own", "pool"))
            print(ROW.format(row, len(answers), f"{self.tokens:,}", f"{own:,.0f}", f"{pool:,.0f}",
                             milliseconds(median), f"{milliseconds(min(times))[:-3]}-{milliseconds(max(times))}",
                             "" if median == cold else f"{cold / median:,.1f} x"))

    def print_counters(self):
        print(f"\n{'vLLM counts, warm-up included':<38}{'server A':>12}{'server B':>12}")
        counted = [server.metrics() for server in self.servers]
        for name, text in COUNTERS:
            print(f"{text:<38}" + "".join(f"{values.get(name, 0):>12,.0f}" for values in counted))

    def is_right(self):
        computed, own, _, pooled = self.answers.values()
        equal = [a["text"] == b["text"] == c["text"] for a, b, c in zip(computed, own, pooled)]
        blocks = (self.tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        full = [answer["by"]["pool"] == blocks for answer in pooled]
        print(f"\nEvery full block came from the pool: {sum(full)} of {len(full)} prompts. "
              f"The same text from A and B: {sum(equal)} of {len(equal)}.")
        return all(equal) and all(full)


def make_model(folder):
    say("making the model")
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
        from tiny_models import make

        return make(folder, MODEL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, help="folder for the model (default: a temporary one)")
    parser.add_argument("--prompts", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=3500, help="of a prompt, at most 4000")
    flags = parser.parse_args()
    if flags.prompts < 1 or not 2 * BLOCK_TOKENS <= flags.tokens <= 4000:
        parser.error(f"expected at least 1 prompt of {2 * BLOCK_TOKENS} to 4000 tokens")
    pool = f"/dev/shm/cachalot_demo_vllm_{os.getpid()}"
    blocks = 2 * (flags.prompts + 2) * (flags.tokens // BLOCK_TOKENS) + 64
    with tempfile.TemporaryDirectory(prefix="cachalot-demo-") as logs:
        model = make_model(flags.models or Path(logs))
        say()
        print(f"\n{MODEL}: random weights, 18 million parameters, bf16; blocks of {BLOCK_TOKENS} tokens: "
              f"{BLOCK_BYTES:,} bytes.\nTwo of vLLM's OpenAI servers, a thread each, share the pool {pool}.\n"
              "First token: as the client sees it, over HTTP; the median. Of a prompt's tokens, `own` were in the\n"
              "server's prefix cache, `pool` came from the pool, and the rest was computed: as vLLM counts them.\n")
        with Keeper(PROGRAM, pool, BLOCK_BYTES, blocks), \
                Server(model, Path(logs) / "a.log", pool, cache_bytes=CACHE_BYTES) as first, \
                Server(model, Path(logs) / "b.log", pool, cache_bytes=CACHE_BYTES) as second:
            began = time.monotonic()
            while not (first.is_ready() and second.is_ready()):
                say(f"starting two servers, a minute or two: {time.monotonic() - began:.0f} s")
                if time.monotonic() - began > 600:
                    raise RuntimeError("the servers do not answer within 600 s")
                time.sleep(1)
            demo = Demo([first, second], flags.prompts, flags.tokens)
            demo.run()
            demo.print_rows()
            demo.print_counters()
            is_right = demo.is_right()
            say("stopping the servers")
        say()
    return 0 if is_right else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # stops the servers, and removes the pool
    try:
        sys.exit(main())
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        sys.exit(3)
    except KeyboardInterrupt:
        sys.exit(130)
