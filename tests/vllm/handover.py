"""What tests of transfers between real servers have in common."""

import os
import time
from pathlib import Path

BLOCK_TOKENS, BLOCKS = 128, 11  # of a prompt of 1,500 tokens
CACHED = BLOCKS * BLOCK_TOKENS
DEADLINE_S = 60


def cached(answer):
    """Tokens of a prompt that were not computed."""
    details = answer["usage"]["prompt_tokens_details"]
    return details["cached_tokens"] if details else 0


def is_free(server):
    """Waits until no page of the engine is in use."""
    until = time.monotonic() + DEADLINE_S
    while server.metrics()["vllm:kv_cache_usage_perc"] > 0:
        assert time.monotonic() < until, "pages stay held"
        time.sleep(0.1)
    return True


def offered(prefill, prompt, **params):
    """What a prefill tells the decode engine."""
    return prefill.complete(prompt, max_tokens=1, kv_transfer_params={"do_remote_decode": True, **params})[
        "kv_transfer_params"]


def on_emulated_gpu(named):
    """More arguments of a Server: its KV cache is on an emulated GPU (make test-vllm-gpu)."""
    if "CACHALOT_FAKE_LIBCUDA" not in os.environ:
        return named
    paths = [str(Path(__file__).parent), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {**named, "flags": [*named.get("flags", ()), "--worker-cls", "emulated_gpu.EmulatedGpuWorker"],
            "environment": {**(named.get("environment") or {}), "PYTHONPATH": os.pathsep.join(filter(None, paths))}}


class Right:
    """What one engine that shares nothing answers: computed, or with so many blocks out of its own prefix cache.

    These may round differently: on an EPYC without AVX-512 one in 10 to 100 prompts of the tiny model has a near tie, and goes
    on with another token. KV of another prompt gives none of them."""

    def __init__(self, engine, prompt, max_tokens):
        self._engine, self._prompt, self._max_tokens = engine, prompt, max_tokens
        self.tokens = self._answer(prompt)
        assert len(set(self.tokens)) > 3
        self._others = []
        self._not_asked = list(range(1, (len(prompt) - 1) // BLOCK_TOKENS + 1))

    def _answer(self, prompt):
        return self._engine.answer([prompt], max_tokens=self._max_tokens)["tokens"][0]

    def _after_hit(self, blocks):
        assert self._engine.answer([], reset=True) == {"reset": True}
        self._answer(self._prompt[:blocks * BLOCK_TOKENS + 1])
        return self._answer(self._prompt)

    def __eq__(self, tokens):
        if tokens == self.tokens or tokens in self._others:
            return True
        while self._not_asked:  # all of them first: it is what most answers come from
            self._others.append(self._after_hit(self._not_asked.pop()))
            if tokens == self._others[-1]:
                return True
        return False

    def __repr__(self):
        return f"{self.tokens} or of {self._others}"


def right(engine, prompt, max_tokens=16):
    return Right(engine, prompt, max_tokens)
