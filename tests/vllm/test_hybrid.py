"""Models with attention and state layers: a hit ends where the pool has the state of all of them, or there is none."""

import importlib
import logging
from types import SimpleNamespace

import pytest

#: One token is computed after a hit: a wrong state cannot be forgotten before the answer begins.
TOKENS = 11 * 128 + 1
BLOCK = 128
FULL = (TOKENS - 1) // BLOCK * BLOCK


def external_hits(answer):
    return answer["metrics"].get("vllm:external_prefix_cache_hits", 0)


def loads(answer):
    return {name: answer["metrics"].get(f"vllm:cachalot_{name}", 0) for name in ("loads", "failed_loads")}


def test_engines_share_kv_and_state(models, engines, pools, prompt):
    """The second engine takes a prompt to its last full block, the third one a longer prompt to the same place: only there
    is a state."""
    pool = pools()
    options, model = {"pool": pool.path}, models("lfm2")
    one, other = prompt(1, TOKENS), prompt(2, TOKENS)
    longer = one[: 10 * BLOCK] + other[:500]
    alone = engines(model)
    expected = [alone.answer([tokens])["tokens"] for tokens in (one, longer)]
    assert len(set(expected[0][0])) > 3
    first = engines(model, options)
    assert first.answer([one])["tokens"] == expected[0]
    second = engines(model, options)
    answer = second.answer([one])
    assert answer["tokens"] == expected[0]
    assert answer["cached"] == [FULL], second.text()[-3000:]
    assert external_hits(answer) == FULL
    assert loads(answer) == {"loads": 1, "failed_loads": 0}
    # 10 blocks of the longer prompt have KV in the pool, but no state.
    answer = second.answer([longer])
    assert answer["tokens"] == expected[1]
    assert external_hits(answer) == FULL


def test_engines_share_the_states_of_linear_attention(models, engines, pools, prompt):
    """Qwen3-Next: gated delta nets beside attention. vLLM makes blocks of 256 tokens of it."""
    pool = pools(blocks=512)
    options, model = {"pool": pool.path}, models("qwen3-next")
    prompts = [prompt(seed, TOKENS) for seed in (1, 2, 3)]
    full = (TOKENS - 1) // 256 * 256
    alone = engines(model)
    expected = [alone.answer([tokens])["tokens"] for tokens in prompts]
    assert all(len(set(tokens[0])) > 3 for tokens in expected)
    first = engines(model, options)
    assert [first.answer([tokens])["tokens"] for tokens in prompts] == expected
    second = engines(model, options)
    answers = [second.answer([tokens]) for tokens in prompts]
    assert [answer["tokens"] for answer in answers] == expected
    assert [answer["cached"] for answer in answers] == [[full]] * 3
    assert external_hits(answers[-1]) == 3 * full
    assert loads(answers[-1]) == {"loads": 3, "failed_loads": 0}


def test_speculative_decoding_with_states_is_refused(models, engines, pools):
    """It is asked for nothing: vLLM 0.32 on the CPU cannot compute with both, without a connector, too."""
    pool = pools()
    guesses = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
    engine = engines(models("lfm2"), {"pool": pool.path}, speculative_config=guesses).wait_ready()
    assert "nothing is shared, all is computed: speculative decoding with state layers" in engine.text()


class StatePool:
    """An attachment and its client in one: what a lookup finds."""

    group = SimpleNamespace(namespace="vllm/1 model=a", geometry=SimpleNamespace(block_bytes=1))

    def __init__(self, keys=()):
        self.keys = set(keys)

    def get(self):
        return self

    def namespaces(self):
        return []

    def lookup(self, hashes):
        found = 0
        for row in hashes:
            if row.tobytes() not in self.keys:
                break
            found += 1
        return found

    def lookup_last(self, hashes):
        return max((number for number, row in enumerate(hashes, 1) if row.tobytes() in self.keys), default=0)


ALL = range(1, 7)


