"""What is refused, and in which words."""

import builtins
import errno
import os
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

import cachalot
from cachalot import errors
from conftest import GEOMETRY, Engine, attach, tokens_of

SHAPE = (2, 16, 4, 2, 32)


def tensors():
    return [np.zeros(SHAPE, np.float16) for _ in range(3)]


def read_only():
    tensor = np.zeros(SHAPE, np.float16)
    tensor.flags.writeable = False
    return tensor


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (np.zeros(SHAPE, np.float32), r"tensor 1: has numbers of 4 bytes \(float32\), expected 2 \(f16\)"),
        (np.zeros((*SHAPE[:-1], 64), np.float16)[..., ::2], "tensor 1: is not contiguous"),
        (np.zeros(SHAPE, np.float16).transpose(1, 0, 2, 3, 4), "tensor 1: is not contiguous"),
        (read_only(), "tensor 1: is read-only"),
        (bytes(8), r"tensor 1: has numbers of 1 bytes \(uint8\)"),
        (np.zeros((2, 16, 4, 2, 31), np.float16), "tensor 1"),
        (np.zeros(SHAPE, ">f2"), "tensor 1: has numbers of big-endian float16, expected them in this machine's byte order"),
        (np.zeros(SHAPE, [("field", "f2")]), r"tensor 1: has records of several fields, expected numbers \(f16\)"),
    ],
)
def test_a_tensor_that_does_not_fit(engine, tensor, words):
    given = tensors()
    given[1] = tensor
    with pytest.raises(cachalot.InvalidArgumentError, match=words):
        engine.client.register_cache("vllm_kbnhc", given, pages=16)


def test_a_cache_that_does_not_fit(engine):
    with pytest.raises(cachalot.InvalidArgumentError, match="layout: nonsense"):
        engine.client.register_cache("nonsense", tensors(), pages=16)
    with pytest.raises(cachalot.UnsupportedError, match="mla_joint is not for grouped"):
        engine.client.register_cache("mla_joint", tensors(), pages=16)
    with pytest.raises(cachalot.InvalidArgumentError):
        engine.client.register_cache("vllm_kbnhc", tensors()[:2], pages=16)
    with pytest.raises(cachalot.InvalidArgumentError):
        engine.client.register_cache("vllm_kbnhc", tensors(), pages=17)
    same = tensors()
    same[2] = same[0]
    with pytest.raises(cachalot.InvalidArgumentError, match="tensors 0 and 2 overlap"):
        engine.client.register_cache("vllm_kbnhc", same, pages=16)


def test_a_keyword_that_a_call_does_not_have(engine, pool):
    def refused(words, call):
        with pytest.raises(TypeError, match="^" + re.escape(words)):
            call()

    cache = dict(layout="vllm_kbnhc", tensors=tensors(), pages=16)
    refused("Client: unexpected keyword 'modell' (did you mean 'model'?)",
            lambda: cachalot.Client(pool=pool, modell="test@1", geometry=GEOMETRY))
    refused("register_cache: unexpected keyword 'page_token' (did you mean 'page_tokens'?)",
            lambda: engine.client.register_cache(**cache, page_token=4))
    refused("register_cache: unexpected keyword 'x', expected one of layout, tensors, pages, page_tokens, page_stride_bytes, strides, "
            "device, stream", lambda: engine.client.register_cache(**cache, x=4))
    refused("EmbeddedKeeper: unexpected keyword 'block_byte' (did you mean 'block_bytes'?)",
            lambda: cachalot.EmbeddedKeeper(pool=pool, block_byte=4096))
    refused("pool: None", lambda: cachalot.Client(model="test@1", geometry=GEOMETRY))
    refused("model: None", lambda: cachalot.Client(pool=pool, geometry=GEOMETRY))
    refused("pages: None", lambda: engine.client.register_cache("vllm_kbnhc", tensors()))


