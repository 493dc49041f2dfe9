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


@pytest.mark.parametrize("states,last", [((), 0), ((2,), 2), ((1, 3), 3), ((5,), 0)])
def test_a_hit_ends_at_the_last_block_with_the_state_of_all_groups(states, last):
    """Of 6 blocks 4 have KV. A third group has a state for each block."""
    scheduler = importlib.import_module("cachalot.connectors.vllm.scheduler")
    messages = importlib.import_module("cachalot.connectors.vllm.messages")
    options = importlib.import_module("cachalot.connectors.vllm.options").parse({"pool": "/dev/shm/none"})
    log = importlib.import_module("cachalot.connectors.access.log").RateLimitedLog(logging.getLogger())
    digests = [bytes([number]) * 32 for number in range(1, 7)]

    def pool(group, blocks):
        hashes = messages.hashes_of(messages.keys_of(digests), group)
        return StatePool(hashes[block - 1].tobytes() for block in blocks), group

    side = scheduler.SchedulerSide(options, [pool(0, states), pool(1, range(1, 5)), pool(2, range(1, 7))], BLOCK, 1,
                                   may_load=True, may_store=True, is_async=True, log=log, state_groups=frozenset((0, 2)))
    request = SimpleNamespace(request_id="a", block_hashes=digests, num_tokens=6 * BLOCK + 1, kv_transfer_params=None,
                              lora_request=None)
    assert side.matched(request, 0) == (last * BLOCK, bool(last))
    assert side.matched(request, last * BLOCK) == (0, False)
