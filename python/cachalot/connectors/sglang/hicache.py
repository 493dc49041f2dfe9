"""A storage backend of SGLang's HiCache over a pool: pages go between HiCache's host pool and the pool without a copy between.

For engines that keep HiCache's tier in host memory. Others take the linker, which needs none.

HiCache calls from threads of its own, one for reads and one for writes. An exception there would end the thread, so no call
raises: what failed was not found, or not stored.
"""

import logging
import time
from typing import Any, Dict, List, Optional

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolName, PoolTransferResult

from cachalot.connectors.access.attachment import Attachment
from cachalot.connectors.access.group import UnsupportedCacheError
from cachalot.connectors.access.keeper import SharedKeeper
from cachalot.connectors.access.log import RateLimitedLog
from cachalot.connectors.sglang import weight_updates
from cachalot.connectors.sglang.metrics import Metrics
from cachalot.connectors.sglang.namespace import Place, group_of, hashes_of, host_memory, pages_of
from cachalot.connectors.sglang.options import BACKEND_FLAG, parse

_ATTACH_S = 5.0
#: What SGLang itself reads of the table.
_OF_SGLANG = ("backend_name", "module_path", "class_name", "interface_v1")


class CachalotStorage(HiCacheStorage):
    """Raises InvalidArgumentError: an option; UnsupportedCacheError: a model or a cache that cannot be shared."""

    def __init__(self, storage_config: Any, kwargs: Optional[Dict[str, Any]] = None) -> None:
        given = {key: value for key, value in (storage_config.extra_config or {}).items() if key not in _OF_SGLANG}
        self.log = RateLimitedLog(logging.getLogger(__name__))
        self._options = parse(given, BACKEND_FLAG)
        self._config = storage_config
        self._attachment: Optional[Attachment] = None
        self._keeper: Optional[SharedKeeper] = None
        self._page_tokens = 0

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        from sglang.srt.runtime_context import get_server_args

        super().register_mem_pool_host(mem_pool_host)
        config, options = self._config, self._options
        if config.attn_cp_size != 1 or getattr(config, "dcp_size", 1) != 1:
            raise UnsupportedCacheError("context parallelism")
        place = Place(config.tp_rank, config.tp_size, config.pp_rank, config.pp_size)
        args = get_server_args()
        group = group_of(args, mem_pool_host, place, options.weights == "all", options.salt)
        self._metrics = Metrics(args.enable_metrics, place, group.geometry.block_bytes)
        tensors, strides, pages = host_memory(mem_pool_host)
        self._page_tokens = mem_pool_host.page_size
        self.log.info("namespace %s", group.namespace)
        if options.create is not None:
            self._keeper = SharedKeeper(options, options.create, [group], self.log)

        def register(client: Any) -> Any:
            return client.register_cache(None, tensors, pages=pages, strides=strides)

        self._attachment = Attachment(options, group, self.log, register, counts_prompts=False)
        self._attachment.attach(_ATTACH_S)
        self._updates = weight_updates.watch(args)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        if PoolName(host_pool_name) != PoolName.KV:
            raise UnsupportedCacheError(f"a model with {PoolName(host_pool_name).value} state beside its KV pages")
        super().register_mem_host_pool_v2(host_pool, host_pool_name)

    def _client(self) -> Any:
        """The client and its cache, or None twice: there is no pool, or the weights were updated."""
        if self._attachment is None:
            return None, None
        if weight_updates.count() != self._updates:
            self._attachment.end("the weights were updated")
        return self._attachment.get_with()

    def _failed(self, what: str, client: Any, error: Exception) -> None:
        self._attachment.failed(client, error)
        self.log.warning(what, "a %s failed: %s", what, error)

    def batch_exists(self, keys: List[str], extra_info: Any = None) -> int:
        client, _ = self._client()
        if client is None or not keys:
            return 0
        began, found = time.monotonic(), 0
        try:
            hashes = hashes_of(keys)
            found = client.lookup(hashes)
            if found < len(keys) and self._options.storage_wait > 0:
                found = client.prefetch(hashes, self._options.storage_wait)[0]
        except Exception as error:  # what the pool has is a hit without the keeper
            self._failed("lookup", client, error)
        self._metrics.looked_up(found, time.monotonic() - began)
        self._metrics.count_prompts(self._attachment)
        return found

    def batch_get_v1(self, keys: List[str], host_indices: Any, extra_info: Any = None) -> List[bool]:
        client, cache = self._client()
        began, loaded = time.monotonic(), 0
        if client is not None:
            try:
                loaded = client.load(cache, hashes_of(keys), pages_of(host_indices, self._page_tokens),
                                     timeout=self._options.load_timeout)
            except Exception as error:  # whatever it is, the request is computed
                self._failed("load", client, error)
            self._metrics.loaded(loaded, len(keys), time.monotonic() - began)
            self._metrics.count_prompts(self._attachment)
        return [at < loaded for at in range(len(keys))]

    def batch_set_v1(self, keys: List[str], host_indices: Any, extra_info: Any = None) -> List[bool]:
        client, cache = self._client()
        began, stored = time.monotonic(), 0
        if client is not None:
            before = getattr(extra_info, "prefix_keys", None)
            try:
                stored = client.store(cache, hashes_of(keys), pages_of(host_indices, self._page_tokens),
                                      parent=hashes_of(before[-1:])[0] if before else None,
                                      timeout=self._options.store_timeout).blocks
            except Exception as error:  # whatever it is, the pages are not shared
                self._failed("store", client, error)
            self._metrics.stored(stored, len(keys), time.monotonic() - began)
        return [at < stored for at in range(len(keys))]

    # --- The interface of models with several pools, for the one that is supported --------------------

    def batch_exists_v2(self, keys: List[str], pool_transfers: Any = None, extra_info: Any = None) -> PoolTransferResult:
        return PoolTransferResult(self.batch_exists(keys, extra_info), {})

    def batch_get_v2(self, transfers: Any, extra_info: Any = None) -> Dict[str, List[bool]]:
        return {one.name: self.batch_get_v1(one.keys, one.host_indices, extra_info) for one in transfers}

    def batch_set_v2(self, transfers: Any, extra_info: Any = None) -> Dict[str, List[bool]]:
        return {one.name: self.batch_set_v1(one.keys, one.host_indices, extra_info) for one in transfers}

    # --- What HiCache does not call with interface_v1 --------------------------------------------------

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> None:
        return None

    def batch_get(self, keys: List[str], target_locations: Any = None, target_sizes: Any = None) -> List[None]:
        return [None] * len(keys)

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return False

    def batch_set(self, keys: List[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None) -> bool:
        return False

    def close(self) -> None:
        if self._attachment is not None:
            self._attachment.close()
        if self._keeper is not None:
            self._keeper.close()
