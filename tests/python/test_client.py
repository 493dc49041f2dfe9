"""The client: sharing, layer by layer, without waiting, objects."""

import collections.abc
import gc
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

import cachalot
from conftest import GEOMETRY, Engine, attach, pool_path, pool_totals, tokens_of


def load_in_another_process(pool, hashes, expected, answer):
    engine = Engine(pool, seed=2)
    with engine.client:
        hit = engine.client.load(engine.cache, hashes, range(8, 16))
        answer.put((hit, [engine.block(8 + i) for i in range(hit)] == expected))


def test_what_one_process_stores_another_loads(stored, pool):
    engine, hashes = stored
    spawn = multiprocessing.get_context("spawn")
    answer = spawn.Queue()
    expected = [engine.block(i) for i in range(8)]
    process = spawn.Process(target=load_in_another_process, args=(pool, hashes, expected, answer))
    process.start()
    assert answer.get(timeout=60) == (8, True)
    process.join()


@pytest.mark.parametrize("call", ["lookup", "load"])
def test_a_client_records_its_requests_as_a_trace(pool, tmp_path, call):
    file = tmp_path / "requests.jsonl"
    engine = Engine(pool, record_requests=file, recorded_call=call)
    with engine.client as client:
        hashes = client.hash_tokens(tokens_of(1, 3 * GEOMETRY.block_tokens))
        client.lookup(hashes)
        client.load(engine.cache, hashes, range(3))
    line, = (json.loads(text) for text in file.read_text().splitlines())
    assert line["hash_ids"] == [int(str(name)[:16], 16) for name in hashes]
    assert line["input_length"] == 3 * GEOMETRY.block_tokens
    with pytest.raises(cachalot.InvalidArgumentError):
        attach(pool, record_requests=file, recorded_call="store")


def test_lookup_and_load_take_hashes_in_any_form(stored, pool):
    engine, hashes = stored
    reader = Engine(pool, seed=2)
    with reader.client as client:
        array = np.asarray(hashes)
        assert array.shape == (8, 2) and array.dtype == np.uint64
        for form in (hashes, array, list(hashes), tuple(hashes), array.copy()):
            assert client.lookup(form) == 8
            assert client.load(reader.cache, form, np.arange(8)) == 8
        assert client.load(reader.cache, hashes[2:5], [3, 9, 1]) == 3
        assert [reader.block(p) for p in (3, 9, 1)] == [engine.block(p) for p in (2, 3, 4)]
        assert client.lookup(client.hash_tokens(tokens_of(99, 32))) == 0
        assert client.lookup([]) == 0


def test_the_last_block_of_a_chain_with_gaps(stored):
    engine, hashes = stored
    there, absent = np.asarray(hashes), np.asarray(engine.client.hash_tokens(tokens_of(99, 4 * GEOMETRY.block_tokens)))
    for chain, last in ((there, 8), (absent, 0), (absent[:0], 0), (np.concatenate([absent[:2], there[3:4], absent[2:]]), 3),
                        (np.concatenate([there[:1], absent]), 1)):
        assert engine.client.lookup_last(chain) == last
    with pytest.raises(TypeError, match="expected a sequence of BlockHash"):
        engine.client.lookup_last(hashes[0])


def test_pages_in_any_form(stored):
    engine, hashes = stored
    client, expected = engine.client, [engine.block(i) for i in range(8)]
    pages = np.arange(15, 7, -1)
    forms = [pages.astype(dtype) for dtype in (np.uint32, np.int32, np.int64, np.uint16, np.int8)]
    for form in [*forms, np.repeat(pages, 2)[::2], pages.tolist(), tuple(pages), memoryview(pages)]:
        for tensor in engine.tensors:
            tensor[:, 8:] = 0
        assert client.load(engine.cache, hashes, form) == 8
        assert [engine.block(p) for p in pages] == expected


def test_hashes_are_a_sequence_and_can_be_pickled(engine):
    hashes = engine.client.hash_tokens(tokens_of(3, 22).tolist())
    assert len(hashes) == 5  # whole blocks
    assert hashes == engine.client.hash_tokens(tokens_of(3, 22))
    assert pickle.loads(pickle.dumps(hashes)) == hashes
    assert list(hashes[1:3]) == [hashes[1], hashes[2]] and hashes[-1] == hashes[4]
    assert list(hashes[::-2]) == [hashes[4], hashes[2], hashes[0]]
    assert cachalot.BlockHash(str(hashes[0])) == hashes[0] != hashes[1]
    assert len({*hashes, *hashes}) == 5
    low, high = np.asarray(hashes)[3].tolist()
    assert (hashes[3].low, hashes[3].high) == (low, high)
    with pytest.raises(IndexError):
        hashes[5]


