"""KV handed from one rank to another, without a pool."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from conftest import GEOMETRY

import cachalot


class Rank:
    def __init__(self, name, seed, listen="auto", geometry=GEOMETRY, model="test@1", **options):
        random = np.random.default_rng(seed)
        heads = geometry.kv_heads
        self.tensors = [random.random((2, 16, 4, heads, 32)).astype(np.float16) for _ in range(3)]
        self.rank = cachalot.TransferRank(instance=name, model=model, geometry=geometry, layout="vllm_kbnhc",
                                          tensors=self.tensors, pages=16, listen=[listen], **options)

    def pages(self, pages):
        return np.stack([tensor[:, pages] for tensor in self.tensors])

    def reference(self, name, tokens, **more):
        return {"instance": "p", "id": name, "tokens": tokens, "tp_size": 1, "pp_size": 1,
                "addresses": [self.rank.addresses], **more}


@pytest.fixture(params=["auto", "tcp:127.0.0.1:0"])
def ranks(request):
    prefill, decode = Rank("p", 1, request.param), Rank("d", 2, request.param)
    yield prefill, decode
    prefill.rank.close()
    decode.rank.close()


def test_pages_are_handed_over_and_free_again(ranks):
    prefill, decode = ranks
    name, before = cachalot.random_offer_id(), decode.pages(list(range(16)))
    prefill.rank.offer(name, [3, 5, 7], 12, deadline_s=20)
    ask = decode.rank.ask(prefill.reference(name, 12), [1, 2, 9], deadline_s=20)
    status = decode.rank.wait(ask)
    assert (status["state"], status["layers"], status["error"]) == ("done", 3, None)
    assert (decode.pages([1, 2, 9]) == prefill.pages([3, 5, 7])).all()
    others = [page for page in range(16) if page not in (1, 2, 9)]
    assert (decode.pages(others) == before[:, :, others]).all()
    until = time.monotonic() + 20
    while not (ended := prefill.rank.ended_offers()):
        assert time.monotonic() < until
    assert ended == [(name, None)]
    decode.rank.release(ask)
    with pytest.raises(cachalot.NotFoundError):
        decode.rank.wait(ask)


def test_layers_and_a_note(ranks):
    prefill, decode = ranks
    name = cachalot.random_offer_id()
    prefill.rank.offer(name, [0, 1], 8, deadline_s=20, layers_ready=0, has_note=True)
    ask = decode.rank.ask(prefill.reference(name, 8, expects_note=True), [4, 6], deadline_s=20)
    for layer in range(3):
        prefill.rank.layers_ready(name, layer + 1)
        assert decode.rank.wait(ask, layers=layer + 1)["layers"] == layer + 1
        assert (decode.tensors[layer][:, [4, 6]] == prefill.tensors[layer][:, [0, 1]]).all()
    assert decode.rank.wait(ask, timeout_s=0.05)["state"] == "running"
    prefill.rank.finish(name, b"token 5")
    assert decode.rank.wait(ask)["note"] == b"token 5"


def test_a_reference_is_used_once(ranks):
    prefill, decode = ranks
    name = cachalot.random_offer_id()
    prefill.rank.offer(name, [0], 4, deadline_s=20)
    states = []
    for _ in range(2):
        states.append(decode.rank.wait(decode.rank.ask(prefill.reference(name, 4), [1], deadline_s=20)))
    assert [status["state"] for status in states] == ["done", "failed"]
    assert states[1]["code"] == "stale" and "it was taken" in states[1]["error"]


def test_a_standing_offer_is_taken_in_parts_by_its_hash(ranks):
    prefill, decode = ranks
    name = cachalot.random_offer_id()
    hashes = np.array([[1, 7], [2, 7], [3, 7]], np.uint64)  # of pages of 4 tokens
    prefill.rank.offer(name, [3, 5, 7], 12, deadline_s=20, hashes=hashes, standing=True)
    reference = prefill.reference(name, 12)
    for pages in (1, 3, 2):
        ask = decode.rank.ask(reference, [1, 2, 9][:pages], deadline_s=20, tokens=4 * pages, hash=hashes[pages - 1])
        assert decode.rank.wait(ask)["state"] == "done"
        assert (decode.pages([1, 2, 9][:pages]) == prefill.pages([3, 5, 7][:pages])).all()
    before = decode.pages(list(range(16)))
    for options in ({"hash": hashes[2]}, {"hash": cachalot.BlockHash("0" * 31 + "1")}, {}):
        status = decode.rank.wait(decode.rank.ask(reference, [10, 11], deadline_s=20, tokens=8, **options))
        assert status["state"] == "failed" and status["code"] == ("refused" if options else "invalid_argument")
    assert (decode.pages(list(range(16))) == before).all()
    decode.rank.decline(reference, deadline_s=20)  # of no effect
    assert prefill.rank.ended_offers() == [] and prefill.rank.statistics()["open_offers"] == 1
    with pytest.raises(cachalot.InvalidArgumentError, match="hash: "):
        decode.rank.ask(reference, [1], deadline_s=20, tokens=4, hash=hashes)


def test_a_declined_offer_is_free_again(ranks):
    prefill, decode = ranks
    name = cachalot.random_offer_id()
    prefill.rank.offer(name, [3, 5, 7], 12, deadline_s=20)
    decode.rank.decline(prefill.reference(name, 12), deadline_s=20)
    until = time.monotonic() + 10
    while not (ended := prefill.rank.ended_offers()):
        assert time.monotonic() < until
    assert ended == [(name, None)] and prefill.rank.statistics()["declined_offers"] == 1


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_close_ends_what_another_thread_waits_for(ranks, side):
    prefill, decode = ranks
    name, results = cachalot.random_offer_id(), []
    prefill.rank.offer(name, [0, 1], 8, deadline_s=60, layers_ready=1)
    ask = decode.rank.ask(prefill.reference(name, 8), [4, 6], deadline_s=60)
    decode.rank.wait(ask, layers=1)

    def wait(**options):
        try:
            results.append(decode.rank.wait(ask, **options))
        except cachalot.InvalidArgumentError as error:  # it began after close()
            assert "closed" in str(error)

    closing = (prefill if side == "prefill" else decode).rank
    address = closing.addresses[0]
    threads = [threading.Thread(target=wait), threading.Thread(target=wait, kwargs={"layers": 2})]
    threads += [threading.Thread(target=closing.close) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    for status in results:
        assert (status["state"], status["layers"]) == ("failed", 1)
        assert side == "prefill" or status["code"] == "cancelled"
    assert len(results) == 2 or side == "decode"
    if side == "decode":
        until = time.monotonic() + 20
        while not (ended := prefill.rank.ended_offers()):
            assert time.monotonic() < until
        assert ended[0][0] == name and ended[0][1]
    with pytest.raises(cachalot.InvalidArgumentError, match="closed"):
        closing.statistics()
    Rank("p", 3, address).rank.close()  # the address is free


def test_two_ranks_become_one():
    geometry = {**GEOMETRY.__getstate__(), "kv_heads": 1, "tp_size": 2}
    halves = [Rank("p", 10 + r, geometry=cachalot.KvGeometry(**{**geometry, "tp_rank": r})) for r in range(2)]
    whole, name = Rank("d", 12), cachalot.random_offer_id()
    for half in halves:
        half.rank.offer(name, [2, 0], 8, deadline_s=20)
    reference = {"instance": "p", "id": name, "tokens": 8, "tp_size": 2, "pp_size": 1,
                 "addresses": [half.rank.addresses for half in halves]}
    assert whole.rank.wait(whole.rank.ask(reference, [5, 1], deadline_s=20))["state"] == "done"
    for head, half in enumerate(halves):
        assert (whole.pages([5, 1])[..., head, :] == half.pages([2, 0])[..., 0, :]).all()


@pytest.mark.parametrize("way", ["addresses", "registry"])
def test_ranks_with_the_same_heads_fetch_them_once_per_machine(way, tmp_path):
    # Two heads on four ranks of one machine: ranks 0 and 1 hold the first one, 2 and 3 the second one.
    options = {"registry": f"file:{tmp_path}/ranks"} if way == "registry" else {}
    geometry = {**GEOMETRY.__getstate__(), "kv_heads": 1, "tp_size": 4, "tp_replicas": 2}
    prefill = Rank("p", 1, "tcp:127.0.0.1:0")
    decode = [Rank("d", 10 + r, "tcp:127.0.0.1:0", cachalot.KvGeometry(**{**geometry, "tp_rank": r}),
                   machines=[0, 0, 0, 0], **options) for r in range(4)]
    name = cachalot.random_offer_id()
    prefill.rank.offer(name, [2, 0], 8, deadline_s=20)
    if way == "addresses":
        with pytest.raises(cachalot.InvalidArgumentError, match="addresses of 1 ranks"):
            decode[0].rank.set_instance_addresses([["tcp:127.0.0.1:1"]])
        for one in decode:
            one.rank.set_instance_addresses([other.rank.addresses for other in decode])
    asks = [one.rank.ask(prefill.reference(name, 8), [5, 1], deadline_s=20) for one in decode]
    for rank, (one, ask) in enumerate(zip(decode, asks)):
        assert one.rank.wait(ask)["error"] is None
        assert (one.pages([5, 1])[..., 0, :] == prefill.pages([2, 0])[..., rank // 2, :]).all()
    assert prefill.rank.statistics()["sent_bytes"] == prefill.pages([2, 0]).nbytes
    for one in decode:
        one.rank.close()
    with pytest.raises(cachalot.InvalidArgumentError, match="machines of 2 ranks"):
        Rank("d", 1, geometry=cachalot.KvGeometry(**geometry), machines=[0, 0])


CHILD = """
import sys, numpy as np, cachalot
geometry = cachalot.KvGeometry(layers=3, kv_heads=2, head_dim=32, dtype="f16", block_tokens=4)
tensors = [np.full((2, 16, 4, 2, 32), layer, np.float16) for layer in range(3)]
rank = cachalot.TransferRank(instance="p", model="test@1", geometry=geometry, layout="vllm_kbnhc", tensors=tensors,
                             pages=16, listen=[sys.argv[1]])