@pytest.mark.parametrize(
    ("pages", "error"),
    [
        (range(9, 17), cachalot.InvalidArgumentError),  # page 16
        (range(7), cachalot.InvalidArgumentError),
        ([-1] * 8, cachalot.InvalidArgumentError),
        ([2**40] * 8, cachalot.InvalidArgumentError),
        (np.full(8, -1), cachalot.InvalidArgumentError),
        (np.zeros(8), cachalot.InvalidArgumentError),
        (np.zeros((8, 1), np.uint32), cachalot.InvalidArgumentError),
        ([2**63] * 8, cachalot.InvalidArgumentError),
        (np.full(8, 2**63, np.uint64), cachalot.InvalidArgumentError),
        (np.arange(8, dtype=">u4"), cachalot.InvalidArgumentError),
        (["a"] * 8, TypeError),
        ([0.5] * 8, TypeError),
        (None, TypeError),
    ],
)
def test_pages_that_do_not_fit(stored, pages, error):
    engine, hashes = stored
    before = [tensor.copy() for tensor in engine.tensors]
    for call in (engine.client.load, engine.client.store, engine.client.load_async, engine.client.begin_load):
        with pytest.raises(error):
            call(engine.cache, hashes, pages)
    assert all(np.array_equal(a, b) for a, b in zip(before, engine.tensors))


@pytest.mark.parametrize(
    ("hashes", "error"),
    [
        (np.zeros((3, 2), np.int64), cachalot.InvalidArgumentError),
        (np.zeros((3, 3), np.uint64), cachalot.InvalidArgumentError),
        (np.zeros((3, 4), np.uint64)[:, ::2], cachalot.InvalidArgumentError),
        (np.zeros((3, 2), ">u8"), cachalot.InvalidArgumentError),
        (np.zeros((3, 2), np.float64), cachalot.InvalidArgumentError),
        (np.zeros(6, np.uint64), cachalot.InvalidArgumentError),
        ([1, 2], TypeError),
        (None, TypeError),
        ("text", TypeError),
    ],
)
def test_hashes_that_are_none(engine, hashes, error):
    with pytest.raises(error):
        engine.client.lookup(hashes)


def released():
    view = memoryview(bytearray(8))
    view.release()
    return view


