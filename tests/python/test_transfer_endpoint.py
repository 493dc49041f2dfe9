"""Memory of another process, opened by name."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import cachalot

OWNER = """
import sys, numpy as np, cachalot
pages = np.arange(8 * 16 * 4, dtype=np.uint32).reshape(8, 16, 4)
answers = np.zeros(64, dtype=np.uint8)
with cachalot.TransferEndpoint(name="owner", listen=[sys.argv[1]]) as owner:
    owner.register("pages", pages, "read")
    owner.register("answers", answers, "write")
    print(owner.addresses[0], flush=True)
    notices = owner.notices(timeout_s=30)
    print(notices, int(answers.sum()), flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=["auto", "tcp:127.0.0.1:0"])
def listen(request):
    return request.param


def test_a_process_reads_and_writes_memory_of_another_one(listen):
    with subprocess.Popen([sys.executable, "-c", OWNER, listen], text=True, stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as owner:
        address = owner.stdout.readline().strip()
        with cachalot.TransferEndpoint(name="other") as other:
            pages = other.open([address], "pages", peer="owner")
            assert (pages.peer, pages.bytes, pages.access) == ("owner", 8 * 16 * 16, "read")
            # Numbers 2 and 3 of all tokens of pages 5, 1 and 6.
            got = np.zeros((3, 16, 2), dtype=np.uint32)
            offsets = [5 * 256, 1 * 256, 6 * 256]
            batch = other.read(pages, got, [((0, got.nbytes), (8, [offsets, (16, 16)], 8))], deadline_s=20)
            assert other.wait(batch) == {"state": "done", "bytes": got.nbytes, "error": None, "code": None}
            expected = np.arange(8 * 16 * 4, dtype=np.uint32).reshape(8, 16, 4)[[5, 1, 6], :, 2:]
            assert (got == expected).all()
            other.release(batch)
            with pytest.raises(cachalot.NotFoundError):
                other.wait(batch)
            answers = other.open([address], "answers")
            batch = other.write(answers, bytes([3]) * 64, [((0, 64), (0, 64))], notice="answer")
            assert other.wait(batch)["state"] == "done"
            assert owner.stdout.readline().strip() == "[('other', 'answer')] 192"
            # The owner is gone: its segments are.
            owner.kill()
            owner.wait()
            batch = None
            try:
                batch = other.read(pages, got, [((0, 8), (0, 8))], deadline_s=20)
            except cachalot.NotFoundError:
                pass
            assert batch is None or other.wait(batch)["state"] == "failed"


def test_an_owner_is_found_by_its_name(listen, tmp_path):
    registry = f"file:{tmp_path}/endpoints"
    with cachalot.TransferEndpoint(name="other", registry=registry) as other:
        for value in (1, 2):  # again after a restart
            with cachalot.TransferEndpoint(name="owner", listen=[listen], registry=registry) as owner:
                owner.register("kv", np.full(64, value, np.uint8))
                segment, got = other.open([], "kv", peer="owner"), np.zeros(64, np.uint8)
                assert other.wait(other.read(segment, got, [((0, 64), (0, 64))]))["state"] == "done"
                assert (got == value).all()
        with pytest.raises(cachalot.Error):
            other.open([], "kv", peer="owner", timeout_s=1)
        with pytest.raises(cachalot.InvalidArgumentError, match="without addresses"):
            other.open([], "kv")


def test_bad_input_is_one_clear_error(listen):
    array = np.zeros(100, dtype=np.uint8)
    with cachalot.TransferEndpoint(name="owner", listen=[listen]) as owner, \
            cachalot.TransferEndpoint(name="other") as other:
        owner.register("kv", array, "read")
        segment = other.open(owner.addresses, "kv")

        def refused(error, text, call):
            with pytest.raises(error, match=text):
                call()

        refused(cachalot.NotFoundError, 'no segment "vk"', lambda: other.open(owner.addresses, "vk"))
        refused(cachalot.InvalidArgumentError, "'all'", lambda: owner.register("x", array, "all"))
        refused(cachalot.InvalidArgumentError, "contiguous", lambda: owner.register("x", array[::2]))
        refused(cachalot.InvalidArgumentError, "read-only", lambda: owner.register("x", b"123", "write"))
        refused(cachalot.InvalidArgumentError, "read-only", lambda: other.read(segment, b"123", [((0, 1), (0, 1))]))
        refused(cachalot.PermissionError, "not open for writing",
                lambda: other.write(segment, array, [((0, 1), (0, 1))]))
        refused(cachalot.InvalidArgumentError, "it has 100 bytes",
                lambda: other.read(segment, bytearray(1000), [((0, 101), (0, 101))]))
        refused(cachalot.InvalidArgumentError, "2 local and 1 remote",
                lambda: other.read(segment, array, [((0, 2), (0, 1))]))
        for wrong in [[3], [((0, 1),)], [((0, 1), 5)], [((0, 1), (0,))], [((0, ["x"], 1), (0, 1))]]:
            with pytest.raises((TypeError, cachalot.InvalidArgumentError)):
                other.read(segment, array, wrong)
        for wrong in [[((-1, 1), (0, 1))], [((0, [(2, -1)], 1), (0, 2))]]:
            with pytest.raises(cachalot.InvalidArgumentError):
                other.read(segment, array, wrong)
        owner.unregister("kv")
        refused(cachalot.NotFoundError, "kv", lambda: owner.unregister("kv"))
        batch = other.read(segment, array, [((0, 1), (0, 1))], deadline_s=20)
        assert other.wait(batch)["code"] == "stale"
    refused(cachalot.InvalidArgumentError, "closed", lambda: other.open([], "kv"))


def test_notices_go_both_ways(listen):
    with cachalot.TransferEndpoint(name="owner", listen=[listen]) as owner, \
            cachalot.TransferEndpoint(name="other") as other:
        owner.register("kv", bytearray(8))
        segment = other.open(owner.addresses, "kv")
        assert other.notices() == []
        other.notify(segment.peer, "one")
        assert owner.notices(timeout_s=20) == [("other", "one")]
        owner.notify("other", "two")
        assert other.notices(timeout_s=20) == [("owner", "two")]
        with pytest.raises(cachalot.NotFoundError):
            owner.notify("third", "x")


class Call(threading.Thread):
    """A call in a thread of its own; its result or its error."""

    def __init__(self, function, *arguments, **options):
        super().__init__()
        self.result = self.error = None

        def run():
            try:
                self.result = function(*arguments, **options)
            except cachalot.Error as error:
                self.error = error

        self.run = run
        self.start()


def test_close_ends_what_another_thread_waits_for(listen):
    with subprocess.Popen([sys.executable, "-c", OWNER, listen], text=True, stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as owner:
        try:
            address = owner.stdout.readline().strip()
            other = cachalot.TransferEndpoint(name="other")
            pages = other.open([address], "pages")
            owner.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, owner.pid, os.WSTOPPED | os.WNOWAIT)
            mine = np.zeros(pages.bytes, np.uint8)
            weak = weakref.ref(mine)
            batch = other.read(pages, mine, [((0, mine.nbytes), (0, mine.nbytes))], deadline_s=60)
            waits = [Call(other.wait, batch), Call(other.wait, batch, bytes=1), Call(other.notices, timeout_s=60)]
            closes = [Call(other.close) for _ in range(2)]
            for call in waits + closes:
                call.join(30)
                assert not call.is_alive()
            for call in waits[:2]:  # or it began after close()
                assert (call.result or {"code": "cancelled"})["code"] == "cancelled"
                assert call.error is None or "closed" in str(call.error)
            assert waits[2].result in ([], None)
            for call in closes:
                assert call.error is None
            with pytest.raises(cachalot.InvalidArgumentError, match="closed"):
                other.wait(batch)
            # The endpoint keeps no memory.
            del mine
            gc.collect()
            assert weak() is None
        finally:
            owner.kill()


def test_nothing_comes_into_memory_after_close(listen):
    with cachalot.TransferEndpoint(name="owner", listen=[listen]) as owner:
        source, mine = np.full(128 << 20, 3, np.uint8), np.zeros(128 << 20, np.uint8)
        owner.register("kv", source)
        other = cachalot.TransferEndpoint(name="other")
        segment = other.open(owner.addresses, "kv")
        batch = other.read(segment, mine, [((0, mine.nbytes), (0, mine.nbytes))])
        waits = Call(other.wait, batch)
        other.wait(batch, bytes=1)
        other.close()
        mine[:] = 7
        waits.join()
        until = time.monotonic() + 20
        while owner.statistics()["open_served_batches"]:
            assert time.monotonic() < until
        assert (mine == 7).all()


def test_close_frees_the_address_while_a_thread_waits_for_notices(listen):
    owner = cachalot.TransferEndpoint(name="owner", listen=[listen])
    address = owner.addresses[0]
    waits = Call(owner.notices, timeout_s=60)
    owner.close()
    with cachalot.TransferEndpoint(name="owner", listen=[address]) as again:
        assert again.addresses == [address]
    waits.join(30)
    assert not waits.is_alive() and waits.result in ([], None)
