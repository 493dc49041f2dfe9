"""Decode engines of two ranks that hold the same bytes: they get them from the prefill engine once, and answer as one rank
does."""

import time

import handover
import pytest
from handover import BLOCKS, CACHED, DEADLINE_S, cached, is_free
from processes import Engine
from servers import Server, shared_memory

#: With 16 bits, engines of other tensor parallel sizes add with other roundings. vLLM's experts on CPUs have only these, so
#: no MLA model is here.
DTYPE = "float32"
LISTEN = {"listen": ["tcp:127.0.0.1:0"], "deadline": 20}


class Stage:
    """A prefill engine of one rank; decode engines of two, which fetch once, or one by one; an engine that is right."""

    def __init__(self, folder, model):
        self.reference = Engine(model, dtype=DTYPE)
        two = ["--tensor-parallel-size", "2"]

        def server(role, flags=(), **options):
            return Server(model, folder / f"{role}-{time.monotonic_ns()}.log", role=role,
                          connector={"transfer": {**LISTEN, **options}}, flags=["--dtype", DTYPE, *flags])
        self.prefill = server("kv_producer")
        self.once, self.each = server("kv_consumer", two), server("kv_consumer", two, once_per_machine=False)
        self.servers = [self.prefill, self.once, self.each]
        for one in self.servers:
            one.wait_ready()

    def close(self):
        for one in self.servers:
            one.kill()
        self.reference.close()


@pytest.fixture(scope="module")
def machine(models, tmp_path_factory):
    made = Stage(tmp_path_factory.mktemp("servers"), models("llama-one-head"))
    yield made
    made.close()


def counter(server, name, least=0):
    """Waits until it is there: an engine that has nothing to do tells its counters later."""
    until = time.monotonic() + DEADLINE_S
    while (value := int(server.metrics()[f"vllm:cachalot_{name}_total"])) < least:
        assert time.monotonic() < until, f"{name} stays {value}"
        time.sleep(0.05)
    return value


def test_ranks_that_hold_the_same_bytes_get_them_once(machine, prompt):
    """Several prompts: the rank that fetches is another one each time."""
    block = None
    for seed in range(100, 106):
        one = prompt(seed)
        tokens = handover.right(machine.reference, one)
        sent = {}
        for decode in (machine.once, machine.each):
            before = counter(machine.prefill, "sent_bytes")
            ranks, taken = counter(decode, "transfers"), counter(decode, "transferred_bytes")
            answer = decode.complete(one, return_token_ids=True,
                                     kv_transfer_params=handover.offered(machine.prefill, one))
            assert answer["tokens"] == tokens and cached(answer) == CACHED
            assert is_free(machine.prefill) and is_free(decode)
            counter(decode, "transfers", ranks + 2)
            of_both = counter(decode, "transferred_bytes") - taken
            block = block or of_both // (2 * BLOCKS)
            assert of_both == 2 * BLOCKS * block
            sent[decode] = counter(machine.prefill, "sent_bytes", before + BLOCKS * block) - before
        assert sent[machine.once] == BLOCKS * block
        assert sent[machine.each] == 2 * BLOCKS * block
    assert counter(machine.once, "failed_transfers") == counter(machine.each, "failed_transfers") == 0


def test_a_standing_offer_is_taken_once(machine, prompt):
    one = prompt(200)
    params = machine.prefill.complete(one, kv_transfer_params={"cachalot_standing": 30})["kv_transfer_params"]
    for seed, common in ((201, 700), (202, 1500)):
        longer = one[:common] + prompt(seed, 300)
        answer = machine.once.complete(longer, return_token_ids=True, kv_transfer_params=params)
        assert answer["tokens"] == handover.right(machine.reference, longer)
        assert cached(answer) == common // handover.BLOCK_TOKENS * handover.BLOCK_TOKENS
    assert is_free(machine.once)


def test_a_reference_that_leads_to_nothing_is_computed_by_all_ranks(machine, prompt):
    one = prompt(300)
    params = handover.offered(machine.prefill, one)
    params["cachalot_reference"]["id"] = "0" * 31 + "1"
    answer = machine.once.complete(one, return_token_ids=True, kv_transfer_params=params)
    assert answer["tokens"] == handover.right(machine.reference, one) and cached(answer) == 0
    assert is_free(machine.once)


def test_an_engine_that_is_killed_leaves_no_shared_memory(machine):
    left = shared_memory(machine.each.process)
    assert left
    machine.each.kill()
    assert not [path for path in left if path.exists()]
