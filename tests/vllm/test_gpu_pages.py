"""The connector's way from a GPU's pages to the pool and back, over an emulated driver: every layout of vLLM's, and the order
of copies beside the engine's own work. `make test-vllm-gpu`."""

import ctypes
import logging
import os
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch

if "CACHALOT_FAKE_LIBCUDA" not in os.environ:
    pytest.skip("needs CACHALOT_FAKE_LIBCUDA (make test-vllm-gpu)", allow_module_level=True)

import emulated_gpu  # noqa: E402  before cachalot
from emulated_gpu import FAKE, call  # noqa: E402
from vllm.v1.kv_cache_interface import (  # noqa: E402
    FullAttentionSpec,
    KVCacheTensor,
    MLAAttentionSpec,
    compute_layout_strides,
    create_kv_cache_views,
)
from vllm.v1.kv_cache_layout import KVCacheLayout  # noqa: E402

from cachalot import Client, EmbeddedKeeper, KvGeometry, random_offer_id  # noqa: E402
from cachalot.connectors.vllm import layout as of_layout  # noqa: E402
from cachalot.connectors.access.attachment import Attachment  # noqa: E402
from cachalot.connectors.access.log import RateLimitedLog  # noqa: E402
from cachalot.connectors.vllm.messages import Chain, Load, Store  # noqa: E402
from cachalot.connectors.access.group import Group, UnsupportedCacheError  # noqa: E402
from cachalot.connectors.vllm.options import parse  # noqa: E402
from cachalot.connectors.vllm.transfer.messages import Ask, Offer  # noqa: E402
from cachalot.connectors.vllm.worker import WorkerSide  # noqa: E402

LAYERS, HEADS, SIZE, TOKENS, PAGES = 3, 2, 32, 64, 12
DEVICE = 1
GROUPED = dict(layers=LAYERS, kv_heads=HEADS, head_dim=SIZE, dtype="bf16", block_tokens=TOKENS)
LATENT = dict(layers=LAYERS, attention="latent", kv_lora_rank=64, qk_rope_head_dim=32, dtype="bf16", block_tokens=TOKENS)


@pytest.fixture(autouse=True)
def on_device(monkeypatch):
    def device_of(tensor):
        emulated_gpu.adopt(tensor, DEVICE)
        return DEVICE

    monkeypatch.setattr(of_layout, "device_of", device_of)


def group_of(fields, number=0):
    return Group(number, tuple(f"layer.{i}" for i in range(fields["layers"])), KvGeometry(**fields), "vllm/1 test", 0)


def spec_of(fields):
    common = dict(block_size=TOKENS, dtype=torch.bfloat16)
    if fields is LATENT:
        return MLAAttentionSpec(num_kv_heads=1, head_size=96, **common)
    return FullAttentionSpec(num_kv_heads=HEADS, head_size=SIZE, **common)


def caches_of(fields, layout, kernel=None):
    """Tensors as vLLM makes them: views into one buffer."""
    spec, layers = spec_of(fields), fields["layers"]
    layer, block, *_ = compute_layout_strides(spec, PAGES, layers, layout)
    names = [f"layer.{i}" for i in range(layers)]
    raw = torch.zeros(PAGES * layers * spec.page_size_bytes, dtype=torch.int8)
    views = create_kv_cache_views(raw, spec, PAGES, layout, KVCacheTensor(raw.numel(), names, layer, block), kernel)
    return dict(zip(names, views))


def fill(caches, seed):
    generator = torch.Generator().manual_seed(seed)
    for view in caches.values():
        view.copy_(torch.randn(view.shape, generator=generator))


def rows(caches, pages, split=1):
    """What the pages hold, whatever the layout: of each layer (pages, heads, tokens, numbers)."""
    found = []
    for view in caches.values():
        whole = view if split == 1 else view.unflatten(0, (-1, split)).transpose(1, 2).flatten(2, 3)
        found.append(whole[pages].clone())
    return torch.stack(found)


@pytest.fixture
def pool():
    path = f"/dev/shm/cachalot_gpu_pages.{os.getpid()}"
    with EmbeddedKeeper(pool=path, block_bytes=64 << 10, capacity_blocks=256):
        yield path


def client_of(pool, fields):
    return Client(pool=pool, model="test", geometry=KvGeometry(**fields))