def test_what_is_refused_is_named_with_its_value(stored):
    engine, hashes = stored
    client, cache = engine.client, engine.cache
    refusals = {
        "pages: number 1 is 9223372036854775808, expected 0 to 4294967295": lambda: client.load(cache, hashes, [0, 2**63]),
        "pages: number 0 is -1, expected 0 to 4294967295": lambda: client.load(cache, hashes, np.full(8, -1)),
        "pages: -1, expected 0 to 4294967295": lambda: client.register_cache("vllm_kbnhc", tensors(), pages=-1),
        "pages: 4294967296, expected": lambda: client.register_cache("vllm_kbnhc", tensors(), pages=2**32),
        "pages: a number of thousands of digits": lambda: client.register_cache("vllm_kbnhc", tensors(), pages=10**9999),
        "page_tokens: -4, expected": lambda: client.register_cache("vllm_kbnhc", tensors(), 16, page_tokens=-4),
        "page_stride_bytes: 18446744073709551616, expected 0 to 18446744073709551615": lambda: client.register_cache(
            "vllm_kbnhc", tensors(), 16, page_stride_bytes=2**64
        ),
        "first_layer: -1, expected": lambda: client.load(cache, hashes, range(8), first_layer=-1),
        "layers: 4294967296, expected": lambda: client.load_async(cache, hashes, range(8), layers=2**32),
        "layer: -1, expected": lambda: client.begin_load(cache, hashes, range(8)).load_layer(-1),
        "hashes: an array (3, 3) of uint64, expected (n, 2) of uint64": lambda: client.lookup(np.zeros((3, 3), np.uint64)),
        "hashes: an array (3, 2) of big-endian uint64, expected": lambda: client.lookup(np.zeros((3, 2), ">u8")),
        "parent: an array (2,) of float64, expected": lambda: client.store(cache, hashes, range(8), parent=np.zeros(2)),
        "parent: an array (2,) of big-endian uint64": lambda: client.store(
            cache, hashes, range(8), parent=np.zeros(2, ">u8")
        ),
        "tokens: an array (4,) of float32, expected integers in one dimension": lambda: client.hash_tokens(
            np.zeros(4, np.float32)
        ),
        "tokens: number 1 is -5, expected": lambda: client.hash_tokens([1, -5, 2, 3]),
        "timeout: 1" + "0" * 49 + " s, expected a time that fits a float": lambda: client.store(
            cache, hashes, range(8), timeout=10**400
        ),
        "timeout: -1 s, expected 0 or more": lambda: client.load_async(cache, hashes, range(8)).result(timeout=-1),
        "timeout: nan s, expected": lambda: client.load_async(cache, hashes, range(8)).wait(float("nan")),
        "keeper_timeout_s: -1 s, expected 0 or more": lambda: attach("/dev/shm/no_pool", keeper_timeout_s=-1),
        "recovery_s: a number of thousands of digits s, expected": lambda: attach("/dev/shm/no_pool", recovery_s=10**9999),
        "buffer: memoryview does not export its memory: operation forbidden on released": lambda: client.register_buffer(
            released()
        ),
        "pages: number 0 and number 7 are both page 3": lambda: client.load(cache, hashes, [3, 4, 5, 6, 7, 8, 9, 3]),
    }
    for words, call in refusals.items():
        with pytest.raises(cachalot.InvalidArgumentError) as caught:
            call()
        assert words in str(caught.value)
    for words, call in {
        "pages: number 1 is 0.5 (float), expected an int": lambda: client.load(cache, hashes, [0, 0.5]),
        "pages: 'x' (str), expected an int": lambda: client.register_cache("vllm_kbnhc", tensors(), pages="x"),
        "first_layer: 1.0 (float), expected an int": lambda: client.load(cache, hashes, range(8), first_layer=1.0),
        "pages: 5 (int), expected a sequence of integers": lambda: client.load(cache, hashes, 5),
        "(BlockHash), expected a sequence of BlockHash": lambda: client.lookup(hashes[0]),
        "parent: 5 (int), expected a BlockHash": lambda: client.store(cache, hashes, range(8), parent=5),
        "keys: 'key' (str), expected a sequence of str or bytes": lambda: client.exists("key"),
        "pool: 5 (int), expected a path": lambda: attach(5),
        "pool: 6 (int), expected a path": lambda: cachalot.EmbeddedKeeper(pool=6),
        "dtype: 5 (int), expected a str": lambda: cachalot.KvGeometry(dtype=5),
        "tensor 0: None (NoneType), expected memory": lambda: client.register_cache("vllm_kbnhc", [None], pages=16),
        "tensor 0: 'a' (str), expected memory": lambda: client.register_cache("vllm_kbnhc", "ab", pages=16),
        "buffer: 5 (int), expected memory": lambda: client.register_buffer(5),
        "buffer: None (NoneType), expected memory": lambda: client.unregister_buffer(None),
        "part 1: 'x' (str), expected memory": lambda: client.put("key", [b"", "x"]),
        "timeout: 'soon' (str), expected a number of seconds": lambda: client.load(cache, hashes, range(8), timeout="soon"),
        "keeper_timeout_s: None (NoneType), expected a number of seconds": lambda: attach(
            "/dev/shm/no_pool", keeper_timeout_s=None
        ),
        "recovery_s: 'x' (str), expected a number of seconds": lambda: attach("/dev/shm/no_pool", recovery_s="x"),
    }.items():
        with pytest.raises(TypeError) as caught:
            call()
        assert words in str(caught.value)


