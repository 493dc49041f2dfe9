"""What tests of transfers between real servers have in common."""

import time

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


class Right:
    """What one engine that shares nothing answers: computed, or after a hit in its own prefix cache.

    The two may round differently: on an EPYC without AVX-512 one of 96 prompts of the tiny model had a near tie, and went
    on with another token. KV of another prompt gives neither."""

    def __init__(self, engine, prompt, max_tokens):
        self._engine, self._prompt, self._max_tokens = engine, prompt, max_tokens
        self.tokens = self._answer()
        assert len(set(self.tokens)) > 3
        self._after_hit = None

    def _answer(self):
        return self._engine.answer([self._prompt], max_tokens=self._max_tokens)["tokens"][0]

    def __eq__(self, tokens):
        if tokens == self.tokens:
            return True
        if self._after_hit is None:
            self._answer()  # its blocks may have gone meanwhile
            self._after_hit = self._answer()
        return tokens == self._after_hit

    def __repr__(self):
        return f"{self.tokens} or {self._after_hit}"


def right(engine, prompt, max_tokens=16):
    return Right(engine, prompt, max_tokens)