name = cachalot.random_offer_id()
rank.offer(name, [0, 1], 8, deadline_s=60, layers_ready=1)
print(name, rank.addresses[0], flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("listen", ["auto", "tcp:127.0.0.1:0"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_prefill_process_that_dies_or_stalls_fails_the_ask(listen, number):
    child = subprocess.Popen([sys.executable, "-c", CHILD, listen], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        name, address = child.stdout.readline().split()
        decode = Rank("d", 2, listen, peer_timeout_s=0.5)
        reference = {"instance": "p", "id": name, "tokens": 8, "tp_size": 1, "pp_size": 1, "addresses": [[address]]}
        ask = decode.rank.ask(reference, [1, 2], deadline_s=30)
        assert decode.rank.wait(ask, timeout_s=20, layers=1)["layers"] == 1
        child.send_signal(number)
        status = decode.rank.wait(ask, timeout_s=20)
        assert status["state"] == "failed" and status["layers"] == 1
        assert (decode.tensors[0][:, [1, 2]] == 0).all()
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("change, message", [
    ({"id": "x"}, "32 hexadecimal digits"), ({"tokens": "many"}, "tokens"), ({"tp_size": 3}, "expected 3"),
    ({"addresses": [[], []]}, "addresses of 2 ranks"), ({"addresses": [[7]]}, "address"),
    ({"expects_note": "no"}, "expects_note: 'no' .str., expected True or False")])
def test_a_wrong_reference_is_one_clear_error(change, message):
    decode = Rank("d", 2)
    reference = {**decode.reference(cachalot.random_offer_id(), 8), **change}
    with pytest.raises((cachalot.InvalidArgumentError, TypeError), match=message):
        decode.rank.ask(reference, [1, 2], deadline_s=1)


def test_a_peer_timeout_of_nothing_is_refused():
    with pytest.raises(cachalot.InvalidArgumentError, match="at least 1 ms"):
        Rank("p", 1, peer_timeout_s=0)
    with pytest.raises(cachalot.InvalidArgumentError, match="at least 1 ms"):
        cachalot.TransferEndpoint(name="e", peer_timeout_s=0)


def test_a_forked_child_does_nothing():
    rank = Rank("p", 1)
    child = os.fork()
    if child == 0:
        try:
            rank.rank.close()
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert rank.rank.statistics()["open_offers"] == 0


def test_a_message_that_is_no_utf_8_is_text_nevertheless():
    # A message quotes the first 60 bytes of a peer's name: half of a character.
    model = "a" + "ä" * 40
    prefill, decode, name = Rank("p", 1, model=model), Rank("d", 2), cachalot.random_offer_id()
    prefill.rank.offer(name, [0], 4, deadline_s=20)
    status = decode.rank.wait(decode.rank.ask(prefill.reference(name, 4), [1], deadline_s=20))
    assert status["code"] == "refused" and model[:30] + "\N{REPLACEMENT CHARACTER}" in status["error"]


def test_a_rank_with_a_cluster_key_hands_over_to_those_that_have_it(tmp_path):
    def key(digit):
        file = tmp_path / digit
        file.write_text(digit * 64)
        file.chmod(0o600)
        return str(file)

    listen = "tcp:127.0.0.1:0"
    prefill = Rank("p", 1, listen, cluster_key_file=key("a"))
    for number, (options, state) in enumerate([({"cluster_key_file": key("a")}, "done"),
                                               ({"cluster_key_file": key("b")}, "failed"), ({}, "failed")]):
        decode = Rank(f"d{number}", 2, listen, **options)
        before = decode.pages([1])
        name = cachalot.random_offer_id()
        prefill.rank.offer(name, [3], 4, deadline_s=20)
        status = decode.rank.wait(decode.rank.ask(prefill.reference(name, 4), [1], deadline_s=3))
        assert status["state"] == state, (options, status)
        assert (decode.pages([1]) == (prefill.pages([3]) if state == "done" else before)).all()
        decode.rank.close()
    prefill.rank.close()
    with pytest.raises(cachalot.InvalidArgumentError, match="cluster key file"):
        (tmp_path / "short").write_text("abc")
        (tmp_path / "short").chmod(0o600)
        Rank("p", 1, listen, cluster_key_file=str(tmp_path / "short"))


def test_a_plain_file_is_no_address(tmp_path):
    file = tmp_path / "file"
    file.write_text("precious")
    with pytest.raises(cachalot.InvalidArgumentError, match="is a file, which is not replaced"):
        Rank("p", 1, listen=f"unix:{file}")
    assert file.read_text() == "precious"


def test_other_weights_are_refused():
    prefill, decode, name = Rank("p", 1), Rank("d", 2, model="test@2"), cachalot.random_offer_id()
    prefill.rank.offer(name, [0], 4, deadline_s=20)
    status = decode.rank.wait(decode.rank.ask(prefill.reference(name, 4), [1], deadline_s=20))
    assert status["code"] == "refused" and "test@1" in status["error"]
