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


def right(engine, prompt):
    """The answer of one engine that shares nothing."""
    tokens = engine.answer([prompt])["tokens"][0]
    assert len(set(tokens)) > 3
    return tokens