@pytest.mark.parametrize("states,others,last", [
    ((), ALL, 0), ((2,), ALL, 2), ((1, 3), ALL, 3), ((5,), ALL, 0), (ALL, ALL, 4), (ALL, (3, 5), 3), ((1, 3), (1, 2, 4), 1),
    ((1, 3), (2, 4), 0), ((2, 5), (2, 6), 2)])
def test_a_hit_ends_at_the_last_block_with_the_state_of_all_groups(states, others, last):
    """Of 6 blocks 4 have KV. Two groups have states."""
    scheduler = importlib.import_module("cachalot.connectors.vllm.scheduler")
    messages = importlib.import_module("cachalot.connectors.vllm.messages")
    options = importlib.import_module("cachalot.connectors.vllm.options").parse({"pool": "/dev/shm/none"})
    log = importlib.import_module("cachalot.connectors.access.log").RateLimitedLog(logging.getLogger())
    digests = [bytes([number]) * 32 for number in range(1, 7)]

    def pool(group, blocks):
        hashes = messages.hashes_of(messages.keys_of(digests), group)
        return StatePool(hashes[block - 1].tobytes() for block in blocks), group

    side = scheduler.SchedulerSide(options, [pool(0, states), pool(1, range(1, 5)), pool(2, others)], BLOCK, 1,
                                   may_load=True, may_store=True, is_async=True, log=log, state_groups=frozenset((0, 2)))
    request = SimpleNamespace(request_id="a", block_hashes=digests, num_tokens=6 * BLOCK + 1, kv_transfer_params=None,
                              lora_request=None, skip_reading_prefix_cache=False, resumable=False)
    assert side.matched(request, 0) == (last * BLOCK, bool(last))
    assert side.matched(request, last * BLOCK) == (0, False)


@pytest.mark.parametrize("limit, reloads, blocks", [(None, 0, [2, 4]), (3 * BLOCK, 0, [2]), (0, 0, []), (None, 1, [])])
def test_a_state_is_stored_if_its_request_may_store_the_block(monkeypatch, limit, reloads, blocks):
    """The request's states of group 0 lie in the pages 7, 8 and 9. The third one is not at a block's end."""
    scheduler = importlib.import_module("cachalot.connectors.vllm.scheduler")
    messages = importlib.import_module("cachalot.connectors.vllm.messages")
    options = importlib.import_module("cachalot.connectors.vllm.options").parse({"pool": "/dev/shm/none"})
    log = importlib.import_module("cachalot.connectors.access.log").RateLimitedLog(logging.getLogger())
    digests = [bytes([number]) * 32 for number in range(1, 7)]
    side = scheduler.SchedulerSide(options, [(StatePool(), 0), (StatePool(), 1)], BLOCK, 1, may_load=True, may_store=True,
                                   is_async=True, log=log, state_groups=frozenset((0,)))
    side.bind_pages(SimpleNamespace(num_gpu_blocks=100, blocks=list(range(100)), touch=lambda pages: None))
    request = SimpleNamespace(request_id="a", block_hashes=digests, num_tokens=6 * BLOCK + 1, lora_request=None,
                              kv_transfer_params={"max_offload_tokens": limit}, skip_reading_prefix_cache=False,
                              resumable=False)
    side.added(request)
    monkeypatch.setattr(scheduler, "_reloads_of", lambda _: reloads)
    offers = {"a": [(0, 7, 2 * BLOCK), (0, 8, 4 * BLOCK), (0, 9, 4 * BLOCK + 1)], "unknown": [(0, 5, BLOCK)]}
    step = SimpleNamespace(scheduled_new_reqs=[], num_scheduled_tokens={}, kv_connector_block_state=SimpleNamespace(
        boundary_state_offloads=offers), scheduled_cached_reqs=SimpleNamespace(req_ids=[], num_computed_tokens=[]))
    keys = bytes(messages.keys_of(digests))
    stores = side.step(step).stores
    assert [store.chain.keys for store in stores] == [keys[16 * (block - 1) : 16 * block] for block in blocks]
    assert [store.chain.pages for store in stores] == [([page], [0]) for page in (7, 8)[: len(blocks)]]
