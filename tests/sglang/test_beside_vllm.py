"""SGLang and vLLM on one pool at once, with the same model, dtype and tokens of a block: neither finds what the other one has.

Their keys and layouts differ, so a hit would be wrong KV. Needs `make build-vllm`; CACHALOT_VLLM_PYTHON is another
environment's python.
"""

import os
import subprocess
from pathlib import Path

import pytest
from conftest import HERE
from engine_process import EngineProcess
from test_share import from_pool, full_pages

ROOT = HERE.parents[1]
VLLM_PYTHON = Path(os.environ.get("CACHALOT_VLLM_PYTHON", ROOT / "build/vllm/venv/bin/python"))
PAGE, TOKENS, MAX_TOKENS = 32, 680, 12
BLOCK_BYTES = PAGE * 4 * 2 * 2 * 64 * 4  # tokens, layers, keys and values, heads, numbers, float32


class Vllm(EngineProcess):
    def __init__(self, model, connector=None):
        given = {"model": str(model), "dtype": "float32", "block_size": PAGE}
        if connector is not None:
            given["kv_transfer_config"] = {"kv_connector": "CachalotConnector", "kv_role": "kv_both",
                                           "kv_connector_extra_config": connector}
        super().__init__(HERE.parent / "vllm/engine.py", given, {
            **os.environ, "OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
            VLLM_PYTHON)


@pytest.fixture
def vllm():
    if not VLLM_PYTHON.exists():
        pytest.skip(f"no vLLM at {VLLM_PYTHON}: make build-vllm, or CACHALOT_VLLM_PYTHON")
    has = subprocess.run([VLLM_PYTHON, "-c", "import cachalot, vllm"], capture_output=True, text=True)
    if has.returncode != 0:
        pytest.skip(f"{VLLM_PYTHON}: {has.stderr.strip().splitlines()[-1]}")
    made = []

    def one(*given):
        made.append(Vllm(*given))
        return made[-1]

    yield one
    for engine in made:
        engine.close()


def answers_of(pair, prompts):
    """Both engines compute at the same time."""
    for engine in pair:
        engine.wait_ready()
    found = []
    for one in prompts:
        for engine in pair:
            engine.send([one], max_tokens=MAX_TOKENS)
        found.append([engine.take() for engine in pair])
    return found


def tokens_of(answers):
    return [[answer["tokens"] for answer in both] for both in answers]


def test_each_finds_its_own_pages_only(models, engines, pools, prompt, vllm):
    prompts = [prompt(seed, TOKENS) for seed in range(4)]
    alone = [engines(models(), page_size=PAGE), vllm(models())]
    right = tokens_of(answers_of(alone, prompts))
    for engine in alone:
        engine.close()
    pool = pools(BLOCK_BYTES, 4 * len(prompts) * (TOKENS // PAGE))
    pair = sglang, other = engines(models(), {"pool": pool.path}, page_size=PAGE), vllm(models(), {"pool": pool.path})

    # Prompts of one engine before the other one asks, in both orders; then the same prompts by both at once.
    for number, (first, second) in enumerate((pair, pair[::-1])):
        first.answer([prompts[number]], max_tokens=MAX_TOKENS)
        pool.wait_for_blocks((2 * number + 1) * (TOKENS // PAGE))
        answer = second.answer([prompts[number]], max_tokens=MAX_TOKENS)
        assert answer["cached"] == [0]
        assert answer["tokens"] == right[number][pair.index(second)]
        pool.wait_for_blocks((2 * number + 2) * (TOKENS // PAGE))
    for (of_sglang, of_vllm), expected in zip(answers_of(pair, prompts[2:]), right[2:]):
        assert of_sglang["cached"] == [0] and of_vllm["cached"] == [0]
        assert [of_sglang["tokens"], of_vllm["tokens"]] == expected
    pool.wait_for_blocks(2 * len(prompts) * (TOKENS // PAGE))

    # Each has its own: without its own cache it finds every full page, and says the same.
    assert sglang.answer([], flush=True)["flush"] and other.answer([], reset=True, connector=False)["reset"]
    found = answers_of(pair, prompts)
    assert tokens_of(found) == right
    assert [from_pool(of_sglang) for of_sglang, _ in found] == [full_pages(PAGE, TOKENS)] * len(prompts)
    hits = found[-1][1]["metrics"]["vllm:external_prefix_cache_hits"]
    assert hits == len(prompts) * full_pages(PAGE, TOKENS)
    assert len(pool.info()["namespaces"]) == 2, pool.info()["namespaces"]
