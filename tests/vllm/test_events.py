"""`cachalot serve --kv-events` as vLLM's own classes decode it: the blocks that an engine stored, with its prompt's tokens."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch

from cachalot.command import PROGRAM

sys.path.append(str(Path(__file__).resolve().parent.parent / "python"))

from kv_subscriber import Subscriber  # noqa: E402

TOKENS, BLOCK = 1500, 128
FULL = TOKENS // BLOCK
_decoder = msgspec.msgpack.Decoder(KVEventBatch)


def decode(payload):
    """As Subscriber wants it, by way of vLLM's classes."""
    batch = _decoder.decode(payload)
    for event in batch.events:
        assert isinstance(event, (AllBlocksCleared, BlockRemoved, BlockStored))
    return batch.ts, [{"type": type(event).__name__, **msgspec.structs.asdict(event)} for event in batch.events], \
        batch.data_parallel_rank


@pytest.fixture
def heard(pools):
    """A pool with events, and what starts subscribers of it."""
    made = []

    def start(*arguments):
        base = f"ipc:///dev/shm/cachalot_vllm_events.{id(made)}"
        endpoints = [f"{base}.live", f"{base}.replay"]
        pool = pools(*(arguments or (1 << 20, 256)), "--kv-events", endpoints[0], "--kv-events-replay", endpoints[1])
        made.append((endpoints, Subscriber(*endpoints, decode)))
        made[-1][1].catch_up()
        return pool, made[-1][1]

    yield start
    for endpoints, subscriber in made:
        subscriber.close()
        for endpoint in endpoints:
            Path(endpoint[len("ipc://") :]).unlink(missing_ok=True)


def chain_of(blocks):
    """The tokens of the only chain, from its root on."""
    children = {}
    for key, (parent, tokens) in blocks.items():
        assert parent not in children, "two chains"
        children[parent] = (key, tokens)
    tokens, at = [], None
    while at in children:
        at, own = children[at]
        tokens += own
    assert len(tokens) == BLOCK * len(blocks)
    return tokens


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_engine_stores_and_a_subscriber_sees_its_prompt(models, engines, heard, prompt, ranks):
    pool, subscriber = heard()
    one = prompt(1, TOKENS)
    answer = engines(models(), {"pool": pool.path}, tensor_parallel_size=ranks).answer([one])
    subscriber.wait_for(lambda s: len(s) >= ranks * FULL)
    spaces = [blocks for blocks in subscriber.spaces.values() if blocks]
    assert len(spaces) == ranks
    # The first rank keeps the tokens; the others' blocks have the same names.
    with_tokens = [blocks for blocks in spaces if all(tokens for _, tokens in blocks.values())]
    assert len(with_tokens) == 1
    assert chain_of(with_tokens[0]) == (one + answer["tokens"][0])[: BLOCK * FULL]
    assert all(blocks.keys() == with_tokens[0].keys() for blocks in spaces)


def test_a_hybrid_models_first_group_has_tokens(models, engines, heard, prompt):
    pool, subscriber = heard(1 << 20, 1024)
    one = prompt(1, TOKENS)
    engines(models("gemma3"), {"pool": pool.path}).answer([one])

    def with_tokens(s):
        return {key: value for blocks in s.spaces.values() for key, value in blocks.items() if value[1]}

    subscriber.wait_for(lambda s: len(with_tokens(s)) == FULL)
    assert len(subscriber) > FULL
    assert chain_of(with_tokens(subscriber)) == one[: FULL * BLOCK]


def test_evictions_are_told(models, engines, heard, prompt):
    pool, subscriber = heard(1 << 20, 20)
    engine = engines(models(), {"pool": pool.path})
    for seed in range(4):
        engine.answer([prompt(seed, TOKENS)])
        subscriber.listen(0.1)
    engine.close()
    done = subprocess.run([str(PROGRAM), "pool", "blocks", pool.path, "--json", "-"], capture_output=True, text=True)
    listed = {bytes.fromhex(block["hash"]): block["tokens"] for block in json.loads(done.stdout)["blocks"]}
    assert 0 < len(listed) <= 20
    subscriber.wait_for(lambda s: {key: tokens for key, (_, tokens) in s.blocks.items()} == listed)
