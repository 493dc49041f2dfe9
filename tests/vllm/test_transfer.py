"""Prefill and decode without a pool: real servers, whose workers hand the KV over themselves."""

import json
import signal
import socket
import time

import handover
import pytest
from handover import CACHED, DEADLINE_S, cached, is_free
from ports import free_port
from processes import Engine
from servers import Proxy, Server

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

    def server(self, role, options=None, **named):
        return Server(self.model, self.folder / f"{role}-{time.monotonic_ns()}.log", role=role, connector=options or TCP,
                      **handover.on_emulated_gpu(named))

    def right(self, prompt):
        return handover.right(self.reference, prompt)

    def offered(self, prompt, prefill=None):
        return handover.offered(prefill or self.prefill, prompt)

    def close(self):
        for child in (self.proxy, self.prefill, self.decode):
            child.kill()
        self.reference.close()


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
        params = stage.offered(one, short)
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
    params = stage.offered(one, victim)
    victim.kill()
    answer = stage.decode.complete(one, return_token_ids=True, kv_transfer_params=params)
    assert answer["tokens"] == stage.right(one) and cached(answer) == 0
    assert is_free(stage.decode)


def is_right(stage, decode, prompt, params, tokens):
    """Whether a decode engine with a reference answers as one engine does, with so many tokens taken over."""
    answer = decode.complete(prompt, return_token_ids=True, kv_transfer_params=params)
    assert answer["tokens"] == stage.right(prompt)
    return cached(answer) == tokens


SMALL = 16 << 20  # bytes of a cache with 64 pages


def test_pages_on_offer_are_not_reused(stage, prompt):
    small = stage.server("kv_producer", cache_bytes=SMALL)
    try:
        small.wait_ready()
        params = stage.offered(prompt(700), small)
        for seed in range(710, 722):  # twice as many pages as it has
            small.complete(prompt(seed), max_tokens=1)
        assert is_right(stage, stage.decode, prompt(700), params, CACHED)
        assert is_free(small) and is_free(stage.decode)
    finally:
        small.kill()


def test_a_stale_reference_to_reused_pages_is_computed(stage, prompt):
    short = {"transfer": {"listen": ["tcp:127.0.0.1:0"], "deadline": 0.2}}
    small = stage.server("kv_producer", short, cache_bytes=SMALL)
    try:
        small.wait_ready()
        params = stage.offered(prompt(800), small)
        assert is_free(small)  # the offer has ended
        for seed in range(810, 822):
            small.complete(prompt(seed), max_tokens=1)
        assert is_right(stage, stage.decode, prompt(800), params, 0)
        assert is_free(small) and is_free(stage.decode)
    finally:
        small.kill()


def test_prefill_restarts_with_the_same_address(stage, prompt):
    # Also with the same engine id: only what each start draws is another.
    options = {"transfer": {"listen": [f"tcp:127.0.0.1:{free_port()}"], "deadline": 20}}
    named = {"options": options, "transfer": {"engine_id": "prefill-0"}}
    first = stage.server("kv_producer", **named)
    first.wait_ready()
    one, two, three = prompt(900), prompt(901), prompt(902)
    assert is_right(stage, stage.decode, one, stage.offered(one, first), CACHED)  # they are connected
    stale = stage.offered(two, first)
    first.kill()
    second = stage.server("kv_producer", **named)
    try:
        second.wait_ready()
        fresh = stage.offered(three, second)
        assert fresh["cachalot_reference"]["addresses"] == stale["cachalot_reference"]["addresses"]
        # Page numbers of the first are those of other prompts in the second.
        assert is_right(stage, stage.decode, two, stale, 0)
        assert is_right(stage, stage.decode, three, fresh, CACHED)
        assert is_free(second) and is_free(stage.decode)
    finally:
        second.kill()


def test_decode_restarts_with_the_same_address(stage, prompt):
    options = {"transfer": {"listen": [f"tcp:127.0.0.1:{free_port()}"], "deadline": 20}}
    named = {"options": options, "transfer": {"engine_id": "decode-0"}}
    first = stage.server("kv_consumer", **named)
    first.wait_ready()
    one, two, three = prompt(1000), prompt(1001), prompt(1002)
    assert is_right(stage, first, one, stage.offered(one), CACHED)
    used, open_one = stage.offered(two), stage.offered(three)
    assert is_right(stage, first, two, used, CACHED)
    first.kill()
    second = stage.server("kv_consumer", **named)
    try:
        second.wait_ready()
        assert is_right(stage, second, two, used, 0)
        fresh = stage.offered(three)  # the first one's offer may have expired meanwhile
        assert is_right(stage, second, three, fresh, CACHED)
        assert is_free(stage.prefill) and is_free(second)
        assert is_right(stage, stage.decode, three, open_one, 0)
    finally:
        second.kill()


def test_a_request_aborted_between_the_end_of_prefill_and_the_start_of_decode(stage, prompt):
    one = prompt(1100)
    offered = stage.prefill.metrics()["vllm:request_success_total"]
    body = json.dumps({"model": "tiny", "prompt": one, "max_tokens": 4, "temperature": 0}).encode()
    stage.decode.signal(signal.SIGSTOP)
    try:
        client = socket.create_connection(("127.0.0.1", int(stage.proxy.url.rsplit(":", 1)[1])), timeout=30)
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        until = time.monotonic() + DEADLINE_S
        while stage.prefill.metrics()["vllm:request_success_total"] == offered or \
                stage.proxy.in_flight(stage.decode.url) == 0:
            assert time.monotonic() < until, "the prefill does not end"
            time.sleep(0.05)
        client.close()
        while stage.proxy.in_flight(stage.decode.url) > 0:
            assert time.monotonic() < until, "the proxy does not cancel"
            time.sleep(0.05)
    finally:
        stage.decode.signal(signal.SIGCONT)
    assert is_free(stage.prefill) and is_free(stage.decode)
    answer = stage.proxy.complete(one, return_token_ids=True)
    assert answer["tokens"] == stage.right(one)
    assert is_free(stage.prefill) and is_free(stage.decode)


def test_decode_never_asks(stage, prompt):
    one = prompt(1200)
    stage.offered(one)
    assert stage.prefill.metrics()["vllm:kv_cache_usage_perc"] > 0
    assert is_free(stage.prefill)  # at the deadline
    assert is_right(stage, stage.decode, one, stage.offered(one), CACHED)