def test_text_in_any_letters_is_named(stored):
    engine, hashes = stored
    for words, call in {
        "geometry: '" + "é" * 49 + " (str), expected a KvGeometry": lambda: attach("/dev/shm/no_pool", geometry="é" * 60),
        "host: '" + "日本語" * 16 + "日 (str), expected an int": lambda: attach("/dev/shm/no_pool", host="日本語" * 20),
        "keys: '" + "😀" * 49 + " (str), expected a sequence": lambda: engine.client.exists("😀" * 100),
        "pages: number 0 is '" + "é" * 49 + " (str), expected": lambda: engine.client.load(engine.cache, hashes, ["é" * 50] * 8),
        "host: '\\udc80' (str), expected an int": lambda: attach("/dev/shm/no_pool", host="\udc80"),
    }.items():
        with pytest.raises(TypeError) as caught:
            call()
        assert words in str(caught.value)


@pytest.mark.parametrize("option", ["copy_threads", "workers", "grant_blocks"])
def test_numbers_beyond_reason_are_refused_with_their_bound(pool, option):
    for value in (0, 257, 10**9, -1, 2**32, 2**70):
        with pytest.raises(cachalot.InvalidArgumentError, match=f"{option}: {value} is not within 1 to 256"):
            attach(pool, **{option: value})


def test_cpus_that_cannot_be_read(pool):
    for value in ("0", "0=0;1=1", "0=a"):
        with pytest.raises(cachalot.InvalidArgumentError, match=f"copy_cpus: '{value}': expected"):
            attach(pool, copy_cpus=value)
    attach(pool, copy_cpus="0=0").detach()
    attach(pool, copy_cpus="auto").detach()


def test_a_keeper_that_cannot_be(pool):
    path = pool + ".none"
    for options, words in {
        "clients": ({"clients": -1}, "clients: -1, expected"),
        "capacity": ({"capacity_blocks": 2**64}, "capacity_blocks: 18446744073709551616, expected"),
        "block": ({"block_bytes": -1}, "block_bytes: -1, expected"),
    }.values():
        with pytest.raises(cachalot.InvalidArgumentError, match=re.escape(words)):
            cachalot.EmbeddedKeeper(pool=path, **{"block_bytes": 4096, "capacity_blocks": 4, **options})


def test_layers_and_tokens_out_of_range(stored):
    engine, hashes = stored
    load, load_tokens = engine.client.load, engine.client.load_tokens
    for layers in ({"first_layer": 3}, {"first_layer": 2, "layers": 2}, {"layers": 0}):
        with pytest.raises(cachalot.InvalidArgumentError):
            load(engine.cache, hashes, range(8), **layers)
    for tokens in ([[(0, 5)]], [[(2, 1)]], [[(2, 3), (0, 1)]], [[(1,)]], [], [[(0, 1)]] * 2):
        with pytest.raises(cachalot.InvalidArgumentError):
            load_tokens(engine.cache, hashes[:1], [0], tokens)


def test_deadlines(stored):
    engine, hashes = stored
    for call in (engine.client.load, engine.client.store):
        with pytest.raises(cachalot.TimeoutError) as caught:
            call(engine.cache, hashes, range(8), timeout=0)
        assert isinstance(caught.value, builtins.TimeoutError) and caught.value.code == "timeout"
        assert caught.value.detail == 0  # blocks that were done in time
        for timeout in (-1, float("nan")):
            with pytest.raises(cachalot.InvalidArgumentError, match="timeout"):
                call(engine.cache, hashes, range(8), timeout=timeout)
    assert engine.client.load(engine.cache, hashes, range(8), timeout=float("inf")) == 8


