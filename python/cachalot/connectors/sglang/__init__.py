"""SGLang engines share their KV cache through a pool: docs/guide/sglang.md.

    --enable-unified-cache-external-linker --unified-cache-external-linker-backend dynamic
    --unified-cache-external-linker-config '{"linker": "CachalotLinker",
        "linker_module_path": "cachalot.connectors.sglang", "linker_extra_config": {"pool": "/dev/shm/kv"}}'

Or, for engines that keep HiCache's tier in host memory, as its storage: hicache.py.
"""

try:
    import sglang.srt.mem_cache.unified_cache.unified_cache_linker  # noqa: F401
except ImportError as error:
    raise ImportError("cachalot.connectors.sglang needs SGLang with UnifiedCacheLinker (0.5.23): " + str(error)) from error

from cachalot.connectors.sglang.hicache import CachalotStorage
from cachalot.connectors.sglang.linker import CachalotLinker

__all__ = ["CachalotLinker", "CachalotStorage"]
