"""A CachalotTier whose pool changes after a lookup has found chunks and before their load."""

import numpy as np

from cachalot import Client, KvGeometry
from cachalot.connectors.vllm.tier import CachalotTier


class EvictingTier(CachalotTier):
    """Before its first load, others fill the pool: its chunks are evicted."""

    has_filled = False

    def submit_load(self, job_metadata):
        if not self.has_filled:
            self.has_filled = True
            geometry = KvGeometry(attention="grouped", layers=1, kv_heads=1, head_dim=64, dtype="i8", block_tokens=1)
            other = np.zeros(128, np.int8)
            with Client(pool=list(self._options.pool), model="other", geometry=geometry) as client:
                client.register_buffer(other)
                for number in range(200):
                    client.put(f"{number}", other)
        super().submit_load(job_metadata)
