"""`cachalot serve --kv-events`: a subscriber that only hears the events holds the pool's blocks."""

import json
import random
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest

from cachalot import Error
from cachalot.command import PROGRAM
from conftest import GEOMETRY, Engine, pool_path, tokens_of
from kv_subscriber import Subscriber

TOKENS = GEOMETRY.block_tokens


def run(*command):
    done = subprocess.run([str(PROGRAM), *map(str, command)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Served:
    """A pool with its events, served by a process that may be killed."""

    def __init__(self, *flags, capacity=48):
        self.pool = pool_path()
        self.live, self.replay = f"ipc://{self.pool}.events", f"ipc://{self.pool}.replay"
        self._flags = ["--kv-events", self.live, "--kv-events-replay", self.replay, *flags]
        self.keeper = None
        self.start("--create", "--block-bytes", GEOMETRY.block_bytes, "--capacity-blocks", capacity)

    def start(self, *more):
        command = [str(PROGRAM), "serve", "--pool", self.pool, *self._flags, *map(str, more)]
        self.keeper = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        line = self.keeper.stdout.readline()
        assert line.startswith("ready"), line + self.keeper.stdout.read()
        assert f"events={self.live} replay={self.replay}" in line

    def kill(self):
        self.keeper.kill()
        self.keeper.wait()
        self.keeper.stdout.close()

    def close(self):
        self.kill()
        run("pool", "destroy", self.pool)
        for name in ("events", "replay"):
            Path(f"{self.pool}.{name}").unlink(missing_ok=True)

    def blocks(self):
        """As Subscriber.blocks, from the pool itself."""
        listed = json.loads(run("pool", "blocks", self.pool, "--json", "-"))["blocks"]
        return {bytes.fromhex(block["hash"]): (block["parent"] and bytes.fromhex(block["parent"]), block["tokens"])
                for block in listed}


@pytest.fixture
def served():
    served = Served()
    yield served
    served.close()


@pytest.fixture
def subscribers(served):
    made = []

    def start():
        made.append(Subscriber(served.live, served.replay))
        return made[-1]

    yield start
    for subscriber in made:
        subscriber.close()


def namespace_of(client):
    parts = ("cachalot-kv-1", "test@1", "", repr(client)[len("Client(") : -1], "layer_first", "xxh3", "")
    return "".join(f"{len(part)}:{part};" for part in parts)


def key_of(row):
    low, high = (int(word) for word in row)
    return f"{high:016x}{low:016x}"


@pytest.mark.parametrize("seed", [1, 2])
def test_a_thousand_random_operations(served, subscribers, seed):
    subscriber = subscribers()
    subscriber.catch_up()
    source = random.Random(seed)
    engine = Engine(served.pool)
    prompts = [tokens_of(i, 4 * TOKENS) for i in range(8)]
    stored = {}  # key: tokens of the block

    def store():
        base = source.choice(prompts)[: TOKENS * source.randrange(0, 5)]
        tokens = np.concatenate([base, tokens_of(1000 + source.randrange(60), TOKENS * source.randrange(1, 9))])
        hashes = engine.client.hash_tokens(tokens)
        engine.client.store(engine.cache, hashes, [source.randrange(16) for _ in hashes], tokens=tokens)
        for i, row in enumerate(np.asarray(hashes)):
            stored[bytes.fromhex(key_of(row))] = [int(t) for t in tokens[TOKENS * i : TOKENS * (i + 1)]]

    def load():
        hashes = engine.client.hash_tokens(source.choice(prompts))
        engine.client.load(engine.cache, hashes, range(len(hashes)))

    def evict():
        if source.random() < 0.2 or not stored:
            run("evict", "--all", "--pool", served.pool)
        else:
            key = source.choice(sorted(stored)).hex()
            subprocess.run([str(PROGRAM), "evict", key, "--namespace", namespace_of(engine.client), "--pool",
                            served.pool], capture_output=True)

    def kill():
        served.kill()
        served.start()

    for i in range(1000):
        action = source.choices([store, load, evict, kill], [70, 25, 4, 0.6])[0]
        try:
            action()
        except Error as error:  # the keeper died under the call
            assert action in (store, load), error
        if i % 20 == 0:
            subscriber.listen()
    kill()
    store()
    engine.client.detach()
    blocks = served.blocks()
    assert len(blocks) > 10
    subscriber.wait_for(lambda s: s.blocks == blocks)
    assert {key: stored[key] for key in blocks} == {key: tokens for key, (_, tokens) in blocks.items()}
    late = subscribers()
    late.catch_up()
    assert late.blocks == blocks and late.replays == 1


def test_live_events_follow_a_snapshot(served, subscribers):
    engine = Engine(served.pool)
    tokens = tokens_of(1, 8 * TOKENS)
    hashes = engine.client.hash_tokens(tokens)
    engine.client.store(engine.cache, hashes[:4], range(4), tokens=tokens[: 4 * TOKENS])
    late = subscribers()
    late.wait_for(lambda s: len(s.blocks) == 4)
    engine.client.store(engine.cache, hashes, range(8), tokens=tokens)
    late.wait_for(lambda s: len(s.blocks) == 8)
    name = served.pool.rsplit("/", 1)[1]
    assert all(topic.startswith(f"kv@{name}@") for topic in late.spaces)
    assert any(len(topic) == len(f"kv@{name}@") + 32 for topic in late.spaces)
    engine.client.detach()


def test_blocks_without_tokens_have_none(served, subscribers):
    engine = Engine(served.pool)
    hashes = engine.client.hash_tokens(tokens_of(1, 2 * TOKENS))
    assert engine.client.store(engine.cache, hashes, range(2)).written == 2
    subscriber = subscribers()
    subscriber.wait_for(lambda s: len(s.blocks) == 2)
    assert [tokens for _, tokens in subscriber.blocks.values()] == [[], []]
    engine.client.detach()


@pytest.mark.parametrize("flags,message", [
    (["--kv-events", "5557"], '--kv-events: "5557", expected tcp://'),
    (["--kv-events", "tcp://no-such-host-here:5"], "--kv-events: tcp://no-such-host-here:5: "),
    (["--kv-events", "tcp://*:*", "--kv-events-replay", "tcp://*"], '--kv-events-replay: "tcp://*", expected'),
    (["--kv-events-replay", "tcp://*:5"], "--kv-events"),
])
def test_bad_endpoints_are_one_error_and_no_pool_is_made(flags, message):
    pool = pool_path()
    done = subprocess.run([str(PROGRAM), "serve", "--pool", pool, "--create", "--block-bytes", "4096",
                           "--capacity-blocks", "16", *flags], capture_output=True, text=True, timeout=60)
    assert done.returncode not in (0, None) and "ready" not in done.stdout
    assert message in done.stderr and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert not Path(pool).exists()


def test_an_address_that_is_in_use_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run([str(PROGRAM), "serve", "--pool", pool_path(), "--create", "--block-bytes", "4096",
                               "--capacity-blocks", "16", "--kv-events", endpoint], capture_output=True, text=True,
                              timeout=60)
    assert done.returncode != 0 and f"--kv-events: {endpoint}: Address already in use" in done.stderr


@pytest.mark.parametrize("tokens", [[1], range(9), [-1] * 8, "text", [1 << 32] * 8])
def test_tokens_that_are_none_of_the_blocks_are_refused(engine, tokens):
    hashes = engine.client.hash_tokens(tokens_of(1, 2 * TOKENS))
    for store in (engine.client.store, engine.client.store_async):
        with pytest.raises((Error, TypeError), match="tokens"):
            store(engine.cache, hashes, range(2), tokens=tokens)