def test_hashes_are_what_a_sequence_is(engine):
    hashes = engine.client.hash_tokens(tokens_of(3, 32))
    same = engine.client.hash_tokens(tokens_of(3, 32))
    assert same is not hashes and hash(same) == hash(hashes) and len({same, hashes, hashes[:8]}) == 1
    assert len({hashes, hashes[1:], hashes[:0]}) == 3
    assert all(one != None and not one == None for one in (hashes, hashes[0], GEOMETRY))  # noqa: E711
    other = cachalot.BlockHash("0" * 31 + "1")
    assert hashes[5] in hashes and other not in hashes and 5 not in hashes and None not in hashes
    twice = cachalot.BlockHashes([*hashes, *hashes])
    assert twice.count(hashes[2]) == 2 and twice.count(other) == 0
    for bounds in ((), (2,), (3,), (-8,), (-9, 100), (1, -1), (-100, 3)):
        assert twice.index(hashes[2], *bounds) == tuple(twice).index(hashes[2], *bounds)
    for bounds in ((11,), (0, 2), (3, 10), (3, -6)):
        with pytest.raises(ValueError, match=f"value: {hashes[2]}, expected one of these hashes"):
            twice.index(hashes[2], *bounds)
    assert isinstance(hashes, collections.abc.Sequence)
    assert list(iter(hashes)) == [hashes[i] for i in range(8)] and list(reversed(hashes)) == list(hashes[::-1])


def test_a_slice_keeps_its_memory(engine):
    array = np.asarray(engine.client.hash_tokens(tokens_of(3, 32))[2:4])
    gc.collect()
    assert array.tolist() == np.asarray(engine.client.hash_tokens(tokens_of(3, 32))).tolist()[2:4]


def test_a_chain_goes_on_from_its_parent(stored):
    engine, hashes = stored
    longer = engine.client.hash_tokens(np.concatenate([tokens_of(1, 32), tokens_of(2, 8)]))
    assert longer[:8] == hashes
    for parent in (hashes[7], np.asarray(hashes)[7]):
        assert engine.client.store(engine.cache, longer[8:], [8, 9], parent=parent).blocks == 2
    assert engine.client.lookup(longer) == 10
    nowhere = cachalot.BlockHash("0" * 31 + "1")
    lost = engine.client.store(engine.cache, engine.client.hash_tokens(tokens_of(5, 4)), [0], parent=nowhere)
    assert (lost.blocks, lost.written, lost.reason) == (0, 0, "refused")


def test_two_models_dtypes_or_ranks_never_meet(pool):
    def geometry(**changes):
        state = {**GEOMETRY.__getstate__(), **changes}
        return cachalot.KvGeometry(**state)

    variants = [
        {},
        {"model": "test@2"},
        {"salt": "adapter"},
        {"geometry": geometry(dtype="bf16")},
        {"geometry": geometry(tp_size=2)},
        {"geometry": geometry(tp_size=2, tp_rank=1)},
        {"hash": "sha256_cbor"},
    ]
    engines = [Engine(pool, **variant) for variant in variants]
    for engine in engines:
        hashes = engine.client.hash_tokens(tokens_of(4, 8))
        assert engine.client.store(engine.cache, hashes, [0, 1]).written == 2
        assert [other.client.lookup(hashes) for other in engines] == [2 * (other is engine) for other in engines]
    for engine in engines:
        engine.client.detach()


def test_some_layers_and_some_tokens(stored, pool):
    engine, hashes = stored
    reader = Engine(pool, seed=2)
    with reader.client as client:
        for tensor in reader.tensors:
            tensor[:] = 0
        assert client.load(reader.cache, hashes, range(8), first_layer=1, layers=1) == 8
        assert np.array_equal(reader.tensors[1][:, :8], engine.tensors[1][:, :8])
        assert not reader.tensors[0].any() and not reader.tensors[2].any()
        reader.tensors[1][:] = 0
        tokens = [[(1, 3)], None, [(0, 1), (3, 4)]]
        assert client.load_tokens(reader.cache, hashes[:3], [5, 6, 7], tokens) == 3
        for page, source, chosen in ((5, 0, [1, 2]), (6, 1, [0, 1, 2, 3]), (7, 2, [0, 3])):
            for token in range(4):
                wanted = engine.tensors[2][:, source, token] if token in chosen else 0
                assert (reader.tensors[2][:, page, token] == wanted).all()


