"""Prefill and decode apart: real servers behind the proxy, killed before, during and after a store."""

import os
import signal
import threading
import time

import handover
from processes import Engine, Pool
from servers import Proxy, Server

BLOCK_TOKENS, BLOCKS = 128, 11  # of a prompt of 1,500 tokens
DEADLINE_S = 60


def wait_until(condition, what):
    until = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < until, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.02)


class Later(threading.Thread):
    """A request in flight."""

    def __init__(self, function, *positional, **named):
        super().__init__(daemon=True)
        self.call, self.value = lambda: function(*positional, **named), None
        self.start()

    def run(self):
        self.value = self.call()

    def result(self):
        self.join(180)
        assert self.value is not None, "the request has failed, or has no answer"
        return self.value


class Stage:
    """A pool, servers of both roles, and an engine without the connector that says what is right."""

    def __init__(self, folder, model):
        self.folder, self.model = folder, model
        # Room for 32 blocks in advance for each client: a store that finds none waits for the keeper before it copies.
        self.pool = Pool(f"/dev/shm/cachalot_vllm_pd_{os.getpid()}", 1 << 18, 1024, "--spare-blocks", "1024",
                         "--clients", "32")
        self.servers, self.started, self.proxies = {"kv_producer": [], "kv_consumer": []}, 0, []
        self.reference = Engine(model)

    def log(self):
        self.started += 1
        return self.folder / f"{self.started}.log"

    def at_least(self, producers, consumers):
        for role, count in (("kv_producer", producers), ("kv_consumer", consumers)):
            while len(self.servers[role]) < count:
                self.servers[role].append(Server(self.model, self.log(), self.pool.path, role))
        for server in self.servers["kv_producer"] + self.servers["kv_consumer"]:
            server.wait_ready()
        return self.servers["kv_producer"][:producers], self.servers["kv_consumer"][:consumers]

    def proxy(self, producers, consumers, *flags):
        made = Proxy(self.log(), [one.url for one in producers], [one.url for one in consumers], *flags)
        self.proxies.append(made)
        made.wait_ready()
        return made

    def kill(self, server):
        server.kill()
        for servers in self.servers.values():
            if server in servers:
                servers.remove(server)

    def right(self, prompt, max_tokens=16):
        return handover.right(self.reference, prompt, max_tokens)

    def accounting(self):
        return self.pool.info()["accounting"]

    def close(self):
        for child in self.proxies + self.servers["kv_producer"] + self.servers["kv_consumer"]:
            child.kill()
        self.reference.close()
        self.pool.close()


def cached(answer):
    details = answer["usage"]["prompt_tokens_details"]
    return details["cached_tokens"] if details else 0


def stored_blocks(server):
    return server.metrics()["vllm:cachalot_stored_blocks_total"]


def nothing_is_held(stage):
    """No block belongs to a dead client, and each that is not free can be found."""
    counted = stage.accounting()
    return counted["live_blocks"] + counted["free_blocks"] == counted["sum"]


def test_decode_takes_what_prefill_has_stored(stage, prompt):
    producers, consumers = stage.at_least(2, 2)
    proxy = stage.proxy(producers, consumers)
    for seed in range(100, 104):
        one, is_streamed = prompt(seed), seed % 2 == 0
        answer = (proxy.stream if is_streamed else proxy.complete)(one, return_token_ids=True)
        assert answer["tokens"] == stage.right(one)
        assert cached(answer) == BLOCKS * BLOCK_TOKENS
        assert "prefill;dur=" in answer["timing"] and "decode;dur=" in answer["timing"]
    assert [stored_blocks(server) for server in producers] == [2 * BLOCKS, 2 * BLOCKS]  # in turn
    assert [server.metrics()["vllm:cachalot_loaded_blocks_total"] for server in consumers] == [2 * BLOCKS, 2 * BLOCKS]
    assert proxy.get("/v1/models")["data"][0]["id"] == "tiny"
    story = {"messages": [{"role": "user", "content": "Once upon a time " * 60}], "max_tokens": 8, "temperature": 0}
    chats = [proxy.post("/v1/chat/completions", story) for _ in range(2)]
    assert chats[0]["choices"][0]["message"] == chats[1]["choices"][0]["message"]
    assert cached(chats[0]) == chats[0]["usage"]["prompt_tokens"] // BLOCK_TOKENS * BLOCK_TOKENS > 0


