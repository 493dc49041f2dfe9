"""An engine takes the beginning of a prompt from another one, which has it on offer for a while."""

import time

import handover
from handover import BLOCK_TOKENS, BLOCKS, CACHED, cached, is_free
from processes import Engine
from servers import Server

LISTEN = {"listen": ["tcp:127.0.0.1:0"], "deadline": 20, "standing": 600, "standing_held": 0.5}
SMALL = 32 << 20  # bytes of a cache with 64 pages
#: With 16 bits, an engine that has another part of a prompt computes the rest with other roundings: its later tokens differ.
DTYPE = "float32"


class Stage:
    """Three engines of equal rights, and one that is right."""

    def __init__(self, folder, model):
        self.folder, self.model = folder, model
        self.reference = Engine(model, dtype=DTYPE, enable_prefix_caching=False)
        self.owner, self.peer, self.other = (self.server() for _ in range(3))
        for server in (self.owner, self.peer, self.other):
            server.wait_ready()

    def server(self, **named):
        return Server(self.model, self.folder / f"{time.monotonic_ns()}.log", connector={"transfer": LISTEN},
                      flags=["--dtype", DTYPE], **named)

    def right(self, prompt):
        return handover.right(self.reference, prompt)

    def takes(self, server, prompt, params, tokens):
        """Whether an engine with a reference answers as one engine does, with so many tokens of others."""
        answer = server.complete(prompt, return_token_ids=True, kv_transfer_params=params)
        assert answer["tokens"] == self.right(prompt)
        assert cached(answer) == tokens
        return True

    def close(self):
        for server in (self.owner, self.peer, self.other):
            server.kill()
        self.reference.close()


def standing(server, prompt, seconds=30, **options):
    """The answer of an engine that keeps its KV on offer, and where it is."""
    answer = server.complete(prompt, return_token_ids=True, kv_transfer_params={"cachalot_standing": seconds}, **options)
    return answer["tokens"], answer["kv_transfer_params"]


def transferred(server):
    return int(server.metrics()["vllm:cachalot_transferred_blocks_total"])


def test_a_longer_prompt_takes_its_beginning_and_computes_the_rest(stage, prompt):
    one = prompt(100)
    tokens, params = standing(stage.owner, one, max_tokens=40)
    assert stage.takes(stage.peer, one + prompt(101, 700), params, CACHED)
    # A conversation goes on: also the answer's blocks are taken.
    assert stage.takes(stage.other, one + tokens + prompt(102, 300), params, (BLOCKS + 1) * BLOCK_TOKENS)
    # The same prompt.
    assert stage.takes(stage.peer, one, params, CACHED)
    assert is_free(stage.peer) and is_free(stage.other)


def test_only_the_common_part_of_a_prefix_is_taken(stage, prompt):
    one = prompt(200)
    _, params = standing(stage.owner, one)
    for seed, common, blocks in ((201, 700, 5), (202, 640, 5), (203, 128, 1), (204, 1408, 11)):
        before = transferred(stage.peer)
        other = one[:common] + prompt(seed, 400)
        # What it has of the ones before is not asked for again.
        assert stage.takes(stage.peer, other, params, blocks * BLOCK_TOKENS)
        assert transferred(stage.peer) - before == {201: 5, 202: 0, 203: 0, 204: 6}[seed]
    assert stage.takes(stage.peer, prompt(205), params, 0)
    assert stage.takes(stage.peer, one[:127] + prompt(206, 400), params, 0)


def test_a_reference_is_used_by_several_peers_until_its_time_is_over(stage, prompt):
    one = prompt(300)
    _, params = standing(stage.owner, one, 40)  # more than a busy machine needs for the answers below
    began = time.monotonic()
    for server in (stage.peer, stage.other):
        before = transferred(server)
        assert stage.takes(server, one[:700] + prompt(301, 300), params, 5 * BLOCK_TOKENS)
        assert stage.takes(server, one + prompt(302, 300), params, CACHED)
        assert transferred(server) - before == BLOCKS
    if time.monotonic() - began < 20:
        assert stage.owner.metrics()["vllm:kv_cache_usage_perc"] > 0
    assert is_free(stage.owner)
    third = stage.server()
    try:
        third.wait_ready()
        assert stage.takes(third, one + prompt(303, 300), params, 0)
    finally:
        third.kill()
    assert is_free(stage.peer) and is_free(stage.other)


def test_a_reference_that_lies_about_its_blocks_is_computed(stage, prompt):
    one, two = prompt(400), prompt(401)
    _, params = standing(stage.owner, one)
    _, of_two = standing(stage.owner, two)
    # It says that it has the blocks of the second prompt; the owner knows better.
    forged = {**params["cachalot_reference"], "blocks": of_two["cachalot_reference"]["blocks"]}
    assert stage.takes(stage.peer, two, {"cachalot_reference": forged}, 0)
    changes = [{"tokens": 10**9}, {"blocks": "0" * 10**5}, {"id": of_two["cachalot_reference"]["id"]}]
    for seed, change in enumerate(changes, start=410):
        forged = {**params["cachalot_reference"], **change}
        assert stage.takes(stage.peer, prompt(seed), {"cachalot_reference": forged}, 0)
    # Its pages are those of another prompt, so no block of the peer is taken for one of this prompt.
    swapped = {**params["cachalot_reference"], "id": of_two["cachalot_reference"]["id"]}
    assert stage.takes(stage.other, one, {"cachalot_reference": swapped}, 0)
    assert stage.takes(stage.peer, one, params, CACHED)


def test_pages_that_stand_on_offer_are_not_reused_and_leave_room(stage, prompt):
    small = stage.server(cache_bytes=SMALL)
    try:
        small.wait_ready()
        one = prompt(500)
        _, params = standing(small, one, 300)
        answers = [standing(small, prompt(seed))[1] for seed in range(510, 522)]  # twice as many pages as it has
        assert answers[0] is not None and answers[-1] is None  # half of them may stand
        assert stage.takes(stage.peer, one + prompt(530, 200), params, CACHED)
    finally:
        small.kill()


def test_an_owner_that_died_costs_a_computation(stage, prompt):
    victim = stage.server()
    victim.wait_ready()
    one = prompt(600)
    _, params = standing(victim, one)
    assert stage.takes(stage.peer, one[:700] + prompt(601, 100), params, 5 * BLOCK_TOKENS)
    victim.kill()
    # What the peer has stays. vLLM's count of cached tokens claims the rest, too, when a load fails after a local hit.
    failed, longer = stage.peer.metrics()["vllm:cachalot_failed_transfers_total"], one + prompt(602, 100)
    assert stage.peer.complete(longer, return_token_ids=True, kv_transfer_params=params)["tokens"] == stage.right(longer)
    assert stage.peer.metrics()["vllm:cachalot_failed_transfers_total"] == failed + 1
    assert stage.takes(stage.other, one + prompt(603, 100), params, 0)
    assert is_free(stage.peer) and is_free(stage.other)
