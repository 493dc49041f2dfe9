"""Tells vLLM the connector's name. vLLM calls register() in each of its processes (entry point vllm.general_plugins)."""


def register() -> None:
    """Makes "kv_connector": "CachalotConnector" known, without importing the connector."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    name = "CachalotConnector"
    if name not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(name, "cachalot.connectors.vllm", name)