def pages_of(cache, pages):
    return [page * cache.split + i for page in pages for i in range(cache.split)]


KERNELS = [(layout, kernel) for layout in KVCacheLayout for kernel in (None, 32)
           if kernel is None or layout in (KVCacheLayout.LBNHC, KVCacheLayout.LBHNC)]


@pytest.mark.parametrize("layout,kernel", KERNELS, ids=lambda value: getattr(value, "name", str(value)))
def test_blocks_of_each_layout_are_the_same_bytes(pool, layout, kernel):
    """Stored from this layout on a GPU, loaded into a plain one in memory, and the other way."""
    group = group_of(GROUPED)
    there, here = caches_of(GROUPED, layout, kernel), caches_of(GROUPED, KVCacheLayout.LBHNC)
    fill(there, 1)
    cache = of_layout.describe(group, there)
    split = cache.split
    assert cache.device == DEVICE and cache.arguments["pages"] == PAGES * split
    plain = {name: np.zeros((PAGES, HEADS, TOKENS, 2 * SIZE), np.uint16) for name in group.layers}
    with client_of(pool, GROUPED) as client:
        on_gpu = client.register_cache(**cache.arguments)
        in_memory = client.register_cache(**{**of_layout.describe(group, here).arguments, "device": None,
                                             "tensors": list(plain.values()), "strides": strides_of_plain()})
        first, second = client.hash_tokens(range(4 * TOKENS)), client.hash_tokens(range(900, 900 + 3 * TOKENS))
        from_pages, to_pages = [7, 2, 11, 0], [1, 3, 5, 9]
        assert client.store(on_gpu, first, pages_of(cache, from_pages)).written == 4
        assert client.load(in_memory, first, to_pages) == 4
        expected = rows(there, from_pages, 2 if kernel else 1).view(torch.uint16).numpy()
        assert np.array_equal(np.stack([one[to_pages] for one in plain.values()]), expected)
        before = rows(there, list(range(PAGES)), 2 if kernel else 1)
        for one in plain.values():
            one[:] = np.random.default_rng(2).integers(0, 1 << 16, one.shape, np.uint16)
        assert client.store(in_memory, second, [4, 6, 8]).written == 3
        assert client.load(on_gpu, second, pages_of(cache, [10, 4, 6])) == 3
        now = rows(there, list(range(PAGES)), 2 if kernel else 1)
        for page in range(PAGES):
            if page in (10, 4, 6):
                source = {10: 4, 4: 6, 6: 8}[page]
                assert np.array_equal(now[:, page].view(torch.uint16).numpy(), np.stack([one[source] for one in plain.values()]))
            else:
                assert torch.equal(now[:, page].view(torch.int16), before[:, page].view(torch.int16))
    assert FAKE.fake_refused() == 0


def strides_of_plain():
    from cachalot import PartStrides

    item, token = 2, 2 * SIZE * 2
    return [PartStrides(layer_tensors=1, offset=part * SIZE * item, page=HEADS * TOKENS * token, head=TOKENS * token, token=token)
            for part in range(2)]


def test_layers_in_one_buffer_are_one_tensor():
    """The fewest pieces: in BLHNC a block of all layers is one."""
    for layout in KVCacheLayout:
        arguments = of_layout.describe(group_of(GROUPED), caches_of(GROUPED, layout)).arguments
        assert len(arguments["tensors"]) == 1, layout
        assert arguments["strides"][0].layer_tensors == 0 and arguments["strides"][0].layer > 0


@pytest.mark.parametrize("layout", [KVCacheLayout.LBHNC, KVCacheLayout.BLHNC], ids=lambda one: one.name)
def test_latents(pool, layout):
    group, caches, others = group_of(LATENT), caches_of(LATENT, layout), caches_of(LATENT, KVCacheLayout.LBHNC)
    fill(caches, 3)
    with client_of(pool, LATENT) as client:
        one = client.register_cache(**of_layout.describe(group, caches).arguments)
        other = client.register_cache(**of_layout.describe(group, others).arguments)
        hashes = client.hash_tokens(range(2 * TOKENS))
        assert client.store(one, hashes, [3, 5]).written == 2 and client.load(other, hashes, [0, 11]) == 2
    assert torch.equal(rows(caches, [3, 5]).view(torch.int16), rows(others, [0, 11]).view(torch.int16))


