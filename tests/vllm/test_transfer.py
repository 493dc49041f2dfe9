"""Prefill and decode without a pool: real servers, whose workers hand the KV over themselves."""

import time

import pytest
from processes import Engine
from servers import Proxy, Server

BLOCK_TOKENS, BLOCKS = 128, 11  # of a prompt of 1,500 tokens
CACHED = BLOCKS * BLOCK_TOKENS
DEADLINE_S = 60
TCP = {"transfer": {"listen": ["tcp:127.0.0.1:0"], "deadline": 20}}


class Stage:
    """A server of each role, the proxy, and an engine that says what is right."""

    def __init__(self, folder, model):
        self.folder, self.model = folder, model
        self.reference = Engine(model)
        self.prefill, self.decode = (self.server(role) for role in ("kv_producer", "kv_consumer"))
        for server in (self.prefill, self.decode):
            server.wait_ready()
        self.proxy = Proxy(folder / "proxy.log", [self.prefill.url], [self.decode.url])
        self.proxy.wait_ready()

    def server(self, role, options=None):
        return Server(self.model, self.folder / f"{role}-{time.monotonic_ns()}.log", role=role, connector=options or TCP)

    def right(self, prompt):
        tokens = self.reference.answer([prompt])["tokens"][0]
        assert len(set(tokens)) > 3
        return tokens

    def offered(self, prompt):
        """What a prefill tells the decode engine."""
        return self.prefill.complete(prompt, max_tokens=1, kv_transfer_params={"do_remote_decode": True})[
            "kv_transfer_params"]

    def close(self):
        for child in (self.proxy, self.prefill, self.decode):
            child.kill()
        self.reference.close()


@pytest.fixture(scope="module")
def stage(models, tmp_path_factory):
    made = Stage(tmp_path_factory.mktemp("servers"), models())
    yield made
    made.close()


def cached(answer):
    details = answer["usage"]["prompt_tokens_details"]
    return details["cached_tokens"] if details else 0


def is_free(server):
    """Waits until no page of the engine is in use."""
    until = time.monotonic() + DEADLINE_S
    while server.metrics()["vllm:kv_cache_usage_perc"] > 0:
        assert time.monotonic() < until, "pages stay held"
        time.sleep(0.1)
    return True


def test_decode_takes_the_kv_from_the_prefill_engine(stage, prompt):
    for seed in range(100, 104):
        one = prompt(seed)
        answer = (stage.proxy.stream if seed % 2 else stage.proxy.complete)(one, return_token_ids=True)
        assert answer["tokens"] == stage.right(one)
        assert cached(answer) == CACHED
    assert is_free(stage.prefill) and is_free(stage.decode)


def test_a_reference_used_a_second_time_is_computed(stage, prompt):
    one = prompt(200)
    params = stage.offered(one)
    for _ in range(2):
        # Between the two the decode engine's own prefix cache is emptied by other prompts.
        answer = stage.decode.complete(one, return_token_ids=True, kv_transfer_params=params)
        assert answer["tokens"] == stage.right(one)
        for seed in range(210, 250):
            stage.decode.complete(prompt(seed), max_tokens=1)
    assert is_free(stage.prefill) and is_free(stage.decode)


def test_a_reference_of_another_prompt_is_not_used(stage, prompt):
    one, two = prompt(300), prompt(301)
    params = stage.offered(one)
    answer = stage.decode.complete(two, return_token_ids=True, kv_transfer_params=params)
    assert answer["tokens"] == stage.right(two)
    assert cached(answer) == 0
    assert is_free(stage.prefill)  # at the deadline: decode never asked


CHANGES = [
    {"id": "0" * 31 + "1"}, {"id": "x"}, {"instance": "elsewhere"}, {"tp_size": 3}, {"tokens": 128}, {"addresses": "here"},
    {"instance": "elsewhere", "addresses": [["tcp:127.0.0.1:1"]]}, {"tokens": None}, {"last_block": 7}, {"tp_size": -1},
    {"expects_note": [1]}, {"stage_layers": 5}]


@pytest.mark.parametrize("number", range(len(CHANGES)), ids=[str(change) for change in CHANGES])
def test_a_wrong_reference_is_computed(stage, prompt, number):
    one, change = prompt(400 + number), CHANGES[number]
    params = stage.offered(one)
    params["cachalot_reference"].update(change)
    answer = stage.decode.complete(one, return_token_ids=True, kv_transfer_params=params)
    assert answer["tokens"] == stage.right(one)
    assert cached(answer) == 0


def test_an_expired_reference_is_computed(stage, prompt):
    short = stage.server("kv_producer", {"transfer": {"listen": ["tcp:127.0.0.1:0"], "deadline": 0.2}})
    try:
        short.wait_ready()
        one = prompt(500)
        params = short.complete(one, max_tokens=1, kv_transfer_params={"do_remote_decode": True})["kv_transfer_params"]
        time.sleep(1)
        answer = stage.decode.complete(one, return_token_ids=True, kv_transfer_params=params)
        assert answer["tokens"] == stage.right(one) and cached(answer) == 0
        assert is_free(short)
    finally:
        short.kill()


def test_a_prefill_engine_that_died_costs_a_computation(stage, prompt):
    victim = stage.server("kv_producer")
    victim.wait_ready()
    one = prompt(600)
    params = victim.complete(one, max_tokens=1, kv_transfer_params={"do_remote_decode": True})["kv_transfer_params"]
    victim.kill()
    answer = stage.decode.complete(one, return_token_ids=True, kv_transfer_params=params)
    assert answer["tokens"] == stage.right(one) and cached(answer) == 0
    assert is_free(stage.decode)
