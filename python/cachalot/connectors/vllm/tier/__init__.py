"""A pool as a secondary tier of vLLM's OffloadingConnector: docs/guide/vllm.md.

    "kv_connector_extra_config": {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": …, "secondary_tiers": [
        {"type": "CachalotTier", "module_path": "cachalot.connectors.vllm.tier", "pool": "/dev/shm/kv"}]}
"""

from cachalot.connectors.vllm import require_vllm

require_vllm()

from cachalot.connectors.vllm.tier.cachalot_tier import CachalotTier  # noqa: E402

__all__ = ["CachalotTier"]
