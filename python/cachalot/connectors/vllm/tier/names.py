"""Names of the tier's blocks: which engines share them, and which block is before which."""

import hashlib
import itertools
import math
import sys
from typing import Any, Dict, Iterable, List, Optional, Set, Tuple

import numpy as np
import vllm

from cachalot import KvGeometry
from cachalot.connectors.access.group import Group, UnsupportedCacheError
from cachalot.connectors.vllm import weight_updates
from cachalot.connectors.vllm.namespace import Identity
from cachalot.connectors.vllm.options import Options


def engine_config(offloading_spec: Any) -> Any:
    """The VllmConfig of the engine that is making this tier.

    vLLM gives a tier no more of it than the model's name and dtype, which engines with other weights have, too. The
    callers have all of it: OffloadingConnector and its scheduler.

    Raises RuntimeError: no caller has it.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        found = frame.f_locals.get("vllm_config")
        transfer = getattr(found, "kv_transfer_config", None)
        if transfer is not None and transfer.engine_id == offloading_spec.config.engine_id:
            return found
        frame = frame.f_back
    raise RuntimeError("CachalotTier: found no vllm_config of this engine in the callers, expected vLLM's "
                       "OffloadingConnector to make the tier")


def group_of(offloading_spec: Any, row_bytes: int, options: Options) -> Group:
    """All chunks of the engine, as one group of blocks whose bytes only vLLM understands.

    A chunk holds the KV of all layers and of all ranks. Raises UnsupportedCacheError.
    """
    config, engine = offloading_spec.config, engine_config(offloading_spec)
    weight_updates.watch_workers(engine)
    if getattr(engine, "lora_config", None) is not None:
        raise UnsupportedCacheError("LoRA under the tier, which is not told a request's adapter: CachalotConnector")
    identity = Identity(engine, options.weights == "all", options.salt)
    parallel = config.parallel
    spec = type(offloading_spec)
    layers = ";".join(f"{group.group_id}:{group.tokens_per_block}:{' '.join(group.layer_names)}"
                      for group in config.groups)
    model = " ".join([
        "vllm-tier/1", identity.text(),
        f"vllm={vllm.__version__}",  # defines where the bytes of a chunk are, as does the class of the spec
        f"spec={spec.__module__}.{spec.__qualname__}",
        f"layout={config.kv_cache_layout} canonical={config.canonical_layout} replicated={config.replicated_layout}",
        f"tp={parallel.tp_size} pp={parallel.pp_size} pcp={parallel.pcp_size} dcp={parallel.dcp_size}",
        f"workers={parallel.world_size} bytes={config.worker_kv_bytes_per_block}",
        f"chunk={config.cache.blocks_per_chunk} hash={config.cache.tokens_per_hash}",
        f"layers={hashlib.sha256(layers.encode()).hexdigest()[:16]}",
    ])
    # One layer of one token of one head: two parts of half a row each.
    geometry = KvGeometry(attention="grouped", layers=1, kv_heads=1, head_dim=row_bytes // 2, dtype="i8",
                          block_tokens=1)
    return Group(0, (), geometry, model, 0)


def hashes_of(keys: List[bytes], era: bytes = b"") -> np.ndarray:
    """vLLM's keys (digest and group) as Client takes them; in another era they have other hashes. Shape: (keys, 2)."""
    digests = b"".join([hashlib.blake2b(key, digest_size=16, key=era).digest() for key in keys])
    return np.frombuffer(digests, dtype="<u8").reshape(-1, 2)


class Asked:
    """What a request has asked this tier for: vLLM asks for no chunk after the first miss."""

    def __init__(self, positions: Dict[bytes, int]) -> None:
        """positions: of ReqContext, when the request asks first: of the whole prompt."""
        self._positions = dict(positions)
        self._first: Dict[bytes, int] = {}  # of each group: the first chunk that the primary tier did not have
        self._keys: Set[bytes] = set()
        self._loaded: Set[bytes] = set()

    def add(self, key: bytes) -> None:
        self._keys.add(key)
        place = self._positions.get(key)
        if place is not None:
            self._first[key[-4:]] = min(place, self._first.get(key[-4:], place))

    def add_loaded(self, keys: Iterable[bytes]) -> None:
        self._loaded.update(self._keys.intersection(keys))

    def loaded(self) -> int:
        return len(self._loaded)

    def chunks(self) -> int:
        """With those of the prompt after the first miss, where vLLM says which these are (since 0.31)."""
        rest = {key for key, place in self._positions.items() if place >= self._first.get(key[-4:], math.inf)}
        return len(self._keys | rest)


class Order:
    """Where each chunk of a request is in its prompt: the pool evicts the last ones first."""

    def __init__(self) -> None:
        self._keys: Dict[Tuple[bytes, int], bytes] = {}  # group, tokens to the chunk's end: key
        self._known = 0

    def update(self, positions: Dict[bytes, int]) -> None:
        """positions: of ReqContext; only grows."""
        if len(positions) == self._known:
            return
        for key, end in itertools.islice(positions.items(), self._known, None):
            self._keys[key[-4:], end] = key
        self._known = len(positions)

    def before(self, key: bytes, end: Optional[int], chunk_tokens: Dict[bytes, int]) -> Optional[bytes]:
        """The chunk before this one, if it is known."""
        if end is None:
            return None
        return self._keys.get((key[-4:], end - chunk_tokens.get(key[-4:], 0)))