def test_a_timeout_bounds_the_wait_for_a_keeper_that_is_gone(pool):
    path = pool + ".gone"
    keeper = cachalot.EmbeddedKeeper(pool=path, block_bytes=GEOMETRY.block_bytes, capacity_blocks=16)
    engine = Engine(path, keeper_timeout_s=600, recovery_s=600)
    hashes = engine.client.hash_tokens(tokens_of(1, 16))
    keeper.stop()
    for _ in range(2):
        with pytest.raises(cachalot.TimeoutError):
            engine.client.store(engine.cache, hashes, range(4), timeout=0.05)
        with pytest.raises(cachalot.TimeoutError):
            engine.client.store_async(engine.cache, hashes, range(4), timeout=0.05).result(timeout=60)


def test_another_clients_cache(stored, pool):
    engine, hashes = stored
    other = Engine(pool)
    with other.client:
        with pytest.raises(cachalot.InvalidArgumentError, match="another client"):
            other.client.load(engine.cache, hashes, range(8))
    engine.client.unregister_cache(engine.cache)
    with pytest.raises(cachalot.NotFoundError):
        engine.client.load(engine.cache, hashes, range(8))


def calls_with_blocks(client, cache, hashes):
    return [
        lambda: client.lookup(hashes),
        lambda: client.load(cache, hashes, range(8)),
        lambda: client.store(cache, hashes, range(8)),
        lambda: client.load_async(cache, hashes, range(8)),
        lambda: client.begin_load(cache, hashes, range(8)),
    ]


@pytest.mark.parametrize("end", ["detach", "close"])
def test_use_after_detach(stored, end):
    engine, hashes = stored
    client = engine.client
    loading = client.begin_load(engine.cache, hashes, range(8))
    getattr(client, end)()
    getattr(client, end)()
    calls = [
        *calls_with_blocks(client, engine.cache, hashes),
        lambda: client.begin_store(engine.cache, hashes, range(8)),
        lambda: client.register_cache("vllm_kbnhc", tensors(), pages=16),
        lambda: client.unregister_cache(engine.cache),
        lambda: client.load_tokens(engine.cache, hashes, range(8), [None] * 8),
        lambda: client.load_head_tokens(engine.cache, hashes, range(8), [[[]] * 2] * 3),
        lambda: client.store_async(engine.cache, hashes, range(8)),
        lambda: client.exists(["key"]),
        lambda: client.register_buffer(bytearray(8)),
        lambda: client.unregister_buffer(bytearray(8)),
        lambda: client.put("key", [bytearray(8)]),
        lambda: client.get("key", [bytearray(8)]),
        lambda: loading.blocks,
        lambda: loading.load_layer(0),
    ]
    for call in calls:
        with pytest.raises(cachalot.InvalidArgumentError, match="detached"):
            call()
    # What needs no pool is still there: it cannot fail.
    assert client.statistics.stored_blocks == 8
    assert client.geometry == GEOMETRY and client.block_bytes == GEOMETRY.block_bytes
    assert client.hash_tokens(tokens_of(1, 32)) == hashes and "Client(" in repr(client)


