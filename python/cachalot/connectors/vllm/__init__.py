"""vLLM engines share their KV cache through a pool: docs/guide/vllm.md.

    --kv-transfer-config '{"kv_connector": "CachalotConnector", "kv_role": "kv_both",
                           "kv_connector_extra_config": {"pool": "/dev/shm/kv"}}'

`python -m cachalot.connectors.vllm MODEL` needs no vLLM: it prints the `cachalot serve` line of a pool for the model.
"""

from typing import Any

__all__ = ["CachalotConnector"]  # noqa: F822


def require_vllm() -> None:
    """Raises ImportError: vLLM is not here, or a version that does not fit."""
    try:
        import vllm.distributed.kv_transfer.kv_connector.v1.base  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "cachalot.connectors.vllm needs vLLM with KVConnectorBase_V1 (pip install vllm): " + str(error)) from error
    import vllm

    from cachalot.connectors.vllm import versions

    versions.check(vllm.__version__)


def __getattr__(name: str) -> Any:
    if name != "CachalotConnector":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require_vllm()
    from cachalot.connectors.vllm.connector import CachalotConnector

    return CachalotConnector
