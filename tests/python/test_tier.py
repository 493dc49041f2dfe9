"""cachalot.tier: an engine's device and host memory, and the pool behind them."""

import json
import multiprocessing
import os
import signal
import threading

import numpy as np
import pytest

import cachalot
import cachalot.tier
from conftest import GEOMETRY, pool_path, tokens_of

BLOCK = 4


class Engine:
    """The KV of a token in a layer is its own number and the layer's: bytes can be checked everywhere."""

    def __init__(self, pages=16, page_tokens=BLOCK, geometry=GEOMETRY, **options):
        self.tensors = [np.zeros((2, pages * BLOCK // page_tokens, page_tokens, 2, 32), np.float16) for _ in range(3)]
        given = {"model": "test@1", "geometry": geometry, "prefetch_threshold": BLOCK, "prefetch_policy": "wait_complete", **options}
        self.page_tokens = page_tokens
        self.tiers = cachalot.tier.open("vllm_kbnhc", self.tensors, pages=pages * BLOCK // page_tokens, page_tokens=page_tokens, **given)

    def serve(self, prompt, **options):
        with self.tiers.request(prompt, **options) as request:
            assert request.wait_ready(20)
            start = request.start()
            for layer, tensor in enumerate(self.tensors):
                request.wait_layer(layer)
                for i in range(len(prompt) // self.page_tokens):
                    tokens = prompt[i * self.page_tokens: (i + 1) * self.page_tokens]
                    expected = (tokens % 1024 + layer).astype(np.float16)[None, :, None, None]
                    if i * self.page_tokens >= start.cached_tokens:
                        tensor[:, start.pages[i]] = expected
                    assert (tensor[:, start.pages[i]] == expected).all()
            request.commit(prompt)
        self.tiers.flush(20)
        return start


def prompt_of(seed, blocks=5):
    return tokens_of(seed, blocks * BLOCK + 1)


@pytest.mark.parametrize("page_tokens", [1, 2, 4])
def test_three_tiers(pool, page_tokens):
    with Engine(8, page_tokens, pool=pool, host_ratio=3).tiers as _:
        pass
    engine = Engine(8, page_tokens, pool=pool, host_ratio=3)
    for seed in (1, 2, 3):
        assert engine.serve(prompt_of(seed)).cached_tokens == 0
    again = engine.serve(prompt_of(1))
    assert (again.cached_tokens, again.host_tokens, again.shared_tokens) == (20, 20, 0)
    engine.tiers.close()
    restarted = Engine(8, page_tokens, pool=pool, host_ratio=3)
    assert restarted.serve(prompt_of(2)).shared_tokens == 20
    counts = restarted.tiers.statistics()
    assert counts.fetched_bytes == 5 * GEOMETRY.block_bytes and counts.unused_fetched_bytes == 0
    restarted.tiers.close()


def test_decode_grows_and_is_shared():
    engine = Engine()
    prompt, longer = prompt_of(1, 2), prompt_of(1, 6)
    longer[: len(prompt)] = prompt
    with engine.tiers.request(list(map(int, prompt))) as request:
        pages = request.start().pages
        request.commit(prompt)
        assert request.grow(len(longer))[: len(pages)] == pages
        request.commit(longer)
    with engine.tiers.request(longer, extra=b"adapter") as request:
        assert request.start().cached_tokens == 0
    with engine.tiers.request(longer) as request:
        assert request.is_ready() and request.start().cached_tokens == 24


def test_pool_comes_and_goes_while_serving(pool):
    engine = Engine(32, host_ratio=2)
    with pytest.raises(cachalot.NotFoundError):
        engine.tiers.detach_pool()
    stops = threading.Event()

    def attach_and_detach():
        while not stops.is_set():
            engine.tiers.attach_pool(pool)
            stops.wait(0.02)
            engine.tiers.detach_pool()

    thread = threading.Thread(target=attach_and_detach)
    thread.start()
    try:
        for i in range(100):
            engine.serve(prompt_of(i % 9))
    finally:
        stops.set()
        thread.join()


def _rank(rank, path, blocks, results):
    geometry = cachalot.KvGeometry(layers=3, kv_heads=2, head_dim=32, dtype="f16", block_tokens=4, tp_rank=rank, tp_size=2)
    engine = Engine(geometry=geometry, ranks=path, rank_timeout=20)
    found = [engine.serve(prompt_of(1, count)).cached_tokens for count in blocks]
    results.put((rank, found))


def test_two_processes_agree_when_one_is_behind():
    spawn = multiprocessing.get_context("spawn")
    path, results = pool_path() + ".ranks", spawn.Queue()
    # Rank 1 has seen only the beginning of the prompt before.
    ranks = [spawn.Process(target=_rank, args=(rank, path, blocks, results)) for rank, blocks in ((0, [6, 6, 6]), (1, [3, 6, 6]))]
    try:
        for process in ranks:
            process.start()
        found = dict(results.get(timeout=60) for _ in ranks)
        for process in ranks:
            process.join(30)
    finally:
        os.unlink(path)
    assert found == {0: [0, 12, 24], 1: [0, 12, 24]} or found[0] == found[1]
    assert found[0] == found[1] and found[0][2] == 24 and found[0][1] <= 12


def test_options_are_one_table(tmp_path):
    names = [option.name for option in cachalot.tier.options()]
    assert len(set(names)) == len(names) and {"host_ratio", "write_policy", "prefetch_policy"} <= set(names)
    (tmp_path / "t.toml").write_text('[tiers]\nhicache-ratio = 2.0\nwrite_policy = "back"\n')
    (tmp_path / "t.json").write_text(json.dumps({"hicache-ratio": 3, "hicache-write-policy": "write_back"}))
    for config, host_blocks in ((f"@{tmp_path}/t.toml", 32), (f"@{tmp_path}/t.json", 48), ('{"host_ratio": 4}', 64)):
        engine = Engine(config=config)
        assert engine.tiers.statistics().host_blocks == host_blocks
        engine.tiers.close()
    engine = Engine(config='{"host_ratio": 4}', host_ratio=2)  # a keyword wins
    assert engine.tiers.statistics().host_blocks == 32
    engine.tiers.set(prefetch_policy="best_effort", write_policy="selective", selective_uses=3)
    with pytest.raises(cachalot.UnsupportedError, match="host_ratio is set once"):
        engine.tiers.set(host_ratio=3)


def test_guide_has_the_whole_table():
    guide = open(os.path.join(os.path.dirname(__file__), "../../docs/guide/tiers.md"), encoding="utf-8").read()
    for option in cachalot.tier.options():
        assert f"| `{option.name}` |" in guide, f"docs/guide/tiers.md lacks {option.name}"


@pytest.mark.parametrize("options, message", [
    ({"host_ratio": 1}, "host_ratio is 1"),
    ({"host_ratio": 0.5}, "host_ratio is 0.5"),
    ({"host_ratio": 2, "host_size": "1MiB"}, "one of the two"),
    ({"host_layout": "diagonal"}, "layer_first"),
    ({"writes": "through"}, "no option \"writes\""),
    ({"write_policy": "sometimes"}, "through|selective|back"),
    ({"write_policy": "back"}, "needs L2"),
    ({"exclusive": True}, "needs L2"),
    ({"pool": "/dev/shm/cachalot_none"}, "cachalot_none"),
    ({"config": "{"}, "options: the text"),
    ({"config": "[" * 100_000}, "options: the text: maximum recursion depth"),
    ({"config": "@/nowhere/t.json"}, "/nowhere/t.json"),
    ({"ranks": "/nowhere/ranks"}, "/nowhere/ranks"),
    ({"page_tokens": 3}, "page_tokens is 3"),
])
def test_bad_options(options, message):
    with pytest.raises(cachalot.Error) as raised:
        Engine(**options)
    assert message in str(raised.value)


@pytest.mark.parametrize("name, content, message", [
    ("deep.toml", ".".join(["a"] * 20_000) + " = 1", "a name of more than 16 parts"),
    ("quoted.toml", '"a.b" . ' * 17 + "c = 1", "a name of more than 16 parts"),
    ("brackets.toml", "a = " + "[" * 20_000, "recursion"),
    ("latin.toml", b"[tiers]\nwrite_policy = '\xe4'\n", "utf-8"),
    ("latin.json", b'{"write_policy": "\xe4"}', "utf-8"),
    ("surrogate.json", r'{"write_policy": "\ud800"}', "surrogates not allowed"),
    ("nested.json", '{"host_ratio": [4]}', "'host_ratio': expected a text, a number"),
    ("list.json", "[1, 2]", "[1, 2], expected an object"),
    ("long.json", " " * (1 << 20) + "{}", "longer than 1 MiB"),
])
def test_a_bad_file_of_options_is_one_clear_error(tmp_path, name, content, message):
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(cachalot.Error) as raised:
        cachalot.tier.read_options(f"@{file}")
    assert str(raised.value).startswith(f"options: {file}: ") and message in str(raised.value)


def test_options_have_bounds_and_no_surprises(tmp_path):
    with pytest.raises(cachalot.Error, match="options: /dev/zero: longer than 1 MiB"):
        cachalot.tier.read_options("@/dev/zero")
    with pytest.raises(cachalot.Error, match="options: .*expected a file of options"):
        cachalot.tier.read_options("@/tmp/\ud800.json")
    # Dots of texts and comments are no names within names.
    file = tmp_path / "dots.toml"
    file.write_text("# " + "a." * 40 + "\n" + f'[tiers]\nranks = "{"a." * 40}"\n')
    assert cachalot.tier.read_options(f"@{file}") == {"ranks": "a." * 40}
    with pytest.raises(cachalot.InvalidArgumentError, match="no text of Unicode"):
        Engine(host_layout="\ud800")


@pytest.mark.parametrize("given, named", [
    ({"geometry": None}, "geometry: None, expected a cachalot.KvGeometry"),
    ({"pool": 5}, "pool: 5, expected a str or a path"),
    ({"ranks": 5}, "ranks: 5, expected a str or a path"),
    ({"config": 5}, "config: 5, expected a str or a path"),
])
def test_wrong_types_of_open_are_named(given, named):
    with pytest.raises(TypeError) as error:
        Engine(4, **given)
    assert str(error.value) == named


def test_wrong_types_of_a_request_are_named():
    engine = Engine(4)
    for given, named in (({"extra": "text"}, "extra: 'text', expected bytes"), ({"priority": "high"}, "priority: 'high', expected an int")):
        with pytest.raises(TypeError) as error:
            engine.tiers.request([1, 2], **given)
        assert str(error.value) == named
    with pytest.raises(cachalot.Error, match="priority: 2147483648"):
        engine.tiers.request([1, 2], priority=2**31)
    with pytest.raises(TypeError, match="timeout: 'soon', expected seconds"):
        engine.tiers.flush("soon")
    with pytest.raises(TypeError, match=r"tensor 0: 5 \(int\), expected memory"):
        cachalot.tier.open("vllm_kbnhc", [5], pages=4, model="m@1", geometry=GEOMETRY)
    with pytest.raises(TypeError, match="tensors: 5, expected a sequence"):
        cachalot.tier.open("vllm_kbnhc", 5, pages=4, model="m@1", geometry=GEOMETRY)


def test_bad_calls():
    engine = Engine(4)
    with pytest.raises(cachalot.InvalidArgumentError):
        engine.tiers.request([])
    with pytest.raises(cachalot.NoSpaceError, match="start: 6 blocks of L1"):
        with engine.tiers.request(prompt_of(1)) as request:
            request.start()
    request = engine.tiers.request(prompt_of(1, 2))
    with pytest.raises(cachalot.InvalidArgumentError, match="not started"):
        request.commit(prompt_of(1, 2))
    request.close()
    with pytest.raises(cachalot.InvalidArgumentError, match="closed"):
        request.start()
    engine.tiers.close()
    with pytest.raises(cachalot.InvalidArgumentError, match="closed"):
        engine.tiers.statistics()


@pytest.mark.parametrize("dtype, says", [
    (np.dtype(np.float16).newbyteorder(), "tensor 0: has numbers of big-endian float16, expected them in this machine's"),
    (np.float64, "tensor 0: has numbers of 8 bytes"),
    (np.uint8, "tensor 0: has numbers of 1 bytes"),
])
def test_tensors_that_a_client_refuses(dtype, says):
    items = 2 * 16 * BLOCK * 2 * 32 * 2 // np.dtype(dtype).itemsize
    tensors = [np.zeros(items, dtype) for _ in range(3)]
    with pytest.raises(cachalot.InvalidArgumentError, match=says):
        cachalot.tier.open("vllm_kbnhc", tensors, pages=16, model="test@1", geometry=GEOMETRY)


def test_read_only_tensors_and_gaps_are_refused():
    tensors = [np.zeros((2, 16, BLOCK, 2, 32), np.float16) for _ in range(3)]
    tensors[1].flags.writeable = False
    with pytest.raises(cachalot.InvalidArgumentError, match="tensor 1: is read-only"):
        cachalot.tier.open("vllm_kbnhc", tensors, pages=16, model="test@1", geometry=GEOMETRY)
    tensors[1] = np.zeros((2, 32, BLOCK, 2, 32), np.float16)[:, ::2]
    with pytest.raises(cachalot.InvalidArgumentError, match="tensor 1: is not contiguous"):
        cachalot.tier.open("vllm_kbnhc", tensors, pages=16, model="test@1", geometry=GEOMETRY)


def test_tensors_with_swapped_axes_are_refused():
    tensors = [np.zeros((16, 2, BLOCK, 2, 32), np.float16) for _ in range(3)]
    with pytest.raises(cachalot.InvalidArgumentError, match=r"tensor 0: .* expected for layer 0 \(2, 16, "):
        cachalot.tier.open("vllm_kbnhc", tensors, pages=16, model="test@1", geometry=GEOMETRY)


@pytest.mark.parametrize("names, error, says", [
    ({"model": None}, TypeError, "model: None"),
    ({"model": ""}, cachalot.InvalidArgumentError, "model: is empty"),
    ({"salt": None}, TypeError, "salt: None"),
])
def test_names_that_a_client_refuses(names, error, says):
    with pytest.raises(error, match=says):
        Engine(**names)


def test_in_a_forked_child_the_parents_tiers_are_left_alone(pool):
    """Their threads are the parent's: a child that ended them would wait for ever."""
    engine = Engine(pool=pool)
    with engine.tiers.request(prompt_of(1)) as request:
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # ends a child that waits
            code = 1
            try:
                with pytest.raises(cachalot.UnsupportedError, match="fork"):
                    request.is_ready()
                request.__exit__()
                engine.tiers.close()
                engine.tiers.__del__()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert engine.serve(prompt_of(1)).cached_tokens == 0
    engine.tiers.close()


def test_closing_waits_for_the_calls_of_other_threads(monkeypatch):
    engine, has_begun, may_end, ended = Engine(), threading.Event(), threading.Event(), []
    real = cachalot.tier._call

    def slow(name, *arguments):
        has_begun.set()
        may_end.wait(20)
        real(name, *arguments)
        ended.append(name)

    monkeypatch.setattr(cachalot.tier, "_call", slow)
    threads = [threading.Thread(target=engine.tiers.statistics), threading.Thread(target=engine.tiers.close)]
    threads[0].start()
    assert has_begun.wait(20)
    threads[1].start()
    threads[1].join(0.2)
    assert threads[1].is_alive()
    may_end.set()
    for thread in threads:
        thread.join(20)
    assert ended == ["get_statistics"] and not threads[1].is_alive()
