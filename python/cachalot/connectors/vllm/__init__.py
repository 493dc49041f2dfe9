"""vLLM engines share their KV cache through a pool: docs/guide/vllm.md.

    --kv-transfer-config '{"kv_connector": "CachalotConnector", "kv_role": "kv_both",
                           "kv_connector_extra_config": {"pool": "/dev/shm/kv"}}'
"""

try:
    import vllm.distributed.kv_transfer.kv_connector.v1.base  # noqa: F401
except ImportError as error:
    raise ImportError(
        "cachalot.connectors.vllm needs vLLM with KVConnectorBase_V1 (pip install vllm): " + str(error)) from error

import vllm

from cachalot.connectors.vllm import versions

versions.check(vllm.__version__)

from cachalot.connectors.vllm.connector import CachalotConnector  # noqa: E402

__all__ = ["CachalotConnector"]
