"""LMCache keeps its chunks in a pool, below its own cache: docs/guide/lmcache.md.

    --l2-adapter '{"type": "plugin", "module_path": "cachalot.connectors.lmcache",
        "class_name": "CachalotL2Adapter", "adapter_params": {"pool": "/dev/shm/kv"}}'
"""

try:
    import lmcache.v1.distributed.l2_adapters.base  # noqa: F401
except ImportError as error:
    raise ImportError("cachalot.connectors.lmcache needs LMCache with L2AdapterInterface (0.5.6): " + str(error)) from error

from cachalot.connectors.lmcache.adapter import CachalotL2Adapter

__all__ = ["CachalotL2Adapter"]