def test_what_is_not_known_is_refused_by_name():
    group, caches = group_of(GROUPED), caches_of(GROUPED, KVCacheLayout.LBNHC)
    with pytest.raises(UnsupportedCacheError, match="tensors of shape .* for 2 heads of 32"):
        of_layout.describe(group, {name: view[..., :-1] for name, view in caches.items()})
    with pytest.raises(UnsupportedCacheError, match="different strides"):
        of_layout.describe(group, {**caches, "layer.1": caches_of(GROUPED, KVCacheLayout.LBHNC)["layer.1"]})
    with pytest.raises(UnsupportedCacheError, match="blocks of 64"):
        of_layout.describe(group, {name: view[:, :, :48] for name, view in caches.items()})


# --- Order ---------------------------------------------------------------------------------------------------------


class Engine:
    """A worker's side whose pages the engine writes by work on its own stream, which nothing waits for by itself."""

    def __init__(self, pool):
        self.group = group_of(GROUPED)
        self.caches = caches_of(GROUPED, KVCacheLayout.LBNHC)
        cache = of_layout.describe(self.group, self.caches)
        log = RateLimitedLog(logging.getLogger())
        options = parse({"pool": pool})
        self.streams = emulated_gpu.Streams(DEVICE)
        self.attachment = Attachment(options, self.group, log,
                                     lambda client: {0: client.register_cache(**cache.arguments)}, device=DEVICE)
        assert self.attachment.attach(5)
        self.side = WorkerSide(options, [self.attachment], True, log, streams=self.streams)
        self._kept = []

    def launch_write(self, pages, value):
        """Puts on the engine's stream: each of these pages of each layer becomes this value. It is not done yet."""
        emulated_gpu.enter(DEVICE)
        source = ctypes.c_void_p()
        bytes_of_page = HEADS * TOKENS * 2 * SIZE * 2
        call("cuMemHostAlloc", ctypes.byref(source), ctypes.c_size_t(bytes_of_page), 0)
        ctypes.memset(source, value, bytes_of_page)
        for view in self.caches.values():
            for page in pages:
                call("cuMemcpyHtoDAsync_v2", ctypes.c_ulonglong(view[page].data_ptr()), source,
                     ctypes.c_size_t(bytes_of_page), ctypes.c_void_p(self.streams.engine))

    def bytes_of(self, pages):
        return rows(self.caches, pages).view(torch.uint8).unique().tolist()

    def wait_stored(self):
        self.side.close()
        return self.side.take_answer()


def chain_of(pages):
    keys = b"".join(bytes([page + 1]) * 16 for page in range(len(pages)))
    return Chain(keys, (list(pages),))


def stored(pool, pages, engine, then=lambda: None):
    """What another engine loads after this one's store. then: what the engine launches as soon as the store has begun."""
    answer = None
    engine.side.begin_stores([Store(1, "a", 0, chain_of(pages))])
    then()
    for _ in range(2000):
        answer = engine.side.take_answer()
        if answer is not None and answer.finished_jobs:
            break
        time.sleep(0.01)
    assert answer is not None and not answer.incomplete_stores
    other = Engine(pool)
    load = Load("b", 0, chain_of(pages), is_async=False)
    other.side.note_step(True)
    other.side.begin_loads([load])
    assert not other.side.take_bad_pages()
    found = other.bytes_of(list(pages))
    other.side.close()
    return found


def test_a_store_reads_pages_after_the_forward_has_written_them(pool):
    engine = Engine(pool)
    engine.launch_write([3, 5], 0x11)
    assert stored(pool, [3, 5], engine) == [0x11]
    engine.side.close()


def test_without_the_event_it_would_not(pool, monkeypatch):
    """The premise of the test above: vllm#45704."""
    engine = Engine(pool)
    monkeypatch.setattr(emulated_gpu.Streams, "behind", lambda self, mark: emulated_gpu.enter(DEVICE) or emulated_gpu.make_stream())
    engine.launch_write([3, 5], 0x11)
    assert stored(pool, [3, 5], engine) == [0]
    engine.side.close()


def test_a_store_does_not_wait_for_the_next_step(pool):
    """What is launched after the store has begun leaves its pages alone: they are held. The copy waits for nothing of it."""
    engine = Engine(pool)
    engine.launch_write([3, 5], 0x11)
    found = stored(pool, [3, 5], engine, then=lambda: engine.launch_write([7], 0x22))
    assert found == [0x11] and engine.bytes_of([7]) == [0]  # the engine's stream was not waited for
    engine.side.close()


