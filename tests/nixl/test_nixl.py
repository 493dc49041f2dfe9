"""Paged KV between an engine that speaks NIXL only and ranks of Cachalot, both ways. `make test-nixl` installs NIXL."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cachalot

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples/nixl"))
from nixl_bridge import NixlBridge, RemoteTensor, paired  # noqa: E402

LAYERS, PAGES, TOKENS, HEADS, DIM = 3, 16, 4, 4, 32
os.environ.setdefault("UCX_NET_DEVICES", "lo")


class Engine:
    """The other process. Its tensors are given as (2, page, token, head, dim), whatever their order in memory."""

    def __init__(self, tmp_path, order="tokens_first"):
        self._file, self._order = tmp_path / "tensors.npy", order
        self._process = subprocess.Popen([sys.executable, ROOT / "tests/nixl/nixl_engine.py", "7", str(HEADS), order, self._file],
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        said = json.loads(self._process.stdout.readline())
        self.metadata = bytes.fromhex(said["metadata"])
        self._tensors = [RemoteTensor(**tensor) for tensor in said["tensors"]]

    def views(self, pages, heads=slice(None)):
        """For each layer and page: keys and values of its tokens."""
        if self._order == "tokens_first":
            return [tensor[:, page, :, heads] for tensor in self._tensors for page in pages]
        return [tensor[:, page, heads].transpose(0, 2, 1, 3) for tensor in self._tensors for page in pages]

    def content(self):
        tensors = np.load(self._file)
        return tensors if self._order == "tokens_first" else tensors.transpose(0, 1, 2, 4, 3, 5)

    def notification(self):
        return self._process.stdout.readline().strip()

    def close(self):
        self._process.communicate("", timeout=30)


class Rank:
    """A rank of Cachalot with its own pages."""

    def __init__(self, name, seed, tp_rank=0, tp_size=1):
        heads = HEADS // tp_size
        random = np.random.default_rng(seed)
        self.tensors = [random.random((2, PAGES, TOKENS, heads, DIM)).astype(np.float16) for _ in range(LAYERS)]
        geometry = cachalot.KvGeometry(layers=LAYERS, kv_heads=heads, head_dim=DIM, dtype="f16", block_tokens=TOKENS,
                                       tp_rank=tp_rank, tp_size=tp_size)
        self.rank = cachalot.TransferRank(instance=name, model="test@1", geometry=geometry, layout="vllm_kbnhc",
                                          tensors=self.tensors, pages=PAGES, listen=["tcp:127.0.0.1:0"])

    def views(self, pages):
        return [tensor[:, page] for tensor in self.tensors for page in pages]

    def content(self):
        return np.stack(self.tensors)


def hand_over(sources, source_pages, targets, target_pages):
    """From the ranks of one instance to those of another one, by Cachalot."""
    name, tokens = cachalot.random_offer_id(), len(source_pages) * TOKENS
    for source in sources:
        source.rank.offer(name, source_pages, tokens, deadline_s=30)
    reference = {"instance": "p", "id": name, "tokens": tokens, "tp_size": len(sources), "pp_size": 1,
                 "addresses": [source.rank.addresses for source in sources]}
    asks = [target.rank.ask(reference, target_pages, deadline_s=30) for target in targets]
    for target, ask in zip(targets, asks):
        assert target.rank.wait(ask)["error"] is None


@pytest.fixture
def opened():
    """What a test opens is closed after it."""
    everything = []

    def add(one):
        everything.append(one)
        return one

    yield add
    for one in reversed(everything):
        (one.rank if isinstance(one, Rank) else one).close()


@pytest.mark.parametrize("order", ["tokens_first", "heads_first"])
def test_kv_of_a_nixl_engine_reaches_two_decode_ranks_of_cachalot(opened, tmp_path, order):
    engine, prefill = opened(Engine(tmp_path, order)), opened(Rank("p", 1))
    decode = [opened(Rank("d", 2 + r, r, 2)) for r in range(2)]
    before = [rank.content() for rank in decode]
    bridge = opened(NixlBridge(f"bridge-{tmp_path}", prefill.tensors))
    bridge.read(bridge.connect(engine.metadata), engine.views([3, 5, 7]), prefill.views([2, 8, 1]), b"taken")
    assert engine.notification() == "taken"
    assert (prefill.content()[:, :, [2, 8, 1]] == engine.content()[:, :, [3, 5, 7]]).all()
    hand_over([prefill], [2, 8, 1], decode, [6, 4, 9])
    for r, rank in enumerate(decode):
        assert (rank.content()[:, :, [6, 4, 9]] == engine.content()[:, :, [3, 5, 7], :, 2 * r:2 * r + 2]).all()
        others = [page for page in range(PAGES) if page not in (6, 4, 9)]
        assert (rank.content()[:, :, others] == before[r][:, :, others]).all()


@pytest.mark.parametrize("order", ["tokens_first", "heads_first"])
def test_kv_of_two_prefill_ranks_of_cachalot_reaches_a_nixl_engine(opened, tmp_path, order):
    engine, decode = opened(Engine(tmp_path, order)), opened(Rank("d", 1))
    prefill = [opened(Rank("p", 2 + r, r, 2)) for r in range(2)]
    before = engine.content()
    bridge = opened(NixlBridge(f"bridge-{tmp_path}", decode.tensors))
    hand_over(prefill, [6, 4, 9], [decode], [2, 8, 1])
    bridge.write(bridge.connect(engine.metadata), engine.views([3, 5, 7]), decode.views([2, 8, 1]), b"request 1")
    assert engine.notification() == "request 1"
    after = engine.content()
    for r, rank in enumerate(prefill):
        assert (after[:, :, [3, 5, 7], :, 2 * r:2 * r + 2] == rank.content()[:, :, [6, 4, 9]]).all()
    others = [page for page in range(PAGES) if page not in (3, 5, 7)]
    assert (after[:, :, others] == before[:, :, others]).all()


def test_nixl_moves_the_heads_of_a_rank_into_its_cache(opened, tmp_path):
    engine = opened(Engine(tmp_path))
    ranks = [opened(Rank("d", 2 + r, r, 2)) for r in range(2)]
    for r, rank in enumerate(ranks):
        bridge = opened(NixlBridge(f"bridge-{r}-{tmp_path}", rank.tensors))
        bridge.read(bridge.connect(engine.metadata), engine.views([5, 0], slice(2 * r, 2 * r + 2)), rank.views([1, 15]))
        assert (rank.content()[:, :, [1, 15]] == engine.content()[:, :, [5, 0], :, 2 * r:2 * r + 2]).all()


def test_views_of_unequal_sizes_are_refused():
    tensor = np.zeros((2, 4), np.float16)
    with pytest.raises(ValueError, match="not as many bytes"):
        paired([tensor], [tensor[:1]])


def test_memory_that_the_engine_has_not_registered_is_not_read(opened, tmp_path):
    engine, rank = opened(Engine(tmp_path)), opened(Rank("d", 1))
    before = rank.content()
    bridge = opened(NixlBridge(f"bridge-{tmp_path}", rank.tensors))
    outside = RemoteTensor(4096, (2, TOKENS, HEADS, DIM), (1024, 256, 64, 2), "<f2")
    with pytest.raises(Exception, match="NOT_FOUND"):
        bridge.read(bridge.connect(engine.metadata), [outside[:]], [rank.tensors[0][:, 0]])
    assert (rank.content() == before).all()