def test_layer_by_layer(engine, pool):
    client, hashes = engine.client, engine.client.hash_tokens(tokens_of(6, 16))
    storing = client.begin_store(engine.cache, hashes, range(4))
    for layer in range(3):
        storing.store_layer(layer)
    assert client.lookup(hashes) == 0  # not before it is finished
    assert storing.finish().written == 4
    for call in (storing.finish, lambda: storing.store_layer(0)):
        with pytest.raises(cachalot.InvalidArgumentError, match="finished already"):
            call()
    reader = Engine(pool, seed=2)
    with reader.client:
        loading = reader.client.begin_load(reader.cache, hashes, range(4))
        assert loading.blocks == 4
        for layer in range(3):
            assert loading.load_layer(layer) == 4
            assert np.array_equal(reader.tensors[layer][:, :4], engine.tensors[layer][:, :4])
    with pytest.raises(cachalot.InvalidArgumentError, match="detached"):
        loading.load_layer(0)


def test_what_is_begun_ends_with_the_client(engine):
    hashes = engine.client.hash_tokens(tokens_of(6, 16))
    storing = engine.client.begin_store(engine.cache, hashes, range(4))
    storing.store_layer(0)
    engine.client.detach()
    for call in (lambda: storing.store_layer(1), storing.finish):
        with pytest.raises(cachalot.InvalidArgumentError, match="detached"):
            call()


def test_a_cache_is_unregistered_when_its_layer_calls_have_ended(stored):
    engine, hashes = stored
    client = engine.client
    shape = dict(layout="vllm_kbnhc", tensors=engine.tensors, pages=16)
    client.unregister_cache(engine.cache)

    cache = client.register_cache(**shape)
    with client.begin_load(cache, hashes, range(8)) as loading:
        loading.load_layer(0)
        with pytest.raises(cachalot.BusyError, match=f"layer load of cache {cache.number} is open"):
            client.unregister_cache(cache)
    client.unregister_cache(cache)
    with pytest.raises(cachalot.InvalidArgumentError, match="layer load: it has ended"):
        loading.load_layer(1)
    loading.end()

    cache = client.register_cache(**shape)
    storing = client.begin_store(cache, client.hash_tokens(tokens_of(9, 8)), range(2))
    with pytest.raises(cachalot.BusyError, match=f"layer store of cache {cache.number} is open"):
        client.unregister_cache(cache)
    storing.end()
    client.unregister_cache(cache)
    with pytest.raises(cachalot.InvalidArgumentError, match="layer store: it has ended"):
        storing.finish()

    cache = client.register_cache(**shape)
    loading = client.begin_load(cache, hashes, range(8))
    storing = client.begin_store(cache, client.hash_tokens(tokens_of(9, 8)), range(2))
    for layer in range(3):
        assert loading.load_layer(layer) == 8
        storing.store_layer(layer)
    assert storing.finish().blocks == 2
    client.unregister_cache(cache)  # what is complete holds nothing


@pytest.mark.parametrize("order", ["layer_first", "page_first", "page_first_direct"])
def test_layer_by_layer_in_every_block_order(pool, order):
    writer = Engine(pool, block_order=order, checksums=True)
    reader = Engine(pool, seed=2, block_order=order, checksums=True)
    hashes = writer.client.hash_tokens(tokens_of(10, 16))
    assert writer.client.store(writer.cache, hashes, range(4)).written == 4
    loading = reader.client.begin_load(reader.cache, hashes, range(4))
    assert [loading.load_layer(layer) for layer in range(3)] == [4, 4, 4]
    assert [reader.block(page) for page in range(4)] == [writer.block(page) for page in range(4)]
    assert reader.client.statistics.damaged_blocks == 0