def test_a_load_comes_after_the_work_of_earlier_steps_and_not_after_its_own(pool):
    """A page's last owner may still be read or written by an earlier step."""
    first = Engine(pool)
    first.launch_write([3, 5], 0x11)
    assert stored(pool, [3, 5], first) == [0x11]
    first.side.close()
    engine = Engine(pool)
    engine.launch_write([3, 5], 0x77)  # an earlier step, of another request
    engine.side.note_step(True)
    engine.launch_write([8], 0x55)  # this step
    engine.side.begin_loads([Load("b", 0, chain_of([3, 5]), is_async=True)])
    for _ in range(2000):
        if "b" in engine.side.take_results()[0]:
            break
        time.sleep(0.01)
    assert engine.bytes_of([3, 5]) == [0x11]
    assert engine.bytes_of([8]) == [0]  # the load did not wait for it
    engine.side.close()


def test_the_real_engine_shares_from_its_pages_on_the_gpu(models, engines, pools, prompt):
    """`emulated_gpu` below vLLM: the suites test_share and test_failures run on it, too."""
    shared = pools()
    options = {"pool": shared.path}
    computed = engines(models(), options).answer([prompt(1, 700)])
    second = engines(models(), options)
    answer = second.answer([prompt(1, 700)])
    assert answer["tokens"] == computed["tokens"] and answer["cached"] == [640]
    assert "the pool is registered with GPU 0, in" in second.text()
    metrics = answer["metrics"]
    assert metrics["vllm:cachalot_gpu_registrations"] == 1
    by_way = [metrics.get(f"vllm:cachalot_gpu_{way}_bytes", 0) for way in ("threads", "bulk", "batch", "copy_engine")]
    assert sum(by_way) >= metrics["vllm:cachalot_loaded_bytes"] > 0


# --- Failures ------------------------------------------------------------------------------------------------------


@pytest.fixture
def failing():
    names = []

    def fail(function, result):
        names.append(function)
        FAKE.fake_fail(function.encode(), result)

    yield fail
    for name in names:
        FAKE.fake_fail(name.encode(), 0)


def attached(pool, caplog):
    group = group_of(GROUPED)
    cache = of_layout.describe(group, caches_of(GROUPED, KVCacheLayout.LBNHC))
    attachment = Attachment(parse({"pool": pool}), group, RateLimitedLog(logging.getLogger("vllm.cachalot")),
                            lambda client: {0: client.register_cache(**cache.arguments)}, device=DEVICE)
    with caplog.at_level(logging.INFO):
        attachment.attach(2)
    return attachment


def test_a_pool_that_cannot_be_page_locked_ends_sharing_and_not_the_engine(pool, failing, caplog):
    failing("host_register", 2)  # CUDA_ERROR_OUT_OF_MEMORY: as with a small memlock limit
    attachment = attached(pool, caplog)
    assert attachment.is_over and attachment.get() is None
    lines = [record.message for record in caplog.records if "nothing is shared any more" in record.message]
    assert len(lines) == 1 and "memlock" in lines[0], lines
    side = WorkerSide(parse({"pool": pool}), [attachment], True, RateLimitedLog(logging.getLogger()))
    assert side.take_answer().is_over and side.take_answer() is None  # once
    side.close()


def test_registration_takes_a_line_in_the_log(pool, caplog):
    attachment = attached(pool, caplog)
    assert not attachment.is_over
    assert any("the pool is registered with GPU 1, in " in record.message for record in caplog.records)
    assert len(attachment.take_registrations()) == 1 and attachment.take_registrations() == []
    attachment.close()


def test_memory_of_another_device_is_refused_by_name(pool, monkeypatch, caplog):
    monkeypatch.setattr(of_layout, "device_of", lambda tensor: emulated_gpu.adopt(tensor, 2) or DEVICE)
    attachment = attached(pool, caplog)
    assert attachment.is_over
    assert any("is on device 2, expected memory of device 1" in record.message for record in caplog.records)


