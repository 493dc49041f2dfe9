"""CachalotTier under vLLM's OffloadingConnector: what one engine has computed the next one promotes from the pool."""

import itertools
import os
import time

import pytest

TOKENS = 1500
FULL = TOKENS // 128 * 128


def external_hits(answer):
    return answer["metrics"].get("vllm:external_prefix_cache_hits", 0)


def counted(answer, name):
    return answer["metrics"].get(f"vllm:cachalot_tier_{name}", 0)


@pytest.fixture
def tiered(engines, models):
    """Starts an engine with vLLM's OffloadingConnector and the tier."""
    made = []

    def start(tier, model=None, extra=None, transfer=None, **arguments):
        made.append(f"cachalot_tier_{os.getpid()}_{next(numbers)}")
        settings = {"spec_name": "MemcpyTieringSpec", "spec_module_path": "memcpy_offload",
                    "cpu_bytes_to_use": 64 << 20, **(extra or {}),
                    "secondary_tiers": [{"type": "CachalotTier", "module_path": "cachalot.connectors.vllm.tier", **tier}]}
        return engines(model or models(), settings, transfer={"kv_connector": "OffloadingConnector",
                                                              "engine_id": made[-1], **(transfer or {})}, **arguments)

    yield start
    for name in made:
        path = f"/dev/shm/vllm_offload_{name}.mmap"
        if os.path.exists(path):
            os.unlink(path)


numbers = itertools.count()


def store(engine, prompt):
    """Computes a prompt; further steps carry its chunks to the pool."""
    answer = engine.answer([prompt])
    until = time.monotonic() + 60
    while (last := engine.answer([[5, 6, 7]]))["metrics"].get("vllm:cachalot_tier_stored_chunks", 0) < FULL // 128:
        assert time.monotonic() < until, (last, engine.text()[-3000:])
    return answer


def test_the_second_engine_promotes_every_full_chunk(models, engines, tiered, pools, prompt):
    pool = pools()
    one = prompt(1, TOKENS)
    computed = store(tiered({"pool": pool.path}), one)
    assert external_hits(computed) == 0
    assert len(set(computed["tokens"][0])) > 3
    assert engines(models()).answer([one])["tokens"] == computed["tokens"]
    second = tiered({"pool": pool.path})
    answer = second.answer([one])
    assert answer["tokens"] == computed["tokens"]
    assert external_hits(answer) == FULL, second.text()[-3000:]
    assert counted(second.answer([[1, 2]]), "loaded_chunks") == FULL // 128