def test_calls_that_do_not_wait(engine, pool):
    hashes = engine.client.hash_tokens(tokens_of(7, 24))
    storing = engine.client.store_async(engine.cache, hashes, range(6))
    assert storing.result() == storing.result() == 6 and storing.done()
    reader = Engine(pool, seed=2)
    with reader.client as client:
        loading = client.load_async(reader.cache, hashes, range(4, 10))
        assert loading.wait() and loading.done() and loading.result(timeout=0) == 6
        assert reader.block(9) == engine.block(5)
        with pytest.raises(cachalot.TimeoutError):
            client.load_async(reader.cache, hashes, range(6), timeout=0)
        for _ in range(100):  # the handles need not be kept
            client.load_async(reader.cache, hashes, range(6))
        threads = [threading.Thread(target=loading.result) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        last = client.load_async(reader.cache, hashes, range(6))
    assert last.wait()  # what became of it is known after detaching


def test_hashes_that_change_during_a_store_do_not_name_its_blocks():
    serve = dict(pool=pool_path(), block_bytes=GEOMETRY.block_bytes, capacity_blocks=256)
    keeper = cachalot.EmbeddedKeeper(**serve, keep_pool=True)
    engine = Engine(keeper.pool, pages=64, recovery_s=60, keeper_timeout_s=60)
    hashes = engine.client.hash_tokens(tokens_of(1, 4 * 64))
    given, others = np.array(hashes), np.array(engine.client.hash_tokens(tokens_of(2, 4 * 64)))
    has_begun = threading.Event()

    class Pages:
        def __iter__(self):
            has_begun.set()
            return iter(range(64))

    keeper.stop()  # the store cannot end before the next one
    storing = threading.Thread(target=engine.client.store, args=(engine.cache, given, Pages()))
    storing.start()
    has_begun.wait()
    given[:] = others
    with cachalot.EmbeddedKeeper(**serve) as keeper:
        storing.join()
        with engine.client as client:
            assert client.lookup(hashes) == 64 and client.lookup_last(others) == 0
    os.unlink(serve["pool"])


def test_handles_that_were_dropped_make_room_for_calls(engine):
    most = 1 << 16  # as AsyncCalls::kMostUnclaimed
    calls = [engine.client.load_async(engine.cache, [], []) for _ in range(most)]
    with pytest.raises(cachalot.NoSpaceError, match=f"{most} calls are under way or unclaimed"):
        engine.client.load_async(engine.cache, [], [])
    del calls
    assert engine.client.load_async(engine.cache, [], []).result() == 0


def test_a_store_that_does_not_wait_says_why_it_is_short(engine):
    hashes = engine.client.hash_tokens(tokens_of(11, 8))
    orphan = engine.client.store_async(engine.cache, hashes[1:], range(1), parent=hashes[0])
    assert orphan.result() == 0 and orphan.reason == "refused"
    whole = engine.client.store_async(engine.cache, hashes, range(2))
    assert whole.result() == 2 and whole.reason is None


def test_what_was_begun_is_carried_out_when_the_client_detaches(engine, pool):
    prompts = [engine.client.hash_tokens(tokens_of(prompt, 8)) for prompt in range(20, 60)]
    calls = [engine.client.store_async(engine.cache, hashes, range(2)) for hashes in prompts]
    engine.client.detach()
    assert [call.result() for call in calls] == [2] * len(calls)


def test_what_is_cancelled_says_so(stored):
    engine, hashes = stored
    for _ in range(1000):
        calls = [engine.client.load_async(engine.cache, hashes, range(8)) for _ in range(8)]
        calls[-1].cancel()
        assert all(call.result() == 8 for call in calls[:-1])
        try:
            calls[-1].result()
        except cachalot.CancelledError:
            return
    pytest.fail("nothing was ever cancelled")


def test_objects(engine):
    client = engine.client
    memory = np.arange(2048, dtype=np.uint8)
    answer = bytearray(300)
    client.register_buffer(memory)
    client.register_buffer(answer)
    assert client.put("key", [memory[:100], memory[500:700]]) == 300
    assert client.put(b"key", [memory[:300]]) == 0
    assert client.exists(["key", b"key", "other"]) == [True, True, False]
    assert client.get("key", answer) == 300
    assert answer == memory[:100].tobytes() + memory[500:700].tobytes()
    with pytest.raises(cachalot.NotFoundError):
        client.get("other", [answer])
    with pytest.raises(cachalot.InvalidArgumentError, match="part 0: .* no registered buffer"):
        client.put("third", [bytearray(8)])
    with pytest.raises(cachalot.InvalidArgumentError, match="part 0: is not contiguous"):
        client.put("third", [memory[::2]])
    with pytest.raises(BufferError):
        answer.append(1)  # held
    client.unregister_buffer(answer)
    answer.append(1)
    with pytest.raises(cachalot.NotFoundError):
        client.unregister_buffer(answer)


def test_tensors_are_kept_alive_while_they_are_registered(stored):
    engine, hashes = stored
    client = engine.client
    for end in (client.unregister_cache, lambda _: client.detach()):
        tensors = [np.zeros((2, 16, 4, 2, 32), np.float16) for _ in range(3)]
        alive = [weakref.ref(tensor) for tensor in tensors]
        cache = client.register_cache("vllm_kbnhc", tensors, pages=16)
        del tensors
        gc.collect()
        assert client.load(cache, hashes, range(8)) == 8
        assert all(np.array_equal(a()[:, :8], b[:, :8]) for a, b in zip(alive, engine.tensors))
        end(cache)
        gc.collect()
        assert not any(tensor() is not None for tensor in alive)


class Tensor(np.ndarray):
    """An array that can hold something."""


HELD = {
    "the client": lambda client, cache, hashes: client,
    "a cache": lambda client, cache, hashes: cache,
    "a call": lambda client, cache, hashes: client.load_async(cache, hashes, range(8)),
    "layers to load": lambda client, cache, hashes: client.begin_load(cache, hashes, range(8)),
    "layers to store": lambda client, cache, hashes: client.begin_store(cache, hashes[:1], range(1)),
}


@pytest.mark.parametrize("hold", HELD.values(), ids=HELD)
def test_a_tensor_that_holds_its_client_is_collected_with_it(stored, pool, hold):
    _, hashes = stored

    def make():
        client = attach(pool)
        tensors = [np.zeros((2, 16, 4, 2, 32), np.float16).view(Tensor) for _ in range(3)]
        buffer = np.zeros(8, np.uint8).view(Tensor)
        cache = client.register_cache("vllm_kbnhc", tensors, pages=16)
        client.register_buffer(buffer)
        buffer.held = tensors[2].held = hold(client, cache, hashes)
        return client, buffer, weakref.ref(tensors[2]), weakref.ref(buffer)

    for _ in range(40):  # more than there are slots: they detach
        client, _, *alive = make()
        gc.collect()
        assert all(one() is not None for one in alive) and client.lookup(hashes) == 8
        del client, _
        gc.collect()
        assert [one() for one in alive] == [None, None]


def calls_of(engine, hashes):
    client = engine.client
    return {
        "lookup": lambda: client.lookup(hashes),
        "load": lambda: client.load(engine.cache, hashes, range(8)),
        "store": lambda: client.store(engine.cache, hashes, range(8)),
        "wait": lambda: client.load_async(engine.cache, hashes, range(8)).wait(),
    }


@pytest.mark.parametrize("name", ["lookup", "load", "store", "wait"])
def test_the_gil_is_released(stored, name):
    engine, hashes = stored
    call = calls_of(engine, hashes)[name]
    go, ran = threading.Lock(), []
    interval = sys.getswitchinterval()
    go.acquire()
    other = threading.Thread(target=lambda: (go.acquire(), ran.append(True)))
    other.start()
    sys.setswitchinterval(1000)  # from here on only a thread that releases the GIL lets others run
    try:
        go.release()
        for _ in range(20_000):
            call()
            if ran:
                break
    finally:
        has_run = bool(ran)
        sys.setswitchinterval(interval)
        other.join()
    assert has_run


@pytest.mark.parametrize("end", ["detach", "close"])
def test_many_threads_and_one_that_detaches(pool, end):
    engine = Engine(pool)
    hashes = engine.client.hash_tokens(tokens_of(8, 32))
    engine.client.store(engine.cache, hashes, range(8))
    wrong = []

    def run(first):
        try:
            while True:
                if engine.client.load(engine.cache, hashes[:4], range(first, first + 4)) != 4:
                    wrong.append("miss")
                engine.client.store(engine.cache, hashes, range(8))
        except cachalot.InvalidArgumentError as error:
            if "detached" not in str(error):
                wrong.append(str(error))
        except Exception as error:
            wrong.append(repr(error))

    threads = [threading.Thread(target=run, args=(first,)) for first in (8, 12)]
    [thread.start() for thread in threads]
    while engine.client.statistics.loads < 100:
        pass
    getattr(engine.client, end)()
    [thread.join() for thread in threads]
    assert wrong == []


def test_layer_loads_come_and_go_while_the_client_detaches(pool):
    # In a process of its own: what it is about ends the process.
    program = """
import sys, threading
from conftest import Engine, tokens_of
import cachalot

sys.setswitchinterval(1e-5)
for _ in range(200):
    engine = Engine(sys.argv[1])
    client = engine.client
    hashes = client.hash_tokens(tokens_of(1, 16))
    client.store(engine.cache, hashes, range(4))
    begun = threading.Semaphore(0)

    def begin(most):
        held = []
        try:
            while True:
                held.append(client.begin_load(engine.cache, hashes, range(4)))
                begun.release()
                if len(held) > most:
                    del held[: most // 2]
        except cachalot.InvalidArgumentError as error:
            assert "detached" in str(error), error

    threads = [threading.Thread(target=begin, args=(20 + i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(100):
        begun.acquire()
    client.detach()
    for thread in threads:
        thread.join()
"""
    places = (os.path.dirname(__file__), os.path.dirname(os.path.dirname(cachalot.__file__)))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(place) for place in places)}
    done = subprocess.run([sys.executable, "-c", program, pool], env=environment,
                          capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")


def test_statistics(stored):
    engine, hashes = stored
    engine.client.load(engine.cache, hashes, range(8))
    statistics = engine.client.statistics
    assert statistics.loaded_blocks == statistics.stored_blocks == 8
    assert statistics.loaded_bytes == 8 * GEOMETRY.block_bytes
    assert statistics.as_dict()["loads"] == 1
    assert "loaded_blocks=8" in repr(statistics)


def counts_of(client):
    now = client.statistics
    return now.prompts, now.prompt_blocks, now.used_pool_blocks, now.used_peer_blocks, now.used_storage_blocks


def test_a_prompt_counts_once(stored, pool):
    """16 blocks are asked for and 8 of them used, with a lookup before the load and without one; then none of 4."""
    engine, hashes = stored
    client, longer = engine.client, engine.client.hash_tokens(tokens_of(1, 64))
    assert longer[7] == hashes[7]
    assert client.statistics.hit_rate is None
    hit = client.lookup(longer)
    assert client.load(engine.cache, longer[:hit], range(hit)) == 8
    assert (counts_of(client), client.statistics.hit_rate) == ((1, 16, 8, 0, 0), 0.5)
    assert client.load_async(engine.cache, longer, range(16)).result() == 8
    assert (counts_of(client), client.statistics.hit_rate) == ((2, 32, 16, 0, 0), 0.5)
    other = client.hash_tokens(tokens_of(77, 16))
    assert client.lookup(other) == 0
    client.store(engine.cache, other, range(4))
    assert counts_of(client) == (3, 36, 16, 0, 0)
    with pytest.raises(cachalot.InvalidArgumentError, match="counts_prompts is not set"):
        client.count_prompt(1)
    client.detach()
    assert pool_totals(pool)["hit_rate"] == 16 / 36


def test_a_caller_may_count_its_prompts_itself(pool):
    with attach(pool, counts_prompts=True) as client:
        client.lookup(client.hash_tokens(tokens_of(1, 32)))
        client.count_prompt(10, from_pool=2, from_peers=3, from_storage=4)
        client.count_prompt(10)
        assert (counts_of(client), client.statistics.hit_rate) == ((2, 20, 2, 3, 4), 9 / 20)
        with pytest.raises(cachalot.InvalidArgumentError, match="expected at most the 3 that were asked for"):
            client.count_prompt(3, from_pool=2, from_storage=2)
    totals = pool_totals(pool)
    assert (totals["used_blocks"], totals["hit_rate"]) == (9, 9 / 20)


def test_a_client_that_has_detached_holds_no_slot_however_long_it_is_kept(pool):
    kept = []  # as the traceback of an error does
    for _ in range(40):  # more than there are slots
        with attach(pool) as client:
            kept.append(client)
    assert attach(pool).lookup(client.hash_tokens(tokens_of(1, 32))) == 0


def test_a_client_that_is_collected_has_detached(pool):
    for _ in range(40):  # more than there are slots
        attach(pool)
        gc.collect()


def test_the_names_of_namespaces_outlive_a_keeper(tmp_path):
    path = f"/dev/shm/cachalot_names_{os.getpid()}"
    sizes = {"pool": path, "block_bytes": GEOMETRY.block_bytes, "capacity_blocks": 8, "keep_pool": True}
    names = []
    try:
        for model in ("first", "second " + 500 * "x"):
            with cachalot.EmbeddedKeeper(**sizes) as keeper:
                assert keeper.is_serving
                with cachalot.Client(pool=path, model=model, geometry=GEOMETRY, salt="secret") as client:
                    names.append(f"{model} | {GEOMETRY.fingerprint()}"[:416])
                    assert client.namespaces() == names
            assert not keeper.is_serving
    finally:
        os.unlink(path)