def transfer_worker(name, cache, monkeypatch, **options):
    """A connector's worker, and the streams of its engine."""
    from cachalot.connectors.vllm import connector

    streams = emulated_gpu.Streams(DEVICE)
    monkeypatch.setattr(connector, "streams_of", lambda device: streams)
    made = connector.CachalotConnector.__new__(connector.CachalotConnector)
    made._options = parse({"transfer": options})
    made._log = RateLimitedLog(logging.getLogger("vllm.cachalot"))
    made._groups = [group_of(GROUPED)]
    made._identity = SimpleNamespace(text=lambda: "model=test")
    made._vllm_config = SimpleNamespace(parallel_config=None)
    made._kv_transfer_config = SimpleNamespace(engine_id=name, is_kv_consumer=True)
    return made._transfer_worker([cache]), streams


def test_gpu_pages_are_handed_over_after_the_forward_that_writes_them(monkeypatch):
    """The prefill's pages are offered while the step that writes them has only been launched."""
    there, here = caches_of(GROUPED, KVCacheLayout.LBNHC), caches_of(GROUPED, KVCacheLayout.LBHNC)
    give, streams = transfer_worker("p", of_layout.describe(group_of(GROUPED), there), monkeypatch)
    take, _ = transfer_worker("d", of_layout.describe(group_of(GROUPED), here), monkeypatch)
    computed = caches_of(GROUPED, KVCacheLayout.LBNHC)
    fill(computed, 7)
    emulated_gpu.enter(DEVICE)
    for to, source in zip(there.values(), computed.values()):
        emulated_gpu.adopt(source, DEVICE)
        for page in (2, 5):
            call("cuMemcpyAsync", ctypes.c_ulonglong(to[page].data_ptr()), ctypes.c_ulonglong(source[page].data_ptr()),
                 ctypes.c_size_t(source[page].numel() * 2), ctypes.c_void_p(streams.engine))
    assert not rows(there, [2, 5]).any()
    wanted = rows(computed, [2, 5])
    keys, offer = bytes([1]) * 16 + bytes([2]) * 16, random_offer_id()
    give.begin_offers([Offer(1, offer, [2, 5], 2 * TOKENS, keys, 0.0)])
    reference = {"instance": "p", "id": offer, "tokens": 2 * TOKENS, "tp_size": 1, "pp_size": 1, "addresses": [give.addresses]}
    take.begin_loads([Ask("r", reference, [3, 1], 0, 2 * TOKENS, keys[16:], [])])
    until = time.monotonic() + 30
    while "r" not in take.take_results()[0]:
        assert time.monotonic() < until
        time.sleep(0.01)
    assert take.take_bad_pages() == set()
    assert torch.equal(rows(here, [3, 1]), wanted)
    while give.take_answer() is None:
        assert time.monotonic() < until
        give.take_results()
        time.sleep(0.01)
    take.close(), give.close()


def test_without_memory_for_a_transfer_the_engine_computes(caplog, monkeypatch):
    cache = of_layout.describe(group_of(GROUPED), caches_of(GROUPED, KVCacheLayout.LBNHC))
    with caplog.at_level(logging.WARNING):
        assert transfer_worker("p", cache, monkeypatch, bounce="1KiB")[0].addresses == []
    assert any("nothing is handed over, all is computed: bounce_bytes is 1024" in record.message for record in caplog.records)


# The last one: this GPU has failed from then on.
def test_after_the_gpu_has_failed_nothing_more_is_shared(pool, caplog):
    engine = Engine(pool)
    engine.launch_write([3], 0x11)
    assert stored(pool, [3], engine) == [0x11]
    FAKE.fake_fail(b"event_synchronize", 700), FAKE.fake_fail(b"event_query", 700)  # CUDA_ERROR_ILLEGAL_ADDRESS
    engine.side.note_step(True)
    engine.side.begin_loads([Load("b", 0, chain_of([3]), is_async=False)])
    assert engine.side.take_bad_pages() == {3}  # the error's detail, 700, is no number of blocks
    answer = engine.side.take_answer()
    assert answer.is_over and answer.failed_loads == {"b": 0}
    assert engine.attachment.is_over and engine.attachment.get() is None
    engine.side.begin_stores([Store(2, "c", 0, chain_of([4]))])
    engine.side.close()
    assert engine.side.take_answer().incomplete_stores == {"c"}
    assert engine.side.take_stats().data["ended_sharing"] == 1