def in_a_forked_child(check):
    """Whether check() is true in a forked child, which ends right after it."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if check() else 1)
        except BaseException:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork_after_attach(stored, pool):
    import gc

    engine, hashes = stored
    client = engine.client
    loading = client.begin_load(engine.cache, hashes, range(8))
    storing = client.begin_store(engine.cache, client.hash_tokens(tokens_of(9, 8)), [0, 1])
    running = client.load_async(engine.cache, hashes, range(8))
    keeper = cachalot.EmbeddedKeeper(pool=pool + ".second", block_bytes=4096, capacity_blocks=4)

    def child():
        nonlocal loading, storing, running, keeper, client
        calls = [
            *calls_with_blocks(client, engine.cache, hashes),
            lambda: client.has_storage(),
            lambda: client.create_context(hashes, 9),
            lambda: client.renew_context(1, 9),
            lambda: client.drop_context(1),
            lambda: client.retain("session", hashes, 9),
            lambda: loading.load_layer(0),
            lambda: storing.store_layer(0),
            lambda: running.wait(),
            lambda: keeper.stop(),
            lambda: client.detach(),
        ]
        for call in calls:
            try:
                call()
                return False
            except cachalot.UnsupportedError:
                pass
        if client.namespaces() != []:
            return False
        del loading, storing, running, keeper, calls  # nothing of it is the child's to end
        engine.client = client = None
        gc.collect()
        with attach(pool) as own:  # attached again, the child works
            return own.lookup(hashes) == 8

    assert in_a_forked_child(child)
    assert client.lookup(hashes) == 8 and loading.load_layer(0) == 8 and running.result() == 8
    keeper.stop()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_leaves_the_with_of_its_parent(pool):
    child = -1
    try:
        with cachalot.EmbeddedKeeper(pool=pool + ".own", block_bytes=GEOMETRY.block_bytes, capacity_blocks=16) as keeper:
            with attach(keeper.pool) as client:
                child = os.fork()
                if child == 0:
                    raise SystemExit(7)
                _, status = os.waitpid(child, 0)
                assert client.lookup(client.hash_tokens(tokens_of(1, 4))) == 0 and os.path.exists(keeper.pool)
    except BaseException as left:
        if child == 0:
            os._exit(left.code if type(left) is SystemExit else 1)
        raise
    assert os.waitstatus_to_exitcode(status) == 7


def test_what_the_body_of_a_with_raises_goes_on(pool):
    class Own(BaseException):
        pass

    def end_without_keeper(raised):
        keeper = cachalot.EmbeddedKeeper(pool=pool + ".own", block_bytes=GEOMETRY.block_bytes, capacity_blocks=16)
        with attach(keeper.pool):
            keeper.stop()
            if raised:
                raise raised

    for raised in (Own("body"), KeyError("body")):
        with pytest.raises(type(raised)) as caught:
            end_without_keeper(raised)
        assert caught.value is raised
        assert ["no keeper serves this client" in note for note in getattr(raised, "__notes__", ())] in ([], [True])
        assert bool(getattr(raised, "__notes__", ())) == hasattr(raised, "add_note")
    with pytest.raises(cachalot.NoKeeperError):
        end_without_keeper(None)


def test_attaching_to_what_cannot_be_served(pool, tmp_path):
    with pytest.raises(cachalot.NotFoundError, match="there is no such pool") as caught:
        attach("/dev/shm/there is no such pool")
    assert isinstance(caught.value, LookupError) and caught.value.code == "not_found"
    (tmp_path / "text").write_text("no pool" * 1000)
    with pytest.raises(cachalot.Error):
        attach(tmp_path / "text")
    with pytest.raises(cachalot.InvalidArgumentError, match="model"):
        attach(pool, model="")
    with pytest.raises(cachalot.InvalidArgumentError, match=f"^{re.escape(str(pool))}: geometry: a block has"):
        attach(pool, geometry=cachalot.KvGeometry.of_model("Qwen3-32B", "bf16", 16))
    with pytest.raises(cachalot.InvalidArgumentError, match="hash"):
        attach(pool, hash="md5")
    with pytest.raises(TypeError, match=r"^Client: unexpected keyword 'slots' \(did you mean 'slot'\?\)$"):
        attach(pool, slots=1)
    with pytest.raises(cachalot.BusyError):
        cachalot.EmbeddedKeeper(pool=pool)
    for path in (pool + "\0", (pool + "\0").encode()):
        with pytest.raises(cachalot.InvalidArgumentError, match="zero byte"):
            attach(path)
    assert attach(os.fsencode(pool)).lookup([]) == 0


def test_no_keeper(pool):
    path = pool + ".alone"
    keeper = cachalot.EmbeddedKeeper(pool=path, block_bytes=4096, capacity_blocks=4)
    client = attach(path)
    keeper.stop()
    keeper.stop()
    hashes = client.hash_tokens(tokens_of(1, 4))
    assert client.lookup(hashes) == 0
    with pytest.raises(cachalot.Error):
        attach(path, keeper_timeout_s=0.1)


def test_geometries():
    geometry = cachalot.KvGeometry.of_model("Qwen3-32B", "bf16", 16)
    assert (geometry.layers, geometry.kv_heads, geometry.head_dim) == (64, 8, 128)
    assert geometry.block_bytes == 16 * 64 * 2 * 8 * 128 * 2
    assert "Qwen3-32B" in cachalot.model_names()
    assert cachalot.KvGeometry.of_model("qwen3-32b", "BF16", 16, 1, 2) != geometry
    assert eval(repr(geometry), {"KvGeometry": cachalot.KvGeometry}) == geometry
    for fields in (
        {},
        {"layers": 1, "block_tokens": 4},
        {"layers": 1, "block_tokens": 4, "kv_heads": 1, "head_dim": 8, "dtype": "f64"},
        {"layers": 1, "block_tokens": 4, "kv_heads": 1, "head_dim": 8, "attention": "none"},
        {"layers": -1, "block_tokens": 4, "kv_heads": 1, "head_dim": 8},
        {"layers": 2**32 - 1, "block_tokens": 2**32 - 1, "kv_heads": 2**32 - 1, "head_dim": 8},
    ):
        with pytest.raises(cachalot.InvalidArgumentError):
            cachalot.KvGeometry(**fields)
    with pytest.raises(TypeError):
        cachalot.KvGeometry(layer=1)
    with pytest.raises(cachalot.InvalidArgumentError, match="GPT-2"):
        cachalot.KvGeometry.of_model("GPT-2", "f16", 16)


def test_there_is_a_class_for_every_code():
    header = Path(__file__).parents[2] / "include/cachalot/error.h"
    codes = re.findall(r"^  k([A-Z]\w+)(?: = 1)?,", header.read_text(), re.MULTILINE)
    assert len(codes) == len(errors.CLASSES) == 17
    assert {f"{code}Error" for code in codes} == {error.__name__ for error in errors.CLASSES.values()}
    for code, error in errors.CLASSES.items():
        assert issubclass(error, cachalot.Error) and error.code == code and getattr(cachalot, error.__name__) is error
    assert issubclass(cachalot.InvalidArgumentError, ValueError)
    assert issubclass(cachalot.TimeoutError, builtins.TimeoutError)
    assert str(errors.TimeoutError("a message")) == str(errors.IoError("a message")) == "a message"


def test_an_argument_that_is_none_is_named(stored):
    engine, hashes = stored
    client, cache = engine.client, engine.cache
    for name, call in {
        "hashes": lambda: client.lookup(None),
        "pages": lambda: client.load(cache, hashes, None),
        "tokens": lambda: client.hash_tokens(None),
        "layout": lambda: client.register_cache(None, engine.tensors, pages=16),
        "tensors": lambda: client.register_cache("vllm_kbnhc", None, pages=16),
        "geometry": lambda: attach("/dev/shm/no_pool", geometry=None),
    }.items():
        with pytest.raises(TypeError, match=f"^{name}: None \\(NoneType\\), expected "):
            call()


@pytest.mark.filterwarnings("ignore:nanobind")
def test_an_object_whose_init_was_not_called_is_refused(stored):
    """By TypeError or BufferError; what it would have held is not there."""
    engine, hashes = stored

    class NoClient(cachalot.Client):
        def __init__(self):
            pass

    class NoHashes(cachalot.BlockHashes):
        def __init__(self):
            pass

    client = NoClient()
    for call in (
        lambda: client.lookup(hashes),
        lambda: client.register_cache("vllm_kbnhc", engine.tensors, pages=16),
        lambda: client.begin_load(engine.cache, hashes, range(8)),
        lambda: client.begin_store(engine.cache, hashes, range(8)),
        lambda: client.load_async(engine.cache, hashes, range(8)),
        lambda: client.store_async(engine.cache, hashes, range(8)),
        lambda: cachalot.Client.begin_load(hashes, engine.cache, hashes, range(8)),
        lambda: engine.client.lookup(NoHashes()),
        lambda: hashes == NoHashes(),
        lambda: NoHashes() == hashes,
        lambda: memoryview(NoHashes()),
        lambda: engine.client.lookup([cachalot.BlockHash.__new__(cachalot.BlockHash)]),
        lambda: attach("/dev/shm/no_pool", geometry=cachalot.KvGeometry.__new__(cachalot.KvGeometry)),
    ):
        with pytest.raises((TypeError, BufferError)):
            call()


class Raising:
    """Whatever it is taken for, it raises this."""

    def __init__(self, error):
        self.error = error

    def fail(self):
        raise self.error

    __index__ = __float__ = __fspath__ = __repr__ = fail


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), RuntimeError("a fault of its own")], ids=repr)
def test_what_an_argument_raises_goes_on(stored, error):
    engine, hashes = stored
    client, cache = engine.client, engine.cache
    raising = Raising(error)
    for call in (
        lambda: client.hash_tokens([raising]),
        lambda: client.load(cache, hashes, [raising] * 8),
        lambda: client.load(cache, hashes, range(8), first_layer=raising),
        lambda: client.store(cache, hashes, range(8), timeout=raising),
        lambda: client.load(cache, hashes, range(8), stream=raising),
        lambda: attach(raising),
        lambda: attach([raising]),
        lambda: attach("/dev/shm/no_pool", keeper_timeout_s=raising),
        lambda: attach("/dev/shm/no_pool", workers=raising),
        lambda: attach("/dev/shm/no_pool", record_requests=raising),
        lambda: cachalot.EmbeddedKeeper(pool=raising),
        lambda: cachalot.KvGeometry(layers=raising),
        lambda: client.register_cache("vllm_kbnhc", [(raising, 1)] * 3, 16, device=0),
    ):
        with pytest.raises(type(error)) as caught:
            call()
        assert caught.value is error
    if not isinstance(error, Exception):
        with pytest.raises(KeyboardInterrupt):  # of its __repr__, for the message
            client.exists(raising)
    else:
        with pytest.raises(TypeError, match=r"keys: something \(Raising\), expected"):
            client.exists(raising)


def test_an_error_of_the_operating_system_has_its_errno(tmp_path):
    file = tmp_path / "pool"
    file.touch(mode=0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # a user without rights
    try:
        with pytest.raises(cachalot.PermissionError) as caught:
            attach(file)
    finally:
        os.seteuid(user)
    error = caught.value
    assert error.errno == error.os_error == errno.EACCES and isinstance(error, builtins.PermissionError)
    assert pickle.loads(pickle.dumps(error)).errno == errno.EACCES
    assert errors.TimeoutError("the system has no part in it").errno is None


class Changing:
    """A number that changes the list it is in while the list is read."""

    def __init__(self, change):
        self.change = change

    def __index__(self):
        self.change()
        return 1


def test_a_list_that_changes_while_it_is_read_is_refused(stored):
    engine, hashes = stored
    for change, count in ((list.clear, 0), (lambda numbers: numbers.append(1), 5000)):
        for call in (
            engine.client.hash_tokens,
            lambda pages: engine.client.load(engine.cache, hashes, pages),
            lambda pages: engine.client.store_async(engine.cache, hashes, pages),
        ):
            numbers = [0] * 4999
            numbers[100] = Changing(lambda: change(numbers))
            with pytest.raises(cachalot.InvalidArgumentError, match=f": has {count} numbers now, expected the 4999 that"):
                call(numbers)
    numbers = [1] * 8
    numbers[3] = Changing(lambda: numbers.__setitem__(3, 1))  # lets go of what is being read
    assert engine.client.hash_tokens(numbers) == engine.client.hash_tokens([1] * 8)
