#!/usr/bin/env python3
"""Two SGLang servers and one pool: what one has computed, the other only reads.

Makes a random Llama of 18 million parameters, runs a keeper and two SGLang servers on the CPU, asks both for long prompts and
shows how long the first token took: computed, from the server's own radix tree, from the pool. Needs about 5 GiB of memory and
some minutes.

exit: 0 every full page came from the pool, and all answers are equal; 1 not so; 3 it cannot run
"""

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "vllm"))
from servers import Child, Keeper, free_port  # noqa: E402

from cachalot.command import PROGRAM  # noqa: E402

MODEL, PAGE = "llama-17m", 64
PAGE_BYTES = PAGE * 6 * 2 * 4 * 64 * 4  # tokens, layers, keys and values, heads, numbers, float32
MAX_TOKENS = 16
START_S, STORED_S = 600, 60
ROW = "{:<38}{:>8}{:>8}{:>8}{:>8}{:>13}{:>18}{:>9}"
ON_CPU = ("--device cpu --attention-backend torch_native --sampling-backend pytorch --disable-cuda-graph --dtype float32 "
          "--skip-tokenizer-init --max-total-tokens 16384 --mem-fraction-static 0.3 --context-length 4096 "
          "--skip-server-warmup --sleep-on-idle").split()


def say(text=""):
    """A line of progress, which the next one overwrites."""
    if sys.stdout.isatty():
        print(f"\r\033[K{text}", end="", flush=True)


def milliseconds(seconds):
    return f"{seconds * 1000:,.0f} ms"


class Server(Child):
    """SGLang on one CPU, with the linker."""

    def __init__(self, model, log, pool):
        port = free_port()
        linker = {"linker": "CachalotLinker", "linker_module_path": "cachalot.connectors.sglang",
                  "linker_extra_config": {"pool": pool}}
        super().__init__([sys.executable, "-m", "sglang.launch_server", "--model-path", str(model), "--port", str(port),
                          "--page-size", str(PAGE), "--enable-unified-cache-external-linker",
                          "--unified-cache-external-linker-backend", "dynamic",
                          "--unified-cache-external-linker-config", json.dumps(linker), *ON_CPU], port, log,
                         {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})

    def stream(self, prompt):
        """Returns tokens, first_s: seconds to the first one, and how many of the prompt's tokens came from where."""
        body = {"input_ids": prompt, "stream": True,
                "sampling_params": {"temperature": 0, "max_new_tokens": MAX_TOKENS, "ignore_eos": True}}
        request = urllib.request.Request(self.url + "/generate", json.dumps(body).encode(), {"Content-Type": "application/json"})
        began, seen = time.monotonic(), {}
        with urllib.request.urlopen(request, timeout=300) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    seen.setdefault("first_s", time.monotonic() - began)
                    last = json.loads(line[len(b"data: "):])
        details = last["meta_info"].get("cached_tokens_details") or {}
        return {**seen, "tokens": last["output_ids"], "own": details.get("device", 0), "pool": details.get("host", 0)}


class Demo:
    def __init__(self, servers, pool, prompts, tokens):
        self.servers, self.pool, self.tokens, self.prompts = servers, pool, tokens, prompts
        source = random.Random(1)
        self.shared, self.others, first = ([[source.randrange(3, 250) for _ in range(tokens)] for _ in range(count)]
                                           for count in (prompts, prompts, len(servers)))
        self.answers = {}
        # The first request of a process is slow in many ways; it is no prompt of a row.
        for server, prompt in zip(servers, first):
            say("first request")
            server.stream(prompt)

    def ask(self, row, server, prompt):
        answers = self.answers.setdefault(row, [])
        say(f"{row}: prompt {len(answers) + 1} of {self.prompts}")
        answers.append(server.stream(prompt))

    def stored_blocks(self):
        done = subprocess.run([str(PROGRAM), "pool", "info", self.pool, "--json", "-"], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)["accounting"]["live_blocks"]

    def run(self):
        """Rows that are compared take turns."""
        first, second = self.servers
        for prompt in self.shared:
            self.ask("server A: computed, and stored", first, prompt)
            self.ask("server A again: its own radix tree", first, prompt)
        say("server A stores")
        until = time.monotonic() + STORED_S
        while (stored := self.stored_blocks()) < (self.prompts + len(self.servers)) * (self.tokens // PAGE):
            if time.monotonic() > until:
                raise RuntimeError(f"{stored} blocks are in the pool after {STORED_S} s")
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
            own, pool = (statistics.median(answer[source] for answer in answers) for source in ("own", "pool"))
            print(ROW.format(row, len(answers), f"{self.tokens:,}", f"{own:,.0f}", f"{pool:,.0f}", milliseconds(median),
                             f"{milliseconds(min(times))[:-3]}-{milliseconds(max(times))}",
                             "" if median == cold else f"{cold / median:,.1f} x"))

    def is_right(self):
        computed, own, _, pooled = self.answers.values()
        equal = [a["tokens"] == b["tokens"] == c["tokens"] for a, b, c in zip(computed, own, pooled)]
        full = [answer["pool"] == (self.tokens - 1) // PAGE * PAGE for answer in pooled]
        print(f"\nEvery full page came from the pool: {sum(full)} of {len(full)} prompts. "
              f"The same tokens from A and B: {sum(equal)} of {len(equal)}.")
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
    if flags.prompts < 1 or not 2 * PAGE <= flags.tokens <= 4000:
        parser.error(f"expected at least 1 prompt of {2 * PAGE} to 4000 tokens")
    pool = f"/dev/shm/cachalot_demo_sglang_{os.getpid()}"
    blocks = 2 * (flags.prompts + 2) * (flags.tokens // PAGE + 1) + 64
    with tempfile.TemporaryDirectory(prefix="cachalot-demo-") as logs:
        model = make_model(flags.models or Path(logs))
        say()
        print(f"\n{MODEL}: random weights, 18 million parameters, float32; pages of {PAGE} tokens: {PAGE_BYTES:,} bytes.\n"
              f"Two SGLang servers, a thread each, share the pool {pool}.\n"
              "First token: as the client sees it, over HTTP; the median. Of a prompt's tokens, `own` were in the\n"
              "server's radix tree, `pool` came from the pool, and the rest was computed: as SGLang counts them.\n")
        with Keeper(PROGRAM, pool, PAGE_BYTES, blocks), Server(model, Path(logs) / "a.log", pool) as first, \
                Server(model, Path(logs) / "b.log", pool) as second:
            began = time.monotonic()
            while not (first.is_ready() and second.is_ready()):
                say(f"starting two servers, a minute or two: {time.monotonic() - began:.0f} s")
                if time.monotonic() - began > START_S:
                    raise RuntimeError(f"the servers do not answer within {START_S} s")
                time.sleep(1)
            demo = Demo([first, second], pool, flags.prompts, flags.tokens)
            demo.run()
            demo.print_rows()
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
