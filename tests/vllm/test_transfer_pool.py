"""Engines with a pool and a transfer: each machine has a pool of its own, and prefill hands over to decode."""

import os
import time

import handover
from handover import BLOCK_TOKENS, BLOCKS, CACHED, cached, is_free, offered
from processes import Engine, Pool
from servers import Proxy, Server

LISTEN = {"transfer": {"listen": ["tcp:127.0.0.1:0"], "deadline": 20}}


class Stage:
    """Machine p prefills, machine d decodes. On d is another engine, which only shares the pool. One engine is right."""

    def __init__(self, folder, model):
        self.folder, self.model = folder, model
        self.pools = {name: Pool(f"/dev/shm/cachalot_vllm_{name}_{os.getpid()}", 1 << 20, 512) for name in ("p", "d")}
        self.reference = Engine(model)
        self.prefill, self.decode = self.server("p"), self.server("d")
        self.neighbour = Engine(model, {"pool": self.pools["d"].path})
        for server in (self.prefill, self.decode):
            server.wait_ready()
        self.proxy = Proxy(folder / "proxy.log", [self.prefill.url], [self.decode.url])
        self.proxy.wait_ready()

    def server(self, machine):
        return Server(self.model, self.folder / f"{machine}-{time.monotonic_ns()}.log",
                      connector={"pool": self.pools[machine].path, **LISTEN})

    def right(self, prompt):
        return handover.right(self.reference, prompt)

    def stores_on_d(self):
        return self.neighbour.answer([[5]], max_tokens=1)["metrics"].get("vllm:cachalot_stores", 0)

    def store_on_d(self, prompt):
        """So that d's pool has it, but not the decode engine's own cache."""
        before, until = self.stores_on_d(), time.monotonic() + handover.DEADLINE_S
        self.neighbour.answer([prompt], max_tokens=1)
        while self.stores_on_d() == before:
            assert time.monotonic() < until, "nothing is stored"

    def close(self):
        for child in (self.proxy, self.prefill, self.decode):
            child.kill()
        for engine in (self.reference, self.neighbour):
            engine.close()
        for pool in self.pools.values():
            pool.close()


class Count:
    """How often the decode engine has used each way since then."""

    def __init__(self, server):
        self._server, self._before = server, self._now(server)

    @staticmethod
    def _now(server):
        metrics = server.metrics()
        return {name: metrics[f"vllm:cachalot_{name}_total"]
                for name in ("loads", "transfers", "failed_loads", "failed_transfers", "loaded_blocks",
                             "transferred_blocks")}

    def since(self):
        return {name: int(value - self._before[name]) for name, value in self._now(self._server).items()
                if value != self._before[name]}


def is_right(stage, prompt, params, tokens):
    answer = stage.decode.complete(prompt, return_token_ids=True, kv_transfer_params=params)
    assert answer["tokens"] == stage.right(prompt)
    assert cached(answer) == tokens
    return True


def test_decode_takes_over_what_its_pool_does_not_have_and_shares_it(stage, prompt):
    count = Count(stage.decode)
    prompts = [prompt(seed) for seed in range(100, 104)]
    for i, one in enumerate(prompts):
        answer = (stage.proxy.stream if i % 2 else stage.proxy.complete)(one, return_token_ids=True)
        assert answer["tokens"] == stage.right(one) and cached(answer) == CACHED
    assert count.since() == {"transfers": 4, "transferred_blocks": 4 * BLOCKS}
    assert is_free(stage.prefill) and is_free(stage.decode)
    # Another engine of d finds the blocks in its pool.
    there = stage.neighbour.answer(prompts)
    assert there["cached"] == [CACHED] * 4 and there["tokens"] == [stage.right(one) for one in prompts]


def test_a_pool_that_has_as_much_is_taken(stage, prompt):
    one = prompt(200)
    stage.store_on_d(one)
    count = Count(stage.decode)
    assert is_right(stage, one, offered(stage.prefill, one), CACHED)
    assert count.since() == {"loads": 1, "loaded_blocks": BLOCKS}
    assert is_free(stage.prefill) and is_free(stage.decode)


def test_a_pool_that_has_less_is_not_taken(stage, prompt):
    one = prompt(300)
    stage.store_on_d(one[: 5 * BLOCK_TOKENS + 1])
    count = Count(stage.decode)
    assert is_right(stage, one, offered(stage.prefill, one), CACHED)
    assert count.since() == {"transfers": 1, "transferred_blocks": BLOCKS}
    assert is_free(stage.prefill) and is_free(stage.decode)


def test_after_a_transfer_that_failed_the_pool_is_taken(stage, prompt):
    one = prompt(400)
    stage.store_on_d(one[: 5 * BLOCK_TOKENS + 1])
    victim = stage.server("p")
    victim.wait_ready()
    params = offered(victim, one)
    victim.kill()
    count = Count(stage.decode)
    assert is_right(stage, one, params, 5 * BLOCK_TOKENS)
    assert count.since() == {"transfers": 1, "failed_transfers": 1, "loads": 1, "loaded_blocks": 5}
    assert is_free(stage.decode)


def test_a_prefill_engine_hands_over_what_it_loads_from_its_pool(stage, prompt):
    one = prompt(500)
    offered(stage.prefill, one)
    assert is_free(stage.prefill)  # it is stored, and its offer has ended
    second = stage.server("p")
    try:
        second.wait_ready()
        there = Count(second)
        params = offered(second, one)
        assert there.since() == {"loads": 1, "loaded_blocks": BLOCKS}
        count = Count(stage.decode)
        assert is_right(stage, one, params, CACHED)
        assert count.since() == {"transfers": 1, "transferred_blocks": BLOCKS}
        assert is_free(second) and is_free(stage.decode)
    finally:
        second.kill()


def test_without_keepers_the_transfer_goes_on(stage, prompt):
    for pool in stage.pools.values():
        pool.kill()
    try:
        for seed in range(600, 603):
            one = prompt(seed)
            count = Count(stage.decode)
            assert is_right(stage, one, offered(stage.prefill, one), CACHED)
            assert count.since()["transferred_blocks"] == BLOCKS
        # Without the transfer, too: computed.
        one = prompt(610)
        params = offered(stage.prefill, one)
        params["cachalot_reference"]["id"] = "0" * 31 + "1"
        assert is_right(stage, one, params, 0)
        assert is_free(stage.prefill) and is_free(stage.decode)
    finally:
        for pool in stage.pools.values():
            pool.serve()