def test_prefill_killed_after_its_store(stage, prompt):
    producers, consumers = stage.at_least(1, 1)
    one, victim = prompt(200), producers[0]
    stored = stored_blocks(victim) + BLOCKS
    victim.complete(one, max_tokens=1)
    wait_until(lambda: stored_blocks(victim) == stored, "the store")
    stage.kill(victim)
    proxy = stage.proxy([victim], consumers)
    for ask in (proxy.stream, proxy.complete):
        answer = ask(one, return_token_ids=True)
        assert answer["tokens"] == stage.right(one)
        assert cached(answer) == BLOCKS * BLOCK_TOKENS
    two = prompt(201)  # no prefill at all
    answer = proxy.stream(two, return_token_ids=True)
    assert answer["tokens"] == stage.right(two) and cached(answer) == 0


def test_prefill_killed_during_its_store(stage, prompt):
    producers, consumers = stage.at_least(1, 1)
    victim, one, two = producers[0], prompt(300), prompt(301)
    stored = stored_blocks(victim) + BLOCKS
    victim.complete(one, max_tokens=1)  # it is attached, and has blocks
    wait_until(lambda: stored_blocks(victim) == stored, "the store")
    assert stage.accounting()["granted_blocks"] > 0
    live = stage.accounting()["live_blocks"]
    proxy = stage.proxy(producers, consumers)
    stage.pool.keeper.send_signal(signal.SIGSTOP)
    try:
        # Its blocks are computed and copied; the commit waits for the keeper.
        answer = proxy.stream(two, return_token_ids=True)
        assert answer["tokens"] == stage.right(two) and cached(answer) == 0
        assert stored_blocks(victim) == stored  # still in flight
        stage.kill(victim)
    finally:
        stage.pool.keeper.send_signal(signal.SIGCONT)
    wait_until(lambda: nothing_is_held(stage), "the dead client's blocks are free")
    assert live <= stage.accounting()["live_blocks"] <= live + BLOCKS  # posted commits count
    for again in (one, two):
        answer = proxy.complete(again, return_token_ids=True)
        assert answer["tokens"] == stage.right(again)


def test_prefill_killed_before_its_store(stage, prompt):
    producers, consumers = stage.at_least(1, 1)
    victim, one = producers[0], prompt(400)
    proxy = stage.proxy(producers, consumers)
    victim.signal(signal.SIGSTOP)
    asked = Later(proxy.stream, one, return_token_ids=True)
    wait_until(lambda: proxy.in_flight(victim.url) == 1, "the request is in the prefill engine")
    stage.kill(victim)
    answer = asked.result()
    assert answer["tokens"] == stage.right(one) and cached(answer) == 0
    assert proxy.complete(one, return_token_ids=True)["tokens"] == stage.right(one)
    wait_until(lambda: nothing_is_held(stage), "the dead client's blocks are free")


def test_decode_killed_before_its_first_byte(stage, prompt):
    _, consumers = stage.at_least(0, 2)
    victim, prompts = consumers[0], [prompt(500), prompt(501)]
    proxy = stage.proxy([], consumers)
    victim.signal(signal.SIGSTOP)
    asked = [Later(ask, one, return_token_ids=True) for ask, one in zip((proxy.stream, proxy.complete), prompts)]
    wait_until(lambda: proxy.in_flight(victim.url) == 1, "a request is in the decode engine")
    stage.kill(victim)
    for later, one in zip(asked, prompts):
        assert later.result()["tokens"] == stage.right(one)
    wait_until(lambda: nothing_is_held(stage), "the dead client's blocks are free")


def test_decode_killed_within_its_answer(stage, prompt):
    _, consumers = stage.at_least(0, 1)
    victim, one = consumers[0], prompt(600)
    proxy = stage.proxy([], consumers)
    answer = proxy.stream(one, max_tokens=500, return_token_ids=True, each=lambda: victim.signal(signal.SIGKILL))
    assert answer["error"]["code"] == 502
    count = len(answer["tokens"])
    assert answer["tokens"] == stage.right(one, 500).tokens[:count] and 0 < count < 500
    stage.kill(victim)
    replaced, = stage.at_least(0, 1)[1]
    assert stage.proxy([], [victim, replaced]).complete(one, return_token_ids=True)["tokens"] == stage.right(one)
    wait_until(lambda: nothing_is_held(stage), "the dead client's blocks are free")
